//! The session of the RabbitMQ stream protocol: a state machine without I/O.
//!
//! [`StreamSession`] implements [`Session`](::session::Session): bytes and events in, bytes and calls on the node out. Inside, [`Connection`]
//! is a step function for the handshake (peer properties, SASL, tune, open), heartbeats and closing; the session verifies
//! credentials and performs the commands of an open connection. Where the protocol leaves room, the session behaves as RabbitMQ
//! does.
//!
//! Publishes pass to the leader of a stream in the encoding of the client, and chunks pass from a replica to the client
//! as they are stored. Everything that a client can make the session store is bounded by [`Limits`].
//!
//! A shard service coordinates single active consumers (module `groups`).
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod config;
mod connection;
mod consume;
mod groups;
mod login;
mod lookup;
mod publish;
mod session;
mod streams;
mod users;
mod wait;

pub use crate::session::StreamSession;
pub use config::{Limits, StreamConfig, StreamProtocol};
pub use connection::{CloseReason, Connection, ConnectionConfig, MAX_HANDSHAKE_FRAME_BYTES, Step};
