//! Frames of the RabbitMQ stream protocol to commands, and back; no I/O.
//!
//! The protocol is that of RabbitMQ 4.3. [`split_frame`] splits a connection's bytes into frames,
//! [`ClientCommand::decode`] reads the frames of clients and [`ServerCommand::encode`] writes those of the server. The other two
//! directions are for clients and tests.
//!
//! Decoded commands borrow from the frame, and decoding allocates nothing. Lists are verified when they are decoded and read
//! on demand; the messages of a publish are verified when they are read. A count is compared with the bytes that remain, and
//! with [`MAX_ITEMS`]. No input makes a function of this crate panic.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod command;
mod error;
mod field;
mod frame;
mod key;
mod publish;

pub use command::{ClientCommand, CommittedChunk, ServerCommand, encode_deliver_head};
pub use error::{DecodeError, FrameError, Reason};
pub use field::{
    Broker, CommandVersions, Item, List, MAX_ITEMS, MAX_TEXT_BYTES, NO_LEADER, OffsetSpecification,
    Property, PublishingError, Remainder, ResponseCode, Statistic, StreamMetadata, Trailing,
};
pub use frame::{DEFAULT_FRAME_MAX, MAX_FRAME_MAX, MIN_FRAME_MAX, SIZE_BYTES, split_frame};
pub use key::CommandKey;
pub use publish::{PublishedBody, PublishedMessage, PublishedMessages};
