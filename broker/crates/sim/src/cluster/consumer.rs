//! A client that consumes with manual acknowledgement, and does everything else a consumer may do.

mod staying;

use super::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use super::client::{Context, Role};
use super::oracle::{Delivery, Holder, STEADY};
use super::publisher::declare;
use super::settlement_tracker::SettlementTracker;
use super::tracked_message::{self, MessageId};
use codec_amqp091::Method;
use env::{Rng, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const CHANNEL: u16 = 1;
/// A queue that is out of reach is left alone for so long. A client that tries without end gives back what it gets from other
/// queues each time its channel is closed, until their delivery limits are reached.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// What the server was asked on the channel and has not answered; answers come in order.
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

struct HeldDelivery {
    id: MessageId,
    queue: usize,
    delivery: Delivery,
    since: Time,
}

#[derive(Default)]
pub struct Consumer {
    /// See [`staying`].
    stays: bool,
    /// Consumers are numbered; never used twice.
    next: u32,
    open: bool,
    prefetch: u16,
    asked: VecDeque<PendingRequest>,
    /// Queue by consumer.
    consumers: BTreeMap<u32, usize>,
    /// Consumers whose cancel is on its way.
    cancelling: BTreeSet<u32>,
    /// Unsettled deliveries by tag.
    held: BTreeMap<u64, HeldDelivery>,
    /// Deliveries that came while a recover was on its way: from before it, or from after it. Who settles up to a later tag may
    /// settle those, too.
    crossed: BTreeMap<u64, MessageId>,
    /// Queues to be left alone, and until when.
    away: BTreeMap<usize, Time>,
    touched: BTreeMap<usize, SettlementTracker>,
    quiet: bool,
}

fn tag_of(consumer: u32) -> String {
    format!("c{consumer}")
}

impl Consumer {
    fn holder(consumer: u32, cx: &Context<'_>) -> Holder {
        Holder {
            connection: cx.connection,
            channel: CHANNEL,
            consumer,
        }
    }

    fn ask(&mut self, asked: PendingRequest, wire: &mut AmqpClient, method: &Method<'_>) {
        self.asked.push_back(asked);
        wire.say(CHANNEL, method);
    }

    fn open_channel(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        self.ask(PendingRequest::Open, wire, &Method::ChannelOpen {});
        self.prefetch = [0, 1, 3, 10, 50][cx.rng.below(5) as usize];
        let qos = Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: self.prefetch,
            global: false,
        };
        self.ask(PendingRequest::Qos, wire, &qos);
        self.open = true;
        for queue in 0..cx.oracle.queues.len() {
            if cx.quiet || cx.rng.chance(1, 2) {
                self.consume(queue, wire, cx);
            }
        }
    }

    fn is_away(&self, queue: usize, cx: &Context<'_>) -> bool {
        self.away.get(&queue).is_some_and(|until| cx.now < *until)
    }

    fn consume(&mut self, queue: usize, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let (away, open) = (self.is_away(queue, cx), cx.quiet && !self.stays);
        let Some(plan) = cx.oracle.queues.get(queue).filter(|_| !away) else {
            return;
        };
        if !open && self.stays != (plan.name == STEADY) {
            return;
        }
        self.asked.push_back(PendingRequest::Declare(queue));
        declare(wire, CHANNEL, plan, false);
        self.next += 1;
        let consume = Method::BasicConsume {
            queue: &plan.name,
            consumer_tag: &tag_of(self.next),
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: message::Table::default(),
        };
        self.consumers.insert(self.next, queue);
        self.ask(PendingRequest::Consume(queue), wire, &consume);
    }

    /// An answer to the oldest question.
    fn answered(&mut self, method: &str, cx: &mut Context<'_>) -> Result<(), String> {
        let asked = self.asked.pop_front();
        let asked = asked.ok_or_else(|| format!("{method} answers nothing"))?;
        let fits = match &asked {
            PendingRequest::Open => method == "channel.open-ok",
            PendingRequest::Qos => method == "basic.qos-ok",
            PendingRequest::Declare(_) | PendingRequest::Probe(..) => method == "queue.declare-ok",
            PendingRequest::Consume(_) => method == "basic.consume-ok",
            PendingRequest::Cancel(_) => method == "basic.cancel-ok",
            PendingRequest::Get(_) => method == "basic.get-empty" || method == "basic.get-ok",
            PendingRequest::Recover => method == "basic.recover-ok",
        };
        if !fits {
            return Err(format!("{method} came as the answer to {asked:?}"));
        }
        match asked {
            PendingRequest::Cancel(consumer) => {
                self.cancelling.remove(&consumer);
                self.consumers.remove(&consumer);
            }
            PendingRequest::Probe(_, touched) => {
                cx.oracle.known(cx.now, cx.node, &touched.settled)?;
                cx.oracle.known_back(cx.now, &touched.given_back)?;
            }
            // What came before this is void.
            PendingRequest::Recover => self.held.clear(),
            _ => {}
        }
        Ok(())
    }

    fn recovering(&self) -> bool {
        self.asked
            .iter()
            .any(|a| matches!(a, PendingRequest::Recover))
    }

    fn content(
        &mut self,
        way: DeliveryKind,
        (properties, body): (&[u8], &[u8]),
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let read = tracked_message::read(properties, body)?;
        let (tag, redelivered, queue, consumer) = match way {
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
                let Some(PendingRequest::Get(queue)) = self.asked.front() else {
                    return Err(format!("got {:?} without asking", read.id));
                };
                let queue = *queue;
                self.answered("basic.get-ok", cx)?;
                (tag, redelivered, queue, 0)
            }
            DeliveryKind::Returned { .. } => return Err("a consumer got a return".to_owned()),
        };
        if self.recovering() {
            // It went back before it came, and may have come to somebody else first.
            self.crossed.insert(tag, read.id);
            return Ok(());
        }
        let to = Consumer::holder(consumer, cx);
        let delivery = Delivery { to, tag };
        cx.oracle
            .delivered(cx.now, read, queue, delivery, redelivered)?;
        let held = HeldDelivery {
            id: read.id,
            queue,
            delivery,
            since: cx.now,
        };
        if self.held.insert(tag, held).is_some() {
            return Err(format!("delivery tag {tag} was used twice"));
        }
        self.within_prefetch(consumer, cx)
    }

    /// Never more is out than was wanted. A queue that gave up this node for a while counts anew.
    fn within_prefetch(&self, consumer: u32, cx: &Context<'_>) -> Result<(), String> {
        let out = (self.held.values()).filter(|h| h.delivery.to.consumer == consumer);
        let has = out.filter(|h| cx.oracle.calm_since(h.since)).count();
        if consumer != 0 && self.prefetch != 0 && has > usize::from(self.prefetch) {
            return Err(format!(
                "{has} deliveries are out, {} wanted",
                self.prefetch
            ));
        }
        Ok(())
    }

    /// Deliveries up to a tag, or just that one.
    fn take(&mut self, tag: u64, multiple: bool) -> Vec<HeldDelivery> {
        let first = if multiple { 0 } else { tag };
        let tags: Vec<u64> = self.held.range(first..=tag).map(|(t, _)| *t).collect();
        tags.iter().filter_map(|t| self.held.remove(t)).collect()
    }

    fn settle_crossed(
        &mut self,
        tag: u64,
        multiple: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        while multiple && let Some(first) = self.crossed.first_entry().filter(|e| *e.key() < tag) {
            cx.oracle.perhaps_settled(cx.now, first.remove())?;
        }
        Ok(())
    }

    fn settle(
        &mut self,
        taken: Vec<HeldDelivery>,
        rejects: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        for held in taken {
            match rejects {
                true => cx.oracle.rejected(cx.now, held.id, held.delivery)?,
                false => cx.oracle.settled(cx.now, held.id, held.delivery)?,
            }
            let touched = self.touched.entry(held.queue).or_default();
            touched.settled.push((held.id, held.delivery));
        }
        Ok(())
    }

    fn give_back(&mut self, taken: Vec<HeldDelivery>, cx: &mut Context<'_>) -> Result<(), String> {
        for held in taken {
            cx.oracle.given_back(cx.now, held.id, held.delivery)?;
            let touched = self.touched.entry(held.queue).or_default();
            touched.given_back.push((held.id, held.delivery));
        }
        Ok(())
    }

    fn ack(&mut self, tag: u64, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        let multiple = !cx.quiet && cx.rng.chance(1, 3);
        let taken = self.take(tag, multiple);
        self.settle_crossed(tag, multiple, cx)?;
        wire.say(
            CHANNEL,
            &Method::BasicAck {
                delivery_tag: tag,
                multiple,
            },
        );
        self.settle(taken, false, cx)
    }

    fn nack(
        &mut self,
        tag: u64,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let (multiple, requeue) = (cx.rng.chance(1, 4), cx.rng.chance(3, 4));
        let taken = self.take(tag, multiple);
        wire.say(
            CHANNEL,
            &Method::BasicNack {
                delivery_tag: tag,
                multiple,
                requeue,
            },
        );
        if requeue {
            self.give_back(taken, cx)
        } else {
            self.settle_crossed(tag, multiple, cx)?;
            self.settle(taken, true, cx)
        }
    }

    /// Asks a queue for its figures: when it answers, it knows what was settled before.
    fn probe(&mut self, queue: usize, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let away = self.is_away(queue, cx);
        let Some(plan) = cx.oracle.queues.get(queue).filter(|_| !away) else {
            return;
        };
        let touched = self.touched.remove(&queue).unwrap_or_default();
        self.asked.push_back(PendingRequest::Probe(queue, touched));
        declare(wire, CHANNEL, plan, true);
    }

    fn get(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
        let away = self.is_away(queue, cx);
        let left = |name: &str| !away && name != STEADY;
        if let Some(plan) = cx.oracle.queues.get(queue).filter(|q| left(&q.name)) {
            let get = Method::BasicGet {
                queue: &plan.name,
                no_ack: false,
            };
            self.ask(PendingRequest::Get(queue), wire, &get);
        }
    }

    /// Ends a consumer, or begins one.
    fn turn_over(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let open: Vec<u32> = (self.consumers.keys().copied())
            .filter(|c| !self.cancelling.contains(c))
            .collect();
        let any = open.get(cx.rng.below(6) as usize);
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
        self.ask(PendingRequest::Cancel(consumer), wire, &cancel);
    }

    fn anything(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        if self.recovering() {
            return Ok(());
        }
        let tags: Vec<u64> = self.held.keys().copied().collect();
        let tag = tags.get(cx.rng.below(tags.len().max(1) as u64) as usize);
        match (cx.rng.below(100), tag) {
            (0..65, Some(tag)) => self.ack(*tag, wire, cx)?,
            (65..75, Some(tag)) => self.nack(*tag, wire, cx)?,
            (75..78, Some(_)) => {
                let all = std::mem::take(&mut self.held).into_values().collect();
                self.give_back(all, cx)?;
                self.ask(
                    PendingRequest::Recover,
                    wire,
                    &Method::BasicRecover { requeue: true },
                );
            }
            (78..82, _) => self.turn_over(wire, cx),
            (82..88, _) => self.get(wire, cx),
            (88..97, _) => {
                let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
                self.probe(queue, wire, cx);
            }
            _ => cx.hang_up |= cx.rng.chance(1, 10),
        }
        Ok(())
    }

    /// Settles everything, and listens to every queue.
    fn finish(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        if self.recovering() {
            return Ok(());
        }
        let tags: Vec<u64> = self.held.keys().copied().collect();
        for tag in tags {
            self.ack(tag, wire, cx)?;
        }
        if !self.asked.is_empty() {
            return Ok(());
        }
        for queue in 0..cx.oracle.queues.len() {
            if !self.consumers.values().any(|q| *q == queue) {
                self.consume(queue, wire, cx);
            }
        }
        let touched: Vec<usize> = self.touched.keys().copied().collect();
        for queue in touched {
            self.probe(queue, wire, cx);
        }
        Ok(())
    }

    /// The channel is gone: what it had goes back.
    fn close(&mut self, cx: &mut Context<'_>) {
        cx.oracle
            .released(cx.now, |h| h.connection == cx.connection);
        self.open = false;
        self.asked.clear();
        self.consumers.clear();
        self.cancelling.clear();
        self.held.clear();
        self.crossed.clear();
        self.touched.clear();
    }
}

