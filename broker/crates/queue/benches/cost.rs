//! Cost of a message in a queue: processor time and allocations per message for publish, deliver and settle at
//! several depths, and memory per ready message. Without network, on a memory disk. Run with `cargo bench -p
//! queue`.
//!
//! Processor time is that of the thread (schedstat of Linux), so other load on the machine has little
//! influence. Figures of the queue alone exclude its clients; those labelled `with clients` include them.

mod counting;

use bytes::Bytes;
use counting::{ALLOCATIONS, Counting, LIVE};
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, MessageBuilder, Protocol, Table};
use queue::classic::ClassicQueue;
use queue::client::QueueClient;
use queue::quorum::QuorumQueue;
use queue::{
    ConsumerFilter, ConsumerId, ConsumerSpec, DeadLettering, FlowMode, GroupId, MessageFilter,
    Overflow, Queue, QueueEvent, QueueId, QueueMessage, QueueOutput, QueueReply, QueueSettings,
    QueueType, QuorumFeatures, Request, RequestBody, SessionId, SettlementOutcome, Timestamps,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BATCH: u64 = 100;
const MEASURED: u64 = 200_000;
const PUBLISHER: usize = 0;
const CONSUMER: usize = 1;
const SLOW_CONSUMER: usize = 2;

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

fn message(priority: Option<u8>) -> Message {
    message_with(priority, None)
}

fn message_with(priority: Option<u8>, ttl_ms: Option<u64>) -> Message {
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority,
        ttl_ms,
        received: WallTime(0),
        exchange: "",
        routing_keys: &["cost"],
        properties: &[0x10, 0, 2],
    }
    .build(12, [&[7u8; 12][..]])
    .unwrap()
}

fn settings(max_priority: Option<u8>) -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: Some(20),
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority,
        dead_letter: DeadLettering::Off,
        quorum: Default::default(),
    }
}

fn session(number: usize) -> SessionId {
    SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number: number as u64,
    }
}

fn consume() -> RequestBody {
    RequestBody::Consume {
        consumer: ConsumerId(1),
        spec: ConsumerSpec {
            tag: "c".into(),
            channel: 1,
            flow_mode: queue::FlowMode::Prefetch,
            prefetch: BATCH as u32,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
            filter: None,
        },
    }
}

fn accepted(from: u64, to: u64) -> RequestBody {
    RequestBody::Settle {
        consumer: ConsumerId(1),
        outcome: SettlementOutcome::Accepted,
        ids: vec![(from, to)],
    }
}

/// A queue with the parts of the shard that it needs.
enum Kind {
    Quorum {
        queue: Box<QuorumQueue>,
        /// The commands of the log from index `first` on.
        log: VecDeque<Bytes>,
        first: u64,
    },
    Classic(Box<ClassicQueue>),
}

impl Kind {
    fn quorum() -> Kind {
        Kind::quorum_with(false)
    }

    fn quorum_with(message_groups: bool) -> Kind {
        let mut queue = QuorumQueue::new("cost".into(), settings(None));
        let mut out = QueueOutput::default();
        queue.leadership(1, Some(NodeId(1)), true, &mut out);
        // As in a new cluster.
        queue.enable_features(QuorumFeatures {
            strict_priorities: true,
            message_groups,
            exact_expiry: true,
            ..QuorumFeatures::default()
        });
        queue.configure(Timestamps::default(), &settings(None), &mut out);
        Kind::Quorum {
            queue: Box::new(queue),
            log: VecDeque::new(),
            first: 1,
        }
    }

    fn classic(max_priority: Option<u8>) -> Kind {
        let disk = Arc::new(SimDisk::new());
        let queue = ClassicQueue::open(
            disk,
            QueueId(1),
            "cost".into(),
            settings(max_priority),
            Incarnation(1),
        );
        Kind::Classic(Box::new(queue.unwrap()))
    }

    fn kind(&self) -> QueueType {
        match self {
            Kind::Quorum { .. } => QueueType::Quorum,
            Kind::Classic(_) => QueueType::Classic,
        }
    }

    fn step(&mut self, at: Timestamps, item: QueueMessage, out: &mut QueueOutput) {
        match self {
            Kind::Quorum { queue, .. } => queue.step(at, item, out),
            Kind::Classic(queue) => queue.step(at, item, out),
        }
    }

