use std::collections::VecDeque;

use crate::Serial;

/// Entries above which settled ones are removed from the middle.
const COMPACTION_THRESHOLD: usize = 64;

/// Deliveries of a session that are not settled, in the order of their ids.
///
/// Ids increase but need not be consecutive. A settled delivery leaves a gap; gaps at the front are removed at once, and all others
/// when they are more than half of the entries, so that one slow link does not keep the entries of the others.
#[derive(Debug)]
pub(crate) struct Deliveries<T> {
    entries: VecDeque<(Serial, Option<T>)>,
    live: usize,
}

impl<T> Default for Deliveries<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            live: 0,
        }
    }
}

impl<T> Deliveries<T> {
    /// Deliveries that are not settled.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Returns true if `id` can be added: it is after all others, and the first is not half of the number range away.
    pub(crate) fn can_push(&self, id: Serial) -> bool {
        let is_after =
            |entry: Option<&(Serial, Option<T>)>| entry.is_none_or(|(other, _)| id > *other);
        is_after(self.entries.back()) && is_after(self.entries.front())
    }

    /// Adds a delivery after all others.
    pub(crate) fn push(&mut self, id: Serial, delivery: T) {
        debug_assert!(
            self.entries.back().is_none_or(|(last, _)| *last < id),
            "delivery ids increase"
        );
        self.entries.push_back((id, Some(delivery)));
        self.live += 1;
    }

    /// The index of the first entry that is not before `id`.
    fn position(&self, id: Serial) -> usize {
        let Some((first, _)) = self.entries.front() else {
            return 0;
        };
        let Ok(guess) = usize::try_from(id.since(*first)) else {
            return 0;
        };
        // With consecutive ids the distance is the index.
        if self
            .entries
            .get(guess)
            .is_some_and(|(found, _)| *found == id)
        {
            return guess;
        }
        self.entries
            .partition_point(|(found, _)| found.since(id) < 0)
    }

    pub(crate) fn get_mut(&mut self, id: Serial) -> Option<&mut T> {
        let at = self.position(id);
        match self.entries.get_mut(at) {
            Some((found, delivery)) if *found == id => delivery.as_mut(),
            _ => None,
        }
    }

    /// Removes a delivery.
    pub(crate) fn take(&mut self, id: Serial) -> Option<T> {
        let at = self.position(id);
        match self.entries.get_mut(at) {
            Some((found, delivery)) if *found == id => {
                let taken = delivery.take();
                self.live -= usize::from(taken.is_some());
                self.trim();
                taken
            }
            _ => None,
        }
    }

    /// Visits a delivery, if there is one with this id, and removes it if `visit` returns true.
    #[inline]
    pub(crate) fn visit(&mut self, id: Serial, visit: impl FnOnce(&mut T) -> bool) {
        let at = self.position(id);
        if let Some((found, delivery)) = self.entries.get_mut(at)
            && *found == id
            && delivery.as_mut().is_some_and(visit)
        {
            *delivery = None;
            self.live -= 1;
            self.trim();
        }
    }

    /// Visits the deliveries from `first` to `last` and removes those for which `visit` returns true. The work is bounded by the
    /// number of entries, whatever the range.
    pub(crate) fn visit_range(
        &mut self,
        first: Serial,
        last: Serial,
        mut visit: impl FnMut(Serial, &mut T) -> bool,
    ) {
        let start = self.position(first);
        let mut removed = 0;
        for (id, delivery) in self.entries.range_mut(start..) {
            if id.since(last) > 0 {
                break;
            }
            if delivery
                .as_mut()
                .is_some_and(|delivery| visit(*id, delivery))
            {
                *delivery = None;
                removed += 1;
            }
        }
        self.live -= removed;
        self.trim();
    }

    /// Visits all deliveries and removes those for which `visit` returns true.
    pub(crate) fn visit_all(&mut self, visit: impl FnMut(Serial, &mut T) -> bool) {
        let first = self.entries.front().map(|(id, _)| *id);
        let last = self.entries.back().map(|(id, _)| *id);
        if let (Some(first), Some(last)) = (first, last) {
            self.visit_range(first, last, visit);
        }
    }

