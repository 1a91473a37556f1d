//! Consumers of a queue and their unsettled deliveries, by the same rules for every queue type: sessions and
//! their request numbers, prefetch and credit, the order in which consumers are served, the single active
//! consumer, requeue and dead-lettering.
//!
//! A queue type provides its messages as a [`MessageStore`]. All of this is deterministic: on every replica the
//! same calls in the same order leave the same state.

mod consumers;
mod credit;
mod flow;
mod outstanding;
mod replies;
mod rotation;
mod selected;
mod sessions;

pub(crate) use consumers::{Consumer, UnsettledMessage};
pub(crate) use credit::PendingDrain;
pub(crate) use flow::{DeliveryFlow, Weighed};
pub use flow::{FLOW_WINDOW, FlowWindow};
pub(crate) use outstanding::Outstanding;
pub(crate) use rotation::{ConsumerRotation, WaitingConsumer};
pub(crate) use sessions::{Admission, SessionRecord, starts_numbering_epoch};

use crate::{
    Annotations, BrowsePosition, ConsumerId, ConsumerRules, DeadIncarnation, DeadReason,
    DeliveryCounts, FlowMode, Name, QueueCounters, QueueEvent, QueueType, RequestBody, SessionId,
    SettlementOutcome,
};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Most unsettled deliveries of a consumer, even if its prefetch is higher.
pub(crate) const MAX_WINDOW: u32 = 65_535;
/// Most closed sessions to remember. A late copy of a request must not open such a session again.
pub(crate) const MAX_CLOSED: usize = 65_536;
/// How long a closed session is remembered at least, in milliseconds, unless there are more than
/// [`MAX_CLOSED`].
pub(crate) const CLOSED_MS: u64 = 300_000;

/// With more consumers the assertions in debug builds would cost too much.
const MAX_CHECKED: usize = 32;

/// A message taken from the store for a consumer.
pub(crate) struct Dequeued<I> {
    pub item: I,
    pub counts: DeliveryCounts,
}

/// The properties of a delivery, besides its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOut {
    pub session: SessionId,
    pub consumer: ConsumerId,
    pub id: u64,
    pub counts: DeliveryCounts,
    pub left: u64,
    /// Deliver the number of the message instead of `left`; see [`Delivery::mark`](crate::Delivery::mark).
    pub numbered: bool,
}

/// Why an unsettled message is requeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequeueReason {
    /// The client asked for it.
    Requested,
    /// The consumer ended, or it released the message.
    Returned,
    /// The consumer of a session that outlives its connections ended: the message goes before all other ready
    /// messages. Such messages are requeued in descending order.
    InFront,
    /// The delivery was never sent to the client.
    Unseen { redelivered: bool },
}

/// How an unsettled message is requeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requeue {
    pub reason: RequeueReason,
    /// The delivery counts as failed.
    pub has_failed: bool,
    /// The time of the next delivery that the client asked for, in milliseconds of the wall clock.
    pub deliver_at: Option<u64>,
}

impl Requeue {
    pub(crate) fn new(reason: RequeueReason, has_failed: bool) -> Requeue {
        Requeue {
            reason,
            has_failed,
            deliver_at: None,
        }
    }
}

