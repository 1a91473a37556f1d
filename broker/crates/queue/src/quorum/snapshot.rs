//! Checkpoints of the state machine: all of its state except the messages, which stay in the log.
//!
//! The checkpoint of a queue without [features](QuorumFeatures) has the format of version 0.2. The other format has the
//! features behind the version byte. It has no priorities except those of messages that were never delivered, which
//! are the only ones with an effect.
//!
//! Maps are written in the order of their keys, so that replicas with the same history write the same bytes.

use super::annotations::MessageAnnotations;
use super::dead_letter::DeadLetters;
use super::deduplicator::Deduplicator;
use super::delayed::{Delayed, DelayedMessage};
use super::effects::LogLocation;
use super::grouped::{GroupedMessages, LAST_CLASS, PreviousOwner, ServicePosition};
use super::machine::{Machine, take_from_place};
use super::ready::{DEFAULT_LEVEL, HIGHEST_LEVEL, LogMessage, Ready, RequeuedMessage};
use super::taken::{Place, TakenMessages};
use crate::checkout::{
    Checkout, Consumer, KnownEpoch, PendingDrain, SessionRecord, UnsettledMessage, WaitingConsumer,
};
use crate::codec::VERSION;
use crate::groups::GroupId;
use crate::{
    Annotations, ConsumerId, ConsumerSpec, DeadReason, DeliveryCounts, FlowMode, Name, QueueReply,
    QueueSettings, QuorumFeatures, RefusedPublishes, SessionId,
};
use bytes::{BufMut, Bytes, BytesMut};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId};
use std::cmp::Reverse;
use std::sync::Arc;
use wire::{
    DecodeCause, DecodeError, Decoded, Reader, Wire, get_quorum_settings, put_quorum_settings,
    put_varint, wire_struct,
};

/// The name of the format in errors.
const FORMAT: &str = "state";
/// Version of the format with features.
const FEATURES_VERSION: u8 = 2;
/// FNV-1a, 64 bits.
const DIGEST_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const DIGEST_PRIME: u64 = 0x0000_0100_0000_01b3;

