//! A client that reads all streams, on a channel for each. It goes on after the last message that it got, or begins anew
//! at the first offset or at the end. After the faults, it reads everything from the first offset on.

use super::message;
use super::oracle::History;
use crate::cluster::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use crate::cluster::client::{ClientContext, Role};
use ::message::{Table, Value};
use codec_amqp091::Method;
use env::Rng;
use std::collections::BTreeSet;

/// Where a consumer begins.
#[derive(Clone, Copy, Debug, Default)]
enum Start {
    #[default]
    First,
    At(u64),
    Next,
}

#[derive(Default)]
struct Channel {
    is_open: bool,
    is_consuming: bool,
    start: Start,
    prefetch: u16,
    unacknowledged: BTreeSet<u64>,
    /// The offset after the last message, or at which the consumer begins, if known.
    expected: Option<u64>,
    /// If the client has read from the first offset on.
    history: Option<History>,
}

impl Channel {
    fn begin_at_first(&mut self) {
        *self = Channel {
            expected: Some(0),
            history: Some(History::default()),
            ..Channel::default()
        };
    }

    /// The consumer is lost. Decides where the next one begins.
    fn end(&mut self, rng: &mut impl Rng, reads_all: bool) {
        (self.is_open, self.is_consuming) = (false, false);
        self.unacknowledged.clear();
        let choice = if reads_all { 0 } else { rng.below(6) };
        match (choice, self.expected) {
            (4, _) => self.begin_at_first(),
            (5, _) => {
                *self = Channel {
                    start: Start::Next,
                    ..Channel::default()
                };
            }
            (_, Some(next)) if next > 0 => self.start = Start::At(next),
            _ => {}
        }
    }
}

pub(in crate::cluster) struct StreamReader {
    /// By stream. The number of a channel is one more.
    channels: Vec<Channel>,
    /// The faults have ended, and the client reads everything.
    reads_all: bool,
    /// The messages that are to come.
    waits_for: Option<String>,
}

impl StreamReader {
    pub(super) fn new(streams: usize) -> StreamReader {
        let mut reader = StreamReader {
            channels: (0..streams).map(|_| Channel::default()).collect(),
            reads_all: false,
            waits_for: None,
        };
        reader.channels.iter_mut().for_each(Channel::begin_at_first);
        reader
    }

    fn handle_answer(
        &mut self,
        number: u16,
        method: &str,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) {
        let stream = usize::from(number) - 1;
        let plan = cx.stream_oracle.streams.get(stream);
        let (Some(channel), Some(plan)) = (self.channels.get_mut(stream), plan) else {
            return;
        };
        match method {
            "channel.open-ok" => plan.declare(wire, number),
            "queue.declare-ok" => {
                channel.prefetch = [1, 4, 20, 100][cx.rng.below(4) as usize];
                let qos = Method::BasicQos {
                    prefetch_size: 0,
                    prefetch_count: channel.prefetch,
                    global: false,
                };
                wire.send(number, &qos);
            }
            "basic.qos-ok" => {
                let start = match channel.start {
                    Start::First => Value::String("first".into()),
                    Start::Next => Value::String("next".into()),
                    Start::At(offset) => Value::I64(i64::try_from(offset).unwrap_or(i64::MAX)),
                };
                let consume = Method::BasicConsume {
                    queue: plan.name,
                    consumer_tag: "reader",
                    no_local: false,
                    no_ack: false,
                    exclusive: false,
                    no_wait: false,
                    arguments: Table(vec![("x-stream-offset".into(), start)]),
                };
                wire.send(number, &consume);
            }
            _ => channel.is_consuming |= method == "basic.consume-ok",
        }
    }

