//! Consumers, basic.get and settlement.

use crate::channel::{Channel, ChannelState};
use crate::channel_prefetch::window;
use crate::connection_state::{ConnectionState, StepContext, Subscription};
use crate::directory;
use crate::failure::{Failure, MethodResult, refuse};
use crate::flow::WrittenDeliveries;
use crate::left_queues::LeftQueues;
use crate::names;
use crate::replies::REPLY_TO;
use crate::unacked::UnackedDelivery;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Table;
use metadata::{Name, QueueId, QueueType, Right};
use queue::{ConsumerId, ConsumerSpec, RequestBody};

impl Channel {
    pub(crate) fn consuming_method(
        &mut self,
        method: Method<'_>,
        link: &mut ConnectionState,
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
                if global {
                    self.limit_channel(prefetch_count.into(), link, cx);
                } else {
                    // Setting the consumers' limit lifts the channel's, as in RabbitMQ.
                    self.limit_channel(0, link, cx);
                    self.prefetch = prefetch_count.into();
                }
                cx.send(self.number, &Method::BasicQosOk {});
                self.pump(link, cx);
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
                self.consume(requested, link, cx)
            }
            Method::BasicCancel {
                consumer_tag,
                no_wait,
            } => {
                self.cancel(consumer_tag, no_wait, link, cx);
                Ok(())
            }
            Method::BasicGet { queue, no_ack } => self.get(queue, no_ack, link, cx),
            Method::BasicRecover { requeue: false }
            | Method::BasicRecoverAsync { requeue: false } => {
                refuse!(NotImplemented, "requeue=false")
            }
            recover => {
                self.recover(link, cx);
                if matches!(recover, Method::BasicRecover { .. }) {
                    cx.send(self.number, &Method::BasicRecoverOk {});
                }
                self.pump(link, cx);
                Ok(())
            }
        }
    }

    /// Everything unacknowledged goes back.
    fn recover(&mut self, link: &mut ConnectionState, cx: &mut StepContext<'_>) {
        let mut all = self.unacked.take_all();
        self.consumer_by_consumer(&mut all, link);
        for owed in all {
            link.settle(owed.origin, queue::SettlementOutcome::Requeue);
        }
        link.flush_settlements(cx);
    }

    fn consume(
        &mut self,
        requested: ConsumeRequest<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        if self.consumers.contains_key(requested.consumer_tag) {
            refuse!(
                NotAllowed,
                "attempt to reuse consumer tag '{}'",
                requested.consumer_tag
            );
        }
        if self.consumers.len() >= link.limits.consumers {
            refuse!(
                NotAllowed,
                "reached maximum ({}) of consumers per channel",
                link.limits.consumers
            );
        }
        if requested.queue == REPLY_TO {
            let ConsumeRequest {
                consumer_tag,
                no_ack,
                no_wait,
                ..
            } = requested;
            return self.consume_replies(consumer_tag, no_ack, no_wait, link, cx);
        }
        let name = self.expand(requested.queue)?;
        let tree = cx.broker.tree();
        directory::check(
            tree,
            link,
            Right::Read,
            directory::ResourceKind::Queue,
            &name,
        )?;
        let record = directory::queue_for(cx.broker, link, &name)?;
        if self.channel_prefetch > 0 && !record.kind.descriptor().consumers.adjustable_credit {
            refuse!(
                NotImplemented,
                "queue '{name}' in vhost '{}' does not support global qos",
                link.vhost
            );
        }
        if !queue::codec::is_shallow(&requested.arguments) {
            refuse!(
                PreconditionFailed,
                "arguments of consumer '{}' are nested deeper than {}",
                requested.consumer_tag,
                queue::codec::MAX_DEPTH
            );
        }
        let priority = consumer_priority(&requested.arguments, &name, record.kind, link)?;
        let (queue, kind) = (record.id, record.kind);
        let rules = &kind.descriptor().consumers;
        let tag: Name = match requested.consumer_tag {
            "" => names::generated("amq.ctag-", cx.broker).into(),
            given => given.into(),
        };
        let spec = ConsumerSpec {
            tag,
            channel: self.number,
            // As in RabbitMQ, the limit of a quorum queue also holds for a consumer that does not acknowledge.
            prefetch: window(
                requested.no_ack && rules.unlimited_prefetch == usize::MAX,
                self.prefetch,
                self.channel_prefetch,
            ),
            // Without acknowledgement this session settles, when a delivery is in the outbox: were it settled when it
            // leaves the queue, a client that does not read would draw the whole queue into this session's memory.
            no_ack: false,
            // A quorum queue ignores the flag, as in RabbitMQ, and offers a single active consumer instead.
            exclusive: requested.exclusive && rules.exclusive,
            priority,
            arguments: requested.arguments,
        };
        self.subscribe(
            (queue, kind),
            spec,
            requested.no_ack,
            requested.no_wait,
            link,
            cx,
        );
        Ok(())
    }

    /// Asks the queue; consume-ok follows its answer.
    pub(crate) fn subscribe(
        &mut self,
        (queue, kind): (QueueId, QueueType),
        spec: ConsumerSpec,
        no_ack: bool,
        no_wait: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let consumer = link.new_consumer();
        let subscription = Subscription {
            queue,
            channel: self.number,
            tag: spec.tag.clone(),
            no_ack,
            get: false,
            prefetch: self.prefetch,
            kind,
            written: WrittenDeliveries::default(),
            came: 0,
            credit: None,
        };
        link.subscriptions.insert(consumer.0, subscription);
        if self.consumers.insert(spec.tag.clone(), consumer).is_none() {
            link.count(|t| t.consumers += 1);
        }
        let body = RequestBody::Consume { consumer, spec };
        link.ask(cx, self.number, queue, body);
        let wait = WaitReason::Consume { consumer, no_wait };
        self.wait(wait, 0, (60, 20), link, cx);
    }

    /// The queue is told, and asked: what it delivered before goes to the client, and then cancel-ok.
    fn cancel(
        &mut self,
        tag: &str,
        no_wait: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let consumer = self.consumers.get(tag).copied();
        let subscription = consumer.and_then(|c| link.subscriptions.get(&c.0));
        let (Some(consumer), Some(queue)) = (consumer, subscription.map(|s| s.queue)) else {
            return self.cancel_ok(tag, no_wait, cx);
        };
        link.tell(cx, queue, RequestBody::Cancel { consumer });
        let cancellation = Cancellation {
            tag: tag.into(),
            consumer,
            no_wait,
        };
        let record = cx.broker.tree().queue_by_id(queue);
        if record.is_none_or(|r| cx.broker.home_out_of_reach(r).is_some()) {
            return self.finish_cancel(&cancellation, link, cx);
        }
        link.ask(cx, self.number, queue, RequestBody::Stat);
        self.wait(WaitReason::Cancel(cancellation), 0, (60, 30), link, cx);
    }

    /// The queue delivers nothing more to it, or cannot be asked.
    pub(crate) fn finish_cancel(
        &mut self,
        cancellation: &Cancellation,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Cancellation {
            tag,
            consumer,
            no_wait,
        } = cancellation;
        self.return_held(*consumer, link);
        let subscription = link.subscriptions.remove(&consumer.0);
        if subscription.is_some() {
            self.forget_consumer(tag, link);
        }
        if self.replies.as_ref().is_some_and(|r| r.tag == *tag) {
            self.end_replies(link, cx);
        }
        self.cancel_ok(tag, *no_wait, cx);
        if let Some(queue) = subscription.map(|s| s.queue) {
            let left = LeftQueues::of(std::iter::once(queue), cx.broker);
            self.go_on_leaving(left, false, link, cx);
        }
    }

    fn cancel_ok(&self, consumer_tag: &str, no_wait: bool, cx: &mut StepContext<'_>) {
        if !no_wait {
            cx.send(self.number, &Method::BasicCancelOk { consumer_tag });
        }
    }

    /// The channel goes on, or ends, when those of the queues that are auto-delete and unused are gone.
    pub(crate) fn go_on_leaving(
        &mut self,
        left: LeftQueues,
        closing: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        if left.ask(self.number, link, cx) {
            let ids = if closing { (20, 40) } else { (60, 30) };
            self.wait(WaitReason::Left { left, closing }, 0, ids, link, cx);
        } else if closing {
            self.state = ChannelState::Closed;
            cx.send(self.number, &Method::ChannelCloseOk {});
        }
    }

    /// What the client has not seen of this consumer goes back.
    fn return_held(&mut self, consumer: ConsumerId, link: &mut ConnectionState) {
        self.held_deliveries.retain(|held| {
            let gone = held.consumer == consumer;
            if gone {
                let id = held.delivery.id;
                link.settle_range(
                    held.queue,
                    consumer,
                    queue::SettlementOutcome::Requeue,
                    (id, id),
                );
            }
            !gone
        });
    }

    /// The queue ended it.
    pub(crate) fn cancelled(
        &mut self,
        consumer: ConsumerId,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(subscription) = link.subscriptions.remove(&consumer.0) else {
            return;
        };
        self.held_deliveries
            .retain(|held| held.consumer != consumer);
        self.forget_consumer(&subscription.tag, link);
        self.replies.take_if(|r| r.tag == subscription.tag);
        if link.capabilities.consumer_cancel_notify && !subscription.get {
            let method = Method::BasicCancel {
                consumer_tag: &subscription.tag,
                no_wait: true,
            };
            cx.send(self.number, &method);
        }
    }

    fn get(
        &mut self,
        queue: &str,
        no_ack: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let name = self.expand(queue)?;
        let tree = cx.broker.tree();
        directory::check(
            tree,
            link,
            Right::Read,
            directory::ResourceKind::Queue,
            &name,
        )?;
        let record = directory::queue_for(cx.broker, link, &name)?;
        let (queue, kind) = (record.id, record.kind);
        let consumer = link.new_consumer();
        let subscription = Subscription {
            queue,
            channel: self.number,
            tag: "".into(),
            no_ack,
            get: true,
            prefetch: 0,
            kind,
            written: WrittenDeliveries::default(),
            came: 0,
            credit: None,
        };
        link.subscriptions.insert(consumer.0, subscription);
        link.ask(
            cx,
            self.number,
            queue,
            RequestBody::Get { consumer, no_ack },
        );
        self.wait(WaitReason::Get { consumer, no_ack }, 0, (60, 70), link, cx);
        Ok(())
    }

    pub(crate) fn settle(
        &mut self,
        tag: u64,
        multiple: bool,
        outcome: queue::SettlementOutcome,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        let mut count = 0;
        let mut all = None;
        if multiple {
            all = self.unacked.take_up_to(tag);
            self.consumer_by_consumer(all.as_deref_mut().unwrap_or_default(), link);
        }
        let mut tx = self.transaction.as_deref_mut();
        let mut settle = |owed: UnackedDelivery| match &mut tx {
            Some(tx) => tx.settle(owed, outcome, link),
            None => {
                link.settle(owed.origin, outcome);
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
        if outcome == queue::SettlementOutcome::Accepted && count > 0 {
            self.counts().deliveries.ack += count;
        }
        if !self.held_deliveries.is_empty() {
            self.pump(link, cx);
        }
        Ok(())
    }

    /// The queue named, or for "" the one declared last.
    pub(crate) fn expand(&self, queue: &str) -> MethodResult<Name> {
        match queue {
            "" if self.last_queue.is_empty() => refuse!(NotFound, "no previously declared queue"),
            "" => Ok(self.last_queue.clone()),
            given => Ok(given.into()),
        }
    }
}

impl Channel {
    /// What is settled together is so consumer by consumer, as in RabbitMQ: first what was got, each by itself, then by consumer tag,
    /// that of a cancelled consumer too. A queue serves between them.
    fn consumer_by_consumer(&self, all: &mut [UnackedDelivery], link: &ConnectionState) {
        let one = |pair: &[UnackedDelivery]| matches!(pair, [a, b] if a.origin.consumer == b.origin.consumer);
        if all.windows(2).all(one) {
            return;
        }
        let tag = |owed: &UnackedDelivery| self.tag_of(owed.origin.consumer, link);
        // Stable: each consumer's stay in their order.
        all.sort_by(|a, b| {
            let by_tag = match a.got && b.got {
                true => a.tag.cmp(&b.tag),
                false => tag(a).cmp(tag(b)),
            };
            b.got
                .cmp(&a.got)
                .then(by_tag)
                .then(a.origin.consumer.cmp(&b.origin.consumer))
        });
    }
}

/// A basic.cancel.
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

fn consumer_priority(
    arguments: &Table,
    queue: &str,
    kind: QueueType,
    link: &ConnectionState,
) -> Result<i32, Failure> {
    // Of streams only.
    for key in [
        "x-stream-offset",
        "x-stream-filter",
        "x-stream-match-unfiltered",
    ] {
        if arguments.get(key).is_some() {
            refuse!(
                PreconditionFailed,
                "invalid arg '{key}' for queue '{queue}' in vhost '{}' of queue type {}",
                link.vhost,
                kind.module()
            );
        }
    }
    let Some(value) = arguments.get("x-priority") else {
        return Ok(0);
    };
    match value.as_integer() {
        // Clients send it in any width; what no 32 bits hold is as good as the largest.
        Some(n) => Ok(i32::try_from(n).unwrap_or(if n < 0 { i32::MIN } else { i32::MAX })),
        None => refuse!(
            PreconditionFailed,
            "invalid arg 'x-priority' for queue '{queue}' in vhost '{}': \"expected integer, got {}\"",
            link.vhost,
            value.type_name()
        ),
    }
}
