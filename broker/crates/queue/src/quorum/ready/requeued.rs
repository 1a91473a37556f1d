//! Requeued messages in the order in which they are served. Messages leave from the front or, when they expire or are taken
//! by their location, from the middle.

use super::{LogLocation, LogMessage, RequeuedMessage};
use std::collections::{BTreeSet, VecDeque};

/// Fewer vacant slots are not removed from the middle.
const MIN_VACANT: usize = 32;

/// An element of a [`RequeuedList`].
pub(super) trait Requeued {
    fn held(&self) -> &LogMessage;
}

impl Requeued for RequeuedMessage {
    fn held(&self) -> &LogMessage {
        &self.held
    }
}

impl Requeued for (LogLocation, RequeuedMessage) {
    fn held(&self) -> &LogMessage {
        &self.1.held
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct RequeuedList<T> {
    /// `None`: the message left ahead of others. The first and the last slot have a message, and half of the slots at least.
    slots: VecDeque<Option<T>>,
    /// Position of the first slot. The positions of the others follow.
    first: i64,
    /// Number of slots without a message.
    vacant: usize,
    /// Messages with a TTL by the time of their expiry and their position, if the list is indexed. Clients requeue messages in any
    /// order, so each message has an entry.
    expiring: BTreeSet<(u64, i64)>,
    is_indexed: bool,
}

impl<T: Requeued> RequeuedList<T> {
    pub(super) fn new() -> RequeuedList<T> {
        RequeuedList {
            slots: VecDeque::new(),
            first: 0,
            vacant: 0,
            expiring: BTreeSet::new(),
            is_indexed: false,
        }
    }

    /// Keeps an index by expiry from now on.
    pub(super) fn index(&mut self) {
        self.is_indexed = true;
        self.rebuild_index();
    }

    fn rebuild_index(&mut self) {
        self.expiring.clear();
        let expiries = (self.first..).zip(&self.slots);
        let expiries = expiries.filter_map(|(position, slot)| {
            let expires = slot.as_ref()?.held().expires;
            (expires != 0).then_some((expires, position))
        });
        self.expiring.extend(expiries);
    }

    #[cfg(debug_assertions)]
    fn assert_consistent(&self) {
        let is_occupied = |slot: Option<&Option<T>>| slot.is_none_or(|slot| slot.is_some());
        assert!(is_occupied(self.slots.front()) && is_occupied(self.slots.back()));
        assert!(self.vacant < MIN_VACANT || self.vacant * 2 <= self.slots.len());
        assert!(self.expiring.len() <= self.len());
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.vacant
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.slots.front()?.as_ref()
    }

    pub(super) fn back(&self) -> Option<&T> {
        self.slots.back()?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    /// The messages of the first `most` slots.
    pub(super) fn first_slots(&self, most: usize) -> impl Iterator<Item = &T> {
        self.slots.iter().take(most).flatten()
    }

    fn add_entry(&mut self, expires: u64, position: i64) {
        if self.is_indexed && expires != 0 {
            self.expiring.insert((expires, position));
        }
    }

    fn remove_entry(&mut self, expires: u64, position: i64) {
        if self.is_indexed && expires != 0 {
            let removed = self.expiring.remove(&(expires, position));
            debug_assert!(removed, "a message with a TTL has an entry");
        }
    }

    pub(super) fn push_back(&mut self, message: T) {
        let expires = message.held().expires;
        self.add_entry(expires, self.first + self.slots.len() as i64);
        self.slots.push_back(Some(message));
    }

    pub(super) fn push_front(&mut self, message: T) {
        self.first -= 1;
        self.add_entry(message.held().expires, self.first);
        self.slots.push_front(Some(message));
    }

    pub(super) fn pop_front(&mut self) -> Option<T> {
        let message = self.slots.pop_front()??;
        self.remove_entry(message.held().expires, self.first);
        self.first += 1;
        if self.vacant > 0 {
            self.remove_vacant();
        }
        Some(message)
    }

    /// Removes and returns the message at a location. Looks at all messages.
    pub(super) fn take_at(&mut self, at: LogLocation) -> Option<T> {
        let is_wanted = |slot: &Option<T>| {
            let message = slot.as_ref();
            message.is_some_and(|message| message.held().location() == at)
        };
        let found = self.slots.iter().position(is_wanted)?;
        self.take(found)
    }

    /// When the first message expires, of an indexed list.
    pub(super) fn first_expiry(&self) -> Option<u64> {
        self.expiring.first().map(|(expires, _)| *expires)
    }

    /// Removes and returns the message that expires first, of an indexed list.
    pub(super) fn pop_first_to_expire(&mut self) -> Option<T> {
        let (_, position) = self.expiring.first()?;
        let found = usize::try_from(position - self.first).ok()?;
        self.take(found)
    }

    fn take(&mut self, found: usize) -> Option<T> {
        let message = self.slots.get_mut(found)?.take()?;
        self.vacant += 1;
        self.remove_entry(message.held().expires, self.first + found as i64);
        self.remove_vacant();
        #[cfg(debug_assertions)]
        self.assert_consistent();
        Some(message)
    }

    /// Removes vacant slots from both ends and, if they are most of all, from the middle.
    fn remove_vacant(&mut self) {
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
            self.vacant -= 1;
        }
        while let Some(None) = self.slots.back() {
            self.slots.pop_back();
            self.vacant -= 1;
        }
        if self.vacant >= MIN_VACANT && self.vacant * 2 > self.slots.len() {
            self.slots.retain(Option::is_some);
            self.slots.shrink_to(2 * self.slots.len());
            self.vacant = 0;
            if self.is_indexed {
                self.rebuild_index();
            }
        }
    }

    /// Drops all messages and the memory of the list.
    pub(super) fn clear(&mut self) {
        let is_indexed = self.is_indexed;
        *self = RequeuedList {
            is_indexed,
            ..RequeuedList::new()
        };
    }
}
