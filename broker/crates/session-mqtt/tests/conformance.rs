//! `docs/reference/mqtt-conformance.md` lists for each normative statement of MQTT 5.0 and 3.1.1
//! the tests that cover it, or why there are none. These tests compare it with the comments in the
//! tests, which name statements as `[MQTT-3.1.0-1]` and ranges with `to`. Statement numbers after
//! `3.1.1:` on a line are those of that version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The statements of one version of the standard.
struct Standard {
    /// The number of statements in each section.
    sections: &'static [(&'static str, u32)],
    /// The heading of its table in the document.
    heading: &'static str,
    /// The part of a comment that names its statements: 0 before `3.1.1:`, 1 after it.
    part: usize,
}

const STANDARDS: [Standard; 2] = [
    Standard {
        sections: SECTIONS_5,
        heading: "## MQTT 5.0",
        part: 0,
    },
    Standard {
        sections: SECTIONS_311,
        heading: "## MQTT 3.1.1",
        part: 1,
    },
];

const SECTIONS_311: &[(&str, u32)] = &[
    ("1.5.3", 3),
    ("2.2.2", 2),
    ("2.3.1", 7),
    ("3.1.0", 2),
    ("3.1.2", 24),
    ("3.1.3", 11),
    ("3.1.4", 5),
    ("3.2.0", 1),
    ("3.2.2", 6),
    ("3.3.1", 12),
    ("3.3.2", 3),
    ("3.3.4", 1),
    ("3.3.5", 2),
    ("3.6.1", 1),
    ("3.8.1", 1),
    ("3.8.3", 4),
    ("3.8.4", 6),
    ("3.9.3", 2),
    ("3.10.1", 1),
    ("3.10.3", 2),
    ("3.10.4", 6),
    ("3.12.4", 1),
    ("3.14.1", 1),
    ("3.14.4", 3),
    ("4.1.0", 2),
    ("4.2.0", 1),
    ("4.3.1", 1),
    ("4.3.2", 2),
    ("4.3.3", 2),
    ("4.4.0", 1),
    ("4.5.0", 2),
    ("4.6.0", 6),
    ("4.7.1", 3),
    ("4.7.2", 1),
    ("4.7.3", 4),
    ("4.8.0", 2),
    ("6.0.0", 4),
];

