//! Dead letters of a quorum queue.
//!
//! With at-most-once, the leader remembers the locations of dead letters until its shard takes them. With
//! at-least-once, they are part of the replicated state, neither ready nor unsettled, until a command records
//! that every queue behind the dead letter exchange has confirmed them. The leader hands them to its shard in
//! order, one window at a time; a new leader starts again at the first.

use super::annotations::{MessageAnnotations, annotated};
use super::command::Command;
use super::effects::{Effects, LogRead, ReadError, read_message};
use super::leader::QuorumQueue;
use super::ready::LogMessage;
use crate::{DeadLettering, DeadReason, QueueOutput};
use message::Message;
use std::collections::BTreeMap;

/// Most dead letters in progress at a time.
pub const MAX_PASSING: usize = 256;
/// Most body bytes of the dead letters in progress, with one message above it at most.
pub const MAX_PASSING_BYTES: u64 = 4 << 20;

/// The replicated dead letters, by consecutive numbers from 1.
#[derive(Debug)]
pub(crate) struct DeadLetters {
    mode: DeadLettering,
    kept: BTreeMap<u64, (LogMessage, DeadReason)>,
    next: u64,
    bytes: u64,
}

impl DeadLetters {
    pub(crate) fn new(mode: DeadLettering) -> DeadLetters {
        DeadLetters {
            mode,
            kept: BTreeMap::new(),
            next: 1,
            bytes: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.kept.len() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Number of the next dead letter.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn kept(&self) -> impl Iterator<Item = (u64, &LogMessage, DeadReason)> {
        self.kept
            .iter()
            .map(|(id, (held, reason))| (*id, held, *reason))
    }

    /// Continues the numbers at `next`, unless they are higher already.
    pub(crate) fn number_from(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Adds a message that left the queue.
    pub(crate) fn add(
        &mut self,
        item: &LogMessage,
        reason: DeadReason,
        annotations: &mut MessageAnnotations,
        effects: &mut Effects,
    ) {
        effects.count_death(self.mode, reason);
        self.route(item, reason, annotations, effects);
    }

    fn route(
        &mut self,
        item: &LogMessage,
        reason: DeadReason,
        annotations: &mut MessageAnnotations,
        effects: &mut Effects,
    ) {
        let location = item.location();
        match self.mode {
            DeadLettering::Off => {
                annotations.remove(location);
            }
            DeadLettering::AtMostOnce => {
                effects.push_dead(reason, location, annotations.remove(location));
            }
            DeadLettering::AtLeastOnce => {
                debug_assert!(!self.kept.contains_key(&self.next));
                self.keep(self.next, *item, reason);
            }
        }
    }

    pub(crate) fn keep(&mut self, id: u64, item: LogMessage, reason: DeadReason) {
        self.next = self.next.max(id.saturating_add(1));
        self.bytes += u64::from(item.body);
        self.kept.insert(id, (item, reason));
    }

    /// Sets the mode. If at-least-once ends, the kept dead letters are forwarded at most once, or dropped
    /// without a dead letter exchange.
    pub(crate) fn set_mode(
        &mut self,
        mode: DeadLettering,
        annotations: &mut MessageAnnotations,
        effects: &mut Effects,
    ) {
        let before = std::mem::replace(&mut self.mode, mode);
        if before != DeadLettering::AtLeastOnce || mode == before {
            return;
        }
        for (item, reason) in std::mem::take(&mut self.kept).into_values() {
            self.route(&item, reason, annotations, effects);
        }
        self.bytes = 0;
    }

    /// Removes dead letters that every target queue has confirmed; ranges are inclusive.
    pub(crate) fn passed_on(
        &mut self,
        ranges: &[(u64, u64)],
        annotations: &mut MessageAnnotations,
    ) {
        for &(from, to) in ranges.iter().filter(|(from, to)| from <= to) {
            while let Some((&id, (item, _))) = self.kept.range(from..=to).next() {
                self.bytes -= u64::from(item.body);
                annotations.remove(item.location());
                self.kept.remove(&id);
            }
        }
        debug_assert!(self.bytes == 0 || !self.kept.is_empty());
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.bytes = 0;
    }
}

/// Result of reading a kept dead letter.
#[derive(Clone, Debug, PartialEq)]
pub enum DeadRead {
    /// The dead letter, and why it died.
    Message(DeadReason, Message),
    /// It is no longer kept, or damaged.
    Gone,
    /// File descriptors or memory are short: try again later.
    Shortage,
}

/// Progress of a leader with forwarding; it is reset with each change of leadership.
#[derive(Debug, Default)]
pub(crate) struct ForwardProgress {
    /// All dead letters up to this number have been handed to the shard.
    handed_up_to: u64,
    /// Dead letters that the shard is forwarding, and the bytes of their bodies.
    out: BTreeMap<u64, u32>,
    bytes: u64,
    /// Confirmed dead letters to record in the log at the end of the turn.
    confirmed: Vec<u64>,
}

impl ForwardProgress {
    fn has_room(&self) -> bool {
        self.out.len() < MAX_PASSING && (self.out.is_empty() || self.bytes < MAX_PASSING_BYTES)
    }

    fn confirm(&mut self, id: u64) {
        if let Some(body) = self.out.remove(&id) {
            self.bytes -= u64::from(body);
            debug_assert!(self.bytes == 0 || !self.out.is_empty());
            self.confirmed.push(id);
        }
    }
}

/// Converts numbers to inclusive ranges.
fn ranges(mut ids: Vec<u64>) -> Vec<(u64, u64)> {
    ids.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some((_, to)) if *to + 1 == id => *to = id,
            _ => ranges.push((id, id)),
        }
    }
    ranges
}

impl QuorumQueue {
    /// Returns true if [`take_dead`](Self::take_dead) has something to return.
    pub fn has_dead(&self) -> bool {
        !self.waits_to_read() && (self.effects.has_dead() || self.next_to_forward().is_some())
    }

