//! Sign-in of the web UI at an OpenID provider: the authorization code flow with PKCE (RFC 7636).
//!
//! The provider returns the browser to the web UI with a code. The node exchanges the code for tokens, so that the browser
//! needs neither the client's secret nor trust in the provider's certificate authority.

use crate::MAX_TOKEN;
use crate::provider::{MAX_RESPONSE_BYTES, ProviderSettings, agent, is_safe_url};
use env::{Clock, Time};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes of a code, a code verifier, a redirect URL or a refresh token.
pub const MAX_GRANT_FIELD: usize = 16 * 1024;
/// Time after which the provider's configuration is read again.
const CONFIGURATION_LIFETIME: Duration = Duration::from_secs(3600);
/// Time for which the provider is not asked again after its configuration could not be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of characters of a provider's text in an error.
const MAX_SHOWN_ERROR: usize = 200;

/// Settings of the sign-in. Names are those of RabbitMQ's settings.
#[derive(Clone, PartialEq, Eq)]
pub struct WebLoginSettings {
    /// The web UI offers this sign-in.
    pub is_enabled: bool,
    /// Id of the web UI at the provider.
    pub client_id: String,
    /// Secret of that client; empty for a public client.
    pub client_secret: String,
    /// Requested scopes, separated by spaces.
    pub scopes: String,
    /// The HTTP API refuses user names and passwords.
    pub disables_basic_auth: bool,
}

impl Default for WebLoginSettings {
    fn default() -> WebLoginSettings {
        WebLoginSettings {
            is_enabled: false,
            client_id: String::new(),
            client_secret: String::new(),
            scopes: "openid profile".to_owned(),
            disables_basic_auth: true,
        }
    }
}

/// Without the secret.
impl fmt::Debug for WebLoginSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebLoginSettings")
            .field("is_enabled", &self.is_enabled)
            .field("client_id", &self.client_id)
            .field("scopes", &self.scopes)
            .field("disables_basic_auth", &self.disables_basic_auth)
            .finish_non_exhaustive()
    }
}

/// Addresses of a provider (OpenID Connect Discovery 1.0, section 3).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProviderEndpoints {
    issuer: String,
    /// URL that gives the browser a code.
    pub authorization_endpoint: String,
    token_endpoint: String,
    /// URL that ends the user's session at the provider.
    pub end_session_endpoint: Option<String>,
}

/// A grant that the provider exchanges for tokens. Without `Debug`, because it is secret.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenGrant {
    /// A code with which the provider has sent the browser back.
    Code {
        /// The code.
        code: String,
        /// The PKCE verifier whose challenge was in the request for the code.
        verifier: String,
        /// The redirect URI of the request for the code.
        redirect_uri: String,
    },
    /// A refresh token of an earlier [`TokenSet`].
    Refresh(String),
}

/// Tokens for the browser (RFC 6749, section 5.1). Without `Debug`, because they are secret.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSet {
    /// Authenticates requests to the HTTP API.
    pub access_token: String,
    /// Grants the next tokens.
    pub refresh_token: Option<String>,
    /// Identifies the session when the user signs out.
    pub id_token: Option<String>,
    /// Seconds for which the access token is valid.
    pub expires_in: Option<u64>,
}

/// The reason for which the provider issued no tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenGrantError {
    /// The provider refused the grant. The text is the provider's reason.
    Refused(String),
    /// The provider did not respond, or violated its protocol. The text is the cause, which the log has too.
    Unavailable(String),
}

/// The endpoints or the error of the last discovery, and its time.
type Discovery = Option<(Time, Result<Arc<ProviderEndpoints>, String>)>;

/// The node's part of the sign-in. Methods that ask the provider block for at most ten seconds for each of its two
/// responses: its configuration and the tokens.
pub struct WebLogin {
    settings: WebLoginSettings,
    issuer: String,
    agent: ureq::Agent,
    clock: Arc<dyn Clock + Send + Sync>,
    known: Mutex<Discovery>,
    /// Held by the thread that reads the provider's configuration.
    discovering: Mutex<()>,
}

