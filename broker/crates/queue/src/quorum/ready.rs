//! The messages that wait, by reference to the log: 12 bytes each, 20 with a time to live (Q3, Q7).

use crate::checkout::Taken;
use std::collections::{BTreeMap, VecDeque};

/// Messages in one chunk of a lane.
const CHUNK: usize = 1024;
/// High-priority messages in a row while normal ones wait (Q7).
const HIGH_IN_A_ROW: u8 = 2;

/// A message of the log, out or returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub index: u64,
    /// Of the message's length in the entry's command.
    pub offset: u32,
    pub body: u32,
    pub high: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
}

impl Held {
    fn key(&self) -> (u64, u32) {
        (self.index, self.offset)
    }
}

#[derive(Clone, Copy, Debug)]
struct Packed {
    delta: u32,
    offset: u32,
    body: u32,
}

#[derive(Debug)]
struct Chunk {
    base: u64,
    items: Vec<Packed>,
    /// As long as `items` when any of them expires, else empty.
    expires: Vec<u64>,
    front: usize,
}

impl Chunk {
    fn get(&self, at: usize, high: bool) -> Option<Held> {
        let packed = self.items.get(at)?;
        Some(Held {
            index: self.base.wrapping_add(packed.delta.into()),
            offset: packed.offset,
            body: packed.body,
            high,
            expires: self.expires.get(at).copied().unwrap_or(0),
        })
    }

    /// False when it has no room for this one.
    fn push(&mut self, held: &Held) -> bool {
        let delta = held.index.checked_sub(self.base);
        let Some(delta) = delta.and_then(|d| u32::try_from(d).ok()) else {
            return false;
        };
        if self.items.len() >= CHUNK {
            return false;
        }
        if held.expires != 0 && self.expires.is_empty() {
            self.expires.resize(self.items.len(), 0);
        }
        if held.expires != 0 || !self.expires.is_empty() {
            self.expires.push(held.expires);
        }
        self.items.push(Packed {
            delta,
            offset: held.offset,
            body: held.body,
        });
        true
    }
}

/// Messages of one priority in log order; returned ones go back to their place.
#[derive(Debug, Default)]
struct Lane {
    high: bool,
    /// Published and never taken. Their indexes are above those of all that were taken.
    chunks: VecDeque<Chunk>,
    returned: BTreeMap<(u64, u32), (Held, u32)>,
}

impl Lane {
    fn push(&mut self, held: &Held) {
        if self.chunks.back_mut().is_some_and(|c| c.push(held)) {
            return;
        }
        // A long lane gets whole chunks at once; a short one grows with what it has.
        let room = if self.chunks.is_empty() { 4 } else { CHUNK };
        let mut chunk = Chunk {
            base: held.index,
            items: Vec::with_capacity(room),
            expires: Vec::new(),
            front: 0,
        };
        chunk.push(held);
        self.chunks.push_back(chunk);
    }

    fn peek(&self) -> Option<Held> {
        if let Some((held, _)) = self.returned.values().next() {
            return Some(*held);
        }
        let chunk = self.chunks.front()?;
        chunk.get(chunk.front, self.high)
    }

    fn pop(&mut self) -> Option<Taken<Held>> {
        if let Some((_, (item, attempts))) = self.returned.pop_first() {
            return Some(Taken {
                item,
                attempts,
                redelivered: true,
            });
        }
        let chunk = self.chunks.front_mut()?;
        let item = chunk.get(chunk.front, self.high)?;
        chunk.front += 1;
        if chunk.front >= chunk.items.len() {
            self.chunks.pop_front();
        }
        Some(Taken {
            item,
            attempts: 0,
            redelivered: false,
        })
    }

