//! A leader and its log, one entry at a time.

use super::command::{Command, Configuration};
use super::machine::DUE_PER_COMMAND;
use super::tests::{message, number, session, settings, spec};
use super::{LogRead, QuorumQueue};
use crate::{
    ConsumerId, Queue, QueueEvent, QueueMessage, QueueOutput, QueueReply, QueueSettings,
    QuorumFeatures, Request, RequestBody, Timestamps, schedule,
};
use bytes::Bytes;
use env::{NodeId, Time, WallTime};

const TERM: u64 = 1;
/// The node of [`session`] 1.
const OTHER: NodeId = NodeId(2);

struct Leader {
    queue: QuorumQueue,
    applied: u64,
    out: QueueOutput,
}

impl Leader {
    fn new() -> Leader {
        let mut leader = Leader {
            queue: QuorumQueue::new("queue 'q' in vhost '/'".into(), settings()),
            applied: 0,
            out: QueueOutput::default(),
        };
        (leader.queue).leadership(TERM, Some(NodeId(1)), true, &mut leader.out);
        leader
    }

    /// Proposes a consumer of a session on [`OTHER`].
    fn consume(&mut self) -> Option<Bytes> {
        self.consume_of(1)
    }

    fn consume_of(&mut self, number: u64) -> Option<Bytes> {
        let request = Request {
            session: session(number),
            seq: 1,
            body: RequestBody::Consume {
                consumer: ConsumerId(1),
                spec: spec(10, 0),
            },
        };
        let item = QueueMessage::Request(request);
        self.queue.step(Timestamps::default(), item, &mut self.out);
        self.queue.take_proposal()
    }

    fn step(&mut self, seq: u64, body: RequestBody) {
        let request = Request {
            session: session(1),
            seq,
            body,
        };
        let item = QueueMessage::Request(request);
        self.queue.step(Timestamps::default(), item, &mut self.out);
    }

    /// The events for the session of [`OTHER`] since the last call.
    fn events(&mut self) -> Vec<QueueEvent> {
        self.queue.resolve(&mut |_| None.into(), &mut self.out);
        let events = self.out.events.drain(..);
        events.map(|e| e.event).collect()
    }

    fn apply(&mut self, command: Option<Bytes>) {
        let command = command.expect("something was proposed");
        self.applied += 1;
        self.queue.applied(self.applied, TERM, &command).unwrap();
    }

    /// Applies proposals until there are none.
    fn settle(&mut self) {
        while let Some(command) = self.queue.take_proposal() {
            self.apply(Some(command));
        }
    }
}

#[test]
fn node_that_returns_before_its_suspicion_is_applied_is_trusted_again() {
    let mut leader = Leader::new();
    let consume = leader.consume();
    leader.apply(consume);
    leader.queue.peer_down(OTHER);
    let suspicion = leader.queue.take_proposal();
    leader.queue.peer_up(OTHER);
    leader.apply(suspicion);
    leader.settle();
    assert!(!leader.queue.machine().is_suspended(OTHER));
}

/// Settings and features are in one command. A leader that does not know of a feature which its queue has keeps it.
#[test]
fn leader_logs_features_of_the_cluster_once() {
    let mut leader = Leader::new();
    let configure = |leader: &mut Leader, max_length| {
        let settings = QueueSettings {
            max_length,
            ..settings()
        };
        (leader.queue).configure(Timestamps::default(), &settings, &mut leader.out);
        leader.queue.take_proposal()
    };
    let strict = QuorumFeatures {
        strict_priorities: true,
        ..QuorumFeatures::default()
    };
    let settings_of = |max_length| QueueSettings {
        max_length,
        ..settings()
    };
    assert_eq!(configure(&mut leader, None), None);
    let plain = Command::Settings(settings_of(Some(1))).encode();
    assert_eq!(configure(&mut leader, Some(1)), Some(plain.clone()));
    leader.apply(Some(plain));
    leader.queue.enable_features(strict);
    let command = |max_length| {
        let settings = settings_of(max_length);
        let features = strict;
        Command::Configure(Configuration { features, settings }).encode()
    };
    assert_eq!(configure(&mut leader, Some(1)), Some(command(Some(1))));
    leader.apply(Some(command(Some(1))));
    leader.queue.enable_features(strict);
    assert_eq!(configure(&mut leader, Some(1)), None);
    // Another member that has not heard of the feature leads.
    let mut other = Leader::new();
    other.apply(Some(command(Some(1))));
    assert_eq!(configure(&mut other, Some(1)), None);
    assert_eq!(configure(&mut other, Some(2)), Some(command(Some(2))));
}

