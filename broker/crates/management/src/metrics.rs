//! The Prometheus endpoint under RabbitMQ's names (O1): `/metrics` sums up, `/metrics/per-object` lists queues,
//! connections and channels, `/metrics/detailed` lists the families that are asked for.
//!
//! Each node reports what it leads and who is connected to it, so that sums over nodes are right. `/metrics` costs each
//! shard a walk over its own queues and nothing else.

use crate::ask::Api;
use crate::channels;
use crate::error::ApiError;
use crate::exposition::Page;
use crate::nodes;
use crate::page::Query;
use crate::parameters;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use control::{
    ChannelFacts, ConnectionFacts, ControlRequest, Counters, MessageCounts, ProtocolCounters,
    QueueFacts,
};
use metadata::{Name, QueueId};
use queue::{QueueCounters, QueueStats};
use std::collections::BTreeMap;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/metrics", get(aggregated))
        .route("/metrics/per-object", get(per_object))
        .route("/metrics/detailed", get(detailed))
        .with_state(api)
}

async fn aggregated(State(api): State<Api>) -> Response {
    respond(collect(&api).await.map(Page::into_text))
}

/// Everything: what is summed up where nothing can be listed, and each object.
async fn per_object(State(api): State<Api>) -> Response {
    let text = async {
        let mut page = collect_node(&api, Page::new("rabbitmq_")).await?;
        let all: Vec<&str> = FAMILIES.to_vec();
        objects(&api, &mut page, &all, &[]).await?;
        Ok(page.into_text())
    };
    respond(text.await)
}

/// `?family=queue_coarse_metrics&family=...&vhost=...`
async fn detailed(State(api): State<Api>, RawQuery(query): RawQuery) -> Response {
    let query = Query::parse(query.as_deref());
    let families: Vec<&str> = query.all("family").collect();
    let vhosts: Vec<&str> = query.all("vhost").collect();
    let text = async {
        let mut page = Page::new("rabbitmq_detailed_");
        objects(&api, &mut page, &families, &vhosts).await?;
        Ok(page.into_text())
    };
    respond(text.await)
}

fn respond(text: Result<String, ApiError>) -> Response {
    match text {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => error.into_response(),
    }
}

/// What this node has counted.
async fn own_counters(api: &Api) -> Result<Counters, ApiError> {
    let nodes = api
        .ask(|reply| ControlRequest::Counters {
            everywhere: false,
            reply,
        })
        .await?;
    let own = api.config().node;
    let mine = nodes.into_iter().find(|(node, _)| *node == own);
    Ok(mine.map(|(_, counters)| counters).unwrap_or_default())
}

async fn collect(api: &Api) -> Result<Page, ApiError> {
    let mut page = collect_node(api, Page::new("rabbitmq_")).await?;
    let queues = own_counters(api).await?.queues;
    for (name, help, value) in [
        (
            "queue_messages_ready",
            "Messages ready to be delivered to consumers",
            queues.ready,
        ),
        (
            "queue_messages_unacked",
            "Messages delivered to consumers but not yet acknowledged",
            queues.unacknowledged,
        ),
        (
            "queue_messages",
            "Sum of ready and unacknowledged messages - total queue depth",
            queues.ready + queues.unacknowledged,
        ),
        (
            "queue_messages_bytes",
            "Size in bytes of ready and unacknowledged messages",
            queues.bytes,
        ),
        ("queue_consumers", "Consumers on a queue", queues.consumers),
    ] {
        page.one(name, GAUGE, help, value);
    }
    Ok(page)
}

