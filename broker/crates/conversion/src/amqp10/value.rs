//! Values of AMQP 1.0 (part 1) and of other protocols.

use crate::view::{Budget, urn};
use bytes::Bytes;
use codec_amqp10::{Encode, Output, Symbol, Timestamp, Value as Typed, list, map};
use message::{Table, Value};

/// Converts a value. `None` if no other protocol has its type (decimals, described values, times
/// before 1970) or the budget is spent. A number that needs an unsigned 64-bit integer becomes text,
/// and so do symbols, characters and UUIDs.
pub(crate) fn decode(value: &Typed<'_>, budget: &mut Budget) -> Option<Value> {
    budget.spend()?;
    Some(match *value {
        Typed::Null => Value::Void,
        Typed::Boolean(v) => Value::Bool(v),
        Typed::Ubyte(v) => Value::U8(v),
        Typed::Ushort(v) => Value::U16(v),
        Typed::Uint(v) => Value::U32(v),
        Typed::Ulong(v) => match i64::try_from(v) {
            Ok(v) => Value::I64(v),
            Err(_) => Value::from(&*v.to_string()),
        },
        Typed::Byte(v) => Value::I8(v),
        Typed::Short(v) => Value::I16(v),
        Typed::Int(v) => Value::I32(v),
        Typed::Long(v) => Value::I64(v),
        Typed::Float(v) => Value::F32(v),
        Typed::Double(v) => Value::F64(v),
        Typed::Char(v) => Value::from(v.encode_utf8(&mut [0; 4]) as &str),
        Typed::Timestamp(Timestamp(ms)) => Value::Timestamp(u64::try_from(ms).ok()? / 1000),
        Typed::Uuid(uuid) => Value::from(&*urn(uuid.0)),
        Typed::Binary(v) => Value::Binary(Bytes::copy_from_slice(v)),
        Typed::String(v) => Value::from(v),
        Typed::Symbol(v) => Value::from(v.as_str()),
        Typed::List(values) => Value::Array(elements(values.iter(), budget)?),
        Typed::Array(values) => Value::Array(elements(values.iter(), budget)?),
        Typed::Map(entries) => {
            let mut table = Table::default();
            for (key, value) in entries.iter() {
                // A table has no names of other types, or longer ones.
                let Some(key) = key.as_text().filter(|key| key.len() <= 255) else {
                    continue;
                };
                if is_convertible(&value) {
                    table.0.push((key.into(), decode(&value, budget)?));
                }
            }
            Value::Table(table)
        }
        Typed::Decimal32(_) | Typed::Decimal64(_) | Typed::Decimal128(_) | Typed::Described(_) => {
            return None;
        }
    })
}

fn elements<'a>(
    values: impl Iterator<Item = Typed<'a>>,
    budget: &mut Budget,
) -> Option<Vec<Value>> {
    let convertible = values.filter(is_convertible);
    convertible.map(|value| decode(&value, budget)).collect()
}

/// Returns false for the types that [`decode`] leaves out of lists and maps.
fn is_convertible(value: &Typed<'_>) -> bool {
    match value {
        Typed::Timestamp(time) => time.0 >= 0,
        Typed::Decimal32(_) | Typed::Decimal64(_) | Typed::Decimal128(_) | Typed::Described(_) => {
            false
        }
        _ => true,
    }
}

/// Returns true for the values that application properties cannot have (section 3.2.5).
pub(crate) fn is_compound(value: &Value) -> bool {
    matches!(value, Value::Array(_) | Value::Table(_))
}

/// Returns true if AMQP 1.0 has the value: no decimal of AMQP 0.9.1, and no time that does not fit.
pub(crate) fn is_encodable(value: &Value) -> bool {
    match value {
        Value::Decimal { .. } => false,
        Value::Timestamp(seconds) => milliseconds(*seconds).is_some(),
        _ => true,
    }
}

fn milliseconds(seconds: u64) -> Option<Timestamp> {
    let ms = seconds.checked_mul(1000)?;
    i64::try_from(ms).ok().map(Timestamp)
}

/// Appends a value. Values in lists and maps for which [`is_encodable`] is false are left out.
pub(crate) fn encode<O: Output>(value: &Value, out: &mut O) {
    match value {
        Value::Void | Value::Decimal { .. } => Typed::Null.encode(out),
        Value::Bool(v) => v.encode(out),
        Value::I8(v) => v.encode(out),
        Value::U8(v) => v.encode(out),
        Value::I16(v) => v.encode(out),
        Value::U16(v) => v.encode(out),
        Value::I32(v) => v.encode(out),
        Value::U32(v) => v.encode(out),
        Value::I64(v) => v.encode(out),
        Value::F32(v) => Typed::Float(*v).encode(out),
        Value::F64(v) => Typed::Double(*v).encode(out),
        Value::String(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => text.encode(out),
            _ => Typed::Binary(bytes).encode(out),
        },
        Value::Binary(bytes) => Typed::Binary(bytes).encode(out),
        Value::Timestamp(seconds) => milliseconds(*seconds).unwrap_or_default().encode(out),
        Value::Array(values) => {
            let mut writer = list(out);
            for value in values.iter().filter(|value| is_encodable(value)) {
                writer.push_with(|out| encode(value, out));
            }
            writer.finish();
        }
        Value::Table(table) => {
            let mut writer = map(out);
            for (name, value) in table.0.iter().filter(|(_, value)| is_encodable(value)) {
                match Symbol::new(name) {
                    Some(symbol) => writer.push(&symbol),
                    None => writer.push(&**name),
                }
                writer.push_with(|out| encode(value, out));
            }
            writer.finish();
        }
    }
}
