//! The same for MQTT: a publisher, and a subscriber whose filter has a wildcard and is one of many.

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Packet, Properties, Publish, Qos, ReasonCode, Version, parse_frame,
};
use std::time::Duration;

const VERSION: Version = Version::V5;
/// Filters that do not match.
const OTHERS: u64 = 100;
/// Batches before the first topic is published again, if each message has another one. More topics than a cache has room for.
const BATCHES: u64 = 100;

/// The topics of the messages.
#[derive(Clone, Copy)]
pub enum Topics {
    /// The same one.
    One,
    /// One each, until they come round again.
    Many,
}

pub struct Pair {
    cluster: Cluster,
    publisher: MqttClient,
    subscriber: MqttClient,
    qos: Qos,
    /// The packets that the publisher sends at a time, in turn.
    batches: Vec<BytesMut>,
    batch: u64,
    got: BytesMut,
    acknowledgements: BytesMut,
    sent: u64,
    acknowledged: u64,
    delivered: u64,
}

impl Pair {
    pub fn new(qos: Qos, topics: Topics, batch: u64, shards: u16) -> Pair {
        let mut cluster = crate::node(shards);
        let mut subscriber = MqttClient::new(&mut cluster, 0, "subscriber", 0, None);
        for n in 0..OTHERS {
            subscriber.subscribe(&mut cluster, &format!("devices/{n}/out"), qos);
        }
        subscriber.subscribe(&mut cluster, "devices/+/in", qos);
        let mut publisher =
            MqttClient::new(&mut cluster, usize::from(shards) - 1, "publisher", 0, None);
        publisher.said(&mut cluster);
        subscriber.said(&mut cluster);
        if shards > 1 {
            cluster.skip_idle();
        }
        let batches = match topics {
            Topics::One => vec![batch_of(qos, batch, |_| "devices/7/in".to_owned())],
            Topics::Many => (0..BATCHES)
                .map(|round| batch_of(qos, batch, |n| format!("devices/{}/in", round * batch + n)))
                .collect(),
        };
        Pair {
            cluster,
            publisher,
            subscriber,
            qos,
            batches,
            batch,
            got: BytesMut::new(),
            acknowledgements: BytesMut::new(),
            sent: 0,
            acknowledged: 0,
            delivered: 0,
        }
    }

    /// Until so many messages have been published and delivered, and acknowledged both times if they are of QoS 1.
    pub fn run(&mut self, count: u64) {
        let end = self.sent + count;
        while self.sent < end {
            let turn = (self.sent / self.batch) as usize % self.batches.len();
            self.publisher
                .send_raw(&mut self.cluster, &self.batches[turn]);
            self.sent += self.batch;
            for turns in 0.. {
                self.take();
                self.hear();
                let answered = self.qos == Qos::AtMostOnce || self.acknowledged == self.sent;
                if answered && self.delivered == self.sent {
                    break;
                }
                assert!(turns < 1000, "{} of {}", self.delivered, self.sent);
                self.cluster.pass(Duration::from_millis(10));
            }
        }
    }

    fn hear(&mut self) {
        let acknowledged = &mut self.acknowledged;
        let got = &mut self.got;
        self.publisher
            .take_raw(&mut self.cluster, |piece| got.extend_from_slice(piece));
        packets(got, |packet| {
            if let Packet::Ack(_) = packet {
                *acknowledged += 1;
            }
        });
    }

    fn take(&mut self) {
        let (got, out) = (&mut self.got, &mut self.acknowledgements);
        let delivered = &mut self.delivered;
        self.subscriber
            .take_raw(&mut self.cluster, |piece| got.extend_from_slice(piece));
        packets(got, |packet| {
            let Packet::Publish(publish) = packet else {
                return;
            };
            *delivered += 1;
            if publish.qos == Qos::AtLeastOnce {
                Ack::new(AckKind::PubAck, publish.packet_id, ReasonCode::Success)
                    .encode(VERSION, out);
            }
        });
        if !out.is_empty() {
            self.subscriber.send_raw(&mut self.cluster, out);
            out.clear();
        }
    }
}

fn batch_of(qos: Qos, batch: u64, topic: impl Fn(u64) -> String) -> BytesMut {
    let mut packets = BytesMut::new();
    for n in 0..batch {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic: &topic(n),
            packet_id: match qos {
                Qos::AtMostOnce => 0,
                _ => n as u16 + 1,
            },
            properties: Properties::default(),
            payload: &[7; 12],
        };
        Packet::Publish(publish).encode(VERSION, &mut packets);
    }
    packets
}

fn packets(got: &mut BytesMut, mut each: impl FnMut(Packet<'_>)) {
    let mut done = 0;
    while let Some(frame) = parse_frame(&got[done..], usize::MAX).expect("good packets") {
        done += frame.wire_len();
        each(Packet::decode(&frame, VERSION).expect("a packet"));
    }
    assert_eq!(done, got.len(), "whole packets");
    got.clear();
}
