//! Headers that the node adds to messages.

use crate::fake::Conn;
use bytes::BytesMut;
use codec_amqp091::{Method, Properties, table};
use message::{Table, Value};
use session::Broker;
use session::interceptors::Interceptors;
use session_amqp091::Limits;

fn open(interceptors: Interceptors) -> Conn {
    let mut conn = Conn::open_with(Limits {
        interceptors,
        ..Limits::default()
    });
    conn.open_channel(1);
    conn.declare(1, "q");
    conn
}

/// Publishes a message with headers and returns the timestamp and the headers that a consumer gets.
fn delivered(
    conn: &mut Conn,
    headers: &[(&str, Value)],
    timestamp: Option<u64>,
) -> (Option<u64>, Table) {
    let headers = Table(
        headers
            .iter()
            .map(|(k, v)| ((*k).into(), v.clone()))
            .collect(),
    );
    let mut entries = BytesMut::new();
    table::encode(&headers, &mut entries);
    let properties = Properties {
        headers: (!headers.is_empty()).then(|| &entries[4..]),
        timestamp,
        ..Properties::default()
    };
    conn.publish_with(1, "", "q", false, &properties, b"m");
    let get = Method::BasicGet {
        queue: "q",
        no_ack: true,
    };
    conn.send(1, get);
    assert_eq!(conn.next_method(), (1, "basic.get-ok"));
    let (properties, _) = conn.expect_content(1);
    let properties = Properties::received(&properties).unwrap();
    (properties.timestamp, properties.header_table().unwrap())
}

#[test]
fn publish_gets_the_time_of_arrival_and_the_name_of_the_node() {
    for is_overwritten in [false, true] {
        let mut conn = open(Interceptors {
            received_time: Some(is_overwritten),
            routing_node: Some(is_overwritten),
            ..Interceptors::default()
        });
        let now = conn.broker.wall().0;
        let node = session::interceptors::routing_node(&conn.broker);
        assert!(!node.is_empty());
        let added = [
            ("timestamp_in_ms", Value::I64(now as i64)),
            ("x-routed-by", Value::from(&*node)),
        ];
        let (timestamp, headers) = delivered(&mut conn, &[("own", Value::I32(1))], None);
        assert_eq!(timestamp, Some(now / 1000));
        assert_eq!(headers.get("own"), Some(&Value::I32(1)));
        for (key, value) in &added {
            assert_eq!(headers.get(key), Some(value));
        }
        let published = [
            ("timestamp_in_ms", Value::I64(5)),
            ("x-routed-by", Value::from("elsewhere")),
        ];
        let (timestamp, headers) = delivered(&mut conn, &published, Some(7));
        let (expected_time, expected) = match is_overwritten {
            true => (now / 1000, &added),
            false => (7, &published),
        };
        assert_eq!(timestamp, Some(expected_time));
        for (key, value) in expected {
            assert_eq!(headers.get(key), Some(value), "{is_overwritten}");
        }
        assert_eq!(headers.0.len(), 2);
    }
}

#[test]
fn delivery_gets_the_time_at_which_it_is_sent() {
    let mut conn = open(Interceptors {
        sent_time: true,
        ..Interceptors::default()
    });
    let now = conn.broker.wall().0;
    let (timestamp, headers) = delivered(&mut conn, &[], None);
    assert_eq!(timestamp, None);
    let expected = Table(vec![(
        "x-opt-rabbitmq-sent-time".into(),
        Value::I64(now as i64),
    )]);
    assert_eq!(headers, expected);
}

#[test]
fn message_is_unchanged_without_interceptors() {
    let mut conn = open(Interceptors::default());
    assert_eq!(delivered(&mut conn, &[], None), (None, Table::default()));
}
