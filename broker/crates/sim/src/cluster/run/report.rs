//! What a run is told, and what it tells.

use super::super::{consistency, operator};
use super::{Run, all_of};
use crate::faults::Kind;
use crate::world::World;
use env::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// What is the same for every seed.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: u64,
    /// How long things go wrong.
    pub chaos: Duration,
    /// Disks say that they synced and did not. The rules must not hold then.
    pub lying_disks: bool,
    /// Faults that are left out.
    pub without: BTreeSet<Kind>,
    /// Prints every event.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: 3,
            chaos: Duration::from_secs(8),
            lying_disks: false,
            without: BTreeSet::new(),
            verbose: false,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of everything that happened.
    pub hash: u64,
    pub events: u64,
    pub faults: u64,
    pub published: u64,
    pub confirmed: u64,
    pub delivered: u64,
    pub redelivered: u64,
    /// Settled, and the queue was heard to know.
    pub settled: u64,
    pub connections: u64,
    pub starts: u64,
    /// Machines that found damage on their disks.
    pub damaged: u64,
    /// Machines in whose place there are others.
    pub replaced: u64,
    /// Feature flags that came on, and nodes that ended because they did not know one.
    pub flags: (u64, u64),
    /// Changes of members and leaders that were asked for.
    pub operations: u64,
    /// Of MQTT: messages published, acknowledged, received, received again.
    pub posts: [u64; 4],
    pub ended: Time,
}

impl Run {
    pub(super) fn report(&self, world: &World<Run>) -> Report {
        Report {
            hash: world.trace.hash(),
            events: world.trace.events(),
            faults: self.faults,
            published: self.oracle.published() as u64,
            confirmed: self.oracle.confirmed,
            delivered: self.oracle.delivered,
            redelivered: self.oracle.redelivered,
            settled: self.oracle.gone,
            connections: self.next_connection,
            starts: self.starts,
            damaged: self.damaged,
            replaced: self.operator.replaced,
            operations: self.operator.asked,
            flags: self.versions.told(),
            posts: {
                let mqtt_oracle = &self.mqtt_clients.mqtt_oracle;
                [
                    mqtt_oracle.posted(),
                    mqtt_oracle.acknowledged,
                    mqtt_oracle.received,
                    mqtt_oracle.received_again,
                ]
            },
            ended: world.now(),
        }
    }

    /// For people who look into a failed run.
    pub(super) fn state(&mut self, world: &World<Run>) -> String {
        let mqtt_devices = self.mqtt_clients.waits_for(world.now());
        let posts = self.mqtt_clients.mqtt_oracle.owes();
        let waiting: Vec<String> = (self.clients.iter().enumerate())
            .filter(|(_, c)| c.part.as_role().wants_more())
            .map(|(n, c)| {
                let node = c.link.as_ref().map_or(0, |l| l.node.0);
                format!(
                    "client {n} on node {node}: {}",
                    c.part.as_role().waits_for()
                )
            })
            .collect();
        let owed = self.oracle.owed(world.now());
        format!(
            "{:?}, {} shards, quiet {}, {:?}; owed {owed:?}, {posts:?}; waiting {waiting:?}, {mqtt_devices:?}; on the way {:?}; queues {:?}",
            self.fault_level,
            self.plan.shards,
            self.quiet,
            operator::all_is_replicated(world, &self.identities, 1),
            consistency::on_the_way(all_of(world)),
            consistency::figures(all_of(world)),
        )
    }
}
