//! A message of the workload. All its content follows from its id.

use bytes::{Bytes, BytesMut};
use codec_amqp091::table;
use codec_amqp091::{Properties, Short};
use message::{Table, Value};
use std::time::Duration;

/// Stream in the upper half, number within the stream (from 1) in the lower. A stream consists of the publishes of one
/// channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MessageId(pub u64);

/// The header that a quorum queue adds to redelivered messages.
const DELIVERY_COUNT: &str = "x-delivery-count";
const ACQUIRED_COUNT: &str = "x-acquired-count";
/// The header with the delay that the publisher asked for.
const DELAY: &str = "x-delay";
/// The headers by which a queue recognises a copy.
const IDENTITY_HEADERS: [&str; 3] = [
    queue::PUBLISHER_ID,
    queue::PUBLISHING_ID,
    queue::DEDUPLICATION_VALUE,
];
/// The headers with the group of a message.
const GROUP_HEADERS: [&str; 2] = [queue::MESSAGE_GROUP, queue::JMS_GROUP];
/// Number of groups. Few, so that a group often has several messages.
const GROUPS: u64 = 4;
/// Headers of a dead-lettered message.
const DEATH_HEADERS: [&str; 7] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

/// The contents of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadMessage {
    pub id: MessageId,
    /// Number of failed deliveries, according to the queue.
    pub attempts: u32,
    /// Number of all earlier deliveries. 0: none, or the queue does not count them.
    pub acquired: u32,
    /// It has passed a dead letter exchange.
    pub died: bool,
}

impl MessageId {
    pub(super) fn new(stream: u32, number: u32) -> MessageId {
        MessageId(u64::from(stream) << 32 | u64::from(number))
    }

