//! Facts about connections, channels and consumers of the whole cluster, and counters. Shards send them to the one that
//! was asked as JSON: a node of another version leaves out what it does not know.

use env::NodeId;
use queue::{
    ByQueueType, DeadLettering, DeadReason, DeathCounts, DeliveryCounters, QueueStats, QueueType,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionFacts {
    /// `peer:port -> host:port`, as RabbitMQ names them.
    pub name: String,
    /// Not sent: a node speaks for its own connections.
    #[serde(skip)]
    pub node: NodeId,
    /// Of its session, unique on the node while it lives.
    pub number: u64,
    pub user: String,
    pub vhost: String,
    /// As in metrics' labels: `amqp091`.
    pub protocol: String,
    pub client_name: String,
    /// What the client said about itself; empty where its protocol has no such thing.
    pub client_properties: serde_json::Map<String, serde_json::Value>,
    pub peer: String,
    pub local: String,
    pub tls: bool,
    /// `running`, `blocking`, `blocked`, `flow`, `starting` or `closing`.
    pub state: String,
    /// As SASL names it; empty where a protocol has no choice.
    pub auth_mechanism: String,
    /// What TLS agreed to, where that is known: as `tlsv1.3`, and the cipher suite by its registered name.
    pub tls_protocol: String,
    pub tls_suite: String,
    /// The subject of the client's certificate (RFC 4514).
    pub certificate: Option<String>,
    /// Since 1970, in milliseconds.
    pub connected_ms: u64,
    pub heartbeat_s: u16,
    pub frame_max: u32,
    pub channel_max: u16,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Bytes that wait for the socket.
    pub pending_bytes: u64,
    pub channels: Vec<ChannelFacts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelFacts {
    pub number: u16,
    pub confirm: bool,
    pub transactional: bool,
    /// The client was told to publish no more for now.
    pub flow_blocked: bool,
    pub prefetch: u32,
    pub global_prefetch: u32,
    pub consumers: u32,
    /// Tags of those that do not acknowledge; their queues do not know.
    pub auto_ack: Vec<String>,
    pub unacknowledged: u64,
    pub unconfirmed: u64,
    pub uncommitted: u64,
    pub acks_uncommitted: u64,
    pub counts: MessageCounts,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerFacts {
    pub queue: u64,
    /// The consumer's session: its node and its number there ([`ConnectionFacts::number`]).
    pub session_node: u64,
    pub session_number: u64,
    pub channel: u16,
    pub tag: String,
    pub exclusive: bool,
    pub prefetch: u32,
    pub active: bool,
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

/// What has happened to messages, under the names that RabbitMQ's API has for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageCounts {
    pub publish: u64,
    pub confirm: u64,
    pub return_unroutable: u64,
    pub drop_unroutable: u64,
    pub deliver: u64,
    pub deliver_no_ack: u64,
    pub get: u64,
    pub get_no_ack: u64,
    pub get_empty: u64,
    pub redeliver: u64,
    pub ack: u64,
}

impl MessageCounts {
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

    /// Handed to clients in any way.
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

/// What a shard, or a node, has counted since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub connections_opened: u64,
    pub connections_closed: u64,
    pub channels_opened: u64,
    pub channels_closed: u64,
    /// Clients that are connected now.
    pub connections: u64,
    pub channels: u64,
    /// Of queues that are led or live there now.
    pub queues: QueueTotals,
    /// By protocol, as in metrics' labels.
    pub protocols: BTreeMap<String, ProtocolCounters>,
    /// By protocol, as RabbitMQ labels login attempts: all versions of MQTT are `mqtt`.
    pub logins: BTreeMap<String, LoginCounts>,
    pub mqtt: MqttCounters,
    /// Dead messages of queues.
    #[serde(with = "crate::by_queue_type")]
    pub dead_letters: ByQueueType<DeadLetterTotals>,
}

/// Login attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoginCounts {
    pub succeeded: u64,
    pub failed: u64,
}

impl LoginCounts {
    pub fn count(&mut self, succeeded: bool) {
        match succeeded {
            true => self.succeeded += 1,
            false => self.failed += 1,
        }
    }

    pub fn add(&mut self, other: &LoginCounts) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
    }
}

/// Messages that left queues of one type without having been accepted, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterTotals {
    /// Gone: their queue names no dead letter exchange.
    pub disabled: DeadLetterReasons,
    pub at_most_once: DeadLetterReasons,
    pub at_least_once: DeadLetterReasons,
    /// Of the last: confirmed by every queue they went to.
    pub confirmed: u64,
}

/// What messages died of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterReasons {
    pub maxlen: u64,
    pub expired: u64,
    pub rejected: u64,
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
    /// Those in queues of this type.
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

/// Figures of queues, summed up by the shards that have them: a scrape needs no list of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueTotals {
    pub queues: u64,
    pub ready: u64,
    pub unacknowledged: u64,
    pub bytes: u64,
    pub dead: u64,
    pub consumers: u64,
    /// Lost with files of classic queues, as far as their number is known.
    pub lost_messages: u64,
    pub lost_segments: u64,
}

impl QueueTotals {
    pub fn add(&mut self, stats: &QueueStats) {
        self.queues += 1;
        self.ready += stats.ready;
        self.unacknowledged += stats.unacknowledged;
        self.bytes += stats.bytes + stats.dead_bytes;
        self.dead += stats.dead;
        self.consumers += u64::from(stats.consumers);
        self.lost_messages += stats.lost.messages;
        self.lost_segments += stats.lost.segments;
    }

