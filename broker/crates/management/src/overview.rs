//! `/api/overview` and `/api/whoami`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::parameters;
use crate::rates::{self, Key, Range};
use control::{ControlRequest, Counters};
use env::NodeId;
use serde_json::{Value as Json, json as object};

/// The RabbitMQ version whose API is implemented; clients depend on it.
pub(crate) const RABBITMQ_VERSION: &str = "4.3.0";

/// RabbitMQ's name for rates that are not kept per channel and queue.
pub(crate) const RATES_MODE: &str = "basic";

/// Exchange types that can be declared.
pub(crate) fn exchange_types() -> Json {
    let all = [
        (
            "direct",
            "AMQP direct exchange, as per the AMQP specification",
        ),
        (
            "fanout",
            "AMQP fanout exchange, as per the AMQP specification",
        ),
        (
            "topic",
            "AMQP topic exchange, as per the AMQP specification",
        ),
        (
            "headers",
            "AMQP headers exchange, as per the AMQP specification",
        ),
        ("x-consistent-hash", "Consistent Hashing Exchange"),
        ("x-local-random", "Local Random Exchange"),
        ("x-modulus-hash", "Modulus Hashing Exchange"),
        (
            "x-random",
            "Randomly picks a binding (queue) to route via (to).",
        ),
        ("x-delayed-message", "Delayed Message Exchange."),
    ];
    let shown =
        all.map(|(name, text)| object!({"name": name, "description": text, "enabled": true}));
    Json::Array(shown.to_vec())
}

/// Counters of all nodes that answer in time.
pub(crate) async fn counters_by_node(api: &Api) -> Result<Vec<(NodeId, Counters)>, ApiError> {
    api.ask(|reply| ControlRequest::Counters {
        everywhere: true,
        reply,
    })
    .await
}

/// Counters summed over nodes.
pub(crate) fn sum(nodes: &[(NodeId, Counters)]) -> Counters {
    let mut sum = Counters::default();
    for (_, node) in nodes {
        sum.add(node);
    }
    sum
}

async fn totals(api: &Api, call: &AuthenticatedRequest, shown: &mut Json) -> Result<(), ApiError> {
    let (exchanges, queues) = api
        .read(|tree| (tree.exchange_count(), tree.queue_count()))
        .await?;
    let counters = sum(&counters_by_node(api).await?);
    let all = &counters.queues;
    let of = |what| Range::of(&call.query, what);
    let (depths, messages, churn) = (of("lengths")?, of("msg_rates")?, of("data_rates")?);
    let mut queue_totals = object!({});
    let lengths = rates::lengths(all.ready, all.unacknowledged, all.dead + all.delayed);
    let at = (Key::MessageTotals, depths.as_ref());
    rates::show_lengths(api, at, &mut queue_totals, &lengths);
    shown["queue_totals"] = queue_totals;
    shown["object_totals"] = object!({
        "connections": counters.connections,
        "channels": counters.channels,
        "exchanges": exchanges,
        "queues": queues,
        "consumers": all.consumers,
    });
    let mut churn_rates = object!({});
    let figures = (&rates::CHURN[..], &rates::churn(&counters)[..]);
    rates::show_counts(api, (Key::Churn, churn.as_ref()), &mut churn_rates, figures);
    shown["churn_rates"] = churn_rates;
    let mut message_stats = object!({});
    let figures = (&rates::COUNTS[..], &rates::counts(&counters.messages())[..]);
    let at = (Key::Overview, messages.as_ref());
    rates::show_counts(api, at, &mut message_stats, figures);
    shown["message_stats"] = message_stats;
    Ok(())
}

pub(crate) async fn overview(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    let config = api.config();
    let configured = config.cluster_name.clone();
    let cluster = api
        .read(move |tree| parameters::cluster_name(tree, &configured))
        .await?;
    let mut shown = object!({
        "product_name": "Posthorn",
        "product_version": config.version.version,
        "management_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": cluster,
        "node": config.name,
        "statistics_db_node": config.name,
        "statistics_level": "fine",
        "rates_mode": RATES_MODE,
        "disable_stats": false,
        "default_queue_type": config.default_queue_type.unwrap_or_default().name(),
        "enable_queue_totals": false,
        "is_op_policy_updating_enabled": true,
        // In seconds, with RabbitMQ's names. Samples of individual objects are kept until ten
        // minutes after the last request for them.
        "sample_retention_policies": {
            "global": [600, 3600, 28800, 86400],
            "basic": [600],
            "detailed": [600],
        },
        "exchange_types": exchange_types(),
    });
    if call.is_monitor() {
        totals(api, call, &mut shown).await?;
        let listeners = config.listeners().into_iter();
        let listeners = listeners.map(|(protocol, port)| {
            object!({
                "node": config.name,
                "protocol": protocol,
                "ip_address": "::",
                "port": port,
                "socket_opts": {},
            })
        });
        shown["listeners"] = listeners.collect();
        shown["contexts"] = object!([]);
    }
    json(call.query.columns_of(shown))
}

pub(crate) fn whoami(call: &AuthenticatedRequest) -> ApiResult {
    let tags: Vec<&str> = call.user.tags.iter().map(|t| &**t).collect();
    json(object!({
        "name": &*call.user.name,
        "tags": tags,
        "is_internal_user": true,
        "auth_backend": "internal",
    }))
}
