//! Keys of authentication backends. Names and values are RabbitMQ's.

use super::Config;
use super::keys::{BOOL, ConfigKey, PATH, filled, number, path};
use super::values::parse_bool;
use auth_backends::{BackendKind, algorithm, is_safe_url};
use std::time::Duration;

const URL: &str = "a URL with https, or with http on this machine";

/// A URL of at most 2048 bytes.
fn url(text: &str) -> Option<String> {
    is_safe_url(text).then(|| text.to_owned())
}

/// `N`, `N.authn` or `N.authz`.
fn backend(config: &mut Config, place: &str, value: &str) -> Option<()> {
    let kind = BackendKind::from_name(value)?;
    let (index, part) = match place.split_once('.') {
        Some((index, part)) => (index, Some(part)),
        None => (place, None),
    };
    let entry = config
        .backends
        .entries
        .entry(index.parse().ok()?)
        .or_default();
    match part {
        None => (entry.authn, entry.authz) = (Some(kind), Some(kind)),
        Some("authn") => entry.authn = Some(kind),
        Some("authz") => entry.authz = Some(kind),
        Some(_) => return None,
    }
    Some(())
}

/// `ALIAS`, `N.alias` or `N.scope`.
fn scope_alias(config: &mut Config, place: &str, value: &str) -> Option<()> {
    let value = filled_scopes(value)?;
    let tokens = &mut config.backends.tokens;
    match place.rsplit_once('.') {
        Some((index, "alias")) => {
            let index = index.parse().ok()?;
            tokens.indexed_aliases.entry(index).or_default().0 = value;
        }
        Some((index, "scope")) if index.parse::<u32>().is_ok() => {
            let index = index.parse().ok()?;
            tokens.indexed_aliases.entry(index).or_default().1 = value;
        }
        _ => {
            tokens.scope_aliases.insert(place.to_owned(), value);
        }
    }
    Some(())
}

pub(super) fn filled_scopes(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= 16 * 1024).then(|| text.to_owned())
}

