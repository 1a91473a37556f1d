//! Segment files of a Raft group: entries that outlive the write-ahead log, and the set of entries that are
//! still live.
//!
//! A group's files are in `segments/<group>/`, with hexadecimal numbers:
//! - `<first>-<n>.seg`: entries in ascending order, written once. `n` increases within the group: if two
//!   segments hold the same index, the one with the higher `n` was written later.
//! - `checkpoint-<index>`: the state machine after `index`, and the entries at or below it that are still
//!   live.
//!
//! Each file is written under a temporary name and renamed once it is durable, so a file with a final name is
//! complete. All calls block and belong in storage jobs, except [`Segment::read`], which mostly hits the page
//! cache. Errors are [`SegmentError`]s that name the file.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod checkpoint;
mod error;
mod files;
mod format;
mod read;
mod write;

pub use checkpoint::{Checkpoint, MAX_CHECKPOINT_BYTES, read_checkpoint, write_checkpoint};
pub use error::SegmentError;
pub use files::{
    GroupFiles, SegmentName, delete_checkpoint, delete_group, delete_segment, list_group,
    list_groups,
};
pub use read::Segment;
pub use write::{MAX_SEGMENT_BYTES, SegmentMeta, rewrite, write_segments};
