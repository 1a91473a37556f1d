//! A node's life: start, form or join, serve, drain, end.

use crate::addresses::{self, AddressError};
use crate::alarms::{Alarms, Cause};
use crate::checks::CheckPool;
use crate::clients::{Clients, Registration};
use crate::config::{Config, Limits};
use crate::control_door::ControlDoor;
use crate::data_dir::{DataDir, DataDirError};
use crate::identity::{ClusterRecord, Founder, Identity, id_text, nonzero};
use crate::link_tls::{Tls, TlsError};
use crate::links::LinkStatus;
use crate::machine;
use crate::not_ready::NotReadyLog;
use crate::peering::PeeringConfig;
use crate::threads::{Notice, Threads, Wiring};
use crate::watch::{self, LastLook, Watch};
use control::{ControlRequest, NodeResources, Readiness};
use env::real::RealClock;
use env::{Clock, Disk, NodeId, Rng, SeededRng, Time, WallTime};
use metadata::features::Version;
use metadata::{NodeRecord, QueueType, UserRecord};
use reactor::Report;
use shard::{Founding, RecoveredShard, ShardConfig, ShardDriver, StartCheck};
use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use wal::Recovered;

/// Makes a shard on its thread, which may take as long as reading its data back takes.
pub type MakeShard =
    Arc<dyn Fn(ShardMaterial) -> Result<Box<dyn ShardDriver>, String> + Send + Sync>;

/// What a shard is made of.
pub struct ShardMaterial {
    pub config: ShardConfig,
    pub recovered: RecoveredShard,
    pub disk: Arc<dyn Disk>,
    /// For `Shard::check_elsewhere`.
    pub checks: StartCheck,
    pub now: Time,
    pub wall: WallTime,
}

/// Serves the HTTP API and metrics on a thread of its own, until the process ends.
pub type ServeControl = Box<dyn FnOnce(ControlParts) -> Result<(), String> + Send>;

/// What the control plane is given.
pub struct ControlParts {
    pub node: NodeId,
    pub node_name: String,
    pub cluster_name: String,
    pub program: Version,
    /// Protocol and configured port of each listener.
    pub listeners: Vec<(String, u16)>,
    /// Users who may log in over loopback only.
    pub loopback_users: Vec<String>,
    /// Of new vhosts that do not say theirs; None: classic.
    pub default_queue_type: Option<QueueType>,
    /// How long clients may keep a delivery where the queue does not say; None: for ever.
    pub consumer_timeout_ms: Option<u64>,
    /// When the clients' listeners' certificates end, in seconds since 1970; None without TLS.
    pub certificates_expire: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    pub management: Option<TcpListener>,
    /// The same with TLS.
    pub management_tls: Option<(TcpListener, Arc<tls::Server>)>,
    pub prometheus_tls: Option<(TcpListener, Arc<tls::Server>)>,
    /// The HTTP API for the operator, and the name in its certificate.
    pub operator: Option<(TcpListener, Arc<tls::Server>, Arc<str>)>,
    pub prometheus: Option<TcpListener>,
    /// For `/livez` and `/readyz` alone.
    pub probes: Option<TcpListener>,
    /// Bytes of memory that the process may use, where known.
    pub memory_limit: Option<u64>,
    /// To shard 0; see [`ControlDoor::ask`].
    pub control: Arc<dyn Fn(ControlRequest) + Send + Sync>,
    /// What the node uses of its machine, as it was seen last.
    pub resources: Arc<dyn Fn() -> NodeResources + Send + Sync>,
    /// Sets the share of memory from which on the alarm is on (`vm_memory_high_watermark.relative`), until the node ends.
    pub set_memory_watermark: Arc<dyn Fn(f64) + Send + Sync>,
    /// Sets the free disk space below which the alarm is on (`disk_free_limit.absolute`), until the node ends.
    pub set_disk_free_limit: Arc<dyn Fn(u64) + Send + Sync>,
}

