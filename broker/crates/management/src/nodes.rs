//! `/api/nodes` and maintenance mode.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::json::JsonMembers;
use crate::overview;
use crate::rates::{self, Key, Range};
use crate::{Config, LogLevels};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use control::{
    ControlRequest, Counters, ForgetProgress, MembershipRequest, NodeFacts, NodeResources,
};
use metadata::ClientAddress;
use serde_json::{Value as Json, json as object};
use std::collections::BTreeMap;

fn auth_mechanisms() -> Json {
    let all = [
        ("PLAIN", "SASL PLAIN authentication mechanism"),
        ("AMQPLAIN", "QPid AMQPLAIN mechanism"),
    ];
    let shown =
        all.map(|(name, text)| object!({"name": name, "description": text, "enabled": true}));
    Json::Array(shown.to_vec())
}

/// RabbitMQ plugins whose functions are built in. Tools check for their names.
fn plugins(config: &Config) -> Vec<&'static str> {
    let has_listener = |protocol: &str| {
        config
            .listeners
            .iter()
            .any(|(name, _)| name.contains(protocol))
    };
    let optional = [
        ("web-mqtt", "rabbitmq_web_mqtt"),
        ("web-amqp", "rabbitmq_web_amqp"),
        ("mqtt", "rabbitmq_mqtt"),
        ("prometheus", "rabbitmq_prometheus"),
    ];
    let optional = optional
        .into_iter()
        .filter(|(listener, _)| has_listener(listener));
    let optional = optional.map(|(_, plugin)| plugin);
    std::iter::once("rabbitmq_management")
        .chain(optional)
        .collect()
}

fn client_addresses(addresses: &[ClientAddress]) -> Json {
    let show = |address: &ClientAddress| {
        object!({
            "protocol": &*address.protocol,
            "tls": address.tls,
            "host": &*address.host,
            "port": address.port,
        })
    };
    addresses.iter().map(show).collect()
}

/// `counters` are those of the node; None if it does not answer.
fn show(api: &Api, node: &NodeFacts, counters: Option<&Counters>, samples: &NodeSamples) -> Json {
    let config = api.config();
    let mut shown = object!({
        "name": node.name,
        "type": "disc",
        "running": node.running,
        "being_drained": node.maintenance,
        "voter": node.voter,
        "address": node.address,
        "zone": node.zone,
        // Null while the node is down.
        "product_version": node.version.as_ref().map(|v| &*v.version),
        "client_addresses": client_addresses(&node.client_addresses),
        "mem_alarm": node.memory_alarm,
        "disk_free_alarm": node.disk_alarm,
        "partitions": [],
        "exchange_types": overview::exchange_types(),
        "auth_mechanisms": auth_mechanisms(),
        "applications": [],
        "enabled_plugins": plugins(config),
        "contexts": [],
        "cluster_links": [],
    });
    let mut uptime_s = node.uptime_s;
    if let Some(counters) = counters {
        let resources = api.resources_of(node.id, counters);
        show_resources(&mut shown, &resources);
        shown["sockets_used"] = object!(counters.connections);
        if let Some(used) = rates::resource_usage(&resources, counters.connections) {
            let at = (Key::NodeUse(node.id.0), samples.usage.as_ref());
            let levels = (&rates::RESOURCE_USAGE[..], &used[..]);
            rates::show_levels(api, at, &mut shown, levels);
        }
        let at = (Key::NodeChurn(node.id.0), samples.churn.as_ref());
        let counts = (&rates::CHURN[..], &rates::churn(counters)[..]);
        rates::show_counts(api, at, &mut shown, counts);
        shown["rates_mode"] = object!(overview::RATES_MODE);
        uptime_s = uptime_s.or(resources.uptime_s);
    }
    if node.id == config.node {
        shown["os_pid"] = object!(std::process::id().to_string());
    }
    if let Some(seconds) = uptime_s {
        // RabbitMQ reports milliseconds.
        shown["uptime"] = object!(seconds.saturating_mul(1000));
    }
    shown
}

