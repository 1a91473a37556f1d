//! Verification of access tokens: JSON Web Tokens (RFC 7519) with RabbitMQ's scopes.

use crate::keys::{KeySet, VerificationKey};
use auth::Wildcard;
use env::WallTime;
use jsonwebtoken::{Algorithm, Validation};
use metadata::{Identity, IdentityPermissions, MAX_SCOPES, Name, Scope};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// Longest token in bytes.
pub const MAX_TOKEN: usize = 16 * 1024;
/// Longest name of a user or tag in bytes.
const MAX_NAME: usize = 255;
/// Most tags of a token.
const MAX_TAGS: usize = 64;
/// Difference between the clocks of the provider and the node that the start of a token may have, in seconds.
const CLOCK_SKEW: f64 = 60.0;

/// The claims that name the user if no other is configured, in order.
const USERNAME_CLAIMS: [&str; 2] = ["sub", "client_id"];

/// Settings of token checks. Names are those of RabbitMQ's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// The audience of tokens for this broker, and the default prefix of their scopes.
    pub resource_server_id: String,
    /// Prefix of scopes for this broker. None: the resource server id and a dot.
    pub scope_prefix: Option<String>,
    /// Scopes, separated by spaces, that another scope stands for.
    pub scope_aliases: BTreeMap<String, String>,
    /// Name and scopes of further aliases, by their index.
    pub indexed_aliases: BTreeMap<u32, (String, String)>,
    /// Paths of claims that have further scopes, separated by spaces; the elements of a path by dots.
    pub additional_scopes_key: String,
    /// Claims that name the user, by their index.
    pub preferred_username_claims: BTreeMap<u32, String>,
    /// Tokens need the resource server id as audience.
    pub verify_aud: bool,
    /// Accepted algorithms by their index; empty: those of the key.
    pub algorithms: BTreeMap<u32, Algorithm>,
    /// The key of tokens that name none.
    pub default_key: Option<String>,
}

impl Default for TokenSettings {
    fn default() -> TokenSettings {
        TokenSettings {
            resource_server_id: String::new(),
            scope_prefix: None,
            scope_aliases: BTreeMap::new(),
            indexed_aliases: BTreeMap::new(),
            additional_scopes_key: String::new(),
            preferred_username_claims: BTreeMap::new(),
            verify_aud: true,
            algorithms: BTreeMap::new(),
            default_key: None,
        }
    }
}

/// Returns the asymmetric algorithm with that name.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    let algorithm: Algorithm = name.parse().ok()?;
    let is_symmetric = matches!(
        algorithm,
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512
    );
    (!is_symmetric).then_some(algorithm)
}

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// No known key has this id. The provider may have a new one.
    UnknownKey(String),
    Refused(String),
}

fn refused(why: impl Into<String>) -> TokenError {
    TokenError::Refused(why.into())
}

