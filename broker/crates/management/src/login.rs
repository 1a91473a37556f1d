//! Authentication: basic credentials against the tree, slow for guessers.

use crate::ask::Api;
use crate::error::ApiError;
use auth::{FailedLogin, PasswordHash, Throttle, Verified};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use env::Time;
use metadata::UserRecord;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// Password checks under way at once: each is some 20 ms of a core and 7 MiB.
const CHECKS: usize = 2;
/// Of those, the checks for one address.
const ADDRESS_CHECKS: usize = 1;
/// Longest user name and password looked at.
const MAX_CREDENTIALS: usize = 4096;

/// Logins over HTTP since the node started or since they were reset. Cloning counts a reference.
#[derive(Clone, Debug, Default)]
pub struct LoginCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    succeeded: AtomicU64,
    failed: AtomicU64,
    /// Attempts counted before the last reset, so that metrics never go down.
    succeeded_before: AtomicU64,
    failed_before: AtomicU64,
}

impl LoginCounts {
    /// Succeeded and failed since the last reset.
    pub(crate) fn since_reset(&self) -> (u64, u64) {
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        (count(&self.0.succeeded), count(&self.0.failed))
    }

    /// Succeeded and failed since the node started.
    pub(crate) fn all(&self) -> (u64, u64) {
        let (succeeded, failed) = self.since_reset();
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        (
            succeeded + count(&self.0.succeeded_before),
            failed + count(&self.0.failed_before),
        )
    }

    pub(crate) fn reset(&self) {
        let Counts {
            succeeded,
            failed,
            succeeded_before,
            failed_before,
        } = &*self.0;
        for (now, before) in [(succeeded, succeeded_before), (failed, failed_before)] {
            before.fetch_add(now.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn note(&self, right: bool) {
        let count = match right {
            true => &self.0.succeeded,
            false => &self.0.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) struct Logins {
    verified: Mutex<Verified>,
    throttle: Mutex<Throttle>,
    hashing: Arc<Semaphore>,
    /// One for each address with a check that waits or is under way.
    lanes: Mutex<BTreeMap<IpAddr, Arc<Semaphore>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stopping() -> ApiError {
    ApiError::unavailable("the node is stopping")
}

/// An address's turn; without others who wait for one, the lane goes with it.
struct Lane<'a> {
    logins: &'a Logins,
    address: IpAddr,
    turns: Arc<Semaphore>,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut lanes = locked(&self.logins.lanes);
        // The map's and this one.
        if Arc::strong_count(&self.turns) <= 2 {
            lanes.remove(&self.address);
        }
    }
}

impl Logins {
    pub(crate) fn new(key: [u8; 32]) -> Logins {
        Logins {
            verified: Mutex::new(Verified::new(key)),
            throttle: Mutex::new(Throttle::new(key)),
            hashing: Arc::new(Semaphore::new(CHECKS)),
            lanes: Mutex::default(),
        }
    }

    fn failed(&self, peer: IpAddr, user: &str, now: Time) -> FailedLogin {
        locked(&self.throttle).note(peer, user, now)
    }

    fn lane(&self, peer: IpAddr) -> Lane<'_> {
        let address = peer.to_canonical();
        let mut lanes = locked(&self.lanes);
        let turns = lanes
            .entry(address)
            .or_insert_with(|| Arc::new(Semaphore::new(ADDRESS_CHECKS)))
            .clone();
        Lane {
            logins: self,
            address,
            turns,
        }
    }

    /// Checks a password on a blocking thread, unless it was right before. Addresses take turns, so that the guesses of one
    /// do not keep the others waiting. Every refusal costs a check of the costly kind: its time does not tell whether the
    /// user exists or how its password is stored.
    async fn check(
        &self,
        peer: IpAddr,
        hash: PasswordHash,
        password: Vec<u8>,
    ) -> Result<bool, ApiError> {
        if locked(&self.verified).knows(&hash, &password) {
            return Ok(true);
        }
        let lane = self.lane(peer);
        let _turn = lane.turns.acquire().await.map_err(|_| stopping())?;
        let work = (hash.clone(), password.clone());
        let right = self
            .blocking(move || {
                let (hash, password) = work;
                let right = auth::verify(&hash, &password);
                if !right && !hash.algorithm.is_costly() {
                    auth::verify(&auth::decoy(), &password);
                }
                right
            })
            .await?;
        if right {
            locked(&self.verified).remember(&hash, &password);
        }
        Ok(right)
    }

    /// Costly work on passwords: off the runtime's thread, a few at a time.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
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
    let logins = api.logins();
    let wanted = name.clone();
    let user = api
        .read(move |tree| (!tree.cluster().is_empty()).then(|| tree.user(&wanted).cloned()))
        .await?;
    // Before there is a cluster there are no users: no failure of whoever asks.
    let user = user.ok_or_else(|| ApiError::unavailable("this node is not in a cluster yet"))?;
    let hash = user.as_ref().and_then(|u| u.password.clone());
    let hash = hash.unwrap_or_else(auth::decoy);
    let right = logins.check(peer, hash, password).await?;
    api.config().login_counts.note(right);
    let Some(user) = user.filter(|_| right) else {
        let failure = logins.failed(peer, &name, api.moment().now);
        if let Some(unlogged) = failure.log {
            tracing::warn!(event = "login.failed", user = %name, %peer, unlogged, "wrong user name or password over HTTP");
        }
        tokio::time::sleep(failure.delay).await;
        return Err(failed());
    };
    locked(&logins.throttle).clear(peer, &name);
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
    fn counts_for_metrics_survive_a_reset() {
        let counts = LoginCounts::default();
        [true, false, false]
            .into_iter()
            .for_each(|right| counts.note(right));
        counts.reset();
        counts.note(false);
        assert_eq!(counts.since_reset(), (0, 1));
        assert_eq!(counts.all(), (1, 3));
    }

    #[test]
    fn lanes_of_addresses_end_with_their_last_check() {
        let logins = Logins::new([1; 32]);
        let address = IpAddr::from([10, 0, 0, 1]);
        let (first, second) = (logins.lane(address), logins.lane(address));
        drop(first);
        assert_eq!(locked(&logins.lanes).len(), 1);
        drop(second);
        assert!(locked(&logins.lanes).is_empty());
    }
}
