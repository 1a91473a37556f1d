//! The replicated tree (C1): vhosts, users, permissions, exchanges, queues, bindings, policies, members.
//!
//! [`Change`]s go through the metadata Raft group and are applied in order by [`Tree::apply`] on every node, on every
//! shard; sessions and the HTTP API read the resulting tree directly, without locks (docs/decisions).
#![forbid(unsafe_code)]

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

pub use codec::DecodeError;
pub use cursor::{
    BindingCursor, Cursor, ExchangeCursor, QueueCursor, QueuesById, SourceCursor, Step,
};
pub use globals::CLUSTER_NAME;
pub use ids::{DeadLettering, Name, Overflow, QueueId, QueueKind, QueueSettings, SessionId};
pub use placement::{LeaderLocator, PlacementWish};
pub use policies::EffectivePolicy;
pub use route::RouteResult;
pub use settings::{DEFAULT_DELIVERY_LIMIT, EffectiveSettings};
pub use traffic::Traffic;
pub use tree::{Right, Tree, TreeEvent, VhostRecord};

use bytes::Bytes;
use env::{Incarnation, NodeId};
use message::Table;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub struct QueueRecord {
    pub id: QueueId,
    pub vhost: Name,
    pub name: Name,
    pub kind: QueueKind,
    pub durable: bool,
    pub auto_delete: bool,
    /// The session that owns an exclusive queue.
    pub exclusive: Option<SessionId>,
    pub arguments: Table,
    /// Classic: the one node that holds it. Quorum: the members that its Raft group is to have; at declaration the first of
    /// them is to lead.
    pub members: Vec<NodeId>,
    /// User that declared it.
    pub declared_by: Name,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeRecord {
    pub vhost: Name,
    pub name: Name,
    pub kind: Name,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: Table,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    Queue(Name),
    Exchange(Name),
}

#[derive(Clone, Debug, PartialEq)]
pub struct BindingRecord {
    pub vhost: Name,
    pub source: Name,
    pub destination: Destination,
    pub routing_key: Name,
    pub arguments: Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyScope {
    User,
    Operator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApplyTo {
    All,
    Queues,
    ClassicQueues,
    QuorumQueues,
    Streams,
    Exchanges,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRecord {
    pub vhost: Name,
    pub name: Name,
    pub scope: PolicyScope,
    /// Regular expression, matched anywhere in the name.
    pub pattern: Name,
    pub apply_to: ApplyTo,
    pub priority: i64,
    /// Keys as in RabbitMQ (`max-length`, `delivery-limit`, ...), checked when put.
    pub definition: Table,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRecord {
    pub name: Name,
    /// None: no password login.
    pub password: Option<auth::PasswordHash>,
    pub tags: Vec<Name>,
    /// `max-connections`, `max-channels`.
    pub limits: Vec<(Name, i64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionRecord {
    pub user: Name,
    pub vhost: Name,
    pub configure: Name,
    pub write: Name,
    pub read: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPermissionRecord {
    pub user: Name,
    pub vhost: Name,
    pub exchange: Name,
    pub write: Name,
    pub read: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    pub id: NodeId,
    pub name: Name,
    /// host:port of its inter-node listener.
    pub address: Name,
    pub voter: bool,
    pub maintenance: bool,
}

/// A change of the tree. Each is checked again when it is applied: what two clients race for, the log decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// First entry of a new cluster: default vhost `/`, its exchanges, the default user.
    Bootstrap {
        cluster: Name,
        nodes: Vec<NodeRecord>,
        user: UserRecord,
    },
    PutVhost {
        name: Name,
        description: Name,
        tags: Vec<Name>,
    },
    DeleteVhost {
        name: Name,
    },
    PutUser(UserRecord),
    DeleteUser {
        name: Name,
    },
    PutPermission(PermissionRecord),
    DeletePermission {
        user: Name,
        vhost: Name,
    },
    PutTopicPermission(TopicPermissionRecord),
    /// `exchange: None` clears all of the user's in that vhost.
    DeleteTopicPermission {
        user: Name,
        vhost: Name,
        exchange: Option<Name>,
    },
    /// `value: None` clears the limit.
    SetUserLimit {
        user: Name,
        limit: Name,
        value: Option<i64>,
    },
    PutPolicy(PolicyRecord),
    DeletePolicy {
        vhost: Name,
        name: Name,
        scope: PolicyScope,
    },
    DeclareExchange(ExchangeRecord),
    DeleteExchange {
        vhost: Name,
        name: Name,
        if_unused: bool,
    },
    /// `id` of the record is ignored: the log index becomes the id.
    DeclareQueue(QueueRecord),
    /// `id` guards against deleting a namesake made since; None deletes whatever has the name.
    DeleteQueue {
        vhost: Name,
        name: Name,
        id: Option<QueueId>,
    },
    /// The session is over: its exclusive queues go.
    EndSession {
        session: SessionId,
    },
    /// A life of a node is over: exclusive queues of its sessions, non-durable classic queues on it and their bindings go.
    EndIncarnation {
        node: NodeId,
        incarnation: Incarnation,
    },
    Bind(BindingRecord),
    Unbind(BindingRecord),
    PutNode(NodeRecord),
    DeleteNode {
        id: NodeId,
    },
    SetMaintenance {
        id: NodeId,
        on: bool,
    },
    /// The members that a quorum queue is to have, whatever it has now.
    SetQueueMembers {
        id: QueueId,
        members: Vec<NodeId>,
    },
    /// The same, decided when it had the members `from`: refused when it has others by now.
    ReplaceQueueMembers {
        id: QueueId,
        from: Vec<NodeId>,
        to: Vec<NodeId>,
    },
    /// As `DeleteNode`, and for good: the id is not taken in again.
    ForgetNode {
        id: NodeId,
    },
    /// The same, unless a queue has got the node as a member since the change at `seen`: whoever asks has looked at the queues
    /// that there were then.
    ForgetFreeNode {
        id: NodeId,
        seen: u64,
    },
    /// Removes a node for good, whatever only it has a copy of, and takes in the one that came back under its name with an empty
    /// data directory.
    ReplaceNode {
        old: NodeId,
        new: NodeRecord,
    },
    /// Where a node is (a rack, an availability zone); empty: nobody says.
    SetZone {
        id: NodeId,
        zone: Name,
    },
    /// The type of a vhost's queues that do not say theirs; None: classic.
    SetDefaultQueueType {
        vhost: Name,
        kind: Option<QueueKind>,
    },
    /// `value: None` clears the limit.
    SetVhostLimit {
        vhost: Name,
        limit: Name,
        value: Option<i64>,
    },
    /// A protected vhost cannot be deleted.
    ProtectVhost {
        vhost: Name,
        on: bool,
    },
    /// `value` is JSON.
    PutGlobalParameter {
        name: Name,
        value: Name,
    },
    DeleteGlobalParameter {
        name: Name,
    },
    /// The time that a queue may be unused (`x-expires`), whatever it was declared with; None: for ever.
    SetQueueExpires {
        id: QueueId,
        expires_ms: Option<u64>,
    },
    /// What subscribers of an MQTT topic get first, as a message container; None: nothing any more.
    Retain {
        vhost: Name,
        topic: Name,
        message: Option<Bytes>,
    },
    /// What is published and delivered in a vhost is told to its trace exchange.
    TraceVhost {
        vhost: Name,
        on: bool,
    },
    /// A feature flag ([`features`]); there is no way back. Of a new cluster: whoever asks has seen that its founders know it.
    EnableFeature {
        name: Name,
    },
    /// The same at any time: refused when a node is a member by then that is not among those that know it.
    EnableKnownFeature {
        name: Name,
        known_by: Vec<NodeId>,
    },
}

/// What an applied change did.
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// It was made, changed or removed.
    Changed,
    /// It was so already (declare or bind again, unbind what is not there).
    AsBefore,
    /// The queue, made by this change or there before.
    Queue {
        record: Arc<QueueRecord>,
        created: bool,
    },
}

/// Why a change was refused. `Display` is the text RabbitMQ's clients match on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
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
