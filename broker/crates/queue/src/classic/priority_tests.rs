//! `x-max-priority`, and its effect on limits and TTLs.

use super::store::BUFFER_MESSAGES;
use super::tests::{Rig, session, settings};
use super::*;
use crate::model::{message, number, spec};
use crate::{ConsumerId, DeadReason, SettlementOutcome};

fn up_to(max: u8) -> QueueSettings {
    QueueSettings {
        max_priority: Some(max),
        ..settings()
    }
}

fn publish(rig: &mut Rig, n: u64, priority: u8) -> QueueOutput {
    let message = message(n, Some(priority), None, 8);
    rig.request(9, RequestBody::Publish(message))
}

fn dead(out: &QueueOutput) -> Vec<(DeadReason, u64)> {
    out.dead.iter().map(|d| (d.0, number(&d.1))).collect()
}

#[test]
fn highest_priority_goes_first_and_among_equals_the_oldest() {
    for written in [false, true] {
        let mut rig = Rig::new(up_to(3));
        for (n, priority) in [(1, 0), (2, 3), (3, 1), (4, 3), (6, 200)] {
            publish(&mut rig, n, priority);
        }
        // No priority is the lowest; a priority above the maximum is the maximum.
        let none = message(5, None, None, 8);
        rig.request(9, RequestBody::Publish(none));
        if written {
            rig.pass(WRITE_AFTER);
        }
        assert_eq!(rig.drain().0, [2, 4, 6, 3, 1, 5]);
    }
}

#[test]
fn priorities_have_no_effect_without_the_argument() {
    let mut rig = Rig::new(settings());
    for (n, priority) in [(1, 0), (2, 9), (3, 1)] {
        publish(&mut rig, n, priority);
    }
    assert_eq!(rig.drain().0, [1, 2, 3]);
}

#[test]
fn requeued_messages_keep_their_position_within_their_priority() {
    for written in [false, true] {
        let mut rig = Rig::new(up_to(5));
        for (n, priority) in [(1, 0), (2, 5), (3, 5), (4, 0)] {
            publish(&mut rig, n, priority);
        }
        if written {
            rig.pass(WRITE_AFTER);
        }
        rig.consume(1, 1, 3);
        let consumer = ConsumerId(1);
        rig.request(1, RequestBody::Cancel { consumer });
        for id in [3, 2] {
            rig.settle(1, 1, SettlementOutcome::Requeue, id);
        }
        publish(&mut rig, 6, 5);
        rig.settle(1, 1, SettlementOutcome::Requeue, 1);
        assert_eq!(rig.drain().0, [2, 3, 6, 1, 4]);
    }
}

#[test]
fn restart_keeps_priorities_and_ttls() {
    let mut expected: Vec<u64> = (1..=30).collect();
    expected.sort_by_key(|n| (std::cmp::Reverse(n % 10), *n));
    expected.insert(3, 31);
    for waits in [false, true] {
        let mut rig = Rig::new(QueueSettings {
            message_ttl_ms: Some(5_000),
            ..up_to(9)
        });
        for n in 1..=30u64 {
            publish(&mut rig, n, (n % 10) as u8);
        }
        // The policy at the time of the publish applies.
        let mut out = QueueOutput::default();
        rig.queue.configure(rig.at, &up_to(9), &mut out);
        publish(&mut rig, 31, 9);
        rig.restart(true);
        assert_eq!(rig.queue.stats().ready, 31);
        if !waits {
            assert_eq!(rig.drain().0, expected);
            continue;
        }
        // The last message of the highest priority has no TTL; the others of its priority are before it, the
        // rest is behind it.
        let out = rig.pass(Duration::from_millis(5_000));
        let expired = [9, 19, 29].map(|n| (DeadReason::Expired, n));
        assert_eq!(
            (dead(&out), rig.queue.stats().ready),
            (expired.to_vec(), 28)
        );
    }
}

#[test]
fn limits_and_ttls_apply_to_the_head_of_the_whole_queue() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(2),
        ..up_to(9)
    });
    publish(&mut rig, 1, 0);
    publish(&mut rig, 2, 9);
    // The limit drops the head, which has the highest priority.
    let out = publish(&mut rig, 3, 0);
    assert_eq!(dead(&out), [(DeadReason::MaxLength, 2)]);
    let mut rig = Rig::new(up_to(9));
    publish(&mut rig, 1, 5);
    let brief = message(2, Some(0), Some(100), 8);
    rig.request(9, RequestBody::Publish(brief));
    // Behind a message without a TTL it stays, but it is never delivered.
    let out = rig.pass(Duration::from_millis(150));
    assert_eq!((dead(&out), rig.queue.stats().ready), (vec![], 2));
    let out = rig.consume(1, 1, 5);
    assert_eq!(dead(&out), [(DeadReason::Expired, 2)]);
    assert_eq!(rig.queue.stats().unacknowledged, 1);
}

