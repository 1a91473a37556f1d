//! `/livez`, `/readyz` and `/api/health/checks`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::nodes;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use control::{ControlRequest, Readiness};
use metadata::{QueueId, QueueRecord};
use serde_json::{Value as Json, json as object};

/// Responds that a check passes. Virtual hosts are usable as soon as the node knows them: no process has to
/// start for one.
pub(crate) fn ok() -> ApiResult {
    json(object!({"status": "ok"}))
}

/// Responds with 503 that a check fails.
pub(crate) fn failed(body: Json) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
}

/// Responds at once: 200 if the node is merely busy, 503 if shard 0 hangs.
pub(crate) fn livez(api: &Api) -> ApiResult {
    if api.is_alive() {
        return ok();
    }
    Ok(failed(object!({
        "status": "failed",
        "reason": "shard 0 does not answer",
    })))
}

pub(crate) async fn readyz(api: &Api) -> ApiResult {
    match api.ask(|reply| ControlRequest::Readiness { reply }).await {
        Ok(Readiness::Ready) => ok(),
        Ok(Readiness::NotReady(why)) => Ok(failed(object!({"status": "failed", "reason": why}))),
        Ok(Readiness::Draining) => Ok(failed(object!({"status": "failed", "reason": "draining"}))),
        Err(error) => Ok(failed(
            object!({"status": "failed", "reason": error.reason}),
        )),
    }
}

/// Checks that this node listens on a port.
pub(crate) fn port_listener(api: &Api, port: &str) -> ApiResult {
    let listeners = &api.config().listeners();
    let port = port.parse::<u16>();
    let port = port.map_err(|_| ApiError::bad_request("Invalid port"))?;
    if listeners.iter().any(|(_, p)| *p == port) {
        return json(object!({"status": "ok", "port": port}));
    }
    let ports = listeners.iter().map(|(_, port)| *port);
    Ok(failed(object!({
        "status": "failed",
        "reason": "No active listener",
        "missing": port,
        "ports": ports.collect::<Vec<u16>>(),
    })))
}

/// Checks that this node has a listener for each protocol of a list, separated by commas.
pub(crate) fn protocol_listener(api: &Api, protocols: &str) -> ApiResult {
    let listeners = &api.config().listeners();
    let active: Vec<&str> = listeners.iter().map(|(name, _)| *name).collect();
    let wanted = protocols.split(',').map(|protocol| match protocol {
        // RabbitMQ's health checks accept protocol versions, its listener names have none.
        "amqp091" | "amqp0-9-1" | "amqp0.9.1" | "amqp10" | "amqp1.0" => "amqp",
        other => other,
    });
    let missing: Vec<&str> = wanted.filter(|p| !active.contains(p)).collect();
    if missing.is_empty() {
        return json(object!({"status": "ok", "protocols": active}));
    }
    Ok(failed(object!({
        "status": "failed",
        "reason": "No active listener",
        "missing": missing,
        "protocols": active,
    })))
}

/// Reports client listeners whose certificates expire within the given time.
pub(crate) fn certificates(api: &Api, within: &str, unit: &str) -> ApiResult {
    let Ok(within) = within.parse::<u32>() else {
        return Err(ApiError::bad_request("Invalid expiration value."));
    };
    let days = match unit {
        "days" => 1,
        "weeks" => 7,
        "months" => 30,
        "years" => 365,
        _ => {
            return Err(ApiError::bad_request(
                "Time unit not recognised. Supported units: days, weeks, months, years.",
            ));
        }
    };
    let config = api.config();
    let expires = config.certificates_expire.as_ref().and_then(|e| (e.0)());
    let deadline = api.moment().wall.0 / 1000 + u64::from(within) * days * 86_400;
    let Some(expires) = expires.filter(|expires| *expires <= deadline) else {
        return ok();
    };
    let all = config.listeners().into_iter();
    let listeners = all.filter(|(p, _)| p.ends_with("/ssl")).map(|(protocol, port)| {
        object!({"node": config.name, "protocol": protocol, "port": port, "expires": expires})
    });
    Ok(failed(object!({
        "status": "failed",
        "reason": "Certificates expiring",
        "expired": listeners.collect::<Vec<_>>(),
    })))
}

