//! A cluster of hosts in one thread under a seed: simulated disks with real logs, a network that loses,
//! delays and reorders frames, and nodes that crash. Invariants are checked as events happen.

mod machine;
mod network;
mod node;

pub use machine::Machine;
pub use network::Network;
pub use node::Node;
#[allow(unused_imports, reason = "not every test uses it")]
pub use node::Start;

use bytes::Bytes;
use consensus::{GroupId, HostLimits, HostOutput, Membership, ProposeError, RaftHost};
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Rng, SeededRng, Time};
use std::collections::BTreeMap;
use std::time::Duration;

pub const STEP: Duration = Duration::from_millis(10);
pub const GROUP: GroupId = GroupId(7);

/// Invariants between all nodes at all times.
#[derive(Default)]
pub struct Oracle {
    /// The command at each index, as first applied by any node.
    pub history: BTreeMap<(GroupId, u64), Bytes>,
    leaders: BTreeMap<(GroupId, u64), NodeId>,
    pub restores: u64,
}

impl Oracle {
    pub fn record_applied(&mut self, group: GroupId, index: u64, command: &Bytes) {
        let first = self
            .history
            .entry((group, index))
            .or_insert_with(|| command.clone());
        assert_eq!(first, command, "two histories at {index} of {group:?}");
    }

    pub fn record_leader(&mut self, group: GroupId, term: u64, node: NodeId) {
        let first = *self.leaders.entry((group, term)).or_insert(node);
        assert_eq!(first, node, "two leaders in term {term} of {group:?}");
    }

    pub fn terms(&self, group: GroupId) -> usize {
        self.leaders.keys().filter(|(g, _)| *g == group).count()
    }
}

pub struct Cluster {
    pub nodes: BTreeMap<NodeId, Node>,
    pub network: Network,
    pub oracle: Oracle,
    pub rng: SeededRng,
    pub now: Time,
    pub limits: HostLimits,
    /// Delay of the failure detector between an event and its report; `None` disables it.
    detector: Option<Duration>,
    reports: Vec<(Time, NodeId, NodeId, Option<Incarnation>)>,
    next_command: u64,
    /// Numbers of accepted commands and their groups.
    pub proposed: BTreeMap<u64, GroupId>,
}

/// Small enough that every code path runs in a short test.
pub fn small_limits() -> HostLimits {
    HostLimits {
        checkpoint_bytes: 16 << 10,
        checkpoint_entries: 60,
        short_checkpoint_ticks: 10,
        retain_entries: 8,
        max_message_bytes: 1 << 10,
        max_inflight_messages: 8,
        max_frame_bytes: 4 << 10,
        transfer_chunk_bytes: 700,
        transfer_window: 2,
        flush_delay_ticks: 5,
        relog_bytes: 200,
        relog_total_bytes: 1 << 10,
        ..HostLimits::default()
    }
}

/// The default seeds of a test, or those of `SEEDS=first..end`.
pub fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let range = std::env::var("SEEDS").ok();
    let range = range.as_deref().and_then(|s| s.split_once(".."));
    let range = range.and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    range.unwrap_or(first..first + count)
}

pub fn voters(ids: impl IntoIterator<Item = u64>) -> Membership {
    Membership {
        voters: ids.into_iter().map(NodeId).collect(),
        learners: Vec::new(),
    }
}

impl Cluster {
    pub fn new(seed: u64, nodes: u64) -> Cluster {
        Cluster::with_limits(seed, nodes, small_limits())
    }

    pub fn with_limits(seed: u64, nodes: u64, limits: HostLimits) -> Cluster {
        let mut cluster = Cluster {
            nodes: BTreeMap::new(),
            network: Network::default(),
            oracle: Oracle::default(),
            rng: SeededRng::new(seed),
            now: Time::ZERO + Duration::from_secs(1),
            limits,
            detector: Some(Duration::from_millis(300)),
            reports: Vec::new(),
            next_command: 1,
            proposed: BTreeMap::new(),
        };
        for id in 1..=nodes {
            cluster.add_node(NodeId(id));
        }
        cluster
    }

    /// Adds an empty node and starts it.
    pub fn add_node(&mut self, id: NodeId) {
        let node = Node::new(id, SimDisk::new());
        self.nodes.insert(id, node);
        self.start(id);
    }

