//! Listing the messages of a quorum queue on its leader. Reads the replicated state and the log, and changes nothing.

use super::annotations::annotated;
use super::effects::{CommandReader, LogLocation, LogRead, ReadError};
use super::leader::QuorumQueue;
use super::machine::Machine;
use super::ready::{HIGHEST_LEVEL, LogMessage};
use crate::browse::{PageBuilder, page_limit};
use crate::{
    BrowsePage, BrowsePosition, BrowseRequest, BrowsedMessage, BrowsedState, DeliveryCounts,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Order of a listing: by descending level, then by the number of the message.
type ListingKey = (Reverse<u8>, u64);

#[derive(Clone, Copy)]
struct Candidate {
    held: LogMessage,
    counts: DeliveryCounts,
    state: BrowsedState,
    due_at: Option<u64>,
}

/// The first messages of a listing.
struct FirstMessages<'a> {
    request: &'a BrowseRequest,
    from: ListingKey,
    limit: usize,
    found: BTreeMap<ListingKey, Candidate>,
}

impl FirstMessages<'_> {
    fn offer(&mut self, held: LogMessage, counts: DeliveryCounts, state: BrowsedState) {
        self.add(held, counts, state, None);
    }

    fn add(
        &mut self,
        held: LogMessage,
        counts: DeliveryCounts,
        state: BrowsedState,
        due_at: Option<u64>,
    ) {
        let number = held.location().number();
        let key = (Reverse(held.level), number);
        let is_listed = number != 0
            && (self.request.least..=self.request.most).contains(&number)
            && self.request.lists_expiry(held.expires);
        let is_full = self.found.len() >= self.limit;
        let is_too_late = is_full && self.found.last_key_value().is_some_and(|(k, _)| *k < key);
        if !is_listed || key < self.from || is_too_late {
            return;
        }
        let candidate = Candidate {
            held,
            counts,
            state,
            due_at,
        };
        self.found.insert(key, candidate);
        if self.found.len() > self.limit {
            self.found.pop_last();
        }
    }
}

impl LogLocation {
    /// The inverse of [`number`](Self::number).
    pub fn of_number(number: u64) -> LogLocation {
        LogLocation {
            index: number >> super::effects::OFFSET_BITS,
            offset: (number & ((1 << super::effects::OFFSET_BITS) - 1)) as u32,
        }
    }
}

impl Machine {
    /// No message has a higher number yet.
    pub(super) fn last_number(&self) -> u64 {
        let next = LogLocation {
            index: self.applied + 1,
            offset: 0,
        };
        next.number().saturating_sub(1)
    }

    /// The first messages that match the request, and one more.
    fn listing<'a>(&self, request: &'a BrowseRequest) -> FirstMessages<'a> {
        let from = request.from;
        let mut first = FirstMessages {
            request,
            from: from.map_or((Reverse(HIGHEST_LEVEL), 0), |from| {
                (Reverse(from.level), from.number)
            }),
            limit: page_limit(request) + 1,
            found: BTreeMap::new(),
        };
        if request.lists(BrowsedState::Ready) {
            self.list_ready(request, &mut first);
        }
        if request.lists(BrowsedState::Delayed) {
            for delayed in self.delayed.iter() {
                let message = delayed.requeued;
                let (state, due) = (BrowsedState::Delayed, Some(delayed.due));
                first.add(message.held, message.counts, state, due);
            }
        }
        if request.lists(BrowsedState::Unacknowledged) {
            for consumer in self.checkout.consumers.values() {
                for out in consumer.out.values() {
                    first.offer(out.item, out.counts, BrowsedState::Unacknowledged);
                }
            }
        }
        first
    }

    fn list_ready(&self, request: &BrowseRequest, first: &mut FirstMessages<'_>) {
        for level in self.ready.levels() {
            let number = match request.from.filter(|from| from.level == level) {
                Some(from) => from.number.max(request.least),
                None => request.least,
            };
            let fresh = self.ready.fresh_from(level, LogLocation::of_number(number));
            let is_listed = |held: &LogMessage| held.location().number() <= request.most;
            let listed = fresh.take_while(is_listed);
            let unexpired = listed.filter(|held| request.lists_expiry(held.expires));
            for held in unexpired.take(first.limit) {
                first.offer(held, DeliveryCounts::default(), BrowsedState::Ready);
            }
        }
        let postponed = self.ready.postponed().map(|(_, message)| message);
        let grouped = self.ready.grouped().map(|(_, message)| message);
        for message in self.ready.returned().chain(postponed).chain(grouped) {
            first.offer(message.held, message.counts, BrowsedState::Ready);
        }
    }
}

impl QuorumQueue {
    /// A page of the messages of the queue, as far as this member has applied its log; for the leader. `read` returns the
    /// command of a log entry. Messages that are lost are left out. Fails if messages cannot be read at the moment, and for a
    /// client that browses if the leader has not applied its log.
    pub fn browse(
        &self,
        request: &BrowseRequest,
        read: &mut dyn FnMut(u64) -> LogRead,
    ) -> Result<BrowsePage, String> {
        if request.unexpired_at.is_some() && !self.caught_up {
            let label = &self.machine.checkout.label;
            return Err(format!(
                "{label} has a new leader, which has not applied its log: try again later"
            ));
        }
        self.machine().browse(request, read)
    }
}

impl Machine {
    /// See [`QuorumQueue::browse`].
    pub(super) fn browse(
        &self,
        request: &BrowseRequest,
        read: &mut dyn FnMut(u64) -> LogRead,
    ) -> Result<BrowsePage, String> {
        let mut page = PageBuilder::new(request, page_limit(request));
        let mut log = CommandReader::new(read);
        let last = self.last_number();
        for ((Reverse(level), number), candidate) in self.listing(request).found {
            let at = BrowsePosition {
                level,
                number,
                ..BrowsePosition::default()
            };
            if page.is_full() {
                return Ok(page.finish(Some(at), last));
            }
            let location = candidate.held.location();
            let message = match log.message(location) {
                Ok(message) => message,
                Err(ReadError::Lost(_)) => continue,
                Err(ReadError::Shortage) => {
                    let label = &self.checkout.label;
                    return Err(format!(
                        "{label} cannot be read at the moment: try again later"
                    ));
                }
            };
            let counts = candidate.counts;
            page.push(BrowsedMessage {
                at,
                state: candidate.state,
                due_at: candidate.due_at,
                redelivered: counts.is_redelivery(),
                failed: Some(counts.failed),
                acquired: match self.checkout.counts_deliveries {
                    true => counts.acquired(),
                    false => 0,
                },
                body_len: 0,
                body_start: 0,
                message: annotated(message, self.annotations.get(location)),
            });
        }
        Ok(page.finish(None, last))
    }
}
