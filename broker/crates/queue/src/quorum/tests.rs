use super::command::{Batch, Command, Configuration};
use super::head::KnownHead;
use super::machine::Machine;
use super::ready::{DEFAULT_LEVEL, HIGHEST_LEVEL, LogMessage, Ready};
use super::{Effect, Effects, QuorumQueue};
use crate::checkout::{Admission, CLOSED_MS};
use crate::model::{BODY, describe_number};
pub(super) use crate::model::{number, spec};
use crate::{
    ConsumerId, ConsumerSpec, DeadIncarnation, DeadLettering, DeadReason, DelayedRetry, Delivery,
    DeliveryProgress, FlowMode, Modification, Overflow, QueueEvent, QueueOutput, QueueReply,
    QueueSettings, QueueType, QuorumFeatures, RejectReason, Request, RequestBody, ResumeConsumer,
    SessionId, SettlementOutcome,
};
use bytes::Bytes;
use env::{Incarnation, NodeId, WallTime};
use message::Message;
use std::collections::BTreeMap;
use wire::DecodeCause;

pub(crate) fn settings() -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: QueueType::Quorum.descriptor().delivery_limit,
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority: None,
        dead_letter: DeadLettering::AtMostOnce,
        quorum: Default::default(),
    }
}

pub(crate) fn session(number: u64) -> SessionId {
    SessionId {
        node: NodeId(number % 3 + 1),
        incarnation: Incarnation(1),
        number,
    }
}

/// The log indexes that the machine still needs, ascending, each once.
pub(super) fn live(machine: &Machine) -> Vec<u64> {
    let indexes = slots::IndexSet::from_runs(machine.live_indexes());
    indexes.iter().collect()
}

pub(super) fn message(n: u64, priority: Option<u8>, ttl_ms: Option<u64>) -> Message {
    crate::model::message(n, priority, ttl_ms, BODY)
}

/// A machine with its log.
pub(crate) struct Rig {
    pub machine: Machine,
    pub log: Vec<Bytes>,
    pub seqs: BTreeMap<SessionId, u64>,
    pub wall: u64,
    known_head: Option<Box<KnownHead>>,
    out: QueueOutput,
}

impl Rig {
    pub(crate) fn new(settings: QueueSettings) -> Rig {
        Rig {
            machine: Machine::new("queue 'q' in vhost '/'".into(), settings),
            log: Vec::new(),
            seqs: BTreeMap::new(),
            wall: 1000,
            known_head: None,
            out: QueueOutput::default(),
        }
    }

    pub(crate) fn command(&mut self, command: Bytes) -> QueueOutput {
        self.log.push(command.clone());
        let mut effects = Effects::collecting();
        self.machine
            .apply(self.log.len() as u64, &command, &mut effects)
            .unwrap();
        self.resolve(effects)
    }

    fn resolve(&mut self, mut effects: Effects) -> QueueOutput {
        let mut out = std::mem::take(&mut self.out);
        let log = &self.log;
        let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
        effects.resolve(&mut read, &mut out);
        effects.take_dead(usize::MAX, usize::MAX, &mut read, &mut out);
        assert_eq!(out.faults, Vec::<String>::new());
        out
    }

    /// The machine continues from a checkpoint on another member.
    pub(crate) fn restore(&mut self) {
        let state = self.machine.snapshot();
        self.machine = Machine::restore("queue 'q' in vhost '/'".into(), state).unwrap();
        self.known_head = None;
    }

    /// The oldest ready message: its number, and whether the log was read.
    pub(crate) fn head(&mut self) -> (Option<u64>, bool) {
        let log = &self.log;
        let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
        let found = (self.machine).head(&mut self.known_head, &mut read, describe_number);
        (found.message.map(|head| head.received), found.has_read)
    }

