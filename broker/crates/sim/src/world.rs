//! Machines, the net between them, and time.

use crate::connections::Connections;
use crate::machine::{Machine, MachineRun, Peer};
use crate::network::{Link, Network};
use crate::process::{Action, Process};
use crate::scheduler::Scheduler;
use crate::trace::Trace;
use bytes::Bytes;

use env::sim::SimDisk;
use env::{Incarnation, NodeId, Rng, SeededRng, Time, WallTime};
use std::collections::BTreeMap;
use std::time::Duration;
use wal::{WalConfig, Writer};

mod faults;
#[cfg(test)]
mod tests;

/// A rule that the run broke, or an error that no injected fault explains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {:.6} s: {what}", at.0 as f64 / 1e9)]
pub struct Violation {
    pub at: Time,
    pub what: String,
}

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `kill -9`: what was written is still there.
    Kill,
    /// The machine loses power: what was not synced is lost, kept or torn.
    Power,
}

/// What the world asks back from the test that is run in it.
pub trait Scenario: Sized {
    type Process: Process;
    /// Events of its own: clients' timers, faults.
    type Timer: std::fmt::Debug;

    /// Starts the software of a node.
    fn start(&mut self, start: Start) -> Result<Self::Process, String>;
    fn timer(&mut self, world: &mut World<Self>, timer: Self::Timer) -> Result<(), String>;
    fn reply(
        &mut self,
        world: &mut World<Self>,
        client: u64,
        reply: <Self::Process as Process>::Reply,
    ) -> Result<(), String>;
    fn note(
        &mut self,
        world: &World<Self>,
        node: NodeId,
        note: <Self::Process as Process>::Note,
    ) -> Result<(), String>;
    /// A node found a flipped bit, named the file and ended, as it must. Whoever runs the cluster replaces it.
    fn damaged(
        &mut self,
        _world: &mut World<Self>,
        node: NodeId,
        error: &str,
    ) -> Result<(), String> {
        Err(format!("node {} ends: {error}", node.0))
    }
    /// A node ends for a reason that no fault explains. True: its cluster has removed it, as was wished.
    fn removed(&mut self, _node: NodeId, _error: &str) -> bool {
        false
    }
    /// Whether the run is over.
    fn done(&mut self, world: &World<Self>) -> bool;
}

/// What a node's software is given.
pub struct Start {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub now: Time,
    pub wall: WallTime,
    pub disk: SimDisk,
    pub recovered: wal::Recovered,
    pub seed: u64,
}

enum Event<S: Scenario> {
    Tick {
        node: NodeId,
        machine_run: Incarnation,
    },
    Frame {
        link: Link,
        lives: (Incarnation, Incarnation),
        connection: u64,
        frame: Bytes,
    },
    Wake {
        node: NodeId,
        machine_run: Incarnation,
        at: Time,
    },
    Write {
        node: NodeId,
        machine_run: Incarnation,
    },
    Job {
        node: NodeId,
        machine_run: Incarnation,
    },
    Detect,
    Request {
        node: NodeId,
        client: u64,
        request: <S::Process as Process>::Request,
    },
    Reply {
        client: u64,
        reply: <S::Process as Process>::Reply,
    },
    Start(NodeId),
    Stop(NodeId, Stop),
    Resume {
        node: NodeId,
        machine_run: Incarnation,
    },
    Timer(S::Timer),
}

#[derive(Clone, Debug)]
pub struct WorldConfig {
    pub nodes: u64,
    pub tick: Duration,
    pub wal_file_bytes: u64,
    /// A peer that nothing gets through to for this long is down.
    pub detection: Duration,
    /// Frames travel on connections: one that is lost takes its connection along, and both ends are told when there is
    /// another. Otherwise each frame is lost by itself.
    pub connections: bool,
}

impl Default for WorldConfig {
    fn default() -> WorldConfig {
        WorldConfig {
            nodes: 3,
            tick: Duration::from_millis(100),
            wal_file_bytes: 32 << 10,
            detection: Duration::from_secs(1),
            connections: false,
        }
    }
}

