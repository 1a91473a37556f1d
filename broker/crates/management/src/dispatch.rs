//! Request handling: limits, authentication, and dispatch by method and path.

use crate::access::Call;
use crate::ask::Api;
use crate::error::ApiError;
use crate::listen::Peer;
use crate::page::Query;
use crate::serving::{OperatorCertificate, Protection};
use crate::{
    MAX_BODY, MAX_DEFINITIONS, auth_paths, bindings, channels, connections, consumers, definitions,
    exchanges, features, form, health, limits, login, messages, nodes, origin, overview,
    parameters, permissions, policies, queues, replicas, routes, sessions, ui, users, vhosts,
};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body::Body as _;
use metadata::PolicyScope;
use percent_encoding::percent_decode_str;
use serde_json::Value as Json;

/// Maximum number of elements of a path.
const MAX_ELEMENTS: usize = 12;

pub(crate) type Answer = Result<Response, ApiError>;

pub(crate) fn json(body: Json) -> Answer {
    Ok(axum::Json(body).into_response())
}

pub(crate) fn no_content() -> Answer {
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The response to a PUT: 204 if the object existed, otherwise 201.
pub(crate) fn put(existed: bool) -> Answer {
    let status = if existed {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::CREATED
    };
    Ok(status.into_response())
}

pub(crate) fn router(api: Api) -> Router {
    Router::new().fallback(serve).with_state(api)
}

async fn serve(State(api): State<Api>, request: Request) -> Response {
    let timeout = api.config().request_timeout;
    let answer = tokio::time::timeout(timeout, answer(&api, request)).await;
    let answer = answer.unwrap_or_else(|_| Err(ApiError::unavailable("the request took too long")));
    let mut answer = answer.unwrap_or_else(|error| error.into_response());
    ui::protect(&mut answer);
    answer
}

async fn answer(api: &Api, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    let method = match parts.method.as_str() {
        // hyper drops the body of a response to HEAD.
        "HEAD" => "GET".to_owned(),
        other => other.to_owned(),
    };
    match (method.as_str(), parts.uri.path()) {
        ("GET", "/livez") => return health::livez(api),
        ("GET", "/readyz") => return health::readyz(api).await,
        (method, path) if ui::is_ui_path(path) => return ui::get(method, path, &parts.headers),
        _ => {}
    }
    let path = elements(parts.uri.path())?;
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let Some(("api", path)) = path.split_first().map(|(f, r)| (*f, r)) else {
        return Err(ApiError::not_found());
    };
    if method == "OPTIONS" {
        // Browsers send OPTIONS without credentials. The response reveals only which methods the
        // path supports (RFC 9110, 9.3.7).
        let allowed = routes::allowed_methods(path).ok_or_else(ApiError::not_found)?;
        return Ok(([(header::ALLOW, allowed)], ()).into_response());
    }
    if method != "GET" {
        origin::check(&parts.headers, !body.is_end_stream())?;
    }
    let peer = parts.extensions.get::<ConnectInfo<Peer>>();
    // Loopback restrictions cannot be enforced without the peer's address.
    let peer = peer.ok_or_else(|| ApiError::not_authorized("Not_Authorized"))?;
    let is_operator = parts.extensions.get::<OperatorCertificate>().is_some()
        && !parts.headers.contains_key(header::AUTHORIZATION);
    let user = if is_operator {
        if method != "GET" {
            let path = parts.uri.path();
            tracing::info!(event = "operator.request", user = login::OPERATOR, peer = %peer.0.0, method, path);
        }
        login::operator(api).await?
    } else {
        let authorization = text(&parts.headers, header::AUTHORIZATION.as_str());
        login::login(api, authorization, peer.0.0.ip()).await?
    };
    let limit = match path {
        ["definitions", ..] => MAX_DEFINITIONS,
        _ => MAX_BODY,
    };
    if let Some(protection) = parts.extensions.get::<Protection>() {
        protection.protect();
    }
    let (body, _memory) = api.read_body(body, limit).await?;
    let body = match path {
        ["definitions", ..] => uploaded_file(&parts.headers, body)?,
        _ => body,
    };
    let call = Call {
        user,
        is_operator,
        is_put_or_post: matches!(method.as_str(), "PUT" | "POST"),
        query: Query::parse(parts.uri.query()),
        body,
        reason: text(&parts.headers, "x-reason").map(str::to_owned),
    };
    let required_tag = match routes::find(&method, path) {
        Ok((_, _, tag, _)) => tag,
        Err(error) => {
            tracing::debug!(
                event = "management_no_route",
                method,
                path = parts.uri.path()
            );
            return Ok(no_route_response(error, path));
        }
    };
    required_tag.check(&call)?;
    dispatch(api, &call, &method, path).await
}

/// Returns the uploaded file of a form, or the body unchanged for any other content type.
fn uploaded_file(headers: &HeaderMap, body: Bytes) -> Result<Bytes, ApiError> {
    let kind = text(headers, header::CONTENT_TYPE.as_str());
    let Some(boundary) = kind.and_then(form::boundary) else {
        return Ok(body);
    };
    let file = form::part(&body, boundary, "file");
    let file = file.ok_or_else(|| ApiError::bad_request("the form has no part named 'file'"))?;
    Ok(body.slice(file))
}

/// A 405 response lists the methods of the path in `Allow` (RFC 9110, 15.5.6).
fn no_route_response(error: ApiError, path: &[&str]) -> Response {
    let response = error.into_response();
    match routes::allowed_methods(path) {
        Some(allowed) => ([(header::ALLOW, allowed)], response).into_response(),
        None => response,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Splits a path and decodes its elements. `%2F` does not separate elements; one trailing slash is
/// ignored.
fn elements(path: &str) -> Result<Vec<String>, ApiError> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let decoded = path.split('/').take(MAX_ELEMENTS + 1).map(|element| {
        let text = percent_decode_str(element).decode_utf8();
        text.map(|t| t.into_owned())
            .map_err(|_| ApiError::bad_request("the path is not UTF-8"))
    });
    let elements = decoded.collect::<Result<Vec<_>, _>>()?;
    if elements.len() > MAX_ELEMENTS {
        return Err(ApiError::not_found());
    }
    Ok(elements)
}

pub(crate) async fn dispatch(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    if let ["queues", "quorum", rest @ ..] = path
        && let Some(answer) = replicas::route(api, call, method, rest).await
    {
        return answer;
    }
    match path {
        ["queues", rest @ ..] => queue_paths(api, call, method, rest).await,
        ["exchanges", rest @ ..] => exchange_paths(api, call, method, rest).await,
        ["bindings", rest @ ..] => binding_paths(api, call, method, rest).await,
        ["policies", rest @ ..] => policy_paths(api, call, method, rest, PolicyScope::User).await,
        ["operator-policies", rest @ ..] => {
            policy_paths(api, call, method, rest, PolicyScope::Operator).await
        }
        ["vhosts", rest @ ..] => vhost_paths(api, call, method, rest).await,
        ["nodes", rest @ ..] => node_paths(api, call, method, rest).await,
        ["definitions", rest @ ..] => definition_paths(api, call, method, rest).await,
        ["health", "checks", check @ ..] if method == "GET" => {
            health::check(api, call, check).await
        }
        ["connections", ..] | ["channels", ..] | ["consumers", ..] => {
            client_paths(api, call, method, path).await
        }
        ["parameters", ..] | ["global-parameters", ..] | ["cluster-name"] => {
            parameter_paths(api, call, method, path).await
        }
        ["auth", rest @ ..] => auth_paths(api, method, rest).await,
        [
            "users" | "permissions" | "topic-permissions" | "user-limits",
            ..,
        ] => user_paths(api, call, method, path).await,
        _ => other_paths(api, call, method, path).await,
    }
}

/// The route table accepts the path but no handler exists.
fn unhandled() -> Answer {
    Err(ApiError::not_implemented())
}

async fn other_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", ["overview"]) => overview::overview(api, call).await,
        ("GET", ["version"]) => json(Json::from(overview::RABBITMQ_VERSION)),
        ("GET", ["whoami"]) => overview::whoami(call),
        ("GET", ["openapi.json"]) => json(routes::openapi(api.config().version.version)),
        ("GET", ["extensions"]) => auth_paths::extensions(),
        ("GET", ["healthchecks", "node"]) => json(serde_json::json!({"status": "ok"})),
        ("GET", ["aliveness-test", vhost]) => health::aliveness(api, call, vhost).await,
        ("GET", ["feature-flags"]) => features::list(api).await,
        ("PUT", ["feature-flags", name, "enable"]) => features::enable(api, name).await,
        ("GET", ["deprecated-features"]) => features::deprecated(),
        ("GET", ["deprecated-features", "used"]) => features::deprecated_in_use(api).await,
        ("GET", ["vhost-limits"]) => limits::list(api, call, None).await,
        ("GET", ["vhost-limits", vhost]) => limits::list(api, call, Some(vhost)).await,
        ("PUT", ["vhost-limits", vhost, limit]) => limits::set(api, call, vhost, limit).await,
        ("DELETE", ["vhost-limits", vhost, limit]) => limits::clear(api, vhost, limit).await,
        ("POST", ["rebalance", "queues"]) => nodes::rebalance(api, call).await,
        _ => unhandled(),
    }
}

