//! TLS of client listeners: certificates that change while the node serves, the records of one
//! connection without any I/O, and the name that a client's certificate gives.
//!
//! No socket and no thread: [`Channel`] takes bytes and gives bytes, [`Watched::look`] is called now and then.
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
