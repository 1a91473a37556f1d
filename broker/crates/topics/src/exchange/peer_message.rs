//! What hubs say to each other. Integers big-endian.
//!
//! ```text
//! 1 State: flags u8 (ask 1, again 2), then u64 each: newest | routes | messages | plain | first | lost |
//!     question | until | answered | applied
//! 2 Changes: from u64 | to u64 | digest: u8 present, [u64] | changes u32, then each:
//!     kind u8 | filter or group: vhost: u8 len, bytes; filter: u16 len, bytes | seat: queue u64 | stored, plain, acknowledged u32
//! 3 Messages: first u64 | plain u64 | messages u32, then each:
//!     flags u8 (numbered 1, group 2) | hops u8 | vhost: u8 len, bytes | [group: u16 len, bytes] | message: u32 len, bytes
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use message::Message;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    State(PeerState),
    Changes(RouteChanges),
    Messages(ForwardedMessages),
}

/// How far one hub is with another: greeting, acknowledgement and question in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// The other is to answer with its own.
    pub ask: bool,
    /// Something may have been lost: the other sends again what comes after this.
    pub again: bool,
    /// The newest version of the routes of who says this.
    pub newest: u64,
    /// The version of the other's routes that is known here; 0: nothing is.
    pub routes: u64,
    /// The newest numbered message of the other that is here, as are all before it.
    pub messages: u64,
    /// [`ForwardedMessages::plain`] as it came last.
    pub plain: u64,
    /// No numbered message before this one will come from here any more.
    pub first: u64,
    /// Numbered messages that were for the other and that it will not get.
    pub lost: u64,
    /// Answer this, and all before it, as soon as you have applied that much of the metadata log.
    pub question: u64,
    pub until: u64,
    /// The other's newest question that is answered.
    pub answered: u64,
    /// How much of the metadata log who says this has applied.
    pub applied: u64,
}

/// What somebody is there for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterestKey {
    /// Subscribers of a filter.
    Filter { vhost: Arc<str>, filter: Arc<str> },
    /// Members of a shared subscription; `filter` begins with `$share/`.
    Group { vhost: Arc<str>, filter: Arc<str> },
    /// The client whose session is in this queue, and who shares a subscription.
    Seat { queue: u64 },
}

/// How many there are, by what they are to be given through their hub; all 0: nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterestCounts {
    /// Messages of QoS 0: the others come through their queue.
    pub stored: u32,
    /// All messages, at QoS 0.
    pub plain: u32,
    /// All messages, at their own QoS.
    pub acknowledged: u32,
}

impl InterestCounts {
    pub fn is_none(self) -> bool {
        self == InterestCounts::default()
    }
}

/// How a hub's routes have changed between two versions. `from` 0: it is the beginning of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChanges {
    pub from: u64,
    pub to: u64,
    /// Of all routes, when there is no newer version.
    pub digest: Option<u64>,
    pub list: Vec<(InterestKey, InterestCounts)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedMessages {
    /// The number of the first message here that is numbered; the others follow it one by one.
    pub first: u64,
    /// Bytes of all messages that are not numbered, these included, since the hubs met.
    pub plain: u64,
    pub list: Vec<ForwardedMessage>,
}

/// A message on its way to another hub, which finds the subscribers by the topic in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedMessage {
    /// It is acknowledged, and comes once.
    pub numbered: bool,
    /// For one member of this shared subscription instead.
    pub group: Option<Arc<str>>,
    /// How often a hub has passed it on because the member that it was for had left.
    pub hops: u8,
    pub vhost: Arc<str>,
    pub message: Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hub's word cannot be read")]
pub struct PeerMessageError;

const STATE: u8 = 1;
const CHANGES: u8 = 2;
const MESSAGES: u8 = 3;
const ASK: u8 = 1;
const AGAIN: u8 = 2;
const NUMBERED: u8 = 1;
const GROUP: u8 = 2;
const KIND_FILTER: u8 = 1;
const KIND_GROUP: u8 = 2;
const KIND_SEAT: u8 = 3;
/// Least bytes of a change and of a message, so that no count makes room for what is not there.
const SMALLEST_CHANGE: usize = 16;
const SMALLEST_SENT: usize = 7;

