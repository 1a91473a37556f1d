//! A group's log: the tail in memory, older entries in segments, and the view of it that raft-rs gets.
//!
//! raft-rs sees all entries above `compacted`. At or below it, only entries that the state machine still
//! reads are kept. Segments hold committed entries only, so no entry in them is ever replaced.

use crate::entry::{self, Position};
use crate::jobs::FlushPlan;
use crate::snapshot::Checkpoint;
use crate::{GroupId, Membership, ReadError};
use bytes::Bytes;
use env::planted::{self, Bug};
use raft::eraftpb::{self, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use slots::IndexSet;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use wal::Entry;

mod segments;

pub(crate) use segments::{Segments, keep_set};

/// Memory used by an entry in addition to its data.
const ENTRY_OVERHEAD: usize = 64;

fn memory_cost(entry: &Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD
}

/// The log of one group; implements [`Storage`] for raft-rs.
#[derive(Debug)]
pub(crate) struct LogStore {
    group: GroupId,
    /// The state that raft-rs starts with; not updated afterwards.
    initial: (HardState, Membership),
    /// Entries at or below this position are no longer part of raft-rs's log.
    compacted: Position,
    checkpoint: Checkpoint,
    /// The newest entries, without gaps.
    mem: VecDeque<Entry>,
    /// Live entries at or below `compacted` that are not in a segment yet.
    retained: BTreeMap<u64, Entry>,
    mem_bytes: usize,
    /// Where each term begins in the log above `compacted`: (first index, term), ascending.
    terms: VecDeque<(u64, u64)>,
    /// Every entry in `compacted..=flushed` is in segments.
    flushed: u64,
    /// Live indexes above `compacted` and at or below the checkpoint's index.
    live_tail: IndexSet,
    segments: Segments,
    /// An entry is damaged or missing. raft-rs was told to wait; the host must stop the group.
    fault: RefCell<Option<ReadError>>,
}

impl LogStore {
    /// An empty log that begins after `compacted`, with `checkpoint` for members that need earlier entries.
    pub(crate) fn new(
        group: GroupId,
        compacted: Position,
        checkpoint: Checkpoint,
        segments: Segments,
    ) -> LogStore {
        LogStore {
            group,
            initial: (HardState::default(), checkpoint.membership.clone()),
            compacted,
            flushed: compacted.index,
            checkpoint,
            mem: VecDeque::new(),
            retained: BTreeMap::new(),
            mem_bytes: 0,
            terms: VecDeque::new(),
            live_tail: IndexSet::default(),
            segments,
            fault: RefCell::new(None),
        }
    }

    /// Sets the state that raft-rs starts with.
    pub(crate) fn set_hard_state(&mut self, state: HardState) {
        self.initial.0 = state;
    }

    pub(crate) fn compacted(&self) -> Position {
        self.compacted
    }

    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(crate) fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    /// Bytes of entries in memory.
    pub(crate) fn mem_bytes(&self) -> usize {
        self.mem_bytes
    }

    pub(crate) fn first(&self) -> u64 {
        self.compacted.index + 1
    }

    pub(crate) fn last(&self) -> u64 {
        match self.mem.back() {
            Some(e) => e.index,
            None => self.flushed,
        }
    }

    fn mem_first(&self) -> u64 {
        self.mem.front().map_or(self.flushed + 1, |e| e.index)
    }

    /// The term of an entry of raft-rs's log or of the one before it. Never reads the disk.
    pub(crate) fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.compacted.index {
            return Some(self.compacted.term);
        }
        if index < self.first() || index > self.last() {
            return None;
        }
        let after = self.terms.partition_point(|(first, _)| *first <= index);
        self.terms.get(after.checked_sub(1)?).map(|(_, term)| *term)
    }

    /// Appends entries. An entry at an existing index replaces it and all entries after it.
    pub(crate) fn append(&mut self, entries: impl Iterator<Item = Entry>) {
        for entry in entries {
            while self.mem.back().is_some_and(|e| e.index >= entry.index) {
                if let Some(replaced) = self.mem.pop_back() {
                    self.mem_bytes -= memory_cost(&replaced);
                }
            }
            while self.terms.back().is_some_and(|(at, _)| *at >= entry.index) {
                self.terms.pop_back();
            }
            debug_assert!(entry.term > 0, "entry {} has no term", entry.index);
            debug_assert_eq!(entry.index, self.last() + 1);
            if self.terms.back().is_none_or(|(_, t)| *t != entry.term) {
                self.terms.push_back((entry.index, entry.term));
            }
            self.mem_bytes += memory_cost(&entry);
            self.mem.push_back(entry);
        }
    }

    /// Keeps a live entry at or below the beginning of the log, found in the write-ahead log after a restart.
    pub(crate) fn retain_live(&mut self, entry: Entry) {
        self.mem_bytes += memory_cost(&entry);
        if let Some(old) = self.retained.insert(entry.index, entry) {
            self.mem_bytes -= memory_cost(&old);
        }
    }

    /// After a restart: entries up to and including `index` are in segments, and may be in memory too.
    pub(crate) fn set_flushed(&mut self, index: u64) {
        self.flushed = self.flushed.max(index);
    }

    fn in_memory(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.mem.front()?.index)?;
        self.mem.get(usize::try_from(at).ok()?)
    }

    /// Reads any entry that is still stored.
    pub(crate) fn read(&self, index: u64) -> Result<Entry, ReadError> {
        match self.in_memory(index).or_else(|| self.retained.get(&index)) {
            Some(entry) => Ok(entry.clone()),
            None => self.segments.read(index),
        }
    }

    /// The entries of `low..=high` that are in memory, for writing them to the log again.
    pub(crate) fn memory_range(&self, low: u64, high: u64) -> impl Iterator<Item = &Entry> {
        let skip = low.saturating_sub(self.mem_first());
        self.mem
            .iter()
            .skip(usize::try_from(skip).unwrap_or(usize::MAX))
            .take_while(move |e| e.index <= high)
    }

    /// The index from which on entries are in memory only.
    pub(crate) fn first_unflushed(&self) -> u64 {
        self.flushed.max(self.compacted.index) + 1
    }

    pub(crate) fn mark_founding_on_disk(&mut self) {
        if self.checkpoint.is_founding() {
            self.checkpoint.on_disk = true;
        }
    }

    /// Bytes in memory that a flush up to `upto` would have to write.
    pub(crate) fn unflushed_bytes(&self, upto: u64) -> usize {
        let retained: usize = self.retained.values().map(memory_cost).sum();
        let from = self.first_unflushed();
        retained
            + self
                .memory_range(from, upto)
                .map(memory_cost)
                .sum::<usize>()
    }

    /// Bytes in memory of the entries above `index`.
    pub(crate) fn bytes_above(&self, index: u64) -> usize {
        self.memory_range(index + 1, u64::MAX)
            .map(memory_cost)
            .sum()
    }

    pub(crate) fn has_retained(&self) -> bool {
        !self.retained.is_empty()
    }

    /// True if an entry at or below `upto` is in memory only.
    pub(crate) fn needs_flush(&self, upto: u64) -> bool {
        self.has_retained() || upto >= self.first_unflushed()
    }

    /// The entries that a flush up to `upto` writes. The log above `pin` must stay complete.
    pub(crate) fn plan_flush(&mut self, upto: u64, pin: Option<u64>) -> FlushPlan {
        let limit = pin.map_or(self.checkpoint.position.index, |p| {
            p.min(self.checkpoint.position.index)
        });
        self.compact(limit);
        let from = self.first_unflushed();
        let mut entries: Vec<Entry> = self.retained.values().cloned().collect();
        entries.extend(self.memory_range(from, upto).cloned());
        FlushPlan {
            upto: upto.max(self.compacted.index),
            entries,
        }
    }

    /// The entries of [`Self::plan_flush`] are in segments.
    pub(crate) fn mark_flushed(&mut self, upto: u64) {
        debug_assert!(
            upto <= self.last(),
            "entries up to {upto} are flushed, but the log ends at {}",
            self.last()
        );
        let keep = self.retained.split_off(&(upto + 1));
        let flushed_entries = std::mem::replace(&mut self.retained, keep);
        self.mem_bytes -= flushed_entries.values().map(memory_cost).sum::<usize>();
        self.flushed = self.flushed.max(upto);
        self.drop_flushed(upto);
    }

    /// Drops entries up to and including `upto` from memory if they are in segments.
    pub(crate) fn drop_flushed(&mut self, upto: u64) {
        let upto = upto.min(self.flushed);
        while self.mem.front().is_some_and(|e| e.index <= upto) {
            if let Some(e) = self.mem.pop_front() {
                self.mem_bytes -= memory_cost(&e);
            }
        }
    }

    /// A newer checkpoint is durable; `live` holds the indexes at or below it that are still read. From now
    /// on raft-rs's log begins `margin` entries before the checkpoint, but not above `pin`.
    pub(crate) fn advance_checkpoint(
        &mut self,
        checkpoint: Checkpoint,
        live: &IndexSet,
        margin: u64,
        pin: Option<u64>,
    ) {
        let index = checkpoint.position.index;
        debug_assert!(
            live.ranges().last().is_none_or(|(_, last)| *last <= index),
            "a live entry is above its checkpoint"
        );
        let mut freed = 0;
        self.retained.retain(|i, e| {
            let keep = live.contains(*i);
            if !keep {
                freed += memory_cost(e);
            }
            keep
        });
        debug_assert!(
            self.mem_bytes >= freed,
            "retained entries of {freed} bytes were not counted"
        );
        self.mem_bytes -= freed;
        self.checkpoint = checkpoint;
        self.live_tail = live.clone();
        let target = index.saturating_sub(margin);
        self.compact(pin.map_or(target, |p| p.min(target)));
        let mut tail = IndexSet::default();
        for (first, last) in live.ranges() {
            tail.push((*first).max(self.first()), *last);
        }
        self.live_tail = tail;
    }

    /// Moves the beginning of raft-rs's log to `to`, at most to the checkpoint's index.
    fn compact(&mut self, to: u64) {
        let to = to.min(self.checkpoint.position.index);
        if to <= self.compacted.index {
            return;
        }
        let Some(term) = self.term_of(to) else {
            return;
        };
        debug_assert!(to <= self.last(), "the log is compacted beyond its end");
        self.compacted = Position { index: to, term };
        while self.mem.front().is_some_and(|e| e.index <= to) {
            let Some(e) = self.mem.pop_front() else { break };
            let live = self.live_tail.contains(e.index) && !planted::is(Bug::LiveEntryForgotten);
            if e.index > self.flushed && live {
                self.retained.insert(e.index, e);
            } else {
                self.mem_bytes -= memory_cost(&e);
            }
        }
        self.flushed = self.flushed.max(to);
        // The last term that begins at or below `to + 1` stays: the entries above belong to it.
        while self.terms.get(1).is_some_and(|(first, _)| *first <= to + 1) {
            self.terms.pop_front();
        }
    }

    /// The entries at or below the checkpoint that are in memory, for a transfer of its live entries.
    pub(crate) fn checkpoint_entries_in_memory(&self) -> BTreeMap<u64, Entry> {
        let at = self.checkpoint.position.index;
        let tail = self.memory_range(self.compacted.index + 1, at);
        let tail = tail.map(|e| (e.index, e.clone()));
        self.retained
            .iter()
            .map(|(i, e)| (*i, e.clone()))
            .chain(tail)
            .collect()
    }

    /// Replaces this log with the leader's checkpoint.
    pub(crate) fn reset(&mut self, checkpoint: Checkpoint) {
        self.compacted = checkpoint.position;
        self.flushed = checkpoint.position.index;
        self.checkpoint = checkpoint;
        self.mem.clear();
        self.retained.clear();
        self.terms.clear();
        self.live_tail = IndexSet::default();
        self.mem_bytes = 0;
    }

    /// Adopts a checkpoint received from the leader although this log already reaches beyond it: the log may
    /// then begin there.
    pub(crate) fn adopt_checkpoint(&mut self, checkpoint: Checkpoint, committed: u64) {
        let at = checkpoint.position;
        let is_in_log = at.index <= committed && self.term_of(at.index) == Some(at.term);
        if is_in_log && at.index > self.checkpoint.position.index {
            self.checkpoint = checkpoint;
            self.live_tail = IndexSet::default();
        }
    }

    /// Takes the error because of which raft-rs was told to wait.
    pub(crate) fn take_fault(&self) -> Option<ReadError> {
        self.fault.borrow_mut().take()
    }

    fn slice(
        &self,
        low: u64,
        high: u64,
        max: Option<u64>,
    ) -> Result<Vec<eraftpb::Entry>, ReadError> {
        let mut entries = Vec::new();
        let mut bytes = 0u64;
        for index in low..high {
            let e = match self.in_memory(index) {
                Some(e) => entry::to_raft(e),
                None => entry::to_raft(&self.segments.read(index)?),
            };
            bytes += e.data.len() as u64 + 16;
            if !entries.is_empty() && max.is_some_and(|m| bytes > m) {
                break;
            }
            entries.push(e);
        }
        Ok(entries)
    }

    pub(crate) fn corrupt_error(&self, what: impl Into<String>) -> ReadError {
        ReadError::Corrupt {
            group: self.group,
            what: what.into(),
        }
    }

    /// Reads a command for the state machine.
    pub(crate) fn read_command(&self, index: u64) -> Result<Bytes, ReadError> {
        let entry = self.read(index)?;
        match entry.kind {
            entry::NORMAL => Ok(entry.data),
            _ => Err(ReadError::Gone),
        }
    }
}

impl Storage for LogStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState {
            hard_state: self.initial.0.clone(),
            conf_state: entry::to_conf_state(&self.initial.1),
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low < self.first() {
            return Err(StorageError::Compacted.into());
        }
        let high = high.min(self.last() + 1);
        self.slice(low, high, max_size.into()).map_err(|error| {
            match error {
                ReadError::Gone => {
                    let what = format!("an entry between {low} and {high} is missing");
                    *self.fault.borrow_mut() = Some(self.corrupt_error(what));
                }
                ReadError::Corrupt { .. } => *self.fault.borrow_mut() = Some(error),
                // raft-rs retries at the next heartbeat response.
                ReadError::Shortage { .. } => {}
            }
            StorageError::LogTemporarilyUnavailable.into()
        })
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.compacted.index {
            return Err(StorageError::Compacted.into());
        }
        self.term_of(index)
            .ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// Position and members only: the host transfers the contents itself.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let at = self.checkpoint.position;
        if at.index == 0 || at.index < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(self.checkpoint.to_raft())
    }
}

#[cfg(test)]
mod tests;
