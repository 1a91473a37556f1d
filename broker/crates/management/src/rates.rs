//! How fast counts change. The cluster's are sampled in the background, and so is what somebody has looked at lately; what is
//! looked at for the first time has the rate 0. See `docs/decisions/0011-rates.md`.

mod figures;
mod range;
mod sampler;
mod series;

pub(crate) use figures::{
    CHURN, COUNTS, EXCHANGE, LENGTHS, OCTETS, USE, churn, counts, exchange_counts, lengths, octets,
    queue_counts, used,
};
pub(crate) use range::{Range, Samples};
pub(crate) use sampler::run;
#[cfg(test)]
pub(crate) use sampler::sample;

use crate::ask::Api;
use env::{Time, WallTime};
use serde_json::{Value as Json, json as object};
use series::{LONG, SHORT, Series};
use std::collections::BTreeMap;
use std::time::Duration;

/// Things remembered; while there are so many, new ones have no rates.
const MAX_KEYS: usize = 16_384;
/// Numbers of 8 bytes in all samples together; from there on a new sample takes the place of the oldest one.
const MAX_CELLS: usize = 2 << 20;
/// What nobody has looked at for so long is not sampled any more.
const WATCH: Duration = Duration::from_secs(120);
/// And then forgotten.
const FORGET: Duration = Duration::from_secs(605);
/// When there is no room for new ones, it is made so often.
const MAKE_ROOM: Duration = Duration::from_secs(1);

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Messages of the cluster.
    Overview,
    /// Lengths of all its queues together.
    Depths,
    Churn,
    Queue(u64),
    /// Its lengths.
    Depth(u64),
    Connection(String),
    Channel(String),
    Vhost(String),
    /// Lengths of its queues together.
    VhostDepth(String),
    /// Virtual host and name.
    Exchange(String, String),
    /// Clients that came to the node that answers, and went.
    OwnChurn,
    /// What that node uses of its machine.
    OwnUse,
}

impl Key {
    /// Sampled whether somebody looks or not.
    fn is_clusters(&self) -> bool {
        matches!(self, Key::Overview | Key::Depths | Key::Churn)
    }
}

/// Both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) now: Time,
    pub(crate) wall: WallTime,
}

struct Known {
    series: Series,
    looked: Time,
}

#[derive(Default)]
pub(crate) struct Rates {
    known: BTreeMap<Key, Known>,
    cells: usize,
    made_room: Option<Time>,
}

/// Figures that were looked at, and how they changed.
pub(crate) struct SampledCounts {
    figures: Vec<u64>,
    rates: Vec<f64>,
    /// Times in milliseconds and figures, the newest first; None: not asked for.
    samples: Option<Vec<(u64, Box<[u64]>)>>,
}

impl Rates {
    /// Somebody looks.
    pub(crate) fn look(
        &mut self,
        key: Key,
        at: Moment,
        figures: &[u64],
        range: Option<&Range>,
    ) -> SampledCounts {
        let nothing = Series::new(SHORT);
        let series = match self.entry(key, at.now) {
            Some(known) => {
                known.looked = at.now;
                &known.series
            }
            None => &nothing,
        };
        SampledCounts {
            figures: figures.to_vec(),
            rates: series.rates(at.now, figures),
            samples: range.map(|range| series.samples(at.wall, figures, range)),
        }
    }

    /// Notes figures of what is the cluster's, or was looked at.
    pub(crate) fn note(&mut self, key: Key, at: Moment, figures: &[u64]) {
        if !key.is_clusters() && !self.known.contains_key(&key) {
            return;
        }
        let room = self.cells < MAX_CELLS;
        if let Some(known) = self.entry(key, at.now) {
            let before = known.series.cells();
            known.series.note(at, figures, room);
            let after = known.series.cells();
            self.cells = self.cells - before + after;
        }
    }

