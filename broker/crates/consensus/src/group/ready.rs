//! Taking from raft-rs what it has to say: to the log, to peers, to the state machine.

use super::{
    Bytes, Committed, ConfChangeType, Group, HostOutput, MEMBERSHIP, NodeId, RecordBody, Sink,
};
use super::{Waiting, entry};
use env::planted::{self, Bug};
use raft::Ready;
use raft::eraftpb::Message;

/// Checkpoints raft-rs wants sent: to whom.
pub type WantedTransfers = Vec<NodeId>;

impl Group {
    /// Everything there is to do now. Returns who needs this leader's checkpoint.
    pub fn advance(&mut self, sink: &mut Sink) -> WantedTransfers {
        let mut wanted = Vec::new();
        if self.stopped {
            return wanted;
        }
        if let Some(state) = self.restore.take() {
            self.hand_out_checkpoint(state, sink);
        } else if !self.introduced {
            self.tell_membership(sink);
        }
        self.submit();
        if !self.take_all(sink, &mut wanted) {
            return wanted;
        }
        if self.may_lead_at_once() {
            // It cannot fail: there is nobody to refuse.
            let _ = self.raw.campaign();
            self.take_all(sink, &mut wanted);
        }
        wanted
    }

    /// False when the group had to stop.
    fn take_all(&mut self, sink: &mut Sink, wanted: &mut WantedTransfers) -> bool {
        while self.raw.has_ready() {
            let ready = self.raw.ready();
            self.take_ready(ready, sink, wanted);
            if let Some(error) = self.store().take_fault() {
                self.stop(error, sink);
                return false;
            }
        }
        // What could not be applied before may go now. Only here all entries are on their way to the log, so that
        // a commit index on record never goes beyond them.
        self.apply(sink);
        if std::mem::take(&mut self.commit_wanted) {
            self.log_commit(sink);
        }
        true
    }

    pub fn stop(&mut self, error: crate::ReadError, sink: &mut Sink) {
        self.stopped = true;
        sink.out.push(HostOutput::Failed {
            group: self.id,
            error,
        });
    }

