//! Message counters of sessions, and session details for listings.

use auth::TlsPeer;
use control::MESSAGE_SIZE_BOUNDS;
use env::WallTime;
use message::{Table, Value};
use queue::{ByQueueType, DeliveryCounters, QueueType};
use std::sync::Arc;

/// Counters of messages received from publishers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounters {
    /// Messages received.
    pub received: u64,
    /// Messages received on channels with publisher confirms.
    pub received_confirm: u64,
    /// Messages confirmed to the publisher.
    pub confirmed: u64,
    /// Incremented once for each queue that a message was routed to.
    pub routed: u64,
    /// Unroutable messages with `mandatory`, returned to the publisher.
    pub unroutable_returned: u64,
    /// Unroutable messages without `mandatory`, dropped.
    pub unroutable_dropped: u64,
}

/// Messages received from publishers by their sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageSizes {
    /// The number of messages in each class: up to the bound of the same index, and above the one before. The last has no bound.
    pub counts: [u64; MESSAGE_SIZE_BOUNDS.len() + 1],
    /// The sum of all sizes in bytes.
    pub bytes: u64,
}

impl MessageSizes {
    /// Counts a message of this many bytes.
    pub fn observe(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        // Most messages are small, and the first comparisons decide.
        let class = MESSAGE_SIZE_BOUNDS
            .iter()
            .take_while(|bound| bytes > **bound);
        let class = class.count();
        if let Some(count) = self.counts.get_mut(class) {
            *count += 1;
        }
        self.bytes += bytes;
    }

    /// Adds another set of counters.
    pub fn add(&mut self, other: &MessageSizes) {
        for (ours, theirs) in self.counts.iter_mut().zip(other.counts) {
            *ours += theirs;
        }
        self.bytes += other.bytes;
    }
}

/// Connection and traffic counters of protocols that count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// Accepted connections.
    pub connects: u64,
    /// Packets received.
    pub packets_in: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Payload bytes of messages received.
    pub payload_in: u64,
    /// Payload bytes of messages sent.
    pub payload_out: u64,
}

impl TrafficCounters {
    /// Adds another set of counters.
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

/// A delivery whose latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledDelivery {
    /// The type of the queue. None: the delivery comes from no queue.
    pub queue_type: Option<QueueType>,
    /// When the node of the publisher accepted the message.
    pub received: WallTime,
}

/// Counters of all messages of one protocol's sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounters {
    /// Publishes.
    pub publishes: PublishCounters,
    /// Deliveries from queues.
    pub deliveries: ByQueueType<DeliveryCounters>,
    /// Deliveries that come from no queue.
    pub queueless: DeliveryCounters,
    /// The first delivery to a consumer since the last report that is no redelivery. It is not added up.
    pub sample: Option<SampledDelivery>,
    /// Connections, packets and bytes.
    pub traffic: TrafficCounters,
    /// Bytes of the bodies and properties of messages received from publishers.
    pub published_bytes: u64,
    /// Sizes of the messages received from publishers, as their protocol defines a size: without headers, or with all sections
    /// for AMQP 1.0. The stream protocol counts none.
    pub sizes: MessageSizes,
    /// Change of the number of publishers: channels that have published, or connections where the
    /// protocol has no channels.
    pub publishers: i64,
    /// Change of the number of consumers, or of connections with subscriptions where the protocol
    /// has no consumers.
    pub consumers: i64,
}

impl MessageCounters {
    /// The delivery counters of a queue type.
    pub fn of(&mut self, kind: QueueType) -> &mut DeliveryCounters {
        &mut self.deliveries[kind]
    }

    /// Offers a delivery to a consumer that is no redelivery, with the time at which its message was accepted.
    #[inline]
    pub fn sample_delivery(
        &mut self,
        queue_type: Option<QueueType>,
        received: impl FnOnce() -> WallTime,
    ) {
        if self.sample.is_none() {
            self.sample = Some(SampledDelivery {
                queue_type,
                received: received(),
            });
        }
    }

    /// Adds another set of counters.
    pub fn add(&mut self, other: &MessageCounters) {
        let (ours, theirs) = (&mut self.publishes, &other.publishes);
        let theirs_published = theirs.received > 0;
        ours.received += theirs.received;
        ours.received_confirm += theirs.received_confirm;
        ours.confirmed += theirs.confirmed;
        ours.routed += theirs.routed;
        ours.unroutable_returned += theirs.unroutable_returned;
        ours.unroutable_dropped += theirs.unroutable_dropped;
        // A session rarely has deliveries from more than one type of queue since it was counted last.
        for (queue_type, ours) in self.deliveries.iter_mut() {
            let theirs = &other.deliveries[queue_type];
            if !theirs.is_zero() {
                ours.add(theirs);
            }
        }
        self.queueless.add(&other.queueless);
        self.traffic.add(&other.traffic);
        self.published_bytes += other.published_bytes;
        if theirs_published {
            self.sizes.add(&other.sizes);
        }
        self.publishers += other.publishers;
        self.consumers += other.consumers;
    }
}

