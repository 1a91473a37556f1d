//! Changes of group members in progress: observed state, outstanding requests, pending steps.

mod departures;
pub mod frame;
mod leaders;
mod operations;
mod rebalance;
mod reconcile;
mod releases;
mod replacements;
mod replicas;
mod resize;

pub use operations::Plan;

use crate::core::Core;
use crate::placement::Candidate;
use departures::Departures;
use leaders::KnownLeaders;
use operations::PendingMemberChanges;
use reconcile::MembershipReview;
use releases::NodeReleases;
use replacements::NodeReplacements;
use replicas::ReplicaQueries;

/// A shard's part in it.
#[derive(Default)]
pub struct Members {
    pub review: MembershipReview,
    pub leaders: KnownLeaders,
    pub departures: Departures,
    pub changes: PendingMemberChanges,
    pub questions: ReplicaQueries,
    pub releases: NodeReleases,
    pub replacements: NodeReplacements,
}

impl Core {
    /// The cluster's nodes as placement sees them. Costs the same however many queues there are: each declaration asks. A queue's
    /// leader is known where this shard has a replica; of others it is taken to be the one that was to lead first.
    pub fn candidates(&self) -> Vec<Candidate<'_>> {
        let leaders = &self.members.leaders;
        let each = self.tree.nodes().map(|n| Candidate {
            node: n.id,
            zone: self.tree.zone(n.id),
            available: self.is_up(n.id) && !n.maintenance,
            replicas: self.tree.member_count(n.id),
            leaders: leaders.count(&self.tree, n.id),
        });
        each.collect()
    }

    /// In builds with debug assertions, now and then: the counts that [`Core::candidates`] uses are those of a recount.
    pub fn check_counts(&self) {
        #[cfg(debug_assertions)]
        {
            assert!(self.tree.member_counts_are_right());
            let recount = self.members.leaders.recount(&self.tree);
            for node in self.tree.nodes() {
                let counted = self.members.leaders.count(&self.tree, node.id);
                assert_eq!(recount.get(&node.id).copied().unwrap_or_default(), counted);
            }
        }
    }
}
