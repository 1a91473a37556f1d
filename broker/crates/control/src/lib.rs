//! Requests of the control plane (HTTP API, node lifecycle) to a node, and their responses.
//!
//! Requests go to shard 0, which queries other shards and nodes as needed. Each request carries its
//! own [`Reply`] callback, so this crate needs no async runtime. A reply is called once, on a shard
//! thread, and must not block. A reply that is dropped uncalled means that the node is stopping.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod by_queue_type;
mod facts;
pub mod json;
mod membership;
mod walk;

pub use facts::{
    ChannelFacts, ConnectionFacts, ConsumerFacts, Counters, DeadLetterReasons, DeadLetterTotals,
    ExchangeCounts, LinkFacts, LinkSessionFacts, LoginCounts, MessageCounts, MqttCounters,
    ProtocolCounters, QueueTotals, ShardFacts, ShardQuery, TrafficCounts, TrafficFacts,
    TrafficFilter,
};
pub use membership::{
    Forgetting, MemberChange, MemberOutcome, MembershipRequest, ReplicaFacts, ReplicaStatus, Vote,
};
pub use walk::{Collect, Progress, TreeWalk};

use env::{NodeId, WallTime};
use message::Message;
use metadata::features::VersionFacts;
use metadata::{
    Change, ChangeError, ChangeResult, ClientAddress, Name, QueueId, QueueRecord, Tree,
};
use queue::{Delivery, QueueCounters, QueueReply, QueueStats, RequestBody};

pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

pub enum ControlRequest {
    /// Runs on shard 0 between two turns, with the applied tree. It must be short: copy the data
    /// out, and use [`Self::Walk`] for collections without a bound.
    Read(Box<dyn FnOnce(&Tree) + Send>),
    /// Runs on shard 0 with the applied tree, in as many turns as needed. Each turn visits a
    /// bounded number of items.
    Walk(Box<dyn TreeWalk>),
    /// Answered after this node has applied the change, so that a following read sees it.
    Change {
        change: Change,
        reply: Reply<Result<ChangeResult, ChangeError>>,
    },
    /// Chooses members for a new queue, leader first.
    PlaceQueue {
        record: Box<QueueRecord>,
        reply: Reply<Vec<NodeId>>,
    },
    /// Cluster-wide statistics of one queue, or of all if None. A queue whose node does not answer
    /// in time has `stats: None`.
    Queues {
        only: Option<QueueId>,
        reply: Reply<Vec<QueueFacts>>,
    },
    /// Queues that this node leads or stores.
    OwnQueues {
        reply: Reply<Vec<QueueFacts>>,
    },
    /// A request to one queue in a session of the control plane (purge, delete, stat).
    Queue {
        queue: QueueId,
        body: RequestBody,
        reply: Reply<Result<QueueReply, ChangeError>>,
    },
    Nodes {
        reply: Reply<Vec<NodeFacts>>,
    },
    /// Quorum queues (and the metadata group, as `QueueId(0)`) that would lose their quorum without
    /// this node.
    QuorumCritical {
        reply: Reply<Vec<QueueId>>,
    },
    /// Connections of all nodes that answer in time.
    Connections {
        reply: Reply<Vec<ConnectionFacts>>,
    },
    /// Consumers of the whole cluster.
    Consumers {
        reply: Reply<Vec<ConsumerFacts>>,
    },
    /// Counters of all nodes that answer in time, or only of this one.
    Counters {
        everywhere: bool,
        reply: Reply<Vec<(NodeId, Counters)>>,
    },
    /// Traffic of all nodes that answer in time. The filter may have at most a thousand names,
    /// because shards answer in one turn.
    Traffic {
        of: TrafficFilter,
        reply: Reply<TrafficFacts>,
    },
    /// Publishes through an exchange, like a client with publisher confirms. `build` creates the
    /// message with the given timestamp.
    Publish {
        vhost: Name,
        /// The publisher, for the firehose tracer.
        user: Name,
        build: Box<dyn FnOnce(WallTime) -> Result<Message, String> + Send>,
        reply: Reply<Result<PublishResult, ChangeError>>,
    },
    /// Gets messages from the head of a queue, then settles all of them together.
    Get {
        queue: QueueId,
        /// The consumer, for the firehose tracer.
        user: Name,
        /// Maximum number of messages.
        count: u32,
        /// Total body size in bytes after which no more messages are taken.
        bytes: usize,
        settle: queue::SettlementOutcome,
        reply: Reply<Result<Vec<Delivery>, ChangeError>>,
    },
    /// Closes the connection with this [`ConnectionFacts::name`] on any node. False if there is
    /// none.
    CloseConnection {
        name: String,
        reason: String,
        reply: Reply<bool>,
    },
    /// Drains (true) or revives (false) this node: listeners stop accepting clients, leaders are
    /// transferred.
    Maintenance {
        on: bool,
        reply: Reply<MaintenanceProgress>,
    },
    Readiness {
        reply: Reply<Readiness>,
    },
    Membership(MembershipRequest),
    /// Moves leaders so that each node leads its share of queues. Returns the number of moved
    /// leaders.
    RebalanceQueues {
        reply: Reply<u32>,
    },
}

#[derive(Clone, Debug, Default)]
pub struct QueueFacts {
    pub id: QueueId,
    /// The node that leads (quorum) or stores (classic) the queue.
    pub leader: Option<NodeId>,
    /// Quorum: the voters known to the leader, without members that are still catching up; without
    /// a leader, the desired members.
    pub members: Vec<NodeId>,
    pub online: Vec<NodeId>,
    pub stats: Option<QueueStats>,
    pub counters: QueueCounters,
}

/// Result of a publish: whether the message was routed to a queue, and whether all queues accepted
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishResult {
    pub routed: bool,
    pub taken: bool,
}

/// Resource usage of a node and its alarm thresholds, memory and disk in bytes. None: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    pub memory_used: Option<u64>,
    /// Threshold of the memory alarm.
    pub memory_limit: Option<u64>,
    pub disk_free: Option<u64>,
    /// Threshold of the disk alarm.
    pub disk_free_limit: Option<u64>,
    /// Open file descriptors of the process, and their limit.
    pub descriptors_used: Option<u64>,
    pub descriptors: Option<u64>,
    /// Opening files failed recently, for lack of descriptors or memory.
    pub is_short_of_files: bool,
    /// Maximum number of client connections.
    pub connections: Option<u64>,
    pub threads: Option<u64>,
    /// Maximum number of threads.
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
    /// `cluster.zone`; empty if not set.
    pub zone: String,
    /// Addresses of its client listeners; empty if it has not stated any.
    pub client_addresses: Vec<ClientAddress>,
    /// Seconds since the start; None for other nodes.
    pub uptime_s: Option<u64>,
    pub memory_alarm: bool,
    pub disk_alarm: bool,
    /// The version of the node, if it is up and has reported it.
    pub version: Option<VersionFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaintenanceProgress {
    pub on: bool,
    /// Local leaders that another node could take over.
    pub leaders_left: u32,
    pub connections_left: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// The reason: joining, recovering, no metadata leader, or draining.
    NotReady(String),
}
