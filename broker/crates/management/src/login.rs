//! Authentication with basic credentials or a token. Throttles repeated failures.

use crate::ask::Api;
use crate::error::ApiError;
use auth::{FailedLoginResponse, LoginThrottle, PasswordHash, VerifiedPasswordCache};
use auth_backends::{BackendKind, IdentityRequest, WebLogin};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control::{ControlRequest, LoginCounts, Readiness};
use env::Time;
use metadata::{Identity, IdentityPermissions, UserRecord};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Maximum number of concurrent password checks: each takes about 20 ms of a core and 7 MiB.
const CHECKS: usize = 2;
/// Maximum number of concurrent checks per address.
const ADDRESS_CHECKS: usize = 1;
/// Maximum length of encoded credentials in bytes: a token as password, in base64.
const MAX_CREDENTIALS: usize = 24 * 1024;
/// Longest password of a stored user in bytes.
const MAX_PASSWORD: usize = 4096;
/// Maximum number of concurrent questions to external backends.
const IDENTIFICATIONS: usize = 64;
/// Maximum number of concurrent requests to the OpenID provider for the web UI.
const PROVIDER_REQUESTS: usize = 4;
/// Maximum number of concurrent requests with a body but without credentials, and of those of one address: they share the
/// memory for bodies with authenticated requests.
const PUBLIC_REQUESTS: usize = 8;
const ADDRESS_PUBLIC_REQUESTS: usize = 4;

/// Login counts by protocol.
pub(crate) type LoginsByProtocol = BTreeMap<String, LoginCounts>;

/// Protocol label of this API in metrics.
pub(crate) const HTTP: &str = "http";

/// Counts logins over HTTP and remembers the counts of all protocols at the last reset. Cloning
/// increments a reference count.
#[derive(Clone, Debug, Default)]
pub struct LoginCounter(Arc<Mutex<LoginHistory>>);

#[derive(Debug, Default)]
struct LoginHistory {
    /// Since the node started.
    http: LoginCounts,
    at_reset: LoginsByProtocol,
}

impl LoginCounter {
    /// Counts since the node started, including HTTP. Monotonic, as metric counters must be.
    pub(crate) fn all(&self, mut client_logins: LoginsByProtocol) -> LoginsByProtocol {
        client_logins.insert(HTTP.to_owned(), lock(&self.0).http);
        client_logins
    }

    /// Since the last reset.
    pub(crate) fn since_reset(&self, client_logins: LoginsByProtocol) -> LoginsByProtocol {
        let mut logins = self.all(client_logins);
        let history = lock(&self.0);
        for (protocol, counts) in &mut logins {
            let before = history.at_reset.get(protocol).copied().unwrap_or_default();
            counts.succeeded = counts.succeeded.saturating_sub(before.succeeded);
            counts.failed = counts.failed.saturating_sub(before.failed);
        }
        logins
    }

    pub(crate) fn reset(&self, client_logins: LoginsByProtocol) {
        let logins = self.all(client_logins);
        lock(&self.0).at_reset = logins;
    }

    fn count(&self, succeeded: bool) {
        lock(&self.0).http.count(succeeded);
    }
}

pub(crate) struct Logins {
    verified: Mutex<VerifiedPasswordCache>,
    throttle: Mutex<LoginThrottle>,
    hashing: Arc<Semaphore>,
    identifying: Semaphore,
    /// Requests to the OpenID provider for the web UI.
    asking: Arc<Semaphore>,
    /// Password checks of each address.
    checking: AddressLanes,
    /// Requests without credentials: all, and those of each address.
    public: Semaphore,
    public_lanes: AddressLanes,
}

/// Limits the concurrent work of each address.
struct AddressLanes {
    permits: usize,
    /// One semaphore per address with waiting or running work.
    lanes: Mutex<BTreeMap<IpAddr, Arc<Semaphore>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stopping() -> ApiError {
    ApiError::unavailable("the node is stopping")
}

/// The semaphore of one address. The last lane of the address removes it from the map.
struct AddressLane<'a> {
    all: &'a AddressLanes,
    address: IpAddr,
    semaphore: Arc<Semaphore>,
}