#[test]
fn message_with_a_zero_ttl_is_delivered_at_once_or_expires() {
    let mut rig = Rig::new(settings());
    let brief = |n| RequestBody::Publish(message(n, None, Some(0), 8));
    let out = rig.request(9, brief(1));
    assert_eq!(dead(&out), [(DeadReason::Expired, 1)]);
    rig.consume(1, 1, 1);
    let out = rig.request(9, brief(2));
    assert_eq!((dead(&out), rig.queue.stats().unacknowledged), (vec![], 1));
    // The clock of the queue counts: that of the publisher has no effect.
    rig.at.wall.0 += 1_000_000;
    rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    rig.request(9, brief(3));
    assert_eq!(rig.queue.stats().unacknowledged, 1);
}

#[test]
fn publish_above_the_limit_is_refused() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(2),
        overflow: Overflow::RejectPublish,
        ..settings()
    });
    let mut refused = Vec::new();
    for n in 1..=4 {
        let out = publish(&mut rig, n, 0);
        for addressed in &out.events {
            if let QueueEvent::AppliedExcept { refused: all, .. } = &addressed.event {
                refused = all.iter().flat_map(|r| r.from..=r.to).collect();
            }
        }
    }
    assert_eq!((refused, rig.queue.stats().ready), (vec![3, 4], 2));
    // Only ready messages count.
    rig.consume(1, 1, 1);
    publish(&mut rig, 5, 0);
    assert_eq!(rig.queue.stats().ready, 2);
}

#[test]
fn requeued_messages_count_towards_the_limit() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(1),
        ..settings()
    });
    rig.consume(1, 1, 1);
    publish(&mut rig, 1, 0);
    publish(&mut rig, 2, 0);
    let out = rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    assert_eq!(dead(&out), [(DeadReason::MaxLength, 1)]);
    assert_eq!(rig.queue.stats().unacknowledged, 1);
}

#[test]
fn long_queue_of_many_priorities_needs_bounded_memory_and_frees_its_disk_space() {
    let mut rig = Rig::new(up_to(9));
    let count = 30_000u64;
    for n in 1..=count {
        let message = message(n, Some((n % 10) as u8), None, 1000);
        rig.request(9, RequestBody::Publish(message));
    }
    rig.pass(WRITE_AT_LAST);
    assert!(rig.queue.store.memory_messages() < 3 * BUFFER_MESSAGES);
    let before: u64 = rig.disk.files().iter().map(|(_, len)| len).sum();
    // Space of a high priority is freed although low ones wait.
    let consumer = rig.consume(1, 1, 0);
    assert!(consumer.dead.is_empty());
    for _ in 0..9 {
        let held = rig.queue.consumers()[0].unacknowledged;
        let out = rig.request(
            1,
            RequestBody::Settle {
                consumer: ConsumerId(1),
                outcome: SettlementOutcome::Accepted,
                ids: vec![(1, u64::MAX)],
            },
        );
        assert!(held > 0 && out.faults.is_empty());
    }
    rig.pass(WRITE_AT_LAST);
    let after: u64 = rig.disk.files().iter().map(|(_, len)| len).sum();
    assert!(after * 2 < before, "{after} of {before}");
    rig.request(1, RequestBody::Close);
    rig.restart(true);
    let (left, faults) = rig.drain();
    assert_eq!((left.len() as u64, faults.len()), (count - 9 * 2000, 0));
    let order: Vec<_> = left
        .iter()
        .map(|n| (std::cmp::Reverse(n % 10), *n))
        .collect();
    assert!(order.is_sorted());
    rig.pass(WRITE_AT_LAST);
    rig.pass(REST_AFTER);
    assert_eq!(rig.queue.wake_at(), None);
}

#[test]
fn single_active_consumer_stays_until_it_ends_and_the_best_one_follows() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    let consume = |rig: &mut Rig, by: u64, priority: i32| {
        let spec = spec(1, priority);
        let consumer = ConsumerId(1);
        rig.request(by, RequestBody::Consume { consumer, spec });
    };
    let active = |rig: &Rig| {
        let all = rig.queue.consumers();
        let active: Vec<_> = all.iter().filter(|c| c.active).collect();
        assert_eq!(active.len(), 1);
        active[0].session
    };
    for (by, priority) in [(1, 0), (2, 1), (3, 7), (4, 7)] {
        consume(&mut rig, by, priority);
    }
    assert_eq!(active(&rig), session(1));
    rig.request(1, RequestBody::Close);
    assert_eq!(active(&rig), session(3));
    rig.request(
        3,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    assert_eq!(active(&rig), session(4));
}
