//! The publishes that a queue remembers, so that it recognises copies.
//!
//! Everything depends on the commands only, so that all replicas remember the same.

use crate::{DeduplicationId, MAX_DEDUPLICATION_BYTES, Name};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most publishers with numbered messages. The one that published longest ago is forgotten first.
pub(crate) const MAX_PUBLISHERS: usize = 4_096;
/// Most bytes of memory of the remembered values. The oldest one is forgotten first.
pub(crate) const MAX_VALUE_BYTES: usize = 16 << 20;
/// Estimated memory of a value besides its bytes: two references with their counts, a time, and the places in the map and
/// the queue.
const VALUE_OVERHEAD: usize = 96;

/// A publisher with numbered messages.
#[derive(Clone, Copy, Debug)]
struct Publisher {
    /// The highest number.
    last: u64,
    /// When it published last, as a number that grows with each publish.
    used: u64,
}

/// Remembered publishes of one queue.
#[derive(Debug, Default)]
pub(crate) struct Deduplicator {
    publishers: BTreeMap<Name, Publisher>,
    /// The publishers in the order of their last publishes.
    by_use: BTreeMap<u64, Name>,
    next_use: u64,
    values: BTreeSet<Name>,
    /// The values in the order in which they came, with the time of the queue's clock in milliseconds.
    by_time: VecDeque<(u64, Name)>,
    value_bytes: usize,
}

impl Deduplicator {
    /// Remembers a publish. Returns false if it is a copy of one that is remembered already.
    pub(crate) fn remember(&mut self, id: DeduplicationId, clock: u64, window_ms: u64) -> bool {
        match id {
            DeduplicationId::Numbered { publisher, number } => {
                let last = self.publishers.get(&*publisher).map(|p| p.last);
                let is_new = last.is_none_or(|last| last < number);
                self.use_publisher(publisher.into(), last.unwrap_or(0).max(number));
                is_new
            }
            DeduplicationId::Value(value) => {
                self.forget_expired(clock, window_ms);
                if self.values.contains(&*value) {
                    return false;
                }
                self.add_value(clock, value.into());
                true
            }
        }
    }

    fn use_publisher(&mut self, name: Name, last: u64) {
        debug_assert!(name.len() <= MAX_DEDUPLICATION_BYTES, "checked at publish");
        let used = self.next_use;
        self.next_use += 1;
        if let Some(before) = self
            .publishers
            .insert(name.clone(), Publisher { last, used })
        {
            self.by_use.remove(&before.used);
        }
        self.by_use.insert(used, name);
        while self.publishers.len() > MAX_PUBLISHERS
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.publishers.remove(&oldest);
        }
        debug_assert_eq!(self.publishers.len(), self.by_use.len());
    }

    fn add_value(&mut self, clock: u64, value: Name) {
        debug_assert!(value.len() <= MAX_DEDUPLICATION_BYTES, "checked at publish");
        debug_assert!(self.by_time.back().is_none_or(|(last, _)| *last <= clock));
        self.value_bytes += value.len() + VALUE_OVERHEAD;
        self.values.insert(value.clone());
        self.by_time.push_back((clock, value));
        while self.value_bytes > MAX_VALUE_BYTES {
            self.forget_oldest_value();
        }
    }

    fn forget_oldest_value(&mut self) {
        if let Some((_, value)) = self.by_time.pop_front() {
            self.values.remove(&value);
            self.value_bytes -= value.len() + VALUE_OVERHEAD;
        }
    }

    /// Forgets values whose window is over.
    fn forget_expired(&mut self, clock: u64, window_ms: u64) {
        let is_expired = |at: u64| clock.saturating_sub(at) >= window_ms;
        while self.by_time.front().is_some_and(|(at, _)| is_expired(*at)) {
            self.forget_oldest_value();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Deduplicator::default();
    }

    /// Publishers with their highest numbers, in the order of their last publishes.
    pub(crate) fn publishers(&self) -> impl ExactSizeIterator<Item = (&Name, u64)> {
        self.by_use.values().map(|name| {
            let publisher = self.publishers.get(name);
            debug_assert!(publisher.is_some(), "{name} is in both maps");
            (name, publisher.map_or(0, |p| p.last))
        })
    }

    /// Values with their times, in the order in which they came.
    pub(crate) fn values(&self) -> impl ExactSizeIterator<Item = (&Name, u64)> {
        self.by_time.iter().map(|(at, value)| (value, *at))
    }

    /// Adds what [`publishers`](Deduplicator::publishers) returned, in its order.
    pub(crate) fn restore_publisher(&mut self, name: Name, last: u64) {
        self.use_publisher(name, last);
    }

    /// Adds what [`values`](Deduplicator::values) returned, in its order.
    pub(crate) fn restore_value(&mut self, value: Name, at: u64) {
        self.add_value(at, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_publisher_must_grow() {
        let mut all = Deduplicator::default();
        for (publisher, number, is_new) in [
            ("a", 0, true),
            ("a", 0, false),
            ("a", 5, true),
            ("a", 4, false),
            ("b", 4, true),
            ("a", 6, true),
        ] {
            let remembered = all.remember(DeduplicationId::numbered(publisher, number), 1, 1);
            assert_eq!(remembered, is_new, "{publisher} {number}");
        }
    }

    #[test]
    fn values_are_remembered_for_the_window_from_their_first_publish() {
        let mut all = Deduplicator::default();
        assert!(all.remember(DeduplicationId::value("v"), 1_000, 100));
        assert!(!all.remember(DeduplicationId::value("v"), 1_000, 100));
        assert!(!all.remember(DeduplicationId::value("v"), 1_099, 100));
        assert!(all.remember(DeduplicationId::value("v"), 1_100, 100));
        assert!(!all.remember(DeduplicationId::value("v"), 1_101, 100));
        assert_eq!(all.values().count(), 1);
    }

    #[test]
    fn least_recently_used_publishers_and_oldest_values_are_forgotten() {
        let mut all = Deduplicator::default();
        for n in 0..MAX_PUBLISHERS {
            assert!(all.remember(DeduplicationId::numbered(&n.to_string(), 7), 0, 1));
        }
        assert!(!all.remember(DeduplicationId::numbered("0", 7), 0, 1));
        assert!(all.remember(DeduplicationId::numbered("one more", 1), 0, 1));
        assert_eq!(all.publishers().len(), MAX_PUBLISHERS);
        assert!(!all.remember(DeduplicationId::numbered("0", 7), 0, 1));
        assert!(
            all.remember(DeduplicationId::numbered("1", 7), 0, 1),
            "it was forgotten"
        );
        let long = "x".repeat(MAX_DEDUPLICATION_BYTES - 6);
        let fit = MAX_VALUE_BYTES / (MAX_DEDUPLICATION_BYTES + VALUE_OVERHEAD);
        for n in 0..=fit {
            assert!(all.remember(DeduplicationId::value(&format!("{n:06}{long}")), 0, 1_000));
        }
        assert!(all.value_bytes <= MAX_VALUE_BYTES);
        assert_eq!(all.values().len(), fit);
        assert!(!all.remember(DeduplicationId::value(&format!("{fit:06}{long}")), 0, 1_000));
        assert!(all.remember(DeduplicationId::value(&format!("{:06}{long}", 0)), 0, 1_000));
    }
}
