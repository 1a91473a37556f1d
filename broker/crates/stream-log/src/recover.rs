//! Recovery of a log from its files.
//!
//! Sealed segments are complete and durable, so they are not read. All others are read from front to back with all
//! checks: nothing is synced before a segment is sealed, so a power failure may have lost any part of them. The log ends
//! before the first chunk that is not valid.
//!
//! A process that is killed leaves at most chunks at the end that it had not finished, and none of these has a record in
//! the index, which is written after the chunks and cut before them. So a record without a valid chunk, an index without a
//! segment and a gap between segments prove that finished chunks are missing. Then the record of the machine is removed
//! before anything else changes: the log is not intact, however often recovery is interrupted.

use crate::LogError;
use crate::fault::{self, Fault};
use crate::files::{self, index_path, seal_path, segment_path, stream_dir};
use crate::format::{
    EpochStart, FILE_HEADER_BYTES, FileKind, INDEX_RECORD_BYTES, IndexRecord, Seal,
};
use crate::log::Segment;
use crate::scan::{Scan, scan};
use crate::tracking::Tracking;
use env::Disk;
use ids::QueueId;
use std::collections::VecDeque;
use wire::{DecodeCause, DecodeError};

/// The content of a log's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub segments: VecDeque<Segment>,
    pub epochs: Vec<EpochStart>,
    pub tracking: Tracking,
    /// Offset after the last record; the start offset if there are no segments.
    pub next_offset: u64,
    /// The first chunk with messages in the first segment.
    pub first_message: Option<FirstMessage>,
}

/// The first chunk with messages of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstMessage {
    /// Its first offset.
    pub offset: u64,
    /// When the leader stored it, in milliseconds since the Unix epoch.
    pub timestamp: i64,
}

/// A part of the log that recovery removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment file.
    pub file: String,
    /// Position in the file from which on it was removed, in bytes.
    pub position: u64,
    /// Offset at which the log ends now.
    pub next_offset: u64,
    /// Bytes that were removed from this file.
    pub bytes: u64,
    /// Number of whole segments after it that were removed.
    pub segments: usize,
    /// Why the chunk at the position is not valid.
    pub reason: String,
    /// Chunks that had been written completely are missing. False: nothing but a write that the end of the process or of
    /// the machine interrupted, as far as the files tell.
    pub has_lost_chunks: bool,
}

/// Adds the epochs of a segment to those of the segments before it.
fn extend_epochs(epochs: &mut Vec<EpochStart>, more: &[EpochStart]) {
    for start in more {
        if epochs.last().is_none_or(|last| last.epoch < start.epoch) {
            epochs.push(*start);
        }
    }
}

/// Recovers the log of a stream. `start_offset` is where it begins if there are no files.
pub(crate) fn recover(
    disk: &dyn Disk,
    stream: QueueId,
    start_offset: u64,
) -> Result<(Contents, Option<Cut>), LogError> {
    let found = files::list(disk, stream)?;
    if found.is_removing && !fault::is(Fault::RemovalNotCompleted) {
        complete_removal(disk, stream, &found)?;
    }
    let mut recovery = Recovery {
        disk,
        stream,
        start_offset,
        contents: Contents {
            next_offset: start_offset,
            ..Contents::default()
        },
        cut: None,
    };
    let missing = newest_missing_segment(disk, stream, &found)?;
    if missing.is_some() {
        files::remove_machine(disk, stream)?;
    }
    remove_orphans(disk, stream, &found)?;
    for (at, first) in found.segments.iter().enumerate() {
        let later = found.segments.get(at + 1..).unwrap_or_default();
        if !recovery.add(*first, later)? {
            break;
        }
    }
    recovery.reopen_last()?;
    let Recovery {
        mut contents,
        mut cut,
        ..
    } = recovery;
    if let Some(first) = contents.segments.front() {
        contents.first_message = first_message(disk, stream, first.first_offset)?;
    }
    if let Some(first) = missing {
        let cut = cut.get_or_insert_with(|| Cut {
            file: segment_path(stream, first),
            position: 0,
            next_offset: contents.next_offset,
            bytes: 0,
            segments: 0,
            reason: "the segment is missing, and its index is there".to_owned(),
            has_lost_chunks: true,
        });
        cut.has_lost_chunks = true;
    }
    Ok((contents, cut))
}

