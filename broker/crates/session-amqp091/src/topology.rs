//! Methods that declare, delete and bind exchanges and queues.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::directory;
use crate::failure::{MethodResult, refuse};
use crate::names;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Table;
use metadata::{BindingRecord, Change, Destination, ExchangeRecord, Name, QueueRecord, Right};
use operations::{
    BindingOperation, ExchangePlan, QueueDeclaration, QueueDeclarationPlan, QueueDeletion,
    QueueDeletionPlan, Resource, is_direct_reply_name,
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
                self.bind(binding, BindingOperation::Bind, reply, (40, 30), conn, cx)
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
                self.bind(binding, BindingOperation::Unbind, reply, (40, 40), conn, cx)
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
                if is_direct_reply_name(&name) {
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
                self.bind(binding, BindingOperation::Bind, reply, (50, 20), conn, cx)
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
                self.bind(binding, BindingOperation::Unbind, reply, (50, 50), conn, cx)
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
        let caller = directory::caller(cx.broker, conn);
        if passive {
            caller.check_exchange_exists(&record.name)?;
            self.reply(reply, cx);
            return Ok(());
        }
        match caller.plan_exchange_declaration(record)? {
            ExchangePlan::Done => self.reply(reply, cx),
            ExchangePlan::Propose(change) => {
                self.change(change, WaitReason::Reply(reply), (40, 10), conn, cx);
            }
        }
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
        let reply = (!no_wait).then_some(Method::ExchangeDeleteOk {});
        let change = directory::caller(cx.broker, conn).plan_exchange_deletion(name, if_unused)?;
        self.change(change, WaitReason::Reply(reply), (40, 20), conn, cx);
        Ok(())
    }

    fn bind(
        &mut self,
        binding: BindingRecord,
        operation: BindingOperation,
        reply: Option<Method<'static>>,
        ids: (u16, u16),
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let change = directory::caller(cx.broker, conn).plan_binding(operation, binding)?;
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
        let record = directory::available_queue(cx.broker, conn, name)?;
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
        let is_server_named = requested.name.is_empty();
        let name: Name = match is_server_named {
            true => names::generated("amq.gen-", cx.broker).into(),
            false => requested.name.into(),
        };
        let DeclareRequest {
            durable,
            exclusive,
            auto_delete,
            no_wait,
            arguments,
            ..
        } = requested;
        let declaration = QueueDeclaration {
            name,
            is_server_named,
            durable,
            exclusive,
            auto_delete,
            arguments,
        };
        let plan = directory::caller(cx.broker, conn).plan_queue_declaration(declaration)?;
        match plan {
            QueueDeclarationPlan::Exists(existing) => {
                directory::check_available(cx.broker, conn, &existing)?;
                let (id, name) = (existing.id, existing.name.clone());
                self.reply_declared(id, name, no_wait, (50, 10), conn, cx);
            }
            QueueDeclarationPlan::Propose(mut record) => {
                record.members = cx.broker.place_queue(&record);
                conn.owns_queues |= exclusive;
                let (change, wait) = (
                    Change::DeclareQueue(record),
                    WaitReason::Declare { no_wait },
                );
                self.change(change, wait, (50, 10), conn, cx);
            }
        }
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
        let id = directory::readable_queue(cx.broker, conn, &name)?.id;
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
        let caller = directory::caller(cx.broker, conn);
        caller.check(Right::Configure, Resource::Queue(&deletion.name))?;
        if cx.broker.knows_all() || caller.queue(&deletion.name).is_some() {
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
        self.change(
            Change::Barrier {},
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
        let conditions = QueueDeletion {
            if_unused: deletion.if_unused,
            if_empty: deletion.if_empty,
        };
        let caller = directory::caller(cx.broker, conn);
        // A queue that does not exist or whose data is lost has no messages.
        let reply = Method::QueueDeleteOk { message_count: 0 };
        let reply = (!deletion.no_wait).then_some(reply);
        match caller.plan_queue_deletion(&deletion.name, conditions)? {
            QueueDeletionPlan::Done => self.reply(reply, cx),
            QueueDeletionPlan::Propose(change) => {
                self.change(change, WaitReason::Reply(reply), (50, 40), conn, cx);
            }
            QueueDeletionPlan::AskQueue {
                record,
                request,
                change,
            } => {
                check_conditions(&record, conditions)?;
                directory::check_available(cx.broker, conn, &record)?;
                conn.send_request(cx, self.number, record.id, request);
                let queue = record.id;
                let wait = WaitReason::Delete {
                    queue,
                    change: Box::new(change),
                    deletion,
                };
                self.wait(wait, 0, (50, 40), conn, cx);
            }
        }
        Ok(())
    }
}

/// As in RabbitMQ, queue.delete supports no conditions for quorum queues.
fn check_conditions(record: &QueueRecord, deletion: QueueDeletion) -> MethodResult {
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
