//! Sampled values with RabbitMQ's names.

use control::{ConnectionFacts, Counters, ExchangeCounts, MessageCounts, NodeResources};
use queue::QueueCounters;

pub(crate) const LENGTHS: [&str; 3] = ["messages", "messages_ready", "messages_unacknowledged"];

/// `others`: messages that are neither ready nor unacknowledged.
pub(crate) fn lengths(ready: u64, unacknowledged: u64, others: u64) -> [u64; 3] {
    [ready + unacknowledged + others, ready, unacknowledged]
}

pub(crate) const COUNTS: [&str; 12] = [
    "publish",
    "confirm",
    "return_unroutable",
    "drop_unroutable",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "deliver_get",
    "redeliver",
    "ack",
];

pub(crate) fn counts(counts: &MessageCounts) -> [u64; 12] {
    [
        counts.publish,
        counts.confirm,
        counts.return_unroutable,
        counts.drop_unroutable,
        counts.deliver,
        counts.deliver_no_ack,
        counts.get,
        counts.get_no_ack,
        counts.get_empty,
        counts.deliver_get(),
        counts.redeliver,
        counts.ack,
    ]
}

pub(crate) fn queue_counts(counters: &QueueCounters) -> [u64; 12] {
    counts(&MessageCounts {
        publish: counters.publish,
        ..MessageCounts::from(&counters.deliveries)
    })
}

pub(crate) const EXCHANGE: [&str; 2] = ["publish_in", "publish_out"];

pub(crate) fn exchange_counts(counts: ExchangeCounts) -> [u64; 2] {
    [counts.publish_in, counts.publish_out]
}

pub(crate) const OCTETS: [&str; 2] = ["recv_oct", "send_oct"];

pub(crate) fn octets(connection: &ConnectionFacts) -> [u64; 2] {
    [connection.received_bytes, connection.sent_bytes]
}

pub(crate) const CHURN: [&str; 4] = [
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
];

pub(crate) fn churn(counters: &Counters) -> [u64; 4] {
    [
        counters.connections_opened,
        counters.connections_closed,
        counters.channels_opened,
        counters.channels_closed,
    ]
}

pub(crate) const RESOURCE_USAGE: [&str; 5] = [
    "mem_used",
    "disk_free",
    "fd_used",
    "proc_used",
    "sockets_used",
];

/// Resource usage; None unless all of it is known.
pub(crate) fn resource_usage(resources: &NodeResources, connections: u64) -> Option<[u64; 5]> {
    Some([
        resources.memory_used?,
        resources.disk_free?,
        resources.descriptors_used?,
        resources.threads?,
        connections,
    ])
}
