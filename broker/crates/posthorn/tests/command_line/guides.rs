//! The commands of guides.

use super::{Single, cells};
use crate::program::{Result, eventually};
use std::process::Command;

/// The shell commands of a page of `docs/how-to`, which are indented.
fn commands(page: &str) -> Result<String> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/how-to");
    let text = std::fs::read_to_string(format!("{directory}/{page}"))?;
    let indented = text.lines().filter(|line| line.starts_with("    "));
    Ok(indented.map(|line| format!("{line}\n")).collect())
}

/// Runs the commands of a page, which name no address, at a node. Returns what they print.
fn run(page: &str, node: &Single) -> Result<String> {
    let script = format!(
        "posthorn() {{ shift; '{}' ctl --url '{}' \"$@\"; }}\n{}",
        env!("CARGO_BIN_EXE_posthorn"),
        node.url,
        commands(page)?
    );
    let output = Command::new("bash").args(["-euc", &script]).output()?;
    let shown = String::from_utf8(output.stdout)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}{errors}");
    Ok(shown)
}

#[test]
fn commands_of_the_guide_to_deduplication_work() -> Result<()> {
    let node = Single::start("deduplication", &[])?;
    let shown = run("deduplication.md", &node)?;
    assert!(cells(&shown).contains(&vec!["orders", "2"]), "{shown}");
    Ok(())
}

#[test]
fn commands_of_the_guide_to_message_groups_work() -> Result<()> {
    let node = Single::start("message-groups", &[])?;
    let shown = run("message-groups.md", &node)?;
    assert!(cells(&shown).contains(&vec!["payments", "3"]), "{shown}");
    Ok(())
}

#[test]
fn commands_of_the_guide_to_browsing_work() -> Result<()> {
    let node = Single::start("browsing", &[])?;
    let shown = run("browsing-and-moving-messages.md", &node)?;
    let rows = cells(&shown);
    let listed = |payload: &[&str]| rows.iter().any(|row| row.ends_with(payload));
    assert!(
        listed(&["invoice", "3"]) && listed(&["order", "1"]),
        "{shown}"
    );
    assert!(rows.contains(&vec!["parked", "2"]), "{shown}");
    assert!(rows.contains(&vec!["invoices", "0"]), "{shown}");
    assert!(
        shown.contains("Moved 1 message of queue 'failed'"),
        "{shown}"
    );
    Ok(())
}

#[test]
fn commands_of_the_guide_to_backups_work() -> Result<()> {
    let node = Single::start("backup-guide", &[])?;
    let shown = run("backup.md", &node)?;
    assert!(shown.contains("is written and verified"), "{shown}");
    let rows = cells(&shown);
    assert!(rows.contains(&vec!["receipts", "2"]), "{shown}");
    assert!(shown.contains("Deleted backup 'nightly-1'"), "{shown}");
    Ok(())
}

#[test]
fn commands_of_the_guide_to_delayed_messages_work() -> Result<()> {
    let node = Single::start("delayed", &[])?;
    let shown = run("delayed-messages.md", &node)?;
    let listed = cells(&shown);
    assert!(
        listed.contains(&vec!["reminders", "1", "0", "1"]),
        "{shown}"
    );
    let mut rows = listed.iter();
    assert!(rows.any(|row| row.contains(&"customer-7")), "{shown}");
    let cancelled = "Deleted 1 delayed message with the message id 'customer-7'";
    assert!(shown.contains(cancelled), "{shown}");
    // A short delay ends.
    let publish = [
        "publish",
        "reminder.two",
        "soon",
        "--exchange",
        "later",
        "--header",
        "x-delay=50",
    ];
    node.ctl(&publish)?.ok();
    eventually("the message is ready", || {
        let shown = node
            .ctl(&["list_queues", "name", "messages_ready", "messages_delayed"])
            .ok()?;
        cells(&shown.ok())
            .contains(&vec!["reminders", "1", "1"])
            .then_some(())
    })?;
    let got = node.ctl(&["get", "reminders"])?.ok();
    assert!(got.contains("soon"), "{got}");
    Ok(())
}
