//! The segment files of one group, as its log reads them.

use crate::ReadError;
use crate::entry::MAX_NUMBER;
use env::planted::{self, Bug};
use segment::{LiveSet, Segment, SegmentError, SegmentName};
use std::sync::Arc;
use wal::{Entry, GroupId};

/// Ascending by the order of writing.
#[derive(Debug)]
pub struct Segments {
    group: GroupId,
    list: Vec<Arc<Segment>>,
}

/// What a checkpoint leaves to do with segments.
#[derive(Debug, Default)]
pub struct Garbage {
    /// Nothing in them is read any more.
    pub dead: Vec<SegmentName>,
    /// Less than half of them is.
    pub sparse: Vec<Arc<Segment>>,
}

impl Segments {
    pub fn new(group: GroupId, mut list: Vec<Arc<Segment>>) -> Segments {
        list.sort_by_key(|s| s.meta().name.n);
        Segments { group, list }
    }

    pub fn add(&mut self, segments: Vec<Arc<Segment>>) {
        self.list.extend(segments);
        self.list.sort_by_key(|s| s.meta().name.n);
    }

    pub fn remove(&mut self, names: &[SegmentName]) {
        self.list.retain(|s| !names.contains(&s.meta().name));
    }

    pub fn all(&self) -> &[Arc<Segment>] {
        &self.list
    }

    /// Whether some segment goes from below `index` to above it. It need not hold that entry: what a transfer that was
    /// cut off left behind has holes.
    pub fn span(&self, index: u64) -> bool {
        self.list.iter().any(|s| s.term(index).is_some())
    }

    /// Whether an entry is there for certain, without a look at the disk.
    pub fn surely_hold(&self, index: u64) -> bool {
        let mut covering = self.list.iter().filter(|s| s.term(index).is_some());
        covering.any(|s| s.is_dense())
    }

    /// Whether an entry is there; reads it when that is the only way to tell.
    pub fn hold(&self, index: u64) -> Result<bool, ReadError> {
        if self.surely_hold(index) {
            return Ok(true);
        }
        match self.read(index) {
            Ok(_) => Ok(true),
            Err(ReadError::Gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn read(&self, index: u64) -> Result<Entry, ReadError> {
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
    pub fn release(&self) {
        self.list.iter().for_each(|s| s.release());
    }

    /// Entries in `keep` and above `from` count as alive.
    pub fn garbage(&self, keep: &LiveSet) -> Garbage {
        let mut garbage = Garbage::default();
        for segment in &self.list {
            let meta = segment.meta();
            let last = meta.last - u64::from(planted::is(Bug::SegmentDeletedTooFar));
            let alive = keep.count_in(meta.name.first, last);
            if alive == 0 {
                garbage.dead.push(meta.name);
            } else if alive.saturating_mul(2) < u64::from(meta.count) || segment.rebuilt() {
                garbage.sparse.push(Arc::clone(segment));
            }
        }
        garbage
    }
}

/// What is kept of a group's segments: `live`, and all of the log above `compacted`.
pub fn keep_set(live: &LiveSet, compacted: u64) -> LiveSet {
    let mut keep = LiveSet::default();
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
