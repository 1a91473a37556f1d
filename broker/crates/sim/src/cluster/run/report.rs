//! Options and report of a run.

use super::super::{consistency, operator, streams};
use super::{Run, running_nodes};
use crate::faults::FaultKind;
use crate::world::World;
use env::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// Options that all seeds share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of nodes.
    pub nodes: u64,
    /// Duration of the phase with faults.
    pub chaos: Duration,
    /// Disks report a sync and do not perform it. The oracles must then find violations.
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
            chaos: Duration::from_secs(8),
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
    /// Number of injected faults.
    pub faults: u64,
    /// Number of messages that AMQP clients published.
    pub published: u64,
    /// Number of confirmed messages.
    pub confirmed: u64,
    /// Number of messages that were confirmed while one node was cut off after the faults.
    pub confirmed_beside_cut: u64,
    /// Number of deliveries to AMQP clients.
    pub delivered: u64,
    /// Number of deliveries with the redelivered flag.
    pub redelivered: u64,
    /// Number of deliveries after a delay.
    pub after_delay: u64,
    /// Number of confirmed copies of messages.
    pub copies: u64,
    /// Settled messages, of which the queue is known to know that.
    pub settled: u64,
    /// Number of connections of clients.
    pub connections: u64,
    /// Number of starts of nodes.
    pub starts: u64,
    /// Number of machines that found damage on their disks.
    pub damaged: u64,
    /// Number of replaced machines.
    pub replaced: u64,
    /// Number of feature flags that were enabled, and of nodes that ended because they did not know one.
    pub flags: (u64, u64),
    /// Number of requested changes of members and leaders.
    pub operations: u64,
    /// MQTT messages: published, acknowledged, received, received again.
    pub mqtt_messages: [u64; 4],
    /// Of AMQP 1.0 clients: accepted publishes, messages that were published again, deliveries, finished drains, deliveries to receivers
    /// with filters, their drains that ended beside messages of other parts, copies for browsers, their finished drains.
    pub amqp10: [u64; 8],
    /// Of streams: published, confirmed, read, stored more than once.
    pub streams: [u64; 4],
    /// Virtual time at the end.
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
            after_delay: self.oracle.after_delay,
            copies: self.oracle.copies,
            settled: self.oracle.known_settled,
            connections: self.next_connection,
            starts: self.starts,
            damaged: self.damaged,
            confirmed_beside_cut: self.confirmed_beside_cut,
            replaced: self.operator.replaced,
            operations: self.operator.operations,
            flags: self.versions.flag_counts(),
            mqtt_messages: {
                let mqtt_oracle = &self.mqtt_clients.mqtt_oracle;
                [
                    mqtt_oracle.published(),
                    mqtt_oracle.acknowledged,
                    mqtt_oracle.received,
                    mqtt_oracle.received_again,
                ]
            },
            amqp10: {
                let oracle = &self.amqp10_clients.oracle;
                [
                    oracle.confirmed,
                    oracle.repeats,
                    oracle.deliveries,
                    oracle.drains,
                    oracle.filtered,
                    oracle.drains_beside,
                    oracle.browsers.copies,
                    oracle.browsers.drains,
                ]
            },
            streams: {
                let oracle = &self.stream_oracle;
                [
                    oracle.published(),
                    oracle.confirmed(),
                    oracle.read,
                    oracle.repeated,
                ]
            },
            ended: world.now(),
        }
    }

    /// Describes the state of a failed run.
    pub(super) fn state(&mut self, world: &World<Run>) -> String {
        let waiting_mqtt = self.mqtt_clients.describe_wait(world.now());
        let mqtt_messages = self.mqtt_clients.mqtt_oracle.count_owed();
        let waiting: Vec<String> = (self.clients.iter().enumerate())
            .filter(|(_, c)| c.role.as_role().has_work_left())
            .map(|(n, c)| {
                let node = c.link.as_ref().map_or(0, |l| l.node.0);
                format!(
                    "client {n} on node {node}: {}",
                    c.role.as_role().describe_wait()
                )
            })
            .collect();
        let owed = self.oracle.owed(world.now());
        let amqp10 = self.amqp10_clients.describe_wait();
        format!(
            "{:?}, shards {:?}, faults ended {}, streams {:?}, {:?}; owed {owed:?}, {mqtt_messages:?}; waiting {waiting:?}, {waiting_mqtt:?}; of AMQP 1.0 {amqp10}; in flight {:?}; queues {:?}",
            self.fault_level,
            self.plan.shards,
            self.faults_ended,
            streams::check_agreement(world),
            operator::check_replication(world, &self.identities, 1),
            consistency::describe_in_flight(running_nodes(world)),
            consistency::describe_queues(running_nodes(world)),
        )
    }
}
