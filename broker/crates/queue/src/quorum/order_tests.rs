//! Service order and limits: priorities, requeue, expiry.

use super::command::Command;
use super::machine::Machine;
use super::tests::{Rig, answers, deliveries, live, message, number, settings, spec};
use crate::{
    ConsumerId, DeadReason, Overflow, QueueEvent, QueueOutput, QueueReply, QueueSettings,
    RequestBody, SettlementOutcome,
};
use env::WallTime;

fn numbers(out: &QueueOutput) -> Vec<u64> {
    let number = |d: &(u64, u32, crate::Delivery)| number(&d.2.message);
    deliveries(out).iter().map(number).collect()
}

fn dead(out: &QueueOutput) -> Vec<(DeadReason, u64)> {
    out.dead.iter().map(|d| (d.0, number(&d.1))).collect()
}

fn publish(n: u64, priority: u8, ttl_ms: Option<u64>) -> (u64, RequestBody) {
    (9, RequestBody::Publish(message(n, Some(priority), ttl_ms)))
}

/// Numbers of the publishes that were refused so far. Session 9 only publishes.
fn refused(out: &QueueOutput) -> Vec<u64> {
    let last = out.events.iter().rev().find_map(|a| match &a.event {
        QueueEvent::AppliedExcept { refused, .. } if a.session.number == 9 => Some(refused.clone()),
        _ => None,
    });
    let all = last.unwrap_or_default();
    all.iter().flat_map(|r| r.from..=r.to).collect()
}

fn get(rig: &mut Rig, consumer: u32) -> QueueOutput {
    let consumer = ConsumerId(consumer);
    let no_ack = false;
    rig.one(8, RequestBody::Get { consumer, no_ack })
}

/// Observed with RabbitMQ 4.0.5: two messages that expired behind the head are counted if the get is to be
/// acknowledged.
#[test]
fn get_with_acknowledgement_counts_expired_messages_behind_the_head() {
    for (no_ack, left) in [(true, 1), (false, 3)] {
        let mut rig = Rig::new(settings());
        let behind =
            [Some(5), Some(5), None].map(|ttl| (9, RequestBody::Publish(message(2, None, ttl))));
        rig.batch(vec![publish(1, 0, None)]);
        rig.batch(behind.into());
        rig.command(Command::Time(WallTime(rig.wall + 10)).encode());
        let get = RequestBody::Get {
            consumer: ConsumerId(1),
            no_ack,
        };
        let out = rig.one(8, get);
        let counts: Vec<_> = deliveries(&out).iter().map(|d| d.2.left).collect();
        assert_eq!((numbers(&out), counts), (vec![1], vec![left]));
        assert_eq!(rig.machine.stats().ready, 1);
    }
}

#[test]
fn requeued_messages_go_first_in_order_of_their_requeue() {
    let mut rig = Rig::new(settings());
    rig.batch((1..=4).map(|n| publish(n, 0, None)).collect());
    rig.consume(1, 1, spec(3, 0));
    rig.one(
        1,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    rig.batch(vec![publish(11, 9, None)]);
    for id in [3, 1, 2] {
        rig.settle(1, 1, SettlementOutcome::Requeue, id);
    }
    let out = rig.consume(2, 1, spec(0, 0));
    assert_eq!(numbers(&out), [3, 1, 2, 11, 4]);
    let attempts: Vec<_> = deliveries(&out).iter().map(|d| d.2.attempts).collect();
    assert_eq!(attempts, [Some(1), Some(1), Some(1), Some(0), Some(0)]);
}

#[test]
fn without_a_delivery_limit_requeued_messages_go_to_the_end_and_returned_ones_to_the_front() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: None,
        ..settings()
    });
    rig.batch((1..=3).map(|n| publish(n, 0, None)).collect());
    rig.consume(1, 1, spec(2, 0));
    rig.one(
        1,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    rig.batch(vec![publish(4, 0, None)]);
    // The snapshot keeps both positions.
    let state = rig.machine.snapshot();
    rig.machine = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert_eq!(rig.machine.snapshot(), state);
    rig.one(1, RequestBody::Close);
    let state = rig.machine.snapshot();
    rig.machine = Machine::restore("queue 'q' in vhost '/'".into(), state).unwrap();
    assert_eq!(live(&rig.machine), [1, 5]);
    let out = rig.consume(2, 1, spec(0, 0));
    assert_eq!(numbers(&out), [2, 3, 1, 4]);
    let redelivered: Vec<_> = deliveries(&out).iter().map(|d| d.2.redelivered).collect();
    assert_eq!(redelivered, [true, false, true, false]);
}

