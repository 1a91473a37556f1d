//! Nodes of one shard each, in one thread and in time that the test moves, and clients that speak AMQP 0.9.1 to them.
#![allow(dead_code, reason = "every test file uses its own part")]

pub mod amqp10;
pub mod browser;
pub mod mqtt;

use auth::{HashAlgorithm, hash_with};
use bytes::{Bytes, BytesMut};
use codec_amqp091::{
    ContentHeader, FrameKind, Method, PROTOCOL_HEADER, Properties, encode_body,
    encode_content_header, encode_method, parse_frame,
};
use control::{
    BrowseFilter, ControlRequest, ForgetProgress, MemberChange, MembershipRequest, QueueFacts,
    RecoveryStep, ReplicaFacts,
};
use env::sim::SimDisk;
use env::{Disk, Incarnation, NodeId, Time, WallTime};
use message::{Message, MessageBuilder, Protocol, Table, Value};
use metadata::{Change, ChangeError, NodeRecord, QueueId, UserRecord};
use queue::{BrowseRequest, BrowsedMessage};
use session::{ConnectionInfo, ProtocolId, Protocols};
use shard::{
    ConnectionKey, Effect, Founding, LocalMessage, RecoveredShard, Shard, ShardConfig, ShardDriver,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// The first byte of frames between Raft hosts, and of those with requests to queues.
const RAFT: u8 = 1;
const TO_QUEUE: u8 = 2;
/// Time moves in steps of this.
const STEP: Duration = Duration::from_millis(10);
/// Steps that a condition is waited for.
const PATIENCE: usize = 6000;
const FRAME_MAX: u32 = 131_072;

struct Node {
    shard: Shard,
    disk: SimDisk,
    up: bool,
    /// Clients may come.
    listening: bool,
    /// No frame reaches it or leaves it.
    alone: bool,
    /// Why it had to stop.
    failed: Option<String>,
    /// The newest complete file of its log.
    rolled: u64,
    /// It was given something since its last turn.
    has_input: bool,
    /// It knows the time of its next turn, for which it was given something.
    has_time: bool,
    /// When its next turn is due without input, after a turn while idle nodes are skipped.
    wake_at: Option<Time>,
}

impl Node {
    /// A driver that skips idle nodes tells the time before it passes input on.
    fn begin_input(&mut self, (now, wall): (Time, WallTime), skips_idle: bool) {
        if skips_idle && !self.has_time {
            self.has_time = true;
            self.shard.tick(now, wall);
        }
        self.has_input = true;
    }
}

pub struct Cluster {
    nodes: Vec<Node>,
    frames: VecDeque<(usize, NodeId, Bytes)>,
    /// Messages between the shards of one node: the receiver, the sender and the message.
    shard_messages: VecDeque<(u16, u16, LocalMessage)>,
    /// This node gets no frames of Raft for the time being.
    behind: Option<usize>,
    held: VecDeque<(usize, NodeId, Bytes)>,
    /// Queues elsewhere hear nothing from the sessions of these nodes for the time being.
    unheard: BTreeMap<usize, Vec<(NodeId, Bytes)>>,
    now: Time,
    pub wall: WallTime,
    connections: usize,
    /// A node that came back may have to stop.
    may_fail: bool,
    /// Nodes without input have no turn before it is time.
    skips_idle: bool,
}

impl Cluster {
    /// A cluster that is ready.
    pub fn new(size: usize) -> Cluster {
        Cluster::made(&vec![""; size], None)
    }

    /// The same, each node in its zone.
    pub fn zoned(zones: &[&str]) -> Cluster {
        Cluster::made(zones, None)
    }

    /// A cluster of which one node is not started yet; the others are ready.
    pub fn without(size: usize, late: Option<usize>) -> Cluster {
        Cluster::made(&vec![""; size], late)
    }

    /// A node alone whose groups write a checkpoint after so many entries, and keep no entries below it.
    pub fn with_checkpoints(entries: u64) -> Cluster {
        Cluster::with_nodes_and_checkpoints(1, entries)
    }

    /// A cluster whose groups write a checkpoint after so many entries, and keep no entries below it.
    pub fn with_nodes_and_checkpoints(size: usize, entries: u64) -> Cluster {
        let groups = consensus::HostLimits {
            checkpoint_entries: entries,
            retain_entries: 0,
            ..consensus::HostLimits::default()
        };
        Cluster::made_with(size, None, |_, config| config.groups = groups.clone())
    }

    /// A cluster whose clients may publish messages of this size, those of the first node alone.
    pub fn with_message_size(size: usize, bytes: u32) -> Cluster {
        Cluster::made_with(size, None, |at, config| {
            if at == 0 {
                config.protocols = protocols(bytes);
            }
        })
    }

    /// A node alone with this number of shards. Each shard takes the place of a node: the shard with index 1 is
    /// `nodes[1]`, and a client of it is `client(1)`.
    pub fn of_shards(count: u16) -> Cluster {
        let mut cluster = Cluster::new_unready(count.into(), None, |at, config| {
            let index = u16::try_from(at).expect("few shards");
            let shard = self::config(1, &[record(1)]);
            *config = ShardConfig {
                shards: count,
                index,
                ..shard
            };
        });
        cluster.until("listening", |c| {
            c.nodes.iter().all(|shard| shard.listening).then_some(())
        });
        cluster
    }

    /// The shard of a node with this number of shards that owns a queue.
    pub fn owner_shard(&mut self, queue: &str) -> usize {
        let shards = u16::try_from(self.nodes.len()).expect("few shards");
        let id = self.queue_id(0, queue).expect("a declared queue");
        shard::shard_of(id.0, shards).into()
    }

    /// A cluster that an older program founded: this feature flag is off.
    pub fn without_feature(size: usize, name: &str) -> Cluster {
        Cluster::made_with(size, None, |_, config| {
            let founding = config.founding.as_mut().expect("a founder");
            founding.features.retain(|feature| **feature != *name);
        })
    }

    /// A node alone whose clients are restricted.
    pub fn with_restrictions(restrictions: &metadata::restrictions::Restrictions) -> Cluster {
        Cluster::made_with(1, None, |_, config| {
            config.restrictions = restrictions.clone();
        })
    }

    /// A node alone with this memory budget.
    pub fn with_budget(budget: &shard::MemoryBudget) -> Cluster {
        Cluster::made_with(1, None, |_, config| config.budget = budget.clone())
    }

    /// A cluster whose nodes all fill these latencies of deliveries.
    pub fn with_deliveries(size: usize, deliveries: &Arc<control::DeliveryTimings>) -> Cluster {
        Cluster::made_with(size, None, |_, config| {
            config.deliveries = Arc::clone(deliveries);
        })
    }

    fn made(zones: &[&str], late: Option<usize>) -> Cluster {
        Cluster::made_with(zones.len(), late, |at, config| {
            config.placement.zone = zones[at].into();
        })
    }

    fn made_with(
        size: usize,
        late: Option<usize>,
        adapt: impl Fn(usize, &mut ShardConfig),
    ) -> Cluster {
        let mut cluster = Cluster::new_unready(size, late, adapt);
        for at in 0..size {
            if Some(at) != late {
                cluster.meet(at, late);
            }
        }
        for at in (0..size).filter(|at| Some(*at) != late) {
            cluster.until("ready", |c| c.is_ready(at).then_some(()));
        }
        cluster
    }

    /// The nodes, which do not know of each other yet.
    fn new_unready(
        size: usize,
        late: Option<usize>,
        adapt: impl Fn(usize, &mut ShardConfig),
    ) -> Cluster {
        let founders: Vec<NodeRecord> = (1..=size as u64).map(record).collect();
        let wall = WallTime(1_700_000_000_000);
        let make = |at: usize| {
            let disk = SimDisk::new();
            let mut config = config(at as u64 + 1, &founders);
            adapt(at, &mut config);
            let recovered = RecoveredShard::default();
            let shard = Shard::new(config, recovered, Arc::new(disk.clone()), Time(1), wall);
            Node {
                shard: shard.expect("a new shard"),
                disk,
                up: Some(at) != late,
                listening: false,
                alone: false,
                failed: None,
                rolled: 0,
                has_input: true,
                has_time: false,
                wake_at: None,
            }
        };
        Cluster {
            nodes: (0..size).map(make).collect(),
            frames: VecDeque::new(),
            shard_messages: VecDeque::new(),
            behind: None,
            held: VecDeque::new(),
            unheard: BTreeMap::new(),
            now: Time(1),
            wall,
            connections: 0,
            may_fail: false,
            skips_idle: false,
        }
    }

    /// What a node hears of the others as links come up.
    fn meet(&mut self, at: usize, but: Option<usize>) {
        for other in (0..self.nodes.len()).filter(|other| *other != at && Some(*other) != but) {
            let peer = NodeId(other as u64 + 1);
            self.nodes[at].shard.peer_up(peer, Incarnation(1), 1);
        }
    }

    /// The node that was left out runs, and nobody hears it yet.
    pub fn start_alone(&mut self, at: usize) {
        self.nodes[at].up = true;
        self.nodes[at].alone = true;
    }

    /// A node hears nothing of what the others agree on, until it is None: then it hears all of it.
    pub fn hold_back(&mut self, at: Option<usize>) {
        self.behind = at;
        self.frames.append(&mut self.held);
    }

    /// What this node's sessions say to queues elsewhere is on its way, until [`Cluster::let_through`].
    pub fn delay_requests(&mut self, at: usize) {
        self.unheard.entry(at).or_default();
    }

    /// It arrives, in its order.
    pub fn let_through(&mut self, at: usize) {
        let unheard = self.unheard.remove(&at).unwrap_or_default();
        let all = unheard.into_iter().map(|(to, frame)| (at, to, frame));
        self.frames.extend(all);
        self.settle();
    }

    /// It is lost. From now on requests arrive.
    pub fn lose_requests(&mut self, at: usize) {
        self.unheard.remove(&at);
    }

    /// Its links break; it and its clients live on.
    pub fn cut_off(&mut self, at: usize) {
        self.nodes[at].alone = true;
        let node = NodeId(at as u64 + 1);
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            self.nodes[other].shard.peer_down(node);
            self.nodes[at].shard.peer_down(NodeId(other as u64 + 1));
        }
    }

    /// It is linked to the others.
    pub fn link(&mut self, at: usize) {
        self.nodes[at].alone = false;
        self.meet(at, None);
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            let peer = NodeId(at as u64 + 1);
            self.nodes[other].shard.peer_up(peer, Incarnation(1), 1);
        }
    }

    /// How long the cluster has been running.
    pub fn age(&self) -> Duration {
        self.now.since(Time(1))
    }

    /// Whether clients can reach a node.
    pub fn listens(&self, at: usize) -> bool {
        self.nodes[at].listening
    }

    pub fn ask<T: Send + 'static>(
        &mut self,
        at: usize,
        request: impl FnOnce(control::Reply<T>) -> ControlRequest,
    ) -> T {
        let (tell, told) = mpsc::channel();
        let reply = Box::new(move |answer| drop(tell.send(answer)));
        self.nodes[at].shard.control(request(reply));
        self.until("answer", |_| told.try_recv().ok())
    }

    /// All messages of a queue, listed page by page.
    pub fn messages(&mut self, at: usize, queue: QueueId) -> Vec<BrowsedMessage> {
        let mut request = BrowseRequest {
            from: None,
            least: 0,
            most: u64::MAX,
            messages: 7,
            body_bytes: 100,
            body_start: 0,
            state: None,
            unexpired_at: None,
        };
        let mut all = Vec::new();
        loop {
            let of = BrowseFilter::new(queue, &request);
            let page = self.ask(at, |reply| ControlRequest::Browse { of, reply });
            let page = page.expect("an owner").into_page().expect("a page");
            all.extend(page.messages);
            match page.next {
                Some(next) => request.from = Some(next),
                None => return all,
            }
        }
    }

    /// Asks, and lets nothing happen yet.
    pub fn begin(&mut self, at: usize, request: ControlRequest) {
        self.nodes[at].shard.control(request);
    }

    /// Items that listings of a node have looked at.
    pub fn looked_at(&self, at: usize) -> u64 {
        self.nodes[at].shard.state().listed_items()
    }

    /// Groups that a node has reviewed.
    pub fn reviewed(&self, at: usize) -> u64 {
        self.nodes[at].shard.state().reviewed_groups()
    }

    fn is_ready(&mut self, at: usize) -> bool {
        let (tell, told) = mpsc::channel();
        let reply = Box::new(move |answer| drop(tell.send(answer)));
        self.nodes[at]
            .shard
            .control(ControlRequest::Readiness { reply });
        told.try_recv() == Ok(control::Readiness::Ready)
    }

    pub fn change(&mut self, change: Change) {
        let done = self.ask(0, |reply| ControlRequest::Change { change, reply });
        done.expect("the change is made");
    }

    /// Whether a node's tree has a queue, now.
    pub fn knows(&mut self, at: usize, name: &str) -> bool {
        let (tell, told) = mpsc::channel();
        let name = name.to_owned();
        let read = Box::new(move |tree: &metadata::Tree| {
            let _ = tell.send(tree.queue("/", &name).is_some());
        });
        self.nodes[at].shard.control(ControlRequest::Read(read));
        told.try_recv().is_ok_and(|known| known)
    }

    /// Figures of a queue, None when there is no such queue.
    pub fn queue(&mut self, at: usize, name: &str) -> Option<QueueFacts> {
        let id = self.ask(at, |reply| {
            let name = name.to_owned();
            ControlRequest::Read(Box::new(move |tree| {
                reply(tree.queue("/", &name).map(|q| q.id));
            }))
        });
        let only: Option<QueueId> = Some(id?);
        let facts = self.ask(at, |reply| ControlRequest::Queues { only, reply });
        facts.into_iter().next()
    }

    pub fn ready(&mut self, at: usize, name: &str) -> u64 {
        let stats = self.queue(at, name).and_then(|q| q.stats);
        stats.map_or(0, |s| s.ready)
    }

    /// Everything that follows without time passing.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.round() {
                return;
            }
        }
        panic!("never settles");
    }

    /// One turn of each node, and the frames that they send. False if no node had anything to do.
    pub fn round(&mut self) -> bool {
        let mut worked = false;
        for at in 0..self.nodes.len() {
            worked |= self.carry_on(at);
        }
        while let Some((from, to, frame)) = self.frames.pop_front() {
            if self.behind == Some(to.0 as usize - 1) && frame.first() == Some(&RAFT) {
                self.held.push_back((from, to, frame));
                continue;
            }
            if let Some(unheard) = self.unheard.get_mut(&from)
                && frame.first() == Some(&TO_QUEUE)
            {
                unheard.push((to, frame));
                continue;
            }
            let from_node = NodeId(from as u64 + 1);
            let cut = self.nodes[from].alone;
            let node = &mut self.nodes[to.0 as usize - 1];
            if node.up && !node.alone && !cut {
                node.begin_input((self.now, self.wall), self.skips_idle);
                node.shard.peer_frame(from_node, frame);
            }
        }
        while let Some((to, from, message)) = self.shard_messages.pop_front() {
            let node = &mut self.nodes[usize::from(to)];
            node.begin_input((self.now, self.wall), self.skips_idle);
            node.shard.shard_message(from, message);
        }
        worked
    }

    fn carry_on(&mut self, at: usize) -> bool {
        let node = &mut self.nodes[at];
        if !node.up {
            return false;
        }
        let has_input = std::mem::take(&mut node.has_input);
        if self.skips_idle && !has_input && node.wake_at.is_none_or(|at| at > self.now) {
            return false;
        }
        if !std::mem::take(&mut node.has_time) {
            node.shard.tick(self.now, self.wall);
        }
        let mut effects = Vec::new();
        node.shard.poll(&mut effects);
        if self.skips_idle {
            node.wake_at = node.shard.wake_at();
        }
        let mut worked = false;
        for effect in effects {
            match effect {
                Effect::Append { token, .. } => {
                    node.has_input = true;
                    node.shard.durable(token);
                }
                Effect::Job { id, job } => {
                    node.has_input = true;
                    let result = job.run(&node.disk);
                    node.shard.job_done(id, result);
                }
                Effect::Peer { to, frame, .. } => {
                    let me = NodeId(at as u64 + 1);
                    assert_ne!(to, me, "node {at} sends a frame to itself");
                    self.frames.push_back((at, to, frame));
                }
                Effect::Fatal(text) if self.may_fail => {
                    node.up = false;
                    node.failed = Some(text);
                    return true;
                }
                Effect::Fatal(text) => panic!("node {at} failed: {text}"),
                Effect::Shard { to, from, message } => {
                    self.shard_messages.push_back((to, from, message));
                }
                Effect::Listen(on) => node.listening = on,
                Effect::Flush(_) | Effect::WalFree { .. } | Effect::Nodes(_) => continue,
            }
            worked = true;
        }
        worked
    }

    /// Bytes of a client.
    fn receive(&mut self, at: usize, key: ConnectionKey, input: &mut BytesMut) {
        let node = &mut self.nodes[at];
        node.begin_input((self.now, self.wall), self.skips_idle);
        node.shard.received(key, input);
    }

    /// From now on a node without input has no turn before it is time, as with a driver. For benchmarks: only what clients
    /// send, frames, messages of shards and the disk are input.
    pub fn skip_idle(&mut self) {
        self.skips_idle = true;
        for node in &mut self.nodes {
            node.has_input = true;
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while self.now < end {
            self.now = self.now + STEP;
            self.wall.0 += STEP.as_millis() as u64;
            self.settle();
        }
    }

    /// One turn of a node, a step later. True when it gave anybody anything to do.
    pub fn turn(&mut self, at: usize) -> bool {
        self.now = self.now + STEP;
        self.wall.0 += STEP.as_millis() as u64;
        self.carry_on(at)
    }

    /// Lets time pass until there is something.
    pub fn until<T>(&mut self, what: &str, mut f: impl FnMut(&mut Cluster) -> Option<T>) -> T {
        self.settle();
        for _ in 0..PATIENCE {
            if let Some(found) = f(self) {
                return found;
            }
            self.pass(STEP);
        }
        panic!("not {what} in time");
    }

    /// The node that leads a queue is gone for good. Waits until another one leads it; returns the next node, and a client
    /// of it.
    pub fn kill_leader(&mut self, queue: &str) -> (usize, Client) {
        let leader = self.queue(0, queue).and_then(|q| q.leader);
        let leader = leader.expect("a leader");
        let at = leader.0 as usize - 1;
        let other = (at + 1) % self.nodes.len();
        self.kill(at);
        let client = self.until("a client of another node", |c| c.try_client(other).ok());
        self.until("the queue has another leader", |c| {
            let is_led = c.queue(other, queue)?.leader.is_some_and(|l| l != leader);
            is_led.then_some(())
        });
        (other, client)
    }

    /// A node is gone for good.
    pub fn kill(&mut self, at: usize) {
        self.nodes[at].up = false;
        for node in self.nodes.iter_mut().filter(|n| n.up) {
            node.shard.peer_down(NodeId(at as u64 + 1));
        }
    }

    /// A node that is down starts with an empty data directory: under its old name and a new id. Returns where it is now; its old
    /// self stays down.
    pub fn lose_directory(&mut self, at: usize) -> usize {
        let (new, id) = (self.nodes.len(), self.nodes.len() as u64 + 1);
        let old = record(at as u64 + 1);
        let disk = SimDisk::new();
        let config = ShardConfig {
            name: old.name.clone(),
            address: old.address.clone(),
            founding: None,
            ..config(id, &[])
        };
        let recovered = RecoveredShard::default();
        let shard = Shard::new(
            config,
            recovered,
            Arc::new(disk.clone()),
            self.now,
            self.wall,
        );
        self.nodes.push(Node {
            shard: shard.expect("a new shard"),
            disk,
            up: true,
            listening: false,
            alone: false,
            failed: None,
            rolled: 0,
            has_input: true,
            has_time: false,
            wake_at: None,
        });
        let joins = NodeRecord {
            voter: false,
            ..NodeRecord {
                id: NodeId(id),
                ..old
            }
        };
        for other in 0..new {
            if self.nodes[other].up {
                let peer = NodeId(other as u64 + 1);
                self.nodes[new].shard.peer_up(peer, Incarnation(1), 1);
                self.nodes[other]
                    .shard
                    .peer_up(NodeId(id), Incarnation(1), 1);
                self.nodes[other].shard.join_requested(joins.clone());
            }
        }
        new
    }

    /// Records of queues that a node has looked at one after the other.
    #[cfg(debug_assertions)]
    pub fn visited_queue_count(&self, at: usize) -> u64 {
        self.nodes[at].shard.state().tree().visited_queue_count()
    }

    /// Voters of the metadata group as a node knows them.
    pub fn metadata_voters(&self, at: usize) -> Vec<NodeId> {
        let status = self.nodes[at]
            .shard
            .state()
            .local_queues()
            .metadata_status();
        status.map(|s| s.membership.voters).unwrap_or_default()
    }

    /// A node whose links broke is heard of again.
    pub fn back(&mut self, at: usize) {
        self.may_fail = true;
        self.nodes[at].up = true;
        let node = NodeId(at as u64 + 1);
        let others = (0..self.nodes.len()).filter(|other| *other != at);
        for other in others.collect::<Vec<_>>() {
            let peer = NodeId(other as u64 + 1);
            self.nodes[other].shard.peer_up(node, Incarnation(1), 1);
            self.nodes[other].shard.join_requested(record(node.0));
            self.nodes[at].shard.peer_up(peer, Incarnation(1), 1);
        }
    }

    /// Nodes may end by themselves from now on.
    pub fn may_fail(&mut self) {
        self.may_fail = true;
    }

    pub fn failed(&self, at: usize) -> Option<String> {
        self.nodes[at].failed.clone()
    }

    pub fn disk(&self, at: usize) -> &SimDisk {
        &self.nodes[at].disk
    }

    pub fn files_at(&self, at: usize) -> Vec<String> {
        let files = self.nodes[at].disk.files().into_iter();
        files.map(|(path, _)| path).collect()
    }

    /// The node's log goes on in a new file: what is in the old one moves to segments.
    pub fn roll_log(&mut self, at: usize) {
        self.nodes[at].rolled += 1;
        let file = self.nodes[at].rolled;
        self.nodes[at].shard.wal_rolled(file);
    }

    pub fn files(&self, at: usize, dir: &str) -> Vec<String> {
        let groups = self.nodes[at].disk.list(dir).unwrap_or_default();
        // The metadata group's stay.
        groups
            .into_iter()
            .filter(|g| *g != format!("{:016x}", 0))
            .collect()
    }

    pub fn queue_id(&mut self, at: usize, name: &str) -> Option<QueueId> {
        let name = name.to_owned();
        self.ask(at, |reply| {
            ControlRequest::Read(Box::new(move |tree| {
                reply(tree.queue("/", &name).map(|q| q.id));
            }))
        })
    }

    /// Asks node 0; the members that are wanted then.
    pub fn change_members(
        &mut self,
        queue: &str,
        change: MemberChange,
    ) -> Result<Vec<NodeId>, ChangeError> {
        let queues: Vec<QueueId> = self.queue_id(0, queue).into_iter().collect();
        let outcomes = self.ask(0, |reply| {
            ControlRequest::Membership(MembershipRequest::Change {
                queues,
                change,
                reply,
            })
        });
        outcomes.into_iter().next().expect("an outcome").result
    }

    pub fn replicas(&mut self, at: usize, queue: &str) -> Vec<ReplicaFacts> {
        let queue = self.queue_id(at, queue).expect("there");
        self.ask(at, |reply| {
            ControlRequest::Membership(MembershipRequest::Replicas { queue, reply })
        })
    }

    /// Asks node 0 to forget a node.
    pub fn forget(&mut self, node: u64) -> Result<ForgetProgress, ChangeError> {
        let node = NodeId(node);
        self.ask(0, |reply| {
            ControlRequest::Membership(MembershipRequest::Forget { node, reply })
        })
    }

    /// Asks a node for the next step of the recovery of a lost majority.
    pub fn recover_step(&mut self, at: usize, lost: &[u64]) -> Result<RecoveryStep, ChangeError> {
        let lost = lost.iter().map(|n| NodeId(*n)).collect();
        self.ask(at, |reply| {
            ControlRequest::Membership(MembershipRequest::RecoverMajority { lost, reply })
        })
    }

    pub fn rebalance(&mut self) -> u32 {
        self.ask(0, |reply| ControlRequest::RebalanceQueues { reply })
    }

    /// Leaders that are left to move.
    pub fn drain(&mut self, at: usize, on: bool) -> u32 {
        let progress = self.ask(at, |reply| ControlRequest::Maintenance { on, reply });
        progress.leaders_left
    }

    pub fn nodes_known(&mut self, at: usize) -> Vec<NodeId> {
        self.ask(at, |reply| {
            ControlRequest::Read(Box::new(move |tree| {
                reply(tree.nodes().map(|n| n.id).collect());
            }))
        })
    }

    /// A client on a node, with channel 1.
    pub fn client(&mut self, at: usize) -> Client {
        self.try_client(at)
            .unwrap_or_else(|refused| panic!("{refused}"))
    }

    /// The same, which may be refused.
    pub fn try_client(&mut self, at: usize) -> Result<Client, String> {
        self.try_client_of_vhost(at, "/")
    }

    /// A client of a virtual host, which may be refused.
    pub fn try_client_of_vhost(&mut self, at: usize, vhost: &str) -> Result<Client, String> {
        let client = Client {
            at,
            key: self.connect(at, AMQP),
            input: BytesMut::new(),
            got: BytesMut::new(),
        };
        client.log_in(self, vhost)
    }

    /// Takes what is to be written to a connection's socket.
    fn take_raw(&mut self, at: usize, key: ConnectionKey, mut each: impl FnMut(&[u8])) {
        if let Some((outbox, _)) = self.nodes[at].shard.outbox(key) {
            let mut len = 0;
            for piece in outbox.pieces() {
                len += piece.len();
                each(piece);
            }
            outbox.consume(len);
        }
    }

    /// The memory alarm of a node goes on or off.
    pub fn memory_alarm(&mut self, at: usize, on: bool) {
        self.nodes[at].shard.alarm("memory", on);
        self.settle();
    }

    fn connect(&mut self, at: usize, protocol: ProtocolId) -> ConnectionKey {
        assert!(self.listens(at), "node {at} takes no clients");
        self.connections += 1;
        let key = ConnectionKey(self.connections);
        let info = ConnectionInfo {
            protocol,
            peer: SocketAddr::from(([127, 0, 0, 1], 50_000)),
            local: SocketAddr::from(([127, 0, 0, 1], 5672)),
            tls: None,
        };
        self.nodes[at].shard.connected(key, info);
        key
    }
}

