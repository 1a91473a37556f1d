//! Chunks: the unit in which entries are written, replicated and read, the same in files and on the network.
//!
//! The format is that of osiris, the log library of RabbitMQ streams. Integers are big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 1 | magic 5 and version 1, four bits each |
//! | 1 | kind: 0 messages, 1 tracking delta, 2 tracking snapshot |
//! | 2 | number of entries |
//! | 4 | number of records: a sub-batch is one entry with many |
//! | 8 | timestamp in milliseconds since the Unix epoch, signed |
//! | 8 | epoch of the leader that created the chunk |
//! | 8 | offset of the first record |
//! | 4 | CRC-32 of the entries |
//! | 4 | length of the entries |
//! | 4 | length of the trailer |
//! | 1 | length of the Bloom filter |
//! | 3 | CRC-24 of the bytes before it and of the filter; reserved in osiris |
//! | n | Bloom filter, see [`crate::FilterMatcher`] |
//! | n | entries |
//! | n | trailer: tracking records and their CRC-32 (4), or nothing |
//!
//! A message is its length (4, highest bit 0) and its bytes. A sub-batch is a byte with the highest bit set and the
//! compression in the next three, the number of records (2), the uncompressed length (4), the length (4) and the
//! bytes. The entries of a tracking chunk are one message, which takes one offset.

use crate::crc24;
use crate::filter::{FilterBuilder, MIN_FILTER_BYTES};
use crate::tracking::{
    MAX_NAME_BYTES, MAX_SNAPSHOT_BYTES, Tracking, TrackingRecord, TrackingRecords,
};
use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;
use std::ops::Range;

/// Length of a chunk header in bytes.
pub const HEADER_BYTES: usize = 48;
/// Most bytes of a chunk. Bounds the memory that a read takes.
pub const MAX_CHUNK_BYTES: usize = 64 << 20;
/// A chunk with as many bytes of entries takes no further entry.
pub const FULL_CHUNK_BYTES: usize = 1 << 20;
/// Most entries of a chunk.
pub const MAX_ENTRIES: u16 = u16::MAX;
/// Most bytes of tracking records in a trailer.
pub const MAX_TRAILER_BYTES: usize = MAX_SNAPSHOT_BYTES;
/// Most bytes of one message or of the body of one sub-batch.
pub const MAX_ENTRY_BYTES: usize = MAX_CHUNK_BYTES - FULL_CHUNK_BYTES - MAX_TRAILER_BYTES - 1024;

const MAGIC_AND_VERSION: u8 = 0x51;
const MESSAGE_HEADER: usize = 4;
const SUB_BATCH_HEADER: usize = 11;
const SUB_BATCH: u8 = 0x80;
/// Room for the header and the largest filter, which are known last.
const FRONT: usize = HEADER_BYTES + u8::MAX as usize;
/// Entries of this many bytes are added to the checksum together: they are still in the processor's cache then, and no longer when
/// the chunk is complete.
const HASHED_TOGETHER: usize = 16 << 10;

/// Why bytes are not a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkFault {
    /// The bytes end before the chunk.
    #[error("the chunk is truncated")]
    Truncated,
    /// The bytes go on after the chunk.
    #[error("bytes follow the chunk")]
    Trailing,
    /// The first byte is not that of a chunk.
    #[error("no chunk starts here")]
    Magic,
    /// A field of the header is out of range.
    #[error("a field of the chunk header is invalid")]
    Header,
    /// The header or the filter changed.
    #[error("the checksum of the chunk header does not match")]
    HeaderChecksum,
    /// The entries changed.
    #[error("the checksum of the entries does not match")]
    DataChecksum,
    /// The trailer changed.
    #[error("the checksum of the trailer does not match")]
    TrailerChecksum,
    /// The entries do not add up to what the header states.
    #[error("the entries do not agree with the chunk header")]
    Entries,
    /// A tracking record or snapshot is malformed or exceeds a limit.
    #[error("the tracking data is invalid")]
    Tracking,
}

