//! A model of a queue of either type for tests, made of vectors and linear searches: publishes, consumers,
//! settlements, time and limits, as simple as possible.

use crate::{
    AddressedEvent, Annotations, BrowsePage, BrowsePosition, BrowseRequest, BrowsedMessage,
    BrowsedState, ConsumerId, ConsumerSpec, DELIVERY_DELAY, DeadReason, DelayedDetails,
    DelayedRetry, DelayedReturns, EpochConsumer, FlowMode, FlowWindow, HeadMessage, Modification,
    Overflow, PositionedGet, QueueEvent, QueueOutput, QueueReply, QueueSettings, QueueType,
    ReadyDetails, RequestBody, SessionEpoch, SessionId, Settlement, SettlementOutcome, schedule,
};
use message::{Message, MessageBuilder, Protocol, Table, Value};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Bytes of a body of default size.
pub(crate) const BODY: usize = 8;
/// Quorum: the highest level, and the level of messages of high priority before strict priorities.
const HIGH: u8 = 31;
/// Quorum: the level of messages without a priority.
const NORMAL: u8 = 4;
/// The flow window of the queues under test.
pub(crate) const FLOW: FlowWindow = FlowWindow {
    messages: 5,
    bytes: 100,
};

#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    n: u64,
    level: u8,
    expires: Option<u64>,
    attempts: u32,
    /// Earlier deliveries, failed or not. Counted only with the feature.
    acquired: u32,
    redelivered: bool,
    body: u64,
    /// Position among the waiting messages: a count, not a time.
    joined: u64,
}

/// A delivery.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AssignedDelivery {
    pub by: u64,
    pub consumer: u32,
    pub id: u64,
    pub n: u64,
    pub attempts: Option<u32>,
    pub acquired: u32,
    pub redelivered: bool,
    pub annotations: Notes,
}

/// Annotations, by key.
pub(crate) type Notes = BTreeMap<String, i64>;

fn notes(annotations: Option<&Annotations>) -> Notes {
    let entries = annotations.into_iter().flat_map(|a| &a.table().0);
    entries
        .map(|(key, value)| (key.to_string(), value.as_integer().unwrap()))
        .collect()
}

/// An answer to a request for credit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Credited {
    by: u64,
    last: u64,
    available: u64,
    drained: bool,
}

#[derive(Clone, Debug)]
struct Consumer {
    by: u64,
    number: u32,
    priority: i32,
    window: usize,
    next_id: u64,
    out: Vec<(u64, Waiting)>,
    /// The last id that was sent.
    sent: u64,
    /// The last id that arrived at the client.
    received: u64,
    credit: u64,
    /// Flow mode credit: there is no credit at first.
    is_credited: bool,
    /// A drain is in progress.
    drains: bool,
    cancelled: bool,
    get: bool,
    persistent: bool,
}

impl Consumer {
    fn flows(&self) -> bool {
        let on_its_way = |id: u64| self.received < id && id <= self.sent;
        let all: Vec<_> = self.out.iter().filter(|(id, _)| on_its_way(*id)).collect();
        let bytes: u64 = all.iter().map(|(_, w)| w.body).sum();
        all.len() < FLOW.messages as usize && bytes < FLOW.bytes
    }
}

/// See the module. The fields `deliveries`, `dead` and `refused` hold the output since the last comparison.
pub(crate) struct ModelQueue {
    kind: QueueType,
    settings: QueueSettings,
    clock: u64,
    /// Quorum: requeued messages, in service order.
    returned: Vec<Waiting>,
    waiting: Vec<Waiting>,
    /// Quorum: messages that become ready later, and when.
    delayed: Vec<(u64, Waiting)>,
    /// Quorum: delayed messages that were taken by their position, and when they become ready.
    taken: Vec<(u64, Waiting)>,
    /// Quorum: messages can be delayed.
    delays: bool,
    /// Quorum: messages can be published for a later time.
    schedules: bool,
    joined: u64,
    turn: u8,
    /// The message that the next request takes by its position.
    picked: Option<u64>,
    /// Classic: messages that were taken before others of their level that were never delivered.
    early: Vec<u64>,
    /// Quorum: strict priorities.
    is_strict: bool,
    /// Quorum: only failures count towards the delivery limit.
    counts_deliveries: bool,
    /// Quorum: messages expire on time, also behind others.
    is_exact: bool,
    blocked: bool,
    /// In order of creation.
    consumers: Vec<Consumer>,
    /// Consumers that can be served; the one served last is at the end.
    rotation: Vec<(u64, u32)>,
    active: Option<(u64, u32)>,
    /// Classic: the last message that was ever sent to a consumer, by priority.
    delivered: BTreeMap<u8, u64>,
    pub deliveries: Vec<AssignedDelivery>,
    pub dead: Vec<(DeadReason, u64)>,
    pub refused: Vec<u64>,
    credited: Vec<Credited>,
    /// Annotations of receivers, by message.
    notes: BTreeMap<u64, Notes>,
    /// Annotations of the publisher, by message.
    published_notes: BTreeMap<u64, Notes>,
}

impl ModelQueue {
    pub(crate) fn new(kind: QueueType, settings: QueueSettings, clock: u64) -> ModelQueue {
        ModelQueue {
            kind,
            settings,
            clock,
            returned: Vec::new(),
            waiting: Vec::new(),
            delayed: Vec::new(),
            taken: Vec::new(),
            delays: false,
            schedules: false,
            joined: 0,
            turn: 0,
            picked: None,
            early: Vec::new(),
            is_strict: false,
            counts_deliveries: false,
            is_exact: false,
            blocked: false,
            consumers: Vec::new(),
            rotation: Vec::new(),
            active: None,
            delivered: BTreeMap::new(),
            deliveries: Vec::new(),
            dead: Vec::new(),
            refused: Vec::new(),
            credited: Vec::new(),
            notes: BTreeMap::new(),
            published_notes: BTreeMap::new(),
        }
    }

    pub(crate) fn ready(&self) -> u64 {
        (self.returned.len() + self.waiting.len()) as u64
    }

    pub(crate) fn out(&self) -> u64 {
        self.consumers.iter().map(|c| c.out.len() as u64).sum()
    }

    /// Messages that count towards the length limits, and their bytes.
    fn limited(&self) -> (u64, u64) {
        let delayed = self.delayed.iter().map(|(_, w)| w);
        let all = self.returned.iter().chain(&self.waiting).chain(delayed);
        (all.clone().count() as u64, all.map(|w| w.body).sum())
    }

    fn delayed(&self) -> Option<DelayedDetails> {
        let due = || self.delayed.iter().map(|(due, _)| *due);
        Some(DelayedDetails {
            messages: self.delayed.len() as u64,
            bytes: self.delayed.iter().map(|(_, w)| w.body).sum(),
            next_at: due().min()?,
            last_at: due().max()?,
        })
    }

    /// Returns the message if it is ready at once. Otherwise it waits. `at`: the time that the client asked for.
    fn delay(&mut self, message: Waiting, failed: bool, at: Option<u64>) -> Option<Waiting> {
        let ms = match (
            at.filter(|_| self.delays),
            self.settings.quorum.delayed_retry,
        ) {
            (Some(at), _) => at.saturating_sub(self.clock),
            (None, Some(retry)) => {
                let applies = match retry.returns {
                    DelayedReturns::All => true,
                    DelayedReturns::Failed => failed,
                    DelayedReturns::Returned => !failed,
                };
                let failures = u64::from(message.attempts.max(1));
                u64::from(applies) * (retry.min_ms * failures).min(retry.max_ms)
            }
            (None, None) => 0,
        };
        if ms == 0 || message.expires.is_some_and(|e| e <= self.clock) {
            return Some(message);
        }
        self.delayed.push((self.clock + ms, message));
        None
    }

