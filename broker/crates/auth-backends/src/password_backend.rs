//! Threads that ask a server about passwords, and the cache of the logins that it accepts.

use crate::service::{Answer, IdentityRequest};
use env::{Clock, Time};
use metadata::{Identity, IdentityPermissions, Name};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Requests to one server at the same time.
pub const PASSWORD_THREADS: usize = 4;
/// Most logins of a backend whose answer is kept. The oldest is forgotten first.
pub const MAX_CACHED_LOGINS: usize = 4096;
/// Longest user name and tag in bytes.
pub(crate) const MAX_NAME: usize = 255;
/// Longest password in bytes.
const MAX_PASSWORD: usize = 4096;
/// Most tags of a user.
pub(crate) const MAX_TAGS: usize = 64;
/// A login that has waited longer for a thread is refused, since its client has given up.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The tags and permissions of a user whose password is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedLogin {
    pub(crate) tags: Vec<Name>,
    pub(crate) permissions: IdentityPermissions,
}

/// A server that checks passwords.
pub(crate) trait PasswordChecker: Send + Sync {
    /// The name of the backend, for threads and refusals.
    fn name(&self) -> &'static str;

    /// Asks the server, and waits for its answer. Errors are for the log and must not contain the password.
    fn check(&self, user: &str, password: &[u8]) -> Result<AcceptedLogin, String>;
}

struct Waiting {
    request: IdentityRequest,
    since: Time,
}

/// The running backend.
pub(crate) struct PasswordBackend {
    inbox: Sender<Waiting>,
    shared: Arc<Shared>,
}

struct Shared {
    checker: Box<dyn PasswordChecker>,
    clock: Arc<dyn Clock + Send + Sync>,
    cache: Mutex<LoginCache>,
    /// Whether the permissions of each backend's users are in the metadata.
    are_stored: Arc<[bool]>,
}

impl PasswordBackend {
    /// Starts the threads. `key` must be random and stay in this process.
    pub(crate) fn start(
        checker: Box<dyn PasswordChecker>,
        clock: Arc<dyn Clock + Send + Sync>,
        (key, cache_ttl): ([u8; 32], Duration),
        are_stored: Arc<[bool]>,
    ) -> io::Result<PasswordBackend> {
        let (inbox, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let name = checker.name();
        let shared = Arc::new(Shared {
            checker,
            clock,
            cache: Mutex::new(LoginCache::new(key, cache_ttl)),
            are_stored,
        });
        for n in 0..PASSWORD_THREADS {
            let (shared, waiting) = (shared.clone(), waiting.clone());
            std::thread::Builder::new()
                .name(format!("auth-{name}-{n}"))
                .spawn(move || shared.run(&waiting))?;
        }
        Ok(PasswordBackend { inbox, shared })
    }

    pub(crate) fn identify(&self, request: IdentityRequest) {
        let shared = &self.shared;
        if let Err(why) = check_credentials(&request) {
            return (request.reply)(Err(format!("{}: {why}", shared.checker.name())));
        }
        let since = shared.clock.now();
        let cached = lock(&shared.cache).get(&request.user, &request.password, since);
        match cached {
            Some(login) => {
                let identity = shared.identity(&request.user, &login, request.backend);
                (request.reply)(Ok(identity));
            }
            // Sending fails only if the threads have ended, which means that the process is ending.
            None => drop(self.inbox.send(Waiting { request, since })),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_credentials(request: &IdentityRequest) -> Result<(), &'static str> {
    if request.user.is_empty() || request.user.len() > MAX_NAME {
        return Err("the user name is empty or longer than 255 bytes");
    }
    if request.password.len() > MAX_PASSWORD {
        return Err("the password is longer than 4096 bytes");
    }
    Ok(())
}

impl Shared {
    fn run(&self, waiting: &Mutex<Receiver<Waiting>>) {
        loop {
            // Held while receiving: the other threads wait for the lock instead.
            let next = lock(waiting).recv();
            let Ok(Waiting { request, since }) = next else {
                return;
            };
            let answer = match self.clock.now().since(since) > MAX_WAIT {
                true => Err("too many logins wait for the server".to_owned()),
                false => self.check(&request),
            };
            let name = self.checker.name();
            (request.reply)(answer.map_err(|why| format!("{name}: {why}")));
        }
    }

    fn check(&self, request: &IdentityRequest) -> Answer {
        let (user, password) = (&*request.user, &*request.password);
        let login = Arc::new(self.checker.check(user, password)?);
        let now = self.clock.now();
        lock(&self.cache).put((user, password), &login, now);
        Ok(self.identity(user, &login, request.backend))
    }

    fn identity(&self, user: &str, login: &AcceptedLogin, backend: usize) -> Arc<Identity> {
        let is_stored = self.are_stored.get(backend) == Some(&true);
        Arc::new(Identity {
            user: user.into(),
            tags: login.tags.clone(),
            permissions: match is_stored {
                true => IdentityPermissions::Stored,
                false => login.permissions.clone(),
            },
            expires_at: None,
            backend,
        })
    }
}

/// Accepted logins by a keyed digest. The passwords themselves are not kept.
struct LoginCache {
    key: [u8; 32],
    ttl: Duration,
    known: BTreeMap<[u8; 32], (Time, Arc<AcceptedLogin>)>,
    order: VecDeque<[u8; 32]>,
}

impl LoginCache {
    fn new(key: [u8; 32], ttl: Duration) -> LoginCache {
        LoginCache {
            key,
            ttl,
            known: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }

    fn digest(&self, user: &str, password: &[u8]) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(self.key);
        digest.update(Sha256::digest(user));
        digest.update(Sha256::digest(password));
        digest.finalize().into()
    }

    fn get(&self, user: &str, password: &[u8], now: Time) -> Option<Arc<AcceptedLogin>> {
        if self.known.is_empty() {
            return None;
        }
        let (until, login) = self.known.get(&self.digest(user, password))?;
        (now < *until).then(|| login.clone())
    }

    fn put(&mut self, (user, password): (&str, &[u8]), login: &Arc<AcceptedLogin>, now: Time) {
        if self.ttl.is_zero() {
            return;
        }
        let digest = self.digest(user, password);
        let entry = (now + self.ttl, login.clone());
        if self.known.insert(digest, entry).is_some() {
            return;
        }
        self.order.push_back(digest);
        if self.order.len() > MAX_CACHED_LOGINS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_bounded_and_forgets_in_time() {
        let second = |n| Time::ZERO + Duration::from_secs(n);
        let login = Arc::new(AcceptedLogin {
            tags: vec!["t".into()],
            permissions: IdentityPermissions::Stored,
        });
        let mut cache = LoginCache::new([7; 32], Duration::from_secs(10));
        cache.put(("u", b"p"), &login, second(1));
        assert_eq!(cache.get("u", b"p", second(10)), Some(login.clone()));
        assert_eq!(cache.get("u", b"p", second(11)), None);
        assert_eq!(cache.get("u", b"q", second(2)), None);
        assert_eq!(cache.get("up", b"", second(2)), None);
        for n in 0..2 * MAX_CACHED_LOGINS {
            cache.put((&n.to_string(), b"p"), &login, second(1));
        }
        assert_eq!(cache.known.len(), MAX_CACHED_LOGINS);
        assert_eq!(cache.order.len(), MAX_CACHED_LOGINS);
        let mut off = LoginCache::new([7; 32], Duration::ZERO);
        off.put(("u", b"p"), &login, second(1));
        assert_eq!(off.get("u", b"p", second(1)), None);
    }
}
