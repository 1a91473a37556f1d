//! `--filter` and `--sort`: the rows of a list and their order.

use super::failure::Failure;
use super::output::{Column, may_be_absent};
use regex::Regex;
use serde_json::Value as Json;
use std::cmp::Ordering;

/// The options of lists.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct SelectionOptions {
    /// List only rows for which this holds: COLUMN=VALUE, !=, <, <=, >, >= or ~ REGEX. All filters
    /// must hold: --filter 'messages>100' --filter name~^orders
    #[arg(long, global = true, value_name = "CONDITION")]
    filter: Vec<String>,
    /// Sort by this column, or by a property of the API such as message_stats.publish
    #[arg(long, global = true, value_name = "COLUMN")]
    sort: Option<String>,
    /// Sort from the highest to the lowest value
    #[arg(long, global = true, requires = "sort")]
    descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
    Matches,
}

/// Longer operators first, so that `>=` is not read as `>`.
const OPERATORS: [(&str, Operator); 7] = [
    ("!=", Operator::Unequal),
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("=", Operator::Equal),
    ("<", Operator::Less),
    (">", Operator::More),
    ("~", Operator::Matches),
];

struct Condition {
    column: String,
    operator: Operator,
    value: String,
    pattern: Option<Regex>,
}

impl Condition {
    fn parse(text: &str) -> Result<Condition, Failure> {
        let start = text.find(['!', '<', '>', '=', '~']).unwrap_or(0);
        let (column, rest) = text.split_at(start);
        let found = OPERATORS
            .iter()
            .find_map(|(sign, operator)| Some((*operator, rest.strip_prefix(sign)?)));
        let (operator, value) = found.filter(|_| !column.trim().is_empty()).ok_or_else(|| {
            Failure::Usage(format!(
                "--filter '{text}': expected a column, one of = != < <= > >= ~, and a value, such as 'messages>100'"
            ))
        })?;
        let value = value.trim();
        let pattern = match operator {
            Operator::Matches => Some(Regex::new(value).map_err(|e| {
                Failure::Usage(format!(
                    "--filter '{text}': '{value}' is not a regular expression: {e}"
                ))
            })?),
            _ => None,
        };
        Ok(Condition {
            column: column.trim().to_owned(),
            operator,
            value: value.to_owned(),
            pattern,
        })
    }

    fn holds(&self, value: &Json) -> bool {
        let text = as_text(value);
        let order = || compare_texts(&text, &self.value);
        match self.operator {
            Operator::Equal => order() == Ordering::Equal,
            Operator::Unequal => order() != Ordering::Equal,
            // A row without the value is neither less nor more.
            _ if text.is_empty() => false,
            Operator::Less => order() == Ordering::Less,
            Operator::AtMost => order() != Ordering::Greater,
            Operator::More => order() == Ordering::Greater,
            Operator::AtLeast => order() != Ordering::Less,
            Operator::Matches => self.pattern.as_ref().is_some_and(|p| p.is_match(&text)),
        }
    }
}

/// The text of a table's cell without its placeholder.
fn as_text(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        Json::Array(items) => items.iter().map(as_text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Compares numerically if both texts are numbers.
fn compare_texts(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    }
}

/// The path of a column: its heading, or the members of the API's object separated by dots.
fn path_of<'a>(name: &'a str, columns: &[Column]) -> Vec<&'a str> {
    match columns.iter().find(|(heading, _)| *heading == name) {
        Some((_, path)) => path.to_vec(),
        None => name.split('.').collect(),
    }
}

fn value_at<'a>(item: &'a Json, path: &[&str]) -> &'a Json {
    path.iter().fold(item, |value, key| &value[*key])
}

/// Fails if no row has the column: a misspelt filter would otherwise hide all rows.
fn check_column(
    option: &str,
    name: &str,
    items: &[Json],
    columns: &[Column],
) -> Result<(), Failure> {
    let is_heading = columns.iter().any(|(heading, _)| *heading == name);
    let path = path_of(name, columns);
    let is_known = is_heading || may_be_absent(name);
    if is_known || items.is_empty() || items.iter().any(|i| !value_at(i, &path).is_null()) {
        return Ok(());
    }
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    Err(Failure::Usage(format!(
        "{option} '{name}': no row has this column; the columns are {}, and the properties that --output json shows",
        headings.join(", ")
    )))
}

impl SelectionOptions {
    pub(super) fn is_empty(&self) -> bool {
        self.filter.is_empty() && self.sort.is_none()
    }

