//! One run: a phase with faults, recovery, and the final checks.

mod fault_schedule;
mod minority_cut;
mod node_death;
mod report;
mod setup;

use super::amqp10::{self, Amqp10Clients};
use super::byte_stream::StreamPiece;
use super::client::{Client, ClientContext, ClientRole, Link};
use super::mqtt::{self, MqttClients, ShardIncarnation, shards_of};
use super::node::{
    ClusterPlan, EnabledFlags, Identities, Identity, Node, Note, Reply, Request, ShardCounts,
};
use super::operator::{self, Operator};
use super::oracle::Oracle;
use super::streams::{self, StreamOracle};
use super::versions::{MISFIT, Versions};
use super::{amqp, consistency};
use crate::faults::{self, FaultKind, calm};
use crate::world::{Scenario, Start, Stop, Violation, World, WorldConfig};
use env::{NodeId, Rng, SeededRng, Time};
use minority_cut::MinorityCut;
use node_death::NodeDeath;
use setup::{clients, founding, limits, queues};
use std::time::Duration;

pub use report::{Options, Report};

/// Time for electing a leader and declaring queues.
const FIRST_FAULT: Duration = Duration::from_millis(2500);
/// Maximum time until the run must be done, after the faults.
const RECOVERY: Duration = Duration::from_secs(130);
/// Faults that a connection does not have.
const EXCLUDED: [FaultKind; 2] = [FaultKind::Duplication, FaultKind::Reordering];
/// Number of members with which a queue survives the permanent loss of one.
const SAFE_MEMBERS: usize = 3;
/// Faults that destroy a machine's data.
const DATA_LOSSES: [FaultKind; 2] = [FaultKind::BitFlip, FaultKind::LostDisk];
/// Maximum time from SIGTERM until a node is killed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
pub(super) enum Timer {
    /// An AMQP client acts.
    Act(usize),
    /// An MQTT client acts.
    ActMqtt(usize),
    /// An AMQP 1.0 client acts.
    ActAmqp10(usize),
    Fault,
    /// Connections between nodes break.
    BreakConnections,
    /// A node that was asked to shut down is killed.
    KillNode(NodeId, env::Incarnation),
    /// The operator acts and restarts stopped nodes.
    Watch,
    /// Faults end.
    EndFaults,
}

/// The faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultLevel {
    /// None: the rules for periods without faults hold all the time.
    NoFaults,
    /// Processes are stopped, gracefully or not.
    Restarts,
    /// All kinds.
    All,
}

/// A machine that may lose unsynced data. Streams do not sync: a second machine that loses some at the same time could take
/// confirmed messages along.
#[derive(Clone, Copy, Debug)]
struct StreamRisk {
    machine: NodeId,
    /// The fault of its disk lasts until [`Fault::Calm`](faults::Fault::Calm).
    lasts: bool,
}

struct Run {
    plan: ClusterPlan,
    identities: Identities,
    clients: Vec<Client>,
    mqtt_clients: MqttClients,
    amqp10_clients: Amqp10Clients,
    oracle: Oracle,
    stream_oracle: StreamOracle,
    /// The machine that may lose unsynced data until all streams are whole again.
    stream_risk: Option<StreamRisk>,
    rng: SeededRng,
    fault_level: FaultLevel,
    /// Schedule of faults for the level `All`.
    fault_plan: faults::FaultPlan,
    faults: u64,
    operator: Operator,
    versions: Versions,
    founders: consistency::FoundingMembers,
    lying_disks: bool,
    /// Number of machines that found damage on their disks.
    damaged: u64,
    faults_ended: bool,
    settled: bool,
    cut: MinorityCut,
    confirmed_beside_cut: u64,
    death: NodeDeath,
    next_connection: u64,
    starts: u64,
}

