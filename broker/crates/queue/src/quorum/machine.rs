//! The replicated state of a quorum queue.

use super::annotations::MessageAnnotations;
use super::command::{BatchReader, Command, DecodedCommand, decode};
use super::dead_letter::DeadLetters;
use super::effects::{Effect, Effects, LogLocation};
use super::ready::{LogMessage, Ready};
use crate::checkout::{
    Admission, CLOSED_MS, Checkout, Dequeued, HandedOut, MessageStore, RequeueReason, Weighed,
};
use crate::{
    Annotations, ConsumerInfo, DeadIncarnation, DeadReason, DeliveryProgress, Name, Overflow,
    QueueCounters, QueueEvent, QueueSettings, QueueStats, QueueType, RejectReason, RequestBody,
    ResumeConsumer, SessionId,
};
use bytes::Bytes;
use env::planted::{self, Bug};
use env::{NodeId, WallTime};
use message::Message;
use std::sync::Arc;
use wire::{DecodeError, Decoded};

/// Priorities from this one on are high (Q7).
const HIGH_PRIORITY: u8 = 5;
/// The clock of two commands differs by more when the queue was idle, or when somebody has set a wall clock: ended sessions
/// grow older by no more than this.
const MAX_STEP_MS: u64 = CLOSED_MS / 10;
/// A queue that refuses publishes takes them again at this many tenths of its limits.
const RESUME_TENTHS: u64 = 8;

/// See the module. Holds where messages are, never the messages.
#[derive(Debug)]
pub struct Machine {
    pub(super) settings: QueueSettings,
    /// The newest wall clock that a command carried.
    pub(super) clock: u64,
    pub(super) applied: u64,
    pub(super) ready: Ready,
    /// Body bytes of what is out.
    pub(super) out_bytes: u64,
    /// Over a limit with reject-publish: nothing is taken until there is room again.
    pub(super) blocked: bool,
    pub(super) checkout: Checkout<LogMessage>,
    pub(super) dead: DeadLetters,
    pub(crate) annotations: MessageAnnotations,
    /// The request that is being applied.
    at: LogLocation,
}

/// A committed command that this program does not understand: most likely a newer one wrote it. Whatever it does on other members it
/// cannot do here, so that nothing more may be applied and nothing of this state be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of its log cannot be read: {error}")]
pub struct UnknownCommand {
    pub index: u64,
    pub error: DecodeError,
}

impl Weighed for LogMessage {
    fn body(&self) -> u64 {
        self.body.into()
    }
}

/// The machine's messages and its way out, as the checkout sees them.
struct LogStore<'a> {
    ready: &'a mut Ready,
    out_bytes: &'a mut u64,
    dead: &'a mut DeadLetters,
    annotations: &'a mut MessageAnnotations,
    effects: &'a mut Effects,
    clock: u64,
    at: LogLocation,
    /// No delivery limit: what a consumer requeues goes to the end, or the same message would come round at once.
    postpones: bool,
}

impl MessageStore for LogStore<'_> {
    type Item = LogMessage;

    fn ready(&self) -> u64 {
        self.ready.len()
    }

    fn take(&mut self) -> Option<Dequeued<LogMessage>> {
        self.drop_expired();
        let taken = self.ready.pop()?;
        *self.out_bytes += u64::from(taken.item.body);
        Some(taken)
    }

    fn give_back(&mut self, item: LogMessage, attempts: u32, why: RequeueReason) {
        *self.out_bytes -= u64::from(item.body);
        if planted::is(Bug::AnnotationsLost) {
            self.annotations.remove(item.location());
        }
        if (self.postpones && why == RequeueReason::Asked) || planted::is(Bug::RequeueBehind) {
            self.ready.postpone(item, attempts, self.at);
        } else if why == RequeueReason::InFront {
            self.ready.put_in_front(item, attempts);
        } else {
            self.ready.give_back(item, attempts);
        }
    }

    fn settled(&mut self, item: LogMessage) {
        *self.out_bytes -= u64::from(item.body);
        self.annotations.remove(item.location());
    }

    fn annotate(&mut self, item: &LogMessage, annotations: &Arc<Annotations>) {
        self.annotations.add(item.location(), annotations);
    }

    fn dead(&mut self, item: LogMessage, reason: DeadReason) {
        *self.out_bytes -= u64::from(item.body);
        self.bury(&item, reason);
    }

    fn deliver(&mut self, handed: HandedOut, item: &LogMessage) {
        self.effects.push(Effect::Deliver {
            session: handed.session,
            consumer: handed.consumer,
            id: handed.id,
            redelivered: handed.redelivered,
            attempts: handed.attempts,
            left: match handed.numbered {
                true => item.location().number(),
                false => handed.left,
            },
            at: item.location(),
            annotations: self.annotations.get(item.location()),
        });
    }

    fn event(&mut self, session: SessionId, event: QueueEvent) {
        self.effects.push(Effect::Event { session, event });
    }

    /// RabbitMQ's quorum queue counts them where the client is to acknowledge: they are looked at after the answer then, and before it
    /// where the message is settled at once.
    fn expire_head(&mut self, no_ack: bool) {
        if no_ack {
            self.drop_expired();
        }
    }

    fn purge(&mut self) -> u64 {
        let postponed = self.ready.postponed().map(|(_, message)| message);
        for message in self.ready.returned().chain(postponed) {
            self.annotations.remove(message.held.location());
        }
        self.ready.clear()
    }
}