/// The content of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkKind {
    /// Messages and sub-batches.
    Messages,
    /// New stored offsets.
    TrackingDelta,
    /// All sequences and stored offsets. It starts a segment.
    TrackingSnapshot,
}

impl ChunkKind {
    pub(crate) fn number(self) -> u8 {
        match self {
            ChunkKind::Messages => 0,
            ChunkKind::TrackingDelta => 1,
            ChunkKind::TrackingSnapshot => 2,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<ChunkKind> {
        match number {
            0 => Some(ChunkKind::Messages),
            1 => Some(ChunkKind::TrackingDelta),
            2 => Some(ChunkKind::TrackingSnapshot),
            _ => None,
        }
    }
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The content.
    pub kind: ChunkKind,
    /// Number of entries, at least 1.
    pub entries: u16,
    /// Number of records, at least the number of entries. Each takes one offset.
    pub records: u32,
    /// Milliseconds since the Unix epoch.
    pub timestamp: i64,
    /// Epoch of the leader that created the chunk.
    pub epoch: u64,
    /// Offset of the first record.
    pub first_offset: u64,
    /// CRC-32 of the entries.
    pub data_crc: u32,
    /// Length of the entries in bytes.
    pub data_len: u32,
    /// Length of the trailer in bytes.
    pub trailer_len: u32,
    /// Length of the Bloom filter in bytes.
    pub filter_len: u8,
}

impl ChunkHeader {
    /// Offset of the record after the last one.
    pub fn next_offset(&self) -> u64 {
        self.first_offset.saturating_add(u64::from(self.records))
    }

    /// Length of the chunk in bytes.
    pub fn chunk_len(&self) -> u64 {
        self.data_start() + u64::from(self.data_len) + u64::from(self.trailer_len)
    }

    /// Position of the entries in the chunk, in bytes.
    pub fn data_start(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.filter_len)
    }

    /// Encodes the header as it is in the file.
    fn encode(&self, filter: &[u8]) -> [u8; HEADER_BYTES] {
        let mut bytes = self.encode_for_clients();
        let crc = crc24::checksum(&[&bytes[..HEADER_BYTES - 3], filter]);
        bytes[HEADER_BYTES - 3..].copy_from_slice(&crc.to_be_bytes()[1..]);
        bytes
    }

    /// Encodes the header as clients get it: the bytes that the stream protocol reserves are zero.
    pub fn encode_for_clients(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut out = &mut bytes[..];
        out.put_u8(MAGIC_AND_VERSION);
        out.put_u8(self.kind.number());
        out.put_u16(self.entries);
        out.put_u32(self.records);
        out.put_i64(self.timestamp);
        out.put_u64(self.epoch);
        out.put_u64(self.first_offset);
        out.put_u32(self.data_crc);
        out.put_u32(self.data_len);
        out.put_u32(self.trailer_len);
        out.put_u8(self.filter_len);
        bytes
    }

    /// Decodes the header and the filter at the front of `bytes`. `bytes` may end after them.
    ///
    /// # Errors
    ///
    /// [`ChunkFault::Truncated`] if `bytes` ends before; other faults if no valid header is there.
    pub fn decode(bytes: &[u8]) -> Result<(ChunkHeader, &[u8]), ChunkFault> {
        let (raw, rest) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(ChunkFault::Truncated)?;
        if raw[0] != MAGIC_AND_VERSION {
            return Err(ChunkFault::Magic);
        }
        let mut fields = Fields(&raw[1..]);
        let kind = ChunkKind::from_number(fields.u8()).ok_or(ChunkFault::Header)?;
        let header = ChunkHeader {
            kind,
            entries: fields.u16(),
            records: fields.u32(),
            timestamp: fields.u64() as i64,
            epoch: fields.u64(),
            first_offset: fields.u64(),
            data_crc: fields.u32(),
            data_len: fields.u32(),
            trailer_len: fields.u32(),
            filter_len: fields.u8(),
        };
        if !header.is_plausible() {
            return Err(ChunkFault::Header);
        }
        let filter = rest
            .get(..usize::from(header.filter_len))
            .ok_or(ChunkFault::Truncated)?;
        let crc = crc24::checksum(&[&raw[..HEADER_BYTES - 3], filter]);
        if crc.to_be_bytes()[1..] != raw[HEADER_BYTES - 3..] {
            return Err(ChunkFault::HeaderChecksum);
        }
        Ok((header, filter))
    }

    fn is_plausible(&self) -> bool {
        let has_valid_filter = self.filter_len == 0 || self.filter_len >= MIN_FILTER_BYTES;
        let has_valid_shape = match self.kind {
            ChunkKind::Messages => u32::from(self.entries) <= self.records,
            _ => self.records == 1 && self.filter_len == 0 && self.trailer_len == 0,
        };
        self.entries > 0
            && has_valid_filter
            && has_valid_shape
            && self.chunk_len() <= MAX_CHUNK_BYTES as u64
            && self
                .first_offset
                .checked_add(u64::from(self.records))
                .is_some()
    }
}

/// Reads big-endian fields from the front; zeros beyond the end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                *head
            }
            None => [0; N],
        }
    }

    fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }
}

