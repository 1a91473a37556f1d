//! Declaration and deletion of queues, and queues that end with their session or node.

use crate::apply::{check_name, no_vhost};
use crate::arguments::{check_queue_arguments, queue_kind};
use crate::equivalence::{ResourceName, check_queue};
use crate::tree::{Queue, TreeEvent};
use crate::{
    ChangeError, ChangeResult, Name, QueueId, QueueRecord, QueueType, SessionId, Tree, limits,
};
use env::{Incarnation, NodeId};
use ids::Replication;
use message::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

const EXPIRES: &str = "x-expires";

impl Tree {
    pub(crate) fn declare_queue(
        &mut self,
        index: u64,
        requested: &QueueRecord,
    ) -> Result<ChangeResult, ChangeError> {
        if !self.vhost_exists(&requested.vhost) {
            return Err(no_vhost(&requested.vhost));
        }
        check_name("queue", &requested.name)?;
        let mut record = requested.clone();
        // Compared before its arguments are checked: an existing queue is compared with any arguments.
        if let Some(existing) = self.queue(&requested.vhost, &requested.name) {
            self.check_not_lost(existing)?;
            check_queue(self, existing, &record)?;
            return Ok(ChangeResult::Queue {
                record: existing.clone(),
                created: false,
            });
        }
        self.check_declaration(&mut record)?;
        self.check_queue_limit(&record.vhost, &record.name)?;
        record.id = QueueId(index);
        record.members = self.checked_members(&record)?;
        if let Some(session) = record.exclusive
            && self.ended.get(&session.node) >= Some(&session.incarnation)
        {
            return Err(ChangeError::ResourceLocked(
                "the connection that declares the exclusive queue is gone".into(),
            ));
        }
        if let Some(user) = self.user(&record.declared_by) {
            record.declared_by = user.name.clone();
        }
        let record = self.insert_queue(record);
        self.record_placement(&record, &[]);
        self.events.push(TreeEvent::QueueAdded(record.clone()));
        Ok(ChangeResult::Queue {
            record,
            created: true,
        })
    }

    /// Checks the properties and arguments of a new queue, in general and for its type.
    fn check_declaration(&self, record: &mut QueueRecord) -> Result<(), ChangeError> {
        let (vhost, name) = (record.vhost.clone(), record.name.clone());
        let resource = ResourceName::queue(&vhost, &name);
        if record.arguments.get("x-queue-type").is_none() && record.kind != QueueType::default() {
            // The default queue type was applied. The record shows it like a type that the client set.
            (record.arguments).set("x-queue-type", Value::from(record.kind.name()));
        }
        let declared_kind = queue_kind(self, &vhost, &name, &record.arguments)?;
        if declared_kind != record.kind {
            return Err(ChangeError::Invalid(format!(
                "{resource} says type {} in its arguments and is declared as {}",
                declared_kind.name(),
                record.kind.name()
            )));
        }
        if let Some(feature) = record.kind.descriptor().feature
            && !self.feature_enabled(feature)
        {
            return Err(ChangeError::PreconditionFailed(format!(
                "{resource} of queue type {} needs the feature flag '{feature}': enable it when all nodes run a version \
                 that knows it",
                record.kind.module()
            )));
        }
        check_queue_arguments(self, &resource, record.kind, &record.arguments)?;
        if record.declared_by.len() > limits::NAME_BYTES {
            return Err(ChangeError::Invalid("the user's name is too long".into()));
        }
        if let Some(property) = record.unsupported_property() {
            return Err(ChangeError::PreconditionFailed(format!(
                "invalid property '{property}' for {resource}"
            )));
        }
        Ok(())
    }

    /// The members that are in the cluster, without duplicates. One for a classic queue.
    fn checked_members(&self, record: &QueueRecord) -> Result<Vec<NodeId>, ChangeError> {
        let mut members: Vec<NodeId> = Vec::new();
        for id in &record.members {
            if self.nodes.contains_key(id) && !members.contains(id) {
                members.push(*id);
            }
        }
        members.truncate(match record.kind.descriptor().replication {
            Replication::None => 1,
            Replication::Raft => limits::MEMBERS,
        });
        if members.is_empty() {
            return Err(ChangeError::Unavailable(format!(
                "no node of the cluster can hold {}",
                ResourceName::queue(&record.vhost, &record.name)
            )));
        }
        Ok(members)
    }

    pub(crate) fn insert_queue(&mut self, mut record: QueueRecord) -> Arc<QueueRecord> {
        let mut effective = Default::default();
        if let Some(vhost) = self.vhosts.get_mut(&record.vhost) {
            record.vhost = vhost.record.name.clone();
            effective = vhost.effective_of_queue(record.kind, &record.name);
            vhost.queues.insert(record.name.clone(), record.id);
        }
        if let Some(session) = record.exclusive {
            self.exclusive.entry(session).or_default().insert(record.id);
        }
        if let (false, Some(node)) = (record.durable, record.members.first()) {
            self.transient.entry(*node).or_default().insert(record.id);
        }
        self.member_counts.add(&record);
        self.deduplicating += usize::from(record.deduplication_window_ms().is_some());
        self.grouping += usize::from(record.declares_message_groups());
        let record = Arc::new(record);
        let queue = Queue {
            record: record.clone(),
            effective,
            bound: BTreeSet::new(),
        };
        self.queue_ids.insert(record.id);
        self.queues.insert(record.id, queue);
        record
    }