impl LogStore<'_> {
    fn drop_expired(&mut self) {
        while let Some(item) = self.ready.pop_expired(self.clock) {
            self.bury(&item, DeadReason::Expired);
        }
    }

    fn bury(&mut self, item: &LogMessage, reason: DeadReason) {
        self.dead.bury(item, reason, self.annotations, self.effects);
    }
}

impl Machine {
    /// An empty queue. `label` is what refusals call it (`queue 'orders' in vhost '/'`), the same on every member.
    pub fn new(label: Name, settings: QueueSettings) -> Machine {
        Machine {
            clock: 0,
            applied: 0,
            ready: Ready::new(),
            out_bytes: 0,
            blocked: false,
            at: LogLocation::default(),
            checkout: Checkout::new(
                label,
                QueueType::Quorum,
                settings.single_active_consumer,
                settings.delivery_limit,
            ),
            dead: DeadLetters::new(settings.dead_letter),
            annotations: MessageAnnotations::default(),
            settings,
        }
    }

    /// The checkout and what it works on, borrowed apart.
    fn parts<'a>(
        &'a mut self,
        effects: &'a mut Effects,
    ) -> (&'a mut Checkout<LogMessage>, LogStore<'a>) {
        let store = LogStore {
            ready: &mut self.ready,
            out_bytes: &mut self.out_bytes,
            dead: &mut self.dead,
            annotations: &mut self.annotations,
            effects,
            clock: self.clock,
            at: self.at,
            postpones: self.settings.delivery_limit.is_none(),
        };
        (&mut self.checkout, store)
    }

    /// Applies a committed command. Commands at or below the last applied index are passed over. After an error the machine is of no
    /// more use: what came before the part that cannot be read may be applied.
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
        let done = match decode(command) {
            Ok(DecodedCommand::Batch { wall, requests }) => {
                self.advance(wall, effects);
                self.apply_batch(index, requests, effects)
            }
            Ok(DecodedCommand::Other(command)) => {
                self.apply_other(command, effects);
                Ok(())
            }
            Err(error) => Err(error),
        };
        done.map_err(|error| UnknownCommand { index, error })?;
        self.applied = index;
        self.serve(effects);
        if self.checkout.deleted {
            self.dead.clear();
            self.annotations.clear();
        }
        Ok(())
    }

    /// Delivers ready messages, then removes expired heads and those over a limit.
    fn serve(&mut self, effects: &mut Effects) {
        let (checkout, mut store) = self.parts(effects);
        checkout.dispatch(&mut store);
        store.drop_expired();
        self.keep_limits(effects);
        let (checkout, mut store) = self.parts(effects);
        checkout.finish_drains(&mut store);
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
            // It closed within the run, or long ago.
            None if self.checkout.closed_set.contains(&session) => {
                first.saturating_add(u64::from(count)).saturating_sub(1)
            }
            None => return,
        };
        let event = self.checkout.report(session, up_to);
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
        let (checkout, mut store) = self.parts(effects);
        match checkout.admit(&mut store, session, seq) {
            Admission::Apply => {}
            Admission::Again
                if planted::is(Bug::NumberingLost) && matches!(body, RequestBody::Publish(_)) => {}
            Admission::Again => {
                let (checkout, mut store) = self.parts(effects);
                return checkout.answer_again(&mut store, session, seq, &body);
            }
            Admission::Gap { expected } => {
                let event = match body {
                    RequestBody::Close if !checkout.sessions.contains_key(&session) => {
                        checkout.forgotten(seq)
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
                let (checkout, mut store) = self.parts(effects);
                checkout.apply(&mut store, session, seq, body, clock);
            }
        }
        self.serve(effects);
    }

    fn publish(&mut self, session: SessionId, seq: u64, message: &Message) {
        if self.checkout.deleted {
            return self
                .checkout
                .refuse(session, seq, RejectReason::Unavailable);
        }
        if self.blocked {
            return self.checkout.refuse(session, seq, RejectReason::MaxLength);
        }
        self.checkout.counters.publish += 1;
        let ttl = [message.ttl_ms(), self.settings.message_ttl_ms];
        // Even one of zero milliseconds can be delivered within the millisecond of its publishing.
        let ttl = ttl.into_iter().flatten().min().map(|ttl| ttl.max(1));
        self.ready.push(&LogMessage {
            index: self.at.index,
            offset: self.at.offset,
            body: u32::try_from(message.body_len()).unwrap_or(u32::MAX),
            high: message.priority().is_some_and(|p| p >= HIGH_PRIORITY),
            expires: ttl.map_or(0, |ttl| self.clock.saturating_add(ttl)),
        });
    }

    /// Messages and bytes that the limits are for: what is ready, and what is dead and not passed on yet.
    fn counted(&self) -> (u64, u64) {
        let length = self.ready.len() + self.dead.len();
        (length, self.ready.bytes() + self.dead.bytes())
    }

    fn over_limits(&self) -> bool {
        let over = |limit: Option<u64>, is: u64| limit.is_some_and(|limit| is > limit);
        let (length, bytes) = self.counted();
        over(self.settings.max_length, length) || over(self.settings.max_length_bytes, bytes)
    }

    fn has_room_again(&self) -> bool {
        let room = |limit: Option<u64>, is: u64| {
            limit.is_none_or(|limit| {
                u128::from(is) * 10 <= u128::from(limit) * u128::from(RESUME_TENTHS)
            })
        };
        let (length, bytes) = self.counted();
        room(self.settings.max_length, length) && room(self.settings.max_length_bytes, bytes)
    }

    /// Drops heads while there is too much, or holds off new messages from the first that is too much on until there
    /// is room again (Q13). What is out does not count.
    fn keep_limits(&mut self, effects: &mut Effects) {
        match self.settings.overflow {
            // A quorum queue is not configured to pass on what it refuses.
            Overflow::RejectPublish | Overflow::RejectPublishDlx => {
                self.blocked = if self.blocked {
                    !self.has_room_again()
                } else {
                    self.over_limits()
                };
            }
            Overflow::DropHead => {
                self.blocked = false;
                let before = effects.dead_len();
                while self.over_limits()
                    && let Some(taken) = self.ready.pop()
                {
                    let (_, mut store) = self.parts(effects);
                    store.bury(&taken.item, DeadReason::MaxLength);
                    store.drop_expired();
                }
                // What goes at once, as for a limit that is new, is passed on the last one first: so RabbitMQ's quorum queues do. Of no
                // effect on the state.
                if effects.dead_len() > before + 1 {
                    effects.reverse_dead_from(before);
                }
            }
        }
    }

    fn advance(&mut self, wall: WallTime, effects: &mut Effects) {
        let passed = wall.0.saturating_sub(self.clock);
        self.clock += passed;
        if let Some(leap) = passed.checked_sub(MAX_STEP_MS) {
            self.checkout.remember_longer(leap);
        }
        let (_, mut store) = self.parts(effects);
        store.drop_expired();
    }

    fn apply_other(&mut self, command: Command, effects: &mut Effects) {
        let clock = self.clock;
        match command {
            Command::Time(wall) => self.advance(wall, effects),
            Command::Settings(settings) => {
                self.checkout
                    .set_limits(settings.single_active_consumer, settings.delivery_limit);
                self.dead
                    .set_mode(settings.dead_letter, &mut self.annotations, effects);
                self.settings = settings;
            }
            Command::PassedOn(ranges) => self.dead.passed_on(&ranges, &mut self.annotations),
            Command::GoneNode(gone) => {
                let (checkout, mut store) = self.parts(effects);
                checkout.gone_node(&mut store, gone);
            }
            Command::NodeSuspected(node) => {
                let (checkout, mut store) = self.parts(effects);
                checkout.suspect_node(&mut store, node);
            }
            Command::NodeTrusted(node) => {
                let (checkout, mut store) = self.parts(effects);
                checkout.trust_node(&mut store, node);
            }
            Command::GoneSession(session) => {
                let (checkout, mut store) = self.parts(effects);
                checkout.close(&mut store, session, clock);
            }
        }
    }

    /// Delivers again what is out to a consumer. Changes nothing, so it needs no log entry; leader only.
    pub fn resume(&mut self, resume: &ResumeConsumer, effects: &mut Effects) {
        let (checkout, mut store) = self.parts(effects);
        let known = checkout.resume(&mut store, resume.session, resume.consumer, resume.next);
        // Otherwise a leader that was deposed without knowing it might end a consumer it has not heard of.
        if !known && checkout.deleted {
            let consumer = resume.consumer;
            store.event(resume.session, QueueEvent::Cancelled { consumer });
        }
    }

    /// More may be on its way to a consumer. Changes no part of the state that is replicated; leader only.
    pub fn received(&mut self, received: &DeliveryProgress, effects: &mut Effects) {
        let (checkout, mut store) = self.parts(effects);
        let (session, consumer) = (received.session, received.consumer);
        checkout.received(&mut store, session, consumer, received.up_to);
    }

    /// Answers a request that was applied before, without a log entry.
    pub(super) fn answer_again(
        &mut self,
        session: SessionId,
        seq: u64,
        body: &RequestBody,
        effects: &mut Effects,
    ) {
        let (checkout, mut store) = self.parts(effects);
        checkout.answer_again(&mut store, session, seq, body);
        self.report(session, seq, 1, effects);
    }

    /// Log indexes of all messages of the queue, in no order and some of them repeatedly. All other entries up to the
    /// applied index may be dropped.
    pub fn live_indexes(&self) -> impl Iterator<Item = u64> {
        let out = self.checkout.consumers.values();
        let out = out.flat_map(|c| c.out.values().map(|o| o.item.index));
        let returned = self.ready.returned().map(|r| r.held.index);
        let postponed = self.ready.postponed().map(|(_, r)| r.held.index);
        let fresh = self.ready.fresh().map(|h| h.index);
        let dead = self.dead.kept().map(|(_, held, _)| held.index);
        fresh
            .chain(returned)
            .chain(postponed)
            .chain(out)
            .chain(dead)
    }

    pub fn applied(&self) -> u64 {
        self.applied
    }

    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// The wall clock at which a message expires next.
    pub fn next_expiry(&self) -> Option<WallTime> {
        self.ready.next_expiry().map(WallTime)
    }

    pub fn deleted(&self) -> bool {
        self.checkout.deleted
    }

    pub(super) fn last_of(&self, session: SessionId) -> u64 {
        self.checkout.last_applied(session)
    }

    pub(super) fn session_state(&self, session: SessionId, seq: u64) -> Admission {
        self.checkout.session_state(session, seq)
    }

    /// Whether a node has consumers here, and whether they are suspended.
    pub(super) fn suspended(&self, node: NodeId) -> bool {
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

    pub(super) fn has_sessions_over(&self, gone: DeadIncarnation) -> bool {
        let over = |s: &SessionId| s.node == gone.node && s.incarnation < gone.before;
        self.checkout.sessions.keys().any(over)
    }

    pub fn stats(&self) -> QueueStats {
        QueueStats {
            ready: self.ready.len(),
            unacknowledged: self.checkout.out,
            consumers: self.checkout.live,
            bytes: self.ready.bytes() + self.out_bytes,
            unacknowledged_bytes: self.out_bytes,
            dead: self.dead.len(),
            dead_bytes: self.dead.bytes(),
            ..QueueStats::default()
        }
    }

    pub fn counters(&self) -> QueueCounters {
        self.checkout.counters
    }

    /// A leader counts what happens while it leads, and does not know what its predecessor sent that has arrived.
    pub fn begin_leading(&mut self) {
        self.checkout.counters = QueueCounters::default();
        self.checkout.forget_flow();
    }

    /// Somebody consumes, or would if its node could be reached again: a node that is suspected does not count.
    pub fn in_use(&self) -> bool {
        self.checkout.in_use()
    }

    pub fn consumers(&self) -> Vec<ConsumerInfo> {
        self.checkout.listing()
    }
}
