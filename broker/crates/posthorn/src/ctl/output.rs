//! Output as tables or JSON.

use super::failure::Failure;
use super::selection::SelectionOptions;
use super::suggestions::suggestions;
use serde_json::{Value as Json, json};
use std::io::Write as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
}

/// A column: its heading and the path of its value within an item.
pub(crate) type Column = (&'static str, &'static [&'static str]);

pub(crate) struct Output {
    format: Format,
    quiet: bool,
    silent: bool,
    selection: SelectionOptions,
}

impl Output {
    pub(super) fn new(
        format: Format,
        (quiet, silent): (bool, bool),
        selection: SelectionOptions,
    ) -> Output {
        Output {
            format,
            quiet,
            silent,
            selection,
        }
    }

    pub(crate) fn is_table(&self) -> bool {
        self.format == Format::Table
    }

    /// Prints a list: complete as JSON, or the given columns as a table. Fails if a filter or the
    /// order names an unknown column.
    pub(crate) fn list(&self, items: &Json, columns: &[Column]) -> Result<(), Failure> {
        let selected = self.select(items, columns)?;
        let items = selected.as_ref().unwrap_or(items);
        match self.format {
            Format::Json => self.json(items),
            Format::Table => print(&table(items, columns)),
        }
        Ok(())
    }

    /// Prints only the chosen columns, as scripts request: one line per item, separated by tabs.
    /// Without chosen columns it is [`Output::list`].
    pub(crate) fn chosen(
        &self,
        items: &Json,
        chosen: &[String],
        columns: &[Column],
    ) -> Result<(), Failure> {
        if chosen.is_empty() {
            return self.list(items, columns);
        }
        let selected = self.select(items, columns)?;
        let items = selected.as_ref().unwrap_or(items);
        for column in unknown_columns(items, chosen) {
            self.warn(&column);
        }
        let picked = pick(items, chosen);
        match self.format {
            Format::Json => self.json(&picked),
            Format::Table => print(&tabbed(&picked, chosen, !self.silent)),
        }
        Ok(())
    }

    fn select(&self, items: &Json, columns: &[Column]) -> Result<Option<Json>, Failure> {
        match self.selection.is_empty() {
            true => Ok(None),
            false => self.selection.apply(items, columns).map(Some),
        }
    }

    /// Prints the result of a change.
    pub(crate) fn say(&self, text: &str) {
        match self.format {
            Format::Json => self.json(&json!({"result": text})),
            Format::Table if self.quiet || self.silent => {}
            Format::Table => self.text(text),
        }
    }

    /// Prints text that the user asked for, whatever the format.
    pub(crate) fn text(&self, text: &str) {
        print(&(clean(text) + "\n"));
    }

    /// Prints a JSON document, whatever the format.
    pub(crate) fn json(&self, value: &Json) {
        // Values that were parsed from JSON can always be serialized.
        print(&(serde_json::to_string_pretty(value).unwrap_or_default() + "\n"));
    }

    /// Prints a JSON document on one line.
    pub(crate) fn json_line(&self, value: &Json) {
        print(&(value.to_string() + "\n"));
    }

    /// Prints a hint to standard error: the operation continues.
    pub(crate) fn warn(&self, text: &str) {
        if self.silent {
            return;
        }
        match self.format {
            Format::Json => eprintln!("{}", json!({"warning": text})),
            Format::Table => eprintln!("Warning: {}", clean(text)),
        }
    }

    /// Prints the progress of long work to standard error.
    pub(crate) fn progress(&self, text: &str) {
        match self.format {
            _ if self.silent || self.quiet => {}
            Format::Json => eprintln!("{}", json!({"progress": text})),
            Format::Table => eprintln!("{}", clean(text)),
        }
    }

    /// Prints a failure to standard error.
    pub(crate) fn fail(&self, failure: &Failure) {
        match self.format {
            Format::Json => eprintln!("{}", failure.json()),
            Format::Table => eprintln!("Error: {}", clean(&failure.to_string())),
        }
    }
}

/// Writes to standard output. If nobody reads it any more (`list_queues | head -1`), the process
/// ends without an error.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    if let Err(error) = written.and_then(|()| stdout.flush()) {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("Error: the output cannot be written: {error}");
        std::process::exit(1);
    }
}

/// Columns that queues have only while a message is ready.
const COLUMNS_OF_MESSAGES: [&str; 3] = [
    "head_message_age_seconds",
    "head_message_received_at",
    "head_message_timestamp",
];

/// Returns true if a column exists although all rows may lack it.
pub(super) fn may_be_absent(column: &str) -> bool {
    COLUMNS_OF_MESSAGES.contains(&column)
}

