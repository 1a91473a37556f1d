//! The interface between a protocol session and the node that it runs on.
//!
//! A session is a state machine. Its inputs are bytes from the client and [`SessionEvent`]s. Its
//! outputs are bytes (through [`Outbox`]) and calls on [`Broker`]. It holds no clock, socket or
//! lock. The shard implements `Broker`; tests implement it with a fake.
//!
//! The main types are [`Session`] (implemented by each protocol), [`Broker`] (the node) and
//! [`SessionEvent`] (answers and notifications from the node).
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod counts;
mod held;
pub mod interceptors;
mod login;
mod outbox;
mod protocol;
mod service;
mod written;

pub use audit::{Refusals, RefusedPermission};
pub use counts::{
    ChannelDetails, LinkDetails, LinkFilter, LinkSessionDetails, MessageCounters, MessageSizes,
    PublishCounters, SampledDelivery, SessionDetails, StreamConsumerDetails,
    StreamPublisherDetails, StreamSessionDetails, TrafficCounters,
};
pub use held::HeldMemory;
pub use login::{
    AdmissionError, Login, LoginAttempt, LoginCheck, LoginConfig, LoginOrigin, LoginVerdict,
    SILENT_CLOSE_DELAY, admit,
};
pub use outbox::{BY_REFERENCE, BufferPool, Outbox, OutboxPosition};
pub use protocol::{ConnectionInfo, Protocol, ProtocolId, Protocols};
pub use queue::DeliveryCounters;
pub use service::{
    InvalidFrame, MAX_SERVICES, NodeStatus, PublishedMessage, ServiceHost, ServiceId,
    ServiceOutput, ServiceRegistration, ServiceStates, ShardAddress, ShardService, TickOutcome,
};
pub use written::WrittenDeliveries;

use bytes::BytesMut;
use env::{Incarnation, NodeId, Time, WallTime};
use message::Message;
use metadata::{Change, ChangeError, ChangeResult, Identity, Name, QueueId, SessionId, Tree};
use queue::client::CancelReason;
use queue::cursor::{CursorEvent, CursorSend, StreamBatch};
use queue::{
    BrowsePage, BrowseRequest, ConsumerId, Delivery, QueueReply, RejectReason, RequestBody,
};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

/// Identifies a publish within its session. The queue returns it when it has stored or rejected the
/// message. Only the session knows what the number means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishTag(pub u64);

impl PublishTag {
    /// The tag of a publish for which no confirm is expected.
    pub const NO_CONFIRM: PublishTag = PublishTag(0);

    /// Returns true if the session expects a confirm.
    pub fn expects_confirm(self) -> bool {
        self != PublishTag::NO_CONFIRM
    }
}

/// Publishes of one session with successive tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagRange {
    /// The lowest tag.
    pub first: PublishTag,
    /// The highest tag, not below the lowest.
    pub last: PublishTag,
}

/// Every tag in ascending order.
impl IntoIterator for TagRange {
    type Item = PublishTag;
    type IntoIter = std::iter::Map<std::ops::RangeInclusive<u64>, fn(u64) -> PublishTag>;

    fn into_iter(self) -> Self::IntoIter {
        (self.first.0..=self.last.0).map(PublishTag)
    }
}

impl From<PublishTag> for TagRange {
    fn from(tag: PublishTag) -> TagRange {
        TagRange {
            first: tag,
            last: tag,
        }
    }
}

/// Identifies a request; [`QueueNotification::Answer`] carries the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestSeq(pub u64);

/// User and virtual host of a session. Sessions with equal values share one allocation where
/// possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOwner {
    /// The name of the user.
    pub user: Name,
    /// The name of the virtual host.
    pub vhost: Name,
    /// The identity from an external backend. None: the metadata has the user.
    pub identity: Option<Arc<Identity>>,
}

impl SessionOwner {
    /// The permissions of the user.
    pub fn access<'t>(&'t self, tree: &'t Tree) -> metadata::UserAccess<'t> {
        tree.access_of(&self.user, self.identity.as_deref())
    }
}

