//! Annotations that receivers add to messages with the outcome `modified` of AMQP 1.0 (part 3, section 3.4.5).

use crate::codec::{VERSION, check_version};
use crate::{deduplication, groups};
use bytes::{BufMut, Bytes, BytesMut};
use message::{DecodeError, MAX_TABLE_DEPTH, Message, Table, Value};
use wire::{Decoded, Reader, Wire};

/// Most bytes of the annotations of one message, as encoded in the log.
pub const MAX_ANNOTATION_BYTES: usize = 4096;
/// Most annotations of one message.
const MAX_ANNOTATIONS: usize = 64;
/// Most bytes of memory for the annotations of all messages of a queue. Above it messages are requeued without
/// new annotations.
pub const MAX_QUEUE_ANNOTATION_BYTES: u64 = 32 << 20;

/// The annotation with the time before which a message is not delivered again, which a receiver sets that returns it.
const DELIVERY_TIME: &str = "x-opt-delivery-time";

/// The annotation with the milliseconds before the first delivery of a message. Only queues read it.
pub const DELIVERY_DELAY: &str = "x-opt-delivery-delay";

/// Estimated memory of an entry, besides the bytes of its key and value.
const MEMORY_OF_ENTRY: usize = 96;

/// Annotations by key, each key once. Their encoding has at most [`MAX_ANNOTATION_BYTES`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Annotations {
    table: Table,
    /// Length of the encoding.
    bytes: usize,
}

/// Why a table cannot be used as annotations of a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationsError {
    /// More than a message can have.
    #[error("{0} annotations, of which a message can have {MAX_ANNOTATIONS}")]
    TooMany(usize),
    /// The encoding has more bytes than a message can have.
    #[error("annotations of {0} bytes, of which a message can have {MAX_ANNOTATION_BYTES}")]
    TooLarge(usize),
    /// Nested more deeply than our encoding allows.
    #[error("an annotation is nested more than {MAX_TABLE_DEPTH} levels deep")]
    TooDeep,
}

