//! Ready messages, by reference to the log: 8 bytes each, 12 if the body next to it has 64 KiB or more, and 8 more with a
//! time to live.
//!
//! Three places, in the order in which they are served: what was given back, in the order in which it came back; high
//! priority; normal. Two high ones go for each normal one.

use super::effects::LogLocation;
use crate::checkout::Dequeued;
use std::collections::VecDeque;

/// Messages in one chunk of a lane.
const CHUNK: usize = 1024;
/// An emptied lane keeps a chunk of at most this many for what comes next.
const KEPT: usize = 16;
/// High-priority messages in a row while normal ones wait.
const HIGH_IN_A_ROW: u8 = 2;

/// A message of the log, out or returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogMessage {
    pub index: u64,
    /// Of the message's length in the entry's command.
    pub offset: u32,
    pub body: u32,
    pub high: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
}

impl LogMessage {
    pub fn location(&self) -> LogLocation {
        LogLocation {
            index: self.index,
            offset: self.offset,
        }
    }
}

/// A message that was out before, and how many attempts failed.
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

/// A message as most are.
#[derive(Clone, Copy, Debug)]
struct CompactMessage {
    offset: u32,
    delta: u16,
    body: u16,
}

/// Any message.
#[derive(Clone, Copy, Debug)]
struct FullMessage {
    offset: u32,
    delta: u32,
    body: u32,
}

