//! When a persistent publish is written, and so confirmed.

use super::tests::{Rig, applied, session, settings};
use super::{BUFFER_MESSAGES, WRITE_AFTER, WRITE_AT_LAST};
use crate::{Queue as _, QueueEvent, QueueOutput, SettlementOutcome};
use std::time::Duration;

/// A short turn of the event loop.
const TURN: Duration = Duration::from_micros(20);

fn confirmed(out: &QueueOutput, up_to: u64) -> bool {
    let confirm = QueueEvent::Applied { up_to };
    let mut events = out.events.iter();
    events.any(|a| a.session == session(9) && a.event == confirm)
}

#[test]
fn single_publish_is_confirmed_at_the_end_of_its_turn() {
    let mut rig = Rig::new(settings());
    for n in 1..=100 {
        assert_eq!(applied(&rig.publish(n, true, 10)), Some(n));
    }
    rig.restart(false);
    assert_eq!(rig.queue.stats().ready, 100, "all were written");
}

/// Duration of a stream of publishes.
const LONG: Duration = Duration::from_millis(200);

/// Number of writes of a stream with this many publishes in each turn.
fn writes_of_a_stream(by_turn: u64) -> u64 {
    let mut rig = Rig::new(settings());
    let before = rig.disk.counters().writes;
    let turns = LONG.as_micros() / TURN.as_micros();
    let mut n = 0;
    for _ in 0..turns {
        let numbers = n + 1..=n + by_turn;
        rig.publish_together(numbers, true, 10);
        n += by_turn;
        rig.pass(TURN);
    }
    rig.pass(WRITE_AT_LAST);
    rig.disk.counters().writes - before
}

#[test]
fn stream_of_publishes_shares_writes() {
    let most = 2 * LONG.as_micros() / WRITE_AFTER.as_micros();
    let writes = writes_of_a_stream(5);
    assert!(u128::from(writes) <= most, "{writes} writes");
}

#[test]
fn stream_larger_than_the_buffer_fills_each_write() {
    let by_turn = 40;
    let published = by_turn * (LONG.as_micros() / TURN.as_micros()) as u64;
    let full = published / BUFFER_MESSAGES as u64;
    let writes = writes_of_a_stream(by_turn);
    assert!(writes <= 3 * full, "{writes} writes, {full} full buffers");
}

#[test]
fn publish_waits_for_a_consumer_that_acknowledges_at_once() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, 10);
    let before = rig.disk.counters().writes;
    for n in 1..=10 {
        let out = rig.publish(n, true, 10);
        assert!(!confirmed(&out, n), "{n} waits for its consumer");
        rig.pass(WRITE_AFTER / 20);
        let out = rig.settle(1, 1, SettlementOutcome::Accepted, n);
        assert!(confirmed(&out, n), "{n} is settled");
    }
    assert_eq!(rig.disk.counters().writes, before);
}

#[test]
fn publish_does_not_wait_twice_for_a_slow_consumer() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, 10);
    rig.publish(1, true, 10);
    assert!(confirmed(&rig.pass(WRITE_AFTER), 1), "it is written");
    for n in 2..=9 {
        assert!(confirmed(&rig.publish(n, true, 10), n), "{n} at once");
        rig.pass(2 * WRITE_AFTER);
    }
    rig.settle(1, 1, SettlementOutcome::Accepted, 9);
    assert!(confirmed(&rig.publish(10, true, 10), 10), "9 was too late");
}

#[test]
fn publish_waits_again_for_a_consumer_that_becomes_fast() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, 10);
    rig.publish(1, true, 10);
    rig.pass(WRITE_AFTER);
    assert!(confirmed(&rig.publish(2, true, 10), 2), "at once");
    rig.pass(WRITE_AFTER / 2);
    rig.settle(1, 1, SettlementOutcome::Accepted, 2);
    let out = rig.publish(3, true, 10);
    assert!(!confirmed(&out, 3), "2 was acknowledged soon");
    let out = rig.settle(1, 1, SettlementOutcome::Accepted, 3);
    assert!(confirmed(&out, 3));
}
