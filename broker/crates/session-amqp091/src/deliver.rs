//! Messages to the client: basic.deliver and basic.get-ok with their content.

use crate::channel::{Channel, HeldDelivery};
use crate::connection_state::{ConnectionState, StepContext};
use crate::deaths;
use crate::failure::{MethodResult, refuse};
use crate::flow::WrittenDeliveries;
use crate::mqtt;
use crate::unacked::{DeliveryOrigin, UnackedDelivery};
use codec_amqp091::{
    FRAME_END, FRAME_OVERHEAD, HeaderEdit, Method, Properties, encode_content_header, open_body,
};
use env::Time;
use message::{Message, Value};
use metadata::{Name, QueueId, QueueType};
use queue::{ConsumerId, Delivery};
use session::{DeliveryCounters, Outbox};
use smallvec::SmallVec;
use std::time::Duration;

/// Appends a body in frames; large ones by reference.
pub(crate) fn send_body(out: &mut Outbox, channel: u16, message: &Message, frame_max: u32) {
    let body = message.body();
    let piece = (frame_max as usize).saturating_sub(FRAME_OVERHEAD).max(1);
    let mut at = 0;
    while at < body.len() {
        let end = body.len().min(at + piece);
        open_body(out.tail(), channel, end - at);
        out.push_part(&body[at..end], || message.body_part(at..end));
        out.tail().extend_from_slice(&[FRAME_END]);
        at = end;
    }
}

/// Failed attempts to deliver as RabbitMQ's quorum queues tell them: until it has some of its own, a dead letter has those of the
/// quorum queues where it was rejected.
fn failed_attempts(delivery: &Delivery) -> Option<i64> {
    let own = delivery.attempts?;
    if own > 0 || !delivery.message.has_died() {
        return (own > 0).then_some(own.into());
    }
    let before = delivery.message.deaths()?.failed_attempts();
    (before > 0).then(|| i64::try_from(before).unwrap_or(i64::MAX))
}

/// Appends header and body of a delivery. Failed attempts go into the headers, where RabbitMQ's clients look.
fn send_content(
    channel: u16,
    delivery: &Delivery,
    attempts: Option<i64>,
    link: &mut ConnectionState,
    out: &mut Outbox,
) {
    let message = &delivery.message;
    let size = message.body_len() as u64;
    let properties = mqtt::properties(message);
    let changed = attempts.is_some() || message.has_died();
    let edited = changed.then(|| Properties::received(&properties).ok());
    if let Some(mut decoded) = edited.flatten() {
        let mut edits = Vec::new();
        if let Some(deaths) = message.deaths() {
            decoded.expiration = None;
            edits = deaths::edits(&deaths);
        }
        edits.extend(attempts.map(|attempts| HeaderEdit {
            key: "x-delivery-count",
            value: Some(Value::I64(attempts)),
        }));
        link.scratch.clear();
        decoded.encode_edited(&edits, &mut link.scratch);
        encode_content_header(out.tail(), channel, size, &link.scratch);
    } else {
        encode_content_header(out.tail(), channel, size, &properties);
    }
    send_body(out, channel, message, link.frame_max);
}

impl Channel {
    /// Deliveries of one of this channel's consumers: written, or held while there is no room.
    pub fn deliver(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        deliveries: Vec<Delivery>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(to) = facts(link, consumer, deliveries.last().map(|d| d.id)) else {
            return;
        };
        let mut written = WrittenDeliveries::default();
        let mut beyond: Option<(u64, u64)> = None;
        for delivery in deliveries {
            if to.kind.descriptor().consumers.adjustable_credit && self.room() == Some(0) {
                let from = beyond.map_or(delivery.id, |(from, _)| from);
                beyond = Some((from, delivery.id));
            } else if self.held_deliveries.is_empty() && may_write(link, cx) {
                self.write(&to, queue, consumer, &delivery, link, cx);
                written.add(&delivery);
            } else {
                link.channels_hold = true;
                self.held_deliveries.push_back(HeldDelivery {
                    queue,
                    consumer,
                    delivery,
                });
            }
        }
        self.note_written((queue, consumer), written, link, cx);
        if let Some(range) = beyond {
            self.give_back(queue, consumer, range, link, cx);
        }
    }

