//! Request numbers: each request is applied once and in order, and its answer is repeated on request.

use super::{CLOSED_MS, Checkout, MAX_CLOSED, MessageStore, Weighed};
use crate::client::{MAX_IN_FLIGHT, MAX_UNANSWERED, NUMBERING_EPOCH};
use crate::sorted_map::SortedMap;
use crate::{
    ConsumerId, QueueEvent, QueueReply, RefusedPublishes, RejectReason, RequestBody, SessionId,
};
use env::NodeId;
use env::planted::{self, Bug};
use std::collections::VecDeque;

/// State of a session at a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SessionRecord {
    /// Number of the last applied request.
    pub last: u64,
    /// Refused publishes among the last [`MAX_IN_FLIGHT`] requests, ascending.
    pub refused: VecDeque<RefusedPublishes>,
    /// The last [`MAX_UNANSWERED`] answers; a session has no more requests without an answer.
    pub answers: VecDeque<(u64, QueueReply)>,
    pub consumers: SortedMap<ConsumerId, u64>,
}

/// What to do with a request, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is the next one: apply it.
    Apply,
    /// It was applied before: repeat the answer.
    Duplicate,
    /// Earlier requests, from `expected` on, are missing.
    Gap { expected: u64 },
    /// The session is closed.
    Closed,
    /// It comes from an ended incarnation of a node, or its number is invalid.
    Ignore,
}

/// Returns true for the first request of a session, and for its first one after it was told that the owner is
/// lost.
pub(crate) fn starts_numbering_epoch(seq: u64) -> bool {
    seq % NUMBERING_EPOCH == 1
}

/// The first request number of the numbering epoch that contains `seq`.
fn first_in_numbering_epoch(seq: u64) -> u64 {
    seq - seq % NUMBERING_EPOCH + 1
}

