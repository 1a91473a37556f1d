//! What sessions count, and facts about them for listings.

use auth::TlsPeer;
use message::Table;
use queue::{ByQueueType, DeliveryCounters, QueueType};
use std::sync::Arc;

/// Messages from publishers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounters {
    pub received: u64,
    /// Of those: with a confirm wanted.
    pub received_confirm: u64,
    pub confirmed: u64,
    /// Once for each queue that a message went to.
    pub routed: u64,
    pub unroutable_returned: u64,
    pub unroutable_dropped: u64,
}

/// What went over connections whose sessions count it: those of MQTT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
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

impl TrafficCounters {
    pub fn add(&mut self, other: &TrafficCounters) {
        self.connects += other.connects;
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.payload_in += other.payload_in;
        self.payload_out += other.payload_out;
    }
}

/// Messages of sessions of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounters {
    pub publishes: PublishCounters,
    /// Deliveries from queues.
    pub deliveries: ByQueueType<DeliveryCounters>,
    /// Of messages that come from no queue, as to MQTT clients.
    pub queueless: DeliveryCounters,
    pub traffic: TrafficCounters,
    /// How many more there are that have published: channels, or connections where a protocol has no channels.
    pub publishers: i64,
    /// How many more consumers; of MQTT connections that have subscribed.
    pub consumers: i64,
}

impl MessageCounters {
    pub fn of(&mut self, kind: QueueType) -> &mut DeliveryCounters {
        &mut self.deliveries[kind]
    }

    pub fn add(&mut self, other: &MessageCounters) {
        let (ours, theirs) = (&mut self.publishes, &other.publishes);
        ours.received += theirs.received;
        ours.received_confirm += theirs.received_confirm;
        ours.confirmed += theirs.confirmed;
        ours.routed += theirs.routed;
        ours.unroutable_returned += theirs.unroutable_returned;
        ours.unroutable_dropped += theirs.unroutable_dropped;
        for (queue_type, ours) in self.deliveries.iter_mut() {
            ours.add(&other.deliveries[queue_type]);
        }
        self.queueless.add(&other.queueless);
        self.traffic.add(&other.traffic);
        self.publishers += other.publishers;
        self.consumers += other.consumers;
    }
}

/// Facts about a session, beyond [`SessionInfo`](crate::SessionInfo).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionDetails {
    /// `running`, `blocking`, `blocked`, `flow`, `starting` or `closing`.
    pub state: &'static str,
    /// What the client has logged in with; empty before, and where a protocol has no choice.
    pub auth_mechanism: &'static str,
    /// What TLS says about it, where the session has kept that.
    pub tls: Option<Arc<TlsPeer>>,
    pub heartbeat_s: u16,
    pub frame_max: u32,
    pub channel_max: u16,
    /// What the client said about itself.
    pub client_properties: Table,
    /// By number.
    pub channels: Vec<ChannelDetails>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelDetails {
    pub number: u16,
    pub confirm: bool,
    pub transactional: bool,
    /// The client was told to stop publishing.
    pub flow_blocked: bool,
    pub prefetch: u32,
    pub global_prefetch: u32,
    pub consumers: u32,
    /// Tags of those that do not acknowledge: their queues cannot tell, for this session does it.
    pub auto_ack: Vec<String>,
    pub unacknowledged: u64,
    pub unconfirmed: u64,
    pub uncommitted: u64,
    pub acks_uncommitted: u64,
    pub publishes: PublishCounters,
    pub deliveries: DeliveryCounters,
}
