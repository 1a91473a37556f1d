use super::command::{Batch, Command};
use super::machine::Machine;
use super::ready::{Held, Ready};
use super::{Effect, Effects};
use crate::{
    Answer, ConsumerId, ConsumerSpec, DeadReason, Delivery, Event, GoneNode, Outcome, Output,
    Overflow, QueueSettings, Reject, Request, RequestBody, Resume, SessionId,
};
use bytes::Bytes;
use env::{Incarnation, NodeId, WallTime};
use message::{Message, MessageBuilder, Protocol, Table};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn settings() -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: Some(super::DEFAULT_DELIVERY_LIMIT),
        message_ttl_ms: None,
        single_active_consumer: false,
    }
}

fn session(number: u64) -> SessionId {
    SessionId {
        node: NodeId(number % 3 + 1),
        incarnation: Incarnation(1),
        number,
    }
}

fn spec(prefetch: u32, priority: i32) -> ConsumerSpec {
    ConsumerSpec {
        tag: "c".into(),
        channel: 1,
        prefetch,
        no_ack: false,
        exclusive: false,
        priority,
        arguments: Table::default(),
    }
}

fn message(n: u64, priority: Option<u8>, ttl_ms: Option<u64>) -> Message {
    let body = n.to_be_bytes();
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority,
        ttl_ms,
        received: WallTime(0),
        exchange: "",
        routing_keys: &["q"],
        properties: &[],
    }
    .build(body.len(), [&body[..]])
    .unwrap()
}

fn number(message: &Message) -> u64 {
    u64::from_be_bytes(message.body()[..].try_into().unwrap())
}

/// A machine with its log.
struct Rig {
    machine: Machine,
    log: Vec<Bytes>,
    seqs: BTreeMap<SessionId, u64>,
    wall: u64,
    out: Output,
}

impl Rig {
    fn new(settings: QueueSettings) -> Rig {
        Rig {
            machine: Machine::new("queue 'q' in vhost '/'".into(), settings),
            log: Vec::new(),
            seqs: BTreeMap::new(),
            wall: 1000,
            out: Output::default(),
        }
    }

    fn command(&mut self, command: Bytes) -> Output {
        self.log.push(command.clone());
        let mut effects = Effects::wanted();
        self.machine
            .apply(self.log.len() as u64, &command, &mut effects);
        self.resolve(effects)
    }

    fn resolve(&mut self, mut effects: Effects) -> Output {
        let mut out = std::mem::take(&mut self.out);
        let log = &self.log;
        effects.resolve(&mut |index| log.get(index as usize - 1).cloned(), &mut out);
        assert_eq!(out.faults, Vec::<String>::new());
        out
    }

    fn batch(&mut self, bodies: Vec<(u64, RequestBody)>) -> Output {
        let mut batch = Batch::default();
        for (number, body) in bodies {
            let session = session(number);
            let seq = self.seqs.entry(session).or_default();
            *seq += 1;
            batch.push(&Request {
                session,
                seq: *seq,
                body,
            });
        }
        let command = batch.take(WallTime(self.wall)).unwrap();
        self.command(command)
    }

    fn one(&mut self, number: u64, body: RequestBody) -> Output {
        self.batch(vec![(number, body)])
    }

    fn publish(&mut self, numbers: impl IntoIterator<Item = u64>) -> Output {
        let publish = |n| (9, RequestBody::Publish(message(n, None, None)));
        self.batch(numbers.into_iter().map(publish).collect())
    }

    fn consume(&mut self, number: u64, consumer: u32, spec: ConsumerSpec) -> Output {
        let consumer = ConsumerId(consumer);
        self.one(number, RequestBody::Consume { consumer, spec })
    }

    fn settle(&mut self, number: u64, consumer: u32, outcome: Outcome, id: u64) -> Output {
        let body = RequestBody::Settle {
            consumer: ConsumerId(consumer),
            outcome,
            ids: vec![(id, id)],
        };
        self.one(number, body)
    }
}

fn deliveries(out: &Output) -> Vec<(u64, u32, Delivery)> {
    let mut all = Vec::new();
    for addressed in &out.events {
        if let Event::Deliver {
            consumer,
            deliveries,
        } = &addressed.event
        {
            let to = |d: &Delivery| (addressed.session.number, consumer.0, d.clone());
            all.extend(deliveries.iter().map(to));
        }
    }
    all
}

