//! Many Raft groups on one log (Q3, C1). A sans-io host over raft-rs whose types never leave this crate.
//!
//! The owner of a group's state machine calls in; the host answers with [`HostOutput`]s that its driver carries
//! out: append to the write-ahead log, send to a peer, run a storage job. Nothing here blocks or reads a clock,
//! but for reads of log entries that have left memory (page cache).
#![forbid(unsafe_code)]
#![allow(
    clippy::field_reassign_with_default,
    reason = "raft-rs's messages have many fields and no constructors"
)]

mod codec;
mod config;
mod entry;
mod group;
mod guard;
mod host;
mod jobs;
mod recovery;
mod rolls;
mod sink;
mod snapshot;
mod store;
mod tombstone;

pub use config::{HostConfig, Limits, MAX_COMMAND_BYTES, MAX_MEMBERS};
pub use host::{Counters, Departure, Host};
pub use recovery::RecoveryError;
pub use wal::GroupId;

use bytes::Bytes;
use env::{Incarnation, NodeId, Time};

/// Who takes part in a group. Learners replicate and do not vote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    pub voters: Vec<NodeId>,
    pub learners: Vec<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    AddLearner(NodeId),
    Promote(NodeId),
    Remove(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Not the leader; `leader` when one is known.
    #[error("not the leader")]
    NotLeader { leader: Option<NodeId> },
    #[error("no such group on this node")]
    NoGroup,
    /// The group's uncommitted tail is at its limit (`MAX_UNCOMMITTED_BYTES`); try again after commits.
    #[error("too much uncommitted")]
    Overloaded,
    #[error("another membership change is in progress")]
    ChangeInProgress,
    /// Only a learner can be promoted, and the last voter cannot be removed.
    #[error("the group's members do not allow this change")]
    InvalidChange,
    /// Empty, or over [`MAX_COMMAND_BYTES`].
    #[error("a command of {bytes} bytes cannot be logged")]
    InvalidCommand { bytes: usize },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("entry is not in this log")]
    Gone,
    #[error("log of group {group:?} is damaged: {what}")]
    Corrupt { group: GroupId, what: String },
    /// Nothing is wrong with the log: the same read succeeds once there are descriptors and memory again.
    #[error("log of group {group:?} cannot be read now: {what}")]
    Shortage { group: GroupId, what: String },
}

/// A group as seen from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub term: u64,
    pub leader: Option<NodeId>,
    pub is_leader: bool,
    /// It asks for votes.
    pub is_candidate: bool,
    pub membership: Membership,
    pub commit: u64,
    pub applied: u64,
    /// Of the newest checkpoint that is durable here.
    pub checkpoint: u64,
    pub first_index: u64,
    pub last_index: u64,
    /// Up to here the log is durable here.
    pub persisted: u64,
    /// On the leader: members that were heard from lately (itself included). Elsewhere empty.
    pub active: Vec<NodeId>,
    /// On the leader: (member, match index).
    pub matched: Vec<(NodeId, u64)>,
}

/// A committed entry, to be applied in order. Raft's own entries (empty, membership) never show up here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub index: u64,
    pub term: u64,
    pub command: Bytes,
}

/// Names a batch that was handed to the log. Durable in order: token n durable means all before it are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalToken(pub u64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// What the driver must do. Outputs are in order; an `Append` must reach the log in this order.
#[derive(Debug)]
pub enum HostOutput {
    /// Write these records to the log; when they are durable call [`RaftHost::durable`] with the token.
    Append {
        token: WalToken,
        records: Vec<wal::Record>,
    },
    /// Send to this node's host ([`RaftHost::receive`]). May be lost.
    Send { to: NodeId, frame: Bytes },
    /// Apply these.
    Committed {
        group: GroupId,
        entries: Vec<Committed>,
    },
    /// Replace the state machine by this checkpoint (after a restart, or sent by the leader).
    Restore {
        group: GroupId,
        index: u64,
        state: Bytes,
    },
    /// Leadership as this node sees it changed.
    Leadership {
        group: GroupId,
        term: u64,
        leader: Option<NodeId>,
        is_leader: bool,
    },
    /// The members changed (committed and applied).
    Membership {
        group: GroupId,
        membership: Membership,
    },
    /// The log since the last checkpoint has grown past its bound: call [`RaftHost::checkpoint`] soon.
    CheckpointDue { group: GroupId },
    /// Run on the storage thread with the node's disk, then call [`RaftHost::job_done`].
    Job { id: JobId, job: Box<dyn StorageJob> },
    /// No file of the write-ahead log up to and with this number is needed any more.
    WalFree { up_to: u64 },
    /// The group's log on this node is damaged. Fatal to the node: nobody may answer for this data.
    Failed { group: GroupId, error: ReadError },
}

