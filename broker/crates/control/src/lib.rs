//! Requests of the control plane (HTTP API, node lifecycle) to a node, and their responses.
//!
//! Requests go to shard 0, which queries other shards and nodes as needed. Each request carries its
//! own [`Reply`] callback, so this crate needs no async runtime. A reply is called once, on a shard
//! thread, and must not block. A reply that is dropped uncalled means that the node is stopping.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod browse;
mod by_queue_type;
mod facts;
pub mod json;
mod membership;
mod timings;
mod walk;

pub use browse::{
    BrowseFacts, BrowseFilter, ImportOutcome, ImportRequest, ListedMessage, MAX_MOVED, MoveOutcome,
    MoveRequest, MoveTarget,
};
pub use facts::{
    ChannelFacts, ConnectionFacts, ConsumerFacts, Counters, DeadLetterReasons, DeadLetterTotals,
    ExchangeCounts, LinkFacts, LinkFilterFacts, LinkSessionFacts, LoginCounts, MESSAGE_SIZE_BOUNDS,
    MessageCounts, MessageSizeCounts, MqttCounters, ProtocolCounters, QueueTotals, RaftCounters,
    ShardFacts, ShardQuery, StoredBytesFacts, StreamConsumerFacts, StreamFilter,
    StreamFollowerFacts, StreamProtocolCounters, StreamPublisherFacts, StreamReaderFacts,
    StreamReplicaFacts, StreamSessionFacts, StreamTrackingFacts, TrafficCounts, TrafficFacts,
    TrafficFilter,
};
pub use membership::{
    ForgetProgress, MemberChange, MemberOutcome, MembershipRequest, QueueRecovery, RecoveredGroup,
    RecoveryStep, ReplicaFacts, ReplicaStatus, VotingState,
};
pub use timings::{
    ConfirmTimings, DeliverySnapshot, DeliveryTimings, DurationHistogram, Exemplar,
    HistogramSnapshot, NodeTimings,
};
pub use walk::{CollectWalk, TreeWalk, WalkProgress};

use env::{NodeId, WallTime};
use message::Message;
use metadata::features::VersionFacts;
use metadata::{
    Change, ChangeError, ChangeResult, ClientAddress, Name, QueueId, QueueRecord, Tree,
};
use queue::{
    DelayedDetails, Delivery, HeadMessage, QueueCounters, QueueReply, QueueStats, ReadyDetails,
    RequestBody,
};

