//! Failure detection between machines, as the oracle knows it.

use env::{NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Reachability {
    /// When another machine last considered this one down. Queues then took back the messages of its clients.
    given_up: BTreeMap<NodeId, Time>,
    /// When a machine that had considered this one down last reached it again. Until then, a new leader on that machine
    /// takes back the messages of its clients.
    reachable_again: BTreeMap<NodeId, Time>,
    /// (observer, machine): the observer considers the machine down and has not reached it since.
    unreachable: BTreeSet<(NodeId, NodeId)>,
}

impl Reachability {
    pub(super) fn given_up(&mut self, now: Time, observer: NodeId, machine: NodeId) {
        self.given_up.insert(machine, now);
        self.unreachable.insert((observer, machine));
    }

    pub(super) fn reachable_again(&mut self, now: Time, observer: NodeId, machine: NodeId) {
        if self.unreachable.remove(&(observer, machine)) {
            self.reachable_again.insert(machine, now);
        }
    }

    /// The software of a machine has ended, and with it its view of the others.
    pub(super) fn machine_ended(&mut self, now: Time, observer: NodeId) {
        let unreachable = std::mem::take(&mut self.unreachable);
        let (own, others) = unreachable
            .into_iter()
            .partition(|(who, _)| *who == observer);
        self.unreachable = others;
        let own: BTreeSet<(NodeId, NodeId)> = own;
        self.reachable_again
            .extend(own.into_iter().map(|(_, machine)| (machine, now)));
    }

    /// Until when another machine considered this one unreachable.
    pub(super) fn unreachable_until(&self, now: Time, machine: NodeId) -> Option<Time> {
        match self.unreachable.iter().any(|(_, m)| *m == machine) {
            true => Some(now),
            false => self
                .reachable_again
                .get(&machine)
                .copied()
                .max(self.given_up.get(&machine).copied()),
        }
    }
}
