//! The files of a classic queue: `classic/<queue id>/<number>.seg` with its messages, `.ack` with what is settled.
//!
//! Nothing here is synced: a classic queue survives the process, not always the machine (Q2). A segment goes when all
//! that was written to it is settled.

use super::record::{
    ACK_LEN, FOOTER_LEN, Footer, HEADER, Header, Ranges, parse_ack, parse_footer, put_ack,
    put_footer, put_message,
};
use bytes::{Bytes, BytesMut};
use env::{Disk, File};
use message::Message;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// A segment takes no further batch once it has this many bytes.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// How much is read at a time when messages come back from disk.
pub const READ_AHEAD: usize = 256 << 10;
/// Bytes read at a time when only headers are wanted.
const SCAN_BLOCK: usize = 64 << 10;
/// Settled messages that are remembered while the disk does not take them; beyond it a restart delivers them again.
const MAX_PENDING_ACKS: usize = 1 << 18;
/// Ack files larger than this are not of our making.
const MAX_ACK_FILE: u64 = 256 << 20;

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub segment: u32,
    pub offset: u64,
}

/// A message to be written.
pub(super) struct Draft<'a> {
    pub seq: u64,
    pub persistent: bool,
    pub body: u32,
    pub message: &'a Message,
}

/// A message that was read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub seq: u64,
    pub persistent: bool,
    pub recovered: bool,
    pub body: u32,
    pub place: Place,
    pub message: Message,
}

#[derive(Debug)]
pub(super) struct Segment {
    /// Bytes of whole records, footer included.
    len: u64,
    last_seq: u64,
    /// Written and not settled.
    live: u64,
    /// Of those, how many are still to be read.
    pub unread: u64,
    written: Footer,
    /// From before this process: transient and settled messages in it are passed over.
    recovered: bool,
    ack_len: u64,
}

pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    dir: String,
    pub list: BTreeMap<u32, Segment>,
    /// The segment that is written to, open while in use.
    current: Option<(u32, Option<Box<dyn File>>)>,
    next_number: u32,
    /// Settled and not yet in an ack file.
    acks: Vec<(u32, u64)>,
    /// The settled ones of the recovered segment that is being read.
    settled: Option<(u32, Ranges)>,
    made_dir: bool,
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segments")
            .field("dir", &self.dir)
            .field("list", &self.list)
            .finish_non_exhaustive()
    }
}

/// What a restart found.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    pub messages: u64,
    pub bytes: u64,
    pub last_seq: u64,
    pub faults: Vec<String>,
}

impl Segments {
    pub fn new(disk: Arc<dyn Disk>, dir: String) -> Segments {
        Segments {
            disk,
            dir,
            list: BTreeMap::new(),
            current: None,
            next_number: 1,
            acks: Vec::new(),
            settled: None,
            made_dir: false,
        }
    }

    fn path(&self, number: u32, kind: &str) -> String {
        format!("{}/{number:08x}.{kind}", self.dir)
    }

    /// Finds what an earlier process left. Reads headers and lengths, not bodies.
    pub fn recover(&mut self) -> io::Result<Recovered> {
        let mut found = Recovered::default();
        let names = self.disk.list(&self.dir)?;
        self.made_dir = !names.is_empty();
        let number = |name: &str, kind: &str| {
            let stem = name.strip_suffix(kind)?;
            u32::from_str_radix(stem, 16).ok()
        };
        let numbers: Vec<u32> = names.iter().filter_map(|n| number(n, ".seg")).collect();
        for acks in names.iter().filter_map(|n| number(n, ".ack")) {
            if !numbers.contains(&acks) {
                self.disk.remove(&self.path(acks, "ack"))?;
            }
        }
        for number in numbers {
            self.next_number = self.next_number.max(number.saturating_add(1));
            self.recover_segment(number, &mut found)?;
        }
        Ok(found)
    }

