//! Settings of all stream sessions of a listener, and the stream protocol as a protocol of a node.

use crate::StreamSession;
use env::Time;
use session::{ConnectionInfo, LoginConfig, Protocol, Session};
use std::sync::Arc;
use std::time::Duration;

/// The label in metrics, and the name of the protocol in the addresses that nodes advertise.
pub(crate) const PROTOCOL: &str = "stream";

/// Resource limits of one connection. Every buffer of a session is bounded by one of them. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest frame that the server proposes (`stream.frame_max`); 0 for no limit.
    pub frame: u32,
    /// Heartbeat interval in seconds that the server proposes (`stream.heartbeat`); 0 for none.
    pub heartbeat: u32,
    /// Time from the start of the connection until the virtual host is open (`handshake_timeout`).
    pub handshake: Duration,
    /// Size of the publishes in flight to streams above which the client is not read.
    pub in_flight: usize,
    /// Size of the outbox, with the chunks that replicas may still send, above which replicas get no credit.
    pub outbox_deliveries: usize,
    /// Size of the outbox above which the client is not read.
    pub outbox: usize,
    /// Requests to streams without an answer, above which the client is not read.
    pub pending_requests: usize,
    /// Time that a stream or the metadata group has to answer (`channel_operation_timeout`).
    pub operation: Duration,
    /// Time that a client has to answer a consumer update.
    pub consumer_update: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            frame: codec_stream::DEFAULT_FRAME_MAX,
            heartbeat: 60,
            handshake: Duration::from_secs(10),
            in_flight: 16 << 20,
            outbox_deliveries: 4 << 20,
            outbox: 8 << 20,
            pending_requests: 1024,
            operation: Duration::from_secs(15),
            consumer_update: Duration::from_secs(60),
        }
    }
}

/// The configuration of [`StreamProtocol`].
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// `cluster_name` in the server's properties.
    pub cluster_name: String,
    /// `product` in the server's properties.
    pub product: String,
    /// `version` in the server's properties, which clients compare to decide about features.
    pub version: String,
    /// Limits of a connection.
    pub limits: Limits,
    /// Mechanisms and users of logins.
    pub logins: Arc<LoginConfig>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        StreamConfig {
            cluster_name: "posthorn".into(),
            product: "RabbitMQ".into(),
            version: "4.3.0".into(),
            limits: Limits::default(),
            logins: Arc::default(),
        }
    }
}

/// Settings that all sessions share.
#[derive(Debug)]
pub(crate) struct Settings {
    pub limits: Limits,
    pub logins: Arc<LoginConfig>,
    /// The server's properties, sorted by key.
    pub properties: Vec<(&'static str, String)>,
    /// Names of the SASL mechanisms that clients without TLS may use.
    pub plain_mechanisms: Vec<&'static str>,
    /// Names of the SASL mechanisms that clients with TLS may use.
    pub secure_mechanisms: Vec<&'static str>,
}

/// Factory of sessions of the stream protocol, with the settings that all of them share.
#[derive(Clone, Debug)]
pub struct StreamProtocol {
    settings: Arc<Settings>,
}

/// The name of this broker in the property `platform`. Clients evaluate `product` and `version`, but only display
/// `platform`.
const PLATFORM: &str = concat!("Posthorn ", env!("CARGO_PKG_VERSION"));

impl StreamProtocol {
    /// A factory of sessions with these settings.
    pub fn new(config: StreamConfig) -> StreamProtocol {
        let mechanisms = |has_tls| {
            let offered = config.logins.offered(has_tls);
            offered.map(|mechanism| mechanism.name()).collect()
        };
        let settings = Settings {
            plain_mechanisms: mechanisms(false),
            secure_mechanisms: mechanisms(true),
            properties: vec![
                ("cluster_name", config.cluster_name),
                ("copyright", "The Posthorn authors".to_owned()),
                (
                    "information",
                    "Licensed under the Apache License 2.0".to_owned(),
                ),
                ("platform", PLATFORM.to_owned()),
                ("product", config.product),
                ("product_version", env!("CARGO_PKG_VERSION").to_owned()),
                ("version", config.version),
            ],
            limits: config.limits,
            logins: config.logins,
        };
        StreamProtocol {
            settings: Arc::new(settings),
        }
    }

    /// The session of a connection that was accepted at `now`.
    pub fn stream_session(&self, connection: &ConnectionInfo, now: Time) -> StreamSession {
        StreamSession::new(self.settings.clone(), connection, now)
    }
}

impl Protocol for StreamProtocol {
    fn listener_names(&self) -> [&'static str; 2] {
        ["stream", "stream/ssl"]
    }

    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        Box::new(self.stream_session(connection, now))
    }

    fn service(&self) -> Option<session::ServiceRegistration> {
        Some(crate::groups::registration())
    }
}
