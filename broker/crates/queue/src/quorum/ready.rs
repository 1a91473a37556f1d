//! Ready messages, as references to the log. A reference takes 8 bytes, or 12 if a body in the same chunk has
//! 64 KiB or more, and 8 more if one has a TTL.
//!
//! Messages are served in this order: requeued ones, in the order of their requeue; high priority; normal
//! priority. Two of high priority are served for each of normal priority.

use super::effects::LogLocation;
use crate::checkout::Dequeued;
use std::collections::VecDeque;

/// Messages in one chunk.
const CHUNK: usize = 1024;
/// The chunk of an emptied level is kept for the next messages if its capacity is at most this.
const RETAINED_CAPACITY: usize = 16;
/// Messages of high priority in a row while normal ones wait.
const HIGH_IN_A_ROW: u8 = 2;

/// Reference to a message in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogMessage {
    /// Index of the log entry.
    pub index: u64,
    /// Offset of the message's length within the command of the entry.
    pub offset: u32,
    /// Body bytes.
    pub body: u32,
    /// The message has high priority.
    pub high: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
}

impl LogMessage {
    pub(crate) fn location(&self) -> LogLocation {
        LogLocation {
            index: self.index,
            offset: self.offset,
        }
    }
}

/// A requeued message and its number of failed delivery attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequeuedMessage {
    pub held: LogMessage,
    pub attempts: u32,
}

impl From<RequeuedMessage> for Dequeued<LogMessage> {
    fn from(returned: RequeuedMessage) -> Dequeued<LogMessage> {
        Dequeued {
            item: returned.held,
            attempts: returned.attempts,
            redelivered: true,
        }
    }
}

/// A reference relative to its chunk, for nearby entries and small bodies.
#[derive(Clone, Copy, Debug)]
struct CompactMessage {
    offset: u32,
    delta: u16,
    body: u16,
}

/// A reference relative to its chunk.
#[derive(Clone, Copy, Debug)]
struct FullMessage {
    offset: u32,
    delta: u32,
    body: u32,
}

impl FullMessage {
    fn compact(self) -> Option<CompactMessage> {
        Some(CompactMessage {
            offset: self.offset,
            delta: u16::try_from(self.delta).ok()?,
            body: u16::try_from(self.body).ok()?,
        })
    }
}

impl From<CompactMessage> for FullMessage {
    fn from(n: CompactMessage) -> FullMessage {
        FullMessage {
            offset: n.offset,
            delta: n.delta.into(),
            body: n.body.into(),
        }
    }
}

/// References of one chunk: all are wide if one has to be.
#[derive(Debug)]
enum Items {
    Compact(Vec<CompactMessage>),
    Full(Vec<FullMessage>),
}

impl Items {
    fn len(&self) -> usize {
        match self {
            Items::Compact(items) => items.len(),
            Items::Full(items) => items.len(),
        }
    }

    fn capacity(&self) -> usize {
        match self {
            Items::Compact(items) => items.capacity(),
            Items::Full(items) => items.capacity(),
        }
    }

    fn get(&self, at: usize) -> Option<FullMessage> {
        match self {
            Items::Compact(items) => items.get(at).copied().map(FullMessage::from),
            Items::Full(items) => items.get(at).copied(),
        }
    }

    fn push(&mut self, item: FullMessage) {
        match (&mut *self, item.compact()) {
            (Items::Compact(items), Some(compact)) => items.push(compact),
            (Items::Full(items), _) => items.push(item),
            (Items::Compact(items), None) => {
                let mut full = Vec::with_capacity(items.capacity());
                full.extend(items.iter().copied().map(FullMessage::from));
                full.push(item);
                *self = Items::Full(full);
            }
        }
    }

    fn clear(&mut self) {
        match self {
            Items::Compact(items) => items.clear(),
            Items::Full(items) => items.clear(),
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        match self {
            Items::Compact(items) => items.capacity() * size_of::<CompactMessage>(),
            Items::Full(items) => items.capacity() * size_of::<FullMessage>(),
        }
    }
}

#[derive(Debug)]
/// A run of references with a common base.
struct Chunk {
    /// Index that the references are relative to.
    base: u64,
    items: Items,
    /// As long as `items` if any message in the chunk has a TTL, otherwise empty.
    expires: Vec<u64>,
    /// Number of references that were taken.
    front: usize,
}

impl Chunk {
    fn get(&self, at: usize, high: bool) -> Option<LogMessage> {
        let packed = self.items.get(at)?;
        Some(LogMessage {
            index: self.base.wrapping_add(packed.delta.into()),
            offset: packed.offset,
            body: packed.body,
            high,
            expires: self.expires.get(at).copied().unwrap_or(0),
        })
    }

