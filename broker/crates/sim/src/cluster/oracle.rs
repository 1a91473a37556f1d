//! The oracle for AMQP messages.
//!
//! Clients report the messages that they send and receive. After the confirm of a message the cluster owes it: it is
//! delivered until a client settles it, unless an operation of a client explains its loss (a purge, a deletion, a
//! limit).

use super::tracked_message::{MessageId, ReadMessage};
use env::{NodeId, Time};
use metadata::DelayedReturns;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

mod delays;
mod deliveries;
mod groups;
mod outstanding;
mod reachability;
#[cfg(test)]
mod tests;
mod windows;

use delays::FrozenMachine;
use reachability::Reachability;
use windows::Window;
pub(super) use windows::WindowId;

/// Operations on a queue besides publishing and consuming. They decide what may explain the loss of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueTreatment {
    /// None: every confirmed message is delivered.
    Plain,
    /// Purged at random times.
    Purged,
    /// Deleted and declared again at random times.
    Recreated,
    /// A policy limits its length to this number and drops the oldest messages.
    MaxLength(u64),
    /// A policy sets this message TTL.
    MessageTtl(Duration),
    /// A policy limits its length to this number and rejects further publishes.
    RejectPublish(u64),
    /// Rejected messages are dead-lettered to [`DEAD_LETTER_QUEUE`], at least once.
    DeadLettering,
    /// Returned messages are delayed.
    DelayedRetry(DelayPlan),
    /// Consumers must settle deliveries within this time.
    ConsumerTimeout(Duration),
    /// Messages are published with this delay, to [`DELAYING_EXCHANGE`].
    Scheduled(Duration),
    /// Messages are published again, and the queue recognises them.
    Deduplicated,
    /// Most messages have a group. Those of one group come in order and to one consumer at a time.
    Grouped,
}

/// Arguments of a queue that delays returned messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DelayPlan {
    pub returns: DelayedReturns,
    pub min: Duration,
    pub max: Duration,
}

impl DelayPlan {
    /// The argument `x-delayed-retry-type`.
    pub(super) fn returns_argument(self) -> &'static str {
        match self.returns {
            DelayedReturns::All => "all",
            DelayedReturns::Failed => "failed",
            DelayedReturns::Returned => "returned",
        }
    }

    /// The delay of a message that a client returned, if this was its only return.
    fn delay(self, failures: u32, has_failed: bool) -> Duration {
        let applies = match self.returns {
            DelayedReturns::All => true,
            DelayedReturns::Failed => has_failed,
            DelayedReturns::Returned => !has_failed,
        };
        match applies {
            true => (self.min * failures.max(1)).min(self.max),
            false => Duration::ZERO,
        }
    }
}

/// A delayed message exchange, which routes a message to the queue that its routing key names.
pub(super) const DELAYING_EXCHANGE: &str = "later";

/// Target of dead-lettered messages.
pub(super) const DEAD_LETTER_QUEUE: &str = "grave";

/// A queue that one client has for itself until the faults end.
pub(super) const STEADY: &str = "steady";

/// A queue of the workload.
#[derive(Clone, Debug)]
pub(super) struct QueuePlan {
    pub name: String,
    pub quorum: bool,
    pub treatment: QueueTreatment,
}

impl QueuePlan {
    /// Whether this is a quorum queue that accepts every message.
    pub(super) fn is_plain_quorum(&self) -> bool {
        self.quorum && self.treatment == QueueTreatment::Plain
    }
}

/// The receiver of a delivery: a consumer of a client, or its `basic.get` requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub connection: u64,
    pub channel: u16,
    /// 0 for `basic.get`.
    pub consumer: u32,
}

/// One delivery of a message. A client may have several deliveries of the same message if its queue considered its node
/// down in between. Only the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub to: Holder,
    /// Delivery tag of the channel.
    pub tag: u64,
}

/// Outcome of a publish, as the publisher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishOutcome {
    Open,
    Confirmed,
    /// Returned: no queue got the message.
    Returned,
    /// Rejected, or its channel ended before the answer. The queue may have the message or not.
    Unknown,
}

/// State of a message, as the consumers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFate {
    /// No client has it.
    Queued,
    Delivered(Delivery, Time),
    /// Acknowledged, or rejected without dead-lettering. The queue may not know that.
    Settled(Delivery, Time),
    /// Like `Settled`, but the connection ended before the queue had to know.
    Uncertain,
    /// Rejected in a queue with dead-lettering, which may not know that.
    Rejected(Delivery, Time),
    /// Like `Rejected`, and the queue knows: the message comes from the dead letter queue next.
    DeadLettered,
    /// Settled, and a later answer of the queue has shown that it knows.
    SettlementKnown(Time),
}