/// What is the node's, not an object's.
async fn collect_node(api: &Api, mut page: Page) -> Result<Page, ApiError> {
    let config = api.config();
    let nodes = nodes::facts(api).await?;
    let own = nodes.iter().find(|n| n.id == config.node);
    let counters = own_counters(api).await?;
    let configured = config.cluster_name.clone();
    let (cluster, id) = api
        .read(move |tree| {
            let name = parameters::cluster_name(tree, &configured);
            (name, tree.cluster().to_owned())
        })
        .await?;
    page.head("build_info", "untyped", "Product and version");
    let build = [
        ("product_name", "Posthorn"),
        ("product_version", &config.version),
    ];
    page.sample("build_info", &build, 1);
    page.head("identity_info", "untyped", "Node and cluster identity");
    let identity = [
        ("rabbitmq_node", config.name.as_str()),
        ("rabbitmq_cluster", &cluster),
        ("rabbitmq_cluster_permanent_id", &id),
    ];
    page.sample("identity_info", &identity, 1);
    churn(&mut page, &counters);
    let alarm = |on: Option<bool>| u8::from(on.unwrap_or(false));
    page.one(
        "alarms_memory_used_watermark",
        GAUGE,
        "is 1 if VM memory watermark alarm is in effect",
        alarm(own.map(|n| n.memory_alarm)),
    );
    page.one(
        "alarms_free_disk_space_watermark",
        GAUGE,
        "is 1 if free disk space watermark alarm is in effect",
        alarm(own.map(|n| n.disk_alarm)),
    );
    globals(&mut page, &counters.protocols);
    Ok(page)
}

fn churn(page: &mut Page, c: &Counters) {
    for (name, kind, help, value) in [
        (
            "connections",
            GAUGE,
            "Connections currently open",
            c.connections,
        ),
        ("channels", GAUGE, "Channels currently open", c.channels),
        (
            "consumers",
            GAUGE,
            "Consumers currently connected",
            c.queues.consumers,
        ),
        ("queues", GAUGE, "Queues available", c.queues.queues),
        (
            "connections_opened_total",
            COUNTER,
            "Total number of connections opened",
            c.connections_opened,
        ),
        (
            "connections_closed_total",
            COUNTER,
            "Total number of connections closed or terminated",
            c.connections_closed,
        ),
        (
            "channels_opened_total",
            COUNTER,
            "Total number of channels opened",
            c.channels_opened,
        ),
        (
            "channels_closed_total",
            COUNTER,
            "Total number of channels closed",
            c.channels_closed,
        ),
    ] {
        page.one(name, kind, help, value);
    }
}

type ByProtocol = (&'static str, &'static str, fn(&ProtocolCounters) -> u64);

const BY_PROTOCOL: &[ByProtocol] = &[
    (
        "global_messages_received_total",
        "Total number of messages received from publishers",
        |p| p.received,
    ),
    (
        "global_messages_received_confirm_total",
        "Total number of messages received from publishers expecting confirmations",
        |p| p.received_confirm,
    ),
    (
        "global_messages_confirmed_total",
        "Total number of messages confirmed to publishers",
        |p| p.confirmed,
    ),
    (
        "global_messages_routed_total",
        "Total number of messages routed to queues or streams",
        |p| p.routed,
    ),
    (
        "global_messages_unroutable_returned_total",
        "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable",
        |p| p.unroutable_returned,
    ),
    (
        "global_messages_unroutable_dropped_total",
        "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
        |p| p.unroutable_dropped,
    ),
];

type ByType = (&'static str, &'static str, fn(&MessageCounts) -> u64);

const BY_TYPE: &[ByType] = &[
    (
        "global_messages_delivered_total",
        "Total number of messages delivered to consumers",
        |c| c.deliver_get(),
    ),
    (
        "global_messages_delivered_consume_manual_ack_total",
        "Total number of messages delivered to consumers using basic.consume with manual acknowledgment",
        |c| c.deliver,
    ),
    (
        "global_messages_delivered_consume_auto_ack_total",
        "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment",
        |c| c.deliver_no_ack,
    ),
    (
        "global_messages_delivered_get_manual_ack_total",
        "Total number of messages delivered to consumers using basic.get with manual acknowledgment",
        |c| c.get,
    ),
    (
        "global_messages_delivered_get_auto_ack_total",
        "Total number of messages delivered to consumers using basic.get with automatic acknowledgment",
        |c| c.get_no_ack,
    ),
    (
        "global_messages_get_empty_total",
        "Total number of times basic.get operations fetched no message",
        |c| c.get_empty,
    ),
    (
        "global_messages_redelivered_total",
        "Total number of messages redelivered to consumers",
        |c| c.redeliver,
    ),
    (
        "global_messages_acknowledged_total",
        "Total number of messages acknowledged by consumers",
        |c| c.ack,
    ),
];

