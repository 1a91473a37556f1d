//! A message of a stream. All its content follows from its id.

use crate::cluster::tracked_message::MessageId;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Properties, Short, table};
use message::Value;

/// The header with the offset of a delivery.
const OFFSET: &str = "x-stream-offset";

/// The properties and the body of a message.
pub(super) fn encode(id: MessageId) -> (Bytes, Vec<u8>) {
    let name = format!("{:016x}", id.0);
    let mut properties = BytesMut::new();
    let own = Properties {
        delivery_mode: Some(2),
        message_id: Some(name.as_str()),
        ..Properties::default()
    };
    own.encode(&mut properties);
    let len = 16 + (id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % 300;
    let body = name.bytes().cycle().take(len).collect();
    (properties.freeze(), body)
}

/// Identifies a delivered message and its offset. Returns an error if any of it differs from its publish.
pub(super) fn decode(properties: &[u8], body: &[u8]) -> Result<(u64, MessageId), String> {
    let (mut offset, mut unknown) = (None, None);
    let read = Properties::scan(properties, |entry| {
        if entry.key != OFFSET {
            unknown = Some(entry.key.to_owned());
            return;
        }
        let table = table::decode(entry.raw).ok();
        let value = table.and_then(|t| t.0.first().and_then(|(_, v)| Value::as_integer(v)));
        offset = value.and_then(|value| u64::try_from(value).ok());
    });
    let read = read.map_err(|e| format!("properties cannot be read: {e}"))?;
    let name = read.message_id.and_then(Short::text);
    let id = name.and_then(|id| u64::from_str_radix(id, 16).ok());
    let id = MessageId(id.ok_or("a message of a stream without an id")?);
    if let Some(header) = unknown {
        return Err(format!("message {id:?} has the unknown header {header}"));
    }
    if encode(id).1 != body || read.delivery_mode != Some(2) {
        return Err(format!("message {id:?} is not what was published"));
    }
    let offset = offset.ok_or_else(|| format!("message {id:?} has no offset"))?;
    Ok((offset, id))
}
