//! A whole node as in production: its shards behind [`ShardDriver`], and the connections between them.
//!
//! It stands for the reactor, the log thread, the storage thread and the link thread. All input of a shard waits in its
//! inbox until the shard's next turn. A turn ticks the shard, passes the inbox to it, serves its connections and
//! carries out its effects.

use super::byte_stream::StreamPiece;
use super::shard_host::{Inbound, ShardHost};
use crate::process::{Action, Process};
use crate::world::Start;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use consensus::{JobId, JobResult, WalToken};
use control::{ControlRequest, MemberChange, MembershipRequest, NodeFacts};
use env::{Disk, Incarnation, NodeId, Rng, SeededRng, Time, WallTime};
use metadata::features::Version;
use metadata::{Change, ChangeError, ChangeResult, Name, NodeRecord, QueueId};
use session::{ProtocolId, Protocols};
use shard::{Effect, RecoveredShard, Route, Shard, ShardConfig, ShardDriver, shard_of};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// A request of a client or of the operator to a node.
#[derive(Clone, Debug)]
pub enum Request {
    /// Open a connection.
    Connect {
        /// Number of the connection, unique in the run.
        connection: u64,
        /// Protocol of the client.
        protocol: ProtocolId,
    },
    /// Bytes or the end of a connection.
    Piece {
        /// Number of the connection.
        connection: u64,
        /// Position of the piece in its direction.
        number: u64,
        /// The content.
        piece: StreamPiece,
    },
    /// A change through the control plane.
    Change {
        /// The client's number of the change.
        number: u64,
        /// The change.
        change: Change,
    },
    /// An operation of the cluster's operator. Its result is observed and not reported.
    Operate(Operation),
    /// SIGTERM.
    ShutDown,
}

/// A reply of a node to a client.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Bytes or the end of a connection.
    Piece {
        /// Number of the connection.
        connection: u64,
        /// Position of the piece in its direction.
        number: u64,
        /// The content.
        piece: StreamPiece,
    },
    /// The node has accepted the connection.
    Accepted {
        /// Number of the connection.
        connection: u64,
    },
    /// The node does not know this connection.
    Reset {
        /// Number of the connection.
        connection: u64,
    },
    /// The control plane has answered a change.
    Changed {
        /// The client's number of the change.
        number: u64,
        /// Whether the change was made.
        done: bool,
    },
}

/// An operation that the operator requests from a node.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Change the metadata.
    Change(Change),
    /// Change the members of queues.
    Members {
        /// The queues.
        queues: Vec<QueueId>,
        /// The change of each queue.
        change: MemberChange,
    },
    /// Remove this drained node from the cluster.
    Forget(NodeId),
    /// Balance the leaders of queues.
    Rebalance,
    /// Start or end maintenance of the node that gets the request.
    Maintenance(bool),
    /// Enable a feature flag if all nodes know it.
    Enable(Name),
}

/// An observation for the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The failure detector considers this machine down.
    PeerDown(NodeId),
    /// This machine is reachable, for the first time or again.
    PeerUp(NodeId),
    /// The node has drained after [`Request::ShutDown`].
    Drained,
}

/// Identity of the software on a machine: the contents of `identity.json`, as the handshake of a link sends them.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Id of the node in its cluster.
    pub node: NodeId,
    /// Number of starts with this id.
    pub incarnation: Incarnation,
    /// The node is a member of the cluster.
    pub member: bool,
    /// Number in the node's name. A replacement machine keeps the name.
    pub name_number: u64,
    /// The version that the node runs.
    pub version: Version,
    /// Number of shards of this incarnation.
    pub shards: u16,
}

/// Whether two versions can be in one cluster.
enum Compatibility {
    Compatible,
    OtherIncompatible,
    SelfIncompatible,
}

/// Identities by machine.
pub(super) type Identities = Rc<RefCell<BTreeMap<NodeId, Identity>>>;