async fn auth_paths(api: &Api, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", []) => auth_paths::methods(),
        ("GET", ["attempts", node]) => auth_paths::attempts(api, node).await,
        ("DELETE", ["attempts", node]) => auth_paths::reset_attempts(api, node).await,
        ("GET", ["hash_password", password]) => auth_paths::hash_password(api, password).await,
        _ => unhandled(),
    }
}

async fn client_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", ["connections"]) => connections::list(api, call, None).await,
        ("GET", ["connections", "username", user]) => connections::of_user(api, call, user).await,
        ("DELETE", ["connections", "username", user]) => {
            connections::close_of_user(api, call, user).await
        }
        ("GET", ["connections", name]) => connections::get(api, call, name).await,
        ("DELETE", ["connections", name]) => connections::close(api, call, name).await,
        ("GET", ["connections", name, "channels"]) => {
            channels::of_connection(api, call, name).await
        }
        ("GET", ["connections", name, "sessions"]) => sessions::list(api, call, name).await,
        ("GET", ["channels"]) => channels::list(api, call, None).await,
        ("GET", ["channels", name]) => channels::get(api, call, name).await,
        ("GET", ["consumers"]) => consumers::list(api, call, None).await,
        ("GET", ["consumers", vhost]) => consumers::list(api, call, Some(vhost)).await,
        _ => unhandled(),
    }
}