/// RabbitMQ declares a queue, publishes and consumes. Here the readiness check covers this without
/// leaving a queue behind.
pub(crate) async fn aliveness(api: &Api, call: &AuthenticatedRequest, vhost: &str) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    readyz(api).await
}

/// A queue in the response of a check.
pub(crate) fn shown_queue(q: &QueueRecord) -> Json {
    object!({
        "name": &*q.name,
        "virtual_host": &*q.vhost,
        "type": q.kind.name(),
        "readable_name": format!("queue '{}' in vhost '{}'", q.name, q.vhost),
    })
}

pub(crate) async fn quorum_critical(api: &Api) -> ApiResult {
    let ids = api
        .ask(|reply| ControlRequest::QuorumCritical { reply })
        .await?;
    if ids.is_empty() {
        let alone = nodes::facts(api).await?.len() == 1;
        return match alone {
            true => json(object!({"status": "ok", "reason": "single node cluster"})),
            false => ok(),
        };
    }
    let queues = api
        .read(move |tree| {
            let shown = ids.iter().map(|id| match tree.queue_by_id(*id) {
                Some(q) => shown_queue(q),
                None if *id == QueueId(0) => object!({
                    "name": "cluster metadata",
                    "virtual_host": "",
                    "type": "metadata",
                    "readable_name": "the cluster's metadata",
                }),
                None => object!({
                    "name": id.0.to_string(),
                    "virtual_host": "",
                    "type": "quorum",
                    "readable_name": format!("deleted queue {}", id.0),
                }),
            });
            shown.collect::<Vec<Json>>()
        })
        .await?;
    Ok(failed(object!({
        "status": "failed",
        "reason": "There are queues that would lose their quorum if the target node is shut down",
        "queues": queues,
    })))
}

/// Maximum number of lost queues in a response. Its reason counts all of them.
const MAX_LISTED_LOST_QUEUES: usize = 1_000;

/// Reports queues whose only replica was on a node that lost its data directory. An operator has to
/// delete them.
pub(crate) async fn lost_queues(api: &Api) -> ApiResult {
    let (count, queues) = api
        .read(|tree| {
            let lost = tree.lost_queues();
            let count = lost.len();
            let shown = lost.filter_map(|(id, node)| {
                let queue = tree.queue_by_id(id)?;
                Some(object!({
                    "vhost": &*queue.vhost,
                    "name": &*queue.name,
                    "node": &**node,
                }))
            });
            (
                count,
                shown.take(MAX_LISTED_LOST_QUEUES).collect::<Vec<Json>>(),
            )
        })
        .await?;
    if count == 0 {
        return ok();
    }
    Ok(failed(object!({
        "status": "failed",
        "reason": format!(
            "{count} queue(s) had their only copy on a node that lost its data directory; delete them, then declare them again"
        ),
        "queues": queues,
    })))
}

pub(crate) async fn alarms(api: &Api, local: bool) -> ApiResult {
    let nodes = nodes::facts(api).await?;
    let own = api.config().node;
    let mut active_alarms = Vec::new();
    for node in nodes.iter().filter(|n| !local || n.id == own) {
        for (resource, on) in [("memory", node.memory_alarm), ("disk", node.disk_alarm)] {
            if on {
                active_alarms.push(object!({"node": node.name, "resource": resource}));
            }
        }
    }
    if api.config().node_resources().is_short_of_files {
        let own = nodes.iter().find(|n| n.id == own).map(|n| n.name.clone());
        active_alarms.push(object!({"node": own, "resource": "file_descriptors"}));
    }
    if active_alarms.is_empty() {
        return ok();
    }
    Ok(failed(object!({
        "status": "failed",
        "reason": "There are alarms in effect",
        "alarms": active_alarms,
    })))
}
