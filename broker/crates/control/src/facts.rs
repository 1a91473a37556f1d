//! Facts about connections, channels and consumers of the whole cluster, and counters. Shards send
//! them as JSON to the shard that received the request: a node of another version omits fields that
//! it does not know.

mod streams;

pub use streams::{
    StreamConsumerFacts, StreamFilter, StreamFollowerFacts, StreamProtocolCounters,
    StreamPublisherFacts, StreamReaderFacts, StreamReplicaFacts, StreamSessionFacts,
    StreamTrackingFacts,
};

use crate::browse::{BrowseFacts, BrowseFilter};
use crate::timings::HistogramSnapshot;
use env::NodeId;
use queue::{
    ByQueueType, DeadLettering, DeadReason, DeathCounts, DeliveryCounters, QueueStats, QueueType,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A client connection, for listings.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionFacts {
    /// `peer:port -> host:port`, RabbitMQ's connection name.
    pub name: String,
    /// Not serialized: a node reports only its own connections.
    #[serde(skip)]
    pub node: NodeId,
    /// Number of its session, unique on the node while the session lives.
    pub number: u64,
    /// Name of the authenticated user; empty before the login.
    pub user: String,
    /// Virtual host; empty before the connection is open.
    pub vhost: String,
    /// Protocol as in metric labels, such as `amqp091`.
    pub protocol: String,
    /// Name that the client gave the connection; empty if it gave none.
    pub client_name: String,
    /// Client properties; empty for protocols without them.
    pub client_properties: serde_json::Map<String, serde_json::Value>,
    /// Address of the client, `host:port`.
    pub peer: String,
    /// Address of the listener, `host:port`.
    pub local: String,
    /// The client connected with TLS.
    pub tls: bool,
    /// `running`, `blocking`, `blocked`, `flow`, `starting` or `closing`.
    pub state: String,
    /// SASL mechanism; empty for protocols without a choice of mechanism.
    pub auth_mechanism: String,
    /// Negotiated TLS version (such as `tlsv1.3`) and registered name of the cipher suite, if
    /// known.
    pub tls_protocol: String,
    /// Registered name of the cipher suite; empty if unknown.
    pub tls_suite: String,
    /// The subject of the client's certificate (RFC 4514).
    pub certificate: Option<String>,
    /// Milliseconds since 1970.
    pub connected_ms: u64,
    /// Negotiated heartbeat or keep-alive interval in seconds; 0: none.
    pub heartbeat_s: u16,
    /// Largest frame in bytes that was negotiated; 0: no limit.
    pub frame_max: u32,
    /// Highest channel number that was negotiated; 0: no limit.
    pub channel_max: u16,
    /// Bytes received from the client.
    pub received_bytes: u64,
    /// Bytes sent to the client.
    pub sent_bytes: u64,
    /// Bytes in the send buffer.
    pub pending_bytes: u64,
    /// Open channels.
    pub channels: Vec<ChannelFacts>,
    /// Publishers and consumers, if the client uses the stream protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamSessionFacts>,
}

/// Leaves out `stream` for other protocols, as the JSON encoding does.
impl fmt::Debug for ConnectionFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `..`, a new field does not compile until it is written here.
        let ConnectionFacts {
            name,
            node,
            number,
            user,
            vhost,
            protocol,
            client_name,
            client_properties,
            peer,
            local,
            tls,
            state,
            auth_mechanism,
            tls_protocol,
            tls_suite,
            certificate,
            connected_ms,
            heartbeat_s,
            frame_max,
            channel_max,
            received_bytes,
            sent_bytes,
            pending_bytes,
            channels,
            stream,
        } = self;
        let mut text = f.debug_struct("ConnectionFacts");
        text.field("name", name)
            .field("node", node)
            .field("number", number)
            .field("user", user)
            .field("vhost", vhost)
            .field("protocol", protocol)
            .field("client_name", client_name)
            .field("client_properties", client_properties)
            .field("peer", peer)
            .field("local", local)
            .field("tls", tls)
            .field("state", state)
            .field("auth_mechanism", auth_mechanism)
            .field("tls_protocol", tls_protocol)
            .field("tls_suite", tls_suite)
            .field("certificate", certificate)
            .field("connected_ms", connected_ms)
            .field("heartbeat_s", heartbeat_s)
            .field("frame_max", frame_max)
            .field("channel_max", channel_max)
            .field("received_bytes", received_bytes)
            .field("sent_bytes", sent_bytes)
            .field("pending_bytes", pending_bytes)
            .field("channels", channels);
        if let Some(stream) = stream {
            text.field("stream", &Some(stream));
        }
        text.finish()
    }
}