/// The ranges of samples that a request for nodes asks for.
struct NodeSamples {
    usage: Option<Range>,
    churn: Option<Range>,
}

impl NodeSamples {
    fn of(call: &AuthenticatedRequest) -> Result<NodeSamples, ApiError> {
        Ok(NodeSamples {
            usage: Range::of(&call.query, "node_stats")?,
            churn: Range::of(&call.query, "data_rates")?,
        })
    }
}

fn show_resources(shown: &mut Json, resources: &NodeResources) {
    for (name, figure) in [
        ("mem_used", resources.memory_used),
        ("mem_limit", resources.memory_limit),
        ("disk_free", resources.disk_free),
        ("disk_free_limit", resources.disk_free_limit),
        ("fd_used", resources.descriptors_used),
        ("fd_total", resources.descriptors),
        ("sockets_total", resources.connections),
        ("proc_used", resources.threads),
        ("proc_total", resources.thread_limit),
        ("processors", resources.processors),
    ] {
        if let Some(figure) = figure {
            shown[name] = object!(figure);
        }
    }
}

pub(crate) async fn facts(api: &Api) -> Result<Vec<NodeFacts>, ApiError> {
    let mut nodes = api.ask(|reply| ControlRequest::Nodes { reply }).await?;
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(nodes)
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    call.require_monitoring()?;
    let samples = NodeSamples::of(call)?;
    let nodes = facts(api).await?;
    let counters: BTreeMap<_, _> = overview::counters_by_node(api).await?.into_iter().collect();
    let shown = nodes.iter();
    let shown = shown.map(|n| show(api, n, counters.get(&n.id), &samples));
    json(Json::Array(shown.collect()))
}

/// Finds a node by name. A node that returned under a new identity shares its name with the old
/// one: prefer the running one.
pub(crate) async fn find(api: &Api, name: &str) -> Result<NodeFacts, ApiError> {
    let nodes = facts(api).await?;
    let mut named: Vec<_> = nodes.into_iter().filter(|n| n.name == name).collect();
    named.sort_by_key(|n| n.running);
    named.pop().ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    call.require_monitoring()?;
    let samples = NodeSamples::of(call)?;
    let node = find(api, name).await?;
    let counters: BTreeMap<_, _> = overview::counters_by_node(api).await?.into_iter().collect();
    json(show(api, &node, counters.get(&node.id), &samples))
}

/// Forgets a node that left or is drained. Responds with 202 while its replicas are moved and its
/// Raft membership is removed: the client has to repeat the request.
pub(crate) async fn forget(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    call.require_administrator()?;
    let nodes = facts(api).await?;
    let named: Vec<_> = nodes.into_iter().filter(|n| n.name == name).collect();
    // If two nodes have this name, the one that is down is meant.
    let target = named.iter().min_by_key(|n| n.running);
    let node = target.ok_or_else(ApiError::not_found)?.id;
    let state = api
        .ask(|reply| ControlRequest::Membership(MembershipRequest::Forget { node, reply }))
        .await??;
    match state {
        ForgetProgress::Forgotten => no_content(),
        ForgetProgress::Moving { queues } => {
            let body = object!({"state": "moving", "queues": queues});
            Ok((StatusCode::ACCEPTED, axum::Json(body)).into_response())
        }
    }
}

pub(crate) async fn maintenance(
    api: &Api,
    call: &AuthenticatedRequest,
    name: &str,
    on: bool,
) -> ApiResult {
    call.require_administrator()?;
    require_this_node(api, name).await?;
    let progress = api
        .ask(|reply| ControlRequest::Maintenance { on, reply })
        .await?;
    if !on {
        return no_content();
    }
    let has_leaders_left = progress.leaders_left > 0;
    json(object!({
        "state": if has_leaders_left { "draining" } else { "drained" },
        "leaders": progress.leaders_left,
        "connections": progress.connections_left,
    }))
}

