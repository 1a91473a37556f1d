//! A checkpoint as a byte stream: the state, the live entries, and the CRC-32 of everything before.
//!
//! An entry is encoded as index, term (LEB128), kind (1 byte), length of its data (LEB128), data.

use super::Checkpoint;
use crate::entry::MAX_NUMBER;
use bytes::{BufMut, Bytes, BytesMut};
use env::File;
use segment::SegmentError;
use wal::Entry;
use wire::put_varint;

/// The checksum at the end.
pub(super) const TRAILER_BYTES: u64 = 4;
const WINDOW_BYTES: usize = 256 << 10;

/// The contents of a stream, as announced by its offer.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointContents {
    pub checkpoint: Checkpoint,
    pub state_bytes: u64,
    pub entries: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("{0}")]
    Malformed(String),
    #[error(transparent)]
    Io(std::io::Error),
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

fn malformed<T>(what: &str) -> Result<T, StreamError> {
    Err(StreamError::Malformed(what.to_owned()))
}

pub(crate) fn put_entry(out: &mut BytesMut, entry: &Entry) {
    put_varint(out, entry.index);
    put_varint(out, entry.term);
    out.put_u8(entry.kind);
    put_varint(out, entry.data.len() as u64);
    out.put_slice(&entry.data);
}

/// Reads a staged stream.
pub(crate) struct CheckpointReader<'a> {
    file: &'a dyn File,
    /// Length of the stream without its checksum.
    len: u64,
    /// Bytes read from the file so far.
    offset: u64,
    window: BytesMut,
    hasher: crc32fast::Hasher,
    checksum_verified: bool,
}

impl<'a> CheckpointReader<'a> {
    pub(crate) fn new(file: &'a dyn File, bytes: u64) -> CheckpointReader<'a> {
        CheckpointReader {
            file,
            len: bytes.saturating_sub(TRAILER_BYTES),
            offset: 0,
            window: BytesMut::new(),
            hasher: crc32fast::Hasher::new(),
            checksum_verified: false,
        }
    }

    /// Bytes that have not been returned yet.
    fn remaining(&self) -> u64 {
        self.len - self.offset + self.window.len() as u64
    }

    /// Makes at least `n` bytes available in the window, or all that are left.
    fn fill(&mut self, n: usize) -> Result<(), StreamError> {
        while self.window.len() < n && self.offset < self.len {
            let requested = (n - self.window.len()).max(WINDOW_BYTES) as u64;
            let requested = requested.min(self.len - self.offset) as usize;
            let start = self.window.len();
            self.window.resize(start + requested, 0);
            let Some(part) = self.window.get_mut(start..) else {
                return malformed("invalid length");
            };
            let read = self
                .file
                .read_at(self.offset, part)
                .map_err(StreamError::Io)?;
            if read != requested {
                return malformed("staged file is truncated");
            }
            self.hasher.update(part);
            self.offset += read as u64;
        }
        Ok(())
    }

    fn take(&mut self, n: u64) -> Result<Bytes, StreamError> {
        if n > self.remaining() {
            return malformed("stream is truncated");
        }
        let n = n as usize;
        self.fill(n)?;
        Ok(self.window.split_to(n).freeze())
    }

    fn varint(&mut self) -> Result<u64, StreamError> {
        self.fill(10)?;
        let mut value = 0u64;
        for (n, byte) in self.window.iter().take(9).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * n);
            if byte & 0x80 == 0 {
                let _ = self.window.split_to(n + 1);
                return Ok(value);
            }
        }
        malformed("invalid number")
    }

    pub(crate) fn state(&mut self, bytes: u64) -> Result<Bytes, StreamError> {
        self.take(bytes)
    }

    /// The next entry; `None` at the end, after the checksum was verified.
    pub(crate) fn entry(&mut self) -> Result<Option<Entry>, StreamError> {
        if self.remaining() == 0 {
            self.verify_checksum()?;
            return Ok(None);
        }
        let index = self.varint()?;
        let term = self.varint()?;
        let kind = self.take(1)?.first().copied().unwrap_or_default();
        let len = self.varint()?;
        if index >= MAX_NUMBER || term >= MAX_NUMBER || len > wal::MAX_RECORD_BYTES {
            return malformed("invalid entry");
        }
        // Many entries share the window. That is fine, because they are written and dropped soon.
        let data = self.take(len)?;
        Ok(Some(Entry {
            index,
            term,
            kind,
            data,
        }))
    }

    fn verify_checksum(&mut self) -> Result<(), StreamError> {
        if self.checksum_verified {
            return Ok(());
        }
        let mut trailer = [0; TRAILER_BYTES as usize];
        let read = self
            .file
            .read_at(self.len, &mut trailer)
            .map_err(StreamError::Io)?;
        if read != trailer.len() || u32::from_le_bytes(trailer) != self.hasher.clone().finalize() {
            return malformed("checksum mismatch");
        }
        self.checksum_verified = true;
        Ok(())
    }
}
