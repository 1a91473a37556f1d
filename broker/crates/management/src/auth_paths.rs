//! `/api/auth...` and `/api/extensions`: small facts that clients and the web UI read.

use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::metrics;
use crate::users;
use auth::HashAlgorithm;
use serde_json::json as object;

/// Only user name and password are supported.
pub(crate) fn methods() -> ApiResult {
    json(object!({"oauth_enabled": false}))
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
