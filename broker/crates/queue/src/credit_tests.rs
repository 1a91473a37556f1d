//! Credit, drain and the outcome `modified`, on every queue type.

use crate::model::{QueueUnderTest, message, number, spec};
use crate::{
    Annotations, ConsumerId, ConsumerSpec, DeadReason, Delivery, FLOW_WINDOW, FlowMode,
    Modification, QueueEvent, QueueOutput, QueueReply, QueueSettings, RequestBody,
    SettlementOutcome, classic, quorum,
};
use message::{Table, Value};

const CONSUMER: ConsumerId = ConsumerId(1);

/// Runs a test on a queue of each type.
fn each(settings: impl Fn(&mut QueueSettings), test: impl Fn(&mut dyn QueueUnderTest, bool)) {
    let mut of_classic = classic::tests::settings();
    settings(&mut of_classic);
    test(&mut classic::tests::Rig::new(of_classic), false);
    let mut of_quorum = quorum::tests::settings();
    settings(&mut of_quorum);
    test(&mut quorum::tests::Rig::new(of_quorum), true);
}

fn each_type(test: impl Fn(&mut dyn QueueUnderTest)) {
    each(|_| {}, |queue, _| test(queue));
}

fn credit_spec(no_ack: bool) -> ConsumerSpec {
    ConsumerSpec {
        flow_mode: FlowMode::Credit,
        no_ack,
        // The prefetch must have no effect.
        ..spec(1, 0)
    }
}

fn consume(queue: &mut dyn QueueUnderTest, by: u64, spec: ConsumerSpec) -> QueueOutput {
    let consumer = CONSUMER;
    queue.request(by, RequestBody::Consume { consumer, spec })
}

fn publish(queue: &mut dyn QueueUnderTest, numbers: std::ops::RangeInclusive<u64>) -> QueueOutput {
    let mut all = QueueOutput::default();
    for n in numbers {
        let message = message(n, None, None, 8);
        all.append(&mut queue.request(9, RequestBody::Publish(message)));
    }
    all
}

fn credit(queue: &mut dyn QueueUnderTest, by: u64, up_to: u64, drain: bool) -> QueueOutput {
    let consumer = CONSUMER;
    queue.request(
        by,
        RequestBody::Credit {
            consumer,
            up_to,
            drain,
        },
    )
}

fn deliveries(out: &QueueOutput) -> Vec<Delivery> {
    let of = |event: &QueueEvent| match event {
        QueueEvent::Deliver { deliveries, .. } => deliveries.clone(),
        _ => Vec::new(),
    };
    out.events.iter().flat_map(|a| of(&a.event)).collect()
}

fn numbers(out: &QueueOutput) -> Vec<u64> {
    deliveries(out).iter().map(|d| number(&d.message)).collect()
}

fn ids(out: &QueueOutput) -> Vec<u64> {
    deliveries(out).iter().map(|d| d.id).collect()
}

fn credited(last: u64, available: u64, drained: bool) -> QueueReply {
    QueueReply::Credited {
        last,
        available,
        drained,
    }
}

/// The answers, each with the number of deliveries before it.
fn answers(out: &QueueOutput) -> Vec<(usize, QueueReply)> {
    let (mut delivered, mut all) = (0, Vec::new());
    for addressed in &out.events {
        match &addressed.event {
            QueueEvent::Deliver { deliveries, .. } => delivered += deliveries.len(),
            QueueEvent::Answer { answer, .. } => all.push((delivered, answer.clone())),
            _ => {}
        }
    }
    all
}

#[test]
fn consumer_gets_exactly_its_credit() {
    each_type(|queue| {
        publish(queue, 1..=5);
        assert_eq!(numbers(&consume(queue, 1, credit_spec(false))), []);
        let out = credit(queue, 1, 2, false);
        assert_eq!(numbers(&out), [1, 2]);
        assert_eq!(answers(&out), [(2, credited(2, 3, false))]);
        // Settlement gives no credit, and repeated credit is not added.
        let ids = vec![(1, 2)];
        let outcome = SettlementOutcome::Accepted;
        let consumer = CONSUMER;
        let out = queue.request(
            1,
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            },
        );
        assert_eq!(numbers(&out), []);
        assert_eq!(
            answers(&credit(queue, 1, 2, false)),
            [(0, credited(2, 3, false))]
        );
        // Credit that is set before there are messages.
        assert_eq!(numbers(&credit(queue, 1, 7, false)), [3, 4, 5]);
        assert_eq!(numbers(&publish(queue, 6..=9)), [6, 7]);
    });
}

