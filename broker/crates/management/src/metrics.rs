//! The Prometheus endpoint: node and queue totals under RabbitMQ's names (O1, a first part).

use crate::ask::Api;
use crate::error::ApiError;
use crate::nodes;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use control::{ControlRequest, QueueFacts};
use metadata::{Name, QueueId};
use queue::QueueStats;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/metrics", get(aggregated))
        .route("/metrics/per-object", get(per_object))
        .with_state(api)
}

async fn aggregated(State(api): State<Api>) -> Response {
    respond(collect(&api, false).await)
}

async fn per_object(State(api): State<Api>) -> Response {
    respond(collect(&api, true).await)
}

fn respond(text: Result<String, ApiError>) -> Response {
    match text {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => error.into_response(),
    }
}

/// Text in the making.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE {name} {kind}\n# HELP {name} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (key, text)) in labels.iter().enumerate() {
            self.0.push(if at == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{key}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.sample(name, &[], value);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

type Figure = (&'static str, &'static str, fn(&QueueStats) -> u64);

const FIGURES: &[Figure] = &[
    (
        "rabbitmq_queue_messages_ready",
        "Messages ready to be delivered to consumers",
        |s| s.ready,
    ),
    (
        "rabbitmq_queue_messages_unacked",
        "Messages delivered to consumers but not yet acknowledged",
        |s| s.unacknowledged,
    ),
    (
        "rabbitmq_queue_messages",
        "Sum of ready and unacknowledged messages - total queue depth",
        |s| s.ready + s.unacknowledged,
    ),
    (
        "rabbitmq_queue_messages_bytes",
        "Size in bytes of ready and unacknowledged messages",
        |s| s.bytes,
    ),
    ("rabbitmq_queue_consumers", "Consumers on a queue", |s| {
        u64::from(s.consumers)
    }),
];

async fn collect(api: &Api, per_object: bool) -> Result<String, ApiError> {
    let config = api.config();
    let nodes = nodes::facts(api).await?;
    let own = nodes.iter().find(|n| n.id == config.node);
    // Each node reports what it leads, so that sums over nodes are right.
    let mut facts = api.queue_facts(None).await?;
    facts.retain(|f| f.leader == Some(config.node));
    let connections = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    let mut page = Page::default();
    let cluster = api.read(|tree| tree.cluster().to_owned()).await?;
    page.head("rabbitmq_build_info", "untyped", "Product and version");
    let build = [
        ("product_name", "Posthorn"),
        ("product_version", &config.version),
    ];
    page.sample("rabbitmq_build_info", &build, 1);
    page.head(
        "rabbitmq_identity_info",
        "untyped",
        "Node and cluster identity",
    );
    let identity = [
        ("rabbitmq_node", config.name.as_str()),
        ("rabbitmq_cluster", &cluster),
    ];
    page.sample("rabbitmq_identity_info", &identity, 1);
    let own_connections = connections.iter().filter(|c| c.node == config.node);
    let (mut count, mut channels) = (0u64, 0u64);
    for connection in own_connections {
        count += 1;
        channels += u64::from(connection.channels);
    }
    page.gauge("rabbitmq_connections", "Connections currently open", count);
    page.gauge("rabbitmq_channels", "Channels currently open", channels);
    page.gauge("rabbitmq_queues", "Queues available", facts.len());
    let alarm = |on: Option<bool>| u8::from(on.unwrap_or(false));
    page.gauge(
        "rabbitmq_alarms_memory_used_watermark",
        "is 1 if VM memory watermark alarm is in effect",
        alarm(own.map(|n| n.memory_alarm)),
    );
    page.gauge(
        "rabbitmq_alarms_free_disk_space_watermark",
        "is 1 if free disk space watermark alarm is in effect",
        alarm(own.map(|n| n.disk_alarm)),
    );
    let names = names_of(api, &facts, per_object).await?;
    for (name, help, figure) in FIGURES {
        page.head(name, "gauge", help);
        let stats = facts.iter().filter_map(|f| Some((f.id, f.stats.as_ref()?)));
        if !per_object {
            page.sample(name, &[], stats.map(|(_, s)| figure(s)).sum::<u64>());
            continue;
        }
        for (id, stats) in stats {
            if let Some((vhost, queue)) = names.get(&id) {
                let labels = [("vhost", &**vhost), ("queue", &**queue)];
                page.sample(name, &labels, figure(stats));
            }
        }
    }
    Ok(page.0)
}

async fn names_of(
    api: &Api,
    facts: &[QueueFacts],
    wanted: bool,
) -> Result<BTreeMap<QueueId, (Name, Name)>, ApiError> {
    if !wanted {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<QueueId> = facts.iter().map(|f| f.id).collect();
    api.read(move |tree| {
        let records = ids.iter().filter_map(|id| tree.queue_by_id(*id));
        records
            .map(|q| (q.id, (q.vhost.clone(), q.name.clone())))
            .collect()
    })
    .await
}
