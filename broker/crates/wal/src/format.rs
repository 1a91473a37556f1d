//! On-disk format of a log file.
//!
//! A file is a header of [`HEADER_BYTES`] followed by records without padding:
//!
//! | bytes | |
//! |---|---|
//! | 4 | length of the body |
//! | 4 | CRC-32 over the file's nonce, the length, the next two fields and the body |
//! | 8 | sequence number, xor the file's nonce |
//! | 4 | durable distance: how many records before this one the newest durable record was at the time of writing |
//! | n | body: kind, group, fields |
//!
//! The newest record is followed by [`TERMINATOR`] zero bytes, which distinguish a clean end from a damaged one.
//! A complete file ends in a seal. Sequence numbers continue from file to file.
//!
//! The nonce is drawn for each file, so that neither leftovers in a recycled file nor bytes that a client put into
//! a message pass for a record of this file. The durable distance distinguishes a write torn by a power failure (no
//! record after the bad one was ever durable) from damage (a later record was written when the bad one was
//! already durable).

use crate::{Entry, GroupId, Record, RecordBody};
use bytes::Bytes;
use env::NodeId;
use env::planted::{self, Bug};

pub(crate) const MAGIC: [u8; 8] = *b"PHORNWAL";
pub(crate) const VERSION: u8 = 1;
/// The header has a page of its own, so that no append rewrites its page.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Bytes of a record before its body.
pub(crate) const RECORD_HEADER: usize = 20;
pub(crate) const TERMINATOR: u64 = 8;
pub(crate) const SEAL_BYTES: u64 = RECORD_HEADER as u64 + 1;
/// Bytes of an entry's body besides its data.
const ENTRY_OVERHEAD: usize = 1 + 8 + 8 + 8 + 1;

const ENTRY: u8 = 1;
const HARD_STATE: u8 = 2;
const CHECKPOINTED: u8 = 3;
const DELETED: u8 = 4;
const SEAL: u8 = 5;

/// The header of a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub node: NodeId,
    pub number: u64,
    pub first_sequence: u64,
    pub nonce: u64,
    /// Number of records at the beginning that repeat the newest state of every group. A file gets its name
    /// only after they are durable, so a file that ends among them is damaged. 0 means unknown: an older
    /// version wrote zeros here.
    pub repeated: u64,
    /// The directory had a manifest when the file was started. False in files of versions without manifests.
    pub has_manifest: bool,
}

/// Why a header was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Newer(u8),
    Bad(&'static str),
}

impl Header {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
        for field in [
            self.node.0,
            self.number,
            self.first_sequence,
            self.nonce,
            self.repeated,
            u64::from(self.has_manifest),
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.resize(start + HEADER_BYTES as usize - 4, 0);
        let crc = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let mut fields = FieldReader(bytes);
        if fields.array() != Some(MAGIC) {
            return Err(HeaderError::Bad("not a log file"));
        }
        // Checked before the checksum, which a newer format may keep elsewhere.
        let version: [u8; 8] = fields.array().unwrap_or_default();
        if version[0] > VERSION {
            return Err(HeaderError::Newer(version[0]));
        }
        let (covered, crc) = bytes
            .split_at_checked(HEADER_BYTES as usize - 4)
            .ok_or(HeaderError::Bad("header is truncated"))?;
        if version[0] != VERSION || crc != crc32fast::hash(covered).to_le_bytes() {
            return Err(HeaderError::Bad("header checksum does not match"));
        }
        let mut next = || fields.u64().ok_or(HeaderError::Bad("header is truncated"));
        Ok(Header {
            node: NodeId(next()?),
            number: next()?,
            first_sequence: next()?,
            nonce: next()?,
            repeated: next()?,
            has_manifest: next()? == 1,
        })
    }
}

/// The content of a record, including the seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordContent {
    Record(Record),
    Seal,
}

/// The fixed part of a record, not verified yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordHeader {
    pub body_len: u32,
    pub crc: u32,
    pub sequence: u64,
    pub distance: u32,
}

impl RecordHeader {
    pub(crate) fn decode(bytes: &[u8], nonce: u64) -> Option<RecordHeader> {
        let mut fields = FieldReader(bytes);
        Some(RecordHeader {
            body_len: fields.u32()?,
            crc: fields.u32()?,
            sequence: fields.u64()? ^ nonce,
            distance: fields.u32()?,
        })
    }

    /// Length of the whole record in bytes.
    pub(crate) fn record_len(&self) -> u64 {
        RECORD_HEADER as u64 + u64::from(self.body_len)
    }

    /// Sequence number of the newest record known to be durable when this one was written.
    pub(crate) fn durable_before(&self) -> u64 {
        self.sequence.saturating_sub(u64::from(self.distance))
    }