async fn parameter_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", ["parameters"]) => parameters::list(api, call, None, None).await,
        ("GET", ["parameters", component]) => {
            parameters::list(api, call, Some(component), None).await
        }
        ("GET", ["parameters", component, vhost]) => {
            parameters::list(api, call, Some(component), Some(vhost)).await
        }
        ("GET", ["parameters", component, vhost, name]) => {
            parameters::get(api, call, component, vhost, name).await
        }
        ("PUT", ["parameters", component, vhost, name]) => {
            parameters::put(api, call, component, vhost, name).await
        }
        ("DELETE", ["parameters", component, vhost, name]) => {
            parameters::delete(api, call, component, vhost, name).await
        }
        ("GET", ["global-parameters"]) => parameters::list_globals(api).await,
        ("GET", ["global-parameters", name]) => parameters::get_global(api, name).await,
        ("PUT", ["global-parameters", name]) => parameters::put_global(api, call, name).await,
        ("DELETE", ["global-parameters", name]) => parameters::delete_global(api, name).await,
        ("GET", ["cluster-name"]) => parameters::get_cluster_name(api).await,
        ("PUT", ["cluster-name"]) => parameters::put_cluster_name(api, call).await,
        _ => unhandled(),
    }
}

async fn queue_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", [] | ["detailed"]) => queues::list(api, call, None).await,
        ("GET", [vhost]) => queues::list(api, call, Some(vhost)).await,
        ("GET", [vhost, name]) => queues::get(api, call, vhost, name).await,
        ("PUT", [vhost, name]) => queues::declare(api, call, vhost, name).await,
        ("DELETE", [vhost, name]) => queues::delete(api, call, vhost, name).await,
        ("DELETE", [vhost, name, "contents"]) => queues::purge(api, call, vhost, name).await,
        ("POST", [vhost, name, "actions"]) => queues::reject_action(api, call, vhost, name).await,
        ("POST", [vhost, name, "get"]) => messages::get(api, call, vhost, name).await,
        ("GET", [vhost, name, "bindings"]) => bindings::of_queue(api, call, vhost, name).await,
        _ => unhandled(),
    }
}

