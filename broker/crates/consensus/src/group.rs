//! One group's replica: raft-rs, its log, and what has been told about it.

use crate::entry::{self, MEMBERSHIP, Position};
use crate::guard::{self, Refused};
use crate::sink::{Sink, Waiting};
use crate::snapshot::Checkpoint;
use crate::store::LogStore;
use crate::{Committed, GroupId, GroupStatus, HostOutput, Limits, Membership, ProposeError};
use bytes::Bytes;
use env::planted::{self, Bug};
use env::{NodeId, Rng, SeededRng};
use raft::eraftpb::{self, ConfChangeType, EntryType, Message, MessageType};
use raft::{Config, ProgressState, RawNode, SnapshotStatus, StateRole};
use std::collections::VecDeque;
use wal::RecordBody;

mod ready;

/// raft-rs keeps no count when there is no limit; the real one is ours.
const COUNTED_BUT_UNLIMITED: u64 = u64::MAX / 2;

/// How long a commit index may be unrecorded.
const COMMIT_RECORD_TICKS: u32 = 5;

/// Entries that are to be in segments.
#[derive(Clone, Copy, Debug)]
pub struct FlushWanted {
    pub upto: u64,
    /// Starts without a newer checkpoint from this tick on.
    pub at_tick: u64,
}

pub struct Group {
    pub id: GroupId,
    /// Tells this replica from an earlier one of the same group.
    pub epoch: u64,
    pub raw: RawNode<LogStore>,
    election: (usize, usize),
    /// Taken in, not yet given to raft-rs: a burst goes into one message.
    proposals: Vec<eraftpb::Entry>,
    proposal_bytes: usize,
    /// Batches that raft-rs gave out and that are not durable yet.
    pub unpersisted: usize,
    /// Committed entries that wait until a commit index is on record.
    stalled: VecDeque<wal::Entry>,
    logged_commit: u64,
    durable_commit: u64,
    /// A received checkpoint that raft-rs is being told about.
    incoming: Option<(Checkpoint, Bytes)>,
    /// A leader's checkpoint took the log's place and that is not durable yet.
    pub installing: bool,
    seen_role: (u64, StateRole),
    told: Option<(u64, Option<NodeId>, bool)>,
    pub membership: Membership,
    /// The index from which on these are the members.
    pub member_since: u64,
    pub applied: u64,
    /// The newest entry that the owner was given: its state has not changed since.
    pub last_command: u64,
    /// Since the last checkpoint.
    log_bytes: u64,
    log_entries: u64,
    last_live: u64,
    due_told: bool,
    /// A job of this group is on the disk.
    pub busy: bool,
    /// A checkpoint that its owner gave: until its job may start, and while it runs.
    pub checkpoint_waiting: Option<segment::Checkpoint>,
    pub checkpointing: bool,
    pub flush: Option<FlushWanted>,
    /// Replaced segments that a transfer may still read.
    pub doomed: Vec<segment::SegmentName>,
    /// Memory as the host last counted it.
    pub counted_bytes: usize,
    pub dirty: bool,
    pub awake: bool,
    pub quiet_ticks: u32,
    /// Recovered state that is still to be handed out.
    pub restore: Option<Bytes>,
    /// The commit index is to be put on record although nothing else is.
    pub commit_wanted: bool,
    commit_lag_ticks: u32,
    /// On the leader: members that were heard from in the period before this one. raft-rs starts each with nobody.
    heard_before: Vec<NodeId>,
    /// The leader is known to be down: asks again soon when nobody wins.
    hurried: bool,
    /// The members were told.
    introduced: bool,
    /// The end of the log that an earlier replica of this node had: who has less gets no vote.
    pub vote_floor: Option<Position>,
    /// It is about to be deleted.
    pub departing: bool,
    /// Begins as a group of one: there is nobody to wait for.
    alone: bool,
    pub stopped: bool,
}

