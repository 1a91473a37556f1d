//! Writing segments.

use crate::files::{TEMPORARY, ensure_dir, group_dir, next_n, segment_path};
use crate::format::{self, HEADER_BYTES, SegmentIndex};
use crate::{Segment, SegmentError, SegmentName};
use env::{Disk, File};
use slots::IndexSet;
use std::borrow::Borrow;
use wal::{Entry, GroupId, MAX_RECORD_BYTES};

/// A segment is completed if the next entry would exceed this size in bytes.
pub const MAX_SEGMENT_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 1 << 20;

/// Name, range and size of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// The group that the segment belongs to.
    pub group: GroupId,
    /// Name of the segment.
    pub name: SegmentName,
    /// Index of the last entry.
    pub last: u64,
    /// Number of entries; fewer than `last - first + 1` if there are gaps.
    pub count: u32,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Writes the entries, ascending and possibly with gaps, to new segments: usually one, none without entries.
/// Everything is durable on return. On an error, no valid file of this call is left.
pub fn write_segments<E: Borrow<Entry>>(
    disk: &dyn Disk,
    group: GroupId,
    entries: impl IntoIterator<Item = E>,
) -> Result<Vec<SegmentMeta>, SegmentError> {
    let mut finished = Vec::new();
    let mut batch = SegmentBatch {
        disk,
        group,
        next_n: None,
        current: None,
    };
    let result = batch.write_all(entries, &mut finished);
    if result.is_err() {
        batch.remove_current();
        for segment in &finished {
            // Report the original error. A leftover holds valid entries, or is removed at the next start.
            let _ = disk.remove(&segment_path(group, segment.name));
        }
    }
    result.map(|()| finished)
}

/// Copies the entries of `segment` that are in `live` to a new segment, or to none if there are no such
/// entries. The old segment stays until [`crate::delete_segment`].
pub fn rewrite(
    disk: &dyn Disk,
    segment: &Segment,
    live: &IndexSet,
) -> Result<Vec<SegmentMeta>, SegmentError> {
    let group = segment.meta().group;
    let mut failed = None;
    let entries = segment.entries().map_while(|entry| match entry {
        Ok(entry) => Some(entry),
        Err(error) => {
            failed = Some(error);
            None
        }
    });
    let written = write_segments(disk, group, entries.filter(|e| live.contains(e.index)));
    match failed {
        Some(error) => {
            for meta in written.unwrap_or_default() {
                crate::delete_segment(disk, group, meta.name)?;
            }
            Err(error)
        }
        None => written,
    }
}

/// The state of one [`write_segments`] call.
struct SegmentBatch<'a> {
    disk: &'a dyn Disk,
    group: GroupId,
    next_n: Option<u32>,
    current: Option<SegmentInProgress>,
}

/// The segment being written.
struct SegmentInProgress {
    name: SegmentName,
    temporary: String,
    file: Box<dyn File>,
    index: SegmentIndex,
    /// Encoded bytes that are not written yet; `offset` is their place in the file.
    buffer: Vec<u8>,
    offset: u64,
}

impl SegmentInProgress {
    /// Length of the file so far, in bytes.
    fn bytes(&self) -> u64 {
        self.offset + self.buffer.len() as u64
    }

    fn flush(&mut self) -> Result<(), SegmentError> {
        self.file
            .write_at(self.offset, &self.buffer)
            .map_err(|e| SegmentError::io(&self.temporary, &e))?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl SegmentBatch<'_> {
    fn write_all<E: Borrow<Entry>>(
        &mut self,
        entries: impl IntoIterator<Item = E>,
        finished: &mut Vec<SegmentMeta>,
    ) -> Result<(), SegmentError> {
        let mut after = None;
        for entry in entries {
            let entry = entry.borrow();
            if let Some(after) = after.filter(|a| entry.index <= *a) {
                return Err(SegmentError::Unordered {
                    group: self.group,
                    after,
                    index: entry.index,
                });
            }
            after = Some(entry.index);
            self.add(entry, finished)?;
        }
        self.finish(finished)
    }

    fn add(&mut self, entry: &Entry, finished: &mut Vec<SegmentMeta>) -> Result<(), SegmentError> {
        let len = format::entry_len(entry);
        if len > MAX_RECORD_BYTES {
            return Err(SegmentError::TooLarge {
                file: group_dir(self.group),
                what: "an entry",
                bytes: len,
                limit: MAX_RECORD_BYTES,
            });
        }
        let has_room = |c: &SegmentInProgress| {
            c.bytes() + len <= MAX_SEGMENT_BYTES
                && entry.index - c.name.first <= u64::from(u32::MAX)
        };
        if !self.current.as_ref().is_some_and(has_room) {
            self.finish(finished)?;
            self.start(entry.index)?;
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        // Neither conversion truncates: see `has_room`, and a segment is smaller than 4 GiB.
        let relative = (entry.index - current.name.first) as u32;
        let offset = current.bytes() as u32;
        format::encode_entry(self.group, entry, &mut current.buffer);
        current
            .index
            .add(relative, entry.index, entry.term, offset, len as u32);
        if current.buffer.len() >= BUFFER_BYTES {
            current.flush()?;
        }
        Ok(())
    }

    fn start(&mut self, first: u64) -> Result<(), SegmentError> {
        let n = match self.next_n {
            Some(n) => n,
            None => next_n(&ensure_dir(self.disk, self.group)?),
        };
        self.next_n = Some(n.saturating_add(1));
        let name = SegmentName { first, n };
        let temporary = segment_path(self.group, name) + TEMPORARY;
        let file = crate::files::create_temporary(self.disk, &temporary)?;
        self.current = Some(SegmentInProgress {
            name,
            temporary,
            file,
            index: SegmentIndex::default(),
            buffer: format::encode_header(self.group, name),
            offset: 0,
        });
        Ok(())
    }

    fn finish(&mut self, finished: &mut Vec<SegmentMeta>) -> Result<(), SegmentError> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        debug_assert!(u64::from(current.index.end) > HEADER_BYTES);
        let mark = format::encode_end_mark(self.group, current.index.count);
        current.buffer.extend_from_slice(&mark);
        let footer_at = current.bytes();
        let mut footer = Vec::new();
        current.index.encode_footer(&mut footer);
        current.buffer.extend_from_slice(&footer);
        let trailer = format::encode_trailer(self.group, &footer, footer_at);
        current.buffer.extend_from_slice(&trailer);
        current.flush()?;
        let path = segment_path(self.group, current.name);
        let meta = SegmentMeta {
            group: self.group,
            name: current.name,
            last: current.index.last,
            count: current.index.count,
            bytes: current.bytes(),
        };
        crate::files::publish(self.disk, &*current.file, &current.temporary, &path)?;
        self.current = None;
        finished.push(meta);
        Ok(())
    }

    fn remove_current(&mut self) {
        if let Some(current) = self.current.take() {
            // Report the original error; `list_group` removes a leftover.
            let _ = self.disk.remove(&current.temporary);
        }
    }
}
