//! Encoder and decoder of AMQP 0.9.1 frames, methods and properties, without I/O.
//!
//! The main types are [`Frame`], [`Method`], [`ContentHeader`] and [`Properties`]. Decoded values
//! borrow from the input. Only field tables are copied, within [`table::MAX_VALUES`] and
//! [`table::MAX_DEPTH`]. No input causes a panic. Section numbers refer to the AMQP 0.9.1
//! specification.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod content;
mod field;
mod frame;
mod frequent;
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
pub use frequent::{BasicDeliver, encode_ack};
pub use header::{PROTOCOL_HEADER, ProtocolHeader};
pub use method::Method;
pub use shown::{Octets, Shown};

/// Octets of a frame besides its payload: type, channel, size and end marker (section 4.2.3).
pub const FRAME_OVERHEAD: usize = 8;
/// The smallest frame-max that a peer may request (section 4.2.3, `frame-min-size`).
pub const FRAME_MIN_SIZE: u32 = 4096;
/// The last octet of every frame.
pub const FRAME_END: u8 = 0xCE;

/// The reason why bytes violate the protocol's grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends within a field.
    #[error("ends early")]
    Short,
    /// Bytes remain after the last field.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// A short string is not UTF-8.
    #[error("a short string is not UTF-8")]
    Utf8,
    /// Unknown class id and method id.
    #[error("no method {1} in class {0}")]
    UnknownMethod(u16, u16),
    /// Unknown type octet of a field value.
    #[error("field value of unknown type {0}")]
    FieldType(u8),
    /// A table exceeds the nesting limit, which bounds the stack.
    #[error("field table nested deeper than {}", table::MAX_DEPTH)]
    TooDeep,
    /// A table exceeds the number of values, which bounds the memory.
    #[error("field table holds more than {} values", table::MAX_VALUES)]
    TooManyValues,
    /// More than one word of property flags, which this codec does not support. The number is the
    /// first word.
    #[error("property flags {0:#06x} say that more of them follow")]
    PropertyFlags(u16),
}
