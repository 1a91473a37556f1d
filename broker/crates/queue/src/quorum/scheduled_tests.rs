//! Scheduled delivery: when published messages are ready, and how all other operations treat them before.

use super::tests::{Rig, answers, deliveries, live, message, number, settings, spec};
use crate::{
    DeadReason, Overflow, QueueOutput, QueueReply, QueueSettings, RequestBody, SettlementOutcome,
    schedule,
};
use env::WallTime;
use message::{Deaths, Message};

const PUBLISHER: u64 = 9;

fn rig(settings: QueueSettings) -> Rig {
    let mut rig = Rig::new(settings);
    rig.enable_scheduled_delivery();
    rig
}

fn scheduled(n: u64, delay: u64, ttl_ms: Option<u64>) -> Message {
    schedule(&message(n, None, ttl_ms), delay).expect("a small message")
}

fn publish(rig: &mut Rig, n: u64, delay: u64) -> QueueOutput {
    let message = scheduled(n, delay, None);
    rig.one(PUBLISHER, RequestBody::Publish(message))
}

fn numbers(out: &QueueOutput) -> Vec<u64> {
    let number = |d: &(u64, u32, crate::Delivery)| number(&d.2.message);
    deliveries(out).iter().map(number).collect()
}

#[test]
fn messages_are_delivered_when_they_are_due_and_not_before() {
    let mut rig = rig(settings());
    rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&publish(&mut rig, 1, 300)), []);
    assert_eq!(numbers(&publish(&mut rig, 2, 100)), []);
    assert_eq!(numbers(&rig.publish([3])), [3]);
    // No delay.
    assert_eq!(numbers(&publish(&mut rig, 4, 0)), [4]);
    assert_eq!(numbers(&rig.pass(99)), []);
    let out = rig.pass(1);
    assert_eq!(numbers(&out), [2]);
    assert!(!deliveries(&out)[0].2.redelivered, "its first delivery");
    assert_eq!(numbers(&rig.pass(200)), [1]);
}

#[test]
fn a_due_message_comes_before_those_that_were_published_later() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, 100);
    rig.publish([2, 3]);
    rig.pass(100);
    assert_eq!(numbers(&rig.consume(1, 1, spec(0, 0))), [1, 2, 3]);
}

#[test]
fn queue_without_the_feature_delivers_at_once() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&publish(&mut rig, 1, 100)), [1]);
}

#[test]
fn time_to_live_begins_when_the_message_is_due() {
    let mut rig = rig(settings());
    let message = scheduled(1, 100, Some(50));
    rig.one(PUBLISHER, RequestBody::Publish(message));
    let out = rig.pass(149);
    assert_eq!((rig.machine.stats().ready, out.dead.len()), (1, 0));
    let out = rig.pass(1);
    assert_eq!(out.dead[0].0, DeadReason::Expired);
    assert_eq!(rig.machine.stats().ready, 0);
}

#[test]
fn scheduled_messages_count_towards_limits_and_are_purged() {
    let mut rig = rig(QueueSettings {
        max_length: Some(2),
        overflow: Overflow::RejectPublish,
        ..settings()
    });
    for n in 1..=3 {
        publish(&mut rig, n, 100);
    }
    let stats = rig.machine.stats();
    assert_eq!((stats.ready, stats.delayed), (0, 3));
    assert!(
        !live(&rig.machine).is_empty(),
        "their entries stay in the log"
    );
    publish(&mut rig, 4, 100);
    assert_eq!(rig.machine.stats().delayed, 3, "the queue is full");
    let out = rig.one(1, RequestBody::Purge);
    let (messages, consumers) = (3, 0);
    let purged = QueueReply::Count {
        messages,
        consumers,
    };
    assert_eq!(answers(&out), [purged]);
    assert_eq!(rig.machine.stats().delayed, 0);
    assert!(live(&rig.machine).is_empty());
}

#[test]
fn dead_letters_are_not_scheduled_again() {
    let mut rig = rig(settings());
    rig.consume(1, 1, spec(0, 0));
    let message = scheduled(1, 10_000, None);
    let died = message.dead_lettered("", None, &Deaths::default());
    let died = died.expect("a small message");
    assert_eq!(
        numbers(&rig.one(PUBLISHER, RequestBody::Publish(died))),
        [1]
    );
}

#[test]
fn delay_is_at_most_ten_years() {
    let mut rig = rig(settings());
    let far = schedule(&message(1, None, None), u64::MAX).expect("a small message");
    rig.one(PUBLISHER, RequestBody::Publish(far));
    let details = rig.machine.delayed_details().expect("a message");
    assert_eq!(details.next_at - rig.wall, 10 * 365 * 24 * 3_600_000);
}

/// A checkpoint has the scheduled messages, and the leader wakes when one is due.
#[test]
fn checkpoint_and_leader_know_when_a_message_is_due() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, 500);
    let restored =
        super::machine::Machine::restore("queue 'q' in vhost '/'".into(), rig.machine.snapshot());
    rig.machine = restored.expect("a checkpoint");
    assert_eq!(rig.machine.next_timer(), Some(WallTime(rig.wall + 500)));
    rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&rig.pass(500)), [1]);
    // After the first delivery the message is like any other.
    let out = rig.settle(1, 1, SettlementOutcome::Released, 1);
    assert_eq!(numbers(&out), [1]);
    assert!(deliveries(&out)[0].2.redelivered);
}