/// More messages expire together than one command drops: the leader goes on until none is left.
#[test]
fn leader_drops_all_expired_messages_in_several_commands() {
    let mut leader = Leader::new();
    leader.queue.enable_features(QuorumFeatures {
        exact_expiry: true,
        ..QuorumFeatures::default()
    });
    let at = |ms| Timestamps {
        now: Time(ms * 1_000_000),
        wall: WallTime(ms),
    };
    (leader.queue).configure(at(0), &settings(), &mut leader.out);
    leader.settle();
    leader.step(1, RequestBody::Publish(message(1, None, None)));
    let count = u64::from(DUE_PER_COMMAND) + 10;
    for seq in 2..count + 2 {
        leader.step(seq, RequestBody::Publish(message(seq, None, Some(100))));
        leader.settle();
    }
    assert_eq!(leader.queue.stats().ready, count + 1);
    assert_eq!(leader.queue.wake_at(), Some(at(100).now));
    let mut ready = Vec::new();
    while leader.queue.wake_at().is_some() {
        leader.queue.tick(at(100), &mut leader.out);
        assert!(leader.queue.has_proposals(), "time is logged");
        leader.settle();
        ready.push(leader.queue.stats().ready);
    }
    assert_eq!(ready, [11, 1]);
}

/// More delays end together than one command ends: the leader goes on until none is left.
#[test]
fn leader_ends_all_delays_in_several_commands() {
    let mut leader = Leader::new();
    leader.queue.enable_features(QuorumFeatures {
        exact_expiry: true,
        scheduled_delivery: true,
        ..QuorumFeatures::default()
    });
    let at = |ms| Timestamps {
        now: Time(ms * 1_000_000),
        wall: WallTime(ms),
    };
    (leader.queue).configure(at(0), &settings(), &mut leader.out);
    leader.settle();
    let count = u64::from(DUE_PER_COMMAND) + 10;
    for seq in 1..count + 1 {
        let delayed = schedule(&message(seq, None, None), 100).expect("a small message");
        leader.step(seq, RequestBody::Publish(delayed));
        leader.settle();
    }
    assert_eq!(
        (leader.queue.stats().ready, leader.queue.stats().delayed),
        (0, count)
    );
    assert_eq!(leader.queue.wake_at(), Some(at(100).now));
    let mut ready = Vec::new();
    while leader.queue.wake_at().is_some() {
        leader.queue.tick(at(100), &mut leader.out);
        assert!(leader.queue.has_proposals(), "time is logged");
        leader.settle();
        ready.push(leader.queue.stats().ready);
    }
    assert_eq!(ready, [u64::from(DUE_PER_COMMAND), count]);
}

#[test]
fn node_that_fails_again_before_it_is_trusted_is_suspected_again() {
    let mut leader = Leader::new();
    let consume = leader.consume();
    leader.apply(consume);
    leader.queue.peer_down(OTHER);
    leader.settle();
    leader.queue.peer_up(OTHER);
    let trust = leader.queue.take_proposal();
    leader.queue.peer_down(OTHER);
    leader.apply(trust);
    leader.settle();
    assert!(leader.queue.machine().is_suspended(OTHER));
}

