//! The integration tests of this crate, as one program: linking each file by itself takes longer than the tests.
#![forbid(unsafe_code)]

mod channel_limit;
mod consume;
mod counts;
mod fake;
mod flow;
mod handshake;
mod hostile;
mod interceptors;
mod publish;
mod replies;
mod slow_queue;
mod topology;
mod transaction;
