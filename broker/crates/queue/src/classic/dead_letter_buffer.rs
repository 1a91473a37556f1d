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
pub(crate) const MAX_BUFFERED_BYTES: usize = 1 << 20;

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
    letters: VecDeque<DeadLetter>,
    buffered_bytes: usize,
}

impl DeadLetterBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.letters.clear();
        self.buffered_bytes = 0;
    }

    pub(crate) fn push(&mut self, item: Item, reason: DeadReason, message: Option<&Message>) {
        let message = message.filter(|m| self.has_room(m)).cloned();
        self.add(Some(item), reason, message);
    }

    /// The dead-letter mode of messages that die now.
    pub(crate) fn mode(&self) -> DeadLettering {
        match self.open {
            true => DeadLettering::AtMostOnce,
            false => DeadLettering::Off,
        }
    }

    fn push_refused(&mut self, message: &Message) {
        if self.open && self.has_room(message) {
            self.add(None, DeadReason::MaxLength, Some(message.clone()));
        }
    }

    fn has_room(&self, message: &Message) -> bool {
        self.buffered_bytes == 0
            || self.buffered_bytes + message.as_bytes().len() <= MAX_BUFFERED_BYTES
    }

    fn add(&mut self, item: Option<Item>, reason: DeadReason, message: Option<Message>) {
        self.buffered_bytes += message.as_ref().map_or(0, |m| m.as_bytes().len());
        debug_assert!(item.is_some() || message.is_some());
        self.letters.push_back(DeadLetter {
            item,
            reason,
            message,
        });
    }

    fn pop(&mut self) -> Option<DeadLetter> {
        let dead_letter = self.letters.pop_front()?;
        let len = dead_letter
            .message
            .as_ref()
            .map_or(0, |m| m.as_bytes().len());
        self.buffered_bytes -= len;
        debug_assert!(self.buffered_bytes == 0 || !self.letters.is_empty());
        Some(dead_letter)
    }
}

impl ClassicStore {
    pub(super) fn count_death(&mut self, reason: DeadReason) {
        let mode = self.dead_letter_buffer.mode();
        self.output.count_death(QueueType::Classic, mode, reason);
    }

    /// Dead-letters a refused publish.
    pub(crate) fn dead_letter_refused(&mut self, message: &Message) {
        self.count_death(DeadReason::MaxLength);
        self.dead_letter_buffer.push_refused(message);
    }

    /// Moves dead letters to `out.dead`, at most `most` and about `most_bytes`, and removes them from the
    /// queue.
    pub(crate) fn take_dead(&mut self, most: usize, most_bytes: usize) {
        let mut remaining = most_bytes;
        while self.output.dead.len() < most && remaining > 0 {
            let Some(dead_letter) = self.dead_letter_buffer.pop() else {
                return;
            };
            let message = match (dead_letter.message, &dead_letter.item) {
                (Some(message), _) => Ok(message),
                (None, Some(item)) => self.message(item.seq),
                (None, None) => continue,
            };
            match message {
                Ok(message) => {
                    remaining = remaining.saturating_sub(message.as_bytes().len());
                    self.output.dead.push((dead_letter.reason, message));
                }
                Err(error) => self.report_error(Err(error)),
            }
            if let Some(item) = &dead_letter.item {
                self.finish(item);
            }
        }
    }

    /// Starts or stops dead-lettering. When it stops, the waiting dead letters are dropped.
    pub(crate) fn open_dead_letter_buffer(&mut self, open: bool) {
        self.dead_letter_buffer.open = open;
        while !open && let Some(dead_letter) = self.dead_letter_buffer.pop() {
            if let Some(item) = &dead_letter.item {
                self.finish(item);
            }
        }
    }
}
