//! The prefetch limit of a whole channel (basic.qos with `global`).

use crate::fake::{Conn, ready, with_queue};
use codec_amqp091::Method;
use session_amqp091::Limits;

fn limit_channel(conn: &mut Conn, prefetch_count: u16) {
    let qos = Method::BasicQos {
        prefetch_size: 0,
        prefetch_count,
        global: true,
    };
    conn.send(1, qos);
    conn.expect(1, Method::BasicQosOk {});
}

#[test]
fn channel_limit_is_shared_by_its_consumers() {
    let mut conn = with_queue(6);
    limit_channel(&mut conn, 2);
    conn.consume(1, "q", "a", false);
    conn.expect_deliver(1, "a", 1, "q", b"1");
    conn.expect_deliver(1, "a", 2, "q", b"2");
    conn.consume(1, "q", "b", false);
    conn.expect_nothing();
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.expect_deliver(1, "b", 3, "q", b"3");
    conn.expect_nothing();
    limit_channel(&mut conn, 0);
    for (tag, body) in [(4, b"4"), (5, b"5"), (6, b"6")] {
        conn.expect_deliver(1, "a", tag, "q", body);
    }
}

#[test]
fn channel_limit_can_change_while_consumers_run() {
    let mut conn = with_queue(6);
    limit_channel(&mut conn, 1);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    limit_channel(&mut conn, 3);
    conn.expect_deliver(1, "c", 2, "q", b"2");
    conn.expect_deliver(1, "c", 3, "q", b"3");
    limit_channel(&mut conn, 1);
    let ack = |delivery_tag| Method::BasicAck {
        delivery_tag,
        multiple: true,
    };
    conn.send(1, ack(2));
    conn.expect_nothing();
    conn.send(1, ack(3));
    conn.expect_deliver(1, "c", 4, "q", b"4");
    conn.expect_nothing();
    limit_channel(&mut conn, 0);
    conn.expect_deliver(1, "c", 5, "q", b"5");
    conn.expect_deliver(1, "c", 6, "q", b"6");
}

#[test]
fn channel_limit_ignores_basic_get_and_blocks_auto_ack_consumers() {
    let mut conn = with_queue(3);
    conn.declare(1, "other");
    limit_channel(&mut conn, 1);
    let get = Method::BasicGet {
        queue: "q",
        no_ack: false,
    };
    conn.send(1, get);
    assert_eq!(conn.next_method(), (1, "basic.get-ok"));
    conn.expect_content(1);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 2, "q", b"2");
    conn.consume(1, "other", "auto-ack", true);
    conn.publish(1, "", "other", b"x");
    conn.expect_nothing();
    let ack = Method::BasicAck {
        delivery_tag: 2,
        multiple: false,
    };
    conn.send(1, ack);
    conn.expect_deliver(1, "auto-ack", 3, "other", b"x");
    conn.expect_deliver(1, "c", 4, "q", b"3");
    conn.expect_nothing();
}

#[test]
fn messages_beyond_the_channel_limit_stay_in_their_queue() {
    let mut conn = with_queue(6);
    limit_channel(&mut conn, 2);
    conn.consume(1, "q", "a", false);
    conn.expect_deliver(1, "a", 1, "q", b"1");
    conn.expect_deliver(1, "a", 2, "q", b"2");
    conn.consume(1, "q", "b", true);
    assert_eq!(ready(&conn), ["3", "4", "5", "6"]);
    let get = Method::BasicGet {
        queue: "q",
        no_ack: false,
    };
    conn.send(1, get);
    let get_ok = Method::BasicGetOk {
        delivery_tag: 3,
        redelivered: false,
        exchange: "",
        routing_key: "q",
        message_count: 3,
    };
    conn.expect(1, get_ok);
    assert_eq!(conn.expect_content(1).1, b"3");
    // Deliveries without acknowledgement do not count, but a full channel gets none.
    let ack = |delivery_tag| Method::BasicAck {
        delivery_tag,
        multiple: false,
    };
    conn.send(1, ack(3));
    conn.expect_nothing();
    conn.send(1, ack(1));
    for (tag, body) in [(4, b"4"), (5, b"5"), (6, b"6")] {
        assert_eq!(conn.next_method(), (1, "basic.deliver"));
        assert_eq!(conn.expect_content(1).1, body, "{tag}");
    }
    assert!(ready(&conn).is_empty());
}

/// With any number of waiting consumers, one acknowledgement allows one more delivery. The
/// consumers take turns, and no delivery is marked as redelivered.
#[test]
fn consumers_of_a_full_channel_take_turns() {
    let mut conn = with_queue(9);
    limit_channel(&mut conn, 1);
    conn.consume(1, "q", "a", false);
    conn.expect_deliver(1, "a", 1, "q", b"1");
    for tag in ["b", "c"] {
        conn.consume(1, "q", tag, false);
    }
    let mut bodies = vec![b"1".to_vec()];
    for (delivery_tag, consumer_tag) in (2..=9).zip(["b", "c", "a"].into_iter().cycle()) {
        let previous = delivery_tag - 1;
        assert_eq!(ready(&conn).len(), 9 - previous as usize);
        let ack = Method::BasicAck {
            delivery_tag: previous,
            multiple: false,
        };
        conn.send(1, ack);
        let deliver = Method::BasicDeliver {
            consumer_tag,
            delivery_tag,
            redelivered: false,
            exchange: "",
            routing_key: "q",
        };
        conn.expect(1, deliver);
        bodies.push(conn.expect_content(1).1);
        conn.expect_nothing();
    }
    bodies.sort();
    let all: Vec<_> = (1..=9).map(|n| n.to_string().into_bytes()).collect();
    assert_eq!(bodies, all);
}

/// As in RabbitMQ, where the deprecated feature `global_qos` is denied.
#[test]
fn denied_channel_limit_sets_the_prefetch_of_later_consumers() {
    let mut conn = Conn::open_with(Limits {
        permits_global_qos: false,
        ..Limits::default()
    });
    conn.open_channel(1);
    conn.declare(1, "q");
    for n in 1..=6 {
        conn.publish(1, "", "q", n.to_string().as_bytes());
    }
    limit_channel(&mut conn, 2);
    conn.consume(1, "q", "a", false);
    conn.expect_deliver(1, "a", 1, "q", b"1");
    conn.expect_deliver(1, "a", 2, "q", b"2");
    conn.expect_nothing();
    conn.consume(1, "q", "b", false);
    conn.expect_deliver(1, "b", 3, "q", b"3");
    conn.expect_deliver(1, "b", 4, "q", b"4");
    conn.expect_nothing();
}
