//! Creation and deletion of streams and super streams.

use crate::lookup::{PARTITION_ORDER, is_stream, partitions_of};
use crate::session::{StepContext, StreamSession, count_error};
use crate::wait::Changes;
use codec_stream::{CommandKey, DecodeError, List, Property, ResponseCode};
use message::{Table, Value};
use metadata::{BindingRecord, Change, Destination, ExchangeRecord, Name, QueueRecord, Right};
use operations::{ErrorKind, OperationError, QueueDeclaration, QueueDeclarationPlan, Resource};

/// Values of the argument `queue-leader-locator`.
const LEADER_LOCATORS: [&str; 4] = ["client-local", "balanced", "random", "least-leaders"];
/// Smallest and largest value of the argument `stream-filter-size-bytes`.
const FILTER_SIZES: std::ops::RangeInclusive<i64> = 16..=255;
/// Most partitions of a super stream that a client creates.
const MAX_PARTITIONS: usize = 1000;

/// A super stream to create.
pub(crate) struct NewSuperStream<'a> {
    pub name: &'a str,
    pub partitions: List<'a, &'a str>,
    pub binding_keys: List<'a, &'a str>,
    pub arguments: List<'a, Property<'a>>,
}

/// The name without line breaks, as RabbitMQ strips them. None: it is empty or reserved.
fn valid_name(name: &str) -> Option<Name> {
    let name: String = name.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let is_valid = !name.is_empty() && !name.starts_with("amq.");
    is_valid.then(|| name.into())
}

/// The arguments of a stream's queue. As in RabbitMQ, arguments with other names are ignored.
fn queue_arguments(arguments: &List<'_, Property<'_>>) -> Result<Table, ResponseCode> {
    let refused = Err(ResponseCode::PRECONDITION_FAILED);
    let mut table = Table::default();
    table.set("x-queue-type", text("stream"));
    for Property { key, value } in arguments.iter() {
        let number = || value.trim().parse::<i64>();
        let (name, value) = match key {
            "max-age" => ("x-max-age", text(value)),
            "queue-leader-locator" if LEADER_LOCATORS.contains(&value) => {
                ("x-queue-leader-locator", text(value))
            }
            "max-length-bytes"
            | "stream-max-segment-size-bytes"
            | "initial-cluster-size"
            | "stream-filter-size-bytes" => {
                let Ok(number) = number() else {
                    return refused;
                };
                let (name, is_valid) = match key {
                    "max-length-bytes" => ("x-max-length-bytes", true),
                    "initial-cluster-size" => ("x-initial-cluster-size", number > 0),
                    "stream-filter-size-bytes" => {
                        ("x-stream-filter-size-bytes", FILTER_SIZES.contains(&number))
                    }
                    _ => ("x-stream-max-segment-size-bytes", true),
                };
                if !is_valid {
                    return refused;
                }
                (name, Value::I64(number))
            }
            "queue-leader-locator" => return refused,
            _ => continue,
        };
        table.set(name, value);
    }
    Ok(table)
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned().into())
}

fn code_of(error: &OperationError) -> ResponseCode {
    match error.kind {
        ErrorKind::AccessRefused => ResponseCode::ACCESS_REFUSED,
        ErrorKind::NotFound => ResponseCode::STREAM_DOES_NOT_EXIST,
        ErrorKind::ResourceLocked | ErrorKind::PreconditionFailed | ErrorKind::NotImplemented => {
            ResponseCode::PRECONDITION_FAILED
        }
        ErrorKind::Unavailable => ResponseCode::INTERNAL_ERROR,
    }
}

