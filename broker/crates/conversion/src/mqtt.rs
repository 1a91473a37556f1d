//! MQTT: the stored form of its messages, and messages for its subscribers.

mod envelope;
mod key;

pub use envelope::{Envelope, EnvelopeBuilder, EnvelopeError};
pub use key::{RoutingKey, key_of, push_swapped, topic_of};

use crate::view::Encoding;
use crate::{
    Body, CORRELATION_ID, DecodeError, Headers, Part, REPLY_TOPIC, ReplyTopic, View, amqp10,
};
use bytes::BytesMut;
use codec_mqtt::{Properties, Qos, RepeatedProperties, check_name, put_user_property};
use message::{Message, Protocol, Value};
use std::borrow::Cow;

/// Content type of a body of encoded AMQP 1.0 sections, as in RabbitMQ.
const AMQP10_CONTENT_TYPE: &str = "message/vnd.rabbitmq.amqp";

/// Converts a message for MQTT subscribers of the topic that corresponds to the routing key.
/// `exchange` is the exchange of MQTT. Returns `None` if the key is not a topic name (it is empty or
/// has an MQTT wildcard) or the stored message cannot be decoded.
///
/// A message that an MQTT client published needs this only after it was dead-lettered, because a
/// dead-letter routing key changes its topic.
pub fn convert(message: &Message, key: &str, exchange: &str) -> Option<Message> {
    let topic = topic_of(key);
    check_name(&topic).ok()?;
    match message.protocol() {
        Protocol::Mqtt => with_topic(message, key, &topic),
        _ => encode(&View::of(message).ok()?, message, key, exchange),
    }
}

/// The same MQTT message under another topic.
fn with_topic(message: &Message, key: &str, topic: &str) -> Option<Message> {
    let envelope = Envelope::read(message.properties()).ok()?;
    let properties = Properties {
        message_expiry: expiry_seconds(message.ttl_ms()),
        ..envelope.properties().ok()?
    };
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

pub(crate) fn decode(message: &Message) -> Result<View<'_>, DecodeError> {
    let envelope = Envelope::read(message.properties())?;
    let properties = envelope.properties()?;
    Ok(View {
        content_type: properties.content_type,
        correlation_id: properties.correlation_data.map(crate::Id::Untyped),
        reply_topic: properties.response_topic.map(|topic| ReplyTopic {
            exchange: first_exchange(message),
            topic,
        }),
        qos: Some(envelope.qos),
        is_text: properties.payload_format,
        headers: Headers(Encoding::UserProperties(properties.repeated)),
        body: Body::Bytes(Part::whole(message)),
        ..View::default()
    })
}

/// The exchange to which an MQTT client published: that of MQTT.
fn first_exchange(message: &Message) -> Cow<'_, str> {
    let deaths = message.deaths();
    match deaths.as_ref().and_then(|deaths| deaths.first()) {
        Some(death) => Cow::Owned(death.exchange.to_string()),
        None => Cow::Borrowed(message.exchange()),
    }
}

/// Encodes a message with the topic that corresponds to `key`. `message` says where and when it was
/// published.
pub fn encode(view: &View<'_>, message: &Message, key: &str, exchange: &str) -> Option<Message> {
    let mut users = BytesMut::new();
    let mut response = view
        .reply_topic
        .as_ref()
        .map(|reply| reply.topic.to_owned());
    if let Some(key) = view
        .reply_to
        .and_then(|to| amqp10::key_of_address(to, exchange))
    {
        response = Some(topic_of(&key));
    }
    let mut correlation = view.correlation_id.map(|id| id.to_bytes());
    let has_correlation = correlation.is_some();
    view.headers.for_each(|header| {
        match (header.name, &header.value) {
            (REPLY_TOPIC, value @ Value::String(_)) => {
                response = value.as_str().map(topic_of);
                return;
            }
            (CORRELATION_ID, Value::String(data) | Value::Binary(data)) if !has_correlation => {
                correlation = Some(Cow::Owned(data.to_vec()));
                return;
            }
            _ => {}
        }
        if let Some(text) = text(&header.value)
            && !header.name.contains('\0')
            && !text.contains('\0')
        {
            put_user_property(&mut users, header.name, &text);
        }
    });
    let properties = Properties {
        payload_format: view.is_text,
        message_expiry: expiry_seconds(view.ttl_ms),
        content_type: match view.body {
            Body::Bytes(_) => view.content_type.filter(|text| !text.contains('\0')),
            Body::Sections(_) => Some(AMQP10_CONTENT_TYPE),
        },
        correlation_data: correlation.as_deref(),
        response_topic: response
            .as_deref()
            .filter(|topic| check_name(topic).is_ok() && !topic.contains('\0')),
        repeated: RepeatedProperties(&users),
        ..Properties::default()
    };
    let builder = EnvelopeBuilder {
        qos: view.qos.unwrap_or(match view.durable {
            true => Qos::AtLeastOnce,
            false => Qos::AtMostOnce,
        }),
        retain: false,
        topic: &topic_of(key),
        properties: &properties,
        exchange: message.exchange(),
        key,
        received: message.received(),
    };
    builder.build(view.body.part().bytes())
}

/// A time to live in seconds, rounded up.
fn expiry_seconds(ttl_ms: Option<u64>) -> Option<u32> {
    let seconds = ttl_ms?.div_ceil(1000);
    Some(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// The text of a header as a user property; `None` if values of its type have none.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    Some(match value {
        Value::Void => Cow::Borrowed(""),
        Value::String(_) => Cow::Borrowed(value.as_str()?),
        Value::Bool(b) => Cow::Borrowed(if *b { "true" } else { "false" }),
        Value::Timestamp(seconds) => Cow::Owned(seconds.to_string()),
        Value::F32(number) => Cow::Owned(float_text((*number).into())),
        Value::F64(number) => Cow::Owned(float_text(*number)),
        value => Cow::Owned(value.as_integer()?.to_string()),
    })
}

/// A float as RabbitMQ writes it: one digit, 20 decimal places and an exponent of two digits.
fn float_text(number: f64) -> String {
    let text = format!("{number:.20e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        // An infinity or NaN.
        return text;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_amqp091::{Properties as Amqp, table};
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
        let message = convert(&amqp(&properties, true), "a.b/c", "amq.topic").unwrap();
        let raw = message.properties();
        let envelope = Envelope::read(raw).unwrap();
        assert_eq!(
            (envelope.topic(), envelope.qos),
            (Ok("a/b.c"), Qos::AtLeastOnce)
        );
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
        let plain = convert(&amqp(&Amqp::default(), false), "a", "amq.topic").unwrap();
        assert_eq!(
            Envelope::read(plain.properties()).unwrap().qos,
            Qos::AtMostOnce
        );
    }

    #[test]
    fn routing_key_that_is_no_topic_is_not_converted() {
        for key in ["", "a.#", "a+b"] {
            assert_eq!(
                convert(&amqp(&Amqp::default(), true), key, "amq.topic"),
                None
            );
        }
    }
}
