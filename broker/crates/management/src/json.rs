//! Conversion between JSON and table values.

use crate::error::ApiError;
use message::{Table, Value};
use serde_json::{Map, Value as Json, json};

/// Maximum nesting depth of objects and lists in a request.
const MAX_DEPTH: usize = 16;
/// A printed term of this many characters or more has one line per element.
const TERM_LINE: usize = 79;

/// Formats a value as an Erlang term, as in RabbitMQ's error texts.
pub(crate) fn term(value: &Json) -> String {
    match value {
        Json::String(text) => format!("<<\"{text}\">>"),
        Json::Array(list) => {
            let terms: Vec<String> = list.iter().map(term).collect();
            format!("[{}]", terms.join(","))
        }
        Json::Object(object) => {
            let pairs = object.iter();
            let pairs = pairs.map(|(key, value)| format!("<<\"{key}\">> => {}", term(value)));
            format!("#{{{}}}", pairs.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

pub(crate) fn from_table(table: &Table) -> Json {
    Json::Object(control::json::object(table))
}

pub(crate) fn to_table(object: &Map<String, Json>) -> Result<Table, ApiError> {
    table(object, MAX_DEPTH)
}

fn table(object: &Map<String, Json>, depth: usize) -> Result<Table, ApiError> {
    let pairs = object
        .iter()
        .map(|(key, value)| Ok((key.as_str().into(), to_value(value, depth)?)));
    Ok(Table(pairs.collect::<Result<_, ApiError>>()?))
}

fn to_value(json: &Json, depth: usize) -> Result<Value, ApiError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(ApiError::bad_request("the body is nested too deeply"));
    };
    Ok(match json {
        Json::Null => Value::Void,
        Json::Bool(v) => Value::Bool(*v),
        Json::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(v), _) => Value::I64(v),
            (None, Some(v)) => Value::F64(v),
            (None, None) => return Err(ApiError::bad_request(format!("{n} is too large"))),
        },
        Json::String(v) => Value::from(v.as_str()),
        Json::Array(v) => {
            let items = v.iter().map(|v| to_value(v, depth));
            Value::Array(items.collect::<Result<_, ApiError>>()?)
        }
        Json::Object(v) => Value::Table(table(v, depth)?),
    })
}

/// Typed access to the members of a request's JSON object. Errors name the member.
pub(crate) struct JsonMembers<'a>(pub(crate) &'a Map<String, Json>);

impl JsonMembers<'_> {
    fn invalid(key: &str, wanted: &str) -> ApiError {
        ApiError::bad_request(format!("'{key}' should be {wanted}"))
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool, ApiError> {
        self.optional_flag(key).map(|flag| flag.unwrap_or(default))
    }

    pub(crate) fn optional_flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.0.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Bool(v)) => Ok(Some(*v)),
            Some(Json::String(v)) if v == "true" => Ok(Some(true)),
            Some(Json::String(v)) if v == "false" => Ok(Some(false)),
            Some(other) => Err(ApiError::bad_request(json!(["not_boolean", other]))),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ApiError> {
        match self.0.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(v)) => Ok(Some(v)),
            Some(_) => Err(Self::invalid(key, "a string")),
        }
    }

    pub(crate) fn required_text(&self, key: &str) -> Result<&str, ApiError> {
        self.require(&[key])?;
        self.text(key)?
            .ok_or_else(|| Self::invalid(key, "a string"))
    }

    /// Fails with 400 and names every missing key.
    pub(crate) fn require(&self, keys: &[&str]) -> Result<(), ApiError> {
        let missing = keys.iter().filter(|key| !self.0.contains_key(**key));
        let missing: Vec<String> = missing.map(|k| format!("{{key_missing,{k}}}")).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // RabbitMQ prints a list of Erlang terms: on one line if it fits.
        let line = format!("[{}]", missing.join(","));
        let text = match line.len() < TERM_LINE {
            true => line,
            false => format!("[{}]", missing.join(",\n ")),
        };
        Err(ApiError::bad_request(text))
    }

    /// Parses a number or a string that contains one.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<i64>, ApiError> {
        let number = match self.0.get(key) {
            None | Some(Json::Null) => return Ok(None),
            Some(Json::String(text)) => text.parse().ok(),
            Some(other) => other.as_i64(),
        };
        number
            .map(Some)
            .ok_or_else(|| Self::invalid(key, "a number"))
    }

    pub(crate) fn table(&self, key: &str) -> Result<Option<Table>, ApiError> {
        match self.0.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Object(object)) => to_table(object).map(Some),
            // RabbitMQ's own clients send an empty list for an empty table.
            Some(Json::Array(list)) if list.is_empty() => Ok(Some(Table::default())),
            Some(_) => Err(Self::invalid(key, "an object")),
        }
    }

    /// Parses a list of strings, or one comma-separated string.
    pub(crate) fn words(&self, key: &str) -> Result<Option<Vec<metadata::Name>>, ApiError> {
        let words: Vec<&str> = match self.0.get(key) {
            None | Some(Json::Null) => return Ok(None),
            Some(Json::String(text)) => text.split(',').collect(),
            Some(Json::Array(list)) => {
                let words = list.iter().map(Json::as_str).collect::<Option<Vec<_>>>();
                words.ok_or_else(|| Self::invalid(key, "a list of strings"))?
            }
            Some(_) => return Err(Self::invalid(key, "a list of strings")),
        };
        let words = words.into_iter().map(str::trim).filter(|w| !w.is_empty());
        Ok(Some(words.map(Into::into).collect()))
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    #[test]
    fn table_round_trips_through_json() {
        let body = json!({"n": 1, "f": 1.5, "s": "é", "b": true, "l": [1, "x"], "o": {"k": null}});
        let Json::Object(object) = &body else {
            panic!()
        };
        assert_eq!(from_table(&to_table(object).unwrap()), body);
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused() {
        let mut deep = json!(1);
        for _ in 0..100 {
            deep = json!([deep]);
        }
        let body = json!({"x": deep});
        let Json::Object(object) = &body else {
            panic!()
        };
        assert!(to_table(object).is_err());
    }

    #[test]
    fn member_errors_name_the_member() {
        let body =
            json!({"t": "x", "n": "7", "tags": "a, b,", "list": ["c"], "args": [], "b": "true"});
        let Json::Object(object) = &body else {
            panic!()
        };
        let m = JsonMembers(object);
        assert_eq!(m.required_text("t").unwrap(), "x");
        assert_eq!(m.integer("n").unwrap(), Some(7));
        assert_eq!(m.words("tags").unwrap().unwrap().len(), 2);
        assert_eq!(m.words("list").unwrap().unwrap().len(), 1);
        assert_eq!(m.table("args").unwrap(), Some(Table::default()));
        assert!(m.flag("b", false).unwrap() && m.flag("none", true).unwrap());
        let missing = |keys: &[&str]| m.require(keys).unwrap_err().reason;
        assert_eq!(missing(&["t", "none"]), "[{key_missing,none}]");
        assert_eq!(
            missing(&["properties_", "payload", "payload_encoding", "routing_key"]),
            "[{key_missing,properties_},\n {key_missing,payload},\n {key_missing,payload_encoding},\n \
             {key_missing,routing_key}]"
        );
        assert_eq!(
            m.flag("t", false).unwrap_err().reason,
            json!(["not_boolean", "x"])
        );
    }

    #[test]
    fn terms_match_erlang_syntax() {
        let value = json!({"a": [1, 1.5, "x"], "b": null});
        assert_eq!(
            term(&value),
            "#{<<\"a\">> => [1,1.5,<<\"x\">>],<<\"b\">> => null}"
        );
    }
}
