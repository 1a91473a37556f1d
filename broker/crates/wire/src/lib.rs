//! One reader and writer for the broker's own formats on disk and between nodes.
//!
//! A type with one encoding implements [`Wire`]. The macros [`wire_struct!`], [`wire_enum!`] and [`wire_newtype!`]
//! implement it from a list of fields or variants, so that reading and writing cannot differ. Integers are big-endian
//! with their natural width; a field that says `as Varint` has the compact form [`Varint`]. Texts and lists carry a `u32`
//! length.
//!
//! Bytes come from disks and peers and can be anything: a [`Reader`] checks every length against the bytes that are
//! there before it allocates, bounds the nesting ([`MAX_DEPTH`]) and returns a [`DecodeError`] that names the format.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod error;
mod impls;
mod macros;
mod reader;
mod varint;

pub use bytes;
pub use error::{DecodeCause, DecodeError, Decoded};
pub use impls::{get_quorum_settings, put_bytes, put_list, put_quorum_settings};
pub use reader::{MAX_DEPTH, Reader};
pub use varint::{Varint, put_varint};

use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// A type with one encoding. `get` reads what `put` writes.
pub trait Wire: Sized {
    /// The fewest bytes that an encoding has. A list of `n` items needs `n` times as many, which is checked before
    /// memory is reserved for it.
    const MIN_LEN: usize = 1;

    /// Appends the encoding.
    fn put(&self, out: &mut BytesMut);

    /// Reads a value from the front of the reader.
    fn get(from: &mut Reader<'_>) -> Decoded<Self>;
}

/// An encoding of `T`, chosen for a field by `as` in [`wire_struct!`], [`wire_enum!`] and [`wire_newtype!`].
pub trait Encoding<T> {
    /// As [`Wire::MIN_LEN`].
    const MIN_LEN: usize = 1;

    /// Appends the encoding of `value`.
    fn put(value: &T, out: &mut BytesMut);

    /// Reads a value from the front of the reader.
    fn get(from: &mut Reader<'_>) -> Decoded<T>;
}

/// The encoding that the type itself has ([`Wire`]): that of fields without `as`.
#[derive(Clone, Copy, Debug)]
pub enum Plain {}

impl<T: Wire> Encoding<T> for Plain {
    const MIN_LEN: usize = T::MIN_LEN;

    #[inline]
    fn put(value: &T, out: &mut BytesMut) {
        value.put(out);
    }

    #[inline]
    fn get(from: &mut Reader<'_>) -> Decoded<T> {
        T::get(from)
    }
}

/// The encoding of the last field of a frame: all bytes up to its end, without a length.
#[derive(Clone, Copy, Debug)]
pub enum Rest {}

impl Encoding<Bytes> for Rest {
    const MIN_LEN: usize = 0;

    #[inline]
    fn put(value: &Bytes, out: &mut BytesMut) {
        out.extend_from_slice(value);
    }

    #[inline]
    fn get(from: &mut Reader<'_>) -> Decoded<Bytes> {
        Ok(from.take_rest())
    }
}

/// The encoding of a text with a length of one byte. The writer has to keep this limit.
#[derive(Clone, Copy, Debug)]
pub enum ShortText {}

impl Encoding<Arc<str>> for ShortText {
    fn put(value: &Arc<str>, out: &mut BytesMut) {
        debug_assert!(u8::try_from(value.len()).is_ok(), "{} bytes", value.len());
        (value.len() as u8).put(out);
        out.extend_from_slice(value.as_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Arc<str>> {
        let len = from.u8()?;
        from.text_of(len.into()).map(Arc::from)
    }
}

/// The encoding of a text with a length of two bytes. The writer has to keep this limit.
#[derive(Clone, Copy, Debug)]
pub enum MediumText {}

impl Encoding<Arc<str>> for MediumText {
    const MIN_LEN: usize = u16::MIN_LEN;

    fn put(value: &Arc<str>, out: &mut BytesMut) {
        debug_assert!(u16::try_from(value.len()).is_ok(), "{} bytes", value.len());
        (value.len() as u16).put(out);
        out.extend_from_slice(value.as_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Arc<str>> {
        let len: u16 = from.get()?;
        from.text_of(len.into()).map(Arc::from)
    }
}

/// The encoding of a list that has at most `N` items. The writer has to keep this limit.
#[derive(Clone, Copy, Debug)]
pub enum AtMost<const N: usize> {}

impl<T: Wire, const N: usize> Encoding<Vec<T>> for AtMost<N> {
    const MIN_LEN: usize = u32::MIN_LEN;

    fn put(value: &Vec<T>, out: &mut BytesMut) {
        debug_assert!(value.len() <= N, "{} items, at most {N}", value.len());
        value.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Vec<T>> {
        let value: Vec<T> = from.get()?;
        match value.len() <= N {
            true => Ok(value),
            false => Err(from.error(DecodeCause::Limit)),
        }
    }
}

/// Encodes a value alone.
pub fn encode<T: Wire>(value: &T) -> Bytes {
    let mut out = BytesMut::new();
    value.put(&mut out);
    out.freeze()
}

/// Decodes a value that fills the bytes. `format` names it in errors. Parts that are [`Bytes`] share the buffer.
pub fn decode<T: Wire>(format: &'static str, raw: &Bytes) -> Decoded<T> {
    let mut from = Reader::shared(format, raw);
    let value = T::get(&mut from)?;
    from.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests;
