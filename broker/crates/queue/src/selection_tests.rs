//! Consumers with filters on classic and quorum queues, compared with a model that knows where each message is.

use crate::classic::ClassicQueue;
use crate::model::{message, number, spec};
use crate::quorum::{LogRead, QuorumQueue};
use crate::{
    ConsumerFilter, ConsumerId, ConsumerSpec, FlowMode, MessageFilter, Queue, QueueEvent, QueueId,
    QueueMessage, QueueOutput, QueueReply, QueueSettings, QuorumFeatures, Request, RequestBody,
    ResumeConsumer, SessionId, SettlementOutcome, Timestamps, classic, quorum, schedule,
};
use bytes::Bytes;
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Time, WallTime};
use message::Message;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    /// Messages that filters were compared with.
    static EXAMINED: Cell<u64> = const { Cell::new(0) };
}

/// Passes messages whose number is divisible.
#[derive(Debug)]
struct Divisible(u64);

impl MessageFilter for Divisible {
    fn matches(&self, message: &Message, _now_ms: u64) -> bool {
        EXAMINED.set(EXAMINED.get() + 1);
        number(message).is_multiple_of(self.0)
    }
}

/// A filter that this version does not understand has no bytes.
fn compile(filter: &ConsumerFilter) -> Option<Box<dyn MessageFilter>> {
    let divisor = filter.as_bytes().first()?;
    Some(Box::new(Divisible((*divisor).into())))
}

fn session(number: u64) -> SessionId {
    SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number,
    }
}

/// A queue and what runs its turns.
trait Host {
    fn step(&mut self, item: QueueMessage) -> QueueOutput;
    /// Applies what was proposed, without a search.
    fn apply(&mut self);
    /// Continues until the queue waits for something.
    fn run(&mut self) -> QueueOutput;
    /// Has another member lead. Returns what the leader says before. `None`: the queue has one replica.
    fn change_leader(&mut self) -> Option<QueueOutput>;
    fn ready(&self) -> u64;
    /// Lets time pass.
    fn pass(&mut self, ms: u64);
}

const START: Timestamps = Timestamps {
    now: Time(1),
    wall: WallTime(1_000),
};

/// The time that many milliseconds later.
fn later(at: Timestamps, ms: u64) -> Timestamps {
    Timestamps {
        now: at.now + Duration::from_millis(ms),
        wall: WallTime(at.wall.0 + ms),
    }
}

struct Replicated {
    queue: QuorumQueue,
    log: Vec<Bytes>,
    term: u64,
    at: Timestamps,
    /// Entries after this one cannot be read at the moment.
    readable: u64,
}

/// Reads an entry of a log.
fn entry(log: &[Bytes], index: u64, readable: u64) -> LogRead {
    match index <= readable {
        true => log.get(index as usize - 1).cloned().into(),
        false => LogRead::Shortage,
    }
}

impl Replicated {
    fn new(settings: QueueSettings) -> Replicated {
        let mut queue = QuorumQueue::new("queue 'q' in vhost '/'".into(), settings);
        queue.leadership(1, Some(NodeId(1)), true, &mut QueueOutput::default());
        Replicated {
            queue,
            log: Vec::new(),
            term: 1,
            at: START,
            readable: u64::MAX,
        }
    }
}

impl Host for Replicated {
    fn step(&mut self, item: QueueMessage) -> QueueOutput {
        let mut out = QueueOutput::default();
        self.queue.step(self.at, item, &mut out);
        out
    }

    fn apply(&mut self) {
        while let Some(command) = self.queue.take_proposal() {
            self.log.push(command.clone());
            let index = self.log.len() as u64;
            self.queue.applied(index, self.term, &command).unwrap();
        }
    }

    fn run(&mut self) -> QueueOutput {
        let mut out = QueueOutput::default();
        loop {
            let (log, readable) = (&self.log, self.readable);
            let mut read = |index: u64| entry(log, index, readable);
            self.queue.resolve(&mut read, &mut out);
            self.queue.select(&mut read, compile);
            self.queue.flush(self.at, &mut out);
            self.apply();
            let is_due = self.queue.wake_at().is_some_and(|due| due <= self.at.now);
            if self.queue.effects_are_resolved() && !is_due {
                return out;
            }
            self.queue.tick(self.at, &mut out);
        }
    }

