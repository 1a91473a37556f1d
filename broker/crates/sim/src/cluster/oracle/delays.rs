//! When a message that reaches a client left its queue.

use super::{MAX_DELIVERY_DELAY, Oracle};
use env::{NodeId, Time};
use std::time::Duration;

/// A pause of a machine: input that arrived meanwhile reaches its clients when the machine continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrozenMachine {
    machine: NodeId,
    from: Time,
    until: Time,
}

impl Oracle {
    /// Records that a machine is paused for `time`.
    pub(crate) fn machine_paused(&mut self, now: Time, machine: NodeId, time: Duration) {
        self.pauses.push(FrozenMachine {
            machine,
            from: now,
            until: now + time,
        });
    }

    /// When a message that reached a client of this machine at `arrived` left its queue, at the earliest: shortly
    /// before, unless the machine was paused.
    pub(super) fn earliest_sent(&self, machine: NodeId, arrived: Time) -> Time {
        let overlaps = |s: &&FrozenMachine| {
            s.machine == machine && s.from <= arrived && arrived <= s.until + MAX_DELIVERY_DELAY
        };
        let pauses = self.pauses.iter().filter(overlaps);
        pauses.map(|s| s.from).min().unwrap_or(arrived)
    }
}
