use std::fmt;

use crate::reader::wrong;
use crate::{Decode, DecodeError, MAX_DEPTH, MAX_EMPTY_ELEMENTS, Reader, Reason};

/// Format codes (part 1, section 1.6).
pub(crate) mod code {
    pub(crate) const DESCRIBED: u8 = 0x00;
    pub(crate) const NULL: u8 = 0x40;
    pub(crate) const TRUE: u8 = 0x41;
    pub(crate) const FALSE: u8 = 0x42;
    pub(crate) const UINT0: u8 = 0x43;
    pub(crate) const ULONG0: u8 = 0x44;
    pub(crate) const LIST0: u8 = 0x45;
    pub(crate) const UBYTE: u8 = 0x50;
    pub(crate) const BYTE: u8 = 0x51;
    pub(crate) const SMALLUINT: u8 = 0x52;
    pub(crate) const SMALLULONG: u8 = 0x53;
    pub(crate) const SMALLINT: u8 = 0x54;
    pub(crate) const SMALLLONG: u8 = 0x55;
    pub(crate) const BOOLEAN: u8 = 0x56;
    pub(crate) const USHORT: u8 = 0x60;
    pub(crate) const SHORT: u8 = 0x61;
    pub(crate) const UINT: u8 = 0x70;
    pub(crate) const INT: u8 = 0x71;
    pub(crate) const FLOAT: u8 = 0x72;
    pub(crate) const CHAR: u8 = 0x73;
    pub(crate) const DECIMAL32: u8 = 0x74;
    pub(crate) const ULONG: u8 = 0x80;
    pub(crate) const LONG: u8 = 0x81;
    pub(crate) const DOUBLE: u8 = 0x82;
    pub(crate) const TIMESTAMP: u8 = 0x83;
    pub(crate) const DECIMAL64: u8 = 0x84;
    pub(crate) const DECIMAL128: u8 = 0x94;
    pub(crate) const UUID: u8 = 0x98;
    pub(crate) const BINARY8: u8 = 0xa0;
    pub(crate) const STRING8: u8 = 0xa1;
    pub(crate) const SYMBOL8: u8 = 0xa3;
    pub(crate) const BINARY32: u8 = 0xb0;
    pub(crate) const STRING32: u8 = 0xb1;
    pub(crate) const SYMBOL32: u8 = 0xb3;
    pub(crate) const LIST8: u8 = 0xc0;
    pub(crate) const MAP8: u8 = 0xc1;
    pub(crate) const LIST32: u8 = 0xd0;
    pub(crate) const MAP32: u8 = 0xd1;
    pub(crate) const ARRAY8: u8 = 0xe0;
    pub(crate) const ARRAY32: u8 = 0xf0;
}

/// A symbol: ASCII text from a constrained domain (part 1, section 1.6.21).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Symbol<'a>(&'a str);

impl<'a> Symbol<'a> {
    /// A symbol with the given text. None if the text is not ASCII.
    pub const fn new(text: &'a str) -> Option<Self> {
        if text.is_ascii() {
            Some(Self(text))
        } else {
            None
        }
    }

    /// A symbol that the program itself names. Fails to compile in a constant if the text is not ASCII.
    pub const fn from_static(text: &'static str) -> Symbol<'static> {
        assert!(text.is_ascii(), "symbols are ASCII");
        Symbol(text)
    }

    /// The symbol's text.
    #[inline]
    pub const fn as_str(self) -> &'a str {
        self.0
    }

    #[inline]
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Result<Self, Reason> {
        if !bytes.is_ascii() {
            return Err(Reason::NotAscii);
        }
        std::str::from_utf8(bytes)
            .map(Self)
            .map_err(|_| Reason::NotAscii)
    }
}

impl fmt::Debug for Symbol<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ":{}", self.0)
    }
}

impl fmt::Display for Symbol<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Milliseconds since the Unix epoch (part 1, section 1.6.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

/// A universally unique id (part 1, section 1.6.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

/// The descriptor of a described type (part 1, section 1.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor<'a> {
    /// A domain in the upper 32 bits and an id in the lower 32.
    Code(u64),
    /// A name.
    Symbol(Symbol<'a>),
}

impl<'a> Decode<'a> for Descriptor<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.peek()? {
            code::SMALLULONG | code::ULONG | code::ULONG0 => Ok(Self::Code(reader.read()?)),
            code::SYMBOL8 | code::SYMBOL32 => Ok(Self::Symbol(reader.read()?)),
            other => Err(Reason::ReservedDescriptor(other).into()),
        }
    }
}

