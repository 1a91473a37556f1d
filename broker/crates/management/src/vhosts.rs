//! `/api/vhosts`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content, put as put_answer};
use crate::error::ApiError;
use crate::json::{JsonMembers, term};
use crate::lengths::{self, MessageTotals};
use crate::limits;
use crate::nodes;
use crate::page::ListRequest;
use crate::rates::{self, Key, Samples};
use control::{NodeFacts, TrafficFacts, TrafficFilter};
use metadata::{Change, Name, PermissionRecord, QueueType, VhostRecord};
use serde_json::{Map, Value as Json, json as object};
use std::sync::Arc;

/// The vhost's entry in a definitions document.
pub(crate) fn definition(vhost: &VhostRecord) -> Json {
    let tags: Vec<&str> = vhost.tags.iter().map(|t| &**t).collect();
    let kind = vhost.default_queue_type.unwrap_or_default().name();
    object!({
        "name": &*vhost.name,
        "description": &*vhost.description,
        "tags": tags,
        "default_queue_type": kind,
        "protected_from_deletion": vhost.protected,
        "limits": Json::Object(limits::values(&vhost.limits)),
        "metadata": {
            "description": &*vhost.description,
            "tags": tags,
            "default_queue_type": kind,
            "protected_from_deletion": vhost.protected,
        },
        "tracing": vhost.traced,
    })
}

fn show(
    api: &Api,
    vhost: &VhostRecord,
    nodes: &[NodeFacts],
    (traffic, depths): (&TrafficFacts, &MessageTotals),
    samples: &Samples,
) -> Json {
    let mut shown = definition(vhost);
    let counts = traffic.vhosts.get(&*vhost.name).copied();
    let stats_of = rates::counts(&counts.unwrap_or_default());
    let at = (Key::Vhost(vhost.name.to_string()), samples.counts.as_ref());
    let mut stats = object!({});
    rates::show_counts(api, at, &mut stats, (&rates::COUNTS, &stats_of));
    shown["message_stats"] = stats;
    let lengths = depths.get(&vhost.name).copied().unwrap_or_default();
    let key = Key::VhostDepth(vhost.name.to_string());
    rates::show_lengths(api, (key, samples.lengths.as_ref()), &mut shown, &lengths);
    let state = |n: &NodeFacts| if n.running { "running" } else { "stopped" };
    let nodes = nodes.iter().map(|n| (n.name.clone(), object!(state(n))));
    shown["cluster_state"] = Json::Object(nodes.collect());
    shown
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    // Monitoring users see all vhosts, but not their contents.
    let visible = match call.is_monitor() {
        true => None,
        false => api.visible_vhosts(call).await?,
    };
    let mut found: Vec<VhostRecord> = api
        .read(|tree| tree.vhosts().into_iter().cloned().collect())
        .await?;
    let nodes = nodes::facts(api).await?;
    let samples = Samples::of(call)?;
    found.retain(|v| visible.as_ref().is_none_or(|set| set.contains(&*v.name)));
    let (part, cut) = ListRequest::of(&call.query)?.cut(found, |v| &v.name)?;
    let stats_of = (&traffic(api, &part).await?, &*lengths::of_all(api).await?);
    let shown = part.iter();
    let shown = shown.map(|v| show(api, v, &nodes, stats_of, &samples));
    Ok(cut.respond(shown.collect()))
}

/// Traffic counts of these vhosts.
async fn traffic(api: &Api, vhosts: &[VhostRecord]) -> Result<TrafficFacts, ApiError> {
    let filter = TrafficFilter {
        vhosts: vhosts.iter().map(|v| v.name.to_string()).collect(),
        ..TrafficFilter::default()
    };
    api.traffic(filter).await
}

async fn find(api: &Api, name: &str) -> Result<Option<Arc<VhostRecord>>, ApiError> {
    let name = name.to_owned();
    api.read(move |tree| tree.vhost(&name).cloned()).await
}

pub(crate) async fn get(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    api.require_vhost_visible(call, name).await?;
    let samples = Samples::of(call)?;
    let vhost = find(api, name).await?.ok_or_else(ApiError::not_found)?;
    let nodes = nodes::facts(api).await?;
    let traffic = traffic(api, std::slice::from_ref(&*vhost)).await?;
    let depths = lengths::of_all(api).await?;
    json(show(api, &vhost, &nodes, (&traffic, &depths), &samples))
}

pub(crate) async fn put(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    call.require_administrator()?;
    let body = call.object()?;
    let before = find(api, name).await?;
    declare(api, call, name, &JsonMembers(&body), before.as_deref()).await?;
    put_answer(before.is_some())
}

