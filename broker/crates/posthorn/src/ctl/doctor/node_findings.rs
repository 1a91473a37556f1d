//! Checks of nodes: reachability, versions, alarms, certificates.

use super::{Finding, Severity, named};
use serde_json::Value as Json;
use std::collections::BTreeMap;

const SECONDS_PER_DAY: u64 = 86_400;

fn name(node: &Json) -> String {
    node["name"].as_str().unwrap_or_default().to_owned()
}

fn names<'a>(nodes: impl Iterator<Item = &'a Json>) -> Vec<String> {
    nodes.map(name).collect()
}

fn is_running(node: &&Json) -> bool {
    node["running"] == true
}

/// The answering node does not serve clients. A node in maintenance mode has its own finding.
pub(super) fn not_ready(readiness: &Json, nodes: &[Json]) -> Option<Finding> {
    let reason = readiness["reason"].as_str()?;
    let is_drained = nodes.iter().any(|node| node["being_drained"] == true);
    if readiness["status"] == "ok" || (reason == "draining" && is_drained) {
        return None;
    }
    Some(Finding {
        severity: Severity::Error,
        check: "ready",
        problem: "the node that answers does not serve clients".to_owned(),
        cause: reason.to_owned(),
        remedy: "wait while it joins or recovers; if that takes longer than a minute, look for errors in its log and check \
                 that it reaches the other nodes"
            .to_owned(),
        objects: Vec::new(),
    })
}

pub(super) fn nodes_down(nodes: &[Json]) -> Option<Finding> {
    let down = names(nodes.iter().filter(|node| !is_running(node)));
    let first = down.first()?;
    Some(Finding {
        severity: Severity::Error,
        check: "nodes_down",
        problem: format!("down: {}", named(&down)),
        cause: "the node that answers has no connection to it: its process ended, or the network between them is interrupted"
            .to_owned(),
        remedy: format!(
            "start the node and read the end of its log; if its machine or disk is lost, replace it with `posthorn ctl \
             forget_node {first}`"
        ),
        objects: down,
    })
}

/// Too few voters of the metadata group run: without a majority, nothing can be declared.
pub(super) fn metadata_at_risk(nodes: &[Json]) -> Option<Finding> {
    let voters: Vec<&Json> = nodes.iter().filter(|node| node["voter"] == true).collect();
    let running = voters.iter().filter(|node| is_running(node)).count();
    let majority = voters.len() / 2 + 1;
    if running == voters.len() || running > majority {
        return None;
    }
    let is_lost = running < majority;
    Some(Finding {
        severity: Severity::Error,
        check: "metadata_quorum",
        problem: match is_lost {
            true => "the cluster's metadata has no majority".to_owned(),
            false => "the cluster's metadata loses its majority if one more node fails".to_owned(),
        },
        cause: format!(
            "{running} of {} nodes that vote run, and {majority} are needed",
            voters.len()
        ),
        remedy: match is_lost {
            true => {
                "start the nodes that are down, or see `posthorn ctl recover_majority --help` if they are lost for good; until \
                 then, nothing can be declared and users cannot be changed"
            }
            false => "start the nodes that are down, and do not stop another node before",
        }
        .to_owned(),
        objects: names(voters.into_iter().filter(|node| !is_running(node))),
    })
}

pub(super) fn drained(nodes: &[Json]) -> Option<Finding> {
    let drained = names(nodes.iter().filter(|node| node["being_drained"] == true));
    if drained.is_empty() {
        return None;
    }
    Some(Finding {
        severity: Severity::Warning,
        check: "maintenance",
        problem: format!("in maintenance mode: {}", named(&drained)),
        cause: "an operator ran `maintenance on` or `stop_app`; the node has no leaders and refuses clients"
            .to_owned(),
        remedy: "run `posthorn ctl maintenance off` at the address of the node when the work is done".to_owned(),
        objects: drained,
    })
}

pub(super) fn versions(nodes: &[Json]) -> Option<Finding> {
    let mut by_version: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes.iter().filter(is_running) {
        if let Some(version) = node["product_version"].as_str() {
            by_version.entry(version).or_default().push(name(node));
        }
    }
    if by_version.len() < 2 {
        return None;
    }
    let shown = by_version
        .iter()
        .map(|(version, nodes)| format!("{version} on {}", named(nodes)));
    Some(Finding {
        severity: Severity::Warning,
        check: "versions",
        problem: format!("nodes run different versions: {}", shown.collect::<Vec<_>>().join("; ")),
        cause: "an upgrade is in progress or was interrupted".to_owned(),
        remedy: "upgrade the remaining nodes; feature flags of the newer version stay disabled until then".to_owned(),
        objects: by_version.into_values().flatten().collect(),
    })
}

