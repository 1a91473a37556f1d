//! One run: a phase with faults, recovery, and the final checks.

use super::clients::Client;
use super::operator::Operator;
use super::oracle::Oracle;
use super::replica::{Note, Replica, Reply};
use crate::faults::{Fault, FaultKind, FaultPlan, calm};
use crate::world::{Scenario, Start, Stop, Violation, World, WorldConfig};
use env::{NodeId, Rng, SeededRng, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// Options that all seeds share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of clients.
    pub clients: u64,
    /// Duration of the phase with faults.
    pub chaos: Duration,
    /// Disks report a sync and do not perform it. The oracle must then find violations.
    pub lying_disks: bool,
    /// Kinds of faults to leave out.
    pub without: BTreeSet<FaultKind>,
    /// Print every event.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: 3,
            clients: 4,
            chaos: Duration::from_secs(20),
            lying_disks: false,
            without: BTreeSet::new(),
            verbose: false,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Hash over all events.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Number of changes that clients were told are applied.
    pub answers: u64,
    /// Index of the last change.
    pub newest: u64,
    /// Number of terms that had a leader.
    pub terms: u64,
    /// Number of starts of nodes.
    pub starts: u64,
    /// Number of trees that a checkpoint replaced.
    pub restores: u64,
    /// Number of injected faults.
    pub faults: u64,
    /// Number of nodes that found a flipped bit and ended.
    pub damaged: u64,
    /// Number of completed node replacements.
    pub replaced: u64,
    /// Number of recoveries of a lost majority.
    pub recovered: u64,
    /// Virtual time at the end.
    pub ended: Time,
}

/// Time for electing the first leader.
const FIRST_FAULT: Duration = Duration::from_millis(1500);
/// Time after which a client retries.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Answers that every client must get after the faults.
const FINAL_ANSWERS: u64 = 3;
/// Maximum time until the run must be done, after the faults.
const RECOVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Timer {
    /// A client sends its next request.
    Send {
        client: u64,
    },
    /// The answer to this attempt of a client is overdue.
    AnswerOverdue {
        client: u64,
        attempt: u64,
    },
    Fault,
    /// Most nodes are lost at once.
    LoseMajority,
    /// The operator acts and restarts stopped nodes.
    Watch,
    /// Faults end.
    EndFaults,
}

struct MetadataScenario {
    founders: Vec<NodeId>,
    nodes: Vec<NodeId>,
    plan: FaultPlan,
    operator: Operator,
    clients: Vec<Client>,
    rng: SeededRng,
    oracle: Oracle,
    faults_ended: bool,
    /// Number of answers at which each client stops. Set when the faults end.
    goals: Vec<u64>,
    starts: u64,
    restores: u64,
    faults: u64,
    damaged: u64,
}

/// Number of nodes of a run that loses a majority of them. Three are left: with two, the older log could not win an
/// election without the newer one.
const LOSING_NODES: u64 = 7;

/// Whether the run with this seed loses a majority of its nodes.
fn loses_majority(seed: u64) -> bool {
    seed % 5 == 3
}

/// Runs the workload under `seed`.
pub fn run(seed: u64, options: &Options) -> Result<Report, Violation> {
    let nodes = match loses_majority(seed) && !options.lying_disks {
        true => options.nodes.max(LOSING_NODES),
        false => options.nodes,
    };
    let config = WorldConfig {
        nodes,
        ..WorldConfig::default()
    };
    let mut world: World<MetadataScenario> = World::new(config, seed, options.verbose);
    let mut rng = world.rng.fork();
    let nodes = world.nodes();
    let plan = FaultPlan::new(&mut rng, &options.without);
    let mut oracle = Oracle::default();
    for node in &nodes {
        oracle.allow_member(*node);
        oracle.allow_vote(*node);
    }
    let mut scenario = MetadataScenario {
        clients: (0..options.clients)
            .map(|id| Client::new(NodeId(1 + id % options.nodes), rng.fork()))
            .collect(),
        founders: nodes.clone(),
        nodes: nodes.clone(),
        plan,
        operator: Operator::default(),
        rng,
        oracle,
        faults_ended: false,
        goals: Vec::new(),
        starts: 0,
        restores: 0,
        faults: 0,
        damaged: 0,
    };
    for node in nodes {
        if let Some(disk) = world.disk(node) {
            disk.set_lying(options.lying_disks);
        }
        world.start_in(Duration::ZERO, node);
    }
    for client in 0..options.clients {
        world.timer_in(Duration::from_millis(1), Timer::Send { client });
    }
    world.timer_in(FIRST_FAULT, Timer::Fault);
    world.timer_in(Duration::from_millis(500), Timer::Watch);
    world.timer_in(options.chaos, Timer::EndFaults);
    if loses_majority(seed) && !options.lying_disks {
        let share = 20 + world.rng.below(60);
        let at = options.chaos.mul_f64(share as f64 / 100.0);
        world.timer_in(at, Timer::LoseMajority);
    }
    let until = Time::ZERO + options.chaos + RECOVERY;
    let result = world.run(&mut scenario, until).map_err(|mut violation| {
        violation.message = format!("{} ({})", violation.message, scenario.oracle.progress());
        violation
    });
    result?;
    scenario.final_report(&world)
}

