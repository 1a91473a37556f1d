//! Storage jobs of a replica. They block, so they run on a storage thread.

use env::Disk;
use queue::QueueId;
use std::sync::Arc;
use stream_log::{
    AppendJob, Appended, Chunk, ChunkKind, ChunkReader, Cut, FilterMatcher, LogConfig, LogError,
    LogView, MaintenanceJob, MaintenanceResult, Start, StreamLog, delete_stream, read_machine,
    write_machine,
};

use stream_tier::{ReadError, RemoteRead, RemoteResult, StoreLane, TierJob, TierJobResult};

/// Most chunks that one read skips because no cursor of the read wants them.
const MAX_SKIPPED: usize = 4_096;

/// Opens the log.
#[derive(Debug)]
pub(crate) struct OpenJob {
    pub stream: QueueId,
    pub config: LogConfig,
    /// Names the run of the machine.
    pub machine: Box<[u8]>,
    /// Delete the log, and begin an empty one at this offset.
    pub restart_at: Option<u64>,
    /// The log is intact if it has no files yet: the replica founds the stream. Or it was intact before it was deleted.
    pub is_intact_if_new: bool,
}

/// A log that was opened.
#[derive(Debug)]
pub(crate) struct OpenedLog {
    pub log: StreamLog,
    pub cut: Option<Cut>,
    pub is_intact: bool,
}

impl OpenJob {
    fn run(&self, disk: &dyn Disk) -> Result<Box<OpenedLog>, LogError> {
        if self.restart_at.is_some() {
            delete_stream(disk, self.stream)?;
        }
        let recorded = read_machine(disk, self.stream)?;
        let start = self.restart_at.unwrap_or(0);
        let (log, cut) = StreamLog::open(disk, self.stream, self.config, start)?;
        let has_lost = cut.as_ref().is_some_and(|cut| cut.has_lost_chunks);
        let is_new = recorded.is_none()
            && !has_lost
            && log.next_offset() == start
            && log.segments().len() == 0;
        let founds = is_new && self.is_intact_if_new;
        if founds {
            write_machine(disk, self.stream, &self.machine)?;
        }
        let is_intact = founds || (!has_lost && recorded.as_deref() == Some(&*self.machine));
        Ok(Box::new(OpenedLog {
            log,
            cut,
            is_intact,
        }))
    }
}

/// Finds or reads chunks.
#[derive(Debug)]
pub(crate) struct ReadJob {
    pub view: LogView,
    /// The position if there is no reader.
    pub start: Start,
    pub reader: Option<Box<ChunkReader>>,
    /// Bytes after which no further chunk is read; 0: only find the position.
    pub max_bytes: usize,
    pub max_chunks: usize,
    /// No chunk that ends above it is read.
    pub end: u64,
    /// Skip chunks without messages, and those that the filter rules out.
    pub only: Option<FilterMatcher>,
}

/// The result of a [`ReadJob`].
#[derive(Debug)]
pub(crate) struct ReadResult {
    /// None if the position was not found.
    pub reader: Option<Box<ChunkReader>>,
    pub chunks: Vec<Chunk>,
    /// The position after the last chunk that was read or skipped.
    pub next: u64,
    pub error: Option<LogError>,
    /// The segment in the store, by first offset, whose objects are missing or wrong.
    pub wrong_segment: Option<u64>,
    /// The offset whose part in the store should be fetched next.
    pub read_ahead: Option<u64>,
}

impl From<RemoteResult> for ReadResult {
    fn from(result: RemoteResult) -> ReadResult {
        let wrong_segment = match &result.error {
            Some(ReadError::Wrong { segment, .. }) => Some(*segment),
            _ => None,
        };
        let error = result.error.map(|error| LogError::Remote {
            error: error.to_string(),
        });
        ReadResult {
            reader: None,
            chunks: result.chunks,
            next: result.next,
            error,
            wrong_segment,
            read_ahead: result.read_ahead,
        }
    }
}

impl ReadResult {
    fn failed(error: LogError) -> ReadResult {
        ReadResult {
            reader: None,
            chunks: Vec::new(),
            next: 0,
            error: Some(error),
            wrong_segment: None,
            read_ahead: None,
        }
    }
}

