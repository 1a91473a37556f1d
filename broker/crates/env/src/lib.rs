//! The interfaces between deterministic step functions and the outside world: time, randomness, disk and
//! network.
//!
//! Every crate below `node` reaches the outside world through these traits only. [`real`] implements them on
//! the operating system, [`sim`] under a seed, so that a whole cluster runs in one thread and runs are
//! reproducible.
#![deny(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

pub mod disk;
pub mod planted;
pub mod real;
pub mod rng;
pub mod sim;
mod steady;

pub use disk::{Disk, File};
pub use rng::SeededRng;
pub use steady::SteadyWallClock;

use std::ops::{Add, Sub};
use std::time::Duration;

/// Monotonic time in nanoseconds since an origin private to this process. Never compare values of two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The origin, and the default.
    pub const ZERO: Time = Time(0);

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The earliest of these times; `None` if there is none.
    pub fn earliest<const N: usize>(times: [Option<Time>; N]) -> Option<Time> {
        let mut earliest = None;
        for time in times {
            earliest = match (earliest, time) {
                (Some(a), Some(b)) => Some(std::cmp::min::<Time>(a, b)),
                (a, b) => a.or(b),
            };
        }
        earliest
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time(
            self.0
                .saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// Wall-clock time in milliseconds since the Unix epoch: for displayed timestamps and for TTLs that outlive a
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub u64);

/// Source of time. Production code reads time only through it, so that the simulator controls it.
pub trait Clock {
    /// Monotonic time: it never goes back, and does not jump when the wall clock is set.
    fn now(&self) -> Time;
    /// Wall-clock time. It may jump in either direction.
    fn wall(&self) -> WallTime;
}

/// Source of random numbers that are not secrets.
pub trait Rng {
    /// Returns a number that is uniform over all of `u64`.
    fn next_u64(&mut self) -> u64;

    /// Uniform in `0..bound`; 0 if `bound` is 0. The bias of the multiplication method is below 2^-32 for
    /// bounds below 2^32.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// Identifies a node of a cluster for as long as it keeps its data directory. Random, never 0. A node that
/// lost its directory rejoins under a new id, so it can never vote twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// One run of a node's process. Increases with every start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// The network to other nodes. Frames to one node arrive in order; any frame may be lost without notice.
pub trait Net {
    /// Queues a frame for a node, or drops it silently if there is no link. Never blocks.
    fn send(&mut self, to: NodeId, frame: bytes::Bytes);
}
