//! Members of groups as a running thing: what is looked at, what is asked, what is on its way (Q16, C1, O8).

mod departures;
pub mod frame;
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
use metadata::QueueKind;
use operations::Changes;
use reconcile::Review;
use releases::Releases;
use replacements::Replacements;
use replicas::Questions;
use std::collections::BTreeMap;

/// A shard's part in it.
#[derive(Default)]
pub struct Members {
    pub review: Review,
    pub departures: Departures,
    pub changes: Changes,
    pub questions: Questions,
    pub releases: Releases,
    pub replacements: Replacements,
}

impl Core {
    /// The cluster's nodes as placement sees them. Counted each time: declarations and changes of members are rare, and a
    /// count kept beside the tree would be state that can drift from it. A queue's leader is known where this shard has
    /// a replica; of others it is taken to be the one that was to lead first.
    pub fn candidates(&self) -> Vec<Candidate<'_>> {
        let mut counts = BTreeMap::<_, (usize, usize)>::new();
        let quorum = self.tree.all_queues();
        for record in quorum.filter(|q| q.kind == QueueKind::Quorum) {
            for member in &record.members {
                counts.entry(*member).or_default().0 += 1;
            }
            let known = self.owners.leader_of(record.id);
            if let Some(leader) = known.or(record.members.first().copied()) {
                counts.entry(leader).or_default().1 += 1;
            }
        }
        let each = self.tree.nodes().map(|n| {
            let (replicas, leaders) = counts.get(&n.id).copied().unwrap_or_default();
            Candidate {
                node: n.id,
                zone: self.tree.zone(n.id),
                available: self.is_up(n.id) && !n.maintenance,
                replicas,
                leaders,
            }
        });
        each.collect()
    }
}
