//! Membership requests: replicas of quorum queues, leaders, and nodes that leave the cluster.

use crate::Reply;
use env::NodeId;
use metadata::{ChangeError, QueueId};

pub enum MembershipRequest {
    /// Changes the members of these quorum queues. Each queue has its own outcome; a change that
    /// would cost a queue its quorum is rejected. The Raft groups follow one step at a time.
    Change {
        queues: Vec<QueueId>,
        change: MemberChange,
        reply: Reply<Vec<MemberOutcome>>,
    },
    /// The replicas of a quorum queue, each reported by its node.
    Replicas {
        queue: QueueId,
        reply: Reply<Vec<ReplicaFacts>>,
    },
    /// Removes a node that is gone from the cluster for good, after its replicas were moved to
    /// other nodes.
    Forget {
        node: NodeId,
        reply: Reply<Result<Forgetting, ChangeError>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    Add(NodeId),
    Remove(NodeId),
    /// The new member joins before the old one is removed.
    Replace {
        old: NodeId,
        new: NodeId,
    },
    /// Like `Replace` with the most suitable node; like `Remove` if there is none.
    Evacuate(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOutcome {
    pub queue: QueueId,
    /// The desired members after the change.
    pub result: Result<Vec<NodeId>, ChangeError>,
}

/// The voting state of a member, as reported by the group's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    Voter,
    /// Catching up; becomes a voter afterwards.
    Promotable,
    /// Has a replica but is not a member.
    None,
    /// There is no leader to report it.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFacts {
    pub node: NodeId,
    pub vote: Vote,
    /// None: it did not answer in time, or has no replica yet.
    pub replica: Option<ReplicaStatus>,
}

/// Raft state of one replica. Indexes refer to the group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    pub is_leader: bool,
    pub is_candidate: bool,
    pub term: u64,
    pub last_index: u64,
    /// Last durable index.
    pub written: u64,
    pub applied: u64,
    pub commit: u64,
    pub checkpoint: u64,
}

wire::wire_struct!(ReplicaStatus {
    is_leader: bool,
    is_candidate: bool,
    term: u64,
    last_index: u64,
    written: u64,
    applied: u64,
    commit: u64,
    checkpoint: u64,
});

/// Progress of forgetting a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgetting {
    Forgotten,
    /// Number of queues that still have the node as a member and are being moved. 0: the node's
    /// membership of the metadata group ends first. Repeat the request.
    Moving {
        queues: u32,
    },
}
