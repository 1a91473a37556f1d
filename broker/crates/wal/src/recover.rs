//! Reading the log back after a start.

use crate::error::WalError;
use crate::format::{
    self, Content, HEADER_BYTES, Header, HeaderError, RECORD_HEADER, RecordHeader, TERMINATOR,
};
use crate::{Entry, GroupId, MAX_RECORD_BYTES, Record, RecordBody};
use env::planted::{self, Bug};
use env::{Disk, File, NodeId};
use std::collections::BTreeMap;

/// What one read takes from the disk.
const WINDOW_BYTES: usize = 1 << 20;

/// All that the log knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// Numbers of the files that hold it, ascending. Once all of it is elsewhere: [`crate::Wal::delete_through`] the last.
    pub files: Vec<u64>,
    /// What the last file lost at its end, to be logged as a warning.
    pub torn: Option<TornTail>,
}

/// A group's records, folded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredGroup {
    pub hard_state: Option<HardState>,
    /// Index and term of the newest `Checkpointed`.
    pub checkpointed: Option<(u64, u64)>,
    /// Above `checkpointed`, ascending indexes. The owner checks that there is no hole.
    pub entries: Vec<Entry>,
    /// Deleted and not written to since.
    pub deleted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

/// The end of the last file, where a write was cut off. What was there had not been reported durable,
/// unless the file was damaged from outside at just this place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub file: String,
    pub offset: u64,
    /// Bytes given up, as far as they can be told from unused space.
    pub bytes: u64,
}

impl Recovered {
    pub(crate) fn fold(&mut self, record: Record) {
        let group = self.groups.entry(record.group).or_default();
        match record.body {
            RecordBody::Entry(entry) => {
                group.deleted = false;
                if planted::is(Bug::SuffixKept) {
                    let known = group.entries.iter_mut().find(|e| e.index == entry.index);
                    if let Some(known) = known {
                        *known = entry;
                        return;
                    }
                }
                if !group.holds(entry.index, entry.term) {
                    group.cut_from(entry.index);
                    group.entries.push(entry);
                }
            }
            RecordBody::HardState { term, vote, commit } => {
                group.deleted = false;
                group.hard_state = Some(HardState { term, vote, commit });
            }
            RecordBody::Checkpointed { index, term } => {
                group.deleted = false;
                group.checkpoint(index, term);
            }
            RecordBody::Deleted => {
                *group = RecoveredGroup {
                    deleted: true,
                    ..RecoveredGroup::default()
                };
            }
        }
    }
}

impl RecoveredGroup {
    /// Whether the entry is written a second time, so that an older file can go. Then it replaces nothing: two logs
    /// with an entry of the same index and term are the same up to it (Raft, Log Matching), and what follows it stays,
    /// for a crash may cut the second writing off before it comes to that.
    fn holds(&self, index: u64, term: u64) -> bool {
        if self.checkpointed.is_some_and(|(at, _)| index <= at) {
            return true;
        }
        if self.entries.last().is_none_or(|last| last.index < index) {
            return false;
        }
        let found = self.entries.binary_search_by_key(&index, |e| e.index);
        found.is_ok_and(|at| self.entries[at].term == term)
    }

    fn cut_from(&mut self, index: u64) {
        while self.entries.last().is_some_and(|e| e.index >= index) {
            self.entries.pop();
        }
    }

    fn checkpoint(&mut self, index: u64, term: u64) {
        let other_history = self.entries.last().is_some_and(|e| e.index < index)
            || self
                .entries
                .binary_search_by_key(&index, |e| e.index)
                .is_ok_and(|at| self.entries[at].term != term);
        if other_history {
            // A leader's snapshot replaced this log; nothing of the old one follows it.
            self.entries.clear();
        }
        self.entries.retain(|e| e.index > index);
        self.checkpointed = Some((index, term));
    }
}

/// How a file's records end.
pub(crate) struct FileEnd {
    /// Offset behind the newest record.
    pub position: u64,
    /// Sequence number of the next record.
    pub next_sequence: u64,
    pub sealed: bool,
    pub torn: Option<TornTail>,
}

