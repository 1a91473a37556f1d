//! Declaring again what is there: equal, or refused with the text that clients match on.

use crate::arguments::known_arguments;
use crate::{ExchangeRecord, QueueRecord, Refused};
use message::{Table, Value};
use std::fmt::Display;

/// What error texts call a queue or exchange: `queue 'q' in vhost '/'`.
pub(crate) struct Thing<'a> {
    kind: &'static str,
    vhost: &'a str,
    name: &'a str,
}

impl<'a> Thing<'a> {
    pub(crate) fn queue(vhost: &'a str, name: &'a str) -> Thing<'a> {
        Thing {
            kind: "queue",
            vhost,
            name,
        }
    }

    pub(crate) fn policy(vhost: &'a str, name: &'a str) -> Thing<'a> {
        Thing {
            kind: "policy",
            vhost,
            name,
        }
    }

    pub(crate) fn exchange(vhost: &'a str, name: &'a str) -> Thing<'a> {
        Thing {
            kind: "exchange",
            vhost,
            name,
        }
    }
}

impl Display for Thing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} '{}' in vhost '{}'", self.kind, self.name, self.vhost)
    }
}

pub(crate) fn check_exchange(
    current: &ExchangeRecord,
    wanted: &ExchangeRecord,
) -> Result<(), Refused> {
    let thing = Thing::exchange(&current.vhost, &current.name);
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

pub(crate) fn check_queue(current: &QueueRecord, wanted: &QueueRecord) -> Result<(), Refused> {
    let thing = Thing::queue(&current.vhost, &current.name);
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
    known_arguments(current.kind)
        .iter()
        .try_for_each(|key| match *key {
            // A queue may or may not say so.
            "x-queue-type" => same(&thing, key, wanted.kind.name(), current.kind.name()),
            // RabbitMQ does not look at it.
            "x-consumer-timeout" => Ok(()),
            key => same_argument(&thing, key, &wanted.arguments, &current.arguments),
        })
}

/// The text of 405 for a queue of another connection.
pub(crate) fn locked(thing: &Thing<'_>) -> Refused {
    Refused::ResourceLocked(format!(
        "cannot obtain exclusive access to locked {thing}. It could be originally declared on another connection or \
         the exclusive property value does not match that of the original declaration."
    ))
}

fn inequivalent(thing: &Thing<'_>, key: &str, received: &str, current: &str) -> Refused {
    Refused::PreconditionFailed(format!(
        "inequivalent arg '{key}' for {thing}: received {received} but current is {current}"
    ))
}

fn same<T: PartialEq + Display>(
    thing: &Thing<'_>,
    key: &str,
    received: T,
    current: T,
) -> Result<(), Refused> {
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

fn same_argument(
    thing: &Thing<'_>,
    key: &str,
    received: &Table,
    current: &Table,
) -> Result<(), Refused> {
    let (received, current) = (received.get(key), current.get(key));
    let equal = match (received, current) {
        (None, None) => true,
        (Some(a), Some(b)) => equal(a, b),
        _ => false,
    };
    if equal {
        return Ok(());
    }
    // Two values are shown bare, as RabbitMQ does, whatever their types.
    if let (Some(a), Some(b)) = (received, current) {
        let quoted = |v: &Value| format!("'{}'", text(v));
        return Err(inequivalent(thing, key, &quoted(a), &quoted(b)));
    }
    Err(inequivalent(thing, key, &show(received), &show(current)))
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_integer(), b.as_integer()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn show(value: Option<&Value>) -> String {
    match value {
        None => "none".into(),
        Some(v) => format!("the value '{}' of type '{}'", text(v), v.type_name()),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(s) | Value::Binary(s) => String::from_utf8_lossy(s).into_owned(),
        Value::Bool(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Timestamp(v) => v.to_string(),
        Value::Void => "undefined".into(),
        Value::Decimal { scale, value } => format!("{{{scale},{value}}}"),
        Value::Array(_) => "[...]".into(),
        Value::Table(_) => "{...}".into(),
        other => other
            .as_integer()
            .map_or_else(String::new, |v| v.to_string()),
    }
}
