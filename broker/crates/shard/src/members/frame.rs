//! Messages about the members and leaders of groups, as a part of [`Frame`](crate::frame::Frame).

use consensus::Departure;
use control::{ReplicaStatus, VotingState};
use env::NodeId;
use metadata::{Name, QueueId};
use wire::{AtMost, wire_enum, wire_newtype, wire_struct};

/// A message about the members and leaders of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipMessage {
    /// To the leader of a queue: transfer the leadership.
    Lead { queue: QueueId, to: NodeId },
    /// To a node that may have a replica of the queue. It answers to this shard of the sender.
    ReplicaRequest {
        token: u64,
        reply_shard: u16,
        queue: QueueId,
    },
    /// The answer to `ReplicaRequest`.
    Replica { token: u64, told: ReplicaReport },
    /// To the members of a queue: this node is no longer a member but still has its replica.
    DepartureRequest { queue: QueueId },
    /// From the leader: the replica is not needed.
    Depart { queue: QueueId, told: Departure },
    /// To a node that requests to become a member: it was removed permanently.
    Removed,
    /// To the leader of the metadata group: remove this node, which is about to be forgotten.
    Release { node: NodeId },
    /// From shard 0 to the other shards of its node: maintenance begins or ends.
    Drain { on: bool },
    /// To a node that may have a replica of the group. It answers to this shard of the sender. With the feature flag
    /// `majority_recovery`, as the messages that follow.
    PositionRequest {
        token: u64,
        reply_shard: u16,
        group: u64,
        lost: LostNodes,
    },
    /// The answer to `PositionRequest`.
    Position { token: u64, told: PositionReport },
    /// To the node with the newest log: continue without the lost members.
    RecoverMajority {
        token: u64,
        reply_shard: u16,
        group: u64,
        lost: LostNodes,
    },
    /// The answer to `RecoverMajority`: why it is refused, if it is.
    MajorityRecovery { token: u64, refused: Option<Name> },
}

/// Most lost nodes in one request.
pub(crate) const MAX_LOST: usize = 64;

/// Nodes that never return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostNodes(pub Vec<NodeId>);

/// A node's report on its replica of a group, and on nodes that are said to be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PositionReport {
    pub position: Option<LogPosition>,
    /// The lost nodes to which this node has a connection.
    pub connected: LostNodes,
}

/// The end of a replica's log, and the members that the replica knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    pub last_term: u64,
    pub last_index: u64,
    pub applied: u64,
    pub leader: Option<NodeId>,
    /// The first `MAX_VOTES` members, and whether they vote.
    pub votes: GroupVoters,
}

/// A node's answer about its replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaReport {
    pub replica: Option<ReplicaStatus>,
    /// From a leader: the first `MAX_VOTES` members, and whether they vote.
    pub votes: GroupVoters,
}

/// Most members in one report: the most members of a queue, twice, because a membership change may replace all of them.
const MAX_VOTES: usize = 16;

/// The members of a group, and whether they vote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupVoters(Vec<(NodeId, bool)>);

impl GroupVoters {
    pub fn add(&mut self, node: NodeId, votes: bool) {
        if self.0.len() < MAX_VOTES {
            self.0.push((node, votes));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeId, VotingState)> + '_ {
        let vote = |votes| match votes {
            true => VotingState::Voter,
            false => VotingState::Promotable,
        };
        self.0
            .iter()
            .map(move |(node, votes)| (*node, vote(*votes)))
    }
}

wire_enum!(MembershipMessage, "a membership message" {
    1 = Lead { queue: QueueId, to: NodeId },
    2 = ReplicaRequest { token: u64, reply_shard: u16, queue: QueueId },
    3 = Replica { token: u64, told: ReplicaReport },
    4 = DepartureRequest { queue: QueueId },
    5 = Depart { queue: QueueId, told: Departure },
    6 = Removed,
    7 = Release { node: NodeId },
    8 = Drain { on: bool },
    9 = PositionRequest { token: u64, reply_shard: u16, group: u64, lost: LostNodes },
    10 = Position { token: u64, told: PositionReport },
    11 = RecoverMajority { token: u64, reply_shard: u16, group: u64, lost: LostNodes },
    12 = MajorityRecovery { token: u64, refused: Option<Name> },
});
wire_newtype!(LostNodes(Vec<NodeId> as AtMost<MAX_LOST>));
wire_struct!(PositionReport {
    position: Option<LogPosition>,
    connected: LostNodes,
});
wire_struct!(LogPosition {
    last_term: u64,
    last_index: u64,
    applied: u64,
    leader: Option<NodeId>,
    votes: GroupVoters,
});
wire_struct!(ReplicaReport {
    replica: Option<ReplicaStatus>,
    votes: GroupVoters,
});
wire_newtype!(GroupVoters(Vec<(NodeId, bool)> as AtMost<MAX_VOTES>));

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;
    use wire::{DecodeCause, Wire};

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
            MembershipMessage::PositionRequest {
                token: 1,
                reply_shard: 2,
                group: 0,
                lost: LostNodes(vec![NodeId(3)]),
            },
            MembershipMessage::Position {
                token: 1,
                told: PositionReport {
                    position: Some(LogPosition {
                        last_term: 4,
                        last_index: 5,
                        applied: 4,
                        leader: Some(NodeId(6)),
                        votes: GroupVoters(vec![(NodeId(7), false)]),
                    }),
                    connected: LostNodes::default(),
                },
            },
            MembershipMessage::RecoverMajority {
                token: 1,
                reply_shard: 2,
                group: 9,
                lost: LostNodes(vec![NodeId(u64::MAX)]),
            },
            MembershipMessage::MajorityRecovery {
                token: 1,
                refused: Some("no".into()),
            },
        ]
    }

    #[test]
    fn messages_come_back_and_cut_ones_are_refused() {
        for message in samples() {
            let raw = wire::encode(&message);
            assert_eq!(wire::decode("message", &raw), Ok(message));
            for cut in 0..raw.len() {
                let cut = wire::decode::<MembershipMessage>("message", &raw.slice(..cut));
                assert!(cut.is_err());
            }
        }
    }

    #[test]
    fn report_with_too_many_members_is_refused() {
        let member = (NodeId(1), true);
        let mut raw = BytesMut::new();
        (3u8, 4u64).put(&mut raw);
        None::<u64>.put(&mut raw);
        vec![member; MAX_VOTES + 1].put(&mut raw);
        let report = wire::decode::<MembershipMessage>("message", &raw.freeze());
        assert_eq!(report.map_err(|e| e.cause), Err(DecodeCause::Limit));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), tag in 0u8..14) {
            let mut tagged = vec![tag];
            tagged.extend(bytes);
            let _ = wire::decode::<MembershipMessage>("message", &Bytes::from(tagged));
        }
    }
}
