//! What nodes say to each other about members and leaders. Within [`crate::frame::Frame`]; integers big-endian.

use crate::frame::{FrameError, u8, u16, u64};
use bytes::{BufMut, Bytes, BytesMut};
use consensus::Departure;
use control::{ReplicaStatus, Vote};
use env::NodeId;
use metadata::QueueId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipMessage {
    /// To who leads the queue: hand it over.
    Lead {
        queue: QueueId,
        to: NodeId,
    },
    /// To who may have a replica of the queue; answered to this shard of the asking node.
    ReplicaRequest {
        token: u64,
        reply_shard: u16,
        queue: QueueId,
    },
    Replica {
        token: u64,
        told: ReplicaReport,
    },
    /// To the members of a queue: this node is none any more and still has its replica.
    DepartureRequest {
        queue: QueueId,
    },
    /// From who leads it: the replica is not needed.
    Depart {
        queue: QueueId,
        told: Departure,
    },
    /// To a node that wants to be a member: it was removed for good.
    Removed,
    /// To the leader of the metadata group: this node is to leave it, for it is about to be forgotten.
    Release {
        node: NodeId,
    },
    /// From shard 0 to the others of its node: maintenance begins or ends.
    Drain {
        on: bool,
    },
}

/// A node's answer about its replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaReport {
    pub replica: Option<ReplicaStatus>,
    /// Of a leader: members and how they count, as many as fit.
    pub votes: GroupVoters,
}

/// Most members in one answer: all that a queue may have, and as many that come or go.
const MAX_VOTES: usize = 16;

/// Who is in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupVoters(Vec<(NodeId, bool)>);

impl GroupVoters {
    pub fn add(&mut self, node: NodeId, votes: bool) {
        if self.0.len() < MAX_VOTES {
            self.0.push((node, votes));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Vote)> + '_ {
        let vote = |votes| match votes {
            true => Vote::Voter,
            false => Vote::Promotable,
        };
        self.0
            .iter()
            .map(move |(node, votes)| (*node, vote(*votes)))
    }
}

const LEAD: u8 = 1;
const REPLICA_REQUEST: u8 = 2;
const REPLICA: u8 = 3;
const DEPARTURE_REQUEST: u8 = 4;
const DEPART: u8 = 5;
const REMOVED: u8 = 6;
const DRAIN: u8 = 7;
const RELEASE: u8 = 8;

impl MembershipMessage {
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            MembershipMessage::Lead { queue, to } => {
                out.put_u8(LEAD);
                out.put_u64(queue.0);
                out.put_u64(to.0);
            }
            MembershipMessage::ReplicaRequest {
                token,
                reply_shard,
                queue,
            } => {
                out.put_u8(REPLICA_REQUEST);
                out.put_u64(*token);
                out.put_u16(*reply_shard);
                out.put_u64(queue.0);
            }
            MembershipMessage::Replica { token, told } => {
                out.put_u8(REPLICA);
                out.put_u64(*token);
                put_told(out, told);
            }
            MembershipMessage::DepartureRequest { queue } => {
                out.put_u8(DEPARTURE_REQUEST);
                out.put_u64(queue.0);
            }
            MembershipMessage::Depart { queue, told } => {
                out.put_u8(DEPART);
                out.put_u64(queue.0);
                out.put_u64(told.term);
                out.put_u64(told.commit);
            }
            MembershipMessage::Removed => out.put_u8(REMOVED),
            MembershipMessage::Release { node } => {
                out.put_u8(RELEASE);
                out.put_u64(node.0);
            }
            MembershipMessage::Drain { on } => {
                out.put_u8(DRAIN);
                out.put_u8(u8::from(*on));
            }
        }
    }

    pub fn decode(mut frame: Bytes) -> Result<MembershipMessage, FrameError> {
        let from = &mut frame;
        Ok(match u8(from)? {
            LEAD => MembershipMessage::Lead {
                queue: QueueId(u64(from)?),
                to: NodeId(u64(from)?),
            },
            REPLICA_REQUEST => MembershipMessage::ReplicaRequest {
                token: u64(from)?,
                reply_shard: u16(from)?,
                queue: QueueId(u64(from)?),
            },
            REPLICA => MembershipMessage::Replica {
                token: u64(from)?,
                told: told(from)?,
            },
            DEPARTURE_REQUEST => MembershipMessage::DepartureRequest {
                queue: QueueId(u64(from)?),
            },
            DEPART => MembershipMessage::Depart {
                queue: QueueId(u64(from)?),
                told: Departure {
                    term: u64(from)?,
                    commit: u64(from)?,
                },
            },
            REMOVED => MembershipMessage::Removed,
            RELEASE => MembershipMessage::Release {
                node: NodeId(u64(from)?),
            },
            DRAIN => MembershipMessage::Drain { on: u8(from)? != 0 },
            _ => return Err(FrameError),
        })
    }
}

