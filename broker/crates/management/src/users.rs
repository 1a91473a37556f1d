//! `/api/users` and `/api/user-limits`. Only for administrators, which the dispatcher checks.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content, put as put_answer};
use crate::entropy;
use crate::error::ApiError;
use crate::json::JsonMembers;
use crate::limits::{self, LimitError};
use crate::page::ListRequest;
use crate::permissions;
use auth::{HashAlgorithm, PasswordHash, PasswordHashError, SALT_LEN};
use message::Value;
use metadata::{Change, Name, PermissionRecord, USER_LIMITS, UserRecord};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum length of a password in bytes.
const MAX_PASSWORD: usize = 1024;
/// Base64 lengths of RabbitMQ's 4-byte salt followed by a SHA-512 hash (64 bytes) or an MD5 hash
/// (16 bytes).
const SHA512_TEXT: usize = 92;
const MD5_TEXT: usize = 28;

pub(crate) fn show(user: &UserRecord) -> Json {
    let password = user.password.as_ref();
    object!({
        "name": &*user.name,
        "password_hash": password.map_or(String::new(), PasswordHash::to_text),
        "hashing_algorithm": password.map_or(HashAlgorithm::Argon2id, |p| p.algorithm).name(),
        "tags": user.tags.iter().map(|t| &**t).collect::<Vec<_>>(),
        "limits": limits_of(user),
    })
}

fn limits_of(user: &UserRecord) -> Json {
    Json::Object(limits::values(&user.limits))
}

async fn find(api: &Api, name: &str) -> Result<Option<Arc<UserRecord>>, ApiError> {
    let name = name.to_owned();
    api.read(move |tree| tree.user(&name).cloned()).await
}

pub(crate) async fn list(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    let window = ListRequest::of(&call.query)?;
    let users: Vec<Arc<UserRecord>> = api.read(|tree| tree.users().cloned().collect()).await?;
    let (part, cut) = window.cut(users, |u| &u.name)?;
    Ok(cut.respond(part.iter().map(|u| show(u)).collect()))
}

pub(crate) async fn get(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    match find(api, name).await? {
        Some(user) => json(call.query.columns_of(show(&user))),
        None => Err(ApiError::not_found()),
    }
}

/// The tag of users that requests must not change or delete.
const PROTECTED: &str = "protected";
/// The parameter of a request, in its query or body, that changes or deletes a protected user.
const OVERRIDE: &str = "override_protection";

/// Fails with 412 for a protected user. The operator may change it, and so may `posthorn ctl` on the machine of the node,
/// as RabbitMQ's command line does there.
fn require_unprotected(
    user: Option<&UserRecord>,
    call: &AuthenticatedRequest,
    is_override: bool,
) -> Result<(), ApiError> {
    let is_allowed = call.is_operator || (call.is_local && is_override);
    match user {
        Some(user) if !is_allowed && user.tags.iter().any(|t| &**t == PROTECTED) => {
            Err(ApiError::precondition_failed(format!(
                "user '{}' has the tag '{PROTECTED}': change or delete it with `posthorn ctl` on the machine of a node",
                user.name
            )))
        }
        _ => Ok(()),
    }
}

pub(crate) async fn put(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    let body = call.object()?;
    let existing = find(api, name).await?;
    let is_override = body.get(OVERRIDE) == Some(&Json::Bool(true));
    require_unprotected(existing.as_deref(), call, is_override)?;
    let existed = existing.is_some();
    let permissions_of_request = permissions_of_request(api, name, body.get("permissions")).await?;
    let record = record(api, name, &JsonMembers(&body)).await?;
    api.change(Change::PutUser(record)).await?;
    for permission in permissions_of_request {
        permissions::put_change(api, Change::PutPermission(permission)).await?;
    }
    put_answer(existed)
}