#[test]
fn node_with_a_proposed_first_request_is_suspected() {
    let mut leader = Leader::new();
    let elsewhere = leader.consume_of(2);
    leader.apply(elsewhere);
    let consume = leader.consume();
    leader.queue.peer_down(OTHER);
    leader.apply(consume);
    leader.settle();
    assert!(leader.queue.machine().is_suspended(OTHER));
}

/// A request that was on its way when its node died is applied after the suspicion, which it ends. What it took would
/// stay with the dead node.
#[test]
fn node_whose_last_request_is_applied_after_its_suspicion_is_suspected_again() {
    let mut leader = Leader::new();
    let consume = leader.consume();
    leader.apply(consume);
    leader.queue.peer_down(OTHER);
    leader.step(2, RequestBody::Publish(message(1, None, None)));
    leader.settle();
    let mut out = QueueOutput::default();
    leader.queue.flush(Timestamps::default(), &mut out);
    leader.settle();
    assert!(leader.queue.machine().is_suspended(OTHER));
    leader.queue.flush(Timestamps::default(), &mut out);
    assert_eq!(leader.queue.take_proposal(), None);
    leader.queue.peer_up(OTHER);
    leader.settle();
    leader.queue.flush(Timestamps::default(), &mut out);
    assert_eq!(leader.queue.take_proposal(), None);
    assert!(!leader.queue.machine().is_suspended(OTHER));
}

/// The log of a leader that delivered messages 1 to 3 to a consumer of a session on [`OTHER`], and a new leader
/// that has applied it.
fn taken_over() -> (Leader, Vec<Bytes>) {
    let mut leader = Leader::new();
    let mut log = vec![leader.consume().expect("a proposal")];
    for n in 1..=3 {
        leader.step(1 + n, RequestBody::Publish(message(n, None, None)));
        log.extend(leader.queue.take_proposal());
    }
    let mut queue = QuorumQueue::new("queue 'q' in vhost '/'".into(), settings());
    for (index, command) in (1..).zip(&log) {
        queue.applied(index, TERM, command).unwrap();
    }
    leader.queue = queue;
    leader.applied = log.len() as u64;
    (leader, log)
}

/// A consumer that moves to another node when its node, the leader's, is killed must not get newer messages
/// before those that were on their way to it.
#[test]
fn new_leader_requeues_the_messages_of_a_dead_node_before_it_serves_others() {
    let (mut leader, mut log) = taken_over();
    let mut out = QueueOutput::default();
    let term = TERM + 1;
    (leader.queue).leadership(term, Some(NodeId(1)), true, &mut out);
    leader.queue.peer_down(OTHER);
    let publish = |seq, n| Request {
        session: session(2),
        seq,
        body: RequestBody::Publish(message(n, None, None)),
    };
    let consume = Request {
        session: session(2),
        seq: 2,
        body: RequestBody::Consume {
            consumer: ConsumerId(1),
            spec: spec(10, 0),
        },
    };
    for request in [publish(1, 4), consume] {
        let item = QueueMessage::Request(request);
        (leader.queue).step(Timestamps::default(), item, &mut out);
    }
    while let Some(command) = leader.queue.take_proposal() {
        leader.applied += 1;
        leader
            .queue
            .applied(leader.applied, term, &command)
            .unwrap();
        log.push(command);
    }
    let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
    leader.queue.resolve(&mut read, &mut out);
    let events = out.events.drain(..);
    let deliveries = events.filter_map(|e| match e.event {
        QueueEvent::Deliver { deliveries, .. } if e.session == session(2) => Some(deliveries),
        _ => None,
    });
    let delivered = deliveries.flatten();
    let delivered: Vec<_> = delivered
        .map(|d| (number(&d.message), d.redelivered))
        .collect();
    let expected = [(1, true), (2, true), (3, true), (4, false)];
    assert_eq!(delivered, expected);
}

