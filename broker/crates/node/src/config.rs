//! The configuration: `key = value` files, `conf.d`, environment, `--set`. Everything is validated
//! at the start.
//!
//! Later sources win: built-in defaults, the file, `conf.d/*.conf` beside it in name order,
//! environment, `--set`.

mod backend_keys;
mod budget_keys;
mod effective;
mod interceptor_keys;
mod keys;
mod ldap_keys;
mod live;
mod load;
mod mqtt_keys;
mod opentelemetry_keys;
mod parse;
mod restriction_keys;
mod stream_keys;
mod tiered_keys;
mod tls_keys;
mod values;
mod web_keys;

pub use budget_keys::BudgetConfig;
pub use effective::EffectiveSetting;
pub use keys::{ConfigKey, keys, reference};
pub use live::{Reload, RunningConfig, is_live};
pub use load::{ConfigError, ConfigErrors, ConfigSources, SettingOrigin, load};
pub use mqtt_keys::MqttConfig;
pub use opentelemetry_keys::OpenTelemetryConfig;
pub use stream_keys::{AdvertisedPart, StreamConfig};
pub use tiered_keys::TieredConfig;
pub use values::{Listen, PeerAddress, parse_bytes};
pub use web_keys::WebConfig;

use auth::Mechanism;
use auth_backends::BackendSettings;
use metadata::QueueType;
use metadata::restrictions::Restrictions;
use session::interceptors::Interceptors;
use session_websocket::WebSocketSettings;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tls::{CertificateLoginSource, ClientVerification, SanType, TlsVersions};

/// The setting `shards`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardSetting {
    /// One for each CPU if the cluster allows different numbers, else one.
    Auto,
    /// One for each CPU.
    Cpus,
    /// This number, 1 to [`shard::MAX_SHARDS`].
    Count(u16),
}

/// All settings. [`keys`] describes each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Directory of all data of the node.
    pub data_dir: PathBuf,
    /// Number of shards.
    pub shards: ShardSetting,
    /// Log events.
    pub log: LogConfig,
    /// The audit log.
    pub audit: AuditConfig,
    /// AMQP without TLS.
    pub amqp: Listen,
    /// AMQP with TLS.
    pub amqp_tls: Listen,
    /// Addresses of client listeners as clients reach them, by the name of the listener.
    pub advertised_listeners: BTreeMap<String, PeerAddress>,
    /// The same for the node of that name, which takes precedence.
    pub advertised_nodes: BTreeMap<(String, String), PeerAddress>,
    /// Parts of such addresses, which `advertised_listeners` overrides, by the name of the listener.
    pub advertised_parts: BTreeMap<&'static str, AdvertisedPart>,
    /// MQTT.
    pub mqtt: MqttConfig,
    /// MQTT over WebSocket.
    pub web_mqtt: WebConfig,
    /// AMQP 1.0 over WebSocket.
    pub web_amqp: WebConfig,
    /// The stream protocol.
    pub stream: StreamConfig,
    /// Tiered storage of streams.
    pub tiered: TieredConfig,
    /// Export of traces and metrics.
    pub opentelemetry: OpenTelemetryConfig,
    /// Certificates of client listeners.
    pub tls: TlsConfig,
    /// HTTP API with TLS.
    pub management_tls: Listen,
    /// Metrics with TLS.
    pub prometheus_tls: Listen,
    /// Certificate and key of the metrics endpoint, if it has its own.
    pub prometheus_files: TlsConfig,
    /// Missing values are taken from `tls`.
    pub management_files: TlsConfig,
    /// HTTP API for the operator.
    pub operator: OperatorConfig,
    /// By index; empty: the default mechanisms.
    pub mechanisms: BTreeMap<u32, Mechanism>,
    /// Authentication backends.
    pub backends: BackendSettings,
    /// HTTP API.
    pub management: Listen,
    /// Metrics.
    pub prometheus: Listen,
    /// Liveness and readiness probes.
    pub probes: Listen,
    /// The cluster and the connections between nodes.
    pub cluster: ClusterConfig,
    /// Name of the first user.
    pub default_user: String,
    /// Password of the first user.
    pub default_pass: String,
    /// Name of the first virtual host.
    pub default_vhost: String,
    /// Queue type of the first vhost and of new vhosts created through this node that do not set
    /// one; None: classic.
    pub default_queue_type: Option<QueueType>,
    /// Limits on declarations by clients of this node.
    pub restrictions: Restrictions,
    /// Headers and annotations that this node adds to messages.
    pub interceptors: Interceptors,
    /// Users that may log in over loopback only.
    pub loopback_users: Vec<String>,
    /// None: anonymous login is disabled.
    pub anonymous_user: Option<String>,
    /// Password of `anonymous_user`.
    pub anonymous_pass: String,
    /// Limits of clients.
    pub limits: Limits,
    /// Free disk space in bytes below which publishers are blocked.
    pub disk_free_limit: u64,
    /// `product` in the AMQP server properties.
    pub product: String,
    /// `version` in the AMQP server properties.
    pub version: String,
    /// As a share of the memory limit of the cgroup or the machine.
    pub memory_watermark: f64,
    /// Memory that connections and queues may use.
    pub memory_budget: BudgetConfig,
    /// Number of members to which quorum queues are grown; 0: never grown.
    pub target_group_size: u32,
    /// Size in bytes at which a new log file begins.
    pub wal_file_bytes: u64,
    /// Most time that a shutdown waits for clients and leaders.
    pub shutdown_timeout: Duration,
}