    pub(crate) fn batch(&mut self, bodies: Vec<(u64, RequestBody)>) -> QueueOutput {
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

    pub(crate) fn enable_strict_priorities(&mut self) -> QueueOutput {
        self.enable(QuorumFeatures {
            strict_priorities: true,
            ..QuorumFeatures::default()
        })
    }

    pub(crate) fn enable_delivery_counts(&mut self) -> QueueOutput {
        self.enable(QuorumFeatures {
            delivery_counts: true,
            ..QuorumFeatures::default()
        })
    }

    pub(crate) fn enable_scheduled_delivery(&mut self) -> QueueOutput {
        self.enable(QuorumFeatures {
            scheduled_delivery: true,
            ..QuorumFeatures::default()
        })
    }

    /// Has the queue deliver the messages of each group in order from now on.
    pub(crate) fn enable_groups(&mut self) -> QueueOutput {
        self.enable(QuorumFeatures {
            message_groups: true,
            ..QuorumFeatures::default()
        })
    }

    /// Lets ready messages expire on time from now on, also behind others.
    pub(crate) fn enable_exact_expiry(&mut self) -> QueueOutput {
        self.enable(QuorumFeatures {
            exact_expiry: true,
            ..QuorumFeatures::default()
        })
    }

    /// Makes the queue recognise messages that are published again, for a time in milliseconds.
    pub(crate) fn deduplicate(&mut self, window_ms: u64) -> QueueOutput {
        let features = QuorumFeatures {
            deduplication: true,
            ..QuorumFeatures::default()
        };
        let mut settings = self.machine.settings().clone();
        settings.quorum.deduplication_window_ms = Some(window_ms);
        self.command(Command::Configure(Configuration { features, settings }).encode())
    }

    /// Sets the delay of returned messages.
    pub(crate) fn delay_returns(&mut self, retry: Option<DelayedRetry>) -> QueueOutput {
        let features = QuorumFeatures {
            delayed_retry: true,
            ..QuorumFeatures::default()
        };
        let mut settings = self.machine.settings().clone();
        settings.quorum.delayed_retry = retry;
        self.command(Command::Configure(Configuration { features, settings }).encode())
    }

    /// Advances the clock.
    pub(crate) fn pass(&mut self, ms: u64) -> QueueOutput {
        self.wall += ms;
        self.command(Command::Time(WallTime(self.wall)).encode())
    }

    fn enable(&mut self, features: QuorumFeatures) -> QueueOutput {
        let settings = self.machine.settings().clone();
        let features = self.machine.features().union(features);
        self.command(Command::Configure(Configuration { features, settings }).encode())
    }

    pub(crate) fn one(&mut self, number: u64, body: RequestBody) -> QueueOutput {
        self.batch(vec![(number, body)])
    }

    pub(crate) fn publish(&mut self, numbers: impl IntoIterator<Item = u64>) -> QueueOutput {
        let publish = |n| (9, RequestBody::Publish(message(n, None, None)));
        self.batch(numbers.into_iter().map(publish).collect())
    }

    pub(crate) fn consume(
        &mut self,
        number: u64,
        consumer: u32,
        spec: ConsumerSpec,
    ) -> QueueOutput {
        let consumer = ConsumerId(consumer);
        self.one(number, RequestBody::Consume { consumer, spec })
    }

    /// The client of a session was sent deliveries up to an id.
    pub(crate) fn received(
        &mut self,
        number: u64,
        consumer: ConsumerId,
        up_to: u64,
    ) -> QueueOutput {
        let received = DeliveryProgress {
            session: session(number),
            consumer,
            up_to,
        };
        let mut effects = Effects::collecting();
        self.machine.open_flow_window(&received, &mut effects);
        self.resolve(effects)
    }

    pub(crate) fn settle(
        &mut self,
        number: u64,
        consumer: u32,
        outcome: SettlementOutcome,
        id: u64,
    ) -> QueueOutput {
        let body = RequestBody::Settle {
            consumer: ConsumerId(consumer),
            outcome,
            ids: vec![(id, id)],
        };
        self.one(number, body)
    }
}

pub(super) fn deliveries(out: &QueueOutput) -> Vec<(u64, u32, Delivery)> {
    let mut all = Vec::new();
    for addressed in &out.events {
        if let QueueEvent::Deliver {
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

fn numbers(out: &QueueOutput) -> Vec<u64> {
    deliveries(out)
        .iter()
        .map(|d| number(&d.2.message))
        .collect()
}

pub(super) fn answers(out: &QueueOutput) -> Vec<QueueReply> {
    let answer = |a: &crate::AddressedEvent| match &a.event {
        QueueEvent::Answer { answer, .. } => Some(answer.clone()),
        _ => None,
    };
    out.events.iter().filter_map(answer).collect()
}

#[test]
fn messages_are_delivered_in_order_within_the_prefetch_and_confirmed() {
    let mut rig = Rig::new(settings());
    let out = rig.publish(1..=5);
    let applied = QueueEvent::Applied { up_to: 5 };
    assert!(out.events.iter().any(|e| e.event == applied));
    let out = rig.consume(1, 1, spec(2, 0));
    assert_eq!(answers(&out), [QueueReply::Consuming]);
    assert_eq!(numbers(&out), [1, 2]);
    let out = rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    assert_eq!(numbers(&out), [3]);
    assert_eq!(rig.machine.stats().ready, 2);
    assert_eq!(rig.machine.stats().unacknowledged, 2);
    assert_eq!(rig.machine.stats().bytes, 32);
    assert_eq!(rig.machine.stats().unacknowledged_bytes, 16);
    assert_eq!(live(&rig.machine), [1]);
}

fn fail(rig: &mut Rig, number: u64, id: u64) -> QueueOutput {
    let modification = Modification {
        delivery_failed: true,
        ..Modification::default()
    };
    rig.one(
        number,
        RequestBody::Modify {
            consumer: ConsumerId(1),
            ids: vec![(id, id)],
            modification: Box::new(modification),
        },
    )
}

/// Failed and all deliveries before the last one.
fn counts(out: &QueueOutput) -> Option<(u32, u32)> {
    let all = deliveries(out);
    let last = &all.last()?.2;
    assert_eq!(last.redelivered, last.acquired > 0);
    Some((last.attempts?, last.acquired))
}

#[test]
fn only_failed_deliveries_count_towards_the_delivery_limit() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: Some(2),
        ..settings()
    });
    rig.enable_delivery_counts();
    rig.publish(1..=1);
    assert_eq!(counts(&rig.consume(1, 1, spec(1, 0))), Some((0, 0)));
    for id in 1..=4 {
        let out = rig.settle(1, 1, SettlementOutcome::Requeue, id);
        assert_eq!(counts(&out), Some((0, id as u32)));
    }
    let out = rig.settle(1, 1, SettlementOutcome::Released, 5);
    assert_eq!(counts(&out), Some((0, 5)));
    assert_eq!(counts(&fail(&mut rig, 1, 6)), Some((1, 6)));
    let out = rig.settle(1, 1, SettlementOutcome::Unseen, 7);
    assert_eq!(counts(&out), Some((1, 7)));
    // Another leader continues with the same counts.
    let label = "queue 'q' in vhost '/'";
    rig.machine = Machine::restore(label.into(), rig.machine.snapshot()).unwrap();
    // A node that cannot be reached is no failure of its consumers.
    let node = session(1).node;
    rig.command(Command::NodeSuspected(node).encode());
    let out = rig.command(Command::NodeTrusted(node).encode());
    assert_eq!(counts(&out), Some((1, 8)));
    let out = rig.one(
        1,
        RequestBody::Recover {
            consumer: ConsumerId(1),
        },
    );
    assert_eq!(counts(&out), Some((1, 9)));
    // The end of a channel or session is one.
    rig.one(
        1,
        RequestBody::CancelAndRequeue {
            consumer: ConsumerId(1),
        },
    );
    assert_eq!(counts(&rig.consume(2, 1, spec(1, 0))), Some((2, 10)));
    let out = rig.settle(2, 1, SettlementOutcome::Requeue, 1);
    assert_eq!(counts(&out), Some((2, 11)));
    let out = rig.one(2, RequestBody::Close);
    let reasons: Vec<DeadReason> = out.dead.iter().map(|dead| dead.0).collect();
    assert_eq!(reasons, [DeadReason::DeliveryLimit]);
}

#[test]
fn queue_that_did_not_count_deliveries_continues_with_its_failures() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    let out = rig.settle(1, 1, SettlementOutcome::Requeue, 2);
    assert_eq!(deliveries(&out)[0].2.attempts, Some(2));
    assert_eq!(deliveries(&out)[0].2.acquired, 0, "it does not count them");
    rig.enable_delivery_counts();
    let out = rig.settle(1, 1, SettlementOutcome::Requeue, 3);
    assert_eq!(counts(&out), Some((2, 3)));
}

