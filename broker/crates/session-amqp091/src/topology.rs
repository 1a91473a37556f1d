//! Exchanges, queues and bindings.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::directory::{self, ResourceKind};
use crate::failure::{Failure, MethodResult, refuse};
use crate::names;
use crate::replies::is_reply_queue;
use crate::retry;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Table;
use metadata::{
    BindingRecord, Change, Destination, ExchangeRecord, Name, QueueRecord, Right, Tree,
};
use queue::{ConsumerId, QueueId, RequestBody};

impl Channel {
    pub(crate) fn exchange_method(
        &mut self,
        method: Method<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
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
            _ => refuse!(CommandInvalid, "unimplemented method"),
        }
    }

    pub(crate) fn queue_method(
        &mut self,
        method: Method<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        match method {
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
                if is_reply_queue(&name) {
                    return self.declare_reply_queue(&name, no_wait, link, cx);
                }
                if passive {
                    return self.declare_passive(&name, no_wait, link, cx);
                }
                let requested = DeclareRequest {
                    name,
                    durable,
                    exclusive,
                    auto_delete,
                    no_wait,
                    arguments,
                };
                self.declare_queue(requested, link, cx)
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
                let reply = Some(Method::QueueUnbindOk {});
                self.bind(binding, false, reply, (50, 50), link, cx)
            }
            Method::QueuePurge { queue, no_wait } => self.purge(queue, no_wait, link, cx),
            Method::QueueDelete {
                queue,
                if_unused,
                if_empty,
                no_wait,
            } => {
                let deletion = Deletion {
                    name: strip(&self.expand(queue)?).into(),
                    if_unused,
                    if_empty,
                    no_wait,
                    ended: Vec::new(),
                };
                self.delete_queue(deletion, link, cx)
            }
            _ => refuse!(CommandInvalid, "unimplemented method"),
        }
    }

    /// "" stands for the queue declared last, and then an empty key for its name (section 1.7.2.3).
    fn binding_end(&self, queue: &str, routing_key: &str) -> MethodResult<(Destination, Name)> {
        let name = self.expand(queue)?;
        let key = match (queue, routing_key) {
            ("", "") => name.clone(),
            (_, key) => key.into(),
        };
        Ok((Destination::Queue(strip(&name).into()), key))
    }

    pub(crate) fn change(
        &mut self,
        change: Change,
        wait: WaitReason,
        ids: (u16, u16),
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        link.flush_settlements(cx);
        let token = link.new_token(self.number);
        cx.broker.change(token, change);
        self.wait(wait, token, ids, link, cx);
    }

    pub(crate) fn reply(&self, reply: Option<Method<'static>>, cx: &mut StepContext<'_>) {
        if let Some(method) = reply {
            cx.send(self.number, &method);
        }
    }

    fn declare_exchange(
        &mut self,
        record: ExchangeRecord,
        passive: bool,
        no_wait: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
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
        directory::check(
            tree,
            link,
            Right::Configure,
            ResourceKind::Exchange,
            &record.name,
        )?;
        match there {
            // What is there already needs no log entry.
            Some(there) if *there == record => {
                self.reply(reply, cx);
                return Ok(());
            }
            Some(_) => {}
            None => {
                refuse_reserved("exchange", &record.name)?;
                if let Some(alternate) = record.alternate().map_err(Failure::of_change)? {
                    directory::check(
                        tree,
                        link,
                        Right::Read,
                        ResourceKind::Exchange,
                        &record.name,
                    )?;
                    directory::check(tree, link, Right::Write, ResourceKind::Exchange, alternate)?;
                }
            }
        }
        self.change(
            Change::DeclareExchange(record),
            WaitReason::Reply(reply),
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
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        refuse_default(name)?;
        if name.starts_with("amq.") {
            refuse!(
                AccessRefused,
                "deletion of system exchange '{name}' in vhost '{}' not allowed",
                link.vhost
            );
        }
        let tree = cx.broker.tree();
        directory::check(tree, link, Right::Configure, ResourceKind::Exchange, name)?;
        let reply = (!no_wait).then_some(Method::ExchangeDeleteOk {});
        let change = Change::DeleteExchange {
            vhost: link.vhost.clone(),
            name: name.into(),
            if_unused,
        };
        self.change(change, WaitReason::Reply(reply), (40, 20), link, cx);
        Ok(())
    }

    fn bind(
        &mut self,
        binding: BindingRecord,
        add: bool,
        reply: Option<Method<'static>>,
        ids: (u16, u16),
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let tree = cx.broker.tree();
        match &binding.destination {
            Destination::Queue(name) => {
                directory::check(tree, link, Right::Write, ResourceKind::Queue, name)?;
            }
            Destination::Exchange(name) => {
                directory::check(tree, link, Right::Write, ResourceKind::Exchange, name)?;
                refuse_default(name)?;
            }
        }
        refuse_default(&binding.source)?;
        directory::check(
            tree,
            link,
            Right::Read,
            ResourceKind::Exchange,
            &binding.source,
        )?;
        if let Some(source) = directory::exchange(tree, link, &binding.source)
            && &*source.kind == "topic"
        {
            directory::check_topic(tree, link, Right::Read, source, &binding.routing_key)?;
        }
        if let Destination::Queue(name) = &binding.destination
            && let Some(queue) = directory::queue(tree, link, name)
            && let Err(locked) = directory::check_owner(queue, cx.broker.id())
        {
            // Nobody minds who takes away what is not there.
            let there = || tree.bindings_of_queue(queue.id);
            if add || there().iter().any(|b| ***b == binding) {
                return Err(locked);
            }
        }
        let change = if add {
            Change::Bind(binding)
        } else {
            Change::Unbind(binding)
        };
        self.change(change, WaitReason::Reply(reply), ids, link, cx);
        Ok(())
    }

    fn declare_passive(
        &mut self,
        name: &str,
        no_wait: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let record = directory::queue_for(cx.broker, link, name)?;
        let (id, name) = (record.id, record.name.clone());
        self.declared(id, name, no_wait, (50, 10), link, cx);
        Ok(())
    }

    /// The queue is there: its counts are asked for, unless nobody waits for them.
    pub(crate) fn declared(
        &mut self,
        id: QueueId,
        name: Name,
        no_wait: bool,
        ids: (u16, u16),
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        self.last_queue = name;
        if no_wait {
            return;
        }
        link.ask(cx, self.number, id, RequestBody::Stat);
        self.wait(WaitReason::Stat { no_wait }, 0, ids, link, cx);
    }

    fn declare_queue(
        &mut self,
        requested: DeclareRequest,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let name: Name = match &*requested.name {
            "" => names::generated("amq.gen-", cx.broker).into(),
            given => {
                refuse_reserved("queue", given)?;
                given.into()
            }
        };
        let session = cx.broker.id();
        let tree = cx.broker.tree();
        directory::check(tree, link, Right::Configure, ResourceKind::Queue, &name)?;
        let lasting = requested.durable && !requested.exclusive && !requested.auto_delete;
        let arguments = tree.with_default_type(&link.vhost, lasting, requested.arguments);
        let kind = tree
            .queue_kind(&link.vhost, &name, &arguments)
            .map_err(Failure::of_change)?;
        if requested.name.is_empty() && !kind.descriptor().server_named {
            refuse!(
                PreconditionFailed,
                "Cannot declare a server-named queue for type {}",
                kind.module()
            );
        }
        let mut record = QueueRecord {
            id: QueueId::default(),
            vhost: link.vhost.clone(),
            name,
            kind,
            durable: requested.durable && !requested.exclusive,
            auto_delete: requested.auto_delete,
            exclusive: requested.exclusive.then_some(session),
            arguments,
            members: Vec::new(),
            declared_by: link.user.clone(),
        };
        let there = directory::queue(tree, link, &record.name);
        // Another connection's may be on its way out, ahead of us in the log: the log says whether it is locked.
        let locked = there.and_then(|queue| directory::check_owner(queue, session).err());
        if let Some(there) = there.filter(|_| locked.is_none()) {
            if is_same(there, &record) {
                directory::check_home(cx.broker, there)?;
                let (id, name) = (there.id, there.name.clone());
                self.declared(id, name, requested.no_wait, (50, 10), link, cx);
                return Ok(());
            }
        } else {
            check_dead_lettering(tree, link, &record)
                .map_err(|refused| locked.unwrap_or(refused))?;
        }
        record.members = cx.broker.place_queue(&record);
        link.owns_queues |= requested.exclusive;
        let wait = WaitReason::Declare {
            no_wait: requested.no_wait,
        };
        self.change(Change::DeclareQueue(record), wait, (50, 10), link, cx);
        Ok(())
    }

    fn purge(
        &mut self,
        queue: &str,
        no_wait: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let name = self.expand(queue)?;
        let tree = cx.broker.tree();
        directory::check(tree, link, Right::Read, ResourceKind::Queue, &name)?;
        let id = directory::queue_for(cx.broker, link, &name)?.id;
        link.ask(cx, self.number, id, RequestBody::Purge);
        self.wait(WaitReason::Purge { no_wait }, 0, (50, 30), link, cx);
        Ok(())
    }

    fn delete_queue(
        &mut self,
        deletion: Deletion,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let tree = cx.broker.tree();
        directory::check(
            tree,
            link,
            Right::Configure,
            ResourceKind::Queue,
            &deletion.name,
        )?;
        if cx.broker.knows_all() || directory::queue(tree, link, &deletion.name).is_some() {
            return self.delete_known(deletion, link, cx);
        }
        self.ask_the_log(deletion, link, cx);
        Ok(())
    }

    /// Deleting what is not there succeeds. A node that was cut off may not know what is there: the log does.
    pub(crate) fn ask_the_log(
        &mut self,
        deletion: Deletion,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let change = retry::nothing(deletion.name.clone(), link);
        self.change(change, WaitReason::Unknown(deletion), (50, 40), link, cx);
    }

    /// With a tree that is not older than the client's wish.
    pub(crate) fn delete_known(
        &mut self,
        deletion: Deletion,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let there = directory::queue(cx.broker.tree(), link, &deletion.name);
        let Some(record) = there.filter(|r| !is_reply_queue(&r.name)).cloned() else {
            let reply = Method::QueueDeleteOk { message_count: 0 };
            self.reply((!deletion.no_wait).then_some(reply), cx);
            return Ok(());
        };
        directory::check_owner(&record, cx.broker.id())?;
        check_conditions(&record, &deletion)?;
        if cx.broker.tree().lost_on(record.id).is_some() {
            // No owner is left to ask: it has no message and no consumer.
            let change = Change::DeleteQueue {
                vhost: record.vhost.clone(),
                name: record.name.clone(),
                id: Some(record.id),
            };
            let reply = Method::QueueDeleteOk { message_count: 0 };
            let wait = WaitReason::Reply((!deletion.no_wait).then_some(reply));
            self.change(change, wait, (50, 40), link, cx);
            return Ok(());
        }
        directory::check_home(cx.broker, &record)?;
        let body = RequestBody::Delete {
            if_unused: deletion.if_unused,
            if_empty: deletion.if_empty,
        };
        link.ask(cx, self.number, record.id, body);
        self.wait(
            WaitReason::Delete { record, deletion },
            0,
            (50, 40),
            link,
            cx,
        );
        Ok(())
    }
}

