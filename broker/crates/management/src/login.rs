//! Authentication: basic credentials against the tree, slow for guessers.

use crate::ask::Api;
use crate::error::ApiError;
use auth::{FailedLogin, PasswordHash, Throttle, Verified};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control::LoginCounts;
use env::Time;
use metadata::UserRecord;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// Password checks under way at once: each is some 20 ms of a core and 7 MiB.
const CHECKS: usize = 2;
/// Of those, the checks for one address.
const ADDRESS_CHECKS: usize = 1;
/// Longest user name and password looked at.
const MAX_CREDENTIALS: usize = 4096;

/// Logins by protocol.
pub(crate) type LoginsByProtocol = BTreeMap<String, LoginCounts>;

/// The protocol of this API in metrics.
pub(crate) const HTTP: &str = "http";

/// Counts logins over HTTP, and remembers the counts of all protocols at the last reset. Cloning counts a reference.
#[derive(Clone, Debug, Default)]
pub struct LoginCounter(Arc<Mutex<LoginHistory>>);

#[derive(Debug, Default)]
struct LoginHistory {
    /// Since the node started.
    http: LoginCounts,
    at_reset: LoginsByProtocol,
}

impl LoginCounter {
    /// Since the node started, those over HTTP among them. Never goes down, as counters in metrics must not.
    pub(crate) fn all(&self, mut of_clients: LoginsByProtocol) -> LoginsByProtocol {
        of_clients.insert(HTTP.to_owned(), locked(&self.0).http);
        of_clients
    }

    /// Since the last reset.
    pub(crate) fn since_reset(&self, of_clients: LoginsByProtocol) -> LoginsByProtocol {
        let mut logins = self.all(of_clients);
        let history = locked(&self.0);
        for (protocol, counts) in &mut logins {
            let before = history.at_reset.get(protocol).copied().unwrap_or_default();
            counts.succeeded = counts.succeeded.saturating_sub(before.succeeded);
            counts.failed = counts.failed.saturating_sub(before.failed);
        }
        logins
    }

    pub(crate) fn reset(&self, of_clients: LoginsByProtocol) {
        let logins = self.all(of_clients);
        locked(&self.0).at_reset = logins;
    }

    fn count(&self, succeeded: bool) {
        locked(&self.0).http.count(succeeded);
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

/// The name of the operator in answers and in the log.
pub(crate) const OPERATOR: &str = "operator";

/// The holder of the operator's certificate, which TLS has verified: an administrator that no user record can take anything from.
pub(crate) async fn operator(api: &Api) -> Result<Arc<UserRecord>, ApiError> {
    // The same answer that a user gets.
    let has_cluster = api.read(|tree| !tree.cluster().is_empty()).await?;
    if !has_cluster {
        return Err(no_cluster());
    }
    Ok(Arc::new(UserRecord {
        name: OPERATOR.into(),
        password: None,
        tags: vec!["administrator".into()],
        limits: Vec::new(),
    }))
}

fn no_cluster() -> ApiError {
    ApiError::unavailable("this node is not in a cluster yet")
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
    let user = user.ok_or_else(no_cluster)?;
    let hash = user.as_ref().and_then(|u| u.password.clone());
    let hash = hash.unwrap_or_else(auth::decoy);
    let right = logins.check(peer, hash, password).await?;
    api.config().login_counter.count(right);
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
        let counter = LoginCounter::default();
        let counts = |succeeded, failed| LoginCounts { succeeded, failed };
        let of_clients = |count| LoginsByProtocol::from([("mqtt".to_owned(), count)]);
        let pairs = |mqtt, http| {
            LoginsByProtocol::from([("http".to_owned(), http), ("mqtt".to_owned(), mqtt)])
        };
        [true, false, false]
            .into_iter()
            .for_each(|right| counter.count(right));
        counter.reset(of_clients(counts(5, 6)));
        counter.count(false);
        let now = of_clients(counts(5, 8));
        assert_eq!(
            counter.since_reset(now.clone()),
            pairs(counts(0, 2), counts(0, 1))
        );
        assert_eq!(counter.all(now), pairs(counts(5, 8), counts(1, 3)));
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
