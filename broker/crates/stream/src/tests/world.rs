//! Several replicas with disks, a network that loses messages, processes and machines that stop, and changes of the leader.
//!
//! The Raft group is a model, as in the simulator's scenario of the replication. The checks:
//!
//! - a confirmed message is in the log of every replica at the end;
//! - an offset never changes its content, whichever replica a consumer reads from and whatever happens between;
//! - a consumer gets every message from its start on, in order, each once;
//! - messages of a producer with a name are stored once;
//! - at the end all replicas have the same log.

use super::*;
use crate::fault::{self, Fault};
use crate::{ConsumerOutput, PeerMessage, StreamConsumer, StreamJob, consumer_rules};
use env::{Rng, SeededRng};
use message::{Table, Value};
use queue::client::NUMBERING_EPOCH;
use queue::cursor::CursorSource;
use queue::{ConsumerId, ConsumerSpec, Delivery, FlowMode, QueueEvent};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stream_log::{Chunk, ChunkKind, ChunkReader, EntryBody, Start, StreamLog};

const SEEDS: u64 = 24;
const STEPS: u64 = 1_500;
const PEACE: u64 = 60_000;
const NODES: u64 = 3;

type Check = Result<(), String>;

fn log_config() -> LogConfig {
    LogConfig {
        max_segment_bytes: 4_000,
        ..LogConfig::default()
    }
}

struct Node {
    id: NodeId,
    disk: SimDisk,
    replica: Option<StreamReplica>,
    jobs: VecDeque<StreamJob>,
    term: u64,
    machine: u64,
    incarnation: u64,
    /// The end of its log may be lost.
    is_torn: bool,
}

/// A session that publishes, with the numbering of [`queue::client::QueueClient`].
struct Publisher {
    session: SessionId,
    producer: Option<String>,
    epoch: u64,
    first: u64,
    unapplied: VecDeque<(RequestBody, Vec<u64>)>,
    sent: usize,
    owner: NodeId,
}

impl Publisher {
    fn renumber(&mut self) {
        self.epoch += 1;
        self.first = self.epoch * NUMBERING_EPOCH + 1;
        self.sent = 0;
    }
}

struct Reader {
    session: SessionId,
    consumer: StreamConsumer,
    /// Offset and message number of all deliveries.
    got: Vec<(u64, u64)>,
}

struct World {
    rng: SeededRng,
    ms: u64,
    nodes: Vec<Node>,
    network: Vec<(NodeId, NodeId, PeerMessage)>,
    term: u64,
    leader: Option<NodeId>,
    publishers: Vec<Publisher>,
    readers: Vec<Reader>,
    next_message: u64,
    confirmed: BTreeSet<u64>,
    /// Message number by offset.
    history: BTreeMap<u64, u64>,
    /// Messages of the producer with a name.
    named: BTreeSet<u64>,
    failure: Option<String>,
    lossy: bool,
}

fn number_of(body: &[u8]) -> u64 {
    let digits: String = String::from_utf8_lossy(body)
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().expect("the body of a test message")
}

fn offset_of(delivery: &Delivery) -> u64 {
    let view = conversion::View::of(&delivery.message).expect("decodes");
    let mut offset = None;
    view.headers.for_each(|header| {
        if header.name == crate::entry::OFFSET {
            offset = header.value.as_integer();
        }
    });
    offset.expect("a delivery has its offset") as u64
}

fn body_of(delivery: &Delivery) -> Vec<u8> {
    let view = conversion::View::of(&delivery.message).expect("decodes");
    match &view.body {
        conversion::Body::Bytes(part) => part.bytes().to_vec(),
        other => panic!("{other:?}"),
    }
}

impl World {
    fn new(seed: u64) -> World {
        let nodes = (1..=NODES).map(|id| Node {
            id: NodeId(id),
            disk: SimDisk::new(),
            replica: None,
            jobs: VecDeque::new(),
            term: 0,
            machine: 0,
            incarnation: 0,
            is_torn: false,
        });
        let mut world = World {
            rng: SeededRng::new(seed),
            ms: 0,
            nodes: nodes.collect(),
            network: Vec::new(),
            term: 0,
            leader: None,
            publishers: Vec::new(),
            readers: Vec::new(),
            next_message: 1,
            confirmed: BTreeSet::new(),
            history: BTreeMap::new(),
            named: BTreeSet::new(),
            failure: None,
            lossy: true,
        };
        for at in 0..world.nodes.len() {
            world.start(at);
        }
        for number in 1..=3 {
            world.publishers.push(Publisher {
                session: session(number),
                producer: (number == 1).then(|| "producer".to_owned()),
                epoch: 0,
                first: 1,
                unapplied: VecDeque::new(),
                sent: 0,
                owner: NodeId(1),
            });
        }
        for number in 11..=13 {
            world.add_reader(number);
        }
        world
    }

