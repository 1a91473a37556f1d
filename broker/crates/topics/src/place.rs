//! Where a hub is.

use env::{Incarnation, NodeId};
use std::fmt;

/// A hub: one a shard, for one life of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub shard: u16,
}

impl Place {
    /// Of a hub that nobody has told where it is.
    pub(crate) const NOWHERE: Place = Place {
        node: NodeId(0),
        incarnation: Incarnation(0),
        shard: 0,
    };
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}/{}", self.node.0, self.incarnation.0, self.shard)
    }
}
