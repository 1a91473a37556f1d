//! Adaptive delay between turns, so that a turn handles more input at once.
//!
//! A turn costs a poll, a wake-up, and a read and a write for each socket, regardless of the amount
//! of input. If clients stream without waiting for answers, turns without a delay find a few
//! messages each and spend half of the processor time in the kernel. If clients wait for answers, a
//! delay only slows them down. The effect of a delay tells the two cases apart: when streaming, a
//! turn finds more bytes and the throughput stays the same. So longer delays are tried from time to
//! time and used only if they pay off, similar to interrupt moderation of network cards.

use env::Time;
use std::time::Duration;

/// The delays, each tried if the previous one pays off. The kernel's timers add about 50 µs.
const DELAYS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(400),
];

/// Duration of a measurement.
const MEASUREMENT: Duration = Duration::from_millis(50);

/// Minimum number of turns per measurement without delay. Below it there is nothing to gain.
const MIN_TURNS: u32 = 150;

/// Number of measurements for which a result stays valid.
const VALID_FOR: u32 = 40;

/// The first delay pays off if a turn finds at least 3/2 of the bytes found without a delay.
const GAIN: (u32, u32) = (3, 2);

/// A longer delay pays off if a turn finds at least 5/4 of the bytes found with the previous one.
const GAIN_MORE: (u32, u32) = (5, 4);

/// In both cases the throughput must be at least 9/10 of that without a delay, so that clients are
/// not slowed down. The tolerance is for noise from other work on the machine.
const MIN_THROUGHPUT: (u128, u128) = (9, 10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GatherMode {
    /// Measures without a delay.
    Measure,
    /// Measures with a delay, to compare with the results without a delay and with the previous
    /// one.
    Try {
        without: TurnTotals,
        shorter: TurnTotals,
    },
    /// Uses the best delay, which may be none.
    Keep,
}

/// The sum of all turns of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TurnTotals {
    turns: u32,
    bytes: u64,
    took: Duration,
}

impl TurnTotals {
    /// Returns true if a turn found at least `gain` times the bytes of a turn of `then`.
    fn gains_per_turn(&self, then: &TurnTotals, gain: (u32, u32)) -> bool {
        u128::from(self.bytes) * u128::from(then.turns * gain.1)
            >= u128::from(then.bytes) * u128::from(self.turns * gain.0)
    }

    /// Returns true if the throughput is at least [`MIN_THROUGHPUT`] of that of `then`.
    fn keeps_throughput_of(&self, then: &TurnTotals) -> bool {
        u128::from(self.bytes) * then.took.as_nanos() * MIN_THROUGHPUT.1
            >= u128::from(then.bytes) * self.took.as_nanos() * MIN_THROUGHPUT.0
    }
}

/// The adaptive delay of a loop.
#[derive(Debug)]
pub(crate) struct GatherDelay {
    mode: GatherMode,
    /// Index in [`DELAYS`].
    level: usize,
    turns: u32,
    bytes: u64,
    since: Time,
    /// Remaining measurements until the result is checked again.
    valid_for: u32,
}

impl GatherDelay {
    pub(crate) fn new(now: Time) -> GatherDelay {
        GatherDelay {
            mode: GatherMode::Measure,
            level: 0,
            turns: 0,
            bytes: 0,
            since: now,
            valid_for: 0,
        }
    }

    /// Records the end of a turn that began at `now` and read `bytes` from clients. Returns the
    /// delay before the next turn, which may be zero.
    pub(crate) fn wait(&mut self, bytes: u64, now: Time) -> Duration {
        self.turns += 1;
        self.bytes += bytes;
        let took = now.since(self.since);
        if took >= MEASUREMENT {
            self.evaluate(TurnTotals {
                turns: self.turns,
                bytes: self.bytes,
                took,
            });
            (self.turns, self.bytes, self.since) = (0, 0, now);
        }
        DELAYS[self.level]
    }

