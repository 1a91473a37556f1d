//! Queues: what a session asks of one ([`Request`]), what it hears back ([`QueueEvent`]), and the queue types.
//!
//! One exchange of words for every queue type and every place: the queue may be on this shard, another shard or
//! another node. Requests of one session to one queue carry consecutive numbers from 1 and are applied in that order,
//! each once; the session's side ([`QueueClient`](client)) keeps them until they are applied and sends them again to a new
//! owner. That is how a confirm survives a failover, and why nothing is enqueued or settled twice.
#![forbid(unsafe_code)]

mod annotations;
mod checkout;
pub mod classic;
pub mod client;
pub mod codec;
#[cfg(test)]
mod credit_tests;
pub mod cursor;
mod deaths;
mod interface;
#[cfg(test)]
mod model;
pub mod quorum;
mod ranges;

pub use annotations::{
    Annotations, AnnotationsError, MAX_ANNOTATION_BYTES, MAX_QUEUE_ANNOTATION_BYTES,
};
pub use checkout::{FLOW_WINDOW, FlowWindow};
pub use deaths::DeathCounts;
pub use interface::{AddressedEvent, ConsumerInfo, Queue, QueueOutput, Timestamps};

use bytes::Bytes;
use env::{Incarnation, NodeId, WallTime};
pub use ids::{
    ByQueueType, ConsumerRules, DeadLettering, Name, Overflow, QueueId, QueueSettings, QueueType,
    SessionId,
};
pub use message::DeadReason;
use message::{Message, Table};
use std::num::NonZeroU64;
use std::sync::Arc;

/// A consumer's number within its session, chosen by the session, never used twice there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u32);

/// How a consumer limits its deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowMode {
    /// By the number of unacknowledged deliveries ([`ConsumerSpec::prefetch`]), as in AMQP 0.9.1.
    #[default]
    Prefetch,
    /// By credit ([`RequestBody::Credit`]), as in AMQP 1.0. A new consumer has none, and gets nothing before its first
    /// credit. The prefetch has no effect.
    Credit,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerSpec {
    /// The consumer tag of AMQP 0.9.1 and the channel of the consumer, for listings.
    pub tag: Name,
    pub channel: u16,
    pub flow_mode: FlowMode,
    /// Most unacknowledged deliveries; 0 means that the client sets no limit (a queue type has its own).
    pub prefetch: u32,
    /// Settled when sent.
    pub no_ack: bool,
    pub exclusive: bool,
    pub priority: i32,
    pub arguments: Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlementOutcome {
    /// Done with.
    Accepted,
    /// Back to the queue (nack or reject with requeue; counts a delivery attempt).
    Requeue,
    /// Dead-letter or drop.
    Rejected,
    /// Back to the front of the queue, and no attempt: it was only looked at.
    Released,
    /// As if it had never left, for the client was not sent it. A quorum queue takes it for `Released`. Programs before the feature
    /// flag `channel_prefetch` cannot read it.
    Unseen,
}

/// A numbered request of a session to a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub session: SessionId,
    pub seq: u64,
    pub body: RequestBody,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    Publish(Message),
    /// A new consumer; for one that a classic queue has already: a new prefetch, the rest of the spec is not looked at.
    Consume {
        consumer: ConsumerId,
        spec: ConsumerSpec,
    },
    /// As `Consume`, of a session that outlives its connections. See [`EpochConsumer`].
    Succeed(Box<EpochConsumer>),
    /// Its unsettled deliveries stay with the session and can still be settled.
    Cancel {
        consumer: ConsumerId,
    },
    /// Sets the credit of a consumer with [`FlowMode::Credit`]: it may get deliveries up to and including the id `up_to`. A
    /// smaller `up_to` than before takes credit back, an equal one only causes an answer (echo).
    ///
    /// Delivery ids are consecutive per consumer from 1, so `up_to` is the delivery-count of AMQP 1.0, counted from 0, plus the
    /// link-credit, less the credit that was drained so far. A session counts the deliveries that it was given:
    /// [`QueueClient`](client::QueueClient) corrects `up_to` and `last` if the queue requeued deliveries that never arrived.
    ///
    /// With `drain` the queue delivers the ready messages, as far as the credit allows, and then the rest of the credit is used
    /// up at once. No ids are skipped: the next delivery has the id `last + 1` of the answer, and the next `up_to` counts from
    /// `last`. So the session adds `up_to - last` to its own delivery-count. A session that drains waits for the answer before
    /// it sends another `Credit`. One that does not wait ends the drain: it is answered with `drained: false`.
    ///
    /// The answer is [`QueueReply::Credited`]. It reaches the session after the deliveries up to `last`.
    Credit {
        consumer: ConsumerId,
        up_to: u64,
        drain: bool,
    },
    /// As `Credit` without drain and answer, for both flow modes. It limits a 0.9.1 consumer whose channel has a prefetch for all
    /// its consumers. A quorum queue ignores it if the flow mode is prefetch.
    CreditOneWay {
        consumer: ConsumerId,
        up_to: u64,
    },
    /// The consumer's channel is over: it gets nothing more and all that it holds goes back. In one step, so that nobody is
    /// served from behind what goes back.
    Leave {
        consumer: ConsumerId,
    },
    /// Inclusive ranges of the consumer's delivery ids. Ids that are not out are ignored.
    Settle {
        consumer: ConsumerId,
        outcome: SettlementOutcome,
        ids: Vec<(u64, u64)>,
    },
    /// As `Settle`, with the outcome `modified` of AMQP 1.0 (part 3, section 3.4.5).
    Modify {
        consumer: ConsumerId,
        ids: Vec<(u64, u64)>,
        modification: Box<Modification>,
    },
    /// Take one message under a consumer number of its own.
    Get {
        consumer: ConsumerId,
        no_ack: bool,
    },
    /// Back to the queue: everything this consumer has out (basic.recover).
    Recover {
        consumer: ConsumerId,
    },
    Purge,
    Stat,
    /// Stop for good if the conditions hold; the metadata change follows.
    Delete {
        if_unused: bool,
        if_empty: bool,
    },
    /// The session is over: consumers go, deliveries return, its numbering is forgotten.
    Close,
}

