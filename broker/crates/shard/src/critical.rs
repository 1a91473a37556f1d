//! Groups that would lose their majority without this node (`node-is-quorum-critical`).
//!
//! What counts is who votes in the group now, as its leader tells. The record of a queue names the members that are
//! wanted: one that has just lost its disk is among them from the moment it joins, and has no vote until it has caught
//! up. Taking a voter away in between would leave the queue without a majority for good.

use control::QueueFacts;
use env::NodeId;

/// Whether a group with these voters needs `me`: fewer than a majority of them would be there without it.
pub(crate) fn needs(me: NodeId, voters: &[NodeId], there: impl Fn(NodeId) -> bool) -> bool {
    let others = voters.iter().filter(|n| **n != me && there(**n)).count();
    voters.contains(&me) && voters.len() > 1 && others * 2 <= voters.len()
}

/// Whether `me` is cut off from the majority of the metadata group's voters. Then it is not what the others depend on: they
/// go on without it, or none of the groups that it can see has a majority to lose.
pub(crate) fn is_cut_off(me: NodeId, voters: &[NodeId], there: impl Fn(NodeId) -> bool) -> bool {
    let reached = voters.iter().filter(|n| **n == me || there(**n)).count();
    reached * 2 <= voters.len()
}

/// Whether the quorum queue needs `me`. Nobody knows of one that has no leader: it needs all its members.
pub(crate) fn queue_needs(me: NodeId, queue: &QueueFacts) -> bool {
    match queue.leader {
        Some(_) => needs(me, &queue.members, |n| queue.online.contains(&n)),
        None => queue.members.len() > 1 && queue.members.contains(&me),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metadata::QueueId;

    fn ids(nodes: &[u64]) -> Vec<NodeId> {
        nodes.iter().map(|n| NodeId(*n)).collect()
    }

    /// Nodes of three that a queue with these voters needs.
    fn needed(leader: Option<u64>, voters: &[u64], online: &[u64]) -> Vec<u64> {
        let queue = QueueFacts {
            id: QueueId(9),
            leader: leader.map(NodeId),
            members: ids(voters),
            online: ids(online),
            stats: None,
            ..QueueFacts::default()
        };
        (1..=3)
            .filter(|n| queue_needs(NodeId(*n), &queue))
            .collect()
    }

    #[test]
    fn a_voter_is_needed_when_the_others_are_no_majority() {
        for (what, leader, voters, online, want) in [
            (
                "all there",
                Some(1),
                &[1, 2, 3][..],
                &[1, 2, 3][..],
                &[][..],
            ),
            (
                "one is gone, which nobody needs now",
                Some(1),
                &[1, 2, 3],
                &[1, 2],
                &[1, 2],
            ),
            (
                "a learner that is there has no vote",
                Some(1),
                &[1, 2],
                &[1, 2, 3],
                &[1, 2],
            ),
            (
                "on one node: as durable as it is wanted",
                Some(1),
                &[1],
                &[1],
                &[],
            ),
            ("no leader", None, &[1, 2, 3], &[], &[1, 2, 3]),
            ("no leader, on one node", None, &[2], &[], &[]),
            (
                "five, two gone",
                Some(1),
                &[1, 2, 3, 4, 5],
                &[1, 2, 3],
                &[1, 2, 3],
            ),
            (
                "five, one gone",
                Some(1),
                &[1, 2, 3, 4, 5],
                &[1, 2, 3, 4],
                &[],
            ),
        ] {
            assert_eq!(needed(leader, voters, online), want, "{what}");
        }
    }
}
