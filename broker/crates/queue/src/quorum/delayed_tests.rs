//! Delayed retry: when returned messages are ready again, and how all other operations treat delayed messages.

use super::command::{Command, Configuration};
use super::delayed::{Delayed, DelayedMessage};
use super::leader::QuorumQueue;
use super::machine::Machine;
use super::ready::{DEFAULT_LEVEL, LogMessage, RequeuedMessage};
use super::tests::{Rig, answers, deliveries, live, message, number, session, settings, spec};
use crate::{
    Annotations, ConsumerId, DeadReason, DelayedDetails, DelayedRetry, DelayedReturns,
    DeliveryCounts, Modification, Overflow, Queue, QueueOutput, QueueReply, QueueSettings,
    QuorumFeatures, QuorumSettings, RequestBody, SettlementOutcome, Timestamps,
};
use env::WallTime;
use message::{Table, Value};
use proptest::prelude::*;

const LABEL: &str = "queue 'q' in vhost '/'";

fn retry(returns: DelayedReturns, min_ms: u64, max_ms: u64) -> Option<DelayedRetry> {
    Some(DelayedRetry {
        returns,
        min_ms,
        max_ms,
    })
}

/// A queue that counts deliveries and has this delay.
fn rig(returns: DelayedReturns, min_ms: u64, max_ms: u64) -> Rig {
    let mut rig = Rig::new(settings());
    rig.enable_delivery_counts();
    rig.delay_returns(retry(returns, min_ms, max_ms));
    rig
}

fn numbers(out: &QueueOutput) -> Vec<u64> {
    let number = |d: &(u64, u32, crate::Delivery)| number(&d.2.message);
    deliveries(out).iter().map(number).collect()
}

fn dead(out: &QueueOutput) -> Vec<(DeadReason, u64)> {
    out.dead.iter().map(|d| (d.0, number(&d.1))).collect()
}

fn modify(rig: &mut Rig, id: u64, delivery_failed: bool, at: Option<u64>) -> QueueOutput {
    let mut table = Table::default();
    if let Some(at) = at {
        table.set("x-opt-delivery-time", Value::I64(at as i64));
    }
    let body = RequestBody::Modify {
        consumer: ConsumerId(1),
        ids: vec![(id, id)],
        modification: Box::new(Modification {
            delivery_failed,
            undeliverable_here: false,
            annotations: Annotations::new(table).unwrap(),
        }),
    };
    rig.one(1, body)
}

fn fail(rig: &mut Rig, id: u64) -> QueueOutput {
    modify(rig, id, true, None)
}

/// Time until the only delayed message is due.
fn wait(rig: &Rig) -> u64 {
    let details = rig.machine.delayed_details().expect("a delayed message");
    assert_eq!((details.messages, details.next_at), (1, details.last_at));
    details.next_at - rig.wall
}

#[test]
fn delay_grows_with_each_failure_up_to_the_maximum() {
    let mut rig = rig(DelayedReturns::All, 100, 250);
    rig.publish(1..=1);
    assert_eq!(numbers(&rig.consume(1, 1, spec(1, 0))), [1]);
    for (id, delay) in [(1, 100), (2, 200), (3, 250), (4, 250)] {
        assert_eq!(numbers(&fail(&mut rig, id)), []);
        assert_eq!(wait(&rig), delay);
        assert_eq!(numbers(&rig.pass(delay - 1)), []);
        let out = rig.pass(1);
        assert_eq!(numbers(&out), [1]);
        assert_eq!(deliveries(&out)[0].2.attempts, Some(id as u32));
    }
    // A return that is no failure waits as long as the failures say.
    rig.settle(1, 1, SettlementOutcome::Released, 5);
    assert_eq!(wait(&rig), 250);
}

