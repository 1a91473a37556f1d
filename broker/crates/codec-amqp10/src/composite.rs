use std::fmt;

use crate::reader::wrong;
use crate::value::{code, compound};
use crate::{
    Array, Decode, DecodeError, Descriptor, Encode, Output, Reader, Reason, Symbol, writer,
};

/// Reads the fields of a composite value in order (part 1, section 1.4).
#[derive(Debug)]
pub(crate) struct FieldReader<'a> {
    reader: Reader<'a>,
    left: u32,
    found: u32,
    composite: &'static str,
}

impl<'a> FieldReader<'a> {
    #[inline]
    pub(crate) fn open(
        reader: &mut Reader<'a>,
        composite: &'static str,
    ) -> Result<Self, DecodeError> {
        let code = reader
            .byte()
            .map_err(|reason| DecodeError::from(reason).of(composite))?;
        let (count, elements) = match code {
            code::LIST8 | code::LIST32 => compound(reader, code == code::LIST8)
                .map_err(|reason| DecodeError::from(reason).of(composite))?,
            code::LIST0 => (0, &[][..]),
            other => return wrong("list", other).map_err(|error| error.of(composite)),
        };
        Ok(Self {
            reader: Reader::new(elements),
            left: count,
            found: count,
            composite,
        })
    }

    #[inline]
    pub(crate) fn optional<T: Decode<'a>>(
        &mut self,
        field: &'static str,
    ) -> Result<Option<T>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let read = match self.reader.peek() {
            Ok(code::NULL) => {
                // The byte is there.
                let _ = self.reader.byte();
                return Ok(None);
            }
            Ok(_) => T::decode(&mut self.reader),
            Err(reason) => Err(reason.into()),
        };
        read.map(Some)
            .map_err(|error| error.within(self.composite, field))
    }

    /// Returns true if the next field is present and not null.
    #[inline]
    pub(crate) fn has_value(&self) -> bool {
        self.left > 0 && self.reader.peek().is_ok_and(|code| code != code::NULL)
    }

    #[inline]
    pub(crate) fn required<T: Decode<'a>>(
        &mut self,
        field: &'static str,
    ) -> Result<T, DecodeError> {
        match self.optional(field)? {
            Some(value) => Ok(value),
            None => Err(DecodeError::from(Reason::MissingField).within(self.composite, field)),
        }
    }

    #[inline]
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.left > 0 {
            return Err(DecodeError::from(Reason::TooManyFields {
                known: self.found - self.left,
                found: self.found,
            })
            .of(self.composite));
        }
        match self.reader.rest().len() {
            0 => Ok(()),
            left => Err(DecodeError::from(Reason::TrailingBytes(left)).of(self.composite)),
        }
    }
}

/// Reads `0x00 descriptor` and returns the descriptor's code; symbolic ones are looked up in `known`.
#[inline]
pub(crate) fn read_descriptor(
    reader: &mut Reader<'_>,
    known: &[(&str, u8)],
) -> Result<u64, DecodeError> {
    match reader.small_descriptor() {
        Some(code) => Ok(u64::from(code)),
        None => read_any_descriptor(reader, known),
    }
}

#[cold]
fn read_any_descriptor(reader: &mut Reader<'_>, known: &[(&str, u8)]) -> Result<u64, DecodeError> {
    match reader.byte()? {
        code::DESCRIBED => {}
        other => return wrong("a described type", other),
    }
    match reader.read()? {
        Descriptor::Code(code) => Ok(code),
        Descriptor::Symbol(symbol) => known
            .iter()
            .find(|(name, _)| *name == symbol.as_str())
            .map(|(_, code)| u64::from(*code))
            .ok_or(Reason::UnknownSymbolicDescriptor.into()),
    }
}

/// A field with any number of symbols: null, one symbol, or an array of them (part 1, section 1.4, `multiple`).
#[derive(Clone, Copy, Default)]
pub struct Multiple<'a>(Symbols<'a>);

#[derive(Clone, Copy, Default)]
enum Symbols<'a> {
    #[default]
    None,
    One(Symbol<'a>),
    Array(Array<'a>),
    Slice(&'a [Symbol<'a>]),
}

impl<'a> Multiple<'a> {
    /// No symbols.
    pub const NONE: Self = Self(Symbols::None);

    /// The given symbols.
    pub const fn new(symbols: &'a [Symbol<'a>]) -> Self {
        Self(Symbols::Slice(symbols))
    }

    /// The symbols in order.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'a>> + Clone + use<'a> {
        let (one, array, slice) = match self.0 {
            Symbols::None => (None, None, &[][..]),
            Symbols::One(symbol) => (Some(symbol), None, &[][..]),
            Symbols::Array(array) => (None, Some(array), &[][..]),
            Symbols::Slice(slice) => (None, None, slice),
        };
        let in_array = array.into_iter().flatten().filter_map(|value| match value {
            crate::Value::Symbol(symbol) => Some(symbol),
            _ => None,
        });
        one.into_iter().chain(in_array).chain(slice.iter().copied())
    }

    /// Returns true if there are no symbols.
    pub fn is_empty(&self) -> bool {
        match self.0 {
            Symbols::None => true,
            Symbols::One(_) => false,
            Symbols::Array(array) => array.is_empty(),
            Symbols::Slice(slice) => slice.is_empty(),
        }
    }

    /// Returns true if one of the symbols has this text.
    pub fn contains(&self, text: &str) -> bool {
        self.iter().any(|symbol| symbol.as_str() == text)
    }
}