fn numbers(out: &Output) -> Vec<u64> {
    deliveries(out).iter().map(|d| number(&d.2.message)).collect()
}

fn answers(out: &Output) -> Vec<Answer> {
    let answer = |a: &crate::Addressed| match &a.event {
        Event::Answer { answer, .. } => Some(answer.clone()),
        _ => None,
    };
    out.events.iter().filter_map(answer).collect()
}

#[test]
fn in_order_within_the_window_and_confirmed() {
    let mut rig = Rig::new(settings());
    let out = rig.publish(1..=5);
    let applied = Event::Applied { up_to: 5 };
    assert!(out.events.iter().any(|e| e.event == applied));
    let out = rig.consume(1, 1, spec(2, 0));
    assert_eq!(answers(&out), [Answer::Consuming]);
    assert_eq!(numbers(&out), [1, 2]);
    let out = rig.settle(1, 1, Outcome::Accepted, 1);
    assert_eq!(numbers(&out), [3]);
    assert_eq!(rig.machine.stats().ready, 2);
    assert_eq!(rig.machine.stats().unacknowledged, 2);
    assert_eq!(rig.machine.stats().bytes, 32);
    assert_eq!(rig.machine.live_indexes(), [1]);
}

#[test]
fn requeued_messages_go_to_their_place_and_die_over_the_limit() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: Some(2),
        ..settings()
    });
    rig.publish(1..=3);
    rig.consume(1, 1, spec(1, 0));
    for id in 1..=2 {
        let out = rig.settle(1, 1, Outcome::Requeue, id);
        let all = deliveries(&out);
        assert_eq!(numbers(&out), [1]);
        assert_eq!((all[0].2.attempts, all[0].2.redelivered), (Some(id as u32), true));
    }
    let out = rig.settle(1, 1, Outcome::Requeue, 3);
    let dead: Vec<_> = out.dead.iter().map(|d| (d.0, number(&d.1))).collect();
    assert_eq!(dead, [(DeadReason::DeliveryLimit, 1)]);
    assert_eq!(numbers(&out), [2]);
}

#[test]
fn two_high_to_one_normal_and_never_past_an_earlier_high() {
    let mut rig = Rig::new(settings());
    let publish = |n, p| (9, RequestBody::Publish(message(n, Some(p), None)));
    // Normal 1 to 3 came first, then high 11 to 16, then normal 4.
    let mut batch: Vec<_> = (1..=3).map(|n| publish(n, 4)).collect();
    batch.extend((11..=16).map(|n| publish(n, 5)));
    batch.push(publish(4, 0));
    rig.batch(batch);
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&out), [11, 12, 1, 13, 14, 2, 15, 16, 3, 4]);

    let mut rig = Rig::new(settings());
    let batch = vec![publish(11, 9), publish(12, 9), publish(13, 9), publish(1, 0)];
    rig.batch(batch);
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&out), [11, 12, 13, 1]);
}

#[test]
fn single_active_consumer_hands_over_when_it_holds_nothing() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    rig.consume(1, 1, spec(2, 0));
    rig.consume(2, 1, spec(2, 0));
    let out = rig.publish(1..=6);
    assert_eq!(deliveries(&out).iter().map(|d| d.0).collect::<Vec<_>>(), [1, 1]);
    // One of higher priority takes over, once the first has settled all.
    let out = rig.consume(3, 1, spec(2, 7));
    assert_eq!(numbers(&out), [0u64; 0]);
    assert_eq!(numbers(&rig.settle(1, 1, Outcome::Accepted, 1)), [0u64; 0]);
    let out = rig.settle(1, 1, Outcome::Accepted, 2);
    assert_eq!(numbers(&out), [3, 4]);
    assert_eq!(deliveries(&out)[0].0, 3);
    // It goes: the best that is left goes on, in order.
    let out = rig.one(3, RequestBody::Close);
    assert_eq!(numbers(&out), [3, 4]);
    assert!(deliveries(&out).iter().all(|d| d.0 == 1 && d.2.redelivered));
}

