//! `/api/users` and `/api/user-limits`, for administrators only; the dispatcher enforces that.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content, put as put_answer};
use crate::entropy;
use crate::error::ApiError;
use crate::json::Members;
use crate::limits::{self, LimitError};
use crate::page::Window;
use crate::permissions;
use auth::{BadHash, HashAlgorithm, PasswordHash, SALT_LEN};
use message::Value;
use metadata::{Change, Name, PermissionRecord, UserRecord};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeSet;
use std::sync::Arc;

const USER_LIMITS: &[&str] = &["max-connections", "max-channels"];
/// Longest password taken.
const MAX_PASSWORD: usize = 1024;
/// Characters of Base64 of RabbitMQ's salt of 4 bytes and a hash of 64, and of one of 16.
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

pub(crate) async fn list(api: &Api, call: &Call) -> Answer {
    let window = Window::of(&call.query)?;
    let users: Vec<Arc<UserRecord>> = api.read(|tree| tree.users().cloned().collect()).await?;
    let (part, cut) = window.cut(users, |u| &u.name)?;
    Ok(cut.respond(part.iter().map(|u| show(u)).collect()))
}

pub(crate) async fn get(api: &Api, call: &Call, name: &str) -> Answer {
    match find(api, name).await? {
        Some(user) => json(call.query.columns_of(show(&user))),
        None => Err(ApiError::not_found()),
    }
}

pub(crate) async fn put(api: &Api, call: &Call, name: &str) -> Answer {
    let body = call.object()?;
    let existed = find(api, name).await?.is_some();
    let rights = rights(api, name, body.get("permissions")).await?;
    let record = record(api, name, &Members(&body)).await?;
    api.change(Change::PutUser(record)).await?;
    for right in rights {
        permissions::put_change(api, Change::PutPermission(right)).await?;
    }
    put_answer(existed)
}

/// Rights that are given together with a user: an object of virtual hosts.
async fn rights(
    api: &Api,
    user: &str,
    given: Option<&Json>,
) -> Result<Vec<PermissionRecord>, ApiError> {
    let given = match given {
        None | Some(Json::Null) => return Ok(Vec::new()),
        Some(Json::Object(given)) => given,
        Some(_) => return Err(ApiError::bad_request("'permissions' should be an object")),
    };
    let mut rights = Vec::new();
    for (vhost, of) in given {
        let name = vhost.clone();
        if !api.read(move |tree| tree.vhost_exists(&name)).await? {
            return Err(ApiError::bad_request(object!(["no_such_vhost", vhost])));
        }
        let of = of
            .as_object()
            .ok_or_else(|| ApiError::bad_request(format!("'{vhost}' should be an object")))?;
        rights.push(permissions::record(vhost, user, &Members(of))?);
    }
    Ok(rights)
}

/// The user that a request describes. Limits that it does not name stay as they are.
pub(crate) async fn record(
    api: &Api,
    name: &str,
    body: &Members<'_>,
) -> Result<UserRecord, ApiError> {
    let tags = match body.words("tags")? {
        Some(tags) => tags,
        // As clients said it before there were tags.
        None => match body.flag_if_any("administrator")? {
            Some(true) => vec!["administrator".into()],
            Some(false) => Vec::new(),
            None => return Err(ApiError::bad_request("tags_not_present")),
        },
    };
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
                "hashing_algorithm '{name}' is not known: rabbit_password_hashing_md5, rabbit_password_hashing_sha256, \
                 rabbit_password_hashing_sha512 and argon2id are"
            ))
        })?),
    };
    match (body.text("password")?, body.text("password_hash")?) {
        (Some(_), Some(_)) => Err(ApiError::bad_request(
            "both_password_and_password_hash_are_provided",
        )),
        // Nobody logs in with an empty password, with RabbitMQ either.
        (Some(""), None) | (None, None | Some("")) => Ok(None),
        (None, Some(hash)) => {
            // RabbitMQ's files and clients may not say, and those before 3.6 never do: by its length it is one of these.
            let algorithm = algorithm.unwrap_or(match hash.len() {
                SHA512_TEXT => HashAlgorithm::Sha512,
                MD5_TEXT => HashAlgorithm::Md5,
                _ => HashAlgorithm::Sha256,
            });
            let parsed = PasswordHash::from_text(algorithm, hash);
            let parsed = parsed.map_err(|e| {
                ApiError::bad_request(match e {
                    BadHash::Base64 => object!(["not_base64", hash]),
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
pub(crate) async fn without_permissions(api: &Api, call: &Call) -> Answer {
    let users: Vec<Arc<UserRecord>> = api
        .read(|tree| {
            let used: BTreeSet<_> = tree.permissions().map(|p| p.user.clone()).collect();
            let users = tree.users().filter(|u| !used.contains(&u.name));
            users.cloned().collect()
        })
        .await?;
    let (part, cut) = Window::of(&call.query)?.cut(users, |u| &u.name)?;
    Ok(cut.respond(part.iter().map(|u| show(u)).collect()))
}

/// `{"users": ["a", "b"]}`: those that are there go.
pub(crate) async fn bulk_delete(api: &Api, call: &Call) -> Answer {
    let body = call.object()?;
    let body = Members(&body);
    body.require(&["users"])?;
    for name in body.words("users")?.unwrap_or_default() {
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
    let value = match limits::value(call, limit, USER_LIMITS)? {
        Ok(value) => value,
        Err(LimitError::Unknown(terms)) => {
            let why = format!("Unrecognised terms {terms} in user-limits");
            return Err(ApiError::bad_request(why));
        }
        Err(LimitError::NoNumber(why)) => return Err(ApiError::bad_request(why)),
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

/// A limit that nobody knows is not set.
pub(crate) async fn clear_limit(api: &Api, name: &str, limit: &str) -> Answer {
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