/// A channel of a connection, or its counterpart in other protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelFacts {
    /// Channel number, unique in the connection.
    pub number: u16,
    /// Publisher confirms are enabled.
    pub confirm: bool,
    /// The channel is in transaction mode.
    pub transactional: bool,
    /// The client is blocked by flow control.
    pub flow_blocked: bool,
    /// Prefetch limit of each new consumer; 0: no limit.
    pub prefetch: u32,
    /// Prefetch limit of the whole channel; 0: no limit.
    pub global_prefetch: u32,
    /// Number of consumers.
    pub consumers: u32,
    /// Tags of consumers in automatic acknowledgement mode; their queues do not know the mode.
    pub auto_ack: Vec<String>,
    /// Deliveries that the client has not acknowledged.
    pub unacknowledged: u64,
    /// Publishes that are not confirmed.
    pub unconfirmed: u64,
    /// Publishes of the open transaction.
    pub uncommitted: u64,
    /// Acknowledgements of the open transaction.
    pub acks_uncommitted: u64,
    /// Message operations since the channel was opened.
    pub counts: MessageCounts,
    /// The windows and links, if the channel is a session of AMQP 1.0.
    pub links: Option<LinkSessionFacts>,
}

/// Windows and links of a session of AMQP 1.0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSessionFacts {
    /// The highest handle of a link.
    pub handle_max: u32,
    /// The transfer id that the node expects next.
    pub next_incoming_id: u32,
    /// Transfers that the client may send.
    pub incoming_window: u32,
    /// The id of the next transfer to the client.
    pub next_outgoing_id: u32,
    /// Transfers that the node may send.
    pub remote_incoming_window: u32,
    /// Transfers that the client can send before its window is closed.
    pub remote_outgoing_window: u32,
    /// Links on which the client sends.
    pub incoming: Vec<LinkFacts>,
    /// Links on which the client receives.
    pub outgoing: Vec<LinkFacts>,
}

/// A link of a session of AMQP 1.0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkFacts {
    /// The client's handle of the link.
    pub handle: u32,
    /// The name that the client chose.
    pub name: String,
    /// The address of an incoming link's target or of an outgoing link's source.
    pub address: Option<String>,
    /// The queue of an outgoing link; empty for other links.
    pub queue: String,
    /// `mixed`, `settled` or `unsettled`.
    pub settle_mode: String,
    /// Most bytes of a message. None: no limit.
    pub max_message_size: Option<u64>,
    /// Deliveries on the link since it was attached, modulo 2^32.
    pub delivery_count: u32,
    /// Deliveries that the receiver still allows.
    pub credit: u32,
    /// Deliveries without an outcome.
    pub unconfirmed: u64,
    /// The filters of an outgoing link that have an effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<LinkFilterFacts>,
}

/// A filter of a link, with the members of RabbitMQ's listing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkFilterFacts {
    /// The name that the client chose.
    pub name: String,
    /// The kind of filter: a name or a number.
    pub descriptor: serde_json::Value,
    /// The filter itself. A map is an array of objects with a `key` and a `value` each.
    pub value: serde_json::Value,
}

/// A consumer of a queue, for listings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerFacts {
    /// Id of the queue.
    pub queue: u64,
    /// The consumer's session: its node and its number there ([`ConnectionFacts::number`]).
    pub session_node: u64,
    /// Number of the session on its node ([`ConnectionFacts::number`]).
    pub session_number: u64,
    /// Channel of the consumer in its session.
    pub channel: u16,
    /// Consumer tag, unique in the channel.
    pub tag: String,
    /// No other consumer may consume from the queue.
    pub exclusive: bool,
    /// Prefetch limit; 0: no limit.
    pub prefetch: u32,
    /// False while another consumer is the single active consumer of the queue.
    pub active: bool,
    /// Arguments of the consumer.
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

