//! `/api/users` and `/api/user-limits` (O5). Administrators only; the dispatcher sees to that.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content, put as put_answer};
use crate::entropy;
use crate::error::ApiError;
use crate::json::Members;
use crate::limits;
use crate::page::Window;
use auth::{HashAlgorithm, PasswordHash, SALT_LEN};
use message::Value;
use metadata::{Change, Name, UserRecord};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest password taken.
const MAX_PASSWORD: usize = 1024;
/// Characters of Base64 of RabbitMQ's salt of 4 bytes and a hash of 64.
const SHA512_TEXT: usize = 92;

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

pub(crate) async fn list(api: &Api, call: &Call) -> Answer {
    let window = Window::of(&call.query)?;
    let users: Vec<Arc<UserRecord>> = api.read(|tree| tree.users().cloned().collect()).await?;
    let (part, cut) = window.cut(users, |u| &u.name)?;
    Ok(cut.respond(part.iter().map(|u| show(u)).collect()))
}

pub(crate) async fn get(api: &Api, name: &str) -> Answer {
    match find(api, name).await? {
        Some(user) => json(show(&user)),
        None => Err(ApiError::not_found()),
    }
}

pub(crate) async fn put(api: &Api, call: &Call, name: &str) -> Answer {
    let body = call.object()?;
    let existed = find(api, name).await?.is_some();
    let record = record(api, name, &Members(&body)).await?;
    api.change(Change::PutUser(record)).await?;
    put_answer(existed)
}

/// The user that a request describes. Limits that it does not name stay as they are.
pub(crate) async fn record(
    api: &Api,
    name: &str,
    body: &Members<'_>,
) -> Result<UserRecord, ApiError> {
    let tags = body
        .words("tags")?
        .ok_or_else(|| ApiError::bad_request("key_missing: tags"))?;
    let password = password(api, body).await?;
    let limits = match body.table("limits")? {
        None => {
            let before = find(api, name).await?;
            before.map_or(Vec::new(), |u| u.limits.clone())
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

/// None for a user who may not log in with a password: an empty `password_hash` says so, and neither of the two, as with
/// RabbitMQ.
async fn password(api: &Api, body: &Members<'_>) -> Result<Option<PasswordHash>, ApiError> {
    let algorithm = match body.text("hashing_algorithm")? {
        None => None,
        Some(name) => Some(HashAlgorithm::from_name(name).ok_or_else(|| {
            ApiError::bad_request(format!(
                "hashing_algorithm '{name}' is not known: rabbit_password_hashing_sha256, \
                 rabbit_password_hashing_sha512 and argon2id are"
            ))
        })?),
    };
    match (body.text("password")?, body.text("password_hash")?) {
        (Some(_), Some(_)) => Err(ApiError::bad_request(
            "give password or password_hash, not both",
        )),
        (None, None | Some("")) => Ok(None),
        (None, Some(hash)) => {
            // RabbitMQ's files and clients may not say: by its length it is one of these two.
            let algorithm = algorithm.unwrap_or(match hash.len() {
                SHA512_TEXT => HashAlgorithm::Sha512,
                _ => HashAlgorithm::Sha256,
            });
            let parsed = PasswordHash::from_text(algorithm, hash);
            let parsed = parsed.map_err(|e| ApiError::bad_request(e.to_string()))?;
            Ok(Some(parsed))
        }
        (Some(password), None) => {
            if password.is_empty() || password.len() > MAX_PASSWORD {
                return Err(ApiError::bad_request(format!(
                    "a password has 1 to {MAX_PASSWORD} bytes"
                )));
            }
            hashed(api, password, algorithm.unwrap_or(HashAlgorithm::Argon2id))
                .await
                .map(Some)
        }
    }
}

pub(crate) async fn hashed(
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

pub(crate) async fn delete(api: &Api, name: &str) -> Answer {
    if find(api, name).await?.is_none() {
        return Err(ApiError::not_found());
    }
    api.change(Change::DeleteUser { name: name.into() }).await?;
    no_content()
}

/// Those that can use no vhost.
pub(crate) async fn without_permissions(api: &Api) -> Answer {
    let users: Vec<Arc<UserRecord>> = api
        .read(|tree| {
            let used: BTreeSet<_> = tree.permissions().map(|p| p.user.clone()).collect();
            let users = tree.users().filter(|u| !used.contains(&u.name));
            users.cloned().collect()
        })
        .await?;
    json(Json::Array(users.iter().map(|u| show(u)).collect()))
}

/// `{"users": ["a", "b"]}`: those that are there go.
pub(crate) async fn bulk_delete(api: &Api, call: &Call) -> Answer {
    let body = call.object()?;
    let names = Members(&body).words("users")?;
    let names = names.ok_or_else(|| ApiError::bad_request("key_missing: users"))?;
    for name in names {
        api.change(Change::DeleteUser { name }).await?;
    }
    no_content()
}

pub(crate) async fn limits(api: &Api, name: Option<&str>) -> Answer {
    let users: Vec<Arc<UserRecord>> = match name {
        None => api.read(|tree| tree.users().cloned().collect()).await?,
        Some(name) => vec![find(api, name).await?.ok_or_else(ApiError::not_found)?],
    };
    let shown = users.iter().filter(|u| !u.limits.is_empty());
    let shown = shown.map(|u| object!({"user": &*u.name, "value": limits_of(u)}));
    json(Json::Array(shown.collect()))
}

pub(crate) async fn set_limit(api: &Api, call: &Call, name: &str, limit: &str) -> Answer {
    let value = limits::value(call)?;
    let change = Change::SetUserLimit {
        user: name.into(),
        limit: limit.into(),
        value: Some(value),
    };
    api.change(change).await?;
    no_content()
}

/// A limit that nobody knows is not set.
pub(crate) async fn clear_limit(api: &Api, name: &str, limit: &str) -> Answer {
    if !matches!(limit, "max-connections" | "max-channels") {
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