/// The outcome `modified` of AMQP 1.0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modification {
    /// The delivery attempt failed. It counts towards the delivery limit. Without it the message is requeued as with
    /// [`SettlementOutcome::Released`].
    pub delivery_failed: bool,
    /// The message is dead-lettered, or dropped without a dead letter exchange, with the reason `rejected`. The specification
    /// only asks that it not be sent to the same link again; RabbitMQ does the same.
    pub undeliverable_here: bool,
    /// Merged into those of the message. They survive requeue and dead-lettering in a quorum queue. A classic queue ignores
    /// them, as RabbitMQ does.
    pub annotations: Annotations,
}

/// A new consumer of a session that outlives its connections, each of which is a session of its own to the queue: the tag of the
/// spec says whose it is. Consumers with that tag that connections before it had are over ([`QueueEvent::Cancelled`]), and what they
/// hold is back in its place before the new one gets anything. What such a consumer holds stays with it while its node cannot
/// be reached: nobody else is to have it.
///
/// Programs before the feature flag `mqtt_succession` cannot read it.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochConsumer {
    pub consumer: ConsumerId,
    pub spec: ConsumerSpec,
    /// What the connection before had done, in case the queue has not heard of that yet.
    pub settled: Option<Settlement>,
    pub epoch: SessionEpoch,
    /// An index of the metadata log that its node applied after the client had asked for the session: a request of a connection that
    /// asked before another one that has consumed comes late, and is refused. 0: its node did not ask.
    pub at: u64,
}

/// Connections of a session that know, one from the other, what its client was sent and has not answered, because they were at one
/// place. A queue knows the line of the connection that consumed last, by the one that began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEpoch {
    /// What earlier connections knew is not known, or in which line they were.
    New,
    /// This one. The answer says whether it goes on ([`QueueReply::GoesOn`]) or others have consumed since ([`QueueReply::Consuming`]); then the
    /// connection begins one.
    Of(SessionId),
}