async fn exchange_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", []) => exchanges::list(api, call, None).await,
        ("GET", [vhost]) => exchanges::list(api, call, Some(vhost)).await,
        ("GET", [vhost, name]) => exchanges::get(api, call, vhost, name).await,
        ("PUT", [vhost, name]) => exchanges::declare(api, call, vhost, name).await,
        ("DELETE", [vhost, name]) => exchanges::delete(api, call, vhost, name).await,
        ("POST", [vhost, name, "publish"]) => messages::publish(api, call, vhost, name).await,
        ("GET", [vhost, name, "bindings", "source"]) => {
            bindings::of_exchange(api, call, vhost, name, true).await
        }
        ("GET", [vhost, name, "bindings", "destination"]) => {
            bindings::of_exchange(api, call, vhost, name, false).await
        }
        _ => unhandled(),
    }
}

async fn binding_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", []) => bindings::list(api, call, None).await,
        ("GET", [vhost]) => bindings::list(api, call, Some(vhost)).await,
        (
            _,
            [
                vhost,
                "e",
                source,
                kind @ ("q" | "e"),
                destination,
                rest @ ..,
            ],
        ) => {
            let pair = bindings::Pair::new(vhost, source, kind, destination);
            match (method, rest) {
                ("GET", []) => bindings::between(api, call, &pair).await,
                ("POST", []) => bindings::bind(api, call, &pair).await,
                ("GET", [key]) => bindings::get(api, call, &pair, key).await,
                ("DELETE", [key]) => bindings::unbind(api, call, &pair, key).await,
                _ => unhandled(),
            }
        }
        _ => unhandled(),
    }
}

async fn policy_paths(
    api: &Api,
    call: &Call,
    method: &str,
    path: &[&str],
    scope: PolicyScope,
) -> Answer {
    match (method, path) {
        ("GET", []) => policies::list(api, call, scope, None).await,
        ("GET", [vhost]) => policies::list(api, call, scope, Some(vhost)).await,
        ("GET", [vhost, name]) => policies::get(api, call, scope, vhost, name).await,
        ("PUT", [vhost, name]) => policies::put(api, call, scope, vhost, name).await,
        ("DELETE", [vhost, name]) => policies::delete(api, call, scope, vhost, name).await,
        _ => unhandled(),
    }
}

async fn vhost_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", []) => vhosts::list(api, call).await,
        ("GET", [name]) => vhosts::get(api, call, name).await,
        ("PUT", [name]) => vhosts::put(api, call, name).await,
        ("DELETE", [name]) => vhosts::delete(api, call, name).await,
        ("GET", [name, "permissions"]) => permissions::of_vhost(api, call, name).await,
        ("GET", [name, "topic-permissions"]) => permissions::topics_of_vhost(api, call, name).await,
        ("GET", [name, "connections"]) => connections::list(api, call, Some(name)).await,
        ("GET", [name, "channels"]) => channels::list(api, call, Some(name)).await,
        ("POST", [name, "start", node]) => vhosts::start(api, name, node).await,
        ("POST", [name, "deletion", "protection"]) => vhosts::protect(api, name, true).await,
        ("DELETE", [name, "deletion", "protection"]) => vhosts::protect(api, name, false).await,
        _ => unhandled(),
    }
}