#[test]
fn requeued_messages_go_to_the_front_and_die_above_the_delivery_limit() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: Some(2),
        ..settings()
    });
    rig.publish(1..=3);
    rig.consume(1, 1, spec(1, 0));
    for id in 1..=2 {
        let out = rig.settle(1, 1, SettlementOutcome::Requeue, id);
        let all = deliveries(&out);
        assert_eq!(numbers(&out), [1]);
        assert_eq!(
            (all[0].2.attempts, all[0].2.redelivered),
            (Some(id as u32), true)
        );
    }
    let out = rig.settle(1, 1, SettlementOutcome::Requeue, 3);
    let dead: Vec<_> = out.dead.iter().map(|d| (d.0, number(&d.1))).collect();
    assert_eq!(dead, [(DeadReason::DeliveryLimit, 1)]);
    assert_eq!(numbers(&out), [2]);
}

#[test]
fn two_messages_of_high_priority_go_before_each_normal_one() {
    let mut rig = Rig::new(settings());
    let publish = |n, p| (9, RequestBody::Publish(message(n, Some(p), None)));
    // Published order: normal 1 to 3, high 11 to 16, normal 4.
    let mut batch: Vec<_> = (1..=3).map(|n| publish(n, 4)).collect();
    batch.extend((11..=16).map(|n| publish(n, 5)));
    batch.push(publish(4, 0));
    rig.batch(batch);
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&out), [11, 12, 1, 13, 14, 2, 15, 16, 3, 4]);

    let mut rig = Rig::new(settings());
    let batch = vec![
        publish(11, 9),
        publish(12, 9),
        publish(13, 9),
        publish(1, 0),
    ];
    rig.batch(batch);
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&out), [11, 12, 13, 1]);
}