pub struct NodeParts {
    pub config: Config,
    /// Protocols of clients, in the order of their ids.
    pub protocols: Vec<Registration>,
    /// What runs the node.
    pub program: Version,
    pub make_shard: MakeShard,
    /// None: no HTTP on this node.
    pub serve_control: Option<ServeControl>,
    /// Gets the ports as JSON when the node serves.
    pub ready_file: Option<PathBuf>,
}

/// Why a node could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("ssl_options, management.ssl, prometheus.ssl or operator.ssl: {0}")]
    ClientTls(#[from] tls::FileError),
    #[error("{what}: {error}")]
    Io {
        what: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("default_pass: {0}")]
    Password(String),
    #[error("{0}")]
    Fatal(String),
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |error| NodeError::Io { what, error }
}

/// Runs a node until it is told to stop (a notice of [`Notice::Stop`] through `notices`), or has to.
pub fn run(parts: NodeParts, channel: (Sender<Notice>, Receiver<Notice>)) -> Result<(), NodeError> {
    let (notices, inbox) = channel;
    let node = Node::prepare(parts, notices)?;
    node.live(&inbox)
}

/// How often a node that has just started looks whether it serves.
const READY_POLL: Duration = Duration::from_millis(25);

struct Node {
    config: Config,
    program: Version,
    notices: Sender<Notice>,
    name: String,
    address: String,
    shards: u16,
    clock: Arc<RealClock>,
    rng: SeededRng,
    budget: shard::MemoryBudget,
    data: DataDir,
    recovered: Recovered,
    threads: Threads,
    door: Arc<ControlDoor>,
    make_shard: MakeShard,
    ready_file: Option<PathBuf>,
    /// For the ready file.
    ports: Vec<(&'static str, SocketAddr)>,
    clients: Clients,
    seen: Arc<LastLook>,
}

impl Node {
    /// Everything up to the point where the node needs a cluster.
    fn prepare(parts: NodeParts, notices: Sender<Notice>) -> Result<Node, NodeError> {
        let config = parts.config;
        addresses::check_plain(&config)?;
        let tls = config.cluster.auth.as_ref().map(Tls::load).transpose()?;
        let clients = Clients::new(&config, parts.protocols)?;
        let name = addresses::node_name(&config)?;
        let mut rng = env::real::seeded_rng().map_err(io_error("random numbers"))?;
        let shards = if config.shards == 0 {
            machine::cpus().min(256)
        } else {
            config.shards
        };

        // Ports first: a port in use is told before the directory is touched.
        clients.check_ports()?;
        let (cluster, address) = bind_cluster(&config)?;
        let mut ports = Vec::new();
        if let Some(listener) = &cluster {
            let address = listener.local_addr();
            ports.push(("cluster", address.map_err(io_error("cluster listener"))?));
        }
        let data = DataDir::open(&config.data_dir, &name, &mut rng)?;
        let status = Arc::new(LinkStatus::default());
        let door = Arc::new(ControlDoor::new(status.clone()));
        let seen = Arc::<LastLook>::default();
        if let Some(serve) = parts.serve_control {
            // Before the log is read back, so that probes are answered meanwhile.
            let me = (data.identity().node, name.as_str(), parts.program);
            let shown = (&clients, seen.clone());
            ports.extend(start_control(&config, me, shown, serve, &door, &notices)?);
        }
        let (wal, recovered) = data.open_log(&config, rng.next_u64())?;
        if config.cluster.peers.is_empty() && data.identity().cluster.is_none() {
            form_alone(&data, &name, &address, parts.program, &mut rng)?;
        }
        let identity = data.identity();
        log_start(&identity, parts.program, shards, recovered.groups.len());
        let clock = Arc::new(RealClock::new());
        let wiring = Wiring {
            shards,
            clock: clock.clone(),
            notices: notices.clone(),
            status,
            wal,
            newest_file: recovered.files.last().copied().unwrap_or(0),
            disk: data.disk(),
            directory: config.data_dir.display().to_string(),
            tls,
            listener: cluster,
            peering: PeeringConfig {
                shards,
                program: parts.program,
                ..peering_config(&config, &identity, &name, &address, rng.next_u64())
            },
            persist: Box::new(data.persist()),
            peer_buffer: peer_buffer(&config.limits),
        };
        let threads = Threads::start(wiring).map_err(io_error("threads"))?;
        Ok(Node {
            budget: config.memory_budget.of(machine::memory_limit()),
            config,
            program: parts.program,
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
            ready_file: parts.ready_file,
            ports,
            clients,
            seen,
        })
    }

