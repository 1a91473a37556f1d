//! The rules for messages of AMQP 1.0 clients.

use super::Amqp10Queue;
use super::browsers::Browsers;
use super::filters::{FilteredReceivers, PartFilter};
use super::message;
use super::message::ReadMessage;
use env::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time after which the queue knows that a receiver has ended, without faults.
const END_EFFECT_TIME: Duration = Duration::from_secs(1);

/// How a receiver settles a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverOutcome {
    Accepted,
    Rejected,
    Released,
    Modified {
        delivery_failed: bool,
        undeliverable_here: bool,
        /// The value of the annotation. 0: none is sent.
        value: u64,
    },
}

impl ReceiverOutcome {
    /// Whether the queue has the message no more.
    fn is_final(self) -> bool {
        match self {
            ReceiverOutcome::Accepted | ReceiverOutcome::Rejected => true,
            ReceiverOutcome::Released => false,
            ReceiverOutcome::Modified {
                undeliverable_here, ..
            } => undeliverable_here,
        }
    }
}

/// A delivery that its receiver has not settled.
#[derive(Clone, Copy, Debug)]
struct Holder {
    receiver: u64,
    since: Time,
}

#[derive(Default)]
struct Published {
    /// Publishes of the whole message. More than one: the client does not know the outcome of the earlier ones.
    sends: usize,
    /// The link of the last publish, and its position among all publishes.
    position: (u64, u64),
    /// When it was published last.
    sent_at: Time,
    /// The queue has stored it.
    is_stored: bool,
    /// When it became ready for receivers last, as far as the clients know.
    ready_since: Time,
    /// A client has settled it for good, and it was not delivered since without faults.
    is_settled: bool,
    /// When the deliveries came that a client settled for good.
    settled_deliveries: Vec<Time>,
    /// When a client settled it for good last.
    settled_at: Time,
    holders: Vec<Holder>,
    /// Its classic queue may have lost it with a machine, or with the power: classic queues confirm before fsync.
    may_be_lost: bool,
    /// The last annotation that a client sent, and when the delivery came.
    annotated: Option<(Time, u64)>,
    /// The highest annotation that came with it.
    seen: u64,
    /// The highest number of earlier deliveries that came with it.
    acquired: u64,
}

/// Messages by queue and number.
#[derive(Default)]
pub(crate) struct Amqp10Oracle {
    messages: BTreeMap<(Amqp10Queue, u64), Published>,
    next_number: u64,
    next_value: u64,
    next_link: u64,
    next_position: u64,
    /// Position of the last delivery, by receiver and link of the publisher. Of queues with a single active consumer.
    order: BTreeMap<(u64, u64), u64>,
    /// The receiver of the last delivery of a queue with a single active consumer, and its time.
    active: Option<(u64, Time)>,
    /// Messages published until then may have returned to the queue with a single active consumer, and lost their place.
    unordered_until: Time,
    pub faults_until: Time,
    pub confirmed: u64,
    pub deliveries: u64,
    pub drains: u64,
    /// Deliveries to receivers with filters.
    pub filtered: u64,
    /// Drains of these receivers that ended while the queue had messages of other parts.
    pub drains_beside: u64,
    pub(super) filtered_receivers: FilteredReceivers,
    pub(crate) browsers: Browsers,
    /// Messages that were published more than once.
    pub repeats: u64,
}

impl Amqp10Oracle {
    pub(crate) fn calm_since(&self, then: Time) -> bool {
        self.faults_until < then
    }

    /// Messages of the classic queue, if this is its name, may be lost from now on.
    pub(crate) fn lost(&mut self, queue: &str) {
        if [Amqp10Queue::Classic, Amqp10Queue::FilteredClassic]
            .iter()
            .any(|classic| classic.name() == queue)
        {
            self.lost_power();
        }
    }

    /// A machine has lost what was not synced.
    pub(crate) fn lost_power(&mut self) {
        for ((queue, _), message) in &mut self.messages {
            message.may_be_lost |= !queue.is_quorum();
        }
    }

    /// The number of the next message.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A number for a link, unique in the run.
    pub(super) fn next_link(&mut self) -> u64 {
        self.next_link += 1;
        self.next_link
    }

