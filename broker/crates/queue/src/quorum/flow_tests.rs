//! A leader and a client that does not read: the log assigns messages to its consumer, and the leader sends one
//! window of them at a time.

use super::tests::{Rig, deliveries, session, settings, spec};
use super::{Effects, Machine};
use crate::model::message;
use crate::{ConsumerId, FLOW_WINDOW, QueueOutput, RequestBody, ResumeConsumer, SettlementOutcome};

const CONSUMER: ConsumerId = ConsumerId(1);
const LEN: usize = 1 << 20;
const FITS: u64 = FLOW_WINDOW.bytes / LEN as u64;

fn ids(out: &QueueOutput) -> Vec<u64> {
    deliveries(out).iter().map(|d| d.2.id).collect()
}

/// A consumer with ten assigned messages of [`LEN`], and the events that it was sent.
fn rig() -> (Rig, Vec<u64>) {
    let mut rig = Rig::new(settings());
    for n in 1..=10 {
        rig.one(9, RequestBody::Publish(message(n, None, None, LEN)));
    }
    let out = rig.consume(1, CONSUMER.0, spec(0, 0));
    assert_eq!(rig.machine.stats().unacknowledged, 10);
    (rig, ids(&out))
}

fn resume(rig: &mut Rig, next: u64) -> Vec<u64> {
    let resume = ResumeConsumer {
        session: session(1),
        consumer: CONSUMER,
        next,
    };
    let mut effects = Effects::collecting();
    rig.machine.resume(&resume, &mut effects);
    let mut out = QueueOutput::default();
    let log = &rig.log;
    effects.resolve(&mut |i| log.get(i as usize - 1).cloned().into(), &mut out);
    ids(&out)
}

#[test]
fn large_messages_are_read_at_the_pace_of_the_client() {
    let (mut rig, sent) = rig();
    assert_eq!(sent, (1..=FITS).collect::<Vec<_>>());
    let state = rig.machine.snapshot();
    assert_eq!(ids(&rig.received(1, CONSUMER, 1)), [FITS + 1]);
    assert_eq!(ids(&rig.received(1, CONSUMER, 1)), []);
    assert_eq!(rig.machine.snapshot(), state, "no part of the state");
    // A settlement opens the window too.
    let out = rig.settle(1, CONSUMER.0, SettlementOutcome::Accepted, 2);
    assert_eq!(ids(&out), [FITS + 2]);
    let out = rig.settle(1, CONSUMER.0, SettlementOutcome::Accepted, 1);
    assert_eq!(ids(&out), []);
    // A message that was never sent goes to another consumer after its requeue.
    rig.one(1, RequestBody::CancelAndRequeue { consumer: CONSUMER });
    assert_eq!(rig.machine.stats().ready, 8);
    let out = rig.consume(2, CONSUMER.0, spec(0, 0));
    assert_eq!(ids(&out).len() as u64, FITS);
}

#[test]
fn new_leader_sends_once_progress_is_reported() {
    let (mut rig, _) = rig();
    rig.received(1, CONSUMER, 1);
    let mut next = Machine::restore("queue 'q' in vhost '/'".into(), rig.machine.snapshot());
    std::mem::swap(&mut rig.machine, next.as_mut().unwrap());
    rig.machine.begin_leading();
    // Any delivery may be in flight.
    assert_eq!(ids(&rig.received(1, CONSUMER, 1)), []);
    assert_eq!(resume(&mut rig, FITS + 2), []);
    assert_eq!(ids(&rig.received(1, CONSUMER, FITS)).len() as u64, FITS - 1);
    assert_eq!(resume(&mut rig, FITS + 1).len() as u64, FITS);
}

#[test]
fn progress_is_accepted_before_its_deliveries_are_applied() {
    let (mut rig, _) = rig();
    let log = std::mem::take(&mut rig.log);
    rig.machine = Machine::new("queue 'q' in vhost '/'".into(), settings());
    rig.machine.begin_leading();
    let (consume, before) = log.split_last().unwrap();
    before.iter().for_each(|c| drop(rig.command(c.clone())));
    assert_eq!(ids(&rig.received(1, CONSUMER, 5)), []);
    let again = ids(&rig.command(consume.clone()));
    assert_eq!(again.len() as u64, FITS);
    // The client has those up to 6 from the previous leader, and drops them.
    let sent = ids(&rig.received(1, CONSUMER, 6));
    assert_eq!(sent, (FITS + 1..=6 + FITS).collect::<Vec<_>>());
}
