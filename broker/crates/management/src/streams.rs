//! `/api/stream/{vhost}/{stream}` and `/api/stream/super-streams`: replicas and stored offsets of a stream, and super
//! streams. `tracking` and the creation of super streams are those of RabbitMQ's plugin `rabbitmq_stream_management`; the
//! other operations have the names of `rabbitmq-streams`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content, put};
use crate::error::ApiError;
use crate::json::{JsonMembers, from_table};
use crate::nodes;
use crate::page::ListRequest;
use crate::queues::{self, name_of, node_names};
use control::{ControlRequest, StreamFilter, StreamReplicaFacts};
use env::NodeId;
use message::{Table, Value};
use metadata::{
    Change, ChangeError, ChangeResult, ExchangeCursor, ExchangeRecord, Name, QueueRecord, Right,
    Tree,
};
use operations::{
    Caller, MAX_PARTITIONS, Resource, SUPER_STREAM, StreamCreationError, SuperStreamDeclaration,
    is_stream, partition_order, stream_arguments, stream_of_binding,
};
use queue::cursor::StreamRequest;
use queue::{QueueReply, RequestBody};
use serde_json::{Map, Value as Json, json as object};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest name of a stored offset in bytes.
const MAX_REFERENCE_BYTES: usize = 255;

/// Asks the replicas of streams on all nodes.
pub(crate) async fn replicas(
    api: &Api,
    of: StreamFilter,
) -> Result<Vec<StreamReplicaFacts>, ApiError> {
    let request = |reply| ControlRequest::Streams {
        of,
        everywhere: true,
        reply,
    };
    api.ask(request).await
}

/// The stream with this name.
async fn find(api: &Api, vhost: &str, name: &str) -> Result<Arc<QueueRecord>, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    let (at, named) = (vhost.clone(), name.clone());
    let found = api.read(move |tree| tree.queue(&at, &named).cloned());
    let record = found.await?.ok_or_else(ApiError::not_found)?;
    if !is_stream(&record) {
        return Err(ApiError::bad_request(format!(
            "queue '{name}' in vhost '{vhost}' is a {} queue, not a stream",
            record.kind.name()
        )));
    }
    Ok(record)
}

/// The replicas of a stream, the leader first.
pub(crate) async fn status(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let record = find(api, vhost, name).await?;
    let of = StreamFilter {
        queue: Some(record.id.0),
        ..StreamFilter::default()
    };
    let mut found = replicas(api, of).await?;
    found.sort_by_key(|replica| (!replica.leads, replica.node));
    let names = api.read(node_names).await?;
    let leader = found.first().filter(|replica| replica.leads).cloned();
    let silent = record.members.iter().copied();
    let silent: Vec<NodeId> = silent
        .filter(|node| found.iter().all(|replica| replica.node != *node))
        .collect();
    let shown = found.iter().map(|replica| {
        let end = leader.as_ref().map(|leader| leader.next_offset);
        show_replica(replica, end, &name_of(&names, replica.node))
    });
    let down = silent.into_iter().map(|node| {
        // The leader knows how far a replica was when it was reached last.
        let followers = leader.iter().flat_map(|leader| &leader.followers);
        let known = followers
            .filter(|f| f.node == node.0)
            .find_map(|f| f.next_offset);
        let lag = leader.as_ref().zip(known);
        object!({
            "node": name_of(&names, node),
            "role": "replica",
            "state": "down",
            "lag": lag.map(|(leader, known)| leader.next_offset.saturating_sub(known)),
        })
    });
    json(Json::Array(shown.chain(down).collect()))
}

/// RabbitMQ shows the offset of the last message, and -1 for an empty stream.
fn last(next_offset: u64) -> i64 {
    i64::try_from(next_offset).map_or(i64::MAX, |next| next - 1)
}

fn show_replica(replica: &StreamReplicaFacts, end: Option<u64>, node: &str) -> Json {
    object!({
        "node": node,
        "role": if replica.leads { "writer" } else { "replica" },
        "state": "running",
        "epoch": replica.epoch,
        "offset": last(replica.next_offset),
        "committed_offset": last(replica.committed_offset),
        "first_offset": replica.first_offset,
        "segments": replica.segments,
        "chunks": replica.chunks,
        "bytes": replica.bytes,
        "readers": replica.reader_count,
        "max_offset_lag": replica.max_lag,
        "lag": end.map(|end| end.saturating_sub(replica.next_offset)),
    })
}

/// The leader of a stream with its stored offsets and publishing ids.
async fn tracking_of(
    api: &Api,
    record: &QueueRecord,
) -> Result<control::StreamTrackingFacts, ApiError> {
    let of = StreamFilter {
        queue: Some(record.id.0),
        tracking: true,
        readers: false,
    };
    let found = replicas(api, of).await?;
    let leader = found.into_iter().find(|replica| replica.leads);
    let tracking = leader.and_then(|leader| leader.tracking);
    tracking.ok_or_else(|| {
        ApiError::unavailable(format!(
            "the leader of stream '{}' in vhost '{}' does not answer: try again once a majority of its replicas is up",
            record.name, record.vhost
        ))
    })
}