#[test]
fn message_requeued_at_the_end_has_normal_priority() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: None,
        ..settings()
    });
    rig.batch(vec![publish(1, 0, None)]);
    rig.consume(1, 1, spec(1, 0));
    rig.one(
        1,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    rig.batch((11..=14).map(|n| publish(n, 5, None)).collect());
    // It is requeued behind all ready messages, so it must not pass any of high priority.
    rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    rig.batch((15..=17).map(|n| publish(n, 5, None)).collect());
    let out = rig.consume(2, 1, spec(0, 0));
    assert_eq!(numbers(&out), [11, 12, 13, 14, 1, 15, 16, 17]);
}

fn strict() -> Rig {
    let mut rig = Rig::new(settings());
    rig.enable_strict_priorities();
    rig
}

#[test]
fn strict_levels_are_served_from_the_highest_down_and_in_publish_order() {
    let mut rig = strict();
    let priorities = [0, 9, 4, 31, 9, 5, 0, 31, 3];
    rig.batch(
        (1..)
            .zip(priorities)
            .map(|(n, p)| publish(n, p, None))
            .collect(),
    );
    let details = rig.machine.ready_details().unwrap();
    let counts = [(0, 2), (3, 1), (4, 1), (5, 1), (9, 2), (31, 2)];
    assert_eq!(
        (&details.by_priority[..], details.returned),
        (&counts[..], 0)
    );
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&out), [4, 8, 2, 5, 6, 3, 9, 1, 7]);
    assert_eq!(rig.machine.ready_details().unwrap().by_priority, []);
}

#[test]
fn level_that_was_empty_is_served_again() {
    let mut rig = strict();
    rig.consume(1, 1, spec(1, 0));
    rig.batch(vec![publish(1, 7, None)]);
    for n in 2..5 {
        rig.batch(vec![publish(10 + n, 2, None), publish(n, 7, None)]);
        let out = rig.settle(1, 1, SettlementOutcome::Accepted, 2 * n - 3);
        assert_eq!(numbers(&out), [n]);
        let out = rig.settle(1, 1, SettlementOutcome::Accepted, 2 * n - 2);
        assert_eq!(numbers(&out), [10 + n]);
    }
}

#[test]
fn priorities_above_31_count_as_31_and_a_message_without_priority_as_4() {
    let mut rig = strict();
    let without = (9, RequestBody::Publish(message(1, None, None)));
    rig.batch(vec![
        publish(2, 3, None),
        without,
        publish(3, 4, None),
        publish(4, 5, None),
        publish(5, 255, None),
        publish(6, 31, None),
        publish(7, 32, None),
    ]);
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&out), [5, 6, 7, 4, 1, 3, 2]);
}

/// Messages that had high priority before the change precede all others, and those of normal priority are in the default
/// level. Messages of equal priority therefore stay in their order.
#[test]
fn change_to_strict_priorities_keeps_the_order_of_equal_priorities() {
    let mut rig = Rig::new(settings());
    let all = |first| (0u8..40).map(move |p| publish(first + u64::from(p), p, None));
    rig.batch(all(100).collect());
    rig.enable_strict_priorities();
    rig.batch(all(200).collect());
    let out = numbers(&rig.consume(1, 1, spec(0, 0)));
    assert_eq!(out.len(), 80);
    let position = |n: u64| out.iter().position(|m| *m == n).unwrap();
    for priority in 0..40 {
        assert!(
            position(100 + priority) < position(200 + priority),
            "{priority}"
        );
    }
    assert_eq!(out[..35], (105..140).collect::<Vec<_>>());
    assert_eq!(out[out.len() - 4..], [203, 202, 201, 200]);
}