/// A connection of which the test sees bytes only.
pub struct RawConnection {
    at: usize,
    pub key: ConnectionKey,
    /// What the driver keeps because it is not a whole frame.
    input: BytesMut,
    is_gone: bool,
}

impl RawConnection {
    pub fn new(cluster: &mut Cluster, at: usize, protocol: ProtocolId) -> RawConnection {
        RawConnection {
            at,
            key: cluster.connect(at, protocol),
            input: BytesMut::new(),
            is_gone: false,
        }
    }

    /// Bytes for the node, which are read in this turn.
    pub fn send(&mut self, cluster: &mut Cluster, bytes: &[u8]) {
        if !self.is_gone {
            self.input.extend_from_slice(bytes);
            cluster.receive(self.at, self.key, &mut self.input);
        }
    }

    /// Bytes that the driver keeps.
    pub fn kept(&self) -> usize {
        self.input.len()
    }

    /// What a driver does with a connection that the session has ended. True: it is gone.
    pub fn is_over(&mut self, cluster: &mut Cluster) -> bool {
        if !self.is_gone && cluster.is_closing(self.at, self.key) {
            cluster.nodes[self.at].shard.gone(self.key);
            self.input = BytesMut::new();
            self.is_gone = true;
        }
        self.is_gone
    }
}

