//! The replica of one group: the raft-rs node, its log, and what was last reported about it.

use crate::entry::{self, MEMBERSHIP, Position};
use crate::guard::{self, RefusedMessage};
use crate::sink::{OutputBuffer, PendingAction};
use crate::snapshot::Checkpoint;
use crate::store::LogStore;
use crate::{
    CommittedEntry, GroupId, GroupStatus, HostLimits, HostOutput, Membership, ProposeError,
};
use bytes::Bytes;
use env::planted::{self, Bug};
use env::{NodeId, Rng, SeededRng};
use raft::eraftpb::{self, ConfChangeType, EntryType, Message, MessageType};
use raft::{Config, ProgressState, RawNode, SnapshotStatus, StateRole};
use std::collections::VecDeque;
use wal::RecordBody;

mod majority;
mod ready;

/// raft-rs tracks the uncommitted size only if a limit is set. The effective limit is
/// [`HostLimits::max_uncommitted_bytes`].
const COUNTED_BUT_UNLIMITED: u64 = u64::MAX / 2;

/// Ticks after which a commit index that no later entry carries to the log is recorded by itself.
const COMMIT_RECORD_TICKS: u32 = 5;

/// A requested flush: entries that are to be moved to segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushRequest {
    pub upto: u64,
    /// The flush starts without a newer checkpoint from this tick on.
    pub at_tick: u64,
}

pub(crate) struct Group {
    pub id: GroupId,
    /// Distinguishes this replica from an earlier one of the same group.
    pub epoch: u64,
    pub raw: RawNode<LogStore>,
    /// Minimum and maximum election timeout in ticks.
    election: (usize, usize),
    /// Accepted but not yet given to raft-rs, so that a burst becomes one message.
    proposals: Vec<eraftpb::Entry>,
    proposal_bytes: usize,
    /// Batches that raft-rs handed out and that are not durable yet.
    pub unpersisted: usize,
    /// Committed entries that wait until a commit index is recorded in the log.
    unapplied: VecDeque<wal::Entry>,
    /// The newest commit index that was written to the log, and the newest that is durable there.
    logged_commit: u64,
    durable_commit: u64,
    /// A received checkpoint that is being offered to raft-rs.
    incoming: Option<(Checkpoint, Bytes)>,
    /// A leader's checkpoint has replaced the log, and the record of that is not durable yet.
    pub installing: bool,
    /// Term and role for which the election timeout was last drawn.
    seen_role: (u64, StateRole),
    /// The last leadership reported to the owner: term, leader, whether this node leads.
    reported_leadership: Option<(u64, Option<NodeId>, bool)>,
    pub membership: Membership,
    /// The index from which on `membership` is in effect.
    pub member_since: u64,
    pub applied: u64,
    /// The newest entry delivered to the owner; its state has not changed since.
    pub last_command: u64,
    /// Size of the log since the last checkpoint.
    log_bytes: u64,
    log_entries: u64,
    /// Number of live entries in the last checkpoint.
    last_live_count: u64,
    /// The owner was asked for a checkpoint and has not supplied one yet.
    checkpoint_requested: bool,
    /// A storage job of this group is running.
    pub job_running: bool,
    /// A checkpoint supplied by the owner, until its job starts.
    pub checkpoint_waiting: Option<segment::Checkpoint>,
    /// The job of a checkpoint is running.
    pub checkpointing: bool,
    pub flush: Option<FlushRequest>,
    /// Replaced segments that a running transfer may still read.
    pub replaced_segments: Vec<segment::SegmentName>,
    /// `store().mem_bytes()` as last added to the host's total.
    pub counted_bytes: usize,
    /// Queued in the host's list of groups to process.
    pub dirty: bool,
    /// The group's clock runs.
    pub awake: bool,
    /// Consecutive ticks in which the group could have gone to sleep.
    pub quiet_ticks: u32,
    /// Recovered state that has not been delivered to the owner yet.
    pub restore: Option<Bytes>,
    /// The commit index is to be recorded although no other record is due.
    pub commit_record_due: bool,
    commit_lag_ticks: u32,
    /// On the leader: members active in the previous election period. raft-rs clears activity when a period
    /// starts.
    previously_active: Vec<NodeId>,
    /// The leader is known to be down: campaign again soon if the election fails.
    election_hurried: bool,
    /// The membership was reported to the owner.
    membership_reported: bool,
    /// The end of the log that an earlier replica of this node had. A candidate with a shorter log gets no
    /// vote.
    pub vote_floor: Option<Position>,
    /// The replica is about to be deleted.
    pub departing: bool,
    /// The group started with this node as its only voter, which may elect itself without waiting.
    singleton: bool,
    /// Members that never return, until the log has a membership without them.
    lost: Vec<NodeId>,
    pub stopped: bool,
}

