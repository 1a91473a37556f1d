//! The view of exchanges on a stored message: a dead letter, or a message published through the
//! HTTP API.

use crate::deaths::routing_headers;
use codec_amqp091::{Properties, Short};
use message::{Deaths, Message, Protocol, Table};
use routing::{Envelope, Property};

/// Such a message has no publishing connection and therefore no origin: exchanges that prefer local
/// queues treat every node as local.
#[derive(Clone, Copy, Debug)]
pub struct MessageEnvelope<'a> {
    /// The message to route.
    pub message: &'a Message,
    /// Its dead-letter history, part of which headers exchanges match.
    pub deaths: &'a Deaths,
}

impl Envelope for MessageEnvelope<'_> {
    fn headers(&self) -> Table {
        routing_headers(self.message, self.deaths)
    }

    fn property(&self, property: Property) -> Option<String> {
        if self.message.protocol() != Protocol::Amqp091 {
            return None;
        }
        let properties = Properties::received(self.message.properties()).ok()?;
        property_text(&properties, property)
    }
}

/// The text of a property, for exchanges that route by it.
pub(crate) fn property_text(
    properties: &Properties<'_, Short<'_>>,
    property: Property,
) -> Option<String> {
    match property {
        Property::CorrelationId => properties.correlation_id.map(|id| id.lossy().into_owned()),
        Property::MessageId => properties.message_id.map(|id| id.lossy().into_owned()),
        Property::Timestamp => properties.timestamp.map(|t| t.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use env::WallTime;
    use message::MessageBuilder;

    /// `hash-property` of a consistent hash exchange also applies to dead letters and to messages
    /// from the HTTP API.
    #[test]
    fn exchange_sees_message_properties() {
        let properties = Properties {
            correlation_id: Some("c"),
            message_id: Some("m"),
            timestamp: Some(7),
            ..Properties::default()
        };
        let mut raw = BytesMut::new();
        properties.encode(&mut raw);
        let properties_of = |protocol| {
            let builder = MessageBuilder {
                protocol,
                durable: false,
                priority: None,
                ttl_ms: None,
                received: WallTime(0),
                exchange: "x",
                routing_keys: &["k"],
                properties: &raw,
            };
            let message = builder.build(1, [&b"b"[..]]).unwrap();
            let envelope = MessageEnvelope {
                message: &message,
                deaths: &Deaths::default(),
            };
            [
                Property::CorrelationId,
                Property::MessageId,
                Property::Timestamp,
            ]
            .map(|property| envelope.property(property))
        };
        assert_eq!(
            properties_of(Protocol::Amqp091),
            ["c", "m", "7"].map(|p| Some(p.to_owned()))
        );
        assert_eq!(properties_of(Protocol::Mqtt), [None, None, None]);
    }
}