impl Cluster {
    /// Whether the session has ended and the connection is to be closed.
    pub fn is_closing(&mut self, at: usize, key: ConnectionKey) -> bool {
        let outbox = self.nodes[at].shard.outbox(key);
        outbox.is_some_and(|(_, session_state)| session_state == session::SessionState::Closing)
    }

    /// The socket takes a few of the bytes that wait.
    pub fn take_some(&mut self, at: usize, key: ConnectionKey, bytes: usize) {
        let shard = &mut self.nodes[at].shard;
        if let Some((outbox, _)) = shard.outbox(key) {
            outbox.pieces();
            outbox.consume(bytes);
            shard.drained(key);
        }
    }
}

pub fn record(id: u64) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        name: format!("n{id}").into(),
        address: format!("n{id}:25672").into(),
        voter: true,
        maintenance: false,
    }
}

/// The protocol of AMQP 0.9.1 clients.
pub const AMQP: ProtocolId = ProtocolId(0);
/// The protocol of MQTT clients.
pub const MQTT: ProtocolId = ProtocolId(1);
/// The protocol of AMQP 1.0 clients.
pub const AMQP10: ProtocolId = ProtocolId(2);

/// `max_message_size` unless a test sets another one, in bytes.
const MESSAGE_SIZE: u32 = 16 << 20;

