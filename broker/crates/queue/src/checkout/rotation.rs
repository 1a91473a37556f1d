//! The order in which consumers are served: by priority, and among equals the one that has waited longest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// A consumer that can get another delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingConsumer {
    /// Tickets are assigned in ascending order, each once.
    pub ticket: u64,
    /// Number of the consumer.
    pub number: u64,
}

/// Waiting consumers; see the module.
#[derive(Debug, Default)]
pub(crate) struct ConsumerRotation {
    /// By descending priority, no class empty; ascending by ticket.
    classes: BTreeMap<Reverse<i32>, VecDeque<WaitingConsumer>>,
}

impl ConsumerRotation {
    /// Number of waiting consumers.
    pub(crate) fn len(&self) -> usize {
        self.classes.values().map(VecDeque::len).sum()
    }

    /// The consumer to serve next.
    pub(crate) fn first(&self) -> Option<WaitingConsumer> {
        let (_, class) = self.classes.first_key_value()?;
        class.front().copied()
    }

    pub(crate) fn insert(&mut self, priority: i32, turn: WaitingConsumer) {
        let class = self.classes.entry(Reverse(priority)).or_default();
        match class.back() {
            Some(last) if last.ticket > turn.ticket => {
                let at = class.partition_point(|waiting| waiting.ticket < turn.ticket);
                class.insert(at, turn);
            }
            _ => class.push_back(turn),
        }
    }

    pub(crate) fn remove(&mut self, priority: i32, ticket: u64) {
        let Some(class) = self.classes.get_mut(&Reverse(priority)) else {
            return;
        };
        if let Ok(at) = class.binary_search_by_key(&ticket, |waiting| waiting.ticket) {
            class.remove(at);
        }
        if class.is_empty() {
            self.classes.remove(&Reverse(priority));
        }
    }

    /// Removes the first consumer after it was served. With `again` it waits under this later ticket.
    pub(crate) fn advance(&mut self, again: Option<u64>) {
        let Some(mut first) = self.classes.first_entry() else {
            return;
        };
        let class = first.get_mut();
        let served = class.pop_front();
        debug_assert!(served.is_some(), "no class is empty");
        debug_assert!(again.is_none_or(|ticket| served.is_none_or(|s| s.ticket < ticket)));
        match (served, again) {
            (Some(turn), Some(ticket)) => class.push_back(WaitingConsumer { ticket, ..turn }),
            _ if class.is_empty() => {
                first.remove();
            }
            _ => {}
        }
    }

    pub(crate) fn clear(&mut self) {
        self.classes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert {
            priority: i32,
        },
        /// Removes a waiting consumer.
        Remove(usize),
        /// Removes a consumer and inserts it again with its old ticket.
        Restore(usize),
        Served {
            again: bool,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (-2i32..3).prop_map(|priority| Step::Insert { priority }),
            1 => any::<usize>().prop_map(Step::Remove),
            1 => any::<usize>().prop_map(Step::Restore),
            4 => any::<bool>().prop_map(|again| Step::Served { again }),
        ]
    }

    proptest! {
        /// Compares with a map by priority and ticket.
        #[test]
        fn rotation_orders_by_priority_and_ticket(steps in proptest::collection::vec(step(), 1..200)) {
            let mut rotation = ConsumerRotation::default();
            let mut map: BTreeMap<(Reverse<i32>, u64), u64> = BTreeMap::new();
            let mut next = 1;
            for step in steps {
                let nth = |n: usize| map.iter().nth(n % map.len().max(1)).map(|(at, n)| (*at, *n));
                match step {
                    Step::Insert { priority } => {
                        rotation.insert(priority, WaitingConsumer { ticket: next, number: next * 7 });
                        map.insert((Reverse(priority), next), next * 7);
                        next += 1;
                    }
                    Step::Remove(n) => if let Some((at, _)) = nth(n) {
                        rotation.remove(at.0.0, at.1);
                        map.remove(&at);
                        rotation.remove(at.0.0, at.1);
                    }
                    Step::Restore(n) => if let Some((at, number)) = nth(n) {
                        rotation.remove(at.0.0, at.1);
                        rotation.insert(at.0.0, WaitingConsumer { ticket: at.1, number });
                    }
                    Step::Served { again } => {
                        rotation.advance(again.then_some(next));
                        if let Some(((priority, _), number)) = map.pop_first() && again {
                            map.insert((priority, next), number);
                            next += 1;
                        }
                    }
                }
                let first = map.first_key_value();
                let first = first.map(|((_, ticket), number)| WaitingConsumer { ticket: *ticket, number: *number });
                prop_assert_eq!(rotation.first(), first);
                let waiting: usize = rotation.classes.values().map(VecDeque::len).sum();
                prop_assert_eq!(waiting, map.len());
                prop_assert!(rotation.classes.values().all(|class| !class.is_empty()));
            }
        }
    }
}
