//! Addresses of routers in the cluster.

use env::{Incarnation, NodeId};
use std::fmt;

/// The address of a router: there is one per shard and node incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterAddress {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The index of the shard on the node.
    pub shard: u16,
}

impl RouterAddress {
    /// The address of a router that has not been given one yet.
    pub(crate) const NOWHERE: RouterAddress = RouterAddress {
        node: NodeId(0),
        incarnation: Incarnation(0),
        shard: 0,
    };
}

impl fmt::Display for RouterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}/{}", self.node.0, self.incarnation.0, self.shard)
    }
}
