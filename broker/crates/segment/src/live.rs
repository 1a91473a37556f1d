/// A set of log indexes, stored as ranges, because the live messages of a queue are mostly contiguous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSet {
    /// First and last index of each range; ascending, neither adjacent nor overlapping.
    ranges: Vec<(u64, u64)>,
    count: u64,
}

impl LiveSet {
    /// Builds a set from ascending indexes; an index that does not ascend is left out.
    pub fn from_sorted(indexes: impl IntoIterator<Item = u64>) -> LiveSet {
        let mut set = LiveSet::default();
        for index in indexes {
            set.push(index, index);
        }
        set
    }

    /// Appends a range. Returns false and does nothing unless it is above all others.
    pub fn push(&mut self, first: u64, last: u64) -> bool {
        let newest = self.ranges.last_mut();
        if last < first || newest.as_ref().is_some_and(|(_, l)| first <= *l) {
            return false;
        }
        match newest {
            Some((_, l)) if first == *l + 1 => *l = last,
            _ => self.ranges.push((first, last)),
        }
        self.count = self.count.saturating_add((last - first).saturating_add(1));
        true
    }

    /// True if the set contains `index`.
    pub fn contains(&self, index: u64) -> bool {
        let at = self.ranges.partition_point(|(_, last)| *last < index);
        self.ranges
            .get(at)
            .is_some_and(|(first, _)| *first <= index)
    }

    /// Number of indexes.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// True if the set contains no index.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of indexes in `first..=last`.
    pub fn count_in(&self, first: u64, last: u64) -> u64 {
        let from = self.ranges.partition_point(|(_, l)| *l < first);
        let ranges = self.ranges.get(from..).unwrap_or_default();
        ranges
            .iter()
            .take_while(|(f, _)| *f <= last)
            .map(|(f, l)| (*l).min(last) - (*f).max(first) + 1)
            .sum()
    }

    /// First and last index of each range, ascending.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// All indexes, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().flat_map(|(first, last)| *first..=*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn live_set_equals_the_set_it_was_built_from(
            set in prop::collection::btree_set(0u64..60, 0..40),
            first in 0u64..60,
            len in 0u64..60,
        ) {
            let live = LiveSet::from_sorted(set.iter().copied());
            prop_assert_eq!(live.len(), set.len() as u64);
            prop_assert_eq!(live.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            for index in 0..62 {
                prop_assert_eq!(live.contains(index), set.contains(&index));
            }
            let last = first + len;
            prop_assert_eq!(live.count_in(first, last), set.range(first..=last).count() as u64);
            for pair in live.ranges().windows(2) {
                prop_assert!(pair[0].1 + 1 < pair[1].0);
            }
        }
    }

    #[test]
    fn ranges_that_do_not_ascend_are_refused() {
        let mut live = LiveSet::default();
        assert!(live.push(5, 7));
        assert!(!live.push(7, 9));
        assert!(!live.push(9, 8));
        assert!(live.push(8, u64::MAX));
        assert_eq!(live.ranges(), [(5, u64::MAX)]);
    }
}
