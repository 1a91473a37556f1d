//! Reading the log. All calls block, so they run on a storage thread, except for chunks that are known to be in the page
//! cache.

use crate::LogError;
use crate::chunk::{Chunk, ChunkFault, ChunkHeader, HEADER_BYTES};
use crate::files::{self, index_path, segment_path};
use crate::filter::MAX_FILTER_BYTES;
use crate::format::{FILE_HEADER_BYTES, FileKind, INDEX_RECORD_BYTES, IndexRecord};
use crate::scan::HEAD_BYTES;
use bytes::Bytes;
use env::{Disk, File};
use ids::QueueId;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

/// Bytes that a verification reads at once.
const VERIFY_BYTES: usize = 64 << 10;

/// A segment as readers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSpan {
    pub first_offset: u64,
    /// Timestamp of the last chunk; `None` for the segment that takes chunks.
    pub last_timestamp: Option<i64>,
}

/// The readable part of a log at one moment. Cloning counts a reference.
#[derive(Clone, Debug)]
pub struct LogView {
    pub(crate) stream: QueueId,
    pub(crate) segments: Arc<[SegmentSpan]>,
    /// Offset after the last readable record.
    pub(crate) end: u64,
}

impl LogView {
    /// First offset of the log.
    pub fn first_offset(&self) -> u64 {
        self.segments.first().map_or(self.end, |s| s.first_offset)
    }

    /// Offset after the last readable record.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The number of the segment that has `offset`, among those that start below the end.
    fn segment_of(&self, offset: u64) -> Option<usize> {
        let above = self.segments.partition_point(|s| s.first_offset <= offset);
        above.checked_sub(1)
    }

    fn readable_segments(&self) -> &[SegmentSpan] {
        let count = self.segments.partition_point(|s| s.first_offset < self.end);
        self.segments.get(..count).unwrap_or_default()
    }
}

/// The first chunk that a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The oldest chunk.
    First,
    /// The newest chunk with messages; the next one if there is none.
    Last,
    /// The next chunk that becomes readable.
    Next,
    /// The chunk that has this offset; the oldest one if the offset was deleted, and the next one if it is in the
    /// future.
    Offset(u64),
    /// The first chunk that is not older, in milliseconds since the Unix epoch; the next one if all are older.
    Timestamp(i64),
}

/// A file that a reader has open.
#[derive(Clone)]
struct OpenSegment {
    first_offset: u64,
    path: Arc<str>,
    file: Arc<dyn File>,
}

impl fmt::Debug for OpenSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenSegment({})", self.path)
    }
}

impl OpenSegment {
    fn open(disk: &dyn Disk, view: &LogView, first_offset: u64) -> Result<OpenSegment, LogError> {
        let path = segment_path(view.stream, first_offset);
        let file = match disk.open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Err(LogError::Deleted {
                    stream: view.stream,
                    offset: first_offset,
                    first_offset: view.first_offset(),
                });
            }
            other => other.map_err(|e| LogError::io(&path, &e))?,
        };
        if !files::has_valid_header(&*file, &path, FileKind::Segment)? {
            return Err(LogError::corrupt(&path, 0, "the file header is damaged"));
        }
        Ok(OpenSegment {
            first_offset,
            path: path.into(),
            file: file.into(),
        })
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> Result<usize, LogError> {
        let read = self.file.read_at(position, buffer);
        read.map_err(|e| LogError::io(&self.path, &e))
    }

    fn corrupt(&self, position: u64, fault: ChunkFault) -> LogError {
        LogError::corrupt(&self.path, position, fault)
    }

    /// The verified header and filter of the chunk at `position`; `None` at the end of the file.
    fn head(&self, position: u64) -> Result<Option<Head>, LogError> {
        let mut bytes = [0; HEAD_BYTES];
        let n = self.read_at(position, &mut bytes)?;
        if n == 0 {
            return Ok(None);
        }
        let decoded = ChunkHeader::decode(bytes.get(..n).unwrap_or_default());
        let (header, _) = decoded.map_err(|fault| self.corrupt(position, fault))?;
        let mut filter = [0; MAX_FILTER_BYTES as usize];
        filter.copy_from_slice(&bytes[HEADER_BYTES..]);
        Ok(Some(Head { header, filter }))
    }
}

#[derive(Clone, Copy, Debug)]
struct Head {
    header: ChunkHeader,
    filter: [u8; MAX_FILTER_BYTES as usize],
}

/// A chunk in a file. Its header and filter are verified.
#[derive(Clone, Debug)]
pub struct LocatedChunk {
    segment: OpenSegment,
    position: u64,
    head: Head,
}

