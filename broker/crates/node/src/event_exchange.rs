//! Audit records as messages on the exchange `amq.rabbitmq.event`, with the routing keys and headers of RabbitMQ's event
//! exchange.

use crate::control_door::ControlGateway;
use audit::{AuditReceiver, AuditRecord, Operation, Outcome, Received};
use bytes::BytesMut;
use codec_amqp091::{Properties, table};
use control::{ControlRequest, PublishResult};
use env::WallTime;
use message::{Message, MessageBuilder, Protocol, Table, Value};
use metadata::{Change, ChangeError, ExchangeRecord, Name};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// RabbitMQ's name of the exchange.
const EXCHANGE: &str = "amq.rabbitmq.event";
/// Publishes that wait for their confirm.
const WINDOW: usize = 64;
/// Time after which an answer of the node counts as lost.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which the thread looks for lost records.
const IDLE: Duration = Duration::from_secs(1);

/// Publishes the events of a node.
pub(crate) struct EventExchange {
    receiver: AuditReceiver,
    door: Arc<ControlGateway>,
    vhost: Name,
    is_declared: bool,
    answers: (Sender<bool>, Receiver<bool>),
    /// Publishes without an answer.
    unanswered: usize,
    /// The last event was not published.
    is_failing: bool,
}

impl EventExchange {
    /// Starts the thread. It ends with the process, because a node that stops answers no publishes.
    pub(crate) fn start(
        receiver: AuditReceiver,
        door: Arc<ControlGateway>,
        vhost: &str,
    ) -> std::io::Result<()> {
        let events = EventExchange {
            receiver,
            door,
            vhost: vhost.into(),
            is_declared: false,
            answers: channel(),
            unanswered: 0,
            is_failing: false,
        };
        let thread = std::thread::Builder::new().name("events".to_owned());
        thread.spawn(move || events.run())?;
        Ok(())
    }

    fn run(mut self) {
        loop {
            match self.receiver.next(IDLE) {
                Received::Record(at, record) => {
                    for (key, headers) in events(&record) {
                        self.publish(key, headers, at);
                    }
                }
                Received::Idle | Received::Reopen => {}
                Received::Closed => return,
            }
            while self.unanswered > 0
                && let Ok(is_published) = self.answers.1.try_recv()
            {
                self.answered(is_published);
            }
        }
    }

    fn publish(&mut self, key: &'static str, headers: Table, at: WallTime) {
        if !self.is_declared && !self.declare() {
            return self.note_result(false);
        }
        if self.unanswered >= WINDOW {
            match self.answers.1.recv_timeout(TIMEOUT) {
                Ok(is_published) => self.answered(is_published),
                Err(_) => return self.note_result(false),
            }
        }
        let answer = Answer(Some(self.answers.0.clone()));
        self.unanswered += 1;
        self.door.ask(ControlRequest::Publish {
            vhost: self.vhost.clone(),
            user: "".into(),
            build: Box::new(move |received| build(key, headers, at, received)),
            reply: Box::new(move |result: Result<PublishResult, ChangeError>| {
                answer.give(result.is_ok_and(|published| published.taken));
            }),
        });
    }

    fn answered(&mut self, is_published: bool) {
        self.unanswered -= 1;
        self.note_result(is_published);
    }

    fn note_result(&mut self, is_published: bool) {
        if !is_published {
            self.receiver.add_lost(1);
            // The exchange may have been deleted.
            self.is_declared = false;
            if !self.is_failing {
                tracing::warn!(
                    event = "event_exchange.not_published",
                    vhost = &*self.vhost,
                    "events are lost until the exchange amq.rabbitmq.event can be declared and its queues accept messages"
                );
            }
        }
        self.is_failing = !is_published;
    }

    /// Declares the exchange, unless it exists.
    fn declare(&mut self) -> bool {
        let (answered, answer) = channel();
        let done = Answer(Some(answered));
        self.door.ask(ControlRequest::Change {
            change: Change::DeclareExchange(ExchangeRecord {
                vhost: self.vhost.clone(),
                name: EXCHANGE.into(),
                kind: "topic".into(),
                durable: true,
                auto_delete: false,
                internal: true,
                arguments: Table::default(),
            }),
            reply: Box::new(move |result| done.give(result.is_ok())),
        });
        self.is_declared = answer.recv_timeout(TIMEOUT).unwrap_or(false);
        self.is_declared
    }
}

/// Reports the result of a request, false if the request is dropped without one.
struct Answer(Option<Sender<bool>>);

impl Answer {
    fn give(mut self, result: bool) {
        if let Some(sender) = self.0.take() {
            // The thread ends with the process.
            let _ = sender.send(result);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(false);
        }
    }
}

