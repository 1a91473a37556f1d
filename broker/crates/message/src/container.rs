//! The message container: one contiguous buffer. Layout, with big-endian integers:
//!
//! ```text
//! version u8 | protocol u8 | flags u8 | priority u8 | received_ms u64 | [ttl_ms u64]
//! exchange: u8 len, bytes | key count u8, then each: u8 len, bytes | [blind keys u8] | [deaths: u32 len, bytes] | [annotations: u32 len, bytes]
//! properties: u32 len, bytes | body: the rest
//! ```
//! A message without blind keys (of BCC), deaths and annotations has version 1, any other version 2.

use crate::build::{Extras, MessageBuilder, SMALL};
use crate::deaths::Deaths;
use bytes::{Buf, Bytes};
use env::WallTime;
use std::ops::Deref;
use std::sync::Arc;

/// Version of the layout without, and of the layout with blind keys, deaths and annotations.
pub(crate) const PLAIN: u8 = 1;
pub(crate) const EXTENDED: u8 = 2;
pub(crate) const DURABLE: u8 = 1;
pub(crate) const HAS_PRIORITY: u8 = 2;
pub(crate) const HAS_TTL: u8 = 4;
pub(crate) const HAS_BLIND: u8 = 8;
pub(crate) const HAS_DEATHS: u8 = 16;
pub(crate) const HAS_ANNOTATIONS: u8 = 32;
/// Length of version, protocol, flags, priority and time of receipt.
pub(crate) const FIXED: usize = 12;

/// The protocol in whose encoding the properties and the body are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// AMQP 0.9.1.
    Amqp091 = 1,
    /// AMQP 1.0.
    Amqp10 = 2,
    /// MQTT, all versions.
    Mqtt = 3,
    /// The stream protocol of RabbitMQ.
    Stream = 4,
}

impl Protocol {
    fn from_byte(byte: u8) -> Option<Protocol> {
        match byte {
            1 => Some(Protocol::Amqp091),
            2 => Some(Protocol::Amqp10),
            3 => Some(Protocol::Mqtt),
            4 => Some(Protocol::Stream),
            _ => None,
        }
    }
}

/// Why bytes are not a message container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A length in the container points beyond its end.
    #[error("message container ends early")]
    Short,
    /// Written by a newer version of the broker; the number is the version of its format.
    #[error(
        "message container has version {0}, which is newer than this version of Posthorn reads"
    )]
    Version(u8),
    /// The number of the protocol is unknown.
    #[error("message container names protocol {0}")]
    Protocol(u8),
    /// An exchange, queue or routing key is not UTF-8.
    #[error("message container holds a name that is not UTF-8")]
    Utf8,
    /// The dead-letter history cannot be decoded.
    #[error("message container holds a damaged history")]
    Deaths,
}

/// An immutable message. Cloning increments a reference count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub(crate) raw: Raw,
    /// Offset of the first key's length byte.
    pub(crate) keys: u32,
    /// Offset of the parts between the keys and the properties.
    pub(crate) extras: u32,
    pub(crate) properties: u32,
    pub(crate) body: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Raw {
    Own(Arc<[u8]>),
    /// A large message, a part of a received buffer, or a message in a [`Room`].
    Part(Bytes),
}

impl Deref for Raw {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Raw::Own(bytes) => bytes,
            Raw::Part(bytes) => bytes,
        }
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Raw) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Raw {}

