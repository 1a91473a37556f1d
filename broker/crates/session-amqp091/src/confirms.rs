//! Which publishes of a channel are still on their way to queues.
//!
//! Every publish has a slot, confirms wanted or not: the slots are also what bounds messages in flight. A number is
//! found by its distance from the oldest, without hashing.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
struct PublishSlot {
    /// Queues that have not answered; [`FAILED`] when one refused.
    state: u32,
    size: u32,
}

const FAILED: u32 = 1 << 31;

/// Slots kept allocated while nothing is in flight.
const KEEP: usize = 64;

/// A publish all of whose queues have answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledPublish {
    pub seq: u64,
    /// False: at least one queue refused it.
    pub taken: bool,
    /// Everything before it has been settled as well.
    pub in_order: bool,
    /// As given to [`Confirms::publish`].
    pub size: u32,
}

/// Numbers start at 1.
#[derive(Debug)]
pub(crate) struct Confirms {
    first: u64,
    slots: VecDeque<PublishSlot>,
}

impl Default for Confirms {
    fn default() -> Self {
        Confirms {
            first: 1,
            slots: VecDeque::new(),
        }
    }
}

impl Confirms {
    /// The number of the next publish.
    pub fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn in_flight(&self) -> impl Iterator<Item = u32> {
        self.slots
            .iter()
            .filter(|s| s.state & !FAILED != 0)
            .map(|s| s.size)
    }

    /// Takes note of a publish to that many queues. With none it is settled at once.
    pub fn publish(&mut self, queues: usize, size: u32) -> Option<SettledPublish> {
        let seq = self.next();
        if queues == 0 {
            let in_order = self.slots.is_empty();
            if in_order {
                self.first += 1;
            } else {
                self.slots.push_back(PublishSlot { state: 0, size: 0 });
            }
            return Some(SettledPublish {
                seq,
                taken: true,
                in_order,
                size: 0,
            });
        }
        let state = u32::try_from(queues).unwrap_or(u32::MAX) & !FAILED;
        self.slots.push_back(PublishSlot { state, size });
        None
    }

    /// A queue has answered for that number. None while others have not, and for numbers that are not out.
    pub fn answered(&mut self, seq: u64, taken: bool) -> Option<SettledPublish> {
        let at = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        let slot = self.slots.get_mut(at)?;
        if slot.state & !FAILED == 0 {
            return None;
        }
        slot.state -= 1;
        if !taken {
            slot.state |= FAILED;
        }
        if slot.state & !FAILED != 0 {
            return None;
        }
        let settled = SettledPublish {
            seq,
            taken: slot.state & FAILED == 0,
            in_order: at == 0,
            size: slot.size,
        };
        while self.slots.front().is_some_and(|s| s.state & !FAILED == 0) {
            self.slots.pop_front();
            self.first += 1;
        }
        if self.slots.is_empty() && self.slots.capacity() > KEEP {
            self.slots.shrink_to(KEEP);
        }
        Some(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_settle_once_and_in_order_is_said() {
        let mut c = Confirms::default();
        assert_eq!(c.publish(2, 10), None);
        assert_eq!(c.publish(1, 20), None);
        let third = c.publish(0, 0);
        assert_eq!(
            third,
            Some(SettledPublish {
                seq: 3,
                taken: true,
                in_order: false,
                size: 0
            })
        );
        assert_eq!(c.answered(1, true), None);
        assert_eq!(
            c.answered(2, false),
            Some(SettledPublish {
                seq: 2,
                taken: false,
                in_order: false,
                size: 20
            })
        );
        assert_eq!(c.answered(2, true), None);
        assert_eq!(
            c.answered(1, true),
            Some(SettledPublish {
                seq: 1,
                taken: true,
                in_order: true,
                size: 10
            })
        );
        assert_eq!((c.next(), c.slots.len()), (4, 0));
        assert_eq!(c.answered(9, true), None);
    }

    proptest! {
        /// Against a plain list of what is owed.
        #[test]
        fn agrees_with_a_naive_model(script in proptest::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            let mut c = Confirms::default();
            let mut owed: Vec<(u64, usize, bool)> = Vec::new();
            let mut unsettled: std::collections::BTreeSet<u64> = Default::default();
            for (queues, pick, taken) in script {
                if queues > 0 || owed.is_empty() {
                    let seq = c.next();
                    let done = c.publish(queues, 1);
                    prop_assert_eq!(done.is_some(), queues == 0);
                    if queues > 0 {
                        owed.push((seq, queues, true));
                        unsettled.insert(seq);
                    }
                } else {
                    let at = pick.index(owed.len());
                    let (seq, left, ok) = owed[at];
                    let settled = c.answered(seq, taken);
                    owed[at] = (seq, left - 1, ok && taken);
                    if left == 1 {
                        owed.swap_remove(at);
                        let in_order = unsettled.first() == Some(&seq);
                        unsettled.remove(&seq);
                        prop_assert_eq!(settled, Some(SettledPublish { seq, taken: ok && taken, in_order, size: 1 }));
                    } else {
                        prop_assert_eq!(settled, None);
                    }
                }
                prop_assert_eq!(c.in_flight().count(), owed.len());
            }
        }
    }
}