/// Flow control answer of a queue to a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// The queue keeps up; the session may publish on.
    Steady,
    /// The queue accepted the message but has a backlog: stop publishing until
    /// [`ControlEvent::Unblocked`].
    Behind,
}

/// The result of [`Broker::announce`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnnounceOutcome {
    /// Number of local subscribers and of other shards that receive the message.
    pub receivers: usize,
    /// Number of other shards that will confirm the message, each with a
    /// [`ServiceNotification::Confirmed`].
    pub awaited: usize,
    /// Another shard does not keep up: stop publishing until [`ControlEvent::Unblocked`].
    pub behind: bool,
    /// Another shard's backlog is full, so it does not get the message.
    pub refused: bool,
}

impl std::ops::AddAssign for AnnounceOutcome {
    fn add_assign(&mut self, other: AnnounceOutcome) {
        self.receivers += other.receivers;
        self.awaited += other.awaited;
        self.behind |= other.behind;
        self.refused |= other.refused;
    }
}

/// A limit on open channels that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimit {
    /// The limit is that of the vhost, not of the user.
    pub of_vhost: bool,
    /// The number of channels that may be open.
    pub limit: u64,
}

/// The node as a session sees it. No call blocks. Answers arrive as [`SessionEvent`]s, in order per
/// queue.
pub trait Broker {
    /// The cluster-wide id of this session.
    fn id(&self) -> SessionId;
    /// The remote address of the connection, for logs.
    fn peer(&self) -> SocketAddr {
        SocketAddr::from(([0, 0, 0, 0], 0))
    }
    /// The monotonic time of this step.
    fn now(&self) -> Time;
    /// The wall-clock time of this step.
    fn wall(&self) -> WallTime;
    /// A random number that is hard enough to guess for server-generated names.
    fn random(&mut self) -> u64;
    /// The metadata tree up to the entry that this shard has applied.
    fn tree(&self) -> &Tree;
    /// Returns true if the tree contains every committed change that a client may have seen
    /// confirmed. If false, an object missing from the tree may exist in the log.
    fn knows_all(&self) -> bool {
        false
    }
    /// Proposes a metadata change. [`ControlEvent::Changed`] with the same token follows after this
    /// shard has applied the change to its tree.
    fn change(&mut self, token: u64, change: Change);
    /// Chooses member nodes for a new queue of this type. `replicas` 0 means the default number.
    fn place(&mut self, kind: metadata::QueueType, replicas: u32) -> Vec<env::NodeId>;
    /// Chooses member nodes for a queue that is about to be declared. The first one is the
    /// preferred leader.
    fn place_queue(&mut self, queue: &metadata::QueueRecord) -> Vec<env::NodeId> {
        self.place(queue.kind, 0)
    }
    /// Publishes a message to a queue. Each call whose tag expects a confirm leads to one
    /// [`QueueNotification::Published`] or [`QueueNotification::NotPublished`].
    fn publish(&mut self, queue: QueueId, tag: PublishTag, message: Message) -> FlowState;
    /// Sends a request to a queue. [`QueueNotification::Answer`] follows for requests that have an
    /// answer.
    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq;
    /// Orders this session's publishes and requests behind those of `earlier`, the ended session of the
    /// client's previous connection on this shard: every queue gets them after all that `earlier` sent
    /// there.
    fn send_after(&mut self, _earlier: u64) {}
    /// Publishes a batch of the stream protocol to a stream, as a whole. A tag that expects a confirm
    /// leads to one [`QueueNotification::Published`] or [`QueueNotification::NotPublished`].
    fn publish_batch(&mut self, queue: QueueId, tag: PublishTag, batch: StreamBatch) -> FlowState;
    /// Sends a request of a cursor to a replica. It may be lost; its events arrive as
    /// [`QueueNotification::Cursor`].
    fn cursor(&mut self, queue: QueueId, send: CursorSend);
    /// Requests a page of the messages of a queue, which stays as it is. `owner`: the node that gave the session its last page.
    /// Returns the token of [`BrowseAnswer`]; [`QueueNotification::Browsed`] follows. The session must [watch](Self::watch) the
    /// queue.
    fn browse(&mut self, queue: QueueId, request: &BrowseRequest, owner: Option<NodeId>) -> u64;
    /// Notifies the session with [`QueueNotification::Removed`] when the queue is deleted, although it sends the queue no
    /// requests.
    fn watch(&mut self, queue: QueueId);
    /// The node that leads a queue, or has it, as far as this node knows.
    fn leader_of(&self, queue: &metadata::QueueRecord) -> Option<env::NodeId>;
    /// Returns true if this node has a connection to the other one, or is it.
    fn is_reachable(&self, node: env::NodeId) -> bool;
    /// Reports that the client was sent a consumer's deliveries up to this one. A queue sends at
    /// most [`queue::FLOW_WINDOW`] ahead of this position and of the settled deliveries. Sessions
    /// report each time half of the window was sent.
    fn received(&mut self, _queue: QueueId, _consumer: ConsumerId, _up_to: u64) {}
    /// Inclusive ranges of a consumer's deliveries that this session has settled but that the queue
    /// may not have processed yet.
    fn settling(&self, _queue: QueueId, _consumer: ConsumerId) -> Vec<(u64, u64)> {
        Vec::new()
    }
    /// The name of the only node that hosts this queue, if that node is unreachable.
    fn unreachable_home(&self, _queue: &metadata::QueueRecord) -> Option<metadata::Name> {
        None
    }
    /// The reason of the memory or disk alarm that blocks publishers, if one is in effect.
    fn publishers_blocked(&self) -> Option<&'static str>;
    /// Returns true while the node does not read the connection because a rate limit is exceeded. The
    /// client must not count as silent then.
    fn is_throttled(&self) -> bool {
        false
    }
    /// Returns true if the node is shutting down or in maintenance mode and accepts no new
    /// sessions.
    fn draining(&self) -> bool;
    /// Returns the shared owner for a user and a vhost. Neither needs to exist.
    fn account(&mut self, user: &str, vhost: &str) -> Arc<SessionOwner> {
        Arc::new(SessionOwner {
            user: user.into(),
            vhost: vhost.into(),
            identity: None,
        })
    }
    /// Counts this session as a connection of the user. The error is the limit, if it is reached.
    fn admit(&mut self, user: &str) -> Result<(), u64>;
    /// Counts this session as a connection of the vhost. The error is the limit, if it is reached.
    fn admit_to(&mut self, _vhost: &str) -> Result<(), u64> {
        Ok(())
    }
    /// Reserves (`true`) or releases (`false`) one of the slots for clients that have not logged in
    /// and send more than the default allowance. Returns false if all slots are taken.
    fn hold_unknown(&mut self, _begins: bool) -> bool {
        true
    }
    /// Reports that the session holds more memory for its client than before; the node then calls
    /// [`Session::held`]. Bytes in the outbox need no report.
    fn note_held(&mut self) {}
    /// Returns true if a message of `bytes` bytes may be queued for a client that does not read and
    /// has `waiting` unread bytes already. If false, the message is dropped where the protocol
    /// allows that.
    fn admit_unread(&mut self, _waiting: usize, _bytes: usize) -> bool {
        true
    }
    /// Takes the next event that waits for this session, if no event for another session precedes it. A session
    /// that handles a run of confirms and deliveries in one step answers them together.
    fn next_event(&mut self) -> Option<SessionEvent> {
        None
    }
    /// Adds the counters collected since the last call. Called once per step, not per message.
    fn message_counters(&mut self, _protocol: &'static str, _counters: &MessageCounters) {}
    /// Counts a channel of the user and the vhost. The error is the limit that is reached.
    fn open_channel(&mut self) -> Result<(), ChannelLimit>;
    /// Releases a channel counted by [`Broker::open_channel`].
    fn close_channel(&mut self);
    /// The states of this shard's services, for sessions of the protocols that have one. None: the
    /// node has no services.
    fn services(&mut self) -> Option<&mut ServiceStates> {
        None
    }
    /// Proposes a metadata change in the name of a shard service, whose
    /// [`ShardService::change_answered`] gets the result.
    fn change_by_service(&mut self, _service: ServiceId, _token: u64, _change: Change) {}
    /// Announces a published message to subscriptions that are not backed by a queue. Adds to
    /// `routes` the queues that must receive it because of them. One
    /// [`ServiceNotification::Confirmed`] follows for each remote subscriber that the outcome counts
    /// as awaited.
    fn announce(
        &mut self,
        _vhost: &str,
        _message: &Message,
        _tag: PublishTag,
        _routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        AnnounceOutcome::default()
    }
    /// Reports a message event to the firehose. Called while [`Tree::traces`]: tracing is enabled
    /// for a vhost, or the node records spans.
    fn trace(&mut self, _traced: &TracedMessage<'_>) {}
    /// Reports messages of the stream protocol, each as AMQP 1.0 sections that were not checked. `messages` is read only if the
    /// node records spans: the firehose has no copies of them, as in RabbitMQ. Called while [`Tree::traces`].
    fn trace_entries(
        &mut self,
        _traced: &TracedEntries<'_>,
        _messages: &mut dyn Iterator<Item = &[u8]>,
    ) {
    }
    /// Counts and records a login attempt.
    fn note_login(&mut self, _attempt: &LoginAttempt<'_>) {}
    /// Records a refused access to a vhost. `reason` is the error for the log.
    fn note_refused_vhost(&mut self, _user: &str, _vhost: &str, _reason: &str) {}
    /// Takes refused permissions for the audit log. None: there is no audit log.
    fn refusals(&self) -> Option<&Refusals> {
        None
    }
    /// Counts a connection of the stream protocol that opens (1) or ends (-1).
    fn count_stream_connection(&mut self, _change: i64) {}
    /// Counts an error that a client of the stream protocol is sent. `error` is its name in the metric.
    fn count_stream_error(&mut self, _error: &'static str) {}
    /// Checks a password of `user` with the configured backends in order; the one of the metadata compares it
    /// with the hash. A session has at most one check pending.
    fn verify(&mut self, user: &str, hash: &auth::PasswordHash, password: &[u8]) -> PasswordCheck {
        let _ = user;
        match auth::verify(hash, password) {
            true => PasswordCheck::Right,
            false => PasswordCheck::Wrong,
        }
    }
    /// Checks a new secret of a user with the backend that has identified it. A session has at most one check
    /// pending.
    fn renew(&mut self, _identity: &Identity, _secret: &[u8]) -> PasswordCheck {
        PasswordCheck::Wrong
    }
}

/// A message event for the firehose.
#[derive(Clone, Copy, Debug)]
pub struct TracedMessage<'a> {
    /// The vhost of the session.
    pub vhost: &'a str,
    /// The user of the session.
    pub user: &'a str,
    /// 0 for protocols without channels.
    pub channel: u16,
    /// The protocol of the session, as its label in metrics.
    pub protocol: &'static str,
    /// The message itself.
    pub message: &'a Message,
    /// The event.
    pub what: TraceEvent<'a>,
}

/// The kind of a firehose event.
#[derive(Clone, Copy, Debug)]
pub enum TraceEvent<'a> {
    /// The message was published and routed to these queues.
    Published {
        /// The queues.
        routes: &'a [QueueId],
        /// The tag of the publish, with which the queues answer.
        tag: PublishTag,
    },
    /// The message was delivered from the queue with this name.
    Delivered {
        /// The name of the queue.
        queue: &'a str,
        /// The message was delivered before.
        redelivered: bool,
        /// The delivery that the session settles later. None: it is settled.
        delivery: Option<DeliveryKey>,
    },
}

/// An event of messages of the stream protocol.
#[derive(Clone, Copy, Debug)]
pub struct TracedEntries<'a> {
    /// The vhost of the session.
    pub vhost: &'a str,
    /// The name of the stream.
    pub stream: &'a str,
    /// The event.
    pub event: EntriesEvent,
}

/// The kind of an event of messages of the stream protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntriesEvent {
    /// The messages were published together with this tag, with which the stream answers.
    Published(PublishTag),
    /// The messages were delivered. The protocol has no acknowledgements.
    Delivered {
        /// When the leader of the stream received them.
        received: WallTime,
    },
}