    fn take_ready(&mut self, mut ready: Ready, sink: &mut Sink, wanted: &mut WantedTransfers) {
        let messages = ready.take_messages();
        let persisted = ready.take_persisted_messages();
        let mut committed = ready.take_committed_entries();
        let number = ready.number();
        let before = sink.records.len();
        let installs = !ready.snapshot().is_empty();
        if installs {
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
        if state_changed || installs || (newer_commit && !entries.is_empty()) {
            self.record_hard_state(sink);
        }
        if planted::is(Bug::LeaderAnswersAlone) {
            self.answer_alone(&entries, &mut committed);
        }
        self.raw.mut_store().append(entries.into_iter());
        self.raw.advance_append_async(ready);

        self.send(messages, sink, wanted);
        let wrote = sink.records.len() > before;
        if wrote || self.unpersisted > 0 {
            self.unpersisted += 1;
            sink.waiting.push(Waiting::Ready {
                group: self.id,
                epoch: self.epoch,
                number,
                commit: self.logged_commit,
                messages: persisted,
            });
        } else {
            self.raw.on_persist_ready(number);
            self.sync_applied();
            self.send(persisted, sink, wanted);
        }
        self.tell_leadership(sink);
        self.stalled
            .extend(committed.into_iter().map(entry::from_raft));
        self.apply(sink);
    }

    /// [`Bug::LeaderAnswersAlone`]: a leader's entries are applied as they come, and not again once committed.
    fn answer_alone(&mut self, entries: &[wal::Entry], committed: &mut Vec<raft::eraftpb::Entry>) {
        committed.retain(|e| e.index > self.applied);
        let next = committed.last().map_or(self.applied, |e| e.index) + 1;
        let plain = entries.iter().all(|e| e.kind != MEMBERSHIP);
        let follows = entries.first().is_some_and(|e| e.index == next);
        if self.is_leader() && plain && follows && self.stalled.is_empty() {
            committed.extend(entries.iter().map(entry::to_raft));
        }
    }

    /// A batch is durable.
    pub fn persisted(&mut self, number: u64, commit: u64, messages: Vec<Message>, sink: &mut Sink) {
        self.commit_durable(commit);
        self.unpersisted = self.unpersisted.saturating_sub(1);
        self.raw.on_persist_ready(number);
        let raft_log = &self.raw.raft.raft_log;
        if self.installing && raft_log.persisted >= self.store().compacted().index {
            self.installing = false;
        }
        self.sync_applied();
        sink.send(self.id, messages);
    }

    fn send(&mut self, messages: Vec<Message>, sink: &mut Sink, wanted: &mut WantedTransfers) {
        if messages.is_empty() {
            return;
        }
        let mut travel = Vec::with_capacity(messages.len());
        for m in messages {
            if m.get_msg_type() == raft::eraftpb::MessageType::MsgSnapshot {
                wanted.push(NodeId(m.to));
            } else {
                travel.push(m);
            }
        }
        sink.send(self.id, travel);
    }

    /// raft-rs took the leader's checkpoint, which is in files already.
    fn install(&mut self, sink: &mut Sink) {
        let Some((checkpoint, state)) = self.incoming.take() else {
            debug_assert!(false, "raft-rs restores only what it was offered");
            return;
        };
        self.installing = true;
        self.stalled.clear();
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
        self.due_told = false;
        self.flush = None;
        match founding {
            true => self.tell_membership(sink),
            false => self.hand_out_checkpoint(state, sink),
        }
    }

    fn hand_out_checkpoint(&mut self, state: Bytes, sink: &mut Sink) {
        sink.out.push(HostOutput::Restore {
            group: self.id,
            index: self.applied,
            state,
        });
        self.tell_membership(sink);
    }

    fn tell_membership(&mut self, sink: &mut Sink) {
        self.introduced = true;
        sink.out.push(HostOutput::Membership {
            group: self.id,
            membership: self.membership.clone(),
        });
    }

    fn tell_leadership(&mut self, sink: &mut Sink) {
        let now = (self.term(), self.leader(), self.is_leader());
        if self.told == Some(now) {
            return;
        }
        self.told = Some(now);
        let (term, leader, is_leader) = now;
        sink.out.push(HostOutput::Leadership {
            group: self.id,
            term,
            leader,
            is_leader,
        });
    }

    /// Hands out what is committed. A change of the members waits until the commit is on record: a node that forgot
    /// it in a crash would go on with members that the others have left behind.
    fn apply(&mut self, sink: &mut Sink) {
        let mut batch = Vec::new();
        while let Some(next) = self.stalled.front() {
            if next.kind == MEMBERSHIP && next.index > self.durable_commit {
                self.log_commit(sink);
                break;
            }
            let Some(e) = self.stalled.pop_front() else {
                break;
            };
            self.applied = e.index;
            if e.kind == MEMBERSHIP {
                self.hand_out(&mut batch, sink);
                self.apply_change(e.data, sink);
            } else if !e.data.is_empty() {
                self.last_command = e.index;
                batch.push(Committed {
                    index: e.index,
                    term: e.term,
                    command: e.data,
                });
            }
        }
        self.hand_out(&mut batch, sink);
        self.sync_applied();
        if self.store().mem_bytes() > 0 {
            let applied = self.applied;
            self.raw.mut_store().drop_flushed(applied);
        }
    }

    fn hand_out(&mut self, batch: &mut Vec<Committed>, sink: &mut Sink) {
        if !batch.is_empty() {
            sink.out.push(HostOutput::Committed {
                group: self.id,
                entries: std::mem::take(batch),
            });
        }
    }

    /// Tells raft-rs how far the state machine is, as soon as it can hear that.
    fn sync_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let applied = self.applied.min(log.persisted).min(log.committed);
        if applied > log.applied() {
            self.raw.advance_apply_to(applied);
        }
    }

    fn apply_change(&mut self, data: Bytes, sink: &mut Sink) {
        // raft-rs must have been told of all before it.
        self.sync_applied();
        let Some(change) = entry::decode_change(data) else {
            return;
        };
        let node = NodeId(change.node_id);
        if change.get_change_type() == ConfChangeType::AddLearnerNode
            && self.membership.voters.contains(&node)
        {
            // Decided against a state that has changed since; nobody is demoted by it.
            return;
        }
        let Ok(state) = self.raw.apply_conf_change(&change) else {
            // The same on every member: the change was impossible.
            return;
        };
        self.membership = entry::from_conf_state(&state);
        self.member_since = self.applied;
        self.tell_membership(sink);
        let me = NodeId(self.raw.raft.id);
        if self.is_leader() && !self.membership.voters.contains(&me) {
            // raft-rs would go on leading without a progress of its own, and panic over it.
            let term = self.term();
            self.raw.raft.bcast_append();
            self.raw.raft.become_follower(term, 0);
        }
    }
}
