//! Consumers of a session that outlives its connections: order and settling from one connection to the next.

use super::command::Command;
use super::machine::Machine;
use super::tests::{Rig, answers, deliveries, number, session, settings, spec};
use super::{Effect, Effects};
use crate::{
    ConsumerId, DeadIncarnation, EpochConsumer, QueueEvent, QueueOutput, QueueReply, QueueSettings,
    RequestBody, ResumeConsumer, SessionEpoch, Settlement, SettlementOutcome,
};
use env::{Incarnation, NodeId};

const CONSUMER: ConsumerId = ConsumerId(1);

/// The settings of an MQTT session's queue.
fn rig() -> Rig {
    Rig::new(QueueSettings {
        delivery_limit: None,
        ..settings()
    })
}

/// A connection of the session that outlives its connections.
fn connect(rig: &mut Rig, by: u64, prefetch: u32, settled: Option<Settlement>) -> QueueOutput {
    let next = EpochConsumer {
        consumer: CONSUMER,
        spec: spec(prefetch, 0),
        settled,
        epoch: SessionEpoch::New,
        at: 0,
    };
    rig.one(by, RequestBody::TakeOver(Box::new(next)))
}

fn done(by: u64, ids: &[(u64, u64)]) -> Option<Settlement> {
    Some(Settlement {
        session: session(by),
        consumer: CONSUMER,
        ids: ids.to_vec(),
    })
}

fn leave(rig: &mut Rig, by: u64) -> QueueOutput {
    rig.one(by, RequestBody::CancelAndRequeue { consumer: CONSUMER })
}

/// The consumer's session, the message number and whether it was redelivered.
fn handed(out: &QueueOutput) -> Vec<(u64, u64, bool)> {
    let show = |d: &(u64, u32, crate::Delivery)| (d.0, number(&d.2.message), d.2.redelivered);
    deliveries(out).iter().map(show).collect()
}

fn ended(out: &QueueOutput) -> Vec<u64> {
    let ended =
        |a: &&crate::AddressedEvent| a.event == QueueEvent::Cancelled { consumer: CONSUMER };
    let all = out.events.iter().filter(ended);
    all.map(|a| a.session.number).collect()
}

fn counts(rig: &Rig) -> (u64, u64, u32) {
    let stats = rig.machine.stats();
    (stats.ready, stats.unacknowledged, stats.consumers)
}

#[test]
fn next_connection_gets_the_unsettled_messages_first() {
    let mut rig = rig();
    connect(&mut rig, 1, 3, None);
    let out = rig.publish(1..=5);
    assert_eq!(handed(&out), [(1, 1, false), (1, 2, false), (1, 3, false)]);
    let out = connect(&mut rig, 2, 2, None);
    assert_eq!(ended(&out), [1]);
    assert_eq!(handed(&out), [(2, 1, true), (2, 2, true)]);
    assert_eq!(counts(&rig), (3, 2, 1));
    // A consumer with a smaller window than the previous one: 3 was requeued first, and 1 and 2 go before it.
    let out = connect(&mut rig, 4, 4, None);
    let all = [(4, 1, true), (4, 2, true), (4, 3, true), (4, 4, false)];
    assert_eq!(handed(&out), all);
    // Late requests of earlier connections have no effect.
    rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    leave(&mut rig, 1);
    leave(&mut rig, 2);
    assert_eq!(counts(&rig), (1, 4, 1));
    let out = leave(&mut rig, 4);
    assert_eq!(handed(&out), []);
    let out = connect(&mut rig, 5, 9, None);
    assert!(ended(&out).is_empty());
    let order: Vec<u64> = handed(&out).iter().map(|d| d.1).collect();
    assert_eq!(order, [1, 2, 3, 4, 5]);
}

#[test]
fn settled_messages_of_the_previous_connection_are_not_redelivered() {
    let mut rig = rig();
    connect(&mut rig, 1, 4, None);
    rig.publish(1..=5);
    let out = connect(&mut rig, 2, 4, done(1, &[(1, 1), (3, 3), (9, 8)]));
    assert_eq!(handed(&out), [(2, 2, true), (2, 4, true), (2, 5, false)]);
    assert_eq!(counts(&rig), (0, 3, 1));
    // Its settlement is applied at last, and one more connection repeats it.
    rig.settle(1, 1, SettlementOutcome::Accepted, 3);
    let out = connect(&mut rig, 3, 4, done(1, &[(1, 4)]));
    assert_eq!(handed(&out).len(), 3);
    assert_eq!(rig.machine.counters().deliveries.ack, 2);
}

#[test]
fn consumers_of_other_sessions_are_not_replaced() {
    let mut rig = rig();
    rig.consume(1, 1, spec(1, 0));
    let other = EpochConsumer {
        consumer: CONSUMER,
        spec: crate::ConsumerSpec {
            tag: "other".into(),
            ..spec(1, 0)
        },
        settled: None,
        epoch: SessionEpoch::New,
        at: 0,
    };
    rig.one(2, RequestBody::TakeOver(Box::new(other)));
    rig.publish(1..=2);
    let out = connect(&mut rig, 3, 4, done(1, &[(1, 1)]));
    assert!(ended(&out).is_empty());
    let out = connect(&mut rig, 4, 4, done(2, &[(1, 1)]));
    assert_eq!(ended(&out), [3]);
    assert_eq!(counts(&rig), (0, 2, 3));
}

