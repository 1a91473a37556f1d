//! On-disk format of a segment file.
//!
//! A file consists of a header of [`HEADER_BYTES`], entries, an end mark, a footer and a trailer. Integers
//! are little-endian.
//! - Entry: length of the part after the checksum (4 bytes), CRC-32 (4) over group, length and that part;
//!   index (8), term (8), kind (1), data.
//! - End mark: `u32::MAX` (4), number of entries (4), CRC-32 of group and both (4).
//! - Footer: numbers of blocks and terms (4, 4), last index (8), number of entries (4); blocks: first index
//!   relative to the segment's first (4) and offset (4); terms: index relative to the segment's first (4) and
//!   the term from there on (8).
//! - Trailer: offset (8) and length (4) of the footer, CRC-32 (4) over group, footer and both, magic (8).
//!
//! The footer is a cache: without it, the index is rebuilt by reading the entries. A block holds about
//! [`BLOCK_BYTES`] of entries, so the index takes a few bits of memory per entry.

use crate::SegmentName;
use bytes::Bytes;
use env::planted::{self, Bug};
use wal::{Entry, GroupId};

pub(crate) const MAGIC: [u8; 8] = *b"PHORNSEG";
pub(crate) const END_MAGIC: [u8; 8] = *b"PHSEGEND";
pub(crate) const VERSION: u8 = 1;
pub(crate) const HEADER_BYTES: u64 = 40;
pub(crate) const ENTRY_HEADER: usize = 8;
/// Length of the index, term and kind of an entry.
pub(crate) const ENTRY_FIELDS: usize = 17;
pub(crate) const END_MARK: usize = 12;
pub(crate) const TRAILER: usize = 24;
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// The part of a segment that is kept in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentIndex {
    /// (first index relative to the segment's first, offset), ascending.
    pub blocks: Vec<(u32, u32)>,
    /// (index relative to the segment's first, term from there on), ascending.
    pub terms: Vec<(u32, u64)>,
    pub last: u64,
    pub count: u32,
    /// Offset after the last entry.
    pub end: u32,
}

impl SegmentIndex {
    /// Adds the next entry, `len` bytes long at `offset`.
    pub(crate) fn add(&mut self, relative: u32, index: u64, term: u64, offset: u32, len: u32) {
        let full = |(_, start): &(u32, u32)| offset - start >= BLOCK_BYTES;
        if self.blocks.last().is_none_or(full) {
            self.blocks.push((relative, offset));
        }
        if self.terms.last().is_none_or(|(_, t)| *t != term) {
            self.terms.push((relative, term));
        }
        self.last = index;
        self.count += 1;
        self.end = offset + len;
    }

