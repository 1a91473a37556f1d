//! What every protocol session asks of the node it runs on, and what it is told.
//!
//! A session is a state machine: bytes and [`SessionEvent`]s in, bytes (through [`Outbox`]) and calls on [`Broker`] out.
//! It holds no clock, socket or lock. The shard implements `Broker`; tests implement it with a fake.
#![forbid(unsafe_code)]

mod counts;
mod held;
mod outbox;
mod protocol;

pub use counts::{
    ChannelDetails, MessageCounters, PublishCounters, SessionDetails, TrafficCounters,
};
pub use held::Held;
pub use outbox::{BY_REFERENCE, BufferPool, Outbox, OutboxPosition};
pub use protocol::{ConnectionInfo, Protocol, ProtocolId, Protocols};
pub use queue::DeliveryCounters;

use bytes::BytesMut;
use env::{Time, WallTime};
use message::Message;
use metadata::{Change, ChangeError, ChangeResult, Name, QueueId, SessionId, Tree};
use queue::{ConsumerId, Delivery, QueueReply, RejectReason, RequestBody};
use std::net::SocketAddr;
use std::sync::Arc;

/// The session's own word for a publish: the queue hands it back when the message is safe or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishTag {
    pub channel: u16,
    /// 0: nobody waits for a confirm.
    pub tag: u64,
}

/// Returned by a request with an answer, handed back in `SessionEvent::Answer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestSeq(pub u64);

/// Who uses a session, and where: once for all sessions of the same, as far as the node finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOwner {
    pub user: Name,
    pub vhost: Name,
}

/// Whether a queue keeps up with this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    Steady,
    /// It took the message, but is behind: publish no more until [`SessionEvent::Relieved`].
    Behind,
}

