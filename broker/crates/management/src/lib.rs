//! The HTTP API with RabbitMQ's paths and JSON, the web UI, and the Prometheus endpoint.
//!
//! Control plane only: every handler sends a [`control::ControlRequest`] to shard 0 of the node and
//! awaits its reply; nothing here touches the data path. Passwords are hashed on blocking threads,
//! a few at a time.
#![deny(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

mod access;
mod ask;
mod audit_requests;
mod auth_paths;
mod bindings;
mod browse;
mod channels;
mod cluster_health;
mod connections;
mod consumers;
mod definitions;
mod dispatch;
mod entropy;
mod error;
mod exchanges;
mod export;
mod exposition;
mod features;
mod form;
mod gate;
mod health;
mod json;
mod lengths;
mod limits;
mod listen;
mod login;
mod memory;
mod messages;
mod metrics;
mod moves;
mod mqtt;
mod nodes;
mod origin;
mod overview;
mod page;
mod parameters;
mod permissions;
mod policies;
mod probes;
mod queues;
mod rates;
mod recovery;
mod replicas;
mod retained_export;
mod routes;
mod serving;
mod sessions;
mod stream;
mod stream_export;
mod stream_protocol;
mod streams;
#[cfg(test)]
mod tests;
mod ui;
mod users;
mod vhosts;

pub use axum::Router;
use control::{ControlRequest, NodeResources, NodeTimings};
use env::NodeId;
use env::real::RealClock;
use metadata::QueueType;
use metadata::deprecated::PermittedFeatures;
use metadata::features::Version;
use std::future::Future;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

pub use entropy::fill as random_bytes;

/// Sends a request to shard 0 of the node. Must not block. If it drops the request, the client gets
/// 503.
pub type Node = Arc<dyn Fn(ControlRequest) + Send + Sync>;

/// Sets the memory high watermark of this node, as a share of memory, until the node restarts.
#[derive(Clone)]
pub struct SetWatermark(pub Arc<dyn Fn(f64) + Send + Sync>);

impl std::fmt::Debug for SetWatermark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SetWatermark")
    }
}

/// Sets the free disk space limit of this node in bytes, until the node restarts. Publishers are
/// blocked below it.
#[derive(Clone)]
pub struct SetDiskLimit(pub Arc<dyn Fn(u64) + Send + Sync>);

impl std::fmt::Debug for SetDiskLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SetDiskLimit")
    }
}

/// Returns the earliest expiry of the client listeners' certificates in seconds since 1970, or None
/// without TLS.
#[derive(Clone)]
pub struct CertificateExpiry(pub Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl std::fmt::Debug for CertificateExpiry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expiry")
    }
}

type SetLevel = dyn Fn(Option<&str>, &str) -> Result<(), String> + Send + Sync;
type ShownLevels = dyn Fn() -> Vec<(&'static str, &'static str)> + Send + Sync;

/// Reads and sets the log levels of this node, until it restarts.
#[derive(Clone)]
pub struct LogLevels {
    /// Sets the level of one category, or of all if None. An error lists the valid values.
    pub set: Arc<SetLevel>,
    /// Returns the current level of each category.
    pub shown: Arc<ShownLevels>,
}

impl std::fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogLevels")
    }
}

/// A setting of this node, as it applies now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key in a configuration file.
    pub key: String,
    /// The value as written in a file. Secrets are masked.
    pub value: String,
    /// The place that sets the value, or `default`.
    pub source: String,
    /// A reload applies changes of this key.
    pub live: bool,
    /// The files have another value, which the next start applies.
    pub restart: bool,
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingKey {
    /// The key in a configuration file; `.*` at its end stands for any name.
    pub key: &'static str,
    /// The default as in a file; empty if there is none.
    pub default: &'static str,
    /// A reload applies changes of this key.
    pub live: bool,
}

