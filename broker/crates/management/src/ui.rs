//! The web UI: files compiled into the binary, served at `/` and below `/ui/`. They require no
//! authentication: the page calls the API with the user's credentials. The server never sets a
//! cookie, so no other site's page can act on behalf of a user.

use crate::dispatch::ApiResult;
use crate::error::ApiError;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::LazyLock;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file below `ui/` of this crate, served below `/ui/`.
macro_rules! file {
    ($kind:expr, $path:literal) => {
        (
            concat!("/ui/", $path),
            $kind,
            include_bytes!(concat!("../ui/", $path)) as &[u8],
        )
    };
}

/// Path, content type and content.
type File = (&'static str, &'static str, &'static [u8]);

#[rustfmt::skip]
pub(crate) const FILES: &[File] = &[
    ("/", HTML, include_bytes!("../ui/index.html")),
    file!(CSS, "style.css"),
    file!(SVG, "icon.svg"),
    file!(SCRIPT, "vendor/htm.js"),
    file!(SCRIPT, "vendor/hooks.js"),
    file!(SCRIPT, "vendor/preact.js"),
    file!(TEXT, "vendor/LICENSE.htm"),
    file!(TEXT, "vendor/LICENSE.preact"),
    file!(SCRIPT, "js/client.js"),
    file!(SCRIPT, "js/dom.js"),
    file!(SCRIPT, "js/fields.js"),
    file!(SCRIPT, "js/form.js"),
    file!(SCRIPT, "js/format.js"),
    file!(SCRIPT, "js/list.js"),
    file!(SCRIPT, "js/main.js"),
    file!(SCRIPT, "js/parts.js"),
    file!(SCRIPT, "js/payload.js"),
    file!(SCRIPT, "js/places.js"),
    file!(SCRIPT, "js/plot.js"),
    file!(SCRIPT, "js/provider.js"),
    file!(SCRIPT, "js/samples.js"),
    file!(SCRIPT, "js/save.js"),
    file!(SCRIPT, "js/session.js"),
    file!(SCRIPT, "js/values.js"),
    file!(SCRIPT, "js/wrong.js"),
    file!(SCRIPT, "js/pages/bindings.js"),
    file!(SCRIPT, "js/pages/browse.js"),
    file!(SCRIPT, "js/pages/clients.js"),
    file!(SCRIPT, "js/pages/cluster.js"),
    file!(SCRIPT, "js/pages/exchanges.js"),
    file!(SCRIPT, "js/pages/limits.js"),
    file!(SCRIPT, "js/pages/messages.js"),
    file!(SCRIPT, "js/pages/mqtt.js"),
    file!(SCRIPT, "js/pages/nodes.js"),
    file!(SCRIPT, "js/pages/overview.js"),
    file!(SCRIPT, "js/pages/policies.js"),
    file!(SCRIPT, "js/pages/queues.js"),
    file!(SCRIPT, "js/pages/rights.js"),
    file!(SCRIPT, "js/pages/streams.js"),
    file!(SCRIPT, "js/pages/topology.js"),
    file!(SCRIPT, "js/pages/users.js"),
    file!(SCRIPT, "js/pages/vhosts.js"),
];

/// Number of digest bytes in an entity tag.
const TAG_BYTES: usize = 16;

struct ServedFile {
    kind: &'static str,
    content: Bytes,
    /// A strong entity tag, derived from the content only.
    tag: HeaderValue,
}

static SERVED: LazyLock<BTreeMap<&'static str, ServedFile>> = LazyLock::new(|| {
    let file = FILES.iter().filter_map(|(path, kind, content)| {
        let digest = Sha256::digest(content);
        let tag = format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..TAG_BYTES]));
        let file = ServedFile {
            kind,
            content: Bytes::from_static(content),
            tag: HeaderValue::from_str(&tag).ok()?,
        };
        Some((*path, file))
    });
    file.collect()
});

/// Security headers of every response of this listener: scripts and resources only from this
/// origin, no content type sniffing, no framing, no referrer.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
        ),
    ),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    ),
];

pub(crate) fn protect(response: &mut Response) {
    response.headers_mut().extend(HEADERS);
}

/// Returns true for paths of the UI, which require no authentication.
pub(crate) fn is_ui_path(path: &str) -> bool {
    path == "/" || path.starts_with("/ui/")
}

/// Looks up the path verbatim: it is not decoded, so it cannot name any other file.
pub(crate) fn get(method: &str, path: &str, headers: &HeaderMap) -> ApiResult {
    let file = SERVED.get(path).ok_or_else(ApiError::not_found)?;
    if method != "GET" {
        return Err(ApiError::method());
    }
    // Browsers must revalidate each file, so that after an upgrade no old file is used with a new
    // one.
    let cache_headers = [
        (header::ETAG, file.tag.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    if matches_tag(headers, &file.tag) {
        return Ok((StatusCode::NOT_MODIFIED, cache_headers).into_response());
    }
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(file.kind))];
    Ok((cache_headers, kind, file.content.clone()).into_response())
}

/// Evaluates `If-None-Match` (RFC 9110, 13.1.2): a list of tags, or `*`. The comparison is weak,
/// because a proxy that compressed the response may have weakened the tag.
fn matches_tag(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let all = headers.get_all(header::IF_NONE_MATCH).into_iter();
    let mut tags = all
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    tags.any(|candidate| {
        candidate == "*" || candidate.strip_prefix("W/").unwrap_or(candidate) == *tag
    })
}