    fn entry(&mut self, key: Key, now: Time) -> Option<&mut Known> {
        if self.known.len() >= MAX_KEYS && !self.known.contains_key(&key) {
            self.make_room(now);
            if self.known.len() >= MAX_KEYS {
                return None;
            }
        }
        let tiers = if key.is_clusters() { LONG } else { SHORT };
        let new = || Known {
            series: Series::new(tiers),
            looked: now,
        };
        Some(self.known.entry(key).or_insert_with(new))
    }

    /// What nobody looks at any more goes early, but a long list of what is new is gone through once only.
    fn make_room(&mut self, now: Time) {
        let lately = |made: Time| now.since(made) < MAKE_ROOM;
        if !self.made_room.is_some_and(lately) {
            self.made_room = Some(now);
            self.keep(now, WATCH);
        }
    }

    /// Forgets what nobody has looked at for long.
    pub(crate) fn forget(&mut self, now: Time) {
        self.keep(now, FORGET);
    }

    fn keep(&mut self, now: Time, within: Duration) {
        let keep =
            |key: &Key, known: &mut Known| key.is_clusters() || now.since(known.looked) < within;
        self.known.retain(keep);
        self.cells = self.known.values().map(|k| k.series.cells()).sum();
    }

    /// What somebody has looked at lately, with when.
    pub(crate) fn watched(&self, now: Time) -> impl Iterator<Item = (&Key, Time)> {
        let watched = self
            .known
            .iter()
            .filter(move |(key, known)| !key.is_clusters() && now.since(known.looked) < WATCH);
        watched.map(|(key, known)| (key, known.looked))
    }
}

impl SampledCounts {
    /// The rate of one figure, and its samples where they were asked for.
    fn details(&self, at: usize, monotonous: bool) -> Json {
        let rate = self.rates.get(at).copied().unwrap_or(0.0);
        // A count that begins anew did not run backwards.
        let rate = if monotonous { rate.max(0.0) } else { rate };
        let mut shown = object!({"rate": rate});
        let Some(samples) = &self.samples else {
            return shown;
        };
        let samples: Vec<(u64, u64)> = samples
            .iter()
            .filter_map(|(time, figures)| Some((*time, *figures.get(at)?)))
            .collect();
        if let [(newest, last), .., (oldest, first)] = samples[..]
            && newest > oldest
        {
            let sum: f64 = samples.iter().map(|(_, figure)| *figure as f64).sum();
            shown["avg"] = object!(sum / samples.len() as f64);
            let change = last as f64 - first as f64;
            shown["avg_rate"] = object!(change * 1000.0 / (newest - oldest) as f64);
        }
        let samples = samples.iter();
        let samples = samples.map(|(time, figure)| object!({"sample": figure, "timestamp": time}));
        shown["samples"] = samples.collect();
        shown
    }

    /// Figures under their names, each with its details.
    fn show(&self, shown: &mut Json, names: &[&str], monotonous: bool) {
        for (at, (name, figure)) in names.iter().zip(&self.figures).enumerate() {
            shown[*name] = object!(figure);
            shown[format!("{name}_details")] = self.details(at, monotonous);
        }
    }
}

/// Shows figures that only go up, and tells how fast.
pub(crate) fn show_counts(
    api: &Api,
    (key, range): (Key, Option<&Range>),
    shown: &mut Json,
    (names, figures): (&[&str], &[u64]),
) {
    observe(api, key, figures, range).show(shown, names, true);
}

/// The same of figures that go up and down.
pub(crate) fn show_lengths(
    api: &Api,
    (key, range): (Key, Option<&Range>),
    shown: &mut Json,
    figures: &[u64],
) {
    show_levels(api, (key, range), shown, (&LENGTHS, figures));
}

/// The same of any figures that go up and down.
pub(crate) fn show_levels(
    api: &Api,
    (key, range): (Key, Option<&Range>),
    shown: &mut Json,
    (names, figures): (&[&str], &[u64]),
) {
    observe(api, key, figures, range).show(shown, names, false);
}

