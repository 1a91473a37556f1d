//! TLS of client listeners: certificates that are reloaded while the node serves, the records of a
//! connection without I/O, and user names from client certificates.
//!
//! This crate uses no socket and no thread. [`Server`] creates a [`Channel`] for each connection,
//! which converts between records and plain bytes. [`Watched::reload_if_changed`] must be called periodically to
//! reload changed files.
#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod channel;
mod files;
mod login;
mod outgoing;
mod server;

pub use channel::{Channel, ChannelError, ReceiveOutcome};
pub use files::{FileError, Stamp, certificates, private_key, roots};
pub use login::{LoginFrom, SanType};
pub use outgoing::Outgoing;
pub use server::{Options, Server, Verify, Versions, Watched};