/// Identifies a delivery to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryKey {
    /// The queue.
    pub queue: QueueId,
    /// The consumer.
    pub consumer: ConsumerId,
    /// The id of the delivery within the consumer.
    pub id: u64,
}

/// The immediate result of [`Broker::verify`] and [`Broker::renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordCheck {
    /// The password matches.
    Right,
    /// The password does not match.
    Wrong,
    /// The check runs on another thread; [`ControlEvent::Verified`] carries the result.
    Later,
    /// Too many checks are pending. The client should retry later.
    Busy,
}

/// An answer or notification from the node to a session. Events of the session's own protocol arrive
/// through [`Session::service_event`].
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// From a queue.
    Queue(QueueNotification),
    /// From the node that the session runs on.
    Control(ControlEvent),
    /// From a protocol whose subscriptions are not backed by queues.
    Service(ServiceNotification),
}

impl From<QueueNotification> for SessionEvent {
    fn from(notification: QueueNotification) -> SessionEvent {
        SessionEvent::Queue(notification)
    }
}

impl From<ControlEvent> for SessionEvent {
    fn from(event: ControlEvent) -> SessionEvent {
        SessionEvent::Control(event)
    }
}

impl From<ServiceNotification> for SessionEvent {
    fn from(notification: ServiceNotification) -> SessionEvent {
        SessionEvent::Service(notification)
    }
}

