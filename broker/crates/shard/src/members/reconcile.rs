//! Which groups that are led here are compared with the tree, and the members that they should have.
//!
//! A group is reviewed when something about it is new: 10,000 groups without news cost nothing.

use crate::cluster::Topology;
use crate::placement;
use env::{NodeId, Time};
use metadata::{QueueId, QueueRecord};
use std::collections::BTreeSet;
use std::time::Duration;

/// All groups are looked at this often, whatever is known to be new.
const ALL_EVERY: Duration = Duration::from_secs(30);
/// Groups that one turn looks at: clients wait for no more than that.
pub(crate) const STEP: usize = 256;

/// Queues whose members are to be looked at.
#[derive(Debug, Default)]
pub(crate) struct MembershipReview {
    all: bool,
    queues: BTreeSet<QueueId>,
    all_at: Time,
    /// Those of this second whose turn is still to come.
    due: BTreeSet<QueueId>,
    /// How many were looked at since the shard began.
    looked_at: u64,
    /// A change of their members is on its way through the metadata log.
    asked: BTreeSet<QueueId>,
}

impl MembershipReview {
    /// Nodes, zones or links are others: every group may be concerned.
    pub(crate) fn all(&mut self) {
        self.all = true;
    }

    pub(crate) fn queue(&mut self, queue: QueueId) {
        self.queues.insert(queue);
    }

    /// What was asked for it was decided.
    pub(crate) fn answered(&mut self, queue: QueueId) {
        self.asked.remove(&queue);
        self.queues.insert(queue);
    }

    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.asked.remove(&queue);
        self.queues.remove(&queue);
        self.due.remove(&queue);
    }

    /// Groups that were looked at since the shard began, each time anew.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Plans the reviews of the turns that follow. `led`: all groups that are led here. Returns true if all are reviewed.
    pub(crate) fn plan(&mut self, now: Time, led: impl FnOnce() -> BTreeSet<QueueId>) -> bool {
        let queues = std::mem::take(&mut self.queues);
        self.due.extend(queues);
        let is_everything = std::mem::take(&mut self.all) || now >= self.all_at;
        if is_everything {
            self.all_at = now + ALL_EVERY;
            self.due.extend(led());
        }
        is_everything
    }

    /// The next group to be reviewed.
    pub(crate) fn next(&mut self) -> Option<QueueId> {
        let queue = self.due.pop_first()?;
        self.looked_at += 1;
        Some(queue)
    }

    /// Notes that a change of the queue's members is requested. Returns false if one is on its way already.
    pub(crate) fn begin_change(&mut self, queue: QueueId) -> bool {
        self.asked.insert(queue)
    }

    /// Groups are to be looked at in the next turn.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}

impl Topology<'_> {
    /// Members that the cluster has forgotten are replaced, and a queue that is to have more of them grows.
    pub fn other_members(&self, record: &QueueRecord) -> Option<Vec<NodeId>> {
        let gone = |n: NodeId| self.tree().node(n).is_none();
        let lost = record.members.iter().any(|m| gone(*m));
        let placement_request = self.tree().placement_request(record).target;
        let target = placement_request.max(self.ctx().config().placement.target_group_size);
        if !lost && record.members.len() >= target as usize {
            return None;
        }
        let candidates = self.candidates();
        match lost {
            true => Some(placement::replaced(
                &record.members,
                gone,
                &candidates,
                true,
            )),
            false => placement::grown(&record.members, target, &candidates, |n| self.is_up(n)),
        }
    }
}
