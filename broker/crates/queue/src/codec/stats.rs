//! Encodings of the statistics of a queue.

use crate::{DeliveryCounters, Losses, QueueCounters, QueueStats, ReadyDetails};
use wire::wire_struct;

wire_struct!(QueueStats {
    ready: u64,
    unacknowledged: u64,
    consumers: u32,
    bytes: u64,
    unacknowledged_bytes: u64,
    dead: u64,
    dead_bytes: u64,
    lost: Losses,
});
/// Priority levels of a quorum queue.
const MAX_LEVELS: usize = 32;

wire_struct!(ReadyDetails {
    by_priority: Vec<(u8, u64)> as wire::AtMost<MAX_LEVELS>,
    returned: u64,
});
wire_struct!(Losses {
    messages: u64,
    segments: u64,
});
wire_struct!(QueueCounters {
    publish: u64,
    deliveries: DeliveryCounters,
});
wire_struct!(DeliveryCounters {
    deliver: u64,
    deliver_no_ack: u64,
    get: u64,
    get_no_ack: u64,
    get_empty: u64,
    redeliver: u64,
    ack: u64,
});
