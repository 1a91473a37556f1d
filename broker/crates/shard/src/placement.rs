//! Where a new queue lives. Pure.

use env::NodeId;
use metadata::NodeRecord;

/// Members of a quorum queue when nobody says otherwise.
pub const DEFAULT_REPLICAS: u32 = 3;
/// Members at most.
pub const MAX_REPLICAS: u32 = 7;

/// Members for a quorum queue: this node first (its client is here), then those that hold the fewest, nodes that are
/// up and not in maintenance before others. `load` is the number of queues a node is a member of.
pub fn quorum_members<'a>(
    me: NodeId,
    nodes: impl Iterator<Item = &'a NodeRecord>,
    up: impl Fn(NodeId) -> bool,
    load: impl Fn(NodeId) -> usize,
    replicas: u32,
) -> Vec<NodeId> {
    let wanted = if replicas == 0 {
        DEFAULT_REPLICAS
    } else {
        replicas.min(MAX_REPLICAS)
    };
    let mut all: Vec<&NodeRecord> = nodes.collect();
    all.sort_by_key(|n| {
        (
            n.maintenance || !(up(n.id) || n.id == me),
            n.id != me,
            load(n.id),
            n.id,
        )
    });
    all.iter().take(wanted as usize).map(|n| n.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u64, maintenance: bool) -> NodeRecord {
        NodeRecord {
            id: NodeId(id),
            name: format!("n{id}").into(),
            address: "".into(),
            voter: true,
            maintenance,
        }
    }

    #[test]
    fn here_first_then_the_least_loaded_that_are_up() {
        let nodes = [
            node(1, false),
            node(2, false),
            node(3, true),
            node(4, false),
            node(5, false),
        ];
        let up = |n: NodeId| n != NodeId(5);
        let load = |n: NodeId| if n == NodeId(2) { 9 } else { 1 };
        let ids = |v: Vec<NodeId>| v.into_iter().map(|n| n.0).collect::<Vec<_>>();
        assert_eq!(
            ids(quorum_members(NodeId(1), nodes.iter(), up, load, 0)),
            [1, 4, 2]
        );
        assert_eq!(
            ids(quorum_members(NodeId(1), nodes.iter(), up, load, 5)),
            [1, 4, 2, 3, 5]
        );
        assert_eq!(
            ids(quorum_members(NodeId(1), nodes.iter(), up, load, 1)),
            [1]
        );
    }
}