/// Deliveries that are done with, as inclusive ranges of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub session: SessionId,
    pub consumer: ConsumerId,
    pub ids: Vec<(u64, u64)>,
}

/// What a queue says to a session. `up_to` and `seq` are the session's request numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueEvent {
    /// All requests up to this one are done and as safe as the queue type makes them: publishes may be confirmed.
    Applied { up_to: u64 },
    /// As `Applied`, but these publishes among the last `client::MAX_IN_FLIGHT` requests were not taken. One event, so
    /// that no loss on the way can turn a refused publish into a confirmed one; refusals stay in every such event until
    /// they have left that window.
    AppliedExcept {
        up_to: u64,
        refused: Vec<RefusedPublishes>,
    },
    /// The answer to a request that has one; at most once per owner, before the `Applied` that covers it or after.
    Answer { seq: u64, answer: QueueReply },
    /// Deliveries in order; ids are consecutive per consumer from 1.
    Deliver {
        consumer: ConsumerId,
        deliveries: Vec<Delivery>,
    },
    /// The consumer was ended by the queue (deleted, or succeeded by another one).
    Cancelled { consumer: ConsumerId },
    /// The reply to a [`ResumeConsumer`], before what is delivered again: deliveries below `next` will not come (again).
    Resumed { consumer: ConsumerId, next: u64 },
    /// Not the owner (any more). Send to `leader`, or wait when none is known.
    NotOwner { leader: Option<NodeId> },
    /// The sender owns the queue from now on (again): send what is open to it, and ask for what may have been lost.
    Owner,
    /// Requests from `expected` on must be sent (again).
    Expecting { expected: u64 },
}

impl QueueEvent {
    /// Of messages in it.
    pub fn message_bytes(&self) -> usize {
        match self {
            QueueEvent::Deliver { deliveries, .. } => {
                let each = deliveries.iter().map(|d| d.message.as_bytes().len());
                each.sum()
            }
            _ => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueReply {
    Consuming,
    /// As `Consuming`: the line that a [`EpochConsumer`] names is the queue's. Also of `SessionEpoch::New`, where the queue knew of none.
    GoesOn,
    /// `Get` found nothing; when it found something a `Deliver` comes instead.
    Empty,
    /// After `Purge` and `Delete`: messages removed. After `Stat`: messages ready.
    Count {
        messages: u64,
        consumers: u32,
    },
    /// The answer to [`RequestBody::Credit`].
    Credited {
        /// The id of the consumer's last delivery.
        last: u64,
        /// Messages ready for delivery, to any consumer.
        available: u64,
        /// The credit that was left is used up.
        drained: bool,
    },
    /// A publish that the queue did not take: negative acknowledgement.
    NotTaken(RejectReason),
    /// Refused with the code and text clients know (403 exclusive, 406 in use / not empty, 540).
    Refused {
        code: u16,
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// overflow=reject-publish.
    MaxLength,
    /// Queue deleted or its storage is gone.
    Unavailable,
}

/// Publishes `from..=to` (request numbers) that were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPublishes {
    pub from: u64,
    pub to: u64,
    pub why: RejectReason,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub id: u64,
    pub redelivered: bool,
    /// Earlier attempts that failed (quorum: `x-delivery-count`); None where the type does not count.
    pub attempts: Option<u32>,
    /// For `Get`: messages left. For a [`EpochConsumer`]'s consumer: see [`Delivery::mark`].
    pub left: u64,
    pub message: Message,
    /// Annotations of the outcome `modified` since the message is in this queue. They replace those of the message with the same
    /// key; see [`Annotations::of`].
    pub annotations: Option<Arc<Annotations>>,
}

/// Which message of its queue one is, however often and by whichever consumer it comes: a number that no other one there has,
/// and when it was published, for a queue whose last messages went with its node's power counts on from an earlier number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageId {
    pub number: NonZeroU64,
    pub received: WallTime,
}

impl Delivery {
    /// For deliveries to a [`EpochConsumer`]'s consumer. None: the owner does not say, for its program is older.
    pub fn mark(&self) -> Option<MessageId> {
        Some(MessageId {
            number: NonZeroU64::new(self.left)?,
            received: self.message.received(),
        })
    }
}

/// After a new owner is known: deliver again what is out for this consumer from `next` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeConsumer {
    pub session: SessionId,
    pub consumer: ConsumerId,
    pub next: u64,
}

/// A consumer's client was sent every delivery up to this one. Said each time that half of [`FLOW_WINDOW`] has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryProgress {
    pub session: SessionId,
    pub consumer: ConsumerId,
    pub up_to: u64,
}