/// The messages of a queue type, and its output to sessions.
pub(crate) trait MessageStore {
    type Item: Weighed;
    /// Messages ready for delivery.
    fn ready(&self) -> u64;
    /// The next message to deliver.
    fn take(&mut self) -> Option<Dequeued<Self::Item>>;
    /// Requeues a message, at the position that the queue type chooses. `counts` include the last delivery.
    fn requeue(&mut self, item: Self::Item, counts: DeliveryCounts, how: Requeue);
    /// Removes a settled message.
    fn remove_settled(&mut self, item: Self::Item);
    /// Adds annotations to an unsettled message. It is requeued or dead-lettered next.
    fn annotate(&mut self, item: &Self::Item, annotations: &Arc<Annotations>);
    /// Dead-letters or drops a message.
    fn dead_letter(&mut self, item: Self::Item, reason: DeadReason);
    /// Delivers a message.
    fn deliver(&mut self, delivery: HandedOut, item: &Self::Item);
    /// Sends another event.
    fn event(&mut self, session: SessionId, event: QueueEvent);
    /// Removes expired messages before the remaining ones are counted, if the queue type does so.
    fn expire_head(&mut self, no_ack: bool);
    /// Drops all messages that are not with a consumer. Returns their number.
    fn purge(&mut self) -> u64;
    /// In a queue with message groups: a consumer can get a message, with this priority and ticket. `None`: it cannot.
    fn set_turn(&mut self, _consumer: u64, _turn: Option<(i32, u64)>) {}
    /// In a queue with message groups: the next message to deliver, and the number of the consumer that gets it.
    fn take_delivery(&mut self) -> Option<(u64, Dequeued<Self::Item>)> {
        None
    }
    /// The next message to deliver that any consumer can get. This one gets it.
    fn take_free(&mut self, _consumer: u64) -> Option<Dequeued<Self::Item>> {
        self.take()
    }
    /// The ready message at this position, wherever it is in the order. `None`: there is none.
    fn take_at(&mut self, at: &BrowsePosition) -> Option<Dequeued<Self::Item>>;
    /// Returns true if a ready message can go to this consumer.
    fn has_message_for(&self, _consumer: u64) -> bool {
        self.ready() > 0
    }
    /// The ready message at this position, for a consumer whose filter it satisfies. `None`: it is not ready any more, has
    /// expired, or belongs to a group.
    fn take_selected(&mut self, at: &BrowsePosition) -> Option<Dequeued<Self::Item>>;
    /// Returns true if there is no message besides those with consumers.
    fn is_empty(&self) -> bool {
        self.ready() == 0
    }
}

/// The current epoch of a session that outlives its connections ([`SessionEpoch`](crate::SessionEpoch)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownEpoch {
    /// The connection that started the epoch.
    pub first: SessionId,
    /// The highest [`EpochConsumer::at`](crate::EpochConsumer::at) of any connection, in this or an earlier
    /// epoch.
    pub at: u64,
}

/// The sessions, consumers and unsettled deliveries of one queue.
#[derive(Debug)]
pub(crate) struct Checkout<I> {
    /// The queue's name in error texts, such as `queue 'orders' in vhost '/'`.
    pub label: Name,
    pub rules: &'static ConsumerRules,
    pub single_active: bool,
    pub delivery_limit: Option<u32>,
    /// See [`QuorumFeatures::delivery_counts`](ids::QuorumFeatures).
    pub counts_deliveries: bool,
    /// Boxed, because half of the places of a tree with ascending keys are empty.
    pub sessions: BTreeMap<SessionId, Box<SessionRecord>>,
    /// By number, in order of creation; numbers are never used twice. Boxed as `sessions` are.
    pub consumers: BTreeMap<u64, Box<Consumer<I>>>,
    /// Consumers that can be served, neither cancelled nor suspended, by descending priority.
    pub candidates: BTreeSet<(Reverse<i32>, u64)>,
    /// Consumers of `candidates` that have a filter. They are not in `service`.
    pub filtered: BTreeSet<u64>,
    /// Consumers that can get another delivery.
    pub service: ConsumerRotation,
    /// The single active consumer, if the queue has one.
    pub active: Option<u64>,
    pub next_consumer: u64,
    pub next_ticket: u64,
    /// Number of consumers that are neither cancelled nor created by a `Get`.
    pub live: u32,
    /// The exclusive consumer.
    pub exclusive: Option<u64>,
    /// Number of unsettled deliveries of all consumers.
    pub out: u64,
    /// The epoch of the connection that consumed last.
    pub epoch: Option<KnownEpoch>,
    /// Closed sessions with the clock at their end, oldest first.
    pub closed: VecDeque<(u64, SessionId)>,
    pub closed_set: BTreeSet<SessionId>,
    /// Of each node the first incarnation that may still be alive.
    pub gone: BTreeMap<NodeId, Incarnation>,
    /// Nodes that cannot be reached.
    pub suspended: BTreeSet<NodeId>,
    pub deleted: bool,
    /// Consumers whose activity may have changed in this step. Not part of the replicated state: the end of the step
    /// reports them.
    activity_due: Vec<u64>,
    /// The queue has message groups: its store chooses the consumer of each message, and `service` is empty.
    pub has_groups: bool,
    /// Consumers that may have begun or ceased to be able to get a message, in a queue with message groups. Not part of the
    /// replicated state: the store is told before the next delivery.
    turns_due: Vec<u64>,
    /// Drains in progress, by the number of the consumer.
    pub drains: BTreeMap<u64, PendingDrain>,
    /// Applies to each consumer.
    pub flow_window: FlowWindow,
    /// Not part of the replicated state: each replica counts its own.
    pub counters: QueueCounters,
}

