//! Frames between hosts, entries and tombstones as version 0.2 wrote them.

use crate::codec::{self, FrameReader, GroupMessage, Offer, Transfer};
use crate::entry::{self, FOUNDING_KIND, MEMBERSHIP, NORMAL, Position};
use crate::snapshot::{CheckpointReader, StreamError, put_entry};
use crate::tombstone::{self, Tombstone};
use crate::{GroupId, Membership, MembershipChange};
use bytes::{BufMut, Bytes, BytesMut};
use env::sim::SimDisk;
use env::{Disk, NodeId};
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeMap;
use wal::Entry;
use wire::{DecodeCause, Decoded};

const GROUP: GroupId = GroupId(300);
const CRATE: &str = env!("CARGO_MANIFEST_DIR");

golden::variant_names! {
    fn message_name(GroupMessage) {
        GroupMessage::Raft(_) => "raft",
        GroupMessage::Sleep { .. } => "sleep",
        GroupMessage::Transfer(Transfer::Begin(_)) => "begin",
        GroupMessage::Transfer(Transfer::Chunk { .. }) => "chunk",
        GroupMessage::Transfer(Transfer::Ack { .. }) => "ack",
        GroupMessage::Transfer(Transfer::Done { .. }) => "done",
        GroupMessage::Transfer(Transfer::Abort { .. }) => "abort",
    }
    fn change_name(MembershipChange) {
        MembershipChange::AddLearner(_) => "add-learner",
        MembershipChange::Promote(_) => "promote",
        MembershipChange::Remove(_) => "remove",
    }
}

fn entry(index: u64, term: u64, kind: u8, data: Bytes) -> Entry {
    Entry {
        index,
        term,
        kind,
        data,
    }
}

fn membership() -> Membership {
    Membership {
        voters: vec![NodeId(1), NodeId(2), NodeId(u64::MAX)],
        learners: vec![NodeId(7)],
    }
}

/// A message of this type with the fields that frames of most types carry.
fn raft(kind: MessageType) -> Message {
    let mut message = Message::default();
    (message.from, message.to, message.term) = (2, 1, 5);
    message.set_msg_type(kind);
    message
}

fn vote(kind: MessageType, context: &'static [u8]) -> Message {
    let mut message = raft(kind);
    (message.index, message.log_term) = (1_000, 4);
    (message.commit, message.commit_term) = (998, 3);
    message.context = Bytes::from_static(context);
    message
}

fn vote_response(kind: MessageType, reject: bool) -> Message {
    let mut message = raft(kind);
    message.reject = reject;
    (message.commit, message.commit_term) = (998, 3);
    message
}

fn append_response(reject: bool) -> Message {
    let mut message = raft(MessageType::MsgAppendResponse);
    message.reject = reject;
    (message.index, message.commit) = (1_000, 998);
    (message.reject_hint, message.log_term) = (900, 4);
    message
}

/// Every Raft message that hosts send.
fn raft_messages() -> Vec<(&'static str, Message)> {
    let mut append = raft(MessageType::MsgAppend);
    (append.index, append.log_term, append.commit) = (1_000, 4, 998);
    let change = entry::encode_change(MembershipChange::AddLearner(NodeId(300)));
    let entries = [
        entry(1_001, 4, NORMAL, Bytes::from_static(b"command")),
        entry(1_002, 5, MEMBERSHIP, change),
        entry(1_003, 5, NORMAL, Bytes::new()),
    ];
    append.set_entries(entries.iter().map(entry::to_raft).collect());
    let mut heartbeat = raft(MessageType::MsgHeartbeat);
    heartbeat.commit = 998;
    let mut heartbeat_response = raft(MessageType::MsgHeartbeatResponse);
    heartbeat_response.commit = 997;
    let transfer = b"CampaignTransfer";
    vec![
        ("append", append),
        ("append-response", append_response(false)),
        ("append-response-rejected", append_response(true)),
        ("vote", vote(MessageType::MsgRequestVote, b"")),
        (
            "vote-for-transfer",
            vote(MessageType::MsgRequestVote, transfer),
        ),
        (
            "vote-response",
            vote_response(MessageType::MsgRequestVoteResponse, false),
        ),
        (
            "vote-response-rejected",
            vote_response(MessageType::MsgRequestVoteResponse, true),
        ),
        ("pre-vote", vote(MessageType::MsgRequestPreVote, b"")),
        (
            "pre-vote-response",
            vote_response(MessageType::MsgRequestPreVoteResponse, false),
        ),
        ("heartbeat", heartbeat),
        ("heartbeat-response", heartbeat_response),
        ("timeout-now", raft(MessageType::MsgTimeoutNow)),
    ]
}

