//! Purges and deletions.

use super::{ON_THE_WAY, Oracle, QueueTreatment, TrackedMessage};
use env::Time;

/// A purge or deletion: it may take what was sent before `until` and reached no client after that.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub queue: usize,
    /// It takes also what clients have, for the queue is gone.
    pub deletes: bool,
    /// When it was asked for.
    pub opened: Time,
    /// The last time before its end at which something may have been wrong with net or nodes.
    pub disturbed: Time,
    /// None while nobody knows whether it was carried out.
    pub until: Option<Time>,
    /// A deletion that a node may not have heard of: what that node still sends to the queue it knew is gone with it, and
    /// confirmed, as what is published to any queue while it is deleted. Ends when net and nodes are well.
    pub unheard: bool,
}

/// A number for a purge or deletion that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowId(usize);

impl TrackedMessage {
    /// A client had it all the while: a purge takes what is ready.
    pub fn held_through(&self, window: &Window) -> bool {
        let (Some(last), Some(back), Some(until)) = (self.last, self.back, window.until) else {
            return false;
        };
        window.disturbed < last && last <= window.opened && until <= back.at
    }
}

impl Oracle {
    pub fn opened(&mut self, now: Time, queue: usize) -> WindowId {
        let plan = self.queues.get(queue);
        let deletes = plan.is_some_and(|q| q.character == QueueTreatment::Recreated);
        self.windows.push(Window {
            queue,
            deletes,
            opened: now,
            disturbed: now,
            until: None,
            unheard: false,
        });
        WindowId(self.windows.len() - 1)
    }

    /// A classic queue is gone with its machine, and whoever runs the cluster deletes it.
    pub fn lost(&mut self, now: Time, queue: usize) -> WindowId {
        let window = self.opened(now, queue);
        if let Some(window) = self.windows.get_mut(window.0) {
            window.deletes = true;
        }
        window
    }

    /// It was carried out.
    pub fn closed(&mut self, now: Time, window: WindowId) {
        let disturbed = self.disturbed;
        if let Some(window) = self.windows.get_mut(window.0) {
            window.unheard = window.deletes && disturbed >= now;
            // Other nodes hear of a deletion a moment after the answer to it.
            let heard = match window.deletes {
                true => now + ON_THE_WAY,
                false => now,
            };
            window.until = Some(if window.unheard { disturbed } else { heard });
            window.disturbed = disturbed;
        }
    }
}
