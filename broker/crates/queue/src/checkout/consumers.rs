//! Consumers: delivery limits, the rotation, the single active consumer, and settlement.

use super::{
    Checkout, DeliveryFlow, Dequeued, FlowWindow, HandedOut, MAX_WINDOW, MessageStore, Outstanding,
    Requeue, RequeueReason, WaitingConsumer, Weighed,
};
use crate::{
    ConsumerId, ConsumerInfo, ConsumerRules, ConsumerSpec, DeadReason, DeliveryCounters,
    DeliveryCounts, FlowMode, Modification, QueueEvent, SessionId, SettlementOutcome,
};
use env::planted::{self, Bug};
use std::cmp::Reverse;
use std::sync::Arc;

/// A delivered message that is not settled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnsettledMessage<I> {
    pub item: I,
    pub counts: DeliveryCounts,
    /// For a `Get`: messages left in the queue when it was taken.
    pub left: u64,
}

/// A consumer, or the consumer number of a `Get`.
#[derive(Debug)]
pub(crate) struct Consumer<I> {
    pub session: SessionId,
    pub id: ConsumerId,
    pub spec: ConsumerSpec,
    /// Created by a `Get`: gets one message and ends when that is settled.
    pub get: bool,
    pub cancelled: bool,
    pub suspended: bool,
    /// Belongs to a session that outlives its connections ([`EpochConsumer`](crate::EpochConsumer)).
    pub lasting: bool,
    /// Replaced by a consumer of a later connection. It is kept so that its own connection can learn of that.
    pub succeeded: bool,
    /// Settlements are not counted as acknowledgements: the client does not acknowledge.
    pub uncounted: bool,
    /// Id of the next delivery.
    pub next_id: u64,
    pub out: Outstanding<UnsettledMessage<I>>,
    /// The last delivery id that the credit allows.
    pub credit: u64,
    /// Position in `Checkout::service`, if it is there.
    pub ticket: Option<u64>,
    /// Not part of the replicated state. The log of a quorum queue assigns messages to consumers, and its
    /// leader sends them as the window allows. A classic queue assigns nothing to a consumer without room.
    pub flow: DeliveryFlow,
}

impl<I: Weighed> Consumer<I> {
    pub(crate) fn new(session: SessionId, id: ConsumerId, spec: ConsumerSpec, get: bool) -> Self {
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

    /// Most unsettled deliveries.
    fn window(&self, rules: &ConsumerRules) -> usize {
        if self.spec.flow_mode == FlowMode::Credit && !self.spec.no_ack {
            return rules.unlimited_prefetch.max(MAX_WINDOW as usize);
        }
        let requested = if self.spec.no_ack {
            0
        } else {
            self.spec.prefetch
        };
        match requested {
            0 => rules.unlimited_prefetch,
            requested => requested.min(MAX_WINDOW) as usize,
        }
    }

    /// Returns true if the credit and the unsettled deliveries allow another delivery.
    pub(super) fn may_receive(&self, rules: &ConsumerRules) -> bool {
        let excess = usize::from(planted::is(Bug::OverCredit));
        self.next_id <= self.credit && self.out.len() < self.window(rules).saturating_add(excess)
    }

    /// The deliveries that it can get now. The delivery that exceeds the bytes is the last one.
    pub(super) fn room(&self, rules: &ConsumerRules, flow: FlowWindow) -> FlowWindow {
        let credit = self.credit.saturating_sub(self.next_id - 1);
        let window = self.window(rules).saturating_sub(self.out.len());
        let messages = credit.min(window as u64);
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        if !rules.adjustable_credit {
            let bytes = u64::MAX;
            return FlowWindow { messages, bytes };
        }
        let unused = self.flow.unused(flow);
        FlowWindow {
            messages: messages.min(unused.messages),
            bytes: unused.bytes,
        }
    }

    /// Returns true if it can get another delivery now.
    pub(crate) fn has_room(&self, rules: &ConsumerRules, flow: FlowWindow) -> bool {
        self.may_receive(rules) && (!rules.adjustable_credit || self.flow.has_room(flow))
    }

    /// Returns true if a new consumer with this spec, of a later connection of the same session, replaces this
    /// one.
    pub(crate) fn is_replaced_by(&self, spec: &ConsumerSpec) -> bool {
        self.lasting && !self.succeeded && self.spec.tag == spec.tag
    }

    /// Returns true if it can be served at all.
    pub(crate) fn takes_turns(&self) -> bool {
        !self.get && !self.cancelled && !self.suspended
    }

    /// Counts a delivery to this consumer.
    #[inline]
    pub(super) fn count_delivery(&self, counters: &mut DeliveryCounters, counts: DeliveryCounts) {
        counters.redeliver += u64::from(counts.is_redelivery());
        counters.deliver += u64::from(!self.spec.no_ack);
        counters.deliver_no_ack += u64::from(self.spec.no_ack);
    }

    /// Takes the next ticket after a delivery, or none if the consumer cannot get another one.
    #[inline]
    pub(super) fn renew_ticket(
        &mut self,
        rules: &ConsumerRules,
        flow: FlowWindow,
        next_ticket: &mut u64,
    ) {
        let has_room = self.has_room(rules, flow);
        self.ticket = has_room.then_some(*next_ticket);
        *next_ticket += u64::from(has_room);
    }

    /// Assigns a message, and sends it if the flow window allows it.
    pub(super) fn assign<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        dequeued: Dequeued<I>,
        left: u64,
        window: FlowWindow,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        let out = UnsettledMessage {
            item: dequeued.item,
            counts: dequeued.counts,
            left,
        };
        // Not before earlier deliveries that wait for the window.
        if self.get || (self.flow.sent + 1 == id && self.flow.has_room(window)) {
            store.deliver(self.handed_out(id, &out), &out.item);
            self.flow.record_sent(id, out.item.body_bytes());
        }
        let is_ascending = self.out.push(id, out);
        debug_assert!(is_ascending, "delivery {id} is not the last one");
    }

