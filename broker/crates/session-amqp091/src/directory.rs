//! What the session reads from the metadata tree, with RabbitMQ's rules and texts.

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

/// 403 unless the user has that right on the resource. The default exchange is `amq.default` here.
pub(crate) fn check(
    tree: &Tree,
    link: &ConnectionState,
    right: Right,
    kind: ResourceKind,
    resource: &str,
) -> MethodResult {
    let (kind, resource) = match (kind, resource) {
        (ResourceKind::Exchange, "") => ("exchange", "amq.default"),
        (ResourceKind::Exchange, given) => ("exchange", given),
        (ResourceKind::Queue, given) => ("queue", given),
    };
    if tree.permitted(&link.user, &link.vhost, right, resource) {
        return Ok(());
    }
    refuse!(
        AccessRefused,
        "{} access to {kind} '{resource}' in vhost '{}' refused for user '{}'",
        name(right),
        link.vhost,
        link.user
    )
}

/// 403 unless the user's topic permissions let this key through.
pub(crate) fn check_topic(
    tree: &Tree,
    link: &ConnectionState,
    right: Right,
    exchange: &ExchangeRecord,
    key: &str,
) -> MethodResult {
    if tree.topic_permitted(&link.user, &link.vhost, &exchange.name, right, key) {
        return Ok(());
    }
    refuse!(
        AccessRefused,
        "{} access to topic '{key}' in exchange '{}' in vhost '{}' refused for user '{}'",
        name(right),
        exchange.name,
        link.vhost,
        link.user
    )
}

/// 404 when it does not exist, 403 when it is internal. None: the default exchange.
pub(crate) fn exchange_to_publish<'t>(
    tree: &'t Tree,
    link: &ConnectionState,
    name: &str,
) -> MethodResult<Option<&'t ExchangeRecord>> {
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

pub(crate) fn no_exchange(link: &ConnectionState, name: &str) -> Failure {
    Failure::unknown("exchange", name, &link.vhost)
}

/// A queue to be used: 404 when it does not exist or its node is gone, 405 when it is another connection's own.
pub(crate) fn queue_for<'t>(
    broker: &'t dyn Broker,
    link: &ConnectionState,
    name: &str,
) -> MethodResult<&'t Arc<QueueRecord>> {
    let there = queue(broker.tree(), link, name);
    // Behind a reply address is no queue that anybody could see.
    let Some(record) = there.filter(|_| !is_reply_queue(name)) else {
        return Err(Failure::unknown("queue", name, &link.vhost));
    };
    check_owner(record, broker.id())?;
    check_home(broker, record)?;
    Ok(record)
}

/// 404 when the one node that has it cannot be reached, or has lost it.
pub(crate) fn check_home(broker: &dyn Broker, record: &QueueRecord) -> MethodResult {
    if let Some(why) = broker.tree().lost_reason(record) {
        refuse!(NotFound, "{why}");
    }
    match broker.home_out_of_reach(record) {
        None => Ok(()),
        Some(home) => refuse!(
            NotFound,
            "home node '{home}' of durable queue '{}' in vhost '{}' is down or inaccessible",
            record.name,
            record.vhost
        ),
    }
}

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

/// 406 for a type that this broker does not have: it ends the channel, as since RabbitMQ 3.13.
pub(crate) fn check_exchange_kind(kind: &str) -> MethodResult {
    match routing::Kind::from_name(kind) {
        Some(_) => Ok(()),
        None if kind.is_empty() => refuse!(PreconditionFailed, "invalid exchange type ''"),
        // Of words that its Erlang has an atom for, such as "foo", RabbitMQ says "invalid".
        None => refuse!(PreconditionFailed, "unknown exchange type '{kind}'"),
    }
}

fn name(right: Right) -> &'static str {
    match right {
        Right::Configure => "configure",
        Right::Write => "write",
        Right::Read => "read",
    }
}

/// As [`check`] for the right to write to an exchange, for every publish: the last verdict holds until the tree changes.
pub(crate) fn check_publish(
    tree: &Tree,
    link: &mut ConnectionState,
    exchange: &str,
) -> MethodResult {
    if let Some((applied, known)) = &link.writable
        && *applied == tree.applied()
        && **known == *exchange
    {
        return Ok(());
    }
    check(tree, link, Right::Write, ResourceKind::Exchange, exchange)?;
    link.writable = Some((tree.applied(), exchange.into()));
    Ok(())
}

pub(crate) fn exchange<'t>(
    tree: &'t Tree,
    link: &ConnectionState,
    name: &str,
) -> Option<&'t ExchangeRecord> {
    tree.exchange(&link.vhost, name).map(|record| &**record)
}

pub(crate) fn queue<'t>(
    tree: &'t Tree,
    link: &ConnectionState,
    name: &str,
) -> Option<&'t Arc<QueueRecord>> {
    tree.queue(&link.vhost, name)
}

pub(crate) fn has_tag(tree: &Tree, user: &str, tag: &str) -> bool {
    tree.user(user)
        .is_some_and(|record| record.tags.iter().any(|t| **t == *tag))
}

/// None: no such user, or no password to log in with.
pub(crate) fn password(tree: &Tree, user: &str) -> Option<auth::PasswordHash> {
    tree.user(user)?.password.clone()
}

pub(crate) fn user_exists(tree: &Tree, user: &str) -> bool {
    tree.user(user).is_some()
}
