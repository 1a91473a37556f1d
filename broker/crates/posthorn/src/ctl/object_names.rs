//! Names of API objects for error texts: `/api/queues/%2F/orders` is queue 'orders' in vhost '/'.

/// Kinds whose path is `KIND/VHOST/NAME`.
const IN_VHOST: &[(&str, &str)] = &[
    ("queues", "queue"),
    ("exchanges", "exchange"),
    ("policies", "policy"),
    ("operator-policies", "operator policy"),
];

/// Kinds whose path is `KIND/NAME`.
const IN_CLUSTER: &[(&str, &str)] = &[
    ("vhosts", "vhost"),
    ("users", "user"),
    ("nodes", "node"),
    ("connections", "connection"),
    ("channels", "channel"),
    ("feature-flags", "feature flag"),
    ("global-parameters", "global parameter"),
];

/// The object at a path below `/api`.
pub(crate) fn object_name(elements: &[&str]) -> String {
    let find = |kinds: &[(&'static str, &'static str)], path: &str| {
        kinds
            .iter()
            .find(|(p, _)| *p == path)
            .map(|(_, kind)| *kind)
    };
    match elements {
        ["queues", "quorum", "replicas", "on", node, ..] => format!("node '{node}'"),
        ["queues", "quorum", vhost, name, "status" | "replicas", ..]
        | ["stream", vhost, name, "status" | "tracking", ..] => {
            format!("queue '{name}' in vhost '{vhost}'")
        }
        ["permissions" | "topic-permissions", vhost, user, ..] => {
            format!("permissions of user '{user}' in vhost '{vhost}'")
        }
        [kind, vhost] if find(IN_VHOST, kind).is_some() => format!("vhost '{vhost}'"),
        [kind, vhost, name, ..] if find(IN_VHOST, kind).is_some() => {
            let kind = find(IN_VHOST, kind).unwrap_or_default();
            let name = if *name == "amq.default" { "" } else { name };
            format!("{kind} '{name}' in vhost '{vhost}'")
        }
        [kind, name, ..] if find(IN_CLUSTER, kind).is_some() => {
            format!("{} '{name}'", find(IN_CLUSTER, kind).unwrap_or_default())
        }
        other => format!("/api/{}", other.join("/")),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn paths_are_named_as_objects() {
        for (elements, name) in [
            (&["queues", "/", "q"][..], "queue 'q' in vhost '/'"),
            (&["queues", "/", "q", "get"], "queue 'q' in vhost '/'"),
            (&["queues", "v"], "vhost 'v'"),
            (
                &["queues", "quorum", "/", "q", "status"],
                "queue 'q' in vhost '/'",
            ),
            (
                &["queues", "quorum", "replicas", "on", "n0", "grow"],
                "node 'n0'",
            ),
            (
                &["exchanges", "/", "amq.default", "publish"],
                "exchange '' in vhost '/'",
            ),
            (&["users", "a"], "user 'a'"),
            (
                &["permissions", "v", "a"],
                "permissions of user 'a' in vhost 'v'",
            ),
            (&["overview"], "/api/overview"),
        ] {
            assert_eq!(object_name(elements), name);
        }
    }
}