/// Everything that travels from a session's side to an owner.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueMessage {
    Request(Request),
    Resume(ResumeConsumer),
    Received(DeliveryProgress),
}

impl QueueMessage {
    /// Whose it is.
    pub fn session(&self) -> SessionId {
        match self {
            QueueMessage::Request(request) => request.session,
            QueueMessage::Resume(resume) => resume.session,
            QueueMessage::Received(received) => received.session,
        }
    }

    /// Of messages in it.
    pub fn message_bytes(&self) -> usize {
        match self {
            QueueMessage::Request(Request {
                body: RequestBody::Publish(message),
                ..
            }) => message.as_bytes().len(),
            _ => 0,
        }
    }
}

/// Figures of one queue on its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    pub ready: u64,
    pub unacknowledged: u64,
    pub consumers: u32,
    /// Of what is ready and unacknowledged.
    pub bytes: u64,
    /// Body bytes of unacknowledged messages.
    pub unacknowledged_bytes: u64,
    /// Dead messages that the queue keeps until they have been passed on, and their bytes.
    pub dead: u64,
    pub dead_bytes: u64,
    pub lost: Losses,
}

/// What a classic queue lost with its files, found since its node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// As far as their number is known.
    pub messages: u64,
    /// Segments that are missing, cut off or damaged.
    pub segments: u64,
}

impl Losses {
    /// None: how many messages is not known.
    pub(crate) fn add(&mut self, messages: Option<u64>, segments: u64) {
        self.messages = self.messages.saturating_add(messages.unwrap_or(0));
        self.segments = self.segments.saturating_add(segments);
    }
}

/// What has happened to messages on their way to consumers, since the queue is led where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounters {
    /// Delivered to consumers that acknowledge.
    pub deliver: u64,
    /// Delivered to consumers that do not.
    pub deliver_no_ack: u64,
    /// Fetched, to be acknowledged.
    pub get: u64,
    pub get_no_ack: u64,
    /// Asked for one when there was none.
    pub get_empty: u64,
    /// Among all those: delivered before.
    pub redeliver: u64,
    /// Acknowledged by whoever had to.
    pub ack: u64,
}

impl DeliveryCounters {
    /// One to a consumer that acknowledges was none.
    pub(crate) fn deliver_less(&mut self, redelivered: bool) {
        self.deliver = self.deliver.saturating_sub(1);
        self.redeliver = self.redeliver.saturating_sub(redelivered.into());
    }

    pub fn add(&mut self, other: &DeliveryCounters) {
        self.deliver += other.deliver;
        self.deliver_no_ack += other.deliver_no_ack;
        self.get += other.get;
        self.get_no_ack += other.get_no_ack;
        self.get_empty += other.get_empty;
        self.redeliver += other.redeliver;
        self.ack += other.ack;
    }
}

/// What has come into a queue and gone out of it, since it is led where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Messages taken in.
    pub publish: u64,
    pub deliveries: DeliveryCounters,
}

/// A life of a node that will never speak again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadIncarnation {
    pub node: NodeId,
    pub before: Incarnation,
}

/// Bytes to and from the form requests and events have in the log and between nodes.
pub type Encoded = Bytes;
