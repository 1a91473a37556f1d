//! Joining nodes: linked to this one, and kept here until the metadata lists them as members.
//!
//! A node asks when its link comes up, and not again while the link holds. There may be no leader just then, or what is
//! sent to it may be lost; so the request is carried on from here until it is seen to be granted.

use env::NodeId;
use metadata::{NodeRecord, Tree};
use std::collections::BTreeMap;

/// One per linked node at most: a node that is gone is forgotten.
#[derive(Debug, Default)]
pub(crate) struct JoiningNodes(BTreeMap<NodeId, NodeRecord>);

impl JoiningNodes {
    pub(crate) fn ask(&mut self, node: &NodeRecord) {
        self.0.insert(node.id, node.clone());
    }

    /// The link is down. A node that is back asks again.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// Those that the tree does not have as they are; the others are done with.
    pub(crate) fn waiting(&mut self, tree: &Tree) -> Vec<NodeRecord> {
        self.0
            .retain(|_, node| !is_member(tree, node) && !tree.is_forgotten(node.id));
        self.0.values().cloned().collect()
    }
}

/// Whether the tree knows the node under this name and address.
pub(crate) fn is_member(tree: &Tree, node: &NodeRecord) -> bool {
    let known = tree.node(node.id);
    known.is_some_and(|n| n.name == node.name && n.address == node.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use metadata::Change;

    fn node(id: u64, address: &str) -> NodeRecord {
        NodeRecord {
            id: NodeId(id),
            name: format!("n{id}").into(),
            address: address.into(),
            voter: false,
            maintenance: false,
        }
    }

    #[test]
    fn a_request_stays_open_until_it_is_granted() -> Result<(), metadata::ChangeError> {
        let (mut joining_nodes, mut tree) = (JoiningNodes::default(), Tree::default());
        joining_nodes.ask(&node(2, "a:1"));
        joining_nodes.ask(&node(3, "c:1"));
        for _ in 0..3 {
            assert_eq!(
                joining_nodes.waiting(&tree),
                [node(2, "a:1"), node(3, "c:1")],
                "nobody was there to grant it"
            );
        }
        joining_nodes.forget(NodeId(3));
        // Its former address is not what it asks for now.
        tree.apply(1, &Change::PutNode(node(2, "b:1")))?;
        assert_eq!(joining_nodes.waiting(&tree), [node(2, "a:1")]);
        tree.apply(2, &Change::PutNode(node(2, "a:1")))?;
        assert!(joining_nodes.waiting(&tree).is_empty());
        // A node that the cluster forgot later is not brought back by an old request.
        tree.apply(3, &Change::DeleteNode { id: NodeId(2) })?;
        assert!(joining_nodes.waiting(&tree).is_empty());
        // Nor does one that was removed for good get anywhere by asking anew.
        joining_nodes.ask(&node(2, "a:1"));
        tree.apply(4, &Change::ForgetNode { id: NodeId(2) })?;
        assert!(joining_nodes.waiting(&tree).is_empty());
        Ok(())
    }
}
