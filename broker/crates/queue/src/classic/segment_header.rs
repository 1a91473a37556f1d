//! The header of the files of a classic queue: their format, and the queue and segment that they belong to. Integers are
//! big-endian.
//!
//! `magic 8 | version u8 | zeros 7 | queue u64 | segment u64 | CRC-32`

use super::location::SegmentId;
use super::record::{CRC_LEN, checked, put_crc};
use bytes::BytesMut;
use ids::QueueId;
use wire::{Reader, Wire, wire_struct};

pub(super) const LEN: usize = COVERED + CRC_LEN;
const COVERED: usize = FileHeader::MIN_LEN + u64::MIN_LEN;
const VERSION: u8 = 1;

/// The first bytes of every file of a classic queue, without a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    magic: [u8; 8],
    version: u8,
    /// Written as zeros and not read.
    reserved: [u8; 7],
    queue: QueueId,
}

wire_struct!(FileHeader {
    magic: [u8; 8],
    version: u8,
    reserved: [u8; 7],
    queue: QueueId,
});

impl FileHeader {
    pub(super) fn new(magic: [u8; 8], version: u8, queue: QueueId) -> FileHeader {
        FileHeader {
            magic,
            version,
            reserved: [0; 7],
            queue,
        }
    }

    /// Reads a header. Returns true if it is of this format, version and queue.
    pub(super) fn matches(&self, from: &mut Reader<'_>) -> bool {
        from.get::<FileHeader>().is_ok_and(|found| {
            (found.magic, found.version, found.queue) == (self.magic, self.version, self.queue)
        })
    }
}

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

/// The state of the header of a file that may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderCheck {
    Valid,
    /// Cut off or damaged: the file may be another one.
    Damaged,
    /// The file is empty: the node ended after it had created the file.
    Empty,
}

pub(super) fn put(out: &mut BytesMut, kind: FileKind, queue: QueueId, number: SegmentId) {
    let start = out.len();
    FileHeader::new(kind.magic(), VERSION, queue).put(out);
    number.value().put(out);
    put_crc(out, start);
}

/// Checks the header of a file.
///
/// # Errors
///
/// The text says why the file must not be used: a newer version wrote it, or it belongs to another queue or segment.
pub(super) fn check(
    raw: &[u8],
    kind: FileKind,
    queue: QueueId,
    number: SegmentId,
) -> Result<HeaderCheck, String> {
    if raw.is_empty() {
        return Ok(HeaderCheck::Empty);
    }
    // Checked before the checksum, which a newer format may keep elsewhere.
    let version = raw.strip_prefix(&kind.magic()).and_then(<[u8]>::first);
    if let Some(version) = version.filter(|v| **v > VERSION) {
        return Err(format!(
            "it has format version {version}, this version of Posthorn reads up to {VERSION}"
        ));
    }
    let found = checked(raw, COVERED).and_then(|mut from| {
        let header: FileHeader = from.get().ok()?;
        Some((header, SegmentId::of(from.get().ok()?)))
    });
    match found {
        Some((header, _)) if header.magic != kind.magic() => Ok(HeaderCheck::Damaged),
        Some((header, found)) if (header.queue, found) != (queue, number) => Err(format!(
            "it is file {found:08x} of queue {:016x}",
            header.queue.0
        )),
        Some(_) => Ok(HeaderCheck::Valid),
        None => Ok(HeaderCheck::Damaged),
    }
}
