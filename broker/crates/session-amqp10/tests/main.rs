//! The integration tests of this crate, as one program: linking each file by itself takes longer than the tests.
#![forbid(unsafe_code)]

mod browse;
mod fake;
mod features;
mod hostile;
mod interceptors;
mod management;
mod replies;
mod session;
mod transactions;
mod websocket;