#[test]
fn replaced_connection_is_told_again_that_its_consumer_ended() {
    let mut rig = rig();
    connect(&mut rig, 1, 3, None);
    connect(&mut rig, 2, 3, None);
    let state = rig.machine.snapshot();
    rig.machine = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert_eq!(rig.machine.snapshot(), state);
    let resume = |rig: &mut Rig| {
        let mut effects = Effects::collecting();
        let resume = ResumeConsumer {
            session: session(1),
            consumer: CONSUMER,
            next: 1,
        };
        rig.machine.resume(&resume, &mut effects);
        effects.list
    };
    let cancelled = Effect::Event {
        session: session(1),
        event: QueueEvent::Cancelled { consumer: CONSUMER },
    };
    assert_eq!(resume(&mut rig), [cancelled]);
    leave(&mut rig, 1);
    assert_eq!(resume(&mut rig), []);
    assert_eq!(rig.machine.checkout.consumers.len(), 1);
}

#[test]
fn unsettled_messages_stay_while_the_node_cannot_be_reached() {
    let mut rig = rig();
    let node = session(1).node;
    connect(&mut rig, 1, 2, None);
    rig.publish(1..=3);
    rig.command(Command::NodeSuspected(node).encode());
    assert_eq!(counts(&rig), (1, 2, 1));
    // The node was only slow.
    let out = rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    assert_eq!(handed(&out), [(1, 3, false)]);
    // The session connects elsewhere; then the incarnation of the node ends.
    rig.command(Command::NodeSuspected(node).encode());
    let out = connect(&mut rig, 2, 1, None);
    assert_eq!((handed(&out), ended(&out)), (vec![(2, 2, true)], vec![1]));
    let gone = DeadIncarnation {
        node: NodeId(session(2).node.0),
        before: Incarnation(2),
    };
    rig.command(Command::GoneNode(gone).encode());
    assert_eq!(counts(&rig), (2, 0, 0));
    let out = connect(&mut rig, 3, 2, None);
    assert_eq!(handed(&out), [(3, 2, true), (3, 3, true)]);
}

#[test]
fn message_number_is_the_same_for_every_connection() {
    let mut rig = rig();
    connect(&mut rig, 1, 2, None);
    let out = rig.publish(1..=3);
    let marks = |out: &QueueOutput| -> Vec<_> {
        let all = deliveries(out);
        let each = all.iter().map(|d| (number(&d.2.message), d.2.mark()));
        each.collect()
    };
    let first = marks(&out);
    assert!(first[0].1.is_some() && first[0].1 != first[1].1);
    assert_eq!(marks(&connect(&mut rig, 2, 2, None)), first);
    // Consumers that share a queue are told no message number.
    leave(&mut rig, 2);
    let out = rig.consume(3, 1, spec(3, 0));
    assert!(marks(&out).iter().all(|(_, mark)| mark.is_none()));
}

#[test]
fn location_too_large_for_a_number_has_none() {
    let location = |index, offset| super::effects::LogLocation { index, offset }.number();
    assert_eq!(location(0, 0), 0);
    assert_ne!(location(1, 0), location(0, 1));
    assert_ne!(location(1, (1 << 21) - 1), 0);
    assert_eq!((location(1, 1 << 21), location(1 << 43, 0)), (0, 0));
}

/// A connection with an epoch; returns the answers that it gets.
fn join(rig: &mut Rig, by: u64, epoch: SessionEpoch, at: u64) -> (Vec<QueueReply>, Vec<u64>) {
    let next = EpochConsumer {
        consumer: CONSUMER,
        spec: spec(1, 0),
        settled: None,
        epoch,
        at,
    };
    let out = rig.one(by, RequestBody::TakeOver(Box::new(next)));
    let state = rig.machine.snapshot();
    let restored = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert_eq!(restored.snapshot(), state);
    (answers(&out), ended(&out))
}

#[test]
fn epoch_continues_until_another_one_has_consumed() {
    let mut rig = rig();
    let of = |number| SessionEpoch::Of(session(number));
    let (continues, starts_new) = (
        vec![QueueReply::EpochContinues],
        vec![QueueReply::Consuming],
    );
    // The queue knows no epoch, so a connection that knows none continues.
    assert_eq!(join(&mut rig, 1, SessionEpoch::New, 0).0, continues);
    assert_eq!(join(&mut rig, 2, of(1), 0).0, continues);
    leave(&mut rig, 2);
    // A connection that ended has not changed the epoch.
    assert_eq!(join(&mut rig, 3, of(1), 0).0, continues);
    assert_eq!(join(&mut rig, 4, SessionEpoch::New, 0).0, starts_new);
    assert_eq!(join(&mut rig, 5, of(1), 0).0, starts_new);
    assert_eq!(join(&mut rig, 6, of(4), 0).0, starts_new);
    assert_eq!(join(&mut rig, 7, of(6), 0).0, continues);
}

#[test]
fn late_request_does_not_replace_a_later_connection() {
    let mut rig = rig();
    assert_eq!(
        join(&mut rig, 1, SessionEpoch::New, 70).0,
        [QueueReply::EpochContinues]
    );
    let (replies, ended_sessions) = join(&mut rig, 2, SessionEpoch::New, 69);
    assert!(matches!(
        replies[..],
        [QueueReply::Refused { code: 403, .. }]
    ));
    assert_eq!(ended_sessions, []);
    assert_eq!(counts(&rig).2, 1);
    // The order is unknown if one of them has no index, or if both have the same one.
    assert_eq!(join(&mut rig, 3, SessionEpoch::New, 0).1, [1]);
    assert_eq!(join(&mut rig, 4, SessionEpoch::New, 70).1, [3]);
    let (replies, ended_sessions) = join(&mut rig, 5, SessionEpoch::Of(session(4)), 69);
    assert!(
        matches!(replies[..], [QueueReply::Refused { code: 403, .. }]) && ended_sessions.is_empty()
    );
    assert_eq!(join(&mut rig, 6, SessionEpoch::Of(session(4)), 71).1, [4]);
}