/// Makes the removals and cuts of an ended process durable.
fn complete_removal(
    disk: &dyn Disk,
    stream: QueueId,
    found: &files::StreamFiles,
) -> Result<(), LogError> {
    files::sync_dir(disk, &stream_dir(stream))?;
    if let Some(last) = found.segments.last() {
        let path = segment_path(stream, *last);
        let file = files::open(disk, &path)?;
        file.sync_data().map_err(|e| LogError::sync(&path, &e))?;
    }
    files::end_removal(disk, stream)
}

/// The newest segment that is missing although its index has records, if all others are older.
fn newest_missing_segment(
    disk: &dyn Disk,
    stream: QueueId,
    found: &files::StreamFiles,
) -> Result<Option<u64>, LogError> {
    for first in found.indexes.iter().rev() {
        if found.segments.last() >= Some(first) {
            break;
        }
        if index_records(disk, stream, *first)?.is_some_and(|records| records > 0) {
            return Ok(Some(*first));
        }
    }
    Ok(None)
}

/// The number of records in an index file; `None` if there is no such file or it is damaged.
fn index_records(disk: &dyn Disk, stream: QueueId, first: u64) -> Result<Option<u64>, LogError> {
    let path = index_path(stream, first);
    let file = match disk.open(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| LogError::io(&path, &e))?,
    };
    let len = file.len().map_err(|e| LogError::io(&path, &e))?;
    let is_valid =
        len < FILE_HEADER_BYTES || files::has_valid_header(&*file, &path, FileKind::Index)?;
    let bytes = len.saturating_sub(FILE_HEADER_BYTES);
    // The end of the process may have interrupted the write of the last record.
    Ok(is_valid.then_some(bytes / INDEX_RECORD_BYTES as u64))
}

/// The first chunk with messages of a segment, as its index tells.
fn first_message(
    disk: &dyn Disk,
    stream: QueueId,
    first: u64,
) -> Result<Option<FirstMessage>, LogError> {
    const RECORDS_AT_ONCE: usize = 256;
    let path = index_path(stream, first);
    let file = files::open(disk, &path)?;
    let mut position = FILE_HEADER_BYTES;
    loop {
        let records = file
            .read_vec_at(position, RECORDS_AT_ONCE * INDEX_RECORD_BYTES)
            .map_err(|e| LogError::io(&path, &e))?;
        let (whole, _) = records.as_chunks::<INDEX_RECORD_BYTES>();
        let mut decoded = whole.iter().map(IndexRecord::decode);
        if let Some(record) = decoded.find(IndexRecord::has_messages) {
            return Ok(Some(FirstMessage {
                offset: record.first_offset,
                timestamp: record.timestamp,
            }));
        }
        if whole.len() < RECORDS_AT_ONCE {
            return Ok(None);
        }
        position += (RECORDS_AT_ONCE * INDEX_RECORD_BYTES) as u64;
    }
}

/// Removes indexes and seals whose segment was deleted.
fn remove_orphans(
    disk: &dyn Disk,
    stream: QueueId,
    found: &files::StreamFiles,
) -> Result<(), LogError> {
    let has_segment = |first: &&u64| found.segments.binary_search(first).is_ok();
    for first in found.indexes.iter().filter(|first| !has_segment(first)) {
        files::remove(disk, &index_path(stream, *first))?;
    }
    for first in found.seals.iter().filter(|first| !has_segment(first)) {
        files::remove(disk, &seal_path(stream, *first))?;
    }
    Ok(())
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    stream: QueueId,
    /// Where the log begins if nothing of it is left.
    start_offset: u64,
    contents: Contents,
    cut: Option<Cut>,
}

