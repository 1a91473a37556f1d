//! The segment files of one group, as its log reads them.

use crate::ReadError;
use crate::entry::MAX_NUMBER;
use env::planted::{self, Bug};
use segment::{Segment, SegmentError, SegmentName};
use slots::IndexSet;
use std::sync::Arc;
use wal::{Entry, GroupId};

/// Ascending by sequence number, which is the order of writing.
#[derive(Debug)]
pub(crate) struct Segments {
    group: GroupId,
    list: Vec<Arc<Segment>>,
}

/// Segments that a checkpoint made obsolete.
#[derive(Debug, Default)]
pub(crate) struct UnneededSegments {
    /// Segments without a live entry.
    pub dead: Vec<SegmentName>,
    /// Segments with less than half of their entries live, or rebuilt after damage to their index.
    pub sparse: Vec<Arc<Segment>>,
}

impl Segments {
    pub(crate) fn new(group: GroupId, mut list: Vec<Arc<Segment>>) -> Segments {
        list.sort_by_key(|s| s.meta().name.n);
        Segments { group, list }
    }

    pub(crate) fn add(&mut self, segments: Vec<Arc<Segment>>) {
        self.list.extend(segments);
        self.list.sort_by_key(|s| s.meta().name.n);
    }

    pub(crate) fn remove(&mut self, names: &[SegmentName]) {
        self.list.retain(|s| !names.contains(&s.meta().name));
    }

    pub(crate) fn all(&self) -> &[Arc<Segment>] {
        &self.list
    }

    /// True if `index` is within the range of some segment. The segment need not hold that entry: segments of
    /// an aborted transfer have gaps.
    pub(crate) fn spans(&self, index: u64) -> bool {
        self.list.iter().any(|s| s.term(index).is_some())
    }

    /// True if the entry is certainly stored, without reading the disk.
    pub(crate) fn certainly_contains(&self, index: u64) -> bool {
        let mut covering = self.list.iter().filter(|s| s.term(index).is_some());
        covering.any(|s| s.is_dense())
    }

    /// True if the entry is stored; reads the disk if only that can tell.
    pub(crate) fn contains(&self, index: u64) -> Result<bool, ReadError> {
        if self.certainly_contains(index) {
            return Ok(true);
        }
        match self.read(index) {
            Ok(_) => Ok(true),
            Err(ReadError::Gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn read(&self, index: u64) -> Result<Entry, ReadError> {
        for segment in self.list.iter().rev() {
            match segment.read(index) {
                Ok(Some(entry)) => return Ok(entry),
                Ok(None) => {}
                Err(error) => return Err(read_error(self.group, &error)),
            }
        }
        Err(ReadError::Gone)
    }

    /// Closes files until they are read again.
    pub(crate) fn release(&self) {
        self.list.iter().for_each(|s| s.release());
    }

    /// Finds segments with few or no entries in `keep`.
    pub(crate) fn garbage(&self, keep: &IndexSet) -> UnneededSegments {
        let mut garbage = UnneededSegments::default();
        for segment in &self.list {
            let meta = segment.meta();
            let last = meta.last - u64::from(planted::is(Bug::SegmentDeletedTooFar));
            let live_count = keep.count_in(meta.name.first, last);
            if live_count == 0 {
                garbage.dead.push(meta.name);
            } else if live_count.saturating_mul(2) < u64::from(meta.count) || segment.rebuilt() {
                garbage.sparse.push(Arc::clone(segment));
            }
        }
        garbage
    }
}

/// The entries that must stay in segments: `live`, and the whole log above `compacted`.
pub(crate) fn keep_set(live: &IndexSet, compacted: u64) -> IndexSet {
    let mut keep = IndexSet::default();
    for (first, last) in live.ranges() {
        if *first > compacted {
            break;
        }
        keep.push(*first, (*last).min(compacted));
    }
    keep.push(compacted + 1, MAX_NUMBER);
    keep
}

fn read_error(group: GroupId, error: &SegmentError) -> ReadError {
    let what = error.to_string();
    match error.is_passing() {
        true => ReadError::Shortage { group, what },
        false => ReadError::Corrupt { group, what },
    }
}
