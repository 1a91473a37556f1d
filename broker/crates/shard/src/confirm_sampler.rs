//! Samples the time from the publish of a message to its confirm. Measures one message of a client at a time, and at most one in
//! each millisecond, so a publish and a confirm cost one comparison each.

use control::ConfirmTimings;
use env::{Time, WallTime};
use metadata::{QueueId, QueueType};
use session::PublishTag;
use std::sync::Arc;
use std::time::Duration;
use telemetry::TraceId;

/// A sampled message whose confirm is this late gives its place to the next one. Its queue may have no leader for long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The shortest time from the publish of a sampled message to that of the next one.
const INTERVAL: Duration = Duration::from_millis(1);

/// Identifies a publish to a queue.
type PublishKey = (u64, QueueId, PublishTag);

struct SampledPublish {
    key: PublishKey,
    queue_type: QueueType,
    at: Time,
}

#[derive(Default)]
pub(crate) struct ConfirmSampler {
    sampled: Option<SampledPublish>,
    /// The time from which on a message is sampled.
    next_at: Time,
    timings: Arc<ConfirmTimings>,
}

impl ConfirmSampler {
    pub(crate) fn new(timings: Arc<ConfirmTimings>) -> ConfirmSampler {
        ConfirmSampler {
            sampled: None,
            next_at: Time::ZERO,
            timings,
        }
    }

    /// A client publishes a message that is to be confirmed.
    #[inline]
    pub(crate) fn publish(&mut self, key: PublishKey, queue_type: QueueType, now: Time) {
        let is_free = match &self.sampled {
            None => self.next_at <= now,
            Some(sampled) => sampled.at + PATIENCE < now,
        };
        if is_free {
            self.sampled = Some(SampledPublish {
                key,
                queue_type,
                at: now,
            });
        }
    }

    /// A message is confirmed. `trace`: that of the message, if it is recorded.
    #[inline]
    pub(crate) fn confirmed(
        &mut self,
        key: PublishKey,
        now: Time,
        trace: Option<(TraceId, WallTime)>,
    ) {
        if let Some(sampled) = &self.sampled
            && sampled.key == key
        {
            let duration = now.since(sampled.at);
            self.timings.0[sampled.queue_type].observe_message(duration, trace);
            self.next_at = sampled.at + INTERVAL;
            self.sampled = None;
        }
    }

    /// A message is refused, or will never be answered.
    pub(crate) fn forget(&mut self, session: u64, queue: QueueId) {
        let belongs = |sampled: &SampledPublish| (sampled.key.0, sampled.key.1) == (session, queue);
        if self.sampled.as_ref().is_some_and(belongs) {
            self.sampled = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: QueueId = QueueId(1);
    const B: QueueId = QueueId(2);

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn counts(sampler: &ConfirmSampler) -> [u64; 3] {
        QueueType::ALL.map(|queue_type| sampler.timings.0[queue_type].snapshot().count)
    }

    #[test]
    fn one_message_at_a_time_is_measured() {
        let mut sampler = ConfirmSampler::default();
        sampler.publish((1, A, PublishTag(1)), QueueType::Quorum, at(0));
        sampler.publish((1, B, PublishTag(1)), QueueType::Classic, at(1));
        sampler.confirmed((1, B, PublishTag(1)), at(2), None);
        sampler.confirmed((2, A, PublishTag(1)), at(2), None);
        assert_eq!(counts(&sampler), [0, 0, 0]);
        sampler.confirmed((1, A, PublishTag(1)), at(5), None);
        sampler.confirmed((1, A, PublishTag(1)), at(6), None);
        assert_eq!(counts(&sampler), [0, 1, 0]);
        let read = sampler.timings.0[QueueType::Quorum].snapshot();
        assert!((read.sum - 0.005).abs() < 1e-9, "{}", read.sum);
    }

    #[test]
    fn measured_message_of_a_recorded_trace_is_an_exemplar() {
        let mut sampler = ConfirmSampler::default();
        let trace = |id| Some((TraceId::from_random([0, id]), WallTime(id)));
        sampler.publish((1, A, PublishTag(1)), QueueType::Quorum, at(0));
        sampler.confirmed((1, A, PublishTag(2)), at(1), trace(2));
        sampler.confirmed((1, A, PublishTag(1)), at(2), trace(3));
        let read = sampler.timings.0[QueueType::Quorum].snapshot();
        let exemplars = read.exemplars.iter().flatten();
        let shown: Vec<_> = exemplars.map(|e| (e.at.0, e.value)).collect();
        assert_eq!(shown, [(3, 0.002)]);
    }

    #[test]
    fn messages_of_one_millisecond_have_one_sample() {
        let mut sampler = ConfirmSampler::default();
        for (tag, now) in [(1, at(5)), (2, at(5)), (3, at(6)), (4, at(6))] {
            sampler.publish((1, A, PublishTag(tag)), QueueType::Quorum, now);
            sampler.confirmed((1, A, PublishTag(tag)), now, None);
        }
        assert_eq!(counts(&sampler), [0, 2, 0]);
    }

    #[test]
    fn a_message_without_a_confirm_gives_its_place_to_another() {
        let mut sampler = ConfirmSampler::default();
        sampler.publish((1, A, PublishTag(1)), QueueType::Quorum, at(0));
        sampler.forget(1, B);
        sampler.publish((1, A, PublishTag(2)), QueueType::Quorum, at(60_000));
        sampler.confirmed((1, A, PublishTag(2)), at(60_001), None);
        assert_eq!(counts(&sampler), [0, 0, 0]);
        sampler.publish((1, A, PublishTag(3)), QueueType::Quorum, at(60_001));
        sampler.confirmed((1, A, PublishTag(3)), at(60_002), None);
        assert_eq!(counts(&sampler), [0, 1, 0]);
        sampler.publish((1, A, PublishTag(4)), QueueType::Quorum, at(60_003));
        sampler.forget(1, A);
        sampler.publish((1, B, PublishTag(5)), QueueType::Stream, at(60_004));
        sampler.confirmed((1, B, PublishTag(5)), at(60_005), None);
        assert_eq!(counts(&sampler), [0, 1, 1]);
    }
}
