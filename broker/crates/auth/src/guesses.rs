//! Failed logins per user and address, so that guessing is slow (O5).

use env::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Failures of one user from one address before it has to wait.
pub const FAILURES: u32 = 10;

/// How long, counted from the last failure.
pub const PENALTY: Duration = Duration::from_secs(10);

/// Pairs of user and address kept. When full, those whose time is over go, then any.
pub const WATCHED: usize = 4096;

#[derive(Debug, Default)]
pub struct Guesses {
    failed: BTreeMap<(IpAddr, String), Failed>,
}

#[derive(Debug)]
struct Failed {
    times: u32,
    last: Time,
}

impl Failed {
    fn counts(&self, now: Time) -> bool {
        now < self.last + PENALTY
    }
}

impl Guesses {
    /// Whether this user has failed so often from this address that it is not even tried now.
    pub fn barred(&self, who: &(IpAddr, String), now: Time) -> bool {
        self.failed
            .get(who)
            .is_some_and(|f| f.times >= FAILURES && f.counts(now))
    }

    /// What came of an attempt.
    pub fn note(&mut self, who: &(IpAddr, String), right: bool, now: Time) {
        if right {
            self.failed.remove(who);
            return;
        }
        if self.failed.len() >= WATCHED && !self.failed.contains_key(who) {
            self.failed.retain(|_, f| f.counts(now));
            if self.failed.len() >= WATCHED {
                self.failed.pop_first();
            }
        }
        let entry = self.failed.entry(who.clone()).or_insert(Failed {
            times: 0,
            last: now,
        });
        if !entry.counts(now) {
            entry.times = 0;
        }
        entry.times = entry.times.saturating_add(1);
        entry.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(n: u8, name: &str) -> (IpAddr, String) {
        (IpAddr::from([10, 0, 0, n]), name.to_owned())
    }

    #[test]
    fn failures_bar_their_own_for_a_while() {
        let mut guesses = Guesses::default();
        let now = Time::ZERO + Duration::from_secs(100);
        for _ in 0..FAILURES {
            assert!(!guesses.barred(&who(1, "u"), now));
            guesses.note(&who(1, "u"), false, now);
        }
        assert!(guesses.barred(&who(1, "u"), now));
        assert!(!guesses.barred(&who(1, "v"), now) && !guesses.barred(&who(2, "u"), now));
        let later = now + PENALTY;
        assert!(!guesses.barred(&who(1, "u"), later));
        guesses.note(&who(1, "u"), false, later);
        assert!(!guesses.barred(&who(1, "u"), later), "it begins anew");
    }

    #[test]
    fn a_right_password_clears_and_memory_is_bounded() {
        let mut guesses = Guesses::default();
        let now = Time::ZERO + Duration::from_secs(100);
        for _ in 0..FAILURES {
            guesses.note(&who(1, "u"), false, now);
        }
        guesses.note(&who(1, "u"), true, now);
        assert!(!guesses.barred(&who(1, "u"), now));
        for n in 0..WATCHED + 100 {
            guesses.note(&who(3, &n.to_string()), false, now);
        }
        assert_eq!(guesses.failed.len(), WATCHED);
        guesses.note(&who(4, "u"), false, now + PENALTY);
        assert_eq!(guesses.failed.len(), 1);
    }
}
