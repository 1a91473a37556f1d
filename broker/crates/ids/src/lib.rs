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
}

/// Behaviours of a quorum queue that not every version has. All replicas must change at the same entry of the queue's
/// log, so the leader logs the features once the cluster has enabled their feature flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuorumFeatures {
    /// 32 strict priority levels instead of two weighted ones.
    pub strict_priorities: bool,
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
        }
    }
}
