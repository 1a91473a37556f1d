//! Passwords of clients who log in: cheap ones are checked here, costly ones by the threads that the node has for them.

use auth::{LoginThrottle, PasswordHash, VerifiedPasswordCache};
use env::{Time, WallTime};
use metadata::Identity;
use session::{LoginVerdict, PasswordCheck};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Different passwords under check at the most; a client that comes then is asked to come again.
const MAX_CHECKS: usize = 256;

/// Of those, the checks that clients of one address may have begun.
const MAX_ADDRESS_CHECKS: usize = 64;

/// Refusals held back at the most, at some 40 bytes each; further ones are given at once.
const MAX_HELD: usize = 16 * 1024;

/// Longest password of a user in the metadata, in bytes.
const MAX_PASSWORD: usize = 4096;

/// Names a check between [`Check`] and its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckId([u8; 32]);

/// A password whose check takes milliseconds.
pub struct Check {
    /// Identifies the check in the answer.
    pub id: CheckId,
    /// The stored hash.
    pub hash: PasswordHash,
    /// The password of the client.
    pub password: Vec<u8>,
}

/// Has a check done elsewhere, answered by [`crate::ShardDriver::checked`].
pub type StartCheck = Box<dyn FnMut(Check) + Send>;

/// A backend that checks passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginBackend {
    /// The users of the metadata.
    Internal,
    /// The external backend with this index.
    External(usize),
}

/// A password for an external backend.
pub struct Identification {
    /// Identifies it in the answer.
    pub id: u64,
    /// Index of the backend.
    pub backend: usize,
    /// The user name that the client gave.
    pub user: String,
    /// The password or token.
    pub password: Vec<u8>,
}

/// Has a user identified elsewhere, answered by [`crate::ShardDriver::identified`].
pub type StartIdentification = Box<dyn FnMut(Identification) + Send>;

/// The answer to an [`Identification`]: the user, or the reason of the refusal for the log.
pub type IdentificationResult = Result<Arc<Identity>, String>;

/// The session of a refusal that is held back, and the reason for the log.
type HeldRefusal = (u64, Option<Arc<str>>);

/// What a shard knows of logins.
pub(crate) struct Logins {
    /// Passwords that were right before, so that a storm of reconnects does not burn the processor.
    verified: VerifiedPasswordCache,
    throttle: LoginThrottle,
    waiting: BTreeMap<CheckId, WaitingLogins>,
    /// Checks under way by the address that began them.
    begun: BTreeMap<IpAddr, usize>,
    /// Sessions whose refusal is held back, by the time when it is given.
    held: BTreeMap<(Time, u64), HeldRefusal>,
    next_held: u64,
    /// None: everything is checked here.
    start: Option<StartCheck>,
    /// The backends in order. Empty: the metadata alone.
    backends: Arc<[LoginBackend]>,
    identify: Option<StartIdentification>,
    /// Identifications under way.
    unidentified: BTreeMap<u64, LoginAttempt>,
    next_identification: u64,
    /// Sessions whose identity expires, and when.
    expiries: BTreeMap<(Time, u64), ()>,
    expiry_of: BTreeMap<u64, Time>,
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
    /// None: one backend decides.
    chain: Option<Box<BackendChain>>,
}

/// The state of a login while backends remain to be asked.
struct BackendChain {
    next: usize,
    hash: PasswordHash,
    password: Vec<u8>,
    refusals: Vec<String>,
}

impl Logins {
    /// `key` as for [`VerifiedPasswordCache::new`].
    pub(crate) fn new(key: [u8; 32]) -> Logins {
        Logins {
            verified: VerifiedPasswordCache::new(key),
            throttle: LoginThrottle::new(key),
            waiting: BTreeMap::new(),
            begun: BTreeMap::new(),
            held: BTreeMap::new(),
            next_held: 0,
            start: None,
            backends: Arc::default(),
            identify: None,
            unidentified: BTreeMap::new(),
            next_identification: 0,
            expiries: BTreeMap::new(),
            expiry_of: BTreeMap::new(),
        }
    }

    pub(crate) fn check_elsewhere(&mut self, start: StartCheck) {
        self.start = Some(start);
    }

    pub(crate) fn identify_with(
        &mut self,
        backends: Arc<[LoginBackend]>,
        identify: StartIdentification,
    ) {
        (self.backends, self.identify) = (backends, Some(identify));
    }