    fn change_leader(&mut self) -> Option<QueueOutput> {
        self.apply();
        let (log, mut before) = (&self.log, QueueOutput::default());
        let mut read = |index: u64| entry(log, index, u64::MAX);
        self.queue.resolve(&mut read, &mut before);
        let checkpoint = self.queue.checkpoint();
        let settings = self.queue.machine().settings().clone();
        self.queue = QuorumQueue::new("queue 'q' in vhost '/'".into(), settings);
        self.queue.restore(checkpoint.state).unwrap();
        self.term += 1;
        let out = &mut QueueOutput::default();
        self.queue.leadership(self.term, Some(NodeId(1)), true, out);
        Some(before)
    }

    fn ready(&self) -> u64 {
        self.queue.stats().ready
    }

    fn pass(&mut self, ms: u64) {
        self.at = later(self.at, ms);
        self.queue.tick(self.at, &mut QueueOutput::default());
        self.apply();
    }
}

struct Single {
    queue: ClassicQueue,
    at: Timestamps,
}

impl Single {
    fn new(settings: QueueSettings) -> Single {
        let (disk, id) = (Arc::new(SimDisk::new()), QueueId(7));
        let label = "queue 'q' in vhost '/'".into();
        let queue = ClassicQueue::create(disk, id, label, settings, Incarnation(1));
        Single {
            queue: queue.unwrap(),
            at: START,
        }
    }
}

impl Host for Single {
    fn step(&mut self, item: QueueMessage) -> QueueOutput {
        let mut out = QueueOutput::default();
        self.queue.step(self.at, item, &mut out);
        out
    }

    fn apply(&mut self) {}

    fn run(&mut self) -> QueueOutput {
        let mut out = QueueOutput::default();
        loop {
            self.queue.select(self.at, compile, &mut out);
            self.queue.flush(self.at, &mut out);
            if self.queue.wake_at().is_none_or(|due| due > self.at.now) {
                return out;
            }
            self.queue.tick(self.at, &mut out);
        }
    }

    fn change_leader(&mut self) -> Option<QueueOutput> {
        None
    }

    fn ready(&self) -> u64 {
        self.queue.stats().ready
    }

    fn pass(&mut self, ms: u64) {
        self.at = later(self.at, ms);
        self.queue.tick(self.at, &mut QueueOutput::default());
        self.apply();
    }
}

/// A consumer as its client knows it.
#[derive(Debug, Default)]
struct Client {
    divisor: Option<u64>,
    /// The last delivery that the credit allows.
    up_to: u64,
    /// The highest credit that the queue may still know.
    allowed: u64,
    last: u64,
    /// Unsettled deliveries and the numbers of their messages.
    unsettled: BTreeMap<u64, u64>,
    /// The request of the last credit.
    credit: u64,
    /// The request of the last drain, if it is not answered.
    drain: Option<u64>,
    is_cancelled: bool,
}

impl Client {
    fn accepts(&self, number: u64) -> bool {
        self.divisor
            .is_none_or(|divisor| divisor > 0 && number.is_multiple_of(divisor))
    }
}

struct World<H> {
    host: H,
    seqs: BTreeMap<u64, u64>,
    published: u64,
    ready: BTreeSet<u64>,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u64),
    /// 0: no filter; 1: one that is not understood.
    Consume(u8),
    Credit {
        client: usize,
        more: u64,
        drain: bool,
    },
    Settle {
        client: usize,
        delivery: usize,
        outcome: SettlementOutcome,
    },
    Cancel(usize),
    Close(usize),
    Purge,
    ChangeLeader,
}

