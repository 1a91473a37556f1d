//! Checkpoints, and their transfer to a member that is too far behind the log.

use crate::Membership;
use crate::entry::{self, FOUNDING, Position};
use bytes::Bytes;
use raft::eraftpb;
use slots::IndexSet;

mod receive;
mod send;
mod stream;

pub(crate) use receive::{IncomingCheckpoint, StagingResult};
pub(crate) use send::{CheckpointPart, EntrySources, OutgoingCheckpoint, open};
#[cfg(test)]
pub(crate) use stream::put_entry;
pub(crate) use stream::{CheckpointContents, CheckpointReader, StreamError};

/// A position at which a group's log may begin, without the state machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Zero means that there is no checkpoint: the replica waits for the leader's.
    pub position: Position,
    pub membership: Membership,
    /// The checkpoint is in a file. Only the founding checkpoint may not be.
    pub on_disk: bool,
}

impl Checkpoint {
    pub(crate) fn founding(membership: Membership) -> Checkpoint {
        Checkpoint {
            position: FOUNDING,
            membership,
            on_disk: false,
        }
    }

    /// True if it contains no state machine, because nothing was ever applied.
    pub(crate) fn is_founding(&self) -> bool {
        self.position.index <= FOUNDING.index
    }

    pub(crate) fn to_raft(&self) -> eraftpb::Snapshot {
        let mut snapshot = eraftpb::Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = self.position.index;
        meta.term = self.position.term;
        meta.set_conf_state(entry::to_conf_state(&self.membership));
        snapshot
    }

    pub(crate) fn to_file(&self, live: IndexSet, state: Bytes) -> segment::Checkpoint {
        segment::Checkpoint {
            index: self.position.index,
            term: self.position.term,
            membership: entry::encode_membership(&self.membership),
            live,
            state,
        }
    }

    /// Returns `None` if its membership is damaged.
    pub(crate) fn from_file(file: &segment::Checkpoint) -> Option<Checkpoint> {
        Some(Checkpoint {
            position: Position {
                index: file.index,
                term: file.term,
            },
            membership: entry::decode_membership(file.membership.clone())?,
            on_disk: true,
        })
    }
}
