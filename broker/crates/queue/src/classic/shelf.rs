//! Where the messages of a classic queue are, front to back: given back; read ahead; on disk; not yet written.
//!
//! Memory is bounded whatever the depth: the write buffer, one read-ahead window, and what is out to consumers
//! (positions only, once written).

use super::segments::{Draft, Loaded, Place, Segments};
use crate::checkout::{Handed, Store, Taken};
use crate::{DeadReason, Delivery, Event, Output, SessionId};
use env::{Disk, WallTime};
use message::Message;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

/// The write buffer is written when it holds this much.
pub const BUFFER_BYTES: usize = 64 << 10;
pub const BUFFER_MESSAGES: usize = 2048;
/// Written messages that stay in memory because they are next.
const WINDOW_BYTES: usize = 256 << 10;

/// A message that is out or was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub seq: u64,
    pub body: u32,
    pub persistent: bool,
    pub recovered: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never taken.
    Fresh,
    /// Out, or given back.
    Taken,
    /// Settled before it was written: it never will be.
    Gone,
}

#[derive(Debug)]
struct Slot {
    item: Item,
    message: Option<Message>,
    state: State,
    /// Who waits for it to be safe.
    session: SessionId,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shelf {
    pub segments: Segments,
    /// Not written yet, by consecutive number from `base`.
    slots: VecDeque<Slot>,
    base: u64,
    buffered: usize,
    /// Slots before this one were taken or are gone.
    fresh_at: usize,
    window: VecDeque<Loaded>,
    window_bytes: usize,
    /// Messages on disk that come after the window, and where the first of them is.
    backlog: u64,
    cursor: Option<Place>,
    returned: BTreeMap<u64, (Item, u32)>,
    /// Written messages that are out or given back.
    held: BTreeMap<u64, Place>,
    /// What was taken last, while its delivery is made.
    hand: Option<(u64, Message)>,
    ready: u64,
    ready_bytes: u64,
    out_bytes: u64,
    pub message_ttl_ms: Option<u64>,
    /// Sessions for which something became safe.
    pub safer: BTreeSet<SessionId>,
    pub output: Output,
    /// Reading failed: nothing is read until the next tick.
    pub stalled: bool,
}

impl Shelf {
    pub fn new(disk: Arc<dyn Disk>, dir: String) -> Shelf {
        Shelf {
            segments: Segments::new(disk, dir),
            slots: VecDeque::new(),
            base: 1,
            buffered: 0,
            fresh_at: 0,
            window: VecDeque::new(),
            window_bytes: 0,
            backlog: 0,
            cursor: None,
            returned: BTreeMap::new(),
            held: BTreeMap::new(),
            hand: None,
            ready: 0,
            ready_bytes: 0,
            out_bytes: 0,
            message_ttl_ms: None,
            safer: BTreeSet::new(),
            output: Output::default(),
            stalled: false,
        }
    }

    pub fn recover(&mut self) -> io::Result<()> {
        let found = self.segments.recover()?;
        self.backlog = found.messages;
        self.ready = found.messages;
        self.ready_bytes = found.bytes;
        self.base = found.last_seq.saturating_add(1).max(1);
        self.cursor = self.first_place();
        self.output.faults.extend(found.faults);
        Ok(())
    }