#[derive(Clone, Debug)]
struct TrackedMessage {
    queue: usize,
    sent: Time,
    /// When the newest message was sent that had passed the queue's log before this one was delivered last. See
    /// [`Oracle::log_progress_before`].
    log_progress: Option<Time>,
    outcome: PublishOutcome,
    fate: MessageFate,
    deliveries: u32,
    /// Failed deliveries, according to its last delivery.
    attempts: u32,
    /// All deliveries before the last one, as far as the queue counted them.
    returns: u32,
    /// The queue counts all deliveries.
    counts_returns: bool,
    /// When it was delivered last.
    last_delivered: Option<Time>,
    /// When its client requeued it last, by its own request.
    requeued: Option<RequeuedMessage>,
    /// When a client rejected it first.
    first_rejected: Option<Time>,
    /// It came from the dead letter queue.
    dead_lettered: Option<DeadLetterRecord>,
    /// Deliveries before the last one that may be the valid one. After a fault, a newer delivery may arrive before an
    /// older one, so the last receiver may not be the one that the queue knows.
    earlier_deliveries: Vec<Delivery>,
    /// When a receiver settled it that may have been the one that the queue knows. The message may then be gone.
    possibly_settled: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct DeadLetterRecord {
    /// When it left its queue, at the earliest.
    left_queue: Time,
}

impl TrackedMessage {
    /// Records that the message is about to be delivered. Earlier deliveries and settlements still count if they may
    /// have crossed with this delivery. `newer`: they did not, because the queue took the message back from all its
    /// receivers.
    fn record_crossing(&mut self, faults_until: Time, newer: bool) {
        match self.fate {
            MessageFate::Delivered(out, since) if faults_until >= since => {
                self.earlier_deliveries.push(out)
            }
            MessageFate::Settled(_, at) => self.possibly_settled = Some(at),
            _ => {}
        }
        if newer
            || self
                .last_delivered
                .is_none_or(|last_delivered| faults_until < last_delivered)
        {
            self.earlier_deliveries.clear();
        }
        self.possibly_settled = self
            .possibly_settled
            .filter(|at| !newer && faults_until >= *at);
    }
}

impl TrackedMessage {
    /// Checks the counts of a delivery without faults since the one before. If the message came back only once in
    /// between, the client's request was the reason, and the message has failed once more only if the client said so.
    fn check_counts(&self, requeued: RequeuedMessage, read: ReadMessage) -> Result<(), String> {
        let Some(has_failed) = requeued.has_failed.filter(|_| self.counts_returns) else {
            return Ok(());
        };
        let is_only_return = requeued.known.is_some() && read.returns() == self.returns + 1;
        let failures = self.attempts + u32::from(has_failed);
        if !is_only_return || read.attempts == failures {
            return Ok(());
        }
        Err(format!(
            "message {:?} has {} failed deliveries of {}, {failures} expected: {requeued:?}",
            read.id,
            read.attempts,
            read.returns(),
        ))
    }
}

impl TrackedMessage {
    /// The shortest delay of a message that a client requeued. Zero if its channel or consumer ended, because the queue
    /// may have taken the message back before.
    fn expected_delay(&self, requeued: RequeuedMessage, plan: Option<DelayPlan>) -> Duration {
        let Some((plan, has_failed)) = plan.zip(requeued.has_failed) else {
            return Duration::ZERO;
        };
        plan.delay(self.attempts + u32::from(has_failed), has_failed)
    }
}

/// A message that a client requeued.
#[derive(Clone, Copy, Debug)]
struct RequeuedMessage {
    at: Time,
    of: Delivery,
    /// When an answer of the queue showed that it knows.
    known: Option<Time>,
    /// Whether the client reported that the delivery has failed. `None`: its channel or consumer ended, and the queue may
    /// not have processed a report.
    has_failed: Option<bool>,
}

/// A message that another client got while a client still had it or one of its group. The broker may do that if it ends the client's
/// channel or consumer. The client learns of that within [`MAX_CLIENT_DELAY`].
#[derive(Clone, Copy, Debug)]
struct DoubleDelivery {
    id: MessageId,
    /// The message that the other client got: this one, or one of its group.
    got: MessageId,
    from: Holder,
    at: Time,
}

/// More than the time from a queue to a client of another node without faults.
const MAX_DELIVERY_DELAY: Duration = Duration::from_millis(500);
/// Maximum time from a node to its client without faults.
const MAX_CLIENT_DELAY: Duration = Duration::from_secs(2);

/// A quorum queue drops a message that was returned this often.
const DELIVERY_LIMIT: u32 = 20;
/// Time after the last fault in which its effects may still be seen.
const FAULT_EFFECT_TIME: Duration = Duration::from_secs(4);

#[derive(Default)]
pub(super) struct Oracle {
    pub queues: Vec<QueuePlan>,
    messages: BTreeMap<MessageId, TrackedMessage>,
    windows: Vec<Window>,
    double_deliveries: Vec<DoubleDelivery>,
    /// Until when a fault of network or nodes may have effects.
    faults_until: Time,
    /// Times of the first deliveries of each queue.
    first_deliveries: BTreeMap<usize, Vec<Time>>,
    /// Number of the last first delivery of each stream, by holder, queue, stream, priority level and group.
    order: BTreeMap<(Holder, usize, u32, u8, Option<u64>), u32>,
    /// Messages of groups by queue and group, in the order in which they were sent.
    groups: BTreeMap<(usize, u64), Vec<MessageId>>,
    /// Number and time of the last first delivery of each queue, group, stream and priority level.
    group_order: BTreeMap<(usize, u64, u32, u8), (u32, Time)>,
    pub confirmed: u64,
    pub delivered: u64,
    pub redelivered: u64,
    /// Messages that are settled, and the queue is known to know that.
    pub known_settled: u64,
    /// When a machine's software last ended. Classic queues there lose unwritten data.
    machine_ends: BTreeMap<NodeId, Time>,
    reachability: Reachability,
    /// By queue: when a message was known to have passed the queue's log, because it was confirmed or delivered, and
    /// when it was sent. Both increase.
    log_progress: BTreeMap<usize, VecDeque<(Time, Time)>>,
    /// Pauses of machines.
    pauses: Vec<FrozenMachine>,
    /// When a machine last lost power. Classic queues write before they confirm, and do not sync.
    last_power_loss: Time,
    /// Wall clocks have jumped, so a message's TTL or delay may end at any time.
    clocks_have_jumped: bool,
    /// Queues delay messages and end consumers all the time: the cluster was founded with all feature flags.
    pub has_all_features: bool,
    /// Deliveries of messages after a delay.
    pub after_delay: u64,
    /// Confirmed copies of messages.
    pub copies: u64,
}

impl Oracle {
    pub(super) fn new(queues: Vec<QueuePlan>) -> Oracle {
        Oracle {
            queues,
            ..Oracle::default()
        }
    }

