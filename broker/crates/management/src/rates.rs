//! Rates of change of counts. Cluster totals, nodes and recently requested objects are sampled in
//! the background. An object requested for the first time has rate 0. See
//! `docs/decisions/0011-rates.md`.

mod figures;
mod range;
mod sampler;
mod series;

pub(crate) use figures::{
    CHURN, COUNTS, EXCHANGE, LENGTHS, OCTETS, RESOURCE_USAGE, churn, counts, exchange_counts,
    lengths, octets, queue_counts, resource_usage,
};
pub(crate) use range::{Range, Samples};
pub(crate) use sampler::run;
#[cfg(test)]
pub(crate) use sampler::sample;

use crate::ask::Api;
use env::{Time, WallTime};
use serde_json::{Value as Json, json as object};
use series::{Series, TIERS};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of series. At the limit, new objects have no rates.
const MAX_KEYS: usize = 16_384;
/// Maximum number of 8-byte values in all samples. At the limit, a new sample replaces the oldest
/// one of its series.
const MAX_VALUES: usize = 2 << 20;
/// An object that was not requested for this long is no longer sampled.
const SAMPLING_PERIOD: Duration = Duration::from_secs(120);
/// Its samples are dropped after this time.
const RETENTION: Duration = Duration::from_secs(605);
/// Minimum interval between evictions when the number of series is at its limit.
const EVICTION_INTERVAL: Duration = Duration::from_secs(1);

/// A sampled object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Message counts of the cluster.
    Overview,
    /// Total lengths of all queues.
    MessageTotals,
    Churn,
    Queue(u64),
    /// Lengths of a queue.
    Depth(u64),
    Connection(String),
    Channel(String),
    Vhost(String),
    /// Total lengths of a vhost's queues.
    VhostDepth(String),
    /// Virtual host and name of the exchange.
    Exchange(String, String),
    /// Connections and channels opened and closed on a node.
    NodeChurn(u64),
    /// Resource usage of a node.
    NodeUse(u64),
}

impl Key {
    /// Returns true for cluster totals.
    fn is_cluster_total(&self) -> bool {
        matches!(self, Key::Overview | Key::MessageTotals | Key::Churn)
    }

    /// Returns true for cluster totals and nodes, which are always sampled.
    fn is_always_sampled(&self) -> bool {
        self.is_cluster_total() || matches!(self, Key::NodeChurn(_) | Key::NodeUse(_))
    }
}

/// A reading of the monotonic clock and the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub(crate) now: Time,
    pub(crate) wall: WallTime,
}

struct TrackedSeries {
    series: Series,
    last_requested: Time,
}

#[derive(Default)]
pub(crate) struct Rates {
    series: BTreeMap<Key, TrackedSeries>,
    value_count: usize,
    last_eviction: Option<Time>,
}

/// Values of a request, with their rates and samples.
pub(crate) struct SampledCounts {
    values: Vec<u64>,
    rates: Vec<f64>,
    /// Timestamp in milliseconds and values of each sample, newest first; None if not requested.
    samples: Option<Vec<(u64, Box<[u64]>)>>,
}

impl Rates {
    /// Records a request for an object and returns its rates and samples.
    pub(crate) fn request(
        &mut self,
        key: Key,
        at: ClockReading,
        values: &[u64],
        range: Option<&Range>,
    ) -> SampledCounts {
        let empty = Series::new(TIERS);
        let series = match self.entry(key, at.now) {
            Some(series) => {
                series.last_requested = at.now;
                &series.series
            }
            None => &empty,
        };
        SampledCounts {
            values: values.to_vec(),
            rates: series.rates(at.now, values),
            samples: range.map(|range| series.samples(at.wall, values, range)),
        }
    }

    /// Adds a sample for a cluster total, a node or a previously requested object.
    pub(crate) fn note(&mut self, key: Key, at: ClockReading, values: &[u64]) {
        if !key.is_always_sampled() && !self.series.contains_key(&key) {
            return;
        }
        let room = MAX_VALUES.saturating_sub(self.value_count);
        if let Some(series) = self.entry(key, at.now) {
            let before = series.series.value_count();
            series.series.note(at, values, room);
            let after = series.series.value_count();
            self.value_count = self.value_count - before + after;
        }
    }

