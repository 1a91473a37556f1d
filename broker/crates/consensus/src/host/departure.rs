//! Removed members of a group: when a replica may be deleted, and the tombstone that it leaves.
//!
//! A removed member is sent nothing any more, so it does not hear of its removal in the log. It asks the leader, and
//! deletes its replica when the answer covers all that it holds. What it held must then not be needed:
//!
//! - The removal is committed, in the term of the leader that answers, and a majority of the members that are left have
//!   everything up to there.
//! - The replica holds nothing beyond that and knows no later term. If it was taken in again meanwhile and counts for
//!   anything, one of the two is no longer so.
//! - Its term, its vote and the end of its log stay, see [`crate::tombstone`].

use super::Host;
use super::disk::{Garbage, JobFor};
use crate::GroupId;
use crate::entry::Position;
use crate::jobs::{self, Outcome};
use crate::tombstone::Tombstone;
use env::NodeId;

/// A leader's word that a node is no member of its group any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The leader's term.
    pub term: u64,
    /// Its commit index: a majority of those left have all up to here.
    pub commit: u64,
}

impl Host {
    /// Whether there is a replica of the group here.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Whether the group was removed here in an earlier life, as far as the log still tells, and not because this node was no
    /// member any more. What its owner reads again at a start may be from before that: it must not found the group once more.
    pub fn has_ended(&self, group: GroupId) -> bool {
        self.ended.contains(&group)
    }

    /// On the leader: `node` is out, and its replica is not needed. None while that is not sure.
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

    /// On who asked: deletes the replica if the answer still covers all that it holds. False: nothing is done.
    pub fn depart(&mut self, id: GroupId, told: Departure) -> bool {
        let Some(group) = self.groups.get_mut(&id) else {
            return false;
        };
        let raft = &group.raw.raft;
        let index = raft.raft_log.last_index();
        let Ok(term) = raft.raft_log.term(index) else {
            return false;
        };
        // Of an earlier leader: what of it is beyond the commit index never counted.
        let covered = term < told.term || (term == told.term && index <= told.commit);
        let quiet = !group.is_leader() && !group.installing && !group.stopped && !group.departing;
        if !covered || !quiet || raft.term > told.term || group.unpersisted > 0 {
            return false;
        }
        let last = Position { index, term };
        let floor = group.vote_floor.unwrap_or_default();
        let further = (floor.term, floor.index) > (last.term, last.index);
        let stone = Tombstone {
            term: raft.term,
            vote: raft.vote,
            last: if further { floor } else { last },
        };
        // From here on it makes no promise that the tombstone does not know.
        group.departing = true;
        let epoch = group.epoch;
        self.start_job(JobFor::Burial { group: id, epoch }, jobs::bury(id, stone));
        true
    }

    pub(super) fn buried(&mut self, id: GroupId, epoch: u64, outcome: Outcome) {
        let Some(group) = self.groups.get_mut(&id).filter(|g| g.epoch == epoch) else {
            // The group itself has ended meanwhile.
            return self.clean_up(id, Garbage::Tombstone);
        };
        match outcome {
            Outcome::Buried(stone) => {
                self.tombstones.insert(id, stone);
                self.remove_replica(id);
            }
            // The disk is full: it is asked again.
            _ => group.departing = false,
        }
    }

    /// A new group: this member asks for votes at once, before the others do by themselves.
    pub fn stand_first(&mut self, group: GroupId) {
        if let Some(replica) = self.groups.get_mut(&group) {
            replica.hurry_election(1, &mut self.rng);
            replica.retime(&mut self.rng);
            self.touch(group);
        }
    }
}
