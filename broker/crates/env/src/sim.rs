//! Simulated time and disk under a seed: the disk tears writes, loses unsynced data and flips bits on
//! request.

mod disk;
mod inode;
#[cfg(test)]
mod tests;

pub use disk::{Counters, SimDisk};

use crate::{Clock, SeededRng, Time, WallTime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The simulator uses the same generator as production, which seeds it from the kernel.
pub type SimRng = SeededRng;

/// A clock that stands still until it is set. Clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    now: Arc<AtomicU64>,
    /// Wall-clock milliseconds at [`Time::ZERO`].
    epoch: u64,
}

impl SimClock {
    /// A clock at `Time::ZERO` whose wall clock shows `epoch`.
    pub fn new(epoch: WallTime) -> SimClock {
        SimClock {
            now: Arc::default(),
            epoch: epoch.0,
        }
    }

    /// Sets the time. An earlier time than now has no effect.
    pub fn set(&self, now: Time) {
        self.now.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Advances both clocks.
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
