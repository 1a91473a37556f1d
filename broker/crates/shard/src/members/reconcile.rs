//! Once a second: groups that are led here get the members they should have, a step at a time (Q16, C1).
//!
//! Only groups about which something is new are looked at: 10,000 settled ones cost nothing.

use crate::core::Core;
use crate::membership::{MembershipStep, WantedMembers, next_step};
use crate::metadata_client::ChangeRequester;
use crate::placement;
use consensus::{GroupId, GroupStatus};
use env::{NodeId, Time};
use metadata::{Change, NodeRecord, QueueId, QueueRecord};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// All groups are looked at this often, whatever is known to be new.
const ALL_EVERY: Duration = Duration::from_secs(30);
/// Groups that one turn looks at: clients wait for no more than that.
const STEP: usize = 256;

/// Queues whose members are to be looked at.
#[derive(Debug, Default)]
pub struct MembershipReview {
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
    pub fn all(&mut self) {
        self.all = true;
    }

    pub fn queue(&mut self, queue: QueueId) {
        self.queues.insert(queue);
    }

    /// What was asked for it was decided.
    pub fn answered(&mut self, queue: QueueId) {
        self.asked.remove(&queue);
        self.queues.insert(queue);
    }

    pub fn forget(&mut self, queue: QueueId) {
        self.asked.remove(&queue);
        self.queues.remove(&queue);
        self.due.remove(&queue);
    }

    /// Groups that were looked at since the shard began, each time anew.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Groups are to be looked at in the next turn.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}

impl Core {
    pub fn is_up(&self, node: NodeId) -> bool {
        node == self.ctx.node() || self.peers.is_up(node)
    }

    /// Leader of the metadata group: brings its members and the tree's node records together.
    pub fn reconcile_metadata_members(&mut self) {
        let me = self.ctx.node();
        let Some(status) = self
            .queues
            .local()
            .metadata_status()
            .filter(|s| s.is_leader)
        else {
            self.joining.clear();
            return;
        };
        let nodes: Vec<NodeRecord> = self.tree.nodes().map(|n| (**n).clone()).collect();
        self.joining.retain(|id| !nodes.iter().any(|n| n.id == *id));
        let out = self.members.releases.held(self.ctx.now());
        let mut candidates = self.candidates();
        candidates.retain(|c| !out.contains(&c.node));
        let voters = placement::metadata_voters(&status.membership.voters, &candidates);
        let ids = candidates.iter().map(|c| c.node);
        let learners: Vec<NodeId> = ids.filter(|n| !voters.contains(n)).collect();
        let wanted = WantedMembers {
            voters: &voters,
            learners: &learners,
            drained: &self.drained(),
        };
        self.queues
            .local_mut()
            .membership_step(GroupId(0), next_step(me, wanted, &status));
        self.replace_old_selves(&nodes);
        self.end_lost_sessions();
        for node in nodes {
            let voter = status.membership.voters.contains(&node.id);
            if node.voter != voter {
                self.ask(
                    Change::PutNode(NodeRecord { voter, ..node }),
                    ChangeRequester::Nobody,
                );
            }
        }
    }

    /// Finds the groups that are to be looked at in the turns that follow.
    pub fn reconcile_queue_members(&mut self) {
        let review = &mut self.members.review;
        let queues = std::mem::take(&mut review.queues);
        review.due.extend(queues);
        if std::mem::take(&mut review.all) || self.ctx.now() >= review.all_at {
            review.all_at = self.ctx.now() + ALL_EVERY;
            review.due.extend(self.queues.local().led_queues());
            self.check_counts();
        }
    }

    /// Looks at as many of them as one turn may.
    pub fn reconcile_due_queues(&mut self) {
        for _ in 0..STEP {
            let Some(id) = self.members.review.due.pop_first() else {
                return;
            };
            self.members.review.looked_at += 1;
            let status = self.queues.local().led_status(id);
            let record = self.tree.queue_by_id(id).cloned();
            if let (Some(status), Some(record)) = (status, record)
                && !self.reconcile_queue(&record, &status)
            {
                self.members.review.queue(id);
            }
        }
    }

    /// True when nothing is to be done any more.
    fn reconcile_queue(&mut self, record: &Arc<QueueRecord>, status: &GroupStatus) -> bool {
        let tree = &self.tree;
        let ended = self
            .queues
            .local_mut()
            .end_removed(record.id, |node| tree.is_forgotten(node));
        // There may be more sessions in what is yet to be applied.
        let all_known = status.applied == status.last_index;
        self.members_are_right(record, status) && ended && all_known
    }

    /// As [`Core::reconcile_queue`], of who is in the group.
    fn members_are_right(&mut self, record: &Arc<QueueRecord>, status: &GroupStatus) -> bool {
        if let Some(members) = self.other_members(record) {
            self.ask_for_members(record, members);
            return false;
        }
        let wanted = WantedMembers {
            voters: &record.members,
            learners: &[],
            drained: &self.drained(),
        };
        match next_step(self.ctx.node(), wanted, status) {
            MembershipStep::Done => true,
            step => {
                self.queues
                    .local_mut()
                    .membership_step(GroupId(record.id.0), step);
                false
            }
        }
    }

    /// Members that the cluster has forgotten are replaced, and a queue that is to have more of them grows.
    fn other_members(&self, record: &QueueRecord) -> Option<Vec<NodeId>> {
        let gone = |n: NodeId| self.tree.node(n).is_none();
        let lost = record.members.iter().any(|m| gone(*m));
        let placement_request = self.tree.placement_request(record).target;
        let target = placement_request.max(self.ctx.config().placement.target_group_size);
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

    fn ask_for_members(&mut self, record: &QueueRecord, to: Vec<NodeId>) {
        let id = record.id;
        if to.is_empty() || !self.members.review.asked.insert(id) {
            return;
        }
        tracing::info!(event = "queue_members_change", queue = %record.name, vhost = %record.vhost, ?to);
        let from = record.members.clone();
        self.ask(
            Change::ReplaceQueueMembers { id, from, to },
            ChangeRequester::Review(id),
        );
    }

    /// Tells the cluster where this node is.
    pub fn tell_zone(&mut self) {
        let id = self.ctx.node();
        let zone = self.ctx.config().placement.zone.clone();
        if self.tree.node(id).is_some() && self.tree.zone(id) != &*zone {
            self.ask(Change::SetZone { id, zone }, ChangeRequester::Nobody);
        }
    }
}
