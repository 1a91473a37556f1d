//! What one connection may cost, and the facts about it that its listener knows.

use auth::{Credentials, Mechanism, TlsPeer};
use metadata::Name;
use std::sync::Arc;
use std::time::Duration;

/// Bounds of one session. Every buffer of a session has one of these behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Octets of a frame at most, offered in connection.tune (`frame_max`).
    pub frame_max: u32,
    /// Channels at most, offered in connection.tune (`channel_max`).
    pub channel_max: u16,
    /// Seconds, offered in connection.tune (`heartbeat`).
    pub heartbeat: u16,
    /// From the connection's start to connection.open-ok (`handshake_timeout`).
    pub handshake: Duration,
    /// Octets of a message's body (`max_message_size`).
    pub message: u64,
    /// Consumers on one channel (`consumer_max_per_channel`).
    pub consumers: usize,
    /// Octets waiting for the socket above which deliveries are held back.
    pub outbox_deliveries: usize,
    /// Octets waiting for the socket above which the client is not read.
    pub outbox: usize,
    /// Messages on their way to queues above which the client is not read.
    pub in_flight_messages: usize,
    /// Octets of the same.
    pub in_flight_bytes: usize,
    /// Octets of frames that wait for an earlier method of their channel.
    pub held: usize,
    /// Octets of bodies of which some frames are still missing, over all channels.
    pub partial: usize,
    /// How long a client may keep a delivery without acknowledging it, where the queue does not say (`consumer_timeout`).
    /// None: for ever.
    pub acknowledgement: Option<Duration>,
    /// Unacknowledged deliveries above which a channel gets no more while the node is short of memory: what basic.qos can ask
    /// for at most. Without an alarm there is no such limit but basic.qos.
    pub unacknowledged_in_alarm: usize,
    /// Octets of messages in one transaction.
    pub transaction: usize,
    /// How long a queue may take for an answer (`channel_operation_timeout`).
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
            held: 1 << 20,
            partial: 64 << 20,
            acknowledgement: Some(Duration::from_secs(1800)),
            unacknowledged_in_alarm: 65_535,
            transaction: 64 << 20,
            operation: Duration::from_secs(15),
        }
    }
}

/// Who may log in how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logins {
    /// What is offered, the best first (`auth_mechanisms`). EXTERNAL is offered over TLS only.
    pub mechanisms: Vec<Mechanism>,
    /// Users that may log in from loopback only (`loopback_users`).
    pub loopback_users: Vec<Name>,
    /// Whom a client is with SASL ANONYMOUS (`anonymous_login_user`, `anonymous_login_pass`). None: not offered.
    pub anonymous: Option<Credentials>,
}

impl Default for Logins {
    fn default() -> Self {
        Logins {
            mechanisms: Mechanism::DEFAULT.to_vec(),
            loopback_users: vec!["guest".into()],
            anonymous: Some(Credentials {
                user: "guest".into(),
                password: b"guest".to_vec(),
            }),
        }
    }
}

/// The `product` of the server properties unless configured otherwise. Clients detect features by RabbitMQ's name.
pub const PRODUCT: &str = "RabbitMQ";
/// The `version` of the server properties unless configured otherwise, as in the HTTP API. Clients compare it with RabbitMQ's.
pub const VERSION: &str = "4.1.0";

/// What a session is told when its connection is accepted.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Users that may log in from loopback only depend on it.
    pub peer_is_loopback: bool,
    /// The other side, for logs.
    pub peer: String,
    /// Who the other side is as far as TLS knows. None: without TLS.
    pub tls: Option<Arc<TlsPeer>>,
    /// This node's name, told to clients as `cluster_name`.
    pub server_name: Arc<str>,
    /// `product` in the server properties (`server_properties.product`).
    pub product: Arc<str>,
    /// `version` in the server properties (`server_properties.version`).
    pub version: Arc<str>,
    pub limits: Arc<Limits>,
    pub logins: Arc<Logins>,
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
