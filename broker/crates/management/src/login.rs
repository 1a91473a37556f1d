//! Who is asking: basic authentication against the tree, bounded against guessing (O5).

use crate::ask::Api;
use crate::error::ApiError;
use auth::{PasswordHash, Verified};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use metadata::UserRecord;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Password checks under way at once: each is some 20 ms of a core and 7 MiB.
const CHECKS: usize = 2;
/// Failures of one user from one address before it has to wait, and how long.
const FAILURES: u32 = 10;
const PENALTY: Duration = Duration::from_secs(10);
/// User and address pairs kept; when full, those whose time is over go.
const WATCHED: usize = 4096;
/// Longest user name and password looked at.
const MAX_CREDENTIALS: usize = 4096;

pub(crate) struct Logins {
    verified: Mutex<Verified>,
    failed: Mutex<BTreeMap<(IpAddr, String), Failed>>,
    pub(crate) hashing: Arc<Semaphore>,
    succeeded: AtomicU64,
    failures: AtomicU64,
}

struct Failed {
    times: u32,
    last: Instant,
}

impl Logins {
    pub(crate) fn new(key: [u8; 32]) -> Logins {
        Logins {
            verified: Mutex::new(Verified::new(key)),
            failed: Mutex::new(BTreeMap::new()),
            hashing: Arc::new(Semaphore::new(CHECKS)),
            succeeded: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    fn barred(&self, who: &(IpAddr, String)) -> bool {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed
            .get(who)
            .is_some_and(|f| f.times >= FAILURES && f.last.elapsed() < PENALTY)
    }

    /// Logins that succeeded and that failed.
    pub(crate) fn attempts(&self) -> (u64, u64) {
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        (count(&self.succeeded), count(&self.failures))
    }

    pub(crate) fn reset_attempts(&self) {
        self.succeeded.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    fn note(&self, who: (IpAddr, String), right: bool) {
        let count = if right {
            &self.succeeded
        } else {
            &self.failures
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if right {
            failed.remove(&who);
            return;
        }
        if failed.len() >= WATCHED {
            failed.retain(|_, f| f.last.elapsed() < PENALTY);
        }
        if failed.len() >= WATCHED && !failed.contains_key(&who) {
            failed.pop_first();
        }
        let entry = failed.entry(who).or_insert(Failed {
            times: 0,
            last: Instant::now(),
        });
        if entry.last.elapsed() >= PENALTY {
            entry.times = 0;
        }
        entry.times += 1;
        entry.last = Instant::now();
    }

    fn knows(&self, hash: &PasswordHash, password: &[u8]) -> bool {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.knows(hash, password)
    }

    fn remember(&self, hash: &PasswordHash, password: &[u8]) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.remember(hash, password);
    }

    /// Checks a password on a blocking thread, unless it was right before.
    async fn check(&self, hash: PasswordHash, password: Vec<u8>) -> Result<bool, ApiError> {
        if self.knows(&hash, &password) {
            return Ok(true);
        }
        let work = (hash.clone(), password.clone());
        let right = self
            .blocking(move || auth::verify(&work.0, &work.1))
            .await?;
        if right {
            self.remember(&hash, &password);
        }
        Ok(right)
    }

    /// Costly work on passwords: off the runtime's thread, a few at a time.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let stopping = || ApiError::unavailable("the node is stopping");
        let place = self.hashing.clone().acquire_owned().await;
        let place = place.map_err(|_| stopping())?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(place);
            result
        });
        done.await.map_err(|_| stopping())
    }
}

/// Takes the user from an `Authorization` header.
pub(crate) async fn login(
    api: &Api,
    header: Option<&str>,
    peer: IpAddr,
) -> Result<Arc<UserRecord>, ApiError> {
    let failed = || ApiError::not_authorized("Not_Authorized");
    let (name, password) = header.and_then(basic).ok_or_else(failed)?;
    let who = (peer, name.clone());
    let logins = api.logins();
    if logins.barred(&who) {
        return Err(ApiError::too_many());
    }
    let wanted = name.clone();
    let user = api
        .read(move |tree| (!tree.cluster().is_empty()).then(|| tree.user(&wanted).cloned()))
        .await?;
    // Before there is a cluster there are no users: no failure of whoever asks.
    let user = user.ok_or_else(|| ApiError::unavailable("this node is not in a cluster yet"))?;
    let right = match user.as_ref().and_then(|u| u.password.clone()) {
        Some(hash) => logins.check(hash, password).await?,
        None => false,
    };
    logins.note(who, right);
    let user = user.filter(|_| right).ok_or_else(failed)?;
    let home_only = api.config().loopback_users.contains(&name);
    if home_only && !peer.to_canonical().is_loopback() {
        return Err(ApiError::not_authorized(
            "User can only log in via localhost",
        ));
    }
    Ok(user)
}

fn basic(header: &str) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > MAX_CREDENTIALS {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|b| *b == b':')?;
    let (name, password) = decoded.split_at(colon);
    let name = std::str::from_utf8(name).ok()?.to_owned();
    Some((name, password.get(1..)?.to_vec()))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn basic_headers_are_read() {
        let guest = STANDARD.encode("guest:a:b");
        let read = basic(&format!("Basic {guest}")).unwrap();
        assert_eq!(read, ("guest".to_owned(), b"a:b".to_vec()));
        for bad in ["", "Basic", "Basic !!!", "Bearer abc", "Basic Z3Vlc3Q="] {
            assert_eq!(basic(bad), None, "{bad}");
        }
    }

    #[test]
    fn failures_bar_only_their_own_and_are_bounded() {
        let logins = Logins::new([1; 32]);
        let who = |n: u8, name: &str| (IpAddr::from([10, 0, 0, n]), name.to_owned());
        for _ in 0..FAILURES {
            assert!(!logins.barred(&who(1, "u")));
            logins.note(who(1, "u"), false);
        }
        assert!(logins.barred(&who(1, "u")));
        assert!(!logins.barred(&who(1, "v")) && !logins.barred(&who(2, "u")));
        logins.note(who(1, "u"), true);
        assert!(!logins.barred(&who(1, "u")));
        for n in 0..WATCHED + 100 {
            logins.note(who(3, &n.to_string()), false);
        }
        assert!(logins.failed.lock().unwrap().len() <= WATCHED);
    }
}
