//! Retained MQTT messages of a virtual host, for backups: `GET mqtt/retained/{vhost}/export` and
//! `POST mqtt/retained/{vhost}/import`.
//!
//! A page ends behind a topic that the cursor of the next one names. The time to live of a message goes on from its rest when
//! it is imported. An import leaves topics alone that have a message: theirs is newer, or the same.

use crate::TRANSFER_BYTES;
use crate::access::AuthenticatedRequest;
use crate::ask::{Api, answer_of};
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::export::{EXPORT_TIME, IMPORT_TIMEOUT, respond_with_page};
use backup::RecordsError;
use backup::retained::{self, RetainedMessage, RetainedRecords};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use control::ControlRequest;
use env::WallTime;
use message::Message;
use metadata::{Change, Name, limits};
use serde_json::json as object;
use std::collections::BTreeSet;

/// Messages that are read from the tree at once.
const STEP: usize = 256;
/// Most bytes of a topic behind which a page ends, since its cursor is a header.
const MAX_CURSOR_BYTES: usize = 1024;
/// Changes of the metadata that are begun before the first of them is answered.
const WINDOW: usize = 64;

/// The rest of the time to live; `None` within if there is no limit. `None`: the message has expired.
fn remaining(message: &Message, now: WallTime) -> Option<Option<u64>> {
    let Some(ttl) = message.ttl_ms() else {
        return Some(None);
    };
    let expires = message.received().0.saturating_add(ttl);
    let rest = expires.saturating_sub(now.0).min(ttl);
    (rest > 0).then_some(Some(rest))
}

/// A message whose time to live ends after `remaining_ms`.
fn with_remaining(message: &Message, remaining_ms: Option<u64>, now: WallTime) -> Message {
    match (message.ttl_ms(), remaining_ms) {
        (Some(ttl), Some(rest)) => {
            let received = now.0.saturating_add(rest.min(ttl)).saturating_sub(ttl);
            message.with_received(WallTime(received))
        }
        _ => message.clone(),
    }
}

fn parse_cursor(text: &str) -> Result<String, ApiError> {
    let topic = URL_SAFE_NO_PAD.decode(text).ok();
    let topic = topic.and_then(|topic| String::from_utf8(topic).ok());
    topic.ok_or_else(|| ApiError::bad_request("cursor is that of the page before"))
}

pub(crate) async fn export(api: &Api, call: &AuthenticatedRequest, vhost: &str) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let cursor = call.query.get("cursor").map(parse_cursor).transpose()?;
    let _memory = api.reserve(2 * TRANSFER_BYTES).await?;
    let now = api.moment().wall;
    let begun = tokio::time::Instant::now();
    let mut out = Vec::new();
    retained::begin(&mut out);
    let (mut after, mut count) = (cursor, 0);
    let next = loop {
        let (vhost, from) = (vhost.to_owned(), after.clone());
        let read = api.read(move |tree| {
            let found = tree.retained_after(&vhost, from.as_deref()).take(STEP);
            let found = found.map(|(topic, raw)| (topic.clone(), raw.clone()));
            found.collect::<Vec<(Name, Bytes)>>()
        });
        let found = read.await?;
        let is_last = found.len() < STEP;
        let mut is_full = false;
        for (topic, raw) in found {
            let message = Message::decode(raw).map_err(|error| {
                ApiError::unavailable(format!("the retained message of topic '{topic}': {error}"))
            })?;
            if let Some(remaining_ms) = remaining(&message, now) {
                let retained = RetainedMessage {
                    topic: topic.to_string(),
                    remaining_ms,
                    message,
                };
                retained::append(&mut out, &retained).map_err(|bytes| {
                    ApiError::unavailable(format!(
                        "the retained message of topic '{topic}' has {bytes} bytes, which is more than a record holds"
                    ))
                })?;
                count += 1;
            }
            after = Some(topic.to_string());
            // Without this, a page of long topics would have no cursor.
            is_full = topic.len() <= MAX_CURSOR_BYTES
                && (out.len() >= TRANSFER_BYTES || begun.elapsed() >= EXPORT_TIME);
            if is_full {
                break;
            }
        }
        match (is_full, is_last) {
            (true, _) => break after.map(|topic| URL_SAFE_NO_PAD.encode(topic)),
            (false, true) => break None,
            (false, false) => {}
        }
    };
    Ok(respond_with_page(out, count, next))
}

/// Section 4.7 of MQTT 5.0.
fn is_topic_name(topic: &str) -> bool {
    (1..=limits::TOPIC_BYTES).contains(&topic.len()) && !topic.contains(['+', '#', '\0'])
}

/// The messages of a body. Nothing is stored if a record is invalid.
fn parse(body: Bytes) -> Result<Vec<RetainedMessage>, ApiError> {
    let invalid = |error: RecordsError| ApiError::bad_request(error.to_string());
    let mut messages = Vec::new();
    for record in RetainedRecords::new(body).map_err(invalid)? {
        let record = record.map_err(invalid)?;
        let topic = &record.retained.topic;
        if !is_topic_name(topic) {
            let offset = record.offset;
            return Err(ApiError::bad_request(format!(
                "the record at offset {offset} has '{topic}', which is not a topic name of MQTT"
            )));
        }
        messages.push(record.retained);
    }
    Ok(messages)
}

pub(crate) async fn import(api: &Api, call: &AuthenticatedRequest, vhost: &str) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let messages = parse(call.body.clone())?;
    let now = api.moment().wall;
    let at: Name = vhost.into();
    let (mut stored, mut kept, mut begun, mut error) = (0u64, 0u64, 0usize, None);
    let started = tokio::time::Instant::now();
    for window in messages.chunks(WINDOW) {
        if started.elapsed() >= EXPORT_TIME {
            error = Some("not all messages are stored: there was no time left".to_owned());
            break;
        }
        let topics: Vec<String> = window.iter().map(|m| m.topic.clone()).collect();
        let read_at = at.clone();
        let taken = api.read(move |tree| {
            let is_fresh = |raw: &Bytes| {
                let message = Message::decode(raw.clone());
                message.is_ok_and(|message| remaining(&message, now).is_some())
            };
            let mut topics = topics;
            topics.retain(|topic| tree.retained(&read_at, topic).is_some_and(is_fresh));
            topics.into_iter().collect::<BTreeSet<String>>()
        });
        let taken = taken.await?;
        let mut answers = Vec::new();
        for retained in window {
            begun += 1;
            if taken.contains(&retained.topic) {
                kept += 1;
                continue;
            }
            let message = with_remaining(&retained.message, retained.remaining_ms, now);
            let change = Change::Retain {
                vhost: at.clone(),
                topic: retained.topic.as_str().into(),
                message: Some(message.to_bytes()),
            };
            answers.push(api.begin(|reply| ControlRequest::Change { change, reply }));
        }
        for answer in answers {
            match answer_of(IMPORT_TIMEOUT, answer).await? {
                Ok(_) => stored += 1,
                Err(refused) => {
                    error.get_or_insert(refused.to_string());
                }
            }
        }
        if error.is_some() {
            break;
        }
    }
    let refused = begun as u64 - stored - kept;
    json(object!({
        "stored": stored,
        "kept": kept,
        "refused": refused,
        "untried": messages.len() - begun,
        "error": error,
    }))
}