/// Log events.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// The lowest level that is logged, for all or for single categories.
    pub level: String,
    /// One JSON object per event instead of text.
    pub json: bool,
}

/// The audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The destination of records.
    pub target: AuditTarget,
    /// Most bytes of records that wait to be written. Further ones are lost and counted.
    pub buffer: usize,
    /// The virtual host of the event exchange. None: events are not published.
    pub events: Option<String>,
}

/// The destination of audit records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditTarget {
    /// There is no audit log.
    None,
    /// Standard output.
    Stdout,
    /// This file, to which records are appended.
    File(PathBuf),
}

/// The cluster and the connections between nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
    /// Name of the cluster.
    pub name: String,
    /// Empty: the host's name.
    pub node: String,
    /// Empty: no zone.
    pub zone: String,
    /// Addresses of nodes to form or join a cluster with.
    pub peers: Vec<PeerAddress>,
    /// Number of nodes that form the cluster if `peers` is a single DNS name; 0: the number of
    /// entries in `peers`.
    pub initial_size: usize,
    /// The listener for other nodes.
    pub listener: Listen,
    /// Empty: the host's name.
    pub advertised_host: String,
    /// Mutual TLS between nodes; None: plain text, over loopback only.
    pub auth: Option<AuthFiles>,
    /// Interval between heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a connection counts as broken.
    pub peer_timeout: Duration,
}

impl ClusterConfig {
    /// Number of nodes that form the cluster, at least 1.
    pub(crate) fn initial_nodes(&self) -> usize {
        match self.initial_size {
            0 => self.peers.len().max(1),
            size => size,
        }
    }
}

/// PEM files of mutual TLS between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AuthFiles {
    /// Certificates of the authorities that peers are verified with.
    pub cacertfile: PathBuf,
    /// The certificate of this node.
    pub certfile: PathBuf,
    /// Its private key.
    pub keyfile: PathBuf,
}

/// TLS of client listeners.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TlsConfig {
    /// Certificates of the authorities that clients are verified with.
    pub cacertfile: Option<PathBuf>,
    /// The certificate of the node.
    pub certfile: Option<PathBuf>,
    /// Its private key.
    pub keyfile: Option<PathBuf>,
    /// Clients are asked for a certificate, which must be valid.
    pub verify_peer: bool,
    /// Clients without a certificate are refused.
    pub fail_if_no_peer_cert: bool,
    /// By index; empty: all versions.
    pub versions: BTreeMap<u32, &'static str>,
    /// The part of a certificate that names its user.
    pub login_from: CertificateLoginSource,
    /// The type of subject alternative name, if that is the part.
    pub san_type: SanType,
    /// Position among the alternative names of this type, from 0.
    pub san_index: usize,
}

impl TlsConfig {
    /// TLS options of a listener. [`load`] has checked that nothing is missing.
    pub fn options(&self) -> tls::TlsOptions {
        let spoken =
            |version| self.versions.is_empty() || self.versions.values().any(|v| *v == version);
        tls::TlsOptions {
            cacertfile: self.cacertfile.clone(),
            certfile: self.certfile.clone().unwrap_or_default(),
            keyfile: self.keyfile.clone().unwrap_or_default(),
            verify: match self.verify_peer {
                false => ClientVerification::None,
                true => ClientVerification::Peer {
                    required: self.fail_if_no_peer_cert,
                },
            },
            versions: TlsVersions {
                tls12: spoken("tlsv1.2"),
                tls13: spoken("tlsv1.3"),
            },
            login_from: self.login_from,
        }
    }
}

/// The HTTP API for an operator with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorConfig {
    /// The listener.
    pub listener: Listen,
    /// The authority is the one that signs the operator's certificates.
    pub files: TlsConfig,
    /// The common name of the operator's certificate.
    pub certificate_name: String,
}

impl Default for OperatorConfig {
    fn default() -> OperatorConfig {
        OperatorConfig {
            listener: Listen::None,
            files: TlsConfig::default(),
            certificate_name: "operator".to_owned(),
        }
    }
}

