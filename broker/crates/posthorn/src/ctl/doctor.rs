//! `doctor`: finds problems of a cluster and explains each with its cause and remedy.

mod node_findings;
mod queue_findings;

use super::client::Client;
use super::failure::Failure;
use super::output::Output;
use env::Clock as _;
use env::real::RealClock;
use serde_json::{Value as Json, json};

/// The options of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Exit with 1 if there are only warnings, too
    #[arg(long)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Clients are affected, or one more failure affects them.
    Error,
    /// Something to look at.
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The name of the check, which does not change between versions.
    pub(crate) check: &'static str,
    /// The fault and the affected object.
    pub(crate) problem: String,
    pub(crate) cause: String,
    pub(crate) remedy: String,
    /// Names of all affected objects.
    pub(crate) objects: Vec<String>,
}

impl Finding {
    pub(super) fn json(&self) -> Json {
        json!({
            "severity": self.severity.name(),
            "check": self.check,
            "problem": self.problem,
            "cause": self.cause,
            "remedy": self.remedy,
            "objects": self.objects,
        })
    }

    fn text(&self) -> String {
        format!(
            "{}: {}\n  cause:  {}\n  remedy: {}",
            self.severity.name(),
            self.problem,
            self.cause,
            self.remedy
        )
    }
}

/// Most names in the text of a finding. Its JSON form has all of them.
const MAX_NAMED: usize = 5;

/// The first names of a list, and the number of the others.
pub(crate) fn named(objects: &[String]) -> String {
    let first = objects.iter().take(MAX_NAMED).cloned();
    let mut text = first.collect::<Vec<_>>().join(", ");
    if objects.len() > MAX_NAMED {
        text.push_str(&format!(" and {} more", objects.len() - MAX_NAMED));
    }
    text
}

/// The properties of queues that the checks need.
const QUEUE_COLUMNS: &str = "?columns=vhost,name,type,state,leader,members,online,messages,messages_ready,consumers,\
                             exclusive,messages_lost";

/// Certificates that expire sooner are reported.
const CERTIFICATE_DAYS: &str = "30";

/// Reads the state of the cluster and returns its problems, errors first.
pub(crate) fn examine(client: &Client) -> Result<Vec<Finding>, Failure> {
    let nodes = client.get(&["nodes"])?;
    let nodes = nodes.as_array().cloned().unwrap_or_default();
    let mut findings = Vec::new();
    findings.extend(node_findings::not_ready(
        &client.check("/readyz")?.body,
        &nodes,
    ));
    findings.extend(node_findings::nodes_down(&nodes));
    findings.extend(node_findings::metadata_at_risk(&nodes));
    findings.extend(node_findings::drained(&nodes));
    findings.extend(node_findings::versions(&nodes));
    let alarms = client.check("/api/health/checks/alarms")?.body;
    findings.extend(node_findings::alarms(&alarms));
    let certificates = format!("/api/health/checks/certificate-expiration/{CERTIFICATE_DAYS}/days");
    let now_s = RealClock::new().wall().0 / 1000;
    findings.extend(node_findings::certificates(
        &client.check(&certificates)?.body,
        now_s,
    ));
    findings.extend(node_findings::feature_flags(
        &client.get(&["feature-flags"])?,
    ));
    let queues = client.get_with(&["queues"], QUEUE_COLUMNS)?;
    let queues = queues.as_array().map_or(&[][..], Vec::as_slice);
    findings.extend(queue_findings::all(queues, &nodes));
    findings.sort_by_key(|finding| finding.severity);
    Ok(findings)
}

/// Prints the problems. Fails if there is an error, or with `--strict` also if there is a warning.
pub(crate) fn doctor(client: &Client, output: &Output, options: &Options) -> Result<(), Failure> {
    let findings = examine(client)?;
    if output.is_table() {
        for finding in &findings {
            output.text(&finding.text());
        }
        if findings.is_empty() {
            output.say("No problem found");
        }
    } else {
        output.json(&findings.iter().map(Finding::json).collect());
    }
    let errors = findings.iter().filter(|f| f.severity == Severity::Error);
    match (errors.count(), findings.len()) {
        (0, 0) => Ok(()),
        (0, _) if !options.strict => Ok(()),
        (errors, all) => Err(Failure::Unfulfilled {
            message: format!(
                "doctor found {errors} error(s) and {} warning(s)",
                all - errors
            ),
            remedy: "Follow the remedies, then run `doctor` again.",
        }),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn long_lists_of_objects_are_shortened() {
        let objects: Vec<String> = (0..7).map(|n| format!("q{n}")).collect();
        assert_eq!(named(&objects[..2]), "q0, q1");
        assert_eq!(named(&objects), "q0, q1, q2, q3, q4 and 2 more");
    }
}
