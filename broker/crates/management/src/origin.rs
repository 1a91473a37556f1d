//! Protection against cross-site request forgery. A browser that obtained credentials from its own
//! password prompt also sends them with requests from other sites' pages. Clients other than
//! browsers send no origin headers.

use crate::error::ApiError;
use crate::form;
use axum::http::{HeaderMap, header};

/// Rejects a modifying request that a page of another site caused a browser to send.
pub(crate) fn check(headers: &HeaderMap, has_body: bool) -> Result<(), ApiError> {
    let site = text(headers, "sec-fetch-site");
    let origin = text(headers, header::ORIGIN.as_str());
    // Fetch Metadata, section 2.4. Browsers send it only over HTTPS and to loopback.
    let is_foreign = matches!(site, Some("cross-site" | "same-site"))
        || (headers.contains_key(header::ORIGIN)
            && origin.is_none_or(|origin| !is_own(origin, text(headers, header::HOST.as_str()))));
    if is_foreign {
        return Err(ApiError::forbidden(
            "pages of other sites may not change anything here",
        ));
    }
    // A page can send some content types to another site without a preflight request (Fetch,
    // section 2.2.2). JSON is not among them.
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

/// Returns true if an origin (RFC 6454, section 6.2) names the host of the request. The schemes may
/// differ because a proxy may have terminated TLS.
fn is_own(origin: &str, host: Option<&str>) -> bool {
    let (Some((scheme, authority)), Some(host)) = (origin.split_once("://"), host) else {
        return false;
    };
    let default = match scheme {
        "http" => ":80",
        "https" => ":443",
        // Browser extensions and other schemes.
        _ => return false,
    };
    let host = host.strip_suffix(default).unwrap_or(host);
    let origin_host = authority.strip_suffix(default).unwrap_or(authority);
    !host.is_empty() && host.eq_ignore_ascii_case(origin_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_origin_of_the_requested_host_is_same_site() {
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
