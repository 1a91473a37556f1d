//! Nodes of two versions in one cluster: the older ones lack feature flags, nodes change their version when they restart, and an
//! administrator enables flags meanwhile.

use super::node::{Identities, Identity, Node};
use super::operator::{is_ready, newest_tree};
use crate::world::{Scenario, World};
use env::{NodeId, Rng, SeededRng, Time};
use metadata::Name;
use metadata::features::{Feature, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a program says that ends because of a flag.
pub const MISFIT: &str = "does not know the feature flag";
/// As long as a node may take another one for who it was before: a machine that ends is noticed after one second.
const UNNOTICED: Duration = Duration::from_secs(3);

/// A feature flag of no effect: the mechanism is what these runs test.
const fn flag(name: &'static str) -> Feature {
    Feature {
        name,
        description: "of no effect",
    }
}

/// So many that runs meet a node which does not know an enabled flag; with three of them hardly any did.
const FLAGS: [Feature; 8] = [
    flag("first"),
    flag("second"),
    flag("third"),
    flag("fourth"),
    flag("fifth"),
    flag("sixth"),
    flag("seventh"),
    flag("eighth"),
];

/// The newest version. It knows every flag.
pub const NEWEST: Version = Version {
    version: "9.3.0",
    features: &FLAGS,
};

/// Older versions, which lack five, seven and eight of the newest version's flags.
const OLDER: [Version; 3] = [
    older("9.2.0", &[FLAGS[0], FLAGS[1], FLAGS[2]]),
    older("9.1.0", &[FLAGS[0]]),
    older("9.0.0", &[]),
];

const fn older(version: &'static str, features: &'static [Feature]) -> Version {
    Version { version, features }
}

/// Which program runs where, and which flags were asked for.
pub struct Versions {
    /// None: every node runs the newest program all the time, and the cluster began with all of its flags.
    older: Option<Version>,
    /// Only the cluster is of an older program, the nodes are not: where nothing is to go wrong.
    upgraded: bool,
    /// When each machine's program began.
    began: BTreeMap<NodeId, Time>,
    /// When a flag was first asked for while every member's program knew it, and who they were.
    asked: BTreeMap<Name, (Time, BTreeSet<NodeId>)>,
    /// Nodes that ended because of a flag.
    misfits: u64,
}

impl Versions {
    pub fn new(rng: &mut SeededRng, upgraded: bool) -> Versions {
        let which = rng.below(3 * OLDER.len() as u64) as usize;
        Versions {
            older: OLDER.get(which).copied(),
            upgraded,
            began: BTreeMap::new(),
            asked: BTreeMap::new(),
            misfits: 0,
        }
    }

    /// That the cluster begins with.
    pub fn founders(&self) -> Version {
        self.older.unwrap_or(NEWEST)
    }

    /// That a machine starts with, which had this one before.
    pub fn next(&self, before: Version, quiet: bool, rng: &mut SeededRng) -> Version {
        let Some(older) = self.older.filter(|_| !self.upgraded) else {
            return NEWEST;
        };
        let old = match before == older {
            true => rng.chance(1, 2),
            // Somebody goes back a version now and then, also when that is too late.
            false => rng.chance(1, 8),
        };
        match old && !quiet {
            true => older,
            false => NEWEST,
        }
    }

    pub fn started(&mut self, now: Time, machine: NodeId) {
        self.began.insert(machine, now);
    }

    /// A flag that is off on the node that has applied most, and may be asked for: one of them. Nobody asks a machine that stands
    /// still, as it knows nothing newer when it goes on.
    pub fn wanted<S: Scenario<Process = Node>>(
        &mut self,
        world: &World<S>,
        identities: &Identities,
        rng: &mut SeededRng,
    ) -> Option<Name> {
        self.older?;
        let nodes = world.nodes();
        if nodes.iter().any(|n| world.is_paused(*n)) {
            return None;
        }
        let tree = newest_tree(world)?;
        let off = |f: &&Feature| !tree.feature_enabled(f.name);
        let off: Vec<&Feature> = NEWEST.features.iter().filter(off).collect();
        let name = off.get(rng.below(off.len().max(1) as u64) as usize)?.name;
        let members: BTreeSet<NodeId> = tree.nodes().map(|n| n.id).collect();
        let identities = identities.borrow();
        let knowing = identities.values().filter(|i| i.program.knows(name));
        let knowing: BTreeSet<NodeId> = knowing.map(|i| i.node).collect();
        let up = nodes.iter().all(|n| world.process(*n).is_some());
        let name = Name::from(name);
        if up && !members.is_empty() && members.is_subset(&knowing) {
            let first = (world.now(), members);
            self.asked.entry(name.clone()).or_insert(first);
        }
        Some(name)
    }

    /// A node has ended because of a flag that it does not know. False: it was a member and had run all the while, so that the
    /// flag must not have been turned on.
    pub fn may_be_misfit(&mut self, machine: NodeId, identity: Identity) -> bool {
        self.misfits += 1;
        let began = self.began.get(&machine).copied().unwrap_or(Time::ZERO);
        let mut unknown = (self.asked.iter()).filter(|(f, _)| !identity.program.knows(f));
        unknown.any(|(_, (asked, members))| {
            began + UNNOTICED >= *asked || !members.contains(&identity.node)
        })
    }

    /// Flags that were off and are on, and nodes that ended because of one.
    pub fn told(&self) -> (u64, u64) {
        (self.asked.len() as u64, self.misfits)
    }

    /// No program goes on in a cluster whose flags it does not know.
    pub fn all_fit<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(), String> {
        for node in nodes {
            let program = node.program();
            for shard in node.shards() {
                let enabled = shard.core().tree.enabled_features();
                if let Some(why) = program.misfit(enabled.map(|f| &**f)) {
                    return Err(format!("node {} goes on: {why}", node.id().0));
                }
            }
        }
        Ok(())
    }

    /// A machine that is to get the newest program: the first one that runs an older one, when all are there.
    pub fn behind<S: Scenario<Process = Node>>(&self, world: &World<S>) -> Option<NodeId> {
        let nodes = world.nodes();
        if !nodes.iter().all(|n| is_ready(world, *n)) {
            return None;
        }
        let newest = NEWEST;
        let old = |n: &NodeId| world.process(*n).is_some_and(|p| p.program() != newest);
        nodes.into_iter().find(old)
    }

    /// Every node runs the newest program, and all of its flags are on.
    pub fn all_are_newest<'a>(mut nodes: impl Iterator<Item = &'a Node>) -> bool {
        let newest = NEWEST;
        nodes.all(|node| {
            let on = |f: &Feature| {
                let mut shards = node.shards();
                shards.all(|s| s.core().tree.feature_enabled(f.name))
            };
            node.program() == newest && newest.features.iter().all(on)
        })
    }
}