impl Group {
    pub fn new(
        id: GroupId,
        epoch: u64,
        node: NodeId,
        limits: &Limits,
        store: LogStore,
        logger: &slog::Logger,
    ) -> raft::Result<Group> {
        let begin = store.compacted().index;
        let membership = store.checkpoint().membership.clone();
        let log = (store.mem_bytes() as u64, store.last() - begin);
        let alone = membership.voters == [node];
        let config = Config {
            id: node.0,
            election_tick: limits.election_ticks,
            heartbeat_tick: limits.heartbeat_ticks,
            applied: begin,
            max_size_per_msg: limits.max_message_bytes,
            max_inflight_msgs: limits.max_inflight_messages,
            check_quorum: true,
            pre_vote: true,
            // raft-rs 0.7.0 would add entries to an empty message of the same turn although others are between
            // them. A burst of proposals is one message here anyway.
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
            stalled: VecDeque::new(),
            logged_commit: commit,
            durable_commit: commit,
            incoming: None,
            installing: false,
            seen_role: (u64::MAX, StateRole::Follower),
            told: None,
            membership,
            member_since: begin,
            applied: begin,
            last_command: begin,
            log_bytes: log.0,
            log_entries: log.1,
            last_live: 0,
            due_told: false,
            busy: false,
            checkpoint_waiting: None,
            checkpointing: false,
            flush: None,
            doomed: Vec::new(),
            counted_bytes: 0,
            dirty: false,
            awake: true,
            quiet_ticks: 0,
            restore: None,
            commit_wanted: false,
            commit_lag_ticks: 0,
            heard_before: Vec::new(),
            hurried: false,
            introduced: false,
            vote_floor: None,
            departing: false,
            alone,
            stopped: false,
        })
    }

    pub fn store(&self) -> &LogStore {
        self.raw.store()
    }

    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub fn leader(&self) -> Option<NodeId> {
        Some(self.raw.raft.leader_id)
            .filter(|id| *id != 0)
            .map(NodeId)
    }

    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Up to here entries are durable and applied: they may leave the write-ahead log.
    pub fn movable(&self) -> u64 {
        self.applied.min(self.raw.raft.raft_log.persisted)
    }

    /// raft-rs draws election timeouts from a generator that no seed reaches. Each change of term or role means it
    /// did; ours takes its place.
    pub fn retime(&mut self, rng: &mut SeededRng) {
        let role = (self.raw.raft.term, self.raw.raft.state);
        if role != self.seen_role {
            self.seen_role = role;
            self.heard_before.clear();
            self.draw_timeout(rng);
        }
    }

    fn draw_timeout(&mut self, rng: &mut SeededRng) {
        let (min, max) = self.election;
        let drawn = min + rng.below((max - min) as u64) as usize;
        self.raw.raft.set_randomized_election_timeout(drawn);
    }

    /// A group of one elects itself in one step, for which its log must be durable.
    fn must_not_campaign(&self) -> bool {
        let alone = self.raw.raft.prs().is_singleton();
        self.installing
            || self.is_below_floor()
            || (alone && !self.is_leader() && self.unpersisted > 0)
    }

    /// An earlier replica of this node held more. What this one has of the members may be as old as what it has of
    /// the log.
    fn is_below_floor(&self) -> bool {
        let Some(floor) = self.vote_floor else {
            return false;
        };
        let log = &self.raw.raft.raft_log;
        let index = log.last_index();
        let term = log.term(index).unwrap_or(0);
        (term, index) < (floor.term, floor.index)
    }

    /// One tick passed.
    pub fn tick(&mut self, rng: &mut SeededRng) {
        if self.stopped || self.departing || self.must_not_campaign() {
            return;
        }
        self.note_heard();
        self.raw.tick();
        self.retime(rng);
        let campaigning = matches!(
            self.raw.raft.state,
            StateRole::PreCandidate | StateRole::Candidate
        );
        if campaigning && self.raw.raft.election_elapsed == 0 {
            // Two that asked at the same time must not do so for ever.
            self.draw_timeout(rng);
            if self.hurried {
                self.expire_in(3 + rng.below(4) as usize);
            }
        }
        self.watch_commit_record();
    }

    /// Before a tick: keeps who was heard from in this period if the tick is its last.
    fn note_heard(&mut self) {
        let raft = &self.raw.raft;
        if self.is_leader() && raft.election_elapsed + 1 >= raft.election_timeout() {
            self.heard_before.clear();
            let heard = raft.prs().iter().filter(|(_, p)| p.recent_active);
            self.heard_before.extend(heard.map(|(id, _)| NodeId(*id)));
        }
    }

    /// On the leader: whether a member has answered in this period of the election time or in the one before.
    fn is_heard(&self, node: NodeId) -> bool {
        let progress = self.raw.raft.prs().get(node.0);
        progress.is_some_and(|p| p.recent_active || self.heard_before.contains(&node))
    }

    /// A commit index that no later entry carries to the log goes there by itself after a while.
    fn watch_commit_record(&mut self) {
        if self.raw.raft.raft_log.committed <= self.logged_commit {
            self.commit_lag_ticks = 0;
            return;
        }
        self.commit_lag_ticks += 1;
        if self.commit_lag_ticks >= COMMIT_RECORD_TICKS {
            self.commit_lag_ticks = 0;
            self.commit_wanted = true;
        }
    }

    fn expire_in(&mut self, ticks: usize) {
        let timeout = self.raw.raft.randomized_election_timeout();
        self.raw.raft.election_elapsed = timeout.saturating_sub(ticks.max(1));
    }

    /// The leader is known to be down: this follower asks for votes within `ticks`.
    pub fn hurry_election(&mut self, ticks: usize, rng: &mut SeededRng) {
        if self.installing || self.is_leader() {
            return;
        }
        let term = self.raw.raft.term;
        if self.raw.raft.state == StateRole::Follower {
            // Forgets the leader, so that it also grants others their votes. raft-rs draws a timeout without a
            // change of role here.
            self.raw.raft.become_follower(term, 0);
            self.draw_timeout(rng);
        }
        self.draw_timeout(rng);
        self.hurried = true;
        self.expire_in(ticks);
    }

    /// The leader works, or another one does.
    pub fn calm(&mut self) {
        self.hurried = false;
    }

    /// A message from a peer.
    pub fn step(&mut self, mut m: Message, rng: &mut SeededRng) -> Result<(), Refused> {
        if self.stopped || self.installing || self.departing {
            return Err(Refused("group takes no messages now"));
        }
        guard::check_floor(self.vote_floor, &m)?;
        if m.get_msg_type() == MessageType::MsgTimeoutNow && self.is_below_floor() {
            return Err(Refused("an earlier replica held more"));
        }
        guard::check(&self.raw, &mut m)?;
        let result = self.raw.step(m);
        self.retime(rng);
        result.map_err(|_| Refused("not for this member"))
    }

    pub fn propose(&mut self, command: Bytes, limits: &Limits) -> Result<(), ProposeError> {
        if !self.is_leader() || self.stopped {
            return Err(ProposeError::NotLeader {
                leader: self.leader().filter(|_| !self.is_leader()),
            });
        }
        let tail = self.raw.raft.uncommitted_size() + self.proposal_bytes;
        let full = tail > 0 && tail + command.len() > limits.max_uncommitted_bytes;
        if full || self.raw.raft.lead_transferee.is_some() {
            return Err(ProposeError::Overloaded);
        }
        self.proposal_bytes += command.len();
        let mut e = eraftpb::Entry::default();
        e.data = command;
        self.proposals.push(e);
        Ok(())
    }

    /// Gives raft-rs what was proposed. If this node leads no more, it is lost, as announced.
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
        // Refused only without a leader; then the commands are lost, as announced.
        let _ = self.raw.step(m);
        self.send_burst();
    }

    /// raft-rs sends one message for what was proposed and the rest when that is answered. A large burst goes out
    /// at once instead, as far as the followers' windows let it.
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

    /// Whether a group of one may elect itself without waiting for its clock.
    fn may_lead_at_once(&mut self) -> bool {
        let ready = self.alone
            && !self.stopped
            && !self.must_not_campaign()
            && self.stalled.is_empty()
            && self.raw.raft.prs().is_singleton()
            && self.raw.raft.promotable()
            && self.raw.raft.state == StateRole::Follower;
        self.alone &= !ready;
        ready
    }

    pub fn change_membership(
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
        let now = &self.membership;
        let (AddLearner(node) | Promote(node) | Remove(node)) = change;
        let is_voter = now.voters.contains(&node);
        let is_learner = now.learners.contains(&node);
        match change {
            AddLearner(n) if n.0 == 0 => return Err(ProposeError::InvalidChange),
            AddLearner(_) if is_voter || is_learner => return Ok(()),
            AddLearner(_) if now.voters.len() + now.learners.len() >= crate::MAX_MEMBERS => {
                return Err(ProposeError::InvalidChange);
            }
            Promote(_) if is_voter => return Ok(()),
            Promote(_) if !is_learner => return Err(ProposeError::InvalidChange),
            Remove(_) if !is_voter && !is_learner => return Ok(()),
            Remove(_) if is_voter && now.voters.len() == 1 => {
                return Err(ProposeError::InvalidChange);
            }
            _ => {}
        }
        self.submit();
        let mut e = eraftpb::Entry::default();
        e.set_entry_type(EntryType::EntryConfChange);
        let learns = matches!(change, AddLearner(_)) && self.id.0 != 0;
        e.data = match learns && planted::is(Bug::QueueLearnerVotes) {
            true => entry::encode_change(Promote(node)),
            false => entry::encode_change(change),
        };
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgPropose);
        m.from = self.raw.raft.id;
        m.set_entries(vec![e].into());
        self.raw.step(m).map_err(|_| ProposeError::Overloaded)
    }

    pub fn transfer_leader(&mut self, to: NodeId) -> Result<(), ProposeError> {
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

    /// A peer may have lost what was sent to it.
    pub fn report_unreachable(&mut self, node: NodeId) {
        if self.is_leader() {
            self.raw.report_unreachable(node.0);
        }
    }

    pub fn report_transfer(&mut self, to: NodeId, done: bool) {
        let status = match done {
            true => SnapshotStatus::Finish,
            false => SnapshotStatus::Failure,
        };
        self.raw.report_snapshot(to.0, status);
    }

    /// A leader's checkpoint is durable on this node's disk: tells raft-rs. What is in it is committed, so that it
    /// counts even if that leader has been replaced meanwhile.
    pub fn offer_checkpoint(
        &mut self,
        from: NodeId,
        term: u64,
        checkpoint: Checkpoint,
        state: Bytes,
        rng: &mut SeededRng,
    ) {
        let raft = &self.raw.raft;
        let at = checkpoint.position.index;
        let useful = raft.state != StateRole::Leader && at > raft.raft_log.committed;
        if !useful || self.installing || self.stopped {
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
        // It cannot fail: the guard's questions were answered above.
        let _ = self.raw.step(m);
        if outdated && leader == 0 {
            self.raw.raft.leader_id = 0;
        }
        self.retime(rng);
        if self.raw.snap().is_none() {
            // The log had what the checkpoint is about; its commit index moved on.
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
            // The checkpoint is from before this node came; the entry that brings it follows. raft-rs wants to
            // see it at once, and a learner has no say.
            let state = snapshot.mut_metadata().mut_conf_state();
            state.learners.push(me.0);
        }
        m.set_snapshot(snapshot);
        m
    }

    /// The leader offers a checkpoint that this log reaches beyond already: lets raft-rs tell it how far it is.
    /// False when that is not so.
    pub fn has_all_of(
        &mut self,
        from: NodeId,
        term: u64,
        checkpoint: &Checkpoint,
        rng: &mut SeededRng,
    ) -> bool {
        let raft = &self.raw.raft;
        let here = raft.state != StateRole::Leader
            && term >= raft.term
            && checkpoint.position.index <= raft.raft_log.committed;
        let second_leader = term == raft.term && raft.leader_id != 0 && raft.leader_id != from.0;
        if !here || second_leader || self.installing || self.stopped {
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
        self.retime(rng);
        true
    }

    /// Whether nothing is under way, so that the leader needs no heartbeats to find out.
    pub fn is_settled(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.unpersisted == 0
            && self.proposals.is_empty()
            && self.stalled.is_empty()
            && !self.installing
            && log.committed == log.last_index()
            && self.applied == log.committed
            && self.logged_commit == log.committed
            && self.raw.raft.lead_transferee.is_none()
            && !self.raw.raft.has_pending_conf()
    }

    /// On the leader: whether `node` has everything and knows that it is committed.
    pub fn is_caught_up(&self, node: NodeId) -> bool {
        let commit = self.raw.raft.raft_log.committed;
        self.raw.raft.prs().get(node.0).is_some_and(|p| {
            // A prober that has everything is not sent anything that would end its probing.
            p.state != ProgressState::Snapshot && p.matched >= commit && p.committed_index >= commit
        })
    }

    /// Puts the commit index on record, so that a restart knows it without the others.
    pub fn log_commit(&mut self, sink: &mut Sink) {
        let committed = self.raw.raft.raft_log.committed;
        if committed <= self.logged_commit || self.installing {
            return;
        }
        self.record_hard_state(sink);
        sink.waiting.push(Waiting::Commit {
            group: self.id,
            epoch: self.epoch,
            commit: committed,
        });
    }

    fn record_hard_state(&mut self, sink: &mut Sink) {
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

    pub fn commit_durable(&mut self, commit: u64) {
        self.durable_commit = self.durable_commit.max(commit);
    }

    /// Whether the log since the last checkpoint is over its bound.
    pub fn check_due(&mut self, limits: &Limits, sink: &mut Sink) {
        let entries = limits.checkpoint_entries.max(self.last_live / 2);
        let due = self.log_bytes >= limits.checkpoint_bytes || self.log_entries >= entries;
        if due && !self.due_told && !self.checkpoint_under_way() {
            self.tell_due(sink);
        }
    }

    /// Whether anything was applied since the last checkpoint.
    pub fn has_news(&self) -> bool {
        self.log_entries > 0
    }

    pub fn checkpoint_under_way(&self) -> bool {
        self.checkpointing || self.checkpoint_waiting.is_some()
    }

    pub fn tell_due(&mut self, sink: &mut Sink) {
        if self.applied > self.store().checkpoint().position.index && !self.stopped {
            self.due_told = true;
            sink.out.push(HostOutput::CheckpointDue { group: self.id });
        }
    }

    /// What was given cannot be used now; it will be asked for again.
    pub fn checkpoint_refused(&mut self) {
        self.due_told = false;
    }

    /// The owner gave a checkpoint.
    pub fn checkpoint_begins(&mut self) {
        self.due_told = false;
        self.log_bytes = 0;
        self.log_entries = 0;
    }

    pub fn checkpoint_ends(&mut self, live: u64) {
        self.last_live = live;
    }

    pub fn status(&self) -> GroupStatus {
        let raft = &self.raw.raft;
        let is_leader = self.is_leader();
        let mut matched = Vec::new();
        let mut active = Vec::new();
        if is_leader {
            for (id, progress) in raft.prs().iter() {
                matched.push((NodeId(*id), progress.matched));
                let node = NodeId(*id);
                if *id == raft.id || self.is_heard(node) {
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
