//! A seeded world behind the traits: virtual time, and a disk that tears, loses and flips.

mod disk;
mod inode;
#[cfg(test)]
mod tests;

pub use disk::{Counters, SimDisk};

use crate::{Clock, SeededRng, Time, WallTime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The simulator's generator is the same one that the real world seeds from the kernel.
pub type SimRng = SeededRng;

/// Time that stands still until it is set. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    now: Arc<AtomicU64>,
    /// Wall milliseconds at `Time::ZERO`.
    epoch: u64,
}

impl SimClock {
    /// `epoch`: what the wall shows at `Time::ZERO`.
    pub fn new(epoch: WallTime) -> SimClock {
        SimClock {
            now: Arc::default(),
            epoch: epoch.0,
        }
    }

    /// Never goes back: an earlier time than now has no effect.
    pub fn set(&self, now: Time) {
        self.now.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        Time(self.now.load(Ordering::Relaxed))
    }

    fn wall(&self) -> WallTime {
        WallTime(self.epoch.saturating_add(self.now().0 / 1_000_000))
    }
}