/// All machines, on one thread, under one seed.
pub struct World<S: Scenario> {
    config: WorldConfig,
    machines: BTreeMap<NodeId, Machine<S::Process>>,
    scheduler: Scheduler<Event<S>>,
    pub net: Network,
    connections: Connections,
    pub rng: SeededRng,
    /// For durations of disk work and the way of clients.
    flow: SeededRng,
    pub trace: Trace,
    actions: Vec<Action<S::Process>>,
    /// Processes that stand still, and what waits for them.
    held: BTreeMap<NodeId, Vec<Event<S>>>,
    /// The newest machine's.
    youngest: NodeId,
}

/// Between two ticks that the software asked for.
const LEAST_SLEEP: Duration = Duration::from_micros(100);
const DETECTOR_PERIOD: Duration = Duration::from_millis(100);
const WALL_EPOCH: u64 = 1_700_000_000_000;

impl<S: Scenario> World<S> {
    /// Machines 1 to `nodes`, not started.
    pub fn new(config: WorldConfig, seed: u64, loud: bool) -> World<S> {
        let mut rng = SeededRng::new(seed);
        let mut world = World {
            machines: (1..=config.nodes)
                .map(|n| (NodeId(n), Machine::new()))
                .collect(),
            held: BTreeMap::new(),
            youngest: NodeId(config.nodes),
            config,
            scheduler: Scheduler::default(),
            net: Network::new(rng.fork()),
            connections: Connections::default(),
            flow: rng.fork(),
            rng,
            trace: Trace::new(loud),
            actions: Vec::new(),
        };
        world.plan(DETECTOR_PERIOD, Event::Detect);
        world
    }

    pub fn now(&self) -> Time {
        self.scheduler.now()
    }

    /// What the wall clock of a node shows.
    fn wall(&self, node: NodeId) -> WallTime {
        let error = self.machines.get(&node).map_or(0, |m| m.clock_error);
        WallTime((WALL_EPOCH + self.now().0 / 1_000_000).saturating_add_signed(error))
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.machines.keys().copied().collect()
    }

    /// The software on a node that is up.
    pub fn process(&self, node: NodeId) -> Option<&S::Process> {
        let machine = self.machines.get(&node)?;
        machine
            .machine_run
            .as_ref()
            .map(|machine_run| &machine_run.process)
    }

    /// Has the software on a node that is up do something.
    pub fn with_process(&mut self, node: NodeId, act: impl FnOnce(&mut S::Process)) {
        if let Some(machine_run) = self.machine_run(node) {
            act(&mut machine_run.process);
        }
    }

    pub fn disk(&self, node: NodeId) -> Option<&SimDisk> {
        self.machines.get(&node).map(|m| &m.disk)
    }

    /// When the node's disk last lost what was not synced.
    pub fn lost_power(&self, node: NodeId) -> Option<Time> {
        self.machines.get(&node)?.lost_power
    }

