//! The rules for messages of receivers with credit.

use super::CreditQueue;
use super::wire::Outcome;
use env::Time;
use std::collections::BTreeMap;

#[derive(Default)]
struct Published {
    confirmed: bool,
    /// A client has accepted it, and it was not delivered since without faults.
    accepted: bool,
    /// Its classic queue may have lost it with a machine, or with the power: classic queues confirm before fsync.
    may_be_lost: bool,
    /// The last annotation that a client sent, and when.
    sent: Option<(Time, u64)>,
    /// The highest annotation that came with it.
    seen: u64,
}

/// Messages by queue and number.
#[derive(Default)]
pub(crate) struct CreditOracle {
    queues: [BTreeMap<u64, Published>; 2],
    next_number: u64,
    next_value: u64,
    pub faults_until: Time,
    pub deliveries: u64,
    pub drains: u64,
}

impl CreditOracle {
    pub(crate) fn calm_since(&self, then: Time) -> bool {
        self.faults_until < then
    }

    fn messages(&mut self, queue: CreditQueue) -> &mut BTreeMap<u64, Published> {
        let [quorum, classic] = &mut self.queues;
        match queue {
            CreditQueue::Quorum => quorum,
            CreditQueue::Classic => classic,
        }
    }

    /// Messages of the classic queue, if this is its name, may be lost from now on.
    pub(crate) fn lost(&mut self, queue: &str) {
        if queue == CreditQueue::Classic.name() {
            self.lost_power();
        }
    }

    /// A machine has lost what was not synced.
    pub(crate) fn lost_power(&mut self) {
        let messages = self.messages(CreditQueue::Classic).values_mut();
        messages.for_each(|message| message.may_be_lost = true);
    }

    /// The number of the next message.
    pub(crate) fn publish(&mut self, queue: CreditQueue) -> u64 {
        self.next_number += 1;
        let number = self.next_number;
        self.messages(queue).insert(number, Published::default());
        number
    }

    pub(crate) fn confirmed(&mut self, queue: CreditQueue, number: u64, confirmed: bool) {
        let message = self.messages(queue).get_mut(&number);
        if let Some(message) = message.filter(|_| confirmed) {
            message.confirmed = true;
        }
    }

    pub(crate) fn delivered(
        &mut self,
        now: Time,
        queue: CreditQueue,
        number: u64,
        value: u64,
    ) -> Result<(), String> {
        self.deliveries += 1;
        let faults_until = self.faults_until;
        let Some(message) = self.messages(queue).get_mut(&number) else {
            return Err(format!("message {number} of {queue:?} was not published"));
        };
        // During faults, the delivery may be older than the acceptance by another client.
        message.accepted &= now <= faults_until;
        let (at, last) = message.sent.unwrap_or_default();
        if value > last || (value > 0 && queue == CreditQueue::Classic) {
            return Err(format!(
                "message {number} of {queue:?} has annotation {value}"
            ));
        }
        // A modification has no effect if its session ended before, or its node was suspected.
        let applied = faults_until < at && queue == CreditQueue::Quorum;
        if value < message.seen || (applied && value < last) {
            return Err(format!(
                "message {number} has lost its annotation: {value}, was {}, sent {last} at {at:?}",
                message.seen
            ));
        }
        message.seen = value;
        Ok(())
    }

    /// A new annotation.
    pub(crate) fn next_value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    pub(crate) fn settles(&mut self, now: Time, queue: CreditQueue, number: u64, outcome: Outcome) {
        let Some(message) = self.messages(queue).get_mut(&number) else {
            return;
        };
        match outcome {
            Outcome::Accepted => message.accepted = true,
            Outcome::Released => {}
            Outcome::Modified { value, .. } => message.sent = Some((now, value)),
        }
    }

    /// Confirmed messages that no client has accepted.
    pub(crate) fn owed(&self) -> Vec<u64> {
        let [quorum, classic] = &self.queues;
        let owed = |(number, message): (&u64, &Published)| {
            let is_owed = message.confirmed && !message.accepted && !message.may_be_lost;
            is_owed.then_some(*number)
        };
        quorum.iter().chain(classic).filter_map(owed).collect()
    }
}
