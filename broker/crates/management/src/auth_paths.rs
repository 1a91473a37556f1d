//! `/api/auth...`, `/api/extensions`: small facts that clients and the pages of a browser ask for.

use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
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

/// Logins at this node's API since it started or since they were reset.
pub(crate) fn attempts(api: &Api, node: &str) -> Answer {
    this_node(api, node)?;
    let (succeeded, failed) = api.config().login_counts.since_reset();
    json(object!([{
        "protocol": "http",
        "auth_attempts": succeeded + failed,
        "auth_attempts_failed": failed,
        "auth_attempts_succeeded": succeeded,
    }]))
}

pub(crate) fn reset_attempts(api: &Api, node: &str) -> Answer {
    this_node(api, node)?;
    api.config().login_counts.reset();
    no_content()
}

/// In RabbitMQ's form, for its definitions files.
pub(crate) async fn hash_password(api: &Api, password: &str) -> Answer {
    let hash = users::hashed(api, password, HashAlgorithm::Sha256).await?;
    json(object!({"ok": hash.to_text()}))
}