    fn evaluate(&mut self, measured: TurnTotals) {
        // With a delay there are fewer turns for the same load.
        let min_turns = MIN_TURNS >> self.level;
        if measured.turns < min_turns || measured.bytes == 0 {
            (self.mode, self.level) = (GatherMode::Measure, 0);
            return;
        }
        match self.mode {
            GatherMode::Measure => self.try_longer(measured, measured),
            GatherMode::Try { without, shorter } => {
                let gain = if self.level == 1 { GAIN } else { GAIN_MORE };
                if !measured.gains_per_turn(&shorter, gain)
                    || !measured.keeps_throughput_of(&without)
                {
                    self.keep(self.level - 1);
                } else if self.level + 1 == DELAYS.len() {
                    self.keep(self.level);
                } else {
                    self.try_longer(without, measured);
                }
            }
            GatherMode::Keep => {
                self.valid_for -= 1;
                if self.valid_for == 0 {
                    (self.mode, self.level) = (GatherMode::Measure, 0);
                }
            }
        }
    }

    fn try_longer(&mut self, without: TurnTotals, shorter: TurnTotals) {
        self.mode = GatherMode::Try { without, shorter };
        self.level += 1;
    }

    fn keep(&mut self, level: usize) {
        self.level = level;
        self.mode = GatherMode::Keep;
        self.valid_for = VALID_FOR;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delay added by the kernel's timers.
    const TIMER: Duration = Duration::from_micros(50);

    /// Simulates 20 seconds of turns. `found` returns the bytes that a turn reads after a gap.
    /// Returns the share of time in percent spent in turns with a delay, and with the longest
    /// delay.
    fn run(work: Duration, found: impl Fn(Duration) -> u64) -> (u128, u128) {
        let start = Time::ZERO + Duration::from_secs(9);
        let mut now = start;
        let mut gather = GatherDelay::new(now);
        let mut gap = work;
        let (mut waited, mut longest) = (Duration::ZERO, Duration::ZERO);
        while now.since(start) < Duration::from_secs(20) {
            now = now + gap;
            let wait = gather.wait(found(gap), now);
            gap = work + wait;
            if !wait.is_zero() {
                gap += TIMER;
                waited += gap;
            }
            if wait == DELAYS[3] {
                longest += gap;
            }
        }
        let share = |time: Duration| time.as_millis() * 100 / now.since(start).as_millis();
        (share(waited), share(longest))
    }

    const WORK: Duration = Duration::from_micros(40);

    #[test]
    fn streaming_clients_get_the_longest_delay() {
        let (waited, longest) = run(WORK, |gap| gap.as_micros() as u64);
        assert!(waited >= 95, "{waited}");
        assert!(longest >= 90, "{longest}");
    }

    #[test]
    fn request_response_clients_get_no_delay() {
        let (waited, _) = run(WORK, |_| 1_000);
        assert!(waited < 5, "{waited}");
    }

    /// Clients with at most ten unconfirmed messages of 100 bytes: a turn finds all of them, so a
    /// delay brings no more.
    #[test]
    fn short_confirm_window_gets_no_delay() {
        let (waited, _) = run(WORK, |gap| (gap.as_micros() as u64 * 10).min(1_000));
        assert!(waited < 5, "{waited}");
    }

    /// The unconfirmed messages arrive within 200 µs: the shortest delay collects nearly all of
    /// them, a longer one would only slow clients down.
    #[test]
    fn delay_does_not_exceed_the_confirm_window() {
        let (waited, longest) = run(WORK, |gap| (gap.as_micros() as u64).min(200));
        assert!(waited >= 90, "{waited}");
        assert!(longest < 5, "{longest}");
    }

    #[test]
    fn idle_loop_gets_no_delay() {
        let stream = |gap: Duration| gap.as_micros() as u64;
        assert_eq!(run(Duration::from_millis(1), stream), (0, 0));
        assert_eq!(run(WORK, |_| 0), (0, 0));
    }

    #[test]
    fn change_of_load_is_detected() {
        let mut now = Time::ZERO;
        let mut gather = GatherDelay::new(now);
        let mut gap = WORK;
        // Returns whether turns are delayed after three seconds of this load.
        let mut load = |found: &dyn Fn(Duration) -> u64| {
            let (mut waits, since) = (false, now);
            while now.since(since) < Duration::from_secs(3) {
                now = now + gap;
                let wait = gather.wait(found(gap), now);
                gap = WORK + wait;
                waits = !wait.is_zero();
            }
            waits
        };
        assert!(load(&|gap| gap.as_micros() as u64));
        assert!(!load(&|_| 100));
        assert!(load(&|gap| gap.as_micros() as u64));
    }
}
