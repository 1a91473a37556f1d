//! Client of the management API.

use super::failure::Failure;
use super::object_names::object_name;
use super::tls::{self, TlsFiles};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A response: status and body.
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) body: Json,
}

/// Address and credentials of the API.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// Begins with `http://` or `https://`.
    pub(crate) url: String,
    pub(crate) user: String,
    pub(crate) password: String,
    /// Time limit for one response.
    pub(crate) timeout: Duration,
    /// Used only with `https://`.
    pub(crate) tls: TlsFiles,
}

pub(crate) struct Client {
    endpoint: Endpoint,
    authorization: String,
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
        let credentials = format!("{}:{}", endpoint.user, endpoint.password);
        Ok(Client {
            endpoint: Endpoint {
                url: url.trim_end_matches('/').to_owned(),
                ..endpoint
            },
            authorization: format!("Basic {}", STANDARD.encode(credentials)),
            agent: config.new_agent(),
        })
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
        let url = format!("{}{path}", self.endpoint.url);
        let unreachable = |reason: String| Failure::Unreachable {
            url: self.endpoint.url.clone(),
            reason,
        };
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(&url)
            .header("Authorization", &self.authorization)
            .header("Content-Type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map_or_else(String::new, Json::to_string);
        let request = request
            .body(body)
            .map_err(|e| Failure::Usage(format!("the request cannot be made: {e}")))?;
        let response = self.agent.run(request);
        let mut response = response.map_err(|e| unreachable(e.to_string()))?;
        let text = response
            .body_mut()
            .with_config()
            .limit(MAX_RESPONSE)
            .read_to_string()
            .map_err(|e| unreachable(format!("the answer broke off: {e}")))?;
        Ok(ApiResponse {
            status: response.status().as_u16(),
            body: serde_json::from_str(&text).unwrap_or(Json::Null),
        })
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
