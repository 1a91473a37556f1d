//! Exact expiry: ready messages expire on time, wherever they are in the service order.
//!
//! Within a level, most messages expire in the order in which they were published, because most queues have one TTL. Of such
//! messages only the first can be the next to expire. A message that expires before one ahead of it is early, and has an entry
//! in an index by expiry. Whether it is early is decided when it joins: an entry is kept when the message ahead of it leaves.
//! Requeued messages are indexed by their own list ([`RequeuedList`](super::requeued::RequeuedList)).
//!
//! The index is not replicated and not in checkpoints, since it follows from the messages and their order. Members may differ
//! in the entries, but not in the message that expires next.

use super::{Chunk, LogLocation, LogMessage, PriorityLevel, Ready, descending};
use std::collections::BTreeSet;

/// A number that orders messages by expiry. Messages without a TTL are last.
pub(super) fn expiry_rank(expires: u64) -> u64 {
    expires.wrapping_sub(1)
}

/// Early messages of a level by expiry, then by their number ([`LogLocation::number`]). An entry takes 16 bytes in a B-tree that
/// is half full or better.
#[derive(Debug, Default)]
pub(super) struct EarlyMessages(BTreeSet<(u64, u64)>);

impl EarlyMessages {
    fn insert(&mut self, held: &LogMessage) {
        let number = held.location().number();
        // A message without a number expires at the head. No log is that long.
        if number != 0 && held.expires != 0 {
            self.0.insert((held.expires, number));
        }
    }

    /// The message leaves the level.
    pub(super) fn remove(&mut self, held: &LogMessage) {
        if held.expires != 0 && !self.0.is_empty() {
            self.0.remove(&(held.expires, held.location().number()));
        }
    }

    pub(super) fn first(&self) -> Option<(u64, LogLocation)> {
        let (expires, number) = self.0.first()?;
        Some((*expires, LogLocation::of_number(*number)))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl PriorityLevel {
    /// Records a message that joined at the end.
    pub(super) fn note_expiry(&mut self, held: &LogMessage, is_exact: bool) {
        let rank = expiry_rank(held.expires);
        if rank >= self.latest {
            self.latest = rank;
        } else if is_exact {
            self.early.insert(held);
        }
    }

    /// Records that a chunk with messages up to this rank left.
    pub(super) fn forget_latest(&mut self, latest: u64) {
        let mut others = self.chunks.iter().map(|chunk| chunk.latest);
        if latest >= self.latest && !others.any(|other| other >= latest) {
            let latest = self.chunks.iter().map(|chunk| chunk.latest).max();
            self.latest = latest.unwrap_or(0);
        }
    }

    /// Builds the index.
    fn index_early(&mut self) {
        let mut early = EarlyMessages::default();
        let mut latest = 0;
        for held in self.fresh() {
            let rank = expiry_rank(held.expires);
            if rank < latest {
                early.insert(&held);
            }
            latest = latest.max(rank);
        }
        self.early = early;
    }

    /// When the next message expires, and where it is. It is the first one or the first of the index.
    fn first_to_expire(&self) -> Option<(u64, LogLocation)> {
        let head = self.peek().filter(|head| head.expires != 0);
        let head = head.map(|head| (head.expires, head.location()));
        head.into_iter().chain(self.early.first()).min()
    }
}

impl Chunk {
    /// The highest rank of the messages that were pushed.
    pub(super) fn note_latest(&mut self, held: &LogMessage) {
        self.latest = self.latest.max(expiry_rank(held.expires));
    }
}

/// Where the next message expires. Of messages that expire at the same time, requeued ones leave first, and postponed ones
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpiringPlace {
    Returned,
    Fresh(u8, LogLocation),
    Postponed,
}

impl Ready {
    /// Lets messages expire on time from now on, for good. Looks at all ready messages.
    pub(crate) fn expire_exactly(&mut self) {
        if self.is_exact {
            return;
        }
        self.is_exact = true;
        self.earliest = 0;
        self.returned.index();
        self.postponed.index();
        self.levels.default.index_early();
        self.levels
            .others
            .iter_mut()
            .for_each(PriorityLevel::index_early);
    }

    /// Implements [`Bug::ExpiryIndexForgotten`](env::planted::Bug::ExpiryIndexForgotten).
    #[cold]
    pub(crate) fn forget_early(&mut self) {
        let others = self.levels.others.iter_mut();
        for level in others.chain([&mut self.levels.default]) {
            level.early = EarlyMessages::default();
        }
    }

    /// Returns true if messages expire on time.
    pub(crate) fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// The message without a group that expires next, and when it does.
    fn next_to_expire(&self) -> Option<(u64, ExpiringPlace)> {
        debug_assert!(self.is_exact);
        let mut next: Option<(u64, ExpiringPlace)> = None;
        let mut offer = |expires: u64, place: ExpiringPlace| {
            if next.is_none_or(|(before, _)| expires < before) {
                next = Some((expires, place));
            }
        };
        if let Some(expires) = self.returned.first_expiry() {
            offer(expires, ExpiringPlace::Returned);
        }
        for level in descending(self.levels.occupied) {
            let messages = self.levels.get(level);
            if let Some((expires, at)) = messages.and_then(PriorityLevel::first_to_expire) {
                offer(expires, ExpiringPlace::Fresh(level, at));
            }
        }
        if let Some(expires) = self.postponed.first_expiry() {
            offer(expires, ExpiringPlace::Postponed);
        }
        next
    }

    /// When the next message without a group expires.
    pub(super) fn next_exact_expiry(&self) -> Option<u64> {
        self.next_to_expire().map(|(expires, _)| expires)
    }

    /// Removes and returns the message that expires next, if it has expired.
    pub(super) fn pop_next_to_expire(&mut self, clock: u64) -> Option<LogMessage> {
        if self.earliest >= clock {
            return None;
        }
        let next = self.next_to_expire();
        self.earliest = next.map_or(u64::MAX, |(expires, _)| expiry_rank(expires));
        let (_, place) = next.filter(|(expires, _)| *expires <= clock)?;
        let held = match place {
            ExpiringPlace::Returned => self.returned.pop_first_to_expire()?.held,
            ExpiringPlace::Fresh(level, at) => self.take_from_level(level, at)?,
            ExpiringPlace::Postponed => self.postponed.pop_first_to_expire()?.1.held,
        };
        debug_assert!(held.expires != 0 && held.expires <= clock);
        self.uncount(&held);
        Some(held)
    }
}

#[cfg(test)]
impl Ready {
    /// Number of entries in the indexes of messages that were never delivered.
    pub(crate) fn early_len(&self) -> usize {
        self.levels.iter().map(|level| level.early.len()).sum()
    }
}