/// Blocking disk work that does not belong on a shard: flushing entries to segments, checkpoints, deletions.
pub trait StorageJob: Send + std::fmt::Debug {
    /// Bytes that it takes from the disk, roughly; 0 when it only reads or removes.
    fn space(&self) -> u64;
    fn run(self: Box<Self>, disk: &dyn env::Disk) -> JobResult;
    /// In place of [`StorageJob::run`], when there is too little space: what the host is to hear, which tries again later.
    fn refuse(self: Box<Self>) -> JobResult;
}

/// What came of a job; opaque to the driver. `Err` is fatal to the node.
pub type JobResult = Result<Box<dyn std::any::Any + Send>, JobError>;

#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct JobError {
    pub what: String,
    pub error: String,
}

/// The narrow face of consensus that everything above knows.
pub trait RaftHost {
    /// Makes this node's replica of a new group whose first members are `membership`. No effect when it is there.
    ///
    /// A node that is no voter of `membership` starts with nothing and waits for the leader's checkpoint, so all
    /// first voters must be given the same membership, and nodes that join later must not be given theirs as
    /// voters. The group sends and answers nothing before this is durable.
    fn create(&mut self, group: GroupId, membership: &Membership);
    /// Drops this node's replica with its data.
    fn remove(&mut self, group: GroupId);
    /// Hands a command (never empty) to the group's leader, which must be this node. Commit shows as `HostOutput::Committed`;
    /// a command that is lost with the leadership never shows: proposers number their commands and try again.
    fn propose(&mut self, group: GroupId, command: Bytes) -> Result<(), ProposeError>;
    fn change_membership(
        &mut self,
        group: GroupId,
        change: MembershipChange,
    ) -> Result<(), ProposeError>;
    fn transfer_leader(&mut self, group: GroupId, to: NodeId) -> Result<(), ProposeError>;
    /// A frame from another node's host.
    fn receive(&mut self, from: NodeId, frame: Bytes);
    /// The failure detector's word on a peer.
    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation);
    fn peer_down(&mut self, node: NodeId);
    /// Time moved on. Cheap when nothing is due.
    fn tick(&mut self, now: Time);
    /// When [`RaftHost::tick`] is to be called next; `None`: not before something else happens.
    fn wake_at(&self) -> Option<Time>;
    fn durable(&mut self, token: WalToken);
    /// The log goes on in a new file: every token that was durable before this call lies in `file` or an older one,
    /// every later one in a newer. [`HostOutput::WalFree`] follows when nothing up to `file` is needed any more.
    fn wal_rolled(&mut self, file: u64);
    fn job_done(&mut self, id: JobId, result: JobResult);
    /// The command of an entry that the state machine holds live.
    fn read(&self, group: GroupId, index: u64) -> Result<Bytes, ReadError>;
    /// The state machine after `index`, and the indexes at or below it whose entries it still reads, ascending.
    /// Everything else at or below `index` may be forgotten.
    fn checkpoint(&mut self, group: GroupId, index: u64, state: Bytes, live: Vec<u64>);
    fn status(&self, group: GroupId) -> Option<GroupStatus>;
    /// Everything there is to do now, in order. Call after each burst of calls.
    fn poll(&mut self, out: &mut Vec<HostOutput>);
}
