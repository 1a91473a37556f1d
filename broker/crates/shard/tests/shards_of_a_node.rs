//! MQTT sessions whose client comes back at another shard of its node (section 4.3.3).

use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Connect, Packet, Properties, Publish, Qos, ReasonCode, Subscribe,
    SubscribeOptions, SubscriptionFilters, Version, parse_frame,
};
use env::sim::SimDisk;
use env::{Time, WallTime};
use session::ConnectionInfo;
use shard::{ConnectionKey, Effect, RecoveredShard, Shard, ShardConfig, ShardDriver};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(10);
/// Steps that a condition is waited for.
const PATIENCE: usize = 2000;

/// A node alone with two shards.
struct Node {
    shards: Vec<(Shard, Arc<SimDisk>)>,
    listening: [bool; 2],
    now: Time,
    wall: WallTime,
    connections: usize,
}

struct Client {
    at: usize,
    key: ConnectionKey,
    got: BytesMut,
}

impl Node {
    fn new() -> Node {
        let (now, wall) = (Time(1), WallTime(1_700_000_000_000));
        let make = |index| {
            let config = ShardConfig {
                shards: 2,
                index,
                ..crate::cluster::config(1, &[crate::cluster::record(1)])
            };
            let disk = Arc::new(SimDisk::new());
            let shard = Shard::new(config, RecoveredShard::default(), disk.clone(), now, wall);
            (shard.expect("a new shard"), disk)
        };
        let mut node = Node {
            shards: vec![make(0), make(1)],
            listening: [false; 2],
            now,
            wall,
            connections: 0,
        };
        node.until("listening", |node| {
            (node.listening == [true; 2]).then_some(())
        });
        node
    }

    /// Carries what shards say to each other until they are silent.
    fn settle(&mut self) {
        loop {
            let (mut said, mut worked) = (Vec::new(), false);
            for (at, (shard, disk)) in self.shards.iter_mut().enumerate() {
                shard.tick(self.now, self.wall);
                let mut effects = Vec::new();
                shard.poll(&mut effects);
                for effect in effects {
                    match effect {
                        Effect::Shard { to, from, message } => said.push((to, from, message)),
                        Effect::Append { token, .. } => {
                            shard.durable(token);
                            worked = true;
                        }
                        Effect::Job { id, job } => {
                            let result = job.run(&**disk);
                            shard.job_done(id, result);
                            worked = true;
                        }
                        Effect::Listen(on) => self.listening[at] = on,
                        Effect::Fatal(text) => panic!("shard {at} failed: {text}"),
                        _ => {}
                    }
                }
            }
            if said.is_empty() && !worked {
                return;
            }
            for (to, from, message) in said {
                self.shards[usize::from(to)].0.shard_message(from, message);
            }
        }
    }

    fn until<T>(&mut self, what: &str, mut f: impl FnMut(&mut Node) -> Option<T>) -> T {
        for _ in 0..PATIENCE {
            self.settle();
            if let Some(found) = f(self) {
                return found;
            }
            self.now = self.now + STEP;
            self.wall.0 += STEP.as_millis() as u64;
        }
        panic!("not {what} in time");
    }

    /// A client at one of the shards, with its session kept.
    fn connect(&mut self, at: usize, client_id: &str, present: bool) -> Client {
        self.connections += 1;
        let key = ConnectionKey(self.connections);
        let info = ConnectionInfo {
            protocol: crate::cluster::MQTT,
            peer: SocketAddr::from(([127, 0, 0, 1], 50_000)),
            local: SocketAddr::from(([127, 0, 0, 1], 1883)),
            tls: None,
        };
        self.shards[at].0.connected(key, info);
        let got = BytesMut::new();
        let mut client = Client { at, key, got };
        let connect = Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive: 0,
            properties: Properties {
                session_expiry: Some(60),
                ..Properties::default()
            },
            client_id,
            will: None,
            user_name: Some("guest"),
            password: Some(b"guest"),
        };
        client.send(self, &Packet::Connect(connect));
        client.expect(self, &format!("CONNACK {present}"));
        client
    }
}