pub(super) fn alarms(check: &Json) -> Vec<Finding> {
    let alarms = check["alarms"].as_array().into_iter().flatten();
    let finding = |alarm: &Json| {
        let node = alarm["node"].as_str().unwrap_or_default();
        let resource = alarm["resource"].as_str().unwrap_or_default();
        let (problem, cause, remedy) = match resource {
            "memory" => (
                "publishers are blocked in the whole cluster",
                "the node uses more memory than vm_memory_high_watermark.relative permits",
                "let consumers catch up, limit queues with a policy (max-length-bytes), or give the node more memory",
            ),
            "disk" => (
                "publishers are blocked in the whole cluster",
                "less disk space is free than disk_free_limit.absolute",
                "free disk space, enlarge the volume, or let consumers empty the queues",
            ),
            _ => (
                "new connections are refused",
                "the process has almost no free file descriptors",
                "raise the limit (ulimit -n, LimitNOFILE), or close connections",
            ),
        };
        Finding {
            severity: Severity::Error,
            check: "alarms",
            problem: format!("node '{node}' has a {resource} alarm: {problem}"),
            cause: cause.to_owned(),
            remedy: remedy.to_owned(),
            objects: vec![node.to_owned()],
        }
    };
    alarms.map(finding).collect()
}

/// Certificates of the node that answers. Expired ones are errors.
pub(super) fn certificates(check: &Json, now_s: u64) -> Option<Finding> {
    let listeners = check["expired"].as_array()?;
    let expires = listeners.iter().find_map(|l| l["expires"].as_u64())?;
    let shown: Vec<String> = listeners
        .iter()
        .map(|l| {
            format!(
                "{} on port {}",
                l["protocol"].as_str().unwrap_or("TLS"),
                l["port"]
            )
        })
        .collect();
    let node = listeners.first()?["node"].as_str().unwrap_or_default();
    let (severity, state) = match expires.checked_sub(now_s) {
        None => (Severity::Error, "has expired".to_owned()),
        Some(left) => (
            Severity::Warning,
            format!("expires in {} day(s)", left / SECONDS_PER_DAY),
        ),
    };
    Some(Finding {
        severity,
        check: "certificates",
        problem: format!("the certificate of node '{node}' {state}: {}", named(&shown)),
        cause: "the certificate was not renewed in time".to_owned(),
        remedy: "replace the files of ssl_options.certfile and ssl_options.keyfile; the node reads them within seconds"
            .to_owned(),
        objects: shown,
    })
}

/// Flags that all nodes support and that are disabled.
pub(super) fn feature_flags(flags: &Json) -> Option<Finding> {
    let flags = flags.as_array()?.iter();
    let disabled = names(flags.filter(|flag| flag["state"] == "disabled"));
    if disabled.is_empty() {
        return None;
    }
    Some(Finding {
        severity: Severity::Warning,
        check: "feature_flags",
        problem: format!("feature flags are disabled: {}", named(&disabled)),
        cause: "all nodes support them since the last upgrade, and nobody has enabled them"
            .to_owned(),
        remedy:
            "run `posthorn ctl enable_feature_flag all` when no node will return to the old version"
                .to_owned(),
        objects: disabled,
    })
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    fn node(name: &str, running: bool, version: &str) -> Json {
        json!({"name": name, "running": running, "voter": true, "being_drained": false, "product_version": version})
    }

    #[test]
    fn healthy_nodes_have_no_finding() {
        let nodes = [
            node("a", true, "1"),
            node("b", true, "1"),
            node("c", true, "1"),
        ];
        assert_eq!(nodes_down(&nodes), None);
        assert_eq!(metadata_at_risk(&nodes), None);
        assert_eq!(metadata_at_risk(&nodes[..2]), None, "all of two nodes run");
        assert_eq!(drained(&nodes), None);
        assert_eq!(versions(&nodes), None);
        assert_eq!(not_ready(&json!({"status": "ok"}), &nodes), None);
        assert_eq!(alarms(&json!({"status": "ok"})), []);
        assert_eq!(certificates(&json!({"status": "ok"}), 0), None);
        assert_eq!(
            feature_flags(&json!([{"name": "x", "state": "enabled"}])),
            None
        );
    }

    #[test]
    fn versions_of_nodes_that_are_down_do_not_count() {
        let mut nodes = [node("a", true, "1"), node("b", false, "2")];
        assert_eq!(versions(&nodes), None);
        nodes[1] = node("b", true, "2");
        let skew = versions(&nodes).unwrap();
        assert!(skew.problem.ends_with("1 on a; 2 on b"), "{}", skew.problem);
    }

    #[test]
    fn five_voters_tolerate_one_failure() {
        let mut nodes: Vec<Json> = (0..5).map(|n| node(&n.to_string(), n > 0, "1")).collect();
        assert_eq!(metadata_at_risk(&nodes), None);
        nodes[1]["running"] = json!(false);
        let risk = metadata_at_risk(&nodes).unwrap();
        assert!(
            risk.problem.contains("one more node fails"),
            "{}",
            risk.problem
        );
        nodes[2]["running"] = json!(false);
        let lost = metadata_at_risk(&nodes).unwrap();
        assert!(lost.problem.contains("has no majority"), "{}", lost.problem);
    }

    #[test]
    fn expired_certificates_are_errors() {
        let check = json!({"expired": [{"node": "a", "protocol": "amqp/ssl", "port": 5671, "expires": 1_000_000}]});
        let expired = certificates(&check, 1_000_001).unwrap();
        assert_eq!(expired.severity, Severity::Error);
        assert!(
            expired
                .problem
                .contains("has expired: amqp/ssl on port 5671")
        );
        let soon = certificates(&check, 1_000_000 - 3 * SECONDS_PER_DAY).unwrap();
        assert_eq!(soon.severity, Severity::Warning);
        assert!(
            soon.problem.contains("expires in 3 day(s)"),
            "{}",
            soon.problem
        );
    }
}
