//! The AMQP 0.9.1 session: a state machine without I/O.
//!
//! [`AmqpSession`] implements [`session::Session`]: bytes and events in, bytes and calls on the
//! node out. Where the specification leaves room, the session behaves as RabbitMQ does, including
//! the error texts, because clients match on them.
//!
//! A method that waits for the metadata group or for a queue delays the later frames of its own
//! channel; other channels continue. Everything that a client can make the session store is bounded
//! by [`Limits`].
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod channel;
mod channel_prefetch;
mod confirms;
mod connection;
mod connection_state;
mod consume;
mod consumer_arguments;
mod content;
mod deliver;
mod directory;
mod failure;
mod flow;
mod handshake;
mod left_queues;
mod limits;
mod method_failure;
mod names;
mod protocol;
mod publish;
mod publish_tag;
mod replies;
mod retry;
mod topology;
mod transaction;
mod unacked;
mod wait;

pub use connection::AmqpSession;
pub use limits::{Limits, PRODUCT, SessionConfig, VERSION};
pub use protocol::Amqp091;
pub use session::LoginConfig;

#[cfg(test)]
mod tests {
    use super::AmqpSession;
    use crate::channel::Channel;

    /// The target is 3,000 octets for a connection with two channels, including kernel and driver.
    #[test]
    fn idle_connection_with_two_channels_stays_within_its_size() {
        let octets = size_of::<AmqpSession>() + 2 * size_of::<Channel>();
        assert!(octets <= 1_500, "{octets}");
    }
}
