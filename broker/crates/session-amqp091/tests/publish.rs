//! Publishing: content, confirms, returns and refusals.

use crate::fake::{Conn, exchange_declare};
use bytes::BytesMut;
use codec_amqp091::{Method, Properties, encode_content_header, encode_method, open_body, table};
use message::{Table, Value};
use proptest::prelude::*;
use queue::RejectReason;
use session::SessionState;
use session_amqp091::{Limits, SessionConfig};
use std::sync::Arc;

fn confirming() -> Conn {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.send(1, Method::ConfirmSelect { no_wait: false });
    conn.expect(1, Method::ConfirmSelectOk {});
    conn
}

fn headers(entries: &[(&str, &[&str])]) -> BytesMut {
    let mut table = Table::default();
    for (key, values) in entries {
        let values = values.iter().map(|&v| v.into()).collect();
        table.0.push(((*key).into(), Value::Array(values)));
    }
    let mut raw = BytesMut::new();
    table::encode(&table, &mut raw);
    raw
}

#[test]
fn message_reaches_its_queue_unchanged() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let properties = Properties {
        content_type: Some("text/plain"),
        delivery_mode: Some(2),
        priority: Some(5),
        expiration: Some("60000"),
        message_id: Some("m"),
        user_id: Some("guest"),
        ..Properties::default()
    };
    conn.publish_with(1, "", "q", false, &properties, b"hello");
    conn.expect_nothing();
    let (message, _) = &conn.broker.queue("/", "q").unwrap().ready[0];
    assert_eq!(
        (message.exchange(), message.routing_key(), message.body()),
        ("", "q", &b"hello"[..])
    );
    assert_eq!(
        (message.durable(), message.priority(), message.ttl_ms()),
        (true, Some(5), Some(60_000))
    );
    assert_eq!(
        Properties::decode(message.properties()).unwrap(),
        properties
    );
}

#[test]
fn body_can_be_split_into_any_frames() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let mut bytes = BytesMut::new();
    encode_method(
        &mut bytes,
        1,
        &Method::BasicPublish {
            exchange: "",
            routing_key: "q",
            mandatory: false,
            immediate: false,
        },
    );
    encode_content_header(&mut bytes, 1, 6, &[0, 0]);
    for piece in [&b"abc"[..], b"", b"de", b"f"] {
        open_body(&mut bytes, 1, piece.len());
        bytes.extend_from_slice(piece);
        bytes.extend_from_slice(&[0xCE]);
    }
    for byte in bytes {
        conn.raw(&[byte]);
    }
    assert_eq!(
        conn.broker.queue("/", "q").unwrap().ready[0].0.body(),
        b"abcdef"
    );
    conn.publish(1, "", "q", b"");
    assert_eq!(
        conn.broker.queue("/", "q").unwrap().ready[1].0.body_len(),
        0
    );
}

#[test]
fn consecutive_confirms_are_merged() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.publish(1, "", "q", b"before");
    conn.send(1, Method::ConfirmSelect { no_wait: true });
    conn.publish(1, "", "q", b"1");
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.broker.silent = true;
    for _ in 2..=6 {
        conn.publish(1, "", "q", b"x");
    }
    conn.broker.settle_publishes();
    conn.settle();
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 6,
            multiple: true,
        },
    );
    conn.expect_nothing();
}

/// A step for each of them costs hundreds of instructions: it reports counters, among others.
#[test]
fn run_of_confirms_is_handled_in_one_step() {
    let mut conn = confirming();
    conn.broker.silent = true;
    for _ in 0..5 {
        conn.publish(1, "", "q", b"x");
    }
    let before = conn.broker.counter_reports;
    conn.broker.settle_publishes();
    conn.settle();
    assert_eq!(conn.broker.counter_reports, before + 1);
    assert_eq!(conn.broker.message_counters.publishes.confirmed, 5);
}

#[test]
fn out_of_order_confirms_are_not_merged() {
    let mut conn = confirming();
    conn.declare(1, "r");
    conn.broker.silent = true;
    conn.publish(1, "", "q", b"1");
    conn.publish(1, "", "r", b"2");
    conn.publish(1, "", "r", b"3");
    conn.broker.unconfirmed.rotate_left(1);
    conn.broker.settle_publishes();
    conn.settle();
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 2,
            multiple: false,
        },
    );
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 3,
            multiple: false,
        },
    );
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.expect_nothing();
}

