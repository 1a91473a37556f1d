//! Counters of the node, independent of the clients that are connected now.

use super::{COUNTER, GAUGE};
use crate::exposition::Page;
use crate::login::LoginsByProtocol;
use control::{
    Counters, DeadLetterReasons, DeadLetterTotals, LoginCounts, MessageCounts, MqttCounters,
    NodeResources, ProtocolCounters, RaftCounters, StoredBytesFacts, StreamFollowerFacts,
    StreamProtocolCounters, StreamReplicaFacts,
};
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

/// Resource usage of the node. Unknown values are omitted.
pub(super) fn machine(page: &mut Page, resources: &NodeResources) {
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Memory used in bytes",
            resources.memory_used,
        ),
        (
            "resident_memory_limit_bytes",
            "Memory high watermark in bytes",
            resources.memory_limit,
        ),
        (
            "disk_space_available_bytes",
            "Disk space available in bytes",
            resources.disk_free,
        ),
        (
            "disk_space_available_limit_bytes",
            "Free disk space low watermark in bytes",
            resources.disk_free_limit,
        ),
        (
            "process_open_fds",
            "Open file descriptors",
            resources.descriptors_used,
        ),
        (
            "process_max_fds",
            "Open file descriptors limit",
            resources.descriptors,
        ),
    ] {
        if let Some(value) = value {
            page.one(name, GAUGE, help, value);
        }
    }
    // The names of Prometheus' client libraries, which have no prefix.
    let previous_prefix = page.prefix("");
    if let Some(used) = resources.processor_time_ms {
        let help = "Processor time that the process has used, in seconds";
        page.one("process_cpu_seconds_total", COUNTER, help, seconds(used));
    }
    if let Some(started) = resources.started_ms {
        let help = "Start of the process in seconds since 1970";
        page.one("process_start_time_seconds", GAUGE, help, seconds(started));
    }
    page.prefix(previous_prefix);
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

type ProtocolMetric = (&'static str, &'static str, fn(&ProtocolCounters) -> u64);

