//! The wire types of method arguments and properties (section 4.2.5).

use crate::{DecodeError, table};
use bytes::{BufMut, BytesMut};
use message::Table;
use std::borrow::Cow;

/// A cursor over a frame's payload. Consecutive bits share an octet, lowest bit first.
pub struct Reader<'a> {
    rest: &'a [u8],
    bits: u8,
    bits_used: u8,
}

impl<'a> Reader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            rest: bytes,
            bits: 0,
            bits_used: 0,
        }
    }

    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (part, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Short)?;
        self.rest = rest;
        self.bits_used = 0;
        Ok(part)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (part, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Short)?;
        self.rest = rest;
        self.bits_used = 0;
        Ok(*part)
    }

    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns an error if input remains.
    #[inline]
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(DecodeError::Trailing(n)),
        }
    }

    #[inline]
    fn bit(&mut self) -> Result<bool, DecodeError> {
        if self.bits_used == 0 || self.bits_used == 8 {
            let [octet] = self.array()?;
            self.bits = octet;
            self.bits_used = 0;
        }
        let bit = self.bits >> self.bits_used & 1 == 1;
        self.bits_used += 1;
        Ok(bit)
    }

    /// Reads a long string: a 32-bit length and the bytes.
    #[inline]
    pub fn long_string(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = u32::from_be_bytes(self.array()?);
        self.take(usize::try_from(len).map_err(|_| DecodeError::Short)?)
    }
}

/// Appends fields in the encoding that [`Reader`] reads.
pub struct Writer<'a> {
    pub out: &'a mut BytesMut,
    bits: u8,
    bits_used: u8,
}

impl<'a> Writer<'a> {
    #[inline]
    pub fn new(out: &'a mut BytesMut) -> Writer<'a> {
        Writer {
            out,
            bits: 0,
            bits_used: 0,
        }
    }

    #[inline]
    pub fn flush_bits(&mut self) {
        if self.bits_used > 0 {
            self.out.put_u8(self.bits);
            self.bits = 0;
            self.bits_used = 0;
        }
    }

    #[inline]
    fn bit(&mut self, bit: bool) {
        if self.bits_used == 8 {
            self.flush_bits();
        }
        self.bits |= u8::from(bit) << self.bits_used;
        self.bits_used += 1;
    }
}

/// Truncates to at most 255 bytes, the limit of a short string, at a character boundary.
pub(crate) fn short(text: &str) -> &str {
    let mut end = text.len().min(255);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or("")
}

/// A value with a wire encoding.
pub trait Field<'a>: Sized {
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError>;
    fn write(&self, to: &mut Writer<'_>);
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl<'a> Field<'a> for $ty {
            #[inline]
            fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(<$ty>::from_be_bytes(from.array()?))
            }
            #[inline]
            fn write(&self, to: &mut Writer<'_>) {
                to.flush_bits();
                to.out.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

impl<'a> Field<'a> for bool {
    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        from.bit()
    }
    #[inline]
    fn write(&self, to: &mut Writer<'_>) {
        to.bit(*self);
    }
}

/// A short string.
impl<'a> Field<'a> for &'a str {
    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let [len] = from.array()?;
        std::str::from_utf8(from.take(len.into())?).map_err(|_| DecodeError::Utf8)
    }
    #[inline]
    fn write(&self, to: &mut Writer<'_>) {
        to.flush_bits();
        let text = short(self);
        to.out.put_u8(text.len() as u8);
        to.out.extend_from_slice(text.as_bytes());
    }
}

/// A short string as it was received. The specification requires UTF-8, but clients put other bytes
/// into properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short<'a>(pub &'a [u8]);

impl<'a> Short<'a> {
    /// The text; None if it is not UTF-8.
    pub fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// The text for display, with invalid sequences replaced.
    pub fn lossy(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

impl<'a> From<&'a str> for Short<'a> {
    fn from(text: &'a str) -> Short<'a> {
        Short(text.as_bytes())
    }
}

impl<'a> Field<'a> for Short<'a> {
    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let [len] = from.array()?;
        Ok(Short(from.take(len.into())?))
    }
    #[inline]
    fn write(&self, to: &mut Writer<'_>) {
        to.flush_bits();
        let octets = self.0.get(..255).unwrap_or(self.0);
        to.out.put_u8(octets.len() as u8);
        to.out.extend_from_slice(octets);
    }
}

/// A long string.
impl<'a> Field<'a> for &'a [u8] {
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        from.long_string()
    }
    fn write(&self, to: &mut Writer<'_>) {
        to.flush_bits();
        let bytes = self.get(..u32::MAX as usize).unwrap_or(self);
        to.out.put_u32(bytes.len() as u32);
        to.out.extend_from_slice(bytes);
    }
}

impl<'a> Field<'a> for Table {
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        table::decode(from.long_string()?)
    }
    fn write(&self, to: &mut Writer<'_>) {
        to.flush_bits();
        table::encode(self, to.out);
    }
}
