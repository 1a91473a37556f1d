//! Feature flags: changes of formats on disk or between nodes that a cluster may use only when every node understands
//! them. A flag is disabled in a cluster that an older version founded until an administrator enables it. A new cluster
//! starts with all flags that its founders know.
//!
//! The tree stores any flag by name, so the result of a change never depends on the version that applies it. A node
//! that finds an enabled flag that it does not know ends ([`Version::explain_incompatibility`]).

use crate::apply::check_name;
use crate::{ChangeError, ChangeResult, Name, Tree, limits};
use env::NodeId;
use ids::QuorumFeatures;
use routing::ExchangeType;

/// A feature flag that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name in the API and in stored metadata. It never changes.
    pub name: &'static str,
    /// Description for users.
    pub description: &'static str,
}

/// The formats on disk and between nodes of version 0.2, enabled from the start in every cluster. Nodes of development
/// versions before 0.2 do not know the flag and cannot join.
pub const BASELINE: Feature = Feature {
    name: "baseline_0_2",
    description: "Formats on disk and between nodes of version 0.2",
};

/// The metadata has the addresses under which clients reach each node ([`crate::Change::PutClientAddresses`]).
pub const CLIENT_ADDRESSES: Feature = Feature {
    name: "client_addresses",
    description: "Nodes state the addresses of their client listeners in the metadata",
};

/// Queues can be streams: a queue type in the metadata, and frames between replicas of a stream and its sessions.
pub const STREAM_QUEUES: Feature = Feature {
    name: "stream_queues",
    description: "Queues can be streams (x-queue-type: stream)",
};

/// Nodes can have different numbers of shards: frames go to the receiver's shard that owns their group or queue. Nodes
/// that do not know the flag refuse every link to a node with another number.
pub const SHARDS_PER_NODE: Feature = Feature {
    name: "shards_per_node",
    description: "Nodes can have different numbers of shards",
};

/// A queue tells sessions of other nodes whether a consumer is active: an event between nodes.
pub const CONSUMER_ACTIVITY: Feature = Feature {
    name: "consumer_activity",
    description: "Receivers of AMQP 1.0 are told whether they are the single active consumer",
};

/// Quorum queues have 32 strict priority levels: a command in the log of a queue, and the checkpoints behind it. Without
/// the flag they have two weighted levels.
pub const QUORUM_STRICT_PRIORITIES: Feature = Feature {
    name: "quorum_strict_priorities",
    description: "Quorum queues have 32 strict priority levels",
};

/// Quorum queues count failed deliveries apart from all returns: a command in the log of a queue, the checkpoints behind
/// it, and a field of deliveries between nodes. Without the flag each requeue that a client asks for counts as a failed
/// delivery.
pub const QUORUM_DELIVERY_COUNTS: Feature = Feature {
    name: "quorum_delivery_counts",
    description: "Only failed deliveries count towards the delivery limit of quorum queues",
};

/// Consistent-hash exchanges select a queue in logarithmic time. All nodes must select the same queue for a message, and
/// it is another one than before.
pub const CONSISTENT_HASH_TREE: Feature = Feature {
    name: "consistent_hash_tree",
    description: "Consistent-hash exchanges select a queue in logarithmic time; messages of most keys change their queue once",
};

/// Exchanges of the types `x-modulus-hash` and `x-random`, whose names older versions do not know in the metadata.
pub const MODULUS_AND_RANDOM_EXCHANGES: Feature = Feature {
    name: "modulus_and_random_exchanges",
    description: "Exchange types x-modulus-hash and x-random",
};

/// Quorum queues end consumers that do not acknowledge in time: a command in the log of a queue, and an event between
/// nodes. Without the flag the channel closes, as for other queue types.
pub const QUORUM_CONSUMER_TIMEOUTS: Feature = Feature {
    name: "quorum_consumer_timeouts",
    description: "Quorum queues end consumers that do not acknowledge in time",
};

/// Quorum queues delay returned messages: a setting in a command of a queue's log, the checkpoints behind it, and a frame
/// between nodes. Without the flag returned messages are ready at once, and queues and policies with the settings are
/// treated as by older versions.
pub const QUORUM_DELAYED_RETRY: Feature = Feature {
    name: "quorum_delayed_retry",
    description: "Quorum queues can delay returned messages (x-delayed-retry-type)",
};

/// Messages that are delivered at a later time: exchanges of the type `x-delayed-message`, whose name older versions do
/// not know in the metadata, and quorum queues that hold a published message back, in a command of a queue's log and the
/// checkpoints behind it.
pub const SCHEDULED_DELIVERY: Feature = Feature {
    name: "scheduled_delivery",
    description: "Exchange type x-delayed-message; quorum queues hold messages back until their delay is over",
};

