//! Answers of queues and other hubs to publishes whose connection has ended: the client's session hears them, wherever it is now.

use super::{MqttRouter, RouterOutput};
use crate::SubscriberId;
use std::collections::{BTreeMap, BTreeSet};

/// Sessions that ended before all their publishes were answered.
#[derive(Default)]
pub(super) struct LateAnswers {
    /// By the number of the session that published: its client, and how many answers are missing.
    sessions: BTreeMap<u64, (SubscriberId, u32)>,
    by_client: BTreeSet<(SubscriberId, u64)>,
}

impl LateAnswers {
    fn expect(&mut self, client: SubscriberId, session: u64, answers: u32) {
        self.sessions.insert(session, (client, answers));
        self.by_client.insert((client, session));
    }

    /// The client whose session an answer is for.
    fn take_one(&mut self, session: u64) -> Option<SubscriberId> {
        let (client, missing) = self.sessions.get_mut(&session)?;
        let client = *client;
        *missing = missing.saturating_sub(1);
        if *missing == 0 {
            self.sessions.remove(&session);
            self.by_client.remove(&(client, session));
        }
        Some(client)
    }

    /// The client's session is over, or goes on elsewhere.
    pub fn forget(&mut self, client: SubscriberId) {
        while let Some(&(of, session)) = self.by_client.range((client, 0)..).next()
            && of == client
        {
            self.by_client.remove(&(of, session));
            self.sessions.remove(&session);
        }
    }
}

impl MqttRouter {
    /// A connection ends while queues and other hubs owe this many answers to its publishes. To be called before [`MqttRouter::leave`].
    pub fn expect_late_answers(&mut self, client: SubscriberId, session: u64, answers: u32) {
        self.late.expect(client, session, answers);
    }

    /// An answer for a session that has ended.
    pub fn answer_late(&mut self, session: u64, tag: u64, taken: bool) {
        if let Some(client) = self.late.take_one(session) {
            self.pass_answer(client, (session, tag), taken);
        }
    }

    /// Whether the client is connected by this session.
    pub fn is_connected_by(&self, client: SubscriberId, session: u64) -> bool {
        let entry = self.subscribers.get(client.0 as usize);
        entry.is_some_and(|entry| entry.session() == Some(session))
    }

    /// Passes the answer to a publish of an earlier connection of a client to its session, connected or away. Called again if
    /// the connection that was to hear it has ended meanwhile.
    pub fn pass_answer(&mut self, client: SubscriberId, (session, tag): (u64, u64), taken: bool) {
        let Some(entry) = self.subscribers.get_mut(client.0 as usize) else {
            return;
        };
        match entry.session() {
            Some(current) => self.outputs.push_back(RouterOutput::AnsweredLate {
                session: current,
                client,
                publisher: session,
                tag,
                taken,
            }),
            None => {
                let away = entry.away_mut();
                if let Some(state) = away.and_then(|away| away.state.as_mut()) {
                    state.answered(session, tag, taken);
                    self.settle(client);
                }
            }
        }
    }
}