#[test]
fn publish_is_confirmed_when_all_queues_have_answered() {
    let mut conn = confirming();
    conn.declare(1, "r");
    for queue in ["q", "r"] {
        conn.send(
            1,
            Method::QueueBind {
                queue,
                exchange: "amq.fanout",
                routing_key: "",
                no_wait: true,
                arguments: Table::default(),
            },
        );
    }
    conn.broker.silent = true;
    conn.publish(1, "amq.fanout", "", b"both");
    assert_eq!(conn.broker.unconfirmed.len(), 2);
    let last = conn.broker.unconfirmed.pop().unwrap();
    conn.broker.settle_publishes();
    conn.settle();
    conn.expect_nothing();
    conn.broker.unconfirmed.push(last);
    conn.broker.settle_publishes();
    conn.settle();
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
}

#[test]
fn unroutable_publish_is_confirmed_and_returned_if_mandatory() {
    let mut conn = confirming();
    conn.publish(1, "amq.direct", "nowhere", b"x");
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    let properties = Properties {
        message_id: Some("m"),
        ..Properties::default()
    };
    conn.publish_with(1, "amq.direct", "nowhere", true, &properties, b"back");
    conn.expect(
        1,
        Method::BasicReturn {
            reply_code: 312,
            reply_text: "NO_ROUTE",
            exchange: "amq.direct",
            routing_key: "nowhere",
        },
    );
    let (raw, body) = conn.expect_content(1);
    assert_eq!(
        (Properties::decode(&raw).unwrap(), &body[..]),
        (properties, &b"back"[..])
    );
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 2,
            multiple: false,
        },
    );
    conn.expect_nothing();
}

#[test]
fn rejection_by_a_queue_becomes_a_nack() {
    let mut conn = confirming();
    conn.broker.reject = Some(RejectReason::MaxLength);
    conn.publish(1, "", "q", b"x");
    conn.expect(
        1,
        Method::BasicNack {
            delivery_tag: 1,
            multiple: true,
            requeue: true,
        },
    );
    conn.broker.reject = Some(RejectReason::Unavailable);
    conn.publish(1, "", "q", b"x");
    conn.expect(
        1,
        Method::BasicNack {
            delivery_tag: 2,
            multiple: true,
            requeue: true,
        },
    );
    conn.broker.reject = None;
    conn.publish(1, "", "q", b"x");
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 3,
            multiple: false,
        },
    );
}

#[test]
fn publish_to_a_deleted_queue_is_acked() {
    let mut conn = confirming();
    conn.broker.silent = true;
    conn.publish(1, "", "q", b"x");
    let (queue, tag) = conn.broker.unconfirmed.pop().unwrap();
    conn.broker.must(metadata::Change::DeleteQueue {
        vhost: "/".into(),
        name: "q".into(),
        id: None,
    });
    conn.broker.notices.push_back(
        session::QueueNotification::NotPublished {
            queue,
            tag,
            why: RejectReason::Unavailable,
        }
        .into(),
    );
    conn.settle();
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
}

