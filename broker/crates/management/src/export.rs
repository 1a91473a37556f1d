//! Whole messages of a queue, for backups: `GET` and `POST queues/{vhost}/{queue}/messages/{export,import}`.
//!
//! An export is a listing that leaves the queue as it is; see [`crate::browse`]. A body that is larger than a page of a listing
//! is read in parts. An import stores messages in exactly one queue, and answers when the queue has confirmed them. Those of
//! streams are in [`crate::stream_export`].

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::browse::{all_messages, page, parse_cursor, write_cursor};
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::{TRANSFER_BYTES, queues, stream_export};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use backup::records::{self, MEDIA_TYPE, MessageState, Records, StoredMessage};
use bytes::Bytes;
use control::{ControlRequest, ImportOutcome, ImportRequest};
use message::Message;
use metadata::{QueueId, QueueType};
use queue::{
    BROWSE_BODY_BYTES, BROWSE_PAGE_MESSAGES, BrowsePosition, BrowseRequest, BrowsedMessage,
    BrowsedState,
};
use serde_json::json as object;
use std::time::Duration;

/// The header with the cursor of the next page. A page without it is the last one.
pub(crate) const NEXT_CURSOR: &str = "x-next-cursor";
/// The header with the number of messages of a page.
pub(crate) const COUNT: &str = "x-message-count";
/// Time after which an export ends with the messages that were found.
pub(crate) const EXPORT_TIME: Duration = Duration::from_secs(5);
/// Time limit for an answer of the node to an import.
pub(crate) const IMPORT_TIMEOUT: Duration = Duration::from_secs(25);
/// Bytes of a message besides its body, in a body of an import.
const MAX_HEAD_BYTES: usize = 1 << 20;

/// Most bytes of the body of an import.
pub(crate) fn import_limit(api: &Api) -> usize {
    TRANSFER_BYTES + api.config().max_message_size as usize + MAX_HEAD_BYTES
}

/// A queue of a request, and its name for errors.
pub(crate) struct Queue {
    pub id: QueueId,
    pub label: String,
    is_stream: bool,
}

async fn find(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> Result<Queue, ApiError> {
    api.require_vhost_visible(call, vhost).await?;
    let record = queues::find(api, vhost, name).await?.record;
    let label = format!("queue '{name}' in vhost '{vhost}'");
    Ok(Queue {
        id: record.id,
        label,
        is_stream: record.kind == QueueType::Stream,
    })
}

/// The least number of messages after which an export ends.
pub(crate) fn parse_count(call: &AuthenticatedRequest) -> Result<u64, ApiError> {
    let most = call.query.get("count").map(|text| {
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| {
            ApiError::bad_request(format!("count is a number from 1 on, got '{text}'"))
        })
    });
    Ok(most.transpose()?.unwrap_or(u64::MAX))
}

/// The response with a page of records.
pub(crate) fn respond_with_page(out: Vec<u8>, count: u64, next: Option<String>) -> Response {
    let mut response = Bytes::from(out).into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static(MEDIA_TYPE);
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(COUNT, HeaderValue::from(count));
    if let Some(next) = next
        && let Ok(cursor) = HeaderValue::from_str(&next)
    {
        headers.insert(NEXT_CURSOR, cursor);
    }
    response
}

/// A message is gone, or cannot be read whole.
enum Unreadable {
    Gone,
    Error(ApiError),
}

impl From<ApiError> for Unreadable {
    fn from(error: ApiError) -> Unreadable {
        Unreadable::Error(error)
    }
}

/// Reads the rest of a body of which a listing has the first part.
async fn complete(
    api: &Api,
    queue: &Queue,
    browsed: &BrowsedMessage,
) -> Result<Message, Unreadable> {
    let number = browsed.at.number;
    let head = &browsed.message;
    let mut raw = head.as_bytes().to_vec();
    let mut have = head.body_len() as u64;
    while have < browsed.body_len {
        let start = u32::try_from(have).map_err(|_| Unreadable::Gone)?;
        let mut request = BrowseRequest {
            from: Some(browsed.at),
            least: number,
            most: number,
            messages: 1,
            body_bytes: BROWSE_BODY_BYTES,
            body_start: start,
            state: None,
            unexpired_at: None,
        };
        let part = loop {
            let page = page(api, queue.id, &request).await?;
            match (page.messages.into_iter().next(), page.next) {
                (Some(part), _) => break part,
                (None, Some(next)) => request.from = Some(next),
                (None, None) => return Err(Unreadable::Gone),
            }
        };
        if part.body_start != start || part.message.body().is_empty() {
            let why = format!(
                "message {number} of {} has {} bytes, and the node that has it runs an older version, which does not send \
                 them all: finish the upgrade first",
                queue.label, browsed.body_len
            );
            return Err(ApiError::unavailable(why).into());
        }
        have += part.message.body_len() as u64;
        raw.extend_from_slice(part.message.body());
    }
    Message::decode(Bytes::from(raw)).map_err(|error| {
        let why = format!("message {number} of {}: {error}", queue.label);
        Unreadable::Error(ApiError::unavailable(why))
    })
}

