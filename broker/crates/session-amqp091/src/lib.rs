//! The AMQP 0.9.1 session: a sans-io state machine.
//!
//! [`AmqpSession`] implements [`session::Session`]: bytes and notices in, bytes and calls on the node out. Where the
//! standard leaves room, RabbitMQ's behaviour decides, down to the texts of errors, because clients match on them.
//!
//! A method that must wait for the metadata group or for a queue holds up the frames behind it on its own channel;
//! other channels go on. Everything a client can make the session keep has a bound in [`Limits`].
#![forbid(unsafe_code)]

mod channel;
mod channel_prefetch;
mod confirms;
mod connection;
mod connection_state;
mod consume;
mod content;
mod deaths;
mod deliver;
mod directory;
mod envelope;
mod failure;
mod flow;
mod handshake;
mod left_queues;
mod limits;
mod method_failure;
mod mqtt;
mod names;
mod protocol;
mod publish;
mod replies;
mod retry;
mod topology;
pub mod trace;
mod transaction;
mod unacked;
mod wait;

pub use connection::AmqpSession;
pub use envelope::MessageEnvelope;
pub use limits::{Limits, Logins, PRODUCT, SessionConfig, VERSION};
pub use protocol::Amqp091;

#[cfg(test)]
mod tests {
    use super::AmqpSession;
    use crate::channel::Channel;

    /// The goal is 3,000 octets for a connection with two channels, kernel and driver included.
    #[test]
    fn an_idle_connection_with_two_channels_is_small() {
        let octets = size_of::<AmqpSession>() + 2 * size_of::<Channel>();
        assert!(octets <= 1_500, "{octets}");
    }
}