/// Declarations and consumers are refused for the same arguments as in RabbitMQ 4.3. All nodes must refuse the same
/// declarations, because each applies them on its own.
pub const QUEUE_ARGUMENT_CHECKS: Feature = Feature {
    name: "queue_argument_checks",
    description: "Arguments of queues and consumers are checked as in RabbitMQ 4.3",
};

/// Quorum queues recognise messages that are published again: settings in a command of a queue's log, and the checkpoints
/// behind it.
pub const PUBLISHER_DEDUPLICATION: Feature = Feature {
    name: "publisher_deduplication",
    description: "Quorum queues store a message once that is published again (x-message-deduplication)",
};

/// Virtual hosts and users have limits of the rates of messages and bytes, and virtual hosts one of channels: limits in the
/// metadata that older versions do not know, and a frame between shards.
pub const QUOTAS: Feature = Feature {
    name: "quotas",
    description: "Limits max-message-rate and max-byte-rate of virtual hosts and users, and max-channels of virtual hosts",
};

/// Quorum queues deliver the messages of each group in order and to one consumer at a time: the features in a command of
/// such a queue's log, and the checkpoints behind it.
pub const MESSAGE_GROUPS: Feature = Feature {
    name: "message_groups",
    description: "Quorum queues deliver messages of one group in order to one consumer at a time (x-message-groups)",
};

/// Messages are taken from a queue by their position, to delete or to move them: a request to a queue, which is in the
/// commands of a quorum queue's log.
pub const MESSAGE_MOVES: Feature = Feature {
    name: "message_moves",
    description: "Messages of classic and quorum queues can be deleted, moved and redriven",
};

/// Owners of queues tell when the oldest ready message of each was received: a frame between nodes.
pub const HEAD_MESSAGE_AGES: Feature = Feature {
    name: "head_message_ages",
    description: "Lists and metrics have the age of the oldest ready message of each queue",
};

/// Queues and the metadata continue after most of their nodes are lost, when an operator asks for it: a change of the
/// metadata that removes a lost node, and requests between nodes.
pub const MAJORITY_RECOVERY: Feature = Feature {
    name: "majority_recovery",
    description: "Metadata, quorum queues and streams can continue after a majority of their nodes is lost",
};

/// Consumers of classic and quorum queues have filters: a property of a consumer in requests between nodes, in the log of a
/// quorum queue and in its checkpoints, and a command in that log. Without the flag, filters have no effect on these queues.
pub const CONSUMER_FILTERS: Feature = Feature {
    name: "consumer_filters",
    description: "AMQP 1.0 receivers of classic and quorum queues can have filters",
};

/// Messages of streams are in backups: requests between nodes to read and to append chunks.
pub const STREAM_BACKUPS: Feature = Feature {
    name: "stream_backups",
    description: "Backups have the messages of streams",
};

/// Ready messages of quorum queues expire on time, also behind others: the features in a command of a queue's log, and the
/// checkpoints behind it. Without the flag a message expires when it is the first of its priority level.
pub const EXACT_EXPIRY: Feature = Feature {
    name: "exact_expiry",
    description: "Messages of quorum queues expire on time, also behind others",
};

/// Flags that this version knows, ordered by name. A later version that changes a format adds a flag and reads both
/// forms.
pub const KNOWN: &[Feature] = &[
    BASELINE,
    CLIENT_ADDRESSES,
    CONSISTENT_HASH_TREE,
    CONSUMER_ACTIVITY,
    CONSUMER_FILTERS,
    EXACT_EXPIRY,
    HEAD_MESSAGE_AGES,
    MAJORITY_RECOVERY,
    MESSAGE_GROUPS,
    MESSAGE_MOVES,
    MODULUS_AND_RANDOM_EXCHANGES,
    PUBLISHER_DEDUPLICATION,
    QUEUE_ARGUMENT_CHECKS,
    QUORUM_CONSUMER_TIMEOUTS,
    QUORUM_DELAYED_RETRY,
    QUORUM_DELIVERY_COUNTS,
    QUORUM_STRICT_PRIORITIES,
    QUOTAS,
    SCHEDULED_DELIVERY,
    SHARDS_PER_NODE,
    STREAM_BACKUPS,
    STREAM_QUEUES,
];

/// The version of a node, with the flags that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Version number, for example `1.2.3`.
    pub version: &'static str,
    /// The flags that this version knows, ordered by name.
    pub features: &'static [Feature],
}

impl Default for Version {
    fn default() -> Version {
        Version {
            version: env!("CARGO_PKG_VERSION"),
            features: KNOWN,
        }
    }
}

impl Version {
    /// Returns true if this version can run in a cluster that has enabled the flag.
    pub fn knows(&self, name: &str) -> bool {
        self.features.iter().any(|f| f.name == name)
    }

