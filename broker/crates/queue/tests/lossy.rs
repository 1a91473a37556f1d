//! Sessions, their clients and the members of a quorum queue over a network that loses frames, with changing
//! leaders: every publish is confirmed once and enqueued once, and every message reaches a session once.

use bytes::Bytes;
use env::rng::SeededRng;
use env::{Incarnation, NodeId, Rng, Time, WallTime};
use message::{Message, MessageBuilder, Protocol, Table};
use queue::client::{ClientEvent, QueueClient};
use queue::codec::{decode_list, encode_list};
use queue::quorum::QuorumQueue;
use queue::{
    ConsumerId, ConsumerSpec, DeadLettering, Overflow, Queue, QueueEvent, QueueMessage,
    QueueOutput, QueueReply, QueueSettings, QueueType, RequestBody, SessionId, SettlementOutcome,
    Timestamps,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const NODES: u64 = 3;
const PUBLISHERS: usize = 2;
const CONSUMERS: usize = 3;
const MESSAGES: u64 = 120;

fn message(n: u64) -> Message {
    let body = n.to_be_bytes();
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
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

fn settings() -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: None,
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority: None,
        dead_letter: DeadLettering::AtMostOnce,
        quorum: Default::default(),
    }
}

/// The log of the group. `tail` holds the leader's uncommitted proposals.
#[derive(Default)]
struct Log {
    committed: Vec<(u64, Bytes)>,
    tail: VecDeque<(u64, Bytes)>,
    leader: u64,
    term: u64,
}

struct Member {
    queue: QuorumQueue,
    applied: usize,
    out: QueueOutput,
}

struct Peer {
    client: QueueClient<u64>,
    id: SessionId,
    consumer: Option<ConsumerId>,
    next_consumer: u32,
    /// Cancelled consumers, by the number of the request that was made after the cancel.
    leaving: BTreeMap<u64, ConsumerId>,
    /// Consumers whose later request is answered: nothing may arrive for them any more.
    cancelled: BTreeSet<ConsumerId>,
}

