//! The Prometheus endpoint with RabbitMQ's metric names: `/metrics` aggregates,
//! `/metrics/per-object` lists queues, streams, connections and channels, `/metrics/detailed` lists the
//! requested families.
//!
//! A client that asks for OpenMetrics gets it, with exemplars.
//!
//! Each node reports the queues that it leads and its own connections, so that sums over nodes are
//! correct. `/metrics` reads sums that the shards maintain; lists are gathered and sent in chunks.

mod globals;
mod objects;

use crate::Config;
use crate::ask::Api;
use crate::error::ApiError;
use crate::exposition::{Page, TextFormat};
use crate::login::LoginsByProtocol;
use crate::nodes;
use crate::page::Query;
use crate::parameters;
use crate::serving::Protection;
use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use control::{
    ControlRequest, Counters, NodeTimings, QueueFacts, StreamFilter, StreamReplicaFacts,
};
use globals::{churn, dead_letters, globals, logins, machine, mqtt, quotas, raft, streams};
use objects::{FAMILIES, Samples};

/// Prefix of RabbitMQ's metrics.
const PREFIX: &str = "rabbitmq_";
const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/metrics", get(aggregated))
        .route("/metrics/per-object", get(per_object))
        .route("/metrics/detailed", get(detailed))
        .layer(from_fn(protect))
        .with_state(api)
}

/// This endpoint has no authentication, so every complete request protects its connection.
async fn protect(request: Request, next: Next) -> Response {
    if let Some(protection) = request.extensions().get::<Protection>() {
        protection.protect();
    }
    next.run(request).await
}

async fn aggregated(State(api): State<Api>, headers: HeaderMap) -> Response {
    let format = format_for(&headers);
    let page = Page::new(PREFIX, format);
    respond(format, collect(&api, page).await.map(Page::into_text))
}

/// The node's metrics, aggregated where they cannot be listed, and every object.
async fn per_object(State(api): State<Api>, headers: HeaderMap) -> Response {
    let format = format_for(&headers);
    let samples = async {
        let (page, ..) = collect_node(&api, Page::new(PREFIX, format)).await?;
        Samples::gather(&api, page, FAMILIES.to_vec(), &[]).await
    };
    respond(format, samples.await.map(Body::new))
}

/// `?family=queue_coarse_metrics&family=...&vhost=...`
async fn detailed(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = Query::parse(query.as_deref());
    let families = FAMILIES.iter().copied();
    let families = families.filter(|known| query.all("family").any(|f| f == *known));
    let vhosts: Vec<&str> = query.all("vhost").collect();
    let format = format_for(&headers);
    let page = Page::new("rabbitmq_detailed_", format);
    let samples = Samples::gather(&api, page, families.collect(), &vhosts).await;
    respond(format, samples.map(Body::new))
}

/// A client may send several headers, which are one list.
fn format_for(headers: &HeaderMap) -> TextFormat {
    let all = headers.get_all(header::ACCEPT).iter();
    let all: Vec<&str> = all.filter_map(|value| value.to_str().ok()).collect();
    TextFormat::accepted(&all.join(","))
}

