//! What must be equal on all nodes, at any time and in the end.

use super::node::Node;
use env::NodeId;
use metadata::QueueId;
use session_mqtt::MqttShard;
use std::collections::{BTreeMap, BTreeSet};

/// Replicas of a queue that have applied as much have the same state, and so have trees.
pub fn replicas_agree<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(), String> {
    let mut queues: BTreeMap<(QueueId, u64), u64> = BTreeMap::new();
    let mut trees: BTreeMap<u64, u64> = BTreeMap::new();
    for shard in nodes.flat_map(Node::shards) {
        let core = shard.core();
        let digest = core.tree.digest();
        if *trees.entry(core.applied).or_insert(digest) != digest {
            return Err(format!("trees differ after entry {}", core.applied));
        }
        for (queue, applied, digest) in core.local_queues.digests() {
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

/// The members that queues were first seen with.
#[derive(Default)]
pub struct FoundingMembers(BTreeMap<QueueId, Vec<NodeId>>);

/// A queue that is led, as its leader has it.
struct LedQueue {
    term: u64,
    voters: Vec<NodeId>,
    members: Vec<NodeId>,
}

impl FoundingMembers {
    /// Who has become a member of a queue's group and votes in it has something of it: it got its vote when it had caught up.
    /// Founders may begin with nothing. Of several that call themselves leader the newest counts, and nothing is asked of a
    /// replica that departed since and is there anew.
    pub fn votes_are_earned<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Result<(), String> {
        let mut newest: BTreeMap<QueueId, LedQueue> = BTreeMap::new();
        let mut empty: BTreeMap<(QueueId, NodeId), u64> = BTreeMap::new();
        for shard in nodes.flat_map(Node::shards) {
            let (core, local_queues) = (shard.core(), &shard.core().local_queues);
            for record in core.tree.all_queues() {
                self.0
                    .entry(record.id)
                    .or_insert_with(|| record.members.clone());
                let replica = local_queues.tell_replica(record.id).replica;
                if let Some(replica) = replica.filter(|r| r.last_index == 0) {
                    empty.insert((record.id, core.me()), replica.term);
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
        let founded = |queue, node| self.0.get(queue).is_some_and(|f| f.contains(node));
        for ((queue, node), term) in &empty {
            let led = newest.get(queue).filter(|s| *term <= s.term);
            let votes = led.is_some_and(|s| s.voters.contains(node) && s.members.contains(node));
            if votes && !founded(queue, node) {
                let (queue, node) = (queue.0, node.0);
                return Err(format!(
                    "node {node} votes in queue {queue} and has nothing of it"
                ));
            }
        }
        Ok(())
    }
}

/// Nodes that were removed for good are not members again.
pub fn removed_stay_out<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(), String> {
    for shard in nodes.flat_map(Node::shards) {
        let tree = &shard.core().tree;
        if let Some(back) = tree.nodes().find(|n| tree.is_forgotten(n.id)) {
            return Err(format!("node {} was removed and is a member", back.id.0));
        }
    }
    Ok(())
}

/// A node that the cluster forgot because it was asked to is a member of no queue any more: its vote may have been needed to
/// take it out.
pub fn left_with_nothing<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    seen_off: &BTreeSet<NodeId>,
) -> Result<(), String> {
    for shard in nodes.flat_map(Node::shards) {
        let tree = &shard.core().tree;
        for node in seen_off.iter().filter(|n| tree.is_forgotten(**n)) {
            let listing = tree
                .all_queues()
                .find(|q| q.kind == metadata::QueueType::Quorum && q.members.contains(node));
            if let Some(queue) = listing {
                let (node, name) = (node.0, &queue.name);
                return Err(format!(
                    "node {node} is forgotten and a member of queue {name}"
                ));
            }
        }
    }
    Ok(())
}

/// What is still on its way between nodes; None when everything is where it belongs.
pub fn on_the_way<'a>(nodes: impl Iterator<Item = &'a Node>) -> Option<String> {
    let mut trees = BTreeSet::new();
    let mut queues: BTreeMap<QueueId, u64> = BTreeMap::new();
    for shard in nodes.flat_map(Node::shards) {
        let core = shard.core();
        let waiting = core.clients.in_flight();
        if waiting > 0 {
            let name = |q| core.tree.queue_by_id(q).map(|r| r.name.to_string());
            let named =
                |(s, q, owner, n)| (s, name(q).unwrap_or_else(|| format!("{q:?}")), owner, n);
            let open: Vec<_> = core.clients.waiting().into_iter().map(named).collect();
            let id = core.me().0;
            return Some(format!(
                "{waiting} requests to queues from node {id}: {open:?}"
            ));
        }
        if core.local_queues.recovering() {
            return Some("replicas of queues that no tree has".to_owned());
        }
        trees.insert(core.tree.digest());
        for (queue, applied, _) in core.local_queues.digests() {
            if *queues.entry(queue).or_insert(applied) != applied {
                return Some(format!("entries of queue {}", queue.0));
            }
        }
    }
    (trees.len() > 1).then(|| "metadata entries".to_owned())
}

/// Every MQTT router knows the others, and none of an earlier incarnation of a node.
pub fn hubs_are_of_now<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(), String> {
    let all: Vec<_> = nodes
        .flat_map(|n| n.shards().map(|s| (n.id(), s)))
        .collect();
    for (node, shard) in &all {
        let mqtt: Option<&MqttShard> = shard.core().services.states.get();
        let others = mqtt.map_or(0, |mqtt| mqtt.router.counts().routers);
        if others + 1 != all.len() {
            let (node, there) = (node.0, all.len());
            return Err(format!(
                "an MQTT router of node {node} knows {others} others, of {there} routers in all"
            ));
        }
    }
    Ok(())
}

/// Whether every tree has these queues, or has them not.
pub fn queues_are<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    name: &str,
    there: bool,
) -> Result<(), String> {
    for node in nodes {
        for shard in node.shards() {
            if shard.core().tree.queue("/", name).is_some() != there {
                let what = if there { "lacks" } else { "has still" };
                return Err(format!(
                    "the tree of node {} {what} queue {name}",
                    node.id().0
                ));
            }
        }
    }
    Ok(())
}

/// What the owners of queues tell about them, for people.
pub fn figures<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<String> {
    let mut all = Vec::new();
    for node in nodes {
        for shard in node.shards() {
            let core = shard.core();
            let queues: Vec<QueueId> = core.local_queues.ids_from(QueueId::NONE).collect();
            for of in core.local_queues.told(&queues, None).stats {
                let name = core.tree.queue_by_id(of.queue).map(|q| q.name.clone());
                let stats = of.stats;
                all.push(format!(
                    "{} on {}: {} ready, {} out, {} consumers, online {:?}",
                    name.as_deref().unwrap_or("?"),
                    node.id().0,
                    stats.ready,
                    stats.unacknowledged,
                    stats.consumers,
                    of.online
                ));
            }
        }
    }
    all
}
