//! LEB128 numbers.

use crate::{DecodeCause, Decoded, Reader, Wire};
use bytes::{BufMut, BytesMut};

/// A number of 7 bits per byte, least significant first; the highest bit says that another byte follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Varint(pub u64);

/// Most bytes of a number.
const MAX_LEN: usize = 10;

/// Appends a LEB128 number.
pub fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

impl Wire for Varint {
    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.0);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let mut value = 0u64;
        for n in 0..MAX_LEN {
            let byte = from.u8()?;
            let part = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if n == MAX_LEN - 1 && part > 1 {
                return Err(from.error(DecodeCause::Limit));
            }
            value |= part << (7 * n);
            if byte & 0x80 == 0 {
                return Ok(Varint(value));
            }
        }
        Err(from.error(DecodeCause::Limit))
    }
}
