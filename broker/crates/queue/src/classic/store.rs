//! The messages of a classic queue. Each priority of `x-max-priority` has its own level (one level without). A
//! level holds, in delivery order: requeued messages, messages read ahead, messages on disk, and unwritten
//! ones.
//!
//! Memory is bounded at any queue depth: the write buffer, one read-ahead window for each priority in use, and
//! the unsettled messages (once written, only their locations).

mod browse;
mod head;
mod priority_levels;

use super::dead_letter_buffer::DeadLetterBuffer;
use super::location::{MessageLocation, PendingWrite};
use super::pacing::WritePacing;
use super::segments::Segments;
use crate::checkout::{Dequeued, HandedOut, MessageStore, Requeue, RequeueReason, Weighed};
use crate::{
    Annotations, BrowsePosition, DeadReason, Delivery, DeliveryCounts, Losses, PendingSet,
    QueueEvent, QueueOutput, SessionId,
};
use env::planted::{self, Bug};
use env::{Disk, Incarnation, WallTime};
use head::KnownHeads;
use ids::QueueId;
use message::Message;
use priority_levels::PriorityLevel;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

/// The write buffer is written when it has this many bytes.
pub const BUFFER_BYTES: usize = 64 << 10;
/// The write buffer is written when it has this many messages.
pub const BUFFER_MESSAGES: usize = 2048;

/// A message that is unsettled or requeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Number of the message in its queue.
    pub seq: u64,
    /// Body bytes.
    pub body: u32,
    pub persistent: bool,
    /// Priority, limited to the highest one of the queue.
    pub priority: u8,
    /// Wall clock in milliseconds; 0: never.
    pub expires: u64,
}

impl Weighed for Item {
    fn body_bytes(&self) -> u64 {
        self.body.into()
    }
}

/// State of an unwritten message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never delivered.
    Fresh,
    /// Unsettled or requeued.
    Taken,
    /// Settled: it will not be written.
    Gone,
}

#[derive(Debug)]
/// A message in the write buffer.
struct Slot {
    item: Item,
    message: Option<Message>,
    state: State,
    /// The session of the publisher, which waits for a confirm.
    session: SessionId,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ClassicStore {
    pub segments: Segments,
    /// The incarnation of the node.
    incarnation: Incarnation,
    /// The record of a clean stop is on disk.
    has_clean_stop: bool,
    /// Messages that were taken before others of their level that were never delivered.
    early: BTreeSet<u64>,
    /// The next delivery revokes the record of a clean stop, or may be one of `early`.
    delivers_carefully: bool,
    /// The write buffer, by consecutive message numbers from `base`.
    slots: VecDeque<Slot>,
    base: u64,
    /// Bytes of messages in the write buffer.
    buffered: usize,
    /// The messages by priority; at least one level.
    levels: Vec<PriorityLevel>,
    /// No level above this one has ready messages.
    highest_ready: usize,
    /// Locations of written messages that are unsettled or requeued.
    locations: BTreeMap<u64, MessageLocation>,
    /// The message that was taken last, until it is delivered.
    in_hand: Option<(u64, Message)>,
    /// Number of ready messages.
    ready: u64,
    /// Body bytes of ready messages.
    ready_bytes: u64,
    /// Body bytes of unsettled messages.
    out_bytes: u64,
    pub message_ttl_ms: Option<u64>,
    /// Wall clock of the current call.
    pub wall: WallTime,
    pub pacing: WritePacing,
    /// Ready messages may have a TTL.
    pub may_expire: bool,
    pub dead_letter_buffer: DeadLetterBuffer,
    /// Sessions with publishes that became durable.
    pub newly_safe: PendingSet<SessionId>,
    pub output: QueueOutput,
    /// A read failed: nothing is read until the next retry.
    pub stalled: bool,
    /// A read failure was reported, and no read has succeeded since.
    pub(super) read_failure_reported: bool,
    pub lost: Losses,
    /// Numbers of messages that became ready again. `None`: nobody searches for messages of consumers with filters.
    pub ready_again: Option<Vec<u64>>,
    /// The messages that were read to find the oldest ready one.
    known_heads: Option<Box<KnownHeads>>,
}

impl ClassicStore {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        queue: QueueId,
        max_priority: u8,
        incarnation: Incarnation,
    ) -> ClassicStore {
        let mut levels = Vec::new();
        levels.resize_with(usize::from(max_priority) + 1, PriorityLevel::default);
        ClassicStore {
            segments: Segments::new(disk, queue),
            incarnation,
            has_clean_stop: false,
            early: BTreeSet::new(),
            delivers_carefully: false,
            slots: VecDeque::new(),
            base: 1,
            buffered: 0,
            levels,
            highest_ready: 0,
            locations: BTreeMap::new(),
            in_hand: None,
            ready: 0,
            ready_bytes: 0,
            out_bytes: 0,
            message_ttl_ms: None,
            wall: WallTime(0),
            pacing: WritePacing::default(),
            may_expire: false,
            dead_letter_buffer: DeadLetterBuffer::default(),
            newly_safe: PendingSet::default(),
            output: QueueOutput::default(),
            stalled: false,
            read_failure_reported: false,
            lost: Losses::default(),
            ready_again: None,
            known_heads: None,
        }
    }