    /// Appends a reference. Returns false if the chunk has no room for it.
    fn push(&mut self, held: &LogMessage) -> bool {
        let len = self.items.len();
        if len == 0 {
            self.base = held.index;
        }
        let delta = held.index.checked_sub(self.base);
        let Some(delta) = delta.and_then(|d| u32::try_from(d).ok()) else {
            return false;
        };
        if len >= CHUNK {
            return false;
        }
        if held.expires != 0 && self.expires.is_empty() {
            // Avoids growing this vector beyond the final number of items.
            self.expires
                .reserve_exact(self.items.capacity().max(len + 1));
            self.expires.resize(len, 0);
        }
        if held.expires != 0 || !self.expires.is_empty() {
            self.expires.push(held.expires);
        }
        self.items.push(FullMessage {
            delta,
            offset: held.offset,
            body: held.body,
        });
        true
    }
}

/// Messages of one priority that were never delivered, in log order.
#[derive(Debug, Default)]
struct PriorityLevel {
    high: bool,
    chunks: VecDeque<Chunk>,
}

impl PriorityLevel {
    fn push(&mut self, held: &LogMessage) {
        if self.chunks.back_mut().is_some_and(|c| c.push(held)) {
            return;
        }
        // Whole chunks for a long level; the first chunk of a short one grows as needed.
        let capacity = if self.chunks.is_empty() { 4 } else { CHUNK };
        let mut chunk = Chunk {
            base: held.index,
            items: Items::Compact(Vec::with_capacity(capacity)),
            expires: Vec::new(),
            front: 0,
        };
        chunk.push(held);
        self.chunks.push_back(chunk);
    }

    fn last(&self) -> Option<LogLocation> {
        let chunk = self.chunks.back()?;
        let last = chunk.items.len().checked_sub(1)?;
        chunk.get(last, self.high).map(|message| message.location())
    }

    fn peek(&self) -> Option<LogMessage> {
        let chunk = self.chunks.front()?;
        chunk.get(chunk.front, self.high)
    }

    fn pop(&mut self) -> Option<LogMessage> {
        let chunk = self.chunks.front_mut()?;
        let held = chunk.get(chunk.front, self.high)?;
        chunk.front += 1;
        if chunk.front >= chunk.items.len() {
            let is_retained = chunk.items.capacity() <= RETAINED_CAPACITY;
            match self.chunks.len() {
                1 if is_retained => self.reset_first_chunk(),
                _ => drop(self.chunks.pop_front()),
            }
        }
        Some(held)
    }

    /// Keeps the allocation, for a queue that is emptied as fast as it is filled.
    fn reset_first_chunk(&mut self) {
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.items.clear();
            chunk.expires.clear();
            chunk.front = 0;
        }
    }

    fn fresh(&self) -> impl Iterator<Item = LogMessage> + '_ {
        self.chunks
            .iter()
            .flat_map(|c| (c.front..c.items.len()).filter_map(|at| c.get(at, self.high)))
    }

    fn clear(&mut self) {
        self.chunks = VecDeque::new();
    }
}

/// Where the next message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextMessage {
    Returned,
    High,
    Postponed,
    Normal,
}

/// The ready messages of a queue.
#[derive(Debug)]
pub(crate) struct Ready {
    returned: VecDeque<RequeuedMessage>,
    high: PriorityLevel,
    normal: PriorityLevel,
    /// Messages requeued at the end of the normal level: after all messages before this location of the log.
    postponed: VecDeque<(LogLocation, RequeuedMessage)>,
    /// Position in the cycle of two messages of high and one of normal priority.
    pub turn: u8,
    len: u64,
    /// Body bytes of ready messages.
    bytes: u64,
    /// How many ready messages have a TTL.
    expiring: u64,
}