/// A value with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described<'a> {
    /// The name of the type.
    pub descriptor: Descriptor<'a>,
    /// The encoded value, with its constructor.
    pub(crate) encoded: &'a [u8],
}

impl<'a> Described<'a> {
    /// The described value.
    pub fn value(&self) -> Value<'a> {
        Value::read_shallow(&mut Reader::new(self.encoded)).unwrap_or(Value::Null)
    }

    /// The bytes of the described value, with its constructor and without the descriptor.
    pub fn encoded(&self) -> &'a [u8] {
        self.encoded
    }
}

/// A list (part 1, section 1.6.22). Equality compares the encoded elements.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct List<'a> {
    pub(crate) count: u32,
    pub(crate) elements: &'a [u8],
}

impl<'a> List<'a> {
    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the list has no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> Elements<'a> {
        Elements {
            left: self.count,
            reader: Reader::new(self.elements),
            shared: None,
        }
    }
}

impl<'a> IntoIterator for List<'a> {
    type Item = Value<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

impl fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A map (part 1, section 1.6.23). Equality compares the encoded entries.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Map<'a> {
    /// Keys and values, so always even.
    pub(crate) count: u32,
    pub(crate) elements: &'a [u8],
}

impl<'a> Map<'a> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.count as usize / 2
    }

    /// Returns true if the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The entries in the order in which they are encoded.
    pub fn iter(&self) -> Entries<'a> {
        Entries(Elements {
            left: self.count,
            reader: Reader::new(self.elements),
            shared: None,
        })
    }

    /// The entries in the order in which they are encoded, each value only skipped. For maps that were checked before and of which few
    /// values are read.
    pub fn encoded_entries(&self) -> EncodedEntries<'a> {
        EncodedEntries {
            left: self.count / 2,
            rest: self.elements,
        }
    }

    /// The value of the first entry whose key is a symbol or string with this text.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.iter()
            .find(|(found, _)| found.as_text() == Some(key))
            .map(|(_, value)| value)
    }
}

impl<'a> IntoIterator for Map<'a> {
    type Item = (Value<'a>, Value<'a>);
    type IntoIter = Entries<'a>;

    fn into_iter(self) -> Entries<'a> {
        self.iter()
    }
}

impl fmt::Debug for Map<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'a> Decode<'a> for Map<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.peek()? {
            code::MAP8 | code::MAP32 => match Value::decode(reader)? {
                Value::Map(map) => Ok(map),
                _ => Err(Reason::Truncated.into()),
            },
            other => wrong("map", other),
        }
    }
}

impl<'a> Decode<'a> for List<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.peek()? {
            code::LIST0 | code::LIST8 | code::LIST32 => match Value::decode(reader)? {
                Value::List(list) => Ok(list),
                _ => Err(Reason::Truncated.into()),
            },
            other => wrong("list", other),
        }
    }
}

/// An array: elements that share one constructor (part 1, section 1.6.24). Equality compares the encoded elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    pub(crate) count: u32,
    pub(crate) constructor: Constructor<'a>,
    pub(crate) elements: &'a [u8],
}

/// The constructor that the elements of an array share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Constructor<'a> {
    pub(crate) descriptor: Option<Descriptor<'a>>,
    pub(crate) code: u8,
}

impl<'a> Array<'a> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The descriptor of every element.
    pub fn descriptor(&self) -> Option<Descriptor<'a>> {
        self.constructor.descriptor
    }

    /// The elements in order, without their descriptor.
    pub fn iter(&self) -> Elements<'a> {
        Elements {
            left: self.count,
            reader: Reader::new(self.elements),
            shared: Some(self.constructor.code),
        }
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterates over the elements of a [`List`] or an [`Array`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    left: u32,
    reader: Reader<'a>,
    shared: Option<u8>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The elements were checked when the list was decoded, so reading them again does not fail.
        match self.shared {
            Some(code) => Value::read_with_code(code, &mut self.reader).ok(),
            None => Value::read_shallow(&mut self.reader).ok(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

/// Iterates over the entries of a [`Map`].
#[derive(Clone, Debug)]
pub struct Entries<'a>(Elements<'a>);

impl<'a> Iterator for Entries<'a> {
    type Item = (Value<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }
}

/// Iterates over the entries of a [`Map`] without decoding them. Ends early at bytes that are no value.
#[derive(Clone, Debug)]
pub struct EncodedEntries<'a> {
    left: u32,
    rest: &'a [u8],
}

impl<'a> EncodedEntries<'a> {
    #[inline]
    fn take(&mut self) -> Option<EncodedValue<'a>> {
        let (taken, rest) = self.rest.split_at_checked(encoded_size(self.rest)?)?;
        self.rest = rest;
        Some(EncodedValue(taken))
    }
}

