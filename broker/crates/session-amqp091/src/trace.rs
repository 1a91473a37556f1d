//! A message as those who trace a virtual host see it: RabbitMQ's firehose. The body is the message's; what it was, and what
//! happens to it, is in the headers.

use crate::mqtt;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Properties, Short, table};
use message::{Message, MessageBuilder, Protocol, Table, Value};

/// Bytes of a routing key.
const MAX_KEY: usize = 255;

/// The copy that goes to `exchange` under `key`, with `more` headers. None: it cannot be made.
pub fn copy(
    message: &Message,
    (exchange, key): (&str, &str),
    node: &str,
    more: Table,
) -> Option<Message> {
    let mut headers = Table::default();
    headers.set("exchange_name", Value::from(message.exchange()));
    let keys = message.routing_keys().map(Value::from);
    headers.set("routing_keys", Value::Array(keys.collect()));
    headers.set("properties", Value::Table(properties(message)));
    headers.set("node", Value::from(node));
    for (name, value) in more.0 {
        headers.set(&name, value);
    }
    let mut entries = BytesMut::new();
    table::encode(&headers, &mut entries);
    let mut raw = BytesMut::new();
    let shown = Properties {
        headers: entries.get(4..),
        ..Properties::default()
    };
    shown.encode(&mut raw);
    let body = message.body();
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: false,
        priority: None,
        ttl_ms: None,
        received: message.received(),
        exchange,
        routing_keys: &[cut(key)],
        properties: &raw,
    };
    builder.build(body.len(), [body]).ok()
}

fn cut(key: &str) -> &str {
    key.get(..key.floor_char_boundary(MAX_KEY)).unwrap_or(key)
}

/// Those that the message has, by RabbitMQ's names.
fn properties(message: &Message) -> Table {
    let raw = mqtt::properties(message);
    let mut shown = Table::default();
    let Ok(known) = Properties::received(&raw) else {
        return shown;
    };
    let headers = known.headers.and_then(|raw| table::decode(raw).ok());
    let text = |text: Option<Short<'_>>| text.map(|t| Value::String(Bytes::copy_from_slice(t.0)));
    let number = |number: Option<u8>| number.map(|n| Value::I32(n.into()));
    let all = [
        ("content_type", text(known.content_type)),
        ("content_encoding", text(known.content_encoding)),
        ("headers", headers.map(Value::Table)),
        ("delivery_mode", number(known.delivery_mode)),
        ("priority", number(known.priority)),
        ("correlation_id", text(known.correlation_id)),
        ("reply_to", text(known.reply_to)),
        ("expiration", text(known.expiration)),
        ("message_id", text(known.message_id)),
        ("timestamp", known.timestamp.map(|t| Value::I64(t as i64))),
        ("type", text(known.kind)),
        ("user_id", text(known.user_id)),
        ("app_id", text(known.app_id)),
        ("cluster_id", text(known.cluster_id)),
    ];
    for (name, value) in all {
        if let Some(value) = value {
            shown.set(name, value);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::WallTime;

    #[test]
    fn a_copy_says_what_the_message_was() {
        let mut raw = BytesMut::new();
        let was = Properties {
            content_type: Some("text/plain"),
            delivery_mode: Some(2),
            ..Properties::default()
        };
        was.encode(&mut raw);
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
        let mut more = Table::default();
        more.set("user", Value::from("guest"));
        let key = format!("publish.{}", "ü".repeat(200));
        let copy = copy(&message, ("amq.rabbitmq.trace", &key), "one", more).unwrap();
        assert_eq!(copy.body(), b"body");
        assert_eq!(copy.exchange(), "amq.rabbitmq.trace");
        assert_eq!(copy.routing_key().len(), 254, "cut between characters");
        assert!(!copy.durable() && copy.ttl_ms().is_none());
        let raw = copy.properties();
        let shown = Properties::decode(raw).unwrap();
        let headers = table::decode(shown.headers.unwrap()).unwrap();
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
