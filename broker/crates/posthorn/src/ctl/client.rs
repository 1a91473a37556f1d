//! The management API, and errors that say what to do.

use super::tls::{self, TlsFiles};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use env::Clock as _;
use env::real::RealClock;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value as Json;
use std::fmt::Display;
use std::time::Duration;

/// Characters that need no percent encoding in an element of a path.
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
    /// `-n` names another node than the one that answers.
    WrongNode {
        named: String,
        answering: String,
        /// Names of all nodes of the cluster.
        nodes: String,
        /// Whether it is one of them.
        is_known: bool,
    },
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Unreachable { .. } | Failure::WrongNode { .. } => 69,
            Failure::NotPermitted { .. } => 77,
            Failure::Refused { .. } | Failure::Unhealthy => 1,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage(text) => write!(f, "{text}"),
            Failure::Unreachable { url, why } if url.starts_with("https://") => write!(
                f,
                "no answer from {url}: {why}\nIs the node running, is this its management address with TLS, and is its \
                 certificate from an authority that --cacert or POSTHORN_CACERT names?"
            ),
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
            Failure::WrongNode {
                named,
                answering,
                is_known: true,
                ..
            } => write!(
                f,
                "unable to perform an operation on node '{named}': node '{answering}' answers\nThis operation is about one \
                 node. Give the management address of '{named}' with --url."
            ),
            Failure::WrongNode {
                named,
                answering,
                nodes,
                is_known: false,
            } => write!(
                f,
                "unable to perform an operation on node '{named}': it is not in the cluster of node '{answering}'\nIts nodes \
                 are: {nodes}. Give one of them with -n, or another cluster's management address with --url."
            ),
        }
    }
}

/// An answer: its status and its body.
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: Json,
}

/// Where the API is, and who asks.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// Begins with `http://` or `https://`.
    pub(crate) url: String,
    pub(crate) user: String,
    pub(crate) password: String,
    /// For one answer.
    pub(crate) timeout: Duration,
    /// Used only with `https://`.
    pub(crate) tls: TlsFiles,
}

pub(crate) struct Client {
    endpoint: Endpoint,
    authorization: String,
    agent: ureq::Agent,
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
    /// Reads the TLS files of an `https://` address; nothing is sent yet.
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

    /// The host of the address, without its port.
    pub(crate) fn host(&self) -> String {
        let uri = self.endpoint.url.parse::<ureq::http::Uri>();
        let host = uri.ok().and_then(|uri| uri.host().map(str::to_owned));
        host.unwrap_or_default()
    }

    /// The same node, asked by somebody else.
    pub(crate) fn as_user(&self, user: &str, password: &str) -> Result<Client, Failure> {
        Client::new(Endpoint {
            user: user.to_owned(),
            password: password.to_owned(),
            ..self.endpoint.clone()
        })
    }

    /// Asks again and again until it is so, as long as one answer may take.
    pub(crate) fn until(&self, is_so: impl Fn() -> bool) -> Result<(), Failure> {
        let clock = RealClock::new();
        let until = clock.now() + self.endpoint.timeout;
        while !is_so() {
            if clock.now() >= until {
                return Err(Failure::Unreachable {
                    url: self.endpoint.url.clone(),
                    why: format!("not in {} seconds", self.endpoint.timeout.as_secs()),
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
        let url = format!("{}{path}", self.endpoint.url);
        let unreachable = |why: String| Failure::Unreachable {
            url: self.endpoint.url.clone(),
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
                user: self.endpoint.user.clone(),
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