fn build(
    key: &'static str,
    mut headers: Table,
    at: WallTime,
    received: WallTime,
) -> Result<Message, String> {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    headers.set("timestamp_in_ms", Value::I64(millis));
    let mut entries = BytesMut::new();
    table::encode(&headers, &mut entries);
    let mut properties = BytesMut::new();
    let described = Properties {
        // Without the length of the table.
        headers: entries.get(4..),
        delivery_mode: Some(2),
        timestamp: Some(at.0 / 1000),
        ..Properties::default()
    };
    described.encode(&mut properties);
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received,
        exchange: EXCHANGE,
        routing_keys: &[key],
        properties: &properties,
    };
    builder.build(0, []).map_err(|error| error.to_string())
}

/// The events of a record: routing key and headers. RabbitMQ has events for changes that were made, and for logins.
fn events(record: &AuditRecord) -> Vec<(&'static str, Table)> {
    use Operation as O;
    if record.operation == O::Login {
        return vec![login(record)];
    }
    if record.outcome != Outcome::Ok {
        return Vec::new();
    }
    // A PUT of an object that existed.
    let is_changed = detail(record, "status") == Some("204");
    let event = |key, named: &[&'static str]| vec![(key, headers(record, named))];
    match record.operation {
        O::QueueDeclare | O::ExchangeDeclare | O::VhostPut if is_changed => Vec::new(),
        O::QueueDeclare => event(
            "queue.created",
            &["durable", "auto_delete", "exclusive", "type"],
        ),
        O::QueueDelete => event("queue.deleted", &[]),
        O::ExchangeDeclare => event(
            "exchange.created",
            &["durable", "auto_delete", "internal", "type"],
        ),
        O::ExchangeDelete => event("exchange.deleted", &[]),
        O::BindingCreate => vec![("binding.created", binding(record))],
        O::BindingDelete => vec![("binding.deleted", binding(record))],
        O::VhostPut => event("vhost.created", &[]),
        O::VhostDelete => event("vhost.deleted", &[]),
        O::VhostLimitSet => event("vhost.limits.set", &["limit"]),
        O::VhostLimitClear => event("vhost.limits.cleared", &["limit"]),
        O::UserPut if is_changed => event("user.tags.set", &["tags"]),
        O::UserPut => {
            let mut both = event("user.created", &[]);
            both.extend(event("user.tags.set", &["tags"]));
            both
        }
        O::UserDelete => match detail(record, "users") {
            None => event("user.deleted", &[]),
            Some(users) => users
                .split(',')
                .map(|user| deleted_user(record, user))
                .collect(),
        },
        O::UserLimitSet => event("user.limits.set", &["limit"]),
        O::UserLimitClear => event("user.limits.cleared", &["limit"]),
        O::PermissionPut => vec![(
            "permission.created",
            permission(record, &["configure", "write", "read"]),
        )],
        O::PermissionDelete => vec![("permission.deleted", permission(record, &[]))],
        O::TopicPermissionPut => {
            let headers = permission(record, &["exchange", "write", "read"]);
            vec![("topic.permission.created", headers)]
        }
        O::TopicPermissionDelete => {
            vec![(
                "topic.permission.deleted",
                permission(record, &["exchange"]),
            )]
        }
        O::PolicyPut => event("policy.set", &["pattern", "priority", "apply-to"]),
        O::PolicyDelete => event("policy.cleared", &[]),
        O::ParameterPut => event("parameter.set", &["component"]),
        O::ParameterDelete => event("parameter.cleared", &["component"]),
        _ => Vec::new(),
    }
}

fn detail<'r>(record: &'r AuditRecord, key: &str) -> Option<&'r str> {
    let found = record.details.iter().find(|(known, _)| *known == key);
    found.map(|(_, value)| value.as_str())
}