    fn handle_delivery(
        &mut self,
        (number, tag): (u16, u64),
        (properties, body): (&[u8], &[u8]),
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let stream = usize::from(number) - 1;
        let channel = self.channels.get_mut(stream).ok_or("an unknown channel")?;
        let (offset, id) = message::decode(properties, body)?;
        let oracle = &mut *cx.stream_oracle;
        tracing::debug!(?id, stream, offset, connection = cx.connection, "read");
        oracle.deliver((stream, offset), id, channel.expected)?;
        channel.expected = Some(offset + 1);
        if let Some(history) = &mut channel.history {
            oracle.extend(history, stream, id)?;
        }
        channel.unacknowledged.insert(tag);
        match channel.unacknowledged.len() <= usize::from(channel.prefetch) {
            true => Ok(()),
            false => Err(format!("more than {} deliveries are out", channel.prefetch)),
        }
    }
}

impl Role for StreamReader {
    fn on_open(&mut self, wire: &mut AmqpClient, _cx: &mut ClientContext<'_>) {
        for (channel, number) in self.channels.iter_mut().zip(1..) {
            channel.is_open = true;
            wire.send(number, &Method::ChannelOpen {});
        }
    }

    fn on_message(
        &mut self,
        message: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        match message {
            ServerMessage::Done { channel, method } => {
                self.handle_answer(channel, method, wire, cx);
            }
            ServerMessage::Declared { channel } => {
                self.handle_answer(channel, "queue.declare-ok", wire, cx);
            }
            ServerMessage::Content {
                channel,
                kind: DeliveryKind::Delivered { tag, .. },
                properties,
                body,
                ..
            } => return self.handle_delivery((channel, tag), (&properties, &body), cx),
            // The stream cannot be reached.
            ServerMessage::Cancelled { .. } => cx.wants_close = true,
            ServerMessage::ChannelClosed { channel, .. } => {
                if let Some(channel) = self.channels.get_mut(usize::from(channel) - 1) {
                    channel.end(cx.rng, self.reads_all);
                }
            }
            other => return Err(format!("a reader of streams got {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        if cx.faults_ended && !self.reads_all {
            // The connection ends, and the next one reads everything.
            cx.wants_close = true;
            return Ok(());
        }
        for (channel, number) in self.channels.iter_mut().zip(1..) {
            if !channel.is_open {
                channel.is_open = true;
                wire.send(number, &Method::ChannelOpen {});
            }
            let some = cx.rng.below(channel.unacknowledged.len().max(1) as u64) as usize;
            let tag = match self.reads_all {
                true => channel.unacknowledged.last(),
                false => channel.unacknowledged.iter().nth(some),
            };
            let Some(tag) = tag.copied() else { continue };
            let multiple = self.reads_all || cx.rng.chance(3, 4);
            channel.unacknowledged.retain(|t| match multiple {
                true => *t > tag,
                false => *t != tag,
            });
            let ack = Method::BasicAck {
                delivery_tag: tag,
                multiple,
            };
            wire.send(number, &ack);
        }
        self.waits_for = self.channels.iter().enumerate().find_map(|(stream, c)| {
            let history = c.history.as_ref()?;
            cx.stream_oracle.describe_wait(history, stream)
        });
        cx.wants_close |= !cx.faults_ended && cx.rng.chance(1, 60);
        Ok(())
    }

    fn on_connection_lost(&mut self, cx: &mut ClientContext<'_>) -> Result<(), String> {
        if cx.faults_ended && !std::mem::replace(&mut self.reads_all, true) {
            self.channels.iter_mut().for_each(Channel::begin_at_first);
            self.waits_for = Some("the first message".to_owned());
        }
        for channel in &mut self.channels {
            channel.end(cx.rng, self.reads_all);
        }
        Ok(())
    }

    fn has_work_left(&self) -> bool {
        !self.reads_all || self.waits_for.is_some() || self.channels.iter().any(|c| !c.is_consuming)
    }

    fn describe_wait(&self) -> String {
        let idle = self.channels.iter().filter(|c| !c.is_consuming).count();
        let waits_for = self.waits_for.as_deref().unwrap_or("nothing");
        format!("to read {waits_for}, {idle} channels without a consumer")
    }
}
