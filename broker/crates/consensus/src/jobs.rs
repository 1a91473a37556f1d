//! Storage jobs: disk work that the driver runs on its storage thread. Each job succeeds completely or has no
//! effect.

use crate::snapshot::{CheckpointContents, CheckpointReader, StreamError};
use crate::tombstone::{self, Tombstone};
use crate::{JobError, JobResult, StorageJob};
use bytes::Bytes;
use env::Disk;
use env::planted::{self, Bug};
use segment::{Segment, SegmentError, SegmentMeta, SegmentName};
use slots::IndexSet;
use std::fmt;
use std::sync::Arc;
use wal::{Entry, GroupId};

/// The entries that a flush moves to segments.
#[derive(Debug)]
pub(crate) struct FlushPlan {
    /// After the flush, every entry up to and including this index that is still needed is in segments.
    pub upto: u64,
    pub entries: Vec<Entry>,
}

/// The result of a job.
#[derive(Debug)]
pub(crate) enum JobOutcome {
    Flushed {
        upto: u64,
        segments: Vec<Arc<Segment>>,
        /// The founding checkpoint was written first.
        founded: bool,
    },
    Checkpointed {
        checkpoint: segment::Checkpoint,
    },
    Rewritten {
        old: Vec<SegmentName>,
        segments: Vec<Arc<Segment>>,
    },
    /// The files are deleted.
    Removed,
    /// The tombstone is durable.
    TombstoneWritten(Tombstone),
    /// A chunk of a received checkpoint is written to the staging file.
    Staged,
    /// A received checkpoint is durable, in its own files.
    Installed {
        checkpoint: segment::Checkpoint,
        segments: Vec<Arc<Segment>>,
    },
    /// The received checkpoint is invalid; all of its data was deleted.
    Refused(String),
    /// A part of a checkpoint that is being sent.
    Read(crate::snapshot::CheckpointPart),
    /// Disk space, descriptors or memory are short. The job had no effect and will be retried.
    Postponed,
}

type JobFunction = Box<dyn FnOnce(&dyn Disk) -> Result<JobOutcome, SegmentError> + Send>;

/// A job, with a description for errors.
pub(crate) struct Job {
    what: String,
    /// Estimated bytes of disk space needed.
    space: u64,
    run: JobFunction,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Job").field(&self.what).finish()
    }
}

impl StorageJob for Job {
    fn space(&self) -> u64 {
        self.space
    }

    fn refuse(self: Box<Self>) -> JobResult {
        Ok(Box::new(JobOutcome::Postponed))
    }

    fn run(self: Box<Self>, disk: &dyn Disk) -> JobResult {
        match (self.run)(disk) {
            Ok(outcome) => Ok(Box::new(outcome)),
            Err(error) if error.is_passing() => Ok(Box::new(JobOutcome::Postponed)),
            Err(error) => Err(JobError {
                what: self.what,
                error: error.to_string(),
            }),
        }
    }
}

fn job(
    what: &str,
    group: GroupId,
    space: u64,
    run: impl FnOnce(&dyn Disk) -> Result<JobOutcome, SegmentError> + Send + 'static,
) -> Box<dyn StorageJob> {
    Box::new(Job {
        what: format!("{what} of group {:016x}", group.0),
        space,
        run: Box::new(run),
    })
}

fn open(
    disk: &Arc<dyn Disk>,
    written: Vec<SegmentMeta>,
) -> Result<Vec<Arc<Segment>>, SegmentError> {
    written
        .into_iter()
        .map(|m| Segment::open(Arc::clone(disk), m.group, m.name).map(Arc::new))
        .collect()
}

/// `founding`: a checkpoint that must be written before any entry leaves the write-ahead log.
pub(crate) fn flush(
    disk: Arc<dyn Disk>,
    group: GroupId,
    plan: FlushPlan,
    founding: Option<segment::Checkpoint>,
) -> Box<dyn StorageJob> {
    let entries = plan.entries.iter().map(|e| e.data.len() as u64 + 64);
    let space = entries.sum::<u64>() + founding.as_ref().map_or(0, |_| FILE_BYTES);
    job("flush", group, space, move |d| {
        if let Some(checkpoint) = &founding {
            segment::write_checkpoint(d, group, checkpoint)?;
        }
        let written = segment::write_segments(d, group, &plan.entries)?;
        Ok(JobOutcome::Flushed {
            upto: plan.upto,
            segments: open(&disk, written)?,
            founded: founding.is_some(),
        })
    })
}

