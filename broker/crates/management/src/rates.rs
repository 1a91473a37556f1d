//! How fast counts change. Nobody samples in the background: what was shown before, and when, is remembered for a while,
//! and the rate is the change since. What is looked at once has the rate 0.

use crate::ask::Api;
use control::MessageCounts;
use serde_json::{Value as Json, json as object};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Things remembered; when there are more, those that nobody has looked at for [`FORGET`] go, and new ones must wait.
const MAX_KEYS: usize = 8_192;
const FORGET: Duration = Duration::from_secs(60);
/// Samples of one thing, and their distance at least.
const SAMPLES: usize = 16;
const APART: Duration = Duration::from_secs(1);
/// The rate is the change since a sample that is about as old as this.
const OVER: Duration = Duration::from_secs(5);

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Overview,
    Queue(u64),
    /// Its lengths.
    Depth(u64),
    Connection(String),
    Channel(String),
}

struct Sample {
    at: Instant,
    /// Since 1970, in milliseconds.
    wall_ms: u64,
    figures: Vec<u64>,
}

#[derive(Default)]
pub(crate) struct Rates {
    known: BTreeMap<Key, VecDeque<Sample>>,
}

/// Figures, and how they changed.
pub(crate) struct Seen {
    rates: Vec<f64>,
    /// Times in milliseconds and figures, the newest first.
    samples: Vec<(u64, Vec<u64>)>,
}

impl Seen {
    pub(crate) fn details(&self, at: usize) -> Json {
        object!({"rate": self.rates.get(at).copied().unwrap_or(0.0)})
    }

    /// The same with the samples of the last `age` seconds.
    pub(crate) fn with_samples(&self, at: usize, age: u64) -> Json {
        let newest = self.samples.first().map_or(0, |(time, _)| *time);
        let oldest = newest.saturating_sub(age.saturating_mul(1000));
        let samples = self.samples.iter().filter(|(time, _)| *time >= oldest);
        let samples: Vec<(u64, u64)> = samples
            .filter_map(|(time, figures)| Some((*time, *figures.get(at)?)))
            .collect();
        let sum: u64 = samples.iter().map(|(_, figure)| *figure).sum();
        let mut shown = self.details(at);
        shown["avg"] = object!(sum as f64 / samples.len().max(1) as f64);
        shown["avg_rate"] = shown["rate"].clone();
        let samples = samples.iter();
        let samples = samples.map(|(time, figure)| object!({"sample": figure, "timestamp": time}));
        shown["samples"] = samples.collect();
        shown
    }
}

impl Rates {
    fn observe(&mut self, key: Key, now: Instant, wall_ms: u64, figures: &[u64]) -> Seen {
        if self.known.len() >= MAX_KEYS && !self.known.contains_key(&key) {
            self.known
                .retain(|_, s| s.back().is_some_and(|last| now - last.at < FORGET));
        }
        let room = self.known.len() < MAX_KEYS || self.known.contains_key(&key);
        let mut none = VecDeque::new();
        let samples = match room {
            true => self.known.entry(key).or_default(),
            false => &mut none,
        };
        let before = samples.iter().rev().find(|s| now - s.at >= OVER);
        let before = before.or_else(|| samples.front());
        let rates = match before {
            Some(before) if now - before.at >= APART => {
                let seconds = (now - before.at).as_secs_f64();
                let pairs = figures.iter().zip(&before.figures);
                // Down means that whoever counted has begun anew, or that a queue got shorter.
                pairs
                    .map(|(now, then)| (*now as f64 - *then as f64) / seconds)
                    .collect()
            }
            _ => vec![0.0; figures.len()],
        };
        if samples.back().is_none_or(|last| now - last.at >= APART) {
            samples.push_back(Sample {
                at: now,
                wall_ms,
                figures: figures.to_vec(),
            });
            if samples.len() > SAMPLES {
                samples.pop_front();
            }
        }
        let kept = samples.iter().rev();
        let kept = kept.filter(|s| s.wall_ms < wall_ms);
        let kept = kept.map(|s| (s.wall_ms, s.figures.clone()));
        Seen {
            rates,
            samples: std::iter::once((wall_ms, figures.to_vec()))
                .chain(kept)
                .collect(),
        }
    }
}

/// Notes figures and tells how they changed.
pub(crate) fn observe(api: &Api, key: Key, figures: &[u64]) -> Seen {
    api.rates()
        .observe(key, Instant::now(), api.wall_ms(), figures)
}

/// Counts of messages with their rates, under RabbitMQ's names.
pub(crate) fn message_stats(api: &Api, key: Key, counts: &MessageCounts) -> Json {
    let figures = [
        ("publish", counts.publish),
        ("confirm", counts.confirm),
        ("return_unroutable", counts.return_unroutable),
        ("drop_unroutable", counts.drop_unroutable),
        ("deliver", counts.deliver),
        ("deliver_no_ack", counts.deliver_no_ack),
        ("get", counts.get),
        ("get_no_ack", counts.get_no_ack),
        ("get_empty", counts.get_empty),
        ("deliver_get", counts.deliver_get()),
        ("redeliver", counts.redeliver),
        ("ack", counts.ack),
    ];
    let values: Vec<u64> = figures.iter().map(|(_, value)| *value).collect();
    let seen = observe(api, key, &values);
    let mut shown = object!({});
    for (at, (name, value)) in figures.iter().enumerate() {
        shown[*name] = object!(value);
        let mut details = seen.details(at);
        // A count that begins anew did not run backwards.
        if details["rate"].as_f64().is_some_and(|rate| rate < 0.0) {
            details["rate"] = object!(0.0);
        }
        shown[format!("{name}_details")] = details;
    }
    shown
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_rate_is_the_change_over_some_seconds() {
        let mut rates = Rates::default();
        let start = Instant::now();
        let mut at = |seconds: u64, figure: u64| {
            let now = start + Duration::from_secs(seconds);
            let seen = rates.observe(Key::Overview, now, 1000 * seconds, &[figure]);
            (seen.rates[0], seen.samples.len())
        };
        assert_eq!(at(1, 100), (0.0, 1));
        assert_eq!(at(3, 200), (50.0, 2));
        assert_eq!(at(8, 200), (0.0, 3));
        assert_eq!(at(18, 1200), (100.0, 4));
        // Since the sample before the last five seconds.
        assert_eq!(at(23, 200), (-200.0, 5));
        for n in 20..60 {
            assert!(at(n, 0).1 <= SAMPLES + 1);
        }
    }

    #[test]
    fn no_more_is_remembered_than_the_limit() {
        let mut rates = Rates::default();
        let start = Instant::now();
        for n in 0..MAX_KEYS as u64 + 10 {
            rates.observe(Key::Queue(n), start, 1, &[n]);
        }
        assert_eq!(rates.known.len(), MAX_KEYS);
        rates.observe(Key::Overview, start + FORGET, 2, &[1]);
        assert_eq!(rates.known.len(), 1);
    }
}
