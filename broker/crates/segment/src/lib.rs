//! Segment files of a Raft group: entries that outlive the write-ahead log, and which of them are still live.
//!
//! A group's files are in `segments/<group>/`, numbers in hexadecimal:
//! - `<first>-<n>.seg`: entries, ascending, written once. `n` grows in the group: of two segments with the same
//!   index the one with the higher `n` was written later.
//! - `checkpoint-<index>`: the state machine after `index`, and which entries at or below it still live.
//!
//! Each file is made under a temporary name and gets its own when it is durable, so a file that is there is whole.
//! All calls block; they belong in storage jobs, but for [`Segment::read`], which mostly hits the page cache.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod checkpoint;
mod error;
mod files;
mod format;
mod live;
mod read;
mod write;

pub use checkpoint::{Checkpoint, MAX_CHECKPOINT_BYTES, read_checkpoint, write_checkpoint};
pub use error::SegmentError;
pub use files::{
    GroupFiles, SegmentName, delete_checkpoint, delete_group, delete_segment, list_group,
    list_groups,
};
pub use live::LiveSet;
pub use read::Segment;
pub use write::{MAX_SEGMENT_BYTES, SegmentMeta, rewrite, write_segments};