    /// A new annotation.
    pub(super) fn next_value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    /// Number of messages that were published to a queue, copies included.
    pub(super) fn sent_to(&self, queue: Amqp10Queue) -> usize {
        let of_queue = self.messages.range((queue, 0)..=(queue, u64::MAX));
        of_queue.map(|(_, message)| message.sends).sum()
    }

    /// A publisher has written the last transfer of a message.
    pub(super) fn published(&mut self, now: Time, queue: Amqp10Queue, number: u64, link: u64) {
        self.next_position += 1;
        let message = self.messages.entry((queue, number)).or_default();
        message.sends += 1;
        message.position = (link, self.next_position);
        message.sent_at = now;
        self.repeats += u64::from(message.sends > 1);
    }

    /// The broker has settled a publish.
    pub(super) fn answered(
        &mut self,
        now: Time,
        queue: Amqp10Queue,
        number: u64,
        is_accepted: bool,
    ) {
        let message = self.messages.get_mut(&(queue, number));
        if let Some(message) = message.filter(|_| is_accepted) {
            message.is_stored = true;
            message.ready_since = now;
            self.confirmed += 1;
        }
    }

    pub(super) fn delivered(
        &mut self,
        now: Time,
        queue: Amqp10Queue,
        receiver: u64,
        read: ReadMessage,
    ) -> Result<(), String> {
        self.deliveries += 1;
        let ReadMessage {
            number,
            value,
            acquired,
        } = read;
        if queue == Amqp10Queue::SingleActive {
            self.check_active(now, receiver)?;
            self.check_order(receiver, number)?;
        }
        let faults_until = self.faults_until;
        let Some(message) = self.messages.get_mut(&(queue, number)) else {
            return Err(format!("message {number} of {queue:?} was not published"));
        };
        let holders = message.holders.iter().map(|holder| holder.since);
        let copies = holders
            .chain(message.settled_deliveries.iter().copied())
            .filter(|since| faults_until < *since)
            .count();
        if copies >= message.sends && faults_until < now {
            return Err(format!(
                "message {number} of {queue:?} came again: it was published {} times, settled at {:?}, held since {:?}",
                message.sends, message.settled_deliveries, message.holders
            ));
        }
        message.holders.push(Holder {
            receiver,
            since: now,
        });
        message.is_stored |= queue.is_quorum();
        // During faults, the delivery may be older than the settlement by another client.
        message.is_settled &= now <= faults_until;
        let (at, last) = message.annotated.unwrap_or_default();
        if value > last || (value > 0 && !queue.is_quorum()) {
            return Err(format!(
                "message {number} of {queue:?} has annotation {value}"
            ));
        }
        // During faults, a delivery may come after a newer one. The number of earlier deliveries tells which is newer.
        let may_be_older = now <= faults_until && acquired <= message.acquired;
        message.acquired = message.acquired.max(acquired);
        // Each copy has annotations of its own.
        if may_be_older || message.sends > 1 {
            return Ok(());
        }
        // A modification has no effect if its session ended before, or its node was suspected.
        let applied = faults_until < at && queue.is_quorum();
        if value < message.seen || (applied && value < last) {
            return Err(format!(
                "message {number} has lost its annotation: {value}, was {}, sent {last} at {at:?}",
                message.seen
            ));
        }
        message.seen = value;
        Ok(())
    }

    /// Without faults, only one receiver of a queue with a single active consumer gets messages until it ends.
    fn check_active(&mut self, now: Time, receiver: u64) -> Result<(), String> {
        let before = self.active.replace((receiver, now));
        match before.filter(|(other, at)| *other != receiver && self.calm_since(*at)) {
            None => Ok(()),
            Some((other, at)) => Err(format!(
                "receiver {receiver} got a message, and the active consumer is {other}, which got one at {at:?}"
            )),
        }
    }