fn stored(
    queue: &Queue,
    browsed: &BrowsedMessage,
    message: Message,
) -> Result<StoredMessage, ApiError> {
    let state = match browsed.state {
        BrowsedState::Ready => MessageState::Ready,
        BrowsedState::Unacknowledged => MessageState::Unacknowledged,
        BrowsedState::Delayed => MessageState::Delayed,
    };
    if state == MessageState::Delayed && browsed.due_at.is_none() {
        let why = format!(
            "message {} of {} is delayed, and the node that has it runs an older version, which does not say until when: \
             finish the upgrade first",
            browsed.at.number, queue.label
        );
        return Err(ApiError::unavailable(why));
    }
    Ok(StoredMessage {
        state,
        redelivered: browsed.redelivered,
        failed: browsed.failed,
        acquired: browsed.acquired,
        due_ms: browsed.due_at,
        message,
    })
}

pub(crate) async fn export(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let queue = find(api, call, vhost, name).await?;
    if queue.is_stream {
        return stream_export::export(api, call, &queue).await;
    }
    let most = parse_count(call)?;
    let cursor = call.query.get("cursor").map(parse_cursor).transpose()?;
    let mut memory = api.reserve(TRANSFER_BYTES).await?;
    let mut request = BrowseRequest {
        from: cursor,
        body_bytes: BROWSE_BODY_BYTES,
        ..all_messages()
    };
    let begun = tokio::time::Instant::now();
    let mut out = Vec::new();
    records::begin(&mut out);
    let mut count: u64 = 0;
    let next: Option<BrowsePosition> = 'pages: loop {
        let left = u32::try_from(most - count).unwrap_or(u32::MAX);
        request.messages = left.min(BROWSE_PAGE_MESSAGES);
        let page = page(api, queue.id, &request).await?;
        for browsed in &page.messages {
            let is_whole = browsed.message.body_len() as u64 == browsed.body_len;
            let message = if is_whole {
                browsed.message.clone()
            } else if count > 0 {
                // It has a page of its own, for whose memory this one does not have to wait.
                break 'pages Some(browsed.at);
            } else {
                drop(memory);
                let bytes = usize::try_from(browsed.body_len).unwrap_or(usize::MAX);
                memory = api.reserve(bytes).await?;
                match complete(api, &queue, browsed).await {
                    Ok(message) => message,
                    Err(Unreadable::Gone) => continue,
                    Err(Unreadable::Error(error)) => return Err(error),
                }
            };
            let stored = stored(&queue, browsed, message)?;
            records::append(&mut out, &stored).map_err(|bytes| {
                let number = browsed.at.number;
                let label = &queue.label;
                ApiError::unavailable(format!(
                    "message {number} of {label} has {bytes} bytes, which is more than a record holds"
                ))
            })?;
            count += 1;
        }
        let is_full = count >= most || out.len() >= TRANSFER_BYTES;
        match page.next {
            Some(next) if !is_full && begun.elapsed() < EXPORT_TIME => request.from = Some(next),
            next => break next,
        }
    };
    drop(memory);
    let next = next.map(|next| write_cursor(&next));
    Ok(respond_with_page(out, count, next))
}

/// The messages of a body, as they go into the queue. Nothing is stored if a record is invalid.
fn parse(api: &Api, queue: &Queue, body: Bytes) -> Result<Vec<Message>, ApiError> {
    let invalid = |error: records::RecordsError| ApiError::bad_request(error.to_string());
    let now = api.moment().wall.0;
    let limit = api.config().max_message_size;
    let mut messages = Vec::new();
    for record in Records::new(body).map_err(invalid)? {
        let record = record.map_err(invalid)?;
        let offset = record.offset;
        let message = &record.stored.message;
        if message.body_len() > limit as usize {
            return Err(ApiError::bad_request(format!(
                "the message at offset {offset} for {} has a body of {} bytes, and max_message_size is {limit}: raise it on \
                 all nodes",
                queue.label,
                message.body_len()
            )));
        }
        let delay = record.stored.due_ms.map(|due| due.saturating_sub(now));
        // A message that is due now is not delayed.
        let delay = delay.filter(|delay| *delay > 0);
        let restored = queue::restored(message, delay).map_err(|error| {
            ApiError::bad_request(format!(
                "the message at offset {offset} is invalid: {error}"
            ))
        })?;
        messages.push(restored);
    }
    Ok(messages)
}

pub(crate) async fn import(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let queue = find(api, call, vhost, name).await?;
    if queue.is_stream {
        return stream_export::import(api, call, &queue).await;
    }
    let messages = parse(api, &queue, call.body.clone())?;
    let is_delayed = |message: &Message| {
        queue::Annotations::of(message)
            .is_some_and(|annotations| annotations.table().get(queue::DELIVERY_DELAY).is_some())
    };
    if messages.iter().any(is_delayed) {
        let id = queue.id;
        let check = api.read(move |tree| operations::check_scheduled(tree, &[id]));
        check.await??;
    }
    let request = ImportRequest {
        queue: queue.id,
        user: call.user.name.clone(),
        messages,
    };
    let ask = api.ask_within(IMPORT_TIMEOUT, |reply| ControlRequest::Import {
        request,
        reply,
    });
    let ImportOutcome {
        stored,
        refused,
        pending,
        untried,
        error,
    } = ask.await??;
    json(object!({
        "stored": stored,
        "refused": refused,
        "pending": pending,
        "untried": untried,
        "error": error,
    }))
}
