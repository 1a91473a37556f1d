//! `/api/queues`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::browse;
use crate::connections;
use crate::consumers;
use crate::dispatch::{ApiResult, json, no_content, put};
use crate::error::ApiError;
use crate::json::{JsonMembers, from_table};
use crate::page::ListRequest;
use crate::rates::{self, Key, Samples};
use axum::http::StatusCode;
use control::{ControlRequest, QueueFacts};
use env::{NodeId, WallTime};
use metadata::{
    Change, ChangeResult, EffectivePolicy, QueueCursor, QueueId, QueueRecord, QueuesById, Right,
    SessionId, Tree,
};
use operations::{
    Caller, QueueDeclaration, QueueDeclarationPlan, QueueDeletion, QueueDeletionPlan, Resource,
};
use queue::{
    DelayedDetails, HeadMessage, QueueCounters, QueueReply, QueueStats, ReadyDetails, RequestBody,
};
use serde_json::{Value as Json, json as object};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;

/// A queue's state in the metadata tree.
pub(crate) struct QueueView {
    pub(crate) record: Arc<QueueRecord>,
    policy: Arc<EffectivePolicy>,
    is_lost: bool,
}

impl QueueView {
    fn of(tree: &Tree, record: &Arc<QueueRecord>) -> QueueView {
        QueueView {
            policy: tree.effective_policy(record),
            is_lost: tree.lost_on(record.id).is_some(),
            record: record.clone(),
        }
    }
}

pub(crate) type NodeNames = BTreeMap<NodeId, String>;

/// Node names by ID. Includes replaced nodes that had the only replica of a queue.
pub(crate) fn node_names(tree: &Tree) -> NodeNames {
    let mut names: NodeNames = tree.nodes().map(|n| (n.id, n.name.to_string())).collect();
    for (queue, node) in tree.lost_queues() {
        for member in tree.queue_by_id(queue).iter().flat_map(|q| &q.members) {
            names.entry(*member).or_insert_with(|| node.to_string());
        }
    }
    names
}

pub(crate) fn name_of(names: &NodeNames, id: NodeId) -> String {
    let view = names.get(&id).cloned();
    // The member was removed from the cluster meanwhile.
    view.unwrap_or_else(|| format!("{:016x}", id.0))
}

/// Adds counts and their rates.
fn show_stats(
    api: &Api,
    shown: &mut Json,
    id: QueueId,
    (stats, counters): (&QueueStats, &QueueCounters),
    samples: &Samples,
) {
    let depth = rates::lengths(
        stats.ready,
        stats.unacknowledged,
        stats.dead + stats.delayed,
    );
    let at = (Key::Depth(id.0), samples.lengths.as_ref());
    rates::show_lengths(api, at, shown, &depth);
    let mut message_stats = object!({});
    let counts = (&rates::COUNTS[..], &rates::queue_counts(counters)[..]);
    let at = (Key::Queue(id.0), samples.counts.as_ref());
    rates::show_counts(api, at, &mut message_stats, counts);
    shown["message_stats"] = message_stats;
}

/// Adds counts of ready messages by priority, with the names of RabbitMQ 4.3.
fn show_priorities(shown: &mut Json, ready: &ReadyDetails) {
    let counts = ready.by_priority.iter();
    let counts = counts.map(|(level, count)| (level.to_string(), object!(*count)));
    shown["messages_by_priority"] = Json::Object(counts.collect());
    shown["messages_ready_returned"] = object!(ready.returned);
}

/// Adds the counts of delayed messages, with the names of RabbitMQ 4.3. Times are in milliseconds since the epoch.
fn show_delayed(shown: &mut Json, delayed: Option<&DelayedDetails>) {
    shown["messages_delayed"] = object!(delayed.map_or(0, |delayed| delayed.messages));
    if let Some(delayed) = delayed {
        shown["next_delayed_at"] = object!(delayed.next_at);
        shown["last_delayed_at"] = object!(delayed.last_at);
    }
}

