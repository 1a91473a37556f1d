//! Listing the messages of a classic queue, and taking one of them out of the order.
//!
//! The messages on disk after the read-ahead window have no entry in memory. A listing reads them piece by piece, as far as
//! one page allows, and tells where the next page continues.

use super::{ClassicStore, Item, PriorityLevel, State};
use crate::browse::PageBuilder;
use crate::checkout::Dequeued;
use crate::classic::location::{LoadedMessage, MessageLocation, SegmentId};
use crate::classic::segments::READ_AHEAD;
use crate::{
    BrowsePage, BrowsePosition, BrowseRequest, BrowsedMessage, BrowsedState, DeliveryCounts,
};
use message::Message;
use std::collections::BTreeMap;
use std::io;

/// Most messages that may be out of order at a time; see [`ClassicStore::early`](super::ClassicStore).
const MAX_EARLY: usize = 65_536;

/// Calls a function for each message that is with a consumer.
type EachUnsettled<'a> = dyn Fn(&mut dyn FnMut(&Item, DeliveryCounts)) + 'a;

/// A message that may go into a page.
enum Candidate {
    /// Unsettled or requeued, or in the write buffer.
    Held {
        item: Item,
        state: BrowsedState,
        redelivered: bool,
    },
    /// In the window.
    Kept(Message),
    /// On disk after the window.
    Stored(MessageLocation, Message),
}

/// The part of a level's backlog that a page has read.
struct BacklogPart {
    messages: Vec<LoadedMessage>,
    /// Where the rest begins. `None`: this was the end.
    rest: Option<MessageLocation>,
    /// No message of the rest has this number or a lower one.
    read_to: u64,
}

impl Default for BacklogPart {
    /// The whole of an empty backlog.
    fn default() -> BacklogPart {
        BacklogPart {
            messages: Vec::new(),
            rest: None,
            read_to: u64::MAX,
        }
    }
}

impl ClassicStore {
    /// A page of at most `limit` messages. `unsettled`: the messages with consumers, and whether they were redelivered.
    pub(in crate::classic) fn browse(
        &mut self,
        request: &BrowseRequest,
        limit: usize,
        unsettled: &EachUnsettled<'_>,
    ) -> io::Result<BrowsePage> {
        let top = self.levels.len().saturating_sub(1);
        let top = u8::try_from(top).unwrap_or(u8::MAX);
        let mut page = PageBuilder::new(request, limit);
        let last = self.next_number().saturating_sub(1);
        let mut from = request.from.unwrap_or(BrowsePosition {
            level: top,
            ..BrowsePosition::default()
        });
        from.level = from.level.min(top);
        loop {
            let mut has_read = false;
            let next = self.browse_level(request, &from, unsettled, &mut page, &mut has_read)?;
            if next.is_some() || from.level == 0 {
                return Ok(page.finish(next, last));
            }
            from = BrowsePosition {
                level: from.level - 1,
                ..BrowsePosition::default()
            };
            if page.is_full() || has_read {
                return Ok(page.finish(Some(from), last));
            }
        }
    }

