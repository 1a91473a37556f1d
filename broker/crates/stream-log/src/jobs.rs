//! The disk work of a log. Jobs block, so they run on a storage thread. Each can be repeated after a failure.

use crate::LogError;
use crate::chunk::ChunkHeader;
use crate::fault::{self, Fault};
use crate::files::{self, index_path, segment_path, stream_dir};
use crate::format::{FILE_HEADER_BYTES, FileKind, INDEX_RECORD_BYTES, IndexRecord, Seal};
use crate::recover::{Contents, Cut, recover, unseal, write_index};
use crate::scan::{HEAD_BYTES, scan};
use bytes::Bytes;
use env::{Disk, File};
use ids::QueueId;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

/// Estimated bytes of disk space that a file takes besides its content.
const FILE_OVERHEAD: u64 = 8 << 10;

/// The open files of the segment that takes chunks.
pub(crate) struct ActiveFiles {
    first_offset: u64,
    segment: Box<dyn File>,
    index: Box<dyn File>,
}

impl fmt::Debug for ActiveFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActiveFiles({})", self.first_offset)
    }
}

/// Chunks for one segment.
#[derive(Debug)]
pub(crate) struct SegmentAppend {
    pub first_offset: u64,
    /// Position of the first chunk in the segment.
    position: u64,
    chunks: Vec<Bytes>,
    /// Number of chunks in the segment before these.
    chunks_before: u32,
    index: Vec<u8>,
}

impl SegmentAppend {
    /// `first` is the index record of the first chunk, the one after `chunks_before` others.
    pub(crate) fn new(first_offset: u64, first: IndexRecord, chunks_before: u32) -> SegmentAppend {
        SegmentAppend {
            first_offset,
            position: first.position.into(),
            chunks: Vec::new(),
            chunks_before,
            index: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, chunk: Bytes, index: &IndexRecord) {
        self.chunks.push(chunk);
        index.put(&mut self.index);
    }

    fn is_new_segment(&self) -> bool {
        self.position == FILE_HEADER_BYTES
    }
}

/// Writes chunks. Running it again after a failure writes the same bytes to the same positions.
#[derive(Debug)]
pub struct AppendJob {
    stream: QueueId,
    segments: Vec<SegmentAppend>,
    files: Option<Arc<ActiveFiles>>,
    bytes: usize,
    next_offset: u64,
}

/// The result of an [`AppendJob`].
#[derive(Debug)]
pub struct Appended {
    /// The files of the last segment, unless descriptors are short.
    pub(crate) files: Option<Arc<ActiveFiles>>,
}

impl AppendJob {
    pub(crate) fn new(
        stream: QueueId,
        segments: Vec<SegmentAppend>,
        files: Option<Arc<ActiveFiles>>,
        bytes: usize,
        next_offset: u64,
    ) -> AppendJob {
        AppendJob {
            stream,
            segments,
            files,
            bytes,
            next_offset,
        }
    }

    /// Bytes of the chunks.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Offset after the last record of the chunks.
    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Estimate of the disk space that the job needs, in bytes.
    pub fn space(&self) -> u64 {
        self.bytes as u64 + FILE_OVERHEAD * self.segments.len() as u64
    }

    /// Writes the chunks. Nothing is synced.
    ///
    /// # Errors
    ///
    /// The first failure. If it is a shortage, the job can be repeated.
    pub fn run(&self, disk: &dyn Disk) -> Result<Appended, LogError> {
        let mut files = self.files.clone();
        for segment in &self.segments {
            let is_open = |files: &&Arc<ActiveFiles>| files.first_offset == segment.first_offset;
            let open = match files.as_ref().filter(is_open) {
                Some(open) => open.clone(),
                None => Arc::new(self.open(disk, segment)?),
            };
            self.write(&open, segment)?;
            files = Some(open);
        }
        Ok(Appended {
            files: files.filter(|_| disk.may_keep_open()),
        })
    }

