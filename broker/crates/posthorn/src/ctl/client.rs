//! Client of the management API.

use super::failure::Failure;
use super::object_names::object_name;
use super::tls::{self, TlsFiles};
use backup::records::{MAX_CONTENT_BYTES, MEDIA_TYPE};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use env::Clock as _;
use env::real::RealClock;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value as Json;
use std::time::Duration;

/// Characters that are not percent-encoded in a path element.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
/// Maximum length of a response in bytes.
const MAX_RESPONSE: u64 = 256 * 1024 * 1024;

/// Maximum length of a page of messages in bytes: a page ends after a message that exceeds its usual size.
const MAX_EXPORT: u64 = MAX_CONTENT_BYTES as u64 + (32 << 20);

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

type Response = ureq::http::Response<ureq::Body>;

/// A response: status and body.
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) body: Json,
}

/// A page of the messages of a queue, as records.
pub(crate) struct ExportPage {
    pub(crate) body: Bytes,
    /// Where the next page begins. None: this is the last one.
    pub(crate) next: Option<String>,
    /// The offset behind the last message. None: the queue is no stream.
    pub(crate) end_offset: Option<u64>,
}

/// Address and credentials of the API.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// Begins with `http://` or `https://`.
    pub(crate) url: String,
    pub(crate) user: String,
    pub(crate) password: String,
    /// The client certificate is sent instead of user and password.
    pub(crate) certificate_only: bool,
    /// Time limit for one response.
    pub(crate) timeout: Duration,
    /// Used only with `https://`.
    pub(crate) tls: TlsFiles,
}

pub(crate) struct Client {
    endpoint: Endpoint,
    /// `None`: the client certificate identifies the user.
    authorization: Option<String>,
    agent: ureq::Agent,
}

/// Builds an escaped path below `/api` from its elements.
pub(crate) fn path(elements: &[&str]) -> String {
    let mut path = "/api".to_owned();
    for element in elements {
        path.push('/');
        path.extend(utf8_percent_encode(element, PLAIN));
    }
    path
}