impl Drop for AddressLane<'_> {
    fn drop(&mut self) {
        let mut lanes = lock(&self.all.lanes);
        // The map's reference and this one.
        if Arc::strong_count(&self.semaphore) <= 2 {
            lanes.remove(&self.address);
        }
    }
}

impl AddressLanes {
    fn new(permits: usize) -> AddressLanes {
        AddressLanes {
            permits,
            lanes: Mutex::default(),
        }
    }

    fn lane(&self, peer: IpAddr) -> AddressLane<'_> {
        let address = peer.to_canonical();
        let mut lanes = lock(&self.lanes);
        let semaphore = lanes
            .entry(address)
            .or_insert_with(|| Arc::new(Semaphore::new(self.permits)))
            .clone();
        AddressLane {
            all: self,
            address,
            semaphore,
        }
    }
}

impl AddressLane<'_> {
    async fn acquire(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        self.semaphore.acquire().await.map_err(|_| stopping())
    }
}

/// Permission to serve one request without credentials.
pub(crate) struct PublicTurn<'a> {
    _all: SemaphorePermit<'a>,
    _address: OwnedSemaphorePermit,
    // Dropped last, so that it sees whether the semaphore is still in use.
    _lane: AddressLane<'a>,
}

impl Logins {
    pub(crate) fn new(key: [u8; 32]) -> Logins {
        Logins {
            verified: Mutex::new(VerifiedPasswordCache::new(key)),
            throttle: Mutex::new(LoginThrottle::new(key)),
            hashing: Arc::new(Semaphore::new(CHECKS)),
            identifying: Semaphore::new(IDENTIFICATIONS),
            asking: Arc::new(Semaphore::new(PROVIDER_REQUESTS)),
            checking: AddressLanes::new(ADDRESS_CHECKS),
            public: Semaphore::new(PUBLIC_REQUESTS),
            public_lanes: AddressLanes::new(ADDRESS_PUBLIC_REQUESTS),
        }
    }

    fn failed(&self, peer: IpAddr, user: &str, now: Time) -> FailedLoginResponse {
        lock(&self.throttle).note(peer, user, now)
    }

    /// Waits until a request without credentials may be served.
    pub(crate) async fn public_turn(&self, peer: IpAddr) -> Result<PublicTurn<'_>, ApiError> {
        let lane = self.public_lanes.lane(peer);
        let address = lane.semaphore.clone().acquire_owned().await;
        Ok(PublicTurn {
            _address: address.map_err(|_| stopping())?,
            _all: self.public.acquire().await.map_err(|_| stopping())?,
            _lane: lane,
        })
    }

    /// Checks a password on a blocking thread, unless it was verified before. Checks of one address
    /// are serialized, so that its guesses do not delay others. Every failure costs a full hash:
    /// the response time does not reveal whether the user exists or how its password is stored.
    async fn check(
        &self,
        peer: IpAddr,
        hash: PasswordHash,
        password: Vec<u8>,
    ) -> Result<bool, ApiError> {
        if password.len() > MAX_PASSWORD {
            return Ok(false);
        }
        if lock(&self.verified).knows(&hash, &password) {
            return Ok(true);
        }
        let lane = self.checking.lane(peer);
        let _turn = lane.acquire().await?;
        let work = (hash.clone(), password.clone());
        let is_correct = self
            .blocking(move || {
                let (hash, password) = work;
                let is_correct = auth::verify(&hash, &password);
                if !is_correct && !hash.algorithm.is_costly() {
                    auth::verify(&auth::decoy(), &password);
                }
                is_correct
            })
            .await?;
        if is_correct {
            lock(&self.verified).remember(&hash, &password);
        }
        Ok(is_correct)
    }

    /// Runs expensive password work on a blocking thread, a few at a time.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        block(&self.hashing, work).await
    }

    /// Asks the OpenID provider on a blocking thread, a few requests at a time.
    pub(crate) async fn ask_provider<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        block(&self.asking, work).await
    }
}

/// Runs work on a blocking thread, as many at a time as the semaphore has permits.
async fn block<T: Send + 'static>(
    semaphore: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let permit = semaphore.clone().acquire_owned().await;
    let permit = permit.map_err(|_| stopping())?;
    let result = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    });
    result.await.map_err(|_| stopping())
}

