//! `/api/vhost-limits` (O5). Users' limits are with users.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::json::Members;
use metadata::{Change, Name, Tree, VhostRecord};
use serde_json::{Map, Value as Json, json as object};

pub(crate) fn values(limits: &[(Name, i64)]) -> Map<String, Json> {
    let pairs = limits.iter();
    pairs.map(|(n, v)| (n.to_string(), object!(v))).collect()
}

pub(crate) async fn list(api: &Api, call: &Call, vhost: Option<&str>) -> Answer {
    // Who monitors sees all of them, as virtual hosts.
    let everything = call.is_monitor();
    match vhost {
        Some(vhost) if !everything => api.visible(call, vhost).await?,
        Some(vhost) if !api.read(known(vhost)).await? => return Err(ApiError::not_found()),
        _ => {}
    }
    let visible = match everything {
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

/// The number that a limit's body gives.
pub(crate) fn value(call: &Call) -> Result<i64, ApiError> {
    let body = call.object()?;
    let value = Members(&body).integer("value")?;
    value.ok_or_else(|| ApiError::bad_request("key_missing: value"))
}

pub(crate) async fn set(api: &Api, call: &Call, vhost: &str, limit: &str) -> Answer {
    let value = Some(value(call)?);
    change(api, vhost, limit, value).await
}

/// A limit that nobody knows is not set.
pub(crate) async fn clear(api: &Api, vhost: &str, limit: &str) -> Answer {
    if !matches!(limit, "max-connections" | "max-queues") {
        return match api.read(known(vhost)).await? {
            true => no_content(),
            false => Err(ApiError::not_found()),
        };
    }
    change(api, vhost, limit, None).await
}

fn known(vhost: &str) -> impl FnOnce(&Tree) -> bool + Send + 'static {
    let vhost = vhost.to_owned();
    move |tree| tree.vhost_exists(&vhost)
}

async fn change(api: &Api, vhost: &str, limit: &str, value: Option<i64>) -> Answer {
    let change = Change::SetVhostLimit {
        vhost: vhost.into(),
        limit: limit.into(),
        value,
    };
    api.change(change).await?;
    no_content()
}