    fn recover_segment(&mut self, number: u32, found: &mut Recovered) -> io::Result<()> {
        let file = self.disk.open(&self.path(number, "seg"))?;
        let (settled, ack_len) = self.read_acks(number, &mut found.faults)?;
        let len = file.len()?;
        let mut tail = [0; FOOTER_LEN];
        let at = len.saturating_sub(FOOTER_LEN as u64);
        let read = file.read_at(at, &mut tail)?;
        let footer = tail.get(..read).and_then(parse_footer);
        let mut segment = Segment {
            len,
            last_seq: 0,
            live: 0,
            unread: 0,
            written: Footer::default(),
            recovered: true,
            ack_len,
        };
        match footer {
            Some(footer) if settled.is_empty() => segment.written = footer,
            _ => {
                let path = self.path(number, "seg");
                let (written, end) = scan(&*file, len, &settled, &path, &mut found.faults)?;
                segment.written = written;
                segment.len = end;
            }
        }
        segment.live = segment.written.messages;
        segment.unread = segment.live;
        segment.last_seq = segment.written.last_seq;
        found.last_seq = found.last_seq.max(segment.last_seq);
        found.messages = found.messages.saturating_add(segment.live);
        found.bytes = found.bytes.saturating_add(segment.written.bytes);
        if segment.live == 0 {
            return self.remove_files(number);
        }
        self.list.insert(number, segment);
        Ok(())
    }

