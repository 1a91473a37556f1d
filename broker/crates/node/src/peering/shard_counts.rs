//! Numbers of shards: which nodes may have another number than this one.

use super::{Peering, PeeringAction};
use crate::wire::Hello;
use metadata::features::SHARDS_PER_NODE;

impl Peering {
    /// The reason why a peer with this HELLO must not be linked because of its number of shards.
    ///
    /// Versions that do not know the feature flag refuse nodes with another number than their own.
    /// The flag keeps such versions out of the cluster, so only a cluster that has enabled it may
    /// mix numbers. Two nodes that do not know yet whether it is enabled, as after a restart of all
    /// nodes, are linked until one of them learns that it is not.
    pub(super) fn shard_count_conflict(&self, hello: &Hello) -> Option<String> {
        if hello.shards == 0 || hello.shards > shard::MAX_SHARDS {
            return Some(format!(
                "{} announces {} shards: a node has 1 to {}",
                hello.name,
                hello.shards,
                shard::MAX_SHARDS
            ));
        }
        if hello.shards == self.config.shards {
            return None;
        }
        let flag = SHARDS_PER_NODE.name;
        let both = format!(
            "{} runs {} shards and {} runs {}",
            self.config.name, self.config.shards, hello.name, hello.shards
        );
        let theirs = hello.version.as_ref();
        if !self.config.version.knows(flag) {
            return Some(format!(
                "{both}: the version of {} needs the same `shards` on all nodes",
                self.config.name
            ));
        }
        if !theirs.is_some_and(|version| version.facts.knows(flag)) {
            return Some(format!(
                "{both}: the version of {} needs the same `shards` on all nodes",
                hello.name
            ));
        }
        // A cluster has at least one flag, so an empty list means that the peer does not know yet.
        let known = [
            self.enabled.as_deref(),
            theirs.map(|version| &*version.enabled),
        ];
        let mut known = known.into_iter().flatten().filter(|e| !e.is_empty());
        let is_known = known.clone().next().is_some();
        if !is_known || known.any(|enabled| enabled.iter().any(|name| &**name == flag)) {
            return None;
        }
        Some(format!(
            "{both}: enable the feature flag '{flag}' once every node runs a version that knows it; until \
             then set the same `shards` on all nodes"
        ))
    }

    /// Records durably that the cluster has enabled different numbers of shards: the next start may
    /// choose one before it has read the metadata.
    pub(super) fn record_shards_per_node(&mut self) {
        let flag = SHARDS_PER_NODE.name;
        let enabled = self.enabled.iter().flatten();
        let Some(cluster) = &mut self.config.cluster else {
            return;
        };
        if enabled.into_iter().any(|name| &**name == flag)
            && cluster.features.iter().all(|name| &**name != flag)
        {
            cluster.features.push(flag.into());
            let record = cluster.clone();
            self.actions.push_back(PeeringAction::Store(record));
        }
    }
}