    /// Sends the unsettled deliveries from this id on again, as far as the flow window allows.
    pub(super) fn resend_from<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        from: u64,
        window: FlowWindow,
    ) {
        let sent = from.saturating_sub(1);
        let in_flight = self.flow.in_flight(sent).map(|ids| self.out.values_in(ids));
        let bodies = in_flight.into_iter().flatten().map(|o| o.item.body_bytes());
        self.flow.rewind(sent, bodies);
        self.send_pending(store, window);
    }

    /// Sends the unsettled deliveries that were not sent yet, as far as the flow window allows.
    pub(super) fn send_pending<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        window: FlowWindow,
    ) {
        if self.cancelled || self.flow.sent + 1 >= self.next_id {
            return;
        }
        for (id, out) in self.out.iter_from(self.flow.sent + 1) {
            if !self.get && !self.flow.has_room(window) {
                return;
            }
            let to = (self.session, self.id, self.lasting);
            store.deliver(handed_out(to, id, out), &out.item);
            self.flow.record_sent(id, out.item.body_bytes());
        }
        // Later deliveries, if any, have been requeued since.
        self.flow.sent = self.next_id - 1;
    }

    pub(super) fn open_flow_window(&mut self, up_to: u64) {
        let arrived = self
            .flow
            .in_flight(up_to)
            .map(|ids| self.out.values_in(ids));
        let bodies = arrived.into_iter().flatten().map(|o| o.item.body_bytes());
        self.flow.record_progress(up_to, bodies);
    }

    pub(super) fn forget_flow(&mut self) {
        let bodies = self.out.values().map(|o| o.item.body_bytes());
        self.flow = DeliveryFlow::assume_in_flight(self.next_id - 1, bodies);
    }

    fn handed_out(&self, id: u64, out: &UnsettledMessage<I>) -> HandedOut {
        handed_out((self.session, self.id, self.lasting), id, out)
    }
}

fn handed_out<I>(
    (session, consumer, numbered): (SessionId, ConsumerId, bool),
    id: u64,
    out: &UnsettledMessage<I>,
) -> HandedOut {
    HandedOut {
        session,
        consumer,
        id,
        counts: out.counts,
        left: out.left,
        numbered,
    }
}

impl<I: Weighed> Checkout<I> {
    /// The consumers for listings, in order of creation.
    pub(crate) fn listing(&self) -> Vec<ConsumerInfo> {
        let shown = |c: &&Consumer<I>| !c.get && !c.cancelled;
        let info = |c: &Consumer<I>| ConsumerInfo {
            session: c.session,
            consumer: c.id,
            spec: c.spec.clone(),
            unacknowledged: c.out.len() as u64,
            active: !c.suspended && (!self.single_active || self.is_active(c)),
        };
        let all = self.consumers.values().map(Box::as_ref);
        all.filter(shown).map(info).collect()
    }

