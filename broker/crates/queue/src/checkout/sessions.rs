//! Request numbers: each request once, in order, answered again when asked again.

use super::{CLOSED_MS, Checkout, MAX_CLOSED, MessageStore, Weighed};
use crate::client::{EPOCH, MAX_IN_FLIGHT, MAX_UNANSWERED};
use crate::{
    ConsumerId, QueueEvent, QueueReply, RefusedPublishes, RejectReason, RequestBody, SessionId,
};
use env::NodeId;
use env::planted::{self, Bug};
use std::collections::{BTreeMap, VecDeque};

/// What a queue remembers of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SessionRecord {
    /// The last request applied.
    pub last: u64,
    /// Publishes not taken among the last [`MAX_IN_FLIGHT`] requests, ascending.
    pub refused: VecDeque<RefusedPublishes>,
    /// The last [`MAX_UNANSWERED`] answers: a session never waits for more.
    pub answers: VecDeque<(u64, QueueReply)>,
    pub consumers: BTreeMap<ConsumerId, u64>,
}

/// Whether a request is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Apply,
    /// Applied before: answer again.
    Again,
    /// An earlier request is missing.
    Gap {
        expected: u64,
    },
    /// Of a session that is over.
    Closed,
    /// Of a life of a node that is over, or senseless.
    Ignore,
}

/// The first request after a session was told that its owner is lost, or the very first.
pub(crate) fn begins_anew(seq: u64) -> bool {
    seq % EPOCH == 1
}

/// The first number of the epoch that `seq` is in.
fn epoch_start(seq: u64) -> u64 {
    seq - seq % EPOCH + 1
}

impl<I: Weighed> Checkout<I> {
    /// Looks at a request's number and, when it is next, counts it as applied.
    pub fn admit<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
    ) -> Admission {
        match self.session_state(session, seq) {
            Admission::Apply => {}
            other => return other,
        }
        if begins_anew(seq) {
            // The session has given up what it had here before.
            self.end_session(store, session);
        }
        if !self.suspended.is_empty() {
            // A node that speaks is not gone.
            self.trust_node(store, session.node);
        }
        let state = self.sessions.entry(session).or_default();
        state.last = seq;
        let window = seq.saturating_sub(MAX_IN_FLIGHT as u64);
        while state.refused.front().is_some_and(|r| r.to <= window) {
            state.refused.pop_front();
        }
        Admission::Apply
    }

    /// What [`admit`](Self::admit) would say, without counting.
    pub fn session_state(&self, session: SessionId, seq: u64) -> Admission {
        if let Some(state) = self.sessions.get(&session) {
            return match seq.checked_sub(state.last) {
                None | Some(0) => Admission::Again,
                Some(1) => Admission::Apply,
                Some(_) if begins_anew(seq) => Admission::Apply,
                Some(_) => Admission::Gap {
                    expected: epoch_start(seq).max(state.last + 1),
                },
            };
        }
        let over = self.gone.get(&session.node);
        if over.is_some_and(|before| session.incarnation < *before) || seq.is_multiple_of(EPOCH) {
            return Admission::Ignore;
        }
        if self.closed_set.contains(&session) {
            return Admission::Closed;
        }
        if begins_anew(seq) {
            return Admission::Apply;
        }
        Admission::Gap {
            expected: epoch_start(seq),
        }
    }

    /// The nodes that have sessions here, each once.
    pub fn session_nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.sessions.keys().map(|s| s.node).collect();
        // Sessions are in the order of their nodes.
        nodes.dedup();
        nodes
    }

    pub fn last_applied(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).map_or(0, |s| s.last)
    }

    /// Notes that a publish was not taken.
    pub fn refuse(&mut self, session: SessionId, seq: u64, why: RejectReason) {
        let Some(state) = self.sessions.get_mut(&session) else {
            return;
        };
        match state.refused.back_mut() {
            Some(last) if last.why == why && last.to + 1 == seq => last.to = seq,
            _ => state.refused.push_back(RefusedPublishes {
                from: seq,
                to: seq,
                why,
            }),
        }
    }

    /// Tells a session how far it is: everything up to `up_to` is done and safe.
    pub fn report(&self, session: SessionId, up_to: u64) -> QueueEvent {
        match self.sessions.get(&session) {
            Some(state) if !state.refused.is_empty() && !planted::is(Bug::RefusalForgotten) => {
                QueueEvent::AppliedExcept {
                    up_to,
                    refused: state.refused.iter().copied().collect(),
                }
            }
            _ => QueueEvent::Applied { up_to },
        }
    }

    /// Answers a request and remembers what was said.
    pub(super) fn answer<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        answer: QueueReply,
    ) {
        if let Some(state) = self.sessions.get_mut(&session) {
            if state.answers.len() >= MAX_UNANSWERED {
                state.answers.pop_front();
            }
            state.answers.push_back((seq, answer.clone()));
        }
        store.event(session, QueueEvent::Answer { seq, answer });
    }

    /// The answer of a request that was applied before, once more.
    pub fn answer_again<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        body: &RequestBody,
    ) {
        let Some(state) = self.sessions.get(&session) else {
            return;
        };
        let said = state.answers.iter().find(|(s, _)| *s == seq);
        if let Some((_, answer)) = said {
            let answer = answer.clone();
            store.event(session, QueueEvent::Answer { seq, answer });
            return;
        }
        match body {
            RequestBody::Credit {
                consumer, drain, ..
            } => self.credit_again(store, session, seq, *consumer, *drain),
            RequestBody::Get { consumer, .. } => {
                let window = self.flow_window;
                match self.consumer(session, *consumer) {
                    Some(c) if !c.out.is_empty() => c.hand_again(store, 0, window),
                    // Its message was given back since. The session's side takes another one, with a request of its own: a
                    // late copy of this one must take nothing. The answer is for nodes of older versions, which know no better.
                    _ => {
                        let consumer = *consumer;
                        store.event(session, QueueEvent::Resumed { consumer, next: 2 });
                        let answer = QueueReply::Empty;
                        store.event(session, QueueEvent::Answer { seq, answer });
                    }
                }
            }
            RequestBody::Consume { .. }
            | RequestBody::Succeed(_)
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

    /// The session is over. Remembered for a while, for its requests may still be on their way twice.
    pub fn close<S: MessageStore<Item = I>>(
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
    }

    /// What is remembered of ended sessions is younger than the clock says, by so many milliseconds.
    pub fn remember_longer(&mut self, ms: u64) {
        for (at, _) in &mut self.closed {
            *at = at.saturating_add(ms);
        }
    }

    /// The answer to the end of a session that this queue knows nothing of (any more).
    pub fn forgotten(&self, seq: u64) -> QueueEvent {
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
                self.return_all(store, *number);
            }
            self.unlist(*number);
            self.retire(*number);
            self.drains.remove(number);
            self.consumers.remove(number);
        }
        self.elect();
    }
}