impl Message {
    /// Decodes a stored or received container. The buffer is shared, not copied.
    pub fn decode(raw: Bytes) -> Result<Message, DecodeError> {
        // Each offset is below this one.
        let end = u32::try_from(raw.len()).map_err(|_| DecodeError::Short)?;
        let (fixed, rest) = raw.split_first_chunk::<FIXED>().ok_or(DecodeError::Short)?;
        let [version, protocol, flags, ..] = *fixed;
        Protocol::from_byte(protocol).ok_or(DecodeError::Protocol(protocol))?;
        let extended = flags & (HAS_BLIND | HAS_DEATHS | HAS_ANNOTATIONS) != 0;
        if version != if extended { EXTENDED } else { PLAIN } {
            return Err(DecodeError::Version(version));
        }
        let mut at = Cursor::new(rest);
        if flags & HAS_TTL != 0 {
            at.take(8)?;
        }
        at.skip_name()?;
        let count = at.u8()?;
        let keys = end - at.len();
        for _ in 0..count {
            at.skip_name()?;
        }
        let extras = end - at.len();
        if extended {
            at.skip_extras(flags)?;
        }
        let len = at.u32()? as usize;
        let properties = end - at.len();
        at.take(len)?;
        let body = end - at.len();
        Ok(Message {
            keys,
            extras,
            properties,
            body,
            raw: Raw::Part(raw),
        })
    }

    /// The form in which the message is stored and sent between nodes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }

    /// As [`Message::as_bytes`]; shares the buffer if the message is large.
    pub fn to_bytes(&self) -> Bytes {
        self.shared(0..self.raw.len())
    }

    fn shared(&self, range: std::ops::Range<usize>) -> Bytes {
        match &self.raw {
            Raw::Own(bytes) => Bytes::copy_from_slice(&bytes[range]),
            Raw::Part(bytes) => bytes.slice(range),
        }
    }

    /// The same message in memory of its own, unless it is large.
    pub fn to_keep(&self) -> Message {
        let raw = match &self.raw {
            Raw::Part(bytes) if bytes.len() <= SMALL => Raw::Own(bytes[..].into()),
            raw => raw.clone(),
        };
        Message { raw, ..*self }
    }

    /// The protocol in whose encoding the properties and the body are.
    pub fn protocol(&self) -> Protocol {
        // Validated by `decode` and by `build`.
        Protocol::from_byte(self.raw[1]).unwrap_or(Protocol::Amqp091)
    }

    /// True for delivery mode 2 of AMQP 0.9.1 or `durable` of AMQP 1.0.
    pub fn durable(&self) -> bool {
        self.raw[2] & DURABLE != 0
    }

    /// The publisher's priority, if it set one.
    pub fn priority(&self) -> Option<u8> {
        (self.raw[2] & HAS_PRIORITY != 0).then(|| self.raw[3])
    }

    /// When the broker received the message.
    pub fn received(&self) -> WallTime {
        WallTime((&self.raw[4..12]).get_u64())
    }

    /// The same message as if the broker had received it at this time. Copies it once.
    pub fn with_received(&self, received: WallTime) -> Message {
        let mut raw = self.raw.to_vec();
        raw[4..12].copy_from_slice(&received.0.to_be_bytes());
        Message {
            raw: Raw::Part(raw.into()),
            ..*self
        }
    }

    /// The publisher's per-message TTL in milliseconds.
    pub fn ttl_ms(&self) -> Option<u64> {
        (self.raw[2] & HAS_TTL != 0).then(|| (&self.raw[FIXED..FIXED + 8]).get_u64())
    }

    /// The exchange to which the message was last published; empty for the default exchange.
    pub fn exchange(&self) -> &str {
        std::str::from_utf8(self.raw_exchange()).unwrap_or("")
    }

    /// As [`Message::exchange`], in UTF-8, without the cost of a check. At most 255 bytes.
    pub fn raw_exchange(&self) -> &[u8] {
        let at = FIXED + if self.raw[2] & HAS_TTL != 0 { 8 } else { 0 };
        let len = self.raw[at] as usize;
        &self.raw[at + 1..at + 1 + len]
    }

    /// The routing key of the publish, then those of CC and BCC.
    pub fn routing_keys(&self) -> impl Iterator<Item = &str> {
        let count = self.raw[self.keys as usize - 1];
        let mut at = self.keys as usize;
        (0..count).map(move |_| {
            let len = self.raw[at] as usize;
            let key = std::str::from_utf8(&self.raw[at + 1..at + 1 + len]).unwrap_or("");
            at += 1 + len;
            key
        })
    }

