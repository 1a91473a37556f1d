//! After the faults, when no work is left: kills a machine that MQTT clients with wills are connected to, and starts it
//! again after the others have given it up.

use super::{Client, Run, Timer};
use crate::world::{Stop, World};
use env::{NodeId, Time};
use std::time::Duration;

/// Time until it starts again: longer than the others wait for it.
const DOWN_TIME: Duration = Duration::from_secs(12);

/// Progress of this scene.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum NodeDeath {
    #[default]
    /// Not begun.
    Pending,
    /// Clients connect to this machine.
    ClientsConnect(NodeId),
    /// The machine is down until this time.
    Down(NodeId, Time),
    /// Done.
    Done,
}

impl NodeDeath {
    /// Whether the machine must not be started yet.
    pub(super) fn is_down(self, node: NodeId, now: Time) -> bool {
        matches!(self, NodeDeath::Down(machine, until) if machine == node && now < until)
    }

    /// Whether the scene causes effects of faults.
    pub(super) fn has_effects(self) -> bool {
        matches!(self, NodeDeath::Down(..))
    }
}

impl Run {
    /// Takes the next step when everything is settled. Returns true if there is none.
    pub(super) fn death_is_over(&mut self, world: &mut World<Run>) -> bool {
        let now = world.now();
        match self.death {
            NodeDeath::Pending => {
                let node = Client::pick(&mut self.rng, &world.nodes()).unwrap_or_default();
                let new_clients = self.mqtt_clients.add_dying_clients(node);
                self.death = match new_clients.is_empty() {
                    true => NodeDeath::Done,
                    false => NodeDeath::ClientsConnect(node),
                };
                new_clients.for_each(|n| world.timer_in(Duration::ZERO, Timer::ActMqtt(n)));
                matches!(self.death, NodeDeath::Done)
            }
            NodeDeath::ClientsConnect(node) => {
                self.mqtt_clients.machine_dies(world);
                self.oracle.record_fault(now);
                world.stop(node, Stop::Kill);
                self.death = NodeDeath::Down(node, now + DOWN_TIME);
                false
            }
            NodeDeath::Down(_, until) if now < until => false,
            NodeDeath::Down(..) | NodeDeath::Done => {
                self.death = NodeDeath::Done;
                true
            }
        }
    }
}
