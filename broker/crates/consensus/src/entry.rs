//! Log entries and memberships in our own encoding, and their conversion from and to raft-rs types.

use crate::config::MAX_MEMBERS;
use crate::{Membership, MembershipChange};
use bytes::{BufMut, Bytes, BytesMut};
use env::NodeId;
use env::planted::{self, Bug};
use raft::eraftpb::{self, ConfChange, ConfChangeType, ConfState, EntryType};
use wire::{DecodeCause, Decoded, Encoding, Reader, Varint, put_varint};

/// A command, or Raft's own empty entry.
pub(crate) const NORMAL: u8 = 0;
/// A membership change.
pub(crate) const MEMBERSHIP: u8 = 1;
/// The first entry of every group's log, at [`FOUNDING`] on all founding members; its data is the initial
/// membership. It is never replicated: members that join later receive it as a checkpoint.
pub(crate) const FOUNDING_KIND: u8 = 2;

/// A position in a group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub index: u64,
    pub term: u64,
}

/// Where every group's log starts. It is not zero, so that a replica without the founding entry is
/// distinguishable from one that has it.
pub(crate) const FOUNDING: Position = Position { index: 1, term: 1 };

/// Bound of indexes and terms accepted from peers and files: no correct node reaches it, and the sum of two
/// such numbers does not overflow.
pub(crate) const MAX_NUMBER: u64 = 1 << 62;

/// The encoding of an index or a term: LEB128, below [`MAX_NUMBER`].
pub(crate) enum LogNumber {}

