//! A client that publishes to all queues with confirms, on several channels.

use super::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use super::client::{ClientContext, Role};
use super::oracle::{DEAD_LETTER_QUEUE, QueuePlan, QueueTreatment};
use super::tracked_message::{self, MessageId};
use codec_amqp091::Method;
use env::Rng;
use message::{Table, Value};
use std::collections::{BTreeMap, BTreeSet};

const CHANNELS: u16 = 2;
/// Maximum number of unconfirmed messages of a channel.
const MAX_UNCONFIRMED: usize = 24;

#[derive(Default)]
struct Channel {
    stream: u32,
    number: u32,
    /// Delivery tag of the last publish.
    tag: u64,
    /// Unconfirmed publishes by delivery tag, with their queues.
    unconfirmed: BTreeMap<u64, (MessageId, usize)>,
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
    let arguments = arguments.map(|(name, value)| (name.into(), Value::String(value.into())));
    wire.send(
        channel,
        &Method::QueueDeclare {
            queue: &queue.name,
            passive,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: Table(arguments.collect()),
        },
    );
}

impl Publisher {
    pub(super) fn new(number: u32) -> Publisher {
        Publisher {
            next_stream: number << 16,
            channels: BTreeMap::new(),
            unconfirmed_queues: BTreeSet::new(),
            faults_ended: false,
        }
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

    /// Records that the outcome of these publishes will not be known.
    fn record_unknown(channel: &Channel, cx: &mut ClientContext<'_>) -> Result<(), String> {
        for (id, _) in channel.unconfirmed.values() {
            cx.oracle.unknown(*id)?;
        }
        Ok(())
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
        wire.publish(
            number,
            ("", &queue_plan.name),
            mandatory,
            &id.properties(None),
            &id.body(),
        );
        channel.unconfirmed.insert(channel.tag, (id, queue));
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
            let Some((id, queue)) = channel.unconfirmed.remove(&tag) else {
                continue;
            };
            if accepted {
                cx.oracle.confirmed(cx.now, id)?;
                self.unconfirmed_queues.remove(&queue);
            } else {
                cx.oracle.unknown(id)?;
            }
        }
        Ok(())
    }

    fn declare_next_queue(&mut self, number: u16, wire: &mut AmqpClient, cx: &ClientContext<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        match cx.oracle.queues.get(channel.declared_queues) {
            Some(queue) => declare(wire, number, queue, false),
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
                    Publisher::record_unknown(&ended, cx)?;
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
                for _ in 0..cx.rng.below(4) {
                    let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
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
            Publisher::record_unknown(channel, cx)?;
        }
        Ok(())
    }

    fn has_work_left(&self) -> bool {
        !self.faults_ended
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