struct World {
    rng: SeededRng,
    loss: u64,
    at: Timestamps,
    log: Log,
    members: Vec<Member>,
    peers: Vec<Peer>,
    to_member: BTreeMap<(usize, u64), VecDeque<Bytes>>,
    to_peer: BTreeMap<(usize, u64), VecDeque<Bytes>>,
    next_message: u64,
    confirmed: BTreeMap<u64, u32>,
    events: BTreeMap<u64, u32>,
    requeued: BTreeMap<u64, u32>,
    last_first: BTreeMap<(usize, ConsumerId, u64), u64>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            rng: SeededRng::new(seed),
            loss: 10,
            at: Timestamps::default(),
            log: Log::default(),
            members: Vec::new(),
            peers: Vec::new(),
            to_member: BTreeMap::new(),
            to_peer: BTreeMap::new(),
            next_message: 1,
            confirmed: BTreeMap::new(),
            events: BTreeMap::new(),
            requeued: BTreeMap::new(),
            last_first: BTreeMap::new(),
        };
        for _ in 0..NODES {
            world.members.push(Member {
                queue: QuorumQueue::new("queue 'q' in vhost '/'".into(), settings()),
                applied: 0,
                out: QueueOutput::default(),
            });
        }
        for n in 0..PUBLISHERS + CONSUMERS {
            let id = SessionId {
                node: NodeId(n as u64 % NODES + 1),
                incarnation: Incarnation(1),
                number: n as u64,
            };
            let members = (1..=NODES).map(NodeId).collect();
            world.peers.push(Peer {
                client: QueueClient::new(id, QueueType::Quorum, members, None, world.at.now),
                id,
                consumer: None,
                next_consumer: 1,
                leaving: BTreeMap::new(),
                cancelled: BTreeSet::new(),
            });
        }
        world.elect();
        world
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// Changes the leader; a part of the old leader's tail survives. The old leader may not know of it for a
    /// while.
    fn elect(&mut self) {
        let survives = self.rng.below(self.log.tail.len() as u64 + 1);
        for _ in 0..survives {
            self.log.committed.extend(self.log.tail.pop_front());
        }
        self.log.tail.clear();
        self.log.term += 1;
        self.log.leader = self.rng.below(NODES) + 1;
        let at = self.log.leader as usize - 1;
        self.tell_leadership(at);
    }

    fn tell_leadership(&mut self, at: usize) {
        let (term, leader) = (self.log.term, self.log.leader);
        let member = &mut self.members[at];
        let leads = leader == at as u64 + 1;
        member
            .queue
            .leadership(term, Some(NodeId(leader)), leads, &mut member.out);
    }

    /// Members apply committed entries, each at its own pace, and send their events.
    fn run_member(&mut self, at: usize) {
        if self.chance(20) {
            self.tell_leadership(at);
        }
        let node = at as u64 + 1;
        let behind = self.log.committed.len() - self.members[at].applied;
        let flow = self.rng.below(behind as u64 + 1) as usize;
        for _ in 0..if self.loss == 0 { behind } else { flow } {
            let member = &mut self.members[at];
            let (term, command) = &self.log.committed[member.applied];
            member.applied += 1;
            member
                .queue
                .applied(member.applied as u64, *term, command)
                .expect("a command of this version");
        }
        let member = &mut self.members[at];
        let committed = &self.log.committed;
        let mut read = |index: u64| {
            let entry = committed.get(index as usize - 1);
            entry.map(|(_, c)| c.clone()).into()
        };
        member.queue.flush(self.at, &mut member.out);
        member.queue.resolve(&mut read, &mut member.out);
        assert_eq!(member.out.faults, Vec::<String>::new());
        while let Some(command) = member.queue.take_proposal() {
            // Proposals of a deposed leader are lost.
            if node == self.log.leader {
                self.log.tail.push_back((self.log.term, command));
            }
        }
        for addressed in std::mem::take(&mut member.out.events) {
            let frame = encode_list(&[addressed.event]);
            let to = addressed.session.number as usize;
            self.to_peer.entry((to, node)).or_default().push_back(frame);
        }
    }

    fn commit(&mut self) {
        let some = self.rng.below(self.log.tail.len() as u64 + 1) as usize;
        let all = self.log.tail.len();
        for _ in 0..if self.loss == 0 { all } else { some } {
            self.log.committed.extend(self.log.tail.pop_front());
        }
    }

    /// Frames within a node are never lost.
    fn lost(&mut self, peer: usize, node: u64) -> bool {
        self.peers[peer].id.node != NodeId(node) && self.chance(self.loss)
    }

    fn deliver_frames(&mut self) {
        let keys: Vec<_> = self.to_member.keys().copied().collect();
        for (peer, node) in keys {
            while let Some(frame) = self.to_member.get_mut(&(peer, node)).unwrap().pop_front() {
                if self.lost(peer, node) {
                    continue;
                }
                let member = &mut self.members[node as usize - 1];
                for item in decode_list::<QueueMessage>(&frame).unwrap() {
                    member.queue.step(self.at, item, &mut member.out);
                }
            }
        }
        let keys: Vec<_> = self.to_peer.keys().copied().collect();
        for (peer, node) in keys {
            while let Some(frame) = self.to_peer.get_mut(&(peer, node)).unwrap().pop_front() {
                if self.lost(peer, node) {
                    continue;
                }
                let mut events = Vec::new();
                for event in decode_list::<QueueEvent>(&frame).unwrap() {
                    let client = &mut self.peers[peer].client;
                    client.event(self.at.now, NodeId(node), event, &mut events);
                }
                self.handle(peer, events);
            }
        }
    }

    fn handle(&mut self, peer: usize, events: Vec<ClientEvent<u64>>) {
        for event in events {
            match event {
                ClientEvent::Published(n) => *self.confirmed.entry(n).or_default() += 1,
                ClientEvent::NotPublished(n, why) => panic!("{n} was not taken: {why:?}"),
                ClientEvent::Deliver {
                    consumer,
                    deliveries,
                } => {
                    assert!(!self.peers[peer].cancelled.contains(&consumer));
                    for delivery in deliveries {
                        self.take(peer, consumer, delivery);
                    }
                }
                ClientEvent::Answer { seq, answer } => {
                    let one = &mut self.peers[peer];
                    one.cancelled.extend(one.leaving.remove(&seq));
                    assert!(
                        matches!(
                            answer,
                            QueueReply::Consuming | QueueReply::Empty | QueueReply::Count { .. }
                        ),
                        "{answer:?}"
                    );
                }
                ClientEvent::Cancelled { consumer, .. }
                | ClientEvent::TimedOut { consumer, .. } => {
                    panic!("{consumer:?} was ended")
                }
                ClientEvent::Activity { .. } => {}
            }
        }
    }

    fn take(&mut self, peer: usize, consumer: ConsumerId, delivery: queue::Delivery) {
        let n = u64::from_be_bytes(delivery.message.body()[..].try_into().unwrap());
        *self.events.entry(n).or_default() += 1;
        if !delivery.redelivered {
            let publisher = n % PUBLISHERS as u64;
            let key = (peer, consumer, publisher);
            let last = self.last_first.insert(key, n).unwrap_or(0);
            assert!(last < n, "order of publisher {publisher} at {peer}");
        }
        // Gets without acknowledgement are settled by the client.
        if consumer.0 >= 1000 {
            return;
        }
        let requeue = self.loss > 0 && self.chance(10);
        if requeue {
            *self.requeued.entry(n).or_default() += 1;
        }
        self.peers[peer].client.request(RequestBody::Settle {
            consumer,
            outcome: if requeue {
                SettlementOutcome::Requeue
            } else {
                SettlementOutcome::Accepted
            },
            ids: vec![(delivery.id, delivery.id)],
        });
    }

    /// Publishers publish, consumers start and end.
    fn act(&mut self) {
        for peer in 0..PUBLISHERS {
            if self.next_message <= MESSAGES && self.chance(40) {
                for _ in 0..self.rng.below(4) {
                    let n = self.next_message;
                    if n % PUBLISHERS as u64 == peer as u64 {
                        self.next_message += 1;
                        self.peers[peer].client.publish(Some(n), message(n));
                    }
                }
            }
        }
        for peer in PUBLISHERS..PUBLISHERS + CONSUMERS {
            let roll = self.rng.below(100);
            let prefetch = self.rng.below(4) as u32;
            let one = &mut self.peers[peer];
            match one.consumer {
                None if roll < 20 || self.loss == 0 => {
                    let consumer = ConsumerId(one.next_consumer);
                    one.next_consumer += 1;
                    one.consumer = Some(consumer);
                    one.client.request(RequestBody::Consume {
                        consumer,
                        spec: spec(prefetch),
                    });
                }
                Some(consumer) if roll < 4 && self.loss > 0 => {
                    one.consumer = None;
                    one.client.request(RequestBody::Cancel { consumer });
                    let requested = one.client.request(RequestBody::Stat);
                    one.leaving.insert(requested, consumer);
                }
                None if roll < 40 => {
                    let consumer = ConsumerId(1000 + one.next_consumer);
                    one.next_consumer += 1;
                    one.client.request(RequestBody::Get {
                        consumer,
                        no_ack: true,
                    });
                }
                _ => {}
            }
        }
    }

    fn turn(&mut self) {
        self.at.now = self.at.now + Duration::from_millis(30);
        self.at.wall.0 += 30;
        self.act();
        if self.loss > 0 && self.chance(4) {
            self.elect();
        }
        for peer in 0..self.peers.len() {
            let one = &mut self.peers[peer];
            if one.client.wake_at().is_some_and(|at| at <= self.at.now) {
                one.client.tick(self.at.now, |_| true);
            }
            while let Some(item) = one.client.poll_send() {
                let owner = one.client.owner().unwrap();
                if let QueueMessage::Request(request) = &item {
                    assert_eq!(request.session, one.id);
                }
                let frame = encode_list(&[item]);
                let link = self.to_member.entry((peer, owner.0)).or_default();
                link.push_back(frame);
            }
        }
        self.deliver_frames();
        for at in 0..self.members.len() {
            self.run_member(at);
        }
        self.commit();
    }

    fn done(&self) -> bool {
        self.next_message > MESSAGES
            && self.confirmed.len() as u64 == MESSAGES
            && self.peers.iter().all(|p| p.client.in_flight() == 0)
            && self.members.iter().all(|m| {
                let stats = m.queue.stats();
                stats.ready + stats.unacknowledged == 0
            })
    }
}