impl Group {
    pub(crate) fn new(
        id: GroupId,
        epoch: u64,
        node: NodeId,
        limits: &HostLimits,
        store: LogStore,
        logger: &slog::Logger,
    ) -> raft::Result<Group> {
        let begin = store.compacted().index;
        let membership = store.checkpoint().membership.clone();
        let log = (store.mem_bytes() as u64, store.last() - begin);
        let singleton = membership.voters == [node];
        let config = Config {
            id: node.0,
            election_tick: limits.election_ticks,
            heartbeat_tick: limits.heartbeat_ticks,
            applied: begin,
            max_size_per_msg: limits.max_message_bytes,
            max_inflight_msgs: limits.max_inflight_messages,
            check_quorum: true,
            pre_vote: true,
            // With batching, raft-rs 0.7.0 would append entries to an empty message of the same turn although
            // other messages are between them. A burst of proposals is one message here anyway.
            batch_append: false,
            max_uncommitted_size: COUNTED_BUT_UNLIMITED,
            max_committed_size_per_ready: 4 << 20,
            ..Config::default()
        };
        let mut raw = RawNode::new(&config, store, logger)?;
        raw.raft.maybe_free_inflight_buffers();
        let commit = raw.raft.raft_log.committed;
        Ok(Group {
            id,
            epoch,
            election: (config.min_election_tick(), config.max_election_tick()),
            raw,
            proposals: Vec::new(),
            proposal_bytes: 0,
            unpersisted: 0,
            unapplied: VecDeque::new(),
            logged_commit: commit,
            durable_commit: commit,
            incoming: None,
            installing: false,
            seen_role: (u64::MAX, StateRole::Follower),
            reported_leadership: None,
            membership,
            member_since: begin,
            applied: begin,
            last_command: begin,
            log_bytes: log.0,
            log_entries: log.1,
            last_live_count: 0,
            checkpoint_requested: false,
            job_running: false,
            checkpoint_waiting: None,
            checkpointing: false,
            flush: None,
            replaced_segments: Vec::new(),
            counted_bytes: 0,
            dirty: false,
            awake: true,
            quiet_ticks: 0,
            restore: None,
            commit_record_due: false,
            commit_lag_ticks: 0,
            previously_active: Vec::new(),
            election_hurried: false,
            membership_reported: false,
            vote_floor: None,
            departing: false,
            singleton,
            lost: Vec::new(),
            stopped: false,
        })
    }