impl Encoding<u64> for LogNumber {
    fn put(value: &u64, out: &mut BytesMut) {
        put_varint(out, *value);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<u64> {
        let value: u64 = Varint::get(from)?;
        match value < MAX_NUMBER {
            true => Ok(value),
            false => Err(from.error(DecodeCause::Limit)),
        }
    }
}

pub(crate) fn to_raft(entry: &wal::Entry) -> eraftpb::Entry {
    let mut e = eraftpb::Entry::default();
    e.set_entry_type(match entry.kind {
        MEMBERSHIP => EntryType::EntryConfChange,
        _ => EntryType::EntryNormal,
    });
    e.index = entry.index;
    e.term = entry.term;
    e.data = entry.data.clone();
    e
}

pub(crate) fn from_raft(entry: eraftpb::Entry) -> wal::Entry {
    wal::Entry {
        index: entry.index,
        term: entry.term,
        kind: match entry.entry_type {
            EntryType::EntryNormal => NORMAL,
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => MEMBERSHIP,
        },
        data: entry.data,
    }
}

pub(crate) fn founding_entry(membership: &Membership) -> wal::Entry {
    wal::Entry {
        index: FOUNDING.index,
        term: FOUNDING.term,
        kind: FOUNDING_KIND,
        data: encode_membership(membership),
    }
}

/// Encodes a change as entry data: the protocol buffer that raft-rs expects, of which two fields are used.
pub(crate) fn encode_change(change: MembershipChange) -> Bytes {
    let (kind, node) = match change {
        MembershipChange::Promote(node) => (0, node),
        MembershipChange::Remove(node) => (1, node),
        MembershipChange::AddLearner(node) if planted::is(Bug::LearnerVotes) => (0, node),
        MembershipChange::AddLearner(node) => (2, node),
    };
    let mut data = BytesMut::with_capacity(13);
    data.put_u8(CHANGE_TYPE_TAG);
    data.put_u8(kind);
    data.put_u8(NODE_ID_TAG);
    put_varint(&mut data, node.0);
    data.freeze()
}

const CHANGE_TYPE_TAG: u8 = 2 << 3;
const NODE_ID_TAG: u8 = 3 << 3;

/// Returns `None` if the data was not written by [`encode_change`]; every member ignores such an entry.
pub(crate) fn decode_change(data: Bytes) -> Option<ConfChange> {
    read_change(&mut Reader::new("membership change", &data)).ok()
}

fn read_change(from: &mut Reader<'_>) -> Decoded<ConfChange> {
    let mut change = ConfChange::default();
    expect_tag(from, CHANGE_TYPE_TAG)?;
    change.set_change_type(match from.u8()? {
        0 => ConfChangeType::AddNode,
        1 => ConfChangeType::RemoveNode,
        2 => ConfChangeType::AddLearnerNode,
        other => return Err(from.error(DecodeCause::Tag("a membership change", other))),
    });
    expect_tag(from, NODE_ID_TAG)?;
    change.node_id = from.varint()?;
    if change.node_id == 0 {
        return Err(from.error(DecodeCause::Damaged("node id")));
    }
    from.end()?;
    Ok(change)
}

fn expect_tag(from: &mut Reader<'_>, expected: u8) -> Decoded<()> {
    match from.u8()? {
        tag if tag == expected => Ok(()),
        other => Err(from.error(DecodeCause::Tag("a field of a membership change", other))),
    }
}

/// The membership after a change that [`decode_change`] returned.
pub(crate) fn after_change(before: &Membership, change: &ConfChange) -> Membership {
    let node = NodeId(change.node_id);
    let mut after = before.clone();
    after.voters.retain(|n| *n != node);
    after.learners.retain(|n| *n != node);
    match change.get_change_type() {
        ConfChangeType::AddNode => after.voters.push(node),
        ConfChangeType::AddLearnerNode => after.learners.push(node),
        ConfChangeType::RemoveNode => {}
    }
    after.voters.sort_unstable();
    after.learners.sort_unstable();
    after
}

pub(crate) fn encode_membership(membership: &Membership) -> Bytes {
    let mut data = BytesMut::new();
    for nodes in [&membership.voters, &membership.learners] {
        put_varint(&mut data, nodes.len() as u64);
        nodes.iter().for_each(|n| data.put_u64_le(n.0));
    }
    data.freeze()
}

/// Returns `None` if the data is damaged or no group can have these members.
pub(crate) fn decode_membership(data: Bytes) -> Option<Membership> {
    let membership = read_membership(&mut Reader::new("membership", &data)).ok()?;
    is_valid(&membership).then_some(membership)
}

fn read_membership(from: &mut Reader<'_>) -> Decoded<Membership> {
    let membership = Membership {
        voters: read_nodes(from)?,
        learners: read_nodes(from)?,
    };
    from.end()?;
    Ok(membership)
}

fn read_nodes(from: &mut Reader<'_>) -> Decoded<Vec<NodeId>> {
    let count = from.varint_count(size_of::<u64>())?;
    if count > MAX_MEMBERS {
        return Err(from.error(DecodeCause::Limit));
    }
    (0..count).map(|_| read_node(from)).collect()
}

fn read_node(from: &mut Reader<'_>) -> Decoded<NodeId> {
    Ok(NodeId(u64::from_le_bytes(from.array()?)))
}

/// At least one voter, no node twice, no node 0, and at most [`MAX_MEMBERS`] members.
pub(crate) fn is_valid(membership: &Membership) -> bool {
    let mut all: Vec<NodeId> = membership
        .voters
        .iter()
        .chain(&membership.learners)
        .copied()
        .collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    !membership.voters.is_empty()
        && all.len() == count
        && count <= MAX_MEMBERS
        && all.first() != Some(&NodeId(0))
}

pub(crate) fn to_conf_state(membership: &Membership) -> ConfState {
    let mut state = ConfState::default();
    state.voters = membership.voters.iter().map(|n| n.0).collect();
    state.learners = membership.learners.iter().map(|n| n.0).collect();
    state
}

/// Sorted, because raft-rs keeps members in sets without an order.
pub(crate) fn from_conf_state(state: &ConfState) -> Membership {
    let sorted = |nodes: &[u64]| {
        let mut nodes: Vec<NodeId> = nodes.iter().map(|n| NodeId(*n)).collect();
        nodes.sort_unstable();
        nodes
    };
    Membership {
        voters: sorted(&state.voters),
        learners: sorted(&state.learners),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn log_numbers_round_trip_below_their_limit(value in 0..MAX_NUMBER, beyond in MAX_NUMBER..) {
            let mut out = BytesMut::new();
            LogNumber::put(&value, &mut out);
            let mut reader = Reader::new("number", &out);
            prop_assert_eq!(LogNumber::get(&mut reader), Ok(value));
            prop_assert!(reader.is_empty());
            out.clear();
            put_varint(&mut out, beyond);
            prop_assert!(LogNumber::get(&mut Reader::new("number", &out)).is_err());
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(data: Vec<u8>) {
            let data = Bytes::from(data);
            let _ = LogNumber::get(&mut Reader::new("number", &data));
            let _ = decode_change(data.clone());
            let _ = decode_membership(data);
        }

        #[test]
        fn membership_change_round_trips(node in 1..u64::MAX, kind in 0..3) {
            let node = NodeId(node);
            let (change, expected) = match kind {
                0 => (MembershipChange::Promote(node), ConfChangeType::AddNode),
                1 => (MembershipChange::Remove(node), ConfChangeType::RemoveNode),
                _ => (MembershipChange::AddLearner(node), ConfChangeType::AddLearnerNode),
            };
            let decoded = decode_change(encode_change(change)).expect("decodes");
            prop_assert_eq!(decoded.node_id, node.0);
            prop_assert_eq!(decoded.get_change_type(), expected);
        }
    }

    #[test]
    fn membership_round_trips_and_invalid_memberships_are_rejected() {
        let valid = Membership {
            voters: vec![NodeId(1), NodeId(u64::MAX)],
            learners: vec![NodeId(7)],
        };
        assert_eq!(decode_membership(encode_membership(&valid)), Some(valid));
        for (voters, learners) in [
            (vec![], vec![NodeId(1)]),
            (vec![NodeId(1), NodeId(1)], vec![]),
            (vec![NodeId(1)], vec![NodeId(1)]),
            (vec![NodeId(0)], vec![]),
        ] {
            let invalid = Membership { voters, learners };
            assert_eq!(decode_membership(encode_membership(&invalid)), None);
        }
    }
}
