//! Dead letters of a classic queue that are not published yet. They are neither ready nor unacknowledged, and
//! stay on disk until they are published.
//!
//! In memory are their numbers and a bounded amount of messages, so that a dead letter that is taken soon is
//! not read again.

use super::store::{ClassicStore, Item};
use crate::{DeadLettering, DeadReason, QueueType};
use message::Message;
use std::collections::VecDeque;

/// Most bytes of messages in memory. Above it refused publishes, which are stored nowhere else, are dropped.
pub(crate) const MAX_AT_HAND_BYTES: usize = 1 << 20;

/// A message to be published to the dead letter exchange.
#[derive(Debug)]
struct DeadLetter {
    /// None: a refused publish that never was in the queue.
    item: Option<Item>,
    reason: DeadReason,
    message: Option<Message>,
}

/// Dead letters in the order of their death; see the module.
#[derive(Debug, Default)]
pub(super) struct DeadLetterBuffer {
    /// The queue has a dead letter exchange; otherwise dead messages are dropped.
    pub open: bool,
    graves: VecDeque<DeadLetter>,
    at_hand: usize,
}

impl DeadLetterBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.graves.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.graves.clear();
        self.at_hand = 0;
    }

    pub(crate) fn bury(&mut self, item: Item, reason: DeadReason, message: Option<&Message>) {
        let message = message.filter(|m| self.has_room(m)).cloned();
        self.add(Some(item), reason, message);
    }

    /// The dead-letter mode of messages that die now.
    pub(crate) fn way(&self) -> DeadLettering {
        match self.open {
            true => DeadLettering::AtMostOnce,
            false => DeadLettering::Off,
        }
    }

    fn bury_refused(&mut self, message: &Message) {
        if self.open && self.has_room(message) {
            self.add(None, DeadReason::MaxLength, Some(message.clone()));
        }
    }

    fn has_room(&self, message: &Message) -> bool {
        self.at_hand == 0 || self.at_hand + message.as_bytes().len() <= MAX_AT_HAND_BYTES
    }

    fn add(&mut self, item: Option<Item>, reason: DeadReason, message: Option<Message>) {
        self.at_hand += message.as_ref().map_or(0, |m| m.as_bytes().len());
        self.graves.push_back(DeadLetter {
            item,
            reason,
            message,
        });
    }

    fn dig(&mut self) -> Option<DeadLetter> {
        let dead_letter = self.graves.pop_front()?;
        let len = dead_letter
            .message
            .as_ref()
            .map_or(0, |m| m.as_bytes().len());
        self.at_hand -= len;
        Some(dead_letter)
    }
}

impl ClassicStore {
    pub(super) fn count_death(&mut self, reason: DeadReason) {
        let way = self.dead_letter_buffer.way();
        self.output.died(QueueType::Classic, way, reason);
    }

    /// Dead-letters a refused publish.
    pub(crate) fn bury_refused(&mut self, message: &Message) {
        self.count_death(DeadReason::MaxLength);
        self.dead_letter_buffer.bury_refused(message);
    }

    /// Moves dead letters to `out.dead`, at most `most` and about `most_bytes`, and removes them from the
    /// queue.
    pub(crate) fn take_dead(&mut self, most: usize, most_bytes: usize) {
        let mut room = most_bytes;
        while self.output.dead.len() < most && room > 0 {
            let Some(dead_letter) = self.dead_letter_buffer.dig() else {
                return;
            };
            let message = match (dead_letter.message, &dead_letter.item) {
                (Some(message), _) => Ok(message),
                (None, Some(item)) => self.message(item.seq),
                (None, None) => continue,
            };
            match message {
                Ok(message) => {
                    room = room.saturating_sub(message.as_bytes().len());
                    self.output.dead.push((dead_letter.reason, message));
                }
                Err(error) => self.note(Err(error)),
            }
            if let Some(item) = &dead_letter.item {
                self.finish(item);
            }
        }
    }

    /// Starts or stops dead-lettering. When it stops, the waiting dead letters are dropped.
    pub(crate) fn open_dead_letter_buffer(&mut self, open: bool) {
        self.dead_letter_buffer.open = open;
        while !open && let Some(dead_letter) = self.dead_letter_buffer.dig() {
            if let Some(item) = &dead_letter.item {
                self.finish(item);
            }
        }
    }
}
