//! Feature flags: what a cluster may do only when every node of it understands it (O8). Off in a cluster that an older
//! program founded until somebody turns them on; a new cluster has all of them from the start.

use crate::{Done, Name, Refused, Tree};

/// A feature flag that this program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    pub name: &'static str,
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

/// All of them, by name.
pub const KNOWN: &[Feature] = &[MQTT_CLUSTER, MQTT_STATE, RUNTIME_PARAMETERS, VHOST_TRACING];

impl Tree {
    pub fn feature_enabled(&self, name: &str) -> bool {
        self.features.contains(name)
    }

    pub(crate) fn enable_feature(&mut self, name: &Name) -> Result<Done, Refused> {
        if !KNOWN.iter().any(|f| f.name == &**name) {
            return Err(Refused::Invalid(format!(
                "feature flag '{name}' is not known"
            )));
        }
        Ok(if self.features.insert(name.clone()) {
            Done::Changed
        } else {
            Done::AsBefore
        })
    }

    pub(crate) fn needs(&self, feature: Feature) -> Result<(), Refused> {
        if self.feature_enabled(feature.name) {
            return Ok(());
        }
        Err(Refused::PreconditionFailed(format!(
            "feature flag '{}' is off: turn it on when every node runs a version that knows it",
            feature.name
        )))
    }
}
