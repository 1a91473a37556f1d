//! Retained MQTT messages of a virtual host as records: `"PHRTND" | version u16 | records`. The frame of a record is that of
//! [`records`](crate::records). Its content is, with big-endian integers:
//!
//! ```text
//! flags u8 | remaining_ms u64 | length of the topic u16 | topic | message container
//! ```
//! Flags: 1 the message expires after `remaining_ms` (otherwise 0). The topic is UTF-8.

use crate::frame::{self, Frames, RecordsError};
use bytes::{Buf as _, BufMut as _, Bytes};
use message::Message;

/// The first bytes of a part.
const MAGIC: &str = "PHRTND";
/// Version of the format.
const VERSION: u16 = 1;
/// Bytes of a content without the topic and the message.
const FIXED_BYTES: usize = 11;
/// Most bytes of a message with its container: those of a change of the metadata.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Most bytes of the content of a record.
pub const MAX_CONTENT_BYTES: usize = FIXED_BYTES + u16::MAX as usize + MAX_MESSAGE_BYTES;

const EXPIRES: u8 = 1;

/// A retained message as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct RetainedMessage {
    /// Its topic.
    pub topic: String,
    /// The time until it expires, when it was read. `None`: it does not expire.
    pub remaining_ms: Option<u64>,
    /// The message.
    pub message: Message,
}

/// Begins a part.
pub fn begin(out: &mut Vec<u8>) {
    frame::begin(out, MAGIC, VERSION);
}

/// Appends a message.
///
/// # Errors
///
/// The bytes of the content if they are more than [`MAX_CONTENT_BYTES`], or those of the topic if they are more than 65,535.
pub fn append(out: &mut Vec<u8>, retained: &RetainedMessage) -> Result<(), usize> {
    let (topic, raw) = (retained.topic.as_bytes(), retained.message.as_bytes());
    let topic_len = u16::try_from(topic.len()).map_err(|_| topic.len())?;
    let len = FIXED_BYTES + topic.len() + raw.len();
    frame::append(out, len, MAX_CONTENT_BYTES, |out| {
        let expires = retained.remaining_ms.is_some();
        out.put_u8(if expires { EXPIRES } else { 0 });
        out.put_u64(retained.remaining_ms.unwrap_or(0));
        out.put_u16(topic_len);
        out.extend_from_slice(topic);
        out.extend_from_slice(raw);
    })
}

fn decode(mut content: Bytes) -> Result<RetainedMessage, String> {
    let expires = content.get_u8() & EXPIRES != 0;
    let remaining_ms = content.get_u64();
    let topic_len = usize::from(content.get_u16());
    if content.len() < topic_len {
        return Err("ends within its topic".to_owned());
    }
    let topic = content.split_to(topic_len);
    let topic = std::str::from_utf8(&topic).map_err(|_| "has a topic that is not UTF-8")?;
    let message = Message::decode(content).map_err(|error| format!("is invalid: {error}"))?;
    Ok(RetainedMessage {
        topic: topic.to_owned(),
        remaining_ms: expires.then_some(remaining_ms),
        message,
    })
}

/// A valid record of a part.
#[derive(Clone, Debug)]
pub struct RetainedRecord {
    /// Its offset in the part.
    pub offset: usize,
    /// The whole record.
    pub raw: Bytes,
    /// Its message, which shares the memory of the part.
    pub retained: RetainedMessage,
}

/// Reads the messages of a part in their order. It ends after the first error. Memory: none besides the part.
#[derive(Debug)]
pub struct RetainedRecords(Frames);

impl RetainedRecords {
    /// Checks the first bytes.
    ///
    /// # Errors
    ///
    /// [`RecordsError::Magic`] or [`RecordsError::Version`].
    pub fn new(bytes: Bytes) -> Result<RetainedRecords, RecordsError> {
        let limits = FIXED_BYTES..=MAX_CONTENT_BYTES;
        Ok(RetainedRecords(Frames::new(bytes, MAGIC, VERSION, limits)?))
    }
}

impl Iterator for RetainedRecords {
    type Item = Result<RetainedRecord, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_with(|offset, raw, content| {
            let retained = decode(content)?;
            Ok(RetainedRecord {
                offset,
                raw,
                retained,
            })
        })
    }
}