#[test]
fn smaller_credit_revokes_credit() {
    each_type(|queue| {
        consume(queue, 1, credit_spec(false));
        credit(queue, 1, 10, false);
        assert_eq!(numbers(&publish(queue, 1..=3)), [1, 2, 3]);
        let out = credit(queue, 1, 4, false);
        assert_eq!(answers(&out), [(0, credited(3, 0, false))]);
        assert_eq!(numbers(&publish(queue, 4..=8)), [4]);
        // The same if it is below the deliveries so far.
        credit(queue, 1, 1, false);
        assert_eq!(numbers(&publish(queue, 9..=9)), []);
        assert_eq!(numbers(&credit(queue, 1, 5, false)), [5]);
    });
}

#[test]
fn drain_delivers_ready_messages_and_discards_the_rest_of_the_credit() {
    each_type(|queue| {
        publish(queue, 1..=3);
        consume(queue, 1, credit_spec(false));
        let out = credit(queue, 1, 10, true);
        assert_eq!(answers(&out), [(3, credited(3, 0, true))]);
        assert_eq!(ids(&out), [1, 2, 3]);
        assert_eq!(numbers(&publish(queue, 4..=5)), [], "no credit is left");
        // Ids continue without a gap.
        let out = credit(queue, 1, 4, true);
        assert_eq!((ids(&out), numbers(&out)), (vec![4], vec![4]));
        assert_eq!(answers(&out), [(1, credited(4, 1, true))]);
    });
}

#[test]
fn consumer_without_credit_does_not_block_another() {
    each_type(|queue| {
        consume(queue, 1, credit_spec(false));
        consume(queue, 2, credit_spec(false));
        credit(queue, 2, 3, false);
        let out = publish(queue, 1..=4);
        assert_eq!(numbers(&out), [1, 2, 3]);
        assert!(out.events.iter().all(|a| match a.event {
            QueueEvent::Deliver { .. } => a.session == queue.session(2),
            _ => true,
        }));
    });
}

#[test]
fn credit_is_refused_for_a_missing_consumer_or_one_with_prefetch() {
    each_type(|queue| {
        let code = |out: &QueueOutput| match &answers(out)[..] {
            [(_, QueueReply::Refused { code, .. })] => *code,
            other => panic!("{other:?}"),
        };
        publish(queue, 1..=2);
        assert_eq!(code(&credit(queue, 1, 5, true)), 404);
        consume(queue, 1, spec(1, 0));
        assert_eq!(code(&credit(queue, 1, 5, true)), 406);
    });
}

#[test]
fn end_of_a_queue_or_a_consumer_ends_its_drain() {
    each_type(|queue| {
        publish(queue, 1..=3);
        consume(queue, 1, credit_spec(false));
        queue.request(1, RequestBody::Cancel { consumer: CONSUMER });
        assert!(matches!(
            answers(&credit(queue, 1, 5, true))[..],
            [(0, QueueReply::Refused { code: 404, .. })]
        ));
    });
}

/// A drain needs bounded memory: it continues as the session passes messages to its client.
#[test]
fn drain_of_a_classic_queue_waits_for_the_flow_window() {
    let mut queue = classic::tests::Rig::new(classic::tests::settings());
    let window = u64::from(FLOW_WINDOW.messages);
    let all = 2 * window + 7;
    publish(&mut queue, 1..=all);
    consume(&mut queue, 1, credit_spec(false));
    let out = credit(&mut queue, 1, u32::MAX.into(), true);
    assert_eq!(ids(&out).len() as u64, window);
    assert_eq!(answers(&out), []);
    let out = queue.received(1, CONSUMER, window);
    assert_eq!((ids(&out).len() as u64, answers(&out)), (window, vec![]));
    let out = queue.received(1, CONSUMER, 2 * window);
    assert_eq!(ids(&out).len(), 7);
    assert_eq!(answers(&out), [(7, credited(all, 0, true))]);
    assert_eq!(numbers(&publish(&mut queue, 1..=1)), []);
}

