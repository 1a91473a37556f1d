//! A whole node as production runs it: its shards behind [`ShardDriver`], what connects them.
//!
//! Stands where reactor, log thread, storage thread and link thread stand in production: everything that comes in for
//! a shard waits in its inbox until its next turn; a turn ticks the shard, hands it what waits, serves its
//! connections and carries out what it wants.

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

#[derive(Clone, Debug)]
pub enum Request {
    Connect {
        connection: u64,
        protocol: ProtocolId,
    },
    Piece {
        connection: u64,
        number: u64,
        piece: StreamPiece,
    },
    /// Through the control plane.
    Change { number: u64, change: Change },
    /// The same, by whoever runs the cluster; what comes of it is seen, not told.
    Operate(Operation),
    /// SIGTERM.
    ShutDown,
}

#[derive(Clone, Debug)]
pub enum Reply {
    Piece {
        connection: u64,
        number: u64,
        piece: StreamPiece,
    },
    /// The connection is made.
    Accepted {
        connection: u64,
    },
    /// Nobody there knows this connection.
    Reset {
        connection: u64,
    },
    Changed {
        number: u64,
        done: bool,
    },
}

/// What those who run a cluster ask a node for.
#[derive(Clone, Debug)]
pub enum Operation {
    Change(Change),
    Members {
        queues: Vec<QueueId>,
        change: MemberChange,
    },
    /// A node that is drained.
    Forget(NodeId),
    Rebalance,
    /// Of the node that is asked.
    Maintenance(bool),
    /// A feature flag, if all nodes know it.
    Enable(Name),
}

/// For the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// This machine is down, as far as the node can tell.
    PeerDown(NodeId),
    /// The node hears this machine, for the first time or again.
    PeerUp(NodeId),
    /// After [`Request::ShutDown`]: nothing is left to do.
    Drained,
}

/// Who the software on a machine is: what `identity.json` holds, and a link's handshake tells.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// Belongs to the cluster.
    pub member: bool,
    /// What its name is made of: a machine in the place of another one has that one's name.
    pub place: u64,
    /// That it runs.
    pub program: Version,
}

/// Whether two programs can be of one cluster.
enum Compatibility {
    Both,
    NotThem,
    NotMe,
}

/// By machine.
pub type Identities = Rc<RefCell<BTreeMap<NodeId, Identity>>>;

/// The flags that each machine's node holds to be on, as a link's handshake tells.
pub type Flags = Rc<RefCell<BTreeMap<NodeId, Vec<Name>>>>;

/// What all nodes of a run have in common.
#[derive(Clone)]
pub struct Plan {
    pub shards: u16,
    pub founding: shard::Founding,
    pub limits: consensus::Limits,
    pub flags: Flags,
}

/// Between two shards of a node a frame takes this long at the most.
const HOP: Duration = Duration::from_micros(100);
/// Bytes that clients may make a node hold: the default of a container of 256 MiB.
const MEMORY_BUDGET: usize = 51 << 20;
/// Rounds of carrying out effects per turn, as in production.
const ROUNDS_PER_TURN: usize = 8;

pub struct Node {
    machine: NodeId,
    identity: Identity,
    disk: Arc<dyn Disk>,
    plan: Plan,
    identities: Identities,
    rng: SeededRng,
    memory: Arc<shard::NodeMemory>,
    now: Time,
    wall: WallTime,
    /// Empty until the node belongs to a cluster.
    seats: Vec<ShardHost>,
    /// What the log held, until there are shards.
    recovered: Option<wal::Recovered>,
    /// Machines that the failure detector calls up.
    up: BTreeMap<NodeId, Incarnation>,
    /// Of those, the ones that the shards were told of, and as whom.
    told: BTreeMap<NodeId, (NodeId, Incarnation)>,
    tokens: VecDeque<(WalToken, u16, WalToken)>,
    next_token: u64,
    jobs: BTreeMap<JobId, (u16, JobId)>,
    next_job: u64,
    /// Newest log file that each shard no longer needs.
    freed: Vec<u64>,
    deleted: u64,
    answers: Vec<(u64, u64, mpsc::Receiver<bool>)>,
    /// Flags that are to be turned on, and who knows them.
    enabling: Vec<(Name, mpsc::Receiver<Vec<NodeFacts>>)>,
    shutting_down: bool,
    drained: bool,
    actions: Vec<Action<Node>>,
}

