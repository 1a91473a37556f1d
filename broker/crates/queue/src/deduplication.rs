//! What a publisher adds to a message so that a queue recognises it when it is published again.

use crate::Annotations;
use message::{DecodeError, Message, Table, Value};

/// The header with the name of the publisher.
pub const PUBLISHER_ID: &str = "x-publisher-id";
/// The header with the number that the publisher gave the message.
pub const PUBLISHING_ID: &str = "x-publishing-id";
/// The header with a value that is equal for copies of a message.
pub const DEDUPLICATION_VALUE: &str = "x-deduplication-header";
/// The annotations with the values of these headers. Only queues read them.
pub(crate) const ANNOTATIONS: [&str; 3] = [
    "x-opt-publisher-id",
    "x-opt-publishing-id",
    "x-opt-deduplication-value",
];
/// Most bytes of the name of a publisher, and of a value.
pub const MAX_DEDUPLICATION_BYTES: usize = 256;

/// By what a queue recognises a message that is published again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeduplicationId {
    /// Its publisher numbers its messages upwards. A number that is not above the last one is a copy.
    Numbered {
        /// The name of the publisher, of at most [`MAX_DEDUPLICATION_BYTES`].
        publisher: String,
        /// The number of the message.
        number: u64,
    },
    /// A value of at most [`MAX_DEDUPLICATION_BYTES`]. A message with a value that the queue remembers is a copy.
    Value(String),
}

#[cfg(test)]
impl DeduplicationId {
    pub(crate) fn numbered(publisher: &str, number: u64) -> DeduplicationId {
        DeduplicationId::Numbered {
            publisher: publisher.to_owned(),
            number,
        }
    }

    pub(crate) fn value(value: &str) -> DeduplicationId {
        DeduplicationId::Value(value.to_owned())
    }
}

/// Returns the message with what a queue recognises it by. Copies the body.
///
/// # Errors
///
/// If the message is too large with its annotations.
pub fn deduplicate(message: &Message, id: &DeduplicationId) -> Result<Message, DecodeError> {
    let [publisher_key, number_key, value_key] = ANNOTATIONS;
    let mut table = Table::default();
    match id {
        DeduplicationId::Numbered { publisher, number } => {
            table.set(publisher_key, Value::from(&**publisher));
            let number = i64::try_from(*number).unwrap_or(i64::MAX);
            table.set(number_key, Value::I64(number));
        }
        DeduplicationId::Value(value) => table.set(value_key, Value::from(&**value)),
    }
    let annotations = Annotations::new(table).unwrap_or_default();
    debug_assert!(!annotations.is_empty(), "two small annotations");
    annotations.add_to(message)
}

/// Returns what a queue recognises the message by. A dead letter has nothing, because no client published it to this queue.
pub fn deduplication_id(message: &Message) -> Option<DeduplicationId> {
    // Few messages have annotations.
    message.annotations()?;
    if message.has_died() {
        return None;
    }
    let annotations = Annotations::of(message)?;
    let table = annotations.table();
    let [publisher, number, value] = ANNOTATIONS.map(|key| table.get(key));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(value) = value {
        return text(value).map(DeduplicationId::Value);
    }
    Some(DeduplicationId::Numbered {
        publisher: text(publisher?)?,
        number: u64::try_from(number?.as_integer()?).ok()?,
    })
}