/// Warnings about chosen columns that no item has. Without items, the columns are unknown.
fn unknown_columns(items: &Json, chosen: &[String]) -> Vec<String> {
    let Some(items) = items.as_array().filter(|items| !items.is_empty()) else {
        return Vec::new();
    };
    let has =
        |column: &str| may_be_absent(column) || items.iter().any(|item| item.get(column).is_some());
    let unknown = chosen.iter().filter(|column| !has(column));
    let known = items.iter().filter_map(Json::as_object).flatten();
    let known: Vec<&str> = known.map(|(key, _)| key.as_str()).collect();
    unknown
        .map(|column| {
            let hint = match suggestions(column, &known).as_slice() {
                [] => "--output json shows all columns".to_owned(),
                similar => format!("did you mean {}?", similar.join(" or ")),
            };
            format!("no row has the column '{column}'; {hint}")
        })
        .collect()
}

/// Reduces each item to these members.
fn pick(items: &Json, chosen: &[String]) -> Json {
    let items = items.as_array().into_iter().flatten();
    let picked = items.map(|item| {
        let members = chosen.iter().map(|c| (c.clone(), item[c.as_str()].clone()));
        Json::Object(members.collect())
    });
    Json::Array(picked.collect())
}

fn tabbed(items: &Json, chosen: &[String], with_headings: bool) -> String {
    let mut text = match with_headings {
        true => chosen.join("\t") + "\n",
        false => String::new(),
    };
    for item in items.as_array().into_iter().flatten() {
        let cells = chosen.iter().map(|c| match &item[c.as_str()] {
            Json::Null => String::new(),
            Json::String(text) => clean(&text.replace(['\t', '\n'], " ")),
            other => clean(&other.to_string()),
        });
        text.push_str(&cells.collect::<Vec<_>>().join("\t"));
        text.push('\n');
    }
    text
}

/// Formats aligned columns with headings; the last column is not padded.
pub(crate) fn table(items: &Json, columns: &[Column]) -> String {
    let empty = Vec::new();
    let items = items.as_array().unwrap_or(&empty);
    let mut rows: Vec<Vec<String>> = vec![columns.iter().map(|(h, _)| (*h).to_owned()).collect()];
    for item in items {
        rows.push(columns.iter().map(|(_, path)| cell(item, path)).collect());
    }
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            let pad = width.saturating_sub(cell.chars().count()) + 2;
            line.extend(std::iter::repeat_n(' ', pad));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cell(item: &Json, path: &[&str]) -> String {
    let value = path.iter().fold(item, |value, key| &value[*key]);
    let text = match value {
        Json::Null => String::new(),
        Json::Object(none) if none.is_empty() => String::new(),
        Json::String(text) => text.clone(),
        Json::Array(list) => {
            let words = list
                .iter()
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
            words.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    };
    if text.is_empty() {
        "-".to_owned()
    } else {
        clean(&text)
    }
}

/// Names are untrusted: control characters must not reach the terminal.
fn clean(text: &str) -> String {
    let plain = |c: char| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_replaced() {
        let items = json!([
            {"name": "a\u{1b}[2J", "n": 5, "at": {"x": true}, "members": ["c-0", "c-1"]},
            {"name": "longer-é", "n": {}, "members": []},
        ]);
        let columns: &[Column] = &[
            ("name", &["name"]),
            ("n", &["n"]),
            ("x", &["at", "x"]),
            ("members", &["members"]),
        ];
        assert_eq!(
            table(&items, columns),
            "name      n  x     members\na\u{fffd}[2J     5  true  c-0,c-1\nlonger-é  -  -     -\n"
        );
        assert_eq!(table(&json!([]), columns), "name  n  x  members\n");
    }

    #[test]
    fn unknown_columns_are_reported_with_similar_ones() {
        let items = json!([{"name": "a", "messages": 1}, {"name": "b", "consumers": 2}]);
        let chosen = ["name", "consumers", "mesages", "zzz"].map(str::to_owned);
        assert_eq!(
            unknown_columns(&items, &chosen),
            [
                "no row has the column 'mesages'; did you mean messages?",
                "no row has the column 'zzz'; --output json shows all columns",
            ]
        );
        assert!(unknown_columns(&json!([]), &chosen).is_empty());
        // All queues may be empty.
        let of_messages = ["head_message_age_seconds".to_owned()];
        assert!(unknown_columns(&items, &of_messages).is_empty());
    }

    #[test]
    fn chosen_columns_are_separated_by_tabs() {
        let items = json!([{"name": "a\tb", "messages": 5, "other": 1}, {"name": "c"}]);
        let chosen = ["name".to_owned(), "messages".to_owned()];
        let picked = pick(&items, &chosen);
        assert_eq!(picked[1], json!({"name": "c", "messages": null}));
        let headings = "name\tmessages\n";
        let lines = "a b\t5\nc\t\n";
        assert_eq!(tabbed(&picked, &chosen, true), [headings, lines].concat());
        assert_eq!(tabbed(&picked, &chosen, false), lines);
    }
}