fn other_messages() -> Vec<GroupMessage> {
    let offer = Offer {
        id: 9,
        term: 4,
        index: 1_000,
        index_term: 3,
        membership: entry::encode_membership(&membership()),
        state_bytes: 1_200,
        entries: 5,
    };
    let chunk = |last, data: &'static [u8]| Transfer::Chunk {
        id: 9,
        number: 7,
        last,
        data: Bytes::from_static(data),
    };
    let transfers = [
        Transfer::Begin(offer),
        chunk(false, b"data"),
        chunk(true, b""),
        Transfer::Ack { id: 9, next: 8 },
        Transfer::Done { id: 9 },
        Transfer::Abort { id: u64::MAX },
    ];
    let sleep = GroupMessage::Sleep {
        term: 5,
        commit: 998,
    };
    let transfers = transfers.map(GroupMessage::Transfer);
    std::iter::once(sleep).chain(transfers).collect()
}

fn encode_frame(wire: &GroupMessage) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_u8(codec::VERSION);
    match wire {
        GroupMessage::Raft(message) => assert!(codec::encode_raft(&mut out, GROUP, message)),
        GroupMessage::Sleep { term, commit } => {
            codec::encode_sleep(&mut out, GROUP, *term, *commit)
        }
        GroupMessage::Transfer(transfer) => codec::encode_transfer(&mut out, GROUP, transfer),
    }
    out.to_vec()
}

fn decode_frame(frame: &[u8]) -> Decoded<GroupMessage> {
    let frame = Bytes::copy_from_slice(frame);
    let mut frame = FrameReader::new(&frame, NodeId(2), NodeId(1))?;
    let (group, message) = frame.next()?.expect("a message");
    assert_eq!((group, frame.next()?), (GROUP, None));
    Ok(message)
}

#[test]
fn frames_of_version_0_2_are_decoded() {
    golden::verify(CRATE, "0.2/frames", |files| {
        for (name, message) in raft_messages() {
            let wire = GroupMessage::Raft(Box::new(message));
            files.check(name, &wire, encode_frame, decode_frame);
        }
        let others = other_messages();
        let first = raft_messages().swap_remove(0).1;
        let one_raft = [GroupMessage::Raft(Box::new(first))];
        golden::assert_covers(others.iter().chain(&one_raft), message_name);
        let mut chunks = ["chunk", "last-chunk"].into_iter();
        for wire in &others {
            let name = match message_name(wire).0 {
                "chunk" => chunks.next().expect("a name"),
                name => name,
            };
            files.check(name, wire, encode_frame, decode_frame);
        }
    });
}

/// Kinds are consecutive numbers, so the first unknown one shows that every kind has a sample.
#[test]
fn every_kind_of_message_has_a_sample() {
    let raft = raft_messages()
        .into_iter()
        .map(|(_, m)| GroupMessage::Raft(Box::new(m)));
    let all: Vec<GroupMessage> = raft.chain(other_messages()).collect();
    let mut kinds: Vec<u8> = all.iter().map(|wire| encode_frame(wire)[1]).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let last = kinds.len() as u8;
    assert_eq!(kinds, (1..=last).collect::<Vec<_>>());
    let next = [codec::VERSION, last + 1, 0, 0, 0, 0];
    let error = decode_frame(&next).expect_err("an unknown kind");
    assert_eq!(error.cause, DecodeCause::Tag("a Raft message", last + 1));
}