impl<I: Weighed> Checkout<I> {
    pub(crate) fn new(
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
            counts_deliveries: false,
            sessions: BTreeMap::new(),
            consumers: BTreeMap::new(),
            candidates: BTreeSet::new(),
            filtered: BTreeSet::new(),
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
            activity_due: Vec::new(),
            has_groups: false,
            turns_due: Vec::new(),
            drains: BTreeMap::new(),
            flow_window: FLOW_WINDOW,
            counters: QueueCounters::default(),
        }
    }

    /// Applies an admitted request other than a publish. `clock` is in milliseconds; ended sessions are
    /// forgotten by it.
    pub(crate) fn apply<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        body: RequestBody,
        clock: u64,
    ) {
        match body {
            // The queue type handles publishes itself.
            RequestBody::Publish(_) => {}
            RequestBody::PublishBatch(_) | RequestBody::Stream(_) => {
                let answer = crate::QueueReply::Refused {
                    code: 540,
                    text: "the queue is not a stream".to_owned(),
                };
                store.event(session, QueueEvent::Answer { seq, answer });
            }
            RequestBody::Consume { consumer, spec } => {
                self.consume(store, session, seq, consumer, spec);
            }
            RequestBody::TakeOver(epoch_consumer) => {
                self.replace_predecessors(store, session, seq, *epoch_consumer)
            }
            RequestBody::Cancel { consumer } => self.cancel(store, session, consumer),
            RequestBody::CancelAndRequeue { consumer } => self.leave(store, session, consumer),
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
            RequestBody::GetAt(get) => self.get_at(store, session, seq, &get),
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
        if cfg!(debug_assertions) && self.consumers.len() <= MAX_CHECKED {
            self.assert_consistent();
        }
    }

    /// Asserts that the counts and the indexes over the consumers agree with the consumers.
    fn assert_consistent(&self) {
        let mut out = 0;
        let mut live = 0;
        let mut waiting = 0;
        for (number, consumer) in &self.consumers {
            let state = self.sessions.get(&consumer.session);
            let listed = state.and_then(|state| state.consumers.get(&consumer.id));
            assert_eq!(listed, Some(number), "session {:?}", consumer.session);
            assert!(*number < self.next_consumer);
            let candidate = (Reverse(consumer.spec.priority), *number);
            let is_candidate = self.candidates.contains(&candidate);
            assert_eq!(is_candidate, consumer.takes_turns(), "consumer {number}");
            let is_filtered = is_candidate && consumer.spec.filter.is_some();
            assert_eq!(self.filtered.contains(number), is_filtered);
            let ticket = consumer.ticket;
            assert!(ticket.is_none() || !is_filtered, "consumer {number}");
            assert!(ticket.is_none_or(|ticket| is_candidate && ticket < self.next_ticket));
            assert!(consumer.out.last_id() < Some(consumer.next_id));
            out += consumer.out.len() as u64;
            live += u32::from(!consumer.get && !consumer.cancelled);
            waiting += usize::from(ticket.is_some());
        }
        assert_eq!((self.out, self.live), (out, live));
        let served = self.service.len();
        assert_eq!(served, if self.has_groups { 0 } else { waiting });
        assert!(self.candidates.len() <= self.consumers.len());
        assert!(self.filtered.len() <= self.candidates.len());
        let exclusive = self.exclusive.map(|number| self.consumers.get(&number));
        assert!(exclusive.is_none_or(|c| c.is_some_and(|c| c.spec.exclusive)));
        let active = self.active.map(|number| self.consumers.get(&number));
        assert!(active.is_none_or(|c| c.is_some_and(|c| c.takes_turns())));
        assert!(self.active.is_none() || self.single_active);
        assert!(!self.deleted || self.consumers.is_empty());
        let mut drains = self.drains.keys();
        assert!(self.deleted || drains.all(|number| self.consumers.contains_key(number)));
        assert_eq!(self.closed.len(), self.closed_set.len());
    }

    /// Delivers ready messages to the consumers that can get them.
    pub(crate) fn dispatch<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        if !self.activity_due.is_empty() {
            self.report_activity(store);
        }
        if self.has_groups {
            return self.dispatch_groups(store);
        }
        while store.ready() > 0 {
            let Some(turn) = self.service.first() else {
                return;
            };
            let Some(consumer) = self.consumers.get_mut(&turn.number) else {
                debug_assert!(false, "consumer {} is removed and still waits", turn.number);
                self.service.advance(None);
                continue;
            };
            debug_assert!(consumer.takes_turns() && consumer.next_id <= consumer.credit);
            let Some(dequeued) = store.take() else { return };
            self.out += 1;
            consumer.count_delivery(&mut self.counters.deliveries, dequeued.counts);
            consumer.assign(store, dequeued, 0, self.flow_window);
            consumer.renew_ticket(self.rules, self.flow_window, &mut self.next_ticket);
            self.service.advance(consumer.ticket);
        }
    }

    /// Delivers ready messages in a queue with message groups. The store chooses the consumers.
    fn dispatch_groups<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        for number in std::mem::take(&mut self.turns_due) {
            store.set_turn(number, self.turn(number));
        }
        while let Some((number, dequeued)) = store.take_delivery() {
            let Some(consumer) = self.consumers.get_mut(&number) else {
                debug_assert!(false, "consumer {number} is removed and still waits");
                // No message is lost.
                let how = Requeue::new(RequeueReason::Returned, false);
                store.requeue(dequeued.item, dequeued.counts, how);
                store.set_turn(number, None);
                continue;
            };
            debug_assert!(consumer.takes_turns() && consumer.next_id <= consumer.credit);
            self.out += 1;
            consumer.count_delivery(&mut self.counters.deliveries, dequeued.counts);
            consumer.assign(store, dequeued, 0, self.flow_window);
            consumer.renew_ticket(self.rules, self.flow_window, &mut self.next_ticket);
            store.set_turn(number, self.turn(number));
        }
    }

    /// The priority and the ticket of a consumer that can get another message.
    fn turn(&self, number: u64) -> Option<(i32, u64)> {
        let consumer = self.consumers.get(&number)?;
        Some((consumer.spec.priority, consumer.ticket?))
    }

    /// Has the store choose the consumer of each message from now on, for good.
    pub(crate) fn enable_groups(&mut self) {
        if !self.has_groups {
            self.has_groups = true;
            self.service.clear();
            self.turns_due.extend(self.consumers.keys());
        }
    }

    /// Adds a consumer with this ticket to those that can get a message.
    pub(crate) fn begin_turn(&mut self, priority: i32, turn: WaitingConsumer) {
        match self.has_groups {
            true => self.turns_due.push(turn.number),
            false => self.service.insert(priority, turn),
        }
    }

    /// Removes a consumer that had this ticket from those that can get a message.
    fn end_turn(&mut self, priority: i32, turn: WaitingConsumer) {
        match self.has_groups {
            true => self.turns_due.push(turn.number),
            false => self.service.remove(priority, turn.ticket),
        }
    }

    /// Repeats the unsettled deliveries of a consumer from `next` on. Returns false if there is no such
    /// consumer.
    pub(crate) fn resume<S: MessageStore<Item = I>>(
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
        let from = consumer.out.iter_from(next).next().map(|(id, _)| id);
        let next = from.unwrap_or(consumer.next_id).max(next);
        store.event(session, QueueEvent::Resumed { consumer: id, next });
        consumer.resend_from(store, next, window);
        if let Some(activity) = self
            .consumer_number(session, id)
            .and_then(|n| self.activity(n))
        {
            store.event(session, activity);
        }
        true
    }

    /// Opens the flow window: the consumer's client was sent all deliveries up to this one.
    pub(crate) fn open_flow_window<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        up_to: u64,
    ) {
        let Some(number) = self.consumer_number(session, id) else {
            return;
        };
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.open_flow_window(up_to);
            consumer.send_pending(store, self.flow_window);
        }
        if self.rules.adjustable_credit {
            self.update_rotation(number);
        }
    }

    /// Resets the flow windows: this replica becomes the leader and does not know which deliveries have
    /// arrived.
    pub(crate) fn forget_flow(&mut self) {
        self.consumers.values_mut().for_each(|c| c.forget_flow());
    }

    pub(crate) fn consumer(
        &mut self,
        session: SessionId,
        id: ConsumerId,
    ) -> Option<&mut Consumer<I>> {
        let number = self.consumer_number(session, id)?;
        self.consumers.get_mut(&number).map(Box::as_mut)
    }

    /// Ends the sessions of a node's earlier incarnations and requeues their messages.
    pub(crate) fn end_incarnations<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        dead: DeadIncarnation,
    ) {
        let first_alive = self.gone.entry(dead.node).or_insert(dead.before);
        *first_alive = (*first_alive).max(dead.before);
        let first = SessionId {
            node: dead.node,
            ..SessionId::default()
        };
        let ended: Vec<SessionId> = self
            .sessions
            .range(first..)
            .map(|(session, _)| *session)
            .take_while(|s| s.node == dead.node && s.incarnation < dead.before)
            .collect();
        for session in ended {
            if !planted::is(Bug::DeadRouteKept) {
                self.end_session(store, session);
            }
        }
        // Their late requests are refused by incarnation, so the sessions need not be remembered.
        let may_be_alive = |s: &SessionId| s.node != dead.node || s.incarnation >= dead.before;
        self.closed.retain(|(_, s)| may_be_alive(s));
        self.closed_set.retain(may_be_alive);
    }

    /// Suspends the consumers of a node that cannot be reached and requeues their messages, except those of
    /// sessions that outlive their connections. Its sessions and request numbers stay, since the node may come
    /// back.
    pub(crate) fn suspect_node<S: MessageStore<Item = I>>(&mut self, store: &mut S, node: NodeId) {
        if !self.suspended.insert(node) {
            return;
        }
        for number in self.consumers_of(node) {
            let Some(consumer) = self.consumers.get_mut(&number) else {
                continue;
            };
            consumer.suspended = true;
            if !consumer.lasting || planted::is(Bug::SuspectedReturns) {
                self.requeue_all(store, number, !self.counts_deliveries);
            }
            self.remove_candidate(number);
            self.remove_if_finished(number);
        }
        self.elect_active();
    }

    /// Ends the suspension of the consumers of a node.
    pub(crate) fn trust_node<S: MessageStore<Item = I>>(&mut self, store: &mut S, node: NodeId) {
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
            self.add_candidate(number);
        }
        self.elect_active();
        // Requeued deliveries used up credit, and some may never have arrived. The `Owner` event makes these
        // sessions ask for them, learn that they will not come, and renew the credit. A consumer without credit
        // would learn it from no later delivery.
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

    pub(crate) fn set_limits(&mut self, single_active: bool, delivery_limit: Option<u32>) {
        self.delivery_limit = delivery_limit;
        if self.single_active == single_active {
            return;
        }
        self.single_active = single_active;
        self.active = None;
        self.elect_active();
        let numbers: Vec<u64> = self.consumers.keys().copied().collect();
        for number in numbers {
            self.update_rotation(number);
            self.note_activity(number);
        }
    }
}