    /// A receiver gets the messages of a link in the order in which they were published, if each receiver before took no more
    /// messages and settled all that it had, before it ended.
    fn check_order(&mut self, receiver: u64, number: u64) -> Result<(), String> {
        let message = self.messages.get(&(Amqp10Queue::SingleActive, number));
        let since = self.unordered_until.max(self.faults_until);
        let message = message.filter(|message| message.sends == 1 && since < message.sent_at);
        let Some(message) = message else {
            return Ok(());
        };
        let (link, position) = message.position;
        match self.order.insert((receiver, link), position) {
            Some(last) if position < last => Err(format!(
                "message {number} came to receiver {receiver} after a later one of its publisher"
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn settled(
        &mut self,
        now: Time,
        queue: Amqp10Queue,
        receiver: u64,
        number: u64,
        outcome: ReceiverOutcome,
    ) {
        let Some(since) = self.returned(now, queue, receiver, number) else {
            return;
        };
        let Some(message) = self.messages.get_mut(&(queue, number)) else {
            return;
        };
        if outcome.is_final() {
            message.is_settled = true;
            message.settled_deliveries.push(since);
            message.settled_at = now;
        }
        if let ReceiverOutcome::Modified {
            value: value @ 1.., ..
        } = outcome
        {
            message.annotated = Some((since, value));
        }
    }

    /// A delivery returns to its queue. Returns when it came.
    pub(super) fn returned(
        &mut self,
        now: Time,
        queue: Amqp10Queue,
        receiver: u64,
        number: u64,
    ) -> Option<Time> {
        let message = self.messages.get_mut(&(queue, number))?;
        message.ready_since = now;
        let holders = &mut message.holders;
        let at = holders
            .iter()
            .position(|holder| holder.receiver == receiver)?;
        Some(holders.swap_remove(at).since)
    }

    /// A receiver gets no more messages. Those that were on the way to it, or that it has not settled, return to the queue.
    pub(super) fn receiver_ended(&mut self, now: Time, receiver: u64, has_returns: bool) {
        self.active = self.active.filter(|(active, _)| *active != receiver);
        if has_returns {
            self.unordered_until = self.unordered_until.max(now + END_EFFECT_TIME);
        }
    }

    /// A copy has come to a receiver that browses.
    pub(super) fn browsed(
        &mut self,
        queue: Amqp10Queue,
        browser: u64,
        number: u64,
    ) -> Result<(), String> {
        let Some(message) = self.messages.get(&(queue, number)) else {
            return Err(format!("message {number} of {queue:?} was not published"));
        };
        let attached_at = self.browsers.copied(browser, number, message.sends)?;
        // Without faults, the queue has no message that was settled before the browser came.
        let is_calm = |delivered: &&Time| self.faults_until < **delivered;
        let settled = message.settled_deliveries.iter().filter(is_calm).count();
        let is_gone = settled >= message.sends
            && self.calm_since(message.settled_at)
            && message.settled_at + END_EFFECT_TIME < attached_at;
        if is_gone {
            return Err(format!(
                "browser {browser} got message {number} of {queue:?}, which was settled at {:?}",
                message.settled_at
            ));
        }
        if message.sends == 1 && self.faults_until < message.sent_at {
            self.browsers
                .check_order(browser, number, message.position)?;
        }
        Ok(())
    }

    /// A delivery has come to a receiver with a filter.
    pub(super) fn check_filter(
        &mut self,
        queue: Amqp10Queue,
        number: u64,
        filter: PartFilter,
    ) -> Result<(), String> {
        self.filtered += 1;
        match message::part(number) == filter.part {
            true => Ok(()),
            false => Err(format!(
                "message {number} of {queue:?} does not satisfy {filter:?}"
            )),
        }
    }

    /// A drain of a receiver with a filter ended before its credit was used up: the queue has no message for it. `drain_at`: when
    /// the client granted the drain.
    ///
    /// A message is certainly for this receiver if no other one took messages of its part.
    pub(super) fn check_drain(
        &mut self,
        queue: Amqp10Queue,
        receiver: u64,
        filter: PartFilter,
        drain_at: Time,
    ) -> Result<(), String> {
        let since = drain_at - END_EFFECT_TIME;
        let of_queue = self.messages.range((queue, 0)..=(queue, u64::MAX));
        let mut ready = of_queue.filter(|(_, message)| {
            let is_owed = message.is_stored && !message.is_settled && !message.may_be_lost;
            is_owed && message.holders.is_empty() && message.ready_since < since
        });
        let is_of_part = |number: u64| message::part(number) == filter.part;
        let others = ready.clone().any(|((_, number), _)| !is_of_part(*number));
        let own = ready.find(|((_, number), _)| is_of_part(*number));
        let is_alone = self.filtered_receivers.is_alone(receiver, since);
        if let (Some(((_, number), message)), true) = (own, is_alone && self.calm_since(since)) {
            return Err(format!(
                "a drain with {filter:?} left message {number} of {queue:?}, which is ready since {:?}; the drain is of {drain_at:?}",
                message.ready_since
            ));
        }
        self.filtered_receivers
            .finish_drain(queue, filter, drain_at);
        self.drains_beside += u64::from(others);
        Ok(())
    }

    /// Stored messages that no client has settled for good.
    pub(crate) fn owed(&self) -> Vec<u64> {
        let owed = |((_, number), message): (&(Amqp10Queue, u64), &Published)| {
            let is_owed = message.is_stored && !message.is_settled && !message.may_be_lost;
            is_owed.then_some(*number)
        };
        self.messages.iter().filter_map(owed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::filters::FilterLanguage;
    use super::*;

    const QUEUE: Amqp10Queue = Amqp10Queue::Quorum;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn plain(number: u64) -> ReadMessage {
        ReadMessage {
            number,
            value: 0,
            acquired: 0,
        }
    }

    fn with_messages(queue: Amqp10Queue, numbers: u64) -> Amqp10Oracle {
        let mut oracle = Amqp10Oracle::default();
        for _ in 0..numbers {
            let number = oracle.next_number();
            oracle.published(at(1), queue, number, 1);
        }
        oracle
    }

    #[test]
    fn accepted_publish_is_owed_until_a_receiver_settles_it_for_good() {
        let mut oracle = with_messages(QUEUE, 1);
        assert!(oracle.owed().is_empty());
        oracle.answered(at(1), QUEUE, 1, true);
        assert_eq!(oracle.owed(), [1]);
        oracle
            .delivered(at(1), QUEUE, 7, plain(1))
            .expect("a publish");
        oracle.settled(at(2), QUEUE, 7, 1, ReceiverOutcome::Released);
        assert_eq!(oracle.owed(), [1]);
        oracle
            .delivered(at(2), QUEUE, 8, plain(1))
            .expect("a return");
        oracle.settled(at(2), QUEUE, 8, 1, ReceiverOutcome::Rejected);
        assert!(oracle.owed().is_empty());
    }

    #[test]
    fn message_that_was_not_published_is_refused() {
        let mut oracle = with_messages(QUEUE, 1);
        assert!(oracle.delivered(at(1), QUEUE, 7, plain(2)).is_err());
        let other = Amqp10Queue::Classic;
        assert!(oracle.delivered(at(1), other, 7, plain(1)).is_err());
    }

    #[test]
    fn settled_delivery_comes_again_only_for_a_second_publish_or_during_faults() {
        let mut oracle = with_messages(QUEUE, 1);
        for time in [1, 2] {
            oracle.published(at(1), QUEUE, 1, 1);
            oracle
                .delivered(at(time), QUEUE, 7, plain(1))
                .expect("a copy");
            oracle.settled(at(2), QUEUE, 7, 1, ReceiverOutcome::Accepted);
        }
        oracle.delivered(at(3), QUEUE, 7, plain(1)).expect("a copy");
        assert!(oracle.delivered(at(4), QUEUE, 8, plain(1)).is_err());
        oracle.faults_until = at(9);
        oracle
            .delivered(at(5), QUEUE, 8, plain(1))
            .expect("a fault");
    }

    #[test]
    fn receiver_with_filter_gets_only_messages_of_its_part() {
        let queue = Amqp10Queue::FilteredQuorum;
        let mut oracle = with_messages(queue, 1);
        let filter = |part| PartFilter {
            part,
            language: FilterLanguage::Sql,
        };
        let part = message::part(1);
        oracle
            .check_filter(queue, 1, filter(part))
            .expect("its part");
        assert!(oracle.check_filter(queue, 1, filter(1 - part)).is_err());
    }

    #[test]
    fn drain_leaves_messages_of_other_parts_only() {
        let queue = Amqp10Queue::FilteredClassic;
        let mut oracle = with_messages(queue, 1);
        let filter = |part| PartFilter {
            part,
            language: FilterLanguage::Selector,
        };
        let part = message::part(1);
        oracle.filtered_receivers.attach(7, queue, part);
        oracle.filtered_receivers.attach(8, queue, 1 - part);
        oracle.answered(at(1), queue, 1, true);
        let late = at(2000);
        let other = oracle.check_drain(queue, 8, filter(1 - part), late);
        other.expect("a message of the other part");
        assert_eq!(oracle.drains_beside, 1);
        let own = oracle.check_drain(queue, 7, filter(part), late);
        assert!(own.is_err_and(|error| error.contains("left message 1")));
        // The queue may not have had it when the drain ended.
        let early = oracle.check_drain(queue, 7, filter(part), at(900));
        early.expect("a message that came late");
        // Another receiver may have it.
        oracle.filtered_receivers.attach(9, queue, part);
        let shared = oracle.check_drain(queue, 7, filter(part), late);
        shared.expect("another receiver");
    }

    #[test]
    fn browser_gets_each_message_once_in_order_and_none_that_is_gone() {
        let mut oracle = with_messages(QUEUE, 4);
        oracle.browsers.attach(9, at(1));
        oracle.browsed(QUEUE, 9, 1).expect("a copy");
        oracle.browsed(QUEUE, 9, 3).expect("a copy");
        assert!(oracle.browsed(QUEUE, 9, 1).is_err(), "shown twice");
        assert!(oracle.browsed(QUEUE, 9, 5).is_err(), "not published");
        let earlier = oracle.browsed(QUEUE, 9, 2);
        assert!(earlier.is_err_and(|error| error.contains("after a later one")));
        let delivered = oracle.delivered(at(2), QUEUE, 7, plain(4));
        delivered.expect("a delivery");
        oracle.settled(at(3), QUEUE, 7, 4, ReceiverOutcome::Accepted);
        oracle.browsed(QUEUE, 9, 4).expect("an old copy");
        oracle.browsers.attach(10, at(5_000));
        let gone = oracle.browsed(QUEUE, 10, 4);
        assert!(gone.is_err_and(|error| error.contains("which was settled")));
    }

    #[test]
    fn annotation_survives() {
        let mut oracle = with_messages(QUEUE, 1);
        oracle
            .delivered(at(1), QUEUE, 7, plain(1))
            .expect("a publish");
        let outcome = ReceiverOutcome::Modified {
            delivery_failed: false,
            undeliverable_here: false,
            value: 5,
        };
        oracle.settled(at(2), QUEUE, 7, 1, outcome);
        assert!(oracle.delivered(at(2), QUEUE, 7, plain(1)).is_err());
    }

    #[test]
    fn single_active_consumer_gets_messages_alone_and_in_order() {
        let queue = Amqp10Queue::SingleActive;
        let mut oracle = with_messages(queue, 3);
        oracle
            .delivered(at(1), queue, 7, plain(1))
            .expect("the first");
        oracle
            .delivered(at(2), queue, 7, plain(3))
            .expect("a later one");
        let out_of_order = oracle.delivered(at(4), queue, 7, plain(2));
        assert!(out_of_order.is_err_and(|error| error.contains("after a later one")));
        let second = oracle.delivered(at(5), queue, 8, plain(2));
        assert!(second.is_err_and(|error| error.contains("active consumer is 7")));
        oracle.receiver_ended(at(6), 8, true);
        oracle.returned(at(6), queue, 7, 1);
        oracle.returned(at(6), queue, 7, 3);
        oracle
            .delivered(at(7), queue, 9, plain(3))
            .expect("a return");
        oracle
            .delivered(at(8), queue, 9, plain(1))
            .expect("a return");
    }
}
