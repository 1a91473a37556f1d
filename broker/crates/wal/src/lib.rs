//! The write-ahead log: one per node. Everything that must be durable before it is answered goes through here
//! once, whatever group it belongs to, so that one `fdatasync` serves all that arrived meanwhile (Q3, Q10).
#![forbid(unsafe_code)]

mod error;
mod format;
mod log;
mod manifest;
mod recover;
mod writer;

pub use error::WalError;
pub use log::{Rolled, Wal, WalConfig};
pub use recover::{HardState, Recovered, RecoveredGroup, TornTail};
pub use writer::{Progress, Writer};

use bytes::Bytes;

/// The largest record, its fields included: the largest message (512 MiB) with its properties and a batch of others before
/// it. Every node reads records of this size, whatever it is configured to take.
pub const MAX_RECORD_BYTES: u64 = (512 + 32) << 20;

/// A Raft group's number in logs and on the network. 0 is the metadata group; a quorum queue's is its `QueueId`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub group: GroupId,
    pub body: RecordBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// A log entry. An entry at an index that is already in the log replaces it and all that follow it in its group.
    Entry(Entry),
    /// Term, vote and commit of Raft's hard state; the newest wins.
    HardState { term: u64, vote: u64, commit: u64 },
    /// Everything of this group up to and with `index` lives in a checkpoint and segments now.
    Checkpointed { index: u64, term: u64 },
    /// The group is gone; nothing older of it counts.
    Deleted,
}

/// A Raft log entry. `kind` is the consensus crate's (normal, configuration change); the log does not look inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: u64,
    pub term: u64,
    pub kind: u8,
    pub data: Bytes,
}
