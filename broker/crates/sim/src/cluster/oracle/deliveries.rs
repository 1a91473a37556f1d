//! Checks of a delivery: whether the message may reach the client, and in which order.

use super::super::tracked_message::{MessageId, ReadMessage};
use super::{
    DEAD_LETTER_QUEUE, DELIVERY_LIMIT, DeadLetterRecord, DelayPlan, Delivery, DoubleDelivery,
    Holder, MAX_DELIVERY_DELAY, MessageFate, Oracle, PublishOutcome, QueuePlan, QueueTreatment,
    RequeuedMessage,
};
use env::Time;
use std::time::Duration;

impl Oracle {
    /// A message has reached a client.
    pub(crate) fn delivered(
        &mut self,
        now: Time,
        read: ReadMessage,
        queue: usize,
        delivery: Delivery,
        redelivered: bool,
    ) -> Result<(), String> {
        let (id, attempts, returns) = (read.id, read.attempts, read.returns());
        tracing::debug!(
            message = id.0,
            queue,
            ?delivery,
            attempts,
            returns,
            redelivered,
            died = read.died,
            "delivered"
        );
        if read.died {
            self.check_dead_lettered(id, queue)?;
        } else if self.is_stale(id, queue)? {
            return Ok(());
        }
        let quorum = self.queues.get(queue).is_some_and(|q| q.quorum);
        let (faults_until, last_end) =
            (self.faults_until, self.machine_ends.values().copied().max());
        let log_progress = self.log_progress_before(now, queue);
        let plan = self.delay_plan(queue);
        let schedule = self.schedule(queue);
        let clocks_have_jumped = self.clocks_have_jumped;
        let (mut double_delivery, mut is_older) = (None, false);
        let message = self.message(id)?;
        if message.queue != queue {
            return Err(format!(
                "message {id:?} came from queue {queue}, not {}",
                message.queue
            ));
        }
        if message.outcome == PublishOutcome::Returned {
            return Err(format!("message {id:?} was returned and came from a queue"));
        }
        // A delivery on the way to a client that the queue gave up may arrive after a later one of the queue.
        let may_have_crossed = message
            .last_delivered
            .is_some_and(|last_delivered| faults_until >= last_delivered);
        if message.deliveries > 0 && !redelivered && !may_have_crossed {
            return Err(format!(
                "message {id:?} came again without the flag ({:?})",
                message.fate
            ));
        }
        match message.fate {
            MessageFate::Queued | MessageFate::Uncertain => {}
            MessageFate::Delivered(_, since)
            | MessageFate::Settled(_, since)
            | MessageFate::Rejected(_, since)
                if faults_until >= since => {}
            MessageFate::Delivered(from, _)
            | MessageFate::Settled(from, _)
            | MessageFate::Rejected(from, _)
                if from.to != delivery.to =>
            {
                is_older = quorum && returns < message.returns;
                let from = if is_older { delivery.to } else { from.to };
                let (got, at) = (id, now);
                double_delivery = Some(DoubleDelivery { id, got, from, at });
            }
            // A delivery from before the queue took the message back and another client settled it, sent by a node that
            // was paused.
            MessageFate::SettlementKnown(_)
                if quorum && may_have_crossed && returns < message.returns =>
            {
                return Ok(());
            }
            // A classic queue answers before it has written each acknowledgement.
            MessageFate::SettlementKnown(since)
                if !quorum && last_end.is_some_and(|end| end >= since) => {}
            fate => {
                let sent = message.sent;
                let name = self.queues.get(queue).map(|q| q.name.clone());
                return Err(format!(
                    "message {id:?}, sent to {} at {sent:?}, came again and is {fate:?}",
                    name.unwrap_or_default()
                ));
            }
        }
        if is_older {
            // The queue took this delivery back before it made the one that came first, by another node. So the client of this
            // one must learn of its end, and the other client has the message.
            self.double_deliveries.extend(double_delivery);
            return Ok(());
        }
        let first = message.deliveries == 0 && !redelivered;
        if let Some(delay) = schedule.filter(|_| !clocks_have_jumped)
            && now < message.sent + delay
        {
            return Err(format!(
                "message {id:?} was sent at {:?} and came before its delay of {delay:?} was over",
                message.sent
            ));
        }
        let requeued = message.requeued.take();
        let mut delay = Duration::ZERO;
        if let Some(requeued) = requeued.filter(|_| !may_have_crossed) {
            message.check_counts(requeued, read)?;
            delay = message.expected_delay(requeued, plan);
            if !clocks_have_jumped && !delay.is_zero() && now < requeued.at + delay {
                return Err(format!(
                    "message {id:?} was given back at {:?} and came before its delay of {delay:?} was over",
                    requeued.at
                ));
            }
        }
        // Quorum queues count each return of a message.
        message.record_crossing(faults_until, quorum && returns > message.returns);
        message.fate = MessageFate::Delivered(delivery, now);
        message.deliveries += 1;
        message.attempts = attempts;
        message.returns = returns;
        message.counts_returns = read.acquired > 0;
        message.last_delivered = Some(now);
        message.log_progress = log_progress;
        let sent = message.sent;
        self.record_log_progress(now, queue, sent);
        self.double_deliveries.extend(double_delivery);
        self.delivered += 1;
        self.after_delay += u64::from(!delay.is_zero());
        self.redelivered += u64::from(redelivered);
        if first {
            self.first_deliveries.entry(queue).or_default().push(now);
        }
        if let Some(requeued) = requeued {
            self.check_not_overtaken(now, id, queue, requeued)?;
        }
        if let Some(group) = self.group_of(id, queue) {
            self.check_group(now, id, (queue, group), delivery.to, redelivered)?;
        }
        // A message that was on its way to a client that is gone comes back behind later ones that are due.
        if !redelivered && !read.died && schedule.is_none() {
            self.check_order(id, queue, delivery.to)?;
        }
        Ok(())
    }

