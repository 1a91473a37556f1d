//! `/api/permissions` and `/api/topic-permissions`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content, put as put_answer};
use crate::error::ApiError;
use crate::exchanges::exchange_name;
use crate::json::JsonMembers;
use crate::page::ListRequest;
use axum::http::StatusCode;
use metadata::{Change, PermissionRecord, TopicPermissionRecord, Tree};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

pub(crate) fn show(p: &PermissionRecord) -> Json {
    object!({
        "user": &*p.user,
        "vhost": &*p.vhost,
        "configure": &*p.configure,
        "write": &*p.write,
        "read": &*p.read,
    })
}

pub(crate) fn show_topic(p: &TopicPermissionRecord) -> Json {
    object!({
        "user": &*p.user,
        "vhost": &*p.vhost,
        "exchange": &*p.exchange,
        "write": &*p.write,
        "read": &*p.read,
    })
}

/// Responds with the permissions that match, filtered by user, or 404 if the object of the path
/// does not exist.
async fn matching(
    api: &Api,
    call: &AuthenticatedRequest,
    exists: impl FnOnce(&Tree) -> bool + Send + 'static,
    matches: impl Fn(&PermissionRecord) -> bool + Send + 'static,
) -> ApiResult {
    let found = api
        .read(move |tree| {
            let matching_permissions = || tree.permissions().filter(|p| matches(p)).cloned();
            exists(tree).then(|| matching_permissions().collect::<Vec<_>>())
        })
        .await?;
    let found = found.ok_or_else(ApiError::not_found)?;
    let (part, cut) = ListRequest::of(&call.query)?.cut(found, |p| &p.user)?;
    Ok(cut.respond(part.iter().map(|p| show(p)).collect()))
}

async fn matching_topics(
    api: &Api,
    call: &AuthenticatedRequest,
    exists: impl FnOnce(&Tree) -> bool + Send + 'static,
    matches: impl Fn(&TopicPermissionRecord) -> bool + Send + 'static,
) -> ApiResult {
    let found = api
        .read(move |tree| {
            let matching_permissions = || tree.topic_permissions().filter(|p| matches(p)).cloned();
            exists(tree).then(|| matching_permissions().collect::<Vec<_>>())
        })
        .await?;
    let found = found.ok_or_else(ApiError::not_found)?;
    let (part, cut) = ListRequest::of(&call.query)?.cut(found, |p| &p.user)?;
    Ok(cut.respond(part.iter().map(|p| show_topic(p)).collect()))
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    matching(api, call, |_| true, |_| true).await
}

pub(crate) async fn of_user(api: &Api, call: &AuthenticatedRequest, user: &str) -> ApiResult {
    let (a, b) = (user.to_owned(), user.to_owned());
    matching(
        api,
        call,
        move |t| t.user(&a).is_some(),
        move |p| *p.user == *b,
    )
    .await
}

pub(crate) async fn of_vhost(api: &Api, call: &AuthenticatedRequest, vhost: &str) -> ApiResult {
    call.require_administrator()?;
    let (a, b) = (vhost.to_owned(), vhost.to_owned());
    matching(
        api,
        call,
        move |t| t.vhost_exists(&a),
        move |p| *p.vhost == *b,
    )
    .await
}

async fn find(
    api: &Api,
    vhost: &str,
    user: &str,
) -> Result<Option<Arc<PermissionRecord>>, ApiError> {
    let (vhost, user) = (vhost.to_owned(), user.to_owned());
    api.read(move |tree| tree.permission(&user, &vhost).cloned())
        .await
}

pub(crate) async fn get(api: &Api, vhost: &str, user: &str) -> ApiResult {
    match find(api, vhost, user).await? {
        Some(permission) => json(show(&permission)),
        None => Err(ApiError::not_found()),
    }
}

pub(crate) async fn put(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    user: &str,
) -> ApiResult {
    let body = call.object()?;
    require_vhost_and_user(api, vhost, user).await?;
    let record = record(vhost, user, &JsonMembers(&body))?;
    let existed = find(api, vhost, user).await?.is_some();
    put_change(api, Change::PutPermission(record)).await?;
    put_answer(existed)
}

/// Checks that the objects of the path exist, before the body is validated.
async fn require_vhost_and_user(api: &Api, vhost: &str, user: &str) -> Result<(), ApiError> {
    let (vhost, user) = (vhost.to_owned(), user.to_owned());
    let exists = move |tree: &Tree| tree.vhost_exists(&vhost) && tree.user(&user).is_some();
    match api.read(exists).await? {
        true => Ok(()),
        false => Err(ApiError::bad_request("vhost_or_user_not_found")),
    }
}

