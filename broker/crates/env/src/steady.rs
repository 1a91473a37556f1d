//! A wall clock for ages and deadlines that does not jump when the system clock is set.

use crate::{Time, WallTime};

/// Divisor of the elapsed time by which the clock is corrected: 3.6 seconds per hour.
const SLEW: i64 = 1000;

/// Wall-clock time that advances with monotonic time. When the wall clock is set forward or back, this clock
/// continues and converges to it by one part in a thousand, so that a message's TTL is never wrong by more
/// than that fraction.
///
/// Only a start adopts the wall clock directly, because monotonic time does not outlive a process.
#[derive(Clone, Copy, Debug)]
pub struct SteadyWallClock {
    now: Time,
    /// Nanoseconds to add to monotonic time to get wall-clock time.
    offset: i64,
}

impl SteadyWallClock {
    /// A clock that shows `wall` at `now`.
    pub fn new(now: Time, wall: WallTime) -> SteadyWallClock {
        SteadyWallClock {
            now,
            offset: offset(now, wall),
        }
    }

    /// The steady wall time at `now`, given that the wall clock shows `wall`.
    pub fn read(&mut self, now: Time, wall: WallTime) -> WallTime {
        let elapsed = i64::try_from(now.0.saturating_sub(self.now.0)).unwrap_or(i64::MAX);
        let difference = offset(now, wall).saturating_sub(self.offset);
        let max_correction = elapsed / SLEW;
        self.offset = self
            .offset
            .saturating_add(difference.clamp(-max_correction, max_correction));
        self.now = now;
        WallTime(now.0.saturating_add_signed(self.offset) / 1_000_000)
    }
}

fn offset(now: Time, wall: WallTime) -> i64 {
    let wall = i128::from(wall.0) * 1_000_000;
    let offset = wall - i128::from(now.0);
    i64::try_from(offset).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const START: WallTime = WallTime(1_700_000_000_000);

    fn at(ms: u64) -> Time {
        Time(5 + ms * 1_000_000)
    }

    #[test]
    fn steady_time_equals_an_undisturbed_wall_clock() {
        let mut steady = SteadyWallClock::new(at(0), START);
        for ms in [0, 1, 2, 50, HOUR, 24 * HOUR] {
            let wall = WallTime(START.0 + ms);
            assert_eq!(steady.read(at(ms), wall), wall);
        }
    }

    #[test]
    fn wall_clock_jump_changes_the_rate_by_one_part_in_a_thousand() {
        for (jump, sign) in [(HOUR as i64, 1), (-(HOUR as i64), -1)] {
            let mut steady = SteadyWallClock::new(at(0), START);
            let mut last = START.0;
            for second in 1..=600 {
                let wall = WallTime((START.0 + second * 1000).saturating_add_signed(jump));
                let shown = steady.read(at(second * 1000), wall).0;
                assert!(shown > last, "time never goes back");
                last = shown;
            }
            let error = last as i64 - (START.0 + 600_000) as i64;
            assert!((595..=605).contains(&(error * sign)), "{error}");
        }
    }

    #[test]
    fn steady_time_converges_to_a_corrected_wall_clock() {
        let mut steady = SteadyWallClock::new(at(0), START);
        let mut shown = START;
        for second in 1..=3000 {
            shown = steady.read(at(second * 1000), WallTime(START.0 + second * 1000 + 2000));
        }
        assert_eq!(shown.0, START.0 + 3_000_000 + 2000);
    }

    #[test]
    fn extreme_clocks_do_not_overflow() {
        let mut steady = SteadyWallClock::new(Time(u64::MAX), WallTime(0));
        steady.read(Time(u64::MAX), WallTime(u64::MAX));
        steady.read(Time(0), WallTime(0));
        let mut steady = SteadyWallClock::new(Time(0), WallTime(u64::MAX));
        steady.read(Time(u64::MAX), WallTime(0));
    }
}
