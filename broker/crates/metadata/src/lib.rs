//! Replicated metadata of the cluster: vhosts, users, permissions, exchanges, queues, bindings, policies and member
//! nodes.
//!
//! [`Change`]s go through the metadata Raft group. [`Tree::apply`] applies them in order on every node and every shard,
//! with the same result. Sessions and the HTTP API read the shard's tree directly, without locks. [`Tree::snapshot`]
//! and [`Tree::restore`] convert the tree to and from the bytes of a Raft snapshot.
//!
//! [`ChangeError`] has the error texts that RabbitMQ's clients match on. Sizes are bounded by [`limits`].
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod access;
mod apply;
mod arguments;
mod client_addresses;
mod codec;
mod cursor;
pub mod deprecated;
mod equivalence;
mod exchanges;
pub mod features;
mod globals;
mod identity;
pub mod limits;
mod lost;
mod nodes;
mod placed;
mod placement;
mod policies;
mod policy_keys;
mod queues;
pub mod restrictions;
mod retained;
mod route;
mod settings;
mod subject_limits;
#[cfg(test)]
mod tests;
mod traffic;
mod tree;
mod vhosts;

pub use access::is_predeclared_exchange;
pub use arguments::check_consumer_timeout;
pub use client_addresses::ClientAddress;
pub use cursor::{
    BindingCursor, Cursor, CursorStep, ExchangeCursor, QueueCursor, QueuesById, SourceCursor,
};
pub use globals::CLUSTER_NAME;
pub use identity::{Identity, IdentityPermissions, MAX_SCOPES, Scope, UserAccess};
pub use ids::{
    ByQueueType, DeadLettering, DelayedRetry, DelayedReturns, Name, Overflow, QueueId,
    QueueSettings, QueueType, QuorumFeatures, QuorumSettings, Replication, SessionId,
};
pub use placement::{LeaderLocator, PlacementRequest};
pub use policies::EffectivePolicy;
pub use route::RouteResult;
pub use settings::{EffectiveSettings, StreamSettings};
pub use subject_limits::{
    MAX_BYTE_RATE, MAX_CHANNELS, MAX_CONNECTIONS, MAX_MESSAGE_RATE, MAX_QUEUES, MAX_STORED_BYTES,
    USER_LIMITS, VHOST_LIMITS, find_limit,
};
pub use traffic::Traffic;
pub use tree::{Right, Tree, TreeEvent, VhostRecord};

use bytes::Bytes;
use env::{Incarnation, NodeId};
use message::Table;
use std::sync::Arc;

/// A declared queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueRecord {
    /// Identifies the queue even if another one gets its name later.
    pub id: QueueId,
    /// Vhost of the queue.
    pub vhost: Name,
    /// Unique within the vhost.
    pub name: Name,
    /// Type, fixed at declaration.
    pub kind: QueueType,
    /// The queue survives a restart of its node.
    pub durable: bool,
    /// The queue is deleted after its last consumer has left.
    pub auto_delete: bool,
    /// The session that owns an exclusive queue.
    pub exclusive: Option<SessionId>,
    /// Arguments of the declaration, with their `x-` prefix.
    pub arguments: Table,
    /// Classic queue: the node that holds it. Quorum queue: the wanted members of its Raft group; at declaration the
    /// first one should become the leader.
    pub members: Vec<NodeId>,
    /// User that declared it.
    pub declared_by: Name,
}

/// A declared or predeclared exchange. The default exchange has the empty name.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeRecord {
    /// Vhost of the exchange.
    pub vhost: Name,
    /// Unique within the vhost.
    pub name: Name,
    /// Exchange type, for example `topic`; see `routing::ExchangeType`.
    pub kind: Name,
    /// The flag `durable` of the declaration.
    pub durable: bool,
    /// The exchange is deleted after its last binding has been removed.
    pub auto_delete: bool,
    /// Clients cannot publish to it.
    pub internal: bool,
    /// Arguments of the declaration.
    pub arguments: Table,
}

/// The end of a binding.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    /// Name of a queue in the vhost of the binding.
    Queue(Name),
    /// Name of an exchange in the vhost of the binding.
    Exchange(Name),
}

