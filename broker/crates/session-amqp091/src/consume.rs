//! Consumers, basic.get and settlement of deliveries.

use crate::channel::{Channel, ChannelState};
use crate::channel_prefetch::effective_prefetch;
use crate::connection_state::{ClientOutcome, ConnectionState, StepContext, Subscription};
use crate::consumer_arguments::ConsumerArguments;
use crate::directory;
use crate::failure::{MethodResult, refuse};
use crate::left_queues::LeftQueues;
use crate::names;
use crate::replies::REPLY_TO;
use crate::unacked::UnackedDelivery;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Table;
use metadata::features::QUEUE_ARGUMENT_CHECKS;
use metadata::{Name, QueueId, QueueType};
use queue::{ConsumerId, ConsumerSpec, RequestBody};
use session::WrittenDeliveries;

impl Channel {
    pub(crate) fn consuming_method(
        &mut self,
        method: Method<'_>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        match method {
            Method::BasicQos { prefetch_size, .. } if prefetch_size != 0 => {
                refuse!(NotImplemented, "prefetch_size!=0 ({prefetch_size})")
            }
            Method::BasicQos {
                prefetch_count,
                global,
                ..
            } => {
                if global && conn.limits.permits_global_qos {
                    self.limit_channel(prefetch_count.into(), conn, cx);
                } else {
                    // As in RabbitMQ, setting the prefetch of consumers removes the channel's
                    // limit.
                    self.limit_channel(0, conn, cx);
                    self.prefetch = prefetch_count.into();
                }
                cx.send(self.number, &Method::BasicQosOk {});
                self.pump(conn, cx);
                Ok(())
            }
            Method::BasicConsume {
                queue,
                consumer_tag,
                no_ack,
                exclusive,
                no_wait,
                arguments,
                ..
            } => {
                let requested = ConsumeRequest {
                    queue,
                    consumer_tag,
                    no_ack,
                    exclusive,
                    no_wait,
                    arguments,
                };
                self.consume(requested, conn, cx)
            }
            Method::BasicCancel {
                consumer_tag,
                no_wait,
            } => {
                self.cancel(consumer_tag, no_wait, conn, cx);
                Ok(())
            }
            Method::BasicGet { queue, no_ack } => self.get(queue, no_ack, conn, cx),
            Method::BasicRecover { requeue: false }
            | Method::BasicRecoverAsync { requeue: false } => {
                refuse!(NotImplemented, "requeue=false")
            }
            recover => {
                self.recover(conn, cx);
                if matches!(recover, Method::BasicRecover { .. }) {
                    cx.send(self.number, &Method::BasicRecoverOk {});
                }
                self.pump(conn, cx);
                Ok(())
            }
        }
    }

    /// Requeues all unacknowledged deliveries.
    fn recover(&mut self, conn: &mut ConnectionState, cx: &mut StepContext<'_>) {
        let mut all = self.unacked.take_all();
        self.sort_by_consumer(&mut all, conn);
        for unacked in all {
            conn.settle(unacked.origin, queue::SettlementOutcome::Requeue);
        }
        conn.flush_settlements(cx);
    }

    fn consume(
        &mut self,
        requested: ConsumeRequest<'_>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        if self.consumers.contains_key(requested.consumer_tag) {
            refuse!(
                NotAllowed,
                "attempt to reuse consumer tag '{}'",
                requested.consumer_tag
            );
        }
        if self.consumers.len() >= conn.limits.consumers {
            refuse!(
                NotAllowed,
                "reached maximum ({}) of consumers per channel",
                conn.limits.consumers
            );
        }
        if requested.queue == REPLY_TO {
            let ConsumeRequest {
                consumer_tag,
                no_ack,
                no_wait,
                ..
            } = requested;
            return self.consume_replies(consumer_tag, no_ack, no_wait, conn, cx);
        }
        let name = self.resolve_queue(requested.queue)?;
        let record = directory::readable_queue(cx.broker, conn, &name)?;
        if self.channel_prefetch > 0 && !record.kind.descriptor().consumers.adjustable_credit {
            refuse!(
                NotImplemented,
                "queue '{name}' in vhost '{}' does not support global qos",
                conn.vhost
            );
        }
        if !requested.arguments.is_shallow() {
            refuse!(
                PreconditionFailed,
                "arguments of consumer '{}' are nested deeper than {}",
                requested.consumer_tag,
                message::MAX_TABLE_DEPTH
            );
        }
        let checked = ConsumerArguments {
            arguments: &requested.arguments,
            queue: &name,
            kind: record.kind,
            vhost: &conn.vhost,
        };
        let priority = checked.priority()?;
        if (cx.broker.tree()).feature_enabled(QUEUE_ARGUMENT_CHECKS.name) {
            checked.check_timeout()?;
        }
        let (queue, kind) = (record.id, record.kind);
        if requested.no_ack && kind.descriptor().cursors {
            refuse!(
                NotImplemented,
                "automatic acknowledgement not supported by stream queue '{name}' in vhost '{}'",
                conn.vhost
            );
        }
        let rules = &kind.descriptor().consumers;
        let tag: Name = match requested.consumer_tag {
            "" => names::generated("amq.ctag-", cx.broker).into(),
            name => name.into(),
        };
        let spec = ConsumerSpec {
            tag,
            channel: self.number,
            flow_mode: queue::FlowMode::Prefetch,
            // As in RabbitMQ, a quorum queue limits the deliveries in flight to a consumer without
            // acknowledgement as well.
            prefetch: effective_prefetch(
                requested.no_ack && rules.unlimited_prefetch == usize::MAX,
                self.prefetch,
                self.channel_prefetch,
            ),
            // In automatic acknowledgement mode this session settles a delivery when it is in the
            // outbox. If the queue settled it on sending, a client that does not read would pull
            // the whole queue into memory.
            no_ack: false,
            // As in RabbitMQ, quorum queues ignore `exclusive`; they offer single active consumer
            // instead.
            exclusive: requested.exclusive && rules.exclusive,
            priority,
            arguments: requested.arguments,
            filter: None,
        };
        self.subscribe(
            (queue, kind),
            spec,
            requested.no_ack,
            requested.no_wait,
            conn,
            cx,
        );
        Ok(())
    }

    /// Sends the subscription to the queue. consume-ok follows its answer.
    pub(crate) fn subscribe(
        &mut self,
        (queue, kind): (QueueId, QueueType),
        spec: ConsumerSpec,
        no_ack: bool,
        no_wait: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let consumer = conn.new_consumer();
        let subscription = Subscription {
            queue,
            channel: self.number,
            tag: spec.tag.clone(),
            no_ack,
            get: false,
            prefetch: self.prefetch,
            kind,
            written: WrittenDeliveries::default(),
            last_delivery: 0,
            credit: None,
        };
        conn.subscriptions.insert(consumer.0, subscription);
        if self.consumers.insert(spec.tag.clone(), consumer).is_none() {
            conn.count(|t| t.consumers += 1);
        }
        let body = RequestBody::Consume { consumer, spec };
        conn.send_request(cx, self.number, queue, body);
        let wait = WaitReason::Consume { consumer, no_wait };
        self.wait(wait, 0, (60, 20), conn, cx);
    }

    /// Cancels a consumer. Deliveries that the queue sent earlier still reach the client before
    /// cancel-ok.
    fn cancel(
        &mut self,
        tag: &str,
        no_wait: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let consumer = self.consumers.get(tag).copied();
        let subscription = consumer.and_then(|c| conn.subscriptions.get(&c.0));
        let (Some(consumer), Some(queue)) = (consumer, subscription.map(|s| s.queue)) else {
            return self.cancel_ok(tag, no_wait, cx);
        };
        conn.send_oneway(cx, queue, RequestBody::Cancel { consumer });
        let cancellation = Cancellation {
            tag: tag.into(),
            consumer,
            no_wait,
        };
        let record = cx.broker.tree().queue_by_id(queue);
        if record.is_none_or(|r| cx.broker.unreachable_home(r).is_some()) {
            return self.finish_cancel(&cancellation, conn, cx);
        }
        conn.send_request(cx, self.number, queue, RequestBody::Stat);
        self.wait(WaitReason::Cancel(cancellation), 0, (60, 30), conn, cx);
    }

    /// Completes a cancel: the queue sends no more deliveries, or cannot be reached.
    pub(crate) fn finish_cancel(
        &mut self,
        cancellation: &Cancellation,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Cancellation {
            tag,
            consumer,
            no_wait,
        } = cancellation;
        self.return_held(*consumer, conn);
        let subscription = conn.subscriptions.remove(&consumer.0);
        if subscription.is_some() {
            self.forget_consumer(tag, conn);
        }
        if self.replies.as_ref().is_some_and(|r| r.tag == *tag) {
            self.end_replies(conn, cx);
        }
        self.cancel_ok(tag, *no_wait, cx);
        if let Some(queue) = subscription.map(|s| s.queue) {
            let left = LeftQueues::of(std::iter::once(queue), cx.broker);
            self.delete_left_queues(left, false, conn, cx);
        }
    }

    fn cancel_ok(&self, consumer_tag: &str, no_wait: bool, cx: &mut StepContext<'_>) {
        if !no_wait {
            cx.send(self.number, &Method::BasicCancelOk { consumer_tag });
        }
    }

    /// Deletes the next unused auto-delete queue. When none is left, the channel continues or
    /// closes.
    pub(crate) fn delete_left_queues(
        &mut self,
        left: LeftQueues,
        closing: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        if left.send_request(self.number, conn, cx) {
            let ids = if closing { (20, 40) } else { (60, 30) };
            self.wait(WaitReason::CountLeft { left, closing }, 0, ids, conn, cx);
        } else if closing {
            self.state = ChannelState::Closed;
            cx.send(self.number, &Method::ChannelCloseOk {});
        }
    }

    /// Requeues deliveries to this consumer that were not written to the client.
    fn return_held(&mut self, consumer: ConsumerId, conn: &mut ConnectionState) {
        self.held_deliveries.retain(|held| {
            let ended = held.consumer == consumer;
            if ended {
                let id = held.delivery.id;
                conn.settle_range(
                    held.queue,
                    consumer,
                    queue::SettlementOutcome::Requeue,
                    (id, id),
                );
            }
            !ended
        });
    }

    /// Handles a consumer that its queue has ended.
    pub(crate) fn handle_queue_cancel(
        &mut self,
        consumer: ConsumerId,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(subscription) = conn.subscriptions.remove(&consumer.0) else {
            return;
        };
        self.held_deliveries
            .retain(|held| held.consumer != consumer);
        self.forget_consumer(&subscription.tag, conn);
        self.replies.take_if(|r| r.tag == subscription.tag);
        if conn.capabilities.consumer_cancel_notify && !subscription.get {
            let method = Method::BasicCancel {
                consumer_tag: &subscription.tag,
                no_wait: true,
            };
            cx.send(self.number, &method);
        }
    }

    /// Handles a consumer that its queue has ended because it did not acknowledge in time. A client that cannot learn
    /// of that loses its channel.
    pub(crate) fn handle_timed_out(
        &mut self,
        consumer: ConsumerId,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let Some(subscription) = conn.subscriptions.get(&consumer.0) else {
            return Ok(());
        };
        let queue = subscription.queue;
        tracing::info!(
            channel = self.number,
            consumer = &*subscription.tag,
            queue = queue.0,
            "consumer did not acknowledge in time"
        );
        if !conn.capabilities.consumer_cancel_notify {
            refuse!(
                PreconditionFailed,
                "delivery acknowledgement on channel {} timed out. This timeout value can be configured, see consumers \
                 doc guide to learn more",
                self.number
            );
        }
        conn.send_oneway(cx, queue, RequestBody::Cancel { consumer });
        self.handle_queue_cancel(consumer, conn, cx);
        Ok(())
    }

    fn get(
        &mut self,
        queue: &str,
        no_ack: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let name = self.resolve_queue(queue)?;
        let record = directory::readable_queue(cx.broker, conn, &name)?;
        let (queue, kind) = (record.id, record.kind);
        let consumer = conn.new_consumer();
        let subscription = Subscription {
            queue,
            channel: self.number,
            tag: "".into(),
            no_ack,
            get: true,
            prefetch: 0,
            kind,
            written: WrittenDeliveries::default(),
            last_delivery: 0,
            credit: None,
        };
        conn.subscriptions.insert(consumer.0, subscription);
        conn.send_request(
            cx,
            self.number,
            queue,
            RequestBody::Get { consumer, no_ack },
        );
        self.wait(WaitReason::Get { consumer, no_ack }, 0, (60, 70), conn, cx);
        Ok(())
    }

    pub(crate) fn settle(
        &mut self,
        tag: u64,
        multiple: bool,
        outcome: ClientOutcome,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let mut count = 0;
        let mut all = None;
        if multiple {
            all = self.unacked.take_up_to(tag);
            self.sort_by_consumer(all.as_deref_mut().unwrap_or_default(), conn);
        }
        let mut tx = self.transaction.as_deref_mut();
        let mut settle = |unacked: UnackedDelivery| match &mut tx {
            Some(tx) => tx.settle(unacked, outcome, conn),
            None => {
                conn.settle(unacked.origin, outcome);
                count += 1;
                Ok(())
            }
        };
        let known = if multiple {
            all.map(|all| all.into_iter().try_for_each(settle))
        } else {
            self.unacked.take(tag).map(&mut settle)
        };
        match known {
            Some(settled) => settled?,
            None => refuse!(PreconditionFailed, "unknown delivery tag {tag}"),
        }
        if outcome == queue::SettlementOutcome::Accepted.into() && count > 0 {
            self.counts().deliveries.ack += count;
        }
        if !self.held_deliveries.is_empty() {
            self.pump(conn, cx);
        }
        Ok(())
    }

    /// Resolves a queue name; the empty name is the queue declared last.
    pub(crate) fn resolve_queue(&self, queue: &str) -> MethodResult<Name> {
        match queue {
            "" if self.last_queue.is_empty() => refuse!(NotFound, "no previously declared queue"),
            "" => Ok(self.last_queue.clone()),
            name => Ok(name.into()),
        }
    }
}