    /// Moves delayed messages to the requeued ones when they are due. Those that expire before are dead.
    fn release(&mut self) {
        let wakes = |(due, w): &(u64, Waiting)| w.expires.map_or(*due, |e| e.min(*due));
        self.delayed.sort_by_key(|d| (wakes(d), d.1.n));
        while self.delayed.first().is_some_and(|d| wakes(d) <= self.clock) {
            let (_, message) = self.delayed.remove(0);
            match message.expires.is_some_and(|e| e <= self.clock) {
                true => self.dead.push((DeadReason::Expired, message.n)),
                false => self.returned.push(message),
            }
        }
    }

    /// Consumer and id of each unsettled delivery of a session.
    pub(crate) fn held_by(&self, by: u64) -> Vec<(u32, u64)> {
        let is_own = self.consumers.iter().filter(|c| c.by == by);
        is_own
            .flat_map(|c| c.out.iter().map(|(id, _)| (c.number, *id)))
            .collect()
    }

    /// The consumers of a session that are not cancelled.
    pub(crate) fn consumers_of(&self, by: u64) -> Vec<u32> {
        let is_own = |c: &&Consumer| c.by == by && !c.cancelled && !c.get;
        self.consumers
            .iter()
            .filter(is_own)
            .map(|c| c.number)
            .collect()
    }

    /// Index of the next message, and whether it is among the requeued or the waiting ones.
    fn next(&self) -> Option<(bool, usize)> {
        if !self.returned.is_empty() {
            return Some((true, 0));
        }
        let first = |wanted: &dyn Fn(&Waiting) -> bool, by_number: bool| {
            let all = self.waiting.iter().enumerate();
            all.filter(|(_, w)| wanted(w))
                .min_by_key(|(_, w)| if by_number { w.n } else { w.joined })
                .map(|(at, _)| at)
        };
        let top = self.waiting.iter().map(|w| w.level).max()?;
        if self.kind == QueueType::Classic || self.is_strict {
            let by_number = self.kind == QueueType::Classic;
            return first(&|w| w.level == top, by_number).map(|at| (false, at));
        }
        let high = first(&|w| w.level == HIGH, false);
        let normal = first(&|w| w.level != HIGH, false);
        let at = match (high, normal) {
            (Some(high), Some(normal)) => {
                let earlier = self.waiting[high].joined < self.waiting[normal].joined;
                if self.turn < 2 || earlier {
                    high
                } else {
                    normal
                }
            }
            (high, normal) => high.or(normal)?,
        };
        Some((false, at))
    }

    /// The first message of each level, in descending order, behind the first requeued one.
    fn heads(&self) -> Vec<(bool, usize)> {
        let mut heads: Vec<_> = self
            .returned
            .first()
            .map(|_| (true, 0))
            .into_iter()
            .collect();
        for level in (0..=HIGH).rev() {
            let all = self.waiting.iter().enumerate();
            let of_level = all.filter(|(_, w)| w.level == level);
            let first = of_level.min_by_key(|(_, w)| w.joined);
            heads.extend(first.map(|(at, _)| (false, at)));
        }
        heads
    }

    /// The level of a new message.
    fn level_of(&self, priority: Option<u8>) -> u8 {
        match self.kind {
            QueueType::Classic => {
                let priority = priority.unwrap_or(0);
                priority.min(self.settings.max_priority.unwrap_or(0))
            }
            QueueType::Quorum if self.is_strict => priority.unwrap_or(NORMAL).min(HIGH),
            QueueType::Quorum if priority.unwrap_or(0) >= 5 => HIGH,
            QueueType::Quorum => NORMAL,
            QueueType::Stream => {
                unreachable!("the model is of queues that messages are taken from")
            }
        }
    }

    fn pop(&mut self) -> Option<Waiting> {
        let (returned, at) = self.next()?;
        if returned {
            return Some(self.returned.remove(at));
        }
        if !self.is_strict {
            self.turn = if self.turn == 2 { 0 } else { self.turn + 1 };
        }
        Some(self.waiting.remove(at))
    }

    fn head(&self) -> Option<&Waiting> {
        let (returned, at) = self.next()?;
        Some(if returned {
            &self.returned[at]
        } else {
            &self.waiting[at]
        })
    }

    /// The message that expires first. Of several, a requeued one is first, then those that were never delivered by level.
    fn first_to_expire(&self) -> Option<(u64, bool, usize)> {
        let returned = self.returned.iter().enumerate();
        let returned = returned.map(|(at, w)| (w, (0, Reverse(0), at as u64), true, at));
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.map(|(at, w)| {
            let order = (1 + u8::from(w.redelivered), Reverse(w.level), w.joined);
            (w, order, false, at)
        });
        let expiring = returned.chain(waiting);
        let expiring = expiring.filter_map(|(w, order, returned, at)| {
            w.expires.map(|expires| (expires, order, returned, at))
        });
        let (expires, _, returned, at) = expiring.min()?;
        Some((expires, returned, at))
    }

    /// Removes all messages that have expired.
    fn expire_exactly(&mut self) {
        while let Some((expires, returned, at)) = self.first_to_expire()
            && expires <= self.clock
        {
            let gone = match returned {
                true => self.returned.remove(at),
                false => self.waiting.remove(at),
            };
            self.dead.push((DeadReason::Expired, gone.n));
        }
    }

    /// Removes expired heads or, with exact expiry, all expired messages. `at_once`: also those with a TTL of zero that may
    /// still be delivered now.
    fn expire(&mut self, at_once: bool) {
        if self.is_exact {
            return self.expire_exactly();
        }
        let clock = if at_once { self.clock } else { self.clock - 1 };
        while self.is_strict {
            let is_due = |w: &Waiting| w.expires.is_some_and(|e| e <= clock);
            let due = self
                .heads()
                .into_iter()
                .find(|(returned, at)| match returned {
                    true => is_due(&self.returned[*at]),
                    false => is_due(&self.waiting[*at]),
                });
            let gone = match due {
                None => return,
                Some((true, at)) => self.returned.remove(at),
                Some((false, at)) => self.waiting.remove(at),
            };
            self.dead.push((DeadReason::Expired, gone.n));
        }
        while self
            .head()
            .is_some_and(|w| w.expires.is_some_and(|e| e <= clock))
        {
            let gone = self.pop().unwrap();
            self.dead.push((DeadReason::Expired, gone.n));
        }
    }

    fn take(&mut self) -> Option<Waiting> {
        self.expire(self.kind == QueueType::Quorum);
        self.pop()
    }

    /// Returns a message that was delayed when it was taken by its position. Returns false if it was not.
    fn return_taken(&mut self, n: u64) -> bool {
        let Some(at) = self.taken.iter().position(|(_, w)| w.n == n) else {
            return false;
        };
        self.delayed.push(self.taken.remove(at));
        self.release();
        true
    }

    /// `at`: see [`ModelQueue::delay`]. `None`: the message is not delayed.
    fn requeue_released(&mut self, mut message: Waiting, at: Option<Option<u64>>) {
        if self.return_taken(message.n) {
            return;
        }
        self.count_delivery(&mut message, false);
        if let Some(at) = at {
            match self.delay(message, false, at) {
                Some(ready) => message = ready,
                None => return,
            }
        }
        match self.kind {
            QueueType::Classic => self.waiting.push(message),
            QueueType::Quorum => self.returned.push(message),
            QueueType::Stream => {
                unreachable!("the model is of queues that messages are taken from")
            }
        }
    }

    fn count_delivery(&self, message: &mut Waiting, failed: bool) {
        if self.counts_deliveries {
            // Failures from before the feature were deliveries too.
            message.acquired = message.acquired.max(message.attempts) + 1;
        }
        message.attempts += u32::from(failed);
        message.redelivered = true;
    }

    fn requeue(&mut self, message: Waiting, requested: bool, failed: bool) {
        self.requeue_at(message, requested, failed, Some(None));
    }