impl TokenSettings {
    /// Verifies a token. Texts of errors are for the log and have no part of the token but names.
    pub(crate) fn identify(
        &self,
        token: &[u8],
        keys: &KeySet,
        (now, backend): (WallTime, usize),
    ) -> Result<Identity, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(refused(format!(
                "the token has {} bytes, more than {MAX_TOKEN}",
                token.len()
            )));
        }
        let header = jsonwebtoken::decode_header(token)
            .map_err(|error| refused(format!("no JSON Web Token: {error}")))?;
        let key = self.key(header.kid.as_deref(), keys)?;
        let is_accepted = self.algorithms.is_empty()
            || self
                .algorithms
                .values()
                .any(|accepted| *accepted == header.alg);
        if !is_accepted || !key.allows(header.alg) {
            return Err(refused(format!(
                "algorithm {:?} is not accepted for the token's key",
                header.alg
            )));
        }
        let mut validation = Validation::new(header.alg);
        validation.required_spec_claims.clear();
        // The claims are checked below, with the clock of the node.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        let decoded = jsonwebtoken::decode::<Map<String, Json>>(token, &key.key, &validation)
            .map_err(|error| refused(format!("the token is not valid: {error}")))?;
        self.read_claims(&decoded.claims, (now, backend))
    }

    fn key<'k>(
        &self,
        named: Option<&str>,
        keys: &'k KeySet,
    ) -> Result<&'k VerificationKey, TokenError> {
        match named.or(self.default_key.as_deref()) {
            Some(id) => keys
                .get(id)
                .ok_or_else(|| TokenError::UnknownKey(id.chars().take(MAX_NAME).collect())),
            None => keys.only().ok_or_else(|| {
                refused("the token names no key, and `auth_oauth2.default_key` is not set")
            }),
        }
    }

    fn read_claims(
        &self,
        claims: &Map<String, Json>,
        (now, backend): (WallTime, usize),
    ) -> Result<Identity, TokenError> {
        let expires_at = check_times(claims, now)?;
        self.check_audience(claims)?;
        let user = self.user(claims)?;
        let mut permissions = Vec::new();
        let mut tags: Vec<Name> = Vec::new();
        for scope in self.scopes(claims) {
            if let Some(tag) = scope.strip_prefix("tag:") {
                if tags.len() < MAX_TAGS && !tag.is_empty() && tag.len() <= MAX_NAME {
                    tags.push(tag.into());
                }
            } else if let Some(scope) = Scope::parse(&scope) {
                if permissions.len() >= MAX_SCOPES {
                    return Err(refused(format!(
                        "the token has more than {MAX_SCOPES} scopes"
                    )));
                }
                permissions.push(scope);
            }
        }
        tags.sort_unstable();
        tags.dedup();
        Ok(Identity {
            user: user.into(),
            tags,
            permissions: IdentityPermissions::Scopes(permissions.into()),
            expires_at,
            backend,
        })
    }

    fn check_audience(&self, claims: &Map<String, Json>) -> Result<(), TokenError> {
        if !self.verify_aud {
            return Ok(());
        }
        let wanted = self.resource_server_id.as_str();
        let is_wanted = match claims.get("aud") {
            None => return Err(refused("the token has no audience")),
            Some(Json::String(text)) => words(text).any(|one| one == wanted),
            Some(Json::Array(all)) => all.iter().any(|one| one.as_str() == Some(wanted)),
            Some(_) => false,
        };
        match is_wanted {
            true => Ok(()),
            false => Err(refused(format!(
                "the token is for another audience than '{wanted}'"
            ))),
        }
    }

    fn user<'c>(&self, claims: &'c Map<String, Json>) -> Result<&'c str, TokenError> {
        let preferred = self.preferred_username_claims.values().map(String::as_str);
        let mut names = preferred.chain(USERNAME_CLAIMS);
        let name = names.find_map(|claim| {
            let name = claims.get(claim)?.as_str()?;
            (!name.is_empty()).then_some(name)
        });
        match name {
            None => Err(refused("no claim of the token names the user")),
            Some(name) if name.len() > MAX_NAME => Err(refused(format!(
                "the user name has more than {MAX_NAME} bytes"
            ))),
            Some(name) => Ok(name),
        }
    }

    /// The scopes of a token for this broker, without their prefix.
    fn scopes(&self, claims: &Map<String, Json>) -> Vec<String> {
        let mut scopes = Vec::new();
        if let Some(claim) = claims.get("scope") {
            collect_words(claim, &mut scopes);
        }
        for path in words(&self.additional_scopes_key) {
            if let Some(claim) = find(claims, path) {
                self.collect_additional(claim, &mut scopes);
            }
        }
        // Keycloak's requesting party tokens.
        let granted = find(claims, "authorization.permissions").and_then(Json::as_array);
        for permission in granted.into_iter().flatten() {
            if let Some(claim) = permission.get("scopes") {
                collect_words(claim, &mut scopes);
            }
        }
        if !self.scope_aliases.is_empty() || !self.indexed_aliases.is_empty() {
            let aliases = scopes.iter().flat_map(|scope| self.meanings(scope));
            let meant = aliases.flat_map(|meant| words(meant)).map(str::to_owned);
            let meant: Vec<String> = meant.take(MAX_SCOPES).collect();
            scopes.extend(meant);
        }
        let id = &self.resource_server_id;
        let default_prefix = || format!("{id}.");
        let prefix = self.scope_prefix.clone().unwrap_or_else(default_prefix);
        let own = scopes
            .iter()
            .filter_map(|scope| scope.strip_prefix(&*prefix));
        own.map(str::to_owned).collect()
    }

    /// The scopes that a scope is an alias of, in texts.
    fn meanings<'s>(&'s self, scope: &'s str) -> impl Iterator<Item = &'s String> {
        let indexed = self.indexed_aliases.values();
        let indexed = indexed.filter(move |(alias, _)| alias == scope);
        let named = self.scope_aliases.get(scope).into_iter();
        named.chain(indexed.map(|(_, meant)| meant))
    }

    /// A claim with scopes, or an object with the scopes of each resource server, which have no prefix.
    fn collect_additional(&self, claim: &Json, scopes: &mut Vec<String>) {
        let Json::Object(by_server) = claim else {
            return collect_words(claim, scopes);
        };
        if let Some(own) = by_server.get(&self.resource_server_id) {
            let mut unprefixed = Vec::new();
            collect_words(own, &mut unprefixed);
            let id = &self.resource_server_id;
            scopes.extend(unprefixed.iter().map(|scope| format!("{id}.{scope}")));
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ').filter(|word| !word.is_empty())
}

/// Collects the words of a text, or of a list of texts.
fn collect_words(claim: &Json, into: &mut Vec<String>) {
    match claim {
        Json::String(text) => into.extend(words(text).map(str::to_owned)),
        Json::Array(all) => {
            let texts = all.iter().filter_map(Json::as_str);
            into.extend(texts.map(str::to_owned));
        }
        _ => {}
    }
}

fn find<'c>(claims: &'c Map<String, Json>, path: &str) -> Option<&'c Json> {
    // A name may have dots itself, as URLs do.
    if let Some(claim) = claims.get(path) {
        return Some(claim);
    }
    let (first, rest) = path.split_once('.')?;
    find(claims.get(first)?.as_object()?, rest)
}

