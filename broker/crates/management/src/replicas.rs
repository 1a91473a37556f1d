//! `/api/queues/quorum`: replica management of quorum queues. Paths and JSON are RabbitMQ's, except
//! for `replace` and `evacuate`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::json::JsonMembers;
use crate::nodes;
use crate::queues::{NodeNames, node_names};
use auth::Pattern;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use control::{
    ControlRequest, MemberChange, MemberOutcome, MembershipRequest, ReplicaFacts, VotingState,
};
use env::NodeId;
use metadata::{QueueCursor, QueueId, QueueRecord};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

/// Adds a member: `{"node": "new"}`.
pub(crate) async fn add(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    change_one(api, call, vhost, name, MemberChange::Add).await?;
    no_content()
}

/// Removes a member: `{"node": "old"}`.
pub(crate) async fn remove(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    change_one(api, call, vhost, name, MemberChange::Remove).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Removes replicas of the matching queues from the node.
pub(crate) async fn shrink(api: &Api, call: &AuthenticatedRequest, node: &str) -> ApiResult {
    change_on_node(api, call, node, MemberChange::Remove).await
}

/// Moves replicas of the matching queues from the node to other nodes.
pub(crate) async fn evacuate(api: &Api, call: &AuthenticatedRequest, node: &str) -> ApiResult {
    change_on_node(api, call, node, MemberChange::Evacuate).await
}

fn name_of(names: &NodeNames, node: NodeId) -> String {
    let known = names.get(&node).cloned();
    known.unwrap_or_else(|| format!("{:016x}", node.0))
}

async fn queue(api: &Api, vhost: &str, name: &str) -> Result<Arc<QueueRecord>, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    let found = api
        .read(move |tree| tree.queue(&vhost, &name).cloned())
        .await?;
    found.ok_or_else(ApiError::not_found)
}

pub(crate) async fn status(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let record = queue(api, vhost, name).await?;
    if !record.kind.is_replicated() {
        return Err(ApiError::unavailable(format!(
            "{}_queue_not_supported",
            record.kind.name()
        )));
    }
    let queue = record.id;
    let replicas = api
        .ask(|reply| ControlRequest::Membership(MembershipRequest::Replicas { queue, reply }))
        .await?;
    let names = api.read(node_names).await?;
    let mut shown: Vec<(String, Json)> = replicas
        .iter()
        .map(|r| (name_of(&names, r.node), show(r)))
        .collect();
    shown.sort_by(|a, b| a.0.cmp(&b.0));
    let named = shown.into_iter().map(|(name, mut replica)| {
        replica["Node Name"] = object!(name);
        replica
    });
    json(Json::Array(named.collect()))
}

/// A replica in RabbitMQ's format. Values of a replica that did not answer are null.
fn show(facts: &ReplicaFacts) -> Json {
    let replica = facts.replica.as_ref();
    let value = |read: fn(&control::ReplicaStatus) -> u64| replica.map(read);
    object!({
        "Raft State": match replica {
            None => "noproc",
            Some(r) if r.is_leader => "leader",
            Some(r) if r.is_candidate => "candidate",
            Some(_) => "follower",
        },
        "Membership": match facts.vote {
            VotingState::Voter => "voter",
            VotingState::Promotable => "promotable",
            VotingState::None => "none",
            VotingState::Unknown => "unknown",
        },
        "Last Log Index": value(|r| r.last_index),
        "Last Written": value(|r| r.written),
        "Last Applied": value(|r| r.applied),
        "Commit Index": value(|r| r.commit),
        "Snapshot Index": value(|r| r.checkpoint),
        "Term": value(|r| r.term),
    })
}

async fn change(
    api: &Api,
    queues: Vec<QueueId>,
    change: MemberChange,
) -> Result<Vec<MemberOutcome>, ApiError> {
    api.ask(|reply| {
        ControlRequest::Membership(MembershipRequest::Change {
            queues,
            change,
            reply,
        })
    })
    .await
}

/// Finds the node that the request's body names.
async fn node_in_body(
    api: &Api,
    call: &AuthenticatedRequest,
    key: &str,
) -> Result<NodeId, ApiError> {
    let body = call.object()?;
    let name = JsonMembers(&body).required_text(key)?.to_owned();
    let found = nodes::find(api, &name)
        .await
        .map_err(|_| ApiError::bad_request(format!("there is no node '{name}' in this cluster")))?;
    Ok(found.id)
}

async fn change_one(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
    member_change: impl FnOnce(NodeId) -> MemberChange,
) -> Result<(), ApiError> {
    call.require_administrator()?;
    let record = queue(api, vhost, name).await?;
    let node = node_in_body(api, call, "node").await?;
    single_outcome(change(api, vec![record.id], member_change(node)).await?)
}