    fn next_to_forward(&self) -> Option<(u64, LogMessage, DeadReason)> {
        if !self.leads || !self.caught_up || !self.forwarding.has_room() {
            return None;
        }
        let mut rest = self
            .machine
            .dead
            .kept
            .range(self.forwarding.handed_up_to + 1..);
        rest.next()
            .map(|(id, (item, reason))| (*id, *item, *reason))
    }

    /// Hands dead letters to the shard, at most `most` and about `most_bytes`. Those in [`QueueOutput::dead`]
    /// are then no longer the queue's; those in [`QueueOutput::kept_dead`] are kept until
    /// [`passed_on`](Self::passed_on). `read` returns the command of a log entry.
    pub fn take_dead(
        &mut self,
        most: usize,
        most_bytes: usize,
        read: &mut dyn FnMut(u64) -> LogRead,
        out: &mut QueueOutput,
    ) {
        if !self.effects.take_dead(most, most_bytes, read, out) {
            return self.retry_later();
        }
        let mut remaining = most_bytes;
        while out.kept_dead.len() < most && remaining > 0 {
            let Some((id, item, reason)) = self.next_to_forward() else {
                return;
            };
            let location = item.location();
            let read = read_message(&read(location.index), location);
            if read == Err(ReadError::Shortage) {
                return self.retry_later();
            }
            debug_assert!(self.forwarding.handed_up_to < id);
            self.forwarding.handed_up_to = id;
            match read {
                Ok(message) => {
                    remaining = remaining.saturating_sub(message.as_bytes().len());
                    self.forwarding.out.insert(id, item.body);
                    self.forwarding.bytes += u64::from(item.body);
                    debug_assert!(self.forwarding.out.len() <= MAX_PASSING);
                    let message = annotated(message, self.machine.annotations.get(location));
                    out.kept_dead.push((id, reason, message));
                }
                // The dead letter stays: another leader may be able to read it.
                Err(ReadError::Lost(fault)) => out.faults.push(fault),
                Err(ReadError::Shortage) => {}
            }
        }
    }

    /// Reads a dead letter again that was handed out before.
    pub fn read_dead(&self, id: u64, read: &mut dyn FnMut(u64) -> LogRead) -> DeadRead {
        let Some((item, reason)) = self.machine.dead.kept.get(&id) else {
            return DeadRead::Gone;
        };
        let location = item.location();
        match read_message(&read(location.index), location) {
            Ok(message) => {
                let annotations = self.machine.annotations.get(location);
                DeadRead::Message(*reason, annotated(message, annotations))
            }
            Err(ReadError::Lost(_)) => DeadRead::Gone,
            Err(ReadError::Shortage) => DeadRead::Shortage,
        }
    }

    /// Records that every queue behind the dead letter exchange has confirmed a dead letter.
    pub fn passed_on(&mut self, id: u64) {
        if self.leads {
            self.forwarding.confirm(id);
        }
    }

    /// Proposes, at the end of a turn, to remove confirmed dead letters. A leader that does not know yet what
    /// its predecessors removed makes sure that it catches up.
    pub(super) fn propose_forwarded(&mut self) {
        if self.leads && !self.caught_up && !self.machine.dead.is_empty() {
            self.ensure_caught_up_soon();
        }
        if !self.forwarding.confirmed.is_empty() {
            let confirmed = ranges(std::mem::take(&mut self.forwarding.confirmed));
            self.propose(&Command::PassedOn(confirmed));
        }
    }
}
