//! Passwords of clients who log in: cheap ones are checked here, costly ones by the threads that the node has for them.

use auth::{LoginThrottle, PasswordHash, VerifiedPasswordCache};
use env::Time;
use session::PasswordCheck;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Different passwords under check at the most; a client that comes then is asked to come again.
const MAX_CHECKS: usize = 256;

/// Of those, the checks that clients of one address may have begun.
const MAX_ADDRESS_CHECKS: usize = 64;

/// Refusals held back at the most, at some 40 bytes each; further ones are given at once.
const MAX_HELD: usize = 16 * 1024;

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
    /// Passwords that were right before, so that a storm of reconnects does not burn the processor.
    verified: VerifiedPasswordCache,
    throttle: LoginThrottle,
    waiting: BTreeMap<CheckId, WaitingLogins>,
    /// Checks under way by the address that began them.
    begun: BTreeMap<IpAddr, usize>,
    /// Sessions whose refusal is held back, by the time when it is given.
    held: BTreeMap<(Time, u64), u64>,
    next_held: u64,
    /// None: everything is checked here.
    start: Option<StartCheck>,
}

/// Sessions that wait for one check.
struct WaitingLogins {
    begun_by: IpAddr,
    attempts: Vec<LoginAttempt>,
}

struct LoginAttempt {
    session: u64,
    peer: SocketAddr,
    user: Box<str>,
}

impl Logins {
    /// `key` as for [`VerifiedPasswordCache::new`].
    pub fn new(key: [u8; 32]) -> Logins {
        Logins {
            verified: VerifiedPasswordCache::new(key),
            throttle: LoginThrottle::new(key),
            waiting: BTreeMap::new(),
            begun: BTreeMap::new(),
            held: BTreeMap::new(),
            next_held: 0,
            start: None,
        }
    }

    pub fn check_elsewhere(&mut self, start: StartCheck) {
        self.start = Some(start);
    }

    /// Whether this is the user's password, as far as that is known at once. Every refusal costs a check of the costly
    /// kind, so that its time does not tell whether the user exists or how its password is stored.
    pub fn verify(
        &mut self,
        now: Time,
        (session, peer): (u64, SocketAddr),
        user: &str,
        (hash, password): (&PasswordHash, &[u8]),
    ) -> PasswordCheck {
        let attempt = LoginAttempt {
            session,
            peer,
            user: user.into(),
        };
        if password.len() > MAX_PASSWORD {
            return self.refuse(now, &attempt);
        }
        let id = CheckId(self.verified.fingerprint(hash, password));
        if self.verified.has(&id.0) {
            self.throttle.clear(peer.ip(), user);
            return PasswordCheck::Right;
        }
        let is_costly = hash.algorithm.is_costly();
        if (!is_costly || self.start.is_none()) && auth::verify(hash, password) {
            self.verified.add(id.0);
            self.throttle.clear(peer.ip(), user);
            return PasswordCheck::Right;
        }
        if self.start.is_none() {
            return self.refuse(now, &attempt);
        }
        match is_costly {
            true => self.begin(id, attempt, hash.clone(), password),
            false => {
                let decoy = auth::decoy();
                let id = CheckId(self.verified.fingerprint(&decoy, password));
                self.begin(id, attempt, decoy, password)
            }
        }
    }

