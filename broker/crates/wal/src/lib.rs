//! The write-ahead log of a node, shared by all its Raft groups.
//!
//! Every record that must be durable before it is acknowledged is written here once, whatever its group, so
//! that one `fdatasync` serves all records queued meanwhile. [`Wal`] writes and recovers the log files,
//! [`Writer`] adds group commit, and [`WalError`] tells which failures stop the node. The file format is
//! described in `format.rs`, the manifest in `manifest.rs`.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod error;
mod format;
mod log;
mod manifest;
mod recover;
mod writer;

pub use error::WalError;
pub use log::{CompletedFile, Wal, WalConfig};
pub use recover::{HardState, Recovered, RecoveredGroup, TornTail};
pub use writer::{Writer, WriterProgress};

use bytes::Bytes;

/// Largest record in bytes, header fields included: the largest message (512 MiB) with its properties and a
/// batch of others before it. Every node reads records of this size, whatever message size it is configured
/// to accept.
pub const MAX_RECORD_BYTES: u64 = (512 + 32) << 20;

/// Number of a Raft group in logs and on the network. 0 is the metadata group; the number of a quorum queue's
/// group is its `QueueId`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The group that the record belongs to.
    pub group: GroupId,
    /// The content of the record.
    pub body: RecordBody,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// A log entry. It replaces an entry at the same index and all entries of its group after that.
    Entry(Entry),
    /// Raft's hard state: term, vote and commit index. The newest record wins.
    HardState {
        /// The newest term.
        term: u64,
        /// The node voted for in that term; 0 means none.
        vote: u64,
        /// Index of the newest entry known to be committed.
        commit: u64,
    },
    /// Everything in this group up to and including `index` is stored in a checkpoint and in segments.
    Checkpointed {
        /// Index of the checkpoint.
        index: u64,
        /// Term of the entry at that index.
        term: u64,
    },
    /// The group is deleted; its older records are void.
    Deleted,
}

/// A Raft log entry. `kind` belongs to the consensus crate (command, membership change); the log does not
/// interpret it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Raft index.
    pub index: u64,
    /// Raft term in which a leader created the entry.
    pub term: u64,
    /// Kind of the entry, defined by the consensus crate.
    pub kind: u8,
    /// The data of the entry.
    pub data: Bytes,
}