    /// Records a fault of network or nodes.
    pub(super) fn record_fault(&mut self, now: Time) {
        let calm_before = self.faults_until < now;
        self.faults_until = self.faults_until.max(now + FAULT_EFFECT_TIME);
        for window in self.windows.iter_mut().filter(|w| w.may_be_unknown) {
            window.may_be_unknown = !calm_before;
            if window.may_be_unknown {
                window.until = Some(self.faults_until);
            }
        }
    }

    /// Records a jump of a wall clock.
    pub(super) fn record_clock_jump(&mut self) {
        self.clocks_have_jumped = true;
    }

    /// Whether faults since then can have no effects.
    pub(super) fn no_faults_since(&self, then: Time) -> bool {
        self.faults_until < then
    }

    /// Until when faults may have effects.
    pub(super) fn faults_until(&self) -> Time {
        self.faults_until
    }

    /// Records that the software of a machine has ended.
    pub(super) fn machine_ended(&mut self, now: Time, machine: NodeId) {
        self.machine_ends.insert(machine, now);
        self.reachability.machine_ended(now, machine);
        self.record_fault(now);
    }

    /// Records that a machine's disk lost unsynced data.
    pub(super) fn lost_power(&mut self, at: Time) {
        self.last_power_loss = self.last_power_loss.max(at);
    }

    /// Records that another node considers this machine down.
    pub(super) fn given_up(&mut self, now: Time, by: NodeId, machine: NodeId) {
        self.reachability.given_up(now, by, machine);
    }

    /// Records that another node reaches this machine again.
    pub(super) fn reachable_again(&mut self, now: Time, by: NodeId, machine: NodeId) {
        self.reachability.reachable_again(now, by, machine);
    }

