//! Consumers that name no limit, and clients that do not read.

use super::tests::{Rig, number, session, settings};
use crate::{
    ConsumerId, FLOW_WINDOW, Queue, QueueEvent, QueueMessage, QueueOutput, RequestBody,
    ResumeConsumer, SettlementOutcome, Timestamps,
};

const CONSUMER: ConsumerId = ConsumerId(1);

/// Delivery ids and what the messages carry.
fn delivered(out: &QueueOutput) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for addressed in &out.events {
        if let QueueEvent::Deliver { deliveries, .. } = &addressed.event {
            all.extend(deliveries.iter().map(|d| (d.id, number(&d.message))));
        }
    }
    all
}

fn with_messages(count: u64, len: usize) -> Rig {
    let mut rig = Rig::new(settings());
    for n in 1..=count {
        rig.publish(n, true, len);
    }
    rig.pass(super::WRITE_AFTER);
    rig
}

#[test]
fn a_client_that_reads_gets_all_and_acknowledges_at_the_end() {
    let count = 10_000;
    let mut rig = with_messages(count, 8);
    let half = u64::from(FLOW_WINDOW.messages / 2);
    let mut got = delivered(&rig.consume(1, CONSUMER.0, 0));
    while (got.len() as u64) < count {
        let before = got.len();
        let up_to = got.last().unwrap().0;
        got.extend(delivered(&rig.received(1, CONSUMER, up_to - half)));
        assert!(got.len() > before, "{before}");
    }
    assert_eq!(got, (1..=count).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(rig.queue.stats().unacknowledged, count);
    let ids = vec![(1, count)];
    let outcome = SettlementOutcome::Accepted;
    let consumer = CONSUMER;
    rig.ask(
        1,
        RequestBody::Settle {
            consumer,
            outcome,
            ids,
        },
    );
    let stats = rig.queue.stats();
    assert_eq!((stats.ready, stats.unacknowledged, stats.bytes), (0, 0, 0));
}

#[test]
fn a_client_that_does_not_read_gets_a_window_of_messages_or_of_bytes() {
    let mut rig = with_messages(2 * u64::from(FLOW_WINDOW.messages), 8);
    let got = delivered(&rig.consume(1, CONSUMER.0, 0));
    assert_eq!(got.len(), FLOW_WINDOW.messages as usize);
    let len = 1 << 20;
    for prefetch in [0, 100] {
        let mut rig = with_messages(20, len);
        let got = delivered(&rig.consume(1, CONSUMER.0, prefetch));
        assert_eq!(got.len() as u64, FLOW_WINDOW.bytes / len as u64);
        // Another consumer is not held up by it.
        let others = delivered(&rig.consume(2, CONSUMER.0, prefetch));
        assert_eq!(others.first(), Some(&(1, 1 + got.len() as u64)));
        // One that is settled, or has gone to the client, makes room for one.
        assert_eq!(
            delivered(&rig.settle(1, CONSUMER.0, SettlementOutcome::Accepted, 2)).len(),
            1
        );
        assert_eq!(delivered(&rig.received(1, CONSUMER, 2)).len(), 1);
        assert_eq!(delivered(&rig.received(1, CONSUMER, 2)).len(), 0);
    }
}

#[test]
fn what_may_be_lost_is_sent_again_and_is_still_all_that_is_on_its_way() {
    let mut rig = with_messages(10, 1 << 20);
    let got = delivered(&rig.consume(1, CONSUMER.0, 0));
    let again = |rig: &mut Rig, next| {
        let resume = ResumeConsumer {
            session: session(1),
            consumer: CONSUMER,
            next,
        };
        let mut out = QueueOutput::default();
        let at: Timestamps = rig.at;
        rig.queue.step(at, QueueMessage::Resume(resume), &mut out);
        delivered(&out)
    };
    assert_eq!(again(&mut rig, 1), got);
    assert_eq!(again(&mut rig, 2), got[1..]);
    // The session's side has all of it: it is on its way to the client still.
    assert_eq!(again(&mut rig, 1 + got.len() as u64), []);
    assert_eq!(delivered(&rig.publish(11, true, 8)), []);
    assert_eq!(delivered(&rig.received(1, CONSUMER, 1)).len(), 1);
}
