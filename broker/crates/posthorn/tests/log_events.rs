//! docs/reference/log-events.md lists all events that nodes log. `UPDATE=1` regenerates it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(dir).unwrap();
    for path in entries.map(|e| e.unwrap().path()) {
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The text above the list, and the head of its table.
const HEADING: &str = "# Events in the log

The field `event` of a log line has one of these names. Names do not change between versions; the
texts next to them may change. The last column is the crate that logs the event.

`UPDATE=1 cargo test -p posthorn log_events::` generates this page.

| Event | Level | Crate |
|---|---|---|
";

/// Name and level of each event in a file. The level is that of the last macro call before the
/// name.
fn events(text: &str) -> Vec<(String, &'static str)> {
    let named = text.match_indices("event = \"");
    let named = named.filter_map(|(at, word)| {
        let name = text[at + word.len()..].split('"').next()?;
        let begun = |level: &&str| text[..at].rfind(&format!("{level}!("));
        let level = LEVELS.into_iter().max_by_key(begun)?;
        Some((name.to_owned(), level))
    });
    named.collect()
}

fn reference() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(&crates).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut files = Vec::new();
        // The simulator is not part of the product.
        if path.join("src").is_dir() && name != "sim" {
            sources(&path.join("src"), &mut files);
        }
        for file in files {
            let text = std::fs::read_to_string(file).unwrap();
            let found = events(&text).into_iter();
            all.extend(found.map(|(event, level)| (event, level, name.clone())));
        }
    }
    let mut text = String::from(HEADING);
    for (event, level, of) in all {
        text.push_str(&format!("| `{event}` | {level} | {of} |\n"));
    }
    text
}

#[test]
fn documented_events_match_the_sources() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/log-events.md");
    let found = reference();
    assert!(
        found.contains("| `node.failed` | error | posthorn |"),
        "{found}"
    );
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &found).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == found,
        "docs/reference/log-events.md differs from the sources: UPDATE=1 writes it"
    );
}

#[test]
fn level_comes_from_the_macro_before_the_name() {
    let text = "info!(x); tracing::warn!(\n event = \"a.b\", y); error!(event = \"c\")";
    let expected = [("a.b".to_owned(), "warn"), ("c".to_owned(), "error")];
    assert_eq!(events(text), expected);
}