#[test]
fn single_active_consumer_hands_over_once_it_has_settled_everything() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    rig.consume(1, 1, spec(2, 0));
    rig.consume(2, 1, spec(2, 0));
    let out = rig.publish(1..=6);
    assert_eq!(
        deliveries(&out).iter().map(|d| d.0).collect::<Vec<_>>(),
        [1, 1]
    );
    // A consumer of higher priority takes over once the active one has settled everything.
    let out = rig.consume(3, 1, spec(2, 7));
    assert_eq!(numbers(&out), [0u64; 0]);
    assert_eq!(
        numbers(&rig.settle(1, 1, SettlementOutcome::Accepted, 1)),
        [0u64; 0]
    );
    let out = rig.settle(1, 1, SettlementOutcome::Accepted, 2);
    assert_eq!(numbers(&out), [3, 4]);
    assert_eq!(deliveries(&out)[0].0, 3);
    // It ends: the best consumer that is left continues in order.
    let out = rig.one(3, RequestBody::Close);
    assert_eq!(numbers(&out), [3, 4]);
    assert!(deliveries(&out).iter().all(|d| d.0 == 1 && d.2.redelivered));
}

#[test]
fn successor_of_a_single_active_consumer_continues_in_order() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    rig.consume(1, 1, spec(2, 0));
    rig.consume(2, 1, spec(3, 0));
    assert_eq!(numbers(&rig.publish(1..=6)), [1, 2]);
    let leave = RequestBody::CancelAndRequeue {
        consumer: ConsumerId(1),
    };
    // If it only cancelled, it could still settle 1 and 2, and the next consumer would begin with 3.
    let out = rig.one(1, leave);
    assert!(deliveries(&out).iter().all(|d| d.0 == 2));
    assert_eq!(numbers(&out), [1, 2, 3]);
    assert_eq!(rig.machine.stats().consumers, 1);
}