/// Counts of message operations, with RabbitMQ's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageCounts {
    /// Messages published.
    pub publish: u64,
    /// Publishes confirmed to the publisher.
    pub confirm: u64,
    /// Unroutable mandatory messages returned to the publisher.
    pub return_unroutable: u64,
    /// Unroutable messages dropped.
    pub drop_unroutable: u64,
    /// Deliveries that the consumer must acknowledge.
    pub deliver: u64,
    /// Deliveries with automatic acknowledgement.
    pub deliver_no_ack: u64,
    /// Messages fetched singly that the client must acknowledge.
    pub get: u64,
    /// Messages fetched singly with automatic acknowledgement.
    pub get_no_ack: u64,
    /// Fetches from an empty queue.
    pub get_empty: u64,
    /// Deliveries of messages that had been delivered before.
    pub redeliver: u64,
    /// Acknowledgements.
    pub ack: u64,
}

impl MessageCounts {
    /// Adds the counts of another source.
    pub fn add(&mut self, other: &MessageCounts) {
        self.publish += other.publish;
        self.confirm += other.confirm;
        self.return_unroutable += other.return_unroutable;
        self.drop_unroutable += other.drop_unroutable;
        self.deliver += other.deliver;
        self.deliver_no_ack += other.deliver_no_ack;
        self.get += other.get;
        self.get_no_ack += other.get_no_ack;
        self.get_empty += other.get_empty;
        self.redeliver += other.redeliver;
        self.ack += other.ack;
    }

    /// All deliveries, in any way.
    pub fn deliver_get(&self) -> u64 {
        self.deliver + self.deliver_no_ack + self.get + self.get_no_ack
    }
}

impl From<&DeliveryCounters> for MessageCounts {
    fn from(d: &DeliveryCounters) -> MessageCounts {
        MessageCounts {
            deliver: d.deliver,
            deliver_no_ack: d.deliver_no_ack,
            get: d.get,
            get_no_ack: d.get_no_ack,
            get_empty: d.get_empty,
            redeliver: d.redeliver,
            ack: d.ack,
            ..MessageCounts::default()
        }
    }
}

/// Counters of a shard or a node since it started.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Connections accepted.
    pub connections_opened: u64,
    /// Connections that ended.
    pub connections_closed: u64,
    /// Channels opened.
    pub channels_opened: u64,
    /// Channels that ended.
    pub channels_closed: u64,
    /// Currently connected clients.
    pub connections: u64,
    /// Currently open channels.
    pub channels: u64,
    /// Totals of queues that are led or stored here now.
    pub queues: QueueTotals,
    /// By protocol, as in metric labels.
    pub protocols: BTreeMap<String, ProtocolCounters>,
    /// By protocol with RabbitMQ's labels for login attempts: all MQTT versions are `mqtt`.
    pub logins: BTreeMap<String, LoginCounts>,
    /// State of the MQTT routers.
    pub mqtt: MqttCounters,
    /// Dead messages of queues.
    #[serde(with = "crate::by_queue_type")]
    pub dead_letters: ByQueueType<DeadLetterTotals>,
    /// Sessions of the stream protocol.
    #[serde(skip_serializing_if = "StreamProtocolCounters::is_zero")]
    pub stream: StreamProtocolCounters,
    /// Raft groups.
    #[serde(skip_serializing_if = "RaftCounters::is_zero")]
    pub raft: RaftCounters,
    /// Milliseconds for which connections were paused because of rate limits, all connections together.
    #[serde(skip_serializing_if = "is_zero")]
    pub quota_paused_ms: u64,
    /// Virtual hosts with a quota of stored bytes, by name. Each shard knows all of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stored_bytes: BTreeMap<String, StoredBytesFacts>,
    /// Resource usage of the node. The first shard of a node reports it; a sum over nodes has that
    /// of the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<crate::NodeResources>,
}

