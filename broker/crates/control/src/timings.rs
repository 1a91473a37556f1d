//! Histograms of durations that threads of a node fill and the metrics endpoint reads.

use env::WallTime;
use queue::ByQueueType;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use telemetry::TraceId;

/// Upper bounds of the buckets in microseconds. A last bucket has no bound.
const BOUNDS_US: [u64; 15] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000,
];

/// Upper bounds of the buckets for latencies of deliveries in microseconds: the times have milliseconds, and messages may wait for
/// long.
const LATENCY_BOUNDS_US: [u64; BOUNDS_US.len()] = [
    1_000,
    2_000,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    60_000_000,
    600_000_000,
    3_600_000_000,
];

/// An observation of a message whose trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// The trace.
    pub trace: TraceId,
    /// The observation in the unit of the metric.
    pub value: f64,
    /// When it was observed.
    pub at: WallTime,
}

/// The newest exemplar of each bucket.
type Exemplars = [Option<Exemplar>; BOUNDS_US.len() + 1];

/// A histogram of durations. Adding one costs two atomic additions.
#[derive(Debug)]
pub struct DurationHistogram {
    /// In microseconds.
    bounds: &'static [u64; BOUNDS_US.len()],
    /// Not cumulative.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    /// The sum in nanoseconds.
    sum: AtomicU64,
    /// Empty until the first message of a recorded trace is observed.
    exemplars: OnceLock<Box<Mutex<Exemplars>>>,
}

impl Default for DurationHistogram {
    fn default() -> DurationHistogram {
        DurationHistogram::with_bounds(&BOUNDS_US)
    }
}

/// The contents of a histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramSnapshot {
    /// Upper bounds in the unit of the metric and the number of observations up to each. Without the bucket that has no bound.
    pub buckets: Vec<(f64, u64)>,
    /// The number of all observations.
    pub count: u64,
    /// Their sum in the unit of the metric.
    pub sum: f64,
    /// The newest exemplar of each bucket, that without a bound last. Empty: there are none.
    pub exemplars: Vec<Option<Exemplar>>,
}

impl HistogramSnapshot {
    /// Adds the durations of another histogram with the same bounds.
    fn add(&mut self, other: HistogramSnapshot) {
        debug_assert_eq!(self.buckets.len(), other.buckets.len(), "other bounds");
        for ((_, sum), (_, count)) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
        self.count += other.count;
        self.sum += other.sum;
        if self.exemplars.is_empty() {
            self.exemplars = other.exemplars;
            return;
        }
        for (ours, theirs) in self.exemplars.iter_mut().zip(other.exemplars) {
            let time = |exemplar: &Option<Exemplar>| exemplar.map(|e| e.at);
            if time(&theirs) > time(ours) {
                *ours = theirs;
            }
        }
    }
}

impl DurationHistogram {
    fn with_bounds(bounds: &'static [u64; BOUNDS_US.len()]) -> DurationHistogram {
        DurationHistogram {
            bounds,
            buckets: Default::default(),
            sum: AtomicU64::default(),
            exemplars: OnceLock::new(),
        }
    }

    /// Adds a duration.
    pub fn observe(&self, duration: Duration) {
        self.add(duration);
    }

    /// Adds a duration of a message, with its trace if that is recorded.
    pub fn observe_message(&self, duration: Duration, trace: Option<(TraceId, WallTime)>) {
        let bucket = self.add(duration);
        if let Some((trace, at)) = trace {
            self.set_exemplar(
                bucket,
                Exemplar {
                    trace,
                    value: duration.as_secs_f64(),
                    at,
                },
            );
        }
    }

    #[cold]
    fn set_exemplar(&self, bucket: usize, exemplar: Exemplar) {
        let all = self.exemplars.get_or_init(Box::default);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(newest) = all.get_mut(bucket) {
            *newest = Some(exemplar);
        }
    }

    /// Adds a duration and returns its bucket.
    fn add(&self, duration: Duration) -> usize {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.bounds.iter().position(|bound| micros <= *bound);
        let bucket = bucket.unwrap_or(BOUNDS_US.len());
        if let Some(count) = self.buckets.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
        bucket
    }

    /// Reads the histogram.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut count = 0;
        let mut buckets = Vec::new();
        for (at, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            if let Some(bound) = self.bounds.get(at) {
                buckets.push((*bound as f64 / 1e6, count));
            }
        }
        HistogramSnapshot {
            buckets,
            count,
            sum: self.sum.load(Ordering::Relaxed) as f64 / 1e9,
            exemplars: self.exemplars.get().map_or_else(Vec::new, |all| {
                all.lock().unwrap_or_else(PoisonError::into_inner).to_vec()
            }),
        }
    }
}

