//! Listing the messages of a queue without consuming them: `GET queues/{vhost}/{queue}/messages`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::messages::ShownContent;
use crate::{messages, queues};
use control::{BrowseFilter, ControlRequest};
use message::{Message, Protocol};
use metadata::QueueId;
use queue::{
    BROWSE_BODY_BYTES, BROWSE_PAGE_MESSAGES, BrowsePage, BrowsePosition, BrowseRequest,
    BrowsedMessage, BrowsedState, HeadMessage,
};
use serde_json::{Value as Json, json as object};
use std::time::Duration;

/// Messages of one answer: without a `count`, and at most.
const DEFAULT_MESSAGES: u32 = 50;
const MAX_MESSAGES: u32 = 1_000;
/// Bytes of each payload without a `truncate`.
const DEFAULT_TRUNCATE: u32 = 4_096;
/// Bytes of payloads after which an answer ends.
const MAX_BYTES: usize = 16 << 20;
/// Time after which an answer ends with the messages that were found.
const SEARCH_TIME: Duration = Duration::from_secs(5);

/// A request for all messages, in pages as large as possible, without their bodies.
pub(crate) fn all_messages() -> BrowseRequest {
    BrowseRequest {
        from: None,
        least: 0,
        most: u64::MAX,
        messages: BROWSE_PAGE_MESSAGES,
        body_bytes: 0,
        body_start: 0,
        state: None,
        unexpired_at: None,
    }
}

/// A page of the messages of a queue.
pub(crate) async fn page(
    api: &Api,
    queue: QueueId,
    request: &BrowseRequest,
) -> Result<BrowsePage, ApiError> {
    let of = BrowseFilter::new(queue, request);
    let facts = api
        .ask(|reply| ControlRequest::Browse { of, reply })
        .await?;
    let facts = facts.ok_or_else(|| {
        ApiError::unavailable(
            "no node that leads or stores the queue has answered: try again; if the nodes run different versions, \
             finish the upgrade first",
        )
    })?;
    facts.into_page().map_err(ApiError::unavailable)
}

/// The message with a number, after a message of the same queue if that is likely to be before it. `None`: it has left the
/// queue.
pub(crate) async fn find(
    api: &Api,
    queue: QueueId,
    number: u64,
    near: Option<BrowsePosition>,
) -> Result<Option<BrowsedMessage>, ApiError> {
    let near = near.filter(|near| near.number < number);
    // Without the hint too: the message may have another priority.
    let starts = near.into_iter().map(Some).chain([None]);
    for from in starts {
        let mut request = BrowseRequest {
            from,
            least: number,
            most: number,
            ..all_messages()
        };
        loop {
            let page = page(api, queue, &request).await?;
            match (page.messages.into_iter().next(), page.next) {
                (Some(found), _) => return Ok(Some(found)),
                (None, Some(next)) => request.from = Some(next),
                (None, None) => break,
            }
        }
    }
    Ok(None)
}

pub(crate) fn write_cursor(at: &BrowsePosition) -> String {
    let BrowsePosition {
        level,
        number,
        segment,
        offset,
    } = at;
    format!("{level}-{number}-{segment}-{offset}")
}

pub(crate) fn parse_cursor(text: &str) -> Result<BrowsePosition, ApiError> {
    let invalid = || {
        ApiError::bad_request(format!(
            "cursor '{text}' is invalid: pass the 'next' of an earlier answer"
        ))
    };
    let numbers: Result<Vec<u64>, _> = text.split('-').map(str::parse).collect();
    match numbers.map_err(|_| invalid())?.as_slice() {
        &[level, number, segment, offset] => Ok(BrowsePosition {
            level: u8::try_from(level).map_err(|_| invalid())?,
            number,
            segment,
            offset,
        }),
        _ => Err(invalid()),
    }
}

pub(crate) fn parse_position(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "position '{text}' is invalid: pass the 'position' of a listed message"
        ))
    })
}

fn number(
    call: &AuthenticatedRequest,
    key: &str,
    default: u32,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, ApiError> {
    let Some(text) = call.query.get(key) else {
        return Ok(default);
    };
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        ApiError::bad_request(format!(
            "{key} is a number from {least} to {most}, got '{text}'"
        ))
    })
}

