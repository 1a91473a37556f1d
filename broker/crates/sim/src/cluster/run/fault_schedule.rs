//! What goes wrong in a run, and what whoever runs the cluster does.

use super::super::client::{Client, ClientRole};
use super::super::node::{Identity, Node, Operation, Request};
use super::super::operator::{self, OperatorAction};
use super::{BEAR_A_LOSS, DRAINING, FaultLevel, Run, Timer};
use crate::faults::Fault;
use crate::world::{Stop, World};
use env::{NodeId, Rng};
use std::time::Duration;

impl Run {
    pub(super) fn fault(&mut self, world: &mut World<Run>) -> Result<(), String> {
        let nodes = world.nodes();
        let node = Client::pick(&mut self.rng, &nodes).unwrap_or_default();
        let wild = self.fault_level == FaultLevel::Foul && self.rng.chance(5, 6);
        let fault = match self.fault_level {
            FaultLevel::Fair => return Ok(()),
            FaultLevel::Foul if wild => self.wild.next(&mut self.rng, &nodes),
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
            Some(fault) if fault.loses_data() && !self.all_have_their_data(world) => return Ok(()),
            Some(fault) => fault,
            None => return Ok(()),
        };
        world.trace.event(now, "fault", 0, &fault);
        self.faults += 1;
        self.oracle.disturb(now);
        match fault {
            Fault::Clock(..) => self.oracle.clocks_jump(),
            Fault::Pause(node, time) => self.oracle.stands_still(now, node, time),
            _ => {}
        }
        if let Fault::LostDisk(node) = fault {
            self.replace(world, node);
            return Ok(());
        }
        fault.apply(world)
    }

    /// Connections break between nodes that hear each other all the while: what is on the way is lost, and nobody is taken for
    /// down, which would give back what is out. The time until some break again.
    pub(super) fn break_some(&mut self, world: &mut World<Run>) -> Duration {
        let nodes = world.nodes();
        self.oracle.disturb(world.now());
        for (at, a) in nodes.iter().enumerate() {
            for b in nodes.iter().skip(at + 1) {
                if self.rng.chance(1, 2) {
                    world.break_connection((*a, *b));
                }
            }
        }
        Duration::from_millis(50 + self.rng.below(1_000))
    }

    fn all_have_their_data(&self, world: &World<Run>) -> bool {
        let damaged = world.nodes().iter().any(|n| world.is_damaged(*n));
        !damaged && operator::all_is_replicated(world, &self.identities, BEAR_A_LOSS).is_ok()
    }

    /// A machine and its disk are gone; another one gets its name.
    pub(super) fn replace(&mut self, world: &mut World<Run>, old: NodeId) {
        let now = world.now();
        let Some(identity) = self.identities.borrow_mut().remove(&old) else {
            return;
        };
        self.oracle.ended(now, old);
        let Some(new) = world.replace(old) else {
            return;
        };
        let lost = (self.operator).takes_away(world, identity.node, &mut self.oracle);
        self.doubt(&lost);
        let identity = Identity {
            node: NodeId(self.rng.next_u64()),
            incarnation: env::Incarnation(0),
            member: false,
            place: identity.place,
            program: identity.program,
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
            if let ClientRole::Keeper(queue_admin) = &mut client.part {
                names.iter().for_each(|name| queue_admin.doubts(name));
            }
        }
    }

    pub(super) fn operate(&mut self, world: &mut World<Run>) {
        let lost = (self.operator).clear(world, &mut self.rng, &mut self.oracle);
        self.doubt(&lost);
        if self.operator.is_leaving() {
            self.oracle.disturb(world.now());
            self.operator.see_off(world, &mut self.rng);
        }
        if let Some(machine) = self.operator.has_left() {
            self.replace(world, machine);
        }
        if self.quiet || self.rng.chance(1, 3) {
            let flag = (self.versions).wanted(world, &self.identities, &mut self.rng);
            if let Some(flag) = flag {
                operator::ask(world, &mut self.rng, Operation::Enable(flag));
            }
        }
        if self.quiet {
            if let Some(node) = self.versions.behind(world) {
                self.shut_down(world, node);
            }
            return self.operator.finish(world);
        }
        if self.fault_level == FaultLevel::Fair || !self.rng.chance(1, 2) {
            return;
        }
        let action = (self.operator).act(world, &self.identities, &mut self.rng);
        if let Some(OperatorAction::ShutDown(node)) = action {
            self.shut_down(world, node);
        }
    }

    /// SIGTERM to a node, and the end some time after.
    fn shut_down(&mut self, world: &mut World<Run>, node: NodeId) {
        let now = world.now();
        self.oracle.disturb(now);
        if let Some(machine_run) = world.process(node).map(Node::incarnation) {
            world.request(node, 0, Request::ShutDown);
            world.timer_in(DRAINING, Timer::End(node, machine_run));
        }
    }
}
