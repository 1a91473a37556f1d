//! How much is on its way to a consumer: handed to its session's side and not yet passed on to the client.
//!
//! The window on what a client leaves unacknowledged is the client's wish and may be as wide as the queue is long; this one
//! bounds messages in memory. Only the owner's own: replicas that do not lead send nothing, and forget it.

/// What may be on its way to one consumer at most; the message that exceeds the bytes is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowWindow {
    pub messages: u32,
    /// Of bodies.
    pub bytes: u64,
}

/// The window of every queue. A session's side reports each time that half of it has gone to the client.
pub const FLOW_WINDOW: FlowWindow = FlowWindow {
    messages: 2000,
    bytes: 2 << 20,
};

/// A message that can be weighed.
pub(crate) trait Weighed {
    /// Bytes.
    fn body(&self) -> u64;
}

/// See the module. Delivery ids.
#[derive(Debug, Default)]
pub(crate) struct DeliveryFlow {
    /// All up to here has gone to the client.
    received: u64,
    /// All up to here was sent to the session's side.
    pub sent: u64,
    /// Between the two and unsettled.
    messages: u32,
    bytes: u64,
}

impl DeliveryFlow {
    /// Nobody knows how far the client's side is: all of this may be on its way.
    pub fn unknown(sent: u64, bodies: impl Iterator<Item = u64>) -> DeliveryFlow {
        let mut flow = DeliveryFlow {
            sent,
            ..DeliveryFlow::default()
        };
        bodies.for_each(|body| flow.add(body));
        flow
    }

    pub fn has_room(&self, window: FlowWindow) -> bool {
        self.messages < window.messages && self.bytes < window.bytes
    }

    fn add(&mut self, body: u64) {
        self.messages += 1;
        self.bytes += body;
    }

    fn take(&mut self, body: u64) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(body);
    }

    /// A message leaves; ids ascend.
    pub fn send(&mut self, id: u64, body: u64) {
        self.sent = id;
        if id > self.received {
            self.add(body);
        }
    }

    /// A message is out no more.
    pub fn settled(&mut self, id: u64, body: u64) {
        if self.received < id && id <= self.sent {
            self.take(body);
        }
    }

    /// The ids that are on their way, were this one and all before it received.
    pub fn until(&self, up_to: u64) -> Option<std::ops::RangeInclusive<u64>> {
        let last = up_to.min(self.sent);
        (self.received < last).then(|| self.received + 1..=last)
    }

    /// `bodies`: of what is out among [`until`](Self::until).
    pub fn received(&mut self, up_to: u64, bodies: impl Iterator<Item = u64>) {
        bodies.for_each(|body| self.take(body));
        self.received = self.received.max(up_to);
    }

    /// What was sent after `sent` is to be sent again. `bodies`: of what is out and still sent then.
    pub fn rewind(&mut self, sent: u64, bodies: impl Iterator<Item = u64>) {
        let received = self.received;
        *self = DeliveryFlow::unknown(sent, bodies);
        self.received = received;
    }
}
