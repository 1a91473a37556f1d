//! Feature flags: what a cluster may do only when every node of it understands it (C3, O8). Off in a cluster that an older
//! program founded until somebody turns them on; a new cluster has all that its founders know from the start.
//!
//! The tree stores flags by name, whichever they are: what comes of a change never depends on the program that applies
//! it. A program that meets a flag which it does not know ends ([`Version::misfit`]).

use crate::apply::check_name;
use crate::{ChangeError, ChangeResult, Name, Tree, limits};
use env::NodeId;

/// A feature flag that a program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name in the API and in stored metadata; never changed.
    pub name: &'static str,
    /// Text for people.
    pub description: &'static str,
}

/// Changes of the tree that programs before 0.2 cannot read.
pub const RUNTIME_PARAMETERS: Feature = Feature {
    name: "runtime_parameters",
    description: "Global parameters; default queue type, limits and deletion protection of virtual hosts",
};

/// Changes that came with MQTT sessions which outlive a restart.
pub const MQTT_STATE: Feature = Feature {
    name: "mqtt_state",
    description: "MQTT: retained messages in the cluster, sessions whose expiry changes",
};

/// Frames between nodes that programs before this feature cannot read.
pub const MQTT_CLUSTER: Feature = Feature {
    name: "mqtt_cluster",
    description: "MQTT: subscriptions and client ids of connections count on every node",
};

/// A change of the tree that came with it.
pub const VHOST_TRACING: Feature = Feature {
    name: "vhost_tracing",
    description: "Tracing of virtual hosts (amq.rabbitmq.trace)",
};

/// Two changes' content that came with it: the tree notes which nodes got queues, and forgets a node only when it got none.
pub const NODE_REMOVAL: Feature = Feature {
    name: "node_removal",
    description: "A node is forgotten only if no queue was placed on it meanwhile",
};

/// A change of the tree that came with it.
pub const LOST_QUEUES: Feature = Feature {
    name: "lost_queues",
    description: "A node that lost its data directory is replaced at once; queues that only it had are kept as lost",
};

/// A request to a queue, and what its replicas make of it.
pub const MQTT_SUCCESSION: Feature = Feature {
    name: "mqtt_succession",
    description: "MQTT: queues know the connections of a session apart, and keep its order from one to the next",
};

/// A request to a queue and an outcome that programs before this feature cannot read.
pub const CHANNEL_PREFETCH: Feature = Feature {
    name: "channel_prefetch",
    description: "AMQP 0.9.1: what a channel's prefetch has no room for goes back to its classic queue",
};

/// Frames between nodes that programs before this feature cannot read.
pub const CLUSTER_LIMITS: Feature = Feature {
    name: "cluster_limits",
    description: "Limits of users and virtual hosts on connections and channels count in the whole cluster",
};

/// Frames between nodes that programs before this feature cannot read.
pub const MQTT_WILLS: Feature = Feature {
    name: "mqtt_wills",
    description: "MQTT: wills of clients whose node dies are published by another one",
};

/// An argument of bindings: programs before this feature cannot undo one that has it.
pub const MQTT_FENCING: Feature = Feature {
    name: "mqtt_fencing",
    description: "MQTT: what an earlier connection of a session asked for cannot undo a later one's subscriptions",
};

/// A request to a queue and its answer, which programs before this feature cannot read.
pub const MQTT_CONTINUITY: Feature = Feature {
    name: "mqtt_continuity",
    description: "MQTT: a session's queue tells a node whether the session has been elsewhere since",
};

/// Frames between nodes that versions before this feature cannot read.
pub const MQTT_HANDOVER: Feature = Feature {
    name: "mqtt_handover",
    description: "MQTT: the packet identifiers of received QoS 2 messages move with a session to another node",
};

/// A password hash that programs before this feature cannot read.
pub const PASSWORD_MD5: Feature = Feature {
    name: "password_md5",
    description: "Users' password hashes of rabbit_password_hashing_md5, as RabbitMQ before 3.6 had them",
};

