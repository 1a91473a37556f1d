//! Consumers without basic.qos: messages in flight are limited, unacknowledged ones are not.

use crate::fake::{Conn, consume};
use codec_amqp091::Method;
use queue::FLOW_WINDOW;
use session::ControlEvent;
use session_amqp091::{Limits, SessionConfig};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn with_limits(limits: Limits) -> Conn {
    let config = SessionConfig {
        limits: Arc::new(limits),
        ..SessionConfig::default()
    };
    let mut conn = Conn::open_as(config, "guest");
    conn.open_channel(1);
    conn.declare(1, "q");
    conn
}

fn ack_all(conn: &mut Conn, delivery_tag: u64) {
    let multiple = true;
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag,
            multiple,
        },
    );
}

/// Messages in memory: sent by the queue but neither read nor acknowledged by the client.
fn in_flight(conn: &Conn) -> usize {
    let queue = conn.broker.queue("/", "q").unwrap();
    let consumers = queue.consumers.values();
    consumers
        .map(|c| c.out.range(c.received + 1..).count())
        .sum()
}

fn alarm(conn: &mut Conn, alarm: Option<&'static str>) {
    conn.broker
        .notices
        .push_back(ControlEvent::Blocked(alarm).into());
    conn.settle();
}

#[test]
fn one_acknowledgement_settles_ten_thousand_messages() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let count = 10_000;
    for _ in 0..count {
        conn.publish(1, "", "q", b"m");
    }
    conn.consume(1, "q", "c", false);
    for n in 1..=count {
        conn.expect_deliver(1, "c", n, "q", b"m");
    }
    ack_all(&mut conn, count);
    let queue = conn.broker.queue("/", "q").unwrap();
    assert!(queue.ready.is_empty());
    assert!(queue.consumers.values().all(|c| c.out.is_empty()));
}

#[test]
fn slow_client_receives_one_flow_window() {
    let mut conn = with_limits(Limits::default());
    let body = vec![7; MIB];
    for _ in 0..20 {
        conn.publish(1, "", "q", &body);
    }
    conn.send(1, consume("q", "c", false));
    let window = FLOW_WINDOW.bytes as usize / MIB;
    assert_eq!(in_flight(&conn), window);
    assert!(conn.out.len() < 2 * MIB + 1000, "{}", conn.out.len());
    // The client reads without acknowledging and receives all messages.
    conn.expect(1, Method::BasicConsumeOk { consumer_tag: "c" });
    for n in 1..=20 {
        conn.expect_deliver(1, "c", n, "q", &body);
        assert!(in_flight(&conn) <= window);
    }
    conn.expect_nothing();
}

#[test]
fn memory_alarm_limits_unacknowledged_deliveries() {
    let limit = 5000;
    let mut conn = with_limits(Limits {
        unacknowledged_in_alarm: limit as usize,
        ..Limits::default()
    });
    let count = 20_000;
    for _ in 0..count {
        conn.publish(1, "", "q", b"m");
    }
    alarm(&mut conn, Some("low on memory"));
    conn.consume(1, "q", "c", false);
    conn.drain();
    let unacked = |conn: &Conn| {
        let queue = conn.broker.queue("/", "q").unwrap();
        let unacked: usize = queue.consumers.values().map(|c| c.out.len()).sum();
        unacked as u64
    };
    let first = unacked(&conn);
    assert!(
        (limit..limit + u64::from(FLOW_WINDOW.messages)).contains(&first),
        "{first}"
    );
    for n in 1..=first {
        conn.expect_deliver(1, "c", n, "q", b"m");
    }
    conn.expect_nothing();
    // An acknowledgement allows as many deliveries as it settles.
    ack_all(&mut conn, first);
    conn.drain();
    let second = unacked(&conn);
    assert!(
        (limit..limit + u64::from(FLOW_WINDOW.messages)).contains(&second),
        "{second}"
    );
    alarm(&mut conn, None);
    conn.drain();
    assert_eq!(unacked(&conn), count - first);
}