    /// Whether this is the user's password, as far as that is known at once. Every refusal costs a check of the costly
    /// kind, so that its time does not tell whether the user exists or how its password is stored.
    pub(crate) fn verify(
        &mut self,
        now: Time,
        (session, peer): (u64, SocketAddr),
        user: &str,
        (hash, password): (&PasswordHash, &[u8]),
    ) -> PasswordCheck {
        let mut attempt = LoginAttempt {
            session,
            peer,
            user: user.into(),
            chain: None,
        };
        if self.backends.is_empty() {
            return self.verify_stored(now, attempt, (hash, password));
        }
        attempt.chain = Some(Box::new(BackendChain {
            next: 0,
            hash: hash.clone(),
            password: password.to_vec(),
            refusals: Vec::new(),
        }));
        self.ask_next_backend(now, attempt)
    }

    /// Asks the next backend, or refuses the login if there is none.
    fn ask_next_backend(&mut self, now: Time, mut attempt: LoginAttempt) -> PasswordCheck {
        let Some(chain) = &mut attempt.chain else {
            return self.refuse(now, &attempt, None);
        };
        let backend = self.backends.get(chain.next).copied();
        chain.next += 1;
        match backend {
            Some(LoginBackend::Internal) => {
                let (hash, password) = (chain.hash.clone(), chain.password.clone());
                self.verify_stored(now, attempt, (&hash, &password))
            }
            Some(LoginBackend::External(backend)) => {
                let password = chain.password.clone();
                self.begin_identification(attempt, backend, password)
            }
            None => {
                let why = chain.refusals.join("; ");
                self.refuse(now, &attempt, Some(why.into()))
            }
        }
    }

    /// A user of the metadata has another password.
    fn refuse_stored(&mut self, now: Time, mut attempt: LoginAttempt) -> PasswordCheck {
        match &mut attempt.chain {
            None => self.refuse(now, &attempt, None),
            Some(chain) => {
                let why = "internal: wrong user name or password";
                chain.refusals.push(why.to_owned());
                self.ask_next_backend(now, attempt)
            }
        }
    }

