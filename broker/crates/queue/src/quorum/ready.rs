//! Ready messages, as references to the log. A reference takes 8 bytes, or 12 if a body in the same chunk has
//! 64 KiB or more, and 8 more if one has a TTL.
//!
//! Requeued messages are served first, in the order of their requeue. The order of the others depends on the
//! [features](ids::QuorumFeatures) of the queue:
//!
//! - Strict: 32 levels. A level is served only while every higher one is empty.
//! - Weighted: high priority and normal priority, and two of high priority for each of normal priority. These
//!   messages are in the highest level and in the default level, so that a change to the strict order moves no
//!   message and keeps the order of messages of equal priority.
//!
//! A queue with message groups keeps the messages of groups apart ([`GroupedMessages`]) and serves strictly.

mod expiry;
mod oldest;
mod picking;
mod requeued;

use super::effects::LogLocation;
use super::grouped::{GroupDelivery, GroupedMessages, ServicePosition};
use crate::DeliveryCounts;
use crate::checkout::Dequeued;
use crate::groups::GroupId;
use env::planted::{self, Bug};
use expiry::{EarlyMessages, expiry_rank};
use requeued::RequeuedList;
use std::collections::VecDeque;

/// The highest level. Higher priorities count as this one, as in RabbitMQ.
pub(crate) const HIGHEST_LEVEL: u8 = 31;
/// The level of messages without a priority, as in RabbitMQ, AMQP 1.0 and JMS.
pub(crate) const DEFAULT_LEVEL: u8 = 4;
/// Weighted order: messages of this priority or a higher one have high priority, as in RabbitMQ before 4.3.
const HIGH_PRIORITY: u8 = 5;

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
    /// Priority level. It has no effect after the first delivery.
    pub level: u8,
    /// The group, if the queue has groups.
    pub group: Option<GroupId>,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
}

// The group fits into the padding.
const _: () = assert!(size_of::<LogMessage>() <= 32);

impl LogMessage {
    pub(crate) fn location(&self) -> LogLocation {
        LogLocation {
            index: self.index,
            offset: self.offset,
        }
    }
}

/// A requeued message and its counts of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequeuedMessage {
    pub held: LogMessage,
    pub counts: DeliveryCounts,
}