    /// `at`: see [`ModelQueue::delay`]. `None`: the message is not delayed.
    fn requeue_at(
        &mut self,
        mut message: Waiting,
        requested: bool,
        failed: bool,
        at: Option<Option<u64>>,
    ) {
        if self.return_taken(message.n) {
            return;
        }
        let limit = self.settings.delivery_limit;
        self.count_delivery(&mut message, failed);
        if self.kind == QueueType::Classic {
            return self.waiting.push(message);
        }
        if failed && limit.is_some_and(|limit| message.attempts > limit) {
            return self.dead.push((DeadReason::DeliveryLimit, message.n));
        }
        if let Some(at) = at {
            match self.delay(message, failed, at) {
                Some(ready) => message = ready,
                None => return,
            }
        }
        if limit.is_none() && requested {
            self.joined += 1;
            message.joined = self.joined;
            message.level = NORMAL;
            self.waiting.push(message);
        } else {
            self.returned.push(message);
        }
    }

    fn exceeds(&self, more: u64, more_bytes: u64) -> bool {
        let exceeds = |limit: Option<u64>, is: u64| limit.is_some_and(|limit| is > limit);
        let (length, bytes) = self.limited();
        exceeds(self.settings.max_length, length + more)
            || exceeds(self.settings.max_length_bytes, bytes + more_bytes)
    }

    fn enforce_limits(&mut self) {
        if self.settings.overflow == Overflow::DropHead {
            self.blocked = false;
            let before = self.dead.len();
            while self.ready() > 0 && self.exceeds(0, 0) {
                let gone = self.pop().unwrap();
                self.dead.push((DeadReason::MaxLength, gone.n));
                if self.kind == QueueType::Quorum {
                    self.expire(true);
                }
            }
            if self.kind == QueueType::Quorum {
                self.dead[before..].reverse();
            }
        } else if self.kind == QueueType::Quorum {
            let below = |limit: Option<u64>, is: u64| limit.is_none_or(|l| is * 10 <= l * 8);
            let (length, bytes) = self.limited();
            let room = below(self.settings.max_length, length)
                && below(self.settings.max_length_bytes, bytes);
            self.blocked = if self.blocked {
                !room
            } else {
                self.exceeds(0, 0)
            };
        }
    }

    fn elect_active(&mut self) {
        let mut candidates: Vec<&Consumer> = self
            .consumers
            .iter()
            .filter(|c| !c.get && !c.cancelled)
            .collect();
        candidates.sort_by_key(|c| -c.priority);
        let best = candidates.first().map(|c| ((c.by, c.number), c.priority));
        let active = candidates
            .iter()
            .find(|c| Some((c.by, c.number)) == self.active);
        let keeps_active = active.is_some_and(|c| {
            self.kind == QueueType::Classic
                || Some(c.priority) >= best.map(|b| b.1)
                || !c.out.is_empty()
        });
        if !keeps_active {
            self.active = best.map(|b| b.0);
        }
    }

    /// Returns true unless another consumer is the single active one.
    fn is_chosen(&self, c: &Consumer) -> bool {
        let mut others = self.consumers.iter().filter(|o| !o.get && !o.cancelled);
        !self.settings.single_active_consumer
            || self.active == Some((c.by, c.number))
                && (self.kind == QueueType::Classic || others.all(|o| o.priority <= c.priority))
    }

    fn eligible(&self, c: &Consumer) -> bool {
        let alone = self.is_chosen(c);
        let flows = self.kind == QueueType::Quorum || c.flows();
        alone && c.next_id <= c.credit && !c.get && !c.cancelled && c.out.len() < c.window && flows
    }

    /// Updates the rotation. Call after anything that may change which consumers can be served.
    fn refresh(&mut self) {
        self.consumers
            .retain(|c| !(c.get || c.cancelled) || !c.out.is_empty());
        self.elect_active();
        for c in self.consumers.clone() {
            let key = (c.by, c.number);
            let listed = self.rotation.contains(&key);
            match self.eligible(&c) {
                true if !listed => self.rotation.push(key),
                false if listed => self.rotation.retain(|k| *k != key),
                _ => {}
            }
        }
        let known: Vec<(u64, u32)> = self.consumers.iter().map(|c| (c.by, c.number)).collect();
        self.rotation.retain(|k| known.contains(k));
    }

    fn dispatch(&mut self) {
        while self.ready() > 0 {
            let mut best: Option<(i32, usize)> = None;
            for (at, key) in self.rotation.clone().into_iter().enumerate() {
                let priority = self.consumer(key).priority;
                if best.is_none_or(|(p, _)| priority > p) {
                    best = Some((priority, at));
                }
            }
            let Some((_, at)) = best else { return };
            let Some(message) = self.take() else { return };
            let key = self.rotation.remove(at);
            self.assign(key, message);
            self.refresh();
        }
    }

    fn consumer(&mut self, key: (u64, u32)) -> &mut Consumer {
        let mut all = self.consumers.iter_mut();
        all.find(|c| (c.by, c.number) == key).unwrap()
    }

    fn assign(&mut self, key: (u64, u32), message: Waiting) {
        let c = self.consumer(key);
        let id = c.next_id;
        c.next_id += 1;
        c.out.push((id, message));
        self.send_pending(key);
    }

    /// Sends the unsettled deliveries that were not sent yet, as far as the flow window allows.
    fn send_pending(&mut self, key: (u64, u32)) {
        let counts = self.kind == QueueType::Quorum;
        loop {
            let c = self.consumer(key);
            let next = c.out.iter().find(|(id, _)| *id > c.sent).cloned();
            let Some((id, message)) = next else {
                c.sent = c.next_id - 1;
                return;
            };
            if c.cancelled || !(c.get || c.flows()) {
                return;
            }
            c.sent = id;
            if !self.early.contains(&message.n) {
                let last = self.delivered.entry(message.level).or_default();
                *last = message.n.max(*last);
            }
            let annotations = self.notes.get(&message.n).cloned().unwrap_or_default();
            self.deliveries.push(AssignedDelivery {
                by: key.0,
                consumer: key.1,
                id,
                n: message.n,
                attempts: counts.then_some(message.attempts),
                acquired: match self.counts_deliveries {
                    true => message.acquired.max(message.attempts),
                    false => 0,
                },
                redelivered: message.redelivered,
                annotations,
            });
        }
    }

    pub(crate) fn open_flow_window(&mut self, by: u64, consumer: u32, up_to: u64) {
        self.expire(true);
        let c = self.consumer((by, consumer));
        c.received = c.received.max(up_to);
        self.send_pending((by, consumer));
        self.finish();
    }

    /// Quorum: a new leader knows of no progress.
    pub(crate) fn forget_flow(&mut self) {
        for c in &mut self.consumers {
            c.received = 0;
            c.sent = c.next_id - 1;
        }
    }

    fn publish(&mut self, message: &Message) {
        let n = number(message);
        let body = message.body_len() as u64;
        let refused = match (self.kind, self.settings.overflow) {
            (_, Overflow::DropHead) => false,
            (QueueType::Classic, _) => self.exceeds(1, body),
            (QueueType::Quorum, _) => self.blocked,
            (QueueType::Stream, _) => {
                unreachable!("the model is of queues that messages are taken from")
            }
        };
        if refused {
            return self.refused.push(n);
        }
        let ttl = [message.ttl_ms(), self.settings.message_ttl_ms];
        let minimum = u64::from(self.kind == QueueType::Quorum);
        let ttl = ttl.into_iter().flatten().min().map(|ttl| ttl.max(minimum));
        self.joined += 1;
        let own = notes(Annotations::of(message).as_ref());
        let delay = own.get(DELIVERY_DELAY).copied();
        let delay = delay.map_or(0, |delay| delay.unsigned_abs());
        self.published_notes.insert(n, own);
        let due = self.clock + delay;
        let waiting = Waiting {
            n,
            level: self.level_of(message.priority()),
            expires: ttl.map(|ttl| ttl + if self.schedules { due } else { self.clock }),
            attempts: 0,
            acquired: 0,
            redelivered: false,
            body,
            joined: self.joined,
        };
        match self.schedules && due > self.clock {
            true => self.delayed.push((due, waiting)),
            false => self.waiting.push(waiting),
        }
    }

