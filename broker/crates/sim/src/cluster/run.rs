//! One run: faults for a while, then quiet, then the account.

mod fault_schedule;
mod node_death;
mod report;
mod setup;

use super::byte_stream::StreamPiece;
use super::client::{Client, ClientRole, Context, Link};
use super::mqtt::{self, MqttClients, ShardIncarnation};
use super::node::{Flags, Identities, Identity, Node, Note, Plan, Reply, Request};
use super::operator::{self, Operator};
use super::oracle::Oracle;
use super::versions::{MISFIT, Versions};
use super::{amqp, consistency};
use crate::faults::{self, Kind, calm};
use crate::world::{Scenario, Start, Stop, Violation, World, WorldConfig};
use env::{NodeId, Rng, SeededRng, Time};
use node_death::NodeDeath;
use setup::{clients, founding, limits, queues};
use std::time::Duration;

pub use report::{Options, Report};

/// Time to elect a leader and to declare queues first.
const FIRST_FAULT: Duration = Duration::from_millis(2500);
/// After the faults: how long all of it may take.
const RECOVERY: Duration = Duration::from_secs(90);
/// A connection neither doubles nor reorders.
const NEVER: [Kind; 2] = [Kind::Duplication, Kind::Reordering];
/// Members of a queue that may lose one of them for good.
const BEAR_A_LOSS: usize = 3;
/// What takes a machine's data for good.
const TAKE_DATA: [Kind; 2] = [Kind::BitFlip, Kind::LostDisk];
/// How long a node may take to end after it was asked to.
const DRAINING: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
pub enum Timer {
    /// A client does something.
    Act(usize),
    /// One that speaks MQTT does.
    Device(usize),
    Fault,
    /// Connections between nodes break.
    Break,
    /// A node that was asked to end has had its time.
    End(NodeId, env::Incarnation),
    /// Somebody looks after nodes that are down.
    Watch,
    /// No more faults.
    Quiet,
}

/// How much goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultLevel {
    /// Nothing: the rules for quiet times hold throughout.
    Fair,
    /// Processes are stopped, in good order or not.
    Restarts,
    /// Everything.
    Foul,
}

struct Run {
    plan: Plan,
    identities: Identities,
    clients: Vec<Client>,
    mqtt_clients: MqttClients,
    oracle: Oracle,
    rng: SeededRng,
    fault_level: FaultLevel,
    /// How often what goes wrong in foul weather.
    wild: faults::Plan,
    faults: u64,
    operator: Operator,
    versions: Versions,
    founders: consistency::FoundingMembers,
    lying_disks: bool,
    /// Machines found damage on their disks.
    damaged: u64,
    quiet: bool,
    settled: bool,
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
    let mut scenario = Run::new(&world, &mut rng, options).map_err(|message| Violation {
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
        world.timer_in(first, Timer::Device(mqtt_client));
    }
    world.timer_in(FIRST_FAULT, Timer::Fault);
    if scenario.fault_level == FaultLevel::Foul && rng.chance(2, 3) {
        world.timer_in(FIRST_FAULT, Timer::Break);
    }
    world.timer_in(Duration::from_millis(500), Timer::Watch);
    world.timer_in(options.chaos, Timer::Quiet);
    let until = Time::ZERO + options.chaos + RECOVERY;
    world.run(&mut scenario, until).map_err(|mut violation| {
        violation.message = format!("{} ({})", violation.message, scenario.state(&world));
        violation
    })?;
    Ok(scenario.report(&world))
}

impl Run {
    fn new(world: &World<Run>, rng: &mut SeededRng, options: &Options) -> Result<Run, String> {
        let fault_level = match rng.below(8) {
            0 => FaultLevel::Fair,
            1..3 => FaultLevel::Restarts,
            _ => FaultLevel::Foul,
        };
        let versions = Versions::new(rng, fault_level == FaultLevel::Fair);
        let program = versions.founders();
        let identities = Identities::default();
        for machine in world.nodes() {
            let identity = Identity {
                node: NodeId(rng.next_u64()),
                incarnation: env::Incarnation(0),
                member: true,
                place: machine.0,
                program,
            };
            identities.borrow_mut().insert(machine, identity);
            if let Some(disk) = world.disk(machine) {
                disk.set_lying(options.lying_disks);
            }
        }
        let mut without = options.without.clone();
        without.extend(NEVER);
        let shrinks = rng.chance(1, 2);
        if shrinks {
            without.extend(TAKE_DATA);
        }
        let shards = 1 + rng.below(2) as u16;
        Ok(Run {
            plan: Plan {
                shards,
                founding: founding(&identities, program)?,
                limits: limits(),
                flags: Flags::default(),
            },
            identities,
            clients: clients(rng),
            mqtt_clients: MqttClients::new(rng, shards),
            oracle: Oracle::new(queues(rng)),
            rng: rng.fork(),
            fault_level,
            wild: faults::Plan::new(rng, &without),
            faults: 0,
            operator: Operator::new(shrinks),
            versions,
            founders: consistency::FoundingMembers::default(),
            lying_disks: options.lying_disks,
            damaged: 0,
            quiet: false,
            settled: false,
            death: NodeDeath::default(),
            next_connection: 0,
            starts: 0,
        })
    }

