//! Passwords of clients who log in: cheap ones are checked here, costly ones by whoever the node gave for it.

use auth::{Guesses, PasswordHash, Verified};
use env::Time;
use session::Verdict;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Different passwords under check at the most; whoever comes then is asked to come again.
const MAX_CHECKS: usize = 256;

/// Longer ones are wrong.
const MAX_PASSWORD: usize = 4096;

/// Names a check between [`Check`] and its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckId([u8; 32]);

/// A password whose check takes milliseconds.
pub struct Check {
    pub id: CheckId,
    pub hash: PasswordHash,
    pub password: Vec<u8>,
}

/// Has a check done elsewhere, answered by [`crate::ShardDriver::checked`].
pub type StartCheck = Box<dyn FnMut(Check) + Send>;

/// What a shard knows of logins.
pub struct Logins {
    /// Passwords that were right before, so that a storm of reconnects does not burn the processor (M9).
    verified: Verified,
    guesses: Guesses,
    /// Who waits for each check.
    waiting: BTreeMap<CheckId, Vec<Attempt>>,
    /// None: everything is checked here.
    start: Option<StartCheck>,
}

struct Attempt {
    session: u64,
    who: (IpAddr, String),
}

impl Logins {
    /// `key` as for [`Verified::new`].
    pub fn new(key: [u8; 32]) -> Logins {
        Logins {
            verified: Verified::new(key),
            guesses: Guesses::default(),
            waiting: BTreeMap::new(),
            start: None,
        }
    }

    pub fn check_elsewhere(&mut self, start: StartCheck) {
        self.start = Some(start);
    }

    /// Whether this is the user's password, as far as that is known at once.
    pub fn verify(
        &mut self,
        now: Time,
        (session, peer): (u64, SocketAddr),
        user: &str,
        (hash, password): (&PasswordHash, &[u8]),
    ) -> Verdict {
        if password.len() > MAX_PASSWORD {
            return Verdict::Wrong;
        }
        let who = (peer.ip().to_canonical(), user.to_owned());
        if self.guesses.barred(&who, now) {
            tracing::warn!(event = "login.barred", user, %peer, "too many wrong passwords; not tried");
            return Verdict::Wrong;
        }
        let id = CheckId(self.verified.fingerprint(hash, password));
        if self.verified.has(&id.0) {
            return Verdict::Right;
        }
        let Some(start) = self.start.as_mut().filter(|_| hash.algorithm.is_costly()) else {
            let right = auth::verify(hash, password);
            self.guesses.note(&who, right, now);
            if right {
                self.verified.add(id.0);
                return Verdict::Right;
            }
            return Verdict::Wrong;
        };
        let attempt = Attempt { session, who };
        // A storm of clients with one password costs one check.
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.push(attempt);
            return Verdict::Later;
        }
        if self.waiting.len() >= MAX_CHECKS {
            return Verdict::Busy;
        }
        self.waiting.insert(id, vec![attempt]);
        start(Check {
            id,
            hash: hash.clone(),
            password: password.to_vec(),
        });
        Verdict::Later
    }

    /// What came of a check; the sessions that wait for it.
    pub fn checked(&mut self, now: Time, id: CheckId, right: bool) -> Vec<u64> {
        if right {
            self.verified.add(id.0);
        }
        let attempts = self.waiting.remove(&id).unwrap_or_default();
        for attempt in &attempts {
            self.guesses.note(&attempt.who, right, now);
        }
        attempts.into_iter().map(|a| a.session).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::{FAILURES, HashAlgorithm, PENALTY, hash_with};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    type Begun = Arc<Mutex<Vec<(CheckId, Vec<u8>)>>>;

    struct Rig {
        logins: Logins,
        now: Time,
        begun: Begun,
    }

    impl Rig {
        fn new() -> Rig {
            let mut logins = Logins::new([9; 32]);
            let begun = Begun::default();
            let seen = begun.clone();
            logins.check_elsewhere(Box::new(move |check| {
                seen.lock().unwrap().push((check.id, check.password));
            }));
            Rig {
                logins,
                now: Time::ZERO + Duration::from_secs(100),
                begun,
            }
        }

        /// With a hash that is never really checked here.
        fn try_in(&mut self, session: u64, host: u8, password: &[u8]) -> Verdict {
            let costly = PasswordHash {
                algorithm: HashAlgorithm::Argon2id,
                bytes: b"whatever".to_vec(),
            };
            self.login(session, host, (&costly, password))
        }

        fn login(&mut self, session: u64, host: u8, pair: (&PasswordHash, &[u8])) -> Verdict {
            let peer = SocketAddr::from(([10, 0, 0, host], 5000));
            self.logins.verify(self.now, (session, peer), "u", pair)
        }

        fn begun(&self) -> Vec<(CheckId, Vec<u8>)> {
            std::mem::take(&mut *self.begun.lock().unwrap())
        }
    }

    #[test]
    fn one_check_for_all_who_come_with_the_same_password() {
        let mut rig = Rig::new();
        for session in 1..=3 {
            assert_eq!(rig.try_in(session, 1, b"p"), Verdict::Later);
        }
        assert_eq!(rig.try_in(4, 1, b"q"), Verdict::Later);
        let begun = rig.begun();
        let passwords: Vec<&[u8]> = begun.iter().map(|(_, p)| &p[..]).collect();
        assert_eq!(passwords, [b"p", b"q"]);
        let now = rig.now;
        assert_eq!(rig.logins.checked(now, begun[0].0, true), [1, 2, 3]);
        assert_eq!(rig.logins.checked(now, begun[1].0, false), [4]);
        let nobody: [u64; 0] = [];
        assert_eq!(rig.logins.checked(now, begun[1].0, true), nobody);
        assert_eq!(rig.try_in(5, 1, b"p"), Verdict::Right);
    }

    #[test]
    fn waiting_checks_are_bounded_and_cheap_ones_do_not_wait() {
        let mut rig = Rig::new();
        for n in 0..MAX_CHECKS as u64 {
            assert_eq!(rig.try_in(n, 1, &n.to_le_bytes()), Verdict::Later);
        }
        assert_eq!(rig.try_in(1000, 1, b"one more"), Verdict::Busy);
        assert_eq!(rig.begun().len(), MAX_CHECKS);
        let cheap = hash_with(HashAlgorithm::Sha256, b"p", b"salt").unwrap();
        assert_eq!(rig.login(7, 1, (&cheap, b"p")), Verdict::Right);
        assert_eq!(rig.login(7, 1, (&cheap, b"q")), Verdict::Wrong);
        let long = vec![b'p'; MAX_PASSWORD + 1];
        assert_eq!(rig.try_in(8, 1, &long), Verdict::Wrong);
    }

    #[test]
    fn who_guesses_is_not_even_tried_for_a_while() {
        let mut rig = Rig::new();
        for n in 0..FAILURES {
            assert_eq!(rig.try_in(1, 1, &n.to_le_bytes()), Verdict::Later);
            let (id, _) = rig.begun().remove(0);
            rig.logins.checked(rig.now, id, false);
        }
        assert_eq!(rig.try_in(1, 1, b"the right one"), Verdict::Wrong);
        assert!(rig.begun().is_empty());
        assert_eq!(rig.try_in(2, 2, b"the right one"), Verdict::Later);
        rig.now = rig.now + PENALTY;
        assert_eq!(rig.try_in(1, 1, b"the right one"), Verdict::Later);
    }
}
