//! What applying a command does outside the machine. Members that do not lead throw it away.

use super::command::MAX_BATCH_BYTES;
use crate::{
    ConsumerId, DeadLettering, DeadReason, DeathCounts, Delivery, Event, Output, QueueKind,
    SessionId,
};
use bytes::Bytes;
use message::Message;
use std::collections::VecDeque;

/// Where in the log a message is: the entry, and the offset of its length in the entry's command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub index: u64,
    pub offset: u32,
}

/// Bits of an offset in [`Place::number`].
const OFFSET_BITS: u32 = 21;
// A command that has so much takes no further message.
const _: () = assert!(MAX_BATCH_BYTES < 1 << OFFSET_BITS);

impl Place {
    /// A number of its own in the queue; 0: there is none for a place like this.
    pub fn number(self) -> u64 {
        let fits = self.index >> (u64::BITS - OFFSET_BITS) == 0 && self.offset >> OFFSET_BITS == 0;
        match fits {
            true => self.index << OFFSET_BITS | u64::from(self.offset),
            false => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Event {
        session: SessionId,
        event: Event,
    },
    Deliver {
        session: SessionId,
        consumer: ConsumerId,
        id: u64,
        redelivered: bool,
        attempts: u32,
        left: u64,
        at: Place,
    },
}

/// Collects effects, or drops them.
#[derive(Debug, Default)]
pub struct Effects {
    pub list: Vec<Effect>,
    /// Dead messages to be passed on once, until somebody takes them.
    dead: VecDeque<(DeadReason, Place)>,
    /// Since the last [`resolve`](Effects::resolve).
    deaths: Option<Box<DeathCounts>>,
    wanted: bool,
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

    pub(super) fn dead(&mut self, reason: DeadReason, at: Place) {
        if self.wanted {
            self.dead.push_back((reason, at));
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
            deaths.count(QueueKind::Quorum, way, reason);
        }
    }

    pub(super) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Log entries of dead messages that nobody has taken yet.
    pub(super) fn dead_indexes(&self) -> impl Iterator<Item = u64> {
        self.dead.iter().map(|(_, at)| at.index)
    }

    /// Moves dead messages to `out.dead`: `most` of them and about so many bytes.
    pub fn take_dead(
        &mut self,
        most: usize,
        most_bytes: usize,
        read: &mut dyn FnMut(u64) -> Option<Bytes>,
        out: &mut Output,
    ) {
        let mut log = Commands::new(read);
        let mut room = most_bytes;
        while out.dead.len() < most && room > 0 {
            let Some((reason, at)) = self.dead.pop_front() else {
                return;
            };
            match log.message(at) {
                Ok(message) => {
                    room = room.saturating_sub(message.as_bytes().len());
                    out.dead.push((reason, message));
                }
                Err(fault) => out.faults.push(fault),
            }
        }
    }

    /// Turns effects into events, reading messages from entries' commands. Deliveries to one consumer that follow
    /// each other become one event. What cannot be read is named in `out.faults`, stays out to its consumer and is passed over.
    pub fn resolve(&mut self, read: &mut dyn FnMut(u64) -> Option<Bytes>, out: &mut Output) {
        if let Some(deaths) = self.deaths.take() {
            out.add_deaths(deaths);
        }
        let mut log = Commands::new(read);
        for effect in self.list.drain(..) {
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
                        },
                    ),
                    Err(fault) => {
                        out.faults.push(fault);
                        out.pass_over(session, consumer, id);
                    }
                },
            }
        }
    }
}

/// Messages of one entry come one after the other: it is read once.
struct Commands<'r> {
    read: &'r mut dyn FnMut(u64) -> Option<Bytes>,
    entry: Option<(u64, Bytes)>,
}

impl<'r> Commands<'r> {
    fn new(read: &'r mut dyn FnMut(u64) -> Option<Bytes>) -> Commands<'r> {
        Commands { read, entry: None }
    }

    fn message(&mut self, at: Place) -> Result<Message, String> {
        if self
            .entry
            .as_ref()
            .is_none_or(|(index, _)| *index != at.index)
        {
            self.entry = (self.read)(at.index).map(|command| (at.index, command));
        }
        let (_, command) = self
            .entry
            .as_ref()
            .ok_or_else(|| format!("log entry {} cannot be read", at.index))?;
        slice(command, at)
    }
}

pub(super) fn slice(command: &Bytes, at: Place) -> Result<Message, String> {
    let mut reader = crate::codec::Reader::starting_at(command.clone(), at.offset as usize);
    reader
        .message()
        .map_err(|e| format!("log entry {}: {e}", at.index))
}
