//! Checkpoints, and how one travels to a member that is too far behind for the log.

use crate::Membership;
use crate::entry::{self, FOUNDING, Position};
use bytes::Bytes;
use raft::eraftpb;
use segment::LiveSet;

mod receive;
mod send;
mod stream;

pub use receive::{Incoming, Staged};
pub use send::{Outgoing, Read, Sources, open};
pub use stream::{Contents, Reader, StreamError};

/// Where a group's log may be begun, without its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Zero: there is none, the group waits for the leader's.
    pub position: Position,
    pub membership: Membership,
    /// There is a file. Only the founding checkpoint can be without.
    pub on_disk: bool,
}

impl Checkpoint {
    pub fn founding(membership: Membership) -> Checkpoint {
        Checkpoint {
            position: FOUNDING,
            membership,
            on_disk: false,
        }
    }

    /// There is no state machine in it: nothing was ever applied.
    pub fn is_founding(&self) -> bool {
        self.position.index <= FOUNDING.index
    }

    pub fn to_raft(&self) -> eraftpb::Snapshot {
        let mut snapshot = eraftpb::Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = self.position.index;
        meta.term = self.position.term;
        meta.set_conf_state(entry::to_conf_state(&self.membership));
        snapshot
    }

    pub fn to_file(&self, live: LiveSet, state: Bytes) -> segment::Checkpoint {
        segment::Checkpoint {
            index: self.position.index,
            term: self.position.term,
            membership: entry::encode_membership(&self.membership),
            live,
            state,
        }
    }

    /// `None` when its members are damaged.
    pub fn from_file(file: &segment::Checkpoint) -> Option<Checkpoint> {
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