fn observe(api: &Api, key: Key, figures: &[u64], range: Option<&Range>) -> SampledCounts {
    let at = api.moment();
    let mut rates = api.rates();
    let seen = rates.look(key.clone(), at, figures, range);
    // The first sample is the look that begins it all; later ones do not come closer than the sampler's.
    rates.note(key, at, figures);
    seen
}

#[cfg(test)]
mod unit {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment {
            now: Time::ZERO + Duration::from_secs(seconds),
            wall: WallTime(1_000_000 + seconds * 1000),
        }
    }

    fn look(rates: &mut Rates, seconds: u64, figure: u64) -> f64 {
        let seen = rates.look(Key::Queue(1), at(seconds), &[figure], None);
        rates.note(Key::Queue(1), at(seconds), &[figure]);
        seen.rates[0]
    }

    #[test]
    fn the_rate_is_the_change_over_some_seconds() {
        let mut rates = Rates::default();
        assert_eq!(look(&mut rates, 1, 100), 0.0, "the first look");
        assert_eq!(look(&mut rates, 1, 100), 0.0, "too close");
        assert_eq!(look(&mut rates, 3, 200), 50.0);
        assert_eq!(look(&mut rates, 8, 240), 20.0);
        // Since the sample before the last five seconds.
        assert_eq!(look(&mut rates, 18, 1240), 100.0);
        assert_eq!(look(&mut rates, 20, 1240), 1000.0 / 12.0);
        assert_eq!(look(&mut rates, 23, 1240), 0.0);
        assert_eq!(look(&mut rates, 28, 240), -125.0);
    }

    #[test]
    fn what_is_sampled_is_known_at_every_look() {
        let mut rates = Rates::default();
        look(&mut rates, 0, 0);
        for n in 1..=12 {
            rates.note(Key::Queue(1), at(5 * n), &[50 * n]);
        }
        // The rate of the last seconds, not since the look a minute ago.
        assert_eq!(look(&mut rates, 61, 700), 150.0 / 6.0);
        rates.note(Key::Queue(2), at(60), &[1]);
        assert_eq!(rates.known.len(), 1, "nobody looked at the other one");
    }

    #[test]
    fn what_nobody_looks_at_is_watched_no_more_and_then_forgotten() {
        let mut rates = Rates::default();
        rates.note(Key::Overview, at(0), &[1]);
        look(&mut rates, 0, 1);
        let watched = |rates: &Rates, s: u64| rates.watched(at(s).now).count();
        assert_eq!((watched(&rates, 119), watched(&rates, 120)), (1, 0));
        rates.note(Key::Queue(1), at(119), &[2]);
        assert_eq!(watched(&rates, 120), 0, "a sample is no look");
        rates.forget(at(604).now);
        assert_eq!(rates.known.len(), 2);
        rates.forget(at(605).now);
        let left: Vec<&Key> = rates.known.keys().collect();
        assert_eq!(left, [&Key::Overview]);
        assert_eq!(rates.cells, rates.known[&Key::Overview].series.cells());
    }

    #[test]
    fn no_more_is_remembered_than_the_limits() {
        let mut rates = Rates::default();
        for n in 0..MAX_KEYS as u64 + 10 {
            rates.look(Key::Queue(n), at(0), &[n], None);
        }
        assert_eq!(rates.known.len(), MAX_KEYS);
        rates.look(Key::Queue(u64::MAX), at(120), &[1], None);
        assert_eq!(rates.known.len(), 1, "room was made");
        let wide = vec![7; MAX_CELLS / 8];
        let mut rates = Rates::default();
        for n in 0..100 {
            rates.look(Key::Queue(n % 3), at(5 * n), &wide, None);
            rates.note(Key::Queue(n % 3), at(5 * n), &wide);
            assert!(rates.cells <= MAX_CELLS + 3 * wide.len());
        }
        let sum: usize = rates.known.values().map(|k| k.series.cells()).sum();
        assert_eq!(rates.cells, sum);
    }
}
