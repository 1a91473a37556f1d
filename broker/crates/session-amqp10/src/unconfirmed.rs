//! Messages of one publisher link that queues have not answered yet.
//!
//! A message is found by its distance from the oldest one, without hashing. The link's credit bounds the number of
//! messages, because only settled deliveries give new credit.

use queue::{QueueId, RejectReason};
use std::collections::VecDeque;

/// The answer of a queue, or of the routers of MQTT subscriptions, to a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueAnswer {
    Confirmed,
    /// The queue was deleted after the message had been routed to it.
    Deleted,
    Rejected(QueueId, RejectReason),
}

/// The outcome of a publish for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishOutcome {
    Accepted,
    /// No queue has the message.
    Released,
    Rejected(QueueId, RejectReason),
}

#[derive(Clone, Copy, Debug)]
struct UnconfirmedMessage {
    delivery: u32,
    size: u32,
    /// Answers that are missing.
    missing: u32,
    is_settled: bool,
    is_confirmed: bool,
    rejection: Option<(QueueId, RejectReason)>,
}

/// A message that has all of its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledMessage {
    pub delivery: u32,
    pub size: u32,
    /// The client does not want to know the outcome.
    pub is_settled: bool,
    pub outcome: PublishOutcome,
}

#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    /// The number of the oldest message; wraps around.
    first: u32,
    messages: VecDeque<UnconfirmedMessage>,
}

/// Capacity that stays allocated while nothing is in flight.
const KEEP: usize = 64;

impl Unconfirmed {
    /// The number of the next message.
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.messages.len() as u32)
    }

    /// Messages without an answer from every queue.
    pub(crate) fn len(&self) -> usize {
        self.messages
            .iter()
            .filter(|message| message.missing > 0)
            .count()
    }

    /// Bytes of the messages in flight.
    pub(crate) fn bytes(&self) -> usize {
        let in_flight = self.messages.iter().filter(|message| message.missing > 0);
        in_flight.map(|message| message.size as usize).sum()
    }

    /// Records a message that `answers` (at least 1) answers will follow for.
    pub(crate) fn push(&mut self, delivery: u32, is_settled: bool, size: u32, answers: usize) {
        debug_assert!(answers > 0, "a message without queues is settled at once");
        self.messages.push_back(UnconfirmedMessage {
            delivery,
            size,
            missing: u32::try_from(answers).unwrap_or(u32::MAX),
            is_settled,
            is_confirmed: false,
            rejection: None,
        });
    }

    /// Records an answer. Returns None while others are missing, and for unknown numbers.
    pub(crate) fn record_answer(
        &mut self,
        number: u32,
        answer: QueueAnswer,
    ) -> Option<SettledMessage> {
        let at = number.wrapping_sub(self.first) as usize;
        let message = self.messages.get_mut(at)?;
        message.missing = message.missing.checked_sub(1)?;
        match answer {
            QueueAnswer::Confirmed => message.is_confirmed = true,
            QueueAnswer::Deleted => {}
            QueueAnswer::Rejected(queue, why) => message.rejection = Some((queue, why)),
        }
        if message.missing > 0 {
            return None;
        }
        let settled = SettledMessage {
            delivery: message.delivery,
            size: message.size,
            is_settled: message.is_settled,
            outcome: match message.rejection {
                Some((queue, why)) => PublishOutcome::Rejected(queue, why),
                None if message.is_confirmed => PublishOutcome::Accepted,
                None => PublishOutcome::Released,
            },
        };
        while self
            .messages
            .front()
            .is_some_and(|message| message.missing == 0)
        {
            self.messages.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        if self.messages.is_empty() && self.messages.capacity() > KEEP {
            self.messages.shrink_to(KEEP);
        }
        Some(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn outcome_names_the_queue_that_rejected_the_message() {
        let mut messages = Unconfirmed::default();
        messages.push(7, false, 100, 3);
        let rejected = QueueAnswer::Rejected(QueueId(2), RejectReason::MaxLength);
        assert_eq!(messages.record_answer(0, QueueAnswer::Confirmed), None);
        assert_eq!(messages.record_answer(0, rejected), None);
        let settled = messages.record_answer(0, QueueAnswer::Deleted).unwrap();
        let outcome = PublishOutcome::Rejected(QueueId(2), RejectReason::MaxLength);
        assert_eq!((settled.delivery, settled.outcome), (7, outcome));
        assert_eq!((messages.next(), messages.bytes()), (1, 0));
    }

    #[test]
    fn message_is_released_if_all_of_its_queues_were_deleted() {
        let mut messages = Unconfirmed::default();
        messages.push(0, false, 1, 2);
        messages.record_answer(0, QueueAnswer::Deleted);
        let settled = messages.record_answer(0, QueueAnswer::Deleted).unwrap();
        assert_eq!(settled.outcome, PublishOutcome::Released);
        messages.push(1, false, 1, 2);
        messages.record_answer(1, QueueAnswer::Deleted);
        let settled = messages.record_answer(1, QueueAnswer::Confirmed).unwrap();
        assert_eq!(settled.outcome, PublishOutcome::Accepted);
    }

    proptest! {
        #[test]
        fn each_message_is_settled_once_after_its_last_answer(
            start: u32,
            script in prop::collection::vec((0usize..4, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut messages = Unconfirmed { first: start, ..Unconfirmed::default() };
            let mut pending: Vec<(u32, usize)> = Vec::new();
            for (answers, pick) in script {
                if answers > 0 || pending.is_empty() {
                    let number = messages.next();
                    messages.push(number, false, 1, answers.max(1));
                    pending.push((number, answers.max(1)));
                } else {
                    let at = pick.index(pending.len());
                    pending[at].1 -= 1;
                    let (number, missing) = pending[at];
                    let settled = messages.record_answer(number, QueueAnswer::Confirmed);
                    prop_assert_eq!(settled.map(|s| s.delivery), (missing == 0).then_some(number));
                    if missing == 0 {
                        pending.swap_remove(at);
                        prop_assert_eq!(messages.record_answer(number, QueueAnswer::Confirmed), None);
                    }
                }
                prop_assert_eq!((messages.len(), messages.bytes()), (pending.len(), pending.len()));
            }
        }
    }
}