/// A command of an earlier leader about a node is not the one that this leader waits for.
#[test]
fn suspicion_by_an_earlier_leader_does_not_stand_for_the_pending_one() {
    let (mut leader, _) = taken_over();
    let mut out = QueueOutput::default();
    let term = TERM + 1;
    (leader.queue).leadership(term, Some(NodeId(1)), true, &mut out);
    leader.queue.peer_down(OTHER);
    let suspicion = leader.queue.take_proposal();
    assert_eq!(suspicion, Some(Command::NodeSuspected(OTHER).encode()));
    let trusted = Command::NodeTrusted(OTHER).encode();
    leader.applied += 1;
    leader
        .queue
        .applied(leader.applied, TERM, &trusted)
        .unwrap();
    assert_eq!(leader.queue.take_proposal(), None);
    // It returns, and the pending command must not have the last word.
    leader.queue.peer_up(OTHER);
    let mut next = suspicion;
    while let Some(command) = next {
        leader.applied += 1;
        leader
            .queue
            .applied(leader.applied, term, &command)
            .unwrap();
        next = leader.queue.take_proposal();
    }
    assert!(!leader.queue.machine().is_suspended(OTHER));
}

#[test]
fn close_of_a_forgotten_session_is_answered() {
    let mut leader = Leader::new();
    // It was closed long ago, and a copy of its request still needs an answer.
    leader.step(7, RequestBody::Stat);
    leader.step(8, RequestBody::Close);
    leader.settle();
    let events = leader.events();
    let unknown = |e: &QueueEvent| {
        matches!(
            e,
            QueueEvent::Answer {
                seq: 8,
                answer: QueueReply::Refused { code: 404, .. }
            }
        )
    };
    assert!(events.iter().any(unknown), "{events:?}");
    assert!(
        !events
            .iter()
            .any(|e| matches!(e, QueueEvent::Applied { .. }))
    );
}

#[test]
fn close_of_an_unapplied_session_is_not_answered() {
    let mut leader = Leader::new();
    let consume = leader.consume();
    // A new leader that does not know the session yet.
    let mut out = QueueOutput::default();
    leader.queue.leadership(TERM + 1, None, false, &mut out);
    (leader.queue).leadership(TERM + 2, Some(NodeId(1)), true, &mut out);
    leader.step(3, RequestBody::Close);
    let close = leader.queue.take_proposal();
    leader.apply(consume);
    leader.apply(close);
    let events = leader.events();
    assert!(
        events.contains(&QueueEvent::Expecting { expected: 2 }),
        "{events:?}"
    );
    assert!(
        !events
            .iter()
            .any(|e| matches!(e, QueueEvent::Answer { seq: 3, .. }))
    );
}

/// The numbers of the delivered messages.
fn delivered(out: &mut QueueOutput) -> Vec<u64> {
    let events = out.events.drain(..);
    let messages = events.filter_map(|e| match e.event {
        QueueEvent::Deliver { deliveries, .. } => {
            Some(deliveries.into_iter().map(|d| number(&d.message)))
        }
        _ => None,
    });
    messages.flatten().collect()
}

/// Snapshots keep the entries of messages that wait to be read. Without acknowledgement too, they are unsettled
/// until the session has received them.
#[test]
fn deliveries_wait_for_file_descriptors_in_order() {
    let mut leader = Leader::new();
    let mut log = Vec::new();
    for n in 1..=3 {
        leader.step(n, RequestBody::Publish(message(n, None, None)));
    }
    for n in 1..=3 {
        let get = RequestBody::Get {
            consumer: ConsumerId(n),
            no_ack: true,
        };
        leader.step(3 + u64::from(n), get);
        while let Some(command) = leader.queue.take_proposal() {
            log.push(command.clone());
            leader.apply(Some(command));
        }
    }
    let mut out = QueueOutput::default();
    leader.queue.resolve(&mut |_| LogRead::Shortage, &mut out);
    assert!(out.faults.is_empty());
    assert_eq!(delivered(&mut out), [0; 0]);
    assert_eq!(leader.queue.checkpoint().live.ranges(), [(1, 1)]);
    assert!(leader.queue.wake_at().is_some());
    let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
    leader.queue.resolve(&mut read, &mut out);
    assert_eq!(delivered(&mut out), [1, 2, 3]);
}

