//! Messages of every protocol, with every property, in the form of every other protocol.

use bytes::{Bytes, BytesMut};
use codec_amqp10::{
    Encode, Properties as Amqp10, SectionKind, Sections, Symbol, Timestamp, Uuid, Value as Typed,
    encode_data_section, encode_section_descriptor, list, map,
};
use codec_amqp091::{Properties as Basic, table};
use codec_mqtt::{Properties as Mqtt, Qos, RepeatedProperties, put_user_property};
use conversion::mqtt::{Envelope, EnvelopeBuilder, convert};
use conversion::{MessageEnvelope, amqp10, amqp091};
use env::WallTime;
use message::{DeadReason, Deaths, Dying, Message, MessageBuilder, Protocol, Table, Value};
use routing::{HashedProperty, RoutingInput as _};
use std::borrow::Cow;

/// The exchange of MQTT.
const TOPICS: &str = "amq.topic";
const UUID: &str = "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f";
const UUID_BYTES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn build(protocol: Protocol, properties: &[u8], body: &[u8], is_full: bool) -> Message {
    let builder = MessageBuilder {
        protocol,
        durable: is_full,
        priority: is_full.then_some(5),
        ttl_ms: is_full.then_some(1500),
        received: WallTime(7),
        exchange: TOPICS,
        routing_keys: &["a.b"],
        properties,
    };
    builder.build(body.len(), [body]).unwrap()
}

/// An AMQP 0.9.1 message with every property and a header of every type.
fn basic(kind: &str, body: &[u8]) -> Message {
    let binary = Value::Binary(Bytes::from_static(b"\x00\xff"));
    let mut nested = Table::default();
    nested.set("n", Value::I32(1));
    let mut headers = Table::default();
    for (name, value) in [
        ("text", Value::from("v")),
        ("latin1", Value::String(Bytes::from_static(b"\xfc"))),
        ("void", Value::Void),
        ("flag", Value::Bool(true)),
        ("i8", Value::I8(-8)),
        ("u8", Value::U8(8)),
        ("i16", Value::I16(-16)),
        ("u16", Value::U16(16)),
        ("i32", Value::I32(-32)),
        ("u32", Value::U32(32)),
        ("i64", Value::I64(-64)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(-0.25)),
        ("decimal", Value::Decimal { scale: 1, value: 2 }),
        ("binary", binary),
        ("time", Value::Timestamp(1_700_000_000)),
        ("list", Value::Array(vec![Value::I8(1)])),
        ("table", Value::Table(nested.clone())),
        ("x-list", Value::Array(vec![Value::I8(1), "e".into()])),
        ("x-table", Value::Table(nested)),
        ("x-extra", Value::from("e")),
        ("x-opt-reply-to-topic", Value::from("re.ply")),
        ("CC", Value::Array(vec!["k2".into()])),
    ] {
        headers.set(name, value);
    }
    let mut raw = BytesMut::new();
    table::encode(&headers, &mut raw);
    let properties = Basic {
        content_type: Some("text/plain"),
        content_encoding: Some("gzip"),
        headers: Some(&raw[4..]),
        delivery_mode: Some(2),
        priority: Some(5),
        correlation_id: Some("c1"),
        reply_to: Some("replies"),
        expiration: Some("1500"),
        message_id: Some(UUID),
        timestamp: Some(1_700_000_000),
        kind: Some(kind),
        user_id: Some("guest"),
        app_id: Some("app"),
        cluster_id: Some("cluster"),
    };
    let mut out = BytesMut::new();
    properties.encode(&mut out);
    build(Protocol::Amqp091, &out, body, true)
}