/// Runs the workload under `seed`.
pub fn run(seed: u64, options: &Options) -> Result<Report, Violation> {
    let config = WorldConfig {
        nodes: options.nodes,
        tick: Duration::from_secs(3600),
        wal_file_bytes: 256 << 10,
        connections: true,
        ..WorldConfig::default()
    };
    let mut world: World<Run> = World::new(config, seed, options.verbose);
    let mut rng = world.rng.fork();
    let mut scenario = Run::new(&world, seed, &mut rng, options).map_err(|message| Violation {
        at: Time::ZERO,
        message,
    })?;
    for node in world.nodes() {
        world.start_in(Duration::ZERO, node);
    }
    for client in 0..scenario.clients.len() {
        let first = Duration::from_millis(1 + rng.below(2000));
        world.timer_in(first, Timer::Act(client));
    }
    for mqtt_client in 0..scenario.mqtt_clients.len() {
        let first = Duration::from_millis(1 + rng.below(2000));
        world.timer_in(first, Timer::ActMqtt(mqtt_client));
    }
    for client in 0..scenario.amqp10_clients.len() {
        let first = Duration::from_millis(1 + rng.below(2000));
        world.timer_in(first, Timer::ActAmqp10(client));
    }
    world.timer_in(FIRST_FAULT, Timer::Fault);
    if scenario.fault_level == FaultLevel::All && rng.chance(2, 3) {
        world.timer_in(FIRST_FAULT, Timer::BreakConnections);
    }
    world.timer_in(Duration::from_millis(500), Timer::Watch);
    world.timer_in(options.chaos, Timer::EndFaults);
    let until = Time::ZERO + options.chaos + RECOVERY;
    world.run(&mut scenario, until).map_err(|mut violation| {
        violation.message = format!("{} ({})", violation.message, scenario.state(&world));
        violation
    })?;
    Ok(scenario.report(&world))
}

/// Mixed into the seed for the choice of the numbers of shards.
const SHARD_COUNTS: u64 = 0x5a4d;

impl Run {
    fn new(
        world: &World<Run>,
        seed: u64,
        rng: &mut SeededRng,
        options: &Options,
    ) -> Result<Run, String> {
        let fault_level = match rng.below(8) {
            0 => FaultLevel::NoFaults,
            1..3 => FaultLevel::Restarts,
            _ => FaultLevel::All,
        };
        let versions = Versions::new(rng, fault_level == FaultLevel::NoFaults);
        let version = versions.founders();
        let identities = Identities::default();
        for machine in world.nodes() {
            let identity = Identity {
                node: NodeId(rng.next_u64()),
                incarnation: env::Incarnation(0),
                member: true,
                name_number: machine.0,
                version,
                shards: 1,
            };
            identities.borrow_mut().insert(machine, identity);
            if let Some(disk) = world.disk(machine) {
                disk.set_lying(options.lying_disks);
            }
        }
        let mut without = options.without.clone();
        without.extend(EXCLUDED);
        let removes_members = rng.chance(1, 2);
        if removes_members {
            without.extend(DATA_LOSSES);
        }
        let shards = 1 + rng.below(2) as u16;
        // From another generator, so that the other choices of a seed do not depend on it.
        let shards = match SeededRng::new(seed ^ SHARD_COUNTS).chance(1, 3) {
            true => ShardCounts::Changing(seed),
            false => ShardCounts::Same(shards),
        };
        let (stream_oracle, stream_clients) = streams::plan(seed, options.nodes);
        let mut clients = clients(rng);
        clients.extend(stream_clients);
        let has_all_features = versions.all_are_enabled();
        let mut oracle = Oracle::new(queues(rng, seed, has_all_features));
        oracle.has_all_features = has_all_features;
        Ok(Run {
            plan: ClusterPlan {
                shards,
                founding: founding(&identities, version)?,
                limits: limits(),
                flags: EnabledFlags::default(),
            },
            identities,
            clients,
            mqtt_clients: MqttClients::new(rng),
            amqp10_clients: Amqp10Clients::new(rng, seed, has_all_features),
            oracle,
            stream_oracle,
            stream_risk: None,
            rng: rng.fork(),
            fault_level,
            fault_plan: faults::FaultPlan::new(rng, &without),
            faults: 0,
            operator: Operator::new(removes_members),
            versions,
            founders: consistency::FoundingMembers::default(),
            lying_disks: options.lying_disks,
            damaged: 0,
            faults_ended: false,
            settled: false,
            cut: MinorityCut::default(),
            confirmed_beside_cut: 0,
            death: NodeDeath::default(),
            next_connection: 0,
            starts: 0,
        })
    }