/// Leaves out `stream`, `raft`, `quota_paused_ms` and `stored_bytes` while they are zero or empty, and unknown `resources`, as the JSON
/// encoding does.
impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `..`, a new field does not compile until it is written here.
        let Counters {
            connections_opened,
            connections_closed,
            channels_opened,
            channels_closed,
            connections,
            channels,
            queues,
            protocols,
            logins,
            mqtt,
            dead_letters,
            stream,
            raft,
            quota_paused_ms,
            stored_bytes,
            resources,
        } = self;
        let mut text = f.debug_struct("Counters");
        text.field("connections_opened", connections_opened)
            .field("connections_closed", connections_closed)
            .field("channels_opened", channels_opened)
            .field("channels_closed", channels_closed)
            .field("connections", connections)
            .field("channels", channels)
            .field("queues", queues)
            .field("protocols", protocols)
            .field("logins", logins)
            .field("mqtt", mqtt)
            .field("dead_letters", dead_letters);
        if !stream.is_zero() {
            text.field("stream", stream);
        }
        if !raft.is_zero() {
            text.field("raft", raft);
        }
        if *quota_paused_ms > 0 {
            text.field("quota_paused_ms", quota_paused_ms);
        }
        if !stored_bytes.is_empty() {
            text.field("stored_bytes", stored_bytes);
        }
        if let Some(resources) = resources {
            text.field("resources", resources);
        }
        text.finish()
    }
}

/// What the queues of a virtual host store in the whole cluster, as far as a shard knows, and their quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredBytesFacts {
    /// Bytes of message bodies.
    pub stored: u64,
    /// Bytes from which on publishers are blocked.
    pub limit: u64,
    /// Publishers are blocked now.
    pub is_blocked: bool,
}

impl StoredBytesFacts {
    /// Merges what another shard knows of the same virtual host: the higher number, which is nearer to the limit.
    fn merge(&mut self, other: &StoredBytesFacts) {
        self.stored = self.stored.max(other.stored);
        self.limit = self.limit.max(other.limit);
        self.is_blocked |= other.is_blocked;
    }
}

/// The Raft groups of a shard or a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RaftCounters {
    /// Groups with a replica here.
    pub groups: u64,
    /// Groups whose clocks run here. Those of idle groups do not.
    pub awake: u64,
    /// Bytes of log entries in memory.
    pub memory: u64,
    /// Elections that replicas here have won.
    pub elections_won: u64,
    /// Frames that could not be decoded, and messages that no correct member sends or that arrived too late.
    pub refused: u64,
    /// Checkpoint transfers that were aborted, in either direction.
    pub failed_transfers: u64,
    /// Times a job was postponed because disk space, descriptors or memory were short.
    pub postponed_jobs: u64,
}

impl RaftCounters {
    fn is_zero(&self) -> bool {
        *self == RaftCounters::default()
    }

    fn add(&mut self, other: &RaftCounters) {
        self.groups += other.groups;
        self.awake += other.awake;
        self.memory += other.memory;
        self.elections_won += other.elections_won;
        self.refused += other.refused;
        self.failed_transfers += other.failed_transfers;
        self.postponed_jobs += other.postponed_jobs;
    }
}

/// Login attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoginCounts {
    /// Successful attempts.
    pub succeeded: u64,
    /// Refused attempts.
    pub failed: u64,
}

impl LoginCounts {
    /// Counts one attempt.
    pub fn count(&mut self, succeeded: bool) {
        match succeeded {
            true => self.succeeded += 1,
            false => self.failed += 1,
        }
    }

    /// Adds the counts of another source.
    pub fn add(&mut self, other: &LoginCounts) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
    }
}

/// Messages that left queues of one type without being accepted, by dead-letter strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterTotals {
    /// Dropped: their queue has no dead letter exchange.
    pub disabled: DeadLetterReasons,
    /// Republished without waiting for a confirmation.
    pub at_most_once: DeadLetterReasons,
    /// Republished until every target queue has confirmed.
    pub at_least_once: DeadLetterReasons,
    /// At-least-once dead letters that every target queue confirmed.
    pub confirmed: u64,
}

/// Dead-lettered messages by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterReasons {
    /// Dropped or refused because the queue was full.
    pub maxlen: u64,
    /// Expired.
    pub expired: u64,
    /// Rejected by a consumer.
    pub rejected: u64,
    /// Delivered more often than the queue allows.
    pub delivery_limit: u64,
}

impl DeadLetterReasons {
    fn add(&mut self, other: &DeadLetterReasons) {
        self.maxlen += other.maxlen;
        self.expired += other.expired;
        self.rejected += other.rejected;
        self.delivery_limit += other.delivery_limit;
    }
}

