//! Exchanges, queues and bindings; and what a channel waits for meanwhile.

use crate::channel::{At, Channel};
use crate::directory::{self, Kind};
use crate::failure::{Failure, Outcome, refuse};
use crate::link::{Cx, Link};
use crate::names;
use crate::unacked::Origin;
use codec_amqp091::Method;
use message::{Table, Value};
use metadata::{
    BindingRecord, Change, Destination, Done, ExchangeRecord, Name, QueueKind, QueueRecord,
    Refused, Right,
};
use queue::{Answer, ConsumerId, Delivery, QueueId, RequestBody};
use std::sync::Arc;

/// What happens when the wait is over.
#[derive(Debug)]
pub(crate) enum Wait {
    /// A change: then this reply.
    Reply(Option<Method<'static>>),
    /// A change that declares a queue.
    Declare {
        no_wait: bool,
    },
    /// An answer with counts, for declare-ok.
    Stat {
        no_wait: bool,
    },
    Purge {
        no_wait: bool,
    },
    /// The queue stops; then its record goes.
    Delete {
        record: Arc<QueueRecord>,
        no_wait: bool,
    },
    /// The change that removes the record.
    Deleted {
        messages: u32,
        no_wait: bool,
    },
    Consume {
        consumer: ConsumerId,
        no_wait: bool,
    },
    Get {
        consumer: ConsumerId,
        no_ack: bool,
    },
    /// Until the queues have what the transaction published.
    Commit,
}

impl Channel {
    pub(crate) fn topology_method(
        &mut self,
        method: Method<'_>,
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Outcome {
        match method {
            Method::ExchangeDeclare {
                exchange,
                kind,
                passive,
                durable,
                auto_delete,
                internal,
                no_wait,
                arguments,
            } => {
                let record = ExchangeRecord {
                    vhost: link.vhost.clone(),
                    name: strip(exchange).into(),
                    kind: kind.into(),
                    durable,
                    auto_delete,
                    internal,
                    arguments,
                };
                self.declare_exchange(record, passive, no_wait, link, cx)
            }
            Method::ExchangeDelete {
                exchange,
                if_unused,
                no_wait,
            } => self.delete_exchange(&strip(exchange), if_unused, no_wait, link, cx),
            Method::ExchangeBind {
                destination,
                source,
                routing_key,
                no_wait,
                arguments,
            } => {
                let to = Destination::Exchange(strip(destination).into());
                let binding = binding(source, to, routing_key, arguments, link);
                let reply = (!no_wait).then_some(Method::ExchangeBindOk {});
                self.bind(binding, true, reply, (40, 30), link, cx)
            }
            Method::ExchangeUnbind {
                destination,
                source,
                routing_key,
                no_wait,
                arguments,
            } => {
                let to = Destination::Exchange(strip(destination).into());
                let binding = binding(source, to, routing_key, arguments, link);
                let reply = (!no_wait).then_some(Method::ExchangeUnbindOk {});
                self.bind(binding, false, reply, (40, 40), link, cx)
            }
            Method::QueueDeclare {
                queue,
                passive,
                durable,
                exclusive,
                auto_delete,
                no_wait,
                arguments,
            } => {
                let name = strip(queue);
                if passive {
                    return self.declare_passive(&name, no_wait, link, cx);
                }
                let wish = Wish {
                    name,
                    durable,
                    exclusive,
                    auto_delete,
                    no_wait,
                    arguments,
                };
                self.declare_queue(wish, link, cx)
            }
            Method::QueueBind {
                queue,
                exchange,
                routing_key,
                no_wait,
                arguments,
            } => {
                let (to, key) = self.binding_end(queue, routing_key)?;
                let binding = binding(exchange, to, &key, arguments, link);
                let reply = (!no_wait).then_some(Method::QueueBindOk {});
                self.bind(binding, true, reply, (50, 20), link, cx)
            }
            Method::QueueUnbind {
                queue,
                exchange,
                routing_key,
                arguments,
            } => {
                let (to, key) = self.binding_end(queue, routing_key)?;
                let binding = binding(exchange, to, &key, arguments, link);
                self.bind(
                    binding,
                    false,
                    Some(Method::QueueUnbindOk {}),
                    (50, 50),
                    link,
                    cx,
                )
            }
            Method::QueuePurge { queue, no_wait } => self.purge(queue, no_wait, link, cx),
            Method::QueueDelete {
                queue,
                if_unused,
                if_empty,
                no_wait,
            } => self.delete_queue(queue, if_unused, if_empty, no_wait, link, cx),
            _ => refuse!(CommandInvalid, "unimplemented method"),
        }
    }

    /// "" stands for the queue declared last, and then an empty key for its name (section 1.7.2.3).
    fn binding_end(&self, queue: &str, routing_key: &str) -> Outcome<(Destination, Name)> {
        let name = self.expand(queue)?;
        let key = match (queue, routing_key) {
            ("", "") => name.clone(),
            (_, key) => key.into(),
        };
        Ok((Destination::Queue(strip(&name).into()), key))
    }

    fn change(
        &mut self,
        change: Change,
        wait: Wait,
        ids: (u16, u16),
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) {
        link.flush_settlements(cx);
        let token = link.new_token(self.number);
        cx.broker.change(token, change);
        self.wait(wait, token, ids, link, cx);
    }

    fn reply(&self, reply: Option<Method<'static>>, cx: &mut Cx<'_>) {
        if let Some(method) = reply {
            cx.send(self.number, &method);
        }
    }

    fn declare_exchange(
        &mut self,
        record: ExchangeRecord,
        passive: bool,
        no_wait: bool,
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Outcome {
        let reply = (!no_wait).then_some(Method::ExchangeDeclareOk {});
        let tree = cx.broker.tree();
        if !passive {
            directory::check_exchange_kind(&record.kind)?;
        }
        refuse_default(&record.name)?;
        let there = directory::exchange(tree, link, &record.name);
        if passive {
            if there.is_none() {
                return Err(directory::no_exchange(link, &record.name));
            }
            self.reply(reply, cx);
            return Ok(());
        }
        directory::check(tree, link, Right::Configure, Kind::Exchange, &record.name)?;
        match there {
            // What is there already needs no log entry.
            Some(there) if *there == record => {
                self.reply(reply, cx);
                return Ok(());
            }
            Some(_) => {}
            None => {
                refuse_reserved("exchange", &record.name)?;
                if let Some(alternate) = named(&record.arguments, "alternate-exchange", || {
                    format!("exchange '{}' in vhost '{}'", record.name, link.vhost)
                })? {
                    directory::check(tree, link, Right::Read, Kind::Exchange, &record.name)?;
                    directory::check(tree, link, Right::Write, Kind::Exchange, &alternate)?;
                }
            }
        }
        self.change(
            Change::DeclareExchange(record),
            Wait::Reply(reply),
            (40, 10),
            link,
            cx,
        );
        Ok(())
    }

    fn delete_exchange(
        &mut self,
        name: &str,
        if_unused: bool,
        no_wait: bool,
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Outcome {
        refuse_default(name)?;
        if name.starts_with("amq.") {
            refuse!(
                AccessRefused,
                "deletion of system exchange '{name}' in vhost '{}' not allowed",
                link.vhost
            );
        }
        let tree = cx.broker.tree();
        directory::check(tree, link, Right::Configure, Kind::Exchange, name)?;
        let reply = (!no_wait).then_some(Method::ExchangeDeleteOk {});
        let change = Change::DeleteExchange {
            vhost: link.vhost.clone(),
            name: name.into(),
            if_unused,
        };
        self.change(change, Wait::Reply(reply), (40, 20), link, cx);
        Ok(())
    }

    fn bind(
        &mut self,
        binding: BindingRecord,
        add: bool,
        reply: Option<Method<'static>>,
        ids: (u16, u16),
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Outcome {
        let tree = cx.broker.tree();
        match &binding.destination {
            Destination::Queue(name) => {
                directory::check(tree, link, Right::Write, Kind::Queue, name)?;
            }
            Destination::Exchange(name) => {
                directory::check(tree, link, Right::Write, Kind::Exchange, name)?;
                refuse_default(name)?;
            }
        }
        refuse_default(&binding.source)?;
        directory::check(tree, link, Right::Read, Kind::Exchange, &binding.source)?;
        if let Some(source) = directory::exchange(tree, link, &binding.source)
            && &*source.kind == "topic"
        {
            directory::check_topic(tree, link, Right::Read, source, &binding.routing_key)?;
        }
        if let Destination::Queue(name) = &binding.destination
            && let Some(queue) = directory::queue(tree, link, name)
        {
            directory::check_owner(queue, cx.broker.id())?;
        }
        let change = if add {
            Change::Bind(binding)
        } else {
            Change::Unbind(binding)
        };
        self.change(change, Wait::Reply(reply), ids, link, cx);
        Ok(())
    }

    fn declare_passive(
        &mut self,
        name: &str,
        no_wait: bool,
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Outcome {
        let record = directory::queue_for(cx.broker.tree(), link, name, cx.broker.id())?;
        let (id, name) = (record.id, record.name.clone());
        self.declared(id, name, no_wait, (50, 10), link, cx);
        Ok(())
    }

    /// The queue is there: its counts are asked for, unless nobody waits for them.
    fn declared(
        &mut self,
        id: QueueId,
        name: Name,
        no_wait: bool,
        ids: (u16, u16),
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) {
        self.last_queue = name;
        if no_wait {
            return;
        }
        link.ask(cx, self.number, id, RequestBody::Stat);
        self.wait(Wait::Stat { no_wait }, 0, ids, link, cx);
    }

    fn declare_queue(&mut self, wish: Wish, link: &mut Link, cx: &mut Cx<'_>) -> Outcome {
        let name: Name = match &*wish.name {
            "" => names::generated("amq.gen-", cx.broker).into(),
            given => {
                refuse_reserved("queue", given)?;
                given.into()
            }
        };
        let session = cx.broker.id();
        let tree = cx.broker.tree();
        directory::check(tree, link, Right::Configure, Kind::Queue, &name)?;
        let kind = queue_kind(&wish.arguments, &name, link)?;
        let mut record = QueueRecord {
            id: QueueId::default(),
            vhost: link.vhost.clone(),
            name,
            kind,
            durable: wish.durable && !wish.exclusive,
            auto_delete: wish.auto_delete,
            exclusive: wish.exclusive.then_some(session),
            arguments: wish.arguments,
            members: Vec::new(),
            declared_by: link.user.clone(),
        };
        if let Some(there) = directory::queue(tree, link, &record.name) {
            directory::check_owner(there, session)?;
            if is_same(there, &record) {
                let (id, name) = (there.id, there.name.clone());
                self.declared(id, name, wish.no_wait, (50, 10), link, cx);
                return Ok(());
            }
        } else if let Some(target) = named(&record.arguments, "x-dead-letter-exchange", || {
            format!("queue '{}' in vhost '{}'", record.name, link.vhost)
        })? {
            directory::check(tree, link, Right::Read, Kind::Queue, &record.name)?;
            directory::check(tree, link, Right::Write, Kind::Exchange, &target)?;
        }
        let replicas = record
            .arguments
            .get("x-quorum-initial-group-size")
            .and_then(Value::as_integer)
            .and_then(|n| u32::try_from(n).ok());
        record.members = cx.broker.place(kind, replicas.unwrap_or(0));
        link.owns_queues |= wish.exclusive;
        let wait = Wait::Declare {
            no_wait: wish.no_wait,
        };
        self.change(Change::DeclareQueue(record), wait, (50, 10), link, cx);
        Ok(())
    }

    fn purge(&mut self, queue: &str, no_wait: bool, link: &mut Link, cx: &mut Cx<'_>) -> Outcome {
        let name = self.expand(queue)?;
        let tree = cx.broker.tree();
        directory::check(tree, link, Right::Read, Kind::Queue, &name)?;
        let id = directory::queue_for(tree, link, &name, cx.broker.id())?.id;
        link.ask(cx, self.number, id, RequestBody::Purge);
        self.wait(Wait::Purge { no_wait }, 0, (50, 30), link, cx);
        Ok(())
    }

    fn delete_queue(
        &mut self,
        queue: &str,
        if_unused: bool,
        if_empty: bool,
        no_wait: bool,
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Outcome {
        let name = strip(&self.expand(queue)?);
        let tree = cx.broker.tree();
        directory::check(tree, link, Right::Configure, Kind::Queue, &name)?;
        let Some(record) = directory::queue(tree, link, &name).cloned() else {
            // Deleting what is not there succeeds.
            self.reply(
                (!no_wait).then_some(Method::QueueDeleteOk { message_count: 0 }),
                cx,
            );
            return Ok(());
        };
        directory::check_owner(&record, cx.broker.id())?;
        let body = RequestBody::Delete {
            if_unused,
            if_empty,
        };
        link.ask(cx, self.number, record.id, body);
        self.wait(Wait::Delete { record, no_wait }, 0, (50, 40), link, cx);
        Ok(())
    }

    /// The metadata group's word. Not for this wait: ignored.
    pub(crate) fn changed(
        &mut self,
        token: u64,
        result: Result<Done, Refused>,
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Result<(), At> {
        let Some(waiting) = self.waiting.take_if(|w| w.token == token && token != 0) else {
            return Ok(());
        };
        let ids = waiting.ids;
        match (waiting.wait, result) {
            (Wait::Reply(reply), Ok(_)) => self.reply(reply, cx),
            (Wait::Declare { no_wait }, Ok(Done::Queue { record, created })) => {
                if created {
                    self.last_queue = record.name.clone();
                    if !no_wait {
                        let method = Method::QueueDeclareOk {
                            queue: &record.name,
                            message_count: 0,
                            consumer_count: 0,
                        };
                        cx.send(self.number, &method);
                    }
                } else {
                    self.declared(record.id, record.name.clone(), no_wait, ids, link, cx);
                }
            }
            (Wait::Deleted { messages, no_wait }, Ok(_) | Err(Refused::NotFound(_))) => {
                let reply = Method::QueueDeleteOk {
                    message_count: messages,
                };
                self.reply((!no_wait).then_some(reply), cx);
            }
            (_, Err(refused)) => {
                return Err(At {
                    failure: Failure::of_change(refused),
                    ids,
                });
            }
            (wait, Ok(_)) => self.waiting_mismatch(wait, ids)?,
        }
        Ok(())
    }

    /// The node answered something that does not belong to the question.
    fn waiting_mismatch(&self, wait: Wait, ids: (u16, u16)) -> Result<(), At> {
        tracing::error!(channel = self.number, ?wait, "an answer of the wrong kind");
        let text = "the node gave an answer of the wrong kind";
        Err(At {
            failure: Failure::new(crate::failure::Code::InternalError, text),
            ids,
        })
    }

    /// A queue's answer.
    pub(crate) fn got_answer(
        &mut self,
        answer: Answer,
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> Result<(), At> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        let ids = waiting.ids;
        let count = |messages: u64| u32::try_from(messages).unwrap_or(u32::MAX);
        match (waiting.wait, answer) {
            (
                Wait::Stat { no_wait: false },
                Answer::Count {
                    messages,
                    consumers,
                },
            ) => {
                let method = Method::QueueDeclareOk {
                    queue: &self.last_queue,
                    message_count: count(messages),
                    consumer_count: consumers,
                };
                cx.send(self.number, &method);
            }
            (Wait::Stat { no_wait: true }, _) => {}
            (Wait::Purge { no_wait }, Answer::Count { messages, .. }) => {
                let reply = Method::QueuePurgeOk {
                    message_count: count(messages),
                };
                self.reply((!no_wait).then_some(reply), cx);
            }
            (Wait::Delete { record, no_wait }, Answer::Count { messages, .. }) => {
                let change = Change::DeleteQueue {
                    vhost: record.vhost.clone(),
                    name: record.name.clone(),
                    id: Some(record.id),
                };
                let wait = Wait::Deleted {
                    messages: count(messages),
                    no_wait,
                };
                self.change(change, wait, ids, link, cx);
            }
            (Wait::Consume { consumer, no_wait }, Answer::Consuming) => {
                self.consuming(consumer, no_wait, link, cx);
            }
            (Wait::Get { consumer, .. }, Answer::Empty) => {
                link.subscriptions.remove(&consumer.0);
                cx.send(self.number, &Method::BasicGetEmpty {});
            }
            (wait, Answer::Refused { code, text }) => {
                self.abandon(&wait, link);
                return Err(At {
                    failure: Failure::of_queue(code, text),
                    ids,
                });
            }
            (wait, _) => {
                self.abandon(&wait, link);
                self.waiting_mismatch(wait, ids)?;
            }
        }
        Ok(())
    }

    fn consuming(&self, consumer: ConsumerId, no_wait: bool, link: &Link, cx: &mut Cx<'_>) {
        if let Some(subscription) = link.subscriptions.get(&consumer.0)
            && !no_wait
        {
            let method = Method::BasicConsumeOk {
                consumer_tag: &subscription.tag,
            };
            cx.send(self.number, &method);
        }
    }

    /// What was made in hope of the answer.
    fn abandon(&mut self, wait: &Wait, link: &mut Link) {
        if let Wait::Consume { consumer, .. } | Wait::Get { consumer, .. } = wait
            && let Some(subscription) = link.subscriptions.remove(&consumer.0)
            && !subscription.get
        {
            self.consumers.remove(&subscription.tag);
        }
    }

    /// Deliveries of a consumer that this channel waits for are its answer. True: they have been dealt with.
    pub(crate) fn delivery_as_answer(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        deliveries: &[Delivery],
        link: &mut Link,
        cx: &mut Cx<'_>,
    ) -> bool {
        let ours = self.waiting.take_if(|w| match w.wait {
            Wait::Consume { consumer: c, .. } | Wait::Get { consumer: c, .. } => c == consumer,
            _ => false,
        });
        let Some(waiting) = ours else {
            return false;
        };
        link.forget_asked(self.number);
        match waiting.wait {
            Wait::Get { no_ack, .. } => {
                link.subscriptions.remove(&consumer.0);
                if let Some(delivery) = deliveries.first() {
                    let origin = Origin {
                        queue,
                        consumer,
                        id: delivery.id,
                    };
                    self.deliver_got(origin, no_ack, delivery, link, cx);
                }
                true
            }
            Wait::Consume { no_wait, .. } => {
                self.consuming(consumer, no_wait, link, cx);
                false
            }
            _ => false,
        }
    }

    /// The queue ended a consumer that this channel still waits for.
    pub(crate) fn cancelled_while_waiting(
        &mut self,
        consumer: ConsumerId,
        link: &mut Link,
    ) -> Result<(), At> {
        let ours = self.waiting.take_if(|w| match w.wait {
            Wait::Consume { consumer: c, .. } | Wait::Get { consumer: c, .. } => c == consumer,
            _ => false,
        });
        let Some(waiting) = ours else {
            return Ok(());
        };
        link.forget_asked(self.number);
        self.abandon(&waiting.wait, link);
        let text = format!("the queue in vhost '{}' is gone", link.vhost);
        let failure = Failure::new(crate::failure::Code::NotFound, text);
        Err(At {
            failure,
            ids: waiting.ids,
        })
    }

    /// Nobody answered in time.
    pub(crate) fn timed_out(&mut self, link: &mut Link, cx: &mut Cx<'_>) -> Result<(), At> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        // What has been published may still arrive: the client asked to know.
        if matches!(waiting.wait, Wait::Commit) {
            self.waiting = Some(waiting);
            return Ok(());
        }
        link.forget_asked(self.number);
        // Counts are a courtesy: the queue is there, only nobody can be asked.
        if matches!(waiting.wait, Wait::Stat { .. }) {
            self.waiting = Some(waiting);
            return self.got_answer(
                Answer::Count {
                    messages: 0,
                    consumers: 0,
                },
                link,
                cx,
            );
        }
        if let Wait::Consume { consumer, .. } | Wait::Get { consumer, .. } = waiting.wait
            && let Some(queue) = link.subscriptions.get(&consumer.0).map(|s| s.queue)
        {
            link.tell(cx, queue, RequestBody::Cancel { consumer });
            link.tell(cx, queue, RequestBody::Recover { consumer });
        }
        self.abandon(&waiting.wait, link);
        let text = "the operation timed out";
        let failure = Failure::new(crate::failure::Code::InternalError, text);
        Err(At {
            failure,
            ids: waiting.ids,
        })
    }
}

struct Wish {
    name: String,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    no_wait: bool,
    arguments: Table,
}

/// Line ends in names are dropped.
fn strip(name: &str) -> String {
    name.replace(['\r', '\n'], "")
}

fn binding(
    source: &str,
    destination: Destination,
    routing_key: &str,
    arguments: Table,
    link: &Link,
) -> BindingRecord {
    BindingRecord {
        vhost: link.vhost.clone(),
        source: strip(source).into(),
        destination,
        routing_key: routing_key.into(),
        arguments,
    }
}

fn refuse_default(exchange: &str) -> Outcome {
    if exchange.is_empty() {
        refuse!(
            AccessRefused,
            "operation not permitted on the default exchange"
        );
    }
    Ok(())
}

fn refuse_reserved(kind: &str, name: &str) -> Outcome {
    if name.starts_with("amq.") {
        refuse!(
            AccessRefused,
            "{kind} name '{name}' contains reserved prefix 'amq.*'"
        );
    }
    Ok(())
}

/// The exchange that an argument names.
fn named(
    arguments: &Table,
    key: &str,
    resource: impl FnOnce() -> String,
) -> Outcome<Option<String>> {
    match arguments.get(key) {
        None => Ok(None),
        Some(value) => match value.as_str() {
            Some(name) => Ok(Some(name.to_owned())),
            None => refuse!(
                PreconditionFailed,
                "invalid type '{}' for arg '{key}' in {}",
                type_name(value),
                resource()
            ),
        },
    }
}

/// As RabbitMQ calls the types of field values.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Void => "void",
        Value::Bool(_) => "bool",
        Value::I8(_) => "byte",
        Value::U8(_) => "unsignedbyte",
        Value::I16(_) => "short",
        Value::U16(_) => "unsignedshort",
        Value::I32(_) => "signedint",
        Value::U32(_) => "unsignedint",
        Value::I64(_) => "long",
        Value::F32(_) => "float",
        Value::F64(_) => "double",
        Value::Decimal { .. } => "decimal",
        Value::String(_) => "longstr",
        Value::Binary(_) => "binary",
        Value::Timestamp(_) => "timestamp",
        Value::Array(_) => "array",
        Value::Table(_) => "table",
    }
}

fn queue_kind(arguments: &Table, name: &str, link: &Link) -> Outcome<QueueKind> {
    match arguments.get("x-queue-type").map(Value::as_str) {
        None | Some(Some("classic")) => Ok(QueueKind::Classic),
        Some(Some("quorum")) => Ok(QueueKind::Quorum),
        Some(other) => refuse!(
            PreconditionFailed,
            "invalid arg 'x-queue-type' for queue '{name}' in vhost '{}': \"unsupported queue type '{}'\"",
            link.vhost,
            other.unwrap_or("")
        ),
    }
}

fn is_same(there: &QueueRecord, wished: &QueueRecord) -> bool {
    there.kind == wished.kind
        && there.durable == wished.durable
        && there.auto_delete == wished.auto_delete
        && there.exclusive == wished.exclusive
        && there.arguments == wished.arguments
}