    fn voters() -> Vec<NodeId> {
        (1..=NODES).map(NodeId).collect()
    }

    fn add_reader(&mut self, number: u64) {
        let spec = ConsumerSpec {
            tag: "t".into(),
            channel: 1,
            flow_mode: FlowMode::Prefetch,
            prefetch: 5,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table(vec![("x-stream-offset".into(), Value::from("first"))]),
            filter: None,
        };
        let start = consumer_rules(&spec, LABEL, WallTime(0)).expect("valid");
        let mut replicas = World::voters();
        replicas.rotate_left(number as usize % NODES as usize);
        let mut out = Vec::new();
        let consumer = StreamConsumer::new(
            ConsumerId(1),
            &spec,
            start,
            "s".into(),
            // A node without a replica: everything between the two can be lost.
            (NodeId(9), replicas),
            self.at().now,
            &mut out,
        );
        self.readers.push(Reader {
            session: session(number),
            consumer,
            got: Vec::new(),
        });
        let at = self.readers.len() - 1;
        self.reader_outputs(at, out);
    }

    fn at(&self) -> Timestamps {
        at(self.ms)
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(text);
    }

    fn start(&mut self, at: usize) {
        let now = self.at();
        let node = &mut self.nodes[at];
        node.incarnation += 1;
        let config = ReplicaConfig {
            incarnation: Incarnation(node.incarnation),
            machine: node.machine.to_be_bytes().to_vec().into(),
            founds: node.incarnation == 1,
            ..config(node.id.0, log_config())
        };
        let mut replica = StreamReplica::new(config, now);
        let mut out = QueueOutput::default();
        replica.set_members(now, &World::voters(), &[], &mut out);
        let raft = RaftState {
            term: node.term,
            leader: None,
        };
        replica.set_raft(now, raft, &mut out);
        node.replica = Some(replica);
        self.after(at, out);
    }

    /// The process of a node ends, or its machine. Unfinished writes are lost, or also unsynced ones.
    fn stop(&mut self, at: usize, power: bool) {
        if self.nodes[at].replica.is_none() {
            return;
        }
        // Confirmed messages can be lost if more members than a minority lose the ends of their logs.
        let torn = self.nodes.iter().filter(|node| node.is_torn).count();
        let power = power && (torn == 0 || self.nodes[at].is_torn);
        let node = &mut self.nodes[at];
        node.replica = None;
        node.jobs.clear();
        if power {
            node.disk.crash(&mut self.rng);
            node.disk.restart();
            node.machine += 1;
            node.is_torn = true;
        }
        if self.leader == Some(node.id) {
            self.leader = None;
        }
    }

    fn elect(&mut self, at: usize) {
        let id = self.nodes[at].id;
        let up: Vec<usize> = (0..self.nodes.len())
            .filter(|n| self.nodes[*n].replica.is_some())
            .collect();
        if self.nodes[at].replica.is_none() || up.len() < 2 {
            return;
        }
        self.term += 1;
        self.leader = Some(id);
        let (term, now) = (self.term, self.at());
        // A majority knows the term; of these, only the leader knows itself.
        let skipped = up.iter().copied().find(|n| *n != at);
        for n in up {
            let is_skipped = self.nodes.len() == 3 && Some(n) == skipped && self.rng.below(2) == 0;
            let others = self.nodes.iter().filter(|n| n.replica.is_some()).count();
            if is_skipped && others == 3 {
                continue;
            }
            let mut out = QueueOutput::default();
            let node = &mut self.nodes[n];
            node.term = term;
            let leader = (n == at).then_some(id);
            if let Some(replica) = &mut node.replica {
                replica.set_raft(now, RaftState { term, leader }, &mut out);
            }
            self.after(n, out);
        }
    }

