//! Messages of groups that are ready in a quorum queue, and the consumers that own the groups.
//!
//! A group is owned by the consumer that has unsettled messages of it. Its ready messages go to that consumer only. A group
//! without unsettled messages goes to its previous owner, if that can get a message, or else to the consumer that owns the
//! fewest groups.
//!
//! Everything depends on the commands only, so that all replicas decide alike. A checkpoint has the ready messages and the
//! previous owners; the current owners follow from the unsettled messages of the consumers.
//!
//! A ready message takes 48 bytes in a B-tree, which is half full or better, and 32 more in another one if it has a TTL.
//! Each group with messages takes about 100 bytes in two B-trees. All operations on a message take a time that is
//! logarithmic in the number of messages, groups and consumers.

use super::effects::LogLocation;
use super::ready::{DEFAULT_LEVEL, HIGHEST_LEVEL, LogMessage, RequeuedMessage};
use crate::DeliveryCounts;
use crate::groups::GroupId;
use env::planted::{self, Bug};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Most groups without messages whose previous owner is remembered. The one that has had no message for the longest time is
/// forgotten first.
pub(crate) const MAX_IDLE_GROUPS: usize = 16_384;

/// Holder of groups that no consumer owns. Numbers of consumers begin with 1.
const FREE: u64 = 0;
/// Holder of groups that wait for a delayed message.
const WAITING: u64 = u64::MAX;

/// The class of messages of the lowest priority.
pub(crate) const LAST_CLASS: u8 = HIGHEST_LEVEL + 1;

/// The position of a ready message in the service order of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServicePosition {
    /// 0: requeued. Others: never delivered, by descending priority level.
    class: u8,
    index: u64,
    offset: u32,
}

impl ServicePosition {
    const FIRST: ServicePosition = ServicePosition {
        class: 0,
        index: 0,
        offset: 0,
    };

    /// The position of a requeued message.
    pub(crate) fn requeued(at: LogLocation) -> ServicePosition {
        ServicePosition::of_class(0, at)
    }

    /// The position of a message of this level that was never delivered.
    pub(crate) fn fresh(level: u8, at: LogLocation) -> ServicePosition {
        ServicePosition::of_class(HIGHEST_LEVEL + 1 - level.min(HIGHEST_LEVEL), at)
    }

    /// The position of a message of a class, which is at most [`LAST_CLASS`].
    pub(crate) fn of_class(class: u8, at: LogLocation) -> ServicePosition {
        let LogLocation { index, offset } = at;
        ServicePosition {
            class,
            index,
            offset,
        }
    }

    /// The priority level of a message that was never delivered. `None`: the message is requeued.
    pub(crate) fn level(self) -> Option<u8> {
        (HIGHEST_LEVEL + 1)
            .checked_sub(self.class)
            .filter(|_| self.class > 0)
    }

    /// The class of the message.
    pub(crate) fn class(self) -> u8 {
        self.class
    }

    fn location(self) -> LogLocation {
        LogLocation {
            index: self.index,
            offset: self.offset,
        }
    }
}

/// A ready message: first by group, then by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MessageKey {
    group: GroupId,
    position: ServicePosition,
}

/// The properties of a ready message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadyMessage {
    expires: u64,
    body: u32,
    counts: DeliveryCounts,
}

const _: () = assert!(size_of::<MessageKey>() + size_of::<ReadyMessage>() <= 48);

/// A group with messages, or with a previous owner that is remembered.
#[derive(Clone, Debug, Default)]
struct Group {
    /// The consumer with unsettled messages of the group or, without any, the last one. 0: none.
    owner: u64,
    /// Unsettled messages.
    unsettled: u32,
    /// Messages that were returned and become ready later.
    delayed: u32,
    /// The holder and the position of the first ready message.
    head: Option<(u64, ServicePosition)>,
    /// The key in [`GroupedMessages::idle`], if the group has no messages.
    idle: u64,
}

/// A consumer that owns groups or can get a message.
#[derive(Debug, Default)]
struct GroupConsumer {
    /// Groups of which it has unsettled messages.
    groups: u32,
    /// Its priority and ticket, if it can get a message.
    turn: Option<(i32, u64)>,
    /// Its key in [`GroupedMessages::owner_heads`]: whether it has no room, and the first ready message of its groups.
    head: Option<(bool, ServicePosition)>,
}

