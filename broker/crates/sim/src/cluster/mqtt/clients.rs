//! The MQTT clients of a run and their connections.

use super::super::amq_topic::{BOUND_CONSUMER, BOUND_QUEUE};
use super::super::byte_stream::StreamPiece;
use super::super::client::{Client, Link};
use super::super::consistency;
use super::super::node::{Node, Reply, Request};
use super::client::{AbandonedConnection, ClientAction, MqttClient, MqttClientPlan, RunContext};
use super::dying_node::DyingClients;
use super::expiring_session::DELAYED_WILL_TOPIC;
use super::oracle::MqttOracle;
use super::retained::RetainedOracle;
use super::routes::{self, ShardIncarnation};
use super::wire::{MqttConnection, ServerMessage};
use crate::world::{Scenario, World};
use codec_mqtt::Qos;
use env::{NodeId, Rng, SeededRng, Time};
use std::ops::Range;
use std::time::Duration;

/// The client number of the first MQTT client in replies.
pub(crate) const FIRST_CLIENT: u64 = 1000;
/// Maximum time until an abandoned connection ends after its client has another one, without faults.
const TAKEOVER_TIME: Duration = Duration::from_secs(2);

pub(crate) struct MqttClients {
    clients: Vec<MqttClient>,
    pub mqtt_oracle: MqttOracle,
    retained: RetainedOracle,
    faults_ended_at: Option<Time>,
    rng: SeededRng,
    has_inspectors: bool,
}

