//! Deleting, moving and redriving messages of a queue.
//!
//! A request handles a bounded number of messages and tells where the next one continues. Each message leaves its queue only
//! once its target has confirmed it; see the internal client of the shard.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::browse::{
    all_messages, find, message_id, page, parse_cursor, parse_position, write_cursor,
};
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::exchanges::exchange_name;
use crate::json::JsonMembers;
use crate::{messages, queues};
use control::{ControlRequest, ListedMessage, MoveOutcome, MoveRequest, MoveTarget};
use metadata::{Name, QueueId};
use queue::{BROWSE_PAGE_MESSAGES, BrowsePosition, BrowseRequest, BrowsedMessage, BrowsedState};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeSet;
use std::time::Duration;

/// Messages of one request without a `count`, and at most.
const DEFAULT_MESSAGES: u32 = 100;
const MAX_MESSAGES: u32 = 1_000;
/// Most positions of one request.
const MAX_POSITIONS: usize = 100;
/// Time after which a request takes no further messages.
const MOVE_TIME: Duration = Duration::from_secs(10);

/// Progress of a request.
#[derive(Default)]
struct Progress {
    outcome: MoveOutcome,
    /// Messages with a consumer, and delayed ones that the request does not name: they stay.
    not_ready: u64,
    next: Option<BrowsePosition>,
}

impl Progress {
    fn show(&self) -> Json {
        let outcome = &self.outcome;
        object!({
            "moved": outcome.moved,
            "missing": outcome.missing,
            "not_ready": self.not_ready,
            "unroutable": outcome.unroutable,
            "without_history": outcome.without_history,
            "without_queue": outcome.without_queue,
            "refused": outcome.refused,
            "pending": outcome.pending,
            "untried": outcome.untried,
            "error": outcome.error,
            "next": self.next.as_ref().map(write_cursor),
        })
    }
}

/// The move that a request asks for.
struct Move<'a> {
    api: &'a Api,
    call: &'a AuthenticatedRequest,
    vhost: &'a str,
    queue: QueueId,
    target: MoveTarget,
}

/// The states of messages that leave their queue.
const READY: &[BrowsedState] = &[BrowsedState::Ready];
const READY_OR_DELAYED: &[BrowsedState] = &[BrowsedState::Ready, BrowsedState::Delayed];