impl<I: Weighed> Checkout<I> {
    /// Checks the number of a request. If the request is the next one, records it as applied.
    pub(crate) fn admit<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
    ) -> Admission {
        match self.check_request(session, seq) {
            Admission::Apply => {}
            other => return other,
        }
        if starts_numbering_epoch(seq) {
            // The session has dropped all its requests and consumers of the previous numbering epoch.
            self.end_session(store, session);
        }
        if !self.suspended.is_empty() {
            // A request shows that the node can be reached.
            self.trust_node(store, session.node);
        }
        let state = self.sessions.entry(session).or_default();
        debug_assert!(state.last < seq, "request {seq} after {}", state.last);
        state.last = seq;
        let window = seq.saturating_sub(MAX_IN_FLIGHT as u64);
        while state.refused.front().is_some_and(|r| r.to <= window) {
            state.refused.pop_front();
        }
        Admission::Apply
    }

    /// As [`admit`](Self::admit), without recording anything.
    pub(crate) fn check_request(&self, session: SessionId, seq: u64) -> Admission {
        if let Some(state) = self.sessions.get(&session) {
            return match seq.checked_sub(state.last) {
                None | Some(0) => Admission::Duplicate,
                Some(1) => Admission::Apply,
                Some(_) if starts_numbering_epoch(seq) => Admission::Apply,
                Some(_) => Admission::Gap {
                    expected: first_in_numbering_epoch(seq).max(state.last + 1),
                },
            };
        }
        let first_alive = self.gone.get(&session.node);
        if first_alive.is_some_and(|before| session.incarnation < *before)
            || seq.is_multiple_of(NUMBERING_EPOCH)
        {
            return Admission::Ignore;
        }
        if self.closed_set.contains(&session) {
            return Admission::Closed;
        }
        if starts_numbering_epoch(seq) {
            return Admission::Apply;
        }
        Admission::Gap {
            expected: first_in_numbering_epoch(seq),
        }
    }

    /// The nodes that have sessions at this queue, each once.
    pub(crate) fn session_nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.sessions.keys().map(|s| s.node).collect();
        // The sessions are sorted by node.
        nodes.dedup();
        nodes
    }

    pub(crate) fn last_applied(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).map_or(0, |s| s.last)
    }

    /// Records that a publish was refused.
    pub(crate) fn record_refusal(&mut self, session: SessionId, seq: u64, why: RejectReason) {
        let Some(state) = self.sessions.get_mut(&session) else {
            return;
        };
        let is_ascending = state.refused.back().is_none_or(|last| last.to < seq);
        debug_assert!(is_ascending || planted::is(Bug::NumberingLost));
        match state.refused.back_mut() {
            Some(last) if last.why == why && last.to + 1 == seq => last.to = seq,
            _ => state.refused.push_back(RefusedPublishes {
                from: seq,
                to: seq,
                why,
            }),
        }
    }

    /// The progress event of a session: all requests up to `up_to` are applied and durable.
    pub(crate) fn progress_event(&self, session: SessionId, up_to: u64) -> QueueEvent {
        let state = self.sessions.get(&session);
        debug_assert!(state.is_none_or(|state| up_to <= state.last));
        match state {
            Some(state) if !state.refused.is_empty() && !planted::is(Bug::RefusalForgotten) => {
                QueueEvent::AppliedExcept {
                    up_to,
                    refused: state.refused.iter().copied().collect(),
                }
            }
            _ => QueueEvent::Applied { up_to },
        }
    }

    /// Answers a request, and records the answer.
    pub(super) fn answer<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        answer: QueueReply,
    ) {
        if let Some(state) = self.sessions.get_mut(&session) {
            debug_assert!(seq <= state.last, "request {seq} is not admitted");
            if state.answers.len() >= MAX_UNANSWERED {
                state.answers.pop_front();
            }
            if state.answers.is_empty() {
                // Most sessions ask once.
                state.answers.reserve_exact(1);
            }
            state.answers.push_back((seq, answer.clone()));
        }
        store.event(session, QueueEvent::Answer { seq, answer });
    }

    /// Repeats the answer of a request that was applied before.
    pub(crate) fn repeat_answer<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        body: &RequestBody,
    ) {
        let Some(state) = self.sessions.get(&session) else {
            return;
        };
        let recorded = state.answers.iter().find(|(s, _)| *s == seq);
        if let Some((_, answer)) = recorded {
            let answer = answer.clone();
            store.event(session, QueueEvent::Answer { seq, answer });
            return;
        }
        match body {
            RequestBody::Credit {
                consumer, drain, ..
            } => self.repeat_credit_answer(store, session, seq, *consumer, *drain),
            RequestBody::Get { consumer, .. } => {
                self.repeat_get_answer(store, session, seq, *consumer);
            }
            RequestBody::GetAt(get) => {
                self.repeat_get_answer(store, session, seq, get.consumer);
            }
            RequestBody::Consume { .. }
            | RequestBody::TakeOver(_)
            | RequestBody::Purge
            | RequestBody::Stat
            | RequestBody::Delete { .. } => store.event(
                session,
                QueueEvent::Answer {
                    seq,
                    answer: QueueReply::Refused {
                        code: 541,
                        text: format!("the answer of {} is no longer known", self.label),
                    },
                },
            ),
            _ => {}
        }
    }

    fn repeat_get_answer<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        consumer: ConsumerId,
    ) {
        let window = self.flow_window;
        match self.consumer(session, consumer) {
            Some(c) if !c.out.is_empty() => c.resend_from(store, 0, window),
            // Its message was requeued since. The session takes another one with a new request, since a
            // late copy of this request must take nothing. Older versions do not repeat the request and
            // report `Empty` to the client.
            _ => {
                store.event(session, QueueEvent::Resumed { consumer, next: 2 });
                let answer = QueueReply::Empty;
                store.event(session, QueueEvent::Answer { seq, answer });
            }
        }
    }

    /// Ends a session. It is remembered for a while, since copies of its requests may still arrive.
    pub(crate) fn close<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        clock: u64,
    ) {
        self.end_session(store, session);
        let old = |at: u64| at.saturating_add(CLOSED_MS) < clock;
        while self.closed.len() >= MAX_CLOSED || self.closed.front().is_some_and(|c| old(c.0)) {
            if let Some((_, session)) = self.closed.pop_front() {
                self.closed_set.remove(&session);
            }
        }
        if self.closed_set.insert(session) {
            self.closed.push_back((clock, session));
        }
        debug_assert_eq!(self.closed.len(), self.closed_set.len());
        debug_assert!(self.closed.len() <= MAX_CLOSED);
    }

    /// Makes closed sessions younger by so many milliseconds, after a leap of the clock.
    pub(crate) fn extend_closed_sessions(&mut self, ms: u64) {
        for (at, _) in &mut self.closed {
            *at = at.saturating_add(ms);
        }
    }

    /// The answer to the `Close` of a session that this queue does not know (any more).
    pub(crate) fn unknown_session(&self, seq: u64) -> QueueEvent {
        let answer = QueueReply::Refused {
            code: 404,
            text: format!("{} does not know the session", self.label),
        };
        QueueEvent::Answer { seq, answer }
    }

    pub(super) fn end_session<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
    ) {
        let Some(state) = self.sessions.remove(&session) else {
            return;
        };
        for number in state.consumers.values() {
            if !planted::is(Bug::UnackedNotReturned) {
                self.requeue_all(store, *number, true);
            }
            self.remove_candidate(*number);
            self.stop_counting(*number);
            self.drains.remove(number);
            self.consumers.remove(number);
        }
        self.elect_active();
    }
}