impl DeadLetterTotals {
    /// The counts of queues of this type.
    pub fn of(counts: &DeathCounts, kind: QueueType) -> DeadLetterTotals {
        let reasons = |way| DeadLetterReasons {
            maxlen: counts.of(kind, way, DeadReason::MaxLength),
            expired: counts.of(kind, way, DeadReason::Expired),
            rejected: counts.of(kind, way, DeadReason::Rejected),
            delivery_limit: counts.of(kind, way, DeadReason::DeliveryLimit),
        };
        DeadLetterTotals {
            disabled: reasons(DeadLettering::Off),
            at_most_once: reasons(DeadLettering::AtMostOnce),
            at_least_once: reasons(DeadLettering::AtLeastOnce),
            confirmed: 0,
        }
    }

    fn add(&mut self, other: &DeadLetterTotals) {
        self.disabled.add(&other.disabled);
        self.at_most_once.add(&other.at_most_once);
        self.at_least_once.add(&other.at_least_once);
        self.confirmed += other.confirmed;
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Totals of queue statistics, maintained by the shards: a metrics scrape does not need a list of
/// queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueTotals {
    /// Number of queues.
    pub queues: u64,
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not acknowledged.
    pub unacknowledged: u64,
    /// Bytes of the bodies of all messages, dead letters included.
    pub bytes: u64,
    /// Dead letters that the queues keep until they are forwarded.
    pub dead: u64,
    /// Messages of quorum queues that become ready later. Older versions do not have the field.
    #[serde(skip_serializing_if = "is_zero")]
    pub delayed: u64,
    /// Number of consumers.
    pub consumers: u64,
    /// Messages lost with files of classic queues, as far as their number is known.
    pub lost_messages: u64,
    /// Lost or damaged files of classic queues.
    pub lost_segments: u64,
}

impl QueueTotals {
    /// Adds a queue.
    pub fn add(&mut self, stats: &QueueStats) {
        self.queues += 1;
        self.ready += stats.ready;
        self.unacknowledged += stats.unacknowledged;
        self.bytes += stats.all_bytes();
        self.dead += stats.dead;
        self.delayed += stats.delayed;
        self.consumers += u64::from(stats.consumers);
        self.lost_messages += stats.lost.messages;
        self.lost_segments += stats.lost.segments;
    }

    /// Reverts [`QueueTotals::add`].
    pub fn remove(&mut self, stats: &QueueStats) {
        debug_assert!(
            self.queues > 0 && self.ready >= stats.ready && self.bytes >= stats.all_bytes(),
            "totals {self:?} do not include a queue with {stats:?}"
        );
        self.queues -= 1;
        self.ready -= stats.ready;
        self.unacknowledged -= stats.unacknowledged;
        self.bytes -= stats.all_bytes();
        self.dead -= stats.dead;
        self.delayed -= stats.delayed;
        self.consumers -= u64::from(stats.consumers);
        self.lost_messages -= stats.lost.messages;
        self.lost_segments -= stats.lost.segments;
    }
}

/// Network traffic of a protocol; 0 for protocols whose sessions do not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficCounts {
    /// Accepted connections.
    pub connects: u64,
    /// Packets or frames received.
    pub packets_in: u64,
    /// Packets or frames sent.
    pub packets_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Message payload without protocol overhead.
    pub payload_in: u64,
    /// Message payload sent, without protocol overhead.
    pub payload_out: u64,
}

impl TrafficCounts {
    /// Adds the counts of another source.
    pub fn add(&mut self, other: &TrafficCounts) {
        self.connects += other.connects;
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.payload_in += other.payload_in;
        self.payload_out += other.payload_out;
    }
}

/// Upper bounds in bytes of the classes of message sizes, which are those of RabbitMQ.
pub const MESSAGE_SIZE_BOUNDS: [u64; 8] = [
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
];

/// Messages received from publishers by their sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageSizeCounts {
    /// Upper bounds in bytes, ascending, and the number of messages up to each and above the one before.
    pub classes: Vec<(u64, u64)>,
    /// Messages above the last bound.
    pub larger: u64,
    /// The sum of all sizes in bytes.
    pub bytes: u64,
}

