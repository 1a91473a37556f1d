//! Failed logins by address and user, so that guessing is slow and a log stays readable.
//!
//! Only the refusal of a wrong password is held back. A right password is never slowed, so nobody is kept out by another
//! client's failures. Counts live in a table of fixed size under a keyed hash: a flood of names evicts nothing. Pairs
//! that fall on the same slot share its count, which delays refusals and nothing else.

use env::Time;
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;
use std::time::Duration;

/// Failures of one user from one address that are answered at once. One is forgiven each second.
pub const FREE_FAILURES: u32 = 10;

/// The same of one address whatever the users, many of whom may share it.
pub const FREE_ADDRESS_FAILURES: u32 = 100;

/// Each further failure holds its refusal back for so much longer.
const DELAY_STEP: Duration = Duration::from_millis(100);

/// Refusals are held back no longer, so that they come before a client's own timeout.
pub const MAX_DELAY: Duration = Duration::from_secs(3);

/// Counts go no further, so that a guesser is forgiven within minutes.
const MAX_FAILURES: u32 = 200;

/// Log lines for one address in a minute.
pub const LOGGED_PER_MINUTE: u32 = 10;

/// Slots of the table: 64 KiB in all.
const SLOTS: usize = 4096;

/// The treatment of a failed login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedLogin {
    /// The refusal is to be held back for so long.
    pub delay: Duration,
    /// None: too many of this address are in the log already. Else the number of those left out before.
    pub log: Option<u32>,
}

/// See the module.
pub struct Throttle {
    key: [u8; 32],
    slots: Box<[Slot]>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    failures: u16,
    /// Lines of this minute.
    logged: u16,
    /// Seconds, of the last failure.
    last: u32,
    /// Lines that were left out.
    unlogged: u32,
    minute: u32,
}

impl Slot {
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

impl Throttle {
    /// `key` must be random and stay in this process.
    pub fn new(key: [u8; 32]) -> Throttle {
        Throttle {
            key,
            slots: vec![Slot::default(); SLOTS].into(),
        }
    }

    /// Counts a failed login.
    pub fn note(&mut self, address: IpAddr, user: &str, now: Time) -> FailedLogin {
        let second = u32::try_from(now.since(Time::ZERO).as_secs()).unwrap_or(u32::MAX);
        let address = address.to_canonical();
        let of_pair = self.slot(address, Some(user)).count(second);
        let slot = self.slot(address, None);
        let of_address = slot.count(second);
        let log = slot.log(second);
        let beyond = of_pair.saturating_sub(FREE_FAILURES);
        let beyond = beyond.max(of_address.saturating_sub(FREE_ADDRESS_FAILURES));
        FailedLogin {
            delay: DELAY_STEP.saturating_mul(beyond).min(MAX_DELAY),
            log,
        }
    }

    /// Forgives the failures of a user that logged in from there with the right password.
    pub fn clear(&mut self, address: IpAddr, user: &str) {
        let address = address.to_canonical();
        let of_pair = std::mem::take(&mut self.slot(address, Some(user)).failures);
        if of_pair > 0 {
            let slot = self.slot(address, None);
            slot.failures = slot.failures.saturating_sub(of_pair);
        }
    }

    fn slot(&mut self, address: IpAddr, user: Option<&str>) -> &mut Slot {
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

impl std::fmt::Debug for Throttle {
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
    fn refusals_of_a_guesser_are_held_back_longer_and_longer() {
        let mut throttle = Throttle::new([7; 32]);
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
    fn a_flood_of_names_neither_evicts_nor_escapes() {
        let mut throttle = Throttle::new([7; 32]);
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
    fn a_right_password_clears_its_own_failures() {
        let mut throttle = Throttle::new([7; 32]);
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
    fn log_lines_of_an_address_are_bounded_and_the_rest_is_counted() {
        let mut throttle = Throttle::new([7; 32]);
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