impl From<RequeuedMessage> for Dequeued<LogMessage> {
    fn from(returned: RequeuedMessage) -> Dequeued<LogMessage> {
        Dequeued {
            item: returned.held,
            counts: returned.counts,
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
    /// The highest [rank](expiry::expiry_rank) of a reference that was added.
    latest: u64,
}

impl Chunk {
    fn get(&self, at: usize, level: u8) -> Option<LogMessage> {
        let packed = self.items.get(at)?;
        Some(LogMessage {
            index: self.base.wrapping_add(packed.delta.into()),
            offset: packed.offset,
            body: packed.body,
            level,
            group: None,
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
        self.note_latest(held);
        self.items.push(FullMessage {
            delta,
            offset: held.offset,
            body: held.body,
        });
        true
    }
}

/// Messages of one priority level that were never delivered, in log order.
#[derive(Debug)]
struct PriorityLevel {
    level: u8,
    chunks: VecDeque<Chunk>,
    /// The highest rank of the chunks.
    latest: u64,
    /// Messages that expire before one ahead of them, if the queue lets messages expire exactly.
    early: EarlyMessages,
}

impl PriorityLevel {
    fn new(level: u8) -> PriorityLevel {
        PriorityLevel {
            level,
            chunks: VecDeque::new(),
            latest: 0,
            early: EarlyMessages::default(),
        }
    }

    fn push(&mut self, held: &LogMessage, is_exact: bool) {
        self.note_expiry(held, is_exact);
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
            latest: 0,
        };
        chunk.push(held);
        self.chunks.push_back(chunk);
    }

    fn last(&self) -> Option<LogLocation> {
        let chunk = self.chunks.back()?;
        let last = chunk.items.len().checked_sub(1)?;
        chunk
            .get(last, self.level)
            .map(|message| message.location())
    }

    fn peek(&self) -> Option<LogMessage> {
        let chunk = self.chunks.front()?;
        chunk.get(chunk.front, self.level)
    }

    fn pop(&mut self) -> Option<LogMessage> {
        let chunk = self.chunks.front_mut()?;
        let held = chunk.get(chunk.front, self.level)?;
        chunk.front += 1;
        if chunk.front >= chunk.items.len() {
            let is_retained = chunk.items.capacity() <= RETAINED_CAPACITY;
            let latest = chunk.latest;
            match self.chunks.len() {
                1 if is_retained => self.reset_first_chunk(),
                _ => drop(self.chunks.pop_front()),
            }
            self.forget_latest(latest);
        }
        self.early.remove(&held);
        Some(held)
    }

    /// Keeps the allocation, for a queue that is emptied as fast as it is filled.
    fn reset_first_chunk(&mut self) {
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.items.clear();
            chunk.expires.clear();
            chunk.front = 0;
            chunk.latest = 0;
        }
    }

    fn fresh(&self) -> impl Iterator<Item = LogMessage> + '_ {
        self.chunks
            .iter()
            .flat_map(|c| (c.front..c.items.len()).filter_map(|at| c.get(at, self.level)))
    }

    fn len(&self) -> u64 {
        let len = |chunk: &Chunk| chunk.items.len() - chunk.front;
        self.chunks.iter().map(|chunk| len(chunk) as u64).sum()
    }

    #[cfg(test)]
    fn memory(&self) -> usize {
        let chunks = self.chunks.iter();
        let items = chunks.map(|c| c.items.bytes() + c.expires.capacity() * size_of::<u64>());
        self.chunks.capacity() * size_of::<Chunk>() + items.sum::<usize>()
    }
}

/// Messages that were never delivered, by level. A level takes memory from its first message on.
#[derive(Debug)]
struct PriorityLevels {
    /// The level of messages without a priority, which is the only one of most queues.
    default: PriorityLevel,
    /// The other levels that have had messages, ascending.
    others: Vec<PriorityLevel>,
    /// Bit n: `others` has level n.
    allocated: u32,
    /// Bit n: level n has messages.
    occupied: u32,
}

/// The levels whose bits are set, descending.
fn descending(mut levels: u32) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let highest = highest(levels)?;
        levels &= !bit(highest);
        Some(highest)
    })
}

/// The highest level whose bit is set.
fn highest(levels: u32) -> Option<u8> {
    u8::try_from(levels.checked_ilog2()?).ok()
}

fn bit(level: u8) -> u32 {
    1 << level.min(HIGHEST_LEVEL)
}

impl PriorityLevels {
    fn new() -> PriorityLevels {
        PriorityLevels {
            default: PriorityLevel::new(DEFAULT_LEVEL),
            others: Vec::new(),
            allocated: 0,
            occupied: 0,
        }
    }

    /// The index of a level in `others`.
    fn index(&self, level: u8) -> usize {
        (self.allocated & (bit(level) - 1)).count_ones() as usize
    }

    fn get(&self, level: u8) -> Option<&PriorityLevel> {
        if level == DEFAULT_LEVEL {
            return Some(&self.default);
        }
        let is_allocated = self.allocated & bit(level) != 0;
        self.others.get(self.index(level)).filter(|_| is_allocated)
    }

    fn get_mut(&mut self, level: u8) -> Option<&mut PriorityLevel> {
        if level == DEFAULT_LEVEL {
            return Some(&mut self.default);
        }
        let (index, is_allocated) = (self.index(level), self.allocated & bit(level) != 0);
        self.others.get_mut(index).filter(|_| is_allocated)
    }

    fn push(&mut self, held: &LogMessage, is_exact: bool) {
        let level = held.level.min(HIGHEST_LEVEL);
        let is_new = level != DEFAULT_LEVEL && self.allocated & bit(level) == 0;
        if is_new {
            self.others
                .insert(self.index(level), PriorityLevel::new(level));
            self.allocated |= bit(level);
        }
        if is_new || level == DEFAULT_LEVEL || !planted::is(Bug::PriorityLevelSkipped) {
            self.occupied |= bit(level);
        }
        if let Some(messages) = self.get_mut(level) {
            messages.push(held, is_exact);
        }
    }