    /// Replaces `x-expires` of a queue. No effect if the queue does not exist.
    pub(crate) fn set_queue_expires(
        &mut self,
        id: QueueId,
        expires_ms: Option<u64>,
    ) -> Result<ChangeResult, ChangeError> {
        let Some(queue) = self.queues.get(&id) else {
            return Ok(ChangeResult::Unchanged);
        };
        let mut record = QueueRecord::clone(&queue.record);
        record.arguments.0.retain(|(key, _)| &**key != EXPIRES);
        if let Some(ms) = expires_ms {
            let ms = i64::try_from(ms).unwrap_or(i64::MAX);
            record.arguments.set(EXPIRES, Value::I64(ms));
        }
        let resource = ResourceName::queue(&record.vhost, &record.name);
        check_queue_arguments(self, &resource, record.kind, &record.arguments)?;
        if record == *queue.record {
            return Ok(ChangeResult::Unchanged);
        }
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.record = Arc::new(record);
        }
        self.events.push(TreeEvent::PolicyChanged(vec![id]));
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn delete_queue(
        &mut self,
        vhost: &Name,
        name: &Name,
        id: Option<QueueId>,
    ) -> Result<ChangeResult, ChangeError> {
        let existing = self.queue(vhost, name).map(|q| q.id);
        match existing {
            Some(existing) if id.is_none_or(|id| id == existing) => {
                self.remove_queue(existing);
                Ok(ChangeResult::Changed)
            }
            _ => Ok(ChangeResult::Unchanged),
        }
    }

    /// Removes a queue, its bindings, and auto-delete exchanges that lose their last binding with it.
    pub(crate) fn remove_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queues.remove(&id) else {
            return;
        };
        self.queue_ids.remove(&id);
        let record = queue.record;
        self.member_counts.remove(&record);
        self.deduplicating -= usize::from(record.deduplication_window_ms().is_some());
        self.grouping -= usize::from(record.declares_message_groups());
        self.lost.remove(&id);
        if let Some(vhost) = self.vhosts.get_mut(&record.vhost) {
            vhost.queues.remove(&record.name);
        }
        if let Some(session) = record.exclusive
            && let Some(session_queues) = self.exclusive.get_mut(&session)
        {
            session_queues.remove(&id);
            if session_queues.is_empty() {
                self.exclusive.remove(&session);
            }
        }
        if let (false, Some(node)) = (record.durable, record.members.first())
            && let Some(node_queues) = self.transient.get_mut(node)
        {
            node_queues.remove(&id);
            if node_queues.is_empty() {
                self.transient.remove(node);
            }
        }
        self.remove_incoming_bindings(&record.vhost, queue.bound);
        self.events.push(TreeEvent::QueueRemoved(record));
    }

    fn remove_queues(&mut self, ids: impl IntoIterator<Item = QueueId>) -> ChangeResult {
        let mut result = ChangeResult::Unchanged;
        for id in ids {
            self.remove_queue(id);
            result = ChangeResult::Changed;
        }
        result
    }

    pub(crate) fn end_session(&mut self, session: SessionId) -> Result<ChangeResult, ChangeError> {
        let ids = self.exclusive.get(&session).cloned().unwrap_or_default();
        Ok(self.remove_queues(ids))
    }

    /// Has an effect once for each incarnation, so a repetition does not remove queues of a later incarnation.
    pub(crate) fn end_incarnation(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<ChangeResult, ChangeError> {
        if self
            .ended
            .get(&node)
            .is_some_and(|last| *last >= incarnation)
        {
            return Ok(ChangeResult::Unchanged);
        }
        self.ended.insert(node, incarnation);
        let session = |incarnation, number| SessionId {
            node,
            incarnation,
            number,
        };
        let sessions = session(Incarnation(0), 0)..=session(incarnation, u64::MAX);
        let mut ids: BTreeSet<QueueId> = self
            .exclusive
            .range(sessions)
            .flat_map(|(_, ids)| ids.iter().copied())
            .collect();
        let transient = self.transient.get(&node).into_iter().flatten().copied();
        ids.extend(transient.filter(|id| self.ended_with_incarnation(*id, node, incarnation)));
        self.remove_queues(ids);
        Ok(ChangeResult::Changed)
    }

    /// Whether a non-durable queue of this node ended with this incarnation: all queues except those of sessions of a
    /// later one.
    fn ended_with_incarnation(&self, id: QueueId, node: NodeId, incarnation: Incarnation) -> bool {
        self.queue_by_id(id).is_some_and(|q| {
            let owner = q.exclusive;
            owner.is_none_or(|s| s.node != node || s.incarnation <= incarnation)
        })
    }
}
