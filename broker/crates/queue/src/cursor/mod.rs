//! Cursor consumers: non-destructive reading of a log-structured queue by offset, and batches of publishes.
//!
//! Streams are such queues. Checkout consumers take messages from a queue and settle them; a cursor only has a position.
//! Any replica that has the committed messages can serve a cursor, so it is not bound to the leader.
//!
//! [`CursorRequest`] and [`CursorEvent`] travel between a session's side ([`CursorClient`]) and a replica
//! ([`CursorSource`]). Either may be lost with a connection between nodes. Requests are therefore idempotent: credit is a
//! total, and a batch names the offset that it follows. The client notices a gap, and attaches again at the offset that
//! it expects, at the same or at another replica.

mod client;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

pub use client::{CursorClient, CursorNotice, CursorSend};

use crate::{ConsumerId, Name, SessionId};
use bytes::Bytes;
use env::WallTime;
use message::Table;

/// Where a new cursor starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorStart {
    /// At the oldest message that is retained.
    First,
    /// At the newest batch.
    Last,
    /// After the newest message.
    Next,
    /// At this offset; at the oldest message if that is newer.
    Offset(u64),
    /// At the oldest batch that was published at this time or later.
    Timestamp(WallTime),
}

/// A new cursor.
#[derive(Clone, Debug, PartialEq)]
pub struct CursorSpec {
    /// The consumer tag (AMQP) or subscription id, for listings.
    pub tag: Name,
    /// The channel or link of the cursor, for listings.
    pub channel: u16,
    /// The position of the first batch.
    pub start: CursorStart,
    /// Arguments of the consumer, such as filters.
    pub arguments: Table,
}

/// A request of a session to a replica.
#[derive(Clone, Debug, PartialEq)]
pub enum CursorRequest {
    /// Starts a cursor, or replaces the one with the same id.
    Attach {
        /// The number of the cursor within its session.
        cursor: ConsumerId,
        /// Numbers the attachments of a cursor. Events carry it, so that late events of an earlier one are ignored.
        attachment: u32,
        /// The cursor.
        spec: CursorSpec,
        /// As in [`CursorRequest::Credit`].
        total: u64,
    },
    /// Sets the number of batches that may be sent in all since the attachment.
    Credit {
        /// The cursor.
        cursor: ConsumerId,
        /// The attachment.
        attachment: u32,
        /// Batches in all. Never decreases.
        total: u64,
        /// Answer with [`CursorEvent::Attached`], after all batches that were sent before.
        probe: bool,
    },
    /// Ends a cursor.
    Detach {
        /// The cursor.
        cursor: ConsumerId,
    },
}

/// Consecutive messages of the log, in the log's own encoding, which clients of the stream protocol get unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageBatch {
    /// The offset that the cursor had reached. Messages between it and `first` were filtered out or are no longer
    /// retained.
    pub from: u64,
    /// The offset of the first message.
    pub first: u64,
    /// Number of messages.
    pub count: u32,
    /// When the leader received the batch.
    pub received: WallTime,
    /// The encoded messages.
    pub bytes: Bytes,
}

impl MessageBatch {
    /// The offset after the last message.
    pub fn next(&self) -> u64 {
        self.first.saturating_add(self.count.into())
    }
}

/// An event of a replica for a session.
#[derive(Clone, Debug, PartialEq)]
pub enum CursorEvent {
    /// The cursor was started, or a probe is answered: it has this position.
    Attached {
        /// The cursor.
        cursor: ConsumerId,
        /// The attachment.
        attachment: u32,
        /// The offset of the next message.
        next: u64,
    },
    /// Messages.
    Batch {
        /// The cursor.
        cursor: ConsumerId,
        /// The attachment.
        attachment: u32,
        /// The messages.
        batch: MessageBatch,
    },
    /// The replica does not serve the cursor (any more): it was deleted, fell behind or stops. The session attaches to
    /// another replica.
    Detached {
        /// The cursor.
        cursor: ConsumerId,
        /// The attachment.
        attachment: u32,
    },
    /// The cursor cannot be served by any replica: the queue is deleted, or an argument is invalid.
    Refused {
        /// The cursor.
        cursor: ConsumerId,
        /// The attachment.
        attachment: u32,
        /// The reason.
        text: String,
    },
}

impl CursorEvent {
    /// Bytes of the messages in this event.
    pub fn message_bytes(&self) -> usize {
        match self {
            CursorEvent::Batch { batch, .. } => batch.bytes.len(),
            CursorEvent::Attached { .. }
            | CursorEvent::Detached { .. }
            | CursorEvent::Refused { .. } => 0,
        }
    }
}

