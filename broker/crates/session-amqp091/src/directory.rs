//! What the session reads from the metadata tree, with RabbitMQ's rules and texts.

use crate::failure::{Code, Failure, Outcome, refuse};
use crate::link::Link;
use message::Table;
use metadata::{ExchangeRecord, QueueId, QueueRecord, SessionId, Tree};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Configure,
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exchange,
    Queue,
}

impl Right {
    fn name(self) -> &'static str {
        match self {
            Right::Configure => "configure",
            Right::Write => "write",
            Right::Read => "read",
        }
    }
}

/// 403 unless the user has that right on the resource. The default exchange is `amq.default` here.
pub(crate) fn check(tree: &Tree, link: &Link, right: Right, kind: Kind, name: &str) -> Outcome {
    let (kind, name) = match (kind, name) {
        (Kind::Exchange, "") => ("exchange", "amq.default"),
        (Kind::Exchange, name) => ("exchange", name),
        (Kind::Queue, name) => ("queue", name),
    };
    if permitted(tree, link, right, name) {
        return Ok(());
    }
    refuse!(
        AccessRefused,
        "{} access to {kind} '{name}' in vhost '{}' refused for user '{}'",
        right.name(),
        link.vhost,
        link.user
    )
}

/// 403 unless the user's topic permissions let this key through.
pub(crate) fn check_topic(
    tree: &Tree,
    link: &Link,
    right: Right,
    exchange: &ExchangeRecord,
    key: &str,
) -> Outcome {
    if topic_permitted(tree, link, right, &exchange.name, key) {
        return Ok(());
    }
    refuse!(
        AccessRefused,
        "{} access to topic '{key}' in exchange '{}' in vhost '{}' refused for user '{}'",
        right.name(),
        exchange.name,
        link.vhost,
        link.user
    )
}

/// 404 when it does not exist, 403 when it is internal. None: the default exchange.
pub(crate) fn exchange_to_publish<'t>(
    tree: &'t Tree,
    link: &Link,
    name: &str,
) -> Outcome<Option<&'t ExchangeRecord>> {
    if name.is_empty() {
        return Ok(None);
    }
    let record = exchange(tree, link, name).ok_or_else(|| no_exchange(link, name))?;
    if record.internal {
        refuse!(
            AccessRefused,
            "cannot publish to internal exchange '{name}' in vhost '{}'",
            link.vhost
        );
    }
    Ok(Some(record))
}

pub(crate) fn no_exchange(link: &Link, name: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("no exchange '{name}' in vhost '{}'", link.vhost),
    )
}

/// A queue to be used: 404 when it does not exist, 405 when it is another connection's own.
pub(crate) fn queue_for<'t>(
    tree: &'t Tree,
    link: &Link,
    name: &str,
    session: SessionId,
) -> Outcome<&'t Arc<QueueRecord>> {
    let Some(record) = queue(tree, link, name) else {
        refuse!(NotFound, "no queue '{name}' in vhost '{}'", link.vhost)
    };
    check_owner(record, session)?;
    Ok(record)
}

pub(crate) fn check_owner(record: &QueueRecord, session: SessionId) -> Outcome {
    match record.exclusive {
        Some(owner) if owner != session => refuse!(
            ResourceLocked,
            "cannot obtain exclusive access to locked queue '{}' in vhost '{}'. It could be originally declared on \
             another connection or the exclusive property value does not match that of the original declaration.",
            record.name,
            record.vhost
        ),
        _ => Ok(()),
    }
}

/// 503 for a type that this broker does not have.
pub(crate) fn check_exchange_kind(kind: &str) -> Outcome {
    match kind {
        "direct" | "fanout" | "topic" | "headers" => Ok(()),
        _ => refuse!(CommandInvalid, "unknown exchange type '{kind}'"),
    }
}
