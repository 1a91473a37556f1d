//! Field tables (section 4.2.5.5), with the type octets that RabbitMQ and its clients use.

use crate::DecodeError;
use crate::field::{Reader, short};
use bytes::{BufMut, Bytes, BytesMut};
use message::{Table, Value};

/// Maximum nesting of tables and arrays.
pub const MAX_DEPTH: u32 = 32;
/// Maximum number of values in one table, including nested ones. A void takes one byte on the wire
/// and fifty in memory.
pub const MAX_VALUES: u32 = 4096;

/// Decodes the entries of a table, without its length prefix.
pub fn decode(entries: &[u8]) -> Result<Table, DecodeError> {
    decode_entries(entries, &mut Budget::default(), 0)
}

/// The number of values that a table may still contain.
struct Budget(u32);

impl Default for Budget {
    fn default() -> Self {
        Budget(MAX_VALUES)
    }
}

impl Budget {
    fn spend(&mut self) -> Result<(), DecodeError> {
        self.0 = self.0.checked_sub(1).ok_or(DecodeError::TooManyValues)?;
        Ok(())
    }
}

fn decode_entries(entries: &[u8], budget: &mut Budget, depth: u32) -> Result<Table, DecodeError> {
    let mut from = Reader::new(entries);
    let mut table = Table::default();
    while !from.is_empty() {
        let [len] = from.array()?;
        let key = std::str::from_utf8(from.take(len.into())?).map_err(|_| DecodeError::Utf8)?;
        table
            .0
            .push((key.into(), decode_value(&mut from, budget, depth)?));
    }
    Ok(table)
}

fn decode_value(
    from: &mut Reader<'_>,
    budget: &mut Budget,
    depth: u32,
) -> Result<Value, DecodeError> {
    budget.spend()?;
    let [letter] = from.array()?;
    Ok(match letter {
        b'V' => Value::Void,
        b't' => Value::Bool(from.array::<1>()? != [0]),
        b'b' => Value::I8(i8::from_be_bytes(from.array()?)),
        b'B' => Value::U8(u8::from_be_bytes(from.array()?)),
        b's' => Value::I16(i16::from_be_bytes(from.array()?)),
        b'u' => Value::U16(u16::from_be_bytes(from.array()?)),
        b'I' => Value::I32(i32::from_be_bytes(from.array()?)),
        b'i' => Value::U32(u32::from_be_bytes(from.array()?)),
        b'l' | b'L' => Value::I64(i64::from_be_bytes(from.array()?)),
        b'f' => Value::F32(f32::from_be_bytes(from.array()?)),
        b'd' => Value::F64(f64::from_be_bytes(from.array()?)),
        b'D' => Value::Decimal {
            scale: u8::from_be_bytes(from.array()?),
            value: u32::from_be_bytes(from.array()?),
        },
        b'S' => Value::String(Bytes::copy_from_slice(from.long_string()?)),
        b'x' => Value::Binary(Bytes::copy_from_slice(from.long_string()?)),
        b'T' => Value::Timestamp(u64::from_be_bytes(from.array()?)),
        b'A' | b'F' if depth >= MAX_DEPTH => return Err(DecodeError::TooDeep),
        b'A' => {
            let mut items = Reader::new(from.long_string()?);
            let mut values = Vec::new();
            while !items.is_empty() {
                values.push(decode_value(&mut items, budget, depth + 1)?);
            }
            Value::Array(values)
        }
        b'F' => Value::Table(decode_entries(from.long_string()?, budget, depth + 1)?),
        other => return Err(DecodeError::FieldType(other)),
    })
}

/// Appends the encoded table with its length prefix.
pub fn encode(table: &Table, out: &mut BytesMut) {
    with_length(out, |out| {
        for (key, value) in &table.0 {
            let key = short(key);
            out.put_u8(key.len() as u8);
            out.extend_from_slice(key.as_bytes());
            encode_value(value, out);
        }
    });
}

/// Appends a 32-bit length, then the bytes that `write` appends.
pub(crate) fn with_length(out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_u32(0);
    write(out);
    let len = (out.len() - at - 4) as u32;
    if let Some(slot) = out.get_mut(at..at + 4) {
        slot.copy_from_slice(&len.to_be_bytes());
    }
}

