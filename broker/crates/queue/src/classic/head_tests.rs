//! The oldest ready message of a classic queue.

use super::tests::{Rig, settings};
use super::*;
use crate::model::message;
use crate::{ConsumerId, SettlementOutcome};

/// Takes the first message with consumer `consumer` of session 1.
fn get(rig: &mut Rig, consumer: u32) {
    let consumer = ConsumerId(consumer);
    let no_ack = false;
    rig.request(1, RequestBody::Get { consumer, no_ack });
}

#[test]
fn head_is_the_oldest_ready_message() {
    for written in [false, true] {
        let mut rig = Rig::new(settings());
        assert_eq!(rig.head(), (None, false));
        rig.publish_together(1..4, written, 10);
        if written {
            rig.pass(WRITE_AT_LAST);
        }
        assert_eq!(rig.head(), (Some(1), false));
        get(&mut rig, 1);
        assert_eq!(rig.head(), (Some(2), false), "message 1 is unacknowledged");
        rig.settle(1, 1, SettlementOutcome::Requeue, 1);
        assert_eq!(
            rig.head(),
            (Some(1), written),
            "a requeued message is on disk"
        );
        assert_eq!(rig.head(), (Some(1), false));
        rig.request(1, RequestBody::Purge);
        assert_eq!(rig.head(), (None, false));
    }
}

#[test]
fn head_of_a_queue_with_priorities_is_the_oldest_of_all_levels() {
    let mut rig = Rig::new(QueueSettings {
        max_priority: Some(5),
        ..settings()
    });
    for (n, priority) in [(1, 2), (2, 5), (3, 0), (4, 5)] {
        let message = message(n, Some(priority), None, 8);
        rig.request(9, RequestBody::Publish(message));
    }
    assert_eq!(rig.head().0, Some(1), "message 2 is delivered before");
    get(&mut rig, 1);
    assert_eq!(rig.head(), (Some(1), false));
}

#[test]
fn expired_message_is_not_the_head() {
    let mut rig = Rig::new(settings());
    let short = message(1, None, Some(100), 8);
    rig.request(9, RequestBody::Publish(short));
    rig.publish(2, false, 10);
    assert_eq!(rig.head().0, Some(1));
    rig.pass(Duration::from_millis(101));
    assert_eq!(rig.head().0, Some(2));
}

#[test]
fn head_on_disk_is_read_once_and_nothing_else_is_kept_in_memory() {
    let mut rig = Rig::new(settings());
    rig.publish_together(1..1_001, true, 1_000);
    rig.pass(WRITE_AT_LAST);
    rig.restart(true);
    let before = rig.queue.store.memory_messages();
    assert_eq!(rig.head(), (Some(1), true));
    assert_eq!(rig.head(), (Some(1), false));
    assert_eq!(rig.queue.store.memory_messages(), before);
    get(&mut rig, 1);
    assert_eq!(rig.head().0, Some(2));
}

/// A segment with many settled messages at its begin, none of which is read twice.
#[test]
fn search_for_the_head_is_continued_by_the_next_call() {
    let count: u64 = 1_000;
    let mut rig = Rig::new(settings());
    rig.publish_together(1..count + 1, true, 1_000);
    rig.consume(1, 1, 0);
    for id in 1..count {
        rig.settle(1, 1, SettlementOutcome::Accepted, id);
    }
    rig.pass(WRITE_AT_LAST);
    rig.pass(WRITE_AT_LAST);
    rig.restart(true);
    assert_eq!(rig.queue.stats().ready, 1);
    let mut calls = 0;
    while rig.head().0.is_none() {
        calls += 1;
        assert!(calls < 100);
    }
    assert!(calls > 0, "one call reads a part");
    assert_eq!(rig.head(), (Some(count), false));
}
