//! A message that is there already, as exchanges see it: dead letters, and what comes by the HTTP API.

use crate::deaths::routing_headers;
use codec_amqp091::{Properties, Short};
use message::{Deaths, Message, Protocol, Table};
use routing::{Envelope, Property};

/// No client publishes it at the moment, so that every node is near to it.
#[derive(Clone, Copy, Debug)]
pub struct MessageEnvelope<'a> {
    pub message: &'a Message,
    /// What headers exchanges see of them is a part of the message's headers.
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
        text_of(&properties, property)
    }
}

/// A property as exchanges compare it.
pub(crate) fn text_of(
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

    /// `hash-property` of a consistent hash exchange counts for dead letters and for what comes by HTTP, too.
    #[test]
    fn exchanges_see_its_properties() {
        let properties = Properties {
            correlation_id: Some("c"),
            message_id: Some("m"),
            timestamp: Some(7),
            ..Properties::default()
        };
        let mut raw = BytesMut::new();
        properties.encode(&mut raw);
        let of = |protocol| {
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
            of(Protocol::Amqp091),
            ["c", "m", "7"].map(|p| Some(p.to_owned()))
        );
        assert_eq!(of(Protocol::Mqtt), [None, None, None]);
    }
}