#[test]
fn consumers_are_served_by_priority_then_in_turn() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, spec(2, 0));
    rig.consume(2, 1, spec(2, 0));
    rig.consume(3, 1, spec(1, 5));
    let out = rig.publish(1..=5);
    let mut to: Vec<_> = deliveries(&out)
        .iter()
        .map(|d| (number(&d.2.message), d.0))
        .collect();
    to.sort_unstable();
    assert_eq!(to, [(1, 3), (2, 1), (3, 2), (4, 1), (5, 2)]);
}

#[test]
fn length_limits_drop_the_head_or_refuse_the_publish() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(2),
        ..settings()
    });
    let out = rig.publish(1..=4);
    let dead: Vec<_> = out.dead.iter().map(|d| (d.0, number(&d.1))).collect();
    assert_eq!(
        dead,
        [(DeadReason::MaxLength, 1), (DeadReason::MaxLength, 2)]
    );

    let mut rig = Rig::new(QueueSettings {
        max_length_bytes: Some(15),
        overflow: Overflow::RejectPublish,
        ..settings()
    });
    let out = rig.publish(1..=4);
    let Some(QueueEvent::AppliedExcept { up_to: 4, refused }) = out.events.last().map(|e| &e.event)
    else {
        panic!("{:?}", out.events);
    };
    assert_eq!(
        (refused[0].from, refused[0].to, refused[0].why),
        (3, 4, RejectReason::MaxLength)
    );
    assert_eq!(rig.machine.stats().ready, 2);
}

#[test]
fn head_expires_by_the_logged_time() {
    let mut rig = Rig::new(QueueSettings {
        message_ttl_ms: Some(500),
        ..settings()
    });
    let first = message(1, None, Some(100));
    rig.one(9, RequestBody::Publish(first));
    rig.publish([2]);
    assert_eq!(rig.machine.next_timer(), Some(WallTime(1100)));
    let out = rig.command(Command::Time(WallTime(1100)).encode());
    assert_eq!(
        out.dead.iter().map(|d| number(&d.1)).collect::<Vec<_>>(),
        [1]
    );
    let out = rig.command(Command::Time(WallTime(1499)).encode());
    assert!(out.dead.is_empty());
    let out = rig.command(Command::Time(WallTime(1500)).encode());
    assert_eq!(
        out.dead
            .iter()
            .map(|d| (d.0, number(&d.1)))
            .collect::<Vec<_>>(),
        [(DeadReason::Expired, 2)]
    );
    assert_eq!(rig.machine.next_timer(), None);
}

#[test]
fn duplicate_request_is_applied_once_and_answered_again() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    let twice = rig.log[0].clone();
    let out = rig.command(twice);
    assert_eq!(rig.machine.stats().ready, 1);
    assert_eq!(
        out.events.last().unwrap().event,
        QueueEvent::Applied { up_to: 1 }
    );
    // A gap is reported.
    rig.seqs.insert(session(9), 5);
    let out = rig.publish([2]);
    assert!(
        out.events
            .iter()
            .any(|e| e.event == QueueEvent::Expecting { expected: 2 })
    );
    assert_eq!(rig.machine.stats().ready, 1);
    // A repeated get returns the same message.
    let get = RequestBody::Get {
        consumer: ConsumerId(4),
        no_ack: false,
    };
    let first = rig.one(1, get.clone());
    assert_eq!(numbers(&first), [1]);
    let again = rig.log.last().unwrap().clone();
    let second = rig.command(again);
    assert_eq!(deliveries(&first), deliveries(&second));
    // The answer stays get-empty, even if messages were published since.
    let empty = rig.one(2, get);
    assert_eq!(answers(&empty), [QueueReply::Empty]);
    let again = rig.log.last().unwrap().clone();
    rig.seqs.insert(session(9), 1);
    rig.publish([3]);
    assert_eq!(answers(&rig.command(again)), [QueueReply::Empty]);
}

#[test]
fn closed_session_is_not_reopened() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    let late = rig.log[0].clone();
    rig.one(9, RequestBody::Close);
    rig.command(late);
    assert_eq!(rig.machine.stats().ready, 1);
}

