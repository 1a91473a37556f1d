//! Streams: sessions of the stream protocol, and replicas.

use env::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Publishers and consumers of a connection of the stream protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamSessionFacts {
    /// Sorted by id.
    pub publishers: Vec<StreamPublisherFacts>,
    /// Sorted by id.
    pub consumers: Vec<StreamConsumerFacts>,
}

/// A publisher of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamPublisherFacts {
    /// The client's id of the publisher.
    pub id: u8,
    /// Name of the stream.
    pub stream: String,
    /// Name for deduplication; empty if there is none.
    pub reference: String,
    /// Messages received.
    pub published: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages that the stream did not store.
    pub errored: u64,
}

/// A consumer of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamConsumerFacts {
    /// The client's id of the consumer.
    pub id: u8,
    /// Name of the stream.
    pub stream: String,
    /// Chunks that the client may still be sent.
    pub credit: u64,
    /// Messages sent.
    pub consumed: u64,
    /// Offset of the next message.
    pub offset: u64,
    /// False while another consumer is the single active consumer.
    pub active: bool,
    /// Properties of the subscription.
    pub properties: BTreeMap<String, String>,
}

/// Connections and errors of the stream protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamProtocolCounters {
    /// Open connections.
    pub connections: i64,
    /// Error responses by the error's name, such as `stream_does_not_exist`.
    pub errors: BTreeMap<String, u64>,
}

impl StreamProtocolCounters {
    pub(super) fn is_zero(&self) -> bool {
        *self == StreamProtocolCounters::default()
    }

    pub(super) fn add(&mut self, other: &StreamProtocolCounters) {
        self.connections += other.connections;
        for (error, count) in &other.errors {
            *self.errors.entry(error.clone()).or_default() += count;
        }
    }
}

/// Streams whose replicas are asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamFilter {
    /// Id of the only stream; `None`: all.
    pub queue: Option<u64>,
    /// The leader also tells its stored offsets and publishing ids. Only with `queue`.
    pub tracking: bool,
    /// Replicas also tell the positions of their readers.
    pub readers: bool,
}

/// The state of a stream's replica on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamReplicaFacts {
    /// Id of the stream.
    pub queue: u64,
    /// Not serialized: a node reports only its own replicas.
    #[serde(skip)]
    pub node: NodeId,
    /// The replica leads and takes requests.
    pub leads: bool,
    /// The term of the leader that the replica knows.
    pub epoch: u64,
    /// The oldest retained offset.
    pub first_offset: u64,
    /// The offset after the last written message.
    pub next_offset: u64,
    /// The offset after the last message that the replica knows to be committed.
    pub committed_offset: u64,
    /// Segment files.
    pub segments: u64,
    /// Retained chunks.
    pub chunks: u64,
    /// Size of the segment files in bytes.
    pub bytes: u64,
    /// Consumers that read from this replica.
    pub reader_count: u64,
    /// The highest number of committed messages that a consumer of this replica has not been sent.
    pub max_lag: u64,
    /// The copies of the other members, if the replica leads.
    pub followers: Vec<StreamFollowerFacts>,
    /// Stored offsets and publishing ids, if they were asked for and the replica leads.
    pub tracking: Option<StreamTrackingFacts>,
    /// The positions of the consumers that read from this replica, if they were asked for.
    pub readers: Vec<StreamReaderFacts>,
}

/// The position of a consumer in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamReaderFacts {
    /// The consumer's session: its node and its number there ([`ConnectionFacts::number`](super::ConnectionFacts::number)).
    pub session_node: u64,
    /// Number of the session on its node ([`ConnectionFacts::number`](super::ConnectionFacts::number)).
    pub session_number: u64,
    /// Number of the consumer within its session. Of the stream protocol, the low 8 bits are the subscription id.
    pub consumer: u64,
    /// Committed messages that the consumer has not been sent.
    pub lag: u64,
}

/// A follower's copy of a stream, as the leader knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamFollowerFacts {
    /// Id of the node.
    pub node: u64,
    /// The offset after the last message that the follower has written; `None` while it is not attached.
    pub next_offset: Option<u64>,
}

/// Offsets and publishing ids that a stream stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamTrackingFacts {
    /// Stored offsets by the name of the consumer.
    pub offsets: BTreeMap<String, u64>,
    /// Highest publishing ids by the name of the producer.
    pub writers: BTreeMap<String, u64>,
}