/// Quorum queues go without conditions only, as in RabbitMQ.
fn check_conditions(record: &QueueRecord, deletion: &Deletion) -> MethodResult {
    let flag = match (deletion.if_unused, deletion.if_empty) {
        (true, _) => "if-unused",
        (false, true) => "if-empty",
        (false, false) => return Ok(()),
    };
    if !record.kind.descriptor().conditional_delete {
        refuse!(
            NotImplemented,
            "cannot delete queue '{}' in vhost '{}'. queue.delete operations with {flag} flag set are not supported by \
             quorum queues",
            record.name,
            record.vhost
        );
    }
    Ok(())
}

/// A queue.delete.
#[derive(Debug)]
pub(crate) struct Deletion {
    name: Name,
    if_unused: bool,
    if_empty: bool,
    pub no_wait: bool,
    /// The channel's own consumers of the queue, as far as the queue has ended them.
    pub ended: Vec<ConsumerId>,
}

struct DeclareRequest {
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
    link: &ConnectionState,
) -> BindingRecord {
    BindingRecord {
        vhost: link.vhost.clone(),
        source: strip(source).into(),
        destination,
        routing_key: routing_key.into(),
        arguments,
    }
}

/// A queue that dead-letters takes the right to read from it and to write to where that goes.
fn check_dead_lettering(tree: &Tree, link: &ConnectionState, queue: &QueueRecord) -> MethodResult {
    let Some(target) = queue.dead_letter_exchange().map_err(Failure::of_change)? else {
        return Ok(());
    };
    directory::check(tree, link, Right::Read, ResourceKind::Queue, &queue.name)?;
    directory::check(tree, link, Right::Write, ResourceKind::Exchange, target)
}

fn refuse_default(exchange: &str) -> MethodResult {
    if exchange.is_empty() {
        refuse!(
            AccessRefused,
            "operation not permitted on the default exchange"
        );
    }
    Ok(())
}

fn refuse_reserved(kind: &str, name: &str) -> MethodResult {
    if name.starts_with("amq.") {
        refuse!(
            AccessRefused,
            "{kind} name '{name}' contains reserved prefix 'amq.*'"
        );
    }
    Ok(())
}

fn is_same(there: &QueueRecord, wished: &QueueRecord) -> bool {
    there.kind == wished.kind
        && there.durable == wished.durable
        && there.auto_delete == wished.auto_delete
        && there.exclusive == wished.exclusive
        && there.arguments == wished.arguments
}
