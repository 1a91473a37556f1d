//! Dead letters of a classic queue that are not published yet: neither ready nor unacknowledged, and on disk until they are.
//!
//! Memory: where they are, and of a few the message, so that one that is taken at once is not read again.

use super::store::{ClassicStore, Item};
use crate::{DeadLettering, DeadReason, QueueType};
use message::Message;
use std::collections::VecDeque;

/// Bytes of messages kept at hand. Refused publishes, which are nowhere else, are gone beyond it.
pub const MAX_AT_HAND_BYTES: usize = 1 << 20;

#[derive(Debug)]
struct DeadLetter {
    /// None: it was refused and never was in the queue.
    item: Option<Item>,
    reason: DeadReason,
    message: Option<Message>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DeadLetterBuffer {
    /// There is somebody to take them; else dead messages are gone.
    pub open: bool,
    graves: VecDeque<DeadLetter>,
    at_hand: usize,
}

impl DeadLetterBuffer {
    pub fn is_empty(&self) -> bool {
        self.graves.is_empty()
    }

    pub fn clear(&mut self) {
        self.graves.clear();
        self.at_hand = 0;
    }

    pub fn bury(&mut self, item: Item, reason: DeadReason, message: Option<&Message>) {
        let message = message.filter(|m| self.has_room(m)).cloned();
        self.add(Some(item), reason, message);
    }

    /// What becomes of messages that die now.
    pub fn way(&self) -> DeadLettering {
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

    /// A publish that was not taken.
    pub fn bury_refused(&mut self, message: &Message) {
        self.count_death(DeadReason::MaxLength);
        self.dead_letter_buffer.bury_refused(message);
    }

    /// Moves dead messages to `out.dead`: `most` of them and about so many bytes. With that the queue is done with them.
    pub fn take_dead(&mut self, most: usize, most_bytes: usize) {
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

    /// Where dead messages go changed. With nobody to take them they are gone.
    pub fn open_dead_letter_buffer(&mut self, open: bool) {
        self.dead_letter_buffer.open = open;
        while !open && let Some(dead_letter) = self.dead_letter_buffer.dig() {
            if let Some(item) = &dead_letter.item {
                self.finish(item);
            }
        }
    }
}