/// An MQTT message with every property.
fn mqtt(correlation: &[u8], qos: Qos) -> Message {
    let mut users = BytesMut::new();
    for (name, value) in [
        ("k", "v"),
        ("k", "w"),
        ("x-extra", "e"),
        ("x-\u{e9}", "name that is not ASCII"),
        (&"n".repeat(256), "name that is too long for a table"),
        ("empty", ""),
    ] {
        put_user_property(&mut users, name, value);
    }
    let properties = Mqtt {
        payload_format: Some(true),
        message_expiry: Some(9),
        content_type: Some("text/plain"),
        response_topic: Some("re/ply.1"),
        correlation_data: Some(correlation),
        repeated: RepeatedProperties(&users),
        ..Mqtt::default()
    };
    let builder = EnvelopeBuilder {
        qos,
        retain: true,
        topic: "a/b",
        properties: &properties,
        exchange: TOPICS,
        key: "a.b",
        received: WallTime(7),
    };
    builder.build(b"payload").unwrap()
}

/// A map section of these entries. `symbols`: the keys are symbols.
fn map_section(kind: SectionKind, symbols: bool, entries: &[(&str, Typed<'_>)], out: &mut Vec<u8>) {
    encode_section_descriptor(out, kind);
    let mut writer = map(out);
    for (name, value) in entries {
        match symbols {
            true => writer.push(&Symbol::new(name).unwrap()),
            false => writer.push(name),
        }
        writer.push(value);
    }
    writer.finish();
}

fn value(bytes: &[u8]) -> Typed<'_> {
    codec_amqp10::Reader::new(bytes).read().unwrap()
}

/// An AMQP 1.0 message with every property, and values of every type.
fn typed(ids: [Typed<'_>; 2], reply_to: &str, body: &[u8]) -> Message {
    let mut keys = Vec::new();
    let mut writer = list(&mut keys);
    writer.push("k2");
    writer.finish();
    let mut nested = Vec::new();
    let mut writer = map(&mut nested);
    writer.push(&Symbol::from_static("n"));
    writer.push(&1i32);
    writer.push(&7u64);
    writer.push("key that is not text");
    writer.finish();
    // An array of two bytes, and a decimal, which `Encode` writes unchanged.
    let array = [0xe0, 4, 2, 0x51, 1, 0xff];
    let mut stored = Vec::new();
    let annotations = [
        ("x-extra", Typed::Symbol(Symbol::from_static("e"))),
        ("x-cc", value(&keys)),
        ("x-basic-type", Typed::String("kind")),
        ("x-basic-priority", Typed::Ubyte(9)),
        ("x-routing-key", Typed::String("of another hop")),
        ("x-table", value(&nested)),
        ("x-array", value(&array)),
        ("other", Typed::String("not an extension")),
    ];
    map_section(
        SectionKind::MessageAnnotations,
        true,
        &annotations,
        &mut stored,
    );
    let properties = Amqp10 {
        message_id: Some(ids[0]),
        user_id: Some(b"guest"),
        to: Some("/queues/q"),
        subject: Some("subject"),
        reply_to: Some(reply_to),
        correlation_id: Some(ids[1]),
        content_type: Some(Symbol::from_static("text/plain")),
        content_encoding: Some(Symbol::from_static("gzip")),
        absolute_expiry_time: Some(Timestamp(1_800_000_000_000)),
        creation_time: Some(Timestamp(1_700_000_000_999)),
        group_id: Some("group"),
        group_sequence: Some(3),
        reply_to_group_id: Some("reply group"),
    };
    properties.encode(&mut stored);
    let application = [
        ("null", Typed::Null),
        ("flag", Typed::Boolean(false)),
        ("ubyte", Typed::Ubyte(8)),
        ("ushort", Typed::Ushort(16)),
        ("uint", Typed::Uint(32)),
        ("ulong", Typed::Ulong(64)),
        ("large", Typed::Ulong(u64::MAX)),
        ("byte", Typed::Byte(-8)),
        ("short", Typed::Short(-16)),
        ("int", Typed::Int(-32)),
        ("long", Typed::Long(-64)),
        ("float", Typed::Float(1.5)),
        ("double", Typed::Double(1e100)),
        ("decimal", Typed::Decimal32([0; 4])),
        ("char", Typed::Char('\u{e9}')),
        ("time", Typed::Timestamp(Timestamp(1_700_000_000_999))),
        ("before 1970", Typed::Timestamp(Timestamp(-1))),
        ("uuid", Typed::Uuid(Uuid(UUID_BYTES))),
        ("binary", Typed::Binary(b"b")),
        ("string", Typed::String("s")),
        ("symbol", Typed::Symbol(Symbol::from_static("sym"))),
    ];
    map_section(
        SectionKind::ApplicationProperties,
        false,
        &application,
        &mut stored,
    );
    build(Protocol::Amqp10, &stored, body, true)
}

fn data(parts: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        encode_data_section(&mut body, part);
    }
    map_section(
        SectionKind::Footer,
        true,
        &[("x-sum", Typed::Uint(1))],
        &mut body,
    );
    body
}

fn value_body() -> Vec<u8> {
    let mut body = Vec::new();
    encode_section_descriptor(&mut body, SectionKind::Value);
    "text".encode(&mut body);
    body
}

fn sequence_body() -> Vec<u8> {
    let mut body = Vec::new();
    encode_section_descriptor(&mut body, SectionKind::Sequence);
    let mut writer = list(&mut body);
    writer.push(&1i32);
    writer.finish();
    body
}

/// Properties, headers and body in the form of AMQP 0.9.1, one on each line.
fn shown_amqp091(message: &Message) -> Vec<String> {
    let encoded = amqp091::convert(message);
    let properties = Basic::decode(&encoded.properties).unwrap();
    let numbers = [
        ("delivery-mode", properties.delivery_mode.map(u64::from)),
        ("priority", properties.priority.map(u64::from)),
        ("timestamp", properties.timestamp),
    ];
    let texts = [
        ("content-type", properties.content_type),
        ("content-encoding", properties.content_encoding),
        ("correlation-id", properties.correlation_id),
        ("reply-to", properties.reply_to),
        ("expiration", properties.expiration),
        ("message-id", properties.message_id),
        ("type", properties.kind),
        ("user-id", properties.user_id),
        ("app-id", properties.app_id),
        ("cluster-id", properties.cluster_id),
    ];
    let mut lines = Vec::new();
    for (name, number) in numbers {
        lines.extend(number.map(|number| format!("{name}: {number}")));
    }
    for (name, text) in texts {
        lines.extend(text.map(|text| format!("{name}: {text}")));
    }
    for (name, value) in properties.header_table().unwrap().0 {
        lines.push(format!("header {name}: {value:?}"));
    }
    lines.push(format!(
        "body: {:?}",
        Bytes::copy_from_slice(encoded.body.bytes())
    ));
    let shared = encoded.body.share(message, 0..encoded.body.bytes().len());
    assert_eq!(shared, encoded.body.bytes());
    lines
}

fn shown_mqtt(message: &Message) -> Vec<String> {
    let Some(converted) = convert(message, "a.b", TOPICS) else {
        return vec!["not delivered".to_owned()];
    };
    let envelope = Envelope::read(converted.properties()).unwrap();
    let properties = envelope.properties().unwrap();
    let bytes = |bytes: &[u8]| format!("{:?}", Bytes::copy_from_slice(bytes));
    let mut lines = vec![format!(
        "publish {} {:?}",
        envelope.topic().expect("a topic"),
        envelope.qos
    )];
    lines.extend(converted.ttl_ms().map(|ms| format!("expiry: {ms}")));
    lines.extend(
        properties
            .payload_format
            .map(|text| format!("is text: {text}")),
    );
    lines.extend(
        properties
            .content_type
            .map(|text| format!("content type: {text}")),
    );
    lines.extend(
        properties
            .response_topic
            .map(|topic| format!("response topic: {topic}")),
    );
    lines.extend(
        properties
            .correlation_data
            .map(|data| format!("correlation data: {}", bytes(data))),
    );
    for (name, value) in properties.user_properties() {
        lines.push(format!("user {name}: {value}"));
    }
    lines.push(format!("payload: {}", bytes(converted.body())));
    lines
}

fn shown_amqp10(message: &Message) -> Vec<String> {
    let encoded = amqp10::convert(message);
    let parts: [&[u8]; 4] = [
        &encoded.annotations,
        &encoded.properties,
        &encoded.body_start,
        encoded.body.bytes(),
    ];
    let joined = parts.concat();
    let sections = Sections::parse(&joined).unwrap();
    let header = amqp10::header(message);
    let mut lines = vec![format!("{header:?}")];
    for (key, value) in sections
        .read_map(sections.message_annotations, &joined)
        .unwrap()
    {
        lines.push(format!("annotation {key:?}: {value:?}"));
    }
    let properties = sections.read_properties(&joined).unwrap();
    assert!(properties == Amqp10::default() || sections.properties.is_some());
    for (name, value) in [
        (
            "message-id",
            properties.message_id.map(|v| format!("{v:?}")),
        ),
        (
            "user-id",
            properties
                .user_id
                .map(|v| format!("{:?}", Bytes::copy_from_slice(v))),
        ),
        ("to", properties.to.map(str::to_owned)),
        ("subject", properties.subject.map(str::to_owned)),
        ("reply-to", properties.reply_to.map(str::to_owned)),
        (
            "correlation-id",
            properties.correlation_id.map(|v| format!("{v:?}")),
        ),
        (
            "content-type",
            properties.content_type.map(|v| v.to_string()),
        ),
        (
            "content-encoding",
            properties.content_encoding.map(|v| v.to_string()),
        ),
        (
            "absolute-expiry-time",
            properties.absolute_expiry_time.map(|v| v.0.to_string()),
        ),
        (
            "creation-time",
            properties.creation_time.map(|v| v.0.to_string()),
        ),
        ("group-id", properties.group_id.map(str::to_owned)),
        (
            "group-sequence",
            properties.group_sequence.map(|v| v.to_string()),
        ),
    ] {
        lines.extend(value.map(|value| format!("{name}: {value}")));
    }
    for (key, value) in sections
        .read_map(sections.application_properties, &joined)
        .unwrap()
    {
        lines.push(format!("application {key:?}: {value:?}"));
    }
    for value in sections.read_body(&joined) {
        lines.push(format!(
            "body {:?}: {:?}",
            sections.body.unwrap().kind,
            value.unwrap()
        ));
    }
    lines
}

/// Text that is long only so that it exceeds a limit.
fn shortened(line: String) -> String {
    let repeated = line
        .char_indices()
        .find(|(at, letter)| line[*at..].starts_with(&letter.to_string().repeat(100)));
    let Some((at, letter)) = repeated else {
        return line;
    };
    let rest = line[at..].trim_start_matches(letter);
    let count = line.len() - at - rest.len();
    format!("{}{letter}... ({count} bytes){rest}", &line[..at])
}

/// The message in the form of every other protocol.
fn shown(message: &Message) -> String {
    let mut text = String::new();
    for (protocol, name, form) in [
        (
            Protocol::Amqp091,
            "AMQP 0.9.1",
            shown_amqp091 as fn(&Message) -> Vec<String>,
        ),
        (Protocol::Mqtt, "MQTT", shown_mqtt),
        (Protocol::Amqp10, "AMQP 1.0", shown_amqp10),
    ] {
        if protocol != message.protocol() {
            text.push_str(&format!("{name}\n"));
            for line in form(message) {
                text.push_str(&format!("  {}\n", shortened(line)));
            }
        }
    }
    text
}

/// Compares the forms of a message with a file.
#[track_caller]
fn assert_golden(message: &Message, expected: &str) {
    let shown = shown(message);
    assert!(shown == expected, "converted message:\n{shown}");
}

macro_rules! golden {
    ($($(#[$attribute:meta])* $name:ident: $message:expr;)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                assert_golden(&$message, include_str!(concat!("golden/", stringify!($name), ".txt")));
            }
        )*
    };
}

golden! {
    amqp091_with_every_property: basic("kind", b"body");
    amqp091_with_sections_as_body: basic("amqp-1.0", &value_body());
    amqp091_whose_type_wrongly_says_sections: basic("amqp-1.0", b"body");
    amqp091_without_properties: build(Protocol::Amqp091, &[0, 0], b"", false);
    mqtt_with_every_property: mqtt(b"c1", Qos::AtLeastOnce);
    mqtt_with_binary_correlation_data: mqtt(b"\xff\x00", Qos::AtMostOnce);
    mqtt_with_uuid_as_correlation_data: mqtt(UUID.as_bytes(), Qos::ExactlyOnce);
    mqtt_without_properties: build(Protocol::Mqtt, b"\x00\x00\x01a", b"", false);
    amqp10_with_one_data_section: typed(
        [Typed::Uuid(Uuid(UUID_BYTES)), Typed::Ulong(17)],
        "/exchanges/amq.topic/re.ply%2F1",
        &data(&[b"one"]),
    );
    amqp10_with_two_data_sections: typed(
        [Typed::Binary(b"m"), Typed::Binary(b"\xff")],
        "/queues/r",
        &data(&[b"one", b"two"]),
    );
    amqp10_with_value_as_body: typed(
        [Typed::String(&"l".repeat(256)), Typed::String("c1")],
        &"r".repeat(256),
        &value_body(),
    );
    amqp10_with_sequence_as_body: build(Protocol::Amqp10, &[], &sequence_body(), false);
    amqp10_without_body: build(Protocol::Amqp10, &[], &[], false);
    undecodable_amqp10: build(Protocol::Amqp10, &[1], b"body", false);
    undecodable_mqtt: build(Protocol::Mqtt, &[9], b"body", false);
    stream: build(Protocol::Stream, &[], b"body", false);
}

#[test]
fn message_of_the_same_protocol_is_not_copied() {
    let message = basic("kind", b"body");
    let encoded = amqp091::convert(&message);
    assert!(matches!(encoded.properties, Cow::Borrowed(_)));
    assert_eq!(encoded.properties.as_ptr(), message.properties().as_ptr());
    assert_eq!(encoded.body.bytes().as_ptr(), message.body().as_ptr());

    let message = typed([Typed::Null; 2], "", &data(&[b"one", b"two"]));
    let encoded = amqp10::convert(&message);
    assert_eq!(encoded.annotations.as_ptr(), message.properties().as_ptr());
    let parts = [&encoded.annotations[..], &encoded.properties[..]];
    assert_eq!(parts.concat(), message.properties());
    assert!(matches!(encoded.properties, Cow::Borrowed(_)));
    assert!(encoded.body_start.is_empty());
    assert_eq!(encoded.body.bytes().as_ptr(), message.body().as_ptr());
    // A body of one data section is not copied for other protocols.
    let message = typed([Typed::Null; 2], "", &data(&[b"one"]));
    let encoded = amqp091::convert(&message);
    let body = message.body().as_ptr() as usize;
    assert_eq!(encoded.body.bytes().as_ptr() as usize - body, 5);
}

/// Protocols without a Response Topic keep its exchange, which a dead letter does not name.
#[test]
fn dead_lettered_mqtt_message_keeps_its_reply_address() {
    let mut deaths = Deaths::default();
    deaths.record(&Dying {
        queue: "q",
        reason: DeadReason::Rejected,
        exchange: TOPICS,
        routing_keys: vec!["a.b"],
        ttl_ms: None,
        failed: false,
        at: WallTime(8),
    });
    let message = mqtt(b"c1", Qos::AtLeastOnce);
    let dead = message.dead_lettered("dlx", Some("c.d"), &deaths).unwrap();
    let line = "reply-to: /exchanges/amq.topic/re.ply%2F1";
    assert!(shown_amqp10(&dead).iter().any(|shown| shown == line));
    // For MQTT its topic changes, and nothing else.
    let converted = convert(&dead, "c.d", TOPICS).unwrap();
    let (before, after) = (message.properties(), converted.properties());
    let (before, after) = (
        Envelope::read(before).unwrap(),
        Envelope::read(after).unwrap(),
    );
    assert_eq!(after.topic(), Ok("c/d"));
    assert_eq!((after.kept, after.qos), (before.kept, before.qos));
}

#[test]
fn amqp10_delivery_has_annotations_of_the_broker() {
    let mut deaths = Deaths::default();
    for (queue, ttl_ms) in [("first", Some(9)), ("second", None)] {
        deaths.record(&Dying {
            queue,
            reason: DeadReason::Expired,
            exchange: "x",
            routing_keys: vec!["k1", "k2"],
            ttl_ms,
            failed: false,
            at: WallTime(1000),
        });
    }
    let message = typed([Typed::Null; 2], "", &data(&[b"one"]));
    let shown = |message: &Message| {
        let encoded = amqp10::convert(message);
        let mut section = Vec::new();
        amqp10::encode_annotations(
            message,
            &encoded.annotations,
            &Table::default(),
            &mut section,
        );
        let sections = Sections::parse(&section).unwrap();
        let map = sections.read_map(sections.message_annotations, &section);
        let lines = map
            .unwrap()
            .iter()
            .map(|(key, value)| format!("{key:?}: {value:?}"));
        lines.skip(4).collect::<Vec<_>>()
    };
    // The routing key of another hop is replaced.
    let published = [
        "Symbol(:x-table): Map({Symbol(:n): Int(1), Ulong(7): String(\"key that is not text\")})",
        "Symbol(:x-array): Array([Byte(1), Byte(-1)])",
        "Symbol(:other): String(\"not an extension\")",
    ];
    let own = [
        "Symbol(:x-exchange): String(\"amq.topic\")",
        "Symbol(:x-routing-key): String(\"a.b\")",
    ];
    assert_eq!(shown(&message), [&published[..], &own].concat());
    let dead = message.dead_lettered("dlx", Some("dead"), &deaths).unwrap();
    let death = |queue: &str| {
        let head = match queue {
            "first" => "Symbol(:ttl): Uint(9), ",
            _ => "",
        };
        format!(
            "Map({{{head}Symbol(:queue): String(\"{queue}\"), Symbol(:reason): Symbol(:expired), \
             Symbol(:count): Ulong(1), Symbol(:first-time): Timestamp(Timestamp(1000)), \
             Symbol(:last-time): Timestamp(Timestamp(1000)), Symbol(:exchange): String(\"x\"), \
             Symbol(:routing-keys): Array([String(\"k1\"), String(\"k2\")])}})"
        )
    };
    let deaths = format!(
        "Symbol(:x-opt-deaths): Array([{}, {}])",
        death("second"),
        death("first")
    );
    let own = [
        "Symbol(:x-exchange): String(\"dlx\")",
        "Symbol(:x-routing-key): String(\"dead\")",
        "Symbol(:x-first-death-exchange): String(\"x\")",
        "Symbol(:x-first-death-queue): String(\"first\")",
        "Symbol(:x-first-death-reason): String(\"expired\")",
        "Symbol(:x-last-death-exchange): String(\"x\")",
        "Symbol(:x-last-death-queue): String(\"second\")",
        "Symbol(:x-last-death-reason): String(\"expired\")",
        &deaths,
    ];
    assert_eq!(shown(&dead), [&published[..], &own].concat());
}

#[test]
fn received_amqp10_message_is_split_into_its_stored_form() {
    let message = typed([Typed::Null; 2], "", &data(&[b"one"]));
    let mut wire = Vec::new();
    amqp10::header(&message).encode(&mut wire);
    let hop = [("x-hop", Typed::Null)];
    map_section(SectionKind::DeliveryAnnotations, true, &hop, &mut wire);
    let received = [&wire, message.properties(), message.body()].concat();
    let parts = amqp10::Received::parse(&received).unwrap();
    assert_eq!(parts.properties, message.properties());
    assert_eq!(parts.body, message.body());
    assert!(parts.sections.read_header(&received).unwrap().durable);
    for (properties, body) in [(&b""[..], message.body()), (message.properties(), b"")] {
        let received = [&wire[..], properties, body].concat();
        let parts = amqp10::Received::parse(&received).unwrap();
        assert_eq!((parts.properties, parts.body), (properties, body));
    }
}

#[test]
fn exchanges_see_headers_and_properties_of_every_protocol() {
    let seen = |message: &Message, names: &[&str]| {
        let envelope = MessageEnvelope {
            message,
            deaths: None,
        };
        let headers = envelope.headers();
        // Of several headers with the same name exchanges use the last one.
        let find = |name: &&str| {
            let found = headers.0.iter().rev().find(|(found, _)| **found == **name);
            found.map(|(_, value)| value.clone())
        };
        let properties = [
            HashedProperty::CorrelationId,
            HashedProperty::MessageId,
            HashedProperty::Timestamp,
        ];
        (
            names.iter().map(find).collect(),
            properties.map(|p| envelope.property(p)),
        )
    };
    let text = |text: &str| Some(text.to_owned());
    let value = |text: &str| Some(Value::from(text));
    let message = mqtt(b"c1", Qos::AtLeastOnce);
    let expected: (Vec<_>, _) = (vec![value("w"), value("e"), None], [text("c1"), None, None]);
    assert_eq!(seen(&message, &["k", "x-extra", "absent"]), expected);
    let ids = [Typed::Uuid(Uuid(UUID_BYTES)), Typed::Ulong(17)];
    let message = typed(ids, "", &data(&[b"one"]));
    let expected = (
        vec![value("s"), value("e"), Some(Value::I32(-32)), None],
        [text("17"), text(UUID), text("1700000000")],
    );
    assert_eq!(
        seen(&message, &["string", "x-extra", "int", "other"]),
        expected
    );
}

/// A few bytes of AMQP 1.0 can stand for thousands of values of fifty bytes.
#[test]
fn headers_beyond_the_limit_of_values_are_left_out() {
    // An array of 4,000 nulls.
    let nulls = [&[0xf0, 0, 0, 0, 5, 0, 0, 0x0f, 0xa0, 0x40][..]];
    let array = self::value(nulls[0]);
    let mut stored = Vec::new();
    let names: Vec<String> = (0..100).map(|n| format!("x-{n}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (&**name, array)).collect();
    map_section(SectionKind::MessageAnnotations, true, &entries, &mut stored);
    let message = build(Protocol::Amqp10, &stored, b"", false);
    let encoded = amqp091::convert(&message);
    let headers = Basic::decode(&encoded.properties)
        .unwrap()
        .header_table()
        .unwrap();
    assert_eq!(headers.0.len(), 1);
    let mut users = BytesMut::new();
    for n in 0..5000 {
        put_user_property(&mut users, &n.to_string(), "");
    }
    let raw = [b"\x00\x00\x01a", &users[..]].concat();
    let message = build(Protocol::Mqtt, &raw, b"", false);
    let encoded = amqp091::convert(&message);
    let headers = Basic::decode(&encoded.properties)
        .unwrap()
        .header_table()
        .unwrap();
    // And two that describe the publish.
    assert!(
        (4000..=4096).contains(&headers.0.len()),
        "{}",
        headers.0.len()
    );
}
