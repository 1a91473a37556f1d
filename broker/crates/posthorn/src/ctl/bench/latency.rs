//! Latencies in buckets, so that their number does not take memory.

use std::time::Duration;

/// Buckets for each power of two, so that a value is known to 3 %.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Powers of two of microseconds; the last is more than two hours.
const POWERS: usize = 34;

/// A histogram of latencies, exact to 3 %.
#[derive(Clone, Debug)]
pub(super) struct LatencyHistogram {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram {
            buckets: vec![0; POWERS * STEPS as usize],
            count: 0,
            max: Duration::ZERO,
        }
    }
}

impl LatencyHistogram {
    pub(super) fn add(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let last = self.buckets.len() - 1;
        if let Some(bucket) = self.buckets.get_mut(bucket_of(micros).min(last)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(latency);
    }

    pub(super) fn merge(&mut self, other: &LatencyHistogram) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// The latency in milliseconds that this share of the values does not exceed. None: there is no value.
    pub(super) fn quantile_ms(&self, share: f64) -> Option<f64> {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|bucket| {
            seen += bucket;
            seen >= wanted
        })?;
        let upper = Duration::from_micros(upper_limit(found)).min(self.max);
        Some(milliseconds(upper))
    }

    /// The largest latency in milliseconds. None: there is no value.
    pub(super) fn max_ms(&self) -> Option<f64> {
        (self.count > 0).then(|| milliseconds(self.max))
    }
}

fn milliseconds(latency: Duration) -> f64 {
    (latency.as_secs_f64() * 1e6).round() / 1e3
}

/// Values below `2 * STEPS` have a bucket each, larger ones share it with values that have the same leading bits.
fn bucket_of(micros: u64) -> usize {
    let shift = (64 - micros.leading_zeros()).saturating_sub(STEP_BITS + 1);
    (u64::from(shift) * STEPS + (micros >> shift)) as usize
}

/// The largest value of a bucket.
fn upper_limit(bucket: usize) -> u64 {
    let shift = (bucket as u64 / STEPS).saturating_sub(1);
    let leading = bucket as u64 - shift * STEPS;
    ((leading + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_exact_to_3_percent() {
        let mut last = 0;
        for micros in (0..100_000).chain((0..50).map(|n| 100_003 << (n % 12))) {
            let bucket = bucket_of(micros);
            let upper = upper_limit(bucket);
            assert!(upper >= micros, "{micros}");
            assert!(upper - micros <= micros / 32 + 1, "{micros} in {upper}");
            if micros > 0 && micros < 100_000 {
                assert!(bucket == last || bucket == last + 1, "{micros}");
            }
            last = bucket;
        }
    }

    #[test]
    fn quantiles_are_those_of_all_merged_values() {
        let mut all = LatencyHistogram::default();
        assert_eq!((all.quantile_ms(0.5), all.max_ms()), (None, None));
        for part in 0..4 {
            let mut some = LatencyHistogram::default();
            (0..250).for_each(|n| some.add(Duration::from_micros(4 * n + part + 1)));
            all.merge(&some);
        }
        let half = all.quantile_ms(0.5).unwrap_or_default();
        assert!((0.5..=0.52).contains(&half), "{half}");
        assert_eq!(all.quantile_ms(1.0), Some(1.0));
        assert_eq!(all.max_ms(), Some(1.0));
    }
}