    fn entry(&mut self, key: Key, now: Time) -> Option<&mut TrackedSeries> {
        if self.series.len() >= MAX_KEYS && !self.series.contains_key(&key) {
            self.evict(now);
            if self.series.len() >= MAX_KEYS {
                return None;
            }
        }
        let new = || TrackedSeries {
            series: Series::new(TIERS),
            last_requested: now,
        };
        Some(self.series.entry(key).or_insert_with(new))
    }

    /// Evicts series that are no longer sampled. Rate-limited, because each eviction scans all
    /// series.
    fn evict(&mut self, now: Time) {
        let is_recent = |evicted_at: Time| now.since(evicted_at) < EVICTION_INTERVAL;
        if !self.last_eviction.is_some_and(is_recent) {
            self.last_eviction = Some(now);
            self.retain_requested_within(now, SAMPLING_PERIOD);
        }
    }

    /// Drops series that were not requested for [`RETENTION`], and those of nodes that left the
    /// cluster a day ago.
    pub(crate) fn drop_expired(&mut self, now: Time) {
        self.retain_requested_within(now, RETENTION);
    }

    fn retain_requested_within(&mut self, now: Time, max_age: Duration) {
        let is_retained = |key: &Key, tracked: &mut TrackedSeries| {
            key.is_cluster_total()
                || now.since(tracked.last_requested) < max_age
                || key.is_always_sampled() && !tracked.series.is_expired(now)
        };
        self.series.retain(is_retained);
        self.value_count = self.series.values().map(|k| k.series.value_count()).sum();
    }

    /// Recently requested objects, with the time of their last request.
    pub(crate) fn recently_requested(&self, now: Time) -> impl Iterator<Item = (&Key, Time)> {
        let recently_requested = self.series.iter().filter(move |(key, series)| {
            !key.is_always_sampled() && now.since(series.last_requested) < SAMPLING_PERIOD
        });
        recently_requested.map(|(key, series)| (key, series.last_requested))
    }
}

impl SampledCounts {
    /// The rate of one value, and its samples if requested.
    fn details(&self, at: usize, is_monotonic: bool) -> Json {
        let rate = self.rates.get(at).copied().unwrap_or(0.0);
        // A counter that restarted from zero has no negative rate.
        let rate = if is_monotonic { rate.max(0.0) } else { rate };
        let mut shown = object!({"rate": rate});
        let Some(samples) = &self.samples else {
            return shown;
        };
        let samples: Vec<(u64, u64)> = samples
            .iter()
            .filter_map(|(time, values)| Some((*time, *values.get(at)?)))
            .collect();
        if let [(newest, last), .., (oldest, first)] = samples[..]
            && newest > oldest
        {
            let sum: f64 = samples.iter().map(|(_, value)| *value as f64).sum();
            shown["avg"] = object!(sum / samples.len() as f64);
            let change = last as f64 - first as f64;
            shown["avg_rate"] = object!(change * 1000.0 / (newest - oldest) as f64);
        }
        let samples = samples.iter();
        let samples = samples.map(|(time, value)| object!({"sample": value, "timestamp": time}));
        shown["samples"] = samples.collect();
        shown
    }

    /// Adds each value under its name, with its details.
    fn show(&self, shown: &mut Json, names: &[&str], is_monotonic: bool) {
        for (at, (name, value)) in names.iter().zip(&self.values).enumerate() {
            shown[*name] = object!(value);
            shown[format!("{name}_details")] = self.details(at, is_monotonic);
        }
    }
}

/// Adds counters with their rates.
pub(crate) fn show_counts(
    api: &Api,
    (key, range): (Key, Option<&Range>),
    shown: &mut Json,
    (names, values): (&[&str], &[u64]),
) {
    observe(api, key, values, range).show(shown, names, true);
}

/// Adds queue lengths with their rates.
pub(crate) fn show_lengths(
    api: &Api,
    (key, range): (Key, Option<&Range>),
    shown: &mut Json,
    values: &[u64],
) {
    show_levels(api, (key, range), shown, (&LENGTHS, values));
}

/// Adds values that can decrease, with their rates.
pub(crate) fn show_levels(
    api: &Api,
    (key, range): (Key, Option<&Range>),
    shown: &mut Json,
    (names, values): (&[&str], &[u64]),
) {
    observe(api, key, values, range).show(shown, names, false);
}

