//! Unsettled deliveries of a consumer by delivery id. Ids are assigned in ascending order and mostly settled in
//! that order, so a deque with gaps is faster and smaller than a map.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

#[derive(Clone, Debug)]
struct Entry<T> {
    id: u64,
    /// None: settled. Such entries are removed at the ends, or together once they are the majority.
    item: Option<T>,
}

/// A map from ascending ids to values; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding<T> {
    /// Ascending by id. The first and the last entry are unsettled.
    entries: VecDeque<Entry<T>>,
    live: usize,
}

/// Settled entries that are tolerated before a compaction, and the capacity that an empty deque keeps.
const SLACK: usize = 64;

impl<T> Default for Outstanding<T> {
    fn default() -> Self {
        Outstanding {
            entries: VecDeque::new(),
            live: 0,
        }
    }
}

impl<T> Outstanding<T> {
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Appends an entry. Returns false, without effect, unless the id is higher than all before it.
    pub(crate) fn push(&mut self, id: u64, item: T) -> bool {
        if self.entries.back().is_some_and(|last| last.id >= id) {
            return false;
        }
        self.entries.push_back(Entry {
            id,
            item: Some(item),
        });
        self.live += 1;
        true
    }

    /// Index of the first entry with this id or a higher one, settled or not.
    fn position(&self, id: u64) -> usize {
        let Some(first) = self.entries.front() else {
            return 0;
        };
        // The index, if there are no gaps.
        let guess = usize::try_from(id.saturating_sub(first.id)).unwrap_or(usize::MAX);
        match self.entries.get(guess) {
            Some(expected) if expected.id == id => guess,
            _ => self.entries.partition_point(|entry| entry.id < id),
        }
    }

    /// Removes the first unsettled entry in a range of ids.
    pub(crate) fn take_first(&mut self, ids: RangeInclusive<u64>) -> Option<(u64, T)> {
        let (from, to) = ids.into_inner();
        let start = self.position(from);
        let mut rest = self.entries.range_mut(start..);
        let (id, item) = rest.find_map(|entry| match entry.id <= to {
            true => Some((entry.id, entry.item.take())).filter(|(_, item)| item.is_some()),
            // Past the range: end the search.
            false => Some((entry.id, None)),
        })?;
        let item = item?;
        self.live -= 1;
        self.compact();
        Some((id, item))
    }

    pub(crate) fn pop_first(&mut self) -> Option<(u64, T)> {
        self.take_first(0..=u64::MAX)
    }

    pub(crate) fn last_id(&self) -> Option<u64> {
        self.entries.back().map(|last| last.id)
    }

    /// Unsettled entries with this id or a higher one.
    pub(crate) fn iter_from(&self, id: u64) -> impl Iterator<Item = (u64, &T)> {
        let rest = self.entries.range(self.position(id)..);
        rest.filter_map(|entry| Some((entry.id, entry.item.as_ref()?)))
    }

    /// Values of unsettled entries in a range of ids.
    pub(crate) fn values_in(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = &T> {
        let to = *ids.end();
        let all = self
            .iter_from(*ids.start())
            .take_while(move |(id, _)| *id <= to);
        all.map(|(_, item)| item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.iter_from(0)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.item.as_ref())
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().filter_map(|entry| entry.item)
    }

    fn compact(&mut self) {
        while self
            .entries
            .pop_front_if(|first| first.item.is_none())
            .is_some()
        {}
        while self
            .entries
            .pop_back_if(|last| last.item.is_none())
            .is_some()
        {}
        if self.entries.len() > 2 * self.live + SLACK {
            self.entries.retain(|entry| entry.item.is_some());
        }
        if self.entries.is_empty() && self.entries.capacity() > 4 * SLACK {
            self.entries.shrink_to(SLACK);
        }
        let is_unsettled = |entry: Option<&Entry<T>>| entry.is_none_or(|e| e.item.is_some());
        debug_assert!(is_unsettled(self.entries.front()) && is_unsettled(self.entries.back()));
        debug_assert!(self.live <= self.entries.len());
        debug_assert!(self.entries.len() <= 2 * self.live + SLACK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Push { skipped: u64 },
        Take { from: u64, to: u64 },
        TakeAll { from: u64, to: u64 },
        Pop,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u64..3).prop_map(|skipped| Step::Push { skipped }),
            2 => (0u64..120).prop_map(|id| Step::Take { from: id, to: id }),
            1 => (0u64..120, 0u64..120).prop_map(|(from, to)| Step::Take { from, to }),
            1 => (0u64..120, 0u64..40).prop_map(|(from, more)| Step::TakeAll { from, to: from + more }),
            1 => Just(Step::Pop),
        ]
    }

    proptest! {
        /// Compares with a `BTreeMap`.
        #[test]
        fn outstanding_deliveries_behave_as_an_ordered_map(steps in proptest::collection::vec(step(), 1..400), from in 0u64..150) {
            let mut outstanding = Outstanding::default();
            let mut map: BTreeMap<u64, u64> = BTreeMap::new();
            let mut last = 0;
            for step in steps {
                match step {
                    Step::Push { skipped } => {
                        last += 1 + skipped;
                        prop_assert!(outstanding.push(last, last * 3));
                        prop_assert!(!outstanding.push(last, 0));
                        map.insert(last, last * 3);
                    }
                    Step::Take { from, to } => {
                        let id = map.keys().copied().find(|id| (from..=to).contains(id));
                        let expected = id.and_then(|id| map.remove_entry(&id));
                        prop_assert_eq!(outstanding.take_first(from..=to), expected);
                    }
                    Step::TakeAll { from, to } => {
                        while let Some((id, item)) = outstanding.take_first(from..=to) {
                            prop_assert_eq!(map.remove(&id), Some(item));
                        }
                        prop_assert!(map.range(from..=to).next().is_none());
                    }
                    Step::Pop => prop_assert_eq!(outstanding.pop_first(), map.pop_first()),
                }
                prop_assert_eq!(outstanding.len(), map.len());
                prop_assert_eq!(outstanding.is_empty(), map.is_empty());
                prop_assert_eq!(outstanding.last_id(), map.keys().last().copied());
                prop_assert!(outstanding.entries.len() <= 2 * outstanding.live + SLACK);
            }
            let listed: Vec<_> = outstanding.iter_from(from).map(|(id, item)| (id, *item)).collect();
            let expected: Vec<_> = map.range(from..).map(|(id, item)| (*id, *item)).collect();
            prop_assert_eq!(listed, expected);
            let in_range: Vec<_> = outstanding.values_in(from..=from + 20).copied().collect();
            let expected: Vec<_> = map.range(from..=from + 20).map(|(_, item)| *item).collect();
            prop_assert_eq!(in_range, expected);
            prop_assert_eq!(outstanding.iter().count(), map.len());
            prop_assert!(outstanding.values().eq(map.values()));
            prop_assert!(outstanding.into_values().eq(map.into_values()));
        }
    }

    /// A message that is never acknowledged must not keep the memory of all settled ones after it.
    #[test]
    fn unsettled_delivery_does_not_retain_settled_ones() {
        let mut outstanding = Outstanding::default();
        for id in 1..100_000 {
            assert!(outstanding.push(id, ()));
            if id > 1 {
                assert_eq!(outstanding.take_first(id..=id), Some((id, ())));
            }
        }
        assert_eq!((outstanding.len(), outstanding.last_id()), (1, Some(1)));
        assert!(outstanding.entries.capacity() <= 4 * SLACK);
    }
}