/// Details of a session, in addition to [`SessionInfo`](crate::SessionInfo).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionDetails {
    /// `running`, `blocking`, `blocked`, `flow`, `starting` or `closing`.
    pub state: &'static str,
    /// The authentication mechanism of the login. Empty before the login and for protocols with a
    /// single mechanism.
    pub auth_mechanism: &'static str,
    /// The TLS parameters of the connection, if the session stores them.
    pub tls: Option<Arc<TlsPeer>>,
    /// The negotiated heartbeat interval in seconds; 0 is off.
    pub heartbeat_s: u16,
    /// The negotiated maximum frame size in bytes.
    pub frame_max: u32,
    /// The negotiated maximum number of channels.
    pub channel_max: u16,
    /// The properties that the client sent in its handshake.
    pub client_properties: Table,
    /// Sorted by channel number.
    pub channels: Vec<ChannelDetails>,
    /// Publishers and consumers, if the client uses the stream protocol.
    pub stream: Option<Box<StreamSessionDetails>>,
}

/// Publishers and consumers of a connection of the stream protocol, for listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamSessionDetails {
    /// Sorted by id.
    pub publishers: Vec<StreamPublisherDetails>,
    /// Sorted by id.
    pub consumers: Vec<StreamConsumerDetails>,
}

/// Details of a publisher of a stream, for listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamPublisherDetails {
    /// The client's id.
    pub id: u8,
    /// The name of the stream.
    pub stream: String,
    /// The name for deduplication; empty if there is none.
    pub reference: String,
    /// Messages received.
    pub published: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages that the stream did not store.
    pub errored: u64,
}

/// Details of a consumer of a stream, for listings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamConsumerDetails {
    /// The client's id.
    pub id: u8,
    /// The name of the stream.
    pub stream: String,
    /// Chunks that the client may still be sent.
    pub credit: u64,
    /// Messages sent.
    pub consumed: u64,
    /// The offset of the next message.
    pub offset: u64,
    /// False while another consumer is the single active consumer.
    pub is_active: bool,
    /// The properties of the subscription.
    pub properties: Vec<(String, String)>,
}

/// Details of a channel, for listings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChannelDetails {
    /// The channel number.
    pub number: u16,
    /// Publisher confirms are enabled.
    pub confirm: bool,
    /// Transactions are enabled.
    pub transactional: bool,
    /// The client was asked to stop publishing (channel.flow).
    pub flow_blocked: bool,
    /// The prefetch of new consumers; 0 is unlimited.
    pub prefetch: u32,
    /// The prefetch of the whole channel; 0 is unlimited.
    pub global_prefetch: u32,
    /// The number of consumers.
    pub consumers: u32,
    /// Tags of consumers in automatic acknowledgement mode. Their queues do not know: the session
    /// acknowledges for the client.
    pub auto_ack: Vec<String>,
    /// Deliveries without acknowledgement.
    pub unacknowledged: u64,
    /// Publishes without confirm.
    pub unconfirmed: u64,
    /// Messages in the open transaction.
    pub uncommitted: u64,
    /// Acknowledgements in the open transaction.
    pub acks_uncommitted: u64,
    /// Publish counters of the channel.
    pub publishes: PublishCounters,
    /// Delivery counters of the channel.
    pub deliveries: DeliveryCounters,
    /// The windows and links, if the channel is a session of AMQP 1.0.
    pub links: Option<Box<LinkSessionDetails>>,
}

/// Windows and links of a session of AMQP 1.0, for listings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkSessionDetails {
    /// The highest handle that the client may use.
    pub handle_max: u32,
    /// The transfer id that is expected next.
    pub next_incoming_id: u32,
    /// Transfers that the client may send.
    pub incoming_window: u32,
    /// The id of the next transfer to the client.
    pub next_outgoing_id: u32,
    /// Transfers that the client accepts.
    pub remote_incoming_window: u32,
    /// Transfers that the client announced.
    pub remote_outgoing_window: u32,
    /// Links on which the client sends, sorted by handle.
    pub incoming: Vec<LinkDetails>,
    /// Links on which the client receives, sorted by handle.
    pub outgoing: Vec<LinkDetails>,
}

/// Details of a link, for listings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkDetails {
    /// The client's handle.
    pub handle: u32,
    /// The name that the client gave.
    pub name: String,
    /// The server's terminus: the target of an incoming link, the source of an outgoing one. None: a
    /// terminus without address.
    pub address: Option<String>,
    /// The queue that an outgoing link consumes from; empty for other links.
    pub queue: String,
    /// `mixed`, `settled` or `unsettled`.
    pub settle_mode: &'static str,
    /// The largest message in bytes. None: no limit.
    pub max_message_size: Option<u64>,
    /// The delivery count of the sender.
    pub delivery_count: u32,
    /// The credit of the sender.
    pub credit: u32,
    /// Messages on an incoming link that not all queues have confirmed.
    pub unconfirmed: u64,
    /// The filters of an outgoing link that have an effect, in the order of the client.
    pub filters: Vec<LinkFilter>,
}

/// A filter of a link, for listings.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkFilter {
    /// The name that the client gave.
    pub name: String,
    /// The kind of filter: a name or a number.
    pub descriptor: Value,
    /// The filter itself. A map is an array of tables with a `key` and a `value` each.
    pub value: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_counted_in_the_first_class_that_holds_it() {
        let mut sizes = MessageSizes::default();
        for bytes in [0, 100, 101, 1_000, 100_000_000, 100_000_001] {
            sizes.observe(bytes);
        }
        assert_eq!(sizes.counts, [2, 2, 0, 0, 0, 0, 0, 1, 1]);
        let mut sum = sizes;
        sum.add(&sizes);
        assert_eq!(sum.counts, [4, 4, 0, 0, 0, 0, 0, 2, 2]);
        assert_eq!(sum.bytes, 2 * 200_001_202);
    }
}