#[test]
fn later_credit_ends_a_drain_in_progress() {
    let mut queue = classic::tests::Rig::new(classic::tests::settings());
    let window = u64::from(FLOW_WINDOW.messages);
    publish(&mut queue, 1..=window + 3);
    consume(&mut queue, 1, credit_spec(false));
    assert_eq!(answers(&credit(&mut queue, 1, 2 * window, true)), []);
    let out = credit(&mut queue, 1, window + 1, false);
    let last = credited(window, 3, false);
    assert_eq!(answers(&out), [(0, last.clone()), (0, last)]);
    assert_eq!(ids(&queue.received(1, CONSUMER, window)), [window + 1]);
    // It also ends when there are no more messages.
    assert_eq!(answers(&credit(&mut queue, 1, 9 * window, true)).len(), 1);
}

#[test]
fn purge_finishes_a_drain() {
    let mut queue = classic::tests::Rig::new(classic::tests::settings());
    let window = u64::from(FLOW_WINDOW.messages);
    publish(&mut queue, 1..=window + 3);
    consume(&mut queue, 1, credit_spec(false));
    assert_eq!(answers(&credit(&mut queue, 1, 2 * window, true)), []);
    let out = queue.request(9, RequestBody::Purge);
    let drained = (0, credited(window, 0, true));
    assert!(answers(&out).contains(&drained), "{:?}", answers(&out));
}

/// Without acknowledgement the queue limits unsettled deliveries, and the drain continues as the session
/// settles them.
#[test]
fn drain_of_a_quorum_queue_waits_until_deliveries_without_acknowledgement_are_settled() {
    let mut queue = quorum::tests::Rig::new(quorum::tests::settings());
    publish(&mut queue, 1..=2003);
    consume(&mut queue, 1, credit_spec(true));
    assert_eq!(answers(&credit(&mut queue, 1, 5000, true)), []);
    // The snapshot contains the drain.
    queue.restart();
    let consumer = CONSUMER;
    let outcome = SettlementOutcome::Accepted;
    let ids = vec![(1, 2000)];
    let out = queue.request(
        1,
        RequestBody::Settle {
            consumer,
            outcome,
            ids,
        },
    );
    assert_eq!(answers(&out), [(3, credited(2003, 0, true))]);
    assert_eq!(numbers(&publish(&mut queue, 1..=1)), []);
}

/// The leader reads one window of the assigned messages at a time, whatever the credit.
#[test]
fn closed_client_window_bounds_the_messages_in_memory() {
    let mut queue = quorum::tests::Rig::new(quorum::tests::settings());
    let window = u64::from(FLOW_WINDOW.messages);
    publish(&mut queue, 1..=window + 5);
    consume(&mut queue, 1, credit_spec(false));
    let out = credit(&mut queue, 1, u32::MAX.into(), false);
    assert_eq!(ids(&out).len() as u64, window);
    assert_eq!(queue.received(1, CONSUMER, 5).events.len(), 1);
}

#[test]
fn credit_is_part_of_a_snapshot() {
    let mut queue = quorum::tests::Rig::new(quorum::tests::settings());
    consume(&mut queue, 1, credit_spec(false));
    credit(&mut queue, 1, 2, false);
    queue.restart();
    assert_eq!(numbers(&publish(&mut queue, 1..=3)), [1, 2]);
}

fn annotations(entries: &[(&str, &str)]) -> Annotations {
    let entries = entries.iter().map(|(k, v)| ((*k).into(), Value::from(*v)));
    Annotations::new(Table(entries.collect())).unwrap()
}

