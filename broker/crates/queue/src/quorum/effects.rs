//! What applying a command does outside the machine. Members that do not lead throw it away.

use super::annotations::annotated;
use super::command::MAX_BATCH_BYTES;
use crate::{
    Annotations, ConsumerId, DeadLettering, DeadReason, DeathCounts, Delivery, QueueEvent,
    QueueOutput, QueueType, SessionId,
};
use bytes::Bytes;
use message::Message;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use wire::Reader;

/// Where in the log a message is: the entry, and the offset of its length in the entry's command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogLocation {
    pub index: u64,
    pub offset: u32,
}

/// Bits of an offset in [`LogLocation::number`].
const OFFSET_BITS: u32 = 21;
// A command that has so much takes no further message.
const _: () = assert!(MAX_BATCH_BYTES < 1 << OFFSET_BITS);

impl LogLocation {
    /// A number of its own in the queue; 0: there is none for a place like this.
    pub fn number(self) -> u64 {
        let fits = self.index >> (u64::BITS - OFFSET_BITS) == 0 && self.offset >> OFFSET_BITS == 0;
        match fits {
            true => self.index << OFFSET_BITS | u64::from(self.offset),
            false => 0,
        }
    }
}

/// An attempt to read the command of a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRead {
    Command(Bytes),
    /// The entry is gone or damaged.
    Lost,
    /// Descriptors or memory are short: the same read succeeds once there are some.
    Shortage,
}

impl From<Option<Bytes>> for LogRead {
    fn from(command: Option<Bytes>) -> LogRead {
        command.map_or(LogRead::Lost, LogRead::Command)
    }
}

