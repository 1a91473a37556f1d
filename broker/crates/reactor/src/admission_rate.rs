//! Limits the rate of accepted connections, in connections per second.

use env::Time;
use std::time::Duration;

/// What may come at once after a quiet time, as time: a tenth of what a second allows.
const BURST: Duration = Duration::from_millis(100);

/// At least this long between two looks, so that not every connection wakes the loop.
const SLICE: Duration = Duration::from_millis(5);

/// A rate with a short memory: each admission moves a mark ahead by its share of a second, and the mark may be ahead of
/// time by [`BURST`] (the generic cell rate algorithm).
#[derive(Clone, Debug)]
pub(crate) struct AdmissionRate {
    /// Zero: no bound.
    share: Duration,
    mark: Time,
}

impl AdmissionRate {
    /// 0: no bound.
    pub fn per_second(rate: u32) -> AdmissionRate {
        AdmissionRate {
            share: Duration::from_secs(1).checked_div(rate).unwrap_or_default(),
            mark: Time::ZERO,
        }
    }

    /// How many may come in this time.
    pub fn within(&self, time: Duration) -> usize {
        let share = self.share.as_nanos();
        let count = time.as_nanos().checked_div(share);
        count.map_or(usize::MAX, |count| {
            usize::try_from(count).unwrap_or(usize::MAX)
        })
    }

    /// Whether one may come now; else when to look again.
    pub fn look(&self, now: Time) -> Result<(), Time> {
        let bound = now + BURST;
        match self.mark > bound {
            true => Err(now + self.mark.since(bound).max(SLICE)),
            false => Ok(()),
        }
    }

    /// One has come.
    pub fn took(&mut self, now: Time) {
        self.mark = self.mark.max(now) + self.share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many get in during this time when there are always more.
    fn storm(pace: &mut AdmissionRate, from: Time, time: Duration) -> u32 {
        let (mut now, mut admitted) = (from, 0);
        while now < from + time {
            match pace.look(now) {
                Ok(()) => {
                    pace.took(now);
                    admitted += 1;
                }
                Err(again) => {
                    assert!(again >= now + SLICE);
                    now = again;
                }
            }
        }
        admitted
    }

    #[test]
    fn a_storm_is_taken_in_at_the_rate() {
        let start = Time::ZERO + Duration::from_secs(50);
        for rate in [1, 10, 1000, 100_000] {
            let mut pace = AdmissionRate::per_second(rate);
            let burst = rate / 10 + 1;
            let ten_seconds = pace.within(Duration::from_secs(10));
            assert_eq!(ten_seconds, rate as usize * 10);
            let first = storm(&mut pace, start, Duration::from_secs(10));
            assert!(
                (rate * 10..=rate * 10 + 2 * burst).contains(&first),
                "{rate}: {first}"
            );
            // A quiet hour does not add up.
            let later = start + Duration::from_secs(3600);
            let second = storm(&mut pace, later, Duration::from_secs(10));
            assert!(
                (rate * 10..=rate * 10 + 2 * burst).contains(&second),
                "{rate}: {second}"
            );
        }
    }

    #[test]
    fn no_rate_is_no_bound() {
        let mut pace = AdmissionRate::per_second(0);
        assert_eq!(pace.within(Duration::from_secs(1)), usize::MAX);
        for _ in 0..100_000 {
            assert_eq!(pace.look(Time::ZERO), Ok(()));
            pace.took(Time::ZERO);
        }
    }
}
