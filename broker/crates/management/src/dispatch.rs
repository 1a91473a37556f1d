//! Request handling: limits, authentication, and the call of the route's handler.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::audit_requests::{AuditedConnection, PendingRecord, RequestAudit};
use crate::error::ApiError;
use crate::listen::Peer;
use crate::login::LoggedIn;
use crate::page::Query;
use crate::routes::Route;
use crate::serving::{OperatorCertificate, Protection};
use crate::{
    MAX_BODY, MAX_DEFINITIONS, MAX_PUBLIC_BODY, PUBLIC_BODY_TIMEOUT, export, form, health, login,
    origin, routes, ui,
};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body::Body as _;
use percent_encoding::percent_decode_str;
use serde_json::Value as Json;
use std::net::IpAddr;
use telemetry::TraceContext;

/// Maximum number of elements of a path.
const MAX_ELEMENTS: usize = 12;

pub(crate) type ApiResult = Result<Response, ApiError>;

pub(crate) fn json(body: Json) -> ApiResult {
    Ok(axum::Json(body).into_response())
}

pub(crate) fn no_content() -> ApiResult {
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The response to a PUT: 204 if the object existed, otherwise 201.
pub(crate) fn put(existed: bool) -> ApiResult {
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
    let begun = api.moment().now;
    let answer = tokio::time::timeout(timeout, answer(&api, request)).await;
    let answer = answer.unwrap_or_else(|_| Err(ApiError::unavailable("the request took too long")));
    let mut answer = answer.unwrap_or_else(|error| error.into_response());
    ui::protect(&mut answer);
    let duration = api.moment().now.since(begun);
    api.config().timings.http_requests.observe(duration);
    answer
}

async fn answer(api: &Api, request: Request) -> ApiResult {
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
    if let Some(route) = routes::find_public(&method, path) {
        let call = AuthenticatedRequest {
            user: login::nobody(),
            identity: None,
            is_operator: false,
            is_local: peer.0.0.ip().to_canonical().is_loopback(),
            is_put_or_post: method == "POST",
            query: Query::parse(parts.uri.query()),
            body: Bytes::new(),
            reason: None,
            trace: None,
        };
        return match method.as_str() {
            "GET" => route.handle(api, &call, path).await,
            _ => answer_public_post(api, route, call, path, body, peer.0.0.ip()).await,
        };
    }
    let is_operator = parts.extensions.get::<OperatorCertificate>().is_some()
        && !parts.headers.contains_key(header::AUTHORIZATION);
    let audited = parts.extensions.get::<AuditedConnection>();
    let audit = RequestAudit::new(api.config().audit.as_ref(), peer.0.0, audited);
    let logged_in = if is_operator {
        if method != "GET" {
            let path = parts.uri.path();
            tracing::info!(event = "operator.request", user = login::OPERATOR, peer = %peer.0.0, method, path);
        }
        let pending = audit
            .as_ref()
            .map(|audit| audit.begin_login(login::OPERATOR, "EXTERNAL"));
        let result = login::operator(api).await.map(LoggedIn::stored);
        end_login(audit.as_ref(), pending, true, &result);
        result?
    } else {
        let authorization = text(&parts.headers, header::AUTHORIZATION.as_str());
        let pending = audit.as_ref().map(|audit| {
            let (user, mechanism) = login::claimed_user(authorization);
            audit.begin_login(&user, mechanism)
        });
        let result = login::login(api, authorization, peer.0.0.ip()).await;
        end_login(audit.as_ref(), pending, authorization.is_some(), &result);
        result?
    };
    let limit = match path {
        ["definitions", ..] => MAX_DEFINITIONS,
        ["queues", _, _, "messages", "import"] | ["mqtt", "retained", _, "import"] => {
            export::import_limit(api)
        }
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
    let call = AuthenticatedRequest {
        user: logged_in.user,
        identity: logged_in.identity,
        is_operator,
        is_local: peer.0.0.ip().to_canonical().is_loopback(),
        is_put_or_post: matches!(method.as_str(), "PUT" | "POST"),
        query: Query::parse(parts.uri.query()),
        body,
        reason: text(&parts.headers, "x-reason").map(str::to_owned),
        trace: match api.config().traces {
            true => trace(&parts.headers),
            false => None,
        },
    };
    let route = match routes::find(&method, path) {
        Ok(route) => route,
        Err(error) => {
            tracing::debug!(
                event = "management_no_route",
                method,
                path = parts.uri.path()
            );
            return Ok(no_route_response(error, path));
        }
    };
    let Some(audit) = audit else {
        route.required_tag.check(&call)?;
        return route.handle(api, &call, path).await;
    };
    let pending = audit.begin_request(route, &call, path);
    let result = match route.required_tag.check(&call) {
        Ok(()) => route.handle(api, &call, path).await,
        Err(error) => Err(error),
    };
    audit.end_request(pending, (route, &call.user.name, path), &result);
    result
}

/// Answers a request of a client that may be anybody: a few at a time, and fewer of one address. Refusals are delayed and
/// logged like failed logins.
async fn answer_public_post(
    api: &Api,
    route: &Route,
    mut call: AuthenticatedRequest,
    path: &[&str],
    body: Body,
    peer: IpAddr,
) -> ApiResult {
    if login::web_login(api).is_none() {
        return Err(ApiError::not_found());
    }
    let turn = api.logins().public_turn(peer).await?;
    let read = tokio::time::timeout(PUBLIC_BODY_TIMEOUT, api.read_body(body, MAX_PUBLIC_BODY));
    let read = read.await.map_err(|_| {
        let seconds = PUBLIC_BODY_TIMEOUT.as_secs();
        ApiError::bad_request(format!("the body did not arrive within {seconds} s"))
    })?;
    let (body, memory) = read?;
    call.body = body;
    let result = route.handle(api, &call, path).await;
    drop((memory, turn));
    if let Err(error) = &result
        && error.status == StatusCode::BAD_REQUEST
    {
        login::delay_refused_sign_in(api, peer, &error.reason).await;
    }
    result
}

fn end_login(
    audit: Option<&RequestAudit<'_>>,
    pending: Option<PendingRecord<'_>>,
    has_credentials: bool,
    result: &Result<LoggedIn, ApiError>,
) {
    if let (Some(audit), Some(pending)) = (audit, pending) {
        let result = result.as_ref().map(|logged_in| &logged_in.user.name);
        audit.end_login(pending, has_credentials, result);
    }
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

/// The W3C trace context of a request.
fn trace(headers: &HeaderMap) -> Option<(String, Option<String>)> {
    let parent = text(headers, "traceparent")?;
    let context = TraceContext::parse(parent, text(headers, "tracestate"))?;
    Some((parent.to_owned(), context.state.map(String::from)))
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