#[test]
fn higher_priority_first_then_in_turn() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, spec(2, 0));
    rig.consume(2, 1, spec(2, 0));
    rig.consume(3, 1, spec(1, 5));
    let out = rig.publish(1..=5);
    let mut to: Vec<_> = deliveries(&out).iter().map(|d| (number(&d.2.message), d.0)).collect();
    to.sort_unstable();
    assert_eq!(to, [(1, 3), (2, 1), (3, 2), (4, 1), (5, 2)]);
}

#[test]
fn limits_drop_the_head_or_refuse_the_publish() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(2),
        ..settings()
    });
    let out = rig.publish(1..=4);
    let dead: Vec<_> = out.dead.iter().map(|d| (d.0, number(&d.1))).collect();
    assert_eq!(dead, [(DeadReason::MaxLength, 1), (DeadReason::MaxLength, 2)]);

    let mut rig = Rig::new(QueueSettings {
        max_length_bytes: Some(16),
        overflow: Overflow::RejectPublish,
        ..settings()
    });
    let out = rig.publish(1..=4);
    let Some(Event::AppliedExcept { up_to: 4, refused }) = out.events.last().map(|e| &e.event)
    else {
        panic!("{:?}", out.events);
    };
    assert_eq!((refused[0].from, refused[0].to, refused[0].why), (3, 4, Reject::MaxLength));
    assert_eq!(rig.machine.stats().ready, 2);
}

#[test]
fn heads_expire_by_the_logged_time() {
    let mut rig = Rig::new(QueueSettings {
        message_ttl_ms: Some(500),
        ..settings()
    });
    let first = message(1, None, Some(100));
    rig.one(9, RequestBody::Publish(first));
    rig.publish([2]);
    assert_eq!(rig.machine.next_expiry(), Some(WallTime(1100)));
    let out = rig.command(Command::Time(WallTime(1100)).encode());
    assert_eq!(out.dead.iter().map(|d| number(&d.1)).collect::<Vec<_>>(), [1]);
    let out = rig.command(Command::Time(WallTime(1499)).encode());
    assert!(out.dead.is_empty());
    let out = rig.command(Command::Time(WallTime(1500)).encode());
    assert_eq!(out.dead.iter().map(|d| (d.0, number(&d.1))).collect::<Vec<_>>(), [(DeadReason::Expired, 2)]);
    assert_eq!(rig.machine.next_expiry(), None);
}

#[test]
fn requests_count_once_and_are_answered_again() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    let twice = rig.log[0].clone();
    let out = rig.command(twice);
    assert_eq!(rig.machine.stats().ready, 1);
    assert_eq!(out.events.last().unwrap().event, Event::Applied { up_to: 1 });
    // A gap is told.
    rig.seqs.insert(session(9), 5);
    let out = rig.publish([2]);
    assert!(out.events.iter().any(|e| e.event == Event::Expecting { expected: 2 }));
    assert_eq!(rig.machine.stats().ready, 1);
    // A get is answered again with the same message.
    let get = RequestBody::Get {
        consumer: ConsumerId(4),
        no_ack: false,
    };
    let first = rig.one(1, get.clone());
    assert_eq!(numbers(&first), [1]);
    let again = rig.log.last().unwrap().clone();
    let second = rig.command(again);
    assert_eq!(deliveries(&first), deliveries(&second));
    // Empty stays empty, whatever came since.
    let empty = rig.one(2, get);
    assert_eq!(answers(&empty), [Answer::Empty]);
    let again = rig.log.last().unwrap().clone();
    rig.seqs.insert(session(9), 1);
    rig.publish([3]);
    assert_eq!(answers(&rig.command(again)), [Answer::Empty]);
}

#[test]
fn a_closed_session_does_not_come_back() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    let late = rig.log[0].clone();
    rig.one(9, RequestBody::Close);
    rig.command(late);
    assert_eq!(rig.machine.stats().ready, 1);
}

