//! The oldest ready message of a quorum queue.

use super::tests::{Rig, message, settings, spec};
use crate::{ConsumerId, QueueSettings, RequestBody, SettlementOutcome};

/// Takes the first message with consumer `consumer` of session 1.
fn get(rig: &mut Rig, consumer: u32) {
    let consumer = ConsumerId(consumer);
    let no_ack = false;
    rig.one(1, RequestBody::Get { consumer, no_ack });
}

#[test]
fn head_is_the_oldest_ready_message_and_is_read_once() {
    let mut rig = Rig::new(settings());
    assert_eq!(rig.head(), (None, false));
    rig.publish([1, 2, 3]);
    assert_eq!(rig.head(), (Some(1), true));
    assert_eq!(rig.head(), (Some(1), false));
    get(&mut rig, 1);
    assert_eq!(rig.head(), (Some(2), true), "message 1 is unacknowledged");
    rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    assert_eq!(rig.head(), (Some(1), true));
    rig.publish([4]);
    assert_eq!(rig.head(), (Some(1), false));
    rig.one(1, RequestBody::Purge);
    assert_eq!(rig.head(), (None, false));
}

#[test]
fn requeued_message_counts_wherever_it_is_in_the_order() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: None,
        ..settings()
    });
    rig.publish([1, 2, 3]);
    get(&mut rig, 1);
    get(&mut rig, 2);
    rig.settle(1, 2, SettlementOutcome::Released, 1);
    assert_eq!(rig.head().0, Some(2));
    rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    assert_eq!(rig.head().0, Some(1), "the last one in the order");
}

#[test]
fn head_of_a_queue_with_priorities_is_the_oldest_of_all_levels() {
    let mut rig = Rig::new(settings());
    rig.enable_strict_priorities();
    for (n, priority) in [(1, 2), (2, 9), (3, 0), (4, 9)] {
        rig.one(9, RequestBody::Publish(message(n, Some(priority), None)));
    }
    assert_eq!(rig.head().0, Some(1), "message 2 is delivered before");
    get(&mut rig, 1);
    assert_eq!(rig.head(), (Some(1), false));
}

#[test]
fn expired_message_is_not_the_head() {
    let mut rig = Rig::new(settings());
    rig.one(9, RequestBody::Publish(message(1, None, Some(100))));
    rig.publish([2]);
    assert_eq!(rig.head().0, Some(1));
    rig.pass(101);
    assert_eq!(rig.head().0, Some(2));
}

#[test]
fn head_of_a_queue_with_groups_is_the_oldest_of_all_groups() {
    let mut rig = Rig::new(settings());
    rig.enable_groups();
    let grouped = |n, group| super::grouped_tests::grouped(&message(n, None, None), group);
    for (n, group) in [(1, "a"), (2, "b"), (3, "a"), (4, "c")] {
        rig.one(9, RequestBody::Publish(grouped(n, group)));
    }
    rig.publish([5]);
    assert_eq!(rig.head().0, Some(1));
    rig.consume(1, 1, spec(1, 0));
    assert_eq!(rig.head().0, Some(2), "message 1 is unacknowledged");
    rig.consume(2, 1, spec(1, 0));
    assert_eq!(rig.head().0, Some(3), "group a is owned");
    rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    assert_eq!(rig.head().0, Some(4));
}

#[test]
fn head_is_known_after_a_restart() {
    let mut rig = Rig::new(settings());
    rig.publish([1, 2, 3]);
    get(&mut rig, 1);
    rig.restore();
    assert_eq!(rig.head(), (Some(2), true));
}

#[test]
fn lost_message_is_looked_for_once() {
    let mut rig = Rig::new(settings());
    rig.publish([1]);
    rig.log.clear();
    assert_eq!(rig.head(), (None, true));
    assert_eq!(rig.head(), (None, false));
}
