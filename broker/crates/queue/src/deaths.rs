//! Messages that left a queue without having been accepted, counted: of which type the queue was, what became of them, and
//! what they died of. Nothing is counted, nor any room taken, for messages that do not die.

use crate::{ByQueueType, DeadLettering, DeadReason, QueueType};

const WAYS: usize = 3;
const REASONS: usize = DeadReason::ALL.len();

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeathCounts(ByQueueType<[[u64; REASONS]; WAYS]>);

impl DeathCounts {
    pub fn count(&mut self, kind: QueueType, way: DeadLettering, reason: DeadReason) {
        *self.at(kind, way, reason) += 1;
    }

    pub fn of(&self, kind: QueueType, way: DeadLettering, reason: DeadReason) -> u64 {
        let mut counts = *self;
        *counts.at(kind, way, reason)
    }

    pub fn add(&mut self, other: &DeathCounts) {
        for (queue_type, ours) in self.0.iter_mut() {
            let ours = ours.as_flattened_mut();
            let theirs = other.0[queue_type].as_flattened();
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                *ours += theirs;
            }
        }
    }

    fn at(&mut self, kind: QueueType, way: DeadLettering, reason: DeadReason) -> &mut u64 {
        let way = match way {
            DeadLettering::Off => 0,
            DeadLettering::AtMostOnce => 1,
            DeadLettering::AtLeastOnce => 2,
        };
        let reason = match reason {
            DeadReason::Rejected => 0,
            DeadReason::Expired => 1,
            DeadReason::MaxLength => 2,
            DeadReason::DeliveryLimit => 3,
        };
        &mut self.0[kind][way][reason]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_apart_and_sums_are_of_all() {
        let kinds = [QueueType::Classic, QueueType::Quorum];
        let ways = [
            DeadLettering::Off,
            DeadLettering::AtMostOnce,
            DeadLettering::AtLeastOnce,
        ];
        let all = || {
            let kinds = kinds.into_iter();
            let both = kinds.flat_map(|k| ways.into_iter().map(move |w| (k, w)));
            both.flat_map(|(k, w)| DeadReason::ALL.into_iter().map(move |r| (k, w, r)))
        };
        let mut counts = DeathCounts::default();
        for (at, (kind, way, reason)) in all().enumerate() {
            (0..=at).for_each(|_| counts.count(kind, way, reason));
        }
        let mut twice = counts;
        twice.add(&counts);
        for (at, (kind, way, reason)) in all().enumerate() {
            assert_eq!(counts.of(kind, way, reason), at as u64 + 1);
            assert_eq!(twice.of(kind, way, reason), 2 * (at as u64 + 1));
        }
    }
}
