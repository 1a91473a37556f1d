//! `/api/queues`.

use crate::access::{Call, ResourceName};
use crate::ask::Api;
use crate::connections;
use crate::consumers;
use crate::dispatch::{Answer, json, no_content, put};
use crate::error::ApiError;
use crate::json::{Members, from_table};
use crate::page::Window;
use crate::rates::{self, Key, Samples};
use axum::http::StatusCode;
use control::{ControlRequest, QueueFacts};
use env::NodeId;
use message::Value;
use metadata::{
    Change, ChangeResult, EffectivePolicy, QueueCursor, QueueId, QueueRecord, QueuesById, Right,
    SessionId, Tree,
};
use queue::{QueueCounters, QueueReply, QueueStats, RequestBody};
use serde_json::{Value as Json, json as object};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;

/// What the tree knows of a queue, copied out.
struct Known {
    record: Arc<QueueRecord>,
    policy: Arc<EffectivePolicy>,
    is_lost: bool,
}

impl Known {
    fn of(tree: &Tree, record: &Arc<QueueRecord>) -> Known {
        Known {
            policy: tree.effective_policy(record),
            is_lost: tree.lost_on(record.id).is_some(),
            record: record.clone(),
        }
    }
}

pub(crate) type NodeNames = BTreeMap<NodeId, String>;

/// Also of nodes that were replaced and had the only copy of a queue.
pub(crate) fn node_names(tree: &Tree) -> NodeNames {
    let mut names: NodeNames = tree.nodes().map(|n| (n.id, n.name.to_string())).collect();
    for (queue, node) in tree.lost_queues() {
        for member in tree.queue_by_id(queue).iter().flat_map(|q| &q.members) {
            names.entry(*member).or_insert_with(|| node.to_string());
        }
    }
    names
}

fn name_of(names: &NodeNames, id: NodeId) -> String {
    let known = names.get(&id).cloned();
    // A member that was forgotten meanwhile.
    known.unwrap_or_else(|| format!("{:016x}", id.0))
}

/// Counts and how they change.
fn show_figures(
    api: &Api,
    shown: &mut Json,
    id: QueueId,
    (stats, counters): (&QueueStats, &QueueCounters),
    samples: &Samples,
) {
    let depth = rates::lengths(stats.ready, stats.unacknowledged, stats.dead);
    let at = (Key::Depth(id.0), samples.lengths.as_ref());
    rates::show_lengths(api, at, shown, &depth);
    let mut message_stats = object!({});
    let counts = (&rates::COUNTS[..], &rates::queue_counts(counters)[..]);
    let at = (Key::Queue(id.0), samples.counts.as_ref());
    rates::show_counts(api, at, &mut message_stats, counts);
    shown["message_stats"] = message_stats;
}

fn show(
    api: &Api,
    known: &Known,
    facts: Option<&QueueFacts>,
    names: &NodeNames,
    samples: &Samples,
) -> Json {
    let record = &known.record;
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
        "state": state_of(known.is_lost, stats),
        "policy": known.policy.name.as_deref(),
        "operator_policy": known.policy.operator_name.as_deref(),
        "effective_policy_definition": from_table(&known.policy.definition),
        "user_who_performed_action": &*record.declared_by,
    });
    // Figures of a queue that nobody answers for are left out rather than invented.
    if let Some((facts, stats)) = facts.and_then(|f| Some((f, f.stats.as_ref()?))) {
        show_figures(
            api,
            &mut shown,
            record.id,
            (stats, &facts.counters),
            samples,
        );
        shown["message_bytes"] = object!(stats.bytes + stats.dead_bytes);
        if let Some(out) = stats.unacknowledged_bytes {
            shown["message_bytes_ready"] = object!(stats.bytes.saturating_sub(out));
            shown["message_bytes_unacknowledged"] = object!(out);
        }
        if record.kind.descriptor().all_persistent {
            shown["messages_persistent"] = shown["messages"].clone();
            shown["message_bytes_persistent"] = shown["message_bytes"].clone();
            shown["messages_dlx"] = object!(stats.dead);
            shown["message_bytes_dlx"] = object!(stats.dead_bytes);
        }
        shown["consumers"] = object!(stats.consumers);
        if stats.lost.segments > 0 {
            shown["messages_lost"] = object!(stats.lost.messages);
            shown["segments_lost"] = object!(stats.lost.segments);
        }
    }
    shown
}

