//! Time, peers, and idle groups that sleep.
//!
//! A settled group sends no heartbeats: its leader tells the members to stop their clocks and stops its own.
//! Meanwhile the failure detector between each pair of nodes watches the leader. Any message or request to a
//! sleeping group wakes it.

use super::Host;
use crate::group::Group;
use crate::{GroupId, GroupStatus};
use env::{Incarnation, NodeId, Rng, Time};
use raft::eraftpb::{Message, MessageType};

/// More ticks than this at once mean that the process was suspended, so the silence of peers proves nothing.
const MAX_TICKS_AT_ONCE: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct PeerLiveness {
    up: bool,
    incarnation: Incarnation,
}

impl Host {
    pub(super) fn next_tick(&self) -> Option<Time> {
        let idle = self.awake.is_empty()
            && !self.disk_short
            && self.outgoing.is_empty()
            && self.incoming.is_empty()
            && self.flushes.is_empty()
            && self.pending_rolls.is_empty()
            && self.removals.is_empty()
            && self.checkpoints.is_empty();
        match self.last_tick {
            None => Some(Time::ZERO),
            Some(_) if idle => None,
            Some(last) => Some(last + self.config.limits.tick),
        }
    }

    pub(super) fn advance_time(&mut self, now: Time) {
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
            self.run_tick();
        }
    }

    fn run_tick(&mut self) {
        let awake: Vec<GroupId> = self.awake.iter().copied().collect();
        for id in awake {
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            group.tick(&mut self.rng);
            if group.raw.has_ready() || group.commit_record_due {
                self.mark_dirty(id);
            }
            self.sleep_if_settled(id);
        }
        self.retry_postponed();
        self.reclaim();
        self.start_due_flushes();
        self.tick_transfers();
    }

    // Sleeping.

    fn is_peer_up(&self, node: NodeId) -> bool {
        node == self.config.node || self.peers.get(&node).is_some_and(|p| p.up)
    }

    /// True if the leader may stop its clock: every member that is up has everything, a majority of the
    /// voters is up, and the failure detector knows the state of every member.
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
        // A heartbeat of this same tick must not arrive after the sleep message.
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

    /// The leader announces that it stops sending heartbeats. A member whose state differs stays awake, and
    /// will campaign.
    pub(super) fn handle_sleep(&mut self, from: NodeId, id: GroupId, term: u64, commit: u64) {
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
            // The commit index is not recorded yet, or the log is not durable yet. Neither needs the leader.
            group.commit_record_due = true;
            self.fall_asleep(id);
            self.mark_dirty(id);
        }
    }

    /// Starts a group's clock again. A leader pings its followers at once.
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
        // Silence proves nothing, because no heartbeats were due.
        group.raw.raft.election_elapsed = 0;
        group.raw.raft.ping();
        self.mark_dirty(id);
    }

    /// Wakes a group for a message, unless the message is a late response to a leader that went to sleep.
    pub(super) fn wake_for_message(&mut self, id: GroupId, m: &Message) {
        if m.get_msg_type() != MessageType::MsgHeartbeatResponse {
            let quiet = self.groups.get(&id).map_or(0, |g| g.quiet_ticks);
            self.wake(id);
            if let Some(group) = self.groups.get_mut(&id) {
                // Receiving a message does not reset the idle time: only the group's state decides whether it
                // is settled.
                group.quiet_ticks = quiet;
            }
        }
    }

    // Peers.

    pub(super) fn handle_peer_up(&mut self, node: NodeId, incarnation: Incarnation) {
        let before = self.peers.insert(
            node,
            PeerLiveness {
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
                // Messages in flight to it are lost, and it may not know its leader.
                group.report_unreachable(node);
                self.wake(id);
                if let Some(group) = self.groups.get_mut(&id) {
                    group.raw.raft.ping();
                }
                self.mark_dirty(id);
            }
        }
    }

    pub(super) fn handle_peer_down(&mut self, node: NodeId) {
        let incarnation = self
            .peers
            .get(&node)
            .map_or(Incarnation(0), |p| p.incarnation);
        let down = PeerLiveness {
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
                // Without a majority it must run its clock to find out that it is no longer the leader.
                if (voters.iter().filter(up).count() + 1) * 2 <= voters.len() {
                    self.wake(id);
                }
                self.mark_dirty(id);
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

    /// Starts elections in all groups that `node` led. The order of candidates differs per group, so that
    /// they do not campaign at the same time and leaders are spread over nodes.
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
                group.refresh_election_timeout(&mut self.rng);
                self.mark_dirty(id);
            }
        }
    }

    pub(super) fn status_of(&self, id: GroupId) -> Option<GroupStatus> {
        let group = self.groups.get(&id)?;
        let mut status = group.status();
        if status.is_leader && !group.awake {
            // No messages were exchanged lately; the failure detector knows which members are up.
            let members = &group.membership;
            let all = members.voters.iter().chain(&members.learners);
            status.active = all.filter(|n| self.is_peer_up(**n)).copied().collect();
            status.active.sort_unstable();
        }
        // A member that was active a moment ago may be known to be down by now.
        let is_down = |n: &NodeId| self.peers.get(n).is_some_and(|p| !p.up);
        status.active.retain(|n| !is_down(n));
        Some(status)
    }
}