    /// Adds messages of one level. Returns where the next page begins if that is in this level.
    fn browse_level(
        &mut self,
        request: &BrowseRequest,
        from: &BrowsePosition,
        unsettled: &EachUnsettled<'_>,
        page: &mut PageBuilder,
        has_read: &mut bool,
    ) -> io::Result<Option<BrowsePosition>> {
        let first = from.number.max(request.least);
        if first > request.most {
            return Ok(None);
        }
        // One more than a page takes, so that the page never ends with the last of them by their number alone.
        let limit = page.limit() + 1;
        let mut listed = self.in_memory(request, (from.level, first), limit, unsettled);
        let backlog = match request.lists(BrowsedState::Ready) {
            true => self.read_backlog(from, first)?,
            false => BacklogPart::default(),
        };
        *has_read = !backlog.messages.is_empty() || backlog.rest.is_some();
        for loaded in backlog.messages {
            let is_listed = request.lists_expiry(loaded.expires);
            if is_listed && (first..=request.most).contains(&loaded.seq) {
                let candidate = Candidate::Stored(loaded.location, loaded.message);
                listed.insert(loaded.seq, candidate);
            }
        }
        let undelivered = self.levels.get(usize::from(from.level));
        let undelivered = undelivered.map_or(0, |level| level.undelivered);
        let rest = backlog.rest;
        let at = |number: u64, location: Option<MessageLocation>| BrowsePosition {
            level: from.level,
            number,
            segment: location.map_or(0, |l| l.segment.value()),
            offset: location.map_or(0, |l| l.offset),
        };
        while let Some((number, candidate)) = listed.pop_first() {
            if number > backlog.read_to {
                // Messages with lower numbers may be in the rest of the backlog.
                return Ok(Some(at(backlog.read_to + 1, rest)));
            }
            if page.is_full() {
                let own = std::iter::once(&candidate).chain(listed.values());
                let stored = own.into_iter().find_map(|candidate| match candidate {
                    Candidate::Stored(location, _) => Some(*location),
                    Candidate::Held { .. } | Candidate::Kept(_) => None,
                });
                return Ok(Some(at(number, stored.or(rest))));
            }
            let (state, redelivered, location, message) = match candidate {
                Candidate::Held {
                    item,
                    state,
                    redelivered,
                } => match self.message(item.seq) {
                    Ok(message) => (state, redelivered, None, message),
                    // Reported when it is delivered.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                    Err(error) => return Err(error),
                },
                Candidate::Kept(message) => {
                    (BrowsedState::Ready, number < undelivered, None, message)
                }
                Candidate::Stored(location, message) => {
                    let redelivered = number < undelivered;
                    (BrowsedState::Ready, redelivered, Some(location), message)
                }
            };
            page.push(BrowsedMessage {
                at: at(number, location),
                state,
                due_at: None,
                redelivered,
                failed: None,
                acquired: 0,
                body_len: 0,
                body_start: 0,
                message,
            });
        }
        let is_complete = rest.is_none() || backlog.read_to >= request.most;
        let number = backlog.read_to.saturating_add(1).max(from.number);
        Ok((!is_complete).then(|| at(number, rest)))
    }

    /// The first messages of a level among those with an entry in memory.
    fn in_memory(
        &self,
        request: &BrowseRequest,
        (level, least): (u8, u64),
        limit: usize,
        unsettled: &EachUnsettled<'_>,
    ) -> BTreeMap<u64, Candidate> {
        let numbers = least..=request.most;
        let mut first: BTreeMap<u64, Candidate> = BTreeMap::new();
        let mut offer = |number: u64, candidate: Candidate| {
            first.insert(number, candidate);
            if first.len() > limit {
                first.pop_last();
            }
        };
        unsettled(&mut |item, counts| {
            let is_listed = request.lists(BrowsedState::Unacknowledged);
            if is_listed && item.priority == level && numbers.contains(&item.seq) {
                let candidate = Candidate::Held {
                    item: *item,
                    state: BrowsedState::Unacknowledged,
                    redelivered: counts.is_redelivery(),
                };
                offer(item.seq, candidate);
            }
        });
        let messages = self.levels.get(usize::from(level));
        let Some(messages) = messages.filter(|_| request.lists(BrowsedState::Ready)) else {
            return first;
        };
        let returned = messages.returned.range(numbers.clone());
        let returned = returned.filter(|(_, (item, _))| request.lists_expiry(item.expires));
        for (number, (item, redelivered)) in returned.take(limit) {
            let candidate = Candidate::Held {
                item: *item,
                state: BrowsedState::Ready,
                redelivered: *redelivered,
            };
            offer(*number, candidate);
        }
        let window = messages
            .window
            .partition_point(|loaded| loaded.seq < *numbers.start());
        let window = messages.window.iter().skip(window);
        let window = window.filter(|loaded| request.lists_expiry(loaded.expires));
        let window = window.take(limit);
        for loaded in window.filter(|loaded| numbers.contains(&loaded.seq)) {
            offer(loaded.seq, Candidate::Kept(loaded.message.clone()));
        }
        let fresh = messages
            .fresh
            .partition_point(|number| number < numbers.start());
        let slots = messages.fresh.iter().skip(fresh).filter_map(|number| {
            let at = number.checked_sub(self.base)?;
            self.slots.get(usize::try_from(at).ok()?)
        });
        let slots = slots.filter(|slot| request.lists_expiry(slot.item.expires));
        for slot in slots.take(limit) {
            let number = slot.item.seq;
            if numbers.contains(&number) {
                let candidate = Candidate::Held {
                    item: slot.item,
                    state: BrowsedState::Ready,
                    redelivered: false,
                };
                offer(number, candidate);
            }
        }
        first
    }