/// Protocols in the order of [`AMQP`], [`MQTT`] and [`AMQP10`], for AMQP messages of up to `bytes` bytes.
fn protocols(bytes: u32) -> Protocols {
    let amqp = session_amqp091::Amqp091 {
        cluster_name: "test".into(),
        product: "RabbitMQ".into(),
        version: "4.1.0".into(),
        limits: Arc::new(
            session_amqp091::Limits {
                // Clients of these tests write only when they have something to say.
                heartbeat: 0,
                ..Default::default()
            }
            .with_message_size(bytes),
        ),
        logins: Arc::new(session_amqp091::LoginConfig {
            mechanisms: vec![auth::Mechanism::Plain],
            loopback_users: Vec::new(),
            anonymous: None,
            ..session_amqp091::LoginConfig::default()
        }),
    };
    let mqtt = session_mqtt::MqttProtocol {
        settings: Arc::default(),
    };
    let amqp10 = session_amqp10::Amqp10::new(session_amqp10::Amqp10Config {
        limits: session_amqp10::Limits::default().with_message_size(bytes),
        ..session_amqp10::Amqp10Config::default()
    });
    Protocols::new(vec![Arc::new(amqp), Arc::new(mqtt), Arc::new(amqp10)])
}

pub fn config(id: u64, founders: &[NodeRecord]) -> ShardConfig {
    ShardConfig {
        node: NodeId(id),
        incarnation: Incarnation(1),
        name: format!("n{id}").into(),
        address: format!("n{id}:25672").into(),
        shards: 1,
        index: 0,
        founding: Some(Founding {
            cluster: "0123".into(),
            nodes: founders.to_vec(),
            user: UserRecord {
                name: "guest".into(),
                password: hash_with(HashAlgorithm::Sha256, b"guest", b"salt").ok(),
                tags: vec!["administrator".into()],
                limits: Vec::new(),
            },
            default_queue_type: None,
            features: metadata::features::Version::default().facts().features,
        }),
        seed: id,
        placement: shard::Placement::default(),
        budget: shard::MemoryBudget::default(),
        program: metadata::features::Version::default(),
        client_addresses: Vec::new(),
        protocols: protocols(MESSAGE_SIZE),
        machine: Box::from(*b"machine"),
        tier: None,
        consumer_timeout: Default::default(),
        groups: consensus::HostLimits::default(),
        restrictions: metadata::restrictions::Restrictions::none(),
        resources: shard::ResourceMeter(Some(Arc::new(move || control::NodeResources {
            memory_used: Some(id),
            ..control::NodeResources::default()
        }))),
        confirms: Arc::default(),
        deliveries: Arc::default(),
    }
}

