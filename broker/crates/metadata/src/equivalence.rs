//! Repeated declarations: equal to the existing object, or refused with the error text that clients match on.

use crate::arguments::{is_default_type, is_hidden};
use crate::{ChangeError, ExchangeRecord, QueueRecord, Tree};
use message::{Table, Term, Value, bare};
use std::fmt::Display;

/// A resource as error texts name it: `queue 'q' in vhost '/'`.
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
    requested: &ExchangeRecord,
) -> Result<(), ChangeError> {
    let resource = ResourceName::exchange(&current.vhost, &current.name);
    check_equal(&resource, "type", &requested.kind, &current.kind)?;
    check_equal(&resource, "durable", requested.durable, current.durable)?;
    check_equal(
        &resource,
        "auto_delete",
        requested.auto_delete,
        current.auto_delete,
    )?;
    check_equal(&resource, "internal", requested.internal, current.internal)?;
    let key = "alternate-exchange";
    check_equal_argument(&resource, key, &requested.arguments, &current.arguments)
}

pub(crate) fn check_queue(
    tree: &Tree,
    current: &QueueRecord,
    requested: &QueueRecord,
) -> Result<(), ChangeError> {
    let resource = ResourceName::queue(&current.vhost, &current.name);
    if current.exclusive != requested.exclusive {
        return Err(locked_error(&resource));
    }
    check_equal(&resource, "durable", requested.durable, current.durable)?;
    check_equal(
        &resource,
        "auto_delete",
        requested.auto_delete,
        current.auto_delete,
    )?;
    (current.kind.descriptor().arguments)
        .iter()
        .filter(|key| !is_hidden(tree, key))
        .try_for_each(|key| match *key {
            "x-queue-type" => check_equal_type(tree, &resource, requested, current),
            key => check_equal_argument(&resource, key, &requested.arguments, &current.arguments),
        })
}

/// The 405 error for a queue that belongs to another connection.
pub(crate) fn locked_error(resource: &ResourceName<'_>) -> ChangeError {
    ChangeError::ResourceLocked(format!(
        "cannot obtain exclusive access to locked {resource}. It could be originally declared on another connection or \
         the exclusive property value does not match that of the original declaration."
    ))
}

fn inequivalent_error(
    resource: &ResourceName<'_>,
    key: &str,
    received: &str,
    current: &str,
) -> ChangeError {
    ChangeError::PreconditionFailed(format!(
        "inequivalent arg '{key}' for {resource}: received {received} but current is {current}"
    ))
}

fn check_equal<T: PartialEq + Display>(
    resource: &ResourceName<'_>,
    key: &str,
    received: T,
    current: T,
) -> Result<(), ChangeError> {
    if received == current {
        return Ok(());
    }
    let quoted = |v: T| format!("'{v}'");
    Err(inequivalent_error(
        resource,
        key,
        &quoted(received),
        &quoted(current),
    ))
}

/// Compares the queue type. A declaration without `x-queue-type` has the default type. Otherwise the argument is
/// compared as text, even if no such type exists.
fn check_equal_type(
    tree: &Tree,
    resource: &ResourceName<'_>,
    requested: &QueueRecord,
    current: &QueueRecord,
) -> Result<(), ChangeError> {
    let (key, current) = ("x-queue-type", current.kind.name());
    let argument = requested.arguments.get(key);
    match argument.filter(|value| !is_default_type(tree, value)) {
        None => check_equal(resource, key, requested.kind.name(), current),
        Some(Value::String(requested_type) | Value::Binary(requested_type))
            if requested_type == current.as_bytes() =>
        {
            Ok(())
        }
        Some(requested_type) => Err(inequivalent_error(
            resource,
            key,
            &quoted(requested_type),
            &format!("'{current}'"),
        )),
    }
}

fn check_equal_argument(
    resource: &ResourceName<'_>,
    key: &str,
    received: &Table,
    current: &Table,
) -> Result<(), ChangeError> {
    let (received, current) = (received.get(key), current.get(key));
    let is_equal = match (received, current) {
        (None, None) => true,
        (Some(a), Some(b)) => are_equal(a, b),
        _ => false,
    };
    if is_equal {
        return Ok(());
    }
    // Two values are shown without their types, as RabbitMQ does.
    if let (Some(a), Some(b)) = (received, current) {
        return Err(inequivalent_error(resource, key, &quoted(a), &quoted(b)));
    }
    Err(inequivalent_error(
        resource,
        key,
        &describe(received),
        &describe(current),
    ))
}

/// Numbers are equal regardless of their integer or float type, a timestamp counts as a number of seconds, and strings
/// are compared as bytes.
fn are_equal(a: &Value, b: &Value) -> bool {
    let as_integer_value = |v: &Value| match *v {
        Value::Timestamp(seconds) => Some(i128::from(seconds)),
        ref other => other.as_integer().map(i128::from),
    };
    let as_float = |v: &Value| match *v {
        Value::F32(v) => Some(f64::from(v)),
        Value::F64(v) => Some(v),
        _ => None,
    };
    if let (Value::String(a) | Value::Binary(a), Value::String(b) | Value::Binary(b)) = (a, b) {
        return a == b;
    }
    match (
        as_integer_value(a),
        as_integer_value(b),
        as_float(a),
        as_float(b),
    ) {
        (Some(a), Some(b), ..) => a == b,
        (.., Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn describe(value: Option<&Value>) -> String {
    match value {
        None => "none".into(),
        Some(v) => format!("the value '{}' of type '{}'", text(v), v.type_name()),
    }
}

/// A value in an error text. A void value is shown like a missing one.
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
