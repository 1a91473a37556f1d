//! Acknowledgement timeouts of consumers (`consumer_timeout`, `x-consumer-timeout`).
//!
//! Only the leader measures them, and it logs the end of a consumer's time. The replicated state has no times of
//! deliveries, so a new leader counts anew. The leader looks at the consumers at intervals: a delivery costs nothing.

use super::command::Command;
use super::leader::QuorumQueue;
use crate::checkout::Consumer;
use crate::{ConsumerId, SessionId};
use env::Time;
use env::planted::{self, Bug};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The argument with which a consumer sets its own timeout, in milliseconds.
const ARGUMENT: &str = "x-consumer-timeout";
/// Checks in the time of the shortest timeout.
const CHECKS: u32 = 8;
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// The timeout of consumers whose queue does not set one. Clones share it, so that it can change while queues exist.
#[derive(Clone, Debug)]
pub struct DefaultTimeout(Arc<AtomicU64>);

/// There is no timeout.
const NONE: u64 = u64::MAX;

impl Default for DefaultTimeout {
    /// No timeout.
    fn default() -> DefaultTimeout {
        DefaultTimeout::new(None)
    }
}

impl DefaultTimeout {
    /// A timeout in milliseconds. None: there is none.
    pub fn new(ms: Option<u64>) -> DefaultTimeout {
        DefaultTimeout(Arc::new(AtomicU64::new(ms.unwrap_or(NONE))))
    }

    /// Changes the timeout.
    pub fn set(&self, ms: Option<u64>) {
        self.0.store(ms.unwrap_or(NONE), Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|ms| *ms != NONE)
    }
}

/// Timeouts of a queue's consumers.
#[derive(Clone, Debug, Default)]
pub struct ConsumerTimeouts {
    /// The cluster has the feature flag. Without it the queue ends no consumer.
    pub is_enabled: bool,
    /// The timeout of the queue in milliseconds. None: the default applies.
    pub queue_ms: Option<u64>,
    /// The timeout of other queues.
    pub default: DefaultTimeout,
}

impl ConsumerTimeouts {
    fn of<I>(&self, consumer: &Consumer<I>) -> Option<Duration> {
        let own = consumer.spec.arguments.get(ARGUMENT);
        let own = own.and_then(|value| u64::try_from(value.as_integer()?).ok());
        let ms = own.or(self.queue_ms).or_else(|| self.default.get());
        ms.map(Duration::from_millis)
    }
}

/// Send times of a consumer's unsettled deliveries, to the precision of the checks.
#[derive(Debug, Default)]
struct Watch {
    /// Deliveries with a lower id had been made at this time. Both ascend.
    marks: VecDeque<(u64, Time)>,
}

impl Watch {
    /// The last delivery that was made at least this long ago. `None`: the oldest unsettled one is younger.
    fn overdue(&mut self, oldest: u64, now: Time, timeout: Duration) -> Option<u64> {
        while self.marks.front().is_some_and(|(id, _)| *id <= oldest) {
            self.marks.pop_front();
        }
        let overdue = |(_, at): &&(u64, Time)| now.since(*at) >= timeout;
        let (next, _) = self.marks.iter().take_while(overdue).last()?;
        Some(next - 1)
    }

    /// Records that deliveries below this id have been made.
    fn mark(&mut self, next_id: u64, now: Time, timeout: Duration) {
        let is_due = self.marks.back().is_none_or(|(id, at)| {
            // So that their number is limited, whatever the interval is.
            *id < next_id && now.since(*at) >= timeout / (2 * CHECKS)
        });
        if is_due {
            self.marks.push_back((next_id, now));
        }
    }
}

/// The leader's view of the consumers' time.
#[derive(Debug, Default)]
pub(super) struct TimeoutWatches {
    pub timeouts: ConsumerTimeouts,
    /// By the consumer's number in the queue.
    watches: BTreeMap<u64, Watch>,
    /// When the consumers are checked next. `None`: there are no unsettled deliveries.
    pub next_check: Option<Time>,
}

impl TimeoutWatches {
    /// Forgets all times, as this member begins or ceases to lead.
    pub(super) fn reset(&mut self) {
        self.watches.clear();
        self.next_check = None;
    }
}

/// Returns true if the time of a consumer is limited. Sessions that outlive their connections settle when their client
/// is back, and deliveries without acknowledgement are settled as they are sent.
fn is_timed<I>(consumer: &Consumer<I>) -> bool {
    !consumer.uncounted && !consumer.lasting && !consumer.succeeded && !consumer.out.is_empty()
}

impl QuorumQueue {
    /// Sets the timeouts of consumers.
    pub fn set_consumer_timeouts(&mut self, timeouts: ConsumerTimeouts) {
        self.watches.timeouts = timeouts;
        // A shorter one may be due earlier.
        self.watches.next_check = None;
    }

    /// Schedules the first check of the consumers once there are unsettled deliveries.
    pub(super) fn schedule_timeouts(&mut self, now: Time) {
        let is_idle = self.watches.next_check.is_none() && self.machine.checkout.out > 0;
        if is_idle && self.leads && self.watches.timeouts.is_enabled {
            // Deliveries of this turn are marked at once.
            self.check_timeouts(now);
        }
    }

    /// Ends the consumers whose oldest unsettled delivery is older than their timeout.
    pub(super) fn check_timeouts(&mut self, now: Time) {
        self.watches.next_check = None;
        if !self.leads || !self.caught_up || !self.watches.timeouts.is_enabled {
            return;
        }
        let consumers = &self.machine.checkout.consumers;
        let mut overdue: Vec<(SessionId, ConsumerId, u64)> = Vec::new();
        let mut shortest: Option<Duration> = None;
        let watches = &mut self.watches;
        watches.watches.retain(|n, _| consumers.contains_key(n));
        for (number, consumer) in consumers.iter().filter(|(_, c)| is_timed(c)) {
            let Some(timeout) = watches.timeouts.of(consumer) else {
                continue;
            };
            let Some((oldest, _)) = consumer.out.iter().next() else {
                continue;
            };
            shortest = Some(shortest.map_or(timeout, |shortest| shortest.min(timeout)));
            let watch = watches.watches.entry(*number).or_default();
            match watch.overdue(oldest, now, timeout) {
                Some(up_to) if !planted::is(Bug::TimeoutForgotten) => {
                    overdue.push((consumer.session, consumer.id, up_to));
                }
                _ => watch.mark(consumer.next_id, now, timeout),
            }
        }
        if let Some(shortest) = shortest {
            let interval = (shortest / CHECKS).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
            watches.next_check = Some(now + interval);
        } else if self.machine.checkout.out > 0 {
            watches.next_check = Some(now + LONGEST_INTERVAL);
        }
        for (session, consumer, up_to) in overdue {
            self.propose(&Command::ConsumerTimedOut {
                session,
                consumer,
                up_to,
            });
        }
    }
}