    fn add(&mut self, by: u64, number: u32, spec: Option<&ConsumerSpec>) {
        let is_credited = spec.is_some_and(|s| s.flow_mode == FlowMode::Credit);
        let window = match spec.map(|s| s.prefetch) {
            None => 1,
            Some(_) if is_credited => usize::MAX,
            Some(0) => usize::MAX,
            Some(requested) => requested as usize,
        };
        self.consumers.push(Consumer {
            by,
            number,
            priority: spec.map_or(0, |s| s.priority),
            window,
            next_id: 1,
            out: Vec::new(),
            sent: 0,
            received: 0,
            credit: if is_credited { 0 } else { u64::MAX },
            is_credited,
            drains: false,
            cancelled: false,
            get: spec.is_none(),
            persistent: false,
        });
    }

    /// The consumer of the session that outlives its connections, if there is one, and the ids of its unsettled
    /// deliveries.
    fn persistent(&self) -> Option<(u64, u32, Vec<u64>)> {
        let last = self.consumers.iter().find(|c| c.persistent)?;
        let ids = last.out.iter().map(|(id, _)| *id).collect();
        Some((last.by, last.number, ids))
    }

    fn take_over(&mut self, by: u64, next: &EpochConsumer) {
        if let Some((of, number, _)) = self.persistent() {
            if let Some(settled) = &next.settled {
                let settled_count =
                    |id: u64| settled.ids.iter().any(|(a, b)| (*a..=*b).contains(&id));
                let out = &mut self.consumer((of, number)).out;
                out.retain(|(id, _)| !settled_count(*id));
            }
            let out = std::mem::take(&mut self.consumer((of, number)).out);
            self.return_in_front(out);
            self.consumers.retain(|c| (c.by, c.number) != (of, number));
        }
        self.add(by, next.consumer.0, Some(&next.spec));
        self.consumer((by, next.consumer.0)).persistent = true;
    }

    fn settle(&mut self, key: (u64, u32), outcome: SettlementOutcome, ids: &[(u64, u64)]) {
        for &(from, to) in ids {
            let c = self.consumer(key);
            let (dequeued, left): (Vec<_>, Vec<_>) = c
                .out
                .drain(..)
                .partition(|(id, _)| (from..=to).contains(id));
            c.out = left;
            for (_, message) in dequeued {
                match outcome {
                    SettlementOutcome::Accepted => {}
                    SettlementOutcome::Rejected => {
                        self.dead.push((DeadReason::Rejected, message.n))
                    }
                    SettlementOutcome::Requeue => {
                        self.requeue(message, true, !self.counts_deliveries)
                    }
                    SettlementOutcome::Unseen if self.kind == QueueType::Classic => {
                        self.waiting.push(message);
                    }
                    SettlementOutcome::Released => self.requeue_released(message, Some(None)),
                    SettlementOutcome::Unseen => self.requeue_released(message, None),
                }
            }
        }
        self.send_pending(key);
    }

    fn modify(&mut self, key: (u64, u32), how: &Modification, ids: &[(u64, u64)]) {
        for &(from, to) in ids {
            let out = std::mem::take(&mut self.consumer(key).out);
            let (dequeued, left): (Vec<_>, Vec<_>) =
                (out.into_iter()).partition(|(id, _)| (from..=to).contains(id));
            self.consumer(key).out = left;
            let newer = notes(Some(&how.annotations));
            let at = newer.get("x-opt-delivery-time");
            let at = at.and_then(|at| u64::try_from(*at).ok());
            for (_, message) in dequeued {
                if self.kind == QueueType::Quorum {
                    let newer = newer.clone();
                    self.notes.entry(message.n).or_default().extend(newer);
                }
                match (how.undeliverable_here, how.delivery_failed) {
                    (true, _) => self.dead.push((DeadReason::Rejected, message.n)),
                    (false, true) => self.requeue_at(message, true, true, Some(at)),
                    (false, false) => self.requeue_released(message, Some(at)),
                }
            }
        }
        self.send_pending(key);
    }

    fn credit(&mut self, key: (u64, u32), up_to: u64, drain: bool) {
        let c = self.consumer(key);
        if !c.is_credited {
            return;
        }
        if std::mem::take(&mut c.drains) {
            self.answer_credit(key, false);
        }
        let c = self.consumer(key);
        c.credit = up_to;
        c.drains = drain;
        self.refresh();
        self.dispatch();
        match drain {
            true => self.finish_drains(),
            false => self.answer_credit(key, false),
        }
    }

    fn answer_credit(&mut self, key: (u64, u32), drained: bool) {
        let last = self.consumer(key).next_id - 1;
        self.credited.push(Credited {
            by: key.0,
            last,
            available: self.ready(),
            drained,
        });
    }

    fn finish_drain(&mut self, key: (u64, u32)) {
        let c = self.consumer(key);
        if std::mem::take(&mut c.drains) {
            c.credit = c.credit.min(c.next_id - 1);
            self.answer_credit(key, true);
        }
    }

    /// A drain lasts while there are messages and credit, and only the flow window or prefetch of the consumer
    /// stops it.
    fn finish_drains(&mut self) {
        for c in self.consumers.clone() {
            let goes_on = self.ready() > 0 && self.is_chosen(&c) && c.next_id <= c.credit;
            if c.drains && !goes_on {
                self.finish_drain((c.by, c.number));
            }
        }
        self.refresh();
    }

    /// Quorum: a consumer did not settle this delivery in time. Persistent sessions have no timeout.
    fn time_out(&mut self, by: u64, consumer: u32, id: u64) {
        self.expire(true);
        let c = self.consumer((by, consumer));
        let is_served = !c.get && !c.cancelled;
        let ends = is_served && !c.is_credited;
        let late = c.out.partition_point(|(out, _)| ends || *out <= id);
        for (_, message) in c.out.drain(..late).collect::<Vec<_>>() {
            self.requeue(message, false, false);
        }
        match ends {
            true => self.consumer((by, consumer)).cancelled = true,
            false => self.send_pending((by, consumer)),
        }
        self.finish();
    }

    fn close(&mut self, by: u64) {
        let (mut is_own, others): (Vec<Consumer>, Vec<Consumer>) =
            self.consumers.drain(..).partition(|c| c.by == by);
        self.consumers = others;
        is_own.sort_by_key(|c| c.number);
        for c in is_own {
            if c.persistent {
                self.return_in_front(c.out);
            } else {
                (c.out.into_iter()).for_each(|(_, m)| self.requeue(m, false, true));
            }
        }
    }

    fn return_in_front(&mut self, out: Vec<(u64, Waiting)>) {
        let waited = std::mem::take(&mut self.returned);
        out.into_iter()
            .rev()
            .for_each(|(_, m)| self.requeue_at(m, false, true, None));
        self.returned.reverse();
        self.returned.extend(waited);
    }