/// A checkpoint cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint of a quorum queue cannot be read: its {0}")]
pub struct RestoreError(#[from] pub(super) DecodeError);

/// The format of a checkpoint, which depends on the features of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format(QuorumFeatures);

impl Format {
    /// Version 0.2: messages have a flag for high priority.
    fn is_baseline(self) -> bool {
        self.0.is_empty()
    }

    /// Messages can be delayed.
    fn has_delayed(self) -> bool {
        self.0.delayed_retry || self.0.scheduled_delivery
    }

    /// All deliveries of a message are stored, not only failed ones: they are counted, or a message that waits in front of
    /// others may not have been delivered yet.
    fn has_counts(self) -> bool {
        self.0.delivery_counts || self.0.scheduled_delivery
    }

    /// Publishes are remembered.
    fn has_publishes(self) -> bool {
        self.0.deduplication
    }

    /// Messages have groups.
    fn has_groups(self) -> bool {
        self.0.message_groups
    }
}

impl Machine {
    /// Encodes the state.
    pub fn snapshot(&self) -> Bytes {
        let mut out = BytesMut::new();
        let format = Format(self.features);
        match format.is_baseline() {
            true => out.put_u8(VERSION),
            false => {
                out.put_u8(FEATURES_VERSION);
                self.features.put(&mut out);
            }
        }
        self.settings.put(&mut out);
        put_quorum_settings(&self.settings.quorum, self.features, &mut out);
        put_varint(&mut out, self.clock);
        put_varint(&mut out, self.applied);
        out.put_u8(self.ready.turn);
        self.blocked.put(&mut out);
        put_ready(&mut out, &self.ready, &self.taken, format);
        if format.has_delayed() {
            put_delayed(&mut out, (&self.delayed, &self.taken), &self.ready, format);
        }
        put_checkout(&mut out, &self.checkout, format);
        put_annotations(&mut out, &self.annotations);
        put_dead_letters(&mut out, &self.dead, format);
        if format.has_publishes() {
            put_publishes(&mut out, &self.deduplicator);
        }
        if let Some(groups) = self.ready.groups() {
            debug_assert!(format.has_groups());
            put_previous_owners(&mut out, groups);
        }
        out.freeze()
    }

    /// Restores the state machine that wrote `state`.
    ///
    /// # Errors
    ///
    /// If the bytes are not a checkpoint of this version.
    pub fn restore(label: Name, state: Bytes) -> Result<Machine, RestoreError> {
        let from = &mut Reader::shared(FORMAT, &state);
        let features = match from.u8()? {
            VERSION => QuorumFeatures::default(),
            FEATURES_VERSION => from.get()?,
            other => return Err(from.error(DecodeCause::Version(other)).into()),
        };
        let mut settings: QueueSettings = from.get()?;
        settings.quorum = get_quorum_settings(from, features)?;
        let mut machine = Machine::new(label, settings);
        machine.enable_features(features);
        let format = Format(features);
        machine.clock = from.varint()?;
        machine.applied = from.varint()?;
        machine.ready.turn = from.u8()?;
        machine.blocked = from.get()?;
        get_ready(from, &mut machine.ready, format)?;
        if planted::is(Bug::ExpiryIndexForgotten) {
            machine.ready.forget_early();
        }
        if format.has_delayed() {
            get_delayed(from, &mut machine.delayed, &mut machine.ready, format)?;
        }
        get_checkout(from, &mut machine.checkout, format)?;
        get_annotations(from, &mut machine.annotations)?;
        get_dead_letters(from, &mut machine.dead, format)?;
        if format.has_publishes() {
            get_publishes(from, &mut machine.deduplicator)?;
        }
        machine.restore_taken();
        let consumers = machine.checkout.consumers.iter();
        for (number, unsettled) in consumers.flat_map(|(n, c)| c.out.values().map(move |o| (*n, o)))
        {
            machine.ready.own(unsettled.item.group, number);
        }
        if let Some(groups) = machine.ready.groups_mut() {
            get_previous_owners(from, groups)?;
        }
        from.end()?;
        let consumers = machine.checkout.consumers.values();
        let unsettled = consumers.flat_map(|c| c.out.values().map(|o| u64::from(o.item.body)));
        machine.out_bytes = unsettled.sum();
        machine.checkout.forget_flow();
        Ok(machine)
    }

    /// Takes the messages that are also unsettled out of their places. Only a consumer of a single message can have one.
    fn restore_taken(&mut self) {
        let getting = self.checkout.consumers.values().filter(|c| c.get);
        let unsettled = getting.flat_map(|c| c.out.values().map(|o| o.item.location()));
        let unsettled: Vec<LogLocation> = unsettled.collect();
        for at in unsettled {
            take_from_place(&mut self.ready, &mut self.delayed, &mut self.taken, at);
        }
    }

    /// A number that is equal on replicas with equal state.
    pub fn digest(&self) -> u64 {
        self.snapshot().iter().fold(DIGEST_BASIS, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(DIGEST_PRIME)
        })
    }
}

/// Bytes of a typical message in a checkpoint: two for the difference of the index or the offset, one for a difference of
/// zero, two for the body length and flags.
const TYPICAL_BYTES: usize = 5;

/// Bytes of a typical delayed message in a checkpoint: two for the difference of its time, five for its index, two for its offset,
/// four for its length, level and TTL, two for its deliveries.
const TYPICAL_DELAYED_BYTES: usize = 15;

