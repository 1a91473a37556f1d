//! Conversion of tables to JSON for display. Types without a JSON equivalent become the closest
//! one.

use message::{Table, Value};
use serde_json::{Map, Value as Json, json};

/// Converts a table to a JSON object.
pub fn object(table: &Table) -> Map<String, Json> {
    let pairs = table.0.iter();
    pairs.map(|(k, v)| (k.to_string(), value(v))).collect()
}

/// Converts one value.
pub fn value(value: &Value) -> Json {
    match value {
        Value::Void => Json::Null,
        Value::Bool(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Decimal { scale, value } => {
            json!(f64::from(*value) / 10f64.powi(i32::from(*scale)))
        }
        Value::String(v) | Value::Binary(v) => json!(String::from_utf8_lossy(v)),
        Value::Timestamp(v) => json!(v),
        Value::Array(v) => Json::Array(v.iter().map(self::value).collect()),
        Value::Table(v) => Json::Object(object(v)),
        other => json!(other.as_integer()),
    }
}
