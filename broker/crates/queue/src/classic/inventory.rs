//! The inventory of the segments of a classic queue. With it, a missing segment is distinguishable from a segment that was
//! removed because all of its messages were settled. The file is `classic-inventory/<queue id>`, outside of the directory of
//! the queue, so that a missing directory is noticed too. Integers are big-endian.
//!
//! `magic 8 | version u8 | zeros 7 | queue u64`, then for each change `tag u8 | segment u64 | messages u64 | CRC-32`
//!
//! Nothing is synced, like all files of a classic queue. A removal is written before the segment is removed, and an addition
//! after the segment is created, so that a segment does not look lost if the process ends in between.

use super::location::SegmentId;
use super::record::{CRC_LEN, checked, put_crc};
use super::segment_header::FileHeader;
use bytes::BytesMut;
use env::Disk;
use ids::QueueId;
use std::collections::BTreeMap;
use std::io;
use wire::{Reader, Wire};

const DIR: &str = "classic-inventory";
const MAGIC: [u8; 8] = *b"PHORNINV";
const VERSION: u8 = 1;
const COVERED: usize = 17;
const RECORD: usize = COVERED + CRC_LEN;
/// Most bytes that are read. This broker writes no larger file.
const MAX_FILE: u64 = 64 << 20;
/// Most bytes of changes that wait for the disk. Beyond it the inventory is given up.
const MAX_PENDING: usize = 64 << 10;

const ADDED: u8 = 1;
const COUNTED: u8 = 2;
const REMOVED: u8 = 3;

/// The number of persistent messages that were written to each segment. `None` if it is not known.
pub(super) type SegmentCounts = BTreeMap<SegmentId, Option<u64>>;

/// The inventory of one queue.
#[derive(Debug)]
pub(super) struct Inventory {
    queue: QueueId,
    path: String,
    /// Bytes of the file.
    len: u64,
    /// Changes that have not been written.
    pending: BytesMut,
    /// Changes were lost: there is no inventory until the next start.
    given_up: bool,
}

impl Inventory {
    pub(super) fn new(queue: QueueId) -> Inventory {
        Inventory {
            queue,
            path: format!("{DIR}/{:016x}", queue.0),
            len: 0,
            pending: BytesMut::new(),
            given_up: false,
        }
    }

    /// Adds a segment that was created.
    pub(super) fn add(&mut self, disk: &dyn Disk, number: SegmentId) {
        self.put(ADDED, number, 0);
        self.write(disk);
    }

    /// Notes how many persistent messages a segment has, settled ones included. It gets no more.
    pub(super) fn count(&mut self, disk: &dyn Disk, number: SegmentId, messages: u64) {
        self.put(COUNTED, number, messages);
        self.write(disk);
    }

    /// Removes a segment. Must be called before its file is removed.
    pub(super) fn remove(&mut self, disk: &dyn Disk, number: SegmentId) {
        self.put(REMOVED, number, 0);
        self.write(disk);
    }

    fn header(&self) -> FileHeader {
        FileHeader::new(MAGIC, VERSION, self.queue)
    }

    fn put(&mut self, tag: u8, number: SegmentId, messages: u64) {
        if self.len == 0 && self.pending.is_empty() {
            self.header().put(&mut self.pending);
        }
        let start = self.pending.len();
        (tag, (number.value(), messages)).put(&mut self.pending);
        put_crc(&mut self.pending, start);
    }

    /// Changes that a full disk refuses are written again with the next change.
    fn write(&mut self, disk: &dyn Disk) {
        if self.given_up {
            return self.pending.clear();
        }
        let file = match disk.open(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                disk.create_dir(DIR).and_then(|()| disk.create(&self.path))
            }
            other => other,
        };
        if file
            .and_then(|f| f.write_at(self.len, &self.pending))
            .is_ok()
        {
            self.len += self.pending.len() as u64;
            self.pending.clear();
        } else if self.pending.len() > MAX_PENDING {
            self.given_up = true;
            self.pending.clear();
            // An inventory that lacks changes is worse than none.
            let _ = disk.remove(&self.path);
        }
    }

    /// Reads the inventory of the last process. It is empty if there is no file.
    pub(super) fn read(&mut self, disk: &dyn Disk) -> io::Result<SegmentCounts> {
        let Some(raw) = read_file(disk, &self.path)? else {
            return Ok(SegmentCounts::new());
        };
        self.len = raw.len() as u64;
        Ok(self.parse(&raw))
    }

    /// Removes the file with its queue.
    pub(super) fn destroy(&mut self, disk: &dyn Disk) -> io::Result<()> {
        let path = self.path.clone();
        *self = Inventory::new(self.queue);
        match disk.remove(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// A file of another version or queue counts as empty. Records after a damaged one are ignored.
    fn parse(&self, raw: &[u8]) -> SegmentCounts {
        let mut listed = SegmentCounts::new();
        let from = &mut Reader::new("classic queue inventory", raw);
        if !self.header().matches(from) {
            return listed;
        }
        while let Ok(record) = from.take(RECORD)
            && let Some(mut record) = checked(record, COVERED)
            && let Ok((tag, (number, messages))) = record.get::<(u8, (u64, u64))>()
        {
            let number = SegmentId::of(number);
            match tag {
                ADDED => {
                    listed.entry(number).or_insert(None);
                }
                COUNTED => {
                    listed.insert(number, Some(messages));
                }
                REMOVED => {
                    listed.remove(&number);
                }
                _ => break,
            }
        }
        listed
    }

    /// Replaces the file by one with these segments.
    pub(super) fn rewrite(&mut self, disk: &dyn Disk, listed: &SegmentCounts) {
        match disk.remove(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return,
            _ => {}
        }
        self.len = 0;
        self.pending.clear();
        for (number, messages) in listed {
            match messages {
                Some(messages) => self.put(COUNTED, *number, *messages),
                None => self.put(ADDED, *number, 0),
            }
        }
        if !self.pending.is_empty() {
            self.write(disk);
        }
    }

    /// Returns true if the file is much longer than these segments need.
    pub(super) fn is_long(&self, listed: &SegmentCounts) -> bool {
        self.len > (FileHeader::MIN_LEN + (2 * listed.len() + 64) * RECORD) as u64
    }
}

/// Returns `None` if the file does not exist.
fn read_file(disk: &dyn Disk, path: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut raw = vec![0; file.len()?.min(MAX_FILE) as usize];
    let read = file.read_at(0, &mut raw)?;
    raw.truncate(read);
    Ok(Some(raw))
}