#[test]
fn membership_entries_of_version_0_2_are_decoded() {
    golden::verify(CRATE, "0.2/membership", |files| {
        let encode = |m: &Membership| entry::encode_membership(m).to_vec();
        let decode =
            |bytes: &[u8]| entry::decode_membership(Bytes::copy_from_slice(bytes)).ok_or("damaged");
        files.check("members", &membership(), encode, decode);
        let changes = [
            MembershipChange::AddLearner(NodeId(300)),
            MembershipChange::Promote(NodeId(u64::MAX)),
            MembershipChange::Remove(NodeId(1)),
        ];
        golden::assert_covers(&changes, change_name);
        for change in changes {
            let (name, _) = change_name(&change);
            let Some(stored) = files.check_bytes(name, &entry::encode_change(change)) else {
                continue;
            };
            let decoded = entry::decode_change(stored.into()).expect("a change");
            let kind = decoded.get_change_type();
            files.check_text(name, &format!("{kind:?} {}\n", decoded.node_id));
        }
        // The numbers of the kinds are in every log.
        let founding = entry::founding_entry(&membership());
        assert_eq!(
            founding,
            entry(1, 1, 2, entry::encode_membership(&membership()))
        );
        assert_eq!((NORMAL, MEMBERSHIP, FOUNDING_KIND), (0, 1, 2));
    });
}

#[test]
fn checkpoint_stream_of_version_0_2_is_read() {
    const STATE: &[u8] = b"state of the machine";
    let entries = vec![
        entry(3, 1, NORMAL, Bytes::from_static(b"live command")),
        entry(1_000, 300, MEMBERSHIP, Bytes::from_static(&[0, 255])),
        entry(1_001, 300, NORMAL, Bytes::new()),
    ];
    let encode = |(state, entries): &(Bytes, Vec<Entry>)| {
        let mut out = BytesMut::from(&state[..]);
        entries.iter().for_each(|e| put_entry(&mut out, e));
        let checksum = crc32fast::hash(&out);
        out.put_u32_le(checksum);
        out.to_vec()
    };
    let decode = |bytes: &[u8]| {
        let disk = SimDisk::new();
        golden::write_file(&disk, "staged", bytes);
        let file = disk.open("staged").expect("open");
        let mut reader = CheckpointReader::new(&*file, bytes.len() as u64);
        let state = reader.state(STATE.len() as u64)?;
        let mut entries = Vec::new();
        while let Some(entry) = reader.entry()? {
            entries.push(entry);
        }
        Ok::<_, StreamError>((state, entries))
    };
    golden::verify(CRATE, "0.2/stream", |files| {
        let sample = (Bytes::from_static(STATE), entries);
        files.check("checkpoint", &sample, encode, decode);
    });
}

#[test]
fn tombstone_of_version_0_2_is_read() {
    const PATH: &str = "departed/000000000000012c";
    let encode = |tombstone: &Tombstone| {
        let disk = SimDisk::new();
        tombstone::write(&disk, GROUP, tombstone).expect("write");
        golden::read_file(&disk, PATH)
    };
    let decode = |bytes: &[u8]| {
        let disk = SimDisk::new();
        golden::write_file(&disk, PATH, bytes);
        let all: BTreeMap<_, _> = tombstone::read_all(&disk)?;
        Ok::<_, crate::RecoveryError>(all[&GROUP])
    };
    golden::verify(CRATE, "0.2/tombstone", |files| {
        let tombstone = Tombstone {
            term: 7,
            vote: u64::MAX,
            last: Position {
                index: 1_000,
                term: 6,
            },
        };
        files.check("voted", &tombstone, encode, decode);
        let without_vote = Tombstone {
            vote: 0,
            ..tombstone
        };
        files.check("without-vote", &without_vote, encode, decode);
    });
}