#[test]
fn type_decides_which_returns_are_delayed() {
    use DelayedReturns::{All, Failed, Returned};
    for (returns, failed, returned) in [
        (Some(All), true, true),
        (Some(Failed), true, false),
        (Some(Returned), false, true),
        (None, false, false),
    ] {
        for (has_failed, is_delayed) in [(true, failed), (false, returned)] {
            let mut rig = rig(All, 100, 100);
            rig.delay_returns(returns.and_then(|returns| retry(returns, 100, 100)));
            rig.publish(1..=1);
            rig.consume(1, 1, spec(1, 0));
            let out = modify(&mut rig, 1, has_failed, None);
            let expected: &[u64] = if is_delayed { &[] } else { &[1] };
            assert_eq!(numbers(&out), expected, "{returns:?}, failed: {has_failed}");
        }
    }
}

#[test]
fn end_of_a_session_delays_its_messages_as_failures() {
    let mut rig = rig(DelayedReturns::Failed, 100, 1000);
    rig.publish(1..=2);
    rig.consume(1, 1, spec(2, 0));
    rig.one(1, RequestBody::Close);
    let stats = rig.machine.stats();
    assert_eq!((stats.ready, stats.delayed), (0, 2));
    rig.consume(2, 1, spec(2, 0));
    assert_eq!(numbers(&rig.pass(100)), [1, 2]);
}

#[test]
fn unreachable_node_delays_its_messages_as_returns() {
    let mut rig = rig(DelayedReturns::Returned, 100, 1000);
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    let node = session(1).node;
    rig.command(Command::NodeSuspected(node).encode());
    assert_eq!(wait(&rig), 100);
    rig.command(Command::NodeTrusted(node).encode());
    assert_eq!(numbers(&rig.pass(100)), [1]);
}

#[test]
fn delivery_that_was_never_sent_is_not_delayed() {
    let mut rig = rig(DelayedReturns::All, 100, 100);
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    let out = rig.settle(1, 1, SettlementOutcome::Unseen, 1);
    assert_eq!(numbers(&out), [1]);
}

#[test]
fn client_can_set_the_time_of_the_next_delivery() {
    for retry in [None, retry(DelayedReturns::All, 10, 10)] {
        let mut rig = rig(DelayedReturns::All, 1, 1);
        rig.delay_returns(retry);
        rig.publish(1..=1);
        rig.consume(1, 1, spec(1, 0));
        let at = rig.wall + 5000;
        modify(&mut rig, 1, false, Some(at));
        assert_eq!(wait(&rig), 5000);
        assert_eq!(numbers(&rig.pass(4999)), []);
        let out = rig.pass(1);
        assert_eq!(numbers(&out), [1]);
        // A time in the past means now.
        let at = rig.wall - 1;
        assert_eq!(numbers(&modify(&mut rig, 2, false, Some(at))), [1]);
        // One that is too far away is limited, so that nothing overflows.
        modify(&mut rig, 3, true, Some(i64::MAX as u64));
        assert!(wait(&rig) < 1 << 40);
    }
}

#[test]
fn queue_without_the_feature_ignores_the_requested_time() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    let at = rig.wall + 5000;
    assert_eq!(numbers(&modify(&mut rig, 1, false, Some(at))), [1]);
}

#[test]
fn messages_that_are_due_together_are_ready_in_the_order_of_their_times() {
    let mut rig = rig(DelayedReturns::All, 100, 1000);
    rig.publish(1..=4);
    rig.consume(1, 1, spec(4, 0));
    for (id, later) in [(1, 30), (2, 10), (4, 20), (3, 20)] {
        let at = rig.wall + later;
        modify(&mut rig, id, false, Some(at));
    }
    assert_eq!(numbers(&rig.pass(1000)), [2, 3, 4, 1]);
}

#[test]
fn ready_messages_are_delivered_while_others_are_delayed() {
    let mut rig = rig(DelayedReturns::All, 100, 100);
    rig.publish(1..=3);
    rig.consume(1, 1, spec(1, 0));
    assert_eq!(numbers(&fail(&mut rig, 1)), [2]);
    rig.settle(1, 1, SettlementOutcome::Accepted, 2);
    assert_eq!(numbers(&rig.pass(100)), []);
    // The message that was delayed precedes those that were never delivered.
    rig.publish(4..=4);
    let out = rig.settle(1, 1, SettlementOutcome::Accepted, 3);
    assert_eq!(numbers(&out), [1]);
}