    fn peek(&self, level: u8) -> Option<LogMessage> {
        self.get(level)?.peek()
    }

    fn pop(&mut self, level: u8) -> Option<LogMessage> {
        let messages = self.get_mut(level)?;
        let held = messages.pop()?;
        if messages.peek().is_none() {
            self.occupied &= !bit(level);
        }
        Some(held)
    }

    /// The levels that have had messages, descending.
    fn iter(&self) -> impl Iterator<Item = &PriorityLevel> {
        descending(self.allocated | bit(DEFAULT_LEVEL)).filter_map(|level| self.get(level))
    }
}

/// Where the next message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextMessage {
    Returned,
    /// Of the default level.
    Postponed,
    /// Never delivered, of this level.
    Fresh(u8),
}

/// The ready messages of a queue.
#[derive(Debug)]
pub(crate) struct Ready {
    returned: RequeuedList<RequeuedMessage>,
    levels: PriorityLevels,
    /// Messages requeued at the end of the default level: after all messages before this location of the log.
    postponed: RequeuedList<(LogLocation, RequeuedMessage)>,
    /// A level is served only while every higher one is empty.
    is_strict: bool,
    /// Weighted order: position in the cycle of two messages of high and one of normal priority.
    pub turn: u8,
    len: u64,
    /// Body bytes of ready messages.
    bytes: u64,
    /// How many ready messages without a group have a TTL.
    expiring: u64,
    /// They expire on time, also behind others.
    is_exact: bool,
    /// None of them has a lower [rank](expiry::expiry_rank).
    earliest: u64,
    /// Messages of groups. `None`: the queue has no groups.
    groups: Option<Box<GroupedMessages>>,
}

impl Ready {
    /// Creates an empty queue with weighted order.
    pub(crate) fn new() -> Ready {
        Ready {
            returned: RequeuedList::new(),
            levels: PriorityLevels::new(),
            postponed: RequeuedList::new(),
            is_strict: false,
            turn: 0,
            len: 0,
            bytes: 0,
            expiring: 0,
            is_exact: false,
            earliest: u64::MAX,
            groups: None,
        }
    }

    /// Delivers the messages of groups in their order from now on, for good. All messages are served strictly then. Messages
    /// that are in the queue already have no group.
    pub(crate) fn enable_groups(&mut self) {
        self.serve_strictly();
        self.groups.get_or_insert_default();
    }

    /// Messages of groups. `None`: the queue has no groups.
    pub(crate) fn groups(&self) -> Option<&GroupedMessages> {
        self.groups.as_deref()
    }

    /// See [`groups`](Self::groups).
    pub(crate) fn groups_mut(&mut self) -> Option<&mut GroupedMessages> {
        self.groups.as_deref_mut()
    }

    /// Changes to the strict order, for good.
    pub(crate) fn serve_strictly(&mut self) {
        self.is_strict = true;
        self.turn = 0;
    }

