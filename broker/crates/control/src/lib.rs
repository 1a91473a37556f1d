//! What the control plane (HTTP API, node life cycle) asks of a node, and the facts it gets back.
//!
//! Requests are sent to shard 0, which asks other shards and nodes where it must; each carries its own way back.
//! No async runtime shows here: a [`Reply`] is called once, from a shard thread, and must not block. A reply that is
//! dropped uncalled means the node is stopping.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod by_queue_type;
mod facts;
pub mod json;
mod membership;
mod walk;

pub use facts::{
    ChannelFacts, ConnectionFacts, ConsumerFacts, Counters, DeadLetterReasons, DeadLetterTotals,
    ExchangeCounts, LoginCounts, MessageCounts, MqttCounters, ProtocolCounters, QueueTotals,
    ShardFacts, ShardQuery, TrafficCounts, TrafficFacts, TrafficFilter,
};
pub use membership::{
    Forgetting, MemberChange, MemberOutcome, MembershipRequest, ReplicaFacts, ReplicaStatus, Vote,
};
pub use walk::{Collect, Progress, TreeWalk};

use env::{NodeId, WallTime};
use message::Message;
use metadata::features::VersionFacts;
use metadata::{Change, ChangeError, ChangeResult, Name, QueueId, QueueRecord, Tree};
use queue::{Delivery, QueueCounters, QueueReply, QueueStats, RequestBody};

pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

pub enum ControlRequest {
    /// Runs on shard 0 between two turns, with the applied tree. Keep it short: copy out what is needed, and use [`Self::Walk`] for
    /// whatever there may be many of.
    Read(Box<dyn FnOnce(&Tree) + Send>),
    /// Runs on shard 0 with the applied tree, in as many turns as it takes: each looks at a bounded number of items.
    Walk(Box<dyn TreeWalk>),
    /// Answered after this node has applied it, so that a read that follows sees it.
    Change {
        change: Change,
        reply: Reply<Result<ChangeResult, ChangeError>>,
    },
    /// Members for a new queue, the one that is to lead it first.
    Place {
        record: Box<QueueRecord>,
        reply: Reply<Vec<NodeId>>,
    },
    /// Cluster-wide; None is all queues. A queue whose owner does not answer in time has `stats: None`.
    Queues {
        only: Option<QueueId>,
        reply: Reply<Vec<QueueFacts>>,
    },
    /// Queues that are led or live on this node.
    OwnQueues {
        reply: Reply<Vec<QueueFacts>>,
    },
    /// A request to one queue under a session of the control plane's own (purge, delete, stat).
    Queue {
        queue: QueueId,
        body: RequestBody,
        reply: Reply<Result<QueueReply, ChangeError>>,
    },
    Nodes {
        reply: Reply<Vec<NodeFacts>>,
    },
    /// Quorum queues (and the metadata group, as `QueueId(0)`) that would lose their majority without this node.
    QuorumCritical {
        reply: Reply<Vec<QueueId>>,
    },
    /// Cluster-wide; of nodes that answer in time.
    Connections {
        reply: Reply<Vec<ConnectionFacts>>,
    },
    /// Cluster-wide.
    Consumers {
        reply: Reply<Vec<ConsumerFacts>>,
    },
    /// Of each node that answers in time, or of this one only.
    Counters {
        everywhere: bool,
        reply: Reply<Vec<(NodeId, Counters)>>,
    },
    /// Cluster-wide; of nodes that answer in time. A thousand names at most: shards answer in one turn.
    Traffic {
        of: TrafficFilter,
        reply: Reply<TrafficFacts>,
    },
    /// Through an exchange, as a client with confirms would. `build` makes the message at the time it is given.
    Publish {
        vhost: Name,
        /// Who publishes: for those who trace the virtual host.
        user: Name,
        build: Box<dyn FnOnce(WallTime) -> Result<Message, String> + Send>,
        reply: Reply<Result<PublishResult, ChangeError>>,
    },
    /// Takes messages from the front of a queue; then, all together, they are settled.
    Get {
        queue: QueueId,
        /// Who takes them: for those who trace the virtual host.
        user: Name,
        /// At most.
        count: u32,
        /// Bytes of bodies after which no more are taken.
        bytes: usize,
        settle: queue::SettlementOutcome,
        reply: Reply<Result<Vec<Delivery>, ChangeError>>,
    },
    /// By `ConnectionFacts::name`, on any node; false when there is none.
    CloseConnection {
        name: String,
        reason: String,
        reply: Reply<bool>,
    },
    /// Drain (true) or revive (false) this node: listeners closed to new clients, leaders moved away.
    Maintenance {
        on: bool,
        reply: Reply<MaintenanceProgress>,
    },
    Readiness {
        reply: Reply<Readiness>,
    },
    Membership(MembershipRequest),
    /// Moves leaders so that each node has its share. How many are moved.
    RebalanceQueues {
        reply: Reply<u32>,
    },
}

#[derive(Clone, Debug, Default)]
pub struct QueueFacts {
    pub id: QueueId,
    /// Where it is led (quorum) or lives (classic).
    pub leader: Option<NodeId>,
    /// Quorum: the voters as the leader knows them, without one that still catches up; without a leader, those wanted.
    pub members: Vec<NodeId>,
    pub online: Vec<NodeId>,
    pub stats: Option<QueueStats>,
    pub counters: QueueCounters,
}

/// What came of a publish: whether it went to a queue at all, and whether all queues took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishResult {
    pub routed: bool,
    pub taken: bool,
}

/// What a node uses of its machine, and where its alarms are; memory and disk in bytes. None: it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    pub memory_used: Option<u64>,
    /// From here on the memory alarm is on.
    pub memory_limit: Option<u64>,
    pub disk_free: Option<u64>,
    /// Below it the disk alarm is on.
    pub disk_free_limit: Option<u64>,
    /// Files and sockets that the process has, their number, and those that it may have.
    pub descriptors_used: Option<u64>,
    pub descriptors: Option<u64>,
    /// Files could not be opened lately, for want of descriptors or memory.
    pub files_short: bool,
    /// Client connections that it takes at most.
    pub connections: Option<u64>,
    pub threads: Option<u64>,
    /// Those that it may have.
    pub thread_limit: Option<u64>,
    pub processors: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub id: NodeId,
    pub name: String,
    pub running: bool,
    pub maintenance: bool,
    pub voter: bool,
    pub address: String,
    /// `cluster.zone`; empty: none.
    pub zone: String,
    /// Seconds since start; None for other nodes.
    pub uptime_s: Option<u64>,
    pub memory_alarm: bool,
    pub disk_alarm: bool,
    /// What runs there, as far as it is known: of nodes that are up, and have told.
    pub program: Option<VersionFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaintenanceProgress {
    pub on: bool,
    /// Leaders here that another node could take over.
    pub leaders_left: u32,
    pub connections_left: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Why not: joining, recovering, no metadata leader, draining.
    NotReady(String),
}