    pub(crate) fn request(&mut self, by: u64, body: &RequestBody) {
        self.expire(true);
        match body {
            RequestBody::Publish(message) => {
                self.publish(message);
                if self.kind == QueueType::Classic {
                    self.dispatch();
                    self.enforce_limits();
                }
            }
            RequestBody::Consume { consumer, spec } => self.add(by, consumer.0, Some(spec)),
            RequestBody::TakeOver(next) => self.take_over(by, next),
            RequestBody::Cancel { consumer } => {
                self.finish_drain((by, consumer.0));
                let consumer = self.consumer((by, consumer.0));
                consumer.cancelled = true;
                consumer.persistent = false;
            }
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            } => {
                self.settle((by, consumer.0), *outcome, ids);
                if self.kind == QueueType::Classic && *outcome == SettlementOutcome::Unseen {
                    self.refresh();
                    self.dispatch();
                }
            }
            RequestBody::CreditOneWay { consumer, up_to } => {
                let classic = self.kind == QueueType::Classic;
                let consumer = self.consumer((by, consumer.0));
                if classic || consumer.is_credited {
                    consumer.credit = *up_to;
                }
            }
            RequestBody::Credit {
                consumer,
                up_to,
                drain,
            } => self.credit((by, consumer.0), *up_to, *drain),
            RequestBody::Modify {
                consumer,
                ids,
                modification,
            } => self.modify((by, consumer.0), modification, ids),
            RequestBody::Get { consumer, .. } => {
                let locked = self.kind == QueueType::Quorum && self.settings.single_active_consumer;
                let dequeued = if locked { None } else { self.take() };
                if let Some(message) = dequeued {
                    self.add(by, consumer.0, None);
                    self.assign((by, consumer.0), message);
                }
            }
            RequestBody::GetAt(get) => {
                let picked = self.picked.take();
                let is_picked = |w: &Waiting| Some(w.n) == picked;
                let message = match self.returned.iter().position(is_picked) {
                    Some(at) => Some(self.returned.remove(at)),
                    None => {
                        let at = self.waiting.iter().position(is_picked);
                        at.map(|at| self.waiting.remove(at))
                    }
                };
                let delayed = self.delayed.iter().position(|(_, w)| is_picked(w));
                let delayed = delayed.map(|at| self.delayed.remove(at));
                self.taken.extend(delayed.clone());
                let message = message.or(delayed.map(|(_, w)| w));
                if let Some(message) = message {
                    let delivered = self.delivered.get(&message.level).copied();
                    let is_new = |w: &Waiting| {
                        let is_taken = delivered.is_some_and(|last| w.n <= last);
                        !is_taken && !self.early.contains(&w.n)
                    };
                    let is_before = |w: &Waiting| w.level == message.level && w.n < message.n;
                    if self.waiting.iter().any(|w| is_before(w) && is_new(w)) {
                        self.early.push(message.n);
                    }
                    self.add(by, get.consumer.0, None);
                    self.assign((by, get.consumer.0), message);
                }
            }
            RequestBody::Purge => {
                self.returned.clear();
                self.waiting.clear();
                self.delayed.clear();
            }
            RequestBody::Close => self.close(by),
            other => panic!("{other:?} is not modelled"),
        }
        self.finish();
    }

    /// The messages of the queue and their states, by number.
    fn listing(&self) -> Vec<(u64, BrowsedState, u64, Option<u64>)> {
        let ready = self.returned.iter().chain(&self.waiting);
        let ready = ready.map(|w| (w.n, BrowsedState::Ready, w.body, None));
        let delayed = self.delayed.iter();
        let delayed = delayed.map(|(due, w)| (w.n, BrowsedState::Delayed, w.body, Some(*due)));
        let out = self.consumers.iter().flat_map(|c| &c.out);
        let out = out.map(|(_, w)| (w.n, BrowsedState::Unacknowledged, w.body, None));
        let mut all: Vec<_> = ready.chain(delayed).chain(out).collect();
        all.sort_unstable_by_key(|(n, ..)| *n);
        all
    }

    /// Ready messages that do not expire up to this time.
    fn unexpired(&self, at: u64) -> Vec<u64> {
        let ready = self.returned.iter().chain(&self.waiting);
        let unexpired = ready.filter(|w| w.expires.is_none_or(|expires| expires > at));
        let mut all: Vec<u64> = unexpired.map(|w| w.n).collect();
        all.sort_unstable();
        all
    }

    fn finish(&mut self) {
        self.refresh();
        // A classic queue applies TTLs and limits before it delivers, a quorum queue after.
        if self.kind == QueueType::Classic {
            self.expire(true);
            self.enforce_limits();
        }
        self.dispatch();
        self.expire(true);
        if self.kind == QueueType::Quorum {
            self.enforce_limits();
        }
        self.finish_drains();
    }

    pub(crate) fn advance(&mut self, clock: u64) {
        self.clock = clock;
        self.release();
        self.expire(true);
        self.finish();
    }

    pub(crate) fn configure(&mut self, settings: QueueSettings) {
        self.settings = settings;
        self.finish();
    }

    /// Quorum: the order changes to strict priorities.
    fn serve_strictly(&mut self) {
        self.is_strict = true;
        self.finish();
    }

    /// Quorum: messages expire on time from now on.
    fn expire_on_time(&mut self) {
        self.is_exact = true;
        self.finish();
    }

    /// Quorum: from now on only failures count towards the delivery limit. A message that waits or is unsettled has had
    /// one delivery at least if it has had any.
    fn count_deliveries(&mut self) {
        if std::mem::replace(&mut self.counts_deliveries, true) {
            return;
        }
        let delayed = self.delayed.iter_mut().map(|(_, m)| m);
        let ready = self.returned.iter_mut().chain(&mut self.waiting);
        let ready = ready.chain(delayed);
        let out = (self.consumers.iter_mut()).flat_map(|c| c.out.iter_mut().map(|(_, m)| m));
        let taken = self.taken.iter_mut().map(|(_, m)| m);
        for message in ready.chain(out).chain(taken) {
            message.acquired = message.redelivered.into();
        }
        self.finish();
    }

    /// Quorum: messages can be published for a later time from now on.
    fn hold_back(&mut self) {
        self.schedules = true;
        self.finish();
    }

    /// Quorum: returned messages are delayed from now on, or no longer.
    fn delay_returns(&mut self, retry: Option<DelayedRetry>) {
        self.delays = true;
        self.settings.quorum.delayed_retry = retry;
        self.finish();
    }

    /// Quorum: counts of ready messages by priority.
    fn ready_details(&self) -> Option<ReadyDetails> {
        let mut by_priority = BTreeMap::<u8, u64>::new();
        for waiting in &self.waiting {
            *by_priority.entry(waiting.level).or_default() += 1;
        }
        self.is_strict.then(|| ReadyDetails {
            by_priority: by_priority.into_iter().collect(),
            returned: self.returned.len() as u64,
        })
    }

    /// Classic: a clean stop and a start. All messages of this model are persistent.
    pub(crate) fn restart(&mut self) {
        for c in std::mem::take(&mut self.consumers) {
            self.waiting.extend(c.out.into_iter().map(|(_, w)| w));
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let early = std::mem::take(&mut self.early);
        for message in waiting.iter().filter(|w| early.contains(&w.n)) {
            let last = self.delivered.entry(message.level).or_default();
            *last = message.n.max(*last);
        }
        for message in &mut waiting {
            let last = self.delivered.get(&message.level);
            message.redelivered = last.is_some_and(|last| message.n <= *last);
        }
        self.waiting = waiting;
        self.rotation.clear();
        self.active = None;
        self.enforce_limits();
        self.expire(true);
    }
}

/// The number in the body of a test message.
pub(crate) fn number(message: &Message) -> u64 {
    u64::from_be_bytes(message.body()[..8].try_into().unwrap())
}

/// Has the number of a message as its time of receipt.
pub(crate) fn describe_number(message: &Message) -> HeadMessage {
    HeadMessage {
        received: number(message),
        timestamp: None,
    }
}

/// A message with a number in its body, of at least [`BODY`] bytes.
pub(crate) fn message(n: u64, priority: Option<u8>, ttl_ms: Option<u64>, len: usize) -> Message {
    let mut body = n.to_be_bytes().to_vec();
    body.resize(len.max(BODY), 7);
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority,
        ttl_ms,
        received: WALL,
        exchange: "",
        routing_keys: &["q"],
        properties: &[],
    }
    .build(body.len(), [&body[..]])
    .unwrap()
}

pub(crate) fn spec(prefetch: u32, priority: i32) -> ConsumerSpec {
    ConsumerSpec {
        tag: "c".into(),
        channel: 1,
        flow_mode: crate::FlowMode::Prefetch,
        prefetch,
        no_ack: false,
        exclusive: false,
        priority,
        arguments: Table::default(),
        filter: None,
    }
}

