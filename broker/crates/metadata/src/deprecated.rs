//! Features that RabbitMQ deprecates, with the phase that they have in RabbitMQ 4.3. A node permits or denies each of
//! them by its configuration (`deprecated_features.permit.NAME`).

/// A deprecated feature of RabbitMQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeprecatedFeature {
    /// AMQP 1.0 addresses of version 1.
    AmqpAddressV1,
    /// AMQP 1.0 filter sets whose values are not described types.
    AmqpFilterSetBug,
    /// Mirrored classic queues.
    ClassicQueueMirroring,
    /// `basic.qos` with `global`: a prefetch limit for a whole channel.
    GlobalQos,
    /// Message rates in the HTTP API.
    ManagementMetricsCollection,
    /// The queue argument `x-queue-master-locator`.
    QueueMasterLocator,
    /// Nodes that keep metadata in memory only.
    RamNodeType,
    /// Queues that are neither durable nor exclusive.
    TransientNonexclQueues,
}

/// How far RabbitMQ 4.3 has removed a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeprecationPhase {
    /// Permitted unless the configuration denies it.
    PermittedByDefault,
    /// Denied unless the configuration permits it.
    DeniedByDefault,
    /// It does not exist any more.
    Removed,
}

impl DeprecationPhase {
    /// The name in the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            DeprecationPhase::PermittedByDefault => "permitted_by_default",
            DeprecationPhase::DeniedByDefault => "denied_by_default",
            DeprecationPhase::Removed => "removed",
        }
    }
}

impl DeprecatedFeature {
    /// All of them, ordered by name.
    pub const ALL: [DeprecatedFeature; 8] = [
        DeprecatedFeature::AmqpAddressV1,
        DeprecatedFeature::AmqpFilterSetBug,
        DeprecatedFeature::ClassicQueueMirroring,
        DeprecatedFeature::GlobalQos,
        DeprecatedFeature::ManagementMetricsCollection,
        DeprecatedFeature::QueueMasterLocator,
        DeprecatedFeature::RamNodeType,
        DeprecatedFeature::TransientNonexclQueues,
    ];

    /// The name in the configuration and in the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            DeprecatedFeature::AmqpAddressV1 => "amqp_address_v1",
            DeprecatedFeature::AmqpFilterSetBug => "amqp_filter_set_bug",
            DeprecatedFeature::ClassicQueueMirroring => "classic_queue_mirroring",
            DeprecatedFeature::GlobalQos => "global_qos",
            DeprecatedFeature::ManagementMetricsCollection => "management_metrics_collection",
            DeprecatedFeature::QueueMasterLocator => "queue_master_locator",
            DeprecatedFeature::RamNodeType => "ram_node_type",
            DeprecatedFeature::TransientNonexclQueues => "transient_nonexcl_queues",
        }
    }

    /// The feature with this name.
    pub fn from_name(name: &str) -> Option<DeprecatedFeature> {
        DeprecatedFeature::ALL
            .into_iter()
            .find(|f| f.name() == name)
    }

    /// The description, for users.
    pub fn description(self) -> &'static str {
        match self {
            DeprecatedFeature::AmqpAddressV1 => "AMQP 1.0 addresses of version 1",
            DeprecatedFeature::AmqpFilterSetBug => {
                "AMQP 1.0 filter sets whose values are not described types"
            }
            DeprecatedFeature::ClassicQueueMirroring => "Mirrored classic queues",
            DeprecatedFeature::GlobalQos => {
                "basic.qos with global=true limits a channel's classic queue consumers together"
            }
            DeprecatedFeature::ManagementMetricsCollection => "Message rates in the HTTP API",
            DeprecatedFeature::QueueMasterLocator => "The queue argument x-queue-master-locator",
            DeprecatedFeature::RamNodeType => "Nodes that keep metadata in memory only",
            DeprecatedFeature::TransientNonexclQueues => {
                "Queues that are neither durable nor exclusive end with their node"
            }
        }
    }

    /// The phase in RabbitMQ 4.3.
    pub fn phase(self) -> DeprecationPhase {
        match self {
            DeprecatedFeature::AmqpAddressV1
            | DeprecatedFeature::AmqpFilterSetBug
            | DeprecatedFeature::GlobalQos
            | DeprecatedFeature::QueueMasterLocator
            | DeprecatedFeature::TransientNonexclQueues => DeprecationPhase::DeniedByDefault,
            DeprecatedFeature::ManagementMetricsCollection => DeprecationPhase::PermittedByDefault,
            DeprecatedFeature::ClassicQueueMirroring | DeprecatedFeature::RamNodeType => {
                DeprecationPhase::Removed
            }
        }
    }

    /// Whether the feature is permitted without a setting.
    pub fn is_permitted_by_default(self) -> bool {
        self.phase() == DeprecationPhase::PermittedByDefault
    }

    /// Whether a setting can change that. The others are not implemented, or are always there.
    pub fn is_selectable(self) -> bool {
        matches!(
            self,
            DeprecatedFeature::GlobalQos
                | DeprecatedFeature::QueueMasterLocator
                | DeprecatedFeature::TransientNonexclQueues
        )
    }

    /// The error for its use where it is denied. Clients know the text from RabbitMQ.
    pub fn denial(self) -> String {
        let name = self.name();
        format!(
            "Feature `{name}` is deprecated.\nBy default, this feature is not permitted anymore.\nThe feature will be \
             removed from a future major RabbitMQ version, regardless of the configuration; actual version to be \
             determined.\nTo continue using this feature when it is not permitted by default, set the following parameter \
             in your configuration:\n    \"deprecated_features.permit.{name} = true\""
        )
    }
}

/// The deprecated features that a node permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermittedFeatures([bool; DeprecatedFeature::ALL.len()]);

impl Default for PermittedFeatures {
    /// As RabbitMQ 4.3 without a setting.
    fn default() -> PermittedFeatures {
        PermittedFeatures(DeprecatedFeature::ALL.map(DeprecatedFeature::is_permitted_by_default))
    }
}

impl PermittedFeatures {
    /// Every feature that can be permitted.
    pub fn all() -> PermittedFeatures {
        let is_permitted = |f: DeprecatedFeature| f.is_permitted_by_default() || f.is_selectable();
        PermittedFeatures(DeprecatedFeature::ALL.map(is_permitted))
    }

    /// Whether the node permits the feature.
    pub fn contains(&self, feature: DeprecatedFeature) -> bool {
        self.0[feature as usize]
    }

    /// Permits or denies the feature. No effect if the feature is not selectable.
    pub fn set(&mut self, feature: DeprecatedFeature, is_permitted: bool) {
        if feature.is_selectable() {
            self.0[feature as usize] = is_permitted;
        }
    }
}