    pub(super) fn sent(&mut self, now: Time, id: MessageId, queue: usize) {
        let message = TrackedMessage {
            queue,
            sent: now,
            log_progress: None,
            outcome: PublishOutcome::Open,
            fate: MessageFate::Queued,
            deliveries: 0,
            attempts: 0,
            returns: 0,
            counts_returns: false,
            last_delivered: None,
            requeued: None,
            first_rejected: None,
            dead_lettered: None,
            earlier_deliveries: Vec::new(),
            possibly_settled: None,
        };
        tracing::debug!(message = id.0, queue, "sent");
        if let Some(group) = self.group_of(id, queue) {
            self.groups.entry((queue, group)).or_default().push(id);
        }
        self.messages.insert(id, message);
    }

    fn message(&mut self, id: MessageId) -> Result<&mut TrackedMessage, String> {
        let message = self.messages.get_mut(&id);
        message.ok_or_else(|| format!("message {id:?} was never published"))
    }

    pub(super) fn confirmed(&mut self, now: Time, id: MessageId) -> Result<(), String> {
        self.confirmed += 1;
        tracing::debug!(message = id.0, "confirmed");
        let message = self.message(id)?;
        match message.outcome {
            PublishOutcome::Open => message.outcome = PublishOutcome::Confirmed,
            // A returned message is confirmed after the return.
            PublishOutcome::Returned => return Ok(()),
            other => return Err(format!("message {id:?} was confirmed and is {other:?}")),
        }
        let (queue, sent) = (message.queue, message.sent);
        self.record_log_progress(now, queue, sent);
        Ok(())
    }

    /// A copy of a message was confirmed: the queue has the message, or had it.
    pub(super) fn copy_confirmed(&mut self, id: MessageId) -> Result<(), String> {
        tracing::debug!(message = id.0, "copy confirmed");
        let message = self.message(id)?;
        if message.outcome == PublishOutcome::Unknown {
            message.outcome = PublishOutcome::Confirmed;
        }
        self.copies += 1;
        Ok(())
    }

    /// Whether a message was confirmed and is in its queue, or was.
    pub(super) fn is_confirmed(&self, id: MessageId) -> bool {
        let message = self.messages.get(&id);
        message.is_some_and(|message| message.outcome == PublishOutcome::Confirmed)
    }

    /// Records that a message of this queue, sent at `sent`, has passed its log.
    fn record_log_progress(&mut self, now: Time, queue: usize, sent: Time) {
        let log_progress = self.log_progress.entry(queue).or_default();
        if log_progress.back().is_none_or(|(_, last)| *last < sent) {
            log_progress.push_back((now, sent));
        }
    }

    /// When the newest message was sent that had passed this queue's log before a delivery of now left the queue. A log
    /// that made no progress for a while continues with all its entries at once, and their effects cross on their way.
    fn log_progress_before(&mut self, now: Time, queue: usize) -> Option<Time> {
        let log_progress = self.log_progress.get_mut(&queue)?;
        let is_early = |entry: &(Time, Time)| entry.0 + MAX_DELIVERY_DELAY <= now;
        while log_progress.get(1).is_some_and(is_early) {
            log_progress.pop_front();
        }
        log_progress
            .front()
            .filter(|entry| is_early(entry))
            .map(|entry| entry.1)
    }

    pub(super) fn returned(&mut self, id: MessageId) -> Result<(), String> {
        let message = self.message(id)?;
        if message.outcome != PublishOutcome::Open {
            return Err(format!(
                "message {id:?} was returned and is {:?}",
                message.outcome
            ));
        }
        message.outcome = PublishOutcome::Returned;
        Ok(())
    }

    /// The publish was rejected, or never answered.
    pub(super) fn unknown(&mut self, id: MessageId) -> Result<(), String> {
        self.message(id)?.outcome = PublishOutcome::Unknown;
        Ok(())
    }

    /// The client requeued the message.
    pub(super) fn requeued(
        &mut self,
        now: Time,
        id: MessageId,
        by: Delivery,
        has_failed: bool,
    ) -> Result<(), String> {
        tracing::debug!(message = id.0, ?by, has_failed, "given back");
        let message = self.message(id)?;
        message.earlier_deliveries.retain(|before| *before != by);
        if matches!(message.fate, MessageFate::Delivered(out, _) if out == by) {
            message.fate = MessageFate::Queued;
            message.requeued = Some(RequeuedMessage {
                at: now,
                of: by,
                known: None,
                has_failed: Some(has_failed),
            });
        }
        Ok(())
    }