/// Parses the permissions in a request for a user: an object keyed by virtual host.
async fn permissions_of_request(
    api: &Api,
    user: &str,
    permissions_json: Option<&Json>,
) -> Result<Vec<PermissionRecord>, ApiError> {
    let permissions_json = match permissions_json {
        None | Some(Json::Null) => return Ok(Vec::new()),
        Some(Json::Object(permissions_json)) => permissions_json,
        Some(_) => return Err(ApiError::bad_request("'permissions' should be an object")),
    };
    let mut permissions_of_request = Vec::new();
    for (vhost, vhost_permissions) in permissions_json {
        let name = vhost.clone();
        if !api.read(move |tree| tree.vhost_exists(&name)).await? {
            return Err(ApiError::bad_request(object!(["no_such_vhost", vhost])));
        }
        let vhost_permissions = vhost_permissions
            .as_object()
            .ok_or_else(|| ApiError::bad_request(format!("'{vhost}' should be an object")))?;
        permissions_of_request.push(permissions::record(
            vhost,
            user,
            &JsonMembers(vhost_permissions),
        )?);
    }
    Ok(permissions_of_request)
}

/// Parses a user of a definitions file.
pub(crate) async fn imported(
    api: &Api,
    call: &AuthenticatedRequest,
    name: &str,
    entry: &JsonMembers<'_>,
) -> Result<UserRecord, ApiError> {
    let existing = find(api, name).await?;
    let record = record(api, name, entry).await?;
    if existing.as_deref() != Some(&record) {
        require_unprotected(existing.as_deref(), call, false)?;
    }
    Ok(record)
}

/// Parses the user of a request. Limits that the request omits are kept.
pub(crate) async fn record(
    api: &Api,
    name: &str,
    body: &JsonMembers<'_>,
) -> Result<UserRecord, ApiError> {
    let tags = match body.words("tags")? {
        Some(tags) => tags,
        // Clients that predate tags send this flag.
        None => match body.optional_flag("administrator")? {
            Some(true) => vec!["administrator".into()],
            Some(false) => Vec::new(),
            None => return Err(ApiError::bad_request("tags_not_present")),
        },
    };
    let password = password(api, body).await?;
    let limits = match body.table("limits")? {
        None => {
            let existing = find(api, name).await?;
            existing.map_or(Vec::new(), |u| u.limits.clone())
        }
        Some(table) => {
            let limit = |(name, value): (Name, Value)| match value.as_integer() {
                Some(value) => Ok((name, value)),
                None => Err(ApiError::bad_request(format!(
                    "limit '{name}' should be a number"
                ))),
            };
            table.0.into_iter().map(limit).collect::<Result<_, _>>()?
        }
    };
    Ok(UserRecord {
        name: name.into(),
        password,
        tags,
        limits,
    })
}

/// Parses a password. As in RabbitMQ, None disables password login: an empty `password_hash`, or
/// neither key.
async fn password(api: &Api, body: &JsonMembers<'_>) -> Result<Option<PasswordHash>, ApiError> {
    let algorithm = match body.text("hashing_algorithm")? {
        None => None,
        Some(name) => Some(HashAlgorithm::from_name(name).ok_or_else(|| {
            ApiError::bad_request(format!(
                "hashing_algorithm '{name}' is not known: rabbit_password_hashing_md5, rabbit_password_hashing_sha256, \
                 rabbit_password_hashing_sha512 and argon2id are"
            ))
        })?),
    };
    match (body.text("password")?, body.text("password_hash")?) {
        (Some(_), Some(_)) => Err(ApiError::bad_request(
            "both_password_and_password_hash_are_provided",
        )),
        // As in RabbitMQ, an empty password never allows a login.
        (Some(""), None) | (None, None | Some("")) => Ok(None),
        (None, Some(hash)) => {
            // Without `hashing_algorithm` (never set before RabbitMQ 3.6), the length identifies
            // the algorithm.
            let algorithm = algorithm.unwrap_or(match hash.len() {
                SHA512_TEXT => HashAlgorithm::Sha512,
                MD5_TEXT => HashAlgorithm::Md5,
                _ => HashAlgorithm::Sha256,
            });
            let parsed = PasswordHash::from_text(algorithm, hash);
            let parsed = parsed.map_err(|e| {
                ApiError::bad_request(match e {
                    PasswordHashError::Base64 => object!(["not_base64", hash]),
                    other => object!(other.to_string()),
                })
            })?;
            Ok(Some(parsed))
        }
        (Some(password), None) => {
            if password.len() > MAX_PASSWORD {
                return Err(ApiError::bad_request(format!(
                    "a password has {MAX_PASSWORD} bytes at the most"
                )));
            }
            hash_password(api, password, algorithm.unwrap_or(HashAlgorithm::Argon2id))
                .await
                .map(Some)
        }
    }
}