/// How a node is called by people.
pub fn name_of(place: u64) -> String {
    format!("n{place}")
}

/// The protocol of AMQP 0.9.1 clients.
pub const AMQP: ProtocolId = ProtocolId(0);
/// The protocol of MQTT clients.
pub const MQTT: ProtocolId = ProtocolId(1);

/// Protocols without heartbeats, in the order of [`AMQP`] and [`MQTT`].
fn protocols() -> Protocols {
    let amqp = session_amqp091::Amqp091 {
        cluster_name: "sim".into(),
        product: "RabbitMQ".into(),
        version: "4.1.0".into(),
        limits: Arc::new(session_amqp091::Limits {
            heartbeat: 0,
            ..Default::default()
        }),
        logins: Arc::new(session_amqp091::Logins {
            mechanisms: vec![auth::Mechanism::Plain],
            loopback_users: Vec::new(),
            anonymous: None,
        }),
    };
    let mqtt = session_mqtt::Mqtt {
        settings: Arc::new(session_mqtt::Settings {
            loopback_users: Vec::new(),
            ..Default::default()
        }),
    };
    Protocols::new(vec![Arc::new(amqp), Arc::new(mqtt)])
}

impl Node {
    pub fn start(start: Start, plan: &Plan, identities: &Identities) -> Result<Node, String> {
        let identity = {
            let mut all = identities.borrow_mut();
            let known = all.get_mut(&start.node).ok_or("a machine without a name")?;
            known.incarnation.0 += 1;
            *known
        };
        let mut node = Node {
            machine: start.node,
            identity,
            disk: Arc::new(start.disk),
            plan: plan.clone(),
            identities: identities.clone(),
            rng: SeededRng::new(start.seed),
            memory: Arc::default(),
            now: start.now,
            wall: start.wall,
            seats: Vec::new(),
            recovered: Some(start.recovered),
            up: BTreeMap::new(),
            told: BTreeMap::new(),
            tokens: VecDeque::new(),
            next_token: 0,
            jobs: BTreeMap::new(),
            next_job: 0,
            freed: vec![0; usize::from(plan.shards)],
            deleted: 0,
            answers: Vec::new(),
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

    pub fn id(&self) -> NodeId {
        self.identity.node
    }

    pub fn program(&self) -> Version {
        self.identity.program
    }

    pub fn incarnation(&self) -> Incarnation {
        self.identity.incarnation
    }

    /// Takes clients.
    pub fn is_listening(&self) -> bool {
        self.seats.iter().all(|s| s.listening)
    }

    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.seats.iter().map(|s| &s.shard)
    }

    fn make_shards(&mut self) -> Result<(), String> {
        let recovered = self.recovered.take().unwrap_or_default();
        let newest = recovered.files.last().copied().unwrap_or(0);
        for (index, part) in (0u16..).zip(RecoveredShard::split(recovered, self.plan.shards)) {
            let config = self.shard_config(index);
            let shard = Shard::new(config, part, Arc::clone(&self.disk), self.now, self.wall)
                .map_err(|error| error.to_string())?;
            let mut seat = ShardHost::new(shard);
            if newest > 0 {
                seat.put(Inbound::WalRolled(newest));
            }
            self.seats.push(seat);
        }
        Ok(())
    }

    fn shard_config(&mut self, index: u16) -> ShardConfig {
        let me = self.identity.node;
        let founder = self.plan.founding.nodes.iter().any(|f| f.id == me);
        let name = name_of(self.identity.place);
        ShardConfig {
            node: me,
            incarnation: self.identity.incarnation,
            address: format!("{name}:25672").as_str().into(),
            name: name.as_str().into(),
            shards: self.plan.shards,
            index,
            founding: founder.then(|| self.plan.founding.clone()),
            seed: self.rng.next_u64(),
            placement: shard::Placement::default(),
            budget: shard::MemoryBudget {
                node: self.memory.clone(),
                ..shard::MemoryBudget::of(MEMORY_BUDGET)
            },
            program: self.identity.program,
            protocols: protocols(),
            groups: self.plan.limits.clone(),
        }
    }

    fn record_of(identity: &Identity) -> NodeRecord {
        let name = name_of(identity.place);
        NodeRecord {
            id: identity.node,
            address: format!("{name}:25672").as_str().into(),
            name: name.as_str().into(),
            voter: false,
            maintenance: false,
        }
    }

    /// For every shard of this node.
    fn put_all(&mut self, item: impl Fn() -> Inbound) {
        for seat in &mut self.seats {
            seat.put(item());
        }
    }

    /// What the handshake of a link does: the shards hear of members that are up; a node without a cluster is taken in.
    fn introduce(&mut self) {
        let news: Vec<(NodeId, Identity)> = {
            let all = self.identities.borrow();
            let up = self.up.keys().filter_map(|m| Some((*m, *all.get(m)?)));
            up.filter(|(m, i)| i.member && self.told.get(m) != Some(&(i.node, i.incarnation)))
                .collect()
        };
        for (machine, identity) in news {
            match self.fits(machine, &identity) {
                Compatibility::Both => {}
                Compatibility::NotThem => continue,
                Compatibility::NotMe => return,
            }
            if !self.identity.member && !self.adopt() {
                return;
            }
            let (node, incarnation) = (identity.node, identity.incarnation);
            self.told.insert(machine, (node, incarnation));
            if let Some(first) = self.seats.first_mut() {
                first.put(Inbound::PeerProgram(node, identity.program.facts()));
            }
            self.put_all(|| Inbound::PeerUp(node, incarnation));
            self.actions.push(Action::Note(Note::PeerUp(machine)));
            let record = Node::record_of(&identity);
            if let Some(first) = self.seats.first_mut() {
                first.put(Inbound::Join(record));
            }
        }
    }

    /// What the handshake finds: a program that does not know a flag which the other's cluster has on is not linked, and ends.
    fn fits(&mut self, machine: NodeId, other: &Identity) -> Compatibility {
        let flags = self.plan.flags.borrow();
        let on = |m: NodeId| flags.get(&m).into_iter().flatten().map(|f| &**f);
        if let Some(why) = self.identity.program.misfit(on(machine)) {
            self.actions.push(Action::Fatal(why));
            return Compatibility::NotMe;
        }
        match other.program.misfit(on(self.machine)) {
            Some(_) => Compatibility::NotThem,
            None => Compatibility::Both,
        }
    }

    /// A member has told which cluster it belongs to.
    fn adopt(&mut self) -> bool {
        self.identity.member = true;
        if let Some(known) = self.identities.borrow_mut().get_mut(&self.machine) {
            known.member = true;
        }
        if let Err(error) = self.make_shards() {
            self.actions.push(Action::Fatal(error));
            return false;
        }
        true
    }

    /// The shard that a frame is for.
    fn addressee(&self, mut frame: Bytes) -> (u16, Bytes) {
        let (tag, key) = (frame.get_u8(), frame.get_u64());
        let shard = match tag {
            0 => key as u16,
            _ => shard_of(key, self.plan.shards),
        };
        (shard, frame)
    }

    fn machine_of(&self, node: NodeId) -> Option<NodeId> {
        let mut told = self.told.iter();
        told.find(|(_, (n, _))| *n == node).map(|(m, _)| *m)
    }

    /// One turn of a shard's loop.
    fn run(&mut self, index: usize) {
        let (now, wall) = (self.now, self.wall);
        let Some(seat) = self.seats.get_mut(index) else {
            return;
        };
        seat.due = false;
        seat.shard.tick(now, wall);
        seat.take_inbox(now);
        seat.serve();
        for _ in 0..ROUNDS_PER_TURN {
            let Some(seat) = self.seats.get_mut(index) else {
                return;
            };
            let mut effects = Vec::new();
            seat.shard.poll(&mut effects);
            if effects.is_empty() && !seat.flush(&mut self.actions) {
                return;
            }
            for effect in effects {
                self.carry_out(index, effect);
            }
        }
        if let Some(seat) = self.seats.get_mut(index) {
            seat.due = true;
        }
    }

    fn carry_out(&mut self, index: usize, effect: Effect) {
        let shard = index as u16;
        match effect {
            Effect::Append { token, records } => {
                self.next_token += 1;
                let ours = WalToken(self.next_token);
                self.tokens.push_back((ours, shard, token));
                self.actions.push(Action::Append {
                    token: ours,
                    records,
                });
            }
            Effect::Job { id, job } => {
                self.next_job += 1;
                let ours = JobId(self.next_job);
                self.jobs.insert(ours, (shard, id));
                self.actions.push(Action::Job { id: ours, job });
            }
            Effect::Peer { to, route, frame } => {
                if let Some(to) = self.machine_of(to) {
                    let frame = addressed(route, &frame);
                    self.actions.push(Action::Send { to, frame });
                }
            }
            Effect::Shard { to, from, frame } => {
                let at = self.now + Duration::from_nanos(self.rng.below(HOP.as_nanos() as u64));
                if let Some(seat) = self.seats.get_mut(usize::from(to)) {
                    seat.put_later(at, Inbound::Frame(from, frame));
                }
            }
            Effect::Flush(key) => {
                if let Some(seat) = self.seats.get_mut(index) {
                    seat.mark(key);
                }
            }
            Effect::Fatal(text) => self.actions.push(Action::Fatal(text)),
            Effect::Listen(on) => {
                if let Some(seat) = self.seats.get_mut(index) {
                    seat.listening = on;
                }
            }
            Effect::WalFree { up_to } => self.free(index, up_to),
            // Links are made to every machine.
            Effect::Nodes(view) => {
                if let Some(enabled) = view.enabled {
                    self.plan.flags.borrow_mut().insert(self.machine, enabled);
                }
            }
        }
    }

    /// Files that every shard has freed go.
    fn free(&mut self, shard: usize, up_to: u64) {
        if let Some(freed) = self.freed.get_mut(shard) {
            *freed = up_to.max(*freed);
        }
        let all = self.freed.iter().copied().min().unwrap_or(0);
        if all > self.deleted {
            self.deleted = all;
            self.actions.push(Action::FreeWal { up_to: all });
        }
    }

    fn answer(&mut self) {
        let mut waiting = std::mem::take(&mut self.answers);
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
        self.answers.append(&mut waiting);
    }

    /// What the management API does with a flag: each node must be known to know it, and those are named.
    fn enable(&mut self) {
        let waiting = std::mem::take(&mut self.enabling);
        for (name, answer) in waiting {
            match answer.try_recv() {
                Err(mpsc::TryRecvError::Empty) => self.enabling.push((name, answer)),
                Err(mpsc::TryRecvError::Disconnected) => {}
                Ok(nodes) => {
                    let knows = |n: &NodeFacts| n.version.as_ref().is_some_and(|p| p.knows(&name));
                    // A cluster without its first contents has no nodes, and nobody who knows anything.
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
        let shards = self.seats.len().max(1) as u64;
        self.seats.get_mut((connection % shards) as usize)
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
                let (tell, answer) = mpsc::channel();
                self.enabling.push((name, answer));
                // Nobody listens any more when the node has ended.
                let reply = Box::new(move |nodes| drop(tell.send(nodes)));
                ControlRequest::Nodes { reply }
            }
            Operation::Maintenance(on) => ControlRequest::Maintenance {
                on,
                reply: Box::new(|_| {}),
            },
        };
        if let Some(first) = self.seats.first_mut() {
            first.put(Inbound::Control(request));
        }
    }

    fn change(&mut self, client: u64, number: u64, change: Change) {
        let (tell, answer) = mpsc::channel();
        let reply = Box::new(move |result: Result<ChangeResult, ChangeError>| {
            // Nobody listens any more when the node has ended.
            let _ = tell.send(result.is_ok());
        });
        self.answers.push((client, number, answer));
        if let Some(first) = self.seats.first_mut() {
            first.put(Inbound::Control(ControlRequest::Change { change, reply }));
        }
    }
}

/// A frame with the way it takes over there in front, as links send it.
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
        for seat in &mut self.seats {
            seat.due |= seat.wake_at().is_some_and(|at| at <= now);
        }
    }