/// A part of a file, for `sendfile`.
#[derive(Clone)]
pub struct FileRange {
    /// The file.
    pub file: Arc<dyn File>,
    /// Position of the part in bytes.
    pub position: u64,
    /// Length of the part in bytes.
    pub len: u64,
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.position, self.position + self.len);
        write!(f, "FileRange({from}..{to})")
    }
}

impl LocatedChunk {
    /// The header.
    pub fn header(&self) -> &ChunkHeader {
        &self.head.header
    }

    /// The Bloom filter; empty if no entry has a filter value.
    pub fn filter(&self) -> &[u8] {
        let len = usize::from(self.head.header.filter_len);
        self.head.filter.get(..len).unwrap_or_default()
    }

    /// First offset of the segment.
    pub fn segment(&self) -> u64 {
        self.segment.first_offset
    }

    /// Position in the segment file in bytes.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The entries, which clients get behind [`ChunkHeader::encode_for_clients`]. Call
    /// [`LocatedChunk::verify`] before, unless the chunk was verified since the process started.
    pub fn entries_range(&self) -> FileRange {
        self.range(
            self.header().data_start(),
            u64::from(self.header().data_len),
        )
    }

    /// The whole chunk, which followers get.
    pub fn chunk_range(&self) -> FileRange {
        self.range(0, self.header().chunk_len())
    }

    fn range(&self, start: u64, len: u64) -> FileRange {
        FileRange {
            file: self.segment.file.clone(),
            position: self.position + start,
            len,
        }
    }

    /// Reads the chunk and verifies all of it.
    ///
    /// # Errors
    ///
    /// [`LogError::Corrupt`] if the chunk is damaged.
    pub fn read(&self) -> Result<Chunk, LogError> {
        // Not above `MAX_CHUNK_BYTES`: the header was checked.
        let len = self.header().chunk_len() as usize;
        let read = self.segment.file.read_vec_at(self.position, len);
        let bytes = read.map_err(|e| LogError::io(&self.segment.path, &e))?;
        let chunk = Chunk::decode(Bytes::from(bytes));
        chunk.map_err(|fault| self.segment.corrupt(self.position, fault))
    }

    /// Verifies the checksum of the entries without keeping them in memory.
    ///
    /// # Errors
    ///
    /// [`LogError::Corrupt`] if the entries are damaged.
    pub fn verify(&self) -> Result<(), LogError> {
        let range = self.entries_range();
        let mut buffer = vec![0; VERIFY_BYTES.min(range.len as usize)];
        let mut crc = crc32fast::Hasher::new();
        let mut done = 0;
        while done < range.len {
            let wanted = buffer.len().min((range.len - done) as usize);
            let part = buffer.get_mut(..wanted).unwrap_or_default();
            let n = self.segment.read_at(range.position + done, part)?;
            if n == 0 {
                return Err(self.segment.corrupt(self.position, ChunkFault::Truncated));
            }
            crc.update(part.get(..n).unwrap_or_default());
            done += n as u64;
        }
        match crc.finalize() == self.header().data_crc {
            true => Ok(()),
            false => Err(self
                .segment
                .corrupt(self.position, ChunkFault::DataChecksum)),
        }
    }
}

/// Reads chunks in order. It keeps one file open.
#[derive(Debug)]
pub struct ChunkReader {
    /// First offset of the next chunk.
    offset: u64,
    /// Position of the next chunk in the open segment.
    position: u64,
    segment: Option<OpenSegment>,
}

impl ChunkReader {
    /// Finds the first chunk. It may start below the wanted offset, which is in its middle then.
    ///
    /// # Errors
    ///
    /// [`LogError::Deleted`] if retention deleted the segment meanwhile: repeat the call with a new view. Others if
    /// a file cannot be read or is damaged.
    pub fn open(disk: &dyn Disk, view: &LogView, start: Start) -> Result<ChunkReader, LogError> {
        match start {
            Start::First => Ok(ChunkReader::at(view.first_offset())),
            Start::Next => Ok(ChunkReader::at(view.end)),
            Start::Offset(offset) if offset >= view.end => Ok(ChunkReader::at(view.end)),
            Start::Offset(offset) => find_offset(disk, view, offset.max(view.first_offset())),
            Start::Timestamp(timestamp) => find_timestamp(disk, view, timestamp),
            Start::Last => find_last(disk, view),
        }
    }

    /// A reader of the chunk that starts at `offset`, which is found when it is read.
    fn at(offset: u64) -> ChunkReader {
        ChunkReader {
            offset,
            position: 0,
            segment: None,
        }
    }

