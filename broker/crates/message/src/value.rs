//! AMQP's field values (0.9.1 section 4.2.5.5 with RabbitMQ's errata; AMQP 1.0 primitive types map onto them).

use bytes::Bytes;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Void,
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
    Decimal {
        scale: u8,
        value: u32,
    },
    /// A long string (`S`): bytes that are usually UTF-8.
    String(Bytes),
    /// A byte array (`x`).
    Binary(Bytes),
    /// Seconds since the Unix epoch.
    Timestamp(u64),
    Array(Vec<Value>),
    Table(Table),
}

/// A field table, in the order in which it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(pub Vec<(Arc<str>, Value)>);

impl Table {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| &**k == key).map(|(_, v)| v)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the value under `key`, or adds it at the end.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.0.iter_mut().find(|(k, _)| &**k == key) {
            Some((_, v)) => *v = value,
            None => self.0.push((key.into(), value)),
        }
    }
}

impl Value {
    /// What AMQP 0.9.1 and error texts call its type.
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

    /// Any of the integer types.
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
