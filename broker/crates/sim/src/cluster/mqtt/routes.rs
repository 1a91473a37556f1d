//! What a node knows of subscriptions, seen from outside: whose messages a publish there cannot miss.

use super::super::node::Node;
use env::{Incarnation, NodeId};
use message::Value;
use metadata::QueueId;

/// Where a connection ends: a shard of a node, for one life of it. What of a session is in memory is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardIncarnation {
    /// The machine.
    pub node: NodeId,
    pub machine_run: Incarnation,
    pub shard: u64,
}

/// The session's queue, if the shard's tree has the binding that a subscription is: what is published there from now on is for
/// that queue. Of the same name there may have been another one.
pub fn knows(
    process: Option<&Node>,
    place: ShardIncarnation,
    queue: &str,
    filter: &str,
) -> Option<QueueId> {
    let process = process.filter(|p| p.incarnation() == place.machine_run);
    let shard = process.and_then(|p| p.shards().nth(place.shard as usize));
    let tree = shard.map(|s| &s.core().tree)?;
    let record = tree.queue("/", queue)?;
    let all = tree.bindings_of_queue(record.id);
    let key = filter.replace('/', ".").replace('+', "*");
    let bound = all.iter().any(|binding| {
        let named = binding.arguments.get("x-mqtt-filter");
        match named.and_then(Value::as_str) {
            Some(named) => named == filter,
            // It was not a client of MQTT that bound it.
            None => *binding.routing_key == *key,
        }
    });
    bound.then_some(record.id)
}
