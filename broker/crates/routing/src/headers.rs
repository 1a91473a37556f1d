//! Headers exchanges: `x-match` all, any, all-with-x, any-with-x.

use crate::{BadBinding, Handle};
use message::{Table, Term, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mode {
    all: bool,
    with_x: bool,
}

fn mode(arguments: &Table) -> Result<Mode, BadBinding> {
    let (all, with_x) = match arguments.get("x-match") {
        None => (true, false),
        Some(Value::String(text)) => match &text[..] {
            b"all" => (true, false),
            b"any" => (false, false),
            b"all-with-x" => (true, true),
            b"any-with-x" => (false, true),
            _ => {
                return Err(BadBinding::Match(
                    String::from_utf8_lossy(text).into_owned(),
                ));
            }
        },
        Some(other) => return Err(BadBinding::MatchType(shown(other))),
    };
    Ok(Mode { all, with_x })
}

fn shown(value: &Value) -> String {
    format!("{} (value {})", value.type_name(), Term(value))
}

/// Whether a headers exchange takes a binding with these arguments.
pub(crate) fn check_arguments(arguments: &Table) -> Result<(), BadBinding> {
    mode(arguments).map(|_| ())
}

#[derive(Clone, Debug)]
struct Entry<D> {
    arguments: Table,
    mode: Mode,
    to: D,
}

impl<D> Entry<D> {
    fn matches(&self, headers: &Table) -> bool {
        let mut wanted = self
            .arguments
            .0
            .iter()
            .filter(|(k, _)| &**k != "x-match" && (self.mode.with_x || !k.starts_with("x-")));
        // Of headers of the same name the last one counts, as in RabbitMQ.
        let met = |(k, want): &(std::sync::Arc<str>, Value)| {
            let have = headers.0.iter().rev().find(|(name, _)| name == k);
            have.is_some_and(|(_, have)| *want == Value::Void || same(want, have))
        };
        if self.mode.all {
            wanted.all(met)
        } else {
            wanted.any(met)
        }
    }
}

/// Equal as values: which of the integer or float types carries a number does not matter, nor which of the two of bytes, nor whether
/// what is empty is an array or a table.
fn same(want: &Value, have: &Value) -> bool {
    if let (Some(a), Some(b)) = (octets(want), octets(have)) {
        return a == b;
    }
    match (want.as_integer(), have.as_integer()) {
        (Some(a), Some(b)) => return a == b,
        (None, None) => {}
        _ => return false,
    }
    let empty = |v: &Value| match v {
        Value::Array(values) => values.is_empty(),
        Value::Table(table) => table.is_empty(),
        _ => false,
    };
    if empty(want) && empty(have) {
        return true;
    }
    let float = |v: &Value| match *v {
        Value::F32(f) => Some(f64::from(f)),
        Value::F64(f) => Some(f),
        _ => None,
    };
    match (float(want), float(have)) {
        (Some(a), Some(b)) => a == b,
        _ => want == have,
    }
}

fn octets(value: &Value) -> Option<&[u8]> {
    match value {
        Value::String(bytes) | Value::Binary(bytes) => Some(bytes),
        _ => None,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HeaderBindings<D>(Vec<Entry<D>>);

impl<D> Default for HeaderBindings<D> {
    fn default() -> Self {
        HeaderBindings(Vec::new())
    }
}

impl<D: Handle> HeaderBindings<D> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, arguments: &Table, to: D) {
        // Checked by check_arguments before; a binding stored by another version matches as `all`.
        let mode = mode(arguments).unwrap_or(Mode {
            all: true,
            with_x: false,
        });
        self.0.push(Entry {
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

    fn hit(binding: &[(&str, Value)], headers: &[(&str, Value)]) -> bool {
        let mut list = HeaderBindings::default();
        list.add(&table(binding), 1u64);
        let mut out = Vec::new();
        list.route(&table(headers), &mut out);
        assert!(list.remove(&table(binding), 1));
        assert!(list.is_empty());
        out == [1]
    }

    #[test]
    fn all_any_and_their_with_x_forms() {
        let s = |t: &str| Value::from(t);
        let pdf = ("format", s("pdf"));
        let x = ("x-kind", s("a"));
        assert!(hit(one(&pdf), &[pdf.clone(), ("other", s("b"))]));
        assert!(!hit(&[pdf.clone(), ("n", Value::I32(1))], one(&pdf)));
        assert!(hit(&[("n", Value::I32(1))], &[("n", Value::I64(1))]));
        assert!(!hit(&[("n", Value::I32(1))], &[("n", s("1"))]));
        let raw = |b: &'static [u8]| Value::Binary(bytes::Bytes::from_static(b));
        assert!(hit(&[("n", s("1"))], &[("n", raw(b"1"))]));
        assert!(!hit(&[("n", raw(b"1"))], &[("n", s("2"))]));
        let any = ("x-match", s("any"));
        assert!(hit(
            &[any.clone(), pdf.clone(), ("n", Value::I8(1))],
            one(&pdf)
        ));
        assert!(!hit(one(&any), one(&pdf)));
        assert!(hit(&[], one(&pdf)));
        assert!(hit(one(&x), &[("y", s("b"))]));
        let all_x = ("x-match", s("all-with-x"));
        assert!(!hit(&[all_x.clone(), x.clone()], &[("x-kind", s("b"))]));
        assert!(hit(&[all_x, x.clone()], one(&x)));
        assert!(!hit(&[("x-match", s("any")), x.clone()], one(&x)));
        assert!(hit(&[("x-match", s("any-with-x")), x.clone()], one(&x)));
        assert!(hit(&[("there", Value::Void)], &[("there", s("anything"))]));
    }

    #[test]
    fn the_last_header_of_a_name_counts_and_nothing_is_nothing() {
        let n = |v| ("n", Value::I32(v));
        assert!(hit(&[n(1)], &[n(2), n(1)]));
        assert!(!hit(&[n(1)], &[n(1), n(2)]));
        let (array, table) = (Value::Array(Vec::new()), Value::Table(Table::default()));
        assert!(hit(&[("n", array.clone())], &[("n", table.clone())]));
        assert!(hit(&[("n", table.clone())], &[("n", array.clone())]));
        assert!(!hit(
            &[("n", array)],
            &[("n", Value::Array(vec![Value::Void]))]
        ));
    }

    #[test]
    fn a_bad_x_match_is_refused() {
        assert_eq!(
            check_arguments(&table(&[("x-match", Value::from("some"))])),
            Err(BadBinding::Match("some".into()))
        );
        assert_eq!(
            check_arguments(&table(&[("x-match", Value::I32(1))])),
            Err(BadBinding::MatchType("signedint (value 1)".into()))
        );
        assert_eq!(
            check_arguments(&table(&[("x-match", Value::F64(1.0))]))
                .unwrap_err()
                .to_string(),
            "Invalid x-match field type double (value 1.0); expected longstr"
        );
    }
}
