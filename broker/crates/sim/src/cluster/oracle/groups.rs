//! Checks of message groups: one consumer at a time, and the order of each group.

use super::super::tracked_message::MessageId;
use super::{
    DELIVERY_LIMIT, DoubleDelivery, Holder, MAX_DELIVERY_DELAY, MessageFate, Oracle, QueueTreatment,
};
use env::Time;

impl Oracle {
    /// The group of a message in this queue.
    pub(super) fn group_of(&self, id: MessageId, queue: usize) -> Option<u64> {
        match self.queues.get(queue)?.treatment {
            QueueTreatment::Grouped => id.group(),
            _ => None,
        }
    }

    /// Checks a delivery of a message of a group, after it was recorded.
    pub(super) fn check_group(
        &mut self,
        now: Time,
        id: MessageId,
        group: (usize, u64),
        to: Holder,
        redelivered: bool,
    ) -> Result<(), String> {
        self.note_other_owners(now, id, group, to);
        if redelivered {
            return Ok(());
        }
        self.check_requeued_of_group(now, id, group)?;
        self.check_group_order(now, id, group)
    }

    /// Records the messages of the group that another consumer has. The broker may have ended its channel without the client
    /// knowing that yet, as with [`DoubleDelivery`].
    fn note_other_owners(&mut self, now: Time, got: MessageId, group: (usize, u64), to: Holder) {
        let all = self.groups.get(&group).map_or(&[][..], Vec::as_slice);
        for id in all {
            let Some(message) = self.messages.get(id) else {
                continue;
            };
            if let MessageFate::Delivered(out, since) = message.fate
                && out.to != to
                && *id != got
                && self.faults_until < since
            {
                self.double_deliveries.push(DoubleDelivery {
                    id: *id,
                    got,
                    from: out.to,
                    at: now,
                });
            }
        }
    }

    /// A message that a client returned comes before messages of its group that no client had.
    fn check_requeued_of_group(
        &self,
        now: Time,
        new: MessageId,
        group: (usize, u64),
    ) -> Result<(), String> {
        let all = self.groups.get(&group).map_or(&[][..], Vec::as_slice);
        for id in all {
            let Some(message) = self.messages.get(id) else {
                continue;
            };
            let is_dead = message.attempts + 1 >= DELIVERY_LIMIT;
            let (MessageFate::Queued, Some(requeued), false) =
                (message.fate, message.requeued, is_dead)
            else {
                continue;
            };
            let is_late = |known: Time| known + MAX_DELIVERY_DELAY < now;
            if requeued.known.is_some_and(is_late) && self.faults_until < requeued.at {
                return Err(format!(
                    "message {id:?} was given back at {:?} and came after {new:?} of its group, which was new",
                    requeued.at
                ));
            }
        }
        Ok(())
    }

    /// First deliveries of a stream, group and priority level come in the order of their publishes, whoever gets them: a
    /// consumer has settled or returned all earlier ones before another one gets the group.
    fn check_group_order(
        &mut self,
        now: Time,
        id: MessageId,
        (queue, group): (usize, u64),
    ) -> Result<(), String> {
        let key = (queue, group, id.stream(), id.level());
        let last = self.group_order.insert(key, (id.number(), now));
        match last {
            // After a fault a delivery may arrive that was on its way to a client of a node that was given up.
            Some((before, at)) if before > id.number() && self.faults_until < at => Err(format!(
                "message {id:?} came after number {before} of its stream, which is of the same group"
            )),
            Some((before, at)) if before > id.number() => {
                self.group_order.insert(key, (before, at));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