/// Maps a missing user or vhost to 400, because the path names an object to create.
pub(crate) async fn put_change(api: &Api, change: Change) -> Result<(), ApiError> {
    match api.change(change).await {
        Err(error) if error.status == StatusCode::NOT_FOUND => {
            Err(ApiError::bad_request(error.reason))
        }
        other => other.map(|_| ()),
    }
}

/// Parses the permissions of a request.
pub(crate) fn record(
    vhost: &str,
    user: &str,
    body: &JsonMembers<'_>,
) -> Result<PermissionRecord, ApiError> {
    body.require(&["configure", "write", "read"])?;
    Ok(PermissionRecord {
        user: user.into(),
        vhost: vhost.into(),
        configure: body.required_text("configure")?.into(),
        write: body.required_text("write")?.into(),
        read: body.required_text("read")?.into(),
    })
}

/// Parses the topic permissions of a request.
pub(crate) fn topic_record(
    vhost: &str,
    user: &str,
    body: &JsonMembers<'_>,
) -> Result<TopicPermissionRecord, ApiError> {
    body.require(&["exchange", "write", "read"])?;
    Ok(TopicPermissionRecord {
        user: user.into(),
        vhost: vhost.into(),
        exchange: exchange_name(body.required_text("exchange")?).into(),
        write: body.required_text("write")?.into(),
        read: body.required_text("read")?.into(),
    })
}

pub(crate) async fn delete(api: &Api, vhost: &str, user: &str) -> ApiResult {
    if find(api, vhost, user).await?.is_none() {
        return Err(ApiError::not_found());
    }
    let change = Change::DeletePermission {
        user: user.into(),
        vhost: vhost.into(),
    };
    api.change(change).await?;
    no_content()
}

pub(crate) async fn topics(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    matching_topics(api, call, |_| true, |_| true).await
}

pub(crate) async fn topics_of_user(
    api: &Api,
    call: &AuthenticatedRequest,
    user: &str,
) -> ApiResult {
    let (a, b) = (user.to_owned(), user.to_owned());
    matching_topics(
        api,
        call,
        move |t| t.user(&a).is_some(),
        move |p| *p.user == *b,
    )
    .await
}

pub(crate) async fn topics_of_vhost(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
) -> ApiResult {
    call.require_administrator()?;
    let (a, b) = (vhost.to_owned(), vhost.to_owned());
    matching_topics(
        api,
        call,
        move |t| t.vhost_exists(&a),
        move |p| *p.vhost == *b,
    )
    .await
}

pub(crate) async fn get_topics(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    user: &str,
) -> ApiResult {
    let pair = (vhost.to_owned(), user.to_owned());
    let same = pair.clone();
    matching_topics(
        api,
        call,
        move |t| {
            let mut all = t.topic_permissions();
            all.any(|p| *p.vhost == *pair.0 && *p.user == *pair.1)
        },
        move |p| *p.vhost == *same.0 && *p.user == *same.1,
    )
    .await
}

/// Returns true if the user has topic permissions for any exchange of the vhost: in RabbitMQ the
/// path names all of them together.
async fn has_topics(api: &Api, vhost: &str, user: &str) -> Result<bool, ApiError> {
    let (vhost, user) = (vhost.to_owned(), user.to_owned());
    let any_topic_permission = move |tree: &Tree| {
        let mut all = tree.topic_permissions();
        all.any(|p| *p.vhost == *vhost && *p.user == *user)
    };
    api.read(any_topic_permission).await
}

pub(crate) async fn put_topic(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: &str,
    user: &str,
) -> ApiResult {
    let body = call.object()?;
    require_vhost_and_user(api, vhost, user).await?;
    let record = topic_record(vhost, user, &JsonMembers(&body))?;
    let existed = has_topics(api, vhost, user).await?;
    put_change(api, Change::PutTopicPermission(record)).await?;
    put_answer(existed)
}

pub(crate) async fn delete_topics(
    api: &Api,
    vhost: &str,
    user: &str,
    exchange: Option<&str>,
) -> ApiResult {
    if !has_topics(api, vhost, user).await? {
        return Err(ApiError::not_found());
    }
    let change = Change::DeleteTopicPermission {
        user: user.into(),
        vhost: vhost.into(),
        exchange: exchange.map(|x| exchange_name(x).into()),
    };
    api.change(change).await?;
    no_content()
}
