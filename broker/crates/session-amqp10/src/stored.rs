//! Messages between clients and the broker's message container; see [`conversion::amqp10`] for the stored form.

use amqp10::BorrowedPart;
use codec_amqp10::{DecodeError, Header, Map, Properties, Value};
use conversion::MessageEnvelope;
use conversion::amqp10::{Received, convert, encode_annotations};
use env::WallTime;
use message::{Message, Table};
use queue::{Annotations, DELIVERY_DELAY, Delivery};
use routing::{HashedProperty, PublishOrigin, RoutingInput};
use session::BY_REFERENCE;
use session::interceptors::SENT_TIME;
use smallvec::SmallVec;

/// The annotation with additional routing keys.
const CC: &str = "x-cc";
/// The annotation with the time before which a message is not delivered, in milliseconds. JMS clients set it.
const DELIVERY_TIME: &str = "x-opt-delivery-time";

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
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<ReceivedMessage<'a>, DecodeError> {
        let received = Received::parse(bytes)?;
        received.sections.check_annotation_keys(bytes)?;
        let header = received.sections.read_header(bytes)?;
        // The codec returns the default for an absent priority, but a message without a priority is not one with
        // priority 4: a priority queue serves it last.
        let priority = received.sections.has_priority(bytes);
        let priority = priority.then_some(header.priority);
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

    /// The properties section. None: the message has none.
    #[inline]
    pub(crate) fn properties(&self) -> Result<Option<Properties<'a>>, DecodeError> {
        let sections = &self.received.sections;
        match sections.properties {
            Some(_) => sections.read_properties(self.bytes).map(Some),
            None => Ok(None),
        }
    }

    #[inline]
    fn annotations(&self) -> Option<Map<'a>> {
        let sections = &self.received.sections;
        let section = sections.message_annotations?;
        let annotations = sections.read_map(Some(section), self.bytes);
        annotations
            .ok()
            .filter(|annotations| !annotations.is_empty())
    }

    /// The additional routing keys, from the annotation `x-cc`. The error is a value that is not a list of strings.
    pub(crate) fn copy_keys(&self) -> Result<SmallVec<[&'a str; 4]>, Value<'a>> {
        let Some(annotations) = self.annotations() else {
            return Ok(SmallVec::new());
        };
        let text = |value: Value<'a>| match value {
            Value::String(text) if text.len() <= 255 => Ok(text),
            other => Err(other),
        };
        match annotations.get(CC) {
            None => Ok(SmallVec::new()),
            Some(Value::List(keys)) => keys.iter().map(text).collect(),
            Some(other) => Err(other),
        }
    }

    /// The delay in milliseconds that the annotations set: until `x-opt-delivery-time`, or `x-opt-delivery-delay`. `None`:
    /// there is none.
    pub(crate) fn delivery_delay(&self, now: WallTime) -> Option<u64> {
        let annotations = self.annotations()?;
        let ms = |name| match annotations.get(name)? {
            Value::Timestamp(at) => u64::try_from(at.0).ok(),
            Value::Ulong(ms) => Some(ms),
            Value::Uint(ms) => Some(ms.into()),
            Value::Long(ms) => u64::try_from(ms).ok(),
            Value::Int(ms) => u64::try_from(ms).ok(),
            _ => None,
        };
        let until = ms(DELIVERY_TIME).map(|at| at.saturating_sub(now.0));
        let delay = until.or_else(|| ms(DELIVERY_DELAY))?;
        (delay > 0).then_some(delay)
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

/// Capacity in bytes of the scratch buffer that is kept.
const KEEP: usize = 1024;

/// Encodes a delivery for a client: header and message annotations of this delivery, then the bare message. `send` gets
/// the parts for [`amqp10::OutgoingDelivery`]. `scratch` is reused.
pub(crate) fn with_encoded_delivery<T>(
    delivery: &Delivery,
    sent: Option<WallTime>,
    scratch: &mut Vec<u8>,
    send: impl FnOnce(&[BorrowedPart<'_>]) -> T,
) -> T {
    scratch.clear();
    let message = &delivery.message;
    let attempts = failed_attempts(delivery);
    let header = Header {
        // As in RabbitMQ, a dead letter had an acquirer before.
        first_acquirer: !delivery.redelivered && attempts == 0 && !message.has_died(),
        delivery_count: attempts,
        ..conversion::amqp10::header(message)
    };
    header.encode_section(scratch);
    let encoded = convert(message);
    let mut modified = modified_annotations(delivery);
    if let Some(sent) = sent {
        let ms = i64::try_from(sent.0).unwrap_or(i64::MAX);
        modified.set(SENT_TIME, message::Value::I64(ms));
    }
    encode_annotations(message, &encoded.annotations, &modified, scratch);
    scratch.extend_from_slice(&encoded.properties);
    scratch.extend_from_slice(&encoded.body_start);
    let body = encoded.body.bytes();
    let sent = if body.len() < BY_REFERENCE {
        send(&[BorrowedPart::Slice(scratch), BorrowedPart::Slice(body)])
    } else {
        let body = encoded.body.share(message, 0..body.len());
        send(&[BorrowedPart::Slice(scratch), BorrowedPart::Shared(&body)])
    };
    if scratch.capacity() > KEEP {
        *scratch = Vec::new();
    }
    sent
}

/// The number of failed delivery attempts. A queue that does not count them knows whether the message was delivered
/// before, which JMS clients need to recognize a redelivery. A dead letter keeps the count of the queues that rejected it
/// until it has a count of its own.
fn failed_attempts(delivery: &Delivery) -> u32 {
    let own = delivery
        .attempts
        .unwrap_or_else(|| delivery.redelivered.into());
    if own > 0 || !delivery.message.has_died() {
        return own;
    }
    let inherited = delivery.message.deaths().map(|d| d.failed_attempts());
    u32::try_from(inherited.unwrap_or(0)).unwrap_or(u32::MAX)
}

/// The number of failed deliveries before this one, as in RabbitMQ. The header has it too.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// The number of deliveries before this one, failed or not, as in RabbitMQ.
const ACQUIRED_COUNT: &str = "x-acquired-count";

/// The annotations of receivers that modified the message: before it was dead-lettered, and in this queue. The number of
/// deliveries is another one.
fn modified_annotations(delivery: &Delivery) -> Table {
    let mut table = Table::default();
    let earlier = Annotations::of(&delivery.message);
    for annotations in earlier.iter().chain(delivery.annotations.as_deref()) {
        for (key, value) in &annotations.table().0 {
            // A delay is over, and must not begin again where the receiver forwards the message to.
            if !queue::is_internal_annotation(key) {
                table.set(key, value.clone());
            }
        }
    }
    if let Some(attempts @ 1..) = delivery.attempts {
        table.set(DELIVERY_COUNT, message::Value::I64(attempts.into()));
    }
    if delivery.acquired > 0 {
        table.set(
            ACQUIRED_COUNT,
            message::Value::I64(delivery.acquired.into()),
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_amqp10::Sections;
    use message::{DeadReason, Deaths, Dying, MessageBuilder, Protocol};

    fn message() -> Message {
        let builder = MessageBuilder {
            protocol: Protocol::Amqp10,
            durable: true,
            priority: None,
            ttl_ms: None,
            received: WallTime(1),
            exchange: "",
            routing_keys: &["q"],
            properties: b"",
        };
        // An amqp-value section with null.
        let body: &[u8] = b"\x00\x53\x77\x40";
        builder.build(body.len(), [body]).unwrap()
    }

    fn dead_letter(failed: bool) -> Message {
        let mut deaths = Deaths::default();
        deaths.record(&Dying {
            queue: "q",
            reason: DeadReason::Rejected,
            exchange: "",
            routing_keys: vec!["q"],
            ttl_ms: None,
            failed,
            at: WallTime(1),
        });
        message().dead_lettered("", Some("dead"), &deaths).unwrap()
    }

    fn encode_delivery(delivery: &Delivery) -> Vec<u8> {
        with_encoded_delivery(delivery, None, &mut Vec::new(), |parts| {
            parts.iter().flat_map(AsRef::as_ref).copied().collect()
        })
    }

    /// The first-acquirer and delivery-count that a client gets.
    fn header(message: Message, attempts: Option<u32>, redelivered: bool) -> (bool, u32) {
        let delivery = Delivery {
            id: 1,
            redelivered,
            attempts,
            acquired: 0,
            left: 0,
            message,
            annotations: None,
        };
        let encoded = encode_delivery(&delivery);
        let sections = Sections::parse(&encoded).unwrap();
        let header = sections.read_header(&encoded).unwrap();
        (header.first_acquirer, header.delivery_count)
    }

    #[test]
    fn header_counts_failed_attempts() {
        assert_eq!(header(message(), Some(0), false), (true, 0));
        assert_eq!(header(message(), Some(0), true), (false, 0));
        assert_eq!(header(message(), Some(3), true), (false, 3));
    }

    #[test]
    fn annotations_count_deliveries() {
        let delivery = |attempts, acquired| Delivery {
            id: 1,
            redelivered: acquired > 0,
            attempts: Some(attempts),
            acquired,
            left: 0,
            message: message(),
            annotations: None,
        };
        let long = |count: u32| (count > 0).then_some(Value::Long(count.into()));
        for (attempts, acquired) in [(0, 0), (0, 3), (2, 3)] {
            let delivery = delivery(attempts, acquired);
            let encoded = encode_delivery(&delivery);
            let sections = Sections::parse(&encoded).unwrap();
            let annotations = sections.read_map(sections.message_annotations, &encoded);
            let annotations = annotations.unwrap_or_default();
            assert_eq!(annotations.get(DELIVERY_COUNT), long(attempts));
            assert_eq!(annotations.get(ACQUIRED_COUNT), long(acquired));
        }
    }

    #[test]
    fn redelivery_of_a_queue_that_does_not_count_is_one_failed_attempt() {
        assert_eq!(header(message(), None, false), (true, 0));
        assert_eq!(header(message(), None, true), (false, 1));
    }

    #[test]
    fn dead_letter_had_an_acquirer_and_keeps_its_failed_attempts() {
        assert_eq!(header(dead_letter(true), Some(0), false), (false, 1));
        assert_eq!(header(dead_letter(true), None, false), (false, 1));
        assert_eq!(header(dead_letter(false), Some(0), false), (false, 0));
        assert_eq!(header(dead_letter(true), Some(2), true), (false, 2));
    }
}
