//! Consumers: windows, turns, the single active one, settling.

use super::{
    Checkout, DeliveryFlow, Dequeued, FlowWindow, HandedOut, MAX_WINDOW, MessageStore, Outstanding,
    RequeueReason, WaitingConsumer, Weighed,
};
use crate::{
    ConsumerId, ConsumerInfo, ConsumerRules, ConsumerSpec, DeadReason, FlowMode, Modification,
    SessionId, SettlementOutcome,
};
use env::planted::{self, Bug};
use std::cmp::Reverse;
use std::sync::Arc;

/// A message that is out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnsettledMessage<I> {
    pub item: I,
    pub attempts: u32,
    pub redelivered: bool,
    /// For a `Get`: messages left when it was taken.
    pub left: u64,
}

#[derive(Debug)]
pub(crate) struct Consumer<I> {
    pub session: SessionId,
    pub id: ConsumerId,
    pub spec: ConsumerSpec,
    /// Made by a `Get`: holds one message and is gone with it.
    pub get: bool,
    pub cancelled: bool,
    pub suspended: bool,
    /// Of a session that outlives its connections ([`EpochConsumer`](crate::Succession)).
    pub lasting: bool,
    /// Over, for such a session has another one. It is here for its connection to hear of that.
    pub succeeded: bool,
    /// Its settling is no acknowledgement: the client was not asked for one.
    pub uncounted: bool,
    pub next_id: u64,
    pub out: Outstanding<UnsettledMessage<I>>,
    /// No delivery beyond this id.
    pub credit: u64,
    /// Its place in `Checkout::service`.
    pub ticket: Option<u64>,
    /// No part of the queue's state, see there. A quorum queue's log decides who gets what; its leader sends it as there is
    /// room. A classic queue gives nothing to a consumer without room.
    pub flow: DeliveryFlow,
}

impl<I: Weighed> Consumer<I> {
    pub fn new(session: SessionId, id: ConsumerId, spec: ConsumerSpec, get: bool) -> Self {
        let credit = match spec.flow_mode {
            FlowMode::Prefetch => u64::MAX,
            FlowMode::Credit => 0,
        };
        Consumer {
            session,
            id,
            uncounted: spec.no_ack,
            spec,
            get,
            cancelled: false,
            suspended: false,
            lasting: false,
            succeeded: false,
            next_id: 1,
            out: Outstanding::default(),
            credit,
            ticket: None,
            flow: DeliveryFlow::default(),
        }
    }

    /// Most deliveries that may be unsettled.
    fn window(&self, rules: &ConsumerRules) -> usize {
        if self.spec.flow_mode == FlowMode::Credit && !self.spec.no_ack {
            return rules.unlimited_prefetch.max(MAX_WINDOW as usize);
        }
        let asked = if self.spec.no_ack {
            0
        } else {
            self.spec.prefetch
        };
        match asked {
            0 => rules.unlimited_prefetch,
            asked => asked.min(MAX_WINDOW) as usize,
        }
    }

    /// Returns true if its credit and its unsettled deliveries allow another delivery.
    pub(super) fn may_receive(&self, rules: &ConsumerRules) -> bool {
        let over = usize::from(planted::is(Bug::OverCredit));
        self.next_id <= self.credit && self.out.len() < self.window(rules).saturating_add(over)
    }

    pub fn has_room(&self, rules: &ConsumerRules, flow: FlowWindow) -> bool {
        self.may_receive(rules) && (!rules.adjustable_credit || self.flow.has_room(flow))
    }

    /// Whether a new consumer with this spec, of a session that outlives its connections, is in its place.
    pub fn precedes(&self, spec: &ConsumerSpec) -> bool {
        self.lasting && !self.succeeded && self.spec.tag == spec.tag
    }

    pub fn takes_turns(&self) -> bool {
        !self.get && !self.cancelled && !self.suspended
    }

