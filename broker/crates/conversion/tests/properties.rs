//! Arbitrary stored messages never panic, and views survive their own protocol.

use bytes::BytesMut;
use codec_amqp10::{Sections, encode_data_section};
use codec_amqp091::{Properties as Basic, table};
use codec_mqtt::{Properties as Mqtt, Qos, RepeatedProperties, put_user_property};
use conversion::mqtt::{Envelope, EnvelopeBuilder};
use conversion::{MessageEnvelope, View, amqp10, amqp091, mqtt, trace};
use env::WallTime;
use message::{Message, MessageBuilder, Protocol, Table, Value};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use routing::{HashedProperty, RoutingInput as _};

const TOPICS: &str = "amq.topic";

fn build(protocol: Protocol, ttl_ms: Option<u64>, properties: &[u8], body: &[u8]) -> Message {
    let builder = MessageBuilder {
        protocol,
        durable: true,
        priority: Some(3),
        ttl_ms,
        received: WallTime(7),
        exchange: TOPICS,
        routing_keys: &["a.b"],
        properties,
    };
    builder.build(body.len(), [body]).unwrap()
}

/// The two parts of the stored form.
fn stored_form(encoded: &amqp10::Encoded<'_>) -> (Vec<u8>, Vec<u8>) {
    (
        [&encoded.annotations[..], &encoded.properties].concat(),
        [&encoded.body_start[..], encoded.body.bytes()].concat(),
    )
}

/// Calls every function that reads a stored message. Results are valid in their protocol.
fn convert_to_all(message: &Message) {
    let basic = amqp091::convert(message);
    let size = basic.body.bytes().len();
    assert_eq!(basic.body.share(message, 0..size), basic.body.bytes());
    if message.protocol() != Protocol::Amqp091 {
        Basic::decode(&basic.properties).unwrap();
    }
    let typed = amqp10::convert(message);
    if message.protocol() != Protocol::Amqp10 {
        let (properties, body) = stored_form(&typed);
        let joined = [properties, body].concat();
        let sections = Sections::parse(&joined).unwrap();
        sections.read_properties(&joined).unwrap();
        sections
            .read_map(sections.application_properties, &joined)
            .unwrap();
    }
    let mut annotations = Vec::new();
    amqp10::encode_annotations(
        message,
        &typed.annotations,
        &Table::default(),
        &mut annotations,
    );
    Sections::parse(&annotations).unwrap();
    if let Some(converted) = mqtt::convert(message, "a.b", TOPICS) {
        Envelope::read(converted.properties())
            .unwrap()
            .properties()
            .unwrap();
    }
    let envelope = MessageEnvelope {
        message,
        deaths: None,
    };
    envelope.headers();
    for property in [
        HashedProperty::CorrelationId,
        HashedProperty::MessageId,
        HashedProperty::Timestamp,
    ] {
        envelope.property(property);
    }
    trace::copy(message, ("x", "k"), "node", Table::default()).unwrap();
}

const PROTOCOLS: [Protocol; 4] = [
    Protocol::Amqp091,
    Protocol::Amqp10,
    Protocol::Mqtt,
    Protocol::Stream,
];

/// Header values that every AMQP version has.
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
        (0u64..1 << 40).prop_map(Value::Timestamp),
        "[a-zé]{0,9}".prop_map(|text| Value::from(&*text)),
        vec(any::<u8>(), 0..9).prop_map(|bytes| Value::Binary(bytes.into())),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let table = vec(("[a-z]{1,5}", inner.clone()), 0..4);
        let table = table.prop_map(|all| {
            Table(
                all.into_iter()
                    .map(|(name, value)| (name.into(), value))
                    .collect(),
            )
        });
        prop_oneof![
            vec(inner, 0..4).prop_map(Value::Array),
            table.prop_map(Value::Table),
        ]
    })
}

/// A table of headers without repeated names. Only those that begin with `x-` have lists and tables.
fn headers() -> impl Strategy<Value = Table> {
    let headers = vec(("(x-a)?[a-z]{1,5}", value()), 0..8);
    headers.prop_map(|all| {
        let mut table = Table::default();
        for (name, value) in all {
            let is_compound = matches!(value, Value::Array(_) | Value::Table(_));
            if name.starts_with("x-") || !is_compound {
                table.set(&name, value);
            }
        }
        table
    })
}

/// A stored message of AMQP 0.9.1.
fn basic() -> impl Strategy<Value = Message> {
    let text = || of("[a-z]{0,9}");
    let texts = (
        text(),
        text(),
        text(),
        text(),
        text(),
        text(),
        text(),
        text(),
    );
    let rest = (
        headers(),
        of(0u64..1 << 40),
        of(any::<u64>()),
        vec(any::<u8>(), 0..9),
    );
    (texts, rest).prop_map(|(texts, (headers, timestamp, ttl_ms, body))| {
        let mut entries = BytesMut::new();
        table::encode(&headers, &mut entries);
        let properties = Basic {
            content_type: texts.0.as_deref(),
            content_encoding: texts.1.as_deref(),
            headers: Some(&entries[4..]),
            correlation_id: texts.2.as_deref(),
            reply_to: texts.3.as_deref(),
            message_id: texts.4.as_deref(),
            timestamp,
            kind: texts.5.as_deref(),
            user_id: texts.6.as_deref(),
            app_id: texts.7.as_deref(),
            cluster_id: texts.0.as_deref(),
            ..Basic::default()
        };
        let mut raw = BytesMut::new();
        properties.encode(&mut raw);
        build(Protocol::Amqp091, ttl_ms, &raw, &body)
    })
}