impl FullMessage {
    fn narrow(self) -> Option<CompactMessage> {
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

/// Messages of a chunk: all wide as soon as one has to be.
#[derive(Debug)]
enum Items {
    Narrow(Vec<CompactMessage>),
    Wide(Vec<FullMessage>),
}

impl Items {
    fn len(&self) -> usize {
        match self {
            Items::Narrow(items) => items.len(),
            Items::Wide(items) => items.len(),
        }
    }

    fn capacity(&self) -> usize {
        match self {
            Items::Narrow(items) => items.capacity(),
            Items::Wide(items) => items.capacity(),
        }
    }

    fn get(&self, at: usize) -> Option<FullMessage> {
        match self {
            Items::Narrow(items) => items.get(at).copied().map(FullMessage::from),
            Items::Wide(items) => items.get(at).copied(),
        }
    }

    fn push(&mut self, item: FullMessage) {
        match (&mut *self, item.narrow()) {
            (Items::Narrow(items), Some(narrow)) => items.push(narrow),
            (Items::Wide(items), _) => items.push(item),
            (Items::Narrow(items), None) => {
                let mut wide = Vec::with_capacity(items.capacity());
                wide.extend(items.iter().copied().map(FullMessage::from));
                wide.push(item);
                *self = Items::Wide(wide);
            }
        }
    }

    fn clear(&mut self) {
        match self {
            Items::Narrow(items) => items.clear(),
            Items::Wide(items) => items.clear(),
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        match self {
            Items::Narrow(items) => items.capacity() * size_of::<CompactMessage>(),
            Items::Wide(items) => items.capacity() * size_of::<FullMessage>(),
        }
    }
}

#[derive(Debug)]
struct Chunk {
    base: u64,
    items: Items,
    /// As long as `items` when any of them expires, else empty.
    expires: Vec<u64>,
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

    /// False when it has no room for this one.
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
            // As long as the items may become, and no longer.
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

/// Messages of one priority in log order, never taken.
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
        // A long lane gets whole chunks at once; a short one grows with what it has.
        let room = if self.chunks.is_empty() { 4 } else { CHUNK };
        let mut chunk = Chunk {
            base: held.index,
            items: Items::Narrow(Vec::with_capacity(room)),
            expires: Vec::new(),
            front: 0,
        };
        chunk.push(held);
        self.chunks.push_back(chunk);
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
            let kept = chunk.items.capacity() <= KEPT;
            match self.chunks.len() {
                1 if kept => self.empty_first(),
                _ => drop(self.chunks.pop_front()),
            }
        }
        Some(held)
    }

    /// A queue that is emptied as fast as it is filled needs no new memory for each message.
    fn empty_first(&mut self) {
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

/// Which message is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextMessage {
    Returned,
    High,
    Postponed,
    Normal,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ready {
    returned: VecDeque<RequeuedMessage>,
    high: PriorityLevel,
    normal: PriorityLevel,
    /// Given back to the end of the normal lane: behind what was published before this place of the log.
    postponed: VecDeque<(LogLocation, RequeuedMessage)>,
    /// Where in the cycle of two high and one normal it is.
    pub turn: u8,
    len: u64,
    /// Body bytes of what waits.
    bytes: u64,
    /// How many of them expire.
    expiring: u64,
}

impl Ready {
    pub fn new() -> Ready {
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

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn count(&mut self, held: &LogMessage) {
        self.len += 1;
        self.bytes += u64::from(held.body);
        self.expiring += u64::from(held.expires != 0);
    }

    /// A new message, after all others of its priority.
    pub fn push(&mut self, held: &LogMessage) {
        self.count(held);
        let lane = if held.high {
            &mut self.high
        } else {
            &mut self.normal
        };
        lane.push(held);
    }

    /// Back to the front, behind what came back before.
    pub fn give_back(&mut self, held: LogMessage, attempts: u32) {
        self.count(&held);
        self.returned.push_back(RequeuedMessage { held, attempts });
    }

    /// Back to the front, before all that came back.
    pub fn put_in_front(&mut self, held: LogMessage, attempts: u32) {
        self.count(&held);
        self.returned.push_front(RequeuedMessage { held, attempts });
    }

    /// Back to the end. `after` is where in the log that was asked for; later calls name later places.
    pub fn postpone(&mut self, held: LogMessage, attempts: u32, after: LogLocation) {
        self.count(&held);
        self.postponed
            .push_back((after, RequeuedMessage { held, attempts }));
    }

    /// What is next and the message itself. Two high to one normal, but a normal one never passes a high one that was
    /// published before it.
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
        let low = match (normal, postponed) {
            (Some(normal), Some(postponed)) if normal.0 < postponed.0 => Some(normal),
            (normal, postponed) => postponed.or(normal),
        };
        match (high, low) {
            (Some(high), Some((location, ..))) if high.location() < location => {
                Some((NextMessage::High, high))
            }
            (Some(high), None) => Some((NextMessage::High, high)),
            (_, low) => low.map(|(_, next, held)| (next, held)),
        }
    }

    pub fn pop(&mut self) -> Option<Dequeued<LogMessage>> {
        let (next, held) = self.next()?;
        let taken = match next {
            NextMessage::Returned => self.returned.pop_front().map(Dequeued::from),
            NextMessage::Postponed => self.postponed.pop_front().map(|(_, r)| r.into()),
            NextMessage::High | NextMessage::Normal => {
                let lane = if next == NextMessage::High {
                    &mut self.high
                } else {
                    &mut self.normal
                };
                lane.pop().map(|item| Dequeued {
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
        self.len -= 1;
        self.bytes -= u64::from(held.body);
        self.expiring -= u64::from(held.expires != 0);
        taken
    }

    /// Removes and returns the next message if its time to live is over. Only the head of the queue expires.
    pub fn pop_expired(&mut self, clock: u64) -> Option<LogMessage> {
        let due = self.next_expiry().is_some_and(|expires| expires <= clock);
        if !due {
            return None;
        }
        self.pop().map(|taken| taken.item)
    }

    /// When the next message expires, if it does.
    pub fn next_expiry(&self) -> Option<u64> {
        if self.expiring == 0 {
            return None;
        }
        let (_, held) = self.next()?;
        Some(held.expires).filter(|expires| *expires != 0)
    }

    pub fn clear(&mut self) -> u64 {
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

    pub fn fresh(&self) -> impl Iterator<Item = LogMessage> + '_ {
        self.high.fresh().chain(self.normal.fresh())
    }

    /// In the order in which they came back.
    pub fn returned(&self) -> impl Iterator<Item = RequeuedMessage> + '_ {
        self.returned.iter().copied()
    }

    /// In the order in which they came back.
    pub fn postponed(&self) -> impl Iterator<Item = (LogLocation, RequeuedMessage)> + '_ {
        self.postponed.iter().copied()
    }

    /// Bytes of memory for what was published and never taken, capacity included.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        let lanes = [&self.high, &self.normal];
        lanes
            .into_iter()
            .map(|lane| {
                let chunks = lane.chunks.capacity() * size_of::<Chunk>();
                let items = lane
                    .chunks
                    .iter()
                    .map(|c| c.items.bytes() + c.expires.capacity() * size_of::<u64>());
                chunks + items.sum::<usize>()
            })
            .sum()
    }
}