    /// True if the checksum of `bytes` (header and body) matches.
    pub(crate) fn matches(&self, bytes: &[u8], nonce: u64) -> bool {
        checksum(bytes, nonce) == self.crc || planted::is(Bug::ChecksumIgnored)
    }
}

fn checksum(record: &[u8], nonce: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&nonce.to_le_bytes());
    hasher.update(record.get(..4).unwrap_or_default());
    hasher.update(record.get(8..).unwrap_or_default());
    hasher.finalize()
}

/// Length of the record in the file, in bytes.
pub(crate) fn encoded_len(record: &Record) -> u64 {
    let body = match &record.body {
        RecordBody::Entry(entry) => ENTRY_OVERHEAD + entry.data.len(),
        RecordBody::HardState { .. } => 1 + 4 * 8,
        RecordBody::Checkpointed { .. } => 1 + 3 * 8,
        RecordBody::Deleted => 1 + 8,
    };
    (RECORD_HEADER + body) as u64
}

/// Appends encoded records to a buffer.
pub(crate) struct RecordEncoder<'a> {
    pub out: &'a mut Vec<u8>,
    pub nonce: u64,
    pub sequence: u64,
    /// Newest durable sequence number.
    pub durable: u64,
}

impl RecordEncoder<'_> {
    pub(crate) fn record(&mut self, record: &Record) {
        let group = record.group.0;
        match &record.body {
            RecordBody::Entry(e) => {
                self.put(ENTRY, &[group, e.index, e.term], Some((e.kind, &e.data)));
            }
            RecordBody::HardState { term, vote, commit } => {
                self.put(HARD_STATE, &[group, *term, *vote, *commit], None);
            }
            RecordBody::Checkpointed { index, term } => {
                self.put(CHECKPOINTED, &[group, *index, *term], None);
            }
            RecordBody::Deleted => self.put(DELETED, &[group], None),
        }
    }

    pub(crate) fn seal(&mut self) {
        self.put(SEAL, &[], None);
    }

    fn put(&mut self, kind: u8, fields: &[u64], data: Option<(u8, &[u8])>) {
        let start = self.out.len();
        let distance = u32::try_from(self.sequence - self.durable).unwrap_or(u32::MAX);
        self.out.extend_from_slice(&[0; 8]);
        self.out
            .extend_from_slice(&(self.sequence ^ self.nonce).to_le_bytes());
        self.out.extend_from_slice(&distance.to_le_bytes());
        self.out.push(kind);
        for field in fields {
            self.out.extend_from_slice(&field.to_le_bytes());
        }
        if let Some((kind, data)) = data {
            self.out.push(kind);
            self.out.extend_from_slice(data);
        }
        let record = &mut self.out[start..];
        let body_len = (record.len() - RECORD_HEADER) as u32;
        record[..4].copy_from_slice(&body_len.to_le_bytes());
        let crc = checksum(record, self.nonce);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
        self.sequence += 1;
    }
}

/// Decodes a body whose checksum matched. Returns `None` for a shape that this version does not write.
pub(crate) fn decode_body(body: &[u8]) -> Option<RecordContent> {
    let mut fields = FieldReader(body);
    let [kind] = fields.array()?;
    if kind == SEAL {
        return fields.0.is_empty().then_some(RecordContent::Seal);
    }
    let group = GroupId(fields.u64()?);
    let body = match kind {
        ENTRY => {
            let (index, term, [kind]) = (fields.u64()?, fields.u64()?, fields.array()?);
            let data = Bytes::copy_from_slice(std::mem::take(&mut fields.0));
            RecordBody::Entry(Entry {
                index,
                term,
                kind,
                data,
            })
        }
        HARD_STATE => RecordBody::HardState {
            term: fields.u64()?,
            vote: fields.u64()?,
            commit: fields.u64()?,
        },
        CHECKPOINTED => RecordBody::Checkpointed {
            index: fields.u64()?,
            term: fields.u64()?,
        },
        DELETED => RecordBody::Deleted,
        _ => return None,
    };
    fields
        .0
        .is_empty()
        .then_some(RecordContent::Record(Record { group, body }))
}

/// Reads little-endian fields from the front.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

pub(crate) const DIR: &str = "wal";
/// Name of a file while it is created; never read.
pub(crate) const NEW_FILE: &str = "wal/new.tmp";

pub(crate) fn path(number: u64) -> String {
    format!("{DIR}/{number:016x}.wal")
}

pub(crate) fn spare_path(number: u64) -> String {
    format!("{DIR}/{number:016x}.spare")
}

/// The number in a name with this extension. Accepts only names as written by [`path`] and [`spare_path`].
pub(crate) fn parse_name(name: &str, extension: &str) -> Option<u64> {
    let hex = name.strip_suffix(extension)?.strip_suffix('.')?;
    let number = u64::from_str_radix(hex, 16).ok()?;
    (format!("{number:016x}") == hex).then_some(number)
}
