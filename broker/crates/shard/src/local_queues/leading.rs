//! Who leads and belongs to the groups of this node: what is known of it, and steps to change it.

use super::transfer_targets::TransferTargets;
use super::{LocalQueues, METADATA, QueueReplica};
use crate::members::frame::ReplicaReport;
use crate::membership::MembershipStep;
use consensus::{Departure, GroupId, GroupStatus, RaftHost, RecoverMajorityError};
use control::ReplicaStatus;
use env::NodeId;
use metadata::QueueId;
use std::collections::BTreeSet;

impl LocalQueues {
    pub fn metadata_status(&self) -> Option<GroupStatus> {
        self.host.status(METADATA)
    }

    /// The leader of a queue as this node's replica knows it.
    pub fn leader_of(&self, queue: QueueId) -> Option<NodeId> {
        let replica = self.queues.get(&queue)?;
        match replica.has_group() {
            true => self.host.status(GroupId(queue.0))?.leader,
            false => None,
        }
    }

    pub fn led_groups(&self) -> Vec<(QueueId, GroupStatus)> {
        let mut led: Vec<_> = self
            .queues
            .iter()
            .filter(|(_, replica)| replica.leads_group())
            .filter_map(|(id, _)| Some((*id, self.host.status(GroupId(id.0))?)))
            .filter(|(_, status)| status.is_leader)
            .collect();
        led.sort_by_key(|(id, _)| *id);
        led
    }

    /// Queues that are led here.
    pub fn led_queues(&self) -> BTreeSet<QueueId> {
        let led = self.queues.iter();
        led.filter(|(_, replica)| replica.leads_group())
            .map(|(id, _)| *id)
            .collect()
    }

    /// Of a group that is led here.
    pub fn led_status(&self, queue: QueueId) -> Option<GroupStatus> {
        if !self.queues.get(&queue)?.leads_group() {
            return None;
        }
        let status = self.host.status(GroupId(queue.0))?;
        status.is_leader.then_some(status)
    }

    pub fn has_replica(&self, queue: QueueId) -> bool {
        self.host.has_group(GroupId(queue.0))
    }

    /// Hands a queue that is led here to another member that is up.
    pub fn hand_over(&mut self, queue: QueueId, to: NodeId) {
        let able = |s: &GroupStatus| s.membership.voters.contains(&to) && s.active.contains(&to);
        if to != self.me && self.led_status(queue).as_ref().is_some_and(able) {
            self.membership_step(GroupId(queue.0), MembershipStep::TransferTo(to));
        }
    }

    /// Of a queue that is led here: whether `node` is out of it for good.
    pub fn departure(&self, queue: QueueId, node: NodeId) -> Option<Departure> {
        self.host.departure(GroupId(queue.0), node)
    }

    /// State of this node's replica of a group.
    pub fn group_status(&self, group: GroupId) -> Option<GroupStatus> {
        self.host.status(group)
    }

    /// See [`RaftHost::recover_majority`].
    pub fn recover_majority(
        &mut self,
        group: GroupId,
        lost: &[NodeId],
    ) -> Result<(), RecoverMajorityError> {
        self.host.recover_majority(group, lost)
    }

    /// The leader says that this node's replica is not needed. False when it has to stay for now; otherwise it goes soon,
    /// see [`LocalQueues::has_replica`] and [`LocalQueues::departed`].
    pub fn depart(&mut self, queue: QueueId, told: Departure) -> bool {
        self.host.depart(GroupId(queue.0), told)
    }

    /// The replica has gone, and what was made of it goes too.
    pub fn departed(&mut self, queue: QueueId) {
        if let Some(QueueReplica::Stream(_)) = self.queues.remove(&queue) {
            self.delete_stream_files(queue);
        }
        self.ids.remove(&queue);
        self.forget_traces(queue);
    }

    /// What this node's replica tells of itself.
    pub fn tell_replica(&self, queue: QueueId) -> ReplicaReport {
        let mut told = ReplicaReport::default();
        let Some(status) = self.host.status(GroupId(queue.0)) else {
            return told;
        };
        if status.is_leader {
            let members = &status.membership;
            members.voters.iter().for_each(|n| told.votes.add(*n, true));
            let learners = members.learners.iter();
            learners.for_each(|n| told.votes.add(*n, false));
        }
        told.replica = Some(ReplicaStatus {
            is_leader: status.is_leader,
            is_candidate: status.is_candidate,
            term: status.term,
            last_index: status.last_index,
            written: status.persisted,
            applied: status.applied,
            commit: status.commit,
            checkpoint: status.checkpoint,
        });
        told
    }

    /// Whether the metadata group is led here and could be elsewhere.
    pub fn metadata_is_movable(&self, transfer_targets: &TransferTargets<'_>) -> bool {
        let led = self.metadata_status().filter(|s| s.is_leader);
        led.is_some_and(|s| transfer_targets.of(METADATA, &s).is_some())
    }

    pub fn membership_step(&mut self, group: GroupId, step: MembershipStep) {
        let done = match step {
            MembershipStep::Change(change) => self.host.change_membership(group, change),
            MembershipStep::TransferTo(node) => self.host.transfer_leader(group, node),
            MembershipStep::Wait | MembershipStep::Done => return,
        };
        if let Err(error) = done {
            tracing::debug!(event = "membership_step_refused", group = group.0, ?step, %error);
        }
    }

    /// Groups led here that another member could lead.
    pub fn leaders_to_move(&self, transfer_targets: &TransferTargets<'_>) -> usize {
        self.movable(transfer_targets).len()
    }

    fn movable(&self, transfer_targets: &TransferTargets<'_>) -> Vec<(GroupId, NodeId)> {
        let queues = self
            .led_groups()
            .into_iter()
            .map(|(id, status)| (GroupId(id.0), status));
        let metadata = self
            .metadata_status()
            .filter(|s| s.is_leader)
            .map(|s| (METADATA, s));
        let all = metadata.into_iter().chain(queues);
        all.filter_map(|(group, status)| {
            let status = self.prefer_caught_up(group, status);
            Some((group, transfer_targets.of(group, &status)?))
        })
        .collect()
    }

    /// Leaves only the members of a stream that have all of its messages, if there are any: another one would have to
    /// hand the leadership on.
    fn prefer_caught_up(&self, group: GroupId, mut status: GroupStatus) -> GroupStatus {
        if let Some(QueueReplica::Stream(stream)) = self.queues.get(&QueueId(group.0)) {
            let able = stream.caught_up();
            if status.matched.iter().any(|(node, _)| able.contains(node)) {
                status.matched.retain(|(node, _)| able.contains(node));
            }
        }
        status
    }

    pub fn move_leaders(&mut self, transfer_targets: &TransferTargets<'_>) {
        for (group, to) in self.movable(transfer_targets) {
            self.membership_step(group, MembershipStep::TransferTo(to));
        }
    }
}
