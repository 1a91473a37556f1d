//! The integration tests of this crate, as one program: linking each file by itself takes longer than the tests.
#![forbid(unsafe_code)]

mod conformance;
mod connect;
mod fake;
mod hostile;
mod interceptors;
mod latency;
mod malformed;
mod older;
mod persistent_session;
mod publish;
mod session_state;
mod stored;
mod subscribe;
mod tracing_events;