impl WebLogin {
    pub(crate) fn new(
        settings: &WebLoginSettings,
        provider: &ProviderSettings,
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> Result<WebLogin, String> {
        let is_secure = !provider.issuer.starts_with("http://");
        let cacertfile = provider.cacertfile.as_deref();
        // A redirected POST would be sent without its form.
        let agent = agent(cacertfile, provider.verify_peer, is_secure, false)
            .map_err(|error| format!("`auth_oauth2.https.cacertfile`: {error}"))?;
        Ok(WebLogin {
            settings: settings.clone(),
            issuer: provider.issuer.trim_end_matches('/').to_owned(),
            agent,
            clock,
            known: Mutex::default(),
            discovering: Mutex::default(),
        })
    }

    /// The settings of the sign-in.
    pub fn settings(&self) -> &WebLoginSettings {
        &self.settings
    }

    /// URL of the provider, without a slash at its end.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    fn lock(&self) -> MutexGuard<'_, Discovery> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The provider's endpoints without asking the provider. None: they were never read, or too long ago.
    pub fn known_endpoints(&self) -> Option<Result<Arc<ProviderEndpoints>, String>> {
        let known = self.lock();
        let (at, known) = known.as_ref()?;
        let lifetime = match known {
            Ok(_) => CONFIGURATION_LIFETIME,
            Err(_) => RETRY_INTERVAL,
        };
        (self.clock.now().since(*at) < lifetime).then(|| known.clone())
    }

    /// The provider's endpoints, which are cached for an hour.
    ///
    /// # Errors
    ///
    /// The cause if the provider does not respond with its configuration, or did not within the last five seconds.
    pub fn endpoints(&self) -> Result<Arc<ProviderEndpoints>, String> {
        if let Some(known) = self.known_endpoints() {
            return known;
        }
        let _turn = self.discovering.lock();
        // Another thread may have read them meanwhile.
        if let Some(known) = self.known_endpoints() {
            return known;
        }
        let found = self.discover().map(Arc::new);
        if let Err(why) = &found {
            log_unavailable(why);
        }
        *self.lock() = Some((self.clock.now(), found.clone()));
        found
    }

    fn discover(&self) -> Result<ProviderEndpoints, String> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer);
        let request = self.agent.get(&url).header("Accept", "application/json");
        let (status, body) = read(&url, request.call())?;
        if status != 200 {
            return Err(format!("{url}: status {status}"));
        }
        let found: ProviderEndpoints = serde_json::from_slice(&body).map_err(|error| {
            format!(
                "{url}: no OpenID configuration: {}",
                cut(&error.to_string())
            )
        })?;
        if found.issuer.trim_end_matches('/') != self.issuer {
            return Err(format!(
                "{url} is of another issuer: '{}'",
                cut(&found.issuer)
            ));
        }
        let end_session = found.end_session_endpoint.as_deref();
        for (name, address) in [
            (
                "authorization_endpoint",
                Some(found.authorization_endpoint.as_str()),
            ),
            ("token_endpoint", Some(found.token_endpoint.as_str())),
            ("end_session_endpoint", end_session),
        ] {
            if address.is_some_and(|address| !is_safe_url(address)) {
                return Err(format!("{url}: `{name}` is not a URL with https"));
            }
        }
        Ok(found)
    }

    /// Asks the provider for tokens.
    ///
    /// # Errors
    ///
    /// [`TokenGrantError::Refused`] if the provider refuses the grant, otherwise [`TokenGrantError::Unavailable`].
    pub fn request_tokens(&self, grant: &TokenGrant) -> Result<TokenSet, TokenGrantError> {
        let endpoints = self.endpoints().map_err(TokenGrantError::Unavailable)?;
        let mut form = vec![("client_id", self.settings.client_id.as_str())];
        if !self.settings.client_secret.is_empty() {
            form.push(("client_secret", &self.settings.client_secret));
        }
        match grant {
            TokenGrant::Code {
                code,
                verifier,
                redirect_uri,
            } => form.extend([
                ("grant_type", "authorization_code"),
                ("code", code),
                ("code_verifier", verifier),
                ("redirect_uri", redirect_uri),
            ]),
            TokenGrant::Refresh(token) => {
                form.extend([("grant_type", "refresh_token"), ("refresh_token", token)]);
            }
        }
        self.exchange(&endpoints.token_endpoint, form)
            .inspect_err(|error| match error {
                TokenGrantError::Refused(_) => {}
                TokenGrantError::Unavailable(why) => log_unavailable(why),
            })
    }

    fn exchange(&self, url: &str, form: Vec<(&str, &str)>) -> Result<TokenSet, TokenGrantError> {
        let request = self.agent.post(url).header("Accept", "application/json");
        let (status, body) =
            read(url, request.send_form(form)).map_err(TokenGrantError::Unavailable)?;
        match status {
            200 => parse_tokens(&body)
                .map_err(|why| TokenGrantError::Unavailable(format!("{url}: {why}"))),
            // RFC 6749, section 5.2.
            400 | 401 => Err(TokenGrantError::Refused(refusal(&body))),
            status => Err(TokenGrantError::Unavailable(format!(
                "{url}: status {status}"
            ))),
        }
    }
}

impl fmt::Debug for WebLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebLogin")
            .field("issuer", &self.issuer)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

fn log_unavailable(why: &str) {
    tracing::warn!(event = "oauth2.provider_unavailable", why);
}

