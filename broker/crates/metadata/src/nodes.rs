//! Members of the cluster, and the members of quorum queues.

use crate::apply::check_name;
use crate::equivalence::ResourceName;
use crate::tree::TreeEvent;
use crate::{ChangeError, ChangeResult, Name, NodeRecord, QueueId, QueueRecord, Tree, limits};
use env::NodeId;
use env::planted::{self, Bug};
use std::sync::Arc;

/// Maximum number of queues that an error names. It counts the others.
const NAMED_QUEUES: usize = 20;

pub(crate) fn check_node_id(id: NodeId) -> Result<(), ChangeError> {
    match id {
        NodeId(0) => Err(ChangeError::Invalid("a node's id is never 0".into())),
        _ => Ok(()),
    }
}

impl Tree {
    pub(crate) fn put_node(&mut self, node: &NodeRecord) -> Result<ChangeResult, ChangeError> {
        check_node_id(node.id)?;
        check_name("node", &node.name)?;
        check_name("node address", &node.address)?;
        if self.is_forgotten(node.id) && !planted::is(Bug::RemovedReturns) {
            return Err(ChangeError::PreconditionFailed(format!(
                "node '{}' ({:016x}) was removed from this cluster; with an empty data directory it joins as a new node",
                node.name, node.id.0
            )));
        }
        let old = self.nodes.get(&node.id);
        if old.is_some_and(|old| **old == *node) {
            return Ok(ChangeResult::Unchanged);
        }
        let event: fn(_) -> _ = if old.is_some() {
            TreeEvent::NodeChanged
        } else {
            TreeEvent::NodeAdded
        };
        let node = Arc::new(node.clone());
        self.events.push(event(node.clone()));
        self.nodes.insert(node.id, node);
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn insert_node(&mut self, node: NodeRecord) {
        self.nodes.insert(node.id, Arc::new(node));
    }

    /// Refuses if the node has the only copy of a durable queue. [`crate::Change::ReplaceNode`] skips this check,
    /// because a node that lost its data directory has no copies.
    pub fn may_forget(&self, id: NodeId) -> Result<(), ChangeError> {
        let Some(node) = self.nodes.get(&id) else {
            return Ok(());
        };
        let mut last_copies: Vec<_> = self
            .all_queues()
            .filter(|q| q.durable && q.exclusive.is_none() && q.members == [id])
            .collect();
        last_copies.sort_unstable_by_key(|q| q.id);
        if last_copies.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = (last_copies.iter().take(NAMED_QUEUES))
            .map(|q| ResourceName::queue(&q.vhost, &q.name).to_string())
            .collect();
        let more = match last_copies.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Err(ChangeError::PreconditionFailed(format!(
            "node '{}' holds the last copy of {} queue(s): {}{more}; start the node, or delete the queue(s) first",
            node.name,
            last_copies.len(),
            names.join(", ")
        )))
    }

    /// Removes a node if [`Tree::may_forget`] allows it.
    pub(crate) fn delete_node(&mut self, id: NodeId) -> Result<ChangeResult, ChangeError> {
        self.may_forget(id)?;
        Ok(self.remove_member(id))
    }

    fn remove_member(&mut self, id: NodeId) -> ChangeResult {
        let Some(node) = self.nodes.get(&id).cloned() else {
            return ChangeResult::Unchanged;
        };
        // Non-durable queues on the node are lost with it.
        let non_durable: Vec<QueueId> = self
            .transient
            .get(&id)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        for queue in non_durable {
            self.remove_queue(queue);
        }
        self.nodes.remove(&id);
        self.zones.remove(&id);
        self.client_addresses.remove(&id);
        self.placed.remove(&id);
        self.events.push(TreeEvent::NodeRemoved(node));
        ChangeResult::Changed
    }

    /// Like [`Tree::delete_node`], but permanent: the id cannot join again, because votes and log entries that the node
    /// acknowledged in Raft groups may be lost.
    pub(crate) fn forget_node(
        &mut self,
        index: u64,
        id: NodeId,
    ) -> Result<ChangeResult, ChangeError> {
        check_node_id(id)?;
        self.may_forget(id)?;
        Ok(self.remove_node(index, id))
    }

    /// Permanently removes a node, whatever copies it has.
    pub(crate) fn remove_node(&mut self, index: u64, id: NodeId) -> ChangeResult {
        let result = self.remove_member(id);
        if self.is_forgotten(id) {
            return result;
        }
        self.forgotten.insert(id, index);
        if self.forgotten.len() > limits::FORGOTTEN {
            let oldest = self
                .forgotten
                .iter()
                .min_by_key(|(id, index)| (**index, **id));
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.forgotten.remove(&oldest);
            }
        }
        ChangeResult::Changed
    }