#[test]
fn delayed_messages_are_neither_ready_nor_unacknowledged() {
    let mut rig = rig(DelayedReturns::All, 100, 1000);
    rig.publish(1..=3);
    rig.consume(1, 1, spec(2, 0));
    rig.one(
        1,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    fail(&mut rig, 1);
    let stats = rig.machine.stats();
    assert_eq!(
        (stats.ready, stats.unacknowledged, stats.delayed),
        (1, 1, 1)
    );
    assert_eq!((stats.messages(), stats.all_bytes()), (3, 24));
    let details = DelayedDetails {
        messages: 1,
        bytes: 8,
        next_at: rig.wall + 100,
        last_at: rig.wall + 100,
    };
    assert_eq!(rig.machine.delayed_details(), Some(details));
    let counts = answers(&rig.one(2, RequestBody::Stat));
    assert!(
        matches!(counts[..], [QueueReply::Count { messages: 1, .. }]),
        "{counts:?}"
    );
}

#[test]
fn delayed_messages_count_towards_the_length_limit_and_are_not_dropped() {
    let mut rig = rig(DelayedReturns::All, 100, 1000);
    let mut limited = rig.machine.settings().clone();
    limited.max_length = Some(2);
    let features = rig.machine.features();
    let configure = |settings: &QueueSettings| {
        let settings = settings.clone();
        Command::Configure(Configuration { features, settings }).encode()
    };
    rig.command(configure(&limited));
    rig.publish(1..=2);
    rig.consume(1, 1, spec(2, 0));
    fail(&mut rig, 1);
    fail(&mut rig, 2);
    rig.one(
        1,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    let out = rig.publish(3..=3);
    assert_eq!(dead(&out), [(DeadReason::MaxLength, 3)]);
    limited.overflow = Overflow::RejectPublish;
    limited.max_length = Some(1);
    rig.command(configure(&limited));
    rig.publish(4..=4);
    assert_eq!(rig.machine.stats().messages(), 2, "the publish is refused");
    rig.pass(1000);
    assert_eq!(rig.machine.stats().ready, 2);
}

#[test]
fn purge_and_deletion_remove_delayed_messages() {
    for body in [
        RequestBody::Purge,
        RequestBody::Delete {
            if_unused: false,
            if_empty: false,
        },
    ] {
        let mut rig = rig(DelayedReturns::All, 100, 1000);
        rig.publish(1..=3);
        rig.consume(1, 1, spec(2, 0));
        let at = rig.wall + 50;
        modify(&mut rig, 1, false, Some(at));
        fail(&mut rig, 2);
        rig.one(
            1,
            RequestBody::Cancel {
                consumer: ConsumerId(1),
            },
        );
        // The consumer has message 3.
        let refused = answers(&rig.one(
            2,
            RequestBody::Delete {
                if_unused: false,
                if_empty: true,
            },
        ));
        assert!(
            matches!(refused[..], [QueueReply::Refused { code: 406, .. }]),
            "{refused:?}"
        );
        let counts = answers(&rig.one(2, body));
        assert!(
            matches!(counts[..], [QueueReply::Count { messages: 2, .. }]),
            "{counts:?}"
        );
        assert_eq!(rig.machine.delayed_details(), None);
        assert_eq!(rig.machine.annotations.len(), 0);
        assert_eq!(numbers(&rig.pass(1000)), []);
    }
}

#[test]
fn delivery_limit_applies_before_the_delay() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: Some(1),
        ..settings()
    });
    rig.enable_delivery_counts();
    rig.delay_returns(retry(DelayedReturns::All, 100, 100));
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    fail(&mut rig, 1);
    rig.pass(100);
    let out = fail(&mut rig, 2);
    assert_eq!(dead(&out), [(DeadReason::DeliveryLimit, 1)]);
}

