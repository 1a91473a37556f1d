//! Identifiers of queues and sessions, queue types and queue settings.
//!
//! Every crate that names a queue or a session depends on this one, so that a queue type needs nothing of the metadata
//! tree and the tree needs nothing of a queue type.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod queue_type;

use env::{Incarnation, NodeId};
use std::sync::Arc;

pub use queue_type::{ByQueueType, ConsumerRules, QueueType, QueueTypeDescriptor, Replication};

/// The name of a virtual host, queue, exchange, user or another object. Cloning counts a reference.
pub type Name = Arc<str>;

/// The number of a queue: the index in the metadata log of the queue's declaration, so it is never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u64);

impl QueueId {
    /// The number of no queue. Deleting it changes nothing, but the answer proves that the requester's tree has
    /// everything that was committed before the request.
    pub const NONE: QueueId = QueueId(0);
}

/// A client's session: a connection in one incarnation of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// The node that the client is connected to.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// Number of the session within the incarnation.
    pub number: u64,
}

/// Effect of a length limit (`overflow`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Drops the oldest messages.
    DropHead,
    /// Refuses new messages; publishers get a negative acknowledgement.
    RejectPublish,
    /// Classic queues only: refused messages go to the dead letter exchange.
    RejectPublishDlx,
}

/// Treatment of dead letters (`dead-letter-exchange` and `dead-letter-strategy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLettering {
    /// The queue has no dead letter exchange and drops its dead letters.
    Off,
    /// The queue forwards each dead letter once.
    AtMostOnce,
    /// Quorum queues only: the queue keeps a dead letter until every target queue has confirmed it.
    AtLeastOnce,
}

/// Settings that a queue takes from its arguments and its effective policy. Where both name a limit, the smaller holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Most ready messages. None: no limit.
    pub max_length: Option<u64>,
    /// Most bytes of bodies of ready messages. None: no limit.
    pub max_length_bytes: Option<u64>,
    /// Effect of these limits.
    pub overflow: Overflow,
    /// Failed deliveries after which a message becomes a dead letter. None: no limit, as for every classic queue.
    pub delivery_limit: Option<u32>,
    /// Milliseconds after which a message expires. None: only its own expiration counts.
    pub message_ttl_ms: Option<u64>,
    /// One consumer at a time gets messages.
    pub single_active_consumer: bool,
    /// Classic queues only: the highest priority. None: all messages are alike.
    pub max_priority: Option<u8>,
    /// Treatment of dead letters.
    pub dead_letter: DeadLettering,
    /// Settings that depend on [`QuorumFeatures`].
    pub quorum: QuorumSettings,
}

/// Settings of quorum queues that not every version has. A setting has no effect until the queue has its feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuorumSettings {
    /// Delay of returned messages. None: they are ready at once. Needs [`QuorumFeatures::delayed_retry`].
    pub delayed_retry: Option<DelayedRetry>,
    /// Milliseconds for which the queue remembers values of `x-deduplication-header`. None: the queue does not recognise
    /// messages that are published again. Needs [`QuorumFeatures::deduplication`].
    pub deduplication_window_ms: Option<u64>,
}

impl QuorumSettings {
    /// The settings that a queue with these features has.
    pub fn supported_by(self, features: QuorumFeatures) -> QuorumSettings {
        QuorumSettings {
            delayed_retry: self.delayed_retry.filter(|_| features.delayed_retry),
            deduplication_window_ms: self
                .deduplication_window_ms
                .filter(|_| features.deduplication),
        }
    }
}

/// Delay of messages that return to a quorum queue (`delayed-retry-type`, `delayed-retry-min`, `delayed-retry-max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedRetry {
    /// The returns that delay a message.
    pub returns: DelayedReturns,
    /// Delay in milliseconds for each failed delivery.
    pub min_ms: u64,
    /// Longest delay in milliseconds.
    pub max_ms: u64,
}

impl DelayedRetry {
    /// The delay of a message in milliseconds. `failures`: failed deliveries, including this one if `has_failed`.
    /// 0: the message is ready at once.
    pub fn delay_ms(self, failures: u32, has_failed: bool) -> u64 {
        let applies = match self.returns {
            DelayedReturns::All => true,
            DelayedReturns::Failed => has_failed,
            DelayedReturns::Returned => !has_failed,
        };
        if !applies {
            return 0;
        }
        let delay = self.min_ms.saturating_mul(failures.max(1).into());
        delay.min(self.max_ms)
    }
}

/// The returns that delay a message (`delayed-retry-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayedReturns {
    /// Every return.
    All,
    /// Returns that count as failed deliveries.
    Failed,
    /// Returns that do not count as failed deliveries.
    Returned,
}

/// Behaviours of a quorum queue that not every version has. All replicas must change at the same entry of the queue's
/// log, so the leader logs the features once the cluster has enabled their feature flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuorumFeatures {
    /// 32 strict priority levels instead of two weighted ones.
    pub strict_priorities: bool,
    /// Failed deliveries are counted apart from all returns of a message, and only they count towards the delivery
    /// limit.
    pub delivery_counts: bool,
    /// Returned messages can be delayed before their next delivery.
    pub delayed_retry: bool,
    /// Messages can be published for a later time.
    pub scheduled_delivery: bool,
    /// A message that is published again is recognised and not stored.
    pub deduplication: bool,
    /// Messages of one group are delivered in order and to one consumer at a time. Only queues that are declared with
    /// `x-message-groups` have it.
    pub message_groups: bool,
    /// Ready messages expire on time, also behind others.
    pub exact_expiry: bool,
}

impl QuorumFeatures {
    /// Returns true if no feature is enabled.
    pub fn is_empty(self) -> bool {
        self == QuorumFeatures::default()
    }

    /// The features of either.
    pub fn union(self, other: QuorumFeatures) -> QuorumFeatures {
        QuorumFeatures {
            strict_priorities: self.strict_priorities || other.strict_priorities,
            delivery_counts: self.delivery_counts || other.delivery_counts,
            delayed_retry: self.delayed_retry || other.delayed_retry,
            scheduled_delivery: self.scheduled_delivery || other.scheduled_delivery,
            deduplication: self.deduplication || other.deduplication,
            message_groups: self.message_groups || other.message_groups,
            exact_expiry: self.exact_expiry || other.exact_expiry,
        }
    }
}
