//! Clusters of two versions: older nodes lack feature flags, nodes change their version when they restart, and an
//! administrator enables flags meanwhile.

use super::node::{Identities, Identity, Node};
use super::operator::{is_ready, newest_tree};
use crate::world::{Scenario, World};
use env::{NodeId, Rng, SeededRng, Time};
use metadata::Name;
use metadata::features::{
    CONSUMER_FILTERS, EXACT_EXPIRY, Feature, MESSAGE_GROUPS, PUBLISHER_DEDUPLICATION,
    QUORUM_CONSUMER_TIMEOUTS, QUORUM_DELAYED_RETRY, QUORUM_DELIVERY_COUNTS,
    QUORUM_STRICT_PRIORITIES, QUOTAS, SCHEDULED_DELIVERY, STREAM_QUEUES, Version,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Part of the error with which a node ends because of an unknown flag.
pub(super) const MISFIT: &str = "does not know the feature flag";
/// Maximum time in which a node may take another one for its earlier incarnation: the end of a machine is noticed after
/// one second.
const DETECTION_TIME: Duration = Duration::from_secs(3);

/// A feature flag without effect. Most are, because these runs test the mechanism.
const fn flag(name: &'static str) -> Feature {
    Feature {
        name,
        description: "of no effect",
    }
}

/// Enough flags that runs meet a node which does not know an enabled flag. With three flags hardly any run did.
const FLAGS: [Feature; 12] = [
    // Every version knows this one.
    STREAM_QUEUES,
    flag("first"),
    // Quorum queues change their service order when it is enabled.
    QUORUM_STRICT_PRIORITIES,
    // They count failed deliveries apart from returns, and delay returned messages.
    QUORUM_DELIVERY_COUNTS,
    QUORUM_DELAYED_RETRY,
    // They end consumers that do not acknowledge in time.
    QUORUM_CONSUMER_TIMEOUTS,
    // They deliver messages at the time that the publisher set.
    SCHEDULED_DELIVERY,
    // They store a message once that is published again.
    PUBLISHER_DEDUPLICATION,
    // They limit the rates of publishers.
    QUOTAS,
    // They deliver the messages of each group in order.
    MESSAGE_GROUPS,
    // They search messages for consumers with filters.
    CONSUMER_FILTERS,
    // Their messages expire on time behind others.
    EXACT_EXPIRY,
];

/// The newest version. It knows every flag.
pub(super) const NEWEST: Version = Version {
    version: "9.3.0",
    features: &FLAGS,
};

/// Older versions, which lack eight, ten and eleven of the newest version's flags.
const OLDER: [Version; 3] = [
    older("9.2.0", &[FLAGS[0], FLAGS[1], FLAGS[2], FLAGS[3]]),
    older("9.1.0", &[FLAGS[0], FLAGS[1]]),
    older("9.0.0", &[FLAGS[0]]),
];

const fn older(version: &'static str, features: &'static [Feature]) -> Version {
    Version { version, features }
}

/// Versions of the machines, and the requested flags.
pub(super) struct Versions {
    /// `None`: every node always runs the newest version, and the cluster started with all of its flags.
    older: Option<Version>,
    /// Only the cluster was founded by an older version; all nodes run the newest. For runs without faults.
    is_upgraded: bool,
    /// When the software of each machine started.
    started_at: BTreeMap<NodeId, Time>,
    /// When a flag was first requested while the versions of all members knew it, and these members.
    requested: BTreeMap<Name, (Time, BTreeSet<NodeId>)>,
    /// Number of nodes that ended because of a flag.
    misfits: u64,
}

impl Versions {
    pub(super) fn new(rng: &mut SeededRng, is_upgraded: bool) -> Versions {
        let index = rng.below(3 * OLDER.len() as u64) as usize;
        Versions {
            older: OLDER.get(index).copied(),
            is_upgraded,
            started_at: BTreeMap::new(),
            requested: BTreeMap::new(),
            misfits: 0,
        }
    }

    /// The version that founds the cluster.
    pub(super) fn founders(&self) -> Version {
        self.older.unwrap_or(NEWEST)
    }

    /// Returns true if the cluster was founded with all flags.
    pub(super) fn all_are_enabled(&self) -> bool {
        self.older.is_none()
    }

    /// The version that a machine starts with, after this one.
    pub(super) fn next(&self, before: Version, faults_ended: bool, rng: &mut SeededRng) -> Version {
        let Some(older) = self.older.filter(|_| !self.is_upgraded) else {
            return NEWEST;
        };
        let is_old = match before == older {
            true => rng.chance(1, 2),
            // Downgrades happen at times, also when it is too late for one.
            false => rng.chance(1, 8),
        };
        match is_old && !faults_ended {
            true => older,
            false => NEWEST,
        }
    }

    pub(super) fn node_started(&mut self, now: Time, machine: NodeId) {
        self.started_at.insert(machine, now);
    }

    /// A flag to request: one that is disabled on the node that has applied most. `None` while a machine is paused,
    /// because such a node knows nothing newer when it continues.
    pub(super) fn pick_flag<S: Scenario<Process = Node>>(
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
        let is_disabled = |f: &&Feature| !tree.feature_enabled(f.name);
        let disabled: Vec<&Feature> = NEWEST.features.iter().filter(is_disabled).collect();
        let name = disabled
            .get(rng.below(disabled.len().max(1) as u64) as usize)?
            .name;
        let members: BTreeSet<NodeId> = tree.nodes().map(|n| n.id).collect();
        let identities = identities.borrow();
        let knowing_nodes = identities.values().filter(|i| i.version.knows(name));
        let knowing_nodes: BTreeSet<NodeId> = knowing_nodes.map(|i| i.node).collect();
        let all_are_up = nodes.iter().all(|n| world.process(*n).is_some());
        let name = Name::from(name);
        if all_are_up && !members.is_empty() && members.is_subset(&knowing_nodes) {
            let request = (world.now(), members);
            self.requested.entry(name.clone()).or_insert(request);
        }
        Some(name)
    }

    /// Records that a node ended because it does not know a flag. Returns false if it was a member and had run all the
    /// time, because the flag must not have been enabled then.
    pub(super) fn may_be_misfit(&mut self, machine: NodeId, identity: Identity) -> bool {
        self.misfits += 1;
        let started_at = self.started_at.get(&machine).copied().unwrap_or(Time::ZERO);
        let mut unknown = (self.requested.iter()).filter(|(f, _)| !identity.version.knows(f));
        unknown.any(|(_, (requested, members))| {
            started_at + DETECTION_TIME >= *requested || !members.contains(&identity.node)
        })
    }

    /// Number of flags that were enabled, and of nodes that ended because of one.
    pub(super) fn flag_counts(&self) -> (u64, u64) {
        (self.requested.len() as u64, self.misfits)
    }

    /// Checks that no node runs in a cluster with enabled flags that it does not know.
    pub(super) fn check_compatibility<'a>(
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Result<(), String> {
        for node in nodes {
            let version = node.version();
            for shard in node.shards() {
                let enabled = shard.state().tree().enabled_features();
                if let Some(error) = version.explain_incompatibility(enabled.map(|f| &**f)) {
                    return Err(format!("node {} goes on: {error}", node.id().0));
                }
            }
        }
        Ok(())
    }

    /// The first node with an older version, when all nodes are ready. It must be upgraded.
    pub(super) fn find_outdated_node<S: Scenario<Process = Node>>(
        &self,
        world: &World<S>,
    ) -> Option<NodeId> {
        let nodes = world.nodes();
        if !nodes.iter().all(|n| is_ready(world, *n)) {
            return None;
        }
        let newest = NEWEST;
        let is_old = |n: &NodeId| world.process(*n).is_some_and(|p| p.version() != newest);
        nodes.into_iter().find(is_old)
    }

    /// Whether every node runs the newest version with all of its flags enabled.
    pub(super) fn all_are_newest<'a>(mut nodes: impl Iterator<Item = &'a Node>) -> bool {
        let newest = NEWEST;
        nodes.all(|node| {
            let is_enabled = |f: &Feature| {
                let mut shards = node.shards();
                shards.all(|s| s.state().tree().feature_enabled(f.name))
            };
            node.version() == newest && newest.features.iter().all(is_enabled)
        })
    }
}
