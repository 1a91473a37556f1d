//! Messages between routers about routes, and forwarded MQTT messages. Integers are big-endian.
//!
//! ```text
//! 1 State: flags u8 (ask 1, again 2), then u64 each: newest | routes | messages | plain | first | lost |
//!     question | until | answered | applied
//! 2 Changes: from u64 | to u64 | digest: u8 present, [u64] | changes u32, then each:
//!     kind u8 | filter or group: vhost: u8 len, bytes; filter: u16 len, bytes | seat: queue u64 | stored, plain, acknowledged u32
//! 3 Messages: first u64 | plain u64 | messages u32, then each:
//!     flags u8 (numbered 1, group 2) | hops u8 | vhost: u8 len, bytes | [group: u16 len, bytes] | message: u32 len, bytes
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use message::Message;
use std::sync::Arc;
use wire::{Decoded, Encoding, MediumText, Reader, ShortText, Wire, wire_enum, wire_struct};

/// A message from one router to another.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// Progress of the exchange.
    State(PeerState),

    /// Changes of the routes of the sender.
    Changes(RouteChanges),

    /// Forwarded MQTT messages.
    Messages(ForwardedMessages),
}

/// The progress of one router with another: handshake, acknowledgement and question in one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// The receiver must answer with its own state.
    pub ask: bool,
    /// Something may have been lost: the receiver must send again everything after this state.
    pub again: bool,
    /// The newest version of the sender's routes.
    pub newest: u64,
    /// The version of the receiver's routes that the sender knows; 0 if it knows none.
    pub routes: u64,
    /// The newest numbered message of the receiver that the sender has, including all before it.
    pub messages: u64,
    /// [`ForwardedMessages::plain`] as received last.
    pub plain: u64,
    /// The sender will not send any numbered message before this one.
    pub first: u64,
    /// Number of numbered messages for the receiver that the sender gave up.
    pub lost: u64,
    /// The sender's newest question. The receiver answers it as soon as it has applied the metadata
    /// log up to `until`.
    pub question: u64,
    /// The index in the metadata log that `question` requires.
    pub until: u64,
    /// The receiver's newest question that the sender has answered.
    pub answered: u64,
    /// The index up to which the sender has applied the metadata log.
    pub applied: u64,
}

/// The subject of an interest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterestKey {
    /// Subscribers of a filter.
    Filter {
        /// The vhost.
        vhost: Arc<str>,
        /// The filter.
        filter: Arc<str>,
    },
    /// Members of a shared subscription; `filter` begins with `$share/`.
    Group {
        /// The vhost.
        vhost: Arc<str>,
        /// The filter.
        filter: Arc<str>,
    },
    /// The connection of the client whose session is stored in this queue and that has shared
    /// subscriptions.
    Seat {
        /// The number of the queue.
        queue: u64,
    },
}

/// Number of subscribers by the messages that their router must receive; all 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterestCounts {
    /// Subscribers that receive only QoS 0 messages through the router: the others come from their
    /// queue.
    pub stored: u32,
    /// Subscribers that receive all messages with QoS 0.
    pub plain: u32,
    /// Subscribers that receive all messages with their own QoS.
    pub acknowledged: u32,
}

impl InterestCounts {
    /// Returns true if there are no subscribers.
    pub fn is_none(self) -> bool {
        self == InterestCounts::default()
    }
}

/// Changes of a router's routes between two versions. `from` 0 starts the full list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChanges {
    /// The version before the changes.
    pub from: u64,
    /// The version after the changes.
    pub to: u64,
    /// The digest of all routes, if `to` is the newest version.
    pub digest: Option<u64>,
    /// The changed keys with their new counts.
    pub list: Vec<(InterestKey, InterestCounts)>,
}

/// A batch of forwarded messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedMessages {
    /// The number of the first numbered message in `list`; the other numbered ones follow without
    /// gaps.
    pub first: u64,
    /// Bytes of all unnumbered messages since the routers met, including these.
    pub plain: u64,
    /// The messages in the order of publication.
    pub list: Vec<ForwardedMessage>,
}

