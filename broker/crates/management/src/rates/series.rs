//! Samples of one object's values. Recent samples are denser.

use super::{ClockReading, Range};
use env::{Time, WallTime};
use std::collections::VecDeque;
use std::time::Duration;

/// Interval between samples, and how long they are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tier {
    step: Duration,
    length: Duration,
}

const fn tier(step: u64, length: u64) -> Tier {
    Tier {
        step: Duration::from_secs(step),
        length: Duration::from_secs(length),
    }
}

/// RabbitMQ's retention of cluster totals. Other objects keep samples as long, if they are requested
/// all the time.
pub(super) const TIERS: &[Tier] = &[
    tier(5, 605),
    tier(60, 3_660),
    tier(600, 29_400),
    tier(1_800, 86_400),
];

/// A shorter interval gives no meaningful rate.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The rate is the change since a sample of about this age.
const RATE_PERIOD: Duration = Duration::from_secs(5);
/// Overhead of a sample in 8-byte values.
const SAMPLE_OVERHEAD: usize = 4;

struct Sample {
    at: ClockReading,
    values: Box<[u64]>,
}

/// Tiers from finest to coarsest, each with its samples, oldest first.
pub(super) struct Series(Vec<(Tier, VecDeque<Sample>)>);

impl Series {
    pub(super) fn new(tiers: &[Tier]) -> Series {
        Series(tiers.iter().map(|t| (*t, VecDeque::new())).collect())
    }

    /// Memory of the series in 8-byte values.
    pub(super) fn value_count(&self) -> usize {
        let width = |s: &Sample| s.values.len() + SAMPLE_OVERHEAD;
        let tiers = self.0.iter();
        tiers
            .map(|(_, samples)| samples.len() * samples.back().map_or(0, width))
            .sum()
    }

    /// Returns true if no sample is as young as the longest retention.
    pub(super) fn is_expired(&self, now: Time) -> bool {
        let longest = self.0.iter().map(|(tier, _)| tier.length).max();
        let newest = self.0.first().and_then(|(_, samples)| samples.back());
        newest.is_none_or(|s| longest.is_none_or(|longest| now.since(s.at.now) > longest))
    }

    /// Adds a sample to each tier whose last sample belongs to an earlier step. `room` is the number
    /// of 8-byte values by which the series may grow. Without room, a sample replaces the oldest one
    /// of its tier.
    pub(super) fn note(&mut self, at: ClockReading, values: &[u64], mut room: usize) {
        let size = values.len() + SAMPLE_OVERHEAD;
        for (tier, samples) in &mut self.0 {
            let slot = |now: Time| now.since(Time::ZERO).as_nanos() / tier.step.as_nanos();
            if samples
                .back()
                .is_some_and(|s| slot(s.at.now) == slot(at.now))
            {
                continue;
            }
            let is_expired = |s: &Sample| at.now.since(s.at.now) > tier.length;
            while samples.front().is_some_and(is_expired) {
                samples.pop_front();
            }
            match room.checked_sub(size) {
                Some(left) => room = left,
                None if samples.pop_front().is_none() => continue,
                None => {}
            }
            samples.push_back(Sample {
                at,
                values: values.into(),
            });
        }
    }

    /// The rate of each value.
    pub(super) fn rates(&self, now: Time, values: &[u64]) -> Vec<f64> {
        let age = |s: &Sample| now.since(s.at.now);
        let finest = self.0.first().map(|(_, samples)| samples);
        let before = finest.and_then(|samples| {
            let old_enough = samples.iter().rev().find(|s| age(s) >= RATE_PERIOD);
            old_enough.or_else(|| samples.front())
        });
        match before {
            Some(before) if age(before) >= MIN_INTERVAL => {
                let seconds = age(before).as_secs_f64();
                let pairs = values.iter().zip(&before.values);
                pairs
                    .map(|(now, then)| (*now as f64 - *then as f64) / seconds)
                    .collect()
            }
            _ => vec![0.0; values.len()],
        }
    }