/// Whole seconds since the broker received a message.
pub(crate) fn age_seconds(head: &HeadMessage, now: WallTime) -> u64 {
    now.0.saturating_sub(head.received) / 1_000
}

/// Adds the times of the oldest ready message.
pub(crate) fn show_head(shown: &mut Json, head: &HeadMessage, now: WallTime) {
    shown["head_message_timestamp"] = object!(head.timestamp);
    shown["head_message_received_at"] = object!(head.received);
    shown["head_message_age_seconds"] = object!(age_seconds(head, now));
}

fn show(
    api: &Api,
    view: &QueueView,
    facts: Option<&QueueFacts>,
    names: &NodeNames,
    samples: &Samples,
) -> Json {
    let record = &view.record;
    let list =
        |ids: &[NodeId]| -> Vec<String> { ids.iter().map(|id| name_of(names, *id)).collect() };
    let stats = facts.and_then(|f| f.stats.as_ref());
    let leader = facts.and_then(|f| f.leader);
    // The only member leads, whether or not it answers.
    let only = record
        .members
        .first()
        .filter(|_| !record.kind.is_replicated());
    let leader = leader.or(only.copied());
    let leader = leader.map(|id| name_of(names, id));
    let members = facts.map(|f| &f.members).filter(|m| !m.is_empty());
    let online: &[NodeId] = match facts {
        Some(facts) if record.kind.is_replicated() => &facts.online,
        // The only member answered.
        Some(facts) if facts.stats.is_some() => &record.members,
        _ => &[],
    };
    let mut shown = object!({
        "name": &*record.name,
        "vhost": &*record.vhost,
        "type": record.kind.name(),
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "exclusive": record.exclusive.is_some(),
        "arguments": from_table(&record.arguments),
        "node": leader,
        "leader": leader,
        "members": list(members.unwrap_or(&record.members)),
        "online": list(online),
        "state": state_of(view.is_lost, stats),
        "policy": view.policy.name.as_deref(),
        "operator_policy": view.policy.operator_name.as_deref(),
        "effective_policy_definition": from_table(&view.policy.definition),
        "user_who_performed_action": &*record.declared_by,
    });
    // Statistics are omitted if no node answered for the queue.
    if let Some((facts, stats)) = facts.and_then(|f| Some((f, f.stats.as_ref()?))) {
        let has_levels = record.kind.descriptor().strict_priorities;
        match &facts.ready {
            Some(ready) => show_priorities(&mut shown, ready),
            None if has_levels && stats.ready == 0 => {
                show_priorities(&mut shown, &ReadyDetails::default());
            }
            None => {}
        }
        if has_levels {
            show_delayed(&mut shown, facts.delayed.as_ref());
        }
        show_stats(
            api,
            &mut shown,
            record.id,
            (stats, &facts.counters),
            samples,
        );
        shown["message_bytes"] = object!(stats.all_bytes());
        let unacknowledged = stats.unacknowledged_bytes;
        shown["message_bytes_ready"] = object!(stats.bytes.saturating_sub(unacknowledged));
        shown["message_bytes_unacknowledged"] = object!(unacknowledged);
        if record.kind.descriptor().all_persistent {
            // Such queues store every message on disk, whatever its delivery mode.
            shown["messages_persistent"] = shown["messages"].clone();
            shown["message_bytes_persistent"] = shown["message_bytes"].clone();
            shown["messages_dlx"] = object!(stats.dead);
            shown["message_bytes_dlx"] = object!(stats.dead_bytes);
        }
        shown["consumers"] = object!(stats.consumers);
        if let Some(head) = &facts.head {
            show_head(&mut shown, head, api.moment().wall);
        }
        if stats.lost.segments > 0 {
            shown["messages_lost"] = object!(stats.lost.messages);
            shown["segments_lost"] = object!(stats.lost.segments);
        }
    }
    shown
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, vhost: Option<&str>) -> ApiResult {
    let window = ListRequest::of(&call.query)?;
    let samples = Samples::of(call)?;
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    // Records are reference-counted, so this copies only references. Sorting here keeps it off the
    // shard.
    let mut records = api
        .walk(QueueCursor::default(), move |_, q| {
            let matches = only.as_deref().is_none_or(|v| *q.vhost == *v)
                && visible.as_ref().is_none_or(|v| v.contains(&*q.vhost));
            matches.then(|| q.clone())
        })
        .await?;
    let (names, lost) = api
        .read(|tree| {
            let lost: BTreeSet<QueueId> = tree.lost_queues().map(|(id, _)| id).collect();
            (node_names(tree), lost)
        })
        .await?;
    records.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
    let all = records.len();
    let (part, mut cut) = window.cut(records, |q| &q.name)?;
    let facts = facts_of(api, &part, (window.is_paged(), all)).await?;
    let now = api.moment().wall;
    let part = cut.sort_and_page(part, |q, path| {
        value_at(q, (lost.contains(&q.id), now), facts.get(&q.id), path)
    });
    let ids: Vec<QueueId> = part.iter().map(|q| q.id).collect();
    let view = api
        .walk(QueuesById::from(ids), |tree, q| {
            Some(QueueView::of(tree, q))
        })
        .await?;
    let shown = view
        .iter()
        .map(|k| show(api, k, facts.get(&k.record.id), &names, &samples));
    Ok(cut.respond(shown.collect()))
}