/// An answer or notification from a queue.
#[derive(Clone, Debug)]
pub enum QueueNotification {
    /// The queue has stored the message durably, as far as its type requires.
    Published {
        /// The queue.
        queue: QueueId,
        /// The tag of the publish.
        tag: PublishTag,
    },
    /// The queue rejected the message.
    NotPublished {
        /// The queue.
        queue: QueueId,
        /// The tag of the publish.
        tag: PublishTag,
        /// The reason.
        why: RejectReason,
    },
    /// The answer to [`Broker::request`].
    Answer {
        /// The queue.
        queue: QueueId,
        /// The number that [`Broker::request`] returned.
        seq: RequestSeq,
        /// The answer.
        answer: QueueReply,
    },
    /// The answer to [`Broker::browse`].
    Browsed {
        /// The queue.
        queue: QueueId,
        /// The answer.
        answer: Box<BrowseAnswer>,
    },
    /// Messages for a consumer of this session.
    Deliver {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerId,
        /// The messages, in order.
        deliveries: Vec<Delivery>,
    },
    /// The queue was deleted. A session gets this for each queue that it has used or [watched](Broker::watch), after its last
    /// answer.
    Removed {
        /// The queue.
        queue: QueueId,
    },
    /// An event of a replica for a cursor of this session.
    Cursor {
        /// The queue.
        queue: QueueId,
        /// The node of the replica.
        from: env::NodeId,
        /// The event.
        event: CursorEvent,
    },
    /// The consumer is active, or another one is the single active consumer of the queue: its first
    /// state, and each change of it or of the queue's owner. Only of consumers with credit on queue types that report it.
    Activity {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerId,
        /// False while the consumer waits for another one to end.
        is_active: bool,
        /// The node that owns the queue.
        owner: env::NodeId,
    },
    /// A consumer did not settle deliveries in time, and its queue has requeued them. A consumer with a
    /// prefetch has ended: the session must cancel it.
    TimedOut {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerId,
        /// The last of these deliveries.
        up_to: u64,
    },
    /// The consumer ended without a request of its session.
    Cancelled {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerId,
        /// Why.
        reason: CancelReason,
    },
}

