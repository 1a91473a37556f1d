//! Stored bytes of virtual hosts with a quota, as a part of [`Frame`](crate::frame::Frame).

use metadata::Name;
use wire::{AtMost, wire_struct};

/// Most virtual hosts in one frame. The sender splits longer lists.
pub(crate) const MAX_VHOSTS: usize = 1_000;

/// What the queues store that the sending shard leads. Virtual hosts that are not in the frame are unchanged. Only sent while the
/// feature flag `quotas` is enabled.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredBytesFrame {
    /// The shard of the sending node.
    pub shard: u16,
    /// Virtual hosts and bytes.
    pub vhosts: Vec<(Name, u64)>,
}

wire_struct!(StoredBytesFrame {
    shard: u16,
    vhosts: Vec<(Name, u64)> as AtMost<MAX_VHOSTS>,
});