    /// A node hears of the leader.
    fn inform(&mut self, at: usize) {
        let Some(leader) = self.leader else { return };
        let (term, now) = (self.term, self.at());
        let node = &mut self.nodes[at];
        let Some(replica) = &mut node.replica else {
            return;
        };
        if node.id == leader {
            return;
        }
        node.term = term;
        let raft = RaftState {
            term,
            leader: Some(leader),
        };
        let mut out = QueueOutput::default();
        replica.set_raft(now, raft, &mut out);
        self.after(at, out);
    }

    /// Ends the turn of a replica, and carries out its effects.
    fn after(&mut self, at: usize, mut out: QueueOutput) {
        let now = self.at();
        let id = self.nodes[at].id;
        let Some(replica) = &mut self.nodes[at].replica else {
            return;
        };
        replica.flush(now, &mut out);
        let mut events = Vec::new();
        while replica.send_batches(2_000, &mut events) {}
        let mut transfer = None;
        while let Some(effect) = self.nodes[at].replica.as_mut().and_then(|r| r.poll()) {
            match effect {
                StreamEffect::Send { to, message } => self.network.push((id, to, message)),
                StreamEffect::Job(job) => self.nodes[at].jobs.push_back(job),
                StreamEffect::TransferLeadership(to) => transfer = Some(to),
                StreamEffect::Fatal(text) => self.fail(format!("{id:?}: {text}")),
            }
        }
        if let Some(lost) = out.faults.iter().find(|fault| fault.contains("are lost")) {
            self.fail(format!("{id:?}: {lost}"));
        }
        for addressed in out.events {
            if !self.is_lost() {
                self.publisher_event(id, addressed.session, addressed.event);
            }
        }
        for addressed in events {
            if self.is_lost() {
                continue;
            }
            let reader = self
                .readers
                .iter()
                .position(|r| r.session == addressed.session);
            if let Some(reader) = reader {
                let mut outputs = Vec::new();
                let consumer = &mut self.readers[reader].consumer;
                consumer.event(now.now, addressed.event, &mut outputs);
                self.reader_outputs(reader, outputs);
            }
        }
        if let Some(to) = transfer {
            self.elect((to.0 - 1) as usize);
        }
    }

    fn is_lost(&mut self) -> bool {
        self.lossy && self.rng.below(40) == 0
    }

    fn reader_outputs(&mut self, at: usize, outputs: Vec<ConsumerOutput>) {
        for output in outputs {
            match output {
                ConsumerOutput::Send(send) => {
                    let to = (send.to.0 - 1) as usize;
                    if self.is_lost() {
                        continue;
                    }
                    let session = self.readers[at].session;
                    if let Some(replica) = &mut self.nodes[to].replica {
                        let mut events = Vec::new();
                        replica.handle(session, send.request, &mut events);
                        // Events come with the next turn of the replica.
                        for addressed in events {
                            let mut outputs = Vec::new();
                            let now = self.at().now;
                            let consumer = &mut self.readers[at].consumer;
                            consumer.event(now, addressed.event, &mut outputs);
                            self.reader_outputs(at, outputs);
                        }
                    }
                }
                ConsumerOutput::Deliver(deliveries) => {
                    for delivery in deliveries {
                        self.delivered(at, &delivery);
                    }
                }
                ConsumerOutput::Credited { .. } => {}
                ConsumerOutput::Cancelled => self.fail("a consumer was cancelled".to_owned()),
            }
        }
    }

    fn delivered(&mut self, at: usize, delivery: &Delivery) {
        let (offset, number) = (offset_of(delivery), number_of(&body_of(delivery)));
        let reader = &mut self.readers[at];
        let expected_id = reader.got.len() as u64 + 1;
        let last = reader.got.last().map(|(offset, _)| *offset);
        reader.got.push((offset, number));
        if delivery.id != expected_id || last.is_some_and(|last| last >= offset) {
            self.fail(format!(
                "delivery {} at {offset} after {last:?}",
                delivery.id
            ));
        }
        self.check_history(offset, number);
    }

    fn check_history(&mut self, offset: u64, number: u64) {
        let known = *self.history.entry(offset).or_insert(number);
        if known != number {
            self.fail(format!(
                "offset {offset} had message {known} and has {number}"
            ));
        }
    }

    // Publishers.

