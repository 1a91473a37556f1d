//! Leases of queues that expire when nobody uses them (`x-expires`).
//!
//! Kept by the owner and not replicated: a restart or a new leader begins a lease anew, so a queue may live longer than
//! its time, never shorter.

use env::Time;
use metadata::QueueId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Wait before an expired queue that is still there is to be deleted again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Lease {
    time: Duration,
    /// When it ends; None while the queue is used or not owned here.
    ends: Option<Time>,
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: BTreeMap<QueueId, Lease>,
    due: BTreeSet<(Time, QueueId)>,
}

impl Leases {
    /// The queue's time, None without one. Another time than before begins anew with the next [`note`](Self::note).
    pub(crate) fn set(&mut self, queue: QueueId, expires_ms: Option<u64>) {
        let time = expires_ms.map(Duration::from_millis);
        if self.leases.get(&queue).map(|l| l.time) == time {
            return;
        }
        self.end(queue, None);
        match time {
            Some(time) => {
                let lease = Lease { time, ends: None };
                self.leases.insert(queue, lease);
            }
            None => {
                self.leases.remove(&queue);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether the queue could be expiring: it is owned here and unused.
    pub(crate) fn note(&mut self, queue: QueueId, now: Time, expiring: bool) {
        let Some(lease) = self.leases.get(&queue) else {
            return;
        };
        match (expiring, lease.ends) {
            (true, None) => self.end(queue, Some(now + lease.time)),
            (false, Some(_)) => self.end(queue, None),
            _ => {}
        }
    }

    /// Somebody asked for a message or declared the queue again.
    pub(crate) fn renew(&mut self, queue: QueueId, now: Time) {
        if let Some(lease) = self.leases.get(&queue).filter(|l| l.ends.is_some()) {
            self.end(queue, Some(now + lease.time));
        }
    }

    fn end(&mut self, queue: QueueId, at: Option<Time>) {
        let Some(lease) = self.leases.get_mut(&queue) else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut lease.ends, at) {
            self.due.remove(&(before, queue));
        }
        if let Some(at) = at {
            self.due.insert((at, queue));
        }
    }

    /// A queue whose lease has ended; it comes again after a while if it is still there.
    pub(crate) fn take_ended(&mut self, now: Time) -> Option<QueueId> {
        let (_, queue) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.end(queue, Some(now + AGAIN_AFTER));
        Some(queue)
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: QueueId = QueueId(7);

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_lease_runs_while_the_queue_is_unused_and_is_renewed_by_use() {
        let mut leases = Leases::default();
        leases.note(Q, at(0), true);
        assert!(leases.is_empty() && leases.wake_at().is_none());
        leases.set(Q, Some(100));
        assert_eq!(leases.wake_at(), None, "not owned here");
        leases.note(Q, at(0), true);
        leases.note(Q, at(50), true);
        assert_eq!(leases.wake_at(), Some(at(100)));
        leases.renew(Q, at(60));
        assert_eq!(leases.take_ended(at(159)), None);
        leases.note(Q, at(159), false);
        assert_eq!(leases.wake_at(), None);
        leases.renew(Q, at(500));
        assert_eq!(leases.wake_at(), None, "in use");
        leases.note(Q, at(600), true);
        assert_eq!(leases.take_ended(at(700)), Some(Q));
        assert_eq!(leases.take_ended(at(700)), None);
        assert_eq!(leases.wake_at(), Some(at(700) + AGAIN_AFTER));
    }

    #[test]
    fn another_time_begins_anew_and_none_ends_it() {
        let mut leases = Leases::default();
        leases.set(Q, Some(100));
        leases.note(Q, at(0), true);
        leases.set(Q, Some(100));
        assert_eq!(leases.wake_at(), Some(at(100)), "the same");
        leases.set(Q, Some(30));
        leases.note(Q, at(90), true);
        assert_eq!(leases.wake_at(), Some(at(120)));
        leases.set(Q, None);
        leases.note(Q, at(100), true);
        assert!(leases.is_empty() && leases.wake_at().is_none());
    }
}