proptest! {
    #[test]
    fn arbitrary_stored_bytes_never_panic(properties: Vec<u8>, body: Vec<u8>) {
        for protocol in PROTOCOLS {
            convert_to_all(&build(protocol, None, &properties, &body));
        }
    }

    /// Damaged messages come further into the decoders than arbitrary bytes.
    #[test]
    fn damaged_messages_never_panic(
        message in basic(), at: prop::sample::Index, byte: u8, in_body: bool,
    ) {
        let typed = stored_form(&amqp10::convert(&message));
        let mqtt = mqtt::convert(&message, "a.b", TOPICS).unwrap();
        for (protocol, properties, body) in [
            (Protocol::Amqp091, message.properties(), message.body()),
            (Protocol::Amqp10, &typed.0[..], &typed.1[..]),
            (Protocol::Mqtt, mqtt.properties(), mqtt.body()),
        ] {
            convert_to_all(&build(protocol, None, properties, body));
            let (mut properties, mut body) = (properties.to_vec(), body.to_vec());
            let part = if in_body { &mut body } else { &mut properties };
            if !part.is_empty() {
                let at = at.index(part.len());
                part[at] = byte;
            }
            convert_to_all(&build(protocol, None, &properties, &body));
        }
    }

    #[test]
    fn view_of_amqp091_survives_amqp091(message in basic()) {
        let view = View::of(&message).unwrap();
        let encoded = amqp091::encode(view.clone());
        let again = build(Protocol::Amqp091, message.ttl_ms(), &encoded.properties, encoded.body.bytes());
        prop_assert_eq!(View::of(&again).unwrap(), view);
    }

    #[test]
    fn view_of_amqp10_survives_amqp10(message in basic(), two: bool) {
        let (properties, mut body) = stored_form(&amqp10::convert(&message));
        if two {
            encode_data_section(&mut body, b"second");
        }
        let typed = build(Protocol::Amqp10, message.ttl_ms(), &properties, &body);
        let view = View::of(&typed).unwrap();
        let encoded = amqp10::encode(view.clone());
        let (properties, body) = stored_form(&encoded);
        let again = build(Protocol::Amqp10, message.ttl_ms(), &properties, &body);
        let mut after = View::of(&again).unwrap();
        prop_assert_eq!(after.body.part().bytes(), view.body.part().bytes());
        // Several data sections become one.
        after.body = view.body.clone();
        prop_assert_eq!(&after, &view);
        // Everything of AMQP 0.9.1 but the cluster id has a place in AMQP 1.0.
        let mut original = View::of(&message).unwrap();
        original.cluster_id = None;
        original.body = view.body.clone();
        // User ids have bytes and the order of the two maps is not that of the table.
        prop_assert_eq!(view.user_id, original.user_id);
        let names = |view: &View<'_>| {
            let mut names = Vec::new();
            view.headers.for_each(|header| names.push((header.name.to_owned(), header.value)));
            names.sort_by(|a, b| a.0.cmp(&b.0));
            names
        };
        prop_assert_eq!(names(&view), names(&original));
        original.headers = view.headers;
        prop_assert_eq!(&original, &view);
    }

    #[test]
    fn view_of_mqtt_survives_mqtt(
        bits in 0u8..3, is_text: Option<bool>, expiry in of(0u32..1 << 20),
        content_type in of("[a-zé]{0,9}"), response in of("[a-z/.]{1,9}"),
        correlation in of(vec(any::<u8>(), 0..9)),
        users in vec(("[a-z]{0,5}", "[a-zé]{0,5}"), 0..5), payload: Vec<u8>,
    ) {
        let mut repeated = BytesMut::new();
        for (name, value) in &users {
            put_user_property(&mut repeated, name, value);
        }
        let properties = Mqtt {
            payload_format: is_text,
            message_expiry: expiry,
            content_type: content_type.as_deref(),
            response_topic: response.as_deref(),
            correlation_data: correlation.as_deref(),
            repeated: RepeatedProperties(&repeated),
            ..Mqtt::default()
        };
        let builder = EnvelopeBuilder {
            qos: Qos::from_bits(bits).unwrap(),
            retain: false,
            topic: "a/b",
            properties: &properties,
            exchange: TOPICS,
            key: "a.b",
            received: WallTime(7),
        };
        let message = builder.build(&payload).unwrap();
        let view = View::of(&message).unwrap();
        let again = mqtt::encode(&view, &message, "a.b", TOPICS).unwrap();
        prop_assert_eq!(again.as_bytes(), message.as_bytes());
        convert_to_all(&message);
    }
}
