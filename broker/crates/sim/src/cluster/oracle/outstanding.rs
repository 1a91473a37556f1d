//! What the cluster still owes, and what may account for a message that does not come.

use super::super::tracked_message::MessageId;
use super::{DELIVERY_LIMIT, MessageFate, Oracle, PublishOutcome, QueueTreatment, TrackedMessage};
use env::Time;

impl Oracle {
    /// Messages that the cluster still owes, and how many there are.
    pub fn owed(&self, now: Time) -> (u64, Vec<(MessageId, String)>) {
        let (mut count, mut some) = (0, Vec::new());
        for (id, message) in &self.messages {
            let open = match message.fate {
                MessageFate::Waits
                | MessageFate::Out(..)
                | MessageFate::Condemned(..)
                | MessageFate::Dead => true,
                MessageFate::Settled(..) | MessageFate::Doubtful | MessageFate::Gone(_) => false,
            };
            let owed = message.outcome == PublishOutcome::Confirmed && open;
            if owed && !self.excused(now, *id, message) {
                count += 1;
                if some.len() < 5 {
                    let name = self.queues.get(message.queue).map(|q| q.name.clone());
                    some.push((*id, format!("{} {message:?}", name.unwrap_or_default())));
                }
            }
        }
        (count, some)
    }

    /// Whether something that was done to its queue may account for it.
    fn excused(&self, now: Time, id: MessageId, message: &TrackedMessage) -> bool {
        let Some(queue) = self.queues.get(message.queue) else {
            return false;
        };
        let lost = !queue.quorum && !id.persistent();
        if lost && self.ended.values().any(|end| *end >= message.sent) {
            return true;
        }
        if !queue.quorum && self.powerless >= message.sent {
            return true;
        }
        let mortal = queue.character == QueueTreatment::Mortal;
        if queue.quorum && !mortal && message.attempts + 1 >= DELIVERY_LIMIT {
            return true;
        }
        let mut windows = self.windows.iter().filter(|w| w.queue == message.queue);
        let taken = windows.any(|w| {
            let until = w.until.unwrap_or(now);
            let there = message.sent <= until && message.last.is_none_or(|last| last <= until);
            there && (w.deletes || !message.held_through(w))
        });
        if taken {
            return true;
        }
        match queue.character {
            QueueTreatment::Plain
            | QueueTreatment::Refusing(_)
            | QueueTreatment::Mortal
            | QueueTreatment::Purged
            | QueueTreatment::Recreated => false,
            QueueTreatment::Short(most) => self.could_be_with(message) > most,
            QueueTreatment::Brief(machine_run) => {
                self.clocks_jump || now.since(message.sent) >= machine_run
            }
        }
    }

    /// Messages, this one among them, that its queue may have had at the same time.
    fn could_be_with(&self, message: &TrackedMessage) -> u64 {
        let same = self.messages.values().filter(|l| l.queue == message.queue);
        same.filter(|l| !matches!(l.fate, MessageFate::Gone(at) if at < message.sent))
            .count() as u64
    }
}
