//! Where the messages of a classic queue are, by priority (`x-max-priority`; one lane without) and front to back: given
//! back; read ahead; on disk; not yet written.
//!
//! Memory is bounded whatever the depth: the write buffer, a read-ahead window for each priority in use, and what is out
//! to consumers (positions only, once written).

mod priority_levels;

use super::dead_letter_buffer::DeadLetterBuffer;
use super::location::{MessageLocation, PendingWrite};
use super::pacing::WritePacing;
use super::segments::Segments;
use crate::checkout::{Dequeued, HandedOut, MessageStore, RequeueReason, Weighed};
use crate::{Annotations, DeadReason, Delivery, Losses, QueueEvent, QueueOutput, SessionId};
use env::planted::{self, Bug};
use env::{Disk, Incarnation, WallTime};
use ids::QueueId;
use message::Message;
use priority_levels::PriorityLevel;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

/// The write buffer is written when it holds this much.
pub const BUFFER_BYTES: usize = 64 << 10;
pub const BUFFER_MESSAGES: usize = 2048;

/// A message that is out or was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub seq: u64,
    pub body: u32,
    pub persistent: bool,
    /// Its priority, as far as the queue has that many.
    pub lane: u8,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
}

impl Weighed for Item {
    fn body(&self) -> u64 {
        self.body.into()
    }
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
pub(super) struct ClassicStore {
    pub segments: Segments,
    /// The node's life.
    incarnation: Incarnation,
    /// A clean stop has left word of what was never delivered.
    stopped: bool,
    /// Not written yet, by consecutive number from `base`.
    slots: VecDeque<Slot>,
    base: u64,
    buffered: usize,
    /// By priority; at least one.
    lanes: Vec<PriorityLevel>,
    /// No lane above this one has ready messages.
    top: usize,
    /// Written messages that are out or given back.
    held: BTreeMap<u64, MessageLocation>,
    /// What was taken last, while its delivery is made.
    hand: Option<(u64, Message)>,
    ready: u64,
    ready_bytes: u64,
    out_bytes: u64,
    pub message_ttl_ms: Option<u64>,
    /// The time of the step that is carried out.
    pub wall: WallTime,
    pub pacing: WritePacing,
    /// Some of what is ready may expire.
    pub may_expire: bool,
    pub dead_letter_buffer: DeadLetterBuffer,
    /// Sessions for which something became safe.
    pub safer: BTreeSet<SessionId>,
    pub output: QueueOutput,
    /// Reading failed: nothing is read until it is tried again.
    pub stalled: bool,
    /// It was told that reading fails, and it has not worked since.
    pub(super) told_unreadable: bool,
    pub lost: Losses,
}

impl ClassicStore {
    pub fn new(
        disk: Arc<dyn Disk>,
        queue: QueueId,
        max_priority: u8,
        incarnation: Incarnation,
    ) -> ClassicStore {
        let mut lanes = Vec::new();
        lanes.resize_with(usize::from(max_priority) + 1, PriorityLevel::default);
        ClassicStore {
            segments: Segments::new(disk, queue),
            incarnation,
            stopped: false,
            slots: VecDeque::new(),
            base: 1,
            buffered: 0,
            lanes,
            top: 0,
            held: BTreeMap::new(),
            hand: None,
            ready: 0,
            ready_bytes: 0,
            out_bytes: 0,
            message_ttl_ms: None,
            wall: WallTime(0),
            pacing: WritePacing::default(),
            may_expire: false,
            dead_letter_buffer: DeadLetterBuffer::default(),
            safer: BTreeSet::new(),
            output: QueueOutput::default(),
            stalled: false,
            told_unreadable: false,
            lost: Losses::default(),
        }
    }