impl Ready {
    pub(crate) fn new() -> Ready {
        Ready {
            returned: VecDeque::new(),
            high: PriorityLevel {
                high: true,
                ..PriorityLevel::default()
            },
            normal: PriorityLevel::default(),
            postponed: VecDeque::new(),
            turn: 0,
            len: 0,
            bytes: 0,
            expiring: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn count(&mut self, held: &LogMessage) {
        self.len += 1;
        self.bytes += u64::from(held.body);
        self.expiring += u64::from(held.expires != 0);
    }

    /// Appends a new message of its priority.
    pub(crate) fn push(&mut self, held: &LogMessage) {
        self.count(held);
        let level = if held.high {
            &mut self.high
        } else {
            &mut self.normal
        };
        level.push(held);
    }

    /// Requeues a message at the front, behind those that were requeued before.
    pub(crate) fn give_back(&mut self, held: LogMessage, attempts: u32) {
        self.count(&held);
        self.returned.push_back(RequeuedMessage { held, attempts });
    }

    /// Requeues a message at the very front.
    pub(crate) fn requeue_in_front(&mut self, held: LogMessage, attempts: u32) {
        self.count(&held);
        self.returned.push_front(RequeuedMessage { held, attempts });
    }

    /// Requeues a message at the end. `after` is the log location of the request; it ascends from call to call.
    pub(crate) fn postpone(&mut self, held: LogMessage, attempts: u32, after: LogLocation) {
        self.count(&held);
        self.postponed
            .push_back((after, RequeuedMessage { held, attempts }));
    }

    /// The next message and where it is. Two of high priority go before one of normal priority, but a normal
    /// one is never served before a high one that was published earlier.
    fn next(&self) -> Option<(NextMessage, LogMessage)> {
        if let Some(returned) = self.returned.front() {
            return Some((NextMessage::Returned, returned.held));
        }
        let high = self.high.peek();
        if let Some(high) = high
            && self.turn < HIGH_IN_A_ROW
        {
            return Some((NextMessage::High, high));
        }
        let normal = self
            .normal
            .peek()
            .map(|n| (n.location(), NextMessage::Normal, n));
        let postponed = self.postponed.front();
        let postponed = postponed.map(|(after, r)| (*after, NextMessage::Postponed, r.held));
        let normal_or_postponed = match (normal, postponed) {
            (Some(normal), Some(postponed)) if normal.0 < postponed.0 => Some(normal),
            (normal, postponed) => postponed.or(normal),
        };
        match (high, normal_or_postponed) {
            (Some(high), Some((location, ..))) if high.location() < location => {
                Some((NextMessage::High, high))
            }
            (Some(high), None) => Some((NextMessage::High, high)),
            (_, normal_or_postponed) => normal_or_postponed.map(|(_, next, held)| (next, held)),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Dequeued<LogMessage>> {
        let (next, held) = self.next()?;
        let dequeued = match next {
            NextMessage::Returned => self.returned.pop_front().map(Dequeued::from),
            NextMessage::Postponed => self.postponed.pop_front().map(|(_, r)| r.into()),
            NextMessage::High | NextMessage::Normal => {
                let level = if next == NextMessage::High {
                    &mut self.high
                } else {
                    &mut self.normal
                };
                level.pop().map(|item| Dequeued {
                    item,
                    attempts: 0,
                    redelivered: false,
                })
            }
        };
        if next != NextMessage::Returned {
            self.turn = match self.turn {
                turn if turn >= HIGH_IN_A_ROW => 0,
                turn => turn + 1,
            };
        }
        let item = dequeued.as_ref().map(|dequeued| dequeued.item);
        debug_assert_eq!(item, Some(held), "the next message is taken");
        self.len -= 1;
        self.bytes -= u64::from(held.body);
        self.expiring -= u64::from(held.expires != 0);
        debug_assert!(self.expiring <= self.len);
        debug_assert!(self.len > 0 || self.bytes == 0);
        dequeued
    }

    /// Removes and returns the next message if it has expired. Only the head of the queue expires.
    pub(crate) fn pop_expired(&mut self, clock: u64) -> Option<LogMessage> {
        let due = self.next_expiry().is_some_and(|expires| expires <= clock);
        if !due {
            return None;
        }
        self.pop().map(|dequeued| dequeued.item)
    }

    /// When the message at the head expires, if it has a TTL.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        if self.expiring == 0 {
            return None;
        }
        let (_, held) = self.next()?;
        Some(held.expires).filter(|expires| *expires != 0)
    }

    /// Drops all messages. Returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        let dropped = self.len;
        self.returned = VecDeque::new();
        self.postponed = VecDeque::new();
        self.high.clear();
        self.normal.clear();
        self.len = 0;
        self.bytes = 0;
        self.expiring = 0;
        dropped
    }

    /// Messages that were never delivered.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = LogMessage> + '_ {
        self.high.fresh().chain(self.normal.fresh())
    }

    /// Location of the last message that was pushed, of those that were never delivered.
    pub(crate) fn last_fresh(&self) -> Option<LogLocation> {
        self.high.last().max(self.normal.last())
    }

    /// Location of the last request that requeued a message at the end.
    pub(crate) fn last_postponed(&self) -> Option<LogLocation> {
        self.postponed.back().map(|(after, _)| *after)
    }

    /// Messages that were requeued at the front, in service order.
    pub(crate) fn returned(&self) -> impl Iterator<Item = RequeuedMessage> + '_ {
        self.returned.iter().copied()
    }

    /// Messages that were requeued at the end, in service order.
    pub(crate) fn postponed(&self) -> impl Iterator<Item = (LogLocation, RequeuedMessage)> + '_ {
        self.postponed.iter().copied()
    }

    /// Bytes of memory of messages that were never delivered, capacity included.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        let levels = [&self.high, &self.normal];
        levels
            .into_iter()
            .map(|level| {
                let chunks = level.chunks.capacity() * size_of::<Chunk>();
                let items = level
                    .chunks
                    .iter()
                    .map(|c| c.items.bytes() + c.expires.capacity() * size_of::<u64>());
                chunks + items.sum::<usize>()
            })
            .sum()
    }
}