    pub(crate) fn store(&self) -> &LogStore {
        self.raw.store()
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub(crate) fn leader(&self) -> Option<NodeId> {
        Some(self.raw.raft.leader_id)
            .filter(|id| *id != 0)
            .map(NodeId)
    }

    pub(crate) fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Entries up to this index are durable and applied, so they may leave the write-ahead log.
    pub(crate) fn flushable(&self) -> u64 {
        self.applied.min(self.raw.raft.raft_log.persisted)
    }

    /// raft-rs draws election timeouts from an unseeded generator whenever the term or role changes. Replaces
    /// that timeout with one from the seeded generator.
    pub(crate) fn refresh_election_timeout(&mut self, rng: &mut SeededRng) {
        let role = (self.raw.raft.term, self.raw.raft.state);
        if role != self.seen_role {
            self.seen_role = role;
            self.previously_active.clear();
            self.draw_election_timeout(rng);
        }
    }

    fn draw_election_timeout(&mut self, rng: &mut SeededRng) {
        let (min, max) = self.election;
        let drawn = min + rng.below((max - min) as u64) as usize;
        self.raw.raft.set_randomized_election_timeout(drawn);
    }

    /// A group of one elects itself in one step, which requires that its log is durable.
    fn must_not_campaign(&self) -> bool {
        let singleton = self.raw.raft.prs().is_singleton();
        self.installing
            || self.is_below_floor()
            || (singleton && !self.is_leader() && self.unpersisted > 0)
    }

    /// True if an earlier replica of this node had a longer log. The membership known to this replica may
    /// then be outdated too.
    fn is_below_floor(&self) -> bool {
        let Some(floor) = self.vote_floor else {
            return false;
        };
        let log = &self.raw.raft.raft_log;
        let index = log.last_index();
        let term = log.term(index).unwrap_or(0);
        (term, index) < (floor.term, floor.index)
    }

    /// Advances the group's clock by one tick.
    pub(crate) fn tick(&mut self, rng: &mut SeededRng) {
        if self.stopped || self.departing || self.must_not_campaign() {
            return;
        }
        self.save_active_members();
        self.raw.tick();
        self.refresh_election_timeout(rng);
        let campaigning = matches!(
            self.raw.raft.state,
            StateRole::PreCandidate | StateRole::Candidate
        );
        if campaigning && self.raw.raft.election_elapsed == 0 {
            // Two candidates that started together must not collide forever.
            self.draw_election_timeout(rng);
            if self.election_hurried {
                self.expire_election_in(3 + rng.below(4) as usize);
            }
        }
        self.schedule_commit_record();
    }

    /// Saves the active members before the last tick of an election period, because raft-rs then clears them.
    fn save_active_members(&mut self) {
        let raft = &self.raw.raft;
        if self.is_leader() && raft.election_elapsed + 1 >= raft.election_timeout() {
            self.previously_active.clear();
            let active = raft.prs().iter().filter(|(_, p)| p.recent_active);
            self.previously_active
                .extend(active.map(|(id, _)| NodeId(*id)));
        }
    }

    /// On the leader: true if the member has answered in this election period or in the previous one.
    fn was_recently_active(&self, node: NodeId) -> bool {
        let progress = self.raw.raft.prs().get(node.0);
        progress.is_some_and(|p| p.recent_active || self.previously_active.contains(&node))
    }

    /// Schedules a record of the commit index if no later entry carries it to the log for a while.
    fn schedule_commit_record(&mut self) {
        if self.raw.raft.raft_log.committed <= self.logged_commit {
            self.commit_lag_ticks = 0;
            return;
        }
        self.commit_lag_ticks += 1;
        if self.commit_lag_ticks >= COMMIT_RECORD_TICKS {
            self.commit_lag_ticks = 0;
            self.commit_record_due = true;
        }
    }

    fn expire_election_in(&mut self, ticks: usize) {
        let timeout = self.raw.raft.randomized_election_timeout();
        self.raw.raft.election_elapsed = timeout.saturating_sub(ticks.max(1));
    }

    /// The leader is known to be down: makes this follower campaign within `ticks`.
    pub(crate) fn hurry_election(&mut self, ticks: usize, rng: &mut SeededRng) {
        if self.installing || self.is_leader() {
            return;
        }
        let term = self.raw.raft.term;
        if self.raw.raft.state == StateRole::Follower {
            // Forgets the leader, so that this node also grants votes to others. raft-rs draws a timeout here
            // without a change of role.
            self.raw.raft.become_follower(term, 0);
            self.draw_election_timeout(rng);
        }
        self.draw_election_timeout(rng);
        self.election_hurried = true;
        self.expire_election_in(ticks);
    }

    /// Ends hurried elections: there is a leader.
    pub(crate) fn clear_hurry(&mut self) {
        self.election_hurried = false;
    }

    /// Handles a message from a peer.
    pub(crate) fn step(
        &mut self,
        mut m: Message,
        rng: &mut SeededRng,
    ) -> Result<(), RefusedMessage> {
        if self.stopped || self.installing || self.departing {
            return Err(RefusedMessage("group accepts no messages now"));
        }
        guard::check_floor(self.vote_floor, &m)?;
        if m.get_msg_type() == MessageType::MsgTimeoutNow && self.is_below_floor() {
            return Err(RefusedMessage(
                "log ends before the log of the deleted replica",
            ));
        }
        guard::check(&self.raw, &mut m)?;
        let result = self.raw.step(m);
        self.refresh_election_timeout(rng);
        result.map_err(|_| RefusedMessage("raft-rs refused the message"))
    }

    pub(crate) fn propose(
        &mut self,
        command: Bytes,
        limits: &HostLimits,
    ) -> Result<(), ProposeError> {
        if !self.is_leader() || self.stopped {
            return Err(ProposeError::NotLeader {
                leader: self.leader().filter(|_| !self.is_leader()),
            });
        }
        let tail = self.raw.raft.uncommitted_size() + self.proposal_bytes;
        let full = tail > 0 && tail + command.len() > limits.max_uncommitted_bytes;
        let waits_for_all = planted::is(Bug::EveryReplicaNeeded)
            && self.raw.raft.prs().iter().any(|(_, p)| !p.recent_active);
        if full
            || self.is_recovering_majority()
            || self.raw.raft.lead_transferee.is_some()
            || waits_for_all
        {
            return Err(ProposeError::Overloaded);
        }
        self.proposal_bytes += command.len();
        let mut e = eraftpb::Entry::default();
        e.data = command;
        self.proposals.push(e);
        Ok(())
    }

    /// Gives the proposals to raft-rs. They are dropped if this node is no longer the leader, as
    /// [`crate::RaftHost::propose`] documents.
    fn submit(&mut self) {
        if self.proposals.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.proposals);
        self.proposal_bytes = 0;
        if !self.is_leader() {
            return;
        }
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgPropose);
        m.from = self.raw.raft.id;
        m.set_entries(entries.into());
        // Refused only without a leader; the commands are then lost, as documented.
        let _ = self.raw.step(m);
        self.send_burst();
    }

    /// Sends a large burst at once, as far as the followers' windows allow. raft-rs would send one message
    /// and the rest only after its acknowledgement.
    fn send_burst(&mut self) {
        let last = self.raw.raft.raft_log.last_index();
        let me = self.raw.raft.id;
        let mut peers: Vec<u64> = self.raw.raft.prs().iter().map(|(id, _)| *id).collect();
        peers.retain(|id| *id != me);
        for id in peers {
            let more = |p: &raft::Progress| {
                p.state == ProgressState::Replicate && !p.is_paused() && p.next_idx <= last
            };
            while self.raw.raft.prs().get(id).is_some_and(more) {
                let before = self.raw.raft.prs().get(id).map(|p| p.next_idx);
                self.raw.raft.send_append(id);
                if self.raw.raft.prs().get(id).map(|p| p.next_idx) == before {
                    // The log could not be read.
                    break;
                }
            }
        }
    }

    /// True once, when a group of one may elect itself without waiting for an election timeout.
    fn may_lead_at_once(&mut self) -> bool {
        let ready = self.singleton
            && !self.stopped
            && !self.must_not_campaign()
            && self.unapplied.is_empty()
            && self.raw.raft.prs().is_singleton()
            && self.raw.raft.promotable()
            && self.raw.raft.state == StateRole::Follower;
        self.singleton &= !ready;
        ready
    }

    pub(crate) fn change_membership(
        &mut self,
        change: crate::MembershipChange,
    ) -> Result<(), ProposeError> {
        use crate::MembershipChange::{AddLearner, Promote, Remove};
        if !self.is_leader() || self.stopped {
            return Err(ProposeError::NotLeader {
                leader: self.leader().filter(|_| !self.is_leader()),
            });
        }
        if self.raw.raft.has_pending_conf() {
            return Err(ProposeError::ChangeInProgress);
        }
        let current = &self.membership;
        let (AddLearner(node) | Promote(node) | Remove(node)) = change;
        let is_voter = current.voters.contains(&node);
        let is_learner = current.learners.contains(&node);
        match change {
            AddLearner(n) if n.0 == 0 => return Err(ProposeError::InvalidChange),
            AddLearner(_) if is_voter || is_learner => return Ok(()),
            AddLearner(_)
                if current.voters.len() + current.learners.len() >= crate::MAX_MEMBERS =>
            {
                return Err(ProposeError::InvalidChange);
            }
            Promote(_) if is_voter => return Ok(()),
            Promote(_) if !is_learner => return Err(ProposeError::InvalidChange),
            Remove(_) if !is_voter && !is_learner => return Ok(()),
            Remove(_) if is_voter && current.voters.len() == 1 => {
                return Err(ProposeError::InvalidChange);
            }
            _ => {}
        }
        self.submit();
        let mut e = eraftpb::Entry::default();
        e.set_entry_type(EntryType::EntryConfChange);
        let adds_learner = matches!(change, AddLearner(_)) && self.id.0 != 0;
        e.data = match adds_learner && planted::is(Bug::QueueLearnerVotes) {
            true => entry::encode_change(Promote(node)),
            false => entry::encode_change(change),
        };
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgPropose);
        m.from = self.raw.raft.id;
        m.set_entries(vec![e].into());
        self.raw.step(m).map_err(|_| ProposeError::Overloaded)
    }

    pub(crate) fn transfer_leader(&mut self, to: NodeId) -> Result<(), ProposeError> {
        if !self.is_leader() || self.stopped {
            return Err(ProposeError::NotLeader {
                leader: self.leader().filter(|_| !self.is_leader()),
            });
        }
        if !self.membership.voters.contains(&to) {
            return Err(ProposeError::InvalidChange);
        }
        self.submit();
        self.raw.transfer_leader(to.0);
        Ok(())
    }

    /// Tells raft-rs that messages to a peer may be lost, so it probes the peer.
    pub(crate) fn report_unreachable(&mut self, node: NodeId) {
        if self.is_leader() {
            self.raw.report_unreachable(node.0);
        }
    }

    pub(crate) fn report_transfer(&mut self, to: NodeId, done: bool) {
        let status = match done {
            true => SnapshotStatus::Finish,
            false => SnapshotStatus::Failure,
        };
        self.raw.report_snapshot(to.0, status);
    }

    /// Offers raft-rs a leader's checkpoint that is durable on this node's disk. Its contents are committed,
    /// so the checkpoint counts even if that leader has been replaced meanwhile.
    pub(crate) fn offer_checkpoint(
        &mut self,
        from: NodeId,
        term: u64,
        checkpoint: Checkpoint,
        state: Bytes,
        rng: &mut SeededRng,
    ) {
        let raft = &self.raw.raft;
        let at = checkpoint.position.index;
        let is_useful = raft.state != StateRole::Leader && at > raft.raft_log.committed;
        if !is_useful || self.installing || self.stopped {
            return;
        }
        let outdated = raft.term > term;
        let leader = raft.leader_id;
        let from = if outdated && leader != 0 {
            NodeId(leader)
        } else {
            from
        };
        let m = self.snapshot_message(from, raft.term.max(term), &checkpoint);
        self.incoming = Some((checkpoint, state));
        // It cannot fail: the conditions of the guard were checked above.
        let _ = self.raw.step(m);
        if outdated && leader == 0 {
            self.raw.raft.leader_id = 0;
        }
        self.refresh_election_timeout(rng);
        if self.raw.snap().is_none() {
            // The log already contained the checkpoint's position; only its commit index advanced.
            self.incoming = None;
        }
    }

    fn snapshot_message(&self, from: NodeId, term: u64, checkpoint: &Checkpoint) -> Message {
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgSnapshot);
        m.from = from.0;
        m.to = self.raw.raft.id;
        m.term = term;
        let mut snapshot = checkpoint.to_raft();
        let me = NodeId(m.to);
        let members = &checkpoint.membership;
        if !members.voters.contains(&me) && !members.learners.contains(&me) {
            // The checkpoint is older than this node's membership, and the entry that adds this node follows.
            // raft-rs requires the node to be a member now, and a learner has no vote.
            let state = snapshot.mut_metadata().mut_conf_state();
            state.learners.push(me.0);
        }
        m.set_snapshot(snapshot);
        m
    }

    /// Handles an offered checkpoint that this log already covers: raft-rs answers with this log's position.
    /// Returns false if the log does not cover it.
    pub(crate) fn already_covers(
        &mut self,
        from: NodeId,
        term: u64,
        checkpoint: &Checkpoint,
        rng: &mut SeededRng,
    ) -> bool {
        let raft = &self.raw.raft;
        let in_log = raft.state != StateRole::Leader
            && term >= raft.term
            && checkpoint.position.index <= raft.raft_log.committed;
        let second_leader = term == raft.term && raft.leader_id != 0 && raft.leader_id != from.0;
        if !in_log || second_leader || self.installing || self.stopped {
            return false;
        }
        let at = checkpoint.position;
        let known = self.store().term_of(at.index);
        if at.index >= self.store().compacted().index && known != Some(at.term) {
            return false;
        }
        let m = self.snapshot_message(from, term, checkpoint);
        // At or below the commit index raft-rs only answers.
        let _ = self.raw.step(m);
        self.refresh_election_timeout(rng);
        true
    }

    /// True if nothing is in progress, so the leader needs no heartbeats.
    pub(crate) fn is_settled(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.unpersisted == 0
            && self.proposals.is_empty()
            && self.unapplied.is_empty()
            && !self.installing
            && log.committed == log.last_index()
            && self.applied == log.committed
            && self.logged_commit == log.committed
            && self.raw.raft.lead_transferee.is_none()
            && !self.raw.raft.has_pending_conf()
    }

    /// On the leader: true if `node` has all entries and knows that they are committed.
    pub(crate) fn is_caught_up(&self, node: NodeId) -> bool {
        let commit = self.raw.raft.raft_log.committed;
        self.raw.raft.prs().get(node.0).is_some_and(|p| {
            // A probing follower may be caught up too: if it has everything, no further message ends its
            // probing state.
            p.state != ProgressState::Snapshot && p.matched >= commit && p.committed_index >= commit
        })
    }

    /// Records the commit index in the log, so that a restarted node knows it without asking other members.
    pub(crate) fn record_commit(&mut self, sink: &mut OutputBuffer) {
        let committed = self.raw.raft.raft_log.committed;
        if committed <= self.logged_commit || self.installing {
            return;
        }
        self.record_hard_state(sink);
        sink.waiting.push(PendingAction::Commit {
            group: self.id,
            epoch: self.epoch,
            commit: committed,
        });
    }

    fn record_hard_state(&mut self, sink: &mut OutputBuffer) {
        let state = self.raw.raft.hard_state();
        self.logged_commit = state.commit;
        let vote = match planted::is(Bug::VoteNotPersisted) {
            true => 0,
            false => state.vote,
        };
        sink.record(
            self.id,
            RecordBody::HardState {
                term: state.term,
                vote,
                commit: state.commit,
            },
        );
    }

    pub(crate) fn commit_durable(&mut self, commit: u64) {
        self.durable_commit = self.durable_commit.max(commit);
    }

    /// Asks the owner for a checkpoint if the log since the last one exceeds its limit.
    pub(crate) fn request_checkpoint_if_due(
        &mut self,
        limits: &HostLimits,
        sink: &mut OutputBuffer,
    ) {
        let entries = limits.checkpoint_entries.max(self.last_live_count / 2);
        let due = self.log_bytes >= limits.checkpoint_bytes || self.log_entries >= entries;
        if due && !self.checkpoint_requested && !self.is_checkpoint_in_progress() {
            self.request_checkpoint(sink);
        }
    }

    /// True if entries were appended since the last checkpoint.
    pub(crate) fn has_new_entries(&self) -> bool {
        self.log_entries > 0
    }

    pub(crate) fn is_checkpoint_in_progress(&self) -> bool {
        self.checkpointing || self.checkpoint_waiting.is_some()
    }

    pub(crate) fn request_checkpoint(&mut self, sink: &mut OutputBuffer) {
        if self.applied > self.store().checkpoint().position.index && !self.stopped {
            self.checkpoint_requested = true;
            sink.out.push(HostOutput::CheckpointDue { group: self.id });
        }
    }

    /// The checkpoint supplied cannot be used now; the owner will be asked again.
    pub(crate) fn clear_checkpoint_request(&mut self) {
        self.checkpoint_requested = false;
    }

    /// The owner supplied a checkpoint.
    pub(crate) fn begin_checkpoint(&mut self) {
        self.checkpoint_requested = false;
        self.log_bytes = 0;
        self.log_entries = 0;
    }

    pub(crate) fn set_last_live_count(&mut self, live: u64) {
        self.last_live_count = live;
    }

    pub(crate) fn status(&self) -> GroupStatus {
        let raft = &self.raw.raft;
        let is_leader = self.is_leader();
        let mut matched = Vec::new();
        let mut active = Vec::new();
        if is_leader {
            for (id, progress) in raft.prs().iter() {
                matched.push((NodeId(*id), progress.matched));
                let node = NodeId(*id);
                if *id == raft.id || self.was_recently_active(node) {
                    active.push(node);
                }
            }
            matched.sort_unstable();
            active.sort_unstable();
        }
        GroupStatus {
            term: raft.term,
            leader: self.leader(),
            is_leader,
            is_candidate: matches!(raft.state, StateRole::PreCandidate | StateRole::Candidate),
            membership: self.membership.clone(),
            last_term: raft.raft_log.last_term(),
            commit: raft.raft_log.committed,
            applied: self.applied,
            checkpoint: self.store().checkpoint().position.index,
            first_index: raft.raft_log.first_index(),
            last_index: raft.raft_log.last_index(),
            persisted: raft.raft_log.persisted,
            active,
            matched,
        }
    }
}
