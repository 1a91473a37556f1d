//! Walking the records of a segment, damaged ones included.

use super::place::{Loaded, Number, Place};
use super::record::{Footer, HEADER, Header, Ranges};
use bytes::{Bytes, BytesMut};
use env::File;
use std::io;

/// Bytes read at a time when only headers are wanted.
const SCAN_BLOCK: usize = 64 << 10;

pub(super) fn read_exactly(file: &dyn File, offset: u64, len: u64) -> io::Result<Bytes> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut raw = BytesMut::zeroed(len);
    let read = file.read_at(offset, &mut raw)?;
    raw.truncate(read);
    Ok(raw.freeze())
}

/// Records in a piece of a segment.
pub(super) struct Reading {
    raw: Bytes,
    at: usize,
    number: Number,
    offset: u64,
    recovered: bool,
    path: String,
}

impl Reading {
    pub fn new(raw: Bytes, number: Number, offset: u64, recovered: bool, path: String) -> Reading {
        Reading {
            raw,
            at: 0,
            number,
            offset,
            recovered,
            path,
        }
    }

    /// Bytes that were passed.
    pub fn at(&self) -> usize {
        self.at
    }

    /// `whole`: the piece reaches the segment's end, so that a record cut short is damage.
    pub fn run(
        &mut self,
        whole: bool,
        passed: &dyn Fn(&Header) -> bool,
        faults: &mut Vec<String>,
    ) -> Vec<Loaded> {
        let mut loaded = Vec::new();
        while self.at < self.raw.len() {
            let rest = self.raw.slice(self.at..);
            let header = Header::parse(&rest);
            let short = |h: &Header| h.total() > rest.len() as u64;
            match header {
                None if !whole && rest.len() < HEADER => break,
                Some(h) if short(&h) && !whole && self.at > 0 => break,
                None => self.resync(&rest, whole, faults),
                Some(h) if short(&h) => {
                    faults.push(self.fault("ends early"));
                    self.at = self.raw.len();
                }
                Some(h) => {
                    if !passed(&h) {
                        self.take(&h, &rest, &mut loaded, faults);
                    }
                    self.at += h.total() as usize;
                }
            }
        }
        loaded
    }

    fn take(&self, h: &Header, rest: &Bytes, into: &mut Vec<Loaded>, faults: &mut Vec<String>) {
        let payload = rest.slice(HEADER..h.total() as usize);
        let Some((message, expires)) = h.message(&payload) else {
            return faults.push(self.fault("is damaged"));
        };
        into.push(Loaded {
            seq: h.seq,
            persistent: h.persistent,
            recovered: self.recovered,
            expires,
            body: h.body,
            place: Place {
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

    /// A header is damaged: goes on at the next one that is whole.
    fn resync(&mut self, rest: &Bytes, whole: bool, faults: &mut Vec<String>) {
        faults.push(self.fault("is damaged"));
        let next = (1..rest.len()).find(|at| rest.get(*at..).and_then(Header::parse).is_some());
        // One may begin in this piece and end in the next.
        let end = if whole {
            rest.len()
        } else {
            rest.len().saturating_sub(HEADER - 1).max(1)
        };
        self.at += next.unwrap_or(end);
    }
}

/// Walks a segment's headers. Returns what is live in it and where its last whole record ends.
pub(super) fn scan(
    file: &dyn File,
    len: u64,
    settled: &Ranges,
    path: &str,
    faults: &mut Vec<String>,
) -> io::Result<(Footer, u64)> {
    let mut found = Footer::default();
    let mut block = (0u64, Bytes::new());
    let mut at = 0u64;
    while at < len {
        let behind = at
            .checked_sub(block.0)
            .filter(|b| *b < block.1.len() as u64);
        let mut rest = behind.map_or(Bytes::new(), |b| block.1.slice(b as usize..));
        if rest.len() < HEADER {
            block = (
                at,
                read_exactly(file, at, SCAN_BLOCK.min((len - at) as usize) as u64)?,
            );
            rest = block.1.clone();
        }
        let header = Header::parse(&rest).filter(|h| at + h.total() <= len);
        let Some(header) = header else {
            // A torn tail, unless something whole follows.
            let Some(next) = next_header(file, at + 1, len)? else {
                faults.push(format!(
                    "{path}: torn at {at} of {len}, {} bytes cut off",
                    len - at
                ));
                break;
            };
            faults.push(format!("{path}: record at {at} is damaged"));
            at = next;
            continue;
        };
        if header.persistent && !header.footer && !settled.contains(header.seq) {
            found.messages += 1;
            found.bytes += u64::from(header.body);
        }
        found.last_seq = found.last_seq.max(header.seq);
        at += header.total();
    }
    Ok((found, at.min(len)))
}

/// The next place at or after `from` where a whole header is.
fn next_header(file: &dyn File, mut from: u64, len: u64) -> io::Result<Option<u64>> {
    while from < len {
        let block = read_exactly(file, from, (SCAN_BLOCK as u64).min(len - from))?;
        if block.len() < HEADER {
            return Ok(None);
        }
        let last = block.len() - HEADER;
        let whole = |at: &usize| {
            let header = block.get(*at..).and_then(Header::parse);
            header.is_some_and(|h| from + *at as u64 + h.total() <= len)
        };
        if let Some(at) = (0..=last).find(whole) {
            return Ok(Some(from + at as u64));
        }
        from += last as u64 + 1;
    }
    Ok(None)
}