/// Disk space that a file needs beyond its contents: its directory entry and a partially filled block.
const FILE_BYTES: u64 = 16 << 10;

fn checkpoint_bytes(checkpoint: &segment::Checkpoint) -> u64 {
    checkpoint.state.len() as u64 + 20 * checkpoint.live.ranges().len() as u64 + FILE_BYTES
}

/// Writes a checkpoint, then deletes older ones.
pub(crate) fn checkpoint(group: GroupId, checkpoint: segment::Checkpoint) -> Box<dyn StorageJob> {
    let space = checkpoint_bytes(&checkpoint);
    job("checkpoint", group, space, move |d| {
        segment::write_checkpoint(d, group, &checkpoint)?;
        remove_older(d, group, checkpoint.index)?;
        Ok(JobOutcome::Checkpointed { checkpoint })
    })
}

fn remove_older(disk: &dyn Disk, group: GroupId, index: u64) -> Result<(), SegmentError> {
    for old in segment::list_group(disk, group)?.checkpoints {
        if old < index {
            segment::delete_checkpoint(disk, group, old)?;
        }
    }
    Ok(())
}

/// Copies the entries in `keep` from sparse segments into new ones.
pub(crate) fn rewrite(
    disk: Arc<dyn Disk>,
    group: GroupId,
    sparse: Vec<Arc<Segment>>,
    keep: IndexSet,
) -> Box<dyn StorageJob> {
    // An upper bound: entries that are not kept need no space.
    let space = sparse.iter().map(|s| s.meta().bytes).sum();
    job("rewriting segments", group, space, move |d| {
        let mut segments = Vec::new();
        for old in &sparse {
            segments.extend(open(&disk, segment::rewrite(d, old, &keep)?)?);
        }
        Ok(JobOutcome::Rewritten {
            old: sparse.iter().map(|s| s.meta().name).collect(),
            segments,
        })
    })
}

pub(crate) fn remove_segments(group: GroupId, names: Vec<SegmentName>) -> Box<dyn StorageJob> {
    job("removing segments", group, 0, move |d| {
        for name in names {
            segment::delete_segment(d, group, name)?;
        }
        Ok(JobOutcome::Removed)
    })
}

pub(crate) fn remove_group(group: GroupId) -> Box<dyn StorageJob> {
    job("removing the files", group, 0, move |d| {
        segment::delete_group(d, group)?;
        remove_staging(d, group)?;
        Ok(JobOutcome::Removed)
    })
}

/// Writes down the promises of a replica that is about to be deleted.
pub(crate) fn write_tombstone(group: GroupId, tombstone: Tombstone) -> Box<dyn StorageJob> {
    job("writing the tombstone", group, FILE_BYTES, move |d| {
        tombstone::write(d, group, &tombstone).map_err(|e| SegmentError::io("departed", &e))?;
        Ok(JobOutcome::TombstoneWritten(tombstone))
    })
}

pub(crate) fn remove_tombstone(group: GroupId) -> Box<dyn StorageJob> {
    job("removing the tombstone", group, 0, move |d| {
        tombstone::remove(d, group).map_err(|e| SegmentError::io("departed", &e))?;
        Ok(JobOutcome::Removed)
    })
}

/// Reads the next part of a checkpoint that is being sent.
pub(crate) fn read(
    group: GroupId,
    run: impl FnOnce(&dyn Disk) -> Result<JobOutcome, SegmentError> + Send + 'static,
) -> Box<dyn StorageJob> {
    job("reading the checkpoint", group, 0, run)
}

const STAGING: &str = "incoming";

fn staging_path(group: GroupId) -> String {
    format!("{STAGING}/{:016x}", group.0)
}

