//! Nodes that join, and the old selves of those that lost their data directory.
//!
//! A node that comes back with an empty directory has its old name and a new id. Its old self leaves the cluster in the same
//! change of the tree that takes in the new one: a group that went on counting it would have a voter that never answers.
//! Every request is made again until the tree shows its result: a node that joins asks again, and the leader of the metadata
//! group looks once a second for two nodes of one name.

use env::NodeId;
use metadata::{ChangeError, ChangeResult, NodeRecord};
use std::collections::BTreeSet;

/// Old selves whose removal was asked for.
#[derive(Debug, Default)]
pub(crate) struct NodeReplacements {
    asked: BTreeSet<NodeId>,
    /// Nodes that cannot leave yet, and for which this was logged.
    held: BTreeSet<NodeId>,
}

impl NodeReplacements {
    pub(crate) fn answered(&mut self, old: NodeId, result: Result<ChangeResult, ChangeError>) {
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

    /// Notes that the removal of `old`, whose name `new` has, is requested. Returns false if it is on its way already.
    pub(crate) fn begin(&mut self, old: NodeId, new: &NodeRecord) -> bool {
        let is_new = self.asked.insert(old);
        if is_new && !self.held.contains(&old) {
            tracing::warn!(event = "node_replaced", name = %new.name, old = old.0, new = new.id.0);
        }
        is_new
    }

    /// Forgets those that have left.
    pub(crate) fn retain(&mut self, nodes: &[NodeRecord]) {
        let is_there = |id: &NodeId| nodes.iter().any(|n| n.id == *id);
        self.asked.retain(is_there);
        self.held.retain(is_there);
    }
}
