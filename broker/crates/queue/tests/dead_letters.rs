//! Dead letters that are kept until they are forwarded, across leader changes and restarts from snapshots.

use bytes::Bytes;
use env::rng::SeededRng;
use env::{Incarnation, NodeId, Rng, Time, WallTime};
use message::{Message, MessageBuilder, Protocol};
use queue::quorum::{Batch, Command, Machine, QuorumQueue};
use queue::{
    ConsumerId, DeadLettering, Overflow, Queue, QueueOutput, QueueSettings, Request, RequestBody,
    SessionId, SettlementOutcome, Timestamps,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NODES: usize = 3;
const LABEL: &str = "queue 'q' in vhost '/'";

fn settings(dead_letter: DeadLettering) -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::RejectPublish,
        delivery_limit: Some(20),
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority: None,
        dead_letter,
        quorum: Default::default(),
    }
}

fn message(n: u64, ttl_ms: Option<u64>) -> Message {
    let body = n.to_be_bytes();
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms,
        received: WallTime(0),
        exchange: "",
        routing_keys: &["q"],
        properties: &[0, 0],
    }
    .build(body.len(), [&body[..]])
    .unwrap()
}

fn number(message: &Message) -> u64 {
    u64::from_be_bytes(message.body()[..].try_into().unwrap())
}

/// Requests of one session, as commands of the log.
#[derive(Default)]
struct Requests {
    seq: u64,
    consumers: u32,
}

impl Requests {
    fn command(&mut self, wall: u64, bodies: Vec<RequestBody>) -> Bytes {
        let mut batch = Batch::default();
        for body in bodies {
            self.seq += 1;
            let session = SessionId {
                node: NodeId(1),
                incarnation: Incarnation(1),
                number: 1,
            };
            let seq = self.seq;
            batch.push(&Request { session, seq, body });
        }
        batch.take(WallTime(wall)).unwrap()
    }

    fn publish(&mut self, wall: u64, n: u64, ttl_ms: Option<u64>) -> Bytes {
        self.command(wall, vec![RequestBody::Publish(message(n, ttl_ms))])
    }

    fn get_and_reject(&mut self, wall: u64) -> Bytes {
        self.consumers += 1;
        let consumer = ConsumerId(self.consumers);
        let get = RequestBody::Get {
            consumer,
            no_ack: false,
        };
        let reject = RequestBody::Settle {
            consumer,
            outcome: SettlementOutcome::Rejected,
            ids: vec![(1, 1)],
        };
        self.command(wall, vec![get, reject])
    }
}

struct Member {
    queue: QuorumQueue,
    applied: usize,
}

struct World {
    rng: SeededRng,
    at: Timestamps,
    term: u64,
    leader: usize,
    committed: Vec<(u64, Bytes)>,
    /// Proposed by the leader and not committed.
    tail: Vec<Bytes>,
    members: Vec<Member>,
    requests: Requests,
    published: u64,
    /// Dead letters that a leader handed out and that are not confirmed yet: number and message.
    under_way: Vec<(u64, u64)>,
    confirmed: BTreeMap<u64, u32>,
}

impl World {
    fn new(seed: u64) -> World {
        let member = || Member {
            queue: QuorumQueue::new(LABEL.into(), settings(DeadLettering::AtLeastOnce)),
            applied: 0,
        };
        let mut world = World {
            rng: SeededRng::new(seed),
            at: Timestamps::default(),
            term: 0,
            leader: 0,
            committed: Vec::new(),
            tail: Vec::new(),
            members: (0..NODES).map(|_| member()).collect(),
            requests: Requests::default(),
            published: 0,
            under_way: Vec::new(),
            confirmed: BTreeMap::new(),
        };
        world.elect();
        world
    }

    /// Changes the leader; a part of the old leader's tail survives.
    fn elect(&mut self) {
        let survives = self.rng.below(self.tail.len() as u64 + 1) as usize;
        let tail = std::mem::take(&mut self.tail);
        self.commit(tail.into_iter().take(survives));
        self.term += 1;
        self.leader = self.rng.below(NODES as u64) as usize;
        for (at, member) in self.members.iter_mut().enumerate() {
            let leader = Some(NodeId(self.leader as u64 + 1));
            let leads = at == self.leader;
            let out = &mut QueueOutput::default();
            member.queue.leadership(self.term, leader, leads, out);
        }
    }

    fn commit(&mut self, commands: impl IntoIterator<Item = Bytes>) {
        let term = self.term;
        self.committed
            .extend(commands.into_iter().map(|c| (term, c)));
    }