impl Client {
    fn send(&self, node: &mut Node, packet: &Packet<'_>) {
        let mut input = BytesMut::new();
        packet.encode(Version::V5, &mut input);
        node.shards[self.at].0.received(self.key, &mut input);
        node.settle();
    }

    fn publish(&self, node: &mut Node, packet_id: u16, dup: bool) {
        let publish = Publish {
            dup,
            qos: Qos::ExactlyOnce,
            retain: false,
            topic: "a",
            packet_id,
            properties: Properties::default(),
            payload: b"x",
        };
        self.send(node, &Packet::Publish(publish));
    }

    fn ack(&self, node: &mut Node, kind: AckKind, packet_id: u16) {
        let ack = Ack::new(kind, packet_id, ReasonCode::Success);
        self.send(node, &Packet::Ack(ack));
    }

    fn next(&mut self, node: &mut Node) -> Option<String> {
        if let Some((outbox, _)) = node.shards[self.at].0.outbox(self.key) {
            let pieces: Vec<bytes::Bytes> = outbox.pieces().iter().cloned().collect();
            for piece in pieces {
                outbox.consume(piece.len());
                self.got.extend_from_slice(&piece);
            }
        }
        let frame = parse_frame(&self.got, usize::MAX).expect("a packet")?;
        let said = match Packet::decode(&frame, Version::V5).expect("a packet") {
            Packet::ConnAck(packet) => format!("CONNACK {}", packet.session_present),
            Packet::Publish(packet) => format!("PUBLISH dup {}", packet.dup),
            Packet::Ack(packet) => format!("{:?} {}", packet.kind, packet.packet_id),
            _ => format!("{:?}", frame.kind),
        };
        let len = frame.wire_len();
        drop(self.got.split_to(len));
        Some(said)
    }

    fn expect(&mut self, node: &mut Node, wanted: &str) {
        let said = node.until(wanted, |node| self.next(node));
        assert_eq!(said, wanted);
    }

    fn cut(self, node: &mut Node) {
        node.shards[self.at].0.gone(self.key);
        node.settle();
    }
}

#[test]
fn resent_publish_is_recognised_on_the_other_shard() {
    // [MQTT-4.3.3-10]
    let mut node = Node::new();
    let mut subscriber = node.connect(0, "s", false);
    let mut raw = BytesMut::new();
    let options = SubscribeOptions {
        qos: Qos::AtMostOnce,
        ..SubscribeOptions::default()
    };
    SubscriptionFilters::put(&mut raw, "a", options);
    let subscribe = Subscribe {
        packet_id: 1,
        properties: Properties::default(),
        filters: SubscriptionFilters::new(&raw, Version::V5),
    };
    subscriber.send(&mut node, &Packet::Subscribe(subscribe));
    subscriber.expect(&mut node, "SubAck");
    // The owners of their client ids are different shards.
    for name in ["p1", "p2", "p3", "p4"] {
        let mut publisher = node.connect(0, name, false);
        publisher.publish(&mut node, 9, false);
        publisher.expect(&mut node, "PubRec 9");
        subscriber.expect(&mut node, "PUBLISH dup false");
        for at in [1, 0, 1] {
            publisher.cut(&mut node);
            publisher = node.connect(at, name, true);
            publisher.publish(&mut node, 9, true);
            publisher.expect(&mut node, "PubRec 9");
            assert_eq!(subscriber.next(&mut node), None, "{name} at shard {at}");
        }
        publisher.ack(&mut node, AckKind::PubRel, 9);
        publisher.expect(&mut node, "PubComp 9");
        publisher.publish(&mut node, 9, false);
        publisher.expect(&mut node, "PubRec 9");
        subscriber.expect(&mut node, "PUBLISH dup false");
    }
}
