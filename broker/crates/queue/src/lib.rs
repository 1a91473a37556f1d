//! Queue semantics: the requests of a session to a queue ([`Request`]), the events that a queue sends back
//! ([`QueueEvent`]), and the queue types ([`classic`], [`quorum`], [`cursor`]).
//!
//! All queue types share one protocol of requests and events, and it is the same whether the queue is on this
//! shard, on another shard or on another node. Requests of one session to one queue carry consecutive numbers
//! from 1. The owner of the queue applies them in that order, each once. The session's side,
//! [`QueueClient`](client::QueueClient), keeps each request until it is applied and sends it again to a new
//! owner. Publisher confirms therefore survive a failover, and nothing is enqueued or settled twice.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod annotations;
mod browse;
mod checkout;
pub mod classic;
pub mod client;
#[allow(missing_docs)]
pub mod codec;
#[cfg(test)]
mod credit_tests;
pub mod cursor;
mod deaths;
mod deduplication;
mod groups;
mod head;
mod interface;
#[cfg(test)]
mod model;
mod pending_set;
pub mod quorum;
mod ranges;
mod selection;
#[cfg(test)]
mod selection_tests;
mod sorted_map;

use cursor::{StreamBatch, StreamReply, StreamRequest};

pub use annotations::{
    Annotations, AnnotationsError, DELIVERY_DELAY, MAX_ANNOTATION_BYTES,
    MAX_QUEUE_ANNOTATION_BYTES, is_internal_annotation, reschedule, restored, schedule,
};
pub use browse::{
    BROWSE_BODY_BYTES, BROWSE_PAGE_BYTES, BROWSE_PAGE_MESSAGES, BrowsePage, BrowsePosition,
    BrowseRequest, BrowsedMessage, BrowsedState,
};
pub use checkout::{FLOW_WINDOW, FlowWindow};
pub use deaths::DeathCounts;
pub use deduplication::{
    DEDUPLICATION_VALUE, DeduplicationId, MAX_DEDUPLICATION_BYTES, PUBLISHER_ID, PUBLISHING_ID,
    deduplicate, deduplication_id,
};
pub use groups::{GroupId, JMS_GROUP, MESSAGE_GROUP, assign_group, group_of};
pub use head::{DescribeMessage, HeadLookup, HeadMessage};
pub use interface::{AddressedEvent, ConsumerInfo, Queue, QueueOutput, Timestamps};

use bytes::Bytes;
use env::{Incarnation, NodeId, WallTime};
pub use ids::{
    ByQueueType, ConsumerRules, DeadLettering, DelayedRetry, DelayedReturns, Name, Overflow,
    QueueId, QueueSettings, QueueType, QuorumFeatures, QuorumSettings, SessionId,
};
pub use message::DeadReason;
use message::{Message, Table};
pub use pending_set::PendingSet;
pub use selection::{CompileFilter, ConsumerFilter, MAX_FILTER_BYTES, MessageFilter};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Number of a consumer within its session. The session chooses it and never uses it twice for the same queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u32);

/// The limit on the deliveries of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowMode {
    /// The number of unacknowledged deliveries ([`ConsumerSpec::prefetch`]), as in AMQP 0.9.1.
    #[default]
    Prefetch,
    /// Credit ([`RequestBody::Credit`]), as in AMQP 1.0. A new consumer has no credit and gets nothing before
    /// its first one. The prefetch has no effect.
    Credit,
}

/// Properties of a consumer, chosen by its session.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerSpec {
    /// The consumer tag of AMQP 0.9.1.
    pub tag: Name,
    /// The channel of the consumer, for listings only.
    pub channel: u16,
    /// Prefetch or credit.
    pub flow_mode: FlowMode,
    /// Most unacknowledged deliveries; 0: the client sets no limit, and that of the queue type applies.
    pub prefetch: u32,
    /// The client does not acknowledge; deliveries count as settled once they are sent to it.
    pub no_ack: bool,
    /// No other consumer may consume from the queue at the same time.
    pub exclusive: bool,
    /// `x-priority`: consumers of a higher priority are served first.
    pub priority: i32,
    /// Arguments of `basic.consume`, for listings.
    pub arguments: Table,
    /// The consumer gets only messages that satisfy the filter. It has flow mode [`FlowMode::Credit`]. Only if the cluster
    /// has enabled the feature flag.
    pub filter: Option<ConsumerFilter>,
}

