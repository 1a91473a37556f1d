//! Consumers without a limit, and clients that do not read.

use super::tests::{Rig, number, session, settings};
use crate::{
    ConsumerId, FLOW_WINDOW, Queue, QueueEvent, QueueMessage, QueueOutput, RequestBody,
    ResumeConsumer, SettlementOutcome, Timestamps,
};

const CONSUMER: ConsumerId = ConsumerId(1);

/// Delivery ids and message numbers.
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
fn client_that_reads_gets_all_messages_without_acknowledging() {
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
    rig.request(
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
fn client_that_does_not_read_gets_one_flow_window() {
    let mut rig = with_messages(2 * u64::from(FLOW_WINDOW.messages), 8);
    let got = delivered(&rig.consume(1, CONSUMER.0, 0));
    assert_eq!(got.len(), FLOW_WINDOW.messages as usize);
    let len = 1 << 20;
    for prefetch in [0, 100] {
        let mut rig = with_messages(20, len);
        let got = delivered(&rig.consume(1, CONSUMER.0, prefetch));
        assert_eq!(got.len() as u64, FLOW_WINDOW.bytes / len as u64);
        // It does not stop another consumer.
        let others = delivered(&rig.consume(2, CONSUMER.0, prefetch));
        assert_eq!(others.first(), Some(&(1, 1 + got.len() as u64)));
        // A settlement, and progress of the client, make room for one delivery.
        assert_eq!(
            delivered(&rig.settle(1, CONSUMER.0, SettlementOutcome::Accepted, 2)).len(),
            1
        );
        assert_eq!(delivered(&rig.received(1, CONSUMER, 2)).len(), 1);
        assert_eq!(delivered(&rig.received(1, CONSUMER, 2)).len(), 0);
    }
}

#[test]
fn resumed_deliveries_count_towards_the_flow_window() {
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
    // The session's side has all of them: they are still in flight to the client.
    assert_eq!(again(&mut rig, 1 + got.len() as u64), []);
    assert_eq!(delivered(&rig.publish(11, true, 8)), []);
    assert_eq!(delivered(&rig.received(1, CONSUMER, 1)).len(), 1);
}
