//! Consumers with filters: the search for ready messages that they can get.
//!
//! A consumer with a filter is not served in turn. Its queue examines the ready messages for it, each once, as far as the
//! consumer has room for more. The search goes through the queue in passes: the first pass examines all messages, and each
//! later one those that were published since the pass before it began. A message that becomes ready again is examined on its
//! own. So a message that does not match is read once for each consumer, however long it stays in the queue.
//!
//! The state of the search is not replicated. A new leader of a quorum queue begins again with the first message.

use crate::checkout::{Checkout, FlowWindow, Weighed};
use crate::{BROWSE_PAGE_BYTES, BrowsePosition};
use message::Message;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most bytes of the filter of a consumer.
pub const MAX_FILTER_BYTES: usize = 64 << 10;
/// Most messages that one search finds for a consumer.
const MAX_FOUND: u32 = 256;
/// Most messages that a queue examines in one turn, for all consumers.
const MAX_EXAMINED: usize = 2_048;
/// A part of a pass counts as this many messages. It may have none although much was read.
const PAGE_COST: usize = 64;
/// Most messages that wait to be examined again for a consumer. With more of them its search begins again.
const MAX_AGAIN: usize = 65_536;
/// Most messages that are looked up at once.
const LOOKUP: usize = 64;

/// The filter of a consumer in the encoding of its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerFilter(Arc<[u8]>);

impl ConsumerFilter {
    /// Copies an encoded filter. `None`: it is longer than [`MAX_FILTER_BYTES`].
    pub fn new(encoded: &[u8]) -> Option<ConsumerFilter> {
        (encoded.len() <= MAX_FILTER_BYTES).then(|| ConsumerFilter(encoded.into()))
    }

    /// The encoded filter.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A filter that messages can be compared with.
pub trait MessageFilter: std::fmt::Debug + Send {
    /// Returns true if the message satisfies the filter. `now_ms`: milliseconds since the Unix epoch.
    fn matches(&self, message: &Message, now_ms: u64) -> bool;
}

/// Compiles the filter of a consumer. `None`: this version does not understand it, so no message satisfies it.
pub type CompileFilter = fn(&ConsumerFilter) -> Option<Box<dyn MessageFilter>>;

/// Which ready messages to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// The lowest number.
    pub least: u64,
    /// The highest number.
    pub most: u64,
    /// Where the pass continues. `None`: at the head of the queue.
    pub from: Option<BrowsePosition>,
}

/// A part of a pass.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Ready messages in the order of the queue.
    pub messages: Vec<(BrowsePosition, Message)>,
    /// Where the pass continues. `None`: it is complete.
    pub next: Option<BrowsePosition>,
}

/// Messages cannot be read at the moment.
#[derive(Debug)]
pub(crate) struct ReadFailed;

/// The ready messages of a queue, for the search.
pub(crate) trait ReadyMessages {
    /// No message has a higher number yet.
    fn last_number(&self) -> u64;
    /// Reads some messages of a pass.
    fn page(&mut self, pass: &Pass) -> Result<Page, ReadFailed>;
    /// Reads those of these messages that are ready.
    fn find(&mut self, numbers: &[u64]) -> Result<Vec<(BrowsePosition, Message)>, ReadFailed>;
}

/// Messages for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// The number of the consumer.
    pub consumer: u64,
    /// Messages that satisfy its filter.
    pub messages: Vec<BrowsePosition>,
    /// The request of the drain that ends with them, because there are no others.
    pub drained: Option<u64>,
}

/// What remains to be examined in a turn.
#[derive(Debug)]
struct Budget {
    messages: usize,
    bytes: usize,
}

impl Budget {
    fn spend(&mut self, message: &Message) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(message.as_bytes().len());
    }

    fn is_spent(&self) -> bool {
        self.messages == 0 || self.bytes == 0
    }
}

/// Messages that were found for a consumer.
#[derive(Debug)]
struct Found {
    messages: Vec<BrowsePosition>,
    /// Room of the consumer for more.
    room: FlowWindow,
}

impl Found {
    fn new(room: FlowWindow) -> Found {
        let messages = room.messages.min(MAX_FOUND);
        Found {
            messages: Vec::new(),
            room: FlowWindow { messages, ..room },
        }
    }

    fn has_room(&self) -> bool {
        self.room.messages > 0 && self.room.bytes > 0
    }

    fn push(&mut self, at: BrowsePosition, message: &Message) {
        debug_assert!(self.has_room());
        self.room.messages -= 1;
        let body = message.body_len() as u64;
        self.room.bytes = self.room.bytes.saturating_sub(body);
        self.messages.push(at);
    }
}

/// The search for one consumer.
#[derive(Debug)]
struct Search {
    filter: Option<Box<dyn MessageFilter>>,
    pass: Pass,
    /// All messages of the pass were examined.
    is_complete: bool,
    /// Messages to be examined again.
    again: BTreeSet<u64>,
    /// Found messages wait to be assigned.
    waits: bool,
}

impl Search {
    fn new(filter: Option<Box<dyn MessageFilter>>) -> Search {
        Search {
            filter,
            pass: Pass {
                least: 0,
                most: 0,
                from: None,
            },
            is_complete: true,
            again: BTreeSet::new(),
            waits: false,
        }
    }

    fn matches(&self, message: &Message, now_ms: u64) -> bool {
        let filter = self.filter.as_ref();
        filter.is_some_and(|filter| filter.matches(message, now_ms))
    }

    fn examine_again(&mut self, number: u64) {
        // The pass after this one reads the message.
        if number > self.pass.most {
            return;
        }
        self.again.insert(number);
        if self.again.len() > MAX_AGAIN {
            let filter = self.filter.take();
            *self = Search {
                waits: self.waits,
                ..Search::new(filter)
            };
        }
    }

