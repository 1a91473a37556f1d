//! `/api/mqtt`: connections of MQTT clients, and the state of the MQTT routers of each node. RabbitMQ
//! has no counterpart.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::connections::{self, visible_connections};
use crate::dispatch::{ApiResult, json};
use crate::overview;
use crate::queues::{name_of, node_names};
use serde_json::{Value as Json, json as object};

/// Connections over MQTT and over MQTT in WebSocket that the user may see.
pub(crate) async fn list_connections(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let mut found = visible_connections(api, call).await?;
    found.retain(|c| c.protocol.contains("mqtt") && vhost.is_none_or(|v| c.vhost == v));
    connections::respond_with(api, call, found).await
}

/// Sessions, subscriptions and retained messages of each node that answers in time. Every node
/// stores all retained messages of the cluster.
pub(crate) async fn list_nodes(api: &Api) -> ApiResult {
    let names = api.read(node_names).await?;
    let mut shown: Vec<(String, Json)> = Vec::new();
    for (node, counters) in overview::counters_by_node(api).await? {
        let mqtt = &counters.mqtt;
        let name = name_of(&names, node);
        let facts = object!({
            "node": name,
            "connected_sessions": mqtt.connected,
            "offline_sessions": mqtt.sessions_away,
            "expired_sessions": mqtt.expired,
            "subscriptions": mqtt.subscriptions,
            "retained_messages": mqtt.retained,
            "retained_bytes": mqtt.retained_bytes,
            "wills": mqtt.wills,
            "dropped_messages": mqtt.dropped,
            "messages_not_kept": mqtt.not_kept,
        });
        shown.push((name, facts));
    }
    shown.sort_by(|(a, _), (b, _)| a.cmp(b));
    json(shown.into_iter().map(|(_, facts)| facts).collect())
}
