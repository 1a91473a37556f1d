//! Configuration of a [`crate::Host`] and the limits of what it holds in memory.

use env::{Incarnation, NodeId};
use std::time::Duration;

/// Longest command in bytes: one write-ahead log record less room for its header fields.
pub const MAX_COMMAND_BYTES: usize = wal::MAX_RECORD_BYTES as usize - 4096;

/// Largest number of members of one group, learners included.
pub const MAX_MEMBERS: usize = 1024;

/// Parameters that are fixed while the process runs.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// This node.
    pub node: NodeId,
    /// The incarnation of this node's process.
    pub incarnation: Incarnation,
    /// Number of shards of this node.
    pub shards: u16,
    /// The index of the shard that has this host.
    pub shard: u16,
    /// Seed of the election timeouts; must differ per node, shard and process start.
    pub seed: u64,
    /// Timing and memory limits.
    pub limits: HostLimits,
}

/// Timing and memory limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// The unit of all times below.
    pub tick: Duration,
    /// A follower campaigns after this many to twice as many ticks without a message from a leader.
    pub election_ticks: usize,
    /// Interval of a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Limit of a group's uncommitted tail; a single command may exceed it.
    pub max_uncommitted_bytes: usize,
    /// Limit of log entries in memory, all groups together. Above it, proposals are refused and entries are
    /// moved to segments.
    pub max_memory_bytes: usize,
    /// A checkpoint is due after this many bytes of log, or ...
    pub checkpoint_bytes: u64,
    /// ... after this many entries, but at least half the number of live entries in the last checkpoint.
    pub checkpoint_entries: u64,
    /// While the disk is short of space, every group with new entries is asked for a checkpoint at this
    /// interval, regardless of the two limits above, to free the entries that are no longer live.
    pub short_checkpoint_ticks: u32,
    /// Entries below a checkpoint that are kept for followers slightly behind.
    pub retain_entries: u64,
    /// Bytes of entries in one message to a follower; a single entry may exceed it.
    pub max_message_bytes: u64,
    /// Unacknowledged messages per follower.
    pub max_inflight_messages: usize,
    /// Messages to one node are batched into frames of up to this size.
    pub max_frame_bytes: usize,
    /// Concurrent outgoing checkpoint transfers, and separately the concurrent incoming ones.
    pub max_transfers: usize,
    /// Bytes of a checkpoint per chunk; at most 4 MiB, the receivers' limit.
    pub transfer_chunk_bytes: usize,
    /// Unacknowledged chunks per transfer.
    pub transfer_window: usize,
    /// A transfer without progress for this long is aborted.
    pub transfer_timeout_ticks: u32,
    /// Largest state, in bytes, accepted in a checkpoint from a leader.
    pub max_state_bytes: u64,
    /// After the log rolled: how long the group's owner may take to supply the checkpoint that makes the
    /// flush small.
    pub flush_delay_ticks: u32,
    /// A group with less than this in a log file to be freed is rewritten to the log instead of flushed to a
    /// segment.
    pub relog_bytes: usize,
    /// The same limit for all groups together.
    pub relog_total_bytes: usize,
    /// Settled groups go to sleep after this many idle ticks.
    pub sleep_after_ticks: u32,
}

impl Default for HostLimits {
    fn default() -> HostLimits {
        HostLimits {
            tick: Duration::from_millis(100),
            election_ticks: 10,
            heartbeat_ticks: 3,
            max_uncommitted_bytes: 64 << 20,
            max_memory_bytes: 256 << 20,
            checkpoint_bytes: 64 << 20,
            checkpoint_entries: 131_072,
            short_checkpoint_ticks: 50,
            retain_entries: 1024,
            max_message_bytes: 256 << 10,
            max_inflight_messages: 128,
            max_frame_bytes: 1 << 20,
            max_transfers: 4,
            transfer_chunk_bytes: 512 << 10,
            transfer_window: 4,
            transfer_timeout_ticks: 300,
            max_state_bytes: 512 << 20,
            flush_delay_ticks: 20,
            relog_bytes: 2 << 10,
            relog_total_bytes: 4 << 20,
            sleep_after_ticks: 10,
        }
    }
}
