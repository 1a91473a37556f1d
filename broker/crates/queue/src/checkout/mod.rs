//! Who takes messages from a queue and what they hold: sessions and their request numbers, consumers with their
//! windows, who is served next, and what is out to whom. The same rules for every queue type; where messages lie is
//! the [`MessageStore`]'s.
//!
//! Deterministic: the same calls in the same order leave the same state, on every replica.

mod consumers;
mod credit;
mod flow;
mod outstanding;
mod replies;
mod rotation;
mod sessions;

pub(crate) use consumers::{Consumer, UnsettledMessage};
pub(crate) use credit::PendingDrain;
pub(crate) use flow::{DeliveryFlow, Weighed};
pub use flow::{FLOW_WINDOW, FlowWindow};
pub(crate) use outstanding::Outstanding;
pub(crate) use rotation::{ConsumerRotation, WaitingConsumer};
pub(crate) use sessions::{Admission, SessionRecord, begins_anew};

use crate::{
    Annotations, ConsumerId, ConsumerRules, DeadIncarnation, DeadReason, FlowMode, Name,
    QueueCounters, QueueEvent, QueueType, RequestBody, SessionId, SettlementOutcome,
};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The largest window a consumer gets, whatever it asks for.
pub const MAX_WINDOW: u32 = 65_535;
/// Closed sessions that are remembered, so that a late copy of a request does not bring one back.
pub const MAX_CLOSED: usize = 65_536;
/// How long they are remembered at least, while there are fewer than that many.
pub const CLOSED_MS: u64 = 300_000;

/// A message handed out by a store.
pub(crate) struct Dequeued<I> {
    pub item: I,
    pub attempts: u32,
    pub redelivered: bool,
}

/// What a delivery says besides its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOut {
    pub session: SessionId,
    pub consumer: ConsumerId,
    pub id: u64,
    pub attempts: u32,
    pub redelivered: bool,
    pub left: u64,
    /// The message's number is said in place of `left` ([`Delivery::mark`](crate::Delivery::mark)).
    pub numbered: bool,
}

/// Why a message comes back that was out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequeueReason {
    /// Its consumer wants it requeued.
    Asked,
    /// Its consumer is gone.
    Lost,
    /// The same, and nothing that waits has been before it: the last first.
    InFront,
    /// Its consumer's client was never sent it.
    Unseen { redelivered: bool },
}

/// The messages of a queue, and the way out to sessions.
pub(crate) trait MessageStore {
    type Item: Weighed;
    /// Messages that can be taken.
    fn ready(&self) -> u64;
    /// The next message to deliver.
    fn take(&mut self) -> Option<Dequeued<Self::Item>>;
    /// Back to where the queue type puts such messages, to be redelivered.
    fn give_back(&mut self, item: Self::Item, attempts: u32, why: RequeueReason);
    /// Done with.
    fn settled(&mut self, item: Self::Item);
    /// Adds annotations to a message that is out and is requeued or dies next.
    fn annotate(&mut self, item: &Self::Item, annotations: &Arc<Annotations>);
    fn dead(&mut self, item: Self::Item, reason: DeadReason);
    fn deliver(&mut self, handed: HandedOut, item: &Self::Item);
    fn event(&mut self, session: SessionId, event: QueueEvent);
    /// What has expired at the head goes before it is said how many are left, where the queue type does so.
    fn expire_head(&mut self, no_ack: bool);
    /// Drops everything ready; returns how many.
    fn purge(&mut self) -> u64;
}

/// Connections of a session that know one of the other ([`SessionEpoch`](crate::Line)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownEpoch {
    /// The one that began it.
    pub first: SessionId,
    /// The highest [`EpochConsumer::at`](crate::Succession::at), of whichever line.
    pub at: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Checkout<I> {
    /// What people call the queue, as in `queue 'orders' in vhost '/'`: for the texts of refusals.
    pub label: Name,
    pub rules: &'static ConsumerRules,
    pub single_active: bool,
    pub delivery_limit: Option<u32>,
    pub sessions: BTreeMap<SessionId, SessionRecord>,
    /// By number, in the order in which they came; numbers are never used twice.
    pub consumers: BTreeMap<u64, Consumer<I>>,
    /// Consumers that may be chosen: neither cancelled nor suspended; the best first.
    pub candidates: BTreeSet<(Reverse<i32>, u64)>,
    /// Consumers with room in their window, by priority and then by when they were served last.
    pub service: ConsumerRotation,
    /// The single active consumer.
    pub active: Option<u64>,
    pub next_consumer: u64,
    pub next_ticket: u64,
    /// Consumers that are neither cancelled nor a `Get`'s.
    pub live: u32,
    pub exclusive: Option<u64>,
    pub out: u64,
    /// Of the connections that have consumed last.
    pub epoch: Option<KnownEpoch>,
    pub closed: VecDeque<(u64, SessionId)>,
    pub closed_set: BTreeSet<SessionId>,
    pub gone: BTreeMap<NodeId, Incarnation>,
    pub suspended: BTreeSet<NodeId>,
    pub deleted: bool,
    /// By the number of the consumer. Empty except while a drain waits for room at its consumer.
    pub drains: BTreeMap<u64, PendingDrain>,
    /// Of each consumer.
    pub flow_window: FlowWindow,
    /// No part of the queue's state: each replica counts for itself.
    pub counters: QueueCounters,
}

