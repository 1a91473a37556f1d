//! The list of a classic queue's segments: a segment that is missing is told from one whose messages are all settled. It
//! lies outside of the queue's directory, which may be missing as a whole: `classic-inventory/<queue id>`. Integers are
//! big-endian.
//!
//! `magic 8 | version u8 | zeros 7 | queue u64`, then for each change `kind u8 | number u64 | messages u64 | crc u32`
//!
//! Nothing is synced, as nothing of a classic queue is. A removal is written down before the file goes, an addition after
//! the file is there: a process that ends in between never makes a segment look lost.

use super::location::SegmentId;
use super::record::{be32, be64};
use bytes::{BufMut, BytesMut};
use env::Disk;
use ids::QueueId;
use std::collections::BTreeMap;
use std::io;

const DIR: &str = "classic-inventory";
/// Where older versions have it, in the directory of the queue.
pub(super) const OLD_NAME: &str = "inventory";
const MAGIC: [u8; 8] = *b"PHORNINV";
const VERSION: u8 = 1;
const HEADER: usize = 24;
const COVERED: usize = 17;
const RECORD: usize = COVERED + 4;
/// Larger files are not of our making.
const MAX_FILE: u64 = 64 << 20;
/// Changes that wait for a disk that takes them. With more the list is given up.
const MAX_PENDING: usize = 64 << 10;

const ADDED: u8 = 1;
const COUNTED: u8 = 2;
const REMOVED: u8 = 3;

/// Persistent messages that were written to each segment, as far as that is known.
pub(super) type SegmentCounts = BTreeMap<SegmentId, Option<u64>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Inventory {
    queue: QueueId,
    path: String,
    /// Bytes of the file.
    len: u64,
    /// Not written yet.
    pending: BytesMut,
    /// Changes were lost: there is no list until the next start.
    given_up: bool,
}

impl Inventory {
    pub fn new(queue: QueueId) -> Inventory {
        Inventory {
            queue,
            path: format!("{DIR}/{:016x}", queue.0),
            len: 0,
            pending: BytesMut::new(),
            given_up: false,
        }
    }

    /// A new segment is there.
    pub fn add(&mut self, disk: &dyn Disk, number: SegmentId) {
        self.put(ADDED, number, 0);
        self.write(disk);
    }

    /// A segment has this many persistent messages, settled ones included, and gets no more.
    pub fn count(&mut self, disk: &dyn Disk, number: SegmentId, messages: u64) {
        self.put(COUNTED, number, messages);
        self.write(disk);
    }

    /// A segment is about to be removed.
    pub fn remove(&mut self, disk: &dyn Disk, number: SegmentId) {
        self.put(REMOVED, number, 0);
        self.write(disk);
    }

    fn put(&mut self, kind: u8, number: SegmentId, messages: u64) {
        if self.len == 0 && self.pending.is_empty() {
            self.pending.put_slice(&MAGIC);
            self.pending.put_u8(VERSION);
            self.pending.put_bytes(0, 7);
            self.pending.put_u64(self.queue.0);
        }
        let start = self.pending.len();
        self.pending.put_u8(kind);
        self.pending.put_u64(number.value());
        self.pending.put_u64(messages);
        let crc = crc32fast::hash(self.pending.get(start..).unwrap_or_default());
        self.pending.put_u32(crc);
    }

    /// Changes that a full disk refuses are written with the next change.
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
            // A list that is not true any more is worse than none.
            let _ = disk.remove(&self.path);
        }
    }

    /// The list that an earlier process left; empty if there is none.
    pub fn read(&mut self, disk: &dyn Disk) -> io::Result<SegmentCounts> {
        let Some(raw) = read_file(disk, &self.path)? else {
            return Ok(SegmentCounts::new());
        };
        self.len = raw.len() as u64;
        Ok(self.parse(&raw))
    }

    /// The list that an older version left in the queue's directory. Only [`Inventory::rewrite`] may follow.
    pub fn read_old(&self, disk: &dyn Disk, path: &str) -> io::Result<SegmentCounts> {
        let raw = read_file(disk, path)?.unwrap_or_default();
        Ok(self.parse(&raw))
    }

    /// Removes the list with its queue.
    pub fn destroy(&mut self, disk: &dyn Disk) -> io::Result<()> {
        let path = self.path.clone();
        *self = Inventory::new(self.queue);
        match disk.remove(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Another version's list counts as none, and so does what comes behind a damaged record.
    fn parse(&self, raw: &[u8]) -> SegmentCounts {
        let mut listed = SegmentCounts::new();
        let whose = (raw.get(..8), raw.get(8), be64(raw, 16));
        if whose != (Some(&MAGIC[..]), Some(&VERSION), Some(self.queue.0)) {
            return listed;
        }
        for record in raw.get(HEADER..).unwrap_or_default().chunks_exact(RECORD) {
            let covered = record.get(..COVERED).map(crc32fast::hash);
            let (Some(kind), Some(number), Some(messages)) =
                (record.first(), be64(record, 1), be64(record, 9))
            else {
                break;
            };
            if covered != be32(record, COVERED) {
                break;
            }
            let number = SegmentId::of(number);
            match *kind {
                ADDED => {
                    listed.entry(number).or_insert(None);
                }
                COUNTED => {
                    listed.insert(number, Some(messages));
                }
                _ => {
                    listed.remove(&number);
                }
            }
        }
        listed
    }

    /// Begins the list anew with what there is.
    pub fn rewrite(&mut self, disk: &dyn Disk, listed: &SegmentCounts) {
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

    /// Whether the file holds more than the list needs.
    pub fn is_long(&self, listed: &SegmentCounts) -> bool {
        self.len > (HEADER + (2 * listed.len() + 64) * RECORD) as u64
    }
}

/// None: there is no such file.
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
