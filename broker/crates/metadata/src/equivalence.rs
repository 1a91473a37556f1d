//! Declaring again what is there: equal, or refused with the text that clients match on.

use crate::{ChangeError, ExchangeRecord, QueueRecord};
use message::{Table, Term, Value, bare};
use std::fmt::Display;

/// What error texts call a queue or exchange: `queue 'q' in vhost '/'`.
pub(crate) struct ResourceName<'a> {
    kind: &'static str,
    vhost: &'a str,
    name: &'a str,
}

impl<'a> ResourceName<'a> {
    pub(crate) fn queue(vhost: &'a str, name: &'a str) -> ResourceName<'a> {
        ResourceName {
            kind: "queue",
            vhost,
            name,
        }
    }

    pub(crate) fn policy(vhost: &'a str, name: &'a str) -> ResourceName<'a> {
        ResourceName {
            kind: "policy",
            vhost,
            name,
        }
    }

    pub(crate) fn exchange(vhost: &'a str, name: &'a str) -> ResourceName<'a> {
        ResourceName {
            kind: "exchange",
            vhost,
            name,
        }
    }
}

impl Display for ResourceName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} '{}' in vhost '{}'", self.kind, self.name, self.vhost)
    }
}

pub(crate) fn check_exchange(
    current: &ExchangeRecord,
    wanted: &ExchangeRecord,
) -> Result<(), ChangeError> {
    let thing = ResourceName::exchange(&current.vhost, &current.name);
    same(&thing, "type", &wanted.kind, &current.kind)?;
    same(&thing, "durable", wanted.durable, current.durable)?;
    same(
        &thing,
        "auto_delete",
        wanted.auto_delete,
        current.auto_delete,
    )?;
    same(&thing, "internal", wanted.internal, current.internal)?;
    let key = "alternate-exchange";
    same_argument(&thing, key, &wanted.arguments, &current.arguments)
}

pub(crate) fn check_queue(current: &QueueRecord, wanted: &QueueRecord) -> Result<(), ChangeError> {
    let thing = ResourceName::queue(&current.vhost, &current.name);
    if current.exclusive != wanted.exclusive {
        return Err(locked(&thing));
    }
    same(&thing, "durable", wanted.durable, current.durable)?;
    same(
        &thing,
        "auto_delete",
        wanted.auto_delete,
        current.auto_delete,
    )?;
    (current.kind.descriptor().arguments)
        .iter()
        .try_for_each(|key| match *key {
            "x-queue-type" => same_type(&thing, wanted, current),
            key => same_argument(&thing, key, &wanted.arguments, &current.arguments),
        })
}

/// The text of 405 for a queue of another connection.
pub(crate) fn locked(thing: &ResourceName<'_>) -> ChangeError {
    ChangeError::ResourceLocked(format!(
        "cannot obtain exclusive access to locked {thing}. It could be originally declared on another connection or \
         the exclusive property value does not match that of the original declaration."
    ))
}

fn inequivalent(thing: &ResourceName<'_>, key: &str, received: &str, current: &str) -> ChangeError {
    ChangeError::PreconditionFailed(format!(
        "inequivalent arg '{key}' for {thing}: received {received} but current is {current}"
    ))
}

fn same<T: PartialEq + Display>(
    thing: &ResourceName<'_>,
    key: &str,
    received: T,
    current: T,
) -> Result<(), ChangeError> {
    if received == current {
        return Ok(());
    }
    let quoted = |v: T| format!("'{v}'");
    Err(inequivalent(
        thing,
        key,
        &quoted(received),
        &quoted(current),
    ))
}

/// A queue may or may not say its type, and when it says it is compared as text before anyone asks whether there is such a type.
fn same_type(
    thing: &ResourceName<'_>,
    wanted: &QueueRecord,
    current: &QueueRecord,
) -> Result<(), ChangeError> {
    let (key, current) = ("x-queue-type", current.kind.name());
    match wanted.arguments.get(key) {
        None => same(thing, key, wanted.kind.name(), current),
        Some(Value::String(said) | Value::Binary(said)) if said == current.as_bytes() => Ok(()),
        Some(said) => Err(inequivalent(
            thing,
            key,
            &quoted(said),
            &format!("'{current}'"),
        )),
    }
}

fn same_argument(
    thing: &ResourceName<'_>,
    key: &str,
    received: &Table,
    current: &Table,
) -> Result<(), ChangeError> {
    let (received, current) = (received.get(key), current.get(key));
    let equal = match (received, current) {
        (None, None) => true,
        (Some(a), Some(b)) => equal(a, b),
        _ => false,
    };
    if equal {
        return Ok(());
    }
    // Two values are shown without their types, as RabbitMQ does.
    if let (Some(a), Some(b)) = (received, current) {
        return Err(inequivalent(thing, key, &quoted(a), &quoted(b)));
    }
    Err(inequivalent(thing, key, &show(received), &show(current)))
}

/// Numbers are equal whatever integers or floats they are, a timestamp is a number of seconds, and text is octets.
fn equal(a: &Value, b: &Value) -> bool {
    let whole = |v: &Value| match *v {
        Value::Timestamp(seconds) => Some(i128::from(seconds)),
        ref other => other.as_integer().map(i128::from),
    };
    let float = |v: &Value| match *v {
        Value::F32(v) => Some(f64::from(v)),
        Value::F64(v) => Some(v),
        _ => None,
    };
    if let (Value::String(a) | Value::Binary(a), Value::String(b) | Value::Binary(b)) = (a, b) {
        return a == b;
    }
    match (whole(a), whole(b), float(a), float(b)) {
        (Some(a), Some(b), ..) => a == b,
        (.., Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn show(value: Option<&Value>) -> String {
    match value {
        None => "none".into(),
        Some(v) => format!("the value '{}' of type '{}'", text(v), v.type_name()),
    }
}

/// One of two values; a void is shown as what is not there.
fn quoted(value: &Value) -> String {
    match value {
        Value::Void => "none".into(),
        value => format!("'{}'", text(value)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(octets) | Value::Binary(octets) => bare(octets),
        other => Term(other).to_string(),
    }
}
