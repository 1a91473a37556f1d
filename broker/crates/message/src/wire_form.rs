//! Encodings of values, tables and messages in the broker's own formats.

use crate::{Message, Table, Value};
use bytes::{BufMut as _, Bytes, BytesMut};
use wire::{DecodeCause, Decoded, Reader, Wire};

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
