//! Session state that is handed over to another shard or node: packet identifiers of unreleased QoS
//! 2 publishes (section 4.3.3) and the messages that were sent to the client (section 3.3.1.1).
//!
//! The session's queue decides whether the state is used. It knows the last connections that
//! consumed from it; if there were others since, the state is obsolete.
//!
//! Integers are big-endian:
//!
//! ```text
//! version u8: 1 | queue u64 | node u64, incarnation u64, number u64 of the first connection
//!     | identifiers: 0 u8, count u16, (first u16, last u16)* | 1 u8, 8,192 bytes with one bit for each
//!     | messages: 0 u8 (unknown) | 1 u8, count u16, (number u64, received u64)*
//! version u8: 2 | queue u64 of a session that has ended
//! ```
//!
//! A node that does not know a version ignores the handover.

use bytes::{BufMut, Bytes, BytesMut};
use env::WallTime;
use metadata::{QueueId, SessionId};
use queue::MessageId;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use wire::{DecodeCause, Decoded, Reader, Wire};

const VERSION: u8 = 1;
const ENDED: u8 = 2;
const RANGES: u8 = 0;
const BITMAP: u8 = 1;
const BITMAP_BYTES: usize = 8192;
const UNKNOWN: u8 = 0;
const KNOWN: u8 = 1;
/// Maximum number of sent messages that are remembered. If there are more, any message may have
/// been sent.
const MARKS: usize = 1024;

// The largest state fits into a handover.
const _: () = assert!(64 + BITMAP_BYTES + 16 * MARKS <= topics::HANDOVER_BYTES);

/// The messages that earlier connections sent to the client, among those that its queue may deliver
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EarlierSentMessages {
    /// Any message may have been sent.
    Unknown,
    Known(BTreeSet<MessageId>),
}

impl EarlierSentMessages {
    pub(crate) const NOTHING: EarlierSentMessages = EarlierSentMessages::Known(BTreeSet::new());

    /// Returns true if a redelivered message may have been sent before.
    pub(crate) fn may_have(&self, mark: Option<MessageId>) -> bool {
        match (self, mark) {
            (EarlierSentMessages::Unknown, _) => true,
            (EarlierSentMessages::Known(marks), Some(mark)) => marks.contains(&mark),
            (EarlierSentMessages::Known(marks), None) => !marks.is_empty(),
        }
    }

    pub(crate) fn add(&mut self, mark: Option<MessageId>) {
        match (&mut *self, mark) {
            (EarlierSentMessages::Known(marks), Some(mark)) if marks.len() < MARKS => {
                marks.insert(mark);
            }
            _ => *self = EarlierSentMessages::Unknown,
        }
    }
}

/// The handed-over state; the [module](self) describes the encoding.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    pub queue: QueueId,
    /// The connection that began the [session epoch](queue::SessionEpoch).
    pub epoch: SessionId,
    /// Packet identifiers of QoS 2 publishes that await PUBREL.
    pub received: BTreeSet<u16>,
    pub sent: EarlierSentMessages,
}

impl Handover {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        self.queue.put(&mut out);
        self.epoch.put(&mut out);
        self.encode_received(&mut out);
        match &self.sent {
            EarlierSentMessages::Unknown => out.put_u8(UNKNOWN),
            EarlierSentMessages::Known(marks) => {
                out.put_u8(KNOWN);
                out.put_u16(marks.len() as u16);
                for mark in marks {
                    out.put_u64(mark.number.get());
                    out.put_u64(mark.received.0);
                }
            }
        }
        out.freeze()
    }

    fn encode_received(&self, out: &mut BytesMut) {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for &id in &self.received {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(id) => *last = id,
                _ => ranges.push((id, id)),
            }
        }
        if ranges.len() * 4 <= BITMAP_BYTES {
            out.put_u8(RANGES);
            out.put_u16(ranges.len() as u16);
            for (first, last) in ranges {
                out.put_u16(first);
                out.put_u16(last);
            }
            return;
        }
        let mut bitmap = vec![0u8; BITMAP_BYTES];
        for &id in &self.received {
            if let Some(byte) = bitmap.get_mut(usize::from(id / 8)) {
                *byte |= 1 << (id % 8);
            }
        }
        out.put_u8(BITMAP);
        out.put_slice(&bitmap);
    }

    /// Returns `None` if another version encoded the state or it is damaged.
    pub(crate) fn decode(raw: Bytes) -> Option<Handover> {
        let mut from = Reader::new("state of an MQTT session", &raw);
        if from.u8().ok()? != VERSION {
            return None;
        }
        let handover = Handover {
            queue: from.get().ok()?,
            epoch: from.get().ok()?,
            received: decode_received(&mut from).ok()?,
            sent: decode_sent(&mut from).ok()?,
        };
        from.is_empty().then_some(handover)
    }
}

