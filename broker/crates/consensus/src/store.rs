//! A group's log: the tail in memory, what is older in segments, and what raft-rs sees of it.
//!
//! raft-rs sees all entries above `compacted`. Below it only what the state machine still reads is kept.
//! Segments hold committed entries alone, so nothing in them is ever replaced.

use crate::entry::{self, Position};
use crate::jobs::FlushPlan;
use crate::snapshot::Checkpoint;
use crate::{GroupId, Membership, ReadError};
use bytes::Bytes;
use env::planted::{self, Bug};
use raft::eraftpb::{self, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use segment::LiveSet;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use wal::Entry;

mod segments;

pub use segments::{Segments, keep_set};

/// What an entry costs in memory besides its data.
const ENTRY_OVERHEAD: usize = 64;

fn cost(entry: &Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD
}

#[derive(Debug)]
pub struct LogStore {
    group: GroupId,
    /// What raft-rs starts with; not kept up to date.
    initial: (HardState, Membership),
    /// Entries at or below are not part of raft-rs's log any more.
    compacted: Position,
    checkpoint: Checkpoint,
    /// The newest entries, without gaps.
    mem: VecDeque<Entry>,
    /// Live entries at or below `compacted` that are in no segment yet.
    retained: BTreeMap<u64, Entry>,
    mem_bytes: usize,
    /// Where in the log above `compacted` each term begins: (first index, term), ascending.
    terms: VecDeque<(u64, u64)>,
    /// Everything in `compacted..=flushed` is in segments.
    flushed: u64,
    /// Live indexes between `compacted` and the checkpoint's.
    live_tail: LiveSet,
    segments: Segments,
    /// An entry is damaged or missing. raft-rs was told to wait; the host must stop the group.
    fault: RefCell<Option<ReadError>>,
}

impl LogStore {
    /// A log that begins behind `compacted`, with `checkpoint` for whoever needs what was before.
    pub fn new(
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
            live_tail: LiveSet::default(),
            segments,
            fault: RefCell::new(None),
        }
    }

    /// What raft-rs is to start with.
    pub fn set_hard_state(&mut self, state: HardState) {
        self.initial.0 = state;
    }

    pub fn compacted(&self) -> Position {
        self.compacted
    }

    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    pub fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    /// Bytes of entries in memory.
    pub fn mem_bytes(&self) -> usize {
        self.mem_bytes
    }

    pub fn first(&self) -> u64 {
        self.compacted.index + 1
    }

    pub fn last(&self) -> u64 {
        match self.mem.back() {
            Some(e) => e.index,
            None => self.flushed,
        }
    }

    fn mem_first(&self) -> u64 {
        self.mem.front().map_or(self.flushed + 1, |e| e.index)
    }

    /// The term of an entry of raft-rs's log or of the one before it. Never reads the disk.
    pub fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.compacted.index {
            return Some(self.compacted.term);
        }
        if index < self.first() || index > self.last() {
            return None;
        }
        let after = self.terms.partition_point(|(first, _)| *first <= index);
        self.terms.get(after.checked_sub(1)?).map(|(_, term)| *term)
    }

    /// Adds entries; those at their indexes and behind are replaced.
    pub fn append(&mut self, entries: impl Iterator<Item = Entry>) {
        for entry in entries {
            while self.mem.back().is_some_and(|e| e.index >= entry.index) {
                if let Some(replaced) = self.mem.pop_back() {
                    self.mem_bytes -= cost(&replaced);
                }
            }
            while self.terms.back().is_some_and(|(at, _)| *at >= entry.index) {
                self.terms.pop_back();
            }
            debug_assert_eq!(entry.index, self.last() + 1);
            if self.terms.back().is_none_or(|(_, t)| *t != entry.term) {
                self.terms.push_back((entry.index, entry.term));
            }
            self.mem_bytes += cost(&entry);
            self.mem.push_back(entry);
        }
    }

    /// An entry that is live at or below the log's beginning, found in the write-ahead log after a restart.
    pub fn retain(&mut self, entry: Entry) {
        self.mem_bytes += cost(&entry);
        if let Some(old) = self.retained.insert(entry.index, entry) {
            self.mem_bytes -= cost(&old);
        }
    }

    /// After a restart: entries up to and with `index` are in segments although they are in memory too.
    pub fn set_flushed(&mut self, index: u64) {
        self.flushed = self.flushed.max(index);
    }

    fn in_memory(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.mem.front()?.index)?;
        self.mem.get(usize::try_from(at).ok()?)
    }

    /// Any entry that is still there.
    pub fn read(&self, index: u64) -> Result<Entry, ReadError> {
        match self.in_memory(index).or_else(|| self.retained.get(&index)) {
            Some(entry) => Ok(entry.clone()),
            None => self.segments.read(index),
        }
    }

    /// The entries `low..=high` that are in memory, for writing them to the log again.
    pub fn memory_range(&self, low: u64, high: u64) -> impl Iterator<Item = &Entry> {
        let skip = low.saturating_sub(self.mem_first());
        self.mem
            .iter()
            .skip(usize::try_from(skip).unwrap_or(usize::MAX))
            .take_while(move |e| e.index <= high)
    }

    /// The first entry that is in memory only, or would be.
    pub fn first_unflushed(&self) -> u64 {
        self.flushed.max(self.compacted.index) + 1
    }

    pub fn founding_is_on_disk(&mut self) {
        if self.checkpoint.is_founding() {
            self.checkpoint.on_disk = true;
        }
    }

    /// Bytes in memory that a flush up to `upto` would have to move.
    pub fn unflushed_bytes(&self, upto: u64) -> usize {
        let retained: usize = self.retained.values().map(cost).sum();
        let from = self.first_unflushed();
        retained + self.memory_range(from, upto).map(cost).sum::<usize>()
    }

    /// Bytes in memory of what is above `index`.
    pub fn bytes_above(&self, index: u64) -> usize {
        self.memory_range(index + 1, u64::MAX).map(cost).sum()
    }

    pub fn has_retained(&self) -> bool {
        !self.retained.is_empty()
    }

    /// Whether something at or below `upto` is in memory only.
    pub fn needs_flush(&self, upto: u64) -> bool {
        self.has_retained() || upto >= self.first_unflushed()
    }

    /// What a flush up to `upto` writes. `pin`: the log above it must stay complete.
    pub fn plan_flush(&mut self, upto: u64, pin: Option<u64>) -> FlushPlan {
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

    /// What [`Self::plan_flush`] gave is in segments.
    pub fn flushed(&mut self, upto: u64) {
        let keep = self.retained.split_off(&(upto + 1));
        let gone = std::mem::replace(&mut self.retained, keep);
        self.mem_bytes -= gone.values().map(cost).sum::<usize>();
        self.flushed = self.flushed.max(upto);
        self.drop_flushed(upto);
    }

    /// Entries up to and with `upto` that are in segments leave memory.
    pub fn drop_flushed(&mut self, upto: u64) {
        let upto = upto.min(self.flushed);
        while self.mem.front().is_some_and(|e| e.index <= upto) {
            if let Some(e) = self.mem.pop_front() {
                self.mem_bytes -= cost(&e);
            }
        }
    }

    /// A newer checkpoint is durable; `live` are the indexes at or below it that are still read. The log that
    /// raft-rs sees begins `margin` entries before it from now on, not above `pin`.
    pub fn checkpointed(
        &mut self,
        checkpoint: Checkpoint,
        live: &LiveSet,
        margin: u64,
        pin: Option<u64>,
    ) {
        let index = checkpoint.position.index;
        let mut freed = 0;
        self.retained.retain(|i, e| {
            let keep = live.contains(*i);
            if !keep {
                freed += cost(e);
            }
            keep
        });
        self.mem_bytes -= freed;
        self.checkpoint = checkpoint;
        self.live_tail = live.clone();
        let target = index.saturating_sub(margin);
        self.compact(pin.map_or(target, |p| p.min(target)));
        let mut tail = LiveSet::default();
        for (first, last) in live.ranges() {
            tail.push((*first).max(self.first()), *last);
        }
        self.live_tail = tail;
    }

    /// Moves the beginning of raft-rs's log to `to` (at most the checkpoint's index).
    fn compact(&mut self, to: u64) {
        let to = to.min(self.checkpoint.position.index);
        if to <= self.compacted.index {
            return;
        }
        let Some(term) = self.term_of(to) else {
            return;
        };
        self.compacted = Position { index: to, term };
        while self.mem.front().is_some_and(|e| e.index <= to) {
            let Some(e) = self.mem.pop_front() else { break };
            let live = self.live_tail.contains(e.index) && !planted::is(Bug::LiveEntryForgotten);
            if e.index > self.flushed && live {
                self.retained.insert(e.index, e);
            } else {
                self.mem_bytes -= cost(&e);
            }
        }
        self.flushed = self.flushed.max(to);
        // The last beginning at or below stays: it says the term of what follows.
        while self.terms.get(1).is_some_and(|(first, _)| *first <= to + 1) {
            self.terms.pop_front();
        }
    }

    /// What is in memory at or below the checkpoint: for those who read its live entries.
    pub fn memory_of_checkpoint(&self) -> BTreeMap<u64, Entry> {
        let at = self.checkpoint.position.index;
        let tail = self.memory_range(self.compacted.index + 1, at);
        let tail = tail.map(|e| (e.index, e.clone()));
        self.retained
            .iter()
            .map(|(i, e)| (*i, e.clone()))
            .chain(tail)
            .collect()
    }

    /// The leader's checkpoint takes the place of this log.
    pub fn reset(&mut self, checkpoint: Checkpoint) {
        self.compacted = checkpoint.position;
        self.flushed = checkpoint.position.index;
        self.checkpoint = checkpoint;
        self.mem.clear();
        self.retained.clear();
        self.terms.clear();
        self.live_tail = LiveSet::default();
        self.mem_bytes = 0;
    }

    /// A checkpoint came from the leader although the log turned out to reach beyond it: a newer place to begin.
    pub fn adopt(&mut self, checkpoint: Checkpoint, committed: u64) {
        let at = checkpoint.position;
        let ours = at.index <= committed && self.term_of(at.index) == Some(at.term);
        if ours && at.index > self.checkpoint.position.index {
            self.checkpoint = checkpoint;
            self.live_tail = LiveSet::default();
        }
    }

    /// The error that made raft-rs wait.
    pub fn take_fault(&self) -> Option<ReadError> {
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

    pub fn damaged(&self, what: impl Into<String>) -> ReadError {
        ReadError::Corrupt {
            group: self.group,
            what: what.into(),
        }
    }

    /// A command that the state machine reads again.
    pub fn command(&self, index: u64) -> Result<Bytes, ReadError> {
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
                    *self.fault.borrow_mut() = Some(self.damaged(what));
                }
                ReadError::Corrupt { .. } => *self.fault.borrow_mut() = Some(error),
                // raft-rs asks again with the next answer to a heartbeat.
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

    /// Only where and with which members: the host sends the contents itself.
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
