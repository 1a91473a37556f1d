//! What a node knows of subscriptions: which queues a publish on this node cannot miss.

use super::super::node::Node;
use env::{Incarnation, NodeId};
use message::Value;
use metadata::QueueId;

/// The end of a connection: a shard of a node in one incarnation, where the in-memory part of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardIncarnation {
    /// The machine.
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub shard: u64,
}

/// Returns the queue of a session if the shard's tree has the binding of this subscription, so that later publishes on
/// the shard reach the queue. An earlier queue may have had the same name.
pub(crate) fn find_bound_queue(
    process: Option<&Node>,
    location: ShardIncarnation,
    queue: &str,
    filter: &str,
) -> Option<QueueId> {
    let process = process.filter(|p| p.incarnation() == location.incarnation);
    let shard = process.and_then(|p| p.shards().nth(location.shard as usize));
    let tree = shard.map(|s| s.state().tree())?;
    let record = tree.queue("/", queue)?;
    let bindings = tree.bindings_of_queue(record.id);
    let key = filter.replace('/', ".").replace('+', "*");
    let is_bound = bindings.iter().any(|binding| {
        let stored_filter = binding.arguments.get("x-mqtt-filter");
        match stored_filter.and_then(Value::as_str) {
            Some(stored_filter) => stored_filter == filter,
            // An AMQP client created the binding.
            None => *binding.routing_key == *key,
        }
    });
    is_bound.then_some(record.id)
}