#[test]
fn leap_of_the_wall_clock_does_not_reopen_a_closed_session() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    let late = rig.log[0].clone();
    rig.one(9, RequestBody::Close);
    rig.wall += 10 * CLOSED_MS;
    rig.one(8, RequestBody::Close);
    rig.command(late.clone());
    assert_eq!(rig.machine.stats().ready, 1);
    // Time that passes in small steps counts.
    for number in 10..30 {
        rig.wall += CLOSED_MS / 10;
        rig.one(number, RequestBody::Close);
    }
    assert_eq!(rig.machine.check_request(session(9), 1), Admission::Apply);
}

#[test]
fn messages_of_suspected_and_ended_nodes_are_requeued() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=2);
    rig.consume(1, 1, spec(1, 0));
    rig.consume(2, 1, spec(1, 0));
    let out = rig.command(Command::NodeSuspected(session(1).node).encode());
    assert_eq!(numbers(&out), [0u64; 0]);
    assert_eq!(rig.machine.stats().ready, 1);
    let out = rig.settle(2, 1, SettlementOutcome::Accepted, 1);
    assert_eq!((numbers(&out), deliveries(&out)[0].0), (vec![1], 2));
    let out = rig.publish([3]);
    assert_eq!(numbers(&out), [0u64; 0]);
    let out = rig.command(Command::NodeTrusted(session(1).node).encode());
    assert_eq!((numbers(&out), deliveries(&out)[0].0), (vec![3], 1));
    let gone = DeadIncarnation {
        node: session(2).node,
        before: Incarnation(2),
    };
    rig.command(Command::GoneNode(gone).encode());
    assert_eq!(rig.machine.stats().ready, 1);
    assert_eq!(rig.machine.stats().consumers, 1);
    // Its late requests are ignored.
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
    other
        .apply(99, &command, &mut Effects::discarding())
        .unwrap();
    assert_eq!(other.stats(), rig.machine.stats());
}

#[test]
fn new_leader_suspects_nodes_after_applying_their_sessions() {
    let mut rig = Rig::new(settings());
    // A session of node 2.
    rig.consume(1, 1, spec(3, 0));
    let mut queue = QuorumQueue::new("queue 'q' in vhost '/'".into(), settings());
    let mut out = QueueOutput::default();
    queue.leadership(2, Some(NodeId(1)), true, &mut out);
    queue.peer_down(NodeId(2));
    queue.peer_down(NodeId(3));
    assert_eq!(queue.take_proposal(), None);
    queue.applied(1, 1, &rig.log[0]).unwrap();
    assert_eq!(
        queue.take_proposal(),
        None,
        "there may be more of its predecessors"
    );
    queue
        .applied(2, 2, &Command::Time(WallTime(1000)).encode())
        .unwrap();
    let suspects = Command::NodeSuspected(NodeId(2)).encode();
    assert_eq!(queue.take_proposal(), Some(suspects.clone()));
    assert_eq!(queue.take_proposal(), None, "node 3 has no sessions here");
    queue.applied(3, 2, &suspects).unwrap();
    queue.peer_up(NodeId(2));
    assert_eq!(
        queue.take_proposal(),
        Some(Command::NodeTrusted(NodeId(2)).encode())
    );
}

#[test]
fn resume_repeats_unsettled_deliveries() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=4);
    rig.consume(1, 1, spec(3, 0));
    rig.settle(1, 1, SettlementOutcome::Requeue, 2);
    let mut effects = Effects::collecting();
    let resume = ResumeConsumer {
        session: session(1),
        consumer: ConsumerId(1),
        next: 2,
    };
    rig.machine.resume(&resume, &mut effects);
    let first = effects.list.first().cloned();
    let next = QueueEvent::Resumed {
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
fn session_that_asks_for_deliveries_again_is_told_its_activity() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    for by in 1..=2 {
        let with_credit = ConsumerSpec {
            flow_mode: FlowMode::Credit,
            ..spec(1, 0)
        };
        rig.consume(by, 1, with_credit);
    }
    for (by, is_active) in [(1, true), (2, false)] {
        let mut effects = Effects::collecting();
        let resume = ResumeConsumer {
            session: session(by),
            consumer: ConsumerId(1),
            next: 1,
        };
        rig.machine.resume(&resume, &mut effects);
        let activity = Effect::Event {
            session: session(by),
            event: QueueEvent::Activity {
                consumer: ConsumerId(1),
                is_active,
            },
        };
        assert_eq!(effects.list.last(), Some(&activity));
    }
}

