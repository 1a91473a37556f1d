//! Resource limits of a connection, and its configuration from the listener.

use auth::TlsPeer;
use session::LoginConfig;
use session::interceptors::Interceptors;
use std::sync::Arc;
use std::time::Duration;

/// Resource limits of one session. Every buffer of a session is bounded by one of them. Sizes are
/// in octets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum frame size, offered in connection.tune (`frame_max`).
    pub frame_max: u32,
    /// Maximum number of channels, offered in connection.tune (`channel_max`).
    pub channel_max: u16,
    /// Heartbeat interval in seconds, offered in connection.tune (`heartbeat`).
    pub heartbeat: u16,
    /// Time from the start of the connection to connection.open-ok (`handshake_timeout`).
    pub handshake: Duration,
    /// Maximum size of a message body (`max_message_size`).
    pub message: u64,
    /// Maximum number of consumers on one channel (`consumer_max_per_channel`).
    pub consumers: usize,
    /// Size of the outbox above which deliveries are held back.
    pub outbox_deliveries: usize,
    /// Size of the outbox above which the client is not read.
    pub outbox: usize,
    /// Number of messages in flight to queues above which publishes are held.
    pub in_flight_messages: usize,
    /// Size of messages in flight to queues above which publishes are held.
    pub in_flight_bytes: usize,
    /// Size of the records of unsettled publishes above which publishes are held. Settled ones behind
    /// an unsettled one of their channel count.
    pub confirm_bytes: usize,
    /// Size of held frames above which the client is not read.
    pub held: usize,
    /// Maximum size of incomplete message bodies over all channels.
    pub partial: usize,
    /// The acknowledgement timeout, where the queue has none (`consumer_timeout`). None: unlimited.
    pub acknowledgement: Option<Duration>,
    /// Number of unacknowledged deliveries above which a channel gets no more during a memory
    /// alarm: the largest prefetch of basic.qos. Without an alarm only basic.qos limits them.
    pub unacknowledged_in_alarm: usize,
    /// Maximum size of the messages in one transaction.
    pub transaction: usize,
    /// basic.qos with `global` limits the channel (`deprecated_features.permit.global_qos`). Otherwise it sets the
    /// prefetch of later consumers, as without `global`.
    pub permits_global_qos: bool,
    /// Headers that the node adds to messages.
    pub interceptors: Interceptors,
    /// Time that a queue has to answer (`channel_operation_timeout`).
    pub operation: Duration,
}

/// Bytes of a message besides its body at most: the largest frame of properties.
const MESSAGE_OVERHEAD: usize = 16 << 20;

impl Limits {
    /// These limits with room for messages whose body has up to `bytes` bytes: one of them unfinished on a connection, and one
    /// in a transaction.
    pub fn with_message_size(self, bytes: u32) -> Limits {
        let with_overhead = bytes as usize + MESSAGE_OVERHEAD;
        Limits {
            message: u64::from(bytes),
            partial: self.partial.max(with_overhead),
            transaction: self.transaction.max(with_overhead),
            ..self
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            frame_max: 131_072,
            channel_max: 2047,
            heartbeat: 60,
            handshake: Duration::from_secs(10),
            message: 16 << 20,
            consumers: 10_000,
            outbox_deliveries: 1 << 20,
            outbox: 4 << 20,
            in_flight_messages: 16_384,
            in_flight_bytes: 16 << 20,
            confirm_bytes: 4 << 20,
            held: 1 << 20,
            partial: 64 << 20,
            acknowledgement: Some(Duration::from_secs(1800)),
            unacknowledged_in_alarm: 65_535,
            transaction: 64 << 20,
            permits_global_qos: true,
            interceptors: Interceptors::default(),
            operation: Duration::from_secs(15),
        }
    }
}

/// The default `product` in the server properties. Clients detect features by RabbitMQ's name.
pub const PRODUCT: &str = "RabbitMQ";
/// The default `version` in the server properties and in the HTTP API. Clients compare it with
/// RabbitMQ's versions.
pub const VERSION: &str = "4.3.0";

/// The configuration of a session, created when its connection is accepted.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The peer has a loopback address, so users restricted to loopback may log in.
    pub peer_is_loopback: bool,
    /// The remote address, for logs.
    pub peer: String,
    /// The TLS parameters and identity of the peer. None: no TLS.
    pub tls: Option<Arc<TlsPeer>>,
    /// The cluster name, sent to clients as `cluster_name`.
    pub server_name: Arc<str>,
    /// `product` in the server properties (`server_properties.product`).
    pub product: Arc<str>,
    /// `version` in the server properties (`server_properties.version`).
    pub version: Arc<str>,
    /// The resource limits.
    pub limits: Arc<Limits>,
    /// The authentication configuration.
    pub logins: Arc<LoginConfig>,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            peer_is_loopback: true,
            peer: String::new(),
            tls: None,
            server_name: "posthorn".into(),
            product: PRODUCT.into(),
            version: VERSION.into(),
            limits: Arc::default(),
            logins: Arc::default(),
        }
    }
}
