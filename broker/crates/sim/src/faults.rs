//! Faults: their kinds, how often each occurs, and how the cluster recovers from them.

use crate::world::{Scenario, Stop, World};
use env::{NodeId, Rng, SeededRng};
use std::collections::BTreeSet;
use std::time::Duration;

macro_rules! kinds {
    ($($kind:ident $name:literal $weight:literal,)*) => {
        /// Kinds of faults. Each can be left out of a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum FaultKind {
            $(#[doc = $name] $kind,)*
        }

        impl FaultKind {
            /// All kinds.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$kind,)*];

            /// The name that `sim --without` takes.
            pub fn name(self) -> &'static str {
                match self { $(FaultKind::$kind => $name,)* }
            }

            /// Relative frequency.
            fn weight(self) -> u64 {
                match self { $(FaultKind::$kind => $weight,)* }
            }
        }
    };
}

kinds! {
    Calm "calm" 6,
    Partition "partitions" 4,
    Bridge "bridges" 1,
    OneWay "one-way-cuts" 2,
    Slow "slow-links" 1,
    Loss "losses" 1,
    Duplication "duplication" 1,
    Reordering "reordering" 1,
    Kill "kills" 1,
    Power "power-cuts" 4,
    Pause "pauses" 2,
    Clock "clock-jumps" 1,
    Fsync "failed-fsyncs" 1,
    SlowDisk "slow-disks" 1,
    FullDisk "full-disks" 1,
    LostDirectory "lost-directories" 1,
    BitFlip "bit-flips" 2,
    LostDisk "lost-disks" 1,
}

impl std::str::FromStr for FaultKind {
    type Err = String;

    fn from_str(name: &str) -> Result<FaultKind, String> {
        let names = || FaultKind::ALL.iter().map(|k| k.name()).collect::<Vec<_>>();
        let found = FaultKind::ALL.iter().find(|k| k.name() == name);
        found
            .copied()
            .ok_or_else(|| format!("unknown fault; known are {}", names().join(", ")))
    }
}

/// One fault, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No frame passes between these nodes and the others.
    Partition(Vec<NodeId>),
    /// No frame passes between these two nodes; the others reach both.
    Bridge(NodeId, NodeId),
    /// No frame passes from the first node to the second.
    OneWay(NodeId, NodeId),
    /// Frames of this link take this much longer.
    Slow(NodeId, NodeId, Duration),
    /// Frames lost per 1000, on all links.
    Loss(u64),
    /// Frames duplicated per 1000.
    Duplication(u64),
    /// Frames overtaken by others per 1000.
    Reordering(u64),
    /// The node ends.
    Stop(NodeId, Stop),
    /// The power fails during the n-th disk operation from now.
    PowerCut(NodeId, u64),
    /// The process stands still for this time.
    Pause(NodeId, Duration),
    /// The wall clock jumps by this number of milliseconds.
    Clock(NodeId, i64),
    /// The n-th fsync from now fails.
    FailedSync(NodeId, u64),
    /// Each write takes this much longer.
    Stall(NodeId, Duration),
    /// The disk has this number of bytes left.
    Full(NodeId, u64),
    /// The data directory no longer answers.
    LostDirectory(NodeId),
    /// The node ends, and meanwhile a bit of its stored data flips.
    BitFlip(NodeId, Stop),
    /// The node ends, and its disk is lost.
    LostDisk(NodeId),
    /// Network and disks recover.
    Calm,
}

/// Frequency of each kind in a run. Every seed has its own frequencies and leaves out some kinds, because one fault may
/// hide the effect of another.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    weights: Vec<(FaultKind, u64)>,
    without: BTreeSet<FaultKind>,
}

impl FaultPlan {
    /// A kind in `without` is drawn as often as otherwise and then skipped, so that the rest of the run changes as
    /// little as possible.
    pub fn new(rng: &mut SeededRng, without: &BTreeSet<FaultKind>) -> FaultPlan {
        let draw_weight = |kind: &FaultKind| match kind {
            FaultKind::Calm => (*kind, kind.weight()),
            _ => (*kind, kind.weight() * rng.below(4)),
        };
        FaultPlan {
            weights: FaultKind::ALL.iter().map(draw_weight).collect(),
            without: without.clone(),
        }
    }