    /// On an error it is as before, and the call may be repeated.
    pub fn recover(&mut self) -> io::Result<()> {
        let mut found = match self.segments.recover(self.incarnation) {
            Ok(found) => found,
            Err(error) => {
                self.segments.reset();
                return Err(error);
            }
        };
        self.base = found.last_seq.saturating_add(1).max(1);
        for (lane, messages) in found.messages {
            let at = usize::from(lane);
            if at >= self.lanes.len() {
                // Of a queue that had more priorities: still delivered.
                self.lanes.resize_with(at + 1, PriorityLevel::default);
            }
            let cursor = self.first_location(lane);
            // Whatever is said of numbers that are given anew counts for nothing.
            let undelivered = found.undelivered.remove(&lane);
            let undelivered = undelivered.map_or(self.base, |from| from.min(self.base));
            if let Some(lane) = self.lanes.get_mut(at) {
                lane.backlog = messages;
                lane.ready = messages;
                lane.cursor = cursor;
                lane.undelivered = undelivered;
                self.top = self.top.max(at);
            }
            self.ready = self.ready.saturating_add(messages);
        }
        self.ready_bytes = found.bytes;
        self.may_expire = found.may_expire;
        self.output.faults.extend(found.faults);
        self.lost = found.lost;
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.ready_bytes + self.out_bytes
    }

    pub fn out_bytes(&self) -> u64 {
        self.out_bytes
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
        let highest = self.lanes.len().saturating_sub(1);
        let lane = usize::from(message.priority().unwrap_or(0)).min(highest);
        let item = Item {
            seq,
            body,
            persistent: message.durable(),
            lane: u8::try_from(lane).unwrap_or(u8::MAX),
            expires: self.expires(&message),
        };
        self.count_ready(&item);
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.fresh.push_back(seq);
        }
        self.buffered += message.as_bytes().len();
        self.pacing.published();
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
        ttl.map_or(0, |ttl| self.wall.0.saturating_add(ttl).max(1))
    }

    fn count_ready(&mut self, item: &Item) {
        self.ready += 1;
        self.ready_bytes += u64::from(item.body);
        self.may_expire |= item.expires != 0;
        self.top = self.top.max(item.lane.into());
        if let Some(lane) = self.lane(item.lane) {
            lane.ready += 1;
        }
    }

    /// Whether a message is as safe as it gets: written, or settled already.
    pub fn is_safe(&self, seq: u64) -> bool {
        let Some(at) = seq.checked_sub(self.base) else {
            return true;
        };
        let slot = self.slots.get(at as usize);
        slot.is_some_and(|s| s.state == State::Gone) || planted::is(Bug::ClassicConfirmEarly)
    }

    /// Writes the buffer. On an error everything stays as it was and can be tried again.
    pub fn write(&mut self) -> io::Result<()> {
        let wanted = |s: &&Slot| s.state != State::Gone;
        let drafts: Vec<PendingWrite<'_>> = self
            .slots
            .iter()
            .filter(wanted)
            .filter_map(|s| {
                let message = s.message.as_ref()?;
                Some(PendingWrite {
                    seq: s.item.seq,
                    lane: s.item.lane,
                    persistent: s.item.persistent,
                    expires: s.item.expires,
                    body: s.item.body,
                    message,
                })
            })
            .collect();
        let places = self.segments.append(&drafts)?;
        self.pacing.wrote(self.base);
        let mut places = places.into_iter();
        let slots = std::mem::take(&mut self.slots);
        self.base += slots.len() as u64;
        self.buffered = 0;
        for lane in &mut self.lanes {
            lane.fresh.clear();
        }
        for slot in slots {
            if slot.item.persistent {
                self.safer.insert(slot.session);
            }
            let message = slot.message.filter(|_| slot.state != State::Gone);
            let Some(message) = message else { continue };
            let Some(location) = places.next() else { break };
            match slot.state {
                State::Fresh => self.shelve(slot.item, message, location),
                _ => {
                    self.held.insert(slot.item.seq, location);
                }
            }
        }
        Ok(())
    }

