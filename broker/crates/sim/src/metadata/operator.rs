//! Who runs the cluster: gives a node that is gone for good a successor, one at a time.

use super::oracle::Oracle;
use super::replica::Replica;
use crate::world::{Scenario, World};
use consensus::{GroupStatus, MembershipChange};
use env::NodeId;

/// A node that takes another one's place.
#[derive(Clone, Copy, Debug)]
struct NodeReplacement {
    old: NodeId,
    new: NodeId,
}

/// Adds the successor as a learner, makes it a voter when it has all, and then takes the old one out.
#[derive(Debug, Default)]
pub struct Operator {
    succession: Option<NodeReplacement>,
    /// Successors that are in for good.
    pub done: u64,
}

impl Operator {
    pub fn is_busy(&self) -> bool {
        self.succession.is_some()
    }

    pub fn begin(&mut self, old: NodeId, new: NodeId) {
        // The same id again: nobody's members change.
        self.succession = (old != new).then_some(NodeReplacement { old, new });
    }

    /// The next step, if a leader is there to be asked for it.
    pub fn act<S: Scenario<Process = Replica>>(
        &mut self,
        world: &mut World<S>,
        oracle: &mut Oracle,
    ) {
        let Some(succession) = self.succession else {
            return;
        };
        let nodes = world.nodes();
        let status = |n: &NodeId| world.process(*n).and_then(Replica::status);
        let leads = |s: &GroupStatus| s.is_leader;
        let newest = nodes.iter().filter_map(|n| Some((*n, status(n)?)));
        let leader = newest.filter(|(_, s)| leads(s)).max_by_key(|(_, s)| s.term);
        let Some((leader, status)) = leader else {
            return;
        };
        match succession.step(&status) {
            Step::Wait => {}
            Step::Done => {
                self.succession = None;
                self.done += 1;
            }
            Step::Ask(change) => {
                match change {
                    MembershipChange::AddLearner(node) => oracle.invited(node),
                    MembershipChange::Promote(node) => oracle.promoted(node),
                    MembershipChange::Remove(_) => {}
                }
                world.with_process(leader, |p| p.change_members(change));
            }
        }
    }
}

enum Step {
    Wait,
    Ask(MembershipChange),
    Done,
}

impl NodeReplacement {
    fn step(self, status: &GroupStatus) -> Step {
        let NodeReplacement { old, new } = self;
        let members = &status.membership;
        if members.voters.contains(&new) {
            let still = members.voters.contains(&old) || members.learners.contains(&old);
            return match still {
                true => Step::Ask(MembershipChange::Remove(old)),
                false => Step::Done,
            };
        }
        if !members.learners.contains(&new) {
            return Step::Ask(MembershipChange::AddLearner(new));
        }
        let matched = status.matched.iter().find(|(n, _)| *n == new);
        match matched.is_some_and(|(_, index)| *index >= status.commit) {
            true => Step::Ask(MembershipChange::Promote(new)),
            false => Step::Wait,
        }
    }
}
