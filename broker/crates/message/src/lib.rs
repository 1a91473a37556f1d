//! The message container (R3) and the value types that every protocol shares.
//!
//! A [`Message`] is immutable and shared by reference: one contiguous buffer, which is also its stored and its
//! inter-node form, and the offsets of its parts. Same protocol in and out: no copy.
#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod build;
mod container;
mod deaths;
mod term;
mod value;

/// The largest body that any node may be configured to take (`max_message_size`). Formats on the disk and between nodes have
/// room for it, whatever this node's own setting is.
pub const MAX_BODY_BYTES: u32 = 512 << 20;

pub use build::{MessageBuilder, Room};
pub use container::{DecodeError, Message, Protocol};
pub use deaths::{DeadReason, Death, Deaths, Dying};
pub use term::{Term, bare};
pub use value::{Table, Value};