/// A whole, verified chunk.
#[derive(Clone, PartialEq, Eq)]
pub struct Chunk {
    header: ChunkHeader,
    bytes: Bytes,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("header", &self.header)
            .field("filter", &self.filter())
            .field("entries", &self.entries().collect::<Vec<_>>())
            .field("tracking", &self.tracking_records().collect::<Vec<_>>())
            .finish()
    }
}

impl Chunk {
    /// Decodes the chunk that fills `bytes` and verifies its checksums, its entries and its tracking data.
    ///
    /// # Errors
    ///
    /// The first fault that was found.
    pub fn decode(bytes: Bytes) -> Result<Chunk, ChunkFault> {
        let (header, _) = ChunkHeader::decode(&bytes)?;
        if (bytes.len() as u64) < header.chunk_len() {
            return Err(ChunkFault::Truncated);
        }
        if bytes.len() as u64 > header.chunk_len() {
            return Err(ChunkFault::Trailing);
        }
        let chunk = Chunk { header, bytes };
        chunk.verify()?;
        Ok(chunk)
    }

    fn verify(&self) -> Result<(), ChunkFault> {
        if crc32fast::hash(self.data()) != self.header.data_crc {
            return Err(ChunkFault::DataChecksum);
        }
        let trailer = &self.bytes[self.trailer_start()..];
        if !trailer.is_empty() {
            let (covered, crc) = trailer
                .split_last_chunk::<4>()
                .ok_or(ChunkFault::TrailerChecksum)?;
            if crc32fast::hash(covered).to_be_bytes() != *crc {
                return Err(ChunkFault::TrailerChecksum);
            }
        }
        let mut entries = self.entries();
        let mut body = None;
        for entry in &mut entries {
            body = Some(entry?.body);
        }
        entries.check_end()?;
        match (self.header.kind, body) {
            (ChunkKind::Messages, _) | (ChunkKind::TrackingDelta, Some(EntryBody::Message(_))) => {
                for record in self.tracking_records() {
                    record?;
                }
            }
            (ChunkKind::TrackingSnapshot, Some(EntryBody::Message(snapshot))) => {
                Tracking::decode_snapshot(snapshot)?;
            }
            _ => return Err(ChunkFault::Entries),
        }
        Ok(())
    }

    /// The header.
    pub fn header(&self) -> &ChunkHeader {
        &self.header
    }

