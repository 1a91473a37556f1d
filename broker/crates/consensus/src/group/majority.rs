//! A group continues without its lost members, although the members that are left are no majority.
//!
//! raft-rs is told at once that the lost members are gone, so that the others can elect the caller and commit.
//! The log learns it from one removal per lost member. A membership change is delivered only once its commit index is
//! durable, and commands are refused until the last of them is delivered: nothing is confirmed by a membership that a
//! crash could undo.

use super::Group;
use crate::{MembershipChange, RecoverMajorityError};
use env::{NodeId, SeededRng};
use raft::eraftpb::{ConfChange, ConfChangeType};

/// Ticks after which the replica campaigns.
const CAMPAIGN_TICKS: usize = 1;

impl Group {
    /// See [`crate::RaftHost::recover_majority`].
    pub(crate) fn recover_majority(
        &mut self,
        lost: &[NodeId],
        rng: &mut SeededRng,
    ) -> Result<(), RecoverMajorityError> {
        if self.stopped || self.departing || self.installing || self.is_below_floor() {
            return Err(RecoverMajorityError::Incomplete);
        }
        let me = NodeId(self.raw.raft.id);
        let members = &self.membership;
        // A voter notices that its leader is gone, a learner does not.
        let is_current = |n: &NodeId| members.voters.contains(&me) || !lost.contains(n);
        if let Some(leader) = self.leader().filter(is_current) {
            return Err(RecoverMajorityError::HasLeader { leader });
        }
        let is_member = members.voters.contains(&me) || members.learners.contains(&me);
        let left = members.voters.iter().filter(|n| !lost.contains(n)).count();
        if !is_member || lost.contains(&me) || left * 2 > members.voters.len() {
            return Err(RecoverMajorityError::HasMajority);
        }
        // An earlier call may have named others.
        self.abandon_recovery();
        self.lost = lost.to_vec();
        if !self.membership.voters.contains(&me) {
            self.tell_raft(ConfChangeType::AddNode, me);
        }
        let voters = self.membership.voters.clone();
        for node in voters.iter().filter(|n| lost.contains(n)) {
            self.tell_raft(ConfChangeType::RemoveNode, *node);
        }
        self.hurry_election(CAMPAIGN_TICKS, rng);
        Ok(())
    }

    /// True until the log has a membership without the lost members.
    pub(crate) fn is_recovering_majority(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(crate) fn is_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    /// On the leader: proposes the next change that the log lacks. Returns true if there was one.
    pub(super) fn continue_recovery(&mut self) -> bool {
        debug_assert!(self.is_recovering_majority(), "no member is lost");
        if !self.is_leader() {
            if self.leader().is_some() {
                // Its log decides who is a member.
                self.abandon_recovery();
            }
            return false;
        }
        if self.raw.raft.has_pending_conf() || !self.unapplied.is_empty() {
            return false;
        }
        let me = NodeId(self.raw.raft.id);
        let voters = &self.membership.voters;
        let change = match voters.iter().find(|n| self.lost.contains(n)) {
            Some(_) if !voters.contains(&me) => MembershipChange::Promote(me),
            Some(node) => MembershipChange::Remove(*node),
            None => {
                self.lost.clear();
                return false;
            }
        };
        // Refused only while another change is under way, and then this is called again.
        self.change_membership(change).is_ok()
    }

    /// Makes raft-rs count the members that the log has.
    fn abandon_recovery(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        self.lost.clear();
        let me = NodeId(self.raw.raft.id);
        for node in self.membership.voters.clone() {
            self.tell_raft(ConfChangeType::AddNode, node);
        }
        if self.membership.learners.contains(&me) {
            self.tell_raft(ConfChangeType::AddLearnerNode, me);
        }
    }

    /// Changes the members that raft-rs counts, ahead of the log.
    fn tell_raft(&mut self, kind: ConfChangeType, node: NodeId) {
        let mut change = ConfChange::default();
        change.set_change_type(kind);
        change.node_id = node.0;
        let told = self.raw.apply_conf_change(&change);
        debug_assert!(told.is_ok(), "raft-rs refused {change:?}: {told:?}");
    }
}