/// Never go down while the node lives, whoever disconnects.
fn globals(page: &mut Page, protocols: &BTreeMap<String, ProtocolCounters>) {
    // A protocol that nobody has used yet is there with zeros: rates need a beginning.
    let mut all = protocols.clone();
    all.entry("amqp091".to_owned()).or_default();
    for (name, help, figure) in BY_PROTOCOL {
        page.head(name, COUNTER, help);
        for (protocol, counters) in &all {
            page.sample(name, &[("protocol", protocol)], figure(counters));
        }
    }
    for (name, help, figure) in BY_TYPE {
        page.head(name, COUNTER, help);
        for (protocol, counters) in &all {
            for (kind, counts) in [
                ("rabbit_classic_queue", &counters.classic),
                ("rabbit_quorum_queue", &counters.quorum),
            ] {
                let labels = [("protocol", protocol.as_str()), ("queue_type", kind)];
                page.sample(name, &labels, figure(counts));
            }
        }
    }
}

const COARSE: &str = "queue_coarse_metrics";
const CONSUMERS: &str = "queue_consumer_count";
const DELIVERY: &str = "queue_delivery_metrics";
const QUEUES: &str = "queue_metrics";
const CONNECTION_COARSE: &str = "connection_coarse_metrics";
const CONNECTION: &str = "connection_metrics";
const CHANNEL: &str = "channel_metrics";
/// Families of metrics that `detailed` knows.
const FAMILIES: &[&str] = &[
    COARSE,
    CONSUMERS,
    DELIVERY,
    QUEUES,
    CONNECTION_COARSE,
    CONNECTION,
    CHANNEL,
];

type OfQueue = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    fn(&QueueStats, &QueueCounters) -> u64,
);

const OF_QUEUE: &[OfQueue] = &[
    (
        COARSE,
        "queue_messages_ready",
        GAUGE,
        "Messages ready to be delivered to consumers",
        |s, _| s.ready,
    ),
    (
        COARSE,
        "queue_messages_unacked",
        GAUGE,
        "Messages delivered to consumers but not yet acknowledged",
        |s, _| s.unacknowledged,
    ),
    (
        COARSE,
        "queue_messages",
        GAUGE,
        "Sum of ready and unacknowledged messages - total queue depth",
        |s, _| s.ready + s.unacknowledged,
    ),
    (
        QUEUES,
        "queue_messages_bytes",
        GAUGE,
        "Size in bytes of ready and unacknowledged messages",
        |s, _| s.bytes,
    ),
    (
        CONSUMERS,
        "queue_consumers",
        GAUGE,
        "Consumers on a queue",
        |s, _| u64::from(s.consumers),
    ),
    (
        DELIVERY,
        "queue_messages_published_total",
        COUNTER,
        "Total number of messages published to a queue",
        |_, c| c.publish,
    ),
    (
        DELIVERY,
        "queue_messages_delivered_ack_total",
        COUNTER,
        "Total number of messages delivered from a queue to consumers in manual acknowledgement mode",
        |_, c| c.deliveries.deliver,
    ),
    (
        DELIVERY,
        "queue_get_ack_total",
        COUNTER,
        "Total number of messages fetched from a queue with basic.get in manual acknowledgement mode",
        |_, c| c.deliveries.get,
    ),
    (
        DELIVERY,
        "queue_get_total",
        COUNTER,
        "Total number of messages fetched from a queue with basic.get in automatic acknowledgement mode",
        |_, c| c.deliveries.get_no_ack,
    ),
    (
        DELIVERY,
        "queue_get_empty_total",
        COUNTER,
        "Total number of times basic.get operations fetched no message on a queue",
        |_, c| c.deliveries.get_empty,
    ),
    (
        DELIVERY,
        "queue_messages_redelivered_total",
        COUNTER,
        "Total number of messages redelivered from a queue to consumers",
        |_, c| c.deliveries.redeliver,
    ),
    (
        DELIVERY,
        "queue_messages_acked_total",
        COUNTER,
        "Total number of messages acknowledged by consumers on a queue",
        |_, c| c.deliveries.ack,
    ),
];

type OfConnection = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    fn(&ConnectionFacts) -> u64,
);