    fn publish(&mut self) {
        let at = self.rng.below(self.publishers.len() as u64) as usize;
        let count = 1 + self.rng.below(3);
        let publisher = &mut self.publishers[at];
        if publisher.unapplied.len() > 20 {
            return;
        }
        let numbers: Vec<u64> = (self.next_message..self.next_message + count).collect();
        self.next_message += count;
        match &publisher.producer {
            Some(name) => {
                let bodies: Vec<String> = numbers.iter().map(|n| format!("m{n}")).collect();
                let messages: Vec<(u64, Vec<u8>)> = numbers
                    .iter()
                    .zip(&bodies)
                    .map(|(n, body)| (*n, amqp_body(body)))
                    .collect();
                let refs: Vec<(u64, &[u8])> = messages.iter().map(|(n, b)| (*n, &b[..])).collect();
                let body = RequestBody::PublishBatch(batch(Some(name.as_str()), &refs));
                self.named.extend(&numbers);
                publisher.unapplied.push_back((body, numbers));
            }
            None => {
                for number in numbers {
                    let body = RequestBody::Publish(message(format!("m{number}").as_bytes()));
                    publisher.unapplied.push_back((body, vec![number]));
                }
            }
        }
        self.send_requests(at);
    }

    fn send_requests(&mut self, at: usize) {
        let mut out = QueueOutput::default();
        let now = self.at();
        let to = (self.publishers[at].owner.0 - 1) as usize;
        if self.nodes[to].replica.is_none() {
            return;
        }
        loop {
            let publisher = &mut self.publishers[at];
            let Some((body, _)) = publisher.unapplied.get(publisher.sent) else {
                break;
            };
            let seq = publisher.first + publisher.sent as u64;
            publisher.sent += 1;
            let item = QueueMessage::Request(Request {
                session: publisher.session,
                seq,
                body: body.clone(),
            });
            if self.is_lost() {
                continue;
            }
            if let Some(replica) = &mut self.nodes[to].replica {
                replica.step(now, item, &mut out);
            }
        }
        self.after(to, out);
    }

    fn publisher_event(&mut self, from: NodeId, session: SessionId, event: QueueEvent) {
        let Some(at) = self.publishers.iter().position(|p| p.session == session) else {
            return;
        };
        let publisher = &mut self.publishers[at];
        match event {
            QueueEvent::Applied { up_to } => {
                while publisher.first <= up_to {
                    let Some((_, numbers)) = publisher.unapplied.pop_front() else {
                        break;
                    };
                    publisher.first += 1;
                    publisher.sent = publisher.sent.saturating_sub(1);
                    self.confirmed.extend(numbers);
                }
            }
            QueueEvent::Owner => {
                publisher.owner = from;
                publisher.sent = 0;
            }
            QueueEvent::NotOwner { leader } if publisher.owner == from => {
                if let Some(leader) = leader {
                    publisher.owner = leader;
                    publisher.sent = 0;
                }
            }
            QueueEvent::Expecting { expected } if publisher.owner == from => {
                if expected >= publisher.first {
                    let ahead = (expected - publisher.first) as usize;
                    publisher.sent = publisher.sent.min(ahead);
                } else if expected == publisher.epoch * NUMBERING_EPOCH + 1 {
                    publisher.renumber();
                }
            }
            QueueEvent::NotOwner { .. } | QueueEvent::Expecting { .. } => {}
            other => self.fail(format!("{session:?} got {other:?}")),
        }
    }

    // Time.

    fn tick(&mut self) {
        self.ms += self.rng.below(300);
        let now = self.at();
        for at in 0..self.nodes.len() {
            let mut out = QueueOutput::default();
            if let Some(replica) = &mut self.nodes[at].replica
                && replica.wake_at().is_some_and(|due| due <= now.now)
            {
                replica.tick(now, &mut out);
                self.after(at, out);
            }
        }
        for at in 0..self.readers.len() {
            let reader = &mut self.readers[at];
            let mut outputs = Vec::new();
            if reader.consumer.wake_at().is_some_and(|due| due <= now.now) {
                reader.consumer.tick(now.now, &mut outputs);
            }
            self.reader_outputs(at, outputs);
        }
        // Sessions send unapplied requests again, to any node after a while.
        for at in 0..self.publishers.len() {
            if self.rng.below(4) == 0 {
                self.publishers[at].sent = 0;
                if self.rng.below(4) == 0 {
                    self.publishers[at].owner = NodeId(1 + self.rng.below(NODES));
                }
                self.send_requests(at);
            }
        }
    }

