//! A client that publishes to all queues with confirms, on several channels.

use super::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use super::client::{ClientContext, Role};
use super::oracle::{DEAD_LETTER_QUEUE, DELAYING_EXCHANGE, QueuePlan, QueueTreatment};
use super::tracked_message::{self, MessageId};
use codec_amqp091::Method;
use env::Rng;
use message::{Table, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const CHANNELS: u16 = 2;
/// Maximum number of unconfirmed messages of a channel.
const MAX_UNCONFIRMED: usize = 24;
/// How long a queue remembers a message: longer than a run, and than all jumps of its clocks.
const COPY_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// A publish that waits for its confirm.
#[derive(Clone, Copy)]
struct Publish {
    id: MessageId,
    queue: usize,
    /// The message was published before.
    is_copy: bool,
}

#[derive(Default)]
struct Channel {
    stream: u32,
    number: u32,
    /// Delivery tag of the last publish.
    tag: u64,
    /// Unconfirmed publishes by delivery tag.
    unconfirmed: BTreeMap<u64, Publish>,
    /// Number of queues declared so far.
    declared_queues: usize,
    is_ready: bool,
}

pub(super) struct Publisher {
    /// Number of the last stream. Each publisher has a range of its own.
    next_stream: u32,
    channels: BTreeMap<u16, Channel>,
    /// Queues that must confirm another message after the faults have ended.
    unconfirmed_queues: BTreeSet<usize>,
    /// Queues that messages are published to all the time, also after the faults have ended.
    busy_queues: BTreeSet<usize>,
    /// Messages to publish again, with their queues.
    copies: VecDeque<(MessageId, usize)>,
    faults_ended: bool,
}

/// Declares a queue of the workload.
pub(super) fn declare(wire: &mut AmqpClient, channel: u16, queue: &QueuePlan, passive: bool) {
    let kind = if queue.quorum { "quorum" } else { "classic" };
    let mut arguments = vec![("x-queue-type", kind)];
    if queue.treatment == QueueTreatment::DeadLettering {
        arguments.extend([
            ("x-dead-letter-exchange", ""),
            ("x-dead-letter-routing-key", DEAD_LETTER_QUEUE),
            ("x-dead-letter-strategy", "at-least-once"),
            ("x-overflow", "reject-publish"),
        ]);
    }
    let arguments = arguments.into_iter();
    let mut arguments: Vec<_> = arguments
        .map(|(name, value)| (name.into(), Value::String(value.into())))
        .collect();
    let ms = |time: Duration| Value::I64(time.as_millis() as i64);
    if let QueueTreatment::ConsumerTimeout(timeout) = queue.treatment {
        arguments.push(("x-consumer-timeout".into(), ms(timeout)));
    }
    if queue.treatment == QueueTreatment::Deduplicated {
        arguments.extend([
            ("x-message-deduplication".into(), Value::Bool(true)),
            ("x-deduplication-window".into(), ms(COPY_WINDOW)),
        ]);
    }
    if queue.treatment == QueueTreatment::Grouped {
        arguments.push(("x-message-groups".into(), Value::Bool(true)));
    }
    if let QueueTreatment::DelayedRetry(plan) = queue.treatment {
        arguments.extend([
            (
                "x-delayed-retry-type".into(),
                Value::from(plan.returns_argument()),
            ),
            ("x-delayed-retry-min".into(), ms(plan.min)),
            ("x-delayed-retry-max".into(), ms(plan.max)),
        ]);
    }
    wire.send(
        channel,
        &Method::QueueDeclare {
            queue: &queue.name,
            passive,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: Table(arguments),
        },
    );
}

/// Binds a queue to the delayed message exchange, which needs no answer before the first publish.
fn bind_to_delaying_exchange(wire: &mut AmqpClient, channel: u16, queue: &str) {
    let kind = ("x-delayed-type".into(), Value::from("direct"));
    let exchange = Method::ExchangeDeclare {
        exchange: DELAYING_EXCHANGE,
        kind: "x-delayed-message",
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table(vec![kind]),
    };
    wire.send(channel, &exchange);
    let bind = Method::QueueBind {
        queue,
        exchange: DELAYING_EXCHANGE,
        routing_key: queue,
        no_wait: false,
        arguments: Table::default(),
    };
    wire.send(channel, &bind);
}

/// Whether the queue recognises copies.
fn is_deduplicated(queue: usize, cx: &ClientContext<'_>) -> bool {
    let plan = cx.oracle.queues.get(queue);
    plan.is_some_and(|plan| plan.treatment == QueueTreatment::Deduplicated)
}

impl Publisher {
    pub(super) fn new(number: u32) -> Publisher {
        Publisher {
            next_stream: number << 16,
            channels: BTreeMap::new(),
            unconfirmed_queues: BTreeSet::new(),
            busy_queues: BTreeSet::new(),
            copies: VecDeque::new(),
            faults_ended: false,
        }
    }

    /// Publishes to these queues all the time from now on, and at least one message that is confirmed to each that ceases to
    /// be busy.
    pub(super) fn make_busy(&mut self, queues: &BTreeSet<usize>) {
        let before = std::mem::replace(&mut self.busy_queues, queues.clone());
        self.unconfirmed_queues.extend(before);
    }

    fn open_channel(&mut self, number: u16, wire: &mut AmqpClient) {
        self.next_stream += 1;
        let channel = Channel {
            stream: self.next_stream,
            ..Channel::default()
        };
        self.channels.insert(number, channel);
        wire.send(number, &Method::ChannelOpen {});
    }

    /// Records that the outcome of these publishes will not be known. If the queue recognises them, they are published
    /// again, in their order. Numbered ones are not: a later one may be in the queue and this one not.
    fn record_unknown(
        &mut self,
        channel: &Channel,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        for publish in channel.unconfirmed.values() {
            let Publish { id, queue, is_copy } = *publish;
            if !is_copy {
                cx.oracle.unknown(id)?;
            }
            if is_deduplicated(queue, cx) && !id.is_numbered() {
                self.copies.push_back((id, queue));
            }
        }
        Ok(())
    }

    /// Publishes a message again, under its first id.
    fn publish_copy(&mut self, number: u16, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let Some((id, queue)) = self.copies.pop_front() else {
            return;
        };
        let Some(plan) = cx.oracle.queues.get(queue) else {
            return;
        };
        channel.tag += 1;
        let properties = id.identified_properties();
        wire.publish(number, ("", &*plan.name), false, &properties, &id.body());
        let is_copy = true;
        let publish = Publish { id, queue, is_copy };
        channel.unconfirmed.insert(channel.tag, publish);
    }

    fn publish(
        &mut self,
        number: u16,
        queue: usize,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let Some(queue_plan) = cx.oracle.queues.get(queue) else {
            return;
        };
        channel.number += 1;
        channel.tag += 1;
        let id = MessageId::new(channel.stream, channel.number);
        // Without `mandatory`, a publish while the queue is deleted would be confirmed.
        let mandatory = queue_plan.treatment == QueueTreatment::Recreated || cx.rng.chance(1, 4);
        let (exchange, properties) = match queue_plan.treatment {
            QueueTreatment::Scheduled(delay) => (DELAYING_EXCHANGE, id.delayed_properties(delay)),
            QueueTreatment::Deduplicated => ("", id.identified_properties()),
            QueueTreatment::Grouped => ("", id.grouped_properties()),
            QueueTreatment::MessageTtl(ttl) => ("", id.expiring_properties(ttl)),
            _ => ("", id.properties(None)),
        };
        let target = (exchange, &*queue_plan.name);
        wire.publish(number, target, mandatory, &properties, &id.body());
        let is_copy = false;
        let publish = Publish { id, queue, is_copy };
        channel.unconfirmed.insert(channel.tag, publish);
        cx.oracle.sent(cx.now, id, queue);
    }

    fn handle_confirm(
        &mut self,
        number: u16,
        (tag, multiple, accepted): (u64, bool, bool),
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let channel = self.channels.get_mut(&number);
        let channel = channel.ok_or_else(|| format!("a confirm on channel {number}"))?;
        let first = if multiple { 0 } else { tag };
        let tags: Vec<u64> = channel
            .unconfirmed
            .range(first..=tag)
            .map(|(t, _)| *t)
            .collect();
        if tags.is_empty() {
            return Err(format!("a confirm for tag {tag}, which waits for none"));
        }
        for tag in tags {
            let Some(Publish { id, queue, is_copy }) = channel.unconfirmed.remove(&tag) else {
                continue;
            };
            match (accepted, is_copy) {
                (true, false) => {
                    cx.oracle.confirmed(cx.now, id)?;
                    self.unconfirmed_queues.remove(&queue);
                }
                (true, true) => cx.oracle.copy_confirmed(id)?,
                (false, false) => cx.oracle.unknown(id)?,
                (false, true) => {}
            }
            let is_recognised = is_deduplicated(queue, cx) && cx.oracle.is_confirmed(id);
            if is_recognised && !self.faults_ended && cx.rng.chance(1, 3) {
                self.copies.push_back((id, queue));
            }
        }
        Ok(())
    }

    fn declare_next_queue(&mut self, number: u16, wire: &mut AmqpClient, cx: &ClientContext<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        match cx.oracle.queues.get(channel.declared_queues) {
            Some(queue) => {
                declare(wire, number, queue, false);
                if let QueueTreatment::Scheduled(_) = queue.treatment {
                    bind_to_delaying_exchange(wire, number, &queue.name);
                }
            }
            None => channel.is_ready = true,
        }
    }
}

impl Role for Publisher {
    fn on_open(&mut self, wire: &mut AmqpClient, _cx: &mut ClientContext<'_>) {
        for number in 1..=CHANNELS {
            self.open_channel(number, wire);
        }
    }

    fn on_message(
        &mut self,
        message: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        match message {
            ServerMessage::Done {
                channel,
                method: "channel.open-ok",
            } => wire.send(channel, &Method::ConfirmSelect { no_wait: false }),
            ServerMessage::Done {
                channel,
                method: "confirm.select-ok",
            } => self.declare_next_queue(channel, wire, cx),
            ServerMessage::Declared { channel } => {
                if let Some(state) = self.channels.get_mut(&channel) {
                    state.declared_queues += 1;
                }
                self.declare_next_queue(channel, wire, cx);
            }
            ServerMessage::Confirmed {
                channel,
                tag,
                multiple,
                accepted,
            } => return self.handle_confirm(channel, (tag, multiple, accepted), cx),
            ServerMessage::Content {
                kind: DeliveryKind::Returned { .. },
                properties,
                body,
                ..
            } => {
                let read = tracked_message::read(&properties, &body)?;
                return cx.oracle.returned(read.id);
            }
            ServerMessage::ChannelClosed { channel, .. } => {
                if let Some(ended) = self.channels.remove(&channel) {
                    self.record_unknown(&ended, cx)?;
                }
            }
            ServerMessage::Done { .. } => {}
            other => return Err(format!("a publisher heard {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        if cx.faults_ended && !std::mem::replace(&mut self.faults_ended, true) {
            self.unconfirmed_queues = (0..cx.oracle.queues.len()).collect();
        }
        for number in 1..=CHANNELS {
            let Some(channel) = self.channels.get(&number) else {
                self.open_channel(number, wire);
                continue;
            };
            if !channel.is_ready || channel.unconfirmed.len() >= MAX_UNCONFIRMED {
                continue;
            }
            if !self.faults_ended {
                if !self.copies.is_empty() && cx.rng.chance(1, 2) {
                    self.publish_copy(number, wire, cx);
                }
                for _ in 0..cx.rng.below(4) {
                    let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
                    self.publish(number, queue, wire, cx);
                }
            } else if !self.busy_queues.is_empty() {
                let position = cx.rng.below(self.busy_queues.len() as u64) as usize;
                if let Some(queue) = self.busy_queues.iter().nth(position).copied() {
                    self.publish(number, queue, wire, cx);
                }
            } else if channel.unconfirmed.is_empty()
                && let Some(queue) = self.unconfirmed_queues.first().copied()
            {
                self.publish(number, queue, wire, cx);
            }
        }
        cx.wants_close |= !cx.faults_ended && cx.rng.chance(1, 400);
        Ok(())
    }

    fn on_connection_lost(&mut self, cx: &mut ClientContext<'_>) -> Result<(), String> {
        for channel in std::mem::take(&mut self.channels).values() {
            self.record_unknown(channel, cx)?;
        }
        Ok(())
    }

    fn has_work_left(&self) -> bool {
        !self.faults_ended
            || !self.busy_queues.is_empty()
            || !self.unconfirmed_queues.is_empty()
            || self.channels.values().any(|c| !c.unconfirmed.is_empty())
    }

    fn describe_wait(&self) -> String {
        let unconfirmed: usize = self.channels.values().map(|c| c.unconfirmed.len()).sum();
        format!(
            "publishes to queues {:?}, {unconfirmed} confirms",
            self.unconfirmed_queues
        )
    }
}
