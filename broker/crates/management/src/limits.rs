//! `/api/vhost-limits`. The module `users` implements `/api/user-limits`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::json::{JsonMembers, term};
use metadata::{Change, Name, Tree, VHOST_LIMITS, VhostRecord};
use serde_json::{Map, Value as Json, json as object};

pub(crate) fn values(limits: &[(Name, i64)]) -> Map<String, Json> {
    let pairs = limits.iter();
    pairs.map(|(n, v)| (n.to_string(), object!(v))).collect()
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest, vhost: Option<&str>) -> ApiResult {
    // Monitoring users see the limits of all vhosts, as they see all vhosts.
    let is_monitor = call.is_monitor();
    match vhost {
        Some(vhost) if !is_monitor => api.require_vhost_visible(call, vhost).await?,
        Some(vhost) if !api.read(vhost_exists(vhost)).await? => return Err(ApiError::not_found()),
        _ => {}
    }
    let visible = match is_monitor {
        true => None,
        false => api.visible_vhosts(call).await?,
    };
    let vhosts: Vec<VhostRecord> = api
        .read(|tree| tree.vhosts().into_iter().cloned().collect())
        .await?;
    let shown = vhosts.iter().filter(|v| {
        !v.limits.is_empty()
            && vhost.is_none_or(|only| *v.name == *only)
            && visible.as_ref().is_none_or(|set| set.contains(&*v.name))
    });
    let shown = shown.map(|v| object!({"vhost": &*v.name, "value": values(&v.limits)}));
    json(Json::Array(shown.collect()))
}

/// The reason why a limit is rejected.
pub(crate) enum LimitError {
    /// Unknown limit: its name and value as a term.
    Unknown(String),
    NotNumber(String),
}

/// Parses the value of a limit. Fails if the limit is not in `known` or the value is not a number.
pub(crate) fn number(limit: &str, value: &Json, known: &[&str]) -> Result<i64, LimitError> {
    if !known.contains(&limit) {
        return Err(LimitError::Unknown(format!(
            "[{{{},{}}}]",
            term(&object!(limit)),
            term(value)
        )));
    }
    let reason = || format!("{limit} should be a number, actually was {}", term(value));
    value
        .as_i64()
        .ok_or_else(|| LimitError::NotNumber(reason()))
}

/// Parses the limit value in a request body.
pub(crate) fn value(
    call: &AuthenticatedRequest,
    limit: &str,
    known: &[&str],
) -> Result<Result<i64, LimitError>, ApiError> {
    let body = call.object()?;
    JsonMembers(&body).require(&["value"])?;
    Ok(number(
        limit,
        body.get("value").unwrap_or(&Json::Null),
        known,
    ))
}

/// RabbitMQ's error text for a rejected vhost limit.
pub(crate) fn rejection_text(bad: LimitError) -> String {
    match bad {
        LimitError::Unknown(terms) => {
            format!("Validation failed\n\nUnrecognised terms {terms} in limits\n")
        }
        LimitError::NotNumber(why) => format!("Validation failed\n\n{why}\n"),
    }
}

pub(crate) async fn set(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    limit: &str,
) -> ApiResult {
    if !api.read(vhost_exists(vhost)).await? {
        return Err(call.vhost_not_found());
    }
    let value = value(call, limit, VHOST_LIMITS)?;
    let value = value.map_err(|bad| ApiError::bad_request(rejection_text(bad)))?;
    change(api, vhost, limit, Some(value)).await
}

/// Clearing an unknown limit succeeds without effect.
pub(crate) async fn clear(api: &Api, vhost: &str, limit: &str) -> ApiResult {
    if !api.read(vhost_exists(vhost)).await? {
        return Err(ApiError::missing("vhost_not_found"));
    }
    if !VHOST_LIMITS.contains(&limit) {
        return no_content();
    }
    change(api, vhost, limit, None).await
}

fn vhost_exists(vhost: &str) -> impl FnOnce(&Tree) -> bool + Send + 'static {
    let vhost = vhost.to_owned();
    move |tree| tree.vhost_exists(&vhost)
}

async fn change(api: &Api, vhost: &str, limit: &str, value: Option<i64>) -> ApiResult {
    let change = Change::SetVhostLimit {
        vhost: vhost.into(),
        limit: limit.into(),
        value,
    };
    api.change(change).await?;
    no_content()
}
