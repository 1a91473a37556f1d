//! When what comes to a client left its queue.

use super::{ON_THE_WAY, Oracle};
use env::{NodeId, Time};
use std::time::Duration;

/// A machine stood still: what had come there, or was on its way, comes to its clients when it goes on.
#[derive(Clone, Copy, Debug)]
pub struct FrozenMachine {
    machine: NodeId,
    from: Time,
    until: Time,
}

impl Oracle {
    /// A machine stands still from now on, for so long.
    pub fn stands_still(&mut self, now: Time, machine: NodeId, time: Duration) {
        self.still.push(FrozenMachine {
            machine,
            from: now,
            until: now + time,
        });
    }

    /// When what came to a client of this machine at this time left its queue, at the earliest: a moment before, where the machine
    /// did not stand still.
    pub(super) fn sent_at_earliest(&self, machine: NodeId, came: Time) -> Time {
        let stood = |s: &&FrozenMachine| {
            s.machine == machine && s.from <= came && came <= s.until + ON_THE_WAY
        };
        let stood = self.still.iter().filter(stood);
        stood.map(|s| s.from).min().unwrap_or(came)
    }
}