/// Feature flags that each machine's node considers enabled, as the handshake of a link sends them.
pub(super) type EnabledFlags = Rc<RefCell<BTreeMap<NodeId, Vec<Name>>>>;

/// Largest number of shards of a node whose number changes.
const MAX_SHARDS: u64 = 4;

/// Numbers of shards of the nodes.
#[derive(Clone, Copy, Debug)]
pub enum ShardCounts {
    /// Every node always has this number.
    Same(u16),
    /// Each node has another number after each start, depending on this seed.
    Changing(u64),
}

impl ShardCounts {
    /// The number of a machine's node from one start to the next.
    fn of(self, machine: NodeId, incarnation: Incarnation) -> u16 {
        match self {
            ShardCounts::Same(shards) => shards,
            ShardCounts::Changing(seed) => {
                let start = machine.0.rotate_left(32) ^ incarnation.0;
                1 + SeededRng::new(seed ^ start).below(MAX_SHARDS) as u16
            }
        }
    }
}

/// Settings that all nodes of a run share.
#[derive(Clone)]
pub struct ClusterPlan {
    /// Numbers of shards of the nodes.
    pub shards: ShardCounts,
    /// First contents of the cluster.
    pub founding: shard::Founding,
    /// Limits of all Raft groups.
    pub limits: consensus::HostLimits,
    /// Feature flags that the machines consider enabled.
    pub flags: EnabledFlags,
}

/// Maximum delay of a frame between two shards of a node.
const MAX_SHARD_DELAY: Duration = Duration::from_micros(100);
/// Memory budget for clients in bytes: the default in a container of 256 MiB.
const MEMORY_BUDGET: usize = 51 << 20;
/// Maximum rounds of effects per turn, as in production.
const ROUNDS_PER_TURN: usize = 8;

/// The process of the scenario `cluster`.
pub struct Node {
    machine: NodeId,
    identity: Identity,
    disk: Arc<dyn Disk>,
    plan: ClusterPlan,
    identities: Identities,
    /// Number of the machine's run; see [`Start::machine_run`].
    machine_run: u64,
    rng: SeededRng,
    memory: Arc<shard::NodeMemory>,
    now: Time,
    wall: WallTime,
    /// Empty until the node belongs to a cluster.
    shard_hosts: Vec<ShardHost>,
    /// Contents of the log, until the shards are created.
    recovered: Option<wal::Recovered>,
    /// Machines that are up according to the failure detector.
    up: BTreeMap<NodeId, Incarnation>,
    /// The reachable machines that the shards know, with node id and incarnation.
    known_peers: BTreeMap<NodeId, (NodeId, Incarnation)>,
    tokens: VecDeque<(WalToken, u16, WalToken)>,
    next_token: u64,
    jobs: BTreeMap<JobId, (u16, JobId)>,
    next_job: u64,
    /// Newest log file that each shard no longer needs.
    freed: Vec<u64>,
    deleted: u64,
    pending_answers: Vec<(u64, u64, mpsc::Receiver<bool>)>,
    /// Feature flags to enable, and the versions of all nodes when they arrive.
    enabling: Vec<(Name, mpsc::Receiver<Vec<NodeFacts>>)>,
    shutting_down: bool,
    drained: bool,
    actions: Vec<Action<Node>>,
}

/// Name of a node.
pub(super) fn name_of(name_number: u64) -> String {
    format!("n{name_number}")
}

/// Protocol of AMQP 0.9.1 clients.
pub(super) const AMQP: ProtocolId = ProtocolId(0);
/// Protocol of MQTT clients.
pub(super) const MQTT: ProtocolId = ProtocolId(1);

/// Protocol of AMQP 1.0 clients.
pub(super) const AMQP10: ProtocolId = ProtocolId(2);

/// Logins of AMQP clients.
fn logins() -> Arc<session::LoginConfig> {
    Arc::new(session::LoginConfig {
        mechanisms: vec![auth::Mechanism::Plain],
        loopback_users: Vec::new(),
        anonymous: None,
        ..session::LoginConfig::default()
    })
}