/// A binding. All fields together identify it.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingRecord {
    /// Vhost of both ends.
    pub vhost: Name,
    /// Name of the exchange that routes.
    pub source: Name,
    /// Receives the routed messages.
    pub destination: Destination,
    /// Meaning depends on the type of `source`.
    pub routing_key: Name,
    /// Meaning depends on the type of `source`.
    pub arguments: Table,
}

/// The two kinds of policies, which are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyScope {
    /// Set by users with the tag `policymaker`.
    User,
    /// Set by operators. It limits the values that user policies may set.
    Operator,
}

/// Objects that a policy can apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApplyTo {
    /// Queues and exchanges.
    All,
    /// Queues of every type.
    Queues,
    /// Classic queues.
    ClassicQueues,
    /// Quorum queues.
    QuorumQueues,
    /// Streams.
    Streams,
    /// Exchanges.
    Exchanges,
}

impl ApplyTo {
    /// All values.
    pub const ALL: [ApplyTo; 6] = [
        ApplyTo::All,
        ApplyTo::Queues,
        ApplyTo::ClassicQueues,
        ApplyTo::QuorumQueues,
        ApplyTo::Streams,
        ApplyTo::Exchanges,
    ];

    /// The name in the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            ApplyTo::All => "all",
            ApplyTo::Queues => "queues",
            ApplyTo::ClassicQueues => "classic_queues",
            ApplyTo::QuorumQueues => "quorum_queues",
            ApplyTo::Streams => "streams",
            ApplyTo::Exchanges => "exchanges",
        }
    }
}

/// A policy of either kind.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRecord {
    /// Vhost of the policy and of its objects.
    pub vhost: Name,
    /// Unique within vhost and scope.
    pub name: Name,
    /// Kind of the policy.
    pub scope: PolicyScope,
    /// Regular expression, matched anywhere in the name.
    pub pattern: Name,
    /// Objects that the pattern is compared with.
    pub apply_to: ApplyTo,
    /// Of the matching policies of one scope, the one with the highest priority applies.
    pub priority: i64,
    /// Keys as in RabbitMQ (`max-length`, `delivery-limit`, ...), checked when put.
    pub definition: Table,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRecord {
    /// Unique in the cluster.
    pub name: Name,
    /// `None`: the user cannot log in with a password.
    pub password: Option<auth::PasswordHash>,
    /// User tags, for example `administrator`.
    pub tags: Vec<Name>,
    /// By names of [`USER_LIMITS`]. A negative value means no limit.
    pub limits: Vec<(Name, i64)>,
}

/// Permissions of a user in a vhost. The three are regular expressions, matched anywhere in the name of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionRecord {
    /// Name of the user.
    pub user: Name,
    /// Name of the vhost.
    pub vhost: Name,
    /// Resources that the user may declare and delete.
    pub configure: Name,
    /// Resources that the user may publish to or bind.
    pub write: Name,
    /// Resources that the user may consume from or bind to.
    pub read: Name,
}

/// Topic permissions of a user. The two are regular expressions, matched anywhere in a routing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPermissionRecord {
    /// Name of the user.
    pub user: Name,
    /// Name of the vhost.
    pub vhost: Name,
    /// Name of the topic exchange. Topic permissions do not restrict other exchanges.
    pub exchange: Name,
    /// Routing keys that the user may publish with.
    pub write: Name,
    /// Routing keys that the user may bind with.
    pub read: Name,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Identifies the data directory of the node.
    pub id: NodeId,
    /// Unique in the cluster.
    pub name: Name,
    /// host:port of its inter-node listener.
    pub address: Name,
    /// The node has a vote in the metadata group.
    pub voter: bool,
    /// The node is in maintenance mode.
    pub maintenance: bool,
}

