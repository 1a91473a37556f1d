//! Output of the machine: events, deliveries and dead letters. Members that do not lead discard it.

use super::annotations::annotated;
use super::command::MAX_BATCH_BYTES;
use crate::{
    Annotations, ConsumerId, DeadLettering, DeadReason, DeathCounts, Delivery, DeliveryCounts,
    QueueEvent, QueueOutput, QueueType, SessionId,
};
use bytes::Bytes;
use env::planted::{self, Bug};
use message::Message;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use wire::Reader;

/// Location of a message in the log: the entry, and the offset of the message's length within the command of
/// the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogLocation {
    /// Index of the entry.
    pub index: u64,
    /// Offset within its command.
    pub offset: u32,
}

/// Bits of an offset in [`LogLocation::number`].
pub(super) const OFFSET_BITS: u32 = 21;
// A command of this size takes no further message.
const _: () = assert!(MAX_BATCH_BYTES < 1 << OFFSET_BITS);

impl LogLocation {
    /// A number that identifies the message within its queue. 0: the location is too large for a number.
    pub fn number(self) -> u64 {
        let has_number =
            self.index >> (u64::BITS - OFFSET_BITS) == 0 && self.offset >> OFFSET_BITS == 0;
        match has_number {
            true => self.index << OFFSET_BITS | u64::from(self.offset),
            false => 0,
        }
    }
}

/// Result of reading the command of a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRead {
    /// The command.
    Command(Bytes),
    /// The entry is missing or damaged.
    Lost,
    /// File descriptors or memory are short; the same read will succeed later.
    Shortage,
}

impl From<Option<Bytes>> for LogRead {
    fn from(command: Option<Bytes>) -> LogRead {
        command.map_or(LogRead::Lost, LogRead::Command)
    }
}

/// Why a message could not be read from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// The message is lost; the text names the entry.
    Lost(String),
    /// File descriptors or memory are short.
    Shortage,
}

/// One output of the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// An event for a session.
    Event {
        /// The receiver.
        session: SessionId,
        /// The event.
        event: QueueEvent,
    },
    /// A delivery whose message is to be read from the log.
    Deliver {
        /// The session of the consumer.
        session: SessionId,
        /// The consumer.
        consumer: ConsumerId,
        /// The delivery id.
        id: u64,
        /// Deliveries so far.
        counts: DeliveryCounts,
        /// The queue counts all deliveries, not only failed ones.
        counts_all: bool,
        /// See [`Delivery::left`].
        left: u64,
        /// Location of the message.
        at: LogLocation,
        /// Annotations that the message got in this queue.
        annotations: Option<Arc<Annotations>>,
    },
}

impl Effect {
    fn session(&self) -> SessionId {
        match self {
            Effect::Event { session, .. } | Effect::Deliver { session, .. } => *session,
        }
    }
}

/// A dead letter to be forwarded at most once.
#[derive(Clone, Debug)]
struct DeadMessage {
    reason: DeadReason,
    at: LogLocation,
    annotations: Option<Arc<Annotations>>,
}

/// Collects the output of the machine, or discards it.
#[derive(Debug, Default)]
pub struct Effects {
    /// Events and deliveries, in order.
    pub list: Vec<Effect>,
    /// Dead letters that are not taken yet.
    dead: VecDeque<DeadMessage>,
    /// Deaths since the last [`resolve`](Effects::resolve).
    deaths: Option<Box<DeathCounts>>,
    collects: bool,
    /// Deliveries in the list could not be read because file descriptors or memory were short.
    short: bool,
    /// News for the search for messages of consumers with filters.
    pub(super) selection: SelectionNews,
}

/// Changes that concern the search for messages of consumers with filters. Only a leader that searches collects them.
#[derive(Debug, Default)]
pub(super) struct SelectionNews {
    pub collects: bool,
    /// Numbers of messages that became ready again.
    pub ready_again: Vec<u64>,
    /// Consumers whose found messages were assigned, and the numbers of those that they had no room for.
    pub assigned: Vec<(u64, Vec<u64>)>,
}

impl Effects {
    /// Collects the output, on the leader.
    pub fn collecting() -> Effects {
        Effects {
            collects: true,
            ..Effects::default()
        }
    }

    /// Discards the output.
    pub fn discarding() -> Effects {
        Effects::default()
    }

    pub(super) fn push(&mut self, effect: Effect) {
        if self.collects {
            self.list.push(effect);
        }
    }

    pub(super) fn push_dead(
        &mut self,
        reason: DeadReason,
        at: LogLocation,
        annotations: Option<Arc<Annotations>>,
    ) {
        if self.collects {
            self.dead.push_back(DeadMessage {
                reason,
                at,
                annotations,
            });
        }
    }

    /// A message that was ready before is ready again.
    #[inline]
    pub(super) fn note_ready_again(&mut self, at: LogLocation) {
        if self.selection.collects && !planted::is(Bug::ReturnedUnexamined) {
            self.selection.ready_again.push(at.number());
        }
    }

    /// Found messages of a consumer were assigned, except those that it had no room for.
    pub(super) fn note_assigned(&mut self, consumer: u64, unassigned: Vec<u64>) {
        if self.selection.collects {
            self.selection.assigned.push((consumer, unassigned));
        }
    }