#[test]
fn suspected_and_gone_nodes_give_back_what_they_hold() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=2);
    rig.consume(1, 1, spec(1, 0));
    rig.consume(2, 1, spec(1, 0));
    let out = rig.command(Command::NodeSuspected(session(1).node).encode());
    assert_eq!(numbers(&out), [0u64; 0]);
    assert_eq!(rig.machine.stats().ready, 1);
    let out = rig.settle(2, 1, Outcome::Accepted, 1);
    assert_eq!((numbers(&out), deliveries(&out)[0].0), (vec![1], 2));
    let out = rig.publish([3]);
    assert_eq!(numbers(&out), [0u64; 0]);
    let out = rig.command(Command::NodeTrusted(session(1).node).encode());
    assert_eq!((numbers(&out), deliveries(&out)[0].0), (vec![3], 1));
    let gone = GoneNode {
        node: session(2).node,
        before: Incarnation(2),
    };
    rig.command(Command::GoneNode(gone).encode());
    assert_eq!(rig.machine.stats().ready, 1);
    assert_eq!(rig.machine.stats().consumers, 1);
    // Its late requests are nothing.
    let before = rig.machine.digest();
    let mut other = Machine::restore("q".into(), rig.machine.snapshot()).unwrap();
    assert_eq!(other.digest(), before);
    let mut batch = Batch::default();
    batch.push(&Request {
        session: session(2),
        seq: 1,
        body: RequestBody::Publish(message(7, None, None)),
    });
    let command = batch.take(WallTime(1)).unwrap();
    other.apply(99, &command, &mut Effects::unwanted());
    assert_eq!(other.stats(), rig.machine.stats());
}

#[test]
fn resume_delivers_again_what_is_out() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=4);
    rig.consume(1, 1, spec(3, 0));
    rig.settle(1, 1, Outcome::Requeue, 2);
    let mut effects = Effects::wanted();
    let resume = Resume {
        session: session(1),
        consumer: ConsumerId(1),
        next: 2,
    };
    rig.machine.resume(&resume, &mut effects);
    let first = effects.list.first().cloned();
    let next = Event::Resumed {
        consumer: ConsumerId(1),
        next: 3,
    };
    let expected = Effect::Event {
        session: session(1),
        event: next,
    };
    assert_eq!(first, Some(expected));
    let out = rig.resolve(effects);
    assert_eq!(numbers(&out), [3, 2]);
}

#[test]
fn delete_and_exclusive_are_refused_where_they_must_be() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    rig.consume(1, 1, spec(1, 0));
    let alone = ConsumerSpec {
        exclusive: true,
        ..spec(1, 0)
    };
    let refused = |out: Output| match answers(&out).remove(0) {
        Answer::Refused { code, text } => (code, text),
        other => panic!("{other:?}"),
    };
    let out = rig.consume(2, 1, alone.clone());
    assert_eq!(refused(out), (403, "queue 'q' in vhost '/' in exclusive use".into()));
    let delete = |if_unused, if_empty| RequestBody::Delete {
        if_unused,
        if_empty,
    };
    let out = rig.one(2, delete(true, false));
    assert_eq!(refused(out), (406, "queue 'q' in vhost '/' in use".into()));
    rig.publish([2]);
    let out = rig.one(2, delete(false, true));
    assert_eq!(refused(out), (406, "queue 'q' in vhost '/' not empty".into()));
    let cancel = RequestBody::Cancel {
        consumer: ConsumerId(1),
    };
    rig.one(1, cancel);
    rig.consume(2, 1, alone);
    let out = rig.consume(1, 2, spec(1, 0));
    assert_eq!(refused(out).0, 403);
    let out = rig.one(3, delete(false, false));
    assert!(out.events.iter().any(|e| matches!(e.event, Event::Cancelled { .. }) && e.session == session(2)));
    let out = rig.publish([3]);
    assert!(matches!(out.events.last().unwrap().event, Event::AppliedExcept { .. }));
    assert_eq!(rig.machine.stats(), crate::QueueStats::default());
    assert!(rig.machine.live_indexes().is_empty());
}

#[test]
fn a_ready_message_costs_at_most_sixteen_bytes() {
    let mut ready = Ready::new();
    let count = 100_000u32;
    for n in 0..count {
        ready.push(&Held {
            index: u64::from(n / 10) + 5,
            offset: n % 10 * 60,
            body: 12,
            high: false,
            expires: 0,
        });
    }
    assert!(ready.memory() <= 16 * count as usize, "{}", ready.memory());
    for n in 0..count {
        let held = ready.pop().unwrap().item;
        assert_eq!((held.index, held.offset), (u64::from(n / 10) + 5, n % 10 * 60));
    }
    assert_eq!((ready.len(), ready.bytes()), (0, 0));
}