/// Checks that a token is valid now, and returns its end.
fn check_times(claims: &Map<String, Json>, now: WallTime) -> Result<Option<WallTime>, TokenError> {
    let time = |claim: &str| match claims.get(claim) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Number(number)) => Ok(number.as_f64()),
        Some(_) => Err(refused(format!("claim '{claim}' is not a time"))),
    };
    // Milliseconds since 1970 are exact in an f64.
    let seconds = now.0 as f64 / 1000.0;
    if let Some(start) = time("nbf")?
        && start > seconds + CLOCK_SKEW
    {
        return Err(refused("the token is not valid yet"));
    }
    let Some(end) = time("exp")? else {
        return Ok(None);
    };
    if end <= seconds {
        return Err(refused(format!("the token has expired at {end:.0}")));
    }
    // Saturates for a time that no clock reaches.
    Ok(Some(WallTime((end * 1000.0) as u64)))
}

/// Checks that the patterns of scope aliases can be read.
pub(crate) fn check_aliases(settings: &TokenSettings) -> Vec<String> {
    let mut errors = Vec::new();
    let indexed = settings.indexed_aliases.iter();
    for (index, (alias, meant)) in indexed {
        if alias.is_empty() || meant.is_empty() {
            errors.push(format!(
                "`auth_oauth2.scope_aliases.{index}` needs both `.alias` and `.scope`"
            ));
        }
    }
    let indexed = settings
        .indexed_aliases
        .values()
        .map(|(alias, meant)| (alias, meant));
    for (alias, meant) in settings.scope_aliases.iter().chain(indexed) {
        for scope in words(meant) {
            let patterns = scope.rsplit(':').next().unwrap_or_default();
            if patterns
                .split('/')
                .any(|part| Wildcard::compile(part).is_none())
            {
                errors.push(format!(
                    "`auth_oauth2.scope_aliases`: scope '{scope}' of alias '{alias}' has invalid percent-encoding"
                ));
            }
        }
    }
    errors
}
