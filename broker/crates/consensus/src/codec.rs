//! The wire format between hosts: a frame is a version byte followed by messages, each a kind byte, a group
//! and fields.
//!
//! Numbers are LEB128. Bytes from a peer are untrusted: any input decodes to messages or an error.

use crate::GroupId;
use crate::entry::{self, LogNumber};
use bytes::{BufMut, Bytes, BytesMut};
use env::NodeId;
use raft::eraftpb::{self, Message, MessageType};
use wire::{DecodeCause, Decoded, Encoding, Reader, Varint, put_varint};

pub(crate) const VERSION: u8 = 1;

/// The name of the format in errors.
const FORMAT: &str = "Raft frame";

/// A message between two hosts about one group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GroupMessage {
    Raft(Box<Message>),
    /// The leader is idle and stops sending heartbeats; a follower that agrees stops its clock.
    Sleep {
        term: u64,
        commit: u64,
    },
    Transfer(Transfer),
}

/// Messages of a checkpoint transfer to a member that is too far behind the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    Begin(Offer),
    /// A part of the stream; `last` ends it.
    Chunk {
        id: u64,
        number: u32,
        last: bool,
        data: Bytes,
    },
    /// The receiver has all chunks before `next`.
    Ack {
        id: u64,
        next: u32,
    },
    /// The receiver has installed the checkpoint.
    Done {
        id: u64,
    },
    /// Either side aborts the transfer.
    Abort {
        id: u64,
    },
}

/// Describes the checkpoint of a transfer. `id` is chosen by the sender and unique within one incarnation of
/// its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub id: u64,
    /// The leader's term.
    pub term: u64,
    pub index: u64,
    pub index_term: u64,
    /// Encoded membership as of `index`.
    pub membership: Bytes,
    pub state_bytes: u64,
    pub entries: u64,
}

wire::wire_struct!(Offer {
    id: u64 as Varint,
    term: u64 as Term,
    index: u64 as LogNumber,
    index_term: u64 as LogNumber,
    state_bytes: u64 as Varint,
    entries: u64 as Varint,
    membership: Bytes as VarintBytes,
});

const APPEND: u8 = 1;
const APPEND_RESPONSE: u8 = 2;
const VOTE: u8 = 3;
const VOTE_RESPONSE: u8 = 4;
const PRE_VOTE: u8 = 5;
const PRE_VOTE_RESPONSE: u8 = 6;
const HEARTBEAT: u8 = 7;
const HEARTBEAT_RESPONSE: u8 = 8;
const TIMEOUT_NOW: u8 = 9;
const SLEEP: u8 = 10;
const BEGIN: u8 = 11;
const CHUNK: u8 = 12;
const ACK: u8 = 13;
const DONE: u8 = 14;
const ABORT: u8 = 15;

/// The context that raft-rs sets in vote requests of a leadership transfer.
const TRANSFER_CONTEXT: &[u8] = b"CampaignTransfer";

const FLAG_REJECT: u8 = 1;
const FLAG_TRANSFER: u8 = 2;

/// The encoding of a message's term, which is never 0: raft-rs treats a message with term 0 as local.
enum Term {}