/// How often a message was handed out and came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Failed deliveries, which count towards the delivery limit.
    pub failed: u32,
    /// Deliveries that were not settled for good, failed or not. A queue that does not count them has 1 from the first
    /// on. It may be lower than `failed` in a queue that did not count them before.
    acquired: u32,
}

impl DeliveryCounts {
    /// The counts of a message in a queue that counts no deliveries.
    pub(crate) fn uncounted(failed: u32, is_redelivery: bool) -> DeliveryCounts {
        DeliveryCounts {
            failed,
            acquired: is_redelivery.into(),
        }
    }

    pub(crate) fn new(failed: u32, acquired: u32) -> DeliveryCounts {
        DeliveryCounts { failed, acquired }
    }

    /// All deliveries of the message that were not settled for good.
    pub fn acquired(self) -> u32 {
        self.acquired.max(self.failed)
    }

    /// Returns true if the message was delivered before.
    pub fn is_redelivery(self) -> bool {
        self.acquired > 0
    }

    /// The counts after another delivery. `counts_all`: the queue counts also those that did not fail.
    pub(crate) fn after_delivery(self, has_failed: bool, counts_all: bool) -> DeliveryCounts {
        let acquired = match counts_all {
            true => self.acquired().saturating_add(1),
            false => 1,
        };
        DeliveryCounts {
            failed: self.failed.saturating_add(has_failed.into()),
            acquired,
        }
    }
}

/// Outcome of settled deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlementOutcome {
    /// Removes the message.
    Accepted,
    /// Requeues the message. Counts as a failed delivery attempt, unless the queue has the feature
    /// [`QuorumFeatures::delivery_counts`].
    Requeue,
    /// Dead-letters the message, or drops it without a dead letter exchange.
    Rejected,
    /// Requeues the message at the front, and does not count as a delivery attempt.
    Released,
    /// Requeues the message as if it had never been delivered, since it was not sent to the client. A quorum
    /// queue treats it as `Released`.
    Unseen,
}

/// A numbered request of a session to a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The session that asks.
    pub session: SessionId,
    /// Number of the request: consecutive per session and queue.
    pub seq: u64,
    /// The operation.
    pub body: RequestBody,
}