    /// Reads one piece of the backlog of a level from a position on.
    fn read_backlog(&mut self, from: &BrowsePosition, first: u64) -> io::Result<BacklogPart> {
        let Some(start) = self.backlog_start(from, first) else {
            return Ok(BacklogPart::default());
        };
        // Damage is reported when the queue itself reads it.
        let mut faults = Vec::new();
        let (messages, next) =
            self.segments
                .read(start.segment, start.offset, READ_AHEAD, &mut faults)?;
        let segment_end = self.segments.last_seq(start.segment).unwrap_or(0);
        let (rest, read_to) = match next {
            Some(offset) => {
                let rest = MessageLocation { offset, ..start };
                let last = messages.last().map(|loaded| loaded.seq);
                // Without any message nothing is known about the numbers in this piece.
                (Some(rest), last.unwrap_or(first.saturating_sub(1)))
            }
            None => match self.segment_after(start) {
                Some(rest) => (Some(rest), segment_end),
                None => (None, u64::MAX),
            },
        };
        Ok(BacklogPart {
            messages,
            rest,
            read_to,
        })
    }

    /// Where to read the backlog of a level for messages from a position on. `None`: it has none.
    fn backlog_start(&self, from: &BrowsePosition, first: u64) -> Option<MessageLocation> {
        let level = self.levels.get(usize::from(from.level))?;
        let cursor = level.cursor.filter(|_| level.backlog > 0)?;
        let named = SegmentId::of(from.segment);
        let mut start = cursor;
        if from.segment != 0 && named.priority() == from.level && named >= cursor.segment {
            let offset = from.offset;
            let hint = MessageLocation {
                segment: named,
                offset,
            };
            start = match self.segments.last_seq(named) {
                Some(_) => hint,
                None => self.segment_after(hint)?,
            };
            if start.segment == cursor.segment {
                start.offset = start.offset.max(cursor.offset);
            }
        }
        while self.segments.last_seq(start.segment).unwrap_or(0) < first {
            start = self.segment_after(start)?;
        }
        Some(start)
    }

    /// Removes the ready message at a position from the order.
    #[cold]
    pub(super) fn take_position(&mut self, at: &BrowsePosition) -> Option<Dequeued<Item>> {
        self.in_hand = None;
        let level = usize::from(at.level);
        self.forget_passed_early();
        if self.early.len() >= MAX_EARLY {
            return None;
        }
        let is_empty = |l: &PriorityLevel| l.window.is_empty() && l.backlog > 0;
        if self.levels.get(level).is_some_and(is_empty) {
            // Messages that are taken from the head one by one need no entry in memory.
            self.read_ahead(level);
        }
        let dequeued = match self.pick_held(level, at.number) {
            Some(dequeued) => dequeued,
            None => self.pick_stored(level, at)?,
        };
        self.count_taken(&dequeued.item);
        let seq = dequeued.item.seq;
        if self
            .levels
            .get(level)
            .is_some_and(|l| l.has_new_before(seq))
        {
            self.early.insert(seq);
            self.delivers_carefully = true;
        }
        Some(dequeued)
    }

    /// Revokes the record of a clean stop. Returns the number up to which all messages of the level count as delivered with
    /// this delivery; 0: those before it do not.
    #[cold]
    pub(super) fn prepare_delivery(&mut self, item: &Item) -> u64 {
        let revoked = self.revoke_clean_stop();
        self.report_error(revoked);
        if self.early.contains(&item.seq) {
            return 0;
        }
        self.delivers_carefully = !self.early.is_empty();
        item.seq.saturating_add(1)
    }