/// A message for another router, which finds its subscribers by the topic in the envelope.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedMessage {
    /// The message is acknowledged and delivered once.
    pub numbered: bool,
    /// The message is for one member of this shared subscription instead.
    pub group: Option<Arc<str>>,
    /// How often a router has forwarded it because the selected member had left.
    pub hops: u8,
    /// The vhost.
    pub vhost: Arc<str>,
    /// The message; its properties are an `conversion::mqtt::Envelope`.
    pub message: Message,
}

/// A [`PeerMessage`] is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message about subscriptions from another router is malformed")]
pub struct PeerMessageError;

const ASK: u8 = 1;
const AGAIN: u8 = 2;
const NUMBERED: u8 = 1;
const GROUP: u8 = 2;
/// Typical size of a change without its names.
const CHANGE_BYTES: usize = 16;
/// Size of a forwarded message without its names and the container.
const FORWARDED_BYTES: usize = 7;

wire_enum!(PeerMessage, "a message from another router" {
    1 = State(state: PeerState),
    2 = Changes(changes: RouteChanges),
    3 = Messages(messages: ForwardedMessages),
});
wire_struct!(RouteChanges {
    from: u64,
    to: u64,
    digest: Option<u64>,
    list: Vec<(InterestKey, InterestCounts)>,
});
// Vhost names have at most 255 bytes and filters at most 65,535.
wire_enum!(InterestKey, "an interest" {
    1 = Filter { vhost: Arc<str> as ShortText, filter: Arc<str> as MediumText },
    2 = Group { vhost: Arc<str> as ShortText, filter: Arc<str> as MediumText },
    3 = Seat { queue: u64 },
});
wire_struct!(InterestCounts {
    stored: u32,
    plain: u32,
    acknowledged: u32,
});
wire_struct!(ForwardedMessages {
    first: u64,
    plain: u64,
    list: Vec<ForwardedMessage>,
});

impl PeerMessage {
    /// Appends the encoded message to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        if let PeerMessage::Messages(messages) = self {
            let size: usize = messages.list.iter().map(ForwardedMessage::size).sum();
            out.reserve(21 + size);
        }
        self.put(out);
    }

    /// Decodes a message. Forwarded messages share the buffer of the frame if they make up most of it.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn decode(frame: Bytes) -> Result<PeerMessage, PeerMessageError> {
        let format = "message from another router";
        let mut decoded = wire::decode(format, &frame).map_err(|_| PeerMessageError)?;
        if let PeerMessage::Messages(messages) = &mut decoded {
            for forwarded in &mut messages.list {
                forwarded.detach(frame.len());
            }
        }
        Ok(decoded)
    }
}

impl Wire for PeerState {
    fn put(&self, out: &mut BytesMut) {
        let ask = if self.ask { ASK } else { 0 };
        let again = if self.again { AGAIN } else { 0 };
        out.put_u8(ask | again);
        for field in [
            self.newest,
            self.routes,
            self.messages,
            self.plain,
            self.first,
            self.lost,
            self.question,
            self.until,
            self.answered,
            self.applied,
        ] {
            out.put_u64(field);
        }
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let flags = from.u8()?;
        Ok(PeerState {
            ask: flags & ASK != 0,
            again: flags & AGAIN != 0,
            newest: from.get()?,
            routes: from.get()?,
            messages: from.get()?,
            plain: from.get()?,
            first: from.get()?,
            lost: from.get()?,
            question: from.get()?,
            until: from.get()?,
            answered: from.get()?,
            applied: from.get()?,
        })
    }
}

impl InterestKey {
    /// Approximate encoded size in bytes.
    pub(crate) fn size(&self) -> usize {
        let name = match self {
            InterestKey::Filter { vhost, filter } | InterestKey::Group { vhost, filter } => {
                vhost.len() + filter.len()
            }
            InterestKey::Seat { .. } => 8,
        };
        CHANGE_BYTES + name
    }
}

impl ForwardedMessage {
    /// Encoded size in bytes.
    pub(crate) fn size(&self) -> usize {
        let group = self.group.as_ref().map_or(0, |group| 2 + group.len());
        FORWARDED_BYTES + self.vhost.len() + group + self.message.as_bytes().len()
    }
}