/// The operation of a [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    /// Enqueues a message.
    Publish(Message),
    /// Adds a consumer. If a classic queue already has this consumer, it only changes the prefetch.
    Consume {
        /// Number of the new consumer.
        consumer: ConsumerId,
        /// Its properties.
        spec: ConsumerSpec,
    },
    /// Adds a consumer of a session that outlives its connections. See [`EpochConsumer`].
    TakeOver(Box<EpochConsumer>),
    /// Cancels a consumer. Its unsettled deliveries stay with the session and can still be settled.
    Cancel {
        /// The consumer.
        consumer: ConsumerId,
    },
    /// Sets the credit of a consumer with [`FlowMode::Credit`]: it may get deliveries up to and including the
    /// id `up_to`. A smaller `up_to` than before revokes credit, an equal one only causes an answer (echo).
    ///
    /// Delivery ids are consecutive per consumer from 1. So `up_to` is the delivery-count of AMQP 1.0, counted
    /// from 0, plus the link-credit, minus the credit that was drained so far. A session counts the deliveries
    /// that it received: [`QueueClient`](client::QueueClient) corrects `up_to` and `last` if the queue requeued
    /// deliveries that never arrived.
    ///
    /// With `drain` the queue delivers ready messages as far as the credit allows, and then discards the rest
    /// of the credit. No ids are skipped: the next delivery has the id `last + 1` of the answer, and the next
    /// `up_to` counts from `last`. So the session adds `up_to - last` to its own delivery-count. A session that
    /// drains waits for the answer before it sends another `Credit`. Another `Credit` before the answer ends
    /// the drain, which is then answered with `drained: false`.
    ///
    /// The answer is [`QueueReply::Credited`]. It reaches the session after the deliveries up to `last`.
    Credit {
        /// The consumer.
        consumer: ConsumerId,
        /// The last delivery id that is allowed.
        up_to: u64,
        /// Discard the credit that the ready messages do not use.
        drain: bool,
    },
    /// As `Credit` without drain and answer, for both flow modes. It limits an AMQP 0.9.1 consumer whose
    /// channel has a prefetch for all its consumers. A quorum queue ignores it if the flow mode is prefetch.
    CreditOneWay {
        /// The consumer.
        consumer: ConsumerId,
        /// The last delivery id that is allowed.
        up_to: u64,
    },
    /// Cancels a consumer because its channel is closed, and requeues its unsettled deliveries. It is one step,
    /// so that no other consumer gets a later message before the requeued ones.
    CancelAndRequeue {
        /// The consumer.
        consumer: ConsumerId,
    },
    /// Settles deliveries. Ids that are not unsettled are ignored.
    Settle {
        /// The consumer that got the deliveries.
        consumer: ConsumerId,
        /// The outcome for all of them.
        outcome: SettlementOutcome,
        /// Inclusive ranges of delivery ids.
        ids: Vec<(u64, u64)>,
    },
    /// As `Settle`, with the outcome `modified` of AMQP 1.0 (part 3, section 3.4.5).
    Modify {
        /// The consumer that got the deliveries.
        consumer: ConsumerId,
        /// Inclusive ranges of delivery ids.
        ids: Vec<(u64, u64)>,
        /// The fields of the outcome.
        modification: Box<Modification>,
    },
    /// Takes one message (basic.get). It is delivered with id 1 to a consumer that exists for this message
    /// only.
    Get {
        /// Number of that consumer.
        consumer: ConsumerId,
        /// Settle the message when the session has received it.
        no_ack: bool,
    },
    /// As `Get`, with a message of the session's choice.
    GetAt(Box<PositionedGet>),
    /// Requeues all unsettled deliveries of a consumer (basic.recover).
    Recover {
        /// The consumer.
        consumer: ConsumerId,
    },
    /// Publishes a batch to a stream, as a whole. Other queue types refuse it.
    PublishBatch(StreamBatch),
    /// Asks a stream. Other queue types refuse it.
    Stream(StreamRequest),
    /// Drops all ready messages.
    Purge,
    /// Counts ready messages and consumers.
    Stat,
    /// Ends the queue for good if the conditions hold; the metadata change follows.
    Delete {
        /// Refuse if the queue has consumers.
        if_unused: bool,
        /// Refuse if the queue has ready messages.
        if_empty: bool,
    },
    /// Ends the session: its consumers end, its deliveries are requeued, and its request numbers are forgotten.
    Close,
}

/// Takes the ready message at a position. [`QueueReply::Empty`] if there is none: it has left the queue, or it is
/// unacknowledged or delayed, or it is one of a message group.
///
/// Sent only once the cluster has enabled it: older versions cannot read it.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionedGet {
    /// Number of a consumer that exists for this message only.
    pub consumer: ConsumerId,
    /// Settle the message when the session has received it.
    pub no_ack: bool,
    /// The message, as a listing told it.
    pub at: BrowsePosition,
}

/// The outcome `modified` of AMQP 1.0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modification {
    /// The delivery attempt failed and counts towards the delivery limit. Otherwise the message is requeued as
    /// with [`SettlementOutcome::Released`].
    pub delivery_failed: bool,
    /// The message is dead-lettered with the reason `rejected`, or dropped without a dead letter exchange. The
    /// specification only forbids sending it to the same link again; RabbitMQ does the same.
    pub undeliverable_here: bool,
    /// Merged into the annotations of the message. They survive requeue and dead-lettering in a quorum queue. A
    /// classic queue ignores them, as RabbitMQ does.
    pub annotations: Annotations,
}

impl Modification {
    /// A failed delivery, after which the message is requeued.
    pub fn failed() -> Modification {
        Modification {
            delivery_failed: true,
            ..Modification::default()
        }
    }
}

