//! One run: faults for a while, then quiet, then the account.

use super::client::{Client, Context, Link, Part};
use super::consumer::Consumer;
use super::keeper::Keeper;
use super::lane::Piece;
use super::ledger::{Character, GRAVE, Ledger, QueuePlan};
use super::node::{Identities, Identity, Node, Note, Plan, Reply, Request, name_of};
use super::operator::{self, Operator, Wish};
use super::publisher::Publisher;
use super::{account, amqp};
use crate::faults::{self, Fault, Kind, calm};
use crate::world::{Scenario, Start, Stop, Violation, World, WorldConfig};
use env::{NodeId, Rng, SeededRng, Time};
use metadata::{NodeRecord, UserRecord};
use std::collections::BTreeSet;
use std::time::Duration;

/// What is the same for every seed.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: u64,
    /// How long things go wrong.
    pub chaos: Duration,
    /// Disks say that they synced and did not. The rules must not hold then.
    pub lying_disks: bool,
    /// Faults that are left out.
    pub without: BTreeSet<Kind>,
    /// Prints every event.
    pub loud: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: 3,
            chaos: Duration::from_secs(8),
            lying_disks: false,
            without: BTreeSet::new(),
            loud: false,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of everything that happened.
    pub hash: u64,
    pub events: u64,
    pub faults: u64,
    pub published: u64,
    pub confirmed: u64,
    pub delivered: u64,
    pub redelivered: u64,
    /// Settled, and the queue was heard to know.
    pub settled: u64,
    pub connections: u64,
    pub starts: u64,
    /// Machines that found damage on their disks.
    pub damaged: u64,
    /// Machines in whose place there are others.
    pub replaced: u64,
    /// Changes of members and leaders that were asked for.
    pub operations: u64,
    pub ended: Time,
}

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
    Fault,
    /// A node that was asked to end has had its time.
    End(NodeId, env::Incarnation),
    /// Somebody looks after nodes that are down.
    Watch,
    /// No more faults.
    Quiet,
}

/// How much goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
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
    ledger: Ledger,
    rng: SeededRng,
    weather: Weather,
    /// How often what goes wrong in foul weather.
    wild: faults::Plan,
    faults: u64,
    operator: Operator,
    founders: account::Founders,
    lying_disks: bool,
    /// Machines found damage on their disks.
    damaged: u64,
    quiet: bool,
    settled: bool,
    next_connection: u64,
    starts: u64,
}

fn queues(rng: &mut SeededRng) -> Vec<QueuePlan> {
    let queue = |name: &str, quorum, character| QueuePlan {
        name: name.to_owned(),
        quorum,
        character,
    };
    let mut all = vec![
        queue("plain-quorum", true, Character::Plain),
        queue("plain-classic", false, Character::Plain),
    ];
    let others = [
        ("purged", Character::Purged),
        ("recreated", Character::Recreated),
        ("short", Character::Short(3 + rng.below(30))),
        (
            "brief",
            Character::Brief(Duration::from_millis(200 + rng.below(3000))),
        ),
        ("refusing", Character::Refusing(3 + rng.below(30))),
    ];
    for (name, character) in others {
        if rng.chance(1, 2) {
            all.push(queue(name, rng.chance(2, 3), character));
        }
    }
    if rng.chance(1, 2) {
        all.push(queue("mortal", true, Character::Mortal));
        all.push(queue(GRAVE, true, Character::Plain));
    }
    all
}

/// Small enough that a short run sees checkpoints, segments and transfers.
fn limits() -> consensus::Limits {
    consensus::Limits {
        checkpoint_bytes: 64 << 10,
        checkpoint_entries: 60,
        retain_entries: 20,
        max_message_bytes: 16 << 10,
        max_inflight_messages: 8,
        transfer_chunk_bytes: 2 << 10,
        ..consensus::Limits::default()
    }
}