/// Steps, and whether the search runs between each and the next one.
fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let outcome = prop::sample::select(vec![
        SettlementOutcome::Accepted,
        SettlementOutcome::Requeue,
        SettlementOutcome::Released,
        SettlementOutcome::Unseen,
        SettlementOutcome::Rejected,
    ]);
    let step = prop_oneof![
        6 => (1..40u64).prop_map(Step::Publish),
        3 => (0..6u8).prop_map(Step::Consume),
        6 => (0..8usize, 0..12u64, prop::bool::weighted(0.3))
            .prop_map(|(client, more, drain)| Step::Credit { client, more, drain }),
        8 => (0..8usize, 0..8usize, outcome)
            .prop_map(|(client, delivery, outcome)| Step::Settle { client, delivery, outcome }),
        1 => (0..8usize).prop_map(Step::Cancel),
        1 => (0..8usize).prop_map(Step::Close),
        1 => Just(Step::Purge),
        2 => Just(Step::ChangeLeader),
    ];
    prop::collection::vec((step, prop::bool::weighted(0.7)), 1..60)
}

/// The session that publishes.
const PUBLISHER: u64 = 0;
const CONSUMER: ConsumerId = ConsumerId(1);

impl<H: Host> World<H> {
    fn new(host: H) -> World<H> {
        World {
            host,
            seqs: BTreeMap::new(),
            published: 0,
            ready: BTreeSet::new(),
            clients: BTreeMap::new(),
            next_client: 1,
        }
    }

    fn request(&mut self, by: u64, body: RequestBody) {
        let seq = self.seqs.entry(by).or_default();
        *seq += 1;
        let request = Request {
            session: session(by),
            seq: *seq,
            body,
        };
        let out = self.host.step(QueueMessage::Request(request));
        self.observe(out);
    }

