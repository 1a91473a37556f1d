//! Tests of the web UI's files: content, access and headers.

use super::*;
use crate::ui::FILES;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use ureq::http::{HeaderMap, Response};

impl Server {
    /// Sends a request without credentials. `headers` holds those that a proxy or browser would
    /// add.
    fn fetch(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response<Vec<u8>> {
        let url = format!("http://{}{path}", self.address);
        let request = ureq::http::Request::builder().method(method).uri(url);
        // One connection per request, because the response body may remain unread.
        let mut request = request.header("connection", "close");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.agent.run(request.body(()).unwrap()).unwrap();
        let (parts, mut body) = answer.into_parts();
        Response::from_parts(parts, body.read_to_vec().unwrap())
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |v| v.to_str().unwrap())
}

#[test]
fn every_file_is_served_without_login() {
    let server = Server::start();
    for (path, kind, content) in FILES {
        let got = server.fetch("GET", path, &[]);
        assert_eq!(got.status(), 200, "{path}");
        assert_eq!(header(got.headers(), "content-type"), *kind, "{path}");
        assert_eq!(header(got.headers(), "cache-control"), "no-cache", "{path}");
        assert!(got.body() == content, "{path}");
        let head = server.fetch("HEAD", path, &[]);
        assert_eq!(head.status(), 200, "{path}");
        assert!(head.body().is_empty(), "{path}");
        let length = content.len().to_string();
        assert_eq!(header(head.headers(), "content-length"), length, "{path}");
        let tag = header(got.headers(), "etag");
        assert_eq!(header(head.headers(), "etag"), tag, "{path}");
    }
}

#[test]
fn every_response_has_security_headers() {
    let server = Server::start();
    for path in ["/", "/ui/style.css", "/ui/none", "/api/overview", "/livez"] {
        let got = server.fetch("GET", path, &[]);
        let of = |name| header(got.headers(), name);
        let policy = of("content-security-policy");
        assert!(
            policy.starts_with("default-src 'self';"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(of("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(of("x-frame-options"), "DENY", "{path}");
        assert_eq!(of("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(of("set-cookie"), "", "{path}");
    }
}

#[test]
fn unchanged_file_is_not_sent_again() {
    let server = Server::start();
    let path = "/ui/js/main.js";
    let first = server.fetch("GET", path, &[]);
    let tag = header(first.headers(), "etag");
    assert!(tag.starts_with('"') && tag.ends_with('"'), "strong: {tag}");
    for known in [
        tag.to_owned(),
        format!("\"x\", {tag}"),
        format!("W/{tag}"),
        "*".to_owned(),
    ] {
        let again = server.fetch("GET", path, &[("if-none-match", &known)]);
        assert_eq!(again.status(), 304, "{known}");
        assert!(again.body().is_empty(), "{known}");
        assert_eq!(header(again.headers(), "etag"), tag, "{known}");
    }
    let other = server.fetch("GET", path, &[("if-none-match", "\"x\"")]);
    assert_eq!(other.status(), 200);
    let style = server.fetch("GET", "/ui/style.css", &[]);
    assert_ne!(header(style.headers(), "etag"), tag);
}

#[test]
fn paths_outside_the_ui_are_not_found() {
    let server = Server::start();
    for path in [
        "/ui/",
        "/ui/js",
        "/ui/package.json",
        "/ui/js/main.js/",
        "/ui/js/main.js%00",
        "/ui/%6as/main.js",
        "/ui//js/main.js",
        "/ui/..%2fCargo.toml",
        "/ui/%2e%2e/Cargo.toml",
        "/ui/js/..%5c..%5cindex.html",
        "/index.php",
    ] {
        let got = server.fetch("GET", path, &[]);
        assert_eq!(got.status(), 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        assert_eq!(server.fetch(method, "/", &[]).status(), 405, "{method}");
    }
}

fn list_files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => list_files_below(&path, found),
            false => found.push(path),
        }
    }
}

#[test]
fn every_file_in_the_directory_is_served() {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
    let mut found = Vec::new();
    list_files_below(&ui, &mut found);
    let served: BTreeSet<&str> = FILES.iter().map(|(path, ..)| *path).collect();
    assert_eq!(served.len(), FILES.len(), "a path is there twice");
    for path in found {
        let name = path.strip_prefix(&ui).unwrap().to_str().unwrap();
        let path = match name {
            "index.html" => "/".to_owned(),
            "package.json" => continue,
            name => format!("/ui/{name}"),
        };
        assert!(served.contains(path.as_str()), "{path}");
    }
}

/// The content security policy forbids inline scripts and external resources.
#[test]
fn pages_use_no_external_resources_and_no_inner_html() {
    let own = FILES.iter().filter(|(path, ..)| !path.contains("/vendor/"));
    for (path, _, content) in own {
        let text = std::str::from_utf8(content).unwrap();
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "dangerouslySetInnerHTML",
            "javascript:",
            "style=",
            "onclick=",
            "//cdn",
            "https://",
            "document.cookie",
            "localStorage",
        ] {
            assert!(!text.contains(word), "{path} has {word}");
        }
    }
}

#[test]
fn unread_file_times_out() {
    let server = Server::start_with(|config| {
        config.max_connections = 1;
        config.idle_timeout = std::time::Duration::from_millis(300);
    });
    // The client requests a file and stays connected: its slot must become free again.
    let mut idle = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(&mut idle, b"GET /ui/js/main.js HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(server.fetch("GET", "/", &[]).status(), 200);
}

#[test]
fn cross_site_requests_with_browser_credentials_are_refused() {
    let server = Server::start();
    let login = ("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=");
    let status = |method: &str, site: &str| {
        let headers = [login, ("sec-fetch-site", site)];
        let got = server.fetch(method, "/api/vhosts/made", &headers);
        got.status().as_u16()
    };
    for site in ["cross-site", "same-site"] {
        assert_eq!(status("PUT", site), 403, "{site}");
        assert_eq!(status("GET", site), 404, "{site}: it was not made");
    }
    assert_eq!(status("PUT", "same-origin"), 201);
    assert_eq!(status("DELETE", "cross-site"), 403);
    assert_eq!(status("DELETE", "none"), 204);
}

/// Over plain HTTP browsers send `Origin`, but no Fetch Metadata.
#[test]
fn requests_with_a_foreign_origin_are_refused() {
    let server = Server::start();
    let login = ("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=");
    let user = r#"{"users": [{"name": "evil", "password": "x", "tags": "administrator"}]}"#;
    let send = |origin: Option<&str>, kind: &str, body: &str| {
        let url = format!("http://{}/api/definitions", server.address);
        let mut request = ureq::http::Request::builder().method("POST").uri(url);
        request = request
            .header(login.0, login.1)
            .header("content-type", kind);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let body = body.as_bytes().to_vec();
        server
            .agent
            .run(request.body(body).unwrap())
            .unwrap()
            .status()
            .as_u16()
    };
    let form = format!(
        "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d.json\"\r\n\r\n{user}\r\n--XX--\r\n"
    );
    let form_kind = "multipart/form-data; boundary=XX";
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        for (kind, body) in [
            ("text/plain", user),
            ("application/json", user),
            (form_kind, &form),
        ] {
            assert_eq!(send(Some(origin), kind, body), 403, "{origin} {kind}");
        }
    }
    let own = format!("http://{}", server.address);
    assert_eq!(send(Some(&own), "text/plain", user), 415);
    assert_eq!(server.ask("GET", "/api/users/evil", None).status, 404);
    assert_eq!(send(Some(&own), "application/json", "{}"), 204);
    assert_eq!(send(None, "text/plain", "{}"), 204, "no browser");
    assert_eq!(send(None, form_kind, "--XX--"), 400);
    // In the format of `curl -F file=@d.json`.
    assert_eq!(send(None, form_kind, &form), 204);
    assert_eq!(server.ask("GET", "/api/users/evil", None).status, 200);
    assert_eq!(server.delete("/api/users/evil"), 204);
    assert_eq!(
        send(Some(&own), form_kind, &form),
        204,
        "from our own pages"
    );
}