    /// Explains why this version cannot be in a cluster with these enabled flags. `None`: it can.
    pub fn explain_incompatibility<'a>(
        &self,
        enabled: impl IntoIterator<Item = &'a str>,
    ) -> Option<String> {
        explain_incompatibility(self.version, |name| self.knows(name), enabled)
    }

    /// The facts that a node announces to others.
    pub fn facts(&self) -> VersionFacts {
        VersionFacts {
            version: self.version.into(),
            features: self.features.iter().map(|f| f.name.into()).collect(),
        }
    }
}

/// The version that a node announces. It may be another version, so flags are names only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionFacts {
    /// Version number, for error texts and listings.
    pub version: Name,
    /// Names of the flags that it knows.
    pub features: Vec<Name>,
}

impl VersionFacts {
    /// Returns true if the version announced the flag.
    pub fn knows(&self, name: &str) -> bool {
        self.features.iter().any(|f| &**f == name)
    }

    /// Like [`Version::explain_incompatibility`].
    pub fn explain_incompatibility<'a>(
        &self,
        enabled: impl IntoIterator<Item = &'a str>,
    ) -> Option<String> {
        explain_incompatibility(&self.version, |name| self.knows(name), enabled)
    }
}

fn explain_incompatibility<'a>(
    version: &str,
    knows: impl Fn(&str) -> bool,
    enabled: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let enabled = enabled.into_iter();
    let unknown: Vec<&str> = enabled.filter(|name| !knows(name)).collect();
    if unknown.is_empty() {
        return None;
    }
    Some(format!(
        "version {version} does not know the feature flag(s) '{}', which this cluster has enabled: run a version that does",
        unknown.join("', '")
    ))
}

/// The flag that exchanges of this type need. `None`: every version knows the type.
pub(crate) fn needed_by(kind: ExchangeType) -> Option<Feature> {
    match kind {
        ExchangeType::ModulusHash | ExchangeType::Random => Some(MODULUS_AND_RANDOM_EXCHANGES),
        ExchangeType::DelayedMessage => Some(SCHEDULED_DELIVERY),
        ExchangeType::Direct
        | ExchangeType::Fanout
        | ExchangeType::Topic
        | ExchangeType::Headers
        | ExchangeType::ConsistentHash
        | ExchangeType::LocalRandom => None,
    }
}

impl Tree {
    /// Enabled flags ordered by name, including flags that this version does not know.
    pub fn enabled_features(&self) -> impl Iterator<Item = &Name> {
        self.features.iter()
    }

    /// Returns true if the flag is enabled in this cluster.
    pub fn feature_enabled(&self, name: &str) -> bool {
        self.features.contains(name)
    }

    /// The features of quorum queues that the cluster has enabled, without those that a queue has only by an argument.
    pub fn quorum_features(&self) -> QuorumFeatures {
        QuorumFeatures {
            strict_priorities: self.feature_enabled(QUORUM_STRICT_PRIORITIES.name),
            delivery_counts: self.feature_enabled(QUORUM_DELIVERY_COUNTS.name),
            delayed_retry: self.feature_enabled(QUORUM_DELAYED_RETRY.name),
            scheduled_delivery: self.feature_enabled(SCHEDULED_DELIVERY.name),
            deduplication: self.feature_enabled(PUBLISHER_DEDUPLICATION.name),
            message_groups: false,
            exact_expiry: self.feature_enabled(EXACT_EXPIRY.name),
        }
    }

    pub(crate) fn enable_feature(&mut self, name: &Name) -> Result<ChangeResult, ChangeError> {
        check_name("feature flag", name)?;
        if self.features.contains(name) {
            return Ok(ChangeResult::Unchanged);
        }
        if self.features.len() >= limits::FEATURES {
            return Err(ChangeError::PreconditionFailed(format!(
                "a cluster has at most {} feature flags",
                limits::FEATURES
            )));
        }
        self.features.insert(name.clone());
        if **name == *CONSISTENT_HASH_TREE.name {
            self.use_hash_trees();
        }
        Ok(ChangeResult::Changed)
    }

    /// Like [`Tree::enable_feature`], but refused if a member is not in `known_by`.
    pub(crate) fn enable_known_feature(
        &mut self,
        name: &Name,
        known_by: &[NodeId],
    ) -> Result<ChangeResult, ChangeError> {
        if self.features.contains(name) {
            return Ok(ChangeResult::Unchanged);
        }
        let lacking = self.nodes().filter(|n| !known_by.contains(&n.id));
        let lacking: Vec<Name> = lacking.map(|n| n.name.clone()).collect();
        match lacking.is_empty() {
            true => self.enable_feature(name),
            false => Err(not_supported(name, &lacking)),
        }
    }
}

/// The error if these nodes are not known to know a flag.
pub fn not_supported(name: &str, nodes: &[Name]) -> ChangeError {
    ChangeError::PreconditionFailed(format!(
        "feature flag '{name}' is not supported by node(s) {}: each must be up and run a version that knows it",
        nodes.join(", ")
    ))
}