    /// Lets a client do something, and carries out what it wants.
    fn with_client<T>(
        &mut self,
        world: &mut World<Run>,
        number: usize,
        f: impl FnOnce(&mut Client, &mut Context<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let Some(client) = self.clients.get_mut(number) else {
            return Ok(None);
        };
        let mut rng = client.rng.fork();
        let place = client.link.as_ref().map(|link| ShardIncarnation {
            node: link.node,
            machine_run: link.machine_run,
            shard: link.connection % u64::from(self.plan.shards),
        });
        let process = place.and_then(|place| world.process(place.node));
        let knows = |queue: &str, filter: &str| {
            place.and_then(|place| mqtt::knows(process, place, queue, filter))
        };
        self.mqtt_clients.mqtt_oracle.disturbed = self.oracle.disturbed();
        let mut cx = Context {
            now: world.now(),
            rng: &mut rng,
            oracle: &mut self.oracle,
            mqtt_oracle: &mut self.mqtt_clients.mqtt_oracle,
            knows: &knows,
            quiet: self.quiet,
            connection: client.link.as_ref().map_or(0, |l| l.connection),
            node: client.link.as_ref().map_or(NodeId(0), |l| l.node),
            changes: Vec::new(),
            hang_up: false,
        };
        let result = f(client, &mut cx).map_err(|error| format!("client {number}: {error}"))?;
        let (changes, hang_up) = (cx.changes, cx.hang_up);
        let Some(link) = &mut client.link else {
            return Ok(Some(result));
        };
        let (node, connection) = (link.node, link.connection);
        while let Some((at, bytes)) = link.piece() {
            let request = Request::Piece {
                connection,
                number: at,
                piece: StreamPiece::Bytes(bytes),
            };
            world.request(node, number as u64, request);
        }
        for change in changes {
            let request = Request::Change { number: 0, change };
            world.request(node, number as u64, request);
        }
        if hang_up {
            self.drop_link(world, number)?;
        }
        Ok(Some(result))
    }

    /// The client's side of its connection ends.
    fn drop_link(&mut self, world: &mut World<Run>, number: usize) -> Result<(), String> {
        self.with_client(world, number, |client, cx| client.part.role().lost(cx))?;
        let link = self.clients.get_mut(number).and_then(|c| c.link.take());
        if let Some(link) = link {
            let request = Request::Piece {
                connection: link.connection,
                number: link.last_number(),
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
        let node = Client::pick(&mut client.rng, &nodes).unwrap_or_default();
        let Some(machine_run) = world.process(node).map(Node::incarnation) else {
            return;
        };
        self.next_connection += 1;
        let connection = self.next_connection;
        client.link = Some(Link::new(
            node,
            machine_run,
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
                let machine_run = world.process(link.node).map(Node::incarnation);
                if machine_run != Some(link.machine_run) || link.too_slow(now) {
                    return self.drop_link(world, number);
                }
                self.with_client(world, number, |client, cx| client.act(cx))?;
                Ok(())
            }
        }
    }

    fn watch(&mut self, world: &mut World<Run>) -> Result<(), String> {
        let now = world.now();
        let fair = self.fault_level == FaultLevel::Fair || self.quiet;
        for node in world.nodes() {
            if world.process(node).is_none() {
                self.oracle.ended(now, node);
                if let Some(at) = world.lost_power(node) {
                    self.oracle.lost_power(at);
                }
                if self.death.keeps_down(node, now) {
                    continue;
                }
                if self.quiet || self.rng.chance(1, 3) {
                    world.start_in(Duration::ZERO, node);
                }
            }
        }
        let fair = fair && !self.death.is_on();
        // A process that stands still when all is to be well does so for seconds more.
        if !fair || world.nodes().iter().any(|n| world.is_paused(*n)) {
            self.oracle.disturb(now);
        }
        self.operate(world);
        consistency::replicas_agree(all_of(world))?;
        self.founders.votes_are_earned(all_of(world))?;
        consistency::removed_stay_out(all_of(world))?;
        self.operator.only_gone_disks_lose_queues(world)?;
        Versions::all_fit(all_of(world))?;
        consistency::left_with_nothing(all_of(world), &self.operator.seen_off)?;
        self.oracle.doubled(now)?;
        self.mqtt_clients.mqtt_oracle.disturbed = self.oracle.disturbed();
        self.mqtt_clients.check(world)?;
        if self.quiet && self.is_settled(world) && self.has_mourned(world) {
            match self.mqtt_clients.begin_looking(&world.nodes()) {
                Some(new) => new.for_each(|n| world.timer_in(Duration::ZERO, Timer::Device(n))),
                None => {
                    self.settled = true;
                    self.check_queues(world)?;
                    self.mqtt_clients.check_retained()?;
                    consistency::hubs_are_of_now(all_of(world))?;
                }
            }
        }
        world.timer_in(Duration::from_millis(500), Timer::Watch);
        Ok(())
    }

    /// What a keeper was told of its own queues is so on every node.
    fn check_queues(&self, world: &World<Run>) -> Result<(), String> {
        for client in &self.clients {
            let ClientRole::Keeper(queue_admin) = &client.part else {
                continue;
            };
            for (name, there) in queue_admin.expected() {
                consistency::queues_are(all_of(world), name, there)?;
            }
        }
        Ok(())
    }

    /// Nothing is left to do, and nobody is owed anything.
    fn is_settled(&mut self, world: &World<Run>) -> bool {
        !self.operator.is_leaving()
            && Versions::all_are_newest(all_of(world))
            && self.mqtt_clients.waits_for(world.now()).is_empty()
            && self.mqtt_clients.mqtt_oracle.owes().0 == 0
            && world.nodes().iter().all(|n| world.process(*n).is_some())
            && !self.clients.iter().any(|c| c.part.as_role().wants_more())
            && self.oracle.owed(world.now()).0 == 0
            && !self.oracle.may_be_doubled(world.now())
            && consistency::on_the_way(all_of(world)).is_none()
            && operator::all_is_replicated(world, &self.identities, 1).is_ok()
    }
}

/// The nodes that are up.
fn all_of(world: &World<Run>) -> impl Iterator<Item = &Node> {
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
            identity.program = versions.next(identity.program, self.quiet, rng);
        }
        self.versions.started(start.now, start.node);
        Node::start(start, &self.plan, &self.identities)
    }

    fn timer(&mut self, world: &mut World<Run>, timer: Timer) -> Result<(), String> {
        match timer {
            Timer::Act(number) => return self.act(world, number),
            Timer::Device(number) => {
                self.mqtt_clients.mqtt_oracle.disturbed = self.oracle.disturbed();
                let connections = &mut self.next_connection;
                let pause = self.mqtt_clients.act(world, number, connections)?;
                world.timer_in(pause, Timer::Device(number));
            }
            Timer::Fault => {
                if !self.quiet {
                    self.fault(world)?;
                    let pause = Duration::from_millis(50 + self.rng.below(900));
                    world.timer_in(pause, Timer::Fault);
                }
            }
            Timer::Break => {
                if !self.quiet {
                    let pause = self.break_some(world);
                    world.timer_in(pause, Timer::Break);
                }
            }
            Timer::End(node, machine_run) => {
                if world.process(node).map(Node::incarnation) == Some(machine_run) {
                    world.stop(node, Stop::Kill);
                }
            }
            Timer::Watch => return self.watch(world),
            Timer::Quiet => {
                self.quiet = true;
                self.oracle.disturb(world.now());
                self.mqtt_clients.quiet(world.now());
                calm(world);
            }
        }
        Ok(())
    }

    fn reply(&mut self, world: &mut World<Run>, client: u64, reply: Reply) -> Result<(), String> {
        if client >= mqtt::FIRST {
            self.mqtt_clients.mqtt_oracle.disturbed = self.oracle.disturbed();
            return self.mqtt_clients.reply(world, client, reply);
        }
        let number = client as usize;
        let current = self.clients.get(number).and_then(|c| c.link.as_ref());
        let current = current.map(|l| l.connection);
        match reply {
            Reply::Piece {
                connection,
                number: at,
                piece,
            } if current == Some(connection) => {
                let ended = self.with_client(world, number, |c, cx| c.arrived(at, piece, cx))?;
                if ended == Some(true) {
                    self.drop_link(world, number)?;
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
                self.drop_link(world, number)?;
            }
            Reply::Changed { done, .. } => {
                if let Some(client) = self.clients.get_mut(number) {
                    client.part.role().changed(done);
                }
            }
            // Of a connection that is no more.
            _ => {}
        }
        Ok(())
    }

    fn note(&mut self, world: &World<Run>, node: NodeId, note: Note) -> Result<(), String> {
        match note {
            Note::Drained => self.oracle.ended(world.now(), node),
            Note::PeerDown(peer) => {
                self.oracle.given_up(world.now(), node, peer);
            }
            Note::PeerUp(peer) => {
                self.oracle.heard(world.now(), node, peer);
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
