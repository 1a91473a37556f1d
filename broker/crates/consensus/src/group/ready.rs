//! Processing of raft-rs `Ready` states: records for the log, messages for peers, entries for the state
//! machine.

use super::{
    Bytes, CommittedEntry, ConfChangeType, Group, HostOutput, MEMBERSHIP, NodeId, OutputBuffer,
    RecordBody,
};
use super::{PendingAction, entry};
use env::planted::{self, Bug};
use raft::Ready;
use raft::eraftpb::Message;

/// Members that raft-rs wants to send a snapshot to.
pub(super) type CheckpointTargets = Vec<NodeId>;

impl Group {
    /// Processes everything raft-rs has ready. Returns the members that need this leader's checkpoint.
    pub(crate) fn advance(&mut self, sink: &mut OutputBuffer) -> CheckpointTargets {
        let mut targets = Vec::new();
        if self.stopped {
            return targets;
        }
        if let Some(state) = self.restore.take() {
            self.emit_restore(state, sink);
        } else if !self.membership_reported {
            self.emit_membership(sink);
        }
        self.submit();
        if self.is_recovering_majority() {
            self.continue_recovery();
        }
        if !self.process_all_ready(sink, &mut targets) {
            return targets;
        }
        if self.is_recovering_majority()
            && self.continue_recovery()
            && !self.process_all_ready(sink, &mut targets)
        {
            return targets;
        }
        if self.may_lead_at_once() {
            // It cannot fail: a single voter has no peer that could refuse.
            let _ = self.raw.campaign();
            self.process_all_ready(sink, &mut targets);
        }
        targets
    }

    /// Returns false if the group had to stop.
    fn process_all_ready(
        &mut self,
        sink: &mut OutputBuffer,
        targets: &mut CheckpointTargets,
    ) -> bool {
        while self.raw.has_ready() {
            let ready = self.raw.ready();
            self.process_ready(ready, sink, targets);
            if let Some(error) = self.store().take_fault() {
                self.stop(error, sink);
                return false;
            }
        }
        // Retries entries that could not be applied before. Only here are all entries on their way to the
        // log, so that a recorded commit index never exceeds them.
        self.apply(sink);
        if std::mem::take(&mut self.commit_record_due) {
            self.record_commit(sink);
        }
        true
    }

    pub(crate) fn stop(&mut self, error: crate::ReadError, sink: &mut OutputBuffer) {
        self.stopped = true;
        sink.out.push(HostOutput::Failed {
            group: self.id,
            error,
        });
    }

    fn process_ready(
        &mut self,
        mut ready: Ready,
        sink: &mut OutputBuffer,
        targets: &mut CheckpointTargets,
    ) {
        let messages = ready.take_messages();
        let persisted = ready.take_persisted_messages();
        let mut committed = ready.take_committed_entries();
        let number = ready.number();
        let before = sink.records.len();
        let has_snapshot = !ready.snapshot().is_empty();
        if has_snapshot {
            self.install(sink);
        }
        let entries = ready.take_entries();
        let entries: Vec<wal::Entry> = entries.into_iter().map(entry::from_raft).collect();
        for e in &entries {
            self.log_bytes += e.data.len() as u64 + 32;
            self.log_entries += 1;
            sink.record(self.id, RecordBody::Entry(e.clone()));
        }
        let newer_commit = self.raw.raft.raft_log.committed > self.logged_commit;
        let state_changed = ready.must_sync() && ready.hs().is_some();
        if state_changed || has_snapshot || (newer_commit && !entries.is_empty()) {
            self.record_hard_state(sink);
        }
        if planted::is(Bug::LeaderAnswersAlone) {
            self.apply_before_commit(&entries, &mut committed);
        }
        self.raw.mut_store().append(entries.into_iter());
        self.raw.advance_append_async(ready);

        self.send(messages, sink, targets);
        let has_records = sink.records.len() > before;
        if has_records || self.unpersisted > 0 {
            self.unpersisted += 1;
            sink.waiting.push(PendingAction::Ready {
                group: self.id,
                epoch: self.epoch,
                number,
                commit: self.logged_commit,
                messages: persisted,
            });
        } else {
            self.raw.on_persist_ready(number);
            self.sync_applied();
            self.send(persisted, sink, targets);
        }
        self.emit_leadership(sink);
        self.unapplied
            .extend(committed.into_iter().map(entry::from_raft));
        self.apply(sink);
    }

