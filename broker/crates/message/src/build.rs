//! Building message containers.

use crate::container::{
    DURABLE, DecodeError, EXTENDED, FIXED, HAS_ANNOTATIONS, HAS_BLIND, HAS_DEATHS, HAS_PRIORITY,
    HAS_TTL, Message, PLAIN, Protocol, Raw,
};
use crate::deaths::Deaths;
use bytes::BytesMut;
use env::WallTime;

/// A message up to this size in bytes is assembled on the stack and stored in one allocation with its
/// reference count.
pub(crate) const SMALL: usize = 512;
/// Bytes that a [`Room`] allocates at a time.
const PIECE: usize = 64 * 1024;

/// Memory for short-lived messages, which are laid out one after the other without an allocation for each. A
/// message that is kept for long would hold its whole piece: see [`Message::to_keep`].
#[derive(Debug, Default)]
pub struct Room(BytesMut);

/// Collects the parts of a message and lays them out once.
#[derive(Clone, Debug)]
pub struct MessageBuilder<'a> {
    /// The protocol in whose encoding `properties` and the body are.
    pub protocol: Protocol,
    /// The message must survive a restart of its node.
    pub durable: bool,
    /// The publisher's priority, if it set one.
    pub priority: Option<u8>,
    /// Time to live that the publisher set, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Time at which the broker received the message.
    pub received: WallTime,
    /// At most 255 bytes, as in every supported protocol; `build` fails for a longer name.
    pub exchange: &'a str,
    /// At most 255 keys of at most 255 bytes; `build` keeps the first 255.
    pub routing_keys: &'a [&'a str],
    /// Properties in the encoding of `protocol`; see [`Message::properties`](crate::Message::properties).
    pub properties: &'a [u8],
}

/// The destination of an encoded message.
trait MessageSink {
    fn put(&mut self, bytes: &[u8]);
    /// Bytes written so far.
    fn len(&self) -> usize;
}

/// A message of at most [`SMALL`] bytes.
struct Draft {
    bytes: [u8; SMALL],
    len: usize,
}

impl MessageSink for Draft {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end;
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }
}

impl MessageSink for BytesMut {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn len(&self) -> usize {
        BytesMut::len(self)
    }
}

/// Parts of a message that few messages have.
#[derive(Debug, Default)]
pub(crate) struct Extras<'a> {
    /// Number of routing keys, at the end, that come from BCC.
    pub(crate) blind_keys: usize,
    pub(crate) deaths: Option<&'a Deaths>,
    /// Encoded; empty if there are none.
    pub(crate) annotations: &'a [u8],
}

/// The same, encoded.
#[derive(Default)]
struct EncodedExtras<'a> {
    blind_keys: usize,
    /// Empty if there are no deaths.
    history: &'a [u8],
    annotations: &'a [u8],
}

impl EncodedExtras<'_> {
    fn is_empty(&self) -> bool {
        self.blind_keys == 0 && self.history.is_empty() && self.annotations.is_empty()
    }

    fn len(&self) -> usize {
        let section = |bytes: &[u8]| if bytes.is_empty() { 0 } else { 4 + bytes.len() };
        usize::from(self.blind_keys > 0) + section(self.history) + section(self.annotations)
    }
}

/// The offsets of the parts of a message.
struct Parts {
    keys: u32,
    extras: u32,
    properties: u32,
    body: u32,
}