    /// Makes every write on this node's disk take longer.
    pub fn stall_disk(&mut self, node: NodeId, by: Duration) {
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.stall = by;
        }
    }

    pub fn timer_in(&mut self, delay: Duration, timer: S::Timer) {
        self.plan(delay, Event::Timer(timer));
    }

    /// No effect when it is up by then.
    pub fn start_in(&mut self, delay: Duration, node: NodeId) {
        self.plan(delay, Event::Start(node));
    }

    /// No effect when it is down by then.
    pub fn stop_in(&mut self, delay: Duration, node: NodeId, stop: Stop) {
        self.plan(delay, Event::Stop(node, stop));
    }

    /// A client's message; lost when the node is down when it gets there.
    pub fn request(
        &mut self,
        node: NodeId,
        client: u64,
        request: <S::Process as Process>::Request,
    ) {
        let delay = self.client_way();
        let event = Event::Request {
            node,
            client,
            request,
        };
        self.plan(delay, event);
    }

    fn client_way(&mut self) -> Duration {
        Duration::from_micros(50 + self.flow.below(500))
    }

    fn plan(&mut self, delay: Duration, event: Event<S>) {
        self.scheduler.at(self.scheduler.now() + delay, event);
    }

    /// Runs until the scenario is done, breaks a rule, or `until` has come.
    pub fn run(&mut self, scenario: &mut S, until: Time) -> Result<(), Violation> {
        while !scenario.done(self) {
            if self.now() > until {
                return Err(self.violation("the time is up and the run is not".to_owned()));
            }
            let Some(event) = self.scheduler.advance() else {
                return Err(self.violation("nothing is going to happen any more".to_owned()));
            };
            let result = self.handle(scenario, event);
            result.map_err(|what| self.violation(what))?;
        }
        Ok(())
    }

    fn violation(&self, what: String) -> Violation {
        Violation {
            at: self.now(),
            what,
        }
    }

    fn handle(&mut self, scenario: &mut S, event: Event<S>) -> Result<(), String> {
        let now = self.now();
        let Some(event) = self.hold(event) else {
            return Ok(());
        };
        match event {
            Event::Tick { node, machine_run } => self.tick(scenario, node, machine_run),
            Event::Frame {
                link,
                lives,
                connection,
                frame,
            } => {
                if self.arrives(link, lives, connection) {
                    self.frame(scenario, link, frame)?;
                }
                Ok(())
            }
            Event::Wake {
                node,
                machine_run,
                at,
            } => self.wake(scenario, node, machine_run, at),
            Event::Write { node, machine_run } => self.write(scenario, node, machine_run),
            Event::Job { node, machine_run } => self.job(scenario, node, machine_run),
            Event::Detect => self.detect(scenario),
            Event::Request {
                node,
                client,
                request,
            } => {
                self.trace.event(now, "request", node.0, &request);
                if let Some(machine_run) = self.machine_run(node) {
                    machine_run.process.request(client, request);
                }
                self.pump(scenario, node)
            }
            Event::Reply { client, reply } => {
                self.trace.event(now, "reply", client, &reply);
                scenario.reply(self, client, reply)
            }
            Event::Start(node) => self.start(scenario, node),
            Event::Stop(node, stop) => {
                self.stop(node, stop);
                Ok(())
            }
            Event::Resume { node, machine_run } => {
                if self.incarnation(node) == Some(machine_run) {
                    self.trace.event(now, "resume", node.0, &machine_run);
                    self.resume(node);
                }
                Ok(())
            }
            Event::Timer(timer) => {
                self.trace.event(now, "timer", 0, &timer);
                scenario.timer(self, timer)
            }
        }
    }

    fn machine_run(&mut self, node: NodeId) -> Option<&mut MachineRun<S::Process>> {
        self.machines.get_mut(&node)?.machine_run.as_mut()
    }

    /// The life that is running, if it is this one.
    fn this_incarnation(
        &mut self,
        node: NodeId,
        machine_run: Incarnation,
    ) -> Option<&mut MachineRun<S::Process>> {
        let machine = self.machines.get_mut(&node)?;
        machine
            .machine_run
            .as_mut()
            .filter(|_| machine.incarnation == machine_run)
    }

    /// The number of the life that is running.
    fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let machine = self.machines.get(&node)?;
        machine.machine_run.as_ref().map(|_| machine.incarnation)
    }

    fn start(&mut self, scenario: &mut S, node: NodeId) -> Result<(), String> {
        let (now, wall) = (self.now(), self.wall(node));
        let seed = self.flow.next_u64();
        let Some(machine) = self
            .machines
            .get_mut(&node)
            .filter(|m| m.machine_run.is_none())
        else {
            return Ok(());
        };
        machine.incarnation.0 += 1;
        let machine_run = machine.incarnation;
        self.trace.event(now, "start", node.0, &machine_run);
        let wal_config = WalConfig {
            max_file_bytes: self.config.wal_file_bytes,
            grow_bytes: 4096,
            ..WalConfig::new(node, seed)
        };
        let disk = machine.disk.clone();
        let opened = wal::Wal::open(std::sync::Arc::new(disk.clone()), wal_config);
        let started = opened
            .map_err(|e| e.to_string())
            .and_then(|(wal, recovered)| {
                let start = Start {
                    node,
                    incarnation: machine_run,
                    now,
                    wall,
                    disk,
                    recovered,
                    seed,
                };
                Ok((wal, scenario.start(start)?))
            });
        let (wal, process) = match started {
            Ok(both) => both,
            Err(error) => return self.ended(scenario, node, &error),
        };
        machine.machine_run = Some(MachineRun {
            process,
            writer: Writer::new(wal),
            writing: false,
            jobs: Default::default(),
            peers: BTreeMap::new(),
            wake: None,
        });
        self.plan(Duration::ZERO, Event::Tick { node, machine_run });
        Ok(())
    }

    /// Ends a node now. Its disk is as the end left it.
    pub fn stop(&mut self, node: NodeId, stop: Stop) {
        let now = self.now();
        let Some(machine) = self.machines.get_mut(&node) else {
            return;
        };
        if machine.machine_run.take().is_none() {
            return;
        }
        self.held.remove(&node);
        self.trace.event(now, "stop", node.0, &stop);
        match stop {
            Stop::Power => {
                machine.lost_power = Some(now);
                machine.disk.crash(&mut self.rng);
            }
            Stop::Kill => machine.disk.restart(),
        }
    }

    fn tick(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        machine_run: Incarnation,
    ) -> Result<(), String> {
        let (now, wall) = (self.now(), self.wall(node));
        let Some(running) = self.this_incarnation(node, machine_run) else {
            return Ok(());
        };
        running.process.tick(now, wall);
        self.plan(self.config.tick, Event::Tick { node, machine_run });
        self.pump(scenario, node)
    }

    /// A tick that the software asked for.
    fn wake(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        machine_run: Incarnation,
        at: Time,
    ) -> Result<(), String> {
        let (now, wall) = (self.now(), self.wall(node));
        let running = self.this_incarnation(node, machine_run);
        let Some(running) = running.filter(|l| l.wake == Some(at)) else {
            return Ok(());
        };
        running.wake = None;
        running.process.tick(now, wall);
        self.pump(scenario, node)
    }

    /// Whether a frame that was on the way gets there.
    fn arrives(&mut self, link: Link, lives: (Incarnation, Incarnation), connection: u64) -> bool {
        let (from, to) = link;
        // A connection ends with either of its ends, and with what is on the way.
        let whole =
            self.incarnation(from) == Some(lives.0) && self.incarnation(to) == Some(lives.1);
        let passes = self.net.passes(link);
        if !self.config.connections {
            return whole && passes;
        }
        let whole = whole && self.connections.current(link) == Some(connection);
        if whole && !passes {
            self.connections.cut(link);
        }
        whole && passes
    }

    fn frame(&mut self, scenario: &mut S, link: Link, frame: Bytes) -> Result<(), String> {
        let (from, to) = link;
        let now = self.now();
        self.trace.event(now, "frame", to.0, &(from.0, frame.len()));
        self.trace.bytes(&frame);
        if let Some(machine_run) = self.machine_run(to) {
            machine_run.process.peer_frame(from, frame);
        }
        self.pump(scenario, to)
    }

    /// One step of the log's thread.
    fn write(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        machine_run: Incarnation,
    ) -> Result<(), String> {
        let now = self.now();
        let Some(running) = self.this_incarnation(node, machine_run) else {
            return Ok(());
        };
        running.writing = false;
        let mut durable = Vec::new();
        let progress = match running.writer.step(&mut durable) {
            Ok(progress) => progress,
            Err(error) => return self.ended(scenario, node, &error.to_string()),
        };
        if let Some(rolled) = progress.rolled {
            running.process.wal_rolled(rolled.file);
        }
        for token in &durable {
            running.process.durable(*token);
        }
        self.trace
            .event(now, "durable", node.0, &(&durable, progress));
        self.trace.number(durable.len() as u64);
        self.pump(scenario, node)
    }

    /// One job of the storage thread.
    fn job(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        machine_run: Incarnation,
    ) -> Result<(), String> {
        let now = self.now();
        let disk = self.machines.get(&node).map(|m| m.disk.clone());
        let Some(running) = self.this_incarnation(node, machine_run) else {
            return Ok(());
        };
        let (Some(disk), Some((id, job))) = (disk, running.jobs.pop_front()) else {
            return Ok(());
        };
        let more = !running.jobs.is_empty();
        let result = job.run(&disk);
        if let Err(error) = &result {
            return self.ended(scenario, node, &error.to_string());
        }
        if let Some(running) = self.this_incarnation(node, machine_run) {
            running.process.job_done(id, result);
        }
        self.trace.event(now, "job", node.0, &id);
        if more {
            self.plan_job(node, machine_run);
        }
        self.pump(scenario, node)
    }

    /// Connections that are made anew.
    fn mend(&mut self) -> Vec<Link> {
        let (net, held, limit) = (&self.net, &self.held, self.config.detection);
        self.connections.mend(|link| {
            let back = (link.1, link.0);
            let awake = !held.contains_key(&link.0) && !held.contains_key(&link.1);
            awake && net.passes(link) && net.delay(link) + net.delay(back) < limit
        })
    }

    /// Everyone looks at everyone.
    fn detect(&mut self, scenario: &mut S) -> Result<(), String> {
        let now = self.now();
        let mended = self.mend();
        for node in self.nodes() {
            if self.is_paused(node) {
                continue;
            }
            self.session_event_removed(node, now);
            for other in self.nodes() {
                let (there, back) = ((node, other), (other, node));
                let slow = self.net.delay(there) + self.net.delay(back);
                let open = self.net.passes(there)
                    && self.net.passes(back)
                    && self.connections.current(there).is_some();
                let anew = mended.contains(&(node.min(other), node.max(other)));
                let incarnation = self.incarnation(other);
                let answers = open && slow < self.config.detection && !self.is_paused(other);
                let heard = incarnation.filter(|_| answers);
                let patience = match incarnation {
                    // A closed connection is noticed at once.
                    None if open => Duration::ZERO,
                    _ => self.config.detection,
                };
                let Some(machine_run) = self.machine_run(node).filter(|_| node != other) else {
                    continue;
                };
                let before = machine_run.peers.get(&other).and_then(|p| p.up);
                tell(machine_run, other, heard, now, patience);
                if let Some(incarnation) = before.filter(|b| anew && Some(*b) == heard) {
                    machine_run.process.peer_up(other, incarnation);
                }
                let given_up = before.is_some()
                    && machine_run
                        .peers
                        .get(&other)
                        .is_some_and(|p| p.up.is_none());
                if given_up && self.config.connections {
                    self.connections.cut(there);
                }
            }
            self.pump(scenario, node)?;
        }
        self.plan(DETECTOR_PERIOD, Event::Detect);
        Ok(())
    }

    /// Machines that were taken away are down.
    fn session_event_removed(&mut self, node: NodeId, now: Time) {
        let all = self.nodes();
        let Some(machine_run) = self.machine_run(node) else {
            return;
        };
        let known: Vec<NodeId> = machine_run.peers.keys().copied().collect();
        for gone in known.into_iter().filter(|n| !all.contains(n)) {
            tell(machine_run, gone, None, now, Duration::ZERO);
            machine_run.peers.remove(&gone);
        }
    }

    fn disk_work(&mut self, node: NodeId) -> Duration {
        let stall = self.machines.get(&node).map_or(Duration::ZERO, |m| m.stall);
        Duration::from_micros(100 + self.flow.below(3_000)) + stall
    }

    fn plan_job(&mut self, node: NodeId, machine_run: Incarnation) {
        let delay = self.disk_work(node);
        self.plan(delay, Event::Job { node, machine_run });
    }

    /// Carries out what a node's software wants until it wants nothing more.
    fn pump(&mut self, scenario: &mut S, node: NodeId) -> Result<(), String> {
        let (now, wall) = (self.now(), self.wall(node));
        if let Some(machine_run) = self.machine_run(node) {
            machine_run.process.turn(now, wall);
        }
        loop {
            let mut actions = std::mem::take(&mut self.actions);
            if let Some(machine_run) = self.machine_run(node) {
                machine_run.process.poll(&mut actions);
            }
            if actions.is_empty() {
                self.actions = actions;
                break;
            }
            for action in actions.drain(..) {
                self.act(scenario, node, action)?;
            }
            self.actions = actions;
        }
        self.keep_writing(node);
        self.keep_waking(node);
        Ok(())
    }

    /// Plans the tick that the software wants next, if that is before the one that is planned.
    fn keep_waking(&mut self, node: NodeId) {
        let soonest = self.now() + LEAST_SLEEP;
        let Some(machine_run) = self.incarnation(node) else {
            return;
        };
        let Some(running) = self.machine_run(node) else {
            return;
        };
        let wanted = running.process.wake_at().map(|at| at.max(soonest));
        if let Some(at) = wanted.filter(|at| running.wake.is_none_or(|w| *at < w)) {
            running.wake = Some(at);
            self.scheduler.at(
                at,
                Event::Wake {
                    node,
                    machine_run,
                    at,
                },
            );
        }
    }

    fn keep_writing(&mut self, node: NodeId) {
        let Some(incarnation) = self.incarnation(node) else {
            return;
        };
        let delay = self.disk_work(node);
        if let Some(machine_run) = self.machine_run(node)
            && !machine_run.writing
            && !machine_run.writer.is_idle()
        {
            machine_run.writing = true;
            let event = Event::Write {
                node,
                machine_run: incarnation,
            };
            self.plan(delay, event);
        }
    }

    fn act(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        action: Action<S::Process>,
    ) -> Result<(), String> {
        let now = self.now();
        let Some(incarnation) = self.incarnation(node) else {
            return Ok(());
        };
        match action {
            Action::Append { token, records } => {
                if let Some(machine_run) = self.machine_run(node) {
                    machine_run.writer.push(token, records);
                }
            }
            Action::Job { id, job } => {
                let first = self.machine_run(node).is_some_and(|machine_run| {
                    machine_run.jobs.push_back((id, job));
                    machine_run.jobs.len() == 1
                });
                if first {
                    self.plan_job(node, incarnation);
                }
            }
            Action::Send { to, frame } => self.send(node, incarnation, to, frame),
            Action::FreeWal { up_to } => {
                self.trace.event(now, "free wal", node.0, &up_to);
                let freed = self
                    .machine_run(node)
                    .map(|l| l.writer.wal().delete_through(up_to));
                match freed {
                    Some(Err(error)) if error.is_fatal() => {
                        self.ended(scenario, node, &error.to_string())?;
                    }
                    _ => {}
                }
            }
            Action::Reply { client, reply } => {
                let delay = self.client_way();
                self.plan(delay, Event::Reply { client, reply });
            }
            Action::Note(note) => {
                self.trace.event(now, "note", node.0, &note);
                scenario.note(self, node, note)?;
            }
            Action::Fatal(error) => {
                self.ended(scenario, node, &error)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, from: NodeId, machine_run: Incarnation, to: NodeId, frame: Bytes) {
        let link = (from, to);
        let Some(connection) = self.connections.current(link) else {
            return;
        };
        let arrivals = self.net.send(self.now(), link);
        if arrivals == [None, None] && self.config.connections {
            self.connections.cut(link);
        }
        let Some(other) = self.incarnation(to) else {
            return;
        };
        for arrives in arrivals.into_iter().flatten() {
            let event = Event::Frame {
                link,
                lives: (machine_run, other),
                connection,
                frame: frame.clone(),
            };
            self.scheduler.at(arrives, event);
        }
    }
}

/// The failure detector's word, when it has changed.
fn tell<P: Process>(
    machine_run: &mut MachineRun<P>,
    other: NodeId,
    heard: Option<Incarnation>,
    now: Time,
    patience: Duration,
) {
    let Peer {
        mut up,
        mut silent_since,
    } = machine_run.peers.get(&other).copied().unwrap_or_default();
    match heard {
        Some(incarnation) => {
            silent_since = None;
            if up != Some(incarnation) {
                if up.is_some() {
                    machine_run.process.peer_down(other);
                }
                machine_run.process.peer_up(other, incarnation);
                up = Some(incarnation);
            }
        }
        None => {
            let since = *silent_since.get_or_insert(now);
            if up.is_some() && now.since(since) >= patience {
                machine_run.process.peer_down(other);
                up = None;
            }
        }
    }
    machine_run.peers.insert(other, Peer { up, silent_since });
}