/// The operator's name in responses and in the log.
pub(crate) const OPERATOR: &str = "operator";

/// Returns the operator, whose certificate TLS has verified: an administrator independent of user
/// records.
pub(crate) async fn operator(api: &Api) -> Result<Arc<UserRecord>, ApiError> {
    // Users get the same error before the cluster is formed.
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

/// The user of a request without credentials, who has no name and no tag.
pub(crate) fn nobody() -> Arc<UserRecord> {
    Arc::new(UserRecord {
        name: "".into(),
        password: None,
        tags: Vec::new(),
        limits: Vec::new(),
    })
}

/// Logs a refused sign-in of the web UI, and delays its answer, like a failed login.
pub(crate) async fn delay_refused_sign_in(api: &Api, peer: IpAddr, why: &Json) {
    let failure = api.logins().failed(peer, "", api.moment().now);
    if let Some(unlogged) = failure.log {
        tracing::warn!(event = "oauth2.sign_in_refused", %peer, unlogged, why = why.as_str());
    }
    tokio::time::sleep(failure.delay).await;
}

/// The sign-in of the web UI at the OpenID provider. None: it is not enabled.
pub(crate) fn web_login(api: &Api) -> Option<Arc<WebLogin>> {
    let identities = api.config().identities.as_ref()?;
    identities.web_login().cloned()
}

/// The user of a request.
#[derive(Clone)]
pub(crate) struct LoggedIn {
    /// The stored user, or one with the name and tags of the identity.
    pub(crate) user: Arc<UserRecord>,
    /// The identity from an external backend.
    pub(crate) identity: Option<Arc<Identity>>,
}

impl LoggedIn {
    pub(crate) fn stored(user: Arc<UserRecord>) -> LoggedIn {
        let identity = None;
        LoggedIn { user, identity }
    }

    /// `record`: the stored user of this name, if there is one.
    fn identified(identity: Arc<Identity>, record: Option<&UserRecord>) -> LoggedIn {
        let mut tags = identity.tags.clone();
        if identity.permissions == IdentityPermissions::Stored {
            tags.extend(record.into_iter().flat_map(|record| record.tags.clone()));
        }
        let user = Arc::new(UserRecord {
            name: identity.user.clone(),
            password: None,
            tags,
            limits: Vec::new(),
        });
        let identity = Some(identity);
        LoggedIn { user, identity }
    }
}

/// Returns true if this API takes tokens only.
fn refuses_passwords(api: &Api) -> bool {
    web_login(api).is_some_and(|web| web.settings().disables_basic_auth)
}

/// The content of an `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
struct HttpCredentials {
    user: String,
    password: Vec<u8>,
    /// The password is a token, which no stored user has.
    is_token: bool,
}

impl HttpCredentials {
    /// Returns true for a token and for a password that is one: the header of every token is a JSON object, in base64.
    fn has_token(&self) -> bool {
        self.is_token || self.password.starts_with(b"eyJ")
    }
}

/// Authenticates the user of an `Authorization` header.
pub(crate) async fn login(
    api: &Api,
    header: Option<&str>,
    peer: IpAddr,
) -> Result<LoggedIn, ApiError> {
    let failed = || ApiError::not_authorized("Not_Authorized");
    let credentials = header.and_then(parse_credentials).ok_or_else(failed)?;
    if refuses_passwords(api) && !credentials.has_token() {
        return Err(ApiError::not_authorized(
            "passwords are disabled: use an access token (management.oauth_disable_basic_auth)",
        ));
    }
    let logins = api.logins();
    let checked = check_backends(api, &credentials, peer).await?;
    let user = match &checked {
        Ok(logged_in) => logged_in.user.name.to_string(),
        Err(_) => credentials.user,
    };
    let is_loopback_only = api.config().loopback_users.contains(&user);
    let is_too_far = is_loopback_only && !peer.to_canonical().is_loopback();
    let is_correct = checked.is_ok();
    api.config().login_counter.count(is_correct && !is_too_far);
    let logged_in = match checked {
        Ok(logged_in) => logged_in,
        Err(why) => {
            let failure = logins.failed(peer, &user, api.moment().now);
            if let Some(unlogged) = failure.log {
                tracing::warn!(event = "login.failed", user = %user, %peer, unlogged, why, "login over HTTP refused");
            }
            tokio::time::sleep(failure.delay).await;
            return Err(failed());
        }
    };
    lock(&logins.throttle).clear(peer, &user);
    if is_too_far {
        return Err(ApiError::not_authorized(
            "User can only log in via localhost",
        ));
    }
    Ok(logged_in)
}

/// Asks the backends in order. The inner error has the reason of each, for the log.
async fn check_backends(
    api: &Api,
    credentials: &HttpCredentials,
    peer: IpAddr,
) -> Result<Result<LoggedIn, String>, ApiError> {
    let mut refusals = Vec::new();
    let tokens_only = refuses_passwords(api);
    for (index, backend) in api.config().backends.iter().enumerate() {
        if tokens_only && backend.authn != BackendKind::OAuth2 {
            continue;
        }
        let result = match backend.is_internal() {
            true if credentials.is_token => continue,
            true => check_stored(api, credentials, peer).await?,
            false => identify(api, index, credentials).await?,
        };
        match result {
            Ok(logged_in) => return Ok(Ok(logged_in)),
            Err(why) => refusals.push(why),
        }
    }
    Ok(Err(refusals.join("; ")))
}

/// Checks the password of a stored user.
async fn check_stored(
    api: &Api,
    credentials: &HttpCredentials,
    peer: IpAddr,
) -> Result<Result<LoggedIn, String>, ApiError> {
    let user = stored_user(api, &credentials.user).await?;
    let hash = user.as_ref().and_then(|u| u.password.clone());
    let hash = hash.unwrap_or_else(auth::decoy);
    let password = credentials.password.clone();
    let is_correct = api.logins().check(peer, hash, password).await?;
    if !is_correct {
        check_metadata_is_current(api).await?;
    }
    let user = user.filter(|_| is_correct);
    let why = || "wrong user name or password".to_owned();
    Ok(user.map(LoggedIn::stored).ok_or_else(why))
}

async fn stored_user(api: &Api, name: &str) -> Result<Option<Arc<UserRecord>>, ApiError> {
    let wanted = name.to_owned();
    let user = api
        .read(move |tree| (!tree.cluster().is_empty()).then(|| tree.user(&wanted).cloned()))
        .await?;
    // No users exist before the cluster is formed, so this is not a failed login.
    user.ok_or_else(no_cluster)
}

/// Asks an external backend.
async fn identify(
    api: &Api,
    backend: usize,
    credentials: &HttpCredentials,
) -> Result<Result<LoggedIn, String>, ApiError> {
    let Some(service) = &api.config().identities else {
        return Ok(Err("the backend does not run".to_owned()));
    };
    let _permit = api.logins().identifying.acquire().await;
    let (reply, answer) = tokio::sync::oneshot::channel();
    service.identify(IdentityRequest {
        backend,
        user: credentials.user.clone(),
        password: credentials.password.clone(),
        // The receiver is gone if the request has timed out.
        reply: Box::new(move |result| drop(reply.send(result))),
    });
    let identity = match answer.await.map_err(|_| stopping())? {
        Ok(identity) => identity,
        Err(why) => return Ok(Err(why)),
    };
    let now = api.moment().wall;
    if identity.expires_at.is_some_and(|end| end <= now) {
        return Ok(Err("the identity has expired".to_owned()));
    }
    let record = stored_user(api, &identity.user).await?;
    Ok(Ok(LoggedIn::identified(identity, record.as_deref())))
}

/// Fails if the node may not know the newest users and passwords. A client would take 401 for the refusal of
/// a password that is right.
async fn check_metadata_is_current(api: &Api) -> Result<(), ApiError> {
    match api.ask(|reply| ControlRequest::Readiness { reply }).await? {
        Readiness::Ready | Readiness::Draining => Ok(()),
        Readiness::NotReady(why) => Err(ApiError::unavailable(format!(
            "the user and password cannot be checked: this node is not ready: {why}"
        ))),
    }
}

/// The user that a request claims to be of, and the mechanism for the audit log.
pub(crate) fn claimed_user(header: Option<&str>) -> (String, &'static str) {
    match header.and_then(parse_credentials) {
        Some(credentials) if credentials.is_token => (String::new(), "BEARER"),
        Some(credentials) => (credentials.user, "BASIC"),
        None => (String::new(), "BASIC"),
    }
}

fn parse_credentials(header: &str) -> Option<HttpCredentials> {
    let (scheme, token) = header.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") && token.len() <= MAX_CREDENTIALS {
        return Some(HttpCredentials {
            user: String::new(),
            password: token.trim().as_bytes().to_vec(),
            is_token: true,
        });
    }
    let (user, password) = parse_basic(header)?;
    let is_token = false;
    Some(HttpCredentials {
        user,
        password,
        is_token,
    })
}