    fn begin(
        &mut self,
        id: CheckId,
        attempt: LoginAttempt,
        hash: PasswordHash,
        password: &[u8],
    ) -> PasswordCheck {
        // A storm of clients with one password costs one check.
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.attempts.push(attempt);
            return PasswordCheck::Later;
        }
        let begun_by = attempt.peer.ip().to_canonical();
        let of_address = self.begun.get(&begun_by).copied().unwrap_or(0);
        if self.waiting.len() >= MAX_CHECKS || of_address >= MAX_ADDRESS_CHECKS {
            return PasswordCheck::Busy;
        }
        let Some(start) = &mut self.start else {
            return PasswordCheck::Busy;
        };
        self.begun.insert(begun_by, of_address + 1);
        let attempts = vec![attempt];
        self.waiting
            .insert(id, WaitingLogins { begun_by, attempts });
        start(Check {
            id,
            hash,
            password: password.to_vec(),
        });
        PasswordCheck::Later
    }

    /// Counts a failure; its refusal may be held back until [`Logins::due`] gives it.
    fn refuse(&mut self, now: Time, attempt: &LoginAttempt) -> PasswordCheck {
        let LoginAttempt { peer, user, .. } = attempt;
        let failed = self.throttle.note(peer.ip(), user, now);
        if let Some(unlogged) = failed.log {
            tracing::warn!(event = "login.failed", user = %user, %peer, unlogged, "wrong user name or password");
        }
        if failed.delay.is_zero() || self.held.len() >= MAX_HELD {
            return PasswordCheck::Wrong;
        }
        self.next_held += 1;
        let key = (now + failed.delay, self.next_held);
        self.held.insert(key, attempt.session);
        PasswordCheck::Later
    }

    /// The result of a check: the sessions to be told of it now. A refusal may come later, by [`Logins::due`].
    pub fn checked(&mut self, now: Time, id: CheckId, right: bool) -> Vec<u64> {
        let Some(waiting) = self.waiting.remove(&id) else {
            return Vec::new();
        };
        if let Some(begun) = self.begun.get_mut(&waiting.begun_by) {
            *begun = begun.saturating_sub(1);
            if *begun == 0 {
                self.begun.remove(&waiting.begun_by);
            }
        }
        let mut attempts = waiting.attempts;
        match right {
            true => {
                self.verified.add(id.0);
                for attempt in &attempts {
                    self.throttle.clear(attempt.peer.ip(), &attempt.user);
                }
            }
            false => attempts.retain(|attempt| self.refuse(now, attempt) == PasswordCheck::Wrong),
        }
        attempts.into_iter().map(|a| a.session).collect()
    }

    /// Sessions wait for the answer to their password.
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Sessions whose refusal was held back until now.
    pub fn due(&mut self, now: Time) -> Vec<u64> {
        let mut due = Vec::new();
        while let Some(first) = self.held.first_entry() {
            if first.key().0 > now {
                break;
            }
            due.push(first.remove());
        }
        due
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.held.first_key_value().map(|((time, _), _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::{FREE_FAILURES, HashAlgorithm, MAX_DELAY, hash_with};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    type CheckStart = Arc<Mutex<Vec<(CheckId, Vec<u8>)>>>;

    struct Rig {
        logins: Logins,
        now: Time,
        begun: CheckStart,
    }

    impl Rig {
        fn new() -> Rig {
            let mut logins = Logins::new([9; 32]);
            let begun = CheckStart::default();
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
        fn try_in(&mut self, session: u64, host: u8, password: &[u8]) -> PasswordCheck {
            let costly = PasswordHash {
                algorithm: HashAlgorithm::Argon2id,
                bytes: b"whatever".to_vec(),
            };
            self.login(session, host, (&costly, password))
        }

        fn login(&mut self, session: u64, host: u8, pair: (&PasswordHash, &[u8])) -> PasswordCheck {
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
            assert_eq!(rig.try_in(session, 1, b"p"), PasswordCheck::Later);
        }
        assert_eq!(rig.try_in(4, 1, b"q"), PasswordCheck::Later);
        let begun = rig.begun();
        let passwords: Vec<&[u8]> = begun.iter().map(|(_, p)| &p[..]).collect();
        assert_eq!(passwords, [b"p", b"q"]);
        let now = rig.now;
        assert_eq!(rig.logins.checked(now, begun[0].0, true), [1, 2, 3]);
        assert_eq!(rig.logins.checked(now, begun[1].0, false), [4]);
        let nobody: [u64; 0] = [];
        assert_eq!(rig.logins.checked(now, begun[1].0, true), nobody);
        assert_eq!(rig.try_in(5, 1, b"p"), PasswordCheck::Right);
    }

    #[test]
    fn waiting_checks_are_bounded_and_right_cheap_ones_do_not_wait() {
        let mut rig = Rig::new();
        let per_address = MAX_ADDRESS_CHECKS as u64;
        for n in 0..MAX_CHECKS as u64 {
            let host = u8::try_from(n / per_address).unwrap();
            assert_eq!(rig.try_in(n, host, &n.to_le_bytes()), PasswordCheck::Later);
            if n + 1 == per_address {
                assert_eq!(rig.try_in(999, 0, b"beyond its share"), PasswordCheck::Busy);
            }
        }
        assert_eq!(rig.try_in(1000, 99, b"one more"), PasswordCheck::Busy);
        let begun = rig.begun();
        assert_eq!(begun.len(), MAX_CHECKS);
        let cheap = hash_with(HashAlgorithm::Sha256, b"p", b"salt").unwrap();
        assert_eq!(rig.login(7, 1, (&cheap, b"p")), PasswordCheck::Right);
        rig.logins.checked(rig.now, begun[0].0, false);
        assert_eq!(
            rig.try_in(1001, 0, b"there is room again"),
            PasswordCheck::Later
        );
        let long = vec![b'p'; MAX_PASSWORD + 1];
        assert_eq!(rig.try_in(8, 1, &long), PasswordCheck::Wrong);
    }

    #[test]
    fn every_refusal_costs_the_same_check() {
        let mut rig = Rig::new();
        let cheap = hash_with(HashAlgorithm::Sha256, b"p", b"salt").unwrap();
        assert_eq!(rig.login(1, 1, (&cheap, b"q")), PasswordCheck::Later);
        // As sessions ask for a user that does not exist.
        assert_eq!(
            rig.login(2, 1, (&auth::decoy(), b"q")),
            PasswordCheck::Later
        );
        let begun = rig.begun();
        assert_eq!(begun.len(), 1);
        assert_eq!(rig.logins.checked(rig.now, begun[0].0, false), [1, 2]);
    }

    #[test]
    fn wrong_passwords_slow_refusals_and_never_a_right_password() {
        let mut rig = Rig::new();
        assert_eq!(rig.try_in(1, 1, b"known"), PasswordCheck::Later);
        let (id, _) = rig.begun().remove(0);
        rig.logins.checked(rig.now, id, true);
        let mut refused = 0;
        for n in 0..FREE_FAILURES + 5 {
            assert_eq!(rig.try_in(2, 1, &n.to_le_bytes()), PasswordCheck::Later);
            let (id, _) = rig.begun().remove(0);
            refused += rig.logins.checked(rig.now, id, false).len();
        }
        assert_eq!(refused, FREE_FAILURES as usize);
        assert_eq!(rig.try_in(3, 1, b"known"), PasswordCheck::Right);
        // A right password that was not seen before is checked and taken at once.
        assert_eq!(rig.try_in(4, 1, b"new"), PasswordCheck::Later);
        let (id, _) = rig.begun().remove(0);
        assert_eq!(rig.logins.checked(rig.now, id, true), [4]);
        assert!(rig.logins.due(rig.now).is_empty());
        let first = rig.logins.wake_at().unwrap();
        assert!(first > rig.now);
        assert_eq!(rig.logins.due(first), [2]);
        assert_eq!(rig.logins.due(rig.now + MAX_DELAY), [2; 4]);
        assert_eq!(rig.logins.wake_at(), None);
    }
}
