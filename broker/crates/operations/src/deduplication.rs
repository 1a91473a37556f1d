//! Publishes that a queue recognises when they come again.

use crate::error::{OperationResult, refuse};
use message::{Message, Table, Value};
use metadata::{QueueId, Tree};
use queue::{
    DEDUPLICATION_VALUE, DeduplicationId, MAX_DEDUPLICATION_BYTES, PUBLISHER_ID, PUBLISHING_ID,
};

/// Returns the message with what its queues recognise it by, from its headers. `None`: no queue would, or the headers do not
/// ask for it. Call it if [`Tree::has_deduplicating_queues`]. `headers` is called at most once.
///
/// # Errors
///
/// If a header is invalid and a queue would recognise copies.
#[cold]
pub fn deduplicate(
    tree: &Tree,
    routes: &[QueueId],
    message: &Message,
    headers: impl FnOnce() -> Table,
) -> OperationResult<Option<Message>> {
    let mut queues = routes.iter().filter_map(|id| tree.queue_by_id(*id));
    if !queues.any(|queue| queue.deduplication_window_ms().is_some()) {
        return Ok(None);
    }
    let Some(id) = deduplication_id(&headers())? else {
        return Ok(None);
    };
    match queue::deduplicate(message, &id) {
        Ok(message) => Ok(Some(message)),
        Err(error) => refuse!(PreconditionFailed, "invalid message: {error}"),
    }
}

fn deduplication_id(headers: &Table) -> OperationResult<Option<DeduplicationId>> {
    match (headers.get(PUBLISHER_ID), headers.get(PUBLISHING_ID)) {
        (Some(publisher), Some(number)) => Ok(Some(DeduplicationId::Numbered {
            publisher: text(PUBLISHER_ID, publisher)?,
            number: publishing_id(number)?,
        })),
        (Some(_), None) => refuse!(
            PreconditionFailed,
            "the message has the header '{PUBLISHER_ID}' and not '{PUBLISHING_ID}': set both"
        ),
        (None, Some(_)) => refuse!(
            PreconditionFailed,
            "the message has the header '{PUBLISHING_ID}' and not '{PUBLISHER_ID}': set both"
        ),
        (None, None) => match headers.get(DEDUPLICATION_VALUE) {
            Some(value) => Ok(Some(DeduplicationId::Value(text(
                DEDUPLICATION_VALUE,
                value,
            )?))),
            None => Ok(None),
        },
    }
}

/// A text, or an integer as text.
fn text(key: &str, value: &Value) -> OperationResult<String> {
    let found = match (value.as_str(), value.as_integer()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(number)) => number.to_string(),
        (None, None) => refuse!(
            PreconditionFailed,
            "the header '{key}' is of type {}: it must be a text or an integer",
            value.type_name()
        ),
    };
    match found.len() {
        1..=MAX_DEDUPLICATION_BYTES => Ok(found),
        length => refuse!(
            PreconditionFailed,
            "the header '{key}' has {length} bytes: it must have 1 to {MAX_DEDUPLICATION_BYTES}"
        ),
    }
}

fn publishing_id(value: &Value) -> OperationResult<u64> {
    let number = match value.as_str() {
        Some(text) => text.parse::<i64>().ok(),
        None => value.as_integer(),
    };
    match number.map(u64::try_from) {
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) | None => refuse!(
            PreconditionFailed,
            "the header '{PUBLISHING_ID}' must be an integer from 0 to {}",
            i64::MAX
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(headers: &[(&str, Value)]) -> Result<Option<DeduplicationId>, String> {
        let headers = headers.iter().map(|(k, v)| ((*k).into(), v.clone()));
        deduplication_id(&Table(headers.collect())).map_err(|error| error.to_string())
    }

    fn numbered(number: u64) -> Option<DeduplicationId> {
        Some(DeduplicationId::Numbered {
            publisher: "p".into(),
            number,
        })
    }

    #[test]
    fn headers_identify_a_message() {
        let publisher = (PUBLISHER_ID, Value::from("p"));
        let with = |number: Value| id(&[publisher.clone(), (PUBLISHING_ID, number)]);
        assert_eq!(with(Value::I32(5)), Ok(numbered(5)));
        assert_eq!(with(Value::from("5")), Ok(numbered(5)));
        assert_eq!(with(Value::I64(i64::MAX)), Ok(numbered(u64::MAX >> 1)));
        let value = |value| id(&[(DEDUPLICATION_VALUE, value)]);
        let expected = |value: &str| Ok(Some(DeduplicationId::Value(value.into())));
        assert_eq!(value(Value::from("v")), expected("v"));
        assert_eq!(value(Value::I32(-7)), expected("-7"));
        assert_eq!(id(&[("other", Value::I32(1))]), Ok(None));
    }

    #[test]
    fn invalid_headers_are_refused_with_their_name() {
        let publisher = || (PUBLISHER_ID, Value::from("p"));
        let long = "x".repeat(MAX_DEDUPLICATION_BYTES + 1);
        for (headers, expected) in [
            (vec![publisher()], "set both"),
            (vec![(PUBLISHING_ID, Value::I32(1))], "set both"),
            (vec![publisher(), (PUBLISHING_ID, Value::I32(-1))], "from 0"),
            (
                vec![publisher(), (PUBLISHING_ID, Value::from("x"))],
                "from 0",
            ),
            (
                vec![
                    (PUBLISHER_ID, Value::Bool(true)),
                    (PUBLISHING_ID, Value::I32(1)),
                ],
                "type bool",
            ),
            (vec![(DEDUPLICATION_VALUE, Value::from(""))], "has 0 bytes"),
            (
                vec![(DEDUPLICATION_VALUE, Value::from(&*long))],
                "has 257 bytes",
            ),
            (vec![(DEDUPLICATION_VALUE, Value::Void)], "type void"),
        ] {
            let refused = id(&headers).expect_err("refused");
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