    fn open(&self, disk: &dyn Disk, append: &SegmentAppend) -> Result<ActiveFiles, LogError> {
        let first_offset = append.first_offset;
        let segment = segment_path(self.stream, first_offset);
        let index = index_path(self.stream, first_offset);
        if append.is_new_segment() {
            return Ok(ActiveFiles {
                first_offset,
                segment: files::create(disk, &segment, FileKind::Segment)?,
                index: files::create(disk, &index, FileKind::Index)?,
            });
        }
        Ok(ActiveFiles {
            first_offset,
            segment: files::open(disk, &segment)?,
            index: match disk.open(&index) {
                // Records before these are missing then. Readers find out and read the segment.
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    files::create(disk, &index, FileKind::Index)?
                }
                other => other.map_err(|e| LogError::io(&index, &e))?,
            },
        })
    }

    fn write(&self, files: &ActiveFiles, append: &SegmentAppend) -> Result<(), LogError> {
        let mut position = append.position;
        for chunk in &append.chunks {
            files
                .segment
                .write_at(position, chunk)
                .map_err(|e| LogError::io(&segment_path(self.stream, append.first_offset), &e))?;
            position += chunk.len() as u64;
        }
        let record = u64::from(append.chunks_before) * INDEX_RECORD_BYTES as u64;
        files
            .index
            .write_at(FILE_HEADER_BYTES + record, &append.index)
            .map_err(|e| LogError::io(&index_path(self.stream, append.first_offset), &e))
    }
}

/// Work that is not urgent: sealing and deleting segments, and truncation.
#[derive(Debug)]
pub struct MaintenanceJob {
    stream: QueueId,
    work: MaintenanceWork,
}

#[derive(Debug)]
enum MaintenanceWork {
    Seal { first_offset: u64, next_offset: u64 },
    Delete(Vec<u64>),
    Truncate { offset: u64, start_offset: u64 },
}

/// The result of a [`MaintenanceJob`].
#[derive(Debug)]
pub struct MaintenanceResult(pub(crate) MaintenanceOutcome);

#[derive(Debug)]
pub(crate) enum MaintenanceOutcome {
    Sealed,
    Deleted,
    Truncated(Box<Contents>, Option<Cut>),
}

impl MaintenanceJob {
    pub(crate) fn seal(stream: QueueId, first_offset: u64, next_offset: u64) -> MaintenanceJob {
        MaintenanceJob {
            stream,
            work: MaintenanceWork::Seal {
                first_offset,
                next_offset,
            },
        }
    }

    pub(crate) fn delete(stream: QueueId, segments: Vec<u64>) -> MaintenanceJob {
        MaintenanceJob {
            stream,
            work: MaintenanceWork::Delete(segments),
        }
    }

    pub(crate) fn truncate(stream: QueueId, offset: u64, start_offset: u64) -> MaintenanceJob {
        MaintenanceJob {
            stream,
            work: MaintenanceWork::Truncate {
                offset,
                start_offset,
            },
        }
    }

    /// Estimate of the disk space that the job needs, in bytes; 0 if it deletes.
    pub fn space(&self) -> u64 {
        match self.work {
            MaintenanceWork::Seal { .. } => FILE_OVERHEAD,
            MaintenanceWork::Delete(_) | MaintenanceWork::Truncate { .. } => 0,
        }
    }

    /// Does the work.
    ///
    /// # Errors
    ///
    /// The first failure. If it is a shortage, the job can be repeated.
    pub fn run(&self, disk: &dyn Disk) -> Result<MaintenanceResult, LogError> {
        let outcome = match &self.work {
            MaintenanceWork::Seal {
                first_offset,
                next_offset,
            } => {
                seal(disk, self.stream, *first_offset, *next_offset)?;
                MaintenanceOutcome::Sealed
            }
            MaintenanceWork::Delete(segments) => {
                files::begin_removal(disk, self.stream)?;
                for first_offset in segments {
                    files::remove_segment(disk, self.stream, *first_offset)?;
                }
                files::sync_dir(disk, &stream_dir(self.stream))?;
                files::end_removal(disk, self.stream)?;
                MaintenanceOutcome::Deleted
            }
            MaintenanceWork::Truncate {
                offset,
                start_offset,
            } => {
                files::begin_removal(disk, self.stream)?;
                truncate(disk, self.stream, *offset)?;
                files::end_removal(disk, self.stream)?;
                let (contents, cut) = recover(disk, self.stream, *start_offset)?;
                MaintenanceOutcome::Truncated(Box::new(contents), cut)
            }
        };
        Ok(MaintenanceResult(outcome))
    }
}

