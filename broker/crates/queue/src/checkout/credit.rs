//! Credit of consumers with [`FlowMode::Credit`].
//!
//! Credit decides which consumer gets a message, so it is part of the replicated state of a quorum queue, and
//! requests that set it go through the log. The flow window is not replicated: a quorum queue assigns messages
//! to a consumer as far as its credit allows, and the leader reads and sends one window of them at a time. A
//! classic queue assigns only messages that it can send.

use super::{Checkout, MessageStore, Weighed};
use crate::{ConsumerId, FlowMode, QueueReply, SessionId};
use env::planted::{self, Bug};

/// A drain that is not finished: ready messages and credit are left, but the consumer has no room for more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingDrain {
    pub session: SessionId,
    /// The request to answer.
    pub seq: u64,
}

impl<I: Weighed> Checkout<I> {
    /// Applies [`RequestBody::Credit`](crate::RequestBody::Credit).
    pub(super) fn credit<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        id: ConsumerId,
        up_to: u64,
        drain: bool,
    ) {
        let number = match self.credited_consumer(session, id) {
            Ok(number) => number,
            Err(refused) => return self.answer(store, session, seq, refused),
        };
        if let Some(earlier) = self.drains.remove(&number) {
            let answer = self.credited(store, number, false);
            self.answer(store, earlier.session, earlier.seq, answer);
        }
        self.set_credit(number, up_to);
        self.dispatch(store);
        if drain {
            self.drains.insert(number, PendingDrain { session, seq });
            return self.finish_drains(store);
        }
        let answer = self.credited(store, number, false);
        self.answer(store, session, seq, answer);
    }

    /// Applies [`RequestBody::CreditOneWay`](crate::RequestBody::CreditOneWay).
    pub(super) fn limit_deliveries(&mut self, session: SessionId, id: ConsumerId, up_to: u64) {
        let Some(number) = self.consumer_number(session, id) else {
            return;
        };
        let consumer = self.consumers.get(&number);
        let is_credited = consumer.is_some_and(|c| c.spec.flow_mode == FlowMode::Credit);
        if self.rules.adjustable_credit || is_credited {
            self.set_credit(number, up_to);
        }
    }

    /// The number of a consumer with flow mode credit, or why there is none.
    fn credited_consumer(&self, session: SessionId, id: ConsumerId) -> Result<u64, QueueReply> {
        if self.deleted {
            return Err(self.not_found());
        }
        let number = self.consumer_number(session, id);
        let consumer = number.and_then(|number| self.consumers.get(&number));
        let (Some(number), Some(consumer)) = (number, consumer) else {
            return Err(self.no_consumer(id));
        };
        match consumer.spec.flow_mode {
            FlowMode::Credit => Ok(number),
            FlowMode::Prefetch => Err(QueueReply::Refused {
                code: 406,
                text: format!(
                    "consumer {} of {} has a prefetch and cannot be given credit",
                    id.0, self.label
                ),
            }),
        }
    }

    fn no_consumer(&self, id: ConsumerId) -> QueueReply {
        QueueReply::Refused {
            code: 404,
            text: format!("{} has no consumer {} of the session", self.label, id.0),
        }
    }

    fn set_credit(&mut self, number: u64, up_to: u64) {
        if let Some(consumer) = self.consumers.get_mut(&number) {
            let unused = match planted::is(Bug::CreditAdded) && up_to > consumer.credit {
                true => consumer.credit.saturating_sub(consumer.next_id - 1),
                false => 0,
            };
            consumer.credit = up_to.saturating_add(unused);
        }
        self.update_rotation(number);
    }

    fn credited<S: MessageStore<Item = I>>(
        &self,
        store: &S,
        number: u64,
        drained: bool,
    ) -> QueueReply {
        let consumer = self.consumers.get(&number);
        debug_assert!(!drained || consumer.is_none_or(|c| c.credit < c.next_id));
        let is_filtered = consumer.is_some_and(|c| c.spec.filter.is_some());
        QueueReply::Credited {
            last: consumer.map_or(0, |c| c.next_id - 1),
            // How many messages satisfy a filter is not known.
            available: if is_filtered { 0 } else { store.ready() },
            drained,
        }
    }

    /// Answers the drains that are finished. Call after messages were delivered or removed.
    #[inline]
    pub(crate) fn finish_drains<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        if !self.drains.is_empty() {
            self.finish_ready_drains(store);
        }
    }

    fn finish_ready_drains<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        let finished: Vec<u64> = self
            .drains
            .keys()
            .copied()
            .filter(|number| !self.may_still_drain(store, *number))
            .collect();
        for number in finished {
            self.finish_drain(store, number);
        }
    }

    /// Discards the rest of the credit of a draining consumer, and answers the request.
    pub(super) fn finish_drain<S: MessageStore<Item = I>>(&mut self, store: &mut S, number: u64) {
        let Some(PendingDrain { session, seq }) = self.drains.remove(&number) else {
            return;
        };
        if let Some(consumer) = self.consumers.get_mut(&number) {
            consumer.credit = consumer.credit.min(consumer.next_id - 1);
        }
        self.update_rotation(number);
        let answer = match self.deleted {
            true => self.not_found(),
            false => self.credited(store, number, true),
        };
        self.answer(store, session, seq, answer);
    }

    /// Returns true if the consumer will get a ready message once its session has received or settled earlier
    /// ones.
    fn may_still_drain<S: MessageStore<Item = I>>(&self, store: &S, number: u64) -> bool {
        let Some(consumer) = self.consumers.get(&number) else {
            return false;
        };
        // Deliveries without acknowledgement are settled as they arrive. Others need not be settled before the
        // drain ends.
        let has_room = consumer.may_receive(self.rules)
            || consumer.spec.no_ack && consumer.next_id <= consumer.credit;
        store.has_message_for(number)
            && consumer.takes_turns()
            && self.is_chosen(number)
            && has_room
    }

    /// Answers a `Credit` that was applied before and whose answer is no longer recorded.
    pub(super) fn repeat_credit_answer<S: MessageStore<Item = I>>(
        &self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        id: ConsumerId,
        drain: bool,
    ) {
        let drain_request = PendingDrain { session, seq };
        if self
            .drains
            .values()
            .any(|pending| *pending == drain_request)
        {
            // It is answered when the drain ends.
            return;
        }
        let answer = match self.credited_consumer(session, id) {
            Ok(number) => self.credited(store, number, drain),
            Err(refused) => refused,
        };
        store.event(session, crate::QueueEvent::Answer { seq, answer });
    }
}