    fn clients(&mut self) {
        let wall = self.at.wall.0;
        match self.rng.below(4) {
            0 => {
                self.published += 1;
                let ttl = (self.rng.below(2) == 0).then_some(5);
                let command = self.requests.publish(wall, self.published, ttl);
                self.commit([command]);
            }
            1 => {
                let command = self.requests.get_and_reject(wall);
                self.commit([command]);
            }
            2 => self.commit([Command::Time(self.at.wall).encode()]),
            _ => {}
        }
    }

    fn apply(&mut self, at: usize, most: usize) {
        let member = &mut self.members[at];
        for _ in 0..most {
            let Some((term, command)) = self.committed.get(member.applied) else {
                return;
            };
            member.applied += 1;
            member
                .queue
                .applied(member.applied as u64, *term, command)
                .expect("a command of this version");
        }
    }

    fn restart_from_checkpoint(&mut self, at: usize) {
        let checkpoint = self.members[at].queue.checkpoint();
        self.members[at].queue.restore(checkpoint.state).unwrap();
    }

    /// The leader hands out dead letters, targets confirm some of them, and the leader logs that.
    fn pass_on(&mut self, all: bool) {
        let committed = &self.committed;
        let mut read = |index: u64| {
            let entry = committed.get(index as usize - 1);
            entry.map(|(_, c)| c.clone()).into()
        };
        let queue = &mut self.members[self.leader].queue;
        let mut out = QueueOutput::default();
        queue.flush(self.at, &mut out);
        queue.take_dead(3, usize::MAX, &mut read, &mut out);
        assert_eq!(out.faults, Vec::<String>::new());
        for (id, _, message) in out.kept_dead {
            self.under_way.push((id, number(&message)));
        }
        for (id, n) in std::mem::take(&mut self.under_way) {
            if !all && self.rng.below(3) > 0 {
                self.under_way.push((id, n));
                continue;
            }
            *self.confirmed.entry(n).or_default() += 1;
            // It may have been handed out by an earlier leader: then the confirmation is unknown to this one.
            self.members[self.leader].queue.passed_on(id);
        }
        let queue = &mut self.members[self.leader].queue;
        queue.flush(self.at, &mut QueueOutput::default());
        while let Some(command) = queue.take_proposal() {
            self.tail.push(command);
        }
    }

    fn turn(&mut self) {
        self.at.now = self.at.now + Duration::from_millis(1);
        self.at.wall.0 += 1;
        self.clients();
        if self.rng.below(20) == 0 {
            self.elect();
        }
        for at in 0..NODES {
            let most = self.rng.below(4) as usize;
            self.apply(at, most);
        }
        if self.rng.below(10) == 0 {
            let at = self.rng.below(NODES as u64) as usize;
            if at != self.leader {
                self.restart_from_checkpoint(at);
            }
        }
        self.pass_on(false);
        let some = self.rng.below(self.tail.len() as u64 + 1) as usize;
        let commands: Vec<Bytes> = self.tail.drain(..some).collect();
        self.commit(commands);
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            for at in 0..NODES {
                self.apply(at, usize::MAX);
            }
            self.pass_on(true);
            let commands = std::mem::take(&mut self.tail);
            self.commit(commands);
            let idle = |m: &Member| m.applied == self.committed.len() && m.queue.stats().dead == 0;
            if self.members.iter().all(idle) {
                return;
            }
        }
        panic!("never settled");
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..400 {
        world.turn();
    }
    world.settle();
    let ready = world.members[0].queue.stats().ready;
    let dead = world.published - ready;
    assert_eq!(world.confirmed.len() as u64, dead, "seed {seed}");
    assert!(
        world
            .confirmed
            .keys()
            .all(|n| (1..=world.published).contains(n))
    );
    let machines = world.members.iter().map(|m| m.queue.machine());
    let digests: BTreeSet<u64> = machines.map(Machine::digest).collect();
    assert_eq!(digests.len(), 1, "seed {seed}: members differ");
    assert_eq!(
        slots::IndexSet::from_runs(world.members[0].queue.machine().live_indexes()).len(),
        ready
    );
    assert!(world.at.now > Time::ZERO);
}

#[test]
fn no_dead_letter_is_lost_across_leader_changes() {
    for seed in 0..60 {
        run(seed);
    }
}

#[test]
fn leader_hands_out_each_dead_letter_once() {
    let mut world = World::new(7);
    for n in 1..=5 {
        let command = world.requests.publish(0, n, Some(1));
        world.commit([command]);
    }
    world.at.wall = WallTime(10);
    world.commit([Command::Time(WallTime(10)).encode()]);
    for at in 0..NODES {
        world.apply(at, usize::MAX);
    }
    for turn in 0..10 {
        world.pass_on(turn > 5);
        let commands = std::mem::take(&mut world.tail);
        world.commit(commands);
        for at in 0..NODES {
            world.apply(at, usize::MAX);
        }
    }
    assert_eq!(world.confirmed, (1..=5).map(|n| (n, 1)).collect());
}