impl ForwardedMessage {
    /// Copies a message that is small compared to its frame: one that waits for a slow client must not keep the whole frame
    /// in memory.
    fn detach(&mut self, frame_bytes: usize) {
        let raw = self.message.as_bytes();
        if raw.len() * 2 < frame_bytes
            && let Ok(copy) = Message::decode(Bytes::copy_from_slice(raw))
        {
            self.message = copy;
        }
    }
}

impl Wire for ForwardedMessage {
    const MIN_LEN: usize = FORWARDED_BYTES;

    fn put(&self, out: &mut BytesMut) {
        let numbered = if self.numbered { NUMBERED } else { 0 };
        let group = if self.group.is_some() { GROUP } else { 0 };
        out.put_u8(numbered | group);
        out.put_u8(self.hops);
        ShortText::put(&self.vhost, out);
        if let Some(group) = &self.group {
            MediumText::put(group, out);
        }
        self.message.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let (flags, hops) = (from.u8()?, from.u8()?);
        let vhost = ShortText::get(from)?;
        let group = match flags & GROUP {
            0 => None,
            _ => Some(MediumText::get(from)?),
        };
        Ok(ForwardedMessage {
            numbered: flags & NUMBERED != 0,
            group,
            hops,
            vhost,
            message: from.get()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::WallTime;
    use message::{MessageBuilder, Protocol};
    use proptest::prelude::*;

    fn message(body: &[u8]) -> Message {
        let builder = MessageBuilder {
            protocol: Protocol::Mqtt,
            durable: true,
            priority: None,
            ttl_ms: None,
            received: WallTime(7),
            exchange: "amq.topic",
            routing_keys: &["a"],
            properties: &[],
        };
        builder.build(body.len(), [body]).unwrap()
    }

    fn samples() -> Vec<PeerMessage> {
        let (vhost, filter): (Arc<str>, Arc<str>) = ("/".into(), "$share/g/a/+".into());
        let counts = InterestCounts {
            stored: 1,
            plain: 0,
            acknowledged: u32::MAX,
        };
        let (v, f) = (vhost.clone(), filter.clone());
        let all = [
            InterestKey::Filter {
                vhost: v.clone(),
                filter: "#".into(),
            },
            InterestKey::Group {
                vhost: v,
                filter: f,
            },
            InterestKey::Seat { queue: u64::MAX },
        ];
        let forwarded = |numbered, group| ForwardedMessage {
            numbered,
            group,
            hops: 2,
            vhost: vhost.clone(),
            message: message(b"hello"),
        };
        vec![
            PeerMessage::State(PeerState {
                ask: true,
                again: false,
                newest: 9,
                routes: 1,
                messages: 2,
                plain: 3,
                first: 4,
                lost: u64::MAX,
                question: 5,
                until: 6,
                answered: 7,
                applied: 8,
            }),
            PeerMessage::Changes(RouteChanges {
                from: 0,
                to: 9,
                digest: Some(5),
                list: all.into_iter().map(|key| (key, counts)).collect(),
            }),
            PeerMessage::Messages(ForwardedMessages {
                first: 3,
                plain: 4,
                list: vec![
                    forwarded(true, None),
                    forwarded(false, Some(filter.clone())),
                ],
            }),
        ]
    }

    #[test]
    fn messages_roundtrip_and_truncated_ones_fail() {
        for peer_message in samples() {
            let mut out = BytesMut::new();
            peer_message.encode(&mut out);
            let bytes = out.freeze();
            assert_eq!(PeerMessage::decode(bytes.clone()), Ok(peer_message));
            for cut in 0..bytes.len() {
                assert!(PeerMessage::decode(bytes.slice(..cut)).is_err());
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(PeerMessage::decode(longer.into()).is_err());
        }
    }

    #[test]
    fn count_alone_reserves_no_memory() {
        let mut out = BytesMut::new();
        out.put_u8(3);
        out.put_u64(1);
        out.put_u64(0);
        out.put_u32(u32::MAX);
        assert_eq!(PeerMessage::decode(out.freeze()), Err(PeerMessageError));
    }

    proptest! {
        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0u8..5) {
            let mut tagged = vec![kind];
            tagged.extend(bytes);
            let _ = PeerMessage::decode(Bytes::from(tagged));
        }
    }
}