    fn nth(&self, at: usize) -> Option<u64> {
        let count = self.clients.len().max(1);
        self.clients.keys().nth(at % count).copied()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish(count) => {
                for _ in 0..count {
                    self.published += 1;
                    let number = self.published;
                    let priority = [None, Some(2), Some(7)][number as usize % 3];
                    self.ready.insert(number);
                    let message = message(number, priority, None, 8);
                    self.request(PUBLISHER, RequestBody::Publish(message));
                }
            }
            Step::Consume(divisor) => self.consume(divisor, 0),
            Step::Credit {
                client,
                more,
                drain,
            } => self.credit(client, more, drain),
            Step::Settle {
                client,
                delivery,
                outcome,
            } => self.settle(client, delivery, outcome),
            Step::Cancel(client) => {
                if let Some(by) = self.nth(client) {
                    self.request(by, RequestBody::Cancel { consumer: CONSUMER });
                    let client = self.clients.get_mut(&by).unwrap();
                    client.up_to = 0;
                    client.is_cancelled = true;
                }
            }
            Step::Close(client) => {
                if let Some(by) = self.nth(client) {
                    let client = self.clients.remove(&by).unwrap();
                    self.ready.extend(client.unsettled.into_values());
                    self.request(by, RequestBody::Close);
                }
            }
            Step::Purge => {
                self.run();
                self.ready.clear();
                self.request(PUBLISHER, RequestBody::Purge);
            }
            Step::ChangeLeader => self.change_leader(),
        }
    }

    fn steps<'a>(&mut self, steps: impl IntoIterator<Item = &'a (Step, bool)>) {
        for (step, runs) in steps {
            self.step(step);
            match runs {
                true => self.run_and_check(),
                false => self.host.apply(),
            }
        }
        self.run_and_check();
    }

    fn run_and_check(&mut self) {
        self.run();
        self.check();
    }

    fn consume(&mut self, divisor: u8, priority: i32) {
        let by = self.next_client;
        self.next_client += 1;
        let filter = match divisor {
            0 => None,
            1 => ConsumerFilter::new(&[]),
            _ => ConsumerFilter::new(&[divisor]),
        };
        let client = Client {
            divisor: match divisor {
                0 => None,
                1 => Some(0),
                _ => Some(divisor.into()),
            },
            ..Client::default()
        };
        self.clients.insert(by, client);
        let spec = ConsumerSpec {
            flow_mode: FlowMode::Credit,
            filter,
            ..spec(0, priority)
        };
        let consumer = CONSUMER;
        self.request(by, RequestBody::Consume { consumer, spec });
    }

    fn credit(&mut self, client: usize, more: u64, drain: bool) {
        let Some(by) = self.nth(client) else { return };
        let client = self.clients.get_mut(&by).unwrap();
        if client.is_cancelled {
            return;
        }
        let up_to = client.last + more;
        client.up_to = up_to;
        client.allowed = client.allowed.max(up_to);
        client.credit = self.seqs[&by] + 1;
        client.drain = drain.then_some(client.credit);
        let consumer = CONSUMER;
        self.request(
            by,
            RequestBody::Credit {
                consumer,
                up_to,
                drain,
            },
        );
    }

    fn settle(&mut self, client: usize, delivery: usize, outcome: SettlementOutcome) {
        let Some(by) = self.nth(client) else { return };
        let client = self.clients.get_mut(&by).unwrap();
        let Some(id) = client.unsettled.keys().nth(delivery).copied() else {
            return;
        };
        let number = client.unsettled.remove(&id).unwrap();
        if !matches!(
            outcome,
            SettlementOutcome::Accepted | SettlementOutcome::Rejected
        ) {
            self.ready.insert(number);
        }
        let (consumer, ids) = (CONSUMER, vec![(id, id)]);
        self.request(
            by,
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            },
        );
    }

    fn change_leader(&mut self) {
        let Some(before) = self.host.change_leader() else {
            return;
        };
        self.observe(before);
        // As sessions do.
        for by in self.clients.keys().copied().collect::<Vec<_>>() {
            let resume = ResumeConsumer {
                session: session(by),
                consumer: CONSUMER,
                next: self.clients.get(&by).unwrap().last + 1,
            };
            let out = self.host.step(QueueMessage::Resume(resume));
            self.observe(out);
        }
    }

    fn run(&mut self) {
        let out = self.host.run();
        self.observe(out);
    }

    fn observe(&mut self, out: QueueOutput) {
        assert_eq!(out.faults, Vec::<String>::new());
        for addressed in out.events {
            let by = addressed.session.number;
            let Some(client) = self.clients.get_mut(&by) else {
                continue;
            };
            match addressed.event {
                QueueEvent::Deliver { deliveries, .. } => {
                    for delivery in deliveries {
                        let number = number(&delivery.message);
                        assert!(client.accepts(number), "client {by} got {number}");
                        assert_eq!(delivery.id, client.last + 1, "client {by}");
                        assert!(delivery.id <= client.allowed, "client {by} has no credit");
                        assert!(self.ready.remove(&number), "{number} is not ready");
                        client.last = delivery.id;
                        client.unsettled.insert(delivery.id, number);
                    }
                }
                QueueEvent::Answer {
                    seq,
                    answer: QueueReply::Credited { last, drained, .. },
                } => {
                    assert_eq!(last, client.last);
                    // A later credit may be on its way.
                    if client.drain == Some(seq) {
                        assert!(drained, "the drain of client {by}");
                        client.drain = None;
                        client.up_to = client.last;
                    }
                    if client.credit == seq {
                        client.allowed = client.up_to;
                    }
                }
                _ => {}
            }
        }
    }

    /// Nothing is left that a consumer with credit could get.
    fn check(&self) {
        assert_eq!(self.host.ready(), self.ready.len() as u64);
        for (by, client) in &self.clients {
            assert_eq!(client.drain, None, "client {by} drains");
            if client.last < client.up_to {
                let missed = self.ready.iter().find(|number| client.accepts(**number));
                assert_eq!(missed, None, "client {by} has credit");
            }
        }
    }
}

fn quorum_settings(delivery_limit: Option<u32>) -> QueueSettings {
    QueueSettings {
        delivery_limit,
        ..quorum::tests::settings()
    }
}

fn classic_settings(max_priority: Option<u8>) -> QueueSettings {
    QueueSettings {
        max_priority,
        ..classic::tests::settings()
    }
}

