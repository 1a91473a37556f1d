//! Methods that declare, delete and bind exchanges and queues.

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
        conn: &mut ConnectionState,
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
                    vhost: conn.vhost.clone(),
                    name: strip(exchange).into(),
                    kind: kind.into(),
                    durable,
                    auto_delete,
                    internal,
                    arguments,
                };
                self.declare_exchange(record, passive, no_wait, conn, cx)
            }
            Method::ExchangeDelete {
                exchange,
                if_unused,
                no_wait,
            } => self.delete_exchange(&strip(exchange), if_unused, no_wait, conn, cx),
            Method::ExchangeBind {
                destination,
                source,
                routing_key,
                no_wait,
                arguments,
            } => {
                let to = Destination::Exchange(strip(destination).into());
                let binding = binding(source, to, routing_key, arguments, conn);
                let reply = (!no_wait).then_some(Method::ExchangeBindOk {});
                self.bind(binding, true, reply, (40, 30), conn, cx)
            }
            Method::ExchangeUnbind {
                destination,
                source,
                routing_key,
                no_wait,
                arguments,
            } => {
                let to = Destination::Exchange(strip(destination).into());
                let binding = binding(source, to, routing_key, arguments, conn);
                let reply = (!no_wait).then_some(Method::ExchangeUnbindOk {});
                self.bind(binding, false, reply, (40, 40), conn, cx)
            }
            _ => refuse!(CommandInvalid, "unimplemented method"),
        }
    }

    pub(crate) fn queue_method(
        &mut self,
        method: Method<'_>,
        conn: &mut ConnectionState,
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
                    return self.declare_reply_queue(&name, no_wait, conn, cx);
                }
                if passive {
                    return self.declare_passive(&name, no_wait, conn, cx);
                }
                let requested = DeclareRequest {
                    name,
                    durable,
                    exclusive,
                    auto_delete,
                    no_wait,
                    arguments,
                };
                self.declare_queue(requested, conn, cx)
            }
            Method::QueueBind {
                queue,
                exchange,
                routing_key,
                no_wait,
                arguments,
            } => {
                let (to, key) = self.binding_end(queue, routing_key)?;
                let binding = binding(exchange, to, &key, arguments, conn);
                let reply = (!no_wait).then_some(Method::QueueBindOk {});
                self.bind(binding, true, reply, (50, 20), conn, cx)
            }
            Method::QueueUnbind {
                queue,
                exchange,
                routing_key,
                arguments,
            } => {
                let (to, key) = self.binding_end(queue, routing_key)?;
                let binding = binding(exchange, to, &key, arguments, conn);
                let reply = Some(Method::QueueUnbindOk {});
                self.bind(binding, false, reply, (50, 50), conn, cx)
            }
            Method::QueuePurge { queue, no_wait } => self.purge(queue, no_wait, conn, cx),
            Method::QueueDelete {
                queue,
                if_unused,
                if_empty,
                no_wait,
            } => {
                let deletion = Deletion {
                    name: strip(&self.resolve_queue(queue)?).into(),
                    if_unused,
                    if_empty,
                    no_wait,
                    ended: Vec::new(),
                };
                self.delete_queue(deletion, conn, cx)
            }
            _ => refuse!(CommandInvalid, "unimplemented method"),
        }
    }

    /// Resolves the destination of a queue binding. If the queue name is empty, the queue declared
    /// last is used, and an empty routing key means its name (section 1.7.2.3).
    fn binding_end(&self, queue: &str, routing_key: &str) -> MethodResult<(Destination, Name)> {
        let name = self.resolve_queue(queue)?;
        let key = match (queue, routing_key) {
            ("", "") => name.clone(),
            (_, key) => key.into(),
        };
        Ok((Destination::Queue(strip(&name).into()), key))
    }

    /// Proposes a metadata change and waits for its result.
    pub(crate) fn change(
        &mut self,
        change: Change,
        wait: WaitReason,
        ids: (u16, u16),
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        conn.flush_settlements(cx);
        let token = conn.new_token(self.number);
        cx.broker.change(token, change);
        self.wait(wait, token, ids, conn, cx);
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
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let reply = (!no_wait).then_some(Method::ExchangeDeclareOk {});
        let tree = cx.broker.tree();
        if !passive {
            directory::check_exchange_kind(&record.kind)?;
        }
        refuse_default(&record.name)?;
        let existing = directory::exchange(tree, conn, &record.name);
        if passive {
            if existing.is_none() {
                return Err(directory::no_exchange(conn, &record.name));
            }
            self.reply(reply, cx);
            return Ok(());
        }
        directory::check(
            tree,
            conn,
            Right::Configure,
            ResourceKind::Exchange,
            &record.name,
        )?;
        match existing {
            // An identical declaration needs no log entry.
            Some(existing) if *existing == record => {
                self.reply(reply, cx);
                return Ok(());
            }
            Some(_) => {}
            None => {
                refuse_reserved("exchange", &record.name)?;
                if let Some(alternate) = record.alternate().map_err(Failure::from_change_error)? {
                    directory::check(
                        tree,
                        conn,
                        Right::Read,
                        ResourceKind::Exchange,
                        &record.name,
                    )?;
                    directory::check(tree, conn, Right::Write, ResourceKind::Exchange, alternate)?;
                }
            }
        }
        self.change(
            Change::DeclareExchange(record),
            WaitReason::Reply(reply),
            (40, 10),
            conn,
            cx,
        );
        Ok(())
    }

    fn delete_exchange(
        &mut self,
        name: &str,
        if_unused: bool,
        no_wait: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        refuse_default(name)?;
        if name.starts_with("amq.") {
            refuse!(
                AccessRefused,
                "deletion of system exchange '{name}' in vhost '{}' not allowed",
                conn.vhost
            );
        }
        let tree = cx.broker.tree();
        directory::check(tree, conn, Right::Configure, ResourceKind::Exchange, name)?;
        let reply = (!no_wait).then_some(Method::ExchangeDeleteOk {});
        let change = Change::DeleteExchange {
            vhost: conn.vhost.clone(),
            name: name.into(),
            if_unused,
        };
        self.change(change, WaitReason::Reply(reply), (40, 20), conn, cx);
        Ok(())
    }

    fn bind(
        &mut self,
        binding: BindingRecord,
        add: bool,
        reply: Option<Method<'static>>,
        ids: (u16, u16),
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let tree = cx.broker.tree();
        match &binding.destination {
            Destination::Queue(name) => {
                directory::check(tree, conn, Right::Write, ResourceKind::Queue, name)?;
            }
            Destination::Exchange(name) => {
                directory::check(tree, conn, Right::Write, ResourceKind::Exchange, name)?;
                refuse_default(name)?;
            }
        }
        refuse_default(&binding.source)?;
        directory::check(
            tree,
            conn,
            Right::Read,
            ResourceKind::Exchange,
            &binding.source,
        )?;
        if let Some(source) = directory::exchange(tree, conn, &binding.source)
            && &*source.kind == "topic"
        {
            directory::check_topic(tree, conn, Right::Read, source, &binding.routing_key)?;
        }
        if let Destination::Queue(name) = &binding.destination
            && let Some(queue) = directory::queue(tree, conn, name)
            && let Err(locked) = directory::check_owner(queue, cx.broker.id())
        {
            // Removing a binding that does not exist always succeeds.
            let bindings = || tree.bindings_of_queue(queue.id);
            if add || bindings().iter().any(|b| ***b == binding) {
                return Err(locked);
            }
        }
        let change = if add {
            Change::Bind(binding)
        } else {
            Change::Unbind(binding)
        };
        self.change(change, WaitReason::Reply(reply), ids, conn, cx);
        Ok(())
    }

    fn declare_passive(
        &mut self,
        name: &str,
        no_wait: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let record = directory::queue_for(cx.broker, conn, name)?;
        let (id, name) = (record.id, record.name.clone());
        self.reply_declared(id, name, no_wait, (50, 10), conn, cx);
        Ok(())
    }

    /// Completes the declaration of an existing queue: declare-ok needs its counts, unless there is
    /// no reply.
    pub(crate) fn reply_declared(
        &mut self,
        id: QueueId,
        name: Name,
        no_wait: bool,
        ids: (u16, u16),
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        self.last_queue = name;
        if no_wait {
            return;
        }
        conn.send_request(cx, self.number, id, RequestBody::Stat);
        self.wait(WaitReason::Stat { no_wait }, 0, ids, conn, cx);
    }

    fn declare_queue(
        &mut self,
        requested: DeclareRequest,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let name: Name = match &*requested.name {
            "" => names::generated("amq.gen-", cx.broker).into(),
            name => {
                refuse_reserved("queue", name)?;
                name.into()
            }
        };
        let session = cx.broker.id();
        let tree = cx.broker.tree();
        directory::check(tree, conn, Right::Configure, ResourceKind::Queue, &name)?;
        let persistent = requested.durable && !requested.exclusive && !requested.auto_delete;
        let arguments = tree.with_default_type(&conn.vhost, persistent, requested.arguments);
        let kind = tree
            .queue_kind(&conn.vhost, &name, &arguments)
            .map_err(Failure::from_change_error)?;
        if requested.name.is_empty() && !kind.descriptor().server_named {
            refuse!(
                PreconditionFailed,
                "Cannot declare a server-named queue for type {}",
                kind.module()
            );
        }
        let mut record = QueueRecord {
            id: QueueId::default(),
            vhost: conn.vhost.clone(),
            name,
            kind,
            durable: requested.durable && !requested.exclusive,
            auto_delete: requested.auto_delete,
            exclusive: requested.exclusive.then_some(session),
            arguments,
            members: Vec::new(),
            declared_by: conn.user.clone(),
        };
        let existing = directory::queue(tree, conn, &record.name);
        // A queue of another connection may be deleted earlier in the log, so only the log decides
        // whether it is locked.
        let locked = existing.and_then(|queue| directory::check_owner(queue, session).err());
        if let Some(existing) = existing.filter(|_| locked.is_none()) {
            if is_same(existing, &record) {
                directory::check_home(cx.broker, existing)?;
                let (id, name) = (existing.id, existing.name.clone());
                self.reply_declared(id, name, requested.no_wait, (50, 10), conn, cx);
                return Ok(());
            }
        } else {
            check_dead_lettering(tree, conn, &record)
                .map_err(|failure| locked.unwrap_or(failure))?;
        }
        record.members = cx.broker.place_queue(&record);
        conn.owns_queues |= requested.exclusive;
        let wait = WaitReason::Declare {
            no_wait: requested.no_wait,
        };
        self.change(Change::DeclareQueue(record), wait, (50, 10), conn, cx);
        Ok(())
    }

    fn purge(
        &mut self,
        queue: &str,
        no_wait: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let name = self.resolve_queue(queue)?;
        let tree = cx.broker.tree();
        directory::check(tree, conn, Right::Read, ResourceKind::Queue, &name)?;
        let id = directory::queue_for(cx.broker, conn, &name)?.id;
        conn.send_request(cx, self.number, id, RequestBody::Purge);
        self.wait(WaitReason::Purge { no_wait }, 0, (50, 30), conn, cx);
        Ok(())
    }

    fn delete_queue(
        &mut self,
        deletion: Deletion,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let tree = cx.broker.tree();
        directory::check(
            tree,
            conn,
            Right::Configure,
            ResourceKind::Queue,
            &deletion.name,
        )?;
        if cx.broker.knows_all() || directory::queue(tree, conn, &deletion.name).is_some() {
            return self.delete_known(deletion, conn, cx);
        }
        self.catch_up_before_delete(deletion, conn, cx);
        Ok(())
    }

    /// Deleting a queue that does not exist succeeds. A node that was disconnected may not know the
    /// queue, so catch up with the log first.
    pub(crate) fn catch_up_before_delete(
        &mut self,
        deletion: Deletion,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let change = retry::no_op_change(deletion.name.clone(), conn);
        self.change(
            change,
            WaitReason::DeleteUnknown(deletion),
            (50, 40),
            conn,
            cx,
        );
    }

    /// Deletes a queue according to a tree that is at least as new as the request.
    pub(crate) fn delete_known(
        &mut self,
        deletion: Deletion,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let existing = directory::queue(cx.broker.tree(), conn, &deletion.name);
        let Some(record) = existing.filter(|r| !is_reply_queue(&r.name)).cloned() else {
            let reply = Method::QueueDeleteOk { message_count: 0 };
            self.reply((!deletion.no_wait).then_some(reply), cx);
            return Ok(());
        };
        directory::check_owner(&record, cx.broker.id())?;
        check_conditions(&record, &deletion)?;
        if cx.broker.tree().lost_on(record.id).is_some() {
            // The queue's data is lost and no owner can answer: report no messages and no
            // consumers.
            let change = Change::DeleteQueue {
                vhost: record.vhost.clone(),
                name: record.name.clone(),
                id: Some(record.id),
            };
            let reply = Method::QueueDeleteOk { message_count: 0 };
            let wait = WaitReason::Reply((!deletion.no_wait).then_some(reply));
            self.change(change, wait, (50, 40), conn, cx);
            return Ok(());
        }
        directory::check_home(cx.broker, &record)?;
        let body = RequestBody::Delete {
            if_unused: deletion.if_unused,
            if_empty: deletion.if_empty,
        };
        conn.send_request(cx, self.number, record.id, body);
        self.wait(
            WaitReason::Delete { record, deletion },
            0,
            (50, 40),
            conn,
            cx,
        );
        Ok(())
    }
}

