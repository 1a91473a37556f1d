//! A process without file descriptors: nothing is damaged or lost, and every request gets an answer.

use super::tests::{Rig, settings};
use super::*;
use crate::{ConsumerId, QueueReply};

/// Twenty messages that are not in memory.
fn stopped() -> Rig {
    let mut rig = Rig::new(settings());
    for n in 1..=20 {
        rig.publish(n, true, 100);
    }
    rig.pass(WRITE_AFTER);
    rig.queue.write_all(&mut QueueOutput::default()).unwrap();
    rig
}

fn get() -> RequestBody {
    RequestBody::Get {
        consumer: ConsumerId(3),
        no_ack: false,
    }
}

fn answers(out: &QueueOutput) -> Vec<QueueReply> {
    let answer = |a: &crate::AddressedEvent| match &a.event {
        QueueEvent::Answer { answer, .. } => Some(answer.clone()),
        _ => None,
    };
    out.events.iter().filter_map(answer).collect()
}

fn is_refusal(answer: &QueueReply) -> bool {
    matches!(answer, QueueReply::Refused { code: 406, text } if text.contains("queue 'q' in vhost '/'"))
}

/// Returns true if the publish with this request number is refused.
fn refuses(out: &QueueOutput, seq: u64) -> bool {
    let refused = |a: &crate::AddressedEvent| match &a.event {
        QueueEvent::AppliedExcept { refused, .. } => {
            let mut refused = refused.iter();
            refused.any(|r| r.why == RejectReason::Unavailable && (r.from..=r.to).contains(&seq))
        }
        _ => false,
    };
    out.events.iter().any(refused)
}

#[test]
fn queue_that_cannot_be_opened_refuses_requests_and_retries() {
    let mut rig = stopped();
    rig.disk.set_out_of_descriptors(true);
    rig.restart(false);
    for body in [get(), RequestBody::Stat, RequestBody::Purge] {
        let out = rig.request(6, body);
        assert!(answers(&out).iter().any(is_refusal), "{:?}", out.events);
    }
    assert!(refuses(&rig.publish(21, true, 100), 1));
    // It is reported once, however long it lasts.
    let mut faults = 0;
    for _ in 0..10 {
        faults += rig.pass(RETRY_AFTER).faults.len();
    }
    assert_eq!(faults, 0, "reported with the first output");
    rig.disk.set_out_of_descriptors(false);
    rig.pass(RETRY_AFTER);
    assert_eq!(rig.queue.stats().ready, 20);
    assert_eq!(rig.drain().0, (1..=20).collect::<Vec<_>>());
}

/// The answer is not get-empty, which a client would believe.
#[test]
fn get_is_refused_while_messages_cannot_be_read() {
    let mut rig = stopped();
    rig.restart(false);
    rig.disk.set_out_of_descriptors(true);
    let out = rig.request(6, get());
    assert!(answers(&out).iter().all(is_refusal), "{:?}", out.events);
    assert_eq!(answers(&out).len(), 1);
    assert_eq!(out.faults.len(), 1, "{:?}", out.faults);
    rig.disk.set_out_of_descriptors(false);
    rig.pass(RETRY_AFTER);
    let out = rig.request(6, get());
    let delivered = |a: &crate::AddressedEvent| matches!(a.event, QueueEvent::Deliver { .. });
    assert!(out.events.iter().any(delivered), "{:?}", out.events);
}

/// Files do not stay open while file descriptors are short.
#[test]
fn publishes_are_refused_only_while_file_descriptors_are_short() {
    let mut rig = stopped();
    rig.restart(true);
    rig.disk.set_out_of_descriptors(true);
    let out = rig.publish(21, true, 100);
    assert_eq!(out.faults.len(), 1, "{:?}", out.faults);
    assert!(refuses(&rig.publish(22, true, 100), 2));
    rig.disk.set_out_of_descriptors(false);
    rig.pass(RETRY_AFTER);
    assert!(!refuses(&rig.publish(23, true, 100), 3));
    let mut expected: Vec<u64> = (1..=21).collect();
    expected.push(23);
    assert_eq!(rig.drain().0, expected);
}