    /// What [`QueueTotals::add`] did, undone.
    pub fn remove(&mut self, stats: &QueueStats) {
        self.queues -= 1;
        self.ready -= stats.ready;
        self.unacknowledged -= stats.unacknowledged;
        self.bytes -= stats.bytes + stats.dead_bytes;
        self.dead -= stats.dead;
        self.consumers -= u64::from(stats.consumers);
        self.lost_messages -= stats.lost.messages;
        self.lost_segments -= stats.lost.segments;
    }
}

/// What went over a protocol's connections; all 0 where sessions do not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficCounts {
    /// Connections that were accepted.
    pub connects: u64,
    pub packets_in: u64,
    pub packets_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Of messages, without what is around them.
    pub payload_in: u64,
    pub payload_out: u64,
}

impl TrafficCounts {
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProtocolCounters {
    pub received: u64,
    /// Of those: with a confirm wanted.
    pub received_confirm: u64,
    pub confirmed: u64,
    /// Counted once for each queue.
    pub routed: u64,
    pub unroutable_returned: u64,
    pub unroutable_dropped: u64,
    /// Deliveries from queues.
    #[serde(with = "crate::by_queue_type")]
    pub by_queue_type: ByQueueType<MessageCounts>,
    /// Of messages that come from no queue, as to MQTT clients.
    pub queueless: MessageCounts,
    pub traffic: TrafficCounts,
    /// Those that have published and are still there: channels, or connections where a protocol has no channels.
    pub publishers: i64,
    /// Of MQTT: connections that have subscribed.
    pub consumers: i64,
}

impl ProtocolCounters {
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
    }
}

/// What a node's hubs of MQTT subscriptions have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MqttCounters {
    pub connected: u64,
    /// Sessions whose clients are away.
    pub sessions_away: u64,
    /// The most of both that each shard ever had at the same time, added up.
    pub most: u64,
    /// Sessions that ended because their time was over.
    pub expired: u64,
    pub subscriptions: u64,
    /// The cluster's, as this node has them.
    pub retained: u64,
    pub retained_bytes: u64,
    /// Messages of QoS 0 that were dropped because their clients did not read.
    pub dropped: u64,
    /// Messages that a client that was away had no room for.
    pub not_kept: u64,
    /// Messages of QoS 0 that were dropped on their way to another shard or node.
    pub dropped_between: u64,
    /// Messages of QoS 1 and 2 that another shard or node did not get.
    pub lost_between: u64,
    /// Wills of other nodes' clients that are kept here, and those that there was no room for.
    pub wills: u64,
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
        self.queues.consumers += other.queues.consumers;
        self.queues.lost_messages += other.queues.lost_messages;
        self.queues.lost_segments += other.queues.lost_segments;
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
    }

    /// Everything that clients of all protocols did.
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

/// Virtual hosts and exchanges whose messages somebody wants to know of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficFilter {
    pub vhosts: Vec<String>,
    /// Virtual host and name.
    pub exchanges: Vec<(String, String)>,
}

/// Messages that clients published to an exchange, and that went to queues by it: each once for each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExchangeCounts {
    pub publish_in: u64,
    pub publish_out: u64,
}

/// Of virtual hosts and exchanges that were asked for those that have had messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficFacts {
    pub vhosts: BTreeMap<String, MessageCounts>,
    /// By virtual host and name.
    pub exchanges: BTreeMap<String, BTreeMap<String, ExchangeCounts>>,
}

impl TrafficFacts {
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

    pub fn exchange(&self, vhost: &str, name: &str) -> ExchangeCounts {
        let found = self.exchanges.get(vhost).and_then(|all| all.get(name));
        found.copied().unwrap_or_default()
    }
}

/// What shard 0 asks all shards of all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ShardQuery {
    Connections,
    Consumers,
    Counters,
    Traffic(TrafficFilter),
    /// End the connection of this name.
    Close {
        name: String,
        reason: String,
    },
}

/// One shard's answer, or a part of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ShardFacts {
    Connections(Vec<ConnectionFacts>),
    Consumers(Vec<ConsumerFacts>),
    Counters(Box<Counters>),
    Traffic(TrafficFacts),
    Closed(bool),
}

impl ShardQuery {
    pub fn encode(&self) -> Vec<u8> {
        // Strings and numbers: nothing that JSON cannot say.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(raw: &[u8]) -> Option<ShardQuery> {
        serde_json::from_slice(raw).ok()
    }
}

impl ShardFacts {
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(raw: &[u8]) -> Option<ShardFacts> {
        serde_json::from_slice(raw).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_back_as_they_went_and_nonsense_does_not() {
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
        let Some(ShardFacts::Connections(back)) = ShardFacts::decode(&raw) else {
            panic!("{}", String::from_utf8_lossy(&raw));
        };
        assert_eq!(back[0].channels, connection.channels);
        // Who sends it is known from the link, not from what it says.
        assert_eq!(back[0].node, NodeId::default());
        assert!(
            ShardFacts::decode(b"").is_none()
                && ShardFacts::decode(b"{\"Connections\":3}").is_none()
        );
        assert!(ShardQuery::decode(&ShardQuery::Consumers.encode()).is_some());
        assert!(ShardQuery::decode(b"\"Everything\"").is_none());
    }

    #[test]
    fn a_part_that_an_older_node_leaves_out_is_empty() {
        let Some(ShardFacts::Counters(counters)) =
            ShardFacts::decode(b"{\"Counters\":{\"connections\":4,\"dreams\":1}}")
        else {
            panic!();
        };
        assert_eq!((counters.connections, counters.channels), (4, 0));
    }
}