/// The answer to [`Broker::browse`].
#[derive(Clone, Debug, PartialEq)]
pub struct BrowseAnswer {
    /// The number that [`Broker::browse`] returned.
    pub token: u64,
    /// The page. The error says why there is none now; a later request may succeed.
    pub page: Result<BrowsedPage, String>,
}

/// A page of the messages of a queue, and the process that has read it.
#[derive(Clone, Debug, PartialEq)]
pub struct BrowsedPage {
    /// The node that leads the queue, or has it.
    pub owner: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// The page.
    pub page: BrowsePage,
}

/// An answer or notification from the node itself.
#[derive(Clone, Debug)]
pub enum ControlEvent {
    /// A change requested with [`Broker::change`] was applied or refused.
    Changed {
        /// The token of the request.
        token: u64,
        /// The result of the change.
        result: Result<ChangeResult, ChangeError>,
    },
    /// The result of a check that was [`PasswordCheck::Later`].
    Verified {
        /// The result.
        verdict: LoginVerdict,
    },
    /// The identity of the user has expired and was not renewed.
    Expired,
    /// An alarm was raised (with its reason) or cleared.
    Blocked(Option<&'static str>),
    /// Backlogs are gone: no queue and no remote subscriber is [`FlowState::Behind`].
    Unblocked,
    /// An operator or a limit closes this connection.
    Close {
        /// The reason, for the client.
        text: String,
    },
    /// The node closes this connection to reclaim its memory.
    Shed {
        /// The reason, for the client.
        text: String,
        /// The client has read all earlier output and can receive an error. Otherwise the output
        /// ends in the middle of a frame and nothing may follow.
        can_hear: bool,
    },
    /// The node stops: send connection-forced (320) or its equivalent and end.
    Shutdown,
}

/// A notification about a publish from a protocol whose subscriptions are not backed by queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceNotification {
    /// Remote subscribers have the publishes with these tags, or can never get them.
    Confirmed {
        /// The tags of the publishes.
        tags: TagRange,
    },
}

