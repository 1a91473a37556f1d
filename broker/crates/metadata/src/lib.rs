//! The replicated tree (C1): vhosts, users, permissions, exchanges, queues, bindings, policies, members.
//!
//! [`Change`]s go through the metadata Raft group and are applied in order by [`Tree::apply`] on every node, on every
//! shard; sessions and the HTTP API read the resulting tree directly, without locks (docs/decisions).
#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod access;
mod apply;
mod arguments;
mod codec;
mod cursor;
mod equivalence;
mod exchanges;
pub mod features;
mod globals;
pub mod limits;
mod lost;
mod nodes;
mod placed;
mod placement;
mod policies;
mod policy_keys;
mod queues;
mod retained;
mod route;
mod settings;
#[cfg(test)]
mod tests;
mod traffic;
mod tree;
mod vhosts;

pub use cursor::{
    BindingCursor, Cursor, ExchangeCursor, QueueCursor, QueuesById, SourceCursor, Step,
};
pub use globals::CLUSTER_NAME;
pub use ids::{
    ByQueueType, DeadLettering, Name, Overflow, QueueId, QueueSettings, QueueType, Replication,
    SessionId,
};
pub use placement::{LeaderLocator, PlacementRequest};
pub use policies::EffectivePolicy;
pub use route::RouteResult;
pub use settings::EffectiveSettings;
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
    /// It survives a restart of its node.
    pub durable: bool,
    /// It is deleted after its last consumer left.
    pub auto_delete: bool,
    /// The session that owns an exclusive queue.
    pub exclusive: Option<SessionId>,
    /// Arguments of the declaration, with their `x-` prefix.
    pub arguments: Table,
    /// Classic: the one node that holds it. Quorum: the members that its Raft group is to have; at declaration the first of
    /// them is to lead.
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
    /// Exchange type, for example `topic`; see `routing::Kind`.
    pub kind: Name,
    /// The flag `durable` of the declaration.
    pub durable: bool,
    /// It is deleted after its last binding was removed.
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
    /// Set by operators: it limits what the other kind may set.
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
    /// Streams; accepted for compatibility, there are none yet.
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
    /// Of the matching policies of one scope, that with the highest priority applies.
    pub priority: i64,
    /// Keys as in RabbitMQ (`max-length`, `delivery-limit`, ...), checked when put.
    pub definition: Table,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRecord {
    /// Unique in the cluster.
    pub name: Name,
    /// None: no password login.
    pub password: Option<auth::PasswordHash>,
    /// User tags, for example `administrator`.
    pub tags: Vec<Name>,
    /// `max-connections`, `max-channels`.
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
    /// Name of the topic exchange; the others are not restricted by it.
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
    /// It has a vote in the metadata group.
    pub voter: bool,
    /// It is in maintenance mode.
    pub maintenance: bool,
}