    /// Draws the next fault. `None`: its kind is left out.
    pub fn next(&self, rng: &mut SeededRng, nodes: &[NodeId]) -> Option<Fault> {
        let total = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut position = rng.below(total);
        let drawn = self.weights.iter().find(|(_, weight)| {
            let found = position < *weight;
            position = position.saturating_sub(*weight);
            found
        });
        let kind = drawn.map_or(FaultKind::Calm, |(kind, _)| *kind);
        let fault = Fault::random(kind, rng, nodes);
        (!self.without.contains(&kind)).then_some(fault)
    }
}

impl Fault {
    /// Creates a fault of this kind with random parameters.
    pub fn random(kind: FaultKind, rng: &mut SeededRng, nodes: &[NodeId]) -> Fault {
        let mut nodes_rng = rng.fork();
        let mut node = || {
            let position = nodes_rng.below(nodes.len() as u64) as usize;
            nodes.get(position).copied().unwrap_or_default()
        };
        let (a, b) = (node(), node());
        let stop = match rng.chance(1, 2) {
            true => Stop::Kill,
            false => Stop::Power,
        };
        let mut ms = |from: u64, spread: u64| Duration::from_millis(from + rng.below(spread));
        match kind {
            FaultKind::Calm => Fault::Calm,
            FaultKind::Partition if stop == Stop::Kill => Fault::Partition(vec![a]),
            FaultKind::Partition => {
                let side = nodes.iter().copied().filter(|_| rng.chance(1, 2));
                Fault::Partition(side.collect())
            }
            FaultKind::Bridge => Fault::Bridge(a, b),
            FaultKind::OneWay => Fault::OneWay(a, b),
            FaultKind::Slow => Fault::Slow(a, b, ms(20, 800)),
            FaultKind::Loss => Fault::Loss(10 + rng.below(300)),
            FaultKind::Duplication => Fault::Duplication(10 + rng.below(300)),
            FaultKind::Reordering => Fault::Reordering(10 + rng.below(300)),
            FaultKind::Kill => Fault::Stop(a, Stop::Kill),
            FaultKind::Power if stop == Stop::Power => Fault::Stop(a, Stop::Power),
            FaultKind::Power => Fault::PowerCut(a, 1 + rng.below(25)),
            FaultKind::Pause => Fault::Pause(a, ms(50, 4_000)),
            FaultKind::Clock => Fault::Clock(a, rng.below(7_200_000) as i64 - 3_600_000),
            FaultKind::Fsync => Fault::FailedSync(a, rng.below(6)),
            FaultKind::SlowDisk if stop == Stop::Power => Fault::Stall(a, ms(1_000, 4_000)),
            FaultKind::SlowDisk => Fault::Stall(a, ms(0, 700)),
            FaultKind::FullDisk => Fault::Full(a, rng.below(40 << 10)),
            FaultKind::LostDirectory => Fault::LostDirectory(a),
            FaultKind::BitFlip => Fault::BitFlip(a, stop),
            FaultKind::LostDisk => Fault::LostDisk(a),
        }
    }

    /// Whether a node permanently loses data. Only a minority of the nodes may be affected at a time.
    pub fn loses_data(&self) -> bool {
        matches!(self, Fault::BitFlip(..) | Fault::LostDisk(..))
    }

    /// The machine that may lose unsynced data, and whether its disk stays faulty until [`Fault::Calm`].
    pub fn loses_unsynced(&self) -> Option<(NodeId, bool)> {
        match self {
            Fault::Stop(node, Stop::Power) | Fault::BitFlip(node, _) | Fault::LostDisk(node) => {
                Some((*node, false))
            }
            Fault::PowerCut(node, _)
            | Fault::FailedSync(node, _)
            | Fault::Full(node, _)
            | Fault::LostDirectory(node) => Some((*node, true)),
            _ => None,
        }
    }