impl Default for MessageSizeCounts {
    fn default() -> MessageSizeCounts {
        MessageSizeCounts {
            classes: MESSAGE_SIZE_BOUNDS.map(|bound| (bound, 0)).to_vec(),
            larger: 0,
            bytes: 0,
        }
    }
}

impl MessageSizeCounts {
    /// Returns true if no message was counted.
    pub fn is_empty(&self) -> bool {
        self.larger == 0 && self.classes.iter().all(|(_, count)| *count == 0)
    }

    /// Adds the counts of another source. A class that another version of the broker does not have is kept.
    pub fn add(&mut self, other: &MessageSizeCounts) {
        for (bound, count) in &other.classes {
            match self
                .classes
                .binary_search_by_key(bound, |(bound, _)| *bound)
            {
                Ok(at) => self.classes[at].1 += count,
                Err(at) => self.classes.insert(at, (*bound, *count)),
            }
        }
        self.larger += other.larger;
        self.bytes += other.bytes;
    }

    /// As a histogram in bytes.
    pub fn histogram(&self) -> HistogramSnapshot {
        let mut up_to = 0;
        let buckets = self.classes.iter().map(|(bound, count)| {
            up_to += count;
            (*bound as f64, up_to)
        });
        let buckets = buckets.collect();
        HistogramSnapshot {
            buckets,
            count: up_to + self.larger,
            sum: self.bytes as f64,
            exemplars: Vec::new(),
        }
    }
}

/// Counters of the sessions of one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProtocolCounters {
    /// Messages received from publishers.
    pub received: u64,
    /// Messages received with publisher confirms enabled.
    pub received_confirm: u64,
    /// Publishes confirmed.
    pub confirmed: u64,
    /// Counted once per target queue.
    pub routed: u64,
    /// Unroutable mandatory messages returned to the publisher.
    pub unroutable_returned: u64,
    /// Unroutable messages dropped.
    pub unroutable_dropped: u64,
    /// Deliveries from queues.
    #[serde(with = "crate::by_queue_type")]
    pub by_queue_type: ByQueueType<MessageCounts>,
    /// Messages delivered without a queue, as to MQTT clients.
    pub queueless: MessageCounts,
    /// Network traffic.
    pub traffic: TrafficCounts,
    /// Currently open channels that have published, or connections for protocols without channels.
    pub publishers: i64,
    /// MQTT connections with a subscription.
    pub consumers: i64,
    /// Sizes of the messages received from publishers.
    #[serde(skip_serializing_if = "MessageSizeCounts::is_empty")]
    pub sizes: MessageSizeCounts,
}

impl ProtocolCounters {
    /// Adds the counters of another shard or node.
    pub fn add(&mut self, other: &ProtocolCounters) {
        self.received += other.received;
        self.received_confirm += other.received_confirm;
        self.confirmed += other.confirmed;
        self.routed += other.routed;
        self.unroutable_returned += other.unroutable_returned;
        self.unroutable_dropped += other.unroutable_dropped;
        for (queue_type, ours) in self.by_queue_type.iter_mut() {
            ours.add(&other.by_queue_type[queue_type]);
        }
        self.traffic.add(&other.traffic);
        self.queueless.add(&other.queueless);
        self.publishers += other.publishers;
        self.consumers += other.consumers;
        self.sizes.add(&other.sizes);
    }
}

/// State of a node's MQTT routers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MqttCounters {
    /// Connected clients.
    pub connected: u64,
    /// Sessions of disconnected clients.
    pub sessions_away: u64,
    /// Sum of the maximum number of connected clients and offline sessions that each shard ever
    /// had.
    pub most: u64,
    /// Sessions that expired.
    pub expired: u64,
    /// Subscriptions of connected clients and offline sessions.
    pub subscriptions: u64,
    /// Retained messages of the cluster, as stored by this node.
    pub retained: u64,
    /// Bytes of the retained messages.
    pub retained_bytes: u64,
    /// QoS 0 messages dropped because the client did not read.
    pub dropped: u64,
    /// Messages dropped because the buffer of an offline session was full.
    pub not_kept: u64,
    /// QoS 0 messages dropped on the way to another shard or node.
    pub dropped_between: u64,
    /// QoS 1 and 2 messages that did not reach another shard or node.
    pub lost_between: u64,
    /// Wills of other nodes' clients that are stored here, and those that were rejected for lack of
    /// space.
    pub wills: u64,
    /// Wills of other nodes' clients that were rejected for lack of space.
    pub wills_not_kept: u64,
}