/// The settings of this node that a reload changes.
#[derive(Clone, Debug, Default)]
pub struct LiveSettings(Arc<RwLock<SettingsNow>>);

#[derive(Debug, Default)]
struct SettingsNow {
    list: Arc<[Setting]>,
    consumer_timeout_ms: Option<u64>,
}

impl LiveSettings {
    /// All settings, and the delivery acknowledgement timeout of queues that do not set one
    /// (`consumer_timeout`); None: no timeout.
    pub fn new(list: Vec<Setting>, consumer_timeout_ms: Option<u64>) -> LiveSettings {
        let live = LiveSettings::default();
        live.replace(list, consumer_timeout_ms);
        live
    }

    /// Shows these settings from now on.
    pub fn replace(&self, list: Vec<Setting>, consumer_timeout_ms: Option<u64>) {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *now = SettingsNow {
            list: list.into(),
            consumer_timeout_ms,
        };
    }

    pub(crate) fn list(&self) -> Arc<[Setting]> {
        let now = self.0.read().unwrap_or_else(PoisonError::into_inner);
        now.list.clone()
    }

    pub(crate) fn consumer_timeout_ms(&self) -> Option<u64> {
        let now = self.0.read().unwrap_or_else(PoisonError::into_inner);
        now.consumer_timeout_ms
    }
}

/// The result of a reload of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys whose changes were applied.
    pub changed: Vec<String>,
    /// Keys whose changes the next start applies.
    pub restart: Vec<String>,
}

/// Reads the configuration again and applies changes of live settings. An error lists the invalid
/// settings; nothing has changed then.
#[derive(Clone)]
pub struct ReloadSettings(pub Arc<dyn Fn() -> Result<Reloaded, String> + Send + Sync>);

impl std::fmt::Debug for ReloadSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReloadSettings")
    }
}

/// Measures the resources that this node uses.
#[derive(Clone)]
pub struct MeasureResources(pub Arc<dyn Fn() -> NodeResources + Send + Sync>);

impl std::fmt::Debug for MeasureResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Measure")
    }
}

