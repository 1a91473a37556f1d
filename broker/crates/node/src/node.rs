//! The lifecycle of a node: start, form or join a cluster, serve, drain, stop.

use crate::addresses::{self, AddressError};
use crate::alarms::{AlarmCause, Alarms};
use crate::audit_log::AuditLog;
use crate::checks::{PasswordCheckPool, identification_for_shard};
use crate::clients::{BoundListener, ClientListeners, Registration};
use crate::config::{Config, Limits};
use crate::control_door::ControlGateway;
use crate::data_dir::{DataDir, DataDirError};
use crate::identity::{ClusterRecord, Founder, Identity, id_text, random_nonzero};
use crate::link_tls::{LinkTls, TlsError};
use crate::links::LinkStatus;
use crate::listener_text;
use crate::machine;
use crate::not_ready::NotReadyLog;
use crate::peering::PeeringConfig;
use crate::shard_count::ShardCount;
use crate::telemetry_export::{MetricExport, TelemetryExport};
use crate::threads::{ThreadNotification, ThreadParts, Threads};
use crate::watch::{self, LastDiskCheck, ResourceMonitor};
use audit::AuditSink;
use auth_backends::IdentityService;
use control::{ControlRequest, NodeResources, NodeTimings, Readiness};
use env::real::RealClock;
use env::{Clock, Disk, NodeId, Rng, SeededRng, Time, WallTime};
use metadata::deprecated::PermittedFeatures;
use metadata::features::Version;
use metadata::{ClientAddress, NodeRecord, QueueType, UserRecord};
use reactor::LoopReport;
use shard::SpanSettings;
use shard::{
    Founding, LoginBackend, RecoveredShard, ShardConfig, ShardDriver, StartCheck,
    StartIdentification,
};
use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use telemetry::ExportCounters;
use wal::Recovered;

/// Creates a shard on its own thread, because recovering its data may take long.
pub type ShardFactory =
    Arc<dyn Fn(ShardMaterial) -> Result<Box<dyn ShardDriver>, String> + Send + Sync>;

/// Parts from which a shard is built.
pub struct ShardMaterial {
    /// Configuration.
    pub config: ShardConfig,
    /// State that the shard had on its disk.
    pub recovered: RecoveredShard,
    /// The disk for queues and segments.
    pub disk: Arc<dyn Disk>,
    /// Starts password checks; see `Shard::check_elsewhere`.
    pub checks: StartCheck,
    /// The external backends; see `Shard::identify_with`. None: there are none.
    pub identification: Option<(Arc<[LoginBackend]>, StartIdentification)>,
    /// Takes audit records. None: there is no audit log.
    pub audit: Option<AuditSink>,
    /// Takes spans. None: none are exported.
    pub spans: Option<SpanSettings>,
    /// Monotonic time of the start.
    pub now: Time,
    /// Wall-clock time of the start.
    pub wall: WallTime,
}

/// Serves the HTTP API and metrics on its own thread, until the process ends.
pub type ControlServer = Box<dyn FnOnce(ControlParts) -> Result<(), String> + Send>;