    fn turn(&mut self, now: Time, wall: WallTime) {
        (self.now, self.wall) = (now, wall);
    }

    fn wake_at(&self) -> Option<Time> {
        self.seats.iter().filter_map(ShardHost::wake_at).min()
    }

    fn peer_frame(&mut self, from: NodeId, frame: Bytes) {
        self.introduce();
        let Some((node, _)) = self.told.get(&from).copied() else {
            return;
        };
        let (shard, body) = self.addressee(frame);
        if let Some(seat) = self.seats.get_mut(usize::from(shard)) {
            seat.put(Inbound::PeerFrame(node, body));
        }
    }

    fn peer_up(&mut self, machine: NodeId, incarnation: Incarnation) {
        self.up.insert(machine, incarnation);
        self.told.remove(&machine);
        self.introduce();
    }

    fn peer_down(&mut self, machine: NodeId) {
        self.up.remove(&machine);
        if let Some((node, _)) = self.told.remove(&machine) {
            self.put_all(|| Inbound::PeerDown(node));
        }
        self.actions.push(Action::Note(Note::PeerDown(machine)));
    }

    fn durable(&mut self, token: WalToken) {
        while let Some((_, shard, theirs)) = self.tokens.pop_front_if(|(t, _, _)| t.0 <= token.0) {
            if let Some(seat) = self.seats.get_mut(usize::from(shard)) {
                seat.durable(theirs);
            }
        }
    }