/// The stored offsets (`type=offset`), the publishing ids (`type=writer`), or both.
pub(crate) async fn tracking(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    let record = find(api, vhost, name).await?;
    let tracking = tracking_of(api, &record).await?;
    json(match call.query.get("type") {
        Some("offset") => object!({"offsets": tracking.offsets}),
        Some("writer") => object!({"writers": tracking.writers}),
        _ => object!({"offsets": tracking.offsets, "writers": tracking.writers}),
    })
}

/// Stores offset 0 for a consumer that has stored one: `rabbitmq-streams reset_offset`.
pub(crate) async fn reset_offset(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
    reference: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let stream = name.to_owned();
    let check = move |caller: Caller<'_>| caller.check(Right::Read, Resource::Queue(&stream));
    api.operate(call, vhost, check).await?;
    let record = find(api, vhost, name).await?;
    if reference.len() > MAX_REFERENCE_BYTES {
        return Err(ApiError::bad_request(format!(
            "a reference has at most {MAX_REFERENCE_BYTES} bytes, got {}",
            reference.len()
        )));
    }
    if !tracking_of(api, &record)
        .await?
        .offsets
        .contains_key(reference)
    {
        return Err(ApiError::missing(format!(
            "stream '{name}' in vhost '{vhost}' has no stored offset for '{reference}', so there is nothing to reset"
        )));
    }
    let store = StreamRequest::StoreOffset {
        name: reference.into(),
        offset: 0,
    };
    ask_stream(api, &record, store).await?;
    // Answered once the offset is committed.
    let query = StreamRequest::QueryOffset {
        name: reference.into(),
    };
    ask_stream(api, &record, query).await?;
    no_content()
}

async fn ask_stream(
    api: &Api,
    record: &QueueRecord,
    request: StreamRequest,
) -> Result<QueueReply, ApiError> {
    let queue = record.id;
    let body = RequestBody::Stream(request);
    let answer = api
        .ask(|reply| ControlRequest::Queue { queue, body, reply })
        .await??;
    match answer {
        QueueReply::Refused { text, .. } => Err(ApiError::bad_request(text)),
        answer => Ok(answer),
    }
}

// Super streams.

fn is_super_stream(exchange: &ExchangeRecord) -> bool {
    matches!(
        exchange.arguments.get(SUPER_STREAM),
        Some(Value::Bool(true))
    )
}

/// A super stream with its partitions.
fn show_super_stream(tree: &Tree, exchange: &ExchangeRecord) -> Json {
    let bindings = tree.bindings_from(&exchange.vhost, &exchange.name);
    let mut arguments = None;
    let mut partitions: Vec<(i64, Json)> = bindings
        .iter()
        .filter_map(|binding| {
            let stream = stream_of_binding(tree, binding)?;
            let order = partition_order(binding);
            if arguments.is_none() {
                arguments = Some(from_table(&stream.arguments));
            }
            let shown = object!({
                "name": &*stream.name,
                "routing_key": &*binding.routing_key,
                "order": order,
            });
            Some((order.unwrap_or(i64::MAX), shown))
        })
        .collect();
    partitions.sort_by_key(|(order, _)| *order);
    object!({
        "name": &*exchange.name,
        "vhost": &*exchange.vhost,
        "arguments": arguments.unwrap_or_else(|| object!({})),
        "partition_count": partitions.len(),
        "partitions": partitions.into_iter().map(|(_, shown)| shown).collect::<Vec<_>>(),
    })
}

fn name_of_shown(shown: &Json) -> &str {
    shown["name"].as_str().unwrap_or_default()
}

pub(crate) async fn list_super_streams(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    let found = api.walk(ExchangeCursor::default(), move |tree, exchange| {
        let is_wanted = only.as_ref().is_none_or(|vhost| **vhost == *exchange.vhost)
            && visible
                .as_ref()
                .is_none_or(|all| all.contains(&*exchange.vhost))
            && is_super_stream(exchange);
        is_wanted.then(|| show_super_stream(tree, exchange))
    });
    let mut found = found.await?;
    let key = |shown: &Json| (shown["vhost"].to_string(), shown["name"].to_string());
    found.sort_by_cached_key(key);
    let window = ListRequest::of(&call.query)?;
    let (part, cut) = window.cut(found, name_of_shown)?;
    Ok(cut.respond(part))
}

/// The partitions of a request, as names of streams and binding keys.
fn partitions_of_request(
    name: &str,
    body: &JsonMembers<'_>,
) -> Result<Vec<(String, String)>, ApiError> {
    let count = body.integer("partitions")?;
    let keys = body.words("binding-keys")?;
    let keys: Vec<String> = match (count, keys) {
        (Some(_), Some(_)) => {
            let text = "Specify partitions or binding keys, not both";
            return Err(ApiError::bad_request(text));
        }
        (None, None) => {
            let text = "Must specify partitions or binding keys";
            return Err(ApiError::bad_request(text));
        }
        (Some(count), None) if count < 1 => {
            let text = "The partition number must be greater than 0";
            return Err(ApiError::bad_request(text));
        }
        (Some(count), None) if count > MAX_PARTITIONS as i64 => {
            let text = format!("The partition number must not exceed {MAX_PARTITIONS}");
            return Err(ApiError::bad_request(text));
        }
        (Some(count), None) => (0..count).map(|number| number.to_string()).collect(),
        (None, Some(keys)) if keys.is_empty() => {
            let text = "The number of binding keys must be greater than 0";
            return Err(ApiError::bad_request(text));
        }
        (None, Some(keys)) => keys.iter().map(ToString::to_string).collect(),
    };
    let named = |key: String| (format!("{name}-{key}"), key);
    Ok(keys.into_iter().map(named).collect())
}

