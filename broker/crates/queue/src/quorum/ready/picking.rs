//! Ready messages by their location in the log: listing them from a location on, and taking one out of the order.

use super::{
    CHUNK, Chunk, LogLocation, LogMessage, PriorityLevel, Ready, RequeuedMessage, ServicePosition,
    bit, descending,
};
use crate::DeliveryCounts;
use crate::checkout::Dequeued;

/// A chunk is sparse if at most this part of its capacity has references.
const SPARSE_SHARE: usize = 4;

impl Chunk {
    fn last(&self, level: u8) -> Option<LogLocation> {
        let last = self.items.len().checked_sub(1)?;
        self.get(last, level).map(|held| held.location())
    }

    /// The index of the first reference that was not taken and is not before this location.
    fn first_from(&self, level: u8, from: LogLocation) -> usize {
        let (mut low, mut high) = (self.front, self.items.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let is_before = |held: LogMessage| held.location() < from;
            match self.get(middle, level).is_some_and(is_before) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    fn remove(&mut self, at: usize) {
        if at == self.front {
            self.front += 1;
            return;
        }
        match &mut self.items {
            super::Items::Compact(items) => drop(items.remove(at)),
            super::Items::Full(items) => drop(items.remove(at)),
        }
        if !self.expires.is_empty() {
            self.expires.remove(at);
        }
    }
}

impl Chunk {
    fn len(&self) -> usize {
        self.items.len() - self.front
    }

    /// Returns true if most of the chunk's memory is unused because messages left from its middle.
    fn is_sparse(&self) -> bool {
        self.len() <= self.items.capacity() / SPARSE_SHARE
    }

    /// Returns true if the references of the next chunk fit into this one, and both are short.
    fn can_join(&self, next: &Chunk, level: u8) -> bool {
        let last = next
            .last(level)
            .and_then(|last| last.index.checked_sub(self.base));
        let is_near = last.is_some_and(|delta| u32::try_from(delta).is_ok());
        is_near && self.len() + next.len() <= CHUNK / SPARSE_SHARE
    }

    /// Frees the memory of references that were taken.
    fn shrink(&mut self) {
        let front = std::mem::take(&mut self.front);
        match &mut self.items {
            super::Items::Compact(items) => {
                items.drain(..front);
                items.shrink_to(2 * items.len());
            }
            super::Items::Full(items) => {
                items.drain(..front);
                items.shrink_to(2 * items.len());
            }
        }
        if !self.expires.is_empty() {
            self.expires.drain(..front);
            self.expires.shrink_to(2 * self.expires.len());
        }
    }
}

impl PriorityLevel {
    /// Shrinks a sparse chunk, and joins it with one beside it if both are short. So the memory of a level is bounded by the
    /// number of its messages, however many left from the middle.
    fn join_sparse(&mut self, number: usize) {
        let level = self.level;
        if let Some(chunk) = self.chunks.get_mut(number) {
            chunk.shrink();
        }
        for first in [Some(number), number.checked_sub(1)].into_iter().flatten() {
            let (chunk, next) = (self.chunks.get(first), self.chunks.get(first + 1));
            let can_join = chunk.zip(next).is_some_and(|(c, n)| c.can_join(n, level));
            if !can_join {
                continue;
            }
            let Some(next) = self.chunks.remove(first + 1) else {
                continue;
            };
            let Some(chunk) = self.chunks.get_mut(first) else {
                continue;
            };
            chunk.shrink();
            for held in (next.front..next.items.len()).filter_map(|at| next.get(at, level)) {
                let is_added = chunk.push(&held);
                debug_assert!(is_added, "{held:?} fits into the chunk");
            }
            chunk.latest = chunk.latest.max(next.latest);
        }
        if self.chunks.len() < self.chunks.capacity() / SPARSE_SHARE {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    /// The first chunk that has a reference at or after this location.
    fn chunk_from(&self, from: LogLocation) -> usize {
        let is_before = |chunk: &Chunk| chunk.last(self.level).is_none_or(|last| last < from);
        self.chunks.partition_point(is_before)
    }

    fn from(&self, from: LogLocation) -> impl Iterator<Item = LogMessage> + '_ {
        let chunks = self.chunks.iter().skip(self.chunk_from(from));
        chunks.flat_map(move |chunk| {
            let first = chunk.first_from(self.level, from);
            (first..chunk.items.len()).filter_map(|at| chunk.get(at, self.level))
        })
    }

    fn take_at(&mut self, at: LogLocation) -> Option<LogMessage> {
        let number = self.chunk_from(at);
        let level = self.level;
        let has_others = self.chunks.len() > 1;
        let chunk = self.chunks.get_mut(number)?;
        let found = chunk.first_from(level, at);
        let held = chunk
            .get(found, level)
            .filter(|held| held.location() == at)?;
        chunk.remove(found);
        if chunk.front >= chunk.items.len() {
            let latest = chunk.latest;
            match self.chunks.len() {
                1 => self.reset_first_chunk(),
                _ => drop(self.chunks.remove(number)),
            }
            self.forget_latest(latest);
        } else if has_others && chunk.is_sparse() {
            self.join_sparse(number);
        }
        self.early.remove(&held);
        Some(held)
    }
}

impl Ready {
    /// The levels that have had messages, descending.
    pub(crate) fn levels(&self) -> impl Iterator<Item = u8> {
        descending(self.levels.allocated | bit(super::DEFAULT_LEVEL))
    }

    /// Messages of a level without a group that were never delivered, from this location on.
    pub(crate) fn fresh_from(
        &self,
        level: u8,
        from: LogLocation,
    ) -> impl Iterator<Item = LogMessage> + '_ {
        let level = self.levels.get(level).into_iter();
        level.flat_map(move |level| level.from(from))
    }

    /// Removes and returns the ready message of a group at this location, and its position. Looks at all messages of groups.
    /// The group waits for the message until [`end_wait_for`](Self::end_wait_for).
    #[cold]
    pub(crate) fn take_grouped(
        &mut self,
        at: LogLocation,
    ) -> Option<(ServicePosition, RequeuedMessage)> {
        let (position, message) = self.groups.as_mut()?.take_at(at)?;
        self.uncount_grouped(&message.held);
        Some((position, message))
    }

    /// Removes and returns the ready message at this location, unless it is one of a group.
    #[cold]
    pub(crate) fn take_at(&mut self, at: LogLocation) -> Option<Dequeued<LogMessage>> {
        let dequeued = match self.take_requeued(at) {
            Some(dequeued) => dequeued,
            None => Dequeued {
                item: self.take_fresh(at)?,
                counts: DeliveryCounts::default(),
            },
        };
        self.uncount(&dequeued.item);
        Some(dequeued)
    }

    fn take_requeued(&mut self, at: LogLocation) -> Option<Dequeued<LogMessage>> {
        if let Some(returned) = self.returned.take_at(at) {
            return Some(returned.into());
        }
        self.postponed.take_at(at).map(|(_, r)| r.into())
    }

    fn take_fresh(&mut self, at: LogLocation) -> Option<LogMessage> {
        descending(self.levels.occupied).find_map(|level| self.take_from_level(level, at))
    }

    /// Removes and returns the message of a level at this location, without counting it.
    pub(super) fn take_from_level(&mut self, level: u8, at: LogLocation) -> Option<LogMessage> {
        let messages = self.levels.get_mut(level)?;
        let held = messages.take_at(at)?;
        if messages.peek().is_none() {
            self.levels.occupied &= !bit(level);
        }
        Some(held)
    }
}
