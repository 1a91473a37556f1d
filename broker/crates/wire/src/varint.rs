//! LEB128 numbers: 7 bits per byte, least significant first; the highest bit says that another byte follows.

use crate::{DecodeCause, Decoded, Encoding, Reader};
use bytes::{BufMut, BytesMut};

/// The LEB128 encoding of integers: short for small numbers. Signed integers are zigzag-encoded first.
///
/// ```
/// struct Ack { request: u64, attempts: Option<u32> }
/// wire::wire_struct!(Ack { request: u64 as wire::Varint, attempts: Option<u32> as wire::Varint });
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Varint {}

/// Most bytes of a number.
const MAX_LEN: usize = 10;

/// Appends a LEB128 number.
#[inline]
pub fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

impl Reader<'_> {
    /// A LEB128 number.
    #[inline]
    pub fn varint(&mut self) -> Decoded<u64> {
        let mut value = 0u64;
        for n in 0..MAX_LEN {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if n == MAX_LEN - 1 && part > 1 {
                return Err(self.error(DecodeCause::Limit));
            }
            value |= part << (7 * n);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error(DecodeCause::Limit))
    }

    /// A LEB128 number that fits into 32 bits.
    #[inline]
    pub fn varint32(&mut self) -> Decoded<u32> {
        <Varint as Encoding<u32>>::get(self)
    }

    /// The LEB128 length of a list whose items have at least `min_len` bytes each. Fails if fewer bytes are left, so
    /// that a wrong length reserves no memory.
    pub fn varint_count(&mut self, min_len: usize) -> Decoded<usize> {
        let count = self.varint()?;
        self.check_count(usize::try_from(count).unwrap_or(usize::MAX), min_len)
    }
}

macro_rules! unsigned {
    ($($t:ty),*) => { $(
        impl Encoding<$t> for Varint {
            #[inline]
            fn put(value: &$t, out: &mut BytesMut) {
                put_varint(out, u64::from(*value));
            }

            #[inline]
            fn get(from: &mut Reader<'_>) -> Decoded<$t> {
                let value = from.varint()?;
                <$t>::try_from(value).map_err(|_| from.error(DecodeCause::Limit))
            }
        }
    )* };
}
unsigned!(u16, u32, u64);

macro_rules! signed {
    ($($t:ty),*) => { $(
        impl Encoding<$t> for Varint {
            fn put(value: &$t, out: &mut BytesMut) {
                let value = i64::from(*value);
                put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
            }

            fn get(from: &mut Reader<'_>) -> Decoded<$t> {
                let raw = from.varint()?;
                let value = ((raw >> 1) as i64) ^ -((raw & 1) as i64);
                <$t>::try_from(value).map_err(|_| from.error(DecodeCause::Limit))
            }
        }
    )* };
}
signed!(i32, i64);

/// A boolean, then the number if there is one.
impl<T> Encoding<Option<T>> for Varint
where
    Varint: Encoding<T>,
{
    fn put(value: &Option<T>, out: &mut BytesMut) {
        out.put_u8(u8::from(value.is_some()));
        if let Some(value) = value {
            <Varint as Encoding<T>>::put(value, out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Option<T>> {
        Ok(match from.get::<bool>()? {
            true => Some(<Varint as Encoding<T>>::get(from)?),
            false => None,
        })
    }
}