/// Status and body of a response. Errors contain nothing of the request's form, which is secret.
fn read(
    url: &str,
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<(u16, Vec<u8>), String> {
    let mut response = response.map_err(|error| format!("{url}: {error}"))?;
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(MAX_RESPONSE_BYTES);
    let body = body
        .read_to_vec()
        .map_err(|error| format!("{url}: {error}; at most {MAX_RESPONSE_BYTES} bytes are read"))?;
    Ok((status, body))
}

/// The tokens in a response (RFC 6749, section 5.1). Errors contain nothing of the response, which is secret.
fn parse_tokens(body: &[u8]) -> Result<TokenSet, String> {
    let body: Map<String, Json> =
        serde_json::from_slice(body).map_err(|_| "the response is not a JSON object".to_owned())?;
    let text = |name: &str, limit: usize| match body.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) if (1..=limit).contains(&text.len()) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` is not a text of 1 to {limit} bytes")),
    };
    // RFC 6749, section 7.1: a client must not use tokens of a type that it does not know.
    let token_type = text("token_type", MAX_SHOWN_ERROR)?;
    if token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err("`token_type` is not Bearer".to_owned());
    }
    let access_token = text("access_token", MAX_TOKEN)?.ok_or("`access_token` is missing")?;
    if !access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("`access_token` is not a bearer token (RFC 6750)".to_owned());
    }
    Ok(TokenSet {
        access_token,
        refresh_token: text("refresh_token", MAX_GRANT_FIELD)?,
        id_token: text("id_token", MAX_TOKEN)?,
        // Some providers send it as text.
        expires_in: body.get("expires_in").and_then(|seconds| match seconds {
            Json::String(text) => text.parse().ok(),
            seconds => seconds.as_u64(),
        }),
    })
}

/// The reason in an error response (RFC 6749, section 5.2).
fn refusal(body: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Refusal {
        error: String,
        error_description: String,
    }
    let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
    match (refusal.error.as_str(), refusal.error_description.as_str()) {
        ("", _) => "the provider gives no reason".to_owned(),
        (error, "") => cut(error),
        (error, description) => format!("{}: {}", cut(error), cut(description)),
    }
}

fn cut(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(MAX_SHOWN_ERROR).collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn refusal_names_the_providers_reason() {
        let with = r#"{"error": "invalid_grant", "error_description": "code\n expired"}"#;
        assert_eq!(refusal(with.as_bytes()), "invalid_grant: code expired");
        assert_eq!(refusal(br#"{"error": "invalid_client"}"#), "invalid_client");
        for nothing in ["", "<html>", "{}", "[1]", r#"{"error": 1}"#] {
            assert_eq!(refusal(nothing.as_bytes()), "the provider gives no reason");
        }
        let long = format!(r#"{{"error": "{}"}}"#, "x".repeat(5_000));
        assert_eq!(refusal(long.as_bytes()).len(), MAX_SHOWN_ERROR);
    }

    #[test]
    fn tokens_of_a_hostile_provider_are_refused_and_not_shown() {
        let usable = r#"{"access_token": "a.b-c", "token_type": "bearer", "expires_in": "60", "id_token": null}"#;
        let tokens = parse_tokens(usable.as_bytes()).unwrap();
        assert_eq!(
            (&*tokens.access_token, tokens.expires_in),
            ("a.b-c", Some(60))
        );
        let long = "x".repeat(MAX_TOKEN + 1);
        for (body, part) in [
            (r#""hidden""#.to_owned(), "not a JSON object"),
            ("[]".to_owned(), "not a JSON object"),
            ("{}".to_owned(), "`access_token` is missing"),
            (
                r#"{"access_token": ["hidden"]}"#.to_owned(),
                "`access_token` is not a text",
            ),
            (
                r#"{"access_token": ""}"#.to_owned(),
                "`access_token` is not a text",
            ),
            (
                format!(r#"{{"access_token": "{long}"}}"#),
                "`access_token` is not a text",
            ),
            (
                r#"{"access_token": "hidden\nX: y"}"#.to_owned(),
                "not a bearer token",
            ),
            (
                r#"{"access_token": "hidden", "refresh_token": 1}"#.to_owned(),
                "`refresh_token`",
            ),
            (
                r#"{"access_token": "hidden", "token_type": "DPoP"}"#.to_owned(),
                "`token_type`",
            ),
        ] {
            let why = parse_tokens(body.as_bytes()).err().unwrap();
            assert!(why.contains(part) && !why.contains("hidden"), "{why}");
        }
        for expiry in ["-1", "1.5", "[]", r#""soon""#, "1e400"] {
            let body = format!(r#"{{"access_token": "a", "expires_in": {expiry}}}"#);
            if let Ok(tokens) = parse_tokens(body.as_bytes()) {
                assert_eq!(tokens.expires_in, None, "{expiry}");
            }
        }
    }

    #[test]
    fn debug_output_has_no_secret() {
        let settings = WebLoginSettings {
            client_secret: "hidden".to_owned(),
            ..WebLoginSettings::default()
        };
        assert!(!format!("{settings:?}").contains("hidden"));
    }
}