    /// Ends a turn. With `trim` the log keeps only the entries that are still needed, as the consensus crate
    /// does.
    fn turn(&mut self, at: Timestamps, out: &mut QueueOutput) {
        match self {
            Kind::Quorum { queue, log, first } => {
                queue.flush(at, out);
                while let Some(command) = queue.take_proposal() {
                    // The log keeps only the bytes of the command, not the capacity of the buffer.
                    let command = Bytes::copy_from_slice(&command);
                    log.push_back(command.clone());
                    queue
                        .applied(*first + log.len() as u64 - 1, 1, &command)
                        .expect("a command of this version");
                }
                let from = *first;
                let mut read = |index: u64| log.get((index - from) as usize).cloned().into();
                queue.resolve(&mut read, out);
                queue.select(&mut read, compile);
            }
            Kind::Classic(queue) => {
                queue.select(at, compile, out);
                queue.flush(at, out);
                if queue.wake_at().is_some_and(|wake| wake <= at.now) {
                    queue.tick(at, out);
                }
            }
        }
    }

    fn trim(&mut self) {
        if let Kind::Quorum { queue, log, first } = self {
            let live = queue.machine().live_indexes();
            let end = *first + log.len() as u64;
            let keep = live.min().unwrap_or(end);
            log.drain(..(keep - *first) as usize);
            *first = keep;
        }
    }
}

/// Numbers requests itself, and only counts the deliveries.
struct Bare {
    queue: Kind,
    seqs: [u64; 3],
    at: Timestamps,
    out: QueueOutput,
    settled: u64,
    delivered: u64,
    has_drained: bool,
}

impl Bare {
    fn new(queue: Kind) -> Bare {
        Bare {
            queue,
            seqs: [0; 3],
            at: Timestamps {
                now: Time(1),
                wall: WallTime(1),
            },
            out: QueueOutput::default(),
            settled: 0,
            delivered: 0,
            has_drained: false,
        }
    }

    fn request(&mut self, by: usize, body: RequestBody) {
        self.seqs[by] += 1;
        let request = Request {
            session: session(by),
            seq: self.seqs[by],
            body,
        };
        self.queue
            .step(self.at, QueueMessage::Request(request), &mut self.out);
    }

    fn turn(&mut self) {
        self.at.now = self.at.now + Duration::from_millis(1);
        self.at.wall.0 += 1;
        self.queue.turn(self.at, &mut self.out);
        for addressed in self.out.events.drain(..) {
            match &addressed.event {
                QueueEvent::Deliver { deliveries, .. } => self.delivered += deliveries.len() as u64,
                QueueEvent::Answer {
                    answer: QueueReply::Credited { drained, .. },
                    ..
                } => self.has_drained |= drained,
                _ => {}
            }
        }
    }

    fn publish(&mut self, messages: &[Message]) {
        for message in messages {
            self.request(PUBLISHER, RequestBody::Publish(message.clone()));
        }
        self.turn();
    }

    fn settle(&mut self) {
        if self.delivered > self.settled {
            let body = accepted(self.settled + 1, self.delivered);
            self.settled = self.delivered;
            self.request(CONSUMER, body);
        }
        self.turn();
    }
}

struct Cost {
    allocations: f64,
    nanoseconds: f64,
}

fn measure(count: u64, mut work: impl FnMut()) -> Cost {
    let (allocations, start) = (ALLOCATIONS.load(Relaxed), cpu());
    work();
    let spent = cpu().saturating_sub(start);
    Cost {
        allocations: (ALLOCATIONS.load(Relaxed) - allocations) as f64 / count as f64,
        nanoseconds: spent.as_nanos() as f64 / count as f64,
    }
}

fn show(what: &str, cost: &Cost) {
    println!(
        "{what:<52} {:>8.3} allocations {:>8.0} ns",
        cost.allocations, cost.nanoseconds
    );
}

/// Publishes, delivers and settles `MEASURED` messages in a queue that always has `depth` ready ones.
fn at_depth(what: &str, queue: Kind, depth: u64, priorities: u8) {
    // Creating the messages is the publisher's cost.
    let priority = |n: u64| (priorities > 0).then(|| (n % u64::from(priorities)) as u8);
    let messages: Vec<Message> = (0..BATCH).map(|n| message(priority(n))).collect();
    let mut bare = Bare::new(queue);
    let before = LIVE.load(Relaxed);
    let cost = measure(depth.max(1), || {
        for _ in 0..depth / BATCH {
            bare.publish(&messages);
        }
    });
    if depth > 0 {
        show(&format!("{what} at {depth}: publish, no consumer"), &cost);
        memory(&bare, before, depth);
    }
    bare.request(CONSUMER, consume());
    bare.turn();
    let cost = measure(MEASURED, || {
        for _ in 0..MEASURED / BATCH {
            bare.publish(&messages);
            bare.settle();
        }
    });
    show(
        &format!("{what} at {depth}: publish, deliver, settle"),
        &cost,
    );
    if depth == 0 {
        return;
    }
    let left = bare.delivered;
    let cost = measure(depth, || {
        while bare.delivered > bare.settled {
            bare.settle();
        }
    });
    assert_eq!(bare.delivered - left + BATCH, depth);
    show(&format!("{what} at {depth}: deliver, settle"), &cost);
}

