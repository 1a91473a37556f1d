//! Requests that are answered: consume, get, purge, stat, delete.

use super::{Checkout, Consumer, KnownEpoch, MessageStore, Weighed};
use crate::{
    ConsumerId, ConsumerSpec, EpochConsumer, FlowMode, QueueEvent, QueueReply, SessionEpoch,
    SessionId, Settlement,
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
        let answer = match self.may_consume(session, id, &spec) {
            Ok(()) => {
                self.add(Consumer::new(session, id, spec, false));
                QueueReply::Consuming
            }
            Err(refused) => refused,
        };
        self.answer(store, session, seq, answer);
    }

    /// See [`EpochConsumer`].
    pub(super) fn succeed<S: MessageStore<Item = I>>(
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
        let allowed = self.may_consume(session, id, &spec);
        if let Err(refused) = allowed.and_then(|()| self.may_succeed(at)) {
            return self.answer(store, session, seq, refused);
        }
        if let Some(settled) = settled {
            self.settle_late(store, &spec, &settled);
        }
        self.end_predecessors(store, &spec);
        let mut consumer = Consumer::new(session, id, spec, false);
        consumer.lasting = true;
        self.add(consumer);
        let answer = match self.join_epoch(session, epoch, at) {
            true => QueueReply::GoesOn,
            false => QueueReply::Consuming,
        };
        self.answer(store, session, seq, answer);
    }

    /// Records the session epoch of a new consumer. Returns true if the epoch that the connection names continues, or if the
    /// queue knows of none and the connection names none.
    fn join_epoch(&mut self, session: SessionId, epoch: SessionEpoch, at: u64) -> bool {
        let known = self.epoch;
        let (first, goes_on) = match (epoch, known) {
            (SessionEpoch::New, None) => (session, true),
            (SessionEpoch::Of(named), Some(known)) if named == known.first => (named, true),
            _ => (session, false),
        };
        let at = at.max(known.map_or(0, |known| known.at));
        self.epoch = Some(KnownEpoch { first, at });
        goes_on
    }

    /// A request that was on its way for long is not to take the queue from the connection that its client has now.
    fn may_succeed(&self, at: u64) -> Result<(), QueueReply> {
        let known = self.epoch.map_or(0, |known| known.at);
        if at == 0 || at >= known {
            return Ok(());
        }
        Err(QueueReply::Refused {
            code: 403,
            text: format!("{} has served a later connection of the client", self.label),
        })
    }

    /// What the connection before had done, if its consumer is still there.
    fn settle_late<S: MessageStore<Item = I>>(
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
        let number = self.number(*session, *consumer);
        let before = number.and_then(|number| self.consumers.get(&number));
        let (Some(number), Some(true)) = (number, before.map(|c| c.precedes(spec))) else {
            return;
        };
        for (from, to) in ids.iter().filter(|(from, to)| from <= to) {
            let mut from = *from;
            while let Some((id, out)) = self.take_out(number, from, *to) {
                from = from.max(id) + 1;
                self.counters.deliveries.ack += 1;
                store.settled(out.item);
            }
        }
    }

    /// They stay known until their sessions have heard that they are over: the event may be lost.
    fn end_predecessors<S: MessageStore<Item = I>>(&mut self, store: &mut S, spec: &ConsumerSpec) {
        if planted::is(Bug::PredecessorStays) {
            return;
        }
        let all = self.consumers.iter();
        let before: Vec<u64> = all
            .filter(|(_, c)| c.precedes(spec))
            .map(|(number, _)| *number)
            .collect();
        for number in before {
            self.return_all(store, number);
            self.unlist(number);
            self.retire(number);
            if let Some(consumer) = self.consumers.get_mut(&number) {
                consumer.cancelled = true;
                consumer.succeeded = true;
                let id = consumer.id;
                store.event(consumer.session, QueueEvent::Cancelled { consumer: id });
            }
        }
    }

    /// False: there is no such consumer whose window may change. A 0.9.1 channel's limit on all its consumers is for classic
    /// queues alone; in quorum queues every member must go on refusing what it refused before.
    fn change_prefetch(&mut self, session: SessionId, id: ConsumerId, prefetch: u32) -> bool {
        let number = match self.number(session, id) {
            Some(number) if self.rules.adjustable_credit && !self.deleted => number,
            _ => return false,
        };
        let consumer = self.consumers.get_mut(&number);
        let Some(consumer) = consumer.filter(|c| !c.get && !c.cancelled) else {
            return false;
        };
        consumer.spec.prefetch = prefetch;
        self.refresh(number);
        true
    }

    fn may_consume(
        &self,
        session: SessionId,
        id: ConsumerId,
        spec: &ConsumerSpec,
    ) -> Result<(), QueueReply> {
        if self.deleted {
            return Err(self.not_found());
        }
        if self.number(session, id).is_some() {
            return Err(reused());
        }
        // Nobody has a single active consumer's queue alone.
        let never = self.rules.exclusive && self.single_active;
        if self.exclusive.is_some() || (spec.exclusive && (self.live > 0 || never)) {
            return Err(QueueReply::Refused {
                code: 403,
                text: format!("{} in exclusive use", self.label),
            });
        }
        Ok(())
    }

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
        if self.number(session, id).is_some() {
            return self.answer(store, session, seq, reused());
        }
        if !self.rules.get_with_single_active && self.single_active {
            let refused = self.no_get();
            return self.answer(store, session, seq, refused);
        }
        let counts = &mut self.counters.deliveries;
        let Some(taken) = store.take() else {
            counts.get_empty += 1;
            return self.answer(store, session, seq, QueueReply::Empty);
        };
        counts.redeliver += u64::from(taken.redelivered);
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
        };
        store.expire_head(no_ack);
        let left = store.ready();
        let number = self.add(Consumer::new(session, id, spec, true));
        if let Some(consumer) = self.consumers.get_mut(&number) {
            self.out += 1;
            consumer.uncounted = no_ack;
            consumer.hand(store, taken, left, self.flow_window);
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
            QueueReply::Count {
                messages: store.purge(),
                consumers: self.live,
            }
        };
        self.answer(store, session, seq, answer);
    }

    /// [`Bug::PurgeTakesUnacked`].
    fn drop_unacked<S: MessageStore<Item = I>>(&mut self, store: &mut S) {
        for consumer in self.consumers.values_mut() {
            self.out -= consumer.out.len() as u64;
            for out in std::mem::take(&mut consumer.out).into_values() {
                store.settled(out.item);
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
            Some(self.failed("in use"))
        } else if if_empty && store.ready() > 0 {
            Some(self.failed("not empty"))
        } else {
            None
        };
        let answer = match refused {
            Some(refused) => refused,
            None => QueueReply::Count {
                messages: self.end(store),
                consumers: self.live,
            },
        };
        self.answer(store, session, seq, answer);
    }

    /// Drops everything and tells the consumers. Returns the messages that were ready.
    pub fn end<S: MessageStore<Item = I>>(&mut self, store: &mut S) -> u64 {
        self.deleted = true;
        for (_, consumer) in std::mem::take(&mut self.consumers) {
            if !consumer.get && !consumer.cancelled {
                let id = consumer.id;
                store.event(consumer.session, QueueEvent::Cancelled { consumer: id });
            }
            for out in consumer.out.into_values() {
                store.settled(out.item);
            }
        }
        for state in self.sessions.values_mut() {
            state.consumers.clear();
        }
        self.candidates.clear();
        self.service.clear();
        self.active = None;
        self.exclusive = None;
        self.live = 0;
        self.out = 0;
        store.purge()
    }

    fn failed(&self, what: &str) -> QueueReply {
        QueueReply::Refused {
            code: 406,
            text: format!("{} {what}", self.label),
        }
    }

    /// A single active consumer would not be single.
    fn no_get(&self) -> QueueReply {
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

/// Sessions number their consumers and never use a number twice; one that does is broken.
fn reused() -> QueueReply {
    QueueReply::Refused {
        code: 530,
        text: "attempt to reuse a consumer number".to_owned(),
    }
}
