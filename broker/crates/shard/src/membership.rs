//! Computes the next step that brings a Raft group from its present members to the wanted ones. Pure.
//!
//! | state of the group                                             | step                          |
//! |----------------------------------------------------------------|-------------------------------|
//! | a wanted node is no member                                     | add it as a learner           |
//! | a learner is not wanted                                        | remove it                     |
//! | a voter is not wanted, a learner that is to vote is behind     | wait                          |
//! | the same and that voter is alive, a learner has caught up      | promote it                    |
//! | a voter is not wanted and nobody is to take its place, or it   | remove it, when those left    |
//! | is dead and a learner has caught up                            | have all of it in majority    |
//! | several voters are not wanted                                  | those that are dead go first, |
//! |                                                                | the leader goes last          |
//! | the leader itself is not wanted                                | hand over leadership first    |
//! | a learner that is to vote has caught up                        | promote it                    |
//! | one is behind                                                  | wait                          |
//!
//! One change is under way at a time, and the new member comes before the old one goes, so the window in which one
//! failure costs the majority stays as short as two log entries.

use consensus::{GroupStatus, MembershipChange};
use env::NodeId;

/// A learner this many entries behind the commit index counts as caught up, if it has any: one whose disk is full has none of a
/// short log for as long as that lasts.
const CAUGHT_UP: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    Change(MembershipChange),
    TransferTo(NodeId),
    Wait,
    Done,
}

/// Who is to be in the group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WantedMembers<'a> {
    pub voters: &'a [NodeId],
    /// Those that are to have a copy and no vote. Of these one that votes already goes on doing so.
    pub learners: &'a [NodeId],
    /// Those of them that lead only where nobody else can.
    pub drained: &'a [NodeId],
}

impl WantedMembers<'_> {
    fn has(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.learners.contains(&node)
    }
}

/// The next step for the leader `me`; `status` is the leader's view.
pub(crate) fn next_step(
    me: NodeId,
    wanted: WantedMembers<'_>,
    status: &GroupStatus,
) -> MembershipStep {
    let voters = &status.membership.voters;
    let learners = &status.membership.learners;
    if wanted.voters.is_empty() {
        return MembershipStep::Done;
    }
    let mut all = wanted.voters.iter().chain(wanted.learners);
    if let Some(new) = all.find(|n| !voters.contains(n) && !learners.contains(n)) {
        return MembershipStep::Change(MembershipChange::AddLearner(*new));
    }
    if let Some(stray) = learners.iter().find(|n| !wanted.has(**n)) {
        return MembershipStep::Change(MembershipChange::Remove(*stray));
    }
    let mut to_vote = learners.iter().filter(|n| wanted.voters.contains(n));
    let behind = to_vote.clone().any(|n| !caught_up(*n, status));
    let promotion = to_vote
        .find(|n| caught_up(**n, status))
        .map(|n| MembershipStep::Change(MembershipChange::Promote(*n)));
    // A dead one first: with it left behind, the next one to go could take the majority along. The leader last: it would hand over
    // to another one that is to go.
    let extra = voters.iter().filter(|n| !wanted.has(**n));
    let extra = extra.min_by_key(|n| (status.active.contains(n), **n == me));
    match (extra, promotion) {
        (Some(extra), Some(promotion)) if status.active.contains(extra) => promotion,
        (Some(extra), promotion) if promotion.is_some() || !behind => {
            remove(me, *extra, wanted.drained, status)
        }
        (Some(_), _) => MembershipStep::Wait,
        (None, Some(promotion)) => promotion,
        (None, None) if behind => MembershipStep::Wait,
        (None, None) => MembershipStep::Done,
    }
}

fn caught_up(node: NodeId, status: &GroupStatus) -> bool {
    status.active.contains(&node)
        && status
            .matched
            .iter()
            .any(|(n, matched)| *n == node && *matched > 0 && matched + CAUGHT_UP >= status.commit)
}