    /// Number of dead letters that are not taken yet.
    pub(super) fn dead_len(&self) -> usize {
        self.dead.len()
    }

    /// Reverses the order of the dead letters after the first `len`.
    pub(super) fn reverse_dead_from(&mut self, len: usize) {
        if let Some(since) = self.dead.make_contiguous().get_mut(len..) {
            since.reverse();
        }
    }

    /// Counts a dead message. Only the leader counts.
    pub(super) fn count_death(&mut self, mode: DeadLettering, reason: DeadReason) {
        if self.collects {
            let deaths = self.deaths.get_or_insert_default();
            deaths.count(QueueType::Quorum, mode, reason);
        }
    }

    pub(super) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Log indexes of dead letters that are not taken yet.
    pub(super) fn dead_indexes(&self) -> impl Iterator<Item = u64> {
        self.dead.iter().map(|dead| dead.at.index)
    }

    /// Returns true while deliveries wait for file descriptors or memory.
    pub(super) fn is_short(&self) -> bool {
        self.short
    }

    /// Moves dead letters to `out.dead`: at most `most` and about `most_bytes`. Returns false if one cannot be
    /// read because of a shortage; it stays.
    pub fn take_dead(
        &mut self,
        most: usize,
        most_bytes: usize,
        read: &mut dyn FnMut(u64) -> LogRead,
        out: &mut QueueOutput,
    ) -> bool {
        let mut log = CommandReader::new(read);
        let mut remaining = most_bytes;
        while out.dead.len() < most && remaining > 0 {
            let Some(dead) = self.dead.pop_front() else {
                break;
            };
            match log.message(dead.at) {
                Ok(message) => {
                    remaining = remaining.saturating_sub(message.as_bytes().len());
                    out.dead
                        .push((dead.reason, annotated(message, dead.annotations)));
                }
                Err(ReadError::Lost(fault)) => out.faults.push(fault),
                Err(ReadError::Shortage) => {
                    self.dead.push_front(dead);
                    return false;
                }
            }
        }
        true
    }

    /// Turns effects into events, and reads the messages of deliveries. A lost message is reported in
    /// `out.faults` and stays unsettled; its delivery is skipped. A message that cannot be read because of a
    /// shortage stays in the list with all later effects of its session: call again later.
    pub fn resolve(&mut self, read: &mut dyn FnMut(u64) -> LogRead, out: &mut QueueOutput) {
        if let Some(deaths) = self.deaths.take() {
            out.add_deaths(deaths);
        }
        self.short = false;
        let mut log = CommandReader::new(read);
        let mut deferred: Vec<Effect> = Vec::new();
        let mut blocked_sessions: BTreeSet<SessionId> = BTreeSet::new();
        for effect in self.list.drain(..) {
            if !blocked_sessions.is_empty() && blocked_sessions.contains(&effect.session()) {
                deferred.push(effect);
                continue;
            }
            match effect {
                Effect::Event { session, event } => out.event(session, event),
                Effect::Deliver {
                    session,
                    consumer,
                    id,
                    counts,
                    counts_all,
                    left,
                    at,
                    ref annotations,
                } => match log.message(at) {
                    Ok(message) => out.deliver(
                        session,
                        consumer,
                        Delivery {
                            id,
                            redelivered: counts.is_redelivery(),
                            attempts: Some(counts.failed),
                            acquired: if counts_all { counts.acquired() } else { 0 },
                            left,
                            message,
                            annotations: annotations.clone(),
                        },
                    ),
                    Err(ReadError::Lost(fault)) => {
                        out.faults.push(fault);
                        out.skip_delivery(session, consumer, id);
                    }
                    Err(ReadError::Shortage) => {
                        blocked_sessions.insert(session);
                        deferred.push(effect);
                    }
                },
            }
        }
        if !deferred.is_empty() {
            self.short = true;
            self.list = deferred;
        }
    }
}

/// Reads commands. Consecutive messages of one entry need one read.
pub(super) struct CommandReader<'r> {
    read: &'r mut dyn FnMut(u64) -> LogRead,
    entry: Option<(u64, LogRead)>,
}

impl<'r> CommandReader<'r> {
    pub(super) fn new(read: &'r mut dyn FnMut(u64) -> LogRead) -> CommandReader<'r> {
        CommandReader { read, entry: None }
    }

    pub(super) fn message(&mut self, at: LogLocation) -> Result<Message, ReadError> {
        let entry = self.entry.take().filter(|(index, _)| *index == at.index);
        let (_, command) = self
            .entry
            .insert(entry.unwrap_or_else(|| (at.index, (self.read)(at.index))));
        read_message(command, at)
    }
}

/// The message at a location of a command.
pub(super) fn read_message(command: &LogRead, at: LogLocation) -> Result<Message, ReadError> {
    let command = match command {
        LogRead::Command(command) => command,
        LogRead::Shortage => return Err(ReadError::Shortage),
        LogRead::Lost => {
            let text = format!("log entry {} cannot be read", at.index);
            return Err(ReadError::Lost(text));
        }
    };
    let mut reader = Reader::shared("message", command);
    let message = reader.take(at.offset as usize).and_then(|_| reader.get());
    message.map_err(|e| ReadError::Lost(format!("log entry {}: {e}", at.index)))
}
