//! The files of a classic queue: `classic/<queue id>/<number>.seg` with its messages, `.ack` with what is settled.
//!
//! Each priority has segments of its own: whatever the depth, its messages are read one after the other and nothing is
//! remembered of each, and what was delivered of a high priority holds no space among low ones.
//!
//! Nothing here is synced: a classic queue survives the process, not always the machine (Q2). A segment goes when all
//! that was written to it is settled.

use super::clean_stop::{self, FirstUndelivered};
use super::inventory::{Inventory, SegmentCounts};
use super::location::{LoadedMessage, MessageLocation, PendingWrite, SegmentId, SegmentWrite};
use super::record::{
    ACK_LEN, FOOTER_LEN, HEADER, RecordFooter, RecordHeader, parse_ack, parse_footer, put_ack,
    put_footer,
};
use super::scan::{RecordReader, SCAN_BLOCK, SegmentSource, read_exactly};
use super::segment_header::{self, FileKind, HeaderCheck};
use crate::Losses;
use crate::ranges::Ranges;
use bytes::BytesMut;
use env::{Disk, File, Incarnation};
use ids::QueueId;
use message::Message;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// A segment takes no further batch once it has this many bytes.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// How much is read at a time when messages come back from disk.
pub const READ_AHEAD: usize = 256 << 10;
/// Settled messages that are remembered while the disk does not take them; beyond it a restart delivers them again.
const MAX_PENDING_ACKS: usize = 1 << 18;
/// Ack files larger than this are not of our making.
const MAX_ACK_FILE: u64 = 256 << 20;
/// Segments that stay open for writing at most; a queue with more priorities opens them anew for each batch.
const MAX_OPEN: usize = 8;

/// A segment that is written to.
struct ActiveSegment {
    number: SegmentId,
    /// None while it rests.
    file: Option<Box<dyn File>>,
}

#[derive(Debug)]
pub(super) struct Segment {
    /// Where its records begin.
    start: u64,
    /// Bytes of whole records, footer included.
    len: u64,
    last_seq: u64,
    /// Written and not settled.
    live: u64,
    /// Of those, how many are still to be read.
    pub unread: u64,
    written: RecordFooter,
    /// From before this process: transient and settled messages in it are passed over.
    recovered: bool,
    ack_len: u64,
}

pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    queue: QueueId,
    dir: String,
    pub list: BTreeMap<SegmentId, Segment>,
    /// By lane.
    current: BTreeMap<u8, ActiveSegment>,
    /// The last number given, by lane.
    last_number: BTreeMap<u8, SegmentId>,
    /// Settled and not yet in an ack file.
    acks: Vec<(SegmentId, u64)>,
    /// The settled ones of the recovered segment that is being read, by lane.
    settled: BTreeMap<u8, (SegmentId, Ranges)>,
    made_dir: bool,
    inventory: Inventory,
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
pub(super) struct RecoveredSegments {
    /// By lane.
    pub messages: BTreeMap<u8, u64>,
    pub bytes: u64,
    pub last_seq: u64,
    /// Some of them may have a time to live.
    pub may_expire: bool,
    /// As the last life said when it stopped; empty when it did not.
    pub undelivered: FirstUndelivered,
    pub lost: Losses,
    pub faults: Vec<String>,
}

impl Segments {
    pub fn new(disk: Arc<dyn Disk>, queue: QueueId) -> Segments {
        let dir = format!("classic/{:016x}", queue.0);
        Segments {
            disk,
            queue,
            inventory: Inventory::new(queue),
            dir,
            list: BTreeMap::new(),
            current: BTreeMap::new(),
            last_number: BTreeMap::new(),
            acks: Vec::new(),
            settled: BTreeMap::new(),
            made_dir: false,
        }
    }

    fn path(&self, number: SegmentId, kind: &str) -> String {
        format!("{}/{number:08x}.{kind}", self.dir)
    }