    /// The level of a new message with this priority.
    pub(crate) fn level_of(&self, priority: Option<u8>) -> u8 {
        match priority {
            None => DEFAULT_LEVEL,
            Some(priority) if self.is_strict => priority.min(HIGHEST_LEVEL),
            Some(priority) if priority >= HIGH_PRIORITY => HIGHEST_LEVEL,
            Some(_) => DEFAULT_LEVEL,
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
        if held.expires != 0 {
            self.expiring += 1;
            self.earliest = self.earliest.min(expiry_rank(held.expires));
        }
    }

    /// Counts a removed message without a group.
    fn uncount(&mut self, held: &LogMessage) {
        self.len -= 1;
        self.bytes -= u64::from(held.body);
        self.expiring -= u64::from(held.expires != 0);
        debug_assert!(self.expiring <= self.len);
        debug_assert!(self.len > 0 || self.bytes == 0);
    }

    /// Adds a message of a group. Returns false if the message has none.
    fn insert_grouped(&mut self, position: ServicePosition, message: &RequeuedMessage) -> bool {
        let (Some(group), Some(groups)) = (message.held.group, self.groups.as_mut()) else {
            debug_assert_eq!(message.held.group, None, "the queue has no groups");
            return false;
        };
        self.len += 1;
        self.bytes += u64::from(message.held.body);
        groups.insert(group, position, message);
        true
    }

    /// Adds a message of a group from a checkpoint. Returns false if it cannot be in one.
    pub(crate) fn restore_grouped(
        &mut self,
        position: ServicePosition,
        message: &RequeuedMessage,
    ) -> bool {
        let groups = self.groups.as_ref();
        let group = message.held.group;
        let is_new =
            groups.is_some_and(|g| group.is_some_and(|group| !g.contains(group, position)));
        is_new && self.insert_grouped(position, message)
    }

    /// Counts a removed message of a group.
    fn uncount_grouped(&mut self, held: &LogMessage) {
        self.len -= 1;
        self.bytes -= u64::from(held.body);
        debug_assert!(self.len > 0 || self.bytes == 0);
    }

    /// Appends a new message to its level.
    pub(crate) fn push(&mut self, held: &LogMessage) {
        if held.group.is_some() {
            let counts = DeliveryCounts::default();
            let message = RequeuedMessage {
                held: *held,
                counts,
            };
            let position = ServicePosition::fresh(held.level, held.location());
            if self.insert_grouped(position, &message) {
                return;
            }
        }
        self.count(held);
        self.levels.push(held, self.is_exact);
    }

    /// Requeues a message at the front, behind those that were requeued before. A message of a group goes to its place
    /// among the requeued ones of its group.
    pub(crate) fn give_back(&mut self, held: LogMessage, counts: DeliveryCounts) {
        if held.group.is_some() {
            let position = ServicePosition::requeued(held.location());
            if self.insert_grouped(position, &RequeuedMessage { held, counts }) {
                return;
            }
        }
        self.count(&held);
        self.returned.push_back(RequeuedMessage { held, counts });
    }

    /// Requeues a message at the very front.
    pub(crate) fn requeue_in_front(&mut self, held: LogMessage, counts: DeliveryCounts) {
        debug_assert_eq!(held.group, None, "messages of groups have their own order");
        self.count(&held);
        self.returned.push_front(RequeuedMessage { held, counts });
    }

    /// Requeues a message at the end. `after` is the log location of the request; it ascends from call to call.
    pub(crate) fn postpone(
        &mut self,
        held: LogMessage,
        counts: DeliveryCounts,
        after: LogLocation,
    ) {
        self.count(&held);
        self.postponed
            .push_back((after, RequeuedMessage { held, counts }));
    }

    /// The first message of a level, and where it is.
    fn head(&self, level: u8) -> Option<(NextMessage, LogMessage)> {
        let fresh = self.levels.peek(level);
        let fresh = fresh.map(|held| (NextMessage::Fresh(level), held));
        let Some((after, postponed)) = self.postponed.front().filter(|_| level == DEFAULT_LEVEL)
        else {
            return fresh;
        };
        match fresh {
            Some((_, held)) if held.location() < *after => fresh,
            _ => Some((NextMessage::Postponed, postponed.held)),
        }
    }

    /// Location in the log that a message of the weighted order is compared by.
    fn position(&self, next: NextMessage, held: &LogMessage) -> LogLocation {
        match (next, self.postponed.front()) {
            (NextMessage::Postponed, Some((after, _))) => *after,
            _ => held.location(),
        }
    }

    fn returned_head(&self) -> Option<(NextMessage, LogMessage)> {
        let first = self.returned.front()?;
        Some((NextMessage::Returned, first.held))
    }

    /// The next message and where it is.
    fn next(&self) -> Option<(NextMessage, LogMessage)> {
        if let Some(returned) = self.returned_head() {
            return Some(returned);
        }
        match self.is_strict {
            true => self.head(highest(self.occupied_levels())?),
            false => self.next_weighted(),
        }
    }

    /// Levels with messages, including postponed ones.
    fn occupied_levels(&self) -> u32 {
        let postponed = match self.postponed.is_empty() {
            true => 0,
            false => bit(DEFAULT_LEVEL),
        };
        self.levels.occupied | postponed
    }

    /// Two of high priority go before one of normal priority, but a normal one is never served before a high one
    /// that was published earlier.
    fn next_weighted(&self) -> Option<(NextMessage, LogMessage)> {
        let high = self.head(HIGHEST_LEVEL);
        if high.is_some() && self.turn < HIGH_IN_A_ROW {
            return high;
        }
        let normal = self.head(DEFAULT_LEVEL);
        match (high, normal) {
            (Some((_, held)), Some((next, other)))
                if held.location() < self.position(next, &other) =>
            {
                high
            }
            (_, Some(_)) => normal,
            (high, None) => high,
        }
    }

    /// Removes and returns the next message, even if its group is owned.
    pub(crate) fn pop(&mut self) -> Option<Dequeued<LogMessage>> {
        if let Some(groups) = &self.groups
            && let Some((position, group)) = groups.first()
            && self.next_position().is_none_or(|next| position < next)
        {
            return self.pop_of(Some(group));
        }
        self.pop_of(None)
    }

    /// Removes and returns the first message of a group or, with `None`, the next one without a group.
    fn pop_of(&mut self, group: Option<GroupId>) -> Option<Dequeued<LogMessage>> {
        let Some(group) = group else {
            let (next, held) = self.next()?;
            return self.remove(next, &held);
        };
        let message = self.groups.as_mut()?.pop(group)?;
        self.uncount_grouped(&message.held);
        Some(message.into())
    }

    /// The position of the next message without a group among those of groups.
    fn next_position(&self) -> Option<ServicePosition> {
        let (next, held) = self.next()?;
        Some(match next {
            NextMessage::Returned => ServicePosition::requeued(held.location()),
            NextMessage::Fresh(level) => ServicePosition::fresh(level, held.location()),
            NextMessage::Postponed => {
                ServicePosition::fresh(DEFAULT_LEVEL, self.position(next, &held))
            }
        })
    }

    /// The consumer that gets the next message of a queue with groups, and the group of the message.
    pub(crate) fn next_delivery(&self) -> Option<GroupDelivery> {
        self.groups.as_ref()?.next(self.next_position())
    }

    /// Removes and returns the next message of a queue with groups, and the consumer that gets it.
    pub(crate) fn pop_delivery(&mut self) -> Option<(u64, Dequeued<LogMessage>)> {
        let GroupDelivery { consumer, group } = self.next_delivery()?;
        let dequeued = self.pop_of(group)?;
        self.own(dequeued.item.group, consumer);
        Some((consumer, dequeued))
    }

    /// Removes and returns the next message that this consumer can get, of those that no consumer owns.
    pub(crate) fn pop_free(&mut self, consumer: u64) -> Option<Dequeued<LogMessage>> {
        let Some(groups) = &self.groups else {
            return self.pop();
        };
        let (_, group) = groups.next_free(self.next_position())?;
        let dequeued = self.pop_of(group)?;
        self.own(dequeued.item.group, consumer);
        Some(dequeued)
    }

    /// A consumer has an unsettled message of this group.
    pub(crate) fn own(&mut self, group: Option<GroupId>, consumer: u64) {
        if let (Some(group), Some(groups)) = (group, self.groups.as_mut()) {
            groups.own(group, consumer);
        }
    }

    /// An unsettled message of this group is settled, or it is ready or delayed again.
    pub(crate) fn settle(&mut self, group: Option<GroupId>) {
        if let (Some(group), Some(groups)) = (group, self.groups.as_mut()) {
            groups.settle(group);
        }
    }

    /// A message is delayed. Its group waits for it if it was delivered before.
    pub(crate) fn delay(&mut self, message: &RequeuedMessage) {
        if let (Some(group), Some(groups)) = (message.held.group, self.groups.as_mut()) {
            let is_returned = message.counts.is_redelivery();
            groups.delay(group, message.held.location(), is_returned);
        }
    }

    /// The group of a delayed message.
    pub(crate) fn group_of_delayed(&self, at: LogLocation) -> Option<GroupId> {
        self.groups.as_ref()?.group_of_delayed(at)
    }

    /// The delay of a message is over: it is ready, unless it has expired.
    pub(crate) fn end_delay(&mut self, message: RequeuedMessage, has_expired: bool) {
        let RequeuedMessage { mut held, counts } = message;
        let groups = self.groups.as_mut();
        held.group = groups.and_then(|groups| groups.end_delay(held.location()));
        if !has_expired {
            self.give_back(held, counts);
        }
        if counts.is_redelivery()
            && let (Some(group), Some(groups)) = (held.group, self.groups.as_mut())
        {
            groups.end_wait(group);
        }
    }

    /// The group of a message waits for it, if it has one.
    pub(crate) fn wait_for(&mut self, held: &LogMessage) {
        if let (Some(group), Some(groups)) = (held.group, self.groups.as_mut()) {
            groups.delay(group, held.location(), true);
        }
    }

    /// The group of a message waits no longer for it. Call it after the message was added, if it is ready again.
    pub(crate) fn end_wait_for(&mut self, at: LogLocation) {
        if let Some(groups) = self.groups.as_mut()
            && let Some(group) = groups.end_delay(at)
        {
            groups.end_wait(group);
        }
    }

    /// Adds a message of a group that was taken from this position.
    pub(crate) fn return_to(&mut self, position: ServicePosition, message: &RequeuedMessage) {
        let is_grouped = self.insert_grouped(position, message);
        debug_assert!(is_grouped, "{message:?} has a group");
    }

    /// Returns true if a message can go to this consumer once that has room.
    pub(crate) fn has_message_for(&self, consumer: u64) -> bool {
        match &self.groups {
            None => self.len > 0,
            Some(groups) => self.next().is_some() || groups.has_message_for(consumer),
        }
    }

    /// Removes a message that is the first of its kind.
    fn remove(&mut self, next: NextMessage, held: &LogMessage) -> Option<Dequeued<LogMessage>> {
        let dequeued = match next {
            NextMessage::Returned => self.returned.pop_front().map(Dequeued::from),
            NextMessage::Postponed => self.postponed.pop_front().map(|(_, r)| r.into()),
            NextMessage::Fresh(level) => self.levels.pop(level).map(|item| Dequeued {
                item,
                counts: DeliveryCounts::default(),
            }),
        };
        if !self.is_strict && next != NextMessage::Returned {
            self.turn = match self.turn {
                turn if turn >= HIGH_IN_A_ROW => 0,
                turn => turn + 1,
            };
        }
        let item = dequeued.as_ref().map(|dequeued| dequeued.item);
        debug_assert_eq!(item, Some(*held), "the next message is taken");
        self.uncount(held);
        dequeued
    }

    /// The messages that can expire without exact expiry: the head of the queue or, with strict order, the first requeued
    /// message and the first message of each level, as in RabbitMQ.
    fn heads(&self) -> impl Iterator<Item = (NextMessage, LogMessage)> {
        let (head, returned, levels) = match self.is_strict {
            true => (None, self.returned_head(), self.occupied_levels()),
            false => (self.next(), None, 0),
        };
        let levels = descending(levels).filter_map(|level| self.head(level));
        head.into_iter().chain(returned).chain(levels)
    }

    /// Removes and returns an expired message.
    pub(crate) fn pop_expired(&mut self, clock: u64) -> Option<LogMessage> {
        if let Some(groups) = &mut self.groups
            && let Some(held) = groups.pop_expired(clock)
        {
            self.uncount_grouped(&held);
            return Some(held);
        }
        if self.expiring == 0 {
            return None;
        }
        if self.is_exact {
            return self.pop_next_to_expire(clock);
        }
        let is_expired = |held: &LogMessage| held.expires != 0 && held.expires <= clock;
        let (next, held) = self.heads().find(|(_, held)| is_expired(held))?;
        self.remove(next, &held).map(|dequeued| dequeued.item)
    }

    /// When the next message expires, of those that can expire.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        let grouped = self.groups.as_ref().and_then(|groups| groups.next_expiry());
        if self.expiring == 0 {
            return grouped;
        }
        if self.is_exact {
            return self.next_exact_expiry().into_iter().chain(grouped).min();
        }
        let expiries = self.heads().map(|(_, held)| held.expires);
        let expiries = expiries.filter(|expires| *expires != 0);
        expiries.chain(grouped).min()
    }