fn remove(me: NodeId, extra: NodeId, drained: &[NodeId], status: &GroupStatus) -> MembershipStep {
    let left: Vec<NodeId> = status
        .membership
        .voters
        .iter()
        .copied()
        .filter(|n| *n != extra)
        .collect();
    // Not only heard from: what the one that goes has helped to confirm must be with those that are left.
    let alive = left.iter().filter(|n| caught_up(**n, status)).count();
    if left.is_empty() {
        // The last voter goes only after another took its place.
        return match status.membership.learners.first() {
            Some(learner) => MembershipStep::Change(MembershipChange::Promote(*learner)),
            None => MembershipStep::Wait,
        };
    }
    if alive * 2 <= left.len() {
        return MembershipStep::Wait;
    }
    if extra != me {
        return MembershipStep::Change(MembershipChange::Remove(extra));
    }
    let able = left.iter().filter(|n| caught_up(**n, status));
    match able.min_by_key(|n| drained.contains(n)) {
        Some(next) => MembershipStep::TransferTo(*next),
        None => MembershipStep::Wait,
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
            last_term: 1,
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
        let cases: &[(&str, &[u64], GroupStatus, MembershipStep)] = &[
            (
                "all there",
                &[1, 2, 3],
                status(&[1, 2, 3], &[], &[1, 2, 3], &[]),
                MembershipStep::Done,
            ),
            (
                "one new",
                &[1, 2, 4],
                status(&[1, 2, 3], &[], &[1, 2], &[]),
                MembershipStep::Change(AddLearner(n(4))),
            ),
            (
                "new one behind",
                &[1, 2, 4],
                status(&[1, 2, 3], &[4], &[1, 2, 4], &[4]),
                MembershipStep::Wait,
            ),
            (
                "new one silent",
                &[1, 2, 4],
                status(&[1, 2, 3], &[4], &[1, 2], &[]),
                MembershipStep::Wait,
            ),
            (
                "dead one goes",
                &[1, 2, 4],
                status(&[1, 2, 3], &[4], &[1, 2, 4], &[]),
                MembershipStep::Change(Remove(n(3))),
            ),
            (
                "then promote",
                &[1, 2, 4],
                status(&[1, 2], &[4], &[1, 2, 4], &[]),
                MembershipStep::Change(Promote(n(4))),
            ),
            (
                "of two that are not wanted the dead one goes first",
                &[1],
                status(&[1, 2, 3], &[], &[1, 2], &[]),
                MembershipStep::Change(Remove(n(3))),
            ),
            (
                "no majority would be left",
                &[1, 2],
                status(&[1, 2, 3], &[], &[1, 3], &[]),
                MembershipStep::Wait,
            ),
            (
                "leader not wanted",
                &[2, 3],
                status(&[1, 2, 3], &[], &[1, 2, 3], &[]),
                MembershipStep::TransferTo(n(2)),
            ),
            (
                "the leader goes after others that are not wanted",
                &[3],
                status(&[1, 2, 3], &[], &[1, 2, 3], &[]),
                MembershipStep::Change(Remove(n(2))),
            ),
            (
                "the other that is left lacks something",
                &[1, 2],
                status(&[1, 2, 3], &[], &[1, 2, 3], &[2]),
                MembershipStep::Wait,
            ),
            (
                "a living one goes after its successor has its vote",
                &[1, 2, 4],
                status(&[1, 2, 3], &[4], &[1, 2, 3, 4], &[]),
                MembershipStep::Change(Promote(n(4))),
            ),
            (
                "and then",
                &[1, 2, 4],
                status(&[1, 2, 3, 4], &[], &[1, 2, 3, 4], &[]),
                MembershipStep::Change(Remove(n(3))),
            ),
            (
                "of two new ones one is there: the dead one's place is taken",
                &[1, 2, 4, 5, 6],
                status(&[1, 2, 3], &[4, 5, 6], &[1, 2, 4], &[5]),
                MembershipStep::Change(Remove(n(3))),
            ),
            (
                "of two new ones one is there",
                &[1, 4, 5],
                status(&[1], &[4, 5], &[1, 5], &[4]),
                MembershipStep::Change(Promote(n(5))),
            ),
            (
                "the leader goes after its successor has its vote",
                &[2, 3, 4],
                status(&[1, 2, 3], &[4], &[1, 2, 3, 4], &[]),
                MembershipStep::Change(Promote(n(4))),
            ),
            (
                "stray learner",
                &[1],
                status(&[1], &[9], &[1], &[9]),
                MembershipStep::Change(Remove(n(9))),
            ),
            (
                "sole voter replaced",
                &[4],
                status(&[1], &[4], &[1, 4], &[]),
                MembershipStep::Change(Promote(n(4))),
            ),
            (
                "nothing wanted: leave it",
                &[],
                status(&[1, 2, 3], &[], &[1], &[]),
                MembershipStep::Done,
            ),
        ];
        for (name, wanted, status, expected) in cases {
            let wanted: Vec<_> = wanted.iter().map(|w| n(*w)).collect();
            let wanted = WantedMembers {
                voters: &wanted,
                learners: &[],
                drained: &[],
            };
            assert_eq!(next_step(n(1), wanted, status), *expected, "{name}");
        }
    }

    /// A drained node would hand the group back at once.
    /// However few entries there are.
    #[test]
    fn who_has_nothing_gets_no_vote_and_does_not_count() {
        let short = |voters, learners, nothing: u64| {
            let all = status(voters, learners, &[1, 2, 3], &[]);
            let matched = all.matched.iter().map(|(node, _)| match node.0 == nothing {
                true => (*node, 0),
                false => (*node, 9),
            });
            GroupStatus {
                commit: 9,
                matched: matched.collect(),
                ..all
            }
        };
        let step = |wanted: &[NodeId], status: &GroupStatus| {
            let wanted = WantedMembers {
                voters: wanted,
                learners: &[],
                drained: &[],
            };
            next_step(NodeId(1), wanted, status)
        };
        let [one, two, three] = [1, 2, 3].map(NodeId);
        let promote = MembershipStep::Change(MembershipChange::Promote(three));
        let wanted = [one, two, three];
        assert_eq!(step(&wanted, &short(&[1, 2], &[3], 0)), promote);
        assert_eq!(
            step(&wanted, &short(&[1, 2], &[3], 3)),
            MembershipStep::Wait
        );
        let remove = MembershipStep::Change(MembershipChange::Remove(two));
        let wanted = [one, three];
        assert_eq!(step(&wanted, &short(&[1, 2, 3], &[], 0)), remove);
        assert_eq!(
            step(&wanted, &short(&[1, 2, 3], &[], 3)),
            MembershipStep::Wait
        );
    }

    #[test]
    fn leadership_goes_to_a_drained_node_only_if_nobody_else_can_have_it() {
        let n = NodeId;
        for (drained, to) in [(&[2][..], 3), (&[2, 3], 4), (&[2, 3, 4], 2)] {
            let drained: Vec<_> = drained.iter().map(|d| n(*d)).collect();
            let wanted = WantedMembers {
                voters: &[n(2), n(3), n(4)],
                learners: &[],
                drained: &drained,
            };
            let group = status(&[1, 2, 3, 4], &[], &[1, 2, 3, 4], &[]);
            let step = next_step(n(1), wanted, &group);
            assert_eq!(step, MembershipStep::TransferTo(n(to)), "{drained:?}");
        }
    }

    #[test]
    fn some_have_a_copy_and_no_vote() {
        use MembershipChange::*;
        let n = NodeId;
        for (name, group, expected) in [
            (
                "it comes as a learner",
                status(&[1, 2, 3], &[], &[1, 2, 3], &[]),
                MembershipStep::Change(AddLearner(n(4))),
            ),
            (
                "and stays one",
                status(&[1, 2, 3], &[4], &[1, 2, 3, 4], &[]),
                MembershipStep::Done,
            ),
            (
                "also behind or down",
                status(&[1, 2, 3], &[4], &[1, 2, 3], &[4]),
                MembershipStep::Done,
            ),
            (
                "who votes keeps its vote",
                status(&[1, 2, 3, 4], &[], &[1, 2, 3, 4], &[]),
                MembershipStep::Done,
            ),
        ] {
            let wanted = WantedMembers {
                voters: &[n(1), n(2), n(3)],
                learners: &[n(4)],
                drained: &[],
            };
            assert_eq!(next_step(n(1), wanted, &group), expected, "{name}");
        }
    }
}