    /// The first segment of a lane, or the first after another one of it.
    pub fn first(&self, lane: u8, after: Option<SegmentId>) -> Option<SegmentId> {
        let from = after.map_or(0, |number| number.count().saturating_add(1));
        let range = SegmentId::new(lane, from)..=SegmentId::new(lane, u32::MAX);
        self.list.range(range).next().map(|(number, _)| *number)
    }

    /// The open segment of this number, if it is written to.
    fn is_current(&self, number: SegmentId) -> bool {
        let current = self.current.get(&number.lane());
        current.is_some_and(|c| c.number == number)
    }

    /// Forgets what a recovery found that did not come to its end.
    pub fn reset(&mut self) {
        *self = Segments::new(Arc::clone(&self.disk), self.queue);
    }

    /// Finds what an earlier process left. Reads headers and lengths, not bodies.
    pub fn recover(&mut self, incarnation: Incarnation) -> io::Result<RecoveredSegments> {
        let mut found = RecoveredSegments::default();
        let names = self.disk.list(&self.dir)?;
        self.made_dir = !names.is_empty();
        if names.iter().any(|name| name == clean_stop::NAME) {
            let left = clean_stop::read(&*self.disk, &self.stopped(), self.queue, incarnation)?;
            found.undelivered = left.unwrap_or_default();
        }
        let number = |name: &str, kind: &str| SegmentId::parse(name.strip_suffix(kind)?);
        let numbers: Vec<SegmentId> = names.iter().filter_map(|n| number(n, ".seg")).collect();
        let mut listed = self.inventory.read(&*self.disk)?;
        match names.is_empty() && !listed.is_empty() {
            true => self.tell_missing_directory(&listed, &mut found),
            false => self.tell_missing(&listed, &numbers, &names, &mut found)?,
        }
        for acks in names.iter().filter_map(|n| number(n, ".ack")) {
            if !numbers.contains(&acks) {
                self.disk.remove(&self.path(acks, "ack"))?;
            }
        }
        for number in numbers {
            let last = self.last_number.entry(number.lane()).or_insert(number);
            *last = (*last).max(number);
            let acks = names.contains(&format!("{number:08x}.ack"));
            let written = listed.get(&number).copied().flatten();
            self.recover_segment(number, acks, written, &mut found)?;
        }
        let changes = listed.len();
        listed.retain(|number, _| self.list.contains_key(number));
        let known = listed.len();
        for number in self.list.keys() {
            listed.entry(*number).or_insert(None);
        }
        let is_long = self.inventory.is_long(&listed);
        if known < changes || known < listed.len() || is_long {
            self.inventory.rewrite(&*self.disk, &listed);
        }
        Ok(found)
    }

    /// All files of the queue are missing, mostly with their directory: what was settled in them is not known either.
    fn tell_missing_directory(&self, listed: &SegmentCounts, found: &mut RecoveredSegments) {
        let written: Option<u64> = listed.values().copied().sum();
        let what = match written {
            Some(written) => format!("{written} messages are lost at most"),
            None => "its messages are lost, how many is not known".to_owned(),
        };
        let dir = &self.dir;
        found
            .faults
            .push(format!("{dir}/ is missing or empty: {what}"));
        found.lost.add(written, listed.len() as u64);
    }

    /// Segments that the inventory has and the directory has not.
    fn tell_missing(
        &self,
        listed: &SegmentCounts,
        there: &[SegmentId],
        names: &[String],
        found: &mut RecoveredSegments,
    ) -> io::Result<()> {
        for (number, written) in listed.iter().filter(|(n, _)| !there.contains(n)) {
            let path = self.path(*number, "seg");
            let settled = match names.contains(&format!("{number:08x}.ack")) {
                true => self.read_acks(*number, &mut found.faults)?.0.count(),
                false => 0,
            };
            let lost = written.map(|written| written.saturating_sub(settled));
            let what = match lost {
                Some(lost) => format!("{path} is missing: {lost} messages are lost"),
                None => format!("{path} is missing: its messages are lost, how many is not known"),
            };
            found.faults.push(what);
            found.lost.add(lost, 1);
        }
        Ok(())
    }