    /// The first routing key; empty if there is none.
    pub fn routing_key(&self) -> &str {
        self.routing_keys().next().unwrap_or("")
    }

    /// As [`Message::routing_key`], in UTF-8, without the cost of a check. At most 255 bytes.
    pub fn raw_routing_key(&self) -> &[u8] {
        let at = self.keys as usize;
        match self.raw[at - 1] {
            0 => &[],
            _ => &self.raw[at + 1..at + 1 + self.raw[at] as usize],
        }
    }

    /// Number of routing keys, at the end, that come from BCC and must not be shown.
    fn blind_keys(&self) -> usize {
        match self.raw[2] & HAS_BLIND {
            0 => 0,
            _ => self.raw[self.extras as usize].into(),
        }
    }

    /// True if the message was dead-lettered. Its properties are still as published, so [`Message::ttl_ms`]
    /// is its actual time to live.
    pub fn has_died(&self) -> bool {
        self.raw[2] & HAS_DEATHS != 0
    }

    /// The dead-letter history; `None` also if it is damaged.
    pub fn deaths(&self) -> Option<Deaths> {
        if !self.has_died() {
            return None;
        }
        let blind = usize::from(self.raw[2] & HAS_BLIND != 0);
        Deaths::decode(self.section(self.extras as usize + blind)?).ok()
    }

    /// The part that begins with its length at this offset.
    fn section(&self, start: usize) -> Option<&[u8]> {
        let (len, rest) = self.raw.get(start..)?.split_first_chunk::<4>()?;
        rest.get(..u32::from_be_bytes(*len) as usize)
    }

    /// Annotations that receivers added before the message was dead-lettered, in the encoding of the queue that did so.
    pub fn annotations(&self) -> Option<&[u8]> {
        if self.raw[2] & HAS_ANNOTATIONS == 0 {
            return None;
        }
        let blind = usize::from(self.raw[2] & HAS_BLIND != 0);
        let mut start = self.extras as usize + blind;
        if self.has_died() {
            start += 4 + self.section(start)?.len();
        }
        self.section(start)
    }

    /// The same message with these encoded annotations instead of its own. Copies the body.
    pub fn with_annotations(&self, annotations: &[u8]) -> Result<Message, DecodeError> {
        let keys: Vec<&str> = self.routing_keys().collect();
        let builder = MessageBuilder {
            protocol: self.protocol(),
            durable: self.durable(),
            priority: self.priority(),
            ttl_ms: self.ttl_ms(),
            received: self.received(),
            exchange: self.exchange(),
            routing_keys: &keys,
            properties: self.properties(),
        };
        let deaths = self.deaths();
        let extras = Extras {
            blind_keys: self.blind_keys(),
            deaths: deaths.as_ref(),
            annotations,
        };
        let body = self.body();
        builder.build_with(&extras, body.len(), [body])
    }

    /// The same message with the first `len` bytes of its body. Copies them.
    pub fn shortened(&self, len: usize) -> Result<Message, DecodeError> {
        if len >= self.body_len() {
            return Ok(self.to_keep());
        }
        let body = self.body as usize;
        let head = self.raw.get(..body + len).ok_or(DecodeError::Short)?;
        Message::decode(Bytes::copy_from_slice(head))
    }

    /// The same message with a part of its body: `len` bytes from `start` on, or what there is of them. Copies them.
    pub fn with_body_part(&self, start: usize, len: usize) -> Result<Message, DecodeError> {
        let (head, body) = self.raw.split_at(self.body as usize);
        let start = start.min(body.len());
        let end = start.saturating_add(len).min(body.len());
        let part = body.get(start..end).unwrap_or_default();
        Message::decode(Bytes::from([head, part].concat()))
    }