#[test]
fn damaged_commands_and_checkpoints_never_panic() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=3);
    rig.consume(1, 1, spec(2, 0));
    let whole = rig.log[0].clone();
    for at in 0..whole.len() {
        rig.command(whole.slice(..at));
        let mut raw = whole.to_vec();
        raw[at] ^= 0x55;
        rig.command(Bytes::from(raw));
    }
    assert!(rig.machine.unreadable() > 0);
    let state = rig.machine.snapshot();
    for at in 0..state.len() {
        assert!(Machine::restore("q".into(), state.slice(..at)).is_err());
        let mut raw = state.to_vec();
        raw[at] ^= 0x55;
        let _ = Machine::restore("q".into(), Bytes::from(raw));
    }
}

/// One random step of the world.
#[derive(Clone, Debug)]
enum Step {
    Publish { by: u64, count: u8, priority: u8 },
    Consume { by: u64, prefetch: u32, priority: i32 },
    Cancel { by: u64 },
    Settle { by: u64, outcome: u8, pick: u8 },
    Get { by: u64 },
    Recover { by: u64 },
    Close { by: u64 },
    Suspect { node: u64 },
    Trust { node: u64 },
    Time { by: u16 },
    Limit { max: Option<u64>, reject: bool, sac: bool },
    Purge,
    Repeat { back: u8 },
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    let by = 0u64..5;
    prop_oneof![
        6 => (by.clone(), 1u8..5, 0u8..8).prop_map(|(by, count, priority)| Step::Publish { by, count, priority }),
        3 => (by.clone(), 0u32..4, -1i32..2).prop_map(|(by, prefetch, priority)| Step::Consume { by, prefetch, priority }),
        1 => by.clone().prop_map(|by| Step::Cancel { by }),
        8 => (by.clone(), 0u8..6, any::<u8>()).prop_map(|(by, outcome, pick)| Step::Settle { by, outcome, pick }),
        1 => by.clone().prop_map(|by| Step::Get { by }),
        1 => by.clone().prop_map(|by| Step::Recover { by }),
        1 => by.prop_map(|by| Step::Close { by }),
        1 => (1u64..4).prop_map(|node| Step::Suspect { node }),
        1 => (1u64..4).prop_map(|node| Step::Trust { node }),
        1 => any::<u16>().prop_map(|by| Step::Time { by }),
        1 => (proptest::option::of(1u64..6), any::<bool>(), any::<bool>()).prop_map(|(max, reject, sac)| Step::Limit { max, reject, sac }),
        1 => Just(Step::Purge),
        2 => any::<u8>().prop_map(|back| Step::Repeat { back }),
        1 => Just(Step::Checkpoint),
    ]
}

/// What the outside knows: every message is in one place.
struct Model {
    rig: Rig,
    twin: Machine,
    next_message: u64,
    next_consumer: u32,
    /// Session numbers as slots; a closed session gets a new one.
    slots: Vec<u64>,
    next_session: u64,
    windows: BTreeMap<(u64, u32), usize>,
    out: BTreeMap<(u64, u32), BTreeMap<u64, u64>>,
    taken: BTreeSet<u64>,
    settled: BTreeSet<u64>,
    dead: BTreeSet<u64>,
    purged: u64,
    high_water: BTreeMap<bool, u64>,
}

impl Model {
    fn new() -> Model {
        Model {
            rig: Rig::new(QueueSettings {
                delivery_limit: Some(3),
                ..settings()
            }),
            twin: Machine::new(
                "queue 'q' in vhost '/'".into(),
                QueueSettings {
                    delivery_limit: Some(3),
                    ..settings()
                },
            ),
            next_message: 1,
            next_consumer: 1,
            slots: (10..15).collect(),
            next_session: 20,
            windows: BTreeMap::new(),
            out: BTreeMap::new(),
            taken: BTreeSet::new(),
            settled: BTreeSet::new(),
            dead: BTreeSet::new(),
            purged: 0,
            high_water: BTreeMap::new(),
        }
    }