impl Channel {
    /// Sorts deliveries in the order in which RabbitMQ settles them: basic.get first, each by
    /// itself, then by consumer tag, including cancelled consumers. Queues serve other consumers in
    /// between.
    fn sort_by_consumer(&self, all: &mut [UnackedDelivery], conn: &ConnectionState) {
        let same_consumer = |pair: &[UnackedDelivery]| matches!(pair, [a, b] if a.origin.consumer == b.origin.consumer);
        if all.windows(2).all(same_consumer) {
            return;
        }
        let tag = |unacked: &UnackedDelivery| self.tag_of(unacked.origin.consumer, conn);
        // Stable: the deliveries of a consumer keep their order.
        all.sort_by(|a, b| {
            let by_tag = match a.by_get && b.by_get {
                true => a.tag.cmp(&b.tag),
                false => tag(a).cmp(tag(b)),
            };
            b.by_get
                .cmp(&a.by_get)
                .then(by_tag)
                .then(a.origin.consumer.cmp(&b.origin.consumer))
        });
    }
}

/// A pending basic.cancel.
#[derive(Debug)]
pub(crate) struct Cancellation {
    tag: Name,
    consumer: ConsumerId,
    no_wait: bool,
}

struct ConsumeRequest<'a> {
    queue: &'a str,
    consumer_tag: &'a str,
    no_ack: bool,
    exclusive: bool,
    no_wait: bool,
    arguments: Table,
}
