//! Arguments of a queue declaration: which exist, what they may be, and the texts of 406 for what they may not.

use crate::codec::table_len;
use crate::equivalence::ResourceName;
use crate::{ChangeError, ExchangeRecord, QueueRecord, QueueType, Tree, limits};
use message::{Table, Value, bare};

/// Longest times in milliseconds: ten years. RabbitMQ has no limit; here sums of times must fit.
const MAX_EXPIRY_MS: i64 = 315_360_000_000;
const MAX_PRIORITY: i64 = 255;

/// What is wrong with a value, in RabbitMQ's words.
type Checked = Result<(), String>;
type Check = fn(&Value, &Table) -> Checked;

/// Arguments with a check, in the order in which they are looked at. Those that RabbitMQ takes whatever they are do not have one
/// (`x-delivery-limit`, `x-consumer-timeout`, `x-quorum-target-group-size`): one that is no number is as if it were not there.
const CHECKS: &[(&str, Check)] = &[
    ("x-expires", |v, _| {
        let n = integer(v)?;
        if n == 0 {
            return Err("{value_zero,0}".into());
        }
        expiry(n)
    }),
    ("x-message-ttl", |v, _| expiry(integer(v)?)),
    ("x-dead-letter-routing-key", |v, all| {
        string(v)?;
        match all.get("x-dead-letter-exchange") {
            Some(_) => Ok(()),
            None => Err("routing_key_but_no_dlx_defined".into()),
        }
    }),
    ("x-dead-letter-strategy", |v, _| {
        one_of(
            v,
            &["at-most-once", "at-least-once"],
            "invalid_dlx_strategy",
        )
    }),
    ("x-max-length", |v, _| natural(v).map(|_| ())),
    ("x-max-length-bytes", |v, _| natural(v).map(|_| ())),
    ("x-max-in-memory-length", |v, _| natural(v).map(|_| ())),
    ("x-max-in-memory-bytes", |v, _| natural(v).map(|_| ())),
    ("x-max-priority", |v, _| match natural(v)? {
        n if n > MAX_PRIORITY => Err(format!("{{max_value_exceeded,{n}}}")),
        _ => Ok(()),
    }),
    ("x-overflow", |v, _| {
        let modes = ["drop-head", "reject-publish", "reject-publish-dlx"];
        one_of(v, &modes, "invalid_overflow")
    }),
    ("x-queue-mode", |v, _| {
        let mode = string(v)?;
        let why = format!("\"unsupported queue mode '{mode}'\"");
        one_of(v, &["default", "lazy"], &why)
    }),
    ("x-queue-version", |v, _| match natural(v)? {
        1 | 2 => Ok(()),
        n => Err(format!("\"unsupported queue version '{n}'\"")),
    }),
    ("x-single-active-consumer", |v, _| match v {
        Value::Bool(_) => Ok(()),
        other => Err(unacceptable(other)),
    }),
    ("x-quorum-initial-group-size", |v, _| positive(v)),
    ("x-queue-leader-locator", |v, _| {
        // Those after the second are old names of it.
        let locators = [
            "client-local",
            "balanced",
            "random",
            "least-leaders",
            "min-masters",
        ];
        one_of(v, &locators, "invalid_queue_locator_arg")
    }),
];

/// Of streams only.
const STREAM: &[&str] = &[
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
];

/// The type that a declaration asks for by `x-queue-type`, or the default type if it has no such argument.
pub(crate) fn queue_kind(
    vhost: &str,
    name: &str,
    arguments: &Table,
) -> Result<QueueType, ChangeError> {
    let Some(value) = arguments.get("x-queue-type") else {
        return Ok(QueueType::default());
    };
    let found = match value {
        Value::String(octets) => std::str::from_utf8(octets)
            .ok()
            .and_then(QueueType::from_name)
            .ok_or_else(|| format!("\"unsupported queue type '{}'\"", bare(octets))),
        other => Err(unacceptable(other)),
    };
    found.map_err(|why| invalid(&ResourceName::queue(vhost, name), "x-queue-type", &why))
}

impl Tree {
    /// The type of a queue that is to be declared. One that is there is compared with what is said, whatever that is: it keeps its
    /// own type where there is none of that name.
    pub fn queue_kind(
        &self,
        vhost: &str,
        name: &str,
        arguments: &Table,
    ) -> Result<QueueType, ChangeError> {
        queue_kind(vhost, name, arguments).or_else(|refused| match self.queue(vhost, name) {
            Some(there) => Ok(there.kind),
            None => Err(refused),
        })
    }
}

/// The exchange that an argument names. Another type than text is refused in RabbitMQ's words.
fn named_exchange<'a>(
    thing: &ResourceName<'_>,
    key: &str,
    arguments: &'a Table,
) -> Result<Option<&'a str>, ChangeError> {
    let Some(value) = arguments.get(key) else {
        return Ok(None);
    };
    value.as_str().map(Some).ok_or_else(|| {
        let kind = value.type_name();
        ChangeError::PreconditionFailed(format!("invalid type '{kind}' for arg '{key}' in {thing}"))
    })
}

