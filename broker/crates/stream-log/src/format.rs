//! On-disk formats of segment, index and seal files. Chunks: [`crate::ChunkHeader`].
//!
//! A segment file is `OSIL`, the version (4 bytes), and chunks. Its index file is `OSII`, the version (4), and a record
//! for each chunk. Both formats are those of osiris; integers are big-endian.
//!
//! An index record is the first offset (8), the timestamp (8), the epoch (8), the position of the chunk in the segment
//! (4) and the kind of the chunk (1). An index is a cache: it has no checksum, and a reader verifies the chunk that
//! a record points to.
//!
//! A seal file states that its segment is complete and durable: `PHORNSSL`, the version (1), a [`Seal`], and the CRC-32
//! of everything before (4).

use crate::chunk::{ChunkHeader, ChunkKind};
use bytes::{BufMut, Bytes, BytesMut};
use ids::QueueId;
use wire::{DecodeCause, DecodeError, Reader, Wire, wire_struct};

/// Length of the header of a segment file and of an index file in bytes.
pub(crate) const FILE_HEADER_BYTES: u64 = 8;
/// Length of an index record in bytes.
pub(crate) const INDEX_RECORD_BYTES: usize = 29;
/// Version of the segment and index formats.
pub(crate) const VERSION: u32 = 1;
/// Most bytes of a seal file.
pub(crate) const MAX_SEAL_BYTES: u64 = 16 << 20;

const SEGMENT_MAGIC: [u8; 4] = *b"OSIL";
const INDEX_MAGIC: [u8; 4] = *b"OSII";
const SEAL_MAGIC: [u8; 8] = *b"PHORNSSL";
const SEAL_VERSION: u8 = 1;

/// The two kinds of files with a header of [`FILE_HEADER_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment,
    Index,
}

/// Why a file header was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileHeaderFault {
    Newer(u32),
    Invalid,
}

impl FileKind {
    fn magic(self) -> [u8; 4] {
        match self {
            FileKind::Segment => SEGMENT_MAGIC,
            FileKind::Index => INDEX_MAGIC,
        }
    }

    pub(crate) fn header(self) -> [u8; FILE_HEADER_BYTES as usize] {
        let mut header = [0; FILE_HEADER_BYTES as usize];
        header[..4].copy_from_slice(&self.magic());
        header[4..].copy_from_slice(&VERSION.to_be_bytes());
        header
    }

    pub(crate) fn check_header(self, bytes: &[u8]) -> Result<(), FileHeaderFault> {
        let Some((magic, rest)) = bytes.split_first_chunk::<4>() else {
            return Err(FileHeaderFault::Invalid);
        };
        let version = rest.first_chunk::<4>().map(|v| u32::from_be_bytes(*v));
        match version {
            Some(VERSION) if *magic == self.magic() => Ok(()),
            Some(newer) if *magic == self.magic() && newer > VERSION => {
                Err(FileHeaderFault::Newer(newer))
            }
            _ => Err(FileHeaderFault::Invalid),
        }
    }
}

/// A record of an index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexRecord {
    pub first_offset: u64,
    pub timestamp: i64,
    pub epoch: u64,
    pub position: u32,
    pub kind: u8,
}

impl IndexRecord {
    pub(crate) fn new(header: &ChunkHeader, position: u32) -> IndexRecord {
        IndexRecord {
            first_offset: header.first_offset,
            timestamp: header.timestamp,
            epoch: header.epoch,
            position,
            kind: header.kind.number(),
        }
    }

    pub(crate) fn put(&self, out: &mut impl BufMut) {
        out.put_u64(self.first_offset);
        out.put_i64(self.timestamp);
        out.put_u64(self.epoch);
        out.put_u32(self.position);
        out.put_u8(self.kind);
    }

    pub(crate) fn decode(bytes: &[u8; INDEX_RECORD_BYTES]) -> IndexRecord {
        let number = |at: usize, len: usize| {
            let bytes = bytes.iter().skip(at).take(len);
            bytes.fold(0_u64, |n, b| n << 8 | u64::from(*b))
        };
        IndexRecord {
            first_offset: number(0, 8),
            timestamp: number(8, 8) as i64,
            epoch: number(16, 8),
            position: number(24, 4) as u32,
            kind: number(28, 1) as u8,
        }
    }

    pub(crate) fn has_messages(&self) -> bool {
        ChunkKind::from_number(self.kind) == Some(ChunkKind::Messages)
    }
}

/// The first offset of an epoch in a log or segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: u64,
    /// First offset of its first chunk.
    pub first_offset: u64,
}

wire_struct!(EpochStart {
    epoch: u64,
    first_offset: u64
});

/// The facts about a complete segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The stream.
    pub stream: QueueId,
    /// First offset of the segment.
    pub first_offset: u64,
    /// Offset after its last record.
    pub next_offset: u64,
    /// Length of the segment file in bytes.
    pub bytes: u64,
    /// CRC-32 of the segment file.
    pub crc: u32,
    /// Number of chunks, at least 1.
    pub chunks: u32,
    /// Timestamp of the first chunk.
    pub first_timestamp: i64,
    /// Timestamp of the last chunk.
    pub last_timestamp: i64,
    /// Epochs of the chunks, ascending; at least one.
    pub epochs: Vec<EpochStart>,
}

