//! The container's one buffer. Layout, integers big-endian:
//!
//! ```text
//! version u8 | protocol u8 | flags u8 | priority u8 | received_ms u64 | [ttl_ms u64]
//! exchange: u8 len, bytes | key count u8, then each: u8 len, bytes | properties: u32 len, bytes | body: the rest
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use env::WallTime;

/// Version byte of the layout.
const VERSION: u8 = 1;
const DURABLE: u8 = 1;
const HAS_PRIORITY: u8 = 2;
const HAS_TTL: u8 = 4;
/// version, protocol, flags, priority, received.
const FIXED: usize = 12;

/// Which protocol's encoding the properties and the body are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Protocol {
    Amqp091 = 1,
    Amqp10 = 2,
    Mqtt = 3,
    Stream = 4,
}

impl Protocol {
    fn from_byte(byte: u8) -> Option<Protocol> {
        [
            Protocol::Amqp091,
            Protocol::Amqp10,
            Protocol::Mqtt,
            Protocol::Stream,
        ]
        .into_iter()
        .find(|p| *p as u8 == byte)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("message container ends early")]
    Short,
    #[error("message container version {0} is not known to this program")]
    Version(u8),
    #[error("message container names protocol {0}")]
    Protocol(u8),
    #[error("message container holds a name that is not UTF-8")]
    Utf8,
}

/// An immutable message. Cloning counts a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    raw: Bytes,
    /// Where the first key's length byte is.
    keys: u32,
    properties: u32,
    body: u32,
}

impl Message {
    /// Reads a stored or received container; the buffer is shared, not copied.
    pub fn decode(raw: Bytes) -> Result<Message, DecodeError> {
        let mut at = Cursor { raw: &raw, at: 0 };
        let version = at.u8()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let protocol = at.u8()?;
        Protocol::from_byte(protocol).ok_or(DecodeError::Protocol(protocol))?;
        let flags = at.u8()?;
        at.skip(9 + if flags & HAS_TTL != 0 { 8 } else { 0 })?;
        at.name()?;
        let count = at.u8()?;
        let keys = at.at;
        for _ in 0..count {
            at.name()?;
        }
        let len = at.u32()? as usize;
        let properties = at.at;
        at.skip(len)?;
        let body = at.at;
        let offset = |n: usize| u32::try_from(n).map_err(|_| DecodeError::Short);
        Ok(Message {
            keys: offset(keys)?,
            properties: offset(properties)?,
            body: offset(body)?,
            raw,
        })
    }

    /// The stored and inter-node form.
    pub fn as_bytes(&self) -> &Bytes {
        &self.raw
    }

    pub fn protocol(&self) -> Protocol {
        // Checked by decode and by build.
        Protocol::from_byte(self.raw[1]).unwrap_or(Protocol::Amqp091)
    }

    /// Delivery mode 2 of AMQP 0.9.1, `durable` of AMQP 1.0.
    pub fn durable(&self) -> bool {
        self.raw[2] & DURABLE != 0
    }

    pub fn priority(&self) -> Option<u8> {
        (self.raw[2] & HAS_PRIORITY != 0).then(|| self.raw[3])
    }

    /// When the broker took it in.
    pub fn received(&self) -> WallTime {
        WallTime((&self.raw[4..12]).get_u64())
    }

    /// The publisher's per-message TTL in milliseconds.
    pub fn ttl_ms(&self) -> Option<u64> {
        (self.raw[2] & HAS_TTL != 0).then(|| (&self.raw[FIXED..FIXED + 8]).get_u64())
    }

    pub fn exchange(&self) -> &str {
        let at = FIXED + if self.raw[2] & HAS_TTL != 0 { 8 } else { 0 };
        let len = self.raw[at] as usize;
        std::str::from_utf8(&self.raw[at + 1..at + 1 + len]).unwrap_or("")
    }

    /// The key it was published with, then those of CC and BCC.
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

    /// The first routing key; empty when there is none.
    pub fn routing_key(&self) -> &str {
        self.routing_keys().next().unwrap_or("")
    }

    /// The properties in the source protocol's encoding (0.9.1: property flags and property list of the content header).
    pub fn properties(&self) -> Bytes {
        self.raw.slice(self.properties as usize..self.body as usize)
    }

    pub fn body(&self) -> Bytes {
        self.raw.slice(self.body as usize..)
    }

    pub fn body_len(&self) -> usize {
        self.raw.len() - self.body as usize
    }
}

