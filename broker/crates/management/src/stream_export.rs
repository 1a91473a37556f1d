//! Messages of a stream, for backups: the requests of [`crate::export`] for streams.
//!
//! An export has whole chunks up to the offset that was committed when its first page was read. An import appends chunks
//! with new offsets behind the offset that the request names, so that a repeated request stores nothing twice.

use crate::TRANSFER_BYTES;
use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::export::{EXPORT_TIME, IMPORT_TIMEOUT, Queue, parse_count, respond_with_page};
use axum::http::HeaderValue;
use backup::chunks::{self, ChunkRecords};
use bytes::Bytes;
use control::ControlRequest;
use metadata::features::STREAM_BACKUPS;
use queue::cursor::{
    CursorStart, MAX_APPEND_BYTES, MAX_READ_BYTES, StreamChunks, StreamReply, StreamRequest,
};
use queue::{QueueReply, RequestBody};
use serde_json::json as object;

/// The header with the offset behind the last message of the stream, when the first page was read.
const END_OFFSET: &str = "x-end-offset";
/// Answers without progress after which an export ends. A leader gives one if it has lost an answer.
const MAX_EMPTY_ANSWERS: u32 = 3;

/// The refusal of a stream.
enum StreamError {
    /// The code and the reason.
    Refused(u16, String),
    Api(ApiError),
}

impl From<ApiError> for StreamError {
    fn from(error: ApiError) -> StreamError {
        StreamError::Api(error)
    }
}

impl From<StreamError> for ApiError {
    fn from(error: StreamError) -> ApiError {
        match error {
            StreamError::Refused(404, text) => ApiError::missing(text),
            StreamError::Refused(541, text) => ApiError::unavailable(text),
            StreamError::Refused(_, text) => ApiError::bad_request(text),
            StreamError::Api(error) => error,
        }
    }
}

async fn ask(api: &Api, queue: &Queue, request: StreamRequest) -> Result<StreamReply, StreamError> {
    let (queue, body) = (queue.id, RequestBody::Stream(request));
    let answer = api
        .ask_within(IMPORT_TIMEOUT, |reply| ControlRequest::Queue {
            queue,
            body,
            reply,
        })
        .await?;
    match answer.map_err(ApiError::from)? {
        QueueReply::Stream(reply) => Ok(reply),
        QueueReply::Refused { code, text } => Err(StreamError::Refused(code, text)),
        _ => Err(unexpected().into()),
    }
}

fn unexpected() -> ApiError {
    ApiError::unavailable("the stream has given an unexpected answer")
}

async fn require_feature(api: &Api, queue: &Queue) -> Result<(), ApiError> {
    let enabled = api.read(|tree| tree.feature_enabled(STREAM_BACKUPS.name));
    match enabled.await? {
        true => Ok(()),
        false => Err(ApiError::bad_request(format!(
            "{} is a stream, and the feature flag {} is disabled: enable it when all nodes run this version",
            queue.label, STREAM_BACKUPS.name
        ))),
    }
}

/// The committed offset of the stream.
async fn end_of(api: &Api, queue: &Queue) -> Result<u64, ApiError> {
    let start = CursorStart::Next;
    match ask(api, queue, StreamRequest::ResolveOffset { start }).await? {
        StreamReply::Offset(Some(end)) => Ok(end),
        _ => Err(unexpected()),
    }
}

/// A cursor is the offset of the next message and the end of the export.
fn parse_cursor(text: &str) -> Result<(u64, u64), ApiError> {
    let numbers = text.split_once('-');
    let numbers = numbers.and_then(|(from, end)| Some((from.parse().ok()?, end.parse().ok()?)));
    numbers.ok_or_else(|| {
        ApiError::bad_request(format!("cursor is that of the page before, got '{text}'"))
    })
}