/// Sets the memory high watermark, `{"relative": 0.4}`, until the node restarts.
pub(crate) async fn memory_watermark(
    api: &Api,
    call: &AuthenticatedRequest,
    name: &str,
) -> ApiResult {
    call.require_administrator()?;
    require_this_node(api, name).await?;
    let Some(set) = &api.config().memory_watermark else {
        return Err(ApiError::not_found());
    };
    let body = call.object()?;
    let share = body.get("relative").and_then(Json::as_f64);
    let Some(share) = share.filter(|s| (0.0..=1.0).contains(s)) else {
        return Err(ApiError::bad_request(
            "relative must be a number from 0.0 to 1.0",
        ));
    };
    (set.0)(share);
    no_content()
}

/// Sets the free disk space limit in bytes, `{"absolute": 50000000}`, until the node restarts.
pub(crate) async fn disk_free_limit(
    api: &Api,
    call: &AuthenticatedRequest,
    name: &str,
) -> ApiResult {
    call.require_administrator()?;
    require_this_node(api, name).await?;
    let Some(set) = &api.config().disk_free_limit else {
        return Err(ApiError::not_found());
    };
    let body = call.object()?;
    let Some(bytes) = body.get("absolute").and_then(Json::as_u64) else {
        return Err(ApiError::bad_request("absolute must be a number of bytes"));
    };
    (set.0)(bytes);
    no_content()
}

async fn log_levels<'a>(api: &'a Api, name: &str) -> Result<&'a LogLevels, ApiError> {
    require_this_node(api, name).await?;
    api.config()
        .log_levels
        .as_ref()
        .ok_or_else(ApiError::not_found)
}

pub(crate) async fn show_log_levels(api: &Api, name: &str) -> ApiResult {
    let levels = (log_levels(api, name).await?.shown)();
    let shown = levels
        .into_iter()
        .map(|(category, level)| (category.to_owned(), object!(level)));
    json(Json::Object(shown.collect()))
}

pub(crate) async fn set_log_level(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    let levels = log_levels(api, name).await?;
    let body = call.object()?;
    let body = JsonMembers(&body);
    let level = body.required_text("level")?;
    let category = body.text("category")?;
    (levels.set)(category, level).map_err(ApiError::bad_request)?;
    tracing::info!(
        event = "log_level_changed",
        category = category.unwrap_or("all"),
        level,
        by = &*call.user.name
    );
    no_content()
}

/// The settings of this node with their values and sources.
pub(crate) async fn configuration(api: &Api, name: &str) -> ApiResult {
    require_this_node(api, name).await?;
    let settings = api.config().live.list();
    let shown = settings.iter().map(|setting| {
        object!({
            "key": setting.key,
            "value": setting.value,
            "source": setting.source,
            "live": setting.live,
            "restart": setting.restart,
        })
    });
    json(Json::Array(shown.collect()))
}

/// The keys that the program of this node knows.
pub(crate) async fn configuration_keys(api: &Api, name: &str) -> ApiResult {
    require_this_node(api, name).await?;
    let keys = api.config().keys.iter();
    let shown = keys.map(|key| object!({"key": key.key, "default": key.default, "live": key.live}));
    json(Json::Array(shown.collect()))
}

/// Reads the files of this node's configuration again.
pub(crate) async fn reload(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    call.require_administrator()?;
    require_this_node(api, name).await?;
    let Some(reload) = api.config().reload.clone() else {
        return Err(ApiError::not_found());
    };
    let reloaded = tokio::task::spawn_blocking(move || (reload.0)()).await;
    let reloaded = reloaded.map_err(|error| ApiError::unavailable(error.to_string()))?;
    let reloaded = reloaded.map_err(ApiError::bad_request)?;
    json(object!({"changed": reloaded.changed, "restart": reloaded.restart}))
}

/// Fails unless `name` is this node: the operation can only be done locally.
async fn require_this_node(api: &Api, name: &str) -> Result<(), ApiError> {
    let node = find(api, name).await?;
    if node.id == api.config().node {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "this is node '{}'; ask node '{name}' itself",
        api.config().name
    )))
}

pub(crate) async fn rebalance(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    call.require_administrator()?;
    let moved = api
        .ask(|reply| ControlRequest::RebalanceQueues { reply })
        .await?;
    json(object!({"leaders_moved": moved}))
}