#[test]
fn requeued_messages_precede_every_level() {
    let mut rig = strict();
    rig.batch(vec![publish(1, 0, None), publish(2, 0, None)]);
    rig.consume(1, 1, spec(2, 0));
    let consumer = ConsumerId(1);
    rig.one(1, RequestBody::Cancel { consumer });
    rig.batch(vec![publish(11, 31, None)]);
    rig.settle(1, 1, SettlementOutcome::Requeue, 2);
    rig.settle(1, 1, SettlementOutcome::Released, 1);
    let details = rig.machine.ready_details().unwrap();
    assert_eq!((details.by_priority, details.returned), (vec![(31, 1)], 2));
    let out = rig.consume(2, 1, spec(0, 0));
    assert_eq!(numbers(&out), [2, 1, 11]);
}

#[test]
fn without_a_delivery_limit_a_requeued_message_joins_the_end_of_the_default_level() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: None,
        ..settings()
    });
    rig.enable_strict_priorities();
    rig.batch(vec![publish(1, 31, None)]);
    rig.consume(1, 1, spec(1, 0));
    let consumer = ConsumerId(1);
    rig.one(1, RequestBody::Cancel { consumer });
    rig.batch(vec![
        publish(2, 4, None),
        publish(3, 5, None),
        publish(4, 3, None),
    ]);
    rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    rig.batch(vec![publish(5, 4, None), publish(6, 5, None)]);
    let counts = rig.machine.ready_details().unwrap().by_priority;
    assert_eq!(counts, [(3, 1), (4, 3), (5, 2)]);
    let out = rig.consume(2, 1, spec(0, 0));
    assert_eq!(numbers(&out), [3, 6, 2, 1, 5, 4]);
}

#[test]
fn with_strict_priorities_the_head_of_each_level_expires() {
    let mut rig = strict();
    rig.batch(vec![
        publish(11, 9, None),
        publish(12, 9, Some(50)),
        publish(1, 0, Some(50)),
        publish(2, 0, None),
        publish(3, 0, Some(50)),
        publish(21, 31, Some(90)),
    ]);
    assert_eq!(rig.machine.next_timer(), Some(WallTime(rig.wall + 50)));
    let expired = |n| (DeadReason::Expired, n);
    let out = rig.command(Command::Time(WallTime(rig.wall + 50)).encode());
    assert_eq!(dead(&out), [expired(1)]);
    assert_eq!(rig.machine.next_timer(), Some(WallTime(rig.wall + 90)));
    let out = rig.command(Command::Time(WallTime(rig.wall + 90)).encode());
    assert_eq!(dead(&out), [expired(21)]);
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&out), [11, 2]);
    assert_eq!(dead(&out), [expired(12), expired(3)]);
}

/// A new leader may not know yet that the cluster has enabled the feature.
#[test]
fn settings_of_a_leader_without_the_feature_do_not_disable_it() {
    let mut rig = strict();
    let settings = QueueSettings {
        max_length: Some(9),
        ..settings()
    };
    rig.command(Command::Settings(settings.clone()).encode());
    assert_eq!(rig.machine.settings(), &settings);
    assert!(rig.machine.features().strict_priorities);
    let state = rig.machine.snapshot();
    let restored = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert!(restored.features().strict_priorities);
    assert_eq!(restored.snapshot(), state);
}

#[test]
fn only_the_head_expires_and_no_expired_message_is_delivered() {
    let mut rig = Rig::new(settings());
    rig.batch(vec![
        publish(11, 9, None),
        publish(1, 0, Some(50)),
        publish(2, 0, None),
        publish(3, 0, Some(50)),
    ]);
    // Behind a message of high priority without a TTL.
    assert_eq!(rig.machine.next_timer(), None);
    let out = rig.command(Command::Time(WallTime(2000)).encode());
    assert_eq!((dead(&out), rig.machine.stats().ready), (vec![], 4));
    rig.wall = 2000;
    let out = rig.consume(1, 1, spec(2, 0));
    assert_eq!(numbers(&out), [11, 2]);
    let expired = |n| (DeadReason::Expired, n);
    assert_eq!(dead(&out), [expired(1), expired(3)]);
}