    /// Lets a client act, and carries out its requests.
    fn with_client<T>(
        &mut self,
        world: &mut World<Run>,
        number: usize,
        f: impl FnOnce(&mut Client, &mut ClientContext<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let Some(client) = self.clients.get_mut(number) else {
            return Ok(None);
        };
        let mut rng = client.rng.fork();
        let location = client.link.as_ref().map(|link| ShardIncarnation {
            node: link.node,
            incarnation: link.incarnation,
            shard: link.connection % shards_of(world, link.node),
        });
        let process = location.and_then(|location| world.process(location.node));
        let find_bound_queue = |queue: &str, filter: &str| {
            location.and_then(|location| mqtt::find_bound_queue(process, location, queue, filter))
        };
        self.mqtt_clients.mqtt_oracle.faults_until = self.oracle.faults_until();
        let mut cx = ClientContext {
            now: world.now(),
            rng: &mut rng,
            oracle: &mut self.oracle,
            mqtt_oracle: &mut self.mqtt_clients.mqtt_oracle,
            stream_oracle: &mut self.stream_oracle,
            find_bound_queue: &find_bound_queue,
            faults_ended: self.faults_ended,
            connection: client.link.as_ref().map_or(0, |l| l.connection),
            node: client.link.as_ref().map_or(NodeId(0), |l| l.node),
            changes: Vec::new(),
            wants_close: false,
        };
        let result = f(client, &mut cx).map_err(|error| format!("client {number}: {error}"))?;
        let (changes, wants_close) = (cx.changes, cx.wants_close);
        let Some(link) = &mut client.link else {
            return Ok(Some(result));
        };
        let (node, connection) = (link.node, link.connection);
        while let Some((piece_number, bytes)) = link.next_piece() {
            let request = Request::Piece {
                connection,
                number: piece_number,
                piece: StreamPiece::Bytes(bytes),
            };
            world.request(node, number as u64, request);
        }
        for change in changes {
            let request = Request::Change { number: 0, change };
            world.request(node, number as u64, request);
        }
        if wants_close {
            self.close_connection(world, number)?;
        }
        Ok(Some(result))
    }

    /// Closes the client's side of its connection.
    fn close_connection(&mut self, world: &mut World<Run>, number: usize) -> Result<(), String> {
        self.with_client(world, number, |client, cx| {
            client.role.role().on_connection_lost(cx)
        })?;
        let link = self.clients.get_mut(number).and_then(|c| c.link.take());
        if let Some(link) = link {
            let request = Request::Piece {
                connection: link.connection,
                number: link.sent_pieces(),
                piece: StreamPiece::End,
            };
            world.request(link.node, number as u64, request);
        }
        Ok(())
    }

    fn connect(&mut self, world: &mut World<Run>, number: usize) {
        let nodes = world.nodes();
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let node = match client.home {
            Some(home) => nodes.get(home as usize).copied(),
            None => Client::pick(&mut client.rng, &nodes),
        };
        let node = node.unwrap_or_default();
        let Some(incarnation) = world.process(node).map(Node::incarnation) else {
            return;
        };
        self.next_connection += 1;
        let connection = self.next_connection;
        client.link = Some(Link::new(
            node,
            incarnation,
            connection,
            world.now(),
            amqp::AmqpClient::new(),
        ));
        let protocol = super::node::AMQP;
        let request = Request::Connect {
            connection,
            protocol,
        };
        world.request(node, number as u64, request);
    }

    fn act(&mut self, world: &mut World<Run>, number: usize) -> Result<(), String> {
        let now = world.now();
        let Some(client) = self.clients.get_mut(number) else {
            return Ok(());
        };
        let pause = Duration::from_millis(5 + client.rng.below(90));
        world.timer_in(pause, Timer::Act(number));
        match &client.link {
            None => {
                self.connect(world, number);
                Ok(())
            }
            Some(link) => {
                let incarnation = world.process(link.node).map(Node::incarnation);
                if incarnation != Some(link.incarnation) || link.is_open_overdue(now) {
                    return self.close_connection(world, number);
                }
                self.with_client(world, number, |client, cx| client.act(cx))?;
                Ok(())
            }
        }
    }

    fn watch(&mut self, world: &mut World<Run>) -> Result<(), String> {
        let now = world.now();
        let is_fault_free = self.fault_level == FaultLevel::NoFaults || self.faults_ended;
        for node in world.nodes() {
            if world.process(node).is_none() {
                self.oracle.machine_ended(now, node);
                if let Some(at) = world.lost_power(node) {
                    self.oracle.lost_power(at);
                    self.amqp10_clients.oracle.lost_power();
                }
                if self.death.is_down(node, now) {
                    continue;
                }
                if self.faults_ended || self.rng.chance(1, 3) {
                    world.start_in(Duration::ZERO, node);
                }
            }
        }
        let has_effects = self.death.has_effects() || self.cut.has_effects();
        let is_fault_free = is_fault_free && !has_effects;
        // A process that is paused when faults end stays so for seconds more.
        if !is_fault_free || world.nodes().iter().any(|n| world.is_paused(*n)) {
            self.oracle.record_fault(now);
        }
        self.operate(world);
        consistency::check_replicas_agree(running_nodes(world))?;
        self.founders.check_votes_are_earned(running_nodes(world))?;
        consistency::check_removed_nodes_stay_out(running_nodes(world))?;
        self.operator.check_lost_queues(world)?;
        Versions::check_compatibility(running_nodes(world))?;
        consistency::check_forgotten_nodes_have_no_queues(
            running_nodes(world),
            &self.operator.forget_requested,
        )?;
        self.oracle.check_double_deliveries(now)?;
        self.oracle.check_timeouts(now)?;
        self.mqtt_clients.mqtt_oracle.faults_until = self.oracle.faults_until();
        self.mqtt_clients.check(world)?;
        let is_cutting = self.cut.has_begun();
        if is_cutting {
            self.cut_is_over(world)?;
        }
        if self.faults_ended
            && !is_cutting
            && self.is_settled(world)
            && self.cut_is_over(world)?
            && self.death_is_over(world)
        {
            match self.mqtt_clients.begin_inspection(world) {
                Some(new_clients) => {
                    new_clients.for_each(|n| world.timer_in(Duration::ZERO, Timer::ActMqtt(n)))
                }
                None => {
                    self.settled = true;
                    self.check_queues(world)?;
                    self.mqtt_clients.check_retained()?;
                    consistency::check_routers(running_nodes(world))?;
                }
            }
        }
        world.timer_in(Duration::from_millis(500), Timer::Watch);
        Ok(())
    }

    /// Checks on every node that the own queues of queue admins exist or not.
    fn check_queues(&self, world: &World<Run>) -> Result<(), String> {
        for client in &self.clients {
            let ClientRole::QueueAdmin(queue_admin) = &client.role else {
                continue;
            };
            for (name, exists) in queue_admin.expected_queues() {
                consistency::check_queue_exists(running_nodes(world), name, exists)?;
            }
        }
        Ok(())
    }

    /// Tells the oracle of AMQP 1.0 clients how long faults may have an effect.
    fn note_faults(&mut self) {
        self.amqp10_clients.oracle.faults_until = self.oracle.faults_until();
    }

    /// Whether no work is left and no message is owed.
    fn is_settled(&mut self, world: &World<Run>) -> bool {
        !self.operator.is_removing_node()
            && Versions::all_are_newest(running_nodes(world))
            && self.mqtt_clients.describe_wait(world.now()).is_empty()
            && self.mqtt_clients.mqtt_oracle.count_owed().0 == 0
            && self.amqp10_clients.is_done()
            && world.nodes().iter().all(|n| world.process(*n).is_some())
            && !self
                .clients
                .iter()
                .any(|c| c.role.as_role().has_work_left())
            && self.oracle.owed(world.now()).0 == 0
            && !self.oracle.may_learn_of_ended_channel(world.now())
            && consistency::describe_in_flight(running_nodes(world)).is_none()
            && operator::check_replication(world, &self.identities, 1).is_ok()
            && streams::check_agreement(world).is_ok()
    }
}

/// The nodes that are up.
fn running_nodes(world: &World<Run>) -> impl Iterator<Item = &Node> {
    let nodes = world.nodes().into_iter();
    nodes.filter_map(|node| world.process(node))
}

impl Scenario for Run {
    type Process = Node;
    type Timer = Timer;