    /// The whole chunk, as it is in the file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The Bloom filter; empty if no entry has a filter value.
    pub fn filter(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..self.data_start()]
    }

    /// The encoded entries, which clients get behind the header.
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.data_start()..self.trailer_start()]
    }

    /// The encoded entries, sharing the chunk's memory.
    pub fn data_bytes(&self) -> Bytes {
        self.bytes.slice(self.data_start()..self.trailer_start())
    }

    /// The entries in order.
    pub fn entries(&self) -> Entries<'_> {
        Entries::new(&self.header, self.data())
    }

    /// The new sequences and stored offsets. A snapshot has none: see [`Chunk::apply_tracking`].
    pub fn tracking_records(&self) -> TrackingRecords<'_> {
        TrackingRecords::new(match self.header.kind {
            ChunkKind::Messages => {
                let trailer = &self.bytes[self.trailer_start()..];
                trailer
                    .get(..trailer.len().saturating_sub(4))
                    .unwrap_or(&[])
            }
            ChunkKind::TrackingDelta => self.single_message(),
            ChunkKind::TrackingSnapshot => &[],
        })
    }

    /// Changes `tracking` from the state before this chunk to the state after it.
    ///
    /// # Errors
    ///
    /// If the chunk stores more offsets than the limit. `tracking` may be changed then.
    pub fn apply_tracking(&self, tracking: &mut Tracking) -> Result<(), ChunkFault> {
        if self.header.kind == ChunkKind::TrackingSnapshot {
            *tracking = Tracking::decode_snapshot(self.single_message())?;
            return Ok(());
        }
        for record in self.tracking_records() {
            tracking.apply(record?, self.header.first_offset)?;
        }
        Ok(())
    }

    /// The same messages, Bloom filter and sequences of producers as a chunk of another log. Stored offsets are left out: they
    /// belong to the offsets of this log. `None` if the chunk has no messages.
    pub fn renumbered(&self, first_offset: u64, epoch: u64, timestamp: i64) -> Option<Chunk> {
        if self.header.kind != ChunkKind::Messages {
            return None;
        }
        let data = self.data();
        let mut buffer = BytesMut::with_capacity(FRONT + data.len());
        buffer.put_bytes(0, FRONT);
        buffer.put_slice(data);
        let sequences = self.tracking_records().flatten();
        for record in sequences.filter(|record| matches!(record, TrackingRecord::Sequence { .. })) {
            record.put(&mut buffer);
        }
        let trailer = &buffer[FRONT + data.len()..];
        if !trailer.is_empty() {
            let crc = crc32fast::hash(trailer);
            buffer.put_u32(crc);
        }
        let header = ChunkHeader {
            timestamp,
            epoch,
            first_offset,
            trailer_len: (buffer.len() - FRONT - data.len()) as u32,
            ..self.header
        };
        Some(assemble(header, self.filter(), buffer))
    }

    fn single_message(&self) -> &[u8] {
        match self.entries().next() {
            Some(Ok(Entry {
                body: EntryBody::Message(bytes),
                ..
            })) => bytes,
            _ => &[],
        }
    }

    fn data_start(&self) -> usize {
        HEADER_BYTES + usize::from(self.header.filter_len)
    }

    fn trailer_start(&self) -> usize {
        self.data_start() + self.header.data_len as usize
    }
}

/// An entry of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Offset of its first record.
    pub offset: u64,
    /// The content.
    pub body: EntryBody<'a>,
}

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryBody<'a> {
    /// A message.
    Message(&'a [u8]),
    /// Several messages that their publisher put together, and possibly compressed.
    SubBatch(SubBatch<'a>),
}

/// A sub-batch as its publisher sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubBatch<'a> {
    /// 0 none, 1 gzip, 2 Snappy, 3 LZ4, 4 Zstandard; at most 7.
    pub compression: u8,
    /// Number of messages, at least 1.
    pub records: u16,
    /// Length before compression in bytes, as the publisher stated it.
    pub uncompressed_len: u32,
    /// The messages, compressed.
    pub data: &'a [u8],
}

impl<'a> SubBatch<'a> {
    /// The messages in order; `None` if they are compressed. Publishers may send anything in a sub-batch, so
    /// each message is a result.
    pub fn messages(&self) -> Option<impl Iterator<Item = Result<&'a [u8], ChunkFault>> + use<'a>> {
        (self.compression == 0).then(|| SubBatchMessages::new(self.data, self.records))
    }
}