/// All of them, by name.
pub const KNOWN: &[Feature] = &[
    CHANNEL_PREFETCH,
    CLUSTER_LIMITS,
    LOST_QUEUES,
    MQTT_CLUSTER,
    MQTT_CONTINUITY,
    MQTT_FENCING,
    MQTT_HANDOVER,
    MQTT_STATE,
    MQTT_SUCCESSION,
    MQTT_WILLS,
    NODE_REMOVAL,
    PASSWORD_MD5,
    RUNTIME_PARAMETERS,
    VHOST_TRACING,
];

/// Flags that a node may have on which tells nothing of its program, because that is older than the telling.
pub const UNTOLD: &[Feature] = &[MQTT_CLUSTER, MQTT_STATE, RUNTIME_PARAMETERS, VHOST_TRACING];

/// The program that runs a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// As `1.2.3`.
    pub version: &'static str,
    /// The flags that it knows, by name.
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
    /// Returns true if this program can run in a cluster that has enabled the flag.
    pub fn knows(&self, name: &str) -> bool {
        self.features.iter().any(|f| f.name == name)
    }

    /// Why this program cannot be of a cluster with these flags on; None: it can.
    pub fn misfit<'a>(&self, enabled: impl IntoIterator<Item = &'a str>) -> Option<String> {
        misfit(self.version, |name| self.knows(name), enabled)
    }

    /// What others are told of it.
    pub fn facts(&self) -> VersionFacts {
        VersionFacts {
            version: self.version.into(),
            features: self.features.iter().map(|f| f.name.into()).collect(),
        }
    }
}

/// What a node tells of its program: perhaps of another version, so names only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionFacts {
    /// Version of the program, for error texts and listings.
    pub version: Name,
    /// The flags that it knows.
    pub features: Vec<Name>,
}

impl VersionFacts {
    /// Returns true if the program announced the flag.
    pub fn knows(&self, name: &str) -> bool {
        self.features.iter().any(|f| &**f == name)
    }

    /// As [`Version::misfit`].
    pub fn misfit<'a>(&self, enabled: impl IntoIterator<Item = &'a str>) -> Option<String> {
        misfit(&self.version, |name| self.knows(name), enabled)
    }
}

fn misfit<'a>(
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

impl Tree {
    /// Flags that are on, by name; also those that the program does not know.
    pub fn enabled_features(&self) -> impl Iterator<Item = &Name> {
        self.features.iter()
    }

    /// Returns true if the flag is enabled in this cluster.
    pub fn feature_enabled(&self, name: &str) -> bool {
        self.features.contains(name)
    }

    pub(crate) fn enable_feature(&mut self, name: &Name) -> Result<ChangeResult, ChangeError> {
        check_name("feature flag", name)?;
        if self.features.contains(name) {
            return Ok(ChangeResult::AsBefore);
        }
        if self.features.len() >= limits::FEATURES {
            return Err(ChangeError::PreconditionFailed(format!(
                "a cluster has at most {} feature flags",
                limits::FEATURES
            )));
        }
        self.features.insert(name.clone());
        Ok(ChangeResult::Changed)
    }

    /// As [`Tree::enable_feature`], while every member is among those that were found to know the flag.
    pub(crate) fn enable_known_feature(
        &mut self,
        name: &Name,
        known_by: &[NodeId],
    ) -> Result<ChangeResult, ChangeError> {
        if self.features.contains(name) {
            return Ok(ChangeResult::AsBefore);
        }
        let lacking = self.nodes().filter(|n| !known_by.contains(&n.id));
        let lacking: Vec<Name> = lacking.map(|n| n.name.clone()).collect();
        match lacking.is_empty() {
            true => self.enable_feature(name),
            false => Err(not_supported(name, &lacking)),
        }
    }

    pub(crate) fn needs(&self, feature: Feature) -> Result<(), ChangeError> {
        if self.feature_enabled(feature.name) {
            return Ok(());
        }
        Err(ChangeError::PreconditionFailed(format!(
            "feature flag '{}' is off: turn it on when every node runs a version that knows it",
            feature.name
        )))
    }
}

/// Why a flag cannot be enabled: these nodes are not known to know it.
pub fn not_supported(name: &str, nodes: &[Name]) -> ChangeError {
    ChangeError::PreconditionFailed(format!(
        "feature flag '{name}' is not supported by node(s) {}: each must be up and run a version that knows it",
        nodes.join(", ")
    ))
}