/// The arguments of the streams, with the names of the stream protocol or of queues: numbers, or texts with numbers.
fn arguments_of_request(body: &Map<String, Json>) -> Result<Table, ApiError> {
    let given = match body.get("arguments") {
        None | Some(Json::Null) => BTreeMap::new(),
        Some(Json::Object(given)) => given
            .iter()
            .map(|(key, value)| {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                let key = key.strip_prefix("x-").unwrap_or(key);
                (key.to_owned(), text)
            })
            .collect(),
        Some(_) => return Err(ApiError::bad_request("'arguments' should be an object")),
    };
    let pairs = given
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    Ok(stream_arguments(pairs)?)
}

/// Creates an exchange and a stream for each partition: `{"partitions": 3}` or `{"binding-keys": "a,b"}`.
pub(crate) async fn create_super_stream(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let body = call.object()?;
    let members = JsonMembers(&body);
    // The node that RabbitMQ is to create it from; here every node does the same.
    if let Some(node) = members.text("node")? {
        let unknown = |_| ApiError::bad_request(format!("Node {node} is not a cluster member"));
        nodes::find(api, node).await.map_err(unknown)?;
    }
    let partitions = partitions_of_request(name, &members)?;
    let arguments = arguments_of_request(&body)?;
    let name = name.to_owned();
    let plan = move |caller: Caller<'_>| {
        let declaration = SuperStreamDeclaration {
            name: &name,
            partitions: partitions
                .iter()
                .map(|(stream, key)| (stream.as_str(), key.as_str()))
                .collect(),
            arguments,
        };
        match caller.plan_super_stream(declaration) {
            Ok(changes) => Ok(Ok(changes)),
            Err(StreamCreationError::Exists(text)) => Ok(Err(text)),
            Err(StreamCreationError::Refused(error)) => Err(error),
        }
    };
    let changes = api.operate(call, vhost, plan).await?;
    let changes = changes.map_err(ApiError::bad_request)?;
    create_all(api, changes).await?;
    put(false)
}

/// Applies the changes one after the other, and undoes them if one fails.
async fn create_all(api: &Api, changes: Vec<Change>) -> Result<(), ApiError> {
    let mut undo = Vec::new();
    for change in changes {
        if let Err(error) = create_one(api, change, &mut undo).await {
            for change in undo.into_iter().rev() {
                // The next attempt reports an object that cannot be deleted now: it exists already.
                let _ = api.change(change).await;
            }
            return Err(error);
        }
    }
    Ok(())
}

async fn create_one(api: &Api, change: Change, undo: &mut Vec<Change>) -> Result<(), ApiError> {
    let (change, exchange) = match change {
        Change::DeclareQueue(record) => (
            Change::DeclareQueue(queues::place(api, record).await?),
            None,
        ),
        Change::DeclareExchange(record) => {
            let named = (record.vhost.clone(), record.name.clone());
            (Change::DeclareExchange(record), Some(named))
        }
        change => (change, None),
    };
    match api.change(change).await? {
        ChangeResult::Queue {
            created: false,
            record,
        } => Err(ApiError::bad_request(format!(
            "queue '{}' in vhost '{}' exists already",
            record.name, record.vhost
        ))),
        ChangeResult::Queue { record, .. } => {
            undo.push(operations::stream_deletion(&record));
            Ok(())
        }
        ChangeResult::Changed => {
            if let Some((vhost, name)) = exchange {
                undo.push(Change::DeleteExchange {
                    vhost,
                    name,
                    if_unused: false,
                });
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Deletes the exchange and the streams of a super stream.
pub(crate) async fn delete_super_stream(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_access(call, vhost).await?;
    let super_stream: Name = name.into();
    let plan = move |caller: Caller<'_>| {
        let exchange = caller.exchange(&super_stream);
        if exchange.is_some_and(|exchange| !is_super_stream(exchange)) {
            // An exchange with streams that a client bound to it.
            return Ok(None);
        }
        caller.plan_super_stream_deletion(&super_stream).map(Some)
    };
    let changes = api.operate(call, vhost, plan).await?;
    let changes = changes.ok_or_else(|| {
        ApiError::bad_request(format!(
            "exchange '{name}' in vhost '{vhost}' is not a super stream: delete it as an exchange"
        ))
    })?;
    for change in changes {
        let request = |reply| ControlRequest::Change { change, reply };
        match api.ask(request).await? {
            // A partition that is gone already does not matter.
            Ok(_) | Err(ChangeError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    no_content()
}
