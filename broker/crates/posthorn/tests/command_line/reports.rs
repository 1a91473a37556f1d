//! `report`: complete, and without secrets.

use super::Single;
use crate::program::Result;
use serde_json::{Value as Json, json};
use std::fs;

/// Secrets that the node knows, or that definitions contain. None may be in a report.
const SECRETS: [&str; 4] = [
    "secret-of-the-first-user",
    "secret-of-a-user",
    "secret-in-a-parameter",
    "secret-in-a-url",
];

#[test]
fn report_has_all_lists_and_no_secrets() -> Result<()> {
    let node = Single::start("report", &[format!("default_pass={}", SECRETS[0])])?;
    let ctl = |words: &[&str]| node.ctl(&[&["--password", SECRETS[0]], words].concat());
    ctl(&["add_user", "app", SECRETS[1], "--tags", "monitoring"])?.ok();
    let parameter = json!({
        "password": SECRETS[2],
        "uri": format!("amqps://user:{}@mq.example.org/v", SECRETS[3]),
    });
    ctl(&["set_global_parameter", "tool", &parameter.to_string()])?.ok();
    ctl(&["declare_queue", "orders"])?.ok();
    ctl(&["publish", "orders", "x"])?.ok();
    let directory = node.scratch.0.join("report");
    let path = directory.to_str().ok_or("path")?;
    ctl(&["report", path])?.ok();

    let read = |name: &str| -> Result<Json> {
        Ok(serde_json::from_str(&fs::read_to_string(
            directory.join(name),
        )?)?)
    };
    assert_eq!(read("queues.json")?[0]["name"], "orders");
    assert_eq!(read("doctor.json")?[0]["check"], "queues_without_consumers");
    assert_eq!(read("errors.json")?, json!([]));
    assert_eq!(
        read("global-parameters.json")?
            .to_string()
            .matches("mq.example.org")
            .count(),
        1
    );
    let users = read("users.json")?;
    assert!(users.to_string().contains("\"app\""), "{users}");
    let hashes = ctl(&["export_definitions"])?.ok();
    let hashes: Json = serde_json::from_str(&hashes)?;
    let hashes: Vec<&str> = hashes["users"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|u| u["password_hash"].as_str())
        .collect();
    assert_eq!(hashes.len(), 2);
    let mut files = 0;
    for entry in fs::read_dir(&directory)? {
        let text = fs::read_to_string(entry?.path())?;
        for secret in SECRETS.iter().chain(&hashes) {
            assert!(!text.contains(secret), "{secret}");
        }
        files += 1;
    }
    assert!(files > 25, "{files}");

    let again = ctl(&["report", path])?;
    assert_eq!(again.code, 2);
    assert!(
        again
            .stderr
            .contains("name a directory that does not exist yet"),
        "{}",
        again.stderr
    );
    Ok(())
}

#[test]
fn report_records_lists_that_the_user_may_not_read() -> Result<()> {
    let node = Single::start("report-partial", &[])?;
    node.ctl(&["add_user", "app", "secret", "--tags", "monitoring"])?
        .ok();
    let directory = node.scratch.0.join("report");
    let path = directory.to_str().ok_or("path")?;
    let outcome = node.ctl(&["--user", "app", "--password", "secret", "report", path])?;
    assert_eq!(outcome.code, 0);
    assert!(
        outcome.stderr.contains("errors.json has the reasons"),
        "{}",
        outcome.stderr
    );
    let errors: Json = serde_json::from_str(&fs::read_to_string(directory.join("errors.json"))?)?;
    let files: Vec<&str> = errors
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|e| e["file"].as_str())
        .collect();
    assert!(
        files.contains(&"users") && files.contains(&"configuration"),
        "{files:?}"
    );
    assert!(!directory.join("users.json").exists());
    assert!(directory.join("nodes.json").exists());
    Ok(())
}
