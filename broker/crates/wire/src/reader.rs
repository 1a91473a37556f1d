//! The checked reader.

use crate::Wire;
use crate::error::{DecodeCause, DecodeError, Decoded};
use bytes::Bytes;

/// Most levels of nested tables and arrays.
pub const MAX_DEPTH: usize = 16;

/// Reads an encoding from front to back.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    format: &'static str,
    rest: &'a [u8],
    /// The buffer that `rest` is a part of, if values may share it.
    source: Option<&'a Bytes>,
    depth: usize,
}

impl<'a> Reader<'a> {
    /// A reader whose values own their bytes. `format` names the encoding in errors.
    pub fn new(format: &'static str, raw: &'a [u8]) -> Reader<'a> {
        Reader {
            format,
            rest: raw,
            source: None,
            depth: 0,
        }
    }

    /// A reader whose [`Bytes`] share the buffer `raw`.
    pub fn shared(format: &'static str, raw: &'a Bytes) -> Reader<'a> {
        Reader {
            source: Some(raw),
            ..Reader::new(format, raw)
        }
    }

    /// The error for a cause found by the caller.
    pub fn error(&self, cause: DecodeCause) -> DecodeError {
        DecodeError {
            format: self.format,
            cause,
        }
    }

    /// Number of bytes that have not been read.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// True if all bytes have been read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `n` bytes.
    #[inline]
    pub fn take(&mut self, n: usize) -> Decoded<&'a [u8]> {
        let (part, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or_else(|| self.error(DecodeCause::Short))?;
        self.rest = rest;
        Ok(part)
    }

    /// The next `n` bytes; shares the buffer if the reader was created for that.
    #[inline]
    pub fn take_bytes(&mut self, n: usize) -> Decoded<Bytes> {
        let source = self.source;
        let part = self.take(n)?;
        Ok(match source {
            Some(source) => source.slice_ref(part),
            None => Bytes::copy_from_slice(part),
        })
    }

    /// All bytes that have not been read; shares the buffer if the reader was created for that.
    pub fn take_rest(&mut self) -> Bytes {
        let rest = std::mem::take(&mut self.rest);
        match self.source {
            Some(source) => source.slice_ref(rest),
            None => Bytes::copy_from_slice(rest),
        }
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (part, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| self.error(DecodeCause::Short))?;
        self.rest = rest;
        Ok(*part)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Bytes with a `u32` length.
    pub fn blob(&mut self) -> Decoded<&'a [u8]> {
        let len = u32::get(self)?;
        self.take(len as usize)
    }

    /// Text with a `u32` length.
    pub fn text(&mut self) -> Decoded<&'a str> {
        let len = u32::get(self)?;
        self.text_of(len as usize)
    }

    /// Text of `len` bytes.
    pub fn text_of(&mut self, len: usize) -> Decoded<&'a str> {
        let text = self.take(len)?;
        std::str::from_utf8(text).map_err(|_| self.error(DecodeCause::Utf8))
    }

    /// A value.
    #[inline]
    pub fn get<T: Wire>(&mut self) -> Decoded<T> {
        T::get(self)
    }

    /// The `u32` length of a list whose items have at least `min_len` bytes each. Fails if fewer bytes are left, so
    /// that a wrong length reserves no memory.
    pub fn count(&mut self, min_len: usize) -> Decoded<usize> {
        let count = u32::get(self)? as usize;
        self.check_count(count, min_len)
    }

    pub(crate) fn check_count(&self, count: usize, min_len: usize) -> Decoded<usize> {
        let least = count.checked_mul(min_len.max(1));
        match least {
            Some(least) if least <= self.rest.len() => Ok(count),
            _ => Err(self.error(DecodeCause::Short)),
        }
    }

    /// Fails unless all bytes have been read.
    pub fn end(&self) -> Decoded<()> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(self.error(DecodeCause::Trailing)),
        }
    }

    /// Reads one level deeper in nested tables and arrays. Fails below [`MAX_DEPTH`].
    pub fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<T> {
        if self.depth >= MAX_DEPTH {
            return Err(self.error(DecodeCause::Limit));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }
}
