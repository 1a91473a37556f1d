//! Tiered storage of streams: sealed segments in an object store.
//!
//! - [`Tier`] is the state machine of one replica. It decides what to upload, publish, delete and read, and hands out
//!   [`TierJob`]s. The leader writes; every replica reads.
//! - A [`Manifest`] lists the segments of a stream that are in the store. Its name carries the epoch of the leader that
//!   wrote it, so a deposed leader cannot overwrite a newer one.
//! - A segment is stored as parts of whole chunks and an index of the parts ([`SegmentIndex`]). Everything that is read
//!   from the store is verified before it is used.
//! - [`ObjectStore`] is the interface to the store. Its calls block, so jobs run on threads of their own.
//!
//! The local copy of a segment may be deleted only when the published manifest lists the segment, and a manifest lists
//! only segments that were read back and compared.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod cache;
mod fault;
mod format;
mod jobs;
mod memory;
mod store;
mod tier;

pub use format::{
    MAX_INDEX_BYTES, MAX_MANIFEST_BYTES, MAX_SEGMENTS, Manifest, ManifestId, PartEntry,
    SegmentEntry, SegmentIndex,
};
pub use jobs::{
    ReadError, ReadStart, RemoteRead, RemoteResult, StoreLane, TierJob, TierJobResult, purge,
};
pub use memory::{MemoryFaults, MemoryStore};
pub use store::{ObjectStore, Remote, StoreError, TierCounters};
pub use tier::{Tier, TierConfig};

/// Bytes after which a part of a segment takes no further chunk. A part has at least one chunk, whose size is limited by
/// [`stream_log::MAX_CHUNK_BYTES`].
pub const PART_BYTES: usize = 4 << 20;
/// Most bytes of parts and indexes that a node keeps in memory because they were read ahead.
pub const READ_AHEAD_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests;
