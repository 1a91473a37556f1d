//! AMQP 1.0 clients: publishers to a queue and receivers from it, on several sessions and links of their connections.
//!
//! The client side has an implementation of the protocol of its own ([`wire`], [`session`]), on the codec alone. It shares no
//! state machine with the broker, and checks every frame of the broker: windows, credit, delivery ids, tags and outcomes.

mod browsers;
mod client;
mod clients;
mod connection;
mod filters;
mod management;
mod message;
mod oracle;
mod publisher;
mod receiver;
mod session;
mod wire;

pub(super) use clients::{Amqp10Clients, FIRST};

/// A queue of these clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Amqp10Queue {
    Quorum,
    Classic,
    /// A quorum queue with a single active consumer. Its receivers only accept, so that its order is known.
    SingleActive,
    /// A quorum queue whose receivers share it by filters.
    FilteredQuorum,
    /// A classic queue whose receivers share it by filters.
    FilteredClassic,
}

impl Amqp10Queue {
    fn name(self) -> &'static str {
        match self {
            Amqp10Queue::Quorum => "amqp10-quorum",
            Amqp10Queue::Classic => "amqp10-classic",
            Amqp10Queue::SingleActive => "amqp10-single-active",
            Amqp10Queue::FilteredQuorum => "amqp10-filtered-quorum",
            Amqp10Queue::FilteredClassic => "amqp10-filtered-classic",
        }
    }

    fn is_quorum(self) -> bool {
        !matches!(self, Amqp10Queue::Classic | Amqp10Queue::FilteredClassic)
    }

    /// The messages have parts, and each receiver takes those of one.
    fn is_filtered(self) -> bool {
        matches!(
            self,
            Amqp10Queue::FilteredQuorum | Amqp10Queue::FilteredClassic
        )
    }
}
