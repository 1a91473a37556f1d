//! Sessions at the leader: request numbers, progress and answers. They are not replicated: with a new leader, a
//! session starts a new numbering epoch and repeats its unconfirmed requests.

use queue::client::{MAX_IN_FLIGHT, MAX_UNANSWERED, NUMBERING_EPOCH};
use queue::{
    ConsumerId, ConsumerSpec, DeadIncarnation, QueueEvent, QueueReply, RefusedPublishes,
    RejectReason, SessionId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most ended sessions that are remembered, so that a late copy of a request does not start one of them again.
const MAX_CLOSED: usize = 1_024;

/// A session.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Number of the last applied request.
    pub last: u64,
    /// Number of the last request that is committed, with all before it.
    pub done: u64,
    /// The requests up to `last` are done once everything before this offset is committed.
    pub awaits: u64,
    /// Refused publishes among the last requests, ascending.
    refused: VecDeque<RefusedPublishes>,
    /// The last answers, in case one gets lost.
    answers: VecDeque<(u64, QueueReply)>,
    pub consumers: BTreeMap<ConsumerId, ConsumerSpec>,
}

/// The treatment of a request, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is the next one.
    Apply,
    /// It was applied before.
    Duplicate,
    /// Earlier requests, from `expected` on, are missing.
    Gap { expected: u64 },
    /// The session is over, or its number is invalid.
    Ignore,
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    closed: VecDeque<SessionId>,
    closed_set: BTreeSet<SessionId>,
    /// Incarnations of nodes that have ended.
    gone: BTreeMap<env::NodeId, env::Incarnation>,
}

fn first_in_epoch(seq: u64) -> u64 {
    seq - seq % NUMBERING_EPOCH + 1
}

impl Sessions {
    /// Checks the number of a request.
    pub(crate) fn check(&self, session: SessionId, seq: u64) -> Admission {
        if seq.is_multiple_of(NUMBERING_EPOCH) {
            return Admission::Ignore;
        }
        let starts_epoch = seq % NUMBERING_EPOCH == 1;
        match self.all.get(&session) {
            Some(known) if seq <= known.last => Admission::Duplicate,
            Some(known) if seq == known.last + 1 || starts_epoch => Admission::Apply,
            Some(known) => Admission::Gap {
                expected: first_in_epoch(seq).max(known.last + 1),
            },
            None => {
                let first_alive = self.gone.get(&session.node);
                let is_gone = first_alive.is_some_and(|before| session.incarnation < *before);
                match is_gone || self.closed_set.contains(&session) {
                    true => Admission::Ignore,
                    false if starts_epoch => Admission::Apply,
                    false => Admission::Gap {
                        expected: first_in_epoch(seq),
                    },
                }
            }
        }
    }

    /// Records a request as applied. A new numbering epoch starts the session anew.
    pub(crate) fn admit(&mut self, session: SessionId, seq: u64) -> &mut Session {
        let known = self.all.entry(session).or_default();
        if seq != known.last + 1 {
            *known = Session::default();
            known.done = seq - 1;
        }
        known.last = seq;
        let window = seq.saturating_sub(MAX_IN_FLIGHT as u64);
        while known.refused.front().is_some_and(|r| r.to <= window) {
            known.refused.pop_front();
        }
        known
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&Session> {
        self.all.get(&session)
    }

    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.all.get_mut(&session)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.all.iter()
    }

    /// Ends a session for good.
    pub(crate) fn close(&mut self, session: SessionId) {
        self.all.remove(&session);
        if self.closed.len() >= MAX_CLOSED
            && let Some(oldest) = self.closed.pop_front()
        {
            self.closed_set.remove(&oldest);
        }
        if self.closed_set.insert(session) {
            self.closed.push_back(session);
        }
    }

    /// Ends the sessions of earlier incarnations of a node.
    pub(crate) fn end_incarnations(&mut self, gone: DeadIncarnation) {
        let before = self.gone.entry(gone.node).or_insert(gone.before);
        *before = (*before).max(gone.before);
        self.all
            .retain(|session, _| session.node != gone.node || session.incarnation >= gone.before);
    }

    /// Forgets all sessions: another replica leads. Returns them.
    pub(crate) fn take_all(&mut self) -> Vec<SessionId> {
        self.closed.clear();
        self.closed_set.clear();
        std::mem::take(&mut self.all).into_keys().collect()
    }
}

impl Session {
    pub(crate) fn refuse(&mut self, seq: u64, why: RejectReason) {
        match self.refused.back_mut() {
            Some(last) if last.why == why && last.to + 1 == seq => last.to = seq,
            _ => self.refused.push_back(RefusedPublishes {
                from: seq,
                to: seq,
                why,
            }),
        }
    }

    pub(crate) fn record_answer(&mut self, seq: u64, answer: QueueReply) {
        if self.answers.len() >= MAX_UNANSWERED {
            self.answers.pop_front();
        }
        self.answers.push_back((seq, answer));
    }

    pub(crate) fn answer(&self, seq: u64) -> Option<QueueReply> {
        let found = self.answers.iter().find(|(of, _)| *of == seq);
        found.map(|(_, answer)| answer.clone())
    }

    /// The event that reports how far the session's requests are done.
    pub(crate) fn progress(&self) -> QueueEvent {
        let up_to = self.done;
        match self.refused.is_empty() {
            true => QueueEvent::Applied { up_to },
            false => QueueEvent::AppliedExcept {
                up_to,
                refused: self.refused.iter().copied().collect(),
            },
        }
    }
}
