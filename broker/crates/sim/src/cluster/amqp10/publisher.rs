//! The client's end of a link on which it sends (section 2.6.7).

use super::Amqp10Queue;
use super::receiver::distance;
use codec_amqp10::SenderSettleMode;

/// A message whose last transfer was not sent.
pub(super) struct PartialMessage {
    /// None: a request to the management node.
    pub number: Option<u64>,
    pub delivery: u32,
    pub bytes: Vec<u8>,
    pub sent: usize,
    pub is_settled: bool,
}

pub(super) struct Publisher {
    /// None: the link with the requests to the management node.
    pub queue: Option<Amqp10Queue>,
    /// Unique in the run.
    pub number: u64,
    pub mode: SenderSettleMode,
    delivery_count: u32,
    /// The delivery count up to which the broker allows deliveries.
    limit: u32,
    pub partial: Option<PartialMessage>,
}

impl Publisher {
    pub(super) fn new(
        queue: Option<Amqp10Queue>,
        number: u64,
        mode: SenderSettleMode,
        delivery_count: u32,
    ) -> Publisher {
        Publisher {
            queue,
            number,
            mode,
            delivery_count,
            limit: delivery_count,
            partial: None,
        }
    }

    /// The delivery count, for the attach.
    pub(super) fn delivery_count(&self) -> u32 {
        self.delivery_count
    }

    pub(super) fn has_credit(&self) -> bool {
        distance(self.delivery_count, self.limit) > 0
    }

    pub(super) fn use_credit(&mut self) {
        debug_assert!(self.has_credit());
        self.delivery_count = self.delivery_count.wrapping_add(1);
    }

    pub(super) fn set_credit(&mut self, count: Option<u32>, credit: u32) -> Result<(), String> {
        let count = count.ok_or("the flow of a receiver lacks its delivery count")?;
        if distance(count, self.delivery_count) < 0 {
            return Err(format!(
                "a flow counts {count} deliveries, and {} were sent",
                self.delivery_count
            ));
        }
        self.limit = count.wrapping_add(credit);
        Ok(())
    }
}
