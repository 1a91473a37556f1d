//! Listings of the messages of a queue, as shards send them to each other, and moves of messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use message::Message;
use metadata::{Name, QueueId};
use queue::{
    BROWSE_BODY_BYTES, BrowsePage, BrowsePosition, BrowseRequest, BrowsedMessage, BrowsedState,
};
use serde::{Deserialize, Serialize};

/// A request for a page of the messages of a queue. Only the shard that leads or stores the queue answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrowseFilter {
    /// Id of the queue.
    pub queue: u64,
    from: Option<Position>,
    least: u64,
    most: u64,
    messages: u32,
    body_bytes: u32,
    /// Older versions do not know it, and answer with the first bytes of each body.
    #[serde(default, skip_serializing_if = "is_zero")]
    body_start: u32,
    /// `None`: any. Older versions do not know it and list messages of any state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    /// Leave out expired messages. Older versions do not know it and list them too.
    #[serde(default, skip_serializing_if = "is_false")]
    unexpired: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A page of the messages of a queue, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrowseFacts {
    messages: Vec<MessageFacts>,
    next: Option<Position>,
    error: Option<String>,
    /// Older versions do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_number: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    level: u8,
    number: u64,
    segment: u64,
    offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MessageFacts {
    at: Position,
    state: State,
    /// Older versions do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_at: Option<u64>,
    redelivered: bool,
    failed: Option<u32>,
    acquired: u32,
    body_len: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    body_start: u32,
    /// The container, in base64.
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Ready,
    Unacknowledged,
    Delayed,
}

impl From<BrowsedState> for State {
    fn from(state: BrowsedState) -> State {
        match state {
            BrowsedState::Ready => State::Ready,
            BrowsedState::Unacknowledged => State::Unacknowledged,
            BrowsedState::Delayed => State::Delayed,
        }
    }
}

impl From<State> for BrowsedState {
    fn from(state: State) -> BrowsedState {
        match state {
            State::Ready => BrowsedState::Ready,
            State::Unacknowledged => BrowsedState::Unacknowledged,
            State::Delayed => BrowsedState::Delayed,
        }
    }
}

impl From<BrowsePosition> for Position {
    fn from(at: BrowsePosition) -> Position {
        Position {
            level: at.level,
            number: at.number,
            segment: at.segment,
            offset: at.offset,
        }
    }
}

impl From<Position> for BrowsePosition {
    fn from(at: Position) -> BrowsePosition {
        BrowsePosition {
            level: at.level,
            number: at.number,
            segment: at.segment,
            offset: at.offset,
        }
    }
}

impl BrowseFilter {
    /// The request for a queue.
    pub fn new(queue: QueueId, request: &BrowseRequest) -> BrowseFilter {
        BrowseFilter {
            queue: queue.0,
            from: request.from.map(Position::from),
            least: request.least,
            most: request.most,
            messages: request.messages,
            body_bytes: request.body_bytes,
            body_start: request.body_start,
            state: request.state.map(State::from),
            unexpired: request.unexpired_at.is_some(),
        }
    }

    /// The request, without its queue. `now_ms`: the wall clock of the queue in milliseconds.
    pub fn request(&self, now_ms: u64) -> BrowseRequest {
        BrowseRequest {
            from: self.from.map(BrowsePosition::from),
            least: self.least,
            most: self.most,
            messages: self.messages,
            body_bytes: self.body_bytes.min(BROWSE_BODY_BYTES),
            body_start: self.body_start,
            state: self.state.map(BrowsedState::from),
            unexpired_at: self.unexpired.then_some(now_ms),
        }
    }
}

impl BrowseFacts {
    /// The answer of the shard that leads or stores the queue.
    pub fn new(page: Result<BrowsePage, String>) -> BrowseFacts {
        let (page, error) = match page {
            Ok(page) => (page, None),
            Err(error) => (BrowsePage::default(), Some(error)),
        };
        let facts = |browsed: BrowsedMessage| MessageFacts {
            at: browsed.at.into(),
            state: browsed.state.into(),
            due_at: browsed.due_at,
            redelivered: browsed.redelivered,
            failed: browsed.failed,
            acquired: browsed.acquired,
            body_len: browsed.body_len,
            body_start: browsed.body_start,
            message: STANDARD.encode(browsed.message.as_bytes()),
        };
        BrowseFacts {
            messages: page.messages.into_iter().map(facts).collect(),
            next: page.next.map(Position::from),
            last_number: page.last_number,
            error,
        }
    }

    /// The page. Fails with the reason why there is none, or if a message cannot be decoded.
    pub fn into_page(self) -> Result<BrowsePage, String> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let message = |facts: MessageFacts| {
            let raw = STANDARD.decode(&facts.message).map_err(|e| e.to_string())?;
            Ok(BrowsedMessage {
                at: facts.at.into(),
                state: facts.state.into(),
                due_at: facts.due_at,
                redelivered: facts.redelivered,
                failed: facts.failed,
                acquired: facts.acquired,
                body_len: facts.body_len,
                body_start: facts.body_start,
                message: Message::decode(Bytes::from(raw)).map_err(|e| e.to_string())?,
            })
        };
        let messages = self.messages.into_iter().map(message);
        Ok(BrowsePage {
            messages: messages.collect::<Result<_, String>>()?,
            next: self.next.map(BrowsePosition::from),
            last_number: self.last_number,
        })
    }
}