/// All keys, in the order of the reference.
pub(super) const BACKEND_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "auth_backends.*",
        accepts: "internal, oauth2, http or ldap",
        default: "",
        doc: "Backends that check logins, one for each number (`auth_backends.1`, ...), until one accepts; \
              by default internal, the users of the cluster. `auth_backends.N.authn` and `.authz` set the \
              backends of passwords and of permissions separately; http needs `.authz = internal`, and ldap may have it.",
        set: backend,
    },
    ConfigKey {
        name: "auth_oauth2.resource_server_id",
        accepts: "a text of 1 to 255 bytes",
        default: "",
        doc: "Audience of access tokens for this cluster, and with a dot the prefix of their scopes.",
        set: |c, _, v| filled(v).map(|id| c.backends.tokens.resource_server_id = id),
    },
    ConfigKey {
        name: "auth_oauth2.issuer",
        accepts: URL,
        default: "",
        doc: "OpenID provider whose configuration (`/.well-known/openid-configuration`) has the address of \
              its keys.",
        set: |c, _, v| url(v).map(|u| c.backends.provider.issuer = u),
    },
    ConfigKey {
        name: "auth_oauth2.jwks_uri",
        accepts: URL,
        default: "",
        doc: "JSON Web Key Set of the provider, instead of `auth_oauth2.issuer`.",
        set: |c, _, v| url(v).map(|u| c.backends.provider.jwks_uri = u),
    },
    ConfigKey {
        name: "auth_oauth2.https.cacertfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the authorities that sign the provider's certificate, instead of those of the \
              operating system.",
        set: |c, _, v| path(v).map(|p| c.backends.provider.cacertfile = Some(p)),
    },
    ConfigKey {
        name: "auth_oauth2.https.peer_verification",
        accepts: "verify_peer or verify_none",
        default: "verify_peer",
        doc: "Whether the provider's certificate is verified; without that, anybody on the network can \
              forge tokens.",
        set: |c, _, v| {
            c.backends.provider.verify_peer = match v {
                "verify_peer" => true,
                "verify_none" => false,
                _ => return None,
            };
            Some(())
        },
    },
    ConfigKey {
        name: "auth_oauth2.signing_keys.*",
        accepts: PATH,
        default: "",
        doc: "PEM file of a public key or certificate of the provider; `*` is the key id in tokens.",
        set: |c, id, v| {
            let file = path(v)?;
            c.backends.provider.signing_keys.insert(id.to_owned(), file);
            Some(())
        },
    },
    ConfigKey {
        name: "auth_oauth2.default_key",
        accepts: "the id of a key",
        default: "",
        doc: "Key of tokens that name none.",
        set: |c, _, v| filled(v).map(|id| c.backends.tokens.default_key = Some(id)),
    },
    ConfigKey {
        name: "auth_oauth2.algorithms.*",
        accepts: "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA",
        default: "",
        doc: "Accepted signature algorithms, one for each number; by default those that fit the key.",
        set: |c, place, v| {
            let algorithm = algorithm(v)?;
            let place = place.parse().ok()?;
            c.backends.tokens.algorithms.insert(place, algorithm);
            Some(())
        },
    },
    ConfigKey {
        name: "auth_oauth2.scope_prefix",
        accepts: "a text of at most 255 bytes, or nothing",
        default: "",
        doc: "Prefix of scopes for this cluster, instead of the resource server id and a dot.",
        set: |c, _, v| {
            (v.len() <= 255).then(|| c.backends.tokens.scope_prefix = Some(v.to_owned()))
        },
    },
    ConfigKey {
        name: "auth_oauth2.scope_aliases.*",
        accepts: "scopes, separated by spaces",
        default: "",
        doc: "Scopes that another scope or role stands for; `*` is its name, or `N.alias` and `N.scope` set \
              name and scopes.",
        set: scope_alias,
    },
    ConfigKey {
        name: "auth_oauth2.additional_scopes_key",
        accepts: "names of claims, separated by spaces",
        default: "",
        doc: "Claims that have further scopes; dots separate the names of nested claims.",
        set: |c, _, v| filled(v).map(|key| c.backends.tokens.additional_scopes_key = key),
    },
    ConfigKey {
        name: "auth_oauth2.preferred_username_claims.*",
        accepts: "the name of a claim",
        default: "",
        doc: "Claims that name the user, one for each number; `sub` and `client_id` follow.",
        set: |c, place, v| {
            let (place, claim) = (place.parse().ok()?, filled(v)?);
            let claims = &mut c.backends.tokens.preferred_username_claims;
            claims.insert(place, claim);
            Some(())
        },
    },
    ConfigKey {
        name: "auth_oauth2.verify_aud",
        accepts: BOOL,
        default: "true",
        doc: "Tokens need the resource server id as audience.",
        set: |c, _, v| parse_bool(v).map(|on| c.backends.tokens.verify_aud = on),
    },
    ConfigKey {
        name: "management.oauth_enabled",
        accepts: BOOL,
        default: "false",
        doc: "The web UI signs users in at the OpenID provider `auth_oauth2.issuer` (authorization code with PKCE).",
        set: |c, _, v| parse_bool(v).map(|on| c.backends.web_login.is_enabled = on),
    },
    ConfigKey {
        name: "management.oauth_client_id",
        accepts: "a text of 1 to 255 bytes",
        default: "",
        doc: "Client id of the web UI at the provider.",
        set: |c, _, v| filled(v).map(|id| c.backends.web_login.client_id = id),
    },
    ConfigKey {
        name: "management.oauth_client_secret",
        accepts: "a text of 1 to 255 bytes",
        default: "",
        doc: "Secret of that client if the provider requires one; browsers never get it.",
        set: |c, _, v| filled(v).map(|secret| c.backends.web_login.client_secret = secret),
    },
    ConfigKey {
        name: "management.oauth_scopes",
        accepts: "scopes, separated by spaces",
        default: "openid profile",
        doc: "Scopes that the web UI asks the provider for.",
        set: |c, _, v| filled_scopes(v).map(|scopes| c.backends.web_login.scopes = scopes),
    },
    ConfigKey {
        name: "management.oauth_disable_basic_auth",
        accepts: BOOL,
        default: "true",
        doc: "With `management.oauth_enabled`, the HTTP API and the web UI take tokens only, and no other passwords.",
        set: |c, _, v| parse_bool(v).map(|on| c.backends.web_login.disables_basic_auth = on),
    },
    ConfigKey {
        name: "auth_http.user_path",
        accepts: URL,
        default: "",
        doc: "URL that answers `allow`, with tags that may follow, or `deny` to the parameters `username` \
              and `password`.",
        set: |c, _, v| url(v).map(|u| c.backends.http.user_path = u),
    },
    ConfigKey {
        name: "auth_http.http_method",
        accepts: "get or post",
        default: "get",
        doc: "Whether the parameters are in the query, which web servers write to their logs, or in a form.",
        set: |c, _, v| {
            c.backends.http.is_post = match v {
                "get" => false,
                "post" => true,
                _ => return None,
            };
            Some(())
        },
    },
    ConfigKey {
        name: "auth_http.ssl_options.cacertfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the authorities that sign the server's certificate, instead of those of the \
              operating system.",
        set: |c, _, v| path(v).map(|p| c.backends.http.cacertfile = Some(p)),
    },
    ConfigKey {
        name: "auth_http.ssl_options.verify",
        accepts: "verify_peer or verify_none",
        default: "verify_peer",
        doc: "Whether the server's certificate is verified.",
        set: |c, _, v| {
            c.backends.http.verify_peer = match v {
                "verify_peer" => true,
                "verify_none" => false,
                _ => return None,
            };
            Some(())
        },
    },
    ConfigKey {
        name: "auth_cache.cache_ttl",
        accepts: "0 to 86400000, in milliseconds",
        default: "0",
        doc: "Time for which a node does not ask the HTTP or LDAP server again about a login that it has \
              accepted; at most 4096 logins of each backend are kept.",
        set: |c, _, v| {
            let ttl = number(v, 0, 86_400_000)?;
            c.backends.cache_ttl = Duration::from_millis(ttl);
            Some(())
        },
    },
];
