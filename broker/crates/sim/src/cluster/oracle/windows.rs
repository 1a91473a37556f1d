//! Purges and deletions of queues.

use super::{MAX_DELIVERY_DELAY, Oracle, QueueTreatment, TrackedMessage};
use env::Time;

/// A purge or deletion. It may remove the messages that were sent before `until` and reached no client after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub queue: usize,
    /// It also removes messages that clients have, because the queue is deleted.
    pub deletes: bool,
    /// When it was requested.
    pub opened: Time,
    /// Until when faults before its end may have effects.
    pub faults_until: Time,
    /// `None` while it is not known to be carried out.
    pub until: Option<Time>,
    /// A deletion that a node may not have learnt of. That node's publishes to the deleted queue are lost and
    /// confirmed, like any publish to a queue that is deleted meanwhile. Ends when faults have no more effects.
    pub may_be_unknown: bool,
}

/// Identifies a purge or deletion that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowId(usize);

impl TrackedMessage {
    /// Whether a client had the message all the time. A purge removes only ready messages.
    pub(super) fn was_held_through(&self, window: &Window) -> bool {
        let (Some(last_delivered), Some(requeued), Some(until)) =
            (self.last_delivered, self.requeued, window.until)
        else {
            return false;
        };
        window.faults_until < last_delivered
            && last_delivered <= window.opened
            && until <= requeued.at
    }
}

impl Oracle {
    pub(crate) fn window_opened(&mut self, now: Time, queue: usize) -> WindowId {
        let queue_plan = self.queues.get(queue);
        let deletes = queue_plan.is_some_and(|q| q.treatment == QueueTreatment::Recreated);
        self.windows.push(Window {
            queue,
            deletes,
            opened: now,
            faults_until: now,
            until: None,
            may_be_unknown: false,
        });
        WindowId(self.windows.len() - 1)
    }

    /// A classic queue was lost with its machine, and the operator deletes it.
    pub(crate) fn queue_lost(&mut self, now: Time, queue: usize) -> WindowId {
        let window = self.window_opened(now, queue);
        if let Some(window) = self.windows.get_mut(window.0) {
            window.deletes = true;
        }
        window
    }

    /// The purge or deletion was carried out.
    pub(crate) fn window_closed(&mut self, now: Time, window: WindowId) {
        let faults_until = self.faults_until;
        if let Some(window) = self.windows.get_mut(window.0) {
            window.may_be_unknown = window.deletes && faults_until >= now;
            // Other nodes learn of a deletion shortly after its answer.
            let known_everywhere = match window.deletes {
                true => now + MAX_DELIVERY_DELAY,
                false => now,
            };
            window.until = Some(if window.may_be_unknown {
                faults_until
            } else {
                known_everywhere
            });
            window.faults_until = faults_until;
        }
    }
}
