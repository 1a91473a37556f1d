use crate::value::code;
use crate::{DecodeError, Reason, Symbol, Timestamp};

/// Reads values from the front of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that were not read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns true if every byte was read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads one value of type `T`.
    #[inline]
    pub fn read<T: Decode<'a>>(&mut self) -> Result<T, DecodeError> {
        T::decode(self)
    }

    #[inline]
    pub(crate) fn peek(&self) -> Result<u8, Reason> {
        self.rest.first().copied().ok_or(Reason::Truncated)
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, Reason> {
        let (&first, rest) = self.rest.split_first().ok_or(Reason::Truncated)?;
        self.rest = rest;
        Ok(first)
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Reason> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Reason::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Reason::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads the start of a described type whose descriptor is a ulong of one byte, as all descriptors of the standard are. None: the
    /// descriptor has another encoding, or there is none.
    #[inline]
    pub(crate) fn small_descriptor(&mut self) -> Option<u8> {
        let [code::DESCRIBED, code::SMALLULONG, descriptor, rest @ ..] = self.rest else {
            return None;
        };
        self.rest = rest;
        Some(*descriptor)
    }

    /// Returns true and skips these bytes if they come next.
    #[inline]
    pub(crate) fn skip<const N: usize>(&mut self, bytes: [u8; N]) -> bool {
        match self.rest.split_first_chunk() {
            Some((found, rest)) if *found == bytes => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Reads a size or count of four bytes.
    #[inline]
    pub(crate) fn length32(&mut self) -> Result<usize, Reason> {
        Ok(u32::from_be_bytes(self.fixed()?) as usize)
    }

    /// Reads bytes that a size of one byte precedes.
    #[inline]
    pub(crate) fn variable8(&mut self) -> Result<&'a [u8], Reason> {
        let size = self.byte()?;
        self.take(usize::from(size))
    }

    /// Reads bytes that a size of four bytes precedes.
    #[inline]
    pub(crate) fn variable32(&mut self) -> Result<&'a [u8], Reason> {
        let size = self.length32()?;
        self.take(size)
    }
}

/// A type that values of the type system decode to.
pub trait Decode<'a>: Sized {
    /// Reads one encoded value.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

#[inline]
pub(crate) fn wrong<T>(expected: &'static str, found: u8) -> Result<T, DecodeError> {
    Err(Reason::WrongType { expected, found }.into())
}

impl<'a> Decode<'a> for bool {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.byte()? {
            code::TRUE => Ok(true),
            code::FALSE => Ok(false),
            code::BOOLEAN => match reader.byte()? {
                0 => Ok(false),
                1 => Ok(true),
                other => Err(Reason::Boolean(other).into()),
            },
            other => wrong("boolean", other),
        }
    }
}

impl<'a> Decode<'a> for u8 {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.byte()? {
            code::UBYTE => Ok(reader.byte()?),
            other => wrong("ubyte", other),
        }
    }
}

impl<'a> Decode<'a> for u16 {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.byte()? {
            code::USHORT => Ok(u16::from_be_bytes(reader.fixed()?)),
            other => wrong("ushort", other),
        }
    }
}

impl<'a> Decode<'a> for u32 {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.byte()? {
            code::SMALLUINT => Ok(u32::from(reader.byte()?)),
            code::UINT => Ok(u32::from_be_bytes(reader.fixed()?)),
            code::UINT0 => Ok(0),
            other => wrong("uint", other),
        }
    }
}

impl<'a> Decode<'a> for u64 {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.byte()? {
            code::SMALLULONG => Ok(u64::from(reader.byte()?)),
            code::ULONG => Ok(u64::from_be_bytes(reader.fixed()?)),
            code::ULONG0 => Ok(0),
            other => wrong("ulong", other),
        }
    }
}

impl<'a> Decode<'a> for Timestamp {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.byte()? {
            code::TIMESTAMP => Ok(Timestamp(i64::from_be_bytes(reader.fixed()?))),
            other => wrong("timestamp", other),
        }
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.byte()? {
            code::BINARY8 => Ok(reader.variable8()?),
            code::BINARY32 => Ok(reader.variable32()?),
            other => wrong("binary", other),
        }
    }
}

impl<'a> Decode<'a> for &'a str {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = match reader.byte()? {
            code::STRING8 => reader.variable8()?,
            code::STRING32 => reader.variable32()?,
            other => return wrong("string", other),
        };
        std::str::from_utf8(bytes).map_err(|_| Reason::Utf8.into())
    }
}

impl<'a> Decode<'a> for Symbol<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = match reader.byte()? {
            code::SYMBOL8 => reader.variable8()?,
            code::SYMBOL32 => reader.variable32()?,
            other => return wrong("symbol", other),
        };
        Ok(Symbol::from_bytes(bytes)?)
    }
}