fn observe(api: &Api, key: Key, values: &[u64], range: Option<&Range>) -> SampledCounts {
    let at = api.moment();
    let mut rates = api.rates();
    let counts = rates.request(key.clone(), at, values, range);
    // The first request starts the series. Later samples are at least one step apart.
    rates.note(key, at, values);
    counts
}

#[cfg(test)]
mod unit {
    use super::*;

    fn at(seconds: u64) -> ClockReading {
        ClockReading {
            now: Time::ZERO + Duration::from_secs(seconds),
            wall: WallTime(1_000_000 + seconds * 1000),
        }
    }

    fn request(rates: &mut Rates, seconds: u64, value: u64) -> f64 {
        let counts = rates.request(Key::Queue(1), at(seconds), &[value], None);
        rates.note(Key::Queue(1), at(seconds), &[value]);
        counts.rates[0]
    }

    #[test]
    fn rate_is_the_change_over_the_last_seconds() {
        let mut rates = Rates::default();
        assert_eq!(request(&mut rates, 1, 100), 0.0, "the first look");
        assert_eq!(request(&mut rates, 1, 100), 0.0, "too close");
        assert_eq!(request(&mut rates, 3, 200), 50.0);
        assert_eq!(request(&mut rates, 8, 240), 20.0);
        // Compared with the newest sample that is at least five seconds old.
        assert_eq!(request(&mut rates, 18, 1240), 100.0);
        assert_eq!(request(&mut rates, 20, 1240), 1000.0 / 12.0);
        assert_eq!(request(&mut rates, 23, 1240), 0.0);
        assert_eq!(request(&mut rates, 28, 240), -125.0);
    }

    #[test]
    fn rate_uses_background_samples() {
        let mut rates = Rates::default();
        request(&mut rates, 0, 0);
        for n in 1..=12 {
            rates.note(Key::Queue(1), at(5 * n), &[50 * n]);
        }
        // The rate over the last seconds, not since the request a minute ago.
        assert_eq!(request(&mut rates, 61, 700), 150.0 / 6.0);
        rates.note(Key::Queue(2), at(60), &[1]);
        assert_eq!(rates.series.len(), 1, "nobody looked at the other one");
    }

    #[test]
    fn series_without_requests_are_no_longer_sampled_and_then_dropped() {
        let mut rates = Rates::default();
        rates.note(Key::Overview, at(0), &[1]);
        request(&mut rates, 0, 1);
        let recently_requested =
            |rates: &Rates, s: u64| rates.recently_requested(at(s).now).count();
        assert_eq!(
            (
                recently_requested(&rates, 119),
                recently_requested(&rates, 120)
            ),
            (1, 0)
        );
        rates.note(Key::Queue(1), at(119), &[2]);
        assert_eq!(recently_requested(&rates, 120), 0, "a sample is no look");
        rates.drop_expired(at(604).now);
        assert_eq!(rates.series.len(), 2);
        rates.drop_expired(at(605).now);
        let remaining: Vec<&Key> = rates.series.keys().collect();
        assert_eq!(remaining, [&Key::Overview]);
        assert_eq!(
            rates.value_count,
            rates.series[&Key::Overview].series.value_count()
        );
    }

    #[test]
    fn series_and_samples_stay_within_limits() {
        let mut rates = Rates::default();
        for n in 0..MAX_KEYS as u64 + 10 {
            rates.request(Key::Queue(n), at(0), &[n], None);
        }
        assert_eq!(rates.series.len(), MAX_KEYS);
        rates.request(Key::Queue(u64::MAX), at(120), &[1], None);
        assert_eq!(rates.series.len(), 1, "room was made");
        let wide = vec![7; MAX_VALUES / 8];
        let mut rates = Rates::default();
        for n in 0..100 {
            rates.request(Key::Queue(n % 3), at(5 * n), &wide, None);
            rates.note(Key::Queue(n % 3), at(5 * n), &wide);
            assert!(rates.value_count <= MAX_VALUES + 3 * wide.len());
        }
        let sum: usize = rates.series.values().map(|k| k.series.value_count()).sum();
        assert_eq!(rates.value_count, sum);
    }
}
