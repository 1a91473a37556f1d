//! Field tables.

use super::reader::{put_bytes, put_signed, put_text, put_varint};
use super::{CodecError, MAX_DEPTH, Reader, VERSION};
use bytes::{BufMut, Bytes, BytesMut};
use message::{Table, Value};

/// A table alone, with its version.
pub fn encode_table(table: &Table) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    put_table(&mut out, table);
    out.freeze()
}

pub fn decode_table(bytes: Bytes) -> Result<Table, CodecError> {
    let mut reader = Reader::new(bytes);
    match reader.u8()? {
        VERSION => take_table(&mut reader),
        other => Err(CodecError::Version(other)),
    }
}

/// Whether [`take_table`] can read it: nobody may put one that is deeper into a queue's log.
pub fn is_shallow(table: &Table) -> bool {
    is_shallow_at(table, 0)
}

fn is_shallow_at(table: &Table, depth: usize) -> bool {
    depth < MAX_DEPTH && table.0.iter().all(|(_, v)| is_shallow_value(v, depth + 1))
}

fn is_shallow_value(value: &Value, depth: usize) -> bool {
    match value {
        Value::Table(table) => is_shallow_at(table, depth),
        Value::Array(items) => {
            depth < MAX_DEPTH && items.iter().all(|v| is_shallow_value(v, depth + 1))
        }
        _ => true,
    }
}

pub fn put_table(out: &mut BytesMut, table: &Table) {
    put_varint(out, table.0.len() as u64);
    for (key, value) in &table.0 {
        put_text(out, key);
        put_value(out, value);
    }
}

pub fn take_table(reader: &mut Reader) -> Result<Table, CodecError> {
    table_at(reader, 0)
}

fn table_at(reader: &mut Reader, depth: usize) -> Result<Table, CodecError> {
    if depth >= MAX_DEPTH {
        return Err(CodecError::TooDeep);
    }
    // A key's length and a value's kind: two bytes at least.
    let count = reader.count(2)?;
    let mut table = Table::default();
    for _ in 0..count {
        let key = reader.text()?;
        table.0.push((key, value_at(reader, depth + 1)?));
    }
    Ok(table)
}

fn put_value(out: &mut BytesMut, value: &Value) {
    match value {
        Value::Void => out.put_u8(0),
        Value::Bool(v) => out.put_slice(&[1, u8::from(*v)]),
        Value::I8(v) => out.put_slice(&[2, *v as u8]),
        Value::U8(v) => out.put_slice(&[3, *v]),
        Value::I16(v) => put_signed_kind(out, 4, i64::from(*v)),
        Value::U16(v) => put_kind(out, 5, u64::from(*v)),
        Value::I32(v) => put_signed_kind(out, 6, i64::from(*v)),
        Value::U32(v) => put_kind(out, 7, u64::from(*v)),
        Value::I64(v) => put_signed_kind(out, 8, *v),
        Value::F32(v) => {
            out.put_u8(9);
            out.put_u32(v.to_bits());
        }
        Value::F64(v) => {
            out.put_u8(10);
            out.put_u64(v.to_bits());
        }
        Value::Decimal { scale, value } => {
            out.put_slice(&[11, *scale]);
            out.put_u32(*value);
        }
        Value::String(v) => {
            out.put_u8(12);
            put_bytes(out, v);
        }
        Value::Binary(v) => {
            out.put_u8(13);
            put_bytes(out, v);
        }
        Value::Timestamp(v) => put_kind(out, 14, *v),
        Value::Array(items) => {
            put_kind(out, 15, items.len() as u64);
            for item in items {
                put_value(out, item);
            }
        }
        Value::Table(table) => {
            out.put_u8(16);
            put_table(out, table);
        }
    }
}

fn put_kind(out: &mut BytesMut, kind: u8, value: u64) {
    out.put_u8(kind);
    put_varint(out, value);
}

fn put_signed_kind(out: &mut BytesMut, kind: u8, value: i64) {
    out.put_u8(kind);
    put_signed(out, value);
}

fn narrow<T, U: TryFrom<T>>(value: T) -> Result<U, CodecError> {
    U::try_from(value).map_err(|_| CodecError::Range)
}

fn value_at(reader: &mut Reader, depth: usize) -> Result<Value, CodecError> {
    Ok(match reader.u8()? {
        0 => Value::Void,
        1 => Value::Bool(reader.bool()?),
        2 => Value::I8(reader.u8()? as i8),
        3 => Value::U8(reader.u8()?),
        4 => Value::I16(narrow(reader.signed()?)?),
        5 => Value::U16(narrow(reader.varint()?)?),
        6 => Value::I32(narrow(reader.signed()?)?),
        7 => Value::U32(reader.varint32()?),
        8 => Value::I64(reader.signed()?),
        9 => Value::F32(f32::from_bits(reader.u32()?)),
        10 => Value::F64(f64::from_bits(reader.u64()?)),
        11 => Value::Decimal {
            scale: reader.u8()?,
            value: reader.u32()?,
        },
        12 => Value::String(reader.bytes()?),
        13 => Value::Binary(reader.bytes()?),
        14 => Value::Timestamp(reader.varint()?),
        15 => {
            if depth >= MAX_DEPTH {
                return Err(CodecError::TooDeep);
            }
            let count = reader.count(1)?;
            let mut items = Vec::new();
            for _ in 0..count {
                items.push(value_at(reader, depth + 1)?);
            }
            Value::Array(items)
        }
        16 => Value::Table(table_at(reader, depth)?),
        found => {
            return Err(CodecError::Kind {
                what: "value",
                found,
            });
        }
    })
}