/// Arguments from names and values.
pub fn arguments(list: &[(&str, Value)]) -> Table {
    let each = list.iter();
    Table(each.map(|(k, v)| ((*k).into(), v.clone())).collect())
}

/// A message as a client gets it.
#[derive(Debug)]
pub struct Got {
    pub tag: u64,
    pub exchange: String,
    pub routing_key: String,
    pub properties: Bytes,
    pub body: Bytes,
}

impl Got {
    pub fn headers(&self) -> Table {
        let properties = Properties::decode(&self.properties).expect("properties");
        properties.header_table().expect("headers")
    }

    pub fn expiration(&self) -> Option<String> {
        let properties = Properties::decode(&self.properties).expect("properties");
        properties.expiration.map(str::to_owned)
    }
}

pub struct Client {
    at: usize,
    key: ConnectionKey,
    input: BytesMut,
    got: BytesMut,
}

impl Client {
    fn log_in(mut self, cluster: &mut Cluster, virtual_host: &str) -> Result<Client, String> {
        self.input.extend_from_slice(&PROTOCOL_HEADER);
        self.push(cluster);
        let start = self.answer(cluster);
        assert!(start.1.starts_with(&[0, 10, 0, 10]), "connection.start");
        let login = Method::ConnectionStartOk {
            client_properties: Table::default(),
            mechanism: "PLAIN",
            response: b"\0guest\0guest",
            locale: "en_US",
        };
        self.call(cluster, 0, login);
        let tune = Method::ConnectionTuneOk {
            channel_max: 2047,
            frame_max: FRAME_MAX,
            heartbeat: 0,
        };
        self.send(cluster, 0, tune);
        self.ask(cluster, 0, Method::ConnectionOpen { virtual_host })?;
        self.ask(cluster, 1, Method::ChannelOpen {})?;
        Ok(self)
    }

