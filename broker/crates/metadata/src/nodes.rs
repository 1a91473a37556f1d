//! Members of the cluster.

use crate::apply::check_name;
use crate::equivalence::ResourceName;
use crate::tree::TreeEvent;
use crate::{ChangeError, ChangeResult, Name, NodeRecord, QueueId, QueueRecord, Tree, limits};
use env::NodeId;
use env::planted::{self, Bug};
use std::sync::Arc;

/// Queues that an error names; of the others it says how many there are.
const NAMED_QUEUES: usize = 20;

impl Tree {
    pub(crate) fn put_node(&mut self, node: &NodeRecord) -> Result<ChangeResult, ChangeError> {
        if node.id == NodeId(0) {
            return Err(ChangeError::Invalid("a node's id is never 0".into()));
        }
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
            return Ok(ChangeResult::AsBefore);
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

    /// Refused while the node is the only one to hold a durable queue. A node that lost its data directory holds nothing:
    /// [`crate::Change::ReplaceNode`] does not ask.
    pub fn may_forget(&self, id: NodeId) -> Result<(), ChangeError> {
        let Some(node) = self.nodes.get(&id) else {
            return Ok(());
        };
        let mut last: Vec<_> = self
            .all_queues()
            .filter(|q| q.durable && q.exclusive.is_none() && q.members == [id])
            .collect();
        last.sort_unstable_by_key(|q| q.id);
        if last.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = (last.iter().take(NAMED_QUEUES))
            .map(|q| ResourceName::queue(&q.vhost, &q.name).to_string())
            .collect();
        let more = match last.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Err(ChangeError::PreconditionFailed(format!(
            "node '{}' holds the last copy of {} queue(s): {}{more}; start the node, or delete the queue(s) first",
            node.name,
            last.len(),
            named.join(", ")
        )))
    }

    /// Forgets a node, if [`Tree::may_forget`] allows it.
    pub(crate) fn delete_node(&mut self, id: NodeId) -> Result<ChangeResult, ChangeError> {
        self.may_forget(id)?;
        Ok(self.take_out(id))
    }

    fn take_out(&mut self, id: NodeId) -> ChangeResult {
        let Some(node) = self.nodes.get(&id).cloned() else {
            return ChangeResult::AsBefore;
        };
        // What else it holds alone does not outlive it.
        let lost: Vec<QueueId> = self
            .transient
            .get(&id)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        for queue in lost {
            self.remove_queue(queue);
        }
        self.nodes.remove(&id);
        self.zones.remove(&id);
        self.placed.remove(&id);
        self.events.push(TreeEvent::NodeRemoved(node));
        ChangeResult::Changed
    }

    /// As [`Tree::delete_node`], and its id is not taken in again: what it promised in groups may be lost.
    pub(crate) fn forget_node(
        &mut self,
        index: u64,
        id: NodeId,
    ) -> Result<ChangeResult, ChangeError> {
        if id == NodeId(0) {
            return Err(ChangeError::Invalid("a node's id is never 0".into()));
        }
        self.may_forget(id)?;
        Ok(self.remove_node(index, id))
    }

    /// Takes a node out for good, whatever it holds.
    pub(crate) fn remove_node(&mut self, index: u64, id: NodeId) -> ChangeResult {
        let done = self.take_out(id);
        if self.is_forgotten(id) {
            return done;
        }
        self.forgotten.insert(id, index);
        if self.forgotten.len() > limits::FORGOTTEN {
            let oldest = self.forgotten.iter().min_by_key(|(id, at)| (**at, **id));
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.forgotten.remove(&oldest);
            }
        }
        ChangeResult::Changed
    }

    /// As [`Tree::forget_node`], unless a queue came to the node after `seen`: its group may need the node's vote, and to take it out
    /// takes time.
    pub(crate) fn forget_free_node(
        &mut self,
        index: u64,
        id: NodeId,
        seen: u64,
    ) -> Result<ChangeResult, ChangeError> {
        let placed = self.placed.get(&id).is_some_and(|at| *at > seen);
        if placed && !planted::is(Bug::ForgottenUnasked) {
            let name = self.nodes.get(&id).map_or("", |n| &*n.name);
            return Err(ChangeError::Unavailable(format!(
                "a queue was placed on node '{name}' meanwhile; ask again"
            )));
        }
        self.forget_node(index, id)
    }

    /// Members of a quorum queue that were not among those before.
    pub(crate) fn note_placed(&mut self, queue: &QueueRecord, before: &[NodeId]) {
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
            return Ok(ChangeResult::AsBefore);
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
            return Ok(ChangeResult::AsBefore);
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
            return Ok(ChangeResult::AsBefore);
        };
        if queue.record.members == members {
            return Ok(ChangeResult::AsBefore);
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
        self.note_placed(&record, &before);
        self.events.push(TreeEvent::QueueMembersChanged(record));
        Ok(ChangeResult::Changed)
    }

    /// Of two changes that were decided against the same members the second is refused.
    pub(crate) fn replace_queue_members(
        &mut self,
        id: QueueId,
        from: &[NodeId],
        to: &[NodeId],
    ) -> Result<ChangeResult, ChangeError> {
        let Some(record) = self.queue_by_id(id) else {
            return Err(ChangeError::NotFound("the queue is gone".into()));
        };
        let thing = ResourceName::queue(&record.vhost, &record.name);
        if !record.kind.is_replicated() {
            return Err(ChangeError::Invalid(format!("{thing} is no quorum queue")));
        }
        if record.members != from {
            return Err(ChangeError::PreconditionFailed(format!(
                "the members of {thing} have changed meanwhile; look at them and try again"
            )));
        }
        for (at, node) in to.iter().enumerate() {
            if !self.nodes.contains_key(node) || to[..at].contains(node) {
                return Err(ChangeError::Invalid(format!(
                    "members of {thing} are nodes of the cluster, each once"
                )));
            }
        }
        self.set_queue_members(id, to)
    }
}
