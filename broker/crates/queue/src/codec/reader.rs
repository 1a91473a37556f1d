//! Checked reading of primitives, and their writers.

use super::CodecError;
use bytes::{BufMut, Bytes, BytesMut};
use message::Message;
use std::sync::Arc;

/// Reads a frame front to back; what it hands out shares the frame's buffer.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    pub fn new(bytes: Bytes) -> Reader {
        Reader { bytes, at: 0 }
    }

    /// A reader that starts at `at`; one past the end reads nothing.
    pub fn starting_at(bytes: Bytes, at: usize) -> Reader {
        Reader { bytes, at }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    fn slice(&mut self, n: usize) -> Result<&[u8], CodecError> {
        let end = self.at.checked_add(n).ok_or(CodecError::Short)?;
        let part = self.bytes.get(self.at..end).ok_or(CodecError::Short)?;
        self.at = end;
        Ok(part)
    }

    /// The next `n` bytes, by reference to the frame.
    pub fn take(&mut self, n: usize) -> Result<Bytes, CodecError> {
        let start = self.at;
        self.slice(n)?;
        Ok(self.bytes.slice(start..self.at))
    }

    pub fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.fixed::<1>()?[0])
    }

    pub fn bool(&mut self) -> Result<bool, CodecError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(CodecError::Kind {
                what: "boolean",
                found,
            }),
        }
    }

    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let mut out = [0; N];
        out.copy_from_slice(self.slice(N)?);
        Ok(out)
    }

    pub fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    pub fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_be_bytes(self.fixed()?))
    }

    pub fn varint(&mut self) -> Result<u64, CodecError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(CodecError::Range);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::Range)
    }

    pub fn varint32(&mut self) -> Result<u32, CodecError> {
        u32::try_from(self.varint()?).map_err(|_| CodecError::Range)
    }

    /// Zigzag varint.
    pub fn signed(&mut self) -> Result<i64, CodecError> {
        let raw = self.varint()?;
        Ok(((raw >> 1) as i64) ^ -((raw & 1) as i64))
    }

    pub fn optional(&mut self) -> Result<Option<u64>, CodecError> {
        Ok(if self.bool()? {
            Some(self.varint()?)
        } else {
            None
        })
    }

    /// A count of items that take at least `each` bytes: more than can be there is an error, so that callers may
    /// allocate for it.
    pub fn count(&mut self, each: usize) -> Result<usize, CodecError> {
        let count = usize::try_from(self.varint()?).map_err(|_| CodecError::Range)?;
        match count.checked_mul(each.max(1)) {
            Some(least) if least <= self.remaining() => Ok(count),
            _ => Err(CodecError::Short),
        }
    }

    /// Varint length and bytes.
    pub fn bytes(&mut self) -> Result<Bytes, CodecError> {
        let len = self.count(1)?;
        self.take(len)
    }

    pub fn text(&mut self) -> Result<Arc<str>, CodecError> {
        let len = self.count(1)?;
        std::str::from_utf8(self.slice(len)?)
            .map(Arc::from)
            .map_err(|_| CodecError::Utf8)
    }

    /// `u32` length and a message container.
    pub fn message(&mut self) -> Result<Message, CodecError> {
        let len = self.u32()? as usize;
        Ok(Message::decode(self.take(len)?)?)
    }
}

pub(crate) fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub(crate) fn put_signed(out: &mut BytesMut, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(crate) fn put_optional(out: &mut BytesMut, value: Option<u64>) {
    out.put_u8(value.is_some().into());
    if let Some(value) = value {
        put_varint(out, value);
    }
}

pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// A message larger than its length field can say cannot come out of the container's builder, which has the same limit
/// on its parts; one that did would be cut off here and refused by every reader.
pub(crate) fn put_message(out: &mut BytesMut, message: &Message) {
    let raw = message.as_bytes();
    out.put_u32(u32::try_from(raw.len()).unwrap_or(u32::MAX));
    out.put_slice(raw);
}