    /// How the queue delays returned messages, if it does so all the time.
    fn delay_plan(&self, queue: usize) -> Option<DelayPlan> {
        match self.queues.get(queue)?.treatment {
            QueueTreatment::DelayedRetry(plan) if self.has_all_features => Some(plan),
            _ => None,
        }
    }

    /// The delay with which messages for the queue are published.
    fn schedule(&self, queue: usize) -> Option<Duration> {
        match self.queues.get(queue)?.treatment {
            QueueTreatment::Scheduled(delay) => Some(delay),
            _ => None,
        }
    }

    /// A message has come through the dead letter exchange. It must be in the dead letter queue and must have been
    /// rejected. Copies may exist if there was a fault while it was on its way.
    fn check_dead_lettered(&mut self, id: MessageId, queue: usize) -> Result<(), String> {
        let faults_until = self.faults_until;
        let is_dead_letter_queue = self
            .queues
            .get(queue)
            .is_some_and(|q| q.name == DEAD_LETTER_QUEUE);
        let message = self.message(id)?;
        let may_be_copy = message
            .dead_lettered
            .is_some_and(|dead_lettered| faults_until >= dead_lettered.left_queue);
        if message.dead_lettered.is_some() && !may_be_copy {
            return Ok(());
        }
        let is_limit_reached =
            message.attempts + 1 >= DELIVERY_LIMIT || faults_until >= message.sent;
        if !is_dead_letter_queue
            || !(message.first_rejected.is_some() || is_limit_reached || may_be_copy)
        {
            return Err(format!("message {id:?} died of nothing: {message:?}"));
        }
        let left_queue = message
            .first_rejected
            .or(message.last_delivered)
            .unwrap_or(message.sent);
        message.queue = queue;
        message.deliveries = 0;
        message.attempts = 0;
        message.returns = 0;
        message.counts_returns = false;
        message.last_delivered = None;
        message.requeued = None;
        message.fate = MessageFate::Queued;
        message.earlier_deliveries.clear();
        message.possibly_settled = None;
        message
            .dead_lettered
            .get_or_insert(DeadLetterRecord { left_queue });
        Ok(())
    }

    /// Whether this is a delivery that was on its way to a client of a node that the queue had given up, while other
    /// clients got the message until it was dead-lettered.
    fn is_stale(&mut self, id: MessageId, queue: usize) -> Result<bool, String> {
        let faults_until = self.faults_until;
        let message = self.message(id)?;
        let may_have_crossed = message
            .dead_lettered
            .is_some_and(|dead_lettered| faults_until >= dead_lettered.left_queue);
        Ok(message.queue != queue && may_have_crossed)
    }

    /// Requeued messages come before messages that no client had. A message may be late if it was on its way to a
    /// client whose end the queue learns of only then.
    fn check_not_overtaken(
        &self,
        now: Time,
        id: MessageId,
        queue: usize,
        requeued: RequeuedMessage,
    ) -> Result<(), String> {
        let Some(known) = requeued.known.filter(|_| self.faults_until < requeued.at) else {
            return Ok(());
        };
        // A message also waits for the consumer that owns its group.
        let delays = |plan: &QueuePlan| {
            let treatment = plan.treatment;
            matches!(
                treatment,
                QueueTreatment::DelayedRetry(_)
                    | QueueTreatment::Scheduled(_)
                    | QueueTreatment::Grouped
            )
        };
        if self.queues.get(queue).is_some_and(delays) {
            return Ok(());
        }
        let first_deliveries = self
            .first_deliveries
            .get(&queue)
            .map_or(&[][..], Vec::as_slice);
        let after = first_deliveries.partition_point(|first| *first <= known + MAX_DELIVERY_DELAY);
        match first_deliveries.get(after) {
            Some(first) if *first + MAX_DELIVERY_DELAY < now => Err(format!(
                "message {id:?} was given back at {:?} and came after others that were new at {first:?}",
                requeued.at
            )),
            _ => Ok(()),
        }
    }

    /// First deliveries of a stream reach a consumer in the order of their publishes. In a quorum queue that is the order
    /// of messages of one priority, and in one with message groups that of one group.
    fn check_order(&mut self, id: MessageId, queue: usize, holder: Holder) -> Result<(), String> {
        let is_quorum = self.queues.get(queue).is_some_and(|q| q.quorum);
        let level = if is_quorum { id.level() } else { 0 };
        let group = self.group_of(id, queue);
        let last = self
            .order
            .entry((holder, queue, id.stream(), level, group))
            .or_default();
        let before = std::mem::replace(last, id.number());
        if before >= id.number() {
            return Err(format!(
                "message {id:?} came after number {before} of its stream"
            ));
        }
        Ok(())
    }
}
