//! The compact binary form of everything a session and a queue say to each other: on the way between shards and
//! nodes, and (requests) inside the log entries of quorum queues.
//!
//! Every list starts with a version byte. Integers are LEB128 varints unless a width is named; messages are a
//! big-endian `u32` length and the container's own bytes, so that a reader hands out slices of the frame and copies
//! nothing. Readers take bytes from anywhere: every length is checked against what is there, nesting is bounded
//! ([`MAX_DEPTH`]) and nothing is allocated on the word of a count alone.

mod events;
mod reader;
mod requests;
mod table;
#[cfg(test)]
mod tests;

pub use events::{decode_events, encode_events, put_event, take_event};
pub use reader::Reader;
pub use requests::{
    decode_to_queue, encode_to_queue, put_body, put_session, put_settings, put_to_queue, take_body,
    take_session, take_settings, take_to_queue,
};
pub use table::{decode_table, encode_table, is_shallow, put_table, take_table};

pub(crate) use events::{put_answer, put_refusal, take_answer, take_refusal};
pub(crate) use reader::put_varint;
pub(crate) use requests::{
    put_annotations, put_ranges, put_spec, take_annotations, take_ranges, take_spec,
};

/// Version of the lists this module writes, and the only one it reads.
pub const VERSION: u8 = 1;
/// Tables and arrays within tables: deeper ones are refused.
pub const MAX_DEPTH: usize = 16;

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("queue frame ends early")]
    Short,
    #[error("queue frame goes on where it should end")]
    Trailing,
    #[error("queue frame version {0} is not known to this program")]
    Version(u8),
    #[error("queue frame holds {found} where a kind of {what} should be")]
    Kind { what: &'static str, found: u8 },
    #[error("queue frame holds a number that is out of range")]
    Range,
    #[error("queue frame holds a table nested deeper than {MAX_DEPTH}")]
    TooDeep,
    #[error("queue frame holds a name that is not UTF-8")]
    Utf8,
    #[error("queue frame holds a damaged message: {0}")]
    Message(#[from] message::DecodeError),
}
