//! When a turn waits a little, so that the next one finds more.
//!
//! A turn costs a poll, a read and a write for each socket, and a wake-up, whatever it handles. With clients that send without waiting
//! for answers a loop that hurries finds a handful of messages each time, and spends half of its processor on the kernel. With clients that wait for
//! each answer, or for all but a few, a loop that dawdles only slows them. Which it is shows in what a wait brings: in the first case a
//! turn finds more bytes and a second brings as many as before; in the second it does not. So it is tried, now and then, and kept
//! only where it pays (as network cards moderate their interrupts).

use env::Time;
use std::time::Duration;

/// Waits, each tried when the one before it pays; the first is none. The kernel's timers add some 50 µs.
const WAITS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(400),
];

/// Turns are looked at together for so long.
const LOOK: Duration = Duration::from_millis(50);

/// Fewer in that time, without waits, are no load: there is nothing to gain.
const LOADED: u32 = 150;

/// How many looks a finding is believed.
const BELIEVED: u32 = 40;

/// The first wait pays when a turn then finds at least 3/2 of what it found without,
const GAIN: (u32, u32) = (3, 2);

/// a longer one when it finds 5/4 of what it found with the one before,
const GAIN_MORE: (u32, u32) = (5, 4);

/// and a second brings at least 9/10 of what it brought without waits: clients are not slowed, but for what other work on the machine makes of
/// such short times.
const KEPT: (u128, u128) = (9, 10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Without waits, to see what a turn finds.
    Look,
    /// With a wait, after that without, and with the wait before it.
    Try {
        without: GatheredTurns,
        shorter: GatheredTurns,
    },
    /// The wait pays, or is none.
    Keep,
}

/// What turns found that are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GatheredTurns {
    turns: u32,
    bytes: u64,
    took: Duration,
}

impl GatheredTurns {
    /// Whether a turn brought so many times what it brought then.
    fn more_by_turn(&self, then: &GatheredTurns, gain: (u32, u32)) -> bool {
        u128::from(self.bytes) * u128::from(then.turns * gain.1)
            >= u128::from(then.bytes) * u128::from(self.turns * gain.0)
    }

    /// Whether a second brought about as much as then.
    fn as_fast_as(&self, then: &GatheredTurns) -> bool {
        u128::from(self.bytes) * then.took.as_nanos() * KEPT.1
            >= u128::from(then.bytes) * self.took.as_nanos() * KEPT.0
    }
}

#[derive(Debug)]
pub(crate) struct Gather {
    mode: Mode,
    /// Which of [`WAITS`].
    level: usize,
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
            level: 0,
            turns: 0,
            bytes: 0,
            since: now,
            believed: 0,
        }
    }

    /// A turn that began `now` is over, and read this much from clients. How long to wait before the next; zero is not at all.
    pub fn wait(&mut self, bytes: u64, now: Time) -> Duration {
        self.turns += 1;
        self.bytes += bytes;
        let took = now.since(self.since);
        if took >= LOOK {
            self.judge(GatheredTurns {
                turns: self.turns,
                bytes: self.bytes,
                took,
            });
            (self.turns, self.bytes, self.since) = (0, 0, now);
        }
        WAITS[self.level]
    }

    fn judge(&mut self, found: GatheredTurns) {
        // With a wait there are fewer turns of the same load.
        let loaded = LOADED >> self.level;
        if found.turns < loaded || found.bytes == 0 {
            (self.mode, self.level) = (Mode::Look, 0);
            return;
        }
        match self.mode {
            Mode::Look => self.try_longer(found, found),
            Mode::Try { without, shorter } => {
                let gain = if self.level == 1 { GAIN } else { GAIN_MORE };
                if !found.more_by_turn(&shorter, gain) || !found.as_fast_as(&without) {
                    self.keep(self.level - 1);
                } else if self.level + 1 == WAITS.len() {
                    self.keep(self.level);
                } else {
                    self.try_longer(without, found);
                }
            }
            Mode::Keep => {
                self.believed -= 1;
                if self.believed == 0 {
                    (self.mode, self.level) = (Mode::Look, 0);
                }
            }
        }
    }

    fn try_longer(&mut self, without: GatheredTurns, shorter: GatheredTurns) {
        self.mode = Mode::Try { without, shorter };
        self.level += 1;
    }

    fn keep(&mut self, level: usize) {
        self.level = level;
        self.mode = Mode::Keep;
        self.believed = BELIEVED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait of the kernel's timers on top.
    const TIMER: Duration = Duration::from_micros(50);

    /// Runs turns of a loop for 20 seconds: `found` says what a turn reads after so much time. The share of that time, in percent, in which turns
    /// waited, and in which they waited for the longest.
    fn run(work: Duration, found: impl Fn(Duration) -> u64) -> (u128, u128) {
        let start = Time::ZERO + Duration::from_secs(9);
        let mut now = start;
        let mut gather = Gather::new(now);
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
            if wait == WAITS[3] {
                longest += gap;
            }
        }
        let share = |time: Duration| time.as_millis() * 100 / now.since(start).as_millis();
        (share(waited), share(longest))
    }

    const WORK: Duration = Duration::from_micros(40);

    #[test]
    fn a_stream_of_messages_is_gathered() {
        let (waited, longest) = run(WORK, |gap| gap.as_micros() as u64);
        assert!(waited >= 95, "{waited}");
        assert!(longest >= 90, "{longest}");
    }

    #[test]
    fn who_waits_for_each_answer_is_not_held_up() {
        let (waited, _) = run(WORK, |_| 1_000);
        assert!(waited < 5, "{waited}");
    }

    /// Ten messages of 100 bytes at most wait for their confirms: a turn that finds all of them finds no more later.
    #[test]
    fn a_short_window_is_not_held_up() {
        let (waited, _) = run(WORK, |gap| (gap.as_micros() as u64 * 10).min(1_000));
        assert!(waited < 5, "{waited}");
    }

    /// What may be unconfirmed comes in some 200 µs: the shortest wait gathers nearly all of it, a longer one would only hold clients up.
    #[test]
    fn a_window_is_waited_for_as_long_as_it_brings_more() {
        let (waited, longest) = run(WORK, |gap| (gap.as_micros() as u64).min(200));
        assert!(waited >= 90, "{waited}");
        assert!(longest < 5, "{longest}");
    }

    #[test]
    fn few_turns_never_wait() {
        let stream = |gap: Duration| gap.as_micros() as u64;
        assert_eq!(run(Duration::from_millis(1), stream), (0, 0));
        assert_eq!(run(WORK, |_| 0), (0, 0));
    }

    #[test]
    fn a_change_of_load_is_noticed() {
        let mut now = Time::ZERO;
        let mut gather = Gather::new(now);
        let mut gap = WORK;
        // Whether a turn waits, for three seconds of such a load.
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
