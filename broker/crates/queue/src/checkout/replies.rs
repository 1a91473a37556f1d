//! Requests with an answer: consume, get, purge, stat and delete.

use super::{Checkout, Consumer, Dequeued, KnownEpoch, MessageStore, Weighed};
use crate::sorted_map::SortedMap;
use crate::{
    ConsumerId, ConsumerSpec, EpochConsumer, FlowMode, PositionedGet, QueueEvent, QueueReply,
    SessionEpoch, SessionId, Settlement,
};
use env::planted::{self, Bug};
use message::Table;

impl<I: Weighed> Checkout<I> {
    pub(super) fn consume<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        id: ConsumerId,
        spec: ConsumerSpec,
    ) {
        if self.change_prefetch(session, id, spec.prefetch) {
            return self.answer(store, session, seq, QueueReply::Consuming);
        }
        let answer = match self.check_consume(session, id, &spec) {
            Ok(()) => {
                self.add(Consumer::new(session, id, spec, false));
                QueueReply::Consuming
            }
            Err(refused) => refused,
        };
        self.answer(store, session, seq, answer);
    }

    /// Adds the consumer of a later connection; see [`EpochConsumer`].
    pub(super) fn replace_predecessors<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        epoch_consumer: EpochConsumer,
    ) {
        let EpochConsumer {
            consumer: id,
            spec,
            settled,
            epoch,
            at,
        } = epoch_consumer;
        let allowed = self.check_consume(session, id, &spec);
        if let Err(refused) = allowed.and_then(|()| self.check_session_epoch(at)) {
            return self.answer(store, session, seq, refused);
        }
        if let Some(settled) = settled {
            self.apply_late_settlement(store, &spec, &settled);
        }
        self.end_predecessors(store, &spec);
        let mut replaced = self.consumers.values().filter(|c| c.is_replaced_by(&spec));
        debug_assert!(replaced.next().is_none() || planted::is(Bug::PredecessorStays));
        let mut consumer = Consumer::new(session, id, spec, false);
        consumer.lasting = true;
        self.add(consumer);
        let answer = match self.join_epoch(session, epoch, at) {
            true => QueueReply::EpochContinues,
            false => QueueReply::Consuming,
        };
        self.answer(store, session, seq, answer);
    }

    /// Records the epoch of a new consumer. Returns true if the connection continues the current epoch, or if it is
    /// the first one that the queue knows and starts an epoch.
    fn join_epoch(&mut self, session: SessionId, epoch: SessionEpoch, at: u64) -> bool {
        let current = self.epoch;
        let (first, continues) = match (epoch, current) {
            (SessionEpoch::New, None) => (session, true),
            (SessionEpoch::Of(named), Some(current)) if named == current.first => (named, true),
            _ => (session, false),
        };
        let at = at.max(current.map_or(0, |current| current.at));
        self.epoch = Some(KnownEpoch { first, at });
        continues
    }

    /// Refuses a delayed request, so that it does not take the queue from a later connection of the client.
    fn check_session_epoch(&self, at: u64) -> Result<(), QueueReply> {
        let current = self.epoch.map_or(0, |current| current.at);
        if at == 0 || at >= current {
            return Ok(());
        }
        Err(QueueReply::Refused {
            code: 403,
            text: format!("{} has served a later connection of the client", self.label),
        })
    }

    /// Applies settlements of the previous connection, if its consumer still exists.
    fn apply_late_settlement<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        spec: &ConsumerSpec,
        settled: &Settlement,
    ) {
        let Settlement {
            session,
            consumer,
            ids,
        } = settled;
        let number = self.consumer_number(*session, *consumer);
        let predecessors = number.and_then(|number| self.consumers.get(&number));
        let (Some(number), Some(true)) = (number, predecessors.map(|c| c.is_replaced_by(spec)))
        else {
            return;
        };
        for (from, to) in ids.iter().filter(|(from, to)| from <= to) {
            let mut from = *from;
            while let Some((id, out)) = self.take_unsettled(number, from, *to) {
                from = from.max(id) + 1;
                self.counters.deliveries.ack += 1;
                store.remove_settled(out.item);
            }
        }
    }

    /// Ends the consumers of earlier connections. They are kept until their sessions cancel them or end, since
    /// the event may be lost.
    fn end_predecessors<S: MessageStore<Item = I>>(&mut self, store: &mut S, spec: &ConsumerSpec) {
        if planted::is(Bug::PredecessorStays) {
            return;
        }
        let all = self.consumers.iter();
        let predecessors: Vec<u64> = all
            .filter(|(_, c)| c.is_replaced_by(spec))
            .map(|(number, _)| *number)
            .collect();
        for number in predecessors {
            self.requeue_all(store, number, true);
            self.end_and_keep(number);
            if let Some(consumer) = self.consumers.get_mut(&number) {
                let id = consumer.id;
                store.event(consumer.session, QueueEvent::Cancelled { consumer: id });
            }
        }
    }

    /// Changes the prefetch of an existing consumer. Returns false if there is none, or if the queue type does
    /// not allow it: only classic queues do (AMQP 0.9.1, prefetch of a channel); members of a quorum queue must
    /// keep refusing what earlier versions refused.
    fn change_prefetch(&mut self, session: SessionId, id: ConsumerId, prefetch: u32) -> bool {
        let number = match self.consumer_number(session, id) {
            Some(number) if self.rules.adjustable_credit && !self.deleted => number,
            _ => return false,
        };
        let consumer = self.consumers.get_mut(&number);
        let Some(consumer) = consumer.filter(|c| !c.get && !c.cancelled) else {
            return false;
        };
        consumer.spec.prefetch = prefetch;
        self.update_rotation(number);
        true
    }

    fn check_consume(
        &self,
        session: SessionId,
        id: ConsumerId,
        spec: &ConsumerSpec,
    ) -> Result<(), QueueReply> {
        if self.deleted {
            return Err(self.not_found());
        }
        if self.consumer_number(session, id).is_some() {
            return Err(consumer_number_reused());
        }
        // A queue with a single active consumer admits no exclusive consumer, where the queue type says so.
        let is_unsupported = self.rules.exclusive && self.single_active;
        if self.exclusive.is_some() || (spec.exclusive && (self.live > 0 || is_unsupported)) {
            return Err(QueueReply::Refused {
                code: 403,
                text: format!("{} in exclusive use", self.label),
            });
        }
        Ok(())
    }

    /// Takes one message for a `Get`.
    pub(super) fn get<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        id: ConsumerId,
        no_ack: bool,
    ) {
        if self.deleted {
            return self.answer(store, session, seq, self.not_found());
        }
        if self.consumer_number(session, id).is_some() {
            return self.answer(store, session, seq, consumer_number_reused());
        }
        if !self.rules.get_with_single_active && self.single_active {
            let refused = self.get_not_supported();
            return self.answer(store, session, seq, refused);
        }
        match store.take_free(self.next_consumer) {
            Some(dequeued) => self.hand_out(store, session, (id, no_ack), dequeued),
            None => {
                self.counters.deliveries.get_empty += 1;
                self.answer(store, session, seq, QueueReply::Empty);
            }
        }
    }

    /// Takes the message that a `GetAt` names.
    #[cold]
    pub(super) fn get_at<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        get: &PositionedGet,
    ) {
        if self.deleted {
            return self.answer(store, session, seq, self.not_found());
        }
        if self.consumer_number(session, get.consumer).is_some() {
            return self.answer(store, session, seq, consumer_number_reused());
        }
        match store.take_at(&get.at) {
            Some(dequeued) => {
                self.hand_out(store, session, (get.consumer, get.no_ack), dequeued);
            }
            None => self.answer(store, session, seq, QueueReply::Empty),
        }
    }

    /// Delivers a message to a consumer that exists for it only.
    fn hand_out<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        (id, no_ack): (ConsumerId, bool),
        dequeued: Dequeued<I>,
    ) {
        let counts = &mut self.counters.deliveries;
        counts.redeliver += u64::from(dequeued.counts.is_redelivery());
        counts.get += u64::from(!no_ack);
        counts.get_no_ack += u64::from(no_ack);
        let spec = ConsumerSpec {
            tag: "".into(),
            channel: 0,
            flow_mode: FlowMode::Prefetch,
            prefetch: 1,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
            filter: None,
        };
        store.expire_head(no_ack);
        let left = store.ready();
        let number = self.add(Consumer::new(session, id, spec, true));
        if let Some(consumer) = self.consumers.get_mut(&number) {
            self.out += 1;
            consumer.uncounted = no_ack;
            consumer.assign(store, dequeued, left, self.flow_window);
        }
    }

    pub(super) fn purge<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
    ) {
        if planted::is(Bug::PurgeTakesUnacked) {
            self.drop_unacked(store);
        }
        let answer = if self.deleted {
            self.not_found()
        } else {
            let messages = store.purge();
            debug_assert!(store.is_empty(), "after a purge of {}", self.label);
            QueueReply::Count {
                messages,
                consumers: self.live,
            }
        };
        self.answer(store, session, seq, answer);
    }

    /// Implements [`Bug::PurgeTakesUnacked`].
    fn drop_unacked<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        for consumer in self.consumers.values_mut() {
            self.out -= consumer.out.len() as u64;
            for out in std::mem::take(&mut consumer.out).into_values() {
                store.remove_settled(out.item);
            }
        }
    }

    pub(super) fn stat<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
    ) {
        let answer = if self.deleted {
            self.not_found()
        } else {
            QueueReply::Count {
                messages: store.ready(),
                consumers: self.live,
            }
        };
        self.answer(store, session, seq, answer);
    }

    pub(super) fn delete<S: MessageStore<Item = I>>(
        &mut self,
        store: &mut S,
        session: SessionId,
        seq: u64,
        if_unused: bool,
        if_empty: bool,
    ) {
        let refused = if self.deleted {
            Some(self.not_found())
        } else if if_unused && self.live > 0 {
            Some(self.precondition_failed("in use"))
        } else if if_empty && !store.is_empty() {
            Some(self.precondition_failed("not empty"))
        } else {
            None
        };
        let answer = match refused {
            Some(refused) => refused,
            None => QueueReply::Count {
                messages: self.end_queue(store),
                consumers: self.live,
            },
        };
        self.answer(store, session, seq, answer);
    }

    /// Deletes the queue: drops all messages and cancels the consumers. Returns the number of ready messages.
    pub(crate) fn end_queue<S: MessageStore<Item = I>>(&mut self, store: &mut S) -> u64 {
        self.deleted = true;
        for (number, consumer) in std::mem::take(&mut self.consumers) {
            store.set_turn(number, None);
            if !consumer.get && !consumer.cancelled {
                let id = consumer.id;
                store.event(consumer.session, QueueEvent::Cancelled { consumer: id });
            }
            for out in consumer.out.into_values() {
                store.remove_settled(out.item);
            }
        }
        for state in self.sessions.values_mut() {
            state.consumers = SortedMap::default();
        }
        self.candidates.clear();
        self.service.clear();
        self.active = None;
        self.exclusive = None;
        self.live = 0;
        self.out = 0;
        store.purge()
    }

    fn precondition_failed(&self, condition: &str) -> QueueReply {
        QueueReply::Refused {
            code: 406,
            text: format!("{} {condition}", self.label),
        }
    }

    /// A `Get` would take messages past the single active consumer.
    fn get_not_supported(&self) -> QueueReply {
        QueueReply::Refused {
            code: 405,
            text: format!(
                "cannot obtain access to locked {}. basic.get operations are not supported by quorum queues with \
                 single active consumer",
                self.label
            ),
        }
    }

    pub(super) fn not_found(&self) -> QueueReply {
        QueueReply::Refused {
            code: 404,
            text: format!("no {}", self.label),
        }
    }
}

/// A correct session never uses a consumer number twice.
fn consumer_number_reused() -> QueueReply {
    QueueReply::Refused {
        code: 530,
        text: "attempt to reuse a consumer number".to_owned(),
    }
}
