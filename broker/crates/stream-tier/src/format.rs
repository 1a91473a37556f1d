//! Formats of manifests and segment indexes.
//!
//! A manifest is `PHORNSTM`, the version (1), a [`Manifest`], and the CRC-32 of everything before (4). An index of a
//! segment is the same with `PHORNSTI` and a [`SegmentIndex`]. Integers are big-endian. A part of a segment is chunks one
//! after another, as in segment files.

use bytes::{BufMut, Bytes, BytesMut};
use ids::QueueId;
use wire::{DecodeCause, DecodeError, Reader, Wire, wire_struct};

/// Most segments of a stream in the store. Beyond it nothing more of the stream is uploaded.
pub const MAX_SEGMENTS: usize = 65_536;
/// Most bytes of a manifest.
pub const MAX_MANIFEST_BYTES: u64 = 8 << 20;
/// Most bytes of the index of a segment.
pub const MAX_INDEX_BYTES: u64 = 8 << 20;

const MANIFEST_MAGIC: [u8; 8] = *b"PHORNSTM";
const INDEX_MAGIC: [u8; 8] = *b"PHORNSTI";
const VERSION: u8 = 1;

/// The identity of a manifest. The greatest one of a stream counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestId {
    /// Epoch of the leader that wrote it.
    pub epoch: u64,
    /// Number within the epoch, from 1.
    pub version: u64,
}

wire_struct!(ManifestId {
    epoch: u64,
    version: u64
});

/// A segment in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// First offset.
    pub first_offset: u64,
    /// Offset after the last record.
    pub next_offset: u64,
    /// Epoch of the leader that uploaded it.
    pub epoch: u64,
    /// Number of the upload within the epoch. With the epoch it makes the names of the objects unique.
    pub attempt: u64,
    /// Length of the segment file in bytes.
    pub bytes: u64,
    /// Number of parts.
    pub parts: u32,
    /// Length of the index in bytes.
    pub index_bytes: u32,
    /// CRC-32 of the index.
    pub index_crc: u32,
    /// Timestamp of the first chunk, in milliseconds since the Unix epoch.
    pub first_timestamp: i64,
    /// Timestamp of the last chunk, in milliseconds since the Unix epoch.
    pub last_timestamp: i64,
}

wire_struct!(SegmentEntry {
    first_offset: u64,
    next_offset: u64,
    epoch: u64,
    attempt: u64,
    bytes: u64,
    parts: u32,
    index_bytes: u32,
    index_crc: u32,
    first_timestamp: i64,
    last_timestamp: i64,
});

/// The segments of a stream that are in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The stream.
    pub stream: QueueId,
    /// Its identity.
    pub id: ManifestId,
    /// The greatest manifest of another epoch whose segments it has, unless retention deleted them. A greater one that is
    /// below `id` was published at the same time, and has to be merged.
    pub known: ManifestId,
    /// Ascending by offset; they do not overlap. Retention can leave gaps between them.
    pub segments: Vec<SegmentEntry>,
}

wire_struct!(Manifest {
    stream: QueueId,
    id: ManifestId,
    known: ManifestId,
    segments: Vec<SegmentEntry>,
});

/// A part of a segment in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartEntry {
    /// Offset of its first record.
    pub first_offset: u64,
    /// Timestamp of its first chunk, in milliseconds since the Unix epoch.
    pub first_timestamp: i64,
    /// Length in bytes.
    pub bytes: u32,
    /// CRC-32 of the part.
    pub crc: u32,
}

wire_struct!(PartEntry {
    first_offset: u64,
    first_timestamp: i64,
    bytes: u32,
    crc: u32,
});

/// The parts of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIndex {
    /// The stream.
    pub stream: QueueId,
    /// First offset of the segment.
    pub first_offset: u64,
    /// Offset after the last record of the segment.
    pub next_offset: u64,
    /// Ascending by offset, at least one.
    pub parts: Vec<PartEntry>,
}