/// Appends the type octet and the value.
pub(crate) fn encode_value(value: &Value, out: &mut BytesMut) {
    fn fixed<const N: usize>(out: &mut BytesMut, letter: u8, bytes: [u8; N]) {
        out.put_u8(letter);
        out.extend_from_slice(&bytes);
    }
    match value {
        Value::Void => out.put_u8(b'V'),
        Value::Bool(v) => fixed(out, b't', [u8::from(*v)]),
        Value::I8(v) => fixed(out, b'b', v.to_be_bytes()),
        Value::U8(v) => fixed(out, b'B', v.to_be_bytes()),
        Value::I16(v) => fixed(out, b's', v.to_be_bytes()),
        Value::U16(v) => fixed(out, b'u', v.to_be_bytes()),
        Value::I32(v) => fixed(out, b'I', v.to_be_bytes()),
        Value::U32(v) => fixed(out, b'i', v.to_be_bytes()),
        Value::I64(v) => fixed(out, b'l', v.to_be_bytes()),
        Value::F32(v) => fixed(out, b'f', v.to_be_bytes()),
        Value::F64(v) => fixed(out, b'd', v.to_be_bytes()),
        Value::Decimal { scale, value } => {
            fixed(out, b'D', [*scale]);
            out.put_u32(*value);
        }
        Value::String(v) => {
            out.put_u8(b'S');
            out.put_u32(v.len() as u32);
            out.extend_from_slice(v);
        }
        Value::Binary(v) => {
            out.put_u8(b'x');
            out.put_u32(v.len() as u32);
            out.extend_from_slice(v);
        }
        Value::Timestamp(v) => fixed(out, b'T', v.to_be_bytes()),
        Value::Array(values) => {
            out.put_u8(b'A');
            with_length(out, |out| {
                for value in values {
                    encode_value(value, out);
                }
            });
        }
        Value::Table(table) => {
            out.put_u8(b'F');
            encode(table, out);
        }
    }
}

/// A table entry whose value is not decoded.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The name of the field.
    pub key: &'a str,
    /// The type octet of the value.
    pub letter: u8,
    /// The encoded entry: key, type octet and value.
    pub raw: &'a [u8],
    value: &'a [u8],
}

impl Entry<'_> {
    /// Decodes the value, within the limits of [`decode`].
    pub fn decode(&self) -> Result<Value, DecodeError> {
        decode_value(&mut Reader::new(self.value), &mut Budget::default(), 0)
    }
}

/// Validates all entries of a table without copying and calls `each` for the entries of the table
/// itself, not for nested ones. The limits are those of [`decode`].
pub fn walk<'a>(entries: &'a [u8], mut each: impl FnMut(Entry<'a>)) -> Result<(), DecodeError> {
    let mut from = Reader::new(entries);
    let mut budget = Budget::default();
    while !from.is_empty() {
        let start = from.rest();
        let [len] = from.array()?;
        let key = std::str::from_utf8(from.take(len.into())?).map_err(|_| DecodeError::Utf8)?;
        let value = from.rest();
        let letter = *value.first().ok_or(DecodeError::Short)?;
        skip_value(&mut from, &mut budget, 0)?;
        let rest_len = from.rest().len();
        each(Entry {
            key,
            letter,
            raw: start.get(..start.len() - rest_len).unwrap_or(start),
            value: value.get(..value.len() - rest_len).unwrap_or(value),
        });
    }
    Ok(())
}

fn skip_value(from: &mut Reader<'_>, budget: &mut Budget, depth: u32) -> Result<(), DecodeError> {
    budget.spend()?;
    let [letter] = from.array()?;
    let len = match letter {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        b'S' | b'x' => return from.long_string().map(|_| ()),
        b'A' | b'F' => {
            if depth >= MAX_DEPTH {
                return Err(DecodeError::TooDeep);
            }
            let mut inner = Reader::new(from.long_string()?);
            while !inner.is_empty() {
                if letter == b'F' {
                    let [len] = inner.array()?;
                    std::str::from_utf8(inner.take(len.into())?).map_err(|_| DecodeError::Utf8)?;
                }
                skip_value(&mut inner, budget, depth + 1)?;
            }
            return Ok(());
        }
        other => return Err(DecodeError::FieldType(other)),
    };
    from.take(len).map(|_| ())
}