#[test]
fn delayed_message_expires_on_time() {
    let mut rig = rig(DelayedReturns::All, 1000, 1000);
    let publish = |n, ttl| (9, RequestBody::Publish(message(n, None, ttl)));
    rig.batch(vec![publish(1, Some(300)), publish(2, Some(3000))]);
    rig.consume(1, 1, spec(2, 0));
    fail(&mut rig, 1);
    fail(&mut rig, 2);
    assert_eq!(rig.machine.next_timer(), Some(WallTime(rig.wall + 300)));
    assert_eq!(dead(&rig.pass(299)), []);
    assert_eq!(dead(&rig.pass(1)), [(DeadReason::Expired, 1)]);
    assert_eq!(numbers(&rig.pass(700)), [2]);
    // It keeps its own TTL.
    let at = rig.wall + 5000;
    modify(&mut rig, 3, false, Some(at));
    assert_eq!(dead(&rig.pass(2000)), [(DeadReason::Expired, 2)]);
}

#[test]
fn single_active_consumer_gets_delayed_messages_when_they_are_due() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    rig.delay_returns(retry(DelayedReturns::All, 100, 100));
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    rig.consume(2, 1, spec(1, 0));
    // The active consumer ends, and the other one takes over.
    rig.one(1, RequestBody::Close);
    let out = rig.pass(100);
    let to: Vec<u64> = deliveries(&out).iter().map(|d| d.0).collect();
    assert_eq!((to, numbers(&out)), (vec![2], vec![1]));
}

#[test]
fn next_leader_releases_delayed_messages_on_time() {
    let mut rig = rig(DelayedReturns::All, 100, 100);
    rig.publish(1..=2);
    rig.consume(1, 1, spec(2, 0));
    fail(&mut rig, 1);
    assert_eq!(live(&rig.machine), [3], "the entry of both messages");
    rig.settle(1, 1, SettlementOutcome::Accepted, 2);
    assert_eq!(live(&rig.machine), [3], "still needed");
    let state = rig.machine.snapshot();
    rig.machine = Machine::restore(LABEL.into(), state.clone()).unwrap();
    assert_eq!(rig.machine.snapshot(), state);
    assert_eq!(wait(&rig), 100);
    assert_eq!(numbers(&rig.pass(99)), []);
    assert_eq!(numbers(&rig.pass(1)), [1]);
}

#[test]
fn leader_proposes_the_time_when_a_message_is_due() {
    let mut rig = rig(DelayedReturns::All, 100, 100);
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    fail(&mut rig, 1);
    let mut queue = QuorumQueue::new(LABEL.into(), settings());
    queue.restore(rig.machine.snapshot()).unwrap();
    let mut out = QueueOutput::default();
    queue.leadership(1, Some(session(1).node), true, &mut out);
    let at = |wall| Timestamps {
        wall: WallTime(wall),
        ..Timestamps::default()
    };
    queue.tick(at(rig.wall), &mut out);
    let wait = std::time::Duration::from_millis(100);
    assert_eq!(queue.wake_at(), Some(Timestamps::default().now + wait));
    assert_eq!(queue.take_proposal(), None);
    let due = rig.wall + 100;
    queue.tick(at(due), &mut out);
    let proposal = queue.take_proposal();
    assert_eq!(proposal, Some(Command::Time(WallTime(due)).encode()));
}

/// A leader whose cluster has not enabled the feature writes the settings of version 0.2 and the old checkpoint.
#[test]
fn queue_without_the_feature_keeps_the_old_formats() {
    let wanted = QueueSettings {
        quorum: QuorumSettings {
            deduplication_window_ms: None,
            delayed_retry: retry(DelayedReturns::All, 100, 100),
        },
        max_length: Some(7),
        ..settings()
    };
    let old = QueueSettings {
        quorum: QuorumSettings::default(),
        ..wanted.clone()
    };
    let mut queue = QuorumQueue::new(LABEL.into(), settings());
    let mut out = QueueOutput::default();
    queue.leadership(1, Some(session(1).node), true, &mut out);
    queue.configure(Timestamps::default(), &wanted, &mut out);
    let proposal = queue.take_proposal();
    assert_eq!(proposal, Some(Command::Settings(old.clone()).encode()));
    // Other features do not change that.
    let features = QuorumFeatures {
        strict_priorities: true,
        delivery_counts: true,
        ..QuorumFeatures::default()
    };
    let of = |settings: &QueueSettings| {
        let settings = settings.clone();
        Command::Configure(Configuration { features, settings }).encode()
    };
    assert_eq!(of(&wanted), of(&old));
    let machine = |settings: &QueueSettings| {
        let mut machine = Machine::new(LABEL.into(), settings.clone());
        machine.enable_features(features);
        machine.snapshot()
    };
    assert_eq!(machine(&wanted), machine(&old));
}

