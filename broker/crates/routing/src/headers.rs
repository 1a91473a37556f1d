//! Headers exchanges: `x-match` values `all`, `any`, `all-with-x` and `any-with-x`.

use crate::{BindingArgumentError, DestinationHandle};
use message::{Table, Term, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeaderMatchMode {
    all: bool,
    with_x: bool,
}

fn mode(arguments: &Table) -> Result<HeaderMatchMode, BindingArgumentError> {
    let (all, with_x) = match arguments.get("x-match") {
        None => (true, false),
        Some(Value::String(text)) => match &text[..] {
            b"all" => (true, false),
            b"any" => (false, false),
            b"all-with-x" => (true, true),
            b"any-with-x" => (false, true),
            _ => {
                return Err(BindingArgumentError::Match(
                    String::from_utf8_lossy(text).into_owned(),
                ));
            }
        },
        Some(other) => return Err(BindingArgumentError::MatchType(display(other))),
    };
    Ok(HeaderMatchMode { all, with_x })
}

fn display(value: &Value) -> String {
    format!("{} (value {})", value.type_name(), Term(value))
}

/// Validates the arguments of a binding to a headers exchange.
pub(crate) fn check_arguments(arguments: &Table) -> Result<(), BindingArgumentError> {
    mode(arguments).map(|_| ())
}

#[derive(Clone, Debug)]
struct HeaderBinding<D> {
    arguments: Table,
    mode: HeaderMatchMode,
    to: D,
}

impl<D> HeaderBinding<D> {
    fn matches(&self, headers: &Table) -> bool {
        let mut wanted = self
            .arguments
            .0
            .iter()
            .filter(|(k, _)| &**k != "x-match" && (self.mode.with_x || !k.starts_with("x-")));
        // Of several headers with the same name the last one counts, as in RabbitMQ.
        let is_matched = |(k, expected): &(std::sync::Arc<str>, Value)| {
            let actual = headers.0.iter().rev().find(|(name, _)| name == k);
            actual.is_some_and(|(_, actual)| {
                *expected == Value::Void || equal_values(expected, actual)
            })
        };
        if self.mode.all {
            wanted.all(is_matched)
        } else {
            wanted.any(is_matched)
        }
    }
}

/// Compares values: the integer or float type does not matter, nor whether bytes are a string or binary, nor
/// whether an empty collection is an array or a table.
fn equal_values(expected: &Value, actual: &Value) -> bool {
    if let (Some(a), Some(b)) = (bytes_of(expected), bytes_of(actual)) {
        return a == b;
    }
    match (expected.as_integer(), actual.as_integer()) {
        (Some(a), Some(b)) => return a == b,
        (None, None) => {}
        _ => return false,
    }
    let empty = |v: &Value| match v {
        Value::Array(values) => values.is_empty(),
        Value::Table(table) => table.is_empty(),
        _ => false,
    };
    if empty(expected) && empty(actual) {
        return true;
    }
    let float = |v: &Value| match *v {
        Value::F32(f) => Some(f64::from(f)),
        Value::F64(f) => Some(f),
        _ => None,
    };
    match (float(expected), float(actual)) {
        (Some(a), Some(b)) => a == b,
        _ => expected == actual,
    }
}

fn bytes_of(value: &Value) -> Option<&[u8]> {
    match value {
        Value::String(bytes) | Value::Binary(bytes) => Some(bytes),
        _ => None,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HeaderBindings<D>(Vec<HeaderBinding<D>>);

impl<D> Default for HeaderBindings<D> {
    fn default() -> Self {
        HeaderBindings(Vec::new())
    }
}

impl<D: DestinationHandle> HeaderBindings<D> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, arguments: &Table, to: D) {
        // Validated by `check_arguments` when declared; a binding stored by another version matches as `all`.
        let mode = mode(arguments).unwrap_or(HeaderMatchMode {
            all: true,
            with_x: false,
        });
        self.0.push(HeaderBinding {
            arguments: arguments.clone(),
            mode,
            to,
        });
    }

    pub(crate) fn remove(&mut self, arguments: &Table, to: D) -> bool {
        let Some(at) = self
            .0
            .iter()
            .position(|e| e.to == to && e.arguments == *arguments)
        else {
            return false;
        };
        self.0.remove(at);
        true
    }

    pub(crate) fn route(&self, headers: &Table, out: &mut Vec<D>) {
        out.extend(self.0.iter().filter(|e| e.matches(headers)).map(|e| e.to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pairs: &[(&str, Value)]) -> Table {
        Table(
            pairs
                .iter()
                .map(|(k, v)| ((*k).into(), v.clone()))
                .collect(),
        )
    }

    use std::slice::from_ref as one;

    fn is_match(binding: &[(&str, Value)], headers: &[(&str, Value)]) -> bool {
        let mut list = HeaderBindings::default();
        list.add(&table(binding), 1u64);
        let mut out = Vec::new();
        list.route(&table(headers), &mut out);
        assert!(list.remove(&table(binding), 1));
        assert!(list.is_empty());
        out == [1]
    }

    #[test]
    fn all_and_any_match_with_and_without_x_headers() {
        let s = |t: &str| Value::from(t);
        let pdf = ("format", s("pdf"));
        let x = ("x-kind", s("a"));
        assert!(is_match(one(&pdf), &[pdf.clone(), ("other", s("b"))]));
        assert!(!is_match(&[pdf.clone(), ("n", Value::I32(1))], one(&pdf)));
        assert!(is_match(&[("n", Value::I32(1))], &[("n", Value::I64(1))]));
        assert!(!is_match(&[("n", Value::I32(1))], &[("n", s("1"))]));
        let raw = |b: &'static [u8]| Value::Binary(bytes::Bytes::from_static(b));
        assert!(is_match(&[("n", s("1"))], &[("n", raw(b"1"))]));
        assert!(!is_match(&[("n", raw(b"1"))], &[("n", s("2"))]));
        let any = ("x-match", s("any"));
        assert!(is_match(
            &[any.clone(), pdf.clone(), ("n", Value::I8(1))],
            one(&pdf)
        ));
        assert!(!is_match(one(&any), one(&pdf)));
        assert!(is_match(&[], one(&pdf)));
        assert!(is_match(one(&x), &[("y", s("b"))]));
        let all_x = ("x-match", s("all-with-x"));
        assert!(!is_match(
            &[all_x.clone(), x.clone()],
            &[("x-kind", s("b"))]
        ));
        assert!(is_match(&[all_x, x.clone()], one(&x)));
        assert!(!is_match(&[("x-match", s("any")), x.clone()], one(&x)));
        assert!(is_match(
            &[("x-match", s("any-with-x")), x.clone()],
            one(&x)
        ));
        assert!(is_match(
            &[("there", Value::Void)],
            &[("there", s("anything"))]
        ));
    }

    #[test]
    fn last_of_equal_headers_counts_and_empty_collections_are_equal() {
        let n = |v| ("n", Value::I32(v));
        assert!(is_match(&[n(1)], &[n(2), n(1)]));
        assert!(!is_match(&[n(1)], &[n(1), n(2)]));
        let (array, table) = (Value::Array(Vec::new()), Value::Table(Table::default()));
        assert!(is_match(&[("n", array.clone())], &[("n", table.clone())]));
        assert!(is_match(&[("n", table.clone())], &[("n", array.clone())]));
        assert!(!is_match(
            &[("n", array)],
            &[("n", Value::Array(vec![Value::Void]))]
        ));
    }

    #[test]
    fn invalid_x_match_is_refused() {
        assert_eq!(
            check_arguments(&table(&[("x-match", Value::from("some"))])),
            Err(BindingArgumentError::Match("some".into()))
        );
        assert_eq!(
            check_arguments(&table(&[("x-match", Value::I32(1))])),
            Err(BindingArgumentError::MatchType(
                "signedint (value 1)".into()
            ))
        );
        assert_eq!(
            check_arguments(&table(&[("x-match", Value::F64(1.0))]))
                .unwrap_err()
                .to_string(),
            "Invalid x-match field type double (value 1.0); expected longstr"
        );
    }
}
