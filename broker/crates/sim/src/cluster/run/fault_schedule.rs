//! Faults of a run, and the actions of the operator.

use super::super::client::{Client, ClientRole};
use super::super::node::{Identity, Node, Operation, Request};
use super::super::operator::{self, OperatorAction};
use super::super::streams;
use super::{FaultLevel, Run, SAFE_MEMBERS, SHUTDOWN_TIMEOUT, StreamRisk, Timer};
use crate::faults::Fault;
use crate::world::{Stop, World};
use env::{NodeId, Rng};
use std::time::Duration;

impl Run {
    pub(super) fn inject_fault(&mut self, world: &mut World<Run>) -> Result<(), String> {
        let nodes = world.nodes();
        let node = Client::pick(&mut self.rng, &nodes).unwrap_or_default();
        let is_from_plan = self.fault_level == FaultLevel::All && self.rng.chance(5, 6);
        let fault = match self.fault_level {
            FaultLevel::NoFaults => return Ok(()),
            FaultLevel::All if is_from_plan => self.fault_plan.next(&mut self.rng, &nodes),
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
            // A lost frame breaks its connection, so few are enough.
            Some(Fault::Loss(in_1000)) => Fault::Loss(1 + in_1000 / 100),
            // Only a minority may lose acknowledged data: one machine at a time, until it is replaced.
            Some(fault) if fault.loses_data() && !self.all_data_is_intact(world) => return Ok(()),
            Some(fault) => fault,
            None => return Ok(()),
        };
        let Some(fault) = self.spare_streams(world, fault) else {
            return Ok(());
        };
        world.trace.event(now, "fault", 0, &fault);
        self.faults += 1;
        self.oracle.record_fault(now);
        match fault {
            Fault::Clock(..) => self.oracle.record_clock_jump(),
            Fault::Pause(node, time) => self.oracle.machine_paused(now, node, time),
            _ => {}
        }
        if let Fault::LostDisk(node) = fault {
            self.replace(world, node);
            return Ok(());
        }
        fault.apply(world)
    }

    /// Allows one machine at a time to lose unsynced data, until all streams are whole again. Another machine's process
    /// is killed instead of losing power. None: the fault is left out.
    fn spare_streams(&mut self, world: &World<Run>, fault: Fault) -> Option<Fault> {
        if !self.stream_oracle.has_streams() {
            return Some(fault);
        }
        if let (Fault::Calm, Some(risk)) = (&fault, &mut self.stream_risk) {
            risk.lasts = false;
        }
        let Some((machine, lasts)) = fault.loses_unsynced() else {
            return Some(fault);
        };
        let is_over = self.stream_risk.is_none_or(|risk| !risk.lasts);
        let all_are_up = world.nodes().iter().all(|n| world.process(*n).is_some());
        if is_over && all_are_up && !world.is_any_damaged() && streams::are_whole(world) {
            self.stream_risk = None;
        }
        match self.stream_risk.filter(|risk| risk.machine != machine) {
            None => {
                let lasts = lasts || self.stream_risk.is_some_and(|risk| risk.lasts);
                self.stream_risk = Some(StreamRisk { machine, lasts });
                Some(fault)
            }
            Some(_) => match fault {
                Fault::Stop(..) => Some(Fault::Stop(machine, Stop::Kill)),
                _ => None,
            },
        }
    }

    /// Breaks connections between nodes that reach each other all the time. The frames on the way are lost, and no node
    /// is considered down, which would return all unacknowledged messages. Returns the time until the next break.
    pub(super) fn break_connections(&mut self, world: &mut World<Run>) -> Duration {
        let nodes = world.nodes();
        self.oracle.record_fault(world.now());
        for (index, a) in nodes.iter().enumerate() {
            for b in nodes.iter().skip(index + 1) {
                if self.rng.chance(1, 2) {
                    world.break_connection((*a, *b));
                }
            }
        }
        Duration::from_millis(50 + self.rng.below(1_000))
    }

    fn all_data_is_intact(&self, world: &World<Run>) -> bool {
        !world.is_any_damaged()
            && operator::check_replication(world, &self.identities, SAFE_MEMBERS).is_ok()
    }

    /// Removes a machine with its disk. A new machine gets its name.
    pub(super) fn replace(&mut self, world: &mut World<Run>, old: NodeId) {
        let now = world.now();
        let Some(identity) = self.identities.borrow_mut().remove(&old) else {
            return;
        };
        self.oracle.machine_ended(now, old);
        let Some(new) = world.replace(old) else {
            return;
        };
        let lost = (self.operator).lose_machine(world, identity.node, &mut self.oracle);
        self.mark_uncertain(&lost);
        let identity = Identity {
            node: NodeId(self.rng.next_u64()),
            incarnation: env::Incarnation(0),
            member: false,
            name_number: identity.name_number,
            version: identity.version,
            shards: 1,
        };
        self.identities.borrow_mut().insert(new, identity);
        if let Some(disk) = world.disk(new) {
            disk.set_lying(self.lying_disks);
        }
        world.start_in(Duration::ZERO, new);
    }

    /// Tells the queue admins, and the oracle of AMQP 1.0 clients, which queues the operator deletes.
    fn mark_uncertain(&mut self, names: &[String]) {
        for name in names {
            self.amqp10_clients.oracle.lost(name);
        }
        for client in &mut self.clients {
            if let ClientRole::QueueAdmin(queue_admin) = &mut client.role {
                names
                    .iter()
                    .for_each(|name| queue_admin.mark_uncertain(name));
            }
        }
    }

    pub(super) fn operate(&mut self, world: &mut World<Run>) {
        let lost = (self.operator).delete_lost_queues(world, &mut self.rng, &mut self.oracle);
        self.mark_uncertain(&lost);
        if self.operator.is_removing_node() {
            self.oracle.record_fault(world.now());
            self.operator.continue_removal(world, &mut self.rng);
        }
        if let Some(machine) = self.operator.take_removed() {
            self.replace(world, machine);
        }
        if self.faults_ended || self.rng.chance(1, 3) {
            let flag = (self.versions).pick_flag(world, &self.identities, &mut self.rng);
            if let Some(flag) = flag {
                operator::send_operation(world, &mut self.rng, Operation::Enable(flag));
            }
        }
        if self.faults_ended {
            if let Some(node) = self.versions.find_outdated_node(world) {
                self.shut_down(world, node);
            }
            return self.operator.finish(world);
        }
        if self.fault_level == FaultLevel::NoFaults || !self.rng.chance(1, 2) {
            return;
        }
        let action = (self.operator).act(world, &self.identities, &mut self.rng);
        if let Some(OperatorAction::ShutDown(node)) = action {
            self.shut_down(world, node);
        }
    }

    /// Sends SIGTERM to a node, and kills it if it does not end in time.
    fn shut_down(&mut self, world: &mut World<Run>, node: NodeId) {
        let now = world.now();
        self.oracle.record_fault(now);
        if let Some(incarnation) = world.process(node).map(Node::incarnation) {
            world.request(node, 0, Request::ShutDown);
            world.timer_in(SHUTDOWN_TIMEOUT, Timer::KillNode(node, incarnation));
        }
    }
}