/// Protocols without heartbeats, in the order of [`AMQP`], [`MQTT`] and [`AMQP10`].
fn protocols() -> Protocols {
    let amqp = session_amqp091::Amqp091 {
        cluster_name: "sim".into(),
        product: "RabbitMQ".into(),
        version: "4.1.0".into(),
        limits: Arc::new(session_amqp091::Limits {
            heartbeat: 0,
            ..Default::default()
        }),
        logins: logins(),
    };
    let mqtt = session_mqtt::MqttProtocol {
        settings: Arc::new(session_mqtt::MqttSettings {
            loopback_users: Vec::new(),
            ..Default::default()
        }),
    };
    let amqp10 = session_amqp10::Amqp10::new(session_amqp10::Amqp10Config {
        cluster_name: "sim".into(),
        // Small, so that publishers wait for windows and credit.
        limits: session_amqp10::Limits {
            idle: Duration::ZERO,
            link_credit: 8,
            incoming_window: 12,
            ..session_amqp10::Limits::default()
        },
        logins: logins(),
        ..session_amqp10::Amqp10Config::default()
    });
    Protocols::new(vec![Arc::new(amqp), Arc::new(mqtt), Arc::new(amqp10)])
}

impl Node {
    /// Starts the node on a machine; it has shards if it is a member of the cluster.
    pub fn start(
        start: Start,
        plan: &ClusterPlan,
        identities: &Identities,
    ) -> Result<Node, String> {
        let identity = {
            let mut all = identities.borrow_mut();
            let known = all.get_mut(&start.node).ok_or("a machine without a name")?;
            known.incarnation.0 += 1;
            known.shards = plan.shards.of(start.node, known.incarnation);
            *known
        };
        let mut node = Node {
            machine: start.node,
            identity,
            disk: Arc::new(start.disk),
            plan: plan.clone(),
            identities: identities.clone(),
            machine_run: start.machine_run,
            rng: SeededRng::new(start.seed),
            memory: Arc::default(),
            now: start.now,
            wall: start.wall,
            shard_hosts: Vec::new(),
            recovered: Some(start.recovered),
            up: BTreeMap::new(),
            known_peers: BTreeMap::new(),
            tokens: VecDeque::new(),
            next_token: 0,
            jobs: BTreeMap::new(),
            next_job: 0,
            freed: vec![0; usize::from(identity.shards)],
            deleted: 0,
            pending_answers: Vec::new(),
            enabling: Vec::new(),
            shutting_down: false,
            drained: false,
            actions: Vec::new(),
        };
        if node.identity.member {
            node.make_shards()?;
        }
        Ok(node)
    }

    /// Id of the node in its cluster.
    pub fn id(&self) -> NodeId {
        self.identity.node
    }

    /// The version that the node runs.
    pub fn version(&self) -> Version {
        self.identity.version
    }

    /// Number of starts with this id.
    pub fn incarnation(&self) -> Incarnation {
        self.identity.incarnation
    }

    /// Number of shards of this incarnation.
    pub fn shard_count(&self) -> u16 {
        self.identity.shards
    }

    /// Whether the node accepts clients.
    pub fn is_listening(&self) -> bool {
        self.shard_hosts.iter().all(|s| s.listening)
    }

