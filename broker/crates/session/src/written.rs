//! Deliveries written to a client since the last report to their queue.

use queue::{Delivery, FLOW_WINDOW};

/// Deliveries of one consumer that were written to the client since the last report to the queue
/// ([`Broker::received`](crate::Broker::received)).
#[derive(Clone, Copy, Debug, Default)]
pub struct WrittenDeliveries {
    messages: u32,
    bytes: u64,
    up_to: u64,
}

impl WrittenDeliveries {
    /// Adds the next delivery of the consumer.
    pub fn add(&mut self, delivery: &Delivery) {
        self.messages += 1;
        self.bytes += delivery.message.body_len() as u64;
        self.up_to = delivery.id;
    }

    /// Adds later deliveries of the consumer.
    pub fn extend(&mut self, more: WrittenDeliveries) {
        self.messages += more.messages;
        self.bytes += more.bytes;
        self.up_to = more.up_to;
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Returns true if the queue must get a report.
    pub fn is_due(&self) -> bool {
        self.messages >= FLOW_WINDOW.messages / 2 || self.bytes >= FLOW_WINDOW.bytes / 2
    }

    /// The id of the last delivery.
    pub fn up_to(&self) -> u64 {
        self.up_to
    }
}
