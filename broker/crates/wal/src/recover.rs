//! Recovery: reading the log back after a start.

use crate::error::WalError;
use crate::format::{
    self, HEADER_BYTES, Header, HeaderError, RECORD_HEADER, RecordContent, RecordHeader, TERMINATOR,
};
use crate::{Entry, GroupId, MAX_RECORD_BYTES, Record, RecordBody};
use env::planted::{self, Bug};
use env::{Disk, File, NodeId};
use std::collections::BTreeMap;

/// Bytes per read from the disk.
const WINDOW_BYTES: usize = 1 << 20;

/// The contents of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The groups with records in the log.
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// Numbers of the recovered files, ascending. Pass the last to [`crate::Wal::delete_through`] once
    /// everything is stored elsewhere.
    pub files: Vec<u64>,
    /// The end that the last file lost, to be logged as a warning.
    pub torn: Option<TornTail>,
}

/// The records of a group, folded into their final state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// The newest hard state.
    pub hard_state: Option<HardState>,
    /// Index and term of the newest `Checkpointed` record.
    pub checkpointed: Option<(u64, u64)>,
    /// Entries above `checkpointed`, ascending. The owner checks that there is no gap.
    pub entries: Vec<Entry>,
    /// The group was deleted and has no later records.
    pub deleted: bool,
}

/// Raft's hard state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Newest term known.
    pub term: u64,
    /// The node voted for in that term; 0 means none.
    pub vote: u64,
    /// Index of the newest entry known to be committed.
    pub commit: u64,
}

/// An incomplete write at the end of the last file. Its records had not been reported durable, unless the
/// file was damaged later at exactly this place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// Path of the file.
    pub file: String,
    /// Offset of the first lost byte.
    pub offset: u64,
    /// Lost bytes, as far as they are distinguishable from unused space.
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
                if !group.contains(entry.index, entry.term) {
                    group.truncate_from(entry.index);
                    group.entries.push(entry);
                }
            }
            RecordBody::HardState { term, vote, commit } => {
                group.deleted = false;
                group.hard_state = Some(HardState { term, vote, commit });
            }
            RecordBody::Checkpointed { index, term } => {
                group.deleted = false;
                group.apply_checkpoint(index, term);
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
    /// True if the entry is a rewrite, made so that an older file can be deleted. It then replaces nothing:
    /// two logs with an entry of the same index and term are identical up to it (Raft, Log Matching). The
    /// entries after it stay too, because a crash may prevent their rewrite.
    fn contains(&self, index: u64, term: u64) -> bool {
        if self.checkpointed.is_some_and(|(at, _)| index <= at) {
            return true;
        }
        if self.entries.last().is_none_or(|last| last.index < index) {
            return false;
        }
        let found = self.entries.binary_search_by_key(&index, |e| e.index);
        found.is_ok_and(|at| self.entries[at].term == term)
    }

    fn truncate_from(&mut self, index: u64) {
        while self.entries.last().is_some_and(|e| e.index >= index) {
            self.entries.pop();
        }
    }

    fn apply_checkpoint(&mut self, index: u64, term: u64) {
        let is_diverged = self.entries.last().is_some_and(|e| e.index < index)
            || self
                .entries
                .binary_search_by_key(&index, |e| e.index)
                .is_ok_and(|at| self.entries[at].term != term);
        if is_diverged {
            // A leader's snapshot replaced this log, so none of its old entries follow the checkpoint.
            self.entries.clear();
        }
        self.entries.retain(|e| e.index > index);
        self.checkpointed = Some((index, term));
    }
}

/// How the records of a file end.
pub(crate) struct FileEnd {
    /// Offset after the newest record.
    pub position: u64,
    /// Sequence number of the next record.
    pub next_sequence: u64,
    pub sealed: bool,
    pub torn: Option<TornTail>,
}

/// Reads a file's header and checks that it belongs to this node.
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

/// Reads the records of one file.
pub(crate) struct RecordReader<'a> {
    path: String,
    header: Header,
    window: ReadWindow<'a>,
    position: u64,
    sequence: u64,
}

