//! Delayed messages and messages of groups that are taken by their positions.

use super::command::Command;
use super::effects::LogLocation;
use super::grouped_tests::grouped;
use super::machine::Machine;
use super::tests::{Rig, answers, deliveries, message, number, session, settings, spec};
use crate::{
    BrowsePosition, BrowseRequest, BrowsedMessage, BrowsedState, ConsumerId, DeadReason,
    DelayedRetry, DelayedReturns, PositionedGet, QueueOutput, QueueReply, QueueSettings,
    RequestBody, SettlementOutcome, schedule,
};

const PUBLISHER: u64 = 9;
/// The session that takes messages by their positions.
const TAKER: u64 = 8;

fn rig(settings: QueueSettings) -> Rig {
    let mut rig = Rig::new(settings);
    rig.enable_scheduled_delivery();
    rig.enable_delivery_counts();
    rig
}

fn publish(rig: &mut Rig, n: u64, delay: u64) -> QueueOutput {
    let message = schedule(&message(n, None, None), delay).expect("a small message");
    rig.one(PUBLISHER, RequestBody::Publish(message))
}

fn publish_grouped(rig: &mut Rig, n: u64, group: &str) -> QueueOutput {
    let message = grouped(&message(n, None, None), group);
    rig.one(PUBLISHER, RequestBody::Publish(message))
}

fn list(rig: &Rig, state: Option<BrowsedState>) -> Vec<BrowsedMessage> {
    let log = &rig.log;
    let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
    let request = BrowseRequest {
        from: None,
        least: 0,
        most: u64::MAX,
        messages: 100,
        body_bytes: 8,
        body_start: 0,
        state,
        unexpired_at: None,
    };
    let page = rig.machine.browse(&request, &mut read);
    page.expect("a page").messages
}

fn position(rig: &Rig, n: u64) -> BrowsePosition {
    let listed = list(rig, None);
    let found = listed.iter().find(|b| number(&b.message) == n);
    found.expect("the message is listed").at
}

/// Takes a message with a consumer of the same number.
fn take(rig: &mut Rig, n: u64) -> QueueOutput {
    let get = PositionedGet {
        consumer: ConsumerId(n as u32),
        no_ack: false,
        at: position(rig, n),
    };
    rig.one(TAKER, RequestBody::GetAt(Box::new(get)))
}

fn end(rig: &mut Rig, n: u64, outcome: SettlementOutcome) -> QueueOutput {
    rig.settle(TAKER, n as u32, outcome, 1)
}

fn numbers(out: &QueueOutput) -> Vec<u64> {
    let number = |d: &(u64, u32, crate::Delivery)| number(&d.2.message);
    deliveries(out).iter().map(number).collect()
}

/// Continues with a replica that was restored from a checkpoint.
fn restore(rig: &mut Rig) {
    let state = rig.machine.snapshot();
    let again = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert_eq!(again.snapshot(), state);
    assert_eq!(again.stats(), rig.machine.stats());
    rig.machine = again;
}

#[test]
fn delayed_message_is_cancelled() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, 100);
    publish(&mut rig, 2, 200);
    publish(&mut rig, 3, 300);
    assert_eq!(numbers(&take(&mut rig, 3)), [3]);
    let stats = rig.machine.stats();
    assert_eq!((stats.delayed, stats.unacknowledged), (2, 1));
    let last = rig.machine.delayed_details().map(|details| details.last_at);
    assert_eq!(last, list(&rig, None)[1].due_at);
    end(&mut rig, 3, SettlementOutcome::Accepted);
    let stats = rig.machine.stats();
    assert_eq!((stats.delayed, stats.unacknowledged), (2, 0));
    rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&rig.pass(1000)), [1, 2]);
}

#[test]
fn delayed_message_that_is_returned_waits_until_it_is_due() {
    for outcome in [
        SettlementOutcome::Released,
        SettlementOutcome::Requeue,
        SettlementOutcome::Unseen,
    ] {
        for restores in [false, true] {
            let mut rig = rig(settings());
            rig.consume(1, 1, spec(0, 0));
            publish(&mut rig, 1, 300);
            take(&mut rig, 1);
            rig.pass(100);
            if restores {
                restore(&mut rig);
            }
            assert_eq!(numbers(&end(&mut rig, 1, outcome)), []);
            if restores {
                restore(&mut rig);
            }
            assert_eq!(rig.machine.stats().delayed, 1);
            assert_eq!(numbers(&rig.pass(199)), []);
            let out = rig.pass(1);
            assert_eq!(numbers(&out), [1]);
            assert!(!deliveries(&out)[0].2.redelivered, "its first delivery");
        }
    }
}