const OF_CONNECTION: &[OfConnection] = &[
    (
        CONNECTION_COARSE,
        "connection_incoming_bytes_total",
        COUNTER,
        "Total number of bytes received on a connection",
        |c| c.received_bytes,
    ),
    (
        CONNECTION_COARSE,
        "connection_outgoing_bytes_total",
        COUNTER,
        "Total number of bytes sent on a connection",
        |c| c.sent_bytes,
    ),
    (
        CONNECTION,
        "connection_channels",
        GAUGE,
        "Channels on a connection",
        |c| c.channels.len() as u64,
    ),
];

type OfChannel = (
    &'static str,
    &'static str,
    &'static str,
    fn(&ChannelFacts) -> u64,
);

const OF_CHANNEL: &[OfChannel] = &[
    ("channel_consumers", GAUGE, "Consumers on a channel", |c| {
        u64::from(c.consumers)
    }),
    (
        "channel_messages_unacked",
        GAUGE,
        "Delivered but not yet acknowledged messages",
        |c| c.unacknowledged,
    ),
    (
        "channel_messages_unconfirmed",
        GAUGE,
        "Published but not yet confirmed messages",
        |c| c.unconfirmed,
    ),
    (
        "channel_messages_uncommitted",
        GAUGE,
        "Messages received in a transaction but not yet committed",
        |c| c.uncommitted,
    ),
    (
        "channel_acks_uncommitted",
        GAUGE,
        "Message acknowledgements in a transaction not yet committed",
        |c| c.acks_uncommitted,
    ),
    (
        "channel_prefetch",
        GAUGE,
        "Total limit of unacknowledged messages for all consumers on a channel",
        |c| u64::from(c.global_prefetch),
    ),
];

async fn objects(
    api: &Api,
    page: &mut Page,
    families: &[&str],
    vhosts: &[&str],
) -> Result<(), ApiError> {
    let asked = |family: &str| families.contains(&family);
    if OF_QUEUE.iter().any(|(family, ..)| asked(family)) {
        queues(api, page, &asked, vhosts).await?;
    }
    if asked(CONNECTION_COARSE) || asked(CONNECTION) || asked(CHANNEL) {
        clients(api, page, &asked).await?;
    }
    Ok(())
}

async fn queues(
    api: &Api,
    page: &mut Page,
    asked: &impl Fn(&str) -> bool,
    vhosts: &[&str],
) -> Result<(), ApiError> {
    let own = api.config().node;
    let mut facts = api.queue_facts(None).await?;
    facts.retain(|f| f.leader == Some(own));
    let names = names_of(api, &facts).await?;
    for (family, name, kind, help, figure) in OF_QUEUE {
        if !asked(family) {
            continue;
        }
        page.head(name, kind, help);
        for queue in &facts {
            let (Some((vhost, called)), Some(stats)) = (names.get(&queue.id), &queue.stats) else {
                continue;
            };
            if vhosts.is_empty() || vhosts.contains(&&**vhost) {
                let labels = [("vhost", &**vhost), ("queue", &**called)];
                page.sample(name, &labels, figure(stats, &queue.counters));
            }
        }
    }
    Ok(())
}

async fn clients(
    api: &Api,
    page: &mut Page,
    asked: &impl Fn(&str) -> bool,
) -> Result<(), ApiError> {
    let own = api.config().node;
    let mut connections = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    connections.retain(|c| c.node == own);
    for (family, name, kind, help, figure) in OF_CONNECTION {
        if !asked(family) {
            continue;
        }
        page.head(name, kind, help);
        for connection in &connections {
            page.sample(
                name,
                &[("connection", &connection.name)],
                figure(connection),
            );
        }
    }
    if !asked(CHANNEL) {
        return Ok(());
    }
    for (name, kind, help, figure) in OF_CHANNEL {
        page.head(name, kind, help);
        for connection in &connections {
            for channel in &connection.channels {
                let called = channels::name(connection, channel);
                page.sample(name, &[("channel", &called)], figure(channel));
            }
        }
    }
    Ok(())
}

async fn names_of(
    api: &Api,
    facts: &[QueueFacts],
) -> Result<BTreeMap<QueueId, (Name, Name)>, ApiError> {
    let ids: Vec<QueueId> = facts.iter().map(|f| f.id).collect();
    api.read(move |tree| {
        let records = ids.iter().filter_map(|id| tree.queue_by_id(*id));
        records
            .map(|q| (q.id, (q.vhost.clone(), q.name.clone())))
            .collect()
    })
    .await
}