    fn start(&mut self, start: Start) -> Result<Node, String> {
        self.starts += 1;
        if let Some(identity) = self.identities.borrow_mut().get_mut(&start.node) {
            let (versions, rng) = (&self.versions, &mut self.rng);
            identity.version = versions.next(identity.version, self.faults_ended, rng);
        }
        self.versions.node_started(start.now, start.node);
        Node::start(start, &self.plan, &self.identities)
    }

    fn timer(&mut self, world: &mut World<Run>, timer: Timer) -> Result<(), String> {
        match timer {
            Timer::Act(number) => return self.act(world, number),
            Timer::ActMqtt(number) => {
                self.mqtt_clients.mqtt_oracle.faults_until = self.oracle.faults_until();
                let connections = &mut self.next_connection;
                let pause = self.mqtt_clients.act(world, number, connections)?;
                world.timer_in(pause, Timer::ActMqtt(number));
            }
            Timer::ActAmqp10(number) => {
                self.note_faults();
                let connections = &mut self.next_connection;
                let pause = self.amqp10_clients.act(world, number, connections);
                world.timer_in(pause, Timer::ActAmqp10(number));
            }
            Timer::Fault => {
                if !self.faults_ended {
                    self.inject_fault(world)?;
                    let pause = Duration::from_millis(50 + self.rng.below(900));
                    world.timer_in(pause, Timer::Fault);
                }
            }
            Timer::BreakConnections => {
                if !self.faults_ended {
                    let pause = self.break_connections(world);
                    world.timer_in(pause, Timer::BreakConnections);
                }
            }
            Timer::KillNode(node, incarnation) => {
                if world.process(node).map(Node::incarnation) == Some(incarnation) {
                    world.stop(node, Stop::Kill);
                }
            }
            Timer::Watch => return self.watch(world),
            Timer::EndFaults => {
                self.faults_ended = true;
                self.oracle.record_fault(world.now());
                self.mqtt_clients.end_faults(world.now());
                self.amqp10_clients.faults_ended = true;
                calm(world);
            }
        }
        Ok(())
    }