    /// The same message as it is published again to an exchange, with other routing keys or with its own. It keeps its
    /// time to live, its history and its annotations. Copies the body once.
    pub fn republished(
        &self,
        exchange: &str,
        routing_keys: Option<&[&str]>,
    ) -> Result<Message, DecodeError> {
        let own: Vec<&str>;
        let (keys, blind) = match routing_keys {
            Some(keys) => (keys, 0),
            None => {
                own = self.routing_keys().collect();
                (own.as_slice(), self.blind_keys())
            }
        };
        let deaths = self.deaths();
        let builder = MessageBuilder {
            protocol: self.protocol(),
            durable: self.durable(),
            priority: self.priority(),
            ttl_ms: self.ttl_ms(),
            received: self.received(),
            exchange,
            routing_keys: keys,
            properties: self.properties(),
        };
        let body = self.body();
        let extras = Extras {
            blind_keys: blind,
            deaths: deaths.as_ref(),
            annotations: self.annotations().unwrap_or_default(),
        };
        builder.build_with(&extras, body.len(), [body])
    }

    /// The routing keys that may be shown, without those of BCC. A BCC key that also appears openly is listed
    /// once, at its later position, as in RabbitMQ.
    pub fn open_routing_keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.routing_keys().collect();
        let blind = keys.split_off(keys.len().saturating_sub(self.blind_keys()));
        for key in blind {
            // Removes the first key equal to each blind one.
            if let Some(at) = keys.iter().position(|open| *open == key) {
                keys[at..].rotate_left(1);
            }
        }
        keys
    }

    /// The same message as it passes a dead letter exchange: without a time to live, with its history, and
    /// with `key`, if any, instead of its own keys. It keeps its annotations. Copies the body once.
    pub fn dead_lettered(
        &self,
        exchange: &str,
        routing_key: Option<&str>,
        deaths: &Deaths,
    ) -> Result<Message, DecodeError> {
        let own: Vec<&str>;
        let (keys, blind): (&[&str], usize) = match &routing_key {
            Some(key) => (std::slice::from_ref(key), 0),
            None => {
                own = self.routing_keys().collect();
                (own.as_slice(), self.blind_keys())
            }
        };
        let properties = self.properties();
        let builder = MessageBuilder {
            protocol: self.protocol(),
            durable: self.durable(),
            priority: self.priority(),
            ttl_ms: None,
            received: self.received(),
            exchange,
            routing_keys: keys,
            properties,
        };
        let body = self.body();
        let extras = Extras {
            blind_keys: blind,
            deaths: Some(deaths),
            annotations: self.annotations().unwrap_or_default(),
        };
        builder.build_with(&extras, body.len(), [body])
    }

    /// The properties in the source protocol's encoding (0.9.1: property flags and property list of the
    /// content header).
    pub fn properties(&self) -> &[u8] {
        &self.raw[self.properties as usize..self.body as usize]
    }

    /// The body as it was published.
    pub fn body(&self) -> &[u8] {
        &self.raw[self.body as usize..]
    }

    /// A part of the body; shares the buffer if the message is large.
    pub fn body_part(&self, part: std::ops::Range<usize>) -> Bytes {
        let body = self.body as usize;
        self.shared(body + part.start..body + part.end)
    }

    /// Length of the body in bytes.
    pub fn body_len(&self) -> usize {
        self.raw.len() - self.body as usize
    }
}