impl Recovery<'_> {
    /// Adds a segment, which is followed by `later`. Returns false if the log ends in it or before it.
    fn add(&mut self, first: u64, later: &[u64]) -> Result<bool, LogError> {
        let follows = self.contents.segments.is_empty() || first == self.contents.next_offset;
        if !follows {
            // A segment between them is missing.
            files::remove_machine(self.disk, self.stream)?;
            self.remove_later(later)?;
            self.remove_later(&[first])?;
            self.cut = Some(Cut {
                file: segment_path(self.stream, first),
                position: 0,
                next_offset: self.contents.next_offset,
                bytes: 0,
                segments: later.len() + 1,
                reason: "the segment does not continue the log".to_owned(),
                has_lost_chunks: true,
            });
            return Ok(false);
        }
        // The last segment is read even if it is sealed, because it has the tracking data.
        if !later.is_empty()
            && let Some(seal) = self.valid_seal(first)?
        {
            self.contents.segments.push_back(Segment::from_seal(&seal));
            extend_epochs(&mut self.contents.epochs, &seal.epochs);
            self.contents.next_offset = seal.next_offset;
            return Ok(true);
        }
        self.add_scanned(first, later)
    }

    /// Removes segments durably, newest first.
    fn remove_later(&self, segments: &[u64]) -> Result<(), LogError> {
        for first in segments.iter().rev() {
            files::remove_segment(self.disk, self.stream, *first)?;
        }
        match segments.is_empty() {
            true => Ok(()),
            false => files::sync_dir(self.disk, &stream_dir(self.stream)),
        }
    }

    /// The seal of a segment, if it is valid and agrees with the segment.
    fn valid_seal(&self, first: u64) -> Result<Option<Seal>, LogError> {
        let seal = read_seal(self.disk, self.stream, first)?;
        let Some(seal) = seal else {
            return Ok(None);
        };
        let path = segment_path(self.stream, first);
        let file = files::open(self.disk, &path)?;
        let len = file.len().map_err(|e| LogError::io(&path, &e))?;
        let last_epoch = self.contents.epochs.last().map_or(0, |e| e.epoch);
        let is_valid = seal.bytes == len
            && seal.epochs.first().is_some_and(|e| e.epoch >= last_epoch)
            && files::has_valid_header(&*file, &path, FileKind::Segment)?;
        if is_valid {
            self.check_index(&seal)?;
        }
        Ok(is_valid.then_some(seal))
    }

    /// Rebuilds the index of a sealed segment if it has another length than the seal says.
    fn check_index(&self, seal: &Seal) -> Result<(), LogError> {
        let path = index_path(self.stream, seal.first_offset);
        let expected = FILE_HEADER_BYTES + u64::from(seal.chunks) * INDEX_RECORD_BYTES as u64;
        let len = match self.disk.open(&path) {
            Ok(file) if files::has_valid_header(&*file, &path, FileKind::Index)? => {
                file.len().map_err(|e| LogError::io(&path, &e))?
            }
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(LogError::io(&path, &e));
            }
            _ => 0,
        };
        if len == expected {
            return Ok(());
        }
        let segment = segment_path(self.stream, seal.first_offset);
        let file = files::open(self.disk, &segment)?;
        let scan = scan(&*file, self.stream, seal.first_offset, 0)?;
        write_index(self.disk, self.stream, seal.first_offset, &scan.index)
    }

    fn add_scanned(&mut self, first: u64, later: &[u64]) -> Result<bool, LogError> {
        let path = segment_path(self.stream, first);
        let file = files::open(self.disk, &path)?;
        let len = file.len().map_err(|e| LogError::io(&path, &e))?;
        let epoch = self.contents.epochs.last().map_or(0, |e| e.epoch);
        let scan = scan(&*file, self.stream, first, epoch)?;
        debug_assert!(scan.fault.is_some() || scan.bytes == len);
        let ends_here = scan.fault.is_some() || scan.chunks == 0;
        let records = index_records(self.disk, self.stream, first)?;
        // A segment is complete before the next one begins. Without an index, nothing proves that the chunk at a cut was
        // not finished.
        let has_lost_chunks = records.is_some_and(|records| records > u64::from(scan.chunks))
            || (ends_here && !later.is_empty())
            || (scan.fault.is_some() && records.is_none() && len >= FILE_HEADER_BYTES);
        if has_lost_chunks {
            files::remove_machine(self.disk, self.stream)?;
        }
        if ends_here {
            // First of all, or power may fail when this segment is gone and they look like the whole log.
            if !fault::is(Fault::LaterSegmentsKept) {
                self.remove_later(later)?;
            }
            unseal(self.disk, self.stream, first)?;
        }
        if scan.fault.is_some() || has_lost_chunks {
            let reason = scan.fault.map(|fault| fault.to_string());
            self.cut = Some(Cut {
                file: path.clone(),
                position: scan.bytes,
                next_offset: scan.next_offset,
                bytes: len - scan.bytes,
                segments: later.len(),
                reason: reason.unwrap_or("the segment ends before its index".to_owned()),
                has_lost_chunks,
            });
        }
        if scan.chunks == 0 {
            // The tracking data is in the segment before it.
            let last = self.contents.segments.back();
            self.contents.next_offset = last.map_or(self.start_offset, |last| last.next_offset);
            if let Some(cut) = &mut self.cut {
                cut.next_offset = self.contents.next_offset;
            }
            self.remove_later(&[first])?;
            if fault::is(Fault::LaterSegmentsKept) {
                self.remove_later(later)?;
            }
            return Ok(false);
        }
        if ends_here {
            file.truncate(scan.bytes)
                .map_err(|e| LogError::io(&path, &e))?;
            file.sync_data().map_err(|e| LogError::sync(&path, &e))?;
            if fault::is(Fault::LaterSegmentsKept) {
                self.remove_later(later)?;
            }
        }
        write_index(self.disk, self.stream, first, &scan.index)?;
        self.push_scanned(first, scan);
        Ok(!ends_here)
    }

    fn push_scanned(&mut self, first: u64, scan: Scan) {
        extend_epochs(&mut self.contents.epochs, &scan.epochs);
        self.contents.next_offset = scan.next_offset;
        self.contents.tracking = scan.tracking;
        self.contents.segments.push_back(Segment {
            first_offset: first,
            next_offset: scan.next_offset,
            bytes: scan.bytes,
            chunks: scan.chunks,
            first_timestamp: scan.first_timestamp,
            last_timestamp: scan.last_timestamp,
            is_sealed: false,
        });
    }

    /// The last segment takes further chunks, so it must not be sealed and its tracking data must be known.
    fn reopen_last(&mut self) -> Result<(), LogError> {
        let Some(last) = self.contents.segments.back() else {
            return Ok(());
        };
        let first = last.first_offset;
        unseal(self.disk, self.stream, first)?;
        if !last.is_sealed {
            return Ok(());
        }
        self.contents.segments.pop_back();
        self.contents.epochs.retain(|e| e.first_offset < first);
        self.contents.next_offset = first;
        match self.add_scanned(first, &[])? {
            true => Ok(()),
            // The cut is in the report, and there may be a sealed segment before it.
            false => self.reopen_last(),
        }
    }
}