    /// Writes what was held, as far as there is room.
    pub fn pump(&mut self, link: &mut ConnectionState, cx: &mut StepContext<'_>) {
        while let Some(next) = self.held_deliveries.front() {
            let Some(to) = facts(link, next.consumer, None) else {
                self.held_deliveries.pop_front();
                continue;
            };
            if !may_write(link, cx) {
                return;
            }
            if let Some(held) = self.held_deliveries.pop_front() {
                self.write(&to, held.queue, held.consumer, &held.delivery, link, cx);
                let mut written = WrittenDeliveries::default();
                written.add(&held.delivery);
                self.note_written((held.queue, held.consumer), written, link, cx);
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
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        // Replies are not counted, as in RabbitMQ: each has the number that the next delivery will have.
        let delivery_tag = self.next_delivery + 1;
        if self.replies.as_ref().is_none_or(|r| r.tag != to.tag) {
            self.next_delivery = delivery_tag;
        }
        self.served_last = consumer;
        let attempts = failed_attempts(delivery);
        let redelivered = delivery.redelivered || attempts.is_some();
        let method = Method::BasicDeliver {
            consumer_tag: &to.tag,
            delivery_tag,
            redelivered,
            exchange: delivery.message.exchange(),
            routing_key: delivery.message.routing_key(),
        };
        cx.send(self.number, &method);
        send_content(self.number, delivery, attempts, link, cx.out);
        if cx.broker.tree().traces() {
            link.trace_delivery(self.number, queue, delivery, cx);
        }
        let origin = DeliveryOrigin {
            queue,
            consumer,
            id: delivery.id,
        };
        let redelivered = u64::from(redelivered);
        let no_ack = to.no_ack;
        let add = |d: &mut DeliveryCounters| {
            d.redeliver += redelivered;
            if no_ack {
                d.deliver_no_ack += 1;
            } else {
                d.deliver += 1;
            }
        };
        add(&mut self.counts().deliveries);
        link.count(|t| add(t.of(to.kind)));
        if no_ack {
            link.settle(origin, queue::SettlementOutcome::Accepted);
        } else {
            self.owe(origin, false, link, cx);
        }
    }

    /// Takes note that the client owes an acknowledgement for the delivery just written.
    fn owe(
        &mut self,
        origin: DeliveryOrigin,
        got: bool,
        link: &mut ConnectionState,
        cx: &StepContext<'_>,
    ) {
        let now = cx.broker.now();
        link.ack_check.get_or_insert(now + ACK_CHECK);
        self.unacked.push(UnackedDelivery {
            tag: self.next_delivery,
            since: seconds(now),
            got,
            origin,
        });
    }

    /// 406 when the client has kept a delivery for longer than its queue, or else the node, allows.
    pub fn check_acknowledgements(
        &self,
        limit: Option<Duration>,
        cx: &StepContext<'_>,
    ) -> MethodResult {
        let now = seconds(cx.broker.now());
        let tree = cx.broker.tree();
        // Of each queue the oldest decides; they come oldest first.
        let mut seen: SmallVec<[QueueId; 4]> = SmallVec::new();
        for owed in self.unacked.iter() {
            let queue = owed.origin.queue;
            if seen.contains(&queue) {
                continue;
            }
            seen.push(queue);
            let own = tree
                .queue_by_id(queue)
                .and_then(|q| tree.consumer_timeout(q));
            let Some(limit) = own.map(Duration::from_millis).or(limit) else {
                continue;
            };
            let limit_s = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
            if now >= owed.since.saturating_add(limit_s) {
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

    /// The answer to basic.get.
    pub fn deliver_got(
        &mut self,
        origin: DeliveryOrigin,
        no_ack: bool,
        delivery: &Delivery,
        link: &mut ConnectionState,
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
        send_content(self.number, delivery, attempts, link, cx.out);
        self.count_got(origin.queue, no_ack, redelivered, link, cx);
        if cx.broker.tree().traces() {
            link.trace_delivery(self.number, origin.queue, delivery, cx);
        }
        // Without acknowledgement the queue's side has settled it: it is only one.
        if !no_ack {
            self.owe(origin, true, link, cx);
        }
    }
}

impl Channel {
    /// The answer to a basic.get that found something.
    fn count_got(
        &mut self,
        queue: QueueId,
        no_ack: bool,
        redelivered: bool,
        link: &mut ConnectionState,
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
            link.count(|t| add(t.of(kind)));
        }
    }

    /// A basic.get that found nothing.
    pub fn count_empty(&mut self, queue: Option<QueueType>, link: &mut ConnectionState) {
        self.counts().deliveries.get_empty += 1;
        if let Some(kind) = queue {
            link.count(|t| t.of(kind).get_empty += 1);
        }
    }
}

/// How often deliveries are looked at that nobody acknowledged.
pub(crate) const ACK_CHECK: Duration = Duration::from_secs(60);

fn seconds(time: Time) -> u32 {
    u32::try_from(time.since(Time::ZERO).as_secs()).unwrap_or(u32::MAX)
}

/// Whether the outbox takes another delivery.
fn may_write(link: &ConnectionState, cx: &StepContext<'_>) -> bool {
    cx.out.len() < link.limits.outbox_deliveries
}

/// Slots for held deliveries that stay allocated.
const KEEP: usize = 64;

/// Whom deliveries go to.
struct Subscriber {
    tag: Name,
    no_ack: bool,
    kind: QueueType,
}

/// `came`: the last delivery that has just come.
fn facts(
    link: &mut ConnectionState,
    consumer: ConsumerId,
    came: Option<u64>,
) -> Option<Subscriber> {
    let subscription = link.subscriptions.get_mut(&consumer.0)?;
    subscription.came = came.unwrap_or(subscription.came);
    Some(Subscriber {
        tag: subscription.tag.clone(),
        no_ack: subscription.no_ack,
        kind: subscription.kind,
    })
}
