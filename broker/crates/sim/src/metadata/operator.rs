//! The operator of the cluster: replaces lost nodes, one at a time, after the others continue without them if most are lost.

use super::oracle::Oracle;
use super::replica::Replica;
use crate::world::{Scenario, World};
use consensus::{GroupStatus, LogEnd, MembershipChange};
use env::NodeId;
use std::collections::BTreeMap;

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
    /// Replacements that follow.
    waiting: Vec<NodeReplacement>,
    /// Nodes that are lost together, while the others are no majority.
    lost: Vec<NodeId>,
    /// Number of recoveries of a lost majority.
    pub recovered: u64,
    /// Number of completed replacements.
    pub completed: u64,
}

impl Operator {
    pub(super) fn is_busy(&self) -> bool {
        self.replacement.is_some() || !self.lost.is_empty()
    }

    /// Most nodes are lost. They are replaced when the others continue without them.
    pub(super) fn start_recovery(&mut self, replaced: &[(NodeId, NodeId)]) {
        self.lost = replaced.iter().map(|(old, _)| *old).collect();
        let waiting = replaced.iter();
        self.waiting = waiting
            .map(|(old, new)| NodeReplacement {
                old: *old,
                new: *new,
            })
            .collect();
    }

    /// Asks the member with the newest log to continue, as the control plane does.
    fn recover<S: Scenario<Process = Replica>>(&mut self, world: &mut World<S>) {
        let status = |n: &NodeId| world.process(*n).and_then(Replica::status);
        let running: BTreeMap<NodeId, GroupStatus> = (world.nodes().iter())
            .filter_map(|n| Some((*n, status(n)?)))
            .collect();
        let led = |s: &&GroupStatus| s.leader.is_some_and(|n| !self.lost.contains(&n));
        if let Some(leader) = running.values().find(|s| s.is_leader) {
            let voters = &leader.membership.voters;
            let lost = voters.iter().find(|n| self.lost.contains(n)).copied();
            let node = running.iter().find(|(_, s)| s.is_leader).map(|(n, _)| *n);
            match (lost, node) {
                // A crash can leave some of the removals to the usual way.
                (Some(lost), Some(node)) => {
                    world.with_process(node, |p| p.change_members(MembershipChange::Remove(lost)));
                }
                _ => {
                    self.lost.clear();
                    self.recovered += 1;
                    self.replacement = self.waiting.pop();
                }
            }
            return;
        }
        if running.values().any(|s| led(&s)) {
            return;
        }
        let end = |s: &GroupStatus| LogEnd {
            last_term: s.last_term,
            last_index: s.last_index,
            applied: s.applied,
            membership: s.membership.clone(),
        };
        let ends = running.iter().map(|(n, s)| (*n, end(s))).collect();
        if let Ok(survivor) = consensus::select_survivor(&ends, &self.lost) {
            world.with_process(survivor.node, |p| p.recover_majority(&survivor.lost));
        }
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
        if !self.lost.is_empty() {
            return self.recover(world);
        }
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
                self.replacement = self.waiting.pop();
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