/// The state of a session after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// The driver continues to read.
    Open,
    /// The driver must not read until the state changes, because too much is in flight to queues or a
    /// rate limit is exceeded.
    Paused,
    /// The driver flushes the outbox, then closes the socket.
    Closing,
}

/// Summary of a session, for listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// The name of the protocol and its version.
    pub protocol: &'static str,
    /// The user, empty before the login.
    pub user: String,
    /// The vhost, empty before it was opened.
    pub vhost: String,
    /// The name that the client gave itself, if any.
    pub client_name: String,
    /// The number of open channels.
    pub channels: u32,
}

/// A protocol session. All functions that take a [`Broker`] are one step of the state machine.
pub trait Session: Send {
    /// Handles bytes from the client. Consumes complete frames from the front of `input` and leaves
    /// a partial one.
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState;
    /// Handles an event from the node.
    fn session_event(
        &mut self,
        session_event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState;
    /// Handles an event from the session's own protocol: `event` is an `Option` of a type that the
    /// protocol defines, from which the session takes the event. A reference, because a box for each
    /// message would be an allocation.
    fn service_event(
        &mut self,
        event: &mut dyn Any,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState;
    /// Called at or after the time that `wake_at` returned.
    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState;
    /// The next time at which the session needs a tick (heartbeats, timeouts).
    fn wake_at(&self) -> Option<Time>;
    /// The socket is closed. The shard closes the session's queue consumers; the session releases
    /// everything else (exclusive queues).
    fn gone(&mut self, broker: &mut dyn Broker);
    /// The socket accepted output, so deliveries held back because the outbox was full may
    /// continue.
    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState;
    /// A summary for listings. `services` has what the protocol stores about its clients on the
    /// shard.
    fn info(&self, services: &ServiceStates) -> SessionInfo;
    /// Bytes of incomplete messages, frames and open transactions, excluding the input buffer of
    /// the driver. The session calls [`Broker::note_held`] when this becomes more than 0.
    fn unfinished(&self) -> usize {
        0
    }
    /// Other memory that the session holds for its client, for the node's memory budget.
    fn held(&self) -> HeldMemory {
        HeldMemory::default()
    }
    /// The time of the last progress of the incomplete message that has waited longest for its next
    /// frame, if there is one.
    fn unfinished_since(&self) -> Option<Time> {
        None
    }
    /// Visits the messages that [`Session::held`] counts and that other sessions may share.
    fn visit_messages(&self, _visit: &mut dyn FnMut(&Message)) {}
    /// Details of the session and its channels, for listings.
    fn details(&self) -> SessionDetails {
        SessionDetails::default()
    }
}
