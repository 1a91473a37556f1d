//! Deliveries that a channel's client has not yet acknowledged, by delivery tag.

use queue::{ConsumerId, QueueId};
use std::collections::VecDeque;

/// Where a delivery came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryOrigin {
    pub queue: QueueId,
    pub consumer: ConsumerId,
    /// The consumer's delivery id.
    pub id: u64,
}

/// A delivery whose acknowledgement the client owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnackedDelivery {
    pub tag: u64,
    /// Whole seconds of the session's clock.
    pub since: u32,
    /// Asked for with basic.get: the channel's limit does not count it.
    pub got: bool,
    pub origin: DeliveryOrigin,
}

#[derive(Clone, Copy, Debug)]
struct UnackedEntry {
    tag: u64,
    since: u32,
    got: bool,
    /// None: settled, kept until it reaches the front or half of all are such.
    origin: Option<DeliveryOrigin>,
}

impl UnackedEntry {
    fn owed(&self) -> Option<UnackedDelivery> {
        self.origin.map(|origin| UnackedDelivery {
            tag: self.tag,
            since: self.since,
            got: self.got,
            origin,
        })
    }
}

/// Ascending by tag. Gaps cost nothing.
#[derive(Debug, Default)]
pub(crate) struct UnackedDeliveries {
    entries: VecDeque<UnackedEntry>,
    live: usize,
    /// How many of them came by basic.get.
    got: usize,
}

/// Settled entries that are not worth a sweep.
const SLACK: usize = 64;

impl UnackedDeliveries {
    pub fn len(&self) -> usize {
        self.live
    }

    /// Those that were delivered to consumers: what a limit on the channel counts.
    pub fn consumed(&self) -> usize {
        self.live - self.got
    }

    /// Tags and times must ascend.
    pub fn push(&mut self, owed: UnackedDelivery) {
        self.entries.push_back(UnackedEntry {
            tag: owed.tag,
            since: owed.since,
            got: owed.got,
            origin: Some(owed.origin),
        });
        self.live += 1;
        self.got += usize::from(owed.got);
    }

    /// The oldest first.
    pub fn iter(&self) -> impl Iterator<Item = UnackedDelivery> {
        self.entries.iter().filter_map(UnackedEntry::owed)
    }

    /// Takes one; None when there is no such tag.
    pub fn take(&mut self, tag: u64) -> Option<UnackedDelivery> {
        let at = match self.entries.front() {
            Some(first) if first.tag == tag => 0,
            _ => self.entries.binary_search_by_key(&tag, |e| e.tag).ok()?,
        };
        let entry = self.entries.get_mut(at)?;
        let owed = entry.owed()?;
        entry.origin = None;
        self.live -= 1;
        self.got -= usize::from(owed.got);
        self.tidy();
        Some(owed)
    }

    /// Whether `tag` is there; 0, all there are, always is.
    pub fn owes(&self, tag: u64) -> bool {
        let at = self.entries.binary_search_by_key(&tag, |e| e.tag).ok();
        let entry = at.and_then(|at| self.entries.get(at));
        tag == 0 || entry.is_some_and(|e| e.origin.is_some())
    }

    /// Takes all up to `tag`, which must be there; 0 is all there are. None: no such tag.
    pub fn take_up_to(&mut self, tag: u64) -> Option<Vec<UnackedDelivery>> {
        let count = if tag == 0 {
            self.entries.len()
        } else {
            let at = self.entries.binary_search_by_key(&tag, |e| e.tag).ok()?;
            self.entries.get(at)?.origin?;
            at + 1
        };
        let taken = self.entries.drain(..count);
        let taken: Vec<UnackedDelivery> = taken.filter_map(|e| e.owed()).collect();
        self.live -= taken.len();
        self.got -= taken.iter().filter(|o| o.got).count();
        self.tidy();
        Some(taken)
    }

    pub fn take_all(&mut self) -> Vec<UnackedDelivery> {
        self.take_up_to(0).unwrap_or_default()
    }

    /// Puts back what was taken: a transaction was rolled back.
    pub fn restore(&mut self, owed: impl IntoIterator<Item = UnackedDelivery>) {
        let mut all = self.take_all();
        all.extend(owed);
        all.sort_unstable_by_key(|o| o.tag);
        for o in all {
            self.push(o);
        }
    }

    fn tidy(&mut self) {
        while self.entries.front().is_some_and(|e| e.origin.is_none()) {
            self.entries.pop_front();
        }
        if self.entries.len() > 2 * self.live + SLACK {
            self.entries.retain(|e| e.origin.is_some());
        }
        if self.entries.is_empty() && self.entries.capacity() > 4 * SLACK {
            self.entries.shrink_to(SLACK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Every third came by basic.get.
    fn owed(tag: u64) -> UnackedDelivery {
        UnackedDelivery {
            tag,
            since: 0,
            got: tag.is_multiple_of(3),
            origin: DeliveryOrigin {
                queue: QueueId(1),
                consumer: ConsumerId(1),
                id: tag,
            },
        }
    }

    #[test]
    fn one_that_stays_does_not_keep_the_others() {
        let mut u = UnackedDeliveries::default();
        u.push(owed(1));
        for tag in 2..100_000 {
            u.push(owed(tag));
            assert!(u.take(tag).is_some());
        }
        assert!(
            u.entries.len() <= 2 * u.live + SLACK + 1,
            "{}",
            u.entries.len()
        );
    }

    #[test]
    fn what_was_taken_can_be_put_back_in_its_place() {
        let mut u = UnackedDeliveries::default();
        for tag in 1..=5 {
            u.push(owed(tag));
        }
        let taken = [u.take(4), u.take(2)];
        u.restore(taken.into_iter().flatten());
        let tags: Vec<u64> = u.take_all().iter().map(|o| o.tag).collect();
        assert_eq!(tags, [1, 2, 3, 4, 5]);
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(script in proptest::collection::vec((0u8..4, 0u64..60, 1u64..4), 1..200)) {
            let (mut u, mut model, mut next) = (UnackedDeliveries::default(), BTreeMap::new(), 0);
            for (what, tag, gap) in script {
                match what {
                    0 | 1 => { next += gap; u.push(owed(next)); model.insert(next, next); }
                    2 => prop_assert_eq!(u.take(tag).map(|o| o.origin.id), model.remove(&tag)),
                    _ => {
                        let expected = if tag == 0 {
                            Some(std::mem::take(&mut model).into_values().collect::<Vec<_>>())
                        } else if model.contains_key(&tag) {
                            let rest = model.split_off(&(tag + 1));
                            Some(std::mem::replace(&mut model, rest).into_values().collect())
                        } else { None };
                        prop_assert_eq!(u.take_up_to(tag).map(|v| v.iter().map(|o| o.origin.id).collect::<Vec<_>>()), expected);
                    }
                }
                prop_assert_eq!(u.len(), model.len());
                let consumed = model.keys().filter(|tag| !tag.is_multiple_of(3)).count();
                prop_assert_eq!(u.consumed(), consumed);
            }
        }
    }
}
