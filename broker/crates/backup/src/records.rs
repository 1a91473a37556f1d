//! Messages as records, in parts of an archive and in the bodies of the HTTP API. Layout, with big-endian integers:
//!
//! ```text
//! "PHMSGS" | version u16 | records
//! record: length u32 | crc u32 | content
//! content: state u8 | flags u8 | failed u32 | acquired u32 | due_ms u64 | message container
//! ```
//! `length` is that of the content, and `crc` is the CRC-32 (IEEE 802.3) of the length and the content. Flags: 1 redelivered,
//! 2 the queue counts failed deliveries (otherwise `failed` is 0), 4 the message is due at `due_ms` (otherwise 0). The
//! message container is that of the crate `message`.

use crate::frame::{self, Frames};
use bytes::{Buf as _, BufMut as _, Bytes};
use message::{MAX_BODY_BYTES, Message};

pub use crate::frame::{HEADER_BYTES, RecordsError};

/// The media type of records in the HTTP API.
pub const MEDIA_TYPE: &str = "application/vnd.posthorn.messages";
/// The first bytes of a part.
const MAGIC: &str = "PHMSGS";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Bytes of a content before the message.
const FIXED_BYTES: usize = 18;
/// Most bytes of a message besides its body: properties, annotations and history.
const MAX_MESSAGE_HEAD_BYTES: usize = 16 << 20;
/// Most bytes of the content of a record.
pub const MAX_CONTENT_BYTES: usize = MAX_BODY_BYTES as usize + MAX_MESSAGE_HEAD_BYTES + FIXED_BYTES;

const REDELIVERED: u8 = 1;
const COUNTS_FAILED: u8 = 2;
const HAS_DUE: u8 = 4;

/// The state of a message in its queue when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageState {
    /// It waited for a consumer.
    Ready = 0,
    /// It was delivered and not settled.
    Unacknowledged = 1,
    /// It was to become ready later.
    Delayed = 2,
}

/// A message as it was read from its queue.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// Its state.
    pub state: MessageState,
    /// It was delivered before. For an unacknowledged message: before that delivery.
    pub redelivered: bool,
    /// Failed deliveries. `None`: the queue does not count them.
    pub failed: Option<u32>,
    /// Deliveries that were not settled for good; 0 if the queue does not count them.
    pub acquired: u32,
    /// When it becomes ready, in milliseconds since 1970. `None`: it is not delayed.
    pub due_ms: Option<u64>,
    /// The message.
    pub message: Message,
}

/// Begins a part.
pub fn begin(out: &mut Vec<u8>) {
    frame::begin(out, MAGIC, VERSION);
}

/// Appends a record.
///
/// # Errors
///
/// The bytes of the content if they are more than [`MAX_CONTENT_BYTES`].
pub fn append(out: &mut Vec<u8>, stored: &StoredMessage) -> Result<(), usize> {
    let raw = stored.message.as_bytes();
    frame::append(out, FIXED_BYTES + raw.len(), MAX_CONTENT_BYTES, |out| {
        out.put_u8(stored.state as u8);
        let mut flags = 0;
        for (is_set, flag) in [
            (stored.redelivered, REDELIVERED),
            (stored.failed.is_some(), COUNTS_FAILED),
            (stored.due_ms.is_some(), HAS_DUE),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        out.put_u8(flags);
        out.put_u32(stored.failed.unwrap_or(0));
        out.put_u32(stored.acquired);
        out.put_u64(stored.due_ms.unwrap_or(0));
        out.extend_from_slice(raw);
    })
}

fn decode(mut content: Bytes) -> Result<StoredMessage, String> {
    let state = match content.get_u8() {
        0 => MessageState::Ready,
        1 => MessageState::Unacknowledged,
        2 => MessageState::Delayed,
        other => return Err(format!("has the unknown state {other}")),
    };
    let flags = content.get_u8();
    let (failed, acquired) = (content.get_u32(), content.get_u32());
    let due_ms = content.get_u64();
    let message = Message::decode(content).map_err(|error| format!("is invalid: {error}"))?;
    Ok(StoredMessage {
        state,
        redelivered: flags & REDELIVERED != 0,
        failed: (flags & COUNTS_FAILED != 0).then_some(failed),
        acquired,
        due_ms: (flags & HAS_DUE != 0).then_some(due_ms),
        message,
    })
}

/// A valid record of a part.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its offset in the part.
    pub offset: usize,
    /// The whole record.
    pub raw: Bytes,
    /// Its message, which shares the memory of the part.
    pub stored: StoredMessage,
}

/// Reads the records of a part in their order. It ends after the first error. Memory: none besides the part.
#[derive(Debug)]
pub struct Records(Frames);

impl Records {
    /// Checks the first bytes.
    ///
    /// # Errors
    ///
    /// [`RecordsError::Magic`] or [`RecordsError::Version`].
    pub fn new(bytes: Bytes) -> Result<Records, RecordsError> {
        let limits = FIXED_BYTES..=MAX_CONTENT_BYTES;
        Ok(Records(Frames::new(bytes, MAGIC, VERSION, limits)?))
    }
}

impl Iterator for Records {
    type Item = Result<Record, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_with(|offset, raw, content| {
            let stored = decode(content)?;
            Ok(Record {
                offset,
                raw,
                stored,
            })
        })
    }
}
