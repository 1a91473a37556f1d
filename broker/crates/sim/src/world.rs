//! The world: machines, the network between them, and virtual time.

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
#[error("at {:.6} s: {message}", at.0 as f64 / 1e9)]
pub struct Violation {
    /// Virtual time of the violation.
    pub at: Time,
    /// The rule that was broken, with the objects.
    pub message: String,
}

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `kill -9`: all written data survives.
    Kill,
    /// The machine loses power: unsynced data is lost, survives or is torn.
    Power,
}

/// Callbacks of the world to the test that runs in it.
pub trait Scenario: Sized {
    /// Software of the nodes.
    type Process: Process;
    /// Events of the scenario itself, such as timers of clients and faults.
    type Timer: std::fmt::Debug;

    /// Starts the software of a node.
    fn start(&mut self, start: Start) -> Result<Self::Process, String>;
    /// A timer of the scenario has fired.
    fn timer(&mut self, world: &mut World<Self>, timer: Self::Timer) -> Result<(), String>;
    /// A reply of a node has reached a client.
    fn reply(
        &mut self,
        world: &mut World<Self>,
        client: u64,
        reply: <Self::Process as Process>::Reply,
    ) -> Result<(), String>;
    /// A process has reported an observation.
    fn note(
        &mut self,
        world: &World<Self>,
        node: NodeId,
        note: <Self::Process as Process>::Note,
    ) -> Result<(), String>;
    /// A node found a flipped bit, named the file and ended, as it must. The scenario replaces it.
    fn damaged(
        &mut self,
        _world: &mut World<Self>,
        node: NodeId,
        error: &str,
    ) -> Result<(), String> {
        Err(format!("node {} ends: {error}", node.0))
    }
    /// A node ended for a reason that no fault explains. Returns true if the cluster was asked to remove it.
    fn removed(&mut self, _node: NodeId, _error: &str) -> bool {
        false
    }
    /// Whether the run is over.
    fn done(&mut self, world: &World<Self>) -> bool;
}

/// Arguments for the software of a node that starts.
pub struct Start {
    /// The machine.
    pub node: NodeId,
    /// Number of this start of the machine.
    pub incarnation: Incarnation,
    /// Virtual time.
    pub now: Time,
    /// Wall clock of the machine.
    pub wall: WallTime,
    /// Disk of the machine.
    pub disk: SimDisk,
    /// Contents of the write-ahead log.
    pub recovered: wal::Recovered,
    /// Seed for the random numbers of the process.
    pub seed: u64,
    /// Number of the machine's run: it changes when the machine loses power, and not when its process ends.
    pub machine_run: u64,
}

enum Event<S: Scenario> {
    Tick {
        node: NodeId,
        incarnation: Incarnation,
    },
    Frame {
        link: Link,
        incarnations: (Incarnation, Incarnation),
        connection: u64,
        frame: Bytes,
    },
    Wake {
        node: NodeId,
        incarnation: Incarnation,
        at: Time,
    },
    Write {
        node: NodeId,
        incarnation: Incarnation,
    },
    Job {
        node: NodeId,
        incarnation: Incarnation,
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
        incarnation: Incarnation,
    },
    Timer(S::Timer),
}

/// Settings of a world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Number of machines.
    pub nodes: u64,
    /// Interval of the periodic ticks.
    pub tick: Duration,
    /// Maximum size of a log file in bytes.
    pub wal_file_bytes: u64,
    /// A peer that has been unreachable for this long is down.
    pub detection: Duration,
    /// Frames travel on connections: a lost frame breaks its connection, and both ends are notified when it is replaced.
    /// Otherwise each frame is lost separately.
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
    /// The network between the machines.
    pub net: Network,
    connections: Connections,
    /// Random numbers for faults; scenarios fork their own from it.
    pub rng: SeededRng,
    /// Random numbers for the durations of disk operations and the delays of clients.
    timing_rng: SeededRng,
    /// Trace of all events.
    pub trace: Trace,
    actions: Vec<Action<S::Process>>,
    /// Paused nodes and their deferred events.
    deferred_events: BTreeMap<NodeId, Vec<Event<S>>>,
    /// Id of the newest machine.
    newest_node: NodeId,
}