/// The cluster's beginning, with a node on every machine.
fn founding(identities: &Identities) -> Result<shard::Founding, String> {
    let algorithm = auth::HashAlgorithm::Sha256;
    let password = auth::hash_with(algorithm, amqp::PASSWORD.as_bytes(), b"salt")
        .map_err(|e| e.to_string())?;
    let all = identities.borrow();
    let record = |identity: &Identity| {
        let name = name_of(identity.place);
        NodeRecord {
            id: identity.node,
            address: format!("{name}:25672").as_str().into(),
            name: name.as_str().into(),
            voter: true,
            maintenance: false,
        }
    };
    Ok(shard::Founding {
        cluster: "sim".into(),
        nodes: all.values().map(record).collect(),
        user: UserRecord {
            name: amqp::USER.into(),
            password: Some(password),
            tags: vec!["administrator".into()],
            limits: Vec::new(),
        },
        default_queue_type: None,
        features: metadata::features::Program::default().facts().features,
    })
}

fn clients(rng: &mut SeededRng) -> Vec<Client> {
    let mut clients = Vec::new();
    let mut add = |part| {
        clients.push(Client {
            rng: rng.fork(),
            part,
            link: None,
        });
    };
    for number in 0..3 {
        add(Part::Publisher(Publisher::new(number)));
    }
    for _ in 0..3 {
        add(Part::Consumer(Consumer::default()));
    }
    add(Part::Keeper(Keeper::new(0)));
    clients
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
    let mut world: World<Run> = World::new(config, seed, options.loud);
    let mut rng = world.rng.fork();
    let mut scenario = Run::new(&world, &mut rng, options).map_err(|what| Violation {
        at: Time::ZERO,
        what,
    })?;
    for node in world.nodes() {
        world.start_in(Duration::ZERO, node);
    }
    for client in 0..scenario.clients.len() {
        let first = Duration::from_millis(1 + rng.below(2000));
        world.timer_in(first, Timer::Act(client));
    }
    world.timer_in(FIRST_FAULT, Timer::Fault);
    world.timer_in(Duration::from_millis(500), Timer::Watch);
    world.timer_in(options.chaos, Timer::Quiet);
    let until = Time::ZERO + options.chaos + RECOVERY;
    world.run(&mut scenario, until).map_err(|mut violation| {
        violation.what = format!("{} ({})", violation.what, scenario.state(&world));
        violation
    })?;
    Ok(scenario.report(&world))
}

impl Run {
    fn new(world: &World<Run>, rng: &mut SeededRng, options: &Options) -> Result<Run, String> {
        let identities = Identities::default();
        for machine in world.nodes() {
            let identity = Identity {
                node: NodeId(rng.next_u64()),
                incarnation: env::Incarnation(0),
                member: true,
                place: machine.0,
            };
            identities.borrow_mut().insert(machine, identity);
            if let Some(disk) = world.disk(machine) {
                disk.set_lying(options.lying_disks);
            }
        }
        let weather = match rng.below(8) {
            0 => Weather::Fair,
            1..3 => Weather::Restarts,
            _ => Weather::Foul,
        };
        let mut without = options.without.clone();
        without.extend(NEVER);
        let shrinks = rng.chance(1, 2);
        if shrinks {
            without.extend(TAKE_DATA);
        }
        Ok(Run {
            plan: Plan {
                shards: 1 + rng.below(2) as u16,
                founding: founding(&identities)?,
                limits: limits(),
            },
            identities,
            clients: clients(rng),
            ledger: Ledger::new(queues(rng)),
            rng: rng.fork(),
            weather,
            wild: faults::Plan::new(rng, &without),
            faults: 0,
            operator: Operator::new(shrinks),
            founders: account::Founders::default(),
            lying_disks: options.lying_disks,
            damaged: 0,
            quiet: false,
            settled: false,
            next_connection: 0,
            starts: 0,
        })
    }

    fn report(&self, world: &World<Run>) -> Report {
        Report {
            hash: world.trace.hash(),
            events: world.trace.events(),
            faults: self.faults,
            published: self.ledger.published() as u64,
            confirmed: self.ledger.confirmed,
            delivered: self.ledger.delivered,
            redelivered: self.ledger.redelivered,
            settled: self.ledger.gone,
            connections: self.next_connection,
            starts: self.starts,
            damaged: self.damaged,
            replaced: self.operator.replaced,
            operations: self.operator.asked,
            ended: world.now(),
        }
    }

