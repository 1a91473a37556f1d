//! Identifies users on threads of its own, so that no shard waits for a provider.

use crate::http::HttpChecker;
use crate::ldap::LdapChecker;
use crate::password_backend::{PasswordBackend, PasswordChecker};
use crate::provider::{Provider, RefetchOutcome};
use crate::token::TokenError;
use crate::web_login::WebLogin;
use crate::{BackendKind, BackendSettings, TokenSettings};
use env::Clock;
use metadata::{Identity, IdentityPermissions};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Most logins that wait for keys of the provider. Each has a token of at most
/// [`MAX_TOKEN`](crate::MAX_TOKEN) bytes.
const MAX_PARKED: usize = 256;

/// The identified user, or the reason of the refusal for the log.
pub type Answer = Result<Arc<Identity>, String>;

/// A password or token to check.
pub struct IdentityRequest {
    /// Position of the backend among [`BackendSettings::backends`].
    pub backend: usize,
    /// The user name that the client gave.
    pub user: String,
    /// The password or token.
    pub password: Vec<u8>,
    /// Takes the answer, on a thread of the service. Must not block.
    pub reply: Box<dyn FnOnce(Answer) + Send>,
}

enum Work {
    Identify(IdentityRequest),
    /// The keys of the provider were fetched, or could not be.
    KeysFetched,
}

/// The running external backends. The threads end with the last reference.
pub struct IdentityService {
    /// What authenticates the users of each backend.
    kinds: Vec<BackendKind>,
    http: Option<PasswordBackend>,
    ldap: Option<PasswordBackend>,
    inbox: Sender<Work>,
    provider: Option<Arc<Provider>>,
    web_login: Option<Arc<WebLogin>>,
}

impl std::fmt::Debug for IdentityService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdentityService")
    }
}

impl Drop for IdentityService {
    fn drop(&mut self) {
        if let Some(provider) = &self.provider {
            provider.stop();
        }
    }
}

impl IdentityService {
    /// Reads the keys of files and starts the threads. `key` must be random and stay in this process.
    ///
    /// # Errors
    ///
    /// A text that names the setting if a file cannot be used, or the error of a thread.
    pub fn start(
        settings: &BackendSettings,
        clock: Arc<dyn Clock + Send + Sync>,
        key: [u8; 32],
    ) -> io::Result<IdentityService> {
        let (inbox, work) = channel();
        let backends = settings.backends();
        let kinds: Vec<BackendKind> = backends.iter().map(|backend| backend.authn).collect();
        let are_stored: Arc<[bool]> = backends
            .iter()
            .map(|backend| backend.authz == BackendKind::Internal)
            .collect();
        let provider = match kinds.contains(&BackendKind::OAuth2) {
            false => None,
            true => {
                let provider = Provider::new(settings.provider.clone(), clock.clone());
                let provider = Arc::new(provider.map_err(io::Error::other)?);
                let fetched = inbox.clone();
                // Sending fails only if the service has ended.
                provider.start(move || drop(fetched.send(Work::KeysFetched)))?;
                Some(provider)
            }
        };
        let web_login = match settings.web_login.is_enabled {
            false => None,
            true => {
                let web = WebLogin::new(&settings.web_login, &settings.provider, clock.clone());
                Some(Arc::new(web.map_err(io::Error::other)?))
            }
        };
        let start = |checker: Box<dyn PasswordChecker>| {
            let cache = (key, settings.cache_ttl);
            PasswordBackend::start(checker, clock.clone(), cache, are_stored.clone())
        };
        let http = match kinds.contains(&BackendKind::Http) {
            true => Some(start(Box::new(HttpChecker::new(&settings.http)?))?),
            false => None,
        };
        let ldap = match kinds.contains(&BackendKind::Ldap) {
            true => {
                let checker = LdapChecker::new(&settings.ldap, clock.clone());
                Some(start(Box::new(checker.map_err(io::Error::other)?))?)
            }
            false => None,
        };
        let worker = Worker {
            are_stored: are_stored.clone(),
            tokens: settings.tokens.clone(),
            provider: provider.clone(),
            clock: clock.clone(),
            parked: Vec::new(),
        };
        std::thread::Builder::new()
            .name("identity".to_owned())
            .spawn(move || worker.run(&work))?;
        Ok(IdentityService {
            kinds,
            http,
            ldap,
            inbox,
            provider,
            web_login,
        })
    }

    /// The sign-in of the web UI at the OpenID provider. None: it is not enabled.
    pub fn web_login(&self) -> Option<&Arc<WebLogin>> {
        self.web_login.as_ref()
    }

    /// Identifies a user. The callers bound the number of requests.
    pub fn identify(&self, request: IdentityRequest) {
        let passwords = match self.kinds.get(request.backend) {
            Some(BackendKind::Http) => &self.http,
            Some(BackendKind::Ldap) => &self.ldap,
            _ => &None,
        };
        if let Some(passwords) = passwords {
            return passwords.identify(request);
        }
        // Sending fails only if the thread has ended, which means that the process is ending.
        let _ = self.inbox.send(Work::Identify(request));
    }
}

struct Worker {
    /// Whether the permissions of each backend's users are in the metadata.
    are_stored: Arc<[bool]>,
    tokens: TokenSettings,
    provider: Option<Arc<Provider>>,
    clock: Arc<dyn Clock + Send + Sync>,
    /// Requests whose key is being fetched.
    parked: Vec<IdentityRequest>,
}

impl Worker {
    fn run(mut self, work: &Receiver<Work>) {
        while let Ok(work) = work.recv() {
            match work {
                Work::Identify(request) => self.identify(request, true),
                Work::KeysFetched => {
                    for request in std::mem::take(&mut self.parked) {
                        self.identify(request, false);
                    }
                }
            }
        }
    }

    fn identify(&mut self, request: IdentityRequest, may_wait: bool) {
        let Some(provider) = &self.provider else {
            return (request.reply)(Err("the backend does not exist".to_owned()));
        };
        let context = (self.clock.wall(), request.backend);
        let keys = provider.keys();
        let why = match self.tokens.identify(&request.password, &keys, context) {
            Ok(mut identity) => {
                if self.are_stored.get(request.backend) == Some(&true) {
                    identity.permissions = IdentityPermissions::Stored;
                }
                return (request.reply)(Ok(Arc::new(identity)));
            }
            Err(TokenError::Refused(why)) => why,
            Err(TokenError::UnknownKey(id)) if may_wait => match provider.refetch() {
                RefetchOutcome::Begun if self.parked.len() < MAX_PARKED => {
                    return self.parked.push(request);
                }
                RefetchOutcome::Begun => format!("key '{id}' is unknown, and too many logins wait"),
                RefetchOutcome::TooEarly(Some(error)) => {
                    format!("key '{id}' is unknown, and keys cannot be fetched: {error}")
                }
                RefetchOutcome::TooEarly(None) | RefetchOutcome::Impossible => unknown_key(&id),
            },
            Err(TokenError::UnknownKey(id)) => unknown_key(&id),
        };
        (request.reply)(Err(format!("oauth2: {why}")));
    }
}

fn unknown_key(id: &str) -> String {
    format!("key '{id}' is unknown")
}