const PROTOCOL_METRICS: &[ProtocolMetric] = &[
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

type ProtocolGauge = (&'static str, &'static str, fn(&ProtocolCounters) -> i64);

const PROTOCOL_GAUGES: &[ProtocolGauge] = &[
    ("global_publishers", "Current number of publishers", |p| {
        p.publishers
    }),
    ("global_consumers", "Current number of consumers", |p| {
        p.consumers
    }),
];

type QueueTypeMetric = (&'static str, &'static str, fn(&MessageCounts) -> u64);

const QUEUE_TYPE_METRICS: &[QueueTypeMetric] = &[
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

/// Label for MQTT QoS 0 messages that are delivered without a queue: RabbitMQ's queue type for
/// them.
const QOS0_QUEUE_TYPE: &str = "rabbit_mqtt_qos0_queue";

type LoginMetric = (&'static str, &'static str, fn(&LoginCounts) -> u64);

const LOGIN_METRICS: &[LoginMetric] = &[
    ("auth_attempts_total", "Authentication attempts", |l| {
        l.succeeded + l.failed
    }),
    (
        "auth_attempts_succeeded_total",
        "Successful authentication attempts",
        |l| l.succeeded,
    ),
    (
        "auth_attempts_failed_total",
        "Failed authentication attempts",
        |l| l.failed,
    ),
];

pub(super) fn logins(page: &mut Page, logins: &LoginsByProtocol) {
    for (name, help, value) in LOGIN_METRICS {
        page.head(name, COUNTER, help);
        for (protocol, counts) in logins {
            page.sample(name, &[("protocol", protocol)], value(counts));
        }
    }
}

/// Counters by protocol. They never decrease while the node runs, even when clients disconnect. `mqtt` and `stream` are
/// true if there are listeners of these protocols.
pub(super) fn globals(
    page: &mut Page,
    protocols: &BTreeMap<String, ProtocolCounters>,
    (mqtt, stream): (bool, bool),
) {
    // A protocol that is not used yet is reported with zeros: rates need a first sample.
    let mut all = protocols.clone();
    let mqtt: &[&str] = match mqtt {
        true => &["mqtt310", "mqtt311", "mqtt50"],
        false => &[],
    };
    let stream: &[&str] = if stream { &["stream"] } else { &[] };
    let known = mqtt.iter().chain(&["amqp091", "amqp10"]);
    for known in known.chain(stream) {
        all.entry((*known).to_owned()).or_default();
    }
    for (name, help, value) in PROTOCOL_GAUGES {
        page.head(name, GAUGE, help);
        for (protocol, counters) in &all {
            page.sample(name, &[("protocol", protocol)], value(counters));
        }
    }
    for (name, help, value) in PROTOCOL_METRICS {
        page.head(name, COUNTER, help);
        for (protocol, counters) in &all {
            page.sample(name, &[("protocol", protocol)], value(counters));
        }
    }
    // RabbitMQ has no sizes of messages of the stream protocol either.
    let name = "message_size_bytes";
    page.head(
        name,
        "histogram",
        "Size of messages received from publishers",
    );
    for (protocol, counters) in &all {
        page.histogram(name, &[("protocol", protocol)], &counters.sizes.histogram());
    }
    for (name, help, value) in QUEUE_TYPE_METRICS {
        page.head(name, COUNTER, help);
        for (protocol, counters) in &all {
            let queueless = protocol.starts_with("mqtt");
            let queueless = queueless.then_some((QOS0_QUEUE_TYPE, &counters.queueless));
            let by_type = counters.by_queue_type.iter();
            let by_type = by_type.map(|(queue_type, counts)| (queue_type.module(), counts));
            for (kind, counts) in by_type.chain(queueless) {
                let labels = [("protocol", protocol.as_str()), ("queue_type", kind)];
                page.sample(name, &labels, value(counts));
            }
        }
    }
}

/// RabbitMQ's names of the errors of the stream protocol, with its HELP text.
const STREAM_ERRORS: &[(&str, &str)] = &[
    ("stream_does_not_exist", "stream does not exist error"),
    (
        "subscription_id_already_exists",
        "subscription id already exists",
    ),
    (
        "subscription_id_does_not_exist",
        "subscription id does not exist",
    ),
    ("stream_already_exists", "stream already exists"),
    ("stream_not_available", "stream not available"),
    (
        "sasl_mechanism_not_supported",
        "sasl mechanism not supported",
    ),
    ("authentication_failure", "authentication failure"),
    ("sasl_error", "sasl error"),
    ("sasl_challenge", "sasl challenge"),
    (
        "sasl_authentication_failure_loopback",
        "sasl authentication failure loopback",
    ),
    ("vhost_access_failure", "vhost access failure"),
    ("unknown_frame", "unknown frame"),
    ("frame_too_large", "frame too large"),
    ("internal_error", "internal error"),
    ("access_refused", "access refused"),
    ("precondition_failed", "precondition failed"),
    ("publisher_does_not_exist", "publisher does not exist"),
];

/// Errors of the stream protocol and the replicas of streams on this node. The lag of consumers has RabbitMQ's name.
/// Metrics of Raft groups, which RabbitMQ has for each queue.
pub(super) fn raft(page: &mut Page, counters: &RaftCounters) {
    for (name, kind, help, value) in [
        (
            "raft_groups",
            GAUGE,
            "Raft groups with a replica on this node",
            counters.groups,
        ),
        (
            "raft_groups_awake",
            GAUGE,
            "Raft groups whose clocks run on this node, because they are not idle",
            counters.awake,
        ),
        (
            "raft_log_memory_bytes",
            GAUGE,
            "Memory of log entries of Raft groups",
            counters.memory,
        ),
        (
            "raft_elections_won_total",
            COUNTER,
            "Elections that replicas on this node have won since the node started",
            counters.elections_won,
        ),
        (
            "raft_messages_refused_total",
            COUNTER,
            "Raft messages that were damaged or arrived too late since the node started",
            counters.refused,
        ),
        (
            "raft_failed_transfers_total",
            COUNTER,
            "Transfers of checkpoints between replicas that were aborted since the node started",
            counters.failed_transfers,
        ),
        (
            "raft_postponed_jobs_total",
            COUNTER,
            "Times a checkpoint was postponed for lack of disk space, descriptors or memory since the node started",
            counters.postponed_jobs,
        ),
    ] {
        page.one(name, kind, help, value);
    }
}

pub(super) fn streams(
    page: &mut Page,
    counters: &StreamProtocolCounters,
    replicas: &[StreamReplicaFacts],
) {
    for (error, help) in STREAM_ERRORS {
        let name = format!("global_stream_error_{error}_total");
        let help = format!("Total number of commands failed with {help}");
        page.head(&name, COUNTER, &help);
        let count = counters.errors.get(*error).copied().unwrap_or(0);
        page.sample(&name, &[("protocol", "stream")], count);
    }
    let sum = |value: fn(&StreamReplicaFacts) -> u64| replicas.iter().map(value).sum::<u64>();
    let previous_prefix = page.prefix("posthorn_");
    page.one(
        "stream_connections",
        GAUGE,
        "Open connections of the stream protocol",
        counters.connections,
    );
    for (name, help, value) in [
        (
            "stream_replicas",
            "Replicas of streams on this node",
            replicas.len() as u64,
        ),
        (
            "stream_leaders",
            "Streams that this node leads",
            sum(|r| u64::from(r.leads)),
        ),
        (
            "stream_readers",
            "Consumers that read from replicas of this node",
            sum(|r| r.reader_count),
        ),
        (
            "stream_segments",
            "Segment files of the replicas of this node",
            sum(|r| r.segments),
        ),
        (
            "stream_chunks",
            "Chunks in the segment files of the replicas of this node",
            sum(|r| r.chunks),
        ),
        (
            "stream_bytes",
            "Size in bytes of the segment files of the replicas of this node",
            sum(|r| r.bytes),
        ),
        (
            "stream_max_replica_lag",
            "Highest number of messages that an attached replica of a stream led by this node has not written",
            replicas
                .iter()
                .filter_map(max_replica_lag)
                .max()
                .unwrap_or(0),
        ),
        (
            "stream_replicas_detached",
            "Replicas of streams led by this node that do not receive messages from it",
            sum(detached_replicas),
        ),
    ] {
        page.one(name, GAUGE, help, value);
    }
    page.prefix(previous_prefix);
}

/// The number of messages that a follower has not written. None: it is not attached.
pub(super) fn follower_lag(
    replica: &StreamReplicaFacts,
    follower: &StreamFollowerFacts,
) -> Option<u64> {
    let written = follower.next_offset?;
    Some(replica.next_offset.saturating_sub(written))
}

fn max_replica_lag(replica: &StreamReplicaFacts) -> Option<u64> {
    let followers = replica.followers.iter();
    followers.filter_map(|f| follower_lag(replica, f)).max()
}

fn detached_replicas(replica: &StreamReplicaFacts) -> u64 {
    let followers = replica.followers.iter();
    followers.filter(|f| f.next_offset.is_none()).count() as u64
}

type MqttMetric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&MqttCounters) -> u64,
);