impl StreamSession {
    pub(crate) fn create(
        &mut self,
        correlation_id: u32,
        stream: &str,
        arguments: List<'_, Property<'_>>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let name = valid_name(stream).ok_or(ResponseCode::PRECONDITION_FAILED)?;
        self.check(Right::Configure, Resource::Queue(&name), cx)?;
        let record = self.plan_stream(name, queue_arguments(&arguments)?, cx)?;
        let changes = vec![Change::DeclareQueue(record)];
        let changes = Changes::new(CommandKey::Create, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    /// The record of a stream to declare.
    fn plan_stream(
        &self,
        name: Name,
        arguments: Table,
        cx: &mut StepContext<'_>,
    ) -> Result<QueueRecord, ResponseCode> {
        let declaration = QueueDeclaration {
            name,
            is_server_named: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments,
        };
        let plan = self.caller(cx.broker).plan_queue_declaration(declaration);
        match plan {
            Ok(QueueDeclarationPlan::Exists(_)) => Err(ResponseCode::STREAM_ALREADY_EXISTS),
            Ok(QueueDeclarationPlan::Propose(mut record)) => {
                record.members = cx.broker.place_queue(&record);
                Ok(record)
            }
            Err(error) => {
                tracing::info!(peer = %self.peer, user = %self.user, %error, "stream refused");
                Err(code_of(&error))
            }
        }
    }

    pub(crate) fn delete(
        &mut self,
        correlation_id: u32,
        stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        self.check(Right::Configure, Resource::Queue(stream), cx)?;
        let record = self.find_stream(stream, cx)?;
        let changes = vec![deletion(&record)];
        let changes = Changes::new(CommandKey::Delete, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    pub(crate) fn create_super_stream(
        &mut self,
        correlation_id: u32,
        request: &NewSuperStream<'_>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let refused = ResponseCode::PRECONDITION_FAILED;
        let exchange = valid_name(request.name).ok_or(refused)?;
        let partitions: Vec<&str> = request.partitions.iter().collect();
        self.check_super_stream(&exchange, &partitions, cx)?;
        if partitions.len() != request.binding_keys.len() || partitions.len() > MAX_PARTITIONS {
            return Err(refused);
        }
        let mut names: Vec<Name> = Vec::new();
        for partition in &partitions {
            let name = valid_name(partition).ok_or(refused)?;
            if names.contains(&name) {
                return Err(refused);
            }
            names.push(name);
        }
        let tree = cx.broker.tree();
        let mut existing = names
            .iter()
            .filter_map(|name| tree.queue(&self.vhost, name));
        if tree.exchange(&self.vhost, &exchange).is_some() || existing.next().is_some() {
            return Err(ResponseCode::STREAM_ALREADY_EXISTS);
        }
        let mut arguments = queue_arguments(&request.arguments)?;
        if arguments.get("x-queue-leader-locator").is_none() {
            arguments.set("x-queue-leader-locator", text("balanced"));
        }
        let changes = self.plan_super_stream(&exchange, names, request, &arguments, cx)?;
        let changes = Changes::new(CommandKey::CreateSuperStream, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    fn plan_super_stream(
        &self,
        exchange: &Name,
        partitions: Vec<Name>,
        request: &NewSuperStream<'_>,
        arguments: &Table,
        cx: &mut StepContext<'_>,
    ) -> Result<Vec<Change>, ResponseCode> {
        let mut marker = Table::default();
        marker.set("x-super-stream", Value::Bool(true));
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
        for (order, (name, key)) in partitions
            .into_iter()
            .zip(request.binding_keys.iter())
            .enumerate()
        {
            let record = self.plan_stream(name.clone(), arguments.clone(), cx)?;
            changes.push(Change::DeclareQueue(record));
            let mut arguments = Table::default();
            arguments.set(PARTITION_ORDER, Value::I64(order as i64));
            bindings.push(Change::Bind(BindingRecord {
                vhost: self.vhost.clone(),
                source: exchange.clone(),
                destination: Destination::Queue(name),
                routing_key: key.into(),
                arguments,
            }));
        }
        changes.append(&mut bindings);
        Ok(changes)
    }

    pub(crate) fn delete_super_stream(
        &mut self,
        correlation_id: u32,
        super_stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let partitions = partitions_of(cx.broker.tree(), &self.vhost, super_stream);
        let names = partitions.clone().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        self.check_super_stream(super_stream, &names, cx)?;
        let partitions = partitions.ok_or(ResponseCode::STREAM_DOES_NOT_EXIST)?;
        if super_stream.is_empty() || super_stream.starts_with("amq.") {
            return Err(ResponseCode::ACCESS_REFUSED);
        }
        let mut changes = vec![Change::DeleteExchange {
            vhost: self.vhost.clone(),
            name: super_stream.into(),
            if_unused: false,
        }];
        let tree = cx.broker.tree();
        let records = partitions
            .iter()
            .filter_map(|name| tree.queue(&self.vhost, name));
        changes.extend(
            records
                .filter(|record| is_stream(record))
                .map(|record| deletion(record)),
        );
        let changes = Changes::new(CommandKey::DeleteSuperStream, correlation_id, changes);
        self.proceed(changes, cx);
        Ok(())
    }

    /// Fails unless the user may create or delete the exchange, the streams and the bindings of a super stream.
    fn check_super_stream(
        &self,
        exchange: &str,
        partitions: &[&str],
        cx: &StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        self.check(Right::Configure, Resource::Exchange(exchange), cx)?;
        self.check(Right::Read, Resource::Exchange(exchange), cx)?;
        for partition in partitions {
            self.check(Right::Configure, Resource::Queue(partition), cx)?;
            self.check(Right::Write, Resource::Queue(partition), cx)?;
        }
        Ok(())
    }

    /// Closes the connection because a frame is malformed.
    pub(crate) fn close_malformed(&mut self, error: &DecodeError, cx: &mut StepContext<'_>) {
        let code = ResponseCode::UNKNOWN_FRAME;
        count_error(code, cx);
        self.flush_confirms(cx);
        self.connection
            .close(code, &error.to_string(), cx.out.tail());
        self.begin_closing(cx);
    }
}

fn deletion(record: &QueueRecord) -> Change {
    Change::DeleteQueue {
        vhost: record.vhost.clone(),
        name: record.name.clone(),
        id: Some(record.id),
    }
}
