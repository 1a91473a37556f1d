//! The view of exchanges on a stored message.

use crate::amqp091::companions;
use crate::{Id, Scope, View};
use message::{Deaths, Message, Protocol, Table};
use routing::{HashedProperty, RoutingInput};

/// What headers exchanges and consistent hash exchanges see of a stored message of any protocol: a
/// dead letter, or a message from the HTTP API or an MQTT client.
///
/// It has no publishing connection and therefore no origin: exchanges that prefer local
/// queues treat every node as local.
#[derive(Clone, Copy, Debug)]
pub struct MessageEnvelope<'a> {
    /// The message to route.
    pub message: &'a Message,
    /// Its dead-letter history, part of which headers exchanges match.
    pub deaths: Option<&'a Deaths>,
}

impl MessageEnvelope<'_> {
    /// The property `group-id` of a message of AMQP 1.0. Other protocols have no such property.
    pub fn group_id(&self) -> Option<String> {
        if self.message.protocol() != Protocol::Amqp10 {
            return None;
        }
        let view = View::of(self.message).ok()?;
        view.group_id.map(str::to_owned)
    }
}

impl RoutingInput for MessageEnvelope<'_> {
    /// Headers of AMQP 0.9.1, application properties and message annotations of AMQP 1.0, or user
    /// properties of MQTT. Of several headers with the same name exchanges use the last one.
    fn headers(&self) -> Table {
        let mut table = routing_headers(self.message);
        for (name, value) in self.deaths.map(companions).unwrap_or_default() {
            table.set(name, value);
        }
        table
    }

    fn property(&self, property: HashedProperty) -> Option<String> {
        let view = View::of(self.message).ok()?;
        let text = |id: Id<'_>| String::from_utf8_lossy(&id.to_bytes()).into_owned();
        match property {
            HashedProperty::CorrelationId => view.correlation_id.map(text),
            HashedProperty::MessageId => view.message_id.map(text),
            HashedProperty::Timestamp => view.created_ms.map(|ms| (ms / 1000).to_string()),
        }
    }
}

/// The headers of a message that exchanges can match, before those of its dead-letter history.
fn routing_headers(message: &Message) -> Table {
    let mut table = Table::default();
    let mut annotations = Vec::new();
    if let Ok(view) = View::of(message) {
        view.headers.for_each(|header| {
            // In RabbitMQ an annotation takes precedence over an application property of its name.
            let list = match header.scope {
                Scope::Annotation => &mut annotations,
                Scope::Application => &mut table.0,
            };
            list.push((header.name.into(), header.value));
        });
    }
    table.0.append(&mut annotations);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use codec_amqp091::Properties;
    use env::WallTime;
    use message::{MessageBuilder, Protocol};

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
                deaths: None,
            };
            [
                HashedProperty::CorrelationId,
                HashedProperty::MessageId,
                HashedProperty::Timestamp,
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