    fn run(&mut self, step: Step) -> Result<(), TestCaseError> {
        let out = match step {
            Step::Publish { by, count, priority } => {
                let slot = self.slots[by as usize];
                let first = self.next_message;
                self.next_message += u64::from(count);
                let publish = |n| (slot, RequestBody::Publish(message(n, Some(priority), None)));
                self.rig.batch((first..self.next_message).map(publish).collect())
            }
            Step::Consume { by, prefetch, priority } => {
                let slot = self.slots[by as usize];
                let consumer = self.next_consumer;
                self.next_consumer += 1;
                let window = if prefetch == 0 { 2000 } else { prefetch as usize };
                self.windows.insert((slot, consumer), window);
                self.rig.consume(slot, consumer, spec(prefetch, priority))
            }
            Step::Cancel { by } => match self.consumer_of(by) {
                Some((slot, consumer)) => {
                    let consumer = ConsumerId(consumer);
                    self.rig.one(slot, RequestBody::Cancel { consumer })
                }
                None => return Ok(()),
            },
            Step::Settle { by, outcome, pick } => return self.settle(by, outcome, pick),
            Step::Get { by } => {
                let slot = self.slots[by as usize];
                let consumer = ConsumerId(self.next_consumer);
                self.windows.insert((slot, consumer.0), 1);
                self.next_consumer += 1;
                let no_ack = false;
                self.rig.one(slot, RequestBody::Get { consumer, no_ack })
            }
            Step::Recover { by } => match self.consumer_of(by) {
                Some((slot, consumer)) => {
                    self.out.remove(&(slot, consumer));
                    let consumer = ConsumerId(consumer);
                    self.rig.one(slot, RequestBody::Recover { consumer })
                }
                None => return Ok(()),
            },
            Step::Close { by } => {
                let slot = self.slots[by as usize];
                self.slots[by as usize] = self.next_session;
                self.next_session += 1;
                self.out.retain(|(s, _), _| *s != slot);
                self.rig.one(slot, RequestBody::Close)
            }
            Step::Suspect { node } => {
                self.out.retain(|(s, _), _| session(*s).node != NodeId(node));
                self.rig.command(Command::NodeSuspected(NodeId(node)).encode())
            }
            Step::Trust { node } => self.rig.command(Command::NodeTrusted(NodeId(node)).encode()),
            Step::Time { by } => {
                self.rig.wall += u64::from(by);
                self.rig.command(Command::Time(WallTime(self.rig.wall)).encode())
            }
            Step::Limit { max, reject, sac } => {
                let overflow = if reject { Overflow::RejectPublish } else { Overflow::DropHead };
                self.rig.command(Command::Settings(QueueSettings {
                    max_length: max,
                    overflow,
                    delivery_limit: Some(3),
                    single_active_consumer: sac,
                    ..settings()
                }).encode())
            }
            Step::Purge => {
                let out = self.rig.one(self.slots[0], RequestBody::Purge);
                let Some(Answer::Count { messages, .. }) = answers(&out).pop() else {
                    return Err(TestCaseError::fail("purge is answered"));
                };
                self.purged += messages;
                out
            }
            Step::Repeat { back } => {
                let at = self.rig.log.len().checked_sub(1 + back as usize);
                let Some(command) = at.map(|at| self.rig.log[at].clone()) else { return Ok(()) };
                // Batches only: other commands are not numbered.
                if command.get(1) != Some(&1) {
                    return Ok(());
                }
                let before = self.rig.machine.stats();
                let out = self.rig.command(command.clone());
                let after = self.rig.machine.stats();
                // Consumers of a suspected node may be trusted again by nothing but a fresh request.
                prop_assert_eq!(before, after);
                self.twin.apply(self.rig.log.len() as u64, &command, &mut Effects::unwanted());
                let _ = out;
                return Ok(());
            }
            Step::Checkpoint => {
                let state = self.twin.snapshot();
                self.twin = Machine::restore("queue 'q' in vhost '/'".into(), state).unwrap();
                return Ok(());
            }
        };
        self.observe(out)
    }

    fn consumer_of(&self, by: u64) -> Option<(u64, u32)> {
        let slot = self.slots[by as usize];
        let mut of = self.windows.keys().filter(|(s, _)| *s == slot);
        of.next_back().copied()
    }

