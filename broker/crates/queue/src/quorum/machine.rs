//! The state machine of a quorum queue.

use super::annotations::MessageAnnotations;
use super::command::{BatchReader, Command, Configuration, DecodedCommand, decode};
use super::dead_letter::DeadLetters;
use super::deduplicator::Deduplicator;
use super::delayed::{Delayed, DelayedMessage};
use super::effects::{Effect, Effects, LogLocation};
use super::ready::{DEFAULT_LEVEL, LogMessage, Ready, RequeuedMessage};
use super::taken::{Place, TakenMessage, TakenMessages};
use crate::annotations::delivery_delay;
use crate::checkout::{
    Admission, CLOSED_MS, Checkout, Dequeued, HandedOut, MessageStore, Requeue, RequeueReason,
    Weighed,
};
use crate::deduplication::deduplication_id;
use crate::groups::{GroupId, group_of};
use crate::{
    Annotations, BrowsePosition, ConsumerId, ConsumerInfo, DeadIncarnation, DeadReason,
    DelayedDetails, DelayedRetry, DeliveryCounts, DeliveryProgress, Name, Overflow, QueueCounters,
    QueueEvent, QueueSettings, QueueStats, QueueType, QuorumFeatures, ReadyDetails, RejectReason,
    RequestBody, ResumeConsumer, SessionId,
};
use bytes::Bytes;
use env::planted::{self, Bug};
use env::{NodeId, WallTime};
use message::Message;
use std::sync::Arc;
use wire::{DecodeError, Decoded};

/// Most milliseconds by which closed sessions age between two commands. The clock may leap further after an
/// idle time or when a wall clock is set.
const MAX_STEP_MS: u64 = CLOSED_MS / 10;
/// Longest delay in milliseconds that a client can ask for: ten years, so that sums of times do not overflow.
const MAX_DELAY_MS: u64 = 315_360_000_000;
/// Most messages that a command drops because they have expired or makes ready because their delay is over, with exact
/// expiry. More would keep the shard from its other work: a million takes up to two seconds. The leader logs another
/// command at once, for the next ones.
pub(crate) const DUE_PER_COMMAND: u32 = 4_096;
/// With `reject-publish`, publishes are accepted again below this many tenths of each limit.
const RESUME_TENTHS: u64 = 8;

/// The replicated state of a quorum queue. It holds locations of messages in the log, not the messages.
#[derive(Debug)]
pub struct Machine {
    pub(super) settings: QueueSettings,
    pub(super) features: QuorumFeatures,
    /// The highest wall clock of all commands, in milliseconds.
    pub(super) clock: u64,
    /// Index of the last applied entry.
    pub(super) applied: u64,
    pub(super) ready: Ready,
    /// Messages that become ready later.
    pub(super) delayed: Delayed,
    /// Unsettled messages that go back to a place of their own.
    pub(super) taken: TakenMessages,
    /// Body bytes of unsettled messages.
    pub(super) out_bytes: u64,
    /// A limit with `reject-publish` is exceeded: publishes are refused until there is room again.
    pub(super) blocked: bool,
    pub(super) checkout: Checkout<LogMessage>,
    pub(super) dead: DeadLetters,
    pub(crate) annotations: MessageAnnotations,
    /// Publishes that are recognised when they come again.
    pub(super) deduplicator: Deduplicator,
    /// Location of the request that is being applied.
    at: LogLocation,
    /// How many more messages the command that is being applied may drop or make ready because their time has come.
    due_left: u32,
}

/// A committed command that this version cannot decode, probably since a newer version wrote it. Other members
/// may have applied it, so this member must not apply or report anything further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of its log cannot be read: {error}")]
pub struct UnknownCommand {
    /// Index of the log entry.
    pub index: u64,
    /// Why the command cannot be decoded.
    pub error: DecodeError,
}

impl Weighed for LogMessage {
    fn body_bytes(&self) -> u64 {
        self.body.into()
    }
}

/// The parts of the machine that the checkout uses as its message store.
struct LogStore<'a> {
    ready: &'a mut Ready,
    delayed: &'a mut Delayed,
    taken: &'a mut TakenMessages,
    out_bytes: &'a mut u64,
    dead: &'a mut DeadLetters,
    annotations: &'a mut MessageAnnotations,
    effects: &'a mut Effects,
    clock: u64,
    at: LogLocation,
    due_left: &'a mut u32,
    /// Requeued messages go to the end, since there is no delivery limit: at the front, the same message would
    /// be delivered again at once.
    requeues_to_end: bool,
    /// See [`QuorumFeatures::delivery_counts`].
    counts_deliveries: bool,
    /// Clients can delay the messages that they return.
    delays_on_request: bool,
    retry: Option<DelayedRetry>,
}