/// The messages of a sub-batch that is not compressed, or was decompressed. Ends after a fault.
#[derive(Clone, Debug)]
pub struct SubBatchMessages<'a> {
    rest: &'a [u8],
    left: u16,
}

impl<'a> SubBatchMessages<'a> {
    /// Reads `records` messages from `data`.
    pub fn new(data: &'a [u8], records: u16) -> SubBatchMessages<'a> {
        SubBatchMessages {
            rest: data,
            left: records,
        }
    }
}

impl<'a> Iterator for SubBatchMessages<'a> {
    type Item = Result<&'a [u8], ChunkFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        match split_message(self.rest) {
            Some((message, rest)) => {
                self.rest = rest;
                Some(Ok(message))
            }
            None => {
                self.left = 0;
                Some(Err(ChunkFault::Entries))
            }
        }
    }
}

fn split_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<MESSAGE_HEADER>()?;
    let len = u32::from_be_bytes(*len);
    if len >> 31 != 0 {
        return None;
    }
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// The entries of a chunk. Ends after a fault.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    left: u16,
    offset: u64,
    end: u64,
}

impl<'a> Entries<'a> {
    /// Reads the entries of a chunk with this header from `data`.
    pub fn new(header: &ChunkHeader, data: &'a [u8]) -> Entries<'a> {
        Entries::from_parts(
            header.entries,
            header.first_offset..header.next_offset(),
            data,
        )
    }

    /// Reads a number of entries, whose records have these offsets, from `data`.
    pub fn from_parts(entries: u16, offsets: Range<u64>, data: &'a [u8]) -> Entries<'a> {
        Entries {
            rest: data,
            left: entries,
            offset: offsets.start,
            end: offsets.end,
        }
    }

    fn entry(&mut self) -> Option<Entry<'a>> {
        let first = *self.rest.first()?;
        let offset = self.offset;
        if first & SUB_BATCH == 0 {
            let (message, rest) = split_message(self.rest)?;
            self.rest = rest;
            self.offset = offset.checked_add(1)?;
            let body = EntryBody::Message(message);
            return Some(Entry { offset, body });
        }
        let (header, rest) = self.rest.split_first_chunk::<SUB_BATCH_HEADER>()?;
        let mut fields = Fields(&header[1..]);
        let (records, uncompressed_len, len) = (fields.u16(), fields.u32(), fields.u32());
        let (data, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        if records == 0 {
            return None;
        }
        self.rest = rest;
        self.offset = offset.checked_add(u64::from(records))?;
        let body = EntryBody::SubBatch(SubBatch {
            compression: (first >> 4) & 7,
            records,
            uncompressed_len,
            data,
        });
        Some(Entry { offset, body })
    }

    /// Fails unless the entries that were read are all of the data and of the records.
    fn check_end(&self) -> Result<(), ChunkFault> {
        match self.left == 0 && self.rest.is_empty() && self.offset == self.end {
            true => Ok(()),
            false => Err(ChunkFault::Entries),
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, ChunkFault>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.entry().ok_or(ChunkFault::Entries);
        if entry.is_err() {
            self.left = 0;
        }
        Some(entry)
    }
}

/// Why a [`ChunkBuilder`] did not take an entry or a tracking record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The chunk is full: finish it and use another one.
    #[error("the chunk is full")]
    Full,
    /// The entry can be in no chunk.
    #[error("an entry has {bytes} bytes, the limit is {}", MAX_ENTRY_BYTES)]
    TooLarge {
        /// Length of the entry in bytes.
        bytes: usize,
    },
    /// A name is longer than [`MAX_NAME_BYTES`].
    #[error("a name has {bytes} bytes, the limit is {}", MAX_NAME_BYTES)]
    LongName {
        /// Length of the name in bytes.
        bytes: usize,
    },
    /// A sub-batch without records or with an unknown compression.
    #[error("a sub-batch has no records or an unknown compression")]
    InvalidSubBatch,
}

/// A chunk of messages that is being built. An entry is copied once, to its place in the chunk.
#[derive(Debug)]
pub struct ChunkBuilder {
    /// [`FRONT`] bytes of room, then the entries.
    buffer: BytesMut,
    /// The checksum of the entries up to [`ChunkBuilder::hashed`].
    checksum: crc32fast::Hasher,
    /// Position in the buffer after the last entry in the checksum.
    hashed: usize,
    /// Bytes of the last chunk, for which a new buffer has room at once: one that grows copies its entries.
    expected_bytes: usize,
    filter: FilterBuilder,
    entries: u16,
    records: u32,
    tracking: TrackingBuilder,
}

/// The tracking records of a chunk that is being built: one for each name.
#[derive(Clone, Debug, Default)]
struct TrackingBuilder {
    sequences: Vec<(Box<[u8]>, u64)>,
    offsets: Vec<(Box<[u8]>, u64)>,
    bytes: usize,
}

impl TrackingBuilder {
    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn set(
        list: &mut Vec<(Box<[u8]>, u64)>,
        bytes: &mut usize,
        name: &[u8],
        number: u64,
    ) -> Result<(), BuildError> {
        // Publishers send batches, so the last name is the most likely one.
        if let Some((_, known)) = list.iter_mut().rev().find(|(known, _)| **known == *name) {
            *known = number;
            return Ok(());
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(BuildError::LongName { bytes: name.len() });
        }
        let len = 10 + name.len();
        if *bytes + len > MAX_TRAILER_BYTES {
            return Err(BuildError::Full);
        }
        *bytes += len;
        list.push((name.into(), number));
        Ok(())
    }

    fn put(&self, out: &mut impl BufMut) {
        for (producer, sequence) in &self.sequences {
            let sequence = *sequence;
            TrackingRecord::Sequence { producer, sequence }.put(out);
        }
        for (name, offset) in &self.offsets {
            let offset = *offset;
            TrackingRecord::Offset { name, offset }.put(out);
        }
    }
}

impl ChunkBuilder {
    /// An empty chunk whose filter, if it gets one, has `filter_len` bytes.
    pub fn new(filter_len: u8) -> ChunkBuilder {
        ChunkBuilder {
            buffer: BytesMut::new(),
            checksum: crc32fast::Hasher::new(),
            hashed: FRONT,
            expected_bytes: 0,
            filter: FilterBuilder::new(filter_len),
            entries: 0,
            records: 0,
            tracking: TrackingBuilder::default(),
        }
    }

    /// Returns true if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.entries == 0 && self.tracking.is_empty()
    }

    /// Returns true if the chunk takes no further entry.
    pub fn is_full(&self) -> bool {
        self.entries == MAX_ENTRIES || self.data_len() >= FULL_CHUNK_BYTES
    }

    /// Number of records so far. The next one has this index in the chunk.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Bytes of entries so far.
    pub fn data_len(&self) -> usize {
        self.buffer.len().saturating_sub(FRONT)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), BuildError> {
        if bytes > MAX_ENTRY_BYTES {
            return Err(BuildError::TooLarge { bytes });
        }
        if self.is_full() {
            return Err(BuildError::Full);
        }
        if self.buffer.is_empty() {
            let first_entry = FRONT + bytes + SUB_BATCH_HEADER;
            self.buffer.reserve(first_entry.max(self.expected_bytes));
            self.buffer.put_bytes(0, FRONT);
        }
        Ok(())
    }

    /// Brings the checksum up to the end of the buffer if at least this many bytes are not in it.
    #[inline]
    fn hash_entries(&mut self, at_least: usize) {
        debug_assert!((FRONT..=self.buffer.len()).contains(&self.hashed));
        if self.buffer.len() - self.hashed >= at_least {
            self.checksum.update(&self.buffer[self.hashed..]);
            self.hashed = self.buffer.len();
        }
    }

    /// Adds a message with an optional filter value.
    ///
    /// # Errors
    ///
    /// [`BuildError::Full`] and [`BuildError::TooLarge`]; the chunk is unchanged.
    pub fn push_message(&mut self, body: &[u8], filter: Option<&[u8]>) -> Result<(), BuildError> {
        self.reserve(body.len())?;
        self.buffer.put_u32(body.len() as u32);
        self.buffer.put_slice(body);
        self.hash_entries(HASHED_TOGETHER);
        self.filter.insert(filter);
        self.entries += 1;
        self.records += 1;
        Ok(())
    }

    /// Adds a sub-batch with an optional filter value.
    ///
    /// # Errors
    ///
    /// As [`ChunkBuilder::push_message`], and [`BuildError::InvalidSubBatch`].
    pub fn push_sub_batch(
        &mut self,
        batch: &SubBatch<'_>,
        filter: Option<&[u8]>,
    ) -> Result<(), BuildError> {
        if batch.records == 0 || batch.compression > 7 {
            return Err(BuildError::InvalidSubBatch);
        }
        self.reserve(batch.data.len())?;
        self.buffer.put_u8(SUB_BATCH | batch.compression << 4);
        self.buffer.put_u16(batch.records);
        self.buffer.put_u32(batch.uncompressed_len);
        self.buffer.put_u32(batch.data.len() as u32);
        self.buffer.put_slice(batch.data);
        self.hash_entries(HASHED_TOGETHER);
        self.filter.insert(filter);
        self.entries += 1;
        self.records += u32::from(batch.records);
        Ok(())
    }

    /// States the newest sequence of a producer.
    ///
    /// # Errors
    ///
    /// [`BuildError::LongName`], and [`BuildError::Full`] if the chunk has too many names.
    pub fn set_sequence(&mut self, producer: &[u8], sequence: u64) -> Result<(), BuildError> {
        let tracking = &mut self.tracking;
        TrackingBuilder::set(
            &mut tracking.sequences,
            &mut tracking.bytes,
            producer,
            sequence,
        )
    }

    /// Stores an offset under a name.
    ///
    /// # Errors
    ///
    /// As [`ChunkBuilder::set_sequence`].
    pub fn set_offset(&mut self, name: &[u8], offset: u64) -> Result<(), BuildError> {
        let tracking = &mut self.tracking;
        TrackingBuilder::set(&mut tracking.offsets, &mut tracking.bytes, name, offset)
    }

    /// The sequence that this chunk states for a producer so far.
    pub fn sequence(&self, producer: &[u8]) -> Option<u64> {
        let known = self.tracking.sequences.iter().rev();
        known
            .filter(|(name, _)| **name == *producer)
            .map(|(_, s)| *s)
            .next()
    }

    /// Number of stored offsets so far that `is_new` holds for.
    pub(crate) fn count_offsets(&self, is_new: impl Fn(&[u8]) -> bool) -> usize {
        let offsets = self.tracking.offsets.iter();
        offsets.filter(|(name, _)| is_new(name)).count()
    }

    /// Returns true if the chunk stores an offset under this name.
    pub(crate) fn has_offset(&self, name: &[u8]) -> bool {
        let mut offsets = self.tracking.offsets.iter();
        offsets.any(|(known, _)| **known == *name)
    }

    /// Builds the chunk and empties the builder: messages with a trailer, or a tracking delta if there are no
    /// messages. `None` if the builder is empty.
    pub fn finish(&mut self, first_offset: u64, epoch: u64, timestamp: i64) -> Option<Chunk> {
        if self.is_empty() {
            return None;
        }
        let tracking = std::mem::take(&mut self.tracking);
        let kind = match self.entries {
            0 => ChunkKind::TrackingDelta,
            _ => ChunkKind::Messages,
        };
        if kind == ChunkKind::TrackingDelta {
            self.buffer.reserve(FRONT + MESSAGE_HEADER + tracking.bytes);
            self.buffer.put_bytes(0, FRONT);
            self.buffer.put_u32(tracking.bytes as u32);
            tracking.put(&mut self.buffer);
        }
        self.hash_entries(0);
        let data_crc = std::mem::take(&mut self.checksum).finalize();
        self.hashed = FRONT;
        let mut buffer = std::mem::take(&mut self.buffer);
        let entries = std::mem::take(&mut self.entries).max(1);
        let records = std::mem::take(&mut self.records).max(1);
        let data_len = buffer.len() - FRONT;
        if kind == ChunkKind::Messages && !tracking.is_empty() {
            buffer.reserve(tracking.bytes + 4);
            tracking.put(&mut buffer);
            let crc = crc32fast::hash(&buffer[FRONT + data_len..]);
            buffer.put_u32(crc);
        }
        self.expected_bytes = buffer.len().min(FRONT + FULL_CHUNK_BYTES);
        // The chunk stays in memory until consumers have read it, without room that it does not need.
        if buffer.capacity() > 2 * buffer.len() {
            buffer = BytesMut::from(&buffer[..]);
        }
        let empty = FilterBuilder::new(self.filter.size());
        let filter = std::mem::replace(&mut self.filter, empty);
        let header = ChunkHeader {
            kind,
            entries,
            records,
            timestamp,
            epoch,
            first_offset,
            data_crc,
            data_len: data_len as u32,
            trailer_len: (buffer.len() - FRONT - data_len) as u32,
            filter_len: filter.as_bytes().len() as u8,
        };
        Some(assemble(header, filter.as_bytes(), buffer))
    }
}

/// Writes the header and the filter into the room in front of the entries.
fn assemble(header: ChunkHeader, filter: &[u8], mut buffer: BytesMut) -> Chunk {
    let start = FRONT - HEADER_BYTES - filter.len();
    buffer[start..start + HEADER_BYTES].copy_from_slice(&header.encode(filter));
    buffer[start + HEADER_BYTES..FRONT].copy_from_slice(filter);
    let chunk = Chunk {
        header,
        bytes: buffer.freeze().slice(start..),
    };
    debug_assert_eq!(chunk.bytes.len() as u64, header.chunk_len());
    debug_assert_eq!(chunk.verify(), Ok(()));
    chunk
}

/// Builds a tracking snapshot.
pub fn snapshot_chunk(tracking: &Tracking, first_offset: u64, epoch: u64, timestamp: i64) -> Chunk {
    let kind = ChunkKind::TrackingSnapshot;
    tracking_chunk(kind, first_offset, epoch, timestamp, |out| {
        tracking.put_snapshot(out);
    })
}

/// Builds a tracking delta without records.
pub(crate) fn marker_chunk(first_offset: u64, epoch: u64, timestamp: i64) -> Chunk {
    let kind = ChunkKind::TrackingDelta;
    tracking_chunk(kind, first_offset, epoch, timestamp, |_| {})
}

fn tracking_chunk(
    kind: ChunkKind,
    first_offset: u64,
    epoch: u64,
    timestamp: i64,
    put: impl FnOnce(&mut BytesMut),
) -> Chunk {
    let mut buffer = BytesMut::new();
    buffer.put_bytes(0, FRONT + MESSAGE_HEADER);
    put(&mut buffer);
    let len = (buffer.len() - FRONT - MESSAGE_HEADER) as u32;
    buffer[FRONT..FRONT + MESSAGE_HEADER].copy_from_slice(&len.to_be_bytes());
    let header = ChunkHeader {
        kind,
        entries: 1,
        records: 1,
        timestamp,
        epoch,
        first_offset,
        data_crc: crc32fast::hash(&buffer[FRONT..]),
        data_len: (buffer.len() - FRONT) as u32,
        trailer_len: 0,
        filter_len: 0,
    };
    assemble(header, &[], buffer)
}

#[cfg(test)]
mod tests;
