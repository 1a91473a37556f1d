//! Reading the records of a segment, which may be damaged.

use super::location::{LoadedMessage, MessageLocation, SegmentId};
use super::record::{HEADER, RecordFooter, RecordHeader};
use crate::ranges::Ranges;
use bytes::{Bytes, BytesMut};
use env::File;
use std::io;

/// Bytes read at a time when only headers are needed.
pub(super) const SCAN_BLOCK: u64 = 64 << 10;

/// Reads up to `len` bytes; fewer at the end of the file.
pub(super) fn read_exactly(file: &dyn File, offset: u64, len: u64) -> io::Result<Bytes> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut raw = BytesMut::zeroed(len);
    let read = file.read_at(offset, &mut raw)?;
    raw.truncate(read);
    Ok(raw.freeze())
}

/// Reads the records in a piece of a segment.
pub(super) struct RecordReader {
    raw: Bytes,
    at: usize,
    number: SegmentId,
    offset: u64,
    path: String,
}

impl RecordReader {
    pub(crate) fn new(raw: Bytes, number: SegmentId, offset: u64, path: String) -> RecordReader {
        RecordReader {
            raw,
            at: 0,
            number,
            offset,
            path,
        }
    }

    /// Number of bytes that were read.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the messages that `passed` does not skip. `whole`: the piece reaches the end of the segment, so
    /// an incomplete record is damage.
    pub(crate) fn read_all(
        &mut self,
        reaches_end: bool,
        skips: &dyn Fn(&RecordHeader) -> bool,
        faults: &mut Vec<String>,
    ) -> Vec<LoadedMessage> {
        let mut loaded = Vec::new();
        while self.at < self.raw.len() {
            let remaining = self.raw.slice(self.at..);
            let header = RecordHeader::parse(&remaining);
            let is_incomplete = |h: &RecordHeader| h.total() > remaining.len() as u64;
            match header {
                None if !reaches_end && remaining.len() < HEADER => break,
                Some(h) if is_incomplete(&h) && !reaches_end && self.at > 0 => break,
                None => self.resync(&remaining, reaches_end, faults),
                Some(h) if is_incomplete(&h) => {
                    faults.push(self.fault("ends early"));
                    self.at = self.raw.len();
                }
                Some(h) => {
                    if !skips(&h) {
                        self.read_message(&h, &remaining, &mut loaded, faults);
                    }
                    self.at += h.total() as usize;
                }
            }
        }
        debug_assert!(self.at <= self.raw.len());
        loaded
    }

    fn read_message(
        &self,
        h: &RecordHeader,
        remaining: &Bytes,
        into: &mut Vec<LoadedMessage>,
        faults: &mut Vec<String>,
    ) {
        let payload = remaining.slice(HEADER..h.total() as usize);
        let Some((message, expires)) = h.message(&payload) else {
            return faults.push(self.fault("is damaged"));
        };
        into.push(LoadedMessage {
            seq: h.seq,
            persistent: h.persistent,
            expires,
            body: h.body,
            location: MessageLocation {
                segment: self.number,
                offset: self.offset + self.at as u64,
            },
            message,
        });
    }

    fn fault(&self, what: &str) -> String {
        let at = self.offset + self.at as u64;
        format!("{}: record at {at} {what}", self.path)
    }

    /// Continues after a damaged header, at the next intact one.
    fn resync(&mut self, remaining: &Bytes, reaches_end: bool, faults: &mut Vec<String>) {
        faults.push(self.fault("is damaged"));
        let next = (1..remaining.len())
            .find(|at| remaining.get(*at..).and_then(RecordHeader::parse).is_some());
        // A header may begin in this piece and end in the next one.
        let end = if reaches_end {
            remaining.len()
        } else {
            remaining.len().saturating_sub(HEADER - 1).max(1)
        };
        self.at += next.unwrap_or(end);
    }
}

/// A segment to scan.
pub(super) struct SegmentSource<'a> {
    pub file: &'a dyn File,
    pub path: &'a str,
    /// The first bytes of the file.
    pub head: Bytes,
    /// Offset of the first record.
    pub start: u64,
    pub len: u64,
}

/// Result of a scan.
#[derive(Debug, Default)]
pub(super) struct ScannedSegment {
    /// Persistent messages that are not settled.
    pub live: RecordFooter,
    /// End of the last complete record.
    pub end: u64,
    /// Some of the live messages have a TTL.
    pub may_expire: bool,
}

impl SegmentSource<'_> {
    /// Reads the headers of a segment.
    pub(crate) fn scan(
        self,
        settled: &Ranges,
        faults: &mut Vec<String>,
    ) -> io::Result<ScannedSegment> {
        let (file, path, len) = (self.file, self.path, self.len);
        let mut found = ScannedSegment::default();
        let mut block = (0u64, self.head);
        let mut at = self.start;
        while at < len {
            let offset_in_block = at
                .checked_sub(block.0)
                .filter(|b| *b < block.1.len() as u64);
            let mut remaining =
                offset_in_block.map_or(Bytes::new(), |b| block.1.slice(b as usize..));
            if remaining.len() < HEADER && at + (remaining.len() as u64) < len {
                block = (at, read_exactly(file, at, SCAN_BLOCK.min(len - at))?);
                remaining = block.1.clone();
            }
            let header = RecordHeader::parse(&remaining).filter(|h| at + h.total() <= len);
            let Some(header) = header else {
                // A torn tail, unless an intact record follows.
                let Some(next) = next_header(file, at + 1, len)? else {
                    let lost = len - at;
                    faults.push(format!(
                        "{path}: torn at {at} of {len}, {lost} bytes cut off"
                    ));
                    break;
                };
                faults.push(format!("{path}: record at {at} is damaged"));
                at = next;
                continue;
            };
            if header.persistent && !header.footer && !settled.contains(header.seq) {
                found.live.messages += 1;
                found.live.bytes += u64::from(header.body);
                found.may_expire |= header.expires;
            }
            found.live.last_seq = found.live.last_seq.max(header.seq);
            at += header.total();
        }
        found.end = at.min(len);
        Ok(found)
    }
}

/// The next offset from `from` on with an intact header.
fn next_header(file: &dyn File, mut from: u64, len: u64) -> io::Result<Option<u64>> {
    while from < len {
        let block = read_exactly(file, from, SCAN_BLOCK.min(len - from))?;
        if block.len() < HEADER {
            return Ok(None);
        }
        let last = block.len() - HEADER;
        let reaches_end = |at: &usize| {
            let header = block.get(*at..).and_then(RecordHeader::parse);
            header.is_some_and(|h| from + *at as u64 + h.total() <= len)
        };
        if let Some(at) = (0..=last).find(reaches_end) {
            return Ok(Some(from + at as u64));
        }
        from += last as u64 + 1;
    }
    Ok(None)
}