    pub(crate) fn encode_footer(&self, out: &mut Vec<u8>) {
        for n in [self.blocks.len(), self.terms.len()] {
            out.extend_from_slice(&(n as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.last.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        for (relative, offset) in &self.blocks {
            out.extend_from_slice(&relative.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
        }
        for (relative, term) in &self.terms {
            out.extend_from_slice(&relative.to_le_bytes());
            out.extend_from_slice(&term.to_le_bytes());
        }
    }

    /// Decodes a footer; `end` is the offset after the entries. Returns `None` if the bytes are not a valid
    /// footer of such a segment.
    pub(crate) fn decode_footer(bytes: &[u8], first: u64, end: u32) -> Option<SegmentIndex> {
        let mut fields = FieldReader(bytes);
        let (blocks, terms) = (fields.u32()? as usize, fields.u32()? as usize);
        let (last, count) = (fields.u64()?, fields.u32()?);
        if fields.0.len() != blocks.checked_mul(8)?.checked_add(terms.checked_mul(12)?)? {
            return None;
        }
        let mut index = SegmentIndex {
            blocks: Vec::with_capacity(blocks),
            terms: Vec::with_capacity(terms),
            last,
            count,
            end,
        };
        for _ in 0..blocks {
            index.blocks.push((fields.u32()?, fields.u32()?));
        }
        for _ in 0..terms {
            index.terms.push((fields.u32()?, fields.u64()?));
        }
        let ascending = |w: &[(u32, u32)]| w[0].0 < w[1].0 && w[0].1 < w[1].1;
        let sane = index.blocks.first() == Some(&(0, HEADER_BYTES as u32))
            && index.blocks.windows(2).all(ascending)
            && index.blocks.last()?.1 < end
            && index.terms.first()?.0 == 0
            && index.terms.windows(2).all(|w| w[0].0 < w[1].0)
            && last >= first;
        sane.then_some(index)
    }
}

pub(crate) fn encode_header(group: GroupId, name: SegmentName) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&group.0.to_le_bytes());
    out.extend_from_slice(&name.first.to_le_bytes());
    out.extend_from_slice(&name.n.to_le_bytes());
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

pub(crate) fn checksum(group: GroupId, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&group.0.to_le_bytes());
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

pub(crate) fn entry_len(entry: &Entry) -> u64 {
    (ENTRY_HEADER + ENTRY_FIELDS + entry.data.len()) as u64
}

pub(crate) fn encode_entry(group: GroupId, entry: &Entry, out: &mut Vec<u8>) {
    let start = out.len();
    let len = (ENTRY_FIELDS + entry.data.len()) as u32;
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&entry.index.to_le_bytes());
    out.extend_from_slice(&entry.term.to_le_bytes());
    out.push(entry.kind);
    out.extend_from_slice(&entry.data);
    let crc = checksum(group, &[&out[start..start + 4], &out[start + 8..]]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

pub(crate) fn encode_end_mark(group: GroupId, count: u32) -> [u8; END_MARK] {
    let mut mark = [0xFF; END_MARK];
    mark[4..8].copy_from_slice(&count.to_le_bytes());
    let crc = checksum(group, &[&mark[..8]]);
    mark[8..].copy_from_slice(&crc.to_le_bytes());
    mark
}

pub(crate) fn encode_trailer(group: GroupId, footer: &[u8], offset: u64) -> [u8; TRAILER] {
    let mut trailer = [0; TRAILER];
    trailer[..8].copy_from_slice(&offset.to_le_bytes());
    trailer[8..12].copy_from_slice(&(footer.len() as u32).to_le_bytes());
    let crc = checksum(group, &[footer, &trailer[..12]]);
    trailer[12..16].copy_from_slice(&crc.to_le_bytes());
    trailer[16..].copy_from_slice(&END_MAGIC);
    trailer
}

/// Decodes and verifies the entry at the front of `bytes`; returns it and its length. Its data shares or
/// copies `bytes`.
pub(crate) fn decode_entry(group: GroupId, bytes: &Bytes) -> Result<(Entry, usize), &'static str> {
    let mut fields = FieldReader(bytes);
    let truncated = "entry is truncated";
    let len = fields.u32().ok_or(truncated)? as usize;
    let crc = fields.u32().ok_or(truncated)?;
    let whole = ENTRY_HEADER.saturating_add(len);
    let (Some(body), Some(len_bytes)) = (bytes.get(ENTRY_HEADER..whole), bytes.get(..4)) else {
        return Err(truncated);
    };
    let is_valid = crc == checksum(group, &[len_bytes, body]);
    if !is_valid && !planted::is(Bug::SegmentChecksumIgnored) {
        return Err("entry checksum does not match");
    }
    let mut fields = FieldReader(body);
    let short = "entry is too short";
    let (index, term) = (fields.u64().ok_or(short)?, fields.u64().ok_or(short)?);
    let [kind] = fields.array().ok_or(short)?;
    let data = bytes.slice(ENTRY_HEADER + ENTRY_FIELDS..whole);
    // A small entry must not keep a large block in memory.
    let data = if data.len() < bytes.len() / 2 {
        Bytes::copy_from_slice(&data)
    } else {
        data
    };
    Ok((
        Entry {
            index,
            term,
            kind,
            data,
        },
        whole,
    ))
}

/// Reads little-endian fields from the front.
pub(crate) struct FieldReader<'a>(pub &'a [u8]);

impl FieldReader<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