/// Reads a container, or a part of one, from its beginning.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Cursor<'a> {
        Cursor { rest }
    }

    /// Number of bytes that are left.
    fn len(&self) -> u32 {
        self.rest.len() as u32
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (part, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(part)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        let (byte, rest) = self.rest.split_first().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(self.take(4)?.get_u32())
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(self.take(8)?.get_u64())
    }

    fn raw_name(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u8()? as usize;
        self.take(len)
    }

    pub(crate) fn name(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.raw_name()?).map_err(|_| DecodeError::Utf8)
    }

    /// As [`Cursor::name`]. Names are rarely anything but ASCII, and that is found out faster.
    fn skip_name(&mut self) -> Result<(), DecodeError> {
        let name = self.raw_name()?;
        let is_valid = name.is_ascii() || std::str::from_utf8(name).is_ok();
        is_valid.then_some(()).ok_or(DecodeError::Utf8)
    }

    /// Skips what a message of the extended version has between its keys and its properties.
    #[cold]
    fn skip_extras(&mut self, flags: u8) -> Result<(), DecodeError> {
        if flags & HAS_BLIND != 0 {
            self.u8()?;
        }
        for section in [HAS_DEATHS, HAS_ANNOTATIONS] {
            if flags & section != 0 {
                let len = self.u32()? as usize;
                self.take(len)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deaths::{DeadReason, Dying};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn built_message_round_trips(
            durable: bool, priority: Option<u8>, ttl_ms: Option<u64>, received: u64,
            exchange in "[a-zé.]{0,60}", keys in proptest::collection::vec("[a-z.]{0,40}", 0..4),
            properties: Vec<u8>, body: Vec<u8>, blind in 0usize..4, died: bool, key: Option<bool>,
        ) {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let built = MessageBuilder {
                protocol: Protocol::Amqp091, durable, priority, ttl_ms, received: WallTime(received),
                exchange: &exchange, routing_keys: &keys, properties: &properties,
            }.build_blind(blind.min(keys.len()), body.len(), [&body[..]]).unwrap();
            let read = Message::decode(built.to_bytes()).unwrap();
            prop_assert_eq!(&read, &built);
            prop_assert_eq!(read.exchange(), &exchange[..]);
            prop_assert_eq!(read.routing_keys().collect::<Vec<_>>(), &keys[..]);
            prop_assert_eq!((read.durable(), read.priority(), read.ttl_ms()), (durable, priority, ttl_ms));
            prop_assert_eq!(read.properties(), &properties[..]);
            prop_assert_eq!(read.body(), &body[..]);
            let open = keys.len() - blind.min(keys.len());
            let mut visible: Vec<&str> = keys.clone();
            for key in &keys[open..] {
                visible.remove(visible.iter().position(|k| k == key).unwrap());
            }
            prop_assert_eq!(read.open_routing_keys(), visible.clone());
            prop_assert_eq!(read.deaths(), None);
            if !died {
                return Ok(());
            }
            let mut deaths = Deaths::default();
            deaths.record(&Dying {
                queue: "q", reason: DeadReason::Expired, exchange: &exchange, ttl_ms,
                routing_keys: read.open_routing_keys(), at: WallTime(received),
                failed: true,
            });
            let key = key.map(|_| "other");
            let dead = read.dead_lettered("dlx", key, &deaths).unwrap();
            let read = Message::decode(dead.to_bytes()).unwrap();
            prop_assert_eq!(&read, &dead);
            prop_assert_eq!(read.deaths(), Some(deaths));
            prop_assert_eq!((read.exchange(), read.durable(), read.ttl_ms()), ("dlx", durable, None));
            let visible = if key.is_some() { vec!["other"] } else { visible };
            prop_assert_eq!(read.open_routing_keys(), visible);
            let all = if key.is_some() { vec!["other"] } else { keys };
            prop_assert_eq!(read.routing_keys().collect::<Vec<_>>(), all);
            prop_assert_eq!((read.properties(), read.body()), (&properties[..], &body[..]));
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(raw: Vec<u8>) {
            if let Ok(m) = Message::decode(Bytes::from(raw)) {
                let _ = (m.exchange().len(), m.routing_keys().count(), m.properties(), m.body(), m.ttl_ms());
                let _ = (m.open_routing_keys().len(), m.deaths());
            }
        }
    }
}
