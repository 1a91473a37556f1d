//! What the host is told when it is made, and the bounds of what it holds.

use env::{Incarnation, NodeId};
use std::time::Duration;

/// The longest command: a record of the write-ahead log with room for its fields.
pub const MAX_COMMAND_BYTES: usize = wal::MAX_RECORD_BYTES as usize - 4096;

/// Members of one group, learners included.
pub const MAX_MEMBERS: usize = 1024;

/// Facts that do not change while the process lives.
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// For election timeouts; differs per node, shard and start.
    pub seed: u64,
    pub limits: Limits,
}

/// Time and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The unit of all times below.
    pub tick: Duration,
    /// A follower that hears nothing for this many ticks up to twice as many asks for votes.
    pub election_ticks: usize,
    pub heartbeat_ticks: usize,
    /// A group's uncommitted tail; a single command may go over it.
    pub max_uncommitted_bytes: usize,
    /// Log entries in memory, all groups together. Over it proposals are refused and entries are moved to segments.
    pub max_memory_bytes: usize,
    /// A checkpoint is due after this many bytes of log, or ...
    pub checkpoint_bytes: u64,
    /// ... this many entries, and at least half as many as the last one had live.
    pub checkpoint_entries: u64,
    /// While the disk is short of space every group with anything new is asked for a checkpoint this often, whatever
    /// the two bounds above: it lets go of what was settled.
    pub short_checkpoint_ticks: u32,
    /// Entries below a checkpoint that stay for followers that are a little behind.
    pub retain_entries: u64,
    /// Entries in one message to a follower, in bytes; a single entry may go over it.
    pub max_message_bytes: u64,
    /// Messages to a follower that are not answered yet.
    pub max_inflight_messages: usize,
    /// Messages to one node are gathered up to this size.
    pub max_frame_bytes: usize,
    /// Checkpoints that are being sent, and as many that are being received.
    pub max_transfers: usize,
    /// Bytes of a checkpoint in one message; at most 4 MiB, which is what receivers take.
    pub transfer_chunk_bytes: usize,
    /// Chunks that are not acknowledged yet.
    pub transfer_window: usize,
    /// A transfer that makes no progress for this long is given up.
    pub transfer_timeout_ticks: u32,
    /// The state in a checkpoint that is accepted from a leader.
    pub max_state_bytes: u64,
    /// After the log rolled: how long a group's owner may take for the checkpoint that makes the flush small.
    pub flush_delay_ticks: u32,
    /// Groups with less than this in a log file that is to go are written to the log again, in place of a segment.
    pub relog_bytes: usize,
    /// The same for all groups together.
    pub relog_total_bytes: usize,
    /// Settled groups fall asleep after this many ticks without anything to do.
    pub sleep_after_ticks: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
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