    /// Recovers the messages from the files. After an error the store is unchanged, and the call may be
    /// repeated.
    pub(crate) fn recover(&mut self) -> io::Result<()> {
        let mut found = match self.segments.recover(self.incarnation) {
            Ok(found) => found,
            Err(error) => {
                self.segments.reset();
                return Err(error);
            }
        };
        self.base = found.last_seq.saturating_add(1).max(1);
        for (priority, messages) in found.messages {
            let at = usize::from(priority);
            if at >= self.levels.len() {
                // The queue had more priorities before: those messages are still delivered.
                self.levels.resize_with(at + 1, PriorityLevel::default);
            }
            let cursor = self.first_location(priority);
            // The record may be wrong about message numbers that are used again.
            let undelivered = found.undelivered.remove(&priority);
            let undelivered = undelivered.map_or(self.base, |from| from.min(self.base));
            if let Some(level) = self.levels.get_mut(at) {
                level.backlog = messages;
                level.ready = messages;
                level.cursor = cursor;
                level.undelivered = undelivered;
                self.highest_ready = self.highest_ready.max(at);
            }
            self.ready = self.ready.saturating_add(messages);
        }
        self.ready_bytes = found.bytes;
        self.may_expire = found.may_expire;
        self.output.faults.extend(found.faults);
        self.lost = found.lost;
        Ok(())
    }

    /// Asserts what holds between any two calls.
    pub(crate) fn assert_consistent(&self) {
        let ready: u64 = self.levels.iter().map(|level| level.ready).sum();
        assert_eq!(self.ready, ready);
        let mut above = self.levels.iter().skip(self.highest_ready + 1);
        assert!(above.all(|level| level.ready == 0));
        assert!(self.buffered == 0 || !self.slots.is_empty());
        let first = self.slots.front();
        assert!(first.is_none_or(|slot| slot.item.seq == self.base && slot.state != State::Gone));
    }

    /// The number of the next message.
    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// The level of a requeued message. `None`: no requeued message that is ready has this number.
    pub(crate) fn level_of_returned(&self, number: u64) -> Option<u8> {
        let levels = (0..=u8::MAX).zip(&self.levels);
        let mut levels = levels.filter(|(_, level)| level.returned.contains_key(&number));
        levels.next().map(|(at, _)| at)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ready_bytes + self.out_bytes
    }

    pub(crate) fn out_bytes(&self) -> u64 {
        self.out_bytes
    }

