//! The AMQP 1.0 session: a state machine without I/O.
//!
//! [`Amqp10Session`] implements [`session::Session`]: bytes and events in, bytes and calls on the node out. The protocol
//! engine of crate `amqp10` reads frames and keeps windows and credit; this crate connects its links with queues and
//! exchanges. Where the specification leaves room, the session behaves as RabbitMQ does.
//!
//! An attach that waits for a queue or for the metadata group delays no other link. Everything that a client can make
//! the session store is bounded by [`Limits`].
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod address;
mod attach;
mod browse;
mod config;
mod connection;
mod consume;
mod details;
mod filters;
mod handshake;
mod management;
mod publish;
mod refusal;
mod settle;
mod state;
mod stored;
mod transaction;
mod unconfirmed;
mod values;
mod wait;

pub use config::{Amqp10, Amqp10Config, Limits};
pub use connection::Amqp10Session;

/// Ignores the error of a command for a link that has ended meanwhile. The client knows of the end, so nothing is left
/// to be done.
fn ended<T>(result: Result<T, amqp10::CommandError>) {
    let _ = result;
}
