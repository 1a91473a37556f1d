//! What a classic queue's files begin with: their format, and whose they are. Integers are big-endian.
//!
//! `magic 8 | version u8 | zeros 7 | queue u64 | number u64 | crc u32`
//!
//! Programs of before began with the first record; such files are still read.

use super::location::SegmentId;
use super::record::{be32, be64};
use bytes::{BufMut, BytesMut};
use ids::QueueId;

pub(super) const LEN: usize = 36;
const COVERED: usize = 32;
const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Segment,
    Acks,
}

impl FileKind {
    fn magic(self) -> [u8; 8] {
        match self {
            FileKind::Segment => *b"PHORNCLS",
            FileKind::Acks => *b"PHORNACK",
        }
    }
}

/// What was found at the front of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderCheck {
    /// Its records begin behind it.
    Whole,
    /// The same, but whose it is cannot be told.
    Damaged,
    /// None: the records begin at once, or what is there is damaged.
    Missing,
}

impl HeaderCheck {
    pub fn records_at(self) -> u64 {
        match self {
            HeaderCheck::Whole | HeaderCheck::Damaged => LEN as u64,
            HeaderCheck::Missing => 0,
        }
    }
}

pub(super) fn put(out: &mut BytesMut, kind: FileKind, queue: QueueId, number: SegmentId) {
    let start = out.len();
    out.put_slice(&kind.magic());
    out.put_u8(VERSION);
    out.put_bytes(0, 7);
    out.put_u64(queue.0);
    out.put_u64(number.value());
    let crc = crc32fast::hash(out.get(start..).unwrap_or_default());
    out.put_u32(crc);
}

/// The error says why the file must not be used at all.
pub(super) fn check(
    raw: &[u8],
    kind: FileKind,
    queue: QueueId,
    number: SegmentId,
) -> Result<HeaderCheck, String> {
    let Some(rest) = raw.strip_prefix(&kind.magic()) else {
        return Ok(HeaderCheck::Missing);
    };
    // Before the checksum: a newer format may keep it elsewhere.
    if let Some(version) = rest.first().filter(|v| **v > VERSION) {
        return Err(format!(
            "it has format version {version}, this program knows up to {VERSION}"
        ));
    }
    let covered = raw.get(..COVERED).map(crc32fast::hash);
    if covered.is_none() || covered != be32(raw, COVERED) {
        return Ok(HeaderCheck::Damaged);
    }
    let found = (be64(raw, 16), be64(raw, 24));
    if found != (Some(queue.0), Some(number.value())) {
        let (of, at) = (found.0.unwrap_or(0), found.1.unwrap_or(0));
        return Err(format!("it is file {at:08x} of queue {of:016x}"));
    }
    Ok(HeaderCheck::Whole)
}