    fn first_place(&self) -> Option<Place> {
        let number = self.segments.list.keys().next()?;
        Some(Place {
            segment: *number,
            offset: 0,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.ready_bytes + self.out_bytes
    }

    pub fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// Something is not written yet.
    pub fn has_unwritten(&self) -> bool {
        !self.slots.is_empty()
    }

    pub fn buffer_is_full(&self) -> bool {
        self.buffered >= BUFFER_BYTES || self.slots.len() >= BUFFER_MESSAGES
    }

    /// Takes a message in; returns its number.
    pub fn push(&mut self, message: Message, session: SessionId) -> u64 {
        let seq = self.base + self.slots.len() as u64;
        let body = u32::try_from(message.body_len()).unwrap_or(u32::MAX);
        let item = Item {
            seq,
            body,
            persistent: message.durable(),
            recovered: false,
            expires: self.expires(&message),
        };
        self.ready += 1;
        self.ready_bytes += u64::from(body);
        self.buffered += message.as_bytes().len();
        self.slots.push_back(Slot {
            item,
            message: Some(message),
            state: State::Fresh,
            session,
        });
        seq
    }

    fn expires(&self, message: &Message) -> u64 {
        let ttl = [message.ttl_ms(), self.message_ttl_ms];
        let ttl = ttl.into_iter().flatten().min();
        ttl.map_or(0, |ttl| message.received().0.saturating_add(ttl).max(1))
    }

    /// Whether a message is as safe as it gets: written, or settled already.
    pub fn is_safe(&self, seq: u64) -> bool {
        let Some(at) = seq.checked_sub(self.base) else {
            return true;
        };
        let slot = self.slots.get(at as usize);
        slot.is_some_and(|s| s.state == State::Gone)
    }

    /// Writes the buffer. On an error everything stays as it was and can be tried again.
    pub fn write(&mut self) -> io::Result<()> {
        let wanted = |s: &&Slot| s.state != State::Gone;
        let drafts: Vec<Draft<'_>> = self
            .slots
            .iter()
            .filter(wanted)
            .filter_map(|s| {
                let message = s.message.as_ref()?;
                Some(Draft {
                    seq: s.item.seq,
                    persistent: s.item.persistent,
                    body: s.item.body,
                    message,
                })
            })
            .collect();
        let places = self.segments.append(&drafts)?;
        let mut places = places.into_iter();
        let slots = std::mem::take(&mut self.slots);
        self.base += slots.len() as u64;
        self.buffered = 0;
        self.fresh_at = 0;
        for slot in slots {
            if slot.item.persistent {
                self.safer.insert(slot.session);
            }
            let message = slot.message.filter(|_| slot.state != State::Gone);
            let Some(message) = message else { continue };
            let Some(place) = places.next() else { break };
            match slot.state {
                State::Fresh => self.shelve(slot.item, message, place),
                _ => {
                    self.held.insert(slot.item.seq, place);
                }
            }
        }
        Ok(())
    }

    /// A written message that nobody took: kept at hand when it is next and there is room.
    fn shelve(&mut self, item: Item, message: Message, place: Place) {
        let len = message.as_bytes().len();
        if self.backlog == 0 && self.window_bytes < WINDOW_BYTES {
            self.window_bytes += len;
            self.window.push_back(Loaded {
                seq: item.seq,
                persistent: item.persistent,
                recovered: false,
                body: item.body,
                place,
                message,
            });
            return;
        }
        if self.backlog == 0 {
            self.cursor = Some(place);
        }
        self.backlog += 1;
        if let Some(segment) = self.segments.list.get_mut(&place.segment) {
            segment.unread += 1;
        }
    }

    /// Reads ahead when the window is empty.
    fn load(&mut self) {
        while self.window.is_empty() && self.backlog > 0 && !self.stalled {
            let Some(cursor) = self.cursor else {
                return self.lost_rest();
            };
            let mut faults = Vec::new();
            let read = self
                .segments
                .read(cursor.segment, cursor.offset, &mut faults);
            self.output.faults.extend(faults);
            match read {
                Ok((loaded, next)) => self.loaded(cursor, loaded, next),
                Err(error) => {
                    self.stalled = true;
                    self.output
                        .faults
                        .push(format!("classic queue cannot be read: {error}"));
                }
            }
        }
    }

    fn loaded(&mut self, cursor: Place, loaded: Vec<Loaded>, next: Option<u64>) {
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
        self.backlog = self.backlog.saturating_sub(count + lost);
        for message in loaded {
            self.window_bytes += message.message.as_bytes().len();
            self.window.push_back(message);
        }
        self.cursor = match next {
            Some(offset) => Some(Place { offset, ..cursor }),
            None => self.segment_after(cursor.segment),
        };
        if lost > 0 {
            self.lose(lost);
            let result = self.segments.lose(cursor.segment, lost);
            self.note(result);
        }
    }

    fn segment_after(&self, number: u32) -> Option<Place> {
        let mut later = self.segments.list.range(number.saturating_add(1)..);
        later.next().map(|(number, _)| Place {
            segment: *number,
            offset: 0,
        })
    }

    /// Messages are gone with damaged records.
    fn lose(&mut self, count: u64) {
        self.ready = self.ready.saturating_sub(count);
        if self.ready == 0 {
            self.ready_bytes = 0;
        }
        self.output
            .faults
            .push(format!("classic queue lost {count} messages to damage"));
    }

    fn lost_rest(&mut self) {
        let rest = std::mem::take(&mut self.backlog);
        self.lose(rest);
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.output
                .faults
                .push(format!("classic queue's files: {error}"));
        }
    }

    fn out_of_ready(&mut self, body: u32) {
        self.ready = self.ready.saturating_sub(1);
        self.ready_bytes = self.ready_bytes.saturating_sub(body.into());
        self.out_bytes += u64::from(body);
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        let at = seq.checked_sub(self.base)?;
        self.slots.get_mut(usize::try_from(at).ok()?)
    }

    fn message(&mut self, seq: u64) -> io::Result<Message> {
        if let Some((at_hand, message)) = &self.hand
            && *at_hand == seq
        {
            return Ok(message.clone());
        }
        if let Some(message) = self.slot(seq).and_then(|slot| slot.message.clone()) {
            return Ok(message);
        }
        match self.held.get(&seq) {
            Some(place) => self.segments.read_one(*place),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("message {seq} is nowhere"),
            )),
        }
    }