/// Publishes, delivers and settles messages of as many groups as a batch has messages, behind `depth` messages of a group
/// that another consumer owns.
fn behind_an_owned_group(depth: u64) {
    let grouped = |group: &str| {
        queue::assign_group(&message(None), GroupId::of(group)).expect("a small message")
    };
    let slow: Vec<Message> = (0..BATCH).map(|_| grouped("slow")).collect();
    let others: Vec<Message> = (0..BATCH).map(|n| grouped(&n.to_string())).collect();
    let mut bare = Bare::new(Kind::quorum_with(true));
    bare.publish(&slow[..1]);
    let get = RequestBody::Get {
        consumer: ConsumerId(1),
        no_ack: false,
    };
    bare.request(SLOW_CONSUMER, get);
    bare.turn();
    bare.delivered = 0;
    let before = LIVE.load(Relaxed);
    let cost = measure(depth.max(1), || {
        for _ in 0..depth / BATCH {
            bare.publish(&slow);
        }
    });
    if depth > 0 {
        show(&format!("quorum, group at {depth}: publish"), &cost);
        memory(&bare, before, depth);
    }
    bare.request(CONSUMER, consume());
    bare.turn();
    let cost = measure(MEASURED, || {
        for _ in 0..MEASURED / BATCH {
            bare.publish(&others);
            bare.settle();
        }
    });
    assert_eq!(bare.delivered, MEASURED);
    show(&format!("quorum, behind {depth} of an owned group"), &cost);
}

/// Passes messages with a priority.
#[derive(Debug)]
struct HasPriority;

impl MessageFilter for HasPriority {
    fn matches(&self, message: &Message, _now_ms: u64) -> bool {
        message.priority().is_some()
    }
}

fn compile(_filter: &ConsumerFilter) -> Option<Box<dyn MessageFilter>> {
    Some(Box::new(HasPriority))
}

/// Publishes, finds, delivers and settles messages behind `depth` messages that the filter of the consumer rejects.
fn behind_rejected(what: &str, queue: Kind, depth: u64) {
    let rejected: Vec<Message> = (0..BATCH).map(|_| message(None)).collect();
    // The level of messages without a priority.
    let passed: Vec<Message> = (0..BATCH).map(|_| message(Some(4))).collect();
    let mut bare = Bare::new(queue);
    for _ in 0..depth / BATCH {
        bare.publish(&rejected);
    }
    let RequestBody::Consume { consumer, spec } = consume() else {
        unreachable!("the request of a consumer");
    };
    let spec = ConsumerSpec {
        flow_mode: FlowMode::Credit,
        filter: ConsumerFilter::new(b"has a priority"),
        ..spec
    };
    bare.request(CONSUMER, RequestBody::Consume { consumer, spec });
    // The drain is answered when all messages were compared.
    let (up_to, drain) = (u64::MAX, true);
    bare.request(
        CONSUMER,
        RequestBody::Credit {
            consumer,
            up_to,
            drain,
        },
    );
    let cost = measure(depth.max(1), || {
        while !bare.has_drained {
            bare.turn();
        }
    });
    if depth > 0 {
        show(&format!("{what}, filter at {depth}: compare"), &cost);
    }
    let drain = false;
    bare.request(
        CONSUMER,
        RequestBody::Credit {
            consumer,
            up_to,
            drain,
        },
    );
    bare.turn();
    let cost = measure(MEASURED, || {
        for _ in 0..MEASURED / BATCH {
            bare.publish(&passed);
            bare.settle();
        }
    });
    while bare.delivered < MEASURED {
        bare.settle();
    }
    show(
        &format!("{what}, behind {depth} that a filter rejects"),
        &cost,
    );
}