fn put_ready(out: &mut BytesMut, ready: &Ready, taken: &TakenMessages, format: Format) {
    // A buffer that grows by doubling would need three times the memory while it is copied.
    let count = usize::try_from(ready.len()).unwrap_or(0);
    out.reserve(count.saturating_mul(TYPICAL_BYTES));
    match format.is_baseline() {
        true => put_fresh(out, ready.fresh().count() as u64, ready.fresh(), format),
        false => {
            put_varint(out, ready.fresh_by_level().count() as u64);
            for (level, count, messages) in ready.fresh_by_level() {
                out.put_u8(level);
                put_fresh(out, count, messages, format);
            }
        }
    }
    put_varint(out, ready.returned().count() as u64);
    for requeued in ready.returned() {
        put_requeued(out, &requeued, format);
    }
    put_varint(out, ready.postponed().count() as u64);
    for (after, requeued) in ready.postponed() {
        put_location(out, after);
        put_requeued(out, &requeued, format);
    }
    if format.has_groups() {
        let taken = taken.values().filter_map(|taken| match taken.place {
            Place::Grouped(position) => Some((position, taken.message)),
            Place::Delayed { .. } => None,
        });
        put_varint(
            out,
            (ready.grouped().count() + taken.clone().count()) as u64,
        );
        for (position, requeued) in ready.grouped().chain(taken) {
            out.put_u8(position.class());
            put_requeued(out, &requeued, format);
        }
    }
}

/// New messages are encoded as differences to the one before, in a few bytes each.
fn put_fresh(
    out: &mut BytesMut,
    count: u64,
    messages: impl Iterator<Item = LogMessage>,
    format: Format,
) {
    put_varint(out, count);
    let (mut index, mut offset) = (0, 0);
    for message in messages {
        // Offsets count from the message before if it is in the same entry.
        let base = if message.index == index { offset } else { 0 };
        put_varint(out, message.index.wrapping_sub(index));
        put_varint(out, u64::from(message.offset.wrapping_sub(base)));
        put_properties(out, &message, format);
        (index, offset) = (message.index, message.offset);
    }
}

fn get_ready(from: &mut Reader<'_>, ready: &mut Ready, format: Format) -> Decoded<()> {
    match format.is_baseline() {
        true => get_fresh(from, ready, None, format)?,
        false => {
            let mut above = HIGHEST_LEVEL + 1;
            for _ in 0..from.varint_count(MIN_LEVEL_LEN)? {
                let level = from.u8()?;
                // The levels descend.
                if level >= above {
                    return Err(from.error(DecodeCause::Inconsistent("priority level")));
                }
                above = level;
                get_fresh(from, ready, Some(level), format)?;
            }
        }
    }
    for _ in 0..from.varint_count(MIN_REQUEUED_LEN)? {
        let message = get_message(from, format)?;
        ready.give_back(message, get_counts(from, format)?);
    }
    for _ in 0..from.varint_count(MIN_LOCATION_LEN + MIN_REQUEUED_LEN)? {
        let after = get_location(from)?;
        let message = get_message(from, format)?;
        ready.postpone(message, get_counts(from, format)?, after);
    }
    if format.has_groups() {
        for _ in 0..from.varint_count(u8::MIN_LEN + MIN_REQUEUED_LEN)? {
            let class = from.u8()?;
            let held = get_message(from, format)?;
            let counts = get_counts(from, format)?;
            let position = ServicePosition::of_class(class, held.location());
            let is_valid = class <= LAST_CLASS && held.group.is_some();
            if !is_valid || !ready.restore_grouped(position, &RequeuedMessage { held, counts }) {
                return Err(from.error(DecodeCause::Inconsistent("message of a group")));
            }
        }
    }
    Ok(())
}

fn put_previous_owners(out: &mut BytesMut, groups: &GroupedMessages) {
    put_varint(out, groups.previous_owners().count() as u64);
    for previous in groups.previous_owners() {
        put_previous_owner(out, previous);
    }
    put_varint(out, groups.idle_owners().count() as u64);
    for previous in groups.idle_owners() {
        put_previous_owner(out, previous);
    }
}

