//! The log of a stream as a step function: it assigns offsets, decides what to write, and knows what was written. Jobs do
//! the disk work on another thread.

use crate::chunk::{
    BuildError, Chunk, ChunkBuilder, ChunkFault, ChunkHeader, ChunkKind, marker_chunk,
};
use crate::fault::{self, Fault};
use crate::files::segment_path;
use crate::filter::MIN_FILTER_BYTES;
use crate::format::{EpochStart, FILE_HEADER_BYTES, IndexRecord, Seal};
use crate::jobs::{
    ActiveFiles, AppendJob, Appended, MaintenanceJob, MaintenanceOutcome, MaintenanceResult,
    SegmentAppend,
};
use crate::read::{LogView, SegmentSpan};
use crate::recover::{Contents, Cut, FirstMessage, recover};
use crate::tracking::{MAX_OFFSETS, ProducerSequence, Tracking};
use crate::{LogError, MAX_CHUNK_BYTES};
use bytes::Bytes;
use env::{Disk, WallTime};
use ids::QueueId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Largest value of `stream-max-segment-size-bytes`: positions in an index have 32 bits.
pub const MAX_SEGMENT_BYTES: u64 = u32::MAX as u64 - MAX_CHUNK_BYTES as u64;
/// Most chunks of a segment, so that an index stays small.
pub const MAX_SEGMENT_CHUNKS: u32 = 256_000;
/// Most bytes that one append job writes, except for a single larger chunk.
pub const MAX_JOB_BYTES: usize = 8 << 20;
/// A log with as many bytes of unwritten chunks takes no further chunk.
pub const MAX_PENDING_BYTES: usize = 32 << 20;

/// Whole segments that retention deletes. The last segment always stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The oldest segments are deleted while all segments have more bytes (`max-length-bytes`).
    pub max_bytes: Option<u64>,
    /// A segment is deleted if its last chunk is older (`max-age`).
    pub max_age: Option<Duration>,
}

/// Settings of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A segment with as many bytes takes no further chunk. Limited to [`MAX_SEGMENT_BYTES`].
    pub max_segment_bytes: u64,
    /// A segment with as many chunks takes no further chunk. Limited to [`MAX_SEGMENT_CHUNKS`].
    pub max_segment_chunks: u32,
    /// Length of the Bloom filters of new chunks in bytes.
    pub filter_len: u8,
    /// Segments to delete.
    pub retention: Retention,
}

impl Default for LogConfig {
    /// The defaults of RabbitMQ.
    fn default() -> LogConfig {
        LogConfig {
            max_segment_bytes: 500_000_000,
            max_segment_chunks: MAX_SEGMENT_CHUNKS,
            filter_len: MIN_FILTER_BYTES,
            retention: Retention::default(),
        }
    }
}

/// A segment of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First offset.
    pub first_offset: u64,
    /// Offset after the last record.
    pub next_offset: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Number of chunks.
    pub chunks: u32,
    /// Timestamp of the first chunk.
    pub first_timestamp: i64,
    /// Timestamp of the last chunk.
    pub last_timestamp: i64,
    /// The segment is complete and durable.
    pub is_sealed: bool,
}

impl Segment {
    pub(crate) fn from_seal(seal: &Seal) -> Segment {
        Segment {
            first_offset: seal.first_offset,
            next_offset: seal.next_offset,
            bytes: seal.bytes,
            chunks: seal.chunks,
            first_timestamp: seal.first_timestamp,
            last_timestamp: seal.last_timestamp,
            is_sealed: true,
        }
    }
}

/// Why a chunk was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// [`MAX_PENDING_BYTES`] wait for the disk: repeat the call after [`StreamLog::append_done`].
    #[error("too many bytes wait for the disk")]
    Busy,
    /// The log is being truncated: repeat the call after [`StreamLog::maintenance_done`].
    #[error("the log is being truncated")]
    Truncating,
    /// The chunk has an older epoch than the log.
    #[error("epoch {epoch} is older than epoch {newest} of the log")]
    StaleEpoch {
        /// Epoch of the chunk.
        epoch: u64,
        /// Newest epoch of the log.
        newest: u64,
    },
    /// The chunk does not continue the log.
    #[error("the chunk starts at offset {found}, the log continues at {expected}")]
    Gap {
        /// Offset after the last record of the log.
        expected: u64,
        /// First offset of the chunk.
        found: u64,
    },
    /// A log that does not start at offset 0 must start with a tracking snapshot.
    #[error("the first chunk of the log is not a tracking snapshot")]
    SnapshotMissing,
    /// The chunk is damaged or exceeds a limit.
    #[error(transparent)]
    Fault(#[from] ChunkFault),
    /// The chunk stores offsets under more names than the limit.
    #[error("the stream already stores offsets under {} names", MAX_OFFSETS)]
    TooManyOffsets,
    /// There are no further offsets or positions.
    #[error("the segment or the log is at its end")]
    Exhausted,
}