fn parse_basic(header: &str) -> Option<(String, Vec<u8>)> {
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
    fn basic_header_is_parsed() {
        let guest = STANDARD.encode("guest:a:b");
        let read = parse_basic(&format!("Basic {guest}")).unwrap();
        assert_eq!(read, ("guest".to_owned(), b"a:b".to_vec()));
        for bad in ["", "Basic", "Basic !!!", "Bearer abc", "Basic Z3Vlc3Q="] {
            assert_eq!(parse_basic(bad), None, "{bad}");
        }
    }

    #[test]
    fn bearer_header_has_a_token_without_user() {
        let read = parse_credentials("bearer a.b.c").unwrap();
        assert_eq!(
            (&*read.user, &*read.password, read.is_token),
            ("", &b"a.b.c"[..], true)
        );
        let long = format!("Bearer {}", "x".repeat(MAX_CREDENTIALS + 1));
        assert_eq!(parse_credentials(&long), None);
        assert_eq!(claimed_user(Some("Bearer x")), (String::new(), "BEARER"));
        assert_eq!(claimed_user(None).1, "BASIC");
    }

    #[test]
    fn metric_counts_survive_a_reset() {
        let counter = LoginCounter::default();
        let counts = |succeeded, failed| LoginCounts { succeeded, failed };
        let client_logins = |count| LoginsByProtocol::from([("mqtt".to_owned(), count)]);
        let pairs = |mqtt, http| {
            LoginsByProtocol::from([("http".to_owned(), http), ("mqtt".to_owned(), mqtt)])
        };
        [true, false, false]
            .into_iter()
            .for_each(|is_correct| counter.count(is_correct));
        counter.reset(client_logins(counts(5, 6)));
        counter.count(false);
        let now = client_logins(counts(5, 8));
        assert_eq!(
            counter.since_reset(now.clone()),
            pairs(counts(0, 2), counts(0, 1))
        );
        assert_eq!(counter.all(now), pairs(counts(5, 8), counts(1, 3)));
    }

    #[test]
    fn address_lane_is_removed_after_its_last_check() {
        let checking = AddressLanes::new(1);
        let address = IpAddr::from([10, 0, 0, 1]);
        let (first, second) = (checking.lane(address), checking.lane(address));
        drop(first);
        assert_eq!(lock(&checking.lanes).len(), 1);
        drop(second);
        assert!(lock(&checking.lanes).is_empty());
    }

    #[tokio::test]
    async fn one_address_leaves_public_requests_for_others() {
        let logins = Logins::new([1; 32]);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut turns = Vec::new();
        for _ in 0..ADDRESS_PUBLIC_REQUESTS {
            turns.push(logins.public_turn(one).await.unwrap());
        }
        // Without a permit the future is still pending after its first poll.
        let is_pending = |address| {
            let turn = std::pin::pin!(logins.public_turn(address));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            turn.poll(&mut context).is_pending()
        };
        assert!(is_pending(one) && !is_pending(other));
        while turns.len() < PUBLIC_REQUESTS {
            turns.push(logins.public_turn(other).await.unwrap());
        }
        assert!(is_pending(IpAddr::from([10, 0, 0, 3])));
        drop(turns);
        assert!(!is_pending(one));
        assert!(lock(&logins.public_lanes.lanes).is_empty());
    }
}