#[test]
fn delayed_message_that_is_returned_late_is_ready_at_once() {
    let mut rig = rig(settings());
    rig.consume(1, 1, spec(0, 0));
    publish(&mut rig, 1, 100);
    take(&mut rig, 1);
    assert_eq!(numbers(&rig.pass(100)), []);
    let out = end(&mut rig, 1, SettlementOutcome::Released);
    assert_eq!(numbers(&out), [1]);
}

/// The node that takes the messages ends: its session is closed, which counts as a failure of its deliveries.
#[test]
fn delayed_message_is_not_dropped_when_its_taker_ends() {
    let mut rig = Rig::new(QueueSettings {
        delivery_limit: Some(0),
        ..settings()
    });
    rig.enable_scheduled_delivery();
    publish(&mut rig, 1, 100);
    take(&mut rig, 1);
    let out = rig.one(TAKER, RequestBody::Close);
    assert_eq!(out.dead, []);
    assert_eq!(rig.machine.stats().delayed, 1);
    rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&rig.pass(100)), [1]);
}

/// The node that takes the messages cannot be reached any more.
#[test]
fn delayed_message_waits_again_when_the_node_of_its_taker_is_suspected() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, 100);
    take(&mut rig, 1);
    let suspected = Command::NodeSuspected(session(TAKER).node);
    rig.command(suspected.encode());
    let stats = rig.machine.stats();
    assert_eq!((stats.delayed, stats.unacknowledged), (1, 0));
    restore(&mut rig);
    rig.consume(1, 1, spec(0, 0));
    assert_eq!(numbers(&rig.pass(100)), [1]);
}

#[test]
fn delayed_message_expires_when_it_is_returned_after_its_time_to_live() {
    let mut rig = rig(settings());
    let scheduled = schedule(&message(1, None, Some(50)), 100).expect("a small message");
    rig.one(PUBLISHER, RequestBody::Publish(scheduled));
    take(&mut rig, 1);
    assert_eq!(rig.pass(200).dead, []);
    let out = end(&mut rig, 1, SettlementOutcome::Released);
    assert_eq!(out.dead[0].0, DeadReason::Expired);
}

#[test]
fn purge_leaves_a_taken_message() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, 100);
    publish(&mut rig, 2, 100);
    take(&mut rig, 1);
    let out = rig.one(1, RequestBody::Purge);
    let count = QueueReply::Count {
        messages: 1,
        consumers: 0,
    };
    assert_eq!(answers(&out), [count]);
    end(&mut rig, 1, SettlementOutcome::Released);
    assert_eq!(rig.machine.stats().delayed, 1);
}