/// Why the log cannot be truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TruncateError {
    /// A job is running or chunks wait for the disk: repeat the call after the next job.
    #[error("the log is being written")]
    Busy,
    /// The offset is committed: truncation would lose confirmed messages.
    #[error("offset {offset} is below the committed offset {committed}")]
    Committed {
        /// The offset.
        offset: u64,
        /// The committed offset.
        committed: u64,
    },
}

/// Whether a message is new for its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deduplication {
    /// The log does not have it.
    New,
    /// The log has it or a later one. Confirm it once `committed_above` is committed.
    Duplicate {
        /// First offset of the chunk that has the newest sequence of the producer.
        committed_above: u64,
    },
}

/// The largest epoch of a log that is not above a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The epoch.
    pub epoch: u64,
    /// Offset after its last record.
    pub end: u64,
}

/// A chunk that waits for the disk.
#[derive(Clone, Debug)]
struct PendingChunk {
    bytes: Bytes,
    index: IndexRecord,
    /// First offset of its segment.
    segment: u64,
    /// Number of chunks before it in the segment.
    chunks_before: u32,
    next_offset: u64,
}

/// The log of a stream on one replica.
///
/// All calls are steps without I/O, except [`StreamLog::open`]. The owner runs the jobs of [`StreamLog::take_append`]
/// and [`StreamLog::take_maintenance`], which may run at the same time, and reports their results.
#[derive(Debug)]
pub struct StreamLog {
    stream: QueueId,
    config: LogConfig,
    /// Ascending; chunks are appended to the last one. Sizes include unwritten chunks.
    segments: VecDeque<Segment>,
    epochs: Vec<EpochStart>,
    tracking: Tracking,
    next_offset: u64,
    /// Offset after the last record that readers can find in the files.
    written: u64,
    /// Offset after the last committed record, as the owner stated it.
    committed: u64,
    pending: VecDeque<PendingChunk>,
    pending_bytes: usize,
    in_flight: Option<Arc<AppendJob>>,
    /// The append job failed for lack of space or descriptors and is repeated.
    must_repeat: bool,
    files: Option<Arc<ActiveFiles>>,
    maintenance: MaintenanceState,
    /// Segments of which the files are to be deleted, oldest first.
    deletions: Vec<u64>,
    /// Offset to truncate at.
    truncation: Option<u64>,
    /// Segments that cannot be sealed because they are damaged.
    unsealable: Vec<u64>,
    spans: Option<Arc<[SegmentSpan]>>,
    /// See [`StreamLog::set_stream_start`].
    stream_start: Option<u64>,
    /// The first offset of a segment and its first chunk with messages. Known of a segment that is the first one when it is
    /// recovered or written.
    first_message: Option<(u64, Option<FirstMessage>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MaintenanceState {
    Idle,
    Sealing(u64),
    /// The number of segments at the front of the deletions.
    Deleting(usize),
    Truncating,
}

impl StreamLog {
    /// Recovers the log from its files. `start_offset` is where a log without files begins. Blocks.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or was written by a newer version. The call can be repeated.
    pub fn open(
        disk: &dyn Disk,
        stream: QueueId,
        config: LogConfig,
        start_offset: u64,
    ) -> Result<(StreamLog, Option<Cut>), LogError> {
        let (contents, cut) = recover(disk, stream, start_offset)?;
        let mut log = StreamLog {
            stream,
            config,
            segments: VecDeque::new(),
            epochs: Vec::new(),
            tracking: Tracking::default(),
            next_offset: 0,
            written: 0,
            committed: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            in_flight: None,
            must_repeat: false,
            files: None,
            maintenance: MaintenanceState::Idle,
            deletions: Vec::new(),
            truncation: None,
            unsealable: Vec::new(),
            spans: None,
            stream_start: None,
            first_message: None,
        };
        log.replace(contents);
        Ok((log, cut))
    }

    fn replace(&mut self, contents: Contents) {
        debug_assert!(self.pending.is_empty() && self.in_flight.is_none());
        let first = contents.segments.front().map(|s| s.first_offset);
        self.first_message = first.map(|first| (first, contents.first_message));
        self.segments = contents.segments;
        self.epochs = contents.epochs;
        self.tracking = contents.tracking;
        self.next_offset = contents.next_offset;
        self.written = contents.next_offset;
        self.files = None;
        self.unsealable.clear();
        self.spans = None;
    }

    /// The stream.
    pub fn stream(&self) -> QueueId {
        self.stream
    }

    /// The segments, ascending. The last one takes further chunks.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &Segment> {
        self.segments.iter()
    }

    /// First offset of the log.
    pub fn first_offset(&self) -> u64 {
        let first = self.segments.front();
        first.map_or(self.next_offset, |segment| segment.first_offset)
    }

    /// The first chunk with messages, as far as the log knows without reading. It is exact unless retention has deleted the
    /// segments before: then it is the begin of the segment, whose snapshot is written together with the next chunk.
    pub fn first_message(&self) -> Option<FirstMessage> {
        let first = self.segments.front()?;
        match self.first_message {
            Some((segment, known)) if segment == first.first_offset => known,
            _ => {
                let offset = first.first_offset.checked_add(1)?;
                let timestamp = first.first_timestamp;
                (offset < self.next_offset).then_some(FirstMessage { offset, timestamp })
            }
        }
    }

    /// Offset of the next record.
    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Offset after the last record that was written to the files.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Offset after the last record that readers may see: it is written here and committed.
    pub fn readable(&self) -> u64 {
        self.written.min(self.committed)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Bytes of chunks that wait for the disk.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// The sequences and stored offsets after the last chunk.
    pub fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// States the offset after the last record that a majority of the replicas has. It never decreases.
    pub fn commit(&mut self, committed: u64) {
        self.committed = self.committed.max(committed);
    }

    /// Changes the settings. They apply to the next chunk and to the next call of [`StreamLog::retain`].
    pub fn set_config(&mut self, config: LogConfig) {
        self.config = config;
    }

    /// A builder for [`StreamLog::append`].
    pub fn builder(&self) -> ChunkBuilder {
        ChunkBuilder::new(self.config.filter_len)
    }

    // Appending.

    /// Whether a message with this sequence is new. `builder` is the next chunk.
    pub fn deduplicate(
        &self,
        builder: &ChunkBuilder,
        producer: &[u8],
        sequence: u64,
    ) -> Deduplication {
        let in_builder = builder.sequence(producer);
        let newest = match in_builder {
            Some(newest) => Some(ProducerSequence {
                sequence: newest,
                // Behind the snapshot, if the chunk starts a segment.
                chunk: self.next_offset + u64::from(self.needs_segment()),
            }),
            None => self.tracking.sequence(producer),
        };
        match newest.filter(|newest| sequence <= newest.sequence) {
            Some(newest) => Deduplication::Duplicate {
                committed_above: newest.chunk,
            },
            None => Deduplication::New,
        }
    }

    fn check_room(&self) -> Result<(), AppendError> {
        if self.truncation.is_some() {
            return Err(AppendError::Truncating);
        }
        match self.pending_bytes >= MAX_PENDING_BYTES {
            true => Err(AppendError::Busy),
            false => Ok(()),
        }
    }

    fn check_epoch(&self, epoch: u64) -> Result<(), AppendError> {
        let newest = self.newest_epoch();
        match epoch < newest {
            true => Err(AppendError::StaleEpoch { epoch, newest }),
            false => Ok(()),
        }
    }

    /// Appends the content of `builder` as the leader of `epoch`, and empties the builder. Starts a new segment
    /// first if the last one is full. Returns the header of the chunk; `None` if the builder is empty.
    ///
    /// # Errors
    ///
    /// [`AppendError::Busy`], [`AppendError::Truncating`], [`AppendError::StaleEpoch`],
    /// [`AppendError::TooManyOffsets`] and [`AppendError::Exhausted`]; the log and the builder are unchanged.
    pub fn append(
        &mut self,
        builder: &mut ChunkBuilder,
        epoch: u64,
        now: WallTime,
    ) -> Result<Option<ChunkHeader>, AppendError> {
        self.check_room()?;
        self.check_epoch(epoch)?;
        if builder.is_empty() {
            return Ok(None);
        }
        let is_new = |name: &[u8]| self.tracking.offset(name).is_none();
        if self.tracking.offset_count() + builder.count_offsets(is_new) > MAX_OFFSETS {
            return Err(AppendError::TooManyOffsets);
        }
        let ends_above = u64::from(builder.records()) + 2;
        if self.next_offset.checked_add(ends_above).is_none() {
            return Err(AppendError::Exhausted);
        }
        let timestamp = i64::try_from(now.0).unwrap_or(i64::MAX);
        if self.needs_segment() {
            self.push_snapshot(epoch, timestamp);
        }
        let Some(chunk) = builder.finish(self.next_offset, epoch, timestamp) else {
            return Ok(None);
        };
        let applied = chunk.apply_tracking(&mut self.tracking);
        debug_assert_eq!(applied, Ok(()), "the names were counted");
        self.push(&chunk);
        Ok(Some(*chunk.header()))
    }

    /// Appends the messages of a chunk of another log as the leader of `epoch`, with their filter and the sequences of their
    /// producers. The chunk keeps its timestamp, but it gets none before that of the chunk in front of it or after `now`.
    /// Returns its header.
    ///
    /// # Errors
    ///
    /// As [`StreamLog::append`], and [`ChunkFault::Entries`] if the chunk has no messages; the log is unchanged.
    pub fn append_copy(
        &mut self,
        chunk: &Chunk,
        epoch: u64,
        now: WallTime,
    ) -> Result<ChunkHeader, AppendError> {
        self.check_room()?;
        self.check_epoch(epoch)?;
        if chunk.header().kind != ChunkKind::Messages {
            return Err(ChunkFault::Entries.into());
        }
        let ends_above = u64::from(chunk.header().records) + 2;
        if self.next_offset.checked_add(ends_above).is_none() {
            return Err(AppendError::Exhausted);
        }
        let now = i64::try_from(now.0).unwrap_or(i64::MAX);
        let last = self.segments.back().map_or(0, |last| last.last_timestamp);
        let timestamp = chunk.header().timestamp.min(now).max(last);
        if self.needs_segment() {
            self.push_snapshot(epoch, timestamp);
        }
        let copy = chunk.renumbered(self.next_offset, epoch, timestamp);
        let copy = copy.ok_or(ChunkFault::Entries)?;
        let applied = copy.apply_tracking(&mut self.tracking);
        debug_assert_eq!(applied, Ok(()), "a copy stores no offsets");
        self.push(&copy);
        Ok(*copy.header())
    }

    /// Appends a chunk without messages as the leader of `epoch`: once it is committed, so are the chunks of earlier
    /// epochs. Returns its header.
    ///
    /// # Errors
    ///
    /// As [`StreamLog::append`]; the log is unchanged.
    pub fn append_marker(&mut self, epoch: u64, now: WallTime) -> Result<ChunkHeader, AppendError> {
        self.check_room()?;
        self.check_epoch(epoch)?;
        if self.next_offset == u64::MAX {
            return Err(AppendError::Exhausted);
        }
        let timestamp = i64::try_from(now.0).unwrap_or(i64::MAX);
        if self.needs_segment() {
            return Ok(self.push_snapshot(epoch, timestamp));
        }
        let chunk = marker_chunk(self.next_offset, epoch, timestamp);
        self.push(&chunk);
        Ok(*chunk.header())
    }

    /// Starts a new segment.
    fn push_snapshot(&mut self, epoch: u64, timestamp: i64) -> ChunkHeader {
        let first = self.first_offset();
        let start = self.stream_start.map_or(first, |start| start.min(first));
        self.tracking.drop_offsets_below(start);
        let nothing = Tracking::default();
        let tracking = match fault::is(Fault::SnapshotIncomplete) {
            true => &nothing,
            false => &self.tracking,
        };
        let chunk = crate::snapshot_chunk(tracking, self.next_offset, epoch, timestamp);
        self.push(&chunk);
        *chunk.header()
    }

    /// Stores an offset in the next chunk. Returns false if the stream stores offsets under too many names.
    ///
    /// # Errors
    ///
    /// As [`ChunkBuilder::set_offset`].
    pub fn store_offset(
        &self,
        builder: &mut ChunkBuilder,
        name: &[u8],
        offset: u64,
    ) -> Result<bool, BuildError> {
        let is_new = |name: &[u8]| self.tracking.offset(name).is_none();
        let is_known = !is_new(name) || builder.has_offset(name);
        let names = self.tracking.offset_count() + builder.count_offsets(is_new);
        if !is_known && names >= MAX_OFFSETS {
            return Ok(false);
        }
        builder.set_offset(name, offset).map(|()| true)
    }

    /// True if a snapshot has to come before the next chunk.
    fn needs_segment(&self) -> bool {
        match self.segments.back() {
            Some(last) => {
                let limit = self.config.max_segment_bytes.min(MAX_SEGMENT_BYTES);
                let chunks = self.config.max_segment_chunks.min(MAX_SEGMENT_CHUNKS);
                // With its snapshot alone a segment is never full.
                let has_more_than_snapshot = last.chunks > 1;
                (last.bytes >= limit && has_more_than_snapshot) || last.chunks >= chunks.max(2)
            }
            None => self.next_offset > 0,
        }
    }

    /// Appends a chunk of the leader as a follower. Segments begin where those of the leader do.
    ///
    /// # Errors
    ///
    /// Any [`AppendError`]; the log is unchanged.
    pub fn accept(&mut self, bytes: Bytes) -> Result<ChunkHeader, AppendError> {
        self.check_room()?;
        self.accept_chunk(&Chunk::decode(bytes)?)
    }

    /// As [`StreamLog::accept`], for a chunk that was verified before.
    ///
    /// # Errors
    ///
    /// As [`StreamLog::accept`], except for damage.
    pub fn accept_chunk(&mut self, chunk: &Chunk) -> Result<ChunkHeader, AppendError> {
        self.check_room()?;
        let header = *chunk.header();
        if header.first_offset != self.next_offset {
            return Err(AppendError::Gap {
                expected: self.next_offset,
                found: header.first_offset,
            });
        }
        self.check_epoch(header.epoch)?;
        let is_snapshot = header.kind == ChunkKind::TrackingSnapshot;
        match self.segments.back() {
            None if is_snapshot != (header.first_offset > 0) => {
                return Err(AppendError::SnapshotMissing);
            }
            Some(last) if !is_snapshot => {
                let end = last.bytes + header.chunk_len();
                if end > u64::from(u32::MAX) || last.chunks >= 2 * MAX_SEGMENT_CHUNKS {
                    return Err(AppendError::Exhausted);
                }
            }
            _ => {}
        }
        if !self.tracking.can_apply(chunk) {
            return Err(AppendError::TooManyOffsets);
        }
        let applied = chunk.apply_tracking(&mut self.tracking);
        debug_assert_eq!(applied, Ok(()), "the names were counted");
        self.push(chunk);
        Ok(header)
    }

    /// Chunks from `offset` on that no append job has taken yet, in order.
    pub fn pending_from(&self, offset: u64) -> impl Iterator<Item = &Bytes> {
        let first = self
            .pending
            .partition_point(|chunk| chunk.next_offset <= offset);
        self.pending.range(first..).map(|chunk| &chunk.bytes)
    }

    /// Adds a chunk to the last segment, or to a new one if it is a snapshot.
    fn push(&mut self, chunk: &Chunk) {
        let header = chunk.header();
        debug_assert_eq!(header.first_offset, self.next_offset);
        let starts_segment = self.segments.is_empty() || header.kind == ChunkKind::TrackingSnapshot;
        if starts_segment {
            self.segments.push_back(Segment {
                first_offset: header.first_offset,
                next_offset: header.first_offset,
                bytes: FILE_HEADER_BYTES,
                chunks: 0,
                first_timestamp: header.timestamp,
                last_timestamp: header.timestamp,
                is_sealed: false,
            });
            self.spans = None;
        }
        if self.newest_epoch() < header.epoch || self.epochs.is_empty() {
            self.epochs.push(EpochStart {
                epoch: header.epoch,
                first_offset: header.first_offset,
            });
        }
        if self.segments.len() == 1 {
            self.note_first_message(header);
        }
        let Some(last) = self.segments.back_mut() else {
            return;
        };
        debug_assert!(last.bytes <= u64::from(u32::MAX));
        let index = IndexRecord::new(header, last.bytes as u32);
        let chunks_before = last.chunks;
        last.next_offset = header.next_offset();
        last.bytes += header.chunk_len();
        last.chunks += 1;
        last.last_timestamp = header.timestamp;
        self.next_offset = header.next_offset();
        self.pending_bytes += chunk.bytes().len();
        self.pending.push_back(PendingChunk {
            bytes: chunk.bytes().clone(),
            index,
            segment: last.first_offset,
            chunks_before,
            next_offset: header.next_offset(),
        });
    }

    /// A chunk is added to the first segment.
    fn note_first_message(&mut self, header: &ChunkHeader) {
        let segment = self.first_offset();
        if let Some((of, Some(_))) = self.first_message
            && of == segment
        {
            return;
        }
        let found = (header.kind == ChunkKind::Messages).then_some(FirstMessage {
            offset: header.first_offset,
            timestamp: header.timestamp,
        });
        // Of a segment that has become the first one meanwhile, earlier chunks are unknown.
        let is_known = self.first_message.is_some_and(|(of, _)| of == segment);
        if is_known || header.first_offset == segment {
            self.first_message = Some((segment, found));
        }
    }

    /// The next job that writes chunks, if there are any and no such job is running.
    pub fn take_append(&mut self) -> Option<Arc<AppendJob>> {
        if let Some(job) = &self.in_flight {
            return std::mem::take(&mut self.must_repeat).then(|| job.clone());
        }
        self.pending.front()?;
        let mut segments: Vec<SegmentAppend> = Vec::new();
        let mut bytes = 0;
        let mut next_offset = self.written;
        while let Some(chunk) = self.pending.front() {
            if bytes > 0 && bytes + chunk.bytes.len() > MAX_JOB_BYTES {
                break;
            }
            bytes += chunk.bytes.len();
            next_offset = chunk.next_offset;
            let is_same = |s: &SegmentAppend| s.first_offset == chunk.segment;
            if !segments.last().is_some_and(is_same) {
                segments.push(SegmentAppend::new(
                    chunk.segment,
                    chunk.index,
                    chunk.chunks_before,
                ));
            }
            if let Some(segment) = segments.last_mut() {
                segment.push(chunk.bytes.clone(), &chunk.index);
            }
            self.pending.pop_front();
        }
        let files = self.files.take();
        let job = Arc::new(AppendJob::new(
            self.stream,
            segments,
            files,
            bytes,
            next_offset,
        ));
        if fault::is(Fault::WrittenEarly) {
            self.written = next_offset;
        }
        self.in_flight = Some(job.clone());
        Some(job)
    }

    /// Handles the result of an append job. After a shortage the job is offered again.
    ///
    /// # Errors
    ///
    /// The error of the job, if it is not a shortage: the disk cannot be trusted, so the node must stop.
    pub fn append_done(&mut self, result: Result<Appended, LogError>) -> Result<(), LogError> {
        let Some(job) = self.in_flight.take() else {
            debug_assert!(false, "no append job is running");
            return Ok(());
        };
        match result {
            Ok(appended) => {
                self.written = job.next_offset();
                self.pending_bytes -= job.bytes();
                self.files = appended.files;
                Ok(())
            }
            Err(error) if error.is_passing() && fault::is(Fault::FullForgotten) => {
                self.pending_bytes -= job.bytes();
                self.written = job.next_offset();
                Ok(())
            }
            Err(error) => {
                let is_passing = error.is_passing();
                self.in_flight = Some(job);
                self.must_repeat = is_passing;
                if is_passing { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Closes the files that are open for appending. The next append opens them again.
    pub fn release(&mut self) {
        self.files = None;
    }

    // Epochs and truncation.

    fn newest_epoch(&self) -> u64 {
        self.epochs.last().map_or(0, |start| start.epoch)
    }

    /// The epochs of the log, ascending, each with the first offset that it has here.
    pub fn epochs(&self) -> &[EpochStart] {
        &self.epochs
    }

    /// The largest epoch that is not above `epoch`, and its end. `None` if all epochs are above it or the log is
    /// empty.
    pub fn epoch_end(&self, epoch: u64) -> Option<EpochEnd> {
        let above = self.epochs.partition_point(|start| start.epoch <= epoch);
        let found = self.epochs.get(above.checked_sub(1)?)?;
        let next = self.epochs.get(above);
        Some(EpochEnd {
            epoch: found.epoch,
            end: next.map_or(self.next_offset, |next| next.first_offset),
        })
    }

    /// The offset at which a follower has to truncate its log. `leader` is [`StreamLog::epoch_end`] of the leader
    /// for the newest epoch of the follower. If its epoch is older, truncate and ask again: several epochs may
    /// differ.
    pub fn divergence(&self, leader: Option<EpochEnd>) -> u64 {
        let Some(leader) = leader else {
            return self.first_offset();
        };
        match self.epoch_end(leader.epoch) {
            Some(own) => own.end.min(leader.end),
            None => self.first_offset(),
        }
    }

    /// Starts to remove everything from `offset` on. If a chunk has `offset` in its middle, the whole chunk is
    /// removed. The log takes no chunks until the maintenance job is done.
    ///
    /// # Errors
    ///
    /// See [`TruncateError`]; nothing has changed.
    pub fn truncate(&mut self, offset: u64) -> Result<(), TruncateError> {
        if offset < self.committed.min(self.next_offset) {
            return Err(TruncateError::Committed {
                offset,
                committed: self.committed,
            });
        }
        let is_writing = self.in_flight.is_some() || !self.pending.is_empty();
        let is_busy = self.maintenance != MaintenanceState::Idle || self.truncation.is_some();
        if is_writing || is_busy {
            return Err(TruncateError::Busy);
        }
        if offset < self.next_offset {
            self.files = None;
            self.truncation = Some(offset);
        }
        Ok(())
    }

    /// Returns true from [`StreamLog::truncate`] until its job is done.
    pub fn is_truncating(&self) -> bool {
        self.truncation.is_some()
    }

    // Maintenance.

    /// Removes the oldest segments from the log according to [`Retention`]; a maintenance job deletes their files.
    /// Returns true if there are any. Only committed and sealed segments are removed, and never the last one: a file
    /// whose deletion a power failure undoes must not be torn, because the log would end in it. A committed chunk always
    /// stays: a log that then drops its uncommitted end must know its epoch, or it loses elections to shorter logs.
    pub fn retain(&mut self, now: WallTime) -> bool {
        if self.truncation.is_some() {
            return false;
        }
        let retention = self.config.retention;
        let now = i64::try_from(now.0).unwrap_or(i64::MAX);
        let oldest = retention.max_age.map_or(i64::MIN, |age| {
            now.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
        });
        let mut bytes = self.bytes();
        let readable = match fault::is(Fault::UncommittedDeleted) {
            true => self.written,
            false => self.readable(),
        };
        let deletable = self.segments.len().saturating_sub(1);
        let count = (self.segments.iter().take(deletable))
            .take_while(|segment| {
                let is_surplus = retention.max_bytes.is_some_and(|max| bytes > max);
                let is_old = segment.last_timestamp < oldest;
                bytes -= segment.bytes;
                let is_durable =
                    segment.is_sealed || self.unsealable.contains(&segment.first_offset);
                is_durable && segment.next_offset < readable && (is_surplus || is_old)
            })
            .count();
        self.remove_oldest(count)
    }

    /// Removes the segments that end at or before `offset` from the log, because another copy of them exists; a maintenance
    /// job deletes their files. The rules of [`StreamLog::retain`] hold: only committed and sealed segments, and never the
    /// last one. Returns true if there are any.
    pub fn release_before(&mut self, offset: u64) -> bool {
        if self.truncation.is_some() {
            return false;
        }
        let readable = self.readable();
        let deletable = self.segments.len().saturating_sub(1);
        let candidates = self.segments.iter().take(deletable);
        let count = candidates
            .take_while(|segment| {
                let is_durable =
                    segment.is_sealed || self.unsealable.contains(&segment.first_offset);
                let is_released = segment.next_offset <= offset;
                is_released && is_durable && segment.next_offset < readable
            })
            .count();
        self.remove_oldest(count)
    }

    /// Removes the oldest segments; a maintenance job deletes their files. Returns true if there are any.
    fn remove_oldest(&mut self, count: usize) -> bool {
        let removed = self.segments.drain(..count);
        self.deletions.extend(removed.map(|s| s.first_offset));
        if count > 0 {
            self.forget_old_epochs();
            self.spans = None;
        }
        count > 0
    }

    /// States where the stream begins, if that is before the log because older segments are in an object store: stored
    /// offsets from there on are kept.
    pub fn set_stream_start(&mut self, offset: Option<u64>) {
        self.stream_start = offset;
    }

    /// The next job of retention, truncation or sealing, if there is one and no such job is running.
    pub fn take_maintenance(&mut self) -> Option<MaintenanceJob> {
        if self.maintenance != MaintenanceState::Idle {
            return None;
        }
        if !self.deletions.is_empty() {
            self.maintenance = MaintenanceState::Deleting(self.deletions.len());
            return Some(MaintenanceJob::delete(self.stream, self.deletions.clone()));
        }
        if let Some(offset) = self.truncation {
            self.maintenance = MaintenanceState::Truncating;
            let start_offset = self.first_offset().min(offset);
            return Some(MaintenanceJob::truncate(self.stream, offset, start_offset));
        }
        let segment = self.next_to_seal()?;
        let (first, next) = (segment.first_offset, segment.next_offset);
        self.maintenance = MaintenanceState::Sealing(first);
        Some(MaintenanceJob::seal(self.stream, first, next))
    }

    fn next_to_seal(&self) -> Option<&Segment> {
        let complete = self.segments.len().saturating_sub(1);
        self.segments.iter().take(complete).find(|segment| {
            !segment.is_sealed
                && segment.next_offset <= self.written
                && !self.unsealable.contains(&segment.first_offset)
        })
    }

    /// Handles the result of a maintenance job. After a shortage the job is offered again. Returns the damaged part
    /// that a truncation found and removed beside what it was asked for.
    ///
    /// # Errors
    ///
    /// The error of the job, if it is not a shortage. A damaged segment is not sealed and should be repaired;
    /// after other errors the node must stop.
    pub fn maintenance_done(
        &mut self,
        result: Result<MaintenanceResult, LogError>,
    ) -> Result<Option<Cut>, LogError> {
        let state = std::mem::replace(&mut self.maintenance, MaintenanceState::Idle);
        match (state, result) {
            (MaintenanceState::Sealing(first), Ok(_)) => {
                let sealed = self.segments.iter_mut().find(|s| s.first_offset == first);
                if let Some(segment) = sealed {
                    segment.is_sealed = true;
                }
            }
            (MaintenanceState::Deleting(count), Ok(_)) => {
                self.deletions.drain(..count.min(self.deletions.len()));
            }
            (
                MaintenanceState::Truncating,
                Ok(MaintenanceResult(MaintenanceOutcome::Truncated(contents, cut))),
            ) => {
                self.truncation = None;
                self.replace(*contents);
                return Ok(cut);
            }
            (state, Err(error)) => {
                if let (MaintenanceState::Sealing(first), LogError::Corrupt { .. }) =
                    (state, &error)
                {
                    self.unsealable.push(first);
                }
                if !error.is_passing() {
                    return Err(error);
                }
            }
            (state, Ok(_)) => debug_assert!(false, "the result of another job: {state:?}"),
        }
        Ok(None)
    }

    /// Forgets epochs whose records were all deleted.
    fn forget_old_epochs(&mut self) {
        let first = self.first_offset();
        let above = self
            .epochs
            .partition_point(|start| start.first_offset <= first);
        self.epochs.drain(..above.saturating_sub(1));
        if let Some(oldest) = self.epochs.first_mut() {
            oldest.first_offset = oldest.first_offset.max(first);
        }
    }

    // Reading.

    /// The cause of a failed read of this log. Retention takes a segment from the log before it deletes the file, so
    /// a missing file of a segment that the log still has is damage: [`LogError::Deleted`] becomes [`LogError::Corrupt`].
    pub fn read_error(&self, error: LogError) -> LogError {
        match error {
            LogError::Deleted { offset, .. }
                if self.segments().any(|s| s.first_offset == offset) =>
            {
                LogError::corrupt(&segment_path(self.stream, offset), 0, "the file is missing")
            }
            other => other,
        }
    }

    /// The log as readers may see it now: committed chunks in the files.
    pub fn view(&mut self) -> LogView {
        let end = self.readable();
        self.view_up_to(end)
    }

    /// The log as followers may see it now: all chunks in the files.
    pub fn replication_view(&mut self) -> LogView {
        self.view_up_to(self.written)
    }

    fn view_up_to(&mut self, end: u64) -> LogView {
        let segments = self.spans.get_or_insert_with(|| {
            let newest = self.segments.len().saturating_sub(1);
            let spans = self.segments.iter().enumerate().map(|(at, s)| SegmentSpan {
                first_offset: s.first_offset,
                last_timestamp: (at < newest).then_some(s.last_timestamp),
            });
            spans.collect()
        });
        LogView {
            stream: self.stream,
            segments: segments.clone(),
            end: end.max(segments.first().map_or(0, |s| s.first_offset)),
        }
    }
}
