//! A checkpoint as a stream of bytes: the state, the live entries one after the other, the CRC-32 of all before it.
//!
//! An entry is index, term (LEB128), kind (1 byte), length of its data (LEB128), data.

use super::Checkpoint;
use crate::entry::{MAX_NUMBER, put_varint};
use bytes::{BufMut, Bytes, BytesMut};
use env::File;
use segment::SegmentError;
use wal::Entry;

/// The checksum behind everything else.
pub const TRAILER_BYTES: u64 = 4;
const WINDOW_BYTES: usize = 256 << 10;

/// What is in a stream, as its offer said.
#[derive(Clone, Debug)]
pub struct Contents {
    pub checkpoint: Checkpoint,
    pub state_bytes: u64,
    pub entries: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
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

pub fn put_entry(out: &mut BytesMut, entry: &Entry) {
    put_varint(out, entry.index);
    put_varint(out, entry.term);
    out.put_u8(entry.kind);
    put_varint(out, entry.data.len() as u64);
    out.put_slice(&entry.data);
}

/// Reads a staged stream.
pub struct Reader<'a> {
    file: &'a dyn File,
    /// Of the stream without its checksum.
    len: u64,
    /// Of the file, read so far.
    offset: u64,
    window: BytesMut,
    hasher: crc32fast::Hasher,
    checked: bool,
}

impl<'a> Reader<'a> {
    pub fn new(file: &'a dyn File, bytes: u64) -> Reader<'a> {
        Reader {
            file,
            len: bytes.saturating_sub(TRAILER_BYTES),
            offset: 0,
            window: BytesMut::new(),
            hasher: crc32fast::Hasher::new(),
            checked: false,
        }
    }

    /// Bytes that were not handed out yet.
    fn left(&self) -> u64 {
        self.len - self.offset + self.window.len() as u64
    }

    /// At least `n` bytes in the window, or all that are left.
    fn fill(&mut self, n: usize) -> Result<(), StreamError> {
        while self.window.len() < n && self.offset < self.len {
            let want = (n - self.window.len()).max(WINDOW_BYTES) as u64;
            let want = want.min(self.len - self.offset) as usize;
            let start = self.window.len();
            self.window.resize(start + want, 0);
            let Some(part) = self.window.get_mut(start..) else {
                return malformed("impossible length");
            };
            let got = self
                .file
                .read_at(self.offset, part)
                .map_err(StreamError::Io)?;
            if got != want {
                return malformed("staged file is cut off");
            }
            self.hasher.update(part);
            self.offset += got as u64;
        }
        Ok(())
    }

    fn take(&mut self, n: u64) -> Result<Bytes, StreamError> {
        if n > self.left() {
            return malformed("stream ends too early");
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
        malformed("impossible number")
    }

    pub fn state(&mut self, bytes: u64) -> Result<Bytes, StreamError> {
        self.take(bytes)
    }

    /// The next entry; `None` at the end, once the checksum was found right.
    pub fn entry(&mut self) -> Result<Option<Entry>, StreamError> {
        if self.left() == 0 {
            self.check()?;
            return Ok(None);
        }
        let index = self.varint()?;
        let term = self.varint()?;
        let kind = self.take(1)?.first().copied().unwrap_or_default();
        let len = self.varint()?;
        if index >= MAX_NUMBER || term >= MAX_NUMBER || len > wal::MAX_RECORD_BYTES {
            return malformed("impossible entry");
        }
        // The window is shared by many entries, most of which are written and forgotten at once.
        let data = self.take(len)?;
        Ok(Some(Entry {
            index,
            term,
            kind,
            data,
        }))
    }

    fn check(&mut self) -> Result<(), StreamError> {
        if self.checked {
            return Ok(());
        }
        let mut trailer = [0; TRAILER_BYTES as usize];
        let got = self
            .file
            .read_at(self.len, &mut trailer)
            .map_err(StreamError::Io)?;
        if got != trailer.len() || u32::from_le_bytes(trailer) != self.hasher.clone().finalize() {
            return malformed("checksum is wrong");
        }
        self.checked = true;
        Ok(())
    }
}
