//! `report`: a support bundle of everything that the API shows, without secrets.

use super::changes::local_node;
use super::client::Client;
use super::doctor;
use super::failure::Failure;
use super::output::Output;
use super::redaction::redact;
use serde_json::{Value as Json, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The options of `report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory to create [default: posthorn-report-NODE]
    directory: Option<PathBuf>,
}

/// Files of the bundle and the paths below `/api` that they contain.
const LISTS: &[(&str, &[&str])] = &[
    ("overview", &["overview"]),
    ("nodes", &["nodes"]),
    ("feature-flags", &["feature-flags"]),
    ("deprecated-features", &["deprecated-features", "used"]),
    ("vhosts", &["vhosts"]),
    ("vhost-limits", &["vhost-limits"]),
    ("users", &["users"]),
    ("user-limits", &["user-limits"]),
    ("permissions", &["permissions"]),
    ("topic-permissions", &["topic-permissions"]),
    ("policies", &["policies"]),
    ("operator-policies", &["operator-policies"]),
    ("global-parameters", &["global-parameters"]),
    ("exchanges", &["exchanges"]),
    ("queues", &["queues"]),
    ("bindings", &["bindings"]),
    ("connections", &["connections"]),
    ("channels", &["channels"]),
    ("consumers", &["consumers"]),
    ("stream-connections", &["stream", "connections"]),
    ("stream-publishers", &["stream", "publishers"]),
    ("stream-consumers", &["stream", "consumers"]),
];

/// Health checks, which respond with 503 if they fail.
const CHECKS: [&str; 7] = [
    "alarms",
    "local-alarms",
    "node-is-quorum-critical",
    "lost-queues",
    "virtual-hosts",
    "ready-to-serve-clients",
    "certificate-expiration/1/months",
];

const README: &str = "This directory describes the state of a Posthorn cluster. `posthorn ctl report` created it.\n\n\
    - doctor.json: problems that were found, with causes and remedies\n\
    - configuration.json, log-levels.json: the settings of the node that answered\n\
    - health.json: the results of the health checks\n\
    - errors.json: requests that failed, for example because the user lacks a tag\n\
    - the other files: the lists of the HTTP API, by their names there\n\n\
    Passwords, password hashes and credentials in URLs are masked. Names of queues, users and hosts are not.\n\
    Logs are not included, because nodes write them to standard error: add them from the service manager or from \
    `kubectl logs`.\n";

/// A directory that receives one file for each list.
struct Bundle<'a> {
    directory: &'a Path,
    errors: Vec<Json>,
}

impl Bundle<'_> {
    fn write(&self, name: &str, contents: &[u8]) -> Result<(), Failure> {
        let path = self.directory.join(name);
        fs::write(&path, contents).map_err(|e| {
            Failure::Usage(format!(
                "the file {} cannot be written: {e}",
                path.display()
            ))
        })
    }

    /// Writes a document. A failure is recorded, so that the rest of the bundle is written.
    fn add(&mut self, name: &str, document: Result<Json, Failure>) -> Result<(), Failure> {
        match document {
            Ok(mut document) => {
                redact(&mut document);
                let text = serde_json::to_string_pretty(&document).unwrap_or_default();
                self.write(&format!("{name}.json"), text.as_bytes())
            }
            Err(unreachable @ Failure::Unreachable { .. }) => Err(unreachable),
            Err(failure) => {
                let mut error = failure.json();
                error["file"] = json!(name);
                self.errors.push(error);
                Ok(())
            }
        }
    }
}

fn health(client: &Client) -> Result<Json, Failure> {
    let results = CHECKS.iter().map(|check| {
        let response = client.check(&format!("/api/health/checks/{check}"))?;
        Ok(((*check).to_owned(), response.body))
    });
    Ok(Json::Object(results.collect::<Result<_, Failure>>()?))
}

fn problems(client: &Client) -> Result<Json, Failure> {
    Ok(doctor::examine(client)?
        .iter()
        .map(doctor::Finding::json)
        .collect())
}

pub(crate) fn report(client: &Client, output: &Output, options: &Options) -> Result<(), Failure> {
    let node = local_node(client)?;
    let default = PathBuf::from(format!(
        "posthorn-report-{}",
        node.replace(['/', '\\'], "_")
    ));
    let directory = options.directory.as_ref().unwrap_or(&default);
    fs::create_dir(directory).map_err(|e| {
        Failure::Usage(format!(
            "the directory {} cannot be created: {e}; name a directory that does not exist yet",
            directory.display()
        ))
    })?;
    let mut bundle = Bundle {
        directory,
        errors: Vec::new(),
    };
    bundle.write("README.txt", README.as_bytes())?;
    for (name, path) in LISTS {
        bundle.add(name, client.get(path))?;
    }
    let of_node = |list: &str| client.get(&["nodes", &node, list]);
    bundle.add("configuration", of_node("configuration"))?;
    bundle.add("log-levels", of_node("log-levels"))?;
    bundle.add("health", health(client))?;
    bundle.add("doctor", problems(client))?;
    let errors = std::mem::take(&mut bundle.errors);
    let failed = errors.len();
    bundle.add("errors", Ok(Json::Array(errors)))?;
    output.say(&format!("Wrote a report to {}", directory.display()));
    if failed > 0 {
        output.warn(&format!(
            "{failed} list(s) are missing; errors.json has the reasons. A user with the tag administrator can read all lists."
        ));
    }
    Ok(())
}
