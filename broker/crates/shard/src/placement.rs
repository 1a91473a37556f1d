//! Placement of queues: the nodes of a new queue, the replacement of a member, the first leader. Pure.
//!
//! Of the nodes that could be taken next the first by these goes:
//!
//! | | prefers                                                                      |
//! |-|------------------------------------------------------------------------------|
//! |1| one that is up and not in maintenance                                        |
//! |2| one in a zone with fewer members so far (nodes that name none share one zone) |
//! |3| this node: the declaring client is here                                      |
//! |4| one that holds fewer replicas                                                |
//! |5| the lower id                                                                 |

use env::NodeId;
use metadata::LeaderLocator;

/// Members of a quorum queue when nobody says otherwise.
pub(crate) const DEFAULT_REPLICAS: u32 = 3;
/// Members at most.
pub(crate) const MAX_REPLICAS: u32 = 7;
/// Maximum number of voters of the metadata group; further nodes hold a copy and have no vote.
pub(crate) const MAX_VOTERS: usize = 5;

/// A node of the cluster as placement sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub node: NodeId,
    /// Empty: it says none.
    pub zone: &'a str,
    /// Up, and not in maintenance.
    pub available: bool,
    /// Replicas of quorum queues that it is to hold.
    pub replicas: usize,
    /// Queues that it leads, as far as is known here.
    pub leaders: usize,
}

