//! The integration tests of this crate, as one program: linking each file by itself takes longer than the tests.
#![forbid(unsafe_code)]

mod commands;
mod fake;
mod handshake;
mod session;
mod super_streams;
mod tracing_events;
