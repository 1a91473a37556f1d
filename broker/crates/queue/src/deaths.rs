//! Counts of dead messages by queue type, dead-letter mode and reason. Queues without dead messages need no
//! memory for them.

use crate::{ByQueueType, DeadLettering, DeadReason, QueueType};

const MODES: usize = 3;
const REASONS: usize = DeadReason::ALL.len();

/// Number of dead messages by queue type, dead-letter mode and reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeathCounts(ByQueueType<[[u64; REASONS]; MODES]>);

impl DeathCounts {
    /// Counts one message.
    pub fn count(&mut self, queue_type: QueueType, mode: DeadLettering, reason: DeadReason) {
        *self.at(queue_type, mode, reason) += 1;
    }

    /// Returns one of the counts.
    pub fn of(&self, queue_type: QueueType, mode: DeadLettering, reason: DeadReason) -> u64 {
        let mut counts = *self;
        *counts.at(queue_type, mode, reason)
    }

    /// Adds the counts of another queue or interval.
    pub fn add(&mut self, other: &DeathCounts) {
        for (queue_type, ours) in self.0.iter_mut() {
            let ours = ours.as_flattened_mut();
            let theirs = other.0[queue_type].as_flattened();
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                *ours += theirs;
            }
        }
    }

    fn at(&mut self, queue_type: QueueType, mode: DeadLettering, reason: DeadReason) -> &mut u64 {
        let mode = match mode {
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
        &mut self.0[queue_type][mode][reason]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_messages_are_counted_by_type_mode_and_reason() {
        let queue_types = [QueueType::Classic, QueueType::Quorum];
        let modes = [
            DeadLettering::Off,
            DeadLettering::AtMostOnce,
            DeadLettering::AtLeastOnce,
        ];
        let all = || {
            let queue_types = queue_types.into_iter();
            let both = queue_types.flat_map(|k| modes.into_iter().map(move |w| (k, w)));
            both.flat_map(|(k, w)| DeadReason::ALL.into_iter().map(move |r| (k, w, r)))
        };
        let mut counts = DeathCounts::default();
        for (at, (queue_type, mode, reason)) in all().enumerate() {
            (0..=at).for_each(|_| counts.count(queue_type, mode, reason));
        }
        let mut twice = counts;
        twice.add(&counts);
        for (at, (queue_type, mode, reason)) in all().enumerate() {
            assert_eq!(counts.of(queue_type, mode, reason), at as u64 + 1);
            assert_eq!(twice.of(queue_type, mode, reason), 2 * (at as u64 + 1));
        }
    }
}
