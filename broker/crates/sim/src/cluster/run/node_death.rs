//! When all is quiet and nothing is left to do: a machine dies that MQTT clients with wills are connected to, and comes back after
//! others have given it up.

use super::{Client, Run, Timer};
use crate::world::{Stop, World};
use env::{NodeId, Time};
use std::time::Duration;

/// How long it is away: longer than others wait for it.
const AWAY: Duration = Duration::from_secs(12);

/// How far that is.
#[derive(Clone, Copy, Debug, Default)]
pub enum NodeDeath {
    #[default]
    Ahead,
    /// Clients come to this machine.
    Near(NodeId),
    /// It is down until then.
    Dead(NodeId, Time),
    Over,
}

impl NodeDeath {
    /// Whether somebody must not start the machine yet.
    pub fn keeps_down(self, node: NodeId, now: Time) -> bool {
        matches!(self, NodeDeath::Dead(dead, until) if dead == node && now < until)
    }

    /// Whether something is wrong because of it.
    pub fn is_on(self) -> bool {
        matches!(self, NodeDeath::Dead(..))
    }
}

impl Run {
    /// Takes the next step, everything being settled. True: there is none.
    pub(super) fn has_mourned(&mut self, world: &mut World<Run>) -> bool {
        let now = world.now();
        match self.death {
            NodeDeath::Ahead => {
                let node = Client::pick(&mut self.rng, &world.nodes()).unwrap_or_default();
                let new = self.mqtt_clients.mourn(node);
                self.death = match new.is_empty() {
                    true => NodeDeath::Over,
                    false => NodeDeath::Near(node),
                };
                new.for_each(|n| world.timer_in(Duration::ZERO, Timer::Device(n)));
                matches!(self.death, NodeDeath::Over)
            }
            NodeDeath::Near(node) => {
                self.mqtt_clients.die(world);
                self.oracle.disturb(now);
                world.stop(node, Stop::Kill);
                self.death = NodeDeath::Dead(node, now + AWAY);
                false
            }
            NodeDeath::Dead(_, until) if now < until => false,
            NodeDeath::Dead(..) | NodeDeath::Over => {
                self.death = NodeDeath::Over;
                true
            }
        }
    }
}
