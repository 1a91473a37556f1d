//! TLS of client listeners: certificates that are reloaded while the node serves, the records of a
//! connection without I/O, and user names from client certificates.
//!
//! This crate uses no socket and no thread. [`ServerTls`] creates a [`TlsChannel`] for each connection,
//! which converts between records and plain bytes. [`WatchedFiles::reload_if_changed`] must be called periodically to
//! reload changed files.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod channel;
mod files;
mod login;
mod outgoing;
mod server;

pub use channel::{ChannelError, ReceiveOutcome, TlsChannel};
pub use files::{FileError, FileStamp, certificates, private_key, roots};
pub use login::{CertificateLoginSource, SanType};
pub use outgoing::OutgoingBytes;
pub use server::{ClientVerification, ServerTls, TlsOptions, TlsVersions, WatchedFiles};
