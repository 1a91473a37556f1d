//! What a client has done with deliveries of a queue since it asked that queue last: the answer shows that the queue knows.

use super::ledger::Delivery;
use super::letter::LetterId;

#[derive(Clone, Debug, Default)]
pub struct Touched {
    pub settled: Vec<(LetterId, Delivery)>,
    pub given_back: Vec<(LetterId, Delivery)>,
}
