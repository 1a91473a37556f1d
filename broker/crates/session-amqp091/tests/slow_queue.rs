//! A slow queue delays publishes and nothing else.

use crate::fake::{Conn, capabilities};
use bytes::BytesMut;
use codec_amqp091::{Method, PROTOCOL_HEADER};
use queue::{RequestBody, SettlementOutcome};
use session::{ControlEvent, SessionState};

fn relieve(conn: &mut Conn) {
    conn.broker.slow_queues.clear();
    conn.broker
        .notices
        .push_back(ControlEvent::Unblocked.into());
    conn.settle();
}

fn ack(delivery_tag: u64) -> Method<'static> {
    Method::BasicAck {
        delivery_tag,
        multiple: false,
    }
}

fn ready(conn: &Conn, queue: &str) -> usize {
    conn.broker.queue("/", queue).unwrap().ready.len()
}

/// Channel 1 with a consumer of `fast` that has three unacknowledged deliveries, and the queue
/// `slow`, which has a backlog after one message.
fn publishing_to_a_slow_queue() -> Conn {
    let mut conn = Conn::with_channel();
    conn.declare(1, "fast");
    conn.declare(1, "slow");
    conn.consume(1, "fast", "c", false);
    for n in 1..=3 {
        conn.publish(1, "", "fast", &[n]);
        conn.expect_deliver(1, "c", n.into(), "fast", &[n]);
    }
    conn.broker.slow_queues = vec![conn.broker.queue_id("slow")];
    conn.publish(1, "", "slow", b"0");
    conn
}

fn settled(conn: &Conn) -> Vec<(u64, u64)> {
    let requests = conn.broker.requests.iter();
    requests
        .filter_map(|(_, body)| match body {
            RequestBody::Settle {
                ids,
                outcome: SettlementOutcome::Accepted,
                ..
            } => Some(ids.clone()),
            _ => None,
        })
        .flatten()
        .collect()
}

#[test]
fn acks_overtake_held_publishes() {
    let mut conn = publishing_to_a_slow_queue();
    for n in 1..=20 {
        conn.publish(1, "", "slow", &[n]);
    }
    conn.send(1, ack(1));
    assert_eq!(conn.session_state, SessionState::Open);
    assert_eq!((ready(&conn, "slow"), settled(&conn)), (1, vec![(1, 1)]));
    // Another channel consumes and publishes alternately.
    conn.open_channel(2);
    conn.declare(2, "other");
    conn.publish(2, "", "other", b"held too");
    conn.send(1, ack(2));
    assert_eq!((ready(&conn, "other"), settled(&conn).len()), (0, 2));
    relieve(&mut conn);
    let slow = &conn.broker.queue("/", "slow").unwrap().ready;
    let bodies: Vec<u8> = slow.iter().map(|(m, _)| m.body()[0]).collect();
    assert_eq!(bodies[1..], (1..=20).collect::<Vec<u8>>(), "in order");
    assert_eq!(ready(&conn, "other"), 1);
    conn.send(1, ack(3));
    assert_eq!(settled(&conn).len(), 3);
}

#[test]
fn frames_after_a_held_publish_keep_their_order() {
    let mut conn = publishing_to_a_slow_queue();
    conn.publish(1, "", "slow", b"1");
    conn.send(1, crate::fake::queue_declare("new"));
    // An unknown tag: the error keeps its position.
    conn.send(1, ack(9));
    conn.expect_nothing();
    relieve(&mut conn);
    assert_eq!(ready(&conn, "slow"), 2);
    conn.expect(
        1,
        Method::QueueDeclareOk {
            queue: "new",
            message_count: 0,
            consumer_count: 0,
        },
    );
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - unknown delivery tag 9",
        (60, 80),
    );
}

/// A recover requeues deliveries that were not acknowledged before it, so an acknowledgement after
/// it has no effect.
#[test]
fn ack_overtakes_only_publishes() {
    let mut conn = publishing_to_a_slow_queue();
    conn.publish(1, "", "slow", b"1");
    conn.send(1, Method::BasicRecover { requeue: true });
    conn.send(1, ack(1));
    assert!(settled(&conn).is_empty());
    relieve(&mut conn);
    conn.expect(1, Method::BasicRecoverOk {});
    assert!(settled(&conn).is_empty());
}

#[test]
fn publishes_before_connection_close_are_processed() {
    let mut conn = publishing_to_a_slow_queue();
    conn.publish(1, "", "slow", b"1");
    conn.send(
        0,
        Method::ConnectionClose {
            reply_code: 200,
            reply_text: "bye",
            class_id: 0,
            method_id: 0,
        },
    );
    conn.expect_nothing();
    assert_eq!(conn.session_state, SessionState::Paused);
    relieve(&mut conn);
    assert_eq!(ready(&conn, "slow"), 2);
    conn.expect(0, Method::ConnectionCloseOk {});
    assert_eq!(
        conn.session_state,
        SessionState::Open,
        "the client closes the socket"
    );
}

#[test]
fn forced_close_drops_held_frames() {
    let mut conn = publishing_to_a_slow_queue();
    conn.open_channel(2);
    conn.publish(2, "", "slow", b"1");
    conn.broker.notices.push_back(
        ControlEvent::Close {
            text: "enough".into(),
        }
        .into(),
    );
    conn.settle();
    conn.expect_connection_close(320, "CONNECTION_FORCED - enough", (0, 0));
    conn.send(0, Method::ConnectionCloseOk {});
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn held_frames_limit_pauses_the_connection() {
    let mut conn = publishing_to_a_slow_queue();
    let mut sent = 0;
    while conn.session_state == SessionState::Open && sent < 200 {
        conn.publish(1, "", "slow", &[0; 50_000]);
        sent += 1;
    }
    assert!(
        conn.session_state == SessionState::Paused && sent < 30,
        "{sent}"
    );
    relieve(&mut conn);
    assert_eq!(conn.session_state, SessionState::Open);
    assert_eq!(ready(&conn, "slow"), 1 + sent);
}

/// Only clients known to support channel.flow are asked to stop; for other clients it would be an
/// error.
#[test]
fn channel_flow_is_sent_to_clients_that_support_it() {
    let mut properties = capabilities();
    properties.set("product", "RabbitMQ".into());
    properties.set("platform", "Java".into());
    let mut conn = Conn::new(session_amqp091::SessionConfig::default());
    conn.raw(&PROTOCOL_HEADER);
    conn.send(
        0,
        Method::ConnectionStartOk {
            client_properties: properties,
            mechanism: "PLAIN",
            response: b"\0guest\0guest",
            locale: "en_US",
        },
    );
    conn.send(
        0,
        Method::ConnectionTuneOk {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat: 0,
        },
    );
    conn.send(0, Method::ConnectionOpen { virtual_host: "/" });
    conn.drain();
    conn.received = BytesMut::new();
    conn.open_channel(1);
    conn.declare(1, "slow");
    conn.broker.slow_queues = vec![conn.broker.queue_id("slow")];
    conn.publish(1, "", "slow", b"0");
    conn.expect_nothing();
    conn.publish(1, "", "slow", b"1");
    conn.expect(1, Method::ChannelFlow { active: false });
    conn.send(1, Method::ChannelFlowOk { active: false });
    conn.publish(1, "", "slow", b"2");
    conn.expect_nothing();
    relieve(&mut conn);
    conn.expect(1, Method::ChannelFlow { active: true });
    conn.send(1, Method::ChannelFlowOk { active: true });
    conn.expect_nothing();
    assert_eq!(ready(&conn, "slow"), 3);
}