proptest! {
    #[test]
    fn quorum_queue_agrees_with_the_model(steps in steps(), is_limited: bool) {
        // Without a delivery limit, messages are requeued to the end.
        let settings = quorum_settings(is_limited.then_some(1_000));
        let mut world = World::new(Replicated::new(settings));
        world.steps(&steps);
    }

    #[test]
    fn classic_queue_agrees_with_the_model(steps in steps(), has_priorities: bool) {
        let settings = classic_settings(has_priorities.then_some(9));
        let mut world = World::new(Single::new(settings));
        world.steps(&steps);
    }
}

/// A message that no filter passes is read once for each consumer, whatever happens after it.
fn each_message_is_examined_once(host: impl Host) {
    let mut world = World::new(host);
    let credit = |client, drain| Step::Credit {
        client,
        more: 10,
        drain,
    };
    let run = |world: &mut World<_>, step| world.steps(&[(step, true)]);
    run(&mut world, Step::Publish(3_000));
    for client in 0..2 {
        run(&mut world, Step::Consume(251));
        run(&mut world, credit(client, client == 1));
    }
    // Numbers 251, 502, ... 3,000 is between 11 and 12 times 251.
    let found = |world: &World<_>| world.clients.values().map(|c| c.last).collect::<Vec<_>>();
    assert_eq!(found(&world), [10, 1]);
    let before = EXAMINED.get();
    for _ in 0..200 {
        run(&mut world, Step::Publish(1));
        run(&mut world, credit(1, true));
    }
    // Each once by the second consumer; the first one has no credit.
    assert_eq!(EXAMINED.get() - before, 200);
}

#[test]
fn quorum_queue_examines_each_message_once() {
    EXAMINED.set(0);
    each_message_is_examined_once(Replicated::new(quorum_settings(Some(20))));
}

#[test]
fn classic_queue_examines_each_message_once() {
    EXAMINED.set(0);
    each_message_is_examined_once(Single::new(classic_settings(None)));
}

fn consumers_without_a_filter_come_first(host: impl Host) {
    let mut world = World::new(host);
    let credit = |client| Step::Credit {
        client,
        more: 5,
        drain: false,
    };
    let steps = [Step::Consume(2), Step::Consume(0), credit(0), credit(1)];
    world.steps(&steps.map(|step| (step, true)));
    world.steps(&[(Step::Publish(20), true)]);
    let client = |by| world.clients.get(&by).unwrap();
    // The consumer with the filter gets what the other one has no credit for.
    let all = client(2).unsettled.values().copied().collect::<Vec<_>>();
    let even = client(1).unsettled.values().copied().collect::<Vec<_>>();
    assert_eq!(all.len() + even.len(), 10);
    assert_eq!(world.ready.len(), 10);
    assert!(even.iter().all(|number| number % 2 == 0));
}

#[test]
fn consumers_of_a_quorum_queue_without_a_filter_come_first() {
    consumers_without_a_filter_come_first(Replicated::new(quorum_settings(Some(20))));
}

#[test]
fn consumers_of_a_classic_queue_without_a_filter_come_first() {
    consumers_without_a_filter_come_first(Single::new(classic_settings(None)));
}

/// A message that has expired behind another one is not delivered.
fn expired_messages_are_not_delivered(host: impl Host) {
    let mut world = World::new(host);
    for (number, ttl) in [(1, None), (2, Some(100)), (4, None)] {
        let message = message(number, None, ttl, 8);
        world.request(PUBLISHER, RequestBody::Publish(message));
    }
    world.run();
    world.host.pass(200);
    world.ready = BTreeSet::from([4]);
    let credit = Step::Credit {
        client: 0,
        more: 5,
        drain: true,
    };
    world.step(&Step::Consume(2));
    world.step(&credit);
    world.run();
    let client = world.clients.get(&1).unwrap();
    assert_eq!((client.last, client.drain), (1, None));
    assert_eq!(world.host.ready(), 1);
}

#[test]
fn expired_messages_of_a_quorum_queue_are_not_delivered() {
    expired_messages_are_not_delivered(Replicated::new(quorum_settings(None)));
}

#[test]
fn expired_messages_of_a_classic_queue_are_not_delivered() {
    expired_messages_are_not_delivered(Single::new(classic_settings(None)));
}