    fn live(mut self, inbox: &Receiver<Notice>) -> Result<(), NodeError> {
        let Some(cluster) = self.wait_for_cluster(inbox)? else {
            self.threads.stop(Duration::ZERO);
            return Ok(());
        };
        let alarms = self.start_shards(&cluster)?;
        self.watch_until_stopped(inbox, &alarms, &cluster)?;
        self.drain(inbox)?;
        self.threads.stop(self.config.shutdown_timeout);
        if let Some(file) = &self.ready_file {
            // Left behind it would tell of ports that nobody serves; when it cannot be removed nothing else is wrong.
            let _ = std::fs::remove_file(file);
        }
        tracing::info!(event = "node.stopped", name = self.name);
        Ok(())
    }

    /// None: told to stop before there was one.
    fn wait_for_cluster(
        &self,
        inbox: &Receiver<Notice>,
    ) -> Result<Option<ClusterRecord>, NodeError> {
        loop {
            if let Some(cluster) = self.data.identity().cluster {
                return Ok(Some(cluster));
            }
            match inbox.recv() {
                Ok(Notice::Stop) | Err(_) => return Ok(None),
                Ok(Notice::Adopted) => {}
                Ok(session_event) => self.ordinary(session_event)?,
            }
        }
    }

    /// Notices that end the node at any time.
    fn ordinary(&self, session_event: Notice) -> Result<(), NodeError> {
        match session_event {
            Notice::Report(_, Report::Fatal(text)) | Notice::Died(text) => {
                Err(NodeError::Fatal(text))
            }
            Notice::DiskFull(_)
            | Notice::DiskWritten
            | Notice::NotReady(_)
            | Notice::MemoryWatermark(_)
            | Notice::DiskFreeLimit(_)
            | Notice::Ready
            | Notice::Adopted
            | Notice::Stop
            | Notice::Report(_, Report::Drained) => Ok(()),
        }
    }

