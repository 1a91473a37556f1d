//! What queues say to sessions, each under its own name.

use metadata::QueueId;
use queue::{DeathCounts, QueueEvent, QueueOutput, SessionId};

/// Places for events that stay allocated.
const KEEP: usize = 1024;

#[derive(Default)]
pub(super) struct EventBuffer {
    /// What `speaker` has said since another one spoke: said in one go, deliveries are one event.
    out: QueueOutput,
    speaker: QueueId,
    events: Vec<(SessionId, QueueId, QueueEvent)>,
    gone: Option<String>,
    deaths: DeathCounts,
}

impl EventBuffer {
    /// Whatever `f` puts out is said by this queue. There is no other way to an output: what one queue left there would go out
    /// under the next one's name, and confirm messages that it does not have.
    pub(super) fn by<R>(&mut self, queue: QueueId, f: impl FnOnce(&mut QueueOutput) -> R) -> R {
        if self.speaker != queue {
            self.hear();
            self.speaker = queue;
        }
        f(&mut self.out)
    }

    /// Takes down what the speaker has said.
    #[inline]
    fn hear(&mut self) {
        if !self.out.is_empty() {
            self.take_down();
        }
    }

    fn take_down(&mut self) {
        let queue = self.speaker;
        for addressed in self.out.events.drain(..) {
            self.events
                .push((addressed.session, queue, addressed.event));
        }
        for fault in self.out.faults.drain(..) {
            tracing::error!(event = "queue_fault", queue = queue.0, fault);
        }
        if let Some(deaths) = self.out.deaths.take() {
            self.deaths.add(&deaths);
        }
        if let Some(gone) = self.out.gone.take() {
            self.gone
                .get_or_insert_with(|| format!("queue {}: {gone}", queue.0));
        }
    }

    /// Messages that died in queues that are led or live here, or did, since the shard began.
    pub(super) fn deaths(&self) -> &DeathCounts {
        &self.deaths
    }

    /// Returns true if files of a queue are gone.
    #[inline]
    pub(super) fn has_gone(&self) -> bool {
        self.gone.is_some() || self.out.gone.is_some()
    }

    /// Files of a queue are gone: this node has to end.
    pub(super) fn take_gone(&mut self) -> Option<String> {
        self.hear();
        self.gone.take()
    }

    pub(super) fn has_events(&mut self) -> bool {
        self.hear();
        !self.events.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<(SessionId, QueueId, QueueEvent)> {
        self.hear();
        std::mem::take(&mut self.events)
    }

    /// What [`take`](Self::take) gave, once it is empty: its room is used again.
    pub(super) fn reuse(&mut self, events: Vec<(SessionId, QueueId, QueueEvent)>) {
        if self.events.is_empty() && events.capacity() <= KEEP {
            self.events = events;
        }
    }
}
