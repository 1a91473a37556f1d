//! Metrics with a sample per queue, connection or channel. The text is produced in chunks while it
//! is sent: for 100,000 queues it would take about 100 MB.

use super::{COUNTER, GAUGE, ask_own_queues};
use crate::ask::Api;
use crate::channels;
use crate::error::ApiError;
use crate::exposition::Page;
use axum::body::Bytes;
use control::{ChannelFacts, ConnectionFacts, ControlRequest, QueueFacts};
use http_body::Frame;
use metadata::{Name, QueueId, QueuesById};
use queue::{QueueCounters, QueueStats};
use std::collections::BTreeMap;
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
/// Metric families that `/metrics/detailed` supports.
pub(super) const FAMILIES: &[&str] = &[
    COARSE,
    CONSUMERS,
    DELIVERY,
    QUEUES,
    CONNECTION_COARSE,
    CONNECTION,
    CHANNEL,
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
}

/// A response body of metrics with a sample per object, produced as it is sent.
pub(super) struct Samples {
    page: Page,
    queues: Vec<Queue>,
    connections: Vec<ConnectionFacts>,
    /// The requested families.
    families: Vec<&'static str>,
    /// The next metric, as an index into the concatenated metric tables, and the next object.
    metric: usize,
    object: usize,
}

impl Samples {
    /// Collects the objects of this node. The samples follow the text already in `page`.
    pub(super) async fn gather(
        api: &Api,
        page: Page,
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
        let clients = [CONNECTION_COARSE, CONNECTION, CHANNEL];
        let connections = match clients.into_iter().any(is_requested) {
            true => connections(api).await?,
            false => Vec::new(),
        };
        Ok(Samples {
            page,
            queues,
            connections,
            families,
            metric: 0,
            object: 0,
        })
    }

    /// Returns the next chunk of text; None at the end.
    pub(super) fn next_chunk(&mut self) -> Option<String> {
        while self.page.len() < CHUNK && self.advance() {}
        let text = self.page.take();
        (!text.is_empty()).then_some(text)
    }

    /// Writes one sample, or a metric's head and first sample. Returns false at the end.
    fn advance(&mut self) -> bool {
        let mut at = self.metric;
        if let Some(metric) = QUEUE_METRICS.get(at) {
            return self.write_queue_sample(metric);
        }
        at -= QUEUE_METRICS.len();
        if let Some(metric) = CONNECTION_METRICS.get(at) {
            return self.write_connection_sample(metric);
        }
        match CHANNEL_METRICS.get(at - CONNECTION_METRICS.len()) {
            Some(metric) => self.write_channel_sample(metric),
            None => false,
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
        })
    });
    let mut named = named.await?;
    named.retain(|q| vhosts.is_empty() || vhosts.contains(&&*q.vhost));
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