/// A new consumer of a session that outlives its connections, such as an MQTT session. Each connection is a
/// session of its own to the queue; the consumer tag in `spec` names the MQTT session.
///
/// Consumers with that tag of earlier connections end ([`QueueEvent::Cancelled`]). Their unsettled messages are
/// requeued in their original order before the new consumer gets anything. While the node of such a consumer
/// cannot be reached, its unsettled messages stay with it: no other consumer may get them.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochConsumer {
    /// Number of the new consumer.
    pub consumer: ConsumerId,
    /// Its properties; the tag names the session.
    pub spec: ConsumerSpec,
    /// Deliveries that the previous connection settled, in case the queue has not applied that yet.
    pub settled: Option<Settlement>,
    /// The epoch that the connection continues.
    pub epoch: SessionEpoch,
    /// A metadata log index that the node had applied after its client asked for the session. The queue refuses a
    /// request with a lower index than that of a connection which has already consumed: it comes from an earlier
    /// connection. 0: the node did not ask for an index.
    pub at: u64,
}

/// A series of connections of one session that know the client's unacknowledged deliveries from each other,
/// since they were on the same node. An epoch is named by its first connection. The queue knows the epoch of
/// the connection that consumed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEpoch {
    /// The connection knows no epoch of the session and starts one.
    New,
    /// The connection continues this epoch. The answer is [`QueueReply::EpochContinues`] if it is the current one. It is
    /// [`QueueReply::Consuming`] if another connection has consumed since; then this connection starts a new epoch.
    Of(SessionId),
}

/// Deliveries of one consumer that are settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The session of the consumer.
    pub session: SessionId,
    /// The consumer that got the deliveries.
    pub consumer: ConsumerId,
    /// Inclusive ranges of delivery ids.
    pub ids: Vec<(u64, u64)>,
}

/// An event of a queue for a session. `up_to` and `seq` are request numbers of the session.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueEvent {
    /// All requests up to this one are applied, and as durable as the queue type makes them: publishes may be
    /// confirmed.
    Applied {
        /// Number of the last applied request.
        up_to: u64,
    },
    /// As `Applied`, but the queue refused some publishes among the last `client::MAX_IN_FLIGHT` requests. A
    /// single event carries both, so that no lost event turns a refused publish into a confirmed one. A refusal
    /// is repeated in every such event until its request has left that window.
    AppliedExcept {
        /// Number of the last applied request.
        up_to: u64,
        /// The refused publishes, ascending.
        refused: Vec<RefusedPublishes>,
    },
    /// The answer to a request that has one. It comes at most once per owner, before or after the `Applied`
    /// that covers the request.
    Answer {
        /// Number of the request.
        seq: u64,
        /// The answer.
        answer: QueueReply,
    },
    /// Deliveries in order; ids are consecutive per consumer from 1.
    Deliver {
        /// The consumer that gets them.
        consumer: ConsumerId,
        /// The messages, ascending by id.
        deliveries: Vec<Delivery>,
    },
    /// The queue ended the consumer: the queue was deleted, or a consumer of a later connection replaced this
    /// one.
    Cancelled {
        /// The consumer.
        consumer: ConsumerId,
    },
    /// The reply to a [`ResumeConsumer`], before the repeated deliveries. Deliveries below `next` will not come
    /// (again).
    Resumed {
        /// The consumer.
        consumer: ConsumerId,
        /// Id of the next delivery.
        next: u64,
    },
    /// A consumer did not settle deliveries in time, and they are requeued. A consumer with [`FlowMode::Prefetch`]
    /// has ended: its session cancels it.
    TimedOut {
        /// The consumer.
        consumer: ConsumerId,
        /// The last of these deliveries; earlier ones that were not settled are requeued too.
        up_to: u64,
    },
    /// Whether a consumer gets messages. Sent for consumers with [`FlowMode::Credit`] of queue types that report
    /// activity: once the consumer exists, after [`QueueEvent::Resumed`], and after each change. The same state may
    /// come several times.
    Activity {
        /// The consumer.
        consumer: ConsumerId,
        /// False while another consumer is the single active one.
        is_active: bool,
    },
    /// The sender does not own the queue.
    NotOwner {
        /// The owner, if the sender knows it; otherwise the session waits.
        leader: Option<NodeId>,
    },
    /// The sender owns the queue (again). The session sends its unapplied requests and asks for deliveries that
    /// may be lost.
    Owner,
    /// The session must send its requests from this number on (again).
    Expecting {
        /// The first missing request number.
        expected: u64,
    },
}