/// Minimum time until a tick that the software requests.
const MIN_SLEEP: Duration = Duration::from_micros(100);
const DETECTOR_PERIOD: Duration = Duration::from_millis(100);
const WALL_EPOCH: u64 = 1_700_000_000_000;

impl<S: Scenario> World<S> {
    /// Creates machines 1 to `nodes`. They are not started.
    pub fn new(config: WorldConfig, seed: u64, verbose: bool) -> World<S> {
        let mut rng = SeededRng::new(seed);
        let mut world = World {
            machines: (1..=config.nodes)
                .map(|n| (NodeId(n), Machine::new()))
                .collect(),
            deferred_events: BTreeMap::new(),
            newest_node: NodeId(config.nodes),
            config,
            scheduler: Scheduler::default(),
            net: Network::new(rng.fork()),
            connections: Connections::default(),
            timing_rng: rng.fork(),
            rng,
            trace: Trace::new(verbose),
            actions: Vec::new(),
        };
        world.schedule(DETECTOR_PERIOD, Event::Detect);
        world
    }

    /// Current virtual time.
    pub fn now(&self) -> Time {
        self.scheduler.now()
    }

    /// Wall clock of a node.
    fn wall(&self, node: NodeId) -> WallTime {
        let error = self.machines.get(&node).map_or(0, |m| m.clock_error);
        WallTime((WALL_EPOCH + self.now().0 / 1_000_000).saturating_add_signed(error))
    }

