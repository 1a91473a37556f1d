//! Random expressions have the same result as in an evaluator that is written for clarity, and no text makes the compiler panic.

use std::cmp::Ordering;

use crate::message::{Message, NOW, order};
use codec_amqp10::Value;
use filter::Filter;
use proptest::prelude::*;

/// A value of the evaluator below.
#[derive(Clone, Debug, PartialEq)]
enum Naive {
    Null,
    Boolean(bool),
    Integer(i128),
    Float(f64),
    Text(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Expression {
    /// A constant and its text in SQL.
    Constant(Naive, String),
    Application(&'static str),
    Subject,
    Priority,
    Time,
    Not(Box<Expression>),
    Logic(Box<Expression>, &'static str, Box<Expression>),
    Compare(Box<Expression>, &'static str, Box<Expression>),
    Calculate(Box<Expression>, &'static str, Box<Expression>),
    Unary(&'static str, Box<Expression>),
    In(Box<Expression>, bool, Vec<Expression>),
    IsNull(&'static str, bool),
    Like(Box<Expression>, bool, String),
}

use Expression as E;

impl Expression {
    /// The expression in SQL, with parentheses around every operand.
    fn sql(&self) -> String {
        let not = |is_negated: &bool| if *is_negated { "NOT " } else { "" };
        match self {
            E::Constant(_, text) => text.clone(),
            E::Application(name) => (*name).to_owned(),
            E::Subject => "p.subject".to_owned(),
            E::Priority => "header.priority".to_owned(),
            E::Time => "UTC()".to_owned(),
            E::Not(inner) => format!("(NOT ({}))", inner.sql()),
            E::Logic(left, operator, right)
            | E::Compare(left, operator, right)
            | E::Calculate(left, operator, right) => {
                format!("({} {operator} {})", left.sql(), right.sql())
            }
            E::Unary(sign, inner) => format!("({sign}({}))", inner.sql()),
            E::In(value, is_negated, entries) => {
                let entries: Vec<String> = entries.iter().map(E::sql).collect();
                format!(
                    "({} {}IN ({}))",
                    value.sql(),
                    not(is_negated),
                    entries.join(",")
                )
            }
            E::IsNull(name, is_negated) => format!("({name} IS {}NULL)", not(is_negated)),
            E::Like(subject, is_negated, pattern) => format!(
                "({} {}LIKE '{}')",
                subject.sql(),
                not(is_negated),
                pattern.replace('\'', "''")
            ),
        }
    }

    fn evaluate(&self, message: &Message) -> Naive {
        let truth = |value: Option<bool>| value.map_or(Naive::Null, Naive::Boolean);
        match self {
            E::Constant(value, _) => value.clone(),
            E::Application(name) => application(message, name),
            E::Subject => Naive::Text(b"order.created".to_vec()),
            E::Priority => Naive::Integer(7),
            E::Time => Naive::Integer(NOW.into()),
            E::Not(inner) => truth(as_truth(&inner.evaluate(message)).map(|value| !value)),
            E::Logic(left, operator, right) => {
                let both = [left, right].map(|side| as_truth(&side.evaluate(message)));
                let decisive = Some(*operator == "OR");
                truth(if both.contains(&decisive) {
                    decisive
                } else if both.contains(&None) {
                    None
                } else {
                    both[0]
                })
            }
            E::Compare(left, operator, right) => truth(compare(
                &left.evaluate(message),
                operator,
                &right.evaluate(message),
            )),
            E::Calculate(left, operator, right) => {
                calculate(&left.evaluate(message), operator, &right.evaluate(message))
            }
            E::Unary(sign, inner) => match (inner.evaluate(message), *sign) {
                (Naive::Integer(value), "-") => Naive::Integer(-value),
                (Naive::Float(value), "-") => Naive::Float(-value),
                (value @ (Naive::Integer(_) | Naive::Float(_)), _) => value,
                _ => Naive::Null,
            },
            E::In(value, is_negated, entries) => {
                let value = value.evaluate(message);
                truth((value != Naive::Null).then(|| {
                    let found = entries
                        .iter()
                        .any(|entry| compare(&value, "=", &entry.evaluate(message)) == Some(true));
                    found != *is_negated
                }))
            }
            E::IsNull(name, is_negated) => truth(Some(
                (application(message, name) == Naive::Null) != *is_negated,
            )),
            E::Like(subject, is_negated, pattern) => match subject.evaluate(message) {
                Naive::Text(text) => {
                    let text = String::from_utf8(text).expect("the constants are text");
                    let text: Vec<char> = text.chars().collect();
                    let pattern: Vec<char> = pattern.chars().collect();
                    truth(Some(like(&pattern, &text) != *is_negated))
                }
                _ => Naive::Null,
            },
        }
    }
}

fn application(message: &Message, name: &str) -> Naive {
    let found = message.application.iter().find(|(found, _)| *found == name);
    match found.map(|(_, value)| *value) {
        Some(Value::Boolean(value)) => Naive::Boolean(value),
        Some(Value::Ushort(value)) => Naive::Integer(value.into()),
        Some(Value::Int(value)) => Naive::Integer(value.into()),
        Some(Value::Ulong(value)) => Naive::Integer(value.into()),
        Some(Value::Double(value)) => Naive::Float(value),
        Some(Value::String(text)) => Naive::Text(text.into()),
        Some(Value::Symbol(symbol)) => Naive::Text(symbol.as_str().into()),
        Some(Value::Null) | None => Naive::Null,
        other => panic!("{other:?} is not in the test"),
    }
}

fn as_truth(value: &Naive) -> Option<bool> {
    match value {
        Naive::Boolean(value) => Some(*value),
        _ => None,
    }
}

fn compare(left: &Naive, operator: &str, right: &Naive) -> Option<bool> {
    let order = match (left, right) {
        (Naive::Null, _) | (_, Naive::Null) => return None,
        (Naive::Boolean(left), Naive::Boolean(right)) => {
            return Some(match operator {
                "=" => left == right,
                "<>" => left != right,
                _ => false,
            });
        }
        (Naive::Text(left), Naive::Text(right)) => Some(left.cmp(right)),
        (Naive::Integer(left), Naive::Integer(right)) => Some(left.cmp(right)),
        // The integers of the test have an exact float, or differ from every float by more than one.
        (Naive::Integer(left), Naive::Float(right)) => (*left as f64).partial_cmp(right),
        (Naive::Float(left), Naive::Integer(right)) => left.partial_cmp(&(*right as f64)),
        (Naive::Float(left), Naive::Float(right)) => left.partial_cmp(right),
        _ => None,
    };
    Some(match operator {
        "=" => order == Some(Ordering::Equal),
        "<>" => order != Some(Ordering::Equal),
        "<" => order == Some(Ordering::Less),
        ">" => order == Some(Ordering::Greater),
        "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        ">=" => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        other => panic!("{other}"),
    })
}

fn calculate(left: &Naive, operator: &str, right: &Naive) -> Naive {
    if let (Naive::Integer(left), Naive::Integer(right)) = (left, right) {
        match operator {
            "+" => return Naive::Integer(left + right),
            "-" => return Naive::Integer(left - right),
            "*" => {
                if let Some(product) = left.checked_mul(*right) {
                    return Naive::Integer(product);
                }
            }
            "%" if *right == 0 => return Naive::Null,
            "%" => return Naive::Integer(left % right),
            _ => {}
        }
    }
    let float = |value: &Naive| match value {
        Naive::Integer(value) => Some(*value as f64),
        Naive::Float(value) => Some(*value),
        _ => None,
    };
    let result = match (float(left), operator, float(right)) {
        (Some(left), "+", Some(right)) => left + right,
        (Some(left), "-", Some(right)) => left - right,
        (Some(left), "*", Some(right)) => left * right,
        (Some(left), "/", Some(right)) => left / right,
        _ => return Naive::Null,
    };
    if result.is_finite() {
        Naive::Float(result)
    } else {
        Naive::Null
    }
}

/// The definition of `LIKE`, with backtracking.
fn like(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('%', rest)) => (0..=text.len()).any(|skipped| like(rest, &text[skipped..])),
        Some(('_', rest)) => !text.is_empty() && like(rest, &text[1..]),
        Some((first, rest)) => text.first() == Some(first) && like(rest, &text[1..]),
    }
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "region", "city", "title", "count", "price", "celsius", "zero", "tiny", "huge", "paid",
        "gift", "nothing", "absent",
    ])
}

fn leaf() -> impl Strategy<Value = Expression> {
    prop_oneof![
        4 => name().prop_map(E::Application),
        1 => Just(E::Subject),
        1 => Just(E::Priority),
        1 => Just(E::Time),
        1 => any::<bool>().prop_map(|value| {
            E::Constant(Naive::Boolean(value), value.to_string().to_uppercase())
        }),
        2 => (0i128..12).prop_map(|value| E::Constant(Naive::Integer(value), value.to_string())),
        1 => (0u32..40).prop_map(|value| {
            let value = f64::from(value) / 4.0;
            E::Constant(Naive::Float(value), format!("{value:.2}"))
        }),
        2 => "[EUaé']{0,3}".prop_map(|text| {
            let sql = format!("'{}'", text.replace('\'', "''"));
            E::Constant(Naive::Text(text.into_bytes()), sql)
        }),
    ]
}

fn expression() -> impl Strategy<Value = Expression> {
    leaf().prop_recursive(5, 48, 4, |inner| {
        let one = || inner.clone().prop_map(Box::new);
        prop_oneof![
            2 => one().prop_map(E::Not),
            4 => (one(), prop::sample::select(vec!["AND", "OR"]), one())
                .prop_map(|(left, operator, right)| E::Logic(left, operator, right)),
            4 => (one(), prop::sample::select(vec!["=", "<>", "<", "<=", ">", ">="]), one())
                .prop_map(|(left, operator, right)| E::Compare(left, operator, right)),
            3 => (one(), prop::sample::select(vec!["+", "-", "*", "/", "%"]), one())
                .prop_map(|(left, operator, right)| E::Calculate(left, operator, right)),
            1 => (prop::sample::select(vec!["+", "-"]), one())
                .prop_map(|(sign, inner)| E::Unary(sign, inner)),
            2 => (one(), any::<bool>(), prop::collection::vec(inner.clone(), 1..4))
                .prop_map(|(value, is_negated, entries)| E::In(value, is_negated, entries)),
            1 => (name(), any::<bool>()).prop_map(|(name, is_negated)| E::IsNull(name, is_negated)),
            2 => (one(), any::<bool>(), "[EUOeo%_]{0,6}")
                .prop_map(|(subject, is_negated, pattern)| E::Like(subject, is_negated, pattern)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_expressions_have_the_result_of_the_naive_evaluator(expression in expression()) {
        let message = order();
        let sql = expression.sql();
        let filter = match Filter::compile_sql(&sql) {
            Ok(filter) => filter,
            Err(error) => {
                let is_limit = error.to_string().contains("tokens") || error.to_string().contains("nested");
                prop_assert!(is_limit, "{sql}: {error}");
                return Ok(());
            }
        };
        let expected = expression.evaluate(&message);
        prop_assert_eq!(filter.matches(&message, NOW), expected == Naive::Boolean(true), "{}", sql);
        // Unknown and false differ under negation.
        let negated = Filter::compile_sql(&format!("NOT {sql}"));
        if let Ok(negated) = negated {
            prop_assert_eq!(negated.matches(&message, NOW), expected == Naive::Boolean(false), "NOT {}", sql);
        }
    }

    #[test]
    fn patterns_match_as_by_definition(
        pattern in "[aé€🥕%_]{0,9}",
        text in "[aé€🥕b]{0,12}",
    ) {
        let text: &'static str = Box::leak(text.into_boxed_str());
        let message = crate::message::with(&[("text", Value::String(text))]);
        let filter = Filter::compile_sql(&format!("text LIKE '{pattern}'")).unwrap();
        let characters = |text: &str| text.chars().collect::<Vec<_>>();
        prop_assert_eq!(
            filter.matches(&message, NOW),
            like(&characters(&pattern), &characters(text)),
            "{} LIKE {}", text, pattern
        );
    }

    #[test]
    fn any_text_compiles_or_is_refused(text in any::<String>()) {
        compile_both(&text);
    }

    #[test]
    fn any_sequence_of_tokens_compiles_or_is_refused(tokens in prop::collection::vec(
        prop::sample::select(vec![
            "AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "BETWEEN", "UTC", "(", ")", ",", "=", "<>",
            "<", ">=", "+", "-", "*", "/", "%", "1", "2.5", "0xAB", "'a%_'", "'!'", "a", "p.to", "[é]", "h.priority",
            "JMSPriority", "JMSMessageID", "[", "'", "\"", "0x", ".", "é", "\u{1}",
        ]),
        0..24,
    ), space in prop::sample::select(vec!["", " "])) {
        compile_both(&tokens.join(space));
    }
}

fn compile_both(text: &str) {
    for compiled in [Filter::compile_sql(text), Filter::compile_selector(text)] {
        match compiled {
            Ok(filter) => {
                filter.matches(&order(), NOW);
            }
            Err(error) => {
                let shown = error.to_string();
                assert!(!shown.contains(char::is_control), "{shown:?}");
                assert!(shown.len() < 500, "{shown:?}");
            }
        }
    }
}