    /// Drops all messages. Returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        let dropped = self.len;
        self.returned.clear();
        self.postponed.clear();
        self.levels = PriorityLevels::new();
        if let Some(groups) = &mut self.groups {
            groups.clear();
        }
        self.len = 0;
        self.bytes = 0;
        self.expiring = 0;
        self.earliest = u64::MAX;
        dropped
    }

    /// Messages that were never delivered, of all levels, descending.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = LogMessage> + '_ {
        self.levels.iter().flat_map(PriorityLevel::fresh)
    }

    /// Messages that were never delivered, by level, descending.
    pub(crate) fn fresh_by_level(
        &self,
    ) -> impl Iterator<Item = (u8, u64, impl Iterator<Item = LogMessage>)> {
        let levels = descending(self.levels.occupied).filter_map(|level| self.levels.get(level));
        levels.map(|level| (level.level, level.len(), level.fresh()))
    }

    /// The levels with messages and the number of their messages, ascending.
    pub(crate) fn level_counts(&self) -> Vec<(u8, u64)> {
        let grouped = |level| self.groups().map_or(0, |groups| groups.level_len(level));
        let count = |level| {
            let ungrouped = self.levels.get(level).map_or(0, PriorityLevel::len);
            let fresh = ungrouped + grouped(level);
            match level {
                DEFAULT_LEVEL => fresh + self.postponed.len() as u64,
                _ => fresh,
            }
        };
        let occupied = match self.groups.is_some() {
            true => (0..=HIGHEST_LEVEL)
                .filter(|level| grouped(*level) > 0)
                .fold(self.occupied_levels(), |levels, level| levels | bit(level)),
            false => self.occupied_levels(),
        };
        let mut counts: Vec<(u8, u64)> = descending(occupied)
            .map(|level| (level, count(level)))
            .collect();
        counts.reverse();
        counts
    }

    /// Location of the last message that was pushed, of those that were never delivered.
    pub(crate) fn last_fresh(&self) -> Option<LogLocation> {
        self.levels.iter().filter_map(PriorityLevel::last).max()
    }

    /// Location of the last request that requeued a message at the end.
    pub(crate) fn last_postponed(&self) -> Option<LogLocation> {
        self.postponed.back().map(|(after, _)| *after)
    }

    /// Number of messages that were requeued at the front.
    pub(crate) fn returned_len(&self) -> u64 {
        let grouped = self.groups().map_or(0, GroupedMessages::requeued);
        self.returned.len() as u64 + grouped
    }

    /// Messages of groups with their positions, by group and then in service order.
    pub(crate) fn grouped(&self) -> impl Iterator<Item = (ServicePosition, RequeuedMessage)> + '_ {
        self.groups().into_iter().flat_map(GroupedMessages::iter)
    }

    /// Messages without a group that were requeued at the front, in service order.
    pub(crate) fn returned(&self) -> impl Iterator<Item = RequeuedMessage> + '_ {
        self.returned.iter().copied()
    }

    /// Messages that were requeued at the end, in service order. They have no group.
    pub(crate) fn postponed(&self) -> impl Iterator<Item = (LogLocation, RequeuedMessage)> + '_ {
        self.postponed.iter().copied()
    }

    /// Bytes of memory of messages that were never delivered, capacity included.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        let levels = self.levels.iter().map(PriorityLevel::memory);
        self.levels.others.capacity() * size_of::<PriorityLevel>() + levels.sum::<usize>()
    }
}