    pub(super) fn hand<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        taken: Dequeued<I>,
        left: u64,
        window: FlowWindow,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        let out = UnsettledMessage {
            item: taken.item,
            attempts: taken.attempts,
            redelivered: taken.redelivered,
            left,
        };
        // Behind what waits to be sent.
        if self.get || (self.flow.sent + 1 == id && self.flow.has_room(window)) {
            store.deliver(self.handed(id, &out), &out.item);
            self.flow.send(id, out.item.body());
        }
        self.out.push(id, out);
    }

    /// What is out from this id on, once more, as far as there is room.
    pub(super) fn hand_again<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        from: u64,
        window: FlowWindow,
    ) {
        let sent = from.saturating_sub(1);
        let known = self.flow.until(sent).map(|ids| self.out.among(ids));
        let bodies = known.into_iter().flatten().map(|o| o.item.body());
        self.flow.rewind(sent, bodies);
        self.send_on(store, window);
    }

    /// Sends what is out and was not sent, as far as there is room.
    pub(super) fn send_on<S: MessageStore<Item = I>>(&mut self, store: &mut S, window: FlowWindow) {
        if self.cancelled || self.flow.sent + 1 >= self.next_id {
            return;
        }
        for (id, out) in self.out.from(self.flow.sent + 1) {
            if !self.get && !self.flow.has_room(window) {
                return;
            }
            let to = (self.session, self.id, self.lasting);
            store.deliver(handed(to, id, out), &out.item);
            self.flow.send(id, out.item.body());
        }
        // What came after that was given back.
        self.flow.sent = self.next_id - 1;
    }

    pub(super) fn received(&mut self, up_to: u64) {
        let done = self.flow.until(up_to).map(|ids| self.out.among(ids));
        let bodies = done.into_iter().flatten().map(|o| o.item.body());
        self.flow.received(up_to, bodies);
    }

    pub(super) fn forget_flow(&mut self) {
        let bodies = self.out.values().map(|o| o.item.body());
        self.flow = DeliveryFlow::unknown(self.next_id - 1, bodies);
    }

    fn handed(&self, id: u64, out: &UnsettledMessage<I>) -> HandedOut {
        handed((self.session, self.id, self.lasting), id, out)
    }
}

fn handed<I>(
    (session, consumer, numbered): (SessionId, ConsumerId, bool),
    id: u64,
    out: &UnsettledMessage<I>,
) -> HandedOut {
    HandedOut {
        session,
        consumer,
        id,
        attempts: out.attempts,
        redelivered: out.redelivered,
        left: out.left,
        numbered,
    }
}

impl<I: Weighed> Checkout<I> {
    /// The queue's consumers, in the order in which they came.
    pub fn listing(&self) -> Vec<ConsumerInfo> {
        let shown = |c: &&Consumer<I>| !c.get && !c.cancelled;
        let info = |c: &Consumer<I>| ConsumerInfo {
            session: c.session,
            consumer: c.id,
            spec: c.spec.clone(),
            unacknowledged: c.out.len() as u64,
            active: !c.suspended && (!self.single_active || self.is_active(c)),
        };
        self.consumers.values().filter(shown).map(info).collect()
    }

    /// Has a consumer that can be reached.
    pub fn in_use(&self) -> bool {
        !self.candidates.is_empty()
    }

    fn is_active(&self, consumer: &Consumer<I>) -> bool {
        self.active
            .and_then(|number| self.consumers.get(&number))
            .is_some_and(|c| c.session == consumer.session && c.id == consumer.id)
    }

    /// Adds a consumer; the caller has checked that it may.
    pub(super) fn add(&mut self, consumer: Consumer<I>) -> u64 {
        let number = self.next_consumer;
        self.next_consumer += 1;
        if let Some(state) = self.sessions.get_mut(&consumer.session) {
            state.consumers.insert(consumer.id, number);
        }
        if !consumer.get {
            self.live += 1;
        }
        if consumer.spec.exclusive {
            self.exclusive = Some(number);
        }
        self.consumers.insert(number, consumer);
        self.list(number);
        self.elect();
        number
    }