/// As in RabbitMQ, quorum queues do not support the conditions of queue.delete.
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

/// A pending queue.delete.
#[derive(Debug)]
pub(crate) struct Deletion {
    name: Name,
    if_unused: bool,
    if_empty: bool,
    pub no_wait: bool,
    /// The channel's own consumers that the queue has ended so far.
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

/// Removes line breaks from names, as RabbitMQ does.
fn strip(name: &str) -> String {
    name.replace(['\r', '\n'], "")
}

fn binding(
    source: &str,
    destination: Destination,
    routing_key: &str,
    arguments: Table,
    conn: &ConnectionState,
) -> BindingRecord {
    BindingRecord {
        vhost: conn.vhost.clone(),
        source: strip(source).into(),
        destination,
        routing_key: routing_key.into(),
        arguments,
    }
}

/// Dead-lettering requires read permission on the queue and write permission on the exchange.
fn check_dead_lettering(tree: &Tree, conn: &ConnectionState, queue: &QueueRecord) -> MethodResult {
    let Some(target) = queue
        .dead_letter_exchange()
        .map_err(Failure::from_change_error)?
    else {
        return Ok(());
    };
    directory::check(tree, conn, Right::Read, ResourceKind::Queue, &queue.name)?;
    directory::check(tree, conn, Right::Write, ResourceKind::Exchange, target)
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

fn is_same(existing: &QueueRecord, requested: &QueueRecord) -> bool {
    existing.kind == requested.kind
        && existing.durable == requested.durable
        && existing.auto_delete == requested.auto_delete
        && existing.exclusive == requested.exclusive
        && existing.arguments == requested.arguments
}
