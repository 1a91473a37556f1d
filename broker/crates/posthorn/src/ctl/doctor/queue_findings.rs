//! Checks of queues: majorities, leaders, consumers, lost messages.

use super::{Finding, Severity, named};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Leaders of a node are unbalanced only if its share is at least this many queues.
const MIN_LEADERS_PER_NODE: f64 = 2.9;

fn readable(queue: &Json) -> String {
    let text = |key: &str| queue[key].as_str().unwrap_or_default();
    format!("queue '{}' in vhost '{}'", text("name"), text("vhost"))
}

fn count(queue: &Json, key: &str) -> usize {
    queue[key].as_array().map_or(0, Vec::len)
}

fn is_replicated(queue: &Json) -> bool {
    queue["type"] != "classic" && count(queue, "members") > 1
}

/// The queues for which a condition holds, by name.
fn select(queues: &[Json], condition: impl Fn(&Json) -> bool) -> Vec<String> {
    let selected = queues.iter().filter(|queue| condition(queue));
    selected.map(readable).collect()
}

pub(super) fn all(queues: &[Json], nodes: &[Json]) -> Vec<Finding> {
    [
        lost(queues),
        unavailable(queues),
        at_risk(queues),
        messages_lost(queues),
        without_consumers(queues),
        unbalanced(queues, nodes),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn lost(queues: &[Json]) -> Option<Finding> {
    let lost = select(queues, |queue| queue["state"] == "lost");
    (!lost.is_empty()).then(|| Finding {
        severity: Severity::Error,
        check: "lost_queues",
        problem: format!("lost with all their messages: {}", named(&lost)),
        cause: "their only replica was on a node that lost its data directory".to_owned(),
        remedy: "delete them with `posthorn ctl delete_queue`, then declare them again".to_owned(),
        objects: lost,
    })
}

fn unavailable(queues: &[Json]) -> Option<Finding> {
    let down = select(queues, |queue| queue["state"] == "down");
    (!down.is_empty()).then(|| Finding {
        severity: Severity::Error,
        check: "queues_unavailable",
        problem: format!("not available: {}", named(&down)),
        cause: "no node answers for them: a classic queue is on a node that is down, or most replicas of a queue are"
            .to_owned(),
        remedy: "start the nodes that are down".to_owned(),
        objects: down,
    })
}

/// Queues that still have a majority, but lose it with the next node.
fn at_risk(queues: &[Json]) -> Option<Finding> {
    let at_risk = select(queues, |queue| {
        let (members, online) = (count(queue, "members"), count(queue, "online"));
        let majority = members / 2 + 1;
        is_replicated(queue)
            && queue["state"] == "running"
            && online < members
            && online <= majority
    });
    (!at_risk.is_empty()).then(|| Finding {
        severity: Severity::Error,
        check: "queue_quorum",
        problem: format!(
            "lose their majority if one more node fails: {}",
            named(&at_risk)
        ),
        cause: "replicas are on nodes that are down, or have not caught up yet".to_owned(),
        remedy:
            "start the nodes that are down, or move the replicas with `posthorn ctl evacuate NODE`"
                .to_owned(),
        objects: at_risk,
    })
}

fn messages_lost(queues: &[Json]) -> Option<Finding> {
    let damaged = select(queues, |queue| queue["messages_lost"].as_u64() > Some(0));
    (!damaged.is_empty()).then(|| Finding {
        severity: Severity::Error,
        check: "messages_lost",
        problem: format!("lost messages: {}", named(&damaged)),
        cause: "files of the queues are damaged or missing".to_owned(),
        remedy: "check the disk of the node; docs/reference/damage.md describes what was lost and how to repair it".to_owned(),
        objects: damaged,
    })
}

/// Streams keep their messages, so only queues that consumers are supposed to empty are checked.
fn without_consumers(queues: &[Json]) -> Option<Finding> {
    let waiting = select(queues, |queue| {
        queue["type"] != "stream"
            && queue["consumers"] == 0
            && queue["messages_ready"].as_u64() > Some(0)
    });
    (!waiting.is_empty()).then(|| Finding {
        severity: Severity::Warning,
        check: "queues_without_consumers",
        problem: format!("messages without a consumer: {}", named(&waiting)),
        cause: "no client consumes from these queues, so they only grow".to_owned(),
        remedy: "start the consumers; otherwise purge or delete the queues, or limit them with a policy (max-length-bytes)"
            .to_owned(),
        objects: waiting,
    })
}

/// A node and its leaders.
struct LeaderCount {
    leads: usize,
    /// Its share: a queue counts as one, divided by the number of available nodes with a replica.
    share: f64,
}

impl LeaderCount {
    fn is_balanced(&self) -> bool {
        let leads = self.leads as f64;
        self.share < MIN_LEADERS_PER_NODE
            || (leads <= self.share * 2.0 && leads * 2.0 >= self.share)
    }
}

/// A node leads more than twice or less than half its share.
fn unbalanced(queues: &[Json], nodes: &[Json]) -> Option<Finding> {
    let available = nodes
        .iter()
        .filter(|node| node["running"] == true && node["being_drained"] != true);
    let mut counts: BTreeMap<&str, LeaderCount> = available
        .filter_map(|node| {
            let none = LeaderCount {
                leads: 0,
                share: 0.0,
            };
            Some((node["name"].as_str()?, none))
        })
        .collect();
    for queue in queues.iter().filter(|queue| is_replicated(queue)) {
        let members = queue["members"].as_array().into_iter().flatten();
        let members = members.filter_map(Json::as_str);
        let members: Vec<&str> = members.filter(|m| counts.contains_key(m)).collect();
        for member in &members {
            if let Some(count) = counts.get_mut(member) {
                count.share += 1.0 / members.len() as f64;
            }
        }
        if let Some(leader) = queue["leader"].as_str()
            && let Some(count) = counts.get_mut(leader)
        {
            count.leads += 1;
        }
    }
    if counts.values().all(LeaderCount::is_balanced) {
        return None;
    }
    let shown = counts
        .iter()
        .map(|(node, count)| format!("{node} leads {}", count.leads));
    Some(Finding {
        severity: Severity::Warning,
        check: "leaders",
        problem: format!(
            "queue leaders are unbalanced: {}",
            shown.collect::<Vec<_>>().join(", ")
        ),
        cause:
            "leaders stay where their queues were declared, and move away from a node that stops"
                .to_owned(),
        remedy: "run `posthorn ctl rebalance`".to_owned(),
        objects: counts.into_keys().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    fn nodes(running: usize) -> Vec<Json> {
        let node = |n| json!({"name": format!("n{n}"), "running": true, "being_drained": false});
        (0..running).map(node).collect()
    }

    fn queue(leader: &str, online: &[&str]) -> Json {
        json!({
            "vhost": "/", "name": "q", "type": "quorum", "state": "running", "leader": leader,
            "members": ["n0", "n1", "n2"], "online": online, "messages_ready": 0, "consumers": 0,
        })
    }

    const ALL: &[&str] = &["n0", "n1", "n2"];

    #[test]
    fn majority_at_risk_is_found() {
        assert_eq!(at_risk(&[queue("n0", ALL)]), None);
        assert!(at_risk(&[queue("n0", &["n0", "n1"])]).is_some());
        let mut single = queue("n0", &["n0"]);
        single["members"] = json!(["n0"]);
        assert_eq!(at_risk(&[single]), None, "it was declared without replicas");
        let mut five = queue("n0", &["n0", "n1", "n2", "n3"]);
        five["members"] = json!(["n0", "n1", "n2", "n3", "n4"]);
        assert_eq!(at_risk(&[five]), None, "it tolerates another failure");
    }

    #[test]
    fn leaders_are_compared_with_the_share_of_each_node() {
        let of = |leaders: &[usize]| {
            let queues = leaders.iter().enumerate();
            let queues = queues
                .flat_map(|(n, count)| std::iter::repeat_n(queue(&format!("n{n}"), ALL), *count));
            unbalanced(&queues.collect::<Vec<_>>(), &nodes(leaders.len()))
        };
        assert_eq!(of(&[3, 3, 3]), None);
        assert_eq!(of(&[4, 3, 2]), None);
        assert_eq!(of(&[9]), None, "a single node");
        assert_eq!(of(&[8, 0, 0]), None, "too few queues");
        assert!(of(&[9, 0, 0]).is_some());
        assert!(of(&[5, 5, 0]).is_some());
    }

    #[test]
    fn queues_whose_messages_wait_need_consumers() {
        let mut waiting = queue("n0", ALL);
        assert_eq!(without_consumers(&[waiting.clone()]), None);
        waiting["messages_ready"] = json!(1);
        assert!(without_consumers(&[waiting.clone()]).is_some());
        waiting["consumers"] = json!(1);
        assert_eq!(without_consumers(&[waiting.clone()]), None);
        waiting["consumers"] = json!(0);
        waiting["type"] = json!("stream");
        assert_eq!(without_consumers(&[waiting]), None);
    }
}