impl<'a> Iterator for EncodedEntries<'a> {
    type Item = (EncodedValue<'a>, EncodedValue<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some((self.take()?, self.take()?))
    }
}

/// One encoded value with its constructor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedValue<'a>(&'a [u8]);

impl<'a> EncodedValue<'a> {
    /// Returns true for a symbol.
    #[inline]
    pub fn is_symbol(self) -> bool {
        matches!(self.0.first(), Some(&(code::SYMBOL8 | code::SYMBOL32)))
    }

    /// The bytes of a string; None for other types.
    #[inline]
    pub fn string_bytes(self) -> Option<&'a [u8]> {
        match *self.0.first()? {
            code::STRING8 => self.0.get(2..),
            code::STRING32 => self.0.get(5..),
            _ => None,
        }
    }

    /// The value without the values inside it; null if the bytes are damaged.
    pub fn value(self) -> Value<'a> {
        Value::read_shallow(&mut Reader::new(self.0)).unwrap_or_default()
    }
}

/// The size of the value at the start of `bytes`. The upper half of a format code is the width of the value, or of its size (part 1,
/// section 1.2).
#[inline]
fn encoded_size(bytes: &[u8]) -> Option<usize> {
    Some(match *bytes.first()? >> 4 {
        0x4 => 1,
        0x5 => 2,
        0x6 => 3,
        0x7 => 5,
        0x8 => 9,
        0x9 => 17,
        0xa | 0xc | 0xe => 2 + usize::from(*bytes.get(1)?),
        0xb | 0xd | 0xf => {
            let size = bytes.get(1..)?.first_chunk()?;
            usize::try_from(u32::from_be_bytes(*size))
                .ok()?
                .checked_add(5)?
        }
        _ => {
            let mut reader = Reader::new(bytes);
            Value::read_shallow(&mut reader).ok()?;
            bytes.len() - reader.rest().len()
        }
    })
}

