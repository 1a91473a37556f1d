//! All AMQP 1.0 clients of a run, and their connections.

use super::Amqp10Queue;
use super::client::{Amqp10Client, ClientRole};
use super::connection::Connection;
use super::oracle::Amqp10Oracle;
use crate::cluster::byte_stream::StreamPiece;
use crate::cluster::client::{Client, Link};
use crate::cluster::node::{AMQP10, Node, Reply, Request};
use crate::world::{Scenario, World};
use env::{Rng, SeededRng};
use std::time::Duration;

/// Mixed into the seed for the choice of the queues whose receivers have filters.
const FILTERS: u64 = 0xf117;
/// The number of the first of these clients, for replies.
pub(crate) const FIRST: u64 = 2000;

pub(crate) struct Amqp10Clients {
    clients: Vec<Amqp10Client>,
    pub oracle: Amqp10Oracle,
    pub faults_ended: bool,
}

impl Amqp10Clients {
    /// In half of the runs there are none. `seed`: for choices on which the others of a run do not depend.
    pub(crate) fn new(rng: &mut SeededRng, seed: u64, has_all_features: bool) -> Amqp10Clients {
        let mut clients = Vec::new();
        let mut queues = match rng.below(4) {
            0 => vec![Amqp10Queue::Quorum, Amqp10Queue::Classic],
            1 => vec![Amqp10Queue::Quorum],
            _ => Vec::new(),
        };
        // Filters need their feature flag.
        let choices = &mut SeededRng::new(seed ^ FILTERS);
        for queue in &mut queues {
            if has_all_features && choices.chance(2, 3) {
                *queue = match queue.is_quorum() {
                    true => Amqp10Queue::FilteredQuorum,
                    false => Amqp10Queue::FilteredClassic,
                };
            }
        }
        if !queues.is_empty() && rng.chance(1, 2) {
            queues.push(Amqp10Queue::SingleActive);
        }
        for queue in queues {
            for role in [
                ClientRole::Publish,
                ClientRole::Consume { first_part: 0 },
                ClientRole::Consume { first_part: 1 },
            ] {
                clients.push(Amqp10Client::new(queue, role, rng.fork()));
            }
            if choices.chance(1, 2) {
                let role = ClientRole::Browse;
                clients.push(Amqp10Client::new(queue, role, choices.fork()));
            }
        }
        Amqp10Clients {
            clients,
            oracle: Amqp10Oracle::default(),
            faults_ended: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// A client's turn. Returns the pause before the next one.
    pub(crate) fn act<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        next_connection: &mut u64,
    ) -> Duration {
        let now = world.now();
        let Some(client) = self.clients.get_mut(number) else {
            return Duration::MAX;
        };
        let pause = Duration::from_millis(10 + client.rng.below(120));
        let Some(link) = &client.link else {
            self.connect(world, number, next_connection);
            return pause;
        };
        let incarnation = world.process(link.node).map(Node::incarnation);
        let hangs_up = incarnation != Some(link.incarnation)
            || link.is_open_overdue(now)
            || client.act(now, self.faults_ended, &mut self.oracle);
        match hangs_up {
            true => self.hang_up(world, number),
            false => self.send(world, number),
        }
        pause
    }

    fn connect<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        next_connection: &mut u64,
    ) {
        let nodes = world.nodes();
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let node = Client::pick(&mut client.rng, &nodes).unwrap_or_default();
        let Some(incarnation) = world.process(node).map(Node::incarnation) else {
            return;
        };
        *next_connection += 1;
        let connection = *next_connection;
        let wire = Connection::new(client.plan());
        client.link = Some(Link::new(node, incarnation, connection, world.now(), wire));
        let request = Request::Connect {
            connection,
            protocol: AMQP10,
        };
        world.request(node, FIRST + number as u64, request);
    }

    fn send<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>, number: usize) {
        let Some(link) = self.clients.get_mut(number).and_then(|c| c.link.as_mut()) else {
            return;
        };
        while let Some((at, bytes)) = link.next_piece() {
            let request = Request::Piece {
                connection: link.connection,
                number: at,
                piece: StreamPiece::Bytes(bytes),
            };
            world.request(link.node, FIRST + number as u64, request);
        }
    }

    fn hang_up<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>, number: usize) {
        self.send(world, number);
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        client.lose(world.now(), &mut self.oracle);
        if let Some(link) = client.link.take() {
            let request = Request::Piece {
                connection: link.connection,
                number: link.sent_pieces(),
                piece: StreamPiece::End,
            };
            world.request(link.node, FIRST + number as u64, request);
        }
    }

    pub(crate) fn reply<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        client: u64,
        reply: Reply,
    ) -> Result<(), String> {
        let number = client.saturating_sub(FIRST) as usize;
        let (Reply::Piece { connection, .. }
        | Reply::Accepted { connection }
        | Reply::Reset { connection }) = reply
        else {
            return Ok(());
        };
        let Some(client) = self.clients.get_mut(number) else {
            return Ok(());
        };
        let link = client.link.as_mut();
        let Some(link) = link.filter(|link| link.connection == connection) else {
            return Ok(());
        };
        let now = world.now();
        let mut ends = false;
        match reply {
            Reply::Accepted { .. } => link.accepted = true,
            Reply::Piece {
                number: at, piece, ..
            } => {
                for piece in link.receive_piece(at, piece) {
                    ends |= match piece {
                        StreamPiece::Bytes(bytes) => client
                            .receive(now, &bytes, &mut self.oracle)
                            .map_err(|error| format!("AMQP 1.0 client {number}: {error}"))?,
                        StreamPiece::End => true,
                    };
                }
            }
            _ => ends = true,
        }
        match ends {
            true => self.hang_up(world, number),
            false => self.send(world, number),
        }
        Ok(())
    }

    /// Nothing is left to do, and every message has come.
    pub(crate) fn is_done(&self) -> bool {
        self.clients.iter().all(Amqp10Client::is_done) && self.oracle.owed().is_empty()
    }

    pub(crate) fn describe_wait(&self) -> String {
        let waiting = self.clients.iter().filter(|client| !client.is_done());
        let waiting: Vec<String> = waiting.map(Amqp10Client::describe_wait).collect();
        format!("{waiting:?}, owed {:?}", self.oracle.owed())
    }
}
