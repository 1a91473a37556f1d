//! Reading messages of a queue without consuming them: nothing is marked, counted or moved.
//!
//! A queue lists its messages by descending priority, and within a priority in the order in which they were enqueued.
//! Unacknowledged and requeued messages keep their place in that order, so a listing can be continued while consumers are
//! served. A page is bounded, and the next one begins where it ended.

use message::Message;

/// Most messages of one page.
pub const BROWSE_PAGE_MESSAGES: u32 = 100;
/// Bytes of messages that one page reads; it may exceed them by its last message. As much as a classic queue reads ahead.
pub const BROWSE_PAGE_BYTES: usize = 256 << 10;
/// Most bytes of the body of one message in a page for another shard or node.
pub const BROWSE_BODY_BYTES: u32 = 4 << 20;

/// A message of a queue, or the place where a listing continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrowsePosition {
    /// Priority level of the message in its queue.
    pub level: u8,
    /// Number of the message in its queue. It stays the same until the message leaves the queue.
    pub number: u64,
    /// In a classic queue: the segment where the message is, or where the search for it continues. 0: unknown.
    pub segment: u64,
    /// Offset in that segment.
    pub offset: u64,
}

/// Which messages to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrowseRequest {
    /// Where to begin. `None`: at the head of the queue.
    pub from: Option<BrowsePosition>,
    /// The lowest number to list.
    pub least: u64,
    /// The highest number to list.
    pub most: u64,
    /// Most messages, up to [`BROWSE_PAGE_MESSAGES`].
    pub messages: u32,
    /// Most bytes of each body. Another shard or node sends at most [`BROWSE_BODY_BYTES`].
    pub body_bytes: u32,
    /// Bytes of each body that are left out before them.
    pub body_start: u32,
    /// The state of the messages to list. `None`: any.
    pub state: Option<BrowsedState>,
    /// List only messages that do not expire up to this wall clock of the queue in milliseconds, and fail while a new leader
    /// has not applied its log: the copies are for a client that browses. `None`: list expired messages too.
    pub unexpired_at: Option<u64>,
}

impl BrowseRequest {
    /// Returns true if messages of this state are listed.
    pub(crate) fn lists(&self, state: BrowsedState) -> bool {
        self.state.is_none_or(|wanted| wanted == state)
    }

    /// Returns true if messages are listed that expire at this wall clock in milliseconds (0: never).
    pub(crate) fn lists_expiry(&self, expires: u64) -> bool {
        expires == 0 || self.unexpired_at.is_none_or(|now| expires > now)
    }
}

/// The state of a message in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrowsedState {
    /// It waits for a consumer.
    Ready,
    /// It was delivered and is not settled.
    Unacknowledged,
    /// It becomes ready later.
    Delayed,
}

/// A message in a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct BrowsedMessage {
    /// Its number and where it is.
    pub at: BrowsePosition,
    /// Its state.
    pub state: BrowsedState,
    /// When a delayed message becomes ready, in milliseconds since 1970, by the clock of the queue.
    pub due_at: Option<u64>,
    /// It was delivered before. For an unacknowledged message: before the current delivery.
    pub redelivered: bool,
    /// Failed deliveries. `None`: the queue does not count them.
    pub failed: Option<u32>,
    /// Deliveries that were not settled for good; 0 if the queue does not count them.
    pub acquired: u32,
    /// Bytes of the whole body.
    pub body_len: u64,
    /// Bytes of the body that are left out before those of `message`.
    pub body_start: u32,
    /// The message, with a part of its body.
    pub message: Message,
}

/// A part of a listing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BrowsePage {
    /// The messages. There may be none although further ones follow.
    pub messages: Vec<BrowsedMessage>,
    /// Where the next page begins. `None`: there are no further messages.
    pub next: Option<BrowsePosition>,
    /// Messages that are published after this page was read have higher numbers. `None`: an older version has read it.
    pub last_number: Option<u64>,
}

/// Collects the messages of a page.
pub(crate) struct PageBuilder {
    page: BrowsePage,
    limit: usize,
    body_bytes: usize,
    body_start: u32,
    bytes: usize,
}

impl PageBuilder {
    /// `limit`: most messages.
    pub(crate) fn new(request: &BrowseRequest, limit: usize) -> PageBuilder {
        PageBuilder {
            page: BrowsePage::default(),
            limit,
            body_bytes: request.body_bytes as usize,
            body_start: request.body_start,
            bytes: 0,
        }
    }

    /// Most messages of the page.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns true if the page takes no further message.
    pub(crate) fn is_full(&self) -> bool {
        self.page.messages.len() >= self.limit || self.bytes >= BROWSE_PAGE_BYTES
    }

    /// Adds a message; its body is cut off here.
    pub(crate) fn push(&mut self, mut browsed: BrowsedMessage) {
        self.bytes += browsed.message.as_bytes().len();
        browsed.body_len = browsed.message.body_len() as u64;
        browsed.body_start = self.body_start;
        let part = match self.body_start {
            0 => browsed.message.shortened(self.body_bytes),
            start => (browsed.message).with_body_part(start as usize, self.body_bytes),
        };
        if let Ok(part) = part {
            browsed.message = part;
            self.page.messages.push(browsed);
        }
    }

    pub(crate) fn finish(self, next: Option<BrowsePosition>, last_number: u64) -> BrowsePage {
        BrowsePage {
            next,
            last_number: Some(last_number),
            ..self.page
        }
    }
}

/// Most messages of the page that answers a request; at least one.
pub(crate) fn page_limit(request: &BrowseRequest) -> usize {
    request.messages.clamp(1, BROWSE_PAGE_MESSAGES) as usize
}