const MQTT_METRICS: &[MqttMetric] = &[
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
    (
        "mqtt_wills_kept",
        GAUGE,
        "Number of wills of other nodes' MQTT clients that are published here if their node dies",
        |m| m.wills,
    ),
    (
        "mqtt_wills_not_kept_total",
        COUNTER,
        "Total number of wills of other nodes' MQTT clients that there was no room for",
        |m| m.wills_not_kept,
    ),
];

/// A dead-letter strategy with RabbitMQ's name, and its counts.
type Strategy = (&'static str, fn(&DeadLetterTotals) -> &DeadLetterReasons);

const DISABLED: Strategy = ("disabled", |d| &d.disabled);
const AT_MOST_ONCE: Strategy = ("at_most_once", |d| &d.at_most_once);
const AT_LEAST_ONCE: Strategy = ("at_least_once", |d| &d.at_least_once);

/// A reason for dead letters: name and help of the metric, the strategies and queue types that have it, and its value.
struct Reason {
    name: &'static str,
    help: &'static str,
    /// A queue that keeps dead letters until they are confirmed has dead letters of this reason. It refuses publishes
    /// beyond its length, so none of its messages exceeds `max-length`.
    at_least_once: bool,
    /// Only queue types that count failed deliveries have dead letters of this reason.
    of_failures: bool,
    value: fn(&DeadLetterReasons) -> u64,
}

const REASONS: &[Reason] = &[
    Reason {
        name: "global_messages_dead_lettered_maxlen_total",
        help: "Total number of messages dead-lettered due to overflow drop-head or reject-publish-dlx",
        at_least_once: false,
        of_failures: false,
        value: |r| r.maxlen,
    },
    Reason {
        name: "global_messages_dead_lettered_expired_total",
        help: "Total number of messages dead-lettered due to message TTL exceeded",
        at_least_once: true,
        of_failures: false,
        value: |r| r.expired,
    },
    Reason {
        name: "global_messages_dead_lettered_rejected_total",
        help: "Total number of messages dead-lettered due to basic.reject or basic.nack",
        at_least_once: true,
        of_failures: false,
        value: |r| r.rejected,
    },
    Reason {
        name: "global_messages_dead_lettered_delivery_limit_total",
        help: "Total number of messages dead-lettered due to delivery-limit exceeded",
        at_least_once: true,
        of_failures: true,
        value: |r| r.delivery_limit,
    },
];

/// Counters of dead letters with RabbitMQ's labels. Combinations of queue type, strategy and reason that cannot occur are
/// left out, as in RabbitMQ.
pub(super) fn dead_letters(page: &mut Page, counters: &Counters, mqtt: bool) {
    for reason in REASONS {
        page.head(reason.name, COUNTER, reason.help);
        let mut sample = |queue_type, (strategy, of): Strategy, totals| {
            let labels = [
                ("queue_type", queue_type),
                ("dead_letter_strategy", strategy),
            ];
            page.sample(reason.name, &labels, (reason.value)(of(totals)));
        };
        for (queue_type, totals) in counters.dead_letters.iter() {
            let facts = queue_type.descriptor();
            // Nothing dies in a queue that messages are not taken from.
            if facts.cursors || (reason.of_failures && facts.delivery_limit.is_none()) {
                continue;
            }
            sample(facts.module, DISABLED, totals);
            sample(facts.module, AT_MOST_ONCE, totals);
            if reason.at_least_once && facts.dead_letter_at_least_once {
                sample(facts.module, AT_LEAST_ONCE, totals);
            }
        }
        if mqtt && reason.name.contains("maxlen") {
            // QoS 0 messages dropped because the MQTT client does not read.
            let mut dropped = DeadLetterTotals::default();
            dropped.disabled.maxlen = counters.mqtt.dropped;
            sample(QOS0_QUEUE_TYPE, DISABLED, &dropped);
        }
    }
    let confirmed = "global_messages_dead_lettered_confirmed_total";
    let help = "Total number of messages dead-lettered and confirmed by target queues";
    page.head(confirmed, COUNTER, help);
    for (queue_type, totals) in counters.dead_letters.iter() {
        let facts = queue_type.descriptor();
        if facts.dead_letter_at_least_once {
            let labels = [
                ("queue_type", facts.module),
                ("dead_letter_strategy", AT_LEAST_ONCE.0),
            ];
            page.sample(confirmed, &labels, totals.confirmed);
        }
    }
}

/// Pauses of publishers by rate limits, and quotas of stored bytes.
pub(super) fn quotas(page: &mut Page, counters: &Counters) {
    let previous_prefix = page.prefix("posthorn_");
    page.one(
        "quota_paused_seconds_total",
        COUNTER,
        "Time for which connections were paused because of rate limits of virtual hosts and users, all connections together",
        seconds(counters.quota_paused_ms),
    );
    for (name, help, value) in STORED_BYTES_METRICS {
        if counters.stored_bytes.is_empty() {
            break;
        }
        page.head(name, GAUGE, help);
        for (vhost, facts) in &counters.stored_bytes {
            page.sample(name, &[("vhost", vhost)], value(facts));
        }
    }
    page.prefix(previous_prefix);
}

type StoredBytesMetric = (&'static str, &'static str, fn(&StoredBytesFacts) -> u64);

/// Of virtual hosts with a quota of stored bytes. Every node has the numbers of the whole cluster.
const STORED_BYTES_METRICS: &[StoredBytesMetric] = &[
    (
        "vhost_stored_bytes",
        "Bytes of messages that the queues of a virtual host with a quota store in the cluster",
        |facts| facts.stored,
    ),
    (
        "vhost_stored_bytes_limit",
        "Quota of stored bytes of a virtual host",
        |facts| facts.limit,
    ),
    (
        "vhost_publishers_blocked",
        "is 1 while the publishers of a virtual host are blocked because its queues store as much as its quota",
        |facts| facts.is_blocked.into(),
    ),
];

/// Metrics without a RabbitMQ equivalent have the prefix `posthorn_`.
pub(super) fn mqtt(page: &mut Page, counters: &Counters) {
    let previous_prefix = page.prefix("posthorn_");
    for (name, kind, help, value) in MQTT_METRICS {
        page.one(name, kind, help, value(&counters.mqtt));
    }
    page.prefix(previous_prefix);
}
