//! Streams with the arguments of the stream protocol, and super streams: an exchange with a stream for each partition.

use crate::access::{Caller, Resource};
use crate::error::{ErrorKind, OperationError, OperationResult, refuse};
use crate::queues::{QueueDeclaration, QueueDeclarationPlan};
use message::{Table, Value};
use metadata::{
    BindingRecord, Change, Destination, ExchangeRecord, Name, QueueRecord, Right, Tree,
};
use std::sync::Arc;

/// The argument of a binding that orders the partitions of a super stream.
const PARTITION_ORDER: &str = "x-stream-partition-order";
/// Most partitions of a super stream that a client creates.
pub const MAX_PARTITIONS: usize = 1000;
/// The argument of a super stream's exchange.
pub const SUPER_STREAM: &str = "x-super-stream";

/// Values of the argument `queue-leader-locator`.
const LEADER_LOCATORS: [&str; 4] = ["client-local", "balanced", "random", "least-leaders"];
/// Smallest and largest value of the argument `stream-filter-size-bytes`.
const FILTER_SIZES: std::ops::RangeInclusive<i64> = 16..=255;

/// Why a stream or a super stream cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamCreationError {
    /// A stream, or the exchange of the super stream, exists.
    #[error("{0}")]
    Exists(String),
    /// The operation is refused.
    #[error(transparent)]
    Refused(#[from] OperationError),
}

/// A super stream to create.
#[derive(Clone, Debug, PartialEq)]
pub struct SuperStreamDeclaration<'a> {
    /// The name of the exchange.
    pub name: &'a str,
    /// For each partition the name of its stream and its binding key.
    pub partitions: Vec<(&'a str, &'a str)>,
    /// The arguments of each stream's queue, as from [`stream_arguments`].
    pub arguments: Table,
}

/// The name of a stream or a super stream without line breaks, as RabbitMQ strips them.
///
/// # Errors
///
/// If it is empty or reserved.
pub fn stream_name(name: &str) -> OperationResult<Name> {
    let stripped: String = name.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    if stripped.is_empty() || stripped.starts_with("amq.") {
        refuse!(
            PreconditionFailed,
            "'{stripped}' cannot be the name of a stream: choose one that is not empty and does not start with 'amq.'"
        );
    }
    Ok(stripped.into())
}

/// The arguments of a stream's queue, from the names of the stream protocol, such as `max-age`. As in RabbitMQ, arguments
/// with other names are ignored.
///
/// # Errors
///
/// If a value is not a number, out of range, or an unknown leader locator.
pub fn stream_arguments<'a>(
    arguments: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> OperationResult<Table> {
    let mut table = Table::default();
    table.set("x-queue-type", text("stream"));
    for (key, value) in arguments {
        let (name, value) = match key {
            "max-age" => ("x-max-age", text(value)),
            "queue-leader-locator" if LEADER_LOCATORS.contains(&value) => {
                ("x-queue-leader-locator", text(value))
            }
            "max-length-bytes" => (
                "x-max-length-bytes",
                number(key, value, i64::MIN..=i64::MAX)?,
            ),
            "stream-max-segment-size-bytes" => (
                "x-stream-max-segment-size-bytes",
                number(key, value, i64::MIN..=i64::MAX)?,
            ),
            "initial-cluster-size" => ("x-initial-cluster-size", number(key, value, 1..=i64::MAX)?),
            "stream-filter-size-bytes" => (
                "x-stream-filter-size-bytes",
                number(key, value, FILTER_SIZES)?,
            ),
            "queue-leader-locator" => refuse!(
                PreconditionFailed,
                "queue-leader-locator must be client-local or balanced, got '{value}'"
            ),
            _ => continue,
        };
        table.set(name, value);
    }
    Ok(table)
}

fn number(key: &str, value: &str, range: std::ops::RangeInclusive<i64>) -> OperationResult<Value> {
    match value.trim().parse() {
        Ok(number) if range.contains(&number) => Ok(Value::I64(number)),
        Ok(_) => refuse!(
            PreconditionFailed,
            "{key} must be in the range {} to {}, got {value}",
            range.start(),
            range.end()
        ),
        Err(_) => refuse!(PreconditionFailed, "{key} must be a number, got '{value}'"),
    }
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned().into())
}

/// Returns true if the queue is a stream.
pub fn is_stream(record: &QueueRecord) -> bool {
    record.kind.name() == "stream"
}

/// The stream of a binding, if its destination is one.
pub fn stream_of_binding<'t>(
    tree: &'t Tree,
    binding: &BindingRecord,
) -> Option<&'t Arc<QueueRecord>> {
    let Destination::Queue(name) = &binding.destination else {
        return None;
    };
    tree.queue(&binding.vhost, name)
        .filter(|record| is_stream(record))
}

