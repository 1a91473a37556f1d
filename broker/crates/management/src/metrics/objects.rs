//! Metrics with a sample per queue, stream, connection or channel. The text is produced in chunks while it
//! is sent: for 100,000 queues it would take about 100 MB.

use super::globals::follower_lag;
use super::{COUNTER, GAUGE, ask_own_queues, ask_own_streams};
use crate::ask::Api;
use crate::channels;
use crate::error::ApiError;
use crate::exposition::Page;
use crate::queues::{NodeNames, age_seconds, name_of, node_names};
use axum::body::Bytes;
use control::{ChannelFacts, ConnectionFacts, ControlRequest, QueueFacts, StreamReplicaFacts};
use env::{NodeId, WallTime};
use http_body::Frame;
use metadata::{Name, QueueId, QueuesById};
use queue::{HeadMessage, QueueCounters, QueueStats};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Minimum length of a chunk in bytes.
const CHUNK: usize = 64 << 10;

const COARSE: &str = "queue_coarse_metrics";
const CONSUMERS: &str = "queue_consumer_count";
const DELIVERY: &str = "queue_delivery_metrics";
const QUEUES: &str = "queue_metrics";
const CONNECTION_COARSE: &str = "connection_coarse_metrics";
const CONNECTION: &str = "connection_metrics";
const CHANNEL: &str = "channel_metrics";
const STREAM_CONSUMERS: &str = "stream_consumer_metrics";
const STREAMS: &str = "stream_metrics";
/// The only metric of RabbitMQ about streams.
pub(super) const MAX_CONSUMER_LAG: &str = "stream_consumer_max_offset_lag";
pub(super) const MAX_CONSUMER_LAG_HELP: &str = "Highest consumer offset lag";
/// Metric families that `/metrics/detailed` supports.
pub(super) const FAMILIES: &[&str] = &[
    COARSE,
    CONSUMERS,
    DELIVERY,
    QUEUES,
    CONNECTION_COARSE,
    CONNECTION,
    CHANNEL,
    STREAM_CONSUMERS,
    STREAMS,
];

type QueueMetric = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    fn(&QueueStats, &QueueCounters) -> u64,
);

const QUEUE_METRICS: &[QueueMetric] = &[
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
        |s, _| s.ready + s.unacknowledged + s.delayed,
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

/// A metric of the oldest ready message of a queue: whether the name is RabbitMQ's, name, HELP text and value. `None`: the
/// message has no such value.
type HeadMetric = (
    bool,
    &'static str,
    &'static str,
    fn(&HeadMessage, WallTime) -> Option<u64>,
);

const HEAD_METRICS: &[HeadMetric] = &[
    (
        true,
        "queue_head_message_timestamp",
        "Timestamp that the publisher set in the oldest ready message of a queue, in seconds since the Unix epoch",
        |head, _| head.timestamp,
    ),
    (
        false,
        "queue_head_message_age_seconds",
        "Seconds since the broker received the oldest ready message of a queue; absent while no message is ready",
        |head, now| Some(age_seconds(head, now)),
    ),
];

/// A metric of the replica on this node: family, whether the name is RabbitMQ's, name, kind, HELP text and value. `None`: the
/// replica has no such value.
type StreamMetric = (
    &'static str,
    bool,
    &'static str,
    &'static str,
    &'static str,
    fn(&StreamReplicaFacts) -> Option<u64>,
);

const STREAM_METRICS: &[StreamMetric] = &[
    (
        STREAM_CONSUMERS,
        true,
        MAX_CONSUMER_LAG,
        GAUGE,
        MAX_CONSUMER_LAG_HELP,
        |r| (r.reader_count > 0).then_some(r.max_lag),
    ),
    (
        STREAMS,
        false,
        "stream_first_offset",
        GAUGE,
        "Oldest offset that the replica of this node retains",
        |r| Some(r.first_offset),
    ),
    (
        STREAMS,
        false,
        "stream_next_offset",
        GAUGE,
        "Offset after the last message that the replica of this node has written",
        |r| Some(r.next_offset),
    ),
    (
        STREAMS,
        false,
        "stream_committed_next_offset",
        GAUGE,
        "Offset after the last message that the replica of this node knows to be committed",
        |r| Some(r.committed_offset),
    ),
    (
        STREAMS,
        false,
        "stream_leader",
        GAUGE,
        "1 if the replica of this node leads, 0 if it follows",
        |r| Some(u64::from(r.leads)),
    ),
    (
        STREAMS,
        false,
        "stream_queue_segments",
        GAUGE,
        "Segment files of the replica of this node",
        |r| Some(r.segments),
    ),
    (
        STREAMS,
        false,
        "stream_queue_chunks",
        GAUGE,
        "Chunks in the segment files of the replica of this node",
        |r| Some(r.chunks),
    ),
    (
        STREAMS,
        false,
        "stream_queue_bytes",
        GAUGE,
        "Size in bytes of the segment files of the replica of this node",
        |r| Some(r.bytes),
    ),
    (
        STREAMS,
        false,
        "stream_queue_readers",
        GAUGE,
        "Consumers that read from the replica of this node",
        |r| Some(r.reader_count),
    ),
];

/// The copies of the streams that this node leads, with the label `replica`.
const REPLICA_LAG: (&str, &str) = (
    "stream_replica_lag",
    "Messages of a stream led by this node that the replica on the named node has not written; absent while it is not attached",
);

type ConnectionMetric = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    fn(&ConnectionFacts) -> u64,
);

