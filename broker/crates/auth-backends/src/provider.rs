//! The keys of an OAuth 2 provider, fetched by a thread of their own.

use crate::keys::{KeySet, VerificationKey};
use arc_swap::ArcSwap;
use env::{Clock, Time};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Most bytes of a provider's configuration or key set.
pub const MAX_RESPONSE_BYTES: u64 = 256 * 1024;
/// Most bytes of a PEM file.
const MAX_PEM_BYTES: u64 = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Providers may redirect; a server that gets passwords may not.
const MAX_REDIRECTS: u32 = 3;
/// Least time between two fetches because of unknown keys.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which keys are fetched again, so that removed keys are not accepted for ever.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);
/// First and longest time until a failed fetch is repeated.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Sources of the keys. Names are those of RabbitMQ's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSettings {
    /// URL of the provider, whose OpenID configuration has the address of its keys; may be empty.
    pub issuer: String,
    /// URL of the keys; may be empty.
    pub jwks_uri: String,
    /// PEM files of keys by their ids.
    pub signing_keys: BTreeMap<String, PathBuf>,
    /// Certificates of the authorities that the provider is verified with. None: those of the operating system.
    pub cacertfile: Option<PathBuf>,
    /// The certificate of the provider is verified.
    pub verify_peer: bool,
}

impl Default for ProviderSettings {
    fn default() -> ProviderSettings {
        ProviderSettings {
            issuer: String::new(),
            jwks_uri: String::new(),
            signing_keys: BTreeMap::new(),
            cacertfile: None,
            verify_peer: true,
        }
    }
}

/// Returns true for a URL with TLS, or one of this machine.
pub fn is_safe_url(url: &str) -> bool {
    if url.len() > 2048 || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return false;
    }
    if let Some(rest) = url.strip_prefix("https://") {
        return !rest.is_empty();
    }
    let Some(rest) = url.strip_prefix("http://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // In `localhost:1@example.com` the host is the part after the `@`.
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    matches!(host, "localhost" | "127.0.0.1" | "::1")
}

/// An HTTP client for a backend.
pub(crate) fn agent(
    cacertfile: Option<&Path>,
    verify_peer: bool,
    is_secure: bool,
    follows_redirects: bool,
) -> Result<ureq::Agent, String> {
    let mut agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .https_only(is_secure)
        .max_redirects(if follows_redirects { MAX_REDIRECTS } else { 0 })
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_global(Some(CALL_TIMEOUT));
    if is_secure {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots(cacertfile)?)))
            .disable_verification(!verify_peer)
            .unversioned_rustls_crypto_provider(provider);
        agent = agent.tls_config(tls.build());
    }
    Ok(agent.build().into())
}

fn roots(cacertfile: Option<&Path>) -> Result<Vec<Certificate<'static>>, String> {
    let Some(file) = cacertfile else {
        let found = rustls_native_certs::load_native_certs();
        let roots = found.certs.iter();
        return Ok(roots.map(|c| Certificate::from_der(c).to_owned()).collect());
    };
    let found = read_certificates(file)?;
    let roots = found.iter();
    Ok(roots.map(|c| Certificate::from_der(c).to_owned()).collect())
}

/// Reads the certificates of a PEM file.
pub(crate) fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_pem(file)?;
    let shown = file.display();
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| format!("{shown} is no PEM file: {error}"))?;
    match certificates.is_empty() {
        true => Err(format!("{shown} has no certificate")),
        false => Ok(certificates),
    }
}

/// Reads a PEM file, whose size is bounded.
pub(crate) fn read_pem(file: &Path) -> Result<Vec<u8>, String> {
    let shown = file.display();
    let size = fs::metadata(file).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    if size.len() > MAX_PEM_BYTES {
        return Err(format!("{shown} has more than {MAX_PEM_BYTES} bytes"));
    }
    fs::read(file).map_err(|error| format!("{shown} cannot be read: {error}"))
}

#[derive(Deserialize)]
struct OpenIdConfiguration {
    issuer: String,
    jwks_uri: String,
}

/// The keys of a provider.
pub(crate) struct Provider {
    settings: ProviderSettings,
    agent: ureq::Agent,
    clock: Arc<dyn Clock + Send + Sync>,
    /// Keys of files, and those that were fetched last.
    keys: ArcSwap<KeySet>,
    /// Keys of files.
    fixed: KeySet,
    state: Mutex<FetchState>,
    changed: Condvar,
}

#[derive(Default)]
struct FetchState {
    is_wanted: bool,
    is_fetching: bool,
    /// The end of the last fetch, and the number of fetches that have failed since one did not.
    last: Option<Time>,
    failures: u32,
    error: Option<String>,
    is_stopped: bool,
}

/// The result of a request for newer keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RefetchOutcome {
    /// Keys are being fetched.
    Begun,
    /// They were fetched a moment ago. The text is the error of that fetch.
    TooEarly(Option<String>),
    /// There is no address to fetch keys from.
    Impossible,
}

