//! Recovery of a group after a restart from the write-ahead log, the checkpoint file and the segment files. A
//! group that cannot be restored completely is refused.

use crate::entry::{self, FOUNDING, FOUNDING_KIND};
use crate::snapshot::Checkpoint;
use crate::store::{LogStore, Segments};
use crate::{GroupId, ReadError};
use bytes::Bytes;
use env::Disk;
use raft::eraftpb::HardState;
use segment::{Segment, SegmentError};
use slots::IndexSet;
use std::sync::Arc;
use wal::{Entry, RecoveredGroup};

/// Live entries that may be in a segment with gaps are looked up individually up to this number, and at
/// growing intervals above it. A missing file removes many entries, so a sample finds it without reading the
/// whole log at startup.
const MAX_EXACT_LOOKUPS: u64 = 10_000;

/// Why a group cannot be trusted any more. Fatal to the node: with a gap in its log it must not vote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    #[error("group {:016x}: entry {index} is missing, the log was committed up to {commit}", group.0)]
    /// An entry that must exist is missing.
    Missing {
        /// The group.
        group: GroupId,
        /// Index of the first missing entry.
        index: u64,
        /// Newest commit index known to be recorded.
        commit: u64,
    },
    #[error("group {:016x}: the log names a checkpoint after entry {index}, there is none", group.0)]
    /// The log refers to a checkpoint that does not exist.
    NoCheckpoint {
        /// The group.
        group: GroupId,
        /// Index of the checkpoint.
        index: u64,
    },
    #[error("group {:016x}: {what}", group.0)]
    /// The group's data is inconsistent.
    Damaged {
        /// The group.
        group: GroupId,
        /// The damage.
        what: String,
    },
    /// Descriptors or memory are short; no damage is known.
    #[error("group {:016x}: {what}", group.0)]
    Shortage {
        /// The group.
        group: GroupId,
        /// The resource that is short.
        what: String,
    },
    #[error(transparent)]
    /// A segment or checkpoint file could not be read.
    Files(#[from] SegmentError),
}

/// A group restored from disk.
#[derive(Debug)]
pub(crate) struct RestoredGroup {
    pub store: LogStore,
    /// The state machine as of the checkpoint; `None` for the founding checkpoint.
    pub state: Option<Bytes>,
    pub live: IndexSet,
    /// The write-ahead log still holds a history older than the checkpoint, so the checkpoint must be
    /// recorded there before anything else.
    pub must_record_checkpoint: bool,
}