/// Reads the seal of a segment; `None` if there is none or it is damaged.
///
/// # Errors
///
/// If the file cannot be read, or a newer version wrote it.
pub fn read_seal(disk: &dyn Disk, stream: QueueId, first: u64) -> Result<Option<Seal>, LogError> {
    let path = seal_path(stream, first);
    let Some(bytes) = files::read_small(disk, &path, crate::format::MAX_SEAL_BYTES)? else {
        return Ok(None);
    };
    match Seal::decode(&bytes) {
        Ok(seal) if seal.stream == stream && seal.first_offset == first => Ok(Some(seal)),
        Err(DecodeError {
            cause: DecodeCause::Version(version),
            ..
        }) => Err(LogError::Newer {
            file: path,
            version: version.into(),
            known: 1,
        }),
        _ => Ok(None),
    }
}

/// Removes the seal of a segment durably, if there is one.
pub(crate) fn unseal(disk: &dyn Disk, stream: QueueId, first: u64) -> Result<(), LogError> {
    let path = seal_path(stream, first);
    match disk.remove(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(LogError::io(&path, &e)),
        Ok(()) => files::sync_dir(disk, &stream_dir(stream)),
    }
}

/// Writes an index file unless it has this content. It is not synced: an index is a cache.
pub(crate) fn write_index(
    disk: &dyn Disk,
    stream: QueueId,
    first: u64,
    records: &[u8],
) -> Result<(), LogError> {
    let path = index_path(stream, first);
    let io = |e: std::io::Error| LogError::io(&path, &e);
    let expected = FILE_HEADER_BYTES as usize + records.len();
    let current = files::read_small(disk, &path, expected as u64)?;
    let is_current = current.is_some_and(|current| {
        current.len() == expected
            && FileKind::Index.check_header(&current) == Ok(())
            && current[FILE_HEADER_BYTES as usize..] == *records
    });
    if is_current {
        return Ok(());
    }
    let file = files::create(disk, &path, FileKind::Index)?;
    file.write_at(FILE_HEADER_BYTES, records).map_err(io)
}