    /// Checks the password of a user of the metadata.
    fn verify_stored(
        &mut self,
        now: Time,
        attempt: LoginAttempt,
        (hash, password): (&PasswordHash, &[u8]),
    ) -> PasswordCheck {
        if password.len() > MAX_PASSWORD {
            return self.refuse_stored(now, attempt);
        }
        let id = CheckId(self.verified.fingerprint(hash, password));
        if self.verified.has(&id.0) {
            self.throttle.clear(attempt.peer.ip(), &attempt.user);
            return PasswordCheck::Right;
        }
        let is_costly = hash.algorithm.is_costly();
        if (!is_costly || self.start.is_none()) && auth::verify(hash, password) {
            self.verified.add(id.0);
            self.throttle.clear(attempt.peer.ip(), &attempt.user);
            return PasswordCheck::Right;
        }
        if self.start.is_none() {
            return self.refuse_stored(now, attempt);
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

    /// Checks a new secret of a session that a backend has identified.
    pub(crate) fn renew(
        &mut self,
        (session, peer): (u64, SocketAddr),
        identity: &Identity,
        secret: &[u8],
    ) -> PasswordCheck {
        let attempt = LoginAttempt {
            session,
            peer,
            user: (*identity.user).into(),
            chain: None,
        };
        self.begin_identification(attempt, identity.backend, secret.to_vec())
    }

    fn begin_identification(
        &mut self,
        attempt: LoginAttempt,
        backend: usize,
        password: Vec<u8>,
    ) -> PasswordCheck {
        let address = attempt.peer.ip().to_canonical();
        let of_address = self.begun.get(&address).copied().unwrap_or(0);
        if self.unidentified.len() >= MAX_CHECKS || of_address >= MAX_ADDRESS_CHECKS {
            return PasswordCheck::Busy;
        }
        let Some(identify) = &mut self.identify else {
            return PasswordCheck::Busy;
        };
        self.begun.insert(address, of_address + 1);
        self.next_identification += 1;
        let id = self.next_identification;
        let user = attempt.user.to_string();
        self.unidentified.insert(id, attempt);
        identify(Identification {
            id,
            backend,
            user,
            password,
        });
        PasswordCheck::Later
    }

    /// Handles the answer of an external backend. Returns the session that gets it now.
    pub(crate) fn identified(
        &mut self,
        (now, wall): (Time, WallTime),
        id: u64,
        result: IdentificationResult,
    ) -> Option<(u64, LoginVerdict)> {
        let mut attempt = self.unidentified.remove(&id)?;
        self.end_check_of(attempt.peer.ip().to_canonical());
        let session = attempt.session;
        let why = match result {
            Ok(identity) => match remaining(&identity, wall) {
                Some(Duration::ZERO) => "the identity has expired".to_owned(),
                remaining => {
                    self.throttle.clear(attempt.peer.ip(), &attempt.user);
                    self.set_expiry(session, remaining.map(|time| now + time));
                    return Some((session, LoginVerdict::Identified(identity)));
                }
            },
            Err(why) => why,
        };
        let Some(chain) = &mut attempt.chain else {
            return Some((session, LoginVerdict::Wrong(Some(why.into()))));
        };
        chain.refusals.push(why);
        let why: Arc<str> = chain.refusals.join("; ").into();
        let check = self.ask_next_backend(now, attempt);
        verdict(check, Some(why)).map(|verdict| (session, verdict))
    }

    fn set_expiry(&mut self, session: u64, at: Option<Time>) {
        if let Some(before) = self.expiry_of.remove(&session) {
            self.expiries.remove(&(before, session));
        }
        if let Some(at) = at {
            self.expiries.insert((at, session), ());
            self.expiry_of.insert(session, at);
        }
    }

    /// The session has ended.
    pub(crate) fn session_ended(&mut self, session: u64) {
        if !self.expiry_of.is_empty() {
            self.set_expiry(session, None);
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

    fn end_check_of(&mut self, address: IpAddr) {
        if let Some(begun) = self.begun.get_mut(&address) {
            *begun = begun.saturating_sub(1);
            if *begun == 0 {
                self.begun.remove(&address);
            }
        }
    }

    /// Counts a failure; its refusal may be held back until [`Logins::due`] gives it.
    fn refuse(
        &mut self,
        now: Time,
        attempt: &LoginAttempt,
        why: Option<Arc<str>>,
    ) -> PasswordCheck {
        let LoginAttempt { peer, user, .. } = attempt;
        let failed = self.throttle.note(peer.ip(), user, now);
        if let Some(unlogged) = failed.log {
            match &why {
                None => {
                    tracing::warn!(event = "login.failed", user = %user, %peer, unlogged, "wrong user name or password");
                }
                Some(why) => {
                    tracing::warn!(event = "login.failed", user = %user, %peer, unlogged, why = %why, "no backend accepts the login");
                }
            }
        }
        if failed.delay.is_zero() || self.held.len() >= MAX_HELD {
            return PasswordCheck::Wrong;
        }
        self.next_held += 1;
        let key = (now + failed.delay, self.next_held);
        self.held.insert(key, (attempt.session, why));
        PasswordCheck::Later
    }

    /// Handles the result of a check. Returns the sessions that get it now; a refusal may come later, by [`Logins::due`].
    pub(crate) fn checked(
        &mut self,
        now: Time,
        id: CheckId,
        right: bool,
    ) -> Vec<(u64, LoginVerdict)> {
        let Some(waiting) = self.waiting.remove(&id) else {
            return Vec::new();
        };
        self.end_check_of(waiting.begun_by);
        let attempts = waiting.attempts.into_iter();
        if right {
            self.verified.add(id.0);
            let accepted = attempts.map(|attempt| {
                self.throttle.clear(attempt.peer.ip(), &attempt.user);
                (attempt.session, LoginVerdict::Right)
            });
            return accepted.collect();
        }
        let refused = attempts.filter_map(|attempt| {
            let session = attempt.session;
            let verdict = verdict(self.refuse_stored(now, attempt), None)?;
            Some((session, verdict))
        });
        refused.collect()
    }

    /// Sessions wait for the answer to their password, or have an identity that expires.
    pub(crate) fn has_timers(&self) -> bool {
        !self.held.is_empty() || !self.expiries.is_empty()
    }

    /// Sessions whose refusal was held back until now.
    pub(crate) fn due(&mut self, now: Time) -> Vec<(u64, LoginVerdict)> {
        let mut due = Vec::new();
        while let Some(first) = self.held.first_entry() {
            if first.key().0 > now {
                break;
            }
            let (session, why) = first.remove();
            due.push((session, LoginVerdict::Wrong(why)));
        }
        due
    }

    /// Sessions whose identity has expired.
    pub(crate) fn expired(&mut self, now: Time) -> Vec<u64> {
        let mut expired = Vec::new();
        while let Some(first) = self.expiries.first_entry() {
            let (at, session) = *first.key();
            if at > now {
                break;
            }
            first.remove();
            self.expiry_of.remove(&session);
            expired.push(session);
        }
        expired
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        let held = self.held.first_key_value().map(|((time, _), _)| *time);
        let expiry = self.expiries.first_key_value().map(|((time, _), ())| *time);
        held.into_iter().chain(expiry).min()
    }
}

/// The time until an identity expires. None: it does not.
fn remaining(identity: &Identity, wall: WallTime) -> Option<Duration> {
    let at = identity.expires_at?;
    Some(Duration::from_millis(at.0.saturating_sub(wall.0)))
}

/// The verdict for a session that waits. None: it comes later.
fn verdict(check: PasswordCheck, why: Option<Arc<str>>) -> Option<LoginVerdict> {
    match check {
        PasswordCheck::Right => Some(LoginVerdict::Right),
        PasswordCheck::Wrong => Some(LoginVerdict::Wrong(why)),
        PasswordCheck::Later => None,
        PasswordCheck::Busy => {
            let why = "too many logins are waiting to be checked";
            Some(LoginVerdict::Wrong(Some(why.into())))
        }
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

    fn sessions(told: Vec<(u64, LoginVerdict)>) -> Vec<u64> {
        told.into_iter().map(|(session, _)| session).collect()
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
        assert_eq!(
            sessions(rig.logins.checked(now, begun[0].0, true)),
            [1, 2, 3]
        );
        assert_eq!(sessions(rig.logins.checked(now, begun[1].0, false)), [4]);
        assert_eq!(rig.logins.checked(now, begun[1].0, true), []);
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
        assert_eq!(
            sessions(rig.logins.checked(rig.now, begun[0].0, false)),
            [1, 2]
        );
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
        assert_eq!(sessions(rig.logins.checked(rig.now, id, true)), [4]);
        assert!(rig.logins.due(rig.now).is_empty());
        let first = rig.logins.wake_at().unwrap();
        assert!(first > rig.now);
        assert_eq!(sessions(rig.logins.due(first)), [2]);
        assert_eq!(sessions(rig.logins.due(rig.now + MAX_DELAY)), [2; 4]);
        assert_eq!(rig.logins.wake_at(), None);
    }

    type Asked = Arc<Mutex<Vec<(u64, usize, Vec<u8>)>>>;

    const WALL: WallTime = WallTime(1_000_000);

    impl Rig {
        fn with_backends(backends: &[LoginBackend]) -> (Rig, Asked) {
            let mut rig = Rig::new();
            let asked = Asked::default();
            let seen = asked.clone();
            let identify = move |wanted: Identification| {
                let asked = (wanted.id, wanted.backend, wanted.password);
                seen.lock().unwrap().push(asked);
            };
            rig.logins
                .identify_with(backends.into(), Box::new(identify));
            (rig, asked)
        }

        fn identified(&mut self, id: u64, expires_at: Option<u64>) -> Option<(u64, LoginVerdict)> {
            let identity = Arc::new(Identity {
                user: "known".into(),
                tags: Vec::new(),
                permissions: metadata::IdentityPermissions::Stored,
                expires_at: expires_at.map(WallTime),
                backend: 0,
            });
            self.logins.identified((self.now, WALL), id, Ok(identity))
        }

        fn unknown(&mut self, id: u64, why: &str) -> Option<(u64, LoginVerdict)> {
            self.logins
                .identified((self.now, WALL), id, Err(why.to_owned()))
        }
    }

    #[test]
    fn backends_are_asked_in_order_until_one_accepts() {
        let backends = [LoginBackend::External(0), LoginBackend::Internal];
        let (mut rig, asked) = Rig::with_backends(&backends);
        assert_eq!(rig.try_in(1, 1, b"token"), PasswordCheck::Later);
        assert_eq!(asked.lock().unwrap().pop(), Some((1, 0, b"token".to_vec())));
        let told = rig.identified(1, None);
        assert!(matches!(told, Some((1, LoginVerdict::Identified(_)))));

        assert_eq!(rig.try_in(2, 1, b"password"), PasswordCheck::Later);
        assert_eq!(rig.unknown(2, "oauth2: no token"), None);
        let (id, password) = rig.begun().remove(0);
        assert_eq!(password, b"password");
        let told = rig.logins.checked(rig.now, id, true);
        assert_eq!(told, [(2, LoginVerdict::Right)]);
    }

    #[test]
    fn refusal_names_the_reason_of_each_backend() {
        let backends = [LoginBackend::Internal, LoginBackend::External(0)];
        let (mut rig, _asked) = Rig::with_backends(&backends);
        assert_eq!(rig.try_in(1, 1, b"wrong"), PasswordCheck::Later);
        let (id, _) = rig.begun().remove(0);
        assert_eq!(rig.logins.checked(rig.now, id, false), []);
        let told = rig.unknown(1, "oauth2: expired");
        let Some((1, LoginVerdict::Wrong(Some(why)))) = told else {
            panic!("{told:?}");
        };
        assert_eq!(
            &*why,
            "internal: wrong user name or password; oauth2: expired"
        );
    }

    #[test]
    fn stored_users_cannot_log_in_without_the_internal_backend() {
        let (mut rig, _asked) = Rig::with_backends(&[LoginBackend::External(0)]);
        let cheap = hash_with(HashAlgorithm::Sha256, b"p", b"salt").unwrap();
        assert_eq!(rig.login(1, 1, (&cheap, b"p")), PasswordCheck::Later);
        let told = rig.unknown(1, "no");
        assert!(matches!(told, Some((1, LoginVerdict::Wrong(_)))));
        assert!(rig.begun().is_empty());
    }

    #[test]
    fn identity_expires_unless_it_is_renewed() {
        let (mut rig, _asked) = Rig::with_backends(&[LoginBackend::External(0)]);
        assert_eq!(rig.try_in(1, 1, b"token"), PasswordCheck::Later);
        let Some((_, LoginVerdict::Identified(first))) = rig.identified(1, Some(WALL.0 + 1000))
        else {
            panic!("the user is unknown");
        };
        let at = rig.logins.wake_at().unwrap();
        assert_eq!(at, rig.now + Duration::from_secs(1));
        let client = (1, SocketAddr::from(([10, 0, 0, 1], 5000)));
        assert_eq!(
            rig.logins.renew(client, &first, b"new"),
            PasswordCheck::Later
        );
        assert!(rig.identified(2, Some(WALL.0 + 5000)).is_some());
        assert!(rig.logins.expired(at).is_empty());
        let at = rig.logins.wake_at().unwrap();
        assert_eq!(rig.logins.expired(at), [1]);
        assert_eq!(
            (rig.logins.wake_at(), rig.logins.has_timers()),
            (None, false)
        );

        assert_eq!(rig.try_in(2, 1, b"token"), PasswordCheck::Later);
        assert!(rig.identified(3, Some(WALL.0 + 1000)).is_some());
        rig.logins.session_ended(2);
        assert!(!rig.logins.has_timers() && rig.logins.expiry_of.is_empty());
    }

    #[test]
    fn expired_identity_is_refused() {
        let (mut rig, _asked) = Rig::with_backends(&[LoginBackend::External(0)]);
        assert_eq!(rig.try_in(1, 1, b"token"), PasswordCheck::Later);
        let told = rig.identified(1, Some(WALL.0));
        assert!(matches!(told, Some((1, LoginVerdict::Wrong(Some(_))))));
    }

    #[test]
    fn identifications_under_way_are_bounded() {
        let (mut rig, _asked) = Rig::with_backends(&[LoginBackend::External(0)]);
        let per_address = MAX_ADDRESS_CHECKS as u64;
        for n in 0..MAX_CHECKS as u64 {
            let host = u8::try_from(n / per_address).unwrap();
            assert_eq!(rig.try_in(n, host, b"token"), PasswordCheck::Later);
        }
        assert_eq!(rig.try_in(999, 0, b"token"), PasswordCheck::Busy);
        assert_eq!(rig.try_in(999, 99, b"token"), PasswordCheck::Busy);
        assert!(rig.identified(1, None).is_some());
        assert_eq!(rig.try_in(999, 99, b"token"), PasswordCheck::Later);
    }
}
