//! The operator of the cluster: replaces lost nodes, one at a time.

use super::oracle::Oracle;
use super::replica::Replica;
use crate::world::{Scenario, World};
use consensus::{GroupStatus, MembershipChange};
use env::NodeId;

/// The replacement of a lost node.
#[derive(Clone, Copy, Debug)]
struct NodeReplacement {
    old: NodeId,
    new: NodeId,
}

/// Adds the new node as a learner, promotes it when it has caught up, and then removes the old one.
#[derive(Debug, Default)]
pub(super) struct Operator {
    replacement: Option<NodeReplacement>,
    /// Number of completed replacements.
    pub completed: u64,
}

impl Operator {
    pub(super) fn is_busy(&self) -> bool {
        self.replacement.is_some()
    }

    pub(super) fn start_replacement(&mut self, old: NodeId, new: NodeId) {
        // With the same id the members do not change.
        self.replacement = (old != new).then_some(NodeReplacement { old, new });
    }

    /// Takes the next step of the replacement, if there is a leader to request it from.
    pub(super) fn act<S: Scenario<Process = Replica>>(
        &mut self,
        world: &mut World<S>,
        oracle: &mut Oracle,
    ) {
        let Some(replacement) = self.replacement else {
            return;
        };
        let nodes = world.nodes();
        let status = |n: &NodeId| world.process(*n).and_then(Replica::status);
        let is_leader = |s: &GroupStatus| s.is_leader;
        let leaders = nodes.iter().filter_map(|n| Some((*n, status(n)?)));
        let leader = leaders
            .filter(|(_, s)| is_leader(s))
            .max_by_key(|(_, s)| s.term);
        let Some((leader, status)) = leader else {
            return;
        };
        match replacement.step(&status) {
            Step::Wait => {}
            Step::Done => {
                self.replacement = None;
                self.completed += 1;
            }
            Step::Request(change) => {
                match change {
                    MembershipChange::AddLearner(node) => oracle.allow_member(node),
                    MembershipChange::Promote(node) => oracle.allow_vote(node),
                    MembershipChange::Remove(_) => {}
                }
                world.with_process(leader, |p| p.change_members(change));
            }
        }
    }
}

enum Step {
    Wait,
    Request(MembershipChange),
    Done,
}

impl NodeReplacement {
    fn step(self, status: &GroupStatus) -> Step {
        let NodeReplacement { old, new } = self;
        let members = &status.membership;
        if members.voters.contains(&new) {
            let is_member = members.voters.contains(&old) || members.learners.contains(&old);
            return match is_member {
                true => Step::Request(MembershipChange::Remove(old)),
                false => Step::Done,
            };
        }
        if !members.learners.contains(&new) {
            return Step::Request(MembershipChange::AddLearner(new));
        }
        let matched = status.matched.iter().find(|(n, _)| *n == new);
        match matched.is_some_and(|(_, index)| *index >= status.commit) {
            true => Step::Request(MembershipChange::Promote(new)),
            false => Step::Wait,
        }
    }
}