pub(crate) async fn list(api: &Api, call: &Call, vhost: Option<&str>) -> Answer {
    let window = Window::of(&call.query)?;
    let samples = Samples::of(call)?;
    if let Some(vhost) = vhost {
        api.visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    // Records are shared: this copies references. Sorting is done here, not on the shard.
    let mut records = api
        .walk(QueueCursor::default(), move |_, q| {
            let fits = only.as_deref().is_none_or(|v| *q.vhost == *v)
                && visible.as_ref().is_none_or(|v| v.contains(&*q.vhost));
            fits.then(|| q.clone())
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
    let part = cut.choose(part, |q, path| {
        value_at(q, lost.contains(&q.id), facts.get(&q.id), path)
    });
    let ids: Vec<QueueId> = part.iter().map(|q| q.id).collect();
    let known = api
        .walk(QueuesById::from(ids), |tree, q| Some(Known::of(tree, q)))
        .await?;
    let shown = known
        .iter()
        .map(|k| show(api, k, facts.get(&k.record.id), &names, &samples));
    Ok(cut.respond(shown.collect()))
}

/// "lost": its only copy was on a node that lost its data directory. "down": nobody answers for it now.
fn state_of(is_lost: bool, stats: Option<&QueueStats>) -> &'static str {
    match (is_lost, stats) {
        (true, _) => "lost",
        (false, Some(_)) => "running",
        (false, None) => "down",
    }
}

/// What [`show`] has at a path, without making it; None where that takes more than a look.
fn value_at(
    record: &QueueRecord,
    is_lost: bool,
    facts: Option<&QueueFacts>,
    path: &str,
) -> Option<Json> {
    let stats = facts.and_then(|f| f.stats.as_ref());
    let figure = |of: fn(&QueueStats) -> u64| Some(object!(stats.map(of)));
    match path {
        "name" => Some(object!(&*record.name)),
        "vhost" => Some(object!(&*record.vhost)),
        "type" => Some(object!(record.kind.name())),
        "state" => Some(object!(state_of(is_lost, stats))),
        "messages" => figure(|s| s.ready + s.unacknowledged + s.dead),
        "messages_ready" => figure(|s| s.ready),
        "messages_unacknowledged" => figure(|s| s.unacknowledged),
        "message_bytes" => figure(|s| s.bytes + s.dead_bytes),
        "message_bytes_ready" => {
            let ready = |s: &QueueStats| Some(s.bytes.saturating_sub(s.unacknowledged_bytes?));
            Some(object!(stats.and_then(ready)))
        }
        "message_bytes_unacknowledged" => Some(object!(stats.and_then(|s| s.unacknowledged_bytes))),
        "consumers" => figure(|s| s.consumers.into()),
        _ => None,
    }
}

/// A page of a few queues, or of a small part of all, asks for those only.
async fn facts_of(
    api: &Api,
    part: &[Arc<QueueRecord>],
    (paged, all): (bool, usize),
) -> Result<BTreeMap<QueueId, QueueFacts>, ApiError> {
    const FEW: usize = 16;
    /// Asking for one is a question to each shard, whatever there is; for all, an answer about each queue.
    const SMALL_PART: usize = 20;
    let mut facts = Vec::new();
    if part.is_empty() {
        // Nothing to ask for.
    } else if paged && (part.len() <= FEW || part.len() * SMALL_PART <= all) {
        let mut asked = JoinSet::new();
        for queue in part {
            let (api, id) = (api.clone(), queue.id);
            asked.spawn(async move { api.queue_facts(Some(id)).await });
        }
        while let Some(answer) = asked.join_next().await {
            let answer = answer.map_err(|_| ApiError::unavailable("the node is stopping"))?;
            facts.extend(answer?);
        }
    } else {
        facts = api.queue_facts(None).await?;
    }
    Ok(facts.into_iter().map(|f| (f.id, f)).collect())
}

/// The record of a queue, or 404.
async fn find(api: &Api, vhost: &str, name: &str) -> Result<Known, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    let known = api
        .read(move |tree| tree.queue(&vhost, &name).map(|q| Known::of(tree, q)))
        .await?;
    known.ok_or_else(ApiError::not_found)
}

pub(crate) async fn get(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    api.visible(call, vhost).await?;
    let samples = Samples::of(call)?;
    let known = find(api, vhost, name).await?;
    let id = known.record.id;
    let facts = api.queue_facts(Some(id)).await?;
    let names = api.read(node_names).await?;
    let facts = facts.iter().find(|f| f.id == id);
    let mut shown = show(api, &known, facts, &names, &samples);
    let consumers = consumers::shown(api, Some(id)).await?;
    let tag_of = |which: &str| {
        let found = consumers.iter().find(|c| c[which] == true);
        found.map_or(Json::Null, |c| c["consumer_tag"].clone())
    };
    shown["exclusive_consumer_tag"] = tag_of("exclusive");
    let single = known.record.arguments.get("x-single-active-consumer");
    shown["single_active_consumer_tag"] = match single {
        Some(message::Value::Bool(true)) => tag_of("active"),
        _ => Json::Null,
    };
    if let Some(owner) = known.record.exclusive {
        show_owner(api, &mut shown, owner).await?;
    }
    shown["consumer_details"] = Json::Array(consumers);
    // As for exchanges: not counted by channel.
    shown["incoming"] = object!([]);
    shown["deliveries"] = object!([]);
    json(call.query.columns_of(shown))
}

/// Mirrors are no more, and what could be done with them; as in RabbitMQ the path is there.
pub(crate) async fn act(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    api.visible(call, vhost).await?;
    to_change(api, vhost, name).await?;
    let body = call.object()?;
    Members(&body).require(&["action"])?;
    Err(ApiError::bad_request(object!([
        "unknown",
        body.get("action")
    ])))
}

/// As [`find`], for requests that want something of the queue.
async fn to_change(api: &Api, vhost: &str, name: &str) -> Result<Known, ApiError> {
    let missing = |error: ApiError| match error.status {
        StatusCode::NOT_FOUND => ApiError::missing("queue_not_found"),
        _ => error,
    };
    find(api, vhost, name).await.map_err(missing)
}

/// The connection that an exclusive queue belongs to, while it is there.
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

/// The queue whose messages a request is to take, if it may.
pub(crate) async fn to_read(
    api: &Api,
    call: &Call,
    vhost: &str,
    name: &str,
) -> Result<QueueId, ApiError> {
    let queue = ResourceName::Queue(name.to_owned());
    let permitted = api.permitted(call, vhost, vec![(Right::Read, queue)]).await;
    permitted.map_err(|e| e.with_amqp_code("ACCESS_REFUSED"))?;
    let record = to_change(api, vhost, name).await?.record;
    unlocked(&record).map_err(|e| e.with_amqp_code("405 RESOURCE_LOCKED"))?;
    Ok(record.id)
}

/// No request here is of the connection that an exclusive queue belongs to.
fn unlocked(record: &QueueRecord) -> Result<(), ApiError> {
    if record.exclusive.is_none() {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "cannot obtain exclusive access to locked queue '{}' in vhost '{}'. It could be originally declared on \
         another connection or the exclusive property value does not match that of the original declaration.",
        record.name, record.vhost
    )))
}

