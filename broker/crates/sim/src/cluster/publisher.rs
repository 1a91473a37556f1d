//! A client that publishes with confirms, on several channels to all queues.

use super::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use super::client::{Context, Role};
use super::oracle::{GRAVE, QueuePlan, QueueTreatment};
use super::tracked_message::{self, MessageId};
use codec_amqp091::Method;
use env::Rng;
use message::{Table, Value};
use std::collections::{BTreeMap, BTreeSet};

const CHANNELS: u16 = 2;
/// Messages of a channel that wait for their confirms, at most.
const MOST_OPEN: usize = 24;

#[derive(Default)]
struct Channel {
    stream: u32,
    number: u32,
    /// The delivery tag of the last publish.
    tag: u64,
    /// Publishes that wait, by delivery tag; with the queue.
    open: BTreeMap<u64, (MessageId, usize)>,
    /// Queues declared so far.
    declared: usize,
    ready: bool,
}

pub struct Publisher {
    /// Streams of this publisher are numbered from here.
    next_stream: u32,
    channels: BTreeMap<u16, Channel>,
    /// When all is quiet: queues that must take a message once more.
    left: BTreeSet<usize>,
    quiet: bool,
}

/// Declares a queue of the plan.
pub fn declare(wire: &mut AmqpClient, channel: u16, queue: &QueuePlan, passive: bool) {
    let kind = if queue.quorum { "quorum" } else { "classic" };
    let mut arguments = vec![("x-queue-type", kind)];
    if queue.character == QueueTreatment::Mortal {
        arguments.extend([
            ("x-dead-letter-exchange", ""),
            ("x-dead-letter-routing-key", GRAVE),
            ("x-dead-letter-strategy", "at-least-once"),
            ("x-overflow", "reject-publish"),
        ]);
    }
    let arguments = arguments.into_iter();
    let arguments = arguments.map(|(name, value)| (name.into(), Value::String(value.into())));
    wire.say(
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
    pub fn new(number: u32) -> Publisher {
        Publisher {
            next_stream: number << 16,
            channels: BTreeMap::new(),
            left: BTreeSet::new(),
            quiet: false,
        }
    }

    fn open_channel(&mut self, number: u16, wire: &mut AmqpClient) {
        self.next_stream += 1;
        let channel = Channel {
            stream: self.next_stream,
            ..Channel::default()
        };
        self.channels.insert(number, channel);
        wire.say(number, &Method::ChannelOpen {});
    }

    /// Nobody will say what became of these.
    fn forget(channel: &Channel, cx: &mut Context<'_>) -> Result<(), String> {
        for (id, _) in channel.open.values() {
            cx.oracle.unknown(*id)?;
        }
        Ok(())
    }

    fn publish(&mut self, number: u16, queue: usize, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let Some(plan) = cx.oracle.queues.get(queue) else {
            return;
        };
        channel.number += 1;
        channel.tag += 1;
        let id = MessageId::new(channel.stream, channel.number);
        // Without it nobody would tell that the queue was away for a moment.
        let mandatory = plan.character == QueueTreatment::Recreated || cx.rng.chance(1, 4);
        wire.publish(
            number,
            ("", &plan.name),
            mandatory,
            &id.properties(None),
            &id.body(),
        );
        channel.open.insert(channel.tag, (id, queue));
        cx.oracle.sent(cx.now, id, queue);
    }

    fn confirmed(
        &mut self,
        number: u16,
        (tag, multiple, taken): (u64, bool, bool),
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let channel = self.channels.get_mut(&number);
        let channel = channel.ok_or_else(|| format!("a confirm on channel {number}"))?;
        let first = if multiple { 0 } else { tag };
        let tags: Vec<u64> = channel.open.range(first..=tag).map(|(t, _)| *t).collect();
        if tags.is_empty() {
            return Err(format!("a confirm for tag {tag}, which waits for none"));
        }
        for tag in tags {
            let Some((id, queue)) = channel.open.remove(&tag) else {
                continue;
            };
            if taken {
                cx.oracle.confirmed(cx.now, id)?;
                self.left.remove(&queue);
            } else {
                cx.oracle.unknown(id)?;
            }
        }
        Ok(())
    }

    fn next_declare(&mut self, number: u16, wire: &mut AmqpClient, cx: &Context<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        match cx.oracle.queues.get(channel.declared) {
            Some(queue) => declare(wire, number, queue, false),
            None => channel.ready = true,
        }
    }
}

impl Role for Publisher {
    fn opened(&mut self, wire: &mut AmqpClient, _cx: &mut Context<'_>) {
        for number in 1..=CHANNELS {
            self.open_channel(number, wire);
        }
    }

    fn heard(
        &mut self,
        heard: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        match heard {
            ServerMessage::Done {
                channel,
                method: "channel.open-ok",
            } => wire.say(channel, &Method::ConfirmSelect { no_wait: false }),
            ServerMessage::Done {
                channel,
                method: "confirm.select-ok",
            } => self.next_declare(channel, wire, cx),
            ServerMessage::Declared { channel } => {
                if let Some(known) = self.channels.get_mut(&channel) {
                    known.declared += 1;
                }
                self.next_declare(channel, wire, cx);
            }
            ServerMessage::Confirmed {
                channel,
                tag,
                multiple,
                taken,
            } => return self.confirmed(channel, (tag, multiple, taken), cx),
            ServerMessage::Content {
                way: DeliveryKind::Returned { .. },
                properties,
                body,
                ..
            } => {
                let read = tracked_message::read(&properties, &body)?;
                return cx.oracle.returned(read.id);
            }
            ServerMessage::ChannelClosed { channel, .. } => {
                if let Some(ended) = self.channels.remove(&channel) {
                    Publisher::forget(&ended, cx)?;
                }
            }
            ServerMessage::Done { .. } => {}
            other => return Err(format!("a publisher heard {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        if cx.quiet && !std::mem::replace(&mut self.quiet, true) {
            self.left = (0..cx.oracle.queues.len()).collect();
        }
        for number in 1..=CHANNELS {
            let Some(channel) = self.channels.get(&number) else {
                self.open_channel(number, wire);
                continue;
            };
            if !channel.ready || channel.open.len() >= MOST_OPEN {
                continue;
            }
            if !self.quiet {
                for _ in 0..cx.rng.below(4) {
                    let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
                    self.publish(number, queue, wire, cx);
                }
            } else if channel.open.is_empty()
                && let Some(queue) = self.left.first().copied()
            {
                self.publish(number, queue, wire, cx);
            }
        }
        cx.hang_up |= !cx.quiet && cx.rng.chance(1, 400);
        Ok(())
    }

    fn lost(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        for channel in std::mem::take(&mut self.channels).values() {
            Publisher::forget(channel, cx)?;
        }
        Ok(())
    }

    fn wants_more(&self) -> bool {
        !self.quiet || !self.left.is_empty() || self.channels.values().any(|c| !c.open.is_empty())
    }

    fn waits_for(&self) -> String {
        let open: usize = self.channels.values().map(|c| c.open.len()).sum();
        format!("publishes to queues {:?}, {open} confirms", self.left)
    }
}
