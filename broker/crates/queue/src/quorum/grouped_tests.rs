//! Message groups: the order of each group, the consumer that owns it, and when the owner changes.

use super::command::Command;
use super::grouped::MAX_IDLE_GROUPS;
use super::machine::Machine;
use super::tests::{Rig, answers, deliveries, message, number, session, settings, spec};
use crate::{
    ConsumerId, ConsumerSpec, DeadReason, DelayedRetry, DelayedReturns, FlowMode, GroupId,
    Modification, Overflow, QueueOutput, QueueReply, QueueSettings, RequestBody, SettlementOutcome,
    assign_group, schedule,
};
use env::WallTime;
use message::Message;

const PUBLISHER: u64 = 9;

fn rig() -> Rig {
    rig_with(settings())
}

fn rig_with(settings: QueueSettings) -> Rig {
    let mut rig = Rig::new(settings);
    rig.enable_groups();
    rig
}

pub(super) fn grouped(message: &Message, group: &str) -> Message {
    assign_group(message, GroupId::of(group)).expect("a small message")
}

/// Publishes messages with these numbers and groups. An empty group is none.
fn publish(rig: &mut Rig, messages: &[(u64, &str)]) -> QueueOutput {
    let publish = |(n, group): &(u64, &str)| {
        let plain = message(*n, None, None);
        let message = match *group {
            "" => plain,
            group => grouped(&plain, group),
        };
        (PUBLISHER, RequestBody::Publish(message))
    };
    let out = rig.batch(messages.iter().map(publish).collect());
    check(rig);
    out
}

/// Asserts that the indexes are consistent, and that a replica that begins with a checkpoint has the same state.
fn check(rig: &Rig) {
    let groups = rig.machine.ready.groups().expect("the queue has groups");
    groups.assert_consistent();
    let state = rig.machine.snapshot();
    let again = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert_eq!(again.snapshot(), state);
}

/// Deliveries as pairs of the session and the number of the message. Those to one consumer are together.
fn delivered(out: &QueueOutput) -> Vec<(u64, u64)> {
    deliveries(out)
        .iter()
        .map(|(session, _, delivery)| (*session, number(&delivery.message)))
        .collect()
}

fn settle(rig: &mut Rig, session: u64, outcome: SettlementOutcome, id: u64) -> Vec<(u64, u64)> {
    let out = rig.settle(session, 1, outcome, id);
    check(rig);
    delivered(&out)
}

fn ack(rig: &mut Rig, session: u64, id: u64) -> Vec<(u64, u64)> {
    settle(rig, session, SettlementOutcome::Accepted, id)
}

fn consume(rig: &mut Rig, session: u64, spec: ConsumerSpec) -> Vec<(u64, u64)> {
    let out = rig.consume(session, 1, spec);
    check(rig);
    delivered(&out)
}

fn get(rig: &mut Rig, session: u64, consumer: u32) -> QueueOutput {
    let consumer = ConsumerId(consumer);
    let out = rig.one(
        session,
        RequestBody::Get {
            consumer,
            no_ack: false,
        },
    );
    check(rig);
    out
}

const NOTHING: [(u64, u64); 0] = [];

#[test]
fn group_is_delivered_to_one_consumer_and_others_skip_it() {
    let mut rig = rig();
    for session in 1..=3 {
        consume(&mut rig, session, spec(2, 0));
    }
    let out = publish(
        &mut rig,
        &[
            (1, "a"),
            (2, "a"),
            (3, "a"),
            (4, "b"),
            (5, "c"),
            (6, "c"),
            (7, "a"),
            (8, "b"),
        ],
    );
    // Message 3 waits for room of consumer 1; 4 to 6 pass it.
    assert_eq!(
        delivered(&out),
        [(1, 1), (1, 2), (2, 4), (2, 8), (3, 5), (3, 6)]
    );
    assert_eq!(rig.machine.stats().ready, 2);
    assert_eq!(ack(&mut rig, 1, 1), [(1, 3)]);
    assert_eq!(ack(&mut rig, 2, 1), NOTHING, "message 7 is of group a");
    assert_eq!(ack(&mut rig, 1, 2), [(1, 7)]);
}