/// The recipient of the next message and where that message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupDelivery {
    /// Number of the consumer.
    pub consumer: u64,
    /// The group of the message. `None`: the next message without a group.
    pub group: Option<GroupId>,
}

/// Ready messages of groups and their owners; see the module.
#[derive(Debug, Default)]
pub(crate) struct GroupedMessages {
    ready: BTreeMap<MessageKey, ReadyMessage>,
    groups: BTreeMap<GroupId, Group>,
    /// The first ready message of each group, by holder: [`FREE`], [`WAITING`] or the number of the owner.
    heads: BTreeSet<(u64, ServicePosition, GroupId)>,
    consumers: BTreeMap<u64, GroupConsumer>,
    /// The first ready message of the groups of each owner. Owners with room come first.
    owner_heads: BTreeSet<(bool, ServicePosition, u64)>,
    /// Consumers that can get a message, in the order in which they get messages without a group.
    by_turn: BTreeSet<(Reverse<i32>, u64, u64)>,
    /// The same consumers, in the order in which they get new groups: priority, groups that they own, ticket.
    by_load: BTreeSet<(Reverse<i32>, u32, u64, u64)>,
    /// The groups of delayed messages.
    delayed: BTreeMap<LogLocation, GroupId>,
    /// Ready messages with a TTL, by the time at which they expire.
    expiring: BTreeSet<(u64, MessageKey)>,
    /// Groups without messages whose previous owner is known, in the order in which they lost their last message.
    idle: BTreeMap<u64, GroupId>,
    last_idle: u64,
    /// Number of ready messages that were requeued.
    requeued: u64,
    /// Number of the others by priority level.
    levels: [u64; HIGHEST_LEVEL as usize + 1],
}

/// A previous owner of a group, for checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreviousOwner {
    pub group: GroupId,
    /// Number of the consumer.
    pub consumer: u64,
}