impl MqttCounters {
    fn add(&mut self, other: &MqttCounters) {
        self.connected += other.connected;
        self.sessions_away += other.sessions_away;
        self.most += other.most;
        self.expired += other.expired;
        self.subscriptions += other.subscriptions;
        self.retained += other.retained;
        self.retained_bytes += other.retained_bytes;
        self.dropped += other.dropped;
        self.not_kept += other.not_kept;
        self.dropped_between += other.dropped_between;
        self.lost_between += other.lost_between;
        self.wills += other.wills;
        self.wills_not_kept += other.wills_not_kept;
    }
}

impl Counters {
    /// Adds the counters of another shard or node.
    pub fn add(&mut self, other: &Counters) {
        self.connections_opened += other.connections_opened;
        self.connections_closed += other.connections_closed;
        self.channels_opened += other.channels_opened;
        self.channels_closed += other.channels_closed;
        self.connections += other.connections;
        self.channels += other.channels;
        self.queues.queues += other.queues.queues;
        self.queues.ready += other.queues.ready;
        self.queues.unacknowledged += other.queues.unacknowledged;
        self.queues.bytes += other.queues.bytes;
        self.queues.dead += other.queues.dead;
        self.queues.delayed += other.queues.delayed;
        self.queues.consumers += other.queues.consumers;
        self.queues.lost_messages += other.queues.lost_messages;
        self.queues.lost_segments += other.queues.lost_segments;
        self.quota_paused_ms += other.quota_paused_ms;
        for (vhost, theirs) in &other.stored_bytes {
            let ours = self.stored_bytes.entry(vhost.clone()).or_default();
            ours.merge(theirs);
        }
        for (protocol, theirs) in &other.protocols {
            let ours = self.protocols.entry(protocol.clone()).or_default();
            ours.add(theirs);
        }
        for (protocol, theirs) in &other.logins {
            self.logins.entry(protocol.clone()).or_default().add(theirs);
        }
        self.mqtt.add(&other.mqtt);
        for (queue_type, ours) in self.dead_letters.iter_mut() {
            ours.add(&other.dead_letters[queue_type]);
        }
        self.stream.add(&other.stream);
        self.raft.add(&other.raft);
        self.resources = self.resources.or(other.resources);
    }

    /// Message counts of all protocols.
    pub fn messages(&self) -> MessageCounts {
        let mut sum = MessageCounts::default();
        for p in self.protocols.values() {
            p.by_queue_type.values().for_each(|counts| sum.add(counts));
            sum.add(&p.queueless);
            sum.publish += p.received;
            sum.confirm += p.confirmed;
            sum.return_unroutable += p.unroutable_returned;
            sum.drop_unroutable += p.unroutable_dropped;
        }
        sum
    }
}

/// Virtual hosts and exchanges whose traffic is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficFilter {
    /// Names of virtual hosts.
    pub vhosts: Vec<String>,
    /// Pairs of virtual host and name.
    pub exchanges: Vec<(String, String)>,
}

/// Messages published to an exchange, and messages that it routed to queues, counted once per
/// queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExchangeCounts {
    /// Messages published to the exchange.
    pub publish_in: u64,
    /// Messages routed to queues, counted once per queue.
    pub publish_out: u64,
}

/// Traffic of the requested virtual hosts and exchanges. Those without traffic are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficFacts {
    /// By name of the virtual host.
    pub vhosts: BTreeMap<String, MessageCounts>,
    /// By virtual host and name.
    pub exchanges: BTreeMap<String, BTreeMap<String, ExchangeCounts>>,
}

impl TrafficFacts {
    /// Adds the traffic that another shard has seen.
    pub fn add(&mut self, other: &TrafficFacts) {
        for (vhost, counts) in &other.vhosts {
            self.vhosts.entry(vhost.clone()).or_default().add(counts);
        }
        for (vhost, exchanges) in &other.exchanges {
            let ours = self.exchanges.entry(vhost.clone()).or_default();
            for (name, counts) in exchanges {
                let ours = ours.entry(name.clone()).or_default();
                ours.publish_in += counts.publish_in;
                ours.publish_out += counts.publish_out;
            }
        }
    }