/// Why a message could not be read from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The message is lost; the text names the entry.
    Lost(String),
    Shortage,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Event {
        session: SessionId,
        event: QueueEvent,
    },
    Deliver {
        session: SessionId,
        consumer: ConsumerId,
        id: u64,
        redelivered: bool,
        attempts: u32,
        left: u64,
        at: LogLocation,
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

/// A dead message that is passed on at most once.
#[derive(Clone, Debug)]
struct DeadMessage {
    reason: DeadReason,
    at: LogLocation,
    annotations: Option<Arc<Annotations>>,
}

/// Collects effects, or drops them.
#[derive(Debug, Default)]
pub struct Effects {
    pub list: Vec<Effect>,
    /// Dead messages to be passed on once, until somebody takes them.
    dead: VecDeque<DeadMessage>,
    /// Since the last [`resolve`](Effects::resolve).
    deaths: Option<Box<DeathCounts>>,
    wanted: bool,
    /// Deliveries in the list could not be read because descriptors or memory were short.
    short: bool,
}

impl Effects {
    pub fn wanted() -> Effects {
        Effects {
            wanted: true,
            ..Effects::default()
        }
    }

    pub fn unwanted() -> Effects {
        Effects::default()
    }

    pub(super) fn push(&mut self, effect: Effect) {
        if self.wanted {
            self.list.push(effect);
        }
    }

    pub(super) fn dead(
        &mut self,
        reason: DeadReason,
        at: LogLocation,
        annotations: Option<Arc<Annotations>>,
    ) {
        if self.wanted {
            self.dead.push_back(DeadMessage {
                reason,
                at,
                annotations,
            });
        }
    }

    /// How many dead messages wait to be passed on once.
    pub(super) fn dead_len(&self) -> usize {
        self.dead.len()
    }

    /// Those that died since there were so many: the last one first.
    pub(super) fn reverse_dead_from(&mut self, len: usize) {
        if let Some(since) = self.dead.make_contiguous().get_mut(len..) {
            since.reverse();
        }
    }

    /// A message died; only who leads counts it.
    pub(super) fn died(&mut self, way: DeadLettering, reason: DeadReason) {
        if self.wanted {
            let deaths = self.deaths.get_or_insert_default();
            deaths.count(QueueType::Quorum, way, reason);
        }
    }

    pub(super) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Log entries of dead messages that nobody has taken yet.
    pub(super) fn dead_indexes(&self) -> impl Iterator<Item = u64> {
        self.dead.iter().map(|dead| dead.at.index)
    }

    /// Returns true while deliveries wait because descriptors or memory are short.
    pub(super) fn is_short(&self) -> bool {
        self.short
    }

    /// Moves dead messages to `out.dead`: `most` of them and about so many bytes. Those that cannot be read because of a
    /// shortage stay: false.
    pub fn take_dead(
        &mut self,
        most: usize,
        most_bytes: usize,
        read: &mut dyn FnMut(u64) -> LogRead,
        out: &mut QueueOutput,
    ) -> bool {
        let mut log = Commands::new(read);
        let mut room = most_bytes;
        while out.dead.len() < most && room > 0 {
            let Some(dead) = self.dead.pop_front() else {
                break;
            };
            match log.message(dead.at) {
                Ok(message) => {
                    room = room.saturating_sub(message.as_bytes().len());
                    out.dead
                        .push((dead.reason, annotated(message, dead.annotations)));
                }
                Err(Unread::Lost(fault)) => out.faults.push(fault),
                Err(Unread::Shortage) => {
                    self.dead.push_front(dead);
                    return false;
                }
            }
        }
        true
    }

    /// Turns effects into events, reading messages from entries' commands. Deliveries to one consumer that follow
    /// each other become one event. A lost message is named in `out.faults`, stays out to its consumer and is passed over.
    /// A message that cannot be read because of a shortage stays in the list, and so does all that its session is to hear
    /// after it: call again later.
    pub fn resolve(&mut self, read: &mut dyn FnMut(u64) -> LogRead, out: &mut QueueOutput) {
        if let Some(deaths) = self.deaths.take() {
            out.add_deaths(deaths);
        }
        self.short = false;
        let mut log = Commands::new(read);
        let mut waiting: Vec<Effect> = Vec::new();
        let mut sessions: BTreeSet<SessionId> = BTreeSet::new();
        for effect in self.list.drain(..) {
            if !sessions.is_empty() && sessions.contains(&effect.session()) {
                waiting.push(effect);
                continue;
            }
            match effect {
                Effect::Event { session, event } => out.event(session, event),
                Effect::Deliver {
                    session,
                    consumer,
                    id,
                    redelivered,
                    attempts,
                    left,
                    at,
                    ref annotations,
                } => match log.message(at) {
                    Ok(message) => out.deliver(
                        session,
                        consumer,
                        Delivery {
                            id,
                            redelivered,
                            attempts: Some(attempts),
                            left,
                            message,
                            annotations: annotations.clone(),
                        },
                    ),
                    Err(Unread::Lost(fault)) => {
                        out.faults.push(fault);
                        out.pass_over(session, consumer, id);
                    }
                    Err(Unread::Shortage) => {
                        sessions.insert(session);
                        waiting.push(effect);
                    }
                },
            }
        }
        if !waiting.is_empty() {
            self.short = true;
            self.list = waiting;
        }
    }
}

/// Messages of one entry come one after the other: it is read once.
struct Commands<'r> {
    read: &'r mut dyn FnMut(u64) -> LogRead,
    entry: Option<(u64, LogRead)>,
}

impl<'r> Commands<'r> {
    fn new(read: &'r mut dyn FnMut(u64) -> LogRead) -> Commands<'r> {
        Commands { read, entry: None }
    }

    fn message(&mut self, at: LogLocation) -> Result<Message, Unread> {
        let entry = self.entry.take().filter(|(index, _)| *index == at.index);
        let (_, command) = self
            .entry
            .insert(entry.unwrap_or_else(|| (at.index, (self.read)(at.index))));
        message(command, at)
    }
}

/// The message at a place of an entry.
pub(super) fn message(command: &LogRead, at: LogLocation) -> Result<Message, Unread> {
    let command = match command {
        LogRead::Command(command) => command,
        LogRead::Shortage => return Err(Unread::Shortage),
        LogRead::Lost => {
            let text = format!("log entry {} cannot be read", at.index);
            return Err(Unread::Lost(text));
        }
    };
    let mut from = Reader::shared("message", command);
    from.take(at.offset as usize)
        .and_then(|_| from.get())
        .map_err(|e| Unread::Lost(format!("log entry {}: {e}", at.index)))
}
