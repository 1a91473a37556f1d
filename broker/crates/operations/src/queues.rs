//! Declaration and deletion of queues.

use crate::access::{Caller, Resource};
use crate::error::{OperationResult, refuse};
use crate::exchanges::refuse_reserved;
use ids::QueueId;
use message::Table;
use metadata::{Change, Name, QueueRecord, Right};
use queue::RequestBody;
use routing::is_direct_reply_name;
use std::sync::Arc;

/// The properties of a queue to declare.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueDeclaration {
    /// The name. The caller generates it if `is_server_named`.
    pub name: Name,
    /// The client left the name to the server.
    pub is_server_named: bool,
    /// The queue survives a restart of its node.
    pub durable: bool,
    /// Only this connection may use the queue, and the queue ends with it.
    pub exclusive: bool,
    /// The queue is deleted when its last consumer ends.
    pub auto_delete: bool,
    /// Optional arguments (`x-...`).
    pub arguments: Table,
}

/// The remaining work of a declaration.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueDeclarationPlan {
    /// An equivalent queue exists. Check [`Caller::check_available`] before it is used.
    Exists(Arc<QueueRecord>),
    /// The queue to propose with [`Change::DeclareQueue`], after its members have been chosen.
    Propose(QueueRecord),
}

/// The conditions of a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDeletion {
    /// Refuse if the queue has consumers.
    pub if_unused: bool,
    /// Refuse if the queue has messages.
    pub if_empty: bool,
}

/// The remaining work of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueDeletionPlan {
    /// The queue does not exist, which is a success.
    Done,
    /// The queue's only copy is lost: propose the change at once.
    Propose(Change),
    /// Send the request to the queue, which checks the conditions and stops, then propose the change.
    AskQueue {
        /// The queue. Check [`Caller::check_available`] first.
        record: Arc<QueueRecord>,
        /// The request.
        request: RequestBody,
        /// The change.
        change: Change,
    },
}

impl Caller<'_> {
    /// Plans the declaration of a queue.
    pub fn plan_queue_declaration(
        &self,
        declaration: QueueDeclaration,
    ) -> OperationResult<QueueDeclarationPlan> {
        if !declaration.is_server_named {
            refuse_reserved("queue", &declaration.name)?;
        }
        self.check(Right::Configure, Resource::Queue(&declaration.name))?;
        let record = self.queue_record(declaration)?;
        let existing = self.queue(&record.name);
        // A queue of another connection may be deleted earlier in the log, so only the log decides
        // whether it is locked.
        let locked = existing.and_then(|queue| self.check_exclusive(queue).err());
        match existing.filter(|_| locked.is_none()) {
            Some(existing) if is_equivalent(existing, &record) => {
                return Ok(QueueDeclarationPlan::Exists(existing.clone()));
            }
            Some(_) => {}
            None => self
                .check_dead_lettering(&record)
                .map_err(|error| locked.unwrap_or(error))?,
        }
        Ok(QueueDeclarationPlan::Propose(record))
    }

    /// The record of a queue to declare, without members. Fails if its type is unknown or does not support the
    /// declaration. Checks no permissions.
    pub fn queue_record(&self, declaration: QueueDeclaration) -> OperationResult<QueueRecord> {
        let QueueDeclaration {
            name,
            is_server_named,
            durable,
            exclusive,
            auto_delete,
            arguments,
        } = declaration;
        debug_assert!(
            !exclusive || self.session.is_some(),
            "an exclusive queue has an owner"
        );
        let is_persistent = durable && !exclusive && !auto_delete;
        let arguments = self
            .tree
            .with_default_type(self.vhost, is_persistent, arguments);
        let kind = self.tree.queue_kind(self.vhost, &name, &arguments)?;
        if is_server_named && !kind.descriptor().server_named {
            refuse!(
                PreconditionFailed,
                "Cannot declare a server-named queue for type {}",
                kind.module()
            );
        }
        Ok(QueueRecord {
            id: QueueId::default(),
            vhost: self.vhost.clone(),
            name,
            kind,
            durable: durable && !exclusive,
            auto_delete,
            exclusive: self.session.filter(|_| exclusive),
            arguments,
            members: Vec::new(),
            declared_by: self.user.into(),
        })
    }

    /// Dead-lettering requires read permission on the queue and write permission on the exchange.
    fn check_dead_lettering(&self, queue: &QueueRecord) -> OperationResult {
        let Some(target) = queue.dead_letter_exchange()? else {
            return Ok(());
        };
        self.check(Right::Read, Resource::Queue(&queue.name))?;
        self.check(Right::Write, Resource::Exchange(target))
    }

    /// Plans the deletion of a queue according to a tree that is at least as new as the request.
    pub fn plan_queue_deletion(
        &self,
        name: &str,
        deletion: QueueDeletion,
    ) -> OperationResult<QueueDeletionPlan> {
        self.check(Right::Configure, Resource::Queue(name))?;
        let Some(record) = self.queue(name).filter(|_| !is_direct_reply_name(name)) else {
            return Ok(QueueDeletionPlan::Done);
        };
        self.check_exclusive(record)?;
        let change = Change::DeleteQueue {
            vhost: record.vhost.clone(),
            name: record.name.clone(),
            id: Some(record.id),
        };
        if self.tree.lost_on(record.id).is_some() {
            // Its data is lost and no owner can answer.
            return Ok(QueueDeletionPlan::Propose(change));
        }
        let QueueDeletion {
            if_unused,
            if_empty,
        } = deletion;
        Ok(QueueDeletionPlan::AskQueue {
            record: record.clone(),
            request: RequestBody::Delete {
                if_unused,
                if_empty,
            },
            change,
        })
    }
}

fn is_equivalent(existing: &QueueRecord, requested: &QueueRecord) -> bool {
    existing.kind == requested.kind
        && existing.durable == requested.durable
        && existing.auto_delete == requested.auto_delete
        && existing.exclusive == requested.exclusive
        && existing.arguments == requested.arguments
}
