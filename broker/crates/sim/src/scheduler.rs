//! Virtual time: the next event is the earliest; of two at the same time the one that was planned first.

use env::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Events by virtual time.
#[derive(Debug)]
pub struct Scheduler<E> {
    now: Time,
    planned: u64,
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, E>,
}

impl<E> Default for Scheduler<E> {
    fn default() -> Scheduler<E> {
        Scheduler {
            now: Time::ZERO,
            planned: 0,
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
        }
    }
}

impl<E> Scheduler<E> {
    pub fn now(&self) -> Time {
        self.now
    }

    /// Plans an event; a time that has passed means now.
    pub fn at(&mut self, time: Time, event: E) {
        self.planned += 1;
        self.heap.push(Reverse((time.max(self.now), self.planned)));
        self.events.insert(self.planned, event);
    }

    /// Goes on to the next event.
    pub fn advance(&mut self) -> Option<E> {
        let Reverse((time, number)) = self.heap.pop()?;
        self.now = time;
        self.events.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_of_time_then_of_planning() {
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