fn put_previous_owner(out: &mut BytesMut, previous: PreviousOwner) {
    out.put_u32(previous.group.number());
    put_varint(out, previous.consumer);
}

/// Both lists: the first are groups with messages.
fn get_previous_owners(from: &mut Reader<'_>, groups: &mut GroupedMessages) -> Decoded<()> {
    for has_messages in [true, false] {
        for _ in 0..from.varint_count(MIN_PREVIOUS_OWNER_LEN)? {
            let group = get_group(from)?;
            let consumer = from.varint()?;
            let is_new = groups.restore_owner(PreviousOwner { group, consumer }, has_messages);
            if consumer == 0 || !is_new {
                return Err(from.error(DecodeCause::Inconsistent("owner of a group")));
            }
        }
    }
    Ok(())
}

fn get_group(from: &mut Reader<'_>) -> Decoded<GroupId> {
    let invalid = from.error(DecodeCause::Inconsistent("group of a message"));
    GroupId::from_number(from.get()?).ok_or(invalid)
}

/// The times are encoded as differences to the one before.
fn put_delayed(
    out: &mut BytesMut,
    (delayed, taken): (&Delayed, &TakenMessages),
    ready: &Ready,
    format: Format,
) {
    let taken = taken.values().filter_map(|taken| match taken.place {
        Place::Delayed { due } => Some(DelayedMessage {
            due,
            requeued: taken.message,
        }),
        Place::Grouped(_) => None,
    });
    let count = match planted::is(Bug::DelayedForgotten) {
        true => 0,
        false => usize::MAX,
    };
    let all = delayed.sorted(taken).take(count);
    put_varint(out, all.len() as u64);
    out.reserve(all.len().saturating_mul(TYPICAL_DELAYED_BYTES));
    let mut before = 0;
    for mut message in all {
        let held = &mut message.requeued.held;
        held.group = ready.group_of_delayed(held.location());
        put_varint(out, message.due.wrapping_sub(before));
        put_requeued(out, &message.requeued, format);
        before = message.due;
    }
}

fn get_delayed(
    from: &mut Reader<'_>,
    delayed: &mut Delayed,
    ready: &mut Ready,
    format: Format,
) -> Decoded<()> {
    let mut due = 0u64;
    for _ in 0..from.varint_count(MIN_NUMBER_LEN + MIN_REQUEUED_LEN)? {
        due = due.wrapping_add(from.varint()?);
        let held = get_message(from, format)?;
        let counts = get_counts(from, format)?;
        let requeued = RequeuedMessage { held, counts };
        ready.delay(&requeued);
        delayed.push(&DelayedMessage { due, requeued });
    }
    Ok(())
}

/// The times are encoded as differences to the one before.
fn put_publishes(out: &mut BytesMut, all: &Deduplicator) {
    let none = Deduplicator::default();
    let all = match planted::is(Bug::DeduplicationForgotten) {
        true => &none,
        false => all,
    };
    put_varint(out, all.publishers().len() as u64);
    for (name, last) in all.publishers() {
        name.put(out);
        put_varint(out, last);
    }
    put_varint(out, all.values().len() as u64);
    let mut before = 0;
    for (value, at) in all.values() {
        value.put(out);
        put_varint(out, at.wrapping_sub(before));
        before = at;
    }
}

fn get_publishes(from: &mut Reader<'_>, all: &mut Deduplicator) -> Decoded<()> {
    for _ in 0..from.varint_count(Name::MIN_LEN + MIN_NUMBER_LEN)? {
        let name: Name = from.get()?;
        all.restore_publisher(name, from.varint()?);
    }
    let mut at = 0u64;
    for _ in 0..from.varint_count(Name::MIN_LEN + MIN_NUMBER_LEN)? {
        let value: Name = from.get()?;
        at = at.wrapping_add(from.varint()?);
        all.restore_value(value, at);
    }
    Ok(())
}

