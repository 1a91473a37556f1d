//! The management API, and errors that say what to do.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use env::Clock as _;
use env::real::RealClock;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value as Json;
use std::fmt::Display;
use std::time::Duration;

/// What stays as it is in an element of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
/// Longest answer read.
const MAX_ANSWER: u64 = 256 * 1024 * 1024;

/// Pause between two questions of somebody who waits.
const BETWEEN_ASKING: Duration = Duration::from_millis(250);

/// Why an operation failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line, or what it names, cannot be used.
    Usage(String),
    /// No answer.
    Unreachable { url: String, why: String },
    /// 401.
    NotPermitted { user: String, reason: String },
    /// Any other refusal.
    Refused { status: u16, reason: String },
    /// A health check failed.
    Unhealthy,
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Unreachable { .. } => 69,
            Failure::NotPermitted { .. } => 77,
            Failure::Refused { .. } | Failure::Unhealthy => 1,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage(text) => write!(f, "{text}"),
            Failure::Unreachable { url, why } => write!(
                f,
                "no answer from {url}: {why}\nIs the node running, and is this its management address? Give another with \
                 --url or POSTHORN_URL."
            ),
            Failure::NotPermitted { user, reason } if reason == "Not_Authorized" => write!(
                f,
                "the node refused user '{user}' or its password\nGive --user and --password-file, or set POSTHORN_USER and \
                 POSTHORN_PASSWORD."
            ),
            Failure::NotPermitted { user, reason } => write!(
                f,
                "user '{user}' may not do this: {reason}\nUse a user with the tag or the rights that are missing."
            ),
            Failure::Refused {
                status: 404,
                reason,
            } => {
                write!(
                    f,
                    "there is no such thing: {reason}\nThe list_ commands show what there is."
                )
            }
            Failure::Refused {
                status: 503,
                reason,
            } => {
                write!(
                    f,
                    "the node cannot do this now: {reason}\nTry again, and look at `health`."
                )
            }
            Failure::Refused { status, reason } => write!(f, "{} (HTTP {status})", reason.trim()),
            Failure::Unhealthy => write!(f, "a health check failed"),
        }
    }
}

/// An answer: its status and its body.
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: Json,
}

pub(crate) struct Client {
    url: String,
    user: String,
    authorization: String,
    agent: ureq::Agent,
    timeout: Duration,
}

/// A path below `/api` from its elements, escaped.
pub(crate) fn path(elements: &[&str]) -> String {
    let mut path = "/api".to_owned();
    for element in elements {
        path.push('/');
        path.extend(utf8_percent_encode(element, PLAIN));
    }
    path
}

impl Client {
    pub(crate) fn new(
        url: &str,
        user: &str,
        password: &str,
        timeout: Duration,
    ) -> Result<Client, Failure> {
        if !url.starts_with("http://") {
            return Err(Failure::Usage(format!(
                "'{url}' is no management address: it begins with http://"
            )));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(timeout))
            .build();
        Ok(Client {
            url: url.trim_end_matches('/').to_owned(),
            user: user.to_owned(),
            authorization: format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))),
            agent: config.new_agent(),
            timeout,
        })
    }

    /// The same node, asked by somebody else.
    pub(crate) fn as_user(&self, user: &str, password: &str) -> Result<Client, Failure> {
        Client::new(&self.url, user, password, self.timeout)
    }

    /// Asks again and again until it is so, as long as one answer may take.
    pub(crate) fn until(&self, is_so: impl Fn() -> bool) -> Result<(), Failure> {
        let clock = RealClock::new();
        let until = clock.now() + self.timeout;
        while !is_so() {
            if clock.now() >= until {
                return Err(Failure::Unreachable {
                    url: self.url.clone(),
                    why: format!("not in {} seconds", self.timeout.as_secs()),
                });
            }
            std::thread::park_timeout(BETWEEN_ASKING);
        }
        Ok(())
    }

    /// Sends a request; any status is an answer.
    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Json>,
        headers: &[(&str, &str)],
    ) -> Result<Answered, Failure> {
        let url = format!("{}{path}", self.url);
        let unreachable = |why: String| Failure::Unreachable {
            url: self.url.clone(),
            why,
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
            .limit(MAX_ANSWER)
            .read_to_string()
            .map_err(|e| unreachable(format!("the answer broke off: {e}")))?;
        Ok(Answered {
            status: response.status().as_u16(),
            body: serde_json::from_str(&text).unwrap_or(Json::Null),
        })
    }

    fn ok(&self, answered: Answered) -> Result<Answered, Failure> {
        let reason = || match &answered.body["reason"] {
            Json::String(text) => text.clone(),
            Json::Null => format!("the answer was HTTP {}", answered.status),
            other => other.to_string(),
        };
        match answered.status {
            200..=299 => Ok(answered),
            401 => Err(Failure::NotPermitted {
                user: self.user.clone(),
                reason: reason(),
            }),
            status => Err(Failure::Refused {
                status,
                reason: reason(),
            }),
        }
    }

    /// A health check: 503 is an answer too.
    pub(crate) fn check(&self, path: &str) -> Result<Answered, Failure> {
        let answered = self.send("GET", path, None, &[])?;
        if answered.status == 503 {
            return Ok(answered);
        }
        self.ok(answered)
    }

    pub(crate) fn get(&self, elements: &[&str]) -> Result<Json, Failure> {
        let answered = self.send("GET", &path(elements), None, &[])?;
        Ok(self.ok(answered)?.body)
    }

    /// The answer's status tells made (201) from changed (204).
    pub(crate) fn put(&self, elements: &[&str], body: &Json) -> Result<Answered, Failure> {
        let answered = self.send("PUT", &path(elements), Some(body), &[])?;
        self.ok(answered)
    }

    /// The answer may say what came of it.
    pub(crate) fn post_for(&self, elements: &[&str], body: &Json) -> Result<Answered, Failure> {
        let answered = self.send("POST", &path(elements), Some(body), &[])?;
        self.ok(answered)
    }

    pub(crate) fn delete_for(&self, elements: &[&str]) -> Result<Answered, Failure> {
        let answered = self.send("DELETE", &path(elements), None, &[])?;
        self.ok(answered)
    }

    pub(crate) fn delete(&self, elements: &[&str], query: &str) -> Result<(), Failure> {
        self.delete_with(elements, query, &[])
    }

    /// Takes away what may not be there, as scripts do to be sure; what it is of must be there.
    pub(crate) fn clear(&self, elements: &[&str], of: &[[&str; 2]]) -> Result<(), Failure> {
        match self.delete(elements, "") {
            Err(Failure::Refused { status: 404, .. }) => {
                of.iter().try_for_each(|thing| self.get(thing).map(|_| ()))
            }
            done => done,
        }
    }

    pub(crate) fn delete_with(
        &self,
        elements: &[&str],
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let target = format!("{}{query}", path(elements));
        let answered = self.send("DELETE", &target, None, headers)?;
        self.ok(answered).map(|_| ())
    }
}
