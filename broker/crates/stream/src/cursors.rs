//! Cursors of a replica: positions, credit, and the reads that they wait for.

use crate::fault::{self, Fault};
use crate::jobs::{ReadJob, ReadResult, Work};
use crate::{MAX_CURSORS, MAX_READS, READ_BYTES, READ_CHUNKS};
use bytes::Bytes;
use env::{Time, WallTime};
use message::{Table, Value};
use queue::cursor::{
    AddressedCursorEvent, CursorEvent, CursorRequest, CursorSpec, CursorStart, MessageBatch,
};
use queue::{ConsumerId, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use stream_log::{ChunkHeader, ChunkKind, ChunkReader, FilterMatcher, LogError, Start, StreamLog};
use stream_tier::Tier;

/// Wait before a read is repeated that failed for lack of descriptors or memory.
const RETRY: Duration = Duration::from_secs(1);

/// A chunk in memory.
#[derive(Clone, Debug)]
pub(crate) struct RecentChunk {
    pub header: ChunkHeader,
    pub bytes: Bytes,
}

impl RecentChunk {
    fn filter(&self) -> &[u8] {
        let start = stream_log::HEADER_BYTES;
        let end = start + usize::from(self.header.filter_len);
        self.bytes.get(start..end).unwrap_or_default()
    }
}

type Key = (SessionId, ConsumerId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for messages, for credit, or for its turn.
    Idle,
    Reading,
}

#[derive(Debug)]
struct Cursor {
    attachment: u32,
    spec: CursorSpec,
    filter: FilterMatcher,
    /// The position that the session knows.
    told: u64,
    /// The position from which to read: chunks that the session does not want lie between.
    next: u64,
    sent: u64,
    total: u64,
    state: State,
    /// The position is not known yet.
    seeks: bool,
    /// The session asks for the position, once everything that the credit allows was sent.
    is_probed: bool,
    is_queued: bool,
    reader: Option<Box<ChunkReader>>,
}

#[derive(Debug)]
struct CursorRead {
    from: u64,
    /// The read skips chunks by the filter of its only cursor.
    is_filtered: bool,
    waiters: Vec<(Key, u32)>,
}

/// The log, as far as cursors need to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEnds {
    pub first: u64,
    /// Everything before it is committed and written.
    pub readable: u64,
    /// If this replica leads: nothing from this offset on exists.
    pub end: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Cursors {
    all: BTreeMap<Key, Cursor>,
    /// Cursors to be served, in turn.
    queue: VecDeque<Key>,
    reads: BTreeMap<u64, CursorRead>,
    /// Cursors whose read failed and is repeated later.
    failed: Vec<Key>,
    retry_at: Option<Time>,
}

/// The matcher of the filter arguments of a consumer.
fn filter_of(arguments: &Table) -> FilterMatcher {
    let values: Vec<&[u8]> = match arguments.get("x-stream-filter") {
        Some(Value::Array(values)) => {
            let texts = values.iter().filter_map(Value::as_str);
            texts.map(str::as_bytes).collect()
        }
        Some(value) => value.as_str().map(str::as_bytes).into_iter().collect(),
        None => Vec::new(),
    };
    let unfiltered = arguments.get("x-stream-match-unfiltered");
    let match_unfiltered = matches!(unfiltered, Some(Value::Bool(true)));
    FilterMatcher::new(values, match_unfiltered)
}

fn is_filtered(arguments: &Table) -> bool {
    arguments.get("x-stream-filter").is_some()
}

impl Cursors {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Cursors, for listings.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, ConsumerId, &CursorSpec)> {
        self.all
            .iter()
            .map(|((session, id), cursor)| (*session, *id, &cursor.spec))
    }

    /// Number of cursors.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// For each cursor the number of committed messages that it has not been sent. A cursor whose position is not known yet
    /// is left out.
    pub(crate) fn lags(
        &self,
        first: u64,
        readable: u64,
    ) -> impl Iterator<Item = (SessionId, ConsumerId, u64)> {
        let known = self.all.iter().filter(|(_, cursor)| !cursor.seeks);
        known.map(move |((session, id), cursor)| {
            let lag = readable.saturating_sub(cursor.next.max(first));
            (*session, *id, lag)
        })
    }

    /// The lowest position from `from` on.
    pub(crate) fn lowest_from(&self, from: u64) -> Option<u64> {
        let positions = self.all.values().map(|cursor| cursor.next);
        positions.filter(|next| *next >= from).min()
    }

    /// Handles a request. `ends` is None while the log cannot be read.
    pub(crate) fn handle(
        &mut self,
        session: SessionId,
        request: CursorRequest,
        ends: Option<LogEnds>,
        out: &mut Vec<AddressedCursorEvent>,
    ) {
        match request {
            CursorRequest::Attach {
                cursor,
                attachment,
                spec,
                total,
            } => {
                let key = (session, cursor);
                self.remove(key);
                let ends = ends.filter(|_| self.all.len() < MAX_CURSORS);
                let Some(ends) = ends else {
                    let event = CursorEvent::Detached { cursor, attachment };
                    return out.push(AddressedCursorEvent { session, event });
                };
                // The position that the session learns, and the one from which to read.
                let position = match spec.start {
                    CursorStart::First => Some((ends.first, ends.first)),
                    CursorStart::Next => Some((ends.readable, ends.readable)),
                    CursorStart::Offset(offset) => {
                        let is_beyond = ends.end.is_some_and(|end| offset > end);
                        Some(match is_beyond {
                            true => (ends.readable, ends.readable),
                            false => (offset, offset.max(ends.first)),
                        })
                    }
                    CursorStart::Last | CursorStart::Timestamp(_) => None,
                };
                let (told, next) = position.unwrap_or_default();
                let filter = filter_of(&spec.arguments);
                let new = Cursor {
                    attachment,
                    spec,
                    filter,
                    told,
                    next,
                    sent: 0,
                    total,
                    state: State::Idle,
                    seeks: position.is_none(),
                    is_probed: false,
                    is_queued: false,
                    reader: None,
                };
                self.all.insert(key, new);
                if position.is_some() {
                    let event = CursorEvent::Attached {
                        cursor,
                        attachment,
                        next: told,
                    };
                    out.push(AddressedCursorEvent { session, event });
                }
                self.enqueue(key);
            }
            CursorRequest::Credit {
                cursor,
                attachment,
                total,
                probe,
            } => {
                let key = (session, cursor);
                match self.all.get_mut(&key) {
                    Some(known) if known.attachment == attachment => {
                        known.total = known.total.max(total);
                        known.is_probed |= probe;
                        self.enqueue(key);
                    }
                    Some(_) => {}
                    None => {
                        let event = CursorEvent::Detached { cursor, attachment };
                        out.push(AddressedCursorEvent { session, event });
                    }
                }
            }
            CursorRequest::Detach { cursor } => self.remove((session, cursor)),
        }
    }

    fn remove(&mut self, key: Key) {
        self.all.remove(&key);
    }

    fn enqueue(&mut self, key: Key) {
        if let Some(cursor) = self.all.get_mut(&key)
            && !cursor.is_queued
            && cursor.state != State::Reading
        {
            cursor.is_queued = true;
            self.queue.push_back(key);
        }
    }

    /// More can be read: serves the cursors that have credit.
    pub(crate) fn readable_advanced(&mut self) {
        let mut waiting = Vec::new();
        for (key, cursor) in &mut self.all {
            if cursor.sent < cursor.total && !cursor.is_queued && cursor.state == State::Idle {
                cursor.is_queued = true;
                waiting.push(*key);
            }
        }
        self.queue.extend(waiting);
    }

    /// Ends the cursors of a session.
    pub(crate) fn end_sessions(&mut self, is_over: impl Fn(&SessionId) -> bool) {
        self.all.retain(|(session, _), _| !is_over(session));
    }

    /// Ends cursors that have read beyond `end`, or all of them.
    pub(crate) fn detach_beyond(&mut self, end: Option<u64>, out: &mut Vec<AddressedCursorEvent>) {
        self.all.retain(|(session, cursor), state| {
            let stays = end.is_some_and(|end| state.next <= end && state.told <= end);
            if !stays {
                let (session, cursor, attachment) = (*session, *cursor, state.attachment);
                let event = CursorEvent::Detached { cursor, attachment };
                out.push(AddressedCursorEvent { session, event });
            }
            stays
        });
    }

    /// The stream is deleted.
    pub(crate) fn refuse_all(&mut self, text: &str, out: &mut Vec<AddressedCursorEvent>) {
        for ((session, cursor), state) in std::mem::take(&mut self.all) {
            let event = CursorEvent::Refused {
                cursor,
                attachment: state.attachment,
                text: text.to_owned(),
            };
            out.push(AddressedCursorEvent { session, event });
        }
        self.queue.clear();
    }

    /// Sends batches as far as credit, memory and `max_bytes` go, and starts reads for the rest. Returns true if more
    /// can be sent at once.
    pub(crate) fn serve(
        &mut self,
        log: &mut StreamLog,
        recent: &VecDeque<RecentChunk>,
        tier: Option<&Tier>,
        max_bytes: usize,
        mut start_read: impl FnMut(Work) -> u64,
        out: &mut Vec<AddressedCursorEvent>,
    ) -> bool {
        let readable = match fault::is(Fault::ReadsUncommitted) {
            true => log.written(),
            false => log.readable(),
        };
        let mut left = max_bytes;
        // Each cursor at most once, so that one that waits for a free read does not spin.
        for _ in 0..self.queue.len() {
            let Some(key) = self.queue.pop_front() else {
                break;
            };
            let Some(cursor) = self.all.get_mut(&key) else {
                continue;
            };
            cursor.is_queued = false;
            if cursor.state == State::Reading {
                continue;
            }
            if !cursor.seeks {
                let local = log.first_offset();
                let is_remote = cursor.next < local
                    && tier.is_some_and(|tier| tier.read_offset(cursor.next, local).is_some());
                // A reader that stays below the position would read what the cursor passes over.
                if is_remote || cursor.next < local {
                    cursor.reader = None;
                }
                if !is_remote {
                    cursor.next = cursor.next.max(local);
                }
                while cursor.sent < cursor.total && cursor.next < readable {
                    if left == 0 {
                        cursor.is_queued = true;
                        self.queue.push_back(key);
                        return true;
                    }
                    let at = recent.partition_point(|c| c.header.next_offset() <= cursor.next);
                    let found = recent
                        .get(at)
                        .filter(|c| c.header.first_offset <= cursor.next);
                    let Some(chunk) = found else { break };
                    cursor.reader = None;
                    left = left.saturating_sub(cursor.take(key, chunk, out).max(1));
                }
                if cursor.sent >= cursor.total || cursor.next >= readable {
                    cursor.reader = None;
                    cursor.answer_probe(key, out);
                    continue;
                }
            }
            // The chunk is on the disk only, or the position has to be found there.
            let is_seeking = cursor.seeks;
            let is_filtered = is_filtered(&cursor.spec.arguments);
            if !is_seeking && !is_filtered {
                let from = cursor.next;
                let shared = self
                    .reads
                    .values_mut()
                    .find(|read| read.from == from && !read.is_filtered);
                if let Some(read) = shared {
                    read.waiters.push((key, cursor.attachment));
                    cursor.state = State::Reading;
                    continue;
                }
            }
            if self.reads.len() >= MAX_READS {
                cursor.is_queued = true;
                self.queue.push_back(key);
                continue;
            }
            let credit = usize::try_from(cursor.total - cursor.sent).unwrap_or(READ_CHUNKS);
            let view = match fault::is(Fault::ReadsUncommitted) {
                true => log.replication_view(),
                false => log.view(),
            };
            let start = match cursor.spec.start {
                CursorStart::Last if is_seeking => Start::Last,
                CursorStart::Timestamp(WallTime(ms)) if is_seeking => {
                    Start::Timestamp(i64::try_from(ms).unwrap_or(i64::MAX))
                }
                _ => Start::Offset(cursor.next),
            };
            let (max_bytes, max_chunks) = match is_seeking {
                true => (0, 0),
                false => (READ_BYTES, credit.clamp(1, READ_CHUNKS)),
            };
            let only = Some(cursor.filter.clone());
            let local = log.first_offset();
            let remote = tier.and_then(|tier| match start {
                Start::Offset(offset) => tier.read_offset(offset, local),
                Start::Timestamp(time) => tier.read_timestamp(time, local),
                _ => None,
            });
            let id = start_read(match remote {
                Some(mut read) => {
                    (read.max_bytes, read.max_chunks) = (max_bytes, max_chunks);
                    read.only = only;
                    Work::ReadRemote(Box::new(read))
                }
                None => Work::Read(Box::new(ReadJob {
                    view,
                    start,
                    reader: cursor.reader.take(),
                    max_bytes,
                    max_chunks,
                    end: readable,
                    only,
                })),
            });
            let read = CursorRead {
                from: cursor.next,
                is_filtered: is_filtered || is_seeking,
                waiters: vec![(key, cursor.attachment)],
            };
            cursor.state = State::Reading;
            self.reads.insert(id, read);
        }
        false
    }

    /// A read is complete. Returns a fault to be logged.
    pub(crate) fn read_done(
        &mut self,
        now: Time,
        id: u64,
        result: ReadResult,
        first_offset: u64,
        out: &mut Vec<AddressedCursorEvent>,
    ) -> Option<String> {
        let read = self.reads.remove(&id)?;
        let ReadResult {
            mut reader,
            chunks,
            next,
            error,
            ..
        } = result;
        let chunks: Vec<RecentChunk> = chunks
            .into_iter()
            .map(|chunk| RecentChunk {
                header: *chunk.header(),
                bytes: chunk.bytes().clone(),
            })
            .collect();
        let mut is_damaged = false;
        for (key, attachment) in read.waiters {
            let Some(cursor) = self.all.get_mut(&key) else {
                continue;
            };
            if cursor.attachment != attachment {
                continue;
            }
            let (session, id) = key;
            let was_seeking = cursor.seeks;
            cursor.state = State::Idle;
            if was_seeking && error.is_none() {
                cursor.seeks = false;
                cursor.next = next.max(first_offset);
                cursor.told = cursor.next;
                let event = CursorEvent::Attached {
                    cursor: id,
                    attachment,
                    next: cursor.next,
                };
                out.push(AddressedCursorEvent { session, event });
                self.enqueue(key);
                continue;
            }
            let before = cursor.next;
            let mut has_all = true;
            for chunk in &chunks {
                if chunk.header.next_offset() <= cursor.next {
                    continue;
                }
                if cursor.sent >= cursor.total {
                    has_all = false;
                    break;
                }
                cursor.take(key, chunk, out);
            }
            if has_all && next > cursor.next {
                cursor.next = next;
            }
            if reader.as_ref().is_some_and(|r| r.offset() == cursor.next) {
                cursor.reader = reader.take();
            }
            match &error {
                None if cursor.next > before => self.enqueue(key),
                None => {}
                // Retention was faster.
                Some(LogError::Deleted { .. }) => {
                    cursor.next = cursor.next.max(first_offset);
                    cursor.reader = None;
                    self.enqueue(key);
                }
                Some(error) if error.is_passing() => {
                    self.failed.push(key);
                    self.retry_at = Some(now + RETRY);
                }
                Some(_) => {
                    is_damaged = true;
                    self.all.remove(&key);
                    let event = CursorEvent::Detached {
                        cursor: id,
                        attachment,
                    };
                    out.push(AddressedCursorEvent { session, event });
                }
            }
        }
        error.filter(|_| is_damaged).map(|error| error.to_string())
    }

    /// When to call [`Cursors::tick`].
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.retry_at
    }

    pub(crate) fn tick(&mut self, now: Time) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            for key in std::mem::take(&mut self.failed) {
                self.enqueue(key);
            }
        }
    }
}