/// `level`: of all these messages. `None`: their properties have it.
fn get_fresh(
    from: &mut Reader<'_>,
    ready: &mut Ready,
    level: Option<u8>,
    format: Format,
) -> Decoded<()> {
    let (mut index, mut offset) = (0u64, 0u32);
    for _ in 0..from.varint_count(MIN_MESSAGE_LEN)? {
        let delta = from.varint()?;
        let base = if delta == 0 { offset } else { 0 };
        index = index.wrapping_add(delta);
        offset = base.wrapping_add(from.varint32()?);
        let mut message = get_properties(from, LogLocation { index, offset }, format)?;
        message.level = level.unwrap_or(message.level);
        ready.push(&message);
    }
    Ok(())
}

fn put_requeued(out: &mut BytesMut, requeued: &RequeuedMessage, format: Format) {
    put_message(out, &requeued.held, format);
    put_counts(out, requeued.counts, format);
}

/// The counts of a requeued message.
fn put_counts(out: &mut BytesMut, counts: DeliveryCounts, format: Format) {
    put_varint(out, counts.failed.into());
    if format.has_counts() {
        put_varint(out, counts.acquired().into());
    }
}

fn get_counts(from: &mut Reader<'_>, format: Format) -> Decoded<DeliveryCounts> {
    let failed = from.varint32()?;
    match format.has_counts() {
        true => Ok(DeliveryCounts::new(failed, from.varint32()?)),
        false => Ok(DeliveryCounts::uncounted(failed, true)),
    }
}

fn put_location(out: &mut BytesMut, at: LogLocation) {
    put_varint(out, at.index);
    put_varint(out, at.offset.into());
}

fn get_location(from: &mut Reader<'_>) -> Decoded<LogLocation> {
    Ok(LogLocation {
        index: from.varint()?,
        offset: from.varint32()?,
    })
}

fn put_message(out: &mut BytesMut, message: &LogMessage, format: Format) {
    put_location(out, message.location());
    put_properties(out, message, format);
}

fn get_message(from: &mut Reader<'_>, format: Format) -> Decoded<LogMessage> {
    let at = get_location(from)?;
    get_properties(from, at, format)
}

/// Length of the body and the flags in one number, then the time of expiry if the message has one. The group is last, if the
/// queue has groups and the message is of one.
fn put_properties(out: &mut BytesMut, message: &LogMessage, format: Format) {
    let expires = message.expires != 0;
    let body = u64::from(message.body);
    put_varint(
        out,
        match format.is_baseline() {
            true => {
                let high = message.level == HIGHEST_LEVEL;
                body << 2 | u64::from(expires) << 1 | u64::from(high)
            }
            false if format.has_groups() => {
                let has_group = message.group.is_some();
                body << 2 | u64::from(has_group) << 1 | u64::from(expires)
            }
            false => body << 1 | u64::from(expires),
        },
    );
    if expires {
        put_varint(out, message.expires);
    }
    if let Some(group) = message.group {
        debug_assert!(format.has_groups(), "{group:?} in a queue without groups");
        out.put_u32(group.number());
    }
}

fn get_properties(from: &mut Reader<'_>, at: LogLocation, format: Format) -> Decoded<LogMessage> {
    let packed = from.varint()?;
    let (body, expires, level) = match format.is_baseline() {
        true if packed & 1 != 0 => (packed >> 2, packed & 2 != 0, HIGHEST_LEVEL),
        true => (packed >> 2, packed & 2 != 0, DEFAULT_LEVEL),
        false if format.has_groups() => (packed >> 2, packed & 1 != 0, DEFAULT_LEVEL),
        false => (packed >> 1, packed & 1 != 0, DEFAULT_LEVEL),
    };
    let has_group = format.has_groups() && packed & 2 != 0;
    Ok(LogMessage {
        index: at.index,
        offset: at.offset,
        body: u32::try_from(body).map_err(|_| from.error(DecodeCause::Limit))?,
        level,
        expires: if expires { from.varint()? } else { 0 },
        group: if has_group {
            Some(get_group(from)?)
        } else {
            None
        },
    })
}