fn spec(prefetch: u32) -> ConsumerSpec {
    ConsumerSpec {
        tag: "t".into(),
        channel: 1,
        flow_mode: queue::FlowMode::Prefetch,
        prefetch,
        no_ack: false,
        exclusive: false,
        priority: 0,
        arguments: Table::default(),
        filter: None,
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..300 {
        world.turn();
    }
    world.loss = 0;
    for at in 0..world.members.len() {
        world.tell_leadership(at);
    }
    let mut turns = 0;
    while !world.done() {
        world.turn();
        turns += 1;
        let stats = world.members[world.log.leader as usize - 1].queue.stats();
        assert!(
            turns < 5000,
            "seed {seed}: never done, {stats:?}, {} confirmed, {:#?}",
            world.confirmed.len(),
            world.peers.iter().map(|p| &p.client).collect::<Vec<_>>()
        );
    }
    for n in 1..=MESSAGES {
        assert_eq!(world.confirmed.get(&n), Some(&1), "seed {seed}: {n}");
        let events = world.events.get(&n).copied().unwrap_or(0);
        let again = world.requeued.get(&n).copied().unwrap_or(0);
        assert_eq!(events, 1 + again, "seed {seed}: message {n}");
    }
    for at in 0..world.members.len() {
        world.run_member(at);
    }
    let digests: BTreeSet<u64> = world
        .members
        .iter()
        .map(|m| m.queue.machine().digest())
        .collect();
    assert_eq!(digests.len(), 1, "seed {seed}: members differ");
    assert!(world.at.now > Time::ZERO);
}

#[test]
fn every_message_arrives_once_over_a_lossy_network() {
    let seeds = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok());
    let from = std::env::var("SEED").ok().and_then(|s| s.parse().ok());
    for seed in from.unwrap_or(0)..seeds.unwrap_or(60) {
        run(seed);
    }
}