async fn node_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", []) => nodes::list(api, call).await,
        ("GET", [name]) => nodes::get(api, call, name).await,
        ("DELETE", [name]) => nodes::forget(api, call, name).await,
        ("PUT", [name, "maintenance"]) => nodes::maintenance(api, call, name, true).await,
        ("DELETE", [name, "maintenance"]) => nodes::maintenance(api, call, name, false).await,
        ("GET", [name, "log-levels"]) => nodes::show_log_levels(api, name).await,
        ("PUT", [name, "log-levels"]) => nodes::set_log_level(api, call, name).await,
        ("PUT", [name, "memory-watermark"]) => nodes::memory_watermark(api, call, name).await,
        ("PUT", [name, "disk-free-limit"]) => nodes::disk_free_limit(api, call, name).await,
        _ => unhandled(),
    }
}

async fn definition_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    match (method, path) {
        ("GET", []) => definitions::export(api, call, None).await,
        ("POST" | "PUT", []) => definitions::import(api, call, None).await,
        ("GET", [vhost]) => definitions::export(api, call, Some(vhost)).await,
        ("POST" | "PUT", [vhost]) => definitions::import(api, call, Some(vhost)).await,
        _ => unhandled(),
    }
}

async fn user_paths(api: &Api, call: &Call, method: &str, path: &[&str]) -> Answer {
    if !matches!((method, path), ("GET", ["user-limits", ..])) {
        call.require_administrator()?;
    }
    match (method, path) {
        ("GET", ["users"]) => users::list(api, call).await,
        ("GET", ["users", "without-permissions"]) => users::without_permissions(api, call).await,
        ("POST", ["users", "bulk-delete"]) => users::bulk_delete(api, call).await,
        ("GET", ["users", name]) => users::get(api, call, name).await,
        ("PUT", ["users", name]) => users::put(api, call, name).await,
        ("DELETE", ["users", name]) => users::delete(api, name).await,
        ("GET", ["users", name, "permissions"]) => permissions::of_user(api, call, name).await,
        ("GET", ["users", name, "topic-permissions"]) => {
            permissions::topics_of_user(api, call, name).await
        }
        ("GET", ["permissions"]) => permissions::list(api, call).await,
        ("GET", ["permissions", vhost, user]) => permissions::get(api, vhost, user).await,
        ("PUT", ["permissions", vhost, user]) => permissions::put(api, call, vhost, user).await,
        ("DELETE", ["permissions", vhost, user]) => permissions::delete(api, vhost, user).await,
        ("GET", ["topic-permissions"]) => permissions::topics(api, call).await,
        ("GET", ["topic-permissions", vhost, user]) => {
            permissions::get_topics(api, call, vhost, user).await
        }
        ("PUT", ["topic-permissions", vhost, user]) => {
            permissions::put_topic(api, call, vhost, user).await
        }
        ("DELETE", ["topic-permissions", vhost, user]) => {
            permissions::delete_topics(api, vhost, user, None).await
        }
        ("DELETE", ["topic-permissions", vhost, user, exchange]) => {
            permissions::delete_topics(api, vhost, user, Some(exchange)).await
        }
        ("GET", ["user-limits"]) => users::limits(api, None).await,
        ("GET", ["user-limits", name]) => users::limits(api, Some(name)).await,
        ("PUT", ["user-limits", name, limit]) => users::set_limit(api, call, name, limit).await,
        ("DELETE", ["user-limits", name, limit]) => users::clear_limit(api, name, limit).await,
        _ => unhandled(),
    }
}