    fn start_shards(&mut self, cluster: &ClusterRecord) -> Result<Arc<Alarms>, NodeError> {
        let founding = self.founding(cluster)?;
        let recovered = std::mem::take(&mut self.recovered);
        let mut listeners = self.clients.bind(self.shards)?;
        if let Some(first) = listeners.first() {
            self.ports
                .extend(first.iter().map(|l| self.clients.port(l)));
        }
        let loop_config = self.loop_config();
        let pool = CheckPool::start(machine::cpus()).map_err(io_error("login threads"))?;
        let mailboxes = self.threads.mailboxes();
        let parts = RecoveredShard::split(recovered, self.shards);
        for ((index, part), mailbox) in (0u16..).zip(parts).zip(&mailboxes) {
            let checks = pool.for_shard(mailbox.clone());
            let config = self.shard_config(index, founding.clone());
            let (make, disk) = (self.make_shard.clone(), self.data.disk());
            let clock = self.clock.clone();
            let own = listeners.pop().unwrap_or_default();
            self.threads
                .start_shard(index, own, loop_config.clone(), move || {
                    make(ShardMaterial {
                        config,
                        recovered: part,
                        disk,
                        checks,
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

    /// Each shard's part of what the node allows.
    fn loop_config(&self) -> reactor::LoopConfig {
        let limits = &self.config.limits;
        let shards = usize::from(self.shards);
        let descriptors = env::real::descriptor_limit().unwrap_or_else(|error| {
            tracing::warn!(event = "node.descriptors_unknown", %error);
            u64::MAX
        });
        let for_clients = for_clients(descriptors);
        let for_queues = for_queues(descriptors);
        self.data.open_files().set_bound(for_queues);
        tracing::info!(
            event = "node.descriptors",
            limit = descriptors,
            for_clients,
            for_queues
        );
        reactor::LoopConfig {
            max_connections: limits.max_connections.div_ceil(shards),
            accepts_per_turn: limits.accepts_per_turn,
            accepts_per_second: limits.accepts_per_second.div_ceil(u32::from(self.shards)),
            tls_handshake: limits.handshake_timeout,
            accept_pause_at: (for_clients / shards).max(1),
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
            mqtt: shard::MqttRouting {
                exchange: self.config.mqtt.exchange.as_str().into(),
                sys_interval: self.config.mqtt.sys_interval,
            },
            program: self.program,
            groups: group_limits(&self.config.limits),
        }
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

    /// Serves, looking at disk and memory now and then.
    fn watch_until_stopped(
        &mut self,
        inbox: &Receiver<Notice>,
        alarms: &Alarms,
        cluster: &ClusterRecord,
    ) -> Result<(), NodeError> {
        let certificates = self.clients.certificates();
        let (disk, seen) = (self.data.disk(), self.seen.clone());
        let files = self.data.open_files();
        let writes = self.data.write_budget();
        let notices = self.notices.clone();
        writes.on_spent(move || drop(notices.send(Notice::DiskWritten)));
        let mut watch = Watch::new(disk, files, writes, &self.config, certificates, seen);
        let mut not_ready = NotReadyLog::new(self.clock.now());
        let mut ready = false;
        loop {
            watch.look(alarms);
            let patience = match ready {
                true => watch::EVERY,
                false => {
                    self.ask_readiness();
                    READY_POLL
                }
            };
            match inbox.recv_timeout(patience) {
                Ok(Notice::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(Notice::Ready) if !ready => {
                    ready = true;
                    self.write_ready_file()?;
                    let cluster = id_text(cluster.id);
                    tracing::info!(event = "node.ready", name = self.name, cluster);
                }
                // Looked at when the loop begins anew.
                Ok(Notice::DiskWritten) => {}
                Ok(Notice::NotReady(reason)) if !ready => not_ready.note(self.clock.now(), &reason),
                Ok(Notice::DiskFull(full)) => alarms.set(Cause::LogFull, full),
                Ok(Notice::MemoryWatermark(share)) => watch.set_memory_watermark(share),
                Ok(Notice::DiskFreeLimit(bytes)) => watch.set_disk_free_limit(bytes),
                Ok(session_event) => self.ordinary(session_event)?,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// A [`Notice::Ready`] follows if the node serves by now, or a [`Notice::NotReady`].
    fn ask_readiness(&self) {
        let notices = self.notices.clone();
        let reply = Box::new(move |readiness| {
            let _ = notices.send(match readiness {
                Readiness::Ready => Notice::Ready,
                Readiness::NotReady(reason) => Notice::NotReady(reason),
            });
        });
        self.door.ask(ControlRequest::Readiness { reply });
    }

    /// Clients are told and leaders move away; at the latest after the timeout it goes on.
    fn drain(&self, inbox: &Receiver<Notice>) -> Result<(), NodeError> {
        tracing::info!(event = "node.draining", name = self.name);
        self.door.stopping();
        self.threads.shut_down_shards();
        let until = self.clock.now() + self.config.shutdown_timeout;
        let mut left: BTreeSet<u16> = (0..self.shards).collect();
        while !left.is_empty() {
            let remaining: Duration = until.since(self.clock.now());
            match inbox.recv_timeout(remaining) {
                Ok(Notice::Report(shard, Report::Drained)) => drop(left.remove(&shard)),
                Ok(session_event) => self.ordinary(session_event)?,
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
        for (what, address) in &self.ports {
            ports.insert((*what).to_owned(), address.port().into());
            addresses.insert((*what).to_owned(), address.to_string().into());
        }
        let text = serde_json::json!({
            "node": self.name,
            "pid": std::process::id(),
            "ports": ports,
            "addresses": addresses,
        });
        write_whole(path, &format!("{text}\n")).map_err(io_error("ready file"))
    }
}

/// Descriptors that clients do not get: files of the log, of queues and of groups, peers, the HTTP API. A node whose log
/// cannot open its next file must end.
const KEEP_DESCRIPTORS: u64 = 512;

/// How many files of classic queues may stay open between two writes, as part of a process's descriptors. With more
/// queues that are written to, files are opened anew for each write.
fn for_queues(limit: u64) -> u64 {
    (limit / 8).clamp(16, 4096)
}

/// How many of a process's descriptors may be client connections; at least half of them.
fn for_clients(limit: u64) -> usize {
    let left = limit.saturating_sub(KEEP_DESCRIPTORS + for_queues(limit));
    let left = left.max(limit / 2);
    usize::try_from(left).unwrap_or(usize::MAX)
}

/// Client connections that a process with so many descriptors takes.
pub(crate) fn most_connections(config: &Config, descriptors: Option<u64>) -> u64 {
    let room = for_clients(descriptors.unwrap_or(u64::MAX));
    room.min(config.limits.max_connections) as u64
}

/// Readers see all of it or nothing.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

fn log_start(identity: &Identity, program: Version, shards: u16, groups: usize) {
    tracing::info!(
        event = "node.starting",
        version = program.version,
        name = identity.name,
        node = id_text(identity.node.0),
        incarnation = identity.incarnation.0,
        shards,
        groups
    );
}

/// The listener for other nodes, and the address under which they reach it.
fn bind_cluster(config: &Config) -> Result<(Option<TcpListener>, String), NodeError> {
    let listener = addresses::bind_alone("cluster", config.cluster.listener)?;
    let bound = listener.as_ref().map(TcpListener::local_addr).transpose();
    let bound = bound.map_err(io_error("cluster listener"))?;
    let address = addresses::advertised(config, bound)?;
    Ok((listener, address))
}

/// A node without peers is its own cluster.
fn form_alone(
    data: &DataDir,
    name: &str,
    address: &str,
    program: Version,
    rng: &mut SeededRng,
) -> Result<(), NodeError> {
    let record = ClusterRecord {
        id: nonzero(rng),
        founders: vec![Founder {
            id: data.identity().node,
            name: name.to_owned(),
            address: address.to_owned(),
        }],
        features: program.facts().features,
    };
    data.persist()(&record).map_err(NodeError::Fatal)
}

fn peering_config(
    config: &Config,
    identity: &Identity,
    name: &str,
    address: &str,
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
        shards: config.shards,
        program: Version::default(),
        seed,
    }
}

/// The control plane's thread. Where it listens is returned for the ready file.
fn start_control(
    config: &Config,
    (node, name, program): (NodeId, &str, Version),
    (clients, seen): (&Clients, Arc<LastLook>),
    serve: ServeControl,
    door: &Arc<ControlDoor>,
    notices: &Sender<Notice>,
) -> Result<Vec<(&'static str, SocketAddr)>, NodeError> {
    let management = addresses::bind_alone("management", config.management)?;
    let secure = addresses::bind_alone("management/ssl", config.management_tls)?;
    let prometheus = addresses::bind_alone("prometheus", config.prometheus)?;
    let watched = addresses::bind_alone("prometheus/ssl", config.prometheus_tls)?;
    let operator = addresses::bind_alone("operator/ssl", config.operator.listener)?;
    let probes = addresses::bind_alone("probes", config.probes)?;
    let mut ports = Vec::new();
    for (what, listener) in [
        ("management", &management),
        ("management/ssl", &secure),
        ("prometheus", &prometheus),
        ("prometheus/ssl", &watched),
        ("operator/ssl", &operator),
        ("probes", &probes),
    ] {
        if let Some(listener) = listener {
            ports.push((what, listener.local_addr().map_err(io_error("listener"))?));
        }
    }
    let door = door.clone();
    let (watermark, limit) = (notices.clone(), notices.clone());
    let listeners = [
        ("http", listening_port(management.as_ref())),
        ("https", listening_port(secure.as_ref())),
        ("http/prometheus", listening_port(prometheus.as_ref())),
        ("https/prometheus", listening_port(watched.as_ref())),
        ("https/operator", listening_port(operator.as_ref())),
        ("http/probes", listening_port(probes.as_ref())),
    ];
    let parts = ControlParts {
        node,
        program,
        node_name: name.to_owned(),
        listeners: clients
            .configured()
            .chain(listeners)
            .filter_map(|(what, port)| Some((what.to_owned(), port?)))
            .collect(),
        loopback_users: config.loopback_users.clone(),
        default_queue_type: config.default_queue_type,
        consumer_timeout_ms: config.limits.consumer_timeout_ms,
        certificates_expire: clients.expiry(),
        cluster_name: config.cluster.name.clone(),
        management,
        management_tls: secure.zip(clients.management()),
        prometheus_tls: watched.zip(clients.prometheus()),
        operator: operator.zip(clients.operator()).map(|(listener, tls)| {
            let name = config.operator.certificate_name.as_str();
            (listener, tls, name.into())
        }),
        prometheus,
        probes,
        memory_limit: machine::memory_limit(),
        control: Arc::new(move |request| door.ask(request)),
        resources: Arc::new(move || seen.resources()),
        set_memory_watermark: Arc::new(move |share| {
            // No receiver: the node is ending.
            let _ = watermark.send(Notice::MemoryWatermark(share));
        }),
        set_disk_free_limit: Arc::new(move |bytes| {
            let _ = limit.send(Notice::DiskFreeLimit(bytes));
        }),
    };
    let notices = notices.clone();
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            if let Err(error) = serve(parts) {
                let _ = notices.send(Notice::Died(format!("control plane: {error}")));
            }
        })
        .map_err(io_error("control thread"))?;
    Ok(ports)
}

/// Bytes that may wait besides one message of the largest size.
const BESIDES_A_MESSAGE: usize = 64 << 20;
/// A follower must be able to receive the largest message, during which it hears nothing else from its leader, before it
/// asks for votes: at this many bytes in a second.
const SLOWEST_LINK: u64 = 64 << 20;

fn with_a_message(limits: &Limits) -> usize {
    limits.max_message_size as usize + BESIDES_A_MESSAGE
}

fn peer_buffer(limits: &Limits) -> usize {
    limits.peer_buffer.max(with_a_message(limits))
}

/// What may wait for one client's socket.
fn outbox_limit(limits: &Limits) -> usize {
    let usual = reactor::LoopConfig::default().outbox_limit;
    usual.max(with_a_message(limits))
}

fn group_limits(limits: &Limits) -> consensus::Limits {
    let usual = consensus::Limits::default();
    let transfer_ms = u64::from(limits.max_message_size) * 1000 / SLOWEST_LINK;
    let tick_ms = (usual.tick.as_millis() as u64).max(1);
    let ticks = usize::try_from(transfer_ms.div_ceil(tick_ms)).unwrap_or(usize::MAX);
    consensus::Limits {
        election_ticks: usual.election_ticks.max(ticks),
        ..usual
    }
}

fn listening_port(listener: Option<&TcpListener>) -> Option<u16> {
    Some(listener?.local_addr().ok()?.port())
}
