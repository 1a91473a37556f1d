//! Receivers with filters. The messages of a queue have parts, and each receiver takes the messages of one part.

use super::Amqp10Queue;
use codec_amqp10::{Symbol, Value, encode_described, map};
use env::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Parts of the messages of a queue.
pub(super) const PARTS: u64 = 2;
/// The application property with the part of a message.
pub(super) const PROPERTY: &str = "part";
/// The part whose receivers drain the queue first after the faults, while those of the other parts grant no credit.
pub(super) const FIRST_PART: u64 = 0;

/// The language of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterLanguage {
    Selector,
    Sql,
}

/// A filter that the messages of one part satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartFilter {
    pub part: u64,
    pub language: FilterLanguage,
}

impl PartFilter {
    /// The filter of a source: an encoded map.
    pub(super) fn encode(self) -> Vec<u8> {
        let (descriptor, expression) = match self.language {
            FilterLanguage::Selector => (
                "apache.org:selector-filter:string",
                format!("{PROPERTY} = {}", self.part),
            ),
            FilterLanguage::Sql => (
                "amqp:sql-filter",
                format!("application_properties.{PROPERTY} = {}", self.part),
            ),
        };
        let mut encoded = Vec::new();
        let mut filters = map(&mut encoded);
        filters.push(&Symbol::from_static("of-part"));
        filters.push_with(|out| {
            let descriptor = Symbol::from_static(descriptor);
            encode_described(out, descriptor, &Value::String(&expression));
        });
        filters.finish();
        encoded
    }
}

/// A receiver with a filter.
struct FilteredReceiver {
    queue: Amqp10Queue,
    part: u64,
    /// When its link ended.
    ended: Option<Time>,
}

/// All receivers with filters, by number.
#[derive(Default)]
pub(super) struct FilteredReceivers {
    receivers: BTreeMap<u64, FilteredReceiver>,
    /// When the faults had ended.
    faults_ended: Option<Time>,
    /// Queues that a receiver of [`FIRST_PART`] has drained after the faults.
    drained: BTreeSet<Amqp10Queue>,
}

impl FilteredReceivers {
    /// A receiver sends its attach.
    pub(super) fn attach(&mut self, receiver: u64, queue: Amqp10Queue, part: u64) {
        let receiver_state = FilteredReceiver {
            queue,
            part,
            ended: None,
        };
        self.receivers.insert(receiver, receiver_state);
    }

    /// The link of a receiver ends.
    pub(super) fn end(&mut self, receiver: u64, now: Time) {
        if let Some(receiver) = self.receivers.get_mut(&receiver) {
            receiver.ended = Some(now);
        }
    }

    /// Returns true if no other receiver took messages of the same part from the queue since then.
    pub(super) fn is_alone(&self, receiver: u64, since: Time) -> bool {
        let Some(own) = self.receivers.get(&receiver) else {
            return false;
        };
        self.receivers.iter().all(|(number, other)| {
            *number == receiver
                || (other.queue, other.part) != (own.queue, own.part)
                || other.ended.is_some_and(|ended| ended < since)
        })
    }

    /// The faults have ended.
    pub(super) fn end_faults(&mut self, now: Time) {
        self.faults_ended.get_or_insert(now);
    }

    /// A drain, granted at this time, found no further message.
    pub(super) fn finish_drain(&mut self, queue: Amqp10Queue, filter: PartFilter, drain_at: Time) {
        let is_late = self.faults_ended.is_some_and(|ended| ended <= drain_at);
        if is_late && filter.part == FIRST_PART {
            self.drained.insert(queue);
        }
    }

    /// Returns true while receivers of [`FIRST_PART`] must drain the queue, and those of other parts must not grant credit.
    pub(super) fn awaits_last_drain(&self, queue: Amqp10Queue) -> bool {
        queue.is_filtered() && self.faults_ended.is_some() && !self.drained.contains(&queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn receiver_is_alone_when_the_others_of_its_part_have_ended() {
        let queue = Amqp10Queue::FilteredQuorum;
        let mut receivers = FilteredReceivers::default();
        receivers.attach(1, queue, 0);
        receivers.attach(2, queue, 1);
        receivers.attach(3, Amqp10Queue::FilteredClassic, 0);
        assert!(receivers.is_alone(1, at(5)));
        receivers.attach(4, queue, 0);
        assert!(!receivers.is_alone(1, at(5)));
        receivers.end(4, at(6));
        assert!(!receivers.is_alone(1, at(5)));
        assert!(receivers.is_alone(1, at(7)));
    }

    #[test]
    fn other_parts_wait_for_a_drain_after_the_faults() {
        let queue = Amqp10Queue::FilteredQuorum;
        let filter = |part| PartFilter {
            part,
            language: FilterLanguage::Sql,
        };
        let mut receivers = FilteredReceivers::default();
        assert!(!receivers.awaits_last_drain(queue));
        receivers.end_faults(at(5));
        receivers.finish_drain(queue, filter(FIRST_PART), at(4));
        receivers.finish_drain(queue, filter(FIRST_PART + 1), at(6));
        assert!(receivers.awaits_last_drain(queue));
        assert!(!receivers.awaits_last_drain(Amqp10Queue::Quorum));
        receivers.finish_drain(queue, filter(FIRST_PART), at(6));
        assert!(!receivers.awaits_last_drain(queue));
    }
}