pub(crate) async fn list(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let count = number(call, "count", DEFAULT_MESSAGES, 1..=MAX_MESSAGES)?;
    let truncate = number(call, "truncate", DEFAULT_TRUNCATE, 0..=BROWSE_BODY_BYTES)?;
    let auto = match call.query.get("encoding") {
        None | Some("auto") => true,
        Some("base64") => false,
        Some(other) => {
            let why = format!("encoding '{other}' is not known: use auto or base64");
            return Err(ApiError::bad_request(why));
        }
    };
    let position = call.query.get("position").map(parse_position);
    let cursor = call.query.get("cursor").map(parse_cursor);
    let state = call.query.get("state").map(parse_state);
    let mut request = BrowseRequest {
        from: cursor.transpose()?,
        least: position.transpose()?.unwrap_or(0),
        body_bytes: truncate,
        state: state.transpose()?,
        ..all_messages()
    };
    let queue = queues::find_readable(api, call, vhost, name).await?;
    let begun = tokio::time::Instant::now();
    let (mut listed, mut bytes) = (Vec::new(), 0);
    let next = loop {
        let left = count - u32::try_from(listed.len()).unwrap_or(count);
        request.messages = left.min(BROWSE_PAGE_MESSAGES);
        let page = page(api, queue, &request).await?;
        for browsed in &page.messages {
            bytes += browsed.message.body_len();
            listed.push(show(browsed, auto));
        }
        let is_full = listed.len() >= count as usize || bytes >= MAX_BYTES;
        match page.next {
            Some(next) if !is_full && begun.elapsed() < SEARCH_TIME => request.from = Some(next),
            next => break next,
        }
    };
    json(object!({
        "messages": listed,
        "next": next.as_ref().map(write_cursor),
    }))
}

fn parse_state(name: &str) -> Result<BrowsedState, ApiError> {
    let states = [
        BrowsedState::Ready,
        BrowsedState::Unacknowledged,
        BrowsedState::Delayed,
    ];
    let mut states = states.into_iter();
    let state = states.find(|state| state_name(*state) == name);
    state.ok_or_else(|| {
        ApiError::bad_request(format!(
            "state '{name}' is not known: use ready, unacknowledged or delayed"
        ))
    })
}

/// The property `message-id` as a listing shows it.
pub(crate) fn message_id(browsed: &BrowsedMessage) -> Option<String> {
    match &content(browsed, true).properties["message_id"] {
        Json::String(id) => Some(id.clone()),
        _ => None,
    }
}

fn state_name(state: BrowsedState) -> &'static str {
    match state {
        BrowsedState::Ready => "ready",
        BrowsedState::Unacknowledged => "unacknowledged",
        BrowsedState::Delayed => "delayed",
    }
}

/// The constructors of the section `data` of AMQP 1.0 (part 3, section 3.2.6), and the bytes of the length behind each.
const DATA_SECTIONS: [([u8; 4], usize); 2] =
    [([0x00, 0x53, 0x75, 0xa0], 1), ([0x00, 0x53, 0x75, 0xb0], 4)];

/// Where the payload begins in a body that was cut off. The end of a section of AMQP 1.0 is missing, so it cannot be decoded.
fn payload_start(message: &Message) -> usize {
    if message.protocol() != Protocol::Amqp10 {
        return 0;
    }
    let begins = |(constructor, _): &&([u8; 4], usize)| message.body().starts_with(constructor);
    let section = DATA_SECTIONS.iter().find(begins);
    section.map_or(0, |(constructor, length)| constructor.len() + length)
}

/// Properties and payload of a message whose body may have been cut off.
fn content(browsed: &BrowsedMessage, auto: bool) -> ShownContent {
    let message = &browsed.message;
    let counts = (browsed.failed.unwrap_or(0), browsed.acquired);
    let is_truncated = (message.body_len() as u64) < browsed.body_len;
    let without_body = message.shortened(0).ok().filter(|_| is_truncated);
    let Some(without_body) = without_body else {
        return messages::show_content(message, auto, counts.0, counts.1);
    };
    let start = payload_start(message);
    let part = message.body().get(start..).unwrap_or_default();
    let (payload, payload_encoding) = messages::encode_payload(part, auto, true);
    let bytes = usize::try_from(browsed.body_len).unwrap_or(usize::MAX);
    ShownContent {
        payload,
        payload_encoding,
        payload_bytes: bytes.saturating_sub(start),
        ..messages::show_content(&without_body, auto, counts.0, counts.1)
    }
}

