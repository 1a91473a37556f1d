//! Reading a segment from front to back with all checks.

use crate::LogError;
use crate::chunk::{Chunk, ChunkFault, ChunkHeader, ChunkKind, HEADER_BYTES};
use crate::files::{has_valid_header, segment_path};
use crate::filter::MAX_FILTER_BYTES;
use crate::format::{EpochStart, FILE_HEADER_BYTES, FileKind, IndexRecord};
use crate::tracking::Tracking;
use bytes::Bytes;
use env::File;
use ids::QueueId;

/// Bytes read at once while chunks are small.
const WINDOW_BYTES: usize = 256 << 10;
/// Most bytes of a chunk header and its filter.
pub(crate) const HEAD_BYTES: usize = HEADER_BYTES + MAX_FILTER_BYTES as usize;

/// Reads a file in windows.
struct Window<'a> {
    file: &'a dyn File,
    path: &'a str,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// Up to `len` bytes at `position`; fewer at the end of the file.
    fn read(&mut self, position: u64, len: usize) -> Result<Bytes, LogError> {
        if let Some(part) = self.cached(position, len) {
            return Ok(part);
        }
        let bytes = self
            .file
            .read_vec_at(position, len.max(WINDOW_BYTES))
            .map_err(|e| LogError::io(self.path, &e))?;
        self.start = position;
        self.bytes = bytes.into();
        Ok(self.bytes.slice(..len.min(self.bytes.len())))
    }

    fn cached(&self, position: u64, len: usize) -> Option<Bytes> {
        let from = usize::try_from(position.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(len)?;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }
}

/// The valid front of a segment file.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Length of the front in bytes; 0 if the file has no valid header.
    pub bytes: u64,
    pub next_offset: u64,
    pub chunks: u32,
    pub first_timestamp: i64,
    pub last_timestamp: i64,
    pub epochs: Vec<EpochStart>,
    /// Tracking after the last chunk.
    pub tracking: Tracking,
    /// Encoded index records.
    pub index: Vec<u8>,
    /// CRC-32 of the front.
    pub crc: u32,
    /// Why the front ends before the file does.
    pub fault: Option<ScanFault>,
}

/// Why a chunk in a segment is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanFault {
    /// The chunk itself is damaged.
    #[error(transparent)]
    Chunk(#[from] ChunkFault),
    /// The file does not begin as a segment.
    #[error("the file header is damaged")]
    FileHeader,
    /// The chunk does not continue the log.
    #[error("the chunk does not follow the one before it")]
    OutOfOrder,
    /// A segment does not start with a tracking snapshot, or has another one. Only the segment at offset 0 has
    /// none.
    #[error("a tracking snapshot is missing or misplaced")]
    Snapshot,
}

/// Scans the segment file of `stream` that starts at `first_offset`. Stops before the first chunk that is not
/// valid. Epochs start above or at `epoch`.
pub(crate) fn scan(
    file: &dyn File,
    stream: QueueId,
    first_offset: u64,
    epoch: u64,
) -> Result<Scan, LogError> {
    let path = segment_path(stream, first_offset);
    let mut scan = Scan {
        bytes: 0,
        next_offset: first_offset,
        chunks: 0,
        first_timestamp: 0,
        last_timestamp: 0,
        epochs: Vec::new(),
        tracking: Tracking::default(),
        index: Vec::new(),
        crc: 0,
        fault: None,
    };
    if !has_valid_header(file, &path, FileKind::Segment)? {
        scan.fault = Some(ScanFault::FileHeader);
        return Ok(scan);
    }
    scan.bytes = FILE_HEADER_BYTES;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&FileKind::Segment.header());
    let mut window = Window {
        file,
        path: &path,
        start: 0,
        bytes: Bytes::new(),
    };
    let mut epoch = epoch;
    loop {
        match scan.next(&mut window, epoch)? {
            Ok(Some(chunk)) => {
                crc.update(chunk.bytes());
                epoch = chunk.header().epoch;
            }
            Ok(None) => break,
            Err(fault) => {
                scan.fault = Some(fault);
                break;
            }
        }
    }
    scan.crc = crc.finalize();
    Ok(scan)
}

impl Scan {
    /// Reads the next chunk; `None` at the end of the file.
    fn next(
        &mut self,
        window: &mut Window<'_>,
        epoch: u64,
    ) -> Result<Result<Option<Chunk>, ScanFault>, LogError> {
        let head = window.read(self.bytes, HEAD_BYTES)?;
        if head.is_empty() {
            return Ok(Ok(None));
        }
        let header = match ChunkHeader::decode(&head) {
            Ok((header, _)) => header,
            Err(fault) => return Ok(Err(fault.into())),
        };
        if header.first_offset != self.next_offset || header.epoch < epoch {
            return Ok(Err(ScanFault::OutOfOrder));
        }
        let starts_segment = self.chunks == 0 && self.next_offset > 0;
        if starts_segment != (header.kind == ChunkKind::TrackingSnapshot) {
            return Ok(Err(ScanFault::Snapshot));
        }
        let Ok(position) = u32::try_from(self.bytes) else {
            return Ok(Err(ScanFault::OutOfOrder));
        };
        // Not above `MAX_CHUNK_BYTES`: the header was checked.
        let bytes = window.read(self.bytes, header.chunk_len() as usize)?;
        let chunk = match Chunk::decode(bytes) {
            Ok(chunk) => chunk,
            Err(fault) => return Ok(Err(fault.into())),
        };
        if let Err(fault) = chunk.apply_tracking(&mut self.tracking) {
            return Ok(Err(fault.into()));
        }
        IndexRecord::new(&header, position).put(&mut self.index);
        if self.chunks == 0 {
            self.first_timestamp = header.timestamp;
        }
        if self
            .epochs
            .last()
            .is_none_or(|last| last.epoch < header.epoch)
        {
            self.epochs.push(EpochStart {
                epoch: header.epoch,
                first_offset: header.first_offset,
            });
        }
        self.last_timestamp = header.timestamp;
        self.chunks += 1;
        self.next_offset = header.next_offset();
        self.bytes += header.chunk_len();
        Ok(Ok(Some(chunk)))
    }
}
