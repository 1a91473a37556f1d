//! Selection of the replica with which a group continues that lost a majority of its voters.

use crate::Membership;
use env::NodeId;
use env::planted::{self, Bug};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The end of a replica's log, and the members that the replica knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// Term of the last entry.
    pub last_term: u64,
    /// Index of the last entry.
    pub last_index: u64,
    /// Index of the last entry that was applied.
    pub applied: u64,
    /// The members after that entry.
    pub membership: Membership,
}

impl LogEnd {
    fn position(&self) -> (u64, u64) {
        (self.last_term, self.last_index)
    }
}

/// The replica with which a group continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// Its node. [`crate::RaftHost::recover_majority`] is to be called there.
    pub node: NodeId,
    /// The lost voters, and members that were removed before.
    pub lost: Vec<NodeId>,
    /// Number of voters, lost ones included.
    pub voters: usize,
}

/// Why a group is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSurvivor {
    /// A member that is not lost has not told the end of its log. Only it may have what was confirmed last.
    Silent(NodeId),
    /// No member told the end of its log.
    NoReplica,
    /// A node that is no member, as far as the members know, has a newer log.
    Newer(NodeId),
    /// The voters that are not lost are a majority.
    Majority {
        /// Number of voters that are not lost.
        left: usize,
        /// Number of voters.
        voters: usize,
    },
}

/// Selects the member with the newest log, which has everything that the group confirmed and that is left of it. `ends`:
/// the replicas of all nodes that run, also of nodes that are no members.
pub fn select_survivor(
    ends: &BTreeMap<NodeId, LogEnd>,
    lost: &[NodeId],
) -> Result<Survivor, NoSurvivor> {
    // A member that lags may count members that were removed since.
    let current = ends.values().max_by_key(|end| end.applied);
    let current = current.ok_or(NoSurvivor::NoReplica)?;
    let members = &current.membership;
    let members: BTreeSet<NodeId> = (members.voters.iter().chain(&members.learners))
        .copied()
        .collect();
    let mut left = members.iter().filter(|n| !lost.contains(n));
    if let Some(silent) = left.find(|n| !ends.contains_key(n))
        && !planted::is(Bug::SilentMemberIgnored)
    {
        return Err(NoSurvivor::Silent(*silent));
    }
    let told = ends.iter().filter(|(node, _)| members.contains(node));
    let newest = match planted::is(Bug::OldestLogContinues) {
        true => told.min_by_key(|(node, end)| (end.position(), **node)),
        false => told.max_by_key(|(node, end)| (end.position(), Reverse(**node))),
    };
    let (node, end) = newest.ok_or(NoSurvivor::NoReplica)?;
    let mut others = ends.iter().filter(|(node, _)| !members.contains(node));
    if let Some((newer, _)) = others.find(|(_, other)| other.position() > end.position()) {
        return Err(NoSurvivor::Newer(*newer));
    }
    let voters = &current.membership.voters;
    let mut gone: Vec<NodeId> = voters
        .iter()
        .copied()
        .filter(|n| lost.contains(n))
        .collect();
    if gone.len() * 2 < voters.len() {
        return Err(NoSurvivor::Majority {
            left: voters.len() - gone.len(),
            voters: voters.len(),
        });
    }
    let voters = voters.len();
    // The replica may have yet to apply the removal of others.
    let removed: BTreeSet<NodeId> = (ends.values())
        .flat_map(|end| end.membership.voters.iter().chain(&end.membership.learners))
        .filter(|n| !members.contains(n))
        .copied()
        .collect();
    gone.extend(removed);
    Ok(Survivor {
        node: *node,
        lost: gone,
        voters,
    })
}
