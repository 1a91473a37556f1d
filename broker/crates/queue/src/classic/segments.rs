//! The files of a classic queue: messages in `classic/<queue id>/<number>.seg`, settlements in `.ack`.
//!
//! Each priority has its own segments. So the messages of a priority are read sequentially at any queue depth
//! without an index in memory, and delivered messages of a high priority take no space among those of a low
//! one.
//!
//! Nothing here is synced: a classic queue survives a crash of the process, but not always one of the machine.
//! A segment is deleted when all messages in it are settled.

mod picking;

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
use picking::PickedMessages;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// A segment of this size takes no further batch.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// Bytes read at a time when messages are read back from disk.
pub const READ_AHEAD: usize = 256 << 10;
/// Most settlements in memory while the disk accepts no writes. Further ones are dropped, so a restart delivers
/// their messages again.
const MAX_PENDING_ACKS: usize = 1 << 18;
/// A larger ack file was not written by this queue.
const MAX_ACK_FILE: u64 = 256 << 20;
/// Most segments that stay open for writing. A queue with more priorities reopens them for each batch.
const MAX_OPEN: usize = 8;

/// A segment that is being written.
struct ActiveSegment {
    number: SegmentId,
    /// None while the file is closed.
    file: Option<Box<dyn File>>,
}

#[derive(Debug)]
/// State of a segment file.
pub(super) struct Segment {
    /// Offset of the first record.
    start: u64,
    /// Bytes of complete records, footer included.
    len: u64,
    /// Number of the last message.
    last_seq: u64,
    /// Messages that are written and not settled.
    live: u64,
    /// Number of live messages that were not read yet.
    pub unread: u64,
    /// Counts for the footer: persistent messages, settled ones included.
    written: RecordFooter,
    /// Written by an earlier process: transient and settled messages in it are skipped.
    recovered: bool,
    /// Bytes of the ack file.
    ack_len: u64,
}

/// The segments of a queue.
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    queue: QueueId,
    dir: String,
    pub list: BTreeMap<SegmentId, Segment>,
    /// The segment that is being written, by priority.
    active: BTreeMap<u8, ActiveSegment>,
    /// The last segment number that was used, by priority.
    last_number: BTreeMap<u8, SegmentId>,
    /// Settlements that are not in an ack file yet.
    acks: Vec<(SegmentId, u64)>,
    /// The settled messages of the recovered segment that is being read, by priority.
    settled: BTreeMap<u8, (SegmentId, Ranges)>,
    /// Messages that left their segments ahead of others.
    picked: PickedMessages,
    /// The directory exists.
    dir_exists: bool,
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

/// State of the queue as recovered from its files.
#[derive(Debug, Default)]
pub(super) struct RecoveredSegments {
    /// Number of messages, by priority.
    pub messages: BTreeMap<u8, u64>,
    /// Body bytes of these messages.
    pub bytes: u64,
    /// The highest message number.
    pub last_seq: u64,
    /// Messages may have a TTL.
    pub may_expire: bool,
    /// As recorded by the previous incarnation when it stopped cleanly; otherwise empty.
    pub undelivered: FirstUndelivered,
    pub lost: Losses,
    pub faults: Vec<String>,
}

impl Segments {
    pub(crate) fn new(disk: Arc<dyn Disk>, queue: QueueId) -> Segments {
        let dir = format!("classic/{:016x}", queue.0);
        Segments {
            disk,
            queue,
            inventory: Inventory::new(queue),
            dir,
            list: BTreeMap::new(),
            active: BTreeMap::new(),
            last_number: BTreeMap::new(),
            acks: Vec::new(),
            settled: BTreeMap::new(),
            picked: PickedMessages::default(),
            dir_exists: false,
        }
    }

    fn path(&self, number: SegmentId, kind: &str) -> String {
        format!("{}/{number:08x}.{kind}", self.dir)
    }

    /// The first segment of a priority, or the first one after another.
    pub(crate) fn first(&self, priority: u8, after: Option<SegmentId>) -> Option<SegmentId> {
        let from = after.map_or(0, |number| number.count().saturating_add(1));
        let range = SegmentId::new(priority, from)..=SegmentId::new(priority, u32::MAX);
        self.list.range(range).next().map(|(number, _)| *number)
    }

    /// Returns true if the segment is being written.
    fn is_active(&self, number: SegmentId) -> bool {
        let active = self.active.get(&number.priority());
        active.is_some_and(|c| c.number == number)
    }