#[test]
fn messages_are_listed_by_state_with_their_due_times() {
    let mut rig = rig(settings());
    rig.publish([1, 2]);
    publish(&mut rig, 3, 300);
    let now = rig.wall;
    take(&mut rig, 1);
    let of = |state| {
        let listed = list(&rig, Some(state));
        let shown = listed.iter().map(|b| (number(&b.message), b.due_at));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(of(BrowsedState::Unacknowledged), [(1, None)]);
    assert_eq!(of(BrowsedState::Ready), [(2, None)]);
    assert_eq!(of(BrowsedState::Delayed), [(3, Some(now + 300))]);
}

fn grouped_rig() -> Rig {
    let mut rig = rig(settings());
    rig.enable_groups();
    rig
}

#[test]
fn message_of_a_group_is_taken_out_of_the_middle() {
    let mut rig = grouped_rig();
    for n in 1..=4 {
        publish_grouped(&mut rig, n, "a");
    }
    assert_eq!(numbers(&rig.consume(1, 1, spec(1, 0))), [1]);
    // The consumer owns the group.
    assert_eq!(numbers(&take(&mut rig, 3)), [3]);
    end(&mut rig, 3, SettlementOutcome::Accepted);
    let out = rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    assert_eq!(numbers(&out), [2]);
    let out = rig.settle(1, 1, SettlementOutcome::Accepted, 2);
    assert_eq!(numbers(&out), [4]);
}

#[test]
fn group_waits_for_a_taken_message_and_keeps_its_order() {
    for restores in [false, true] {
        let mut rig = grouped_rig();
        for n in 1..=4 {
            publish_grouped(&mut rig, n, "a");
        }
        publish_grouped(&mut rig, 5, "b");
        take(&mut rig, 2);
        if restores {
            restore(&mut rig);
        }
        // Other groups are served.
        assert_eq!(numbers(&rig.consume(1, 1, spec(0, 0))), [5]);
        let out = end(&mut rig, 2, SettlementOutcome::Released);
        assert_eq!(numbers(&out), [1, 2, 3, 4]);
    }
}

#[test]
fn purged_group_waits_for_its_taken_message() {
    let mut rig = grouped_rig();
    publish_grouped(&mut rig, 1, "a");
    publish_grouped(&mut rig, 2, "a");
    take(&mut rig, 1);
    rig.one(1, RequestBody::Purge);
    publish_grouped(&mut rig, 3, "a");
    assert_eq!(numbers(&rig.consume(1, 1, spec(0, 0))), []);
    let out = end(&mut rig, 1, SettlementOutcome::Released);
    assert_eq!(numbers(&out), [1, 3]);
}

/// A message that was published with a delay does not hold up its group, also when it was taken and returned.
#[test]
fn group_does_not_wait_for_a_scheduled_message() {
    let mut rig = grouped_rig();
    let scheduled = schedule(&grouped(&message(1, None, None), "a"), 100).expect("a small message");
    rig.one(PUBLISHER, RequestBody::Publish(scheduled));
    rig.consume(1, 1, spec(0, 0));
    take(&mut rig, 1);
    assert_eq!(numbers(&publish_grouped(&mut rig, 2, "a")), [2]);
    end(&mut rig, 1, SettlementOutcome::Released);
    assert_eq!(numbers(&publish_grouped(&mut rig, 3, "a")), [3]);
    assert_eq!(numbers(&rig.pass(100)), [1]);
    let groups = rig.machine.ready.groups().expect("the queue has groups");
    groups.assert_consistent();
}

/// A group waits for a message that failed and is delayed, also while that is taken, and no longer if it is deleted.
#[test]
fn group_waits_for_a_failed_message_until_it_is_cancelled() {
    for outcome in [SettlementOutcome::Accepted, SettlementOutcome::Released] {
        let mut rig = grouped_rig();
        rig.delay_returns(Some(DelayedRetry {
            returns: DelayedReturns::All,
            min_ms: 100,
            max_ms: 100,
        }));
        publish_grouped(&mut rig, 1, "a");
        publish_grouped(&mut rig, 2, "a");
        rig.consume(1, 1, spec(1, 0));
        let out = rig.settle(1, 1, SettlementOutcome::Requeue, 1);
        assert_eq!(numbers(&out), []);
        assert_eq!(numbers(&take(&mut rig, 1)), [1]);
        restore(&mut rig);
        let out = end(&mut rig, 1, outcome);
        match outcome {
            SettlementOutcome::Accepted => assert_eq!(numbers(&out), [2]),
            _ => {
                assert_eq!(numbers(&out), []);
                assert_eq!(numbers(&rig.pass(100)), [1]);
            }
        }
    }
}

#[test]
fn position_without_a_message_is_answered() {
    let mut rig = grouped_rig();
    publish(&mut rig, 1, 100);
    publish_grouped(&mut rig, 2, "a");
    let at = BrowsePosition {
        number: LogLocation {
            index: 99,
            offset: 1,
        }
        .number(),
        ..BrowsePosition::default()
    };
    let get = PositionedGet {
        consumer: ConsumerId(1),
        no_ack: false,
        at,
    };
    let out = rig.one(TAKER, RequestBody::GetAt(Box::new(get)));
    assert_eq!(answers(&out), [QueueReply::Empty]);
    assert_eq!(rig.machine.stats().delayed, 1);
}
