//! Sessions on other nodes and a classic queue, over a network that loses frames: every publish is confirmed
//! once and enqueued once, and every message reaches a session once and in order.

use bytes::Bytes;
use env::rng::SeededRng;
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Rng, WallTime};
use message::{Message, MessageBuilder, Protocol, Table};
use queue::classic::ClassicQueue;
use queue::client::{ClientEvent, QueueClient};
use queue::codec::{decode_list, encode_list};
use queue::{
    ConsumerId, ConsumerSpec, DeadLettering, Overflow, Queue, QueueEvent, QueueId, QueueMessage,
    QueueOutput, QueueSettings, QueueType, RequestBody, SessionId, Timestamps,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const OWNER: NodeId = NodeId(1);
const MESSAGES: u64 = 200;
const PUBLISHER: usize = 0;
const CONSUMERS: [usize; 2] = [1, 2];

fn message(n: u64, durable: bool) -> Message {
    let body = n.to_be_bytes();
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable,
        priority: None,
        ttl_ms: None,
        received: WallTime(0),
        exchange: "",
        routing_keys: &["q"],
        properties: &[],
    }
    .build(body.len(), [&body[..]])
    .unwrap()
}

struct World {
    rng: SeededRng,
    loss: u64,
    at: Timestamps,
    queue: ClassicQueue,
    clients: Vec<QueueClient<u64>>,
    up: Vec<VecDeque<Bytes>>,
    down: Vec<VecDeque<Bytes>>,
    published: u64,
    confirmed: BTreeMap<u64, u32>,
    /// Publishes that were reported to the publisher as refused or unknown.
    refused: BTreeSet<u64>,
    dequeued: BTreeMap<u64, u32>,
    last: BTreeMap<usize, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        let settings = QueueSettings {
            max_length: None,
            max_length_bytes: None,
            overflow: Overflow::DropHead,
            delivery_limit: None,
            message_ttl_ms: None,
            single_active_consumer: false,
            max_priority: None,
            dead_letter: DeadLettering::Off,
            quorum: Default::default(),
        };
        let disk = Arc::new(SimDisk::new());
        let at = Timestamps::default();
        let client = |n: u64| {
            let session = SessionId {
                node: NodeId(n + 2),
                incarnation: Incarnation(1),
                number: n,
            };
            QueueClient::new(session, QueueType::Classic, vec![OWNER], None, at.now)
        };
        let mut world = World {
            rng: SeededRng::new(seed),
            loss: 15,
            at,
            queue: ClassicQueue::open(disk, QueueId(1), "q".into(), settings, Incarnation(1))
                .unwrap(),
            clients: (0..3).map(client).collect(),
            up: vec![VecDeque::new(); 3],
            down: vec![VecDeque::new(); 3],
            published: 0,
            confirmed: BTreeMap::new(),
            refused: BTreeSet::new(),
            dequeued: BTreeMap::new(),
            last: BTreeMap::new(),
        };
        for peer in CONSUMERS {
            world.clients[peer].request(RequestBody::Consume {
                consumer: ConsumerId(1),
                spec: ConsumerSpec {
                    tag: "c".into(),
                    channel: 1,
                    flow_mode: queue::FlowMode::Prefetch,
                    prefetch: 7,
                    no_ack: true,
                    exclusive: false,
                    priority: 0,
                    arguments: Table::default(),
                    filter: None,
                },
            });
        }
        world
    }

    fn lost(&mut self) -> bool {
        self.rng.below(100) < self.loss
    }

    fn turn(&mut self) {
        self.at.now = self.at.now + Duration::from_millis(20);
        self.at.wall.0 += 20;
        for _ in 0..self.rng.below(5).min(MESSAGES - self.published) {
            self.published += 1;
            let (n, durable) = (self.published, self.rng.below(2) == 0);
            self.clients[PUBLISHER].publish(Some(n), message(n, durable));
        }
        if self.loss > 0 && self.rng.below(100) < 3 {
            // The owner's node is believed to be down, though it is alive.
            let mut events = Vec::new();
            self.clients[PUBLISHER].owner_lost(&mut events);
            self.send(PUBLISHER, events);
        }
        let mut out = QueueOutput::default();
        for peer in 0..self.clients.len() {
            let client = &mut self.clients[peer];
            if client.wake_at().is_some_and(|at| at <= self.at.now) {
                client.tick(self.at.now, |_| true);
            }
            while let Some(item) = client.poll_send() {
                self.up[peer].push_back(encode_list(&[item]));
            }
            while let Some(frame) = self.up[peer].pop_front() {
                if self.lost() {
                    continue;
                }
                for item in decode_list::<QueueMessage>(&frame).unwrap() {
                    self.queue.step(self.at, item, &mut out);
                }
            }
        }
        self.queue.flush(self.at, &mut out);
        self.queue.tick(self.at, &mut out);
        assert_eq!(out.faults, Vec::<String>::new());
        for addressed in out.events {
            let peer = addressed.session.number as usize;
            self.down[peer].push_back(encode_list(&[addressed.event]));
        }
        for peer in 0..self.clients.len() {
            while let Some(frame) = self.down[peer].pop_front() {
                if !self.lost() {
                    self.handle(peer, frame);
                }
            }
        }
    }

    fn handle(&mut self, peer: usize, frame: Bytes) {
        let mut events = Vec::new();
        for event in decode_list::<QueueEvent>(&frame).unwrap() {
            self.clients[peer].event(self.at.now, OWNER, event, &mut events);
        }
        self.send(peer, events);
    }

    fn send(&mut self, peer: usize, events: Vec<ClientEvent<u64>>) {
        for event in events {
            match event {
                ClientEvent::NotPublished(n, _) => assert!(self.refused.insert(n)),
                ClientEvent::Published(n) => *self.confirmed.entry(n).or_default() += 1,
                ClientEvent::Deliver { deliveries, .. } => {
                    for delivery in deliveries {
                        let body = delivery.message.body();
                        let n = u64::from_be_bytes(body[..].try_into().unwrap());
                        *self.dequeued.entry(n).or_default() += 1;
                        let last = self.last.insert(peer, n).unwrap_or(0);
                        assert!(last < n, "order at {peer}");
                    }
                }
                ClientEvent::Answer { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn every_message_arrives_once_over_a_lossy_network() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            world.turn();
        }
        world.loss = 0;
        let mut turns = 0;
        let done = |w: &World| {
            let stats = w.queue.stats();
            let open = w.clients.iter().any(|c| c.in_flight() > 0);
            w.published == MESSAGES && !open && stats.ready + stats.unacknowledged == 0
        };
        while !done(&world) {
            world.turn();
            turns += 1;
            assert!(turns < 5000, "seed {seed}: {:?}", world.queue.stats());
        }
        for n in 1..=MESSAGES {
            let confirmed = world.confirmed.get(&n).copied().unwrap_or(0);
            let refused = u32::from(world.refused.contains(&n));
            assert_eq!(confirmed + refused, 1, "seed {seed}: {n}");
            let dequeued = world.dequeued.get(&n).copied().unwrap_or(0);
            assert!(dequeued <= 1 && dequeued >= confirmed, "seed {seed}: {n}");
        }
    }
}
