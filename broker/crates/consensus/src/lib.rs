//! Multi-Raft host: all Raft groups of one shard on one shared write-ahead log.
//!
//! [`Host`] is a sans-io wrapper around raft-rs, whose types never leave this crate. The owner of a group's
//! state machine calls [`RaftHost`]; the host answers with [`HostOutput`]s that its driver carries out:
//! append to the write-ahead log, send a frame to a peer, run a storage job. Nothing here blocks or reads a
//! clock, except for reads of log entries that are no longer in memory, which may read a segment file.
//!
//! Errors: [`ProposeError`] and [`ReadError`] answer calls, [`RecoveryError`] means that the node must not
//! start, and [`JobError`] or [`HostOutput::Failed`] means that the node must stop.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]
#![allow(
    clippy::field_reassign_with_default,
    reason = "raft-rs's messages have many fields and no constructors"
)]

mod codec;
mod config;
mod entry;
#[cfg(test)]
mod format_tests;
mod group;
mod guard;
mod host;
mod jobs;
mod recovery;
mod rolls;
mod sink;
mod snapshot;
mod store;
mod survivor;
mod tombstone;

pub use config::{HostConfig, HostLimits, MAX_COMMAND_BYTES, MAX_MEMBERS};
pub use host::{Departure, Host, HostCounters};
pub use recovery::RecoveryError;
pub use survivor::{LogEnd, NoSurvivor, Survivor, select_survivor};
pub use wal::GroupId;

use bytes::Bytes;
use env::{Incarnation, NodeId, Time};
use slots::IndexSet;

/// The members of a group. Learners replicate the log but do not vote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Members that vote and count towards a majority.
    pub voters: Vec<NodeId>,
    /// Members that replicate the log without a vote.
    pub learners: Vec<NodeId>,
}

/// One change of a group's members. A group applies one change at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// Adds a node as a learner.
    AddLearner(NodeId),
    /// Makes a learner a voter.
    Promote(NodeId),
    /// Removes a voter or learner.
    Remove(NodeId),
}

/// Why a proposal or a membership change was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This node is not the leader; `leader` is set if another leader is known.
    #[error("not the leader")]
    NotLeader {
        /// The leader, if another node is known to lead.
        leader: Option<NodeId>,
    },
    /// This node has no replica of the group.
    #[error("no such group on this node")]
    NoGroup,
    /// The group's uncommitted tail is at its limit ([`HostLimits::max_uncommitted_bytes`]), the shard's log memory is at
    /// its limit ([`HostLimits::max_memory_bytes`]), or a leadership transfer is in progress. Retry later.
    #[error("too many uncommitted bytes, retry later")]
    Overloaded,
    /// Another membership change is not applied yet.
    #[error("another membership change is in progress")]
    ChangeInProgress,
    /// Only a learner can be promoted, and the last voter cannot be removed.
    #[error("the group's members do not allow this change")]
    InvalidChange,
    /// The command is empty or longer than [`MAX_COMMAND_BYTES`].
    #[error("a command of {bytes} bytes cannot be logged")]
    InvalidCommand {
        /// Length of the command in bytes.
        bytes: usize,
    },
}

/// Why a group cannot continue without its lost members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverMajorityError {
    /// This node has no replica of the group.
    #[error("no such group on this node")]
    NoGroup,
    /// A leader is known, so the group has a majority or had one a moment ago. A learner ignores a lost leader.
    #[error("the group has a leader")]
    HasLeader {
        /// The leader.
        leader: NodeId,
    },
    /// The members that are not lost are a majority of the group, or this node is one of the lost ones.
    #[error("the members that are not lost are a majority")]
    HasMajority,
    /// This replica has less than it has acknowledged: it was deleted and created again, or a checkpoint is being
    /// installed.
    #[error("the replica of this node is incomplete")]
    Incomplete,
}

/// Why a log entry could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The log has no such entry: it was compacted or never existed.
    #[error("entry is not in this log")]
    Gone,
    /// The entry is damaged or missing although it must exist.
    #[error("log of group {group:?} is damaged: {what}")]
    Corrupt {
        /// The group.
        group: GroupId,
        /// The damage.
        what: String,
    },
    /// The log itself is intact: the same read succeeds once file descriptors and memory are available again.
    #[error("log of group {group:?} cannot be read now: {what}")]
    Shortage {
        /// The group.
        group: GroupId,
        /// The resource that is short.
        what: String,
    },
}

