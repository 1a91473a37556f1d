//! Publishes of a channel that queues have not answered yet.
//!
//! Every publish has a slot, with or without confirms, because the slots also bound the messages in
//! flight. A slot is found by its distance from the oldest one, without hashing.

use crate::publish_tag::SEQ_MASK;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
struct PublishSlot {
    /// Number of queues that have not answered. The bit [`FAILED`] is set if one rejected the
    /// message.
    state: u32,
    size: u32,
}

const FAILED: u32 = 1 << 31;

/// Size of the record of one publish.
pub(crate) const SLOT_BYTES: usize = size_of::<PublishSlot>();

/// Slots kept allocated while nothing is in flight.
const KEEP: usize = 64;

/// A publish that all of its queues have answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledPublish {
    pub seq: u64,
    /// False if at least one queue rejected the message.
    pub accepted: bool,
    /// All earlier publishes are settled as well.
    pub in_order: bool,
    /// The size passed to [`Confirms::publish`].
    pub size: u32,
}

/// The unsettled publishes. Sequence numbers start at 1.
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
    pub(crate) fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// The publish number whose low bits a tag has, if that publish is unsettled. For other publishes
    /// the result is a number that is not in flight.
    pub(crate) fn expand(&self, low: u64) -> u64 {
        debug_assert!(
            self.slots.len() as u64 <= SEQ_MASK,
            "publish numbers are ambiguous"
        );
        self.first + (low.wrapping_sub(self.first) & SEQ_MASK)
    }

    /// Number of records: unsettled publishes, and settled ones behind the first of them.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if no publish is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn in_flight(&self) -> impl Iterator<Item = u32> {
        self.slots
            .iter()
            .filter(|s| s.state & !FAILED != 0)
            .map(|s| s.size)
    }

    /// Records a publish to this many queues. With 0 queues it is settled at once.
    pub(crate) fn publish(&mut self, queues: usize, size: u32) -> Option<SettledPublish> {
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
                accepted: true,
                in_order,
                size: 0,
            });
        }
        let state = u32::try_from(queues).unwrap_or(u32::MAX) & !FAILED;
        self.slots.push_back(PublishSlot { state, size });
        None
    }

    /// Records the answer of one queue. Returns None while other queues have not answered, and for
    /// unknown numbers.
    pub(crate) fn record_answer(&mut self, seq: u64, accepted: bool) -> Option<SettledPublish> {
        let at = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        let slot = self.slots.get_mut(at)?;
        if slot.state & !FAILED == 0 {
            return None;
        }
        slot.state -= 1;
        if !accepted {
            slot.state |= FAILED;
        }
        if slot.state & !FAILED != 0 {
            return None;
        }
        let settled = SettledPublish {
            seq,
            accepted: slot.state & FAILED == 0,
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
    fn publish_settles_once_and_reports_whether_it_is_in_order() {
        let mut c = Confirms::default();
        assert_eq!(c.publish(2, 10), None);
        assert_eq!(c.publish(1, 20), None);
        let third = c.publish(0, 0);
        assert_eq!(
            third,
            Some(SettledPublish {
                seq: 3,
                accepted: true,
                in_order: false,
                size: 0
            })
        );
        assert_eq!(c.record_answer(1, true), None);
        assert_eq!(
            c.record_answer(2, false),
            Some(SettledPublish {
                seq: 2,
                accepted: false,
                in_order: false,
                size: 20
            })
        );
        assert_eq!(c.record_answer(2, true), None);
        assert_eq!(
            c.record_answer(1, true),
            Some(SettledPublish {
                seq: 1,
                accepted: true,
                in_order: true,
                size: 10
            })
        );
        assert_eq!((c.next(), c.slots.len()), (4, 0));
        assert_eq!(c.record_answer(9, true), None);
    }

    #[test]
    fn expand_restores_numbers_beyond_the_bits_of_a_tag() {
        let first = 5 * (SEQ_MASK + 1) - 2;
        let mut c = Confirms {
            first,
            slots: VecDeque::new(),
        };
        for seq in first..first + 4 {
            assert_eq!((c.next(), c.publish(1, 10)), (seq, None));
        }
        for seq in first..first + 4 {
            assert_eq!(c.expand(seq & SEQ_MASK), seq);
        }
        // An answer that comes twice belongs to no publish.
        assert!(c.record_answer(c.expand(first & SEQ_MASK), true).is_some());
        let again = c.expand(first & SEQ_MASK);
        assert_eq!(c.record_answer(again, true), None);
    }

    proptest! {
        /// Compares with a list of pending answers.
        #[test]
        fn matches_a_naive_model(script in proptest::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            let mut c = Confirms::default();
            let mut pending: Vec<(u64, usize, bool)> = Vec::new();
            let mut unsettled: std::collections::BTreeSet<u64> = Default::default();
            for (queues, pick, accepted) in script {
                if queues > 0 || pending.is_empty() {
                    let seq = c.next();
                    let done = c.publish(queues, 1);
                    prop_assert_eq!(done.is_some(), queues == 0);
                    if queues > 0 {
                        pending.push((seq, queues, true));
                        unsettled.insert(seq);
                    }
                } else {
                    let at = pick.index(pending.len());
                    let (seq, left, ok) = pending[at];
                    let settled = c.record_answer(seq, accepted);
                    pending[at] = (seq, left - 1, ok && accepted);
                    if left == 1 {
                        pending.swap_remove(at);
                        let in_order = unsettled.first() == Some(&seq);
                        unsettled.remove(&seq);
                        prop_assert_eq!(settled, Some(SettledPublish { seq, accepted: ok && accepted, in_order, size: 1 }));
                    } else {
                        prop_assert_eq!(settled, None);
                    }
                }
                prop_assert_eq!(c.in_flight().count(), pending.len());
            }
        }
    }
}
