//! What can be done to a machine besides stopping it.

use super::{Event, Scenario, Stop, World};
use crate::machine::Machine;
use crate::network::Link;
use env::planted::{self, Bug};
use env::sim::SimDisk;
use env::{Disk, NodeId, Rng};
use std::sync::Arc;
use std::time::Duration;
use wal::{Recovered, Wal, WalConfig};

/// Errors that a fault of the world explains.
const INJECTED: [&str; 3] = [
    "fsync failed (simulated)",
    "no space left (simulated)",
    "the directory is gone (simulated)",
];

impl<S: Scenario> World<S> {
    /// The process stands still (SIGSTOP), log and storage threads included; what comes for it waits. It goes on
    /// after `time`.
    pub fn pause(&mut self, node: NodeId, time: Duration) {
        if let Some(machine_run) = self.incarnation(node) {
            self.held.entry(node).or_default();
            self.plan(time, Event::Resume { node, machine_run });
        }
    }

    pub fn is_paused(&self, node: NodeId) -> bool {
        self.held.contains_key(&node)
    }

    pub(super) fn resume(&mut self, node: NodeId) {
        let now = self.now();
        for event in self.held.remove(&node).unwrap_or_default() {
            self.scheduler.at(now, event);
        }
    }

    /// Puts an event that a paused process does not see yet aside.
    pub(super) fn hold(&mut self, event: Event<S>) -> Option<Event<S>> {
        let node = match &event {
            Event::Tick { node, .. }
            | Event::Wake { node, .. }
            | Event::Write { node, .. }
            | Event::Job { node, .. }
            | Event::Request { node, .. } => *node,
            Event::Frame { link, .. } => link.1,
            _ => return Some(event),
        };
        match self.held.get_mut(&node) {
            Some(held) => {
                held.push(event);
                None
            }
            None => Some(event),
        }
    }

    /// The connection between two nodes breaks, as when something between them forgets it. Another one can be made at once.
    pub fn break_connection(&mut self, link: Link) {
        self.trace
            .event(self.scheduler.now(), "break", link.0.0, &link.1);
        self.connections.cut(link);
    }