impl MetadataScenario {
    fn final_report(&self, world: &World<MetadataScenario>) -> Result<Report, Violation> {
        let digests: Vec<_> = (self.nodes.iter())
            .map(|n| {
                world
                    .process(*n)
                    .map(|p| (p.tree().applied(), p.tree().digest()))
            })
            .collect();
        if digests.iter().any(|d| d.is_none() || *d != digests[0]) {
            return Err(Violation {
                at: world.now(),
                message: format!("trees differ in the end: {digests:?}"),
            });
        }
        let mut trace = world.trace.clone();
        for (applied, digest) in digests.into_iter().flatten() {
            trace.number(applied);
            trace.number(digest);
        }
        Ok(Report {
            hash: trace.hash(),
            events: trace.events(),
            answers: self.oracle.answers(),
            newest: self.oracle.newest(),
            terms: self.oracle.terms(),
            starts: self.starts,
            restores: self.restores,
            faults: self.faults,
            damaged: self.damaged,
            replaced: self.operator.completed,
            recovered: self.operator.recovered,
            ended: world.now(),
        })
    }

    fn inject_fault(&mut self, world: &mut World<MetadataScenario>) -> Result<(), String> {
        let now = world.now();
        let Some(fault) = self.plan.next(&mut self.rng, &self.nodes) else {
            world.trace.event(now, "left out", 0, &());
            return Ok(());
        };
        if fault.loses_data() && !self.all_data_is_intact(world) {
            return Ok(());
        }
        world.trace.event(now, "fault", 0, &fault);
        self.faults += 1;
        match fault {
            Fault::LostDisk(node) => self.replace(world, node),
            other => other.apply(world)?,
        }
        Ok(())
    }

    /// Only a minority may lose acknowledged data: at most one node here, until it is replaced.
    fn all_data_is_intact(&self, world: &World<MetadataScenario>) -> bool {
        !self.operator.is_busy() && !self.nodes.iter().any(|n| world.is_damaged(*n))
    }

    /// Loses a majority of the nodes. One that stays has applied everything that any node has; the others
    /// may lack it. What a client was told is applied must still be there.
    ///
    /// The one that has applied everything may stop for a while: the others must wait for it.
    fn lose_majority(&mut self, world: &mut World<MetadataScenario>) -> Result<bool, String> {
        let nodes = world.nodes();
        let runs = nodes.iter().all(|n| world.process(*n).is_some());
        if !runs || !self.all_data_is_intact(world) {
            return Ok(false);
        }
        let newest = self.oracle.newest();
        let has_all = |n: &NodeId| self.oracle.applied_by(*n) >= newest;
        let Some(current) = nodes.iter().copied().find(has_all) else {
            return Ok(false);
        };
        let mut others: Vec<NodeId> = nodes.into_iter().filter(|n| *n != current).collect();
        // Of the others those stay that are most behind.
        others.sort_by_key(|n| std::cmp::Reverse(self.oracle.applied_by(*n)));
        let lost = self.founders.len() / 2 + 1;
        let mut replaced = Vec::new();
        for old in others.into_iter().take(lost) {
            if let Some(new) = world.replace(old) {
                self.oracle.forget(old);
                replaced.push((old, new));
                world.start_in(Duration::ZERO, new);
            }
        }
        self.operator.start_recovery(&replaced);
        self.nodes = world.nodes();
        if self.rng.chance(2, 3) {
            Fault::Stop(current, Stop::Power).apply(world)?;
        }
        Ok(true)
    }

    fn replace(&mut self, world: &mut World<MetadataScenario>, old: NodeId) {
        if let Some(new) = world.replace(old) {
            self.oracle.forget(old);
            self.operator.start_replacement(old, new);
            self.nodes = world.nodes();
            world.start_in(Duration::ZERO, new);
        }
    }

