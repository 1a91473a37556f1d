//! Faults: what goes wrong, and how it gets well again.

use crate::world::{Scenario, Stop, World};
use env::{NodeId, Rng, SeededRng};
use std::time::Duration;

/// What goes wrong next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing passes between these and the others.
    Partition(Vec<NodeId>),
    /// Nothing passes one way.
    OneWay(NodeId, NodeId),
    Slow(NodeId, NodeId, Duration),
    /// Frames lost in 1000, everywhere.
    Loss(u64),
    Stop(NodeId, Stop),
    /// The power goes in the middle of the disk's n-th work from now.
    PowerCut(NodeId, u64),
    /// The n-th sync from now fails.
    FailedSync(NodeId, u64),
    /// Each write takes this much longer.
    Stall(NodeId, Duration),
    /// The disk has this much room left.
    Full(NodeId, u64),
    /// The net and the disks are well again.
    Calm,
}

impl Fault {
    pub fn random(rng: &mut SeededRng, nodes: &[NodeId]) -> Fault {
        let node = |rng: &mut SeededRng| {
            let at = rng.below(nodes.len() as u64) as usize;
            nodes.get(at).copied().unwrap_or_default()
        };
        match rng.below(20) {
            0..=2 => Fault::Partition(vec![node(rng)]),
            3 => {
                let side = nodes.iter().copied().filter(|_| rng.chance(1, 2));
                Fault::Partition(side.collect())
            }
            4 | 5 => Fault::OneWay(node(rng), node(rng)),
            6 => {
                let by = Duration::from_millis(20 + rng.below(800));
                Fault::Slow(node(rng), node(rng), by)
            }
            7 => Fault::Loss(10 + rng.below(300)),
            8 | 9 => Fault::Stop(node(rng), Stop::Power),
            10 => Fault::Stop(node(rng), Stop::Kill),
            11 | 12 => Fault::PowerCut(node(rng), 1 + rng.below(25)),
            13 => Fault::FailedSync(node(rng), rng.below(6)),
            14 => Fault::Stall(node(rng), Duration::from_millis(rng.below(700))),
            15 => Fault::Full(node(rng), rng.below(40 << 10)),
            _ => Fault::Calm,
        }
    }

    pub fn happen<S: Scenario>(&self, world: &mut World<S>) {
        match self {
            Fault::Partition(side) => {
                for a in world.nodes() {
                    for b in world.nodes() {
                        if side.contains(&a) != side.contains(&b) {
                            world.net.cut((a, b));
                        }
                    }
                }
            }
            Fault::OneWay(from, to) => world.net.cut((*from, *to)),
            Fault::Slow(from, to, by) => world.net.slow_down((*from, *to), *by),
            Fault::Loss(in_1000) => world.net.lose(*in_1000),
            Fault::Stop(node, stop) => world.stop(*node, *stop),
            Fault::PowerCut(node, n) => {
                if let Some(disk) = world.disk(*node) {
                    disk.cut_power_after(Some(*n));
                }
            }
            Fault::FailedSync(node, n) => {
                if let Some(disk) = world.disk(*node) {
                    disk.fail_syncs_after(Some(*n));
                }
            }
            Fault::Stall(node, by) => world.stall_disk(*node, *by),
            Fault::Full(node, room) => {
                if let Some(disk) = world.disk(*node) {
                    let used: u64 = disk.files().iter().map(|(_, len)| len).sum();
                    disk.set_capacity(Some(used + room));
                }
            }
            Fault::Calm => calm(world),
        }
    }
}

/// Everything is well again; nodes that are down stay down.
pub fn calm<S: Scenario>(world: &mut World<S>) {
    world.net.heal();
    for node in world.nodes() {
        world.stall_disk(node, Duration::ZERO);
        if let Some(disk) = world.disk(node) {
            disk.fail_syncs_after(None);
            disk.set_capacity(None);
            if !disk.power_is_off() {
                disk.cut_power_after(None);
            }
        }
    }
}