    fn settle(&mut self, by: u64, outcome: u8, pick: u8) -> Result<(), TestCaseError> {
        let slot = self.slots[by as usize];
        let held: Vec<(u32, u64, u64)> = self
            .out
            .iter()
            .filter(|((s, _), _)| *s == slot)
            .flat_map(|((_, c), ids)| ids.iter().map(|(id, n)| (*c, *id, *n)))
            .collect();
        if held.is_empty() {
            return Ok(());
        }
        let (consumer, id, n) = held[pick as usize % held.len()];
        self.out.get_mut(&(slot, consumer)).unwrap().remove(&id);
        let outcome = match outcome {
            0 => Outcome::Requeue,
            1 => Outcome::Rejected,
            _ => Outcome::Accepted,
        };
        if outcome == Outcome::Accepted {
            prop_assert!(self.settled.insert(n), "settled twice");
        }
        let out = self.rig.settle(slot, consumer, outcome, id);
        self.observe(out)
    }

    fn observe(&mut self, out: Output) -> Result<(), TestCaseError> {
        for (reason, message) in &out.dead {
            let _ = reason;
            prop_assert!(self.dead.insert(number(message)), "dead twice");
        }
        // First deliveries of a priority are in the order of publishing.
        let before = self.high_water.clone();
        let mut within = BTreeMap::new();
        for (s, consumer, delivery) in deliveries(&out) {
            let n = number(&delivery.message);
            prop_assert!(!self.settled.contains(&n), "settled came back");
            if self.taken.insert(n) {
                prop_assert!(!delivery.redelivered);
                let high = delivery.message.priority().unwrap() >= 5;
                // Within one step consumers' deliveries are told consumer by consumer.
                let last = before.get(&high).copied().unwrap_or(0);
                prop_assert!(last < n, "order between steps");
                let mine = within.insert((s, consumer, high), n).unwrap_or(0);
                prop_assert!(mine < n, "order of a consumer");
                let most = self.high_water.entry(high).or_default();
                *most = n.max(*most);
            } else {
                prop_assert!(delivery.redelivered);
            }
            let elsewhere = self.out.values().any(|ids| ids.values().any(|m| *m == n));
            prop_assert!(!elsewhere, "in two places");
            let ids = self.out.entry((s, consumer)).or_default();
            ids.insert(delivery.id, n);
            let window = self.windows.get(&(s, consumer)).copied().unwrap_or(0);
            prop_assert!(ids.len() <= window, "window");
        }
        self.check_twin()?;
        let stats = self.rig.machine.stats();
        let out: usize = self.out.values().map(BTreeMap::len).sum();
        prop_assert_eq!(stats.unacknowledged, out as u64);
        Ok(())
    }

    fn check_twin(&mut self) -> Result<(), TestCaseError> {
        let index = self.rig.log.len() as u64;
        let command = self.rig.log.last().unwrap().clone();
        self.twin.apply(index, &command, &mut Effects::unwanted());
        prop_assert_eq!(self.twin.digest(), self.rig.machine.digest());
        prop_assert_eq!(self.twin.live_indexes(), self.rig.machine.live_indexes());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost_or_doubled(steps in proptest::collection::vec(step(), 1..80)) {
        let mut model = Model::new();
        for step in steps {
            model.run(step)?;
        }
        // What was taken in is ready, out, settled, dead, or was purged.
        let stats = model.rig.machine.stats();
        let refused = refused_of(&model.rig);
        let accounted = stats.ready + stats.unacknowledged + model.purged + refused
            + model.settled.len() as u64 + model.dead.len() as u64;
        prop_assert_eq!(accounted, model.next_message - 1);
    }
}

/// Publishes that were refused, counted by a replay.
fn refused_of(rig: &Rig) -> u64 {
    let mut machine = Machine::new(
        "queue 'q' in vhost '/'".into(),
        QueueSettings {
            delivery_limit: Some(3),
            ..settings()
        },
    );
    let mut refused: BTreeMap<(SessionId, u64), u64> = BTreeMap::new();
    for (n, command) in rig.log.iter().enumerate() {
        let mut effects = Effects::wanted();
        machine.apply(n as u64 + 1, command, &mut effects);
        for effect in effects.list {
            if let Effect::Event {
                session,
                event: Event::AppliedExcept { refused: list, .. },
            } = effect
            {
                for r in list {
                    refused.insert((session, r.from), r.to - r.from + 1);
                }
            }
        }
    }
    refused.values().sum()
}