/// Parses the default queue type: a top-level key, or in `metadata` as in RabbitMQ's definitions
/// files.
fn default_type(body: &JsonMembers<'_>) -> Result<Option<QueueType>, ApiError> {
    let metadata = body.0.get("metadata").and_then(Json::as_object);
    let type_in_metadata = metadata.and_then(|m| m.get("default_queue_type")?.as_str());
    // RabbitMQ exports "undefined" if no type is set.
    let name = body.text("default_queue_type")?.or(type_in_metadata);
    match name {
        None | Some("undefined" | "") => Ok(None),
        Some(name) => {
            let kind = QueueType::from_name(name);
            let why = || ApiError::bad_request(format!("Unsupported default queue type: '{name}'"));
            kind.ok_or_else(why).map(Some)
        }
    }
}

/// Creates or changes a vhost. Omitted values are kept from `old`. As in RabbitMQ, the creator gets
/// permissions in a new vhost.
pub(crate) async fn declare(
    api: &Api,
    call: &AuthenticatedRequest,
    name: &str,
    body: &JsonMembers<'_>,
    old: Option<&VhostRecord>,
) -> Result<(), ApiError> {
    let kind = default_type(body)?;
    let existing = find(api, name).await?;
    // A new vhost without a type gets the node's default.
    let kind = kind.or_else(|| {
        api.config()
            .default_queue_type
            .filter(|_| existing.is_none())
    });
    api.change(change(name, body, old)?).await?;
    let before = existing.as_ref().and_then(|v| v.default_queue_type);
    let quorum = kind.filter(|k| *k != QueueType::default());
    if kind.is_some() && quorum != before {
        let change = Change::SetDefaultQueueType {
            vhost: name.into(),
            kind: quorum,
        };
        api.change(change).await?;
    }
    if !matches!(body.0.get("tracing"), None | Some(Json::Null)) {
        let vhost = name.into();
        let on = body.flag("tracing", false)?;
        if on != existing.as_ref().is_some_and(|v| v.traced) {
            api.change(Change::TraceVhost { vhost, on }).await?;
        }
    }
    if body.flag("protected_from_deletion", false)? {
        api.change(Change::ProtectVhost {
            vhost: name.into(),
            on: true,
        })
        .await?;
    }
    // The operator and users of tokens have no user record that could hold permissions.
    let is_stored = call
        .identity
        .as_ref()
        .is_none_or(|identity| identity.permissions == metadata::IdentityPermissions::Stored);
    if existing.is_none() && !call.is_operator && is_stored {
        let all_names: Name = ".*".into();
        let permission = PermissionRecord {
            user: call.user.name.clone(),
            vhost: name.into(),
            configure: all_names.clone(),
            write: all_names.clone(),
            read: all_names,
        };
        api.change(Change::PutPermission(permission)).await?;
    }
    Ok(())
}

/// A vhost runs on every running node, so there is nothing to start. In RabbitMQ it may have
/// stopped.
pub(crate) async fn start(api: &Api, name: &str, node: &str) -> ApiResult {
    let failed =
        |why: &str| ApiError::bad_request(format!("Request to node {node} failed with {why}"));
    let nodes = nodes::facts(api).await?;
    if !nodes.iter().any(|n| n.name == node && n.running) {
        return Err(failed("nodedown"));
    }
    match find(api, name).await? {
        Some(_) => no_content(),
        None => Err(failed(&format!(
            "{{no_such_vhost,{}}}",
            term(&object!(name))
        ))),
    }
}

pub(crate) async fn protect(api: &Api, name: &str, on: bool) -> ApiResult {
    let vhost = name.into();
    api.change(Change::ProtectVhost { vhost, on }).await?;
    no_content()
}

/// Builds the change of a request. Omitted values are kept from `old`.
fn change(
    name: &str,
    body: &JsonMembers<'_>,
    old: Option<&VhostRecord>,
) -> Result<Change, ApiError> {
    let empty = Map::new();
    // RabbitMQ's definitions files have these keys only in `metadata`.
    let metadata = body.0.get("metadata").and_then(Json::as_object);
    let metadata = JsonMembers(metadata.unwrap_or(&empty));
    let description: Name = match body.text("description")?.or(metadata.text("description")?) {
        Some(text) => text.into(),
        None => old.map_or_else(|| "".into(), |v| v.description.clone()),
    };
    let tags = match body.words("tags")?.or(metadata.words("tags")?) {
        Some(tags) => tags,
        None => old.map_or_else(Vec::new, |v| v.tags.clone()),
    };
    Ok(Change::PutVhost {
        name: name.into(),
        description,
        tags,
    })
}

pub(crate) async fn delete(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    call.require_administrator()?;
    let vhost = find(api, name).await?.ok_or_else(ApiError::not_found)?;
    if vhost.protected {
        return Err(ApiError::precondition_failed(format!(
            "Refusing to delete virtual host '{name}' because it is protected from deletion"
        )));
    }
    api.change(Change::DeleteVhost { name: name.into() })
        .await?;
    no_content()
}