    /// Shards of the node; none until it belongs to a cluster.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shard_hosts.iter().map(|s| &s.shard)
    }

    fn make_shards(&mut self) -> Result<(), String> {
        let recovered = self.recovered.take().unwrap_or_default();
        let newest = recovered.files.last().copied().unwrap_or(0);
        for (index, recovered_shard) in
            (0u16..).zip(RecoveredShard::split(recovered, self.identity.shards))
        {
            let config = self.shard_config(index);
            let shard = Shard::new(
                config,
                recovered_shard,
                Arc::clone(&self.disk),
                self.now,
                self.wall,
            )
            .map_err(|error| error.to_string())?;
            let mut host = ShardHost::new(shard);
            if newest > 0 {
                host.put(Inbound::WalRolled(newest));
            }
            self.shard_hosts.push(host);
        }
        Ok(())
    }

    fn shard_config(&mut self, index: u16) -> ShardConfig {
        let me = self.identity.node;
        let is_founder = self.plan.founding.nodes.iter().any(|f| f.id == me);
        let name = name_of(self.identity.name_number);
        ShardConfig {
            node: me,
            incarnation: self.identity.incarnation,
            address: format!("{name}:25672").as_str().into(),
            name: name.as_str().into(),
            shards: self.identity.shards,
            index,
            founding: is_founder.then(|| self.plan.founding.clone()),
            seed: self.rng.next_u64(),
            placement: shard::Placement::default(),
            budget: shard::MemoryBudget {
                node: self.memory.clone(),
                ..shard::MemoryBudget::of(MEMORY_BUDGET)
            },
            program: self.identity.version,
            client_addresses: Vec::new(),
            protocols: protocols(),
            machine: Box::from(self.machine_run.to_le_bytes()),
            tier: None,
            restrictions: metadata::restrictions::Restrictions::none(),
            consumer_timeout: Default::default(),
            groups: self.plan.limits.clone(),
            resources: shard::ResourceMeter::default(),
            confirms: Arc::default(),
            deliveries: Arc::default(),
        }
    }

    fn record_of(identity: &Identity) -> NodeRecord {
        let name = name_of(identity.name_number);
        NodeRecord {
            id: identity.node,
            address: format!("{name}:25672").as_str().into(),
            name: name.as_str().into(),
            voter: false,
            maintenance: false,
        }
    }

    /// Puts an item into the inbox of every shard.
    fn put_all(&mut self, item: impl Fn() -> Inbound) {
        for host in &mut self.shard_hosts {
            host.put(item());
        }
    }

    /// Performs the handshakes of links: reports reachable members to the shards, and adopts the cluster if the node
    /// has none.
    fn perform_handshakes(&mut self) {
        let new_peers: Vec<(NodeId, Identity)> = {
            let all = self.identities.borrow();
            let up = self.up.keys().filter_map(|m| Some((*m, *all.get(m)?)));
            up.filter(|(m, i)| {
                i.member && self.known_peers.get(m) != Some(&(i.node, i.incarnation))
            })
            .collect()
        };
        for (machine, identity) in new_peers {
            match self.check_compatibility(machine, &identity) {
                Compatibility::Compatible => {}
                Compatibility::OtherIncompatible => continue,
                Compatibility::SelfIncompatible => return,
            }
            if !self.identity.member && !self.join_cluster() {
                return;
            }
            let (node, incarnation) = (identity.node, identity.incarnation);
            self.known_peers.insert(machine, (node, incarnation));
            if let Some(first) = self.shard_hosts.first_mut() {
                first.put(Inbound::PeerProgram(node, identity.version.facts()));
            }
            let shards = identity.shards;
            self.put_all(|| Inbound::PeerUp(node, incarnation, shards));
            self.actions.push(Action::Note(Note::PeerUp(machine)));
            let record = Node::record_of(&identity);
            if let Some(first) = self.shard_hosts.first_mut() {
                first.put(Inbound::Join(record));
            }
        }
    }

    /// Compares versions and flags, as the handshake does. A version that does not know a flag that the other side's
    /// cluster has enabled gets no link, and ends.
    fn check_compatibility(&mut self, machine: NodeId, other: &Identity) -> Compatibility {
        let flags = self.plan.flags.borrow();
        let enabled = |m: NodeId| flags.get(&m).into_iter().flatten().map(|f| &**f);
        if let Some(error) = self
            .identity
            .version
            .explain_incompatibility(enabled(machine))
        {
            self.actions.push(Action::Fatal(error));
            return Compatibility::SelfIncompatible;
        }
        match other.version.explain_incompatibility(enabled(self.machine)) {
            Some(_) => Compatibility::OtherIncompatible,
            None => Compatibility::Compatible,
        }
    }

    /// Joins the cluster of a member that this node has reached.
    fn join_cluster(&mut self) -> bool {
        self.identity.member = true;
        if let Some(identity) = self.identities.borrow_mut().get_mut(&self.machine) {
            identity.member = true;
        }
        if let Err(error) = self.make_shards() {
            self.actions.push(Action::Fatal(error));
            return false;
        }
        true
    }

    /// The shard that a frame is addressed to.
    fn route_frame(&self, mut frame: Bytes) -> (u16, Bytes) {
        let (tag, key) = (frame.get_u8(), frame.get_u64());
        let shard = match tag {
            0 => key as u16,
            _ => shard_of(key, self.identity.shards),
        };
        (shard, frame)
    }

    fn machine_of(&self, node: NodeId) -> Option<NodeId> {
        let mut known_peers = self.known_peers.iter();
        known_peers.find(|(_, (n, _))| *n == node).map(|(m, _)| *m)
    }

    /// One turn of a shard's loop.
    fn run_shard(&mut self, index: usize) {
        let (now, wall) = (self.now, self.wall);
        let Some(host) = self.shard_hosts.get_mut(index) else {
            return;
        };
        host.due = false;
        host.shard.tick(now, wall);
        host.process_inbox(now);
        host.serve();
        for _ in 0..ROUNDS_PER_TURN {
            let Some(host) = self.shard_hosts.get_mut(index) else {
                return;
            };
            let mut effects = Vec::new();
            host.shard.poll(&mut effects);
            if effects.is_empty() && !host.flush(&mut self.actions) {
                return;
            }
            for effect in effects {
                self.apply_effect(index, effect);
            }
        }
        if let Some(host) = self.shard_hosts.get_mut(index) {
            host.due = true;
        }
    }

    fn apply_effect(&mut self, index: usize, effect: Effect) {
        let shard = index as u16;
        match effect {
            Effect::Append { token, records } => {
                self.next_token += 1;
                let node_token = WalToken(self.next_token);
                self.tokens.push_back((node_token, shard, token));
                self.actions.push(Action::Append {
                    token: node_token,
                    records,
                });
            }
            Effect::Job { id, job } => {
                self.next_job += 1;
                let node_job = JobId(self.next_job);
                self.jobs.insert(node_job, (shard, id));
                self.actions.push(Action::Job { id: node_job, job });
            }
            Effect::Peer { to, route, frame } => {
                if let Some(to) = self.machine_of(to) {
                    let frame = addressed(route, &frame);
                    self.actions.push(Action::Send { to, frame });
                }
            }
            Effect::Shard { to, from, message } => {
                let arrival = self.now
                    + Duration::from_nanos(self.rng.below(MAX_SHARD_DELAY.as_nanos() as u64));
                if let Some(host) = self.shard_hosts.get_mut(usize::from(to)) {
                    host.put_delayed(arrival, Inbound::Local(from, message));
                }
            }
            Effect::Flush(key) => {
                if let Some(host) = self.shard_hosts.get_mut(index) {
                    host.mark_dirty(key);
                }
            }
            Effect::Fatal(text) => self.actions.push(Action::Fatal(text)),
            Effect::Listen(is_enabled) => {
                if let Some(host) = self.shard_hosts.get_mut(index) {
                    host.listening = is_enabled;
                }
            }
            Effect::WalFree { up_to } => self.free_log_files(index, up_to),
            // Links exist to every machine.
            Effect::Nodes(view) => {
                if let Some(enabled) = view.enabled {
                    self.plan.flags.borrow_mut().insert(self.machine, enabled);
                }
            }
        }
    }

    /// Frees the log files that every shard has freed.
    fn free_log_files(&mut self, shard: usize, up_to: u64) {
        if let Some(freed) = self.freed.get_mut(shard) {
            *freed = up_to.max(*freed);
        }
        let freed_by_all = self.freed.iter().copied().min().unwrap_or(0);
        if freed_by_all > self.deleted {
            self.deleted = freed_by_all;
            self.actions.push(Action::FreeWal {
                up_to: freed_by_all,
            });
        }
    }

    fn send_answers(&mut self) {
        let mut waiting = std::mem::take(&mut self.pending_answers);
        waiting.retain(|(client, number, answer)| match answer.try_recv() {
            Err(mpsc::TryRecvError::Empty) => true,
            other => {
                self.actions.push(Action::Reply {
                    client: *client,
                    reply: Reply::Changed {
                        number: *number,
                        done: other == Ok(true),
                    },
                });
                false
            }
        });
        self.pending_answers.append(&mut waiting);
    }

    /// Enables a flag as the management API does: every node must be known to know it, and the change lists these
    /// nodes.
    fn enable_flags(&mut self) {
        let waiting = std::mem::take(&mut self.enabling);
        for (name, answer) in waiting {
            match answer.try_recv() {
                Err(mpsc::TryRecvError::Empty) => self.enabling.push((name, answer)),
                Err(mpsc::TryRecvError::Disconnected) => {}
                Ok(nodes) => {
                    let knows = |n: &NodeFacts| n.version.as_ref().is_some_and(|p| p.knows(&name));
                    // A cluster without its first contents has no nodes.
                    if !nodes.is_empty() && nodes.iter().all(knows) {
                        let known_by = nodes.iter().map(|n| n.id).collect();
                        self.operate(Operation::Change(Change::EnableKnownFeature {
                            name,
                            known_by,
                        }));
                    }
                }
            }
        }
    }

    /// The shard that accepts a connection.
    fn seat_of(&mut self, connection: u64) -> Option<&mut ShardHost> {
        let shards = self.shard_hosts.len().max(1) as u64;
        self.shard_hosts.get_mut((connection % shards) as usize)
    }

    fn operate(&mut self, operation: Operation) {
        let request = match operation {
            Operation::Change(change) => {
                let reply = Box::new(|_| {});
                ControlRequest::Change { change, reply }
            }
            Operation::Members { queues, change } => {
                let reply = Box::new(|_| {});
                ControlRequest::Membership(MembershipRequest::Change {
                    queues,
                    change,
                    reply,
                })
            }
            Operation::Forget(node) => ControlRequest::Membership(MembershipRequest::Forget {
                node,
                reply: Box::new(|_| {}),
            }),
            Operation::Rebalance => ControlRequest::RebalanceQueues {
                reply: Box::new(|_| {}),
            },
            Operation::Enable(name) => {
                let (sender, answer) = mpsc::channel();
                self.enabling.push((name, answer));
                // The receiver is dropped when the node has ended.
                let reply = Box::new(move |nodes| drop(sender.send(nodes)));
                ControlRequest::Nodes { reply }
            }
            Operation::Maintenance(on) => ControlRequest::Maintenance {
                on,
                reply: Box::new(|_| {}),
            },
        };
        if let Some(first) = self.shard_hosts.first_mut() {
            first.put(Inbound::Control(request));
        }
    }

    fn change(&mut self, client: u64, number: u64, change: Change) {
        let (sender, answer) = mpsc::channel();
        let reply = Box::new(move |result: Result<ChangeResult, ChangeError>| {
            // The receiver is dropped when the node has ended.
            let _ = sender.send(result.is_ok());
        });
        self.pending_answers.push((client, number, answer));
        if let Some(first) = self.shard_hosts.first_mut() {
            first.put(Inbound::Control(ControlRequest::Change { change, reply }));
        }
    }
}