/// "lost": the only replica was on a node that lost its data directory. "down": no node answers for
/// the queue now.
fn state_of(is_lost: bool, stats: Option<&QueueStats>) -> &'static str {
    match (is_lost, stats) {
        (true, _) => "lost",
        (false, Some(_)) => "running",
        (false, None) => "down",
    }
}

/// The value that [`show`] renders at a path, without rendering. None if computing it is expensive.
fn value_at(
    record: &QueueRecord,
    (is_lost, now): (bool, WallTime),
    facts: Option<&QueueFacts>,
    path: &str,
) -> Option<Json> {
    let stats = facts.and_then(|f| f.stats.as_ref());
    let head = facts.and_then(|f| f.head.as_ref());
    let stat = |read: fn(&QueueStats) -> u64| Some(object!(stats.map(read)));
    match path {
        "name" => Some(object!(&*record.name)),
        "vhost" => Some(object!(&*record.vhost)),
        "type" => Some(object!(record.kind.name())),
        "state" => Some(object!(state_of(is_lost, stats))),
        "messages" => stat(QueueStats::messages),
        "messages_ready" => stat(|s| s.ready),
        "messages_unacknowledged" => stat(|s| s.unacknowledged),
        "messages_delayed" if record.kind.descriptor().strict_priorities => stat(|s| s.delayed),
        "message_bytes" => stat(QueueStats::all_bytes),
        "message_bytes_ready" => stat(|s| s.bytes.saturating_sub(s.unacknowledged_bytes)),
        "message_bytes_unacknowledged" => stat(|s| s.unacknowledged_bytes),
        "consumers" => stat(|s| s.consumers.into()),
        "head_message_timestamp" => Some(object!(head.and_then(|head| head.timestamp))),
        "head_message_received_at" => Some(object!(head.map(|head| head.received))),
        "head_message_age_seconds" => Some(object!(head.map(|head| age_seconds(head, now)))),
        _ => None,
    }
}

/// Gets statistics of the queues of a page: individually if the page is small, otherwise of all
/// queues.
async fn facts_of(
    api: &Api,
    part: &[Arc<QueueRecord>],
    (paged, all): (bool, usize),
) -> Result<BTreeMap<QueueId, QueueFacts>, ApiError> {
    const MAX_SINGLE_REQUESTS: usize = 16;
    /// An individual request goes to every shard; a request for all returns every queue.
    const MAX_PAGE_FRACTION: usize = 20;
    let mut facts = Vec::new();
    if part.is_empty() {
        // No statistics are needed.
    } else if paged && (part.len() <= MAX_SINGLE_REQUESTS || part.len() * MAX_PAGE_FRACTION <= all)
    {
        let mut requests = JoinSet::new();
        for queue in part {
            let (api, id) = (api.clone(), queue.id);
            requests.spawn(async move { api.queue_facts(Some(id)).await });
        }
        while let Some(answer) = requests.join_next().await {
            let answer = answer.map_err(|_| ApiError::unavailable("the node is stopping"))?;
            facts.extend(answer?);
        }
    } else {
        facts = api.queue_facts(None).await?;
    }
    Ok(facts.into_iter().map(|f| (f.id, f)).collect())
}

