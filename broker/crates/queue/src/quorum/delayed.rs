//! Messages that were returned and become ready again later, ordered by time.
//!
//! A message takes 32 bytes, or 40 if it has a TTL. It leaves when it is due or, if that is earlier, when it expires.

use super::effects::LogLocation;
use super::ready::{DEFAULT_LEVEL, LogMessage, RequeuedMessage};
use crate::{DelayedDetails, DeliveryCounts};
use env::planted::{self, Bug};

/// Records in one chunk of a heap.
const CHUNK: usize = 256;

/// A delayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DelayedMessage {
    /// When the message becomes ready, in milliseconds of the queue's clock.
    pub due: u64,
    /// The message. It has the default level, because priorities have no effect after the first delivery. Its group is with
    /// the ready messages of groups.
    pub requeued: RequeuedMessage,
}

/// A message in a heap.
trait Record: Copy {
    /// When the message leaves, and its location, which orders messages that leave at the same time.
    fn key(&self) -> (u64, LogLocation);
    fn message(&self) -> DelayedMessage;
}

/// A message without a TTL.
#[derive(Clone, Copy, Debug)]
struct PlainRecord {
    due: u64,
    index: u64,
    offset: u32,
    body: u32,
    failed: u32,
    acquired: u32,
}

/// A message with a TTL.
#[derive(Clone, Copy, Debug)]
struct ExpiringRecord {
    plain: PlainRecord,
    expires: u64,
}

const _: () = assert!(size_of::<PlainRecord>() <= 32);
const _: () = assert!(size_of::<ExpiringRecord>() <= 40);

impl PlainRecord {
    fn new(message: &DelayedMessage) -> PlainRecord {
        let RequeuedMessage { held, counts } = message.requeued;
        PlainRecord {
            due: message.due,
            index: held.index,
            offset: held.offset,
            body: held.body,
            failed: counts.failed,
            acquired: counts.acquired(),
        }
    }
}

impl Record for PlainRecord {
    fn key(&self) -> (u64, LogLocation) {
        let (index, offset) = (self.index, self.offset);
        (self.due, LogLocation { index, offset })
    }

    fn message(&self) -> DelayedMessage {
        DelayedMessage {
            due: self.due,
            requeued: RequeuedMessage {
                held: LogMessage {
                    index: self.index,
                    offset: self.offset,
                    body: self.body,
                    level: DEFAULT_LEVEL,
                    group: None,
                    expires: 0,
                },
                counts: DeliveryCounts::new(self.failed, self.acquired),
            },
        }
    }
}

impl Record for ExpiringRecord {
    fn key(&self) -> (u64, LogLocation) {
        let (due, location) = self.plain.key();
        (due.min(self.expires), location)
    }

    fn message(&self) -> DelayedMessage {
        let mut message = self.plain.message();
        message.requeued.held.expires = self.expires;
        message
    }
}

/// A binary heap with the smallest key at the top. Chunks of equal size keep the unused capacity small.
#[derive(Debug)]
struct Heap<R> {
    /// All chunks but the last one are full. The children of record `n` are `2 * n + 1` and `2 * n + 2`.
    chunks: Vec<Vec<R>>,
    len: usize,
}

