//! The flow window: limits the deliveries that are sent to the session's side of a consumer and not yet passed
//! on to the client.
//!
//! The prefetch is the client's choice and may exceed the length of the queue; the flow window bounds memory.
//! It belongs to the owner alone. Other replicas send nothing and do not track it.

/// Most deliveries in flight to one consumer. The delivery that exceeds the bytes is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowWindow {
    /// Number of deliveries.
    pub messages: u32,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// The window of every queue. The session's side reports progress for each half of it.
pub const FLOW_WINDOW: FlowWindow = FlowWindow {
    messages: 2000,
    bytes: 2 << 20,
};

/// A message with a size.
pub(crate) trait Weighed {
    /// Bytes of the body.
    fn body_bytes(&self) -> u64;
}

/// Deliveries in flight to one consumer. All numbers are delivery ids.
#[derive(Debug, Default)]
pub(crate) struct DeliveryFlow {
    /// All deliveries up to this one have gone to the client.
    received: u64,
    /// All deliveries up to this one were sent to the session's side.
    pub sent: u64,
    /// Number of unsettled deliveries between the two.
    messages: u32,
    bytes: u64,
}

impl DeliveryFlow {
    /// Counts all sent deliveries as in flight, since their progress is unknown.
    pub(crate) fn assume_in_flight(sent: u64, bodies: impl Iterator<Item = u64>) -> DeliveryFlow {
        let mut flow = DeliveryFlow {
            sent,
            ..DeliveryFlow::default()
        };
        bodies.for_each(|body| flow.add(body));
        flow
    }

    /// The part of the window that is not used.
    pub(crate) fn unused(&self, window: FlowWindow) -> FlowWindow {
        FlowWindow {
            messages: window.messages.saturating_sub(self.messages),
            bytes: window.bytes.saturating_sub(self.bytes),
        }
    }

    pub(crate) fn has_room(&self, window: FlowWindow) -> bool {
        self.messages < window.messages && self.bytes < window.bytes
    }

    fn add(&mut self, body: u64) {
        self.messages += 1;
        self.bytes += body;
    }

    fn subtract(&mut self, body: u64) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(body);
    }

    /// Records that a delivery is sent. Ids ascend.
    pub(crate) fn record_sent(&mut self, id: u64, body: u64) {
        debug_assert!(id > self.sent, "delivery {id} after {}", self.sent);
        self.sent = id;
        if id > self.received {
            self.add(body);
        }
    }

    /// Records that a delivery is settled.
    pub(crate) fn record_settled(&mut self, id: u64, body: u64) {
        if self.received < id && id <= self.sent {
            self.subtract(body);
        }
    }

    /// The deliveries in flight up to this id.
    pub(crate) fn in_flight(&self, up_to: u64) -> Option<std::ops::RangeInclusive<u64>> {
        let last = up_to.min(self.sent);
        (self.received < last).then(|| self.received + 1..=last)
    }

    /// Records progress up to an id. `bodies` are the unsettled deliveries in [`in_flight`](Self::in_flight).
    pub(crate) fn record_progress(&mut self, up_to: u64, bodies: impl Iterator<Item = u64>) {
        bodies.for_each(|body| self.subtract(body));
        self.received = self.received.max(up_to);
    }

    /// Prepares to send all deliveries after `sent` again. `bodies` are the unsettled ones up to there that are
    /// in flight.
    pub(crate) fn rewind(&mut self, sent: u64, bodies: impl Iterator<Item = u64>) {
        let received = self.received;
        *self = DeliveryFlow::assume_in_flight(sent, bodies);
        self.received = received;
    }
}