/// The queue ignores the publisher's clock.
const WALL: env::WallTime = env::WallTime(0);

/// A random step. Sessions are 0 to 4, of which 4 only publishes.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Publish {
        priority: Option<u8>,
        ttl_ms: Option<u64>,
        len: usize,
        /// Milliseconds before the first delivery. Queues that cannot hold messages back ignore it.
        delay: Option<u64>,
    },
    Consume {
        by: u64,
        /// None: flow mode credit.
        prefetch: Option<u32>,
        priority: i32,
    },
    /// The next connection of the session that outlives its connections consumes; `done` deliveries of the
    /// previous one are settled.
    TakeOver {
        by: u64,
        prefetch: u32,
        settled_count: u8,
    },
    Cancel {
        by: u64,
    },
    Settle {
        by: u64,
        outcome: u8,
        pick: u8,
        several: bool,
    },
    /// Gives credit for `more` deliveries to the newest consumer.
    Credit {
        by: u64,
        more: u64,
        one_way: bool,
        drain: bool,
    },
    Modify {
        by: u64,
        pick: u8,
        several: bool,
        delivery_failed: bool,
        undeliverable_here: bool,
        note: Option<(u8, i64)>,
        /// Milliseconds from now to the next delivery.
        delay: Option<i64>,
    },
    Get {
        by: u64,
    },
    /// Takes a listed message; `pick` chooses it.
    GetAt {
        by: u64,
        pick: u8,
    },
    Received {
        by: u64,
        pick: u8,
    },
    /// Quorum: a consumer does not settle a delivery in time.
    TimeOut {
        by: u64,
        pick: u8,
    },
    Close {
        by: u64,
    },
    Pass {
        ms: u64,
    },
    Limits {
        length: Option<u64>,
        bytes: Option<u64>,
        reject: bool,
    },
    Purge,
    /// Quorum: the order changes to strict priorities.
    ServeStrictly,
    /// Quorum: only failures count towards the delivery limit.
    CountDeliveries,
    /// Quorum: messages expire on time, also behind others.
    ExpireExactly,
    /// Quorum: messages can be published for a later time.
    HoldBack,
    /// Quorum: returned messages are delayed. `returns`: 0 for none.
    DelayReturns {
        returns: u8,
        min_ms: u64,
        max_ms: u64,
    },
    /// Quorum: snapshot and restore. Classic: a clean restart.
    Restart,
}

pub(crate) fn step(long: usize) -> impl Strategy<Value = Step> {
    let by = 0u64..4;
    let ttl = prop_oneof![3 => Just(None), 1 => (0u64..60).prop_map(Some)];
    let priority = prop_oneof![
        1 => Just(None),
        6 => (0u8..12).prop_map(Some),
        1 => (29u8..40).prop_map(Some),
    ];
    let len = prop_oneof![3 => Just(BODY), 1 => BODY..=long.max(BODY)];
    prop_oneof![
        10 => (priority, ttl, len, proptest::option::weighted(0.2, 0u64..100)).prop_map(|(priority, ttl_ms, len, delay)| Step::Publish { priority, ttl_ms, len, delay }),
        3 => (by.clone(), proptest::option::weighted(0.6, 0u32..4), -1i32..2).prop_map(|(by, prefetch, priority)| Step::Consume { by, prefetch, priority }),
        2 => (by.clone(), 1u32..5, 0u8..4).prop_map(|(by, prefetch, settled_count)| Step::TakeOver { by, prefetch, settled_count }),
        1 => by.clone().prop_map(|by| Step::Cancel { by }),
        6 => (by.clone(), 0u64..12, any::<bool>(), any::<bool>()).prop_map(|(by, more, one_way, drain)| Step::Credit { by, more, one_way: one_way && !drain, drain }),
        4 => (by.clone(), any::<u8>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.2), proptest::option::of((0u8..4, any::<i64>())), proptest::option::weighted(0.3, -20i64..100))
            .prop_map(|(by, pick, several, delivery_failed, undeliverable_here, note, delay)| Step::Modify { by, pick, several, delivery_failed, undeliverable_here, note, delay }),
        8 => (by.clone(), 0u8..7, any::<u8>(), any::<bool>()).prop_map(|(by, outcome, pick, several)| Step::Settle { by, outcome, pick, several }),
        2 => by.clone().prop_map(|by| Step::Get { by }),
        3 => (by.clone(), any::<u8>()).prop_map(|(by, pick)| Step::GetAt { by, pick }),
        4 => (by.clone(), any::<u8>()).prop_map(|(by, pick)| Step::Received { by, pick }),
        1 => (by.clone(), any::<u8>()).prop_map(|(by, pick)| Step::TimeOut { by, pick }),
        1 => by.prop_map(|by| Step::Close { by }),
        3 => (0u64..80).prop_map(|ms| Step::Pass { ms }),
        1 => (proptest::option::of(0u64..8), proptest::option::of(0u64..90), any::<bool>()).prop_map(|(length, bytes, reject)| Step::Limits { length, bytes, reject }),
        1 => Just(Step::Purge),
        1 => Just(Step::ServeStrictly),
        1 => Just(Step::CountDeliveries),
        1 => Just(Step::ExpireExactly),
        1 => Just(Step::HoldBack),
        1 => (0u8..4, 1u64..60, 1u64..120).prop_map(|(returns, min_ms, max_ms)| Step::DelayReturns { returns, min_ms, max_ms }),
        2 => Just(Step::Restart),
    ]
}

/// The queue that is compared with the model.
pub(crate) trait QueueUnderTest {
    fn request(&mut self, by: u64, body: RequestBody) -> QueueOutput;
    fn open_flow_window(&mut self, by: u64, consumer: u32, up_to: u64) -> QueueOutput;
    fn advance(&mut self, ms: u64) -> QueueOutput;
    fn configure(&mut self, settings: &QueueSettings) -> QueueOutput;
    fn restart(&mut self) -> QueueOutput;
    /// Changes to strict priorities. `None`: the queue type does not have them.
    fn serve_strictly(&mut self) -> Option<QueueOutput> {
        None
    }
    /// Changes to counts of all deliveries. `None`: the queue type does not have them.
    fn count_deliveries(&mut self) -> Option<QueueOutput> {
        None
    }
    /// Changes to exact expiry. `None`: the queue type does not change it.
    fn expire_exactly(&mut self) -> Option<QueueOutput> {
        None
    }
    /// Changes the delay of returned messages. `None`: the queue type does not have it.
    fn delay_returns(&mut self, _retry: Option<DelayedRetry>) -> Option<QueueOutput> {
        None
    }
    /// Messages can be published for a later time from now on. `None`: the queue type cannot hold messages back.
    fn hold_back(&mut self) -> Option<QueueOutput> {
        None
    }
    /// A consumer does not settle the deliveries up to this one in time. `None`: the queue type has no timeout.
    fn time_out(&mut self, _by: u64, _consumer: u32, _up_to: u64) -> Option<QueueOutput> {
        None
    }
    /// Counts of delayed messages.
    fn delayed(&self) -> Option<DelayedDetails> {
        None
    }
    /// Counts of ready messages by priority.
    fn ready_details(&self) -> Option<ReadyDetails> {
        None
    }
    /// A page of the messages.
    fn browse(&mut self, request: &BrowseRequest) -> BrowsePage;
    /// The number of the oldest ready message.
    fn head(&mut self) -> Option<u64>;
    fn clock(&self) -> u64;
    /// The session with this number.
    fn session(&self, by: u64) -> SessionId;
    /// Number of ready and of unsettled messages.
    fn counts(&self) -> (u64, u64);
}

/// Runs the queue and the model through the same steps, and compares them after each.
pub(crate) struct Pair<R> {
    pub real: R,
    model: ModelQueue,
    /// The listing after the last step.
    listed: Vec<BrowsedMessage>,
    next_message: u64,
    next_consumer: u32,
    /// A closed session is replaced by a new one.
    sessions: Vec<u64>,
    next_session: u64,
}

