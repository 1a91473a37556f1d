//! The messages of a publish.

use crate::field::{Field, Reader};
use crate::{CommandKey, DecodeError, Reason};
use bytes::{BufMut, BytesMut};
use std::fmt;

const SUB_BATCH: u8 = 0x80;

/// The messages of a publish frame, which are read on demand.
#[derive(Clone, Copy)]
pub struct PublishedMessages<'a> {
    count: u32,
    bytes: &'a [u8],
    /// Version 2 has a filter value for each message.
    version: u16,
}

/// A message, or several that their publisher put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedMessage<'a> {
    /// Number of the message, unique for its publisher.
    pub publishing_id: u64,
    /// The filter value. Only version 2 of the command has filter values.
    pub filter: Option<&'a str>,
    /// The content.
    pub body: PublishedBody<'a>,
}

/// The content of a [`PublishedMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedBody<'a> {
    /// A message.
    Message(&'a [u8]),
    /// Several messages, possibly compressed.
    SubBatch {
        /// 0 none, 1 gzip, 2 Snappy, 3 LZ4, 4 Zstandard; at most 7.
        compression: u8,
        /// Number of messages.
        records: u16,
        /// Length before compression in bytes, as the publisher stated it.
        uncompressed_len: u32,
        /// The messages, compressed.
        data: &'a [u8],
    },
}

impl<'a> PublishedMessages<'a> {
    /// Encodes messages into `buffer`, for clients. Version 2 if a message has a filter value.
    pub fn encode(
        messages: &[PublishedMessage<'_>],
        buffer: &'a mut BytesMut,
    ) -> PublishedMessages<'a> {
        let has_filter = messages.iter().any(|message| message.filter.is_some());
        let version = if has_filter { 2 } else { 1 };
        for message in messages {
            message.put(version, buffer);
        }
        PublishedMessages {
            count: u32::try_from(messages.len()).unwrap_or(u32::MAX),
            bytes: buffer,
            version,
        }
    }

    /// Messages as they were encoded in a publish command of this version. They are not checked before they are read.
    pub fn from_parts(version: u16, count: u32, bytes: &'a [u8]) -> PublishedMessages<'a> {
        PublishedMessages {
            count,
            bytes,
            version,
        }
    }

    /// Number of messages, as the publisher stated it.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if there are no messages.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Version of the command, which decides the encoding.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The messages in the encoding of the command, not verified.
    pub fn encoded(&self) -> &'a [u8] {
        self.bytes
    }

    /// The messages in order. Ends after an error.
    pub fn iter(
        &self,
    ) -> impl Iterator<Item = Result<PublishedMessage<'a>, DecodeError>> + use<'a> {
        let mut left = self.count;
        let mut reader = Reader {
            rest: self.bytes,
            command: CommandKey::Publish,
            version: self.version,
            field: "message",
        };
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let message = PublishedMessage::get(&mut reader);
            let message = message.and_then(|message| match left {
                0 => reader.end().map(|()| message),
                _ => Ok(message),
            });
            if message.is_err() {
                left = 0;
            }
            Some(message)
        })
    }
}

impl fmt::Debug for PublishedMessages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for PublishedMessages<'_> {
    fn eq(&self, other: &PublishedMessages<'_>) -> bool {
        (self.count, self.version) == (other.count, other.version) && self.bytes == other.bytes
    }
}

impl<'a> Field<'a> for PublishedMessages<'a> {
    fn get(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        // A publishing id and a length; the filter value of version 2 has a length, too.
        let min_len = if from.version == 1 { 12 } else { 14 };
        let count = from.count(min_len, u32::MAX)?;
        if count == 0 {
            from.end()?;
        }
        Ok(PublishedMessages {
            count,
            bytes: std::mem::take(&mut from.rest),
            version: from.version,
        })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32(self.count);
        out.put_slice(self.bytes);
    }
}

impl<'a> PublishedMessage<'a> {
    fn get(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let publishing_id = from.named("publishing id")?;
        let filter = match from.version {
            1 => None,
            _ => Some(from.named("filter value")?).filter(|filter: &&str| !filter.is_empty()),
        };
        from.field = "message";
        let first = from.rest.first().copied();
        let body = match first.is_some_and(|first| first & SUB_BATCH != 0) {
            false => {
                let len = u32::get(from)?;
                PublishedBody::Message(from.take(len as usize)?)
            }
            true => {
                let compression = (u8::get(from)? >> 4) & 7;
                let (records, uncompressed_len) = (u16::get(from)?, u32::get(from)?);
                let len = u32::get(from)?;
                if records == 0 {
                    return Err(from.error(Reason::Undefined));
                }
                PublishedBody::SubBatch {
                    compression,
                    records,
                    uncompressed_len,
                    data: from.take(len as usize)?,
                }
            }
        };
        Ok(PublishedMessage {
            publishing_id,
            filter,
            body,
        })
    }

    fn put(&self, version: u16, out: &mut BytesMut) {
        out.put_u64(self.publishing_id);
        if version > 1 {
            match self.filter {
                Some(filter) => filter.put(out),
                None => out.put_i16(-1),
            }
        }
        match self.body {
            PublishedBody::Message(body) => {
                // A longer one does not fit into a frame.
                out.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX) & (u32::MAX >> 1));
                out.put_slice(body);
            }
            PublishedBody::SubBatch {
                compression,
                records,
                uncompressed_len,
                data,
            } => {
                out.put_u8(SUB_BATCH | (compression & 7) << 4);
                out.put_u16(records);
                out.put_u32(uncompressed_len);
                out.put_u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
                out.put_slice(data);
            }
        }
    }
}
