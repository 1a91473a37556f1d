//! Membership requests: replicas of quorum queues, leaders, and nodes that leave the cluster.

use crate::Reply;
use env::NodeId;
use metadata::{ChangeError, QueueId};

pub enum MembershipRequest {
    /// Changes who is to be a member of these quorum queues. Each has an outcome of its own; a change that would cost a
    /// queue its majority is refused. The groups follow one step at a time.
    Change {
        queues: Vec<QueueId>,
        change: MemberChange,
        reply: Reply<Vec<MemberOutcome>>,
    },
    /// A quorum queue's replicas, as each tells of itself.
    Replicas {
        queue: QueueId,
        reply: Reply<Vec<ReplicaFacts>>,
    },
    /// Takes a node that is gone out of the cluster for good, after others hold what it held.
    Forget {
        node: NodeId,
        reply: Reply<Result<Forgetting, ChangeError>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    Add(NodeId),
    Remove(NodeId),
    /// The new one is a member before the old one goes.
    Replace {
        old: NodeId,
        new: NodeId,
    },
    /// As `Replace`, by the node that fits best; as `Remove` where there is none.
    Evacuate(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOutcome {
    pub queue: QueueId,
    /// Who is to be a member now.
    pub result: Result<Vec<NodeId>, ChangeError>,
}

/// How a member counts, as the group's leader tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    Voter,
    /// Catches up, and gets its vote then.
    Promotable,
    /// Holds a replica and is no member.
    None,
    /// There is no leader to tell.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFacts {
    pub node: NodeId,
    pub vote: Vote,
    /// None: it did not answer in time, or has no replica yet.
    pub replica: Option<ReplicaStatus>,
}

/// Raft's view of one replica. Indexes are of the group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    pub is_leader: bool,
    pub is_candidate: bool,
    pub term: u64,
    pub last_index: u64,
    /// Durable up to here.
    pub written: u64,
    pub applied: u64,
    pub commit: u64,
    pub checkpoint: u64,
}

/// How far a node is from being forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgetting {
    Forgotten,
    /// Queues that still count the node among their members: they are given others. 0: it runs, and its part in the cluster's
    /// own group ends first. Ask again.
    Moving {
        queues: u32,
    },
}
