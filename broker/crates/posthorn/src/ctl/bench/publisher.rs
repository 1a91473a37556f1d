//! A publisher with publisher confirms.

use super::connection::{BenchConnection, Confirm};
use super::latency::LatencyHistogram;
use super::{GRACE, Options, Totals};
use crate::ctl::failure::Failure;
use env::{Clock as _, Time};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most messages that are written at once.
const BATCH: usize = 64;

/// Publishes until the end, then waits for the confirms.
pub(super) fn publish(
    mut connection: BenchConnection,
    totals: &Totals,
    options: &Options,
    queue: &str,
) -> Result<(), Failure> {
    connection.select_confirms()?;
    let window = usize::from(options.in_flight);
    let mut latency = LatencyHistogram::default();
    let mut unconfirmed = Unconfirmed::default();
    let mut pace = Pace::new(totals.clock.now(), options);
    let size = options.size as usize;
    loop {
        let now = totals.clock.now();
        if totals.has_failed() || now >= totals.end + GRACE {
            break;
        }
        let is_over = now >= totals.end;
        if is_over && unconfirmed.times.is_empty() {
            break;
        }
        let room = window.saturating_sub(unconfirmed.count).min(BATCH);
        let count = match is_over {
            true => 0,
            false => pace.take(now, room),
        };
        if count > 0 {
            let now = totals.clock.now();
            connection.publish(queue, size, now, count)?;
            unconfirmed.push(now, count);
            totals.published.fetch_add(count as u64, Ordering::Relaxed);
        }
        // A publisher that has room looks for confirms without waiting for them.
        let may_wait = count == 0;
        for confirm in connection.confirms(may_wait)? {
            let now = totals.clock.now();
            let counter = match confirm.is_accepted {
                true => &totals.confirmed,
                false => &totals.rejected,
            };
            let settled = unconfirmed.settle(&confirm, |sent| latency.add(now.since(sent)));
            counter.fetch_add(settled, Ordering::Relaxed);
        }
    }
    let count = unconfirmed.count;
    connection.close()?;
    let mut all = totals
        .confirm_latency
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    all.merge(&latency);
    drop(all);
    if count > 0 && !totals.has_failed() {
        return Err(Failure::Unfulfilled {
            message: format!(
                "{count} messages were not confirmed within {} seconds",
                GRACE.as_secs()
            ),
            remedy: "see the state of the node with `posthorn ctl doctor`",
        });
    }
    Ok(())
}

/// Messages without a confirm.
#[derive(Debug, Default)]
struct Unconfirmed {
    /// The sequence number before the first entry of `times`.
    base: u64,
    /// The time of each message, by sequence number. None: it is confirmed.
    times: VecDeque<Option<Time>>,
    count: usize,
}

impl Unconfirmed {
    fn push(&mut self, at: Time, count: usize) {
        self.times.extend(std::iter::repeat_n(Some(at), count));
        self.count += count;
    }

    /// Settles the messages of a confirm. Returns their number.
    fn settle(&mut self, confirm: &Confirm, mut settled: impl FnMut(Time)) -> u64 {
        let last = confirm.number.saturating_sub(self.base);
        let last = usize::try_from(last)
            .unwrap_or(usize::MAX)
            .min(self.times.len());
        let first = match confirm.is_multiple {
            true => 0,
            false => last.saturating_sub(1),
        };
        let mut count = 0;
        for time in self.times.range_mut(first..last) {
            if let Some(sent) = time.take() {
                settled(sent);
                count += 1;
            }
        }
        while self.times.front().is_some_and(Option::is_none) {
            self.times.pop_front();
            self.base += 1;
        }
        self.count -= count as usize;
        count
    }
}

/// The pace of a publisher.
#[derive(Debug)]
struct Pace {
    /// Time between two messages. None: as fast as possible.
    interval: Option<Duration>,
    next: Time,
}

impl Pace {
    fn new(now: Time, options: &Options) -> Pace {
        let seconds = |rate: u64| f64::from(options.publishers) / rate as f64;
        Pace {
            interval: options
                .rate
                .map(|rate| Duration::from_secs_f64(seconds(rate))),
            next: now,
        }
    }

    /// Number of messages that are due, at most `room`.
    fn take(&mut self, now: Time, room: usize) -> usize {
        let Some(interval) = self.interval else {
            return room;
        };
        let mut count = 0;
        while count < room && self.next <= now {
            self.next = self.next + interval;
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirm(number: u64, is_multiple: bool) -> Confirm {
        Confirm {
            number,
            is_multiple,
            is_accepted: true,
        }
    }

    #[test]
    fn each_message_is_confirmed_once() {
        let mut unconfirmed = Unconfirmed::default();
        unconfirmed.push(Time(1), 3);
        unconfirmed.push(Time(2), 2);
        let mut times = Vec::new();
        let mut settle = |unconfirmed: &mut Unconfirmed, number, is_multiple| {
            unconfirmed.settle(&confirm(number, is_multiple), |time| times.push(time.0))
        };
        assert_eq!(settle(&mut unconfirmed, 2, false), 1);
        assert_eq!(settle(&mut unconfirmed, 4, true), 3);
        assert_eq!(settle(&mut unconfirmed, 4, true), 0);
        assert_eq!((unconfirmed.base, unconfirmed.count), (4, 1));
        assert_eq!(settle(&mut unconfirmed, 5, false), 1);
        assert!(unconfirmed.times.is_empty());
        assert_eq!(times, [1, 1, 1, 2, 2]);
    }
}
