//! Envelopes of MQTT messages as version 0.2 stored them.

use bytes::Bytes;
use codec_mqtt::{Properties, Qos, RepeatedProperties};
use conversion::mqtt::{Envelope, EnvelopeBuilder};
use env::WallTime;
use message::{DecodeError, Message};
use std::fmt;

golden::variant_names! {
    fn qos_name(Qos) {
        Qos::AtMostOnce => "qos-0",
        Qos::AtLeastOnce => "qos-1",
        Qos::ExactlyOnce => "qos-2",
    }
}

/// Shows the envelope of a message and the properties in it.
struct Stored(Message);

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let envelope = Envelope::read(self.0.properties()).map_err(|_| fmt::Error)?;
        let properties = envelope.properties().map_err(|_| fmt::Error)?;
        let user: Vec<_> = properties.user_properties().collect();
        f.debug_struct("Stored")
            .field("protocol", &self.0.protocol())
            .field("durable", &self.0.durable())
            .field("ttl_ms", &self.0.ttl_ms())
            .field("qos", &envelope.qos)
            .field("retain", &envelope.retain)
            .field("topic", &envelope.topic().map_err(|_| fmt::Error)?)
            .field("payload_format", &properties.payload_format)
            .field("content_type", &properties.content_type)
            .field("response_topic", &properties.response_topic)
            .field("correlation_data", &properties.correlation_data)
            .field("user_properties", &user)
            .field("body", &Bytes::copy_from_slice(self.0.body()))
            .finish()
    }
}

/// Builds the message again from its decoded parts.
fn encode(stored: &Stored) -> Vec<u8> {
    let message = &stored.0;
    let envelope = Envelope::read(message.properties()).expect("an envelope");
    let properties = Properties {
        message_expiry: message.ttl_ms().map(|ms| (ms / 1_000) as u32),
        ..envelope.properties().expect("properties")
    };
    let builder = EnvelopeBuilder {
        qos: envelope.qos,
        retain: envelope.retain,
        topic: envelope.topic().expect("a topic"),
        properties: &properties,
        exchange: message.exchange(),
        key: message.routing_key(),
        received: message.received(),
    };
    let built = builder.build(message.body()).expect("a message");
    built.as_bytes().to_vec()
}

fn decode(bytes: &[u8]) -> Result<Stored, DecodeError> {
    Message::decode(Bytes::copy_from_slice(bytes)).map(Stored)
}

#[test]
fn envelopes_of_version_0_2_are_decoded() {
    let build = |qos, retain, properties: &Properties<'_>| {
        let builder = EnvelopeBuilder {
            qos,
            retain,
            topic: "a/é",
            properties,
            exchange: "amq.topic",
            key: "a.é",
            received: WallTime(1_790_000_000_123),
        };
        Stored(builder.build(b"payload").expect("a message"))
    };
    let all_qos = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce];
    golden::assert_covers(&all_qos, qos_name);
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/envelope", |files| {
        for qos in all_qos {
            let stored = build(qos, false, &Properties::default());
            files.check(qos_name(&qos).0, &stored, encode, decode);
        }
        let properties = Properties {
            payload_format: Some(true),
            message_expiry: Some(60),
            content_type: Some("text/plain"),
            response_topic: Some("answers/é"),
            correlation_data: Some(&[0, 255]),
            repeated: RepeatedProperties(b"\x26\x00\x04name\x00\x05value\x26\x00\x04name\x00\x00"),
            ..Properties::default()
        };
        let stored = build(Qos::AtLeastOnce, true, &properties);
        files.check("every-property", &stored, encode, decode);
    });
}