    /// Notes in the inventory how many messages each current segment has: none is added before the node starts again.
    pub fn count_current(&mut self) {
        for current in self.current.values() {
            if let Some(segment) = self.list.get(&current.number) {
                let messages = segment.written.messages;
                self.inventory.count(&*self.disk, current.number, messages);
            }
        }
    }

    fn stopped(&self) -> String {
        format!("{}/{}", self.dir, clean_stop::NAME)
    }

    /// For the next life.
    pub fn leave_stopped(
        &self,
        incarnation: Incarnation,
        undelivered: &FirstUndelivered,
    ) -> io::Result<()> {
        if !self.made_dir {
            return Ok(());
        }
        let path = self.stopped();
        clean_stop::write(&*self.disk, &path, self.queue, incarnation, undelivered)
    }

    pub fn revoke_stopped(&self) -> io::Result<()> {
        match clean_stop::revoke(&*self.disk, &self.stopped()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// `acks`: it has an ack file. `written`: as many persistent messages as it should have.
    fn recover_segment(
        &mut self,
        number: SegmentId,
        acks: bool,
        written: Option<u64>,
        found: &mut RecoveredSegments,
    ) -> io::Result<()> {
        let path = self.path(number, "seg");
        let file = self.disk.open(&path)?;
        let len = file.len()?;
        let faults_before = found.faults.len();
        // All of a small file at once: there may be a hundred thousand.
        let head = read_exactly(&*file, 0, len.min(SCAN_BLOCK))?;
        self.check_header(&head, FileKind::Segment, number, &path, &mut found.faults)?;
        let start = segment_header::LEN as u64;
        let (settled, ack_len) = match acks {
            true => self.read_acks(number, &mut found.faults)?,
            false => (Ranges::default(), 0),
        };
        let tail = len.saturating_sub(FOOTER_LEN as u64);
        let footer = match head.get(tail as usize..) {
            Some(raw) if len <= SCAN_BLOCK => parse_footer(raw),
            _ => parse_footer(&read_exactly(&*file, tail, FOOTER_LEN as u64)?),
        };
        let mut segment = Segment {
            start,
            len,
            last_seq: 0,
            live: 0,
            unread: 0,
            written: RecordFooter::default(),
            recovered: true,
            ack_len,
        };
        match footer {
            Some(footer) if settled.is_empty() => {
                segment.written = footer;
                found.may_expire |= footer.messages > 0;
            }
            _ => {
                let source = SegmentSource {
                    file: &*file,
                    path: &path,
                    head,
                    start,
                    len,
                };
                let scanned = source.scan(&settled, &mut found.faults)?;
                segment.written = scanned.live;
                segment.len = scanned.end;
                found.may_expire |= scanned.may_expire;
            }
        }
        if let Some(written) = written
            && found.faults.len() == faults_before
        {
            let lost = written.saturating_sub(settled.count() + segment.written.messages);
            if lost > 0 {
                found
                    .faults
                    .push(format!("{path} is cut off: {lost} messages are lost"));
                found.lost.add(Some(lost), 1);
            }
        }
        segment.live = segment.written.messages;
        segment.unread = segment.live;
        segment.last_seq = segment.written.last_seq;
        found.last_seq = found.last_seq.max(segment.last_seq);
        let messages = found.messages.entry(number.lane()).or_default();
        *messages = messages.saturating_add(segment.live);
        found.bytes = found.bytes.saturating_add(segment.written.bytes);
        if segment.live == 0 {
            return match found.faults.len() > faults_before {
                // What is damaged is nobody's to throw away.
                true => self.set_aside(number, &path, found),
                false => self.remove_files(number),
            };
        }
        self.list.insert(number, segment);
        Ok(())
    }

    /// A segment in which nothing can be read gets another name, under which it goes with the queue.
    fn set_aside(
        &mut self,
        number: SegmentId,
        path: &str,
        found: &mut RecoveredSegments,
    ) -> io::Result<()> {
        self.inventory.remove(&*self.disk, number);
        let aside = format!("{path}.damaged");
        self.disk.rename(path, &aside)?;
        found.faults.push(format!("{path}: kept as {aside}"));
        Ok(())
    }

    /// Checks the header of a file. The error is that another queue or a newer version wrote it.
    fn check_header(
        &self,
        raw: &[u8],
        kind: FileKind,
        number: SegmentId,
        path: &str,
        faults: &mut Vec<String>,
    ) -> io::Result<()> {
        let check = segment_header::check(raw, kind, self.queue, number).map_err(|what| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{path}: {what}; it is left untouched"),
            )
        })?;
        if check == HeaderCheck::Damaged {
            faults.push(format!(
                "{path}: its first {} bytes are damaged",
                segment_header::LEN
            ));
        }
        Ok(())
    }