/// The clock that timestamps rate samples.
#[derive(Clone)]
pub struct Clock(pub Arc<dyn env::Clock + Send + Sync>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// Facts about this node that the API shows, and the API's limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// The node's name, as in `/api/nodes/{name}`.
    pub name: String,
    /// The cluster's name until a user sets another.
    pub cluster_name: String,
    /// Number of nodes that form the cluster (`cluster.initial_size` or `cluster.peers`).
    pub initial_nodes: usize,
    /// The version of Posthorn that this node runs.
    pub version: Version,
    /// Protocol and configured port of each listener.
    pub listeners: Vec<(String, u16)>,
    /// The ports of listeners whose configured port is 0, once they are bound.
    pub bound_ports: Arc<OnceLock<Vec<(&'static str, u16)>>>,
    /// Authentication backends in the order in which they are asked (`auth_backends`).
    pub backends: Vec<auth_backends::Backend>,
    /// The external backends among them. None: there are none.
    pub identities: Option<Arc<auth_backends::IdentityService>>,
    /// Users who may log in from loopback only (`loopback_users`).
    pub loopback_users: Vec<String>,
    /// Queue type of new vhosts that do not set `default_queue_type`; None: classic.
    pub default_queue_type: Option<QueueType>,
    /// Deprecated features that clients of the node may use.
    pub permitted: PermittedFeatures,
    /// Maximum number of connections per [`Gate`]. The memory limit may reduce it.
    pub max_connections: usize,
    /// Memory shared by all HTTP connections and request bodies.
    pub memory: HttpMemory,
    /// Largest body of a message in bytes (`max_message_size`).
    pub max_message_size: u32,
    /// Deadline for answering a request.
    pub request_timeout: Duration,
    /// Time limit for the head of a request, counted from its first byte.
    pub head_timeout: Duration,
    /// A connection that transfers no byte for this long is closed.
    pub idle_timeout: Duration,
    /// None: the watermark cannot be changed at runtime.
    pub memory_watermark: Option<SetWatermark>,
    /// None: the free disk space limit cannot be changed at runtime.
    pub disk_free_limit: Option<SetDiskLimit>,
    /// None: the log levels cannot be changed at runtime.
    pub log_levels: Option<LogLevels>,
    /// Settings for `/api/nodes/{name}/configuration`.
    pub live: LiveSettings,
    /// All keys, for `/api/nodes/{name}/configuration/keys`.
    pub keys: Arc<[SettingKey]>,
    /// None: the configuration cannot be read again.
    pub reload: Option<ReloadSettings>,
    /// None: the listeners have no certificates.
    pub certificates_expire: Option<CertificateExpiry>,
    /// None: resource usage is unknown.
    pub resources: Option<MeasureResources>,
    /// The clocks of the node.
    pub clock: Clock,
    /// Updated by the API and read by the metrics endpoint.
    pub login_counter: LoginCounter,
    /// Takes audit records. None: there is no audit log.
    pub audit: Option<audit::AuditSink>,
    /// Durations that the node measures.
    pub timings: Arc<NodeTimings>,
    /// Counts the exports of traces and metrics. None: there are none.
    pub export_counters: Option<Arc<telemetry::ExportCounters>>,
    /// The node exports traces.
    pub traces: bool,
}

/// Largest request body, in bytes.
pub const MAX_BODY: usize = 256 * 1024;
/// Largest body of a request without credentials, in bytes: a code with its verifier and redirect URI, or a refresh token.
pub(crate) const MAX_PUBLIC_BODY: usize = 20 * 1024;
/// Time for such a body to arrive.
pub(crate) const PUBLIC_BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of messages of one export or import of a queue: an export ends after the first message that exceeds them, and an
/// import may have as many besides one message of the largest size.
pub const TRANSFER_BYTES: usize = 4 << 20;
/// Largest body of `POST /api/definitions`, in bytes.
pub const MAX_DEFINITIONS: usize = 4 * 1024 * 1024;

impl Config {
    pub(crate) fn node_resources(&self) -> NodeResources {
        let measure = self.resources.as_ref();
        measure.map_or_else(NodeResources::default, |measure| (measure.0)())
    }

    /// Protocol and port of each listener.
    pub(crate) fn listeners(&self) -> Vec<(&str, u16)> {
        let bound = self.bound_ports.get().map_or(&[][..], Vec::as_slice);
        let port_of = |(protocol, port): &(String, u16)| match *port {
            0 => bound
                .iter()
                .find(|(name, _)| name == protocol)
                .map_or(0, |it| it.1),
            port => port,
        };
        let all = self.listeners.iter();
        all.map(|it| (it.0.as_str(), port_of(it))).collect()
    }

    /// The defaults for a node of this name.
    pub fn new(node: NodeId, name: impl Into<String>) -> Config {
        Config {
            node,
            name: name.into(),
            cluster_name: "posthorn".to_owned(),
            initial_nodes: 1,
            version: Version::default(),
            listeners: Vec::new(),
            bound_ports: Arc::default(),
            backends: auth_backends::BackendSettings::default().backends(),
            identities: None,
            loopback_users: vec!["guest".to_owned()],
            default_queue_type: None,
            permitted: PermittedFeatures::default(),
            max_connections: 1024,
            memory: HttpMemory::default(),
            max_message_size: 16 << 20,
            request_timeout: Duration::from_secs(30),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            memory_watermark: None,
            disk_free_limit: None,
            log_levels: None,
            live: LiveSettings::default(),
            keys: Arc::new([]),
            reload: None,
            certificates_expire: None,
            resources: None,
            clock: Clock(Arc::new(RealClock::new())),
            login_counter: LoginCounter::default(),
            audit: None,
            timings: Arc::default(),
            export_counters: None,
            traces: false,
        }
    }
}

/// The management application: `/api/...`, `/livez`, `/readyz`, and the web UI at `/`. Requires
/// [`Peer`] as connect info, which [`serve`] provides. Must be called within a tokio runtime: it
/// spawns a task that samples rates until the router is dropped.
pub fn router(node: Node, config: Config) -> std::io::Result<Router> {
    let runtime = tokio::runtime::Handle::try_current().map_err(std::io::Error::other)?;
    let api = ask::Api::new(node, config)?;
    runtime.spawn(rates::run(api.downgrade()));
    Ok(dispatch::router(api))
}

/// The Prometheus application: `/metrics`, `/metrics/per-object`. It requires no login, as in
/// RabbitMQ.
pub fn prometheus(node: Node, config: Config) -> std::io::Result<Router> {
    Ok(metrics::router(ask::Api::new(node, config)?))
}

/// Reads the metrics of `/metrics` as values.
pub struct MetricsReader(ask::Api);

impl MetricsReader {
    /// A reader of this node.
    pub fn new(node: Node, config: Config) -> std::io::Result<MetricsReader> {
        ask::Api::new(node, config).map(MetricsReader)
    }

    /// The values now. None: the node cannot say, for example because it is starting.
    pub async fn read(&self) -> Option<Vec<telemetry::Metric>> {
        metrics::values(&self.0).await.ok()
    }
}

pub use gate::Gate;
pub use listen::Peer;
pub use login::LoginCounter;
pub use memory::HttpMemory;
pub use probes::{probes, serve_probes};
pub use serving::MAX_HEAD;

impl Config {
    /// The gate shared by all listeners of the HTTP API.
    pub fn api_gate(&self) -> Gate {
        Gate::new(self.max_connections.min(self.memory.connections()))
    }

    /// The operator's listener has its own gate, so that user connections cannot lock the operator
    /// out.
    pub fn operator_gate(&self) -> Gate {
        Gate::new(self.max_connections.min(MAX_OPERATORS))
    }

    /// The metrics listeners have their own gate, so that API clients and scrapers cannot lock each
    /// other out.
    pub fn metrics_gate(&self) -> Gate {
        Gate::new(self.max_connections.min(MAX_SCRAPERS))
    }
}

/// Maximum number of connections to the metrics listeners.
const MAX_SCRAPERS: usize = 32;

/// Maximum number of connections to the operator's listener.
const MAX_OPERATORS: usize = 64;

/// TLS configuration of a listener.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// Certificates and settings.
    pub server: Arc<tls::ServerTls>,
    /// Clients whose certificate has this name are the operator, which has no user record and needs
    /// no password. The server must verify client certificates.
    pub operator: Option<Arc<str>>,
}

impl From<Arc<tls::ServerTls>> for ListenerTls {
    fn from(server: Arc<tls::ServerTls>) -> ListenerTls {
        ListenerTls {
            server,
            operator: None,
        }
    }
}

/// Serves an application on a listener until `stop` resolves, then waits for running requests. Uses
/// HTTPS if the listener has a TLS configuration. Must run inside a tokio runtime with time and I/O
/// enabled.
pub async fn serve(
    (listener, tls): (std::net::TcpListener, Option<ListenerTls>),
    app: Router,
    (config, gate): (&Config, &Gate),
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (tls, operator) = match tls {
        Some(ListenerTls { server, operator }) => (Some(server), operator),
        None => (None, None),
    };
    let terms = serving::ListenerConfig {
        gate: gate.clone(),
        tls,
        operator,
        timeouts: listen::ConnectionTimeouts {
            idle: config.idle_timeout,
            head: config.head_timeout,
            // Leaves time to send the 503 response after a request timeout.
            request: config.request_timeout.saturating_mul(2),
        },
        head: MAX_HEAD,
        keep_alive: true,
    };
    serving::run(listener, terms, app, stop).await
}
