//! What applying a command does outside the machine. Members that do not lead throw it away.

use crate::{ConsumerId, DeadReason, Delivery, Event, Output, SessionId};
use bytes::Bytes;
use message::Message;

/// Where in the log a message is: the entry, and the offset of its length in the entry's command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub index: u64,
    pub offset: u32,
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
    DeadLetter {
        reason: DeadReason,
        at: Place,
    },
}

/// Collects effects, or drops them.
#[derive(Debug, Default)]
pub struct Effects {
    pub list: Vec<Effect>,
    wanted: bool,
}

impl Effects {
    pub fn wanted() -> Effects {
        Effects {
            list: Vec::new(),
            wanted: true,
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

    /// Turns effects into events, reading messages from entries' commands. Deliveries to one consumer that follow
    /// each other become one event. What cannot be read is named in `out.faults` and stays out to its consumer.
    pub fn resolve(&mut self, read: &mut dyn FnMut(u64) -> Option<Bytes>, out: &mut Output) {
        // Messages of one entry come one after the other.
        let mut entry: Option<(u64, Bytes)> = None;
        let mut fetch = |at: Place| -> Result<Message, String> {
            if entry.as_ref().is_none_or(|(index, _)| *index != at.index) {
                entry = read(at.index).map(|command| (at.index, command));
            }
            let (_, command) = entry
                .as_ref()
                .ok_or_else(|| format!("log entry {} cannot be read", at.index))?;
            slice(command, at)
        };
        for effect in self.list.drain(..) {
            match effect {
                Effect::Event { session, event } => out.event(session, event),
                Effect::DeadLetter { reason, at } => match fetch(at) {
                    Ok(message) => out.dead.push((reason, message)),
                    Err(fault) => out.faults.push(fault),
                },
                Effect::Deliver {
                    session,
                    consumer,
                    id,
                    redelivered,
                    attempts,
                    left,
                    at,
                } => match fetch(at) {
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
                    Err(fault) => out.faults.push(fault),
                },
            }
        }
    }
}

fn slice(command: &Bytes, at: Place) -> Result<Message, String> {
    let mut reader = crate::codec::Reader::starting_at(command.clone(), at.offset as usize);
    reader
        .message()
        .map_err(|e| format!("log entry {}: {e}", at.index))
}