    pub(super) fn stream(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn number(self) -> u32 {
        self.0 as u32
    }

    /// Mixes the bits of the id evenly.
    fn mix(self, salt: u64) -> u64 {
        let mut x = self
            .0
            .wrapping_add(salt)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 32;
        x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        x ^ (x >> 29)
    }

    pub(super) fn is_persistent(self) -> bool {
        !self.mix(1).is_multiple_of(8)
    }

    /// Mostly small, some empty, few large.
    fn body_len(self) -> usize {
        let random = self.mix(2);
        let spread = (random >> 16) as usize;
        match random % 64 {
            0..8 => 0,
            8..60 => spread % 200,
            60..63 => spread % 5_000,
            _ => spread % (70 << 10),
        }
    }

    /// Half of the messages have no priority.
    fn priority(self) -> Option<u8> {
        match self.mix(5) % 16 {
            0..8 => None,
            8..10 => Some(0),
            10 => Some(3),
            11 => Some(4),
            12..14 => Some(7),
            14 => Some(31),
            _ => Some(200),
        }
    }

    /// The priority level in a quorum queue.
    pub(super) fn level(self) -> u8 {
        self.priority().map_or(4, |priority| priority.min(31))
    }

    pub(super) fn body(self) -> Bytes {
        let len = self.body_len();
        let mut body = BytesMut::with_capacity(len + 8);
        let mut word = self.mix(3);
        while body.len() < len {
            body.extend_from_slice(&word.to_le_bytes());
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        body.truncate(len);
        body.freeze()
    }

    /// The TTL of its own of a message to a queue with this TTL. Two of three messages have none.
    pub(super) fn own_ttl(self, ttl: Duration) -> Option<Duration> {
        let random = self.mix(7);
        let part = (random >> 32) % 100;
        let own = Duration::from_millis(ttl.as_millis() as u64 * part / 100);
        Some(own).filter(|_| random.is_multiple_of(3))
    }

    /// The properties of a message to a queue with this TTL.
    pub(super) fn expiring_properties(self, ttl: Duration) -> Bytes {
        let own = self.own_ttl(ttl).map(|own| own.as_millis().to_string());
        self.properties(own.as_deref())
    }

    pub(super) fn properties(self, expiration: Option<&str>) -> Bytes {
        self.encode_properties(expiration, None)
    }

    /// The properties of a message with a delay.
    pub(super) fn delayed_properties(self, delay: Duration) -> Bytes {
        let delay = Value::I64(delay.as_millis() as i64);
        self.with_headers(vec![(DELAY.into(), delay)])
    }

    /// The properties of a message that its queue recognises when it is published again.
    pub(super) fn identified_properties(self) -> Bytes {
        self.with_headers(match self.is_numbered() {
            true => {
                let publisher = format!("stream-{}", self.stream());
                vec![
                    (queue::PUBLISHER_ID.into(), Value::from(&*publisher)),
                    (queue::PUBLISHING_ID.into(), Value::U32(self.number())),
                ]
            }
            false => {
                let value = format!("{:016x}", self.0);
                vec![(queue::DEDUPLICATION_VALUE.into(), Value::from(&*value))]
            }
        })
    }

    /// The group in a queue with groups. One in five messages has none.
    pub(super) fn group(self) -> Option<u64> {
        Some(self.mix(6) % (GROUPS + 1)).filter(|group| *group < GROUPS)
    }

    /// The properties of a message with its group, under either name of the header.
    pub(super) fn grouped_properties(self) -> Bytes {
        let [own, jms] = GROUP_HEADERS;
        let header = if self.number().is_multiple_of(2) {
            own
        } else {
            jms
        };
        let group = self.group().map(|group| format!("group-{group}"));
        let header = group.map(|group| (header.into(), Value::from(&*group)));
        self.with_headers(header.into_iter().collect())
    }

    /// Whether the queue recognises copies by the numbers of the stream, not by a value of each message.
    pub(super) fn is_numbered(self) -> bool {
        self.stream().is_multiple_of(2)
    }

    fn with_headers(self, headers: Vec<(metadata::Name, Value)>) -> Bytes {
        let mut encoded = BytesMut::new();
        table::encode(&Table(headers), &mut encoded);
        // Without the length.
        self.encode_properties(None, encoded.get(4..))
    }

    fn encode_properties(self, expiration: Option<&str>, headers: Option<&[u8]>) -> Bytes {
        let mut out = BytesMut::new();
        let id = format!("{:016x}", self.0);
        let properties = Properties {
            content_type: Some("application/octet-stream"),
            delivery_mode: Some(if self.is_persistent() { 2 } else { 1 }),
            message_id: Some(&id),
            timestamp: Some(self.mix(4)),
            priority: self.priority(),
            expiration,
            headers,
            ..Properties::default()
        };
        properties.encode(&mut out);
        out.freeze()
    }
}

/// Identifies a message. Returns an error if any of it differs from its publish.
pub(super) fn read(properties: &[u8], body: &[u8]) -> Result<ReadMessage, String> {
    let (mut attempts, mut acquired, mut died) = (0, 0, false);
    let number = |raw| {
        let table = table::decode(raw).ok();
        let number = table.and_then(|t| t.0.first().and_then(|(_, v)| v.as_integer()));
        u32::try_from(number.unwrap_or(0)).unwrap_or(u32::MAX)
    };
    let mut unknown_header = None;
    let read = Properties::scan(properties, |entry| {
        if entry.key == DELIVERY_COUNT {
            attempts = number(entry.raw);
        } else if entry.key == ACQUIRED_COUNT {
            acquired = number(entry.raw);
        } else if DEATH_HEADERS.contains(&entry.key) {
            died = true;
        } else if entry.key != DELAY
            && !IDENTITY_HEADERS.contains(&entry.key)
            && !GROUP_HEADERS.contains(&entry.key)
        {
            unknown_header = Some(entry.key.to_owned());
        }
    });
    let read = read.map_err(|e| format!("properties cannot be read: {e}"))?;
    let id = read
        .message_id
        .and_then(Short::text)
        .and_then(|id| u64::from_str_radix(id, 16).ok());
    let id = MessageId(id.ok_or("a message without an id")?);
    if let Some(header) = unknown_header {
        return Err(format!("message {id:?} has the unknown header {header}"));
    }
    let expected = id.properties(read.expiration.and_then(Short::text));
    let without_headers = Properties {
        headers: None,
        ..read
    };
    let mut encoded = BytesMut::new();
    without_headers.encode(&mut encoded);
    if encoded != expected {
        return Err(format!(
            "the properties of {id:?} are not what was published"
        ));
    }
    if id.body() != body {
        return Err(format!(
            "the body of {id:?} is not what was published: {} bytes, {} expected",
            body.len(),
            id.body_len()
        ));
    }
    Ok(ReadMessage {
        id,
        attempts,
        acquired,
        died,
    })
}

impl ReadMessage {
    /// Earlier deliveries, as far as the queue counts them. It grows with each return of the message.
    pub(super) fn returns(&self) -> u32 {
        self.acquired.max(self.attempts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_identified_and_a_changed_one_is_refused() {
        for number in 1..200 {
            let id = MessageId::new(7, number);
            let (properties, body) = (id.properties(None), id.body());
            let unchanged = ReadMessage {
                id,
                attempts: 0,
                acquired: 0,
                died: false,
            };
            assert_eq!(read(&properties, &body), Ok(unchanged));
            let mut on_change_answered = body.to_vec();
            on_change_answered.push(0);
            assert!(read(&properties, &on_change_answered).is_err());
            assert!(
                read(&MessageId::new(8, number).properties(None), &body).is_err()
                    || body.is_empty()
            );
        }
    }
}