fn show(browsed: &BrowsedMessage, auto: bool) -> Json {
    let message = &browsed.message;
    let shown = content(browsed, auto);
    let is_truncated = (message.body_len() as u64) < browsed.body_len;
    object!({
        // A string: JSON numbers of many programs have no 64 bits.
        "position": browsed.at.number.to_string(),
        "state": state_name(browsed.state),
        "due_at": browsed.due_at,
        "redelivered": browsed.redelivered,
        "delivery_count": browsed.failed,
        "received_at": message.received().0,
        "exchange": message.exchange(),
        "routing_key": message.routing_key(),
        "properties": shown.properties,
        "payload_bytes": shown.payload_bytes,
        "payload_truncated": is_truncated,
        "payload": shown.payload,
        "payload_encoding": shown.payload_encoding,
    })
}

/// Adds the times of the first ready message in the order of listings, if the queue has one and its owner answers.
pub(crate) async fn show_head(api: &Api, shown: &mut Json, queue: QueueId) {
    let mut request = BrowseRequest {
        messages: 1,
        state: Some(BrowsedState::Ready),
        ..all_messages()
    };
    // Segments of a classic queue may begin with settled messages.
    for _ in 0..MAX_HEAD_PAGES {
        let Ok(page) = page(api, queue, &request).await else {
            return;
        };
        if let Some(head) = page.messages.first() {
            let content = content(head, true);
            let head = HeadMessage {
                received: head.message.received().0,
                timestamp: content.properties["timestamp"].as_u64(),
            };
            queues::show_head(shown, &head, api.moment().wall);
            return;
        }
        match page.next {
            Some(next) => request.from = Some(next),
            None => return,
        }
    }
}

/// Pages that are read to find the message at the head of a queue.
const MAX_HEAD_PAGES: usize = 4;

#[cfg(test)]
mod unit {
    use super::*;
    use env::WallTime;
    use message::MessageBuilder;

    fn cut(protocol: Protocol, properties: &[u8], body: &[u8], len: usize) -> BrowsedMessage {
        let builder = MessageBuilder {
            protocol,
            durable: true,
            priority: None,
            ttl_ms: None,
            received: WallTime(0),
            exchange: "",
            routing_keys: &["q"],
            properties,
        };
        let message = builder.build(body.len(), [body]).unwrap();
        BrowsedMessage {
            at: BrowsePosition::default(),
            state: BrowsedState::Ready,
            due_at: None,
            redelivered: false,
            failed: None,
            acquired: 0,
            body_start: 0,
            body_len: message.body_len() as u64,
            message: message.shortened(len).unwrap(),
        }
    }

    #[test]
    fn truncated_message_of_amqp_1_0_keeps_its_properties() {
        // The section `application-properties` {"k": "v"}, and a section `data`.
        let properties = b"\x00\x53\x74\xc1\x07\x02\xa1\x01k\xa1\x01v";
        let body = b"\x00\x53\x75\xa0\x0bhello world";
        for (len, payload) in [(body.len(), "hello world"), (10, "hello"), (0, "")] {
            let shown = show(&cut(Protocol::Amqp10, properties, body, len), true);
            assert_eq!(shown["payload"], payload, "{shown}");
            assert_eq!(shown["properties"]["headers"]["k"], "v", "{shown}");
            assert_eq!(shown["payload_truncated"], len < body.len());
        }
        let shown = show(&cut(Protocol::Amqp10, properties, body, 10), true);
        assert_eq!(shown["payload_bytes"], 11);
    }

    #[test]
    fn text_is_cut_off_between_characters() {
        let text = "añb".as_bytes();
        let shown = show(&cut(Protocol::Amqp091, &[0, 0], text, 2), true);
        assert_eq!(shown["payload"], "a");
        assert_eq!(shown["payload_encoding"], "string");
        let shown = show(&cut(Protocol::Amqp091, &[0, 0], &text[..2], 2), true);
        assert_eq!(shown["payload_encoding"], "base64");
    }

    #[test]
    fn cursor_is_restored_and_an_invalid_one_refused() {
        let at = BrowsePosition {
            level: 255,
            number: u64::MAX,
            segment: 1 << 40,
            offset: 7,
        };
        assert_eq!(parse_cursor(&write_cursor(&at)), Ok(at));
        for invalid in [
            "",
            "1",
            "1-2-3",
            "1-2-3-4-5",
            "256-1-0-0",
            "a-1-0-0",
            "1--1-0",
        ] {
            let error = parse_cursor(invalid).expect_err(invalid);
            assert!(error.text().contains("pass the 'next'"), "{}", error.text());
        }
    }
}