    /// Ids of all machines, running or not.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.machines.keys().copied().collect()
    }

    /// The software of a node. `None` if the node is down.
    pub fn process(&self, node: NodeId) -> Option<&S::Process> {
        let machine = self.machines.get(&node)?;
        machine
            .machine_run
            .as_ref()
            .map(|machine_run| &machine_run.process)
    }

    /// Calls `act` with the software of a node, unless the node is down.
    pub fn with_process(&mut self, node: NodeId, act: impl FnOnce(&mut S::Process)) {
        if let Some(machine_run) = self.machine_run(node) {
            act(&mut machine_run.process);
        }
    }

    /// Disk of a machine.
    pub fn disk(&self, node: NodeId) -> Option<&SimDisk> {
        self.machines.get(&node).map(|m| &m.disk)
    }

    /// When the disk of the node last lost unsynced data.
    pub fn lost_power(&self, node: NodeId) -> Option<Time> {
        self.machines.get(&node)?.lost_power
    }

    /// Delays every write on the disk of this node.
    pub fn stall_disk(&mut self, node: NodeId, by: Duration) {
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.stall = by;
        }
    }

    /// Schedules a timer of the scenario.
    pub fn timer_in(&mut self, delay: Duration, timer: S::Timer) {
        self.schedule(delay, Event::Timer(timer));
    }

    /// Starts a node later. No effect if it is up by then.
    pub fn start_in(&mut self, delay: Duration, node: NodeId) {
        self.schedule(delay, Event::Start(node));
    }

    /// Stops a node later. No effect if it is down by then.
    pub fn stop_in(&mut self, delay: Duration, node: NodeId, stop: Stop) {
        self.schedule(delay, Event::Stop(node, stop));
    }

    /// Sends a message of a client. It is lost if the node is down when it arrives.
    pub fn request(
        &mut self,
        node: NodeId,
        client: u64,
        request: <S::Process as Process>::Request,
    ) {
        let delay = self.client_delay();
        let event = Event::Request {
            node,
            client,
            request,
        };
        self.schedule(delay, event);
    }

    fn client_delay(&mut self) -> Duration {
        Duration::from_micros(50 + self.timing_rng.below(500))
    }

    fn schedule(&mut self, delay: Duration, event: Event<S>) {
        self.scheduler.at(self.scheduler.now() + delay, event);
    }

    /// Runs until the scenario is done, breaks a rule, or `until` has passed.
    pub fn run(&mut self, scenario: &mut S, until: Time) -> Result<(), Violation> {
        while !scenario.done(self) {
            if self.now() > until {
                return Err(self.violation("the time is up and the run is not".to_owned()));
            }
            let Some(event) = self.scheduler.advance() else {
                return Err(self.violation("nothing is going to happen any more".to_owned()));
            };
            let result = self.handle(scenario, event);
            result.map_err(|message| self.violation(message))?;
        }
        Ok(())
    }

    fn violation(&self, message: String) -> Violation {
        Violation {
            at: self.now(),
            message,
        }
    }

    fn handle(&mut self, scenario: &mut S, event: Event<S>) -> Result<(), String> {
        let now = self.now();
        let Some(event) = self.defer_if_paused(event) else {
            return Ok(());
        };
        match event {
            Event::Tick { node, incarnation } => self.tick(scenario, node, incarnation),
            Event::Frame {
                link,
                incarnations,
                connection,
                frame,
            } => {
                if self.arrives(link, incarnations, connection) {
                    self.frame(scenario, link, frame)?;
                }
                Ok(())
            }
            Event::Wake {
                node,
                incarnation,
                at,
            } => self.wake(scenario, node, incarnation, at),
            Event::Write { node, incarnation } => self.write(scenario, node, incarnation),
            Event::Job { node, incarnation } => self.job(scenario, node, incarnation),
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
            Event::Resume { node, incarnation } => {
                if self.incarnation(node) == Some(incarnation) {
                    self.trace.event(now, "resume", node.0, &incarnation);
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

    /// The running incarnation, if it is this one.
    fn this_incarnation(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Option<&mut MachineRun<S::Process>> {
        let machine = self.machines.get_mut(&node)?;
        machine
            .machine_run
            .as_mut()
            .filter(|_| machine.incarnation == incarnation)
    }

    /// Number of the running incarnation.
    fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let machine = self.machines.get(&node)?;
        machine.machine_run.as_ref().map(|_| machine.incarnation)
    }

    fn start(&mut self, scenario: &mut S, node: NodeId) -> Result<(), String> {
        let (now, wall) = (self.now(), self.wall(node));
        let seed = self.timing_rng.next_u64();
        let Some(machine) = self
            .machines
            .get_mut(&node)
            .filter(|m| m.machine_run.is_none())
        else {
            return Ok(());
        };
        machine.incarnation.0 += 1;
        let incarnation = machine.incarnation;
        self.trace.event(now, "start", node.0, &incarnation);
        let wal_config = WalConfig {
            max_file_bytes: self.config.wal_file_bytes,
            grow_bytes: 4096,
            ..WalConfig::new(node, seed)
        };
        let disk = machine.disk.clone();
        let machine_run = machine.power_losses;
        let opened = wal::Wal::open(std::sync::Arc::new(disk.clone()), wal_config);
        let started = opened
            .map_err(|e| e.to_string())
            .and_then(|(wal, recovered)| {
                let start = Start {
                    node,
                    incarnation,
                    now,
                    wall,
                    disk,
                    recovered,
                    seed,
                    machine_run,
                };
                Ok((wal, scenario.start(start)?))
            });
        let (wal, process) = match started {
            Ok(both) => both,
            Err(error) => return self.end_failed(scenario, node, &error),
        };
        machine.machine_run = Some(MachineRun {
            process,
            writer: Writer::new(wal),
            writing: false,
            jobs: Default::default(),
            peers: BTreeMap::new(),
            wake: None,
        });
        self.schedule(Duration::ZERO, Event::Tick { node, incarnation });
        Ok(())
    }

    /// Stops a node now. `stop` decides what its disk still has.
    pub fn stop(&mut self, node: NodeId, stop: Stop) {
        let now = self.now();
        let Some(machine) = self.machines.get_mut(&node) else {
            return;
        };
        if machine.machine_run.take().is_none() {
            return;
        }
        self.deferred_events.remove(&node);
        self.trace.event(now, "stop", node.0, &stop);
        match stop {
            Stop::Power => machine.lose_power(now, &mut self.rng),
            Stop::Kill => machine.disk.restart(),
        }
    }

    fn tick(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<(), String> {
        let (now, wall) = (self.now(), self.wall(node));
        let Some(running) = self.this_incarnation(node, incarnation) else {
            return Ok(());
        };
        running.process.tick(now, wall);
        self.schedule(self.config.tick, Event::Tick { node, incarnation });
        self.pump(scenario, node)
    }

    /// A tick that the software requested.
    fn wake(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        incarnation: Incarnation,
        at: Time,
    ) -> Result<(), String> {
        let (now, wall) = (self.now(), self.wall(node));
        let running = self.this_incarnation(node, incarnation);
        let Some(running) = running.filter(|running| running.wake == Some(at)) else {
            return Ok(());
        };
        running.wake = None;
        running.process.tick(now, wall);
        self.pump(scenario, node)
    }

    /// Whether a frame on the way arrives.
    fn arrives(
        &mut self,
        link: Link,
        incarnations: (Incarnation, Incarnation),
        connection: u64,
    ) -> bool {
        let (from, to) = link;
        // A connection ends with either of its ends, and all frames on the way with it.
        let is_intact = self.incarnation(from) == Some(incarnations.0)
            && self.incarnation(to) == Some(incarnations.1);
        let is_passing = self.net.passes(link);
        if !self.config.connections {
            return is_intact && is_passing;
        }
        let is_intact = is_intact && self.connections.current(link) == Some(connection);
        if is_intact && !is_passing {
            self.connections.cut(link);
        }
        is_intact && is_passing
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

    /// One step of the log thread.
    fn write(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<(), String> {
        let now = self.now();
        let Some(running) = self.this_incarnation(node, incarnation) else {
            return Ok(());
        };
        running.writing = false;
        let mut durable = Vec::new();
        let progress = match running.writer.step(&mut durable) {
            Ok(progress) => progress,
            Err(error) => return self.end_failed(scenario, node, &error.to_string()),
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
        incarnation: Incarnation,
    ) -> Result<(), String> {
        let now = self.now();
        let disk = self.machines.get(&node).map(|m| m.disk.clone());
        let Some(running) = self.this_incarnation(node, incarnation) else {
            return Ok(());
        };
        let (Some(disk), Some((id, job))) = (disk, running.jobs.pop_front()) else {
            return Ok(());
        };
        let more = !running.jobs.is_empty();
        let result = job.run(&disk);
        if let Err(error) = &result {
            return self.end_failed(scenario, node, &error.to_string());
        }
        if let Some(running) = self.this_incarnation(node, incarnation) {
            running.process.job_done(id, result);
        }
        self.trace.event(now, "job", node.0, &id);
        if more {
            self.schedule_job(node, incarnation);
        }
        self.pump(scenario, node)
    }

    /// Replaces broken connections and returns their links.
    fn replace_broken_connections(&mut self) -> Vec<Link> {
        let (net, deferred_events, limit) =
            (&self.net, &self.deferred_events, self.config.detection);
        self.connections.replace_broken(|link| {
            let back = (link.1, link.0);
            let are_running =
                !deferred_events.contains_key(&link.0) && !deferred_events.contains_key(&link.1);
            are_running && net.passes(link) && net.delay(link) + net.delay(back) < limit
        })
    }

    /// One round of the failure detector: every node checks every other node.
    fn detect(&mut self, scenario: &mut S) -> Result<(), String> {
        let now = self.now();
        let replaced = self.replace_broken_connections();
        for node in self.nodes() {
            if self.is_paused(node) {
                continue;
            }
            self.report_removed_peers(node, now);
            for other in self.nodes() {
                let (forward, back) = ((node, other), (other, node));
                let slow = self.net.delay(forward) + self.net.delay(back);
                let is_open = self.net.passes(forward)
                    && self.net.passes(back)
                    && self.connections.current(forward).is_some();
                let is_replaced = replaced.contains(&(node.min(other), node.max(other)));
                let incarnation = self.incarnation(other);
                let is_answering =
                    is_open && slow < self.config.detection && !self.is_paused(other);
                let reachable = incarnation.filter(|_| is_answering);
                let timeout = match incarnation {
                    // A closed connection is noticed at once.
                    None if is_open => Duration::ZERO,
                    _ => self.config.detection,
                };
                let Some(machine_run) = self.machine_run(node).filter(|_| node != other) else {
                    continue;
                };
                let before = machine_run.peers.get(&other).and_then(|p| p.up);
                update_peer(machine_run, other, reachable, now, timeout);
                if let Some(incarnation) = before.filter(|b| is_replaced && Some(*b) == reachable) {
                    machine_run.process.peer_up(other, incarnation);
                }
                let given_up = before.is_some()
                    && machine_run
                        .peers
                        .get(&other)
                        .is_some_and(|p| p.up.is_none());
                if given_up && self.config.connections {
                    self.connections.cut(forward);
                }
            }
            self.pump(scenario, node)?;
        }
        self.schedule(DETECTOR_PERIOD, Event::Detect);
        Ok(())
    }

    /// Reports removed machines as down.
    fn report_removed_peers(&mut self, node: NodeId, now: Time) {
        let all = self.nodes();
        let Some(machine_run) = self.machine_run(node) else {
            return;
        };
        let known: Vec<NodeId> = machine_run.peers.keys().copied().collect();
        for peer in known.into_iter().filter(|n| !all.contains(n)) {
            update_peer(machine_run, peer, None, now, Duration::ZERO);
            machine_run.peers.remove(&peer);
        }
    }

    fn disk_delay(&mut self, node: NodeId) -> Duration {
        let stall = self.machines.get(&node).map_or(Duration::ZERO, |m| m.stall);
        Duration::from_micros(100 + self.timing_rng.below(3_000)) + stall
    }

    fn schedule_job(&mut self, node: NodeId, incarnation: Incarnation) {
        let delay = self.disk_delay(node);
        self.schedule(delay, Event::Job { node, incarnation });
    }

    /// Carries out the actions of a node's software until there are none left.
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
        self.schedule_write(node);
        self.schedule_wake(node);
        Ok(())
    }

    /// Schedules the next tick that the software requests, if it is earlier than the scheduled one.
    fn schedule_wake(&mut self, node: NodeId) {
        let earliest = self.now() + MIN_SLEEP;
        let Some(incarnation) = self.incarnation(node) else {
            return;
        };
        let Some(running) = self.machine_run(node) else {
            return;
        };
        let wanted = running.process.wake_at().map(|at| at.max(earliest));
        if let Some(at) = wanted.filter(|at| running.wake.is_none_or(|w| *at < w)) {
            running.wake = Some(at);
            self.scheduler.at(
                at,
                Event::Wake {
                    node,
                    incarnation,
                    at,
                },
            );
        }
    }

    fn schedule_write(&mut self, node: NodeId) {
        let Some(incarnation) = self.incarnation(node) else {
            return;
        };
        let delay = self.disk_delay(node);
        if let Some(machine_run) = self.machine_run(node)
            && !machine_run.writing
            && !machine_run.writer.is_idle()
        {
            machine_run.writing = true;
            let event = Event::Write { node, incarnation };
            self.schedule(delay, event);
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
                    self.schedule_job(node, incarnation);
                }
            }
            Action::Send { to, frame } => self.send(node, incarnation, to, frame),
            Action::FreeWal { up_to } => {
                self.trace.event(now, "free wal", node.0, &up_to);
                let freed = self
                    .machine_run(node)
                    .map(|run| run.writer.wal().delete_through(up_to));
                match freed {
                    Some(Err(error)) if error.is_fatal() => {
                        self.end_failed(scenario, node, &error.to_string())?;
                    }
                    _ => {}
                }
            }
            Action::Reply { client, reply } => {
                let delay = self.client_delay();
                self.schedule(delay, Event::Reply { client, reply });
            }
            Action::Note(note) => {
                self.trace.event(now, "note", node.0, &note);
                scenario.note(self, node, note)?;
            }
            Action::Fatal(error) => {
                self.end_failed(scenario, node, &error)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, from: NodeId, incarnation: Incarnation, to: NodeId, frame: Bytes) {
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
        for arrival in arrivals.into_iter().flatten() {
            let event = Event::Frame {
                link,
                incarnations: (incarnation, other),
                connection,
                frame: frame.clone(),
            };
            self.scheduler.at(arrival, event);
        }
    }
}

/// Reports a change of the failure detector's view of `other` to the process.
fn update_peer<P: Process>(
    machine_run: &mut MachineRun<P>,
    other: NodeId,
    reachable: Option<Incarnation>,
    now: Time,
    timeout: Duration,
) {
    let Peer {
        mut up,
        mut silent_since,
    } = machine_run.peers.get(&other).copied().unwrap_or_default();
    match reachable {
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
            if up.is_some() && now.since(since) >= timeout {
                machine_run.process.peer_down(other);
                up = None;
            }
        }
    }
    machine_run.peers.insert(other, Peer { up, silent_since });
}