fn modify(
    queue: &mut dyn QueueUnderTest,
    id: u64,
    delivery_failed: bool,
    undeliverable_here: bool,
    annotations: Annotations,
) -> QueueOutput {
    let modification = Box::new(Modification {
        delivery_failed,
        undeliverable_here,
        annotations,
    });
    let (consumer, ids) = (CONSUMER, vec![(id, id)]);
    queue.request(
        1,
        RequestBody::Modify {
            consumer,
            ids,
            modification,
        },
    )
}

#[test]
fn modified_message_is_redelivered_and_counts_failed_attempts() {
    each(
        |_| {},
        |queue, counts| {
            publish(queue, 1..=1);
            consume(queue, 1, credit_spec(false));
            credit(queue, 1, 9, false);
            let none = Annotations::default;
            let again = |out: QueueOutput| {
                let all = deliveries(&out);
                assert_eq!(all.len(), 1);
                assert!(all[0].redelivered);
                all[0].attempts
            };
            let attempts = |n: u32| counts.then_some(n);
            assert_eq!(again(modify(queue, 1, false, false, none())), attempts(0));
            assert_eq!(again(modify(queue, 2, true, false, none())), attempts(1));
            assert_eq!(again(modify(queue, 3, false, false, none())), attempts(1));
            assert_eq!(queue.counts(), (0, 1));
        },
    );
}

#[test]
fn failed_attempts_count_towards_the_delivery_limit() {
    let mut settings = quorum::tests::settings();
    settings.delivery_limit = Some(1);
    let mut queue = quorum::tests::Rig::new(settings);
    publish(&mut queue, 1..=1);
    consume(&mut queue, 1, credit_spec(false));
    credit(&mut queue, 1, 9, false);
    let annotated = annotations(&[("x-opt-try", "1")]);
    modify(&mut queue, 1, true, false, annotated.clone());
    let out = modify(&mut queue, 2, true, false, Annotations::default());
    let [(DeadReason::DeliveryLimit, dead)] = &out.dead[..] else {
        panic!("{:?}", out.dead);
    };
    assert_eq!(Annotations::of(dead), Some(annotated));
}

#[test]
fn message_that_is_undeliverable_here_is_dead_lettered() {
    each(
        |settings| settings.dead_letter = crate::DeadLettering::AtMostOnce,
        |queue, keeps| {
            publish(queue, 1..=1);
            consume(queue, 1, credit_spec(false));
            credit(queue, 1, 9, false);
            let annotated = annotations(&[("x-opt-why", "bad")]);
            let out = modify(queue, 1, true, true, annotated.clone());
            let [(DeadReason::Rejected, dead)] = &out.dead[..] else {
                panic!("{:?}", out.dead);
            };
            assert_eq!(Annotations::of(dead), keeps.then_some(annotated));
            assert_eq!(queue.counts(), (0, 0));
        },
    );
}

#[test]
fn annotations_survive_requeue_and_snapshot_and_end_with_their_message() {
    let mut queue = quorum::tests::Rig::new(quorum::tests::settings());
    publish(&mut queue, 1..=3);
    consume(&mut queue, 1, credit_spec(false));
    let first = deliveries(&credit(&mut queue, 1, 9, false));
    assert!(first.iter().all(|d| d.annotations.is_none()));
    let on = |out: &QueueOutput| -> Vec<Option<Annotations>> {
        let all = deliveries(out);
        let own = all.iter().map(|d| d.annotations.as_deref().cloned());
        own.collect()
    };
    let out = modify(
        &mut queue,
        1,
        false,
        false,
        annotations(&[("a", "1"), ("b", "1")]),
    );
    assert_eq!(on(&out), [Some(annotations(&[("a", "1"), ("b", "1")]))]);
    queue.restart();
    let out = modify(&mut queue, 4, true, false, annotations(&[("b", "2")]));
    let both = annotations(&[("a", "1"), ("b", "2")]);
    assert_eq!(on(&out), [Some(both.clone())]);
    // The next receiver gets them too, when this consumer ends.
    queue.request(1, RequestBody::Close);
    consume(&mut queue, 2, credit_spec(false));
    let out = credit(&mut queue, 2, 9, false);
    let by_number: Vec<_> = numbers(&out).into_iter().zip(on(&out)).collect();
    assert!(by_number.contains(&(1, Some(both))));
    assert!(by_number.contains(&(2, None)));
    let (consumer, ids) = (CONSUMER, vec![(1, 9)]);
    let outcome = SettlementOutcome::Accepted;
    queue.request(
        2,
        RequestBody::Settle {
            consumer,
            outcome,
            ids,
        },
    );
    assert_eq!(queue.machine.annotations.len(), 0);
}

