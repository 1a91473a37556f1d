//! A client that publishes to all streams with confirms, on a channel for each.

use super::message;
use super::oracle::StreamOracle;
use crate::cluster::amqp::{AmqpClient, ServerMessage};
use crate::cluster::client::{ClientContext, Role};
use crate::cluster::tracked_message::MessageId;
use codec_amqp091::Method;
use env::Rng;
use std::collections::BTreeMap;

/// Maximum number of unconfirmed messages of a channel.
const MAX_UNCONFIRMED: usize = 12;

#[derive(Default)]
struct Channel {
    is_open: bool,
    is_ready: bool,
    /// Number of the channel in the ids of its messages.
    session: u32,
    number: u32,
    /// Delivery tag of the last publish.
    tag: u64,
    unconfirmed: BTreeMap<u64, MessageId>,
    /// The first delivery tag of a message that was published after the faults had ended.
    first_final_tag: Option<u64>,
}

pub(in crate::cluster) struct StreamPublisher {
    number: u32,
    next_session: u32,
    /// By stream. The number of a channel is one more.
    channels: Vec<Channel>,
    faults_ended: bool,
    /// Streams without a confirm after the faults ended.
    unfinished: usize,
}

impl StreamPublisher {
    pub(super) fn new(number: u32, streams: usize) -> StreamPublisher {
        StreamPublisher {
            number,
            next_session: number << 16,
            channels: (0..streams).map(|_| Channel::default()).collect(),
            faults_ended: false,
            unfinished: streams,
        }
    }

    fn open_channel(&mut self, stream: usize, wire: &mut AmqpClient) {
        self.next_session += 1;
        if let Some(channel) = self.channels.get_mut(stream) {
            *channel = Channel {
                is_open: true,
                session: self.next_session,
                ..Channel::default()
            };
            wire.send(stream as u16 + 1, &Method::ChannelOpen {});
        }
    }

    fn handle_confirm(
        &mut self,
        stream: usize,
        (tag, multiple, accepted): (u64, bool, bool),
        oracle: &mut StreamOracle,
    ) -> Result<(), String> {
        let channel = self.channels.get_mut(stream).ok_or("an unknown channel")?;
        let first = if multiple { 0 } else { tag };
        let unconfirmed = channel.unconfirmed.range(first..=tag);
        let tags: Vec<u64> = unconfirmed.map(|(tag, _)| *tag).collect();
        if tags.is_empty() {
            return Err(format!("a confirm for tag {tag}, which waits for none"));
        }
        for tag in tags {
            let id = channel.unconfirmed.remove(&tag);
            if let Some(id) = id.filter(|_| accepted) {
                oracle.confirm(stream, id);
                if channel.first_final_tag.is_some_and(|first| tag >= first) {
                    oracle.finish(self.number, stream);
                }
            }
        }
        Ok(())
    }
}

impl Role for StreamPublisher {
    fn on_open(&mut self, wire: &mut AmqpClient, _cx: &mut ClientContext<'_>) {
        for stream in 0..self.channels.len() {
            self.open_channel(stream, wire);
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
            } => {
                let stream = usize::from(channel) - 1;
                if let Some(plan) = cx.stream_oracle.streams.get(stream) {
                    plan.declare(wire, channel);
                }
            }
            ServerMessage::Declared { channel } => {
                if let Some(channel) = self.channels.get_mut(usize::from(channel) - 1) {
                    channel.is_ready = true;
                }
            }
            ServerMessage::Confirmed {
                channel,
                tag,
                multiple,
                accepted,
            } => {
                let confirm = (tag, multiple, accepted);
                let stream = usize::from(channel) - 1;
                return self.handle_confirm(stream, confirm, cx.stream_oracle);
            }
            ServerMessage::ChannelClosed { channel, .. } => {
                if let Some(channel) = self.channels.get_mut(usize::from(channel) - 1) {
                    *channel = Channel::default();
                }
            }
            other => return Err(format!("a publisher to streams got {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.faults_ended |= cx.faults_ended;
        self.unfinished = 0;
        for stream in 0..self.channels.len() {
            let is_finished = cx.stream_oracle.has_finished(self.number, stream);
            self.unfinished += usize::from(!is_finished);
            let Some(channel) = self.channels.get_mut(stream) else {
                continue;
            };
            if !channel.is_open {
                self.open_channel(stream, wire);
                continue;
            }
            let room = MAX_UNCONFIRMED - channel.unconfirmed.len().min(MAX_UNCONFIRMED);
            let count = match self.faults_ended {
                false => (cx.rng.below(4) as usize).min(room),
                true => usize::from(!is_finished && channel.unconfirmed.is_empty()),
            };
            let count = if channel.is_ready { count } else { 0 };
            for _ in 0..count {
                channel.number += 1;
                channel.tag += 1;
                let id = MessageId::new(channel.session, channel.number);
                if self.faults_ended {
                    channel.first_final_tag.get_or_insert(channel.tag);
                }
                let name = cx.stream_oracle.streams.get(stream).map_or("", |p| p.name);
                let (properties, body) = message::encode(id);
                let to = ("", name);
                wire.publish(stream as u16 + 1, to, false, &properties, &body);
                channel.unconfirmed.insert(channel.tag, id);
                cx.stream_oracle.publish(stream, id);
            }
        }
        cx.wants_close |= !cx.faults_ended && cx.rng.chance(1, 300);
        Ok(())
    }

    fn on_connection_lost(&mut self, _cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.channels.iter_mut().for_each(|channel| {
            *channel = Channel::default();
        });
        Ok(())
    }

    fn has_work_left(&self) -> bool {
        !self.faults_ended
            || self.unfinished > 0
            || self.channels.iter().any(|c| !c.unconfirmed.is_empty())
    }

    fn describe_wait(&self) -> String {
        let unconfirmed: usize = self.channels.iter().map(|c| c.unconfirmed.len()).sum();
        let unfinished = self.unfinished;
        format!("publishes to {unfinished} streams, {unconfirmed} confirms")
    }
}