/// A frame with its route as a prefix, as links send it.
fn addressed(route: Route, frame: &[u8]) -> Bytes {
    let (tag, key) = match route {
        Route::Shard(shard) => (0, u64::from(shard)),
        Route::Owner(key) => (1, key),
    };
    let mut out = BytesMut::with_capacity(9 + frame.len());
    out.put_u8(tag);
    out.put_u64(key);
    out.put_slice(frame);
    out.freeze()
}

impl Process for Node {
    type Request = Request;
    type Reply = Reply;
    type Note = Note;

    fn tick(&mut self, now: Time, _wall: WallTime) {
        for host in &mut self.shard_hosts {
            host.due |= host.wake_at().is_some_and(|at| at <= now);
        }
    }

    fn turn(&mut self, now: Time, wall: WallTime) {
        (self.now, self.wall) = (now, wall);
    }

    fn wake_at(&self) -> Option<Time> {
        self.shard_hosts.iter().filter_map(ShardHost::wake_at).min()
    }

    fn peer_frame(&mut self, from: NodeId, frame: Bytes) {
        self.perform_handshakes();
        let Some((node, _)) = self.known_peers.get(&from).copied() else {
            return;
        };
        let (shard, body) = self.route_frame(frame);
        if let Some(host) = self.shard_hosts.get_mut(usize::from(shard)) {
            host.put(Inbound::PeerFrame(node, body));
        }
    }

