//! Unacknowledged deliveries of a channel, by delivery tag.

use queue::{ConsumerId, QueueId};
use std::collections::VecDeque;

/// The origin of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryOrigin {
    pub queue: QueueId,
    pub consumer: ConsumerId,
    /// The id of the delivery within the consumer.
    pub id: u64,
}

/// A delivery that the client has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnackedDelivery {
    pub tag: u64,
    /// Delivery time in whole seconds of the session's clock.
    pub since: u32,
    /// Delivered by basic.get; the channel's prefetch does not count it.
    pub by_get: bool,
    pub origin: DeliveryOrigin,
}

#[derive(Clone, Copy, Debug)]
struct UnackedEntry {
    tag: u64,
    since: u32,
    by_get: bool,
    /// None: settled. The entry stays until it reaches the front or until half of the entries are
    /// settled.
    origin: Option<DeliveryOrigin>,
}

impl UnackedEntry {
    fn delivery(&self) -> Option<UnackedDelivery> {
        self.origin.map(|origin| UnackedDelivery {
            tag: self.tag,
            since: self.since,
            by_get: self.by_get,
            origin,
        })
    }
}

/// The deliveries in ascending order of their tags. Gaps need no memory.
#[derive(Debug, Default)]
pub(crate) struct UnackedDeliveries {
    entries: VecDeque<UnackedEntry>,
    /// Number of unsettled entries.
    live: usize,
    /// Number of unsettled entries delivered by basic.get.
    by_get: usize,
}

/// Number of settled entries below which they are not swept.
const SLACK: usize = 64;

impl UnackedDeliveries {
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Number of deliveries to consumers, which the channel's prefetch counts.
    pub(crate) fn consumed(&self) -> usize {
        self.live - self.by_get
    }

    /// Adds a delivery. Tags and times must be ascending.
    pub(crate) fn push(&mut self, unacked: UnackedDelivery) {
        let last = self.entries.back().map_or(0, |e| e.tag);
        debug_assert!(last < unacked.tag, "delivery tags must ascend");
        self.entries.push_back(UnackedEntry {
            tag: unacked.tag,
            since: unacked.since,
            by_get: unacked.by_get,
            origin: Some(unacked.origin),
        });
        self.live += 1;
        self.by_get += usize::from(unacked.by_get);
    }

    /// The deliveries, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = UnackedDelivery> {
        self.entries.iter().filter_map(UnackedEntry::delivery)
    }

    /// Removes one delivery. None if the tag is unknown.
    pub(crate) fn take(&mut self, tag: u64) -> Option<UnackedDelivery> {
        let at = match self.entries.front() {
            Some(first) if first.tag == tag => 0,
            _ => self.entries.binary_search_by_key(&tag, |e| e.tag).ok()?,
        };
        let entry = self.entries.get_mut(at)?;
        let unacked = entry.delivery()?;
        entry.origin = None;
        self.live -= 1;
        self.by_get -= usize::from(unacked.by_get);
        self.sweep();
        Some(unacked)
    }

    /// Returns true if `tag` is unsettled. 0 stands for all deliveries and always returns true.
    pub(crate) fn contains(&self, tag: u64) -> bool {
        let at = self.entries.binary_search_by_key(&tag, |e| e.tag).ok();
        let entry = at.and_then(|at| self.entries.get(at));
        tag == 0 || entry.is_some_and(|e| e.origin.is_some())
    }

    /// Removes all deliveries up to `tag`, which must exist; 0 removes all. None if the tag is
    /// unknown.
    pub(crate) fn take_up_to(&mut self, tag: u64) -> Option<Vec<UnackedDelivery>> {
        let count = if tag == 0 {
            self.entries.len()
        } else {
            let at = self.entries.binary_search_by_key(&tag, |e| e.tag).ok()?;
            self.entries.get(at)?.origin?;
            at + 1
        };
        let removed = self.entries.drain(..count);
        let removed: Vec<UnackedDelivery> = removed.filter_map(|e| e.delivery()).collect();
        self.live -= removed.len();
        self.by_get -= removed.iter().filter(|o| o.by_get).count();
        self.sweep();
        Some(removed)
    }

    pub(crate) fn take_all(&mut self) -> Vec<UnackedDelivery> {
        self.take_up_to(0).unwrap_or_default()
    }

    /// Returns removed deliveries after a rollback.
    pub(crate) fn restore(&mut self, removed: impl IntoIterator<Item = UnackedDelivery>) {
        let mut all = self.take_all();
        all.extend(removed);
        all.sort_unstable_by_key(|o| o.tag);
        for o in all {
            self.push(o);
        }
    }

    /// Frees the memory of settled entries.
    fn sweep(&mut self) {
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

    /// A delivery; every third one is from basic.get.
    fn unacked(tag: u64) -> UnackedDelivery {
        UnackedDelivery {
            tag,
            since: 0,
            by_get: tag.is_multiple_of(3),
            origin: DeliveryOrigin {
                queue: QueueId(1),
                consumer: ConsumerId(1),
                id: tag,
            },
        }
    }

    #[test]
    fn old_delivery_does_not_retain_settled_ones() {
        let mut u = UnackedDeliveries::default();
        u.push(unacked(1));
        for tag in 2..100_000 {
            u.push(unacked(tag));
            assert!(u.take(tag).is_some());
        }
        assert!(
            u.entries.len() <= 2 * u.live + SLACK + 1,
            "{}",
            u.entries.len()
        );
    }

    #[test]
    fn restored_deliveries_return_to_their_order() {
        let mut u = UnackedDeliveries::default();
        for tag in 1..=5 {
            u.push(unacked(tag));
        }
        let removed = [u.take(4), u.take(2)];
        u.restore(removed.into_iter().flatten());
        let tags: Vec<u64> = u.take_all().iter().map(|o| o.tag).collect();
        assert_eq!(tags, [1, 2, 3, 4, 5]);
    }

    proptest! {
        #[test]
        fn matches_a_map(script in proptest::collection::vec((0u8..4, 0u64..60, 1u64..4), 1..200)) {
            let (mut u, mut model, mut next) = (UnackedDeliveries::default(), BTreeMap::new(), 0);
            for (action, tag, gap) in script {
                match action {
                    0 | 1 => { next += gap; u.push(unacked(next)); model.insert(next, next); }
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