const PUBLISHER: u64 = 4;

impl<R: QueueUnderTest> Pair<R> {
    pub(crate) fn new(kind: QueueType, settings: QueueSettings, real: R) -> Pair<R> {
        let clock = real.clock();
        Pair {
            real,
            model: ModelQueue::new(kind, settings, clock),
            listed: Vec::new(),
            next_message: 1,
            next_consumer: 1,
            sessions: vec![10, 11, 12, 13],
            next_session: 20,
        }
    }

    pub(crate) fn run(&mut self, step: Step) -> Result<(), TestCaseError> {
        let session = |by: u64| self.sessions[by as usize];
        let (by, body) = match step {
            Step::Publish {
                priority,
                ttl_ms,
                len,
                delay,
            } => {
                let n = self.next_message;
                self.next_message += 1;
                let message = message(n, priority, ttl_ms, len);
                let message = match delay {
                    Some(delay) => schedule(&message, delay).unwrap(),
                    None => message,
                };
                (PUBLISHER, RequestBody::Publish(message))
            }
            Step::Consume {
                by,
                prefetch,
                priority,
            } => {
                let by = session(by);
                (by, self.consume(prefetch, priority))
            }
            Step::TakeOver {
                by,
                prefetch,
                settled_count,
            } => {
                let by = session(by);
                (by, self.take_over(prefetch, settled_count))
            }
            Step::Cancel { by } => {
                let by = session(by);
                let Some(number) = self.model.consumers_of(by).last().copied() else {
                    return Ok(());
                };
                let consumer = ConsumerId(number);
                (by, RequestBody::Cancel { consumer })
            }
            Step::Credit {
                by,
                more,
                one_way,
                drain,
            } => {
                let by = session(by);
                let Some(number) = self.model.consumers_of(by).last().copied() else {
                    return Ok(());
                };
                let sent = self.model.consumer((by, number)).next_id - 1;
                let consumer = ConsumerId(number);
                let up_to = sent + more;
                let body = match one_way {
                    true => RequestBody::CreditOneWay { consumer, up_to },
                    false => RequestBody::Credit {
                        consumer,
                        up_to,
                        drain,
                    },
                };
                (by, body)
            }
            Step::Modify {
                by,
                pick,
                several,
                delivery_failed,
                undeliverable_here,
                note,
                delay,
            } => {
                let by = session(by);
                let held = self.model.held_by(by);
                let Some((consumer, id)) = held.get(pick as usize % held.len().max(1)) else {
                    return Ok(());
                };
                let entry = |(key, value): (u8, i64)| (key.to_string().into(), Value::I64(value));
                let mut table = Table(note.into_iter().map(entry).collect());
                if let Some(ms) = delay {
                    let at = self.real.clock().saturating_add_signed(ms);
                    table.set("x-opt-delivery-time", Value::I64(at as i64));
                }
                let modification = Box::new(Modification {
                    delivery_failed,
                    undeliverable_here,
                    annotations: Annotations::new(table).unwrap(),
                });
                let (from, consumer) = (if several { 1 } else { *id }, ConsumerId(*consumer));
                let body = RequestBody::Modify {
                    consumer,
                    ids: vec![(from, *id)],
                    modification,
                };
                (by, body)
            }
            Step::Settle {
                by,
                outcome,
                pick,
                several,
            } => {
                let by = session(by);
                let Some(body) = self.settle(by, outcome, pick, several) else {
                    return Ok(());
                };
                (by, body)
            }
            Step::Get { by } => {
                let consumer = ConsumerId(self.next_consumer);
                let by = session(by);
                self.next_consumer += 1;
                let no_ack = false;
                (by, RequestBody::Get { consumer, no_ack })
            }
            Step::GetAt { by, pick } => {
                let Some(listed) = self.listed.get(pick as usize % self.listed.len().max(1)) else {
                    return Ok(());
                };
                self.model.picked = Some(number(&listed.message));
                let get = PositionedGet {
                    consumer: ConsumerId(self.next_consumer),
                    no_ack: false,
                    at: listed.at,
                };
                self.next_consumer += 1;
                (session(by), RequestBody::GetAt(Box::new(get)))
            }
            Step::Close { by } => {
                let closed = session(by);
                self.sessions[by as usize] = self.next_session;
                self.next_session += 1;
                (closed, RequestBody::Close)
            }
            Step::Received { by, pick } => return self.open_flow_window(session(by), pick),
            Step::TimeOut { by, pick } => return self.time_out(session(by), pick),
            Step::Purge => (PUBLISHER, RequestBody::Purge),
            other => return self.other_step(other),
        };
        self.model.request(by, &body);
        let out = self.real.request(by, body);
        self.compare(&out)
    }

    /// Without a prefetch, the consumer has flow mode credit.
    fn consume(&mut self, prefetch: Option<u32>, priority: i32) -> RequestBody {
        let consumer = ConsumerId(self.next_consumer);
        self.next_consumer += 1;
        let flow_mode = match prefetch {
            Some(_) => FlowMode::Prefetch,
            None => FlowMode::Credit,
        };
        let spec = ConsumerSpec {
            flow_mode,
            ..spec(prefetch.unwrap_or(1), priority)
        };
        RequestBody::Consume { consumer, spec }
    }

    fn take_over(&mut self, prefetch: u32, settled_count: u8) -> RequestBody {
        let RequestBody::Consume { consumer, spec } = self.consume(Some(prefetch), 0) else {
            panic!("a consumer");
        };
        let before = self.model.persistent();
        let settled = before.map(|(by, number, ids)| Settlement {
            session: self.real.session(by),
            consumer: ConsumerId(number),
            ids: ids
                .into_iter()
                .take(settled_count.into())
                .map(|id| (id, id))
                .collect(),
        });
        RequestBody::TakeOver(Box::new(EpochConsumer {
            consumer,
            spec,
            settled,
            epoch: SessionEpoch::New,
            at: 0,
        }))
    }

    fn settle(&self, by: u64, outcome: u8, pick: u8, several: bool) -> Option<RequestBody> {
        let held = self.model.held_by(by);
        let (consumer, id) = *held.get(pick as usize % held.len().max(1))?;
        Some(RequestBody::Settle {
            consumer: ConsumerId(consumer),
            outcome: match outcome {
                0 => SettlementOutcome::Requeue,
                1 => SettlementOutcome::Released,
                2 => SettlementOutcome::Rejected,
                3 => SettlementOutcome::Unseen,
                _ => SettlementOutcome::Accepted,
            },
            ids: vec![(if several { 1 } else { id }, id)],
        })
    }

    fn time_out(&mut self, by: u64, pick: u8) -> Result<(), TestCaseError> {
        let held = self.model.held_by(by);
        let Some((consumer, id)) = held.get(pick as usize % held.len().max(1)) else {
            return Ok(());
        };
        if self.model.consumer((by, *consumer)).persistent {
            return Ok(());
        }
        let Some(out) = self.real.time_out(by, *consumer, *id) else {
            return Ok(());
        };
        self.model.time_out(by, *consumer, *id);
        self.compare(&out)
    }

    fn open_flow_window(&mut self, by: u64, pick: u8) -> Result<(), TestCaseError> {
        let held = self.model.held_by(by);
        let Some((consumer, id)) = held.get(pick as usize % held.len().max(1)) else {
            return Ok(());
        };
        self.model.open_flow_window(by, *consumer, *id);
        let out = self.real.open_flow_window(by, *consumer, *id);
        self.compare(&out)
    }