/// Reads one file's header and checks whose it is.
pub(crate) fn read_header(
    disk: &dyn Disk,
    number: u64,
    node: NodeId,
) -> Result<(Box<dyn File>, Header), WalError> {
    let path = format::path(number);
    let file = disk.open(&path).map_err(|e| WalError::io(&path, &e))?;
    let mut bytes = vec![0; HEADER_BYTES as usize];
    let n = file
        .read_at(0, &mut bytes)
        .map_err(|e| WalError::io(&path, &e))?;
    bytes.truncate(n);
    let header = Header::decode(&bytes).map_err(|e| match e {
        HeaderError::Newer(version) => WalError::Newer {
            file: path.clone(),
            version,
            known: format::VERSION,
        },
        HeaderError::Bad(what) => WalError::corrupt(&path, 0, what),
    })?;
    if header.node != node {
        return Err(WalError::OtherNode {
            file: path,
            expected: node,
            found: header.node,
        });
    }
    if header.number != number {
        let what = format!("the header is of file {:016x}", header.number);
        return Err(WalError::corrupt(&path, 0, what));
    }
    Ok((file, header))
}

/// One file being read.
pub(crate) struct Reader<'a> {
    path: String,
    header: Header,
    window: Window<'a>,
    position: u64,
    sequence: u64,
}