/// Called once with the response to a request; see the crate documentation.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// A request to a node, which shard 0 answers.
pub enum ControlRequest {
    /// Runs on shard 0 between two turns, with the applied tree. It must be short: copy the data
    /// out, and use [`Self::Walk`] for collections without a bound.
    Read(Box<dyn FnOnce(&Tree) + Send>),
    /// Runs on shard 0 with the applied tree, in as many turns as needed. Each turn visits a
    /// bounded number of items.
    Walk(Box<dyn TreeWalk>),
    /// Answered after this node has applied the change, so that a following read sees it.
    Change {
        /// The change of the metadata.
        change: Change,
        /// Called with the response.
        reply: Reply<Result<ChangeResult, ChangeError>>,
    },
    /// Chooses members for a new queue, leader first.
    PlaceQueue {
        /// The queue, without members.
        record: Box<QueueRecord>,
        /// Called with the response.
        reply: Reply<Vec<NodeId>>,
    },
    /// Cluster-wide statistics of one queue, or of all if None. A queue whose node does not answer
    /// in time has `stats: None`.
    Queues {
        /// The queue; `None`: all queues.
        only: Option<QueueId>,
        /// Called with the response.
        reply: Reply<Vec<QueueFacts>>,
    },
    /// Queues that this node leads or stores.
    OwnQueues {
        /// Called with the response.
        reply: Reply<Vec<QueueFacts>>,
    },
    /// A request to one queue in a session of the control plane (purge, delete, stat).
    Queue {
        /// Id of the queue.
        queue: QueueId,
        /// The request to the queue.
        body: RequestBody,
        /// Called with the response.
        reply: Reply<Result<QueueReply, ChangeError>>,
    },
    /// The members of the cluster.
    Nodes {
        /// Called with the response.
        reply: Reply<Vec<NodeFacts>>,
    },
    /// Quorum queues (and the metadata group, as `QueueId(0)`) that would lose their quorum without
    /// this node.
    QuorumCritical {
        /// Called with the response.
        reply: Reply<Vec<QueueId>>,
    },
    /// Connections of all nodes that answer in time.
    Connections {
        /// Called with the response.
        reply: Reply<Vec<ConnectionFacts>>,
    },
    /// Consumers of the whole cluster.
    Consumers {
        /// Called with the response.
        reply: Reply<Vec<ConsumerFacts>>,
    },
    /// Counters of all nodes that answer in time, or only of this one.
    Counters {
        /// Ask all nodes instead of only this one.
        everywhere: bool,
        /// Called with the response.
        reply: Reply<Vec<(NodeId, Counters)>>,
    },
    /// Traffic of all nodes that answer in time. The filter may have at most a thousand names,
    /// because shards answer in one turn.
    Traffic {
        /// The virtual hosts and exchanges.
        of: TrafficFilter,
        /// Called with the response.
        reply: Reply<TrafficFacts>,
    },
    /// Replicas of streams on all nodes that answer in time, or only on this one.
    Streams {
        /// The streams.
        of: StreamFilter,
        /// Ask all nodes instead of only this one.
        everywhere: bool,
        /// Called with the response.
        reply: Reply<Vec<StreamReplicaFacts>>,
    },
    /// Publishes through an exchange, like a client with publisher confirms. `build` creates the
    /// message with the given timestamp.
    Publish {
        /// Virtual host of the exchange.
        vhost: Name,
        /// The publisher, for the firehose tracer.
        user: Name,
        /// Creates the message with the given timestamp; an error is returned to the client.
        build: Box<dyn FnOnce(WallTime) -> Result<Message, String> + Send>,
        /// Called with the response.
        reply: Reply<Result<PublishResult, ChangeError>>,
    },
    /// Gets messages from the head of a queue, then settles all of them together.
    Get {
        /// Id of the queue.
        queue: QueueId,
        /// The consumer, for the firehose tracer.
        user: Name,
        /// Maximum number of messages.
        count: u32,
        /// Total body size in bytes after which no more messages are taken.
        bytes: usize,
        /// How the messages are settled after they were read.
        settle: queue::SettlementOutcome,
        /// Called with the response.
        reply: Reply<Result<Vec<Delivery>, ChangeError>>,
    },
    /// A page of the messages of a queue, from the shard that leads or stores it. `None`: none has answered in time.
    Browse {
        /// The queue and the page.
        of: BrowseFilter,
        /// Called with the response.
        reply: Reply<Option<BrowseFacts>>,
    },
    /// Takes messages out of a queue, to delete them or to publish them elsewhere.
    Move {
        /// The messages and what happens to them.
        request: MoveRequest,
        /// Called with the response.
        reply: Reply<Result<MoveOutcome, ChangeError>>,
    },
    /// Stores messages in a queue.
    Import {
        /// The queue and the messages.
        request: ImportRequest,
        /// Called with the response.
        reply: Reply<Result<ImportOutcome, ChangeError>>,
    },
    /// Closes the connection with this [`ConnectionFacts::name`] on any node. False if there is
    /// none.
    CloseConnection {
        /// Name of the connection.
        name: String,
        /// Reason that the client is told.
        reason: String,
        /// Called with the response.
        reply: Reply<bool>,
    },
    /// Drains (true) or revives (false) this node: listeners stop accepting clients, leaders are
    /// transferred.
    Maintenance {
        /// Drain the node; false: revive it.
        on: bool,
        /// Called with the response.
        reply: Reply<MaintenanceProgress>,
    },
    /// Whether the node is ready to serve clients.
    Readiness {
        /// Called with the response.
        reply: Reply<Readiness>,
    },
    /// States other addresses of this node's client listeners.
    StateClientAddresses {
        /// All addresses, as clients reach them.
        addresses: Vec<ClientAddress>,
    },
    /// A change or a listing of members.
    Membership(MembershipRequest),
    /// Moves leaders so that each node leads its share of queues. Returns the number of moved
    /// leaders.
    RebalanceQueues {
        /// Called with the response.
        reply: Reply<u32>,
    },
}

