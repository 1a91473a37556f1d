//! A client: a connection to some node, and what it does there.

use super::amq_topic::{BoundQueueConsumer, TopicPublisher};
use super::amqp::{AmqpClient, ServerMessage};
use super::byte_stream::{ByteStream, StreamPiece};
use super::consumer::Consumer;
use super::mqtt::{MqttOracle, QueueLookup};
use super::oracle::Oracle;
use super::publisher::Publisher;
use super::queue_admin::QueueAdmin;
use bytes::Bytes;
use env::{Incarnation, NodeId, Rng, SeededRng, Time};
use metadata::Change;
use std::time::Duration;

/// What a client sees of the run while it acts.
pub struct Context<'a> {
    pub now: Time,
    pub rng: &'a mut SeededRng,
    pub oracle: &'a mut Oracle,
    /// The account of what goes through `amq.topic`, and what the node knows of who listens there.
    pub mqtt_oracle: &'a mut MqttOracle,
    pub knows: QueueLookup<'a>,
    /// No more faults: everything is to come to its end.
    pub quiet: bool,
    pub connection: u64,
    /// The machine that it is to.
    pub node: NodeId,
    /// To be asked of the control plane.
    pub changes: Vec<Change>,
    /// The client wants to end its connection.
    pub hang_up: bool,
}

/// What a client does with its connection.
pub trait Role {
    /// The connection is open.
    fn opened(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>);
    fn heard(
        &mut self,
        heard: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String>;
    /// Does something, by chance.
    fn act(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String>;
    /// The connection is gone.
    fn lost(&mut self, cx: &mut Context<'_>) -> Result<(), String>;
    /// The control plane has made a change, or not.
    fn changed(&mut self, _done: bool) {}
    /// Whether it has something left to do when everything is quiet.
    fn wants_more(&self) -> bool;
    /// What it waits for, for people.
    fn waits_for(&self) -> String;
}

pub enum ClientRole {
    Publisher(Publisher),
    Consumer(Consumer),
    Keeper(QueueAdmin),
    Teller(TopicPublisher),
    Tap(BoundQueueConsumer),
}

impl ClientRole {
    pub fn role(&mut self) -> &mut dyn Role {
        match self {
            ClientRole::Publisher(p) => p,
            ClientRole::Consumer(c) => c,
            ClientRole::Keeper(k) => k,
            ClientRole::Teller(t) => t,
            ClientRole::Tap(t) => t,
        }
    }

    pub fn as_role(&self) -> &dyn Role {
        match self {
            ClientRole::Publisher(p) => p,
            ClientRole::Consumer(c) => c,
            ClientRole::Keeper(k) => k,
            ClientRole::Teller(t) => t,
            ClientRole::Tap(t) => t,
        }
    }
}

/// A client's end of its protocol.
pub trait ProtocolEndpoint {
    /// What is to be sent.
    fn take(&mut self) -> Option<Bytes>;
}

/// A connection.
pub struct Link<W> {
    pub node: NodeId,
    /// The life of the node that it was made to.
    pub machine_run: Incarnation,
    pub connection: u64,
    pub since: Time,
    /// There is somebody at the other end.
    pub accepted: bool,
    pub open: bool,
    pub wire: W,
    lane: ByteStream,
    sent: u64,
}

pub struct Client {
    pub rng: SeededRng,
    pub part: ClientRole,
    pub link: Option<Link<AmqpClient>>,
}

/// A connection that is not open after this long is given up.
const OPENING: Duration = Duration::from_secs(8);

impl<W: ProtocolEndpoint> Link<W> {
    /// A connection whose client has said its first word, if it speaks first.
    pub fn new(
        node: NodeId,
        machine_run: Incarnation,
        connection: u64,
        now: Time,
        wire: W,
    ) -> Link<W> {
        Link {
            node,
            machine_run,
            connection,
            since: now,
            accepted: false,
            open: false,
            wire,
            lane: ByteStream::default(),
            sent: 0,
        }
    }

    /// The next piece to be sent.
    pub fn piece(&mut self) -> Option<(u64, Bytes)> {
        if !self.accepted {
            return None;
        }
        let bytes = self.wire.take()?;
        self.sent += 1;
        Some((self.sent - 1, bytes))
    }

    /// The pieces that are there in their order, with this one.
    pub fn arrive(&mut self, number: u64, piece: StreamPiece) -> Vec<StreamPiece> {
        self.lane.put(number, piece);
        std::iter::from_fn(|| self.lane.take()).collect()
    }

    pub fn last_number(&self) -> u64 {
        self.sent
    }

    pub fn too_slow(&self, now: Time) -> bool {
        !self.open && now.since(self.since) >= OPENING
    }
}

impl Client {
    /// Takes in a piece; true when the connection has ended with it.
    pub fn arrived(
        &mut self,
        number: u64,
        piece: StreamPiece,
        cx: &mut Context<'_>,
    ) -> Result<bool, String> {
        let Some(link) = &mut self.link else {
            return Ok(false);
        };
        link.lane.put(number, piece);
        while let Some(piece) = link.lane.take() {
            let StreamPiece::Bytes(bytes) = piece else {
                return Ok(true);
            };
            let mut heard = Vec::new();
            link.wire.hear(&bytes, &mut heard)?;
            for item in heard {
                let role = self.part.role();
                match item {
                    ServerMessage::Open => {
                        link.open = true;
                        role.opened(&mut link.wire, cx);
                    }
                    // The node goes, or it refused us; the end follows.
                    ServerMessage::Closed {
                        code: 320 | 530 | 541,
                        ..
                    } => {}
                    ServerMessage::Closed { code, text } => {
                        return Err(format!("closed: {code} {text}"));
                    }
                    other => role.heard(other, &mut link.wire, cx)?,
                }
            }
        }
        Ok(false)
    }

    pub fn act(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let Some(link) = self.link.as_mut().filter(|l| l.open) else {
            return Ok(());
        };
        self.part.role().act(&mut link.wire, cx)
    }

    /// One of some.
    pub fn pick<T: Copy>(rng: &mut SeededRng, of: &[T]) -> Option<T> {
        of.get(rng.below(of.len().max(1) as u64) as usize).copied()
    }
}
