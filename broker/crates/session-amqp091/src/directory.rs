//! Lookups and permission checks in the metadata tree, with RabbitMQ's rules and error texts.

use crate::connection_state::ConnectionState;
use crate::failure::{Failure, MethodResult, refuse};
use crate::replies::is_reply_queue;
use metadata::{ExchangeRecord, QueueRecord, Right, SessionId, Tree};
use session::Broker;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceKind {
    Exchange,
    Queue,
}

/// Returns 403 unless the user has this right on the resource. The default exchange is checked as
/// `amq.default`.
pub(crate) fn check(
    tree: &Tree,
    conn: &ConnectionState,
    right: Right,
    kind: ResourceKind,
    resource: &str,
) -> MethodResult {
    let (kind, resource) = match (kind, resource) {
        (ResourceKind::Exchange, "") => ("exchange", "amq.default"),
        (ResourceKind::Exchange, resource) => ("exchange", resource),
        (ResourceKind::Queue, resource) => ("queue", resource),
    };
    if tree.permitted(&conn.user, &conn.vhost, right, resource) {
        return Ok(());
    }
    refuse!(
        AccessRefused,
        "{} access to {kind} '{resource}' in vhost '{}' refused for user '{}'",
        right_name(right),
        conn.vhost,
        conn.user
    )
}

/// Returns 403 unless the user's topic permissions allow this routing key.
pub(crate) fn check_topic(
    tree: &Tree,
    conn: &ConnectionState,
    right: Right,
    exchange: &ExchangeRecord,
    key: &str,
) -> MethodResult {
    if tree.topic_permitted(&conn.user, &conn.vhost, &exchange.name, right, key) {
        return Ok(());
    }
    refuse!(
        AccessRefused,
        "{} access to topic '{key}' in exchange '{}' in vhost '{}' refused for user '{}'",
        right_name(right),
        exchange.name,
        conn.vhost,
        conn.user
    )
}

/// Looks up an exchange for publishing: 404 if it does not exist, 403 if it is internal. None is
/// the default exchange.
pub(crate) fn exchange_to_publish<'t>(
    tree: &'t Tree,
    conn: &ConnectionState,
    name: &str,
) -> MethodResult<Option<&'t ExchangeRecord>> {
    if name.is_empty() {
        return Ok(None);
    }
    let record = exchange(tree, conn, name).ok_or_else(|| no_exchange(conn, name))?;
    if record.internal {
        refuse!(
            AccessRefused,
            "cannot publish to internal exchange '{name}' in vhost '{}'",
            conn.vhost
        );
    }
    Ok(Some(record))
}

pub(crate) fn no_exchange(conn: &ConnectionState, name: &str) -> Failure {
    Failure::unknown("exchange", name, &conn.vhost)
}

/// Looks up a queue to use: 404 if it does not exist or its node is down, 405 if it is exclusive to
/// another connection.
pub(crate) fn queue_for<'t>(
    broker: &'t dyn Broker,
    conn: &ConnectionState,
    name: &str,
) -> MethodResult<&'t Arc<QueueRecord>> {
    let record = queue(broker.tree(), conn, name);
    // Clients must not use the queue behind a direct reply-to address.
    let Some(record) = record.filter(|_| !is_reply_queue(name)) else {
        return Err(Failure::unknown("queue", name, &conn.vhost));
    };
    check_owner(record, broker.id())?;
    check_home(broker, record)?;
    Ok(record)
}

/// Returns 404 if the only node that hosts the queue is unreachable or has lost it.
pub(crate) fn check_home(broker: &dyn Broker, record: &QueueRecord) -> MethodResult {
    if let Some(why) = broker.tree().lost_reason(record) {
        refuse!(NotFound, "{why}");
    }
    match broker.unreachable_home(record) {
        None => Ok(()),
        Some(home) => refuse!(
            NotFound,
            "home node '{home}' of durable queue '{}' in vhost '{}' is down or inaccessible",
            record.name,
            record.vhost
        ),
    }
}

/// Returns 405 if the queue is exclusive to another connection.
pub(crate) fn check_owner(record: &QueueRecord, session: SessionId) -> MethodResult {
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

/// Returns 406, which closes the channel, for an unknown exchange type, as RabbitMQ does since
/// 3.13.
pub(crate) fn check_exchange_kind(kind: &str) -> MethodResult {
    match routing::Kind::from_name(kind) {
        Some(_) => Ok(()),
        None if kind.is_empty() => refuse!(PreconditionFailed, "invalid exchange type ''"),
        // RabbitMQ says "invalid" instead for types that exist as Erlang atoms, such as "foo".
        None => refuse!(PreconditionFailed, "unknown exchange type '{kind}'"),
    }
}

fn right_name(right: Right) -> &'static str {
    match right {
        Right::Configure => "configure",
        Right::Write => "write",
        Right::Read => "read",
    }
}

/// As [`check`] for the write permission of every publish. The last positive result is cached until
/// the tree changes.
pub(crate) fn check_publish(
    tree: &Tree,
    conn: &mut ConnectionState,
    exchange: &str,
) -> MethodResult {
    if let Some((applied, exchange_name)) = &conn.writable
        && *applied == tree.applied()
        && **exchange_name == *exchange
    {
        return Ok(());
    }
    check(tree, conn, Right::Write, ResourceKind::Exchange, exchange)?;
    conn.writable = Some((tree.applied(), exchange.into()));
    Ok(())
}

pub(crate) fn exchange<'t>(
    tree: &'t Tree,
    conn: &ConnectionState,
    name: &str,
) -> Option<&'t ExchangeRecord> {
    tree.exchange(&conn.vhost, name).map(|record| &**record)
}

pub(crate) fn queue<'t>(
    tree: &'t Tree,
    conn: &ConnectionState,
    name: &str,
) -> Option<&'t Arc<QueueRecord>> {
    tree.queue(&conn.vhost, name)
}

pub(crate) fn has_tag(tree: &Tree, user: &str, tag: &str) -> bool {
    tree.user(user)
        .is_some_and(|record| record.tags.iter().any(|t| **t == *tag))
}