/// Durations from the publish of a message to its confirm, by queue type. Each shard measures one message at a time.
#[derive(Default)]
pub struct ConfirmTimings(pub ByQueueType<DurationHistogram>);

impl std::fmt::Debug for ConfirmTimings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = self.0.iter().map(|(t, d)| (t.name(), d.snapshot().count));
        f.debug_map().entries(counts).finish()
    }
}

/// Times from the acceptance of a message by its publisher's node to its first delivery to a consumer. Each shard measures at most one
/// delivery per millisecond of each kind.
pub struct DeliveryTimings {
    /// Deliveries from queues, by queue type.
    pub queues: ByQueueType<DurationHistogram>,
    /// Deliveries to MQTT subscriptions that are not backed by a queue.
    pub queueless: DurationHistogram,
}

impl Default for DeliveryTimings {
    fn default() -> DeliveryTimings {
        let empty = || DurationHistogram::with_bounds(&LATENCY_BOUNDS_US);
        DeliveryTimings {
            queues: ByQueueType::from_fn(|_| empty()),
            queueless: empty(),
        }
    }
}

impl std::fmt::Debug for DeliveryTimings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = self.queues.iter();
        let counts = counts.map(|(t, d)| (t.name(), d.snapshot().count));
        let queueless = ("queueless", self.queueless.snapshot().count);
        f.debug_map().entries(counts.chain([queueless])).finish()
    }
}

/// The contents of the [`DeliveryTimings`] of all shards.
#[derive(Clone, Debug)]
pub struct DeliverySnapshot {
    /// Deliveries from queues, by queue type.
    pub queues: ByQueueType<HistogramSnapshot>,
    /// Deliveries to MQTT subscriptions that are not backed by a queue.
    pub queueless: HistogramSnapshot,
}

/// Durations of a node.
#[derive(Debug, Default)]
pub struct NodeTimings {
    /// Writes of the write-ahead log, each with its sync.
    pub log_writes: DurationHistogram,
    /// Requests of the HTTP API.
    pub http_requests: DurationHistogram,
    /// Turns of the event loop of each shard, without the waits between them. Empty until the shards start.
    pub shard_turns: OnceLock<Box<[DurationHistogram]>>,
    /// Times until messages are confirmed, one for each shard. Empty until the shards start.
    pub confirms: OnceLock<Box<[Arc<ConfirmTimings>]>>,
    /// Latencies of deliveries, one for each shard. Empty until the shards start.
    pub deliveries: OnceLock<Box<[Arc<DeliveryTimings>]>>,
}

impl NodeTimings {
    /// The histogram of a shard's turns.
    pub fn turns_of(&self, shard: u16) -> Option<&DurationHistogram> {
        self.shard_turns.get()?.get(usize::from(shard))
    }

    /// Prepares the histograms of this number of shards.
    pub fn set_shards(&self, shards: u16) {
        // A node starts its shards once.
        let _ = self
            .shard_turns
            .set((0..shards).map(|_| DurationHistogram::default()).collect());
        let _ = self
            .confirms
            .set((0..shards).map(|_| Arc::default()).collect());
        let _ = self
            .deliveries
            .set((0..shards).map(|_| Arc::default()).collect());
    }

    /// The histograms that a shard fills.
    pub fn confirms_of(&self, shard: u16) -> Arc<ConfirmTimings> {
        let shards = self.confirms.get();
        let timings = shards.and_then(|shards| shards.get(usize::from(shard)));
        timings.cloned().unwrap_or_default()
    }

    /// The times until messages were confirmed, over all shards.
    pub fn confirms(&self) -> ByQueueType<HistogramSnapshot> {
        let empty = DurationHistogram::default();
        let mut all = ByQueueType::from_fn(|_| empty.snapshot());
        for shard in self.confirms.get().into_iter().flatten() {
            for (queue_type, histogram) in shard.0.iter() {
                all[queue_type].add(histogram.snapshot());
            }
        }
        all
    }

    /// The latencies of deliveries that a shard fills.
    pub fn deliveries_of(&self, shard: u16) -> Arc<DeliveryTimings> {
        let shards = self.deliveries.get();
        let timings = shards.and_then(|shards| shards.get(usize::from(shard)));
        timings.cloned().unwrap_or_default()
    }