    fn read_acks(&self, number: SegmentId, faults: &mut Vec<String>) -> io::Result<(Ranges, u64)> {
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
        self.check_header(&raw, FileKind::Acks, number, &path, faults)?;
        let Some(entries) = raw.get(segment_header::LEN..) else {
            // Not even the header is complete: it is written again with the next entry.
            return Ok((Ranges::default(), 0));
        };
        let whole = segment_header::LEN + entries.len() / ACK_LEN * ACK_LEN;
        let mut ranges = Vec::new();
        for (n, entry) in entries.chunks_exact(ACK_LEN).enumerate() {
            match parse_ack(entry) {
                Some(range) => ranges.push(range),
                // Its messages are delivered once more.
                None => faults.push(format!("{path}: entry {n} is damaged")),
            }
        }
        Ok((Ranges::new(ranges), whole as u64))
    }

    /// Writes messages, of each lane one after the other. On an error nothing counts as written and the call may be
    /// repeated.
    pub fn append(&mut self, drafts: &[PendingWrite<'_>]) -> io::Result<Vec<MessageLocation>> {
        let mut parts: Vec<SegmentWrite> = Vec::new();
        let mut places = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let known = parts.iter().position(|p| p.number.lane() == draft.lane);
            let at = match known {
                Some(at) => at,
                None => {
                    parts.push(self.part(draft.lane)?);
                    parts.len() - 1
                }
            };
            places.extend(parts.get_mut(at).map(|part| part.push(draft)));
        }
        for part in &parts {
            let current = self.current.get(&part.number.lane());
            let Some(file) = current.and_then(|c| c.file.as_ref()) else {
                return Err(io::Error::other("no segment is open"));
            };
            file.write_at(part.at, &part.raw)?;
        }
        for part in parts {
            let Some(segment) = self.list.get_mut(&part.number) else {
                continue;
            };
            segment.len += part.raw.len() as u64;
            segment.last_seq = part.last_seq;
            segment.live += part.messages;
            segment.written.last_seq = part.last_seq;
            segment.written.messages += part.persistent;
            segment.written.bytes += part.persistent_bytes;
        }
        let open = self.current.values().filter(|c| c.file.is_some()).count();
        if open > MAX_OPEN || !self.disk.may_keep_open() {
            self.rest();
        }
        Ok(places)
    }

    /// An empty part at the end of an open segment with room.
    fn part(&mut self, lane: u8) -> io::Result<SegmentWrite> {
        let number = self.writable(lane)?;
        let Some(segment) = self.list.get(&number) else {
            return Err(io::Error::other(
                "the segment that is written to is not there",
            ));
        };
        let mut raw = BytesMut::new();
        if segment.len == 0 {
            segment_header::put(&mut raw, FileKind::Segment, self.queue, number);
        }
        Ok(SegmentWrite::new(number, segment.len, raw))
    }