/// Restores a group; `Ok(None)` if it was deleted.
pub(crate) fn restore(
    disk: &Arc<dyn Disk>,
    group: GroupId,
    mut wal: RecoveredGroup,
) -> Result<Option<RestoredGroup>, RecoveryError> {
    if wal.deleted {
        segment::delete_group(&**disk, group)?;
        return Ok(None);
    }
    let files = segment::list_group(&**disk, group)?;
    let file = match files.checkpoints.last() {
        Some(index) => Some(segment::read_checkpoint(&**disk, group, *index)?),
        None => None,
    };
    let segments = files
        .segments
        .iter()
        .map(|name| Segment::open(Arc::clone(disk), group, *name).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()?;
    let segments = Segments::new(group, segments);
    let checkpoint = choose_checkpoint(group, &mut wal, file.as_ref())?;
    let must_record_checkpoint = drop_diverged_entries(&mut wal, &checkpoint);
    let (state, live) = match file {
        Some(file) if !checkpoint.is_founding() => (Some(file.state), file.live),
        _ => (None, IndexSet::default()),
    };
    let mut store = LogStore::new(group, checkpoint.position, checkpoint, segments);
    restore_live(&mut store, group, &live, &wal)?;
    restore_tail(&mut store, group, &wal)?;
    restore_hard_state(&mut store, group, &wal)?;
    Ok(Some(RestoredGroup {
        store,
        state,
        live,
        must_record_checkpoint,
    }))
}

fn choose_checkpoint(
    group: GroupId,
    wal: &mut RecoveredGroup,
    file: Option<&segment::Checkpoint>,
) -> Result<Checkpoint, RecoveryError> {
    let founding = wal
        .entries
        .iter()
        .position(|e| e.kind == FOUNDING_KIND)
        .map(|at| wal.entries.remove(at));
    let needed = wal.checkpointed.map_or(0, |(index, _)| index);
    let checkpoint = match (file, founding) {
        (Some(file), _) => Checkpoint::from_file(file).ok_or_else(|| RecoveryError::Damaged {
            group,
            what: format!("members in the checkpoint after entry {}", file.index),
        })?,
        (None, Some(e)) => {
            let members = entry::decode_membership(e.data);
            let members = members.filter(|_| e.index == FOUNDING.index);
            Checkpoint::founding(members.ok_or_else(|| RecoveryError::Damaged {
                group,
                what: "members in the founding entry".to_owned(),
            })?)
        }
        (None, None) => Checkpoint::default(),
    };
    if checkpoint.position.index < needed {
        return Err(RecoveryError::NoCheckpoint {
            group,
            index: needed,
        });
    }
    Ok(checkpoint)
}

/// Drops entries of a log that the checkpoint replaced: a leader's checkpoint may have been installed over a
/// diverged log just before the crash. Returns true if the checkpoint must be recorded in the log.
fn drop_diverged_entries(wal: &mut RecoveredGroup, checkpoint: &Checkpoint) -> bool {
    let at = checkpoint.position;
    let is_behind = wal.entries.last().is_some_and(|e| e.index < at.index);
    let is_diverged = wal
        .entries
        .iter()
        .find(|e| e.index == at.index)
        .is_some_and(|e| e.term != at.term);
    if is_diverged {
        wal.entries.clear();
    }
    // Entries that are all below the checkpoint may be its live ones. They do not continue a diverged log, so
    // they stay.
    let is_recorded = wal.checkpointed.is_some_and(|(index, _)| index >= at.index);
    (is_diverged || is_behind) && !is_recorded
}

fn restore_live(
    store: &mut LogStore,
    group: GroupId,
    live: &IndexSet,
    wal: &RecoveredGroup,
) -> Result<(), RecoveryError> {
    let commit = store.checkpoint().position.index;
    let missing = |index| RecoveryError::Missing {
        group,
        index,
        commit,
    };
    let (mut uncertain, mut next_lookup) = (0, 0);
    for index in live.iter() {
        if store.segments().certainly_contains(index) {
            continue;
        }
        let found = wal.entries.binary_search_by_key(&index, |e| e.index);
        match found.ok().and_then(|at| wal.entries.get(at)) {
            Some(entry) => store.retain_live(entry.clone()),
            // The segment has gaps. Damage to it is reported when the entry is read.
            None if store.segments().spans(index) => {
                let must_look_up = uncertain == next_lookup;
                uncertain += 1;
                if must_look_up {
                    next_lookup = uncertain + uncertain / MAX_EXACT_LOOKUPS;
                }
                if must_look_up && store.segments().contains(index) == Ok(false) {
                    return Err(missing(index));
                }
            }
            None => return Err(missing(index)),
        }
    }
    Ok(())
}

/// Restores the log above the checkpoint without a gap: from segments first, then from the write-ahead log.
fn restore_tail(
    store: &mut LogStore,
    group: GroupId,
    wal: &RecoveredGroup,
) -> Result<(), RecoveryError> {
    let begin = store.compacted().index;
    let tail: Vec<&Entry> = wal.entries.iter().filter(|e| e.index > begin).collect();
    let first_in_log = tail.first().map_or(u64::MAX, |e| e.index);
    let mut next = begin + 1;
    let damaged = |e: ReadError| match e {
        ReadError::Shortage { what, .. } => RecoveryError::Shortage { group, what },
        ReadError::Gone | ReadError::Corrupt { .. } => RecoveryError::Damaged {
            group,
            what: e.to_string(),
        },
    };
    while store.segments().contains(next).map_err(damaged)? {
        if next < first_in_log {
            let entry = store.segments().read(next).map_err(damaged)?;
            store.append(std::iter::once(entry));
        }
        next += 1;
    }
    let commit = wal.hard_state.map_or(0, |h| h.commit);
    for (index, e) in (first_in_log.min(next)..).zip(tail) {
        if e.index != index {
            return Err(RecoveryError::Missing {
                group,
                index,
                commit,
            });
        }
        if store
            .term_of(index - 1)
            .is_some_and(|before| before > e.term)
        {
            let what = format!("entry {index} is of an older term than the one before it");
            return Err(RecoveryError::Damaged { group, what });
        }
        store.append(std::iter::once(e.clone()));
    }
    store.set_flushed(next - 1);
    Ok(())
}

fn restore_hard_state(
    store: &mut LogStore,
    group: GroupId,
    wal: &RecoveredGroup,
) -> Result<(), RecoveryError> {
    let found = wal.hard_state.unwrap_or_default();
    let last = store.last();
    if found.commit > last {
        return Err(RecoveryError::Missing {
            group,
            index: last + 1,
            commit: found.commit,
        });
    }
    let newest = store.term_of(last).unwrap_or(0);
    let mut state = HardState::default();
    state.commit = found.commit.max(store.compacted().index);
    if newest > found.term {
        // The entries were written before the hard state with their term. The node did not vote in that term.
        state.term = newest;
    } else {
        state.term = found.term;
        state.vote = found.vote;
    }
    store.set_hard_state(state);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Membership;
    use env::NodeId;
    use env::sim::SimDisk;

    #[test]
    fn log_with_decreasing_terms_is_refused() {
        let members = Membership {
            voters: vec![NodeId(1)],
            learners: Vec::new(),
        };
        let entry = |index, term| Entry {
            index,
            term,
            kind: entry::NORMAL,
            data: Bytes::from_static(b"x"),
        };
        let log = |terms: [u64; 2]| RecoveredGroup {
            hard_state: Some(wal::HardState {
                term: 9,
                vote: 0,
                commit: 1,
            }),
            entries: vec![
                entry::founding_entry(&members),
                entry(2, terms[0]),
                entry(3, terms[1]),
            ],
            ..RecoveredGroup::default()
        };
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        restore(&disk, GroupId(7), log([3, 4])).expect("group is restored");
        let error =
            restore(&disk, GroupId(7), log([4, 3])).expect_err("decreasing terms are refused");
        assert!(error.to_string().contains("entry 3 is of an older term"));
    }

    /// A transfer interrupted by a crash leaves a segment without a checkpoint: the leader's live entries,
    /// with gaps where this log has entries of its own.
    #[test]
    fn gaps_of_a_leftover_segment_hide_no_entries() {
        let group = GroupId(7);
        let members = Membership {
            voters: vec![NodeId(1)],
            learners: Vec::new(),
        };
        let entry = |index| Entry {
            index,
            term: 2,
            kind: entry::NORMAL,
            data: Bytes::from(format!("command {index}")),
        };
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        segment::write_segments(&*disk, group, [entry(2), entry(9)]).expect("writes");
        let log = RecoveredGroup {
            hard_state: Some(wal::HardState {
                term: 2,
                vote: 0,
                commit: 7,
            }),
            entries: std::iter::once(entry::founding_entry(&members))
                .chain((2..=7).map(entry))
                .collect(),
            ..RecoveredGroup::default()
        };
        let restored = restore(&disk, group, log.clone()).expect("group is restored");
        let store = restored.expect("group exists").store;
        assert_eq!(
            store.first_unflushed(),
            3,
            "the other entries are in the log only"
        );
        let checkpoint = Checkpoint {
            position: crate::entry::Position { index: 6, term: 2 },
            membership: members.clone(),
            on_disk: true,
        };
        let live = IndexSet::from_sorted([2, 4]);
        let file = checkpoint.to_file(live, Bytes::new());
        segment::write_checkpoint(&*disk, group, &file).expect("writes");
        let restored = restore(&disk, group, log).expect("group is restored");
        let store = restored.expect("group exists").store;
        for index in [2, 4, 7] {
            assert_eq!(store.read(index).map(|e| e.index), Ok(index));
        }
    }

    /// A segment is missing whose entries are within the range of another segment.
    #[test]
    fn missing_segment_between_others_is_reported() {
        let group = GroupId(7);
        let entry = |index| Entry {
            index,
            term: 2,
            kind: entry::NORMAL,
            data: Bytes::from(format!("command {index}")),
        };
        let checkpoint = Checkpoint {
            position: crate::entry::Position { index: 9, term: 2 },
            membership: Membership {
                voters: vec![NodeId(1)],
                learners: Vec::new(),
            },
            on_disk: true,
        };
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        segment::write_segments(&*disk, group, [entry(2), entry(9)]).expect("writes");
        segment::write_segments(&*disk, group, [entry(4)]).expect("writes");
        let file = checkpoint.to_file(IndexSet::from_sorted([2, 4, 9]), Bytes::new());
        segment::write_checkpoint(&*disk, group, &file).expect("writes");
        let log = RecoveredGroup {
            checkpointed: Some((9, 2)),
            ..RecoveredGroup::default()
        };
        restore(&disk, group, log.clone()).expect("group is restored");
        let files = segment::list_group(&*disk, group).expect("lists");
        segment::delete_segment(&*disk, group, files.segments[1]).expect("removes");
        let error = restore(&disk, group, log).expect_err("a segment is missing");
        assert!(
            matches!(error, RecoveryError::Missing { index: 4, .. }),
            "{error}"
        );
    }
}