    /// What was put into `input` goes to the node.
    fn push(&mut self, cluster: &mut Cluster) {
        cluster.receive(self.at, self.key, &mut self.input);
        cluster.settle();
    }

    /// As it stands.
    pub fn send_raw(&mut self, cluster: &mut Cluster, frames: &[u8]) {
        self.input.extend_from_slice(frames);
        self.push(cluster);
    }

    /// What has come, whole frames and a part of one, in pieces as they would be written to a socket.
    pub fn take_raw(&self, cluster: &mut Cluster, each: impl FnMut(&[u8])) {
        cluster.take_raw(self.at, self.key, each);
    }

    /// The socket took what was taken.
    pub fn drained(&self, cluster: &mut Cluster) {
        cluster.nodes[self.at].shard.drained(self.key);
    }

    pub fn is_closing(&self, cluster: &mut Cluster) -> bool {
        cluster.is_closing(self.at, self.key)
    }

    /// A publish of which only the first bytes of the body follow.
    pub fn begin_body(&mut self, cluster: &mut Cluster, size: usize, sent: usize) {
        let method = Method::BasicPublish {
            exchange: "",
            routing_key: "q",
            mandatory: false,
            immediate: false,
        };
        encode_method(&mut self.input, 1, &method);
        encode_content_header(&mut self.input, 1, size as u64, &[0, 0]);
        self.continue_body(cluster, sent);
    }

