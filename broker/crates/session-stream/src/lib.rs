//! Connections of the RabbitMQ stream protocol as a state machine.
//!
//! [`Connection`] is a step function without I/O: bytes of the client and time go in, frames for the client and [`Step`]s for
//! the owner come out. It does the handshake (peer properties, SASL, tune, open), heartbeats and closing; the owner
//! verifies credentials and handles the commands of an open connection.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod connection;

pub use connection::{CloseReason, Connection, ConnectionConfig, MAX_HANDSHAKE_FRAME_BYTES, Step};