    /// Drops the state of an incomplete recovery.
    pub(crate) fn reset(&mut self) {
        *self = Segments::new(Arc::clone(&self.disk), self.queue);
    }

    /// Recovers the segments of an earlier process. Reads headers and lengths, not bodies.
    pub(crate) fn recover(&mut self, incarnation: Incarnation) -> io::Result<RecoveredSegments> {
        let mut found = RecoveredSegments::default();
        let names = self.disk.list(&self.dir)?;
        self.dir_exists = !names.is_empty();
        if names.iter().any(|name| name == clean_stop::NAME) {
            let remaining = clean_stop::read(
                &*self.disk,
                &self.clean_stop_path(),
                self.queue,
                incarnation,
            )?;
            found.undelivered = remaining.unwrap_or_default();
        }
        let number = |name: &str, kind: &str| SegmentId::parse(name.strip_suffix(kind)?);
        let numbers: Vec<SegmentId> = names.iter().filter_map(|n| number(n, ".seg")).collect();
        let mut listed = self.inventory.read(&*self.disk)?;
        match names.is_empty() && !listed.is_empty() {
            true => self.report_missing_directory(&listed, &mut found),
            false => self.report_missing(&listed, &numbers, &names, &mut found)?,
        }
        for acks in names.iter().filter_map(|n| number(n, ".ack")) {
            if !numbers.contains(&acks) {
                self.disk.remove(&self.path(acks, "ack"))?;
            }
        }
        for number in numbers {
            let last = self.last_number.entry(number.priority()).or_insert(number);
            *last = (*last).max(number);
            let acks = names.contains(&format!("{number:08x}.ack"));
            let written = listed.get(&number).copied().flatten();
            self.recover_segment(number, acks, written, &mut found)?;
        }
        let listed_before = listed.len();
        listed.retain(|number, _| self.list.contains_key(number));
        let listed_and_present = listed.len();
        for number in self.list.keys() {
            listed.entry(*number).or_insert(None);
        }
        let is_long = self.inventory.is_long(&listed);
        if listed_and_present < listed_before || listed_and_present < listed.len() || is_long {
            self.inventory.rewrite(&*self.disk, &listed);
        }
        Ok(found)
    }

    /// Reports that all files of the queue are missing, usually with their directory. Settlements in them are
    /// unknown too, so the number of lost messages is an upper bound.
    fn report_missing_directory(&self, listed: &SegmentCounts, found: &mut RecoveredSegments) {
        let written: Option<u64> = listed.values().copied().sum();
        let fault = match written {
            Some(written) => format!("{written} messages are lost at most"),
            None => "its messages are lost, how many is not known".to_owned(),
        };
        let dir = &self.dir;
        found
            .faults
            .push(format!("{dir}/ is missing or empty: {fault}"));
        found.lost.add(written, listed.len() as u64);
    }

    /// Reports segments that are in the inventory and not in the directory.
    fn report_missing(
        &self,
        listed: &SegmentCounts,
        present: &[SegmentId],
        names: &[String],
        found: &mut RecoveredSegments,
    ) -> io::Result<()> {
        for (number, written) in listed.iter().filter(|(n, _)| !present.contains(n)) {
            let path = self.path(*number, "seg");
            let settled = match names.contains(&format!("{number:08x}.ack")) {
                true => self.read_acks(*number, &mut found.faults)?.0.count(),
                false => 0,
            };
            let lost = written.map(|written| written.saturating_sub(settled));
            let fault = match lost {
                Some(lost) => format!("{path} is missing: {lost} messages are lost"),
                None => format!("{path} is missing: its messages are lost, how many is not known"),
            };
            found.faults.push(fault);
            found.lost.add(lost, 1);
        }
        Ok(())
    }

    /// Records in the inventory how many messages each segment in use has. The process writes no more to them.
    pub(crate) fn record_active_counts(&mut self) {
        for active in self.active.values() {
            if let Some(segment) = self.list.get(&active.number) {
                let messages = segment.written.messages;
                self.inventory.count(&*self.disk, active.number, messages);
            }
        }
    }

    fn clean_stop_path(&self) -> String {
        format!("{}/{}", self.dir, clean_stop::NAME)
    }

    /// Writes the record of a clean stop for the next incarnation.
    pub(crate) fn record_clean_stop(
        &self,
        incarnation: Incarnation,
        undelivered: &FirstUndelivered,
    ) -> io::Result<()> {
        if !self.dir_exists {
            return Ok(());
        }
        let path = self.clean_stop_path();
        clean_stop::write(&*self.disk, &path, self.queue, incarnation, undelivered)
    }