    /// The node's wall clock goes forward or back, by so many milliseconds.
    pub fn jump_clock(&mut self, node: NodeId, by: i64) {
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.clock_error = machine.clock_error.saturating_add(by);
        }
    }

    /// Whether bits are flipped in some file of the node.
    pub fn is_damaged(&self, node: NodeId) -> bool {
        self.disk(node).is_some_and(|d| !d.damaged().is_empty())
    }

    /// Flips a bit somewhere in what a node that is down has stored, in files that peers have the contents of (a classic
    /// queue lives in one place: what is damaged there is told and lost). `Err`: its log then reads as another one and
    /// does not say that it is damaged.
    ///
    /// The end of the last log file is the exception: what lies there may be a write that a crash cut off. Nobody can
    /// tell (unless the node was stopped in order, which completes the file), so the bit is flipped back.
    pub fn flip_bit(&mut self, node: NodeId) -> Result<(), String> {
        let now = self.now();
        let machine = self.machines.get(&node).filter(|m| m.machine_run.is_none());
        let Some(disk) = machine.map(|m| m.disk.clone()) else {
            return Ok(());
        };
        let mut files = disk.files();
        files.retain(|(path, len)| *len > 0 && !path.starts_with("classic"));
        let at = self.rng.below(files.len() as u64) as usize;
        let (chance, mask) = (self.rng.next_u64(), 1 << self.rng.below(8));
        let Some((path, len)) = files.get(at) else {
            return Ok(());
        };
        let offset = chance % len;
        let Ok(before) = self.read_log(node) else {
            return Ok(());
        };
        disk.flip(path, offset, mask);
        self.trace
            .event(now, "bit flip", node.0, &(path, offset, mask));
        let after = match self.read_log(node) {
            Err(error) if error.contains(path) => return Ok(()),
            Err(error) => return Err(format!("{path} is damaged; the error is {error}")),
            Ok(after) => after,
        };
        if before.groups == after.groups && before.files == after.files {
            return Ok(());
        }
        let torn = after.torn.as_ref();
        if torn.is_some_and(|t| t.file == *path && t.offset <= offset) {
            disk.flip(path, offset, mask);
            return Ok(());
        }
        Err(format!(
            "byte {offset} of {path} of node {} is damaged and its log reads as another one",
            node.0
        ))
    }

    /// Checks, on a copy of its disk, that a node that is down notices the loss of its newest log file. `Err`: its log
    /// reads as another one.
    pub fn check_newest_log_file_is_missed(&self, node: NodeId) -> Result<(), String> {
        let disk = self.machines.get(&node).filter(|m| m.machine_run.is_none());
        let Some(copy) = disk.map(|m| m.disk.copy()) else {
            return Ok(());
        };
        let Ok(before) = self.read_log(node) else {
            return Ok(());
        };
        let is_log = |path: &String| path.ends_with(".wal");
        let mut paths = copy.files().into_iter().map(|(path, _)| path);
        let Some(newest) = paths.rfind(is_log) else {
            return Ok(());
        };
        copy.remove(&newest).map_err(|e| e.to_string())?;
        match read_log_of(copy, node) {
            Err(error) if error.contains(&newest) => Ok(()),
            Err(error) => Err(format!("{newest} is missing; the error is {error}")),
            // Nothing was ever acknowledged that was in it alone.
            Ok(after) if after.groups == before.groups => Ok(()),
            Ok(_) => Err(format!(
                "{newest} of node {} is missing and its log reads as another one",
                node.0
            )),
        }
    }

    /// What the node would find in its log, were it started.
    fn read_log(&self, node: NodeId) -> Result<Recovered, String> {
        let disk = self.disk(node).map(|d| d.copy()).unwrap_or_default();
        read_log_of(disk, node)
    }

    /// Ends a node and takes it and its disk away. Another one with an empty disk takes its place, not started yet,
    /// under an id of its own, as `node::identity` has it in production. `None`: no such node.
    pub fn replace(&mut self, node: NodeId) -> Option<NodeId> {
        self.stop(node, Stop::Power);
        let now = self.now();
        if planted::is(Bug::OldIdentity) {
            self.disk(node)?.wipe();
            return Some(node);
        }
        self.machines.remove(&node)?;
        self.youngest.0 += 1;
        let new = self.youngest;
        self.machines.insert(new, Machine::new());
        self.trace.event(now, "replace", node.0, &new);
        Some(new)
    }

    /// The node ends, as it must. An injected fault excuses it; a damaged file, too, if the error names it.
    pub(super) fn ended(
        &mut self,
        scenario: &mut S,
        node: NodeId,
        error: &str,
    ) -> Result<(), String> {
        let now = self.now();
        let Some(machine) = self.machines.get_mut(&node) else {
            return Ok(());
        };
        let disk = machine.disk.clone();
        let injected = disk.power_is_off() || INJECTED.iter().any(|i| error.contains(i));
        let named = disk.damaged().iter().any(|file| error.contains(file));
        let removed = !injected && !named && scenario.removed(node, error);
        if !injected && !named && !removed {
            return Err(format!("node {} ends: {error}", node.0));
        }
        self.trace.event(now, "disk fault", node.0, &error);
        machine.machine_run = None;
        self.held.remove(&node);
        disk.fail_syncs_after(None);
        if injected {
            machine.lost_power = Some(now);
            disk.crash(&mut self.rng);
            return Ok(());
        }
        disk.restart();
        if removed {
            return Ok(());
        }
        scenario.damaged(self, node, error)
    }
}

fn read_log_of(disk: SimDisk, node: NodeId) -> Result<Recovered, String> {
    let opened = Wal::open(Arc::new(disk), WalConfig::new(node, 0));
    let (_, recovered) = opened.map_err(|e| e.to_string())?;
    Ok(recovered)
}
