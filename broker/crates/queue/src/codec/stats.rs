//! Encodings of the statistics of a queue.

use crate::{
    DelayedDetails, DeliveryCounters, HeadMessage, Losses, QueueCounters, QueueStats, ReadyDetails,
};
use bytes::BytesMut;
use wire::{Decoded, Reader, Wire, wire_struct};

/// Without the delayed messages, which have a format of their own ([`DelayedDetails`]).
impl Wire for QueueStats {
    const MIN_LEN: usize = 6 * u64::MIN_LEN + u32::MIN_LEN + Losses::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        self.ready.put(out);
        self.unacknowledged.put(out);
        self.consumers.put(out);
        self.bytes.put(out);
        self.unacknowledged_bytes.put(out);
        self.dead.put(out);
        self.dead_bytes.put(out);
        self.lost.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(QueueStats {
            ready: from.get()?,
            unacknowledged: from.get()?,
            consumers: from.get()?,
            bytes: from.get()?,
            unacknowledged_bytes: from.get()?,
            dead: from.get()?,
            dead_bytes: from.get()?,
            lost: from.get()?,
            ..QueueStats::default()
        })
    }
}

wire_struct!(DelayedDetails {
    messages: u64,
    bytes: u64,
    next_at: u64,
    last_at: u64,
});
wire_struct!(HeadMessage {
    received: u64,
    timestamp: Option<u64>,
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