const CONNECTION_METRICS: &[ConnectionMetric] = &[
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

type ChannelMetric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&ChannelFacts) -> u64,
);

const CHANNEL_METRICS: &[ChannelMetric] = &[
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

struct Queue {
    vhost: Name,
    name: Name,
    stats: QueueStats,
    counters: QueueCounters,
    head: Option<HeadMessage>,
}

struct Stream {
    vhost: Name,
    name: Name,
    replica: StreamReplicaFacts,
}

/// A response body of metrics with a sample per object, produced as it is sent.
pub(super) struct Samples {
    page: Page,
    /// The prefix of RabbitMQ's metrics on this page.
    prefix: &'static str,
    queues: Vec<Queue>,
    /// When the queues told.
    told_at: WallTime,
    streams: Vec<Stream>,
    connections: Vec<ConnectionFacts>,
    nodes: NodeNames,
    /// The requested families.
    families: Vec<&'static str>,
    /// The next metric, as an index into the concatenated metric tables, and the next object.
    metric: usize,
    object: usize,
    /// The last line was written.
    is_ended: bool,
}

impl Samples {
    /// Collects the objects of this node. The samples follow the text already in `page`.
    pub(super) async fn gather(
        api: &Api,
        mut page: Page,
        families: Vec<&'static str>,
        vhosts: &[&str],
    ) -> Result<Samples, ApiError> {
        let is_requested = |family: &str| families.contains(&family);
        let queues = match QUEUE_METRICS
            .iter()
            .any(|(family, ..)| is_requested(family))
        {
            true => queues(api, vhosts).await?,
            false => Vec::new(),
        };
        let told_at = api.moment().wall;
        let (streams, nodes) = match [STREAM_CONSUMERS, STREAMS].into_iter().any(is_requested) {
            true => (streams(api, vhosts).await?, api.read(node_names).await?),
            false => (Vec::new(), NodeNames::new()),
        };
        let clients = [CONNECTION_COARSE, CONNECTION, CHANNEL];
        let connections = match clients.into_iter().any(is_requested) {
            true => connections(api).await?,
            false => Vec::new(),
        };
        let prefix = page.prefix("");
        page.prefix(prefix);
        Ok(Samples {
            page,
            prefix,
            queues,
            told_at,
            streams,
            connections,
            nodes,
            families,
            metric: 0,
            object: 0,
            is_ended: false,
        })
    }

    /// Returns the next chunk of text; None at the end.
    pub(super) fn next_chunk(&mut self) -> Option<String> {
        while self.page.len() < CHUNK && self.advance() {}
        let mut text = self.page.take();
        if text.len() < CHUNK && !std::mem::replace(&mut self.is_ended, true) {
            text.push_str(self.page.end());
        }
        (!text.is_empty()).then_some(text)
    }

    /// Writes one sample, or a metric's head and first sample. Returns false at the end.
    fn advance(&mut self) -> bool {
        let mut at = self.metric;
        if let Some(metric) = QUEUE_METRICS.get(at) {
            return self.write_queue_sample(metric);
        }
        at -= QUEUE_METRICS.len();
        if let Some(metric) = HEAD_METRICS.get(at) {
            return self.write_head_sample(metric);
        }
        at -= HEAD_METRICS.len();
        if let Some(metric) = CONNECTION_METRICS.get(at) {
            return self.write_connection_sample(metric);
        }
        at -= CONNECTION_METRICS.len();
        if let Some(metric) = CHANNEL_METRICS.get(at) {
            return self.write_channel_sample(metric);
        }
        at -= CHANNEL_METRICS.len();
        if let Some(metric) = STREAM_METRICS.get(at) {
            return self.write_stream_sample(metric);
        }
        match at - STREAM_METRICS.len() {
            0 => self.write_replica_lags(),
            _ => false,
        }
    }

    /// Starts the next sample of a metric, with the head before the first. Returns false if the
    /// family was not requested or all objects are done; the next metric is then current.
    fn begin_sample(&mut self, family: &str, head: [&str; 3], objects: usize) -> bool {
        if !self.families.contains(&family) || self.object == objects && objects > 0 {
            (self.metric, self.object) = (self.metric + 1, 0);
            return false;
        }
        if self.object == 0 {
            let [name, kind, help] = head;
            self.page.head(name, kind, help);
        }
        if objects == 0 {
            self.metric += 1;
            return false;
        }
        self.object += 1;
        true
    }

    fn write_queue_sample(&mut self, (family, name, kind, help, value_of): &QueueMetric) -> bool {
        let at = self.object;
        if self.begin_sample(family, [name, kind, help], self.queues.len())
            && let Some(queue) = self.queues.get(at)
        {
            let labels = [("vhost", &*queue.vhost), ("queue", &*queue.name)];
            let value = value_of(&queue.stats, &queue.counters);
            self.page.sample(name, &labels, value);
        }
        true
    }

    fn write_head_sample(&mut self, (is_rabbitmq, name, help, value_of): &HeadMetric) -> bool {
        let at = self.object;
        let prefix = match is_rabbitmq {
            true => self.prefix,
            false => self.own_prefix(),
        };
        self.page.prefix(prefix);
        if self.begin_sample(QUEUES, [name, GAUGE, help], self.queues.len())
            && let Some(queue) = self.queues.get(at)
            && let Some(value) = (queue.head.as_ref()).and_then(|head| value_of(head, self.told_at))
        {
            let labels = [("vhost", &*queue.vhost), ("queue", &*queue.name)];
            self.page.sample(name, &labels, value);
        }
        self.page.prefix(self.prefix);
        true
    }

    /// The prefix of metrics that RabbitMQ does not have, on this page.
    fn own_prefix(&self) -> &'static str {
        match self.prefix {
            "rabbitmq_detailed_" => "posthorn_detailed_",
            _ => "posthorn_",
        }
    }

    fn write_stream_sample(
        &mut self,
        (family, is_rabbitmq, name, kind, help, value_of): &StreamMetric,
    ) -> bool {
        let at = self.object;
        let prefix = match is_rabbitmq {
            true => self.prefix,
            false => self.own_prefix(),
        };
        self.page.prefix(prefix);
        if self.begin_sample(family, [name, kind, help], self.streams.len())
            && let Some(stream) = self.streams.get(at)
            && let Some(value) = value_of(&stream.replica)
        {
            let labels = [("vhost", &*stream.vhost), ("queue", &*stream.name)];
            self.page.sample(name, &labels, value);
        }
        self.page.prefix(self.prefix);
        true
    }

    fn write_replica_lags(&mut self) -> bool {
        let at = self.object;
        let (name, help) = REPLICA_LAG;
        self.page.prefix(self.own_prefix());
        if self.begin_sample(STREAMS, [name, GAUGE, help], self.streams.len())
            && let Some(stream) = self.streams.get(at)
        {
            for follower in &stream.replica.followers {
                let Some(lag) = follower_lag(&stream.replica, follower) else {
                    continue;
                };
                let node = name_of(&self.nodes, NodeId(follower.node));
                let labels = [
                    ("vhost", &*stream.vhost),
                    ("queue", &*stream.name),
                    ("replica", &node),
                ];
                self.page.sample(name, &labels, lag);
            }
        }
        self.page.prefix(self.prefix);
        true
    }

    fn write_connection_sample(
        &mut self,
        (family, name, kind, help, value_of): &ConnectionMetric,
    ) -> bool {
        let at = self.object;
        if self.begin_sample(family, [name, kind, help], self.connections.len())
            && let Some(connection) = self.connections.get(at)
        {
            let labels = [("connection", &*connection.name)];
            self.page.sample(name, &labels, value_of(connection));
        }
        true
    }

    fn write_channel_sample(&mut self, (name, kind, help, value_of): &ChannelMetric) -> bool {
        let at = self.object;
        if self.begin_sample(CHANNEL, [name, kind, help], self.connections.len())
            && let Some(connection) = self.connections.get(at)
        {
            for channel in &connection.channels {
                let channel_name = channels::name(connection, channel);
                self.page
                    .sample(name, &[("channel", &channel_name)], value_of(channel));
            }
        }
        true
    }
}