    /// Returns true if there is a consumer whose node can be reached.
    pub(crate) fn in_use(&self) -> bool {
        !self.candidates.is_empty()
    }

    fn is_active(&self, consumer: &Consumer<I>) -> bool {
        self.active
            .and_then(|number| self.consumers.get(&number))
            .is_some_and(|c| c.session == consumer.session && c.id == consumer.id)
    }

    /// Adds a consumer. The caller has checked that it is allowed.
    pub(super) fn add(&mut self, consumer: Consumer<I>) -> u64 {
        debug_assert!(!self.deleted);
        debug_assert!(self.sessions.contains_key(&consumer.session));
        debug_assert_eq!(self.consumer_number(consumer.session, consumer.id), None);
        debug_assert!(self.exclusive.is_none() || consumer.get);
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
        self.consumers.insert(number, Box::new(consumer));
        self.add_candidate(number);
        self.elect_active();
        self.note_activity(number);
        number
    }

    /// Cancels a consumer. Its unsettled deliveries stay with the session.
    pub(super) fn cancel<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
    ) {
        let Some(number) = self.consumer_number(session, id) else {
            return;
        };
        self.remove_candidate(number);
        self.stop_counting(number);
        self.finish_drain(store, number);
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.cancelled = true;
            // Its session asked for the cancel, and no later connection replaces it any more.
            consumer.succeeded = false;
            consumer.lasting = false;
        }
        self.remove_if_finished(number);
        self.elect_active();
    }

    /// Cancels a consumer and requeues its unsettled deliveries.
    pub(super) fn leave<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
    ) {
        if let Some(number) = self.consumer_number(session, id) {
            self.requeue_all(store, number, true);
            self.cancel(store, session, id);
        }
    }

    /// Requeues the deliveries up to this one of a consumer that did not settle them in time. They do not count as
    /// failed. A consumer with a prefetch ends, because its client must learn of it, and one with credit continues.
    pub(crate) fn time_out<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        up_to: u64,
    ) {
        let Some(number) = self.consumer_number(session, id) else {
            return;
        };
        let Some(consumer) = self.consumers.get(&number).filter(|c| !c.succeeded) else {
            return;
        };
        let is_served = !consumer.get && !consumer.cancelled;
        let ends = is_served && consumer.spec.flow_mode == FlowMode::Prefetch;
        let up_to = if ends { u64::MAX } else { up_to };
        let mut is_late = false;
        while let Some((_, out)) = self.take_unsettled(number, 0, up_to) {
            is_late = true;
            match planted::is(Bug::TimeoutLosesMessages) {
                true => store.remove_settled(out.item),
                false => self.requeue(store, out, Requeue::new(RequeueReason::Returned, false)),
            }
        }
        if !is_late {
            // Settled meanwhile.
            return;
        }
        if ends {
            self.end_and_keep(number);
        }
        if is_served {
            let event = QueueEvent::TimedOut {
                consumer: id,
                up_to,
            };
            store.event(session, event);
        }
        self.serve_after_settlement(store, number);
    }

    /// Ends a consumer that its session has not cancelled. It is kept until the session cancels it or ends, since the
    /// event that tells it may be lost.
    pub(super) fn end_and_keep(&mut self, number: u64) {
        self.remove_candidate(number);
        self.stop_counting(number);
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.cancelled = true;
            consumer.succeeded = true;
        }
    }

    /// Settles deliveries with one outcome.
    pub(super) fn settle<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        outcome: SettlementOutcome,
        ranges: &[(u64, u64)],
    ) {
        let Some(number) = self.consumer_number(session, id) else {
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
            while let Some((id, out)) = self.take_unsettled(number, from, to) {
                // Ids up to this one need not be searched again.
                from = from.max(id) + 1;
                self.counters.deliveries.ack += u64::from(counted);
                match outcome {
                    SettlementOutcome::Accepted => store.remove_settled(out.item),
                    SettlementOutcome::Rejected => {
                        store.dead_letter(out.item, DeadReason::Rejected)
                    }
                    SettlementOutcome::Released => {
                        self.requeue(store, out, Requeue::new(RequeueReason::Returned, false))
                    }
                    SettlementOutcome::Unseen => {
                        let redelivered = out.counts.is_redelivery();
                        self.counters.deliveries.uncount_delivery(redelivered);
                        let reason = RequeueReason::Unseen { redelivered };
                        self.requeue(store, out, Requeue::new(reason, false));
                    }
                    SettlementOutcome::Requeue => {
                        let has_failed = !self.counts_deliveries || planted::is(Bug::ReturnFails);
                        let how = Requeue::new(RequeueReason::Requested, has_failed);
                        self.requeue(store, out, how);
                    }
                }
            }
        }
        self.serve_after_settlement(store, number);
    }

    /// Settles deliveries with the outcome `modified`.
    pub(super) fn modify<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        id: ConsumerId,
        modification: &Modification,
        ranges: &[(u64, u64)],
    ) {
        let Some(number) = self.consumer_number(session, id) else {
            return;
        };
        let annotations = &modification.annotations;
        let annotations = (!annotations.is_empty()).then(|| Arc::new(annotations.clone()));
        let how = Requeue {
            reason: match modification.delivery_failed {
                true => RequeueReason::Requested,
                false => RequeueReason::Returned,
            },
            has_failed: modification.delivery_failed,
            deliver_at: modification.annotations.delivery_time(),
        };
        for &(from, to) in ranges.iter().filter(|(from, to)| from <= to) {
            let mut from = from;
            while let Some((id, out)) = self.take_unsettled(number, from, to) {
                from = from.max(id) + 1;
                if let Some(annotations) = &annotations {
                    store.annotate(&out.item, annotations);
                }
                if modification.undeliverable_here {
                    store.dead_letter(out.item, DeadReason::Rejected);
                } else {
                    self.requeue(store, out, how);
                }
            }
        }
        self.serve_after_settlement(store, number);
    }

    /// Gives a consumer the deliveries for which a settlement made room.
    fn serve_after_settlement<S: MessageStore<Item = I>>(&mut self, store: &mut S, number: u64) {
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.send_pending(store, self.flow_window);
        }
        self.update_rotation(number);
        self.remove_if_finished(number);
        self.elect_active();
    }

    /// Removes the first unsettled delivery in a range of ids.
    pub(super) fn take_unsettled(
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
        consumer.flow.record_settled(id, out.item.body_bytes());
        if consumer.out.is_empty() {
            // No assigned delivery waits to be sent.
            consumer.flow.sent = consumer.next_id - 1;
        }
        self.out -= 1;
        Some((id, out))
    }

    /// Requeues a message, or dead-letters it if more deliveries have failed than the limit allows.
    fn requeue<S: MessageStore<Item = I>>(
        &self,
        store: &mut S,
        out: UnsettledMessage<I>,
        how: Requeue,
    ) {
        let has_failed = how.has_failed && !planted::is(Bug::FailureForgotten);
        let counts = out
            .counts
            .after_delivery(has_failed, self.counts_deliveries);
        match self.delivery_limit {
            Some(limit) if has_failed && counts.failed > limit => {
                store.dead_letter(out.item, DeadReason::DeliveryLimit)
            }
            _ => store.requeue(out.item, counts, Requeue { has_failed, ..how }),
        }
    }

    /// Requeues the messages of a session that outlives its connections before all ready ones, so that they
    /// keep their order.
    fn requeue_in_front<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        number: u64,
        have_failed: bool,
    ) {
        let last = |c: &Consumer<I>| c.out.last_id();
        while let Some(id) = self.consumer_by_number(number).and_then(last)
            && let Some((_, out)) = self.take_unsettled(number, id, id)
        {
            self.requeue(
                store,
                out,
                Requeue::new(RequeueReason::InFront, have_failed),
            );
        }
    }

    /// Requeues all unsettled deliveries of a consumer.
    pub(super) fn requeue_all<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        number: u64,
        have_failed: bool,
    ) {
        if self.consumers.get(&number).is_some_and(|c| c.lasting) {
            return self.requeue_in_front(store, number, have_failed);
        }
        while let Some((_, out)) = self.take_unsettled(number, 0, u64::MAX) {
            self.requeue(
                store,
                out,
                Requeue::new(RequeueReason::Returned, have_failed),
            );
        }
    }

    fn consumer_by_number(&self, number: u64) -> Option<&Consumer<I>> {
        self.consumers.get(&number).map(Box::as_ref)
    }

    /// The number of a session's consumer in this queue.
    pub(crate) fn consumer_number(&self, session: SessionId, id: ConsumerId) -> Option<u64> {
        self.sessions.get(&session)?.consumers.get(&id).copied()
    }

    /// Removes a `Get`'s or cancelled consumer once it has no unsettled deliveries.
    pub(super) fn remove_if_finished(&mut self, number: u64) {
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

    /// Stops counting a consumer as one of the queue's.
    pub(super) fn stop_counting(&mut self, number: u64) {
        let counted = |c: &Consumer<I>| !c.get && !c.cancelled;
        if self.consumer_by_number(number).is_some_and(counted) {
            self.live -= 1;
        }
        if self.exclusive == Some(number) {
            self.exclusive = None;
        }
    }

    /// Adds a consumer to the candidates if it can be served.
    pub(super) fn add_candidate(&mut self, number: u64) {
        let Some(consumer) = self.consumers.get(&number) else {
            return;
        };
        if consumer.takes_turns() {
            let priority = Reverse(consumer.spec.priority);
            self.candidates.insert((priority, number));
            if consumer.spec.filter.is_some() {
                self.filtered.insert(number);
            }
            self.update_rotation(number);
        }
    }

    /// Removes a consumer from the candidates and from the rotation.
    pub(super) fn remove_candidate(&mut self, number: u64) {
        let Some(consumer) = self.consumers.get_mut(&number) else {
            return;
        };
        let priority = Reverse(consumer.spec.priority);
        self.candidates.remove(&(priority, number));
        if consumer.spec.filter.is_some() {
            self.filtered.remove(&number);
        }
        if let Some(ticket) = consumer.ticket.take() {
            let priority = consumer.spec.priority;
            self.end_turn(priority, WaitingConsumer { ticket, number });
        }
        if self.active == Some(number) {
            self.active = None;
        }
    }

    /// Chooses the single active consumer: the one of highest priority, among equals the oldest. In a quorum
    /// queue one of higher priority takes over once the active one has no unsettled deliveries. A classic queue
    /// keeps the active one until it ends.
    pub(super) fn elect_active(&mut self) {
        if !self.single_active {
            return;
        }
        let Some(&(priority, best)) = self.candidates.first() else {
            return;
        };
        let previous = self.active;
        let keeps_active = previous
            .and_then(|number| self.consumers.get(&number))
            .is_some_and(|c| {
                !self.rules.priority_replaces_active
                    || c.spec.priority >= priority.0
                    || !c.out.is_empty()
            });
        if !keeps_active {
            self.active = Some(best);
        }
        let has_changed = self.active != previous;
        for number in [previous, self.active].into_iter().flatten() {
            self.update_rotation(number);
            if has_changed {
                self.note_activity(number);
            }
        }
    }

    /// Has the end of the step report whether a consumer is active, if its client is to know.
    pub(super) fn note_activity(&mut self, number: u64) {
        if self.activity(number).is_some() && !self.activity_due.contains(&number) {
            self.activity_due.push(number);
        }
    }

    /// The event that tells a consumer whether it is active, if its client is to know.
    pub(super) fn activity(&self, number: u64) -> Option<QueueEvent> {
        let consumer = self.consumers.get(&number)?;
        let is_told = self.rules.reports_activity
            && consumer.spec.flow_mode == FlowMode::Credit
            && !consumer.get
            && !consumer.cancelled;
        is_told.then(|| QueueEvent::Activity {
            consumer: consumer.id,
            is_active: !self.single_active || self.active == Some(number),
        })
    }

    /// Reports the activity of the consumers that a step changed.
    pub(super) fn report_activity<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        for number in std::mem::take(&mut self.activity_due) {
            if let Some(activity) = self.activity(number)
                && let Some(consumer) = self.consumers.get(&number)
            {
                store.event(consumer.session, activity);
            }
        }
    }

    /// Returns true unless another consumer is the single active one, or will replace this one as such.
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

    /// Adds a consumer to the rotation if it can get another delivery, and removes it otherwise.
    pub(super) fn update_rotation(&mut self, number: u64) {
        let chosen = self.is_chosen(number);
        let Some(consumer) = self.consumers.get_mut(&number) else {
            return;
        };
        let priority = consumer.spec.priority;
        let has_room = consumer.has_room(self.rules, self.flow_window);
        let is_filtered = consumer.spec.filter.is_some();
        let eligible = chosen && consumer.takes_turns() && has_room && !is_filtered;
        match (eligible, consumer.ticket) {
            (true, None) => {
                consumer.ticket = Some(self.next_ticket);
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                self.begin_turn(priority, WaitingConsumer { ticket, number });
            }
            (false, Some(ticket)) => {
                consumer.ticket = None;
                self.end_turn(priority, WaitingConsumer { ticket, number });
            }
            _ => {}
        }
    }
}
