//! Time, peers, and groups that sleep because nothing happens in them (C1).
//!
//! A settled group sends no heartbeats: its leader tells the members to stop their clocks and stops its own. The
//! failure detector of the node pair watches instead. Whatever comes to a sleeping group wakes it.

use super::Host;
use crate::group::Group;
use crate::{GroupId, GroupStatus};
use env::{Incarnation, NodeId, Rng, Time};
use raft::eraftpb::{Message, MessageType};

/// More ticks than this at once mean that the process stood still; nobody is to blame for the silence.
const MAX_TICKS_AT_ONCE: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Peer {
    up: bool,
    incarnation: Incarnation,
}

impl Host {
    pub(super) fn next_tick(&self) -> Option<Time> {
        let idle = self.awake.is_empty()
            && !self.short
            && self.outgoing.is_empty()
            && self.incoming.is_empty()
            && self.flushes.is_empty()
            && self.late_rolls.is_empty()
            && self.removals.is_empty()
            && self.checkpoints.is_empty();
        match self.last_tick {
            None => Some(Time::ZERO),
            Some(_) if idle => None,
            Some(last) => Some(last + self.config.limits.tick),
        }
    }

    pub(super) fn time_is(&mut self, now: Time) {
        let Some(last) = self.last_tick else {
            self.last_tick = Some(now);
            return;
        };
        let tick = self.config.limits.tick.as_nanos().max(1);
        let passed = u64::try_from(now.since(last).as_nanos() / tick).unwrap_or(u64::MAX);
        if passed == 0 {
            return;
        }
        self.last_tick = match passed > MAX_TICKS_AT_ONCE {
            true => Some(now),
            false => Some(last + self.config.limits.tick * passed as u32),
        };
        for _ in 0..passed.min(MAX_TICKS_AT_ONCE) {
            self.ticks += 1;
            self.one_tick();
        }
    }

    fn one_tick(&mut self) {
        let awake: Vec<GroupId> = self.awake.iter().copied().collect();
        for id in awake {
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            group.tick(&mut self.rng);
            if group.raw.has_ready() || group.commit_wanted {
                self.touch(id);
            }
            self.sleep_if_settled(id);
        }
        self.retry_postponed();
        self.reclaim();
        self.flush_late();
        self.tick_transfers();
    }

    // Sleeping.

    fn is_peer_up(&self, node: NodeId) -> bool {
        node == self.config.node || self.peers.get(&node).is_some_and(|p| p.up)
    }

    /// Whether the leader may let go: everybody who is up has everything, those that are up are enough, and the
    /// failure detector has said something about everybody.
    fn may_sleep(&self, group: &Group) -> bool {
        if !group.is_leader() || !group.is_settled() {
            return false;
        }
        let me = self.config.node;
        let members = &group.membership;
        let voters_up = members.voters.iter().filter(|n| self.is_peer_up(**n));
        if voters_up.count() * 2 <= members.voters.len() {
            return false;
        }
        let mut others = members.voters.iter().chain(&members.learners);
        others.all(|n| {
            *n == me
                || match self.peers.get(n) {
                    Some(peer) if peer.up => group.is_caught_up(*n),
                    Some(_) => true,
                    None => false,
                }
        })
    }

    fn sleep_if_settled(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let may = self.may_sleep(group);
        let after = self.config.limits.sleep_after_ticks;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.quiet_ticks = if may { group.quiet_ticks + 1 } else { 0 };
        // A heartbeat of this very tick must not come behind the word that there will be none.
        if group.quiet_ticks < after.max(1) || group.raw.has_ready() {
            return;
        }
        let (term, commit) = (group.term(), group.applied);
        let members = group.membership.clone();
        for to in members.voters.iter().chain(&members.learners) {
            if *to != self.config.node && self.is_peer_up(*to) {
                self.sink.send_sleep(*to, id, term, commit);
            }
        }
        self.fall_asleep(id);
    }

