//! Messages between routers about wills. Integers are big-endian; a frame is a list of:
//!
//! ```text
//! kind u8 | number u64 | [Keep: vhost: u8 len, bytes | client: u16 len, bytes | delay u32 | retain u8 | topic: u16 len, bytes | message: u32 len, bytes]
//! 1 Keep, 2 Drop
//! ```

use crate::Will;
use crate::claims::claim_message::ClientId;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use message::Message;
use std::sync::Arc;

/// A message about one will of the sender's clients. `number` is the sender's number of the will.
#[derive(Clone, Debug, PartialEq)]
pub enum WillMessage {
    /// Publish this will `delay` seconds after the failure of the client's node.
    Keep {
        /// The sender's number of the will.
        number: u64,
        /// The client.
        id: ClientId,
        /// The Will Delay Interval in seconds.
        delay: u32,
        /// The will.
        will: Will,
    },
    /// The client has disconnected normally, or its will has been published.
    Drop {
        /// The sender's number of the will.
        number: u64,
    },
}

/// A frame of [`WillMessage`]s is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message about wills from another router is malformed")]
pub struct WillMessageError;

const KEEP: u8 = 1;
const DROP: u8 = 2;

impl WillMessage {
    /// Appends the message to a frame.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            WillMessage::Keep {
                number,
                id,
                delay,
                will,
            } => {
                let message = will.message.as_bytes();
                out.put_u8(KEEP);
                out.put_u64(*number);
                // Vhost names have at most 255 bytes, client ids and topics at most 65,535.
                debug_assert!(id.vhost.len() <= 255);
                out.put_u8(id.vhost.len() as u8);
                out.put_slice(id.vhost.as_bytes());
                out.put_u16(id.client.len() as u16);
                out.put_slice(id.client.as_bytes());
                out.put_u32(*delay);
                out.put_u8(u8::from(will.retain));
                out.put_u16(will.topic.len() as u16);
                out.put_slice(will.topic.as_bytes());
                out.put_u32(message.len() as u32);
                out.put_slice(message);
            }
            WillMessage::Drop { number } => {
                out.put_u8(DROP);
                out.put_u64(*number);
            }
        }
    }

    /// Approximate size in a frame, in bytes.
    pub fn size(&self) -> usize {
        match self {
            WillMessage::Keep { id, will, .. } => peer_will_size(id, will),
            WillMessage::Drop { .. } => 9,
        }
    }

    /// Decodes all messages of a frame.
    pub fn decode_all(mut frame: Bytes) -> Result<Vec<WillMessage>, WillMessageError> {
        let mut all = Vec::new();
        while !frame.is_empty() {
            all.push(WillMessage::decode(&mut frame).ok_or(WillMessageError)?);
        }
        Ok(all)
    }

    fn decode(from: &mut Bytes) -> Option<WillMessage> {
        let kind = from.try_get_u8().ok()?;
        let number = from.try_get_u64().ok()?;
        match kind {
            KEEP => {}
            DROP => return Some(WillMessage::Drop { number }),
            _ => return None,
        }
        let length = from.try_get_u8().ok()?;
        let vhost = text(from, length.into())?;
        let length = from.try_get_u16().ok()?;
        let client = text(from, length.into())?;
        let delay = from.try_get_u32().ok()?;
        let retain = match from.try_get_u8().ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let length = from.try_get_u16().ok()?;
        let topic = text(from, length.into())?;
        let length = from.try_get_u32().ok()? as usize;
        // Copy: the replica may stay for long and must not keep the whole frame in memory.
        let raw = Bytes::copy_from_slice(from.get(..length)?);
        from.advance(length);
        let message = Message::decode(raw).ok()?;
        Some(WillMessage::Keep {
            number,
            id: ClientId { vhost, client },
            delay,
            will: Will {
                topic,
                message,
                retain,
            },
        })
    }
}

/// Bytes that count towards [`KEPT_BYTES`](super::KEPT_BYTES).
pub(crate) fn peer_will_size(id: &ClientId, will: &Will) -> usize {
    let names = id.vhost.len() + id.client.len() + will.topic.len();
    256 + names + will.message.as_bytes().len()
}

fn text(from: &mut Bytes, length: usize) -> Option<Arc<str>> {
    if from.len() < length {
        return None;
    }
    let bytes = from.split_to(length);
    std::str::from_utf8(&bytes).map(Arc::from).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_mqtt::{Properties, Qos};
    use conversion::mqtt::EnvelopeBuilder;
    use env::WallTime;
    use proptest::prelude::*;

    fn encoded(messages: &[WillMessage]) -> Bytes {
        let mut out = BytesMut::new();
        messages.iter().for_each(|message| message.encode(&mut out));
        out.freeze()
    }

    proptest! {
        #[test]
        fn messages_roundtrip(number: u64, delay: u32, retain: bool, client in "[a-zé]{0,300}", topic in "[a-z/]{1,300}", payload: Vec<u8>) {
            let builder = EnvelopeBuilder {
                qos: Qos::AtLeastOnce, retain, topic: &topic, properties: &Properties::default(), exchange: "amq.topic", key: "k", received: WallTime(7),
            };
            let will = Will { topic: topic.as_str().into(), message: builder.build(&payload).unwrap(), retain };
            let id = ClientId { vhost: "v".into(), client: client.as_str().into() };
            let keep = WillMessage::Keep { number, id: id.clone(), delay, will: will.clone() };
            let bytes = encoded(&[keep, WillMessage::Drop { number }]);
            let read = WillMessage::decode_all(bytes.clone()).unwrap();
            match &read[..] {
                [WillMessage::Keep { number: n, id: i, delay: d, will: w }, WillMessage::Drop { number: m }] => {
                    prop_assert_eq!((*n, i, *d, *m), (number, &id, delay, number));
                    prop_assert_eq!((&w.topic, w.retain, w.message.as_bytes()), (&will.topic, retain, will.message.as_bytes()));
                }
                other => prop_assert!(false, "{:?}", other),
            }
            for cut in 1..bytes.len() - 9 {
                prop_assert!(WillMessage::decode_all(bytes.slice(..cut)).is_err());
            }
        }

        #[test]
        fn decode_never_panics(bytes: Vec<u8>, kind in 0u8..4) {
            let mut whole = vec![kind];
            whole.extend(bytes);
            let _ = WillMessage::decode_all(Bytes::from(whole));
        }
    }
}
