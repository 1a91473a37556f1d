//! Publishes to `amq.topic` with confirms: what is confirmed is owed to the sessions that had subscribed.

use super::{CHANNEL, EXCHANGE, key_of};
use crate::cluster::amqp::{AmqpClient, ServerMessage};
use crate::cluster::client::{Client, Context, Role};
use crate::cluster::mqtt::MessageId;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Method, Properties};
use codec_mqtt::Qos;
use env::Rng;
use std::collections::BTreeMap;

/// What it publishes is of these. None of them is shared.
const TOPICS: [&str; 4] = ["a/x", "a/y", "b/x", "b/y/z"];
/// Publishes that wait for their confirms, at most.
const MOST_OPEN: usize = 8;
/// Above all streams of clients that speak MQTT.
const FIRST_STREAM: u32 = 1 << 30;

pub struct TopicPublisher {
    stream: u32,
    number: u32,
    /// The delivery tag of the last publish.
    tag: u64,
    open: BTreeMap<u64, MessageId>,
    ready: bool,
    quiet: bool,
    /// When all is quiet: something that was published since is confirmed.
    heard_last: bool,
}

impl Default for TopicPublisher {
    fn default() -> TopicPublisher {
        TopicPublisher {
            stream: FIRST_STREAM,
            number: 0,
            tag: 0,
            open: BTreeMap::new(),
            ready: false,
            quiet: false,
            heard_last: false,
        }
    }
}

/// Persistent: they reach who subscribed with QoS 1 at the most.
fn properties() -> Bytes {
    let mut out = BytesMut::new();
    let properties = Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    };
    properties.encode(&mut out);
    out.freeze()
}

impl TopicPublisher {
    fn open_channel(&mut self, wire: &mut AmqpClient) {
        self.stream += 1;
        (self.number, self.tag) = (0, 0);
        wire.say(CHANNEL, &Method::ChannelOpen {});
    }

    fn publish(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let topic = Client::pick(cx.rng, &TOPICS).unwrap_or_default();
        self.number += 1;
        self.tag += 1;
        let id = MessageId::new(self.stream, self.number);
        let to = (EXCHANGE, &*key_of(topic));
        wire.publish(CHANNEL, to, false, &properties(), &id.payload());
        self.open.insert(self.tag, id);
        let as_sent = (topic, Qos::AtLeastOnce);
        cx.mqtt_oracle.sent(cx.now, id, as_sent, cx.knows);
    }

    fn confirmed(
        &mut self,
        (tag, multiple, taken): (u64, bool, bool),
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let first = if multiple { 0 } else { tag };
        let tags: Vec<u64> = self.open.range(first..=tag).map(|(t, _)| *t).collect();
        if tags.is_empty() {
            return Err(format!("a confirm for tag {tag}, which waits for none"));
        }
        for id in tags.iter().filter_map(|tag| self.open.remove(tag)) {
            match taken {
                true => cx.mqtt_oracle.acknowledged(cx.now, id),
                false => cx.mqtt_oracle.unknown(id),
            }
            self.heard_last |= taken && self.quiet;
        }
        Ok(())
    }

    /// Nobody will say what became of what is open.
    fn close(&mut self, cx: &mut Context<'_>) {
        self.ready = false;
        for id in std::mem::take(&mut self.open).into_values() {
            cx.mqtt_oracle.unknown(id);
        }
    }
}

impl Role for TopicPublisher {
    fn opened(&mut self, wire: &mut AmqpClient, _cx: &mut Context<'_>) {
        self.open_channel(wire);
    }

    fn heard(
        &mut self,
        heard: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        match heard {
            ServerMessage::Done {
                method: "channel.open-ok",
                ..
            } => {
                wire.say(CHANNEL, &Method::ConfirmSelect { no_wait: false });
            }
            ServerMessage::Done {
                method: "confirm.select-ok",
                ..
            } => self.ready = true,
            ServerMessage::Confirmed {
                tag,
                multiple,
                taken,
                ..
            } => return self.confirmed((tag, multiple, taken), cx),
            ServerMessage::ChannelClosed { .. } => {
                self.close(cx);
                self.open_channel(wire);
            }
            other => return Err(format!("who publishes to {EXCHANGE} heard {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        self.quiet |= cx.quiet;
        let most = match self.quiet {
            true => u64::from(!self.heard_last && self.open.is_empty()),
            false => cx.rng.below(3),
        };
        for _ in 0..most {
            if self.ready && self.open.len() < MOST_OPEN {
                self.publish(wire, cx);
            }
        }
        cx.hang_up |= !cx.quiet && cx.rng.chance(1, 200);
        Ok(())
    }

    fn lost(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        self.close(cx);
        Ok(())
    }

    fn wants_more(&self) -> bool {
        !self.quiet || !self.heard_last || !self.open.is_empty()
    }

    fn waits_for(&self) -> String {
        format!("{} confirms of {EXCHANGE}", self.open.len())
    }
}