impl Annotations {
    /// Creates annotations from a table. Of several entries with the same key the last one applies.
    pub fn new(entries: Table) -> Result<Annotations, AnnotationsError> {
        if entries.0.len() > MAX_ANNOTATIONS {
            return Err(AnnotationsError::TooMany(entries.0.len()));
        }
        if !entries.is_shallow() {
            return Err(AnnotationsError::TooDeep);
        }
        if entries.is_empty() {
            return Ok(Annotations::default());
        }
        let mut table = Table::default();
        for (key, value) in entries.0 {
            table.set(&key, value);
        }
        let bytes = wire::encode(&table).len();
        debug_assert!(table.0.len() <= MAX_ANNOTATIONS, "keys are only merged");
        match bytes <= MAX_ANNOTATION_BYTES {
            true => Ok(Annotations { table, bytes }),
            false => Err(AnnotationsError::TooLarge(bytes)),
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The earliest time of the next delivery, in milliseconds of the wall clock ([`DELIVERY_TIME`]).
    pub(crate) fn delivery_time(&self) -> Option<u64> {
        match self.table.get(DELIVERY_TIME)? {
            Value::Timestamp(seconds) => Some(seconds.saturating_mul(1000)),
            other => u64::try_from(other.as_integer()?).ok(),
        }
    }

    /// The entries, each key once.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Length of the encoding.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Estimated memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        (self.bytes + MEMORY_OF_ENTRY * (1 + self.table.0.len())) as u64
    }

    /// Returns these annotations merged with `newer` ones, which replace those with the same key. None: the
    /// result is too large.
    pub fn merged(&self, newer: &Annotations) -> Option<Annotations> {
        let mut table = self.table.clone();
        for (key, value) in &newer.table.0 {
            table.set(key, value.clone());
        }
        Annotations::new(table).ok()
    }

    /// Returns the annotations that a message got in the queue which dead-lettered it. None: it has none.
    pub fn of(message: &Message) -> Option<Annotations> {
        let own = decode(message.annotations()?).ok()?;
        (!own.is_empty()).then_some(own)
    }

    /// Returns the message with these annotations, which replace its own with the same key. If all of them
    /// together are too large, its own are dropped. Copies the body.
    pub fn add_to(&self, message: &Message) -> Result<Message, DecodeError> {
        let own = Annotations::of(message).and_then(|own| own.merged(self));
        let all = own.as_ref().unwrap_or(self);
        message.with_annotations(&encode(all))
    }
}

/// Returns true for annotations that only queues read. Receivers do not get them.
pub fn is_internal_annotation(key: &str) -> bool {
    key == DELIVERY_DELAY
        || key == groups::GROUP_ANNOTATION
        || deduplication::ANNOTATIONS.contains(&key)
}

/// Returns the message with a delay in milliseconds before its first delivery. Queues that can hold messages back do so.
/// Copies the body.
///
/// The delay begins in the queue. A time of day would depend on the clocks of two nodes.
///
/// # Errors
///
/// If the message is too large with its annotations.
pub fn schedule(message: &Message, delay_ms: u64) -> Result<Message, DecodeError> {
    let mut table = Table::default();
    let delay = i64::try_from(delay_ms).unwrap_or(i64::MAX);
    table.set(DELIVERY_DELAY, Value::I64(delay));
    let annotations = Annotations::new(table).unwrap_or_default();
    debug_assert!(!annotations.is_empty(), "one small annotation");
    annotations.add_to(message)
}

/// Returns a message of a backup as it goes into a queue again: it waits for `delay_ms`, if any, and not for the delay that
/// it was published with. It has nothing to be recognised as a duplicate by, since the order of a listing is not the one in
/// which its publisher numbered it. Copies the body if that changes the message.
///
/// # Errors
///
/// If the message is too large with its annotations.
pub fn restored(message: &Message, delay_ms: Option<u64>) -> Result<Message, DecodeError> {
    let mut table = match Annotations::of(message) {
        Some(annotations) => annotations.table,
        None => Table::default(),
    };
    let before = table.0.len();
    let is_kept = |key: &str| key != DELIVERY_DELAY && !deduplication::ANNOTATIONS.contains(&key);
    table.0.retain(|(key, _)| is_kept(key));
    if table.0.len() == before && delay_ms.is_none() {
        return Ok(message.clone());
    }
    let Ok(kept) = Annotations::new(table) else {
        // The annotations of a message are valid, so a part of them is valid, too.
        return Ok(message.clone());
    };
    let message = match kept.is_empty() {
        true => message.with_annotations(&[])?,
        false => message.with_annotations(&encode(&kept))?,
    };
    match delay_ms {
        Some(delay_ms) => schedule(&message, delay_ms),
        None => Ok(message),
    }
}

/// Returns a message that was published with a delay with this delay in milliseconds instead, for its next queue. `None`: it
/// was published without a delay, or it is a dead letter.
///
/// # Errors
///
/// If the message is too large with its annotations.
pub fn reschedule(message: &Message, delay_ms: u64) -> Result<Option<Message>, DecodeError> {
    match delivery_delay(message) {
        Some(_) => schedule(message, delay_ms).map(Some),
        None => Ok(None),
    }
}

/// Returns the delay in milliseconds before the first delivery of the message. A dead letter has none, because it was in a
/// queue before.
#[inline]
pub(crate) fn delivery_delay(message: &Message) -> Option<u64> {
    // Few messages have annotations.
    message.annotations()?;
    if message.has_died() {
        return None;
    }
    let annotations = Annotations::of(message)?;
    let delay = annotations.table().get(DELIVERY_DELAY)?;
    u64::try_from(delay.as_integer()?).ok()
}

/// Encodes annotations for the container of a message: a version byte and the table.
pub(crate) fn encode(annotations: &Annotations) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    annotations.put(&mut out);
    out.freeze()
}

