//! The configuration: `key = value` files, `conf.d`, environment, `--set`. Everything is validated
//! at the start.
//!
//! Later sources win: built-in defaults, the file, `conf.d/*.conf` beside it in name order,
//! environment, `--set`.

mod budget_keys;
mod keys;
mod load;
mod mqtt_keys;
mod parse;
mod stream_keys;
mod tls_keys;
mod values;
mod web_mqtt_keys;

pub use budget_keys::BudgetConfig;
pub use keys::{ConfigKey, keys, reference};
pub use load::{ConfigError, ConfigErrors, ConfigSources, SettingOrigin, load};
pub use mqtt_keys::MqttConfig;
pub use stream_keys::{AdvertisedPart, StreamConfig};
pub use values::{Listen, PeerAddress, parse_bytes};
pub use web_mqtt_keys::WebMqttConfig;

use auth::Mechanism;
use metadata::QueueType;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tls::{CertificateLoginSource, ClientVerification, SanType, TlsVersions};

/// All settings. [`keys`] describes each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub data_dir: PathBuf,
    /// 0: determined from the CPUs available to this process.
    pub shards: u16,
    pub log: LogConfig,
    pub amqp: Listen,
    pub amqp_tls: Listen,
    /// Addresses of client listeners as clients reach them, by the name of the listener.
    pub advertised_listeners: BTreeMap<String, PeerAddress>,
    /// Parts of such addresses, which `advertised_listeners` overrides, by the name of the listener.
    pub advertised_parts: BTreeMap<&'static str, AdvertisedPart>,
    pub mqtt: MqttConfig,
    pub web_mqtt: WebMqttConfig,
    pub stream: StreamConfig,
    pub tls: TlsConfig,
    pub management_tls: Listen,
    pub prometheus_tls: Listen,
    /// Certificate and key of the metrics endpoint, if it has its own.
    pub prometheus_files: TlsConfig,
    /// Missing values are taken from `tls`.
    pub management_files: TlsConfig,
    pub operator: OperatorConfig,
    /// By index; empty: the default mechanisms.
    pub mechanisms: BTreeMap<u32, Mechanism>,
    pub management: Listen,
    pub prometheus: Listen,
    pub probes: Listen,
    pub cluster: ClusterConfig,
    pub default_user: String,
    pub default_pass: String,
    pub default_vhost: String,
    /// Queue type of the first vhost and of new vhosts created through this node that do not set
    /// one; None: classic.
    pub default_queue_type: Option<QueueType>,
    pub loopback_users: Vec<String>,
    /// None: anonymous login is disabled.
    pub anonymous_user: Option<String>,
    pub anonymous_pass: String,
    pub limits: Limits,
    pub disk_free_limit: u64,
    /// `product` in the AMQP server properties.
    pub product: String,
    /// `version` in the AMQP server properties.
    pub version: String,
    /// As a share of the memory limit of the cgroup or the machine.
    pub memory_watermark: f64,
    pub memory_budget: BudgetConfig,
    /// Number of members to which quorum queues are grown; 0: never grown.
    pub target_group_size: u32,
    pub wal_file_bytes: u64,
    pub shutdown_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    pub level: String,
    pub json: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
    pub name: String,
    /// Empty: the host's name.
    pub node: String,
    /// Empty: no zone.
    pub zone: String,
    pub peers: Vec<PeerAddress>,
    /// Number of nodes that form the cluster if `peers` is a single DNS name; 0: the number of
    /// entries in `peers`.
    pub initial_size: usize,
    pub listener: Listen,
    /// Empty: the host's name.
    pub advertised_host: String,
    pub auth: Option<AuthFiles>,
    pub heartbeat: Duration,
    pub peer_timeout: Duration,
}

/// PEM files of mutual TLS between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AuthFiles {
    pub cacertfile: PathBuf,
    pub certfile: PathBuf,
    pub keyfile: PathBuf,
}

/// TLS of client listeners.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TlsConfig {
    pub cacertfile: Option<PathBuf>,
    pub certfile: Option<PathBuf>,
    pub keyfile: Option<PathBuf>,
    pub verify_peer: bool,
    pub fail_if_no_peer_cert: bool,
    /// By index; empty: all versions.
    pub versions: BTreeMap<u32, &'static str>,
    pub login_from: CertificateLoginSource,
    pub san_type: SanType,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub frame_max: u32,
    pub channel_max: u16,
    pub heartbeat_s: u16,
    pub max_message_size: u32,
    pub handshake_timeout: Duration,
    /// None: no timeout.
    pub consumer_timeout_ms: Option<u64>,
    pub max_connections: usize,
    pub accepts_per_turn: usize,
    /// 0: unlimited.
    pub accepts_per_second: u32,
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
            shards: 1,
            log: LogConfig {
                level: "info".to_owned(),
                json: false,
            },
            amqp: Listen::loopback(5672),
            amqp_tls: Listen::None,
            advertised_listeners: BTreeMap::new(),
            advertised_parts: BTreeMap::new(),
            mqtt: MqttConfig::default(),
            web_mqtt: WebMqttConfig::default(),
            stream: StreamConfig::default(),
            tls: TlsConfig::default(),
            management_tls: Listen::None,
            prometheus_tls: Listen::None,
            prometheus_files: TlsConfig::default(),
            management_files: TlsConfig::default(),
            operator: OperatorConfig::default(),
            mechanisms: BTreeMap::new(),
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
            version: "4.1.0".to_owned(),
            disk_free_limit: 50_000_000,
            memory_watermark: 0.6,
            memory_budget: BudgetConfig::default(),
            target_group_size: 0,
            wal_file_bytes: 64 << 20,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}
