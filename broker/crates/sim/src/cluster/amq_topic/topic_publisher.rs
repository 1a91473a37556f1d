//! An AMQP client that publishes to `amq.topic` with confirms. The cluster owes confirmed messages to the sessions that
//! had subscribed.

use super::{CHANNEL, EXCHANGE, routing_key_of};
use crate::cluster::amqp::{AmqpClient, ServerMessage};
use crate::cluster::client::{Client, ClientContext, Role};
use crate::cluster::mqtt::MessageId;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Method, Properties};
use codec_mqtt::Qos;
use env::Rng;
use std::collections::BTreeMap;

/// Topics of its messages. None of them belongs to a shared subscription.
const TOPICS: [&str; 4] = ["a/x", "a/y", "b/x", "b/y/z"];
/// Maximum number of unconfirmed messages.
const MAX_UNCONFIRMED: usize = 8;
/// Above the streams of all MQTT clients.
const FIRST_STREAM: u32 = 1 << 30;

pub(crate) struct TopicPublisher {
    stream: u32,
    number: u32,
    /// Delivery tag of the last publish.
    tag: u64,
    unconfirmed: BTreeMap<u64, MessageId>,
    is_ready: bool,
    faults_ended: bool,
    /// A message that was published after the faults ended is confirmed.
    final_confirmed: bool,
}

impl Default for TopicPublisher {
    fn default() -> TopicPublisher {
        TopicPublisher {
            stream: FIRST_STREAM,
            number: 0,
            tag: 0,
            unconfirmed: BTreeMap::new(),
            is_ready: false,
            faults_ended: false,
            final_confirmed: false,
        }
    }
}

/// Properties of a persistent message: it reaches subscribers with QoS 1 at most.
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
        wire.send(CHANNEL, &Method::ChannelOpen {});
    }

    fn publish(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let topic = Client::pick(cx.rng, &TOPICS).unwrap_or_default();
        self.number += 1;
        self.tag += 1;
        let id = MessageId::new(self.stream, self.number);
        let to = (EXCHANGE, &*routing_key_of(topic));
        wire.publish(CHANNEL, to, false, &properties(), &id.payload());
        self.unconfirmed.insert(self.tag, id);
        let as_sent = (topic, Qos::AtLeastOnce);
        cx.mqtt_oracle
            .sent(cx.now, id, as_sent, cx.find_bound_queue);
    }

    fn handle_confirm(
        &mut self,
        (tag, multiple, accepted): (u64, bool, bool),
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let first = if multiple { 0 } else { tag };
        let tags: Vec<u64> = self
            .unconfirmed
            .range(first..=tag)
            .map(|(t, _)| *t)
            .collect();
        if tags.is_empty() {
            return Err(format!("a confirm for tag {tag}, which waits for none"));
        }
        for id in tags.iter().filter_map(|tag| self.unconfirmed.remove(tag)) {
            match accepted {
                true => cx.mqtt_oracle.acknowledged(cx.now, id),
                false => cx.mqtt_oracle.unknown(id),
            }
            self.final_confirmed |= accepted && self.faults_ended;
        }
        Ok(())
    }

    /// Records that the outcome of all unconfirmed messages will not be known.
    fn close(&mut self, cx: &mut ClientContext<'_>) {
        self.is_ready = false;
        for id in std::mem::take(&mut self.unconfirmed).into_values() {
            cx.mqtt_oracle.unknown(id);
        }
    }
}

impl Role for TopicPublisher {
    fn on_open(&mut self, wire: &mut AmqpClient, _cx: &mut ClientContext<'_>) {
        self.open_channel(wire);
    }

    fn on_message(
        &mut self,
        message: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        match message {
            ServerMessage::Done {
                method: "channel.open-ok",
                ..
            } => {
                wire.send(CHANNEL, &Method::ConfirmSelect { no_wait: false });
            }
            ServerMessage::Done {
                method: "confirm.select-ok",
                ..
            } => self.is_ready = true,
            ServerMessage::Confirmed {
                tag,
                multiple,
                accepted,
                ..
            } => return self.handle_confirm((tag, multiple, accepted), cx),
            ServerMessage::ChannelClosed { .. } => {
                self.close(cx);
                self.open_channel(wire);
            }
            other => return Err(format!("the publisher of {EXCHANGE} got {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.faults_ended |= cx.faults_ended;
        let count = match self.faults_ended {
            true => u64::from(!self.final_confirmed && self.unconfirmed.is_empty()),
            false => cx.rng.below(3),
        };
        for _ in 0..count {
            if self.is_ready && self.unconfirmed.len() < MAX_UNCONFIRMED {
                self.publish(wire, cx);
            }
        }
        cx.wants_close |= !cx.faults_ended && cx.rng.chance(1, 200);
        Ok(())
    }

    fn on_connection_lost(&mut self, cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.close(cx);
        Ok(())
    }

    fn has_work_left(&self) -> bool {
        !self.faults_ended || !self.final_confirmed || !self.unconfirmed.is_empty()
    }

    fn describe_wait(&self) -> String {
        format!("{} confirms of {EXCHANGE}", self.unconfirmed.len())
    }
}