#[test]
fn purge_removes_annotations() {
    let mut queue = quorum::tests::Rig::new(quorum::tests::settings());
    publish(&mut queue, 1..=1);
    consume(&mut queue, 1, credit_spec(false));
    credit(&mut queue, 1, 1, false);
    modify(&mut queue, 1, false, false, annotations(&[("a", "1")]));
    assert_eq!(queue.machine.annotations.len(), 1);
    queue.request(9, RequestBody::Purge);
    assert_eq!(queue.machine.annotations.len(), 0);
}

/// Deliveries that went to others used up credit. A consumer without credit would never ask for missing
/// deliveries.
#[test]
fn session_of_a_trusted_node_is_told_to_resume_its_consumers() {
    let mut queue = quorum::tests::Rig::new(quorum::tests::settings());
    publish(&mut queue, 1..=3);
    consume(&mut queue, 1, credit_spec(false));
    credit(&mut queue, 1, 3, false);
    let node = quorum::tests::session(1).node;
    queue.command(quorum::Command::NodeSuspected(node).encode());
    assert_eq!(queue.counts(), (3, 0));
    let out = queue.command(quorum::Command::NodeTrusted(node).encode());
    let owner = |a: &crate::AddressedEvent| a.event == QueueEvent::Owner;
    assert!(out.events.iter().any(owner), "{:?}", out.events);
    assert_eq!(ids(&credit(&mut queue, 1, 5, false)), [4, 5]);
}

/// The sessions that are told of their activity, and the activity.
fn activity(out: &QueueOutput) -> Vec<(u64, bool)> {
    let of = |addressed: &crate::AddressedEvent| match addressed.event {
        QueueEvent::Activity { is_active, .. } => Some((addressed.session.number, is_active)),
        _ => None,
    };
    out.events.iter().filter_map(of).collect()
}

#[test]
fn consumers_with_credit_are_told_whether_they_are_active() {
    let sac = |settings: &mut QueueSettings| settings.single_active_consumer = true;
    each(sac, |queue, is_quorum| {
        let told = |out: &QueueOutput, expected: &[(u64, bool)]| {
            let expected = if is_quorum { expected } else { &[] };
            assert_eq!(activity(out), expected);
        };
        told(&consume(queue, 1, credit_spec(false)), &[(1, true)]);
        told(&consume(queue, 2, credit_spec(false)), &[(2, false)]);
        // A client without credit is told nothing.
        told(&consume(queue, 3, spec(5, 0)), &[]);
        told(&credit(queue, 1, 5, false), &[]);
        told(&publish(queue, 1..=3), &[]);
        let leave = RequestBody::CancelAndRequeue { consumer: CONSUMER };
        told(&queue.request(1, leave), &[(2, true)]);
    });
}

#[test]
fn consumer_of_higher_priority_replaces_the_active_one_and_both_are_told() {
    let sac = |settings: &mut QueueSettings| settings.single_active_consumer = true;
    each(sac, |queue, is_quorum| {
        if !is_quorum {
            return;
        }
        assert_eq!(
            activity(&consume(queue, 1, credit_spec(false))),
            [(1, true)]
        );
        let preferred = ConsumerSpec {
            priority: 1,
            ..credit_spec(false)
        };
        let changes = activity(&consume(queue, 2, preferred));
        assert_eq!(changes, [(1, false), (2, true)]);
    });
}

#[test]
fn consumers_of_a_queue_without_a_single_active_one_are_active() {
    each(
        |_| {},
        |queue, is_quorum| {
            for by in 1..=2 {
                let told = activity(&consume(queue, by, credit_spec(false)));
                assert_eq!(told, if is_quorum { vec![(by, true)] } else { vec![] });
            }
        },
    );
}
