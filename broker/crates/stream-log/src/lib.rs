//! The log of a stream on one replica: chunks in segment files, their indexes, retention, truncation and tracking.
//!
//! - [`Chunk`] is the unit in which messages are written, replicated and read. Its format is that of osiris, the log
//!   library of RabbitMQ streams, in files and on the network.
//! - [`StreamLog`] is a step function. It assigns offsets to chunks of a leader ([`StreamLog::append`]) or takes
//!   chunks from the leader ([`StreamLog::accept`]), and hands out jobs that do the disk work.
//! - [`ChunkReader`] reads the chunks of a [`LogView`], each verified, or locates them for `sendfile`.
//! - [`Tracking`] is what the log remembers about names: the newest sequence of each producer, for deduplication, and
//!   the offsets that consumers stored.
//!
//! Appended chunks are not synced: a stream relies on its other replicas. Complete segments are synced and sealed. After
//! a power failure, recovery keeps the sealed segments and the valid front of the rest. Memory does not depend on
//! the number of messages.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod chunk;
mod crc24;
mod error;
mod fault;
mod files;
mod filter;
mod format;
mod jobs;
mod log;
mod read;
mod recover;
mod scan;
mod tracking;

pub use chunk::{
    BuildError, Chunk, ChunkBuilder, ChunkFault, ChunkHeader, ChunkKind, Entries, Entry, EntryBody,
    FULL_CHUNK_BYTES, HEADER_BYTES, MAX_CHUNK_BYTES, MAX_ENTRIES, MAX_ENTRY_BYTES,
    MAX_TRAILER_BYTES, SubBatch, SubBatchMessages, snapshot_chunk,
};
pub use error::LogError;
pub use files::{delete_stream, list_streams, read_machine, write_machine};
pub use filter::{FilterMatcher, MAX_FILTER_BYTES, MIN_FILTER_BYTES};
pub use format::{EpochStart, Seal};
pub use jobs::{AppendJob, Appended, MaintenanceJob, MaintenanceResult};
pub use log::{
    AppendError, Deduplication, EpochEnd, LogConfig, MAX_JOB_BYTES, MAX_PENDING_BYTES,
    MAX_SEGMENT_BYTES, MAX_SEGMENT_CHUNKS, Retention, Segment, StreamLog, TruncateError,
};
pub use read::{ChunkReader, FileRange, LocatedChunk, LogView, Start};
pub use recover::{Cut, FirstMessage, read_seal};
pub use scan::ScanFault;
pub use tracking::{
    MAX_NAME_BYTES, MAX_OFFSETS, MAX_SEQUENCES, MAX_SNAPSHOT_BYTES, ProducerSequence, Tracking,
    TrackingRecord, TrackingRecords,
};

#[cfg(test)]
mod tests;