impl<R> Default for Heap<R> {
    fn default() -> Heap<R> {
        Heap {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<R: Record> Heap<R> {
    fn get(&self, at: usize) -> Option<&R> {
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    fn key(&self, at: usize) -> Option<(u64, LogLocation)> {
        self.get(at).map(Record::key)
    }

    fn set(&mut self, at: usize, record: R) {
        let chunk = self.chunks.get_mut(at / CHUNK);
        if let Some(slot) = chunk.and_then(|chunk| chunk.get_mut(at % CHUNK)) {
            *slot = record;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        if let (Some(first), Some(second)) = (self.get(a).copied(), self.get(b).copied()) {
            self.set(a, second);
            self.set(b, first);
        }
    }

    fn push(&mut self, record: R) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(record),
            _ => self.chunks.push(vec![record]),
        }
        let at = self.len;
        self.len += 1;
        self.sift_up(at);
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.key(parent) <= self.key(at) {
                return;
            }
            self.swap(parent, at);
            at = parent;
        }
    }

    fn peek(&self) -> Option<&R> {
        self.get(0)
    }

    fn pop(&mut self) -> Option<R> {
        let top = *self.peek()?;
        let last = self.pop_last()?;
        if self.len > 0 {
            self.set(0, last);
            self.sift_down(0);
        }
        Some(top)
    }

    /// Removes the record at the end.
    fn pop_last(&mut self) -> Option<R> {
        let last = self.chunks.last_mut()?.pop()?;
        self.len -= 1;
        if self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
        }
        if self.len == 0 {
            self.chunks = Vec::new();
        }
        Some(last)
    }

    /// Removes the record of the message at a location. Looks at all records.
    fn take_at(&mut self, at: LogLocation) -> Option<R> {
        let found = self.iter().position(|record| record.key().1 == at)?;
        let record = *self.get(found)?;
        let last = self.pop_last()?;
        if found < self.len {
            self.set(found, last);
            self.sift_up(found);
            self.sift_down(found);
        }
        Some(record)
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(left_key) = self.key(left) else {
                return;
            };
            let (child, child_key) = match self.key(right) {
                Some(right_key) if right_key < left_key => (right, right_key),
                _ => (left, left_key),
            };
            if self.key(at).is_none_or(|key| key <= child_key) {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn iter(&self) -> impl Iterator<Item = &R> {
        self.chunks.iter().flatten()
    }

    #[cfg(test)]
    fn memory(&self) -> usize {
        let chunks = self.chunks.iter().map(|c| c.capacity() * size_of::<R>());
        self.chunks.capacity() * size_of::<Vec<R>>() + chunks.sum::<usize>()
    }
}

/// The delayed messages of a queue.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    plain: Heap<PlainRecord>,
    expiring: Heap<ExpiringRecord>,
    /// Body bytes.
    bytes: u64,
    /// The latest due time of the messages without a TTL. The last of them to leave has it.
    last_plain: u64,
}

impl Delayed {
    pub(crate) fn len(&self) -> u64 {
        (self.plain.len + self.expiring.len) as u64
    }

    /// Body bytes of all messages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push(&mut self, message: &DelayedMessage) {
        let held = message.requeued.held;
        self.bytes += u64::from(held.body);
        let plain = PlainRecord::new(message);
        match held.expires {
            0 => {
                if self.plain.len == 0 {
                    self.last_plain = 0;
                }
                self.last_plain = self.last_plain.max(message.due);
                self.plain.push(plain);
            }
            expires => self.expiring.push(ExpiringRecord { plain, expires }),
        }
    }

    /// When the next message leaves.
    pub(crate) fn next(&self) -> Option<u64> {
        let plain = self.plain.peek().map(Record::key);
        let expiring = self.expiring.peek().map(Record::key);
        let (at, _) = plain.into_iter().chain(expiring).min()?;
        Some(at)
    }

    /// Removes and returns the next message if it leaves at this time or earlier.
    pub(crate) fn pop(&mut self, clock: u64) -> Option<DelayedMessage> {
        let next = self.next()?;
        if next > clock && !planted::is(Bug::DelayIgnored) {
            return None;
        }
        let plain = self.plain.peek().map(Record::key);
        let expiring = self.expiring.peek().map(Record::key);
        let is_plain = match (plain, expiring) {
            (Some(plain), Some(expiring)) => plain < expiring,
            (plain, _) => plain.is_some(),
        };
        let message = match is_plain {
            true => self.plain.pop()?.message(),
            false => self.expiring.pop()?.message(),
        };
        self.bytes -= u64::from(message.requeued.held.body);
        debug_assert!(self.len() > 0 || self.bytes == 0);
        Some(message)
    }

    /// Removes and returns the message at a location, however long it waits. Looks at all messages: a queue with a million
    /// of them needs some milliseconds.
    #[cold]
    pub(crate) fn take_at(&mut self, at: LogLocation) -> Option<DelayedMessage> {
        let message = match self.plain.take_at(at) {
            Some(record) => {
                if record.due == self.last_plain {
                    let due = self.plain.iter().map(|record| record.due);
                    self.last_plain = due.max().unwrap_or(0);
                }
                record.message()
            }
            None => self.expiring.take_at(at)?.message(),
        };
        self.bytes -= u64::from(message.requeued.held.body);
        debug_assert!(self.len() > 0 || self.bytes == 0);
        Some(message)
    }

    /// Drops all messages. Returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        std::mem::take(self).len()
    }

    /// All messages, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = DelayedMessage> + '_ {
        let plain = self.plain.iter().map(Record::message);
        plain.chain(self.expiring.iter().map(Record::message))
    }

    /// All messages and those that were taken, in the order in which they are due.
    pub(crate) fn sorted(
        &self,
        taken: impl Iterator<Item = DelayedMessage>,
    ) -> impl ExactSizeIterator<Item = DelayedMessage> {
        let plain = self.plain.iter().map(|plain| ExpiringRecord {
            plain: *plain,
            expires: 0,
        });
        let expiring = self.expiring.iter().copied();
        let taken = taken.map(|message| ExpiringRecord {
            plain: PlainRecord::new(&message),
            expires: message.requeued.held.expires,
        });
        // Sorting takes a large part of the time of a checkpoint. Records are shorter than messages, and a stable sort is faster
        // if the heap has long ascending runs, as when all messages have the same delay.
        let mut all = Vec::with_capacity(self.plain.len + self.expiring.len);
        all.extend(plain.chain(expiring).chain(taken));
        all.sort_by_key(|record| record.plain.key());
        all.into_iter().map(|record| record.message())
    }

    /// Counts for listings. `None`: there is no message.
    pub(crate) fn details(&self) -> Option<DelayedDetails> {
        let due = |record: &ExpiringRecord| record.plain.due;
        let plain = self.plain.peek().map(|first| (first.due, self.last_plain));
        let expiring = self.expiring.iter().map(due);
        let expiring = expiring.fold(None, |range, due| {
            let (first, last) = range.unwrap_or((due, due));
            Some((due.min(first), due.max(last)))
        });
        let ranges = plain.into_iter().chain(expiring);
        let (next_at, last_at) = ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        Some(DelayedDetails {
            messages: self.len(),
            bytes: self.bytes,
            next_at,
            last_at,
        })
    }

    /// Bytes of memory, capacity included.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.plain.memory() + self.expiring.memory()
    }
}