impl ReadJob {
    fn run(self, disk: &dyn Disk) -> ReadResult {
        let mut reader = match self.reader {
            Some(reader) => reader,
            None => match ChunkReader::open(disk, &self.view, self.start) {
                Ok(reader) => Box::new(reader),
                Err(error) => return ReadResult::failed(error),
            },
        };
        let (mut chunks, mut bytes, mut skipped) = (Vec::new(), 0, 0);
        let mut next = reader.offset();
        let mut error = None;
        while bytes < self.max_bytes && chunks.len() < self.max_chunks && skipped < MAX_SKIPPED {
            let located = match reader.next(disk, &self.view) {
                Ok(Some(located)) if located.header().next_offset() <= self.end => located,
                Ok(_) => break,
                Err(e) => {
                    error = Some(e);
                    break;
                }
            };
            let is_wanted = self.only.as_ref().is_none_or(|filter| {
                located.header().kind == ChunkKind::Messages && filter.may_match(located.filter())
            });
            if is_wanted {
                match located.read() {
                    Ok(chunk) => {
                        bytes += chunk.bytes().len();
                        chunks.push(chunk);
                    }
                    Err(e) => {
                        error = Some(e);
                        break;
                    }
                }
            } else {
                skipped += 1;
            }
            next = located.header().next_offset();
        }
        // A reader that has passed a chunk which was not returned cannot be used again.
        let reader = (reader.offset() == next).then_some(reader);
        ReadResult {
            reader,
            chunks,
            next,
            error,
            wrong_segment: None,
            read_ahead: None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Open(Box<OpenJob>),
    Append(Arc<AppendJob>),
    Maintain(MaintenanceJob),
    RecordMachine {
        stream: QueueId,
        machine: Box<[u8]>,
    },
    Read(Box<ReadJob>),
    ReadRemote(Box<RemoteRead>),
    Tier(Box<TierJob>),
    Purge {
        stream: QueueId,
        remote: Arc<stream_tier::Remote>,
    },
}

/// A storage job of a replica. Its result goes to [`StreamReplica::job_done`](crate::StreamReplica::job_done).
#[derive(Debug)]
pub struct StreamJob {
    pub(crate) id: u64,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Opened(Result<Box<OpenedLog>, LogError>),
    Appended(Result<Appended, LogError>),
    Maintained(Result<MaintenanceResult, LogError>),
    Recorded(Result<(), LogError>),
    Read(Box<ReadResult>),
    Tier(Box<TierJobResult>),
    Purged(Result<(), String>),
}

/// The result of a [`StreamJob`].
#[derive(Debug)]
pub struct StreamJobResult {
    pub(crate) id: u64,
    pub(crate) outcome: Outcome,
}

impl StreamJob {
    /// Estimate of the disk space that the job needs, in bytes; 0 if it only reads or deletes.
    pub fn space(&self) -> u64 {
        match &self.work {
            Work::Append(job) => job.space(),
            Work::Maintain(job) => job.space(),
            Work::Open(_)
            | Work::RecordMachine { .. }
            | Work::Read(_)
            | Work::ReadRemote(_)
            | Work::Tier(_)
            | Work::Purge { .. } => 0,
        }
    }

    /// The threads for jobs on the object store. None: the storage thread.
    pub fn lane(&self) -> Option<StoreLane> {
        match &self.work {
            Work::ReadRemote(_) => Some(StoreLane::Fetch),
            Work::Tier(_) | Work::Purge { .. } => Some(StoreLane::Upload),
            _ => None,
        }
    }

    /// Does the work.
    pub fn run(self, disk: &dyn Disk) -> StreamJobResult {
        let outcome = match self.work {
            Work::Open(job) => Outcome::Opened(job.run(disk)),
            Work::Append(job) => Outcome::Appended(job.run(disk)),
            Work::Maintain(job) => Outcome::Maintained(job.run(disk)),
            Work::RecordMachine { stream, machine } => {
                Outcome::Recorded(write_machine(disk, stream, &machine))
            }
            Work::Read(job) => Outcome::Read(Box::new(job.run(disk))),
            Work::ReadRemote(job) => Outcome::Read(Box::new(job.run().into())),
            Work::Tier(job) => Outcome::Tier(Box::new(job.run(disk))),
            Work::Purge { stream, remote } => {
                Outcome::Purged(stream_tier::purge(&remote, stream).map_err(|e| e.to_string()))
            }
        };
        StreamJobResult {
            id: self.id,
            outcome,
        }
    }

    /// Called instead of [`StreamJob::run`] if the disk is short of space: the replica repeats the job later.
    pub fn refuse(self) -> StreamJobResult {
        let full = || LogError::Full {
            file: "the data directory".to_owned(),
            error: "less space is left than the node keeps free".to_owned(),
        };
        let outcome = match self.work {
            Work::Append(_) => Outcome::Appended(Err(full())),
            Work::Maintain(_) => Outcome::Maintained(Err(full())),
            Work::Open(_) => Outcome::Opened(Err(full())),
            Work::RecordMachine { .. } => Outcome::Recorded(Err(full())),
            Work::Read(_) => Outcome::Read(Box::new(ReadResult::failed(full()))),
            // They need no local space, so this is not called for them.
            Work::ReadRemote(_) => Outcome::Read(Box::new(ReadResult::failed(full()))),
            Work::Tier(job) => Outcome::Tier(Box::new(job.refuse())),
            Work::Purge { .. } => Outcome::Purged(Err(full().to_string())),
        };
        StreamJobResult {
            id: self.id,
            outcome,
        }
    }
}
