//! An AMQP client with a quorum queue that is bound to `amq.topic`. Messages that MQTT clients publish, or that are
//! confirmed there, come to this queue.

use super::{CHANNEL, EXCHANGE, routing_key_of};
use crate::cluster::amqp::{AmqpClient, DeliveryKind, ServerMessage};
use crate::cluster::client::{ClientContext, Role};
use crate::cluster::mqtt::ReceivedPublish;
use crate::cluster::oracle::{QueuePlan, QueueTreatment};
use crate::cluster::publisher::declare;
use bytes::Bytes;
use codec_amqp091::{Method, Properties};
use codec_mqtt::Qos;
use message::Table;
use std::collections::BTreeSet;

/// Its number among the clients of the MQTT oracle: above all MQTT clients.
pub(crate) const BOUND_CONSUMER: usize = 1 << 20;
pub(crate) const BOUND_QUEUE: &str = "tap";
/// The binding as an MQTT filter.
const FILTER: &str = "a/+";
const PREFETCH: u16 = 6;

#[derive(Default)]
pub(crate) struct BoundQueueConsumer {
    is_consuming: bool,
    /// Unacknowledged deliveries.
    unacknowledged: BTreeSet<u64>,
    faults_ended: bool,
}

/// A delivery in the form that the MQTT oracle takes.
fn received_publish(
    routing_key: &str,
    properties: &[u8],
    body: Bytes,
) -> Result<ReceivedPublish, String> {
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
    /// Handles the answer to the last request and sends the next one.
    fn handle_answer(&mut self, method: &str, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let next = match method {
            "channel.open-ok" => {
                let queue = QueuePlan {
                    name: BOUND_QUEUE.to_owned(),
                    quorum: true,
                    treatment: QueueTreatment::Plain,
                };
                return declare(wire, CHANNEL, &queue, false);
            }
            "queue.declare-ok" => {
                cx.mqtt_oracle
                    .subscribe_sent(cx.now, BOUND_CONSUMER, FILTER, Qos::AtLeastOnce);
                Method::QueueBind {
                    queue: BOUND_QUEUE,
                    exchange: EXCHANGE,
                    routing_key: &routing_key_of(FILTER).replace('+', "*"),
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
                queue: BOUND_QUEUE,
                consumer_tag: "tap",
                no_local: false,
                no_ack: false,
                exclusive: false,
                no_wait: false,
                arguments: Table::default(),
            },
            _ => {
                self.is_consuming |= method == "basic.consume-ok";
                return;
            }
        };
        wire.send(CHANNEL, &next);
    }

    fn close(&mut self) {
        self.is_consuming = false;
        self.unacknowledged.clear();
    }

    /// Acknowledges all deliveries up to this tag.
    fn acknowledge(&mut self, up_to: u64, wire: &mut AmqpClient) {
        self.unacknowledged = self.unacknowledged.split_off(&(up_to + 1));
        let ack = Method::BasicAck {
            delivery_tag: up_to,
            multiple: true,
        };
        wire.send(CHANNEL, &ack);
    }
}

impl Role for BoundQueueConsumer {
    fn on_open(&mut self, wire: &mut AmqpClient, _cx: &mut ClientContext<'_>) {
        wire.send(CHANNEL, &Method::ChannelOpen {});
    }

    fn on_message(
        &mut self,
        message: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        match message {
            ServerMessage::Done { method, .. } => self.handle_answer(method, wire, cx),
            ServerMessage::Declared { .. } => self.handle_answer("queue.declare-ok", wire, cx),
            ServerMessage::Content {
                kind:
                    DeliveryKind::Delivered {
                        tag, redelivered, ..
                    },
                routing_key,
                properties,
                body,
                ..
            } => {
                self.unacknowledged.insert(tag);
                let arrival = received_publish(&routing_key, &properties, body)?;
                return cx.mqtt_oracle.delivered_to_bound_queue(
                    cx.now,
                    BOUND_CONSUMER,
                    &arrival,
                    redelivered,
                );
            }
            // The queue is unreachable.
            ServerMessage::Cancelled { .. } => cx.wants_close = true,
            ServerMessage::ChannelClosed { .. } => {
                self.close();
                wire.send(CHANNEL, &Method::ChannelOpen {});
            }
            other => return Err(format!("the consumer of {EXCHANGE} got {other:?}")),
        }
        Ok(())
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.faults_ended |= cx.faults_ended;
        if self.is_consuming {
            // Counts as soon as the client's node has the binding.
            cx.mqtt_oracle
                .subscribed(cx.now, BOUND_CONSUMER, FILTER, cx.find_bound_queue);
        }
        let last = self.unacknowledged.last().copied();
        if let Some(tag) = last.filter(|_| self.faults_ended || cx.rng.chance(1, 2)) {
            self.acknowledge(tag, wire);
        }
        cx.wants_close |= !cx.faults_ended && cx.rng.chance(1, 100);
        Ok(())
    }

    fn on_connection_lost(&mut self, _cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.close();
        Ok(())
    }

    fn has_work_left(&self) -> bool {
        !(self.faults_ended && self.is_consuming && self.unacknowledged.is_empty())
    }

    fn describe_wait(&self) -> String {
        format!(
            "to consume ({}), {} held",
            self.is_consuming,
            self.unacknowledged.len()
        )
    }
}
