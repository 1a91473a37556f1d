//! The message container and the value types shared by all protocols.
//!
//! A [`Message`] is immutable and reference-counted: one contiguous buffer, which is also its stored and
//! inter-node form, and the offsets of its parts. A message consumed with the protocol it was published with
//! is never converted. [`Deaths`] is its dead-letter history, [`Value`] and [`Table`] are AMQP field values,
//! and [`DecodeError`] reports an invalid container.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod build;
mod container;
mod deaths;
mod term;
mod value;
mod wire_form;

/// Largest body, in bytes, that any node may be configured to accept (`max_message_size`). On-disk and
/// inter-node formats have room for it, whatever this node's setting is.
pub const MAX_BODY_BYTES: u32 = 512 << 20;

pub use build::{MessageBuilder, Room};
pub use container::{DecodeError, Message, Protocol};
pub use deaths::{DeadReason, Death, Deaths, Dying};
pub use term::{Term, bare};
pub use value::{Table, Value};
pub use wire_form::MAX_TABLE_DEPTH;