    /// When the head expires, if that is known: 0 is never.
    fn head_expires(&mut self) -> Option<u64> {
        if let Some((item, _)) = self.returned.values().next() {
            return Some(item.expires);
        }
        self.load();
        if let Some(first) = self.window.front() {
            return Some(self.expires(&first.message));
        }
        if self.backlog > 0 {
            return None;
        }
        let mut fresh = self.slots.iter().skip(self.fresh_at);
        let next = fresh.find(|s| s.state == State::Fresh);
        next.map(|s| s.item.expires)
    }

    /// Drops heads whose time has passed; returns when the next one's comes.
    pub fn expire(&mut self, wall: WallTime) -> Option<WallTime> {
        while let Some(expires) = self.head_expires() {
            if expires == 0 {
                return None;
            }
            if expires > wall.0 {
                return Some(WallTime(expires));
            }
            let taken = self.take()?;
            self.dead(taken.item, DeadReason::Expired);
        }
        None
    }

    /// Drops the head because there is too much.
    pub fn drop_head(&mut self) -> bool {
        match self.take() {
            Some(taken) => {
                self.dead(taken.item, DeadReason::MaxLength);
                true
            }
            None => false,
        }
    }

    pub fn destroy(&mut self) {
        let result = self.segments.destroy();
        self.note(result);
        self.slots.clear();
        self.window.clear();
        self.returned.clear();
        self.held.clear();
        self.buffered = 0;
        self.fresh_at = 0;
        self.window_bytes = 0;
        self.backlog = 0;
        self.cursor = None;
        self.ready = 0;
        self.ready_bytes = 0;
        self.out_bytes = 0;
    }

    fn take_window(&mut self) -> Option<Taken<Item>> {
        let loaded = self.window.pop_front()?;
        let expires = self.expires(&loaded.message);
        self.window_bytes = self
            .window_bytes
            .saturating_sub(loaded.message.as_bytes().len());
        self.held.insert(loaded.seq, loaded.place);
        self.hand = Some((loaded.seq, loaded.message));
        Some(Taken {
            item: Item {
                seq: loaded.seq,
                body: loaded.body,
                persistent: loaded.persistent,
                recovered: loaded.recovered,
                expires,
            },
            attempts: 0,
            redelivered: loaded.recovered,
        })
    }

    fn take_fresh(&mut self) -> Option<Taken<Item>> {
        while let Some(slot) = self.slots.get_mut(self.fresh_at) {
            self.fresh_at += 1;
            if slot.state == State::Fresh {
                slot.state = State::Taken;
                return Some(Taken {
                    item: slot.item,
                    attempts: 0,
                    redelivered: false,
                });
            }
        }
        None
    }

