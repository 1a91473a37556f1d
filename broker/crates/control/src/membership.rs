//! Membership requests: replicas of quorum queues, leaders, and nodes that leave the cluster.

use crate::Reply;
use env::NodeId;
use metadata::{ChangeError, QueueId};

/// A request about the members of quorum queues or of the cluster.
pub enum MembershipRequest {
    /// Changes the members of these quorum queues. Each queue has its own outcome; a change that
    /// would cost a queue its quorum is rejected. The Raft groups follow one step at a time.
    Change {
        /// Ids of the queues.
        queues: Vec<QueueId>,
        /// The change, the same for each queue.
        change: MemberChange,
        /// Called with the response.
        reply: Reply<Vec<MemberOutcome>>,
    },
    /// The replicas of a quorum queue, each reported by its node.
    Replicas {
        /// Id of the queue.
        queue: QueueId,
        /// Called with the response.
        reply: Reply<Vec<ReplicaFacts>>,
    },
    /// Removes a node that is gone from the cluster for good, after its replicas were moved to
    /// other nodes.
    Forget {
        /// Id of the node that is gone.
        node: NodeId,
        /// Called with the response.
        reply: Reply<Result<ForgetProgress, ChangeError>>,
    },
    /// Makes the cluster continue after a majority of its nodes, or of the members of quorum queues and streams, is lost. One step;
    /// repeat the request until [`RecoveryStep::Queues`] has nothing left.
    RecoverMajority {
        /// Nodes that never return. Nodes that were removed already need not be named.
        lost: Vec<NodeId>,
        /// Called with the response.
        reply: Reply<Result<RecoveryStep, ChangeError>>,
    },
}

/// A step of the recovery of a lost majority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// The metadata continue on this node, which has the newest copy of those that are left. It is about to lead them.
    Metadata(RecoveredGroup),
    /// One lost node was removed from the cluster.
    Forgotten,
    /// Quorum queues and streams that had no majority left.
    Queues {
        /// The outcome of each queue of this step.
        outcomes: Vec<QueueRecovery>,
        /// Number of queues without a leader that this step did not look at.
        left: usize,
    },
}

/// The replica with which a group continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// The node with the newest log.
    pub node: NodeId,
    /// Last index of that log.
    pub last_index: u64,
    /// Number of replicas that were compared.
    pub replicas: usize,
    /// Members that voted, lost ones included.
    pub voters: usize,
}

/// The recovery of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecovery {
    /// Id of the queue.
    pub queue: QueueId,
    /// How it continues, or why it cannot.
    pub result: Result<RecoveredGroup, ChangeError>,
}

/// A change of the members of a quorum queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a member.
    Add(NodeId),
    /// Removes a member.
    Remove(NodeId),
    /// The new member joins before the old one is removed.
    Replace {
        /// The member to remove.
        old: NodeId,
        /// The member to add.
        new: NodeId,
    },
    /// Like `Replace` with the most suitable node; like `Remove` if there is none.
    Evacuate(NodeId),
}

/// The result of a membership change for one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOutcome {
    /// Id of the queue.
    pub queue: QueueId,
    /// The desired members after the change.
    pub result: Result<Vec<NodeId>, ChangeError>,
}

/// The voting state of a member, as reported by the group's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VotingState {
    /// Votes and counts towards a majority.
    Voter,
    /// Catching up; becomes a voter afterwards.
    Promotable,
    /// Has a replica but is not a member.
    None,
    /// There is no leader to report it.
    Unknown,
}

/// One replica of a quorum queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFacts {
    /// Node of the replica.
    pub node: NodeId,
    /// Voting state of the member.
    pub vote: VotingState,
    /// None: it did not answer in time, or has no replica yet.
    pub replica: Option<ReplicaStatus>,
}

/// Raft state of one replica. Indexes refer to the group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The replica leads its group.
    pub is_leader: bool,
    /// The replica campaigns for leadership.
    pub is_candidate: bool,
    /// Current term.
    pub term: u64,
    /// Last index of the log.
    pub last_index: u64,
    /// Last durable index.
    pub written: u64,
    /// Last applied index.
    pub applied: u64,
    /// Commit index.
    pub commit: u64,
    /// Index of the newest durable checkpoint.
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
pub enum ForgetProgress {
    /// The node is no longer a member of the cluster.
    Forgotten,
    /// Number of queues that still have the node as a member and are being moved. 0: the node's
    /// membership of the metadata group ends first. Repeat the request.
    Moving {
        /// Number of the queues; see the variant.
        queues: u32,
    },
}
