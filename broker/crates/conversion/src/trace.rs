//! RabbitMQ's firehose: copies of messages for tracing. The copy has the body of the message; its
//! headers describe the message, as AMQP 0.9.1 has it, and the event.

use crate::amqp091;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Properties, Short, table};
use message::{Message, MessageBuilder, Protocol, Table, Value};

/// Maximum length of a routing key in bytes.
const MAX_KEY: usize = 255;

/// Builds the copy for `exchange` and `key` with the additional headers `extra`. None if the
/// message cannot be built.
pub fn copy(
    message: &Message,
    (exchange, key): (&str, &str),
    node: &str,
    extra: Table,
) -> Option<Message> {
    let mut headers = Table::default();
    headers.set("exchange_name", Value::from(message.exchange()));
    let keys = message.routing_keys().map(Value::from);
    headers.set("routing_keys", Value::Array(keys.collect()));
    let original = amqp091::convert(message);
    headers.set("properties", Value::Table(properties(&original.properties)));
    headers.set("node", Value::from(node));
    for (name, value) in extra.0 {
        headers.set(&name, value);
    }
    let mut entries = BytesMut::new();
    table::encode(&headers, &mut entries);
    let mut raw = BytesMut::new();
    let encoded = Properties {
        headers: entries.get(4..),
        ..Properties::default()
    };
    encoded.encode(&mut raw);
    let body = original.body.bytes();
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: false,
        priority: None,
        ttl_ms: None,
        received: message.received(),
        exchange,
        routing_keys: &[truncate(key)],
        properties: &raw,
    };
    builder.build(body.len(), [body]).ok()
}

fn truncate(key: &str) -> &str {
    key.get(..key.floor_char_boundary(MAX_KEY)).unwrap_or(key)
}

/// The properties of the message under RabbitMQ's names; absent ones are omitted.
fn properties(raw: &[u8]) -> Table {
    let mut result = Table::default();
    let Ok(decoded) = Properties::received(raw) else {
        return result;
    };
    let headers = decoded.headers.and_then(|raw| table::decode(raw).ok());
    let text = |text: Option<Short<'_>>| text.map(|t| Value::String(Bytes::copy_from_slice(t.0)));
    let number = |number: Option<u8>| number.map(|n| Value::I32(n.into()));
    let all = [
        ("content_type", text(decoded.content_type)),
        ("content_encoding", text(decoded.content_encoding)),
        ("headers", headers.map(Value::Table)),
        ("delivery_mode", number(decoded.delivery_mode)),
        ("priority", number(decoded.priority)),
        ("correlation_id", text(decoded.correlation_id)),
        ("reply_to", text(decoded.reply_to)),
        ("expiration", text(decoded.expiration)),
        ("message_id", text(decoded.message_id)),
        ("timestamp", decoded.timestamp.map(|t| Value::I64(t as i64))),
        ("type", text(decoded.kind)),
        ("user_id", text(decoded.user_id)),
        ("app_id", text(decoded.app_id)),
        ("cluster_id", text(decoded.cluster_id)),
    ];
    for (name, value) in all {
        if let Some(value) = value {
            result.set(name, value);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::WallTime;

    #[test]
    fn copy_describes_the_original_message() {
        let mut raw = BytesMut::new();
        let original = Properties {
            content_type: Some("text/plain"),
            delivery_mode: Some(2),
            ..Properties::default()
        };
        original.encode(&mut raw);
        let builder = MessageBuilder {
            protocol: Protocol::Amqp091,
            durable: true,
            priority: None,
            ttl_ms: Some(5),
            received: WallTime(9),
            exchange: "orders",
            routing_keys: &["a", "b"],
            properties: &raw,
        };
        let message = builder.build(4, [&b"body"[..]]).unwrap();
        let mut extra = Table::default();
        extra.set("user", Value::from("guest"));
        let key = format!("publish.{}", "ü".repeat(200));
        let copy = copy(&message, ("amq.rabbitmq.trace", &key), "one", extra).unwrap();
        assert_eq!(copy.body(), b"body");
        assert_eq!(copy.exchange(), "amq.rabbitmq.trace");
        assert_eq!(
            copy.routing_key().len(),
            254,
            "truncated at a character boundary"
        );
        assert!(!copy.durable() && copy.ttl_ms().is_none());
        let raw = copy.properties();
        let decoded = Properties::decode(raw).unwrap();
        let headers = table::decode(decoded.headers.unwrap()).unwrap();
        let text = |name: &str| headers.get(name).and_then(Value::as_str);
        assert_eq!(
            (text("exchange_name"), text("node"), text("user")),
            (Some("orders"), Some("one"), Some("guest"))
        );
        let keys = ["a", "b"].map(Value::from);
        assert_eq!(
            headers.get("routing_keys"),
            Some(&Value::Array(keys.to_vec()))
        );
        let Some(Value::Table(properties)) = headers.get("properties") else {
            panic!("{headers:?}");
        };
        assert_eq!(properties.get("delivery_mode"), Some(&Value::I32(2)));
        assert_eq!(properties.0.len(), 2);
    }
}
