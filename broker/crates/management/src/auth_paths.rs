//! `/api/auth...` and `/api/extensions`: small facts that clients and the web UI read.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::login::web_login;
use crate::metrics;
use crate::users;
use auth::HashAlgorithm;
use auth_backends::{MAX_GRANT_FIELD, TokenGrant, TokenGrantError};
use axum::http::{HeaderValue, header};
use serde_json::{Map, Value as Json, json as object};

/// The methods of login: passwords, or the OpenID provider as well. Names are RabbitMQ's, except those of the provider's
/// endpoints, which are null while the provider does not respond.
pub(crate) async fn methods(api: &Api) -> ApiResult {
    let Some(web_login) = web_login(api) else {
        return json(object!({"oauth_enabled": false}));
    };
    let endpoints = match web_login.known_endpoints() {
        Some(known) => known.ok(),
        None => {
            let asked = web_login.clone();
            let found = api.logins().ask_provider(move || asked.endpoints()).await?;
            found.ok()
        }
    };
    let settings = web_login.settings();
    json(object!({
        "oauth_enabled": true,
        "oauth_client_id": settings.client_id,
        "oauth_provider_url": web_login.issuer(),
        "oauth_scopes": settings.scopes,
        "oauth_disable_basic_auth": settings.disables_basic_auth,
        "oauth_initiated_logon_type": "sp_initiated",
        "oauth_authorization_endpoint": endpoints.as_ref().map(|e| &e.authorization_endpoint),
        "oauth_end_session_endpoint": endpoints.as_ref().and_then(|e| e.end_session_endpoint.as_ref()),
    }))
}

/// Exchanges a grant for tokens of the OpenID provider. The caller limits the number of these requests.
pub(crate) async fn oauth_token(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    let web_login = web_login(api).ok_or_else(ApiError::not_found)?;
    let grant = grant(&call.object()?)?;
    let issuer = web_login.issuer().to_owned();
    let tokens = api
        .logins()
        .ask_provider(move || web_login.request_tokens(&grant))
        .await?;
    let tokens = tokens.map_err(|error| match error {
        TokenGrantError::Refused(why) => ApiError::bad_request(format!(
            "the identity provider '{issuer}' refuses the sign-in: {why}"
        )),
        TokenGrantError::Unavailable(_) => ApiError::unavailable(format!(
            "the identity provider '{issuer}' does not respond as it should; the log of this node has the cause"
        )),
    })?;
    let mut answer = json(object!({
        "access_token": tokens.access_token,
        "refresh_token": tokens.refresh_token,
        "id_token": tokens.id_token,
        "expires_in": tokens.expires_in,
    }))?;
    let no_store = HeaderValue::from_static("no-store");
    answer.headers_mut().insert(header::CACHE_CONTROL, no_store);
    Ok(answer)
}

/// `{code, code_verifier, redirect_uri}` or `{refresh_token}`.
fn grant(body: &Map<String, Json>) -> Result<TokenGrant, ApiError> {
    let field = |name: &str| {
        let text = body.get(name).and_then(Json::as_str).unwrap_or_default();
        match text.len() {
            1..=MAX_GRANT_FIELD => Ok(text.to_owned()),
            _ => Err(ApiError::bad_request(format!(
                "'{name}' must be a text of 1 to {MAX_GRANT_FIELD} bytes"
            ))),
        }
    };
    if body.contains_key("refresh_token") {
        return Ok(TokenGrant::Refresh(field("refresh_token")?));
    }
    Ok(TokenGrant::Code {
        code: field("code")?,
        verifier: field("code_verifier")?,
        redirect_uri: field("redirect_uri")?,
    })
}

/// RabbitMQ lists plugins of its UI here. There are none.
pub(crate) fn extensions() -> ApiResult {
    json(object!([]))
}

fn require_this_node(api: &Api, node: &str) -> Result<(), ApiError> {
    if node == api.config().name {
        return Ok(());
    }
    Err(ApiError::not_found())
}

/// Login attempts on this node by protocol, since it started or the counts were reset.
pub(crate) async fn attempts(api: &Api, node: &str) -> ApiResult {
    require_this_node(api, node)?;
    let logins = metrics::client_logins(api).await?;
    let logins = api.config().login_counter.since_reset(logins);
    let rows = logins.iter().map(|(protocol, counts)| {
        object!({
            "protocol": protocol,
            "auth_attempts": counts.succeeded + counts.failed,
            "auth_attempts_failed": counts.failed,
            "auth_attempts_succeeded": counts.succeeded,
        })
    });
    json(rows.collect())
}

pub(crate) async fn reset_attempts(api: &Api, node: &str) -> ApiResult {
    require_this_node(api, node)?;
    let logins = metrics::client_logins(api).await?;
    api.config().login_counter.reset(logins);
    no_content()
}

/// Hashes a password in RabbitMQ's format, for use in definitions files.
pub(crate) async fn hash_password(api: &Api, password: &str) -> ApiResult {
    let hash = users::hash_password(api, password, HashAlgorithm::Sha256).await?;
    json(object!({"ok": hash.to_text()}))
}
