//! The kinds of records in parts.

use crate::chunks::{self, ChunkRecords};
use crate::frame::RecordsError;
use crate::records::{self, Records};
use crate::retained::{self, RetainedRecords};
use bytes::Bytes;

/// The kind of the records of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Messages of a classic or quorum queue.
    Messages,
    /// Chunks of a stream.
    Chunks,
    /// Retained MQTT messages.
    Retained,
}

impl RecordKind {
    /// The records of a queue of this type: `classic`, `quorum` or `stream`.
    pub fn of_queue(kind: &str) -> RecordKind {
        match kind {
            "stream" => RecordKind::Chunks,
            _ => RecordKind::Messages,
        }
    }

    /// Begins a part.
    pub fn begin(self, out: &mut Vec<u8>) {
        match self {
            RecordKind::Messages => records::begin(out),
            RecordKind::Chunks => chunks::begin(out),
            RecordKind::Retained => retained::begin(out),
        }
    }

    /// Calls `each` with each valid record and the number of its messages. Memory: none besides the part.
    ///
    /// # Errors
    ///
    /// The first record that is invalid, or the error of `each`.
    pub fn each<E: From<RecordsError>>(
        self,
        part: Bytes,
        mut each: impl FnMut(&Bytes, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            RecordKind::Messages => {
                for record in Records::new(part)? {
                    each(&record?.raw, 1)?;
                }
            }
            RecordKind::Chunks => {
                for record in ChunkRecords::new(part)? {
                    let record = record?;
                    each(&record.raw, record.chunk.header().records.into())?;
                }
            }
            RecordKind::Retained => {
                for record in RetainedRecords::new(part)? {
                    each(&record?.raw, 1)?;
                }
            }
        }
        Ok(())
    }
}
