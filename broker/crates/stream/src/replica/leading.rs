//! Leading: chunks from publishes, and confirms for sessions.

use super::{Role, StreamReplica};
use crate::fault::{self, Fault};
use crate::{MAX_UNWRITTEN_BYTES, MAX_WAITING_SESSIONS};
use queue::{QueueEvent, QueueOutput, QueueReply, SessionId};
use stream_log::AppendError;

impl StreamReplica {
    /// This replica takes requests from now on.
    pub(super) fn open(&mut self, epoch: u64, out: &mut QueueOutput) {
        if self.role == (Role::Open { epoch }) {
            return;
        }
        self.role = Role::Open { epoch };
        self.is_tier_due = self.tier.is_some();
        self.opened_at = self.log.as_ref().map_or(0, |log| log.next_offset());
        for session in std::mem::take(&mut self.waiting) {
            out.event(session, QueueEvent::Owner);
        }
    }

    /// Another replica leads, or none: uncommitted requests are forgotten here. The sessions repeat them.
    pub(super) fn close(&mut self, out: &mut QueueOutput) {
        self.role = Role::Follower;
        self.is_tier_due = self.tier.is_some();
        if let Some(log) = &self.log {
            self.builder = log.builder();
        }
        self.building.clear();
        self.touched.clear();
        self.confirms.clear();
        self.deferred.clear();
        self.stalled.clear();
        self.feeders.clear();
        self.counters = Default::default();
        let waiting = std::mem::take(&mut self.waiting);
        let leader = self.raft.leader.filter(|node| *node != self.config.node);
        for session in self.sessions.take_all().into_iter().chain(waiting) {
            out.event(session, QueueEvent::NotOwner { leader });
        }
    }

    /// Returns true if the log has room for publishes.
    pub(super) fn has_room(&self) -> bool {
        let Some(log) = &self.log else {
            return false;
        };
        let unwritten = log.pending_bytes() + self.builder.data_len();
        self.tasks.is_empty() && !log.is_truncating() && unwritten < MAX_UNWRITTEN_BYTES
    }

    /// Notes that a request waits for room; the session is asked for it later.
    pub(super) fn stall(&mut self, session: SessionId, seq: u64) {
        if self.stalled.len() < MAX_WAITING_SESSIONS {
            self.stalled.entry(session).or_insert(seq);
        }
    }

    /// There may be room again: asks sessions for the requests that were dropped.
    pub(super) fn relieve(&mut self, out: &mut QueueOutput) {
        if self.stalled.is_empty() || !self.has_room() {
            return;
        }
        for (session, expected) in std::mem::take(&mut self.stalled) {
            out.event(session, QueueEvent::Expecting { expected });
        }
    }

    /// Makes a chunk of the waiting publishes. Returns false if the log does not take it now.
    pub(super) fn cut(&mut self) -> bool {
        if self.builder.is_empty() {
            return true;
        }
        let (Role::Open { epoch }, Some(log)) = (self.role, &mut self.log) else {
            return false;
        };
        match log.append(&mut self.builder, epoch, self.at.wall) {
            Ok(_) => {}
            Err(AppendError::Busy | AppendError::Truncating) => return false,
            // The names were counted before they came into the builder, and the epoch is that of the term.
            Err(error) => {
                self.refused_by_log(&error);
                return false;
            }
        }
        let end = log.next_offset();
        self.note_appended();
        for session in std::mem::take(&mut self.building) {
            if let Some(session) = self.sessions.get_mut(session) {
                session.awaits = end;
            }
        }
        true
    }

    /// Ends a turn: makes a chunk, and reports progress to the sessions whose requests were applied.
    pub(super) fn end_turn(&mut self, out: &mut QueueOutput) {
        if !self.leads() {
            self.touched.clear();
            return;
        }
        self.cut();
        let committed = self.committed_offset();
        let touched = std::mem::take(&mut self.touched);
        for id in touched {
            // A session with messages in the builder is reported once they are in the log.
            if self.building.contains(&id) && !fault::is(Fault::ConfirmEarly) {
                self.touched.insert(id);
                continue;
            }
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let (awaits, last) = (session.awaits, session.last);
            if awaits <= committed || fault::is(Fault::ConfirmEarly) {
                session.done = last;
                out.event(id, session.progress());
            } else {
                self.confirms.insert((awaits, id), last);
            }
        }
    }

    pub(super) fn committed_offset(&self) -> u64 {
        self.member.as_ref().map_or(0, |member| member.committed())
    }

    /// Everything before `offset` is committed: confirms it.
    pub(super) fn committed_up_to(&mut self, offset: u64, out: &mut QueueOutput) {
        while let Some(entry) = self.confirms.first_entry() {
            let ((awaits, id), last) = (*entry.key(), *entry.get());
            if awaits > offset {
                break;
            }
            entry.remove();
            if let Some(session) = self.sessions.get_mut(id)
                && session.done < last
                && last <= session.last
            {
                session.done = last;
                out.event(id, session.progress());
            }
        }
        while self
            .deferred
            .front()
            .is_some_and(|(awaits, ..)| *awaits <= offset)
        {
            if let Some((_, session, seq, answer)) = self.deferred.pop_front() {
                self.answer(session, seq, answer, out);
            }
        }
    }

    /// Answers a request.
    pub(super) fn answer(
        &mut self,
        session: SessionId,
        seq: u64,
        answer: QueueReply,
        out: &mut QueueOutput,
    ) {
        if let Some(known) = self.sessions.get_mut(session) {
            known.record_answer(seq, answer.clone());
            out.event(session, QueueEvent::Answer { seq, answer });
        }
    }
}