impl Cursor {
    fn answer_probe(&mut self, (session, cursor): Key, out: &mut Vec<AddressedCursorEvent>) {
        if std::mem::take(&mut self.is_probed) {
            let event = CursorEvent::Attached {
                cursor,
                attachment: self.attachment,
                next: self.told,
            };
            out.push(AddressedCursorEvent { session, event });
        }
    }

    /// Sends a chunk, or passes over it. Returns the bytes that were sent.
    fn take(
        &mut self,
        (session, cursor): Key,
        chunk: &RecentChunk,
        out: &mut Vec<AddressedCursorEvent>,
    ) -> usize {
        let header = &chunk.header;
        let next = header.next_offset();
        let is_wanted = header.kind == ChunkKind::Messages && self.filter.may_match(chunk.filter());
        if !is_wanted {
            self.next = next;
            return 0;
        }
        let first = header.first_offset.max(self.next);
        let batch = MessageBatch {
            from: self.told,
            first,
            count: u32::try_from(next - first).unwrap_or(u32::MAX),
            received: WallTime(u64::try_from(header.timestamp).unwrap_or(0)),
            bytes: chunk.bytes.clone(),
        };
        self.next = next;
        self.told = next;
        self.sent += 1;
        let event = CursorEvent::Batch {
            cursor,
            attachment: self.attachment,
            batch,
        };
        out.push(AddressedCursorEvent { session, event });
        chunk.bytes.len()
    }
}
