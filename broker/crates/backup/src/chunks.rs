//! Chunks of a stream as records: `"PHCHNK" | version u16 | records`. The frame of a record is that of
//! [`records`](crate::records), and its content is a chunk with messages as it is in the log of the stream.

use crate::frame::{self, Frames, RecordsError};
use bytes::Bytes;
use stream_log::{ChunkFault, ChunkHeader, ChunkKind, HEADER_BYTES, MAX_CHUNK_BYTES};

pub use stream_log::Chunk;

/// The first bytes of a part.
const MAGIC: &str = "PHCHNK";
/// Version of the format.
const VERSION: u16 = 1;

/// Begins a part.
pub fn begin(out: &mut Vec<u8>) {
    frame::begin(out, MAGIC, VERSION);
}

/// Appends a chunk, as it is in the log. Returns the number of its messages.
///
/// # Errors
///
/// If it has no header of a chunk, or more than [`MAX_CHUNK_BYTES`].
pub fn append(out: &mut Vec<u8>, chunk: &[u8]) -> Result<u64, ChunkFault> {
    let (header, _) = ChunkHeader::decode(chunk)?;
    let appended = frame::append(out, chunk.len(), MAX_CHUNK_BYTES, |out| {
        out.extend_from_slice(chunk);
    });
    appended.map_err(|_| ChunkFault::Trailing)?;
    Ok(header.records.into())
}

/// A valid record of a part.
#[derive(Clone, Debug)]
pub struct ChunkRecord {
    /// Its offset in the part.
    pub offset: usize,
    /// The whole record.
    pub raw: Bytes,
    /// Its chunk, which shares the memory of the part.
    pub chunk: Chunk,
}

/// Reads the chunks of a part in their order, and verifies each. It ends after the first error. Memory: none besides the part.
#[derive(Debug)]
pub struct ChunkRecords(Frames);

impl ChunkRecords {
    /// Checks the first bytes.
    ///
    /// # Errors
    ///
    /// [`RecordsError::Magic`] or [`RecordsError::Version`].
    pub fn new(bytes: Bytes) -> Result<ChunkRecords, RecordsError> {
        let limits = HEADER_BYTES..=MAX_CHUNK_BYTES;
        Ok(ChunkRecords(Frames::new(bytes, MAGIC, VERSION, limits)?))
    }
}

impl Iterator for ChunkRecords {
    type Item = Result<ChunkRecord, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_with(|offset, raw, content| {
            let chunk = Chunk::decode(content).map_err(|fault| format!("is invalid: {fault}"))?;
            match chunk.header().kind {
                ChunkKind::Messages => Ok(ChunkRecord { offset, raw, chunk }),
                _ => Err("has no messages".to_owned()),
            }
        })
    }
}
