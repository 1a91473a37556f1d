//! What a message costs a node between its sockets and its disk: AMQP 0.9.1, AMQP 1.0 and MQTT sessions, routing, topics, queues,
//! Raft. No network, a disk in memory.
//!
//! `cargo bench -p shard --bench hot_path` prints processor time and allocations per message. `hot_path WORKLOAD COUNT` runs
//! one for so many messages and prints nothing: for tools that count instructions (`hack/hot-path`); `--list` names them.

#[path = "hot_path/amqp10.rs"]
mod amqp10;
#[path = "../tests/cluster/mod.rs"]
mod cluster;
#[path = "../../queue/benches/counting.rs"]
mod counting;
#[path = "hot_path/mqtt.rs"]
mod mqtt;

use bytes::BytesMut;
use cluster::{Client, Cluster};
use codec_amqp091::{
    FrameKind, Method, Properties, encode_body, encode_content_header, encode_method, parse_frame,
};
use codec_mqtt::Qos;
use counting::{ALLOCATIONS, Counting};
use message::{Table, Value};
use mqtt::Topics;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages of 12 B, of AMQP persistent, confirmed and acknowledged.
struct Workload {
    name: &'static str,
    path: Path,
    /// Sent before anything is answered.
    batch: u64,
    /// Shards of the node.
    shards: u16,
}

/// What a message goes through.
enum Path {
    /// A queue of this type.
    Amqp(&'static str),
    /// A queue of this type between clients of AMQP 1.0.
    Amqp10(&'static str),
    /// A session that ends with its connection.
    Mqtt(Qos, Topics),
}

const fn workload(name: &'static str, path: Path, batch: u64) -> Workload {
    Workload {
        name,
        path,
        batch,
        shards: 1,
    }
}

/// A workload in which every message crosses shards: from the publisher's to the queue's and on to the consumer's, or
/// for MQTT from the publisher's to the subscriber's.
const fn crossing(name: &'static str, path: Path, batch: u64, shards: u16) -> Workload {
    Workload {
        name,
        path,
        batch,
        shards,
    }
}

static WORKLOADS: [Workload; 19] = [
    workload("classic", Path::Amqp("classic"), 100),
    workload("classic-one-by-one", Path::Amqp("classic"), 1),
    workload("quorum", Path::Amqp("quorum"), 100),
    workload("quorum-one-by-one", Path::Amqp("quorum"), 1),
    workload("amqp10-classic", Path::Amqp10("classic"), 100),
    workload("amqp10-quorum", Path::Amqp10("quorum"), 100),
    workload("amqp10-quorum-one-by-one", Path::Amqp10("quorum"), 1),
    workload("mqtt-qos0", Path::Mqtt(Qos::AtMostOnce, Topics::One), 100),
    workload(
        "mqtt-qos0-one-by-one",
        Path::Mqtt(Qos::AtMostOnce, Topics::One),
        1,
    ),
    workload(
        "mqtt-qos0-topics",
        Path::Mqtt(Qos::AtMostOnce, Topics::Many),
        100,
    ),
    workload("mqtt-qos1", Path::Mqtt(Qos::AtLeastOnce, Topics::One), 100),
    workload(
        "mqtt-qos1-one-by-one",
        Path::Mqtt(Qos::AtLeastOnce, Topics::One),
        1,
    ),
    crossing("classic-2-shards", Path::Amqp("classic"), 100, 2),
    crossing("quorum-2-shards", Path::Amqp("quorum"), 100, 2),
    crossing("quorum-4-shards", Path::Amqp("quorum"), 100, 4),
    crossing("quorum-8-shards", Path::Amqp("quorum"), 100, 8),
    crossing(
        "mqtt-qos0-2-shards",
        Path::Mqtt(Qos::AtMostOnce, Topics::One),
        100,
        2,
    ),
    crossing(
        "mqtt-qos1-2-shards",
        Path::Mqtt(Qos::AtLeastOnce, Topics::One),
        100,
        2,
    ),
    crossing(
        "mqtt-qos1-8-shards",
        Path::Mqtt(Qos::AtLeastOnce, Topics::One),
        100,
        8,
    ),
];

impl Workload {
    /// What runs it for so many messages.
    fn ready(&self) -> Box<dyn FnMut(u64)> {
        match self.path {
            Path::Amqp(queue_type) => {
                let mut pair = Pair::new(queue_type, self.batch, self.shards);
                Box::new(move |count| pair.run(count))
            }
            Path::Amqp10(queue_type) => {
                let mut pair = amqp10::Pair::new(queue_type, self.batch);
                Box::new(move |count| pair.run(count))
            }
            Path::Mqtt(qos, topics) => {
                let mut pair = mqtt::Pair::new(qos, topics, self.batch, self.shards);
                Box::new(move |count| pair.run(count))
            }
        }
    }
}

const MEASURED: u64 = 100_000;
const FRAME_MAX: u32 = 131_072;

/// A publisher and a consumer with a connection each, and the queue between them.
struct Pair {
    cluster: Cluster,
    publisher: Client,
    consumer: Client,
    /// What the publisher sends at a time.
    frames: BytesMut,
    batch: u64,
    got: BytesMut,
    sent: u64,
    confirmed: u64,
    delivered: u64,
}

impl Pair {
    fn new(queue_type: &str, batch: u64, shards: u16) -> Pair {
        let mut cluster = node(shards);
        let kind = Value::from(queue_type);
        let mut declarer = cluster.client(0);
        declarer.declare(&mut cluster, "q", &[("x-queue-type", kind)]);
        let owner = cluster.owner_shard("q");
        let shards = usize::from(shards);
        let mut publisher = cluster.client((owner + 1) % shards);
        let mut consumer = cluster.client((owner + shards.min(3) - 1) % shards);
        publisher.call(&mut cluster, 1, Method::ConfirmSelect { no_wait: false });
        let qos = Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 200,
            global: false,
        };
        consumer.call(&mut cluster, 1, qos);
        let consume = Method::BasicConsume {
            queue: "q",
            consumer_tag: "c",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: Table::default(),
        };
        consumer.call(&mut cluster, 1, consume);
        if shards > 1 {
            cluster.skip_idle();
        }
        let mut frames = BytesMut::new();
        for _ in 0..batch {
            publish(&mut frames);
        }
        Pair {
            cluster,
            publisher,
            consumer,
            frames,
            batch,
            got: BytesMut::new(),
            sent: 0,
            confirmed: 0,
            delivered: 0,
        }
    }

    /// Until so many messages have been published, confirmed, delivered and acknowledged.
    fn run(&mut self, count: u64) {
        let end = self.sent + count;
        while self.sent < end {
            self.publisher.send_raw(&mut self.cluster, &self.frames);
            self.sent += self.batch;
            for turns in 0.. {
                self.hear_confirms();
                self.acknowledge();
                if self.confirmed == self.sent && self.delivered == self.sent {
                    break;
                }
                assert!(turns < 1000, "{} of {}", self.delivered, self.sent);
                // A classic queue confirms when its files are synced, some time later.
                self.cluster.pass(Duration::from_millis(10));
            }
        }
    }

    fn hear_confirms(&mut self) {
        let got = &mut self.got;
        self.publisher
            .take_raw(&mut self.cluster, |piece| got.extend_from_slice(piece));
        let mut confirmed = self.confirmed;
        methods(got, |method| {
            if let Method::BasicAck {
                delivery_tag,
                multiple,
            } = method
            {
                confirmed = if multiple {
                    delivery_tag
                } else {
                    confirmed + 1
                };
            }
        });
        self.confirmed = confirmed;
    }

    fn acknowledge(&mut self) {
        let got = &mut self.got;
        self.consumer
            .take_raw(&mut self.cluster, |piece| got.extend_from_slice(piece));
        let mut last = None;
        methods(got, |method| {
            if let Method::BasicDeliver { delivery_tag, .. } = method {
                last = Some(delivery_tag);
            }
        });
        if let Some(delivery_tag) = last {
            self.delivered = delivery_tag;
            let ack = Method::BasicAck {
                delivery_tag,
                multiple: true,
            };
            self.consumer.send(&mut self.cluster, 1, ack);
        }
    }
}

/// A node alone with this number of shards.
fn node(shards: u16) -> Cluster {
    match shards {
        1 => Cluster::new(1),
        _ => Cluster::of_shards(shards),
    }
}

fn publish(frames: &mut BytesMut) {
    let method = Method::BasicPublish {
        exchange: "",
        routing_key: "q",
        mandatory: false,
        immediate: false,
    };
    encode_method(frames, 1, &method);
    let properties = Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    };
    let mut raw = BytesMut::new();
    properties.encode(&mut raw);
    encode_content_header(frames, 1, 12, &raw);
    encode_body(frames, 1, &[7; 12], FRAME_MAX);
}

