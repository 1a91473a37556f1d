//! The HTTP API with RabbitMQ's paths and JSON (O2, O3), the web UI (O2), and the Prometheus endpoint (O1).
//!
//! Control plane only: everything goes to shard 0 of the node as a [`control::ControlRequest`] and comes back through
//! its reply; nothing here touches the data path. Passwords are checked on blocking threads, a few at a time.
#![forbid(unsafe_code)]

mod access;
mod ask;
mod auth_paths;
mod bindings;
mod channels;
mod connections;
mod consumers;
mod definitions;
mod dispatch;
mod entropy;
mod error;
mod exchanges;
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
mod replicas;
mod routes;
mod serving;
mod stream;
#[cfg(test)]
mod tests;
mod ui;
mod users;
mod vhosts;

pub use axum::Router;
use control::{ControlRequest, NodeResources};
use env::NodeId;
use env::real::RealClock;
use metadata::QueueType;
use metadata::features::Version;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use entropy::fill as random_bytes;

/// The way to shard 0 of the node. Must not block; a request that it drops is answered with 503.
pub type Node = Arc<dyn Fn(ControlRequest) + Send + Sync>;

/// Sets the share of memory from which on the node's alarm is on, until it ends.
#[derive(Clone)]
pub struct SetWatermark(pub Arc<dyn Fn(f64) + Send + Sync>);

impl std::fmt::Debug for SetWatermark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SetWatermark")
    }
}

/// Sets the free disk space in bytes below which publishers are blocked, until the node ends.
#[derive(Clone)]
pub struct SetDiskLimit(pub Arc<dyn Fn(u64) + Send + Sync>);

impl std::fmt::Debug for SetDiskLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SetDiskLimit")
    }
}

/// When the certificates of client listeners end, in seconds since 1970; None without TLS.
#[derive(Clone)]
pub struct Expiry(pub Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl std::fmt::Debug for Expiry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expiry")
    }
}

type SetLevel = dyn Fn(Option<&str>, &str) -> Result<(), String> + Send + Sync;
type ShownLevels = dyn Fn() -> Vec<(&'static str, &'static str)> + Send + Sync;

/// The levels of this node's log, until it ends.
#[derive(Clone)]
pub struct LogLevels {
    /// Of a category, or of all; an error says what is known.
    pub set: Arc<SetLevel>,
    /// By category.
    pub shown: Arc<ShownLevels>,
}

impl std::fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogLevels")
    }
}

/// What this node uses of its machine.
#[derive(Clone)]
pub struct Measure(pub Arc<dyn Fn() -> NodeResources + Send + Sync>);

impl std::fmt::Debug for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Measure")
    }
}

/// What tells the time of samples.
#[derive(Clone)]
pub struct Clock(pub Arc<dyn env::Clock + Send + Sync>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// Facts about this node that the API shows, and its limits.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: NodeId,
    /// The node's name: what `/api/nodes/{name}` calls it.
    pub name: String,
    /// What people call the cluster, until they have given it another name.
    pub cluster_name: String,
    /// What runs this node.
    pub program: Version,
    /// For `/api/overview`: protocol and port of each listener.
    pub listeners: Vec<(String, u16)>,
    /// Users who may log in from loopback only (`loopback_users`).
    pub loopback_users: Vec<String>,
    /// Of new vhosts that do not say theirs; None: classic.
    pub default_queue_type: Option<QueueType>,
    /// How long clients may keep a delivery where the queue does not say (`consumer_timeout`); None: for ever.
    pub consumer_timeout_ms: Option<u64>,
    /// Connections of one [`Gate`] together, where memory allows so many.
    pub max_connections: usize,
    /// For all HTTP connections and request bodies together.
    pub memory: HttpMemory,
    /// A request is answered by then.
    pub request_timeout: Duration,
    /// The head of a request arrives by then, counted from its first byte.
    pub head_timeout: Duration,
    /// A connection without a byte for so long is closed.
    pub idle_timeout: Duration,
    /// None: the watermark stays as configured.
    pub memory_watermark: Option<SetWatermark>,
    /// None: so does the limit of free disk space.
    pub disk_free_limit: Option<SetDiskLimit>,
    /// None: they stay as configured.
    pub log_levels: Option<LogLevels>,
    /// None: no certificates.
    pub certificates_expire: Option<Expiry>,
    /// None: nothing is known of the machine.
    pub resources: Option<Measure>,
    pub clock: Clock,
    /// Shared by the API, which counts, and metrics.
    pub login_counter: LoginCounter,
}