/// The record of a queue, or 404.
pub(crate) async fn find(api: &Api, vhost: &str, name: &str) -> Result<QueueView, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    let view = api
        .read(move |tree| tree.queue(&vhost, &name).map(|q| QueueView::of(tree, q)))
        .await?;
    view.ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let samples = Samples::of(call)?;
    let view = find(api, vhost, name).await?;
    let id = view.record.id;
    let facts = api.queue_facts(Some(id)).await?;
    let names = api.read(node_names).await?;
    let facts = facts.iter().find(|f| f.id == id);
    let mut shown = show(api, &view, facts, &names, &samples);
    let consumers = consumers::consumer_list(api, Some(id)).await?;
    let tag_of = |which: &str| {
        let found = consumers.iter().find(|c| c[which] == true);
        found.map_or(Json::Null, |c| c["consumer_tag"].clone())
    };
    shown["exclusive_consumer_tag"] = tag_of("exclusive");
    let single = view.record.arguments.get("x-single-active-consumer");
    shown["single_active_consumer_tag"] = match single {
        Some(message::Value::Bool(true)) => tag_of("active"),
        _ => Json::Null,
    };
    if let Some(owner) = view.record.exclusive {
        show_owner(api, &mut shown, owner).await?;
    }
    // Without the feature flag, owners do not tell. Then the message is read.
    let is_head_untold = facts
        .filter(|facts| facts.head.is_none())
        .and_then(|facts| facts.stats.as_ref())
        .is_some_and(|stats| stats.ready > 0);
    if is_head_untold && !view.record.kind.descriptor().cursors {
        browse::show_head(api, &mut shown, id).await;
    }
    shown["consumer_details"] = Json::Array(consumers);
    // As for exchanges, counts per channel are not kept.
    shown["incoming"] = object!([]);
    shown["deliveries"] = object!([]);
    json(call.query.columns_of(shown))
}

/// RabbitMQ keeps this path for actions on mirrored queues, which no longer exist: every action is
/// rejected.
pub(crate) async fn reject_action(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    find_or_queue_not_found(api, vhost, name).await?;
    let body = call.object()?;
    JsonMembers(&body).require(&["action"])?;
    Err(ApiError::bad_request(object!([
        "unknown",
        body.get("action")
    ])))
}

/// Like [`find`], with RabbitMQ's error for requests other than GET.
async fn find_or_queue_not_found(
    api: &Api,
    vhost: &str,
    name: &str,
) -> Result<QueueView, ApiError> {
    let missing = |error: ApiError| match error.status {
        StatusCode::NOT_FOUND => ApiError::missing("queue_not_found"),
        _ => error,
    };
    find(api, vhost, name).await.map_err(missing)
}

/// Adds the connection that owns an exclusive queue, if it still exists.
async fn show_owner(api: &Api, shown: &mut Json, owner: SessionId) -> Result<(), ApiError> {
    let connections = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    let mut connections = connections.iter();
    if let Some(found) = connections.find(|c| (c.node, c.number) == (owner.node, owner.number)) {
        let (host, port) = connections::address(&found.peer);
        shown["owner_pid_details"] =
            object!({"name": found.name, "peer_host": host, "peer_port": port});
    }
    Ok(())
}

