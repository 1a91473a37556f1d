//! The reasons why an operation fails: text for people, JSON for programs, exit codes.

use super::plain;
use serde_json::{Value as Json, json};
use std::fmt::Display;

/// The exit code for an invalid command line.
pub(crate) const EXIT_USAGE: u8 = 2;

/// The exit code of `sysexits.h` for a service that is not available.
const EXIT_UNAVAILABLE: u8 = 69;

/// The reason why an operation failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line, or a file that it names, is invalid.
    Usage(String),
    /// No response.
    Unreachable { url: String, reason: String },
    /// Status 401.
    NotPermitted { user: String, reason: String },
    /// Any other error status.
    Refused {
        status: u16,
        reason: String,
        /// The object of the request, such as `queue 'orders' in vhost '/'`.
        object: String,
    },
    /// A health check failed.
    Unhealthy,
    /// The node accepted the request, but the result is not the requested one.
    Unfulfilled {
        message: String,
        remedy: &'static str,
    },
    /// `-n` names a different node than the one that answers.
    WrongNode {
        named: String,
        answering: String,
        /// Names of all nodes of the cluster.
        nodes: String,
        /// True if the named node belongs to the cluster.
        is_known: bool,
    },
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => EXIT_USAGE,
            Failure::Unreachable { .. }
            | Failure::WrongNode { .. }
            | Failure::Refused { status: 503, .. } => EXIT_UNAVAILABLE,
            Failure::NotPermitted { .. } => 77,
            Failure::Refused { .. } | Failure::Unhealthy | Failure::Unfulfilled { .. } => 1,
        }
    }

    /// A name for programs. Names do not change between versions.
    fn code(&self) -> &'static str {
        match self {
            Failure::Usage(_) => "usage",
            Failure::Unreachable { .. } => "unreachable",
            Failure::NotPermitted { reason, .. } if reason == "Not_Authorized" => {
                "not_authenticated"
            }
            Failure::NotPermitted { .. } => "not_permitted",
            Failure::Refused { status: 404, .. } => "not_found",
            Failure::Refused { status: 503, .. } => "unavailable",
            Failure::Refused { .. } => "refused",
            Failure::Unhealthy => "unhealthy",
            Failure::Unfulfilled { .. } => "unfulfilled",
            Failure::WrongNode { .. } => "wrong_node",
        }
    }

    /// The event, its object and its cause.
    fn message(&self) -> String {
        match self {
            Failure::Usage(text) => text.clone(),
            Failure::Unreachable { url, reason } => format!("no answer from {url}: {reason}"),
            Failure::NotPermitted { user, reason } if reason == "Not_Authorized" => {
                format!("the node refused user '{user}' or its password")
            }
            Failure::NotPermitted { user, reason } => {
                format!("user '{user}' is not permitted to do this: {reason}")
            }
            Failure::Refused {
                status: 404,
                reason,
                object,
            } if reason == "Not Found" => format!("{object} does not exist"),
            Failure::Refused {
                status: 503,
                reason,
                object,
            } => format!("{object}: the node cannot do this now: {reason}"),
            Failure::Refused {
                status,
                reason,
                object,
            } => {
                let reason = plain::text(reason.trim());
                match reason.contains(object.as_str()) {
                    true => format!("{reason} (HTTP {status})"),
                    false => format!("{object}: {reason} (HTTP {status})"),
                }
            }
            Failure::Unhealthy => "a health check failed".to_owned(),
            Failure::Unfulfilled { message, .. } => message.clone(),
            Failure::WrongNode {
                named,
                answering,
                is_known: true,
                ..
            } => format!(
                "unable to perform an operation on node '{named}': node '{answering}' answers"
            ),
            Failure::WrongNode {
                named,
                answering,
                is_known: false,
                ..
            } => format!(
                "unable to perform an operation on node '{named}': it is not in the cluster of node '{answering}'"
            ),
        }
    }

    /// The next step of the user. None if the message names it already.
    fn remedy(&self) -> Option<String> {
        let text = match self {
            Failure::Unreachable { url, .. } if url.starts_with("https://") => {
                "Is the node running, is this its management address with TLS, and is its certificate from an authority \
                 that --cacert or POSTHORN_CACERT names?"
            }
            Failure::Unreachable { .. } => {
                "Is the node running, and is this its management address? Give another with --url or POSTHORN_URL."
            }
            Failure::NotPermitted { reason, .. } if reason == "Not_Authorized" => {
                "Give --user and --password-file, or set POSTHORN_USER and POSTHORN_PASSWORD."
            }
            Failure::NotPermitted { .. } => "Use a user with the required tag or permissions.",
            Failure::Refused { status: 404, .. } => "The list_ commands show the existing objects.",
            Failure::Refused { status: 503, .. } => "Try again, and run `health` to see why.",
            Failure::Unfulfilled { remedy, .. } => remedy,
            Failure::WrongNode {
                named,
                is_known: true,
                ..
            } => {
                return Some(format!(
                    "This operation applies to one node. Give the management address of '{named}' with --url."
                ));
            }
            Failure::WrongNode {
                nodes,
                is_known: false,
                ..
            } => {
                return Some(format!(
                    "Its nodes are: {nodes}. Give one of them with -n, or another cluster's management address with --url."
                ));
            }
            Failure::Usage(_) | Failure::Refused { .. } | Failure::Unhealthy => return None,
        };
        Some(text.to_owned())
    }

    /// The form for programs.
    pub(crate) fn json(&self) -> Json {
        let mut error = json!({
            "error": self.code(),
            "message": self.message(),
            "exit_code": self.exit_code(),
        });
        if let Some(remedy) = self.remedy() {
            error["remedy"] = json!(remedy);
        }
        if let Failure::Refused { status, object, .. } = self {
            error["status"] = json!(status);
            error["object"] = json!(object);
        }
        error
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message())?;
        match self.remedy() {
            Some(remedy) => write!(f, "\n{remedy}"),
            None => Ok(()),
        }
    }
}
