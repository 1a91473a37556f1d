//! A simulated machine: a disk that survives crashes, and the process that runs on it.

use crate::process::Process;
use consensus::{JobId, StorageJob, WalToken};
use env::sim::SimDisk;
use env::{Incarnation, NodeId, SeededRng, Time};
use std::collections::{BTreeMap, VecDeque};
use wal::Writer;

pub(crate) struct Machine<P> {
    pub disk: SimDisk,
    pub incarnation: Incarnation,
    pub machine_run: Option<MachineRun<P>>,
    /// Delay added to each write.
    pub stall: std::time::Duration,
    /// Error of its wall clock in milliseconds; positive if the clock is ahead.
    pub clock_error: i64,
    /// When the disk last lost unsynced data.
    pub lost_power: Option<Time>,
    /// How often the disk has lost unsynced data. A killed process does not count.
    pub power_losses: u64,
}

/// State of a machine between a start and the next stop.
pub(crate) struct MachineRun<P> {
    pub process: P,
    pub writer: Writer<WalToken>,
    pub writing: bool,
    pub jobs: VecDeque<(JobId, Box<dyn StorageJob>)>,
    pub peers: BTreeMap<NodeId, Peer>,
    /// Time of the tick that is scheduled for [`Process::wake_at`].
    pub wake: Option<Time>,
}

/// State of the failure detector for another node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    /// The incarnation that was reported to the process as up.
    pub up: Option<Incarnation>,
    /// Since when the other node has been unreachable.
    pub silent_since: Option<Time>,
}

impl<P: Process> Machine<P> {
    /// The machine loses power: unsynced data is lost, survives or is torn.
    pub(crate) fn lose_power(&mut self, now: Time, rng: &mut SeededRng) {
        self.lost_power = Some(now);
        self.power_losses += 1;
        self.disk.crash(rng);
    }

    pub(crate) fn new() -> Machine<P> {
        Machine {
            disk: SimDisk::new(),
            incarnation: Incarnation(0),
            machine_run: None,
            stall: std::time::Duration::ZERO,
            clock_error: 0,
            lost_power: None,
            power_losses: 0,
        }
    }
}
