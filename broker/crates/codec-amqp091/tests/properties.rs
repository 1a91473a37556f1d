//! Round trips, and robustness against arbitrary bytes.

use bytes::{Bytes, BytesMut};
use codec_amqp091::{
    ContentHeader, DecodeError, FRAME_OVERHEAD, FrameError, FrameKind, HeaderEdit, Method,
    Properties, Short, encode_body, encode_content_header, encode_heartbeat, encode_method,
    parse_frame, table,
};
use message::{Table, Value};
use proptest::collection::vec;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Void),
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        (-1e9f32..1e9).prop_map(Value::F32),
        (-1e9f64..1e9).prop_map(Value::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| Value::Decimal { scale, value }),
        vec(any::<u8>(), 0..20).prop_map(|b| Value::String(Bytes::from(b))),
        vec(any::<u8>(), 0..20).prop_map(|b| Value::Binary(Bytes::from(b))),
        any::<u64>().prop_map(Value::Timestamp),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::Array),
            vec(("[a-zé-]{0,9}", inner), 0..5)
                .prop_map(table_of)
                .prop_map(Value::Table),
        ]
    })
}

fn table_of(entries: Vec<(String, Value)>) -> Table {
    Table(entries.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn tables() -> impl Strategy<Value = Table> {
    vec(("[a-zé-]{0,9}", value()), 0..6).prop_map(table_of)
}

fn wire(table: &Table) -> BytesMut {
    let mut out = BytesMut::new();
    table::encode(table, &mut out);
    out
}

/// Number of values in a table, including nested ones.
fn count_values(values: &[&Value]) -> usize {
    values
        .iter()
        .map(|v| {
            1 + match v {
                Value::Array(a) => count_values(&a.iter().collect::<Vec<_>>()),
                Value::Table(t) => count_values(&t.0.iter().map(|(_, v)| v).collect::<Vec<_>>()),
                _ => 0,
            }
        })
        .sum()
}

proptest! {
    #[test]
    fn tables_round_trip(table in tables()) {
        let raw = wire(&table);
        prop_assert_eq!(table::decode(&raw[4..]).unwrap(), table.clone());
        let mut keys = Vec::new();
        let mut values = Vec::new();
        table::walk(&raw[4..], |e| { keys.push(e.key.to_owned()); values.push(e.decode().unwrap()); }).unwrap();
        prop_assert_eq!(keys, table.0.iter().map(|(k, _)| k.to_string()).collect::<Vec<_>>());
        prop_assert_eq!(values, table.0.iter().map(|(_, v)| v.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn walk_and_decode_agree_on_arbitrary_bytes(raw in vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(table::walk(&raw, |_| ()), table::decode(&raw).map(|_| ()));
    }

    #[test]
    fn methods_round_trip(
        channel: u16, a in "[ -~é]{0,60}", b in "[ -~é]{0,60}", table in tables(), bits: [bool; 5],
        number: u64, bytes in vec(any::<u8>(), 0..60),
    ) {
        let [p, q, r, s, t] = bits;
        let methods = [
            Method::ConnectionStartOk { client_properties: table.clone(), mechanism: &a, response: &bytes, locale: &b },
            Method::ConnectionOpen { virtual_host: &a },
            Method::ConnectionTune { channel_max: number as u16, frame_max: number as u32, heartbeat: 7 },
            Method::ExchangeDeclare { exchange: &a, kind: &b, passive: p, durable: q, auto_delete: r, internal: s, no_wait: t, arguments: table.clone() },
            Method::QueueDeclare { queue: &a, passive: p, durable: q, exclusive: r, auto_delete: s, no_wait: t, arguments: table },
            Method::BasicDeliver { consumer_tag: &a, delivery_tag: number, redelivered: p, exchange: &b, routing_key: &a },
            Method::BasicNack { delivery_tag: number, multiple: p, requeue: q },
            Method::ChannelOpenOk {},
            Method::BasicGetEmpty {},
        ];
        for method in methods {
            let mut out = BytesMut::new();
            encode_method(&mut out, channel, &method);
            let frame = parse_frame(&out, 131_072).unwrap().unwrap();
            prop_assert_eq!((frame.kind, frame.channel, frame.wire_len()), (FrameKind::Method, channel, out.len()));
            prop_assert_eq!(Method::decode(frame.payload).unwrap(), method);
            for cut in 0..out.len() {
                prop_assert_eq!(parse_frame(&out[..cut], 131_072), Ok(None));
            }
        }
    }

    #[test]
    fn properties_round_trip_and_headers_can_be_edited(
        kind in proptest::option::of("[a-z]{0,9}"), user in proptest::option::of("[a-z]{0,9}"),
        mode: Option<u8>, priority: Option<u8>, timestamp: Option<u64>, headers in proptest::option::of(tables()),
    ) {
        let raw = headers.as_ref().map(wire);
        let properties = Properties {
            kind: kind.as_deref(), user_id: user.as_deref(), delivery_mode: mode, priority, timestamp,
            headers: raw.as_ref().map(|r| &r[4..]), ..Properties::default()
        };
        let mut out = BytesMut::new();
        properties.encode(&mut out);
        prop_assert_eq!(Properties::decode(&out).unwrap(), properties);
        let edit = [HeaderEdit { key: "a", value: None }, HeaderEdit { key: "x-delivery-count", value: Some(Value::I64(3)) }];
        let mut edited = BytesMut::new();
        properties.encode_edited(&edit, &mut edited);
        let mut expected = headers.unwrap_or_default();
        expected.0.retain(|(k, _)| &**k != "a");
        expected.0.push(("x-delivery-count".into(), Value::I64(3)));
        let after = Properties::decode(&edited).unwrap();
        prop_assert_eq!(after.header_table().unwrap(), expected);
        prop_assert_eq!((after.kind, after.delivery_mode, after.timestamp), (properties.kind, mode, timestamp));
    }

    #[test]
    fn arbitrary_bytes_neither_panic_nor_exceed_the_limits(raw in vec(any::<u8>(), 0..600)) {
        let _ = parse_frame(&raw, 4096);
        let _ = Method::decode(&raw);
        let _ = ContentHeader::decode(&raw);
        let _ = Properties::decode(&raw);
        if let Ok(table) = table::decode(&raw) {
            prop_assert!(count_values(&[&Value::Table(table)]) <= raw.len() + 1);
        }
    }

    #[test]
    fn arbitrary_arguments_do_not_panic(
        class in prop_oneof![Just(10u16), Just(20), Just(40), Just(50), Just(60), Just(85), Just(90)],
        id in 0u16..130, tail in vec(any::<u8>(), 0..80),
    ) {
        let mut raw = class.to_be_bytes().to_vec();
        raw.extend(id.to_be_bytes());
        raw.extend(tail);
        if let Ok(method) = Method::decode(&raw) {
            prop_assert_eq!(method.ids(), (class, id));
        }
    }

    #[test]
    fn bodies_are_split_at_frame_max(len in 0usize..20_000, max in 4096u32..9000) {
        let body = vec![7u8; len];
        let mut out = BytesMut::new();
        encode_body(&mut out, 3, &body, max);
        let (mut at, mut sum) = (0, 0);
        while let Some(frame) = parse_frame(&out[at..], max).unwrap() {
            prop_assert_eq!((frame.kind, frame.channel), (FrameKind::Body, 3));
            prop_assert!(frame.wire_len() <= max as usize && !frame.payload.is_empty());
            at += frame.wire_len();
            sum += frame.payload.len();
        }
        prop_assert_eq!((at, sum), (out.len(), len));
    }
}

#[test]
fn oversized_frame_is_refused_before_its_payload_arrives() {
    let head = [1, 0, 5, 0, 0, 16, 1];
    assert_eq!(
        parse_frame(&head, 4096),
        Err(FrameError::TooLarge {
            octet: 1,
            size: 4097,
            max: 4088
        })
    );
    assert_eq!(parse_frame(&[1, 0, 5, 0, 0, 16, 0], 4096), Ok(None));
}

/// Clients send arbitrary octets as identifiers, such as the sixteen octets of a UUID.
#[test]
fn properties_accept_short_strings_that_are_not_utf8() {
    let raw = [0x04, 0x82, 2, 0xFF, 0xFE, 1, 0xF0];
    assert_eq!(Properties::decode(&raw), Err(DecodeError::Utf8));
    // Bit 1 of the flags is ignored.
    let received = Properties::received(&raw).unwrap();
    assert_eq!(received.correlation_id, Some(Short(&[0xFF, 0xFE])));
    assert_eq!(received.message_id.and_then(Short::text), None);
    let mut encoded = BytesMut::new();
    received.encode(&mut encoded);
    assert_eq!(&encoded[..], [0x04, 0x80, 2, 0xFF, 0xFE, 1, 0xF0]);
    let continued = Properties::received(&[0, 1, 0, 0]);
    assert_eq!(continued, Err(DecodeError::PropertyFlags(1)));
}

#[test]
fn wrong_end_marker_is_refused() {
    let mut out = BytesMut::new();
    encode_heartbeat(&mut out);
    assert_eq!(out.len(), FRAME_OVERHEAD);
    out[7] = 0;
    assert!(matches!(
        parse_frame(&out, 4096),
        Err(FrameError::EndMarker {
            octet: 8,
            marker: 0,
            ..
        })
    ));
}

#[test]
fn table_depth_and_size_are_limited() {
    let mut deep = Value::Void;
    for _ in 0..=table::MAX_DEPTH {
        deep = Value::Array(vec![deep]);
    }
    let raw = wire(&table_of(vec![("a".into(), deep)]));
    assert_eq!(table::decode(&raw[4..]), Err(DecodeError::TooDeep));
    let wide = Value::Array(vec![Value::Void; table::MAX_VALUES as usize]);
    let raw = wire(&table_of(vec![("a".into(), wide)]));
    assert_eq!(table::decode(&raw[4..]), Err(DecodeError::TooManyValues));
}

#[test]
fn content_header_preserves_the_encoded_properties() {
    let mut out = BytesMut::new();
    encode_content_header(&mut out, 9, 1 << 40, &[0x10, 0, 2]);
    let frame = parse_frame(&out, 4096).unwrap().unwrap();
    let header = ContentHeader::decode(frame.payload).unwrap();
    assert_eq!((header.class_id, header.body_size), (60, 1 << 40));
    assert_eq!(
        Properties::decode(header.properties).unwrap().delivery_mode,
        Some(2)
    );
}

#[test]
fn trailing_bytes_and_unknown_methods_are_errors() {
    assert_eq!(
        Method::decode(&[0, 20, 0, 41, 1]),
        Err(DecodeError::Trailing(1))
    );
    assert_eq!(
        Method::decode(&[0, 20, 0, 99]),
        Err(DecodeError::UnknownMethod(20, 99))
    );
    assert_eq!(
        Method::decode(&[0, 10, 0, 40, 1, 0xFF, 0, 0]),
        Err(DecodeError::Utf8)
    );
    assert_eq!(
        Properties::decode(&[0, 1]),
        Err(DecodeError::PropertyFlags(1))
    );
}
