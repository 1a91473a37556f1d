//! Consumers with filters of a classic queue.

use super::ClassicQueue;
use super::store::ClassicStore;
use crate::selection::{Page, Pass, ReadFailed, ReadyMessages};
use crate::{
    BROWSE_BODY_BYTES, BrowsePosition, BrowseRequest, BrowsedState, CompileFilter, QueueOutput,
    Timestamps,
};
use message::Message;

/// Most messages of a page: as many small ones as are read at once from a segment.
const PAGE_MESSAGES: usize = 2_048;

impl ReadyMessages for ClassicStore {
    fn last_number(&self) -> u64 {
        self.next_number().saturating_sub(1)
    }

    fn page(&mut self, pass: &Pass) -> Result<Page, ReadFailed> {
        let request = BrowseRequest {
            from: pass.from,
            least: pass.least,
            most: pass.most,
            messages: 0,
            // Whole messages are not copied.
            body_bytes: BROWSE_BODY_BYTES,
            body_start: 0,
            state: Some(BrowsedState::Ready),
            unexpired_at: None,
        };
        let page = self
            .browse(&request, PAGE_MESSAGES, &|_| {})
            .map_err(|_| ReadFailed)?;
        let messages = page.messages.into_iter();
        Ok(Page {
            messages: messages.map(|found| (found.at, found.message)).collect(),
            next: page.next,
        })
    }

    /// Only requeued messages are looked up: a consumer always has room for all that were found for it.
    fn find(&mut self, numbers: &[u64]) -> Result<Vec<(BrowsePosition, Message)>, ReadFailed> {
        let mut found = Vec::new();
        for number in numbers {
            let Some(level) = self.level_of_returned(*number) else {
                continue;
            };
            match self.message(*number) {
                Ok(message) => {
                    let at = BrowsePosition {
                        level,
                        number: *number,
                        ..BrowsePosition::default()
                    };
                    found.push((at, message));
                }
                // Reported when it is delivered.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {}
                Err(_) => return Err(ReadFailed),
            }
        }
        Ok(found)
    }
}

impl ClassicQueue {
    /// Searches messages for consumers with filters and delivers them. Call it in each turn before
    /// [`flush`](crate::Queue::flush).
    pub fn select(&mut self, at: Timestamps, compile: CompileFilter, out: &mut QueueOutput) {
        if self.checkout.filtered.is_empty() && self.selection.is_empty() {
            return;
        }
        self.begin(at, out);
        // What a channel had is ready again, and consumers without a filter come first.
        self.serve_pending();
        self.run_selection(compile);
        self.finish(out);
    }

    #[cold]
    fn run_selection(&mut self, compile: CompileFilter) {
        for number in self.store.ready_again.take().unwrap_or_default() {
            self.selection.examine_again(number);
        }
        // A search that begins later begins with the first message.
        let is_searching = !self.checkout.filtered.is_empty();
        self.store.ready_again = is_searching.then(Vec::new);
        if self.unopened || self.store.stalled || self.retry_at.is_some() {
            return;
        }
        let (mut selected, now_ms) = (Vec::new(), self.at.wall.0);
        let store = &mut self.store;
        let searched = self
            .selection
            .run(&self.checkout, store, compile, now_ms, &mut selected);
        for found in &selected {
            let number = found.consumer;
            let unassigned =
                self.checkout
                    .assign_selected(store, number, &found.messages, found.drained);
            debug_assert!(unassigned.is_empty(), "consumer {number} had no room");
            self.selection.assigned(number, &unassigned);
            self.selection.continue_soon();
        }
        if searched.is_err() {
            self.retry_at = Some(self.at.now + super::RETRY_AFTER);
        }
    }
}
