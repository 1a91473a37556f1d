//! Limits the rate of accepted connections, in connections per second.

use env::Time;
use std::time::Duration;

/// Burst after an idle period, as a time: a tenth of what is allowed per second.
const BURST: Duration = Duration::from_millis(100);

/// Minimum time until the next check, so that not every connection wakes the loop.
const SLICE: Duration = Duration::from_millis(5);

/// A rate limiter (generic cell rate algorithm). Each admission advances `mark` by `share`, and
/// `mark` may be ahead of the current time by [`BURST`].
#[derive(Clone, Debug)]
pub(crate) struct AdmissionRate {
    /// Time per admission. Zero: unlimited.
    interval: Duration,
    mark: Time,
}

impl AdmissionRate {
    /// Creates a limiter; 0 is unlimited.
    pub(crate) fn per_second(rate: u32) -> AdmissionRate {
        AdmissionRate {
            interval: Duration::from_secs(1).checked_div(rate).unwrap_or_default(),
            mark: Time::ZERO,
        }
    }

    /// Number of admissions allowed in this time.
    pub(crate) fn within(&self, time: Duration) -> usize {
        let interval = self.interval.as_nanos();
        let count = time.as_nanos().checked_div(interval);
        count.map_or(usize::MAX, |count| {
            usize::try_from(count).unwrap_or(usize::MAX)
        })
    }

    /// Returns Ok if an admission is allowed now, otherwise the time of the next check.
    pub(crate) fn check(&self, now: Time) -> Result<(), Time> {
        let bound = now + BURST;
        match self.mark > bound {
            true => Err(now + self.mark.since(bound).max(SLICE)),
            false => Ok(()),
        }
    }

    /// Records an admission.
    pub(crate) fn record(&mut self, now: Time) {
        self.mark = self.mark.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of admissions during this time if connections are always pending.
    fn admit_all(rate: &mut AdmissionRate, from: Time, time: Duration) -> u32 {
        let (mut now, mut admitted) = (from, 0);
        while now < from + time {
            match rate.check(now) {
                Ok(()) => {
                    rate.record(now);
                    admitted += 1;
                }
                Err(retry_at) => {
                    assert!(retry_at >= now + SLICE);
                    now = retry_at;
                }
            }
        }
        admitted
    }

    #[test]
    fn admissions_follow_the_rate() {
        let start = Time::ZERO + Duration::from_secs(50);
        for per_second in [1, 10, 1000, 100_000] {
            let mut rate = AdmissionRate::per_second(per_second);
            let burst = per_second / 10 + 1;
            let ten_seconds = rate.within(Duration::from_secs(10));
            assert_eq!(ten_seconds, per_second as usize * 10);
            let first = admit_all(&mut rate, start, Duration::from_secs(10));
            assert!(
                (per_second * 10..=per_second * 10 + 2 * burst).contains(&first),
                "{per_second}: {first}"
            );
            // Idle time does not accumulate beyond the burst.
            let later = start + Duration::from_secs(3600);
            let second = admit_all(&mut rate, later, Duration::from_secs(10));
            assert!(
                (per_second * 10..=per_second * 10 + 2 * burst).contains(&second),
                "{per_second}: {second}"
            );
        }
    }

    #[test]
    fn rate_of_zero_is_unlimited() {
        let mut rate = AdmissionRate::per_second(0);
        assert_eq!(rate.within(Duration::from_secs(1)), usize::MAX);
        for _ in 0..100_000 {
            assert_eq!(rate.check(Time::ZERO), Ok(()));
            rate.record(Time::ZERO);
        }
    }
}