/// Largest request body, in bytes.
pub const MAX_BODY: usize = 256 * 1024;
/// Largest body of `POST /api/definitions`, in bytes.
pub const MAX_DEFINITIONS: usize = 4 * 1024 * 1024;

impl Config {
    pub(crate) fn measured(&self) -> NodeResources {
        let measure = self.resources.as_ref();
        measure.map_or_else(NodeResources::default, |measure| (measure.0)())
    }

    pub fn new(node: NodeId, name: impl Into<String>) -> Config {
        Config {
            node,
            name: name.into(),
            cluster_name: "posthorn".to_owned(),
            program: Version::default(),
            listeners: Vec::new(),
            loopback_users: vec!["guest".to_owned()],
            default_queue_type: None,
            consumer_timeout_ms: None,
            max_connections: 1024,
            memory: HttpMemory::default(),
            request_timeout: Duration::from_secs(30),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            memory_watermark: None,
            disk_free_limit: None,
            log_levels: None,
            certificates_expire: None,
            resources: None,
            clock: Clock(Arc::new(RealClock::new())),
            login_counter: LoginCounter::default(),
        }
    }
}

/// The management application: `/api/...`, `/livez`, `/readyz`, and the web UI at `/`. Wants [`Peer`] as connect info; [`serve`] gives it. It samples
/// rates in the background while it lives, on the tokio runtime that it must be made in.
pub fn router(node: Node, config: Config) -> std::io::Result<Router> {
    let runtime = tokio::runtime::Handle::try_current().map_err(std::io::Error::other)?;
    let api = ask::Api::new(node, config)?;
    runtime.spawn(rates::run(api.downgrade()));
    Ok(dispatch::router(api))
}

/// The Prometheus application: `/metrics`, `/metrics/per-object`. No login, as with RabbitMQ.
pub fn prometheus(node: Node, config: Config) -> std::io::Result<Router> {
    Ok(metrics::router(ask::Api::new(node, config)?))
}

pub use gate::Gate;
pub use listen::Peer;
pub use login::LoginCounter;
pub use memory::HttpMemory;
pub use probes::{probes, serve_probes};
pub use serving::MAX_HEAD;

impl Config {
    /// For the listeners of the HTTP API, which share one.
    pub fn api_gate(&self) -> Gate {
        Gate::new(self.max_connections.min(self.memory.connections()))
    }

    /// For the operator's listener. Of its own: whatever users do, the operator gets in.
    pub fn operator_gate(&self) -> Gate {
        Gate::new(self.max_connections.min(MAX_OPERATORS))
    }

    /// For the listeners of metrics. Of their own, so that neither keeps the other out.
    pub fn metrics_gate(&self) -> Gate {
        Gate::new(self.max_connections.min(MAX_SCRAPERS))
    }
}

/// Connections for metrics.
const MAX_SCRAPERS: usize = 32;

/// Connections of operators.
const MAX_OPERATORS: usize = 64;

/// TLS of a listener.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    pub server: Arc<tls::Server>,
    /// The name of client certificates whose holders are the operator, who is no user and needs no password. The server
    /// must verify client certificates.
    pub operator: Option<Arc<str>>,
}

impl From<Arc<tls::Server>> for ListenerTls {
    fn from(server: Arc<tls::Server>) -> ListenerTls {
        ListenerTls {
            server,
            operator: None,
        }
    }
}

/// Serves an application on a listener until `stop` resolves, then lets requests under way finish. Over TLS (HTTPS) where
/// there is a server for it. Must run inside a tokio runtime with time and I/O enabled.
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
    let terms = serving::Terms {
        gate: gate.clone(),
        tls,
        operator,
        patience: listen::ConnectionTimeouts {
            idle: config.idle_timeout,
            head: config.head_timeout,
            // The answer that says that it took too long gets through.
            request: config.request_timeout.saturating_mul(2),
        },
        head: MAX_HEAD,
        keep_alive: true,
    };
    serving::run(listener, terms, app, stop).await
}
