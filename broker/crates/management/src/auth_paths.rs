//! `/api/auth...`, `/api/extensions`: small facts that clients and the pages of a browser ask for.

use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::metrics;
use crate::users;
use auth::HashAlgorithm;
use serde_json::json as object;

/// By user and password only.
pub(crate) fn methods() -> Answer {
    json(object!({"oauth_enabled": false}))
}

/// The API itself is no extension.
pub(crate) fn extensions() -> Answer {
    json(object!([]))
}

fn this_node(api: &Api, node: &str) -> Result<(), ApiError> {
    if node == api.config().name {
        return Ok(());
    }
    Err(ApiError::not_found())
}

/// Logins at this node by protocol, since it started or since they were reset.
pub(crate) async fn attempts(api: &Api, node: &str) -> Answer {
    this_node(api, node)?;
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

pub(crate) async fn reset_attempts(api: &Api, node: &str) -> Answer {
    this_node(api, node)?;
    let logins = metrics::client_logins(api).await?;
    api.config().login_counter.reset(logins);
    no_content()
}

/// In RabbitMQ's form, for its definitions files.
pub(crate) async fn hash_password(api: &Api, password: &str) -> Answer {
    let hash = users::hashed(api, password, HashAlgorithm::Sha256).await?;
    json(object!({"ok": hash.to_text()}))
}