/// A change of the tree. Each is checked again when it is applied: what two clients race for, the log decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// First entry of a new cluster: default vhost `/`, its exchanges, the default user.
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
        /// Text for people.
        description: Name,
        /// Tags of the vhost, which the broker does not interpret.
        tags: Vec<Name>,
    },
    /// Deletes a vhost with everything in it.
    DeleteVhost {
        /// Name of the vhost.
        name: Name,
    },
    /// Creates a user, or replaces password, tags and limits; permissions stay.
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
    /// `exchange: None` clears all of the user's in that vhost.
    DeleteTopicPermission {
        /// Name of the user.
        user: Name,
        /// Name of the vhost.
        vhost: Name,
        /// Name of the exchange.
        exchange: Option<Name>,
    },
    /// `value: None` clears the limit.
    SetUserLimit {
        /// Name of the user.
        user: Name,
        /// `max-connections` or `max-channels`.
        limit: Name,
        /// A negative number is no limit.
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
    /// `id` of the record is ignored: the log index becomes the id.
    DeclareQueue(QueueRecord),
    /// `id` guards against deleting a namesake made since; None deletes whatever has the name.
    DeleteQueue {
        /// Vhost of the queue.
        vhost: Name,
        /// Name of the queue.
        name: Name,
        /// The queue that the client meant.
        id: Option<QueueId>,
    },
    /// Changes nothing. A shard that has applied it has applied everything that was committed before it was proposed: a
    /// read barrier.
    Barrier {},
    /// The session is over: its exclusive queues go.
    EndSession {
        /// The session that ended.
        session: SessionId,
    },
    /// A life of a node is over: exclusive queues of its sessions, non-durable classic queues on it and their bindings go.
    EndIncarnation {
        /// The node that ended or restarted.
        node: NodeId,
        /// The run that is over.
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
    /// The members that a quorum queue is to have, whatever it has now.
    SetQueueMembers {
        /// The queue.
        id: QueueId,
        /// The wanted members.
        members: Vec<NodeId>,
    },
    /// The same, decided when it had the members `from`: refused when it has others by now.
    ReplaceQueueMembers {
        /// The queue.
        id: QueueId,
        /// Members that the decision was based on.
        from: Vec<NodeId>,
        /// The wanted members.
        to: Vec<NodeId>,
    },
    /// As `DeleteNode`, and for good: the id is not taken in again.
    ForgetNode {
        /// The member.
        id: NodeId,
    },
    /// The same, unless a queue has got the node as a member since the change at `seen`: whoever asks has looked at the queues
    /// that there were then.
    ForgetFreeNode {
        /// The member.
        id: NodeId,
        /// Index of the last change that the requester had applied.
        seen: u64,
    },
    /// Removes a node for good, whatever only it has a copy of, and takes in the one that came back under its name with an empty
    /// data directory.
    ReplaceNode {
        /// The member that lost its data directory.
        old: NodeId,
        /// The same node with its new id.
        new: NodeRecord,
    },
    /// Where a node is (a rack, an availability zone); empty: nobody says.
    SetZone {
        /// The member.
        id: NodeId,
        /// Name of the zone.
        zone: Name,
    },
    /// The type of a vhost's queues that do not say theirs; None: classic.
    SetDefaultQueueType {
        /// Name of the vhost.
        vhost: Name,
        /// The queue type.
        kind: Option<QueueType>,
    },
    /// `value: None` clears the limit.
    SetVhostLimit {
        /// Name of the vhost.
        vhost: Name,
        /// `max-connections` or `max-queues`.
        limit: Name,
        /// A negative number is no limit.
        value: Option<i64>,
    },
    /// A protected vhost cannot be deleted.
    ProtectVhost {
        /// Name of the vhost.
        vhost: Name,
        /// True protects, false releases.
        on: bool,
    },
    /// `value` is JSON.
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
    /// The time that a queue may be unused (`x-expires`), whatever it was declared with; None: for ever.
    SetQueueExpires {
        /// The queue.
        id: QueueId,
        /// The time in milliseconds.
        expires_ms: Option<u64>,
    },
    /// What subscribers of an MQTT topic get first, as a message container; None: nothing any more.
    Retain {
        /// Vhost of the topic.
        vhost: Name,
        /// Topic name in MQTT's form.
        topic: Name,
        /// The retained message.
        message: Option<Bytes>,
    },
    /// What is published and delivered in a vhost is told to its trace exchange.
    TraceVhost {
        /// Name of the vhost.
        vhost: Name,
        /// True begins tracing, false ends it.
        on: bool,
    },
    /// A feature flag ([`features`]); there is no way back. Of a new cluster: whoever asks has seen that its founders know it.
    EnableFeature {
        /// Name of the flag.
        name: Name,
    },
    /// The same at any time: refused when a node is a member by then that is not among those that know it.
    EnableKnownFeature {
        /// Name of the flag.
        name: Name,
        /// Members that announced the flag.
        known_by: Vec<NodeId>,
    },
}

/// What an applied change did.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeResult {
    /// It was made, changed or removed.
    Changed,
    /// It was so already (declare or bind again, unbind what is not there).
    AsBefore,
    /// The queue, made by this change or there before.
    Queue {
        /// The queue as it is now.
        record: Arc<QueueRecord>,
        /// True if this change created it.
        created: bool,
    },
}

/// Why a change was refused. `Display` is the text RabbitMQ's clients match on.
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
    /// 400 over HTTP: a definition, pattern or name that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The metadata group has no leader that this node can reach, or the answer did not come in time.
    #[error("{0}")]
    Unavailable(String),
}
