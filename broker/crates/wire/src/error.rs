//! The error of bytes that are not what they should be.

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeCause {
    /// A length or fixed field points beyond the end of the bytes.
    #[error("ends early")]
    Short,
    /// Bytes follow the last field.
    #[error("continues after its last field")]
    Trailing,
    /// A newer version of the broker wrote it; the number is the version of the format.
    #[error("has version {0}, which this version of Posthorn cannot read")]
    Version(u8),
    /// The type that was to be read, and a tag that it does not have.
    #[error("has the unknown tag {1} for {0}")]
    Tag(&'static str, u8),
    /// A text is not UTF-8.
    #[error("holds text that is not UTF-8")]
    Utf8,
    /// A length, number or nesting above its limit.
    #[error("exceeds a size or nesting limit")]
    Limit,
    /// A part that has a format of its own and cannot be decoded.
    #[error("holds a damaged {0}")]
    Damaged(&'static str),
    /// A reference to an object of this kind that the bytes do not hold.
    #[error("refers to a missing {0}")]
    Inconsistent(&'static str),
}

/// Bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{format} {cause}")]
pub struct DecodeError {
    /// The format that was to be read, for example `metadata change`.
    pub format: &'static str,
    /// The cause.
    pub cause: DecodeCause,
}

/// The result of decoding.
pub type Decoded<T> = Result<T, DecodeError>;
