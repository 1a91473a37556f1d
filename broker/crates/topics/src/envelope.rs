//! What a message that came by MQTT has in front of its body, as its properties in the container:
//!
//! ```text
//! flags u8: QoS in the lowest two bits, then RETAIN | topic: u16 len, bytes | properties that go on as they came
//! ```
//! Times are the container's own (`received`, `ttl_ms`), and so is `durable`: QoS 1 and 2.

use bytes::BytesMut;
use codec_mqtt::{Place, Properties, Qos};
use env::WallTime;
use message::{DecodeError, Message, MessageBuilder, Protocol, Room};
use smallvec::SmallVec;

const QOS: u8 = 0b011;
const RETAIN: u8 = 0b100;
/// Bytes of a routing key at most, as in every exchange.
const MAX_KEY: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvelopeError;

/// Borrowed from a message's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub qos: Qos,
    /// As it was published.
    pub retain: bool,
    pub topic: &'a str,
    /// Encoded properties of a PUBLISH of 5.0 ([`Properties::put_kept`]).
    pub kept: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// `properties` are those of a message of [`Protocol::Mqtt`].
    #[inline]
    pub fn read(properties: &'a [u8]) -> Result<Envelope<'a>, EnvelopeError> {
        let [flags, high, low, rest @ ..] = properties else {
            return Err(EnvelopeError);
        };
        let len = u16::from_be_bytes([*high, *low]).into();
        let (topic, kept) = rest.split_at_checked(len).ok_or(EnvelopeError)?;
        Ok(Envelope {
            qos: Qos::from_bits(flags & QOS).ok_or(EnvelopeError)?,
            retain: flags & RETAIN != 0,
            topic: std::str::from_utf8(topic).map_err(|_| EnvelopeError)?,
            kept,
        })
    }

    /// The kept properties, decoded.
    pub fn properties(&self) -> Result<Properties<'a>, EnvelopeError> {
        Properties::decode(self.kept, Place::Publish).map_err(|_| EnvelopeError)
    }
}

/// A message on its way into the container.
#[derive(Clone, Copy, Debug)]
pub struct EnvelopeBuilder<'a> {
    pub qos: Qos,
    pub retain: bool,
    pub topic: &'a str,
    pub properties: &'a Properties<'a>,
    /// The exchange that AMQP clients see it come from, and the topic as its routing key.
    pub exchange: &'a str,
    pub key: &'a str,
    pub received: WallTime,
}

impl EnvelopeBuilder<'_> {
    /// One copy of the payload. A routing key that is too long for AMQP is left out. None: the topic is longer than
    /// MQTT allows, or the exchange's name than AMQP does.
    pub fn build(&self, payload: &[u8]) -> Option<Message> {
        self.laid_out(|builder| builder.build(payload.len(), [payload]))
    }

    /// The same for a message that is gone in a moment.
    pub fn build_in(&self, room: &mut Room, payload: &[u8]) -> Option<Message> {
        self.laid_out(|builder| builder.build_in(room, payload))
    }

    fn laid_out(
        &self,
        build: impl FnOnce(&MessageBuilder<'_>) -> Result<Message, DecodeError>,
    ) -> Option<Message> {
        // Mostly empty.
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
        fn what_is_built_is_read_back(topic in "[a-zé/]{1,300}", bits in 0u8..3, retain: bool, expiry: Option<u32>, text in "[a-z]{0,9}", payload: Vec<u8>) {
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
            prop_assert_eq!((read.qos, read.retain, read.topic), (qos, retain, &topic[..]));
            prop_assert_eq!(read.properties().unwrap().content_type, Some(&text[..]));
            prop_assert_eq!(read.properties().unwrap().message_expiry, None);
        }

        #[test]
        fn no_bytes_make_it_panic(raw: Vec<u8>) {
            let _ = Envelope::read(&raw).map(|e| e.properties().is_ok());
        }
    }
}