impl http_body::Body for Samples {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next_chunk().map(|text| Ok(Frame::data(text.into()))))
    }
}

/// Queues that this node leads or that exist only on it, with their names.
async fn queues(api: &Api, vhosts: &[&str]) -> Result<Vec<Queue>, ApiError> {
    let facts = ask_own_queues(api).await?;
    let ids: Vec<QueueId> = facts.iter().map(|f| f.id).collect();
    let mut facts: BTreeMap<QueueId, QueueFacts> = facts.into_iter().map(|f| (f.id, f)).collect();
    let named = api.walk(QueuesById::from(ids), move |_, record| {
        let facts = facts.remove(&record.id)?;
        Some(Queue {
            vhost: record.vhost.clone(),
            name: record.name.clone(),
            stats: facts.stats?,
            counters: facts.counters,
            head: facts.head,
        })
    });
    let mut named = named.await?;
    named.retain(|q| vhosts.is_empty() || vhosts.contains(&&*q.vhost));
    Ok(named)
}

/// Streams with a replica on this node, with their names.
async fn streams(api: &Api, vhosts: &[&str]) -> Result<Vec<Stream>, ApiError> {
    let replicas = ask_own_streams(api).await?;
    let ids: BTreeSet<QueueId> = replicas.iter().map(|r| QueueId(r.queue)).collect();
    let ids: Vec<QueueId> = ids.into_iter().collect();
    let mut replicas: BTreeMap<u64, StreamReplicaFacts> =
        replicas.into_iter().map(|r| (r.queue, r)).collect();
    let named = api.walk(QueuesById::from(ids), move |_, record| {
        Some(Stream {
            vhost: record.vhost.clone(),
            name: record.name.clone(),
            replica: replicas.remove(&record.id.0)?,
        })
    });
    let mut named = named.await?;
    named.retain(|s| vhosts.is_empty() || vhosts.contains(&&*s.vhost));
    Ok(named)
}

/// Connections of this node.
async fn connections(api: &Api) -> Result<Vec<ConnectionFacts>, ApiError> {
    let own = api.config().node;
    let mut all = api
        .ask(|reply| ControlRequest::Connections { reply })
        .await?;
    all.retain(|c| c.node == own);
    Ok(all)
}