impl PartialEq for Multiple<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Multiple<'_> {}

impl fmt::Debug for Multiple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Decode<'a> for Multiple<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.peek()? {
            code::SYMBOL8 | code::SYMBOL32 => Ok(Self(Symbols::One(reader.read()?))),
            code::ARRAY8 | code::ARRAY32 => match reader.read()? {
                crate::Value::Array(array)
                    if array.constructor.descriptor.is_none()
                        && matches!(array.constructor.code, code::SYMBOL8 | code::SYMBOL32) =>
                {
                    Ok(Self(Symbols::Array(array)))
                }
                crate::Value::Array(array) => wrong("an array of symbols", array.constructor.code),
                _ => Err(Reason::Truncated.into()),
            },
            other => wrong("a symbol or an array of symbols", other),
        }
    }
}

impl Encode for Multiple<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        match self.0 {
            Symbols::One(symbol) => symbol.encode(out),
            _ if self.is_empty() => out.put_byte(code::NULL),
            _ => writer::symbols(out, self.iter()),
        }
    }

    fn is_null(&self) -> bool {
        self.is_empty()
    }
}

/// A field with a default value, which is encoded as null.
pub(crate) struct Defaulted<T>(pub(crate) T, pub(crate) T);

impl<T: Encode + PartialEq> Encode for Defaulted<T> {
    #[inline]
    fn encode<O: Output>(&self, out: &mut O) {
        self.0.encode(out);
    }

    #[inline]
    fn is_null(&self) -> bool {
        self.0 == self.1
    }
}

/// The Rust type of a field.
macro_rules! field_type {
    (required $type:ty) => { $type };
    (optional $type:ty) => { Option<$type> };
    (multiple $type:ty) => { $type };
    (default $type:ty) => { $type };
}

macro_rules! read_field {
    (required $fields:ident $name:literal) => {
        $fields.required($name)?
    };
    (optional $fields:ident $name:literal) => {
        $fields.optional($name)?
    };
    (multiple $fields:ident $name:literal) => {
        $fields.optional($name)?.unwrap_or_default()
    };
    (default $fields:ident $name:literal $default:expr) => {
        $fields.optional($name)?.unwrap_or($default)
    };
}

macro_rules! write_field {
    (required $fields:ident $value:expr) => {
        $fields.field(&$value)
    };
    (optional $fields:ident $value:expr) => {
        $fields.field(&$value)
    };
    (multiple $fields:ident $value:expr) => {
        $fields.field(&$value)
    };
    (default $fields:ident $value:expr, $default:expr) => {
        $fields.field(&$crate::composite::Defaulted($value, $default))
    };
}

/// Defines a composite type (part 1, section 1.4): its struct, decoder and encoder.
///
/// Fields are `required` (mandatory), `optional`, `multiple` (symbols) or have a `default`.
macro_rules! composite {
    (
        $(#[$attribute:meta])*
        $name:ident $(<$life:lifetime>)? = $title:literal $code:literal $symbol:literal {
            $(
                $(#[$field_attribute:meta])*
                $field:ident $field_name:literal $kind:ident $type:ty $(= $default:expr)?
            ),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name $(<$life>)? {
            $(
                $(#[$field_attribute])*
                pub $field: field_type!($kind $type),
            )*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// The numeric descriptor.
            pub const DESCRIPTOR: u8 = $code;
            /// The symbolic descriptor.
            pub const SYMBOL: &'static str = $symbol;

            /// Reads the list of fields that follows the descriptor.
            #[inline]
            #[allow(unused_mut, reason = "types without fields")]
            pub(crate) fn read_fields(
                reader: &mut $crate::Reader $(<$life>)?,
            ) -> Result<Self, $crate::DecodeError> {
                let mut fields = $crate::composite::FieldReader::open(reader, $title)?;
                let value = Self {
                    $( $field: read_field!($kind fields $field_name $($default)?), )*
                };
                fields.finish()?;
                Ok(value)
            }
        }

        impl $(<$life>)? $crate::Encode for $name $(<$life>)? {
            #[inline]
            #[allow(unused_mut, reason = "types without fields")]
            fn encode<O: $crate::Output>(&self, out: &mut O) {
                $crate::writer::descriptor(out, Self::DESCRIPTOR);
                let mut fields = $crate::writer::list(out);
                $( write_field!($kind fields self.$field $(, $default)?); )*
                fields.finish();
            }
        }
    };
}

/// Implements [`Decode`] for a composite type that stands in a field, with its descriptor.
macro_rules! described_field {
    ($name:ident $(<$life:lifetime>)?, $title:literal) => {
        impl<'a> $crate::Decode<'a> for $name $(<$life>)? {
            fn decode(reader: &mut $crate::Reader<'a>) -> Result<Self, $crate::DecodeError> {
                let known = [($name::SYMBOL, $name::DESCRIPTOR)];
                match $crate::composite::read_descriptor(reader, &known)
                    .map_err(|error| error.of($title))?
                {
                    code if code == u64::from($name::DESCRIPTOR) => Self::read_fields(reader),
                    other => Err($crate::DecodeError::from($crate::Reason::UnknownDescriptor(other)).of($title)),
                }
            }
        }
    };
}