/// Parts of the control plane.
pub struct ControlParts {
    /// The id of this node.
    pub node: NodeId,
    /// Its name.
    pub node_name: String,
    /// The name of the cluster.
    pub cluster_name: String,
    /// Number of nodes that form the cluster.
    pub initial_nodes: usize,
    /// The version of this node.
    pub version: Version,
    /// Protocol and configured port of each listener.
    pub listeners: Vec<(String, u16)>,
    /// The ports of client listeners, once they are bound.
    pub bound_ports: Arc<OnceLock<Vec<(&'static str, u16)>>>,
    /// Backends in the order in which they are asked.
    pub backends: Vec<auth_backends::Backend>,
    /// The external backends among them. None: there are none.
    pub identities: Option<Arc<IdentityService>>,
    /// Users who may log in only over loopback.
    pub loopback_users: Vec<String>,
    /// Queue type of new vhosts that do not set one; None: classic.
    pub default_queue_type: Option<QueueType>,
    /// Largest body of a message in bytes.
    pub max_message_size: u32,
    /// Deprecated features that clients of the node may use.
    pub permitted: PermittedFeatures,
    /// Returns the earliest expiry of the client listeners' certificates in seconds since 1970;
    /// None without TLS.
    pub certificates_expire: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    /// HTTP API.
    pub management: Option<TcpListener>,
    /// HTTP API with TLS.
    pub management_tls: Option<(TcpListener, Arc<tls::ServerTls>)>,
    /// Metrics with TLS.
    pub prometheus_tls: Option<(TcpListener, Arc<tls::ServerTls>)>,
    /// HTTP API of the operator, and the name in its certificate.
    pub operator: Option<(TcpListener, Arc<tls::ServerTls>, Arc<str>)>,
    /// Metrics.
    pub prometheus: Option<TcpListener>,
    /// Serves only `/livez` and `/readyz`.
    pub probes: Option<TcpListener>,
    /// Memory limit of the process in bytes, if known.
    pub memory_limit: Option<u64>,
    /// Takes audit records. None: there is no audit log.
    pub audit: Option<AuditSink>,
    /// Durations that the node measures.
    pub timings: Arc<NodeTimings>,
    /// The node exports traces.
    pub traces: bool,
    /// Where metrics are exported to. None: nowhere.
    pub metric_export: Option<MetricExport>,
    /// Counts the exports of traces and metrics. None: there are none.
    pub export_counters: Option<Arc<ExportCounters>>,
    /// Sends a request to shard 0; see [`ControlGateway::ask`].
    pub control: Arc<dyn Fn(ControlRequest) + Send + Sync>,
    /// Returns the resource usage of the node as last measured.
    pub resources: Arc<dyn Fn() -> NodeResources + Send + Sync>,
    /// Sets the memory high watermark (`vm_memory_high_watermark.relative`) until the node
    /// restarts.
    pub set_memory_watermark: Arc<dyn Fn(f64) + Send + Sync>,
    /// Sets the free disk space limit (`disk_free_limit.absolute`) until the node restarts.
    pub set_disk_free_limit: Arc<dyn Fn(u64) + Send + Sync>,
}

/// Parts of a node.
pub struct NodeParts {
    /// Configuration.
    pub config: Config,
    /// Client protocols, in the order of their IDs.
    pub protocols: Vec<Registration>,
    /// The version of this node.
    pub version: Version,
    /// Builds the shards.
    pub make_shard: ShardFactory,
    /// None: no HTTP on this node.
    pub serve_control: Option<ControlServer>,
    /// Receives the ports as JSON when the node serves clients.
    pub ready_file: Option<PathBuf>,
}

/// The reason why a node could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A listener cannot be opened.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Certificates between nodes cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Certificates for clients cannot be used.
    #[error("ssl_options, management.ssl, prometheus.ssl or operator.ssl: {0}")]
    ClientTls(#[from] tls::FileError),
    /// The operating system refused a resource.
    #[error("{name}: {error}")]
    Io {
        /// The resource.
        name: &'static str,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The object store for streams cannot be used.
    #[error("stream.tiered: {0}")]
    ObjectStore(String),
    /// The password of the first user cannot be hashed.
    #[error("default_pass: {0}")]
    Password(String),
    /// The node cannot go on; the text has the reason.
    #[error("{0}")]
    Fatal(String),
}

fn io_error(name: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |error| NodeError::Io { name, error }
}

/// Runs a node until it receives [`ThreadNotification::Stop`] through `notices`, or fails.
pub fn run(
    parts: NodeParts,
    channel: (Sender<ThreadNotification>, Receiver<ThreadNotification>),
) -> Result<(), NodeError> {
    let (notices, inbox) = channel;
    let node = Node::prepare(parts, notices)?;
    node.live(&inbox)
}

/// Polling interval of readiness after the start.
const READY_POLL: Duration = Duration::from_millis(25);

struct Node {
    config: Config,
    version: Version,
    notices: Sender<ThreadNotification>,
    name: String,
    address: String,
    shards: u16,
    clock: Arc<RealClock>,
    rng: SeededRng,
    budget: shard::MemoryBudget,
    data: DataDir,
    recovered: Recovered,
    threads: Threads,
    door: Arc<ControlGateway>,
    make_shard: ShardFactory,
    /// External backends. None: there are none.
    identities: Option<Arc<IdentityService>>,
    ready_file: Option<PathBuf>,
    /// For the ready file.
    ports: Vec<(&'static str, SocketAddr)>,
    /// Of the client listeners, as clients reach them.
    client_addresses: Vec<ClientAddress>,
    /// The listeners of these addresses, once they are bound.
    bound: Vec<BoundListener>,
    /// Largest number of client connections of each shard.
    connection_limit: Arc<AtomicUsize>,
    clients: ClientListeners,
    last_look: Arc<LastDiskCheck>,
    /// The acknowledgement timeout, which all shards share.
    consumer_timeout: shard::DefaultTimeout,
    audit: Option<AuditLog>,
    telemetry: TelemetryExport,
}

impl Node {
    /// Prepares everything that does not need a cluster.
    fn prepare(parts: NodeParts, notices: Sender<ThreadNotification>) -> Result<Node, NodeError> {
        let config = parts.config;
        addresses::check_plain(&config)?;
        let tls = config
            .cluster
            .auth
            .as_ref()
            .map(LinkTls::load)
            .transpose()?;
        let clients = ClientListeners::new(&config, parts.protocols)?;
        let name = addresses::node_name(&config)?;
        let mut rng = env::real::seeded_rng().map_err(io_error("random numbers"))?;

        // Ports are checked first, so that a port in use is reported before the data directory is
        // changed.
        clients.check_ports()?;
        let (cluster, address) = bind_cluster(&config)?;
        let mut ports = Vec::new();
        if let Some(listener) = &cluster {
            let address = listener.local_addr();
            ports.push(("cluster", address.map_err(io_error("cluster listener"))?));
        }
        let data = DataDir::open(&config.data_dir, &name, &mut rng)?;
        let status = Arc::new(LinkStatus::default());
        let door = Arc::new(ControlGateway::new(status.clone()));
        let last_look = Arc::<LastDiskCheck>::default();
        let consumer_timeout = shard::DefaultTimeout::new(config.limits.consumer_timeout_ms);
        let timings = Arc::<NodeTimings>::default();
        let clock = Arc::new(RealClock::new());
        let audit = AuditLog::start(&config.audit, &name, clock.clone(), &door);
        let audit = audit.map_err(io_error("audit.file"))?;
        let sink = audit.as_ref().map(AuditLog::sink);
        let program = (name.as_str(), parts.version.version);
        let telemetry = TelemetryExport::start(&config.opentelemetry, program, clock.clone());
        let telemetry = telemetry.map_err(io_error("opentelemetry"))?;
        let identities = start_identities(&config, clock.clone(), &mut rng)?;
        if let Some(serve) = parts.serve_control {
            // Started before the log is recovered, so that probes are answered meanwhile.
            let me = (data.identity().node, name.as_str(), parts.version);
            let shown = (
                &clients,
                last_look.clone(),
                (sink, timings.clone(), &telemetry),
            );
            let serve = (serve, identities.clone());
            ports.extend(start_control(&config, me, shown, serve, &door, &notices)?);
        }
        let (wal, recovered) = data.open_log(&config, rng.next_u64())?;
        if config.cluster.peers.is_empty() && data.identity().cluster.is_none() {
            form_single_node_cluster(&data, &name, &address, parts.version, &mut rng)?;
        }
        let identity = data.identity();
        let count = ShardCount::choose(
            config.shards,
            machine::granted_cpus(),
            identity.cluster.as_ref(),
        );
        log_start(&identity, parts.version, count, recovered.groups.len());
        count.warn();
        let shards = count.shards;
        timings.set_shards(shards);
        let wiring = ThreadParts {
            shards,
            clock: clock.clone(),
            notices: notices.clone(),
            timings: timings.clone(),
            status,
            wal,
            newest_file: recovered.files.last().copied().unwrap_or(0),
            disk: data.disk(),
            directory: config.data_dir.display().to_string(),
            tls,
            listener: cluster,
            peering: PeeringConfig {
                version: parts.version,
                ..peering_config(
                    &config,
                    &identity,
                    (&name, &address),
                    shards,
                    rng.next_u64(),
                )
            },
            persist: Box::new(data.persist()),
            peer_buffer: peer_buffer(&config.limits),
            has_object_store: config.tiered.is_on(),
        };
        let threads = Threads::start(wiring).map_err(io_error("threads"))?;
        Ok(Node {
            budget: config.memory_budget.of(machine::memory_limit()),
            config,
            version: parts.version,
            notices,
            name,
            address,
            shards,
            clock,
            rng,
            data,
            recovered,
            threads,
            door,
            make_shard: parts.make_shard,
            identities,
            ready_file: parts.ready_file,
            ports,
            client_addresses: Vec::new(),
            bound: Vec::new(),
            connection_limit: Arc::default(),
            clients,
            last_look,
            consumer_timeout,
            audit,
            telemetry,
        })
    }

    fn live(mut self, inbox: &Receiver<ThreadNotification>) -> Result<(), NodeError> {
        let Some(cluster) = self.wait_for_cluster(inbox)? else {
            self.threads.stop(Duration::ZERO);
            return Ok(());
        };
        let alarms = self.start_shards(&cluster)?;
        self.watch_until_stopped(inbox, &alarms, &cluster)?;
        self.drain(inbox)?;
        self.threads.stop(self.config.shutdown_timeout);
        // Writes the records of the shards.
        drop(self.audit.take());
        // Exports the spans of the shards.
        drop(std::mem::take(&mut self.telemetry));
        if let Some(file) = &self.ready_file {
            // A stale file would name ports that are not served. Failing to remove it is harmless
            // otherwise.
            let _ = std::fs::remove_file(file);
        }
        tracing::info!(event = "node.stopped", name = self.name);
        Ok(())
    }

    /// Returns None if the node was stopped before it had a cluster.
    fn wait_for_cluster(
        &mut self,
        inbox: &Receiver<ThreadNotification>,
    ) -> Result<Option<ClusterRecord>, NodeError> {
        loop {
            if let Some(cluster) = self.data.identity().cluster {
                return Ok(Some(cluster));
            }
            match inbox.recv() {
                Ok(ThreadNotification::Stop) | Err(_) => return Ok(None),
                Ok(ThreadNotification::Adopted) => {}
                Ok(ThreadNotification::Reloaded(config)) => {
                    self.consumer_timeout.set(config.limits.consumer_timeout_ms);
                    self.config = *config;
                }
                Ok(notice) => self.check_fatal(notice)?,
            }
        }
    }

    /// The addresses of the client listeners, as clients reach them.
    fn advertised(&self) -> Vec<ClientAddress> {
        let (config, bound) = (&self.config, &self.bound);
        self.clients.addresses(config, &self.name, bound)
    }

    /// Applies live settings that differ. A value that a request has set since the start stays in
    /// effect until its setting changes.
    fn apply(&mut self, config: Config, watch: &mut ResourceMonitor) {
        let before = std::mem::replace(&mut self.config, config);
        let after = &self.config;
        if after.memory_watermark != before.memory_watermark {
            watch.set_memory_watermark(after.memory_watermark);
        }
        if after.disk_free_limit != before.disk_free_limit {
            watch.set_disk_free_limit(after.disk_free_limit);
        }
        self.consumer_timeout.set(after.limits.consumer_timeout_ms);
        let connections = after.limits.max_connections;
        let for_each_shard = connections.div_ceil(usize::from(self.shards));
        self.connection_limit
            .store(for_each_shard, Ordering::Relaxed);
        watch.set_connection_limit(after);
        let addresses = self.advertised();
        if addresses != self.client_addresses {
            self.client_addresses = addresses.clone();
            self.door
                .ask(ControlRequest::StateClientAddresses { addresses });
        }
    }

    /// Fails for notices that stop the node at any time.
    fn check_fatal(&self, notice: ThreadNotification) -> Result<(), NodeError> {
        match notice {
            ThreadNotification::LoopReport(_, LoopReport::Fatal(text))
            | ThreadNotification::Died(text) => Err(NodeError::Fatal(text)),
            ThreadNotification::ReopenAuditLog => {
                if let Some(audit) = &self.audit {
                    audit.reopen();
                }
                Ok(())
            }
            ThreadNotification::DiskFull(_)
            | ThreadNotification::DiskWritten
            | ThreadNotification::NotReady(_)
            | ThreadNotification::MemoryWatermark(_)
            | ThreadNotification::DiskFreeLimit(_)
            | ThreadNotification::Reloaded(_)
            | ThreadNotification::Ready
            | ThreadNotification::Adopted
            | ThreadNotification::Stop
            | ThreadNotification::LoopReport(_, LoopReport::Drained) => Ok(()),
        }
    }

    fn start_shards(&mut self, cluster: &ClusterRecord) -> Result<Arc<Alarms>, NodeError> {
        let tier = self.tier(cluster)?;
        let founding = self.founding(cluster)?;
        let recovered = std::mem::take(&mut self.recovered);
        let mut listeners = self.clients.bind(self.shards)?;
        if let Some(first) = listeners.first() {
            self.ports
                .extend(first.iter().map(|l| self.clients.port(l)));
            self.clients.note_bound(first);
            self.bound = first.iter().map(|l| self.clients.bound(l)).collect();
            self.client_addresses = self.advertised();
        }
        let loop_config = self.loop_config();
        let pool = PasswordCheckPool::start(machine::cpus()).map_err(io_error("login threads"))?;
        let mailboxes = self.threads.mailboxes();
        let parts = RecoveredShard::split(recovered, self.shards);
        for ((index, part), mailbox) in (0u16..).zip(parts).zip(&mailboxes) {
            let checks = pool.for_shard(mailbox.clone());
            let identification = self.identities.clone().map(|service| {
                let start = identification_for_shard(service, mailbox.clone());
                (login_backends(&self.config), start)
            });
            let config = ShardConfig {
                tier: tier.clone(),
                ..self.shard_config(index, founding.clone())
            };
            let (make, disk) = (self.make_shard.clone(), self.data.disk());
            let clock = self.clock.clone();
            let audit = self.audit.as_ref().map(AuditLog::sink);
            let spans = self.telemetry.spans();
            let own = listeners.pop().unwrap_or_default();
            self.threads
                .start_shard(index, own, loop_config.clone(), move || {
                    make(ShardMaterial {
                        config,
                        recovered: part,
                        disk,
                        checks,
                        identification,
                        audit,
                        spans,
                        now: clock.now(),
                        wall: clock.wall(),
                    })
                })
                .map_err(io_error("shard thread"))?;
        }
        if let Some(first) = mailboxes.first() {
            self.door.open(first.clone());
        }
        Ok(Arc::new(Alarms::new(mailboxes)))
    }

    /// Each shard's share of the node's limits.
    fn loop_config(&self) -> reactor::LoopConfig {
        let limits = &self.config.limits;
        let shards = usize::from(self.shards);
        let descriptors = env::real::descriptor_limit().unwrap_or_else(|error| {
            tracing::warn!(event = "node.descriptors_unknown", %error);
            u64::MAX
        });
        let client_descriptors = client_descriptors(descriptors);
        let queue_descriptors = queue_descriptors(descriptors);
        self.data.open_files().set_bound(queue_descriptors);
        tracing::info!(
            event = "node.descriptors",
            limit = descriptors,
            for_clients = client_descriptors,
            for_queues = queue_descriptors
        );
        let connections = limits.max_connections.div_ceil(shards);
        self.connection_limit.store(connections, Ordering::Relaxed);
        reactor::LoopConfig {
            max_connections: self.connection_limit.clone(),
            accepts_per_turn: limits.accepts_per_turn,
            accepts_per_second: limits.accepts_per_second.div_ceil(u32::from(self.shards)),
            tls_handshake: limits.handshake_timeout,
            accept_pause_at: (client_descriptors / shards).max(1),
            max_partial: self.clients.largest_frame() + (64 << 10),
            outbox_limit: outbox_limit(limits),
            ..reactor::LoopConfig::default()
        }
    }

    fn shard_config(&mut self, index: u16, founding: Option<Founding>) -> ShardConfig {
        let identity = self.data.identity();
        ShardConfig {
            node: identity.node,
            incarnation: identity.incarnation,
            name: self.name.as_str().into(),
            address: self.address.as_str().into(),
            shards: self.shards,
            index,
            founding,
            seed: self.rng.next_u64(),
            budget: self.budget.clone(),
            placement: shard::Placement {
                zone: self.config.cluster.zone.as_str().into(),
                target_group_size: self.config.target_group_size,
            },
            protocols: self.clients.protocols().clone(),
            program: self.version,
            client_addresses: self.client_addresses.clone(),
            machine: crate::machine::boot_id(&mut self.rng),
            groups: group_limits(&self.config.limits),
            consumer_timeout: self.consumer_timeout.clone(),
            tier: None,
            restrictions: self.config.restrictions.clone(),
            resources: shard::ResourceMeter(Some({
                let last_look = self.last_look.clone();
                Arc::new(move || last_look.resources())
            })),
            confirms: self.threads.confirms_of(index),
            deliveries: self.threads.deliveries_of(index),
        }
    }

    /// The object store for sealed segments of streams. The id of the cluster is part of all keys, so that another cluster
    /// with the same bucket and prefix never takes the segments for its own.
    fn tier(&self, cluster: &ClusterRecord) -> Result<Option<stream_tier::TierConfig>, NodeError> {
        let tiered = &self.config.tiered;
        if !tiered.is_on() {
            return Ok(None);
        }
        let store = s3_store::S3Store::new(&tiered.s3).map_err(NodeError::ObjectStore)?;
        let prefix = format!("{}{}/", tiered.prefix, id_text(cluster.id));
        Ok(Some(stream_tier::TierConfig {
            remote: Arc::new(stream_tier::Remote::new(Box::new(store), &prefix)),
            local: stream_log::Retention {
                max_bytes: tiered.local_max_bytes,
                max_age: tiered.local_max_age,
            },
        }))
    }

    fn founding(&mut self, cluster: &ClusterRecord) -> Result<Option<Founding>, NodeError> {
        let me = self.data.identity().node;
        if cluster.founders.iter().all(|f| f.id != me) {
            return Ok(None);
        }
        let mut salt = [0; auth::SALT_LEN];
        env::real::fill_random(&mut salt).map_err(io_error("random numbers"))?;
        let password = auth::hash(self.config.default_pass.as_bytes(), &salt)
            .map_err(|e| NodeError::Password(e.to_string()))?;
        let record = |f: &Founder| NodeRecord {
            id: f.id,
            name: f.name.as_str().into(),
            address: f.address.as_str().into(),
            voter: true,
            maintenance: false,
        };
        Ok(Some(Founding {
            cluster: id_text(cluster.id).into(),
            nodes: cluster.founders.iter().map(record).collect(),
            user: UserRecord {
                name: self.config.default_user.as_str().into(),
                password: Some(password),
                tags: vec!["administrator".into()],
                limits: Vec::new(),
            },
            default_queue_type: self.config.default_queue_type,
            features: cluster.features.clone(),
        }))
    }

    /// Serves, and checks disk, memory and certificates periodically.
    fn watch_until_stopped(
        &mut self,
        inbox: &Receiver<ThreadNotification>,
        alarms: &Alarms,
        cluster: &ClusterRecord,
    ) -> Result<(), NodeError> {
        let certificates = self.clients.certificates();
        let (disk, last_look) = (self.data.disk(), self.last_look.clone());
        let files = self.data.open_files();
        let writes = self.data.write_budget();
        let notices = self.notices.clone();
        writes.on_spent(move || drop(notices.send(ThreadNotification::DiskWritten)));
        let mut watch =
            ResourceMonitor::new(disk, files, writes, &self.config, certificates, last_look);
        let mut not_ready = NotReadyLog::new(self.clock.now());
        let mut ready = false;
        loop {
            watch.look(alarms);
            let timeout = match ready {
                true => watch::INTERVAL,
                false => {
                    self.ask_readiness();
                    READY_POLL
                }
            };
            match inbox.recv_timeout(timeout) {
                Ok(ThreadNotification::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(ThreadNotification::Ready) if !ready => {
                    ready = true;
                    self.write_ready_file()?;
                    let cluster = id_text(cluster.id);
                    tracing::info!(
                        event = "node.ready",
                        name = self.name,
                        cluster,
                        listeners = listener_text::listeners(&self.ports),
                        web_ui = listener_text::web_ui(&self.ports)
                    );
                }
                // Handled by the next iteration.
                Ok(ThreadNotification::DiskWritten) => {}
                Ok(ThreadNotification::NotReady(reason)) if !ready => {
                    not_ready.note(self.clock.now(), &reason)
                }
                Ok(ThreadNotification::DiskFull(full)) => alarms.set(AlarmCause::LogFull, full),
                Ok(ThreadNotification::MemoryWatermark(share)) => watch.set_memory_watermark(share),
                Ok(ThreadNotification::DiskFreeLimit(bytes)) => watch.set_disk_free_limit(bytes),
                Ok(ThreadNotification::Reloaded(config)) => self.apply(*config, &mut watch),
                Ok(notice) => self.check_fatal(notice)?,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Requests a [`ThreadNotification::Ready`], or a [`ThreadNotification::NotReady`] if the node does not serve clients
    /// yet.
    fn ask_readiness(&self) {
        let notices = self.notices.clone();
        let reply = Box::new(move |readiness| {
            let _ = notices.send(match readiness {
                Readiness::Ready => ThreadNotification::Ready,
                Readiness::NotReady(reason) => ThreadNotification::NotReady(reason),
                Readiness::Draining => ThreadNotification::NotReady("draining".to_owned()),
            });
        });
        self.door.ask(ControlRequest::Readiness { reply });
    }

    /// Closes client connections and transfers leaders, for at most the shutdown timeout.
    fn drain(&self, inbox: &Receiver<ThreadNotification>) -> Result<(), NodeError> {
        tracing::info!(event = "node.draining", name = self.name);
        self.door.stopping();
        self.threads.shut_down_shards();
        let until = self.clock.now() + self.config.shutdown_timeout;
        let mut left: BTreeSet<u16> = (0..self.shards).collect();
        while !left.is_empty() {
            let remaining: Duration = until.since(self.clock.now());
            match inbox.recv_timeout(remaining) {
                Ok(ThreadNotification::LoopReport(shard, LoopReport::Drained)) => {
                    left.remove(&shard);
                }
                Ok(notice) => self.check_fatal(notice)?,
                Err(RecvTimeoutError::Timeout) if until > self.clock.now() => {}
                Err(_) => {
                    tracing::warn!(event = "node.drain_timeout", shards = ?left);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn write_ready_file(&self) -> Result<(), NodeError> {
        let Some(path) = &self.ready_file else {
            return Ok(());
        };
        let mut ports = serde_json::Map::new();
        let mut addresses = serde_json::Map::new();
        for (name, address) in &self.ports {
            ports.insert((*name).to_owned(), address.port().into());
            addresses.insert((*name).to_owned(), address.to_string().into());
        }
        let text = serde_json::json!({
            "node": self.name,
            "pid": std::process::id(),
            "ports": ports,
            "addresses": addresses,
        });
        write_atomically(path, &format!("{text}\n")).map_err(io_error("ready file"))
    }
}

/// File descriptors reserved for the log, queues, Raft groups, peers and the HTTP API. A node that
/// cannot open its next log file must stop.
const RESERVED_DESCRIPTORS: u64 = 512;

/// Maximum number of open files of classic queues between two writes. If more queues are written
/// to, their files are reopened for each write.
fn queue_descriptors(limit: u64) -> u64 {
    (limit / 8).clamp(16, 4096)
}

/// Maximum number of client connections by descriptors; at least half of the limit.
fn client_descriptors(limit: u64) -> usize {
    let left = limit.saturating_sub(RESERVED_DESCRIPTORS + queue_descriptors(limit));
    let left = left.max(limit / 2);
    usize::try_from(left).unwrap_or(usize::MAX)
}

/// Maximum number of client connections of a process with this descriptor limit.
pub(crate) fn max_connections_of(config: &Config, descriptors: Option<u64>) -> u64 {
    let room = client_descriptors(descriptors.unwrap_or(u64::MAX));
    room.min(config.limits.max_connections) as u64
}

/// Replaces a file atomically.
fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

fn log_start(identity: &Identity, version: Version, count: ShardCount, groups: usize) {
    tracing::info!(
        event = "node.starting",
        version = version.version,
        name = identity.name,
        node = id_text(identity.node.0),
        incarnation = identity.incarnation.0,
        shards = count.shards,
        shards_source = count.source.text(),
        groups
    );
}

/// Binds the listener for other nodes; returns it with the address under which they reach this
/// node.
fn bind_cluster(config: &Config) -> Result<(Option<TcpListener>, String), NodeError> {
    let listener = addresses::bind_exclusive("cluster", config.cluster.listener)?;
    let bound = listener.as_ref().map(TcpListener::local_addr).transpose();
    let bound = bound.map_err(io_error("cluster listener"))?;
    let address = addresses::advertised(config, bound)?;
    Ok((listener, address))
}

/// A node without peers forms its own cluster.
fn form_single_node_cluster(
    data: &DataDir,
    name: &str,
    address: &str,
    version: Version,
    rng: &mut SeededRng,
) -> Result<(), NodeError> {
    let record = ClusterRecord {
        id: random_nonzero(rng),
        founders: vec![Founder {
            id: data.identity().node,
            name: name.to_owned(),
            address: address.to_owned(),
        }],
        features: version.facts().features,
    };
    data.persist()(&record).map_err(NodeError::Fatal)
}

fn peering_config(
    config: &Config,
    identity: &Identity,
    (name, address): (&str, &str),
    shards: u16,
    seed: u64,
) -> PeeringConfig {
    PeeringConfig {
        cluster_name: config.cluster.name.clone(),
        node: identity.node,
        incarnation: identity.incarnation,
        name: name.to_owned(),
        address: address.to_owned(),
        cluster: identity.cluster.clone(),
        peers: config.cluster.peers.clone(),
        initial_size: config.cluster.initial_size,
        heartbeat: config.cluster.heartbeat,
        timeout: config.cluster.peer_timeout,
        shards,
        version: Version::default(),
        seed,
    }
}

/// Starts the external authentication backends, if there are any.
fn start_identities(
    config: &Config,
    clock: Arc<RealClock>,
    rng: &mut SeededRng,
) -> Result<Option<Arc<IdentityService>>, NodeError> {
    if !config.backends.has_external() {
        return Ok(None);
    }
    let mut key = [0; 32];
    for part in key.chunks_exact_mut(8) {
        part.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    let service = IdentityService::start(&config.backends, clock, key);
    let service = service.map_err(io_error("auth_backends"))?;
    Ok(Some(Arc::new(service)))
}

fn login_backends(config: &Config) -> Arc<[LoginBackend]> {
    let backends = config.backends.backends().into_iter().enumerate();
    let for_shard = backends.map(|(index, backend)| match backend.is_internal() {
        true => LoginBackend::Internal,
        false => LoginBackend::External(index),
    });
    for_shard.collect()
}

/// Parts of a node that the control plane shows.
type ShownParts<'a> = (
    &'a ClientListeners,
    Arc<LastDiskCheck>,
    (Option<AuditSink>, Arc<NodeTimings>, &'a TelemetryExport),
);

/// Starts the control plane's thread. Returns its listeners for the ready file.
fn start_control(
    config: &Config,
    (node, name, version): (NodeId, &str, Version),
    (clients, last_look, (audit, timings, telemetry)): ShownParts<'_>,
    (serve, identities): (ControlServer, Option<Arc<IdentityService>>),
    door: &Arc<ControlGateway>,
    notices: &Sender<ThreadNotification>,
) -> Result<Vec<(&'static str, SocketAddr)>, NodeError> {
    let management = addresses::bind_exclusive("management", config.management)?;
    let secure = addresses::bind_exclusive("management/ssl", config.management_tls)?;
    let prometheus = addresses::bind_exclusive("prometheus", config.prometheus)?;
    let prometheus_secure = addresses::bind_exclusive("prometheus/ssl", config.prometheus_tls)?;
    let operator = addresses::bind_exclusive("operator/ssl", config.operator.listener)?;
    let probes = addresses::bind_exclusive("probes", config.probes)?;
    let mut ports = Vec::new();
    for (name, listener) in [
        ("management", &management),
        ("management/ssl", &secure),
        ("prometheus", &prometheus),
        ("prometheus/ssl", &prometheus_secure),
        ("operator/ssl", &operator),
        ("probes", &probes),
    ] {
        if let Some(listener) = listener {
            ports.push((name, listener.local_addr().map_err(io_error("listener"))?));
        }
    }
    let door = door.clone();
    let (watermark, limit) = (notices.clone(), notices.clone());
    let listeners = [
        ("http", listening_port(management.as_ref())),
        ("https", listening_port(secure.as_ref())),
        ("http/prometheus", listening_port(prometheus.as_ref())),
        (
            "https/prometheus",
            listening_port(prometheus_secure.as_ref()),
        ),
        ("https/operator", listening_port(operator.as_ref())),
        ("http/probes", listening_port(probes.as_ref())),
    ];
    let parts = ControlParts {
        node,
        version,
        node_name: name.to_owned(),
        listeners: clients
            .configured()
            .chain(listeners)
            .filter_map(|(name, port)| Some((name.to_owned(), port?)))
            .collect(),
        bound_ports: clients.bound_ports(),
        backends: config.backends.backends(),
        identities,
        loopback_users: config.loopback_users.clone(),
        default_queue_type: config.default_queue_type,
        max_message_size: config.limits.max_message_size,
        permitted: config.restrictions.permitted.clone(),
        certificates_expire: clients.expiry(),
        cluster_name: config.cluster.name.clone(),
        initial_nodes: config.cluster.initial_nodes(),
        management,
        management_tls: secure.zip(clients.management()),
        prometheus_tls: prometheus_secure.zip(clients.prometheus()),
        operator: operator.zip(clients.operator()).map(|(listener, tls)| {
            let name = config.operator.certificate_name.as_str();
            (listener, tls, name.into())
        }),
        prometheus,
        probes,
        memory_limit: machine::memory_limit(),
        audit,
        timings,
        traces: telemetry.spans().is_some(),
        metric_export: telemetry.metrics(),
        export_counters: telemetry.counters(),
        control: Arc::new(move |request| door.ask(request)),
        resources: Arc::new(move || last_look.resources()),
        set_memory_watermark: Arc::new(move |share| {
            // The receiver is gone if the node is stopping.
            let _ = watermark.send(ThreadNotification::MemoryWatermark(share));
        }),
        set_disk_free_limit: Arc::new(move |bytes| {
            let _ = limit.send(ThreadNotification::DiskFreeLimit(bytes));
        }),
    };
    let notices = notices.clone();
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            if let Err(error) = serve(parts) {
                let _ = notices.send(ThreadNotification::Died(format!("control plane: {error}")));
            }
        })
        .map_err(io_error("control thread"))?;
    Ok(ports)
}

/// Buffer space in addition to one message of maximum size.
const BUFFER_BESIDES_MESSAGE: usize = 64 << 20;
/// Assumed minimum throughput of a peer link in bytes per second. While a follower receives the
/// largest message it hears nothing else from its leader, and must not start an election.
const MIN_LINK_THROUGHPUT: u64 = 64 << 20;

fn with_largest_message(limits: &Limits) -> usize {
    limits.max_message_size as usize + BUFFER_BESIDES_MESSAGE
}

fn peer_buffer(limits: &Limits) -> usize {
    limits.peer_buffer.max(with_largest_message(limits))
}

/// Maximum number of bytes buffered for one client's socket.
fn outbox_limit(limits: &Limits) -> usize {
    let defaults = reactor::LoopConfig::default().outbox_limit;
    defaults.max(with_largest_message(limits))
}

fn group_limits(limits: &Limits) -> consensus::HostLimits {
    let defaults = consensus::HostLimits::default();
    let transfer_ms = u64::from(limits.max_message_size) * 1000 / MIN_LINK_THROUGHPUT;
    let tick_ms = (defaults.tick.as_millis() as u64).max(1);
    let ticks = usize::try_from(transfer_ms.div_ceil(tick_ms)).unwrap_or(usize::MAX);
    consensus::HostLimits {
        election_ticks: defaults.election_ticks.max(ticks),
        ..defaults
    }
}

fn listening_port(listener: Option<&TcpListener>) -> Option<u16> {
    Some(listener?.local_addr().ok()?.port())
}
