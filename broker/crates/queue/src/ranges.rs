//! Sets of numbers, such as settled delivery ids.

/// Disjoint inclusive ranges in ascending order. Adjacent ranges are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Ranges whose end is before their start are empty.
    pub(crate) fn new(mut ranges: Vec<(u64, u64)>) -> Ranges {
        ranges.retain(|(from, to)| from <= to);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in ranges {
            match merged.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Ranges(merged)
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= number);
        after
            .checked_sub(1)
            .and_then(|at| self.0.get(at))
            .is_some_and(|(_, to)| number <= *to)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// How many numbers the set contains.
    pub(crate) fn count(&self) -> u64 {
        let each = self
            .0
            .iter()
            .map(|(from, to)| (to - from).saturating_add(1));
        each.fold(0, u64::saturating_add)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_that_ends_before_its_start_is_empty() {
        assert_eq!(Ranges::new(vec![(5, 3)]), Ranges::default());
        let ranges = Ranges::new(vec![(5, 3), (4, 4), (9, 8), (6, 7)]);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(4, 4), (6, 7)]);
        assert_eq!(ranges.count(), 3);
        assert!(!ranges.contains(5) && !ranges.contains(8));
    }
}