    /// The queue has answered a request that the client sent after it had requeued these messages.
    pub(super) fn requeue_known(
        &mut self,
        now: Time,
        messages: &[(MessageId, Delivery)],
    ) -> Result<(), String> {
        for (id, of) in messages {
            let requeued = self.message(*id)?.requeued.as_mut();
            if let Some(requeued) = requeued.filter(|requeued| requeued.of == *of) {
                requeued.known.get_or_insert(now);
            }
        }
        Ok(())
    }

    /// The client rejected the message without requeue.
    pub(super) fn rejected(
        &mut self,
        now: Time,
        id: MessageId,
        by: Delivery,
    ) -> Result<(), String> {
        tracing::debug!(message = id.0, ?by, "rejected");
        let queue = self.message(id)?.queue;
        let queue_plan = self.queues.get(queue);
        if queue_plan.is_none_or(|q| q.treatment != QueueTreatment::DeadLettering) {
            return self.settled(now, id, by);
        }
        let message = self.message(id)?;
        if matches!(message.fate, MessageFate::Delivered(out, _) if out == by) {
            message.fate = MessageFate::Rejected(by, now);
            message.first_rejected.get_or_insert(now);
        }
        Ok(())
    }

    /// The client acknowledged or rejected the message.
    pub(super) fn settled(&mut self, now: Time, id: MessageId, by: Delivery) -> Result<(), String> {
        tracing::debug!(message = id.0, ?by, "settled");
        let message = self.message(id)?;
        match message.fate {
            MessageFate::Delivered(out, _) if out == by => {
                message.fate = MessageFate::Settled(by, now)
            }
            fate if message.earlier_deliveries.contains(&by) => {
                message.possibly_settled = Some(now);
                if fate == MessageFate::Queued {
                    message.fate = MessageFate::Uncertain;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The client settled the message if it had it at all, which cannot be known.
    pub(super) fn maybe_settled(&mut self, now: Time, id: MessageId) -> Result<(), String> {
        tracing::debug!(message = id.0, "perhaps settled");
        let message = self.message(id)?;
        if message.fate == MessageFate::Queued {
            message.fate = MessageFate::Uncertain;
            message.possibly_settled = Some(now);
            // If it was a rejection, the message comes from the dead letter queue.
            message.first_rejected.get_or_insert(now);
        }
        Ok(())
    }

    /// The queue has answered a request that the client sent after it had settled these messages.
    pub(super) fn settlement_known(
        &mut self,
        now: Time,
        machine: NodeId,
        settled: &[(MessageId, Delivery)],
    ) -> Result<(), String> {
        let unreachable_until = self.reachability.unreachable_until(now, machine);
        let last_end = self.machine_ends.values().copied().max();
        for (id, of) in settled {
            let message = self.message(*id)?;
            let (settled, is_dead_lettered) = match message.fate {
                MessageFate::Settled(out, at) if out == *of => (at, false),
                MessageFate::Rejected(out, at) if out == *of => (at, true),
                // Delivered again since: the queue applied the older settlement to that delivery.
                _ => continue,
            };
            let (queue, last_delivered, log_progress) =
                (message.queue, message.last_delivered, message.log_progress);
            // A queue that considered this node unreachable took the message back, then or when another node became its
            // leader, and the settlement came too late. The delivery may have been on its way at that time.
            let earliest_sent =
                last_delivered.map(|last_delivered| self.earliest_sent(machine, last_delivered));
            // Or the entry that takes the message back was in the log already, behind the one that made the queue send
            // it (its publish, or a consume). A new leader of a queue without a leader for a while sends the message
            // first and then takes it back.
            let is_in_log = unreachable_until
                .is_some_and(|at| log_progress.is_none_or(|log_progress| log_progress <= at));
            let is_too_late = is_in_log
                || earliest_sent
                    .is_some_and(|earliest_sent| unreachable_until >= Some(earliest_sent));
            // A delivery of an earlier incarnation of a classic queue's node has returned to the queue, so its
            // settlement comes too late. Settlements on their way to that incarnation are lost. The answer comes from
            // the next incarnation.
            let quorum = self.queues.get(queue).is_some_and(|q| q.quorum);
            let is_lost = !quorum && last_end >= Some(last_delivered.unwrap_or(settled));
            let message = self.message(*id)?;
            if is_dead_lettered {
                message.fate = if is_too_late {
                    MessageFate::Queued
                } else {
                    MessageFate::DeadLettered
                };
            } else if is_too_late || is_lost {
                message.possibly_settled = Some(settled);
                message.fate = MessageFate::Uncertain;
            } else {
                message.fate = MessageFate::SettlementKnown(now);
                self.known_settled += 1;
            }
        }
        Ok(())
    }

    /// The broker ended a channel or a consumer. It may have taken back its messages before the client learnt of that.
    pub(super) fn channel_ended_by_broker(&mut self, now: Time, of: impl Fn(Holder) -> bool) {
        self.double_deliveries
            .retain(|delivery| !of(delivery.from) || now.since(delivery.at) > MAX_CLIENT_DELAY);
        self.take_back(None, of);
    }

    /// Whether [`Oracle::check_double_deliveries`] may still learn of an ended channel.
    pub(super) fn may_learn_of_ended_channel(&self, now: Time) -> bool {
        let last = self.double_deliveries.last();
        last.is_some_and(|t| now.since(t.at) <= MAX_CLIENT_DELAY)
    }

    /// Checks that no message went to another client while a client had it and its channel did not end.
    pub(super) fn check_double_deliveries(&self, now: Time) -> Result<(), String> {
        let mut late =
            (self.double_deliveries.iter()).filter(|t| now.since(t.at) > MAX_CLIENT_DELAY);
        match late.find(|t| self.faults_until < t.at) {
            Some(DoubleDelivery { id, got, from, at }) if id != got => Err(format!(
                "message {id:?} was with {from:?}, and {got:?} of its group came to another consumer at {at:?}"
            )),
            Some(DoubleDelivery { id, from, at, .. }) => Err(format!(
                "message {id:?} was with {from:?} and came to another client at {at:?}"
            )),
            None => Ok(()),
        }
    }

    /// Checks that no client has a message for much longer than the timeout of its queue.
    pub(super) fn check_timeouts(&self, now: Time) -> Result<(), String> {
        for (id, message) in self.messages.iter().filter(|_| self.has_all_features) {
            let MessageFate::Delivered(to, since) = message.fate else {
                continue;
            };
            let treatment = self.queues.get(message.queue).map(|q| q.treatment);
            let Some(QueueTreatment::ConsumerTimeout(timeout)) = treatment else {
                continue;
            };
            // The queue checks several times in a timeout. A new leader counts anew.
            let latest = since.max(self.faults_until) + timeout * 2 + MAX_CLIENT_DELAY;
            if now > latest && message.earlier_deliveries.is_empty() {
                return Err(format!(
                    "message {id:?} is with {to:?} since {since:?}, longer than the timeout of {timeout:?}"
                ));
            }
        }
        Ok(())
    }

    /// A client ended a connection or a consumer, so its messages return.
    pub(super) fn channel_ended_by_client(&mut self, now: Time, of: impl Fn(Holder) -> bool) {
        self.take_back(Some(now), of);
    }

    /// `at`: when the client ended it. `None`: the broker did.
    fn take_back(&mut self, at: Option<Time>, of: impl Fn(Holder) -> bool) {
        for (id, message) in &mut self.messages {
            message.earlier_deliveries.retain(|before| !of(before.to));
            // A requeue behind a request without an answer is dropped with the channel, whose end then requeues the message.
            if let Some(requeued) = &mut message.requeued
                && requeued.known.is_none()
                && of(requeued.of.to)
            {
                requeued.has_failed = None;
            }
            match message.fate {
                MessageFate::Delivered(out, _) if of(out.to) => {
                    tracing::debug!(message = id.0, ?out, "taken back");
                    message.fate = match message.possibly_settled {
                        Some(_) => MessageFate::Uncertain,
                        None => MessageFate::Queued,
                    };
                    message.requeued = at.map(|at| RequeuedMessage {
                        at,
                        of: out,
                        known: None,
                        has_failed: None,
                    });
                }
                // It returned to its queue, or is in the dead letter queue.
                MessageFate::Rejected(out, _) if of(out.to) => message.fate = MessageFate::Queued,
                // The queue may have processed the settlement or not.
                MessageFate::Settled(out, at) if of(out.to) => {
                    message.possibly_settled = Some(at);
                    message.fate = MessageFate::Uncertain;
                }
                _ => {}
            }
        }
    }

    pub(super) fn published(&self) -> usize {
        self.messages.len()
    }
}