/// The position of a binding's stream among the partitions of its super stream. None: the binding states none.
pub fn partition_order(binding: &BindingRecord) -> Option<i64> {
    match binding.arguments.get(PARTITION_ORDER)? {
        Value::String(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        other => other.as_integer(),
    }
}

/// The streams of a super stream in the order of its partitions. None: there is no such exchange.
pub fn partitions_of(tree: &Tree, vhost: &str, super_stream: &str) -> Option<Vec<Name>> {
    tree.exchange(vhost, super_stream)?;
    let bindings = tree.bindings_from(vhost, super_stream);
    let mut streams: Vec<(i64, Name)> = bindings
        .iter()
        .filter_map(|binding| {
            let record = stream_of_binding(tree, binding)?;
            let order = partition_order(binding).unwrap_or(i64::MAX);
            Some((order, record.name.clone()))
        })
        .collect();
    // Bindings of the same order, and without one, keep the order of their names.
    streams.sort_by_key(|(order, _)| *order);
    Some(streams.into_iter().map(|(_, name)| name).collect())
}

impl Caller<'_> {
    /// The record of a stream to declare with [`Change::DeclareQueue`], after its members have been chosen.
    pub fn plan_stream(
        &self,
        name: Name,
        arguments: Table,
    ) -> Result<QueueRecord, StreamCreationError> {
        let declaration = QueueDeclaration {
            name,
            is_server_named: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments,
        };
        match self.plan_queue_declaration(declaration)? {
            QueueDeclarationPlan::Exists(record) => Err(self.existing("stream", &record.name)),
            QueueDeclarationPlan::Propose(record) => Ok(record),
        }
    }

    fn existing(&self, object: &str, name: &str) -> StreamCreationError {
        let vhost = self.vhost;
        StreamCreationError::Exists(format!(
            "{object} '{name}' in vhost '{vhost}' exists already"
        ))
    }

    /// Plans the creation of a super stream: the changes to propose in this order, after the members of each stream have
    /// been chosen.
    pub fn plan_super_stream(
        &self,
        declaration: SuperStreamDeclaration<'_>,
    ) -> Result<Vec<Change>, StreamCreationError> {
        let SuperStreamDeclaration {
            name,
            partitions,
            mut arguments,
        } = declaration;
        let exchange = stream_name(name)?;
        self.check_super_stream(&exchange, partitions.iter().map(|(stream, _)| *stream))?;
        if partitions.len() > MAX_PARTITIONS {
            let text = format!(
                "super stream '{exchange}' cannot have {} partitions: the limit is {MAX_PARTITIONS}",
                partitions.len()
            );
            return Err(OperationError::new(ErrorKind::PreconditionFailed, text).into());
        }
        let mut names: Vec<Name> = Vec::new();
        for (stream, _) in &partitions {
            let stream = stream_name(stream)?;
            if names.contains(&stream) {
                let text = format!("super stream '{exchange}' has the partition '{stream}' twice");
                return Err(OperationError::new(ErrorKind::PreconditionFailed, text).into());
            }
            names.push(stream);
        }
        if self.exchange(&exchange).is_some() {
            return Err(self.existing("exchange", &exchange));
        }
        if let Some(stream) = names.iter().find(|name| self.queue(name).is_some()) {
            return Err(self.existing("queue", stream));
        }
        if arguments.get("x-queue-leader-locator").is_none() {
            arguments.set("x-queue-leader-locator", text("balanced"));
        }
        let mut marker = Table::default();
        marker.set(SUPER_STREAM, Value::Bool(true));
        let mut changes = vec![Change::DeclareExchange(ExchangeRecord {
            vhost: self.vhost.clone(),
            name: exchange.clone(),
            kind: "direct".into(),
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: marker,
        })];
        let mut bindings = Vec::new();
        for (order, (stream, (_, key))) in names.into_iter().zip(&partitions).enumerate() {
            let record = self.plan_stream(stream.clone(), arguments.clone())?;
            changes.push(Change::DeclareQueue(record));
            let mut arguments = Table::default();
            arguments.set(PARTITION_ORDER, Value::I64(order as i64));
            bindings.push(Change::Bind(BindingRecord {
                vhost: self.vhost.clone(),
                source: exchange.clone(),
                destination: Destination::Queue(stream),
                routing_key: (*key).into(),
                arguments,
            }));
        }
        changes.append(&mut bindings);
        Ok(changes)
    }

    /// Plans the deletion of a super stream with its streams: the changes to propose in this order.
    pub fn plan_super_stream_deletion(&self, name: &str) -> OperationResult<Vec<Change>> {
        let partitions = partitions_of(self.tree, self.vhost, name);
        let names = partitions.iter().flatten();
        self.check_super_stream(name, names.map(|name| &**name))?;
        let Some(partitions) = partitions else {
            return Err(OperationError::missing("super stream", name, self.vhost));
        };
        if name.is_empty() || name.starts_with("amq.") {
            refuse!(
                AccessRefused,
                "'{name}' in vhost '{}' is a system exchange, not a super stream",
                self.vhost
            );
        }
        let mut changes = vec![Change::DeleteExchange {
            vhost: self.vhost.clone(),
            name: name.into(),
            if_unused: false,
        }];
        let records = partitions.iter().filter_map(|name| self.queue(name));
        changes.extend(
            records
                .filter(|record| is_stream(record))
                .map(|record| stream_deletion(record)),
        );
        Ok(changes)
    }

    /// Fails unless the user may create or delete the exchange, the streams and the bindings of a super stream.
    fn check_super_stream<'a>(
        &self,
        exchange: &str,
        partitions: impl Iterator<Item = &'a str>,
    ) -> OperationResult {
        self.check(Right::Configure, Resource::Exchange(exchange))?;
        self.check(Right::Read, Resource::Exchange(exchange))?;
        for partition in partitions {
            self.check(Right::Configure, Resource::Queue(partition))?;
            self.check(Right::Write, Resource::Queue(partition))?;
        }
        Ok(())
    }
}

/// The deletion of a stream.
pub fn stream_deletion(record: &QueueRecord) -> Change {
    Change::DeleteQueue {
        vhost: record.vhost.clone(),
        name: record.name.clone(),
        id: Some(record.id),
    }
}
