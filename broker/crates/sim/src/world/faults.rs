//! Faults of a machine other than a stop.

use super::{Event, Scenario, Stop, World};
use crate::machine::Machine;
use crate::network::Link;
use env::planted::{self, Bug};
use env::sim::SimDisk;
use env::{Disk, NodeId, Rng};
use std::sync::Arc;
use std::time::Duration;
use wal::{Recovered, Wal, WalConfig};

/// Errors that are caused by an injected fault.
const INJECTED: [&str; 3] = [
    "fsync failed (simulated)",
    "no space left (simulated)",
    "the directory is gone (simulated)",
];

impl<S: Scenario> World<S> {
    /// Pauses the process (SIGSTOP), including its log and storage threads. Its events are deferred. It continues after
    /// `time`.
    pub fn pause(&mut self, node: NodeId, time: Duration) {
        if let Some(incarnation) = self.incarnation(node) {
            self.deferred_events.entry(node).or_default();
            self.schedule(time, Event::Resume { node, incarnation });
        }
    }

    /// Whether the process of this machine is paused.
    pub fn is_paused(&self, node: NodeId) -> bool {
        self.deferred_events.contains_key(&node)
    }

    pub(super) fn resume(&mut self, node: NodeId) {
        let now = self.now();
        for event in self.deferred_events.remove(&node).unwrap_or_default() {
            self.scheduler.at(now, event);
        }
    }

    /// Defers an event of a paused process.
    pub(super) fn defer_if_paused(&mut self, event: Event<S>) -> Option<Event<S>> {
        let node = match &event {
            Event::Tick { node, .. }
            | Event::Wake { node, .. }
            | Event::Write { node, .. }
            | Event::Job { node, .. }
            | Event::Request { node, .. } => *node,
            Event::Frame { link, .. } => link.1,
            _ => return Some(event),
        };
        match self.deferred_events.get_mut(&node) {
            Some(events) => {
                events.push(event);
                None
            }
            None => Some(event),
        }
    }

    /// Breaks the connection between two nodes, as a middlebox that forgets its state does. It can be replaced at once.
    pub fn break_connection(&mut self, link: Link) {
        self.trace
            .event(self.scheduler.now(), "break", link.0.0, &link.1);
        self.connections.cut(link);
    }

    /// Moves the wall clock of a node forward or back by this number of milliseconds.
    pub fn jump_clock(&mut self, node: NodeId, by: i64) {
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.clock_error = machine.clock_error.saturating_add(by);
        }
    }

    /// Whether a file of the node has flipped bits.
    pub fn is_damaged(&self, node: NodeId) -> bool {
        self.disk(node).is_some_and(|d| !d.damaged().is_empty())
    }

    /// Whether a file of any node has flipped bits.
    pub fn is_any_damaged(&self) -> bool {
        self.nodes().iter().any(|node| self.is_damaged(*node))
    }

    /// Flips a bit in the stored data of a stopped node, in a file whose content its peers have too. Files of classic
    /// queues are excluded: a classic queue has one copy, so damage there is reported and the data is lost. `Err`: the log reads
    /// differently and does not report the damage.
    ///
    /// The end of the last log file is an exception: damage there cannot be distinguished from a write that a crash cut
    /// off, unless the node was stopped gracefully, which completes the file. There the bit is flipped back.
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

    /// Checks, on a copy of its disk, that a stopped node notices the loss of its newest log file. `Err`: its log reads
    /// differently and does not report the loss.
    pub fn check_newest_log_file_loss_is_detected(&self, node: NodeId) -> Result<(), String> {
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
            // Nothing that only this file contained was ever acknowledged.
            Ok(after) if after.groups == before.groups => Ok(()),
            Ok(_) => Err(format!(
                "{newest} of node {} is missing and its log reads as another one",
                node.0
            )),
        }
    }

    /// What the node would read from its log if it started now.
    fn read_log(&self, node: NodeId) -> Result<Recovered, String> {
        let disk = self.disk(node).map(|d| d.copy()).unwrap_or_default();
        read_log_of(disk, node)
    }

    /// Stops a node and removes it with its disk. A new machine with an empty disk and a new id takes its place, as
    /// with `node::identity` in production. It is not started. `None`: the node does not exist.
    pub fn replace(&mut self, node: NodeId) -> Option<NodeId> {
        self.stop(node, Stop::Power);
        let now = self.now();
        if planted::is(Bug::OldIdentity) {
            self.disk(node)?.wipe();
            return Some(node);
        }
        self.machines.remove(&node)?;
        self.newest_node.0 += 1;
        let new = self.newest_node;
        self.machines.insert(new, Machine::new());
        self.trace.event(now, "replace", node.0, &new);
        Some(new)
    }

    /// Ends a node that failed. An injected fault explains that, as does a damaged file that the error names.
    pub(super) fn end_failed(
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
        let is_injected = disk.power_is_off() || INJECTED.iter().any(|i| error.contains(i));
        let names_damaged_file = disk.damaged().iter().any(|file| error.contains(file));
        let is_removed = !is_injected && !names_damaged_file && scenario.removed(node, error);
        if !is_injected && !names_damaged_file && !is_removed {
            return Err(format!("node {} ends: {error}", node.0));
        }
        self.trace.event(now, "disk fault", node.0, &error);
        machine.machine_run = None;
        self.deferred_events.remove(&node);
        disk.fail_syncs_after(None);
        if is_injected {
            machine.lose_power(now, &mut self.rng);
            return Ok(());
        }
        disk.restart();
        if is_removed {
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
