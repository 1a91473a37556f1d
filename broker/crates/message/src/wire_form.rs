//! Encodings of values, tables and messages in the broker's own formats.

use crate::{Message, Table, Value};
use bytes::{BufMut as _, Bytes, BytesMut};
use wire::{DecodeCause, Decoded, MAX_DEPTH, Reader, Wire};

/// Most levels of nested tables and arrays that can be encoded, the outermost table included.
pub const MAX_TABLE_DEPTH: usize = MAX_DEPTH;

impl Table {
    /// True if tables and arrays are nested at most [`MAX_TABLE_DEPTH`] deep. A deeper table cannot be decoded, so that it
    /// must not be written anywhere.
    pub fn is_shallow(&self) -> bool {
        is_shallow(self, MAX_DEPTH)
    }
}

fn is_shallow(table: &Table, levels: usize) -> bool {
    levels > 0 && table.0.iter().all(|(_, v)| is_shallow_value(v, levels - 1))
}

fn is_shallow_value(value: &Value, levels: usize) -> bool {
    match value {
        Value::Table(table) => is_shallow(table, levels),
        Value::Array(items) => levels > 0 && items.iter().all(|v| is_shallow_value(v, levels - 1)),
        _ => true,
    }
}

impl Wire for Table {
    const MIN_LEN: usize = u32::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        from.nested(|from| from.get().map(Table))
    }
}

impl Wire for Value {
    fn put(&self, out: &mut BytesMut) {
        macro_rules! tagged {
            ($tag:literal, $value:expr) => {{
                out.put_u8($tag);
                $value.put(out);
            }};
        }
        match self {
            Value::Void => out.put_u8(0),
            Value::Bool(v) => tagged!(1, v),
            Value::I8(v) => tagged!(2, v),
            Value::U8(v) => tagged!(3, v),
            Value::I16(v) => tagged!(4, v),
            Value::U16(v) => tagged!(5, v),
            Value::I32(v) => tagged!(6, v),
            Value::U32(v) => tagged!(7, v),
            Value::I64(v) => tagged!(8, v),
            Value::F32(v) => tagged!(9, v),
            Value::F64(v) => tagged!(10, v),
            Value::Decimal { scale, value } => {
                tagged!(11, scale);
                value.put(out);
            }
            Value::String(v) => tagged!(12, v),
            Value::Binary(v) => tagged!(13, v),
            Value::Timestamp(v) => tagged!(14, v),
            Value::Array(v) => tagged!(15, v),
            Value::Table(v) => tagged!(16, v),
        }
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(match from.u8()? {
            0 => Value::Void,
            1 => Value::Bool(from.get()?),
            2 => Value::I8(from.get()?),
            3 => Value::U8(from.get()?),
            4 => Value::I16(from.get()?),
            5 => Value::U16(from.get()?),
            6 => Value::I32(from.get()?),
            7 => Value::U32(from.get()?),
            8 => Value::I64(from.get()?),
            9 => Value::F32(from.get()?),
            10 => Value::F64(from.get()?),
            11 => Value::Decimal {
                scale: from.get()?,
                value: from.get()?,
            },
            12 => Value::String(copied(from)?),
            13 => Value::Binary(copied(from)?),
            14 => Value::Timestamp(from.get()?),
            15 => Value::Array(from.nested(Reader::get)?),
            16 => Value::Table(from.get()?),
            other => return Err(from.error(DecodeCause::Tag("a value", other))),
        })
    }
}

/// Values outlive the frame that they arrive in, so they do not share its buffer.
fn copied(from: &mut Reader<'_>) -> Decoded<Bytes> {
    from.blob().map(Bytes::copy_from_slice)
}

impl Wire for Message {
    const MIN_LEN: usize = u32::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        wire::put_bytes(out, self.as_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let container = from.get()?;
        Message::decode(container)
            .map_err(|_| from.error(DecodeCause::Damaged("message container")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_can_be_decoded_exactly_if_it_is_shallow() {
        for tables in 1..2 * MAX_DEPTH {
            for in_array in [false, true] {
                let mut table = Table::default();
                for _ in 1..tables {
                    let inner = match in_array {
                        true => Value::Array(vec![Value::Table(table)]),
                        false => Value::Table(table),
                    };
                    table = Table(vec![("k".into(), inner)]);
                }
                let decoded = wire::decode::<Table>("table", &wire::encode(&table));
                assert_eq!(table.is_shallow(), decoded.is_ok(), "{tables} {in_array}");
            }
        }
    }

    #[test]
    fn deeply_nested_input_does_not_overflow_the_stack() {
        let mut tables = BytesMut::new();
        let mut arrays = BytesMut::new();
        // A table with one entry, whose value is the array.
        arrays.put_slice(&[0, 0, 0, 1, 0, 0, 0, 0]);
        for _ in 0..100_000 {
            // One entry with an empty key that is a table.
            tables.put_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 16]);
            // An array of one array.
            arrays.put_slice(&[15, 0, 0, 0, 1]);
        }
        for raw in [tables.freeze(), arrays.freeze()] {
            let decoded = wire::decode::<Table>("table", &raw);
            assert_eq!(decoded.map_err(|e| e.cause), Err(DecodeCause::Limit));
        }
    }
}
