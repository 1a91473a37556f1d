//! `/api/queues/quorum`: who holds the replicas of quorum queues (Q16, O8). Paths and words are RabbitMQ's; `replace` and
//! `evacuate` are ours.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::json::Members;
use crate::nodes;
use crate::queues::{NodeNames, node_names};
use auth::Pattern;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use control::{ControlRequest, MemberChange, MemberOutcome, MembershipRequest, ReplicaFacts, Vote};
use env::NodeId;
use metadata::{QueueCursor, QueueId, QueueRecord};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

/// The path behind `/api/queues/quorum`. None: it is not one of these, but of a vhost with the name `quorum`.
pub(crate) async fn route(api: &Api, call: &Call, method: &str, path: &[&str]) -> Option<Answer> {
    let answer = match (method, path) {
        ("GET", [vhost, name, "status"]) => status(api, call, vhost, name).await,
        ("POST", [vhost, name, "replicas", "add"]) => {
            let changed = of_one(api, call, vhost, name, MemberChange::Add).await;
            changed.and_then(|()| no_content())
        }
        ("DELETE" | "POST", [vhost, name, "replicas", "delete"]) => {
            let changed = of_one(api, call, vhost, name, MemberChange::Remove).await;
            changed.map(|()| StatusCode::ACCEPTED.into_response())
        }
        ("POST", [vhost, name, "replicas", "replace"]) => replace(api, call, vhost, name).await,
        ("POST", ["replicas", "on", node, "grow"]) => grow(api, call, node).await,
        ("DELETE" | "POST", ["replicas", "on", node, "shrink"]) => {
            of_node(api, call, node, MemberChange::Remove).await
        }
        ("POST", ["replicas", "on", node, "evacuate"]) => {
            of_node(api, call, node, MemberChange::Evacuate).await
        }
        _ => return None,
    };
    Some(answer)
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

async fn status(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    api.visible(call, vhost).await?;
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

/// What the queue's members are called in RabbitMQ's own answer. Figures that nobody told are null.
fn show(facts: &ReplicaFacts) -> Json {
    let replica = facts.replica.as_ref();
    let figure = |read: fn(&control::ReplicaStatus) -> u64| replica.map(read);
    object!({
        "Raft State": match replica {
            None => "noproc",
            Some(r) if r.is_leader => "leader",
            Some(r) if r.is_candidate => "candidate",
            Some(_) => "follower",
        },
        "Membership": match facts.vote {
            Vote::Voter => "voter",
            Vote::Promotable => "promotable",
            Vote::None => "none",
            Vote::Unknown => "unknown",
        },
        "Last Log Index": figure(|r| r.last_index),
        "Last Written": figure(|r| r.written),
        "Last Applied": figure(|r| r.applied),
        "Commit Index": figure(|r| r.commit),
        "Snapshot Index": figure(|r| r.checkpoint),
        "Term": figure(|r| r.term),
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

/// A node of the cluster by its name in the request's body.
async fn node_in_body(api: &Api, call: &Call, key: &str) -> Result<NodeId, ApiError> {
    let body = call.object()?;
    let name = Members(&body).required_text(key)?.to_owned();
    let found = nodes::find(api, &name)
        .await
        .map_err(|_| ApiError::bad_request(format!("there is no node '{name}' in this cluster")))?;
    Ok(found.id)
}

async fn of_one(
    api: &Api,
    call: &Call,
    vhost: &str,
    name: &str,
    what: impl FnOnce(NodeId) -> MemberChange,
) -> Result<(), ApiError> {
    call.administrator()?;
    let record = queue(api, vhost, name).await?;
    let node = node_in_body(api, call, "node").await?;
    one_outcome(change(api, vec![record.id], what(node)).await?)
}

fn one_outcome(outcomes: Vec<MemberOutcome>) -> Result<(), ApiError> {
    match outcomes.into_iter().next().map(|o| o.result) {
        Some(Ok(_)) => Ok(()),
        Some(Err(refused)) => Err(refused.into()),
        None => Err(ApiError::not_found()),
    }
}

/// `{"node": "old", "with": "new"}`
async fn replace(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    call.administrator()?;
    let record = queue(api, vhost, name).await?;
    let old = node_in_body(api, call, "node").await?;
    let new = node_in_body(api, call, "with").await?;
    let what = MemberChange::Replace { old, new };
    one_outcome(change(api, vec![record.id], what).await?)?;
    Ok(StatusCode::ACCEPTED.into_response())
}

/// A replica on the node for every queue that matches and has none there: `vhost_pattern`, `queue_pattern` and `strategy`,
/// which is `all`, or `even` for those with an even number of members.
async fn grow(api: &Api, call: &Call, node: &str) -> Answer {
    call.administrator()?;
    let node = nodes::find(api, node).await?;
    let body = call.object()?;
    let members = Members(&body);
    let even = match members.required_text("strategy")? {
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
    let fits = move |q: &QueueRecord| {
        !q.members.contains(&node.id)
            && (!even || q.members.len().is_multiple_of(2))
            && vhosts.matches(&q.vhost)
            && names.matches(&q.name)
    };
    let outcomes = of_many(api, fits, MemberChange::Add(node.id)).await?;
    json(outcomes)
}

/// Shrink and evacuate: every queue with a replica on the node, which need not run, that matches if patterns are given.
async fn of_node(api: &Api, call: &Call, node: &str, what: fn(NodeId) -> MemberChange) -> Answer {
    call.administrator()?;
    let node = nodes::find(api, node).await?.id;
    let body = call.object()?;
    let (vhosts, names) = patterns(&Members(&body))?;
    let fits = move |q: &QueueRecord| {
        q.members.contains(&node) && vhosts.matches(&q.vhost) && names.matches(&q.name)
    };
    let outcomes = of_many(api, fits, what(node)).await?;
    // The groups follow after the answer.
    Ok((StatusCode::ACCEPTED, axum::Json(outcomes)).into_response())
}

/// `vhost_pattern` and `queue_pattern`; not said: all.
fn patterns(body: &Members<'_>) -> Result<(Pattern, Pattern), ApiError> {
    let pattern = |key: &str| {
        let text = body.text(key)?.unwrap_or(".*");
        Pattern::compile(text).map_err(|e| ApiError::bad_request(format!("{key}: {e}")))
    };
    Ok((pattern("vhost_pattern")?, pattern("queue_pattern")?))
}

async fn of_many(
    api: &Api,
    fits: impl Fn(&QueueRecord) -> bool + Send + 'static,
    what: MemberChange,
) -> Result<Json, ApiError> {
    let mut records: Vec<Arc<QueueRecord>> = api
        .walk(QueueCursor::default(), move |_, q| {
            (q.kind.is_replicated() && fits(q)).then(|| q.clone())
        })
        .await?;
    records.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
    let ids = records.iter().map(|q| q.id).collect();
    let outcomes = match records.is_empty() {
        true => Vec::new(),
        false => change(api, ids, what).await?,
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