    /// Applies the fault. `Err`: a flipped bit would go unnoticed.
    pub fn apply<S: Scenario>(&self, world: &mut World<S>) -> Result<(), String> {
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
            Fault::Bridge(a, b) => {
                world.net.cut((*a, *b));
                world.net.cut((*b, *a));
            }
            Fault::OneWay(from, to) => world.net.cut((*from, *to)),
            Fault::Slow(from, to, by) => world.net.slow_down((*from, *to), *by),
            Fault::Loss(in_1000) => world.net.lose(*in_1000),
            Fault::Duplication(in_1000) => world.net.duplicate(*in_1000),
            Fault::Reordering(in_1000) => world.net.reorder(*in_1000),
            Fault::Stop(node, stop) => world.stop(*node, *stop),
            Fault::Pause(node, time) => world.pause(*node, *time),
            Fault::Clock(node, by) => world.jump_clock(*node, *by),
            Fault::Stall(node, by) => world.stall_disk(*node, *by),
            Fault::BitFlip(node, stop) => {
                world.stop(*node, *stop);
                world.check_newest_log_file_loss_is_detected(*node)?;
                world.flip_bit(*node)?;
            }
            Fault::LostDisk(node) => {
                if let Some(new) = world.replace(*node) {
                    world.start_in(Duration::ZERO, new);
                }
            }
            Fault::PowerCut(..)
            | Fault::FailedSync(..)
            | Fault::Full(..)
            | Fault::LostDirectory(_) => self.apply_to_disk(world),
            Fault::Calm => calm(world),
        }
        Ok(())
    }

    fn apply_to_disk<S: Scenario>(&self, world: &World<S>) {
        let (Fault::PowerCut(node, _)
        | Fault::FailedSync(node, _)
        | Fault::Full(node, _)
        | Fault::LostDirectory(node)) = self
        else {
            return;
        };
        let Some(disk) = world.disk(*node) else {
            return;
        };
        match self {
            Fault::PowerCut(_, n) => disk.cut_power_after(Some(*n)),
            Fault::FailedSync(_, n) => disk.fail_syncs_after(Some(*n)),
            Fault::Full(_, room) => {
                let used: u64 = disk.files().iter().map(|(_, len)| len).sum();
                disk.set_capacity(Some(used + room));
            }
            _ => disk.set_gone(true),
        }
    }
}

/// Removes the faults of network and disks. Stopped nodes stay stopped, and lost or damaged data stays so.
pub fn calm<S: Scenario>(world: &mut World<S>) {
    world.net.heal();
    for node in world.nodes() {
        world.stall_disk(node, Duration::ZERO);
        if let Some(disk) = world.disk(node) {
            disk.fail_syncs_after(None);
            disk.set_capacity(None);
            disk.set_gone(false);
            if !disk.power_is_off() {
                disk.cut_power_after(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

    fn draw(seed: u64, without: &[FaultKind]) -> Vec<Option<Fault>> {
        let mut rng = SeededRng::new(seed);
        let plan = FaultPlan::new(&mut rng, &without.iter().copied().collect());
        (0..200).map(|_| plan.next(&mut rng, &NODES)).collect()
    }

    #[test]
    fn leaving_out_a_kind_keeps_the_other_faults() {
        for seed in 0..20 {
            let all = draw(seed, &[]);
            let fewer = draw(seed, &[FaultKind::Partition]);
            for (one, other) in all.iter().zip(&fewer) {
                match one {
                    Some(Fault::Partition(_)) => assert_eq!(*other, None),
                    _ => assert_eq!(one, other),
                }
            }
        }
    }

    #[test]
    fn each_kind_occurs_in_some_runs_and_not_in_others() {
        for kind in FaultKind::ALL {
            assert_eq!(kind.name().parse(), Ok(*kind));
            let with = (0..40).filter(|seed| draw(*seed, &[*kind]).contains(&None));
            let with = with.count();
            assert!(with >= 15, "{}: {with}", kind.name());
            assert!(
                with <= 38 || *kind == FaultKind::Calm,
                "{}: {with}",
                kind.name()
            );
        }
        assert!("nothing".parse::<FaultKind>().is_err());
    }
}