/// The node as a session sees it. Calls never block; answers come as [`SessionEvent`]s, in order per queue.
pub trait Broker {
    fn id(&self) -> SessionId;
    /// The other side of the connection, for logs.
    fn peer(&self) -> SocketAddr {
        SocketAddr::from(([0, 0, 0, 0], 0))
    }
    fn now(&self) -> Time;
    fn wall(&self) -> WallTime;
    /// Random, unguessable enough for server-made names.
    fn random(&mut self) -> u64;
    /// The metadata tree as this shard has applied it.
    fn tree(&self) -> &Tree;
    /// Whether the tree has every change that anybody was told of. Else what it lacks may be in the log.
    fn knows_all(&self) -> bool {
        false
    }
    /// Asks for a change; `SessionEvent::Changed` with the same token tells, after this shard's tree has it too.
    fn change(&mut self, token: u64, change: Change);
    /// Where a new queue should live: members for a record of this kind (`replicas` 0: the default).
    fn place(&mut self, kind: metadata::QueueType, replicas: u32) -> Vec<env::NodeId>;
    /// Members for this queue, which is about to be declared; the first is to lead it.
    fn place_queue(&mut self, queue: &metadata::QueueRecord) -> Vec<env::NodeId> {
        self.place(queue.kind, 0)
    }
    /// Hands a message to a queue. One `SessionEvent::Published` (or `NotPublished`) per call whose tag is not 0.
    fn publish(&mut self, queue: QueueId, tag: PublishTag, message: Message) -> FlowState;
    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq;
    /// From now on what this session publishes and requests reaches each queue behind what another session of this shard has sent
    /// there: that of the client's last connection, which has ended. `earlier`: its number.
    fn send_after(&mut self, _earlier: u64) {}
    /// The client was sent a consumer's deliveries up to this one. A queue sends no more than [`queue::FLOW_WINDOW`] ahead of that
    /// and of what is settled; to be said each time that half of it has gone.
    fn received(&mut self, _queue: QueueId, _consumer: ConsumerId, _up_to: u64) {}
    /// What this session is done with of a consumer's deliveries and the queue may not have heard of, as inclusive ranges.
    fn settling(&self, _queue: QueueId, _consumer: ConsumerId) -> Vec<(u64, u64)> {
        Vec::new()
    }
    /// The node that alone has this queue, when it cannot be reached now.
    fn home_out_of_reach(&self, _queue: &metadata::QueueRecord) -> Option<metadata::Name> {
        None
    }
    /// Publishers must wait: a memory or disk alarm is in force.
    fn publishers_blocked(&self) -> Option<&'static str>;
    /// The node is shutting down or in maintenance: no new sessions.
    fn draining(&self) -> bool;
    /// The names of a user and a vhost, which need not be there.
    fn account(&mut self, user: &str, vhost: &str) -> Arc<SessionOwner> {
        Arc::new(SessionOwner {
            user: user.into(),
            vhost: vhost.into(),
        })
    }
    /// Counts this session as one of the user's; the limit when there may be no more.
    fn admit(&mut self, user: &str) -> Result<(), u64>;
    /// As [`Broker::admit`] for the vhost that it opened; the limit when there may be no more.
    fn admit_to(&mut self, _vhost: &str) -> Result<(), u64> {
        Ok(())
    }
    /// A client that nobody knows yet begins to send more than each may, or that is over. False: too many do.
    fn hold_unknown(&mut self, _begins: bool) -> bool {
        true
    }
    /// The session holds more for its client than a moment ago: the node asks for [`Session::held`] soon. A session need not call
    /// it for bytes in its outbox.
    fn note_held(&mut self) {}
    /// Whether a message of so many bytes may wait for a client that does not read and has `waiting` bytes to read already. If not it
    /// is dropped, where that is allowed (MQTT QoS 0).
    fn admit_unread(&mut self, _waiting: usize, _bytes: usize) -> bool {
        true
    }
    /// What happened to messages since it was called last. Once in a step, not for each message.
    fn message_counters(&mut self, _protocol: &'static str, _counters: &MessageCounters) {}
    /// Counts a channel as one of the user's; the limit when there may be no more.
    fn open_channel(&mut self) -> Result<(), u64>;
    fn close_channel(&mut self);
    /// Where subscriptions are that are no queues. None: the node takes no clients that have such.
    fn topics(&mut self) -> Option<&mut topics::MqttRouter> {
        None
    }
    /// A message was published to its exchange: those whose subscriptions are no queues hear of it. Queues that
    /// are to have it because their clients share a subscription are added to `routes`, where they are not there yet. One
    /// [`SessionEvent::Heard`] comes for each that is to be awaited.
    fn announce(
        &mut self,
        _vhost: &str,
        _message: &Message,
        _tag: PublishTag,
        _routes: &mut Vec<QueueId>,
    ) -> topics::PublishOutcome {
        topics::PublishOutcome::default()
    }
    /// Keeps a message for those who subscribe to its MQTT topic later, or nothing any more. Subscribers of this shard find it at
    /// once; [`SessionEvent::Changed`] with the token (0: nobody waits) tells when the cluster has it. An error: not taken, and
    /// no notice comes.
    fn retain(
        &mut self,
        _token: u64,
        vhost: &str,
        _topic: &str,
        _message: Option<Message>,
    ) -> Result<(), ChangeError> {
        Err(ChangeError::Unavailable(format!(
            "nothing is retained in vhost '{vhost}' here"
        )))
    }
    /// Something happened to a message while a vhost is traced ([`Tree::traces`]): those who trace this one hear of it.
    fn trace(&mut self, _traced: &TracedMessage<'_>) {}
    /// Counts a login. `protocol` is the label of the metric.
    fn count_login(&mut self, _protocol: &'static str, _succeeded: bool) {}
    /// Whether this is the password of `user`. A session asks for one at a time.
    fn verify(&mut self, user: &str, hash: &auth::PasswordHash, password: &[u8]) -> PasswordCheck {
        let _ = user;
        match auth::verify(hash, password) {
            true => PasswordCheck::Right,
            false => PasswordCheck::Wrong,
        }
    }
}

/// What the firehose tells of a message.
#[derive(Clone, Copy, Debug)]
pub struct TracedMessage<'a> {
    pub vhost: &'a str,
    pub user: &'a str,
    /// 0: the protocol has no channels.
    pub channel: u16,
    pub message: &'a Message,
    pub what: TraceEvent<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum TraceEvent<'a> {
    /// To these queues.
    Published { routes: &'a [QueueId] },
    /// From the queue of this name.
    Delivered { queue: &'a str, redelivered: bool },
}

/// What a node says to a password at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordCheck {
    Right,
    Wrong,
    /// The check takes its time elsewhere: [`SessionEvent::Verified`] tells.
    Later,
    /// Too many checks wait. The client should come again.
    Busy,
}

/// What a session is told.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    Changed {
        token: u64,
        result: Result<ChangeResult, ChangeError>,
    },
    /// Safe on that queue.
    Published { queue: QueueId, tag: PublishTag },
    NotPublished {
        queue: QueueId,
        tag: PublishTag,
        why: RejectReason,
    },
    Answer {
        queue: QueueId,
        seq: RequestSeq,
        answer: QueueReply,
    },
    Deliver {
        queue: QueueId,
        consumer: ConsumerId,
        deliveries: Vec<Delivery>,
    },
    /// The queue ended this consumer: deleted, or its node is gone for good.
    Cancelled {
        queue: QueueId,
        consumer: ConsumerId,
    },
    /// A message from the hub ([`Broker::topics`]).
    Topic(topics::Delivery),
    /// Another hub has what was published with this tag for its subscribers, or is no more.
    Heard { tag: PublishTag },
    /// A publish of the client's earlier session `publisher` was answered ([`topics::MqttRouter::expect_late_answers`]).
    AnsweredLate {
        publisher: u64,
        tag: u64,
        taken: bool,
    },
    /// Subscriptions are known wherever they have to be ([`topics::MqttRouter::announce`]).
    Known,
    /// Messages for this session's subscriptions are lost: their publishers' nodes could not reach this one.
    Missed,
    /// Another node's hub is to keep the client's will: the session tells it ([`topics::MqttRouter::keep_will`]).
    TellWill,
    /// Another session claims this one's client id: leave.
    TakenOver,
    /// The client id that this session waits for is free: claim it again.
    ClaimAgain,
    /// No queue, or no other hub, is behind any more ([`FlowState::Behind`]).
    Relieved,
    /// An alarm went on (with its reason) or off.
    Blocked(Option<&'static str>),
    /// What came of a check that was [`PasswordCheck::Later`].
    Verified { right: bool },
    /// An operator, or a limit, ends this connection.
    Close { text: String },
    /// The node needs the memory that this connection holds: tell the client and end. `can_hear`: the client has read everything
    /// so far; otherwise nothing can be sent, because the output ends in the middle of a frame.
    Shed { text: String, can_hear: bool },
    /// The node stops: tell the client (320) and end.
    Shutdown,
}

/// How a session stands after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Go on reading.
    Open,
    /// Do not read until a notice changes it: too much in flight towards queues.
    Paused,
    /// Flush what is in the outbox, then close the socket.
    Closing,
}

/// Facts about a session, for listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    pub protocol: &'static str,
    pub user: String,
    pub vhost: String,
    /// Empty where the hub knows it.
    pub client_name: String,
    /// The client in [`topics::MqttRouter`].
    pub subscriber: Option<topics::SubscriberId>,
    pub channels: u32,
}