impl QueueRecord {
    /// `x-dead-letter-exchange`.
    pub fn dead_letter_exchange(&self) -> Result<Option<&str>, ChangeError> {
        let thing = ResourceName::queue(&self.vhost, &self.name);
        named_exchange(&thing, "x-dead-letter-exchange", &self.arguments)
    }
}

impl ExchangeRecord {
    /// `alternate-exchange`.
    pub fn alternate(&self) -> Result<Option<&str>, ChangeError> {
        let thing = ResourceName::exchange(&self.vhost, &self.name);
        named_exchange(&thing, "alternate-exchange", &self.arguments)
    }
}

/// Whether a queue of this type takes these arguments.
pub(crate) fn check_queue_arguments(
    thing: &ResourceName<'_>,
    kind: QueueType,
    arguments: &Table,
) -> Result<(), ChangeError> {
    check_table(thing, arguments)?;
    named_exchange(thing, "x-dead-letter-exchange", arguments)?;
    let known = kind.descriptor().arguments;
    for (key, check) in CHECKS.iter().filter(|(key, _)| known.contains(key)) {
        if let Some(value) = arguments.get(key) {
            check(value, arguments).map_err(|why| invalid(thing, key, &why))?;
        }
    }
    let mut others = STREAM.to_vec();
    for queue_type in QueueType::ALL {
        others.extend(queue_type.descriptor().arguments);
    }
    let stray = arguments
        .0
        .iter()
        .find(|(key, _)| !known.contains(&&**key) && others.contains(&&**key));
    match stray {
        None => Ok(()),
        Some((key, _)) => Err(ChangeError::PreconditionFailed(format!(
            "invalid arg '{key}' for {thing} of queue type {}",
            kind.module()
        ))),
    }
}

fn invalid(thing: &ResourceName<'_>, key: &str, why: &str) -> ChangeError {
    ChangeError::PreconditionFailed(format!("invalid arg '{key}' for {thing}: {why}"))
}

/// Bounds that all tables in the tree keep.
pub(crate) fn check_table(thing: &ResourceName<'_>, table: &Table) -> Result<(), ChangeError> {
    let refuse = |why: String| {
        Err(ChangeError::PreconditionFailed(format!(
            "arguments of {thing} {why}"
        )))
    };
    if !shallow(table, limits::TABLE_DEPTH) {
        return refuse(format!("are nested deeper than {}", limits::TABLE_DEPTH));
    }
    let len = table_len(table);
    if len > limits::TABLE_BYTES {
        return refuse(format!(
            "have {len} bytes, {} are allowed",
            limits::TABLE_BYTES
        ));
    }
    if !table.0.iter().all(|(_, v)| comparable(v)) {
        return refuse("hold a number that is not one (NaN)".into());
    }
    Ok(())
}

fn shallow(table: &Table, left: usize) -> bool {
    left > 0 && table.0.iter().all(|(_, v)| shallow_value(v, left - 1))
}

fn shallow_value(value: &Value, left: usize) -> bool {
    match value {
        Value::Table(t) => shallow(t, left),
        Value::Array(a) => left > 0 && a.iter().all(|v| shallow_value(v, left - 1)),
        _ => true,
    }
}

/// NaN is not equal to itself: such a binding could never be found again. Depth is checked before.
fn comparable(value: &Value) -> bool {
    match value {
        Value::F32(v) => !v.is_nan(),
        Value::F64(v) => !v.is_nan(),
        Value::Array(a) => a.iter().all(comparable),
        Value::Table(t) => t.0.iter().all(|(_, v)| comparable(v)),
        _ => true,
    }
}

/// RabbitMQ's names of the 0.9.1 field types.
fn unacceptable(value: &Value) -> String {
    format!("{{unacceptable_type,{}}}", value.type_name())
}

fn integer(value: &Value) -> Result<i64, String> {
    value
        .as_integer()
        .ok_or_else(|| format!("\"expected integer, got {}\"", value.type_name()))
}

fn natural(value: &Value) -> Result<i64, String> {
    match integer(value)? {
        n if n < 0 => Err(format!("{{value_negative,{n}}}")),
        n => Ok(n),
    }
}

fn positive(value: &Value) -> Checked {
    match natural(value)? {
        0 => Err("{value_zero,0}".into()),
        _ => Ok(()),
    }
}

fn expiry(n: i64) -> Checked {
    if n > MAX_EXPIRY_MS {
        return Err(format!("{{value_too_large,{n}}}"));
    }
    if n < 0 {
        return Err(format!("{{value_negative,{n}}}"));
    }
    Ok(())
}

fn string(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(_) => value.as_str().ok_or_else(|| "\"not UTF-8\"".into()),
        other => Err(unacceptable(other)),
    }
}

fn one_of(value: &Value, choices: &[&str], why: &str) -> Checked {
    if choices.contains(&string(value)?) {
        Ok(())
    } else {
        Err(why.into())
    }
}
