//! AMQP 0.9.1 bytes to frames and back; no I/O.
//!
//! Everything decoded borrows from the bytes it was read from; only field tables are copied, and those within
//! [`table::MAX_VALUES`] and [`table::MAX_DEPTH`]. Nothing here panics on bytes from outside.
#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod content;
mod field;
mod frame;
mod header;
mod method;
mod shown;
pub mod table;

pub use content::{ContentHeader, HeaderEdit, Properties};
pub use field::Short;
pub use frame::{
    Frame, FrameError, FrameKind, encode_body, encode_content_header, encode_heartbeat,
    encode_method, open_body, parse_frame,
};
pub use header::{PROTOCOL_HEADER, ProtocolHeader};
pub use method::Method;
pub use shown::{Octets, Shown};

/// Octets of a frame that are not payload: type, channel, size, end marker (section 4.2.3).
pub const FRAME_OVERHEAD: usize = 8;
/// The smallest frame-max a peer may ask for (section 4.2.3, `frame-min-size`).
pub const FRAME_MIN_SIZE: u32 = 4096;
/// Last octet of every frame.
pub const FRAME_END: u8 = 0xCE;

/// Why bytes are not what the protocol's grammar says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end within a field.
    #[error("ends early")]
    Short,
    /// Bytes that are left after the last field.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// Short strings must be UTF-8.
    #[error("a short string is not UTF-8")]
    Utf8,
    /// Class id and method id that this codec does not know.
    #[error("no method {1} in class {0}")]
    UnknownMethod(u16, u16),
    /// The type letter of a field value.
    #[error("field value of unknown type {0}")]
    FieldType(u8),
    /// Bounds the stack that hostile tables can use.
    #[error("field table nested deeper than {}", table::MAX_DEPTH)]
    TooDeep,
    /// Bounds the memory that hostile tables can use.
    #[error("field table holds more than {} values", table::MAX_VALUES)]
    TooManyValues,
    /// More than one word of property flags, which this codec does not accept; the number is the first word.
    #[error("property flags {0:#06x} say that more of them follow")]
    PropertyFlags(u16),
}
