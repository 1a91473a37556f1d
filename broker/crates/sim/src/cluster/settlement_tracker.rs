//! What a client has done with deliveries of a queue since it asked that queue last: the answer shows that the queue knows.

use super::oracle::Delivery;
use super::tracked_message::MessageId;

#[derive(Clone, Debug, Default)]
pub struct SettlementTracker {
    pub settled: Vec<(MessageId, Delivery)>,
    pub given_back: Vec<(MessageId, Delivery)>,
}