/// An event and the session that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressedCursorEvent {
    /// The session.
    pub session: SessionId,
    /// The event.
    pub event: CursorEvent,
}

/// A replica of a log-structured queue that serves cursors.
pub trait CursorSource {
    /// Handles a request.
    fn handle(
        &mut self,
        session: SessionId,
        request: CursorRequest,
        out: &mut Vec<AddressedCursorEvent>,
    );

    /// Sends batches as far as the credit of each cursor and the committed messages go. Sends at most `max_bytes` of
    /// messages in all, and at least one batch if there is one. Returns true if more can be sent at once.
    fn send_batches(&mut self, max_bytes: usize, out: &mut Vec<AddressedCursorEvent>) -> bool;

    /// Ends the cursors of a session.
    fn session_gone(&mut self, session: SessionId);
}

/// Messages that a client of the stream protocol publishes together, in that protocol's encoding: a stream stores most of
/// it unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamBatch {
    /// The name of the producer, if it wants its messages to be deduplicated: the stream drops messages whose publishing
    /// id is not higher than the highest one of the producer so far, and confirms them.
    pub producer: Option<Name>,
    /// Version of the publish command, which decides the encoding of `entries`: version 2 has filter values.
    pub version: u16,
    /// Number of entries. An entry is a message or a sub-batch of messages.
    pub count: u32,
    /// The entries, as in the body of the publish command. Not checked yet.
    pub entries: Bytes,
}

/// A request to the leader of a stream that the stream protocol and the management API have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRequest {
    /// Stores the offset of a consumer under its name. It has no answer; a later offset replaces an earlier one.
    StoreOffset {
        /// The name of the consumer.
        name: Name,
        /// The offset.
        offset: u64,
    },
    /// Asks for the offset that is stored under a name. The answer is [`StreamReply::Offset`].
    QueryOffset {
        /// The name of the consumer.
        name: Name,
    },
    /// Asks for the highest publishing id of a producer. The answer is [`StreamReply::PublishingId`].
    QueryPublisher {
        /// The name of the producer.
        name: Name,
    },
    /// Asks for the offset at which a cursor would start. The answer is [`StreamReply::Offset`].
    ResolveOffset {
        /// The position.
        start: CursorStart,
    },
    /// Asks for the ends of the log. The answer is [`StreamReply::Stats`].
    Stats,
    /// Asks for committed chunks with messages, for a backup. The answer is [`StreamReply::Chunks`]. It needs the feature
    /// flag `stream_backups`.
    ReadChunks {
        /// The offset of the first message that is wanted; that of the oldest message if it is not retained any more.
        from: u64,
        /// No chunk that ends above this offset is sent.
        end: u64,
    },
    /// Appends chunks of a backup with new offsets. The answer is the offset after the last one as [`StreamReply::Offset`],
    /// once all are committed. It needs the feature flag `stream_backups`.
    AppendChunks {
        /// The next offset of the log. The request is refused if the log ends elsewhere, so that no chunk is stored twice.
        at: u64,
        /// The chunks in their order, in the log's own encoding: at most [`MAX_APPEND_BYTES`], or one chunk. Not checked yet.
        chunks: Vec<Bytes>,
    },
}

impl StreamRequest {
    /// Returns false for a request that has no answer.
    pub fn has_answer(&self) -> bool {
        !matches!(self, StreamRequest::StoreOffset { .. })
    }
}

/// The answer to a [`StreamRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamReply {
    /// An offset; None if none is stored.
    Offset(Option<u64>),
    /// The highest publishing id; None if the stream does not know the producer.
    PublishingId(Option<u64>),
    /// The ends of the log.
    Stats(StreamStats),
    /// Chunks with messages.
    Chunks(StreamChunks),
}

/// Chunks of a stream, for a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamChunks {
    /// The offset at which the next request continues. It is that of the request if a repeated request got no chunks again.
    pub next: u64,
    /// The chunks in their order, in the log's own encoding. They are at most [`MAX_READ_BYTES`] or one chunk.
    pub chunks: Vec<Bytes>,
}

/// Most bytes of [`StreamChunks`] with more than one chunk.
pub const MAX_READ_BYTES: usize = 4 << 20;
/// Most bytes of [`StreamRequest::AppendChunks`] with more than one chunk.
pub const MAX_APPEND_BYTES: usize = 4 << 20;

/// The ends of a stream's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// The offset of the oldest retained message; None if the stream is empty.
    pub first_offset: Option<u64>,
    /// The offset of the first message of the newest committed chunk; None if nothing is committed.
    pub last_chunk: Option<u64>,
    /// The offset of the newest committed message; None if nothing is committed.
    pub committed: Option<u64>,
}
