//! Conversion of messages for MQTT subscribers: messages from AMQP 0.9.1 clients, by RabbitMQ's
//! mapping, and dead-lettered MQTT messages.

use bytes::BytesMut;
use codec_amqp091::{Properties as Amqp, Short};
use codec_mqtt::{Properties, Qos, Repeated, check_name, put_user_property};
use message::{Message, Protocol, Value};
use topics::{Envelope, EnvelopeBuilder, topic_of};

/// Converts a message for MQTT subscribers of the topic that corresponds to the routing key.
/// Returns `None` if the key is not a topic name (it is empty or has an MQTT wildcard) or the
/// message has another protocol.
pub(crate) fn for_topic(message: &Message, key: &str) -> Option<Message> {
    let topic = topic_of(key);
    check_name(&topic).ok()?;
    match message.protocol() {
        Protocol::Amqp091 => from_amqp091(message, key, &topic),
        Protocol::Mqtt => dead_letter(message, key, &topic),
        _ => None,
    }
}

/// Converts a dead-lettered MQTT message: its topic changes if the queue sets a dead letter routing
/// key.
fn dead_letter(message: &Message, key: &str, topic: &str) -> Option<Message> {
    let envelope = Envelope::read(message.properties()).ok()?;
    let properties = envelope.properties().ok()?;
    let builder = EnvelopeBuilder {
        qos: envelope.qos,
        retain: false,
        topic,
        properties: &properties,
        exchange: message.exchange(),
        key,
        received: message.received(),
    };
    builder.build(message.body())
}

fn from_amqp091(message: &Message, key: &str, topic: &str) -> Option<Message> {
    let raw = message.properties();
    let amqp = Amqp::received(raw).ok()?;
    let mut users = BytesMut::new();
    let mut response = None;
    for (name, value) in amqp.header_table().unwrap_or_default().0 {
        match (&*name, text(&value)) {
            ("x-opt-reply-to-topic", Some(reply)) => response = Some(topic_of(&reply)),
            (name, Some(value)) if !name.contains('\0') && !value.contains('\0') => {
                put_user_property(&mut users, name, &value);
            }
            _ => {}
        }
    }
    let ttl = message.ttl_ms().map(|ms| ms.div_ceil(1000));
    let properties = Properties {
        message_expiry: ttl.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
        content_type: amqp
            .content_type
            .and_then(Short::text)
            .filter(|text| !text.contains('\0')),
        correlation_data: amqp.correlation_id.map(|id| id.0),
        response_topic: response
            .as_deref()
            .filter(|topic| check_name(topic).is_ok()),
        repeated: Repeated(&users),
        ..Properties::default()
    };
    let builder = EnvelopeBuilder {
        qos: match message.durable() {
            true => Qos::AtLeastOnce,
            false => Qos::AtMostOnce,
        },
        retain: false,
        topic,
        properties: &properties,
        exchange: message.exchange(),
        key,
        received: message.received(),
    };
    builder.build(message.body())
}

/// Header values with a text form become user properties.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(_) => value.as_str().map(str::to_owned),
        Value::Bool(b) => Some(b.to_string()),
        Value::I8(n) => Some(n.to_string()),
        Value::U8(n) => Some(n.to_string()),
        Value::I16(n) => Some(n.to_string()),
        Value::U16(n) => Some(n.to_string()),
        Value::I32(n) => Some(n.to_string()),
        Value::U32(n) => Some(n.to_string()),
        Value::I64(n) => Some(n.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_amqp091::table;
    use env::WallTime;
    use message::{MessageBuilder, Table};

    fn amqp(properties: &Amqp<'_>, durable: bool) -> Message {
        let mut raw = BytesMut::new();
        properties.encode(&mut raw);
        let builder = MessageBuilder {
            protocol: Protocol::Amqp091,
            durable,
            priority: None,
            ttl_ms: Some(1500),
            received: WallTime(7),
            exchange: "amq.topic",
            routing_keys: &["a.b"],
            properties: &raw,
        };
        builder.build(2, [&b"hi"[..]]).unwrap()
    }

    #[test]
    fn amqp_properties_are_mapped_to_mqtt() {
        let mut headers = Table::default();
        headers.set("k", "v".into());
        headers.set("n", Value::I64(-3));
        headers.set("x-opt-reply-to-topic", "re.ply".into());
        let mut raw = BytesMut::new();
        table::encode(&headers, &mut raw);
        let properties = Amqp {
            content_type: Some("text/plain"),
            correlation_id: Some("c1"),
            headers: Some(&raw[4..]),
            ..Amqp::default()
        };
        let message = for_topic(&amqp(&properties, true), "a.b/c").unwrap();
        let raw = message.properties();
        let envelope = Envelope::read(raw).unwrap();
        assert_eq!((envelope.topic, envelope.qos), ("a/b.c", Qos::AtLeastOnce));
        let got = envelope.properties().unwrap();
        assert_eq!(got.content_type, Some("text/plain"));
        assert_eq!(got.correlation_data, Some(&b"c1"[..]));
        assert_eq!(got.response_topic, Some("re/ply"));
        assert_eq!(
            got.user_properties().collect::<Vec<_>>(),
            [("k", "v"), ("n", "-3")]
        );
        assert_eq!(
            (message.ttl_ms(), message.received()),
            (Some(2000), WallTime(7))
        );
        assert_eq!(message.body(), b"hi");
        let plain = for_topic(&amqp(&Amqp::default(), false), "a").unwrap();
        assert_eq!(
            Envelope::read(plain.properties()).unwrap().qos,
            Qos::AtMostOnce
        );
    }

    #[test]
    fn routing_key_that_is_no_topic_is_not_converted() {
        for key in ["", "a.#", "a+b"] {
            assert_eq!(for_topic(&amqp(&Amqp::default(), true), key), None);
        }
    }
}