/// Collects a message's parts and lays them out once.
#[derive(Clone, Debug)]
pub struct MessageBuilder<'a> {
    pub protocol: Protocol,
    pub durable: bool,
    pub priority: Option<u8>,
    pub ttl_ms: Option<u64>,
    pub received: WallTime,
    /// At most 255 bytes, as in every protocol here; longer names are cut by `build`'s caller beforehand.
    pub exchange: &'a str,
    /// At most 255 keys of at most 255 bytes; `build` keeps the first 255.
    pub routing_keys: &'a [&'a str],
    pub properties: &'a [u8],
}

impl MessageBuilder<'_> {
    /// Lays out the message; `body` is what arrived, in pieces, `body_len` their sum (for one allocation).
    pub fn build<'b>(
        &self,
        body_len: usize,
        body: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<Message, DecodeError> {
        let names: usize = self.routing_keys.iter().map(|k| k.len() + 1).sum();
        let mut raw = BytesMut::with_capacity(
            FIXED + 8 + 6 + self.exchange.len() + names + self.properties.len() + body_len,
        );
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        raw.put_u8(VERSION);
        raw.put_u8(self.protocol as u8);
        raw.put_u8(
            flag(self.durable, DURABLE)
                | flag(self.priority.is_some(), HAS_PRIORITY)
                | flag(self.ttl_ms.is_some(), HAS_TTL),
        );
        raw.put_u8(self.priority.unwrap_or(0));
        raw.put_u64(self.received.0);
        if let Some(ttl) = self.ttl_ms {
            raw.put_u64(ttl);
        }
        put_name(&mut raw, self.exchange)?;
        let count = self.routing_keys.len().min(255);
        raw.put_u8(count as u8);
        let keys = raw.len() as u32;
        for key in &self.routing_keys[..count] {
            put_name(&mut raw, key)?;
        }
        raw.put_u32(u32::try_from(self.properties.len()).map_err(|_| DecodeError::Short)?);
        let properties = raw.len() as u32;
        raw.put_slice(self.properties);
        let at = raw.len() as u32;
        for piece in body {
            raw.put_slice(piece);
        }
        Ok(Message {
            raw: raw.freeze(),
            keys,
            properties,
            body: at,
        })
    }
}

fn put_name(raw: &mut BytesMut, name: &str) -> Result<(), DecodeError> {
    raw.put_u8(u8::try_from(name.len()).map_err(|_| DecodeError::Short)?);
    raw.put_slice(name.as_bytes());
    Ok(())
}

struct Cursor<'a> {
    raw: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(n).ok_or(DecodeError::Short)?;
        let part = self.raw.get(self.at..end).ok_or(DecodeError::Short)?;
        self.at = end;
        Ok(part)
    }

    fn skip(&mut self, n: usize) -> Result<(), DecodeError> {
        self.take(n).map(|_| ())
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(self.take(4)?.get_u32())
    }

    fn name(&mut self) -> Result<(), DecodeError> {
        let len = self.u8()? as usize;
        std::str::from_utf8(self.take(len)?)
            .map(|_| ())
            .map_err(|_| DecodeError::Utf8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_built_is_read_back(
            durable: bool, priority: Option<u8>, ttl_ms: Option<u64>, received: u64,
            exchange in "[a-zé.]{0,60}", keys in proptest::collection::vec("[a-z.]{0,40}", 0..4),
            properties: Vec<u8>, body: Vec<u8>,
        ) {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let built = MessageBuilder {
                protocol: Protocol::Amqp091, durable, priority, ttl_ms, received: WallTime(received),
                exchange: &exchange, routing_keys: &keys, properties: &properties,
            }.build(body.len(), [&body[..]]).unwrap();
            let read = Message::decode(built.as_bytes().clone()).unwrap();
            prop_assert_eq!(&read, &built);
            prop_assert_eq!(read.exchange(), exchange);
            prop_assert_eq!(read.routing_keys().collect::<Vec<_>>(), keys);
            prop_assert_eq!((read.durable(), read.priority(), read.ttl_ms()), (durable, priority, ttl_ms));
            prop_assert_eq!(&read.properties()[..], &properties[..]);
            prop_assert_eq!(&read.body()[..], &body[..]);
        }

        #[test]
        fn no_bytes_make_it_panic(raw: Vec<u8>) {
            if let Ok(m) = Message::decode(Bytes::from(raw)) {
                let _ = (m.exchange().len(), m.routing_keys().count(), m.properties(), m.body(), m.ttl_ms());
            }
        }
    }
}