    fn fall_asleep(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.awake = false;
            group.quiet_ticks = 0;
            group.raw.raft.maybe_free_inflight_buffers();
            group.store().segments().release();
            self.awake.remove(&id);
        }
    }

    /// The leader says that nothing is to come. A member that thinks otherwise stays awake, and then asks.
    pub(super) fn asked_to_sleep(&mut self, from: NodeId, id: GroupId, term: u64, commit: u64) {
        let up = self.is_peer_up(from);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let agrees = up
            && !group.stopped
            && group.leader() == Some(from)
            && group.term() == term
            && group.raw.raft.raft_log.committed == commit
            && group.raw.raft.raft_log.last_index() == commit;
        if !agrees {
            return;
        }
        if group.is_settled() {
            self.fall_asleep(id);
        } else {
            // The commit index is not on record, or the log not durable, yet. Neither needs the leader.
            group.commit_wanted = true;
            self.fall_asleep(id);
            self.touch(id);
        }
    }

    /// Starts a group's clock again. A leader asks at once who is still there.
    pub(super) fn wake(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.quiet_ticks = 0;
        if group.awake {
            return;
        }
        group.awake = true;
        self.awake.insert(id);
        // Nobody was silent: nobody was asked.
        group.raw.raft.election_elapsed = 0;
        group.raw.raft.ping();
        self.touch(id);
    }

    /// Wakes a group for a message, unless it is a late answer to a leader that has let go.
    pub(super) fn wake_for(&mut self, id: GroupId, m: &Message) {
        if m.get_msg_type() != MessageType::MsgHeartbeatResponse {
            let quiet = self.groups.get(&id).map_or(0, |g| g.quiet_ticks);
            self.wake(id);
            if let Some(group) = self.groups.get_mut(&id) {
                // Whether a group is settled is seen from its state, not from what is said in it.
                group.quiet_ticks = quiet;
            }
        }
    }

    // Peers.

    pub(super) fn is_up(&mut self, node: NodeId, incarnation: Incarnation) {
        let before = self.peers.insert(
            node,
            Peer {
                up: true,
                incarnation,
            },
        );
        let restarted = before.is_some_and(|p| p.up && p.incarnation != incarnation);
        if restarted {
            self.elect_without(node);
        }
        if before.is_some_and(|p| p.up && !restarted) {
            return;
        }
        for id in self.groups_with(node) {
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            if group.is_leader() {
                // What was on the way to it is lost, and it may not know its leader.
                group.report_unreachable(node);
                self.wake(id);
                if let Some(group) = self.groups.get_mut(&id) {
                    group.raw.raft.ping();
                }
                self.touch(id);
            }
        }
    }

    pub(super) fn is_down(&mut self, node: NodeId) {
        let incarnation = self
            .peers
            .get(&node)
            .map_or(Incarnation(0), |p| p.incarnation);
        let down = Peer {
            up: false,
            incarnation,
        };
        self.peers.insert(node, down);
        self.elect_without(node);
        for id in self.groups_with(node) {
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            if group.is_leader() {
                group.report_unreachable(node);
                let up = |n: &&NodeId| self.peers.get(n).is_some_and(|p| p.up);
                let voters = &group.membership.voters;
                // Without a majority it must find out that it leads no more.
                if (voters.iter().filter(up).count() + 1) * 2 <= voters.len() {
                    self.wake(id);
                }
                self.touch(id);
            }
        }
        self.abort_transfers_with(node);
    }

    fn groups_with(&self, node: NodeId) -> Vec<GroupId> {
        let is_member = |g: &&Group| {
            g.membership.voters.contains(&node) || g.membership.learners.contains(&node)
        };
        let mut ids: Vec<GroupId> = self
            .groups
            .values()
            .filter(is_member)
            .map(|g| g.id)
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Groups that `node` led elect anew at once. Each member has its turn, another one in each group, so that
    /// they do not ask all at the same time and the leaders spread.
    fn elect_without(&mut self, node: NodeId) {
        let mut ids: Vec<GroupId> = self
            .groups
            .values()
            .filter(|g| g.leader() == Some(node))
            .map(|g| g.id)
            .collect();
        ids.sort_unstable();
        for id in ids {
            let Some(group) = self.groups.get(&id) else {
                continue;
            };
            let mut candidates: Vec<NodeId> = group.membership.voters.clone();
            candidates.retain(|n| *n != node && self.is_peer_up(*n));
            candidates.sort_unstable();
            let count = candidates.len().max(1) as u64;
            let me = candidates.iter().position(|n| *n == self.config.node);
            let turn = me.map(|at| (at as u64 + id.0) % count);
            self.wake(id);
            let jitter = self.rng.below(2) as usize;
            if let (Some(turn), Some(group)) = (turn, self.groups.get_mut(&id)) {
                group.hurry_election(1 + turn as usize * 3 + jitter, &mut self.rng);
                group.retime(&mut self.rng);
                self.touch(id);
            }
        }
    }

    pub(super) fn status_of(&self, id: GroupId) -> Option<GroupStatus> {
        let group = self.groups.get(&id)?;
        let mut status = group.status();
        if status.is_leader && !group.awake {
            // Nobody was asked lately; the failure detector knows.
            let members = &group.membership;
            let all = members.voters.iter().chain(&members.learners);
            status.active = all.filter(|n| self.is_peer_up(**n)).copied().collect();
            status.active.sort_unstable();
        }
        // Whom it has just heard from may be down by now, and be known to be.
        let is_down = |n: &NodeId| self.peers.get(n).is_some_and(|p| !p.up);
        status.active.retain(|n| !is_down(n));
        Some(status)
    }
}