#[test]
fn delete_and_exclusive_consume_are_refused_while_in_use() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    rig.consume(1, 1, spec(1, 0));
    let alone = ConsumerSpec {
        exclusive: true,
        ..spec(1, 0)
    };
    let refused = |out: QueueOutput| match answers(&out).remove(0) {
        QueueReply::Refused { code, text } => (code, text),
        other => panic!("{other:?}"),
    };
    let out = rig.consume(2, 1, alone.clone());
    assert_eq!(
        refused(out),
        (403, "queue 'q' in vhost '/' in exclusive use".into())
    );
    let delete = |if_unused, if_empty| RequestBody::Delete {
        if_unused,
        if_empty,
    };
    let out = rig.one(2, delete(true, false));
    assert_eq!(refused(out), (406, "queue 'q' in vhost '/' in use".into()));
    rig.publish([2]);
    let out = rig.one(2, delete(false, true));
    assert_eq!(
        refused(out),
        (406, "queue 'q' in vhost '/' not empty".into())
    );
    let cancel = RequestBody::Cancel {
        consumer: ConsumerId(1),
    };
    rig.one(1, cancel);
    rig.consume(2, 1, alone);
    let out = rig.consume(1, 2, spec(1, 0));
    assert_eq!(refused(out).0, 403);
    let out = rig.one(3, delete(false, false));
    assert!(
        out.events
            .iter()
            .any(|e| matches!(e.event, QueueEvent::Cancelled { .. }) && e.session == session(2))
    );
    let out = rig.publish([3]);
    assert!(matches!(
        out.events.last().unwrap().event,
        QueueEvent::AppliedExcept { .. }
    ));
    assert_eq!(rig.machine.stats(), crate::QueueStats::default());
    assert!(live(&rig.machine).is_empty());
}

#[test]
fn ready_message_takes_at_most_nine_bytes() {
    let mut ready = Ready::new();
    let count = 100_000u32;
    for n in 0..count {
        ready.push(&LogMessage {
            index: u64::from(n / 10) + 5,
            offset: n % 10 * 60,
            body: 12,
            level: DEFAULT_LEVEL,
            group: None,
            expires: 0,
        });
    }
    assert!(ready.memory() <= 9 * count as usize, "{}", ready.memory());
    for n in 0..count {
        let held = ready.pop().unwrap().item;
        assert_eq!(
            (held.index, held.offset),
            (u64::from(n / 10) + 5, n % 10 * 60)
        );
    }
    assert_eq!((ready.len(), ready.bytes()), (0, 0));
}

#[test]
fn ready_message_takes_at_most_sixteen_bytes_with_all_priorities() {
    let mut ready = Ready::new();
    ready.serve_strictly();
    let count = 200_000u32;
    let level = |n: u32| (n * 7 % 32) as u8;
    for n in 0..count {
        ready.push(&LogMessage {
            index: u64::from(n / 10) + 5,
            offset: n % 10 * 60,
            body: 12,
            level: level(n),
            group: None,
            expires: 0,
        });
    }
    assert!(ready.memory() <= 16 * count as usize, "{}", ready.memory());
    let counts = ready.level_counts();
    let of_level = u64::from(count / 32);
    assert_eq!(counts, (0..32).map(|p| (p, of_level)).collect::<Vec<_>>());
    let mut last = (HIGHEST_LEVEL, (0, 0));
    while let Some(dequeued) = ready.pop() {
        let held = dequeued.item;
        let at = (held.index, held.offset);
        assert!(held.level < last.0 || (held.level == last.0 && last.1 < at));
        last = (held.level, at);
    }
    assert_eq!((ready.len(), ready.level_counts()), (0, vec![]));
}

/// Damages a snapshot and commands that follow it, and applies them to a new machine.
fn restored(rig: &Rig) -> Machine {
    Machine::restore("queue 'q' in vhost '/'".into(), rig.machine.snapshot()).unwrap()
}