    /// Applies the filters and the order to a list.
    pub(super) fn apply(&self, items: &Json, columns: &[Column]) -> Result<Json, Failure> {
        let mut rows: Vec<Json> = items.as_array().cloned().unwrap_or_default();
        let conditions = self.filter.iter().map(|text| Condition::parse(text));
        let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
        for condition in &conditions {
            check_column("--filter", &condition.column, &rows, columns)?;
        }
        if let Some(sort) = &self.sort {
            check_column("--sort", sort, &rows, columns)?;
        }
        for condition in &conditions {
            let path = path_of(&condition.column, columns);
            rows.retain(|row| condition.holds(value_at(row, &path)));
        }
        if let Some(sort) = &self.sort {
            let path = path_of(sort, columns);
            // Rows without a value are last in both directions.
            rows.sort_by(|a, b| {
                let (a, b) = (as_text(value_at(a, &path)), as_text(value_at(b, &path)));
                let order = compare_texts(&a, &b);
                let order = if self.descending {
                    order.reverse()
                } else {
                    order
                };
                a.is_empty().cmp(&b.is_empty()).then(order)
            });
        }
        Ok(Json::Array(rows))
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    const COLUMNS: &[Column] = &[("name", &["name"]), ("ready", &["messages_ready"])];

    fn names(options: SelectionOptions) -> Result<String, Failure> {
        let items = json!([
            {"name": "b", "messages_ready": 9, "stats": {"rate": 1.5}, "members": ["c-0", "c-1"]},
            {"name": "a", "messages_ready": 10, "stats": {"rate": 0.5}},
            {"name": "c"},
        ]);
        let rows = options.apply(&items, COLUMNS)?;
        let names = rows.as_array().into_iter().flatten();
        Ok(names.filter_map(|row| row["name"].as_str()).collect())
    }

    fn filtered(conditions: &[&str]) -> Result<String, Failure> {
        names(SelectionOptions {
            filter: conditions.iter().map(|c| (*c).to_owned()).collect(),
            ..SelectionOptions::default()
        })
    }

    fn sorted(column: &str, descending: bool) -> Result<String, Failure> {
        names(SelectionOptions {
            sort: Some(column.to_owned()),
            descending,
            ..SelectionOptions::default()
        })
    }

    #[test]
    fn filters_compare_numbers_and_texts() {
        for (conditions, expected) in [
            (&["ready>9"][..], "a"),
            (&["ready >= 9"], "ba"),
            (&["ready<10"], "b"),
            (&["messages_ready<=9"], "b"),
            (&["ready=9.0"], "b"),
            (&["ready!=9"], "ac"),
            (&["ready="], "c"),
            (&["name~^[ab]$"], "ba"),
            (&["name~^[ab]$", "stats.rate<1"], "a"),
            (&["members~c-1"], "b"),
        ] {
            assert_eq!(
                filtered(conditions).as_deref(),
                Ok(expected),
                "{conditions:?}"
            );
        }
    }

    #[test]
    fn rows_are_sorted_with_missing_values_last() {
        assert_eq!(sorted("name", false).as_deref(), Ok("abc"));
        assert_eq!(sorted("name", true).as_deref(), Ok("cba"));
        assert_eq!(sorted("ready", false).as_deref(), Ok("bac"));
        assert_eq!(sorted("ready", true).as_deref(), Ok("abc"));
        assert_eq!(sorted("stats.rate", false).as_deref(), Ok("abc"));
    }

    #[test]
    fn column_that_all_rows_may_lack_is_accepted() {
        assert_eq!(
            filtered(&["head_message_age_seconds>60"]).as_deref(),
            Ok("")
        );
        assert_eq!(
            sorted("head_message_age_seconds", true).as_deref(),
            Ok("bac")
        );
    }

    #[test]
    fn invalid_options_name_the_option_and_the_columns() {
        for (result, text) in [
            (filtered(&["ready"]), "--filter 'ready': expected a column"),
            (filtered(&["=5"]), "--filter '=5': expected a column"),
            (filtered(&["name~("]), "'(' is not a regular expression"),
            (
                filtered(&["raedy>1"]),
                "--filter 'raedy': no row has this column; the columns are name, ready",
            ),
            (
                sorted("raedy", false),
                "--sort 'raedy': no row has this column",
            ),
        ] {
            let failure = result.expect_err(text).to_string();
            assert!(failure.contains(text), "{failure}");
        }
    }
}
