//! Confirms and rejects of queues and other routers for publishes whose connection has ended. They
//! go to the client's current session.

use super::{MqttRouter, RouterOutput};
use crate::SubscriberId;
use std::collections::{BTreeMap, BTreeSet};

/// Sessions that ended before all their publishes were answered.
#[derive(Default)]
pub(super) struct LateAnswers {
    /// By session number of the publisher: its client and the number of missing answers.
    sessions: BTreeMap<u64, (SubscriberId, u32)>,
    by_client: BTreeSet<(SubscriberId, u64)>,
}

impl LateAnswers {
    fn expect(&mut self, client: SubscriberId, session: u64, answers: u32) {
        self.sessions.insert(session, (client, answers));
        self.by_client.insert((client, session));
    }

    /// Counts one answer and returns the client that it is for.
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

    /// The client's session has ended or continues elsewhere.
    pub(super) fn remove_client(&mut self, client: SubscriberId) {
        while let Some(&(of, session)) = self.by_client.range((client, 0)..).next()
            && of == client
        {
            self.by_client.remove(&(of, session));
            self.sessions.remove(&session);
        }
    }
}

impl MqttRouter {
    /// A connection ends while this many answers to its publishes are missing. Call it before
    /// [`MqttRouter::leave`].
    pub fn expect_late_answers(&mut self, client: SubscriberId, session: u64, answers: u32) {
        self.late_answers.expect(client, session, answers);
    }

    /// Handles an answer for a session whose connection has ended.
    pub fn answer_late(&mut self, session: u64, tag: u64, taken: bool) {
        if let Some(client) = self.late_answers.take_one(session) {
            self.pass_answer(client, (session, tag), taken);
        }
    }

    /// Returns true if this session is the client's current connection.
    pub fn is_connected_by(&self, client: SubscriberId, session: u64) -> bool {
        let entry = self.subscribers.get(client.0 as usize);
        entry.is_some_and(|entry| entry.session() == Some(session))
    }

    /// Passes the answer to a publish of a client's earlier connection to its session, connected or
    /// parked. Call it again if the connection that should receive the answer has ended in the
    /// meantime.
    pub fn pass_answer(&mut self, client: SubscriberId, (session, tag): (u64, u64), taken: bool) {
        let Some(entry) = self.subscribers.get_mut(client.0 as usize) else {
            return;
        };
        match entry.session() {
            Some(current) => self.outputs.push_back(RouterOutput::LateAnswer {
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
                    self.confirm_arrived(client);
                }
            }
        }
    }
}