#[test]
fn messages_without_a_group_are_delivered_by_turns() {
    let mut rig = rig();
    for session in 1..=3 {
        consume(&mut rig, session, spec(0, 0));
    }
    let out = publish(&mut rig, &[(1, ""), (2, ""), (3, ""), (4, "")]);
    assert_eq!(delivered(&out), [(1, 1), (1, 4), (2, 2), (3, 3)]);
}

#[test]
fn new_group_goes_to_the_consumer_with_the_fewest_groups() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(0, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "b")]);
    assert_eq!(delivered(&out), [(1, 1), (1, 2)]);
    consume(&mut rig, 2, spec(0, 0));
    let out = publish(&mut rig, &[(3, "c"), (4, "d"), (5, "e"), (6, "c")]);
    assert_eq!(delivered(&out), [(2, 3), (2, 4), (2, 6), (1, 5)]);
    // A higher priority precedes the number of groups.
    consume(&mut rig, 3, spec(0, 5));
    let out = publish(&mut rig, &[(7, "f"), (8, "g"), (9, "a")]);
    assert_eq!(delivered(&out), [(3, 7), (3, 8), (1, 9)]);
}

#[test]
fn free_group_returns_to_its_previous_owner() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(1, 0));
    consume(&mut rig, 2, spec(1, 0));
    assert_eq!(delivered(&publish(&mut rig, &[(1, "a")])), [(1, 1)]);
    assert_eq!(ack(&mut rig, 1, 1), NOTHING);
    // Consumer 2 has waited longer, and consumer 1 had the group.
    assert_eq!(delivered(&publish(&mut rig, &[(2, "a")])), [(1, 2)]);
    assert_eq!(ack(&mut rig, 1, 2), NOTHING);
    assert_eq!(delivered(&publish(&mut rig, &[(3, "")])), [(2, 3)]);
    assert_eq!(delivered(&publish(&mut rig, &[(4, "")])), [(1, 4)]);
    // The previous owner has no room.
    assert_eq!(ack(&mut rig, 2, 1), NOTHING);
    assert_eq!(delivered(&publish(&mut rig, &[(5, "a")])), [(2, 5)]);
}

#[test]
fn messages_of_a_dead_owner_return_in_order_to_another_consumer() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(3, 0));
    consume(&mut rig, 2, spec(9, 0));
    let out = publish(
        &mut rig,
        &[(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "b")],
    );
    assert_eq!(delivered(&out), [(1, 1), (1, 2), (1, 3), (2, 5)]);
    let out = rig.one(1, RequestBody::Close);
    check(&rig);
    assert_eq!(delivered(&out), [(2, 1), (2, 2), (2, 3), (2, 4)]);
    assert!(deliveries(&out)[..3].iter().all(|d| d.2.redelivered));
}

#[test]
fn unreachable_owner_loses_its_groups() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(2, 0));
    consume(&mut rig, 2, spec(9, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "a"), (3, "a")]);
    assert_eq!(delivered(&out), [(1, 1), (1, 2)]);
    let out = rig.command(Command::NodeSuspected(session(1).node).encode());
    check(&rig);
    assert_eq!(delivered(&out), [(2, 1), (2, 2), (2, 3)]);
    let out = rig.command(Command::NodeTrusted(session(1).node).encode());
    check(&rig);
    assert_eq!(delivered(&out), NOTHING);
}

#[test]
fn cancelled_consumer_keeps_a_group_until_it_has_settled_its_messages() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(2, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "a"), (3, "a"), (4, "b")]);
    assert_eq!(delivered(&out), [(1, 1), (1, 2)]);
    let consumer = ConsumerId(1);
    rig.one(1, RequestBody::Cancel { consumer });
    check(&rig);
    assert_eq!(consume(&mut rig, 2, spec(0, 0)), [(2, 4)]);
    assert_eq!(ack(&mut rig, 1, 1), NOTHING);
    assert_eq!(ack(&mut rig, 1, 2), [(2, 3)]);
}