    /// Finds messages while there is room. Returns true if there are no others.
    fn run(
        &mut self,
        ready: &mut dyn ReadyMessages,
        found: &mut Found,
        now_ms: u64,
        budget: &mut Budget,
    ) -> Result<bool, ReadFailed> {
        while !self.again.is_empty() && found.has_room() && !budget.is_spent() {
            self.run_again(ready, found, now_ms, budget)?;
        }
        while found.has_room() && !budget.is_spent() {
            if self.is_complete {
                let last = ready.last_number();
                if last <= self.pass.most {
                    return Ok(self.again.is_empty());
                }
                self.pass = Pass {
                    least: self.pass.most + 1,
                    most: last,
                    from: None,
                };
                self.is_complete = false;
            }
            let page = ready.page(&self.pass)?;
            debug_assert!(page.next.is_none() || page.next != self.pass.from);
            budget.messages = budget.messages.saturating_sub(PAGE_COST);
            self.pass.from = page.next;
            self.is_complete = page.next.is_none();
            for (at, message) in page.messages {
                debug_assert!((self.pass.least..=self.pass.most).contains(&at.number));
                if !found.has_room() {
                    self.pass.from = Some(at);
                    self.is_complete = false;
                    break;
                }
                budget.spend(&message);
                if self.matches(&message, now_ms) {
                    found.push(at, &message);
                }
            }
        }
        Ok(false)
    }

    fn run_again(
        &mut self,
        ready: &mut dyn ReadyMessages,
        found: &mut Found,
        now_ms: u64,
        budget: &mut Budget,
    ) -> Result<(), ReadFailed> {
        let numbers: Vec<u64> = self.again.iter().take(LOOKUP).copied().collect();
        let messages = ready.find(&numbers)?;
        for number in &numbers {
            self.again.remove(number);
        }
        for (at, message) in messages {
            if !found.has_room() {
                self.again.insert(at.number);
                continue;
            }
            budget.spend(&message);
            if self.matches(&message, now_ms) {
                found.push(at, &message);
            }
        }
        Ok(())
    }
}

/// The searches of a queue.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    searches: BTreeMap<u64, Search>,
    /// The consumer whose search ran last. The next turn begins with the one after it.
    last: u64,
    /// A consumer has room, and not all messages were examined for it.
    has_more: bool,
}

impl Selection {
    /// Returns true if the next turn continues the search.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Has the next turn continue the search.
    pub(crate) fn continue_soon(&mut self) {
        self.has_more = true;
    }

    /// Returns true if there is no search.
    pub(crate) fn is_empty(&self) -> bool {
        self.searches.is_empty()
    }

    /// Ends all searches.
    pub(crate) fn clear(&mut self) {
        *self = Selection::default();
    }

    /// This message is ready again.
    pub(crate) fn examine_again(&mut self, number: u64) {
        for search in self.searches.values_mut() {
            search.examine_again(number);
        }
    }

    /// Found messages of this consumer were assigned, except those that it had no room for.
    pub(crate) fn assigned(&mut self, consumer: u64, unassigned: &[u64]) {
        if let Some(search) = self.searches.get_mut(&consumer) {
            search.waits = false;
            for number in unassigned {
                search.examine_again(*number);
            }
        }
    }

    /// Continues the searches. Adds what they found, which must be [assigned](Self::assigned). Fails if messages cannot be read
    /// at the moment.
    pub(crate) fn run<I: Weighed>(
        &mut self,
        checkout: &Checkout<I>,
        ready: &mut dyn ReadyMessages,
        compile: CompileFilter,
        now_ms: u64,
        selected: &mut Vec<Selected>,
    ) -> Result<(), ReadFailed> {
        self.has_more = false;
        self.searches
            .retain(|number, _| checkout.filtered.contains(number));
        let mut budget = Budget {
            messages: MAX_EXAMINED,
            bytes: BROWSE_PAGE_BYTES,
        };
        let after = checkout.filtered.range(self.last.saturating_add(1)..);
        let before = checkout.filtered.range(..=self.last);
        let mut order: Vec<u64> = after.chain(before).copied().collect();
        // Those of equal priority take turns.
        order.sort_by_key(|number| Reverse(checkout.priority(*number)));
        for number in order {
            let waits = |search: &Search| search.waits;
            let Some(room) = checkout.room_for_selected(number) else {
                continue;
            };
            if self.searches.get(&number).is_some_and(waits) {
                continue;
            }
            if budget.is_spent() {
                self.has_more = true;
                return Ok(());
            }
            self.last = number;
            let search = self.searches.entry(number).or_insert_with(|| {
                let filter = checkout.filter(number).and_then(compile);
                if filter.is_none() {
                    // A later version wrote it.
                    tracing::warn!(event = "consumer_filter_unknown", queue = %checkout.label, consumer = number);
                }
                Search::new(filter)
            });
            let mut found = Found::new(room);
            let searched = search.run(ready, &mut found, now_ms, &mut budget);
            let is_exhausted = searched.as_ref().is_ok_and(|is_exhausted| *is_exhausted);
            let messages = found.messages;
            let drain = checkout.drains.get(&number).filter(|_| is_exhausted);
            let drained = drain.map(|drain| drain.seq);
            if messages.is_empty() && drained.is_none() {
                self.has_more |= !is_exhausted;
            } else {
                search.waits = true;
                selected.push(Selected {
                    consumer: number,
                    messages,
                    drained,
                });
            }
            // The search has passed the messages that it found before the failure, so they must be assigned.
            searched?;
        }
        Ok(())
    }
}
