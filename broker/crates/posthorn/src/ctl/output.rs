//! Output as tables or JSON.

use serde_json::{Value as Json, json};

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
}

impl Output {
    pub(crate) fn new(format: Format, quiet: bool, silent: bool) -> Output {
        Output {
            format,
            quiet,
            silent,
        }
    }

    pub(crate) fn is_table(&self) -> bool {
        self.format == Format::Table
    }

    /// Prints a list: complete as JSON, or the given columns as a table.
    pub(crate) fn list(&self, items: &Json, columns: &[Column]) {
        match self.format {
            Format::Json => print_json(items),
            Format::Table => print!("{}", table(items, columns)),
        }
    }

    /// Prints only the chosen columns, as scripts request: one line per item, separated by tabs.
    /// Without chosen columns it is [`Output::list`].
    pub(crate) fn chosen(&self, items: &Json, chosen: &[String], columns: &[Column]) {
        if chosen.is_empty() {
            return self.list(items, columns);
        }
        let picked = pick(items, chosen);
        match self.format {
            Format::Json => print_json(&picked),
            Format::Table => print!("{}", tabbed(&picked, chosen, !self.silent)),
        }
    }

    /// Prints the result of a change.
    pub(crate) fn say(&self, text: &str) {
        match self.format {
            Format::Json => print_json(&json!({"result": text})),
            Format::Table if self.quiet || self.silent => {}
            Format::Table => println!("{}", clean(text)),
        }
    }
}

fn print_json(value: &Json) {
    // Values that were parsed from JSON can always be serialized.
    println!(
        "{}",
        serde_json::to_string_pretty(value).unwrap_or_default()
    );
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