    fn wal_rolled(&mut self, file: u64) {
        self.put_all(|| Inbound::WalRolled(file));
    }

    fn job_done(&mut self, id: JobId, result: JobResult) {
        if let Some((shard, theirs)) = self.jobs.remove(&id)
            && let Some(seat) = self.seats.get_mut(usize::from(shard))
        {
            seat.put(Inbound::JobDone(theirs, result));
        }
    }

    fn request(&mut self, client: u64, request: Request) {
        let connection = match request {
            Request::Connect {
                connection,
                protocol,
            } => {
                let seat = self.seat_of(connection).filter(|s| s.listening);
                match seat {
                    Some(seat) => {
                        seat.accept(client, connection, protocol);
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
                let seat = self.seat_of(connection);
                let known = seat.is_some_and(|s| s.arrived(connection, number, &piece));
                if known || piece == StreamPiece::End {
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
        self.introduce();
        for index in 0..self.seats.len() {
            let wanted = self
                .seats
                .get(index)
                .is_some_and(|s| s.wants_turn(self.now));
            if wanted {
                self.run(index);
            }
        }
        self.answer();
        self.enable();
        if self.shutting_down && !self.drained {
            self.drained = self.seats.iter().all(|s| s.shard.drained_fully());
            if self.drained {
                self.actions.push(Action::Note(Note::Drained));
            }
        }
        out.append(&mut self.actions);
    }
}