impl Move<'_> {
    /// Moves those of these messages that have one of the states.
    async fn carry_out(
        &self,
        found: &[BrowsedMessage],
        states: &[BrowsedState],
        progress: &mut Progress,
    ) -> Result<(), ApiError> {
        let is_ready = |b: &&BrowsedMessage| states.contains(&b.state);
        let mut ready: Vec<&BrowsedMessage> = found.iter().filter(is_ready).collect();
        progress.not_ready += (found.len() - ready.len()) as u64;
        match &self.target {
            MoveTarget::FirstDeath => {
                // They are not taken, so that they are not marked as redelivered.
                let before = ready.len();
                ready.retain(|b| b.message.has_died());
                progress.outcome.without_history += (before - ready.len()) as u64;
            }
            MoveTarget::Exchange {
                exchange,
                routing_key: None,
            } => {
                let keys: BTreeSet<&str> = ready
                    .iter()
                    .flat_map(|b| b.message.routing_keys())
                    .collect();
                for key in keys {
                    messages::check_publish(self.api, self.call, self.vhost, exchange, key).await?;
                }
            }
            MoveTarget::Exchange { .. } | MoveTarget::Nothing => {}
        }
        if ready.is_empty() {
            return Ok(());
        }
        let request = MoveRequest {
            queue: self.queue,
            user: self.call.user.name.clone(),
            messages: ready.iter().map(|b| ListedMessage::from(*b)).collect(),
            target: self.target.clone(),
        };
        let outcome = self
            .api
            .ask(|reply| ControlRequest::Move { request, reply })
            .await??;
        progress.outcome.add(outcome);
        Ok(())
    }

    /// Moves up to `count` messages, from a position or the head of the queue on.
    async fn from(&self, from: Option<BrowsePosition>, count: u32) -> Result<Progress, ApiError> {
        let begun = tokio::time::Instant::now();
        let mut progress = Progress::default();
        let mut request = BrowseRequest {
            from,
            ..all_messages()
        };
        let mut left = count;
        loop {
            request.messages = left.min(BROWSE_PAGE_MESSAGES);
            let page = page(self.api, self.queue, &request).await?;
            self.carry_out(&page.messages, READY, &mut progress).await?;
            left = left.saturating_sub(u32::try_from(page.messages.len()).unwrap_or(left));
            let is_over = left == 0 || begun.elapsed() >= MOVE_TIME;
            match page.next {
                Some(next) if !is_over && progress.outcome.error.is_none() => {
                    request.from = Some(next);
                }
                // Messages before this one that stayed are not tried again.
                next => {
                    progress.next = next;
                    return Ok(progress);
                }
            }
        }
    }

    /// Moves the messages at these positions.
    async fn chosen(&self, mut positions: Vec<u64>) -> Result<Progress, ApiError> {
        let mut progress = Progress::default();
        positions.sort_unstable();
        positions.dedup();
        let mut found: Vec<BrowsedMessage> = Vec::new();
        for number in positions {
            let near = found.last().map(|b| b.at);
            match find(self.api, self.queue, number, near).await? {
                Some(browsed) => found.push(browsed),
                None => progress.outcome.missing += 1,
            }
        }
        self.carry_out(&found, READY_OR_DELAYED, &mut progress)
            .await?;
        Ok(progress)
    }

    /// Deletes the delayed messages with this property `message-id`, from a position or the head of the queue on.
    async fn with_message_id(
        &self,
        id: &str,
        from: Option<BrowsePosition>,
    ) -> Result<Progress, ApiError> {
        let begun = tokio::time::Instant::now();
        let mut progress = Progress::default();
        let mut request = BrowseRequest {
            from,
            state: Some(BrowsedState::Delayed),
            ..all_messages()
        };
        loop {
            let mut page = page(self.api, self.queue, &request).await?;
            let has_id = |b: &BrowsedMessage| message_id(b).is_some_and(|own| own == id);
            page.messages.retain(has_id);
            self.carry_out(&page.messages, READY_OR_DELAYED, &mut progress)
                .await?;
            match page.next {
                _ if progress.outcome.error.is_some() => {
                    progress.next = request.from;
                    return Ok(progress);
                }
                Some(next) if begun.elapsed() < MOVE_TIME => request.from = Some(next),
                next => {
                    progress.next = next;
                    return Ok(progress);
                }
            }
        }
    }

    /// Carries out what the body of the request selects: `positions`, or `count` messages from `cursor` on.
    async fn selected(&self, body: &JsonMembers<'_>) -> Result<Progress, ApiError> {
        if let Some(positions) = body.0.get("positions").filter(|p| !p.is_null()) {
            return self.chosen(parse_positions(positions)?).await;
        }
        let count = body.integer("count")?.unwrap_or(DEFAULT_MESSAGES.into());
        let count = u32::try_from(count).ok();
        let count = count.filter(|count| (1..=MAX_MESSAGES).contains(count));
        let count = count.ok_or_else(|| {
            ApiError::bad_request(format!(
                "count is a number from 1 to {MAX_MESSAGES}; repeat the request with the 'next' of the answer as 'cursor' for more"
            ))
        })?;
        let cursor = body.text("cursor")?.map(parse_cursor).transpose()?;
        self.from(cursor, count).await
    }
}

fn parse_positions(positions: &Json) -> Result<Vec<u64>, ApiError> {
    let list = positions
        .as_array()
        .filter(|list| list.len() <= MAX_POSITIONS);
    let list = list.ok_or_else(|| {
        ApiError::bad_request(format!(
            "positions is a list of at most {MAX_POSITIONS} positions of listed messages"
        ))
    })?;
    let number = |position: &Json| match position {
        Json::String(text) => parse_position(text),
        other => parse_position(&other.to_string()),
    };
    list.iter().map(number).collect()
}

