//! Who may take over a group that is led here.

use super::METADATA;
use crate::peers::Peers;
use consensus::{GroupId, GroupStatus};
use env::NodeId;
use metadata::{QueueId, Tree};

/// What is looked at.
pub struct TransferTargets<'a> {
    pub me: NodeId,
    pub tree: &'a Tree,
    pub peers: &'a Peers,
    /// Nodes that leaders are not to move to.
    pub avoid: &'a [NodeId],
}

impl TransferTargets<'_> {
    /// The voter with the most of the log among those that may; ties go by group term so that leaders spread.
    pub fn of(&self, group: GroupId, status: &GroupStatus) -> Option<NodeId> {
        let record = (group != METADATA).then(|| self.tree.queue_by_id(QueueId(group.0)));
        // One that is to leave the group would hand it over in its turn, perhaps to this node.
        let stays = |n: &NodeId| record.flatten().is_none_or(|r| r.members.contains(n));
        successor(status, |n| {
            *n != self.me && self.peers.is_up(*n) && !self.avoid.contains(n) && stays(n)
        })
    }
}

fn successor(status: &GroupStatus, may: impl Fn(&NodeId) -> bool) -> Option<NodeId> {
    let voters = &status.membership.voters;
    let able = (status.matched.iter()).filter(|(n, _)| voters.contains(n) && may(n));
    let best = able.clone().map(|(_, matched)| *matched).max()?;
    let ahead = able.filter(|(_, matched)| *matched == best);
    let mut ahead: Vec<NodeId> = ahead.map(|(n, _)| *n).collect();
    ahead.sort_unstable();
    let turn = status.term as usize % ahead.len().max(1);
    ahead.get(turn).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use consensus::Membership;

    fn status(term: u64, voters: &[u64], matched: &[(u64, u64)]) -> GroupStatus {
        let ids = |list: &[u64]| list.iter().map(|n| NodeId(*n)).collect::<Vec<_>>();
        GroupStatus {
            last_term: term,
            term,
            leader: Some(NodeId(1)),
            is_leader: true,
            is_candidate: false,
            membership: Membership {
                voters: ids(voters),
                learners: Vec::new(),
            },
            commit: 10,
            applied: 10,
            checkpoint: 0,
            first_index: 1,
            last_index: 10,
            persisted: 10,
            active: ids(voters),
            matched: matched.iter().map(|(n, at)| (NodeId(*n), *at)).collect(),
        }
    }

    #[test]
    fn the_voter_with_the_most_leads_next_and_equals_take_turns() {
        let all = [(1, 10), (2, 9), (3, 9), (4, 10)];
        let next = |term, without: u64| {
            let status = status(term, &[1, 2, 3], &all);
            successor(&status, |n| n.0 != 1 && n.0 != without)
        };
        assert_eq!(next(6, 0), Some(NodeId(2)));
        assert_eq!(next(7, 0), Some(NodeId(3)));
        assert_eq!(next(6, 2), Some(NodeId(3)));
        let alone = status(6, &[1], &all);
        assert_eq!(successor(&alone, |n| n.0 != 1), None);
    }
}
