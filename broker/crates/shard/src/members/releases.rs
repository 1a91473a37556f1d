//! Running nodes that are to be forgotten: each leaves the metadata group first.
//!
//! A node that is forgotten ends. While its vote still counted that would take the other one of two the majority: nobody
//! could then commit that it is out. So the leader takes it out of the group, and only then the tree forgets it.
//!
//! Who is to leave is kept by the leader alone, and not for long: when nobody asks any more, the node is taken in again.

use env::{NodeId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a node stays out after somebody asked for it last.
const HELD_FOR: Duration = Duration::from_secs(60);

/// At most one for each node of the tree.
#[derive(Debug, Default)]
pub(crate) struct NodeReleases(BTreeMap<NodeId, Time>);

impl NodeReleases {
    pub(crate) fn ask(&mut self, now: Time, node: NodeId) {
        self.0.insert(node, now + HELD_FOR);
    }

    /// Those that are to be out now.
    pub(crate) fn held(&mut self, now: Time) -> Vec<NodeId> {
        self.0.retain(|_, until| now < *until);
        self.0.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_while_somebody_asks() {
        let mut releases = NodeReleases::default();
        let at = |s| Time::ZERO + Duration::from_secs(s);
        releases.ask(at(1), NodeId(7));
        releases.ask(at(2), NodeId(8));
        assert_eq!(releases.held(at(60)), [NodeId(7), NodeId(8)]);
        releases.ask(at(60), NodeId(7));
        assert_eq!(releases.held(at(62)), [NodeId(7)]);
        assert_eq!(releases.held(at(120)), []);
    }
}
