//! Samples the time from the acceptance of a message to its delivery. Sessions offer one delivery of each step, and a kind of
//! deliveries is measured at most once in each millisecond, so most offers cost a comparison.

use control::DeliveryTimings;
use env::{Time, WallTime};
use queue::ByQueueType;
use session::SampledDelivery;
use std::sync::Arc;
use std::time::Duration;
use telemetry::TraceId;

/// The shortest time between two samples of one kind. The clock of messages has milliseconds, too.
const INTERVAL: Duration = Duration::from_millis(1);

pub(crate) struct DeliverySampler {
    /// The times from which on a delivery of each queue type is sampled.
    next_at: ByQueueType<Time>,
    /// The same for deliveries that come from no queue.
    queueless_next_at: Time,
    timings: Arc<DeliveryTimings>,
}

impl DeliverySampler {
    pub(crate) fn new(timings: Arc<DeliveryTimings>) -> DeliverySampler {
        DeliverySampler {
            next_at: ByQueueType::from_fn(|_| Time::ZERO),
            queueless_next_at: Time::ZERO,
            timings,
        }
    }

    /// A session has written this delivery in this turn. `trace`: that of the message, if it is recorded.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        sample: &SampledDelivery,
        (now, wall): (Time, WallTime),
        trace: Option<TraceId>,
    ) {
        let (next_at, histogram) = match sample.queue_type {
            Some(queue_type) => (
                &mut self.next_at[queue_type],
                &self.timings.queues[queue_type],
            ),
            None => (&mut self.queueless_next_at, &self.timings.queueless),
        };
        if *next_at > now {
            return;
        }
        *next_at = now + INTERVAL;
        // The clock of the publisher's node may be ahead.
        let ms = wall.0.saturating_sub(sample.received.0);
        let trace = trace.map(|trace| (trace, wall));
        histogram.observe_message(Duration::from_millis(ms), trace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use queue::QueueType;

    const WALL: WallTime = WallTime(1_000_000);

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    fn sample(queue_type: Option<QueueType>, received: u64) -> SampledDelivery {
        SampledDelivery {
            queue_type,
            received: WallTime(received),
        }
    }

    #[test]
    fn latency_is_the_time_since_the_message_was_accepted() {
        let mut sampler = DeliverySampler::new(Arc::default());
        let quorum = Some(QueueType::Quorum);
        sampler.offer(&sample(quorum, WALL.0 - 7_000), (at(0), WALL), None);
        sampler.offer(&sample(None, WALL.0 - 3), (at(0), WALL), None);
        let read = sampler.timings.queues[QueueType::Quorum].snapshot();
        assert_eq!((read.count, read.sum), (1, 7.0));
        let read = sampler.timings.queueless.snapshot();
        assert_eq!(read.count, 1);
        assert!((read.sum - 0.003).abs() < 1e-9, "{}", read.sum);
        // Accepted by a node whose clock is ahead.
        sampler.offer(&sample(None, WALL.0 + 9), (at(1_000), WALL), None);
        let after = sampler.timings.queueless.snapshot();
        assert_eq!((after.count, after.sum), (2, read.sum));
    }

    #[test]
    fn measured_delivery_of_a_recorded_trace_is_an_exemplar() {
        let mut sampler = DeliverySampler::new(Arc::default());
        let classic = Some(QueueType::Classic);
        let trace = TraceId::from_random([1, 2]);
        sampler.offer(&sample(classic, WALL.0 - 4), (at(0), WALL), None);
        // Not measured.
        sampler.offer(&sample(classic, WALL.0 - 4), (at(1), WALL), Some(trace));
        let read = sampler.timings.queues[QueueType::Classic].snapshot();
        assert_eq!(read.exemplars, []);
        sampler.offer(&sample(classic, WALL.0 - 4), (at(5_000), WALL), Some(trace));
        let read = sampler.timings.queues[QueueType::Classic].snapshot();
        let expected = control::Exemplar {
            trace,
            value: 0.004,
            at: WALL,
        };
        assert_eq!(
            read.exemplars.iter().flatten().collect::<Vec<_>>(),
            [&expected]
        );
    }

    #[test]
    fn each_kind_is_measured_once_in_a_millisecond() {
        let mut sampler = DeliverySampler::new(Arc::default());
        for micros in [0, 10, 999, 1_000, 1_999, 2_500] {
            for queue_type in QueueType::ALL {
                sampler.offer(&sample(Some(queue_type), 0), (at(micros), WALL), None);
            }
            sampler.offer(&sample(None, 0), (at(micros), WALL), None);
        }
        let timings = &sampler.timings;
        for (queue_type, histogram) in timings.queues.iter() {
            assert_eq!(histogram.snapshot().count, 3, "{queue_type:?}");
        }
        assert_eq!(timings.queueless.snapshot().count, 3);
    }
}