/// Returns the queue whose messages a request consumes, after checking permissions.
pub(crate) async fn find_readable(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> Result<QueueId, ApiError> {
    let queue = name.to_owned();
    let check = move |caller: Caller<'_>| caller.check(Right::Read, Resource::Queue(&queue));
    let permitted = api.operate(call, vhost, check).await;
    permitted.map_err(|e| e.with_amqp_code("ACCESS_REFUSED"))?;
    let record = find_or_queue_not_found(api, vhost, name).await?.record;
    let queue = record.clone();
    let check = move |caller: Caller<'_>| caller.check_exclusive(&queue);
    let usable = api.operate(call, vhost, check).await;
    usable.map_err(|e| e.with_amqp_code("405 RESOURCE_LOCKED"))?;
    Ok(record.id)
}

pub(crate) async fn declare(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let body = call.object()?;
    let declaration = declaration(name, &JsonMembers(&body))?;
    let plan = move |caller: Caller<'_>| caller.plan_queue_declaration(declaration);
    match api.operate(call, vhost, plan).await? {
        QueueDeclarationPlan::Exists(_) => put(true),
        QueueDeclarationPlan::Propose(record) => {
            let record = place(api, record).await?;
            match api.change(Change::DeclareQueue(record)).await? {
                ChangeResult::Queue { created, .. } => put(!created),
                other => Err(ApiError::unavailable(format!(
                    "the declaration was answered with {other:?}"
                ))),
            }
        }
    }
}

/// The queue's entry in a definitions document.
pub(crate) fn definition(record: &QueueRecord) -> Json {
    object!({
        "name": &*record.name,
        "vhost": &*record.vhost,
        "type": record.kind.name(),
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "arguments": from_table(&record.arguments),
    })
}

/// Parses the queue of a request.
pub(crate) fn declaration(
    name: &str,
    body: &JsonMembers<'_>,
) -> Result<QueueDeclaration, ApiError> {
    Ok(QueueDeclaration {
        name: name.into(),
        is_server_named: false,
        durable: body.flag("durable", true)?,
        exclusive: false,
        auto_delete: body.flag("auto_delete", false)?,
        arguments: body.table("arguments")?.unwrap_or_default(),
    })
}

/// Chooses the members of a queue to declare.
pub(crate) async fn place(api: &Api, mut record: QueueRecord) -> Result<QueueRecord, ApiError> {
    let requested = Box::new(record.clone());
    record.members = api
        .ask(|reply| ControlRequest::PlaceQueue {
            record: requested,
            reply,
        })
        .await?;
    Ok(record)
}

pub(crate) async fn delete(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let deletion = QueueDeletion {
        if_unused: call.query.is_true("if-unused"),
        if_empty: call.query.is_true("if-empty"),
    };
    let queue = name.to_owned();
    let plan = move |caller: Caller<'_>| caller.plan_queue_deletion(&queue, deletion);
    let change = match api.operate(call, vhost, plan).await? {
        QueueDeletionPlan::Done => return Err(ApiError::not_found()),
        QueueDeletionPlan::Propose(change) => change,
        QueueDeletionPlan::AskQueue {
            record,
            request: body,
            change,
        } => {
            if deletion != QueueDeletion::default() {
                // Only the queue itself can check this without a race with publishers.
                request(api, record.id, body).await?;
            }
            change
        }
    };
    api.change(change).await?;
    no_content()
}

pub(crate) async fn purge(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let queue = name.to_owned();
    let check = move |caller: Caller<'_>| caller.check(Right::Read, Resource::Queue(&queue));
    api.operate(call, vhost, check).await?;
    let record = find(api, vhost, name).await?.record;
    let queue = record.clone();
    let check = move |caller: Caller<'_>| caller.check_exclusive(&queue);
    api.operate(call, vhost, check).await?;
    request(api, record.id, RequestBody::Purge).await?;
    no_content()
}

async fn request(api: &Api, queue: QueueId, body: RequestBody) -> Result<(), ApiError> {
    let answer = api
        .ask(|reply| ControlRequest::Queue { queue, body, reply })
        .await??;
    match answer {
        QueueReply::Refused { text, .. } => Err(ApiError::bad_request(text)),
        QueueReply::NotTaken(_) => Err(ApiError::unavailable("the queue is not available")),
        QueueReply::Consuming
        | QueueReply::EpochContinues
        | QueueReply::Empty
        | QueueReply::Credited { .. }
        | QueueReply::Stream(_)
        | QueueReply::Count { .. } => Ok(()),
    }
}
