//! Samples of one thing's figures, the newer the denser.

use super::{Moment, Range};
use env::{Time, WallTime};
use std::collections::VecDeque;
use std::time::Duration;

/// For how long samples are kept, and how far apart.
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

/// RabbitMQ's retention of what is the cluster's, and of what there may be many of.
pub(super) const LONG: &[Tier] = &[
    tier(5, 605),
    tier(60, 3_660),
    tier(600, 29_400),
    tier(1_800, 86_400),
];
pub(super) const SHORT: &[Tier] = &[tier(5, 605)];

/// Looks that follow each other faster tell nothing of a rate.
const APART: Duration = Duration::from_secs(1);
/// The rate is the change since a sample that is about as old as this.
const OVER: Duration = Duration::from_secs(5);
/// What a sample takes beside its figures, in numbers of 8 bytes.
const BESIDE: usize = 4;

struct Sample {
    at: Moment,
    figures: Box<[u64]>,
}

/// See the module. The tiers are the finest first, each with its samples, the oldest first.
pub(super) struct Series(Vec<(Tier, VecDeque<Sample>)>);

impl Series {
    pub(super) fn new(tiers: &[Tier]) -> Series {
        Series(tiers.iter().map(|t| (*t, VecDeque::new())).collect())
    }

    /// What it takes, in numbers of 8 bytes.
    pub(super) fn cells(&self) -> usize {
        let width = |s: &Sample| s.figures.len() + BESIDE;
        let tiers = self.0.iter();
        tiers
            .map(|(_, samples)| samples.len() * samples.back().map_or(0, width))
            .sum()
    }

    /// Takes figures in, if the last ones are a step old. Without room they take the place of the oldest.
    pub(super) fn note(&mut self, at: Moment, figures: &[u64], room: bool) {
        for (tier, samples) in &mut self.0 {
            let slot = |now: Time| now.since(Time::ZERO).as_nanos() / tier.step.as_nanos();
            if samples
                .back()
                .is_some_and(|s| slot(s.at.now) == slot(at.now))
            {
                continue;
            }
            let old = |s: &Sample| at.now.since(s.at.now) > tier.length;
            while samples.front().is_some_and(old) {
                samples.pop_front();
            }
            if !room && samples.pop_front().is_none() {
                continue;
            }
            samples.push_back(Sample {
                at,
                figures: figures.into(),
            });
        }
    }

    /// How fast each figure changes.
    pub(super) fn rates(&self, now: Time, figures: &[u64]) -> Vec<f64> {
        let age = |s: &Sample| now.since(s.at.now);
        let finest = self.0.first().map(|(_, samples)| samples);
        let before = finest.and_then(|samples| {
            let settled = samples.iter().rev().find(|s| age(s) >= OVER);
            settled.or_else(|| samples.front())
        });
        match before {
            Some(before) if age(before) >= APART => {
                let seconds = age(before).as_secs_f64();
                let pairs = figures.iter().zip(&before.figures);
                pairs
                    .map(|(now, then)| (*now as f64 - *then as f64) / seconds)
                    .collect()
            }
            _ => vec![0.0; figures.len()],
        }
    }

    /// Samples near the points of a range with the times when they were taken, the newest first, as far back as they are
    /// known; at least the present figures. Points without a sample of their own, as after a pause, are left out.
    pub(super) fn samples(
        &self,
        wall: WallTime,
        figures: &[u64],
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
                Some(sample) => found.push((sample.at.wall.0, sample.figures.clone())),
                None => break,
            }
        }
        if found.is_empty() {
            let newest = range.points(wall).next();
            found.extend(newest.map(|point| (point, figures.into())));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment {
            now: Time::ZERO + Duration::from_secs(seconds),
            wall: WallTime(seconds * 1000),
        }
    }

    /// A day and more, sampled every five seconds.
    fn day() -> (Series, u64) {
        let mut series = Series::new(LONG);
        let end = 100_000;
        for second in (0..=end).step_by(5) {
            series.note(at(second), &[second], true);
        }
        (series, end)
    }

    #[test]
    fn each_tier_keeps_what_it_has_to() {
        let (series, _) = day();
        let kept: Vec<usize> = series.0.iter().map(|(_, samples)| samples.len()).collect();
        assert_eq!(kept, [122, 62, 50, 49]);
        assert_eq!(series.cells(), (122 + 62 + 50 + 49) * (1 + BESIDE));
    }

    #[test]
    fn a_range_is_answered_at_its_points_from_whatever_tier_has_them() {
        let (series, end) = day();
        let of = |age: u64, step: u64| {
            let range = Range::new(age, step).unwrap().unwrap();
            let found = series.samples(at(end + 3).wall, &[0], &range);
            let found = found.into_iter();
            found
                .map(|(point, figures)| (point / 1000, figures[0]))
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
        // Coarser samples than were asked for: each is there once, with its own time.
        let days = of(200_000, 1000);
        assert!(days.len() > 60 && days.len() < 90, "{}", days.len());
        for pair in days.windows(2) {
            assert!(pair[0].0 > pair[1].0);
            assert_eq!(pair[0].0 - pair[1].0, pair[0].1 - pair[1].1, "1 a second");
        }
    }

    #[test]
    fn a_pause_in_sampling_is_a_gap() {
        let mut series = Series::new(SHORT);
        // 100 a second; nothing was sampled between 20 and 80, and the tick after the pause came late.
        for second in [0, 5, 10, 15, 20, 83, 88] {
            series.note(at(second), &[second * 100], true);
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
    fn without_any_sample_there_is_the_present() {
        let series = Series::new(SHORT);
        let range = Range::new(60, 5).unwrap().unwrap();
        let found = series.samples(WallTime(12_345), &[9], &range);
        assert_eq!(found, [(10_000, Box::from([9]))]);
    }

    #[test]
    fn without_room_a_series_does_not_grow() {
        let mut series = Series::new(SHORT);
        series.note(at(0), &[1], false);
        assert_eq!(series.cells(), 0);
        series.note(at(5), &[2], true);
        series.note(at(10), &[3], false);
        assert_eq!(series.cells(), 1 + BESIDE);
        assert_eq!(series.rates(at(16).now, &[9]), [1.0]);
    }
}