pub(crate) async fn export(api: &Api, call: &AuthenticatedRequest, queue: &Queue) -> ApiResult {
    let most = parse_count(call)?;
    let cursor = call.query.get("cursor").map(parse_cursor).transpose()?;
    require_feature(api, queue).await?;
    let mut memory = api.reserve(TRANSFER_BYTES + MAX_READ_BYTES).await?;
    let (mut from, end) = match cursor {
        Some(cursor) => cursor,
        None => (0, end_of(api, queue).await?),
    };
    let begun = tokio::time::Instant::now();
    let mut out = Vec::new();
    chunks::begin(&mut out);
    let (mut count, mut empty_answers) = (0u64, 0);
    while from < end {
        let request = StreamRequest::ReadChunks { from, end };
        let StreamChunks { next, chunks } = match ask(api, queue, request).await? {
            StreamReply::Chunks(chunks) => chunks,
            _ => return Err(unexpected()),
        };
        let bytes: usize = chunks.iter().map(Bytes::len).sum();
        if bytes > MAX_READ_BYTES && count > 0 {
            // The large chunk has a page of its own, for whose memory this one does not have to wait.
            break;
        }
        if bytes > MAX_READ_BYTES {
            drop(memory);
            memory = api.reserve(2 * bytes).await?;
        }
        if next <= from {
            empty_answers += 1;
            if empty_answers >= MAX_EMPTY_ANSWERS {
                let label = &queue.label;
                return Err(ApiError::unavailable(format!(
                    "{label} cannot be read from offset {from} on: try again later"
                )));
            }
            continue;
        }
        for chunk in &chunks {
            count += chunks::append(&mut out, chunk).map_err(|fault| {
                ApiError::unavailable(format!("{} has sent no chunk: {fault}", queue.label))
            })?;
        }
        from = next;
        if count >= most || out.len() >= TRANSFER_BYTES || begun.elapsed() >= EXPORT_TIME {
            break;
        }
    }
    drop(memory);
    let next = (from < end).then(|| format!("{from}-{end}"));
    let mut response = respond_with_page(out, count, next);
    let headers = response.headers_mut();
    headers.insert(END_OFFSET, HeaderValue::from(end));
    Ok(response)
}

pub(crate) async fn import(api: &Api, call: &AuthenticatedRequest, queue: &Queue) -> ApiResult {
    let at = call.query.get("next_offset").map(|text| {
        text.parse()
            .map_err(|_| ApiError::bad_request(format!("next_offset is an offset, got '{text}'")))
    });
    let at: Option<u64> = at.transpose()?;
    let invalid = |error: backup::RecordsError| ApiError::bad_request(error.to_string());
    // Nothing is stored if a record is invalid.
    let mut chunks = Vec::new();
    for record in ChunkRecords::new(call.body.clone()).map_err(invalid)? {
        chunks.push(record.map_err(invalid)?.chunk);
    }
    require_feature(api, queue).await?;
    let mut at = match at {
        Some(at) => at,
        None => end_of(api, queue).await?,
    };
    let messages = |chunks: &[_]| -> u64 {
        let chunks = chunks.iter();
        chunks
            .map(|chunk: &backup::chunks::Chunk| u64::from(chunk.header().records))
            .sum()
    };
    let (mut stored, mut error) = (0, None);
    let mut left = chunks.as_slice();
    while !left.is_empty() {
        let mut bytes = 0;
        let fits = left.iter().take_while(|chunk| {
            bytes += chunk.bytes().len();
            bytes <= MAX_APPEND_BYTES
        });
        let (now, later) = left.split_at(fits.count().max(1));
        let request = StreamRequest::AppendChunks {
            at,
            chunks: now.iter().map(|chunk| chunk.bytes().clone()).collect(),
        };
        match ask(api, queue, request).await {
            Ok(StreamReply::Offset(Some(next))) => at = next,
            Ok(_) => return Err(unexpected()),
            Err(StreamError::Refused(_, text)) => {
                error = Some(text);
                break;
            }
            Err(StreamError::Api(error)) => return Err(error),
        }
        stored += messages(now);
        left = later;
    }
    json(object!({
        "stored": stored,
        "refused": 0,
        "pending": 0,
        "untried": messages(left),
        "error": error,
        "next_offset": at,
    }))
}
