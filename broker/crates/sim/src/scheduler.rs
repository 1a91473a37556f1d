//! Virtual time: the next event is the earliest one; events of the same time are in the order in which they were
//! scheduled.

use env::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Events ordered by virtual time.
#[derive(Debug)]
pub struct Scheduler<E> {
    now: Time,
    scheduled: u64,
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, E>,
}

impl<E> Default for Scheduler<E> {
    fn default() -> Scheduler<E> {
        Scheduler {
            now: Time::ZERO,
            scheduled: 0,
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
        }
    }
}

impl<E> Scheduler<E> {
    /// Current virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Schedules an event. A time in the past means now.
    pub fn at(&mut self, time: Time, event: E) {
        self.scheduled += 1;
        self.heap
            .push(Reverse((time.max(self.now), self.scheduled)));
        self.events.insert(self.scheduled, event);
    }

    /// Advances the time to the next event and returns it.
    pub fn advance(&mut self) -> Option<E> {
        let Reverse((time, sequence)) = self.heap.pop()?;
        debug_assert!(time >= self.now);
        self.now = time;
        self.events.remove(&sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_by_scheduling() {
        let mut scheduler = Scheduler::default();
        for (time, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            scheduler.at(Time(time), event);
        }
        let mut seen = Vec::new();
        while let Some(event) = scheduler.advance() {
            seen.push((scheduler.now().0, event));
            if event == 'b' {
                scheduler.at(Time(0), 'x');
            }
        }
        assert_eq!(seen, [(1, 'a'), (2, 'b'), (2, 'x'), (5, 'c'), (5, 'd')]);
    }
}
