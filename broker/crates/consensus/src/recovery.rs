//! A group after a restart: what the write-ahead log had, checkpoint and segment files, put together or refused.

use crate::entry::{self, FOUNDING, FOUNDING_KIND};
use crate::snapshot::Checkpoint;
use crate::store::{LogStore, Segments};
use crate::{GroupId, ReadError};
use bytes::Bytes;
use env::Disk;
use raft::eraftpb::HardState;
use segment::{LiveSet, Segment, SegmentError};
use std::sync::Arc;
use wal::{Entry, RecoveredGroup};

/// Live entries that may be in a segment with holes are looked up one by one up to this many, and ever fewer of more: a file that is gone takes
/// many with it, and a start is not to read all that there is.
const LOOKED_UP: u64 = 10_000;

/// Why a group cannot be trusted any more. Fatal to the node: with a hole in its log it may not vote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    #[error("group {:016x}: entry {index} is missing, the log was committed up to {commit}", group.0)]
    Missing {
        group: GroupId,
        index: u64,
        commit: u64,
    },
    #[error("group {:016x}: the log names a checkpoint after entry {index}, there is none", group.0)]
    NoCheckpoint { group: GroupId, index: u64 },
    #[error("group {:016x}: {what}", group.0)]
    Damaged { group: GroupId, what: String },
    /// Descriptors or memory are short: nothing is known to be wrong with the group.
    #[error("group {:016x}: {what}", group.0)]
    Shortage { group: GroupId, what: String },
    #[error(transparent)]
    Files(#[from] SegmentError),
}

/// A group that can go on.
#[derive(Debug)]
pub struct Restored {
    pub store: LogStore,
    /// The state machine as of the checkpoint, unless it is the founding one.
    pub state: Option<Bytes>,
    pub live: LiveSet,
    /// The log on the disk still has an older history behind the checkpoint: say so there before anything else.
    pub tell_log: bool,
}

/// `Ok(None)`: the group was removed.
pub fn restore(
    disk: &Arc<dyn Disk>,
    group: GroupId,
    mut wal: RecoveredGroup,
) -> Result<Option<Restored>, RecoveryError> {
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
    let tell_log = cut_other_history(&mut wal, &checkpoint);
    let (state, live) = match file {
        Some(file) if !checkpoint.is_founding() => (Some(file.state), file.live),
        _ => (None, LiveSet::default()),
    };
    let mut store = LogStore::new(group, checkpoint.position, checkpoint, segments);
    restore_live(&mut store, group, &live, &wal)?;
    restore_tail(&mut store, group, &wal)?;
    restore_hard_state(&mut store, group, &wal)?;
    Ok(Some(Restored {
        store,
        state,
        live,
        tell_log,
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

/// A leader's checkpoint may have been installed just before the end, over a log that is not its past.
fn cut_other_history(wal: &mut RecoveredGroup, checkpoint: &Checkpoint) -> bool {
    let at = checkpoint.position;
    let behind = wal.entries.last().is_some_and(|e| e.index < at.index);
    let other = wal
        .entries
        .iter()
        .find(|e| e.index == at.index)
        .is_some_and(|e| e.term != at.term);
    if other {
        wal.entries.clear();
    }
    // Entries that are all below may be live ones of this very checkpoint; they follow nothing, so they stay.
    let told = wal.checkpointed.is_some_and(|(index, _)| index >= at.index);
    (other || behind) && !told
}

fn restore_live(
    store: &mut LogStore,
    group: GroupId,
    live: &LiveSet,
    wal: &RecoveredGroup,
) -> Result<(), RecoveryError> {
    let commit = store.checkpoint().position.index;
    let missing = |index| RecoveryError::Missing {
        group,
        index,
        commit,
    };
    let (mut unsure, mut look_at) = (0, 0);
    for index in live.iter() {
        if store.segments().surely_hold(index) {
            continue;
        }
        let found = wal.entries.binary_search_by_key(&index, |e| e.index);
        match found.ok().and_then(|at| wal.entries.get(at)) {
            Some(entry) => store.retain(entry.clone()),
            // A segment with holes. What of it is damaged shows when it is read.
            None if store.segments().span(index) => {
                let look = unsure == look_at;
                unsure += 1;
                if look {
                    look_at = unsure + unsure / LOOKED_UP;
                }
                if look && store.segments().hold(index) == Ok(false) {
                    return Err(missing(index));
                }
            }
            None => return Err(missing(index)),
        }
    }
    Ok(())
}

/// The log above the checkpoint: first from segments, then from the write-ahead log, without a hole.
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
    while store.segments().hold(next).map_err(damaged)? {
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
        // Entries came in before the term they brought was written. Nobody was voted for in it.
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
    fn a_log_whose_terms_go_down_is_refused() {
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
        restore(&disk, GroupId(7), log([3, 4])).expect("whole");
        let error = restore(&disk, GroupId(7), log([4, 3])).expect_err("not a log");
        assert!(error.to_string().contains("entry 3 is of an older term"));
    }

    /// A transfer that a crash cut off leaves a segment without a checkpoint: the leader's live entries, with holes
    /// where this log has entries of its own.
    #[test]
    fn holes_of_a_leftover_segment_hide_nothing() {
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
        let restored = restore(&disk, group, log.clone()).expect("whole");
        let store = restored.expect("there").store;
        assert_eq!(store.first_unflushed(), 3, "the rest is in the log alone");
        let checkpoint = Checkpoint {
            position: crate::entry::Position { index: 6, term: 2 },
            membership: members.clone(),
            on_disk: true,
        };
        let live = LiveSet::from_sorted([2, 4]);
        let file = checkpoint.to_file(live, Bytes::new());
        segment::write_checkpoint(&*disk, group, &file).expect("writes");
        let restored = restore(&disk, group, log).expect("whole");
        let store = restored.expect("there").store;
        for index in [2, 4, 7] {
            assert_eq!(store.read(index).map(|e| e.index), Ok(index));
        }
    }

    /// A file that is gone, with entries that another one goes past.
    #[test]
    fn a_segment_that_is_gone_from_among_others_is_missed() {
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
        let file = checkpoint.to_file(LiveSet::from_sorted([2, 4, 9]), Bytes::new());
        segment::write_checkpoint(&*disk, group, &file).expect("writes");
        let log = RecoveredGroup {
            checkpointed: Some((9, 2)),
            ..RecoveredGroup::default()
        };
        restore(&disk, group, log.clone()).expect("whole");
        let files = segment::list_group(&*disk, group).expect("lists");
        segment::delete_segment(&*disk, group, files.segments[1]).expect("removes");
        let error = restore(&disk, group, log).expect_err("one is missing");
        assert!(
            matches!(error, RecoveryError::Missing { index: 4, .. }),
            "{error}"
        );
    }
}