/// Most messages of one [`MoveRequest`]; further ones are not looked at.
pub const MAX_MOVED: usize = 256;

/// What happens to messages that leave a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveTarget {
    /// They are dropped.
    Nothing,
    /// They are published to an exchange of the same virtual host.
    Exchange {
        /// Its name; the empty one is the default exchange.
        exchange: Name,
        /// The routing key. `None`: each message keeps its own keys.
        routing_key: Option<Name>,
    },
    /// They go back to the queue where each was dead-lettered first.
    FirstDeath,
}

/// What a listing tells about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedMessage {
    /// Its position.
    pub at: BrowsePosition,
    /// Bytes of its body.
    pub body_bytes: u64,
    /// When a delayed message becomes ready, in milliseconds of the wall clock.
    pub due_at: Option<u64>,
}

impl From<&BrowsedMessage> for ListedMessage {
    fn from(browsed: &BrowsedMessage) -> ListedMessage {
        ListedMessage {
            at: browsed.at,
            body_bytes: browsed.body_len,
            due_at: browsed.due_at,
        }
    }
}

/// Takes messages out of a queue. A message leaves the queue once its target has confirmed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRequest {
    /// Id of the queue.
    pub queue: QueueId,
    /// The user, for the firehose tracer.
    pub user: Name,
    /// The messages in the order in which they are moved, as a listing told them; at most [`MAX_MOVED`].
    pub messages: Vec<ListedMessage>,
    /// What happens to them.
    pub target: MoveTarget,
}

/// Numbers of messages by the outcome of a [`MoveRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveOutcome {
    /// They left the queue; the target has them.
    pub moved: u64,
    /// They were not in the queue any more, or a consumer has them.
    pub missing: u64,
    /// No queue was bound for them: they stay.
    pub unroutable: u64,
    /// They have no dead-letter history: they stay.
    pub without_history: u64,
    /// The queue of their first death does not exist, or it is this one: they stay.
    pub without_queue: u64,
    /// The target did not take them: they stay.
    pub refused: u64,
    /// The target has not confirmed them yet. They leave the queue once it does, and stay if it does not.
    pub pending: u64,
    /// They were not tried, since an earlier one was refused or the time was up.
    pub untried: u64,
    /// Why the move ended early.
    pub error: Option<String>,
}

impl MoveOutcome {
    /// Adds the outcome of another request.
    pub fn add(&mut self, other: MoveOutcome) {
        self.moved += other.moved;
        self.missing += other.missing;
        self.unroutable += other.unroutable;
        self.without_history += other.without_history;
        self.without_queue += other.without_queue;
        self.refused += other.refused;
        self.pending += other.pending;
        self.untried += other.untried;
        self.error = self.error.take().or(other.error);
    }
}

/// Stores messages in a queue, in their order and not through an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportRequest {
    /// Id of the queue.
    pub queue: QueueId,
    /// The user, for the firehose tracer.
    pub user: Name,
    /// The messages, as they go into the queue.
    pub messages: Vec<Message>,
}

/// Numbers of messages by the outcome of an [`ImportRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOutcome {
    /// The queue has confirmed them.
    pub stored: u64,
    /// The queue did not take them.
    pub refused: u64,
    /// The queue has not confirmed them in time. They may be stored.
    pub pending: u64,
    /// They were not sent to the queue, since an earlier one was refused or the time was up.
    pub untried: u64,
    /// Why the import ended early.
    pub error: Option<String>,
}