    /// Gone slots at the front need no place any more.
    fn trim(&mut self) {
        while self.slots.front().is_some_and(|s| s.state == State::Gone) {
            self.slots.pop_front();
            self.base += 1;
            self.fresh_at = self.fresh_at.saturating_sub(1);
        }
    }

    /// Settled or dropped: out of the buffer, or out of its segment.
    fn finish(&mut self, item: &Item) {
        self.hand = None;
        if let Some(slot) = self.slot(item.seq) {
            let len = slot.message.take().map_or(0, |m| m.as_bytes().len());
            slot.state = State::Gone;
            let session = slot.session;
            self.buffered = self.buffered.saturating_sub(len);
            if item.persistent {
                self.safer.insert(session);
            }
            self.trim();
        } else if let Some(place) = self.held.remove(&item.seq) {
            let result = self
                .segments
                .settle(place.segment, item.seq, item.persistent);
            self.note(result);
        }
    }
}

impl Store for Shelf {
    type Item = Item;

    fn ready(&self) -> u64 {
        self.ready
    }

    fn take(&mut self) -> Option<Taken<Item>> {
        self.hand = None;
        let taken = if let Some((_, (item, attempts))) = self.returned.pop_first() {
            Taken {
                item,
                attempts,
                redelivered: true,
            }
        } else {
            self.load();
            match self.take_window() {
                Some(taken) => taken,
                // What is on disk comes first, even while it cannot be read.
                None if self.backlog > 0 => return None,
                None => self.take_fresh()?,
            }
        };
        self.out_of_ready(taken.item.body);
        Some(taken)
    }

    fn give_back(&mut self, item: Item, attempts: u32) {
        self.ready += 1;
        self.ready_bytes += u64::from(item.body);
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        self.returned.insert(item.seq, (item, attempts));
    }

    fn settled(&mut self, item: Item) {
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        self.finish(&item);
    }

    fn dead(&mut self, item: Item, reason: DeadReason) {
        match self.message(item.seq) {
            Ok(message) => self.output.dead.push((reason, message)),
            Err(error) => self.note(Err(error)),
        }
        self.settled(item);
    }

    fn deliver(&mut self, handed: Handed, item: &Item) {
        match self.message(item.seq) {
            Ok(message) => self.output.deliver(
                handed.session,
                handed.consumer,
                Delivery {
                    id: handed.id,
                    redelivered: handed.redelivered,
                    attempts: None,
                    left: handed.left,
                    message,
                },
            ),
            Err(error) => self.note(Err(error)),
        }
    }

    fn event(&mut self, session: SessionId, event: Event) {
        self.output.event(session, event);
    }

    fn purge(&mut self) -> u64 {
        let purged = self.ready;
        for (seq, (item, _)) in std::mem::take(&mut self.returned) {
            let session = self.slot(seq).map(|slot| {
                slot.state = State::Gone;
                slot.message = None;
                slot.session
            });
            if item.persistent {
                self.safer.extend(session);
            }
            self.held.remove(&seq);
        }
        for slot in self.slots.iter_mut().filter(|s| s.state == State::Fresh) {
            slot.state = State::Gone;
            slot.message = None;
            self.safer.insert(slot.session);
        }
        self.window.clear();
        self.window_bytes = 0;
        self.backlog = 0;
        self.cursor = None;
        let result = self.segments.keep_only(&self.held);
        self.note(result);
        self.buffered = self
            .slots
            .iter()
            .filter_map(|s| s.message.as_ref())
            .map(|m| m.as_bytes().len())
            .sum();
        self.trim();
        self.fresh_at = self.slots.len();
        self.ready = 0;
        self.ready_bytes = 0;
        purged
    }
}

#[cfg(test)]
impl Shelf {
    /// Messages in memory, or remembered one by one.
    pub fn memory_messages(&self) -> usize {
        self.slots.len() + self.window.len() + self.held.len() + self.returned.len()
    }
}
