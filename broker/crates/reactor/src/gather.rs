//! When a turn waits a little, so that the next one finds more.
//!
//! A turn costs a poll, a read and a write for each socket, and a wake-up, whatever it handles. With clients that send without waiting
//! for answers a loop that hurries finds a handful of messages each time, and spends half of its processor on the kernel. With clients that wait for
//! each answer, or for all but a few, a loop that dawdles only slows them. Which it is shows in what a wait brings: in the first case a
//! turn finds more bytes and a second brings as many as before; in the second it does not. So it is tried, now and then, and kept
//! only where it pays (as network cards moderate their interrupts).

use env::Time;
use std::time::Duration;

/// A wait. The kernel's timers add some 50 µs.
pub(crate) const WAIT: Duration = Duration::from_micros(100);

/// Turns are looked at together for so long.
const LOOK: Duration = Duration::from_millis(50);

/// Fewer in that time are no load: there is nothing to gain.
const LOADED: u32 = 150;

/// How many looks a finding is believed.
const BELIEVED: u32 = 40;

/// A wait pays when a turn then finds at least 3/2 of what it found without,
const GAIN: (u32, u32) = (3, 2);

/// and a second brings at least 9/10: clients are not slowed, but for what other work on the machine makes of such short times.
const KEPT: (u128, u128) = (9, 10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Without waits, to see what a turn finds.
    Look,
    /// With waits, after this without.
    Try(Found),
    /// Waits pay.
    Wait,
    /// They do not.
    Hurry,
}

/// What turns found that are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    turns: u32,
    bytes: u64,
    took: Duration,
}

impl Found {
    /// Whether waits, with which this was found, pay.
    fn better_than(&self, without: &Found) -> bool {
        let (now, then) = (u128::from(self.bytes), u128::from(without.bytes));
        let by_turn = now * u128::from(without.turns * GAIN.1);
        let by_time = now * without.took.as_nanos() * KEPT.1;
        by_turn >= then * u128::from(self.turns * GAIN.0)
            && by_time >= then * self.took.as_nanos() * KEPT.0
    }
}

#[derive(Debug)]
pub(crate) struct Gather {
    mode: Mode,
    turns: u32,
    bytes: u64,
    since: Time,
    /// Looks until a finding is tried again.
    believed: u32,
}

impl Gather {
    pub fn new(now: Time) -> Gather {
        Gather {
            mode: Mode::Look,
            turns: 0,
            bytes: 0,
            since: now,
            believed: 0,
        }
    }

    /// A turn that began `now` is over, and read this much from clients. Whether to wait before the next.
    pub fn waits(&mut self, bytes: u64, now: Time) -> bool {
        self.turns += 1;
        self.bytes += bytes;
        let took = now.since(self.since);
        if took >= LOOK {
            self.mode = self.judge(Found {
                turns: self.turns,
                bytes: self.bytes,
                took,
            });
            (self.turns, self.bytes, self.since) = (0, 0, now);
        }
        matches!(self.mode, Mode::Try(_) | Mode::Wait)
    }

    fn judge(&mut self, found: Found) -> Mode {
        if found.turns < LOADED || found.bytes == 0 {
            return Mode::Look;
        }
        self.believed = self.believed.saturating_sub(1);
        match self.mode {
            Mode::Look => Mode::Try(found),
            Mode::Try(without) => {
                self.believed = BELIEVED;
                match found.better_than(&without) {
                    true => Mode::Wait,
                    false => Mode::Hurry,
                }
            }
            Mode::Wait | Mode::Hurry if self.believed == 0 => Mode::Look,
            same => same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs turns of a loop: `found` says what a turn reads after so much time. How many turns of the second half waited.
    fn run(turns: u32, work: Duration, found: impl Fn(Duration) -> u64) -> u32 {
        let mut now = Time::ZERO + Duration::from_secs(9);
        let mut gather = Gather::new(now);
        let (mut gap, mut waited) = (work, 0);
        for turn in 0..turns {
            now = now + gap;
            let waits = gather.waits(found(gap), now);
            gap = if waits { work + WAIT } else { work };
            waited += u32::from(waits && turn >= turns / 2);
        }
        waited
    }

    #[test]
    fn a_stream_of_messages_is_gathered() {
        let stream = |gap: Duration| gap.as_micros() as u64;
        let waited = run(500_000, Duration::from_micros(40), stream);
        assert!(waited >= 230_000, "{waited}");
    }

    #[test]
    fn who_waits_for_each_answer_is_not_held_up() {
        let asks = |_: Duration| 1_000;
        let waited = run(500_000, Duration::from_micros(40), asks);
        assert!(waited < 5_000, "{waited}");
    }

    /// Ten messages of 100 bytes at most wait for their confirms: a turn that finds all of them finds no more later.
    #[test]
    fn a_short_window_is_not_held_up() {
        let window = |gap: Duration| (gap.as_micros() as u64 * 10).min(1_000);
        let waited = run(500_000, Duration::from_micros(40), window);
        assert!(waited < 5_000, "{waited}");
    }

    #[test]
    fn few_turns_never_wait() {
        let stream = |gap: Duration| gap.as_micros() as u64;
        assert_eq!(run(10_000, Duration::from_millis(1), stream), 0);
        assert_eq!(run(10_000, Duration::from_micros(40), |_| 0), 0);
    }

    #[test]
    fn a_change_of_load_is_noticed() {
        let mut now = Time::ZERO;
        let mut gather = Gather::new(now);
        let mut step = |found: &dyn Fn(u64) -> u64, gap: &mut u64| {
            now = now + Duration::from_micros(*gap);
            let waits = gather.waits(found(*gap), now);
            *gap = if waits { 140 } else { 40 };
            waits
        };
        let mut gap = 40;
        let gathered = (0..100_000).filter(|_| step(&|gap| gap, &mut gap)).count();
        assert!(gathered > 90_000, "{gathered}");
        let later = (0..200_000).filter(|_| step(&|_| 100, &mut gap)).count();
        assert!(later < 30_000, "{later}");
    }
}
