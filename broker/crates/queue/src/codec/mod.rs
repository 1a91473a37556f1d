//! Encodings of the protocol between sessions and queues: [`QueueMessage`](crate::QueueMessage)s and
//! [`QueueEvent`](crate::QueueEvent)s, as they travel between shards and nodes. Request bodies have the same form in the
//! log of a quorum queue.
//!
//! A list is a version byte and items up to the end of the frame. Numbers that are mostly small are LEB128
//! ([`wire::Varint`]). A message is a big-endian `u32` length and its container; a decoded message shares the buffer of
//! the frame.

mod cursor;
mod events;
#[cfg(test)]
pub(crate) mod format_tests;
mod requests;
mod stats;
#[cfg(test)]
mod tests;

use bytes::{BufMut, Bytes, BytesMut};
use wire::{DecodeCause, Decoded, Encoding, Reader, Wire};

pub(crate) use requests::RangeList;

/// Version of all encodings of this crate.
pub(crate) const VERSION: u8 = 1;

/// The encoding of a list as the last field of a frame: a version byte and the items up to the end.
#[derive(Clone, Copy, Debug)]
pub enum VersionedList {}

impl<T: Wire> Encoding<Vec<T>> for VersionedList {
    fn put(items: &Vec<T>, out: &mut BytesMut) {
        put_items(out, items);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Vec<T>> {
        check_version(from, VERSION)?;
        let mut items = Vec::new();
        while !from.is_empty() {
            items.push(from.get()?);
        }
        Ok(items)
    }
}

/// Encodes messages for one queue, or events of one queue for one session.
pub fn encode_list<T: Wire>(items: &[T]) -> Bytes {
    let mut out = BytesMut::new();
    put_items(&mut out, items);
    out.freeze()
}

fn put_items<T: Wire>(out: &mut BytesMut, items: &[T]) {
    out.put_u8(VERSION);
    for item in items {
        item.put(out);
    }
}

/// Decodes messages for one queue, or events of one queue for one session.
///
/// # Errors
///
/// If the bytes were not written by [`encode_list`] of this version.
pub fn decode_list<T: Wire>(raw: &Bytes) -> Decoded<Vec<T>> {
    VersionedList::get(&mut Reader::shared("queue frame", raw))
}

/// Reads a version byte. Fails if it is another one.
pub(crate) fn check_version(from: &mut Reader<'_>, known: u8) -> Decoded<()> {
    match from.u8()? {
        version if version == known => Ok(()),
        other => Err(from.error(DecodeCause::Version(other))),
    }
}
