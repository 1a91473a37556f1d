//! How much processor time the steps of a queue take, without network and disk: `cargo run --release --example pace`.

use env::sim::SimDisk;
use env::{Clock, Incarnation, NodeId, WallTime, real::RealClock};
use message::{Message, MessageBuilder, Protocol, Table};
use queue::classic::ClassicQueue;
use queue::client::QueueClient;
use queue::quorum::QuorumQueue;
use queue::{
    ConsumerId, ConsumerSpec, Event, Moment, Outcome, Output, Overflow, Queue, QueueId, QueueKind,
    QueueSettings, RequestBody, SessionId,
};
use std::sync::Arc;

const MESSAGES: u64 = 1_000_000;
const BATCH: u64 = 100;

fn message() -> Message {
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(0),
        exchange: "",
        routing_keys: &["pace"],
        properties: &[0x10, 0, 2],
    }
    .build(12, [&[7u8; 12][..]])
    .unwrap()
}

fn settings() -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: Some(20),
        message_ttl_ms: None,
        single_active_consumer: false,
    }
}

fn session(number: u64) -> SessionId {
    SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number,
    }
}

fn consume() -> RequestBody {
    RequestBody::Consume {
        consumer: ConsumerId(1),
        spec: ConsumerSpec {
            tag: "c".into(),
            channel: 1,
            prefetch: 500,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
        },
    }
}

struct Pair {
    publisher: QueueClient<u64>,
    consumer: QueueClient<u64>,
    taken: u64,
    confirmed: u64,
}

impl Pair {
    fn new(kind: QueueKind) -> Pair {
        let client = |n| QueueClient::new(session(n), kind, vec![NodeId(1)], None, env::Time(1));
        Pair {
            publisher: client(1),
            consumer: client(2),
            taken: 0,
            confirmed: 0,
        }
    }

    /// Sends what the clients have, returns what came to the consumer to them.
    fn turn(&mut self, at: Moment, queue: &mut dyn Queue, out: &mut Output) {
        for client in [&mut self.publisher, &mut self.consumer] {
            while let Some(item) = client.poll_send() {
                queue.step(at, item, out);
            }
        }
        queue.flush(at, out);
    }

    fn hear(&mut self, at: Moment, out: &mut Output) {
        let mut told = Vec::new();
        for addressed in out.events.drain(..) {
            let mine = addressed.session.number == 1;
            let client = if mine {
                &mut self.publisher
            } else {
                &mut self.consumer
            };
            if let Event::Deliver { deliveries, .. } = &addressed.event {
                self.taken += deliveries.len() as u64;
                let last = deliveries.last().map_or(0, |d| d.id);
                client.request(RequestBody::Settle {
                    consumer: ConsumerId(1),
                    outcome: Outcome::Accepted,
                    ids: vec![(deliveries[0].id, last)],
                });
            }
            client.event(at.now, NodeId(1), addressed.event, &mut told);
        }
        self.confirmed += told
            .iter()
            .filter(|t| matches!(t, queue::client::Told::Published(_)))
            .count() as u64;
    }
}

fn quorum(backlog: bool) {
    let clock = RealClock::new();
    let mut queue = QuorumQueue::new("pace".into(), settings());
    let mut out = Output::default();
    queue.leadership(1, Some(NodeId(1)), true, &mut out);
    let mut pair = Pair::new(QueueKind::Quorum);
    let mut log: Vec<bytes::Bytes> = Vec::new();
    if !backlog {
        pair.consumer.request(consume());
    }
    let (start, mut published) = (clock.now(), 0);
    let mut half = start;
    while pair.taken < MESSAGES {
        let at = Moment {
            now: clock.now(),
            wall: WallTime(1),
        };
        for _ in 0..BATCH.min(MESSAGES - published) {
            published += 1;
            pair.publisher.publish(Some(published), message());
        }
        if backlog && published == MESSAGES && pair.confirmed == MESSAGES && half == start {
            half = clock.now();
            let state = queue.checkpoint();
            println!(
                "  checkpoint of 1 M ready: {} B, {:?}",
                state.state.len(),
                clock.now().since(half)
            );
            half = clock.now();
            pair.consumer.request(consume());
        }
        pair.turn(at, &mut queue, &mut out);
        while let Some(command) = queue.take_proposal() {
            log.push(command.clone());
            queue.applied(log.len() as u64, 1, &command);
        }
        let mut read = |index: u64| log.get(index as usize - 1).cloned();
        queue.resolve(&mut read, &mut out);
        pair.hear(at, &mut out);
    }
    let end = clock.now();
    if backlog {
        println!(
            "quorum backlog: publish {:?}, consume {:?}",
            half.since(start),
            end.since(half)
        );
    } else {
        println!("quorum 1:1: {:?} for 1 M", end.since(start));
    }
}

fn classic() {
    let clock = RealClock::new();
    let disk = Arc::new(SimDisk::new());
    let mut queue = ClassicQueue::open(disk, QueueId(1), "pace".into(), settings()).unwrap();
    let mut pair = Pair::new(QueueKind::Classic);
    let mut out = Output::default();
    pair.consumer.request(consume());
    let (start, mut published) = (clock.now(), 0);
    while pair.taken < MESSAGES {
        let at = Moment {
            now: clock.now(),
            wall: WallTime(1),
        };
        for _ in 0..BATCH.min(MESSAGES - published) {
            published += 1;
            pair.publisher.publish(Some(published), message());
        }
        pair.turn(at, &mut queue, &mut out);
        if queue.wake_at().is_some_and(|wake| wake <= at.now) {
            queue.tick(at, &mut out);
        }
        pair.hear(at, &mut out);
    }
    println!("classic 1:1: {:?} for 1 M", clock.now().since(start));
}

fn main() {
    quorum(false);
    quorum(true);
    classic();
}
