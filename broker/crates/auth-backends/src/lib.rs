//! External authentication backends, and the order in which backends are asked.
//!
//! [`TokenSettings`] verifies access tokens. `provider` fetches the keys for that on a thread of its own, and
//! [`IdentityService`] answers the requests of shards and of the HTTP API on another one. [`WebLogin`] requests tokens for
//! the web UI.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod http;
mod keys;
mod ldap;
mod password_backend;
mod provider;
mod service;
#[cfg(test)]
mod tests;
mod token;
mod web_login;

pub use http::HttpSettings;
pub use jsonwebtoken::Algorithm;
pub use keys::{MAX_KEY_ID, MAX_KEYS};
pub use ldap::{
    LdapBindMode, LdapBindSettings, LdapGroup, LdapSettings, MAX_LDAP_GROUPS, MAX_LDAP_SERVERS,
    MAX_NESTED_GROUPS, is_ldap_host,
};
pub use password_backend::{MAX_CACHED_LOGINS, PASSWORD_THREADS};
pub use provider::{MAX_RESPONSE_BYTES, ProviderSettings, is_safe_url};
pub use service::{Answer, IdentityRequest, IdentityService};
pub use token::{MAX_TOKEN, TokenSettings, algorithm};
pub use web_login::{
    MAX_GRANT_FIELD, ProviderEndpoints, TokenGrant, TokenGrantError, TokenSet, WebLogin,
    WebLoginSettings,
};

use std::collections::BTreeMap;
use std::time::Duration;

/// A kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Users of the metadata.
    Internal,
    /// OAuth 2 access tokens.
    OAuth2,
    /// An HTTP server that checks passwords.
    Http,
    /// An LDAP server that checks passwords and has groups.
    Ldap,
}

impl BackendKind {
    /// Returns the kind with this short or full name of RabbitMQ's, or `None`.
    pub fn from_name(name: &str) -> Option<BackendKind> {
        match name {
            "internal" | "rabbit_auth_backend_internal" => Some(BackendKind::Internal),
            "oauth2" | "oauth" | "rabbit_auth_backend_oauth2" => Some(BackendKind::OAuth2),
            "http" | "rabbit_auth_backend_http" => Some(BackendKind::Http),
            "ldap" | "rabbit_auth_backend_ldap" => Some(BackendKind::Ldap),
            _ => None,
        }
    }
}

/// An entry of `auth_backends`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendEntry {
    /// Authenticates users.
    pub authn: Option<BackendKind>,
    /// Has their permissions.
    pub authz: Option<BackendKind>,
}

/// A backend that may accept a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Authenticates users.
    pub authn: BackendKind,
    /// Has their permissions.
    pub authz: BackendKind,
}

impl Backend {
    const INTERNAL: Backend = Backend {
        authn: BackendKind::Internal,
        authz: BackendKind::Internal,
    };

    /// Returns true if the metadata alone decides.
    pub fn is_internal(&self) -> bool {
        *self == Backend::INTERNAL
    }
}

/// The settings of all backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSettings {
    /// `auth_backends`, by index.
    pub entries: BTreeMap<u32, BackendEntry>,
    /// Access tokens.
    pub tokens: TokenSettings,
    /// The provider of access tokens.
    pub provider: ProviderSettings,
    /// The HTTP server that checks passwords.
    pub http: HttpSettings,
    /// The LDAP servers that check passwords.
    pub ldap: LdapSettings,
    /// The sign-in of the web UI at the provider.
    pub web_login: WebLoginSettings,
    /// Time for which a server is not asked again about a login that it has accepted; zero: always asked.
    pub cache_ttl: Duration,
}

impl BackendSettings {
    /// The backends in the order in which they are asked.
    pub fn backends(&self) -> Vec<Backend> {
        if self.entries.is_empty() {
            return vec![Backend::INTERNAL];
        }
        let complete = |entry: &BackendEntry| {
            let authn = entry.authn?;
            let authz = entry.authz?;
            Some(Backend { authn, authz })
        };
        self.entries.values().filter_map(complete).collect()
    }

    /// Returns true if users of the metadata may log in.
    pub fn has_internal(&self) -> bool {
        self.backends().iter().any(Backend::is_internal)
    }

    /// Returns true if there is an external backend.
    pub fn has_external(&self) -> bool {
        !self.backends().iter().all(Backend::is_internal)
    }

    /// Missing or contradictory settings.
    pub fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        for (index, entry) in &self.entries {
            let missing = match entry {
                BackendEntry { authn: None, .. } => "authn",
                BackendEntry { authz: None, .. } => "authz",
                BackendEntry {
                    authn: Some(authn),
                    authz: Some(authz),
                } if *authz == BackendKind::OAuth2 && authn != authz => {
                    errors.push(format!(
                        "`auth_backends.{index}.authz` = oauth2 needs `auth_backends.{index}.authn` = oauth2: \
                         only a token has the scopes"
                    ));
                    continue;
                }
                BackendEntry {
                    authn: Some(authn),
                    authz: Some(BackendKind::Ldap),
                } if *authn != BackendKind::Ldap => {
                    errors.push(format!(
                        "`auth_backends.{index}.authz` = ldap needs `auth_backends.{index}.authn` = ldap: groups are \
                         read when the LDAP server checks the password"
                    ));
                    continue;
                }
                BackendEntry {
                    authz: Some(BackendKind::Http),
                    ..
                } => {
                    errors.push(format!(
                        "`auth_backends.{index}`: an HTTP server can authenticate users, but not permit \
                         operations: set `auth_backends.{index}.authn = http` and \
                         `auth_backends.{index}.authz = internal`"
                    ));
                    continue;
                }
                BackendEntry { .. } => continue,
            };
            errors.push(format!("`auth_backends.{index}.{missing}` is missing"));
        }
        let authenticates = |kind| {
            let mut entries = self.entries.values();
            entries.any(|entry: &BackendEntry| entry.authn == Some(kind))
        };
        if authenticates(BackendKind::Http) && self.http.user_path.is_empty() {
            errors.push("`auth_http.user_path` is missing: the backend http needs it".to_owned());
        }
        if authenticates(BackendKind::Ldap) {
            let mut backends = self.entries.values();
            let has_scopes = backends.any(|entry| entry.authz == Some(BackendKind::Ldap));
            errors.extend(self.ldap.check(has_scopes));
        }
        if authenticates(BackendKind::OAuth2) {
            if self.tokens.resource_server_id.is_empty() {
                let text =
                    "`auth_oauth2.resource_server_id` is missing: the backend oauth2 needs it";
                errors.push(text.to_owned());
            }
            let provider = &self.provider;
            let has_keys = !provider.issuer.is_empty()
                || !provider.jwks_uri.is_empty()
                || !provider.signing_keys.is_empty();
            if !has_keys {
                errors.push(
                    "the backend oauth2 needs `auth_oauth2.issuer`, `auth_oauth2.jwks_uri` or \
                     `auth_oauth2.signing_keys.ID`"
                        .to_owned(),
                );
            }
            errors.extend(token::check_aliases(&self.tokens));
        }
        if self.web_login.is_enabled {
            for (is_missing, what) in [
                (
                    !authenticates(BackendKind::OAuth2),
                    "an entry `auth_backends.N = oauth2`",
                ),
                (self.provider.issuer.is_empty(), "`auth_oauth2.issuer`"),
                (
                    self.web_login.client_id.is_empty(),
                    "`management.oauth_client_id`",
                ),
            ] {
                if is_missing {
                    errors.push(format!("`management.oauth_enabled` needs {what}"));
                }
            }
        }
        errors
    }
}
