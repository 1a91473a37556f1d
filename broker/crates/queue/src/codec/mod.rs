//! Encodings of the protocol between sessions and queues: [`QueueMessage`](crate::QueueMessage)s and
//! [`QueueEvent`](crate::QueueEvent)s, as they travel between shards and nodes. Request bodies have the same form in the
//! log of a quorum queue.
//!
//! A list is a version byte and items up to the end of the frame. Numbers that are mostly small are LEB128
//! ([`wire::Varint`]). A message is a big-endian `u32` length and its container; a decoded message shares the buffer of
//! the frame.

mod events;
mod requests;
#[cfg(test)]
mod tests;

use bytes::{BufMut, Bytes, BytesMut};
use wire::{DecodeCause, Decoded, Reader, Wire};

pub(crate) use requests::RangeList;

/// Version of all encodings of this crate.
pub(crate) const VERSION: u8 = 1;

/// Encodes messages for one queue.
pub fn encode_to_queue(messages: &[crate::QueueMessage]) -> Bytes {
    encode_list(messages)
}

/// Appends what [`encode_to_queue`] returns.
pub fn put_to_queue(out: &mut BytesMut, messages: &[crate::QueueMessage]) {
    put_list(out, messages);
}

/// Decodes messages for one queue.
///
/// # Errors
///
/// If the bytes were not written by [`encode_to_queue`] of this version.
pub fn decode_to_queue(raw: &Bytes) -> Decoded<Vec<crate::QueueMessage>> {
    decode_list("message to a queue", raw)
}

/// Encodes events of one queue for one session.
pub fn encode_events(events: &[crate::QueueEvent]) -> Bytes {
    encode_list(events)
}

/// Appends what [`encode_events`] returns.
pub fn put_events(out: &mut BytesMut, events: &[crate::QueueEvent]) {
    put_list(out, events);
}

/// Decodes events of one queue for one session.
///
/// # Errors
///
/// If the bytes were not written by [`encode_events`] of this version.
pub fn decode_events(raw: &Bytes) -> Decoded<Vec<crate::QueueEvent>> {
    decode_list("queue event", raw)
}

fn encode_list<T: Wire>(items: &[T]) -> Bytes {
    let mut out = BytesMut::new();
    put_list(&mut out, items);
    out.freeze()
}

fn put_list<T: Wire>(out: &mut BytesMut, items: &[T]) {
    out.put_u8(VERSION);
    for item in items {
        item.put(out);
    }
}

fn decode_list<T: Wire>(format: &'static str, raw: &Bytes) -> Decoded<Vec<T>> {
    let mut from = Reader::shared(format, raw);
    check_version(&mut from, VERSION)?;
    let mut items = Vec::new();
    while !from.is_empty() {
        items.push(from.get()?);
    }
    Ok(items)
}

/// Reads a version byte. Fails if it is another one.
pub(crate) fn check_version(from: &mut Reader<'_>, known: u8) -> Decoded<()> {
    match from.u8()? {
        version if version == known => Ok(()),
        other => Err(from.error(DecodeCause::Version(other))),
    }
}
