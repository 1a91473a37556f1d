//! The connection as the caller of operations, and permission checks.

use crate::connection_state::ConnectionState;
use crate::failure::MethodResult;
use metadata::{QueueRecord, Right};
use operations::{Caller, Resource};
use session::Broker;
use std::sync::Arc;

/// The connection's user in its vhost, checked against this tree.
pub(crate) fn caller<'a>(broker: &'a dyn Broker, conn: &'a ConnectionState) -> Caller<'a> {
    Caller {
        tree: broker.tree(),
        user: &conn.user,
        identity: conn.identity.as_deref(),
        vhost: &conn.vhost,
        session: Some(broker.id()),
        is_operator: false,
        refusals: broker.refusals(),
    }
}

/// Looks up a queue to use: 404 if it does not exist or its node is down, 405 if it is exclusive to
/// another connection.
pub(crate) fn available_queue<'a>(
    broker: &'a dyn Broker,
    conn: &'a ConnectionState,
    name: &str,
) -> MethodResult<&'a Arc<QueueRecord>> {
    let record = caller(broker, conn).usable_queue(name)?;
    check_available(broker, conn, record)?;
    Ok(record)
}

/// As [`available_queue`], after the check of the read permission.
pub(crate) fn readable_queue<'a>(
    broker: &'a dyn Broker,
    conn: &'a ConnectionState,
    name: &str,
) -> MethodResult<&'a Arc<QueueRecord>> {
    let record = caller(broker, conn).queue_to_read(name)?;
    check_available(broker, conn, record)?;
    Ok(record)
}

/// Returns 404 if the only node that hosts the queue is unreachable or has lost it.
pub(crate) fn check_available(
    broker: &dyn Broker,
    conn: &ConnectionState,
    record: &QueueRecord,
) -> MethodResult {
    Ok(caller(broker, conn).check_available(record, broker.unreachable_home(record))?)
}

/// Checks the write permission on the exchange of a publish. The last positive result is cached
/// until the tree changes.
pub(crate) fn check_publish(
    broker: &dyn Broker,
    conn: &mut ConnectionState,
    exchange: &str,
) -> MethodResult {
    let applied = broker.tree().applied();
    if let Some((at, exchange_name)) = &conn.writable
        && *at == applied
        && **exchange_name == *exchange
    {
        return Ok(());
    }
    caller(broker, conn).check(Right::Write, Resource::Exchange(exchange))?;
    conn.writable = Some((applied, exchange.into()));
    Ok(())
}