#[test]
fn late_confirms_do_not_reach_a_reopened_channel() {
    let mut conn = confirming();
    conn.broker.silent = true;
    conn.publish(1, "", "q", b"old");
    conn.send(
        1,
        Method::ChannelClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    conn.expect(1, Method::ChannelCloseOk {});
    conn.open_channel(1);
    conn.send(1, Method::ConfirmSelect { no_wait: true });
    conn.publish(1, "", "q", b"new");
    let second = conn.broker.unconfirmed.pop().unwrap();
    conn.broker.settle_publishes();
    conn.settle();
    conn.expect_nothing();
    conn.broker.unconfirmed.push(second);
    conn.broker.settle_publishes();
    conn.settle();
    conn.expect(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
}

#[test]
fn first_of_duplicate_cc_headers_counts() {
    let mut conn = Conn::with_channel();
    for queue in ["cc", "also"] {
        conn.declare(1, queue);
    }
    let raw = headers(&[("CC", &["cc"]), ("CC", &["also"])]);
    let properties = Properties {
        headers: Some(&raw[4..]),
        ..Properties::default()
    };
    conn.publish_with(1, "", "nowhere", true, &properties, b"x");
    conn.expect_nothing();
    let ready = |queue| conn.broker.queue("/", queue).unwrap().ready.len();
    assert_eq!((ready("cc"), ready("also")), (1, 0));
}

#[test]
fn cc_and_bcc_add_routes_and_bcc_is_removed() {
    let mut conn = Conn::with_channel();
    for queue in ["q", "cc", "bcc"] {
        conn.declare(1, queue);
    }
    let raw = headers(&[("BCC", &["bcc"]), ("CC", &["cc", "q"])]);
    let properties = Properties {
        headers: Some(&raw[4..]),
        ..Properties::default()
    };
    conn.publish_with(1, "", "q", true, &properties, b"x");
    conn.expect_nothing();
    for queue in ["q", "cc", "bcc"] {
        let ready = &conn.broker.queue("/", queue).unwrap().ready;
        assert_eq!(ready.len(), 1, "{queue}");
        let message = &ready[0].0;
        assert_eq!(
            message.routing_keys().collect::<Vec<_>>(),
            ["q", "cc", "q", "bcc"]
        );
        let raw = message.properties();
        let headers = Properties::decode(raw).unwrap().header_table().unwrap();
        assert!(headers.get("BCC").is_none() && headers.get("CC").is_some());
    }
}

#[test]
fn invalid_publish_closes_the_channel() {
    let big = SessionConfig {
        limits: Arc::new(Limits {
            message: 100,
            ..Limits::default()
        }),
        ..SessionConfig::default()
    };
    let mut conn = Conn::open_as(big, "guest");
    let cases: [(&str, Properties<'_>, usize, u16, &str); 5] = [
        (
            "nowhere",
            Properties::default(),
            1,
            404,
            "NOT_FOUND - no exchange 'nowhere' in vhost '/'",
        ),
        (
            "",
            Properties {
                expiration: Some("soon"),
                ..Properties::default()
            },
            1,
            406,
            "PRECONDITION_FAILED - invalid expiration 'soon': no_integer",
        ),
        (
            "",
            Properties {
                user_id: Some("other"),
                ..Properties::default()
            },
            1,
            406,
            "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'",
        ),
        (
            "",
            Properties::default(),
            101,
            406,
            "PRECONDITION_FAILED - message size 101 is larger than configured max size 100",
        ),
        (
            "",
            Properties {
                headers: Some(b"\x02CCt\x01"),
                ..Properties::default()
            },
            1,
            406,
            "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,\"CC\",bool}",
        ),
    ];
    for (exchange, properties, size, code, text) in cases {
        conn.open_channel(1);
        conn.publish_with(1, exchange, "q", false, &properties, &vec![0; size]);
        conn.expect_channel_close(1, code, text, (60, 40));
    }
}

#[test]
fn cc_values_that_are_not_strings_are_ignored() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    // An integer, then text: {"CC": [1, "q"]}.
    let raw = b"\x02CCA\0\0\0\x0bI\0\0\0\x01S\0\0\0\x01q";
    let properties = Properties {
        headers: Some(raw),
        ..Properties::default()
    };
    conn.publish_with(1, "", "nowhere", true, &properties, b"x");
    conn.expect_nothing();
    assert_eq!(conn.broker.queue("/", "q").unwrap().ready.len(), 1);
}

#[test]
fn publish_to_internal_exchange_is_refused() {
    let mut conn = Conn::with_channel();
    conn.send(
        1,
        Method::ExchangeDeclare {
            exchange: "inner",
            kind: "fanout",
            passive: false,
            durable: true,
            auto_delete: false,
            internal: true,
            no_wait: true,
            arguments: Table::default(),
        },
    );
    conn.publish(1, "inner", "", b"x");
    conn.expect_channel_close(
        1,
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'",
        (60, 40),
    );
}

#[test]
fn publish_requires_write_permission() {
    let mut conn = Conn::open_as(SessionConfig::default(), "small");
    conn.open_channel(1);
    conn.publish(1, "amq.fanout", "", b"x");
    conn.expect_channel_close(1, 403, "ACCESS_REFUSED - write access to exchange 'amq.fanout' in vhost '/' refused for user 'small'", (60, 40));
    conn.open_channel(1);
    conn.publish(1, "", "mine", b"x");
    conn.expect_channel_close(1, 403, "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'small'", (60, 40));
    conn.open_channel(1);
    conn.send(1, exchange_declare("mine", "topic"));
    conn.expect(1, Method::ExchangeDeclareOk {});
    conn.publish(1, "mine", "key", b"x");
    conn.expect_nothing();
}

#[test]
fn immediate_flag_closes_the_connection() {
    let mut conn = Conn::with_channel();
    let mut bytes = BytesMut::new();
    encode_method(
        &mut bytes,
        1,
        &Method::BasicPublish {
            exchange: "",
            routing_key: "q",
            mandatory: false,
            immediate: true,
        },
    );
    encode_content_header(&mut bytes, 1, 0, &[0, 0]);
    conn.raw(&bytes);
    conn.expect_connection_close(540, "NOT_IMPLEMENTED - immediate=true", (60, 40));
}

#[test]
fn publishes_in_flight_are_limited() {
    let limits = Limits {
        in_flight_messages: 10,
        held: 300,
        ..Limits::default()
    };
    let mut conn = Conn::open_with(limits);
    conn.open_channel(1);
    conn.declare(1, "q");
    conn.broker.silent = true;
    for n in 0..50 {
        conn.publish(1, "", "q", &[n]);
    }
    // 11 are in flight, some frames are held, and the rest is not read.
    assert_eq!(conn.session_state, SessionState::Paused);
    assert_eq!(conn.broker.unconfirmed.len(), 11);
    conn.broker.settle_oldest_publishes(5);
    conn.settle();
    // More than half of the limit are still in flight, so nothing more was published.
    assert_eq!(
        (conn.session_state, conn.broker.unconfirmed.len()),
        (SessionState::Paused, 6)
    );
    conn.broker.settle_oldest_publishes(1);
    conn.settle();
    // Publishing resumed, and stopped at the limit again.
    assert_eq!(
        (conn.session_state, conn.broker.unconfirmed.len()),
        (SessionState::Paused, 11)
    );
    // So it does after a run of confirms, which one step handles.
    conn.broker.settle_publishes();
    conn.settle();
    assert_eq!(
        (conn.session_state, conn.broker.unconfirmed.len()),
        (SessionState::Paused, 11)
    );
    conn.broker.silent = false;
    conn.broker.settle_publishes();
    conn.settle();
    assert_eq!(
        (
            conn.session_state,
            conn.broker.queue("/", "q").unwrap().ready.len()
        ),
        (SessionState::Open, 50)
    );
}

/// A publish that no queue answers keeps the records of all later ones of its channel.
#[test]
fn records_of_unsettled_publishes_are_limited() {
    let limits = Limits {
        confirm_bytes: 80,
        held: 300,
        ..Limits::default()
    };
    let mut conn = Conn::open_with(limits);
    conn.open_channel(1);
    conn.declare(1, "q");
    conn.broker.silent = true;
    conn.publish(1, "", "q", b"0");
    conn.broker.silent = false;
    for n in 1..=30 {
        conn.publish(1, "", "q", &[n]);
    }
    // A record has 8 octets: 11 exceed the limit. Some frames are held, and the rest is not read.
    assert_eq!(conn.session_state, SessionState::Paused);
    let stored = |conn: &Conn| conn.broker.queue("/", "q").unwrap().ready.len();
    assert_eq!(stored(&conn), 11);
    conn.broker.settle_publishes();
    conn.settle();
    assert_eq!(
        (conn.session_state, stored(&conn)),
        (SessionState::Open, 31)
    );
}

#[test]
fn content_header_larger_than_frame_max_is_a_frame_error() {
    let mut conn = Conn::with_channel();
    let mut bytes = BytesMut::new();
    let publish = Method::BasicPublish {
        exchange: "",
        routing_key: "q",
        mandatory: false,
        immediate: false,
    };
    encode_method(&mut bytes, 1, &publish);
    encode_content_header(&mut bytes, 1, 0, &vec![0; 200_000]);
    conn.raw(&bytes);
    let (_, channel, payload) = conn.next_frame().unwrap();
    let close = Method::decode(&payload).unwrap();
    let is_frame_error = |close| {
        matches!(
            close,
            Method::ConnectionClose {
                reply_code: 501,
                ..
            }
        )
    };
    assert!(channel == 0 && is_frame_error(close));
}

#[test]
fn incomplete_bodies_are_limited() {
    let limits = Limits {
        partial: 1000,
        ..Limits::default()
    };
    let mut conn = Conn::open_with(limits);
    for channel in 1..4 {
        conn.open_channel(channel);
        let mut bytes = BytesMut::new();
        encode_method(
            &mut bytes,
            channel,
            &Method::BasicPublish {
                exchange: "",
                routing_key: "q",
                mandatory: false,
                immediate: false,
            },
        );
        encode_content_header(&mut bytes, channel, 10_000, &[0, 0]);
        open_body(&mut bytes, channel, 400);
        bytes.extend_from_slice(&[0; 400]);
        bytes.extend_from_slice(&[0xCE]);
        conn.raw(&bytes);
    }
    conn.expect_connection_close(
        506,
        "RESOURCE_ERROR - unfinished messages of this connection exceed 1000 octets",
        (60, 40),
    );
}

proptest! {
    /// For any order of the queues' answers, every publish is confirmed exactly once.
    #[test]
    fn every_publish_is_confirmed_once(order in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..60)) {
        let mut conn = confirming();
        conn.broker.silent = true;
        for _ in 0..order.len() {
            conn.publish(1, "", "q", b"x");
        }
        let mut pending = std::mem::take(&mut conn.broker.unconfirmed);
        let mut unconfirmed: std::collections::BTreeSet<u64> = (1..=order.len() as u64).collect();
        for (pick, read) in order {
            let (queue, tag) = pending.remove(pick.index(pending.len()));
            conn.broker.notices.push_back(session::QueueNotification::Published { queue, tag }.into());
            conn.settle();
            if read {
                take_acks(&mut conn, &mut unconfirmed);
            }
        }
        take_acks(&mut conn, &mut unconfirmed);
        prop_assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    }
}

fn take_acks(conn: &mut Conn, unconfirmed: &mut std::collections::BTreeSet<u64>) {
    while let Some((_, _, payload)) = conn.next_frame() {
        match Method::decode(&payload).unwrap() {
            Method::BasicAck {
                delivery_tag,
                multiple: false,
            } => assert!(unconfirmed.remove(&delivery_tag)),
            Method::BasicAck {
                delivery_tag,
                multiple: true,
            } => {
                assert!(unconfirmed.contains(&delivery_tag));
                *unconfirmed = unconfirmed.split_off(&(delivery_tag + 1));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn oversized_message_is_refused_when_it_is_complete() {
    let config = SessionConfig {
        limits: Arc::new(Limits {
            message: 100,
            ..Limits::default()
        }),
        ..SessionConfig::default()
    };
    let mut conn = Conn::open_as(config, "guest");
    conn.open_channel(1);
    let mut bytes = BytesMut::new();
    let publish = Method::BasicPublish {
        exchange: "",
        routing_key: "q",
        mandatory: false,
        immediate: false,
    };
    encode_method(&mut bytes, 1, &publish);
    let mut none = BytesMut::new();
    Properties::default().encode(&mut none);
    encode_content_header(&mut bytes, 1, 120, &none);
    codec_amqp091::encode_body(&mut bytes, 1, &[0; 70], 131_072);
    codec_amqp091::encode_body(&mut bytes, 1, &[0; 49], 131_072);
    conn.raw(&bytes);
    conn.expect_nothing();
    bytes.clear();
    codec_amqp091::encode_body(&mut bytes, 1, &[0; 1], 131_072);
    conn.raw(&bytes);
    let text = "PRECONDITION_FAILED - message size 120 is larger than configured max size 100";
    conn.expect_channel_close(1, 406, text, (60, 40));
}
