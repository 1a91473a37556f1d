//! A client that consumes with manual acknowledgement and uses all other operations of a consumer.

mod staying;

use super::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use super::client::{ClientContext, Role};
use super::oracle::{Delivery, Holder, QueuePlan, QueueTreatment, STEADY};
use super::publisher::declare;
use super::settlement_tracker::SettlementTracker;
use super::tracked_message::{self, MessageId};
use codec_amqp091::Method;
use env::{Rng, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const CHANNEL: u16 = 1;
/// A queue that is unreachable is left alone for this time. A client that retried without a pause would return the
/// messages of other queues each time its channel is closed, until they reach their delivery limits.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A request on the channel without an answer. Answers arrive in order.
#[derive(Clone, Debug)]
enum PendingRequest {
    Open,
    Qos,
    Declare(usize),
    Consume(usize),
    Cancel(u32),
    Get(usize),
    Recover,
    Probe(usize, SettlementTracker),
}

struct UnsettledDelivery {
    id: MessageId,
    queue: usize,
    delivery: Delivery,
    since: Time,
}

#[derive(Default)]
pub(super) struct Consumer {
    /// See [`staying`].
    keeps_channel: bool,
    /// Number of the newest consumer. Numbers are not reused.
    last_consumer: u32,
    is_open: bool,
    prefetch: u16,
    pending: VecDeque<PendingRequest>,
    /// Queue of each consumer.
    consumers: BTreeMap<u32, usize>,
    /// Consumers with a cancel request without an answer.
    cancelling: BTreeSet<u32>,
    /// Unsettled deliveries by delivery tag.
    deliveries: BTreeMap<u64, UnsettledDelivery>,
    /// Deliveries that arrived while a recover request was pending. They were sent before it or after it, so settling
    /// up to a later tag may settle them too.
    during_recover: BTreeMap<u64, MessageId>,
    /// Unreachable queues, and until when to leave them alone.
    unreachable: BTreeMap<usize, Time>,
    trackers: BTreeMap<usize, SettlementTracker>,
    faults_ended: bool,
    /// After the faults the queue ended a consumer that kept its messages for too long.
    was_timed_out: bool,
}

fn tag_of(consumer: u32) -> String {
    format!("c{consumer}")
}

/// Whether the queue takes messages back that are not settled in time.
fn is_timed(queue: usize, cx: &ClientContext<'_>) -> bool {
    let treatment = cx.oracle.queues.get(queue).map(|plan| plan.treatment);
    let is_timed = matches!(treatment, Some(QueueTreatment::ConsumerTimeout(_)));
    is_timed && cx.oracle.has_all_features
}

impl Consumer {
    fn holder(consumer: u32, cx: &ClientContext<'_>) -> Holder {
        Holder {
            connection: cx.connection,
            channel: CHANNEL,
            consumer,
        }
    }

    fn request(&mut self, pending: PendingRequest, wire: &mut AmqpClient, method: &Method<'_>) {
        self.pending.push_back(pending);
        wire.send(CHANNEL, method);
    }

    fn open_channel(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        self.request(PendingRequest::Open, wire, &Method::ChannelOpen {});
        self.prefetch = [0, 1, 3, 10, 50][cx.rng.below(5) as usize];
        let qos = Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: self.prefetch,
            global: false,
        };
        self.request(PendingRequest::Qos, wire, &qos);
        self.is_open = true;
        for queue in 0..cx.oracle.queues.len() {
            if cx.faults_ended || cx.rng.chance(1, 2) {
                self.consume(queue, wire, cx);
            }
        }
    }

    fn is_unreachable(&self, queue: usize, cx: &ClientContext<'_>) -> bool {
        self.unreachable
            .get(&queue)
            .is_some_and(|until| cx.now < *until)
    }

    fn consume(&mut self, queue: usize, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let (unreachable, may_use_all_queues) = (
            self.is_unreachable(queue, cx),
            cx.faults_ended && !self.keeps_channel,
        );
        let Some(queue_plan) = cx.oracle.queues.get(queue).filter(|_| !unreachable) else {
            return;
        };
        if !may_use_all_queues && self.keeps_channel != (queue_plan.name == STEADY) {
            return;
        }
        self.pending.push_back(PendingRequest::Declare(queue));
        declare(wire, CHANNEL, queue_plan, false);
        self.last_consumer += 1;
        let consume = Method::BasicConsume {
            queue: &queue_plan.name,
            consumer_tag: &tag_of(self.last_consumer),
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: message::Table::default(),
        };
        self.consumers.insert(self.last_consumer, queue);
        self.request(PendingRequest::Consume(queue), wire, &consume);
    }

    /// Handles the answer to the oldest request.
    fn handle_answer(&mut self, method: &str, cx: &mut ClientContext<'_>) -> Result<(), String> {
        let pending = self.pending.pop_front();
        let pending = pending.ok_or_else(|| format!("{method} answers nothing"))?;
        let is_expected = match &pending {
            PendingRequest::Open => method == "channel.open-ok",
            PendingRequest::Qos => method == "basic.qos-ok",
            PendingRequest::Declare(_) | PendingRequest::Probe(..) => method == "queue.declare-ok",
            PendingRequest::Consume(_) => method == "basic.consume-ok",
            PendingRequest::Cancel(_) => method == "basic.cancel-ok",
            PendingRequest::Get(_) => method == "basic.get-empty" || method == "basic.get-ok",
            PendingRequest::Recover => method == "basic.recover-ok",
        };
        if !is_expected {
            return Err(format!("{method} came as the answer to {pending:?}"));
        }
        match pending {
            PendingRequest::Cancel(consumer) => {
                self.cancelling.remove(&consumer);
                self.consumers.remove(&consumer);
            }
            PendingRequest::Probe(_, tracker) => {
                cx.oracle
                    .settlement_known(cx.now, cx.node, &tracker.settled)?;
                cx.oracle.requeue_known(cx.now, &tracker.requeued)?;
            }
            // Recover-ok: earlier deliveries are void.
            PendingRequest::Recover => self.deliveries.clear(),
            _ => {}
        }
        Ok(())
    }

    fn is_recovering(&self) -> bool {
        self.pending
            .iter()
            .any(|a| matches!(a, PendingRequest::Recover))
    }

    fn handle_content(
        &mut self,
        kind: DeliveryKind,
        (properties, body): (&[u8], &[u8]),
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let read = tracked_message::read(properties, body)?;
        let (tag, redelivered, queue, consumer) = match kind {
            DeliveryKind::Delivered {
                consumer,
                tag,
                redelivered,
            } => {
                let number = consumer.get(1..).and_then(|n| n.parse().ok()).unwrap_or(0);
                let queue = self.consumers.get(&number).copied();
                let queue = queue.ok_or_else(|| format!("a delivery to consumer {consumer}"))?;
                (tag, redelivered, queue, number)
            }
            DeliveryKind::Got { tag, redelivered } => {
                let Some(PendingRequest::Get(queue)) = self.pending.front() else {
                    return Err(format!("got {:?} without asking", read.id));
                };
                let queue = *queue;
                self.handle_answer("basic.get-ok", cx)?;
                (tag, redelivered, queue, 0)
            }
            DeliveryKind::Returned { .. } => return Err("a consumer got a return".to_owned()),
        };
        if self.is_recovering() {
            // The message returned to its queue before this delivery arrived, and may have gone to another client
            // first.
            self.during_recover.insert(tag, read.id);
            return Ok(());
        }
        let to = Consumer::holder(consumer, cx);
        let delivery = Delivery { to, tag };
        cx.oracle
            .delivered(cx.now, read, queue, delivery, redelivered)?;
        let delivery = UnsettledDelivery {
            id: read.id,
            queue,
            delivery,
            since: cx.now,
        };
        if self.deliveries.insert(tag, delivery).is_some() {
            return Err(format!("delivery tag {tag} was used twice"));
        }
        self.check_prefetch(consumer, cx)
    }

    /// Checks that the unsettled deliveries do not exceed the prefetch. A queue that gave up this node for a while
    /// counts from zero.
    fn check_prefetch(&self, consumer: u32, cx: &ClientContext<'_>) -> Result<(), String> {
        let unsettled = (self.deliveries.values()).filter(|h| h.delivery.to.consumer == consumer);
        let count = unsettled
            .filter(|h| cx.oracle.no_faults_since(h.since))
            .count();
        if consumer != 0 && self.prefetch != 0 && count > usize::from(self.prefetch) {
            return Err(format!(
                "{count} deliveries are out, {} wanted",
                self.prefetch
            ));
        }
        Ok(())
    }

    /// Removes the delivery with this tag, or all up to it.
    fn take_deliveries(&mut self, tag: u64, multiple: bool) -> Vec<UnsettledDelivery> {
        let first = if multiple { 0 } else { tag };
        let tags: Vec<u64> = self
            .deliveries
            .range(first..=tag)
            .map(|(t, _)| *t)
            .collect();
        tags.iter()
            .filter_map(|t| self.deliveries.remove(t))
            .collect()
    }

    fn settle_during_recover(
        &mut self,
        tag: u64,
        multiple: bool,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        while multiple
            && let Some(first) = self.during_recover.first_entry().filter(|e| *e.key() < tag)
        {
            cx.oracle.maybe_settled(cx.now, first.remove())?;
        }
        Ok(())
    }

    fn settle(
        &mut self,
        deliveries: Vec<UnsettledDelivery>,
        is_rejected: bool,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        for delivery in deliveries {
            match is_rejected {
                true => cx.oracle.rejected(cx.now, delivery.id, delivery.delivery)?,
                false => cx.oracle.settled(cx.now, delivery.id, delivery.delivery)?,
            }
            let tracker = self.trackers.entry(delivery.queue).or_default();
            tracker.settled.push((delivery.id, delivery.delivery));
        }
        Ok(())
    }

    fn requeue(
        &mut self,
        deliveries: Vec<UnsettledDelivery>,
        have_failed: bool,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        for delivery in deliveries {
            cx.oracle
                .requeued(cx.now, delivery.id, delivery.delivery, have_failed)?;
            let tracker = self.trackers.entry(delivery.queue).or_default();
            tracker.requeued.push((delivery.id, delivery.delivery));
        }
        Ok(())
    }

    fn ack(
        &mut self,
        tag: u64,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let multiple = !cx.faults_ended && cx.rng.chance(1, 3);
        let deliveries = self.take_deliveries(tag, multiple);
        self.settle_during_recover(tag, multiple, cx)?;
        wire.send(
            CHANNEL,
            &Method::BasicAck {
                delivery_tag: tag,
                multiple,
            },
        );
        self.settle(deliveries, false, cx)
    }

    fn nack(
        &mut self,
        tag: u64,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let (multiple, requeue) = (cx.rng.chance(1, 4), cx.rng.chance(3, 4));
        let deliveries = self.take_deliveries(tag, multiple);
        // Each second one reports a failure.
        let fails = !multiple && tag % 2 == 1;
        let method = match fails {
            true => Method::BasicReject {
                delivery_tag: tag,
                requeue,
            },
            false => Method::BasicNack {
                delivery_tag: tag,
                multiple,
                requeue,
            },
        };
        wire.send(CHANNEL, &method);
        if requeue {
            self.requeue(deliveries, fails, cx)
        } else {
            self.settle_during_recover(tag, multiple, cx)?;
            self.settle(deliveries, true, cx)
        }
    }

    /// Declares the queue passively. When the queue answers, it has processed all earlier settlements.
    fn probe_queue(&mut self, queue: usize, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let unreachable = self.is_unreachable(queue, cx);
        let Some(queue_plan) = cx.oracle.queues.get(queue).filter(|_| !unreachable) else {
            return;
        };
        let tracker = self.trackers.remove(&queue).unwrap_or_default();
        self.pending
            .push_back(PendingRequest::Probe(queue, tracker));
        declare(wire, CHANNEL, queue_plan, true);
    }

    fn get(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
        let unreachable = self.is_unreachable(queue, cx);
        // A queue takes a message from `basic.get` back after its timeout without telling the client.
        let may_get = |plan: &QueuePlan| {
            let is_timed = matches!(plan.treatment, QueueTreatment::ConsumerTimeout(_));
            !unreachable && plan.name != STEADY && !is_timed
        };
        if let Some(queue_plan) = cx.oracle.queues.get(queue).filter(|q| may_get(q)) {
            let get = Method::BasicGet {
                queue: &queue_plan.name,
                no_ack: false,
            };
            self.request(PendingRequest::Get(queue), wire, &get);
        }
    }

    /// Cancels a consumer, or starts one.
    fn start_or_cancel(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let active: Vec<u32> = (self.consumers.keys().copied())
            .filter(|c| !self.cancelling.contains(c))
            .collect();
        let any = active.get(cx.rng.below(6) as usize);
        match any.copied() {
            Some(consumer) => self.cancel(consumer, wire),
            None => {
                let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
                self.consume(queue, wire, cx);
            }
        }
    }

    fn cancel(&mut self, consumer: u32, wire: &mut AmqpClient) {
        self.cancelling.insert(consumer);
        let cancel = Method::BasicCancel {
            consumer_tag: &tag_of(consumer),
            no_wait: false,
        };
        self.request(PendingRequest::Cancel(consumer), wire, &cancel);
    }

    fn act_randomly(
        &mut self,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        if self.is_recovering() {
            return Ok(());
        }
        let tags: Vec<u64> = self.deliveries.keys().copied().collect();
        let tag = tags.get(cx.rng.below(tags.len().max(1) as u64) as usize);
        match (cx.rng.below(100), tag) {
            (0..65, Some(tag)) => self.ack(*tag, wire, cx)?,
            (65..75, Some(tag)) => self.nack(*tag, wire, cx)?,
            (75..78, Some(_)) => {
                let all = std::mem::take(&mut self.deliveries).into_values().collect();
                self.requeue(all, false, cx)?;
                self.request(
                    PendingRequest::Recover,
                    wire,
                    &Method::BasicRecover { requeue: true },
                );
            }
            (78..82, _) => self.start_or_cancel(wire, cx),
            (82..88, _) => self.get(wire, cx),
            (88..97, _) => {
                let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
                self.probe_queue(queue, wire, cx);
            }
            _ => cx.wants_close |= cx.rng.chance(1, 10),
        }
        Ok(())
    }

    /// Settles all deliveries and consumes from every queue. The first messages of a queue with a timeout are kept until
    /// the queue takes them back.
    fn finish(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        if self.is_recovering() {
            return Ok(());
        }
        let all = self.deliveries.iter();
        let tags: Vec<u64> = all
            .filter(|(_, delivery)| self.was_timed_out || !is_timed(delivery.queue, cx))
            .map(|(tag, _)| *tag)
            .collect();
        for tag in tags {
            self.ack(tag, wire, cx)?;
        }
        if !self.pending.is_empty() {
            return Ok(());
        }
        for queue in 0..cx.oracle.queues.len() {
            if !self.consumers.values().any(|q| *q == queue) {
                self.consume(queue, wire, cx);
            }
        }
        let trackers: Vec<usize> = self.trackers.keys().copied().collect();
        for queue in trackers {
            self.probe_queue(queue, wire, cx);
        }
        Ok(())
    }

    /// The channel has ended, so its deliveries return to their queues.
    fn close(&mut self, cx: &mut ClientContext<'_>) {
        cx.oracle
            .channel_ended_by_client(cx.now, |h| h.connection == cx.connection);
        self.is_open = false;
        self.pending.clear();
        self.consumers.clear();
        self.cancelling.clear();
        self.deliveries.clear();
        self.during_recover.clear();
        self.trackers.clear();
    }
}

