//! Dead messages of a quorum queue (Q12).
//!
//! At most once: the leader remembers where they are until its shard takes them; that is all. At least once: they are
//! part of the replicated state, neither ready nor out, until a command says that every queue behind the dead letter
//! exchange has confirmed them. The leader hands them to its shard in order, a window of them at a time, and a new leader
//! begins again at the first.

use super::annotations::{MessageAnnotations, annotated};
use super::command::Command;
use super::effects::{Effects, LogRead, Unread, message};
use super::leader::QuorumQueue;
use super::ready::LogMessage;
use crate::{DeadLettering, DeadReason, QueueOutput};
use message::Message;
use std::collections::BTreeMap;

/// Messages that are being passed on at a time, and bytes of their bodies (one message may have more).
pub const MAX_PASSING: usize = 256;
pub const MAX_PASSING_BYTES: u64 = 4 << 20;

/// The replicated part, by consecutive numbers from 1.
#[derive(Debug)]
pub(crate) struct DeadLetters {
    mode: DeadLettering,
    kept: BTreeMap<u64, (LogMessage, DeadReason)>,
    next: u64,
    bytes: u64,
}

impl DeadLetters {
    pub fn new(mode: DeadLettering) -> DeadLetters {
        DeadLetters {
            mode,
            kept: BTreeMap::new(),
            next: 1,
            bytes: 0,
        }
    }

    pub fn len(&self) -> u64 {
        self.kept.len() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The number that the next one gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn kept(&self) -> impl Iterator<Item = (u64, &LogMessage, DeadReason)> {
        self.kept.iter().map(|(id, (held, why))| (*id, held, *why))
    }

    /// Numbers go on from here.
    pub fn number_from(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// A message is out of the queue.
    pub fn bury(
        &mut self,
        item: &LogMessage,
        reason: DeadReason,
        annotations: &mut MessageAnnotations,
        effects: &mut Effects,
    ) {
        effects.died(self.mode, reason);
        self.dispatch(item, reason, annotations, effects);
    }

    fn dispatch(
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
                effects.dead(reason, location, annotations.remove(location));
            }
            DeadLettering::AtLeastOnce => {
                self.keep(self.next, *item, reason);
            }
        }
    }

    pub fn keep(&mut self, id: u64, item: LogMessage, reason: DeadReason) {
        self.next = self.next.max(id.saturating_add(1));
        self.bytes += u64::from(item.body);
        self.kept.insert(id, (item, reason));
    }

    /// Other settings. What was to be passed on at least once is passed on once, or gone with the exchange it was for.
    pub fn set_mode(
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
            self.dispatch(&item, reason, annotations, effects);
        }
        self.bytes = 0;
    }

    /// Every queue they go to has these; ranges are inclusive.
    pub fn passed_on(&mut self, ranges: &[(u64, u64)], annotations: &mut MessageAnnotations) {
        for &(from, to) in ranges.iter().filter(|(from, to)| from <= to) {
            while let Some((&id, (item, _))) = self.kept.range(from..=to).next() {
                self.bytes -= u64::from(item.body);
                annotations.remove(item.location());
                self.kept.remove(&id);
            }
        }
    }

    pub fn clear(&mut self) {
        self.kept.clear();
        self.bytes = 0;
    }
}

/// An attempt to read a kept dead message.
#[derive(Clone, Debug, PartialEq)]
pub enum DeadRead {
    Message(DeadReason, Message),
    /// It is no longer there, or damaged.
    Gone,
    /// Descriptors or memory are short: try again later.
    Shortage,
}

/// How far a leader is with passing on; forgotten with its leadership.
#[derive(Debug, Default)]
pub(crate) struct ForwardProgress {
    /// Up to this number all have been handed to the shard.
    handed: u64,
    /// Those the shard has, and the bytes of their bodies.
    out: BTreeMap<u64, u32>,
    bytes: u64,
    /// Passed on; to be logged at the end of the turn.
    done: Vec<u64>,
}

impl ForwardProgress {
    fn has_room(&self) -> bool {
        self.out.len() < MAX_PASSING && (self.out.is_empty() || self.bytes < MAX_PASSING_BYTES)
    }

    fn finish(&mut self, id: u64) {
        if let Some(body) = self.out.remove(&id) {
            self.bytes -= u64::from(body);
            self.done.push(id);
        }
    }
}

/// Numbers as inclusive ranges.
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
    /// [`take_dead`](Self::take_dead) has something to give.
    pub fn has_dead(&self) -> bool {
        !self.waits_to_read() && (self.effects.has_dead() || self.next_to_pass().is_some())
    }

    fn next_to_pass(&self) -> Option<(u64, LogMessage, DeadReason)> {
        if !self.leads || !self.caught_up || !self.passing.has_room() {
            return None;
        }
        let mut rest = self.machine.dead.kept.range(self.passing.handed + 1..);
        rest.next().map(|(id, (item, why))| (*id, *item, *why))
    }

    /// Dead messages for the shard to pass on, `most` of them and about so many bytes: those of [`QueueOutput::dead`] are done
    /// with by that, those of [`QueueOutput::kept_dead`] when [`passed_on`](Self::passed_on) says so. `read` gives the command
    /// of an entry.
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
        let mut room = most_bytes;
        while out.kept_dead.len() < most && room > 0 {
            let Some((id, item, reason)) = self.next_to_pass() else {
                return;
            };
            let location = item.location();
            let read = message(&read(location.index), location);
            if read == Err(Unread::Shortage) {
                return self.retry_later();
            }
            self.passing.handed = id;
            match read {
                Ok(message) => {
                    room = room.saturating_sub(message.as_bytes().len());
                    self.passing.out.insert(id, item.body);
                    self.passing.bytes += u64::from(item.body);
                    let message = annotated(message, self.machine.annotations.get(location));
                    out.kept_dead.push((id, reason, message));
                }
                // It stays: another leader may be able to read it.
                Err(Unread::Lost(fault)) => out.faults.push(fault),
                Err(Unread::Shortage) => {}
            }
        }
    }

    /// A message that was handed out before, once more.
    pub fn read_dead(&self, id: u64, read: &mut dyn FnMut(u64) -> LogRead) -> DeadRead {
        let Some((item, reason)) = self.machine.dead.kept.get(&id) else {
            return DeadRead::Gone;
        };
        let location = item.location();
        match message(&read(location.index), location) {
            Ok(message) => {
                let annotations = self.machine.annotations.get(location);
                DeadRead::Message(*reason, annotated(message, annotations))
            }
            Err(Unread::Lost(_)) => DeadRead::Gone,
            Err(Unread::Shortage) => DeadRead::Shortage,
        }
    }

    /// Every queue behind the dead letter exchange has confirmed this one.
    pub fn passed_on(&mut self, id: u64) {
        if self.leads {
            self.passing.finish(id);
        }
    }

    /// The end of a turn: what was passed on is logged. A leader that does not know yet what its predecessors passed on
    /// sees to it that it soon does.
    pub(super) fn log_passed_on(&mut self) {
        if self.leads && !self.caught_up && !self.machine.dead.is_empty() {
            self.hurry();
        }
        if !self.passing.done.is_empty() {
            let done = ranges(std::mem::take(&mut self.passing.done));
            self.propose(&Command::PassedOn(done));
        }
    }
}