fn respond(format: TextFormat, text: Result<impl Into<Body>, ApiError>) -> Response {
    let content_type = [(header::CONTENT_TYPE, format.content_type())];
    match text {
        Ok(text) => (StatusCode::OK, content_type, text.into()).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn ask_own_queues(api: &Api) -> Result<Vec<QueueFacts>, ApiError> {
    api.ask(|reply| ControlRequest::OwnQueues { reply }).await
}

/// The replicas of streams on this node.
async fn ask_own_streams(api: &Api) -> Result<Vec<StreamReplicaFacts>, ApiError> {
    let request = |reply| ControlRequest::Streams {
        of: StreamFilter::default(),
        everywhere: false,
        reply,
    };
    api.ask(request).await
}

/// The counters of this node.
async fn node_counters(api: &Api) -> Result<Counters, ApiError> {
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

fn has_listener(config: &Config, protocol: &str) -> bool {
    let mut listeners = config.listeners.iter();
    listeners.any(|(name, _)| name.contains(protocol))
}

/// Login counts on this node over client protocols.
pub(crate) async fn client_logins(api: &Api) -> Result<LoginsByProtocol, ApiError> {
    Ok(client_logins_of(api.config(), &node_counters(api).await?))
}

/// A protocol that is not used yet is reported with zeros: rates need a first sample.
fn client_logins_of(config: &Config, counters: &Counters) -> LoginsByProtocol {
    let mut logins = counters.logins.clone();
    let mqtt = has_listener(config, "mqtt").then_some("mqtt");
    let stream = has_listener(config, "stream").then_some("stream");
    for known in ["amqp091", "amqp10"].into_iter().chain(mqtt).chain(stream) {
        logins.entry(known.to_owned()).or_default();
    }
    logins
}

/// The metrics of `/metrics` as values.
pub(crate) async fn values(api: &Api) -> Result<Vec<telemetry::Metric>, ApiError> {
    let page = collect(api, Page::of_values(PREFIX)).await?;
    Ok(page.into_values())
}

async fn collect(api: &Api, page: Page) -> Result<Page, ApiError> {
    let (mut page, counters, streams) = collect_node(api, page).await?;
    let max_lag = streams.iter().map(|replica| replica.max_lag).max();
    let queues = counters.queues;
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
            queues.ready + queues.unacknowledged + queues.delayed,
        ),
        (
            "queue_messages_bytes",
            "Size in bytes of ready and unacknowledged messages",
            queues.bytes,
        ),
        ("queue_consumers", "Consumers on a queue", queues.consumers),
        (
            "queue_messages_lost",
            "Messages that classic queues lost with missing or damaged files since the node started, as far as counted",
            queues.lost_messages,
        ),
        (
            "queue_segments_lost",
            "Segment files of classic queues found missing, cut off or damaged since the node started",
            queues.lost_segments,
        ),
    ] {
        page.one(name, GAUGE, help, value);
    }
    page.one(
        objects::MAX_CONSUMER_LAG,
        GAUGE,
        objects::MAX_CONSUMER_LAG_HELP,
        max_lag.unwrap_or(0),
    );
    Ok(page)
}

/// Metrics of the node itself rather than of an object.
async fn collect_node(
    api: &Api,
    mut page: Page,
) -> Result<(Page, Counters, Vec<StreamReplicaFacts>), ApiError> {
    let config = api.config();
    let nodes = nodes::facts(api).await?;
    let own = nodes.iter().find(|n| n.id == config.node);
    let counters = node_counters(api).await?;
    let configured = config.cluster_name.clone();
    let (cluster, id, lost_queues) = api
        .read(move |tree| {
            let name = parameters::cluster_name(tree, &configured);
            (name, tree.cluster().to_owned(), tree.lost_queues().len())
        })
        .await?;
    page.head("build_info", "untyped", "Product and version");
    let build = [
        ("product_name", "Posthorn"),
        ("product_version", config.version.version),
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
    let client_logins = client_logins_of(config, &counters);
    logins(&mut page, &config.login_counter.all(client_logins));
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
    machine(&mut page, &config.node_resources());
    let has_mqtt = has_listener(config, "mqtt");
    let has_stream = has_listener(config, "stream");
    globals(&mut page, &counters.protocols, (has_mqtt, has_stream));
    dead_letters(&mut page, &counters, has_mqtt);
    if has_mqtt {
        mqtt(&mut page, &counters);
    }
    quotas(&mut page, &counters);
    let replicas = ask_own_streams(api).await?;
    streams(&mut page, &counters.stream, &replicas);
    let previous_prefix = page.prefix("posthorn_");
    raft(&mut page, &counters.raft);
    if let Some(audit) = &config.audit {
        page.one(
            "audit_records_total",
            COUNTER,
            "Audit records since the node started",
            audit.recorded(),
        );
        page.one(
            "audit_records_lost_total",
            COUNTER,
            "Audit records that exceeded audit.buffer or could not be written since the node started",
            audit.lost(),
        );
    }
    if let Some(counters) = &config.export_counters {
        exports(&mut page, &counters.read());
    }
    timings(&mut page, &config.timings);
    let own_peers = nodes.iter().filter(|n| n.id != config.node);
    page.one(
        "peers_up",
        GAUGE,
        "Other nodes of the cluster that this node is connected to",
        own_peers.clone().filter(|n| n.running).count(),
    );
    page.one(
        "peers",
        GAUGE,
        "Other nodes of the cluster",
        own_peers.count(),
    );
    if let Some(expiry) = &config.certificates_expire
        && let Some(seconds) = (expiry.0)()
    {
        page.one(
            "certificate_expiry_timestamp_seconds",
            GAUGE,
            "Earliest expiry of the certificates of client listeners in seconds since 1970",
            seconds,
        );
    }
    page.one(
        "lost_queues",
        GAUGE,
        "Queues whose only copy was on a node that lost its data directory",
        lost_queues,
    );
    page.prefix(previous_prefix);
    Ok((page, counters, replicas))
}

fn exports(page: &mut Page, counts: &telemetry::ExportCounts) {
    for (name, help, value) in [
        (
            "otlp_spans_exported_total",
            "Spans that the OpenTelemetry collector has accepted since the node started",
            counts.spans_exported,
        ),
        (
            "otlp_spans_dropped_total",
            "Spans that exceeded a limit, or that the collector refused, since the node started",
            counts.spans_dropped,
        ),
        (
            "otlp_failed_exports_total",
            "Requests to the OpenTelemetry collector that failed since the node started, each attempt counted",
            counts.failed_exports,
        ),
    ] {
        page.one(name, COUNTER, help, value);
    }
}

fn timings(page: &mut Page, timings: &NodeTimings) {
    let histogram = "histogram";
    let name = "wal_write_duration_seconds";
    let help = "Duration of writes of the write-ahead log, each with its sync";
    page.head(name, histogram, help);
    page.histogram(name, &[], &timings.log_writes.snapshot());
    let name = "http_request_duration_seconds";
    let help = "Duration of requests of the HTTP API";
    page.head(name, histogram, help);
    page.histogram(name, &[], &timings.http_requests.snapshot());
    let name = "shard_turn_duration_seconds";
    let help = "Duration of turns of the event loop of a shard";
    page.head(name, histogram, help);
    for (shard, turns) in timings.shard_turns.get().into_iter().flatten().enumerate() {
        let shard = shard.to_string();
        page.histogram(name, &[("shard", &shard)], &turns.snapshot());
    }
    let name = "confirm_duration_seconds";
    let help = "Duration from the publish of a message to its confirm, of one message at a time on each shard";
    page.head(name, histogram, help);
    for (queue_type, confirms) in timings.confirms().iter() {
        page.histogram(name, &[("queue_type", queue_type.name())], confirms);
    }
    let name = "delivery_latency_seconds";
    let help = "Time from the acceptance of a message by its publisher's node to its first delivery to a consumer, of at most one delivery in a millisecond on each shard";
    page.head(name, histogram, help);
    let deliveries = timings.deliveries();
    for (queue_type, latencies) in deliveries.queues.iter() {
        page.histogram(name, &[("queue_type", queue_type.name())], latencies);
    }
    page.histogram(name, &[("queue_type", "none")], &deliveries.queueless);
}