    /// Before the record of a clean stop: messages that were taken early count as delivered, and those before them with them.
    /// A message may be marked as redelivered without reason, but must not be without mark.
    pub(super) fn mark_early_as_delivered(&mut self) {
        for seq in &self.early {
            let location = self.locations.get(seq);
            let level = location.map(|location| usize::from(location.segment.priority()));
            if let Some(level) = level.and_then(|level| self.levels.get_mut(level)) {
                level.undelivered = level.undelivered.max(seq.saturating_add(1));
            }
        }
    }

    /// Makes room for another message out of order, if there are too many. Those before them may then be marked as redelivered
    /// without reason after a clean stop.
    #[cold]
    pub(super) fn forget_early(&mut self) {
        self.forget_passed_early();
        if self.early.len() >= MAX_EARLY {
            self.mark_early_as_delivered();
            self.early.clear();
        }
    }

    /// Returns true if the next message of a level is not a requeued one, since those were taken before it.
    #[cold]
    pub(super) fn has_head_before_returned(&mut self, at: usize) -> bool {
        self.read_ahead(at);
        let level = self.levels.get(at);
        level.is_some_and(|level| {
            let returned = level.returned.keys().next();
            returned.is_some_and(|seq| level.has_new_before(*seq))
        })
    }

    /// Forgets messages that were taken early once all before them were delivered or are gone.
    fn forget_passed_early(&mut self) {
        if self.early.len() < MAX_EARLY {
            return;
        }
        let first = self.levels.iter().filter_map(PriorityLevel::first_new);
        if let Some(first) = first.min() {
            self.early = self.early.split_off(&first);
        }
    }

    fn pick_held(&mut self, at: usize, number: u64) -> Option<Dequeued<Item>> {
        let level = self.levels.get_mut(at)?;
        if let Some((item, redelivered)) = level.returned.remove(&number) {
            let counts = DeliveryCounts::uncounted(0, redelivered);
            return Some(Dequeued { item, counts });
        }
        if let Ok(found) = level.window.binary_search_by_key(&number, |l| l.seq) {
            let loaded = level.window.remove(found)?;
            let len = loaded.message.as_bytes().len();
            level.window_bytes = level.window_bytes.saturating_sub(len);
            return Some(self.hold_loaded(at, loaded));
        }
        let found = level.fresh.binary_search(&number).ok()?;
        level.fresh.remove(found);
        let slot = self.slot(number)?;
        slot.state = State::Taken;
        let counts = DeliveryCounts::uncounted(0, false);
        Some(Dequeued {
            item: slot.item,
            counts,
        })
    }

    fn pick_stored(&mut self, level: usize, at: &BrowsePosition) -> Option<Dequeued<Item>> {
        let location = MessageLocation {
            segment: SegmentId::of(at.segment),
            offset: at.offset,
        };
        let backlog = self.levels.get(level).filter(|level| level.backlog > 0)?;
        let cursor = backlog.cursor?;
        let is_before = (location.segment, location.offset) < (cursor.segment, cursor.offset);
        if is_before || location.segment.priority() != at.level {
            return None;
        }
        let loaded = match self.segments.pick(location, at.number) {
            Ok(loaded) => loaded?,
            Err(error) => {
                self.output
                    .faults
                    .push(format!("classic queue cannot be read: {error}"));
                return None;
            }
        };
        let backlog = self.levels.get_mut(level)?;
        backlog.backlog = backlog.backlog.saturating_sub(1);
        Some(self.hold_loaded(level, loaded))
    }

    /// A message that was read from disk is unsettled now.
    fn hold_loaded(&mut self, level: usize, loaded: LoadedMessage) -> Dequeued<Item> {
        let undelivered = self.levels.get(level).map_or(0, |level| level.undelivered);
        self.locations.insert(loaded.seq, loaded.location);
        self.in_hand = Some((loaded.seq, loaded.message));
        Dequeued {
            item: Item {
                seq: loaded.seq,
                body: loaded.body,
                persistent: loaded.persistent,
                priority: loaded.location.segment.priority(),
                expires: loaded.expires,
            },
            counts: DeliveryCounts::uncounted(0, loaded.seq < undelivered),
        }
    }
}
