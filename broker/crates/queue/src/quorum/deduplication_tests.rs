//! Deduplication: which publishes a queue stores, also after a checkpoint.

use super::machine::Machine;
use super::tests::{Rig, deliveries, message, number, settings, spec};
use crate::{
    ConsumerId, DeduplicationId, Overflow, QueueEvent, QueueOutput, QueueSettings, RequestBody,
    SettlementOutcome, deduplicate,
};
use message::{Deaths, Message};
use proptest::prelude::*;

const PUBLISHER: u64 = 9;
const WINDOW_MS: u64 = 1_000;

fn rig(settings: QueueSettings) -> Rig {
    let mut rig = Rig::new(settings);
    rig.deduplicate(WINDOW_MS);
    rig
}

fn identified(n: u64, id: &DeduplicationId) -> Message {
    deduplicate(&message(n, None, None), id).expect("a small message")
}

fn publish(rig: &mut Rig, n: u64, id: &DeduplicationId) -> QueueOutput {
    rig.one(PUBLISHER, RequestBody::Publish(identified(n, id)))
}

fn restart(rig: &mut Rig) {
    let state = rig.machine.snapshot();
    rig.machine = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert_eq!(rig.machine.snapshot(), state);
}

/// Consumes all messages without acknowledgement and returns their numbers.
fn drained(rig: &mut Rig) -> Vec<u64> {
    let out = rig.consume(1, 1, spec(0, 0));
    deliveries(&out)
        .iter()
        .map(|d| number(&d.2.message))
        .collect()
}

#[test]
fn copies_are_confirmed_and_not_stored() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, &DeduplicationId::numbered("p", 1));
    let out = publish(&mut rig, 2, &DeduplicationId::numbered("p", 1));
    let confirmed = QueueEvent::Applied { up_to: 2 };
    assert_eq!(out.events.last().map(|e| &e.event), Some(&confirmed));
    publish(&mut rig, 3, &DeduplicationId::value("v"));
    publish(&mut rig, 4, &DeduplicationId::value("v"));
    publish(&mut rig, 5, &DeduplicationId::numbered("p", 2));
    rig.publish([6, 7]);
    assert_eq!(drained(&mut rig), [1, 3, 5, 6, 7]);
}

#[test]
fn consumed_and_purged_messages_are_remembered() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, &DeduplicationId::value("v"));
    rig.one(PUBLISHER, RequestBody::Purge);
    publish(&mut rig, 2, &DeduplicationId::value("v"));
    assert_eq!(rig.machine.stats().ready, 0);
    rig.pass(WINDOW_MS);
    publish(&mut rig, 3, &DeduplicationId::value("v"));
    assert_eq!(rig.machine.stats().ready, 1);
}

#[test]
fn refused_publishes_are_not_remembered() {
    let mut rig = rig(QueueSettings {
        max_length: Some(0),
        overflow: Overflow::RejectPublish,
        ..settings()
    });
    publish(&mut rig, 1, &DeduplicationId::numbered("p", 1));
    let out = publish(&mut rig, 2, &DeduplicationId::numbered("p", 2));
    let last = out.events.last().map(|e| &e.event);
    assert!(
        matches!(last, Some(QueueEvent::AppliedExcept { .. })),
        "{last:?}"
    );
    rig.one(PUBLISHER, RequestBody::Purge);
    publish(&mut rig, 3, &DeduplicationId::numbered("p", 2));
    assert_eq!(drained(&mut rig), [3]);
}

#[test]
fn dead_letters_and_returned_messages_are_no_copies() {
    let mut rig = rig(settings());
    publish(&mut rig, 1, &DeduplicationId::value("v"));
    let died =
        identified(2, &DeduplicationId::value("v")).dead_lettered("", None, &Deaths::default());
    rig.one(
        PUBLISHER,
        RequestBody::Publish(died.expect("a small message")),
    );
    let out = rig.consume(1, 1, spec(0, 0));
    let all = deliveries(&out);
    assert_eq!(all.len(), 2);
    let requeue = RequestBody::Settle {
        consumer: ConsumerId(1),
        ids: vec![(all[0].2.id, all[1].2.id)],
        outcome: SettlementOutcome::Requeue,
    };
    assert_eq!(deliveries(&rig.one(1, requeue)).len(), 2);
}

#[test]
fn queue_without_deduplication_stores_copies() {
    let mut rig = Rig::new(settings());
    publish(&mut rig, 1, &DeduplicationId::value("v"));
    publish(&mut rig, 2, &DeduplicationId::value("v"));
    assert_eq!(drained(&mut rig), [1, 2]);
}

/// What a client does, with numbers of a small range, so that copies are frequent.
#[derive(Clone, Debug)]
enum Step {
    Numbered { publisher: u8, number: u8 },
    Value(u8),
    Plain,
    Pass(u64),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..3, 0u8..30).prop_map(|(publisher, number)| Step::Numbered { publisher, number }),
        6 => (0u8..8).prop_map(Step::Value),
        1 => Just(Step::Plain),
        2 => (0u64..WINDOW_MS).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// The model keeps every stored message and looks through all of them.
    #[test]
    fn queue_stores_what_the_model_stores(steps in steps()) {
        let mut rig = rig(settings());
        let mut numbers: Vec<(u8, u8)> = Vec::new();
        let mut values: Vec<(u8, u64)> = Vec::new();
        let mut stored = Vec::new();
        for (n, step) in (0u64..).zip(steps) {
            match step {
                Step::Numbered { publisher, number } => {
                    if !numbers.iter().any(|(p, last)| *p == publisher && *last >= number) {
                        stored.push(n);
                    }
                    numbers.push((publisher, number));
                    publish(&mut rig, n, &DeduplicationId::numbered(&publisher.to_string(), number.into()));
                }
                Step::Value(it) => {
                    let now = rig.wall;
                    if !values.iter().any(|(v, at)| *v == it && at + WINDOW_MS > now) {
                        values.push((it, now));
                        stored.push(n);
                    }
                    publish(&mut rig, n, &DeduplicationId::value(&it.to_string()));
                }
                Step::Plain => {
                    stored.push(n);
                    rig.publish([n]);
                }
                Step::Pass(ms) => {
                    rig.pass(ms);
                }
                Step::Restart => restart(&mut rig),
            }
        }
        prop_assert_eq!(drained(&mut rig), stored);
    }
}