/// A protocol session.
pub trait Session: Send {
    /// Bytes from the client. Takes whole frames from the front of `input` and leaves a partial one.
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState;
    fn session_event(
        &mut self,
        session_event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState;
    /// When `wake_at` has come.
    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState;
    /// The next time it wants a tick (heartbeats, handshake timeout).
    fn wake_at(&self) -> Option<Time>;
    /// The socket is gone. The shard closes its queue clients; the session ends what else it holds (exclusive queues).
    fn gone(&mut self, broker: &mut dyn Broker);
    /// The socket took bytes since: deliveries held back for a full outbox may go on.
    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState;
    fn info(&self) -> SessionInfo;
    /// Bytes of messages, frames and transactions that the client has begun and not finished, without the input that is left to the
    /// driver. The session tells the node of the first of them ([`Broker::note_held`]).
    fn unfinished(&self) -> usize {
        0
    }
    /// What else the session holds for its client, for the node's memory budget.
    fn held(&self) -> Held {
        Held::default()
    }
    /// The last progress of the unfinished message that has waited longest for its next frame. None: there is no such message.
    fn unfinished_since(&self) -> Option<Time> {
        None
    }
    /// Visits the messages that [`Session::held`] counts and that other sessions may hold as well.
    fn visit_messages(&self, _visit: &mut dyn FnMut(&Message)) {}
    /// More facts, and those of its channels.
    fn details(&self) -> SessionDetails {
        SessionDetails::default()
    }
}
