//! The caller of an operation and its permissions.

use crate::error::{ErrorKind, OperationError, OperationResult, refuse};
use audit::{Refusals, RefusedPermission};
use ids::SessionId;
use metadata::{ExchangeRecord, Identity, Name, QueueRecord, Right, Tree, UserAccess};
use routing::is_direct_reply_name;
use std::sync::Arc;

/// A queue or exchange for permission checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// The queue with this name.
    Queue(&'a str),
    /// The exchange with this name. The default exchange is checked as `amq.default`.
    Exchange(&'a str),
}

impl Resource<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Resource::Queue(_) => "queue",
            Resource::Exchange(_) => "exchange",
        }
    }

    fn name(&self) -> &str {
        match self {
            Resource::Exchange("") => "amq.default",
            Resource::Queue(name) | Resource::Exchange(name) => name,
        }
    }
}

/// The identity that performs operations, and the metadata tree that they are checked against.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'t> {
    /// The tree of this node. It may lag behind the cluster.
    pub tree: &'t Tree,
    /// The name of the user.
    pub user: &'t str,
    /// The identity from an external backend. None: the metadata has the permissions.
    pub identity: Option<&'t Identity>,
    /// The vhost of the operation.
    pub vhost: &'t Name,
    /// The connection. None: the caller has none and owns no exclusive queue (HTTP API).
    pub session: Option<SessionId>,
    /// The caller has every permission (the operator, which a certificate identifies).
    pub is_operator: bool,
    /// Takes refused permissions for the audit log. None: they are not recorded here.
    pub refusals: Option<&'t Refusals>,
}

impl<'t> Caller<'t> {
    /// The permissions of the user.
    pub fn access(&self) -> UserAccess<'t> {
        self.tree.access_of(self.user, self.identity)
    }

    /// Checks that the user has at least one permission on a resource. The error names the permission to configure.
    pub fn check_any(&self, resource: Resource<'_>) -> OperationResult {
        let (vhost, name) = (self.vhost, resource.name());
        let permits = |right| self.access().permits(vhost, right, name);
        match permits(Right::Read) || permits(Right::Write) {
            true => Ok(()),
            false => self.check(Right::Configure, resource),
        }
    }

    /// Fails unless the user has this right on the resource.
    pub fn check(&self, right: Right, resource: Resource<'_>) -> OperationResult {
        let (user, vhost, name) = (self.user, self.vhost, resource.name());
        if self.is_operator || self.access().permits(vhost, right, name) {
            return Ok(());
        }
        let (permission, kind) = (right_name(right), resource.kind());
        let text = format!(
            "{permission} access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'"
        );
        self.note_refusal(permission, (kind, name), &text);
        Err(OperationError::new(ErrorKind::AccessRefused, text))
    }

    fn note_refusal(
        &self,
        permission: &'static str,
        (kind, name): (&'static str, &str),
        error: &str,
    ) {
        if let Some(refusals) = self.refusals {
            refusals.add(RefusedPermission {
                user: self.user.into(),
                vhost: self.vhost.clone(),
                kind,
                name: name.to_owned(),
                permission,
                error: error.to_owned(),
            });
        }
    }

    /// Fails unless the user's topic permissions allow this routing key. Exchanges other than topic exchanges have no
    /// topic permissions.
    pub fn check_topic(
        &self,
        right: Right,
        exchange: &ExchangeRecord,
        key: &str,
    ) -> OperationResult {
        let (user, vhost, name) = (self.user, self.vhost, &exchange.name);
        if self.is_operator
            || &*exchange.kind != "topic"
            || self.access().permits_topic(vhost, name, right, key)
        {
            return Ok(());
        }
        let permission = right_name(right);
        let text = format!(
            "{permission} access to topic '{key}' in exchange '{name}' in vhost '{vhost}' refused for user '{user}'"
        );
        self.note_refusal(permission, ("topic", key), &text);
        Err(OperationError::new(ErrorKind::AccessRefused, text))
    }

    /// The exchange with this name, if it exists. The default exchange has no record.
    pub fn exchange(&self, name: &str) -> Option<&'t ExchangeRecord> {
        self.tree.exchange(self.vhost, name).map(|record| &**record)
    }

    /// The queue with this name, if it exists.
    pub fn queue(&self, name: &str) -> Option<&'t Arc<QueueRecord>> {
        self.tree.queue(self.vhost, name)
    }

    /// The exchange to publish to; `None` is the default exchange. Fails if it does not exist or is internal. Does not
    /// check permissions, so that callers can cache [`Caller::check`].
    pub fn exchange_to_publish(&self, name: &str) -> OperationResult<Option<&'t ExchangeRecord>> {
        if name.is_empty() {
            return Ok(None);
        }
        let missing = || OperationError::missing("exchange", name, self.vhost);
        let record = self.exchange(name).ok_or_else(missing)?;
        if record.internal {
            refuse!(
                AccessRefused,
                "cannot publish to internal exchange '{name}' in vhost '{}'",
                self.vhost
            );
        }
        Ok(Some(record))
    }

    /// The queue to consume from, get from or purge. Fails if the user may not read it, it does not exist, or it is
    /// exclusive to another connection.
    pub fn queue_to_read(&self, name: &str) -> OperationResult<&'t Arc<QueueRecord>> {
        self.check(Right::Read, Resource::Queue(name))?;
        self.usable_queue(name)
    }

    /// The queue with this name. Fails if it does not exist, implements direct reply-to, or is exclusive to another
    /// connection.
    pub fn usable_queue(&self, name: &str) -> OperationResult<&'t Arc<QueueRecord>> {
        let record = self.queue(name).filter(|_| !is_direct_reply_name(name));
        let record = record.ok_or_else(|| OperationError::missing("queue", name, self.vhost))?;
        self.check_exclusive(record)?;
        Ok(record)
    }

    /// Fails if the queue is exclusive to another connection.
    pub fn check_exclusive(&self, record: &QueueRecord) -> OperationResult {
        match record.exclusive {
            Some(owner) if Some(owner) != self.session => refuse!(
                ResourceLocked,
                "cannot obtain exclusive access to locked queue '{}' in vhost '{}'. It could be originally declared on \
                 another connection or the exclusive property value does not match that of the original declaration.",
                record.name,
                record.vhost
            ),
            _ => Ok(()),
        }
    }

    /// Fails if the only copy of the queue is lost, or is on a node that cannot be reached: `unreachable_home`.
    pub fn check_available(
        &self,
        record: &QueueRecord,
        unreachable_home: Option<Name>,
    ) -> OperationResult {
        if let Some(why) = self.tree.lost_reason(record) {
            refuse!(NotFound, "{why}");
        }
        match unreachable_home {
            None => Ok(()),
            Some(home) => refuse!(
                NotFound,
                "home node '{home}' of durable queue '{}' in vhost '{}' is down or inaccessible",
                record.name,
                record.vhost
            ),
        }
    }
}

fn right_name(right: Right) -> &'static str {
    match right {
        Right::Configure => "configure",
        Right::Write => "write",
        Right::Read => "read",
    }
}