    /// The number of a lane's open segment with room.
    fn writable(&mut self, lane: u8) -> io::Result<SegmentId> {
        if let Some(current) = self.current.get_mut(&lane) {
            let number = current.number;
            let segment = self.list.get(&number);
            if segment.is_some_and(|s| s.len < SEGMENT_BYTES) {
                if current.file.is_none() {
                    let path = format!("{}/{number:08x}.seg", self.dir);
                    current.file = Some(self.disk.open(&path)?);
                }
                return Ok(number);
            }
            self.seal(lane)?;
        }
        if !self.made_dir {
            self.disk.create_dir(&self.dir)?;
            self.made_dir = true;
        }
        let count = self.last_number.get(&lane).map_or(0, |last| last.count());
        let number = SegmentId::new(lane, count.saturating_add(1));
        let file = Some(self.disk.create(&self.path(number, "seg"))?);
        self.inventory.add(&*self.disk, number);
        self.last_number.insert(lane, number);
        self.current.insert(lane, ActiveSegment { number, file });
        self.list.insert(
            number,
            Segment {
                start: segment_header::LEN as u64,
                len: 0,
                last_seq: 0,
                live: 0,
                unread: 0,
                written: RecordFooter::default(),
                recovered: false,
                ack_len: 0,
            },
        );
        Ok(number)
    }

    /// Ends a lane's segment that is written to. Its footer spares the next start a scan.
    fn seal(&mut self, lane: u8) -> io::Result<()> {
        let Some(current) = self.current.get_mut(&lane) else {
            return Ok(());
        };
        let number = current.number;
        if current.file.is_none() {
            let path = format!("{}/{number:08x}.seg", self.dir);
            current.file = Some(self.disk.open(&path)?);
        }
        if let (Some(segment), Some(file)) = (self.list.get_mut(&number), &current.file) {
            let mut raw = BytesMut::new();
            put_footer(&mut raw, &segment.written);
            file.write_at(segment.len, &raw)?;
            segment.len += raw.len() as u64;
            let messages = segment.written.messages;
            self.inventory.count(&*self.disk, number, messages);
        }
        self.current.remove(&lane);
        self.drop_if_dead(number)
    }

    /// Lets go of the open files: an idle queue holds no descriptor.
    pub fn rest(&mut self) {
        for current in self.current.values_mut() {
            current.file = None;
        }
    }

    /// Reads the records from `offset` of a segment on, at most `ahead` bytes or one record. Returns the messages and
    /// where to go on; None at the segment's end.
    pub fn read(
        &mut self,
        number: SegmentId,
        offset: u64,
        ahead: usize,
        faults: &mut Vec<String>,
    ) -> io::Result<(Vec<LoadedMessage>, Option<u64>)> {
        let Some(segment) = self.list.get(&number) else {
            return Ok((Vec::new(), None));
        };
        let (len, recovered) = (segment.len, segment.recovered);
        let offset = offset.max(segment.start);
        let left = len.saturating_sub(offset);
        if left == 0 {
            return Ok((Vec::new(), None));
        }
        let lane = number.lane();
        if recovered && self.settled.get(&lane).is_none_or(|(n, _)| *n != number) {
            let (ranges, _) = self.read_acks(number, &mut Vec::new())?;
            self.settled.insert(lane, (number, ranges));
        }
        let path = self.path(number, "seg");
        let file = self.disk.open(&path)?;
        let mut raw = read_exactly(&*file, offset, left.min(ahead as u64))?;
        if let Some(header) = RecordHeader::parse(&raw) {
            let total = header.total();
            if total > raw.len() as u64 && total <= left {
                raw = read_exactly(&*file, offset, total)?;
            }
        }
        // A file that is shorter than what was written to it has lost its end.
        let cut = (raw.len() as u64) < left.min(ahead as u64);
        let whole = cut || raw.len() as u64 == left;
        let settled = self.settled.get(&lane).filter(|_| recovered);
        let passed = |h: &RecordHeader| {
            h.footer
                || recovered && !h.persistent
                || settled.is_some_and(|(n, r)| *n == number && r.contains(h.seq))
        };
        let mut reading = RecordReader::new(raw, number, offset, path);
        let loaded = reading.run(whole, &passed, faults);
        let next = offset + reading.at() as u64;
        Ok((loaded, (next < len && !cut).then_some(next)))
    }

