//! Disk work that the driver runs on its storage thread. Each job is whole or without effect.

use crate::snapshot::{Contents, Reader, StreamError};
use crate::tombstone::{self, Tombstone};
use crate::{JobError, JobResult, StorageJob};
use bytes::Bytes;
use env::Disk;
use env::planted::{self, Bug};
use segment::{LiveSet, Segment, SegmentError, SegmentMeta, SegmentName};
use std::fmt;
use std::sync::Arc;
use wal::{Entry, GroupId};

/// What a flush moves to segments.
#[derive(Debug)]
pub struct FlushPlan {
    /// Everything up to and with this is in segments afterwards, as far as it is still needed.
    pub upto: u64,
    pub entries: Vec<Entry>,
}

/// What came of a job.
#[derive(Debug)]
pub enum Outcome {
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
    /// Files are gone.
    Removed,
    /// The tombstone is durable.
    Buried(Tombstone),
    /// A part of a received checkpoint is on the disk.
    Staged,
    /// A received checkpoint is durable, in files of its own.
    Installed {
        checkpoint: segment::Checkpoint,
        segments: Vec<Arc<Segment>>,
    },
    /// What was received makes no sense; nothing is left of it.
    Refused(String),
    /// A part of a checkpoint that is to be sent.
    Read(crate::snapshot::Read),
    /// Space, descriptors or memory are short. The job had no effect and is tried again.
    Postponed,
}

type Run = Box<dyn FnOnce(&dyn Disk) -> Result<Outcome, SegmentError> + Send>;

/// A job and its name for errors.
pub struct Job {
    what: String,
    /// Bytes.
    space: u64,
    run: Run,
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
        Ok(Box::new(Outcome::Postponed))
    }

    fn run(self: Box<Self>, disk: &dyn Disk) -> JobResult {
        match (self.run)(disk) {
            Ok(outcome) => Ok(Box::new(outcome)),
            Err(error) if error.is_passing() => Ok(Box::new(Outcome::Postponed)),
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
    run: impl FnOnce(&dyn Disk) -> Result<Outcome, SegmentError> + Send + 'static,
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

/// `founding`: a checkpoint that must be there before any entry leaves the write-ahead log.
pub fn flush(
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
        Ok(Outcome::Flushed {
            upto: plan.upto,
            segments: open(&disk, written)?,
            founded: founding.is_some(),
        })
    })
}

/// What a file takes besides what is in it: its directory, a block that is not full.
const FILE_BYTES: u64 = 16 << 10;

fn checkpoint_bytes(checkpoint: &segment::Checkpoint) -> u64 {
    checkpoint.state.len() as u64 + 20 * checkpoint.live.ranges().len() as u64 + FILE_BYTES
}