wire_struct!(Seal {
    stream: QueueId,
    first_offset: u64,
    next_offset: u64,
    bytes: u64,
    crc: u32,
    chunks: u32,
    first_timestamp: i64,
    last_timestamp: i64,
    epochs: Vec<EpochStart>,
});

impl Seal {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(&SEAL_MAGIC);
        out.put_u8(SEAL_VERSION);
        self.put(&mut out);
        let crc = crc32fast::hash(&out);
        out.put_u32(crc);
        out.freeze()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Seal, DecodeError> {
        let mut from = Reader::new("segment seal", bytes);
        if from.array::<8>()? != SEAL_MAGIC {
            return Err(from.error(DecodeCause::Damaged("magic number")));
        }
        // Checked before the checksum, which a newer format may keep elsewhere.
        let version = from.u8()?;
        if version > SEAL_VERSION {
            return Err(from.error(DecodeCause::Version(version)));
        }
        let (covered, crc) = bytes
            .split_last_chunk::<4>()
            .ok_or_else(|| from.error(DecodeCause::Short))?;
        if version != SEAL_VERSION || crc32fast::hash(covered).to_be_bytes() != *crc {
            return Err(from.error(DecodeCause::Damaged("checksum")));
        }
        let seal: Seal = from.get()?;
        from.u32_at_end()?;
        let is_consistent = seal.first_offset < seal.next_offset
            && seal.chunks > 0
            && seal.bytes > FILE_HEADER_BYTES
            && seal.epochs.first().map(|e| e.first_offset) == Some(seal.first_offset)
            && seal
                .epochs
                .is_sorted_by(|a, b| a.epoch < b.epoch && a.first_offset < b.first_offset);
        match is_consistent {
            true => Ok(seal),
            false => Err(from.error(DecodeCause::Damaged("field"))),
        }
    }
}

trait ChecksumAtEnd {
    fn u32_at_end(&mut self) -> Result<(), DecodeError>;
}

impl ChecksumAtEnd for Reader<'_> {
    /// Skips the checksum, which must be the end.
    fn u32_at_end(&mut self) -> Result<(), DecodeError> {
        self.array::<4>()?;
        self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> Seal {
        let epoch = |epoch, first_offset| EpochStart {
            epoch,
            first_offset,
        };
        Seal {
            stream: QueueId(7),
            first_offset: 100,
            next_offset: 200,
            bytes: 5000,
            crc: 0x0102_0304,
            chunks: 12,
            first_timestamp: -5,
            last_timestamp: 1_700_000_000_000,
            epochs: vec![epoch(3, 100), epoch(9, 150)],
        }
    }

    #[test]
    fn every_changed_or_missing_byte_of_a_seal_is_found() {
        let good = seal().encode();
        assert_eq!(Seal::decode(&good), Ok(seal()));
        for at in 0..good.len() {
            for mask in 1..=u8::MAX {
                let mut bad = good.to_vec();
                bad[at] ^= mask;
                assert!(
                    Seal::decode(&bad).is_err(),
                    "byte {at} changed by {mask:#x}"
                );
            }
            assert!(Seal::decode(&good[..at]).is_err(), "cut at {at}");
        }
        let longer = [&good[..], b"x"].concat();
        assert!(Seal::decode(&longer).is_err());
    }

    #[test]
    fn seal_with_inconsistent_fields_is_refused() {
        let changes: [fn(&mut Seal); 5] = [
            |s| s.next_offset = 100,
            |s| s.chunks = 0,
            |s| s.epochs.clear(),
            |s| s.epochs[0].first_offset = 99,
            |s| s.epochs[1].epoch = 3,
        ];
        for change in changes {
            let mut bad = seal();
            change(&mut bad);
            assert!(Seal::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn file_headers_state_kind_and_version() {
        for (kind, other) in [
            (FileKind::Segment, FileKind::Index),
            (FileKind::Index, FileKind::Segment),
        ] {
            let header = kind.header();
            assert_eq!(kind.check_header(&header), Ok(()));
            assert_eq!(other.check_header(&header), Err(FileHeaderFault::Invalid));
            let mut newer = header;
            newer[7] = 2;
            assert_eq!(kind.check_header(&newer), Err(FileHeaderFault::Newer(2)));
            newer[7] = 0;
            assert_eq!(kind.check_header(&newer), Err(FileHeaderFault::Invalid));
            assert_eq!(
                kind.check_header(&header[..7]),
                Err(FileHeaderFault::Invalid)
            );
        }
    }

    #[test]
    fn index_records_round_trip() {
        let record = IndexRecord {
            first_offset: 1,
            timestamp: -2,
            epoch: 3,
            position: 4,
            kind: 0,
        };
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        let bytes: [u8; INDEX_RECORD_BYTES] = bytes.try_into().expect("29 bytes");
        assert_eq!(IndexRecord::decode(&bytes), record);
        assert!(record.has_messages());
    }
}
