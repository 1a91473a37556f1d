//! Consumers with filters of a quorum queue: the leader searches, and the log has what it found.

use super::command::Command;
use super::effects::{CommandReader, LogLocation, LogRead, ReadError};
use super::leader::QuorumQueue;
use super::machine::Machine;
use super::ready::HIGHEST_LEVEL;
use crate::selection::{Page, Pass, ReadFailed, ReadyMessages};
use crate::{BrowsePosition, CompileFilter};
use message::Message;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most messages of a page.
const PAGE_MESSAGES: usize = 128;

struct LogMessages<'a, 'r> {
    machine: &'a Machine,
    log: CommandReader<'r>,
}

fn position(level: u8, at: LogLocation) -> BrowsePosition {
    BrowsePosition {
        level,
        number: at.number(),
        ..BrowsePosition::default()
    }
}

impl LogMessages<'_, '_> {
    /// `None`: the message is lost, which is reported when it is delivered.
    fn read(&mut self, at: LogLocation) -> Result<Option<Message>, ReadFailed> {
        match self.log.message(at) {
            Ok(message) => Ok(Some(message)),
            Err(ReadError::Lost(_)) => Ok(None),
            Err(ReadError::Shortage) => Err(ReadFailed),
        }
    }
}

impl ReadyMessages for LogMessages<'_, '_> {
    fn last_number(&self) -> u64 {
        self.machine.last_number()
    }

    /// The messages of a level that were never delivered are read from the position on. Those that were requeued have no order by
    /// number, so the first ones of the level are looked for among all.
    fn page(&mut self, pass: &Pass) -> Result<Page, ReadFailed> {
        let ready = &self.machine.ready;
        let (top, first) = match pass.from {
            Some(from) => (from.level, from.number),
            None => (HIGHEST_LEVEL, 0),
        };
        // By descending level, then by number.
        let mut found: BTreeMap<(Reverse<u8>, u64), LogLocation> = BTreeMap::new();
        let mut offer = |level: u8, at: LogLocation| {
            let key = (Reverse(level), at.number());
            let is_passed = key < (Reverse(top), first);
            if is_passed || !(pass.least..=pass.most).contains(&at.number()) {
                return;
            }
            found.insert(key, at);
            if found.len() > PAGE_MESSAGES + 1 {
                found.pop_last();
            }
        };
        for level in ready.levels().filter(|level| *level <= top) {
            let number = match level == top {
                true => first.max(pass.least),
                false => pass.least,
            };
            let fresh = ready.fresh_from(level, LogLocation::of_number(number));
            for held in fresh.take(PAGE_MESSAGES + 1) {
                offer(level, held.location());
            }
        }
        let postponed = ready.postponed().map(|(_, message)| message);
        for message in ready.returned().chain(postponed) {
            offer(message.held.level, message.held.location());
        }
        let mut page = Page::default();
        for ((Reverse(level), _), at) in found {
            if page.messages.len() == PAGE_MESSAGES {
                page.next = Some(position(level, at));
                break;
            }
            if let Some(message) = self.read(at)? {
                page.messages.push((position(level, at), message));
            }
        }
        Ok(page)
    }

    fn find(&mut self, numbers: &[u64]) -> Result<Vec<(BrowsePosition, Message)>, ReadFailed> {
        let ready = &self.machine.ready;
        let mut found: Vec<(u8, LogLocation)> = Vec::new();
        for number in numbers {
            let at = LogLocation::of_number(*number);
            let level = ready.levels().find(|level| {
                let first = ready.fresh_from(*level, at).next();
                first.is_some_and(|held| held.location() == at)
            });
            found.extend(level.map(|level| (level, at)));
        }
        if found.len() < numbers.len() {
            let postponed = ready.postponed().map(|(_, message)| message);
            for message in ready.returned().chain(postponed) {
                let at = message.held.location();
                if numbers.binary_search(&at.number()).is_ok() {
                    found.push((message.held.level, at));
                }
            }
        }
        let mut messages = Vec::with_capacity(found.len());
        for (level, at) in found {
            if let Some(message) = self.read(at)? {
                messages.push((position(level, at), message));
            }
        }
        Ok(messages)
    }
}

impl QuorumQueue {
    /// Searches messages for consumers with filters and proposes to assign them, on the leader. Call it in each turn after
    /// [`resolve`](Self::resolve). `read` returns the command of a log entry.
    pub fn select(&mut self, read: &mut dyn FnMut(u64) -> LogRead, compile: CompileFilter) {
        if self.machine.checkout.filtered.is_empty() && self.selection.is_empty() {
            return;
        }
        self.run_selection(read, compile);
    }

    #[cold]
    fn run_selection(&mut self, read: &mut dyn FnMut(u64) -> LogRead, compile: CompileFilter) {
        if !self.leads || !self.caught_up {
            return;
        }
        let news = std::mem::take(&mut self.effects.selection);
        for number in news.ready_again {
            self.selection.examine_again(number);
        }
        for (consumer, unassigned) in news.assigned {
            self.selection.assigned(consumer, &unassigned);
        }
        // A search that begins later begins with the first message.
        self.effects.selection.collects = !self.machine.checkout.filtered.is_empty();
        if self.waits_to_read() {
            return;
        }
        let mut ready = LogMessages {
            machine: &self.machine,
            log: CommandReader::new(read),
        };
        let mut selected = Vec::new();
        let checkout = &self.machine.checkout;
        let now_ms = self.wall().0;
        let searched = self
            .selection
            .run(checkout, &mut ready, compile, now_ms, &mut selected);
        for selected in selected {
            let Some(consumer) = self.machine.checkout.consumers.get(&selected.consumer) else {
                continue;
            };
            let messages = selected.messages.iter();
            let command = Command::Assign {
                session: consumer.session,
                consumer: consumer.id,
                messages: messages.map(|at| (at.number, at.number)).collect(),
                drained: selected.drained,
            };
            self.propose(&command);
        }
        if searched.is_err() {
            self.retry_later();
        }
    }
}
