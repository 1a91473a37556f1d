//! Nodes that lost their data directory, and queues whose only copy was in it.
//!
//! A node that returns with an empty data directory is a new node with an old name. Its old id is removed from the
//! cluster at once, so that no Raft group counts a voter that never answers. A durable queue whose only copy was on the
//! old node stays declared and is *lost*: it accepts and delivers nothing until an operator deletes it.

use crate::equivalence::ResourceName;
use crate::nodes::check_node_id;
use crate::tree::TreeEvent;
use crate::{ChangeError, ChangeResult, Name, NodeRecord, QueueId, QueueRecord, Tree};
use env::NodeId;
use env::planted::{self, Bug};
use std::sync::Arc;

impl Tree {
    /// Name of the node that held the only copy of a lost queue. `None`: the queue is not lost.
    pub fn lost_on(&self, queue: QueueId) -> Option<&Name> {
        // Called for every message. In most clusters no queue is lost.
        if self.lost.is_empty() {
            return None;
        }
        self.lost.get(&queue)
    }

    /// Ids of all lost queues, each with the name of the node that held its only copy.
    pub fn lost_queues(&self) -> impl ExactSizeIterator<Item = (QueueId, &Name)> {
        self.lost.iter().map(|(id, node)| (*id, node))
    }

    /// Explains why a lost queue cannot be used. `None`: it is not lost.
    pub fn lost_reason(&self, queue: &QueueRecord) -> Option<String> {
        let node = self.lost_on(queue.id)?;
        Some(format!(
            "{} is lost: its only copy was on node '{node}', which lost its data directory; delete the queue, then declare it again",
            ResourceName::queue(&queue.vhost, &queue.name)
        ))
    }

    pub(crate) fn check_not_lost(&self, queue: &QueueRecord) -> Result<(), ChangeError> {
        self.lost_reason(queue)
            .map_or(Ok(()), |why| Err(ChangeError::NotFound(why)))
    }

    /// Permanently removes a node and adds the one that has its name now.
    pub(crate) fn replace_node(
        &mut self,
        index: u64,
        old: NodeId,
        new: &NodeRecord,
    ) -> Result<ChangeResult, ChangeError> {
        if let Some(known) = self.node(old)
            && (old == new.id || known.name != new.name)
        {
            return Err(ChangeError::Invalid(format!(
                "node '{}' ({:016x}) cannot replace node '{}' ({:016x})",
                new.name, new.id.0, known.name, old.0
            )));
        }
        if planted::is(Bug::LastCopyHoldsMember) {
            self.may_forget(old)?;
        }
        // A refused change must not change anything, and this is the only step below that may be refused.
        let put = self.put_node(new)?;
        let name = new.name.clone();
        let known = self.nodes.contains_key(&old);
        self.remove_node(index, old);
        self.mark_lost(old, &name);
        match (known, put) {
            (false, ChangeResult::Unchanged) => Ok(ChangeResult::Unchanged),
            _ => Ok(ChangeResult::Changed),
        }
    }

    /// Permanently removes a node that does not come back, whatever copies it has.
    pub(crate) fn forget_lost_node(
        &mut self,
        index: u64,
        id: NodeId,
    ) -> Result<ChangeResult, ChangeError> {
        check_node_id(id)?;
        let Some(name) = self.nodes.get(&id).map(|n| n.name.clone()) else {
            return Ok(ChangeResult::Unchanged);
        };
        let result = self.remove_node(index, id);
        self.mark_lost(id, &name);
        Ok(result)
    }

    /// Marks the durable queues that had a copy on this node and have none left.
    fn mark_lost(&mut self, old: NodeId, name: &Name) {
        let is_lost = |q: &&Arc<QueueRecord>| {
            let had_copy = q.durable && q.exclusive.is_none() && q.members.contains(&old);
            had_copy && q.members.iter().all(|m| !self.nodes.contains_key(m))
        };
        let mut lost: Vec<Arc<QueueRecord>> = self.all_queues().filter(is_lost).cloned().collect();
        lost.sort_unstable_by_key(|q| q.id);
        for queue in lost {
            if self.lost.insert(queue.id, name.clone()).is_none() {
                let node = name.clone();
                self.events.push(TreeEvent::QueueLost { queue, node });
            }
        }
    }

    /// Removes lost queues from the routes of a message, unless all of its queues are lost: then its publisher is
    /// refused.
    pub(crate) fn skip_lost(&self, routes: &mut Vec<QueueId>, start: usize) {
        let is_lost = |id: &QueueId| self.lost.contains_key(id);
        let found = routes.get(start..).unwrap_or_default();
        if found.iter().all(is_lost) {
            return;
        }
        let mut position = 0;
        routes.retain(|id| {
            position += 1;
            position <= start || !is_lost(id)
        });
    }
}
