//! Ready messages by their location in the log: listing them from a location on, and taking one out of the order.

use super::{
    Chunk, LogLocation, LogMessage, PriorityLevel, Ready, RequeuedMessage, ServicePosition, bit,
    descending,
};
use crate::DeliveryCounts;
use crate::checkout::Dequeued;

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
        match &mut self.items {
            super::Items::Compact(items) => drop(items.remove(at)),
            super::Items::Full(items) => drop(items.remove(at)),
        }
        if !self.expires.is_empty() {
            self.expires.remove(at);
        }
    }
}

impl PriorityLevel {
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
        let chunk = self.chunks.get_mut(number)?;
        let found = chunk.first_from(level, at);
        let held = chunk
            .get(found, level)
            .filter(|held| held.location() == at)?;
        chunk.remove(found);
        if chunk.front >= chunk.items.len() {
            match self.chunks.len() {
                1 => self.reset_first_chunk(),
                _ => drop(self.chunks.remove(number)),
            }
        }
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
        self.len -= 1;
        self.bytes -= u64::from(dequeued.item.body);
        self.expiring -= u64::from(dequeued.item.expires != 0);
        debug_assert!(self.len > 0 || self.bytes == 0);
        Some(dequeued)
    }

    fn take_requeued(&mut self, at: LogLocation) -> Option<Dequeued<LogMessage>> {
        if let Some(found) = self.returned.iter().position(|r| r.held.location() == at) {
            return self.returned.remove(found).map(Dequeued::from);
        }
        let mut postponed = self.postponed.iter();
        let found = postponed.position(|(_, r)| r.held.location() == at)?;
        self.postponed.remove(found).map(|(_, r)| r.into())
    }

    fn take_fresh(&mut self, at: LogLocation) -> Option<LogMessage> {
        for level in descending(self.levels.occupied) {
            let messages = self.levels.get_mut(level);
            if let Some(messages) = messages
                && let Some(held) = messages.take_at(at)
            {
                if messages.peek().is_none() {
                    self.levels.occupied &= !bit(level);
                }
                return Some(held);
            }
        }
        None
    }
}
