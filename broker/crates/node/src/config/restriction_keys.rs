//! Keys that limit declarations by clients of the node.

use super::Config;
use super::keys::{BOOL, ConfigKey, number};
use super::values::parse_bool;
use metadata::QueueType;
use metadata::deprecated::DeprecatedFeature;

const COUNT: &str = "1 to 1000000000, or infinity";

/// Parses a limit. The outer `None`: invalid.
fn limit(text: &str) -> Option<Option<u64>> {
    match text {
        "infinity" => Some(None),
        text => number(text, 1, 1_000_000_000).map(Some),
    }
}

fn set_queue_type(config: &mut Config, kind: QueueType, text: &str) -> Option<()> {
    let is_enabled = parse_bool(text)?;
    let disabled = &mut config.restrictions.disabled_queue_types;
    disabled.retain(|k| *k != kind);
    if !is_enabled {
        disabled.push(kind);
    }
    Some(())
}

/// A value that no feature could get is invalid, so that no setting is without an effect.
fn set_deprecated(config: &mut Config, name: &str, text: &str) -> Option<()> {
    let is_permitted = parse_bool(text)?;
    let feature = DeprecatedFeature::from_name(name)?;
    let is_possible = feature.is_selectable() || is_permitted == feature.is_permitted_by_default();
    config.restrictions.permitted.set(feature, is_permitted);
    is_possible.then_some(())
}

pub(super) const RESTRICTION_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "cluster_exchange_limit",
        accepts: COUNT,
        default: "infinity",
        doc: "Most exchanges in the cluster, including those that every virtual host has; clients of this node cannot \
              declare more. Set it equally on all nodes.",
        set: |c, _, v| limit(v).map(|n| c.restrictions.max_exchanges = n),
    },
    ConfigKey {
        name: "cluster_queue_limit",
        accepts: COUNT,
        default: "infinity",
        doc: "Most queues in the cluster; clients of this node cannot declare more. Set it equally on all nodes.",
        set: |c, _, v| limit(v).map(|n| c.restrictions.max_queues = n),
    },
    ConfigKey {
        name: "vhost_max",
        accepts: COUNT,
        default: "infinity",
        doc: "Most virtual hosts in the cluster; more cannot be created through this node. Set it equally on all nodes.",
        set: |c, _, v| limit(v).map(|n| c.restrictions.max_vhosts = n),
    },
    ConfigKey {
        name: "queue_types.classic.enabled",
        accepts: BOOL,
        default: "true",
        doc: "Clients of this node can declare classic queues.",
        set: |c, _, v| set_queue_type(c, QueueType::Classic, v),
    },
    ConfigKey {
        name: "queue_types.quorum.enabled",
        accepts: BOOL,
        default: "true",
        doc: "Clients of this node can declare quorum queues.",
        set: |c, _, v| set_queue_type(c, QueueType::Quorum, v),
    },
    ConfigKey {
        name: "queue_types.stream.enabled",
        accepts: BOOL,
        default: "true",
        doc: "Clients of this node can declare streams.",
        set: |c, _, v| set_queue_type(c, QueueType::Stream, v),
    },
    ConfigKey {
        name: "exchange_types.local_random.enabled",
        accepts: BOOL,
        default: "true",
        doc: "Clients of this node can declare exchanges of the type `x-local-random`.",
        set: |c, _, v| parse_bool(v).map(|on| c.restrictions.permits_local_random = on),
    },
    ConfigKey {
        name: "deprecated_features.permit.*",
        accepts: "true or false for `transient_nonexcl_queues`, `global_qos` and `queue_master_locator`; true for \
                  `management_metrics_collection`; false for other deprecated features of RabbitMQ 4.3",
        default: "",
        doc: "Permits or denies a deprecated feature for clients of this node; see \
              [Compatibility](../compatibility.md#deprecated-features).",
        set: set_deprecated,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;

    fn set(config: &mut Config, name: &str, value: &str) -> bool {
        let key = keys().find(|k| match k.name.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => k.name == name,
        });
        let key = key.expect("a key");
        let rest = &name[key.name.trim_end_matches('*').len()..];
        (key.set)(config, rest, value).is_some()
    }

    #[test]
    fn deprecated_features_are_permitted_and_denied_where_that_has_an_effect() {
        for (name, value, is_accepted) in [
            ("transient_nonexcl_queues", "true", true),
            ("transient_nonexcl_queues", "false", true),
            ("global_qos", "true", true),
            ("global_qos", "perhaps", false),
            ("ram_node_type", "false", true),
            ("ram_node_type", "true", false),
            ("amqp_address_v1", "true", false),
            ("management_metrics_collection", "true", true),
            ("management_metrics_collection", "false", false),
            ("no_such_feature", "true", false),
        ] {
            let mut config = Config::default();
            let written = format!("deprecated_features.permit.{name}");
            assert_eq!(
                set(&mut config, &written, value),
                is_accepted,
                "{name} {value}"
            );
            if let Some(feature) = DeprecatedFeature::from_name(name).filter(|_| is_accepted) {
                let is_permitted = config.restrictions.permitted.contains(feature);
                assert_eq!(is_permitted, value == "true", "{name} {value}");
            }
        }
    }

    #[test]
    fn limits_and_types_are_set() {
        let mut config = Config::default();
        for (name, value) in [
            ("cluster_exchange_limit", "200"),
            ("cluster_queue_limit", "1"),
            ("vhost_max", "7"),
            ("queue_types.classic.enabled", "false"),
            ("queue_types.stream.enabled", "false"),
            ("queue_types.classic.enabled", "true"),
            ("exchange_types.local_random.enabled", "false"),
        ] {
            assert!(set(&mut config, name, value), "{name}");
        }
        let restrictions = &config.restrictions;
        assert_eq!(
            (
                restrictions.max_exchanges,
                restrictions.max_queues,
                restrictions.max_vhosts
            ),
            (Some(200), Some(1), Some(7))
        );
        assert_eq!(restrictions.disabled_queue_types, [QueueType::Stream]);
        assert!(!restrictions.permits_local_random);
        assert!(set(&mut config, "vhost_max", "infinity"));
        assert_eq!(config.restrictions.max_vhosts, None);
        for invalid in ["0", "-1", "many"] {
            assert!(!set(&mut config, "cluster_queue_limit", invalid));
        }
    }
}