pub(crate) async fn declare(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    api.member(call, vhost).await?;
    let body = call.object()?;
    let record = record(api, call, vhost, name, &Members(&body)).await?;
    let queue = ResourceName::Queue(name.to_owned());
    let mut needs = vec![(Right::Configure, queue.clone())];
    let arguments = &record.arguments;
    if let Some(dead) = arguments
        .get("x-dead-letter-exchange")
        .and_then(Value::as_str)
    {
        // As over AMQP: who declares a dead letter exchange reads the queue and writes to the exchange.
        needs.push((Right::Read, queue));
        needs.push((Right::Write, ResourceName::Exchange(dead.to_owned())));
    }
    api.permitted(call, vhost, needs).await?;
    let exists = find(api, vhost, name).await.is_ok();
    if !exists && name.starts_with("amq.") {
        return Err(ApiError::not_authorised(format!(
            "queue name '{name}' contains reserved prefix 'amq.*'"
        )));
    }
    match api.change(Change::DeclareQueue(record)).await? {
        ChangeResult::Queue { created, .. } => put(!created),
        other => Err(ApiError::unavailable(format!(
            "the declaration was answered with {other:?}"
        ))),
    }
}

/// As it stands in a definitions document.
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

/// The queue that a request describes, with members chosen for it.
pub(crate) async fn record(
    api: &Api,
    call: &Call,
    vhost: &str,
    name: &str,
    body: &Members<'_>,
) -> Result<QueueRecord, ApiError> {
    let arguments = body.table("arguments")?.unwrap_or_default();
    let durable = body.flag("durable", true)?;
    let auto_delete = body.flag("auto_delete", false)?;
    let (of, called) = (vhost.to_owned(), name.to_owned());
    let lasting = durable && !auto_delete;
    let (kind, arguments) = api
        .read(move |tree| {
            let arguments = tree.with_default_type(&of, lasting, arguments);
            (tree.queue_kind(&of, &called, &arguments), arguments)
        })
        .await?;
    let kind = kind?;
    let mut record = QueueRecord {
        id: QueueId(0),
        vhost: vhost.into(),
        name: name.into(),
        kind,
        durable,
        auto_delete,
        exclusive: None,
        arguments,
        members: Vec::new(),
        declared_by: call.user.name.clone(),
    };
    let asked = Box::new(record.clone());
    record.members = api
        .ask(|reply| ControlRequest::Place {
            record: asked,
            reply,
        })
        .await?;
    Ok(record)
}

