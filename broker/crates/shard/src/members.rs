//! Changes of group members in progress: observed state, outstanding requests, pending steps.

mod departures;
pub(crate) mod frame;
mod leaders;
pub(crate) mod majority;
mod operations;
pub(crate) mod rebalance;
mod reconcile;
mod releases;
mod replacements;
mod replicas;
mod resize;

pub(crate) use operations::Plan;
pub(crate) use reconcile::STEP as REVIEWS_PER_TURN;

use departures::Departures;
use leaders::KnownLeaders;
use majority::MajorityRecoveries;
use operations::PendingMemberChanges;
use reconcile::MembershipReview;
use releases::NodeReleases;
use replacements::NodeReplacements;
use replicas::ReplicaQueries;

/// A shard's part in it.
#[derive(Default)]
pub(crate) struct Members {
    pub review: MembershipReview,
    pub leaders: KnownLeaders,
    pub departures: Departures,
    pub changes: PendingMemberChanges,
    pub questions: ReplicaQueries,
    pub releases: NodeReleases,
    pub replacements: NodeReplacements,
    pub recoveries: MajorityRecoveries,
}
