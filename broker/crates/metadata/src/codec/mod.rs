//! Encoding of changes (for the metadata group's log) and of snapshots. Both are versioned. Invalid bytes give an
//! error, never a panic.

mod change;
mod record;
mod snapshot;

use crate::Name;
use crate::limits;
use bytes::{BufMut, Bytes, BytesMut};
use message::{Table, Value};

/// Why bytes are not a valid change or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A length points beyond the end of the bytes.
    #[error("metadata record ends early")]
    Short,
    /// Bytes after the last field.
    #[error("metadata record is longer than its fields")]
    Trailing,
    /// The bytes have a newer format; the number is its version.
    #[error("metadata format {0} is not supported by this version")]
    Version(u8),
    /// The expected type, and the unknown tag.
    #[error("metadata record has an unknown tag {1} for {0}")]
    Tag(&'static str, u8),
    /// Names and texts must be valid UTF-8.
    #[error("metadata record holds text that is not UTF-8")]
    Utf8,
    /// A length or nesting above the bounds in [`limits`](crate::limits).
    #[error("metadata record is too large or too deep")]
    Limit,
    /// The kind of object that a reference in the snapshot points to and that the snapshot does not contain.
    #[error("metadata snapshot names a {0} that it does not hold")]
    Inconsistent(&'static str),
}

pub(crate) type Decoded<T> = Result<T, DecodeError>;

/// Types with exactly one encoding. `get` is the inverse of `put`.
pub(crate) trait Wire: Sized {
    fn put(&self, out: &mut BytesMut);
    fn get(from: &mut Reader<'_>) -> Decoded<Self>;
}

pub(crate) struct Reader<'a> {
    remaining: &'a [u8],
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(raw: &'a [u8]) -> Reader<'a> {
        Reader {
            remaining: raw,
            depth: 0,
        }
    }

    fn take(&mut self, n: usize) -> Decoded<&'a [u8]> {
        let (part, rest) = self
            .remaining
            .split_at_checked(n)
            .ok_or(DecodeError::Short)?;
        self.remaining = rest;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (part, rest) = self
            .remaining
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Short)?;
        self.remaining = rest;
        Ok(*part)
    }

    fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn blob(&mut self) -> Decoded<&'a [u8]> {
        let len = u32::get(self)?;
        self.take(len as usize)
    }

    fn text(&mut self) -> Decoded<&'a str> {
        std::str::from_utf8(self.blob()?).map_err(|_| DecodeError::Utf8)
    }

    pub(crate) fn get<T: Wire>(&mut self) -> Decoded<T> {
        T::get(self)
    }

    pub(crate) fn end(&self) -> Decoded<()> {
        if self.remaining.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Trailing)
        }
    }

    /// Reads one level deeper in tables and arrays.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<T> {
        if self.depth >= limits::TABLE_DEPTH {
            return Err(DecodeError::Limit);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

fn put_blob(out: &mut BytesMut, bytes: &[u8]) {
    // `limits::CHANGE_BYTES` bounds all lengths, far below 2^32.
    debug_assert!(u32::try_from(bytes.len()).is_ok());
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

macro_rules! integers {
    ($($t:ty, $put:ident);*) => { $(
        impl Wire for $t {
            fn put(&self, out: &mut BytesMut) {
                out.$put(*self);
            }
            fn get(from: &mut Reader<'_>) -> Decoded<Self> {
                Ok(<$t>::from_be_bytes(from.array()?))
            }
        }
    )* };
}
integers!(u16, put_u16; u32, put_u32; u64, put_u64; i16, put_i16; i32, put_i32; i64, put_i64; f32, put_f32; f64, put_f64);

impl Wire for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        match from.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Tag("a truth value", other)),
        }
    }
}

impl Wire for Bytes {
    fn put(&self, out: &mut BytesMut) {
        put_blob(out, self);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        from.blob().map(Bytes::copy_from_slice)
    }
}

impl Wire for Name {
    fn put(&self, out: &mut BytesMut) {
        put_blob(out, self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        from.text().map(Name::from)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut BytesMut) {
        self.is_some().put(out);
        if let Some(inner) = self {
            inner.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(if bool::get(from)? {
            Some(T::get(from)?)
        } else {
            None
        })
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut BytesMut) {
        out.put_u32(self.len() as u32);
        for item in self {
            item.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let count = u32::get(from)? as usize;
        // Every item has at least one byte, so a false count cannot reserve more memory than the input has bytes.
        if count > from.remaining.len() {
            return Err(DecodeError::Short);
        }
        let mut items = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

impl Wire for Table {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        from.nested(|from| Vec::get(from).map(Table))
    }
}

impl Wire for Value {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Value::Void => out.put_u8(0),
            Value::Bool(v) => (out.put_u8(1), v.put(out)).1,
            Value::I8(v) => (out.put_u8(2), out.put_i8(*v)).1,
            Value::U8(v) => (out.put_u8(3), out.put_u8(*v)).1,
            Value::I16(v) => (out.put_u8(4), v.put(out)).1,
            Value::U16(v) => (out.put_u8(5), v.put(out)).1,
            Value::I32(v) => (out.put_u8(6), v.put(out)).1,
            Value::U32(v) => (out.put_u8(7), v.put(out)).1,
            Value::I64(v) => (out.put_u8(8), v.put(out)).1,
            Value::F32(v) => (out.put_u8(9), v.put(out)).1,
            Value::F64(v) => (out.put_u8(10), v.put(out)).1,
            Value::Decimal { scale, value } => {
                out.put_u8(11);
                out.put_u8(*scale);
                value.put(out);
            }
            Value::String(v) => (out.put_u8(12), put_blob(out, v)).1,
            Value::Binary(v) => (out.put_u8(13), put_blob(out, v)).1,
            Value::Timestamp(v) => (out.put_u8(14), v.put(out)).1,
            Value::Array(v) => (out.put_u8(15), v.put(out)).1,
            Value::Table(v) => (out.put_u8(16), v.put(out)).1,
        }
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(match from.u8()? {
            0 => Value::Void,
            1 => Value::Bool(from.get()?),
            2 => Value::I8(i8::from_be_bytes(from.array()?)),
            3 => Value::U8(from.u8()?),
            4 => Value::I16(from.get()?),
            5 => Value::U16(from.get()?),
            6 => Value::I32(from.get()?),
            7 => Value::U32(from.get()?),
            8 => Value::I64(from.get()?),
            9 => Value::F32(from.get()?),
            10 => Value::F64(from.get()?),
            11 => Value::Decimal {
                scale: from.u8()?,
                value: from.get()?,
            },
            12 => Value::String(Bytes::copy_from_slice(from.blob()?)),
            13 => Value::Binary(Bytes::copy_from_slice(from.blob()?)),
            14 => Value::Timestamp(from.get()?),
            15 => Value::Array(from.nested(Vec::get)?),
            16 => Value::Table(from.get()?),
            other => return Err(DecodeError::Tag("a value", other)),
        })
    }
}

/// The same bytes for all tables with equal content: sorted by key, with the last of duplicate keys.
pub(crate) fn canonical(table: &Table) -> Bytes {
    let sorted: std::collections::BTreeMap<&Name, &Value> =
        table.0.iter().map(|(k, v)| (k, v)).collect();
    let mut out = BytesMut::new();
    for (key, value) in sorted {
        key.put(&mut out);
        value.put(&mut out);
    }
    out.freeze()
}

/// The encoded size of a table.
pub(crate) fn table_len(table: &Table) -> usize {
    let mut out = BytesMut::new();
    table.put(&mut out);
    out.len()
}
