//! Maps of AMQP 1.0 as tables of the broker, and back.

use codec_amqp10::{Encode, Map, Output, Value, map};
use message::{Table, Value as Field};

/// The entries of a map that a table can have.
pub(crate) fn to_table(entries: Map<'_>) -> Table {
    match conversion::amqp10::decode_value(&Value::Map(entries)) {
        Some(Field::Table(table)) => table,
        _ => Table::default(),
    }
}

/// A table to be encoded as a map with strings as keys.
pub(crate) struct EncodedTable<'a>(pub &'a Table);

impl Encode for EncodedTable<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        let mut writer = map(out);
        for (key, value) in &self.0.0 {
            writer.push(&**key);
            writer.push_with(|out| conversion::amqp10::encode_value(value, out));
        }
        writer.finish();
    }
}