/// The clients of a run: the cheap kinds always, the others depending on the seed.
fn plans(rng: &mut SeededRng) -> Vec<MqttClientPlan> {
    use Qos::{AtLeastOnce as One, AtMostOnce as Zero, ExactlyOnce as Two};
    let plan = |client: &str, is_persistent, filters: &[(&'static str, Qos)]| MqttClientPlan {
        client: client.to_owned(),
        is_persistent,
        filters: filters.to_vec(),
        ..MqttClientPlan::default()
    };
    let publisher = |client: &str, is_persistent, name| MqttClientPlan {
        publisher_name: Some(name),
        ..plan(client, is_persistent, &[])
    };
    let mut all = vec![
        publisher("writer", false, "writer"),
        publisher("returner", true, "returner"),
        MqttClientPlan {
            toggled_filter: Some(("b/+", One)),
            ..plan("lasting", true, &[("a/#", Two), ("w/#", One)])
        },
    ];
    if rng.chance(1, 2) {
        all.push(MqttClientPlan {
            starts_clean: true,
            ..plan("fickle", true, &[("+/x", One), ("b/y/z", Two)])
        });
    }
    let clean: &[_] = match rng.below(3) {
        0 => &[("#", Two)],
        1 => &[("a/+", One), ("b/#", Zero)],
        _ => &[("a/x", Zero), ("+/x", One)],
    };
    let mut clean = clean.to_vec();
    if clean.iter().all(|(filter, _)| *filter != "#") {
        clean.push((DELAYED_WILL_TOPIC, Two));
    }
    all.push(plan("clean", false, &clean));
    if rng.chance(1, 2) {
        all.push(MqttClientPlan {
            has_will: true,
            ..plan("willing", false, &[])
        });
    }
    if rng.chance(1, 2) {
        let group = [("$share/g/s/#", One)];
        all.push(plan("member-a", true, &group));
        all.push(plan("member-b", rng.chance(1, 2), &group));
    }
    if rng.chance(2, 3) {
        let expiring_session = |client, filters: &[_]| MqttClientPlan {
            expiring_session: true,
            ..plan(client, true, filters)
        };
        all.push(expiring_session("guest", &[("b/x", One)]));
        if rng.chance(1, 3) {
            all.push(expiring_session("caller", &[("a/y", Two)]));
        }
    }
    all
}

/// Number of shards of the node that runs on this machine.
pub(crate) fn shards_of<S: Scenario<Process = Node>>(world: &World<S>, machine: NodeId) -> u64 {
    (world.process(machine)).map_or(1, |node| u64::from(node.shard_count()))
}

impl MqttClients {
    pub(crate) fn new(rng: &mut SeededRng) -> MqttClients {
        let mut mqtt_clients = MqttClients {
            clients: Vec::new(),
            mqtt_oracle: MqttOracle::default(),
            retained: RetainedOracle::default(),
            faults_ended_at: None,
            rng: rng.fork(),
            has_inspectors: false,
        };
        for plan in plans(rng) {
            mqtt_clients.add(plan);
        }
        mqtt_clients
            .mqtt_oracle
            .add_bound_queue(BOUND_CONSUMER, BOUND_QUEUE);
        mqtt_clients
    }

    fn add(&mut self, plan: MqttClientPlan) {
        let number = self.clients.len();
        let mqtt_client = MqttClient::new(number, plan, self.rng.fork());
        self.mqtt_oracle.add(number, mqtt_client.queue());
        self.clients.push(mqtt_client);
    }

    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Faults have ended.
    pub(crate) fn end_faults(&mut self, now: Time) {
        self.faults_ended_at = Some(now);
    }

    /// Lets a client act and sends its packets.
    fn with_client<S: Scenario<Process = Node>, T>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        f: impl FnOnce(&mut MqttClient, &mut RunContext<'_>) -> T,
    ) -> Option<T> {
        let has_waiting_subscribers =
            self.faults_ended_at.is_some() && self.subscribers_wait(world.now());
        let mqtt_client = self.clients.get_mut(number)?;
        let location = mqtt_client.location;
        let process = location.and_then(|location| world.process(location.node));
        let find_bound_queue = |queue: &str, filter: &str| {
            location.and_then(|location| routes::find_bound_queue(process, location, queue, filter))
        };
        let mut cx = RunContext {
            now: world.now(),
            faults_ended_at: self.faults_ended_at,
            has_waiting_subscribers,
            mqtt_oracle: &mut self.mqtt_oracle,
            retained: &mut self.retained,
            find_bound_queue: &find_bound_queue,
        };
        let result = f(mqtt_client, &mut cx);
        if let Some(link) = &mut mqtt_client.link {
            while let Some((piece_number, bytes)) = link.next_piece() {
                let request = Request::Piece {
                    connection: link.connection,
                    number: piece_number,
                    piece: StreamPiece::Bytes(bytes),
                };
                world.request(link.node, FIRST_CLIENT + number as u64, request);
            }
        }
        Some(result)
    }

    /// Describes what the selected clients wait for after the faults.
    fn waiting(&mut self, now: Time, is_selected: impl Fn(&MqttClient) -> bool) -> Vec<String> {
        let cx = RunContext {
            now,
            faults_ended_at: self.faults_ended_at,
            has_waiting_subscribers: false,
            mqtt_oracle: &mut self.mqtt_oracle,
            retained: &mut self.retained,
            find_bound_queue: &|_, _| None,
        };
        let clients = self
            .clients
            .iter()
            .filter(|mqtt_client| is_selected(mqtt_client));
        clients
            .filter_map(|mqtt_client| mqtt_client.describe_wait(&cx))
            .collect()
    }

    /// Whether a subscriber has not received enough messages yet.
    fn subscribers_wait(&mut self, now: Time) -> bool {
        !self.waiting(now, MqttClient::expects_messages).is_empty()
    }

    /// Describes what the clients wait for after the faults.
    pub(crate) fn describe_wait(&mut self, now: Time) -> Vec<String> {
        self.waiting(now, |_| true)
    }

    /// Lets a client act. Returns the time until its next turn.
    pub(crate) fn act<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        next_connection: &mut u64,
    ) -> Result<Duration, String> {
        let now = world.now();
        let Some(mqtt_client) = self.clients.get_mut(number) else {
            return Ok(Duration::MAX);
        };
        let pause = Duration::from_millis(20 + mqtt_client.rng.below(180));
        if mqtt_client.is_done() {
            return Ok(pause);
        }
        if mqtt_client.link.is_none()
            && self.with_client(world, number, |d, cx| d.is_away(cx)) == Some(true)
        {
            return Ok(pause);
        }
        let Some(link) = self.clients.get(number).and_then(|d| d.link.as_ref()) else {
            self.connect(world, number, next_connection);
            return Ok(pause);
        };
        if is_gone(world, link) || link.is_open_overdue(now) {
            self.close_connection(world, number);
            return Ok(pause);
        }
        match self.with_client(world, number, |mqtt_client, cx| mqtt_client.act(cx)) {
            Some(ClientAction::Disconnect) => self.close_connection(world, number),
            Some(ClientAction::Reconnect) => {
                self.abandon_connection(world, number);
                self.connect(world, number, next_connection);
            }
            Some(ClientAction::Continue) | None => {}
        }
        Ok(pause)
    }

    fn connect<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        next_connection: &mut u64,
    ) {
        let nodes = world.nodes();
        let Some(mqtt_client) = self.clients.get_mut(number) else {
            return;
        };
        let last = mqtt_client.location.map(|location| location.node);
        let keeps_node = mqtt_client.rng.chance(1, 2);
        let random_node = Client::pick(&mut mqtt_client.rng, &nodes).unwrap_or_default();
        *next_connection += 1;
        let returns = mqtt_client.location.filter(|location| {
            let incarnation = world.process(location.node).map(Node::incarnation);
            mqtt_client.returns_to_shard() && incarnation == Some(location.incarnation)
        });
        let fixed_shard = returns.map(|location| (location.node, location.shard));
        let node = match fixed_shard.or(mqtt_client.plan.inspects_retained) {
            _ if let Some(dying_node) = mqtt_client.plan.dying_node => dying_node.node,
            Some((node, shard)) => {
                let shards = shards_of(world, node);
                *next_connection += (shard + shards - *next_connection % shards) % shards;
                node
            }
            None => last
                .filter(|n| keeps_node && nodes.contains(n))
                .unwrap_or(random_node),
        };
        let Some(incarnation) = world.process(node).map(Node::incarnation) else {
            return;
        };
        let connection = *next_connection;
        let location = ShardIncarnation {
            node,
            incarnation,
            shard: connection % shards_of(world, node),
        };
        let link = Link::new(
            node,
            incarnation,
            connection,
            world.now(),
            MqttConnection::default(),
        );
        self.with_client(world, number, |mqtt_client, cx| {
            mqtt_client.begin_connection(link, location, cx)
        });
        let request = Request::Connect {
            connection,
            protocol: super::super::node::MQTT,
        };
        world.request(node, FIRST_CLIENT + number as u64, request);
    }

    /// Closes the client's connection.
    fn close_connection<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
    ) {
        let link = self.with_client(world, number, |mqtt_client, cx| {
            mqtt_client.end_connection(cx)
        });
        if let Some(link) = link.flatten() {
            send_end(world, number, &link);
        }
    }

    /// Abandons the client's connection, for a new one.
    fn abandon_connection<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
    ) {
        let link = self.with_client(world, number, |mqtt_client, cx| {
            mqtt_client.end_connection(cx)
        });
        if let (Some(link), Some(mqtt_client)) = (link.flatten(), self.clients.get_mut(number)) {
            mqtt_client
                .abandoned
                .push(AbandonedConnection { link, since: None });
        }
    }

    pub(crate) fn reply<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        client: u64,
        reply: Reply,
    ) -> Result<(), String> {
        let number = client.saturating_sub(FIRST_CLIENT) as usize;
        let (Reply::Piece { connection, .. }
        | Reply::Accepted { connection }
        | Reply::Reset { connection }) = reply
        else {
            return Ok(());
        };
        let link = self.clients.get(number).and_then(|d| d.link.as_ref());
        if link.is_none_or(|link| link.connection != connection) {
            self.handle_abandoned(world, number, connection, reply);
            return Ok(());
        }
        let has_ended = match reply {
            Reply::Accepted { .. } => {
                self.with_client(world, number, |mqtt_client, _| {
                    if let Some(link) = &mut mqtt_client.link {
                        link.accepted = true;
                    }
                });
                false
            }
            Reply::Piece {
                number: piece_number,
                piece,
                ..
            } => {
                let read = self.with_client(world, number, |mqtt_client, cx| {
                    receive_piece(mqtt_client, piece_number, piece, cx)
                });
                let client = &self.clients.get(number).map(|d| d.plan.client.clone());
                let client = client.as_deref().unwrap_or_default();
                read.unwrap_or(Ok(true))
                    .map_err(|error| format!("{client}: {error}"))?
            }
            _ => true,
        };
        if has_ended {
            self.close_connection(world, number);
        }
        Ok(())
    }

    /// Handles a reply for an abandoned connection. Its client ignores everything but its end.
    fn handle_abandoned<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        number: usize,
        connection: u64,
        reply: Reply,
    ) {
        let Some(mqtt_client) = self.clients.get_mut(number) else {
            return;
        };
        let abandoned = &mut mqtt_client.abandoned;
        let at = abandoned
            .iter()
            .position(|g| g.link.connection == connection);
        let Some(abandoned_connection) = at.and_then(|at| abandoned.get_mut(at)) else {
            return;
        };
        let ended = match reply {
            Reply::Reset { .. } => true,
            Reply::Piece {
                number: piece_number,
                piece,
                ..
            } => abandoned_connection
                .link
                .receive_piece(piece_number, piece)
                .contains(&StreamPiece::End),
            _ => false,
        };
        if let (true, Some(at)) = (ended, at) {
            let abandoned_connection = abandoned.remove(at);
            send_end(world, number, &abandoned_connection.link);
        }
    }

    /// Checks that abandoned connections end, and checks expiring sessions and wills.
    pub(crate) fn check<S: Scenario<Process = Node>>(
        &mut self,
        world: &World<S>,
    ) -> Result<(), String> {
        let now = world.now();
        self.check_expiring_sessions(world)?;
        self.mqtt_oracle.check_wills(now)?;
        for mqtt_client in &mut self.clients {
            mqtt_client
                .abandoned
                .retain(|connection| !is_gone(world, &connection.link));
            let is_late = |g: &&AbandonedConnection| {
                g.since.is_some_and(|at| {
                    now.since(at) > TAKEOVER_TIME && self.mqtt_oracle.no_faults_since(at)
                })
            };
            if let Some(connection) = mqtt_client.abandoned.iter().find(is_late) {
                return Err(format!(
                    "{} has another connection since {:?}, and the one to node {} stays open",
                    mqtt_client.plan.client, connection.since, connection.link.node.0
                ));
            }
        }
        Ok(())
    }

    /// Checks that expired sessions have ended and have no queues.
    fn check_expiring_sessions<S: Scenario<Process = Node>>(
        &mut self,
        world: &World<S>,
    ) -> Result<(), String> {
        let now = world.now();
        let nodes = world.nodes();
        let all = || nodes.iter().filter_map(|node| world.process(*node));
        for mqtt_client in self.clients.iter_mut().filter(|d| d.plan.expiring_session) {
            let name = mqtt_client.queue().unwrap_or_default();
            let leaders = all().flat_map(Node::shards).filter_map(|shard| {
                let state = shard.state();
                let queue = state.tree().queue("/", &name)?.id;
                Some((queue, state.local_queues().led_status(queue)?.term))
            });
            if let Some(leader) = leaders.max() {
                mqtt_client.record_leader(now, leader);
            }
            if mqtt_client.has_expired(now, &self.mqtt_oracle) {
                consistency::check_queue_exists(all(), &name, false).map_err(|e| {
                    format!(
                        "{} is away and its session over: {e}",
                        mqtt_client.plan.client
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Adds clients that connect to a machine which will be killed, if the run has wills. Returns the new clients.
    pub(crate) fn add_dying_clients(&mut self, node: NodeId) -> Range<usize> {
        let first = self.clients.len();
        if self
            .clients
            .iter()
            .any(|mqtt_client| mqtt_client.plan.has_will)
        {
            for (client, sends_disconnect) in
                [("mortal-a", false), ("mortal-b", false), ("leaver", true)]
            {
                self.add(MqttClientPlan {
                    client: client.to_owned(),
                    has_will: true,
                    dying_node: Some(DyingClients {
                        node,
                        sends_disconnect,
                    }),
                    ..MqttClientPlan::default()
                });
            }
        }
        first..self.clients.len()
    }

    /// Their machine is about to be killed.
    pub(crate) fn machine_dies<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>) {
        for number in 0..self.clients.len() {
            self.with_client(world, number, MqttClient::machine_dies);
        }
    }

    /// Adds clients that inspect the retained messages on each shard of each node. Returns the new clients; `None` if
    /// they exist.
    pub(crate) fn begin_inspection<S: Scenario<Process = Node>>(
        &mut self,
        world: &World<S>,
    ) -> Option<Range<usize>> {
        if std::mem::replace(&mut self.has_inspectors, true) {
            return None;
        }
        let first = self.clients.len();
        for node in world.nodes() {
            for shard in 0..shards_of(world, node) {
                self.add(MqttClientPlan {
                    client: format!("look-{}-{shard}", node.0),
                    filters: vec![("r/#", Qos::AtLeastOnce)],
                    inspects_retained: Some((node, shard)),
                    ..MqttClientPlan::default()
                });
            }
        }
        Some(first..self.clients.len())
    }

    /// Checks that all of them found the last acknowledged messages.
    pub(crate) fn check_retained(&self) -> Result<(), String> {
        let inspectors = self
            .clients
            .iter()
            .filter(|d| d.plan.inspects_retained.is_some());
        let mut first = None;
        for mqtt_client in inspectors {
            let client = &mqtt_client.plan.client;
            let found = mqtt_client
                .inspected()
                .ok_or("a client has not inspected the retained messages")?;
            let result = self.retained.check(found);
            result.map_err(|error| format!("{client}: {error}"))?;
            if *first.get_or_insert(found) != found {
                return Err(format!("{client} found {found:?}, others {first:?}"));
            }
        }
        Ok(())
    }
}

/// Whether the node of the connection has started again since.
fn is_gone<S: Scenario<Process = Node>>(world: &World<S>, link: &Link<MqttConnection>) -> bool {
    world.process(link.node).map(Node::incarnation) != Some(link.incarnation)
}

fn send_end<S: Scenario<Process = Node>>(
    world: &mut World<S>,
    number: usize,
    link: &Link<MqttConnection>,
) {
    let request = Request::Piece {
        connection: link.connection,
        number: link.sent_pieces(),
        piece: StreamPiece::End,
    };
    world.request(link.node, FIRST_CLIENT + number as u64, request);
}

/// Returns true if the piece ends the connection.
fn receive_piece(
    mqtt_client: &mut MqttClient,
    piece_number: u64,
    piece: StreamPiece,
    cx: &mut RunContext<'_>,
) -> Result<bool, String> {
    let Some(link) = &mut mqtt_client.link else {
        return Ok(false);
    };
    let mut messages: Vec<ServerMessage> = Vec::new();
    let mut ended = false;
    for piece in link.receive_piece(piece_number, piece) {
        match piece {
            StreamPiece::Bytes(bytes) => link.wire.receive(&bytes, &mut messages)?,
            StreamPiece::End => ended = true,
        }
    }
    for message in messages {
        mqtt_client.on_message(message, cx)?;
    }
    Ok(ended)
}