pub(crate) async fn delete(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    api.member(call, vhost).await?;
    let queue = ResourceName::Queue(name.to_owned());
    api.permitted(call, vhost, vec![(Right::Configure, queue)])
        .await?;
    let Known {
        record, is_lost, ..
    } = find(api, vhost, name).await?;
    unlocked(&record)?;
    let if_unused = call.query.is_true("if-unused");
    let if_empty = call.query.is_true("if-empty");
    // A lost one has no message and no consumer.
    if (if_unused || if_empty) && !is_lost {
        // The queue itself decides: only it knows whether a message comes in between.
        let body = RequestBody::Delete {
            if_unused,
            if_empty,
        };
        request(api, record.id, body).await?;
    }
    let change = Change::DeleteQueue {
        vhost: vhost.into(),
        name: name.into(),
        id: Some(record.id),
    };
    api.change(change).await?;
    no_content()
}

pub(crate) async fn purge(api: &Api, call: &Call, vhost: &str, name: &str) -> Answer {
    api.member(call, vhost).await?;
    let queue = ResourceName::Queue(name.to_owned());
    api.permitted(call, vhost, vec![(Right::Read, queue)])
        .await?;
    let record = find(api, vhost, name).await?.record;
    unlocked(&record)?;
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
        | QueueReply::GoesOn
        | QueueReply::Empty
        | QueueReply::Count { .. } => Ok(()),
    }
}
