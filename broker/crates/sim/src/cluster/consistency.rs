//! Checks that compare the nodes, at any time and after recovery.

use super::node::Node;
use env::NodeId;
use metadata::QueueId;
use session_mqtt::MqttShard;
use std::collections::{BTreeMap, BTreeSet};

/// Replicas of a queue that have applied the same entries have equal state, and so have trees.
pub(super) fn check_replicas_agree<'a>(
    nodes: impl Iterator<Item = &'a Node>,
) -> Result<(), String> {
    let mut queues: BTreeMap<(QueueId, u64), u64> = BTreeMap::new();
    let mut trees: BTreeMap<u64, u64> = BTreeMap::new();
    for shard in nodes.flat_map(Node::shards) {
        let state = shard.state();
        let digest = state.tree().digest();
        if *trees.entry(state.applied()).or_insert(digest) != digest {
            return Err(format!("trees differ after entry {}", state.applied()));
        }
        for (queue, applied, digest) in state.local_queues().digests() {
            if *queues.entry((queue, applied)).or_insert(digest) != digest {
                return Err(format!(
                    "replicas of queue {} differ after entry {applied}",
                    queue.0
                ));
            }
        }
    }
    Ok(())
}

/// The members of each queue when it was first seen.
#[derive(Default)]
pub(super) struct FoundingMembers(BTreeMap<QueueId, Vec<NodeId>>);

/// A queue that has a leader, in the view of this leader.
struct LedQueue {
    term: u64,
    voters: Vec<NodeId>,
    members: Vec<NodeId>,
}

impl FoundingMembers {
    /// A voter of a queue's group that is not a founder must have log entries, because it gets its vote only when it
    /// has caught up. Founders may start empty. Of several leaders the one with the newest term counts. A replica with
    /// a newer term than the leader is skipped: it left the group and was added again.
    pub(super) fn check_votes_are_earned<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Result<(), String> {
        let mut newest: BTreeMap<QueueId, LedQueue> = BTreeMap::new();
        let mut empty: BTreeMap<(QueueId, NodeId), u64> = BTreeMap::new();
        for shard in nodes.flat_map(Node::shards) {
            let (state, local_queues) = (shard.state(), shard.state().local_queues());
            for record in state.tree().all_queues() {
                self.0
                    .entry(record.id)
                    .or_insert_with(|| record.members.clone());
                let replica = local_queues.tell_replica(record.id).replica;
                if let Some(replica) = replica.filter(|r| r.last_index == 0) {
                    empty.insert((record.id, state.node()), replica.term);
                }
                let known = newest.get(&record.id).map_or(0, |led| led.term);
                let status = local_queues.led_status(record.id);
                if let Some(status) = status.filter(|s| s.term > known) {
                    let led = LedQueue {
                        term: status.term,
                        voters: status.membership.voters,
                        members: record.members.clone(),
                    };
                    newest.insert(record.id, led);
                }
            }
        }
        let is_founder = |queue, node| self.0.get(queue).is_some_and(|f| f.contains(node));
        for ((queue, node), term) in &empty {
            let led = newest.get(queue).filter(|s| *term <= s.term);
            let votes = led.is_some_and(|s| s.voters.contains(node) && s.members.contains(node));
            if votes && !is_founder(queue, node) {
                let (queue, node) = (queue.0, node.0);
                return Err(format!(
                    "node {node} votes in queue {queue} and has nothing of it"
                ));
            }
        }
        Ok(())
    }
}

/// Removed nodes are not members again.
pub(super) fn check_removed_nodes_stay_out<'a>(
    nodes: impl Iterator<Item = &'a Node>,
) -> Result<(), String> {
    for shard in nodes.flat_map(Node::shards) {
        let tree = shard.state().tree();
        if let Some(back) = tree.nodes().find(|n| tree.is_forgotten(n.id)) {
            return Err(format!("node {} was removed and is a member", back.id.0));
        }
    }
    Ok(())
}

