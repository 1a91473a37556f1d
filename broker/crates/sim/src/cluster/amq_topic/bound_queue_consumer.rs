//! Has a quorum queue that is bound to `amq.topic`: what MQTT clients were told is safe, and what was confirmed, comes there.

use super::{CHANNEL, EXCHANGE, key_of};
use crate::cluster::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use crate::cluster::client::{Context, Role};
use crate::cluster::mqtt::ReceivedPublish;
use crate::cluster::oracle::{QueuePlan, QueueTreatment};
use crate::cluster::publisher::declare;
use bytes::Bytes;
use codec_amqp091::{Method, Properties};
use codec_mqtt::Qos;
use message::Table;
use std::collections::BTreeSet;

/// Its number among the devices of the account: more than there ever are.
pub const TAP: usize = 1 << 20;
pub const TAPS_QUEUE: &str = "tap";
/// As a filter of MQTT.
const FILTER: &str = "a/+";
const PREFETCH: u16 = 6;

#[derive(Default)]
pub struct BoundQueueConsumer {
    consuming: bool,
    /// Deliveries that it has not acknowledged.
    held: BTreeSet<u64>,
    quiet: bool,
}

/// A delivery as the account has it.
fn arrival(routing_key: &str, properties: &[u8], body: Bytes) -> Result<ReceivedPublish, String> {
    let read = Properties::scan(properties, |_| {}).map_err(|e| e.to_string())?;
    let qos = match read.delivery_mode {
        Some(2) => Qos::AtLeastOnce,
        _ => Qos::AtMostOnce,
    };
    Ok(ReceivedPublish {
        topic: routing_key.replace('.', "/"),
        payload: body,
        qos,
        packet_id: 0,
        retained: false,
    })
}

impl BoundQueueConsumer {
    /// The answer to what it asked for last; the next thing to ask.
    fn answered(&mut self, method: &str, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let next = match method {
            "channel.open-ok" => {
                let queue = QueuePlan {
                    name: TAPS_QUEUE.to_owned(),
                    quorum: true,
                    character: QueueTreatment::Plain,
                };
                return declare(wire, CHANNEL, &queue, false);
            }
            "queue.declare-ok" => {
                cx.mqtt_oracle.asked(cx.now, TAP, FILTER, Qos::AtLeastOnce);
                Method::QueueBind {
                    queue: TAPS_QUEUE,
                    exchange: EXCHANGE,
                    routing_key: &key_of(FILTER).replace('+', "*"),
                    no_wait: false,
                    arguments: Table::default(),
                }
            }
            "queue.bind-ok" => Method::BasicQos {
                prefetch_size: 0,
                prefetch_count: PREFETCH,
                global: false,
            },
            "basic.qos-ok" => Method::BasicConsume {
                queue: TAPS_QUEUE,
                consumer_tag: "tap",
                no_local: false,
                no_ack: false,
                exclusive: false,
                no_wait: false,
                arguments: Table::default(),
            },
            _ => {
                self.consuming |= method == "basic.consume-ok";
                return;
            }
        };
        wire.say(CHANNEL, &next);
    }

    fn close(&mut self) {
        self.consuming = false;
        self.held.clear();
    }

    /// What it holds, up to one of them.
    fn acknowledge(&mut self, up_to: u64, wire: &mut AmqpClient) {
        self.held = self.held.split_off(&(up_to + 1));
        let ack = Method::BasicAck {
            delivery_tag: up_to,
            multiple: true,
        };
        wire.say(CHANNEL, &ack);
    }
}

impl Role for BoundQueueConsumer {
    fn opened(&mut self, wire: &mut AmqpClient, _cx: &mut Context<'_>) {
        wire.say(CHANNEL, &Method::ChannelOpen {});
    }

    fn heard(
        &mut self,
        heard: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        match heard {
            ServerMessage::Done { method, .. } => self.answered(method, wire, cx),
            ServerMessage::Declared { .. } => self.answered("queue.declare-ok", wire, cx),
            ServerMessage::Content {
                way:
                    DeliveryKind::Delivered {
                        tag, redelivered, ..
                    },
                routing_key,
                properties,
                body,
                ..
            } => {
                self.held.insert(tag);
                let arrival = arrival(&routing_key, &properties, body)?;
                return cx.mqtt_oracle.tapped(cx.now, TAP, &arrival, redelivered);
            }
            // The queue cannot be reached.
            ServerMessage::Cancelled { .. } => cx.hang_up = true,
            ServerMessage::ChannelClosed { .. } => {
                self.close();
                wire.say(CHANNEL, &Method::ChannelOpen {});
            }
            other => return Err(format!("who listens to {EXCHANGE} heard {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        self.quiet |= cx.quiet;
        if self.consuming {
            // As far as its node has the binding by now.
            cx.mqtt_oracle.subscribed(cx.now, TAP, FILTER, cx.knows);
        }
        let last = self.held.last().copied();
        if let Some(tag) = last.filter(|_| self.quiet || cx.rng.chance(1, 2)) {
            self.acknowledge(tag, wire);
        }
        cx.hang_up |= !cx.quiet && cx.rng.chance(1, 100);
        Ok(())
    }

    fn lost(&mut self, _cx: &mut Context<'_>) -> Result<(), String> {
        self.close();
        Ok(())
    }

    fn wants_more(&self) -> bool {
        !(self.quiet && self.consuming && self.held.is_empty())
    }

    fn waits_for(&self) -> String {
        format!("to consume ({}), {} held", self.consuming, self.held.len())
    }
}