    fn reply(&mut self, world: &mut World<Run>, client: u64, reply: Reply) -> Result<(), String> {
        if client >= amqp10::FIRST {
            self.note_faults();
            return self.amqp10_clients.reply(world, client, reply);
        }
        if client >= mqtt::FIRST_CLIENT {
            self.mqtt_clients.mqtt_oracle.faults_until = self.oracle.faults_until();
            return self.mqtt_clients.reply(world, client, reply);
        }
        let number = client as usize;
        let current = self.clients.get(number).and_then(|c| c.link.as_ref());
        let current = current.map(|l| l.connection);
        match reply {
            Reply::Piece {
                connection,
                number: piece_number,
                piece,
            } if current == Some(connection) => {
                let has_ended = self.with_client(world, number, |c, cx| {
                    c.receive_piece(piece_number, piece, cx)
                })?;
                if has_ended == Some(true) {
                    self.close_connection(world, number)?;
                }
            }
            Reply::Accepted { connection } if current == Some(connection) => {
                self.with_client(world, number, |client, _| {
                    if let Some(link) = &mut client.link {
                        link.accepted = true;
                    }
                    Ok(())
                })?;
            }
            Reply::Reset { connection } if current == Some(connection) => {
                self.close_connection(world, number)?;
            }
            Reply::Changed { done, .. } => {
                if let Some(client) = self.clients.get_mut(number) {
                    client.role.role().on_change_answered(done);
                }
            }
            // For an earlier connection.
            _ => {}
        }
        Ok(())
    }

    fn note(&mut self, world: &World<Run>, node: NodeId, note: Note) -> Result<(), String> {
        match note {
            Note::Drained => self.oracle.machine_ended(world.now(), node),
            Note::PeerDown(peer) => {
                self.oracle.given_up(world.now(), node, peer);
            }
            Note::PeerUp(peer) => {
                self.oracle.reachable_again(world.now(), node, peer);
            }
        }
        Ok(())
    }

    fn damaged(
        &mut self,
        world: &mut World<Run>,
        node: NodeId,
        _error: &str,
    ) -> Result<(), String> {
        self.damaged += 1;
        self.replace(world, node);
        Ok(())
    }

    fn removed(&mut self, node: NodeId, error: &str) -> bool {
        if error.contains(MISFIT) {
            let identity = self.identities.borrow().get(&node).copied();
            return identity.is_some_and(|i| self.versions.may_be_misfit(node, i));
        }
        error.contains("was removed from its cluster") && self.operator.was_removed(node)
    }

    fn done(&mut self, _world: &World<Run>) -> bool {
        self.settled
    }
}