    fn expects_answers(&self, client: u64) -> bool {
        let answered = self.clients.get(client as usize).map_or(0, |c| c.answered);
        let goal = self.goals.get(client as usize);
        goal.is_none_or(|goal| answered < *goal)
    }

    fn send(&mut self, world: &mut World<MetadataScenario>, client: u64) {
        if !self.expects_answers(client) {
            return;
        }
        let Some(c) = self.clients.get_mut(client as usize) else {
            return;
        };
        let request = c.next_request(&self.nodes);
        let (target, attempt) = (c.target, c.attempt);
        world.request(target, client, request);
        world.timer_in(RETRY_AFTER, Timer::AnswerOverdue { client, attempt });
    }
}

impl Scenario for MetadataScenario {
    type Process = Replica;
    type Timer = Timer;

    fn start(&mut self, start: Start) -> Result<Replica, String> {
        self.starts += 1;
        self.oracle.node_started(start.node);
        Replica::start(start, &self.founders)
    }

    fn timer(&mut self, world: &mut World<MetadataScenario>, timer: Timer) -> Result<(), String> {
        match timer {
            Timer::Send { client } => self.send(world, client),
            Timer::AnswerOverdue { client, attempt } => {
                let nodes = &self.nodes;
                let client_state = self.clients.get_mut(client as usize);
                if let Some(c) = client_state.filter(|c| c.attempt == attempt && c.open.is_some()) {
                    c.select_node(None, nodes);
                    self.send(world, client);
                }
            }
            Timer::Fault => {
                if !self.faults_ended {
                    self.inject_fault(world)?;
                    let pause = Duration::from_millis(50 + self.rng.below(900));
                    world.timer_in(pause, Timer::Fault);
                }
            }
            Timer::LoseMajority => {
                if !self.lose_majority(world)? && !self.faults_ended {
                    world.timer_in(Duration::from_millis(20), Timer::LoseMajority);
                }
            }
            Timer::Watch => {
                self.operator.act(world, &mut self.oracle);
                for node in world.nodes() {
                    if world.process(node).is_none() && (self.faults_ended || self.rng.chance(1, 4))
                    {
                        world.start_in(Duration::ZERO, node);
                    }
                }
                world.timer_in(Duration::from_millis(500), Timer::Watch);
            }
            Timer::EndFaults => {
                self.faults_ended = true;
                calm(world);
                self.goals = (self.clients.iter())
                    .map(|c| c.answered + FINAL_ANSWERS)
                    .collect();
            }
        }
        Ok(())
    }

    fn reply(
        &mut self,
        world: &mut World<MetadataScenario>,
        client: u64,
        reply: Reply,
    ) -> Result<(), String> {
        let Some(c) = self.clients.get_mut(client as usize) else {
            return Ok(());
        };
        let open = c.open.as_ref().map(|r| r.number);
        match reply {
            Reply::Applied { number, index } if open == Some(number) => {
                c.open = None;
                c.answered += 1;
                self.oracle.check_answer(client, number, index)?;
                let pause = Duration::from_micros(self.rng.below(60_000));
                world.timer_in(pause, Timer::Send { client });
            }
            Reply::Rejected { number, leader } if open == Some(number) => {
                c.select_node(leader, &self.nodes);
                // This attempt is over. The next one has its own timer.
                c.attempt += 1;
                let pause = Duration::from_millis(10 + self.rng.below(100));
                world.timer_in(pause, Timer::Send { client });
            }
            // An answer to an earlier attempt.
            _ => {}
        }
        Ok(())
    }

    fn note(
        &mut self,
        _world: &World<MetadataScenario>,
        node: NodeId,
        note: Note,
    ) -> Result<(), String> {
        if matches!(note, Note::Restored { .. }) {
            self.restores += 1;
        }
        self.oracle.note(node, &note)
    }

    fn damaged(
        &mut self,
        world: &mut World<MetadataScenario>,
        node: NodeId,
        _error: &str,
    ) -> Result<(), String> {
        self.damaged += 1;
        self.replace(world, node);
        Ok(())
    }

    fn done(&mut self, world: &World<MetadataScenario>) -> bool {
        self.faults_ended
            && !self.operator.is_busy()
            && (0..self.clients.len() as u64).all(|c| !self.expects_answers(c))
            && self.nodes.iter().all(|n| world.process(*n).is_some())
            && self.oracle.all_caught_up(&self.nodes)
    }
}