#[test]
fn waiting_consumer_gets_a_message_with_a_zero_ttl() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, spec(1, 0));
    let out = rig.batch(vec![publish(1, 0, Some(0)), publish(2, 0, Some(0))]);
    assert_eq!((numbers(&out), dead(&out)), (vec![1], vec![]));
    let next = rig.machine.next_timer();
    assert_eq!(next, Some(WallTime(rig.wall + 1)));
    let out = rig.command(Command::Time(WallTime(rig.wall + 1)).encode());
    assert_eq!(dead(&out), [(DeadReason::Expired, 2)]);
}

#[test]
fn publishes_above_the_limit_are_refused_until_there_is_room_again() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(10),
        overflow: Overflow::RejectPublish,
        ..settings()
    });
    let out = rig.batch((1..=13).map(|n| publish(n, 0, None)).collect());
    assert_eq!(refused(&out), [12, 13]);
    for dequeued in 1..=2 {
        get(&mut rig, dequeued);
    }
    // 9 are ready: less than the limit, but more than eight tenths of it. A snapshot keeps the state.
    let state = rig.machine.snapshot();
    rig.machine = Machine::restore("queue 'q' in vhost '/'".into(), state).unwrap();
    let out = rig.batch(vec![publish(14, 0, None)]);
    assert_eq!(refused(&out), [12, 13, 14]);
    get(&mut rig, 3);
    let out = rig.batch(vec![publish(15, 0, None)]);
    assert_eq!(
        (refused(&out), rig.machine.stats().ready),
        (vec![12, 13, 14], 9)
    );
}

#[test]
fn new_limits_apply_to_a_full_queue() {
    let limited = |max_length, overflow| {
        let settings = QueueSettings {
            max_length,
            overflow,
            ..settings()
        };
        Command::Settings(settings).encode()
    };
    let mut rig = Rig::new(settings());
    rig.batch((1..=6).map(|n| publish(n, 0, None)).collect());
    rig.command(limited(Some(3), Overflow::RejectPublish));
    assert_eq!(refused(&rig.batch(vec![publish(7, 0, None)])), [7]);
    let out = rig.command(limited(Some(3), Overflow::DropHead));
    let dropped = |n| (DeadReason::MaxLength, n);
    assert_eq!(dead(&out), [dropped(3), dropped(2), dropped(1)]);
    rig.command(limited(Some(2), Overflow::RejectPublish));
    assert_eq!(refused(&rig.batch(vec![publish(8, 0, None)])), [7, 8]);
    rig.command(limited(None, Overflow::RejectPublish));
    rig.batch(vec![publish(9, 0, None)]);
    assert_eq!(rig.machine.stats().ready, 4);
}

#[test]
fn requeued_messages_count_towards_the_limit() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(2),
        ..settings()
    });
    rig.batch(vec![publish(1, 0, None)]);
    rig.consume(1, 1, spec(1, 0));
    rig.batch(vec![publish(2, 0, None), publish(3, 0, None)]);
    // There is no room for it, and it is the head.
    let out = rig.one(1, RequestBody::Close);
    assert_eq!(dead(&out), [(DeadReason::MaxLength, 1)]);
    assert_eq!(rig.machine.stats().ready, 2);
}

#[test]
fn get_is_refused_with_single_active_consumer() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    rig.batch(vec![publish(1, 0, None)]);
    let QueueReply::Refused { code, text } = answers(&get(&mut rig, 1)).remove(0) else {
        panic!("a get of a single active consumer's queue is refused");
    };
    assert_eq!(code, 405);
    assert_eq!(
        text,
        "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not supported by quorum \
         queues with single active consumer"
    );
}

#[test]
fn listing_shows_the_active_consumer() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    let active = |rig: &Rig| -> Vec<(u64, bool)> {
        let all = rig.machine.consumers();
        all.iter().map(|c| (c.session.number, c.active)).collect()
    };
    rig.consume(1, 1, spec(1, 0));
    rig.consume(2, 1, spec(1, 5));
    assert_eq!(active(&rig), [(1, false), (2, true)]);
    rig.batch(vec![publish(1, 0, None)]);
    rig.consume(3, 1, spec(1, 9));
    assert_eq!(active(&rig), [(1, false), (2, true), (3, false)]);
    rig.settle(2, 1, SettlementOutcome::Accepted, 1);
    assert_eq!(active(&rig), [(1, false), (2, false), (3, true)]);
    rig.one(
        3,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    assert_eq!(active(&rig), [(1, false), (2, true)]);
}