/// The waiting consumers of a queue with a single active consumer get nothing, whatever their filters are.
fn one_consumer_is_active(host: impl Host) {
    let mut world = World::new(host);
    let credit = |client| Step::Credit {
        client,
        more: 5,
        drain: false,
    };
    let first = [
        Step::Consume(2),
        Step::Consume(3),
        credit(0),
        credit(1),
        Step::Publish(9),
    ];
    first.iter().for_each(|step| world.step(step));
    world.run();
    let last = |world: &World<_>| [1, 2].map(|by| world.clients.get(&by).unwrap().last);
    assert_eq!(last(&world), [4, 0]);
    world.step(&Step::Cancel(0));
    world.run();
    // 3 and 9: the first consumer still has 6.
    assert_eq!(last(&world), [4, 2]);
}

#[test]
fn one_consumer_of_a_quorum_queue_is_active() {
    one_consumer_is_active(Replicated::new(QueueSettings {
        single_active_consumer: true,
        ..quorum_settings(Some(20))
    }));
}

#[test]
fn one_consumer_of_a_classic_queue_is_active() {
    one_consumer_is_active(Single::new(QueueSettings {
        single_active_consumer: true,
        ..classic_settings(None)
    }));
}

/// A message is examined again when its delay is over.
#[test]
fn delayed_messages_are_found_when_they_are_ready() {
    let mut host = Replicated::new(quorum_settings(Some(20)));
    host.queue.enable_features(QuorumFeatures {
        strict_priorities: true,
        scheduled_delivery: true,
        ..QuorumFeatures::default()
    });
    let settings = quorum_settings(Some(20));
    let mut out = QueueOutput::default();
    host.queue.configure(START, &settings, &mut out);
    host.apply();
    let mut world = World::new(host);
    let scheduled = schedule(&message(2, None, None, 8), 300).unwrap();
    world.request(PUBLISHER, RequestBody::Publish(scheduled));
    world.step(&Step::Consume(2));
    world.step(&Step::Credit {
        client: 0,
        more: 5,
        drain: false,
    });
    world.run();
    assert_eq!(world.clients.get(&1).unwrap().last, 0);
    world.ready = BTreeSet::from([2]);
    world.host.pass(400);
    world.run();
    assert_eq!(world.clients.get(&1).unwrap().last, 1);
}

/// Messages that were found before a read failed are delivered, and the others when they can be read.
#[test]
fn failed_read_loses_no_message_that_was_found() {
    let mut world = World::new(Replicated::new(quorum_settings(Some(20))));
    // An entry each, in the order of the search.
    for number in 1..=300 {
        world.ready.insert(number);
        let message = message(number, None, None, 8);
        world.request(PUBLISHER, RequestBody::Publish(message));
        world.run();
    }
    world.host.readable = 150;
    world.step(&Step::Consume(2));
    world.step(&Step::Credit {
        client: 0,
        more: 200,
        drain: false,
    });
    world.run();
    let found = world.clients.get(&1).unwrap().last;
    assert!((1..=75).contains(&found), "{found}");
    world.host.readable = u64::MAX;
    world.host.pass(1_000);
    world.run_and_check();
    assert_eq!(world.clients.get(&1).unwrap().last, 150);
}

/// A consumer of a higher priority gets the messages that both want.
fn higher_priority_comes_first(host: impl Host) {
    let mut world = World::new(host);
    for priority in [0, 5] {
        world.consume(2, priority);
    }
    for client in 0..2 {
        world.step(&Step::Credit {
            client,
            more: 5,
            drain: false,
        });
    }
    world.steps(&[(Step::Publish(10), true)]);
    let last = [1, 2].map(|by| world.clients.get(&by).unwrap().last);
    assert_eq!(last, [0, 5]);
}

#[test]
fn higher_priority_comes_first_on_a_quorum_queue() {
    higher_priority_comes_first(Replicated::new(quorum_settings(Some(20))));
}

#[test]
fn higher_priority_comes_first_on_a_classic_queue() {
    higher_priority_comes_first(Single::new(classic_settings(None)));
}