    pub(crate) fn revoke_clean_stop(&self) -> io::Result<()> {
        match clean_stop::revoke(&*self.disk, &self.clean_stop_path()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Recovers one segment. `acks`: it has an ack file. `written`: its number of persistent messages according
    /// to the inventory.
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
        // One read for a small file: there may be a hundred thousand of them.
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
        let messages = found.messages.entry(number.priority()).or_default();
        *messages = messages.saturating_add(segment.live);
        found.bytes = found.bytes.saturating_add(segment.written.bytes);
        if segment.live == 0 {
            return match found.faults.len() > faults_before {
                // Damaged data is kept, so that an operator can examine it.
                true => self.set_aside(number, &path, found),
                false => self.remove_files(number),
            };
        }
        self.list.insert(number, segment);
        Ok(())
    }

    /// Renames a segment in which nothing can be read. It is removed with the queue.
    fn set_aside(
        &mut self,
        number: SegmentId,
        path: &str,
        found: &mut RecoveredSegments,
    ) -> io::Result<()> {
        self.inventory.remove(&*self.disk, number);
        let damaged_path = format!("{path}.damaged");
        self.disk.rename(path, &damaged_path)?;
        found.faults.push(format!("{path}: kept as {damaged_path}"));
        Ok(())
    }

    /// Checks the header of a file. Fails if the file belongs to another queue or a newer version.
    fn check_header(
        &self,
        raw: &[u8],
        kind: FileKind,
        number: SegmentId,
        path: &str,
        faults: &mut Vec<String>,
    ) -> io::Result<()> {
        let header = segment_header::check(raw, kind, self.queue, number).map_err(|fault| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{path}: {fault}; it is left untouched"),
            )
        })?;
        if header == HeaderCheck::Damaged {
            faults.push(format!(
                "{path}: its first {} bytes are damaged",
                segment_header::LEN
            ));
        }
        Ok(())
    }

    /// The settled messages in the ack file of a segment, and the length of its complete entries.
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
            // The header is incomplete. The next entry writes it again.
            return Ok((Ranges::default(), 0));
        };
        let complete_len = segment_header::LEN + entries.len() / ACK_LEN * ACK_LEN;
        let mut ranges = Vec::new();
        for (n, entry) in entries.chunks_exact(ACK_LEN).enumerate() {
            match parse_ack(entry) {
                Some(range) => ranges.push(range),
                // The messages are delivered again.
                None => faults.push(format!("{path}: entry {n} is damaged")),
            }
        }
        Ok((Ranges::new(ranges), complete_len as u64))
    }

    /// Writes messages, those of one priority after each other. After an error nothing counts as written, and the call
    /// may be repeated.
    pub(crate) fn append(
        &mut self,
        writes: &[PendingWrite<'_>],
    ) -> io::Result<Vec<MessageLocation>> {
        let mut parts: Vec<SegmentWrite> = Vec::new();
        let mut locations = Vec::with_capacity(writes.len());
        for write in writes {
            let existing = parts
                .iter()
                .position(|p| p.number.priority() == write.priority);
            let at = match existing {
                Some(at) => at,
                None => {
                    parts.push(self.start_write(write.priority)?);
                    parts.len() - 1
                }
            };
            locations.extend(parts.get_mut(at).map(|part| part.push(write)));
        }
        for part in &parts {
            let active = self.active.get(&part.number.priority());
            let Some(file) = active.and_then(|c| c.file.as_ref()) else {
                return Err(io::Error::other("no segment is open"));
            };
            file.write_at(part.at, &part.raw)?;
        }
        for part in parts {
            let Some(segment) = self.list.get_mut(&part.number) else {
                continue;
            };
            debug_assert_eq!(part.at, segment.len, "segment {:x}", part.number);
            segment.len += part.raw.len() as u64;
            segment.last_seq = part.last_seq;
            segment.live += part.messages;
            segment.written.last_seq = part.last_seq;
            segment.written.messages += part.persistent;
            segment.written.bytes += part.persistent_bytes;
        }
        let open = self.active.values().filter(|c| c.file.is_some()).count();
        if open > MAX_OPEN || !self.disk.may_keep_open() {
            self.close_files();
        }
        debug_assert_eq!(locations.len(), writes.len());
        Ok(locations)
    }

    /// Starts a write at the end of a segment with room.
    fn start_write(&mut self, priority: u8) -> io::Result<SegmentWrite> {
        let number = self.writable_segment(priority)?;
        let Some(segment) = self.list.get(&number) else {
            return Err(io::Error::other("the active segment is missing"));
        };
        debug_assert!(segment.len < SEGMENT_BYTES);
        let mut raw = BytesMut::new();
        if segment.len == 0 {
            segment_header::put(&mut raw, FileKind::Segment, self.queue, number);
        }
        Ok(SegmentWrite::new(number, segment.len, raw))
    }

    /// The number of a priority's open segment with room.
    fn writable_segment(&mut self, priority: u8) -> io::Result<SegmentId> {
        if let Some(active) = self.active.get_mut(&priority) {
            let number = active.number;
            let segment = self.list.get(&number);
            if segment.is_some_and(|s| s.len < SEGMENT_BYTES) {
                if active.file.is_none() {
                    let path = format!("{}/{number:08x}.seg", self.dir);
                    active.file = Some(self.disk.open(&path)?);
                }
                return Ok(number);
            }
            self.seal(priority)?;
        }
        if !self.dir_exists {
            self.disk.create_dir(&self.dir)?;
            self.dir_exists = true;
        }
        let count = self
            .last_number
            .get(&priority)
            .map_or(0, |last| last.count());
        let number = SegmentId::new(priority, count.saturating_add(1));
        let file = Some(self.disk.create(&self.path(number, "seg"))?);
        self.inventory.add(&*self.disk, number);
        self.last_number.insert(priority, number);
        self.active.insert(priority, ActiveSegment { number, file });
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

    /// Ends the segment that is being written. Its footer saves the next start a scan.
    fn seal(&mut self, priority: u8) -> io::Result<()> {
        let Some(active) = self.active.get_mut(&priority) else {
            return Ok(());
        };
        let number = active.number;
        if active.file.is_none() {
            let path = format!("{}/{number:08x}.seg", self.dir);
            active.file = Some(self.disk.open(&path)?);
        }
        if let (Some(segment), Some(file)) = (self.list.get_mut(&number), &active.file) {
            let mut raw = BytesMut::new();
            put_footer(&mut raw, &segment.written);
            file.write_at(segment.len, &raw)?;
            segment.len += raw.len() as u64;
            let messages = segment.written.messages;
            self.inventory.count(&*self.disk, number, messages);
        }
        self.active.remove(&priority);
        self.delete_if_settled(number)
    }

    /// Closes the open files, so that an idle queue holds no file descriptor.
    pub(crate) fn close_files(&mut self) {
        for active in self.active.values_mut() {
            active.file = None;
        }
    }

    /// Reads records of a segment from `offset` on: at most `ahead` bytes, or one record. Returns the messages
    /// and the next offset; None at the end of the segment.
    pub(crate) fn read(
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
        let remaining = len.saturating_sub(offset);
        if remaining == 0 {
            return Ok((Vec::new(), None));
        }
        if recovered {
            self.read_settled(number)?;
        }
        let path = self.path(number, "seg");
        let file = self.disk.open(&path)?;
        let mut raw = read_exactly(&*file, offset, remaining.min(ahead as u64))?;
        if let Some(header) = RecordHeader::parse(&raw) {
            let total = header.total();
            if total > raw.len() as u64 && total <= remaining {
                raw = read_exactly(&*file, offset, total)?;
            }
        }
        // The file is shorter than what was written to it: its end is lost.
        let is_truncated = (raw.len() as u64) < remaining.min(ahead as u64);
        let reaches_end = is_truncated || raw.len() as u64 == remaining;
        let has_picked = !self.picked.is_empty();
        let skips = |h: &RecordHeader| {
            h.footer
                || recovered && (!h.persistent || self.is_settled(number, h.seq))
                || has_picked && self.picked.contains(number, h.seq)
        };
        let mut reader = RecordReader::new(raw, number, offset, path);
        let loaded = reader.read_all(reaches_end, &skips, faults);
        let next = offset + reader.at() as u64;
        Ok((loaded, (next < len && !is_truncated).then_some(next)))
    }

    /// Reads which messages of a recovered segment were settled, unless that is known.
    fn read_settled(&mut self, number: SegmentId) -> io::Result<()> {
        let known = self.settled.get(&number.priority());
        if known.is_none_or(|(n, _)| *n != number) {
            let (ranges, _) = self.read_acks(number, &mut Vec::new())?;
            self.settled.insert(number.priority(), (number, ranges));
        }
        Ok(())
    }

    /// Returns true if a message of the recovered segment that is being read was settled.
    fn is_settled(&self, number: SegmentId, seq: u64) -> bool {
        let settled = self.settled.get(&number.priority());
        settled.is_some_and(|(n, ranges)| *n == number && ranges.contains(seq))
    }

    /// Reads the message at a location.
    pub(crate) fn read_one(&self, location: MessageLocation) -> io::Result<Message> {
        let path = self.path(location.segment, "seg");
        let file = self.disk.open(&path)?;
        let damaged = || {
            let fault = format!("{path}: record at {} is damaged", location.offset);
            io::Error::new(io::ErrorKind::InvalidData, fault)
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

    /// Records that a written message is settled.
    pub(crate) fn settle(
        &mut self,
        segment: SegmentId,
        seq: u64,
        persistent: bool,
    ) -> io::Result<()> {
        if let Some(s) = self.list.get_mut(&segment) {
            debug_assert!(
                s.recovered || s.live > 0,
                "segment {segment:x}, message {seq}"
            );
            s.live = s.live.saturating_sub(1);
        }
        if persistent && self.acks.len() < MAX_PENDING_ACKS {
            self.acks.push((segment, seq));
        }
        self.delete_if_settled(segment)
    }

    /// Records that messages of a segment are unreadable.
    pub(crate) fn record_loss(&mut self, segment: SegmentId, count: u64) -> io::Result<()> {
        if let Some(s) = self.list.get_mut(&segment) {
            s.live = s.live.saturating_sub(count);
        }
        self.delete_if_settled(segment)
    }

    /// Deletes a segment without live messages.
    fn delete_if_settled(&mut self, number: SegmentId) -> io::Result<()> {
        if self.list.get(&number).is_none_or(|s| s.live > 0) {
            return Ok(());
        }
        if self.is_active(number) {
            // An emptied queue frees its space, except for small segments: a busy queue would create files all
            // the time.
            if self
                .list
                .get(&number)
                .is_some_and(|s| s.len < SEGMENT_BYTES / 8)
            {
                return Ok(());
            }
            self.active.remove(&number.priority());
        }
        self.list.remove(&number);
        self.picked.forget(number);
        self.acks.retain(|(n, _)| *n != number);
        self.remove_files(number)
    }

    /// Removes the segment before its ack file: an ack file alone is harmless, but a segment alone would
    /// redeliver messages.
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

    /// Returns true if there are settlements to write.
    pub(crate) fn has_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    /// Writes settlements to the ack files.
    pub(crate) fn flush_acks(&mut self) -> io::Result<()> {
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

    /// Settles all messages except the unsettled ones in `held`.
    pub(crate) fn settle_all_except(
        &mut self,
        unsettled: &BTreeMap<u64, MessageLocation>,
    ) -> io::Result<()> {
        self.settled.clear();
        self.picked = PickedMessages::default();
        let numbers: Vec<SegmentId> = self.list.keys().copied().collect();
        for number in numbers {
            let unsettled_seqs: Vec<u64> = unsettled
                .iter()
                .filter(|(_, location)| location.segment == number)
                .map(|(seq, _)| *seq)
                .collect();
            let Some(segment) = self.list.get_mut(&number) else {
                continue;
            };
            segment.live = unsettled_seqs.len() as u64;
            segment.unread = 0;
            let last = segment.last_seq;
            if !unsettled_seqs.is_empty() {
                let dropped = Ranges::new(complement(&unsettled_seqs, last));
                self.append_acks(number, &dropped)?;
            } else if self.is_active(number) {
                self.active.remove(&number.priority());
            }
            self.delete_if_settled(number)?;
        }
        Ok(())
    }

    /// Removes all files of a deleted queue.
    pub(crate) fn destroy(&mut self) -> io::Result<()> {
        self.list.clear();
        self.acks.clear();
        self.active.clear();
        self.settled.clear();
        self.picked = PickedMessages::default();
        self.dir_exists = false;
        // The inventory goes first: without the directory it would report losses.
        self.inventory.destroy(&*self.disk)?;
        self.disk.remove_dir(&self.dir)
    }
}

/// The ranges of numbers from 1 to `last` that are not in `kept`.
fn complement(excluded: &[u64], last: u64) -> Vec<(u64, u64)> {
    debug_assert!(excluded.is_sorted());
    let mut ranges = Vec::new();
    let mut from = 1;
    for seq in excluded {
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