fn put_dead_letters(out: &mut BytesMut, dead: &DeadLetters, format: Format) {
    put_varint(out, dead.next());
    put_varint(out, dead.len());
    for (id, message, reason) in dead.kept() {
        put_varint(out, id);
        out.put_u8(reason as u8);
        put_message(out, message, format);
    }
}

fn get_dead_letters(from: &mut Reader<'_>, dead: &mut DeadLetters, format: Format) -> Decoded<()> {
    let next = from.varint()?;
    for _ in 0..from.varint_count(MIN_DEAD_LEN)? {
        let id = from.varint()?;
        let byte = from.u8()?;
        let unknown = from.error(DecodeCause::Tag("a dead-letter reason", byte));
        let reason = DeadReason::from_byte(byte).ok_or(unknown)?;
        dead.keep(id, get_message(from, format)?, reason);
    }
    dead.number_from(next);
    Ok(())
}

/// Bytes of a number in the shortest case.
const MIN_NUMBER_LEN: usize = 1;
/// Bytes of a place in the log in the shortest case: its index and its offset.
const MIN_LOCATION_LEN: usize = 2 * MIN_NUMBER_LEN;
/// Bytes of a message in the shortest case: its place, and its length with the flags. It has no time of expiry.
const MIN_MESSAGE_LEN: usize = MIN_LOCATION_LEN + MIN_NUMBER_LEN;
/// A level and its number of messages.
const MIN_LEVEL_LEN: usize = u8::MIN_LEN + MIN_NUMBER_LEN;
/// A message and its attempts.
const MIN_REQUEUED_LEN: usize = MIN_MESSAGE_LEN + MIN_NUMBER_LEN;
/// An id, a reason and a message.
const MIN_DEAD_LEN: usize = MIN_NUMBER_LEN + u8::MIN_LEN + MIN_MESSAGE_LEN;
/// A group and the number of a consumer.
const MIN_PREVIOUS_OWNER_LEN: usize = u32::MIN_LEN + MIN_NUMBER_LEN;
const MIN_ANNOTATED_LEN: usize = MIN_LOCATION_LEN + Annotations::MIN_LEN;
/// The session, its last number, the refused numbers and the number of answers.
const MIN_SESSION_LEN: usize =
    SessionId::MIN_LEN + MIN_NUMBER_LEN + <Vec<RefusedPublishes>>::MIN_LEN + MIN_NUMBER_LEN;
const MIN_ANSWER_LEN: usize = MIN_NUMBER_LEN + QueueReply::MIN_LEN;
/// The number, session, id and specification, five flags, the next delivery, the ticket and the number of deliveries.
const MIN_CONSUMER_LEN: usize = MIN_NUMBER_LEN
    + SessionId::MIN_LEN
    + ConsumerId::MIN_LEN
    + ConsumerSpec::MIN_LEN
    + 5 * bool::MIN_LEN
    + 3 * MIN_NUMBER_LEN;
/// An id, a message, its attempts, the messages left and a flag.
const MIN_UNSETTLED_LEN: usize =
    MIN_NUMBER_LEN + MIN_MESSAGE_LEN + 2 * MIN_NUMBER_LEN + bool::MIN_LEN;

/// Numbers of consumers begin with 1.
fn put_number(out: &mut BytesMut, number: Option<u64>) {
    put_varint(out, number.unwrap_or(0));
}

fn get_number(from: &mut Reader<'_>) -> Decoded<Option<u64>> {
    Ok(Some(from.varint()?).filter(|number| *number != 0))
}

wire_struct!(KnownEpoch {
    first: SessionId,
    at: u64 as wire::Varint,
});
wire_struct!(PendingDrain {
    session: SessionId,
    seq: u64 as wire::Varint,
});

