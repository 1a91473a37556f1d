//! `/api/consumers`, and the consumers of one queue.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::channels;
use crate::dispatch::ApiResult;
use crate::error::ApiError;
use crate::nodes;
use crate::page::ListRequest;
use crate::queues::node_names;
use control::{ConnectionFacts, ConsumerFacts, ControlRequest};
use message::Value;
use metadata::{QueueId, QueueRecord, QueuesById};
use serde_json::{Value as Json, json as object};
use std::collections::{BTreeMap, BTreeSet};

/// The JSON of the consumers of one queue, or of all.
pub(crate) async fn consumer_list(api: &Api, only: Option<QueueId>) -> Result<Vec<Json>, ApiError> {
    let mut consumers = api.ask(|reply| ControlRequest::Consumers { reply }).await?;
    consumers.retain(|c| only.is_none_or(|q| q.0 == c.queue));
    if consumers.is_empty() {
        return Ok(Vec::new());
    }
    let connections = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    let by_session: BTreeMap<(u64, u64), &ConnectionFacts> = connections
        .iter()
        .map(|c| ((c.node.0, c.number), c))
        .collect();
    let ids: BTreeSet<QueueId> = consumers.iter().map(|c| QueueId(c.queue)).collect();
    let ids: Vec<QueueId> = ids.into_iter().collect();
    let queues = api.walk(QueuesById::from(ids), |tree, q| {
        Some((q.id.0, (q.clone(), tree.consumer_timeout(q))))
    });
    let queues: BTreeMap<_, _> = queues.await?.into_iter().collect();
    let names = api.read(node_names).await?;
    let default_timeout = api.config().live.consumer_timeout_ms();
    let nodes = nodes::facts(api).await?.into_iter();
    let unreachable: Vec<u64> = nodes.filter(|n| !n.running).map(|n| n.id.0).collect();
    let mut shown: Vec<Json> = consumers
        .iter()
        .filter_map(|c| {
            let (queue, timeout) = queues.get(&c.queue)?;
            let connection = by_session.get(&(c.session_node, c.session_number));
            let status = Activity::of(c, queue, &unreachable);
            let mut shown = show(c, (queue, status), connection.copied(), &names);
            // Only AMQP 0-9-1 deliveries time out, and only if the queue or the node sets a
            // timeout.
            let amqp = connection.is_some_and(|c| c.protocol == "amqp091");
            let timeout = timeout.or(default_timeout);
            if let (true, Some(timeout)) = (amqp, timeout) {
                shown["consumer_timeout"] = object!(timeout);
            }
            Some(shown)
        })
        .collect();
    let key = |c: &Json| (c["queue"].to_string(), c["consumer_tag"].to_string());
    shown.sort_by_cached_key(key);
    Ok(shown)
}

/// RabbitMQ's `activity_status`. Only consumers that are `up` or `single_active` receive messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Up,
    SingleActive,
    Waiting,
    /// The consumer's node is unreachable. Its deliveries are requeued if the node does not come
    /// back.
    SuspectedDown,
}

impl Activity {
    /// `unreachable` lists the unreachable nodes.
    fn of(consumer: &ConsumerFacts, queue: &QueueRecord, unreachable: &[u64]) -> Activity {
        let single = queue.arguments.get("x-single-active-consumer");
        let single = matches!(single, Some(Value::Bool(true)));
        match (consumer.active, single) {
            (false, _) => Activity::Waiting,
            (true, _) if unreachable.contains(&consumer.session_node) => Activity::SuspectedDown,
            (true, true) => Activity::SingleActive,
            (true, false) => Activity::Up,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Activity::Up => "up",
            Activity::SingleActive => "single_active",
            Activity::Waiting => "waiting",
            Activity::SuspectedDown => "suspected_down",
        }
    }
}

fn show(
    consumer: &ConsumerFacts,
    (queue, activity): (&QueueRecord, Activity),
    connection: Option<&ConnectionFacts>,
    names: &crate::queues::NodeNames,
) -> Json {
    let channel = connection.and_then(|connection| {
        let mut channels = connection.channels.iter();
        let channel = channels.find(|ch| ch.number == consumer.channel)?;
        Some((connection, channel))
    });
    let acks = channel.is_none_or(|(_, ch)| !ch.auto_ack.contains(&consumer.tag));
    object!({
        "consumer_tag": consumer.tag,
        "queue": {"name": &*queue.name, "vhost": &*queue.vhost},
        "ack_required": acks,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "active": matches!(activity, Activity::Up | Activity::SingleActive),
        "activity_status": activity.name(),
        "arguments": consumer.arguments,
        // A client that disconnected, or whose node did not answer, has no channel details.
        "channel_details": channel.map_or_else(
            || object!({}),
            |(connection, channel)| channels::summary(connection, channel, names),
        ),
    })
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, vhost: Option<&str>) -> ApiResult {
    let window = ListRequest::of(&call.query)?;
    if let Some(vhost) = vhost {
        let name = vhost.to_owned();
        if !api.read(move |tree| tree.vhost_exists(&name)).await? {
            return Err(ApiError::not_found());
        }
    }
    let is_monitor = call.is_monitor();
    let mut all = consumer_list(api, None).await?;
    // As for connections and channels: users see their own consumers, monitoring users see all.
    all.retain(|c| {
        let mine = || c["channel_details"]["user"] == *call.user.name;
        vhost.is_none_or(|v| c["queue"]["vhost"] == v) && (is_monitor || mine())
    });
    let tag = |c: &Json| c["consumer_tag"].as_str().unwrap_or_default().to_owned();
    let tagged = all.into_iter().map(|c| (tag(&c), c)).collect();
    let (part, cut) = window.cut(tagged, |(tag, _)| tag)?;
    Ok(cut.respond(part.into_iter().map(|(_, c)| c).collect()))
}