    fn fresh(&self) -> impl Iterator<Item = Held> + '_ {
        self.chunks
            .iter()
            .flat_map(|c| (c.front..c.items.len()).filter_map(|at| c.get(at, self.high)))
    }

    fn clear(&mut self) {
        self.chunks = VecDeque::new();
        self.returned.clear();
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ready {
    high: Lane,
    normal: Lane,
    /// Where in the cycle of two high and one normal it is.
    pub turn: u8,
    len: u64,
    /// Body bytes of what waits.
    bytes: u64,
}

impl Ready {
    pub fn new() -> Ready {
        Ready {
            high: Lane {
                high: true,
                ..Lane::default()
            },
            normal: Lane::default(),
            turn: 0,
            len: 0,
            bytes: 0,
        }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn lane(&mut self, high: bool) -> &mut Lane {
        if high {
            &mut self.high
        } else {
            &mut self.normal
        }
    }

    /// A new message, after all others.
    pub fn push(&mut self, held: &Held) {
        self.len += 1;
        self.bytes += u64::from(held.body);
        self.lane(held.high).push(held);
    }

    pub fn give_back(&mut self, held: Held, attempts: u32) {
        self.len += 1;
        self.bytes += u64::from(held.body);
        self.lane(held.high)
            .returned
            .insert(held.key(), (held, attempts));
    }

    /// Two high to one normal, but a normal one never passes a high one that was published before it.
    fn next_is_high(&self) -> Option<bool> {
        match (self.high.peek(), self.normal.peek()) {
            (None, None) => None,
            (Some(_), None) => Some(true),
            (None, Some(_)) => Some(false),
            (Some(high), Some(normal)) => {
                Some(self.turn < HIGH_IN_A_ROW || high.key() < normal.key())
            }
        }
    }

    pub fn pop(&mut self) -> Option<Taken<Held>> {
        let high = self.next_is_high()?;
        self.turn = match self.turn {
            turn if turn >= HIGH_IN_A_ROW => 0,
            turn => turn + 1,
        };
        self.pop_lane(high)
    }

    fn pop_lane(&mut self, high: bool) -> Option<Taken<Held>> {
        let taken = self.lane(high).pop()?;
        self.len -= 1;
        self.bytes -= u64::from(taken.item.body);
        Some(taken)
    }

    /// The head of a lane if its time has passed (Q13: only heads expire).
    pub fn pop_expired(&mut self, clock: u64) -> Option<Held> {
        let due = |lane: &Lane| {
            lane.peek()
                .is_some_and(|h| h.expires != 0 && h.expires <= clock)
        };
        let high = if due(&self.high) {
            true
        } else if due(&self.normal) {
            false
        } else {
            return None;
        };
        self.pop_lane(high).map(|taken| taken.item)
    }

    /// When the next head expires.
    pub fn next_expiry(&self) -> Option<u64> {
        [self.high.peek(), self.normal.peek()]
            .into_iter()
            .flatten()
            .map(|held| held.expires)
            .filter(|expires| *expires != 0)
            .min()
    }

    pub fn clear(&mut self) -> u64 {
        let dropped = self.len;
        self.high.clear();
        self.normal.clear();
        self.len = 0;
        self.bytes = 0;
        dropped
    }

    pub fn fresh(&self) -> impl Iterator<Item = Held> + '_ {
        self.high.fresh().chain(self.normal.fresh())
    }

    pub fn returned(&self) -> impl Iterator<Item = (Held, u32)> + '_ {
        let both = self
            .high
            .returned
            .values()
            .chain(self.normal.returned.values());
        both.copied()
    }

    /// Bytes of memory for what was published and never taken, capacity included.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        let lanes = [&self.high, &self.normal];
        lanes
            .into_iter()
            .map(|lane| {
                let chunks = lane.chunks.capacity() * size_of::<Chunk>();
                let items = lane.chunks.iter().map(|c| {
                    c.items.capacity() * size_of::<Packed>()
                        + c.expires.capacity() * size_of::<u64>()
                });
                chunks + items.sum::<usize>()
            })
            .sum()
    }
}
