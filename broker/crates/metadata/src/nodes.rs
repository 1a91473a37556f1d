//! Members of the cluster.

use crate::apply::check_name;
use crate::tree::TreeEvent;
use crate::{Done, NodeRecord, QueueId, Refused, Tree, limits};
use env::NodeId;
use std::sync::Arc;

impl Tree {
    pub(crate) fn put_node(&mut self, node: &NodeRecord) -> Result<Done, Refused> {
        if node.id == NodeId(0) {
            return Err(Refused::Invalid("a node's id is never 0".into()));
        }
        check_name("node", &node.name)?;
        check_name("node address", &node.address)?;
        let old = self.nodes.get(&node.id);
        if old.is_some_and(|old| **old == *node) {
            return Ok(Done::AsBefore);
        }
        let event: fn(_) -> _ = if old.is_some() {
            TreeEvent::NodeChanged
        } else {
            TreeEvent::NodeAdded
        };
        let node = Arc::new(node.clone());
        self.events.push(event(node.clone()));
        self.nodes.insert(node.id, node);
        Ok(Done::Changed)
    }

    pub(crate) fn insert_node(&mut self, node: NodeRecord) {
        self.nodes.insert(node.id, Arc::new(node));
    }

    /// Forgets a node. Refused while it is the only one to hold a durable queue.
    pub(crate) fn delete_node(&mut self, id: NodeId) -> Result<Done, Refused> {
        let Some(node) = self.nodes.get(&id).cloned() else {
            return Ok(Done::AsBefore);
        };
        let mut last: Vec<_> = self
            .all_queues()
            .filter(|q| q.durable && q.exclusive.is_none() && q.members == [id])
            .collect();
        last.sort_unstable_by_key(|q| q.id);
        if let Some(queue) = last.first() {
            return Err(Refused::PreconditionFailed(format!(
                "node '{}' holds the last copy of {} queue(s), among them queue '{}' in vhost '{}'",
                node.name,
                last.len(),
                queue.name,
                queue.vhost
            )));
        }
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
        self.events.push(TreeEvent::NodeRemoved(node));
        Ok(Done::Changed)
    }

    pub(crate) fn set_maintenance(&mut self, id: NodeId, on: bool) -> Result<Done, Refused> {
        let Some(node) = self.nodes.get_mut(&id) else {
            return Err(Refused::NotFound(format!("no node {:016x}", id.0)));
        };
        if node.maintenance == on {
            return Ok(Done::AsBefore);
        }
        Arc::make_mut(node).maintenance = on;
        let node = node.clone();
        self.events.push(TreeEvent::NodeChanged(node));
        Ok(Done::Changed)
    }

    pub(crate) fn set_queue_members(
        &mut self,
        id: QueueId,
        members: &[NodeId],
    ) -> Result<Done, Refused> {
        if members.is_empty() || members.len() > limits::MEMBERS {
            return Err(Refused::Invalid(format!(
                "a queue has 1 to {} members, not {}",
                limits::MEMBERS,
                members.len()
            )));
        }
        let Some(queue) = self.queues.get_mut(&id) else {
            return Ok(Done::AsBefore);
        };
        if queue.record.members == members {
            return Ok(Done::AsBefore);
        }
        Arc::make_mut(&mut queue.record).members = members.to_vec();
        let record = queue.record.clone();
        self.events.push(TreeEvent::QueueMembersChanged(record));
        Ok(Done::Changed)
    }
}