/// A change of the tree. It is checked again when it is applied, because the order in the log decides races between
/// clients.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// First entry of a new cluster. Creates the vhost `/` with its exchanges and the default user.
    Bootstrap {
        /// Name of the cluster.
        cluster: Name,
        /// The founding members.
        nodes: Vec<NodeRecord>,
        /// The default user.
        user: UserRecord,
    },
    /// Creates a vhost, or replaces its description and tags.
    PutVhost {
        /// Name of the vhost.
        name: Name,
        /// Description for users.
        description: Name,
        /// Tags of the vhost, which the broker does not interpret.
        tags: Vec<Name>,
    },
    /// Deletes a vhost with everything in it.
    DeleteVhost {
        /// Name of the vhost.
        name: Name,
    },
    /// Creates a user, or replaces its password, tags and limits. Permissions stay.
    PutUser(UserRecord),
    /// Deletes a user with its permissions.
    DeleteUser {
        /// Name of the user.
        name: Name,
    },
    /// Sets the permissions of a user in a vhost.
    PutPermission(PermissionRecord),
    /// Clears the permissions of a user in a vhost.
    DeletePermission {
        /// Name of the user.
        user: Name,
        /// Name of the vhost.
        vhost: Name,
    },
    /// Sets the topic permissions of a user for an exchange.
    PutTopicPermission(TopicPermissionRecord),
    /// Deletes topic permissions. `exchange: None` deletes all topic permissions of the user in the vhost.
    DeleteTopicPermission {
        /// Name of the user.
        user: Name,
        /// Name of the vhost.
        vhost: Name,
        /// Name of the exchange.
        exchange: Option<Name>,
    },
    /// Sets a limit of a user. `value: None` clears it.
    SetUserLimit {
        /// Name of the user.
        user: Name,
        /// One of [`USER_LIMITS`].
        limit: Name,
        /// A negative number means no limit.
        value: Option<i64>,
    },
    /// Creates or replaces a policy.
    PutPolicy(PolicyRecord),
    /// Deletes a policy.
    DeletePolicy {
        /// Vhost of the policy.
        vhost: Name,
        /// Name of the policy.
        name: Name,
        /// Kind of the policy.
        scope: PolicyScope,
    },
    /// Creates an exchange, or checks that an existing one is equivalent.
    DeclareExchange(ExchangeRecord),
    /// Deletes an exchange with its bindings.
    DeleteExchange {
        /// Vhost of the exchange.
        vhost: Name,
        /// Name of the exchange.
        name: Name,
        /// Refuse if a binding starts at the exchange.
        if_unused: bool,
    },
    /// Declares a queue. The `id` of the record is ignored: the log index becomes the id.
    DeclareQueue(QueueRecord),
    /// Deletes a queue. `id` protects a newer queue of the same name; `None` deletes any queue of that name.
    DeleteQueue {
        /// Vhost of the queue.
        vhost: Name,
        /// Name of the queue.
        name: Name,
        /// Id of the queue that the client meant.
        id: Option<QueueId>,
    },
    /// Changes nothing. A shard that has applied it has applied everything that was committed before it was proposed: a
    /// read barrier.
    Barrier {},
    /// A session has ended. Deletes its exclusive queues.
    EndSession {
        /// The session that ended.
        session: SessionId,
    },
    /// An incarnation of a node has ended. Deletes the exclusive queues of its sessions and its non-durable classic
    /// queues, with their bindings.
    EndIncarnation {
        /// The node that ended or restarted.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
    },
    /// Creates a binding.
    Bind(BindingRecord),
    /// Removes a binding.
    Unbind(BindingRecord),
    /// Adds a member, or replaces its record.
    PutNode(NodeRecord),
    /// Removes a member.
    DeleteNode {
        /// The member.
        id: NodeId,
    },
    /// Sets the maintenance mode of a member.
    SetMaintenance {
        /// The member.
        id: NodeId,
        /// True begins maintenance, false ends it.
        on: bool,
    },
    /// Sets the wanted members of a quorum queue, whatever they are now.
    SetQueueMembers {
        /// The queue.
        id: QueueId,
        /// The wanted members.
        members: Vec<NodeId>,
    },
    /// Sets the wanted members of a quorum queue. Refused if its members are no longer `from`.
    ReplaceQueueMembers {
        /// The queue.
        id: QueueId,
        /// Members that the decision was based on.
        from: Vec<NodeId>,
        /// The wanted members.
        to: Vec<NodeId>,
    },
    /// Removes a member permanently: its id cannot join again.
    ForgetNode {
        /// The member.
        id: NodeId,
    },
    /// Like `ForgetNode`, but refused if a queue got the node as a member after index `seen`, which the requester has
    /// not considered.
    ForgetFreeNode {
        /// The member.
        id: NodeId,
        /// Index of the last change that the requester had applied.
        seen: u64,
    },
    /// Permanently removes a node whose data is lost, even if it has the only copy of a queue. Such a queue is lost
    /// too.
    ForgetLostNode {
        /// The member.
        id: NodeId,
    },
    /// Permanently removes a node, even if it has the only copy of a queue, and adds the node that returned under its
    /// name with an empty data directory.
    ReplaceNode {
        /// The member that lost its data directory.
        old: NodeId,
        /// The same node with its new id.
        new: NodeRecord,
    },
    /// Sets the zone of a node (a rack or an availability zone). Empty: unknown.
    SetZone {
        /// The member.
        id: NodeId,
        /// Name of the zone.
        zone: Name,
    },
    /// Sets the type of a vhost's queues that are declared without `x-queue-type`. `None`: classic.
    SetDefaultQueueType {
        /// Name of the vhost.
        vhost: Name,
        /// The queue type.
        kind: Option<QueueType>,
    },
    /// Sets a limit of a vhost. `value: None` clears it.
    SetVhostLimit {
        /// Name of the vhost.
        vhost: Name,
        /// One of [`VHOST_LIMITS`].
        limit: Name,
        /// A negative number means no limit.
        value: Option<i64>,
    },
    /// Protects a vhost from deletion, or ends the protection.
    ProtectVhost {
        /// Name of the vhost.
        vhost: Name,
        /// True protects the vhost, false ends the protection.
        on: bool,
    },
    /// Sets a global parameter. `value` is JSON.
    PutGlobalParameter {
        /// Name of the parameter.
        name: Name,
        /// The value.
        value: Name,
    },
    /// Deletes a global parameter.
    DeleteGlobalParameter {
        /// Name of the parameter.
        name: Name,
    },
    /// Replaces the time that a queue may be unused (`x-expires`). `None`: no limit.
    SetQueueExpires {
        /// The queue.
        id: QueueId,
        /// The time in milliseconds.
        expires_ms: Option<u64>,
    },
    /// Sets the retained message of an MQTT topic, as a message container. `None`: clears it.
    Retain {
        /// Vhost of the topic.
        vhost: Name,
        /// Topic name in MQTT syntax.
        topic: Name,
        /// The retained message.
        message: Option<Bytes>,
    },
    /// Starts or stops copying a vhost's publishes and deliveries to its trace exchange.
    TraceVhost {
        /// Name of the vhost.
        vhost: Name,
        /// True begins tracing, false ends it.
        on: bool,
    },
    /// Enables a feature flag ([`features`]) permanently. Used for a new cluster, where the requester has checked that
    /// the founders know the flag.
    EnableFeature {
        /// Name of the flag.
        name: Name,
    },
    /// Enables a feature flag at any time. Refused if a current member is not in `known_by`.
    EnableKnownFeature {
        /// Name of the flag.
        name: Name,
        /// Members that announced the flag.
        known_by: Vec<NodeId>,
    },
    /// Replaces the addresses under which clients reach a member. Refused without the feature flag
    /// [`features::CLIENT_ADDRESSES`].
    PutClientAddresses {
        /// The member.
        node: NodeId,
        /// One for each client listener.
        addresses: Vec<ClientAddress>,
    },
}

/// The effect of an applied change.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeResult {
    /// The object was created, changed or removed.
    Changed,
    /// Nothing changed: the object was already in the requested state.
    Unchanged,
    /// The queue, created by this change or existing before.
    Queue {
        /// The queue as it is now.
        record: Arc<QueueRecord>,
        /// True if this change created it.
        created: bool,
    },
}

/// Why a change was refused. `Display` gives the text that RabbitMQ's clients match on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// 404.
    #[error("{0}")]
    NotFound(String),
    /// 406, and 400 over HTTP.
    #[error("{0}")]
    PreconditionFailed(String),
    /// 405.
    #[error("{0}")]
    ResourceLocked(String),
    /// 403.
    #[error("{0}")]
    AccessRefused(String),
    /// 541, and 400 over HTTP: the configuration of the node does not permit the declaration.
    #[error("{0}")]
    NotPermitted(String),
    /// 400 over HTTP: an invalid definition, pattern or name.
    #[error("{0}")]
    Invalid(String),
    /// The metadata group has no reachable leader, or the answer did not arrive in time.
    #[error("{0}")]
    Unavailable(String),
}
