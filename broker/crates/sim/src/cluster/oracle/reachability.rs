//! Who takes whom to be out of reach.

use env::{NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Reachability {
    /// When a machine was last given up by another one: queues took back what clients there had.
    given_up: BTreeMap<NodeId, Time>,
    /// When one that had given it up last heard it again. Until then whoever comes to lead a queue there takes back what is with its clients.
    heard: BTreeMap<NodeId, Time>,
    /// Who has given up whom and not heard it since.
    without: BTreeSet<(NodeId, NodeId)>,
}

impl Reachability {
    pub fn given_up(&mut self, now: Time, by: NodeId, machine: NodeId) {
        self.given_up.insert(machine, now);
        self.without.insert((by, machine));
    }

    pub fn heard(&mut self, now: Time, by: NodeId, machine: NodeId) {
        if self.without.remove(&(by, machine)) {
            self.heard.insert(machine, now);
        }
    }

    /// Its software has ended, and with it what it knew.
    pub fn ended(&mut self, now: Time, by: NodeId) {
        let without = std::mem::take(&mut self.without);
        let (its, others) = without.into_iter().partition(|(who, _)| *who == by);
        self.without = others;
        let its: BTreeSet<(NodeId, NodeId)> = its;
        self.heard
            .extend(its.into_iter().map(|(_, whom)| (whom, now)));
    }

    /// Until when somebody took the machine to be out of reach, if ever.
    pub fn out_of_reach_until(&self, now: Time, machine: NodeId) -> Option<Time> {
        match self.without.iter().any(|(_, whom)| *whom == machine) {
            true => Some(now),
            false => self
                .heard
                .get(&machine)
                .copied()
                .max(self.given_up.get(&machine).copied()),
        }
    }
}
