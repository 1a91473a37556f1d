//! Nodes that join, and the old selves of those that lost their data directory.
//!
//! A node that comes back with an empty directory has its old name and a new id. Its old self leaves the cluster in the same
//! change of the tree that takes in the new one: a group that went on counting it would have a voter that never answers.
//! Every request is made again until the tree shows its result: a node that joins asks again, and the leader of the metadata
//! group looks once a second for two nodes of one name.

use crate::core::Core;
use crate::joining_nodes::is_member;
use crate::metadata_client::ChangeRequester;
use env::NodeId;
use metadata::{Change, ChangeError, ChangeResult, NodeRecord, QueueId};
use std::collections::BTreeSet;

/// Maximum number of lost sessions that are ended at a time.
const END_AT_ONCE: usize = 500;

/// Old selves whose removal was asked for.
#[derive(Debug, Default)]
pub struct NodeReplacements {
    asked: BTreeSet<NodeId>,
    /// Nodes that cannot leave yet, and for which this was logged.
    held: BTreeSet<NodeId>,
}

impl NodeReplacements {
    pub fn answered(&mut self, old: NodeId, result: Result<ChangeResult, ChangeError>) {
        self.asked.remove(&old);
        if let Err(refused) = result {
            self.hold(old, &refused);
        }
    }

    /// It is asked for again; the log says so once.
    fn hold(&mut self, old: NodeId, why: &ChangeError) {
        if self.held.insert(old) {
            tracing::warn!(event = "node_replacement_refused", old = old.0, %why);
        }
    }

    /// Forgets those that have left.
    fn retain(&mut self, nodes: &[NodeRecord]) {
        let is_there = |id: &NodeId| nodes.iter().any(|n| n.id == *id);
        self.asked.retain(is_there);
        self.held.retain(is_there);
    }
}

impl Core {
    pub fn admit_node(&mut self, node: NodeRecord) {
        if is_member(&self.tree, &node) || self.joining.contains(&node.id) {
            return;
        }
        // A new cluster has its first contents before it has members: these let clients in, and would know no users. The node asks again.
        if self.tree.nodes().next().is_none() {
            return;
        }
        // The same name under another id: it lost its directory and comes back as a new node.
        let same_name = self
            .tree
            .nodes()
            .filter(|n| n.name == node.name && n.id != node.id);
        let replaced: Vec<NodeId> = same_name.map(|n| n.id).collect();
        if replaced.iter().any(|id| self.is_up(*id)) {
            // Its end has not been noticed yet, or two processes have one name. The node asks again.
            tracing::warn!(event = "node_name_taken", name = %node.name, id = node.id.0);
            return;
        }
        let voter = self.tree.node(node.id).is_some_and(|n| n.voter);
        let (id, new) = (node.id, NodeRecord { voter, ..node });
        for old in &replaced {
            self.replace_node(*old, &new);
        }
        // Otherwise the same change takes it in.
        if replaced.is_empty() {
            tracing::info!(event = "node_joins", name = %new.name, id = id.0);
            self.joining.insert(id);
            self.ask(Change::PutNode(new), ChangeRequester::Join(id));
        }
    }

    /// Takes the outcome of a node's request to join. A refused node asks again.
    pub fn join_answered(&mut self, node: NodeId, result: Result<ChangeResult, ChangeError>) {
        self.joining.remove(&node);
        if let Err(why) = result {
            tracing::warn!(event = "node_join_refused", id = node.0, %why);
        }
    }

    /// Asks for the removal of `old`, whose name `new` has.
    fn replace_node(&mut self, old: NodeId, new: &NodeRecord) {
        if self.members.replacements.asked.contains(&old) {
            return;
        }
        let change = Change::ReplaceNode {
            old,
            new: new.clone(),
        };
        let replacements = &mut self.members.replacements;
        replacements.asked.insert(old);
        if !replacements.held.contains(&old) {
            tracing::warn!(event = "node_replaced", name = %new.name, old = old.0, new = new.id.0);
        }
        self.ask(change, ChangeRequester::Replacement(old));
    }

    /// Two nodes of one name: the one that is down is the other's old self.
    pub fn replace_old_selves(&mut self, nodes: &[NodeRecord]) {
        self.members.replacements.retain(nodes);
        let (up, down): (Vec<_>, Vec<_>) = nodes.iter().partition(|n| self.is_up(n.id));
        for old in down {
            if let Some(new) = up.iter().find(|n| n.name == old.name) {
                self.replace_node(old.id, new);
            }
        }
    }

    /// Deletes lost queues that store sessions of clients: when the queue is lost, the session is over, and its client gets a new
    /// one. No operator needs to decide that, and there may be thousands.
    pub fn end_lost_sessions(&mut self) {
        let lost = self.tree.lost_queues().filter_map(|(id, node)| {
            let record = self.tree.queue_by_id(id)?;
            let client = self.services.client_of(record)?;
            (!self.queues.is_deleting(id)).then(|| (id, client.to_owned(), node.clone()))
        });
        let lost: Vec<(QueueId, String, _)> = lost.take(END_AT_ONCE).collect();
        for (id, client_id, node) in lost {
            tracing::warn!(event = "session_lost", client_id, %node);
            self.queues.begin_deletion(id);
            self.delete(id);
        }
    }
}
