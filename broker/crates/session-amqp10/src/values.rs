//! Values of the AMQP 1.0 type system as fields of the broker's tables, and back, with RabbitMQ's mapping.

use bytes::Bytes;
use codec_amqp10::{Encode, Map, Output, Timestamp, Value, list, map};
use message::{Table, Value as Field};

/// The field for a value. None: no field has its type.
pub(crate) fn to_field(value: Value<'_>) -> Option<Field> {
    let binary = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    Some(match value {
        Value::Null => Field::Void,
        Value::Boolean(v) => Field::Bool(v),
        Value::Ubyte(v) => Field::U8(v),
        Value::Ushort(v) => Field::U16(v),
        Value::Uint(v) => Field::U32(v),
        Value::Ulong(v) => Field::I64(i64::try_from(v).ok()?),
        Value::Byte(v) => Field::I8(v),
        Value::Short(v) => Field::I16(v),
        Value::Int(v) => Field::I32(v),
        Value::Long(v) => Field::I64(v),
        Value::Float(v) => Field::F32(v),
        Value::Double(v) => Field::F64(v),
        Value::Char(v) => Field::U32(v.into()),
        Value::Timestamp(Timestamp(ms)) => Field::Timestamp(u64::try_from(ms).ok()? / 1000),
        Value::Uuid(v) => Field::Binary(binary(&v.0)),
        Value::Binary(v) => Field::Binary(binary(v)),
        Value::String(v) => v.into(),
        Value::Symbol(v) => v.as_str().into(),
        Value::List(values) => Field::Array(values.iter().map(to_field).collect::<Option<_>>()?),
        Value::Array(values) => Field::Array(values.iter().map(to_field).collect::<Option<_>>()?),
        Value::Map(entries) => Field::Table(to_table(entries)),
        Value::Decimal32(_) | Value::Decimal64(_) | Value::Decimal128(_) | Value::Described(_) => {
            return None;
        }
    })
}

/// The entries of a map whose keys are texts and whose values have a field.
pub(crate) fn to_table(entries: Map<'_>) -> Table {
    let mut table = Table::default();
    for (key, value) in entries {
        if let (Some(key), Some(field)) = (key.as_text(), to_field(value)) {
            table.0.push((key.into(), field));
        }
    }
    table
}

/// A field to be encoded as a value.
pub(crate) struct Encoded<'a>(pub &'a Field);

impl Encode for Encoded<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        let text = |bytes: &'_ Bytes| std::str::from_utf8(bytes).map(str::to_owned);
        match self.0 {
            Field::Void => Value::Null.encode(out),
            Field::Bool(v) => v.encode(out),
            Field::I8(v) => v.encode(out),
            Field::U8(v) => v.encode(out),
            Field::I16(v) => v.encode(out),
            Field::U16(v) => v.encode(out),
            Field::I32(v) => v.encode(out),
            Field::U32(v) => v.encode(out),
            Field::I64(v) => v.encode(out),
            Field::F32(v) => Value::Float(*v).encode(out),
            Field::F64(v) => Value::Double(*v).encode(out),
            Field::Decimal { scale, value } => {
                let value = f64::from(*value) / 10f64.powi(i32::from(*scale));
                Value::Double(value).encode(out);
            }
            Field::String(v) => match text(v) {
                Ok(text) => text.as_str().encode(out),
                Err(_) => v[..].encode(out),
            },
            Field::Binary(v) => v[..].encode(out),
            Field::Timestamp(seconds) => {
                let ms = i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX);
                Timestamp(ms).encode(out);
            }
            Field::Array(values) => {
                let mut writer = list(out);
                for value in values {
                    writer.push(&Encoded(value));
                }
                writer.finish();
            }
            Field::Table(table) => EncodedTable(table).encode(out),
        }
    }
}

/// A table to be encoded as a map with strings as keys.
pub(crate) struct EncodedTable<'a>(pub &'a Table);

impl Encode for EncodedTable<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        let mut writer = map(out);
        for (key, value) in &self.0.0 {
            writer.push(&**key);
            writer.push(&Encoded(value));
        }
        writer.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_amqp10::Reader;

    #[test]
    fn fields_round_trip_through_amqp_values() {
        let fields = [
            Field::Void,
            Field::Bool(true),
            Field::I8(-3),
            Field::U8(200),
            Field::I16(-300),
            Field::U16(60_000),
            Field::I32(-70_000),
            Field::U32(4_000_000_000),
            Field::I64(i64::MIN),
            Field::F32(1.5),
            Field::F64(-2.5),
            Field::from("text"),
            Field::Binary(Bytes::from_static(b"\xff\x00")),
            Field::Timestamp(1_700_000_000),
            Field::Array(vec![Field::from("a"), Field::I64(1)]),
            Field::Table(Table(vec![("k".into(), Field::Bool(false))])),
        ];
        for field in fields {
            let mut bytes = Vec::new();
            Encoded(&field).encode(&mut bytes);
            let value: Value<'_> = Reader::new(&bytes).read().unwrap();
            assert_eq!(to_field(value), Some(field));
        }
    }

    #[test]
    fn values_without_a_field_are_left_out_of_tables() {
        let mut bytes = Vec::new();
        let mut writer = map(&mut bytes);
        writer.push("big");
        writer.push(&u64::MAX);
        writer.push("small");
        writer.push(&7u64);
        writer.push(&1u32);
        writer.push("the key is no text");
        writer.finish();
        let entries: Map<'_> = Reader::new(&bytes).read().unwrap();
        let expected = Table(vec![("small".into(), Field::I64(7))]);
        assert_eq!(to_table(entries), expected);
    }
}
