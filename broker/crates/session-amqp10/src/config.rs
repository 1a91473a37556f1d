//! Settings of all AMQP 1.0 sessions of a listener, and AMQP 1.0 as a protocol of a node.

use crate::Amqp10Session;
use codec_amqp10::{Symbol, map};
use env::Time;
use metadata::Name;
use session::interceptors::Interceptors;
use session::{ConnectionInfo, LoginConfig, Protocol, Session};
use std::sync::Arc;
use std::time::Duration;

/// Resource limits of one connection. Every buffer of a session is bounded by one of them. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest frame (`frame_max`).
    pub frame: u32,
    /// Sessions of a connection (`session_max_per_connection`).
    pub sessions: u16,
    /// Links of a session (`link_max_per_session`).
    pub links: u16,
    /// Time without a frame after which the connection is closed (`heartbeat`). Zero: never.
    pub idle: Duration,
    /// Time from the start of the connection to the open (`handshake_timeout`).
    pub handshake: Duration,
    /// Largest message (`max_message_size`).
    pub message: u64,
    /// Messages whose last transfer has not arrived, of a connection.
    pub unfinished: usize,
    /// Credit of a link from a publisher (`max_link_credit`).
    pub link_credit: u32,
    /// Transfers that a session accepts before it renews its window (`max_incoming_window`).
    pub incoming_window: u32,
    /// Unsettled deliveries of a session.
    pub unsettled: usize,
    /// Size of the outbox above which deliveries are held back.
    pub outbox_deliveries: usize,
    /// Size of the outbox above which the client is not read.
    pub outbox: usize,
    /// Size of the messages in flight to queues above which the client is not read.
    pub in_flight: usize,
    /// Requests to queues and to the metadata group without an answer, above which the client is not read.
    pub pending_requests: usize,
    /// Largest response of the management node.
    pub response: usize,
    /// Open transactions of a session.
    pub transactions: usize,
    /// Memory of the open transactions of a session.
    pub transaction_bytes: usize,
    /// Annotations that the node adds to messages.
    pub interceptors: Interceptors,
    /// Time that a queue or the metadata group has to answer (`channel_operation_timeout`).
    pub operation: Duration,
}

/// Bytes of a message besides its body.
const MESSAGE_OVERHEAD: usize = 16 << 20;

impl Limits {
    /// These limits with room for messages of this size.
    pub fn with_message_size(self, bytes: u32) -> Limits {
        Limits {
            message: u64::from(bytes),
            unfinished: self.unfinished.max(bytes as usize + MESSAGE_OVERHEAD),
            ..self
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            frame: 131_072,
            sessions: 64,
            links: 256,
            idle: Duration::from_secs(60),
            handshake: Duration::from_secs(10),
            message: 16 << 20,
            unfinished: 64 << 20,
            link_credit: 170,
            incoming_window: 400,
            unsettled: 65_536,
            outbox_deliveries: 1 << 20,
            outbox: 4 << 20,
            in_flight: 16 << 20,
            pending_requests: 4096,
            response: 8 << 20,
            transactions: 64,
            transaction_bytes: 64 << 20,
            interceptors: Interceptors::default(),
            operation: Duration::from_secs(15),
        }
    }
}

/// Settings that all sessions share.
#[derive(Debug)]
pub(crate) struct Settings {
    pub limits: Limits,
    pub logins: Arc<LoginConfig>,
    pub default_vhost: Name,
    /// The connection properties of the open frame that are the same on every node.
    pub properties: Vec<(&'static str, String)>,
    pub plain: Arc<amqp10::Config>,
    pub secure: Arc<amqp10::Config>,
}

/// The configuration of [`Amqp10`].
#[derive(Clone, Debug)]
pub struct Amqp10Config {
    /// The container id and `cluster_name` in the connection properties.
    pub cluster_name: String,
    /// `product` in the connection properties.
    pub product: String,
    /// `version` in the connection properties.
    pub version: String,
    /// The vhost of clients that name none.
    pub default_vhost: Name,
    /// Limits of a connection.
    pub limits: Limits,
    /// Mechanisms and users of logins.
    pub logins: Arc<LoginConfig>,
}

impl Default for Amqp10Config {
    fn default() -> Self {
        Amqp10Config {
            cluster_name: "posthorn".into(),
            product: "RabbitMQ".into(),
            version: "4.3.0".into(),
            default_vhost: "/".into(),
            limits: Limits::default(),
            logins: Arc::default(),
        }
    }
}

/// Factory of AMQP 1.0 sessions, with the settings that all of them share.
#[derive(Clone, Debug)]
pub struct Amqp10 {
    settings: Arc<Settings>,
}

impl Amqp10 {
    /// A factory of sessions with these settings.
    pub fn new(config: Amqp10Config) -> Amqp10 {
        let settings = Settings {
            plain: Arc::new(engine_config(&config, false)),
            secure: Arc::new(engine_config(&config, true)),
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
            default_vhost: config.default_vhost,
        };
        Amqp10 {
            settings: Arc::new(settings),
        }
    }

    /// The session of a connection that was accepted at `now`.
    pub fn amqp10_session(&self, connection: &ConnectionInfo, now: Time) -> Amqp10Session {
        Amqp10Session::new(self.settings.clone(), connection, now)
    }
}

impl Protocol for Amqp10 {
    fn listener_names(&self) -> [&'static str; 2] {
        ["amqp", "amqp/ssl"]
    }

    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        Box::new(self.amqp10_session(connection, now))
    }
}

fn engine_config(config: &Amqp10Config, has_tls: bool) -> amqp10::Config {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let limits = &config.limits;
    let mechanisms: Vec<&str> = config.logins.offered(has_tls).map(|m| m.name()).collect();
    amqp10::Config {
        max_frame_size: limits.frame,
        channel_max: limits.sessions.saturating_sub(1),
        handle_max: limits.links.saturating_sub(1),
        idle_timeout: millis(limits.idle),
        handshake_timeout: millis(limits.handshake),
        incoming_window: limits.incoming_window,
        link_credit: limits.link_credit,
        max_message_size: limits.message,
        max_unfinished_size: limits.unfinished,
        max_unsettled: limits.unsettled,
        output_limit: limits.outbox_deliveries,
        ..amqp10::Config::server(&config.cluster_name, &mechanisms)
    }
}

/// The name of this broker in the property `platform`. Clients evaluate `product` and `version`, but only display
/// `platform`.
const PLATFORM: &str = concat!("Posthorn ", env!("CARGO_PKG_VERSION"));

/// The connection properties of the open frame: an encoded map. As in RabbitMQ, `node` is the node that the client is
/// connected to.
pub(crate) fn connection_properties(shared: &[(&'static str, String)], node: &str) -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut properties = map(&mut encoded);
    let shared = shared.iter().map(|(key, value)| (*key, value.as_str()));
    for (key, value) in shared.chain([("node", node)]) {
        properties.push(&Symbol::from_static(key));
        properties.push(value);
    }
    properties.finish();
    encoded
}