    /// For people who look into a failed run.
    fn state(&self, world: &World<Run>) -> String {
        let waiting: Vec<String> = (self.clients.iter().enumerate())
            .filter(|(_, c)| c.part.as_role().wants_more())
            .map(|(n, c)| {
                let node = c.link.as_ref().map_or(0, |l| l.node.0);
                format!(
                    "client {n} on node {node}: {}",
                    c.part.as_role().waits_for()
                )
            })
            .collect();
        let owed = self.ledger.owed(world.now());
        format!(
            "{:?}, {} shards, quiet {}, {:?}; owed {owed:?}; waiting {waiting:?}; on the way {:?}; queues {:?}",
            self.weather,
            self.plan.shards,
            self.quiet,
            operator::all_is_replicated(world, &self.identities, 1),
            account::on_the_way(all_of(world)),
            account::figures(all_of(world)),
        )
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
        let mut cx = Context {
            now: world.now(),
            rng: &mut rng,
            ledger: &mut self.ledger,
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
                piece: Piece::Bytes(bytes),
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
                piece: Piece::End,
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
        let Some(life) = world.process(node).map(Node::incarnation) else {
            return;
        };
        self.next_connection += 1;
        let connection = self.next_connection;
        client.link = Some(Link::new(node, life, connection, world.now()));
        world.request(node, number as u64, Request::Connect { connection });
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
                let life = world.process(link.node).map(Node::incarnation);
                if life != Some(link.life) || link.too_slow(now) {
                    return self.drop_link(world, number);
                }
                self.with_client(world, number, |client, cx| client.act(cx))?;
                Ok(())
            }
        }
    }

    fn fault(&mut self, world: &mut World<Run>) -> Result<(), String> {
        let nodes = world.nodes();
        let node = Client::pick(&mut self.rng, &nodes).unwrap_or_default();
        let wild = self.weather == Weather::Foul && self.rng.chance(5, 6);
        let fault = match self.weather {
            Weather::Fair => return Ok(()),
            Weather::Foul if wild => self.wild.next(&mut self.rng, &nodes),
            _ => match self.rng.below(4) {
                0 => Some(Fault::Stop(node, Stop::Power)),
                1 => Some(Fault::Stop(node, Stop::Kill)),
                2 => Some(Fault::Calm),
                _ => {
                    self.shut_down(world, node);
                    None
                }
            },
        };
        let now = world.now();
        let fault = match fault {
            // A lost frame takes its connection along: few are enough.
            Some(Fault::Loss(in_1000)) => Fault::Loss(1 + in_1000 / 100),
            // No more than a minority may lose what it was told: one at a time, until another one is in its place.
            Some(fault) if fault.takes_data() && !self.all_have_their_data(world) => return Ok(()),
            Some(fault) => fault,
            None => return Ok(()),
        };
        world.trace.event(now, "fault", 0, &fault);
        self.faults += 1;
        self.ledger.disturb(now);
        if let Fault::Clock(..) = fault {
            self.ledger.clocks_jump();
        }
        if let Fault::LostDisk(node) = fault {
            self.replace(world, node);
            return Ok(());
        }
        fault.happen(world)
    }

    fn all_have_their_data(&self, world: &World<Run>) -> bool {
        let damaged = world.nodes().iter().any(|n| world.is_damaged(*n));
        !damaged && operator::all_is_replicated(world, &self.identities, BEAR_A_LOSS).is_ok()
    }

    /// A machine and its disk are gone; another one gets its name.
    fn replace(&mut self, world: &mut World<Run>, old: NodeId) {
        let now = world.now();
        let Some(identity) = self.identities.borrow_mut().remove(&old) else {
            return;
        };
        self.ledger.ended(now, old);
        let Some(new) = world.replace(old) else {
            return;
        };
        let lost = (self.operator).takes_away(world, identity.node, &mut self.ledger);
        self.doubt(&lost);
        let identity = Identity {
            node: NodeId(self.rng.next_u64()),
            incarnation: env::Incarnation(0),
            member: false,
            place: identity.place,
        };
        self.identities.borrow_mut().insert(new, identity);
        if let Some(disk) = world.disk(new) {
            disk.set_lying(self.lying_disks);
        }
        world.start_in(Duration::ZERO, new);
    }

    /// Queues that whoever runs the cluster deletes.
    fn doubt(&mut self, names: &[String]) {
        for client in &mut self.clients {
            if let Part::Keeper(keeper) = &mut client.part {
                names.iter().for_each(|name| keeper.doubts(name));
            }
        }
    }

    fn operate(&mut self, world: &mut World<Run>) {
        let lost = (self.operator).clear(world, &mut self.rng, &mut self.ledger);
        self.doubt(&lost);
        if self.operator.is_leaving() {
            self.ledger.disturb(world.now());
            self.operator.see_off(world, &mut self.rng);
        }
        if let Some(machine) = self.operator.has_left() {
            self.replace(world, machine);
        }
        if self.quiet {
            return self.operator.finish(world);
        }
        if self.weather == Weather::Fair || !self.rng.chance(1, 2) {
            return;
        }
        let wish = (self.operator).act(world, &self.identities, &mut self.rng);
        if let Some(Wish::ShutDown(node)) = wish {
            self.shut_down(world, node);
        }
    }

    /// SIGTERM to a node, and the end some time after.
    fn shut_down(&mut self, world: &mut World<Run>, node: NodeId) {
        let now = world.now();
        self.ledger.disturb(now);
        if let Some(life) = world.process(node).map(Node::incarnation) {
            world.request(node, 0, Request::ShutDown);
            world.timer_in(DRAINING, Timer::End(node, life));
        }
    }

    fn watch(&mut self, world: &mut World<Run>) -> Result<(), String> {
        let now = world.now();
        let fair = self.weather == Weather::Fair || self.quiet;
        for node in world.nodes() {
            if world.process(node).is_none() {
                self.ledger.ended(now, node);
                if let Some(at) = world.lost_power(node) {
                    self.ledger.lost_power(at);
                }
                if self.quiet || self.rng.chance(1, 3) {
                    world.start_in(Duration::ZERO, node);
                }
            }
        }
        if !fair {
            self.ledger.disturb(now);
        }
        self.operate(world);
        account::replicas_agree(all_of(world))?;
        self.founders.votes_are_earned(all_of(world))?;
        account::removed_stay_out(all_of(world))?;
        account::left_with_nothing(all_of(world), &self.operator.seen_off)?;
        self.ledger.doubled(now)?;
        if self.quiet && self.is_settled(world) {
            self.settled = true;
            self.check_queues(world)?;
        }
        world.timer_in(Duration::from_millis(500), Timer::Watch);
        Ok(())
    }

    /// What a keeper was told of its own queues is so on every node.
    fn check_queues(&self, world: &World<Run>) -> Result<(), String> {
        for client in &self.clients {
            let Part::Keeper(keeper) = &client.part else {
                continue;
            };
            for (name, there) in keeper.expected() {
                account::queues_are(all_of(world), name, there)?;
            }
        }
        Ok(())
    }

    /// Nothing is left to do, and nobody is owed anything.
    fn is_settled(&self, world: &World<Run>) -> bool {
        world.nodes().iter().all(|n| world.process(*n).is_some())
            && !self.clients.iter().any(|c| c.part.as_role().wants_more())
            && self.ledger.owed(world.now()).0 == 0
            && !self.ledger.may_be_doubled(world.now())
            && account::on_the_way(all_of(world)).is_none()
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
        Node::start(start, &self.plan, &self.identities)
    }

    fn timer(&mut self, world: &mut World<Run>, timer: Timer) -> Result<(), String> {
        match timer {
            Timer::Act(number) => return self.act(world, number),
            Timer::Fault => {
                if !self.quiet {
                    self.fault(world)?;
                    let pause = Duration::from_millis(50 + self.rng.below(900));
                    world.timer_in(pause, Timer::Fault);
                }
            }
            Timer::End(node, life) => {
                if world.process(node).map(Node::incarnation) == Some(life) {
                    world.stop(node, Stop::Kill);
                }
            }
            Timer::Watch => return self.watch(world),
            Timer::Quiet => {
                self.quiet = true;
                self.ledger.disturb(world.now());
                calm(world);
            }
        }
        Ok(())
    }

    fn reply(&mut self, world: &mut World<Run>, client: u64, reply: Reply) -> Result<(), String> {
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
            Note::Drained => self.ledger.ended(world.now(), node),
            Note::PeerDown(peer) => self.ledger.given_up(world.now(), peer),
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
        error.contains("was removed from its cluster") && self.operator.was_removed(node)
    }

    fn done(&mut self, _world: &World<Run>) -> bool {
        self.settled
    }
}