#[test]
fn damaged_commands_and_snapshots_never_panic() {
    for (strict, exact) in [(false, false), (true, false), (true, true)] {
        let mut rig = Rig::new(settings());
        if strict {
            rig.enable_strict_priorities();
        }
        if exact {
            rig.enable_exact_expiry();
            let early = message(4, None, Some(60_000));
            rig.publish([5]);
            rig.one(9, RequestBody::Publish(early));
        }
        damage(rig);
    }
}

fn damage(mut rig: Rig) {
    rig.publish(1..=3);
    rig.consume(1, 1, spec(2, 0));
    let whole = rig.log[rig.log.len() - 2].clone();
    let mut effects = Effects::collecting();
    for at in 0..whole.len() {
        let refused = restored(&rig).apply(9, &whole.slice(..at), &mut effects);
        // A batch that is cut off at the end of a run is valid.
        assert_eq!(refused.is_err(), at != 10, "{at}");
        let mut raw = whole.to_vec();
        raw[at] ^= 0x55;
        let _ = restored(&rig).apply(9, &Bytes::from(raw), &mut effects);
    }
    let state = rig.machine.snapshot();
    for at in 0..state.len() {
        assert!(Machine::restore("q".into(), state.slice(..at)).is_err());
        let mut raw = state.to_vec();
        raw[at] ^= 0x55;
        let _ = Machine::restore("q".into(), Bytes::from(raw));
    }
    let longer = Bytes::from([&state[..], &[0]].concat());
    let restored = Machine::restore("q".into(), longer).map(|_| ());
    assert_eq!(restored.map_err(|e| e.0.cause), Err(DecodeCause::Trailing));
}

/// A rolling upgrade in the wrong order: a leader of a newer version writes commands that this version cannot
/// decode.
#[test]
fn command_of_a_newer_version_is_never_skipped() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=3);
    let known = rig.log[0].clone();
    let version = known[0] + 1;
    let newer = [&[version], &known[1..]].concat();
    let kind = [&[known[0], 200], &known[2..]].concat();
    // A purge with a field that this version does not know.
    let request = [&Command::Time(WallTime(1)).encode()[..], &[1]].concat();
    for (command, cause) in [
        (newer, DecodeCause::Version(version)),
        (kind, DecodeCause::Tag("a command of a quorum queue", 200)),
        (request, DecodeCause::Trailing),
    ] {
        let mut queue = QuorumQueue::new("q".into(), settings());
        let mut out = QueueOutput::default();
        queue.leadership(1, Some(NodeId(1)), true, &mut out);
        queue.applied(1, 1, &known).unwrap();
        let unknown = queue.applied(2, 1, &Bytes::from(command)).unwrap_err();
        assert_eq!((unknown.index, unknown.error.cause), (2, cause));
        // No effect of the command is reported, and it does not count as applied.
        out = QueueOutput::default();
        queue.resolve(&mut |_| Some(known.clone()).into(), &mut out);
        assert!(out.events.is_empty(), "{:?}", out.events);
        assert_eq!(queue.checkpoint().index, 1);
    }
}

#[test]
fn large_bodies_and_wide_gaps_cost_their_neighbours_little_memory() {
    let mut ready = Ready::new();
    let bodies = [12, u32::from(u16::MAX), 1 << 16, 0, u32::MAX];
    let held = |n: u32| LogMessage {
        // Gaps of different sizes, some larger than a compact reference allows.
        index: u64::from(n) + u64::from(n / 700) * 70_000 + u64::from(n / 9000) * (1 << 33),
        offset: n % 10 * 60,
        body: bodies[n as usize * 7 / 100_000 % bodies.len()],
        level: DEFAULT_LEVEL,
        group: None,
        expires: u64::from(n % 1000 == 999) * 5,
    };
    let count = 100_000;
    (0..count).for_each(|n| ready.push(&held(n)));
    assert!(ready.memory() <= 24 * count as usize, "{}", ready.memory());
    assert!(ready.fresh().eq((0..count).map(held)));
    for n in 0..count {
        assert_eq!(ready.pop().unwrap().item, held(n));
    }
    assert_eq!((ready.len(), ready.bytes()), (0, 0));
}
