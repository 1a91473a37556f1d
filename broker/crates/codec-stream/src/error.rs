//! Errors of frames and commands.

use crate::CommandKey;

/// A frame that cannot be read. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is larger than the negotiated maximum.
    #[error("a frame of {size} bytes exceeds the maximum of {limit} bytes")]
    TooLarge {
        /// Size of the frame in bytes, without the size field.
        size: u32,
        /// The maximum in bytes.
        limit: u32,
    },
    /// The frame has no room for a key and a version.
    #[error("a frame of {size} bytes is too short for a command")]
    TooShort {
        /// Size of the frame in bytes, without the size field.
        size: u32,
    },
}

/// Why a command cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is no command with this key, or the other side never sends it.
    #[error("unknown command {key:#06x}, version {version}")]
    UnknownCommand {
        /// Key of the command, with the bit that marks responses.
        key: u16,
        /// Version of the command.
        version: u16,
    },
    /// The command has no such version.
    #[error("{command} has no version {version}")]
    UnknownVersion {
        /// The command.
        command: CommandKey,
        /// The version.
        version: u16,
    },
    /// A field is malformed.
    #[error("{command}: {field} {reason}")]
    Field {
        /// The command.
        command: CommandKey,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: Reason,
    },
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The frame ends in it.
    #[error("is truncated")]
    Truncated,
    /// The frame goes on behind it, although it is the last one.
    #[error("is followed by further bytes")]
    Trailing,
    /// It is text and not UTF-8.
    #[error("is not UTF-8")]
    Utf8,
    /// It is null or has a negative length.
    #[error("has a negative length")]
    NegativeLength,
    /// It has more items than the limit.
    #[error("has too many items")]
    TooMany,
    /// It has a value that is not defined.
    #[error("has an undefined value")]
    Undefined,
}
