//! Shared subscriptions of sessions that outlive their connections: they are bindings of the
//! session's queue, and the router may choose that queue.

use super::{exchange, state};
use crate::session_queue::{client_of, shared_subscription};
use metadata::{BindingRecord, Destination};
use session::ServiceHost;

/// A binding was added: if it stores a shared subscription, the router may choose its queue.
pub(super) fn bound(host: &mut dyn ServiceHost, binding: &BindingRecord) {
    let Destination::Queue(name) = &binding.destination else {
        return;
    };
    let Some(client) = client_of(name) else {
        return;
    };
    if exchange(host).is_none_or(|exchange| binding.source != exchange) {
        return;
    }
    let queue = host.tree().queue(&binding.vhost, name).map(|q| q.id);
    if let (Some((filter, subscription)), Some(queue)) = (shared_subscription(binding), queue)
        && let Some(shard) = state(host)
    {
        let client = (&*binding.vhost, client);
        shard
            .router
            .add_queue_member(client, queue.0, &filter, subscription);
    }
}

/// A binding was removed.
pub(super) fn unbound(host: &mut dyn ServiceHost, binding: &BindingRecord) {
    let Destination::Queue(name) = &binding.destination else {
        return;
    };
    let found = shared_subscription(binding);
    let (Some((filter, _)), Some(client)) = (found, client_of(name)) else {
        return;
    };
    let client = (&*binding.vhost, client);
    let tree = host.tree();
    let queue = tree.queue(&binding.vhost, name).map(|q| q.id);
    // If the subscription was changed, it has another binding by now.
    let changed = queue.and_then(|queue| {
        let (source, key) = (&binding.source, &binding.routing_key);
        let mut others = tree.bindings_of_queue_with_key(queue, source, key);
        let other = others.find_map(|b| {
            let found = shared_subscription(b);
            found.filter(|(other, _)| *other == filter)
        })?;
        Some((queue, other))
    });
    let Some(shard) = state(host) else { return };
    match changed {
        Some((queue, (filter, now))) => {
            shard.router.add_queue_member(client, queue.0, &filter, now)
        }
        None => shard.router.remove_queue_member(client, &filter),
    }
}

/// The tree was replaced.
pub(super) fn replaced(host: &mut dyn ServiceHost) {
    let tree = host.tree();
    let sessions = tree
        .all_queues()
        .filter(|queue| client_of(&queue.name).is_some());
    let bindings: Vec<_> = sessions
        .flat_map(|queue| tree.bindings_of_queue(queue.id))
        .cloned()
        .collect();
    for binding in bindings {
        bound(host, &binding);
    }
}
