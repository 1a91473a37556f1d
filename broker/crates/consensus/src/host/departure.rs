//! Removed members: when a removed replica may be deleted, and the tombstone that it leaves.
//!
//! A removed member receives no further entries, so it does not learn of its removal from the log. It asks
//! the leader, and deletes its replica if the answer covers everything the replica holds. The data must not
//! be needed any more, which follows from:
//!
//! - The removal is committed in the term of the answering leader, and a majority of the remaining voters
//!   have the whole log up to the commit index.
//! - The replica holds no entry beyond that and knows no later term. If it was added again meanwhile and
//!   counts towards a majority, one of the two is no longer true.
//! - Its term, its vote and the end of its log are kept, see [`crate::tombstone`].

use super::Host;
use super::disk::{JobOwner, UnneededFiles};
use crate::GroupId;
use crate::entry::Position;
use crate::jobs::{self, JobOutcome};
use crate::tombstone::Tombstone;
use env::NodeId;

/// A leader's statement that a node is no longer a member of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The leader's term.
    pub term: u64,
    /// Its commit index: a majority of the remaining voters have all entries up to here.
    pub commit: u64,
}

wire::wire_struct!(Departure {
    term: u64,
    commit: u64,
});

impl Host {
    /// True if this node has a replica of the group.
    pub fn has_group(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// True if the group was removed on this node before it restarted, as far as the log still shows, for
    /// another reason than a departure. The owner may read an older state at startup, and must not create the
    /// group again because of it.
    pub fn was_removed(&self, group: GroupId) -> bool {
        self.removed_groups.contains(&group)
    }

    /// On the leader: states that `node` is not a member and that its replica is not needed. `None` while
    /// that is not certain.
    pub fn departure(&self, group: GroupId, node: NodeId) -> Option<Departure> {
        let group = self.groups.get(&group).filter(|g| g.is_leader())?;
        let raft = &group.raw.raft;
        let (term, commit) = (raft.term, raft.raft_log.committed);
        let members = &group.membership;
        let is_member = members.voters.contains(&node) || members.learners.contains(&node);
        let own_commit = raft.raft_log.term(commit) == Ok(term);
        if is_member || !own_commit || raft.has_pending_conf() {
            return None;
        }
        let has_all = |n: &&NodeId| raft.prs().get(n.0).is_some_and(|p| p.matched >= commit);
        let enough = members.voters.iter().filter(has_all).count() * 2 > members.voters.len();
        enough.then_some(Departure { term, commit })
    }

    /// On the removed member: deletes the replica if the leader's answer still covers everything it holds.
    /// Returns false if nothing was done.
    pub fn depart(&mut self, id: GroupId, departure: Departure) -> bool {
        let Some(group) = self.groups.get_mut(&id) else {
            return false;
        };
        let raft = &group.raw.raft;
        let index = raft.raft_log.last_index();
        let Ok(term) = raft.raft_log.term(index) else {
            return false;
        };
        // The last entry may be of an earlier leader; an uncommitted tail from an older term never counted.
        let covered =
            term < departure.term || (term == departure.term && index <= departure.commit);
        let is_idle = !group.is_leader() && !group.installing && !group.stopped && !group.departing;
        if !covered || !is_idle || raft.term > departure.term || group.unpersisted > 0 {
            return false;
        }
        let last = Position { index, term };
        let floor = group.vote_floor.unwrap_or_default();
        let is_floor_higher = (floor.term, floor.index) > (last.term, last.index);
        let tombstone = Tombstone {
            term: raft.term,
            vote: raft.vote,
            last: if is_floor_higher { floor } else { last },
        };
        // From here on the replica makes no promise that the tombstone does not include.
        group.departing = true;
        let epoch = group.epoch;
        self.start_job(
            JobOwner::WriteTombstone { group: id, epoch },
            jobs::write_tombstone(id, tombstone),
        );
        true
    }

    pub(super) fn handle_tombstone_written(
        &mut self,
        id: GroupId,
        epoch: u64,
        outcome: JobOutcome,
    ) {
        let Some(group) = self.groups.get_mut(&id).filter(|g| g.epoch == epoch) else {
            // The group was removed meanwhile.
            return self.clean_up(id, UnneededFiles::Tombstone);
        };
        match outcome {
            JobOutcome::TombstoneWritten(tombstone) => {
                self.tombstones.insert(id, tombstone);
                self.remove_replica(id);
            }
            // The disk is full: the owner will ask again.
            _ => group.departing = false,
        }
    }

    /// Makes this member of a new group campaign at once, before another member's election timeout expires.
    pub fn campaign_now(&mut self, group: GroupId) {
        if let Some(replica) = self.groups.get_mut(&group) {
            replica.hurry_election(1, &mut self.rng);
            replica.refresh_election_timeout(&mut self.rng);
            self.mark_dirty(group);
        }
    }
}
