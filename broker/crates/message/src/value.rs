//! AMQP field values (AMQP 0.9.1 section 4.2.5.5 with RabbitMQ's errata); AMQP 1.0 primitive types map onto
//! them.

use bytes::Bytes;
use std::sync::Arc;

/// A field value. The letter is its type on the wire in AMQP 0.9.1.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value (`V`).
    Void,
    /// Boolean (`t`).
    Bool(bool),
    /// Signed 8-bit integer (`b`).
    I8(i8),
    /// Unsigned 8-bit integer (`B`).
    U8(u8),
    /// Signed 16-bit integer (`s`).
    I16(i16),
    /// Unsigned 16-bit integer (`u`).
    U16(u16),
    /// Signed 32-bit integer (`I`).
    I32(i32),
    /// Unsigned 32-bit integer (`i`).
    U32(u32),
    /// Signed 64-bit integer (`l`).
    I64(i64),
    /// Single-precision float (`f`).
    F32(f32),
    /// Double-precision float (`d`).
    F64(f64),
    /// Decimal number (`D`): `value` divided by ten to the power of `scale`.
    Decimal {
        /// Digits after the decimal point.
        scale: u8,
        /// All digits, as an unsigned integer.
        value: u32,
    },
    /// A long string (`S`): bytes that are usually UTF-8.
    String(Bytes),
    /// A byte array (`x`).
    Binary(Bytes),
    /// Seconds since the Unix epoch.
    Timestamp(u64),
    /// An array (`A`), whose values may have different types.
    Array(Vec<Value>),
    /// A nested table (`F`).
    Table(Table),
}

/// A field table, in the order of arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(pub Vec<(Arc<str>, Value)>);

impl Table {
    /// Returns the first value under `key`, or `None` if there is none. Searches linearly.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| &**k == key).map(|(_, v)| v)
    }

    /// True if the table has no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the value under `key`, or appends it.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.0.iter_mut().find(|(k, _)| &**k == key) {
            Some((_, v)) => *v = value,
            None => self.0.push((key.into(), value)),
        }
    }
}

impl Value {
    /// The name of the value's type in AMQP 0.9.1 and in error texts.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Void => "void",
            Value::Bool(_) => "bool",
            Value::I8(_) => "byte",
            Value::U8(_) => "unsignedbyte",
            Value::I16(_) => "short",
            Value::U16(_) => "unsignedshort",
            Value::I32(_) => "signedint",
            Value::U32(_) => "unsignedint",
            Value::I64(_) => "long",
            Value::F32(_) => "float",
            Value::F64(_) => "double",
            Value::Decimal { .. } => "decimal",
            Value::String(_) => "longstr",
            Value::Binary(_) => "binary",
            Value::Timestamp(_) => "timestamp",
            Value::Array(_) => "array",
            Value::Table(_) => "table",
        }
    }

    /// The value of any integer type; `None` for other types.
    pub fn as_integer(&self) -> Option<i64> {
        Some(match *self {
            Value::I8(v) => v.into(),
            Value::U8(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I64(v) => v,
            _ => return None,
        })
    }

    /// The text of a string that is UTF-8; `None` for every other value.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(s) => std::str::from_utf8(s).ok(),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Value::String(Bytes::copy_from_slice(s.as_bytes()))
    }
}