/// The result of reading one record.
enum ReadStep {
    Content(RecordContent),
    /// Zeros in place of the next record. A truncated file is `Bad`.
    End,
    Bad(&'static str),
}

impl<'a> RecordReader<'a> {
    pub(crate) fn new(file: &'a dyn File, header: Header) -> Result<RecordReader<'a>, WalError> {
        let path = format::path(header.number);
        let len = file.len().map_err(|e| WalError::io(&path, &e))?;
        Ok(RecordReader {
            path,
            header,
            window: ReadWindow {
                file,
                len,
                start: 0,
                bytes: Vec::new(),
            },
            position: HEADER_BYTES,
            sequence: header.first_sequence,
        })
    }

    /// Passes every record to `sink`, in order. `last`: no file follows, so the end may be torn.
    pub(crate) fn read_all(
        mut self,
        last: bool,
        sink: &mut dyn FnMut(Record),
    ) -> Result<FileEnd, WalError> {
        loop {
            match self.step()? {
                ReadStep::Content(RecordContent::Record(record)) => sink(record),
                ReadStep::Content(RecordContent::Seal) => return Ok(self.end(true, None)),
                ReadStep::End if last => return self.end_without_seal(None),
                ReadStep::End => return Err(self.corrupt("the file ends without its seal")),
                ReadStep::Bad(what) if last => return self.end_without_seal(Some(what)),
                ReadStep::Bad(what) => return Err(self.corrupt(what)),
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

    fn step(&mut self) -> Result<ReadStep, WalError> {
        let at = self.position;
        let head = self.window.get(at, RECORD_HEADER, &self.path)?;
        if head.len() >= TERMINATOR as usize && head[..TERMINATOR as usize].iter().all(|b| *b == 0)
        {
            return Ok(ReadStep::End);
        }
        let Some(header) = RecordHeader::decode(head, self.header.nonce) else {
            return Ok(ReadStep::Bad("the file is truncated"));
        };
        if u64::from(header.body_len) > MAX_RECORD_BYTES {
            return Ok(ReadStep::Bad("record length exceeds the limit"));
        }
        let record = self
            .window
            .get(at, header.record_len() as usize, &self.path)?;
        if (record.len() as u64) < header.record_len() {
            return Ok(ReadStep::Bad("record is truncated"));
        }
        if !header.matches(record, self.header.nonce) {
            return Ok(ReadStep::Bad("record checksum does not match"));
        }
        if header.sequence != self.sequence {
            return Ok(ReadStep::Bad("record is out of sequence"));
        }
        let Some(content) = format::decode_body(&record[RECORD_HEADER..]) else {
            return Err(self.corrupt("record of an unknown kind"));
        };
        self.position += header.record_len();
        self.sequence += 1;
        Ok(ReadStep::Content(content))
    }

    /// Handles the end of the last file: clean, torn by a power failure, or damage to durable records.
    fn end_without_seal(mut self, bad: Option<&'static str>) -> Result<FileEnd, WalError> {
        let repeated = self.header.repeated;
        if self.sequence - self.header.first_sequence < repeated {
            let what = bad.unwrap_or("a record is missing");
            return Err(self.corrupt(&format!(
                "{what}, among the states repeated at the beginning of the file"
            )));
        }
        let mut torn_end = match bad {
            Some(_) => self.position + self.bad_record_len()?,
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
            torn_end = torn_end.max(at);
        }
        let torn = (bad.is_some() || found).then(|| TornTail {
            file: self.path.clone(),
            offset: self.position,
            bytes: torn_end - self.position,
        });
        Ok(self.end(false, torn))
    }

    /// Length of a bad record in bytes: up to its claimed end or, if that is not credible, its fixed part.
    fn bad_record_len(&mut self) -> Result<u64, WalError> {
        let left = self.window.len.saturating_sub(self.position);
        let head = self.window.get(self.position, RECORD_HEADER, &self.path)?;
        let claimed = RecordHeader::decode(head, self.header.nonce)
            .filter(|h| h.sequence == self.sequence && u64::from(h.body_len) <= MAX_RECORD_BYTES)
            .map_or(RECORD_HEADER as u64, |h| h.record_len());
        Ok(claimed.min(left))
    }

    /// The first valid record at or after `at` that continues this file's sequence after the bad record.
    fn next_record_from(&mut self, mut at: u64) -> Result<Option<(u64, RecordHeader)>, WalError> {
        let max_ahead = self.window.len / RECORD_HEADER as u64;
        let nonce = self.header.nonce;
        loop {
            let chunk = self.window.get(at, WINDOW_BYTES, &self.path)?;
            if chunk.len() < RECORD_HEADER {
                return Ok(None);
            }
            let offsets = chunk.len() - RECORD_HEADER + 1;
            let sequence = self.sequence;
            let candidate = (0..offsets).find(|i| {
                let bytes = chunk.get(i + 8..).and_then(|c| c.first_chunk::<8>());
                bytes.is_some_and(|b| {
                    let ahead = (u64::from_le_bytes(*b) ^ nonce).wrapping_sub(sequence);
                    ahead > 0 && ahead <= max_ahead
                })
            });
            let Some(i) = candidate else {
                at += offsets as u64;
                continue;
            };
            at += i as u64;
            if let Some(header) = self.valid_record_at(at)? {
                return Ok(Some((at, header)));
            }
            at += 1;
        }
    }

    fn valid_record_at(&mut self, at: u64) -> Result<Option<RecordHeader>, WalError> {
        let head = self.window.get(at, RECORD_HEADER, &self.path)?;
        let Some(header) = RecordHeader::decode(head, self.header.nonce)
            .filter(|h| u64::from(h.body_len) <= MAX_RECORD_BYTES)
        else {
            return Ok(None);
        };
        let record = self
            .window
            .get(at, header.record_len() as usize, &self.path)?;
        let is_complete = record.len() as u64 == header.record_len();
        Ok((is_complete && header.matches(record, self.header.nonce)).then_some(header))
    }
}

/// A part of the file in memory: at most [`WINDOW_BYTES`] or one record.
struct ReadWindow<'a> {
    file: &'a dyn File,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl ReadWindow<'_> {
    /// `len` bytes at `offset`, fewer if the file ends before.
    fn get(&mut self, offset: u64, len: usize, path: &str) -> Result<&[u8], WalError> {
        let len = (len as u64).min(self.len.saturating_sub(offset)) as usize;
        let end = self.start + self.bytes.len() as u64;
        if offset < self.start || offset + len as u64 > end {
            let requested = (len.max(WINDOW_BYTES) as u64).min(self.len.saturating_sub(offset));
            self.bytes.resize(requested as usize, 0);
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