#[test]
fn returned_messages_keep_their_place_in_the_group() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(3, 0));
    let out = publish(
        &mut rig,
        &[(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")],
    );
    assert_eq!(delivered(&out), [(1, 1), (1, 2), (1, 3)]);
    // The later one returns first.
    let consumer = ConsumerId(1);
    rig.one(1, RequestBody::Cancel { consumer });
    settle(&mut rig, 1, SettlementOutcome::Requeue, 3);
    settle(&mut rig, 1, SettlementOutcome::Released, 1);
    assert_eq!(
        consume(&mut rig, 2, spec(0, 0)),
        NOTHING,
        "message 2 is unsettled"
    );
    let modified = RequestBody::Modify {
        consumer,
        ids: vec![(2, 2)],
        modification: Box::new(Modification::failed()),
    };
    let out = rig.one(1, modified);
    check(&rig);
    assert_eq!(delivered(&out), [(2, 1), (2, 2), (2, 3), (2, 4), (2, 5)]);
}

#[test]
fn requeued_message_keeps_its_place_without_a_delivery_limit() {
    let mut rig = rig_with(QueueSettings {
        delivery_limit: None,
        ..settings()
    });
    consume(&mut rig, 1, spec(1, 0));
    publish(&mut rig, &[(1, "a"), (2, "a"), (3, "")]);
    assert_eq!(settle(&mut rig, 1, SettlementOutcome::Requeue, 1), [(1, 1)]);
}

#[test]
fn order_holds_within_each_priority() {
    let mut rig = rig();
    let message = |n: u64, priority: u8| {
        let plain = message(n, Some(priority), None);
        (PUBLISHER, RequestBody::Publish(grouped(&plain, "a")))
    };
    rig.batch(vec![
        message(1, 0),
        message(2, 9),
        message(3, 0),
        message(4, 9),
        message(5, 31),
    ]);
    check(&rig);
    let details = rig.machine.ready_details();
    assert_eq!(details, None, "strict priorities are not enabled");
    rig.enable_strict_priorities();
    let details = rig.machine.ready_details().unwrap();
    assert_eq!(details.by_priority, [(0, 2), (9, 2), (31, 1)]);
    assert_eq!(
        consume(&mut rig, 1, spec(4, 0)),
        [(1, 5), (1, 2), (1, 4), (1, 1)]
    );
    // Requeued messages precede all priorities.
    settle(&mut rig, 1, SettlementOutcome::Requeue, 2);
    let out = rig.one(1, RequestBody::Close);
    check(&rig);
    assert_eq!(delivered(&out), NOTHING);
    assert_eq!(
        consume(&mut rig, 2, spec(0, 0)),
        [(2, 1), (2, 2), (2, 4), (2, 5), (2, 3)]
    );
}

#[test]
fn dead_letters_leave_their_group() {
    let mut rig = rig_with(QueueSettings {
        delivery_limit: Some(1),
        ..settings()
    });
    consume(&mut rig, 1, spec(1, 0));
    consume(&mut rig, 2, spec(1, 0));
    publish(&mut rig, &[(1, "a"), (2, "a"), (3, "a"), (4, "a")]);
    assert_eq!(settle(&mut rig, 1, SettlementOutcome::Requeue, 1), [(1, 1)]);
    let out = rig.settle(1, 1, SettlementOutcome::Requeue, 2);
    check(&rig);
    assert_eq!(delivered(&out), [(1, 2)]);
    assert_eq!(out.dead[0].0, DeadReason::DeliveryLimit);
    assert_eq!(
        settle(&mut rig, 1, SettlementOutcome::Rejected, 3),
        [(1, 3)]
    );
}

#[test]
fn messages_of_owned_groups_expire() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(1, 0));
    publish(&mut rig, &[(1, "a")]);
    let later = grouped(&message(2, None, Some(50)), "a");
    rig.one(PUBLISHER, RequestBody::Publish(later));
    publish(&mut rig, &[(3, "a")]);
    assert_eq!(rig.machine.next_timer(), Some(WallTime(1050)));
    let out = rig.pass(50);
    check(&rig);
    assert_eq!(out.dead[0].0, DeadReason::Expired);
    assert_eq!(ack(&mut rig, 1, 1), [(1, 3)]);
}

#[test]
fn length_limit_drops_messages_of_owned_groups() {
    let mut rig = rig_with(QueueSettings {
        max_length: Some(2),
        overflow: Overflow::DropHead,
        ..settings()
    });
    consume(&mut rig, 1, spec(1, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "a"), (3, "b"), (4, "a")]);
    assert_eq!(delivered(&out), [(1, 1)]);
    let dropped: Vec<u64> = out.dead.iter().map(|dead| number(&dead.1)).collect();
    assert_eq!(dropped, [2]);
    assert_eq!(rig.machine.stats().ready, 2);
}

