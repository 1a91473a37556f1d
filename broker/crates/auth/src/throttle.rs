//! Throttling of failed logins by address and user, so that guessing is slow and the log stays readable.
//!
//! Only the refusal of a wrong password is delayed. A correct password is never slowed down, so other
//! clients' failures lock nobody out. Counts are in a table of fixed size under a keyed hash: a flood of
//! names evicts nothing. Pairs in the same slot share its count, which only delays refusals.

use env::Time;
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;
use std::time::Duration;

/// Failures of one user from one address that are answered immediately. One failure is forgiven each second.
pub const FREE_FAILURES: u32 = 10;

/// The same limit for one address, all users together; many users may share an address.
pub const FREE_ADDRESS_FAILURES: u32 = 100;

/// Additional delay of the refusal per further failure.
const DELAY_STEP: Duration = Duration::from_millis(100);

/// Limit of the delay, so that the refusal arrives before a client's own timeout.
pub const MAX_DELAY: Duration = Duration::from_secs(3);

/// Limit of a count, so that failures are forgiven within minutes.
const MAX_FAILURES: u32 = 200;

/// Log lines per address and minute.
pub const LOGGED_PER_MINUTE: u32 = 10;

/// Slots of the table: 64 KiB in all.
const SLOTS: usize = 4096;

/// How to handle a failed login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedLoginResponse {
    /// Delay the refusal for this long.
    pub delay: Duration,
    /// Write a log line that mentions this number of suppressed ones; `None` if too many lines of this
    /// address are in the log already.
    pub log: Option<u32>,
}

/// Counts failed logins; see the module documentation.
pub struct LoginThrottle {
    key: [u8; 32],
    slots: Box<[ThrottleSlot]>,
}

#[derive(Clone, Copy, Default)]
struct ThrottleSlot {
    failures: u16,
    /// Log lines in this minute.
    logged: u16,
    /// Time of the last failure in seconds.
    last: u32,
    /// Suppressed log lines.
    unlogged: u32,
    minute: u32,
}

impl ThrottleSlot {
    fn count(&mut self, second: u32) -> u32 {
        let forgiven = second.saturating_sub(self.last);
        let failures = u32::from(self.failures).saturating_sub(forgiven) + 1;
        let failures = failures.min(MAX_FAILURES);
        self.failures = u16::try_from(failures).unwrap_or(u16::MAX);
        self.last = second;
        failures
    }

    fn log(&mut self, second: u32) -> Option<u32> {
        let minute = second / 60;
        if self.minute != minute {
            (self.minute, self.logged) = (minute, 0);
        }
        if u32::from(self.logged) >= LOGGED_PER_MINUTE {
            self.unlogged = self.unlogged.saturating_add(1);
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl LoginThrottle {
    /// Creates an empty table. `key` must be random and stay in this process.
    pub fn new(key: [u8; 32]) -> LoginThrottle {
        LoginThrottle {
            key,
            slots: vec![ThrottleSlot::default(); SLOTS].into(),
        }
    }

    /// Counts a failed login.
    pub fn note(&mut self, address: IpAddr, user: &str, now: Time) -> FailedLoginResponse {
        let second = u32::try_from(now.since(Time::ZERO).as_secs()).unwrap_or(u32::MAX);
        let address = address.to_canonical();
        let of_pair = self.slot(address, Some(user)).count(second);
        let slot = self.slot(address, None);
        let of_address = slot.count(second);
        let log = slot.log(second);
        let beyond = of_pair.saturating_sub(FREE_FAILURES);
        let beyond = beyond.max(of_address.saturating_sub(FREE_ADDRESS_FAILURES));
        FailedLoginResponse {
            delay: DELAY_STEP.saturating_mul(beyond).min(MAX_DELAY),
            log,
        }
    }

    /// Forgives the failures of a user that logged in from this address with the right password.
    pub fn clear(&mut self, address: IpAddr, user: &str) {
        let address = address.to_canonical();
        let of_pair = std::mem::take(&mut self.slot(address, Some(user)).failures);
        if of_pair > 0 {
            let slot = self.slot(address, None);
            slot.failures = slot.failures.saturating_sub(of_pair);
        }
    }

    fn slot(&mut self, address: IpAddr, user: Option<&str>) -> &mut ThrottleSlot {
        let mut digest = Sha256::new();
        digest.update(self.key);
        match address {
            IpAddr::V4(four) => digest.update(four.octets()),
            IpAddr::V6(six) => digest.update(six.octets()),
        }
        if let Some(user) = user {
            digest.update([0]);
            digest.update(user);
        }
        let [a, b, ..] = <[u8; 32]>::from(digest.finalize());
        let at = usize::from(u16::from_le_bytes([a, b])) % SLOTS;
        &mut self.slots[at]
    }
}

impl std::fmt::Debug for LoginThrottle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Throttle")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn from(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn refusals_are_delayed_longer_with_each_failure() {
        let mut throttle = LoginThrottle::new([7; 32]);
        for _ in 0..FREE_FAILURES {
            assert_eq!(throttle.note(from(1), "u", at(100)).delay, Duration::ZERO);
        }
        let mut last = Duration::ZERO;
        for _ in 0..5 {
            let delay = throttle.note(from(1), "u", at(100)).delay;
            assert!(delay > last);
            last = delay;
        }
        for _ in 0..1000 {
            assert!(throttle.note(from(1), "u", at(100)).delay <= MAX_DELAY);
        }
        assert_eq!(throttle.note(from(2), "u", at(100)).delay, Duration::ZERO);
        assert_eq!(
            throttle.note(from(1), "u", at(100 + 300)).delay,
            Duration::ZERO
        );
    }

    #[test]
    fn flood_of_names_evicts_nothing_and_is_delayed() {
        let mut throttle = LoginThrottle::new([7; 32]);
        for _ in 0..20 {
            throttle.note(from(1), "u", at(100));
        }
        let mut last = Duration::ZERO;
        for n in 0..20_000 {
            last = throttle.note(from(2), &n.to_string(), at(100)).delay;
        }
        assert!(
            last > Duration::ZERO,
            "many names of one address are slow too"
        );
        assert!(throttle.note(from(1), "u", at(100)).delay > Duration::ZERO);
        assert_eq!(throttle.slots.len(), SLOTS);
    }

    #[test]
    fn correct_password_clears_only_its_own_failures() {
        let mut throttle = LoginThrottle::new([7; 32]);
        for _ in 0..10 {
            for _ in 0..20 {
                throttle.note(from(1), "u", at(100));
            }
            throttle.clear(from(1), "u");
        }
        assert_eq!(throttle.note(from(1), "u", at(100)).delay, Duration::ZERO);
        for _ in 0..20 {
            throttle.note(from(1), "u", at(100));
        }
        throttle.clear(from(1), "v");
        throttle.clear(from(2), "u");
        assert!(throttle.note(from(1), "u", at(100)).delay > Duration::ZERO);
    }

    #[test]
    fn log_lines_per_address_are_bounded_and_suppressed_ones_counted() {
        let mut throttle = LoginThrottle::new([7; 32]);
        for _ in 0..LOGGED_PER_MINUTE {
            assert_eq!(throttle.note(from(1), "u", at(60)).log, Some(0));
        }
        for n in 0..5 {
            assert_eq!(throttle.note(from(1), &n.to_string(), at(61)).log, None);
        }
        assert_eq!(throttle.note(from(2), "u", at(61)).log, Some(0));
        assert_eq!(throttle.note(from(1), "u", at(120)).log, Some(5));
        assert_eq!(throttle.note(from(1), "u", at(120)).log, Some(0));
    }
}