    fn settle_reader(&mut self) {
        let at = self.rng.below(self.readers.len() as u64) as usize;
        let last = self.readers[at].got.len() as u64;
        let mut outputs = Vec::new();
        let consumer = &mut self.readers[at].consumer;
        consumer.received(last, &mut outputs);
        consumer.settle(&[(1, last)], &mut outputs);
        self.reader_outputs(at, outputs);
    }

    /// A consumer notices that its node is gone.
    fn lose_node(&mut self) {
        let reader = self.rng.below(self.readers.len() as u64) as usize;
        for at in 0..self.nodes.len() {
            if self.nodes[at].replica.is_none() {
                let (id, now) = (self.nodes[at].id, self.at().now);
                let mut outputs = Vec::new();
                self.readers[reader]
                    .consumer
                    .node_lost(id, now, &mut outputs);
                self.reader_outputs(reader, outputs);
            }
        }
    }

    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let at = match self.lossy && self.rng.below(4) == 0 {
            true => self.rng.below(self.network.len() as u64) as usize,
            false => 0,
        };
        let (from, to, message) = match self.lossy && self.rng.below(20) == 0 {
            true => self.network[at].clone(),
            false => self.network.remove(at),
        };
        if self.is_lost() {
            return;
        }
        let (now, index) = (self.at(), (to.0 - 1) as usize);
        let mut out = QueueOutput::default();
        if let Some(replica) = &mut self.nodes[index].replica {
            replica.receive(now, from, message, &mut out);
            self.after(index, out);
        }
    }

    fn work(&mut self, at: usize) {
        let now = self.at();
        let node = &mut self.nodes[at];
        if let Some(job) = node.jobs.pop_front()
            && let Some(replica) = &mut node.replica
        {
            let done = job.run(&node.disk);
            let mut out = QueueOutput::default();
            replica.job_done(now, done, &mut out);
            self.after(at, out);
        }
    }

    fn step(&mut self) {
        let at = self.rng.below(NODES) as usize;
        match self.rng.below(100) {
            0..35 => self.deliver(),
            35..60 => self.work(at),
            60..65 => self.after(at, QueueOutput::default()),
            65..75 if self.lossy => self.publish(),
            75..82 => self.tick(),
            82..90 => self.inform(at),
            90..97 => self.settle_reader(),
            _ => self.lose_node(),
        }
    }

    fn fault(&mut self) {
        let at = self.rng.below(NODES) as usize;
        match self.rng.below(1_000) {
            0..5 => self.stop(at, false),
            5..8 => self.stop(at, true),
            8..40 if self.nodes[at].replica.is_none() => self.start(at),
            40..55 => self.elect(at),
            _ => {}
        }
    }

    /// Everything is applied and delivered.
    fn is_settled(&self) -> bool {
        let Some(leader) = self.leader else {
            return false;
        };
        let leading = self.nodes[(leader.0 - 1) as usize].replica.as_ref();
        let committed = leading.filter(|r| r.leads()).and_then(|r| r.committed());
        let Some(committed) = committed else {
            return false;
        };
        let log_is_equal = self.nodes.iter().all(|node| {
            node.jobs.is_empty()
                && node
                    .replica
                    .as_ref()
                    .is_some_and(|r| r.committed() == Some(committed) && r.is_idle())
        });
        let is_quiet = log_is_equal
            && self.network.is_empty()
            && self.publishers.iter().all(|p| p.unapplied.is_empty());
        if !is_quiet {
            return false;
        }
        let newest = stored(&self.nodes[0].disk)
            .last()
            .map(|(offset, _)| *offset);
        let mut readers = self.readers.iter();
        readers.all(|r| r.got.last().map(|(offset, _)| *offset) == newest)
    }

    fn run(&mut self) -> Check {
        for _ in 0..STEPS {
            self.fault();
            self.step();
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
        }
        self.lossy = false;
        for step in 0..PEACE {
            for at in 0..self.nodes.len() {
                if self.nodes[at].replica.is_none() {
                    self.start(at);
                }
            }
            if self.leader.is_none() || step % 10_000 == 9_999 {
                let at = self.rng.below(NODES) as usize;
                self.elect(at);
            }
            self.step();
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if step % 64 == 0 && self.is_settled() {
                return self.check_end();
            }
        }
        let states: Vec<_> = self
            .nodes
            .iter()
            .map(|n| {
                n.replica
                    .as_ref()
                    .map(|r| (r.leads(), r.committed(), r.is_idle(), n.jobs.len()))
            })
            .collect();
        let waiting: Vec<_> = self.publishers.iter().map(|p| p.unapplied.len()).collect();
        let got: Vec<_> = self.readers.iter().map(|r| r.got.len()).collect();
        Err(format!(
            "does not settle: {states:?}, {waiting:?} unapplied, {got:?} delivered"
        ))
    }

    fn check_end(&mut self) -> Check {
        let logs: Vec<Vec<(u64, u64)>> = self.nodes.iter().map(|node| stored(&node.disk)).collect();
        for (at, log) in logs.iter().enumerate() {
            if log != &logs[0] {
                return Err(format!("replica {at} differs: {log:?} and {:?}", logs[0]));
            }
        }
        for (offset, number) in &logs[0] {
            self.check_history(*offset, *number);
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let stored: Vec<u64> = logs[0].iter().map(|(_, number)| *number).collect();
        let lost = self
            .confirmed
            .iter()
            .find(|number| !stored.contains(number));
        if let Some(lost) = lost {
            return Err(format!("the confirmed message {lost} is lost"));
        }
        for reader in &self.readers {
            if reader.got != logs[0] {
                return Err(format!("a consumer got {:?} of {:?}", reader.got, logs[0]));
            }
        }
        self.check_producer(&stored)
    }

    /// Messages of the named producer are stored once and in order.
    fn check_producer(&self, stored: &[u64]) -> Check {
        let mut seen = BTreeSet::new();
        for number in stored.iter().filter(|number| self.named.contains(number)) {
            if !seen.insert(*number) {
                return Err(format!("message {number} of a producer is stored twice"));
            }
            if seen.last() != Some(number) {
                return Err(format!("message {number} of a producer is out of order"));
            }
        }
        Ok(())
    }
}