enum Step {
    Content(Content),
    /// Zeros where the next record would be, or nothing at all (`Bad`).
    End,
    Bad(&'static str),
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a dyn File, header: Header) -> Result<Reader<'a>, WalError> {
        let path = format::path(header.number);
        let len = file.len().map_err(|e| WalError::io(&path, &e))?;
        Ok(Reader {
            path,
            header,
            window: Window {
                file,
                len,
                start: 0,
                bytes: Vec::new(),
            },
            position: HEADER_BYTES,
            sequence: header.first_sequence,
        })
    }

    /// Hands every record to `sink`, in order. `last`: no file follows, so the end may be torn.
    pub(crate) fn run(
        mut self,
        last: bool,
        sink: &mut dyn FnMut(Record),
    ) -> Result<FileEnd, WalError> {
        loop {
            match self.step()? {
                Step::Content(Content::Record(record)) => sink(record),
                Step::Content(Content::Seal) => return Ok(self.end(true, None)),
                Step::End if last => return self.end_without_seal(None),
                Step::End => return Err(self.corrupt("the file ends without its seal")),
                Step::Bad(what) if last => return self.end_without_seal(Some(what)),
                Step::Bad(what) => return Err(self.corrupt(what)),
            }
        }
    }

    fn corrupt(&self, what: &str) -> WalError {
        WalError::corrupt(&self.path, self.position, what)
    }

    fn end(self, sealed: bool, torn: Option<TornTail>) -> FileEnd {
        FileEnd {
            position: self.position,
            next_sequence: self.sequence,
            sealed,
            torn,
        }
    }

    fn step(&mut self) -> Result<Step, WalError> {
        let at = self.position;
        let head = self.window.get(at, RECORD_HEADER, &self.path)?;
        if head.len() >= TERMINATOR as usize && head[..TERMINATOR as usize].iter().all(|b| *b == 0)
        {
            return Ok(Step::End);
        }
        let Some(header) = RecordHeader::decode(head, self.header.nonce) else {
            return Ok(Step::Bad("the file is cut off"));
        };
        if u64::from(header.body_len) > MAX_RECORD_BYTES {
            return Ok(Step::Bad("record length is impossible"));
        }
        let record = self
            .window
            .get(at, header.record_len() as usize, &self.path)?;
        if (record.len() as u64) < header.record_len() {
            return Ok(Step::Bad("record is cut off"));
        }
        if !header.matches(record, self.header.nonce) {
            return Ok(Step::Bad("record checksum does not match"));
        }
        if header.sequence != self.sequence {
            return Ok(Step::Bad("record is out of sequence"));
        }
        let Some(content) = format::decode_body(&record[RECORD_HEADER..]) else {
            return Err(self.corrupt("record of an unknown kind"));
        };
        self.position += header.record_len();
        self.sequence += 1;
        Ok(Step::Content(content))
    }

    /// The last file's end: clean, torn by a power cut, or damage of something durable.
    fn end_without_seal(mut self, bad: Option<&'static str>) -> Result<FileEnd, WalError> {
        let repeated = self.header.repeated;
        if self.sequence - self.header.first_sequence < repeated {
            let what = bad.unwrap_or("a record is missing");
            return Err(self.corrupt(&format!("{what}, in what the file repeats of each group")));
        }
        let mut end_of_torn = match bad {
            Some(_) => self.position + self.nonzero_extent()?,
            None => self.position,
        };
        let mut found = false;
        let mut at = self.position + 1;
        while let Some((offset, header)) = self.next_record_from(at)? {
            if header.durable_before() >= self.sequence {
                let what = bad.unwrap_or("a record is missing");
                return Err(self.corrupt(&format!("{what}, and newer records follow")));
            }
            found = true;
            at = offset + header.record_len();
            end_of_torn = end_of_torn.max(at);
        }
        let torn = (bad.is_some() || found).then(|| TornTail {
            file: self.path.clone(),
            offset: self.position,
            bytes: end_of_torn - self.position,
        });
        Ok(self.end(false, torn))
    }

    /// Bytes of a bad record that can be told: up to its claimed end or, failing that, its fixed part.
    fn nonzero_extent(&mut self) -> Result<u64, WalError> {
        let left = self.window.len.saturating_sub(self.position);
        let head = self.window.get(self.position, RECORD_HEADER, &self.path)?;
        let claimed = RecordHeader::decode(head, self.header.nonce)
            .filter(|h| h.sequence == self.sequence && u64::from(h.body_len) <= MAX_RECORD_BYTES)
            .map_or(RECORD_HEADER as u64, |h| h.record_len());
        Ok(claimed.min(left))
    }

    /// The first whole record at or behind `at` that continues this file's sequence after the bad place.
    fn next_record_from(&mut self, mut at: u64) -> Result<Option<(u64, RecordHeader)>, WalError> {
        let most = self.window.len / RECORD_HEADER as u64;
        let nonce = self.header.nonce;
        loop {
            let chunk = self.window.get(at, WINDOW_BYTES, &self.path)?;
            if chunk.len() < RECORD_HEADER {
                return Ok(None);
            }
            let places = chunk.len() - RECORD_HEADER + 1;
            let sequence = self.sequence;
            let candidate = (0..places).find(|i| {
                let bytes = chunk.get(i + 8..).and_then(|c| c.first_chunk::<8>());
                bytes.is_some_and(|b| {
                    let ahead = (u64::from_le_bytes(*b) ^ nonce).wrapping_sub(sequence);
                    ahead > 0 && ahead <= most
                })
            });
            let Some(i) = candidate else {
                at += places as u64;
                continue;
            };
            at += i as u64;
            if let Some(header) = self.whole_record(at)? {
                return Ok(Some((at, header)));
            }
            at += 1;
        }
    }

    fn whole_record(&mut self, at: u64) -> Result<Option<RecordHeader>, WalError> {
        let head = self.window.get(at, RECORD_HEADER, &self.path)?;
        let Some(header) = RecordHeader::decode(head, self.header.nonce)
            .filter(|h| u64::from(h.body_len) <= MAX_RECORD_BYTES)
        else {
            return Ok(None);
        };
        let record = self
            .window
            .get(at, header.record_len() as usize, &self.path)?;
        let whole = record.len() as u64 == header.record_len();
        Ok((whole && header.matches(record, self.header.nonce)).then_some(header))
    }
}

/// A piece of the file in memory: at most [`WINDOW_BYTES`] or one record.
struct Window<'a> {
    file: &'a dyn File,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// `len` bytes at `offset`, fewer when the file ends before.
    fn get(&mut self, offset: u64, len: usize, path: &str) -> Result<&[u8], WalError> {
        let len = (len as u64).min(self.len.saturating_sub(offset)) as usize;
        let end = self.start + self.bytes.len() as u64;
        if offset < self.start || offset + len as u64 > end {
            let wanted = (len.max(WINDOW_BYTES) as u64).min(self.len.saturating_sub(offset));
            self.bytes.resize(wanted as usize, 0);
            self.bytes.shrink_to(WINDOW_BYTES);
            self.start = offset;
            let n = self
                .file
                .read_at(offset, &mut self.bytes)
                .map_err(|e| WalError::io(path, &e))?;
            self.bytes.truncate(n);
        }
        let from = (offset - self.start) as usize;
        Ok(self
            .bytes
            .get(from..(from + len).min(self.bytes.len()))
            .unwrap_or_default())
    }
}