    fn in_segment(segment: OpenSegment, position: u64, offset: u64) -> ChunkReader {
        ChunkReader {
            offset,
            position,
            segment: Some(segment),
        }
    }

    /// First offset of the next chunk.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Closes the file. The next call opens it again.
    pub fn release(&mut self) {
        self.segment = None;
    }

    /// Locates the next chunk and advances past it; `None` at the end of the view.
    ///
    /// # Errors
    ///
    /// [`LogError::Deleted`] if retention deleted the chunk; [`LogError::Corrupt`] if its header is damaged; the
    /// reader has not advanced.
    pub fn next(
        &mut self,
        disk: &dyn Disk,
        view: &LogView,
    ) -> Result<Option<LocatedChunk>, LogError> {
        if self.offset >= view.end {
            return Ok(None);
        }
        if self.offset < view.first_offset() && self.segment.is_none() {
            return Err(LogError::Deleted {
                stream: view.stream,
                offset: self.offset,
                first_offset: view.first_offset(),
            });
        }
        self.enter_segment(disk, view)?;
        let Some(segment) = &self.segment else {
            return Ok(None);
        };
        let Some(head) = segment.head(self.position)? else {
            return Err(segment.corrupt(self.position, ChunkFault::Truncated));
        };
        if head.header.first_offset != self.offset {
            return Err(LogError::corrupt(
                &segment.path,
                self.position,
                format!(
                    "the chunk starts at offset {}, not {}",
                    head.header.first_offset, self.offset
                ),
            ));
        }
        let located = LocatedChunk {
            segment: segment.clone(),
            position: self.position,
            head,
        };
        self.position += head.header.chunk_len();
        self.offset = head.header.next_offset();
        Ok(Some(located))
    }

    /// Opens the segment of the next chunk, unless it is open.
    fn enter_segment(&mut self, disk: &dyn Disk, view: &LogView) -> Result<(), LogError> {
        let at = view.segment_of(self.offset);
        let first = at
            .and_then(|at| view.segments.get(at))
            .map(|s| s.first_offset);
        let first = match (&self.segment, first) {
            (Some(open), Some(first)) if open.first_offset >= first => return Ok(()),
            // The open segment was deleted, but the reader is not through.
            (Some(_), None) => return Ok(()),
            (_, Some(first)) => first,
            (None, None) => return Ok(()),
        };
        let found = match first == self.offset {
            true => ChunkReader::in_segment(
                OpenSegment::open(disk, view, first)?,
                FILE_HEADER_BYTES,
                self.offset,
            ),
            false => find_offset(disk, view, self.offset)?,
        };
        *self = found;
        Ok(())
    }
}

/// An open index file. Its records may be wrong.
struct Index {
    file: Option<Box<dyn File>>,
    path: String,
    len: u64,
}

