//! A client: its connection to a node, and the role that it plays there.

use super::amq_topic::{BoundQueueConsumer, TopicPublisher};
use super::amqp::{AmqpClient, ServerMessage};
use super::byte_stream::{ByteStream, StreamPiece};
use super::consumer::Consumer;
use super::mqtt::{MqttOracle, QueueLookup};
use super::oracle::Oracle;
use super::publisher::Publisher;
use super::queue_admin::QueueAdmin;
use super::streams::{StreamOracle, StreamPublisher, StreamReader};
use bytes::Bytes;
use env::{Incarnation, NodeId, Rng, SeededRng, Time};
use metadata::Change;
use std::time::Duration;

/// The parts of the run that a client accesses while it acts.
pub(super) struct ClientContext<'a> {
    pub now: Time,
    pub rng: &'a mut SeededRng,
    pub oracle: &'a mut Oracle,
    /// The oracle of `amq.topic`.
    pub mqtt_oracle: &'a mut MqttOracle,
    pub stream_oracle: &'a mut StreamOracle,
    /// Lookup of the bindings that the client's node knows.
    pub find_bound_queue: QueueLookup<'a>,
    /// Faults have ended, so the client must complete its work.
    pub faults_ended: bool,
    pub connection: u64,
    /// The machine that the connection goes to.
    pub node: NodeId,
    /// Requests to the control plane.
    pub changes: Vec<Change>,
    /// The client wants to close its connection.
    pub wants_close: bool,
}

/// The behaviour of a client on its connection.
pub(super) trait Role {
    /// The connection is open.
    fn on_open(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>);
    /// A message of the server has arrived.
    fn on_message(
        &mut self,
        message: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String>;
    /// Takes a random action.
    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String>;
    /// The connection is lost.
    fn on_connection_lost(&mut self, cx: &mut ClientContext<'_>) -> Result<(), String>;
    /// The control plane has answered a requested change.
    fn on_change_answered(&mut self, _done: bool) {}
    /// Whether the client has work left after the faults have ended.
    fn has_work_left(&self) -> bool;
    /// Describes what the client waits for, for the text of a violation.
    fn describe_wait(&self) -> String;
}

pub(super) enum ClientRole {
    Publisher(Publisher),
    Consumer(Consumer),
    QueueAdmin(QueueAdmin),
    TopicPublisher(TopicPublisher),
    BoundQueueConsumer(BoundQueueConsumer),
    StreamPublisher(StreamPublisher),
    StreamReader(StreamReader),
}

impl ClientRole {
    pub(super) fn role(&mut self) -> &mut dyn Role {
        match self {
            ClientRole::Publisher(p) => p,
            ClientRole::Consumer(c) => c,
            ClientRole::QueueAdmin(k) => k,
            ClientRole::TopicPublisher(t) => t,
            ClientRole::BoundQueueConsumer(t) => t,
            ClientRole::StreamPublisher(p) => p,
            ClientRole::StreamReader(r) => r,
        }
    }

    pub(super) fn as_role(&self) -> &dyn Role {
        match self {
            ClientRole::Publisher(p) => p,
            ClientRole::Consumer(c) => c,
            ClientRole::QueueAdmin(k) => k,
            ClientRole::TopicPublisher(t) => t,
            ClientRole::BoundQueueConsumer(t) => t,
            ClientRole::StreamPublisher(p) => p,
            ClientRole::StreamReader(r) => r,
        }
    }
}

/// A client's end of its protocol.
pub(super) trait ProtocolEndpoint {
    /// Takes the bytes to send.
    fn take(&mut self) -> Option<Bytes>;
}

/// A client's connection.
pub(super) struct Link<W> {
    pub node: NodeId,
    /// The incarnation of the node that the connection was made to.
    pub incarnation: Incarnation,
    pub connection: u64,
    pub since: Time,
    /// The node has accepted the connection.
    pub accepted: bool,
    pub open: bool,
    pub wire: W,
    stream: ByteStream,
    sent: u64,
}

pub(super) struct Client {
    pub rng: SeededRng,
    pub role: ClientRole,
    pub link: Option<Link<AmqpClient>>,
    /// The machine that the client connects to, by its position. None: any.
    pub home: Option<u64>,
}

/// A connection that is not open after this time is given up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(8);

impl<W: ProtocolEndpoint> Link<W> {
    /// Creates a connection. A client that speaks first has put its first bytes into `wire`.
    pub(super) fn new(
        node: NodeId,
        incarnation: Incarnation,
        connection: u64,
        now: Time,
        wire: W,
    ) -> Link<W> {
        Link {
            node,
            incarnation,
            connection,
            since: now,
            accepted: false,
            open: false,
            wire,
            stream: ByteStream::default(),
            sent: 0,
        }
    }

    /// The next piece to send.
    pub(super) fn next_piece(&mut self) -> Option<(u64, Bytes)> {
        if !self.accepted {
            return None;
        }
        let bytes = self.wire.take()?;
        self.sent += 1;
        Some((self.sent - 1, bytes))
    }

    /// Adds a piece, and returns all pieces that are next in order.
    pub(super) fn receive_piece(&mut self, number: u64, piece: StreamPiece) -> Vec<StreamPiece> {
        self.stream.put(number, piece);
        std::iter::from_fn(|| self.stream.take()).collect()
    }

    pub(super) fn sent_pieces(&self) -> u64 {
        self.sent
    }

    pub(super) fn is_open_overdue(&self, now: Time) -> bool {
        !self.open && now.since(self.since) >= OPEN_TIMEOUT
    }
}

impl Client {
    /// Processes a piece. Returns true if it ends the connection.
    pub(super) fn receive_piece(
        &mut self,
        number: u64,
        piece: StreamPiece,
        cx: &mut ClientContext<'_>,
    ) -> Result<bool, String> {
        let Some(link) = &mut self.link else {
            return Ok(false);
        };
        link.stream.put(number, piece);
        while let Some(piece) = link.stream.take() {
            let StreamPiece::Bytes(bytes) = piece else {
                return Ok(true);
            };
            let mut messages = Vec::new();
            link.wire.receive(&bytes, &mut messages)?;
            for message in messages {
                let role = self.role.role();
                match message {
                    ServerMessage::Open => {
                        link.open = true;
                        role.on_open(&mut link.wire, cx);
                    }
                    // The node shuts down, or it refused the connection. Its end follows.
                    ServerMessage::Closed {
                        code: 320 | 530 | 541,
                        ..
                    } => {}
                    ServerMessage::Closed { code, text } => {
                        return Err(format!("closed: {code} {text}"));
                    }
                    other => role.on_message(other, &mut link.wire, cx)?,
                }
            }
        }
        Ok(false)
    }

    pub(super) fn act(&mut self, cx: &mut ClientContext<'_>) -> Result<(), String> {
        let Some(link) = self.link.as_mut().filter(|l| l.open) else {
            return Ok(());
        };
        self.role.role().act(&mut link.wire, cx)
    }

    /// Selects a random element.
    pub(super) fn pick<T: Copy>(rng: &mut SeededRng, choices: &[T]) -> Option<T> {
        choices
            .get(rng.below(choices.len().max(1) as u64) as usize)
            .copied()
    }
}
