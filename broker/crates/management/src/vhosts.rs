//! `/api/vhosts`.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content, put as put_answer};
use crate::error::ApiError;
use crate::json::Members;
use metadata::{Change, Name, PermissionRecord, VhostRecord};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

pub(crate) fn show(vhost: &VhostRecord) -> Json {
    let tags: Vec<&str> = vhost.tags.iter().map(|t| &**t).collect();
    object!({
        "name": &*vhost.name,
        "description": &*vhost.description,
        "tags": tags,
        "default_queue_type": "classic",
        "metadata": {"description": &*vhost.description, "tags": tags},
        "tracing": false,
    })
}

pub(crate) async fn list(api: &Api, call: &Call) -> Answer {
    let visible = api.visible_vhosts(call).await?;
    let found: Vec<VhostRecord> = api
        .read(|tree| tree.vhosts().into_iter().cloned().collect())
        .await?;
    let shown = found
        .iter()
        .filter(|v| visible.as_ref().is_none_or(|set| set.contains(&*v.name)));
    json(Json::Array(shown.map(show).collect()))
}

async fn find(api: &Api, name: &str) -> Result<Option<Arc<VhostRecord>>, ApiError> {
    let name = name.to_owned();
    api.read(move |tree| tree.vhost(&name).cloned()).await
}

pub(crate) async fn get(api: &Api, call: &Call, name: &str) -> Answer {
    api.visible(call, name).await?;
    match find(api, name).await? {
        Some(vhost) => json(show(&vhost)),
        None => Err(ApiError::not_found()),
    }
}

pub(crate) async fn put(api: &Api, call: &Call, name: &str) -> Answer {
    call.administrator()?;
    let body = call.object()?;
    let before = find(api, name).await?;
    api.change(change(name, &Members(&body), before.as_deref())?)
        .await?;
    if before.is_none() {
        // Who makes a vhost may use it, as with RabbitMQ.
        let everything: Name = ".*".into();
        let permission = PermissionRecord {
            user: call.user.name.clone(),
            vhost: name.into(),
            configure: everything.clone(),
            write: everything.clone(),
            read: everything,
        };
        api.change(Change::PutPermission(permission)).await?;
    }
    put_answer(before.is_some())
}

/// The vhost that a request describes; what it does not say stays as it was.
pub(crate) fn change(
    name: &str,
    body: &Members<'_>,
    old: Option<&VhostRecord>,
) -> Result<Change, ApiError> {
    let description: Name = match body.text("description")? {
        Some(text) => text.into(),
        None => old.map_or_else(|| "".into(), |v| v.description.clone()),
    };
    let tags = match body.words("tags")? {
        Some(tags) => tags,
        None => old.map_or_else(Vec::new, |v| v.tags.clone()),
    };
    Ok(Change::PutVhost {
        name: name.into(),
        description,
        tags,
    })
}

pub(crate) async fn delete(api: &Api, call: &Call, name: &str) -> Answer {
    call.administrator()?;
    if find(api, name).await?.is_none() {
        return Err(ApiError::not_found());
    }
    api.change(Change::DeleteVhost { name: name.into() })
        .await?;
    no_content()
}