impl Client {
    /// Reads the TLS files of an `https://` address. Sends nothing yet.
    pub(crate) fn new(endpoint: Endpoint) -> Result<Client, Failure> {
        let url = &endpoint.url;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(endpoint.timeout));
        let config = if url.starts_with("https://") {
            config.tls_config(tls::config(&endpoint.tls)?).build()
        } else if url.starts_with("http://") {
            config.build()
        } else {
            return Err(Failure::Usage(format!(
                "'{url}' is not a management address: it must begin with http:// or https://"
            )));
        };
        let authorization = (!endpoint.certificate_only).then(|| {
            let credentials = format!("{}:{}", endpoint.user, endpoint.password);
            format!("Basic {}", STANDARD.encode(credentials))
        });
        Ok(Client {
            endpoint: Endpoint {
                url: url.trim_end_matches('/').to_owned(),
                ..endpoint
            },
            authorization,
            agent: config.new_agent(),
        })
    }

    /// The user who logs in with a password. `None`: a certificate identifies the user.
    pub(crate) fn user(&self) -> Option<&str> {
        self.authorization.as_ref().map(|_| &*self.endpoint.user)
    }

    /// The user and its password.
    pub(crate) fn credentials(&self) -> (&str, &str) {
        (&self.endpoint.user, &self.endpoint.password)
    }

    /// The files for connections with TLS.
    pub(crate) fn tls_files(&self) -> &TlsFiles {
        &self.endpoint.tls
    }

    /// The host of the URL, without its port.
    pub(crate) fn host(&self) -> String {
        let uri = self.endpoint.url.parse::<ureq::http::Uri>();
        let host = uri.ok().and_then(|uri| uri.host().map(str::to_owned));
        host.unwrap_or_default()
    }

    /// A client of the same node with other credentials.
    pub(crate) fn as_user(&self, user: &str, password: &str) -> Result<Client, Failure> {
        Client::new(Endpoint {
            user: user.to_owned(),
            password: password.to_owned(),
            certificate_only: false,
            ..self.endpoint.clone()
        })
    }

    /// Polls until the condition holds, for at most the timeout of one response.
    pub(crate) fn until(&self, condition: impl Fn() -> bool) -> Result<(), Failure> {
        let clock = RealClock::new();
        let until = clock.now() + self.endpoint.timeout;
        while !condition() {
            if clock.now() >= until {
                return Err(Failure::Unreachable {
                    url: self.endpoint.url.clone(),
                    reason: format!(
                        "not ready after {} seconds",
                        self.endpoint.timeout.as_secs()
                    ),
                });
            }
            self.pause(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits between two requests of a command that repeats.
    pub(crate) fn pause(&self, interval: Duration) {
        let clock = RealClock::new();
        let end = clock.now() + interval;
        while clock.now() < end {
            std::thread::park_timeout(end.since(clock.now()));
        }
    }

    /// Sends a request and returns the response, whatever its status.
    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Json>,
        headers: &[(&str, &str)],
    ) -> Result<ApiResponse, Failure> {
        let body = body.map_or_else(String::new, Json::to_string);
        let kind = "application/json";
        let response = self.run(method, path, (kind, body.into_bytes()), headers)?;
        self.parse(response)
    }

    fn unreachable(&self, reason: String) -> Failure {
        Failure::Unreachable {
            url: self.endpoint.url.clone(),
            reason,
        }
    }

    /// Sends a request with a body of any media type.
    fn run(
        &self,
        method: &str,
        path: &str,
        (kind, body): (&str, Vec<u8>),
        headers: &[(&str, &str)],
    ) -> Result<Response, Failure> {
        let url = format!("{}{path}", self.endpoint.url);
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(&url)
            .header("Content-Type", kind);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(body)
            .map_err(|e| Failure::Usage(format!("the request cannot be made: {e}")))?;
        let response = self.agent.run(request);
        response.map_err(|e| self.unreachable(e.to_string()))
    }

    fn parse(&self, mut response: Response) -> Result<ApiResponse, Failure> {
        let text = response
            .body_mut()
            .with_config()
            .limit(MAX_RESPONSE)
            .read_to_string()
            .map_err(|e| self.unreachable(format!("the answer broke off: {e}")))?;
        Ok(ApiResponse {
            status: response.status().as_u16(),
            body: serde_json::from_str(&text).unwrap_or(Json::Null),
        })
    }

    /// A page of the messages of a queue. `count`: most messages of it.
    pub(crate) fn export(
        &self,
        vhost: &str,
        queue: &str,
        cursor: Option<&str>,
        count: Option<u64>,
    ) -> Result<ExportPage, Failure> {
        self.export_page(
            &["queues", vhost, queue, "messages", "export"],
            cursor,
            count,
        )
    }

    /// A page of the retained messages of a virtual host.
    pub(crate) fn export_retained(
        &self,
        vhost: &str,
        cursor: Option<&str>,
    ) -> Result<ExportPage, Failure> {
        self.export_page(&["mqtt", "retained", vhost, "export"], cursor, None)
    }

    fn export_page(
        &self,
        elements: &[&str],
        cursor: Option<&str>,
        count: Option<u64>,
    ) -> Result<ExportPage, Failure> {
        let cursor = cursor.map(|cursor| format!("cursor={cursor}"));
        let count = count.map(|count| format!("count={count}"));
        let query: Vec<String> = cursor.into_iter().chain(count).collect();
        let target = format!("{}?{}", path(elements), query.join("&"));
        let mut response = self.run("GET", &target, (MEDIA_TYPE, Vec::new()), &[])?;
        if !response.status().is_success() {
            let response = self.parse(response)?;
            return Err(match self.ok(response, object_name(elements)) {
                Err(failure) => failure,
                Ok(_) => self.unreachable("the answer is not a page of messages".to_owned()),
            });
        }
        let next = response.headers().get("x-next-cursor");
        let next = next.and_then(|next| Some(next.to_str().ok()?.to_owned()));
        let end_offset = response.headers().get("x-end-offset");
        let end_offset = end_offset.and_then(|end| end.to_str().ok()?.parse().ok());
        let body = response.body_mut().with_config().limit(MAX_EXPORT);
        let body = body
            .read_to_vec()
            .map_err(|e| self.unreachable(format!("the answer broke off: {e}")))?;
        Ok(ExportPage {
            body: body.into(),
            next,
            end_offset,
        })
    }

    /// Stores messages, as records, in a queue. `next_offset`: the offset at which those of a stream begin. Returns their
    /// numbers by outcome.
    pub(crate) fn import(
        &self,
        vhost: &str,
        queue: &str,
        next_offset: Option<u64>,
        records: Vec<u8>,
    ) -> Result<Json, Failure> {
        let elements = ["queues", vhost, queue, "messages", "import"];
        let query = next_offset.map(|offset| format!("?next_offset={offset}"));
        self.import_records(&elements, &query.unwrap_or_default(), records)
    }

    /// Stores retained messages, as records, in a virtual host. Returns their numbers by outcome.
    pub(crate) fn import_retained(&self, vhost: &str, records: Vec<u8>) -> Result<Json, Failure> {
        self.import_records(&["mqtt", "retained", vhost, "import"], "", records)
    }

    fn import_records(
        &self,
        elements: &[&str],
        query: &str,
        records: Vec<u8>,
    ) -> Result<Json, Failure> {
        let target = format!("{}{query}", path(elements));
        let response = self.run("POST", &target, (MEDIA_TYPE, records), &[])?;
        let response = self.parse(response)?;
        Ok(self.ok(response, object_name(elements))?.body)
    }

    /// Returns true if the cluster has enabled a feature flag.
    pub(crate) fn has_feature(&self, name: &str) -> Result<bool, Failure> {
        let flags = self.get(&["feature-flags"])?;
        let mut flags = flags.as_array().into_iter().flatten();
        Ok(flags.any(|flag| flag["name"] == name && flag["state"] == "enabled"))
    }

    /// Fails if the response has an error status. `object` names the object of the request.
    fn ok(&self, response: ApiResponse, object: String) -> Result<ApiResponse, Failure> {
        let reason = || match &response.body["reason"] {
            Json::String(text) => text.clone(),
            Json::Null => format!("the answer was HTTP {}", response.status),
            other => other.to_string(),
        };
        match response.status {
            200..=299 => Ok(response),
            401 => Err(Failure::NotPermitted {
                user: self.endpoint.user.clone(),
                reason: reason(),
            }),
            status => Err(Failure::Refused {
                status,
                reason: reason(),
                object,
            }),
        }
    }

    /// Runs a health check: status 503 is a regular response.
    pub(crate) fn check(&self, path: &str) -> Result<ApiResponse, Failure> {
        let response = self.send("GET", path, None, &[])?;
        if response.status == 503 {
            return Ok(response);
        }
        self.ok(response, path.to_owned())
    }

    pub(crate) fn get(&self, elements: &[&str]) -> Result<Json, Failure> {
        self.get_with(elements, "")
    }

    /// Like [`Client::get`], with a query such as `?columns=name`.
    pub(crate) fn get_with(&self, elements: &[&str], query: &str) -> Result<Json, Failure> {
        let target = format!("{}{query}", path(elements));
        let response = self.send("GET", &target, None, &[])?;
        Ok(self.ok(response, object_name(elements))?.body)
    }

    /// The response's status tells created (201) from changed (204).
    pub(crate) fn put(&self, elements: &[&str], body: &Json) -> Result<ApiResponse, Failure> {
        let response = self.send("PUT", &path(elements), Some(body), &[])?;
        self.ok(response, object_name(elements))
    }

    /// POSTs and returns the response.
    pub(crate) fn post_for(&self, elements: &[&str], body: &Json) -> Result<ApiResponse, Failure> {
        let response = self.send("POST", &path(elements), Some(body), &[])?;
        self.ok(response, object_name(elements))
    }

    pub(crate) fn delete_for(&self, elements: &[&str]) -> Result<ApiResponse, Failure> {
        let response = self.send("DELETE", &path(elements), None, &[])?;
        self.ok(response, object_name(elements))
    }

    /// DELETEs with a query and returns the answer.
    pub(crate) fn delete_matching(&self, elements: &[&str], query: &str) -> Result<Json, Failure> {
        let target = format!("{}{query}", path(elements));
        let response = self.send("DELETE", &target, None, &[])?;
        Ok(self.ok(response, object_name(elements))?.body)
    }

    pub(crate) fn delete(&self, elements: &[&str], query: &str) -> Result<(), Failure> {
        self.delete_with(elements, query, &[])
    }

    /// Deletes an object that may not exist, as idempotent scripts do. The objects that it belongs
    /// to must exist.
    pub(crate) fn clear(&self, elements: &[&str], owners: &[[&str; 2]]) -> Result<(), Failure> {
        match self.delete(elements, "") {
            Err(Failure::Refused { status: 404, .. }) => owners
                .iter()
                .try_for_each(|owner| self.get(owner).map(|_| ())),
            result => result,
        }
    }

    pub(crate) fn delete_with(
        &self,
        elements: &[&str],
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let target = format!("{}{query}", path(elements));
        let response = self.send("DELETE", &target, None, headers)?;
        self.ok(response, object_name(elements)).map(|_| ())
    }
}
