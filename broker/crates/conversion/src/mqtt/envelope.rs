//! The properties that an MQTT message has in the message container:
//!
//! ```text
//! flags u8: QoS in the lowest two bits, then RETAIN | topic: u16 len, bytes | encoded properties that are forwarded unchanged
//! ```
//! Times are fields of the container (`received`, `ttl_ms`), and so is `durable`, which is true for
//! QoS 1 and 2.

use bytes::BytesMut;
use codec_mqtt::{Properties, PropertyLocation, Qos};
use env::WallTime;
use message::{DecodeError, Message, MessageBuilder, Protocol, Room};
use smallvec::SmallVec;

const QOS: u8 = 0b011;
const RETAIN: u8 = 0b100;
/// Maximum length of an AMQP routing key in bytes.
const MAX_KEY: usize = 255;

/// The properties of a message are not a valid [`Envelope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvelopeError;

/// The decoded properties of an MQTT message, borrowed from its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The QoS of the PUBLISH packet.
    pub qos: Qos,
    /// The RETAIN flag of the PUBLISH packet.
    pub retain: bool,
    /// The topic name, which was UTF-8 when the message arrived: see [`Envelope::topic`].
    pub raw_topic: &'a [u8],
    /// Encoded properties of an MQTT 5.0 PUBLISH ([`Properties::put_kept`]).
    pub kept: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Reads the `properties` of a message of [`Protocol::Mqtt`].
    #[inline]
    pub fn read(properties: &'a [u8]) -> Result<Envelope<'a>, EnvelopeError> {
        let [flags, high, low, rest @ ..] = properties else {
            return Err(EnvelopeError);
        };
        let len = u16::from_be_bytes([*high, *low]).into();
        let (raw_topic, kept) = rest.split_at_checked(len).ok_or(EnvelopeError)?;
        Ok(Envelope {
            qos: Qos::from_bits(flags & QOS).ok_or(EnvelopeError)?,
            retain: flags & RETAIN != 0,
            raw_topic,
            kept,
        })
    }

    /// Returns the topic name. Fails if it is not UTF-8.
    pub fn topic(&self) -> Result<&'a str, EnvelopeError> {
        std::str::from_utf8(self.raw_topic).map_err(|_| EnvelopeError)
    }

    /// Decodes the forwarded properties.
    pub fn properties(&self) -> Result<Properties<'a>, EnvelopeError> {
        Properties::decode(self.kept, PropertyLocation::Publish).map_err(|_| EnvelopeError)
    }
}

/// Builds the container of an MQTT message.
#[derive(Clone, Copy, Debug)]
pub struct EnvelopeBuilder<'a> {
    /// The QoS of the PUBLISH packet.
    pub qos: Qos,
    /// The RETAIN flag of the PUBLISH packet.
    pub retain: bool,
    /// The topic name.
    pub topic: &'a str,
    /// The properties of the PUBLISH packet.
    pub properties: &'a Properties<'a>,
    /// The exchange and routing key that AMQP consumers see.
    pub exchange: &'a str,
    /// The routing key.
    pub key: &'a str,
    /// When the broker received the message.
    pub received: WallTime,
}

impl EnvelopeBuilder<'_> {
    /// Copies the payload once. Leaves out a routing key that is too long for AMQP. Returns `None`
    /// if the topic is longer than MQTT allows or the exchange name is longer than AMQP allows.
    pub fn build(&self, payload: &[u8]) -> Option<Message> {
        self.laid_out(|builder| builder.build(payload.len(), [payload]))
    }

    /// Like [`EnvelopeBuilder::build`], for a message that does not outlive the turn.
    pub fn build_in(&self, room: &mut Room, payload: &[u8]) -> Option<Message> {
        self.laid_out(|builder| builder.build_in(room, payload))
    }

    fn laid_out(
        &self,
        build: impl FnOnce(&MessageBuilder<'_>) -> Result<Message, DecodeError>,
    ) -> Option<Message> {
        // Usually stays empty, so do not reserve.
        let mut kept = BytesMut::new();
        self.properties.put_kept(&mut kept);
        let mut properties: SmallVec<[u8; 256]> = SmallVec::new();
        let retain = if self.retain { RETAIN } else { 0 };
        properties.push(self.qos as u8 | retain);
        let len = u16::try_from(self.topic.len()).ok()?;
        properties.extend_from_slice(&len.to_be_bytes());
        properties.extend_from_slice(self.topic.as_bytes());
        properties.extend_from_slice(&kept);
        let keys: &[&str] = match self.key.len() {
            0..=MAX_KEY => &[self.key],
            _ => &[],
        };
        let builder = MessageBuilder {
            protocol: Protocol::Mqtt,
            durable: self.qos != Qos::AtMostOnce,
            priority: None,
            ttl_ms: self
                .properties
                .message_expiry
                .map(|seconds| u64::from(seconds) * 1000),
            received: self.received,
            exchange: self.exchange,
            routing_keys: keys,
            properties: &properties,
        };
        build(&builder).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn envelope_roundtrips(topic in "[a-zé/]{1,300}", bits in 0u8..3, retain: bool, expiry: Option<u32>, text in "[a-z]{0,9}", payload: Vec<u8>) {
            let qos = Qos::from_bits(bits).unwrap();
            let properties = Properties { message_expiry: expiry, content_type: Some(&text), ..Properties::default() };
            let message = EnvelopeBuilder {
                qos, retain, topic: &topic, properties: &properties, exchange: "amq.topic", key: &topic, received: WallTime(5),
            }.build(&payload).unwrap();
            prop_assert_eq!(message.routing_keys().count(), usize::from(topic.len() <= 255));
            prop_assert_eq!((message.durable(), message.ttl_ms()), (bits > 0, expiry.map(|s| u64::from(s) * 1000)));
            prop_assert_eq!(message.body(), &payload[..]);
            let raw = message.properties();
            let read = Envelope::read(raw).unwrap();
            prop_assert_eq!((read.qos, read.retain, read.topic()), (qos, retain, Ok(&topic[..])));
            prop_assert_eq!(read.properties().unwrap().content_type, Some(&text[..]));
            prop_assert_eq!(read.properties().unwrap().message_expiry, None);
        }

        #[test]
        fn read_never_panics(raw: Vec<u8>) {
            let _ = Envelope::read(&raw).map(|e| e.properties().is_ok() && e.topic().is_ok());
        }
    }
}