impl Provider {
    /// Reads the keys of files.
    pub(crate) fn new(
        settings: ProviderSettings,
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> Result<Provider, String> {
        let mut fixed = KeySet::default();
        for (id, file) in &settings.signing_keys {
            let key = VerificationKey::from_pem(&read_pem(file)?)
                .map_err(|error| format!("`auth_oauth2.signing_keys.{id}`: {error}"))?;
            fixed.insert(id, key);
        }
        let is_secure = [&settings.issuer, &settings.jwks_uri]
            .iter()
            .all(|url| !url.starts_with("http://"));
        let cacertfile = settings.cacertfile.as_deref();
        let agent = agent(cacertfile, settings.verify_peer, is_secure, true)
            .map_err(|error| format!("`auth_oauth2.https.cacertfile`: {error}"))?;
        Ok(Provider {
            agent,
            clock,
            keys: ArcSwap::from_pointee(fixed.clone()),
            fixed,
            state: Mutex::default(),
            changed: Condvar::new(),
            settings,
        })
    }

    fn lock(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_url(&self) -> bool {
        !self.settings.issuer.is_empty() || !self.settings.jwks_uri.is_empty()
    }

    pub(crate) fn keys(&self) -> Arc<KeySet> {
        self.keys.load_full()
    }

    /// Asks for newer keys because a token names an unknown one.
    pub(crate) fn refetch(&self) -> RefetchOutcome {
        if !self.has_url() {
            return RefetchOutcome::Impossible;
        }
        let mut state = self.lock();
        if state.is_wanted || state.is_fetching || state.last.is_none() {
            return RefetchOutcome::Begun;
        }
        let now = self.clock.now();
        let is_early = state
            .last
            .is_some_and(|last| now < last + refetch_interval(state.failures));
        if is_early {
            return RefetchOutcome::TooEarly(state.error.clone());
        }
        state.is_wanted = true;
        self.changed.notify_all();
        RefetchOutcome::Begun
    }

    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Starts the thread that fetches keys, and calls `fetched` after each fetch.
    pub(crate) fn start(
        self: &Arc<Provider>,
        fetched: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        if !self.has_url() {
            return Ok(());
        }
        let provider = self.clone();
        std::thread::Builder::new()
            .name("oauth2-keys".to_owned())
            .spawn(move || provider.run(&fetched))
            .map(drop)
    }

    fn run(&self, fetched: &dyn Fn()) {
        while self.wait_until_due() {
            let result = self.fetch();
            let now = self.clock.now();
            let mut state = self.lock();
            state.is_fetching = false;
            state.last = Some(now);
            match result {
                Ok(keys) => {
                    tracing::info!(event = "oauth2.keys_fetched", keys = keys.len());
                    let mut all = self.fixed.clone();
                    all.extend(keys);
                    self.keys.store(Arc::new(all));
                    (state.failures, state.error) = (0, None);
                }
                Err(error) => {
                    tracing::warn!(
                        event = "oauth2.keys_unavailable",
                        error,
                        "the known keys stay in use"
                    );
                    state.failures = state.failures.saturating_add(1);
                    state.error = Some(error);
                }
            }
            drop(state);
            fetched();
        }
    }

    /// Waits for the next fetch. Returns false if there is none.
    fn wait_until_due(&self) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return false;
            }
            let due = match state.last {
                None => Duration::ZERO,
                Some(last) => {
                    let interval = match state.failures {
                        0 => REFRESH_INTERVAL,
                        failures => refetch_interval(failures),
                    };
                    let elapsed = self.clock.now().since(last);
                    interval.saturating_sub(elapsed)
                }
            };
            if due.is_zero() || state.is_wanted {
                (state.is_wanted, state.is_fetching) = (false, true);
                return true;
            }
            let waited = self.changed.wait_timeout(state, due);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fetch(&self) -> Result<KeySet, String> {
        let url = match self.settings.jwks_uri.is_empty() {
            true => self.discover()?,
            false => self.settings.jwks_uri.clone(),
        };
        let keys =
            KeySet::from_json(&self.get(&url)?).map_err(|error| format!("{url}: {error}"))?;
        match keys.len() {
            0 => Err(format!("{url} has no key that can verify signatures")),
            _ => Ok(keys),
        }
    }

    /// The address of the keys (OpenID Connect Discovery 1.0, section 4).
    fn discover(&self) -> Result<String, String> {
        let issuer = self.settings.issuer.trim_end_matches('/');
        let url = format!("{issuer}/.well-known/openid-configuration");
        let found: OpenIdConfiguration = serde_json::from_slice(&self.get(&url)?)
            .map_err(|error| format!("{url}: no OpenID configuration: {error}"))?;
        if found.issuer.trim_end_matches('/') != issuer {
            let other: String = found.issuer.chars().take(256).collect();
            return Err(format!("{url} is of another issuer: '{other}'"));
        }
        if !is_safe_url(&found.jwks_uri) {
            return Err(format!("{url}: `jwks_uri` has no TLS"));
        }
        Ok(found.jwks_uri)
    }

    fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let response = self
            .agent
            .get(url)
            .header("Accept", "application/json")
            .call();
        let mut response = response.map_err(|error| format!("{url}: {error}"))?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(format!("{url}: status {status}"));
        }
        let body = response.body_mut().with_config().limit(MAX_RESPONSE_BYTES);
        body.read_to_vec()
            .map_err(|error| format!("{url}: {error}; at most {MAX_RESPONSE_BYTES} bytes are read"))
    }
}

/// Time from a fetch until the next one that an unknown key may cause.
fn refetch_interval(failures: u32) -> Duration {
    match failures {
        0 => MIN_INTERVAL,
        failures => {
            let (first, most) = RETRY;
            first
                .saturating_mul(1 << failures.saturating_sub(1).min(6))
                .min(most)
        }
    }
}
