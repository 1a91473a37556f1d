//! The queue type stream: an append-only, replicated log with non-destructive readers.
//!
//! [`StreamReplica`] is one replica of a stream on one node, as a step function. It owns the log ([`stream_log`]) and
//! its replication ([`stream_replication::Member`]). Its host tells it requests of sessions, the state of its Raft group,
//! messages of other replicas and the results of storage jobs, and carries out its [`StreamEffect`]s.
//!
//! - The leader takes requests. Publishes of one turn become one chunk, and are confirmed when a majority has written it.
//! - Any replica serves cursors ([`queue::cursor`]) from the chunks that it knows to be committed. The shard never
//!   reads the disk; storage jobs do.
//! - [`StreamConsumer`] turns the batches of a cursor into the deliveries of an AMQP consumer. It belongs to the
//!   session's side, so that a consumer survives a change of leader.
//!
//! Messages of other protocols are stored as AMQP 1.0 sections ([`entry`]).
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod consumer;
mod cursors;
pub mod entry;
mod fault;
mod jobs;
mod peer;
mod replica;
mod sessions;
#[cfg(test)]
mod tests;

pub use consumer::{ConsumerOutput, StreamConsumer, consumer_rules};
pub use jobs::{StreamJob, StreamJobResult};
pub use peer::PeerMessage;
pub use replica::{RaftState, ReplicaConfig, ReplicaStatus, StreamEffect, StreamReplica};

pub use stream_tier::{StoreLane, TierConfig};

/// Most bytes of a batch with several entries: a larger one is refused.
pub const MAX_BATCH_BYTES: usize = 8 << 20;
/// Unwritten bytes with which the leader takes no further publishes until some are written.
pub const MAX_UNWRITTEN_BYTES: usize = 16 << 20;
/// Most bytes of chunks from the leader that wait for the log of a follower. Further ones are dropped, and repeated by the
/// leader.
pub const MAX_WAITING_BYTES: usize = 32 << 20;
/// Bytes of new chunks that are kept in memory for followers and cursors that are nearly up to date.
pub const RECENT_BYTES: usize = 2 << 20;
/// Bytes after which a read for cursors takes no further chunk.
pub const READ_BYTES: usize = 1 << 20;
/// Most chunks of one read for cursors.
pub const READ_CHUNKS: usize = 64;
/// Most reads for cursors of one replica at the same time.
pub const MAX_READS: usize = 4;
/// Most cursors of one replica. Further ones are sent to another replica.
pub const MAX_CURSORS: usize = 65_536;
/// Most sessions that are told when the leader takes requests (again). Others find out when they repeat a request.
pub const MAX_WAITING_SESSIONS: usize = 4_096;