impl GroupedMessages {
    /// Number of ready messages.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        self.ready.len() as u64
    }

    /// Number of ready messages that were requeued.
    pub(crate) fn requeued(&self) -> u64 {
        self.requeued
    }

    /// Number of ready messages of a level that were never delivered.
    pub(crate) fn level_len(&self, level: u8) -> u64 {
        self.levels.get(usize::from(level)).copied().unwrap_or(0)
    }

    fn count_mut(&mut self, position: ServicePosition) -> &mut u64 {
        let level = position.level().map(usize::from);
        match level.and_then(|level| self.levels.get_mut(level)) {
            Some(count) => count,
            None => &mut self.requeued,
        }
    }

    /// Adds a ready message.
    pub(crate) fn insert(
        &mut self,
        group: GroupId,
        position: ServicePosition,
        message: &RequeuedMessage,
    ) {
        let RequeuedMessage { held, counts } = *message;
        let key = MessageKey { group, position };
        let added = ReadyMessage {
            expires: held.expires,
            body: held.body,
            counts,
        };
        let replaced = self.ready.insert(key, added);
        debug_assert_eq!(replaced, None, "a message is ready once: {key:?}");
        *self.count_mut(position) += 1;
        if held.expires != 0 {
            self.expiring.insert((held.expires, key));
        }
        self.update_group(group);
    }

    /// Returns true if the group has a ready message at this position.
    pub(crate) fn contains(&self, group: GroupId, position: ServicePosition) -> bool {
        self.ready.contains_key(&MessageKey { group, position })
    }

    fn remove(&mut self, key: MessageKey) -> Option<RequeuedMessage> {
        let removed = self.ready.remove(&key)?;
        *self.count_mut(key.position) -= 1;
        if removed.expires != 0 {
            self.expiring.remove(&(removed.expires, key));
        }
        self.update_group(key.group);
        Some(message_of(key, removed))
    }

    /// The first ready message of a group.
    fn first_of(&self, group: GroupId) -> Option<ServicePosition> {
        let from = MessageKey {
            group,
            position: ServicePosition::FIRST,
        };
        let (key, _) = self.ready.range(from..).next()?;
        (key.group == group).then_some(key.position)
    }

    /// Updates what follows from the messages of a group: its head, and whether it is idle.
    fn update_group(&mut self, id: GroupId) {
        let first = self.first_of(id);
        let group = self.groups.entry(id).or_default();
        let holder = match (group.delayed, group.unsettled) {
            (0, 0) => FREE,
            (0, _) => group.owner,
            (_, _) => WAITING,
        };
        let head = first.map(|position| (holder, position));
        let before = std::mem::replace(&mut group.head, head);
        let is_idle = head.is_none() && group.unsettled == 0 && group.delayed == 0;
        if group.idle != 0 && !is_idle {
            self.idle.remove(&group.idle);
            group.idle = 0;
        }
        match (is_idle, group.owner) {
            (true, 0) => {
                self.groups.remove(&id);
            }
            (true, _) if group.idle == 0 => {
                self.last_idle += 1;
                group.idle = self.last_idle;
                self.idle.insert(self.last_idle, id);
                self.forget_idle();
            }
            _ => {}
        }
        if before == head {
            return;
        }
        if let Some((holder, position)) = before {
            self.heads.remove(&(holder, position, id));
            self.update_owner(holder);
        }
        if let Some((holder, position)) = head {
            self.heads.insert((holder, position, id));
            self.update_owner(holder);
        }
    }

    fn forget_idle(&mut self) {
        while self.idle.len() > MAX_IDLE_GROUPS
            && let Some((_, group)) = self.idle.pop_first()
        {
            self.groups.remove(&group);
        }
    }

    /// The first ready message of the groups of a holder.
    fn head_of(&self, holder: u64) -> Option<(ServicePosition, GroupId)> {
        let from = (holder, ServicePosition::FIRST, GroupId::MIN);
        let (found, position, group) = self.heads.range(from..).next()?;
        (*found == holder).then_some((*position, *group))
    }

    /// The location of the message that was enqueued first, of the first ones of each holder and class: at most
    /// `max_compared` of them.
    pub(crate) fn oldest(&self, max_compared: usize) -> Option<LogLocation> {
        let mut oldest: Option<LogLocation> = None;
        let mut from = (FREE, ServicePosition::FIRST, GroupId::MIN);
        for _ in 0..max_compared {
            let Some((holder, position, _)) = self.heads.range(from..).next() else {
                break;
            };
            let location = position.location();
            oldest = Some(oldest.map_or(location, |oldest| oldest.min(location)));
            let next_class = ServicePosition {
                class: position.class.saturating_add(1),
                ..ServicePosition::FIRST
            };
            from = (*holder, next_class, GroupId::MIN);
        }
        oldest
    }

    /// Updates the entry of a consumer in `owner_heads`.
    fn update_owner(&mut self, number: u64) {
        let first = self.head_of(number);
        let Some(consumer) = self.consumers.get_mut(&number) else {
            debug_assert!(number == FREE || number == WAITING || first.is_none());
            return;
        };
        let head = first.map(|(position, _)| (consumer.turn.is_none(), position));
        let before = std::mem::replace(&mut consumer.head, head);
        if before == head {
            return;
        }
        if let Some((is_full, position)) = before {
            self.owner_heads.remove(&(is_full, position, number));
        }
        if let Some((is_full, position)) = head {
            self.owner_heads.insert((is_full, position, number));
        }
    }

    /// Sets the priority and the ticket of a consumer that can get a message. `None`: it can get none.
    pub(crate) fn set_turn(&mut self, number: u64, turn: Option<(i32, u64)>) {
        let consumer = self.consumers.entry(number).or_default();
        let before = std::mem::replace(&mut consumer.turn, turn);
        let groups = consumer.groups;
        if before == turn {
            return self.forget_consumer(number);
        }
        if let Some((priority, ticket)) = before {
            self.by_turn.remove(&(Reverse(priority), ticket, number));
            self.by_load
                .remove(&(Reverse(priority), groups, ticket, number));
        }
        if let Some((priority, ticket)) = turn {
            self.by_turn.insert((Reverse(priority), ticket, number));
            self.by_load
                .insert((Reverse(priority), groups, ticket, number));
        }
        self.update_owner(number);
        self.forget_consumer(number);
    }

    /// Changes the number of groups that a consumer owns.
    fn change_load(&mut self, number: u64, owns_more: bool) {
        let consumer = self.consumers.entry(number).or_default();
        let before = consumer.groups;
        debug_assert!(owns_more || before > 0 || planted::is(Bug::GroupOwnerForgotten));
        consumer.groups = match owns_more {
            true => before + 1,
            false => before.saturating_sub(1),
        };
        if let Some((priority, ticket)) = consumer.turn {
            let after = consumer.groups;
            self.by_load
                .remove(&(Reverse(priority), before, ticket, number));
            self.by_load
                .insert((Reverse(priority), after, ticket, number));
        }
    }

    /// Forgets a consumer that owns nothing and cannot get a message.
    fn forget_consumer(&mut self, number: u64) {
        let is_unused = |c: &GroupConsumer| c.groups == 0 && c.turn.is_none();
        if self.consumers.get(&number).is_some_and(is_unused) {
            let consumer = self.consumers.remove(&number);
            debug_assert!(consumer.is_none_or(|c| c.head.is_none()));
        }
    }

    /// A consumer has another unsettled message of a group.
    pub(crate) fn own(&mut self, id: GroupId, number: u64) {
        let group = self.groups.entry(id).or_default();
        debug_assert!(
            group.unsettled == 0 || group.owner == number || planted::is(Bug::GroupOwnerForgotten),
            "consumer {number} takes a group of consumer {}",
            group.owner
        );
        group.owner = number;
        group.unsettled += 1;
        if group.unsettled == 1 {
            self.change_load(number, true);
        }
        self.update_group(id);
    }

    /// An unsettled message of a group is settled, or it is ready or delayed again. Call it after the message was added.
    pub(crate) fn settle(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id).filter(|g| g.unsettled > 0) else {
            debug_assert!(planted::is(Bug::GroupOwnerForgotten), "{id:?} has no owner");
            return;
        };
        group.unsettled -= 1;
        if planted::is(Bug::GroupOwnerForgotten) {
            group.unsettled = 0;
        }
        let owner = group.owner;
        let is_free = group.unsettled == 0;
        if is_free {
            self.change_load(owner, false);
        }
        self.update_group(id);
        if is_free {
            self.forget_consumer(owner);
        }
    }

    /// A message of a group becomes ready later. `is_returned`: it was delivered before, so that its group waits for it.
    pub(crate) fn delay(&mut self, id: GroupId, at: LogLocation, is_returned: bool) {
        self.delayed.insert(at, id);
        if is_returned {
            self.groups.entry(id).or_default().delayed += 1;
            self.update_group(id);
        }
    }

    /// The group of a delayed message.
    pub(crate) fn group_of_delayed(&self, at: LogLocation) -> Option<GroupId> {
        self.delayed.get(&at).copied()
    }

    /// The delay of a message is over. Returns the group to call [`end_wait`](Self::end_wait) with.
    pub(crate) fn end_delay(&mut self, at: LogLocation) -> Option<GroupId> {
        self.delayed.remove(&at)
    }

    /// A group waits no longer for a returned message. Call it after the message was added, so that no later one goes first.
    pub(crate) fn end_wait(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id).filter(|g| g.delayed > 0) else {
            debug_assert!(false, "{id:?} waits for no message");
            return;
        };
        group.delayed -= 1;
        self.update_group(id);
    }

    /// The next delivery. `ungrouped`: the position of the next message without a group.
    pub(crate) fn next(&self, ungrouped: Option<ServicePosition>) -> Option<GroupDelivery> {
        let owned = self.owner_heads.first().filter(|(is_full, ..)| !is_full);
        let free = self
            .next_free(ungrouped)
            .filter(|_| !self.by_turn.is_empty());
        if let Some((_, position, consumer)) = owned
            && free.is_none_or(|(first, _)| *position < first)
        {
            let (_, group) = self.head_of(*consumer)?;
            return Some(GroupDelivery {
                consumer: *consumer,
                group: Some(group),
            });
        }
        let (_, group) = free?;
        let consumer = match group {
            None => self.by_turn.first()?.2,
            Some(group) => self.next_owner(group)?,
        };
        Some(GroupDelivery { consumer, group })
    }

    /// The consumer that gets a free group.
    fn next_owner(&self, group: GroupId) -> Option<u64> {
        let previous = self.groups.get(&group).map(|group| group.owner);
        let can_receive = |number: &u64| {
            let consumer = self.consumers.get(number);
            consumer.is_some_and(|consumer| consumer.turn.is_some())
        };
        match previous.filter(can_receive) {
            Some(previous) => Some(previous),
            None => self.by_load.first().map(|(.., number)| *number),
        }
    }

    /// The next message that no consumer owns.
    pub(crate) fn next_free(
        &self,
        ungrouped: Option<ServicePosition>,
    ) -> Option<(ServicePosition, Option<GroupId>)> {
        let free = self.head_of(FREE);
        let free = free.map(|(position, group)| (position, Some(group)));
        let ungrouped = ungrouped.map(|position| (position, None));
        free.into_iter().chain(ungrouped).min()
    }

    /// Returns true if a message of a group can go to this consumer.
    pub(crate) fn has_message_for(&self, consumer: u64) -> bool {
        self.head_of(FREE).is_some() || self.head_of(consumer).is_some()
    }

    /// The first message of all groups, also of those that are owned or wait.
    pub(crate) fn first(&self) -> Option<(ServicePosition, GroupId)> {
        let owned = |is_full: bool| {
            let from = (is_full, ServicePosition::FIRST, 0);
            let (found, _, owner) = self.owner_heads.range(from..).next()?;
            self.head_of(*owner).filter(|_| *found == is_full)
        };
        let heads = [
            self.head_of(FREE),
            self.head_of(WAITING),
            owned(false),
            owned(true),
        ];
        heads.into_iter().flatten().min()
    }

    /// Removes and returns the first message of a group.
    pub(crate) fn pop(&mut self, group: GroupId) -> Option<RequeuedMessage> {
        let position = self.first_of(group)?;
        self.remove(MessageKey { group, position })
    }

    /// Removes and returns the ready message at a location, and its position. Its group waits for it, like for a delayed one.
    pub(crate) fn take_at(
        &mut self,
        at: LogLocation,
    ) -> Option<(ServicePosition, RequeuedMessage)> {
        let mut keys = self.ready.keys();
        let key = *keys.find(|key| key.position.location() == at)?;
        self.delay(key.group, at, true);
        let message = self.remove(key)?;
        Some((key.position, message))
    }

    /// Removes and returns an expired message.
    pub(crate) fn pop_expired(&mut self, clock: u64) -> Option<LogMessage> {
        let (expires, key) = *self.expiring.first()?;
        if expires > clock {
            return None;
        }
        self.remove(key).map(|message| message.held)
    }

    /// When the next message expires.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.expiring.first().map(|(expires, _)| *expires)
    }

    /// Drops all ready and delayed messages. Unsettled ones stay, and so do previous owners.
    pub(crate) fn clear(&mut self) {
        self.ready = BTreeMap::new();
        self.heads = BTreeSet::new();
        self.owner_heads = BTreeSet::new();
        self.delayed = BTreeMap::new();
        self.expiring = BTreeSet::new();
        self.requeued = 0;
        self.levels = Default::default();
        for consumer in self.consumers.values_mut() {
            consumer.head = None;
        }
        for group in self.groups.values_mut() {
            group.head = None;
            group.delayed = 0;
        }
        let all: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in all {
            self.update_group(group);
        }
    }

    /// All ready messages with their positions, by group and then in service order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ServicePosition, RequeuedMessage)> + '_ {
        let all = self.ready.iter();
        all.map(|(key, message)| (key.position, message_of(*key, *message)))
    }

    /// Previous owners of groups that no consumer owns and that have messages, by group.
    pub(crate) fn previous_owners(&self) -> impl Iterator<Item = PreviousOwner> + '_ {
        let is_listed = |g: &&Group| g.owner != 0 && g.unsettled == 0 && g.idle == 0;
        let all = self.groups.iter();
        all.filter(move |(_, group)| is_listed(group))
            .map(|(id, group)| PreviousOwner {
                group: *id,
                consumer: group.owner,
            })
    }

    /// Previous owners of groups without messages. The group that has had no message for the longest time comes first.
    pub(crate) fn idle_owners(&self) -> impl Iterator<Item = PreviousOwner> + '_ {
        self.idle.values().filter_map(|id| {
            let consumer = self.groups.get(id)?.owner;
            Some(PreviousOwner {
                group: *id,
                consumer,
            })
        })
    }

    /// Restores a previous owner from a checkpoint, after the messages. Groups without messages come in their order. Returns
    /// false, without effect, if the group cannot have a previous owner.
    pub(crate) fn restore_owner(&mut self, previous: PreviousOwner, has_messages: bool) -> bool {
        let known = self.groups.get(&previous.group);
        let is_valid = match known {
            None => !has_messages,
            Some(group) => has_messages && group.owner == 0,
        };
        if is_valid {
            self.groups.entry(previous.group).or_default().owner = previous.consumer;
            self.update_group(previous.group);
        }
        is_valid
    }

    /// Asserts that the indexes agree with the groups and the messages.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self) {
        let mut ready: BTreeMap<GroupId, u64> = BTreeMap::new();
        for key in self.ready.keys() {
            *ready.entry(key.group).or_default() += 1;
        }
        assert!(ready.keys().all(|group| self.groups.contains_key(group)));
        let mut heads = BTreeSet::new();
        let mut owned: BTreeMap<u64, u32> = BTreeMap::new();
        let mut idle = 0;
        for (id, group) in &self.groups {
            let holder = match (group.delayed > 0, group.unsettled > 0) {
                (true, _) => WAITING,
                (false, true) => group.owner,
                (false, false) => FREE,
            };
            let head = self.first_of(*id).map(|position| (holder, position));
            assert_eq!(group.head, head, "{id:?}");
            heads.extend(head.map(|(holder, position)| (holder, position, *id)));
            *owned.entry(group.owner).or_default() += u32::from(group.unsettled > 0);
            let is_idle = head.is_none() && group.unsettled + group.delayed == 0;
            assert_eq!(is_idle, group.idle != 0);
            assert!(!is_idle || self.idle.get(&group.idle) == Some(id) && group.owner != 0);
            idle += usize::from(is_idle);
        }
        assert_eq!(heads, self.heads);
        assert_eq!(idle, self.idle.len());
        let (mut owner_heads, mut by_turn, mut by_load) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (number, consumer) in &self.consumers {
            let groups = owned.get(number).copied().unwrap_or(0);
            assert_eq!(consumer.groups, groups, "consumer {number}");
            assert!(groups > 0 || consumer.turn.is_some());
            let is_full = consumer.turn.is_none();
            let head = self.head_of(*number);
            owner_heads.extend(head.map(|(position, _)| (is_full, position, *number)));
            if let Some((priority, ticket)) = consumer.turn {
                by_turn.insert((Reverse(priority), ticket, *number));
                by_load.insert((Reverse(priority), groups, ticket, *number));
            }
        }
        assert_eq!(owner_heads, self.owner_heads);
        assert_eq!(
            (by_turn, by_load),
            (self.by_turn.clone(), self.by_load.clone())
        );
        let requeued = self.ready.keys().filter(|k| k.position.class == 0);
        assert_eq!(self.requeued, requeued.count() as u64);
        assert_eq!(self.requeued + self.levels.iter().sum::<u64>(), self.len());
        let expiring = self.ready.values().filter(|message| message.expires != 0);
        assert_eq!(expiring.count(), self.expiring.len());
    }
}

fn message_of(key: MessageKey, message: ReadyMessage) -> RequeuedMessage {
    let LogLocation { index, offset } = key.position.location();
    RequeuedMessage {
        held: LogMessage {
            index,
            offset,
            body: message.body,
            level: key.position.level().unwrap_or(DEFAULT_LEVEL),
            group: Some(key.group),
            expires: message.expires,
        },
        counts: message.counts,
    }
}