fn delaying() -> Rig {
    let mut rig = rig();
    rig.delay_returns(Some(DelayedRetry {
        returns: DelayedReturns::All,
        min_ms: 100,
        max_ms: 1000,
    }));
    rig
}

#[test]
fn group_waits_for_a_message_that_was_returned_for_retry() {
    let mut rig = delaying();
    consume(&mut rig, 1, spec(1, 0));
    consume(&mut rig, 2, spec(1, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "a"), (3, "b"), (4, "b")]);
    assert_eq!(delivered(&out), [(1, 1), (2, 3)]);
    assert_eq!(settle(&mut rig, 1, SettlementOutcome::Requeue, 1), NOTHING);
    // Another group goes on.
    assert_eq!(ack(&mut rig, 2, 1), [(2, 4)]);
    let out = rig.pass(100);
    check(&rig);
    assert_eq!(delivered(&out), [(1, 1)]);
    assert_eq!(ack(&mut rig, 1, 2), [(1, 2)]);
}

#[test]
fn group_goes_on_when_its_delayed_messages_are_gone() {
    let mut rig = delaying();
    consume(&mut rig, 1, spec(1, 0));
    let expiring = grouped(&message(1, None, Some(50)), "a");
    rig.one(PUBLISHER, RequestBody::Publish(expiring));
    publish(&mut rig, &[(2, "a")]);
    assert_eq!(settle(&mut rig, 1, SettlementOutcome::Requeue, 1), NOTHING);
    let out = rig.pass(50);
    check(&rig);
    assert_eq!(out.dead[0].0, DeadReason::Expired);
    assert_eq!(delivered(&out), [(1, 2)]);
    assert_eq!(settle(&mut rig, 1, SettlementOutcome::Requeue, 2), NOTHING);
    rig.one(PUBLISHER, RequestBody::Purge);
    check(&rig);
    assert_eq!(delivered(&publish(&mut rig, &[(3, "a")])), [(1, 3)]);
}

#[test]
fn scheduled_message_does_not_hold_up_its_group() {
    let mut rig = rig();
    rig.enable_scheduled_delivery();
    consume(&mut rig, 1, spec(1, 0));
    let later = schedule(&grouped(&message(1, None, None), "a"), 100).unwrap();
    rig.one(PUBLISHER, RequestBody::Publish(later));
    check(&rig);
    let out = publish(&mut rig, &[(2, "a"), (3, "a")]);
    assert_eq!(delivered(&out), [(1, 2)]);
    rig.pass(100);
    check(&rig);
    assert_eq!(ack(&mut rig, 1, 1), [(1, 1)], "it is due before message 3");
    assert_eq!(ack(&mut rig, 1, 2), [(1, 3)]);
}

#[test]
fn get_takes_free_groups_and_owns_them() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(1, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "a"), (3, "b"), (4, "b")]);
    assert_eq!(delivered(&out), [(1, 1)]);
    assert_eq!(delivered(&get(&mut rig, 2, 1)), [(2, 3)]);
    assert_eq!(answers(&get(&mut rig, 2, 2)), [QueueReply::Empty]);
    // The consumer skips the group of the `Get`.
    assert_eq!(ack(&mut rig, 1, 1), [(1, 2)]);
    assert_eq!(ack(&mut rig, 1, 2), NOTHING);
    assert_eq!(ack(&mut rig, 2, 1), [(1, 4)]);
}

#[test]
fn new_leader_knows_the_owners_of_groups() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(1, 0));
    consume(&mut rig, 2, spec(1, 0));
    publish(
        &mut rig,
        &[(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c")],
    );
    assert_eq!(ack(&mut rig, 2, 1), [(2, 4)]);
    let state = rig.machine.snapshot();
    rig.machine = Machine::restore("queue 'q' in vhost '/'".into(), state).unwrap();
    rig.machine.begin_leading();
    assert_eq!(ack(&mut rig, 2, 2), [(2, 5)]);
    assert_eq!(ack(&mut rig, 1, 1), [(1, 2)]);
    assert_eq!(ack(&mut rig, 1, 2), NOTHING);
    assert_eq!(ack(&mut rig, 2, 3), NOTHING);
    assert_eq!(
        delivered(&publish(&mut rig, &[(6, "a"), (7, "b")])),
        [(1, 6), (2, 7)]
    );
}

#[test]
fn drain_ends_when_only_groups_of_other_consumers_have_messages() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(1, 0));
    publish(&mut rig, &[(1, "a"), (2, "a")]);
    let credited = ConsumerSpec {
        flow_mode: FlowMode::Credit,
        ..spec(0, 0)
    };
    consume(&mut rig, 2, credited);
    let drain = RequestBody::Credit {
        consumer: ConsumerId(1),
        up_to: 5,
        drain: true,
    };
    let out = rig.one(2, drain);
    check(&rig);
    let drained = QueueReply::Credited {
        last: 0,
        available: 1,
        drained: true,
    };
    assert_eq!(answers(&out), [drained]);
}

