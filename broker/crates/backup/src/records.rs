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

use bytes::{Buf as _, BufMut as _, Bytes};
use message::{MAX_BODY_BYTES, Message};

/// The media type of records in the HTTP API.
pub const MEDIA_TYPE: &str = "application/vnd.posthorn.messages";
/// The first bytes of a part.
const MAGIC: &[u8; 6] = b"PHMSGS";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = MAGIC.len() + 2;
/// Bytes of a record before its content.
const RECORD_HEADER_BYTES: usize = 8;
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

/// Why bytes are not records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// The first bytes are not those of this format.
    #[error("no records of messages: the first bytes are not 'PHMSGS'")]
    Magic,
    /// Written by a newer version.
    #[error("the records have version {0}, which is newer than this version of Posthorn reads")]
    Version(u16),
    /// A record is damaged.
    #[error("the record at offset {offset} {reason}")]
    Record {
        /// Offset of the record in the bytes.
        offset: usize,
        /// The reason.
        reason: String,
    },
}

/// Begins a part.
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(MAGIC);
    out.put_u16(VERSION);
}

/// Appends a record.
///
/// # Errors
///
/// The bytes of the content if they are more than [`MAX_CONTENT_BYTES`].
pub fn append(out: &mut Vec<u8>, stored: &StoredMessage) -> Result<(), usize> {
    let raw = stored.message.as_bytes();
    let len = FIXED_BYTES + raw.len();
    if len > MAX_CONTENT_BYTES {
        return Err(len);
    }
    out.reserve(RECORD_HEADER_BYTES + len);
    let start = out.len();
    out.put_u32(len as u32);
    out.put_u32(0);
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
    let written = out.get(start..).unwrap_or_default();
    let crc = checksum(written);
    if let Some(slot) = out.get_mut(start + 4..start + RECORD_HEADER_BYTES) {
        slot.copy_from_slice(&crc.to_be_bytes());
    }
    Ok(())
}

/// The checksum of a record: of its length and its content.
fn checksum(record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(record.get(..4).unwrap_or_default());
    hasher.update(record.get(RECORD_HEADER_BYTES..).unwrap_or_default());
    hasher.finalize()
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
pub struct Records {
    bytes: Bytes,
    at: usize,
}

impl Records {
    /// Checks the first bytes.
    ///
    /// # Errors
    ///
    /// [`RecordsError::Magic`] or [`RecordsError::Version`].
    pub fn new(bytes: Bytes) -> Result<Records, RecordsError> {
        let magic = bytes.get(..MAGIC.len());
        if magic != Some(&MAGIC[..]) {
            return Err(RecordsError::Magic);
        }
        let mut version = bytes
            .get(MAGIC.len()..HEADER_BYTES)
            .ok_or(RecordsError::Magic)?;
        match version.get_u16() {
            VERSION => Ok(Records {
                bytes,
                at: HEADER_BYTES,
            }),
            other => Err(RecordsError::Version(other)),
        }
    }

    fn read(&self) -> Result<Record, String> {
        let rest = self.bytes.slice(self.at..);
        let mut head = rest
            .get(..RECORD_HEADER_BYTES)
            .ok_or("ends within its header")?;
        let (len, crc) = (head.get_u32() as usize, head.get_u32());
        if !(FIXED_BYTES..=MAX_CONTENT_BYTES).contains(&len) {
            return Err(format!(
                "has a length of {len} bytes; the limits are {FIXED_BYTES} and {MAX_CONTENT_BYTES}"
            ));
        }
        let end = RECORD_HEADER_BYTES + len;
        if rest.len() < end {
            return Err(format!(
                "has a length of {len} bytes, and only {} follow",
                rest.len() - RECORD_HEADER_BYTES
            ));
        }
        let raw = rest.slice(..end);
        if checksum(&raw) != crc {
            return Err("has a wrong checksum".to_owned());
        }
        let mut content = raw.slice(RECORD_HEADER_BYTES..);
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
        Ok(Record {
            offset: self.at,
            stored: StoredMessage {
                state,
                redelivered: flags & REDELIVERED != 0,
                failed: (flags & COUNTS_FAILED != 0).then_some(failed),
                acquired,
                due_ms: (flags & HAS_DUE != 0).then_some(due_ms),
                message,
            },
            raw,
        })
    }
}

impl Iterator for Records {
    type Item = Result<Record, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let offset = self.at;
        match self.read() {
            Ok(record) => {
                self.at += record.raw.len();
                Some(Ok(record))
            }
            Err(reason) => {
                self.at = self.bytes.len();
                Some(Err(RecordsError::Record { offset, reason }))
            }
        }
    }
}
