//! The levels of a classic queue's store, one for each priority, each read ahead from its own segments.

use super::{ClassicStore, Item, State};
use crate::DeliveryCounts;
use crate::checkout::Dequeued;
use crate::classic::location::{LoadedMessage, MessageLocation};
use crate::classic::segments::READ_AHEAD;
use message::Message;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of written messages that stay in memory because they are next. The levels share it, but each gets at
/// least [`LEAST_WINDOW_BYTES`].
const WINDOW_BYTES: usize = READ_AHEAD;
const LEAST_WINDOW_BYTES: usize = 16 << 10;

/// The ready messages of one priority.
#[derive(Debug, Default)]
pub(super) struct PriorityLevel {
    /// Requeued messages by number, and whether their next delivery counts as a redelivery.
    pub returned: BTreeMap<u64, (Item, bool)>,
    /// Messages that were read ahead, in order.
    pub window: VecDeque<LoadedMessage>,
    pub window_bytes: usize,
    /// Number of messages on disk after the window.
    pub backlog: u64,
    /// Location of the first of them.
    pub cursor: Option<MessageLocation>,
    /// Numbers of unwritten messages that were never delivered.
    pub fresh: VecDeque<u64>,
    /// Number of ready messages.
    pub ready: u64,
    /// The first message number that was never delivered. All before it were, as far as is known.
    pub undelivered: u64,
}

impl PriorityLevel {
    /// The first message that was never delivered in this incarnation, as far as it is in memory.
    pub(super) fn first_new(&self) -> Option<u64> {
        let first = self.window.front().map(|loaded| loaded.seq);
        match self.backlog {
            0 => first.or(self.fresh.front().copied()),
            // The first one on disk is unknown.
            _ => first.or(Some(0)),
        }
    }

    /// Returns true if messages before this one may never have been delivered.
    pub(super) fn has_new_before(&self, seq: u64) -> bool {
        self.first_new().is_some_and(|first| first < seq)
    }
}

impl ClassicStore {
    pub(super) fn first_location(&self, priority: u8) -> Option<MessageLocation> {
        let segment = self.segments.first(priority, None)?;
        Some(MessageLocation { segment, offset: 0 })
    }

    /// Bytes that each level may have in its window.
    fn window_share(&self) -> usize {
        (WINDOW_BYTES / self.levels.len()).max(LEAST_WINDOW_BYTES)
    }

    pub(super) fn level(&mut self, priority: u8) -> Option<&mut PriorityLevel> {
        self.levels.get_mut(usize::from(priority))
    }

    /// The highest level with ready messages.
    pub(super) fn head_level(&mut self) -> Option<usize> {
        while self
            .levels
            .get(self.highest_ready)
            .is_some_and(|l| l.ready == 0)
            && self.highest_ready > 0
        {
            self.highest_ready -= 1;
        }
        let level = self.levels.get(self.highest_ready)?;
        (level.ready > 0).then_some(self.highest_ready)
    }

    /// Keeps a written message that was never delivered in memory, if it is next and the window has room.
    /// Otherwise it is read back later.
    pub(super) fn retain_written(
        &mut self,
        item: Item,
        message: Message,
        location: MessageLocation,
    ) {
        let len = message.as_bytes().len();
        let window_share = self.window_share();
        let Some(level) = self.level(item.priority) else {
            return;
        };
        if level.backlog == 0 && level.window_bytes < window_share {
            level.window_bytes += len;
            level.window.push_back(LoadedMessage {
                seq: item.seq,
                persistent: item.persistent,
                expires: item.expires,
                body: item.body,
                location,
                message,
            });
            return;
        }
        if level.backlog == 0 {
            level.cursor = Some(location);
        }
        level.backlog += 1;
        if let Some(segment) = self.segments.list.get_mut(&location.segment) {
            segment.unread += 1;
        }
    }

    /// Reads ahead if the window of a level is empty.
    pub(super) fn read_ahead(&mut self, at: usize) {
        let window_share = self.window_share();
        while let Some(level) = self.levels.get(at) {
            if !level.window.is_empty() || level.backlog == 0 || self.stalled {
                return;
            }
            let Some(cursor) = level.cursor else {
                return self.lose_backlog(at);
            };
            let mut faults = Vec::new();
            let read = self
                .segments
                .read(cursor.segment, cursor.offset, window_share, &mut faults);
            self.output.faults.extend(faults);
            match read {
                Ok((loaded, next)) => {
                    self.read_failure_reported = false;
                    self.add_loaded(at, cursor, loaded, next);
                }
                Err(error) => {
                    self.stalled = true;
                    if !std::mem::replace(&mut self.read_failure_reported, true) {
                        self.report_failure("cannot be read", &error);
                    }
                }
            }
        }
    }