    /// Returns the counts of an exchange; 0 for one without traffic.
    pub fn exchange(&self, vhost: &str, name: &str) -> ExchangeCounts {
        let found = self.exchanges.get(vhost).and_then(|all| all.get(name));
        found.copied().unwrap_or_default()
    }
}

/// A query that shard 0 sends to all shards of all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ShardQuery {
    /// All connections of the shard.
    Connections,
    /// Consumers of the queues that the shard leads or stores.
    Consumers,
    /// The counters of the shard.
    Counters,
    /// Traffic that the shard has seen.
    Traffic(TrafficFilter),
    /// Replicas of streams of the shard.
    Streams(StreamFilter),
    /// A page of the messages of a queue that the shard leads or stores. Versions that do not know it answer that they
    /// have nothing.
    Browse(BrowseFilter),
    /// Closes the connection with this name.
    Close {
        /// Name of the connection ([`ConnectionFacts::name`]).
        name: String,
        /// Reason that the client is told.
        reason: String,
    },
}

/// One shard's response, or a part of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ShardFacts {
    /// A part of the answer to [`ShardQuery::Connections`].
    Connections(Vec<ConnectionFacts>),
    /// A part of the answer to [`ShardQuery::Consumers`].
    Consumers(Vec<ConsumerFacts>),
    /// The answer to [`ShardQuery::Counters`].
    Counters(Box<Counters>),
    /// The answer to [`ShardQuery::Traffic`].
    Traffic(TrafficFacts),
    /// A part of the answer to [`ShardQuery::Streams`].
    Streams(Vec<StreamReplicaFacts>),
    /// The answer to [`ShardQuery::Browse`]; `None`: the shard does not lead or store the queue.
    Browsed(Option<Box<BrowseFacts>>),
    /// The answer to [`ShardQuery::Close`]: true if the shard had the connection.
    Closed(bool),
}

impl ShardQuery {
    /// Encodes the query as JSON.
    pub fn encode(&self) -> Vec<u8> {
        // The types contain only strings and numbers, so serialization cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a query; `None` if the bytes are none that this version knows.
    pub fn decode(raw: &[u8]) -> Option<ShardQuery> {
        serde_json::from_slice(raw).ok()
    }
}

impl ShardFacts {
    /// Encodes the answer as JSON.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes an answer; `None` if the bytes are none that this version knows.
    pub fn decode(raw: &[u8]) -> Option<ShardFacts> {
        serde_json::from_slice(raw).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_round_trip_and_invalid_input_is_rejected() {
        let connection = ConnectionFacts {
            name: "a -> b".into(),
            node: NodeId(7),
            channels: vec![ChannelFacts {
                number: 3,
                counts: MessageCounts {
                    publish: u64::MAX,
                    ..MessageCounts::default()
                },
                ..ChannelFacts::default()
            }],
            ..ConnectionFacts::default()
        };
        let raw = ShardFacts::Connections(vec![connection.clone()]).encode();
        let Some(ShardFacts::Connections(decoded)) = ShardFacts::decode(&raw) else {
            panic!("{}", String::from_utf8_lossy(&raw));
        };
        assert_eq!(decoded[0].channels, connection.channels);
        // The sender is known from the link, not from the data.
        assert_eq!(decoded[0].node, NodeId::default());
        assert!(
            ShardFacts::decode(b"").is_none()
                && ShardFacts::decode(b"{\"Connections\":3}").is_none()
        );
        assert!(ShardQuery::decode(&ShardQuery::Consumers.encode()).is_some());
        assert!(ShardQuery::decode(b"\"Everything\"").is_none());
    }

    #[test]
    fn field_omitted_by_an_older_node_is_empty() {
        let Some(ShardFacts::Counters(counters)) =
            ShardFacts::decode(b"{\"Counters\":{\"connections\":4,\"dreams\":1}}")
        else {
            panic!();
        };
        assert_eq!((counters.connections, counters.channels), (4, 0));
    }
}
