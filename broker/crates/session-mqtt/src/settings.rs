//! What one connection may cost, and what the node wants of MQTT clients.

use auth::{Credentials, TlsPeer};
use metadata::Name;
use std::sync::Arc;
use std::time::Duration;

/// Bounds of one session. Every buffer of a session has one of these behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a packet before CONNECT was accepted (`mqtt.max_packet_size_unauthenticated`).
    pub packet_unauthenticated: usize,
    /// Bytes of such a packet above which only as many connections may have one on its way as the node says.
    pub connect: usize,
    /// Bytes of a packet after that, told to clients (`mqtt.max_packet_size_authenticated`).
    pub packet: usize,
    /// From the connection's start until CONNECT is accepted (`mqtt.login_timeout`).
    pub login: Duration,
    /// Unacknowledged messages to the client at most (`mqtt.prefetch`); its Receive Maximum may be lower.
    pub prefetch: u16,
    /// Publishes of QoS 1 and 2 that a client of 5.0 may have open, told as Receive Maximum; not 0.
    pub receive: u16,
    /// The longest keep alive, in seconds (`mqtt.max_keep_alive_seconds`); 0: any, and none.
    pub keep_alive: u16,
    /// Topic aliases in each direction at most (`mqtt.topic_alias_maximum`); 0: none.
    pub topic_aliases: u16,
    /// Messages of QoS 0 that a client who does not read may have waiting (`mqtt.mailbox_soft_limit`); 0: no bound here.
    pub mailbox: u32,
    /// Seconds that a session lives without a connection (`mqtt.max_session_expiry_interval_seconds`); `u32::MAX`: for ever.
    pub session_expiry: u32,
    /// Subscriptions of one client.
    pub subscriptions: usize,
    /// Messages of QoS 1 and 2 that wait for a client.
    pub waiting_messages: usize,
    /// Bytes of the same.
    pub waiting_bytes: usize,
    /// Retained messages sent because of one SUBSCRIBE.
    pub retained: usize,
    /// Publishes on their way to queues above which the client is not read.
    pub unconfirmed: usize,
    /// Bytes waiting for the socket above which messages of QoS 1 and 2 wait.
    pub outbox: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // A client id and a will as long as they can be, and 4 KiB for the rest.
            packet_unauthenticated: 196 << 10,
            // All that is usual fits.
            connect: 64 << 10,
            packet: 16 << 20,
            login: Duration::from_secs(10),
            prefetch: 10,
            receive: 4096,
            keep_alive: 0,
            topic_aliases: 16,
            mailbox: 200,
            session_expiry: 86_400,
            subscriptions: 100_000,
            waiting_messages: 100_000,
            waiting_bytes: 64 << 20,
            retained: 50_000,
            unconfirmed: 4096,
            outbox: 1 << 20,
        }
    }
}

/// The same for all MQTT connections of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub limits: Limits,
    /// The vhost of clients whose user name does not name one (`mqtt.vhost`).
    pub vhost: Name,
    /// The topic exchange that AMQP clients meet MQTT clients at (`mqtt.exchange`).
    pub exchange: Name,
    /// Users that may log in from loopback only (`loopback_users`).
    pub loopback_users: Vec<Name>,
    /// Whom a client without a user name is (`mqtt.allow_anonymous`). None: it is refused.
    pub anonymous: Option<Credentials>,
    /// Whether a client with a user name and no password is that user, whatever the name (`mqtt.allow_user_name_without_password`).
    pub name_without_password: bool,
    /// Whether a client without a user name is whom its certificate names (`mqtt.ssl_cert_login`).
    pub by_certificate: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: Limits::default(),
            vhost: "/".into(),
            exchange: "amq.topic".into(),
            loopback_users: vec!["guest".into()],
            anonymous: Some(Credentials {
                user: "guest".into(),
                password: b"guest".to_vec(),
            }),
            name_without_password: false,
            by_certificate: false,
        }
    }
}

/// What a session is told when its connection is accepted.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Users that may log in from loopback only depend on it.
    pub peer_is_loopback: bool,
    /// What TLS says of the client; None: the connection has none.
    pub tls: Option<Arc<TlsPeer>>,
    pub settings: Arc<Settings>,
}