    fn read_acks(&self, number: u32, faults: &mut Vec<String>) -> io::Result<(Ranges, u64)> {
        let path = self.path(number, "ack");
        let file = match self.disk.open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Ranges::default(), 0)),
            Err(e) => return Err(e),
        };
        let len = file.len()?.min(MAX_ACK_FILE);
        let mut raw = vec![0; len as usize];
        let read = file.read_at(0, &mut raw)?;
        raw.truncate(read);
        let whole = raw.len() / ACK_LEN * ACK_LEN;
        let mut ranges = Vec::new();
        for (n, entry) in raw.chunks_exact(ACK_LEN).enumerate() {
            match parse_ack(entry) {
                Some(range) => ranges.push(range),
                // Its messages are delivered once more.
                None => faults.push(format!("{path}: entry {n} is damaged")),
            }
        }
        Ok((Ranges::new(ranges), whole as u64))
    }

    /// Writes messages one after the other; on an error nothing counts as written and the call may be repeated.
    pub fn append(&mut self, drafts: &[Draft<'_>]) -> io::Result<Vec<Place>> {
        let Some(last) = drafts.last() else {
            return Ok(Vec::new());
        };
        let number = self.writable()?;
        let Some(segment) = self.list.get_mut(&number) else {
            return Err(io::Error::other(
                "the segment that is written to is not there",
            ));
        };
        let mut raw = BytesMut::new();
        let mut places = Vec::with_capacity(drafts.len());
        for draft in drafts {
            places.push(Place {
                segment: number,
                offset: segment.len + raw.len() as u64,
            });
            let payload = draft.message.as_bytes();
            put_message(&mut raw, draft.seq, draft.persistent, draft.body, payload);
        }
        let Some((_, Some(file))) = &self.current else {
            return Err(io::Error::other("no segment is open"));
        };
        file.write_at(segment.len, &raw)?;
        segment.len += raw.len() as u64;
        segment.last_seq = last.seq;
        segment.written.last_seq = last.seq;
        for draft in drafts.iter().filter(|d| d.persistent) {
            segment.written.messages += 1;
            segment.written.bytes += u64::from(draft.body);
        }
        segment.live += drafts.len() as u64;
        Ok(places)
    }

    /// The number of an open segment with room.
    fn writable(&mut self) -> io::Result<u32> {
        if let Some((number, file)) = &mut self.current {
            let number = *number;
            let segment = self.list.get(&number);
            if segment.is_some_and(|s| s.len < SEGMENT_BYTES) {
                if file.is_none() {
                    let path = format!("{}/{number:08x}.seg", self.dir);
                    *file = Some(self.disk.open(&path)?);
                }
                return Ok(number);
            }
            self.seal()?;
        }
        if !self.made_dir {
            self.disk.create_dir(&self.dir)?;
            self.made_dir = true;
        }
        let number = self.next_number;
        let file = self.disk.create(&self.path(number, "seg"))?;
        self.next_number = number.saturating_add(1);
        self.current = Some((number, Some(file)));
        self.list.insert(
            number,
            Segment {
                len: 0,
                last_seq: 0,
                live: 0,
                unread: 0,
                written: Footer::default(),
                recovered: false,
                ack_len: 0,
            },
        );
        Ok(number)
    }

    /// Ends the segment that is written to. Its footer spares the next start a scan.
    fn seal(&mut self) -> io::Result<()> {
        let Some((number, file)) = &mut self.current else {
            return Ok(());
        };
        let number = *number;
        if let (Some(segment), Some(file)) = (self.list.get_mut(&number), file) {
            let mut raw = BytesMut::new();
            put_footer(&mut raw, &segment.written);
            file.write_at(segment.len, &raw)?;
            segment.len += raw.len() as u64;
        }
        self.current = None;
        self.drop_if_dead(number)
    }

    /// Lets go of the open file: an idle queue holds no descriptor.
    pub fn rest(&mut self) {
        if let Some((_, file)) = &mut self.current {
            *file = None;
        }
    }

    /// Reads the records from `offset` of a segment on, at most [`READ_AHEAD`] bytes or one record. Returns the
    /// messages and where to go on; None at the segment's end.
    pub fn read(
        &mut self,
        number: u32,
        offset: u64,
        faults: &mut Vec<String>,
    ) -> io::Result<(Vec<Loaded>, Option<u64>)> {
        let Some(segment) = self.list.get(&number) else {
            return Ok((Vec::new(), None));
        };
        let (len, recovered) = (segment.len, segment.recovered);
        let left = len.saturating_sub(offset);
        if left == 0 {
            return Ok((Vec::new(), None));
        }
        if recovered && self.settled.as_ref().is_none_or(|(n, _)| *n != number) {
            let (ranges, _) = self.read_acks(number, &mut Vec::new())?;
            self.settled = Some((number, ranges));
        }
        let path = self.path(number, "seg");
        let file = self.disk.open(&path)?;
        let mut raw = read_exactly(&*file, offset, left.min(READ_AHEAD as u64))?;
        if let Some(header) = Header::parse(&raw) {
            let total = header.total();
            if total > raw.len() as u64 && total <= left {
                raw = read_exactly(&*file, offset, total)?;
            }
        }
        // A file that is shorter than what was written to it has lost its end.
        let cut = (raw.len() as u64) < left.min(READ_AHEAD as u64);
        let whole = cut || raw.len() as u64 == left;
        let settled = self.settled.as_ref().filter(|_| recovered);
        let passed = |h: &Header| {
            h.footer
                || recovered && !h.persistent
                || settled.is_some_and(|(n, r)| *n == number && r.contains(h.seq))
        };
        let mut reading = Reading {
            raw,
            at: 0,
            number,
            offset,
            recovered,
            path,
        };
        let loaded = reading.run(whole, &passed, faults);
        let next = offset + reading.at as u64;
        Ok((loaded, (next < len && !cut).then_some(next)))
    }

    /// The message at a place.
    pub fn read_one(&self, place: Place) -> io::Result<Message> {
        let path = self.path(place.segment, "seg");
        let file = self.disk.open(&path)?;
        let damaged = || {
            let what = format!("{path}: record at {} is damaged", place.offset);
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let raw = read_exactly(&*file, place.offset, HEADER as u64)?;
        let header = Header::parse(&raw).ok_or_else(damaged)?;
        let segment = self.list.get(&place.segment);
        if segment.is_none_or(|s| place.offset + header.total() > s.len) {
            return Err(damaged());
        }
        let at = place.offset + HEADER as u64;
        let payload = read_exactly(&*file, at, u64::from(header.len))?;
        if !header.payload_is_whole(&payload) {
            return Err(damaged());
        }
        Message::decode(payload).map_err(|_| damaged())
    }

    /// A written message is settled.
    pub fn settle(&mut self, segment: u32, seq: u64, persistent: bool) -> io::Result<()> {
        if let Some(s) = self.list.get_mut(&segment) {
            s.live = s.live.saturating_sub(1);
        }
        if persistent && self.acks.len() < MAX_PENDING_ACKS {
            self.acks.push((segment, seq));
        }
        self.drop_if_dead(segment)
    }

    /// Messages of a segment turned out to be unreadable.
    pub fn lose(&mut self, segment: u32, count: u64) -> io::Result<()> {
        if let Some(s) = self.list.get_mut(&segment) {
            s.live = s.live.saturating_sub(count);
        }
        self.drop_if_dead(segment)
    }

    fn drop_if_dead(&mut self, number: u32) -> io::Result<()> {
        if self.list.get(&number).is_none_or(|s| s.live > 0) {
            return Ok(());
        }
        if self.current.as_ref().is_some_and(|(n, _)| *n == number) {
            // An emptied queue gives its space back; a little is kept so that a busy one does not make files all day.
            if self
                .list
                .get(&number)
                .is_some_and(|s| s.len < SEGMENT_BYTES / 8)
            {
                return Ok(());
            }
            self.current = None;
        }
        self.list.remove(&number);
        self.acks.retain(|(n, _)| *n != number);
        self.remove_files(number)
    }

    /// The messages first: an ack file without its segment means nothing, the reverse would bring messages back.
    fn remove_files(&self, number: u32) -> io::Result<()> {
        for kind in ["seg", "ack"] {
            match self.disk.remove(&self.path(number, kind)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn has_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    /// Writes down what was settled.
    pub fn flush_acks(&mut self) -> io::Result<()> {
        let mut by_segment: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for (segment, seq) in &self.acks {
            by_segment.entry(*segment).or_default().push((*seq, *seq));
        }
        for (number, ranges) in by_segment {
            self.append_acks(number, &Ranges::new(ranges))?;
            self.acks.retain(|(n, _)| *n != number);
        }
        Ok(())
    }

    fn append_acks(&mut self, number: u32, ranges: &Ranges) -> io::Result<()> {
        let path = self.path(number, "ack");
        let Some(segment) = self.list.get_mut(&number) else {
            return Ok(());
        };
        let mut raw = BytesMut::new();
        for (from, to) in ranges.iter() {
            put_ack(&mut raw, from, to);
        }
        let file = match self.disk.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.disk.create(&path)?,
            other => other?,
        };
        file.write_at(segment.ack_len, &raw)?;
        segment.ack_len += raw.len() as u64;
        Ok(())
    }

    /// Everything is dropped but these, which are out (segment and number, ascending).
    pub fn keep_only(&mut self, held: &BTreeMap<u64, Place>) -> io::Result<()> {
        self.settled = None;
        let numbers: Vec<u32> = self.list.keys().copied().collect();
        for number in numbers {
            let kept: Vec<u64> = held
                .iter()
                .filter(|(_, place)| place.segment == number)
                .map(|(seq, _)| *seq)
                .collect();
            let Some(segment) = self.list.get_mut(&number) else {
                continue;
            };
            segment.live = kept.len() as u64;
            segment.unread = 0;
            let last = segment.last_seq;
            if !kept.is_empty() {
                let dropped = Ranges::new(between(&kept, last));
                self.append_acks(number, &dropped)?;
            } else if self.current.as_ref().is_some_and(|(n, _)| *n == number) {
                self.current = None;
            }
            self.drop_if_dead(number)?;
        }
        Ok(())
    }

    /// The queue is deleted: so are its files.
    pub fn destroy(&mut self) -> io::Result<()> {
        self.list.clear();
        self.acks.clear();
        self.current = None;
        self.settled = None;
        self.made_dir = false;
        self.disk.remove_dir(&self.dir)
    }
}

/// The numbers from 1 to `last` without `kept`.
fn between(kept: &[u64], last: u64) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut from = 1;
    for seq in kept {
        if from < *seq {
            ranges.push((from, seq - 1));
        }
        from = seq + 1;
    }
    if from <= last {
        ranges.push((from, last));
    }
    ranges
}

fn read_exactly(file: &dyn File, offset: u64, len: u64) -> io::Result<Bytes> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut raw = BytesMut::zeroed(len);
    let read = file.read_at(offset, &mut raw)?;
    raw.truncate(read);
    Ok(raw.freeze())
}

/// Records in a piece of a segment.
struct Reading {
    raw: Bytes,
    at: usize,
    number: u32,
    offset: u64,
    recovered: bool,
    path: String,
}

impl Reading {
    /// `whole`: the piece reaches the segment's end, so that a record cut short is damage.
    fn run(
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
        let message = Some(payload)
            .filter(|p| h.payload_is_whole(p))
            .and_then(|p| Message::decode(p).ok());
        let Some(message) = message else {
            return faults.push(self.fault("is damaged"));
        };
        into.push(Loaded {
            seq: h.seq,
            persistent: h.persistent,
            recovered: self.recovered,
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
fn scan(
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
