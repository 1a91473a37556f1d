//! The simulated network between nodes.

use bytes::Bytes;
use env::{NodeId, Rng, SeededRng, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Default)]
pub struct Network {
    /// Frames in flight, ordered by arrival, then by sending.
    in_flight: BTreeMap<(Time, u64), (NodeId, NodeId, Bytes)>,
    sent: u64,
    down: BTreeSet<NodeId>,
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Probability of a lost frame, in a thousand.
    pub loss: u64,
    /// Probability of a duplicated frame, in a thousand.
    pub duplication: u64,
    pub max_delay_ms: u64,
    pub frames: u64,
    pub bytes: u64,
}

impl Network {
    pub fn set_up(&mut self, node: NodeId, up: bool) {
        if up {
            self.down.remove(&node);
        } else {
            self.down.insert(node);
            self.in_flight
                .retain(|_, (from, to, _)| *from != node && *to != node);
        }
    }

    pub fn set_cut(&mut self, from: NodeId, to: NodeId, cut: bool) {
        match cut {
            true => drop(self.cut.insert((from, to))),
            false => drop(self.cut.remove(&(from, to))),
        }
    }

    pub fn is_open(&self, from: NodeId, to: NodeId) -> bool {
        !self.down.contains(&from) && !self.down.contains(&to) && !self.cut.contains(&(from, to))
    }

    /// Ends losses, delays and partitions.
    pub fn clear_faults(&mut self) {
        self.cut.clear();
        self.loss = 0;
        self.duplication = 0;
        self.max_delay_ms = 0;
    }

    pub fn send(&mut self, now: Time, from: NodeId, to: NodeId, frame: Bytes, rng: &mut SeededRng) {
        self.frames += 1;
        self.bytes += frame.len() as u64;
        if !self.is_open(from, to) || rng.chance(self.loss, 1000) {
            return;
        }
        let copies = 1 + u64::from(rng.chance(self.duplication, 1000));
        for _ in 0..copies {
            let delay = 1 + rng.below(self.max_delay_ms + 1);
            self.sent += 1;
            let at = now + Duration::from_millis(delay);
            let frame = frame.clone();
            self.in_flight.insert((at, self.sent), (from, to, frame));
        }
    }

    pub fn due(&mut self, now: Time) -> Vec<(NodeId, NodeId, Bytes)> {
        let later = self
            .in_flight
            .split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut self.in_flight, later);
        let open = |(from, to, _): &(NodeId, NodeId, Bytes)| self.is_open(*from, *to);
        due.into_values().filter(open).collect()
    }
}
