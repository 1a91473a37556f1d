//! Receivers with credit and drain, and publishers to their queues.
//!
//! They use a small protocol that exists only here ([`CreditProtocol`]): its session passes credit, settlements and deliveries
//! on between its client and the queue. So the rules hold for the interface that AMQP 1.0 sessions use.

mod client;
mod clients;
mod oracle;
mod session;
mod wire;

pub(super) use clients::{CreditClients, FIRST};
pub(super) use session::CreditProtocol;

/// A queue with receivers that have credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CreditQueue {
    Quorum = 0,
    Classic = 1,
}

impl CreditQueue {
    const ALL: [CreditQueue; 2] = [CreditQueue::Quorum, CreditQueue::Classic];

    fn name(self) -> &'static str {
        match self {
            CreditQueue::Quorum => "credit-quorum",
            CreditQueue::Classic => "credit-classic",
        }
    }
}