impl Role for Consumer {
    fn opened(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        self.open_channel(wire, cx);
    }

    fn heard(
        &mut self,
        heard: ServerMessage,
        _wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        match heard {
            ServerMessage::Done { method, .. } => self.answered(method, cx),
            ServerMessage::Declared { .. } => self.answered("queue.declare-ok", cx),
            ServerMessage::Content {
                way,
                properties,
                body,
                ..
            } => self.content(way, (&properties, &body), cx),
            ServerMessage::Cancelled { consumer, .. } => {
                let number = consumer.get(1..).and_then(|n| n.parse().ok()).unwrap_or(0);
                self.consumers.remove(&number);
                self.held.retain(|_, h| h.delivery.to.consumer != number);
                let holder = Consumer::holder(number, cx);
                cx.oracle.ended_by_broker(cx.now, |h| h == holder);
                Ok(())
            }
            ServerMessage::ChannelClosed { .. } => {
                // The oldest question is the one that was refused.
                if let Some(
                    PendingRequest::Declare(queue)
                    | PendingRequest::Consume(queue)
                    | PendingRequest::Get(queue)
                    | PendingRequest::Probe(queue, _),
                ) = self.asked.front()
                {
                    self.away.insert(*queue, cx.now + LEFT_ALONE);
                }
                let connection = cx.connection;
                cx.oracle
                    .ended_by_broker(cx.now, |h| h.connection == connection);
                self.close(cx);
                Ok(())
            }
            other => Err(format!("a consumer heard {other:?}")),
        }
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        self.quiet = cx.quiet;
        if !self.open {
            self.open_channel(wire, cx);
            return Ok(());
        }
        if self.quiet {
            return self.finish(wire, cx);
        }
        for _ in 0..1 + cx.rng.below(4) {
            match self.stays {
                true => self.come_and_go(wire, cx)?,
                false => self.anything(wire, cx)?,
            }
        }
        Ok(())
    }

    fn lost(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        self.close(cx);
        Ok(())
    }

    fn wants_more(&self) -> bool {
        !self.quiet || !self.asked.is_empty() || !self.held.is_empty() || !self.touched.is_empty()
    }

    fn waits_for(&self) -> String {
        format!(
            "{:?}, {} held, {} consumers",
            self.asked.front(),
            self.held.len(),
            self.consumers.len()
        )
    }
}