    /// The message at a place.
    pub fn read_one(&self, location: MessageLocation) -> io::Result<Message> {
        let path = self.path(location.segment, "seg");
        let file = self.disk.open(&path)?;
        let damaged = || {
            let what = format!("{path}: record at {} is damaged", location.offset);
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let raw = read_exactly(&*file, location.offset, HEADER as u64)?;
        let header = RecordHeader::parse(&raw).ok_or_else(damaged)?;
        let segment = self.list.get(&location.segment);
        if segment.is_none_or(|s| location.offset + header.total() > s.len) {
            return Err(damaged());
        }
        let at = location.offset + HEADER as u64;
        let payload = read_exactly(&*file, at, u64::from(header.len))?;
        let (message, _) = header.message(&payload).ok_or_else(damaged)?;
        Ok(message)
    }

    /// A written message is settled.
    pub fn settle(&mut self, segment: SegmentId, seq: u64, persistent: bool) -> io::Result<()> {
        if let Some(s) = self.list.get_mut(&segment) {
            s.live = s.live.saturating_sub(1);
        }
        if persistent && self.acks.len() < MAX_PENDING_ACKS {
            self.acks.push((segment, seq));
        }
        self.drop_if_dead(segment)
    }

    /// Messages of a segment turned out to be unreadable.
    pub fn lose(&mut self, segment: SegmentId, count: u64) -> io::Result<()> {
        if let Some(s) = self.list.get_mut(&segment) {
            s.live = s.live.saturating_sub(count);
        }
        self.drop_if_dead(segment)
    }

    fn drop_if_dead(&mut self, number: SegmentId) -> io::Result<()> {
        if self.list.get(&number).is_none_or(|s| s.live > 0) {
            return Ok(());
        }
        if self.is_current(number) {
            // An emptied queue gives its space back; a little is kept so that a busy one does not make files all day.
            if self
                .list
                .get(&number)
                .is_some_and(|s| s.len < SEGMENT_BYTES / 8)
            {
                return Ok(());
            }
            self.current.remove(&number.lane());
        }
        self.list.remove(&number);
        self.acks.retain(|(n, _)| *n != number);
        self.remove_files(number)
    }

    /// The messages first: an ack file without its segment means nothing, the reverse would bring messages back.
    fn remove_files(&mut self, number: SegmentId) -> io::Result<()> {
        self.inventory.remove(&*self.disk, number);
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
        let mut by_segment: BTreeMap<SegmentId, Vec<(u64, u64)>> = BTreeMap::new();
        for (segment, seq) in &self.acks {
            by_segment.entry(*segment).or_default().push((*seq, *seq));
        }
        for (number, ranges) in by_segment {
            self.append_acks(number, &Ranges::new(ranges))?;
            self.acks.retain(|(n, _)| *n != number);
        }
        Ok(())
    }

    fn append_acks(&mut self, number: SegmentId, ranges: &Ranges) -> io::Result<()> {
        let path = self.path(number, "ack");
        let Some(segment) = self.list.get_mut(&number) else {
            return Ok(());
        };
        let mut raw = BytesMut::new();
        if segment.ack_len == 0 {
            segment_header::put(&mut raw, FileKind::Acks, self.queue, number);
        }
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
    pub fn keep_only(&mut self, held: &BTreeMap<u64, MessageLocation>) -> io::Result<()> {
        self.settled.clear();
        let numbers: Vec<SegmentId> = self.list.keys().copied().collect();
        for number in numbers {
            let kept: Vec<u64> = held
                .iter()
                .filter(|(_, location)| location.segment == number)
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
            } else if self.is_current(number) {
                self.current.remove(&number.lane());
            }
            self.drop_if_dead(number)?;
        }
        Ok(())
    }

    /// The queue is deleted: so are its files.
    pub fn destroy(&mut self) -> io::Result<()> {
        self.list.clear();
        self.acks.clear();
        self.current.clear();
        self.settled.clear();
        self.made_dir = false;
        // First: a list without its directory would tell of a loss.
        self.inventory.destroy(&*self.disk)?;
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