    /// More of it.
    pub fn continue_body(&mut self, cluster: &mut Cluster, bytes: usize) {
        encode_body(&mut self.input, 1, &vec![1; bytes], FRAME_MAX);
        self.push(cluster);
    }

    /// Bytes that wait for the socket.
    pub fn waiting(&self, cluster: &mut Cluster) -> usize {
        let outbox = cluster.nodes[self.at].shard.outbox(self.key);
        outbox.map_or(0, |(outbox, _)| outbox.len())
    }

    pub fn send(&mut self, cluster: &mut Cluster, channel: u16, method: Method<'_>) {
        encode_method(&mut self.input, channel, &method);
        self.push(cluster);
    }

    fn next_frame(&mut self, cluster: &mut Cluster) -> Option<(FrameKind, Bytes)> {
        if let Some((outbox, _)) = cluster.nodes[self.at].shard.outbox(self.key) {
            let pieces: Vec<Bytes> = outbox.pieces().iter().cloned().collect();
            for piece in pieces {
                outbox.consume(piece.len());
                self.got.extend_from_slice(&piece);
            }
        }
        let frame = parse_frame(&self.got, FRAME_MAX).expect("a good frame")?;
        let (kind, len) = (frame.kind, frame.wire_len());
        let mut whole = self.got.split_to(len).freeze();
        Some((kind, whole.split_to(len - 1).slice(7..)))
    }

    fn answer(&mut self, cluster: &mut Cluster) -> (FrameKind, Bytes) {
        cluster.until("answered", |c| self.next_frame(c))
    }

    /// The next method that comes, as it is shown.
    pub fn next_method(&mut self, cluster: &mut Cluster) -> String {
        let (kind, payload) = self.answer(cluster);
        assert_eq!(kind, FrameKind::Method);
        format!("{:?}", Method::decode(&payload).expect("a method"))
    }

    /// The next method, if it is there already: no time passes.
    pub fn next_method_now(&mut self, cluster: &mut Cluster) -> Option<String> {
        let (kind, payload) = self.next_frame(cluster)?;
        assert_eq!(kind, FrameKind::Method);
        Some(format!("{:?}", Method::decode(&payload).expect("a method")))
    }

    /// Asks and waits for the answer.
    pub fn ask(
        &mut self,
        cluster: &mut Cluster,
        channel: u16,
        method: Method<'_>,
    ) -> Result<Bytes, String> {
        self.send(cluster, channel, method);
        let (kind, payload) = self.answer(cluster);
        assert_eq!(kind, FrameKind::Method);
        match Method::decode(&payload).expect("a method") {
            Method::ChannelClose { reply_text, .. }
            | Method::ConnectionClose { reply_text, .. } => Err(reply_text.to_owned()),
            _ => Ok(payload),
        }
    }