/// Writes a checkpoint, then removes older ones.
pub fn checkpoint(group: GroupId, checkpoint: segment::Checkpoint) -> Box<dyn StorageJob> {
    let space = checkpoint_bytes(&checkpoint);
    job("checkpoint", group, space, move |d| {
        segment::write_checkpoint(d, group, &checkpoint)?;
        remove_older(d, group, checkpoint.index)?;
        Ok(Outcome::Checkpointed { checkpoint })
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

/// Copies what is kept of sparse segments into new ones.
pub fn rewrite(
    disk: Arc<dyn Disk>,
    group: GroupId,
    sparse: Vec<Arc<Segment>>,
    keep: LiveSet,
) -> Box<dyn StorageJob> {
    // At most: what is dead in them is left out.
    let space = sparse.iter().map(|s| s.meta().bytes).sum();
    job("rewriting segments", group, space, move |d| {
        let mut segments = Vec::new();
        for old in &sparse {
            segments.extend(open(&disk, segment::rewrite(d, old, &keep)?)?);
        }
        Ok(Outcome::Rewritten {
            old: sparse.iter().map(|s| s.meta().name).collect(),
            segments,
        })
    })
}

pub fn remove_segments(group: GroupId, names: Vec<SegmentName>) -> Box<dyn StorageJob> {
    job("removing segments", group, 0, move |d| {
        for name in names {
            segment::delete_segment(d, group, name)?;
        }
        Ok(Outcome::Removed)
    })
}

pub fn remove_group(group: GroupId) -> Box<dyn StorageJob> {
    job("removing the files", group, 0, move |d| {
        segment::delete_group(d, group)?;
        remove_staging(d, group)?;
        Ok(Outcome::Removed)
    })
}

/// Puts on record what a replica that is about to go has promised.
pub fn bury(group: GroupId, stone: Tombstone) -> Box<dyn StorageJob> {
    job("writing the tombstone", group, FILE_BYTES, move |d| {
        tombstone::write(d, group, &stone).map_err(|e| SegmentError::io("departed", &e))?;
        Ok(Outcome::Buried(stone))
    })
}

pub fn remove_tombstone(group: GroupId) -> Box<dyn StorageJob> {
    job("removing the tombstone", group, 0, move |d| {
        tombstone::remove(d, group).map_err(|e| SegmentError::io("departed", &e))?;
        Ok(Outcome::Removed)
    })
}

/// Reads the next part of a checkpoint that is being sent.
pub fn read(
    group: GroupId,
    run: impl FnOnce(&dyn Disk) -> Result<Outcome, SegmentError> + Send + 'static,
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

/// Adds a part of a received checkpoint to its staging file. Not synced: after a crash the transfer begins anew.
pub fn stage(group: GroupId, offset: u64, data: Bytes) -> Box<dyn StorageJob> {
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
        Ok(Outcome::Staged)
    })
}

/// Forgets what was staged.
pub fn unstage(group: GroupId) -> Box<dyn StorageJob> {
    job("removing a staged checkpoint", group, 0, move |d| {
        remove_staging(d, group)?;
        Ok(Outcome::Removed)
    })
}

/// Turns a staged checkpoint into segments and a checkpoint file. The latter makes it count, so it comes last.
pub fn install(
    disk: Arc<dyn Disk>,
    group: GroupId,
    contents: Contents,
    bytes: u64,
) -> Box<dyn StorageJob> {
    job("installing a checkpoint", group, bytes, move |d| {
        let path = staging_path(group);
        let file = d.open(&path).map_err(|e| SegmentError::io(&path, &e))?;
        let result = unpack(d, &disk, group, Reader::new(&*file, bytes), contents);
        drop(file);
        remove_staging(d, group)?;
        match result {
            Ok(outcome) => Ok(outcome),
            Err(StreamError::Malformed(what)) => Ok(Outcome::Refused(what)),
            Err(StreamError::Io(e)) => Err(SegmentError::io(&path, &e)),
            Err(StreamError::Segment(e)) => Err(e),
        }
    })
}

fn unpack(
    d: &dyn Disk,
    disk: &Arc<dyn Disk>,
    group: GroupId,
    mut reader: Reader<'_>,
    contents: Contents,
) -> Result<Outcome, StreamError> {
    let state = reader.state(contents.state_bytes)?;
    let mut live = LiveSet::default();
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
    let undo = |what: &str| -> Result<Outcome, StreamError> {
        for meta in &written {
            segment::delete_segment(d, group, meta.name)?;
        }
        Err(StreamError::Malformed(what.to_owned()))
    };
    match failed {
        Some(StreamError::Malformed(what)) => return undo(&what),
        Some(error) => return Err(error),
        None if misplaced || live.len() != contents.entries => {
            return undo("entries are not those that were announced");
        }
        None => {}
    }
    let checkpoint = contents.checkpoint.to_file(live, state);
    // Older ones stay until this node makes one: the group may not have taken this one yet.
    segment::write_checkpoint(d, group, &checkpoint)?;
    Ok(Outcome::Installed {
        checkpoint,
        segments: open(disk, written)?,
    })
}