fn put_told(out: &mut BytesMut, told: &ReplicaReport) {
    out.put_u8(u8::from(told.replica.is_some()));
    if let Some(r) = &told.replica {
        out.put_u8(u8::from(r.is_leader) | u8::from(r.is_candidate) << 1);
        for field in [
            r.term,
            r.last_index,
            r.written,
            r.applied,
            r.commit,
            r.checkpoint,
        ] {
            out.put_u64(field);
        }
    }
    out.put_u8(told.votes.0.len() as u8);
    for (node, votes) in &told.votes.0 {
        out.put_u64(node.0);
        out.put_u8(u8::from(*votes));
    }
}

fn told(from: &mut Bytes) -> Result<ReplicaReport, FrameError> {
    let replica = match u8(from)? {
        0 => None,
        _ => {
            let role = u8(from)?;
            Some(ReplicaStatus {
                is_leader: role & 1 != 0,
                is_candidate: role & 2 != 0,
                term: u64(from)?,
                last_index: u64(from)?,
                written: u64(from)?,
                applied: u64(from)?,
                commit: u64(from)?,
                checkpoint: u64(from)?,
            })
        }
    };
    let mut votes = GroupVoters::default();
    let count = usize::from(u8(from)?);
    if count > MAX_VOTES {
        return Err(FrameError);
    }
    for _ in 0..count {
        votes.add(NodeId(u64(from)?), u8(from)? != 0);
    }
    Ok(ReplicaReport { replica, votes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples() -> Vec<MembershipMessage> {
        let mut votes = GroupVoters::default();
        (1..=20).for_each(|n| votes.add(NodeId(n), n < 4));
        assert_eq!(votes.iter().count(), MAX_VOTES);
        let replica = ReplicaStatus {
            is_leader: true,
            is_candidate: false,
            term: 3,
            last_index: 9,
            written: 8,
            applied: 7,
            commit: 7,
            checkpoint: u64::MAX,
        };
        let told = ReplicaReport {
            replica: Some(replica),
            votes,
        };
        let queue = QueueId(5);
        vec![
            MembershipMessage::Lead {
                queue,
                to: NodeId(u64::MAX),
            },
            MembershipMessage::ReplicaRequest {
                token: 4,
                reply_shard: 2,
                queue,
            },
            MembershipMessage::Replica { token: 4, told },
            MembershipMessage::Replica {
                token: 4,
                told: ReplicaReport::default(),
            },
            MembershipMessage::DepartureRequest { queue },
            MembershipMessage::Depart {
                queue,
                told: Departure { term: 1, commit: 2 },
            },
            MembershipMessage::Removed,
            MembershipMessage::Release { node: NodeId(7) },
            MembershipMessage::Drain { on: true },
        ]
    }

    #[test]
    fn words_return_and_cut_ones_do_not() {
        for peer_message in samples() {
            let mut out = BytesMut::new();
            peer_message.encode(&mut out);
            let bytes = out.freeze();
            assert_eq!(MembershipMessage::decode(bytes.clone()), Ok(peer_message));
            for cut in 0..bytes.len() {
                assert!(MembershipMessage::decode(bytes.slice(..cut)).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0u8..10) {
            let mut tagged = vec![kind];
            tagged.extend(bytes);
            let _ = MembershipMessage::decode(Bytes::from(tagged));
        }
    }
}