impl MessageStore for LogStore<'_> {
    type Item = LogMessage;

    fn ready(&self) -> u64 {
        self.ready.len()
    }

    fn take(&mut self) -> Option<Dequeued<LogMessage>> {
        self.drop_expired();
        let dequeued = self.ready.pop()?;
        let dequeued = self.drop_if_expired(dequeued)?;
        *self.out_bytes += u64::from(dequeued.item.body);
        Some(dequeued)
    }

    fn requeue(&mut self, item: LogMessage, counts: DeliveryCounts, how: Requeue) {
        if !self.taken.is_empty() && self.return_taken(&item) {
            return;
        }
        self.put_back(item, counts, how);
        self.ready.settle(item.group);
    }

    fn remove_settled(&mut self, item: LogMessage) {
        if !self.taken.is_empty() {
            self.forget_taken(item.location());
        }
        *self.out_bytes -= u64::from(item.body);
        self.annotations.remove(item.location());
        self.ready.settle(item.group);
    }

    fn annotate(&mut self, item: &LogMessage, annotations: &Arc<Annotations>) {
        self.annotations.add(item.location(), annotations);
    }

    fn dead_letter(&mut self, item: LogMessage, reason: DeadReason) {
        if !self.taken.is_empty() {
            // No consumer has failed with it.
            if reason == DeadReason::DeliveryLimit && self.return_taken(&item) {
                return;
            }
            self.forget_taken(item.location());
        }
        *self.out_bytes -= u64::from(item.body);
        self.add_dead_letter(&item, reason);
        self.ready.settle(item.group);
    }

    fn deliver(&mut self, delivery: HandedOut, item: &LogMessage) {
        self.effects.push(Effect::Deliver {
            session: delivery.session,
            consumer: delivery.consumer,
            id: delivery.id,
            counts: delivery.counts,
            counts_all: self.counts_deliveries,
            left: match delivery.numbered {
                true => item.location().number(),
                false => delivery.left,
            },
            at: item.location(),
            annotations: self.annotations.get(item.location()),
        });
    }

    fn event(&mut self, session: SessionId, event: QueueEvent) {
        self.effects.push(Effect::Event { session, event });
    }

    /// As in RabbitMQ: with acknowledgement, expired messages count as left; without, they are removed first.
    fn expire_head(&mut self, no_ack: bool) {
        if no_ack {
            self.drop_expired();
        }
    }

    fn purge(&mut self) -> u64 {
        let postponed = self.ready.postponed().map(|(_, message)| message);
        let delayed = self.delayed.iter().map(|message| message.requeued);
        let grouped = self.ready.grouped().map(|(_, message)| message);
        let returned = self.ready.returned().chain(grouped);
        for message in returned.chain(postponed).chain(delayed) {
            self.annotations.remove(message.held.location());
        }
        let purged = self.ready.clear() + self.delayed.clear();
        for taken in self.taken.values() {
            taken.hold_group(self.ready);
        }
        purged
    }

    fn set_turn(&mut self, consumer: u64, turn: Option<(i32, u64)>) {
        if let Some(groups) = self.ready.groups_mut() {
            groups.set_turn(consumer, turn);
        }
    }

    fn take_delivery(&mut self) -> Option<(u64, Dequeued<LogMessage>)> {
        self.drop_expired();
        let (consumer, dequeued) = self.ready.pop_delivery()?;
        let dequeued = self.drop_if_expired(dequeued)?;
        *self.out_bytes += u64::from(dequeued.item.body);
        Some((consumer, dequeued))
    }

    fn take_free(&mut self, consumer: u64) -> Option<Dequeued<LogMessage>> {
        self.drop_expired();
        // A client must not be told that the queue is empty because the command has dropped enough.
        while let Some(dequeued) = self.ready.pop_free(consumer) {
            if let Some(dequeued) = self.drop_if_expired(dequeued) {
                *self.out_bytes += u64::from(dequeued.item.body);
                return Some(dequeued);
            }
        }
        None
    }

    fn take_at(&mut self, at: &BrowsePosition) -> Option<Dequeued<LogMessage>> {
        self.drop_expired();
        let at = LogLocation::of_number(at.number);
        let dequeued = match self.ready.take_at(at) {
            Some(dequeued) if *self.due_left == 0 => self.drop_if_expired(dequeued)?,
            Some(dequeued) => dequeued,
            None => take_from_place(self.ready, self.delayed, self.taken, at)?,
        };
        *self.out_bytes += u64::from(dequeued.item.body);
        Some(dequeued)
    }

    fn take_selected(&mut self, at: &BrowsePosition) -> Option<Dequeued<LogMessage>> {
        let at = LogLocation::of_number(at.number);
        let dequeued = self.ready.take_at(at)?;
        let item = &dequeued.item;
        if self.has_expired(item) {
            self.add_dead_letter(item, DeadReason::Expired);
            return None;
        }
        *self.out_bytes += u64::from(item.body);
        Some(dequeued)
    }

    fn has_message_for(&self, consumer: u64) -> bool {
        self.ready.has_message_for(consumer)
    }

    fn is_empty(&self) -> bool {
        self.ready.len() == 0 && self.delayed.len() == 0
    }
}