/// The state of a group as seen from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The current term.
    pub term: u64,
    /// The leader, if known.
    pub leader: Option<NodeId>,
    /// True if this node is the leader.
    pub is_leader: bool,
    /// True while this node campaigns for leadership.
    pub is_candidate: bool,
    /// The members, as applied on this node.
    pub membership: Membership,
    /// Term of the last entry of the log. Of two logs, the one with the higher last term has everything committed that
    /// the other one has; of two with the same last term, the longer one.
    pub last_term: u64,
    /// Commit index known to this node.
    pub commit: u64,
    /// Index of the last entry delivered to the owner.
    pub applied: u64,
    /// Log index of the newest checkpoint that is durable on this node.
    pub checkpoint: u64,
    /// First index of the log that followers can be sent.
    pub first_index: u64,
    /// Last index of the log.
    pub last_index: u64,
    /// The log is durable on this node up to and including this index.
    pub persisted: u64,
    /// On the leader: members that were active within the last two election periods, itself included. While the group
    /// sleeps, the members that the failure detector reports up. Empty on other nodes.
    pub active: Vec<NodeId>,
    /// On the leader: (member, match index), ascending by member.
    pub matched: Vec<(NodeId, u64)>,
}

/// A committed entry, to be applied in index order. Raft's internal entries (empty and membership entries)
/// are not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Index of the entry.
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
    /// The command, as proposed.
    pub command: Bytes,
}

/// Identifies a batch handed to the write-ahead log. Batches become durable in order: if token n is durable,
/// all earlier tokens are too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalToken(pub u64);

/// Identifies a storage job until [`RaftHost::job_done`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// An action for the driver. Outputs are in order, and `Append`s must reach the log in that order.
#[derive(Debug)]
pub enum HostOutput {
    /// Write these records to the log; once they are durable, call [`RaftHost::durable`] with the token.
    Append {
        /// The batch.
        token: WalToken,
        /// The records, in order.
        records: Vec<wal::Record>,
    },
    /// Send this frame to the host of a shard of another node ([`RaftHost::receive`]). The frame may be lost.
    Send {
        /// The receiving node.
        to: NodeId,
        /// The shard of that node which has the groups of the frame; see [`shard_of`].
        shard: u16,
        /// The encoded frame.
        frame: Bytes,
    },
    /// Apply these entries.
    Committed {
        /// The group.
        group: GroupId,
        /// The entries, ascending by index.
        entries: Vec<CommittedEntry>,
    },
    /// Replace the state machine with this checkpoint, which was read at restart or sent by the leader.
    Restore {
        /// The group.
        group: GroupId,
        /// Index of the last entry that the state includes.
        index: u64,
        /// The state, as the owner handed it over.
        state: Bytes,
    },
    /// The term, the leader or this node's role changed.
    Leadership {
        /// The group.
        group: GroupId,
        /// The current term.
        term: u64,
        /// The leader, if known.
        leader: Option<NodeId>,
        /// True if this node is the leader.
        is_leader: bool,
    },
    /// A membership change was committed and applied.
    Membership {
        /// The group.
        group: GroupId,
        /// The new members.
        membership: Membership,
    },
    /// The log since the last checkpoint exceeds its limit: call [`RaftHost::checkpoint`] soon.
    CheckpointDue {
        /// The group.
        group: GroupId,
    },
    /// Run the job on the storage thread with the node's disk, then call [`RaftHost::job_done`].
    Job {
        /// Identifies the job.
        id: JobId,
        /// The work.
        job: Box<dyn StorageJob>,
    },
    /// The write-ahead log files up to and including this number are no longer needed.
    WalFree {
        /// Number of the newest file that can be deleted.
        up_to: u64,
    },
    /// The group's log on this node is damaged. Fatal: the node must stop, because it can no longer vouch for
    /// this data.
    Failed {
        /// The group.
        group: GroupId,
        /// The damage of its log.
        error: ReadError,
    },
}

/// The shard that owns a group, or the queue with this id, on a node with `shards` shards. The metadata group (0)
/// belongs to shard 0.
pub fn shard_of(key: u64, shards: u16) -> u16 {
    if key == 0 || shards <= 1 {
        return 0;
    }
    // Fibonacci hashing: consecutive ids spread evenly.
    let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (mixed % u64::from(shards)) as u16
}

/// Blocking disk work that must not run on a shard: flushing entries to segments, writing checkpoints,
/// deleting files.
pub trait StorageJob: Send + std::fmt::Debug {
    /// Estimate of the disk space that the job needs, in bytes; 0 if it only reads or deletes.
    fn space(&self) -> u64;
    /// Does the work. An error is fatal to the node; a shortage is reported as a postponed job.
    fn run(self: Box<Self>, disk: &dyn env::Disk) -> JobResult;
    /// Called instead of [`StorageJob::run`] if the disk is short of space. The result tells the host to
    /// retry later.
    fn refuse(self: Box<Self>) -> JobResult;
    /// The threads on which the job runs.
    fn lane(&self) -> JobLane {
        JobLane::Storage
    }
}