    /// A clean stop: leaves word of what was never delivered, if there is anything on the disk that was not.
    pub fn leave_stopped(&mut self) -> io::Result<()> {
        let new = |lane: &PriorityLevel| lane.ready > lane.returned.len() as u64;
        if !self.lanes.iter().any(new) {
            return self.revoke_stopped();
        }
        let lanes = (0..=u8::MAX).zip(&self.lanes);
        let lanes = lanes.map(|(number, lane)| (number, lane.undelivered));
        self.segments
            .leave_stopped(self.incarnation, &lanes.collect())?;
        self.stopped = true;
        Ok(())
    }

    /// Something is delivered after that.
    fn revoke_stopped(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.stopped) {
            true => self.segments.revoke_stopped(),
            false => Ok(()),
        }
    }

    /// Whether the message that is next can be had: false while it lies in a file that cannot be read now.
    pub fn can_read_head(&mut self) -> bool {
        self.head_expires();
        !self.stalled
    }

    /// Messages cannot be read or written. Files that are gone do not come back.
    pub(super) fn cannot(&mut self, what: &str, error: &io::Error) {
        let fault = format!("classic queue {what}: {error}");
        if error.kind() == io::ErrorKind::NotFound {
            self.output.gone.get_or_insert_with(|| fault.clone());
        }
        self.output.faults.push(fault);
    }

    pub(super) fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.output
                .faults
                .push(format!("classic queue's files: {error}"));
        }
    }

    fn out_of_ready(&mut self, item: &Item) {
        self.ready = self.ready.saturating_sub(1);
        self.ready_bytes = self.ready_bytes.saturating_sub(item.body.into());
        self.out_bytes += u64::from(item.body);
        self.may_expire &= self.ready > 0;
        if let Some(lane) = self.lane(item.lane) {
            lane.ready = lane.ready.saturating_sub(1);
        }
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        let at = seq.checked_sub(self.base)?;
        self.slots.get_mut(usize::try_from(at).ok()?)
    }

    pub(super) fn message(&mut self, seq: u64) -> io::Result<Message> {
        if let Some((at_hand, message)) = &self.hand
            && *at_hand == seq
        {
            return Ok(message.clone());
        }
        if let Some(message) = self.slot(seq).and_then(|slot| slot.message.clone()) {
            return Ok(message);
        }
        match self.held.get(&seq) {
            Some(location) => self.segments.read_one(*location),
            None => Err(io::Error::other(format!("message {seq} is nowhere"))),
        }
    }

    /// Drops heads whose time has passed; returns when the next one's comes.
    pub fn expire(&mut self) -> Option<WallTime> {
        while let Some(expires) = self.head_expires() {
            if expires == 0 {
                return None;
            }
            if expires > self.wall.0 {
                return Some(WallTime(expires));
            }
            let taken = self.take_head()?;
            self.dead(taken.item, DeadReason::Expired);
        }
        None
    }

    /// Drops the head because there is too much.
    pub fn drop_head(&mut self) -> bool {
        match self.take_head() {
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
        for lane in &mut self.lanes {
            *lane = PriorityLevel::default();
        }
        self.held.clear();
        self.dead_letter_buffer.clear();
        self.buffered = 0;
        self.ready = 0;
        self.ready_bytes = 0;
        self.out_bytes = 0;
    }

    /// Gone slots at the front need no place any more.
    fn trim(&mut self) {
        while self.slots.front().is_some_and(|s| s.state == State::Gone) {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// Settled or dropped: out of the buffer, or out of its segment.
    pub(super) fn finish(&mut self, item: &Item) {
        self.hand = None;
        if let Some(slot) = self.slot(item.seq) {
            let len = slot.message.take().map_or(0, |m| m.as_bytes().len());
            slot.state = State::Gone;
            let session = slot.session;
            self.buffered = self.buffered.saturating_sub(len);
            self.pacing.settled_unwritten();
            if item.persistent {
                self.safer.insert(session);
            }
            self.trim();
        } else if let Some(location) = self.held.remove(&item.seq) {
            self.pacing.settled_written(item.seq);
            let result = self
                .segments
                .settle(location.segment, item.seq, item.persistent);
            self.note(result);
        }
    }
}

impl MessageStore for ClassicStore {
    type Item = Item;

    fn ready(&self) -> u64 {
        self.ready
    }

    /// Messages whose time has passed die on the way. One that may live no time at all may still be taken at once.
    fn take(&mut self) -> Option<Dequeued<Item>> {
        loop {
            let taken = self.take_head()?;
            if taken.item.expires == 0 || taken.item.expires >= self.wall.0 {
                return Some(taken);
            }
            self.dead(taken.item, DeadReason::Expired);
        }
    }

    /// Back to its place among those of its priority.
    fn give_back(&mut self, item: Item, _attempts: u32, why: RequeueReason) {
        let redelivered = match why {
            RequeueReason::Unseen { redelivered } => redelivered,
            RequeueReason::Asked | RequeueReason::Lost | RequeueReason::InFront => true,
        };
        self.count_ready(&item);
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        if let Some(lane) = self.lane(item.lane) {
            lane.returned.insert(item.seq, (item, redelivered));
        }
    }

    fn settled(&mut self, item: Item) {
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        self.finish(&item);
    }

    /// A classic queue does not keep annotations, as RabbitMQ's does not.
    fn annotate(&mut self, _item: &Item, _annotations: &Arc<Annotations>) {}

    fn dead(&mut self, item: Item, reason: DeadReason) {
        self.count_death(reason);
        if !self.dead_letter_buffer.open {
            return self.settled(item);
        }
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        let at_hand = self.hand.as_ref().filter(|(seq, _)| *seq == item.seq);
        let message = at_hand.map(|(_, message)| message);
        self.dead_letter_buffer.bury(item, reason, message);
    }

    fn deliver(&mut self, handed: HandedOut, item: &Item) {
        if self.stopped {
            let revoked = self.revoke_stopped();
            self.note(revoked);
        }
        if let Some(lane) = self.lane(item.lane) {
            lane.undelivered = lane.undelivered.max(item.seq.saturating_add(1));
        }
        match self.message(item.seq) {
            Ok(message) => self.output.deliver(
                handed.session,
                handed.consumer,
                Delivery {
                    id: handed.id,
                    redelivered: handed.redelivered,
                    attempts: None,
                    left: match handed.numbered {
                        true => item.seq,
                        false => handed.left,
                    },
                    message,
                    annotations: None,
                },
            ),
            Err(error) => self.cannot("cannot be read", &error),
        }
    }

    fn event(&mut self, session: SessionId, event: QueueEvent) {
        self.output.event(session, event);
    }

    fn expire_head(&mut self, _no_ack: bool) {
        if self.may_expire {
            self.expire();
        }
    }

    fn purge(&mut self) -> u64 {
        let purged = self.ready;
        for lane in std::mem::take(&mut self.lanes) {
            for (seq, (item, _)) in lane.returned {
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
            self.lanes.push(PriorityLevel {
                undelivered: lane.undelivered,
                ..PriorityLevel::default()
            });
        }
        for slot in self.slots.iter_mut().filter(|s| s.state == State::Fresh) {
            slot.state = State::Gone;
            slot.message = None;
            self.safer.insert(slot.session);
        }
        let result = self.segments.keep_only(&self.held);
        self.note(result);
        self.buffered = self
            .slots
            .iter()
            .filter_map(|s| s.message.as_ref())
            .map(|m| m.as_bytes().len())
            .sum();
        self.trim();
        self.may_expire = false;
        self.ready = 0;
        self.ready_bytes = 0;
        purged
    }
}

#[cfg(test)]
impl ClassicStore {
    /// Messages in memory, or remembered one by one.
    pub fn memory_messages(&self) -> usize {
        let lanes = self.lanes.iter();
        let lanes = lanes.map(|l| l.window.len() + l.returned.len() + l.fresh.len());
        self.slots.len() + self.held.len() + lanes.sum::<usize>()
    }
}
