//! The rules for messages of receivers with credit.

use super::CreditQueue;
use super::wire::Outcome;
use env::Time;
use std::collections::BTreeMap;

#[derive(Default)]
struct Published {
    confirmed: bool,
    /// A client has accepted it, and it has not come since.
    accepted: bool,
    /// The last annotation that a client sent, and when.
    sent: Option<(Time, u64)>,
    /// The highest annotation that came with it.
    seen: u64,
}

/// Messages by queue and number.
#[derive(Default)]
pub struct CreditOracle {
    queues: [BTreeMap<u64, Published>; 2],
    next_number: u64,
    next_value: u64,
    pub faults_until: Time,
    /// A machine was replaced: its classic queues and their messages are lost.
    pub has_lost_machines: bool,
    pub deliveries: u64,
    pub drains: u64,
}

impl CreditOracle {
    pub fn calm_since(&self, then: Time) -> bool {
        self.faults_until < then
    }

    fn messages(&mut self, queue: CreditQueue) -> &mut BTreeMap<u64, Published> {
        let [quorum, classic] = &mut self.queues;
        match queue {
            CreditQueue::Quorum => quorum,
            CreditQueue::Classic => classic,
        }
    }

    /// The number of the next message.
    pub fn publish(&mut self, queue: CreditQueue) -> u64 {
        self.next_number += 1;
        let number = self.next_number;
        self.messages(queue).insert(number, Published::default());
        number
    }

    pub fn confirmed(&mut self, queue: CreditQueue, number: u64, confirmed: bool) {
        let message = self.messages(queue).get_mut(&number);
        if let Some(message) = message.filter(|_| confirmed) {
            message.confirmed = true;
        }
    }

    pub fn delivered(&mut self, queue: CreditQueue, number: u64, value: u64) -> Result<(), String> {
        self.deliveries += 1;
        let faults_until = self.faults_until;
        let Some(message) = self.messages(queue).get_mut(&number) else {
            return Err(format!("message {number} of {queue:?} was not published"));
        };
        message.accepted = false;
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
    pub fn next_value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    pub fn settles(&mut self, now: Time, queue: CreditQueue, number: u64, outcome: Outcome) {
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
    pub fn owed(&self) -> Vec<u64> {
        let [quorum, classic] = &self.queues;
        let owed = |(number, message): (&u64, &Published)| {
            (message.confirmed && !message.accepted).then_some(*number)
        };
        let classic = classic.iter().filter(|_| !self.has_lost_machines);
        quorum.iter().chain(classic).filter_map(owed).collect()
    }
}