/// The node to take next when these are members; None when all nodes that may be taken are.
fn next(
    members: &[NodeId],
    candidates: &[Candidate<'_>],
    here: Option<NodeId>,
    only_available: bool,
) -> Option<NodeId> {
    let zone_of = |n: NodeId| candidates.iter().find(|c| c.node == n).map(|c| c.zone);
    let in_zone = |zone: &str| {
        members
            .iter()
            .filter(|m| zone_of(**m) == Some(zone))
            .count()
    };
    candidates
        .iter()
        .filter(|c| !members.contains(&c.node) && (c.available || !only_available))
        .min_by_key(|c| {
            (
                !c.available,
                in_zone(c.zone),
                here != Some(c.node),
                c.replicas,
                c.node,
            )
        })
        .map(|c| c.node)
}

/// Members for a new quorum queue; `replicas` 0: the default. Nodes that are down are taken when there are no others.
pub(crate) fn new_members(me: NodeId, candidates: &[Candidate<'_>], replicas: u32) -> Vec<NodeId> {
    let wanted = match replicas {
        0 => DEFAULT_REPLICAS,
        n => n.min(MAX_REPLICAS),
    };
    let mut members = Vec::new();
    while members.len() < wanted as usize {
        match next(&members, candidates, Some(me), false) {
            Some(node) => members.push(node),
            None => break,
        }
    }
    members
}

/// Puts the one that is to lead first in front.
pub(crate) fn lead_first(
    members: &mut [NodeId],
    me: NodeId,
    candidates: &[Candidate<'_>],
    locator: LeaderLocator,
) {
    let of = |n: NodeId| candidates.iter().find(|c| c.node == n);
    let able = |n: NodeId| of(n).is_some_and(|c| c.available);
    let first = match locator {
        LeaderLocator::ClientLocal => members.iter().position(|n| *n == me && able(me)),
        LeaderLocator::Balanced => {
            let each = members.iter().enumerate().filter(|(_, n)| able(**n));
            let least = each.min_by_key(|(_, n)| (of(**n).map(|c| c.leaders), **n));
            least.map(|(at, _)| at)
        }
    };
    if let Some(at) = first
        && let Some(front) = members.get_mut(..=at)
    {
        front.rotate_right(1);
    }
}

/// The members without `gone`, and as many others in their place as there are nodes for. A member that is wanted is up,
/// unless `anyone` will do: a node that is known to come back.
pub(crate) fn replaced(
    members: &[NodeId],
    gone: impl Fn(NodeId) -> bool,
    candidates: &[Candidate<'_>],
    anyone: bool,
) -> Vec<NodeId> {
    let mut left: Vec<NodeId> = members.iter().copied().filter(|m| !gone(*m)).collect();
    let able: Vec<Candidate<'_>> = candidates
        .iter()
        .filter(|c| !gone(c.node))
        .copied()
        .collect();
    while left.len() < members.len() {
        match next(&left, &able, None, !anyone) {
            Some(node) => left.push(node),
            None => break,
        }
    }
    left
}

/// One more member for a queue that is to have `target` of them: only while all it has are up, and not if that made an
/// even number for want of a second node.
pub(crate) fn grown(
    members: &[NodeId],
    target: u32,
    candidates: &[Candidate<'_>],
    up: impl Fn(NodeId) -> bool,
) -> Option<Vec<NodeId>> {
    let target = target.min(MAX_REPLICAS) as usize;
    if members.len() >= target || !members.iter().all(|m| up(*m)) {
        return None;
    }
    let new = |c: &&Candidate<'_>| c.available && !members.contains(&c.node);
    let even_now = members.len().is_multiple_of(2);
    if !even_now && (candidates.iter().filter(new).count() < 2 || members.len() + 1 == target) {
        return None;
    }
    let node = next(members, candidates, None, true)?;
    Some(members.iter().copied().chain([node]).collect())
}

/// Who votes in the metadata group: who does so now, and others until there are enough. The first nodes vote all; of
/// more than three an odd number does, up to [`MAX_VOTERS`].
pub(crate) fn metadata_voters(voters: &[NodeId], candidates: &[Candidate<'_>]) -> Vec<NodeId> {
    let known = |n: &&NodeId| candidates.iter().any(|c| c.node == **n);
    let mut chosen: Vec<NodeId> = voters.iter().filter(known).copied().collect();
    let enough = match candidates.len() {
        n @ 0..=3 => n,
        n => (n - 1 + n % 2).min(MAX_VOTERS),
    };
    while chosen.len() < enough {
        match next(&chosen, candidates, None, true) {
            Some(node) => chosen.push(node),
            None => break,
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (node, zone, available, replicas, leaders)
    type Row = (u64, &'static str, bool, usize, usize);

    fn candidates(rows: &[Row]) -> Vec<Candidate<'static>> {
        let each = rows.iter();
        each.map(|(node, zone, available, replicas, leaders)| Candidate {
            node: NodeId(*node),
            zone,
            available: *available,
            replicas: *replicas,
            leaders: *leaders,
        })
        .collect()
    }

    fn ids(list: &[u64]) -> Vec<NodeId> {
        list.iter().map(|n| NodeId(*n)).collect()
    }

    #[test]
    fn new_queues() {
        let plain: &[Row] = &[
            (1, "", true, 1, 0),
            (2, "", true, 9, 0),
            (3, "", false, 1, 0),
            (4, "", true, 1, 0),
            (5, "", false, 1, 0),
        ];
        let zones: &[Row] = &[
            (1, "a", true, 0, 0),
            (2, "a", true, 0, 0),
            (3, "b", true, 5, 0),
            (4, "b", true, 6, 0),
            (5, "c", true, 9, 0),
        ];
        let down: &[Row] = &[
            (1, "a", true, 0, 0),
            (2, "a", true, 0, 0),
            (3, "b", true, 5, 0),
            (4, "c", false, 0, 0),
        ];
        let two: &[Row] = &[
            (1, "a", true, 3, 0),
            (2, "a", true, 2, 0),
            (3, "a", true, 1, 0),
            (4, "b", true, 9, 0),
            (5, "b", true, 8, 0),
        ];
        for (what, me, rows, replicas, want) in [
            ("here, then the least loaded", 1, plain, 0, &[1, 4, 2][..]),
            ("those that are down at last", 1, plain, 5, &[1, 4, 2, 3, 5]),
            ("one", 1, plain, 1, &[1]),
            ("here is in maintenance", 3, plain, 3, &[1, 4, 2]),
            ("more than there are", 2, zones, 7, &[2, 3, 5, 1, 4]),
            ("a zone each, whatever the load", 1, zones, 3, &[1, 3, 5]),
            ("from another node", 4, zones, 3, &[4, 1, 5]),
            ("a zone that is down is no zone", 1, down, 3, &[1, 3, 2]),
            ("two zones share five", 1, two, 5, &[1, 5, 3, 4, 2]),
        ] {
            let got = new_members(NodeId(me), &candidates(rows), replicas);
            assert_eq!(got, ids(want), "{what}");
        }
    }

    #[test]
    fn who_leads_first() {
        let rows: &[Row] = &[
            (1, "", true, 0, 5),
            (2, "", true, 0, 2),
            (3, "", true, 0, 2),
            (4, "", false, 0, 0),
        ];
        let (local, balanced) = (LeaderLocator::ClientLocal, LeaderLocator::Balanced);
        for (what, me, members, locator, want) in [
            ("the client's node", 3, &[1, 2, 3][..], local, &[3, 1, 2]),
            ("it is no member", 9, &[2, 1, 3], local, &[2, 1, 3]),
            ("it is not able", 4, &[2, 1, 4], local, &[2, 1, 4]),
            ("fewest leaders", 1, &[1, 3, 2], balanced, &[2, 1, 3]),
            ("down leads nothing", 1, &[1, 4, 3], balanced, &[3, 1, 4]),
        ] {
            let mut got = ids(members);
            lead_first(&mut got, NodeId(me), &candidates(rows), locator);
            assert_eq!(got, ids(want), "{what}");
        }
    }

    #[test]
    fn who_comes_for_whom() {
        let rows: &[Row] = &[
            (1, "a", true, 0, 0),
            (2, "b", true, 0, 0),
            (3, "c", true, 0, 0),
            (4, "a", true, 0, 0),
            (5, "c", true, 9, 0),
            (6, "c", false, 0, 0),
        ];
        for (what, members, gone, anyone, count, want) in [
            (
                "the zone's other node",
                &[1, 2, 3][..],
                3,
                false,
                6,
                &[1, 2, 5][..],
            ),
            ("of another zone", &[2, 3, 1], 1, false, 6, &[2, 3, 4]),
            ("nobody is there", &[1, 2, 3], 3, false, 3, &[1, 2]),
            (
                "one that will be",
                &[1, 2, 3, 4, 5],
                9,
                true,
                6,
                &[1, 2, 3, 4, 5],
            ),
            (
                "down, if anyone will do",
                &[1, 2, 3, 4, 5],
                5,
                true,
                6,
                &[1, 2, 3, 4, 6],
            ),
            (
                "not down otherwise",
                &[1, 2, 3, 4, 5],
                5,
                false,
                6,
                &[1, 2, 3, 4],
            ),
            ("the only one", &[1], 1, false, 1, &[]),
        ] {
            let all = candidates(&rows[..count]);
            let got = replaced(&ids(members), |n| n == NodeId(gone), &all, anyone);
            assert_eq!(got, ids(want), "{what}");
        }
    }

    #[test]
    fn growing_to_a_target() {
        let rows: &[Row] = &[
            (1, "a", true, 0, 0),
            (2, "a", true, 0, 0),
            (3, "b", true, 7, 0),
            (4, "b", true, 8, 0),
            (5, "c", false, 0, 0),
        ];
        for (what, members, target, count, want) in [
            ("nothing wanted", &[1][..], 0, 5, None),
            ("there already", &[1, 2, 3], 3, 5, None),
            ("in another zone", &[1], 3, 5, Some(&[1, 3][..])),
            ("and on", &[1, 3], 3, 5, Some(&[1, 3, 2])),
            ("two would be no better than one", &[1], 3, 2, None),
            ("an even target stays odd", &[1, 2, 3], 4, 5, None),
            ("one of its own is down", &[1, 5], 3, 5, None),
            ("no node is up for it", &[1, 2, 3, 4], 5, 5, None),
        ] {
            let all = candidates(&rows[..count]);
            let got = grown(&ids(members), target, &all, |n| n != NodeId(5));
            assert_eq!(got, want.map(ids), "{what}");
        }
    }

    #[test]
    fn who_votes_for_metadata() {
        let rows: Vec<Row> = (1..=8)
            .map(|n| (n, if n % 2 == 0 { "b" } else { "a" }, n != 4, 0, 0))
            .collect();
        for (what, voters, count, want) in [
            ("one", &[1][..], 1, &[1][..]),
            ("two", &[1], 2, &[1, 2]),
            ("three", &[1, 2], 3, &[1, 2, 3]),
            ("the fourth waits", &[1, 2, 3], 4, &[1, 2, 3]),
            ("four that vote go on", &[1, 2, 3, 4], 4, &[1, 2, 3, 4]),
            ("five, one of them down", &[1, 2, 3], 5, &[1, 2, 3, 5]),
            ("no more than five", &[1, 2, 3, 5], 8, &[1, 2, 3, 5, 6]),
            ("whoever was removed", &[1, 2, 9], 3, &[1, 2, 3]),
        ] {
            let all = candidates(rows.get(..count).unwrap_or_default());
            assert_eq!(metadata_voters(&ids(voters), &all), ids(want), "{what}");
        }
    }
}