fn single_outcome(outcomes: Vec<MemberOutcome>) -> Result<(), ApiError> {
    match outcomes.into_iter().next().map(|o| o.result) {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(error.into()),
        None => Err(ApiError::not_found()),
    }
}

/// Replaces a member: `{"node": "old", "with": "new"}`.
pub(crate) async fn replace(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    call.require_administrator()?;
    let record = queue(api, vhost, name).await?;
    let old = node_in_body(api, call, "node").await?;
    let new = node_in_body(api, call, "with").await?;
    let member_change = MemberChange::Replace { old, new };
    single_outcome(change(api, vec![record.id], member_change).await?)?;
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Adds a replica on the node to every matching queue that has none there. The body has
/// `vhost_pattern`, `queue_pattern` and `strategy`: `all`, or `even` for queues with an even number
/// of members.
pub(crate) async fn grow(api: &Api, call: &AuthenticatedRequest, node: &str) -> ApiResult {
    call.require_administrator()?;
    let node = nodes::find(api, node).await?;
    let body = call.object()?;
    let members = JsonMembers(&body);
    let only_even = match members.required_text("strategy")? {
        "all" => false,
        "even" => true,
        other => {
            return Err(ApiError::bad_request(format!(
                "strategy is all or even, not '{other}'"
            )));
        }
    };
    let (vhosts, names) = patterns(&members)?;
    if !node.running {
        return Err(ApiError::unavailable(format!(
            "node '{}' is not running",
            node.name
        )));
    }
    let matches = move |q: &QueueRecord| {
        !q.members.contains(&node.id)
            && (!only_even || q.members.len().is_multiple_of(2))
            && vhosts.matches(&q.vhost)
            && names.matches(&q.name)
    };
    let outcomes = change_many(api, matches, MemberChange::Add(node.id)).await?;
    json(outcomes)
}

/// Shrink and evacuate: every matching queue with a replica on the node, which may be down.
async fn change_on_node(
    api: &Api,
    call: &AuthenticatedRequest,
    node: &str,
    member_change: fn(NodeId) -> MemberChange,
) -> ApiResult {
    call.require_administrator()?;
    let node = nodes::find(api, node).await?.id;
    let body = call.object()?;
    let (vhosts, names) = patterns(&JsonMembers(&body))?;
    let matches = move |q: &QueueRecord| {
        q.members.contains(&node) && vhosts.matches(&q.vhost) && names.matches(&q.name)
    };
    let outcomes = change_many(api, matches, member_change(node)).await?;
    // The Raft groups change their membership after the response.
    Ok((StatusCode::ACCEPTED, axum::Json(outcomes)).into_response())
}

/// Parses `vhost_pattern` and `queue_pattern`; both default to all.
fn patterns(body: &JsonMembers<'_>) -> Result<(Pattern, Pattern), ApiError> {
    let pattern = |key: &str| {
        let text = body.text(key)?.unwrap_or(".*");
        Pattern::compile(text).map_err(|e| ApiError::bad_request(format!("{key}: {e}")))
    };
    Ok((pattern("vhost_pattern")?, pattern("queue_pattern")?))
}

async fn change_many(
    api: &Api,
    matches: impl Fn(&QueueRecord) -> bool + Send + 'static,
    member_change: MemberChange,
) -> Result<Json, ApiError> {
    let mut records: Vec<Arc<QueueRecord>> = api
        .walk(QueueCursor::default(), move |_, q| {
            (q.kind.is_replicated() && matches(q)).then(|| q.clone())
        })
        .await?;
    records.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
    let ids = records.iter().map(|q| q.id).collect();
    let outcomes = match records.is_empty() {
        true => Vec::new(),
        false => change(api, ids, member_change).await?,
    };
    let names = api.read(node_names).await?;
    let shown = records.iter().filter_map(|q| {
        let outcome = outcomes.iter().find(|o| o.queue == q.id)?;
        Some(show_outcome(q, outcome, &names))
    });
    Ok(Json::Array(shown.collect()))
}

fn show_outcome(record: &QueueRecord, outcome: &MemberOutcome, names: &NodeNames) -> Json {
    let members = outcome.result.as_ref().unwrap_or(&record.members);
    let list: Vec<String> = members.iter().map(|n| name_of(names, *n)).collect();
    object!({
        "vhost": &*record.vhost,
        "name": &*record.name,
        "size": members.len(),
        "members": list,
        "result": if outcome.result.is_ok() { "ok" } else { "error" },
        "reason": outcome.result.as_ref().err().map(ToString::to_string),
    })
}