/// Verifies a segment, makes it durable and writes its seal.
fn seal(
    disk: &dyn Disk,
    stream: QueueId,
    first_offset: u64,
    next_offset: u64,
) -> Result<(), LogError> {
    let path = segment_path(stream, first_offset);
    let file = files::open(disk, &path)?;
    if !fault::is(Fault::SealBeforeSync) {
        file.sync_data().map_err(|e| LogError::sync(&path, &e))?;
    }
    let scan = scan(&*file, stream, first_offset, 0)?;
    if let Some(fault) = scan.fault {
        return Err(LogError::corrupt(&path, scan.bytes, fault));
    }
    if scan.next_offset != next_offset || scan.chunks == 0 {
        return Err(LogError::corrupt(&path, scan.bytes, "chunks are missing"));
    }
    write_index(disk, stream, first_offset, &scan.index)?;
    let index = index_path(stream, first_offset);
    let file = files::open(disk, &index)?;
    file.sync_data().map_err(|e| LogError::sync(&index, &e))?;
    let seal = Seal {
        stream,
        first_offset,
        next_offset,
        bytes: scan.bytes,
        crc: scan.crc,
        chunks: scan.chunks,
        first_timestamp: scan.first_timestamp,
        last_timestamp: scan.last_timestamp,
        epochs: scan.epochs,
    };
    files::sync_parents(disk)?;
    files::write_durably(
        disk,
        &files::seal_path(stream, first_offset),
        &seal.encode(),
    )
}

/// Removes everything from `offset` on, durably. A crash in between leaves a log that ends at `offset` or later. Each
/// index is cut before its segment, so the end of the process never leaves a record without its chunk.
fn truncate(disk: &dyn Disk, stream: QueueId, offset: u64) -> Result<(), LogError> {
    let mut segments = files::list(disk, stream)?.segments;
    while let Some(first) = segments.pop_if(|first| *first >= offset) {
        files::remove_segment(disk, stream, first)?;
    }
    let dir = stream_dir(stream);
    let Some(first) = segments.pop() else {
        return match offset {
            0 => files::sync_dir(disk, &dir),
            // No file keeps the position of the log: after a restart it is not intact.
            _ => files::remove_machine(disk, stream),
        };
    };
    if !fault::is(Fault::TruncationNotSynced) {
        // Otherwise a removed segment could return and continue the log after the next power failure.
        files::sync_dir(disk, &dir)?;
    }
    unseal(disk, stream, first)?;
    let path = segment_path(stream, first);
    let file = files::open(disk, &path)?;
    let cut = chunk_at(&*file, &path, offset)?;
    let len = file.len().map_err(|e| LogError::io(&path, &e))?;
    if cut < len {
        files::remove(disk, &index_path(stream, first))?;
        file.truncate(cut).map_err(|e| LogError::io(&path, &e))?;
    }
    if !fault::is(Fault::TruncationNotSynced) {
        // Otherwise the removed chunks could return after the next power failure.
        file.sync_data().map_err(|e| LogError::sync(&path, &e))?;
    }
    Ok(())
}

/// Position of the first chunk that ends above `offset`; the end of the valid chunks if there is none.
fn chunk_at(file: &dyn File, path: &str, offset: u64) -> Result<u64, LogError> {
    let mut position = FILE_HEADER_BYTES;
    let mut head = [0; HEAD_BYTES];
    loop {
        let n = file
            .read_at(position, &mut head)
            .map_err(|e| LogError::io(path, &e))?;
        match ChunkHeader::decode(head.get(..n).unwrap_or_default()) {
            Ok((header, _)) if header.next_offset() <= offset => position += header.chunk_len(),
            _ => return Ok(position),
        }
    }
}
