//! AMQP 1.0 bytes to frames, performatives and message sections, and back; no I/O.
//!
//! Section numbers are those of the OASIS standard of 29 October 2012: part 1 (types), part 2 (transport), part 3 (messaging),
//! part 4 (transactions) and part 5 (security).
//!
//! # Decoding
//!
//! Every decoded value borrows from the bytes that it was read from; decoding allocates nothing. Sizes and counts are compared with
//! the bytes that remain before anything is read, nesting is limited by [`MAX_DEPTH`], and arrays whose elements have no bytes are
//! limited by [`MAX_EMPTY_ELEMENTS`]. No input makes a function of this crate panic.
//!
//! - [`ProtocolHeader`]: the eight bytes that start a layer (section 2.2, 5.2.1, 5.3.1).
//! - [`Frame`]: the frame header and its body (section 2.3). A body without bytes is a heartbeat (section 2.4.5).
//! - [`Performative`] and [`SaslFrame`]: frame bodies (sections 2.7 and 5.3.3).
//! - [`Value`]: any value of the type system (part 1). Lists, maps and arrays are views that are iterated on demand.
//! - [`Sections`]: the sections of a message (section 3.2) as offsets. The bare message is never copied or changed.
//!
//! # Encoding
//!
//! Encoders append to an [`Output`] (`BytesMut` or `Vec<u8>`), choose the shortest encoding of each value, and omit trailing null
//! fields. They allocate nothing beside the output's own growth.
//!
//! # Errors
//!
//! [`DecodeError`] names the performative and the field, and maps to a standard error condition ([`DecodeError::condition`]).
//! [`FrameError`] is always an `amqp:connection:framing-error`.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

#[macro_use]
mod composite;
mod condition;
mod error;
mod frame;
mod message;
mod output;
mod performative;
mod reader;
mod sasl;
mod state;
mod terminus;
mod value;
mod writer;

pub use composite::Multiple;
pub use condition::{AmqpError, Condition};
pub use error::{DecodeError, Reason};
pub use frame::{
    FRAME_HEADER_SIZE, Frame, FrameError, FrameKind, MIN_MAX_FRAME_SIZE, PROTOCOL_HEADER_SIZE,
    ProtocolHeader, ProtocolId, encode_frame, encode_heartbeat, encode_sasl_frame,
    encode_transfer_frame, parse_frame,
};
pub use message::{
    Body, Header, Properties, Section, SectionKind, SectionReader, Sections, encode_data_section,
    encode_data_section_start, encode_section_descriptor,
};
pub use output::Output;
pub use performative::{
    Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Performative, PerformativeKind,
    ReceiverSettleMode, Role, SenderSettleMode, Transfer,
};
pub use reader::{Decode, Reader};
pub use sasl::{
    SaslChallenge, SaslCode, SaslFrame, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse,
};
pub use state::{
    Accepted, Declare, Declared, DeliveryState, Discharge, Modified, Outcome, Received, Rejected,
    Released, TransactionalState,
};
pub use terminus::{AnyTarget, Coordinator, Durability, ExpiryPolicy, Source, Target};
pub use value::{
    Array, Described, Descriptor, Elements, EncodedEntries, EncodedValue, Entries, List, Map,
    Symbol, Timestamp, Uuid, Value,
};
pub use writer::{CompoundWriter, Encode, encode_described, list, map};

/// Deepest nesting of described types, lists, maps and arrays that is decoded. Bounds the stack.
pub const MAX_DEPTH: u8 = 32;
/// Most elements in an array whose elements occupy no bytes (null, true, 0). Bounds the time, because no byte bounds their count.
pub const MAX_EMPTY_ELEMENTS: u32 = 4096;
/// Longest delivery tag in bytes (section 2.8.7).
pub const MAX_DELIVERY_TAG_SIZE: usize = 32;