#[test]
fn single_active_consumer_waits_for_the_groups_of_its_predecessor() {
    let mut rig = rig_with(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    consume(&mut rig, 1, spec(1, 0));
    consume(&mut rig, 2, spec(3, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "a"), (3, "b")]);
    assert_eq!(delivered(&out), [(1, 1)]);
    let consumer = ConsumerId(1);
    let out = rig.one(1, RequestBody::Cancel { consumer });
    check(&rig);
    assert_eq!(delivered(&out), [(2, 3)]);
    assert_eq!(ack(&mut rig, 1, 1), [(2, 2)]);
}

#[test]
fn consumers_without_acknowledgement_own_groups_until_they_have_the_messages() {
    let mut rig = rig();
    let no_ack = ConsumerSpec {
        no_ack: true,
        ..spec(0, 0)
    };
    consume(&mut rig, 1, no_ack);
    consume(&mut rig, 2, spec(0, 0));
    let out = publish(&mut rig, &[(1, "a"), (2, "b"), (3, "a")]);
    assert_eq!(delivered(&out), [(1, 1), (1, 3), (2, 2)]);
}

#[test]
fn queue_that_is_deleted_forgets_its_groups() {
    let mut rig = rig();
    consume(&mut rig, 1, spec(1, 0));
    publish(&mut rig, &[(1, "a"), (2, "a"), (3, "b")]);
    let delete = RequestBody::Delete {
        if_unused: false,
        if_empty: false,
    };
    rig.one(1, delete);
    check(&rig);
    assert!(rig.machine.deleted());
    assert_eq!(rig.machine.stats().messages(), 0);
}

#[test]
fn queue_that_begins_with_groups_keeps_its_messages_and_consumers() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, spec(1, 0));
    let first = grouped(&message(1, None, None), "a");
    rig.one(PUBLISHER, RequestBody::Publish(first));
    rig.publish([2, 3]);
    rig.enable_groups();
    check(&rig);
    publish(&mut rig, &[(4, "a")]);
    assert_eq!(ack(&mut rig, 1, 1), [(1, 2)]);
    assert_eq!(ack(&mut rig, 1, 2), [(1, 3)]);
    assert_eq!(ack(&mut rig, 1, 3), [(1, 4)]);
}

#[test]
fn number_of_remembered_owners_is_limited() {
    let mut rig = rig();
    rig.consume(1, 1, spec(0, 0));
    let groups: Vec<String> = (0..=MAX_IDLE_GROUPS).map(|n| n.to_string()).collect();
    let plain = message(1, None, None);
    for batch in groups.chunks(2000) {
        let publish = |group: &String| (PUBLISHER, RequestBody::Publish(grouped(&plain, group)));
        rig.batch(batch.iter().map(publish).collect());
        let all = RequestBody::Settle {
            consumer: ConsumerId(1),
            outcome: SettlementOutcome::Accepted,
            ids: vec![(0, u64::MAX)],
        };
        rig.one(1, all);
    }
    check(&rig);
    let groups = rig.machine.ready.groups().unwrap();
    let idle = groups.idle_owners().count();
    // Groups with the same number are one.
    assert!(
        (MAX_IDLE_GROUPS - 10..=MAX_IDLE_GROUPS).contains(&idle),
        "{idle}"
    );
    let known = |n: u64| {
        let group = GroupId::of(&n.to_string());
        groups.idle_owners().any(|previous| previous.group == group)
    };
    assert!(known(MAX_IDLE_GROUPS as u64));
}
