//! Audit records of the shard's client connections. A shard without an audit log has no trail.

use crate::FixedState;
use crate::listener_origin::Origin;
use audit::{AuditRecord, AuditSink, Client, Operation, Outcome, Refusals, change_description};
use hashbrown::HashMap;
use metadata::{Change, ChangeError, ChangeResult, Name, QueueId, QueueRecord};
use queue::{QueueReply, RequestBody};
use session::LoginAttempt;
use std::collections::BTreeMap;

/// Makes the records of a shard.
pub struct AuditTrail {
    sink: AuditSink,
    refusals: Refusals,
    /// User and protocol of sessions that have logged in.
    clients: HashMap<u64, (Name, &'static str), FixedState>,
    /// Purges and deletions whose queue has not answered, by session, queue and request.
    requests: BTreeMap<(u64, QueueId, u64), Box<AuditRecord>>,
}

impl AuditTrail {
    pub fn new(sink: AuditSink) -> AuditTrail {
        AuditTrail {
            sink,
            refusals: Refusals::default(),
            clients: HashMap::default(),
            requests: BTreeMap::new(),
        }
    }

    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    fn client(&self, number: u64, origin: Origin<'_>) -> Client {
        let (user, protocol) = match self.clients.get(&number) {
            Some((user, protocol)) => (user.to_string(), *protocol),
            None => (String::new(), ""),
        };
        Client {
            user,
            protocol,
            peer: Some(origin.peer()),
            connection: origin.name(),
            tls: origin.has_tls(),
        }
    }

    pub fn login(&mut self, number: u64, origin: Origin<'_>, attempt: &LoginAttempt<'_>) {
        if attempt.refusal.is_none() {
            let client = (attempt.user.into(), attempt.protocol);
            self.clients.insert(number, client);
        }
        let client = Client {
            user: attempt.user.to_owned(),
            protocol: attempt.protocol,
            ..self.client(number, origin)
        };
        let mut details = Vec::new();
        if !attempt.mechanism.is_empty() {
            details.push(("mechanism", attempt.mechanism.to_owned()));
        }
        self.sink.record(AuditRecord {
            client,
            operation: Operation::Login,
            vhost: None,
            name: attempt.user.to_owned(),
            details,
            outcome: match attempt.refusal {
                None => Outcome::Ok,
                Some(reason) => Outcome::Refused(reason.to_owned()),
            },
        });
    }

    pub fn refused_vhost(
        &self,
        number: u64,
        origin: Origin<'_>,
        (user, vhost): (&str, &str),
        reason: &str,
    ) {
        self.sink.record(AuditRecord {
            client: Client {
                user: user.to_owned(),
                ..self.client(number, origin)
            },
            operation: Operation::VhostOpen,
            vhost: Some(vhost.into()),
            name: vhost.to_owned(),
            details: Vec::new(),
            outcome: Outcome::Refused(reason.to_owned()),
        });
    }

    /// Records the permissions that were refused in a step of a session.
    pub fn flush_refusals(&mut self, number: u64, origin: Origin<'_>) {
        for refused in self.refusals.take() {
            self.sink.record(AuditRecord {
                client: Client {
                    user: refused.user.to_string(),
                    ..self.client(number, origin)
                },
                operation: Operation::PermissionCheck,
                vhost: Some(refused.vhost),
                name: refused.name,
                details: vec![
                    ("kind", refused.kind.to_owned()),
                    ("permission", refused.permission.to_owned()),
                ],
                outcome: Outcome::Refused(refused.error),
            });
        }
    }

    /// The record of a requested change, without its outcome. None: the change is not recorded.
    pub fn change_requested(
        &self,
        number: u64,
        origin: Origin<'_>,
        change: &Change,
    ) -> Option<Box<AuditRecord>> {
        let described = change_description(change)?;
        Some(Box::new(AuditRecord {
            client: self.client(number, origin),
            operation: described.operation,
            vhost: described.vhost,
            name: described.name,
            details: described.details,
            outcome: Outcome::Ok,
        }))
    }

    /// Records the result of a change. One that found the requested state is not recorded.
    pub fn change_answered(
        &self,
        mut record: AuditRecord,
        result: &Result<ChangeResult, ChangeError>,
    ) {
        record.outcome = match result {
            Ok(ChangeResult::Unchanged | ChangeResult::Queue { created: false, .. }) => return,
            Ok(ChangeResult::Changed | ChangeResult::Queue { created: true, .. }) => Outcome::Ok,
            Err(ChangeError::AccessRefused(text) | ChangeError::ResourceLocked(text)) => {
                Outcome::Refused(text.clone())
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        self.sink.record(record);
    }

    /// Records a node that has joined the cluster, or replaced another one.
    pub fn node_joined(&self, name: &str, result: &Result<ChangeResult, ChangeError>) {
        let record = AuditRecord {
            client: Client {
                protocol: "cluster",
                ..Client::default()
            },
            operation: Operation::NodeJoin,
            vhost: None,
            name: name.to_owned(),
            details: Vec::new(),
            outcome: Outcome::Ok,
        };
        self.change_answered(record, result);
    }

    /// Notes a purge or deletion of a queue. `seq` 0: the request could not be sent.
    pub fn queue_requested(
        &mut self,
        (number, seq): (u64, u64),
        origin: Origin<'_>,
        queue: &QueueRecord,
        body: &RequestBody,
    ) {
        let operation = match body {
            RequestBody::Purge => Operation::QueuePurge,
            RequestBody::Delete { .. } => Operation::QueueDelete,
            _ => return,
        };
        let mut record = Box::new(AuditRecord {
            client: self.client(number, origin),
            operation,
            vhost: Some(queue.vhost.clone()),
            name: queue.name.to_string(),
            details: Vec::new(),
            outcome: Outcome::Ok,
        });
        if seq == 0 {
            record.outcome = Outcome::Failed("the queue cannot be reached".into());
            return self.sink.record(*record);
        }
        self.requests.insert((number, queue.id, seq), record);
    }

    /// Records a purge, or a deletion that the queue has refused. The change that follows an accepted deletion is
    /// recorded instead of it.
    pub fn queue_answered(
        &mut self,
        number: u64,
        queue: QueueId,
        (seq, answer): (u64, &QueueReply),
    ) {
        let Some(mut record) = self.requests.remove(&(number, queue, seq)) else {
            return;
        };
        match answer {
            QueueReply::Refused { code: 403, text } => {
                record.outcome = Outcome::Refused(text.clone());
            }
            QueueReply::Refused { text, .. } => record.outcome = Outcome::Failed(text.clone()),
            QueueReply::Count { messages, .. } if record.operation == Operation::QueuePurge => {
                record.details.push(("messages", messages.to_string()));
            }
            _ => return,
        }
        self.sink.record(*record);
    }

    pub fn session_ended(&mut self, number: u64) {
        self.clients.remove(&number);
        let of_session = (number, QueueId(0), 0)..=(number, QueueId(u64::MAX), u64::MAX);
        let unanswered = self.requests.range(of_session).map(|(key, _)| *key);
        for key in unanswered.collect::<Vec<_>>() {
            if let Some(mut record) = self.requests.remove(&key) {
                let text = "the connection ended before the queue answered";
                record.outcome = Outcome::Failed(text.into());
                self.sink.record(*record);
            }
        }
    }
}