impl PeerMessage {
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            PeerMessage::State(state) => state.encode(out),
            PeerMessage::Changes(changes) => changes.encode(out),
            PeerMessage::Messages(messages) => messages.encode(out),
        }
    }

    /// Messages share the buffer where they are most of it.
    pub fn decode(mut from: Bytes) -> Result<PeerMessage, PeerMessageError> {
        let peer_message = match u8(&mut from)? {
            STATE => PeerMessage::State(PeerState::decode(&mut from)?),
            CHANGES => PeerMessage::Changes(RouteChanges::decode(&mut from)?),
            MESSAGES => PeerMessage::Messages(ForwardedMessages::decode(&mut from)?),
            _ => return Err(PeerMessageError),
        };
        match from.is_empty() {
            true => Ok(peer_message),
            false => Err(PeerMessageError),
        }
    }
}

impl PeerState {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u8(STATE);
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

    fn decode(from: &mut Bytes) -> Result<PeerState, PeerMessageError> {
        let flags = u8(from)?;
        Ok(PeerState {
            ask: flags & ASK != 0,
            again: flags & AGAIN != 0,
            newest: u64(from)?,
            routes: u64(from)?,
            messages: u64(from)?,
            plain: u64(from)?,
            first: u64(from)?,
            lost: u64(from)?,
            question: u64(from)?,
            until: u64(from)?,
            answered: u64(from)?,
            applied: u64(from)?,
        })
    }
}

impl RouteChanges {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u8(CHANGES);
        out.put_u64(self.from);
        out.put_u64(self.to);
        out.put_u8(u8::from(self.digest.is_some()));
        if let Some(digest) = self.digest {
            out.put_u64(digest);
        }
        out.put_u32(self.list.len() as u32);
        for (key, wants) in &self.list {
            key.encode(out);
            wants.encode(out);
        }
    }

    fn decode(from: &mut Bytes) -> Result<RouteChanges, PeerMessageError> {
        let (first, to) = (u64(from)?, u64(from)?);
        let digest = match u8(from)? {
            0 => None,
            _ => Some(u64(from)?),
        };
        let count = u32(from)? as usize;
        let mut list = Vec::with_capacity(count.min(from.len() / SMALLEST_CHANGE));
        for _ in 0..count {
            list.push((InterestKey::decode(from)?, InterestCounts::decode(from)?));
        }
        Ok(RouteChanges {
            from: first,
            to,
            digest,
            list,
        })
    }
}

impl InterestKey {
    /// A vhost has 255 bytes at most and a filter 65,535, or it would not be here.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        let (kind, vhost, filter) = match self {
            InterestKey::Filter { vhost, filter } => (KIND_FILTER, vhost, filter),
            InterestKey::Group { vhost, filter } => (KIND_GROUP, vhost, filter),
            InterestKey::Seat { queue } => {
                out.put_u8(KIND_SEAT);
                return out.put_u64(*queue);
            }
        };
        out.put_u8(kind);
        put_short(vhost, out);
        put_long(filter, out);
    }

    fn decode(from: &mut Bytes) -> Result<InterestKey, PeerMessageError> {
        Ok(match u8(from)? {
            KIND_FILTER => InterestKey::Filter {
                vhost: short(from)?,
                filter: long(from)?,
            },
            KIND_GROUP => InterestKey::Group {
                vhost: short(from)?,
                filter: long(from)?,
            },
            KIND_SEAT => InterestKey::Seat { queue: u64(from)? },
            _ => return Err(PeerMessageError),
        })
    }

    /// Bytes as they are sent, about.
    pub(crate) fn size(&self) -> usize {
        let name = match self {
            InterestKey::Filter { vhost, filter } | InterestKey::Group { vhost, filter } => {
                vhost.len() + filter.len()
            }
            InterestKey::Seat { .. } => 8,
        };
        SMALLEST_CHANGE + name
    }
}

impl InterestCounts {
    pub(crate) fn encode(self, out: &mut BytesMut) {
        out.put_u32(self.stored);
        out.put_u32(self.plain);
        out.put_u32(self.acknowledged);
    }

    fn decode(from: &mut Bytes) -> Result<InterestCounts, PeerMessageError> {
        Ok(InterestCounts {
            stored: u32(from)?,
            plain: u32(from)?,
            acknowledged: u32(from)?,
        })
    }
}

impl ForwardedMessages {
    fn encode(&self, out: &mut BytesMut) {
        let size: usize = self.list.iter().map(ForwardedMessage::size).sum();
        out.reserve(21 + size);
        out.put_u8(MESSAGES);
        out.put_u64(self.first);
        out.put_u64(self.plain);
        out.put_u32(self.list.len() as u32);
        for sent in &self.list {
            sent.encode(out);
        }
    }