fn remove_staging(disk: &dyn Disk, group: GroupId) -> Result<(), SegmentError> {
    let path = staging_path(group);
    match disk.remove(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(SegmentError::io(&path, &e)),
        _ => Ok(()),
    }
}

/// Writes a chunk of a received checkpoint to its staging file. Not synced: after a crash the transfer starts
/// again.
pub(crate) fn stage(group: GroupId, offset: u64, data: Bytes) -> Box<dyn StorageJob> {
    job("staging a checkpoint", group, data.len() as u64, move |d| {
        let path = staging_path(group);
        let fail = |e: std::io::Error| SegmentError::io(&path, &e);
        if offset == 0 {
            d.create_dir(STAGING).map_err(fail)?;
            remove_staging(d, group)?;
            d.create(&path).map_err(fail)?;
        }
        let file = d.open(&path).map_err(fail)?;
        file.write_at(offset, &data).map_err(fail)?;
        Ok(JobOutcome::Staged)
    })
}

/// Deletes the staging file.
pub(crate) fn unstage(group: GroupId) -> Box<dyn StorageJob> {
    job("removing a staged checkpoint", group, 0, move |d| {
        remove_staging(d, group)?;
        Ok(JobOutcome::Removed)
    })
}

/// Turns a staged checkpoint into segments and a checkpoint file. The checkpoint file makes it valid, so it
/// is written last.
pub(crate) fn install(
    disk: Arc<dyn Disk>,
    group: GroupId,
    contents: CheckpointContents,
    bytes: u64,
) -> Box<dyn StorageJob> {
    job("installing a checkpoint", group, bytes, move |d| {
        let path = staging_path(group);
        let file = d.open(&path).map_err(|e| SegmentError::io(&path, &e))?;
        let result = write_installed(
            d,
            &disk,
            group,
            CheckpointReader::new(&*file, bytes),
            contents,
        );
        drop(file);
        remove_staging(d, group)?;
        match result {
            Ok(outcome) => Ok(outcome),
            Err(StreamError::Malformed(what)) => Ok(JobOutcome::Refused(what)),
            Err(StreamError::Io(e)) => Err(SegmentError::io(&path, &e)),
            Err(StreamError::Segment(e)) => Err(e),
        }
    })
}

fn write_installed(
    d: &dyn Disk,
    disk: &Arc<dyn Disk>,
    group: GroupId,
    mut reader: CheckpointReader<'_>,
    contents: CheckpointContents,
) -> Result<JobOutcome, StreamError> {
    let state = reader.state(contents.state_bytes)?;
    let mut live = IndexSet::default();
    let mut failed = None;
    let entries = std::iter::from_fn(|| match reader.entry() {
        Ok(entry) => entry,
        Err(error) => {
            failed = Some(error);
            None
        }
    });
    let limit = contents.checkpoint.position.index;
    let mut misplaced = false;
    let checked = entries.map_while(|e| {
        misplaced |= e.index > limit || !live.push(e.index, e.index);
        let newest = live.len() == contents.entries;
        (!misplaced).then_some((e, newest))
    });
    let checked = checked
        .filter(|(_, newest)| !(*newest && planted::is(Bug::SnapshotWithoutTail)))
        .map(|(e, _)| e);
    let written = segment::write_segments(d, group, checked)?;
    let undo = |what: &str| -> Result<JobOutcome, StreamError> {
        for meta in &written {
            segment::delete_segment(d, group, meta.name)?;
        }
        Err(StreamError::Malformed(what.to_owned()))
    };
    match failed {
        Some(StreamError::Malformed(what)) => return undo(&what),
        Some(error) => return Err(error),
        None if misplaced || live.len() != contents.entries => {
            return undo("the entries differ from the offer");
        }
        None => {}
    }
    let checkpoint = contents.checkpoint.to_file(live, state);
    // Older checkpoints stay until this node writes its next one: the group may not have accepted this one
    // yet.
    segment::write_checkpoint(d, group, &checkpoint)?;
    Ok(JobOutcome::Installed {
        checkpoint,
        segments: open(disk, written)?,
    })
}
