//! Messages that were taken by their position out of an order in which they cannot be requeued like others: delayed
//! messages, and ready messages of groups.
//!
//! A message that is requeued goes back to its place as it was, so that it is not delivered before it is due, or after
//! later messages of its group. The group of a message waits for it meanwhile, if it would wait for a delayed message.
//!
//! In a checkpoint, a message that is unsettled and also listed in its place was taken.

use super::effects::LogLocation;
use super::grouped::ServicePosition;
use super::ready::{LogMessage, Ready, RequeuedMessage};
use std::collections::BTreeMap;

/// Where a message was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It becomes ready at this time, in milliseconds of the queue's clock.
    Delayed { due: u64 },
    /// It is ready at this position of its group.
    Grouped(ServicePosition),
}

/// A message that was taken, as it was in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenMessage {
    /// The message with its group.
    pub message: RequeuedMessage,
    pub place: Place,
}

impl TakenMessage {
    /// The message as its consumer has it. It does not own its group, because another consumer may.
    pub(crate) fn without_group(&self) -> RequeuedMessage {
        let RequeuedMessage { held, counts } = self.message;
        let held = LogMessage {
            group: None,
            ..held
        };
        RequeuedMessage { held, counts }
    }

    /// Lets the group of the message wait for it, if it has one.
    pub(crate) fn hold_group(&self, ready: &mut Ready) {
        match self.place {
            Place::Delayed { .. } => ready.delay(&self.message),
            Place::Grouped(_) => ready.wait_for(&self.message.held),
        }
    }
}

/// The taken messages of a queue by location. There are few, and none for long.
pub(crate) type TakenMessages = BTreeMap<LogLocation, TakenMessage>;