wire_struct!(SegmentIndex {
    stream: QueueId,
    first_offset: u64,
    next_offset: u64,
    parts: Vec<PartEntry>,
});

fn encode(magic: [u8; 8], value: &impl Wire) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&magic);
    out.put_u8(VERSION);
    value.put(&mut out);
    let crc = crc32fast::hash(&out);
    out.put_u32(crc);
    out.freeze()
}

fn decode<T: Wire>(
    format: &'static str,
    magic: [u8; 8],
    bytes: &[u8],
    is_consistent: impl Fn(&T) -> bool,
) -> Result<T, DecodeError> {
    let mut from = Reader::new(format, bytes);
    if from.array::<8>()? != magic {
        return Err(from.error(DecodeCause::Damaged("magic number")));
    }
    // Checked before the checksum, which a newer format may keep elsewhere.
    let version = from.u8()?;
    if version > VERSION {
        return Err(from.error(DecodeCause::Version(version)));
    }
    let (covered, crc) = bytes
        .split_last_chunk::<4>()
        .ok_or_else(|| from.error(DecodeCause::Short))?;
    if version != VERSION || crc32fast::hash(covered).to_be_bytes() != *crc {
        return Err(from.error(DecodeCause::Damaged("checksum")));
    }
    let value: T = from.get()?;
    from.array::<4>()?;
    from.end()?;
    match is_consistent(&value) {
        true => Ok(value),
        false => Err(from.error(DecodeCause::Damaged("field"))),
    }
}

impl Manifest {
    /// Inserts a segment at its place. One with the same first offset is replaced if `replaces`; others that overlap stay.
    pub(crate) fn insert(&mut self, entry: &SegmentEntry, replaces: bool) {
        let segments = &mut self.segments;
        let at = segments.partition_point(|s| s.next_offset <= entry.first_offset);
        match segments.get_mut(at) {
            Some(same) if same.first_offset == entry.first_offset => {
                if replaces {
                    *same = entry.clone();
                }
            }
            Some(other) if other.first_offset < entry.next_offset => {}
            _ => segments.insert(at, entry.clone()),
        }
    }

    /// Adds the segments of a manifest of another leader.
    pub(crate) fn merge(&mut self, other: &Manifest) {
        for entry in &other.segments {
            self.insert(entry, false);
        }
    }

    /// The encoding.
    pub fn encode(&self) -> Bytes {
        encode(MANIFEST_MAGIC, self)
    }

    /// Decodes a manifest.
    ///
    /// # Errors
    ///
    /// If it is damaged or a newer version wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, DecodeError> {
        decode(
            "manifest of a tiered stream",
            MANIFEST_MAGIC,
            bytes,
            |m: &Manifest| {
                let is_valid = |s: &SegmentEntry| s.first_offset < s.next_offset && s.parts > 0;
                m.segments.len() <= MAX_SEGMENTS
                    && m.segments.iter().all(is_valid)
                    && m.segments
                        .is_sorted_by(|a, b| a.next_offset <= b.first_offset)
            },
        )
    }
}

impl SegmentIndex {
    /// The encoding.
    pub fn encode(&self) -> Bytes {
        encode(INDEX_MAGIC, self)
    }

    /// Decodes an index.
    ///
    /// # Errors
    ///
    /// If it is damaged or a newer version wrote it.
    pub fn decode(bytes: &[u8]) -> Result<SegmentIndex, DecodeError> {
        decode(
            "index of a tiered segment",
            INDEX_MAGIC,
            bytes,
            |i: &SegmentIndex| {
                i.parts.first().map(|p| p.first_offset) == Some(i.first_offset)
                    && i.parts.is_sorted_by(|a, b| a.first_offset < b.first_offset)
                    && i.parts
                        .last()
                        .is_some_and(|p| p.first_offset < i.next_offset)
            },
        )
    }
}