fn methods(got: &mut BytesMut, mut each: impl FnMut(Method<'_>)) {
    let mut done = 0;
    while let Some(frame) = parse_frame(&got[done..], FRAME_MAX).expect("good frames") {
        done += frame.wire_len();
        if frame.kind == FrameKind::Method {
            each(Method::decode(frame.payload).expect("a method"));
        }
    }
    assert_eq!(done, got.len(), "whole frames");
    got.clear();
}

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let first = arguments.next();
    if first.as_deref() == Some("--list") {
        WORKLOADS.iter().for_each(|w| println!("{}", w.name));
        return;
    }
    if let (Some(name), Some(count)) = (first, arguments.next()) {
        let workload = WORKLOADS.iter().find(|w| w.name == name);
        let mut run = workload.expect("a workload's name").ready();
        return run(count.parse().expect("how many messages"));
    }
    println!("{:<26}{:>14}{:>14}", "per message", "allocations", "ns");
    for workload in &WORKLOADS {
        let mut run = workload.ready();
        run(MEASURED / 10);
        let (allocations, start) = (ALLOCATIONS.load(Relaxed), cpu());
        run(MEASURED);
        let spent = cpu().saturating_sub(start);
        let allocations = ALLOCATIONS.load(Relaxed) - allocations;
        println!(
            "{:<26}{:>14.2}{:>14.0}",
            workload.name,
            allocations as f64 / MEASURED as f64,
            spent.as_nanos() as f64 / MEASURED as f64
        );
    }
}
