//! `/api/nodes` and maintenance mode.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::json::Members;
use crate::overview;
use crate::rates::{self, Key};
use crate::{Config, LogLevels};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use control::{ControlRequest, Counters, Forgetting, MembershipRequest, NodeFacts, NodeResources};
use serde_json::{Value as Json, json as object};

fn auth_mechanisms() -> Json {
    let all = [
        ("PLAIN", "SASL PLAIN authentication mechanism"),
        ("AMQPLAIN", "QPid AMQPLAIN mechanism"),
    ];
    let shown =
        all.map(|(name, text)| object!({"name": name, "description": text, "enabled": true}));
    Json::Array(shown.to_vec())
}

/// Of RabbitMQ's plugins those that do what is built in here: tools look for them.
fn plugins(config: &Config) -> Vec<&'static str> {
    let listens = |what: &str| config.listeners.iter().any(|(name, _)| name.contains(what));
    let with = [
        ("web-mqtt", "rabbitmq_web_mqtt"),
        ("mqtt", "rabbitmq_mqtt"),
        ("prometheus", "rabbitmq_prometheus"),
    ];
    let with = with.into_iter().filter(|(listener, _)| listens(listener));
    let with = with.map(|(_, plugin)| plugin);
    std::iter::once("rabbitmq_management").chain(with).collect()
}

fn show(api: &Api, node: &NodeFacts, own: &Counters) -> Json {
    let config = api.config();
    let mut shown = object!({
        "name": node.name,
        "type": "disc",
        "running": node.running,
        "being_drained": node.maintenance,
        "voter": node.voter,
        "address": node.address,
        "zone": node.zone,
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
    if node.id == config.node {
        let measured = config.measured();
        show_resources(&mut shown, &measured);
        shown["sockets_used"] = object!(own.connections);
        if let Some(used) = rates::used(&measured, own.connections) {
            let figures = (&rates::USE[..], &used[..]);
            rates::show_levels(api, (Key::OwnUse, None), &mut shown, figures);
        }
        let figures = (&rates::CHURN[..], &rates::churn(own)[..]);
        rates::show_counts(api, (Key::OwnChurn, None), &mut shown, figures);
        shown["os_pid"] = object!(std::process::id().to_string());
        shown["rates_mode"] = object!(overview::RATES_MODE);
    }
    if let Some(seconds) = node.uptime_s {
        // Milliseconds, as RabbitMQ counts them.
        shown["uptime"] = object!(seconds.saturating_mul(1000));
    }
    shown
}

/// Of the node that answers: nobody measures another's machine.
fn show_resources(shown: &mut Json, measured: &NodeResources) {
    for (name, figure) in [
        ("mem_used", measured.memory_used),
        ("mem_limit", measured.memory_limit),
        ("disk_free", measured.disk_free),
        ("disk_free_limit", measured.disk_free_limit),
        ("fd_used", measured.descriptors_used),
        ("fd_total", measured.descriptors),
        ("sockets_total", measured.connections),
        ("proc_used", measured.threads),
        ("proc_total", measured.thread_limit),
        ("processors", measured.processors),
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

pub(crate) async fn list(api: &Api, call: &Call) -> Answer {
    call.monitor()?;
    let nodes = facts(api).await?;
    let own = overview::own_counters(api).await?;
    json(Json::Array(
        nodes.iter().map(|n| show(api, n, &own)).collect(),
    ))
}

/// A node by its name. One that came back under a new identity and its former self share a name: the running one counts.
pub(crate) async fn find(api: &Api, name: &str) -> Result<NodeFacts, ApiError> {
    let nodes = facts(api).await?;
    let mut named: Vec<_> = nodes.into_iter().filter(|n| n.name == name).collect();
    named.sort_by_key(|n| n.running);
    named.pop().ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(api: &Api, call: &Call, name: &str) -> Answer {
    call.monitor()?;
    let node = find(api, name).await?;
    json(show(api, &node, &overview::own_counters(api).await?))
}

/// Forgets a node that left or is drained. 202: its replicas are moved, and its vote is taken, first; ask again.
pub(crate) async fn forget(api: &Api, call: &Call, name: &str) -> Answer {
    call.administrator()?;
    let nodes = facts(api).await?;
    let named: Vec<_> = nodes.into_iter().filter(|n| n.name == name).collect();
    // Of two with this name the one that is down is meant.
    let leaves = named.iter().min_by_key(|n| n.running);
    let node = leaves.ok_or_else(ApiError::not_found)?.id;
    let state = api
        .ask(|reply| ControlRequest::Membership(MembershipRequest::Forget { node, reply }))
        .await??;
    match state {
        Forgetting::Forgotten => no_content(),
        Forgetting::Moving { queues } => {
            let body = object!({"state": "moving", "queues": queues});
            Ok((StatusCode::ACCEPTED, axum::Json(body)).into_response())
        }
    }
}

pub(crate) async fn maintenance(api: &Api, call: &Call, name: &str, on: bool) -> Answer {
    call.administrator()?;
    this_one(api, name).await?;
    let progress = api
        .ask(|reply| ControlRequest::Maintenance { on, reply })
        .await?;
    if !on {
        return no_content();
    }
    let left = progress.leaders_left > 0;
    json(object!({
        "state": if left { "draining" } else { "drained" },
        "leaders": progress.leaders_left,
        "connections": progress.connections_left,
    }))
}

/// `{"relative": 0.4}`: from there on the memory alarm is on, until the node ends.
pub(crate) async fn memory_watermark(api: &Api, call: &Call, name: &str) -> Answer {
    call.administrator()?;
    this_one(api, name).await?;
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

/// `{"absolute": 50000000}`: below so many bytes of free disk space the alarm is on, until the node ends.
pub(crate) async fn disk_free_limit(api: &Api, call: &Call, name: &str) -> Answer {
    call.administrator()?;
    this_one(api, name).await?;
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
    this_one(api, name).await?;
    api.config()
        .log_levels
        .as_ref()
        .ok_or_else(ApiError::not_found)
}

pub(crate) async fn show_log_levels(api: &Api, name: &str) -> Answer {
    let levels = (log_levels(api, name).await?.shown)();
    let shown = levels
        .into_iter()
        .map(|(category, level)| (category.to_owned(), object!(level)));
    json(Json::Object(shown.collect()))
}

pub(crate) async fn set_log_level(api: &Api, call: &Call, name: &str) -> Answer {
    let levels = log_levels(api, name).await?;
    let body = call.object()?;
    let body = Members(&body);
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

/// Fails unless `name` is the node that answers: only it can do this to itself.
async fn this_one(api: &Api, name: &str) -> Result<(), ApiError> {
    let node = find(api, name).await?;
    if node.id == api.config().node {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "this is node '{}'; ask node '{name}' itself",
        api.config().name
    )))
}

pub(crate) async fn rebalance(api: &Api, call: &Call) -> Answer {
    call.administrator()?;
    let moved = api
        .ask(|reply| ControlRequest::RebalanceQueues { reply })
        .await?;
    json(object!({"leaders_moved": moved}))
}