impl Encoding<u64> for Term {
    fn put(value: &u64, out: &mut BytesMut) {
        debug_assert!(*value > 0, "a message between hosts has a term");
        LogNumber::put(value, out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<u64> {
        match LogNumber::get(from)? {
            0 => Err(from.error(DecodeCause::Damaged("term"))),
            term => Ok(term),
        }
    }
}

/// The encoding of bytes behind their LEB128 length.
enum VarintBytes {}

impl Encoding<Bytes> for VarintBytes {
    fn put(value: &Bytes, out: &mut BytesMut) {
        put_varint(out, value.len() as u64);
        out.put_slice(value);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Bytes> {
        let len = from.varint_count(1)?;
        from.take_bytes(len)
    }
}

fn put_number(out: &mut BytesMut, number: u64) {
    LogNumber::put(&number, out);
}

fn kind_of(t: MessageType) -> Option<u8> {
    Some(match t {
        MessageType::MsgAppend => APPEND,
        MessageType::MsgAppendResponse => APPEND_RESPONSE,
        MessageType::MsgRequestVote => VOTE,
        MessageType::MsgRequestVoteResponse => VOTE_RESPONSE,
        MessageType::MsgRequestPreVote => PRE_VOTE,
        MessageType::MsgRequestPreVoteResponse => PRE_VOTE_RESPONSE,
        MessageType::MsgHeartbeat => HEARTBEAT,
        MessageType::MsgHeartbeatResponse => HEARTBEAT_RESPONSE,
        MessageType::MsgTimeoutNow => TIMEOUT_NOW,
        _ => return None,
    })
}

/// Appends a raft-rs message. Returns false and appends nothing for kinds that are never sent, and for
/// entries with gaps, because entry indexes are not encoded.
pub(crate) fn encode_raft(out: &mut BytesMut, group: GroupId, m: &Message) -> bool {
    let mut expected = m.index..;
    let gap = m
        .entries
        .iter()
        .any(|e| expected.next().map(|i| i + 1) != Some(e.index));
    let Some(kind) = kind_of(m.get_msg_type()).filter(|_| !gap) else {
        return false;
    };
    out.put_u8(kind);
    put_varint(out, group.0);
    Term::put(&m.term, out);
    let reject = if m.reject { FLAG_REJECT } else { 0 };
    match kind {
        APPEND => {
            for n in [m.index, m.log_term, m.commit] {
                put_number(out, n);
            }
            put_varint(out, m.entries.len() as u64);
            for e in m.entries.iter() {
                put_entry(out, e);
            }
        }
        APPEND_RESPONSE => {
            out.put_u8(reject);
            for n in [m.index, m.commit, m.reject_hint, m.log_term] {
                put_number(out, n);
            }
        }
        VOTE | PRE_VOTE => {
            let transfer = m.context.as_ref() == TRANSFER_CONTEXT;
            out.put_u8(if transfer { FLAG_TRANSFER } else { 0 });
            for n in [m.index, m.log_term, m.commit, m.commit_term] {
                put_number(out, n);
            }
        }
        VOTE_RESPONSE | PRE_VOTE_RESPONSE => {
            out.put_u8(reject);
            put_number(out, m.commit);
            put_number(out, m.commit_term);
        }
        HEARTBEAT | HEARTBEAT_RESPONSE => put_number(out, m.commit),
        _ => {}
    }
    true
}

/// The fewest bytes of an entry: kind, term and length.
const MIN_ENTRY_LEN: usize = 3;

fn put_entry(out: &mut BytesMut, e: &eraftpb::Entry) {
    let membership = e.get_entry_type() != eraftpb::EntryType::EntryNormal;
    out.put_u8(if membership {
        entry::MEMBERSHIP
    } else {
        entry::NORMAL
    });
    put_number(out, e.term);
    VarintBytes::put(&e.data, out);
}

pub(crate) fn encode_sleep(out: &mut BytesMut, group: GroupId, term: u64, commit: u64) {
    out.put_u8(SLEEP);
    put_varint(out, group.0);
    put_number(out, term);
    put_number(out, commit);
}

pub(crate) fn encode_transfer(out: &mut BytesMut, group: GroupId, transfer: &Transfer) {
    let kind = match transfer {
        Transfer::Begin(_) => BEGIN,
        Transfer::Chunk { .. } => CHUNK,
        Transfer::Ack { .. } => ACK,
        Transfer::Done { .. } => DONE,
        Transfer::Abort { .. } => ABORT,
    };
    out.put_u8(kind);
    put_varint(out, group.0);
    match transfer {
        Transfer::Begin(offer) => wire::Wire::put(offer, out),
        Transfer::Chunk {
            id,
            number,
            last,
            data,
        } => {
            put_varint(out, *id);
            Varint::put(number, out);
            out.put_u8(u8::from(*last));
            VarintBytes::put(data, out);
        }
        Transfer::Ack { id, next } => {
            put_varint(out, *id);
            Varint::put(next, out);
        }
        Transfer::Done { id } | Transfer::Abort { id } => put_varint(out, *id),
    }
}

/// Decodes the messages of a frame one by one.
pub(crate) struct FrameReader<'a> {
    reader: Reader<'a>,
    from: NodeId,
    to: NodeId,
}

impl<'a> FrameReader<'a> {
    /// `from` is the authenticated sender; `to` is this node.
    pub(crate) fn new(frame: &'a Bytes, from: NodeId, to: NodeId) -> Decoded<FrameReader<'a>> {
        let mut reader = Reader::shared(FORMAT, frame);
        match reader.u8()? {
            VERSION => Ok(FrameReader { reader, from, to }),
            other => Err(reader.error(DecodeCause::Version(other))),
        }
    }

    /// The next message, or `None` at the end. After an error the rest of the frame cannot be decoded.
    pub(crate) fn next(&mut self) -> Decoded<Option<(GroupId, GroupMessage)>> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let kind = self.reader.u8()?;
        let group = GroupId(self.reader.varint()?);
        let message = match kind {
            APPEND..=TIMEOUT_NOW => GroupMessage::Raft(Box::new(self.raft(kind)?)),
            SLEEP => GroupMessage::Sleep {
                term: self.number()?,
                commit: self.number()?,
            },
            BEGIN..=ABORT => GroupMessage::Transfer(self.transfer(kind)?),
            _ => return Err(self.reader.error(DecodeCause::Tag("a Raft message", kind))),
        };
        Ok(Some((group, message)))
    }

    /// Decodes an index or a term.
    fn number(&mut self) -> Decoded<u64> {
        LogNumber::get(&mut self.reader)
    }

    fn raft(&mut self, kind: u8) -> Decoded<Message> {
        let mut m = Message::default();
        m.from = self.from.0;
        m.to = self.to.0;
        m.term = Term::get(&mut self.reader)?;
        m.set_msg_type(match kind {
            APPEND => MessageType::MsgAppend,
            APPEND_RESPONSE => MessageType::MsgAppendResponse,
            VOTE => MessageType::MsgRequestVote,
            VOTE_RESPONSE => MessageType::MsgRequestVoteResponse,
            PRE_VOTE => MessageType::MsgRequestPreVote,
            PRE_VOTE_RESPONSE => MessageType::MsgRequestPreVoteResponse,
            HEARTBEAT => MessageType::MsgHeartbeat,
            HEARTBEAT_RESPONSE => MessageType::MsgHeartbeatResponse,
            _ => MessageType::MsgTimeoutNow,
        });
        match kind {
            APPEND => self.append(&mut m)?,
            APPEND_RESPONSE => {
                m.reject = self.reader.u8()? & FLAG_REJECT != 0;
                m.index = self.number()?;
                m.commit = self.number()?;
                m.reject_hint = self.number()?;
                m.log_term = self.number()?;
            }
            VOTE | PRE_VOTE => {
                if self.reader.u8()? & FLAG_TRANSFER != 0 {
                    m.context = Bytes::from_static(TRANSFER_CONTEXT);
                }
                m.index = self.number()?;
                m.log_term = self.number()?;
                m.commit = self.number()?;
                m.commit_term = self.number()?;
            }
            VOTE_RESPONSE | PRE_VOTE_RESPONSE => {
                m.reject = self.reader.u8()? & FLAG_REJECT != 0;
                m.commit = self.number()?;
                m.commit_term = self.number()?;
            }
            HEARTBEAT | HEARTBEAT_RESPONSE => m.commit = self.number()?,
            _ => {}
        }
        Ok(m)
    }

    fn append(&mut self, m: &mut Message) -> Decoded<()> {
        m.index = self.number()?;
        m.log_term = self.number()?;
        m.commit = self.number()?;
        let count = self.reader.varint_count(MIN_ENTRY_LEN)?;
        let mut entries = Vec::with_capacity(count);
        for n in 0..count {
            let kind = self.reader.u8()?;
            let term = self.number()?;
            let data = VarintBytes::get(&mut self.reader)?;
            // The index is below MAX_NUMBER and the count below the length of the frame.
            let index = m.index + 1 + n as u64;
            entries.push(entry::to_raft(&wal::Entry {
                index,
                term,
                kind,
                data,
            }));
        }
        m.set_entries(entries.into());
        Ok(())
    }

    fn transfer(&mut self, kind: u8) -> Decoded<Transfer> {
        if kind == BEGIN {
            return Ok(Transfer::Begin(self.reader.get()?));
        }
        let id = self.reader.varint()?;
        Ok(match kind {
            CHUNK => Transfer::Chunk {
                id,
                number: self.reader.varint32()?,
                last: self.reader.u8()? != 0,
                data: VarintBytes::get(&mut self.reader)?,
            },
            ACK => Transfer::Ack {
                id,
                next: self.reader.varint32()?,
            },
            DONE => Transfer::Done { id },
            _ => Transfer::Abort { id },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::MAX_NUMBER;
    use proptest::prelude::*;
    use wire::DecodeError;

    const GROUP: GroupId = GroupId(300);

    fn error(cause: DecodeCause) -> DecodeError {
        DecodeError {
            format: FORMAT,
            cause,
        }
    }

    fn decode_all(data: Bytes) -> Decoded<Vec<(GroupId, GroupMessage)>> {
        let mut frame = FrameReader::new(&data, NodeId(2), NodeId(1))?;
        let mut all = Vec::new();
        while let Some(m) = frame.next()? {
            all.push(m);
        }
        Ok(all)
    }

    fn message() -> impl Strategy<Value = Message> {
        let n = || 0..MAX_NUMBER;
        let entries = prop::collection::vec(
            (
                0..2u8,
                1..1000u64,
                prop::collection::vec(any::<u8>(), 0..40),
            ),
            0..5,
        );
        (
            0..9usize,
            1..MAX_NUMBER,
            (n(), n(), n(), n()),
            any::<bool>(),
            entries,
        )
            .prop_map(|(kind, term, (a, b, c, d), flag, entries)| {
                let mut m = Message::default();
                (m.from, m.to, m.term) = (2, 1, term);
                let kinds = [
                    MessageType::MsgAppend,
                    MessageType::MsgAppendResponse,
                    MessageType::MsgRequestVote,
                    MessageType::MsgRequestVoteResponse,
                    MessageType::MsgRequestPreVote,
                    MessageType::MsgRequestPreVoteResponse,
                    MessageType::MsgHeartbeat,
                    MessageType::MsgHeartbeatResponse,
                    MessageType::MsgTimeoutNow,
                ];
                m.set_msg_type(kinds[kind]);
                match kind {
                    0 => {
                        (m.index, m.log_term, m.commit) = (a, b, c);
                        let entries = entries.into_iter().enumerate();
                        let entries: Vec<_> = entries
                            .map(|(i, (kind, term, data))| {
                                entry::to_raft(&wal::Entry {
                                    index: a + 1 + i as u64,
                                    term,
                                    kind,
                                    data: data.into(),
                                })
                            })
                            .collect();
                        m.set_entries(entries.into());
                    }
                    1 => {
                        m.reject = flag;
                        (m.index, m.commit, m.reject_hint, m.log_term) = (a, b, c, d);
                    }
                    2 | 4 => {
                        (m.index, m.log_term, m.commit, m.commit_term) = (a, b, c, d);
                        if flag {
                            m.context = Bytes::from_static(TRANSFER_CONTEXT);
                        }
                    }
                    3 | 5 => {
                        m.reject = flag;
                        (m.commit, m.commit_term) = (a, b);
                    }
                    6 | 7 => m.commit = a,
                    _ => {}
                }
                m
            })
    }

    proptest! {
        #[test]
        fn messages_round_trip(messages in prop::collection::vec(message(), 0..6)) {
            let mut out = BytesMut::new();
            out.put_u8(VERSION);
            for m in &messages {
                prop_assert!(encode_raft(&mut out, GROUP, m));
            }
            let expected: Vec<_> =
                messages.into_iter().map(|m| (GROUP, GroupMessage::Raft(Box::new(m)))).collect();
            prop_assert_eq!(decode_all(out.freeze()), Ok(expected));
        }

        #[test]
        fn truncated_or_modified_frames_do_not_panic(
            messages in prop::collection::vec(message(), 1..4), cut: usize, at: usize, byte: u8,
        ) {
            let mut out = BytesMut::new();
            out.put_u8(VERSION);
            for m in &messages {
                encode_raft(&mut out, GROUP, m);
            }
            let at = at % out.len();
            out[at] = byte;
            out.truncate(1 + cut % out.len());
            let _ = decode_all(out.freeze());
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(data: Vec<u8>) {
            let _ = decode_all(data.into());
        }
    }

    #[test]
    fn transfer_and_sleep_messages_round_trip() {
        let all = [
            Transfer::Begin(Offer {
                id: 9,
                term: 4,
                index: 100,
                index_term: 3,
                membership: Bytes::from_static(b"members"),
                state_bytes: 12,
                entries: 5,
            }),
            Transfer::Chunk {
                id: 9,
                number: 7,
                last: true,
                data: Bytes::from_static(b"data"),
            },
            Transfer::Ack { id: 9, next: 8 },
            Transfer::Done { id: 9 },
            Transfer::Abort { id: u64::MAX },
        ];
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        encode_sleep(&mut out, GROUP, 4, 17);
        all.iter().for_each(|t| encode_transfer(&mut out, GROUP, t));
        let mut expected = vec![(
            GROUP,
            GroupMessage::Sleep {
                term: 4,
                commit: 17,
            },
        )];
        expected.extend(all.into_iter().map(|t| (GROUP, GroupMessage::Transfer(t))));
        assert_eq!(decode_all(out.freeze()), Ok(expected));
    }

    #[test]
    fn newer_frame_version_is_refused() {
        let newer = Bytes::from_static(&[VERSION + 1, HEARTBEAT, 0, 1, 0]);
        assert_eq!(
            decode_all(newer),
            Err(error(DecodeCause::Version(VERSION + 1)))
        );
    }

    #[test]
    fn entries_with_a_gap_are_not_sent() {
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgAppend);
        (m.term, m.index) = (1, 4);
        let entry = wal::Entry {
            index: 6,
            term: 1,
            kind: entry::NORMAL,
            data: Bytes::from_static(b"x"),
        };
        m.set_entries(vec![entry::to_raft(&entry)].into());
        let mut out = BytesMut::new();
        assert!(!encode_raft(&mut out, GROUP, &m));
        assert!(out.is_empty());
    }

    #[test]
    fn term_zero_is_refused() {
        let own = Bytes::from_static(&[VERSION, HEARTBEAT, 0, 0, 0]);
        assert_eq!(decode_all(own), Err(error(DecodeCause::Damaged("term"))));
    }
}
