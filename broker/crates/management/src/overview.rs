//! `/api/overview`, `/api/whoami`, `/api/cluster-name`.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json};
use control::ControlRequest;
use serde_json::json as object;

/// The version of RabbitMQ whose API this is; clients switch on it.
const SPEAKS_LIKE: &str = "4.1.0";

pub(crate) async fn overview(api: &Api, call: &Call) -> Answer {
    let config = api.config();
    let (cluster, exchanges, queues) = api
        .read(|tree| {
            let vhosts = tree.vhosts();
            let exchanges = vhosts.iter().map(|v| tree.exchanges(&v.name).len());
            (
                tree.cluster().to_owned(),
                exchanges.sum::<usize>(),
                tree.queue_count(),
            )
        })
        .await?;
    let mut shown = object!({
        "product_name": "Posthorn",
        "product_version": config.version,
        "management_version": SPEAKS_LIKE,
        "rabbitmq_version": SPEAKS_LIKE,
        "cluster_name": cluster,
        "node": config.name,
    });
    if call.is_monitor() {
        let facts = api.queue_facts(None).await?;
        let stats = || facts.iter().filter_map(|f| f.stats.as_ref());
        let ready: u64 = stats().map(|s| s.ready).sum();
        let unacknowledged: u64 = stats().map(|s| s.unacknowledged).sum();
        let consumers: u64 = stats().map(|s| u64::from(s.consumers)).sum();
        let connections = api
            .ask(|reply| ControlRequest::Connections { reply })
            .await?;
        let channels: u64 = connections.iter().map(|c| u64::from(c.channels)).sum();
        shown["queue_totals"] = object!({
            "messages": ready + unacknowledged,
            "messages_ready": ready,
            "messages_unacknowledged": unacknowledged,
        });
        shown["object_totals"] = object!({
            "connections": connections.len(),
            "channels": channels,
            "exchanges": exchanges,
            "queues": queues,
            "consumers": consumers,
        });
        let listeners = config.listeners.iter();
        let listeners = listeners.map(
            |(protocol, port)| object!({"node": config.name, "protocol": protocol, "port": port}),
        );
        shown["listeners"] = listeners.collect();
    }
    json(shown)
}

pub(crate) fn whoami(call: &Call) -> Answer {
    let tags: Vec<&str> = call.user.tags.iter().map(|t| &**t).collect();
    json(object!({"name": &*call.user.name, "tags": tags}))
}

pub(crate) async fn cluster_name(api: &Api) -> Answer {
    let name = api.read(|tree| tree.cluster().to_owned()).await?;
    json(object!({"name": name}))
}