    /// Its unsettled deliveries stay with the session.
    pub(super) fn cancel<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
    ) {
        let Some(number) = self.number(session, id) else {
            return;
        };
        self.unlist(number);
        self.retire(number);
        self.finish_drain(store, number);
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.cancelled = true;
            // Its session knows, and nobody follows it.
            consumer.succeeded = false;
            consumer.lasting = false;
        }
        self.forget_if_done(number);
        self.elect();
    }

    /// Goes with all that it holds.
    pub(super) fn leave<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
    ) {
        if let Some(number) = self.number(session, id) {
            self.return_all(store, number);
            self.cancel(store, session, id);
        }
    }

    pub(super) fn settle<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        outcome: SettlementOutcome,
        ranges: &[(u64, u64)],
    ) {
        let Some(number) = self.number(session, id) else {
            return;
        };
        let counted = outcome == SettlementOutcome::Accepted
            && self.consumers.get(&number).is_some_and(|c| !c.uncounted);
        for &(from, to) in ranges.iter().filter(|(from, to)| from <= to) {
            let to = match planted::is(Bug::AckShort) && from < to {
                true => to - 1,
                false => to,
            };
            let mut from = from;
            while let Some((id, out)) = self.take_out(number, from, to) {
                // What is settled is not looked at again.
                from = from.max(id) + 1;
                self.counters.deliveries.ack += u64::from(counted);
                match outcome {
                    SettlementOutcome::Accepted => store.settled(out.item),
                    SettlementOutcome::Rejected => store.dead(out.item, DeadReason::Rejected),
                    SettlementOutcome::Released => {
                        store.give_back(out.item, out.attempts, RequeueReason::Lost)
                    }
                    SettlementOutcome::Unseen => {
                        let redelivered = out.redelivered;
                        self.counters.deliveries.deliver_less(redelivered);
                        store.give_back(
                            out.item,
                            out.attempts,
                            RequeueReason::Unseen { redelivered },
                        );
                    }
                    SettlementOutcome::Requeue => {
                        Self::give_back(self.delivery_limit, store, out, RequeueReason::Asked);
                    }
                }
            }
        }
        self.settled(store, number);
    }

    /// As [`settle`](Self::settle), with the outcome `modified`.
    pub(super) fn modify<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        modification: &Modification,
        ranges: &[(u64, u64)],
    ) {
        let Some(number) = self.number(session, id) else {
            return;
        };
        let annotations = &modification.annotations;
        let annotations = (!annotations.is_empty()).then(|| Arc::new(annotations.clone()));
        for &(from, to) in ranges.iter().filter(|(from, to)| from <= to) {
            let mut from = from;
            while let Some((id, out)) = self.take_out(number, from, to) {
                from = from.max(id) + 1;
                if let Some(annotations) = &annotations {
                    store.annotate(&out.item, annotations);
                }
                if modification.undeliverable_here {
                    store.dead(out.item, DeadReason::Rejected);
                } else if modification.delivery_failed {
                    Self::give_back(self.delivery_limit, store, out, RequeueReason::Asked);
                } else {
                    store.give_back(out.item, out.attempts, RequeueReason::Lost);
                }
            }
        }
        self.settled(store, number);
    }

    /// Deliveries of a consumer were settled: it may get others.
    fn settled<S: MessageStore<Item = I>>(&mut self, store: &mut S, number: u64) {
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.send_on(store, self.flow_window);
        }
        self.refresh(number);
        self.forget_if_done(number);
        self.elect();
    }

    /// The first one among these ids, with its id.
    pub(super) fn take_out(
        &mut self,
        number: u64,
        from: u64,
        to: u64,
    ) -> Option<(u64, UnsettledMessage<I>)> {
        let consumer = self.consumers.get_mut(&number)?;
        let (id, out) = match consumer.out.take_first(from..=to) {
            None if from >= to && planted::is(Bug::AckAppliedTwice) => consumer.out.pop_first()?,
            found => found?,
        };
        consumer.flow.settled(id, out.item.body());
        if consumer.out.is_empty() {
            // Nothing waits to be sent.
            consumer.flow.sent = consumer.next_id - 1;
        }
        self.out -= 1;
        Some((id, out))
    }

    /// Counts a failed delivery; above the delivery limit the message becomes a dead letter.
    fn give_back<S: MessageStore<Item = I>>(
        limit: Option<u32>,
        store: &mut S,
        out: UnsettledMessage<I>,
        why: RequeueReason,
    ) {
        let attempts = out.attempts.saturating_add(1);
        match limit {
            Some(limit) if attempts > limit => store.dead(out.item, DeadReason::DeliveryLimit),
            _ => store.give_back(out.item, attempts, why),
        }
    }

    /// What a session that lasts held goes before all that waits, for it is to come in its order again.
    fn return_in_front<S: MessageStore<Item = I>>(&mut self, store: &mut S, number: u64) {
        let last = |c: &Consumer<I>| c.out.last_id();
        while let Some(id) = self.consumers.get(&number).and_then(last)
            && let Some((_, out)) = self.take_out(number, id, id)
        {
            Self::give_back(self.delivery_limit, store, out, RequeueReason::InFront);
        }
    }

    pub(super) fn return_all<S: MessageStore<Item = I>>(&mut self, store: &mut S, number: u64) {
        if self.consumers.get(&number).is_some_and(|c| c.lasting) {
            return self.return_in_front(store, number);
        }
        while let Some((_, out)) = self.take_out(number, 0, u64::MAX) {
            Self::give_back(self.delivery_limit, store, out, RequeueReason::Lost);
        }
    }

    pub(super) fn number(&self, session: SessionId, id: ConsumerId) -> Option<u64> {
        self.sessions.get(&session)?.consumers.get(&id).copied()
    }

    /// A `Get`'s consumer ends with its message, a cancelled one with its last.
    pub(super) fn forget_if_done(&mut self, number: u64) {
        let Some(consumer) = self.consumers.get(&number) else {
            return;
        };
        if !(consumer.get || consumer.cancelled) || consumer.succeeded || !consumer.out.is_empty() {
            return;
        }
        if let Some(state) = self.sessions.get_mut(&consumer.session) {
            state.consumers.remove(&consumer.id);
        }
        self.consumers.remove(&number);
    }

    /// No longer counts as a consumer of the queue.
    pub(super) fn retire(&mut self, number: u64) {
        let counted = |c: &Consumer<I>| !c.get && !c.cancelled;
        if self.consumers.get(&number).is_some_and(counted) {
            self.live -= 1;
        }
        if self.exclusive == Some(number) {
            self.exclusive = None;
        }
    }

    pub(super) fn list(&mut self, number: u64) {
        let Some(consumer) = self.consumers.get(&number) else {
            return;
        };
        if consumer.takes_turns() {
            let priority = Reverse(consumer.spec.priority);
            self.candidates.insert((priority, number));
            self.refresh(number);
        }
    }

    pub(super) fn unlist(&mut self, number: u64) {
        let Some(consumer) = self.consumers.get_mut(&number) else {
            return;
        };
        let priority = Reverse(consumer.spec.priority);
        self.candidates.remove(&(priority, number));
        if let Some(ticket) = consumer.ticket.take() {
            self.service.remove(consumer.spec.priority, ticket);
        }
        if self.active == Some(number) {
            self.active = None;
        }
    }

    /// Chooses the single active consumer: the best, and of equals the one that came first. In a quorum queue one of
    /// higher priority takes over when the old one holds nothing; a classic queue keeps its own until that one leaves.
    pub(super) fn elect(&mut self) {
        if !self.single_active {
            return;
        }
        let Some(&(priority, best)) = self.candidates.first() else {
            return;
        };
        let old = self.active;
        let stays = old
            .and_then(|number| self.consumers.get(&number))
            .is_some_and(|c| {
                !self.rules.priority_replaces_active
                    || c.spec.priority >= priority.0
                    || !c.out.is_empty()
            });
        if !stays {
            self.active = Some(best);
        }
        for number in [old, self.active].into_iter().flatten() {
            self.refresh(number);
        }
    }

    /// Returns true unless another consumer is the single active one, or is about to be.
    pub(super) fn is_chosen(&self, number: u64) -> bool {
        if !self.single_active {
            return true;
        }
        let rival = match self.rules.priority_replaces_active {
            true => self.candidates.first().map(|(priority, _)| priority.0),
            false => None,
        };
        let own = self.consumers.get(&number).map(|c| c.spec.priority);
        self.active == Some(number) && rival.is_none_or(|rival| Some(rival) <= own)
    }

    /// Adds a consumer to the rotation if it can get messages, and removes it if it cannot.
    pub(super) fn refresh(&mut self, number: u64) {
        let chosen = self.is_chosen(number);
        let Some(consumer) = self.consumers.get_mut(&number) else {
            return;
        };
        let priority = consumer.spec.priority;
        let room = consumer.has_room(self.rules, self.flow_window);
        let eligible = chosen && consumer.takes_turns() && room;
        match (eligible, consumer.ticket) {
            (true, None) => {
                consumer.ticket = Some(self.next_ticket);
                let ticket = self.next_ticket;
                self.service
                    .insert(priority, WaitingConsumer { ticket, number });
                self.next_ticket += 1;
            }
            (false, Some(ticket)) => {
                consumer.ticket = None;
                self.service.remove(priority, ticket);
            }
            _ => {}
        }
    }
}