/// Takes a delayed message, or a ready one of a group.
pub(super) fn take_from_place(
    ready: &mut Ready,
    delayed: &mut Delayed,
    taken: &mut TakenMessages,
    at: LogLocation,
) -> Option<Dequeued<LogMessage>> {
    let from_place = match ready.take_grouped(at) {
        Some((position, message)) => TakenMessage {
            message,
            place: Place::Grouped(position),
        },
        None => {
            let DelayedMessage { due, mut requeued } = delayed.take_at(at)?;
            // Its group goes on waiting for it, if it does.
            requeued.held.group = ready.group_of_delayed(at);
            TakenMessage {
                message: requeued,
                place: Place::Delayed { due },
            }
        }
    };
    let replaced = taken.insert(at, from_place);
    debug_assert_eq!(replaced, None, "a message is taken once");
    Some(from_place.without_group().into())
}

impl LogStore<'_> {
    /// Returns an unsettled message to the place from which it was taken, as it was there. Returns false if it was not taken
    /// from such a place.
    #[cold]
    fn return_taken(&mut self, item: &LogMessage) -> bool {
        let Some(taken) = self.taken.remove(&item.location()) else {
            return false;
        };
        *self.out_bytes -= u64::from(item.body);
        match taken.place {
            Place::Delayed { due } => {
                let requeued = taken.without_group();
                self.delayed.push(&DelayedMessage { due, requeued });
                self.release_delayed();
            }
            Place::Grouped(position) => {
                self.ready.return_to(position, &taken.message);
                self.ready.end_wait_for(item.location());
                self.effects.note_ready_again(item.location());
            }
        }
        true
    }

    /// A message leaves the queue, or goes elsewhere than to the place from which it was taken.
    #[cold]
    fn forget_taken(&mut self, at: LogLocation) {
        let Some(taken) = self.taken.remove(&at) else {
            return;
        };
        match taken.place {
            Place::Delayed { .. } => self.ready.end_delay(taken.without_group(), true),
            Place::Grouped(_) => self.ready.end_wait_for(at),
        }
    }

    /// Makes an unsettled message ready or delayed.
    fn put_back(&mut self, item: LogMessage, counts: DeliveryCounts, how: Requeue) {
        let reason = how.reason;
        *self.out_bytes -= u64::from(item.body);
        if planted::is(Bug::AnnotationsLost) {
            self.annotations.remove(item.location());
        }
        if let Some(due) = self.due_time(&item, counts, how) {
            let requeued = RequeuedMessage { held: item, counts };
            self.ready.delay(&requeued);
            return self.delayed.push(&DelayedMessage { due, requeued });
        }
        self.effects.note_ready_again(item.location());
        let last = self.ready.last_postponed();
        debug_assert!(
            last.is_none_or(|last| last <= self.at),
            "{last:?} {:?}",
            self.at
        );
        if item.group.is_some() {
            // In its place within the group, whatever the reason is.
            self.ready.give_back(item, counts);
        } else if (self.requeues_to_end && reason == RequeueReason::Requested)
            || planted::is(Bug::RequeueBehind)
        {
            self.ready.postpone(item, counts, self.at);
        } else if reason == RequeueReason::InFront {
            self.ready.requeue_in_front(item, counts);
        } else {
            self.ready.give_back(item, counts);
        }
    }

    /// When a requeued message becomes ready. `None`: at once. The messages of a session that outlives its connections
    /// keep their order, and a delivery that was never sent was no attempt, so neither is delayed. An expired message
    /// leaves at the head of the queue.
    fn due_time(&self, item: &LogMessage, counts: DeliveryCounts, how: Requeue) -> Option<u64> {
        if self.has_expired(item) {
            return None;
        }
        match how.reason {
            RequeueReason::Requested | RequeueReason::Returned => {}
            RequeueReason::InFront | RequeueReason::Unseen { .. } => return None,
        }
        let delay = match how.deliver_at.filter(|_| self.delays_on_request) {
            Some(at) => at.saturating_sub(self.clock).min(MAX_DELAY_MS),
            None => self.retry?.delay_ms(counts.failed, how.has_failed),
        };
        (delay > 0).then(|| self.clock.saturating_add(delay))
    }

    /// Makes the delayed messages ready that are due, and removes those that have expired: with exact expiry, at most as
    /// many as the command may.
    fn release_delayed(&mut self) {
        while *self.due_left > 0
            && let Some(message) = self.delayed.pop(self.clock)
        {
            *self.due_left -= u32::from(self.ready.is_exact());
            let held = message.requeued.held;
            let has_expired = self.has_expired(&held);
            self.ready.end_delay(message.requeued, has_expired);
            match has_expired {
                true => self.add_dead_letter(&held, DeadReason::Expired),
                false => self.effects.note_ready_again(held.location()),
            }
        }
    }

    /// Drops expired messages, with exact expiry at most as many as the command may drop.
    fn drop_expired(&mut self) {
        while *self.due_left > 0
            && let Some(item) = self.ready.pop_expired(self.clock)
        {
            *self.due_left -= u32::from(self.ready.is_exact());
            self.add_dead_letter(&item, DeadReason::Expired);
        }
    }

    fn has_expired(&self, item: &LogMessage) -> bool {
        item.expires != 0 && item.expires <= self.clock
    }

    /// Drops a message that was taken, if it has expired. Only messages that the command may drop no more can be.
    fn drop_if_expired(&mut self, dequeued: Dequeued<LogMessage>) -> Option<Dequeued<LogMessage>> {
        if !self.has_expired(&dequeued.item) {
            return Some(dequeued);
        }
        debug_assert_eq!(*self.due_left, 0);
        self.add_dead_letter(&dequeued.item, DeadReason::Expired);
        self.ready.settle(dequeued.item.group);
        None
    }

    fn add_dead_letter(&mut self, item: &LogMessage, reason: DeadReason) {
        // The group has no effect in this queue any more.
        let item = LogMessage {
            group: None,
            ..*item
        };
        self.dead.add(&item, reason, self.annotations, self.effects);
    }
}