/// The name, the virtual host, the user that acts, and these details.
fn headers(record: &AuditRecord, details: &[&'static str]) -> Table {
    let mut table = Table::default();
    table.set("name", Value::from(record.name.as_str()));
    if let Some(vhost) = &record.vhost {
        table.set("vhost", Value::from(&**vhost));
    }
    add_details(&mut table, record, details);
    table
}

fn add_details(table: &mut Table, record: &AuditRecord, details: &[&'static str]) {
    for key in details {
        let value = match detail(record, key) {
            None => continue,
            Some("true") => Value::Bool(true),
            Some("false") => Value::Bool(false),
            Some(text) => Value::from(text),
        };
        table.set(key, value);
    }
    let user = record.client.user.as_str();
    table.set("user_who_performed_action", Value::from(user));
}

fn deleted_user(record: &AuditRecord, user: &str) -> (&'static str, Table) {
    let mut table = headers(record, &[]);
    table.set("name", Value::from(user));
    ("user.deleted", table)
}

fn permission(record: &AuditRecord, details: &[&'static str]) -> Table {
    let mut table = Table::default();
    table.set("user", Value::from(record.name.as_str()));
    table.set(
        "vhost",
        Value::from(record.vhost.as_deref().unwrap_or_default()),
    );
    add_details(&mut table, record, details);
    table
}

fn binding(record: &AuditRecord) -> Table {
    let mut table = Table::default();
    let text = |key| detail(record, key).unwrap_or_default();
    // Over HTTP, the path has the kind of the destination.
    let is_exchange =
        text("destination_type") == "exchange" || text("request").contains("/e/{destination}");
    let kind = if is_exchange { "exchange" } else { "queue" };
    table.set("source_name", Value::from(record.name.as_str()));
    table.set("source_kind", Value::from("exchange"));
    table.set("destination_name", Value::from(text("destination")));
    table.set("destination_kind", Value::from(kind));
    table.set("routing_key", Value::from(text("routing_key")));
    table.set(
        "vhost",
        Value::from(record.vhost.as_deref().unwrap_or_default()),
    );
    add_details(&mut table, record, &[]);
    table
}

fn login(record: &AuditRecord) -> (&'static str, Table) {
    let client = &record.client;
    let mut table = Table::default();
    table.set("name", Value::from(record.name.as_str()));
    table.set("protocol", Value::from(client.protocol));
    if let Some(mechanism) = detail(record, "mechanism") {
        table.set("auth_mechanism", Value::from(mechanism));
    }
    if let Some(peer) = client.peer {
        table.set("peer_host", Value::from(peer.ip().to_string().as_str()));
        table.set("peer_port", Value::I64(peer.port().into()));
    }
    if !client.connection.is_empty() {
        table.set("connection_name", Value::from(client.connection.as_str()));
    }
    table.set("ssl", Value::Bool(client.tls));
    let key = match &record.outcome {
        Outcome::Ok => "user.authentication.success",
        Outcome::Refused(error) | Outcome::Failed(error) => {
            table.set("error", Value::from(error.as_str()));
            "user.authentication.failure"
        }
    };
    (key, table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit::Client;

    fn record(operation: Operation, details: &[(&'static str, &str)]) -> AuditRecord {
        AuditRecord {
            client: Client {
                user: "admin".into(),
                protocol: "http",
                peer: Some(([127, 0, 0, 1], 9).into()),
                connection: String::new(),
                tls: false,
            },
            operation,
            vhost: Some("/".into()),
            name: "n".into(),
            details: details.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
            outcome: Outcome::Ok,
        }
    }

    fn keys(record: &AuditRecord) -> Vec<&'static str> {
        events(record).into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn only_changes_and_logins_have_events() {
        let created = record(
            Operation::QueueDeclare,
            &[("status", "201"), ("durable", "true")],
        );
        let (key, headers) = events(&created).remove(0);
        assert_eq!(key, "queue.created");
        assert_eq!(headers.get("durable"), Some(&Value::Bool(true)));
        assert_eq!(
            headers.get("user_who_performed_action"),
            Some(&Value::from("admin"))
        );
        let existed = record(Operation::QueueDeclare, &[("status", "204")]);
        assert_eq!(keys(&existed), [""; 0]);
        let mut refused = record(Operation::QueueDelete, &[]);
        refused.outcome = Outcome::Refused("no".into());
        assert_eq!(keys(&refused), [""; 0]);
        refused.operation = Operation::Login;
        assert_eq!(keys(&refused), ["user.authentication.failure"]);
        let put = record(
            Operation::UserPut,
            &[("status", "201"), ("tags", "management")],
        );
        assert_eq!(keys(&put), ["user.created", "user.tags.set"]);
        let several = record(Operation::UserDelete, &[("users", "a,b")]);
        assert_eq!(keys(&several), ["user.deleted"; 2]);
        assert_eq!(keys(&record(Operation::QueuePurge, &[])), [""; 0]);
    }

    #[test]
    fn binding_over_http_names_the_kind_of_its_destination() {
        let request = "POST bindings/{vhost}/e/{source}/e/{destination}";
        let details = [("destination", "d"), ("request", request)];
        let (key, headers) = events(&record(Operation::BindingCreate, &details)).remove(0);
        assert_eq!(key, "binding.created");
        assert_eq!(
            headers.get("destination_kind"),
            Some(&Value::from("exchange"))
        );
        let details = [("destination_type", "queue")];
        let (_, headers) = events(&record(Operation::BindingDelete, &details)).remove(0);
        assert_eq!(headers.get("destination_kind"), Some(&Value::from("queue")));
    }
}
