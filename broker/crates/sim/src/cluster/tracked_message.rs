//! A message of the workload: everything in it follows from its id.

use bytes::{Bytes, BytesMut};
use codec_amqp091::table;
use codec_amqp091::{Properties, Short};

/// Stream in the upper half, number in it (from 1) in the lower. A stream is what one channel publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageId(pub u64);

/// The header that a quorum queue adds to what it delivers again.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// Headers of a message that has gone through a dead letter exchange.
const DEATHS: [&str; 7] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

/// What a delivery says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMessage {
    pub id: MessageId,
    /// How often the queue says that it was tried before.
    pub attempts: u32,
    /// It has gone through a dead letter exchange.
    pub died: bool,
}

impl MessageId {
    pub fn new(stream: u32, number: u32) -> MessageId {
        MessageId(u64::from(stream) << 32 | u64::from(number))
    }

    pub fn stream(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub fn number(self) -> u32 {
        self.0 as u32
    }

    /// An even spread of all bits.
    fn mixed(self, salt: u64) -> u64 {
        let mut x = self
            .0
            .wrapping_add(salt)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 32;
        x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        x ^ (x >> 29)
    }

    pub fn persistent(self) -> bool {
        !self.mixed(1).is_multiple_of(8)
    }

    /// Mostly small, some empty, few large.
    fn body_len(self) -> usize {
        let random = self.mixed(2);
        let spread = (random >> 16) as usize;
        match random % 64 {
            0..8 => 0,
            8..60 => spread % 200,
            60..63 => spread % 5_000,
            _ => spread % (70 << 10),
        }
    }

    pub fn body(self) -> Bytes {
        let len = self.body_len();
        let mut body = BytesMut::with_capacity(len + 8);
        let mut peer_message = self.mixed(3);
        while body.len() < len {
            body.extend_from_slice(&peer_message.to_le_bytes());
            peer_message = peer_message
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
        }
        body.truncate(len);
        body.freeze()
    }

    pub fn properties(self, expiration: Option<&str>) -> Bytes {
        let mut out = BytesMut::new();
        let id = format!("{:016x}", self.0);
        let properties = Properties {
            content_type: Some("application/octet-stream"),
            delivery_mode: Some(if self.persistent() { 2 } else { 1 }),
            message_id: Some(&id),
            timestamp: Some(self.mixed(4)),
            expiration,
            ..Properties::default()
        };
        properties.encode(&mut out);
        out.freeze()
    }
}

/// Which message this is; an error when any of it is not as it was published.
pub fn read(properties: &[u8], body: &[u8]) -> Result<ReadMessage, String> {
    let (mut attempts, mut died) = (0, false);
    let mut strange = None;
    let read = Properties::scan(properties, |entry| {
        if entry.key == DELIVERY_COUNT {
            attempts = table::decode(entry.raw)
                .ok()
                .and_then(|t| t.0.first().and_then(|(_, v)| v.as_integer()))
                .unwrap_or(0);
        } else if DEATHS.contains(&entry.key) {
            died = true;
        } else {
            strange = Some(entry.key.to_owned());
        }
    });
    let read = read.map_err(|e| format!("properties cannot be read: {e}"))?;
    let id = read
        .message_id
        .and_then(Short::text)
        .and_then(|id| u64::from_str_radix(id, 16).ok());
    let id = MessageId(id.ok_or("a message without an id")?);
    if let Some(header) = strange {
        return Err(format!("message {id:?} has got a header {header}"));
    }
    let expected = id.properties(read.expiration.and_then(Short::text));
    let bare = Properties {
        headers: None,
        ..read
    };
    let mut again = BytesMut::new();
    bare.encode(&mut again);
    if again != expected {
        return Err(format!(
            "the properties of {id:?} are not what was published"
        ));
    }
    if id.body() != body {
        return Err(format!(
            "the body of {id:?} is not what was published: {} bytes, {} expected",
            body.len(),
            id.body_len()
        ));
    }
    Ok(ReadMessage {
        id,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        died,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_known_again_and_a_changed_one_is_not() {
        for number in 1..200 {
            let id = MessageId::new(7, number);
            let (properties, body) = (id.properties(None), id.body());
            let untouched = ReadMessage {
                id,
                attempts: 0,
                died: false,
            };
            assert_eq!(read(&properties, &body), Ok(untouched));
            let mut wrong = body.to_vec();
            wrong.push(0);
            assert!(read(&properties, &wrong).is_err());
            assert!(
                read(&MessageId::new(8, number).properties(None), &body).is_err()
                    || body.is_empty()
            );
        }
    }
}