    /// Returns one sample per point of a range, with the time it was taken, newest first, as far
    /// back as samples exist. Without any sample, returns the current values. Points without a
    /// sample of their own, as after a pause, are omitted.
    pub(super) fn samples(
        &self,
        wall: WallTime,
        values: &[u64],
        range: &Range,
    ) -> Vec<(u64, Box<[u64]>)> {
        let mut tiers: Vec<_> = self
            .0
            .iter()
            .map(|(_, samples)| samples.iter().rev().peekable())
            .collect();
        let mut found: Vec<(u64, Box<[u64]>)> = Vec::new();
        for point in range.points(wall) {
            let before = tiers.iter_mut().filter_map(|samples| {
                while samples.next_if(|s| s.at.wall.0 > point).is_some() {}
                samples.peek().copied()
            });
            match before.max_by_key(|s| s.at.wall) {
                Some(sample) if found.last().is_some_and(|(at, _)| *at == sample.at.wall.0) => {}
                Some(sample) => found.push((sample.at.wall.0, sample.values.clone())),
                None => break,
            }
        }
        if found.is_empty() {
            let newest = range.points(wall).next();
            found.extend(newest.map(|point| (point, values.into())));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> ClockReading {
        ClockReading {
            now: Time::ZERO + Duration::from_secs(seconds),
            wall: WallTime(seconds * 1000),
        }
    }

    /// More than a day, sampled every five seconds.
    fn day() -> (Series, u64) {
        let mut series = Series::new(TIERS);
        let end = 100_000;
        for second in (0..=end).step_by(5) {
            series.note(at(second), &[second], usize::MAX);
        }
        (series, end)
    }

    #[test]
    fn each_tier_keeps_samples_for_its_length() {
        let (series, _) = day();
        let lengths: Vec<usize> = series.0.iter().map(|(_, samples)| samples.len()).collect();
        assert_eq!(lengths, [122, 62, 50, 49]);
        assert_eq!(
            series.value_count(),
            (122 + 62 + 50 + 49) * (1 + SAMPLE_OVERHEAD)
        );
    }

    #[test]
    fn range_uses_the_finest_tier_with_samples() {
        let (series, end) = day();
        let of = |age: u64, step: u64| {
            let range = Range::new(age, step).unwrap().unwrap();
            let found = series.samples(at(end + 3).wall, &[0], &range);
            let found = found.into_iter();
            found
                .map(|(point, values)| (point / 1000, values[0]))
                .collect::<Vec<_>>()
        };
        let minute = of(60, 5);
        assert_eq!(minute.len(), 13);
        assert_eq!((minute[0], minute[12]), ((end, end), (end - 60, end - 60)));
        let hours = of(7200, 600);
        assert_eq!(hours.len(), 13);
        for (point, figure) in &hours {
            assert!(point - figure < 600, "{hours:?}");
        }
        // The samples are coarser than requested: each appears once, with its own timestamp.
        let days = of(200_000, 1000);
        assert!(days.len() > 60 && days.len() < 90, "{}", days.len());
        for pair in days.windows(2) {
            assert!(pair[0].0 > pair[1].0);
            assert_eq!(pair[0].0 - pair[1].0, pair[0].1 - pair[1].1, "1 a second");
        }
    }

    #[test]
    fn sampling_pause_leaves_a_gap() {
        let mut series = Series::new(TIERS);
        // 100 per second; no samples between 20 and 80, and the tick after the pause was late.
        for second in [0, 5, 10, 15, 20, 83, 88] {
            series.note(at(second), &[second * 100], usize::MAX);
        }
        let range = Range::new(100, 5).unwrap().unwrap();
        let found = series.samples(at(90).wall, &[0], &range);
        let times: Vec<u64> = found.iter().map(|(time, _)| time / 1000).collect();
        assert_eq!(times, [88, 83, 20, 15, 10, 5, 0]);
        for pair in found.windows(2) {
            let seconds = (pair[0].0 - pair[1].0) / 1000;
            assert_eq!((pair[0].1[0] - pair[1].1[0]) / seconds, 100);
        }
    }

    #[test]
    fn range_without_samples_returns_current_values() {
        let series = Series::new(TIERS);
        let range = Range::new(60, 5).unwrap().unwrap();
        let found = series.samples(WallTime(12_345), &[9], &range);
        assert_eq!(found, [(10_000, Box::from([9]))]);
    }

    #[test]
    fn series_without_room_does_not_grow() {
        let mut series = Series::new(TIERS);
        series.note(at(0), &[1], 0);
        assert_eq!(series.value_count(), 0);
        series.note(at(5), &[2], usize::MAX);
        let full = series.value_count();
        series.note(at(10), &[3], 0);
        assert_eq!(series.value_count(), full);
        assert_eq!(series.rates(at(16).now, &[9]), [1.0]);
    }
}
