//! Filters over messages in their stored form.

#[path = "../../queue/benches/counting.rs"]
mod counting;

use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};
use codec_amqp10::{
    Encode, Properties, Reader, SectionKind, Symbol, Timestamp, Value, encode_described,
    encode_section_descriptor, map,
};
use env::WallTime;
use filter::{Filter, FilterSet, StoredMessage};
use message::{Message, MessageBuilder, Protocol, Table};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

fn container(protocol: Protocol, properties: &[u8]) -> Message {
    MessageBuilder {
        protocol,
        durable: true,
        priority: Some(6),
        ttl_ms: None,
        received: WallTime(0),
        exchange: "",
        routing_keys: &["key"],
        properties,
    }
    .build(4, [&b"body"[..]])
    .unwrap()
}

fn amqp10() -> Message {
    let mut out = Vec::new();
    encode_section_descriptor(&mut out, SectionKind::MessageAnnotations);
    let mut annotations = map(&mut out);
    annotations.push(&Symbol::from_static("x-opt-note"));
    annotations.push(&Value::String("a note"));
    annotations.finish();
    Properties {
        message_id: Some(Value::Ulong(17)),
        to: Some("/queues/orders"),
        subject: Some("order.created"),
        content_type: Some(Symbol::from_static("text/plain")),
        creation_time: Some(Timestamp(1_780_000_000_000)),
        group_sequence: Some(9),
        ..Properties::default()
    }
    .encode(&mut out);
    encode_section_descriptor(&mut out, SectionKind::ApplicationProperties);
    let mut application = map(&mut out);
    for (name, value) in [
        ("region", Value::String("EU")),
        ("count", Value::Int(5)),
        ("price", Value::Double(10.5)),
        ("paid", Value::Boolean(true)),
        ("nothing", Value::Null),
    ] {
        application.push(name);
        application.push(&value);
    }
    application.finish();
    container(Protocol::Amqp10, &out)
}

fn amqp091() -> Message {
    use message::Value;
    let mut headers = Table::default();
    for (name, value) in [
        ("region", Value::from("EU")),
        ("bool", Value::Bool(true)),
        ("i8", Value::I8(-1)),
        ("u8", Value::U8(255)),
        ("i16", Value::I16(-2)),
        ("u16", Value::U16(65_535)),
        ("i32", Value::I32(-3)),
        ("u32", Value::U32(4_294_967_295)),
        ("i64", Value::I64(i64::MIN)),
        ("f32", Value::F32(0.5)),
        ("f64", Value::F64(0.25)),
        ("bytes", Value::Binary(Bytes::from_static(&[0xFF]))),
        ("time", Value::Timestamp(3)),
        ("void", Value::Void),
        (
            "decimal",
            Value::Decimal {
                scale: 1,
                value: 10,
            },
        ),
        ("list", Value::Array(vec![Value::I8(1)])),
        ("x-hidden", Value::I32(1)),
    ] {
        headers.set(name, value);
    }
    let mut encoded = BytesMut::new();
    codec_amqp091::table::encode(&headers, &mut encoded);
    let mut out = BytesMut::new();
    codec_amqp091::Properties {
        headers: Some(&encoded[4..]),
        message_id: Some("m1"),
        correlation_id: Some("c1"),
        user_id: Some("guest"),
        reply_to: Some("answers"),
        content_type: Some("text/plain"),
        content_encoding: Some("gzip"),
        app_id: Some("shop"),
        timestamp: Some(1_780_000_000),
        ..codec_amqp091::Properties::default()
    }
    .encode(&mut out);
    container(Protocol::Amqp091, &out)
}

fn check(message: &Message, matching: &[&str]) {
    let fields = StoredMessage::new(message);
    for expression in matching {
        let filter = Filter::compile_sql(expression).unwrap();
        assert!(filter.matches(&fields, 0), "{expression}");
    }
}

#[test]
fn messages_of_amqp_1_0_are_read_from_their_sections() {
    check(
        &amqp10(),
        &[
            "h.priority = 6",
            "p.message_id = 17 AND p.to = '/queues/orders' AND p.subject = 'order.created'",
            "p.content_type = 'text/plain' AND p.creation_time = 1780000000000",
            "p.group_sequence = 9 AND p.group_id IS NULL",
            "region = 'EU' AND count = 5 AND price = 10.5 AND paid",
            "nothing IS NULL AND [x-opt-note] IS NULL AND absent IS NULL",
        ],
    );
    let selector = Filter::compile_selector("JMSDeliveryMode = 'PERSISTENT'").unwrap();
    assert!(selector.matches(&StoredMessage::new(&amqp10()), 0));
}

