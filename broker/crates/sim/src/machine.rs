//! One simulated machine: a disk that outlives crashes, and what runs on it.

use crate::process::Process;
use consensus::{JobId, StorageJob, WalToken};
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Time};
use std::collections::{BTreeMap, VecDeque};
use wal::Writer;

pub(crate) struct Machine<P> {
    pub disk: SimDisk,
    pub incarnation: Incarnation,
    pub machine_run: Option<MachineRun<P>>,
    /// Added to each write's duration.
    pub stall: std::time::Duration,
    /// Milliseconds that its wall clock is ahead.
    pub clock_error: i64,
    /// When its disk last lost what was not synced.
    pub lost_power: Option<Time>,
}

/// From a start to the next stop.
pub(crate) struct MachineRun<P> {
    pub process: P,
    pub writer: Writer<WalToken>,
    pub writing: bool,
    pub jobs: VecDeque<(JobId, Box<dyn StorageJob>)>,
    pub peers: BTreeMap<NodeId, Peer>,
    /// The tick that is planned for [`Process::wake_at`].
    pub wake: Option<Time>,
}

/// What the failure detector knows of another node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    /// The life that the process was told is up.
    pub up: Option<Incarnation>,
    /// Since when nothing gets through.
    pub silent_since: Option<Time>,
}

impl<P: Process> Machine<P> {
    pub fn new() -> Machine<P> {
        Machine {
            disk: SimDisk::new(),
            incarnation: Incarnation(0),
            machine_run: None,
            stall: std::time::Duration::ZERO,
            clock_error: 0,
            lost_power: None,
        }
    }
}