impl Role for Consumer {
    fn on_open(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        self.open_channel(wire, cx);
    }

    fn on_message(
        &mut self,
        message: ServerMessage,
        _wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        match message {
            ServerMessage::Done { method, .. } => self.handle_answer(method, cx),
            ServerMessage::Declared { .. } => self.handle_answer("queue.declare-ok", cx),
            ServerMessage::Content {
                kind,
                properties,
                body,
                ..
            } => self.handle_content(kind, (&properties, &body), cx),
            ServerMessage::Cancelled { consumer, .. } => {
                let number = consumer.get(1..).and_then(|n| n.parse().ok()).unwrap_or(0);
                let queue = self.consumers.remove(&number);
                self.was_timed_out |=
                    self.faults_ended && queue.is_some_and(|queue| is_timed(queue, cx));
                self.deliveries
                    .retain(|_, h| h.delivery.to.consumer != number);
                let holder = Consumer::holder(number, cx);
                cx.oracle.channel_ended_by_broker(cx.now, |h| h == holder);
                Ok(())
            }
            ServerMessage::ChannelClosed { .. } => {
                // The channel was closed because of the oldest request.
                if let Some(
                    PendingRequest::Declare(queue)
                    | PendingRequest::Consume(queue)
                    | PendingRequest::Get(queue)
                    | PendingRequest::Probe(queue, _),
                ) = self.pending.front()
                {
                    self.unreachable.insert(*queue, cx.now + RETRY_DELAY);
                }
                let connection = cx.connection;
                cx.oracle
                    .channel_ended_by_broker(cx.now, |h| h.connection == connection);
                self.close(cx);
                Ok(())
            }
            other => Err(format!("a consumer heard {other:?}")),
        }
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.faults_ended = cx.faults_ended;
        if !self.is_open {
            self.open_channel(wire, cx);
            return Ok(());
        }
        if self.faults_ended {
            return self.finish(wire, cx);
        }
        for _ in 0..1 + cx.rng.below(4) {
            match self.keeps_channel {
                true => self.consume_and_cancel(wire, cx)?,
                false => self.act_randomly(wire, cx)?,
            }
        }
        Ok(())
    }

    fn on_connection_lost(&mut self, cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.close(cx);
        Ok(())
    }

    fn has_work_left(&self) -> bool {
        !self.faults_ended
            || !self.pending.is_empty()
            || !self.deliveries.is_empty()
            || !self.trackers.is_empty()
    }

    fn describe_wait(&self) -> String {
        format!(
            "{:?}, {} unsettled, {} consumers",
            self.pending.front(),
            self.deliveries.len(),
            self.consumers.len()
        )
    }
}
