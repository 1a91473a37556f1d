//! Limits of a connection and the MQTT settings of a node.

use auth::{Credentials, TlsPeer};
use metadata::Name;
use session::interceptors::Interceptors;
use std::sync::Arc;
use std::time::Duration;

/// Limits of one session. Each buffer of a session is bounded by one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Maximum packet size in bytes before CONNECT is accepted
    /// (`mqtt.max_packet_size_unauthenticated`).
    pub packet_unauthenticated: usize,
    /// Size of such a packet in bytes above which the node limits how many connections may send one
    /// at a time.
    pub connect: usize,
    /// Maximum packet size in bytes after CONNECT, announced to clients
    /// (`mqtt.max_packet_size_authenticated`).
    pub packet: usize,
    /// Time from the start of the connection until CONNECT must be accepted (`mqtt.login_timeout`).
    pub login: Duration,
    /// Maximum number of unacknowledged messages to the client (`mqtt.prefetch`); its Receive
    /// Maximum may be lower.
    pub prefetch: u16,
    /// Maximum number of open QoS 1 and 2 publishes of a 5.0 client, announced as Receive Maximum;
    /// not 0.
    pub receive: u16,
    /// Maximum keep alive in seconds (`mqtt.max_keep_alive_seconds`); 0: no maximum, and the keep
    /// alive may be disabled.
    pub keep_alive: u16,
    /// Maximum number of topic aliases in each direction (`mqtt.topic_alias_maximum`); 0: none.
    pub topic_aliases: u16,
    /// Maximum number of unsent QoS 0 messages for a slow client (`mqtt.mailbox_soft_limit`); 0: no
    /// limit.
    pub mailbox: u32,
    /// Maximum session expiry in seconds (`mqtt.max_session_expiry_interval_seconds`); `u32::MAX`:
    /// never.
    pub session_expiry: u32,
    /// Maximum number of subscriptions per client.
    pub subscriptions: usize,
    /// Maximum number of QoS 1 and 2 messages that wait for a client.
    pub waiting_messages: usize,
    /// Maximum bytes of the waiting messages.
    pub waiting_bytes: usize,
    /// Maximum number of retained messages sent for one SUBSCRIBE.
    pub retained: usize,
    /// Number of unconfirmed publishes above which the client is not read.
    pub unconfirmed: usize,
    /// Bytes in the output above which QoS 1 and 2 messages wait.
    pub outbox: usize,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            // The longest client id and will, and 4 KiB for the rest.
            packet_unauthenticated: 196 << 10,
            // Covers all common CONNECT packets.
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

/// What happens to a client without the permission for what it requests (`mqtt.disconnect_on_unauthorized`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnauthorizedAction {
    /// The connection is closed if the protocol has no other answer.
    #[default]
    AnswerOrDisconnect,
    /// The connection is closed, after the SUBACK of a subscription.
    Disconnect,
    /// The connection stays open. A publish that has no negative answer is acknowledged and dropped.
    Answer,
}

/// The settings of all MQTT connections of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttSettings {
    /// Limits of a session.
    pub limits: SessionLimits,
    /// The vhost of clients whose user name does not name one (`mqtt.vhost`).
    pub vhost: Name,
    /// The topic exchange that connects MQTT with AMQP clients (`mqtt.exchange`).
    pub exchange: Name,
    /// Time between two updates of the topics below `$SYS` (`mqtt.sys_interval`); `None`: there are no
    /// such topics.
    pub sys_interval: Option<Duration>,
    /// Users that may log in from loopback only (`loopback_users`).
    pub loopback_users: Vec<Name>,
    /// The user of a client without a user name (`mqtt.allow_anonymous`); `None`: it is rejected.
    pub anonymous: Option<Credentials>,
    /// A user name without a password is ignored, and the client is anonymous
    /// (`mqtt.allow_user_name_without_password`).
    pub name_without_password: bool,
    /// User properties that the node adds to messages.
    pub interceptors: Interceptors,
    /// The certificate of a client without a user name names its user (`mqtt.ssl_cert_login`).
    pub by_certificate: bool,
    /// What a refused publish or subscription means for the connection.
    pub unauthorized: UnauthorizedAction,
    /// Passwords may be checked by external backends, which decide about the name of the user.
    pub has_external_backend: bool,
    /// Users of the metadata may log in.
    pub has_internal_backend: bool,
}

impl Default for MqttSettings {
    fn default() -> MqttSettings {
        MqttSettings {
            limits: SessionLimits::default(),
            vhost: "/".into(),
            exchange: "amq.topic".into(),
            sys_interval: Some(Duration::from_secs(10)),
            loopback_users: vec!["guest".into()],
            anonymous: Some(Credentials {
                user: "guest".into(),
                password: b"guest".to_vec(),
            }),
            name_without_password: false,
            interceptors: Interceptors::default(),
            by_certificate: false,
            unauthorized: UnauthorizedAction::default(),
            has_external_backend: false,
            has_internal_backend: true,
        }
    }
}

/// The configuration of a session for one connection.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Users listed in `loopback_users` may log in only if this is true.
    pub peer_is_loopback: bool,
    /// The TLS identity of the client; `None` without TLS.
    pub tls: Option<Arc<TlsPeer>>,
    /// Settings of the protocol.
    pub settings: Arc<MqttSettings>,
}
