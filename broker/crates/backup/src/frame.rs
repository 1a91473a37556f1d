//! The frame of records of all kinds, with big-endian integers:
//!
//! ```text
//! magic (6 bytes) | version u16 | records
//! record: length u32 | crc u32 | content
//! ```
//! `length` is that of the content, and `crc` is the CRC-32 (IEEE 802.3) of the length and the content.

use bytes::{Buf as _, BufMut as _, Bytes};
use std::ops::RangeInclusive;

/// Bytes of the magic.
const MAGIC_BYTES: usize = 6;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = MAGIC_BYTES + 2;
/// Bytes of a record before its content.
const RECORD_HEADER_BYTES: usize = 8;

/// Why bytes are not records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// The first bytes are not those of this kind of records.
    #[error("the first bytes are not '{0}': these are other records, or none")]
    Magic(&'static str),
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
pub(crate) fn begin(out: &mut Vec<u8>, magic: &'static str, version: u16) {
    debug_assert_eq!(magic.len(), MAGIC_BYTES);
    out.extend_from_slice(magic.as_bytes());
    out.put_u16(version);
}

/// Appends a record with a content of `len` bytes, which `put` appends. Fails with `len` if it is more than `limit`.
pub(crate) fn append(
    out: &mut Vec<u8>,
    len: usize,
    limit: usize,
    put: impl FnOnce(&mut Vec<u8>),
) -> Result<(), usize> {
    if len > limit {
        return Err(len);
    }
    out.reserve(RECORD_HEADER_BYTES + len);
    let start = out.len();
    out.put_u32(len as u32);
    out.put_u32(0);
    put(out);
    let written = out.get(start..).unwrap_or_default();
    debug_assert_eq!(written.len(), RECORD_HEADER_BYTES + len);
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

/// Reads records in their order. Memory: none besides the part.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: Bytes,
    at: usize,
    limits: RangeInclusive<usize>,
}

impl Frames {
    /// `limits`: least and most bytes of a content.
    pub(crate) fn new(
        bytes: Bytes,
        magic: &'static str,
        version: u16,
        limits: RangeInclusive<usize>,
    ) -> Result<Frames, RecordsError> {
        if bytes.get(..MAGIC_BYTES) != Some(magic.as_bytes()) {
            return Err(RecordsError::Magic(magic));
        }
        let mut found = bytes
            .get(MAGIC_BYTES..HEADER_BYTES)
            .ok_or(RecordsError::Magic(magic))?;
        match found.get_u16() {
            found if found == version => Ok(Frames {
                bytes,
                at: HEADER_BYTES,
                limits,
            }),
            other => Err(RecordsError::Version(other)),
        }
    }

    fn raw(&self) -> Result<Bytes, String> {
        let rest = self.bytes.slice(self.at..);
        let mut head = rest
            .get(..RECORD_HEADER_BYTES)
            .ok_or("ends within its header")?;
        let (len, crc) = (head.get_u32() as usize, head.get_u32());
        if !self.limits.contains(&len) {
            let (least, most) = (self.limits.start(), self.limits.end());
            return Err(format!(
                "has a length of {len} bytes; the limits are {least} and {most}"
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
        match checksum(&raw) == crc {
            true => Ok(raw),
            false => Err("has a wrong checksum".to_owned()),
        }
    }

    /// Decodes the next record from its offset, the whole record and its content. After an error there is none.
    pub(crate) fn next_with<T>(
        &mut self,
        decode: impl FnOnce(usize, Bytes, Bytes) -> Result<T, String>,
    ) -> Option<Result<T, RecordsError>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let offset = self.at;
        let decoded = self.raw().and_then(|raw| {
            self.at += raw.len();
            let content = raw.slice(RECORD_HEADER_BYTES..);
            decode(offset, raw, content)
        });
        Some(decoded.map_err(|reason| {
            self.at = self.bytes.len();
            RecordsError::Record { offset, reason }
        }))
    }
}