impl Index {
    fn open(disk: &dyn Disk, view: &LogView, first_offset: u64) -> Result<Index, LogError> {
        let path = index_path(view.stream, first_offset);
        let io = |e: std::io::Error| LogError::io(&path, &e);
        let file = match disk.open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            other => Some(other.map_err(io)?),
        };
        let bytes = file.as_ref().map_or(Ok(0), |file| file.len()).map_err(io)?;
        let len = bytes.saturating_sub(FILE_HEADER_BYTES) / INDEX_RECORD_BYTES as u64;
        Ok(Index { file, path, len })
    }

    fn record(&self, at: u64) -> Result<Option<IndexRecord>, LogError> {
        let mut bytes = [0; INDEX_RECORD_BYTES];
        let Some(file) = self.file.as_ref().filter(|_| at < self.len) else {
            return Ok(None);
        };
        let position = FILE_HEADER_BYTES + at * INDEX_RECORD_BYTES as u64;
        let n = file
            .read_at(position, &mut bytes)
            .map_err(|e| LogError::io(&self.path, &e))?;
        Ok((n == bytes.len()).then(|| IndexRecord::decode(&bytes)))
    }

    /// Number of records at the front that `is_before` holds for, if the records are in order.
    fn partition_point(&self, is_before: impl Fn(&IndexRecord) -> bool) -> Result<u64, LogError> {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.record(middle)? {
                Some(record) if is_before(&record) => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// Position and header of the chunk that an index record points to, if it is right.
fn follow(
    segment: &OpenSegment,
    record: Option<IndexRecord>,
) -> Result<Option<(u64, ChunkHeader)>, LogError> {
    let Some(record) = record else {
        return Ok(None);
    };
    let position = u64::from(record.position);
    let mut bytes = [0; HEAD_BYTES];
    let n = segment.read_at(position, &mut bytes)?;
    let decoded = ChunkHeader::decode(bytes.get(..n).unwrap_or_default());
    let header = decoded.ok().map(|(header, _)| header);
    let is_right = |header: &ChunkHeader| IndexRecord::new(header, record.position) == record;
    Ok(header.filter(is_right).map(|header| (position, header)))
}

/// The first chunk from `position` on that `is_wanted` holds for; `None` if none of this segment is. Chunks that end
/// above the end of the view are not read.
fn walk(
    segment: &OpenSegment,
    view: &LogView,
    mut position: u64,
    mut is_wanted: impl FnMut(u64, &ChunkHeader) -> bool,
) -> Result<Option<(u64, ChunkHeader)>, LogError> {
    while let Some(head) = segment.head(position)? {
        if head.header.next_offset() > view.end {
            break;
        }
        if is_wanted(position, &head.header) {
            return Ok(Some((position, head.header)));
        }
        position += head.header.chunk_len();
        if head.header.next_offset() == view.end {
            break;
        }
    }
    Ok(None)
}

/// A reader of the chunk that has `offset`, which is in the view.
fn find_offset(disk: &dyn Disk, view: &LogView, offset: u64) -> Result<ChunkReader, LogError> {
    let Some(span) = view.segment_of(offset).and_then(|at| view.segments.get(at)) else {
        return Ok(ChunkReader::at(offset));
    };
    let segment = OpenSegment::open(disk, view, span.first_offset)?;
    let index = Index::open(disk, view, span.first_offset)?;
    let above = index.partition_point(|record| record.first_offset <= offset)?;
    let record = above
        .checked_sub(1)
        .map(|at| index.record(at))
        .transpose()?;
    let from = follow(&segment, record.flatten())?
        .filter(|(_, header)| header.first_offset <= offset)
        .map_or(FILE_HEADER_BYTES, |(position, _)| position);
    let found = walk(&segment, view, from, |_, header| {
        header.next_offset() > offset
    })?;
    match found {
        Some((position, header)) => Ok(ChunkReader::in_segment(
            segment,
            position,
            header.first_offset,
        )),
        None => Err(segment.corrupt(from, ChunkFault::Truncated)),
    }
}

/// A reader of the first chunk that is not older than `timestamp`.
fn find_timestamp(
    disk: &dyn Disk,
    view: &LogView,
    timestamp: i64,
) -> Result<ChunkReader, LogError> {
    for span in view.readable_segments() {
        if span.last_timestamp.is_some_and(|last| last < timestamp) {
            continue;
        }
        let segment = OpenSegment::open(disk, view, span.first_offset)?;
        let index = Index::open(disk, view, span.first_offset)?;
        let older = index.partition_point(|record| record.timestamp < timestamp)?;
        // The last older chunk, so that a wrong record cannot skip a chunk that is wanted.
        let record = older
            .checked_sub(1)
            .map(|at| index.record(at))
            .transpose()?;
        let from = follow(&segment, record.flatten())?
            .filter(|(_, header)| header.timestamp < timestamp)
            .map_or(FILE_HEADER_BYTES, |(position, _)| position);
        let found = walk(&segment, view, from, |_, header| {
            header.timestamp >= timestamp
        })?;
        if let Some((position, header)) = found {
            return Ok(ChunkReader::in_segment(
                segment,
                position,
                header.first_offset,
            ));
        }
    }
    Ok(ChunkReader::at(view.end))
}

/// A reader of the newest chunk with messages.
fn find_last(disk: &dyn Disk, view: &LogView) -> Result<ChunkReader, LogError> {
    for span in view.readable_segments().iter().rev() {
        let segment = OpenSegment::open(disk, view, span.first_offset)?;
        let index = Index::open(disk, view, span.first_offset)?;
        let mut at = index.partition_point(|record| record.first_offset < view.end)?;
        // From the last record with messages that is right, the chunks are walked: the index may lack some.
        let mut from = FILE_HEADER_BYTES;
        while let Some(before) = at.checked_sub(1) {
            at = before;
            let record = index.record(at)?;
            if record.is_some_and(|record| !record.has_messages()) {
                continue;
            }
            if let Some((position, _)) = follow(&segment, record)? {
                from = position;
            }
            break;
        }
        let mut last = None;
        walk(&segment, view, from, |position, header| {
            if header.kind == crate::ChunkKind::Messages {
                last = Some((position, header.first_offset));
            }
            false
        })?;
        if let Some((position, offset)) = last {
            return Ok(ChunkReader::in_segment(segment, position, offset));
        }
    }
    Ok(ChunkReader::at(view.end))
}