impl QueueEvent {
    /// Bytes of the messages in this event.
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

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueReply {
    /// `Consume` and `TakeOver`: the consumer exists.
    Consuming,
    /// `TakeOver`: as `Consuming`, and the epoch that the [`EpochConsumer`] names is the queue's current one, or it
    /// named [`SessionEpoch::New`] and the queue knew no epoch.
    EpochContinues,
    /// `Get` found nothing. If it finds a message, a `Deliver` comes instead of an answer.
    Empty,
    /// The answer to `Purge`, `Delete` and `Stat`.
    Count {
        /// After `Purge` and `Delete`: messages removed. After `Stat`: messages ready.
        messages: u64,
        /// Consumers of the queue.
        consumers: u32,
    },
    /// The answer to [`RequestBody::Credit`].
    Credited {
        /// The id of the consumer's last delivery.
        last: u64,
        /// Messages ready for delivery, to any consumer.
        available: u64,
        /// The rest of the credit was discarded.
        drained: bool,
    },
    /// The answer of a stream.
    Stream(StreamReply),
    /// The queue did not take a publish: negative acknowledgement.
    NotTaken(RejectReason),
    /// Refused, with a reply code and text that AMQP 0.9.1 clients know.
    Refused {
        /// Such as 403 (exclusive use), 404 (no such queue), 406 (in use, not empty) or 540.
        code: u16,
        /// Names the queue and the cause.
        text: String,
    },
}

/// Why a queue refused a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// A length limit with `overflow=reject-publish` is reached.
    MaxLength,
    /// The queue is deleted, or its storage is gone.
    Unavailable,
}

/// A run of publishes that a queue refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPublishes {
    /// Request number of the first.
    pub from: u64,
    /// Request number of the last.
    pub to: u64,
    /// The reason for all of them.
    pub why: RejectReason,
}

/// A message that a queue assigns to a consumer.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Consecutive per consumer from 1.
    pub id: u64,
    /// The message was delivered before.
    pub redelivered: bool,
    /// Failed delivery attempts so far (quorum: `x-delivery-count`). None: the queue type does not count them.
    pub attempts: Option<u32>,
    /// Deliveries before this one, failed or not (`x-acquired-count`). 0: none, or the queue does not count them.
    pub acquired: u32,
    /// For `Get`: messages left in the queue. For the consumer of an [`EpochConsumer`]: see [`Delivery::mark`].
    pub left: u64,
    /// The message as it was published.
    pub message: Message,
    /// Annotations of `modified` outcomes that the message got in this queue. They replace its own annotations
    /// with the same key; see [`Annotations::of`].
    pub annotations: Option<Arc<Annotations>>,
}

/// Identifies a message within its queue across redeliveries and consumers. The time is needed since a classic
/// queue that loses its last messages in a power failure may use their numbers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageId {
    /// Number of the message in its queue.
    pub number: NonZeroU64,
    /// When the broker received the message.
    pub received: WallTime,
}

impl Delivery {
    /// For deliveries to the consumer of an [`EpochConsumer`]. None: the message has no number.
    pub fn mark(&self) -> Option<MessageId> {
        Some(MessageId {
            number: NonZeroU64::new(self.left)?,
            received: self.message.received(),
        })
    }
}

/// Asks a new owner to repeat the unsettled deliveries of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeConsumer {
    /// The session of the consumer.
    pub session: SessionId,
    /// The consumer.
    pub consumer: ConsumerId,
    /// Id of the first delivery to repeat.
    pub next: u64,
}

/// Reports that a consumer's client was sent all deliveries up to an id. Sent for each half of [`FLOW_WINDOW`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryProgress {
    /// The session of the consumer.
    pub session: SessionId,
    /// The consumer.
    pub consumer: ConsumerId,
    /// Id of the last delivery that was sent to the client.
    pub up_to: u64,
}

/// A message from a session's side to the owner of a queue.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueMessage {
    /// A numbered request.
    Request(Request),
    /// Asks for deliveries again.
    Resume(ResumeConsumer),
    /// Opens the flow window of a consumer.
    Received(DeliveryProgress),
}

impl QueueMessage {
    /// The session that sends the message.
    pub fn session(&self) -> SessionId {
        match self {
            QueueMessage::Request(request) => request.session,
            QueueMessage::Resume(resume) => resume.session,
            QueueMessage::Received(received) => received.session,
        }
    }