/// Limits of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest AMQP frame in bytes.
    pub frame_max: u32,
    /// Most channels of a connection.
    pub channel_max: u16,
    /// Heartbeat interval in seconds that the node proposes.
    pub heartbeat_s: u16,
    /// Largest message in bytes.
    pub max_message_size: u32,
    /// Time in which a client must have logged in.
    pub handshake_timeout: Duration,
    /// None: no timeout.
    pub consumer_timeout_ms: Option<u64>,
    /// Most connections of all protocols.
    pub max_connections: usize,
    /// Connections that are accepted in one turn of an event loop.
    pub accepts_per_turn: usize,
    /// 0: unlimited.
    pub accepts_per_second: u32,
    /// Most bytes that wait for one peer node.
    pub peer_buffer: usize,
}

impl Config {
    /// Returns true if any MQTT listener is enabled.
    pub fn has_mqtt_listener(&self) -> bool {
        let (mqtt, web) = (&self.mqtt, &self.web_mqtt);
        let all = [mqtt.plain, mqtt.tls, web.plain, web.tls];
        all.iter().any(|l| *l != Listen::None)
    }

    /// TLS options of the HTTP API, which authenticates users only by password.
    pub fn management_options(&self) -> tls::TlsOptions {
        self.http_options(&self.management_files)
    }

    /// TLS options of the operator's listener, which requires client certificates.
    pub fn operator_options(&self) -> tls::TlsOptions {
        tls::TlsOptions {
            cacertfile: self.operator.files.cacertfile.clone(),
            verify: ClientVerification::Peer { required: true },
            login_from: CertificateLoginSource::CommonName,
            ..self.http_options(&self.operator.files)
        }
    }

    /// TLS options of the metrics endpoint, which has no authentication.
    pub fn prometheus_options(&self) -> tls::TlsOptions {
        self.http_options(&self.prometheus_files)
    }

    fn http_options(&self, own: &TlsConfig) -> tls::TlsOptions {
        let files = TlsConfig {
            certfile: own.certfile.clone().or_else(|| self.tls.certfile.clone()),
            keyfile: own.keyfile.clone().or_else(|| self.tls.keyfile.clone()),
            versions: self.tls.versions.clone(),
            ..TlsConfig::default()
        };
        files.options()
    }

    /// SASL mechanisms in order of preference.
    pub fn mechanisms(&self) -> Vec<Mechanism> {
        match self.mechanisms.is_empty() {
            true => Mechanism::DEFAULT.to_vec(),
            false => self.mechanisms.values().copied().collect(),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            data_dir: PathBuf::from("posthorn-data"),
            shards: ShardSetting::Auto,
            log: LogConfig {
                level: "info".to_owned(),
                json: false,
            },
            audit: AuditConfig {
                target: AuditTarget::None,
                buffer: 4 << 20,
                events: None,
            },
            amqp: Listen::loopback(5672),
            amqp_tls: Listen::None,
            advertised_listeners: BTreeMap::new(),
            advertised_nodes: BTreeMap::new(),
            advertised_parts: BTreeMap::new(),
            mqtt: MqttConfig::default(),
            web_mqtt: WebConfig::new(WebSocketSettings::MQTT),
            web_amqp: WebConfig::new(WebSocketSettings::AMQP10),
            stream: StreamConfig::default(),
            tiered: TieredConfig::default(),
            opentelemetry: OpenTelemetryConfig::default(),
            tls: TlsConfig::default(),
            management_tls: Listen::None,
            prometheus_tls: Listen::None,
            prometheus_files: TlsConfig::default(),
            management_files: TlsConfig::default(),
            operator: OperatorConfig::default(),
            mechanisms: BTreeMap::new(),
            backends: BackendSettings::default(),
            management: Listen::loopback(15672),
            prometheus: Listen::loopback(15692),
            probes: Listen::loopback(15693),
            cluster: ClusterConfig {
                name: "posthorn".to_owned(),
                node: String::new(),
                zone: String::new(),
                peers: Vec::new(),
                initial_size: 0,
                listener: Listen::None,
                advertised_host: String::new(),
                auth: None,
                heartbeat: Duration::from_millis(500),
                peer_timeout: Duration::from_millis(3000),
            },
            default_user: "guest".to_owned(),
            default_pass: "guest".to_owned(),
            default_vhost: "/".to_owned(),
            default_queue_type: None,
            restrictions: Restrictions::default(),
            interceptors: Interceptors::default(),
            loopback_users: vec!["guest".to_owned()],
            anonymous_user: Some("guest".to_owned()),
            anonymous_pass: "guest".to_owned(),
            limits: Limits {
                frame_max: 131_072,
                channel_max: 2047,
                heartbeat_s: 60,
                max_message_size: 16 << 20,
                handshake_timeout: Duration::from_millis(10_000),
                consumer_timeout_ms: Some(1_800_000),
                max_connections: 1_000_000,
                accepts_per_turn: 64,
                accepts_per_second: 5000,
                peer_buffer: 64 << 20,
            },
            product: "RabbitMQ".to_owned(),
            version: "4.3.0".to_owned(),
            disk_free_limit: 50_000_000,
            memory_watermark: 0.6,
            memory_budget: BudgetConfig::default(),
            target_group_size: 0,
            wal_file_bytes: 64 << 20,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}