    pub(crate) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// Returns true if the write buffer has messages.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.slots.is_empty()
    }

    pub(crate) fn buffer_is_full(&self) -> bool {
        self.buffered >= BUFFER_BYTES || self.slots.len() >= BUFFER_MESSAGES
    }

    /// Adds a published message; returns its number.
    pub(crate) fn push(&mut self, message: Message, session: SessionId) -> u64 {
        let seq = self.base + self.slots.len() as u64;
        let body = u32::try_from(message.body_len()).unwrap_or(u32::MAX);
        let highest = self.levels.len().saturating_sub(1);
        let priority = usize::from(message.priority().unwrap_or(0)).min(highest);
        let item = Item {
            seq,
            body,
            persistent: message.durable(),
            priority: u8::try_from(priority).unwrap_or(u8::MAX),
            expires: self.expires(&message),
        };
        self.count_ready(&item);
        if let Some(level) = self.levels.get_mut(priority) {
            level.fresh.push_back(seq);
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
        self.highest_ready = self.highest_ready.max(item.priority.into());
        if let Some(level) = self.level(item.priority) {
            level.ready += 1;
        }
    }

    /// Returns true if a message is as durable as it gets: written, or settled.
    pub(crate) fn is_safe(&self, seq: u64) -> bool {
        let Some(at) = seq.checked_sub(self.base) else {
            return true;
        };
        let slot = self.slots.get(at as usize);
        slot.is_some_and(|s| s.state == State::Gone) || planted::is(Bug::ClassicConfirmEarly)
    }

    /// Writes the buffer. After an error nothing has changed, and the call may be repeated.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let is_unsettled = |s: &&Slot| s.state != State::Gone;
        let writes: Vec<PendingWrite<'_>> = self
            .slots
            .iter()
            .filter(is_unsettled)
            .filter_map(|s| {
                let message = s.message.as_ref()?;
                Some(PendingWrite {
                    seq: s.item.seq,
                    priority: s.item.priority,
                    persistent: s.item.persistent,
                    expires: s.item.expires,
                    body: s.item.body,
                    message,
                })
            })
            .collect();
        let locations = self.segments.append(&writes)?;
        self.pacing.wrote(self.base);
        let mut locations = locations.into_iter();
        let slots = std::mem::take(&mut self.slots);
        self.base += slots.len() as u64;
        self.buffered = 0;
        for level in &mut self.levels {
            level.fresh.clear();
        }
        for slot in slots {
            if slot.item.persistent {
                self.newly_safe.insert(slot.session);
            }
            let message = slot.message.filter(|_| slot.state != State::Gone);
            let Some(message) = message else { continue };
            let Some(location) = locations.next() else {
                break;
            };
            match slot.state {
                State::Fresh => self.retain_written(slot.item, message, location),
                _ => {
                    let level = self.level(slot.item.priority);
                    // Taken ahead of messages that will be read from the segment.
                    if level.is_some_and(|level| level.backlog > 0) {
                        self.segments.skip(location.segment, slot.item.seq);
                    }
                    self.locations.insert(slot.item.seq, location);
                }
            }
        }
        Ok(())
    }

    /// Records at a clean stop which messages were never delivered, if some on disk were not.
    pub(crate) fn record_clean_stop(&mut self) -> io::Result<()> {
        let new = |level: &PriorityLevel| level.ready > level.returned.len() as u64;
        if !self.levels.iter().any(new) {
            return self.revoke_clean_stop();
        }
        self.mark_early_as_delivered();
        let levels = (0..=u8::MAX).zip(&self.levels);
        let levels = levels.map(|(number, level)| (number, level.undelivered));
        self.segments
            .record_clean_stop(self.incarnation, &levels.collect())?;
        self.has_clean_stop = true;
        self.delivers_carefully = true;
        Ok(())
    }

    /// Revokes the record of a clean stop before the next delivery.
    fn revoke_clean_stop(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.has_clean_stop) {
            true => self.segments.revoke_clean_stop(),
            false => Ok(()),
        }
    }

    /// Returns true if the next message can be read now.
    pub(crate) fn can_read_head(&mut self) -> bool {
        self.head_expires();
        !self.stalled
    }

    /// Reports that messages cannot be read or written. Missing files stay missing, so the node must stop.
    pub(super) fn report_failure(&mut self, what: &str, error: &io::Error) {
        let fault = format!("classic queue {what}: {error}");
        if error.kind() == io::ErrorKind::NotFound {
            self.output.gone.get_or_insert_with(|| fault.clone());
        }
        self.output.faults.push(fault);
    }

    pub(super) fn report_error(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.output
                .faults
                .push(format!("classic queue's files: {error}"));
        }
    }

    fn count_taken(&mut self, item: &Item) {
        self.ready = self.ready.saturating_sub(1);
        self.ready_bytes = self.ready_bytes.saturating_sub(item.body.into());
        self.out_bytes += u64::from(item.body);
        self.may_expire &= self.ready > 0;
        if let Some(level) = self.level(item.priority) {
            level.ready = level.ready.saturating_sub(1);
        }
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        let at = seq.checked_sub(self.base)?;
        self.slots.get_mut(usize::try_from(at).ok()?)
    }

    pub(super) fn message(&mut self, seq: u64) -> io::Result<Message> {
        if let Some((in_hand, message)) = &self.in_hand
            && *in_hand == seq
        {
            return Ok(message.clone());
        }
        if let Some(message) = self.slot(seq).and_then(|slot| slot.message.clone()) {
            return Ok(message);
        }
        match self.locations.get(&seq) {
            Some(location) => self.segments.read_one(*location),
            None => Err(io::Error::other(format!("message {seq} is nowhere"))),
        }
    }

    /// Removes expired messages at the head. Returns when the next one expires.
    pub(crate) fn expire(&mut self) -> Option<WallTime> {
        while let Some(expires) = self.head_expires() {
            if expires == 0 {
                return None;
            }
            if expires > self.wall.0 {
                return Some(WallTime(expires));
            }
            let dequeued = self.take_head()?;
            self.dead_letter(dequeued.item, DeadReason::Expired);
        }
        None
    }

    /// Drops the message at the head because of a limit.
    pub(crate) fn drop_head(&mut self) -> bool {
        match self.take_head() {
            Some(dequeued) => {
                self.dead_letter(dequeued.item, DeadReason::MaxLength);
                true
            }
            None => false,
        }
    }

    pub(crate) fn destroy(&mut self) {
        let result = self.segments.destroy();
        self.report_error(result);
        self.slots.clear();
        for level in &mut self.levels {
            *level = PriorityLevel::default();
        }
        self.locations.clear();
        self.dead_letter_buffer.clear();
        self.buffered = 0;
        self.ready = 0;
        self.ready_bytes = 0;
        self.out_bytes = 0;
    }

    /// Removes settled messages at the front of the write buffer.
    fn trim(&mut self) {
        while self.slots.front().is_some_and(|s| s.state == State::Gone) {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// Removes a settled or dropped message from the write buffer or its segment.
    pub(super) fn finish(&mut self, item: &Item) {
        self.in_hand = None;
        if let Some(slot) = self.slot(item.seq) {
            let len = slot.message.take().map_or(0, |m| m.as_bytes().len());
            slot.state = State::Gone;
            let session = slot.session;
            self.buffered = self.buffered.saturating_sub(len);
            self.pacing.settled_unwritten();
            if item.persistent {
                self.newly_safe.insert(session);
            }
            self.trim();
        } else if let Some(location) = self.locations.remove(&item.seq) {
            self.pacing.settled_written(item.seq);
            let result = self
                .segments
                .settle(location.segment, item.seq, item.persistent);
            self.report_error(result);
        }
    }
}

impl MessageStore for ClassicStore {
    type Item = Item;

    fn ready(&self) -> u64 {
        self.ready
    }

    /// Drops expired messages first. A message with a TTL of zero may still be delivered at once.
    fn take(&mut self) -> Option<Dequeued<Item>> {
        loop {
            let dequeued = self.take_head()?;
            if dequeued.item.expires == 0 || dequeued.item.expires >= self.wall.0 {
                return Some(dequeued);
            }
            self.dead_letter(dequeued.item, DeadReason::Expired);
        }
    }

    fn take_at(&mut self, at: &BrowsePosition) -> Option<Dequeued<Item>> {
        self.take_position(at)
    }

    fn take_selected(&mut self, at: &BrowsePosition) -> Option<Dequeued<Item>> {
        self.forget_early();
        let dequeued = self.take_position(at)?;
        if dequeued.item.expires == 0 || dequeued.item.expires >= self.wall.0 {
            return Some(dequeued);
        }
        self.dead_letter(dequeued.item, DeadReason::Expired);
        None
    }

    /// Requeues a message at its original position within its priority.
    fn requeue(&mut self, item: Item, _counts: DeliveryCounts, how: Requeue) {
        let redelivered = match how.reason {
            RequeueReason::Unseen { redelivered } => redelivered,
            RequeueReason::Requested | RequeueReason::Returned | RequeueReason::InFront => true,
        };
        self.count_ready(&item);
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        if let Some(level) = self.level(item.priority) {
            level.returned.insert(item.seq, (item, redelivered));
        }
        let ready_again = self.ready_again.as_mut();
        if let Some(ready_again) = ready_again.filter(|_| !planted::is(Bug::ReturnedUnexamined)) {
            ready_again.push(item.seq);
        }
    }

    fn remove_settled(&mut self, item: Item) {
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        self.finish(&item);
    }

    /// A classic queue does not store annotations, as in RabbitMQ.
    fn annotate(&mut self, _item: &Item, _annotations: &Arc<Annotations>) {}

    fn dead_letter(&mut self, item: Item, reason: DeadReason) {
        self.count_death(reason);
        if !self.dead_letter_buffer.open {
            return self.remove_settled(item);
        }
        self.out_bytes = self.out_bytes.saturating_sub(item.body.into());
        let in_hand = self.in_hand.as_ref().filter(|(seq, _)| *seq == item.seq);
        let message = in_hand.map(|(_, message)| message);
        self.dead_letter_buffer.push(item, reason, message);
    }

    fn deliver(&mut self, delivery: HandedOut, item: &Item) {
        let delivered_to = match self.delivers_carefully {
            true => self.prepare_delivery(item),
            false => item.seq.saturating_add(1),
        };
        if let Some(level) = self.level(item.priority) {
            level.undelivered = level.undelivered.max(delivered_to);
        }
        match self.message(item.seq) {
            Ok(message) => self.output.deliver(
                delivery.session,
                delivery.consumer,
                Delivery {
                    id: delivery.id,
                    redelivered: delivery.counts.is_redelivery(),
                    attempts: None,
                    acquired: 0,
                    left: match delivery.numbered {
                        true => item.seq,
                        false => delivery.left,
                    },
                    message,
                    annotations: None,
                },
            ),
            Err(error) => self.report_failure("cannot be read", &error),
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
        for level in std::mem::take(&mut self.levels) {
            for (seq, (item, _)) in level.returned {
                let session = self.slot(seq).map(|slot| {
                    slot.state = State::Gone;
                    slot.message = None;
                    slot.session
                });
                if item.persistent {
                    self.newly_safe.extend(session);
                }
                self.locations.remove(&seq);
            }
            self.levels.push(PriorityLevel {
                undelivered: level.undelivered,
                ..PriorityLevel::default()
            });
        }
        for slot in self.slots.iter_mut().filter(|s| s.state == State::Fresh) {
            slot.state = State::Gone;
            slot.message = None;
            self.newly_safe.insert(slot.session);
        }
        let result = self.segments.settle_all_except(&self.locations);
        self.report_error(result);
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
    /// Messages in memory, and messages with an entry in memory.
    pub(crate) fn memory_messages(&self) -> usize {
        let levels = self.levels.iter();
        let levels = levels.map(|l| l.window.len() + l.returned.len() + l.fresh.len());
        self.slots.len() + self.locations.len() + levels.sum::<usize>()
    }
}
