//! The oldest ready message of a queue, for listings and metrics.
//!
//! A queue looks for it only when statistics are requested. What it has read is kept until another message is the oldest.

use message::Message;

/// The oldest ready message of a queue: the one that was enqueued first. A queue with priorities compares the first messages
/// of its levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadMessage {
    /// When the broker received it from its publisher, in milliseconds since the Unix epoch. In a stream: when the leader
    /// stored it.
    pub received: u64,
    /// The timestamp that the publisher set, in seconds since the Unix epoch.
    pub timestamp: Option<u64>,
}

/// Reads what is listed of a message. Queues do not know the properties of protocols.
pub type DescribeMessage = fn(&Message) -> HeadMessage;

/// The answer of a queue that is asked for its oldest ready message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadLookup {
    /// `None`: no message is ready, or the message cannot be read now.
    pub message: Option<HeadMessage>,
    /// The queue has read from its files or its log for this answer.
    pub has_read: bool,
}
