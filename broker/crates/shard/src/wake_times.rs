//! When sessions are to be woken: coarse times, and for each the connections, so that a hundred thousand keep-alives cost some
//! bytes each.

use env::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Nanoseconds of a unit as a power of two: 67 ms. Heartbeats and keep-alives are seconds.
const UNIT_BITS: u32 = 26;

/// Who wants to be woken later than this is woken then, and asks again. Connections that are gone stay noted until their time
/// comes: with the longest keep-alive, 27 hours, clients that come and go would fill the memory.
const LATEST: Duration = Duration::from_secs(600);

/// No wake-up is noted.
pub(crate) const NEVER: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct WakeTimes {
    /// By time in units since the clock's beginning.
    due: BTreeMap<u32, Vec<u32>>,
    /// When somebody looked last.
    now: Time,
}

/// The first unit's end that is not before `time`. Nine years have fewer than 2^32 units.
fn unit(time: Time) -> u32 {
    let units = time.0.div_ceil(1 << UNIT_BITS);
    u32::try_from(units).map_or(NEVER - 1, |units| units.min(NEVER - 1))
}

impl WakeTimes {
    /// Takes note when a session wants to be woken earlier than it is to be. A wake-up that moved to later is found
    /// when the old one fires, so that a step costs no search.
    pub(crate) fn note(&mut self, noted: &mut u32, time: Time, key: usize) {
        let at = unit(time.min(self.now + LATEST));
        if at < *noted {
            *noted = at;
            // Fewer than 2^24 connections.
            self.due.entry(at).or_default().push(key as u32);
        }
    }

    pub(crate) fn first(&self) -> Option<Time> {
        let (at, _) = self.due.first_key_value()?;
        Some(Time(u64::from(*at) << UNIT_BITS))
    }

    /// Sets the time that wake-up times are compared with.
    pub(crate) fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    /// Connections that are to be woken by now, those of one unit.
    pub(crate) fn take(&mut self, now: Time) -> Option<(u32, Vec<u32>)> {
        self.now = now;
        let first = self.first()?;
        (first <= now).then(|| self.due.pop_first()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_woken_too_early_and_an_earlier_wish_counts() {
        let mut wakes = WakeTimes::default();
        let at = |ms: u64| Time(1) + Duration::from_millis(ms);
        let (mut one, mut other) = (NEVER, NEVER);
        wakes.note(&mut one, at(1000), 1);
        wakes.note(&mut one, at(2000), 1);
        wakes.note(&mut other, at(3000), 2);
        wakes.note(&mut other, at(500), 2);
        let mut woken = Vec::new();
        for ms in 0..4000 {
            while let Some((time, keys)) = wakes.take(at(ms)) {
                woken.extend(keys.into_iter().map(|key| (key, ms)));
                one = if time == one { NEVER } else { one };
            }
        }
        let keys: Vec<u32> = woken.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [2, 1, 2], "the last was noted before an earlier one");
        for ((_, ms), wanted) in woken.into_iter().zip([500, 1000, 3000]) {
            assert!((wanted..=wanted + 68).contains(&ms), "{ms}");
        }
        assert_eq!((one, wakes.first()), (NEVER, None));
    }
    #[test]
    fn nobody_is_noted_for_long() {
        let mut wakes = WakeTimes::default();
        let now = Time(1) + Duration::from_secs(3600);
        assert_eq!(wakes.take(now), None);
        let (mut noted, wanted) = (NEVER, now + Duration::from_secs(65_535));
        wakes.note(&mut noted, wanted, 1);
        let first = wakes.first().expect("it is noted");
        assert!(first > now && first < now + LATEST + Duration::from_secs(1));
        assert_eq!(wakes.take(first), Some((noted, vec![1])));
    }
}
