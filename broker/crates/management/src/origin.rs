//! Whether a page of another site makes a browser send a request. A browser that has asked for a password itself sends it
//! along with such requests; a client that is no browser says nothing about where a request comes from.

use crate::error::ApiError;
use crate::form;
use axum::http::{HeaderMap, header};

/// Refuses a request that may change something and that another site's page makes a browser send.
pub(crate) fn check(headers: &HeaderMap, has_body: bool) -> Result<(), ApiError> {
    let site = text(headers, "sec-fetch-site");
    let origin = text(headers, header::ORIGIN.as_str());
    // Fetch Metadata, 2.4. Browsers send it over HTTPS and to loopback only.
    let is_foreign = matches!(site, Some("cross-site" | "same-site"))
        || (headers.contains_key(header::ORIGIN)
            && origin.is_none_or(|origin| !is_own(origin, text(headers, header::HOST.as_str()))));
    if is_foreign {
        return Err(ApiError::forbidden(
            "pages of other sites may not change anything here",
        ));
    }
    // Of the types that a page may send to another site without asking (Fetch, 2.2.2), none is JSON.
    let kind = text(headers, header::CONTENT_TYPE.as_str()).unwrap_or("");
    if origin.is_some() && has_body && !is_json(kind) && form::boundary(kind).is_none() {
        return Err(ApiError::unsupported_type(
            "a browser has to send the body as application/json",
        ));
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or("");
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// Whether an origin (RFC 6454, 6.2) names the host that the request went to. A proxy in front may have ended TLS, so
/// that the schemes need not be equal.
fn is_own(origin: &str, host: Option<&str>) -> bool {
    let (Some((scheme, authority)), Some(host)) = (origin.split_once("://"), host) else {
        return false;
    };
    let default = match scheme {
        "http" => ":80",
        "https" => ":443",
        // Of browsers' extensions and the like.
        _ => return false,
    };
    let own = host.strip_suffix(default).unwrap_or(host);
    let named = authority.strip_suffix(default).unwrap_or(authority);
    !own.is_empty() && own.eq_ignore_ascii_case(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_with_the_host() {
        for (origin, host) in [
            ("http://node:15672", "node:15672"),
            ("https://broker.example", "broker.example"),
            ("https://broker.example", "broker.example:443"),
            ("http://Node", "node:80"),
            ("http://[::1]:15672", "[::1]:15672"),
        ] {
            assert!(is_own(origin, Some(host)), "{origin} {host}");
        }
        for (origin, host) in [
            ("null", "node:15672"),
            ("http://evil.example", "node:15672"),
            ("http://node:15673", "node:15672"),
            ("http://node:15672.evil.example", "node:15672"),
            ("chrome-extension://node:15672", "node:15672"),
            ("http://", ""),
        ] {
            assert!(!is_own(origin, Some(host)), "{origin} {host}");
        }
        assert!(!is_own("http://node", None));
    }
}