    fn peer_up(&mut self, machine: NodeId, incarnation: Incarnation) {
        self.up.insert(machine, incarnation);
        self.known_peers.remove(&machine);
        self.perform_handshakes();
    }

    fn peer_down(&mut self, machine: NodeId) {
        self.up.remove(&machine);
        if let Some((node, _)) = self.known_peers.remove(&machine) {
            self.put_all(|| Inbound::PeerDown(node));
        }
        self.actions.push(Action::Note(Note::PeerDown(machine)));
    }

    fn durable(&mut self, token: WalToken) {
        while let Some((_, shard, shard_token)) =
            self.tokens.pop_front_if(|(t, _, _)| t.0 <= token.0)
        {
            if let Some(host) = self.shard_hosts.get_mut(usize::from(shard)) {
                host.durable(shard_token);
            }
        }
    }

    fn wal_rolled(&mut self, file: u64) {
        self.put_all(|| Inbound::WalRolled(file));
    }

    fn job_done(&mut self, id: JobId, result: JobResult) {
        if let Some((shard, shard_job)) = self.jobs.remove(&id)
            && let Some(host) = self.shard_hosts.get_mut(usize::from(shard))
        {
            host.put(Inbound::JobDone(shard_job, result));
        }
    }

    fn request(&mut self, client: u64, request: Request) {
        let connection = match request {
            Request::Connect {
                connection,
                protocol,
            } => {
                let host = self.seat_of(connection).filter(|s| s.listening);
                match host {
                    Some(host) => {
                        host.accept(client, connection, protocol);
                        let reply = Reply::Accepted { connection };
                        return self.actions.push(Action::Reply { client, reply });
                    }
                    None => connection,
                }
            }
            Request::Piece {
                connection,
                number,
                piece,
            } => {
                let host = self.seat_of(connection);
                let is_known = host.is_some_and(|s| s.receive_piece(connection, number, &piece));
                if is_known || piece == StreamPiece::End {
                    return;
                }
                connection
            }
            Request::Change { number, change } => return self.change(client, number, change),
            Request::Operate(operation) => return self.operate(operation),
            Request::ShutDown => {
                self.shutting_down = true;
                return self.put_all(|| Inbound::ShutDown);
            }
        };
        let reply = Reply::Reset { connection };
        self.actions.push(Action::Reply { client, reply });
    }

    fn poll(&mut self, out: &mut Vec<Action<Node>>) {
        self.perform_handshakes();
        for index in 0..self.shard_hosts.len() {
            let is_due = self
                .shard_hosts
                .get(index)
                .is_some_and(|s| s.wants_turn(self.now));
            if is_due {
                self.run_shard(index);
            }
        }
        self.send_answers();
        self.enable_flags();
        if self.shutting_down && !self.drained {
            self.drained = self.shard_hosts.iter().all(|s| s.shard.drained_fully());
            if self.drained {
                self.actions.push(Action::Note(Note::Drained));
            }
        }
        out.append(&mut self.actions);
    }
}