/// A node that was forgotten on request is a member of no queue: its vote may have been needed for removing it from a
/// group.
pub(super) fn check_forgotten_nodes_have_no_queues<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    requested: &BTreeSet<NodeId>,
) -> Result<(), String> {
    for shard in nodes.flat_map(Node::shards) {
        let tree = shard.state().tree();
        for node in requested.iter().filter(|n| tree.is_forgotten(**n)) {
            let queue = tree
                .all_queues()
                .find(|q| q.kind != metadata::QueueType::Classic && q.members.contains(node));
            if let Some(queue) = queue {
                let (node, name) = (node.0, &queue.name);
                return Err(format!(
                    "node {node} is forgotten and a member of queue {name}"
                ));
            }
        }
    }
    Ok(())
}

/// Describes what is still on its way between nodes. `None`: nothing is.
pub(super) fn describe_in_flight<'a>(nodes: impl Iterator<Item = &'a Node>) -> Option<String> {
    let mut trees = BTreeSet::new();
    let mut queues: BTreeMap<QueueId, u64> = BTreeMap::new();
    for shard in nodes.flat_map(Node::shards) {
        let state = shard.state();
        let waiting = state.queue_clients().in_flight();
        if waiting > 0 {
            let name = |q| state.tree().queue_by_id(q).map(|r| r.name.to_string());
            let with_name =
                |(s, q, owner, n)| (s, name(q).unwrap_or_else(|| format!("{q:?}")), owner, n);
            let requests: Vec<_> = state
                .queue_clients()
                .waiting()
                .into_iter()
                .map(with_name)
                .collect();
            let id = state.node().0;
            return Some(format!(
                "{waiting} requests to queues from node {id}: {requests:?}"
            ));
        }
        if state.local_queues().recovering() {
            return Some("replicas of queues that no tree has".to_owned());
        }
        trees.insert(state.tree().digest());
        for (queue, applied, _) in state.local_queues().digests() {
            if *queues.entry(queue).or_insert(applied) != applied {
                return Some(format!("entries of queue {}", queue.0));
            }
        }
    }
    (trees.len() > 1).then(|| "metadata entries".to_owned())
}

/// Every MQTT router knows the others, and none of an earlier incarnation of a node.
pub(super) fn check_routers<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(), String> {
    let all: Vec<_> = nodes
        .flat_map(|n| n.shards().map(|s| (n.id(), s)))
        .collect();
    for (node, shard) in &all {
        let mqtt: Option<&MqttShard> = shard.state().service_states().get();
        let others = mqtt.map_or(0, |mqtt| mqtt.router.counts().routers);
        if others + 1 != all.len() {
            let (node, total) = (node.0, all.len());
            return Err(format!(
                "a router of node {node} knows {others} others, of {total} that exist"
            ));
        }
    }
    Ok(())
}

/// Every tree has this queue, or none has it.
pub(super) fn check_queue_exists<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    name: &str,
    expected: bool,
) -> Result<(), String> {
    for node in nodes {
        for shard in node.shards() {
            if shard.state().tree().queue("/", name).is_some() != expected {
                let problem = if expected { "lacks" } else { "still has" };
                return Err(format!(
                    "the tree of node {} {problem} queue {name}",
                    node.id().0
                ));
            }
        }
    }
    Ok(())
}

/// Describes the statistics of all queues, for the text of a violation.
pub(super) fn describe_queues<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<String> {
    let mut all = Vec::new();
    for node in nodes {
        for shard in node.shards() {
            let state = shard.state();
            let queues: Vec<QueueId> = state.local_queues().ids_from(QueueId::NONE).collect();
            for queue_stats in state.local_queues().told(&queues, None).stats {
                let name = state
                    .tree()
                    .queue_by_id(queue_stats.queue)
                    .map(|q| q.name.clone());
                let stats = queue_stats.stats;
                all.push(format!(
                    "{} on {}: {} ready, {} out, {} consumers, online {:?}",
                    name.as_deref().unwrap_or("?"),
                    node.id().0,
                    stats.ready,
                    stats.unacknowledged,
                    stats.consumers,
                    queue_stats.online
                ));
            }
        }
    }
    all
}
