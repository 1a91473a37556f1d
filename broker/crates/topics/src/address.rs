//! Where a hub is.

use env::{Incarnation, NodeId};
use std::fmt;

/// A hub: one a shard, for one life of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterAddress {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub shard: u16,
}

impl RouterAddress {
    /// Of a hub that nobody has told where it is.
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