    /// Bytes of the published message in it.
    pub fn message_bytes(&self) -> usize {
        match self {
            QueueMessage::Request(Request {
                body: RequestBody::Publish(message),
                ..
            }) => message.as_bytes().len(),
            QueueMessage::Request(Request {
                body: RequestBody::PublishBatch(batch),
                ..
            }) => batch.entries.len(),
            _ => 0,
        }
    }
}

/// State of one queue on its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not settled.
    pub unacknowledged: u64,
    /// Consumers, without those of `Get`.
    pub consumers: u32,
    /// Body bytes of ready and unacknowledged messages.
    pub bytes: u64,
    /// Body bytes of unacknowledged messages.
    pub unacknowledged_bytes: u64,
    /// Dead letters that the queue keeps until they are forwarded.
    pub dead: u64,
    /// Body bytes of these dead letters.
    pub dead_bytes: u64,
    /// Messages lost to damaged files.
    pub lost: Losses,
    /// Messages of a quorum queue that become ready later. They are neither ready nor unacknowledged.
    pub delayed: u64,
    /// Body bytes of these messages.
    pub delayed_bytes: u64,
}

impl QueueStats {
    /// All messages: ready, unacknowledged and delayed ones, and dead letters.
    pub fn messages(&self) -> u64 {
        self.ready + self.unacknowledged + self.delayed + self.dead
    }

    /// Body bytes of all messages.
    pub fn all_bytes(&self) -> u64 {
        self.bytes + self.delayed_bytes + self.dead_bytes
    }
}

/// Delayed messages of a quorum queue. Times are in milliseconds of the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedDetails {
    /// Number of messages.
    pub messages: u64,
    /// Their body bytes.
    pub bytes: u64,
    /// When the first one becomes ready.
    pub next_at: u64,
    /// When the last one becomes ready.
    pub last_at: u64,
}

/// Counts of ready messages by their place in the service order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyDetails {
    /// Priority levels with messages and the number of their messages, ascending.
    pub by_priority: Vec<(u8, u64)>,
    /// Requeued messages, which precede all levels.
    pub returned: u64,
}

/// Losses that a classic queue found in its files since its node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Lost messages, as far as their number is known.
    pub messages: u64,
    /// Segments that are missing, truncated or damaged.
    pub segments: u64,
}

impl Losses {
    /// `messages` is None if the number of lost messages is unknown.
    pub(crate) fn add(&mut self, messages: Option<u64>, segments: u64) {
        self.messages = self.messages.saturating_add(messages.unwrap_or(0));
        self.segments = self.segments.saturating_add(segments);
    }
}

/// Deliveries since the queue has its current leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounters {
    /// Delivered to consumers that acknowledge.
    pub deliver: u64,
    /// Delivered to consumers that do not acknowledge.
    pub deliver_no_ack: u64,
    /// Taken with `Get`, to be acknowledged.
    pub get: u64,
    /// Taken with `Get` without acknowledgement.
    pub get_no_ack: u64,
    /// `Get` requests that found no message.
    pub get_empty: u64,
    /// Redeliveries, which the other counters include.
    pub redeliver: u64,
    /// Acknowledged by consumers and `Get` clients that have to.
    pub ack: u64,
}

impl DeliveryCounters {
    /// Takes back the count of a delivery that was never sent to the client.
    pub(crate) fn uncount_delivery(&mut self, redelivered: bool) {
        self.deliver = self.deliver.saturating_sub(1);
        self.redeliver = self.redeliver.saturating_sub(redelivered.into());
    }

    /// Returns true if nothing was counted.
    #[inline]
    pub fn is_zero(&self) -> bool {
        let all = self.deliver | self.deliver_no_ack | self.get | self.get_no_ack;
        all | self.get_empty | self.redeliver | self.ack == 0
    }

    /// Adds the counters of another queue.
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

/// Messages in and out since the queue has its current leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Messages enqueued.
    pub publish: u64,
    /// Messages delivered.
    pub deliveries: DeliveryCounters,
}

/// Incarnations of a node that have ended and will send nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadIncarnation {
    /// The node.
    pub node: NodeId,
    /// The first incarnation that may still be alive.
    pub before: Incarnation,
}

/// Requests and events as encoded for the log and for other nodes.
pub type Encoded = Bytes;