/// Where the body of a request sends messages: `destination_queue`, or `destination_exchange` and `routing_key`.
fn parse_target(body: &JsonMembers<'_>) -> Result<MoveTarget, ApiError> {
    let queue = body.text("destination_queue")?;
    let exchange = body.text("destination_exchange")?;
    let routing_key = body.text("routing_key")?;
    if [queue, routing_key]
        .into_iter()
        .flatten()
        .any(|text| text.len() > 255)
    {
        return Err(ApiError::bad_request("a routing key has at most 255 bytes"));
    }
    match (queue, exchange) {
        (Some(queue), None) if routing_key.is_none() => Ok(MoveTarget::Exchange {
            exchange: "".into(),
            routing_key: Some(queue.into()),
        }),
        (None, Some(exchange)) => Ok(MoveTarget::Exchange {
            exchange: exchange_name(exchange).into(),
            routing_key: routing_key.map(Name::from),
        }),
        _ => Err(ApiError::bad_request(
            "name either 'destination_queue', or 'destination_exchange' and, to replace the keys of the messages, 'routing_key'",
        )),
    }
}

pub(crate) async fn move_messages(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let body = call.object()?;
    let body = JsonMembers(&body);
    let target = parse_target(&body)?;
    let queue = queues::find_readable(api, call, vhost, name).await?;
    if let MoveTarget::Exchange {
        exchange,
        routing_key,
    } = &target
    {
        let key = routing_key.as_deref();
        match key {
            Some(key) => messages::check_publish(api, call, vhost, exchange, key).await?,
            None => messages::check_write(api, call, vhost, exchange).await?,
        }
    }
    let request = Move {
        api,
        call,
        vhost,
        queue,
        target,
    };
    json(request.selected(&body).await?.show())
}

pub(crate) async fn redrive(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let body = call.object()?;
    let queue = queues::find_readable(api, call, vhost, name).await?;
    // The messages go to queues directly, as through the default exchange.
    messages::check_write(api, call, vhost, "").await?;
    let request = Move {
        api,
        call,
        vhost,
        queue,
        target: MoveTarget::FirstDeath,
    };
    json(request.selected(&JsonMembers(&body)).await?.show())
}

/// Deletes the delayed messages with a property `message-id`.
pub(crate) async fn cancel(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let queue = queues::find_readable(api, call, vhost, name).await?;
    let (id, state) = (call.query.get("message_id"), call.query.get("state"));
    let (Some(id), Some("delayed")) = (id, state) else {
        return Err(ApiError::bad_request(
            "pass 'message_id' and 'state=delayed': only delayed messages are deleted by their message id; \
             DELETE .../contents removes all ready and delayed messages",
        ));
    };
    let cursor = call.query.get("cursor").map(parse_cursor).transpose()?;
    let request = Move {
        api,
        call,
        vhost,
        queue,
        target: MoveTarget::Nothing,
    };
    let progress = request.with_message_id(id, cursor).await?;
    let outcome = &progress.outcome;
    json(object!({
        "deleted": outcome.moved,
        "missing": outcome.missing,
        "untried": outcome.untried,
        "error": outcome.error,
        "next": progress.next.as_ref().map(write_cursor),
    }))
}

pub(crate) async fn delete(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
    position: &str,
) -> ApiResult {
    /// An unwritten message of a classic queue may be written between the search and the removal.
    const ATTEMPTS: usize = 2;
    api.require_vhost_access(call, vhost).await?;
    let number = parse_position(position)?;
    let queue = queues::find_readable(api, call, vhost, name).await?;
    let request = Move {
        api,
        call,
        vhost,
        queue,
        target: MoveTarget::Nothing,
    };
    for _ in 0..ATTEMPTS {
        let progress = request.chosen(vec![number]).await?;
        if progress.not_ready > 0 {
            let why = format!(
                "message {number} of queue '{name}' in vhost '{vhost}' is unacknowledged: only a ready or delayed message can \
                 be deleted; close its consumer first"
            );
            return Err(ApiError::precondition_failed(why));
        }
        if let Some(error) = progress.outcome.error {
            return Err(ApiError::unavailable(error));
        }
        if progress.outcome.moved > 0 {
            return no_content();
        }
    }
    let why = format!(
        "queue '{name}' in vhost '{vhost}' has no ready or delayed message {number}: it was consumed, has expired or was \
         deleted"
    );
    Err(ApiError::missing(why))
}