    /// [`Bug::LeaderAnswersAlone`]: a leader applies its entries before they commit, and does not apply them
    /// again afterwards.
    fn apply_before_commit(
        &mut self,
        entries: &[wal::Entry],
        committed: &mut Vec<raft::eraftpb::Entry>,
    ) {
        committed.retain(|e| e.index > self.applied);
        let next = committed.last().map_or(self.applied, |e| e.index) + 1;
        let is_plain = entries.iter().all(|e| e.kind != MEMBERSHIP);
        let is_next = entries.first().is_some_and(|e| e.index == next);
        if self.is_leader() && is_plain && is_next && self.unapplied.is_empty() {
            committed.extend(entries.iter().map(entry::to_raft));
        }
    }

    /// Handles a batch that became durable.
    pub(crate) fn handle_persisted(
        &mut self,
        number: u64,
        commit: u64,
        messages: Vec<Message>,
        sink: &mut OutputBuffer,
    ) {
        self.commit_durable(commit);
        debug_assert!(self.unpersisted > 0, "a batch became durable twice");
        self.unpersisted = self.unpersisted.saturating_sub(1);
        self.raw.on_persist_ready(number);
        let raft_log = &self.raw.raft.raft_log;
        if self.installing && raft_log.persisted >= self.store().compacted().index {
            self.installing = false;
        }
        self.sync_applied();
        sink.send(self.id, messages);
    }

    fn send(
        &mut self,
        messages: Vec<Message>,
        sink: &mut OutputBuffer,
        targets: &mut CheckpointTargets,
    ) {
        if messages.is_empty() {
            return;
        }
        let mut outbound = Vec::with_capacity(messages.len());
        for m in messages {
            if m.get_msg_type() == raft::eraftpb::MessageType::MsgSnapshot {
                targets.push(NodeId(m.to));
            } else {
                outbound.push(m);
            }
        }
        sink.send(self.id, outbound);
    }

    /// raft-rs accepted the leader's checkpoint, whose files are durable already.
    fn install(&mut self, sink: &mut OutputBuffer) {
        let Some((checkpoint, state)) = self.incoming.take() else {
            debug_assert!(false, "raft-rs restored a checkpoint that was not offered");
            return;
        };
        self.installing = true;
        self.unapplied.clear();
        let at = checkpoint.position;
        let founding = checkpoint.is_founding();
        if founding && !checkpoint.on_disk {
            let e = entry::founding_entry(&checkpoint.membership);
            sink.record(self.id, RecordBody::Entry(e));
        } else {
            sink.record(
                self.id,
                RecordBody::Checkpointed {
                    index: at.index,
                    term: at.term,
                },
            );
        }
        self.membership = checkpoint.membership.clone();
        self.raw.mut_store().reset(checkpoint);
        self.applied = at.index;
        self.member_since = at.index;
        self.last_command = at.index;
        self.log_bytes = 0;
        self.log_entries = 0;
        self.checkpoint_requested = false;
        self.flush = None;
        match founding {
            true => self.emit_membership(sink),
            false => self.emit_restore(state, sink),
        }
    }

    fn emit_restore(&mut self, state: Bytes, sink: &mut OutputBuffer) {
        sink.out.push(HostOutput::Restore {
            group: self.id,
            index: self.applied,
            state,
        });
        self.emit_membership(sink);
    }