/// Any value of the type system (part 1). The values inside were checked when this one was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Value<'a> {
    /// No value.
    #[default]
    Null,
    /// True or false.
    Boolean(bool),
    /// Unsigned, 8 bits.
    Ubyte(u8),
    /// Unsigned, 16 bits.
    Ushort(u16),
    /// Unsigned, 32 bits.
    Uint(u32),
    /// Unsigned, 64 bits.
    Ulong(u64),
    /// Signed, 8 bits.
    Byte(i8),
    /// Signed, 16 bits.
    Short(i16),
    /// Signed, 32 bits.
    Int(i32),
    /// Signed, 64 bits.
    Long(i64),
    /// IEEE 754 binary32.
    Float(f32),
    /// IEEE 754 binary64.
    Double(f64),
    /// IEEE 754 decimal32, encoded.
    Decimal32([u8; 4]),
    /// IEEE 754 decimal64, encoded.
    Decimal64([u8; 8]),
    /// IEEE 754 decimal128, encoded.
    Decimal128([u8; 16]),
    /// A Unicode character.
    Char(char),
    /// An instant.
    Timestamp(Timestamp),
    /// A universally unique id.
    Uuid(Uuid),
    /// Bytes.
    Binary(&'a [u8]),
    /// UTF-8 text.
    String(&'a str),
    /// ASCII text from a constrained domain.
    Symbol(Symbol<'a>),
    /// Values of any types.
    List(List<'a>),
    /// Pairs of keys and values.
    Map(Map<'a>),
    /// Values of one type.
    Array(Array<'a>),
    /// A value with a descriptor.
    Described(Described<'a>),
}

impl<'a> Value<'a> {
    /// The text of a string or symbol.
    pub fn as_text(&self) -> Option<&'a str> {
        match self {
            Self::String(text) => Some(text),
            Self::Symbol(symbol) => Some(symbol.as_str()),
            _ => None,
        }
    }

    /// Returns true if this is no value.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Reads a value without the values inside it.
    #[inline]
    pub(crate) fn read_shallow(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let code = reader.byte()?;
        if code != code::DESCRIBED {
            return Self::read_with_code(code, reader);
        }
        let descriptor = reader.read()?;
        let encoded = reader.rest();
        skip_described(reader)?;
        Ok(Self::Described(Described {
            descriptor,
            encoded: &encoded[..encoded.len() - reader.rest().len()],
        }))
    }

    /// Reads the bytes that follow a format code, without the values inside it.
    pub(crate) fn read_with_code(code: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match code {
            code::NULL => Self::Null,
            code::TRUE => Self::Boolean(true),
            code::FALSE => Self::Boolean(false),
            code::BOOLEAN => match reader.byte()? {
                0 => Self::Boolean(false),
                1 => Self::Boolean(true),
                other => return Err(Reason::Boolean(other).into()),
            },
            code::UBYTE => Self::Ubyte(reader.byte()?),
            code::USHORT => Self::Ushort(u16::from_be_bytes(reader.fixed()?)),
            code::UINT => Self::Uint(u32::from_be_bytes(reader.fixed()?)),
            code::SMALLUINT => Self::Uint(u32::from(reader.byte()?)),
            code::UINT0 => Self::Uint(0),
            code::ULONG => Self::Ulong(u64::from_be_bytes(reader.fixed()?)),
            code::SMALLULONG => Self::Ulong(u64::from(reader.byte()?)),
            code::ULONG0 => Self::Ulong(0),
            code::BYTE => Self::Byte(i8::from_be_bytes(reader.fixed()?)),
            code::SHORT => Self::Short(i16::from_be_bytes(reader.fixed()?)),
            code::INT => Self::Int(i32::from_be_bytes(reader.fixed()?)),
            code::SMALLINT => Self::Int(i32::from(i8::from_be_bytes(reader.fixed()?))),
            code::LONG => Self::Long(i64::from_be_bytes(reader.fixed()?)),
            code::SMALLLONG => Self::Long(i64::from(i8::from_be_bytes(reader.fixed()?))),
            code::FLOAT => Self::Float(f32::from_be_bytes(reader.fixed()?)),
            code::DOUBLE => Self::Double(f64::from_be_bytes(reader.fixed()?)),
            code::DECIMAL32 => Self::Decimal32(reader.fixed()?),
            code::DECIMAL64 => Self::Decimal64(reader.fixed()?),
            code::DECIMAL128 => Self::Decimal128(reader.fixed()?),
            code::CHAR => {
                let number = u32::from_be_bytes(reader.fixed()?);
                Self::Char(char::from_u32(number).ok_or(Reason::Character(number))?)
            }
            code::TIMESTAMP => Self::Timestamp(Timestamp(i64::from_be_bytes(reader.fixed()?))),
            code::UUID => Self::Uuid(Uuid(reader.fixed()?)),
            code::BINARY8 => Self::Binary(reader.variable8()?),
            code::BINARY32 => Self::Binary(reader.variable32()?),
            code::STRING8 => Self::String(text(reader.variable8()?)?),
            code::STRING32 => Self::String(text(reader.variable32()?)?),
            code::SYMBOL8 => Self::Symbol(Symbol::from_bytes(reader.variable8()?)?),
            code::SYMBOL32 => Self::Symbol(Symbol::from_bytes(reader.variable32()?)?),
            code::LIST0 => Self::List(List::default()),
            code::LIST8 | code::LIST32 => {
                let (count, elements) = compound(reader, code == code::LIST8)?;
                Self::List(List { count, elements })
            }
            code::MAP8 | code::MAP32 => {
                let (count, elements) = compound(reader, code == code::MAP8)?;
                if !count.is_multiple_of(2) {
                    return Err(Reason::OddMap(count).into());
                }
                Self::Map(Map { count, elements })
            }
            code::ARRAY8 | code::ARRAY32 => Self::Array(array(reader, code == code::ARRAY8)?),
            other => return Err(Reason::UnknownFormatCode(other).into()),
        })
    }

    /// Checks every value inside this one.
    fn check(&self, depth: u8) -> Result<(), DecodeError> {
        let (left, elements, shared) = match self {
            Self::List(list) => (list.count, list.elements, None),
            Self::Map(map) => (map.count, map.elements, None),
            Self::Array(array) => (array.count, array.elements, Some(array.constructor.code)),
            Self::Described(described) => {
                let depth = depth.checked_sub(1).ok_or(Reason::TooDeep)?;
                let mut reader = Reader::new(described.encoded);
                return Self::read_shallow(&mut reader)?.check(depth);
            }
            _ => return Ok(()),
        };
        let depth = depth.checked_sub(1).ok_or(Reason::TooDeep)?;
        let mut reader = Reader::new(elements);
        if shared.is_some() && elements.is_empty() {
            // Elements without bytes have no contents.
            return Ok(());
        }
        for _ in 0..left {
            let value = match shared {
                Some(code) => Self::read_with_code(code, &mut reader)?,
                None => Self::read_shallow(&mut reader)?,
            };
            value.check(depth)?;
        }
        match reader.rest().len() {
            0 => Ok(()),
            left => Err(Reason::TrailingBytes(left).into()),
        }
    }
}

impl<'a> Decode<'a> for Value<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let value = Self::read_shallow(reader)?;
        value.check(MAX_DEPTH)?;
        Ok(value)
    }
}

fn text(bytes: &[u8]) -> Result<&str, Reason> {
    std::str::from_utf8(bytes).map_err(|_| Reason::Utf8)
}

/// Reads the size, count and elements of a list or map.
#[inline]
pub(crate) fn compound<'a>(
    reader: &mut Reader<'a>,
    short: bool,
) -> Result<(u32, &'a [u8]), Reason> {
    let mut body = Reader::new(if short {
        reader.variable8()?
    } else {
        reader.variable32()?
    });
    let count = read_count(&mut body, short)?;
    let elements = body.rest();
    // Each element has a constructor of at least one byte.
    if count as usize > elements.len() {
        return Err(Reason::ElementCount {
            count,
            bytes: elements.len(),
        });
    }
    Ok((count, elements))
}

#[inline]
fn read_count(body: &mut Reader<'_>, short: bool) -> Result<u32, Reason> {
    Ok(if short {
        u32::from(body.byte()?)
    } else {
        u32::from_be_bytes(body.fixed()?)
    })
}

fn array<'a>(reader: &mut Reader<'a>, short: bool) -> Result<Array<'a>, DecodeError> {
    let mut body = Reader::new(if short {
        reader.variable8()?
    } else {
        reader.variable32()?
    });
    let count = read_count(&mut body, short)?;
    let mut constructor = Constructor {
        descriptor: None,
        code: body.byte()?,
    };
    if constructor.code == code::DESCRIBED {
        constructor.descriptor = Some(body.read()?);
        constructor.code = body.byte()?;
    }
    let elements = body.rest();
    let least = least_size(constructor.code)?;
    let is_possible = match elements.len().checked_div(least) {
        Some(most) => count as usize <= most,
        None => count <= MAX_EMPTY_ELEMENTS && elements.is_empty(),
    };
    if !is_possible {
        return Err(Reason::ElementCount {
            count,
            bytes: elements.len(),
        }
        .into());
    }
    Ok(Array {
        count,
        constructor,
        elements,
    })
}

/// The least number of bytes that follow a format code.
fn least_size(code: u8) -> Result<usize, Reason> {
    Ok(match code {
        code::NULL..=code::LIST0 => 0,
        code::UBYTE..=code::BOOLEAN => 1,
        code::USHORT | code::SHORT => 2,
        code::UINT..=code::DECIMAL32 => 4,
        code::ULONG..=code::DECIMAL64 => 8,
        code::DECIMAL128 | code::UUID => 16,
        code::BINARY8 | code::STRING8 | code::SYMBOL8 => 1,
        code::BINARY32 | code::STRING32 | code::SYMBOL32 => 4,
        code::LIST8 | code::MAP8 => 2,
        code::LIST32 | code::MAP32 => 8,
        code::ARRAY8 => 3,
        code::ARRAY32 => 9,
        other => return Err(Reason::UnknownFormatCode(other)),
    })
}

/// Skips the value after a descriptor. Each further descriptor counts as one level of nesting.
fn skip_described(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    for _ in 0..MAX_DEPTH {
        let code = reader.byte()?;
        if code != code::DESCRIBED {
            Value::read_with_code(code, reader)?;
            return Ok(());
        }
        reader.read::<Descriptor<'_>>()?;
    }
    Err(Reason::TooDeep.into())
}