/// Statistics of a queue and its members.
#[derive(Clone, Debug, Default)]
pub struct QueueFacts {
    /// Id of the queue.
    pub id: QueueId,
    /// The node that leads (quorum) or stores (classic) the queue.
    pub leader: Option<NodeId>,
    /// Quorum: the voters known to the leader, without members that are still catching up; without
    /// a leader, the desired members.
    pub members: Vec<NodeId>,
    /// Members whose nodes are up.
    pub online: Vec<NodeId>,
    /// Statistics; `None` if the node did not answer in time.
    pub stats: Option<QueueStats>,
    /// Counters of message operations.
    pub counters: QueueCounters,
    /// Ready messages by priority. `None`: the queue has none, or no strict priority levels.
    pub ready: Option<ReadyDetails>,
    /// Delayed messages. `None`: the queue has none.
    pub delayed: Option<DelayedDetails>,
    /// The oldest ready message. `None`: the queue has none, or the owner cannot tell.
    pub head: Option<HeadMessage>,
}

/// Result of a publish: whether the message was routed to a queue, and whether all queues accepted
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishResult {
    /// At least one queue takes the message.
    pub routed: bool,
    /// All queues have accepted the message.
    pub taken: bool,
}

/// Resource usage of a node and its alarm thresholds, memory and disk in bytes. None: unknown.
///
/// A node of another version leaves out values that it does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct NodeResources {
    /// Memory in use, as the memory alarm counts it.
    pub memory_used: Option<u64>,
    /// Threshold of the memory alarm.
    pub memory_limit: Option<u64>,
    /// Free space of the file system of the data directory.
    pub disk_free: Option<u64>,
    /// Threshold of the disk alarm.
    pub disk_free_limit: Option<u64>,
    /// Open file descriptors of the process, and their limit.
    pub descriptors_used: Option<u64>,
    /// Limit of open file descriptors.
    pub descriptors: Option<u64>,
    /// Opening files failed recently, for lack of descriptors or memory.
    pub is_short_of_files: bool,
    /// Maximum number of client connections.
    pub connections: Option<u64>,
    /// Threads of the process.
    pub threads: Option<u64>,
    /// Maximum number of threads.
    pub thread_limit: Option<u64>,
    /// Processors that the process may use.
    pub processors: Option<u64>,
    /// Seconds since the start of the node.
    pub uptime_s: Option<u64>,
    /// Processor time that the process has used, in milliseconds.
    pub processor_time_ms: Option<u64>,
    /// Start of the process in milliseconds since 1970.
    pub started_ms: Option<u64>,
}

/// A member of the cluster.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Id of the node.
    pub id: NodeId,
    /// Name of the node, unique in the cluster.
    pub name: String,
    /// The node is up.
    pub running: bool,
    /// The node is drained for maintenance.
    pub maintenance: bool,
    /// The node votes in the metadata group.
    pub voter: bool,
    /// Address of its listener for other nodes, `host:port`.
    pub address: String,
    /// `cluster.zone`; empty if not set.
    pub zone: String,
    /// Addresses of its client listeners; empty if it has not stated any.
    pub client_addresses: Vec<ClientAddress>,
    /// Seconds since the start; None for other nodes.
    pub uptime_s: Option<u64>,
    /// Its memory alarm is set.
    pub memory_alarm: bool,
    /// Its disk alarm is set.
    pub disk_alarm: bool,
    /// The version of the node, if it is up and has reported it.
    pub version: Option<VersionFacts>,
}

/// Progress of draining a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaintenanceProgress {
    /// The node is being drained; false: it is being revived.
    pub on: bool,
    /// Local leaders that another node could take over.
    pub leaders_left: u32,
    /// Client connections that are still open.
    pub connections_left: u32,
}

/// Readiness of a node to serve clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The node serves clients.
    Ready,
    /// The reason: joining, recovering or no metadata leader. The node's metadata may be out of date.
    NotReady(String),
    /// The node is in maintenance mode or stops, and takes no new clients. Its metadata is up to date.
    Draining,
}
