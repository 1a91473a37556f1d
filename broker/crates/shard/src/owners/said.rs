//! What queues say to sessions, each under its own name.

use metadata::QueueId;
use queue::{Event, Output, SessionId};

#[derive(Default)]
pub struct Said {
    out: Output,
    events: Vec<(SessionId, QueueId, Event)>,
    gone: Option<String>,
}

impl Said {
    /// Whatever `f` puts out is said by this queue. There is no other way to an output: what one queue left there would go out
    /// under the next one's name, and confirm messages that it does not have.
    pub fn by<R>(&mut self, queue: QueueId, f: impl FnOnce(&mut Output) -> R) -> R {
        let result = f(&mut self.out);
        for addressed in self.out.events.drain(..) {
            self.events
                .push((addressed.session, queue, addressed.event));
        }
        for fault in self.out.faults.drain(..) {
            tracing::error!(event = "queue_fault", queue = queue.0, fault);
        }
        if let Some(gone) = self.out.gone.take() {
            self.gone
                .get_or_insert_with(|| format!("queue {}: {gone}", queue.0));
        }
        result
    }

    /// Files of a queue are gone: this node has to end.
    pub fn take_gone(&mut self) -> Option<String> {
        self.gone.take()
    }

    pub fn take(&mut self) -> Vec<(SessionId, QueueId, Event)> {
        std::mem::take(&mut self.events)
    }
}