    fn decode(from: &mut Bytes) -> Result<ForwardedMessages, PeerMessageError> {
        let (first, plain, count) = (u64(from)?, u64(from)?, u32(from)? as usize);
        let whole = from.len();
        let mut list = Vec::with_capacity(count.min(whole / SMALLEST_SENT));
        for _ in 0..count {
            list.push(ForwardedMessage::decode(from, whole)?);
        }
        Ok(ForwardedMessages { first, plain, list })
    }
}

impl ForwardedMessage {
    /// Bytes as it is sent.
    pub(crate) fn size(&self) -> usize {
        let group = self.group.as_ref().map_or(0, |group| 2 + group.len());
        SMALLEST_SENT + self.vhost.len() + group + self.message.as_bytes().len()
    }

    fn encode(&self, out: &mut BytesMut) {
        let numbered = if self.numbered { NUMBERED } else { 0 };
        let group = if self.group.is_some() { GROUP } else { 0 };
        out.put_u8(numbered | group);
        out.put_u8(self.hops);
        put_short(&self.vhost, out);
        if let Some(group) = &self.group {
            put_long(group, out);
        }
        let bytes = self.message.as_bytes();
        out.put_u32(bytes.len() as u32);
        out.put_slice(bytes);
    }

    fn decode(from: &mut Bytes, whole: usize) -> Result<ForwardedMessage, PeerMessageError> {
        let (flags, hops, vhost) = (u8(from)?, u8(from)?, short(from)?);
        let group = match flags & GROUP {
            0 => None,
            _ => Some(long(from)?),
        };
        let len = u32(from)? as usize;
        if from.len() < len {
            return Err(PeerMessageError);
        }
        let mut raw = from.split_to(len);
        // A message that waits for a slow client must not keep many times its size.
        if raw.len() * 2 < whole {
            raw = Bytes::copy_from_slice(&raw);
        }
        Ok(ForwardedMessage {
            numbered: flags & NUMBERED != 0,
            group,
            hops,
            vhost,
            message: Message::decode(raw).map_err(|_| PeerMessageError)?,
        })
    }
}

fn put_short(text: &str, out: &mut BytesMut) {
    let len = text.len().min(u8::MAX.into());
    out.put_u8(len as u8);
    out.put_slice(text.as_bytes().get(..len).unwrap_or_default());
}

fn put_long(text: &str, out: &mut BytesMut) {
    let len = text.len().min(u16::MAX.into());
    out.put_u16(len as u16);
    out.put_slice(text.as_bytes().get(..len).unwrap_or_default());
}

fn short(from: &mut Bytes) -> Result<Arc<str>, PeerMessageError> {
    let len = u8(from)?.into();
    text(from, len)
}

fn long(from: &mut Bytes) -> Result<Arc<str>, PeerMessageError> {
    let len = from.try_get_u16().map_err(|_| PeerMessageError)?.into();
    text(from, len)
}

fn text(from: &mut Bytes, len: usize) -> Result<Arc<str>, PeerMessageError> {
    if from.len() < len {
        return Err(PeerMessageError);
    }
    let raw = from.split_to(len);
    let text = std::str::from_utf8(&raw).map_err(|_| PeerMessageError)?;
    Ok(text.into())
}

fn u8(from: &mut Bytes) -> Result<u8, PeerMessageError> {
    from.try_get_u8().map_err(|_| PeerMessageError)
}

fn u32(from: &mut Bytes) -> Result<u32, PeerMessageError> {
    from.try_get_u32().map_err(|_| PeerMessageError)
}

fn u64(from: &mut Bytes) -> Result<u64, PeerMessageError> {
    from.try_get_u64().map_err(|_| PeerMessageError)
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
        let wants = InterestCounts {
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
        let sent = |numbered, group| ForwardedMessage {
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
                list: all.into_iter().map(|key| (key, wants)).collect(),
            }),
            PeerMessage::Messages(ForwardedMessages {
                first: 3,
                plain: 4,
                list: vec![sent(true, None), sent(false, Some(filter.clone()))],
            }),
        ]
    }

    #[test]
    fn words_return_and_cut_ones_do_not() {
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
    fn a_count_makes_no_room() {
        let mut out = BytesMut::new();
        out.put_u8(MESSAGES);
        out.put_u64(1);
        out.put_u64(0);
        out.put_u32(u32::MAX);
        assert_eq!(PeerMessage::decode(out.freeze()), Err(PeerMessageError));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0u8..5) {
            let mut tagged = vec![kind];
            tagged.extend(bytes);
            let _ = PeerMessage::decode(Bytes::from(tagged));
        }
    }
}