/// Threads for jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobLane {
    /// The storage thread: local files.
    Storage,
    /// Uploads to an object store, which can take long.
    Upload,
    /// Reads of an object store, which clients wait for.
    Fetch,
}

/// The result of a job; opaque to the driver. `Err` is fatal to the node.
pub type JobResult = Result<Box<dyn std::any::Any + Send>, JobError>;

/// A storage job failed for a reason other than a shortage.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct JobError {
    /// The job and its group.
    pub what: String,
    /// Why it failed.
    pub error: String,
}

/// The interface of consensus towards the rest of the broker.
pub trait RaftHost {
    /// Creates this node's replica of a new group whose first members are `membership`. Does nothing if the
    /// replica exists.
    ///
    /// A node that is not a voter of `membership` starts with an empty log and waits for the leader's
    /// checkpoint. Therefore all first voters must be given the same membership, and nodes that join later
    /// must be given one in which they are not voters. The replica sends and answers nothing until this is
    /// durable.
    fn create(&mut self, group: GroupId, membership: &Membership);
    /// Deletes this node's replica and its data.
    fn remove(&mut self, group: GroupId);
    /// Proposes a command (never empty) to the group, whose leader must be this node. A committed command is
    /// delivered as [`HostOutput::Committed`]. A command lost with the leadership is never delivered:
    /// proposers must number their commands and retry.
    fn propose(&mut self, group: GroupId, command: Bytes) -> Result<(), ProposeError>;
    /// Proposes a membership change; this node must be the leader. Returns `Ok` if the change is already in
    /// effect.
    fn change_membership(
        &mut self,
        group: GroupId,
        change: MembershipChange,
    ) -> Result<(), ProposeError>;
    /// Makes the members without `lost`, which never return, a group that this node tries to lead. It refuses unless
    /// the lost ones are so many of the voters that the others are no majority, and no leader is known. Entries
    /// that only lost members had are lost.
    ///
    /// The caller must call this only on the member that has the newest log of all that are left
    /// ([`GroupStatus::last_term`]). A learner becomes a voter. The group accepts no command
    /// until the new membership is committed and durable. After a crash before that, or if it does not win the election,
    /// nothing has changed, and the caller repeats the call.
    fn recover_majority(
        &mut self,
        group: GroupId,
        lost: &[NodeId],
    ) -> Result<(), RecoverMajorityError>;
    /// Starts a leadership transfer from this node to the voter `to`.
    fn transfer_leader(&mut self, group: GroupId, to: NodeId) -> Result<(), ProposeError>;
    /// Handles a frame from another node's host.
    fn receive(&mut self, from: NodeId, frame: Bytes);
    /// The failure detector reports that a peer is up, and the number of its shards in this incarnation.
    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation, shards: u16);
    /// The failure detector reports that a peer is down.
    fn peer_down(&mut self, node: NodeId);
    /// Advances time to `now`. Cheap if no tick is due.
    fn tick(&mut self, now: Time);
    /// When to call [`RaftHost::tick`] next; `None` if not before another call.
    fn wake_at(&self) -> Option<Time>;
    /// Reports that the batch `token`, and with it all earlier ones, is durable.
    fn durable(&mut self, token: WalToken);
    /// The log continues in a new file: every token that was durable before this call is in `file` or an
    /// older file, every later token in a newer file. [`HostOutput::WalFree`] follows once nothing up to
    /// `file` is needed.
    fn wal_rolled(&mut self, file: u64);
    /// Reports the result of a [`HostOutput::Job`].
    fn job_done(&mut self, id: JobId, result: JobResult);
    /// Reads the command of an entry that the state machine holds live.
    fn read(&self, group: GroupId, index: u64) -> Result<Bytes, ReadError>;
    /// Hands over a checkpoint: the state machine after `index`, and the ranges of indexes at or below it whose
    /// entries it still reads. Every other entry at or below `index` may be dropped.
    fn checkpoint(&mut self, group: GroupId, index: u64, state: Bytes, live: IndexSet);
    /// The group's state, or `None` if this node has no replica of it.
    fn status(&self, group: GroupId) -> Option<GroupStatus>;
    /// Drains everything that is to be done now, in order. Call after each burst of calls.
    fn poll(&mut self, out: &mut Vec<HostOutput>);
}
