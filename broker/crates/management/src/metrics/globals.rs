//! What a node has counted, whoever was connected.

use super::{COUNTER, GAUGE};
use crate::exposition::Page;
use control::{Counters, MessageCounts, MqttFigures, ProtocolCounters};
use std::collections::BTreeMap;

pub(super) fn churn(page: &mut Page, c: &Counters) {
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

type Now = (&'static str, &'static str, fn(&ProtocolCounters) -> i64);

const NOW: &[Now] = &[
    ("global_publishers", "Current number of publishers", |p| {
        p.publishers
    }),
    ("global_consumers", "Current number of consumers", |p| {
        p.consumers
    }),
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

/// Messages that come from no queue, under the name that RabbitMQ has for what is nearest.
const QUEUELESS: &str = "rabbit_mqtt_qos0_queue";

/// Never go down while the node lives, whoever disconnects.
pub(super) fn globals(page: &mut Page, protocols: &BTreeMap<String, ProtocolCounters>, mqtt: bool) {
    // A protocol that nobody has used yet is there with zeros: rates need a beginning.
    let mut all = protocols.clone();
    let mqtt: &[&str] = match mqtt {
        true => &["mqtt310", "mqtt311", "mqtt50"],
        false => &[],
    };
    for known in mqtt.iter().chain(&["amqp091"]) {
        all.entry((*known).to_owned()).or_default();
    }
    for (name, help, figure) in NOW {
        page.head(name, GAUGE, help);
        for (protocol, counters) in &all {
            page.sample(name, &[("protocol", protocol)], figure(counters));
        }
    }
    for (name, help, figure) in BY_PROTOCOL {
        page.head(name, COUNTER, help);
        for (protocol, counters) in &all {
            page.sample(name, &[("protocol", protocol)], figure(counters));
        }
    }
    for (name, help, figure) in BY_TYPE {
        page.head(name, COUNTER, help);
        for (protocol, counters) in &all {
            let queueless = protocol.starts_with("mqtt");
            let queueless = queueless.then_some((QUEUELESS, &counters.queueless));
            let kinds = [
                ("rabbit_classic_queue", &counters.classic),
                ("rabbit_quorum_queue", &counters.quorum),
            ];
            for (kind, counts) in kinds.into_iter().chain(queueless) {
                let labels = [("protocol", protocol.as_str()), ("queue_type", kind)];
                page.sample(name, &labels, figure(counts));
            }
        }
    }
}

type OfHubs = (
    &'static str,
    &'static str,
    &'static str,
    fn(&MqttFigures) -> u64,
);

const OF_HUBS: &[OfHubs] = &[
    (
        "mqtt_sessions_away",
        GAUGE,
        "MQTT sessions that are kept while their clients are away",
        |m| m.sessions_away,
    ),
    (
        "mqtt_subscriptions",
        GAUGE,
        "MQTT subscriptions of clients of this node",
        |m| m.subscriptions,
    ),
    (
        "mqtt_retained_messages",
        GAUGE,
        "Retained messages of the cluster, as this node has them",
        |m| m.retained,
    ),
    (
        "mqtt_retained_bytes",
        GAUGE,
        "Size in bytes of retained messages and their topics",
        |m| m.retained_bytes,
    ),
    (
        "mqtt_messages_not_kept_total",
        COUNTER,
        "Total number of messages that there was no room for while their MQTT clients were away",
        |m| m.not_kept,
    ),
    (
        "mqtt_messages_dropped_between_nodes_total",
        COUNTER,
        "Total number of messages of QoS 0 dropped on their way to clients of other shards or nodes",
        |m| m.dropped_between,
    ),
    (
        "mqtt_messages_lost_between_nodes_total",
        COUNTER,
        "Total number of messages of QoS 1 and 2 that clients of other shards or nodes did not get",
        |m| m.lost_between,
    ),
];

/// What RabbitMQ has no name for begins with ours.
pub(super) fn mqtt(page: &mut Page, counters: &Counters) {
    // Q6, as RabbitMQ counts it.
    let dropped = "global_messages_dead_lettered_maxlen_total";
    page.head(
        dropped,
        COUNTER,
        "Total number of messages dead-lettered due to overflow drop-head or reject-publish-dlx",
    );
    let labels = [
        ("queue_type", QUEUELESS),
        ("dead_letter_strategy", "disabled"),
    ];
    page.sample(dropped, &labels, counters.mqtt.dropped);
    let theirs = page.prefix("posthorn_");
    for (name, kind, help, figure) in OF_HUBS {
        page.one(name, kind, help, figure(&counters.mqtt));
    }
    page.prefix(theirs);
}