    /// Like [`Tree::forget_node`], but refused if the node became a member of a queue after `seen`. The queue's group
    /// may need the node's vote, and removing the node from the group takes time.
    pub(crate) fn forget_free_node(
        &mut self,
        index: u64,
        id: NodeId,
        seen: u64,
    ) -> Result<ChangeResult, ChangeError> {
        let was_placed = self.placed.get(&id).is_some_and(|index| *index > seen);
        if was_placed && !planted::is(Bug::ForgottenUnasked) {
            let name = self.nodes.get(&id).map_or("", |n| &*n.name);
            return Err(ChangeError::Unavailable(format!(
                "a queue was placed on node '{name}' meanwhile; repeat the request"
            )));
        }
        self.forget_node(index, id)
    }

    /// Records the nodes that became members of a quorum queue by this change.
    pub(crate) fn record_placement(&mut self, queue: &QueueRecord, before: &[NodeId]) {
        if !queue.kind.is_replicated() {
            return;
        }
        for node in queue.members.iter().filter(|n| !before.contains(n)) {
            self.placed.insert(*node, self.applied);
        }
    }

    pub(crate) fn set_zone(
        &mut self,
        id: NodeId,
        zone: &Name,
    ) -> Result<ChangeResult, ChangeError> {
        if zone.len() > limits::NAME_BYTES {
            return Err(ChangeError::Invalid(format!(
                "a zone's name has at most {} bytes, not {}",
                limits::NAME_BYTES,
                zone.len()
            )));
        }
        let Some(node) = self.nodes.get(&id).cloned() else {
            return Err(ChangeError::NotFound(format!("no node {:016x}", id.0)));
        };
        if self.zone(id) == &**zone {
            return Ok(ChangeResult::Unchanged);
        }
        match zone.is_empty() {
            true => self.zones.remove(&id),
            false => self.zones.insert(id, zone.clone()),
        };
        self.events.push(TreeEvent::NodeChanged(node));
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn set_maintenance(
        &mut self,
        id: NodeId,
        on: bool,
    ) -> Result<ChangeResult, ChangeError> {
        let Some(node) = self.nodes.get_mut(&id) else {
            return Err(ChangeError::NotFound(format!("no node {:016x}", id.0)));
        };
        if node.maintenance == on {
            return Ok(ChangeResult::Unchanged);
        }
        Arc::make_mut(node).maintenance = on;
        let node = node.clone();
        self.events.push(TreeEvent::NodeChanged(node));
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn set_queue_members(
        &mut self,
        id: QueueId,
        members: &[NodeId],
    ) -> Result<ChangeResult, ChangeError> {
        if members.is_empty() || members.len() > limits::MEMBERS {
            return Err(ChangeError::Invalid(format!(
                "a queue has 1 to {} members, not {}",
                limits::MEMBERS,
                members.len()
            )));
        }
        let Some(queue) = self.queues.get_mut(&id) else {
            return Ok(ChangeResult::Unchanged);
        };
        if queue.record.members == members {
            return Ok(ChangeResult::Unchanged);
        }
        self.member_counts.remove(&queue.record);
        let before = std::mem::replace(
            &mut Arc::make_mut(&mut queue.record).members,
            members.to_vec(),
        );
        let record = queue.record.clone();
        self.member_counts.add(&record);
        if members.iter().any(|m| self.nodes.contains_key(m)) {
            self.lost.remove(&id);
        }
        self.record_placement(&record, &before);
        self.events.push(TreeEvent::QueueMembersChanged(record));
        Ok(ChangeResult::Changed)
    }

    /// Of two changes that were based on the same members, the second is refused.
    pub(crate) fn replace_queue_members(
        &mut self,
        id: QueueId,
        from: &[NodeId],
        to: &[NodeId],
    ) -> Result<ChangeResult, ChangeError> {
        let Some(record) = self.queue_by_id(id) else {
            return Err(ChangeError::NotFound("the queue is gone".into()));
        };
        let resource = ResourceName::queue(&record.vhost, &record.name);
        if !record.kind.is_replicated() {
            return Err(ChangeError::Invalid(format!(
                "{resource} is no quorum queue"
            )));
        }
        if record.members != from {
            return Err(ChangeError::PreconditionFailed(format!(
                "the members of {resource} have changed meanwhile; look at them and try again"
            )));
        }
        for (position, node) in to.iter().enumerate() {
            if !self.nodes.contains_key(node) || to[..position].contains(node) {
                return Err(ChangeError::Invalid(format!(
                    "members of {resource} are nodes of the cluster, each once"
                )));
            }
        }
        self.set_queue_members(id, to)
    }
}