#[test]
fn get_is_refused_at_once_during_a_shortage() {
    let mut leader = Leader::new();
    let get = |n| RequestBody::Get {
        consumer: ConsumerId(n),
        no_ack: false,
    };
    leader.step(1, RequestBody::Publish(message(1, None, None)));
    leader.step(2, get(1));
    leader.settle();
    let mut out = QueueOutput::default();
    leader.queue.resolve(&mut |_| LogRead::Shortage, &mut out);
    leader.out.events.clear();
    leader.step(3, get(2));
    let refused = leader.out.events.drain(..).map(|e| e.event);
    let refused: Vec<QueueEvent> = refused.collect();
    assert!(
        matches!(
            &refused[..],
            [QueueEvent::Answer {
                seq: 3,
                answer: QueueReply::Refused { code: 406, .. }
            }]
        ),
        "{refused:?}"
    );
    // Its request number is used up all the same.
    leader.step(4, RequestBody::Stat);
    leader.settle();
    assert_eq!(leader.queue.machine().last_applied(session(1)), 4);
    assert_eq!(leader.queue.stats().unacknowledged, 1);
}

/// The clock of a new leader's node is an hour behind that of the leader before. Delays go on.
#[test]
fn delays_do_not_wait_until_the_clock_of_a_new_leader_has_caught_up() {
    const HOUR: u64 = 3_600_000;
    let at = |seconds: u64| Timestamps {
        now: Time(seconds * 1_000_000_000),
        wall: WallTime(seconds * 1000),
    };
    let mut leader = Leader::new();
    let configuration = Configuration {
        features: QuorumFeatures {
            scheduled_delivery: true,
            deduplication: false,
            ..QuorumFeatures::default()
        },
        settings: settings(),
    };
    leader.apply(Some(Command::Configure(configuration).encode()));
    let delayed = schedule(&message(1, None, None), 20_000).expect("a small message");
    leader.step(1, RequestBody::Publish(delayed));
    leader.queue.flush(Timestamps::default(), &mut leader.out);
    leader.settle();
    // Of the leader before.
    leader.apply(Some(Command::Time(WallTime(HOUR)).encode()));
    let delayed = schedule(&message(2, None, None), 20_000).expect("a small message");
    leader.step(2, RequestBody::Publish(delayed));
    leader.queue.flush(at(0), &mut leader.out);
    leader.settle();
    let me = Some(NodeId(1));
    leader
        .queue
        .leadership(TERM + 1, None, false, &mut leader.out);
    leader.queue.leadership(TERM + 2, me, true, &mut leader.out);
    leader.queue.tick(at(1), &mut leader.out);
    let time = Command::Time(WallTime(1000)).encode();
    leader.applied += 1;
    leader
        .queue
        .applied(leader.applied, TERM + 2, &time)
        .unwrap();
    assert_eq!(leader.queue.machine().stats().delayed, 1);
    let due = leader.queue.wake_at().expect("a delayed message");
    let wait = due.since(at(1).now);
    assert!((19..=21).contains(&wait.as_secs()), "{wait:?}");
    leader.queue.tick(at(22), &mut leader.out);
    let command = leader.queue.take_proposal().expect("the time");
    leader.applied += 1;
    leader
        .queue
        .applied(leader.applied, TERM + 2, &command)
        .unwrap();
    let stats = leader.queue.machine().stats();
    assert_eq!((stats.delayed, stats.ready), (0, 2));
}