    pub fn start(&mut self, id: NodeId) {
        let seed = self.rng.next_u64();
        let limits = self.limits.clone();
        let node = self.nodes.get_mut(&id).expect("node exists");
        node.start(seed, limits, self.now).expect("node starts");
        self.network.set_up(id, true);
        self.report_all(id);
    }

    /// Disables the failure detector.
    pub fn disable_detector(&mut self) {
        self.detector = None;
        self.reports.clear();
    }

    /// Power failure of a node.
    pub fn crash(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).expect("node exists");
        node.crash(&mut self.rng);
        self.network.set_up(id, false);
        self.report_all(id);
    }

    pub fn partition(&mut self, a: NodeId, b: NodeId, cut: bool) {
        self.network.set_cut(a, b, cut);
        self.network.set_cut(b, a, cut);
        self.report(a, b);
        self.report(b, a);
    }

    pub fn isolate(&mut self, id: NodeId, cut: bool) {
        for other in self.ids() {
            if other != id {
                self.partition(id, other, cut);
            }
        }
    }

    pub fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    fn report_all(&mut self, id: NodeId) {
        for other in self.ids() {
            if other != id {
                self.report(id, other);
                self.report(other, id);
            }
        }
    }

    /// Schedules a report to `to` about the state of its link to `about`.
    fn report(&mut self, to: NodeId, about: NodeId) {
        let Some(delay) = self.detector else {
            return;
        };
        let up = self.network.is_open(about, to) && self.network.is_open(to, about);
        let incarnation = self.nodes.get(&about).map(|n| n.incarnation);
        // A new link is noticed at once, a lost link after a delay.
        let at = match up {
            true => self.now + STEP,
            false => self.now + delay + Duration::from_millis(self.rng.below(200)),
        };
        let report = (at, to, about, incarnation.filter(|_| up));
        self.reports.push(report);
    }

    fn deliver_reports(&mut self) {
        let now = self.now;
        let due = self.reports.extract_if(.., |(at, ..)| *at <= now);
        let due: Vec<_> = due.collect();
        for (_, to, about, state) in due {
            // Drops reports that are outdated by now.
            let open = self.network.is_open(about, to) && self.network.is_open(to, about);
            let Some(host) = self.nodes.get_mut(&to).and_then(|n| n.host.as_mut()) else {
                continue;
            };
            match state {
                Some(incarnation) if open => host.peer_up(about, incarnation, 1),
                None if !open => host.peer_down(about),
                _ => {}
            }
        }
    }

    /// Advances time by one step of 10 ms.
    pub fn step(&mut self) {
        self.now = self.now + STEP;
        self.deliver_reports();
        for (from, to, frame) in self.network.due(self.now) {
            if let Some(host) = self.nodes.get_mut(&to).and_then(|n| n.host.as_mut()) {
                host.receive(from, frame);
            }
        }
        for id in self.ids() {
            self.turn(id);
        }
    }

    fn turn(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).expect("node exists");
        if node.host.is_none() {
            return;
        }
        node.advance(self.now, &mut self.rng);
        let mut outputs = Vec::new();
        node.poll(&mut outputs);
        for output in outputs {
            self.carry_out(id, output);
        }
    }

    fn carry_out(&mut self, id: NodeId, output: HostOutput) {
        let node = self.nodes.get_mut(&id).expect("node exists");
        match output {
            HostOutput::Send { to, frame, .. } => {
                self.network.send(self.now, id, to, frame, &mut self.rng);
            }
            HostOutput::Failed { group, error } => panic!("{group:?} on {id:?}: {error}"),
            other => node.carry_out(other, &mut self.oracle),
        }
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Steps until `done`; fails after `limit` of simulated time.
    pub fn run_until(&mut self, what: &str, limit: Duration, done: impl Fn(&Cluster) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            assert!(self.now < end, "not in time: {what}\n{}", self.describe());
            self.step();
        }
    }

    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (id, node) in &self.nodes {
            let status = node.host.as_ref().and_then(|h| h.status(GROUP));
            let counters = node.host.as_ref().map(consensus::Host::counters);
            text += &format!("{id:?}: {status:?} {counters:?}\n");
        }
        text
    }

    pub fn create(&mut self, group: GroupId, membership: &Membership) {
        for node in self.nodes.values_mut() {
            node.groups.insert(group, membership.clone());
            if let Some(host) = node.host.as_mut() {
                host.create(group, membership);
            }
        }
    }

    pub fn leader(&self, group: GroupId) -> Option<NodeId> {
        let leads = |n: &&Node| n.status(group).is_some_and(|s| s.is_leader);
        self.nodes
            .values()
            .filter(leads)
            .max_by_key(|n| n.status(group).map(|s| s.term))
            .map(|n| n.id)
    }

    pub fn elect(&mut self, group: GroupId) -> NodeId {
        let limit = Duration::from_secs(20);
        self.run_until("a leader", limit, |c| {
            c.leader(group)
                .is_some_and(|l| c.nodes[&l].status(group).is_some_and(|s| s.applied > 1))
        });
        self.leader(group).expect("a leader")
    }

    /// Proposes a command to the current leader; `None` if it was not accepted.
    pub fn propose(&mut self, group: GroupId, keep: bool, padding: usize) -> Option<u64> {
        let leader = self.leader(group)?;
        let number = self.next_command;
        let command = Machine::command(number, keep, padding);
        let host = self.nodes.get_mut(&leader)?.host.as_mut()?;
        match host.propose(group, command) {
            Ok(()) => {
                self.next_command += 1;
                self.proposed.insert(number, group);
                Some(number)
            }
            Err(
                ProposeError::NotLeader { .. } | ProposeError::Overloaded | ProposeError::NoGroup,
            ) => None,
            Err(other) => panic!("{other}"),
        }
    }

    /// Proposes a command and waits until it is applied.
    pub fn commit(&mut self, group: GroupId, keep: bool, padding: usize) -> u64 {
        let limit = Duration::from_secs(30);
        let end = self.now + limit;
        loop {
            assert!(self.now < end, "no command commits\n{}", self.describe());
            let Some(number) = self.propose(group, keep, padding) else {
                self.step();
                continue;
            };
            let again = self.now + Duration::from_secs(3);
            while self.now < again {
                self.step();
                if self.was_applied(group, number) {
                    return number;
                }
            }
        }
    }

    pub fn was_applied(&self, group: GroupId, number: u64) -> bool {
        self.nodes
            .values()
            .filter_map(|n| n.machines.get(&group))
            .any(|m| m.has_applied(number))
    }

    /// Repairs all links and starts all nodes.
    pub fn heal(&mut self) {
        self.network.clear_faults();
        for id in self.ids() {
            if self.nodes[&id].host.is_none() {
                self.start(id);
            }
        }
        for a in self.ids() {
            self.report_all(a);
        }
    }

    /// Waits until all running members have applied every command that any node ever applied, with the same
    /// result.
    pub fn converge(&mut self, group: GroupId) {
        self.commit(group, false, 0);
        let limit = Duration::from_secs(60);
        self.run_until("all replicas converge", limit, |c| c.is_converged(group));
        for node in self.nodes.values() {
            if node.status(group).is_some_and(|s| is_member(node.id, &s)) {
                node.check_live(group);
            }
        }
        self.check_history(group);
    }

    pub fn is_converged(&self, group: GroupId) -> bool {
        let newest = self.oracle.history.range((group, 0)..=(group, u64::MAX));
        let newest = newest.map(|((_, index), _)| *index).next_back();
        let Some(status) = self
            .leader(group)
            .and_then(|l| self.nodes[&l].status(group))
        else {
            return false;
        };
        let members = self.nodes.values().filter(|n| is_member(n.id, &status));
        let mut digest = None;
        for node in members {
            let Some(machine) = node.machines.get(&group) else {
                return false;
            };
            if Some(machine.index.max(1)) < newest {
                return false;
            }
            if *digest.get_or_insert(machine.digest()) != machine.digest() {
                return false;
            }
        }
        digest.is_some()
    }

    /// Checks that no command was applied twice or without being proposed.
    fn check_history(&self, group: GroupId) {
        let mut seen = std::collections::BTreeSet::new();
        for ((g, _), command) in &self.oracle.history {
            if *g == group {
                let number = Machine::number(command);
                assert!(seen.insert(number), "command {number} was applied twice");
                assert!(
                    self.proposed.contains_key(&number),
                    "command {number} was never proposed"
                );
            }
        }
    }
}

fn is_member(id: NodeId, status: &consensus::GroupStatus) -> bool {
    status.membership.voters.contains(&id) || status.membership.learners.contains(&id)
}
