//! Delivery of messages to the client: basic.deliver and basic.get-ok with their content.

use crate::channel::{Channel, HeldDelivery};
use crate::connection_state::{ConnectionState, StepContext};
use crate::failure::{MethodResult, refuse};
use crate::unacked::{DeliveryOrigin, UnackedDelivery};
use codec_amqp091::{
    BasicDeliver, FRAME_END, FRAME_OVERHEAD, HeaderEdit, Method, Properties, encode_content_header,
    open_body,
};
use conversion::{Part, amqp091};
use env::Time;
use message::{Message, Value};
use metadata::{Name, QueueId, QueueType};
use queue::{ConsumerId, Delivery};
use session::interceptors::SENT_TIME;
use session::{DeliveryCounters, Outbox, WrittenDeliveries};
use smallvec::SmallVec;
use std::time::Duration;

/// Appends a body as frames; large bodies by reference. `body` is a part of `message`.
pub(crate) fn send_body(
    out: &mut Outbox,
    channel: u16,
    (message, part): (&Message, &Part<'_>),
    frame_max: u32,
) {
    let body = part.bytes();
    let piece = (frame_max as usize).saturating_sub(FRAME_OVERHEAD).max(1);
    let mut at = 0;
    while at < body.len() {
        let end = body.len().min(at + piece);
        open_body(out.tail(), channel, end - at);
        out.push_part(&body[at..end], || part.share(message, at..end));
        out.tail().extend_from_slice(&[FRAME_END]);
        at = end;
    }
}

/// The number of failed delivery attempts as RabbitMQ's quorum queues report it. A dead letter
/// keeps the count of the quorum queues that rejected it until it has a count of its own.
fn failed_attempts(delivery: &Delivery) -> Option<i64> {
    let own = delivery.attempts?;
    if own > 0 || !delivery.message.has_died() {
        return (own > 0).then_some(own.into());
    }
    let inherited = delivery.message.deaths()?.failed_attempts();
    (inherited > 0).then(|| i64::try_from(inherited).unwrap_or(i64::MAX))
}

/// Appends header and body of a delivery. As in RabbitMQ, the number of failed attempts goes into
/// the header `x-delivery-count`, and that of all attempts into `x-acquired-count`.
fn send_content(
    channel: u16,
    delivery: &Delivery,
    attempts: Option<i64>,
    conn: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) {
    let message = &delivery.message;
    let amqp091::Encoded { properties, body } = amqp091::convert(message);
    let size = body.bytes().len() as u64;
    let sent = conn.limits.interceptors.sent_time.then(|| cx.broker.wall());
    let changed =
        attempts.is_some() || delivery.acquired > 0 || message.has_died() || sent.is_some();
    let out = &mut *cx.out;
    let edited = changed.then(|| Properties::received(&properties).ok());
    if let Some(mut decoded) = edited.flatten() {
        let mut edits = Vec::new();
        if let Some(deaths) = message.deaths() {
            decoded.expiration = None;
            edits = amqp091::death_edits(&deaths);
        }
        edits.extend(attempts.map(|attempts| HeaderEdit {
            key: "x-delivery-count",
            value: Some(Value::I64(attempts)),
        }));
        edits.extend((delivery.acquired > 0).then(|| HeaderEdit {
            key: "x-acquired-count",
            value: Some(Value::I64(delivery.acquired.into())),
        }));
        edits.extend(sent.map(|sent| HeaderEdit {
            key: SENT_TIME,
            value: Some(Value::I64(i64::try_from(sent.0).unwrap_or(i64::MAX))),
        }));
        conn.scratch.clear();
        decoded.encode_edited(&edits, &mut conn.scratch);
        encode_content_header(out.tail(), channel, size, &conn.scratch);
    } else {
        encode_content_header(out.tail(), channel, size, &properties);
    }
    send_body(out, channel, (message, &body), conn.frame_max);
}

impl Channel {
    /// Writes the deliveries of one consumer, or holds them while the outbox is full.
    pub(crate) fn deliver(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        deliveries: Vec<Delivery>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(to) = subscriber(conn, consumer, deliveries.last().map(|d| d.id)) else {
            return;
        };
        let mut written = WrittenDeliveries::default();
        let mut excess: Option<(u64, u64)> = None;
        for delivery in deliveries {
            if to.kind.descriptor().consumers.adjustable_credit
                && self.remaining_prefetch() == Some(0)
            {
                let from = excess.map_or(delivery.id, |(from, _)| from);
                excess = Some((from, delivery.id));
            } else if self.held_deliveries.is_empty() && has_outbox_space(conn, cx) {
                self.write(&to, queue, consumer, &delivery, conn, cx);
                written.add(&delivery);
            } else {
                conn.channels_may_hold = true;
                self.held_deliveries.push_back(HeldDelivery {
                    queue,
                    consumer,
                    delivery,
                });
            }
        }
        self.record_written((queue, consumer), written, conn, cx);
        if let Some(range) = excess {
            self.return_excess(queue, consumer, range, conn, cx);
        }
    }

    /// Writes held deliveries while the outbox has space.
    pub(crate) fn pump(&mut self, conn: &mut ConnectionState, cx: &mut StepContext<'_>) {
        while let Some(next) = self.held_deliveries.front() {
            let Some(to) = subscriber(conn, next.consumer, None) else {
                self.held_deliveries.pop_front();
                continue;
            };
            if !has_outbox_space(conn, cx) {
                return;
            }
            if let Some(held) = self.held_deliveries.pop_front() {
                self.write(&to, held.queue, held.consumer, &held.delivery, conn, cx);
                let mut written = WrittenDeliveries::default();
                written.add(&held.delivery);
                self.record_written((held.queue, held.consumer), written, conn, cx);
            }
        }
        if self.held_deliveries.capacity() > KEEP {
            self.held_deliveries.shrink_to(0);
        }
    }

    fn write(
        &mut self,
        to: &Subscriber,
        queue: QueueId,
        consumer: ConsumerId,
        delivery: &Delivery,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        self.next_delivery += 1;
        let delivery_tag = self.next_delivery;
        self.last_served = consumer;
        let attempts = failed_attempts(delivery);
        let redelivered = delivery.redelivered || attempts.is_some();
        let deliver = BasicDeliver {
            consumer_tag: &to.tag,
            delivery_tag,
            redelivered,
            exchange: delivery.message.raw_exchange(),
            routing_key: delivery.message.raw_routing_key(),
        };
        deliver.encode(cx.out.tail(), self.number);
        send_content(self.number, delivery, attempts, conn, cx);
        if cx.broker.tree().traces() {
            let settler = (!to.no_ack).then_some(consumer);
            conn.trace_delivery(self.number, (queue, settler), delivery, cx);
        }
        let origin = DeliveryOrigin {
            queue,
            consumer,
            id: delivery.id,
        };
        let no_ack = to.no_ack;
        let add = |d: &mut DeliveryCounters| {
            d.redeliver += u64::from(redelivered);
            if no_ack {
                d.deliver_no_ack += 1;
            } else {
                d.deliver += 1;
            }
        };
        add(&mut self.counts().deliveries);
        conn.count(|t| {
            add(t.of(to.kind));
            if !redelivered {
                t.sample_delivery(Some(to.kind), || delivery.message.received());
            }
        });
        if no_ack {
            conn.settle(origin, queue::SettlementOutcome::Accepted);
        } else {
            self.add_unacked(origin, false, conn, cx);
        }
    }

    /// Records that the delivery just written needs an acknowledgement.
    fn add_unacked(
        &mut self,
        origin: DeliveryOrigin,
        by_get: bool,
        conn: &mut ConnectionState,
        cx: &StepContext<'_>,
    ) {
        let now = cx.broker.now();
        conn.ack_check.get_or_insert(now + ACK_CHECK);
        self.unacked.push(UnackedDelivery {
            tag: self.next_delivery,
            since: seconds(now),
            by_get,
            origin,
        });
    }

    /// Returns 406 if the client exceeded the acknowledgement timeout of the queue, or the node's
    /// where the queue has none.
    pub(crate) fn check_acknowledgements(
        &self,
        limit: Option<Duration>,
        cx: &StepContext<'_>,
    ) -> MethodResult {
        let now = seconds(cx.broker.now());
        let tree = cx.broker.tree();
        // Only the oldest delivery of each queue matters, and the oldest come first.
        let mut seen: SmallVec<[QueueId; 4]> = SmallVec::new();
        for unacked in self.unacked.iter() {
            let queue = unacked.origin.queue;
            if seen.contains(&queue) {
                continue;
            }
            seen.push(queue);
            let record = tree.queue_by_id(queue);
            if record.is_some_and(|q| tree.times_out_consumers(q.kind)) {
                // The queue itself ends the consumer.
                continue;
            }
            let queue_limit = record.and_then(|q| tree.consumer_timeout(q));
            let Some(limit) = queue_limit.map(Duration::from_millis).or(limit) else {
                continue;
            };
            let limit_s = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
            if now >= unacked.since.saturating_add(limit_s) {
                refuse!(
                    PreconditionFailed,
                    "delivery acknowledgement on channel {} timed out. Timeout value used: {} ms. This timeout value \
                     can be configured, see consumers doc guide to learn more",
                    self.number,
                    limit.as_millis()
                );
            }
        }
        Ok(())
    }

    /// Answers a basic.get with a message.
    pub(crate) fn deliver_get(
        &mut self,
        origin: DeliveryOrigin,
        no_ack: bool,
        delivery: &Delivery,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        self.next_delivery += 1;
        let attempts = failed_attempts(delivery);
        let redelivered = delivery.redelivered || attempts.is_some();
        let method = Method::BasicGetOk {
            delivery_tag: self.next_delivery,
            redelivered,
            exchange: delivery.message.exchange(),
            routing_key: delivery.message.routing_key(),
            message_count: u32::try_from(delivery.left).unwrap_or(u32::MAX),
        };
        cx.send(self.number, &method);
        send_content(self.number, delivery, attempts, conn, cx);
        self.count_get(origin.queue, no_ack, redelivered, conn, cx);
        if cx.broker.tree().traces() {
            let settler = (!no_ack).then_some(origin.consumer);
            conn.trace_delivery(self.number, (origin.queue, settler), delivery, cx);
        }
        // Without acknowledgement the queue has settled the message itself.
        if !no_ack {
            self.add_unacked(origin, true, conn, cx);
        }
    }
}

impl Channel {
    /// Counts a basic.get that returned a message.
    fn count_get(
        &mut self,
        queue: QueueId,
        no_ack: bool,
        redelivered: bool,
        conn: &mut ConnectionState,
        cx: &StepContext<'_>,
    ) {
        let add = |d: &mut DeliveryCounters| {
            d.redeliver += u64::from(redelivered);
            if no_ack {
                d.get_no_ack += 1;
            } else {
                d.get += 1;
            }
        };
        add(&mut self.counts().deliveries);
        if let Some(kind) = cx.broker.tree().queue_by_id(queue).map(|q| q.kind) {
            conn.count(|t| add(t.of(kind)));
        }
    }

    /// Counts a basic.get on an empty queue.
    pub(crate) fn count_empty(&mut self, queue: Option<QueueType>, conn: &mut ConnectionState) {
        self.counts().deliveries.get_empty += 1;
        if let Some(kind) = queue {
            conn.count(|t| t.of(kind).get_empty += 1);
        }
    }
}

/// Interval of the acknowledgement timeout check.
pub(crate) const ACK_CHECK: Duration = Duration::from_secs(60);

fn seconds(time: Time) -> u32 {
    u32::try_from(time.since(Time::ZERO).as_secs()).unwrap_or(u32::MAX)
}

/// Returns true if the outbox has space for another delivery.
fn has_outbox_space(conn: &ConnectionState, cx: &StepContext<'_>) -> bool {
    cx.out.len() < conn.limits.outbox_deliveries
}

/// Capacity that the list of held deliveries keeps.
const KEEP: usize = 64;

/// The recipient of deliveries.
struct Subscriber {
    tag: Name,
    no_ack: bool,
    kind: QueueType,
}

/// Returns the recipient of a consumer's deliveries and records the last delivery received from the
/// queue, if given.
fn subscriber(
    conn: &mut ConnectionState,
    consumer: ConsumerId,
    last_delivery: Option<u64>,
) -> Option<Subscriber> {
    let subscription = conn.subscriptions.get_mut(&consumer.0)?;
    subscription.last_delivery = last_delivery.unwrap_or(subscription.last_delivery);
    Some(Subscriber {
        tag: subscription.tag.clone(),
        no_ack: subscription.no_ack,
        kind: subscription.kind,
    })
}