/// Live bytes without the log and the simulated disk, which are on disk in reality.
fn memory(bare: &Bare, before: u64, depth: u64) {
    let log = match &bare.queue {
        Kind::Quorum { log, .. } => {
            let commands: usize = log.iter().map(|c| c.len()).sum();
            commands as u64
        }
        Kind::Classic(_) => return,
    };
    let live = LIVE.load(Relaxed).saturating_sub(before);
    let per = live.saturating_sub(log) as f64 / depth as f64;
    println!("    memory: {per:.1} B per ready message, log headers and spare capacity included");
    if let Kind::Quorum { queue, .. } = &bare.queue {
        let start = cpu();
        let state = queue.checkpoint().state;
        let spent = cpu().saturating_sub(start);
        println!("    checkpoint: {} B in {spent:?}", state.len());
    }
}

/// Publishes `depth` messages with a TTL that `ttl_ms` derives from their number, and lets them expire. `is_behind`: behind a
/// message without a TTL.
fn expire(what: &str, depth: u64, is_behind: bool, ttl_ms: fn(u64) -> u64) {
    let mut bare = Bare::new(Kind::quorum());
    if is_behind {
        bare.publish(&[message(None)]);
    }
    let before = LIVE.load(Relaxed);
    for first in (0..depth).step_by(BATCH as usize) {
        let messages = (first..first + BATCH).map(|n| message_with(None, Some(ttl_ms(n))));
        bare.publish(&messages.collect::<Vec<_>>());
    }
    println!("{what}: {depth} messages that expire");
    memory(&bare, before, depth);
    bare.at.wall.0 += 1 << 40;
    let rest = u64::from(is_behind);
    let mut turns = 0;
    let cost = measure(depth, || {
        while let Kind::Quorum { queue, .. } = &mut bare.queue
            && queue.stats().ready > rest
        {
            queue.tick(bare.at, &mut bare.out);
            bare.turn();
            turns += 1;
        }
    });
    show(&format!("{what}, in {turns} commands"), &cost);
}

/// The same through both clients, as sessions use them.
fn with_clients(what: &str, mut queue: Kind) {
    let kind = queue.kind();
    let client = |n| QueueClient::<u64>::new(session(n), kind, vec![NodeId(1)], None, Time(1));
    let mut clients = [client(PUBLISHER), client(CONSUMER)];
    let mut at = Timestamps {
        now: Time(1),
        wall: WallTime(1),
    };
    let (mut out, mut events) = (QueueOutput::default(), Vec::new());
    let message = message(None);
    clients[CONSUMER].request(consume());
    let mut published = 0;
    let cost = measure(MEASURED, || {
        let mut dequeued = 0;
        while dequeued < MEASURED {
            for _ in 0..BATCH.min(MEASURED - published) {
                published += 1;
                clients[PUBLISHER].publish(Some(published), message.clone());
            }
            for client in &mut clients {
                while let Some(item) = client.poll_send() {
                    queue.step(at, item, &mut out);
                }
            }
            at.now = at.now + Duration::from_millis(1);
            queue.turn(at, &mut out);
            for addressed in out.events.drain(..) {
                let client = &mut clients[addressed.session.number as usize];
                if let QueueEvent::Deliver { deliveries, .. } = &addressed.event {
                    dequeued += deliveries.len() as u64;
                    let (first, last) = (deliveries[0].id, deliveries[deliveries.len() - 1].id);
                    client.request(accepted(first, last));
                }
                client.event(at.now, NodeId(1), addressed.event, &mut events);
            }
            events.clear();
            queue.trim();
        }
    });
    show(&format!("{what} with clients"), &cost);
}

fn main() {
    for depth in [100_000, 1_000_000] {
        expire("one TTL", depth, false, |_| 1 << 30);
        expire("one TTL behind a lasting message", depth, true, |_| 1 << 30);
        let any = |n: u64| (1 << 30) + n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (1 << 29);
        expire("any TTL", depth, false, any);
    }
    for depth in [0, 100_000, 1_000_000] {
        at_depth("quorum", Kind::quorum(), depth, 0);
    }
    at_depth("quorum, 10 priorities", Kind::quorum(), 100_000, 10);
    for depth in [0, 100_000, 1_000_000] {
        behind_an_owned_group(depth);
    }
    for depth in [0, 100_000, 1_000_000] {
        behind_rejected("quorum", Kind::quorum(), depth);
        behind_rejected("classic", Kind::classic(None), depth);
    }
    for depth in [0, 100_000, 1_000_000] {
        at_depth("classic", Kind::classic(None), depth, 0);
    }
    at_depth(
        "classic, 10 priorities",
        Kind::classic(Some(9)),
        100_000,
        10,
    );
    with_clients("quorum", Kind::quorum());
    with_clients("classic", Kind::classic(None));
}