fn decode_sent(from: &mut Reader<'_>) -> Decoded<EarlierSentMessages> {
    match from.u8()? {
        UNKNOWN => return Ok(EarlierSentMessages::Unknown),
        KNOWN => {}
        other => return Err(from.error(DecodeCause::Tag("a list of messages", other))),
    }
    let count: u16 = from.get()?;
    if usize::from(count) > MARKS {
        return Err(from.error(DecodeCause::Limit));
    }
    let mut marks = BTreeSet::new();
    for _ in 0..count {
        let number = NonZeroU64::new(from.get()?).ok_or(from.error(DecodeCause::Limit))?;
        let received: WallTime = from.get()?;
        marks.insert(MessageId { number, received });
    }
    Ok(EarlierSentMessages::Known(marks))
}

fn decode_received(from: &mut Reader<'_>) -> Decoded<BTreeSet<u16>> {
    let mut received = BTreeSet::new();
    match from.u8()? {
        RANGES => {
            let mut least = 0;
            for _ in 0..from.get::<u16>()? {
                let (first, last): (u16, u16) = from.get()?;
                // Ascending order, so that no identifier is processed twice.
                if u32::from(first) < least || last < first {
                    return Err(from.error(DecodeCause::Limit));
                }
                least = u32::from(last) + 1;
                received.extend(first..=last);
            }
        }
        BITMAP => {
            let bitmap = from.take(BITMAP_BYTES)?;
            let has = |id: &u16| {
                let byte = bitmap.get(usize::from(id / 8));
                byte.is_some_and(|byte| byte & (1 << (id % 8)) != 0)
            };
            received.extend((0..=u16::MAX).filter(has));
        }
        other => return Err(from.error(DecodeCause::Tag("packet identifiers", other))),
    }
    // 0 is not a valid packet identifier [MQTT-2.2.1-3].
    match received.contains(&0) {
        false => Ok(received),
        true => Err(from.error(DecodeCause::Limit)),
    }
}

/// Encodes that a session has ended. Its queue is being deleted, which the next holder of the client
/// id may not see yet.
pub(crate) fn encode_ended(queue: QueueId) -> Box<[u8]> {
    let mut out = BytesMut::new();
    out.put_u8(ENDED);
    queue.put(&mut out);
    out[..].into()
}

