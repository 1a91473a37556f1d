//! Consumers without basic.qos: what is on its way is bounded, what is not acknowledged is not.

mod fake;

use codec_amqp091::Method;
use fake::{Conn, consume};
use queue::FLOW_WINDOW;
use session::SessionEvent;
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

/// Messages in memory: handed out by the queue, and neither read by the client nor acknowledged.
fn on_its_way(conn: &Conn) -> usize {
    let queue = conn.broker.queue("/", "q").unwrap();
    let consumers = queue.consumers.values();
    consumers
        .map(|c| c.out.range(c.received + 1..).count())
        .sum()
}

fn alarm(conn: &mut Conn, alarm: Option<&'static str>) {
    conn.broker.notices.push_back(SessionEvent::Blocked(alarm));
    conn.settle();
}

#[test]
fn ten_thousand_messages_and_one_acknowledgement() {
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
fn a_client_that_does_not_read_is_sent_a_window() {
    let mut conn = with_limits(Limits::default());
    let body = vec![7; MIB];
    for _ in 0..20 {
        conn.publish(1, "", "q", &body);
    }
    conn.send(1, consume("q", "c", false));
    let window = FLOW_WINDOW.bytes as usize / MIB;
    assert_eq!(on_its_way(&conn), window);
    assert!(conn.out.len() < 2 * MIB + 1000, "{}", conn.out.len());
    // It reads, and acknowledges nothing: all of it comes.
    conn.expect(1, Method::BasicConsumeOk { consumer_tag: "c" });
    for n in 1..=20 {
        conn.expect_deliver(1, "c", n, "q", &body);
        assert!(on_its_way(&conn) <= window);
    }
    conn.expect_nothing();
}

#[test]
fn a_node_that_is_short_of_memory_sends_no_more_to_who_keeps_much() {
    let keeps = 5000;
    let mut conn = with_limits(Limits {
        unacknowledged_in_alarm: keeps as usize,
        ..Limits::default()
    });
    let count = 20_000;
    for _ in 0..count {
        conn.publish(1, "", "q", b"m");
    }
    alarm(&mut conn, Some("low on memory"));
    conn.consume(1, "q", "c", false);
    conn.drain();
    let held = |conn: &Conn| {
        let queue = conn.broker.queue("/", "q").unwrap();
        let held: usize = queue.consumers.values().map(|c| c.out.len()).sum();
        held as u64
    };
    let got = held(&conn);
    assert!(
        (keeps..keeps + u64::from(FLOW_WINDOW.messages)).contains(&got),
        "{got}"
    );
    for n in 1..=got {
        conn.expect_deliver(1, "c", n, "q", b"m");
    }
    conn.expect_nothing();
    // An acknowledgement makes room for as many.
    ack_all(&mut conn, got);
    conn.drain();
    let more = held(&conn);
    assert!(
        (keeps..keeps + u64::from(FLOW_WINDOW.messages)).contains(&more),
        "{more}"
    );
    alarm(&mut conn, None);
    conn.drain();
    assert_eq!(held(&conn), count - got);
}