    fn add_loaded(
        &mut self,
        at: usize,
        cursor: MessageLocation,
        loaded: Vec<LoadedMessage>,
        next: Option<u64>,
    ) {
        let count = loaded.len() as u64;
        let lost = match self.segments.list.get_mut(&cursor.segment) {
            Some(segment) => {
                segment.unread = segment.unread.saturating_sub(count);
                match next {
                    Some(_) => 0,
                    None => std::mem::take(&mut segment.unread),
                }
            }
            None => 0,
        };
        if next.is_none() {
            self.segments.finish_reading(cursor.segment);
        }
        let after = self.segment_after(cursor);
        let Some(level) = self.levels.get_mut(at) else {
            return;
        };
        level.backlog = level.backlog.saturating_sub(count + lost);
        for message in loaded {
            level.window_bytes += message.message.as_bytes().len();
            level.window.push_back(message);
        }
        level.cursor = match next {
            Some(offset) => Some(MessageLocation { offset, ..cursor }),
            None => after,
        };
        if lost > 0 {
            self.record_loss(at, lost);
            let result = self.segments.record_loss(cursor.segment, lost);
            self.report_error(result);
        }
    }

    pub(super) fn segment_after(&self, location: MessageLocation) -> Option<MessageLocation> {
        let number = location.segment;
        let segment = self.segments.first(number.priority(), Some(number))?;
        Some(MessageLocation { segment, offset: 0 })
    }

    /// Records that ready messages are lost with damaged records.
    fn record_loss(&mut self, at: usize, count: u64) {
        if let Some(level) = self.levels.get_mut(at) {
            level.ready = level.ready.saturating_sub(count);
        }
        self.ready = self.ready.saturating_sub(count);
        if self.ready == 0 {
            self.ready_bytes = 0;
        }
        self.lost.add(Some(count), 1);
        self.output
            .faults
            .push(format!("classic queue lost {count} messages to damage"));
    }

    fn lose_backlog(&mut self, at: usize) {
        let rest = self.levels.get_mut(at);
        let rest = rest.map_or(0, |level| std::mem::take(&mut level.backlog));
        self.record_loss(at, rest);
    }

    /// When the message at the head expires, 0: never. None: unknown, or the queue is empty.
    pub(super) fn head_expires(&mut self) -> Option<u64> {
        while let Some(at) = self.head_level() {
            self.read_ahead(at);
            let level = self.levels.get(at)?;
            if let Some((item, _)) = level.returned.values().next()
                && (self.early.is_empty() || !level.has_new_before(item.seq))
            {
                return Some(item.expires);
            }
            if let Some(first) = level.window.front() {
                return Some(first.expires);
            }
            if level.backlog > 0 {
                return None;
            }
            if let Some(seq) = level.fresh.front().copied() {
                return self.slot(seq).map(|slot| slot.item.expires);
            }
            if level.ready > 0 {
                return None;
            }
            // All messages of this level are lost.
        }
        None
    }

    /// The next message, expired or not.
    pub(super) fn take_head(&mut self) -> Option<Dequeued<Item>> {
        self.in_hand = None;
        while let Some(at) = self.head_level() {
            let dequeued = if let Some(dequeued) = self.take_returned(at) {
                dequeued
            } else {
                self.read_ahead(at);
                if let Some(dequeued) = self.take_window(at) {
                    dequeued
                } else if self.levels.get(at).is_some_and(|l| l.backlog > 0) {
                    // Messages on disk go before unwritten ones, even while they cannot be read.
                    return None;
                } else if let Some(dequeued) = self.take_fresh(at) {
                    dequeued
                } else if self.levels.get(at).is_some_and(|l| l.ready > 0) {
                    return None;
                } else {
                    // All messages of this level are lost.
                    continue;
                }
            };
            self.count_taken(&dequeued.item);
            return Some(dequeued);
        }
        None
    }

    fn take_returned(&mut self, at: usize) -> Option<Dequeued<Item>> {
        self.levels.get(at).filter(|l| !l.returned.is_empty())?;
        if !self.early.is_empty() && self.has_head_before_returned(at) {
            return None;
        }
        let (_, (item, redelivered)) = self.levels.get_mut(at)?.returned.pop_first()?;
        Some(Dequeued {
            item,
            counts: DeliveryCounts::uncounted(0, redelivered),
        })
    }

    fn take_window(&mut self, at: usize) -> Option<Dequeued<Item>> {
        let level = self.levels.get_mut(at)?;
        let loaded = level.window.pop_front()?;
        let undelivered = level.undelivered;
        let len = loaded.message.as_bytes().len();
        level.window_bytes = level.window_bytes.saturating_sub(len);
        self.locations.insert(loaded.seq, loaded.location);
        self.in_hand = Some((loaded.seq, loaded.message));
        Some(Dequeued {
            item: Item {
                seq: loaded.seq,
                body: loaded.body,
                persistent: loaded.persistent,
                priority: loaded.location.segment.priority(),
                expires: loaded.expires,
            },
            // Messages that this incarnation delivered are unsettled or requeued, so only an earlier one can
            // have delivered this.
            counts: DeliveryCounts::uncounted(0, loaded.seq < undelivered),
        })
    }

    fn take_fresh(&mut self, at: usize) -> Option<Dequeued<Item>> {
        let seq = self.levels.get_mut(at)?.fresh.pop_front()?;
        let slot = self.slot(seq)?;
        slot.state = State::Taken;
        Some(Dequeued {
            item: slot.item,
            counts: DeliveryCounts::uncounted(0, false),
        })
    }
}
