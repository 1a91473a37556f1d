//! The wire types (section 1.5).

use crate::DecodeError;
use bytes::{BufMut, BytesMut};

/// Bytes of a string or of binary data at most: its length has two bytes.
pub const MAX_STRING: usize = 65_535;
/// The largest variable byte integer: four bytes of seven bits.
pub(crate) const MAX_VARIABLE: usize = 268_435_455;

/// A cursor over a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketReader<'a> {
    rest: &'a [u8],
}

impl<'a> PacketReader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> PacketReader<'a> {
        PacketReader { rest: bytes }
    }

    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (part, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(part)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (part, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*part)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Identifies a packet within its session; never 0 [MQTT-2.2.1-3].
    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<u16, DecodeError> {
        match self.u16()? {
            0 => Err(DecodeError::PacketId),
            id => Ok(id),
        }
    }

    /// Section 1.5.5; in as few bytes as it needs [MQTT-1.5.5-1].
    #[inline]
    pub(crate) fn variable(&mut self) -> Result<usize, DecodeError> {
        match variable(self.rest)? {
            None => Err(DecodeError::Short),
            Some(VariableByteInteger { overlong: true, .. }) => Err(DecodeError::LengthEncoding),
            Some(VariableByteInteger { value, len, .. }) => {
                self.take(len)?;
                Ok(value)
            }
        }
    }

    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u16()?;
        self.take(len.into())
    }

    /// [MQTT-1.5.4-1], [MQTT-1.5.4-2].
    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let text = self.utf8()?;
        if text.as_bytes().contains(&0) {
            return Err(DecodeError::NullCharacter);
        }
        Ok(text)
    }

    /// Reads a name: a topic, a filter or a client id. Rejects characters that section 1.5.4.2
    /// advises against.
    #[inline]
    pub(crate) fn name(&mut self) -> Result<&'a str, DecodeError> {
        let name = self.utf8()?;
        // Nearly all names are printable ASCII, which is checked without a branch per byte.
        let plain = |byte: &u8| (b' '..0x7F).contains(byte);
        match name.bytes().fold(true, |all, byte| all & plain(&byte)) {
            true => Ok(name),
            false => check_uncommon_name(name),
        }
    }

    #[inline]
    fn utf8(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.binary()?).map_err(|_| DecodeError::Utf8)
    }

    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails if bytes are left over.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(DecodeError::Trailing(n)),
        }
    }
}

/// Checks a name that is not only printable ASCII.
#[cold]
fn check_uncommon_name(name: &str) -> Result<&str, DecodeError> {
    match name.chars().find(|c| is_unwanted(*c)) {
        None => Ok(name),
        Some('\0') => Err(DecodeError::NullCharacter),
        Some(_) => Err(DecodeError::UnwantedCharacter),
    }
}

/// Returns true for control characters and Unicode non-characters.
fn is_unwanted(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || code & 0xFFFE == 0xFFFE || (0xFDD0..=0xFDEF).contains(&code)
}

/// A variable byte integer at the front of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VariableByteInteger {
    pub value: usize,
    /// Its size in bytes.
    pub len: usize,
    /// It is encoded with more bytes than necessary.
    pub overlong: bool,
}

/// Returns `None` if the integer is incomplete.
#[inline]
pub(crate) fn variable(bytes: &[u8]) -> Result<Option<VariableByteInteger>, DecodeError> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some(VariableByteInteger {
                value,
                len: at + 1,
                overlong: at > 0 && byte == 0,
            }));
        }
    }
    match bytes.len() {
        0..4 => Ok(None),
        _ => Err(DecodeError::LengthEncoding),
    }
}

/// Returns the encoded size of a variable byte integer.
#[inline]
pub(crate) fn variable_len(value: usize) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// Appends a variable byte integer. Values too large for the format are truncated to their low
/// bits; callers limit them.
#[inline]
pub(crate) fn put_variable(out: &mut BytesMut, value: usize) {
    let mut rest = value & MAX_VARIABLE;
    loop {
        let low = (rest & 0x7F) as u8;
        rest >>= 7;
        if rest == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

/// Appends binary data, truncated to [`MAX_STRING`] bytes.
pub(crate) fn put_binary(out: &mut BytesMut, bytes: &[u8]) {
    let bytes = bytes.get(..MAX_STRING).unwrap_or(bytes);
    out.put_u16(bytes.len() as u16);
    out.put_slice(bytes);
}

/// Appends a string, truncated to [`MAX_STRING`] bytes at a character boundary.
pub(crate) fn put_string(out: &mut BytesMut, text: &str) {
    let mut end = text.len().min(MAX_STRING);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    put_binary(out, text.get(..end).unwrap_or("").as_bytes());
}

/// Appends the output of `write` with its length, a variable byte integer, in front. The output is
/// moved only if it is longer than 127 bytes.
pub(crate) fn put_measured(out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_u8(0);
    write(out);
    let len = out.len() - at - 1;
    let extra = variable_len(len) - 1;
    if extra > 0 {
        out.put_bytes(0, extra);
        out.copy_within(at + 1..at + 1 + len, at + 1 + extra);
    }
    let mut rest = len;
    for slot in out.iter_mut().skip(at).take(extra + 1) {
        *slot = (rest & 0x7F) as u8 | 0x80;
        rest >>= 7;
    }
    if let Some(last) = out.get_mut(at + extra) {
        *last &= 0x7F;
    }
}