pub(crate) async fn hash_password(
    api: &Api,
    password: &str,
    algorithm: HashAlgorithm,
) -> Result<PasswordHash, ApiError> {
    let mut salt = [0; SALT_LEN];
    entropy::fill(&mut salt)
        .map_err(|e| ApiError::unavailable(format!("no random bytes for a salt: {e}")))?;
    let password = password.as_bytes().to_vec();
    let hash = api
        .logins()
        .blocking(move || auth::hash_with(algorithm, &password, &salt))
        .await?;
    hash.map_err(|e| ApiError::bad_request(e.to_string()))
}

pub(crate) async fn delete(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    let Some(user) = find(api, name).await? else {
        return Err(ApiError::not_found());
    };
    let is_override = call.query.get(OVERRIDE) == Some("true");
    require_unprotected(Some(&user), call, is_override)?;
    api.change(Change::DeleteUser { name: name.into() }).await?;
    no_content()
}

/// Users without permissions in any vhost.
pub(crate) async fn without_permissions(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    let users: Vec<Arc<UserRecord>> = api
        .read(|tree| {
            let users_with_permissions: BTreeSet<_> =
                tree.permissions().map(|p| p.user.clone()).collect();
            let users = tree
                .users()
                .filter(|u| !users_with_permissions.contains(&u.name));
            users.cloned().collect()
        })
        .await?;
    let (part, cut) = ListRequest::of(&call.query)?.cut(users, |u| &u.name)?;
    Ok(cut.respond(part.iter().map(|u| show(u)).collect()))
}

/// Deletes the existing users among `{"users": ["a", "b"]}`.
pub(crate) async fn bulk_delete(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    let body = call.object()?;
    let body = JsonMembers(&body);
    body.require(&["users"])?;
    let names = body.words("users")?.unwrap_or_default();
    for name in &names {
        require_unprotected(find(api, name).await?.as_deref(), call, false)?;
    }
    for name in names {
        api.change(Change::DeleteUser { name }).await?;
    }
    no_content()
}

pub(crate) async fn limits(api: &Api, name: Option<&str>) -> ApiResult {
    let users: Vec<Arc<UserRecord>> = match name {
        None => api.read(|tree| tree.users().cloned().collect()).await?,
        Some(name) => vec![find(api, name).await?.ok_or_else(ApiError::not_found)?],
    };
    let shown = users.iter().filter(|u| !u.limits.is_empty());
    let shown = shown.map(|u| object!({"user": &*u.name, "value": limits_of(u)}));
    json(Json::Array(shown.collect()))
}

pub(crate) async fn set_limit(
    api: &Api,
    call: &AuthenticatedRequest,
    name: &str,
    limit: &str,
) -> ApiResult {
    let value = match limits::value(call, limit, USER_LIMITS)? {
        Ok(value) => value,
        Err(LimitError::Unknown(terms)) => {
            let why = format!("Unrecognised terms {terms} in user-limits");
            return Err(ApiError::bad_request(why));
        }
        Err(LimitError::NotNumber(why)) => return Err(ApiError::bad_request(why)),
    };
    if find(api, name).await?.is_none() {
        return Err(ApiError::bad_request(object!(["no_such_user", name])));
    }
    let change = Change::SetUserLimit {
        user: name.into(),
        limit: limit.into(),
        value: Some(value),
    };
    api.change(change).await?;
    no_content()
}

/// Clearing an unknown limit succeeds without effect.
pub(crate) async fn clear_limit(api: &Api, name: &str, limit: &str) -> ApiResult {
    if !USER_LIMITS.contains(&limit) {
        return match find(api, name).await? {
            Some(_) => no_content(),
            None => Err(ApiError::not_found()),
        };
    }
    let change = Change::SetUserLimit {
        user: name.into(),
        limit: limit.into(),
        value: None,
    };
    api.change(change).await?;
    no_content()
}
