//! Which step brings a Raft group from the members it has to those it should have (Q16, C1). Pure.
//!
//! | state of the group                                          | step                       |
//! |-------------------------------------------------------------|----------------------------|
//! | a wanted node is no member                                  | add it as a learner        |
//! | a learner that is wanted has not caught up                  | wait                       |
//! | a voter is not wanted and every wanted node is at least a   | remove it, when those left |
//! | learner that has caught up                                  | are heard from in majority |
//! | a learner that is wanted has caught up                      | promote it                 |
//! | the leader itself is not wanted                             | hand over leadership first |
//!
//! A learner catches up before a dead voter is removed, and is promoted right after, so the window in which one
//! failure costs the majority stays as short as two log entries.

use consensus::{GroupStatus, MembershipChange};
use env::NodeId;

/// A learner this many entries behind the commit index counts as caught up.
const CAUGHT_UP: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Change(MembershipChange),
    TransferTo(NodeId),
    Wait,
    Done,
}

/// The next step for the leader `me`; `status` is the leader's view.
pub fn next_step(me: NodeId, wanted: &[NodeId], status: &GroupStatus) -> Step {
    let voters = &status.membership.voters;
    let learners = &status.membership.learners;
    if wanted.is_empty() {
        return Step::Done;
    }
    if let Some(new) = wanted
        .iter()
        .find(|n| !voters.contains(n) && !learners.contains(n))
    {
        return Step::Change(MembershipChange::AddLearner(*new));
    }
    if let Some(extra) = learners.iter().find(|n| !wanted.contains(n)) {
        return Step::Change(MembershipChange::Remove(*extra));
    }
    if learners.iter().any(|n| !caught_up(*n, status)) {
        return Step::Wait;
    }
    if let Some(extra) = voters.iter().find(|n| !wanted.contains(n)) {
        return remove(me, *extra, status);
    }
    match learners.first() {
        Some(learner) => Step::Change(MembershipChange::Promote(*learner)),
        None => Step::Done,
    }
}

fn caught_up(node: NodeId, status: &GroupStatus) -> bool {
    status.active.contains(&node)
        && status
            .matched
            .iter()
            .any(|(n, matched)| *n == node && matched + CAUGHT_UP >= status.commit)
}

fn remove(me: NodeId, extra: NodeId, status: &GroupStatus) -> Step {
    let left: Vec<NodeId> = status
        .membership
        .voters
        .iter()
        .copied()
        .filter(|n| *n != extra)
        .collect();
    let alive = left.iter().filter(|n| status.active.contains(n)).count();
    if left.is_empty() {
        // The last voter goes only after another took its place.
        return match status.membership.learners.first() {
            Some(learner) => Step::Change(MembershipChange::Promote(*learner)),
            None => Step::Wait,
        };
    }
    if alive * 2 <= left.len() {
        return Step::Wait;
    }
    if extra != me {
        return Step::Change(MembershipChange::Remove(extra));
    }
    match left
        .iter()
        .find(|n| status.active.contains(n) && caught_up(**n, status))
    {
        Some(next) => Step::TransferTo(*next),
        None => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consensus::Membership;

    fn status(voters: &[u64], learners: &[u64], active: &[u64], behind: &[u64]) -> GroupStatus {
        let ids = |list: &[u64]| list.iter().map(|n| NodeId(*n)).collect::<Vec<_>>();
        GroupStatus {
            term: 1,
            leader: Some(NodeId(1)),
            is_leader: true,
            is_candidate: false,
            membership: Membership {
                voters: ids(voters),
                learners: ids(learners),
            },
            commit: 1000,
            applied: 1000,
            checkpoint: 0,
            first_index: 1,
            last_index: 1000,
            persisted: 1000,
            active: ids(active),
            matched: voters
                .iter()
                .chain(learners)
                .map(|n| (NodeId(*n), if behind.contains(n) { 1 } else { 1000 }))
                .collect(),
        }
    }

    #[test]
    fn table() {
        use MembershipChange::*;
        let n = NodeId;
        let cases: &[(&str, &[u64], GroupStatus, Step)] = &[
            (
                "all there",
                &[1, 2, 3],
                status(&[1, 2, 3], &[], &[1, 2, 3], &[]),
                Step::Done,
            ),
            (
                "one new",
                &[1, 2, 4],
                status(&[1, 2, 3], &[], &[1, 2], &[]),
                Step::Change(AddLearner(n(4))),
            ),
            (
                "new one behind",
                &[1, 2, 4],
                status(&[1, 2, 3], &[4], &[1, 2, 4], &[4]),
                Step::Wait,
            ),
            (
                "new one silent",
                &[1, 2, 4],
                status(&[1, 2, 3], &[4], &[1, 2], &[]),
                Step::Wait,
            ),
            (
                "dead one goes",
                &[1, 2, 4],
                status(&[1, 2, 3], &[4], &[1, 2, 4], &[]),
                Step::Change(Remove(n(3))),
            ),
            (
                "then promote",
                &[1, 2, 4],
                status(&[1, 2], &[4], &[1, 2, 4], &[]),
                Step::Change(Promote(n(4))),
            ),
            (
                "no majority would be left",
                &[1, 2],
                status(&[1, 2, 3], &[], &[1, 3], &[]),
                Step::Wait,
            ),
            (
                "leader not wanted",
                &[2, 3],
                status(&[1, 2, 3], &[], &[1, 2, 3], &[]),
                Step::TransferTo(n(2)),
            ),
            (
                "stray learner",
                &[1],
                status(&[1], &[9], &[1], &[9]),
                Step::Change(Remove(n(9))),
            ),
            (
                "sole voter replaced",
                &[4],
                status(&[1], &[4], &[1, 4], &[]),
                Step::Change(Promote(n(4))),
            ),
            (
                "nothing wanted: leave it",
                &[],
                status(&[1, 2, 3], &[], &[1], &[]),
                Step::Done,
            ),
        ];
        for (name, wanted, status, expected) in cases {
            let wanted: Vec<_> = wanted.iter().map(|w| n(*w)).collect();
            assert_eq!(next_step(n(1), &wanted, status), *expected, "{name}");
        }
    }
}