    /// Removes the deliveries for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.entries
            .retain(|(_, delivery)| delivery.as_ref().is_some_and(&mut keep));
        self.live = self.entries.len();
    }

    fn trim(&mut self) {
        while let Some((_, None)) = self.entries.front() {
            self.entries.pop_front();
        }
        if self.entries.len() > COMPACTION_THRESHOLD && self.live * 2 < self.entries.len() {
            self.entries.retain(|(_, delivery)| delivery.is_some());
        }
        if self.entries.is_empty() && self.entries.capacity() > COMPACTION_THRESHOLD * 16 {
            self.entries = VecDeque::new();
        }
        debug_assert!(self.live <= self.entries.len());
        debug_assert!(self.entries.len() <= COMPACTION_THRESHOLD.max(self.live * 2));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_of_the_whole_number_space_visits_each_entry_once() {
        let mut deliveries = Deliveries::default();
        for id in [u32::MAX - 1, u32::MAX, 0, 5] {
            deliveries.push(Serial(id), id);
        }
        let mut seen = Vec::new();
        deliveries.visit_range(Serial(u32::MAX - 9), Serial(4), |id, _| {
            seen.push(id.0);
            id.0 == 0
        });
        assert_eq!(seen, [u32::MAX - 1, u32::MAX, 0]);
        assert_eq!(deliveries.len(), 3);
        assert_eq!(deliveries.take(Serial(0)), None);
        assert_eq!(deliveries.take(Serial(5)), Some(5));
        assert_eq!(deliveries.take(Serial(5)), None);
    }

    #[test]
    fn one_delivery_that_stays_does_not_keep_the_others() {
        let mut deliveries = Deliveries::default();
        deliveries.push(Serial(0), ());
        for id in 1..100_000 {
            deliveries.push(Serial(id), ());
            assert!(deliveries.take(Serial(id)).is_some());
            assert!(deliveries.entries.len() <= COMPACTION_THRESHOLD + 1);
        }
        assert_eq!(deliveries.len(), 1);
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_map(start: u32, steps in prop::collection::vec((0..4u8, 0..20u32, 0..20u32), 1..200)) {
            let mut deliveries = Deliveries::default();
            let mut model: Vec<(u32, u32)> = Vec::new();
            let mut next = start;
            for (step, a, b) in steps {
                match step {
                    0 | 1 => {
                        next = next.wrapping_add(1 + a % 3);
                        deliveries.push(Serial(next), next);
                        model.push((next, next));
                    }
                    2 if b % 2 == 0 => {
                        let id = next.wrapping_sub(a);
                        let mut seen = None;
                        deliveries.visit(Serial(id), |value| {
                            seen = Some(*value);
                            *value % 2 == 0
                        });
                        let found = model.iter().position(|(found, _)| *found == id);
                        prop_assert_eq!(seen, found.map(|at| model[at].1));
                        model.retain(|(found, _)| *found != id || id % 2 != 0);
                    }
                    2 => {
                        let id = next.wrapping_sub(a);
                        let found = model.iter().position(|(found, _)| *found == id);
                        prop_assert_eq!(deliveries.get_mut(Serial(id)).copied(), found.map(|at| model[at].1));
                        prop_assert_eq!(deliveries.take(Serial(id)), found.map(|at| model.remove(at).1));
                    }
                    _ => {
                        let first = next.wrapping_sub(a.max(b));
                        let last = next.wrapping_sub(a.min(b));
                        let mut seen = Vec::new();
                        deliveries.visit_range(Serial(first), Serial(last), |_, value| {
                            seen.push(*value);
                            *value % 2 == 0
                        });
                        let span = last.wrapping_sub(first);
                        let is_inside = |id: &u32| id.wrapping_sub(first) <= span;
                        let expected: Vec<u32> = model.iter().map(|(id, _)| *id).filter(is_inside).collect();
                        prop_assert_eq!(seen, expected);
                        model.retain(|(id, _)| !is_inside(id) || id % 2 != 0);
                    }
                }
                prop_assert_eq!(deliveries.len(), model.len());
            }
        }
    }
}