impl<I: Weighed> Checkout<I> {
    pub fn new(
        label: Name,
        kind: QueueType,
        single_active: bool,
        delivery_limit: Option<u32>,
    ) -> Self {
        Checkout {
            label,
            rules: &kind.descriptor().consumers,
            single_active,
            delivery_limit,
            sessions: BTreeMap::new(),
            consumers: BTreeMap::new(),
            candidates: BTreeSet::new(),
            service: ConsumerRotation::default(),
            active: None,
            next_consumer: 1,
            next_ticket: 1,
            live: 0,
            exclusive: None,
            out: 0,
            epoch: None,
            closed: VecDeque::new(),
            closed_set: BTreeSet::new(),
            gone: BTreeMap::new(),
            suspended: BTreeSet::new(),
            deleted: false,
            drains: BTreeMap::new(),
            flow_window: FLOW_WINDOW,
            counters: QueueCounters::default(),
        }
    }

    /// Carries out an admitted request that is not a publish. `clock`, in milliseconds, is what ended sessions grow old by.
    pub fn apply<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        body: RequestBody,
        clock: u64,
    ) {
        match body {
            // The queue type's own.
            RequestBody::Publish(_) => {}
            RequestBody::Consume { consumer, spec } => {
                self.consume(store, session, seq, consumer, spec);
            }
            RequestBody::Succeed(epoch_consumer) => {
                self.succeed(store, session, seq, *epoch_consumer)
            }
            RequestBody::Cancel { consumer } => self.cancel(store, session, consumer),
            RequestBody::Leave { consumer } => self.leave(store, session, consumer),
            RequestBody::Credit {
                consumer,
                up_to,
                drain,
            } => self.credit(store, session, seq, consumer, up_to, drain),
            RequestBody::CreditOneWay { consumer, up_to } => {
                self.limit_deliveries(session, consumer, up_to);
            }
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            } => self.settle(store, session, consumer, outcome, &ids),
            RequestBody::Modify {
                consumer,
                ids,
                modification,
            } => self.modify(store, session, consumer, &modification, &ids),
            RequestBody::Get { consumer, no_ack } => {
                self.get(store, session, seq, consumer, no_ack);
            }
            RequestBody::Recover { consumer } => {
                let all = [(0, u64::MAX)];
                self.settle(store, session, consumer, SettlementOutcome::Requeue, &all);
            }
            RequestBody::Purge => self.purge(store, session, seq),
            RequestBody::Stat => self.stat(store, session, seq),
            RequestBody::Delete {
                if_unused,
                if_empty,
            } => self.delete(store, session, seq, if_unused, if_empty),
            RequestBody::Close => self.close(store, session, clock),
        }
    }

    /// Hands out what is ready to whoever has room.
    pub fn dispatch<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        while store.ready() > 0 {
            let Some(turn) = self.service.first() else {
                return;
            };
            let Some(consumer) = self.consumers.get_mut(&turn.number) else {
                self.service.served(None);
                continue;
            };
            let Some(taken) = store.take() else { return };
            self.out += 1;
            let counts = &mut self.counters.deliveries;
            counts.redeliver += u64::from(taken.redelivered);
            counts.deliver += u64::from(!consumer.spec.no_ack);
            counts.deliver_no_ack += u64::from(consumer.spec.no_ack);
            consumer.hand(store, taken, 0, self.flow_window);
            let room = consumer.has_room(self.rules, self.flow_window);
            consumer.ticket = room.then_some(self.next_ticket);
            self.next_ticket += u64::from(room);
            self.service.served(consumer.ticket);
        }
    }

    /// Everything that is still out to a consumer from `next` on, once more. False when there is no such consumer.
    pub fn resume<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        next: u64,
    ) -> bool {
        let window = self.flow_window;
        let Some(consumer) = self.consumer(session, id) else {
            return false;
        };
        if consumer.succeeded {
            store.event(session, QueueEvent::Cancelled { consumer: id });
            return true;
        }
        let from = consumer.out.from(next).next().map(|(id, _)| id);
        let next = from.unwrap_or(consumer.next_id).max(next);
        store.event(session, QueueEvent::Resumed { consumer: id, next });
        consumer.hand_again(store, next, window);
        true
    }

    /// A consumer's client was sent everything up to this delivery: as much again may be on its way.
    pub fn received<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        up_to: u64,
    ) {
        let Some(number) = self.number(session, id) else {
            return;
        };
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.received(up_to);
            consumer.send_on(store, self.flow_window);
        }
        if self.rules.adjustable_credit {
            self.refresh(number);
        }
    }

    /// This replica leads from now on and does not know what is on its way to whom.
    pub fn forget_flow(&mut self) {
        self.consumers.values_mut().for_each(Consumer::forget_flow);
    }

    pub fn consumer(&mut self, session: SessionId, id: ConsumerId) -> Option<&mut Consumer<I>> {
        let number = self.number(session, id)?;
        self.consumers.get_mut(&number)
    }

    /// A node's earlier lives are over: what their sessions had goes back.
    pub fn gone_node<S: MessageStore<Item = I>>(&mut self, store: &mut S, gone: DeadIncarnation) {
        let known = self.gone.entry(gone.node).or_insert(gone.before);
        *known = (*known).max(gone.before);
        let first = SessionId {
            node: gone.node,
            ..SessionId::default()
        };
        let over: Vec<SessionId> = self
            .sessions
            .range(first..)
            .map(|(session, _)| *session)
            .take_while(|s| s.node == gone.node && s.incarnation < gone.before)
            .collect();
        for session in over {
            if !planted::is(Bug::DeadRouteKept) {
                self.end_session(store, session);
            }
        }
        // Its late requests are refused by incarnation: no need to remember each.
        let keeps = |s: &SessionId| s.node != gone.node || s.incarnation >= gone.before;
        self.closed.retain(|(_, s)| keeps(s));
        self.closed_set.retain(keeps);
    }

    /// A node cannot be reached: its consumers get nothing more and what they hold goes to others, unless only their own
    /// session is to have it. Its sessions and their numbering stay, for it may come back.
    pub fn suspect_node<S: MessageStore<Item = I>>(&mut self, store: &mut S, node: NodeId) {
        if !self.suspended.insert(node) {
            return;
        }
        for number in self.consumers_of(node) {
            let Some(consumer) = self.consumers.get_mut(&number) else {
                continue;
            };
            consumer.suspended = true;
            if !consumer.lasting || planted::is(Bug::SuspectedReturns) {
                self.return_all(store, number);
            }
            self.unlist(number);
            self.forget_if_done(number);
        }
        self.elect();
    }

    /// Ends the suspension of the consumers of a node.
    pub fn trust_node<S: MessageStore<Item = I>>(&mut self, store: &mut S, node: NodeId) {
        if !self.suspended.remove(&node) {
            return;
        }
        let mut credited = BTreeSet::new();
        for number in self.consumers_of(node) {
            if let Some(consumer) = self.consumers.get_mut(&number) {
                consumer.suspended = false;
                if consumer.spec.flow_mode == FlowMode::Credit {
                    credited.insert(consumer.session);
                }
            }
            self.list(number);
        }
        self.elect();
        // Deliveries that were requeued used up credit, and some may never have arrived. These sessions ask for them, learn
        // that they do not come, and renew the credit. A consumer without credit left would learn it from no later delivery.
        for session in credited {
            store.event(session, QueueEvent::Owner);
        }
    }

    fn consumers_of(&self, node: NodeId) -> Vec<u64> {
        let first = SessionId {
            node,
            ..SessionId::default()
        };
        self.sessions
            .range(first..)
            .take_while(|(session, _)| session.node == node)
            .flat_map(|(_, state)| state.consumers.values().copied())
            .collect()
    }

    pub fn set_limits(&mut self, single_active: bool, delivery_limit: Option<u32>) {
        self.delivery_limit = delivery_limit;
        if self.single_active == single_active {
            return;
        }
        self.single_active = single_active;
        self.active = None;
        self.elect();
        let numbers: Vec<u64> = self.consumers.keys().copied().collect();
        for number in numbers {
            self.refresh(number);
        }
    }
}