impl MessageBuilder<'_> {
    /// Builds the message; `body` yields the pieces that arrived and `body_len` is their total length, so
    /// that one allocation suffices.
    pub fn build<'b>(
        &self,
        body_len: usize,
        body: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<Message, DecodeError> {
        self.build_with(&Extras::default(), body_len, body)
    }

    /// As [`MessageBuilder::build`]; the last `blind_keys` of the routing keys come from BCC.
    pub fn build_blind<'b>(
        &self,
        blind_keys: usize,
        body_len: usize,
        body: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<Message, DecodeError> {
        let extras = Extras {
            blind_keys,
            ..Extras::default()
        };
        self.build_with(&extras, body_len, body)
    }

    /// Builds a short-lived message in `room`. A message too large for the room has memory of its own.
    pub fn build_in(&self, room: &mut Room, body: &[u8]) -> Result<Message, DecodeError> {
        let extras = EncodedExtras::default();
        let size = self.size(&extras, body.len());
        if size > SMALL {
            return self.build(body.len(), [body]);
        }
        let raw = &mut room.0;
        raw.clear();
        if raw.capacity() < size {
            // Reuses the current piece if no message is in it any longer.
            raw.reserve(PIECE);
        }
        let parts = self.write(raw, &extras, [body])?;
        Ok(parts.into_message(Raw::Part(raw.split().freeze())))
    }

    pub(crate) fn build_with<'b>(
        &self,
        extras: &Extras<'_>,
        body_len: usize,
        body: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<Message, DecodeError> {
        let mut history = BytesMut::new();
        if let Some(deaths) = extras.deaths {
            deaths.encode(&mut history);
        }
        let extras = EncodedExtras {
            blind_keys: extras.blind_keys,
            history: &history,
            annotations: extras.annotations,
        };
        let size = self.size(&extras, body_len);
        if size <= SMALL {
            let mut draft = Draft {
                bytes: [0; SMALL],
                len: 0,
            };
            let parts = self.write(&mut draft, &extras, body)?;
            let raw = draft.bytes.get(..draft.len).unwrap_or_default();
            return Ok(parts.into_message(Raw::Own(raw.into())));
        }
        let mut raw = BytesMut::with_capacity(size);
        let parts = self.write(&mut raw, &extras, body)?;
        Ok(parts.into_message(Raw::Part(raw.freeze())))
    }

    fn keys(&self) -> &[&str] {
        &self.routing_keys[..self.routing_keys.len().min(255)]
    }

    /// Length of the container in bytes.
    fn size(&self, extras: &EncodedExtras<'_>, body: usize) -> usize {
        let ttl = if self.ttl_ms.is_some() { 8 } else { 0 };
        let keys: usize = self.keys().iter().map(|k| 1 + k.len()).sum();
        let names = 1 + self.exchange.len() + 1 + keys;
        FIXED + ttl + names + extras.len() + 4 + self.properties.len() + body
    }

    fn write<'b>(
        &self,
        raw: &mut impl MessageSink,
        extras: &EncodedExtras<'_>,
        body: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<Parts, DecodeError> {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = flag(self.durable, DURABLE)
            | flag(self.priority.is_some(), HAS_PRIORITY)
            | flag(self.ttl_ms.is_some(), HAS_TTL)
            | flag(extras.blind_keys > 0, HAS_BLIND)
            | flag(!extras.history.is_empty(), HAS_DEATHS)
            | flag(!extras.annotations.is_empty(), HAS_ANNOTATIONS);
        let version = if extras.is_empty() { PLAIN } else { EXTENDED };
        let mut fixed = [0; FIXED];
        fixed[..4].copy_from_slice(&[
            version,
            self.protocol as u8,
            flags,
            self.priority.unwrap_or(0),
        ]);
        fixed[4..].copy_from_slice(&self.received.0.to_be_bytes());
        raw.put(&fixed);
        if let Some(ttl) = self.ttl_ms {
            raw.put(&ttl.to_be_bytes());
        }
        put_name(raw, self.exchange)?;
        let known = self.keys();
        raw.put(&[known.len() as u8]);
        let keys = raw.len() as u32;
        for key in known {
            put_name(raw, key)?;
        }
        let extras_at = raw.len() as u32;
        if extras.blind_keys > 0 {
            raw.put(&[extras.blind_keys.min(known.len()) as u8]);
        }
        for section in [extras.history, extras.annotations] {
            if !section.is_empty() {
                raw.put(&(section.len() as u32).to_be_bytes());
                raw.put(section);
            }
        }
        let len = u32::try_from(self.properties.len()).map_err(|_| DecodeError::Short)?;
        raw.put(&len.to_be_bytes());
        let properties = raw.len() as u32;
        raw.put(self.properties);
        let at = raw.len() as u32;
        for piece in body {
            raw.put(piece);
        }
        Ok(Parts {
            keys,
            extras: extras_at,
            properties,
            body: at,
        })
    }
}

impl Parts {
    fn into_message(self, raw: Raw) -> Message {
        Message {
            raw,
            keys: self.keys,
            extras: self.extras,
            properties: self.properties,
            body: self.body,
        }
    }
}

#[inline]
fn put_name(raw: &mut impl MessageSink, name: &str) -> Result<(), DecodeError> {
    raw.put(&[u8::try_from(name.len()).map_err(|_| DecodeError::Short)?]);
    raw.put(name.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_in_room(room: &mut Room, body: &[u8]) -> Message {
        let builder = MessageBuilder {
            protocol: Protocol::Mqtt,
            durable: false,
            priority: None,
            ttl_ms: Some(7),
            received: WallTime(1),
            exchange: "amq.topic",
            routing_keys: &["a.b"],
            properties: b"properties",
        };
        let message = builder.build_in(room, body).unwrap();
        assert_eq!(message, builder.build(body.len(), [body]).unwrap());
        message
    }

    #[test]
    fn messages_in_a_room_are_contiguous_and_equal_to_others() {
        let mut room = Room::default();
        let all: Vec<Message> = (0..2000u32)
            .map(|n| build_in_room(&mut room, &n.to_be_bytes()))
            .collect();
        let are_adjacent = |a: &Message, b: &Message| {
            let distance = b.as_bytes().as_ptr() as usize - a.as_bytes().as_ptr() as usize;
            distance == a.as_bytes().len()
        };
        assert!(are_adjacent(&all[0], &all[1]));
        for (n, message) in all.iter().enumerate() {
            assert_eq!(message.body(), (n as u32).to_be_bytes());
        }
        // A message larger than a piece.
        assert_eq!(build_in_room(&mut room, &vec![1; PIECE]).body_len(), PIECE);
    }

    #[test]
    fn to_keep_copies_a_message_out_of_its_room() {
        let mut room = Room::default();
        let first = build_in_room(&mut room, b"first");
        let copy = first.to_keep();
        assert_eq!(copy, first);
        assert_ne!(copy.as_bytes().as_ptr(), first.as_bytes().as_ptr());
        assert_eq!(copy.to_keep().as_bytes().as_ptr(), copy.as_bytes().as_ptr());
    }
}