/// A leader that does not know yet that the cluster has enabled the feature does not disable the delay.
#[test]
fn leader_without_the_feature_keeps_the_delay_of_a_queue_that_has_it() {
    let rig = rig(DelayedReturns::All, 100, 100);
    let mut queue = QuorumQueue::new(LABEL.into(), settings());
    queue.restore(rig.machine.snapshot()).unwrap();
    let mut out = QueueOutput::default();
    queue.leadership(2, Some(session(1).node), true, &mut out);
    let wanted = rig.machine.settings().clone();
    queue.configure(Timestamps::default(), &wanted, &mut out);
    assert_eq!(queue.take_proposal(), None, "nothing is to change");
}

fn delayed_message(n: u64, due: u64, expires: u64) -> DelayedMessage {
    DelayedMessage {
        due,
        requeued: RequeuedMessage {
            held: LogMessage {
                index: n,
                offset: 3,
                body: 10,
                level: DEFAULT_LEVEL,
                group: None,
                expires,
            },
            counts: DeliveryCounts::new(2, 5),
        },
    }
}

#[test]
fn delayed_message_takes_at_most_32_bytes_and_40_with_a_ttl() {
    const MESSAGES: u64 = 100_000;
    for (expires, most) in [(0, 32), (u64::MAX, 40)] {
        let mut delayed = Delayed::default();
        for n in 0..MESSAGES {
            delayed.push(&delayed_message(n, n * 7919 % MESSAGES, expires));
        }
        // Unused capacity of the last chunk, and the list of chunks.
        let slack = 16 << 10;
        let memory = delayed.memory() as u64;
        assert!(memory <= MESSAGES * most + slack, "{memory} bytes");
        while delayed.pop(u64::MAX).is_some() {}
        assert_eq!(delayed.memory(), 0);
    }
}

proptest! {
    #[test]
    fn messages_leave_in_the_order_of_their_times(
        added in proptest::collection::vec((0u64..2000, proptest::option::of(1u64..2000)), 0..1500),
        popped in proptest::collection::vec(0u64..2000, 0..20),
    ) {
        let mut delayed = Delayed::default();
        let mut model: Vec<DelayedMessage> = Vec::new();
        let wakes = |m: &DelayedMessage| match m.requeued.held.expires {
            0 => m.due,
            expires => expires.min(m.due),
        };
        let mut popped = popped.into_iter();
        for (n, (due, expires)) in added.into_iter().enumerate() {
            let message = delayed_message(n as u64, due, expires.unwrap_or(0));
            delayed.push(&message);
            model.push(message);
            model.sort_by_key(|m| (wakes(m), m.requeued.held.index));
            if n % 100 == 0 && let Some(clock) = popped.next() {
                while let Some(message) = delayed.pop(clock) {
                    prop_assert_eq!(message, model.remove(0));
                }
                prop_assert!(model.first().is_none_or(|m| wakes(m) > clock));
            }
            prop_assert_eq!(delayed.len(), model.len() as u64);
            prop_assert_eq!(delayed.next(), model.first().map(wakes));
        }
        let last = model.iter().map(|m| m.due).max();
        prop_assert_eq!(delayed.details().map(|d| d.last_at), last);
        model.sort_by_key(|m| (m.due, m.requeued.held.index));
        let sorted: Vec<DelayedMessage> = delayed.sorted(std::iter::empty()).collect();
        prop_assert_eq!(sorted, model);
    }
}
