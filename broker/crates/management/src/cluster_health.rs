//! Health checks of RabbitMQ 4.1 and later: leaders of quorum queues, size of the cluster, limits, metadata.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::ApiResult;
use crate::error::ApiError;
use crate::health::{failed, ok, shown_queue};
use crate::{nodes, overview};
use auth::Pattern;
use control::{ControlRequest, Readiness};
use metadata::{QueueCursor, QueueId};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeSet;

/// Maximum number of queues in a response. Its reason counts all of them.
const MAX_LISTED_QUEUES: usize = 1_000;

/// Reports quorum queues without a leader. `vhost`: None selects all that the user sees. `pattern` is a regular expression
/// for names.
///
/// # Errors
///
/// 400 for an invalid pattern, 404 or 401 for a virtual host that the user does not see.
pub(crate) async fn queues_without_leaders(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
    pattern: &str,
) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let pattern = Pattern::compile(pattern)
        .map_err(|error| ApiError::bad_request(format!("invalid pattern '{pattern}': {error}")))?;
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    let mut records = api
        .walk(QueueCursor::default(), move |_, q| {
            let matches = q.kind.descriptor().strict_priorities
                && only.as_deref().is_none_or(|v| *q.vhost == *v)
                && visible.as_ref().is_none_or(|v| v.contains(&*q.vhost))
                && pattern.matches(&q.name);
            matches.then(|| q.clone())
        })
        .await?;
    if records.is_empty() {
        return ok();
    }
    let facts = api.queue_facts(None).await?;
    let led = facts.into_iter().filter(|f| f.leader.is_some());
    let led: BTreeSet<QueueId> = led.map(|f| f.id).collect();
    records.retain(|q| !led.contains(&q.id));
    if records.is_empty() {
        return ok();
    }
    records.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
    let shown = records.iter().take(MAX_LISTED_QUEUES);
    Ok(failed(object!({
        "status": "failed",
        "reason": format!("Detected {} quorum queue(s) without an elected leader", records.len()),
        "queues": shown.map(|q| shown_queue(q)).collect::<Vec<Json>>(),
    })))
}

/// Reports whether this node has as many client connections as it may have (`connection_max`).
pub(crate) async fn below_connection_limit(api: &Api) -> ApiResult {
    let limit = api.config().node_resources().connections;
    let counters = api
        .ask(|reply| ControlRequest::Counters {
            everywhere: false,
            reply,
        })
        .await?;
    let connections = overview::sum(&counters).connections;
    match limit {
        Some(limit) if connections >= limit => Ok(failed(object!({
            "status": "failed",
            "reason": format!("the node has {connections} client connections; its limit is {limit}"),
        }))),
        _ => ok(),
    }
}

/// Reports whether fewer nodes run than the number that form the cluster (`cluster.initial_size`).
pub(crate) async fn reached_target_size(api: &Api) -> ApiResult {
    let target = api.config().initial_nodes;
    let running = nodes::facts(api).await?;
    let running = running.iter().filter(|n| n.running).count();
    if running >= target {
        return ok();
    }
    Ok(failed(object!({
        "status": "failed",
        "reason": format!("{running} of {target} nodes run"),
        "cluster_size": running,
        "target_cluster_size": target,
    })))
}

/// Reports whether the node lacks metadata of the cluster. `with_data`: also a virtual host and a user.
pub(crate) async fn metadata_initialized(api: &Api, with_data: bool) -> ApiResult {
    let readiness = api.ask(|reply| ControlRequest::Readiness { reply }).await?;
    if let Readiness::NotReady(why) = readiness {
        return Ok(failed(object!({"status": "failed", "reason": why})));
    }
    let has_data = api
        .read(|tree| !tree.vhosts().is_empty() && tree.users().next().is_some())
        .await?;
    if has_data || !with_data {
        return ok();
    }
    Ok(failed(object!({
        "status": "failed",
        "reason": "the metadata has no virtual host or no user",
    })))
}