const SECTIONS_5: &[(&str, u32)] = &[
    ("1.5.4", 3),
    ("1.5.5", 1),
    ("1.5.7", 1),
    ("2.1.3", 1),
    ("2.2.1", 6),
    ("2.2.2", 1),
    ("3.1.0", 2),
    ("3.1.2", 30),
    ("3.1.3", 12),
    ("3.1.4", 6),
    ("3.2.0", 2),
    ("3.2.2", 22),
    ("3.3.1", 13),
    ("3.3.2", 20),
    ("3.3.4", 10),
    ("3.4.2", 3),
    ("3.5.2", 3),
    ("3.6.1", 1),
    ("3.6.2", 3),
    ("3.7.2", 3),
    ("3.8.1", 1),
    ("3.8.3", 5),
    ("3.8.4", 8),
    ("3.9.2", 2),
    ("3.9.3", 2),
    ("3.10.1", 1),
    ("3.10.3", 2),
    ("3.10.4", 6),
    ("3.11.2", 2),
    ("3.11.3", 2),
    ("3.12.4", 1),
    ("3.14.0", 1),
    ("3.14.1", 1),
    ("3.14.2", 4),
    ("3.14.4", 3),
    ("3.15.1", 1),
    ("3.15.2", 3),
    ("4.1.0", 2),
    ("4.2", 1),
    ("4.3.1", 1),
    ("4.3.2", 5),
    ("4.3.3", 13),
    ("4.4.0", 2),
    ("4.5.0", 2),
    ("4.6.0", 6),
    ("4.7.0", 1),
    ("4.7.1", 2),
    ("4.7.2", 1),
    ("4.7.3", 4),
    ("4.8.2", 6),
    ("4.9.0", 3),
    ("4.12.0", 7),
    ("4.12.1", 2),
    ("4.13.1", 1),
    ("4.13.2", 1),
    ("6.0.0", 4),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns all statements, as `3.1.0-1`, in order.
fn statements(standard: &Standard) -> Vec<String> {
    let each = standard.sections.iter();
    each.flat_map(|(section, count)| (1..=*count).map(move |n| format!("{section}-{n}")))
        .collect()
}

/// Returns the statements that a comment line names.
fn named(line: &str, standard: &Standard) -> Vec<String> {
    let ours = line.split("3.1.1:").nth(standard.part).unwrap_or("");
    let mut found: Vec<String> = Vec::new();
    for (n, part) in ours.split("[MQTT-").enumerate().skip(1) {
        let id = part.split(']').next().unwrap_or("").to_owned();
        let before = ours.split("[MQTT-").nth(n - 1).unwrap_or("");
        if let (true, Some(first)) = (before.ends_with("] to "), found.last().cloned()) {
            let all = statements(standard);
            let at = |id: &str| all.iter().position(|s| s == id).expect("a statement");
            found.extend(all[at(&first) + 1..at(&id)].iter().cloned());
        }
        found.push(id);
    }
    found
}

/// Returns the statements that each test names.
fn tests(standard: &Standard) -> BTreeMap<String, BTreeSet<String>> {
    let mut tests: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut files: Vec<PathBuf> = vec![crates().join("codec-mqtt/src/topic.rs")];
    for dir in [
        "codec-mqtt/tests",
        "codec-websocket/tests",
        "session-mqtt/tests",
        "session-websocket/tests",
        "topics/tests",
    ] {
        let entries = fs::read_dir(crates().join(dir)).expect("a directory of tests");
        files.extend(entries.map(|e| e.expect("an entry").path()));
    }
    files.retain(|f| f.extension().is_some_and(|e| e == "rs") && !f.ends_with("conformance.rs"));
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        let mut test = None;
        let mut attribute = false;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("fn ").filter(|_| attribute) {
                let name = name.split('(').next().unwrap_or("").to_owned();
                tests.entry(name.clone()).or_default();
                test = Some(name);
            }
            attribute = line == "#[test]";
            if let (Some(test), true) = (&test, line.contains("// ")) {
                tests
                    .entry(test.clone())
                    .or_default()
                    .extend(named(line, standard));
            }
        }
    }
    tests
}

/// Returns the rows of a table: the statement and its text.
fn document(standard: &Standard) -> Vec<(String, String)> {
    let path = crates().join("../../docs/reference/mqtt-conformance.md");
    let text = fs::read_to_string(path).expect("docs/reference/mqtt-conformance.md");
    let lines = text.lines().skip_while(|line| *line != standard.heading);
    let table = lines.skip(1).take_while(|line| !line.starts_with("## "));
    let lines = table.filter_map(|line| line.strip_prefix("| "));
    lines
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| {
            let mut cells = line.split(" | ");
            let mut cell = || cells.next().unwrap_or("").trim_end_matches(" |").to_owned();
            (cell(), cell())
        })
        .collect()
}

#[test]
fn every_statement_has_a_test_or_a_reason() {
    for standard in &STANDARDS {
        let listed: Vec<String> = document(standard).into_iter().map(|(id, _)| id).collect();
        assert_eq!(listed, statements(standard), "{}", standard.heading);
        for (id, says) in document(standard) {
            assert!(says.len() > 3, "{id} has neither");
        }
    }
}

#[test]
fn document_and_test_comments_agree() {
    for standard in &STANDARDS {
        let tests = tests(standard);
        assert!(tests.len() > 50, "tests are found");
        for (id, says) in document(standard) {
            let listed: BTreeSet<&str> = says.split('`').skip(1).step_by(2).collect();
            let shown = tests.iter().filter(|(_, ids)| ids.contains(&id));
            let shown: BTreeSet<&str> = shown.map(|(name, _)| name.as_str()).collect();
            assert_eq!(listed, shown, "{} {id}", standard.heading);
        }
        // A comment that names an unknown statement proves nothing.
        let all = statements(standard);
        for (name, ids) in tests {
            let unknown: Vec<&String> = ids.iter().filter(|id| !all.contains(id)).collect();
            assert!(unknown.is_empty(), "{name}: {unknown:?}");
        }
    }
}
