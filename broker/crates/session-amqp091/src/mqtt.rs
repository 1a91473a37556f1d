//! Conversion of messages from other protocols to AMQP 0.9.1 properties; for MQTT with RabbitMQ's
//! mapping.

use bytes::{Bytes, BytesMut};
use codec_amqp091::{Properties, table};
use message::{Message, Protocol, Table, Value};
use std::borrow::Cow;
use topics::{Envelope, key_of};

/// The encoded properties of a message for a content header. Empty if the source properties cannot
/// be decoded.
pub(crate) fn properties(message: &Message) -> Cow<'_, [u8]> {
    let raw = message.properties();
    match message.protocol() {
        Protocol::Amqp091 => Cow::Borrowed(raw),
        Protocol::Mqtt => {
            let mut out = BytesMut::new();
            convert_mqtt(message, raw, &mut out)
                .unwrap_or_else(|| Properties::default().encode(&mut out));
            Cow::Owned(out.to_vec())
        }
        // Other protocols have no conversion yet. A message without properties is valid.
        _ => Cow::Borrowed(&[0, 0]),
    }
}

/// Converts MQTT properties. None if they cannot be decoded.
fn convert_mqtt(message: &Message, raw: &[u8], out: &mut BytesMut) -> Option<()> {
    let envelope = Envelope::read(raw).ok()?;
    let mqtt = envelope.properties().ok()?;
    let mut headers = Table::default();
    headers.set("x-mqtt-publish-qos", Value::U8(envelope.qos as u8));
    headers.set("x-mqtt-dup", Value::Bool(false));
    if let Some(topic) = mqtt.response_topic {
        headers.set("x-opt-reply-to-topic", Value::from(&*key_of(topic)));
    }
    let correlation = mqtt.correlation_data.unwrap_or_default();
    let correlation_id = std::str::from_utf8(correlation).ok();
    let correlation_id = correlation_id.filter(|id| !id.is_empty() && id.len() <= 255);
    if correlation_id.is_none() && !correlation.is_empty() {
        let data = Value::Binary(Bytes::copy_from_slice(correlation));
        headers.set("x-correlation-id", data);
    }
    for (name, value) in mqtt.user_properties().filter(|(name, _)| name.len() <= 128) {
        headers.set(name, Value::from(value));
    }
    let mut table = BytesMut::new();
    table::encode(&headers, &mut table);
    let expiration = message.ttl_ms().map(|ms| ms.to_string());
    let properties = Properties {
        content_type: mqtt.content_type.filter(|text| text.len() <= 255),
        headers: table.get(4..),
        delivery_mode: message.durable().then_some(2),
        correlation_id,
        expiration: expiration.as_deref(),
        ..Properties::default()
    };
    properties.encode(out);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::WallTime;
    use message::{MessageBuilder, Protocol};

    #[test]
    fn mqtt_envelope_converts_to_properties() {
        // QoS 1, topic "a/b"; content type "t", response topic "r/s", correlation data, user property k: v.
        let mut raw = vec![1, 0, 3];
        raw.extend(b"a/b\x03\x00\x01t\x08\x00\x03r/s\x09\x00\x02id\x26\x00\x01k\x00\x01v");
        let build = |raw: &[u8]| {
            let builder = MessageBuilder {
                protocol: Protocol::Mqtt,
                durable: true,
                priority: None,
                ttl_ms: Some(9000),
                received: WallTime(0),
                exchange: "amq.topic",
                routing_keys: &["a.b"],
                properties: raw,
            };
            builder.build(0, []).unwrap()
        };
        let message = build(&raw);
        let encoded = properties(&message);
        let decoded = Properties::decode(&encoded).unwrap();
        assert_eq!(
            (decoded.content_type, decoded.correlation_id),
            (Some("t"), Some("id"))
        );
        assert_eq!(
            (decoded.delivery_mode, decoded.expiration),
            (Some(2), Some("9000"))
        );
        let headers = decoded.header_table().unwrap();
        assert_eq!(
            headers.get("x-opt-reply-to-topic"),
            Some(&Value::from("r.s"))
        );
        assert_eq!(headers.get("k"), Some(&Value::from("v")));
        assert_eq!(headers.get("x-mqtt-publish-qos"), Some(&Value::U8(1)));
        // An undecodable envelope gives empty properties.
        let message = build(&[9]);
        let encoded = properties(&message);
        assert_eq!(Properties::decode(&encoded), Ok(Properties::default()));
    }
}
