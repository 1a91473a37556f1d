//! Messages between clients and the broker's message container; see [`conversion::amqp10`] for the stored form.

use bytes::{Bytes, BytesMut};
use codec_amqp10::{DecodeError, Encode, Header, Properties, Reader, Section, Value};
use conversion::MessageEnvelope;
use conversion::amqp10::{Received, convert, encode_annotations};
use message::{Message, Table};
use queue::{Annotations, Delivery};
use routing::{HashedProperty, PublishOrigin, RoutingInput};
use session::BY_REFERENCE;
use smallvec::SmallVec;

/// The annotation with additional routing keys.
const CC: &str = "x-cc";

/// A message as a client sent it.
#[derive(Debug)]
pub(crate) struct ReceivedMessage<'a> {
    bytes: &'a [u8],
    received: Received<'a>,
    pub durable: bool,
    pub priority: Option<u8>,
    pub ttl_ms: Option<u64>,
}

impl<'a> ReceivedMessage<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<ReceivedMessage<'a>, DecodeError> {
        let received = Received::parse(bytes)?;
        let header = received.sections.read_header(bytes)?;
        let priority = has_priority(received.sections.header, bytes).then_some(header.priority);
        Ok(ReceivedMessage {
            bytes,
            received,
            durable: header.durable,
            priority,
            ttl_ms: header.ttl.map(u64::from),
        })
    }

    /// The sections that the container keeps as properties.
    pub(crate) fn properties_part(&self) -> &'a [u8] {
        self.received.properties
    }

    /// The sections that the container keeps as body.
    pub(crate) fn body_part(&self) -> &'a [u8] {
        self.received.body
    }

    pub(crate) fn properties(&self) -> Result<Properties<'a>, DecodeError> {
        self.received.sections.read_properties(self.bytes)
    }

    /// The additional routing keys, from the annotation `x-cc`. The error is a value that is not a list of strings.
    pub(crate) fn copy_keys(&self) -> Result<SmallVec<[&'a str; 4]>, Value<'a>> {
        let sections = &self.received.sections;
        let annotations = sections.read_map(sections.message_annotations, self.bytes);
        let text = |value: Value<'a>| match value {
            Value::String(text) if text.len() <= 255 => Ok(text),
            other => Err(other),
        };
        match annotations.unwrap_or_default().get(CC) {
            None => Ok(SmallVec::new()),
            Some(Value::List(keys)) => keys.iter().map(text).collect(),
            Some(other) => Err(other),
        }
    }
}

/// Returns true if the header sets the priority. The codec returns the default otherwise, but a message without a
/// priority is not one with priority 4: a priority queue serves it last.
fn has_priority(header: Option<Section>, bytes: &[u8]) -> bool {
    let value = header.and_then(|section| bytes.get(section.value_range()));
    match value.map(|value| Reader::new(value).read::<Value<'_>>()) {
        Some(Ok(Value::List(fields))) => fields.iter().nth(1).is_some_and(|f| !f.is_null()),
        _ => false,
    }
}

/// The view of exchanges on a message that is published.
pub(crate) struct PublishView<'m> {
    pub message: &'m Message,
    pub origin: PublishOrigin,
}

impl PublishView<'_> {
    fn envelope(&self) -> MessageEnvelope<'_> {
        MessageEnvelope {
            message: self.message,
            deaths: None,
        }
    }
}

impl RoutingInput for PublishView<'_> {
    fn headers(&self) -> Table {
        self.envelope().headers()
    }

    fn property(&self, property: HashedProperty) -> Option<String> {
        self.envelope().property(property)
    }

    fn origin(&self) -> Option<PublishOrigin> {
        Some(self.origin)
    }
}

/// The parts of a message for [`amqp10::OutgoingDelivery`].
pub(crate) type Parts = SmallVec<[Bytes; 2]>;

/// Encodes a delivery for a client: header and message annotations of this delivery, then the bare message. `scratch`
/// is reused for small messages.
pub(crate) fn encode_delivery(delivery: &Delivery, scratch: &mut BytesMut) -> Parts {
    let message = &delivery.message;
    let attempts = delivery.attempts.unwrap_or(0);
    let header = Header {
        first_acquirer: !delivery.redelivered && attempts == 0,
        delivery_count: attempts,
        ..conversion::amqp10::header(message)
    };
    header.encode(scratch);
    let encoded = convert(message);
    let modified = modified_annotations(delivery);
    encode_annotations(message, &encoded.annotations, &modified, scratch);
    scratch.extend_from_slice(&encoded.properties);
    scratch.extend_from_slice(&encoded.body_start);
    let body = encoded.body.bytes();
    let mut parts = Parts::new();
    if body.len() < BY_REFERENCE {
        scratch.extend_from_slice(body);
        parts.push(scratch.split().freeze());
    } else {
        let whole = 0..body.len();
        parts.push(scratch.split().freeze());
        parts.push(encoded.body.share(message, whole));
    }
    parts
}

/// The annotations of receivers that modified the message: before it was dead-lettered, and in this queue.
fn modified_annotations(delivery: &Delivery) -> Table {
    let mut table = Table::default();
    let earlier = Annotations::of(&delivery.message);
    for annotations in earlier.iter().chain(delivery.annotations.as_deref()) {
        for (key, value) in &annotations.table().0 {
            table.set(key, value.clone());
        }
    }
    table
}
