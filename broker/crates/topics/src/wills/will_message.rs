//! Messages between routers about wills. Integers are big-endian; a frame is a list of:
//!
//! ```text
//! kind u8 | number u64 | [Keep: vhost: u8 len, bytes | client: u16 len, bytes | delay u32 | retain u8 | topic: u16 len, bytes | message: u32 len, bytes]
//! 1 Keep, 2 Drop
//! ```

use crate::Will;
use crate::claims::claim_message::ClientId;
use bytes::{Bytes, BytesMut};
use message::Message;
use std::sync::Arc;
use wire::{MediumText, Reader, Wire, wire_enum, wire_struct};

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

wire_enum!(WillMessage, "a message about wills" {
    1 = Keep { number: u64, id: ClientId, delay: u32, will: Will },
    2 = Drop { number: u64 },
});

// Topics have at most 65,535 bytes.
wire_struct!(Will {
    retain: bool,
    topic: Arc<str> as MediumText,
    message: Message,
});

impl WillMessage {
    /// Appends the message to a frame.
    pub fn encode(&self, out: &mut BytesMut) {
        self.put(out);
    }

    /// Approximate size in a frame, in bytes.
    pub fn size(&self) -> usize {
        match self {
            WillMessage::Keep { id, will, .. } => peer_will_size(id, will),
            WillMessage::Drop { .. } => 9,
        }
    }

    /// Decodes all messages of a frame.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn decode_all(frame: Bytes) -> Result<Vec<WillMessage>, WillMessageError> {
        // Parts are copied: the replica may stay for long and must not keep the whole frame in memory.
        let mut from = Reader::new("message about wills", &frame);
        let mut all = Vec::new();
        while !from.is_empty() {
            all.push(from.get().map_err(|_| WillMessageError)?);
        }
        Ok(all)
    }
}

/// Bytes that count towards [`KEPT_BYTES`](super::KEPT_BYTES).
pub(crate) fn peer_will_size(id: &ClientId, will: &Will) -> usize {
    let names = id.vhost.len() + id.client.len() + will.topic.len();
    256 + names + will.message.as_bytes().len()
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