impl Machine {
    /// Creates an empty queue. `label` is its name in error texts (`queue 'orders' in vhost '/'`), equal on
    /// every member.
    pub fn new(label: Name, settings: QueueSettings) -> Machine {
        Machine {
            clock: 0,
            applied: 0,
            ready: Ready::new(),
            delayed: Delayed::default(),
            taken: TakenMessages::new(),
            out_bytes: 0,
            blocked: false,
            at: LogLocation::default(),
            due_left: DUE_PER_COMMAND,
            checkout: Checkout::new(
                label,
                QueueType::Quorum,
                settings.single_active_consumer,
                settings.delivery_limit,
            ),
            dead: DeadLetters::new(settings.dead_letter),
            annotations: MessageAnnotations::default(),
            deduplicator: Deduplicator::default(),
            features: QuorumFeatures::default(),
            settings,
        }
    }

    /// Splits the machine into the checkout and its message store.
    fn split<'a>(
        &'a mut self,
        effects: &'a mut Effects,
    ) -> (&'a mut Checkout<LogMessage>, LogStore<'a>) {
        let store = LogStore {
            ready: &mut self.ready,
            delayed: &mut self.delayed,
            taken: &mut self.taken,
            out_bytes: &mut self.out_bytes,
            dead: &mut self.dead,
            annotations: &mut self.annotations,
            effects,
            clock: self.clock,
            at: self.at,
            due_left: &mut self.due_left,
            requeues_to_end: self.settings.delivery_limit.is_none(),
            counts_deliveries: self.features.delivery_counts,
            delays_on_request: self.features.delayed_retry,
            retry: self.settings.quorum.delayed_retry,
        };
        (&mut self.checkout, store)
    }

    /// Applies a committed command. Ignores commands at or below the last applied index. After an error the
    /// machine must not be used: the command may be applied in part.
    pub fn apply(
        &mut self,
        index: u64,
        command: &Bytes,
        effects: &mut Effects,
    ) -> Result<(), UnknownCommand> {
        if index <= self.applied {
            return Ok(());
        }
        self.at = LogLocation { index, offset: 0 };
        self.due_left = DUE_PER_COMMAND;
        let result = match decode(command) {
            Ok(DecodedCommand::Batch { wall, requests }) => {
                self.advance_clock(wall, effects);
                self.apply_batch(index, requests, effects)
            }
            Ok(DecodedCommand::Other(command)) => {
                self.apply_other(command, effects);
                Ok(())
            }
            Err(error) => Err(error),
        };
        result.map_err(|error| UnknownCommand { index, error })?;
        self.applied = index;
        self.serve(effects);
        if self.checkout.deleted {
            self.dead.clear();
            self.annotations.clear();
            self.deduplicator.clear();
        }
        Ok(())
    }

    /// Delivers ready messages, then removes expired ones and those above a limit.
    fn serve(&mut self, effects: &mut Effects) {
        let (checkout, mut store) = self.split(effects);
        checkout.dispatch(&mut store);
        store.drop_expired();
        self.enforce_limits(effects);
        let (checkout, mut store) = self.split(effects);
        checkout.finish_drains(&mut store);
        if cfg!(debug_assertions) {
            self.assert_served();
        }
    }

    /// Asserts what holds after each request.
    fn assert_served(&self) {
        let (ready, out) = (self.ready.len(), self.checkout.out);
        let waits = self.checkout.service.first();
        // The next command does the rest of what is due, and serves the consumers.
        if self.due_left > 0 {
            assert!(ready == 0 || waits.is_none(), "{waits:?} could be served");
            let next = self.ready.next_delivery();
            assert_eq!(next, None, "a message of a group could be served");
            let expiry = self.ready.next_expiry();
            assert!(expiry.is_none_or(|expires| expires > self.clock));
            assert!(self.delayed.next().is_none_or(|at| at > self.clock));
        }
        if self.settings.overflow == Overflow::DropHead {
            assert!(!self.blocked);
            assert!(ready == 0 || !self.exceeds_limits());
        }
        let delayed = self.delayed.len();
        assert!(delayed == 0 || self.features.delayed_retry || self.features.scheduled_delivery);
        assert!(!self.checkout.deleted || ready + delayed + out == 0);
        assert!(out > 0 || self.out_bytes == 0);
        assert!(self.taken.len() as u64 <= out);
        assert!(self.annotations.len() as u64 <= ready + delayed + out + self.dead.len());
    }

    fn apply_batch(
        &mut self,
        index: u64,
        mut requests: BatchReader<'_>,
        effects: &mut Effects,
    ) -> Decoded<()> {
        while let Some(run) = requests.next_run()? {
            for n in 0..u64::from(run.count) {
                let (body, offset) = requests.next_request()?;
                let at = LogLocation { index, offset };
                let seq = run.first.saturating_add(n);
                self.request(run.session, seq, body, at, effects);
            }
            self.report(run.session, run.first, run.count, effects);
        }
        Ok(())
    }

    fn report(&mut self, session: SessionId, first: u64, count: u32, effects: &mut Effects) {
        let up_to = match self.checkout.sessions.get(&session) {
            Some(state) => state.last,
            // It was closed within the run, or earlier.
            None if self.checkout.closed_set.contains(&session) => {
                first.saturating_add(u64::from(count)).saturating_sub(1)
            }
            None => return,
        };
        let event = self.checkout.progress_event(session, up_to);
        effects.push(Effect::Event { session, event });
    }

    fn request(
        &mut self,
        session: SessionId,
        seq: u64,
        body: RequestBody,
        at: LogLocation,
        effects: &mut Effects,
    ) {
        self.at = at;
        let (checkout, mut store) = self.split(effects);
        match checkout.admit(&mut store, session, seq) {
            Admission::Apply => {}
            Admission::Duplicate
                if planted::is(Bug::NumberingLost) && matches!(body, RequestBody::Publish(_)) => {}
            Admission::Duplicate => {
                let (checkout, mut store) = self.split(effects);
                return checkout.repeat_answer(&mut store, session, seq, &body);
            }
            Admission::Gap { expected } => {
                let event = match body {
                    RequestBody::Close if !checkout.sessions.contains_key(&session) => {
                        checkout.unknown_session(seq)
                    }
                    _ => QueueEvent::Expecting { expected },
                };
                return effects.push(Effect::Event { session, event });
            }
            Admission::Closed | Admission::Ignore => return,
        }
        match body {
            RequestBody::Publish(message) => self.publish(session, seq, &message),
            body => {
                let clock = self.clock;
                let (checkout, mut store) = self.split(effects);
                checkout.apply(&mut store, session, seq, body, clock);
            }
        }
        self.serve(effects);
    }

    fn publish(&mut self, session: SessionId, seq: u64, message: &Message) {
        if self.checkout.deleted {
            return self
                .checkout
                .record_refusal(session, seq, RejectReason::Unavailable);
        }
        if self.blocked {
            return self
                .checkout
                .record_refusal(session, seq, RejectReason::MaxLength);
        }
        self.checkout.counters.publish += 1;
        if let Some(window_ms) = self.settings.quorum.deduplication_window_ms
            && self.is_copy(message, window_ms)
        {
            return;
        }
        let ttl = [message.ttl_ms(), self.settings.message_ttl_ms];
        // A TTL of zero still allows a delivery within the millisecond of the publish.
        let ttl = ttl.into_iter().flatten().min().map(|ttl| ttl.max(1));
        if cfg!(debug_assertions) {
            let last = self.ready.last_fresh();
            let at = self.at;
            assert!(last.is_none_or(|last| last < at), "{last:?} {at:?}");
        }
        let held = LogMessage {
            index: self.at.index,
            offset: self.at.offset,
            body: u32::try_from(message.body_len()).unwrap_or(u32::MAX),
            level: self.ready.level_of(message.priority()),
            group: match self.features.message_groups {
                true => self.group_of(message),
                false => None,
            },
            expires: ttl.map_or(0, |ttl| self.clock.saturating_add(ttl)),
        };
        let is_scheduling = self.features.scheduled_delivery && !planted::is(Bug::ScheduleIgnored);
        match delivery_delay(message).filter(|delay| *delay > 0 && is_scheduling) {
            Some(delay) => self.schedule(held, ttl, delay),
            None => self.ready.push(&held),
        }
    }

    /// Returns true if the message was published before. Otherwise the queue remembers it, if its publisher asks for that.
    #[cold]
    fn is_copy(&mut self, message: &Message, window_ms: u64) -> bool {
        if !self.features.deduplication || planted::is(Bug::DeduplicationIgnored) {
            return false;
        }
        let id = deduplication_id(message);
        id.is_some_and(|id| !self.deduplicator.remember(id, self.clock, window_ms))
    }

    #[cold]
    fn group_of(&self, message: &Message) -> Option<GroupId> {
        group_of(message).filter(|_| !planted::is(Bug::GroupOrderIgnored))
    }

    /// Holds a published message back for this time in milliseconds. Its time to live begins then.
    #[cold]
    fn schedule(&mut self, held: LogMessage, ttl: Option<u64>, delay: u64) {
        let due = self.clock.saturating_add(delay.min(MAX_DELAY_MS));
        let held = LogMessage {
            level: DEFAULT_LEVEL,
            expires: ttl.map_or(0, |ttl| due.saturating_add(ttl)),
            ..held
        };
        let counts = DeliveryCounts::default();
        let requeued = RequeuedMessage { held, counts };
        self.ready.delay(&requeued);
        self.delayed.push(&DelayedMessage { due, requeued });
    }

    /// Number and body bytes of the messages that count towards the limits: ready and delayed ones, and dead letters
    /// that are not forwarded yet.
    fn limited_usage(&self) -> (u64, u64) {
        let length = self.ready.len() + self.delayed.len() + self.dead.len();
        let bytes = self.ready.bytes() + self.delayed.bytes() + self.dead.bytes();
        (length, bytes)
    }

    fn exceeds_limits(&self) -> bool {
        let is_exceeded = |limit: Option<u64>, is: u64| limit.is_some_and(|limit| is > limit);
        let (length, bytes) = self.limited_usage();
        is_exceeded(self.settings.max_length, length)
            || is_exceeded(self.settings.max_length_bytes, bytes)
    }

    fn is_below_resume_limits(&self) -> bool {
        let is_below = |limit: Option<u64>, is: u64| {
            limit.is_none_or(|limit| {
                u128::from(is) * 10 <= u128::from(limit) * u128::from(RESUME_TENTHS)
            })
        };
        let (length, bytes) = self.limited_usage();
        is_below(self.settings.max_length, length)
            && is_below(self.settings.max_length_bytes, bytes)
    }

    /// With drop-head, drops ready messages at the head while a limit is exceeded. With reject-publish, blocks
    /// publishes from the first excess until there is room again. Unsettled messages do not count.
    fn enforce_limits(&mut self, effects: &mut Effects) {
        match self.settings.overflow {
            // `reject-publish-dlx` is for classic queues only.
            Overflow::RejectPublish | Overflow::RejectPublishDlx => {
                self.blocked = if self.blocked {
                    !self.is_below_resume_limits()
                } else {
                    self.exceeds_limits()
                };
            }
            Overflow::DropHead => {
                self.blocked = false;
                let before = effects.dead_len();
                while self.exceeds_limits()
                    && let Some((item, reason)) = self.next_to_drop()
                {
                    let (_, mut store) = self.split(effects);
                    store.add_dead_letter(&item, reason);
                    store.drop_expired();
                }
                // Messages that are dropped together, as after a change of a limit, are forwarded in reverse
                // order, as in RabbitMQ. No effect on the replicated state.
                if effects.dead_len() > before + 1 {
                    effects.reverse_dead_from(before);
                }
            }
        }
    }

    /// Takes the message that leaves because of a length limit: one that has expired, or else the first.
    fn next_to_drop(&mut self) -> Option<(LogMessage, DeadReason)> {
        if self.due_left == 0
            && let Some(item) = self.ready.pop_expired(self.clock)
        {
            return Some((item, DeadReason::Expired));
        }
        let dequeued = self.ready.pop()?;
        Some((dequeued.item, DeadReason::MaxLength))
    }

    fn advance_clock(&mut self, wall: WallTime, effects: &mut Effects) {
        let passed = wall.0.saturating_sub(self.clock);
        self.clock += passed;
        if let Some(leap) = passed.checked_sub(MAX_STEP_MS) {
            self.checkout.extend_closed_sessions(leap);
        }
        let (_, mut store) = self.split(effects);
        store.release_delayed();
        store.drop_expired();
    }

    fn apply_other(&mut self, command: Command, effects: &mut Effects) {
        let clock = self.clock;
        match command {
            Command::Time(wall) => self.advance_clock(wall, effects),
            Command::Settings(settings) => self.set_settings(settings, effects),
            Command::Configure(Configuration { features, settings }) => {
                self.enable_features(features);
                self.set_settings(settings, effects);
            }
            Command::PassedOn(ranges) => self.dead.passed_on(&ranges, &mut self.annotations),
            Command::GoneNode(dead) => {
                let (checkout, mut store) = self.split(effects);
                checkout.end_incarnations(&mut store, dead);
            }
            Command::NodeSuspected(node) => {
                let (checkout, mut store) = self.split(effects);
                checkout.suspect_node(&mut store, node);
            }
            Command::NodeTrusted(node) => {
                let (checkout, mut store) = self.split(effects);
                checkout.trust_node(&mut store, node);
            }
            Command::ConsumerTimedOut {
                session,
                consumer,
                up_to,
            } => {
                let (checkout, mut store) = self.split(effects);
                checkout.time_out(&mut store, session, consumer, up_to);
            }
            Command::GoneSession(session) => {
                let (checkout, mut store) = self.split(effects);
                checkout.close(&mut store, session, clock);
            }
            Command::Assign {
                session,
                consumer,
                messages,
                drained,
            } => self.assign(session, consumer, &messages, drained, effects),
        }
    }

    #[cold]
    fn assign(
        &mut self,
        session: SessionId,
        consumer: ConsumerId,
        messages: &[(u64, u64)],
        drained: Option<u64>,
        effects: &mut Effects,
    ) {
        let Some(number) = self.checkout.consumer_number(session, consumer) else {
            return;
        };
        let positions: Vec<BrowsePosition> = messages
            .iter()
            .map(|(number, _)| BrowsePosition {
                number: *number,
                ..BrowsePosition::default()
            })
            .collect();
        let (checkout, mut store) = self.split(effects);
        let unassigned = checkout.assign_selected(&mut store, number, &positions, drained);
        effects.note_assigned(number, unassigned);
    }

    fn set_settings(&mut self, settings: QueueSettings, effects: &mut Effects) {
        self.checkout
            .set_limits(settings.single_active_consumer, settings.delivery_limit);
        self.dead
            .set_mode(settings.dead_letter, &mut self.annotations, effects);
        self.settings = settings;
    }

    /// Enables features for good: a leader that does not know yet that the cluster has enabled them cannot disable
    /// them again.
    pub(super) fn enable_features(&mut self, features: QuorumFeatures) {
        self.features = self.features.union(features);
        if self.features.strict_priorities {
            self.ready.serve_strictly();
        }
        self.checkout.counts_deliveries = self.features.delivery_counts;
        if self.features.message_groups {
            self.ready.enable_groups();
            self.checkout.enable_groups();
        }
        if self.features.exact_expiry {
            self.ready.expire_exactly();
        }
    }

    /// Repeats the unsettled deliveries of a consumer. It changes no replicated state, so it needs no log
    /// entry. For the leader only.
    pub fn resume(&mut self, resume: &ResumeConsumer, effects: &mut Effects) {
        let (checkout, mut store) = self.split(effects);
        let known = checkout.resume(&mut store, resume.session, resume.consumer, resume.next);
        // A deposed leader that does not know of it yet might end a consumer which it has not seen.
        if !known && checkout.deleted {
            let consumer = resume.consumer;
            store.event(resume.session, QueueEvent::Cancelled { consumer });
        }
    }

    /// Opens the flow window of a consumer. It changes no replicated state. For the leader only.
    pub fn open_flow_window(&mut self, progress: &DeliveryProgress, effects: &mut Effects) {
        let (checkout, mut store) = self.split(effects);
        let (session, consumer) = (progress.session, progress.consumer);
        checkout.open_flow_window(&mut store, session, consumer, progress.up_to);
    }

    /// Repeats the answer of an applied request, without a log entry.
    pub(super) fn repeat_answer(
        &mut self,
        session: SessionId,
        seq: u64,
        body: &RequestBody,
        effects: &mut Effects,
    ) {
        let (checkout, mut store) = self.split(effects);
        checkout.repeat_answer(&mut store, session, seq, body);
        self.report(session, seq, 1, effects);
    }

    /// Log indexes of all messages of the queue, unsorted and with duplicates. All other entries up to the
    /// applied index may be dropped.
    pub fn live_indexes(&self) -> impl Iterator<Item = u64> {
        let out = self.checkout.consumers.values();
        let out = out.flat_map(|c| c.out.values().map(|o| o.item.index));
        let returned = self.ready.returned().map(|r| r.held.index);
        let postponed = self.ready.postponed().map(|(_, r)| r.held.index);
        let fresh = self.ready.fresh().map(|h| h.index);
        let delayed = self.delayed.iter().map(|m| m.requeued.held.index);
        let grouped = self.ready.grouped().map(|(_, r)| r.held.index);
        let dead = self.dead.kept().map(|(_, held, _)| held.index);
        fresh
            .chain(returned)
            .chain(postponed)
            .chain(delayed)
            .chain(grouped)
            .chain(out)
            .chain(dead)
    }

    /// Index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The settings that the last command set.
    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// The features that commands have enabled.
    pub fn features(&self) -> QuorumFeatures {
        self.features
    }

    /// Counts of ready messages by priority. `None`: the queue does not have strict priorities.
    pub fn ready_details(&self) -> Option<ReadyDetails> {
        self.features.strict_priorities.then(|| ReadyDetails {
            by_priority: self.ready.level_counts(),
            returned: self.ready.returned_len(),
        })
    }

    /// Counts of delayed messages. `None`: there is none.
    pub fn delayed_details(&self) -> Option<DelayedDetails> {
        self.delayed.details()
    }

    /// Wall clock at which the next message expires or a delayed one becomes ready.
    pub fn next_timer(&self) -> Option<WallTime> {
        let expiry = self.ready.next_expiry().into_iter();
        expiry.chain(self.delayed.next()).min().map(WallTime)
    }

    /// Returns true if the queue is deleted.
    pub fn deleted(&self) -> bool {
        self.checkout.deleted
    }

    pub(super) fn last_applied(&self, session: SessionId) -> u64 {
        self.checkout.last_applied(session)
    }

    pub(super) fn check_request(&self, session: SessionId, seq: u64) -> Admission {
        self.checkout.check_request(session, seq)
    }

    /// Returns true if the consumers of a node are suspended.
    pub(super) fn is_suspended(&self, node: NodeId) -> bool {
        self.checkout.suspended.contains(&node)
    }

    pub(super) fn has_sessions_of(&self, node: NodeId) -> bool {
        let first = SessionId {
            node,
            ..SessionId::default()
        };
        let mut from = self.checkout.sessions.range(first..);
        from.next().is_some_and(|(s, _)| s.node == node)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.checkout.sessions.keys().copied()
    }

    pub(super) fn session_nodes(&self) -> Vec<NodeId> {
        self.checkout.session_nodes()
    }

    pub(super) fn has_sessions_before(&self, dead: DeadIncarnation) -> bool {
        let is_before = |s: &SessionId| s.node == dead.node && s.incarnation < dead.before;
        self.checkout.sessions.keys().any(is_before)
    }

    /// Message and consumer counts.
    pub fn stats(&self) -> QueueStats {
        QueueStats {
            ready: self.ready.len(),
            unacknowledged: self.checkout.out,
            consumers: self.checkout.live,
            bytes: self.ready.bytes() + self.out_bytes,
            unacknowledged_bytes: self.out_bytes,
            dead: self.dead.len(),
            dead_bytes: self.dead.bytes(),
            delayed: self.delayed.len(),
            delayed_bytes: self.delayed.bytes(),
            ..QueueStats::default()
        }
    }

    /// Message rates since this member began to lead.
    pub fn counters(&self) -> QueueCounters {
        self.checkout.counters
    }

    /// Prepares to lead: resets the counters and the flow windows, which are not replicated.
    pub fn begin_leading(&mut self) {
        self.checkout.counters = QueueCounters::default();
        self.checkout.forget_flow();
    }

    /// Returns true if there is a consumer whose node is not suspected.
    pub fn in_use(&self) -> bool {
        self.checkout.in_use()
    }

    /// The consumers, for listings.
    pub fn consumers(&self) -> Vec<ConsumerInfo> {
        self.checkout.listing()
    }
}