    /// The latencies of deliveries, over all shards.
    pub fn deliveries(&self) -> DeliverySnapshot {
        let empty = DurationHistogram::with_bounds(&LATENCY_BOUNDS_US);
        let mut all = DeliverySnapshot {
            queues: ByQueueType::from_fn(|_| empty.snapshot()),
            queueless: empty.snapshot(),
        };
        for shard in self.deliveries.get().into_iter().flatten() {
            for (queue_type, histogram) in shard.queues.iter() {
                all.queues[queue_type].add(histogram.snapshot());
            }
            all.queueless.add(shard.queueless.snapshot());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use queue::QueueType;

    #[test]
    fn durations_are_counted_up_to_each_bound() {
        let histogram = DurationHistogram::default();
        for micros in [1, 100, 101, 5_000_000, 5_000_001, 100_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let read = histogram.snapshot();
        assert_eq!(read.count, 6);
        assert_eq!(read.buckets.first(), Some(&(0.0001, 2)));
        assert_eq!(read.buckets.get(1), Some(&(0.00025, 3)));
        assert_eq!(read.buckets.last(), Some(&(5.0, 4)));
        assert!((read.sum - 110.000_203).abs() < 1e-9, "{}", read.sum);
    }

    #[test]
    fn newest_exemplar_of_each_bucket_is_kept_over_all_shards() {
        let timings = NodeTimings::default();
        timings.set_shards(2);
        let observe = |shard, ms, trace: Option<(u64, u64)>| {
            let of = timings.deliveries_of(shard);
            let trace = trace.map(|(id, at)| (TraceId::from_random([0, id]), WallTime(at)));
            of.queueless
                .observe_message(Duration::from_millis(ms), trace);
        };
        observe(0, 1, None);
        assert_eq!(timings.deliveries().queueless.exemplars, []);
        observe(0, 1, Some((1, 10)));
        observe(1, 1, Some((2, 12)));
        observe(1, 1, None);
        observe(0, 2, Some((3, 9)));
        observe(1, 2, Some((4, 8)));
        observe(1, 9_999_000, Some((5, 7)));
        let read = timings.deliveries().queueless;
        assert_eq!(
            (read.count, read.exemplars.len()),
            (7, read.buckets.len() + 1)
        );
        let shown = |at: usize| read.exemplars[at].map(|e| (e.trace.bytes()[15], e.value, e.at.0));
        assert_eq!(shown(0), Some((2, 0.001, 12)));
        assert_eq!(shown(1), Some((3, 0.002, 9)));
        assert_eq!(shown(2), None);
        assert_eq!(shown(15), Some((5, 9_999.0, 7)));
    }

    #[test]
    fn confirms_of_all_shards_are_added() {
        let timings = NodeTimings::default();
        timings.set_shards(2);
        for shard in 0..2 {
            let confirms = timings.confirms_of(shard);
            confirms.0[QueueType::Quorum].observe(Duration::from_millis(2));
        }
        let read = timings.confirms();
        assert_eq!(read[QueueType::Quorum].count, 2);
        assert_eq!(read[QueueType::Quorum].buckets.get(4), Some(&(0.0025, 2)));
        assert_eq!(read[QueueType::Classic].count, 0);
        assert_eq!(read[QueueType::Classic].buckets.len(), BOUNDS_US.len());
    }

    #[test]
    fn deliveries_of_all_shards_are_added_up_to_an_hour() {
        let timings = NodeTimings::default();
        timings.set_shards(2);
        for (shard, seconds) in [(0, 3_600), (1, 3_601)] {
            let deliveries = timings.deliveries_of(shard);
            deliveries.queues[QueueType::Classic].observe(Duration::from_secs(seconds));
            deliveries.queueless.observe(Duration::from_millis(1));
        }
        let read = timings.deliveries();
        assert_eq!(read.queues[QueueType::Classic].count, 2);
        let buckets = &read.queues[QueueType::Classic].buckets;
        assert_eq!(buckets.last(), Some(&(3_600.0, 1)));
        assert_eq!(read.queueless.buckets.first(), Some(&(0.001, 2)));
        assert_eq!(read.queues[QueueType::Stream].count, 0);
    }

    #[test]
    fn each_shard_has_its_own_turns() {
        let timings = NodeTimings::default();
        assert!(timings.turns_of(0).is_none());
        timings.set_shards(2);
        timings.turns_of(1).unwrap().observe(Duration::ZERO);
        assert_eq!(timings.turns_of(0).unwrap().snapshot().count, 0);
        assert_eq!(timings.turns_of(1).unwrap().snapshot().count, 1);
        assert!(timings.turns_of(2).is_none());
    }
}