/// Returns the queue of the previous session with the client id if that session has ended.
pub(crate) fn ended_queue(raw: &Bytes) -> Option<QueueId> {
    let mut from = Reader::new("state of an MQTT session", raw);
    if from.u8().ok()? != ENDED {
        return None;
    }
    let queue = from.get().ok()?;
    from.is_empty().then_some(queue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Incarnation, NodeId};
    use proptest::prelude::*;

    fn handover() -> impl Strategy<Value = Handover> {
        let received = prop_oneof![
            prop::collection::btree_set(1..=u16::MAX, 0..50),
            Just((1..=u16::MAX).collect()),
            Just((1..=u16::MAX).step_by(2).collect()),
            prop::collection::btree_set(1..=u16::MAX, 4000..4200),
        ];
        let mark = (1u64.., any::<u64>()).prop_map(|(number, received)| MessageId {
            number: NonZeroU64::new(number).expect("not 0"),
            received: WallTime(received),
        });
        let marks = prop::collection::btree_set(mark, 0..40);
        let sent = prop_oneof![
            Just(EarlierSentMessages::Unknown),
            marks.prop_map(EarlierSentMessages::Known)
        ];
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let all = (numbers, received, sent);
        all.prop_map(|((queue, node, life, number), received, sent)| Handover {
            queue: QueueId(queue),
            epoch: SessionId {
                node: NodeId(node),
                incarnation: Incarnation(life),
                number,
            },
            received,
            sent,
        })
    }

    #[test]
    fn an_ended_session_is_no_state_of_a_session() {
        let ended = Bytes::from(encode_ended(QueueId(7)));
        assert_eq!(ended_queue(&ended), Some(QueueId(7)));
        assert_eq!(Handover::decode(ended.clone()), None);
        for damaged in [
            ended.slice(..8),
            Bytes::new(),
            [&ended[..], &[0]].concat().into(),
        ] {
            assert_eq!(ended_queue(&damaged), None, "{damaged:?}");
        }
    }

    proptest! {
        #[test]
        fn handover_roundtrips_and_truncated_one_is_refused(
            handover in handover(),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = handover.encode();
            prop_assert!(bytes.len() <= topics::HANDOVER_BYTES);
            let cut = cut.index(bytes.len());
            prop_assert_eq!(Handover::decode(bytes.slice(..cut)), None);
            prop_assert_eq!(Handover::decode(bytes), Some(handover));
        }

        #[test]
        fn decode_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..80), known in any::<bool>()) {
            if let (true, Some(version)) = (known, bytes.first_mut()) {
                *version = VERSION;
            }
            let _ = Handover::decode(Bytes::from(bytes));
        }
    }

    #[test]
    fn overlapping_ranges_and_identifier_0_are_refused() {
        let with = |ranges: &[(u16, u16)]| {
            let mut out = BytesMut::new();
            out.put_u8(VERSION);
            out.put_slice(&[0; 32]);
            out.put_u8(RANGES);
            out.put_u16(ranges.len() as u16);
            for (first, last) in ranges {
                out.put_u16(*first);
                out.put_u16(*last);
            }
            out.put_u8(UNKNOWN);
            Handover::decode(out.freeze())
        };
        assert!(with(&[(1, 5), (6, u16::MAX)]).is_some());
        for wrong in [&[(1, 5), (5, 6)][..], &[(6, 5)], &[(0, 1)]] {
            assert!(with(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn too_many_sent_messages_become_unknown() {
        let mark = |number| {
            Some(MessageId {
                number: NonZeroU64::new(number)?,
                received: WallTime(1),
            })
        };
        let mut sent = EarlierSentMessages::NOTHING;
        (1..=1024).for_each(|number| sent.add(mark(number)));
        assert!(sent.may_have(mark(1024)) && !sent.may_have(mark(1025)));
        assert!(
            sent.may_have(None),
            "a queue that does not number its messages"
        );
        sent.add(mark(2000));
        assert_eq!(sent, EarlierSentMessages::Unknown);
    }

    golden::variant_names! {
        fn sent_name(EarlierSentMessages) {
            EarlierSentMessages::Unknown => "unknown",
            EarlierSentMessages::Known(_) => "known",
        }
    }

    #[test]
    fn handovers_of_version_0_2_are_decoded() {
        let mark = |number, received| MessageId {
            number: NonZeroU64::new(number).expect("not 0"),
            received: WallTime(received),
        };
        let marks = [mark(1, 1_790_000_000_123), mark(u64::MAX, 0)];
        let ranges = Handover {
            queue: QueueId(70_000),
            epoch: SessionId {
                node: NodeId(u64::MAX),
                incarnation: Incarnation(300),
                number: 5,
            },
            received: [1, 2, 3, 300, u16::MAX].into(),
            sent: EarlierSentMessages::Known(marks.into()),
        };
        let bitmap = Handover {
            received: (1..=u16::MAX).step_by(3).collect(),
            sent: EarlierSentMessages::Unknown,
            ..ranges
        };
        let nothing = Handover {
            received: BTreeSet::new(),
            sent: EarlierSentMessages::NOTHING,
            ..bitmap
        };
        golden::assert_covers([&ranges.sent, &bitmap.sent], sent_name);
        golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/handover", |files| {
            let encode = |handover: &Handover| handover.encode().to_vec();
            let decode =
                |bytes: &[u8]| Handover::decode(Bytes::copy_from_slice(bytes)).ok_or("damaged");
            files.check("ranges", &ranges, encode, decode);
            files.check("nothing", &nothing, encode, decode);
            // The text of 21,845 identifiers would be long, so the value is compared here.
            if let Some(stored) = files.check_bytes("bitmap", &encode(&bitmap)) {
                assert_eq!(decode(&stored), Ok(bitmap));
            }
        });
    }
}
