//! A client's settlements since its last request to a queue. The answer to the next request shows that the queue knows
//! them.

use super::oracle::Delivery;
use super::tracked_message::MessageId;

#[derive(Clone, Debug, Default)]
pub(super) struct SettlementTracker {
    pub settled: Vec<(MessageId, Delivery)>,
    pub requeued: Vec<(MessageId, Delivery)>,
}