    /// As [`Client::ask`]; the answer must not be an error.
    pub fn call(&mut self, cluster: &mut Cluster, channel: u16, method: Method<'_>) -> Bytes {
        self.ask(cluster, channel, method)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn declare(&mut self, cluster: &mut Cluster, queue: &str, list: &[(&str, Value)]) {
        let method = Method::QueueDeclare {
            queue,
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: arguments(list),
        };
        self.call(cluster, 1, method);
    }

    pub fn declare_exchange(&mut self, cluster: &mut Cluster, exchange: &str, kind: &str) {
        let method = Method::ExchangeDeclare {
            exchange,
            kind,
            passive: false,
            durable: true,
            auto_delete: false,
            internal: false,
            no_wait: false,
            arguments: Table::default(),
        };
        self.call(cluster, 1, method);
    }

    pub fn bind(
        &mut self,
        cluster: &mut Cluster,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        list: &[(&str, Value)],
    ) {
        let method = Method::QueueBind {
            queue,
            exchange,
            routing_key,
            no_wait: false,
            arguments: arguments(list),
        };
        self.call(cluster, 1, method);
    }

    pub fn publish(
        &mut self,
        cluster: &mut Cluster,
        exchange: &str,
        routing_key: &str,
        properties: &Properties<'_>,
        body: &[u8],
    ) {
        self.put_message(1, (exchange, routing_key), properties, body);
        self.push(cluster);
    }

    /// Consumes a queue, with acknowledgements.
    pub fn consume(&mut self, cluster: &mut Cluster, queue: &str) {
        let consume = Method::BasicConsume {
            queue,
            consumer_tag: "c",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: Table::default(),
        };
        self.call(cluster, 1, consume);
    }

    /// Writes a message to the default exchange into the buffer of the socket. [`Client::be_read`] passes it to the node.
    pub fn write_publish(&mut self, queue: &str, body: &[u8]) {
        self.put_message(1, ("", queue), &Properties::default(), body);
    }

    /// Bytes that the node has not taken from the socket.
    pub fn unread(&self) -> usize {
        self.input.len()
    }

    /// The node reads the socket, unless the connection is paused.
    pub fn be_read(&mut self, cluster: &mut Cluster) {
        let outbox = cluster.nodes[self.at].shard.outbox(self.key);
        if !self.input.is_empty()
            && outbox.is_some_and(|(_, state)| state == session::SessionState::Open)
        {
            self.push(cluster);
        }
    }

    /// To the default exchange; the node takes it in and does no turn yet.
    pub fn publish_unsettled(
        &mut self,
        cluster: &mut Cluster,
        queue: &str,
        properties: &Properties<'_>,
        body: &[u8],
    ) {
        self.put_message(1, ("", queue), properties, body);
        cluster.receive(self.at, self.key, &mut self.input);
    }

    /// A message without properties, on another channel than the first.
    pub fn publish_on(&mut self, cluster: &mut Cluster, channel: u16, exchange: &str, key: &str) {
        self.put_message(channel, (exchange, key), &Properties::default(), b"body");
        self.push(cluster);
    }

    fn put_message(
        &mut self,
        channel: u16,
        (exchange, routing_key): (&str, &str),
        properties: &Properties<'_>,
        body: &[u8],
    ) {
        let method = Method::BasicPublish {
            exchange,
            routing_key,
            mandatory: false,
            immediate: false,
        };
        encode_method(&mut self.input, channel, &method);
        let mut raw = BytesMut::new();
        properties.encode(&mut raw);
        encode_content_header(&mut self.input, channel, body.len() as u64, &raw);
        encode_body(&mut self.input, channel, body, FRAME_MAX);
    }

    /// With acknowledgement; None when the queue is empty.
    pub fn get(&mut self, cluster: &mut Cluster, queue: &str) -> Option<Got> {
        let no_ack = false;
        let answer = self.call(cluster, 1, Method::BasicGet { queue, no_ack });
        let Method::BasicGetOk {
            delivery_tag,
            exchange,
            routing_key,
            ..
        } = Method::decode(&answer).expect("a method")
        else {
            return None;
        };
        let (_, header) = self.answer(cluster);
        let content = ContentHeader::decode(&header).expect("a content header");
        let (properties, size) = (header.slice_ref(content.properties), content.body_size);
        let body = if size == 0 {
            Bytes::new()
        } else {
            self.answer(cluster).1
        };
        assert_eq!(body.len() as u64, size, "in one frame");
        Some(Got {
            tag: delivery_tag,
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            properties,
            body,
        })
    }

    /// Waits for a message.
    pub fn must_get(&mut self, cluster: &mut Cluster, queue: &str) -> Got {
        for _ in 0..PATIENCE {
            if let Some(got) = self.get(cluster, queue) {
                return got;
            }
            cluster.pass(STEP);
        }
        panic!("nothing came to {queue}");
    }

    /// Consumes a stream from an offset, with acknowledgements.
    pub fn consume_stream(
        &mut self,
        cluster: &mut Cluster,
        queue: &str,
        offset: Value,
    ) -> Result<(), String> {
        let consume = Method::BasicConsume {
            queue,
            consumer_tag: "c",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: arguments(&[("x-stream-offset", offset)]),
        };
        self.ask(cluster, 1, consume).map(drop)
    }

    /// The next delivery, if it is there already.
    pub fn delivery_now(&mut self, cluster: &mut Cluster) -> Option<Got> {
        let (kind, method) = self.next_frame(cluster)?;
        assert_eq!(kind, FrameKind::Method);
        let Method::BasicDeliver {
            delivery_tag,
            exchange,
            routing_key,
            ..
        } = Method::decode(&method).expect("a method")
        else {
            panic!("no delivery: {:?}", Method::decode(&method));
        };
        let (_, header) = self.answer(cluster);
        let content = ContentHeader::decode(&header).expect("a content header");
        let (properties, size) = (header.slice_ref(content.properties), content.body_size);
        let body = match size {
            0 => Bytes::new(),
            _ => self.answer(cluster).1,
        };
        Some(Got {
            tag: delivery_tag,
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            properties,
            body,
        })
    }

    /// Waits for a delivery.
    pub fn delivery(&mut self, cluster: &mut Cluster) -> Got {
        cluster.until("a delivery", |c| self.delivery_now(c))
    }

    /// Waits until the node has confirmed this publish and all before it.
    pub fn until_confirmed(&mut self, cluster: &mut Cluster, tag: u64) {
        loop {
            let (kind, method) = self.answer(cluster);
            assert_eq!(kind, FrameKind::Method);
            match Method::decode(&method).expect("a method") {
                Method::BasicAck { delivery_tag, .. } if delivery_tag >= tag => return,
                Method::BasicAck { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn acknowledge(&mut self, cluster: &mut Cluster, delivery_tag: u64) {
        let method = Method::BasicAck {
            delivery_tag,
            multiple: false,
        };
        self.send(cluster, 1, method);
    }

    pub fn limit_prefetch(&mut self, cluster: &mut Cluster, prefetch_count: u16) {
        let method = Method::BasicQos {
            prefetch_size: 0,
            prefetch_count,
            global: false,
        };
        self.call(cluster, 1, method);
    }

    pub fn reject(&mut self, cluster: &mut Cluster, delivery_tag: u64) {
        let method = Method::BasicReject {
            delivery_tag,
            requeue: false,
        };
        self.send(cluster, 1, method);
    }

    /// The socket breaks.
    pub fn close_socket(self, cluster: &mut Cluster) {
        cluster.nodes[self.at].shard.gone(self.key);
        cluster.settle();
    }

    pub fn close(self, cluster: &mut Cluster) {
        cluster.nodes[self.at].shard.gone(self.key);
        cluster.settle();
    }
}

/// What the control plane publishes to the default exchange.
pub fn persistent(
    key: &'static str,
    body: &'static [u8],
) -> impl Fn(WallTime) -> Result<Message, String> {
    persistent_to("", key, body)
}

/// What the control plane publishes.
pub fn persistent_to(
    exchange: &'static str,
    key: &'static str,
    body: &'static [u8],
) -> impl Fn(WallTime) -> Result<Message, String> {
    move |received| {
        let builder = MessageBuilder {
            protocol: Protocol::Amqp091,
            durable: true,
            priority: None,
            ttl_ms: None,
            received,
            exchange,
            routing_keys: &[key],
            properties: &[0, 0],
        };
        builder.build(body.len(), [body]).map_err(|e| e.to_string())
    }
}