#[test]
fn messages_of_amqp_0_9_1_are_read_as_after_conversion() {
    check(
        &amqp091(),
        &[
            "h.priority = 6",
            "p.message_id = 'm1' AND p.correlation_id = 'c1' AND p.user_id = 'guest' AND p.reply_to = 'answers'",
            "p.content_type = 'text/plain' AND p.content_encoding = 'gzip' AND p.group_id = 'shop'",
            "p.creation_time = 1780000000000",
            "p.to IS NULL AND p.subject IS NULL AND p.group_sequence IS NULL",
            "region = 'EU' AND bool",
            "i8 = -1 AND u8 = 255 AND i16 = -2 AND u16 = 65535 AND i32 = -3 AND u32 = 4294967295",
            "i64 = -9223372036854775808 AND f32 = 0.5 AND f64 = 0.25",
            "bytes = 0xFF AND time = 3000",
            "void IS NULL AND decimal IS NOT NULL AND list IS NOT NULL",
            "[x-hidden] IS NULL",
        ],
    );
}

#[test]
fn messages_without_sections_have_a_header_only() {
    for protocol in [Protocol::Amqp10, Protocol::Mqtt, Protocol::Stream] {
        check(
            &container(protocol, b""),
            &["h.priority = 6 AND p.subject IS NULL AND region IS NULL"],
        );
    }
}

#[test]
fn damaged_sections_are_read_without_a_panic() {
    let filter =
        Filter::compile_sql("p.subject IS NULL AND region IS NULL AND h.priority = 6").unwrap();
    for (protocol, whole) in [(Protocol::Amqp10, amqp10()), (Protocol::Amqp091, amqp091())] {
        let whole = whole.properties();
        for end in 0..whole.len() {
            filter.matches(&StoredMessage::new(&container(protocol, &whole[..end])), 0);
        }
        for at in 0..whole.len() {
            for flip in [0x01, 0x80, 0xFF] {
                let mut damaged = whole.to_vec();
                damaged[at] ^= flip;
                filter.matches(&StoredMessage::new(&container(protocol, &damaged)), 0);
            }
        }
    }
}

#[test]
fn an_evaluation_does_not_allocate() {
    let messages = [amqp10(), amqp091()];
    let filters = [
        "region = 'EU' AND count > 3 AND p.subject LIKE 'order.%'",
        "region IN ('US', 'EU') AND (count * 2 + 1) / 3 < UTC() OR p.to LIKE '%_q_%s%'",
        "a IS NULL AND b IS NULL AND c IS NULL AND d IS NULL AND e IS NULL AND f IS NULL AND g IS NULL AND region LIKE 'E_'",
    ]
    .map(|text| Filter::compile_sql(text).unwrap());
    // Other tests of this binary allocate at the same time, so the least of many counts is that of the evaluation.
    let least = (0..1000)
        .map(|_| {
            let before = counting::ALLOCATIONS.load(Relaxed);
            for message in &messages {
                for filter in &filters {
                    filter.matches(&StoredMessage::new(message), 0);
                }
            }
            counting::ALLOCATIONS.load(Relaxed) - before
        })
        .min();
    assert_eq!(least, Some(0));
}

#[test]
fn a_set_passes_messages_that_pass_all_its_filters() {
    let filter = |descriptor: &str, text: &str| {
        let mut encoded = Vec::new();
        let descriptor = Symbol::new(descriptor).expect("ASCII");
        encode_described(&mut encoded, descriptor, &Value::String(text));
        encoded
    };
    let subject = filter("amqp:sql-filter", "properties.subject LIKE 'order.%'");
    let sequence = |number: u32| {
        let text = format!("JMSXGroupSeq = {number}");
        filter("apache.org:selector-filter:string", &text)
    };
    let set = |filters: &[&Vec<u8>]| {
        let read = filters.iter().map(|encoded| Reader::new(encoded).read());
        FilterSet::encode(read.map(|value| match value.expect("a value") {
            Value::Described(filter) => filter,
            other => panic!("{other:?}"),
        }))
    };
    let passes = |encoded: &[u8]| {
        let set = FilterSet::decode(encoded)?;
        Some(set.matches(&amqp10(), 0))
    };
    assert_eq!(passes(&set(&[])), Some(true));
    assert_eq!(passes(&set(&[&subject, &sequence(9)])), Some(true));
    assert_eq!(passes(&set(&[&subject, &sequence(8)])), Some(false));
    // An unknown filter, one that is invalid, and bytes that are damaged.
    let unknown = filter("com.example:filter", "a");
    let invalid = filter("amqp:sql-filter", "properties.");
    assert_eq!(passes(&set(&[&subject, &unknown])), None);
    assert_eq!(passes(&set(&[&subject, &invalid])), None);
    let whole = set(&[&subject, &sequence(9)]);
    for end in 0..whole.len() {
        assert_eq!(passes(&whole[..end]), None);
    }
}
