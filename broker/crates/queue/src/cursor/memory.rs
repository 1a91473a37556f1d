//! A log-structured queue in memory, to prove the interface. Batches keep their boundaries, as chunks of streams do.

use super::{
    AddressedCursorEvent, CursorEvent, CursorRequest, CursorSource, CursorStart, MessageBatch,
};
use crate::{ConsumerId, Name, SessionId};
use bytes::Bytes;
use env::WallTime;
use std::collections::{BTreeMap, VecDeque};

/// Messages that a producer publishes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryBatch {
    /// The name of the producer, if it wants its messages to be deduplicated.
    pub(super) producer: Option<Name>,
    /// The sequence number of each message, ascending, if there is a producer. The queue drops messages whose number is
    /// not higher than the highest one of the producer so far.
    pub(super) sequences: Vec<u64>,
    /// The encoded messages; as many as `sequences` if there is a producer.
    pub(super) messages: Vec<Bytes>,
}

impl MemoryBatch {
    /// Returns true if every message has a sequence number, or none has, and the numbers ascend.
    pub(super) fn is_valid(&self) -> bool {
        match self.producer {
            None => self.sequences.is_empty(),
            Some(_) => {
                self.sequences.len() == self.messages.len()
                    && self.sequences.is_sorted_by(|a, b| a < b)
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Chunk {
    first: u64,
    received: WallTime,
    messages: Vec<Bytes>,
}

#[derive(Clone, Debug)]
struct Cursor {
    attachment: u32,
    next: u64,
    sent: u64,
    total: u64,
}

/// One replica. A test copies committed chunks from one to another with [`MemoryLog::replicate`].
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryLog {
    chunks: VecDeque<Chunk>,
    next: u64,
    sequences: BTreeMap<Name, u64>,
    cursors: BTreeMap<(SessionId, ConsumerId), Cursor>,
}

impl MemoryLog {
    /// Appends the messages of a batch that are not duplicates. Returns how many these are.
    pub(super) fn publish(&mut self, at: WallTime, batch: MemoryBatch) -> usize {
        assert!(batch.is_valid());
        let mut messages = batch.messages;
        if let Some(producer) = batch.producer {
            let highest = self.sequences.get(&producer).copied();
            let mut sequences = batch.sequences.iter();
            messages.retain(|_| sequences.next().copied() > highest);
            let newest = batch.sequences.last().copied().max(highest);
            self.sequences
                .extend(newest.map(|newest| (producer, newest)));
        }
        let count = messages.len();
        if count > 0 {
            self.chunks.push_back(Chunk {
                first: self.next,
                received: at,
                messages,
            });
            self.next += count as u64;
        }
        count
    }

    /// Copies what `leader` has and this replica has not.
    pub(super) fn replicate(&mut self, leader: &MemoryLog) {
        let next = self.next;
        let missing = leader.chunks.iter().filter(|chunk| chunk.first >= next);
        self.chunks.extend(missing.cloned());
        self.next = leader.next;
        self.sequences = leader.sequences.clone();
    }

    /// Drops all messages below an offset, chunk by chunk.
    pub(super) fn truncate(&mut self, below: u64) {
        while let Some(chunk) = self.chunks.front() {
            if chunk.first + chunk.messages.len() as u64 > below {
                break;
            }
            self.chunks.pop_front();
        }
    }

    pub(super) fn first(&self) -> u64 {
        self.chunks.front().map_or(self.next, |chunk| chunk.first)
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn forget_cursors(&mut self) {
        self.cursors.clear();
    }

    fn resolve(&self, start: CursorStart) -> u64 {
        match start {
            CursorStart::First => self.first(),
            CursorStart::Last => self.chunks.back().map_or(self.next, |chunk| chunk.first),
            CursorStart::Next => self.next,
            CursorStart::Offset(offset) => offset,
            CursorStart::Timestamp(time) => {
                let chunk = self.chunks.iter().find(|chunk| chunk.received >= time);
                chunk.map_or(self.next, |chunk| chunk.first)
            }
        }
    }

    /// The messages from an offset to the end of its chunk.
    fn read(&self, from: u64) -> Option<MessageBatch> {
        let end = |chunk: &Chunk| chunk.first + chunk.messages.len() as u64;
        let chunk = self.chunks.iter().find(|chunk| end(chunk) > from)?;
        let skipped = from.saturating_sub(chunk.first) as usize;
        let messages = &chunk.messages[skipped..];
        Some(MessageBatch {
            from,
            first: chunk.first + skipped as u64,
            count: messages.len() as u32,
            received: chunk.received,
            bytes: messages.concat().into(),
        })
    }
}

impl CursorSource for MemoryLog {
    fn handle(
        &mut self,
        session: SessionId,
        request: CursorRequest,
        out: &mut Vec<AddressedCursorEvent>,
    ) {
        match request {
            CursorRequest::Attach {
                cursor,
                attachment,
                spec,
                total,
            } => {
                let next = self.resolve(spec.start);
                // A replica that has not got so far cannot tell what comes there.
                let event = match next > self.next {
                    true => CursorEvent::Detached { cursor, attachment },
                    false => CursorEvent::Attached {
                        cursor,
                        attachment,
                        next,
                    },
                };
                if matches!(event, CursorEvent::Attached { .. }) {
                    let state = Cursor {
                        attachment,
                        next,
                        sent: 0,
                        total,
                    };
                    self.cursors.insert((session, cursor), state);
                }
                out.push(AddressedCursorEvent { session, event });
            }
            CursorRequest::Credit {
                cursor,
                attachment,
                total,
                probe,
            } => match self.cursors.get_mut(&(session, cursor)) {
                Some(state) if state.attachment == attachment => {
                    state.total = state.total.max(total);
                    let next = state.next;
                    let event = CursorEvent::Attached {
                        cursor,
                        attachment,
                        next,
                    };
                    out.extend(probe.then_some(AddressedCursorEvent { session, event }));
                }
                Some(_) => {}
                None => out.push(AddressedCursorEvent {
                    session,
                    event: CursorEvent::Detached { cursor, attachment },
                }),
            },
            CursorRequest::Detach { cursor } => {
                self.cursors.remove(&(session, cursor));
            }
        }
    }

    fn send_batches(&mut self, max_bytes: usize, out: &mut Vec<AddressedCursorEvent>) -> bool {
        let mut left = max_bytes;
        let keys: Vec<_> = self.cursors.keys().copied().collect();
        for key in keys {
            let (session, cursor) = key;
            while let Some(state) = self.cursors.get(&key)
                && state.sent < state.total
                && let Some(batch) = self.read(state.next)
            {
                if left == 0 {
                    return true;
                }
                left = left.saturating_sub(batch.bytes.len().max(1));
                let attachment = state.attachment;
                if let Some(state) = self.cursors.get_mut(&key) {
                    state.sent += 1;
                    state.next = batch.next();
                }
                let event = CursorEvent::Batch {
                    cursor,
                    attachment,
                    batch,
                };
                out.push(AddressedCursorEvent { session, event });
            }
        }
        false
    }

    fn session_gone(&mut self, session: SessionId) {
        self.cursors.retain(|(of, _), _| *of != session);
    }
}
