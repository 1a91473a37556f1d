use std::fmt;

use crate::Condition;

/// The rule that an encoded value breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The bytes end within a value.
    #[error("the bytes end within a value")]
    Truncated,
    /// Part 1, section 1.6 defines no encoding with this code.
    #[error("unknown format code {0:#04x}")]
    UnknownFormatCode(u8),
    /// Nesting above [`crate::MAX_DEPTH`].
    #[error("values are nested deeper than {}", crate::MAX_DEPTH)]
    TooDeep,
    /// More elements than the bytes that follow can hold, or more than [`crate::MAX_EMPTY_ELEMENTS`] elements without bytes.
    #[error("{count} elements in {bytes} bytes")]
    ElementCount {
        /// The number of elements that the value claims.
        count: u32,
        /// The number of bytes for them.
        bytes: usize,
    },
    /// The size of a list, map or array is not the size of its elements.
    #[error("{0} bytes follow the last element")]
    TrailingBytes(usize),
    /// A map with a key that has no value (part 1, section 1.6.23).
    #[error("a map has an odd number of elements ({0})")]
    OddMap(u32),
    /// A string that is not UTF-8.
    #[error("a string is not valid UTF-8")]
    Utf8,
    /// A symbol that is not ASCII.
    #[error("a symbol is not ASCII")]
    NotAscii,
    /// A number that is no Unicode scalar value.
    #[error("{0:#x} is not a Unicode character")]
    Character(u32),
    /// The one-byte encoding of boolean allows 0 and 1.
    #[error("{0:#04x} is not a boolean")]
    Boolean(u8),
    /// A descriptor that is neither a ulong nor a symbol (part 1, section 1.2.1: reserved).
    #[error("a descriptor of format code {0:#04x} is reserved")]
    ReservedDescriptor(u8),
    /// A described type that is not defined where it stands.
    #[error("unknown descriptor {0:#x}")]
    UnknownDescriptor(u64),
    /// A described type with a symbolic descriptor that is not defined where it stands.
    #[error("unknown symbolic descriptor")]
    UnknownSymbolicDescriptor,
    /// A value of another type than the field has.
    #[error("expected {expected}, found format code {found:#04x}")]
    WrongType {
        /// The type of the field.
        expected: &'static str,
        /// The format code of the value.
        found: u8,
    },
    /// A mandatory field that is null or absent.
    #[error("missing mandatory field")]
    MissingField,
    /// A composite value with more fields than the standard defines.
    #[error("{found} fields, at most {known} are defined")]
    TooManyFields {
        /// The number of fields that the type has.
        known: u32,
        /// The number of fields in the value.
        found: u32,
    },
    /// A number outside of the range that the type restricts it to.
    #[error("{value} is not a valid {of}")]
    OutOfRange {
        /// The restricted type.
        of: &'static str,
        /// The number.
        value: u64,
    },
    /// A symbol that the type does not define.
    #[error("unknown {0}")]
    UnknownSymbol(&'static str),
    /// A delivery tag above [`crate::MAX_DELIVERY_TAG_SIZE`].
    #[error("a delivery tag of {0} bytes is longer than {max}", max = crate::MAX_DELIVERY_TAG_SIZE)]
    DeliveryTag(usize),
    /// A section of a message before one that it must follow, or a second one of its kind (section 3.2).
    #[error("section {0:#04x} is repeated or out of order")]
    SectionOrder(u8),
    /// A key of annotations that is not a symbol. Keys of type ulong are reserved, and none is defined (section 3.2.10).
    #[error("the key of an annotation must be a symbol")]
    AnnotationKey,
    /// A message of 4 GiB or more.
    #[error("the message has 4 GiB or more")]
    MessageSize,
}

/// Bytes that do not decode, and the place where they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The broken rule.
    pub reason: Reason,
    /// The frame body's type.
    pub performative: Option<&'static str>,
    /// The innermost composite type.
    pub composite: Option<&'static str>,
    /// The field of that composite type.
    pub field: Option<&'static str>,
}

impl DecodeError {
    /// The error condition that the peer gets (section 2.8.15).
    ///
    /// A field of the wrong type, without a mandatory value or out of range is an invalid field; an unknown performative is not
    /// implemented; anything else cannot be decoded.
    pub fn condition(&self) -> Condition<'static> {
        match self.reason {
            Reason::WrongType { .. }
            | Reason::MissingField
            | Reason::OutOfRange { .. }
            | Reason::UnknownSymbol(_)
            | Reason::DeliveryTag(_) => Condition::InvalidField,
            Reason::UnknownDescriptor(_) | Reason::UnknownSymbolicDescriptor => {
                Condition::NotImplemented
            }
            _ => Condition::DecodeError,
        }
    }

    /// Returns true if the bytes are a well-formed value of the type system and only its contents are wrong.
    pub fn is_well_formed(&self) -> bool {
        self.condition() != Condition::DecodeError
            || matches!(
                self.reason,
                Reason::TooManyFields { .. } | Reason::SectionOrder(_) | Reason::AnnotationKey
            )
    }

    #[cold]
    pub(crate) fn within(mut self, composite: &'static str, field: &'static str) -> Self {
        if self.composite.is_none() {
            self.composite = Some(composite);
            self.field = Some(field);
        }
        self
    }

    #[cold]
    pub(crate) fn of(mut self, composite: &'static str) -> Self {
        self.composite.get_or_insert(composite);
        self
    }

    #[cold]
    pub(crate) fn in_performative(mut self, name: &'static str) -> Self {
        self.performative = Some(name);
        self
    }
}

impl From<Reason> for DecodeError {
    #[inline]
    fn from(reason: Reason) -> Self {
        Self {
            reason,
            performative: None,
            composite: None,
            field: None,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(performative) = self.performative {
            write!(f, "{performative}: ")?;
        }
        match (self.composite, self.field) {
            (Some(composite), Some(field)) if self.performative == Some(composite) => {
                write!(f, "field '{field}': ")?;
            }
            (Some(composite), Some(field)) => write!(f, "field '{field}' of {composite}: ")?,
            (Some(composite), None) if self.performative != Some(composite) => {
                write!(f, "{composite}: ")?;
            }
            _ => {}
        }
        self.reason.fmt(f)
    }
}

impl std::error::Error for DecodeError {}