fn put_checkout(out: &mut BytesMut, checkout: &Checkout<LogMessage>, format: Format) {
    checkout.deleted.put(out);
    put_varint(out, checkout.next_consumer);
    put_varint(out, checkout.next_ticket);
    put_number(out, checkout.active);
    put_number(out, checkout.exclusive);
    put_varint(out, checkout.sessions.len() as u64);
    for (session, record) in &checkout.sessions {
        session.put(out);
        put_session_record(out, record);
    }
    put_varint(out, checkout.consumers.len() as u64);
    for (number, consumer) in &checkout.consumers {
        put_varint(out, *number);
        put_consumer(out, consumer, format);
    }
    put_varint(out, checkout.closed.len() as u64);
    for (at, session) in &checkout.closed {
        put_varint(out, *at);
        session.put(out);
    }
    put_varint(out, checkout.gone.len() as u64);
    for (node, before) in &checkout.gone {
        node.put(out);
        before.put(out);
    }
    put_varint(out, checkout.suspended.len() as u64);
    for node in &checkout.suspended {
        node.put(out);
    }
    checkout.epoch.put(out);
    put_varint(out, checkout.drains.len() as u64);
    for (number, drain) in &checkout.drains {
        put_varint(out, *number);
        drain.put(out);
    }
}

fn get_checkout(
    from: &mut Reader<'_>,
    checkout: &mut Checkout<LogMessage>,
    format: Format,
) -> Decoded<()> {
    checkout.deleted = from.get()?;
    checkout.next_consumer = from.varint()?;
    checkout.next_ticket = from.varint()?;
    checkout.active = get_number(from)?;
    checkout.exclusive = get_number(from)?;
    for _ in 0..from.varint_count(MIN_SESSION_LEN)? {
        let session = from.get()?;
        let record = get_session_record(from)?;
        checkout.sessions.insert(session, Box::new(record));
    }
    for _ in 0..from.varint_count(MIN_CONSUMER_LEN)? {
        let number = from.varint()?;
        let consumer = get_consumer(from, format)?;
        index_consumer(checkout, number, consumer);
    }
    for _ in 0..from.varint_count(MIN_NUMBER_LEN + SessionId::MIN_LEN)? {
        let at = from.varint()?;
        let session = from.get()?;
        checkout.closed.push_back((at, session));
        checkout.closed_set.insert(session);
    }
    for _ in 0..from.varint_count(NodeId::MIN_LEN + Incarnation::MIN_LEN)? {
        let node = from.get()?;
        checkout.gone.insert(node, from.get()?);
    }
    for _ in 0..from.varint_count(NodeId::MIN_LEN)? {
        checkout.suspended.insert(from.get()?);
    }
    checkout.epoch = from.get()?;
    for _ in 0..from.varint_count(MIN_NUMBER_LEN + PendingDrain::MIN_LEN)? {
        let number = from.varint()?;
        checkout.drains.insert(number, from.get()?);
    }
    Ok(())
}

/// Adds a consumer and derives its entries in the indexes, which are not written.
fn index_consumer(
    checkout: &mut Checkout<LogMessage>,
    number: u64,
    consumer: Consumer<LogMessage>,
) {
    let priority = Reverse(consumer.spec.priority);
    if let Some(state) = checkout.sessions.get_mut(&consumer.session) {
        state.consumers.insert(consumer.id, number);
    }
    if consumer.takes_turns() {
        checkout.candidates.insert((priority, number));
        if consumer.spec.filter.is_some() {
            checkout.filtered.insert(number);
        }
    }
    if let Some(ticket) = consumer.ticket {
        checkout.begin_turn(priority.0, WaitingConsumer { ticket, number });
    }
    if !consumer.get && !consumer.cancelled {
        checkout.live += 1;
    }
    checkout.out += consumer.out.len() as u64;
    checkout.consumers.insert(number, Box::new(consumer));
}