    fn other_step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let out = match step {
            Step::Pass { ms } => {
                self.model.advance(self.real.clock() + ms);
                self.real.advance(ms)
            }
            Step::Limits {
                length,
                bytes,
                reject,
            } => {
                let settings = QueueSettings {
                    max_length: length,
                    max_length_bytes: bytes,
                    overflow: if reject {
                        Overflow::RejectPublish
                    } else {
                        Overflow::DropHead
                    },
                    ..self.model.settings.clone()
                };
                self.model.configure(settings.clone());
                self.real.configure(&settings)
            }
            Step::ServeStrictly => {
                let Some(out) = self.real.serve_strictly() else {
                    return Ok(());
                };
                self.model.serve_strictly();
                out
            }
            Step::DelayReturns {
                returns,
                min_ms,
                max_ms,
            } => {
                let all = [
                    DelayedReturns::All,
                    DelayedReturns::Failed,
                    DelayedReturns::Returned,
                ];
                let returns = usize::from(returns).checked_sub(1).map(|n| all[n]);
                let retry = returns.map(|returns| DelayedRetry {
                    returns,
                    min_ms,
                    max_ms,
                });
                let Some(out) = self.real.delay_returns(retry) else {
                    return Ok(());
                };
                self.model.delay_returns(retry);
                out
            }
            Step::HoldBack => {
                let Some(out) = self.real.hold_back() else {
                    return Ok(());
                };
                self.model.hold_back();
                out
            }
            Step::ExpireExactly => {
                let Some(out) = self.real.expire_exactly() else {
                    return Ok(());
                };
                self.model.expire_on_time();
                out
            }
            Step::CountDeliveries => {
                let Some(out) = self.real.count_deliveries() else {
                    return Ok(());
                };
                self.model.count_deliveries();
                out
            }
            _ => {
                if self.model.kind == QueueType::Classic {
                    self.model.restart();
                    self.sessions = (0..4).map(|n| self.next_session + n).collect();
                    self.next_session += 4;
                } else {
                    self.model.forget_flow();
                }
                self.real.restart()
            }
        };
        self.compare(&out)
    }

    /// Lists the messages page by page, and compares them with those of the model.
    fn compare_listing(&mut self) -> Result<(), TestCaseError> {
        let mut request = BrowseRequest {
            from: None,
            least: 0,
            most: u64::MAX,
            messages: 1 + (self.next_message % 4) as u32,
            body_bytes: 10,
            body_start: 0,
            state: None,
            unexpired_at: None,
        };
        self.listed.clear();
        loop {
            let page = self.real.browse(&request);
            prop_assert!(page.messages.len() <= request.messages as usize);
            self.listed.extend(page.messages);
            let Some(next) = page.next else { break };
            let key = |at: &BrowsePosition| (Reverse(at.level), at.number, at.segment, at.offset);
            let advances = request.from.is_none_or(|from| key(&from) < key(&next));
            prop_assert!(advances, "{:?} {next:?}", request.from);
            request.from = Some(next);
        }
        let place = |b: &BrowsedMessage| (Reverse(b.at.level), b.at.number);
        prop_assert!(self.listed.is_sorted_by(|a, b| place(a) < place(b)));
        let listed = self.listed.iter();
        let listed = listed.map(|b| (number(&b.message), b.state, b.body_len, b.due_at));
        let mut listed: Vec<_> = listed.collect();
        listed.sort_unstable_by_key(|(n, ..)| *n);
        prop_assert_eq!(listed, self.model.listing());
        let is_cut = |b: &BrowsedMessage| b.message.body_len() as u64 == b.body_len.min(10);
        prop_assert!(self.listed.iter().all(is_cut));
        let ready = self
            .listed
            .iter()
            .filter(|b| b.state == BrowsedState::Ready);
        let oldest = ready.min_by_key(|b| b.at.number);
        let oldest = oldest.map(|b| number(&b.message));
        prop_assert_eq!(self.real.head(), oldest);
        // Those of one state.
        let states = [
            BrowsedState::Ready,
            BrowsedState::Unacknowledged,
            BrowsedState::Delayed,
        ];
        let state = states[self.next_consumer as usize % states.len()];
        (request.from, request.state) = (None, Some(state));
        let mut of_state = Vec::new();
        loop {
            let page = self.real.browse(&request);
            of_state.extend(page.messages);
            let Some(next) = page.next else { break };
            request.from = Some(next);
        }
        let expected = self.listed.iter().filter(|b| b.state == state);
        let expected: Vec<u64> = expected.map(|b| b.at.number).collect();
        let of_state: Vec<u64> = of_state.iter().map(|b| b.at.number).collect();
        prop_assert_eq!(of_state, expected);
        // The copies for a client that browses.
        let at = self.model.clock + u64::from(self.next_consumer % 3) * 50;
        request.state = Some(BrowsedState::Ready);
        (request.from, request.unexpired_at) = (None, Some(at));
        let mut copies = Vec::new();
        loop {
            let page = self.real.browse(&request);
            let last = page.last_number.unwrap_or(0);
            prop_assert!(self.listed.iter().all(|b| b.at.number <= last));
            copies.extend(page.messages.iter().map(|b| number(&b.message)));
            let Some(next) = page.next else { break };
            request.from = Some(next);
        }
        copies.sort_unstable();
        prop_assert_eq!(copies, self.model.unexpired(at));
        (request.state, request.unexpired_at) = (None, None);
        // One of them, by its number alone.
        let nth = self.next_consumer as usize % self.listed.len().max(1);
        if let Some(wanted) = self.listed.get(nth) {
            request.from = None;
            (request.least, request.most) = (wanted.at.number, wanted.at.number);
            let found = loop {
                let page = self.real.browse(&request);
                match page.next.filter(|_| page.messages.is_empty()) {
                    Some(next) => request.from = Some(next),
                    None => break page.messages,
                }
            };
            let found: Vec<u64> = found.iter().map(|b| number(&b.message)).collect();
            prop_assert_eq!(found, vec![number(&wanted.message)]);
        }
        Ok(())
    }

    fn compare(&mut self, out: &QueueOutput) -> Result<(), TestCaseError> {
        let mut delivered = Vec::new();
        for addressed in &out.events {
            let QueueEvent::Deliver {
                consumer,
                deliveries,
            } = &addressed.event
            else {
                continue;
            };
            delivered.extend(deliveries.iter().map(|d| AssignedDelivery {
                by: addressed.session.number,
                consumer: consumer.0,
                id: d.id,
                n: number(&d.message),
                attempts: d.attempts,
                acquired: d.acquired,
                redelivered: d.redelivered,
                annotations: notes(d.annotations.as_deref()),
            }));
        }
        let mut credited: Vec<Credited> = Vec::new();
        for AddressedEvent { session, event } in &out.events {
            if let QueueEvent::Answer {
                answer:
                    QueueReply::Credited {
                        last,
                        available,
                        drained,
                    },
                ..
            } = event
            {
                credited.push(Credited {
                    by: session.number,
                    last: *last,
                    available: *available,
                    drained: *drained,
                });
            }
        }
        credited.sort();
        self.model.credited.sort();
        prop_assert_eq!(&credited, &self.model.credited);
        self.model.credited.clear();
        // Deliveries of different consumers may be in any order.
        delivered.sort();
        self.model.deliveries.sort();
        prop_assert_eq!(&delivered, &self.model.deliveries);
        let dead: Vec<_> = out.dead.iter().map(|d| (d.0, number(&d.1))).collect();
        prop_assert_eq!(&dead, &self.model.dead);
        for (_, message) in &out.dead {
            let n = number(message);
            let mut known = self.model.published_notes.get(&n).cloned();
            let known = known.get_or_insert_default();
            known.extend(self.model.notes.get(&n).cloned().unwrap_or_default());
            let own = notes(Annotations::of(message).as_ref());
            prop_assert_eq!(&own, known);
        }
        let counts = (self.model.ready(), self.model.out());
        prop_assert_eq!(self.real.counts(), counts);
        prop_assert_eq!(self.real.delayed(), self.model.delayed());
        prop_assert_eq!(self.real.ready_details(), self.model.ready_details());
        prop_assert_eq!(&out.faults, &Vec::<String>::new());
        self.model.deliveries.clear();
        self.model.dead.clear();
        self.compare_listing()
    }
}
