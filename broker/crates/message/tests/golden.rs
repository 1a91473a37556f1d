//! Message containers, dead-letter histories and tables as version 0.2 wrote them.
#![forbid(unsafe_code)]

use bytes::Bytes;
use env::WallTime;
use message::{
    DeadReason, Deaths, DecodeError, Dying, Message, MessageBuilder, Protocol, Table, Value,
};
use std::fmt;

golden::variant_names! {
    fn protocol_name(Protocol) {
        Protocol::Amqp091 => "amqp091",
        Protocol::Amqp10 => "amqp10",
        Protocol::Mqtt => "mqtt",
        Protocol::Stream => "stream",
    }
    fn reason_name(DeadReason) {
        DeadReason::Rejected => "rejected",
        DeadReason::Expired => "expired",
        DeadReason::MaxLength => "max-length",
        DeadReason::DeliveryLimit => "delivery-limit",
    }
    fn value_name(Value) {
        Value::Void => "void",
        Value::Bool(_) => "bool",
        Value::I8(_) => "i8",
        Value::U8(_) => "u8",
        Value::I16(_) => "i16",
        Value::U16(_) => "u16",
        Value::I32(_) => "i32",
        Value::U32(_) => "u32",
        Value::I64(_) => "i64",
        Value::F32(_) => "f32",
        Value::F64(_) => "f64",
        Value::Decimal { .. } => "decimal",
        Value::String(_) => "string",
        Value::Binary(_) => "binary",
        Value::Timestamp(_) => "timestamp",
        Value::Array(_) => "array",
        Value::Table(_) => "table",
    }
}

/// Shows the parts of a message instead of its buffer.
struct Parts(Message);

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.0;
        f.debug_struct("Message")
            .field("protocol", &message.protocol())
            .field("durable", &message.durable())
            .field("priority", &message.priority())
            .field("received", &message.received())
            .field("ttl_ms", &message.ttl_ms())
            .field("exchange", &message.exchange())
            .field("routing_keys", &message.routing_keys().collect::<Vec<_>>())
            .field("open_routing_keys", &message.open_routing_keys())
            .field("deaths", &message.deaths())
            .field("properties", &Bytes::copy_from_slice(message.properties()))
            .field("body", &Bytes::copy_from_slice(message.body()))
            .finish()
    }
}

fn encode(message: &Parts) -> Vec<u8> {
    message.0.as_bytes().to_vec()
}

fn decode(bytes: &[u8]) -> Result<Parts, DecodeError> {
    Message::decode(Bytes::copy_from_slice(bytes)).map(Parts)
}

fn builder<'a>(protocol: Protocol, keys: &'a [&'a str]) -> MessageBuilder<'a> {
    MessageBuilder {
        protocol,
        durable: true,
        priority: Some(9),
        ttl_ms: Some(60_000),
        received: WallTime(1_790_000_000_123),
        exchange: "amq.topic",
        routing_keys: keys,
        properties: b"properties \0\xFF",
    }
}

fn build(builder: &MessageBuilder<'_>, blind_keys: usize) -> Message {
    let body = b"body";
    let built = builder.build_blind(blind_keys, body.len(), [&body[..]]);
    built.expect("a message")
}

/// One death for each reason, and a second one for the last reason.
fn deaths() -> Deaths {
    let mut deaths = Deaths::default();
    golden::assert_covers(&DeadReason::ALL, reason_name);
    let reasons = DeadReason::ALL
        .into_iter()
        .chain([DeadReason::DeliveryLimit]);
    for (at, reason) in reasons.enumerate() {
        deaths.record(&Dying {
            queue: "orders é",
            reason,
            exchange: "amq.direct",
            routing_keys: vec!["key", "from CC"],
            ttl_ms: (reason == DeadReason::Expired).then_some(60_000),
            failed: reason == DeadReason::Rejected,
            at: WallTime(1_790_000_000_000 + at as u64),
        });
    }
    deaths
}

#[test]
fn message_containers_of_version_0_2_are_decoded() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/message", |files| {
        let protocols = [
            Protocol::Amqp091,
            Protocol::Amqp10,
            Protocol::Mqtt,
            Protocol::Stream,
        ];
        golden::assert_covers(&protocols, protocol_name);
        for protocol in protocols {
            let (name, _) = protocol_name(&protocol);
            let message = build(&builder(protocol, &["key", "second key"]), 0);
            files.check(name, &Parts(message), encode, decode);
        }
        let minimal = MessageBuilder {
            durable: false,
            priority: None,
            ttl_ms: None,
            exchange: "",
            properties: b"",
            ..builder(Protocol::Amqp091, &[])
        };
        let minimal = minimal.build(0, []).expect("a message");
        files.check("minimal", &Parts(minimal), encode, decode);
        let keys = ["key", "CC é", "BCC"];
        let blind = build(&builder(Protocol::Amqp091, &keys), 1);
        files.check("blind-keys", &Parts(blind.clone()), encode, decode);
        let open = build(&builder(Protocol::Amqp091, &keys), 0);
        let died = [
            ("deaths", &open, Some("dead-letter key")),
            ("deaths-and-blind-keys", &blind, None),
        ];
        for (name, message, key) in died {
            let dead = message.dead_lettered("dlx", key, &deaths());
            files.check(name, &Parts(dead.expect("a message")), encode, decode);
        }
    });
}

#[test]
fn tables_of_version_0_2_are_decoded() {
    let nested = Table(vec![("nested é".into(), Value::from("text"))]);
    let mut values = vec![
        Value::Void,
        Value::Bool(true),
        Value::I8(-1),
        Value::U8(u8::MAX),
        Value::I16(i16::MIN),
        Value::U16(u16::MAX),
        Value::I32(i32::MIN),
        Value::U32(u32::MAX),
        Value::I64(i64::MIN),
        Value::F32(1.5),
        Value::F64(-0.1),
        Value::Decimal {
            scale: 2,
            value: 314,
        },
        Value::from("text"),
        Value::Binary(Bytes::from_static(&[0, 255])),
        Value::Timestamp(1_790_000_000),
        Value::Table(nested),
    ];
    values.push(Value::Array(values.clone()));
    golden::assert_covers(&values, value_name);
    let pairs = values.into_iter();
    let table = Table(pairs.map(|v| (value_name(&v).0.into(), v)).collect());
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/table", |files| {
        let decode = |bytes: &[u8]| wire::decode("table", &Bytes::copy_from_slice(bytes));
        files.check("every-value", &table, |t| wire::encode(t).to_vec(), decode);
        let empty = Table::default();
        files.check("empty", &empty, |t| wire::encode(t).to_vec(), decode);
    });
}