/// The messages in the files of a replica: offset and number.
fn stored(disk: &SimDisk) -> Vec<(u64, u64)> {
    let (mut log, _) = StreamLog::open(disk, STREAM, log_config(), 0).expect("opens");
    let view = log.replication_view();
    let mut reader = ChunkReader::open(disk, &view, Start::First).expect("opens");
    let mut all = Vec::new();
    while let Some(located) = reader.next(disk, &view).expect("reads") {
        let chunk: Chunk = located.read().expect("valid");
        if chunk.header().kind != ChunkKind::Messages {
            continue;
        }
        for entry in chunk.entries() {
            let entry = entry.expect("valid");
            let EntryBody::Message(bytes) = entry.body else {
                panic!("a message");
            };
            let message =
                crate::entry::decode(bytes, entry.offset, WallTime(0), "s").expect("decodes");
            let view = conversion::View::of(&message).expect("decodes");
            let conversion::Body::Bytes(part) = &view.body else {
                panic!("bytes");
            };
            all.push((entry.offset, number_of(part.bytes())));
        }
    }
    all
}

/// A message as clients of the stream protocol encode it.
fn amqp_body(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    codec_amqp10::encode_data_section(&mut out, text.as_bytes());
    out
}

fn run_seed(seed: u64) -> Check {
    World::new(seed).run()
}

#[test]
fn confirmed_messages_survive_and_offsets_are_stable() {
    for seed in 0..SEEDS {
        if let Err(failure) = run_seed(seed) {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn every_planted_fault_is_found() {
    let faults = [
        Fault::ConfirmEarly,
        Fault::ReadsUncommitted,
        Fault::SequencesLost,
        Fault::TruncationForgotten,
        Fault::GapApplied,
    ];
    for fault in faults {
        fault::plant(Some(fault));
        let found = (0..SEEDS).find(|seed| {
            let run = std::panic::catch_unwind(|| run_seed(*seed));
            run.is_err() || run.is_ok_and(|checked| checked.is_err())
        });
        fault::plant(None);
        assert!(found.is_some(), "{fault:?} is not found in {SEEDS} seeds");
    }
}