/// Decodes annotations from the container of a message.
pub(crate) fn decode(raw: &[u8]) -> Decoded<Annotations> {
    let mut from = Reader::new("message annotations", raw);
    check_version(&mut from, VERSION)?;
    let annotations = from.get()?;
    from.end()?;
    Ok(annotations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{message, number};

    fn annotations(entries: &[(&str, &str)]) -> Annotations {
        let entries = entries.iter().map(|(k, v)| ((*k).into(), Value::from(*v)));
        Annotations::new(Table(entries.collect())).unwrap()
    }

    #[test]
    fn newer_annotations_replace_those_with_the_same_key() {
        let older = annotations(&[("a", "1"), ("b", "2"), ("a", "3")]);
        let all = older.merged(&annotations(&[("b", "4"), ("c", "5")]));
        assert_eq!(
            all,
            Some(annotations(&[("a", "3"), ("b", "4"), ("c", "5")]))
        );
    }

    #[test]
    fn size_number_and_depth_are_limited() {
        let long = "x".repeat(MAX_ANNOTATION_BYTES);
        let entries = |count: usize, value: &str| {
            let all = (0..count).map(|n| (n.to_string().into(), Value::from(value)));
            Table(all.collect())
        };
        let error = Annotations::new(entries(1, &long)).unwrap_err();
        assert!(matches!(error, AnnotationsError::TooLarge(_)), "{error}");
        let error = Annotations::new(entries(65, "")).unwrap_err();
        assert_eq!(error, AnnotationsError::TooMany(65));
        let mut deep = Table::default();
        for _ in 0..20 {
            deep = Table(vec![("k".into(), Value::Table(deep))]);
        }
        assert_eq!(Annotations::new(deep), Err(AnnotationsError::TooDeep));
        let half = "x".repeat(MAX_ANNOTATION_BYTES / 2);
        let first = annotations(&[("a", &half)]);
        assert_eq!(first.merged(&annotations(&[("b", &half)])), None);
        assert!(first.merged(&annotations(&[("a", &half)])).is_some());
    }

    #[test]
    fn restored_message_has_no_delay_of_its_publisher_and_no_identity() {
        let builder = message::MessageBuilder {
            protocol: message::Protocol::Amqp091,
            durable: true,
            priority: None,
            ttl_ms: None,
            received: env::WallTime(1),
            exchange: "",
            routing_keys: &["q"],
            properties: &[0, 0],
        };
        let plain = builder.build(4, [&b"body"[..]]).unwrap();
        assert_eq!(restored(&plain, None), Ok(plain.clone()));
        let id = crate::DeduplicationId::Value("a".into());
        let identified = crate::deduplicate(&plain, &id).unwrap();
        let scheduled = schedule(&identified, 60_000).unwrap();
        assert_eq!(restored(&scheduled, None), Ok(plain.clone()));
        let waits = restored(&scheduled, Some(7)).unwrap();
        assert_eq!(delivery_delay(&waits), Some(7));
        assert_eq!(crate::deduplication_id(&waits), None);
        // Annotations of receivers stay.
        let annotated = annotations(&[("x-opt-note", "1")]).add_to(&scheduled);
        let kept = restored(&annotated.unwrap(), None).unwrap();
        assert_eq!(
            Annotations::of(&kept),
            Some(annotations(&[("x-opt-note", "1")]))
        );
        assert_eq!(kept.body(), b"body");
    }

    #[test]
    fn annotations_with_trailing_bytes_are_refused() {
        let whole = encode(&annotations(&[("a", "1")]));
        assert!(decode(&whole).is_ok());
        let longer = [&whole[..], &[0]].concat();
        let cause = decode(&longer).map_err(|e| e.cause);
        assert_eq!(cause, Err(wire::DecodeCause::Trailing));
    }

    #[test]
    fn annotations_of_a_message_are_kept_with_it() {
        let plain = message(7, Some(3), Some(60), 20);
        assert_eq!(Annotations::of(&plain), None);
        let first = annotations(&[("a", "1"), ("b", "2")])
            .add_to(&plain)
            .unwrap();
        let second = annotations(&[("b", "3")]).add_to(&first).unwrap();
        assert_eq!(
            Annotations::of(&second),
            Some(annotations(&[("a", "1"), ("b", "3")]))
        );
        assert_eq!((number(&second), second.ttl_ms()), (7, Some(60)));
        assert_eq!(Message::decode(second.to_bytes()).unwrap(), second);
    }
}