fn put_annotations(out: &mut BytesMut, annotations: &MessageAnnotations) {
    put_varint(out, annotations.len() as u64);
    for (at, annotations) in annotations.iter() {
        put_location(out, at);
        annotations.put(out);
    }
}

fn get_annotations(from: &mut Reader<'_>, annotations: &mut MessageAnnotations) -> Decoded<()> {
    for _ in 0..from.varint_count(MIN_ANNOTATED_LEN)? {
        let at = get_location(from)?;
        annotations.add(at, &Arc::new(from.get()?));
    }
    Ok(())
}

fn put_session_record(out: &mut BytesMut, record: &SessionRecord) {
    put_varint(out, record.last);
    wire::put_list(out, record.refused.iter());
    put_varint(out, record.answers.len() as u64);
    for (seq, answer) in &record.answers {
        put_varint(out, *seq);
        answer.put(out);
    }
}

fn get_session_record(from: &mut Reader<'_>) -> Decoded<SessionRecord> {
    let mut record = SessionRecord {
        last: from.varint()?,
        refused: from.get::<Vec<_>>()?.into(),
        ..SessionRecord::default()
    };
    for _ in 0..from.varint_count(MIN_ANSWER_LEN)? {
        let seq = from.varint()?;
        record.answers.push_back((seq, from.get()?));
    }
    Ok(record)
}

fn put_consumer(out: &mut BytesMut, consumer: &Consumer<LogMessage>, format: Format) {
    consumer.session.put(out);
    consumer.id.put(out);
    consumer.spec.put(out);
    for flag in [
        consumer.get,
        consumer.cancelled,
        consumer.suspended,
        consumer.lasting,
        consumer.succeeded,
    ] {
        flag.put(out);
    }
    put_varint(out, consumer.next_id);
    if consumer.spec.flow_mode == FlowMode::Credit {
        put_varint(out, consumer.credit);
    }
    put_number(out, consumer.ticket);
    put_varint(out, consumer.out.len() as u64);
    for (id, unsettled) in consumer.out.iter() {
        put_varint(out, id);
        put_message(out, &unsettled.item, format);
        put_varint(out, unsettled.counts.failed.into());
        put_varint(out, unsettled.left);
        match format.has_counts() {
            // Of a message that was never delivered before it is 0.
            true => put_varint(out, unsettled.counts.acquired().into()),
            false => unsettled.counts.is_redelivery().put(out),
        }
    }
}

fn get_consumer(from: &mut Reader<'_>, format: Format) -> Decoded<Consumer<LogMessage>> {
    let (session, id, spec) = (from.get()?, from.get()?, from.get()?);
    let mut consumer = Consumer::new(session, id, spec, from.get()?);
    consumer.cancelled = from.get()?;
    consumer.suspended = from.get()?;
    consumer.lasting = from.get()?;
    consumer.succeeded = from.get()?;
    consumer.next_id = from.varint()?;
    if consumer.spec.flow_mode == FlowMode::Credit {
        consumer.credit = from.varint()?;
    }
    consumer.ticket = get_number(from)?;
    for _ in 0..from.varint_count(MIN_UNSETTLED_LEN)? {
        let id = from.varint()?;
        let item = get_message(from, format)?;
        let (failed, left) = (from.varint32()?, from.varint()?);
        let counts = match format.has_counts() {
            true => DeliveryCounts::new(failed, from.varint32()?),
            false => DeliveryCounts::uncounted(failed, from.get()?),
        };
        let unsettled = UnsettledMessage { item, counts, left };
        // The ids ascend and are below that of the next delivery.
        if id >= consumer.next_id || !consumer.out.push(id, unsettled) {
            return Err(from.error(DecodeCause::Inconsistent("delivery id")));
        }
    }
    Ok(consumer)
}
