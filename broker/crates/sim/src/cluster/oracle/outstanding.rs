//! Messages that the cluster still owes, and explanations for messages that do not come.

use super::super::tracked_message::MessageId;
use super::{DELIVERY_LIMIT, MessageFate, Oracle, PublishOutcome, QueueTreatment, TrackedMessage};
use env::Time;

impl Oracle {
    /// Number of the messages that the cluster still owes, and some of them.
    pub(crate) fn owed(&self, now: Time) -> (u64, Vec<(MessageId, String)>) {
        let (mut count, mut examples) = (0, Vec::new());
        for (id, message) in &self.messages {
            let is_open = match message.fate {
                MessageFate::Queued
                | MessageFate::Delivered(..)
                | MessageFate::Rejected(..)
                | MessageFate::DeadLettered => true,
                MessageFate::Settled(..)
                | MessageFate::Uncertain
                | MessageFate::SettlementKnown(_) => false,
            };
            let is_owed = message.outcome == PublishOutcome::Confirmed && is_open;
            if is_owed && !self.loss_is_explained(now, *id, message) {
                count += 1;
                if examples.len() < 5 {
                    let name = self.queues.get(message.queue).map(|q| q.name.clone());
                    examples.push((*id, format!("{} {message:?}", name.unwrap_or_default())));
                }
            }
        }
        (count, examples)
    }

    /// Whether an operation on its queue explains the loss of the message.
    fn loss_is_explained(&self, now: Time, id: MessageId, message: &TrackedMessage) -> bool {
        let Some(queue) = self.queues.get(message.queue) else {
            return false;
        };
        let is_volatile = !queue.quorum && !id.is_persistent();
        if is_volatile && self.machine_ends.values().any(|end| *end >= message.sent) {
            return true;
        }
        if !queue.quorum && self.last_power_loss >= message.sent {
            return true;
        }
        let is_dead_lettering = queue.treatment == QueueTreatment::DeadLettering;
        if queue.quorum && !is_dead_lettering && message.attempts + 1 >= DELIVERY_LIMIT {
            return true;
        }
        let mut windows = self.windows.iter().filter(|w| w.queue == message.queue);
        let is_removed = windows.any(|w| {
            let until = w.until.unwrap_or(now);
            let is_affected = message.sent <= until
                && message
                    .last_delivered
                    .is_none_or(|last_delivered| last_delivered <= until);
            is_affected && (w.deletes || !message.was_held_through(w))
        });
        if is_removed {
            return true;
        }
        match queue.treatment {
            QueueTreatment::Plain
            | QueueTreatment::RejectPublish(_)
            | QueueTreatment::DeadLettering
            | QueueTreatment::DelayedRetry(_)
            | QueueTreatment::ConsumerTimeout(_)
            | QueueTreatment::Scheduled(_)
            | QueueTreatment::Deduplicated
            | QueueTreatment::Grouped
            | QueueTreatment::Purged
            | QueueTreatment::Recreated => false,
            QueueTreatment::MaxLength(limit) => self.max_queued_with(message) > limit,
            QueueTreatment::MessageTtl(ttl) => {
                let ttl = id.own_ttl(ttl).unwrap_or(ttl);
                self.clocks_have_jumped || now.since(message.sent) >= ttl
            }
        }
    }

    /// Maximum number of messages that its queue may have had at the same time, including this one.
    fn max_queued_with(&self, message: &TrackedMessage) -> u64 {
        let in_queue = self
            .messages
            .values()
            .filter(|other| other.queue == message.queue);
        in_queue.filter(|other| !matches!(other.fate, MessageFate::SettlementKnown(at) if at < message.sent))
            .count() as u64
    }
}