    fn emit_membership(&mut self, sink: &mut OutputBuffer) {
        self.membership_reported = true;
        sink.out.push(HostOutput::Membership {
            group: self.id,
            membership: self.membership.clone(),
        });
    }

    fn emit_leadership(&mut self, sink: &mut OutputBuffer) {
        let now = (self.term(), self.leader(), self.is_leader());
        if self.reported_leadership == Some(now) {
            return;
        }
        let led_before = self.reported_leadership.is_some_and(|(_, _, leads)| leads);
        self.reported_leadership = Some(now);
        let (term, leader, is_leader) = now;
        sink.elections_won += u64::from(is_leader && !led_before);
        sink.out.push(HostOutput::Leadership {
            group: self.id,
            term,
            leader,
            is_leader,
        });
    }

    /// Delivers committed entries. A membership change waits until its commit index is durable: a node that
    /// forgot it in a crash would continue with members that the others have replaced.
    fn apply(&mut self, sink: &mut OutputBuffer) {
        let mut batch = Vec::new();
        while let Some(next) = self.unapplied.front() {
            if next.kind == MEMBERSHIP && next.index > self.durable_commit {
                self.record_commit(sink);
                break;
            }
            let Some(e) = self.unapplied.pop_front() else {
                break;
            };
            debug_assert!(e.index > self.applied, "an entry is applied twice");
            self.applied = e.index;
            if e.kind == MEMBERSHIP {
                self.emit_committed(&mut batch, sink);
                self.apply_change(e.data, sink);
            } else if !e.data.is_empty() {
                self.last_command = e.index;
                batch.push(CommittedEntry {
                    index: e.index,
                    term: e.term,
                    command: e.data,
                });
            }
        }
        self.emit_committed(&mut batch, sink);
        self.sync_applied();
        if self.store().mem_bytes() > 0 {
            let applied = self.applied;
            self.raw.mut_store().drop_flushed(applied);
        }
    }

    fn emit_committed(&mut self, batch: &mut Vec<CommittedEntry>, sink: &mut OutputBuffer) {
        if !batch.is_empty() {
            sink.out.push(HostOutput::Committed {
                group: self.id,
                entries: std::mem::take(batch),
            });
        }
    }

    /// Advances raft-rs's applied index as far as raft-rs allows: to entries that are durable and committed.
    fn sync_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let applied = self.applied.min(log.persisted).min(log.committed);
        if applied > log.applied() {
            self.raw.advance_apply_to(applied);
        }
    }

    fn apply_change(&mut self, data: Bytes, sink: &mut OutputBuffer) {
        // raft-rs must know about all earlier entries first.
        self.sync_applied();
        let Some(change) = entry::decode_change(data) else {
            return;
        };
        let node = NodeId(change.node_id);
        if change.get_change_type() == ConfChangeType::AddLearnerNode
            && self.membership.voters.contains(&node)
        {
            // The change was proposed against an older membership. Adding a learner never demotes a voter.
            return;
        }
        if self.is_lost(node) && change.get_change_type() != ConfChangeType::RemoveNode {
            // The log adds a member that is lost by now, and its removal follows. raft-rs must not count it.
            self.membership = entry::after_change(&self.membership, &change);
            self.member_since = self.applied;
            self.emit_membership(sink);
            return;
        }
        let Ok(state) = self.raw.apply_conf_change(&change) else {
            // The change is impossible, and every member ignores it.
            return;
        };
        self.membership = match self.is_recovering_majority() {
            // raft-rs has left out all lost members, and the log only those up to here.
            true => entry::after_change(&self.membership, &change),
            false => entry::from_conf_state(&state),
        };
        self.member_since = self.applied;
        self.emit_membership(sink);
        let me = NodeId(self.raw.raft.id);
        if self.is_leader() && !self.membership.voters.contains(&me) {
            // raft-rs would remain leader without a progress entry for itself and panic.
            let term = self.term();
            self.raw.raft.bcast_append();
            self.raw.raft.become_follower(term, 0);
        }
    }
}
